package e2e_test

import (
	"context"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// gitIn runs git as the author of a test's remote.
func gitIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// commit adds a file to a repository's working tree and commits it.
func commit(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(name+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	gitIn(t, dir, "add", ".")
	gitIn(t, dir, "commit", "-q", "-m", name)
}

const asks = `git status --porcelain --branch; git rev-parse HEAD; git stash list; cat set-up`

// TestASandboxIsSetUpByExec: the clone, the definition's steps and instruction files in a
// new sandbox; nothing of it in a warm one; and, in the sandbox that replaces one that was
// killed, the repository as the turn before left it, although its remote has moved on.
func TestASandboxIsSetUpByExec(t *testing.T) {
	in := installed(t)
	in.needAgent(t)
	remote := filepath.Join(in.dir, "remote-"+rand.Text())
	if err := os.Mkdir(remote, 0o755); err != nil {
		t.Fatal(err)
	}
	gitIn(t, remote, "init", "-q", "-b", "main")
	commit(t, remote, "one")
	commit(t, remote, "later")
	spec := in.Spec()
	change := map[string]any{"definition": map[string]any{
		"name": "e2e-setup", "version": 1, "checkpoint": "finished", "fileEvents": map[string]any{"enabled": true},
		"task": map[string]any{"taskDefinition": spec.TaskDefinition, "container": spec.Container, "subnets": spec.Subnets, "assignPublicIp": true},
		"workspace": map[string]any{
			"source": map[string]any{"repository": "file://" + remote}, "instructions": "be good\n", "scripts": map[string]string{"hello": "#!/bin/sh\necho hello\n"},
			"setup": []any{map[string]any{"name": "g", "steps": []any{map[string]any{"name": "mark", "run": ".sandkeeper/scripts/hello >>set-up"}}}},
		},
	}}
	c := in.caller()
	id := core.RunID("set-up-" + rand.Text())
	first := c.start(t, id+"-1", `cat AGENTS.md one set-up
git checkout -q -b work && echo 2 >two && git add two && git -c user.name=a -c user.email=a@example.com commit -q -m unpushed
echo staged >>one; git add one; echo x >untracked; `+asks, change)
	if first.Ensured != core.EnsuredCreated {
		t.Errorf("first turn: %+v", first)
	}
	before, state, _ := strings.Cut(c.output(t, id+"-1"), "## ")
	if before != "be good\none\nhello\n" || !strings.Contains(state, "work\n") || !strings.Contains(state, "M  one\n") || !strings.Contains(state, "?? untracked\n") {
		t.Fatalf("first turn wrote %q, %q", before, state)
	}
	c.finish(t, id+"-1")
	var files core.TailReport
	c.must(t, "tail", map[string]any{"run": id + "-1", "from": 0, "stream": "files"}, &files)
	if !files.End || !strings.Contains(string(files.Data), `"path":"two"`) {
		t.Errorf("files of the first turn: %+v %s", files, files.Data)
	}
	second := c.start(t, id+"-2", asks, change)
	if got := c.output(t, id+"-2"); second.Ensured != core.EnsuredResumed || got != "## "+state {
		t.Errorf("a warm sandbox: %+v wrote %q, want %q", second, got, state)
	}
	c.finish(t, id+"-2")
	in.stopTask(t, second.Run.TaskARN)
	commit(t, remote, "moved")
	third := c.start(t, id+"-3", asks, change)
	if third.Ensured != core.EnsuredCreated || third.RestoredFrom != core.CheckpointOf(id+"-2") {
		t.Errorf("third turn: %+v", third)
	}
	if got := c.output(t, id+"-3"); got != "## "+state+"hello\n" {
		t.Errorf("a new sandbox wrote %q, want %q and one more hello", got, state)
	}
	c.finish(t, id+"-3")
}

// TestAFailedStepOfTheSetUpIsTold with its end, and its sandbox goes.
func TestAFailedStepOfTheSetUpIsTold(t *testing.T) {
	in := installed(t)
	in.needAgent(t)
	spec := in.Spec()
	c := in.caller()
	run := core.RunID("set-up-fails-" + rand.Text())
	request := map[string]any{
		"run": run, "thread": c.thread, "host": c.host, "agent": map[string]any{"shell": "echo never"},
		"definition": map[string]any{
			"name": "e2e-setup-fails", "version": 1, "checkpoint": "none",
			"task":      map[string]any{"taskDefinition": spec.TaskDefinition, "container": spec.Container, "subnets": spec.Subnets, "assignPublicIp": true},
			"workspace": map[string]any{"setup": []any{map[string]any{"name": "g", "steps": []any{map[string]any{"name": "bad", "run": "echo no such thing; exit 7"}}}}},
		},
	}
	var failed error
	await(t, "start "+string(run), func() bool {
		var report core.StartReport
		failed = c.ask(t, "start", request, &report)
		return failed != nil
	})
	if text := failed.Error(); !strings.Contains(text, "setup-failed") || !strings.Contains(text, "g/bad") || !strings.Contains(text, "no such thing") {
		t.Errorf("start: %v", failed)
	}
	r := in.settle(t, core.RunKey{Tenant: "-", Run: run})
	if r.Status != core.Failed || r.Error == nil || r.Error.Code != "setup-failed" {
		t.Errorf("run %s, %+v", r.Status, r.Error)
	}
}

// stopTask ends a task as an outage does.
func (in *installation) stopTask(t *testing.T, arn string) {
	t.Helper()
	tasks := in.host.Describer.(interface {
		Stop(ctx context.Context, cluster, arn, reason string) (core.Task, error)
	})
	if _, err := tasks.Stop(t.Context(), in.out[names.OutCluster], arn, "an outage"); err != nil {
		t.Fatal(err)
	}
}
