package manifest_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"iter"
	"path"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// wrap makes a layer of one block, so that a fuzzer gets past the compression.
func wrap(block []byte, entries uint64) []byte {
	return wrapAll([][]byte{block}, entries)
}

func wrapAll(blocks [][]byte, entries uint64) []byte {
	layer := []byte("sklayer\x01")
	for _, block := range blocks {
		frame := rawFrame(block)
		layer = binary.LittleEndian.AppendUint32(layer, uint32(len(frame)))
		layer = binary.LittleEndian.AppendUint32(layer, uint32(len(block)))
		layer = append(layer, frame...)
	}
	return binary.LittleEndian.AppendUint64(append(layer, make([]byte, 8)...), entries)
}

// rawFrame is a zstd frame of one segment whose blocks hold their bytes as they are.
func rawFrame(block []byte) []byte {
	frame := binary.LittleEndian.AppendUint32([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xa0}, uint32(len(block)))
	for rest := block; ; {
		n := min(len(rest), 128<<10)
		head := uint32(n) << 3
		if n == len(rest) {
			head |= 1 // the last
		}
		frame = append(frame, byte(head), byte(head>>8), byte(head>>16))
		frame = append(frame, rest[:n]...)
		if rest = rest[n:]; len(rest) == 0 {
			return frame
		}
	}
}

// known tells whether an error is one of those that reading may answer.
func known(err error) bool {
	_, version := errors.AsType[*manifest.VersionError](err)
	_, malformed := errors.AsType[*manifest.MalformedError](err)
	_, refused := errors.AsType[*manifest.RefusedError](err)
	return version || malformed || refused
}

// allocated is how many bytes were allocated while something ran, freed ones too.
func allocated(run func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func FuzzDecodeRoot(f *testing.F) {
	f.Add(pinned(f, "root"))
	data, err := manifest.EncodeRoot(rootOf(f, merged()...))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte("sk-root\x02"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var root manifest.Root
		var err error
		used := allocated(func() { root, err = manifest.DecodeRoot(data) })
		if most := uint64(1<<20 + 100*len(data)); used > most {
			t.Fatalf("%d bytes used %d bytes of memory, want at most %d", len(data), used, most)
		}
		if err != nil {
			if !known(err) {
				t.Fatalf("got an error of no kind that is documented: %v", err)
			}
			return
		}
		again, err := manifest.EncodeRoot(root)
		if err != nil || !bytes.Equal(again, data) {
			t.Fatalf("accepted %x, encoded %x: %v", data, again, err)
		}
	})
}

func FuzzReadLayer(f *testing.F) {
	for _, name := range []string{"layer", "kinds.layer"} {
		f.Add(pinned(f, name), uint16(0), false)
		for _, block := range readBlocks(f, pinned(f, name)) {
			f.Add(block, uint16(len(tree())), true)
			f.Add(block, uint16(5), true)
		}
	}
	for _, block := range readBlocks(f, encodeLayer(f, fragmented(2100)...)) {
		f.Add(block[:min(len(block), 1000)], uint16(3), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, entries uint16, raw bool) {
		if raw && (len(data) == 0 || len(data) > manifest.MaxBlock) {
			return
		}
		if raw {
			data = wrap(data, uint64(entries))
		}
		accepted := readFuzzed(t, data)
		again, err := collect(manifest.ReadLayer(bytes.NewReader(encodeLayer(t, accepted...))))
		if err != nil {
			t.Fatalf("what was accepted is refused when it is written again: %v", err)
		}
		compare(t, again, accepted)
	})
}

// readFuzzed reads a layer, and fails if it takes more memory than its limits allow
// or if an entry is not one that may be written. It answers the entries that came.
func readFuzzed(t *testing.T, data []byte) []manifest.Entry {
	t.Helper()
	var accepted []manifest.Entry
	var err error
	entries := uint64(0)
	used := allocated(func() {
		for e, fault := range manifest.ReadLayer(bytes.NewReader(data)) {
			if err = fault; err != nil {
				break
			}
			entries += uint64(len(e.Path) + len(e.Target) + 256*len(e.Chunks) + 512)
			if len(accepted) < 20_000 {
				accepted = append(accepted, e)
			}
		}
	})
	// A block and its compressed form; what the decoder keeps; the entries that
	// came, each row at most twice while lists grow.
	if most := 16<<20 + 4*entries; used > most {
		t.Fatalf("%d bytes with %d bytes of entries used %d bytes of memory, want at most %d", len(data), entries, used, most)
	}
	if err != nil && !known(err) {
		t.Fatalf("got an error of no kind that is documented: %v", err)
	}
	return accepted
}

