package workspace_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/draw"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
)

// gardener changes a tree at random.
type gardener struct {
	t    *draw.T
	root string
}

var gardenNames = draw.SampledFrom([]string{"a", "b", "a-b", "a.", "é", "é", "A", "zz", "with space", "new\nline", "\xff\xfe", "x"})

func (g *gardener) draw(n int, label string) int { return draw.Range(0, n-1).Draw(g.t, label) }

// dirs are the directories of the tree, the root among them.
func (g *gardener) all(match func(fs.DirEntry) bool) []string {
	var found []string
	err := filepath.WalkDir(g.root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && path != g.root && match(d) {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		g.t.Fatal(err)
	}
	slices.Sort(found)
	return found
}

func (g *gardener) pick(match func(fs.DirEntry) bool, orRoot bool) string {
	found := g.all(match)
	if orRoot {
		found = append(found, g.root)
	}
	if len(found) == 0 {
		return ""
	}
	return found[g.draw(len(found), "which")]
}

func isDir(d fs.DirEntry) bool  { return d.IsDir() }
func isFile(d fs.DirEntry) bool { return d.Type().IsRegular() }
func isAny(fs.DirEntry) bool    { return true }

func (g *gardener) newPath() string {
	return filepath.Join(g.pick(isDir, true), gardenNames.Draw(g.t, "name"))
}

// create opens a file for writing, or what is there already unless it is a link: a
// link that the test made may lead to a file of the machine's own.
func (g *gardener) create() (*os.File, error) {
	return os.OpenFile(g.newPath(), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o644)
}

func (g *gardener) content() []byte {
	size := []int{0, 1, 100, 4096, 70_000, 1, 33, 5000, 4096, 1<<20 + 1, 12, 4<<20 + 3}[g.draw(12, "size")]
	return []byte(randomBytes(size, uint64(g.draw(5, "seed"))))
}

// step makes one change. One that is not possible changes nothing.
func (g *gardener) step() {
	switch g.draw(10, "change") {
	case 0, 1, 2:
		if file, err := g.create(); err == nil {
			file.Write(g.content())
			file.Close()
		}
	case 3:
		os.Mkdir(g.newPath(), 0o755)
	case 4:
		os.Symlink([]string{"a", "../..", "/nonexistent/file", "a/b/é"}[g.draw(4, "target")], g.newPath())
	case 5:
		if file := g.pick(isFile, false); file != "" {
			os.Link(file, g.newPath())
		}
	case 6:
		if path := g.pick(isAny, false); path != "" {
			os.RemoveAll(path)
		}
	case 7:
		if path := g.pick(isAny, false); path != "" {
			to := g.newPath()
			if !strings.HasPrefix(to+"/", path+"/") {
				os.Rename(path, to)
			}
		}
	case 8:
		if path := g.pick(func(d fs.DirEntry) bool { return d.Type()&fs.ModeSymlink == 0 }, false); path != "" {
			unix.Chmod(path, uint32(g.draw(0o10000, "mode"))|0o600)
			os.Chtimes(path, time.Time{}, time.Unix(int64(g.draw(1<<31, "seconds")), int64(g.draw(1e9, "nanoseconds"))))
			unix.Setxattr(path, "user.test", []byte(gardenNames.Draw(g.t, "value")), 0)
			if os.Geteuid() == 0 {
				os.Lchown(path, g.draw(3, "uid"), g.draw(3, "gid"))
			}
		}
	case 9:
		g.sparse()
	}
}

func (g *gardener) sparse() {
	file, err := g.create()
	if err != nil {
		return
	}
	defer file.Close()
	for range g.draw(4, "extents") {
		file.WriteAt([]byte(strings.Repeat("data", 1+g.draw(5000, "length"))), int64(g.draw(3<<20, "offset")))
	}
	file.Truncate(int64(g.draw(4<<20, "end")))
}

// readable lets an unprivileged test read what it made.
func (g *gardener) readable() {
	for _, dir := range g.all(isDir) {
		if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o700 != 0o700 {
			os.Chmod(dir, info.Mode()|0o700)
		}
	}
}

// TestAnyTreeComesBack captures a tree, changes it, captures it again on top of the
// last checkpoint, and so on, and restores each checkpoint over what another left.
func TestAnyTreeComesBack(t *testing.T) {
	draw.Check(t, func(rt *draw.T) {
		base, err := os.MkdirTemp(t.TempDir(), "")
		must(t, err)
		from, to := filepath.Join(base, "from"), filepath.Join(base, "to")
		must(t, os.Mkdir(from, 0o755), os.Mkdir(to, 0o755))
		store := newStore(t)
		g := &gardener{t: rt, root: from}
		var parent *manifest.Root
		for round := range draw.Range(1, 5).Draw(rt, "rounds") {
			for range draw.Range(0, 8).Draw(rt, "changes") {
				g.step()
			}
			g.readable()
			result := capture(t, workspace.CaptureOptions{
				Root: from, Store: store, ID: fmt.Sprint("c", round), Parent: parent, Policy: manifest.Policy{Xattrs: true},
				Now: time.Now().Add(time.Duration(draw.Range(0, 1).Draw(rt, "quiet")) * 5 * time.Second),
			})
			if len(result.Root.Skipped) > 0 || len(result.Root.Layers) > 9 {
				rt.Fatalf("skipped %+v, %d layers", result.Root.Skipped, len(result.Root.Layers))
			}
			parent = &result.Root
			restoreTo(t, store, result.Root, to)
			if err := differences(snapshot(t, to), snapshot(t, from)); err != nil {
				rt.Fatalf("round %d: %v", round, err)
			}
		}
	})
}

// TestAnyPolicyKeepsToItself restores under random rules into a tree that has
// everything: what the rules cover becomes the checkpoint's, and nothing else
// changes.
func TestAnyPolicyKeepsToItself(t *testing.T) {
	draw.Check(t, func(rt *draw.T) {
		base, err := os.MkdirTemp(t.TempDir(), "")
		must(t, err)
		from, to := filepath.Join(base, "from"), filepath.Join(base, "to")
		must(t, os.Mkdir(from, 0o755), os.Mkdir(to, 0o755))
		for _, root := range []string{from, to} {
			g := &gardener{t: rt, root: root}
			for range draw.Range(0, 20).Draw(rt, "changes") {
				g.step()
			}
			g.readable()
		}
		description := manifest.Policy{Include: drawRules(rt, "include"), Exclude: drawRules(rt, "exclude")}
		policy, err := workspace.NewPolicy(description)
		must(t, err)
		store := newStore(t)
		want, before := snapshot(t, from), snapshot(t, to)
		result := capture(t, workspace.CaptureOptions{Root: from, Store: store, Policy: description})
		_, err = workspace.Restore(t.Context(), workspace.RestoreOptions{Root: to, Store: store, Manifest: result.Root})
		got := snapshot(t, to)
		if err != nil {
			if originalCode(err) != "SANDBOX_SNAPSHOT_INVALID_PATH" {
				rt.Fatal(err)
			}
			if changed := differences(got, before); changed != nil {
				rt.Fatalf("refused, but changed: %v", changed)
			}
			return
		}
		for name, n := range before {
			if kind := kindOf(n); kind != manifest.Dir && (policy.ExcludesBelow(name, kind) || !policy.Includes(name, kind)) {
				if now := got[name]; now.text != n.text || now.mode != n.mode {
					rt.Fatalf("%q was not the checkpoint's business, but is %+v, want %+v", name, now, n)
				}
			}
		}
		for name, n := range want {
			if kind := kindOf(n); kind != manifest.Dir && !policy.ExcludesBelow(name, kind) && policy.Includes(name, kind) {
				if now := got[name]; now.text != n.text || now.mode != n.mode {
					rt.Fatalf("%q is %+v, want %+v", name, now, n)
				}
			}
		}
	})
}

func kindOf(n node) manifest.Kind {
	switch {
	case n.mode.IsDir():
		return manifest.Dir
	case n.mode&fs.ModeSymlink != 0:
		return manifest.Symlink
	}
	return manifest.File
}

func drawRules(rt *draw.T, label string) []manifest.Rule {
	if draw.Bool().Draw(rt, label) {
		return nil
	}
	names := []string{gardenNames.Draw(rt, label), gardenNames.Draw(rt, label) + "/" + gardenNames.Draw(rt, label)}
	rules := []manifest.Rule{
		{Exact: names}, {Prefixes: names}, {Suffixes: names[:1]}, {Segments: names[:1]}, {Dirs: true, Segments: names[:1]},
		{Kinds: []manifest.Kind{manifest.File}, All: true}, {Globs: []string{"a*", "*/b"}}, {},
	}
	return []manifest.Rule{rules[draw.Range(0, len(rules)-1).Draw(rt, label)]}
}
