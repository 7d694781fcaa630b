package e2e_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// caller is a host that knows nothing but the session function.
type caller struct {
	in     *installation
	thread core.ThreadID
	host   string
}

func (in *installation) caller() caller {
	return caller{in, core.ThreadID("thread-" + rand.Text()), "host-" + rand.Text()}
}

// try makes one call; a failure of the function is an error as well.
func (c caller) try(t *testing.T, operation string, request map[string]any) ([]byte, error) {
	t.Helper()
	request["tenant"] = "-"
	event, err := json.Marshal(map[string]any{operation: request})
	if err != nil {
		t.Fatal(err)
	}
	return c.in.invoke(c.in.out[names.OutSession], event)
}

// ask makes one call; a refusal is an error.
func (c caller) ask(t *testing.T, operation string, request map[string]any, answer any) error {
	t.Helper()
	out, err := c.try(t, operation, request)
	if err != nil {
		t.Fatal(err)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(out, &members); err != nil {
		t.Fatalf("%s: answer %s: %v", operation, out, err)
	}
	if members["error"] != nil {
		return fmt.Errorf("%s: %s", operation, members["error"])
	}
	return json.Unmarshal(members[operation], answer)
}

func (c caller) must(t *testing.T, operation string, request map[string]any, answer any) {
	t.Helper()
	if err := c.ask(t, operation, request, answer); err != nil {
		t.Fatal(err)
	}
}

// start begins a run, in as many steps as it takes.
func (c caller) start(t *testing.T, run core.RunID, shell string, change map[string]any) core.StartReport {
	t.Helper()
	spec := c.in.Spec()
	request := map[string]any{
		"run": run, "thread": c.thread, "host": c.host, "agent": map[string]any{"shell": shell},
		"definition": map[string]any{"name": "e2e", "version": 1, "checkpoint": "finished", "task": map[string]any{
			"taskDefinition": spec.TaskDefinition, "container": spec.Container, "subnets": spec.Subnets, "assignPublicIp": true,
		}},
	}
	maps.Copy(request, change)
	t.Cleanup(func() {
		var report core.EndReport
		_ = c.ask(t, "cancel", map[string]any{"run": run, "host": c.host}, &report) // it may have ended
	})
	var report core.StartReport
	await(t, "start "+string(run), func() bool {
		c.must(t, "start", request, &report)
		return report.State == core.Ready
	})
	return report
}

// output tails a run to its end.
func (c caller) output(t *testing.T, run core.RunID) string {
	t.Helper()
	var all strings.Builder
	from := int64(0)
	await(t, "tail "+string(run), func() bool {
		var report core.TailReport
		c.must(t, "tail", map[string]any{"run": run, "host": c.host, "from": from, "waitSeconds": 5, "stallSeconds": 60}, &report)
		all.Write(report.Data)
		from = report.Next
		return report.End
	})
	return all.String()
}

func (c caller) finish(t *testing.T, run core.RunID) core.FinishReport {
	t.Helper()
	var report core.FinishReport
	await(t, "finish "+string(run), func() bool {
		c.must(t, "finish", map[string]any{"run": run, "host": c.host}, &report)
		return report.State == core.Finished
	})
	return report
}

// TestThreeTurnsByTheSessionFunction: the second finds the first's file in the warm
// sandbox; the third, whose sandbox is gone, in what was brought back.
func TestThreeTurnsByTheSessionFunction(t *testing.T) {
	in := installed(t)
	in.needAgent(t)
	c := in.caller()
	id := core.RunID("turn-" + rand.Text())
	first := c.start(t, id+"-1", `echo one >file; echo begun; cat file`, nil)
	if first.Ensured != core.EnsuredCreated || first.RestoredFrom != "" {
		t.Errorf("first turn: %+v", first)
	}
	if got := c.output(t, id+"-1"); got != "begun\none\n" {
		t.Errorf("first turn wrote %q", got)
	}
	if done := c.finish(t, id+"-1"); done.Run.Status != core.Completed || done.Checkpoint != core.CheckpointOf(id+"-1") {
		t.Errorf("first turn finished as %+v", done)
	}
	second := c.start(t, id+"-2", `cat file; echo two >>file`, nil)
	if second.Ensured != core.EnsuredResumed || second.Run.TaskARN != first.Run.TaskARN {
		t.Errorf("second turn: %+v", second)
	}
	if got := c.output(t, id+"-2"); got != "one\n" {
		t.Errorf("second turn wrote %q", got)
	}
	c.finish(t, id+"-2")
	tasks := in.host.Describer.(interface {
		Stop(ctx context.Context, cluster, arn, reason string) (core.Task, error)
	})
	if _, err := tasks.Stop(t.Context(), in.out[names.OutCluster], second.Run.TaskARN, "an outage"); err != nil {
		t.Fatal(err)
	}
	third := c.start(t, id+"-3", `cat file`, nil)
	if third.Ensured != core.EnsuredCreated || third.RestoredFrom != core.CheckpointOf(id+"-2") {
		t.Errorf("third turn: %+v", third)
	}
	if got := c.output(t, id+"-3"); got != "one\ntwo\n" {
		t.Errorf("third turn wrote %q", got)
	}
	c.finish(t, id+"-3")
	var runs core.ListRunsReport
	c.must(t, "list", map[string]any{"thread": c.thread}, &runs)
	if len(runs.Runs) != 3 {
		t.Errorf("the thread has %d runs, want 3", len(runs.Runs))
	}
}

// TestACancelByTheHostEndsItsAgent in the same call, and its sandbox soon after.
func TestACancelByTheHostEndsItsAgent(t *testing.T) {
	in := installed(t)
	c := in.caller()
	run := core.RunID("cancelled-" + rand.Text())
	begun := c.start(t, run, lives, nil)
	var report core.EndReport
	asked := time.Now()
	await(t, "cancel "+string(run), func() bool {
		c.must(t, "cancel", map[string]any{"run": run, "host": c.host}, &report)
		return report.Ended
	})
	t.Logf("ended after %s", time.Since(asked))
	// The agent's shell says how SIGTERM ended it: its sentinel tells more than "aborted".
	if v := report.Run; v.Status != core.Failed || v.ExitCode == nil || *v.ExitCode != 128+15 || v.Ending != core.EndCancelled {
		t.Errorf("cancelled: status %s, ending %s, error %v", v.Status, v.Ending, v.Error)
	}
	await(t, "stop of "+begun.Run.TaskARN, func() bool {
		tasks, err := in.host.Describer.Describe(t.Context(), in.out[names.OutCluster], []string{begun.Run.TaskARN})
		return err == nil && tasks[0].Life == core.TaskGone
	})
}

// TestAnotherTenantIsRefused: the default stack has one tenant.
func TestAnotherTenantIsRefused(t *testing.T) {
	in := installed(t)
	out, err := in.invoke(in.out[names.OutSession], []byte(`{"get": {"tenant": "acme", "run": "r"}}`))
	if err != nil || !strings.Contains(string(out), "not-your-tenant") {
		t.Errorf("%s, %v", out, err)
	}
}
