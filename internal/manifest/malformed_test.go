package manifest_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// parts is a block taken apart; columns have the numbers of the page.
type parts struct {
	rows   uint64
	tables []byte // packs and frames
	column [22][]byte
	behind []byte
}

func takeApart(block []byte) parts {
	s := &specReader{block}
	p := parts{rows: s.number()}
	tables := s.rest
	for range s.number() {
		s.number()
		s.bytes(32)
		s.number()
	}
	for range 4 * s.number() {
		s.number()
	}
	p.tables = tables[:len(tables)-len(s.rest)]
	var lengths [22]int
	for i := 1; i <= 21; i++ {
		lengths[i] = int(s.number())
	}
	for i := 1; i <= 21; i++ {
		p.column[i] = slices.Clone(s.bytes(lengths[i]))
	}
	return p
}

func (p parts) block() []byte {
	b := append(binary.AppendUvarint(nil, p.rows), p.tables...)
	for i := 1; i <= 21; i++ {
		b = binary.AppendUvarint(b, uint64(len(p.column[i])))
	}
	return append(append(b, bytes.Join(p.column[1:], nil)...), p.behind...)
}

// huge is a number far beyond any limit.
var huge = binary.AppendUvarint(nil, 1<<62)

func TestReaderRefusesMalformedBlocks(t *testing.T) {
	tests := []struct {
		name   string
		change func(p *parts)
		want   string
	}{
		{"no rows", func(p *parts) { *p = parts{tables: []byte{0, 0}} }, "no rows"},
		{"more rows than there are", func(p *parts) { p.rows++ }, "ends early"},
		{"fewer rows than there are", func(p *parts) { p.rows-- }, "longer than its rows need"},
		{"more rows than a block may have", func(p *parts) { p.rows = 1 << 40 }, "list is longer"},
		{"more packs than fit", func(p *parts) { p.tables = huge }, "list is longer"},
		{"more frames than fit", func(p *parts) { p.tables = append([]byte{0}, huge...) }, "list is longer"},
		{"a frame in no pack", func(p *parts) { p.tables = []byte{0, 1, 0, 0, 1, 1} }, "no pack"},
		{"something behind the columns", func(p *parts) { p.behind = []byte{0} }, "follows the columns"},
		{"a number with a byte too many", func(p *parts) { p.column[5] = append([]byte{0x81, 0}, p.column[5][2:]...) }, "more bytes than it needs"},
		{"a number that is cut short", func(p *parts) { p.column[12] = []byte{0x80} }, "cut short"},
		{"a number of more than 64 bits", func(p *parts) { p.column[12] = bytes.Repeat([]byte{0xff}, 10) }, "too large"},
		{"a size of 64 bits", func(p *parts) { p.column[12] = binary.AppendUvarint(nil, 1<<63) }, "too large"},

		{"kind 5", func(p *parts) { p.column[1][0] = 5 }, "unknown shape"},
		{"an unknown bit", func(p *parts) { p.column[1][0] |= 0x80 }, "unknown shape"},
		{"a continuation of nothing", func(p *parts) { p.column[1][0] = 7 }, "not continued where it should be"},
		{"no continuation where one should be", func(p *parts) { p.column[1][3] |= 0x40 }, "not continued where it should be"},
		{"a continuation of a directory", func(p *parts) { p.column[1][0] |= 0x40 }, "no file has chunks"},
		{"a continuation with an area", func(p *parts) { p.column[1][3] |= 0x40; p.column[1][4] = 7 | 8 }, "continuation has members"},
		{"a whole directory", func(p *parts) { p.column[1][0] |= 0x20 }, "no file has chunks"},
		{"a whole file with more", func(p *parts) { p.column[1][1] |= 0x40 }, "whole file is continued"},
		{"a tombstone with attributes", func(p *parts) { p.column[1][4] |= 0x10 }, "tombstone has attributes"},

		{"a path that shares more than there was", func(p *parts) { p.column[2][1] = 4 }, "list is longer"},
		{"a path that goes on for ever", func(p *parts) { p.column[3] = huge }, "list is longer"},
		{"a mode beyond 32 bits", func(p *parts) { p.column[5] = append(bytes.Clone(huge), p.column[5][2:]...) }, "mode or an owner is too large"},
		{"an owner beyond 32 bits", func(p *parts) { p.column[6] = append(bytes.Clone(huge), p.column[6][2:]...) }, "mode or an owner is too large"},
		{"a target that is too long", func(p *parts) { p.column[13] = huge }, "list is longer"},
		{"no attributes where there should be some", func(p *parts) { p.column[15] = []byte{0} }, "attributes is empty"},
		{"attributes out of order", func(p *parts) { p.column[15] = []byte("\x02\x01b\x00\x01a\x00") }, "not in order"},
		{"an attribute twice", func(p *parts) { p.column[15] = []byte("\x02\x01a\x00\x01a\x00") }, "not in order"},
		{"more chunks than a row may have", func(p *parts) { p.column[16] = binary.AppendUvarint(nil, 2049) }, "list is longer"},
		{"more chunks than digests", func(p *parts) { p.column[16] = []byte{2} }, "list of chunks is longer"},
		{"fewer digests than whole files", func(p *parts) { p.column[16], p.column[19] = []byte{0}, p.column[19][:31] }, "ends early"},
		{"fewer bytes of names than paths need", func(p *parts) { p.column[4] = p.column[4][:10] }, "ends early"},
		{"a gap beyond any file", func(p *parts) { p.column[17] = huge }, "beyond any file"},
		{"a chunk in no frame", func(p *parts) { p.column[20] = []byte{0, 2} }, "no frame of the block"},
		{"a chunk before all frames", func(p *parts) { p.column[20] = []byte{0, 1} }, "no frame of the block"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := takeApart(readBlocks(t, pinned(t, "layer"))[0])
			test.change(&p)
			refusedCheaply(t, wrap(p.block(), 5), test.want)
		})
	}
}

