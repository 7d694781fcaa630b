package watch_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/watch"
)

// watching is a watch over a directory of a test.
type watching struct {
	t    *testing.T
	root string
	out  string
	stop context.CancelFunc
	done chan error
}

func begin(t *testing.T, root string, change func(*watch.Config)) *watching {
	t.Helper()
	ready := make(chan struct{})
	c := watch.Config{Root: root, Out: filepath.Join(t.TempDir(), "run.files"), Ready: func() { close(ready) }}
	if change != nil {
		change(&c)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &watching{t: t, root: root, out: c.Out, stop: cancel, done: make(chan error, 1)}
	go func() { w.done <- watch.Run(ctx, c) }()
	t.Cleanup(cancel)
	select {
	case <-ready:
	case err := <-w.done:
		t.Fatal(err)
	}
	return w
}

// write makes a file, or replaces it, at once: a watch that looks between an opening and
// the write that follows finds, and tells, an empty one.
func (w *watching) write(name, text string) {
	w.t.Helper()
	full, made := filepath.Join(w.root, name), filepath.Join(w.t.TempDir(), "made")
	err := os.MkdirAll(filepath.Dir(full), 0o755)
	if err == nil {
		err = os.WriteFile(made, []byte(text), 0o644)
	}
	if err == nil {
		err = os.Rename(made, full)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *watching) events() []watch.Event {
	w.t.Helper()
	data, err := os.ReadFile(w.out)
	if err != nil {
		w.t.Fatal(err)
	}
	var all []watch.Event
	for line := range bytes.Lines(data) {
		var e watch.Event
		if err := json.Unmarshal(line, &e); err != nil || e.At == 0 {
			w.t.Fatalf("line %s: %v", line, err)
		}
		all = append(all, e)
	}
	return all
}

// end ends the watch and returns what it wrote, without times and diffs.
func (w *watching) end() []string {
	w.t.Helper()
	w.stop()
	if err := <-w.done; err != nil {
		w.t.Fatal(err)
	}
	return words(w.events())
}

func words(events []watch.Event) []string {
	var all []string
	for _, e := range events {
		all = append(all, strings.TrimSpace(fmt.Sprint(e.Kind, " ", e.Path, " ", e.Why)))
	}
	return all
}

// await waits until the journal has an event.
func (w *watching) await(kind watch.Kind, path string) watch.Event {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, e := range w.events() {
			if e.Kind == kind && e.Path == path {
				return e
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.t.Fatalf("no %s of %s in %v", kind, path, words(w.events()))
		}
	}
}

func git(t *testing.T, dir string, args ...string) string {
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

// repository is a working tree with a commit of one, two and bin.
func repository(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	git(t, root, "init", "-q")
	for name, text := range map[string]string{"one": "1\n", "two": "2\n", "bin": "\x00"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	git(t, root, "add", ".")
	git(t, root, "commit", "-q", "-m", "first")
	return root
}

func TestChangesAreToldWithDiffsAgainstTheBaseline(t *testing.T) {
	w := begin(t, repository(t), nil)
	w.write("one", "1\nmore\n")
	if e := w.await(watch.Change, "one"); !strings.Contains(e.Diff, "--- a/one\n+++ b/one\n") || !strings.Contains(e.Diff, "\n+more\n") || strings.Contains(e.Diff, "\n-1") {
		t.Errorf("change: %q", e.Diff)
	}
	git(t, w.root, "commit", "-q", "-am", "second")
	w.write("one", "1\nmore\nthan\n")
	if err := os.Remove(filepath.Join(w.root, "two")); err != nil {
		t.Fatal(err)
	}
	if e := w.await(watch.Delete, "two"); !strings.Contains(e.Diff, "+++ /dev/null") || !strings.Contains(e.Diff, "\n-2\n") {
		t.Errorf("delete: %q", e.Diff)
	}
	w.write("new/dir/three", "3\n")
	if e := w.await(watch.Create, "new/dir/three"); !strings.Contains(e.Diff, "--- /dev/null\n+++ b/new/dir/three\n") {
		t.Errorf("create: %q", e.Diff)
	}
	w.write("bin", "\x00\x01")
	if e := w.await(watch.Change, "bin"); e.Diff != "" || e.Why != "binary" {
		t.Errorf("binary: %+v", e)
	}
	w.end()
	for _, e := range w.events() {
		if strings.HasPrefix(e.Path, ".git") {
			t.Errorf("told of %s", e.Path)
		}
		if e.Path == "one" && strings.Contains(e.Diff, "+than") && !strings.Contains(e.Diff, "+more") {
			t.Errorf("compared with a later commit: %q", e.Diff)
		}
	}
}

// TestARepositoryBelowTheRootIsTheBaseline of what is in it, and of nothing beside it.
func TestARepositoryBelowTheRootIsTheBaseline(t *testing.T) {
	for _, directory := range []string{"src/app", "src/app/", "./src/app"} {
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Join(root, "src"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(repository(t), filepath.Join(root, "src/app")); err != nil {
			t.Fatal(err)
		}
		w := begin(t, root, func(c *watch.Config) { c.Repository = directory })
		w.write("src/app/one", "1\nmore\n")
		if e := w.await(watch.Change, "src/app/one"); !strings.Contains(e.Diff, "--- a/src/app/one\n") || !strings.Contains(e.Diff, "\n+more\n") || strings.Contains(e.Diff, "\n+1") {
			t.Errorf("%s: change: %q", directory, e.Diff)
		}
		w.write("one", "1\n")
		if e := w.await(watch.Create, "one"); !strings.Contains(e.Diff, "--- /dev/null\n") {
			t.Errorf("%s: create beside the repository: %q", directory, e.Diff)
		}
		w.end()
	}
}

// TestTheEndDrains: nothing waits between the changes and the end.
func TestTheEndDrains(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"kept", "gone/a", "gone/b"} {
		(&watching{t: t, root: root}).write(name, "x")
	}
	w := begin(t, root, nil)
	for i := range 50 {
		w.write(fmt.Sprintf("deep/%d/file", i), "x")
	}
	w.write("passing", "x")
	if err := os.Remove(filepath.Join(root, "passing")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(root, "gone")); err != nil {
		t.Fatal(err)
	}
	w.write("kept", "changed")
	all := w.end()
	slices.Sort(all)
	want := []string{"change kept", "delete gone/a", "delete gone/b"}
	for i := range 50 {
		want = append(want, fmt.Sprintf("create deep/%d/file", i))
	}
	slices.Sort(want)
	if !slices.Equal(all, want) {
		t.Errorf("told %q, want %q", all, want)
	}
}

func TestARenamedDirectoryIsWatchedWhereItIs(t *testing.T) {
	w := begin(t, t.TempDir(), nil)
	w.write("old/a", "x")
	w.await(watch.Create, "old/a")
	if err := os.Rename(filepath.Join(w.root, "old"), filepath.Join(w.root, "new")); err != nil {
		t.Fatal(err)
	}
	w.await(watch.Delete, "old/a")
	w.await(watch.Create, "new/a")
	w.write("new/b", "x")
	w.await(watch.Create, "new/b")
	if all := w.end(); len(all) != 4 {
		t.Errorf("told %q", all)
	}
}

func TestExcludedFilesAreNotTold(t *testing.T) {
	w := begin(t, t.TempDir(), func(c *watch.Config) {
		c.Exclude = []string{"*.log", "build/out", "**/cache", "/top/only/**"}
	})
	for _, name := range []string{"node_modules/a", "a/node_modules/b/c", ".git/HEAD", "x.log", "d/x.log", "build/out/y", "p/cache/q", "top/only/z", "seen", "build/outer", "out/y"} {
		w.write(name, "x")
	}
	all := w.end()
	slices.Sort(all)
	if !slices.Equal(all, []string{"create build/outer", "create out/y", "create seen"}) {
		t.Errorf("told %q", all)
	}
}

func TestTheJournalIsBounded(t *testing.T) {
	w := begin(t, t.TempDir(), func(c *watch.Config) { c.MaxBytes = 4096 })
	for i := range 200 {
		w.write(fmt.Sprintf("file-%03d", i), strings.Repeat("line\n", 40))
	}
	all := w.end()
	info, err := os.Stat(w.out)
	if err != nil || info.Size() > 4096 {
		t.Errorf("%d bytes, %v", info.Size(), err)
	}
	if all[len(all)-1] != "lost . journal-full" || len(all) < 10 {
		t.Errorf("%d lines, the last %q", len(all), all[len(all)-1])
	}
}

func TestLongAndSecretContentIsLeftOut(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("not yours"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := begin(t, t.TempDir(), func(c *watch.Config) {
		c.MaxDiffBytes = 2000
		c.Redact = func(data []byte) bool {
			at := bytes.Index(data, []byte("hunter2"))
			if at >= 0 {
				copy(data[at:], "\x00\x00\x00\x00\x00\x00\x00")
			}
			return at >= 0
		}
	})
	w.write("long", strings.Repeat("line\n", 1000))
	w.write("secret", "password hunter2\n")
	if err := os.Symlink(outside, filepath.Join(w.root, "link")); err != nil {
		t.Fatal(err)
	}
	all := w.end()
	slices.Sort(all)
	if !slices.Equal(all, []string{"create link", "create long too-large", "create secret"}) {
		t.Errorf("told %q", all)
	}
	data, err := os.ReadFile(w.out)
	if err != nil || bytes.Contains(data, []byte("hunter2")) || bytes.Contains(data, []byte("not yours")) {
		t.Errorf("journal %s, %v", data, err)
	}
}

// TestWithoutNotifications: the kernel's limits cost time, and are said.
func TestWithoutNotifications(t *testing.T) {
	t.Cleanup(watch.WithoutNotifications())
	w := begin(t, t.TempDir(), nil)
	w.write("a", "x")
	if all := w.end(); !slices.Equal(all, []string{"lost . inotify-limit", "create a"}) {
		t.Errorf("told %q", all)
	}
}

func TestAPlantedJournalIsRefused(t *testing.T) {
	root, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	if err := os.Symlink(filepath.Join(root, "target"), out); err != nil {
		t.Fatal(err)
	}
	for _, c := range []watch.Config{{Root: root, Out: out}, {Root: filepath.Join(root, "missing"), Out: out + "2"}, {Root: "relative", Out: out + "2"}} {
		if err := watch.Run(t.Context(), c); err == nil {
			t.Errorf("watched with %+v", c)
		}
	}
}

// TestTheWholeSystemIsNoWorkspace: it holds what is of other processes, and the side journal
// itself; a link to it is no other.
func TestTheWholeSystemIsNoWorkspace(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/", link); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{"/", link, "/.."} {
		out := filepath.Join(t.TempDir(), "run.files")
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // a watch that begins ends at once
		if err := watch.Run(ctx, watch.Config{Root: root, Out: out}); err == nil || !strings.Contains(err.Error(), "below the root") {
			t.Errorf("%s: %v", root, err)
		}
		if _, err := os.Lstat(out); err == nil {
			t.Errorf("%s: a side journal is begun", root)
		}
	}
}
