package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/lambdacheckpoint"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/s3blob"
)

// shown is what show prints.
type shown struct {
	Checkpoint listedView  `json:"checkpoint"`
	Tree       treeView    `json:"tree"`
	Entries    []entryView `json:"entries"`
}

func (s shown) paths() []string {
	var paths []string
	for _, e := range s.Entries {
		paths = append(paths, e.Path)
	}
	return paths
}

// listed is what list prints.
type listed struct {
	Checkpoints []listedView `json:"checkpoints"`
}

func (l listed) head() core.CheckpointID {
	for _, c := range l.Checkpoints {
		if c.Head {
			return c.ID
		}
	}
	return ""
}

// image puts the agent that make build-local leaves into every sandbox until the test's
// end.
func (w *world) image(t *testing.T) {
	t.Helper()
	built, err := os.ReadFile(filepath.Join("..", "..", "dist", "local", "agent", core.AgentName))
	if errors.Is(err, fs.ErrNotExist) && os.Getenv("CI") == "" {
		t.Skip("no agent, run make build-local")
	}
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(w.dir, core.AgentName)
	if err := os.WriteFile(path, built, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	})
}

// threadOf is how the tool is told of a run's thread.
func threadOf(r core.Run) string { return core.ThreadKey{Tenant: r.Tenant, Thread: r.Thread}.String() }

// workDir is the workspace of a run's sandbox, as this machine sees it.
func (w *world) workDir(t *testing.T, r core.Run) string {
	t.Helper()
	task, err := w.fargate.Task(r.TaskARN)
	if err != nil {
		t.Fatal(err)
	}
	return task.Containers[0].WorkDir
}

// save has the deployed function store the workspace of a run's sandbox.
func (w *world) save(t *testing.T, r core.Run, id core.CheckpointID) {
	t.Helper()
	caller := &lambdacheckpoint.Caller{Lambda: w.lambda, Function: w.out[names.OutCheckpoint], Timeout: time.Minute}
	q := core.SaveRequest{
		ThreadKey: core.ThreadKey{Tenant: r.Tenant, Thread: r.Thread}, ID: id, Run: r.Run, Key: r.SandboxKey, Instance: r.Instance,
	}
	eventually(t, "checkpoint "+string(id)+" is stored", func() bool {
		report, err := caller.Save(context.WithoutCancel(t.Context()), q)
		if err != nil || report.State == core.StepFailed {
			t.Fatalf("save %s: %+v, %v", id, report, err)
		}
		return report.State == core.StepDone
	})
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func holds(t *testing.T, dir, name, want string) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil || string(got) != want {
		t.Errorf("%s is %q, %v, want %q", name, got, err, want)
	}
}

// leaves is an agent with a workspace of which not everything is stored.
const leaves = `mkdir -p src && printf one >src/a.go && chmod 640 src/a.go && ln -s src/a.go link && printf S=1 >.env && mkfifo pipe && echo begun; exec sleep 3600`

// kept is a run that lives, with two checkpoints of its thread: src/a.go is "one" in the
// first and "second" in the other, and "third" in the sandbox.
func (w *world) kept(t *testing.T, run core.RunID) core.Run {
	t.Helper()
	w.image(t)
	r := w.begin(t, agent{run: run, shell: leaves, stays: true})
	w.wrote(t, r, "begun")
	w.save(t, r, core.CheckpointID(run+"-1"))
	write(t, w.workDir(t, r), "src/a.go", "second")
	write(t, w.workDir(t, r), "new.txt", "new")
	w.save(t, r, core.CheckpointID(run+"-2"))
	write(t, w.workDir(t, r), "src/a.go", "third")
	return r
}

