package manifest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"testing"
	"testing/synctest"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// encodeLayer writes entries to a layer.
func encodeLayer(t testing.TB, entries ...manifest.Entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := manifest.NewLayerWriter(&b)
	for _, e := range entries {
		if err := w.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func collect[T any](seq iter.Seq2[T, error]) ([]T, error) {
	var all []T
	for v, err := range seq {
		if err != nil {
			return all, err
		}
		all = append(all, v)
	}
	return all, nil
}

func digest(n int) (d manifest.Digest) {
	copy(d[:], fmt.Sprintf("%032d", n))
	return d
}

// tree is a small tree with an entry of every kind in both areas.
func tree() []manifest.Entry {
	one := manifest.PackRef{Fence: 3, SHA256: digest(1), Size: 5000}
	two := manifest.PackRef{Fence: 4, SHA256: digest(2), Size: 9 << 20}
	frame := manifest.Frame{Offset: 100, Stored: 900, Raw: 3000}
	large := manifest.Frame{Offset: 0, Stored: 4 << 20, Raw: 4 << 20}
	next := manifest.Frame{Offset: 4 << 20, Stored: 2 << 20, Raw: 4 << 20}
	return []manifest.Entry{
		{Path: "bin", Kind: manifest.Dir, Mode: 0o755, UID: 1000, GID: 1000, MTime: 1_700_000_000_123_456_789, CTime: 1_700_000_000_123_456_789, Inode: 12, Device: 66},
		{Path: "bin/run", Kind: manifest.File, Mode: 0o4755, UID: 1000, GID: 1000, MTime: -5, CTime: 1_700_000_001_000_000_000, Inode: 13, Device: 66, Size: 2000,
			Chunks: []manifest.Chunk{{Length: 2000, SHA256: digest(10), Pack: one, Frame: frame}}},
		{Path: "bin/run-again", Kind: manifest.Hardlink, Mode: 0o4755, MTime: -5, Inode: 13, Device: 66, Target: "bin/run"},
		{Path: "bin-empty", Kind: manifest.File, Mode: 0o600, Inode: 14, Device: 66, Xattrs: map[string][]byte{"user.b": {}, "user.a": {0, 1}}},
		{Path: "large", Kind: manifest.File, Mode: 0o644, Inode: 1 << 63, Device: 66, Size: 20 << 20, Chunks: []manifest.Chunk{
			{Offset: 0, Length: 4 << 20, SHA256: digest(11), Pack: two, Frame: large},
			{Offset: 8 << 20, Length: 3 << 20, SHA256: digest(12), Pack: two, Frame: next, Skip: 1 << 20}}},
		{Path: "link", Kind: manifest.Symlink, Mode: 0o777, Target: "../../outside"},
		{Path: "na\xffme", Kind: manifest.File, Size: 1000, Chunks: []manifest.Chunk{{Length: 1000, SHA256: digest(13), Pack: one, Frame: frame, Skip: 2000}}},
		{Area: manifest.GitState, Path: "HEAD", Kind: manifest.File, Size: 7, Chunks: []manifest.Chunk{{Length: 7, SHA256: digest(14), Pack: one, Frame: manifest.Frame{Stored: 20, Raw: 7}}}},
		{Area: manifest.GitState, Path: "bin", Deleted: true},
	}
}

func TestLayerRoundTrip(t *testing.T) {
	want := tree()
	got, err := collect(manifest.ReadLayer(bytes.NewReader(encodeLayer(t, want...))))
	if err != nil {
		t.Fatal(err)
	}
	compare(t, got, want)
}

// failer is a test, or a property's.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func jsonOf(t failer, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func compare(t failer, got, want []manifest.Entry) {
	t.Helper()
	for i := range min(len(got), len(want)) {
		if !got[i].Equal(want[i]) {
			t.Fatalf("entry %d: got %+v\nwant %+v", i, got[i], want[i])
		}
	}
	if len(got) != len(want) {
		t.Fatalf("got %d entries, want %d", len(got), len(want))
	}
}

// rootOf is a root that fits the tree of the entries.
func rootOf(t testing.TB, merged ...manifest.Entry) manifest.Root {
	t.Helper()
	counts, packs, err := manifest.Summarize(manifest.Entries(merged...))
	if err != nil {
		t.Fatal(err)
	}
	return manifest.Root{
		Version: manifest.Version, ID: "checkpoint-1", Parent: "checkpoint-0", CreatedAt: 1_700_000_000_000, Packs: packs, Counts: counts,
		Layers: []manifest.PackRef{{Fence: 3, SHA256: digest(90), Size: 5000}},
	}
}

// layersOf encodes lists of entries as layers, and reads them.
func layersOf(t testing.TB, lists ...[]manifest.Entry) []iter.Seq2[manifest.Entry, error] {
	t.Helper()
	layers := make([]iter.Seq2[manifest.Entry, error], len(lists))
	for i, entries := range lists {
		layers[i] = manifest.ReadLayer(bytes.NewReader(encodeLayer(t, entries...)))
	}
	return layers
}

// TestLayersBelongToNoBubble of synctest, whoever is the first to write and read one.
func TestLayersBelongToNoBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if _, err := collect(manifest.ReadLayer(bytes.NewReader(encodeLayer(t, tree()...)))); err != nil {
			t.Error(err)
		}
	})
	if _, err := collect(manifest.ReadLayer(bytes.NewReader(encodeLayer(t, tree()...)))); err != nil {
		t.Error(err)
	}
}
