package workspace_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/draw"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
)

func code(err error) workspace.Code {
	if e, ok := errors.AsType[*workspace.Error](err); ok {
		return e.Code
	}
	return ""
}

// outside makes a directory that no restore may touch, and checks that.
func outside(t testing.TB, dir string) (path string, untouched func() error) {
	t.Helper()
	write(t, filepath.Join(dir, "canary"), "alive", 0o644)
	write(t, filepath.Join(dir, "sub/canary"), "alive", 0o644)
	before := snapshot(t, dir)
	return dir, func() error { return differences(snapshot(t, dir), before) }
}

// hostileManifest is one that no restore may follow.
type hostileManifest struct {
	name    string
	entries func(b *builder) []manifest.Entry
	policy  manifest.Policy
	want    workspace.Code
	refused bool // no layer can hold it
}

func dirAt(path string) manifest.Entry {
	return manifest.Entry{Path: path, Kind: manifest.Dir, Mode: 0o755}
}

func fileAt(path string, chunks ...manifest.Chunk) manifest.Entry {
	e := manifest.Entry{Path: path, Kind: manifest.File, Mode: 0o644, Chunks: chunks}
	for _, c := range chunks {
		e.Size += c.Length
	}
	return e
}

func linkAt(path, target string) manifest.Entry {
	return manifest.Entry{Path: path, Kind: manifest.Symlink, Target: target}
}

func hardAt(path, target string) manifest.Entry {
	return manifest.Entry{Path: path, Kind: manifest.Hardlink, Target: target}
}

// hostilePaths are manifests that write where they may not.
var hostilePaths = []hostileManifest{
	{name: "a file below a link out of the root", want: workspace.CodeInvalidPath,
		entries: func(*builder) []manifest.Entry { return []manifest.Entry{linkAt("a", "/nonexistent"), fileAt("a/b")} }},
	{name: "a file below a file", want: workspace.CodeInvalidPath,
		entries: func(*builder) []manifest.Entry { return []manifest.Entry{fileAt("a"), fileAt("a/b")} }},
	{name: "a hard link to a symbolic link", want: workspace.CodeInvalidPath,
		entries: func(*builder) []manifest.Entry {
			return []manifest.Entry{linkAt("a", "/nonexistent/file"), hardAt("b", "a")}
		}},
	{name: "a hard link to nothing", want: workspace.CodeInvalidPath,
		entries: func(*builder) []manifest.Entry { return []manifest.Entry{hardAt("b", "a")} }},
	{name: "dot dot", refused: true,
		entries: func(*builder) []manifest.Entry { return []manifest.Entry{fileAt("../a")} }},
	{name: "absolute", refused: true,
		entries: func(*builder) []manifest.Entry { return []manifest.Entry{fileAt("/nonexistent/file")} }},
	{name: "a hard link out of the root", refused: true,
		entries: func(*builder) []manifest.Entry { return []manifest.Entry{hardAt("z", "../a")} }},
	{name: "twice", refused: true,
		entries: func(*builder) []manifest.Entry { return []manifest.Entry{fileAt("a"), dirAt("a")} }},
	{name: "an excluded path", want: workspace.CodeInvalidPath,
		entries: func(*builder) []manifest.Entry { return []manifest.Entry{dirAt("src"), fileAt("src/.env")} }},
	{name: "below an excluded path", want: workspace.CodeInvalidPath,
		entries: func(*builder) []manifest.Entry { return []manifest.Entry{fileAt("node_modules/a/b")} }},
	{name: "the directory of a restore", want: workspace.CodeInvalidPath,
		entries: func(*builder) []manifest.Entry { return []manifest.Entry{fileAt(".sandkeeper-restore/journal")} }},
	{name: "a path that is not included", want: workspace.CodeInvalidPath, policy: manifest.Policy{Include: []manifest.Rule{{Suffixes: []string{".go"}}}},
		entries: func(*builder) []manifest.Entry { return []manifest.Entry{fileAt("a.c")} }},
}

// hostileContent are manifests whose content is not what they say.
var hostileContent = []hostileManifest{
	{name: "content that has another digest", want: workspace.CodeInvalidBlob,
		entries: func(b *builder) []manifest.Entry {
			c := b.chunk("content")
			c.SHA256[0]++
			return []manifest.Entry{fileAt("a", c), fileAt("b", b.chunk("other"))}
		}},
	{name: "a pack that is not stored", want: workspace.CodeMissingBlob,
		entries: func(b *builder) []manifest.Entry {
			c := b.chunk("content")
			c.Pack.SHA256[0]++
			return []manifest.Entry{fileAt("a", c)}
		}},
	{name: "a frame that unpacks to more than it says", want: workspace.CodeInvalidBlob,
		entries: func(b *builder) []manifest.Entry {
			c := b.chunk(strings.Repeat("bomb", 5<<20))
			c.Frame.Raw, c.Length = manifest.MaxFrame, manifest.MaxFrame
			return []manifest.Entry{fileAt("a", c)}
		}},
	{name: "a frame that is none", want: workspace.CodeInvalidBlob,
		entries: func(b *builder) []manifest.Entry {
			c := b.chunk(strings.Repeat("content", 100))
			c.Frame.Offset, c.Frame.Stored = 1, c.Frame.Stored-1
			return []manifest.Entry{fileAt("a", c)}
		}},
}