func TestCheckpointsAreListedShownAndCompared(t *testing.T) {
	w := installed(t)
	r := w.kept(t, "looked-at")
	thread := threadOf(r)

	w.unchanged(t, func() {
		l := read[listed](t, exitDone, "checkpoints", "list", thread)
		if len(l.Checkpoints) != 2 || l.head() != "looked-at-2" || l.Checkpoints[1].Parent != "looked-at-1" || l.Checkpoints[0].SourceRun != r.Run {
			t.Errorf("listed %+v", l)
		}
		if head := read[listedView](t, exitDone, "checkpoints", "head", thread); head.ID != "looked-at-2" || !head.Head || head.CreatedAt == 0 {
			t.Errorf("head %+v", head)
		}
		s := read[shown](t, exitDone, "checkpoints", "show", thread, "looked-at-1")
		if got, want := s.paths(), []string{"link", "src", "src/a.go"}; !slices.Equal(got, want) {
			t.Errorf("entries %q, want %q", got, want)
		}
		if e := s.Entries[2]; e.Kind != manifest.File || e.Mode != "0640" || e.Size != 3 || len(e.SHA256) != 64 || s.Entries[0].Target != "src/a.go" {
			t.Errorf("entries %+v", s.Entries)
		}
		if !slices.ContainsFunc(s.Tree.Skipped, func(s manifest.Skipped) bool { return s.Path == "pipe" && s.Reason != "" }) || s.Tree.Counts.Files != 1 {
			t.Errorf("tree %+v", s.Tree)
		}
		if below := read[shown](t, exitDone, "checkpoints", "show", thread, "--path", "src/"); !slices.Equal(below.paths(), []string{"src", "src/a.go"}) {
			t.Errorf("below src: %q", below.paths())
		}
		text := sandkeeper(t, "checkpoints", "show", thread).wants(t, exitDone).out
		for _, part := range []string{"looked-at-2", "pipe", "-rw-r-----", "link -> src/a.go", "new.txt"} {
			if !strings.Contains(text, part) {
				t.Errorf("show prints no %q: %s", part, text)
			}
		}
		d := read[diffView](t, exitDone, "checkpoints", "diff", thread, "looked-at-1", "looked-at-2")
		want := []core.TreeChange{{Path: "new.txt", Kind: "added", To: 3}, {Path: "src/a.go", Kind: "changed", From: 3, To: 6}}
		if !slices.Equal(d.Changes, want) || d.More {
			t.Errorf("changes %+v, want %+v", d, want)
		}
		if d := read[diffView](t, exitDone, "checkpoints", "diff", thread, "looked-at-1", "looked-at-2", "--limit", "1"); len(d.Changes) != 1 || !d.More {
			t.Errorf("one change %+v", d)
		}
	})
	if l := read[listed](t, exitDone, "checkpoints", "list", "nobody/knows"); len(l.Checkpoints) != 0 {
		t.Errorf("of a thread that nobody knows: %+v", l)
	}
	for _, args := range [][]string{
		{"head", "nobody/knows"}, {"show", thread, "no-such"}, {"diff", thread, "looked-at-1", "no-such"}, {"verify", thread, "no-such"},
		{"restore", thread, "no-such", "--to", filepath.Join(t.TempDir(), "x")}, {"fork", thread, "other", "--checkpoint", "no-such", "--why", "x"},
	} {
		if a := sandkeeper(t, append([]string{"checkpoints"}, args...)...).wants(t, exitNotFound); a.out != "" || !strings.Contains(a.err, "not found") {
			t.Errorf("%v: stdout %q, stderr %q", args, a.out, a.err)
		}
	}
}

func TestACheckpointIsRestoredIntoADirectoryHere(t *testing.T) {
	w := installed(t)
	r := w.kept(t, "fetched")
	thread, dir := threadOf(r), filepath.Join(t.TempDir(), "out")

	w.unchanged(t, func() {
		dry := read[restoredView](t, exitDone, "checkpoints", "restore", thread, "fetched-1", "--to", dir, "--dry-run")
		if !dry.DryRun || dry.Counts.Files != 1 || dry.Checkpoint != "fetched-1" {
			t.Errorf("dry run %+v", dry)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a dry run made %s: %v", dir, err)
		}
		done := read[restoredView](t, exitDone, "checkpoints", "restore", thread, "fetched-1", "--to", dir)
		if done.Written == 0 || done.Bytes != 3 || done.Checkpoint != "fetched-1" {
			t.Errorf("restored %+v", done)
		}
	})
	holds(t, dir, "src/a.go", "one")
	holds(t, dir, "link", "one")
	if info, err := os.Stat(filepath.Join(dir, "src/a.go")); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("src/a.go: %v, %v", info, err)
	}
	if _, err := os.Stat(filepath.Join(dir, ".env")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf(".env was stored: %v", err)
	}
	write(t, dir, "src/a.go", "mine")
	a := sandkeeper(t, "checkpoints", "restore", thread, "--to", dir).wants(t, exitUsage)
	if !strings.Contains(a.err, "want an empty directory") {
		t.Errorf("a directory that holds something: %q", a.err)
	}
	holds(t, dir, "src/a.go", "mine")
	other := t.TempDir()
	sandkeeper(t, "checkpoints", "restore", thread, "--to", other).wants(t, exitDone)
	holds(t, other, "src/a.go", "second")

	// More than one pack, and a file of several pieces.
	noise := make([]byte, 20<<20)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(noise) // it never fails
	write(t, w.workDir(t, r), "noise", string(noise))
	w.save(t, r, "fetched-3")
	large := t.TempDir()
	done := read[restoredView](t, exitDone, "checkpoints", "restore", thread, "--to", large)
	got, err := os.ReadFile(filepath.Join(large, "noise"))
	if err != nil || !bytes.Equal(got, noise) || done.Checkpoint != "fetched-3" || done.Bytes < int64(len(noise)) {
		t.Errorf("%d bytes of %d are restored, %v: %+v", len(got), len(noise), err, done)
	}
	if s := read[shown](t, exitDone, "checkpoints", "show", thread, "--path", "noise"); s.Tree.Packs < 3 || len(s.Entries) != 1 || s.Entries[0].SHA256 != "" {
		t.Errorf("shown %+v", s)
	}
}

