package manifest_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// merged is the tree of tree, without its tombstone.
func merged() []manifest.Entry {
	all := tree()
	return all[:len(all)-1]
}

// at is where a path is among the entries of merged.
func at(all []manifest.Entry, path string) *manifest.Entry {
	i := slices.IndexFunc(all, func(e manifest.Entry) bool { return e.Path == path })
	return &all[i]
}

func file(path string) manifest.Entry {
	return manifest.Entry{Path: path, Kind: manifest.File, Mode: 0o644}
}

// reasonOf is why something was refused, empty if it was not.
func reasonOf(t *testing.T, err error) manifest.Reason {
	t.Helper()
	if err == nil {
		return ""
	}
	refused, ok := errors.AsType[*manifest.RefusedError](err)
	if !ok {
		t.Fatalf("got %v, want a refusal", err)
	}
	return refused.Reason
}

// hostile is a tree or a root that no reader may act on. Counts and packs of the
// root fit the changed entries, so that only what the case is about is wrong;
// change is called afterwards.
type hostile struct {
	name    string
	entries func(all []manifest.Entry) []manifest.Entry
	change  func(r *manifest.Root)
	want    manifest.Reason
}

func insert(e manifest.Entry) func([]manifest.Entry) []manifest.Entry {
	return func(all []manifest.Entry) []manifest.Entry {
		i, _ := slices.BinarySearchFunc(all, e, manifest.Compare)
		return slices.Insert(all, i, e)
	}
}

// edit changes the entry of a path in place.
func edit(path string, change func(e *manifest.Entry)) func([]manifest.Entry) []manifest.Entry {
	return func(all []manifest.Entry) []manifest.Entry {
		change(at(all, path))
		return all
	}
}

// chunk changes the first chunk of bin/run.
func chunk(change func(c *manifest.Chunk)) func([]manifest.Entry) []manifest.Entry {
	return edit("bin/run", func(e *manifest.Entry) { change(&e.Chunks[0]) })
}

func link(path, target string, kind manifest.Kind) func([]manifest.Entry) []manifest.Entry {
	return insert(manifest.Entry{Path: path, Kind: kind, Target: target})
}

