package manifest_test

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/draw"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

var paths = draw.Custom(func(t *draw.T) string {
	segments := draw.SliceOfN(draw.StringMatching(`[a-c.\-é]{1,3}`).Filter(func(s string) bool { return s != "." && s != ".." }), 1, 4).Draw(t, "segments")
	return strings.Join(segments, "/")
})

var packs = []manifest.PackRef{{Fence: 1, SHA256: digest(1), Size: 5 << 20}, {Fence: 1, SHA256: digest(2), Size: 8 << 20}, {Fence: 9, SHA256: digest(1), Size: 12 << 20}}

// chunks draws a list of chunks, with holes, and the size of their file.
var chunks = draw.Custom(func(t *draw.T) manifest.Entry {
	var e manifest.Entry
	for range draw.Range(0, 4).Draw(t, "chunks") {
		pack := draw.SampledFrom(packs).Draw(t, "pack")
		slot := draw.Range[int64](0, 4).Draw(t, "slot")
		frame := manifest.Frame{Offset: slot << 20, Stored: 1 << 20, Raw: (slot + 1) << 18}
		skip := draw.Range(0, frame.Raw-1).Draw(t, "skip")
		gap := draw.Range[int64](0, 3).Draw(t, "gap") << draw.Range(0, 40).Draw(t, "shift")
		e.Chunks = append(e.Chunks, manifest.Chunk{
			Offset: e.Size + gap, Length: draw.Range(1, frame.Raw-skip).Draw(t, "length"),
			SHA256: digest(draw.Range(0, 3).Draw(t, "digest")), Pack: pack, Frame: frame, Skip: skip,
		})
		last := e.Chunks[len(e.Chunks)-1]
		e.Size = last.Offset + last.Length
	}
	e.Size += draw.Range[int64](0, 2).Draw(t, "tail")
	return e
})

// entries draws an entry of any kind but hardlink for a path.
func drawEntry(t *draw.T, path string) manifest.Entry {
	e := manifest.Entry{Kind: manifest.Kind(draw.Range(1, 3).Draw(t, "kind"))}
	if e.Kind == manifest.File {
		content := chunks.Draw(t, "content")
		e.Size, e.Chunks = content.Size, content.Chunks
	}
	if e.Kind == manifest.Symlink {
		e.Target = draw.StringMatching(`(\.\./|/)?[a-z/]{1,5}`).Draw(t, "target")
	}
	e.Path = path
	e.Area = manifest.Area(draw.Range(0, 1).Draw(t, "area"))
	e.Mode = draw.Range[uint32](0, 0o7777).Draw(t, "mode")
	e.UID, e.GID = draw.Integer[uint32]().Draw(t, "uid"), draw.Integer[uint32]().Draw(t, "gid")
	e.MTime, e.CTime = draw.Integer[int64]().Draw(t, "mtime"), draw.Integer[int64]().Draw(t, "ctime")
	e.Inode, e.Device = draw.Integer[uint64]().Draw(t, "inode"), draw.Range[uint64](0, 3).Draw(t, "device")
	if draw.Bool().Draw(t, "attributes") {
		e.Xattrs = draw.MapOfN(draw.StringMatching(`user\.[a-c]`), draw.SliceOfN(draw.Integer[byte](), 0, 3), 1, 3).Draw(t, "xattrs")
	}
	return e
}

// name is what identifies an entry.
type name struct {
	area manifest.Area
	path string
}

func nameOf(e manifest.Entry) name { return name{e.Area, e.Path} }

// drawLayer draws a layer: entries in order, each path once, some of them
// tombstones.
func drawLayer(t *draw.T, tombstones bool) []manifest.Entry {
	all := map[name]manifest.Entry{}
	for range draw.Range(0, 12).Draw(t, "entries") {
		e := drawEntry(t, paths.Draw(t, "path"))
		if tombstones && draw.Range(0, 3).Draw(t, "deleted") == 0 {
			e = manifest.Tombstone(e.Area, e.Path)
		}
		all[nameOf(e)] = e
	}
	return slices.SortedFunc(maps.Values(all), manifest.Compare)
}