func TestHostileManifestsAreRefusedBeforeAnyChange(t *testing.T) {
	for _, c := range slices.Concat(hostilePaths, hostileContent) {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			write(t, filepath.Join(root, "old/file"), "old", 0o644)
			before := snapshot(t, root)
			b := &builder{t: t, store: newStore(t)}
			made, err := b.root(c.entries(b), c.policy)
			if c.refused {
				if _, ok := errors.AsType[*manifest.RefusedError](err); !ok {
					t.Fatalf("writer says %v, want a refusal", err)
				}
				return
			}
			must(t, err)
			_, err = workspace.Restore(t.Context(), workspace.RestoreOptions{Root: root, Store: b.store, Manifest: made})
			if code(err) != c.want {
				t.Errorf("error is %v, want code %s", err, c.want)
			}
			if err := differences(snapshot(t, root), before); err != nil {
				t.Errorf("changed although refused: %v", err)
			}
			if _, err := workspace.Verify(t.Context(), workspace.VerifyOptions{Store: b.store, Manifest: made}); err == nil && c.policy.Include == nil && c.want != workspace.CodeInvalidPath {
				t.Error("verify found nothing wrong")
			}
		})
	}
}

func TestDestinationLinksLeadNowhere(t *testing.T) {
	away, untouched := outside(t, t.TempDir())
	from, store := t.TempDir(), newStore(t)
	write(t, filepath.Join(from, "a/canary"), "new", 0o644)
	write(t, filepath.Join(from, "b/sub/canary"), "new", 0o644)
	write(t, filepath.Join(from, "canary"), "new", 0o644)
	must(t, os.Mkdir(filepath.Join(from, "c"), 0o700))
	result := capture(t, workspace.CaptureOptions{Root: from, Store: store})
	to := t.TempDir()
	must(t, os.Symlink(away, filepath.Join(to, "a")), os.Mkdir(filepath.Join(to, "b"), 0o755),
		os.Symlink(filepath.Join(away, "sub"), filepath.Join(to, "b/sub")), os.Symlink(filepath.Join(away, "canary"), filepath.Join(to, "canary")),
		os.Symlink(away, filepath.Join(to, "c")), os.Symlink(away, filepath.Join(to, "unwanted")))
	restoreTo(t, store, result.Root, to)
	if err := errors.Join(untouched(), differences(snapshot(t, to), snapshot(t, from))); err != nil {
		t.Error(err)
	}
}

// TestLinksPutInTheWayLeadNowhere lets somebody replace directories by links to the
// outside while restores and captures run.
func TestLinksPutInTheWayLeadNowhere(t *testing.T) {
	away, untouched := outside(t, t.TempDir())
	from, store := t.TempDir(), newStore(t)
	for _, name := range []string{"d/canary", "d/sub/canary", "d/sub/x", "e/y"} {
		write(t, filepath.Join(from, name), "new", 0o644)
	}
	result := capture(t, workspace.CaptureOptions{Root: from, Store: store})
	to := t.TempDir()
	stop := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		d := filepath.Join(to, "d")
		for {
			select {
			case <-stop:
				return
			default:
			}
			os.Rename(d, filepath.Join(to, "moved"))
			os.Symlink(away, d)
			os.Remove(d)
			os.Rename(filepath.Join(to, "moved"), d)
		}
	})
	for range 30 {
		// It may fail, the directory being no longer what it was; it may not reach out.
		workspace.Restore(t.Context(), workspace.RestoreOptions{Root: to, Store: store, Manifest: result.Root})
		again, err := workspace.Capture(t.Context(), workspace.CaptureOptions{Root: to, Store: store, ID: "again"})
		if err != nil {
			continue
		}
		fresh := t.TempDir()
		restoreTo(t, store, again.Root, fresh)
		for name, n := range snapshot(t, fresh) {
			if n.mode.IsRegular() && n.text == "alive" {
				t.Fatalf("%s was read outside the root", name)
			}
		}
	}
	close(stop)
	group.Wait()
	if err := untouched(); err != nil {
		t.Error(err)
	}
}