// TestARepositoryComesWithItsState although no .git is stored.
func TestARepositoryComesWithItsState(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	w := installed(t)
	w.image(t)
	const commits = `git init -q -b trunk repo && cd repo && printf x >f && git add f && git -c user.name=a -c user.email=a@b.c commit -qm first && echo begun; exec sleep 3600`
	r := w.begin(t, agent{run: "repository", shell: commits, stays: true})
	w.wrote(t, r, "begun")
	w.save(t, r, "repository-1")
	dir := t.TempDir()
	done := read[restoredView](t, exitDone, "checkpoints", "restore", threadOf(r), "--to", dir)
	if len(done.Git) != 1 || done.Git[0].Path != "repo" || !done.Git[0].Restored {
		t.Errorf("restored %+v", done.Git)
	}
	log := exec.CommandContext(t.Context(), "git", "-C", filepath.Join(dir, "repo"), "log", "--format=%s %D")
	if text, err := log.CombinedOutput(); err != nil || strings.TrimSpace(string(text)) != "first HEAD -> trunk" {
		t.Errorf("its log is %q, %v", text, err)
	}
	s := read[shown](t, exitDone, "checkpoints", "show", threadOf(r), "--git")
	if !slices.ContainsFunc(s.Entries, func(e entryView) bool { return e.Area == "git" }) || slices.ContainsFunc(s.Entries, func(e entryView) bool { return e.Path == "repo/.git" }) {
		t.Errorf("entries %+v", s.Entries)
	}
}

func TestACheckpointIsRestoredIntoALiveSandbox(t *testing.T) {
	w := installed(t)
	r := w.kept(t, "brought-back")
	thread, dir := threadOf(r), w.workDir(t, r)
	args := []string{"checkpoints", "restore", thread, "brought-back-1", "--why", "the agent deleted it"}

	w.unchanged(t, func() {
		dry := read[restoredView](t, exitDone, append(args, "--dry-run")...)
		if !dry.DryRun || dry.Instance != r.Instance || dry.Run != r.Run || dry.Safety == nil || dry.Restored == nil {
			t.Errorf("dry run %+v", dry)
		}
		if a := sandkeeper(t, args...).wants(t, exitRefused); !strings.Contains(a.err, "--yes") {
			t.Errorf("without anybody to ask: %q", a.err)
		}
		sandkeeper(t, append(args, "--run", "another", "--yes")...).wants(t, exitNotFound)
	})
	holds(t, dir, "src/a.go", "third")
	done := read[restoredView](t, exitDone, append(args, "--yes")...)
	if done.Restored.State != core.StepDone || done.Safety.State != core.StepDone || done.By != "tester" {
		t.Errorf("restored %+v", done)
	}
	holds(t, dir, "src/a.go", "one")
	if _, err := os.Stat(filepath.Join(dir, "new.txt")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("new.txt is still there: %v", err)
	}
	holds(t, dir, ".env", "S=1") // what the policy does not cover survives
	l := read[listed](t, exitDone, "checkpoints", "list", thread)
	if l.head() != done.Safety.ID || l.Checkpoints[len(l.Checkpoints)-1].Reason != core.ReasonSafety {
		t.Errorf("listed then %+v", l)
	}
	before := t.TempDir()
	sandkeeper(t, "checkpoints", "restore", thread, string(done.Safety.ID), "--to", before).wants(t, exitDone)
	holds(t, before, "src/a.go", "third")
	if first := l.Checkpoints[0]; done.Restored.Files != first.Files || done.Restored.Bytes != first.Bytes || first.Files == 0 {
		t.Errorf("it tells %+v of %+v", done.Restored, first)
	}
	if a := sandkeeper(t, "audit", "trail", "--subject", thread).wants(t, exitDone); !strings.Contains(a.out, "the agent deleted it") {
		t.Errorf("the trail lacks the restore: %s", a.out)
	}
	read[restoredView](t, exitDone, "checkpoints", "restore", thread, "brought-back-2", "--why", "x", "--no-safety", "--yes")
	holds(t, dir, "src/a.go", "second")
	if again := read[listed](t, exitDone, "checkpoints", "list", thread); len(again.Checkpoints) != len(l.Checkpoints) {
		t.Errorf("without safety %+v", again)
	}
}