// refusedCheaply reads a layer that must be refused for a reason, and without
// using much memory.
func refusedCheaply(t *testing.T, layer []byte, want string) {
	t.Helper()
	var err error
	used := allocated(func() { _, err = collect(manifest.ReadLayer(bytes.NewReader(layer))) })
	got, ok := errors.AsType[*manifest.MalformedError](err)
	if !ok || got.Object != "layer" || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
	if used > 8<<20 {
		t.Errorf("refusing it used %d bytes", used)
	}
}

func TestReaderRefusesMalformedLayers(t *testing.T) {
	encoder, err := zstd.NewWriter(nil, zstd.WithSingleSegment(true))
	if err != nil {
		t.Fatal(err)
	}
	defer encoder.Close()
	block := readBlocks(t, pinned(t, "layer"))[0]
	frame := encoder.EncodeAll(block, nil)
	bomb := encoder.EncodeAll(make([]byte, 256<<20), nil)
	layer := func(stored, raw int, frame []byte, entries uint64) []byte {
		b := binary.LittleEndian.AppendUint32([]byte("sklayer\x01"), uint32(stored))
		b = append(binary.LittleEndian.AppendUint32(b, uint32(raw)), frame...)
		return binary.LittleEndian.AppendUint64(append(b, make([]byte, 8)...), entries)
	}
	if _, err := collect(manifest.ReadLayer(bytes.NewReader(layer(len(frame), len(block), frame, 5)))); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name  string
		layer []byte
		want  string
	}{
		{"nothing", nil, "does not begin with"},
		{"a root", pinned(t, "root"), "does not begin with"},
		{"a magic without a version", []byte("sklayer"), "does not begin with"},
		{"no trailer", layer(len(frame), len(block), frame, 5)[:16+len(frame)], "ends early"},
		{"fewer entries than said", layer(len(frame), len(block), frame, 6), "says 6 entries, there are 5"},
		{"a number of entries that no signed number holds", layer(len(frame), len(block), frame, 1<<63), "there are 5"},
		{"something behind the trailer", append(layer(len(frame), len(block), frame, 5), 0), "follows the trailer"},
		{"a block larger than memory", layer(1<<32-1, 1<<32-1, frame, 5), "want at most"},
		{"a block of nothing", layer(len(frame), 0, frame, 5), "want at most"},
		{"a block that is stored as nothing", layer(0, 5, frame, 5), "want at most"},
		{"a bomb that states its size", layer(len(bomb), len(bomb), bomb, 5), "not a zstd frame of the size"},
		{"a bomb that states another", layer(len(bomb), 1<<20, bomb, 5), "not a zstd frame of the size"},
		{"a bomb behind the block", layer(len(frame)+len(bomb), len(block), append(bytes.Clone(frame), bomb...), 5), "not a zstd frame of the size"},
		{"a bomb that lies about its size", layer(len(bomb), 1<<20, lying(bomb, 1<<20), 5), "not a zstd frame of the size"},
		{"a frame without a size", layer(len(sizeless(block)), len(block), sizeless(block), 5), "not a zstd frame of the size"},
		{"no zstd", layer(len(block), len(block), block, 5), "not a zstd frame of the size"},
		{"a frame that may be skipped", layer(12, 4, []byte("\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"), 5), "not a zstd frame of the size"},
		{"a block smaller than it says", layer(len(frame), len(block)+1, frame, 5), "not a zstd frame of the size"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { refusedCheaply(t, test.layer, test.want) })
	}
}

