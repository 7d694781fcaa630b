package workspace_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
	"github.com/sandkeeper/sandkeeper/internal/workspace/workspacetest"
)

// A directory that could not be read is in no checkpoint, with all that is below it. A
// restore by somebody who can read it leaves that alone.
func TestBelowSkippedDirectoriesNothingIsRemoved(t *testing.T) {
	from, store := t.TempDir(), newStore(t)
	write(t, filepath.Join(from, "kept"), "kept", 0o644)
	must(t, os.Mkdir(filepath.Join(from, "closed"), 0o755))
	result := capture(t, workspace.CaptureOptions{Root: from, Store: store})
	result.Root.Skipped = []manifest.Skipped{{Path: "closed", Reason: "unreadable directory: permission denied"}}
	to := t.TempDir()
	write(t, filepath.Join(to, "closed/sub/work"), "work", 0o644)
	write(t, filepath.Join(to, "closed/file"), "work", 0o644)
	write(t, filepath.Join(to, "closed-not/file"), "gone", 0o644)
	restoreTo(t, store, result.Root, to)
	for _, name := range []string{"closed/sub/work", "closed/file"} {
		if _, err := os.Lstat(filepath.Join(to, name)); err != nil {
			t.Errorf("%s did not survive: %v", name, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(to, "closed-not")); err == nil {
		t.Error("what nobody wants is left")
	}
}

// A destination in which something cannot be changed is refused before the first change,
// and does not stand in the way of what comes after.
func TestADestinationThatCannotBeChangedIsRefusedBefore(t *testing.T) {
	unprivileged(t)
	dir := tempDirs(t)
	from, store := dir(), &workspacetest.DirStore{Dir: dir(), Fence: 7}
	write(t, filepath.Join(from, "a/new"), "new", 0o644)
	write(t, filepath.Join(from, "b"), "new", 0o644)
	result := capture(t, workspace.CaptureOptions{Root: from, Store: store})
	parent := dir()
	root := filepath.Join(parent, "root")
	must(t, os.Mkdir(root, 0o755))
	write(t, filepath.Join(root, "a/old"), "old", 0o644)
	write(t, filepath.Join(root, "b"), "old", 0o644)
	if os.Getuid() == 0 { // the directory becomes another user's
		must(t, syscall.Seteuid(0), os.Chown(filepath.Join(root, "a"), 0, 0), syscall.Seteuid(65534))
	} else {
		t.Skip("needs two users")
	}
	before := snapshot(t, root)
	_, err := workspace.Restore(t.Context(), workspace.RestoreOptions{Root: root, Store: store, Manifest: result.Root})
	if err == nil {
		t.Fatal("restored")
	}
	if code(err) != workspace.CodeInvalidWorkspace {
		t.Errorf("error is %v, want code %s", err, workspace.CodeInvalidWorkspace)
	}
	if changed := differences(snapshot(t, root), before); changed != nil {
		t.Errorf("changed although it cannot be restored: %v", changed)
	}
	if _, err := workspace.Capture(t.Context(), workspace.CaptureOptions{Root: root, Store: store, ID: "c2"}); err != nil {
		t.Errorf("no capture any more: %v", err)
	}
}

func TestMountsInTheDestinationAreRefusedBefore(t *testing.T) {
	from, store := t.TempDir(), newStore(t)
	write(t, filepath.Join(from, "kept"), "kept", 0o644)
	write(t, filepath.Join(from, "file"), "new", 0o644)
	result := capture(t, workspace.CaptureOptions{Root: from, Store: store})
	for name, place := range map[string]func(t *testing.T, to, other string){
		"a file that nobody wants": func(t *testing.T, to, other string) {
			write(t, filepath.Join(to, "mounted"), "", 0o644)
			write(t, filepath.Join(other, "f"), "f", 0o644)
			must(t, mount(t, filepath.Join(other, "f"), filepath.Join(to, "mounted")))
		},
		"a file that is wanted": func(t *testing.T, to, other string) {
			write(t, filepath.Join(to, "file"), "", 0o644)
			write(t, filepath.Join(other, "f"), "f", 0o644)
			must(t, mount(t, filepath.Join(other, "f"), filepath.Join(to, "file")))
		},
		"a directory of the same file system": func(t *testing.T, to, other string) {
			must(t, os.Mkdir(filepath.Join(to, "mounted"), 0o755), os.Mkdir(filepath.Join(other, "d"), 0o755))
			must(t, mount(t, filepath.Join(other, "d"), filepath.Join(to, "mounted")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			to, other := t.TempDir(), t.TempDir()
			write(t, filepath.Join(to, "old"), "old", 0o644)
			place(t, to, other)
			before := snapshot(t, to)
			_, err := workspace.Restore(t.Context(), workspace.RestoreOptions{Root: to, Store: store, Manifest: result.Root})
			if code(err) != workspace.CodeInvalidWorkspace {
				t.Errorf("error is %v, want code %s", err, workspace.CodeInvalidWorkspace)
			}
			if changed := differences(snapshot(t, to), before); changed != nil {
				t.Errorf("changed: %v", changed)
			}
			if _, err := workspace.Capture(t.Context(), workspace.CaptureOptions{Root: to, Store: store, ID: "c2"}); err != nil {
				t.Errorf("no capture any more: %v", err)
			}
		})
	}
}

func mount(t *testing.T, what, at string) error {
	t.Helper()
	err := unix.Mount(what, at, "", unix.MS_BIND, "")
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		t.Skip("no right to mount")
	}
	t.Cleanup(func() { unix.Unmount(at, unix.MNT_DETACH) })
	return err
}

// An existing directory of somebody else that this process may write in keeps its owner's
// mode and times; the restore succeeds and counts it.
func TestAnothersOpenDirectoryKeepsItsMode(t *testing.T) {
	unprivileged(t)
	dir := tempDirs(t)
	from, store := dir(), &workspacetest.DirStore{Dir: dir(), Fence: 7}
	write(t, filepath.Join(from, "shared/new"), "new", 0o644)
	result := capture(t, workspace.CaptureOptions{Root: from, Store: store})
	root := filepath.Join(dir(), "root")
	must(t, os.Mkdir(root, 0o755), os.Mkdir(filepath.Join(root, "shared"), 0o777), os.Chmod(filepath.Join(root, "shared"), 0o777))
	if os.Getuid() != 0 {
		t.Skip("needs two users")
	}
	must(t, syscall.Seteuid(0), os.Chown(filepath.Join(root, "shared"), 0, 0), syscall.Seteuid(65534))
	restored := restoreTo(t, store, result.Root, root)
	if data, err := os.ReadFile(filepath.Join(root, "shared/new")); string(data) != "new" || restored.Unset != 1 {
		t.Errorf("content %q, %v, unset %d", data, err, restored.Unset)
	}
}
