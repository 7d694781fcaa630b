package workspace_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/workspace"
	"github.com/sandkeeper/sandkeeper/internal/workspace/workspacetest"
)

var errDead = errors.New("the process is dead")

// mortal is a disk whose process dies at a change: neither that one nor any later
// one happens.
type mortal struct {
	disk workspace.Disk
	mu   sync.Mutex
	left int
}

func (m *mortal) do(change func() error) error {
	m.mu.Lock()
	dead := m.left == 0
	if !dead {
		m.left--
	}
	m.mu.Unlock()
	if dead {
		return errDead
	}
	return change()
}

func (m *mortal) dead() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.left == 0
}

func (m *mortal) Mkdir(dir int, name string, mode uint32) error {
	return m.do(func() error { return m.disk.Mkdir(dir, name, mode) })
}

func (m *mortal) Create(dir int, name string) (fd int, err error) {
	err = m.do(func() (err error) { fd, err = m.disk.Create(dir, name); return err })
	return fd, err
}

func (m *mortal) Open(dir int, name string) (fd int, err error) {
	err = m.do(func() (err error) { fd, err = m.disk.Open(dir, name); return err })
	return fd, err
}

func (m *mortal) Write(fd int, data []byte, offset int64) error {
	return m.do(func() error { return m.disk.Write(fd, data, offset) })
}

func (m *mortal) Truncate(fd int, size int64) error {
	return m.do(func() error { return m.disk.Truncate(fd, size) })
}

func (m *mortal) Symlink(target string, dir int, name string) error {
	return m.do(func() error { return m.disk.Symlink(target, dir, name) })
}

func (m *mortal) Link(from int, name string, to int, newName string) error {
	return m.do(func() error { return m.disk.Link(from, name, to, newName) })
}

func (m *mortal) Rename(from int, name string, to int, newName string) error {
	return m.do(func() error { return m.disk.Rename(from, name, to, newName) })
}

func (m *mortal) Unlink(dir int, name string, flags int) error {
	return m.do(func() error { return m.disk.Unlink(dir, name, flags) })
}

func (m *mortal) Chown(fd int, uid, gid uint32) error {
	return m.do(func() error { return m.disk.Chown(fd, uid, gid) })
}

func (m *mortal) Chmod(fd int, mode uint32) error {
	return m.do(func() error { return m.disk.Chmod(fd, mode) })
}

func (m *mortal) SetXattr(fd int, name string, value []byte) error {
	return m.do(func() error { return m.disk.SetXattr(fd, name, value) })
}

func (m *mortal) SetTimes(dir int, name string, mtime int64) error {
	return m.do(func() error { return m.disk.SetTimes(dir, name, mtime) })
}

func (m *mortal) SetLinkOwner(dir int, name string, uid, gid uint32) error {
	return m.do(func() error { return m.disk.SetLinkOwner(dir, name, uid, gid) })
}

func (m *mortal) SetFileTimes(fd int, mtime int64) error {
	return m.do(func() error { return m.disk.SetFileTimes(fd, mtime) })
}

// newTree and oldTree differ in each way in which entries can.
func newTree(t testing.TB, root string) {
	write(t, filepath.Join(root, "same/kept.txt"), "kept", 0o644)
	write(t, filepath.Join(root, "same/changed.txt"), "new", 0o755)
	write(t, filepath.Join(root, "same/became-file"), "a file now", 0o644)
	write(t, filepath.Join(root, "became-dir/in"), "in", 0o644)
	write(t, filepath.Join(root, "added/deep/f"), "f", 0o600)
	must(t, os.Symlink("same/kept.txt", filepath.Join(root, "link")), os.Symlink("/nonexistent/file", filepath.Join(root, "same/out")),
		os.Link(filepath.Join(root, "same/kept.txt"), filepath.Join(root, "twin")), os.Mkdir(filepath.Join(root, "bare"), 0o700))
}

func oldTree(t testing.TB, root string) {
	write(t, filepath.Join(root, "same/kept.txt"), "kept", 0o644)
	write(t, filepath.Join(root, "same/changed.txt"), "old", 0o644)
	write(t, filepath.Join(root, "same/became-file/x"), "x", 0o644)
	write(t, filepath.Join(root, "same/gone"), "gone", 0o644)
	write(t, filepath.Join(root, "same/node_modules/m"), "protected", 0o644)
	write(t, filepath.Join(root, "became-dir"), "a file", 0o644)
	write(t, filepath.Join(root, "removed/.env"), "protected", 0o600)
	write(t, filepath.Join(root, "removed/a/b"), "b", 0o644)
	must(t, os.Symlink("same", filepath.Join(root, "link")))
}