var hostileEntries = []hostile{
	{"an empty path", insert(file("")), nil, manifest.BadPath},
	{"an absolute path", insert(file("/etc/passwd")), nil, manifest.BadPath},
	{"a parent segment", insert(file("../x")), nil, manifest.BadPath},
	{"a parent segment inside", insert(file("bin/../../x")), nil, manifest.BadPath},
	{"a parent segment at the end", insert(file("bin/..")), nil, manifest.BadPath},
	{"a dot segment", insert(file("bin/./x")), nil, manifest.BadPath},
	{"an empty segment", insert(file("bin//x")), nil, manifest.BadPath},
	{"a trailing slash", insert(file("bin/x/")), nil, manifest.BadPath},
	{"a zero byte", insert(file("bin/x\x00y")), nil, manifest.BadPath},
	{"a backslash", insert(file(`bin\..\x`)), nil, manifest.BadPath},
	{"a drive", insert(file("C:x")), nil, manifest.BadPath},
	{"a path that is too long", insert(file(strings.Repeat("abc/", 1024) + "x")), nil, manifest.BadPath},
	{"a name that is too long", insert(file(strings.Repeat("x", 256))), nil, manifest.BadPath},

	{"a path twice", insert(file("large")), nil, manifest.BadOrder},
	{"a path as file and directory", insert(manifest.Entry{Path: "large", Kind: manifest.Dir}), nil, manifest.BadOrder},
	{"paths out of order", func(all []manifest.Entry) []manifest.Entry { return append(all, file("zz")) }, nil, manifest.BadOrder},
	{"a file below a file", insert(file("large/x")), nil, manifest.BadParent},
	{"a file far below a file", insert(file("large/a/b/c")), nil, manifest.BadParent},
	{"a file through a symlink", insert(file("link/x")), nil, manifest.BadParent},
	{"a directory through a symlink", insert(manifest.Entry{Path: "link/x", Kind: manifest.Dir}), nil, manifest.BadParent},
	{"a file below a hardlink", insert(file("bin/run-again/x")), nil, manifest.BadParent},
	{"a tombstone", insert(manifest.Tombstone(manifest.Workspace, "zz")), nil, manifest.Unfinished},
	{"an unknown area", insert(manifest.Entry{Area: 2, Path: "zz", Kind: manifest.Dir}), nil, manifest.BadShape},
	{"no kind", insert(manifest.Entry{Path: "zz"}), nil, manifest.BadShape},
	{"an unknown kind", insert(manifest.Entry{Path: "zz", Kind: 5}), nil, manifest.BadShape},
	{"a mode with a type", edit("bin", func(e *manifest.Entry) { e.Mode = 0o40755 }), nil, manifest.BadShape},

	{"a hardlink to a later file", link("bin/a", "bin/run", manifest.Hardlink), nil, manifest.BadHardlink},
	{"a hardlink to itself", link("zz", "zz", manifest.Hardlink), nil, manifest.BadHardlink},
	{"a hardlink to nothing", link("zz", "bin/gone", manifest.Hardlink), nil, manifest.BadHardlink},
	{"a hardlink to a directory", link("zz", "bin", manifest.Hardlink), nil, manifest.BadHardlink},
	{"a hardlink to a symlink", link("zz", "link", manifest.Hardlink), nil, manifest.BadHardlink},
	{"a hardlink to a hardlink", link("zz", "bin/run-again", manifest.Hardlink), nil, manifest.BadHardlink},
	{"a hardlink out of the tree", link("zz", "../x", manifest.Hardlink), nil, manifest.BadHardlink},
	{"a hardlink to an absolute path", link("zz", "/etc/shadow", manifest.Hardlink), nil, manifest.BadHardlink},
	{"a hardlink into the other area", func(all []manifest.Entry) []manifest.Entry {
		return append(all, manifest.Entry{Area: manifest.GitState, Path: "zz", Kind: manifest.Hardlink, Target: "bin/run"})
	}, nil, manifest.BadHardlink},
	{"a symlink without text", link("zz", "", manifest.Symlink), nil, manifest.BadShape},
	{"a symlink with a zero byte", link("zz", "a\x00b", manifest.Symlink), nil, manifest.BadShape},
	{"a symlink that is too long", link("zz", strings.Repeat("x", manifest.MaxTarget+1), manifest.Symlink), nil, manifest.BadShape},
	{"a file with a target", edit("large", func(e *manifest.Entry) { e.Target = "x" }), nil, manifest.BadShape},
	{"a directory with a size", edit("bin", func(e *manifest.Entry) { e.Size = 1 }), nil, manifest.BadShape},
	{"a symlink with content", edit("link", func(e *manifest.Entry) { e.Chunks = tree()[1].Chunks }), nil, manifest.BadShape},
	{"an attribute without a name", edit("bin", func(e *manifest.Entry) { e.Xattrs = map[string][]byte{"": {1}} }), nil, manifest.BadShape},
	{"an attribute that is too long", edit("bin", func(e *manifest.Entry) { e.Xattrs = map[string][]byte{"user.a": make([]byte, manifest.MaxXattr)} }), nil, manifest.TooMuch},
	{"too many attributes", edit("bin", func(e *manifest.Entry) {
		e.Xattrs = map[string][]byte{}
		for i := range manifest.MaxXattrs + 1 {
			e.Xattrs[fmt.Sprint("user.", i)] = nil
		}
	}), nil, manifest.TooMuch},
}

