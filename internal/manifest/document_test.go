package manifest_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/sandkeeper/sandkeeper/internal/draw"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

func document(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "docs", "checkpoint-format.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestDocumentShowsThePinnedBytes: the page's example is what is pinned, and what
// the code writes and reads.
func TestDocumentShowsThePinnedBytes(t *testing.T) {
	layer := pinned(t, "layer")
	want := map[string][]byte{"pack": pinned(t, "pack"), "layer": layer, "block": readBlocks(t, layer)[0], "root": pinned(t, "root")}
	for _, example := range regexp.MustCompile("(?s)```([a-z]+)\n(.*?)```").FindAllStringSubmatch(document(t), -1) {
		var shown []byte
		for line := range strings.Lines(example[2]) {
			digits, _, _ := strings.Cut(line, "  ")
			b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
			if err != nil {
				t.Fatalf("%s: %q: %v", example[1], line, err)
			}
			shown = append(shown, b...)
		}
		if !bytes.Equal(shown, want[example[1]]) {
			t.Errorf("%s: the page shows %x, want %x", example[1], shown, want[example[1]])
		}
		delete(want, example[1])
	}
	if len(want) > 0 {
		t.Errorf("the page does not show %v", slices.Collect(maps.Keys(want)))
	}
}

// TestDocumentStatesTheLimits that the code keeps.
func TestDocumentStatesTheLimits(t *testing.T) {
	page := strings.ReplaceAll(document(t), ",", "")
	for name, limit := range map[string]int{
		"layers": manifest.MaxLayers, "packs": manifest.MaxPacks, "block": manifest.MaxBlock, "rows": manifest.MaxRows,
		"entries": manifest.MaxEntries, "path": manifest.MaxPath, "name": manifest.MaxName, "target": manifest.MaxTarget,
		"chunks": manifest.MaxChunks, "attributes": manifest.MaxXattrs, "attribute bytes": manifest.MaxXattr,
		"text": manifest.MaxText, "id": manifest.MaxID, "skipped": manifest.MaxSkipped, "frames": manifest.MaxFrames,
	} {
		if !regexp.MustCompile(`\b` + strconv.Itoa(limit) + `\b`).MatchString(page) {
			t.Errorf("the page does not state the limit %d of %s", limit, name)
		}
	}
	for _, megabytes := range []int{manifest.MaxRoot, manifest.MaxLayer, manifest.MaxPack, manifest.MaxFrame} {
		if !strings.Contains(page, strconv.Itoa(megabytes>>20)+" MiB") {
			t.Errorf("the page does not state the limit of %d MiB", megabytes>>20)
		}
	}
}

// TestReaderWrittenFromTheDocument reads what the code writes, down to the bytes
// of the files.
func TestReaderWrittenFromTheDocument(t *testing.T) {
	root := specReadRoot(pinned(t, "root"))
	entries := specReadLayer(pinned(t, "layer"))
	wantRoot, wantEntries := example(t)
	specCompareRoot(t, root, wantRoot)
	specCompare(t, entries, wantEntries)
	specCompare(t, specReadLayer(pinned(t, "kinds.layer")), tree())
	if got := specContent(t, entries[1], pinned(t, "pack")); string(got) != "hello, world\n" {
		t.Errorf("bin/hello has %q", got)
	}
	data := make([]byte, 1<<20)
	copy(data[4096:], "abc")
	if got := specContent(t, entries[3], pinned(t, "pack")); !bytes.Equal(got, data) {
		t.Errorf("data has other bytes than it should")
	}
}

// specContent is a file's bytes, from its pack.
func specContent(t *testing.T, e specEntry, pack []byte) []byte {
	t.Helper()
	decoder, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer decoder.Close()
	content := make([]byte, e.size)
	for _, c := range e.chunks {
		frame, err := decoder.DecodeAll(pack[c.frame.offset:c.frame.offset+c.frame.stored], nil)
		if err != nil {
			t.Fatal(err)
		}
		run := frame[c.skip : c.skip+int64(c.length)]
		if sum := sha256.Sum256(run); string(sum[:]) != c.digest {
			t.Fatalf("%s: other bytes than its digest says", e.path)
		}
		copy(content[c.offset:], run)
	}
	return content
}

func TestReaderWrittenFromTheDocumentReadsAnyLayer(t *testing.T) {
	with(t, func(t *testing.T, r *draw.T) {
		want := drawLayer(r, true)
		specCompare(r, specReadLayer(encodeLayer(t, want...)), want)
	})
	many := smallFiles(20_000)
	specCompare(t, specReadLayer(encodeLayer(t, many...)), many)
	specCompare(t, specReadLayer(encodeLayer(t, fragmented(5000)...)), fragmented(5000))
}

// fragmented is a file of n chunks between others, all rows of which are in
// different blocks.
func fragmented(n int) []manifest.Entry {
	e := manifest.Entry{Path: "large", Kind: manifest.File}
	for i := range n {
		e.Chunks = append(e.Chunks, manifest.Chunk{Offset: e.Size + int64(i%2), Length: 100, SHA256: digest(i), Pack: packs[i/3%3],
			Frame: manifest.Frame{Offset: int64(i) * 10, Stored: 10, Raw: 200}, Skip: int64(i % 100)})
		e.Size = e.Chunks[i].Offset + 100
	}
	return []manifest.Entry{file("before"), e, file("next")}
}

func specCompareRoot(t *testing.T, got specRoot, want manifest.Root) {
	t.Helper()
	want.Layers = slices.Clone(want.Layers)
	c := want.Counts
	rule := want.Policy.Exclude[0]
	model := specRoot{
		version: 1, id: want.ID, parent: want.Parent, created: want.CreatedAt,
		layers: specRefsOf(want.Layers), packs: specRefsOf(want.Packs), flags: 1 | 2, git: want.Policy.Git,
		exclude: []specRule{{kinds: []byte{byte(rule.Kinds[0])}, lists: [5][]string{3: rule.Segments}}},
		counts: [8]uint64{uint64(c.Files), uint64(c.Dirs), uint64(c.Symlinks), uint64(c.Hardlinks), uint64(c.OutwardLinks),
			uint64(c.Bytes), uint64(c.StoredBytes), uint64(c.RedactedFiles)},
		skipped: [][2]string{{want.Skipped[0].Path, want.Skipped[0].Reason}},
	}
	if !reflect.DeepEqual(got, model) {
		t.Errorf("got %+v\nwant %+v", got, model)
	}
}

func specRefsOf(refs []manifest.PackRef) []specRef {
	var all []specRef
	for _, p := range refs {
		all = append(all, specRef{uint64(p.Fence), string(p.SHA256[:]), uint64(p.Size), p.Owner})
	}
	return all
}

// specCompare compares what the second reader read with what was written.
func specCompare(t failer, got []specEntry, want []manifest.Entry) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d entries, want %d", len(got), len(want))
	}
	for i, e := range want {
		if got[i] = specPlain(got[i]); !reflect.DeepEqual(got[i], specPlain(specOf(e))) {
			t.Fatalf("entry %d: got %+v\nwant %+v", i, got[i], specOf(e))
		}
	}
}

