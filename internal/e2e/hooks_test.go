package e2e_test

import (
	"crypto/rand"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// TestHooksAreTold by deployed functions to a deployed function: ready before the agent
// begins, which it may keep from it; error, and destroyed once the sandbox is.
func TestHooksAreTold(t *testing.T) {
	in := installed(t)
	in.needAgent(t)
	tool := in.exampleTool(t)
	spec := in.Spec()
	definition := map[string]any{
		"name": "hooks", "version": 1, "checkpoint": "none", "destroyOnComplete": true, "task": map[string]any{
			"taskDefinition": spec.TaskDefinition, "container": spec.Container, "subnets": spec.Subnets, "assignPublicIp": true,
		},
		"hooks": map[string]any{"ready": tool, "error": tool, "destroyed": tool},
	}
	told := func(hook string, run core.RunID) bool {
		return in.engineSaid(t, "hook "+hook+" of run "+string(run)+":")
	}

	c := in.caller()
	run := core.RunID("hooks-" + rand.Text())
	c.start(t, run, "echo done", map[string]any{"definition": definition})
	await(t, "ready", func() bool { return told("ready", run) })
	if c.output(t, run); c.finish(t, run).Run.Status != core.Completed {
		t.Errorf("the run did not complete: %+v", in.run(t, core.RunKey{Tenant: "-", Run: run}))
	}
	await(t, "destroyed", func() bool { return told("destroyed", run) })
	if told("error", run) {
		t.Error("the error hook was told of a run that completed")
	}

	closed := in.caller()
	closed.thread = "closed-" + closed.thread
	refused := core.RunID("hooks-" + rand.Text())
	request := map[string]any{
		"run": refused, "thread": closed.thread, "host": closed.host, "definition": definition, "agent": map[string]any{"shell": "echo begun"},
	}
	var why string
	await(t, "refusal of the ready hook", func() bool {
		var report core.StartReport
		if err := closed.ask(t, "start", request, &report); err != nil {
			why = err.Error()
		}
		return why != "" || report.State == core.Ready
	})
	if !strings.Contains(why, "hook-failed") || !strings.Contains(why, "is closed") {
		t.Errorf("start is refused as %q, want the hook's own words", why)
	}
	await(t, "error and destroyed", func() bool { return told("error", refused) && told("destroyed", refused) })
	if r := in.run(t, core.RunKey{Tenant: "-", Run: refused}); r.Status != core.Failed || r.LogEnd != 0 {
		t.Errorf("the refused run ended as %s with %d bytes of output", r.Status, r.LogEnd)
	}
}

// engineSaid reports whether the engine, which keeps what functions log, has that text.
func (in *installation) engineSaid(t *testing.T, text string) (said bool) {
	t.Helper()
	err := filepath.WalkDir(in.engine.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil // what the engine takes away meanwhile
		}
		data, err := os.ReadFile(path)
		said = said || err == nil && strings.Contains(string(data), text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return said
}
