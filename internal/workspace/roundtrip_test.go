package workspace_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
)

// variedTree makes a tree with one of everything that a checkpoint holds.
func variedTree(t testing.TB, root string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(root, name) }
	write(t, at("bin/run.sh"), "#!/bin/sh\necho ok\n", 0o755)
	write(t, at("bin/setid"), "x", 0o6711)
	write(t, at("src/a.txt"), "hello", 0o644)
	write(t, at("src/b.txt"), "hello", 0o400)
	write(t, at("src/grüße 🙂.txt"), "utf-8", 0o644)
	write(t, at("src-2/x"), "beside", 0o644)
	write(t, at("empty"), "", 0o644)
	big := []byte(randomBytes(9<<20+17, 12))
	write(t, at("big/random"), string(big), 0o644)
	write(t, at("big/text"), strings.Repeat("all work and no play ", 400_000), 0o644)
	sparse, err := os.Create(at("big/sparse"))
	must(t, err)
	_, err = sparse.WriteAt([]byte("begin"), 0)
	must(t, err)
	_, err = sparse.WriteAt(big[:100_000], 20<<20+123)
	must(t, err, sparse.Truncate(64<<20), sparse.Close())
	must(t, os.WriteFile(at("big/hole"), nil, 0o644), os.Truncate(at("big/hole"), 3<<20))
	must(t, os.Mkdir(at("nothing"), 0o755), os.Chmod(at("nothing"), 0o1777), os.MkdirAll(at("locked/in"), 0o755))
	write(t, at("locked/in/f"), "deep", 0o444)
	must(t, os.Link(at("src/a.txt"), at("bin/also-a")), os.Link(at("src/a.txt"), at("z-a")))
	must(t, os.Symlink("../src/a.txt", at("bin/link")), os.Symlink("/nonexistent/python3", at("bin/python")), os.Symlink("nowhere", at("dangling")))
	if err := unix.Setxattr(at("src/b.txt"), "user.test", []byte("value"), 0); err != nil {
		t.Logf("no extended attributes here: %v", err)
	}
	if os.Geteuid() == 0 {
		must(t, os.Lchown(at("src/b.txt"), 1234, 2345), os.Lchown(at("dangling"), 7, 8), os.Lchown(at("nothing"), 9, 10))
	}
	old := time.Date(2020, 1, 2, 3, 4, 5, 678901234, time.UTC)
	for _, name := range []string{"src/a.txt", "bin/run.sh", "big", "nothing", "locked/in"} {
		must(t, os.Chtimes(at(name), old, old))
	}
	must(t, unix.Lutimes(at("dangling"), []unix.Timeval{unix.NsecToTimeval(old.UnixNano()), unix.NsecToTimeval(old.UnixNano())}))
	must(t, os.Chmod(at("locked/in"), 0o555))
	t.Cleanup(func() { os.Chmod(at("locked/in"), 0o755) })
}

func TestCapturedTreeComesBackWhole(t *testing.T) {
	from, to, store := t.TempDir(), t.TempDir(), newStore(t)
	variedTree(t, from)
	policy := manifest.Policy{Defaults: true, Xattrs: true}
	result := capture(t, workspace.CaptureOptions{Root: from, Store: store, Policy: policy})
	if len(result.Root.Skipped) > 0 {
		t.Errorf("skipped %+v", result.Root.Skipped)
	}
	counts := result.Root.Counts
	if counts.OutwardLinks != 1 || counts.Symlinks != 3 || counts.Hardlinks != 2 || counts.Dirs != 7 {
		t.Errorf("counts are %+v", counts)
	}
	if 2*counts.StoredBytes > 30<<20 {
		t.Errorf("stores %d bytes: holes or equal content are stored", counts.StoredBytes)
	}
	want := snapshot(t, from)
	restoreTo(t, store, result.Root, to)
	if err := differences(snapshot(t, to), want); err != nil {
		t.Error(err)
	}
	// Over a tree that is there, changed in every way.
	must(t, os.RemoveAll(filepath.Join(to, "src")), os.Remove(filepath.Join(to, "empty")), os.Mkdir(filepath.Join(to, "empty"), 0o755))
	write(t, filepath.Join(to, "empty/new"), "x", 0o644)
	write(t, filepath.Join(to, "src"), "a file where a directory was", 0o644)
	write(t, filepath.Join(to, "extra/deep/file"), "x", 0o644)
	write(t, filepath.Join(to, ".env"), "SECRET=1", 0o600)
	write(t, filepath.Join(to, "big/node_modules/p/i.js"), "kept", 0o644)
	restored := restoreTo(t, store, result.Root, to)
	if restored.Removed != 3 {
		t.Errorf("result is %+v, want 3 removed", restored)
	}
	got := snapshot(t, to)
	for _, kept := range []string{".env", "big/node_modules", "big/node_modules/p", "big/node_modules/p/i.js"} {
		if _, there := got[kept]; !there {
			t.Errorf("%s did not survive", kept)
		}
		delete(got, kept)
	}
	if err := differences(got, want); err != nil {
		t.Error(err)
	}
}

func TestUnchangedTreeCostsNothing(t *testing.T) {
	root, store := t.TempDir(), newStore(t)
	variedTree(t, root)
	first := capture(t, workspace.CaptureOptions{Root: root, Store: store, Now: time.Now().Add(time.Minute)})
	puts := store.Puts.Load()
	second := capture(t, workspace.CaptureOptions{Root: root, Store: store, ID: "c2", Parent: &first.Root})
	if store.Puts.Load() != puts || second.ReadFiles != 0 || second.LayerBytes != 0 {
		t.Errorf("sent %d objects, read %d files, layer of %d bytes, want none", store.Puts.Load()-puts, second.ReadFiles, second.LayerBytes)
	}
	if second.Root.Counts != first.Root.Counts {
		t.Errorf("counts %+v, want %+v", second.Root.Counts, first.Root.Counts)
	}
	// The same content under other inodes: read again, but nothing is sent.
	copied := t.TempDir()
	restoreTo(t, store, first.Root, copied)
	third := capture(t, workspace.CaptureOptions{Root: copied, Store: store, ID: "c3", Parent: &second.Root})
	if store.Puts.Load() != puts || third.ReadFiles == 0 || third.LayerBytes != 0 {
		t.Errorf("sent %d objects, read %d files, layer of %d bytes, want only reads", store.Puts.Load()-puts, third.ReadFiles, third.LayerBytes)
	}
}

func TestChangeCostsWhatChanged(t *testing.T) {
	root, store := t.TempDir(), newStore(t)
	variedTree(t, root)
	policy := manifest.Policy{Xattrs: true}
	first := capture(t, workspace.CaptureOptions{Root: root, Store: store, Policy: policy})
	write(t, filepath.Join(root, "src/a.txt"), "changed", 0o644)
	must(t, os.Remove(filepath.Join(root, "empty")), os.Rename(filepath.Join(root, "big/random"), filepath.Join(root, "moved")))
	second := capture(t, workspace.CaptureOptions{Root: root, Store: store, ID: "c2", Parent: &first.Root, Policy: policy})
	if second.PackBytes > 100 || second.Packs != 1 || len(second.Root.Layers) != 2 {
		t.Errorf("result is %d packs of %d bytes, %d layers, want one of the few changed bytes, and two layers", second.Packs, second.PackBytes, len(second.Root.Layers))
	}
	to := t.TempDir()
	restoreTo(t, store, second.Root, to)
	if err := differences(snapshot(t, to), snapshot(t, root)); err != nil {
		t.Error(err)
	}
}
