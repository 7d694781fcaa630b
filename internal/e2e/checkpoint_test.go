package e2e_test

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/lambdacheckpoint"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/transfer"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
)

// agentShim stands where sandboxes look for the agent binary. While a test catches
// jobs it keeps the job for the test, which then does the agent's work itself; else it
// becomes the real one.
const agentShim = `#!/bin/sh
if [ "$1" = start ] && [ -d "$0.caught" ]; then
  cat >"$0.caught/new" && mv "$0.caught/new" "$0.caught/job" && echo started
  exit
fi
exec "$0.real" "$@"
`

// installAgent puts the shim, and the binary that make build-local leaves, where every
// task finds them, and returns the shim's path.
func installAgent(dir string) (string, error) {
	path := filepath.Join(dir, core.AgentName)
	if err := os.WriteFile(path, []byte(agentShim), 0o755); err != nil {
		return "", err
	}
	built, err := os.ReadFile(filepath.Join("..", "..", "dist", "local", "agent", core.AgentName))
	if errors.Is(err, fs.ErrNotExist) {
		return path, nil // tests that need it say so
	}
	if err != nil {
		return "", err
	}
	return path, os.WriteFile(path+".real", built, 0o755)
}

// catch lets the test have the jobs of agents until its end.
func (in *installation) catch(t *testing.T) (next func() transfer.Job) {
	t.Helper()
	dir := filepath.Join(in.dir, core.AgentName+".caught")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return func() transfer.Job {
		t.Helper()
		path := filepath.Join(dir, "job")
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var job transfer.Job
		if err := core.DecodeStrict(data, &job); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		return job
	}
}

// checkpoint makes one call of the checkpoint function.
func (in *installation) checkpoint(t *testing.T, operation string, request, answer any) error {
	t.Helper()
	caller := &lambdacheckpoint.Caller{Lambda: in.functions, Function: in.out[names.OutCheckpoint], Timeout: waitMost}
	return caller.Call(contextOf(t), operation, request, answer)
}

func (in *installation) mustCheckpoint(t *testing.T, operation string, request, answer any) {
	t.Helper()
	if err := in.checkpoint(t, operation, request, answer); err != nil {
		t.Fatal(err)
	}
}