// TestASafetyCheckpointStoresNoMoreThanTheRunAllows: secrets, policy and place are the
// run's own, and what the operator names comes to them.
func TestASafetyCheckpointStoresNoMoreThanTheRunAllows(t *testing.T) {
	options := core.JobOptions{Dir: "/w", Policy: json.RawMessage(`{"git":"none"}`), Secrets: []string{"API_KEY"}, MaxBytes: 1 << 30, Relay: true}
	at := liveSandbox{run: core.Run{Capture: &options}, box: core.Sandbox{Key: "k", Instance: "i"}}
	c := checkpointsRestore{Secret: []string{"TOKEN"}}
	v := restoredView{ThreadKey: core.ThreadKey{Tenant: "a", Thread: "b"}, Checkpoint: "c"}
	steps := c.requests(&v, at)
	want := options
	want.Secrets = []string{"API_KEY", "TOKEN"}
	if !reflect.DeepEqual(steps.save.JobOptions, want) || steps.save.Reason != core.ReasonSafety {
		t.Errorf("saved as %+v, want %+v", steps.save, want)
	}
	if want := (core.JobOptions{Dir: "/w", Relay: true}); !reflect.DeepEqual(steps.restore.JobOptions, want) || steps.restore.Checkpoint != "c" {
		t.Errorf("restored as %+v, want %+v", steps.restore, want)
	}
	if len(options.Secrets) != 1 {
		t.Errorf("the run's own options are %+v", options)
	}
	c.Dir = "/other"
	if steps := c.requests(&v, at); steps.save.Dir != "/other" || steps.restore.Dir != "/other" {
		t.Errorf("elsewhere: %+v", steps)
	}
}

func TestThreadsAreForkedFromACheckpoint(t *testing.T) {
	w := installed(t)
	r := w.kept(t, "source")
	thread := threadOf(r)
	args := []string{"checkpoints", "fork", thread, "left", "right", "--checkpoint", "source-1", "--why", "try both"}

	w.unchanged(t, func() {
		if dry := read[forkedView](t, exitDone, append(args, "--dry-run")...); !dry.DryRun || len(dry.Made) != 2 || dry.Made[0].Thread != "left" {
			t.Errorf("dry run %+v", dry)
		}
	})
	made := read[forkedView](t, exitDone, args...)
	if len(made.Made) != 2 || made.Made[1].ForkOf != "source-1" || made.Made[1].Reason != core.ReasonForkRoot || made.Source.Checkpoint != "source-1" {
		t.Errorf("forked %+v", made)
	}
	again := read[forkedView](t, exitDone, args...)
	if again.Made[0].ID != made.Made[0].ID {
		t.Errorf("said again: %+v", again)
	}
	dir := t.TempDir()
	sandkeeper(t, "checkpoints", "restore", string(r.Tenant)+"/left", "--to", dir).wants(t, exitDone)
	holds(t, dir, "src/a.go", "one") // of packs that the source owns
	for _, dry := range []string{"--dry-run=false", "--dry-run"} {
		a := sandkeeper(t, "checkpoints", "fork", thread, "left", "--checkpoint", "source-2", "--why", "x", dry).wants(t, exitRefused)
		if !strings.Contains(a.err, "fork-destination-not-empty") {
			t.Errorf("%s: onto a thread that has begun: %q", dry, a.err)
		}
	}
	if s := read[shown](t, exitDone, "checkpoints", "show", string(r.Tenant)+"/right"); !slices.Contains(s.paths(), "src/a.go") {
		t.Errorf("of a fork: %+v", s)
	}
}