// lying is a frame of one segment with another size in its head.
func lying(frame []byte, size uint32) []byte {
	frame = bytes.Clone(frame)
	binary.LittleEndian.PutUint32(frame[5:], size)
	return frame
}

// sizeless is a frame whose head gives a window and no size.
func sizeless(block []byte) []byte {
	frame := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x50}
	head := uint32(len(block))<<3 | 1
	frame = append(frame, byte(head), byte(head>>8), byte(head>>16))
	return append(frame, block...)
}

func TestDecoderRefusesMalformedRoots(t *testing.T) {
	good := pinned(t, "root")
	replace := func(old, with string) []byte {
		if bytes.Count(good, []byte(old)) != 1 {
			t.Fatalf("%q is not there once", old)
		}
		return bytes.Replace(good, []byte(old), []byte(with), 1)
	}
	tests := []struct {
		name string
		root []byte
		want string
	}{
		{"nothing", nil, "does not begin with"},
		{"a layer", pinned(t, "layer"), "does not begin with"},
		{"an id that goes on for ever", replace("\x0ccheckpoint-2", string(huge)), "list is longer"},
		{"owners without end", replace("\x01\x06source", string(huge)), "list is longer"},
		{"owners out of order", replace("\x01\x06source", "\x02\x06source\x01a"), "owners"},
		{"an owner that owns nothing", replace("\x01\x06source", "\x02\x01a\x06source"), "owners"},
		{"an owner without a name", replace("\x01\x06source", "\x01\x00"), "owners"},
		{"layers without end", replace("source\x02\x02", "source"+string(huge)), "list is longer"},
		{"an unknown flag of the policy", replace("\x03\x04none", "\x0b\x04none"), "unknown flags"},
		{"an unknown flag of a rule", replace("\x01\x00\x01\x02\x00\x00\x00\x01\x05cache", "\x01\x04\x01\x02\x00\x00\x00\x01\x05cache"), "unknown flags"},
		{"rules without end", replace("none\x00\x00\x00\x01\x00", "none\x00\x00\x00"+string(huge)), "list is longer"},
		{"skipped entries without end", replace("\x01\x0erun/agent.sock", string(huge)+"\x0erun/agent.sock"), "list is longer"},
		{"a digest of secrets that is too long", append(bytes.Clone(good[:len(good)-1]), 33), "list is longer"},
		{"something behind the end", append(bytes.Clone(good), 0), "follows the end"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var err error
			used := allocated(func() { _, err = manifest.DecodeRoot(test.root) })
			got, ok := errors.AsType[*manifest.MalformedError](err)
			if !ok || got.Object != "root" || !strings.Contains(fmt.Sprint(err), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if used > 1<<20 {
				t.Errorf("refusing it used %d bytes", used)
			}
		})
	}
}

// TestDecoderRefusesWhatNoRootMaySay: what the encoder refuses too.
func TestDecoderRefusesWhatNoRootMaySay(t *testing.T) {
	good := pinned(t, "root")
	digest := string(good[bytes.Index(good, []byte("source\x02\x02"))+8:][:32])
	tests := []struct {
		name, old, with string
		want            manifest.Reason
	}{
		{"itself as parent", "checkpoint-1", "checkpoint-2", manifest.BadRoot},
		{"an id that is no text", "checkpoint-2", "checkpoint-\xff", manifest.BadRoot},
		{"a layer of nothing", digest + "\x80\x20", digest + "\x00", manifest.BadPack},
		{"a rule of no kind there is", "\x00\x01\x02\x00\x00\x00\x01\x05cache", "\x00\x01\x05\x00\x00\x00\x01\x05cache", manifest.BadRoot},
		{"a count that is not safe", "\x8d\x80\x40\x1d", string(huge) + "\x1d", manifest.BadCounts},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if bytes.Count(good, []byte(test.old)) != 1 {
				t.Fatalf("%q is not there once", test.old)
			}
			_, err := manifest.DecodeRoot(bytes.Replace(good, []byte(test.old), []byte(test.with), 1))
			if got := reasonOf(t, err); got != test.want {
				t.Errorf("got %q (%v), want %q", got, err, test.want)
			}
		})
	}
}