// TestAnyManifestStaysInside restores made-up manifests, right and wrong, into made-up
// destinations.
func TestAnyManifestStaysInside(t *testing.T) {
	draw.Check(t, func(rt *draw.T) {
		base, err := os.MkdirTemp(t.TempDir(), "")
		must(t, err)
		away, untouched := outside(t, filepath.Join(base, "away"))
		root := filepath.Join(base, "root")
		must(t, os.Mkdir(root, 0o755))
		g := &gardener{t: rt, root: root}
		for range draw.Range(0, 6).Draw(rt, "changes") {
			g.step()
		}
		for range draw.Range(0, 3).Draw(rt, "links") {
			os.Symlink([]string{away, "../away", filepath.Join(away, "canary")}[draw.Range(0, 2).Draw(rt, "target")], g.newPath())
		}
		g.readable()
		before := snapshot(t, root)
		b := &builder{t: t, store: newStore(t)}
		made, err := b.root(drawEntries(rt, b), manifest.Policy{})
		if err == nil {
			_, err = workspace.Restore(t.Context(), workspace.RestoreOptions{Root: root, Store: b.store, Manifest: made})
		}
		if escaped := untouched(); escaped != nil {
			rt.Fatalf("wrote outside the root: %v", escaped)
		}
		if err != nil {
			if changed := differences(snapshot(t, root), before); changed != nil {
				rt.Fatalf("refused (%v), but changed: %v", err, changed)
			}
		}
	})
}

func drawEntries(rt *draw.T, b *builder) []manifest.Entry {
	paths := draw.SampledFrom([]string{"a", "b", "a/a", "a/b", "b/x", "a/b/c", "x", "a-b", "..", "/a", "a/../b", ".env", "é", "canary"})
	entries := map[string]manifest.Entry{}
	for range draw.Range(0, 8).Draw(rt, "entries") {
		e := manifest.Entry{Path: paths.Draw(rt, "path"), Mode: uint32(draw.Range(0, 0o7777).Draw(rt, "mode")) | 0o700}
		e.Kind = manifest.Kind(draw.Range(1, 4).Draw(rt, "kind"))
		switch e.Kind {
		case manifest.Symlink:
			e.Target = draw.SampledFrom([]string{"../away", "/", "a", "..", "canary"}).Draw(rt, "target")
		case manifest.Hardlink:
			e.Target = paths.Draw(rt, "target")
		case manifest.File:
			c := b.chunk(draw.StringMatching(`[a-z]{1,20}`).Draw(rt, "content"))
			e.Chunks, e.Size = []manifest.Chunk{c}, c.Length
		}
		entries[e.Path] = e
	}
	var list []manifest.Entry
	for _, e := range entries {
		list = append(list, e)
	}
	return list
}

// FuzzRestoreOfAnyBytes restores layers of arbitrary bytes.
func FuzzRestoreOfAnyBytes(f *testing.F) {
	from, store := f.TempDir(), newStore(f)
	write(f, filepath.Join(from, "a/b"), "content", 0o755)
	must(f, os.Symlink("/nonexistent", filepath.Join(from, "link")))
	result := capture(f, workspace.CaptureOptions{Root: from, Store: store})
	data := make([]byte, result.Root.Layers[0].Size)
	must(f, store.Get(f.Context(), result.Root.Layers[0], 0, data))
	f.Add(data, int64(1), int64(7), int64(1), int64(1))
	f.Add(data[:len(data)/2], int64(1), int64(7), int64(1), int64(1))
	f.Fuzz(func(t *testing.T, layer []byte, files, size, dirs, links int64) {
		base := t.TempDir()
		_, untouched := outside(t, filepath.Join(base, "away"))
		root := filepath.Join(base, "root")
		must(t, os.Mkdir(root, 0o755), os.Symlink("../away", filepath.Join(root, "a")))
		ref, err := store.Put(t.Context(), workspace.Object{SHA256: sha256.Sum256(layer), Size: int64(len(layer)), Body: bytes.NewReader(layer)})
		must(t, err)
		made := result.Root
		made.Layers = []manifest.PackRef{ref}
		made.Counts.Files, made.Counts.Bytes, made.Counts.Dirs, made.Counts.Symlinks = files, size, dirs, links
		workspace.Restore(t.Context(), workspace.RestoreOptions{Root: root, Store: store, Manifest: made})
		if err := untouched(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestSpecialFilesSurviveARestore(t *testing.T) {
	from, to, store := t.TempDir(), t.TempDir(), newStore(t)
	write(t, filepath.Join(from, "a"), "a", 0o644)
	result := capture(t, workspace.CaptureOptions{Root: from, Store: store})
	must(t, os.Mkdir(filepath.Join(to, "run"), 0o755), unix.Mkfifo(filepath.Join(to, "run/pipe"), 0o600), unix.Mkfifo(filepath.Join(to, "a"), 0o600))
	write(t, filepath.Join(to, "run/file"), "x", 0o644)
	restoreTo(t, store, result.Root, to)
	if names := sortedNames(snapshot(t, to)); !slices.Equal(names, []string{"a", "run", "run/pipe"}) {
		t.Errorf("tree is %v, want the pipe kept, and replaced where a file is wanted", names)
	}
}