func TestWhatIsStoredIsVerifiedKeptAndCollected(t *testing.T) {
	w := installed(t)
	r := w.kept(t, "stored")
	thread := threadOf(r)

	w.unchanged(t, func() {
		all := read[core.VerifyReport](t, exitDone, "checkpoints", "verify", thread, "stored-2")
		if all.Packs == 0 || all.Read != all.Packs || len(all.Broken) != 0 {
			t.Errorf("verified %+v", all)
		}
		if some := read[core.VerifyReport](t, exitDone, "checkpoints", "verify", thread, "--sample", "1"); some.Read != 1 || some.Checkpoint != "stored-2" {
			t.Errorf("a sample %+v", some)
		}
		plan := read[collectedView](t, exitDone, "checkpoints", "gc", thread)
		if plan.Applied || plan.Thread.Objects == 0 || plan.Thread.Needed != plan.Thread.Objects {
			t.Errorf("plan %+v", plan.Thread)
		}
		if a := sandkeeper(t, "checkpoints", "gc", thread, "--apply").wants(t, exitRefused); !strings.Contains(a.err, "--yes") {
			t.Errorf("without anybody to ask: %q", a.err)
		}
		keep := []string{"checkpoints", "keep", thread, "--newest", "1", "--why", "x"}
		if dry := read[keptView](t, exitDone, append(keep, "--dry-run")...); !slices.Equal(dry.Removed, []core.CheckpointID{"stored-1"}) || !dry.DryRun {
			t.Errorf("dry run %+v", dry)
		}
		sandkeeper(t, keep...).wants(t, exitRefused)
	})
	done := read[keptView](t, exitDone, "checkpoints", "keep", thread, "--newest", "1", "--why", "x", "--yes")
	if !slices.Equal(done.Removed, []core.CheckpointID{"stored-1"}) {
		t.Errorf("kept %+v", done)
	}
	if l := read[listed](t, exitDone, "checkpoints", "list", thread); len(l.Checkpoints) != 1 || l.head() != "stored-2" {
		t.Errorf("listed then %+v", l)
	}
	if none := read[keptView](t, exitDone, "checkpoints", "keep", thread, "--newest", "1", "--why", "x"); len(none.Removed) != 0 {
		t.Errorf("nothing to take away: %+v", none)
	}
	// What nobody needs any more is younger than a day.
	if applied := read[collectedView](t, exitDone, "checkpoints", "gc", thread, "--apply", "--yes"); !applied.Applied || applied.Thread.Deleted != 0 || applied.Thread.Young == 0 {
		t.Errorf("collected %+v", applied.Thread)
	}
	if every := read[collectedView](t, exitDone, "checkpoints", "gc", "--all"); every.Applied || every.Threads.Collected == 0 {
		t.Errorf("of all threads: %+v", every.Threads)
	}
	w.lose(t, r, "stored-2")
	broken := read[core.VerifyReport](t, exitFindings, "checkpoints", "verify", thread)
	if len(broken.Broken) != 1 {
		t.Errorf("one object is lost: %+v", broken)
	}
	if missing := read[collectedView](t, exitFindings, "checkpoints", "gc", thread); missing.Thread.Missing != 1 {
		t.Errorf("one object is lost: %+v", missing.Thread)
	}
	dir := filepath.Join(t.TempDir(), "out")
	if a := sandkeeper(t, "checkpoints", "restore", thread, "--to", dir).wants(t, exitFailed); !strings.Contains(a.err, "missing-blob") {
		t.Errorf("one object is lost: %q", a.err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a restore that failed left %s: %v", dir, err)
	}
}

// lose removes a pack of a checkpoint from its bucket.
func (w *world) lose(t *testing.T, r core.Run, id core.CheckpointID) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	cfg := w.engine.Config()
	in := &installation{globals: &globals{}, cfg: cfg, out: w.out}
	in.blobs = s3blob.New(s3.NewFromConfig(cfg, pathStyle), w.out[names.OutBucket])
	a, err := in.archived(ctx, core.ThreadKey{Tenant: r.Tenant, Thread: r.Thread}, id)
	if err != nil || len(a.root.Packs) == 0 {
		t.Fatalf("root %+v, %v", a.root, err)
	}
	p := a.root.Packs[0]
	key := core.PackKey(a.packs.key, core.PackRef{Fence: p.Fence, SHA256: p.SHA256.String()})
	client := s3.NewFromConfig(cfg, pathStyle)
	if _, err := client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: new(w.out[names.OutBucket]), Key: &key}); err != nil {
		t.Fatal(err)
	}
}