// specPlain clears the number of a pack in its block, which two readers need not
// agree on.
func specPlain(e specEntry) specEntry {
	for i := range e.chunks {
		e.chunks[i].frame.pack = 0
	}
	return e
}

func specOf(e manifest.Entry) specEntry {
	s := specEntry{path: e.Path, kind: byte(e.Kind), git: e.Area == manifest.GitState, mode: uint64(e.Mode), uid: uint64(e.UID), gid: uint64(e.GID),
		mtime: e.MTime, ctime: e.CTime, inode: e.Inode, device: e.Device, size: uint64(e.Size), target: e.Target}
	for _, key := range slices.Sorted(maps.Keys(e.Xattrs)) {
		s.attributes = append(s.attributes, [2]string{key, string(e.Xattrs[key])})
	}
	for _, c := range e.Chunks {
		f := specFrame{0, uint64(c.Frame.Offset), uint64(c.Frame.Stored), uint64(c.Frame.Raw)}
		s.chunks = append(s.chunks, specChunk{uint64(c.Offset), uint64(c.Length), string(c.SHA256[:]), specRefsOf([]manifest.PackRef{c.Pack})[0], f, c.Skip})
	}
	return s
}

// readBlocks answers the decompressed blocks of a layer.
func readBlocks(t testing.TB, layer []byte) [][]byte {
	t.Helper()
	decoder, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer decoder.Close()
	var blocks [][]byte
	for rest := layer[8:]; len(rest) > 16; {
		stored := binary.LittleEndian.Uint32(rest)
		block, err := decoder.DecodeAll(rest[8:8+stored], nil)
		if err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, block)
		rest = rest[8+stored:]
	}
	return blocks
}