// TestCutRestoreLeavesTheOldOrTheNewTree cuts a restore at each of its changes. Until
// the restore is decided the tree is the old one, whole; from then on whatever looks
// at it through this package first makes it the new one. What the policy leaves out is
// there all the time.
func TestCutRestoreLeavesTheOldOrTheNewTree(t *testing.T) {
	t.Run("privileged or not, as it is", cutRestores)
	t.Run("unprivileged", func(t *testing.T) {
		unprivileged(t)
		cutRestores(t)
	})
}

// unprivileged makes the process another user's until the test ends. Directories that
// the test makes afterwards are that user's.
func unprivileged(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	home := t.TempDir()
	must(t, os.Chmod(filepath.Dir(home), 0o755), os.Chmod(home, 0o777))
	t.Setenv("TMPDIR", home)
	must(t, syscall.Setegid(65534), syscall.Seteuid(65534))
	t.Cleanup(func() {
		if err := errors.Join(syscall.Seteuid(0), syscall.Setegid(0)); err != nil {
			panic(err)
		}
	})
}

func cutRestores(t *testing.T) {
	dir := tempDirs(t)
	from, store := dir(), &workspacetest.DirStore{Dir: dir(), Fence: 7}
	newTree(t, from)
	must(t, os.MkdirAll(filepath.Join(from, "locked/in"), 0o755), os.Chmod(filepath.Join(from, "locked/in"), 0o555), os.Chmod(filepath.Join(from, "locked"), 0o500))
	result := capture(t, workspace.CaptureOptions{Root: from, Store: store})
	want := snapshot(t, from)
	for _, name := range []string{"same/node_modules", "same/node_modules/m", "removed", "removed/.env"} {
		want[name] = node{} // survives, whatever it is
	}
	olds, news := 0, 0
	for cut := 0; ; cut++ {
		root := filepath.Join(dir(), "root")
		must(t, os.Mkdir(root, 0o755))
		oldTree(t, root)
		write(t, filepath.Join(root, "locked/in/gone"), "gone", 0o644)
		old := snapshot(t, root)
		d := &mortal{disk: workspace.Kernel, left: cut}
		options := workspace.RestoreOptions{Root: root, Store: store, Manifest: result.Root}
		_, err := workspace.RestoreOn(t.Context(), d, options)
		if err == nil && !d.dead() {
			break // it never came to the cut
		}
		decided := fileExists(filepath.Join(filepath.Dir(root), ".sandkeeper-restore-root", "journal")) || err == nil
		if !decided && differences(snapshot(t, root), old) != nil {
			decided = checkNew(t, root, want) == nil // cut in the removal of what is left
		}
		if decided {
			news++
		} else {
			olds++
			if changed := differences(snapshot(t, root), old); changed != nil {
				t.Fatalf("cut %d: neither old nor decided: %v", cut, changed)
			}
		}
		for _, kept := range []string{"same/node_modules/m", "removed/.env"} {
			if data, err := os.ReadFile(filepath.Join(root, kept)); string(data) != "protected" {
				t.Fatalf("cut %d: %s is %q, %v", cut, kept, data, err)
			}
		}
		if err := recoverCut(t, root, cut); err != nil {
			t.Fatalf("cut %d: recover: %v", cut, err)
		}
		if decided {
			if err := checkNew(t, root, want); err != nil {
				t.Fatalf("cut %d: after recovery: %v", cut, err)
			}
		} else if changed := differences(snapshot(t, root), old); changed != nil {
			t.Fatalf("cut %d: recovery changed an undecided tree: %v", cut, changed)
		}
		restoreTo(t, store, result.Root, root)
		if err := checkNew(t, root, want); err != nil {
			t.Fatalf("cut %d: after the next restore: %v", cut, err)
		}
	}
	if olds == 0 || news == 0 {
		t.Errorf("%d cuts before and %d after the decision, want both", olds, news)
	}
	t.Logf("%d cuts before the decision, %d after it", olds, news)
}