func TestRootsThatAreTooLarge(t *testing.T) {
	r := rootOf(t, merged()...)
	long := strings.Repeat("x", manifest.MaxText)
	for range 70 {
		r.Skipped = append(r.Skipped, manifest.Skipped{Path: long, Reason: "unreadable"})
	}
	if _, err := manifest.EncodeRoot(r); reasonOf(t, err) != manifest.TooMuch {
		t.Errorf("a root of more than 4 MiB: got %v", err)
	}
	data := append([]byte("sk-root\x01"), make([]byte, manifest.MaxRoot)...)
	if _, err := manifest.DecodeRoot(data); reasonOf(t, err) != manifest.TooMuch {
		t.Errorf("more than 4 MiB: got %v", err)
	}
	for name, change := range map[string]func(r *manifest.Root){
		"a path of a skipped entry": func(r *manifest.Root) { r.Skipped[0].Path += "x" },
		"skipped entries":           func(r *manifest.Root) { r.Skipped = make([]manifest.Skipped, manifest.MaxSkipped+1) },
		"words about git":           func(r *manifest.Root) { r.Git = long + "x" },
		"words in the policy":       func(r *manifest.Root) { r.Policy.Include = []manifest.Rule{{Globs: []string{long + "x"}}} },
	} {
		r := rootOf(t, merged()...)
		r.Skipped = []manifest.Skipped{{Path: long, Reason: "unreadable"}}
		change(&r)
		if _, err := manifest.EncodeRoot(r); reasonOf(t, err) != manifest.TooMuch {
			t.Errorf("too many %s: got %v", name, err)
		}
	}
}

// TestReaderRefusesWhatNoWriterWrites: blocks that are well formed, and whose
// entries no layer may hold.
func TestReaderRefusesWhatNoWriterWrites(t *testing.T) {
	tests := []struct {
		name   string
		change func(p *parts)
		want   manifest.Reason
	}{
		{"a path out of the tree", func(p *parts) { copy(p.column[4], "../") }, manifest.BadPath},
		{"a parent segment", func(p *parts) { copy(p.column[4][3:], "/../..") }, manifest.BadPath},
		{"an absolute path", func(p *parts) { copy(p.column[4], "/") }, manifest.BadPath},
		{"a path twice", func(p *parts) {
			copy(p.column[4][len("bin/helloi"):], "bin")
			p.column[3][3] = 3
			p.column[4] = slices.Delete(p.column[4], 13, 14)
		}, manifest.BadOrder},
		{"a path before the one before it", func(p *parts) { copy(p.column[4][len("bin/helloi"):], "a") }, manifest.BadOrder},
		{"a mode with a type", func(p *parts) { p.column[5] = append(binary.AppendUvarint(nil, 0o40755), p.column[5][2:]...) }, manifest.BadShape},
		{"a size beyond what is safe", func(p *parts) { p.column[12] = binary.AppendUvarint(p.column[12][:1], 1<<53) }, manifest.BadShape},
		{"a chunk beyond the file", func(p *parts) { p.column[12] = binary.AppendUvarint(p.column[12][:1], 4098) }, manifest.BadChunk},
		{"an empty chunk", func(p *parts) { p.column[18] = []byte{0} }, manifest.BadChunk},
		{"a chunk beyond its frame", func(p *parts) { p.column[21] = []byte{0, 2} }, manifest.BadChunk},
		{"a chunk before its frame", func(p *parts) { p.column[21] = []byte{0, 27} }, manifest.BadChunk},
		{"a symlink without text", func(p *parts) { p.column[13], p.column[14] = []byte{0}, nil }, manifest.BadShape},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := takeApart(readBlocks(t, pinned(t, "layer"))[0])
			test.change(&p)
			_, err := collect(manifest.ReadLayer(bytes.NewReader(wrap(p.block(), 5))))
			if got := reasonOf(t, err); got != test.want {
				t.Errorf("got %q (%v), want %q", got, err, test.want)
			}
		})
	}
}

// TestContinuations: a file's chunks go on over blocks, up to the limit, and not
// beyond the end.
func TestContinuations(t *testing.T) {
	for _, chunks := range []int{2047, 2048, 2049, 5000, manifest.MaxChunks} {
		want := fragmented(chunks)
		got, err := collect(manifest.ReadLayer(bytes.NewReader(encodeLayer(t, want...))))
		if err != nil {
			t.Fatalf("%d chunks: %v", chunks, err)
		}
		compare(t, got, want)
	}
	blocks := readBlocks(t, encodeLayer(t, fragmented(manifest.MaxChunks)...))
	if len(blocks) < 4 {
		t.Fatalf("%d blocks, want some in the middle", len(blocks))
	}
	// Blocks do not depend on those before them, so that one may come again.
	endless := slices.Insert(slices.Clone(blocks), 1, slices.Repeat(blocks[1:2], 40)...)
	if _, err := collect(manifest.ReadLayer(bytes.NewReader(wrapAll(endless, 3)))); reasonOf(t, err) != manifest.TooMuch {
		t.Errorf("a list of chunks without end: got %v", err)
	}
	refusedCheaply(t, wrapAll(blocks[:2], 1), "the last list of chunks is not continued")
}