func TestAWaitForASandboxThatIsCutOffSaysThatTheWorkGoesOn(t *testing.T) {
	interrupted, interrupt := context.WithCancelCause(t.Context())
	interrupt(errors.New("interrupt signal received"))
	late, cancel := context.WithTimeoutCause(t.Context(), 0, errors.New("a/b: not done within 0s"))
	defer cancel()
	for code, ctx := range map[int]context.Context{exitInterrupted: interrupted, exitFailed: late} {
		var said bytes.Buffer
		in := &installation{globals: &globals{}, out: map[names.Output]string{names.OutCheckpoint: "x"}, lambda: lambda.New(lambda.Options{Region: "us-east-1"})}
		_, err := in.step(ctx, &console.Console{Err: &said}, "save", core.ThreadKey{Tenant: "a", Thread: "b"}, nil)
		if codeOf(err) != code || !strings.Contains(said.String(), "goes on in the sandbox") {
			t.Errorf("%v exits with %d, want %d, and says %q", err, codeOf(err), code, said.String())
		}
		if code == exitFailed && err.Error() != "a/b: not done within 0s" {
			t.Errorf("late: %v", err)
		}
	}
}

func TestBadInputAboutCheckpointsIsOneClearErrorAndExitCode2(t *testing.T) {
	for name, row := range map[string]struct {
		args []string
		says string
	}{
		"no thread":                                 {[]string{"list"}, `expected "<thread>"`},
		"an empty thread":                           {[]string{"list", "acme/"}, "want TENANT/THREAD"},
		"one checkpoint to compare":                 {[]string{"diff", "a/b", "one"}, `expected "<to>"`},
		"a limit above what is listed":              {[]string{"diff", "a/b", "one", "two", "--limit", "10001"}, "limit: want 1 to 10000"},
		"a path that leads out":                     {[]string{"show", "a/b", "--path", "../x"}, "path: want a clean path"},
		"a restore that names neither place":        {[]string{"restore", "a/b"}, "want --to"},
		"a restore into a sandbox without a reason": {[]string{"restore", "a/b", "one", "--run", "r"}, "--why"},
		"a restore to both places":                  {[]string{"restore", "a/b", "--to", "x", "--run", "r"}, "--to goes with none of"},
		"a workspace that is no path":               {[]string{"restore", "a/b", "--why", "x", "--dir", "work"}, "want a clean absolute path"},
		"a fork without branches":                   {[]string{"fork", "a/b", "--why", "x"}, `expected "<branch>`},
		"a fork without a reason":                   {[]string{"fork", "a/b", "c"}, "missing flags: --why"},
		"retention without a number":                {[]string{"keep", "a/b", "--why", "x"}, "missing flags: --newest"},
		"a collection of nobody":                    {[]string{"gc"}, "want a thread, or --all"},
		"a collection of one and of all":            {[]string{"gc", "a/b", "--all"}, "want a thread, or --all"},
		"a sample below zero":                       {[]string{"verify", "a/b", "--sample=-1"}, "sample: want"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1") // nobody
			var outputs []string
			for _, o := range needed {
				outputs = append(outputs, string(o)+"=x")
			}
			args := append([]string{"--local", "--as", "tester", "--output", strings.Join(outputs, ","), "checkpoints"}, row.args...)
			a := tool(t, "", args...).wants(t, exitUsage)
			if !strings.Contains(a.err, row.says) || a.out != "" || strings.Count(a.err, "sandkeeper: error: ") != 1 {
				t.Errorf("stdout %q, stderr %q, want it to say %q", a.out, a.err, row.says)
			}
		})
	}
}