var hostileContent = []hostile{
	{"a negative size", edit("bin-empty", func(e *manifest.Entry) { e.Size = -1 }), nil, manifest.BadShape},
	{"a size beyond what is safe", edit("bin-empty", func(e *manifest.Entry) { e.Size = 1 << 53 }), nil, manifest.BadShape},
	{"sizes whose sum is not safe", func(all []manifest.Entry) []manifest.Entry {
		return edit("large", func(e *manifest.Entry) { e.Size = manifest.MaxSize })(edit("bin-empty", func(e *manifest.Entry) { e.Size = 1 })(all))
	}, nil, manifest.TooMuch},
	{"a chunk beyond the file", chunk(func(c *manifest.Chunk) { c.Length++ }), nil, manifest.BadChunk},
	{"a chunk after the file", chunk(func(c *manifest.Chunk) { c.Offset = 2000 }), nil, manifest.BadChunk},
	{"a chunk before the file", chunk(func(c *manifest.Chunk) { c.Offset = -1 }), nil, manifest.BadChunk},
	{"a chunk whose end overflows", chunk(func(c *manifest.Chunk) { c.Offset, c.Length = 1, math.MaxInt64 }), nil, manifest.BadChunk},
	{"an empty chunk", chunk(func(c *manifest.Chunk) { c.Length = 0 }), nil, manifest.BadChunk},
	{"a chunk beyond its frame", chunk(func(c *manifest.Chunk) { c.Skip = 1001 }), nil, manifest.BadChunk},
	{"a chunk before its frame", chunk(func(c *manifest.Chunk) { c.Skip = -1 }), nil, manifest.BadChunk},
	{"a chunk whose place overflows", chunk(func(c *manifest.Chunk) { c.Skip = math.MaxInt64 }), nil, manifest.BadChunk},
	{"chunks that overlap", edit("large", func(e *manifest.Entry) { e.Chunks[1].Offset = 4<<20 - 1 }), nil, manifest.BadChunk},
	{"chunks out of order", edit("large", func(e *manifest.Entry) { slices.Reverse(e.Chunks) }), nil, manifest.BadChunk},
	{"too many chunks", edit("large", func(e *manifest.Entry) { e.Chunks = slices.Repeat(e.Chunks[:1], manifest.MaxChunks+1) }), nil, manifest.TooMuch},
	{"a frame that decompresses to more than a reader holds", chunk(func(c *manifest.Chunk) { c.Frame.Raw = manifest.MaxFrame + 1 }), nil, manifest.BadFrame},
	{"a frame of nothing", chunk(func(c *manifest.Chunk) { c.Frame.Raw = 0 }), nil, manifest.BadFrame},
	{"a frame that is stored as nothing", chunk(func(c *manifest.Chunk) { c.Frame.Stored = 0 }), nil, manifest.BadFrame},
	{"a frame beyond its pack", chunk(func(c *manifest.Chunk) { c.Frame.Offset = 4101 }), nil, manifest.BadFrame},
	{"a frame before its pack", chunk(func(c *manifest.Chunk) { c.Frame.Offset = -1 }), nil, manifest.BadFrame},
	{"a frame whose end overflows", chunk(func(c *manifest.Chunk) { c.Frame.Offset = math.MaxInt64 }), nil, manifest.BadFrame},
	{"frames of one place and different sizes", chunk(func(c *manifest.Chunk) { c.Frame.Raw++ }), nil, manifest.BadFrame},
	{"frames that overlap", chunk(func(c *manifest.Chunk) { c.Frame.Offset-- }), nil, manifest.BadFrame},
	{"a pack that is too large", chunk(func(c *manifest.Chunk) { c.Pack.Size = manifest.MaxPack + 1 }), nil, manifest.BadPack},
	{"a pack under a negative fence", chunk(func(c *manifest.Chunk) { c.Pack.Fence = -1 }), nil, manifest.BadPack},
}