// drawTree draws a tree that Check accepts: directories above every entry, and
// hardlinks to some of the files.
func drawTree(t *draw.T) []manifest.Entry {
	all := map[name]manifest.Entry{}
	for _, e := range drawLayer(t, false) {
		all[nameOf(e)] = e
		for parent, _, ok := cutLast(e.Path); ok; parent, _, ok = cutLast(parent) {
			all[name{e.Area, parent}] = manifest.Entry{Area: e.Area, Path: parent, Kind: manifest.Dir}
		}
	}
	sorted := slices.SortedFunc(maps.Values(all), manifest.Compare)
	for _, e := range slices.Clone(sorted) {
		if e.Kind == manifest.File && draw.Range(0, 2).Draw(t, "linked") == 0 {
			sorted = append(sorted, manifest.Entry{Area: e.Area, Path: "\xff" + strings.ReplaceAll(e.Path, "/", "_"), Kind: manifest.Hardlink, Target: e.Path})
		}
	}
	slices.SortFunc(sorted, manifest.Compare)
	return slices.CompactFunc(sorted, func(a, b manifest.Entry) bool { return nameOf(a) == nameOf(b) })
}

func cutLast(path string) (parent, last string, ok bool) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return "", path, false
	}
	return path[:i], path[i+1:], true
}

// with fails the outer test where a property's helper does.
func with(t *testing.T, property func(t *testing.T, r *draw.T)) {
	t.Helper()
	draw.Check(t, func(r *draw.T) { property(t, r) })
}

func TestAnyLayerRoundTrips(t *testing.T) {
	with(t, func(t *testing.T, r *draw.T) {
		want := drawLayer(r, true)
		got, err := collect(manifest.ReadLayer(bytes.NewReader(encodeLayer(t, want...))))
		if err != nil {
			r.Fatal(err)
		}
		compare(r, got, want)
	})
}

// TestMergeIsAMap: layers are writes to a map by area and path.
func TestMergeIsAMap(t *testing.T) {
	with(t, func(t *testing.T, r *draw.T) {
		state := map[name]manifest.Entry{}
		var lists [][]manifest.Entry
		for range draw.Range(0, 5).Draw(r, "layers") {
			list := drawLayer(r, true)
			lists = append(lists, list)
			for _, e := range list {
				if e.Deleted {
					delete(state, nameOf(e))
				} else {
					state[nameOf(e)] = e
				}
			}
		}
		got, err := collect(manifest.Merge(layersOf(t, lists...)...))
		if err != nil {
			r.Fatal(err)
		}
		compare(r, got, slices.SortedFunc(maps.Values(state), manifest.Compare))
	})
}

// TestDeltaAppliedIsTheTarget, in every member.
func TestDeltaAppliedIsTheTarget(t *testing.T) {
	with(t, func(t *testing.T, r *draw.T) {
		a, b := drawTree(r), drawTree(r)
		delta, err := collect(manifest.Delta(manifest.Entries(a...), manifest.Entries(b...)))
		if err != nil {
			r.Fatal(err)
		}
		got, err := collect(manifest.Merge(layersOf(t, a, delta)...))
		if err != nil {
			r.Fatal(err)
		}
		compare(r, got, b)
		if err := manifest.Check(rootOf(t, b...), manifest.Merge(layersOf(t, a, delta)...)); err != nil {
			r.Fatal(err)
		}
	})
}

// TestDiffAppliedIsTheTarget, in all that a restore brings back.
func TestDiffAppliedIsTheTarget(t *testing.T) {
	with(t, func(t *testing.T, r *draw.T) {
		a, b := drawTree(r), drawTree(r)
		changes, err := collect(manifest.Diff(manifest.Entries(a...), manifest.Entries(b...)))
		if err != nil {
			r.Fatal(err)
		}
		state := map[name]manifest.Entry{}
		for _, e := range a {
			state[nameOf(e)] = e
		}
		for _, c := range changes {
			key := name{c.Area, c.Path}
			if before, ok := state[key]; ok != (c.Before != nil) || ok && !before.Equal(*c.Before) {
				r.Fatalf("change of %v does not begin with what is there", key)
			}
			delete(state, key)
			if c.After != nil {
				state[key] = *c.After
			}
			if both := c.Before != nil && c.After != nil; both != (c.Content || c.Meta) {
				r.Fatalf("change of %v says content %t, meta %t", key, c.Content, c.Meta)
			}
		}
		compare(r, forgetReading(slices.SortedFunc(maps.Values(state), manifest.Compare)), forgetReading(b))
	})
}