// recoverCut recovers with a process that dies in the middle too, and then for good.
func recoverCut(t *testing.T, root string, cut int) error {
	t.Helper()
	_ = workspace.RecoverOn(&mortal{disk: workspace.Kernel, left: cut % 7}, root)
	return workspace.Recover(root)
}

// tempDirs makes directories in TMPDIR as it is now.
func tempDirs(t *testing.T) func() string {
	return func() string {
		dir, err := os.MkdirTemp("", "workspace-")
		must(t, err)
		t.Cleanup(func() { removeTree(dir) })
		return dir
	}
}

// removeTree removes directories that are closed to their owner too.
func removeTree(dir string) {
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			os.Chmod(path, 0o700)
		}
		return nil
	})
	os.RemoveAll(dir)
}

func checkNew(t *testing.T, root string, want map[string]node) error {
	t.Helper()
	got := snapshot(t, root)
	for name, n := range want {
		if n == (node{}) {
			if _, there := got[name]; !there {
				return fmt.Errorf("%s did not survive", name)
			}
			got[name] = node{}
		}
	}
	return differences(got, want)
}

func fileExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// TestRestoreWorksInsideWhereItsParentIsClosed has no place beside the root: what a
// cut leaves inside is in no checkpoint, and is gone after the next restore.
func TestRestoreWorksInsideWhereItsParentIsClosed(t *testing.T) {
	unprivileged(t)
	dir := tempDirs(t)
	from, store := dir(), &workspacetest.DirStore{Dir: dir(), Fence: 7}
	newTree(t, from)
	result := capture(t, workspace.CaptureOptions{Root: from, Store: store})
	parent := dir()
	root := filepath.Join(parent, "root")
	must(t, os.Mkdir(root, 0o755), os.Chmod(parent, 0o555))
	write(t, filepath.Join(root, "old"), "old", 0o644)
	options := workspace.RestoreOptions{Root: root, Store: store, Manifest: result.Root}
	if _, err := workspace.RestoreOn(t.Context(), &mortal{disk: workspace.Kernel, left: 20}, options); !errors.Is(err, errDead) {
		t.Fatalf("error is %v, want a cut", err)
	}
	if !fileExists(filepath.Join(root, ".sandkeeper-restore")) {
		t.Fatal("nothing is left of the cut restore: it did not work inside the root")
	}
	again := capture(t, workspace.CaptureOptions{Root: root, Store: store, ID: "c2"})
	if again.Root.Counts.Files != 1 {
		t.Errorf("counts %+v, want the old file alone", again.Root.Counts)
	}
	restoreTo(t, store, result.Root, root)
	if err := differences(snapshot(t, root), snapshot(t, from)); err != nil {
		t.Error(err)
	}
}

func TestSecondRestoreOfARootIsRefusedWhileOneRuns(t *testing.T) {
	from, to, store := t.TempDir(), t.TempDir(), newStore(t)
	newTree(t, from)
	result := capture(t, workspace.CaptureOptions{Root: from, Store: store})
	options := workspace.RestoreOptions{Root: to, Store: store, Manifest: result.Root}
	inside := false
	busy := &meddler{mortal: mortal{disk: workspace.Kernel, left: -1}, at: "tree", do: func() {
		inside = true
		if _, err := workspace.Restore(t.Context(), options); code(err) != workspace.CodeRestoreUnfinished {
			t.Errorf("second restore: %v", err)
		}
		if _, err := workspace.Capture(t.Context(), workspace.CaptureOptions{Root: to, Store: store, ID: "c2"}); code(err) != workspace.CodeRestoreUnfinished {
			t.Errorf("capture meanwhile: %v", err)
		}
	}}
	if _, err := workspace.RestoreOn(t.Context(), busy, options); err != nil || !inside {
		t.Fatalf("restore: %v", err)
	}
	if err := differences(snapshot(t, to), snapshot(t, from)); err != nil {
		t.Error(err)
	}
}

// meddler does something when a directory of a name is made.
type meddler struct {
	mortal
	at string
	do func()
}

func (m *meddler) Mkdir(dir int, name string, mode uint32) error {
	if name == m.at {
		m.do()
	}
	return m.mortal.Mkdir(dir, name, mode)
}