var hostileRoots = []hostile{
	{"a pack that is not listed", nil, func(r *manifest.Root) { r.Packs = r.Packs[1:] }, manifest.BadPack},
	{"a pack that is not listed, as large as one that is", chunk(func(c *manifest.Chunk) { c.Pack.SHA256 = digest(77) }), func(r *manifest.Root) {
		i := slices.IndexFunc(r.Packs, func(p manifest.PackRef) bool { return p.SHA256 == digest(77) })
		r.Packs = slices.Delete(r.Packs, i, i+1)
	}, manifest.BadPack},
	{"a pack that nothing needs", nil, func(r *manifest.Root) {
		r.Packs = append(r.Packs, manifest.PackRef{Fence: 9, Size: 1})
		r.Counts.StoredBytes++
	}, manifest.BadPack},
	{"a pack of another size than listed", nil, func(r *manifest.Root) { r.Packs[0].Size++ }, manifest.BadPack},
	{"a pack twice", nil, func(r *manifest.Root) { r.Packs = append(r.Packs, r.Packs[1]) }, manifest.BadPack},
	{"packs out of order", nil, func(r *manifest.Root) { slices.Reverse(r.Packs) }, manifest.BadPack},
	{"a pack of another thread", nil, func(r *manifest.Root) { r.Packs[0].Owner = "other" }, manifest.BadPack},
	{"a layer of another thread", nil, func(r *manifest.Root) { r.Layers[0].Owner = "other" }, manifest.BadPack},
	{"a layer twice", nil, func(r *manifest.Root) { r.Layers = append(r.Layers, r.Layers[0]) }, manifest.BadPack},
	{"a layer that is too large", nil, func(r *manifest.Root) { r.Layers[0].Size = manifest.MaxLayer + 1 }, manifest.BadPack},
	{"an empty layer", nil, func(r *manifest.Root) { r.Layers[0].Size = 0 }, manifest.BadPack},
	{"too many layers", nil, func(r *manifest.Root) { r.Layers = make([]manifest.PackRef, manifest.MaxLayers+1) }, manifest.TooMuch},
	{"too many packs", nil, func(r *manifest.Root) { r.Packs = make([]manifest.PackRef, manifest.MaxPacks+1) }, manifest.TooMuch},
	{"a pack that is listed as too large", nil, func(r *manifest.Root) { r.Packs[1].Size = manifest.MaxPack + 1 }, manifest.BadPack},
	{"an owner that is no text", nil, func(r *manifest.Root) { r.Packs[0].Owner = "\xff" }, manifest.BadPack},
	{"no id", nil, func(r *manifest.Root) { r.ID = "" }, manifest.BadRoot},
	{"an id that is no text", nil, func(r *manifest.Root) { r.ID = "\xed\xa0\x80" }, manifest.BadRoot},
	{"itself as parent", nil, func(r *manifest.Root) { r.Parent = r.ID }, manifest.BadRoot},
	{"a negative number of skipped entries", nil, func(r *manifest.Root) { r.SkippedMore = -1 }, manifest.BadRoot},
	{"a digest of secrets that is cut", nil, func(r *manifest.Root) { r.Redaction.Digest = []byte("short") }, manifest.BadRoot},
	{"a rule of no kind there is", nil, func(r *manifest.Root) { r.Policy.Include = []manifest.Rule{{Kinds: []manifest.Kind{7}}} }, manifest.BadRoot},

	{"too few files", nil, func(r *manifest.Root) { r.Counts.Files-- }, manifest.BadCounts},
	{"too many files", nil, func(r *manifest.Root) { r.Counts.Files++ }, manifest.BadCounts},
	{"too few directories", nil, func(r *manifest.Root) { r.Counts.Dirs-- }, manifest.BadCounts},
	{"too many symlinks", nil, func(r *manifest.Root) { r.Counts.Symlinks++ }, manifest.BadCounts},
	{"hardlinks that are not counted", nil, func(r *manifest.Root) { r.Counts.Hardlinks = 0 }, manifest.BadCounts},
	{"links out that are not counted", nil, func(r *manifest.Root) { r.Counts.OutwardLinks = 0 }, manifest.BadCounts},
	{"fewer bytes than there are", nil, func(r *manifest.Root) { r.Counts.Bytes-- }, manifest.BadCounts},
	{"more bytes than there are", nil, func(r *manifest.Root) { r.Counts.Bytes++ }, manifest.BadCounts},
	{"stored bytes that are not those of the packs", nil, func(r *manifest.Root) { r.Counts.StoredBytes++ }, manifest.BadCounts},
	{"a negative count", nil, func(r *manifest.Root) { r.Counts.Files = -1 }, manifest.BadCounts},
	{"a count beyond what is safe", nil, func(r *manifest.Root) { r.Counts.Bytes = 1 << 53 }, manifest.BadCounts},
	{"more redacted files than files", nil, func(r *manifest.Root) { r.Counts.RedactedFiles = r.Counts.Files + 1 }, manifest.BadCounts},
	{"more entries than a tree may have", nil, func(r *manifest.Root) { r.Counts.Files = manifest.MaxEntries }, manifest.TooMuch},
}

func TestCheckRefuses(t *testing.T) {
	if err := manifest.Check(rootOf(t, merged()...), manifest.Entries(merged()...)); err != nil {
		t.Fatalf("the tree that the cases begin with: %v", err)
	}
	for _, test := range slices.Concat(hostileEntries, hostileContent, hostileRoots) {
		t.Run(test.name, func(t *testing.T) {
			all := merged()
			if test.entries != nil {
				all = test.entries(all)
			}
			root := rootOf(t, merged()...)
			if counts, packs, err := manifest.Summarize(manifest.Entries(all...)); err == nil {
				root.Counts, root.Packs = counts, packs
			}
			if test.change != nil {
				test.change(&root)
			}
			err := manifest.Check(root, manifest.Entries(all...))
			if got := reasonOf(t, err); got != test.want {
				t.Errorf("got %q (%v), want %q", got, err, test.want)
			}
		})
	}
}