// tree makes a small workspace, with what a copy of bytes alone would lose.
func (in *installation) tree(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(in.dir, rand.Text())
	for path, content := range map[string]string{
		"main.go": "package main\n", "bin/run": "#!/bin/sh\n", "src/deep/größe.txt": strings.Repeat("many lines\n", 4000),
		"empty/.keep": "", ".env": "SECRET=1", "token.txt": "before s3cr3t-value after",
	} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(
		os.Chmod(filepath.Join(dir, "bin/run"), 0o755), os.Symlink("bin/run", filepath.Join(dir, "run")),
		os.Symlink("/usr/bin/python3", filepath.Join(dir, "python")), os.Link(filepath.Join(dir, "main.go"), filepath.Join(dir, "same.go")),
	)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// picture is a tree as text: kind, mode, and content or target of each entry.
func picture(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil || name == "." {
			return err
		}
		content := ""
		switch {
		case info.Mode().Type() == fs.ModeSymlink:
			content, err = os.Readlink(path)
		case info.Mode().IsRegular():
			var data []byte
			data, err = os.ReadFile(path)
			content = string(data)
		}
		fmt.Fprintf(&all, "%s %s %q\n", info.Mode(), name, content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func saveOf(r core.Run, id core.CheckpointID, dir string) core.SaveRequest {
	return core.SaveRequest{
		ThreadKey: core.ThreadKey{Tenant: r.Tenant, Thread: r.Thread}, ID: id, Run: r.Run, Key: r.SandboxKey, Instance: r.Instance,
		JobOptions: core.JobOptions{Dir: dir, Policy: json.RawMessage(`{"defaults":true}`)},
	}
}

// capture does an agent's work with a job: it stores the tree and hands its root in.
func capture(t *testing.T, job transfer.Job, dir string) (root []byte) {
	t.Helper()
	client, err := transfer.NewClient(job)
	if err != nil {
		t.Fatal(err)
	}
	parent, err := client.Parent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	made, err := workspace.Capture(t.Context(), workspace.CaptureOptions{
		Root: dir, Store: client, ID: job.ID, Parent: parent, Policy: manifest.Policy{Defaults: true},
		Secrets: []workspace.Secret{{Name: "TOKEN", Value: "s3cr3t-value"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if root, err = manifest.EncodeRoot(made.Root); err != nil {
		t.Fatal(err)
	}
	if id, err := client.Commit(t.Context(), root); err != nil || id != job.ID {
		t.Fatalf("committed %q, %v", id, err)
	}
	return root
}

// TestAWorkspaceGoesThroughTheURLAndComesBack (I5, I12): packs to S3 by grants, the
// root by the function, and all of it back into another sandbox of the thread.
func TestAWorkspaceGoesThroughTheURLAndComesBack(t *testing.T) {
	in := installed(t)
	next := in.catch(t)
	r := in.begin(t, agent{run: "saved", shell: lives})
	key := core.ThreadKey{Tenant: r.Tenant, Thread: r.Thread}
	dir := in.tree(t)
	save := saveOf(r, "checkpoint-saved", dir)
	var report core.StepReport
	in.mustCheckpoint(t, "save", save, &report)
	if report.State != core.StepWorking || report.Attempts != 1 {
		t.Fatalf("begun as %+v", report)
	}
	job := next()
	if job.Kind != transfer.JobCapture || job.ID != string(save.ID) || job.Dir != dir || job.URL == "" || job.Token == "" {
		t.Fatalf("the agent got %+v", job)
	}
	root := capture(t, job, dir)
	in.mustCheckpoint(t, "save", save, &report)
	if report.State != core.StepDone || report.Checkpoint != save.ID || report.Files == 0 {
		t.Errorf("ended as %+v", report)
	}
	var head core.ListedCheckpoint
	in.mustCheckpoint(t, "head", key, &head)
	if head.ID != save.ID || !head.Head || head.SourceRun != r.Run {
		t.Errorf("head %+v", head)
	}
	var verified core.VerifyReport
	in.mustCheckpoint(t, "verify", map[string]any{"tenant": key.Tenant, "thread": key.Thread, "id": save.ID}, &verified)
	if len(verified.Broken) != 0 || verified.Packs == 0 || verified.Read != verified.Packs {
		t.Errorf("verified %+v", verified)
	}
	again, err := transfer.NewClient(job)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := again.Commit(t.Context(), root); err != nil || id != job.ID {
		t.Errorf("a repeated commit: %q, %v", id, err)
	}
	in.checkRestored(t, r, dir, next)
}

// checkRestored brings the head of the run's thread back into an empty directory.
func (in *installation) checkRestored(t *testing.T, r core.Run, want string, next func() transfer.Job) {
	t.Helper()
	dir := filepath.Join(in.dir, rand.Text())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	restore := core.RestoreRequest{
		ThreadKey: core.ThreadKey{Tenant: r.Tenant, Thread: r.Thread}, ID: "restore-1", Key: r.SandboxKey, Instance: r.Instance,
		JobOptions: core.JobOptions{Dir: dir},
	}
	var report core.StepReport
	in.mustCheckpoint(t, "restore", restore, &report)
	job := next()
	client, err := transfer.NewClient(job)
	if err != nil {
		t.Fatal(err)
	}
	root, err := client.Parent(t.Context())
	if err != nil || root == nil {
		t.Fatalf("root %v, %v", root, err)
	}
	if _, err := workspace.Restore(t.Context(), workspace.RestoreOptions{Root: dir, Store: client, Manifest: *root}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Commit(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	in.mustCheckpoint(t, "restore", restore, &report)
	if report.State != core.StepDone {
		t.Errorf("restore ended as %+v", report)
	}
	if _, err := os.Stat(filepath.Join(dir, ".env")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf(".env was stored: %v", err)
	}
	got := picture(t, dir)
	if err := os.Remove(filepath.Join(want, ".env")); err != nil {
		t.Fatal(err)
	}
	wanted := strings.ReplaceAll(picture(t, want), "s3cr3t-value", strings.Repeat(`\x00`, len("s3cr3t-value")))
	if got != wanted {
		t.Errorf("restored\n%.3000s\nwant\n%.3000s", got, wanted)
	}
}

// refusedWith reports whether the function refused with that status.
func refusedWith(err error, status int) bool {
	e, ok := errors.AsType[*transfer.Error](err)
	return ok && e.Status == status
}

// TestATokenIsForOneStepOfOneThread (I11, I16).
func TestATokenIsForOneStepOfOneThread(t *testing.T) {
	in := installed(t)
	next := in.catch(t)
	r, other := in.begin(t, agent{run: "mine", shell: lives}), in.begin(t, agent{run: "theirs", shell: lives})
	dir := in.tree(t)
	var report core.StepReport
	in.mustCheckpoint(t, "save", saveOf(r, "checkpoint-mine", dir), &report)
	job := next()
	in.mustCheckpoint(t, "save", saveOf(other, "checkpoint-theirs", dir), &report)
	theirs := next()
	ask := func(token string) error {
		forged := job
		forged.Token = token
		client, err := transfer.NewClient(forged)
		if err != nil {
			t.Fatal(err)
		}
		return client.Renew(t.Context(), workspace.Progress{})
	}
	if err := ask(job.Token); err != nil {
		t.Errorf("the token itself: %v", err)
	}
	mine, foreign := strings.Split(job.Token, "."), strings.Split(theirs.Token, ".")
	secret := mine[len(mine)-1]
	for name, token := range map[string]string{
		"another secret":  strings.TrimSuffix(job.Token, secret) + foreign[len(foreign)-1],
		"another thread":  strings.TrimSuffix(theirs.Token, foreign[len(foreign)-1]) + secret,
		"no secret":       strings.TrimSuffix(job.Token, secret),
		"another word":    "token",
		"a cut secret":    job.Token[:len(job.Token)-1],
		"a higher fence":  strings.Replace(job.Token, ".1.", ".2.", 1),
		"a fence of text": strings.Replace(job.Token, ".1.", ".x.", 1),
	} {
		if err := ask(token); !refusedWith(err, 401) {
			t.Errorf("%s: %v", name, err)
		}
	}
	root := capture(t, theirs, dir)
	client, err := transfer.NewClient(job)
	if err != nil {
		t.Fatal(err)
	}
	// A root that names packs that the thread never stored.
	if id, err := client.Commit(t.Context(), root); err == nil || refusedWith(err, 401) || refusedWith(err, 503) {
		t.Errorf("another thread's root is committed as %q, %v", id, err)
	}
	decoded, err := manifest.DecodeRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Get(t.Context(), decoded.Layers[0], 0, make([]byte, 1)); err == nil {
		t.Error("another thread's layer can be read")
	}
	capture(t, job, dir) // which ends the step, and gives the lease back
	if err := ask(job.Token); !refusedWith(err, 401) {
		t.Errorf("the token of an ended step: %v", err)
	}
}

// needAgent skips where the binary for the image is not built, except under CI.
func (in *installation) needAgent(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(in.dir, core.AgentName+".real")); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("no agent, run make build-local")
	}
}

// TestAFinishedRunsWorkspaceIsSavedBeforeItsTaskStops (I5): with nobody there, by the
// schedule, the queue and the agent in the sandbox alone.
func TestAFinishedRunsWorkspaceIsSavedBeforeItsTaskStops(t *testing.T) {
	in := installed(t)
	in.needAgent(t)
	const work = `mkdir -p src && echo 'package src' >src/a.go && echo SECRET=1 >.env && ln -s src/a.go link && chmod 750 src; exit 3`
	r := in.begin(t, agent{run: "finished", shell: work, checkpoint: core.CheckpointFinished})
	in.exited(t, r)
	in.sweepUntil(t, "settle "+r.RunKey.String(), func(core.SweepReport) bool { return in.settled(t, r.RunKey) })
	r = in.settle(t, r.RunKey)
	want := core.CheckpointOf(r.Run)
	if r.Checkpoint.State != core.CheckpointDone || r.Checkpoint.ID != want {
		t.Errorf("the run's checkpoint is %+v", r.Checkpoint)
	}
	key := core.ThreadKey{Tenant: r.Tenant, Thread: r.Thread}
	var head core.ListedCheckpoint
	in.mustCheckpoint(t, "head", key, &head)
	if head.ID != want || head.SourceRun != r.Run {
		t.Errorf("head %+v", head)
	}
	task, err := in.fargate.Task(r.TaskARN)
	if err != nil {
		t.Fatal(err)
	}
	next, err := in.start(t, agent{tenant: r.Tenant, run: "next", thread: r.Thread, shell: lives})
	if err != nil {
		t.Fatal(err)
	}
	in.awaitStep(t, "restore", core.RestoreRequest{ThreadKey: key, ID: "restore-next", Key: next.SandboxKey, Instance: next.Instance})
	fresh, err := in.fargate.Task(next.TaskARN)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(task.Containers[0].WorkDir, ".env")); err != nil {
		t.Fatal(err)
	}
	if got, want := picture(t, fresh.Containers[0].WorkDir), picture(t, task.Containers[0].WorkDir); got != want || !strings.Contains(got, "src/a.go") {
		t.Errorf("restored\n%s\nwant\n%s", got, want)
	}
}

// TestTheAgentItselfSavesAndRestores: the binary for the image, started by ECS Exec,
// with a route to the URL and without one.
func TestTheAgentItselfSavesAndRestores(t *testing.T) {
	in := installed(t)
	in.needAgent(t)
	for name, relay := range map[string]bool{"by-url": false, "by-session": true} {
		t.Run(name, func(t *testing.T) {
			r := in.begin(t, agent{run: core.RunID(name), shell: lives})
			dir := in.tree(t)
			save := saveOf(r, core.CheckpointID("checkpoint-"+name), dir)
			save.Relay = relay
			in.awaitStep(t, "save", save)
			back := filepath.Join(in.dir, rand.Text())
			if err := os.Mkdir(back, 0o755); err != nil {
				t.Fatal(err)
			}
			in.awaitStep(t, "restore", core.RestoreRequest{
				ThreadKey: save.ThreadKey, ID: core.CheckpointID("restore-" + name), Key: r.SandboxKey, Instance: r.Instance,
				JobOptions: core.JobOptions{Dir: back, Relay: relay},
			})
			if err := os.Remove(filepath.Join(dir, ".env")); err != nil {
				t.Fatal(err)
			}
			if got, want := picture(t, back), picture(t, dir); got != want {
				t.Errorf("restored\n%.3000s\nwant\n%.3000s", got, want)
			}
		})
	}
}

// awaitStep asks for a step until it is done.
func (in *installation) awaitStep(t *testing.T, operation string, request any) {
	t.Helper()
	await(t, operation, func() bool {
		var report core.StepReport
		in.mustCheckpoint(t, operation, request, &report)
		if report.State == core.StepFailed {
			t.Fatalf("%s ended as %+v", operation, report)
		}
		return report.State == core.StepDone
	})
}