func TestARefusalHasTheExitCodeOfItsLike(t *testing.T) {
	key := core.ThreadKey{Tenant: "a", Thread: "b"}
	for code, err := range map[int][]error{
		exitNotFound: {&lambdacheckpoint.RefusedError{Code: "not-found"}, &core.RefusedError{Why: "fork-source-not-found"}, &lambdacheckpoint.RefusedError{Code: "missing-checkpoint"}},
		exitUsage:    {&lambdacheckpoint.RefusedError{Code: "bad-request"}, &core.InvalidError{Code: "invalid-newest"}},
		exitRefused:  {&lambdacheckpoint.RefusedError{Code: "writer-conflict"}, &core.RefusedError{Why: "writer-lost"}, &lambdacheckpoint.RefusedError{Code: "invalid-entry"}},
		exitFailed:   {errors.New("no answer"), &stepError{"save", key, "agent-missing"}},
		exitDone:     {nil},
	} {
		for _, e := range err {
			if got := codeOf(judged("list", key, e)); got != code {
				t.Errorf("%v exits with %d, want %d", e, got, code)
			}
		}
	}
}

// TestARefusalIsSaidOnceAndExplained: whoever refuses, the function or this process.
func TestARefusalIsSaidOnceAndExplained(t *testing.T) {
	key := core.ThreadKey{Tenant: "a", Thread: "b"}
	ours := &core.RefusedError{Op: "delete", Record: "thread a/b", Why: "live-run"}
	for _, err := range []error{ours, &lambdacheckpoint.RefusedError{Code: "live-run", Message: ours.Error()}} {
		var out strings.Builder
		code := report(&console.Console{Out: &out, Err: &out, JSON: true}, judged("deleteThread", key, err))
		var said struct{ Code, Error, Reason string }
		if err := json.Unmarshal([]byte(out.String()), &said); err != nil || code != exitRefused {
			t.Fatalf("%d, %s: %v", code, out.String(), err)
		}
		if said.Reason != "live-run" || strings.Count(said.Error, "live-run") != 1 || !strings.Contains(said.Error, "has not ended") {
			t.Errorf("%+v", said)
		}
	}
}

func TestAnEntryOfAnyNameIsShown(t *testing.T) {
	e := manifest.Entry{Path: "a\x1b[2J\xff\"", Kind: manifest.File, Mode: 0o4755, Size: 1}
	text, err := json.Marshal(viewEntry(e))
	if err != nil {
		t.Fatal(err)
	}
	var back entryView
	if err := json.Unmarshal(text, &back); err != nil || string(back.PathBytes) != e.Path || back.Mode != "4755" {
		t.Errorf("%s is read back as %+v: %v", text, back, err)
	}
	if got := line(e); !strings.HasPrefix(got, "urwxr-xr-x ") {
		t.Errorf("its line is %q", got)
	}
}

// TestWhatIsHeldOrFrozenIsNotRestoredInto: it is refused before a checkpoint of what is there is
// made, and the refusal says what to do.
func TestWhatIsHeldOrFrozenIsNotRestoredInto(t *testing.T) {
	w := installed(t)
	r := w.kept(t, "not-replaced")
	restore := []string{"checkpoints", "restore", threadOf(r), "not-replaced-1", "--why", "look", "--yes"}
	refused := func(want string) {
		t.Helper()
		w.unchanged(t, func() {
			if a := sandkeeper(t, restore...).wants(t, exitRefused); !strings.Contains(a.err, want) {
				t.Errorf("it says %s", a.err)
			}
		})
	}
	sandkeeper(t, "hold", r.RunKey.String(), "--for", "4h", "--why", "look").wants(t, exitDone)
	refused("refused: held: an operator holds it until a time that sandkeeper runs shows; sandkeeper release takes that back")
	sandkeeper(t, "release", r.RunKey.String(), "--why", "look", "--yes").wants(t, exitDone)
	sandkeeper(t, "freeze", "--why", "look").wants(t, exitDone)
	t.Cleanup(func() { sandkeeper(t, "thaw", "--why", "look", "--yes").wants(t, exitDone) })
	refused("refused: frozen: the installation is frozen")
	holds(t, w.workDir(t, r), "src/a.go", "third")
}