// TestWriterRefusesWhatALayerMayNotHold: what is wrong with an entry on its own is
// refused when it is written, and when it is read.
func TestWriterRefusesWhatALayerMayNotHold(t *testing.T) {
	alone := []manifest.Reason{manifest.BadPath, manifest.BadShape, manifest.BadChunk, manifest.BadOrder}
	for _, test := range slices.Concat(hostileEntries, hostileContent) {
		if !slices.Contains(alone, test.want) {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			var b bytes.Buffer
			w := manifest.NewLayerWriter(&b)
			var first error
			var accepted []manifest.Entry
			for _, e := range test.entries(merged()) {
				if err := w.Add(e); err == nil {
					accepted = append(accepted, e)
				} else if first == nil {
					first = err
				}
			}
			if got := reasonOf(t, first); got != test.want {
				t.Errorf("got %q (%v), want %q", got, first, test.want)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			got, err := collect(manifest.ReadLayer(&b))
			if err != nil {
				t.Fatalf("the layer without the entry: %v", err)
			}
			compare(t, got, accepted)
		})
	}
}

func TestCheckWithOptions(t *testing.T) {
	own := rootOf(t, merged()...)
	foreign := rootOf(t, merged()...)
	foreign.Layers[0].Owner, foreign.Packs[1].Owner = "source", "source"
	twins := append([]manifest.Entry{file("A"), file("a")}, file("e\u0301"), file("\u00e9"), file("\u212a"))
	slices.SortFunc(twins, manifest.Compare)
	tests := []struct {
		name    string
		root    manifest.Root
		entries []manifest.Entry
		options manifest.CheckOptions
		want    manifest.Reason
	}{
		{"packs of a thread that is allowed", foreign, merged(), manifest.CheckOptions{Owners: func(o string) bool { return o == "source" }}, ""},
		{"packs of a thread that is not", foreign, merged(), manifest.CheckOptions{Owners: func(o string) bool { return o == "friend" }}, manifest.BadPack},
		{"as many entries as allowed", own, merged(), manifest.CheckOptions{MaxEntries: int64(len(merged()))}, ""},
		{"an entry too many", own, merged(), manifest.CheckOptions{MaxEntries: int64(len(merged())) - 1}, manifest.TooMuch},
		{"as many bytes as allowed", own, merged(), manifest.CheckOptions{MaxBytes: own.Counts.Bytes}, ""},
		{"a byte too many", own, merged(), manifest.CheckOptions{MaxBytes: own.Counts.Bytes - 1}, manifest.TooMuch},
		{"layers as large as allowed", own, merged(), manifest.CheckOptions{MaxLayers: 5000}, ""},
		{"layers that are too large", own, merged(), manifest.CheckOptions{MaxLayers: 4999}, manifest.TooMuch},
		{"twins that nobody asked about", rootOf(t, twins...), twins, manifest.CheckOptions{}, ""},
		{"twins that are refused", rootOf(t, twins...), twins, manifest.CheckOptions{RefuseTwins: true}, manifest.Twin},
		{"no twins", own, merged(), manifest.CheckOptions{RefuseTwins: true}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := manifest.CheckWith(test.root, manifest.Entries(test.entries...), test.options)
			if got := reasonOf(t, err); got != test.want {
				t.Errorf("got %q (%v), want %q", got, err, test.want)
			}
		})
	}
	var told []string
	if err := manifest.CheckWith(rootOf(t, twins...), manifest.Entries(twins...), manifest.CheckOptions{Twins: func(p string) { told = append(told, p) }}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"a", "\u00e9"}; !slices.Equal(told, want) {
		t.Errorf("twins %q, want %q", told, want)
	}
}