// FuzzCheck holds Check against a judge that looks at the whole tree at once.
func FuzzCheck(f *testing.F) {
	block := readBlocks(f, encodeLayer(f, merged()...))[0]
	root, err := manifest.EncodeRoot(rootOf(f, merged()...))
	if err != nil {
		f.Fatal(err)
	}
	over := readBlocks(f, encodeLayer(f, tree()[2:6]...))[0]
	f.Add(root, block, over, uint16(8), uint16(4))
	f.Add(pinned(f, "root"), readBlocks(f, pinned(f, "layer"))[0], over, uint16(5), uint16(4))
	f.Fuzz(func(t *testing.T, data, first, second []byte, a, b uint16) {
		if len(first) == 0 || len(first) > manifest.MaxBlock || len(second) == 0 || len(second) > manifest.MaxBlock {
			return
		}
		below, above := wrap(first, uint64(a)), wrap(second, uint64(b))
		tree := func() iter.Seq2[manifest.Entry, error] {
			return manifest.Merge(manifest.ReadLayer(bytes.NewReader(below)), manifest.ReadLayer(bytes.NewReader(above)))
		}
		all, err := collect(tree())
		if err != nil && !known(err) {
			t.Fatalf("got an error of no kind that is documented: %v", err)
		}
		for _, root := range rootsFor(t, data, all) {
			checked := manifest.Check(root, tree())
			if checked == nil && err != nil {
				t.Fatalf("accepted a tree that cannot be read: %v", err)
			}
			if checked == nil {
				judge(t, root, all)
			} else if !known(checked) {
				t.Fatalf("got an error of no kind that is documented: %v", checked)
			}
		}
	})
}

// rootsFor are the fuzzed root, and one that fits the entries.
func rootsFor(t *testing.T, data []byte, all []manifest.Entry) []manifest.Root {
	t.Helper()
	var roots []manifest.Root
	if root, err := manifest.DecodeRoot(data); err == nil {
		roots = append(roots, root)
	}
	if counts, packs, err := manifest.Summarize(manifest.Entries(all...)); err == nil {
		roots = append(roots, manifest.Root{Version: manifest.Version, ID: "fits", Counts: counts, Packs: packs})
	}
	return roots
}

// judge fails if an accepted tree has anything that a restore must not meet.
func judge(t *testing.T, root manifest.Root, all []manifest.Entry) {
	t.Helper()
	kinds := map[name]manifest.Kind{}
	bytes := int64(0)
	for _, e := range all {
		if e.Path != path.Clean(e.Path) || path.IsAbs(e.Path) || e.Path == "." || strings.HasPrefix(e.Path, "..") && (len(e.Path) == 2 || e.Path[2] == '/') || strings.ContainsAny(e.Path, "\x00\\") {
			t.Fatalf("accepted the path %q", e.Path)
		}
		if _, twice := kinds[nameOf(e)]; twice || e.Deleted {
			t.Fatalf("accepted %q twice, or its tombstone", e.Path)
		}
		kinds[nameOf(e)] = e.Kind
		for parent, _, ok := cutLast(e.Path); ok; parent, _, ok = cutLast(parent) {
			if k, there := kinds[name{e.Area, parent}]; there && k != manifest.Dir {
				t.Fatalf("accepted %q below the %s %q", e.Path, k, parent)
			}
		}
		if e.Kind == manifest.Hardlink && kinds[name{e.Area, e.Target}] != manifest.File {
			t.Fatalf("accepted the hardlink %q to %q", e.Path, e.Target)
		}
		bytes += e.Size
		for _, c := range e.Chunks {
			judgeChunk(t, root, e, c)
		}
	}
	c := root.Counts
	if int64(len(all)) != c.Files+c.Dirs+c.Symlinks+c.Hardlinks || bytes != c.Bytes {
		t.Fatalf("accepted the counts %+v for %d entries with %d bytes", c, len(all), bytes)
	}
}

func judgeChunk(t *testing.T, root manifest.Root, e manifest.Entry, c manifest.Chunk) {
	t.Helper()
	if c.Offset < 0 || c.Length <= 0 || c.Offset+c.Length > e.Size || c.Skip < 0 || c.Skip+c.Length > c.Frame.Raw {
		t.Fatalf("accepted the chunk %+v of %q, a file of %d bytes", c, e.Path, e.Size)
	}
	if c.Frame.Raw > manifest.MaxFrame || c.Frame.Offset < 0 || c.Frame.Stored <= 0 || c.Frame.Offset+c.Frame.Stored > c.Pack.Size {
		t.Fatalf("accepted the frame %+v of a pack of %d bytes", c.Frame, c.Pack.Size)
	}
	if !slices.ContainsFunc(root.Packs, func(p manifest.PackRef) bool { return p.ID() == c.Pack.ID() && p.Size == c.Pack.Size }) {
		t.Fatalf("accepted a chunk in the pack %s, which the root does not list", c.Pack.Name())
	}
}
