package workspace_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
	"github.com/sandkeeper/sandkeeper/internal/workspace/workspacetest"
)

// node is what a test compares of an entry.
type node struct {
	mode   fs.FileMode
	owner  [2]uint32
	mtime  int64
	text   string // content or target
	links  int    // names of the same inode in the tree
	xattr  string // value of user.test
	stored int64  // bytes on the disk: holes have none
}

// snapshot reads a tree. Names below skip are left out.
func snapshot(t testing.TB, root string, skip ...string) map[string]node {
	t.Helper()
	tree, inodes := map[string]node{}, map[uint64][]string{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if slices.Contains(skip, name) {
			return fs.SkipDir
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		n := node{mode: info.Mode(), owner: [2]uint32{st.Uid, st.Gid}, mtime: info.ModTime().UnixNano()}
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			n.text = string(data)
			inodes[st.Ino] = append(inodes[st.Ino], name)
			n.stored = st.Blocks * 512
		case info.Mode()&fs.ModeSymlink != 0:
			n.text, err = os.Readlink(path)
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			value := make([]byte, 100)
			if size, err := unix.Getxattr(path, "user.test", value); err == nil {
				n.xattr = string(value[:size])
			}
		}
		tree[name] = n
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, names := range inodes {
		for _, name := range names {
			n := tree[name]
			n.links = len(names)
			tree[name] = n
		}
	}
	return tree
}

// differences lists how got differs from want, empty if it does not.
func differences(got, want map[string]node) error {
	var all []error
	for _, name := range slices.Sorted(maps.Keys(want)) {
		g, there := got[name]
		if w := want[name]; !there {
			all = append(all, fmt.Errorf("%s is missing", name))
		} else if g.stored > w.stored+1<<20 {
			all = append(all, fmt.Errorf("%s has %d bytes on the disk, want %d", name, g.stored, w.stored))
		} else if g.stored = w.stored; g != w {
			g.text, w.text = short(g.text, w.text), short(w.text, g.text)
			all = append(all, fmt.Errorf("%s is %+v, want %+v", name, g, w))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, there := want[name]; !there {
			all = append(all, fmt.Errorf("%s is there", name))
		}
	}
	return errors.Join(all...)
}

// short is where two texts differ.
func short(text, other string) string {
	if text == other {
		return "(same)"
	}
	i := 0
	for i < min(len(text), len(other)) && text[i] == other[i] {
		i++
	}
	return fmt.Sprintf("%d bytes, at %d %.40q", len(text), i, text[i:min(i+40, len(text))])
}

func newStore(t testing.TB) *workspacetest.DirStore {
	t.Helper()
	return &workspacetest.DirStore{Dir: t.TempDir(), Fence: 7}
}

// capture captures a tree and checks that the root is one that readers accept.
func capture(t testing.TB, options workspace.CaptureOptions) workspace.CaptureResult {
	t.Helper()
	if options.ID == "" {
		options.ID = "c1"
	}
	result, err := workspace.Capture(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	data, err := manifest.EncodeRoot(result.Root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := manifest.DecodeRoot(data); err != nil {
		t.Fatal(err)
	}
	if _, err := workspace.Verify(t.Context(), workspace.VerifyOptions{Store: options.Store, Manifest: result.Root}); err != nil {
		t.Fatalf("verify what was captured: %v", err)
	}
	return result
}

func restoreTo(t testing.TB, store workspace.Store, root manifest.Root, dir string) workspace.RestoreResult {
	t.Helper()
	result, err := workspace.Restore(t.Context(), workspace.RestoreOptions{Root: dir, Store: store, Manifest: root})
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), ".sandkeeper-*")); len(left) > 0 {
		t.Errorf("restore left %v", left)
	}
	return result
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// write makes a file and the directories above it.
func write(t testing.TB, path, text string, mode fs.FileMode) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, mode))
}