// TestLayersCannotHideAnEntry: what one layer may say is refused where it meets
// another, in either order.
func TestLayersCannotHideAnEntry(t *testing.T) {
	link := manifest.Entry{Path: "a", Kind: manifest.Symlink, Target: "/etc"}
	inside := file("a/passwd")
	gone := manifest.Tombstone(manifest.Workspace, "a/passwd")
	dir := manifest.Entry{Path: "a", Kind: manifest.Dir}
	hardlink := manifest.Entry{Path: "b", Kind: manifest.Hardlink, Target: "a"}
	tests := []struct {
		name   string
		layers [][]manifest.Entry
		want   manifest.Reason
	}{
		{"a link, then a file through it", [][]manifest.Entry{{link}, {inside}}, manifest.BadParent},
		{"a file, then a link above it", [][]manifest.Entry{{dir, inside}, {link}}, manifest.BadParent},
		{"a directory whose tombstone leaves what is below", [][]manifest.Entry{{dir, inside}, {manifest.Tombstone(0, "a")}}, ""},
		{"a link instead of a directory whose file is gone", [][]manifest.Entry{{dir, inside}, {link, gone}}, ""},
		{"a hardlink whose file is gone", [][]manifest.Entry{{file("a"), hardlink}, {manifest.Tombstone(0, "a")}}, manifest.BadHardlink},
		{"a hardlink whose file became a directory", [][]manifest.Entry{{file("a"), hardlink}, {dir}}, manifest.BadHardlink},
		{"a hardlink whose file was written again", [][]manifest.Entry{{file("a"), hardlink}, {file("a")}}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			all, err := collect(manifest.Merge(layersOf(t, test.layers...)...))
			if err != nil {
				t.Fatal(err)
			}
			err = manifest.Check(rootOf(t, all...), manifest.Merge(layersOf(t, test.layers...)...))
			if got := reasonOf(t, err); got != test.want {
				t.Errorf("got %q (%v), want %q", got, err, test.want)
			}
		})
	}
}

func TestCheckPassesOnWhatReadingAnswers(t *testing.T) {
	broken := errors.New("line is down")
	failing := func(yield func(manifest.Entry, error) bool) {
		_ = yield(merged()[0], nil) && yield(manifest.Entry{}, broken)
	}
	root := rootOf(t, merged()...)
	if err := manifest.Check(root, failing); !errors.Is(err, broken) {
		t.Errorf("check: got %v", err)
	}
	if err := manifest.Check(root, manifest.Merge(manifest.Entries(), failing)); !errors.Is(err, broken) {
		t.Errorf("merge: got %v", err)
	}
	if _, err := collect(manifest.Diff(failing, manifest.Entries())); !errors.Is(err, broken) {
		t.Errorf("diff: got %v", err)
	}
	if _, err := collect(manifest.Delta(manifest.Entries(), failing)); !errors.Is(err, broken) {
		t.Errorf("delta: got %v", err)
	}
	if _, _, err := manifest.Summarize(failing); !errors.Is(err, broken) {
		t.Errorf("summarize: got %v", err)
	}
}

// TestWriterRefusesWhatNoTreeCouldHold: what is wrong whatever else is in the tree.
func TestWriterRefusesWhatNoTreeCouldHold(t *testing.T) {
	chunked := func(change func(c *manifest.Chunk)) manifest.Entry {
		all := merged()
		e := *at(all, "bin/run")
		e.Chunks = slices.Clone(e.Chunks)
		change(&e.Chunks[0])
		return e
	}
	marked := manifest.Tombstone(manifest.Workspace, "gone")
	marked.Mode = 0o644
	tests := []struct {
		name  string
		entry manifest.Entry
		want  manifest.Reason
	}{
		{"a tombstone with a mode", marked, manifest.BadShape},
		{"a hardlink to itself", manifest.Entry{Path: "a", Kind: manifest.Hardlink, Target: "a"}, manifest.BadHardlink},
		{"a hardlink to a later file", manifest.Entry{Path: "a", Kind: manifest.Hardlink, Target: "b"}, manifest.BadHardlink},
		{"a hardlink out of the tree", manifest.Entry{Path: "b", Kind: manifest.Hardlink, Target: "../a"}, manifest.BadHardlink},
		{"a hardlink to nothing", manifest.Entry{Path: "b", Kind: manifest.Hardlink}, manifest.BadHardlink},
		{"a pack of nothing", chunked(func(c *manifest.Chunk) { c.Pack.Size = 0 }), manifest.BadPack},
		{"a pack that is too large", chunked(func(c *manifest.Chunk) { c.Pack.Size = manifest.MaxPack + 1 }), manifest.BadPack},
		{"a pack under a negative fence", chunked(func(c *manifest.Chunk) { c.Pack.Fence = -1 }), manifest.BadPack},
		{"a frame beyond its pack", chunked(func(c *manifest.Chunk) { c.Frame.Offset = 4101 }), manifest.BadFrame},
		{"a frame that is too large", chunked(func(c *manifest.Chunk) { c.Frame.Raw = manifest.MaxFrame + 1 }), manifest.BadFrame},
		{"a frame that is stored as too much", chunked(func(c *manifest.Chunk) { c.Pack.Size, c.Frame.Stored = manifest.MaxPack, manifest.MaxFrameStored+1 }), manifest.BadFrame},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := manifest.NewLayerWriter(io.Discard).Add(test.entry)
			if got := reasonOf(t, err); got != test.want {
				t.Errorf("got %q (%v), want %q", got, err, test.want)
			}
		})
	}
}

