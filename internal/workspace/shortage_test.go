package workspace_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/workspace"
)

// nest makes a chain of directories deeper than any path, and a file at its end.
func nest(t *testing.T, root, name string, depth int) {
	t.Helper()
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	for range depth {
		must(t, unix.Mkdirat(fd, name, 0o755))
		next, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, err, unix.Close(fd))
		fd = next
	}
	f, err := unix.Openat(fd, "end", unix.O_CREAT|unix.O_WRONLY, 0o644)
	must(t, err, unix.Close(f), unix.Close(fd))
}

func TestATreeDeeperThanAnyPathIsCutOff(t *testing.T) {
	root, store := t.TempDir(), newStore(t)
	write(t, filepath.Join(root, "z"), "kept", 0o644)
	nest(t, root, strings.Repeat("n", 200), 1000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	result := capture(t, workspace.CaptureOptions{Root: root, Store: store})
	runtime.ReadMemStats(&after)
	if grown := (after.TotalAlloc - before.TotalAlloc) >> 20; grown > 150 {
		t.Errorf("allocated %d MiB for 1,000 entries", grown)
	}
	if result.Root.Counts.Files != 1 || len(result.Root.Skipped) == 0 {
		t.Errorf("counts %+v, %d skipped, want the file and what was cut off", result.Root.Counts, len(result.Root.Skipped))
	}
	to := t.TempDir()
	nest(t, to, "old", 1500)
	restoreTo(t, store, result.Root, to)
}

func TestFewDescriptorsEndACaptureRatherThanLeaveFilesOut(t *testing.T) {
	root, store := t.TempDir(), newStore(t)
	path := root
	for range 300 {
		path = filepath.Join(path, "d")
	}
	write(t, filepath.Join(path, "work"), "work", 0o644)
	var before unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: min(200, before.Max), Max: before.Max}))
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &before)
	result, err := workspace.Capture(t.Context(), workspace.CaptureOptions{Root: root, Store: store, ID: "c"})
	if err == nil && result.Root.Counts.Files != 1 {
		t.Errorf("a capture that ran out of descriptors succeeds without the file: skipped %d %+v", len(result.Root.Skipped), result.Root.Skipped[:1])
	}
}

func TestSecretsInLinkTextsAreNotStored(t *testing.T) {
	root, store := t.TempDir(), newStore(t)
	must(t, os.Symlink("https://bot:hunter22-hunter22@example.invalid", filepath.Join(root, "lock")), os.Symlink("plain", filepath.Join(root, "other")))
	result := capture(t, workspace.CaptureOptions{Root: root, Store: store, Secrets: []workspace.Secret{{Name: "S", Value: "hunter22-hunter22"}}})
	to := t.TempDir()
	restoreTo(t, store, result.Root, to)
	if text, err := os.Readlink(filepath.Join(to, "lock")); err == nil && strings.Contains(text, "hunter22") {
		t.Errorf("the secret came back in a link: %q", text)
	}
	if _, err := os.Readlink(filepath.Join(to, "other")); err != nil {
		t.Error(err)
	}
}
