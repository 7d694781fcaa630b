package manifest_test

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// pinned reads a file that was written once, by the first writer of its version,
// and is never written again.
func pinned(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "v1", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// example is the checkpoint that docs/checkpoint-format.md shows byte by byte. Its
// pack holds one frame with the bytes "hello, world\nabc".
func example(t testing.TB) (manifest.Root, []manifest.Entry) {
	t.Helper()
	pack, layer := pinned(t, "pack"), pinned(t, "layer")
	in := manifest.PackRef{Fence: 3, SHA256: sha256.Sum256(pack), Size: int64(len(pack))}
	frame := manifest.Frame{Offset: 0, Stored: int64(len(pack)), Raw: 16}
	hello := manifest.Chunk{Length: 13, SHA256: sha256.Sum256([]byte("hello, world\n")), Pack: in, Frame: frame}
	abc := manifest.Chunk{Offset: 4096, Length: 3, SHA256: sha256.Sum256([]byte("abc")), Pack: in, Frame: frame, Skip: 13}
	const second = 1_000_000_000
	const noon = 1_700_000_000 * second
	entries := []manifest.Entry{
		{Path: "bin", Kind: manifest.Dir, Mode: 0o755, UID: 1000, GID: 1000, MTime: noon, CTime: noon, Inode: 100, Device: 66},
		{Path: "bin/hello", Kind: manifest.File, Mode: 0o755, UID: 1000, GID: 1000, MTime: noon - 2*second, CTime: noon, Inode: 101, Device: 66, Size: 13, Chunks: []manifest.Chunk{hello}},
		{Path: "bin/hi", Kind: manifest.Symlink, Mode: 0o777, UID: 1000, GID: 1000, MTime: noon, CTime: noon, Inode: 99, Device: 66, Target: "hello"},
		{Path: "data", Kind: manifest.File, Mode: 0o640, UID: 1000, GID: 100, MTime: noon, CTime: noon + 5, Inode: 102, Device: 66, Size: 1 << 20,
			Xattrs: map[string][]byte{"user.a": {1, 2}}, Chunks: []manifest.Chunk{abc}},
		manifest.Tombstone(manifest.Workspace, "old"),
	}
	root := manifest.Root{
		Version: 1, ID: "checkpoint-2", Parent: "checkpoint-1", CreatedAt: noon / 1_000_000,
		Layers: []manifest.PackRef{
			{Fence: 2, SHA256: sha256.Sum256([]byte("base")), Size: 4096, Owner: "source"},
			{Fence: 3, SHA256: sha256.Sum256(layer), Size: int64(len(layer))},
		},
		Packs: []manifest.PackRef{in},
		Policy: manifest.Policy{Defaults: true, Xattrs: true, Git: "none", Exclude: []manifest.Rule{
			{Kinds: []manifest.Kind{manifest.Dir}, Segments: []string{"cache"}},
		}},
		Counts:  manifest.Counts{Files: 2, Dirs: 1, Symlinks: 1, Bytes: 1<<20 + 13, StoredBytes: int64(len(pack))},
		Skipped: []manifest.Skipped{{Path: "run/agent.sock", Reason: "special-file"}},
	}
	return root, entries
}

// TestVersion1IsReadForever: the bytes of version 1 mean what they meant when they
// were written. A later version's reader passes this test as well; its writer need
// not write them.
func TestVersion1IsReadForever(t *testing.T) {
	want, entries := example(t)
	root, err := manifest.DecodeRoot(pinned(t, "root"))
	if err != nil {
		t.Fatal(err)
	}
	if a, b := jsonOf(t, root), jsonOf(t, want); a != b {
		t.Errorf("got %s\nwant %s", a, b)
	}
	got, err := collect(manifest.OpenLayer(bytes.NewReader(pinned(t, "layer")), root.Layers[1]))
	if err != nil {
		t.Fatal(err)
	}
	compare(t, got, entries)
	if err := manifest.CheckWith(root, manifest.Merge(manifest.Entries(), manifest.Entries(got...)), manifest.CheckOptions{Owners: func(owner string) bool { return owner == "source" }}); err != nil {
		t.Error(err)
	}
	all, err := collect(manifest.ReadLayer(bytes.NewReader(pinned(t, "kinds.layer"))))
	if err != nil {
		t.Fatal(err)
	}
	compare(t, all, tree())
}

// TestVersion1IsWrittenAsPinned holds as long as Version is 1. Blocks are compared
// as they are before compression, which may change with its library.
func TestVersion1IsWrittenAsPinned(t *testing.T) {
	want, entries := example(t)
	data, err := manifest.EncodeRoot(want)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(data, pinned(t, "root")) {
		t.Errorf("root: got %x", data)
	}
	for name, list := range map[string][]manifest.Entry{"layer": entries, "kinds.layer": tree()} {
		got, want := readBlocks(t, encodeLayer(t, list...)), readBlocks(t, pinned(t, name))
		if !bytes.Equal(bytes.Join(got, nil), bytes.Join(want, nil)) {
			t.Errorf("%s: got %x\nwant %x", name, got, want)
		}
	}
}