// TestCheckStopsAtTheFirstEntryTooMany: who lies about counts does not make anybody
// read on.
func TestCheckStopsAtTheFirstEntryTooMany(t *testing.T) {
	root := rootOf(t, file("a"), file("b"))
	read := 0
	endless := func(yield func(manifest.Entry, error) bool) {
		for {
			read++
			if !yield(file(fmt.Sprintf("file-%09d", read)), nil) {
				return
			}
		}
	}
	if got := reasonOf(t, manifest.Check(root, endless)); got != manifest.BadCounts || read != 3 {
		t.Errorf("got %q after %d entries", got, read)
	}
}

// TestCheckLimitsWhatItRemembers: as many frames as the format allows, and one
// more.
func TestCheckLimitsWhatItRemembers(t *testing.T) {
	pack := manifest.PackRef{Fence: 1, SHA256: digest(1), Size: manifest.MaxPack}
	var all []manifest.Entry
	for i := range manifest.MaxFrames {
		if i%manifest.MaxChunks == 0 {
			all = append(all, manifest.Entry{Path: fmt.Sprintf("file-%02d", len(all)), Kind: manifest.File, Size: manifest.MaxChunks})
		}
		e := &all[len(all)-1]
		e.Chunks = append(e.Chunks, manifest.Chunk{Offset: int64(len(e.Chunks)), Length: 1, Pack: pack, Frame: manifest.Frame{Offset: int64(i), Stored: 1, Raw: 1}})
	}
	if err := manifest.Check(rootOf(t, all...), manifest.Entries(all...)); err != nil {
		t.Fatal(err)
	}
	all = append(all, manifest.Entry{Path: "last", Kind: manifest.File, Size: 1, Chunks: []manifest.Chunk{
		{Length: 1, Pack: pack, Frame: manifest.Frame{Offset: manifest.MaxFrames, Stored: 1, Raw: 1}}}})
	if got := reasonOf(t, manifest.Check(rootOf(t, all...), manifest.Entries(all...))); got != manifest.TooMuch {
		t.Errorf("one frame more: got %q", got)
	}
}

// TestEncoderRefusesWhatCheckRefusesOfARoot: what is wrong with a root on its own
// is not written.
func TestEncoderRefusesWhatCheckRefusesOfARoot(t *testing.T) {
	needTree := []string{"not listed", "nothing needs", "another size", "of another thread", "too few", "too many files", "too many symlinks", "not counted", "than there are", "not those of the packs", "than files", "than a tree may have"}
	seen := 0
	for _, test := range hostileRoots {
		if slices.ContainsFunc(needTree, func(part string) bool { return strings.Contains(test.name, part) }) {
			continue
		}
		seen++
		t.Run(test.name, func(t *testing.T) {
			root := rootOf(t, merged()...)
			test.change(&root)
			_, err := manifest.EncodeRoot(root)
			if got := reasonOf(t, err); got != test.want {
				t.Errorf("got %q (%v), want %q", got, err, test.want)
			}
		})
	}
	if seen < 15 {
		t.Errorf("looked at %d roots", seen)
	}
}

func TestSummarizeRefusesSumsThatAreNotSafe(t *testing.T) {
	large := file("a")
	large.Size = manifest.MaxSize
	small := file("b")
	small.Size = 1
	if _, _, err := manifest.Summarize(manifest.Entries(large, small)); reasonOf(t, err) != manifest.TooMuch {
		t.Errorf("got %v", err)
	}
}
