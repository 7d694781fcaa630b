package archive_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/archive"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// shop is where the layers of a test are.
type shop map[string][]byte

func (s shop) open(_ context.Context, p core.PackRef) (io.ReadCloser, error) {
	data, ok := s[p.SHA256]
	if !ok {
		return nil, core.ErrNotFound
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

// put stores an object and names it.
func (s shop) put(data []byte) manifest.PackRef {
	sum := manifest.Digest(sha256.Sum256(data))
	s[sum.String()] = data
	return manifest.PackRef{Fence: 1, SHA256: sum, Size: int64(len(data))}
}

func file(path, text string, pack manifest.PackRef) manifest.Entry {
	size := int64(len(text))
	return manifest.Entry{Path: path, Kind: manifest.File, Mode: 0o644, Size: size, Chunks: []manifest.Chunk{{
		Length: size, SHA256: sha256.Sum256([]byte(text)), Pack: pack, Frame: manifest.Frame{Stored: size, Raw: size},
	}}}
}

// root makes a checkpoint of one layer.
func (s shop) root(t *testing.T, id string, entries ...manifest.Entry) []byte {
	t.Helper()
	var layer bytes.Buffer
	w := manifest.NewLayerWriter(&layer)
	for _, e := range entries {
		if err := w.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	counts, packs, err := manifest.Summarize(manifest.Entries(entries...))
	if err != nil {
		t.Fatal(err)
	}
	return encode(t, manifest.Root{
		Version: manifest.Version, ID: id, CreatedAt: 5, Layers: []manifest.PackRef{s.put(layer.Bytes())}, Packs: packs, Counts: counts,
		Policy: manifest.Policy{Defaults: true},
	})
}

func encode(t *testing.T, r manifest.Root) []byte {
	t.Helper()
	data, err := manifest.EncodeRoot(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func decode(t *testing.T, data []byte) manifest.Root {
	t.Helper()
	r, err := manifest.DecodeRoot(data)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestFactsAreTheRoots(t *testing.T) {
	s := shop{}
	pack := s.put([]byte("text"))
	data := s.root(t, "c1", file("a", "text", pack))
	got, err := archive.Reader{}.Facts(data)
	if err != nil {
		t.Fatal(err)
	}
	want := core.PackRef{Fence: 1, SHA256: pack.SHA256.String(), Size: 4}
	if got.ID != "c1" || got.Files != 1 || got.Bytes != 4 || len(got.Layers) != 1 || !slices.Equal(got.Packs, []core.PackRef{want}) {
		t.Errorf("facts = %+v", got)
	}
	if needed := got.Needed(); len(needed) != 2 || needed[1] != want {
		t.Errorf("needed = %+v", needed)
	}
}

func TestSealSaysWhatOnlyTheServerSays(t *testing.T) {
	s := shop{}
	r := decode(t, s.root(t, "claimed", file("a", "text", s.put([]byte("text")))))
	r.Layers[0].Owner, r.Packs[0].Owner, r.Git = "victim", "victim", "kept"
	sealed, err := archive.Reader{}.Seal(encode(t, r), core.ManifestSeal{ID: "mine", Parent: "before", CreatedAt: 7, Owner: func(p core.PackRef) core.ThreadID {
		if p.Owner != "victim" {
			t.Errorf("asked for the owner of %+v", p)
		}
		if p.SHA256 == r.Layers[0].SHA256.String() {
			return "owner"
		}
		return ""
	}})
	if err != nil {
		t.Fatal(err)
	}
	got := decode(t, sealed)
	if got.ID != "mine" || got.Parent != "before" || got.CreatedAt != 5 || got.Layers[0].Owner != "owner" || got.Packs[0].Owner != "" || got.Git != "kept" {
		t.Errorf("sealed = %+v", got)
	}
}

func TestCheckTellsBadInputFromAFaultOfTheStore(t *testing.T) {
	s := shop{}
	pack := s.put([]byte("text"))
	good := s.root(t, "c1", file("a", "text", pack))
	if err := (archive.Reader{}).Check(t.Context(), good, s.open); err != nil {
		t.Errorf("a sound root: %v", err)
	}
	layer := decode(t, good).Layers[0].SHA256.String()
	change := func(do func(r *manifest.Root)) []byte {
		r := decode(t, good)
		do(&r)
		return encode(t, r)
	}
	for name, bad := range map[string][]byte{
		"nothing": nil, "text": []byte("text"), "a root cut short": good[:len(good)-1],
		"counts that do not add up": change(func(r *manifest.Root) { r.Counts.Bytes++ }),
		"a pack left out":           change(func(r *manifest.Root) { r.Packs = nil }),
		"layers too large": change(func(r *manifest.Root) {
			r.Layers[0].Size = archive.MaxLayers
			r.Layers = append(r.Layers, s.put([]byte("another")))
		}),
	} {
		if err := (archive.Reader{}).Check(t.Context(), bad, s.open); !isInvalid(err) {
			t.Errorf("%s: %v, want invalid-entry", name, err)
		}
	}
	damaged := shop{layer: append(bytes.Clone(s[layer]), 0)}
	if err := (archive.Reader{}).Check(t.Context(), good, damaged.open); !isInvalid(err) {
		t.Errorf("a layer of other bytes: %v, want invalid-entry", err)
	}
	if err := (archive.Reader{}).Check(t.Context(), good, shop{}.open); !errors.Is(err, core.ErrNotFound) || isInvalid(err) {
		t.Errorf("a layer that cannot be read: %v, want the store's error", err)
	}
	owned := change(func(r *manifest.Root) { r.Layers[0].Owner = "other" })
	if err := (archive.Reader{}).Check(t.Context(), owned, s.open); err != nil {
		t.Errorf("an owner that the server set: %v", err)
	}
}

func isInvalid(err error) bool {
	e, ok := errors.AsType[*core.InvalidError](err)
	return ok && e.Code == "invalid-entry"
}

func TestDiffTellsWhatChanged(t *testing.T) {
	s := shop{}
	one, two := s.put([]byte("one!")), s.put([]byte("two"))
	mode := file("m", "one!", one)
	mode.Mode = 0o755
	from := s.root(t, "a", file("c", "one!", one), file("g", "one!", one), file("m", "one!", one), file("s", "two", two))
	to := s.root(t, "b", file("a", "two", two), file("c", "two", two), mode, file("s", "two", two))
	want := []core.TreeChange{
		{Path: "a", Kind: "added", To: 3}, {Path: "c", Kind: "changed", From: 4, To: 3}, {Path: "g", Kind: "removed", From: 4}, {Path: "m", Kind: "mode", From: 4, To: 4},
	}
	got, more, err := archive.Reader{}.Diff(t.Context(), core.TreeSource{Root: from, Open: s.open}, core.TreeSource{Root: to, Open: s.open}, 4)
	if err != nil || more || !slices.Equal(got, want) {
		t.Errorf("diff = %+v, %t, %v", got, more, err)
	}
	got, more, err = archive.Reader{}.Diff(t.Context(), core.TreeSource{Root: from, Open: s.open}, core.TreeSource{Root: to, Open: s.open}, 3)
	if err != nil || !more || !slices.Equal(got, want[:3]) {
		t.Errorf("three of it = %+v, %t, %v", got, more, err)
	}
	for _, pair := range [][2][]byte{{nil, to}, {from, nil}} {
		_, _, err = archive.Reader{}.Diff(t.Context(), core.TreeSource{Root: pair[0], Open: s.open}, core.TreeSource{Root: pair[1], Open: s.open}, 3)
		if !isInvalid(err) {
			t.Errorf("diff of no root: %v", err)
		}
	}
}

// TestTheServersTimeIsTheLatest: when a capture began is the sandbox's word, unless that
// lies ahead of the server's time.
func TestTheServersTimeIsTheLatest(t *testing.T) {
	s := shop{}
	data := s.root(t, "c1", file("a", "text", s.put([]byte("text"))))
	for server, want := range map[core.Millis]int64{7: 5, 5: 5, 3: 3} {
		sealed, err := archive.Reader{}.Seal(data, core.ManifestSeal{ID: "c1", CreatedAt: server, Owner: func(core.PackRef) core.ThreadID { return "" }})
		if err != nil {
			t.Fatal(err)
		}
		if got := decode(t, sealed).CreatedAt; got != want {
			t.Errorf("the server says %d: created at %d, want %d", server, got, want)
		}
	}
}

// TestWhatLayersUnpackToIsBounded: a layer of what a newer one takes away counts too.
func TestWhatLayersUnpackToIsBounded(t *testing.T) {
	s := shop{}
	var entries []manifest.Entry
	for i := range 1000 {
		entries = append(entries, manifest.Tombstone(manifest.Workspace, fmt.Sprintf("gone-%04d", i)))
	}
	pack := s.put([]byte("text"))
	good := decode(t, s.root(t, "c1", file("a", "text", pack)))
	var layer bytes.Buffer
	w := manifest.NewLayerWriter(&layer)
	for _, e := range entries {
		if err := w.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	good.Layers = append(good.Layers, s.put(layer.Bytes()))
	data := encode(t, good)
	for most, fits := range map[int64]bool{100_000: false, 200_000: true} {
		err := archive.Reader{MaxRead: most}.Check(t.Context(), data, s.open)
		if fits != (err == nil) || !fits && !isInvalid(err) {
			t.Errorf("at most %d bytes: %v", most, err)
		}
		source := core.TreeSource{Root: data, Open: s.open}
		if _, _, err := (archive.Reader{MaxRead: most}).Diff(t.Context(), source, source, 10); !isInvalid(err) {
			t.Errorf("two of at most %d bytes: %v", most, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (archive.Reader{}).Check(ctx, data, s.open); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