// forgetReading clears what is not restored, and where content is stored.
func forgetReading(all []manifest.Entry) []manifest.Entry {
	for i := range all {
		all[i].CTime, all[i].Inode, all[i].Device = 0, 0, 0
		all[i].Chunks = slices.Clone(all[i].Chunks)
		for j := range all[i].Chunks {
			c := &all[i].Chunks[j]
			c.Pack, c.Frame, c.Skip = manifest.PackRef{}, manifest.Frame{}, 0
		}
	}
	return all
}

// TestComparePathsIsTheOrderOfAWalk: segment by segment, a directory before what
// is in it.
func TestComparePathsIsTheOrderOfAWalk(t *testing.T) {
	with(t, func(_ *testing.T, r *draw.T) {
		a, b := paths.Draw(r, "a"), paths.Draw(r, "b")
		want := slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
		if got := manifest.ComparePaths(a, b); got != want {
			r.Fatalf("%q and %q: got %d, want %d", a, b, got, want)
		}
	})
}

func TestAnyRootRoundTrips(t *testing.T) {
	words := draw.SliceOfN(draw.String(), 0, 3)
	rule := draw.Custom(func(t *draw.T) manifest.Rule {
		var kinds []manifest.Kind
		for k := manifest.File; k <= manifest.Hardlink; k++ {
			if draw.Bool().Draw(t, "kind") {
				kinds = append(kinds, k)
			}
		}
		return manifest.Rule{
			Kinds: kinds, All: draw.Bool().Draw(t, "all"), Dirs: draw.Bool().Draw(t, "dirs"),
			Exact: words.Draw(t, "exact"), Prefixes: words.Draw(t, "prefixes"), Suffixes: words.Draw(t, "suffixes"),
			Segments: words.Draw(t, "segments"), Globs: words.Draw(t, "globs"),
		}
	})
	with(t, func(t *testing.T, r *draw.T) {
		want := rootOf(t, drawTree(r)...)
		want.CreatedAt = draw.Integer[int64]().Draw(r, "created")
		want.Parent = draw.SampledFrom([]string{"", "parent"}).Draw(r, "parent")
		for i := range want.Packs {
			want.Packs[i].Owner = draw.SampledFrom([]string{"", "a", "b"}).Draw(r, "owner")
		}
		want.Layers[0].Owner = draw.SampledFrom([]string{"", "a", "c"}).Draw(r, "owner")
		want.Policy = manifest.Policy{
			Include: draw.SliceOfN(rule, 0, 2).Draw(r, "include"), Exclude: draw.SliceOfN(rule, 0, 2).Draw(r, "exclude"),
			Defaults: draw.Bool().Draw(r, "defaults"), Xattrs: draw.Bool().Draw(r, "xattrs"), Strict: draw.Bool().Draw(r, "strict"),
			Git: "state", WorkspaceHash: draw.String().Draw(r, "hash"), RedactForms: words.Draw(r, "forms"),
		}
		want.Skipped = []manifest.Skipped{{Path: "pipe\xff", Reason: draw.String().Draw(r, "reason")}}
		want.SkippedMore = draw.Range[int64](0, 5).Draw(r, "more")
		want.Git = draw.String().Draw(r, "git")
		want.Redaction = manifest.Redaction{Salt: []byte("salt"), Iterations: 100_000, Digest: bytes.Repeat([]byte{7}, 32)}
		checkRoot(r, want)
	})
}

// checkRoot encodes and decodes a root, and compares.
func checkRoot(t failer, want manifest.Root) {
	t.Helper()
	data, err := manifest.EncodeRoot(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := manifest.DecodeRoot(data)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := jsonOf(t, got), jsonOf(t, want); a != b {
		t.Fatalf("got %s\nwant %s", a, b)
	}
	again, err := manifest.EncodeRoot(got)
	if err != nil || !bytes.Equal(again, data) {
		t.Fatalf("encoded again it is different: %v", err)
	}
	if _, err := manifest.DecodeRoot(append(data, 0)); err == nil {
		t.Fatal("a root with a byte behind it is accepted")
	}
	for cut := range len(data) {
		if _, err := manifest.DecodeRoot(data[:cut]); err == nil {
			t.Fatalf("a root cut after %d of %d bytes is accepted", cut, len(data))
		}
	}
}
