package manifest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// layerMagic begins a layer; the version byte follows.
const layerMagic = "sklayer"

// maxBlockStored is how large a compressed block may be: zstd adds a few bytes to
// what it cannot compress.
const maxBlockStored = MaxBlock + 1024

// The codec of all layers. It is made at once, in 0.2 ms: what it holds would else belong to
// the synctest bubble, if any, that is the first to use it, and to nobody outside.
var zstdEncoder, zstdDecoder = newEncoder(), newDecoder()

// newEncoder makes the encoder. A single segment states its size, however small it is.
func newEncoder() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithSingleSegment(true), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic(fmt.Sprintf("manifest: options of the zstd encoder: %v", err))
	}
	e.EncodeAll(nil, nil) // makes what NewWriter puts off
	return e
}

func newDecoder() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(MaxBlock), zstd.WithDecoderMaxWindow(MaxBlock), zstd.WithDecoderLowmem(true))
	if err != nil {
		panic(fmt.Sprintf("manifest: options of the zstd decoder: %v", err))
	}
	return d
}

// LayerWriter writes a layer.
type LayerWriter struct {
	to      io.Writer
	build   *builder
	begun   bool
	last    Entry // its area and path
	entries int64
	raw     []byte
	stored  []byte
	err     error
}

// NewLayerWriter writes a layer to w, in pieces of a few hundred KiB.
func NewLayerWriter(w io.Writer) *LayerWriter {
	return &LayerWriter{to: w, build: newBuilder()}
}

// Entries is how many entries were added.
func (l *LayerWriter) Entries() int64 { return l.entries }

// Add writes an entry, which must come after the one before it by Compare. It
// refuses with *RefusedError what no layer may hold; the layer is as it was then.
func (l *LayerWriter) Add(e Entry) error {
	if l.err != nil {
		return l.err
	}
	if err := validate(e); err != nil {
		return err
	}
	if l.entries > 0 && Compare(l.last, e) >= 0 {
		return refuse(BadOrder, e.Path, "comes after %q, want every path once and in order", l.last.Path)
	}
	if l.entries == MaxEntries {
		return refuse(TooMuch, e.Path, "more than %d entries", MaxEntries)
	}
	l.entries++
	l.last = Entry{Area: e.Area, Path: e.Path}
	l.build.add(e)
	for at := rowChunks; at < len(e.Chunks); at += rowChunks {
		l.flush(false)
		before := Entry{Chunks: e.Chunks[:at]}
		end := min(at+rowChunks, len(e.Chunks))
		l.build.addChunks(e.Chunks[at:end], before.chunkEnd(), end < len(e.Chunks))
	}
	l.flush(false)
	return l.err
}

// Close writes what is left and the trailer. It does not close the writer.
func (l *LayerWriter) Close() error {
	if l.err != nil {
		return l.err
	}
	l.flush(true)
	l.write(binary.LittleEndian.AppendUint64(make([]byte, 8, 16), uint64(l.entries)))
	err := l.err
	l.err = errors.New("write layer: it is closed")
	return err
}

// flush writes the block if it is full, or at the end.
func (l *LayerWriter) flush(end bool) {
	if !l.begun {
		l.begun = true
		l.write(append([]byte(layerMagic), Version))
	}
	if l.build.rows == 0 || !end && !l.build.full() {
		return
	}
	l.raw = l.build.encode(l.raw[:0])
	l.build.reset()
	l.stored = zstdEncoder.EncodeAll(l.raw, append(l.stored[:0], make([]byte, 8)...))
	binary.LittleEndian.PutUint32(l.stored, uint32(len(l.stored)-8))
	binary.LittleEndian.PutUint32(l.stored[4:], uint32(len(l.raw)))
	l.write(l.stored)
}

func (l *LayerWriter) write(b []byte) {
	if l.err != nil {
		return
	}
	if _, err := l.to.Write(b); err != nil {
		l.err = fmt.Errorf("write layer: %w", err)
	}
}

// storedBuffers hold a block while it is decompressed: many layers that are read
// side by side need few.
var storedBuffers = sync.Pool{New: func() any { return new([]byte) }}

// layerReader reads a layer block by block.
type layerReader struct {
	from    *bufio.Reader
	at      int64 // where the block begins
	size    int64 // of the block with its head
	raw     []byte
	block   block
	last    Entry
	entries int64
}

// ReadLayer reads a layer, one block at a time. A fault ends it: *VersionError,
// *MalformedError, *RefusedError, or what the reader answered. Entries that came
// before a fault are valid in themselves, but the layer is not to be trusted
// before its end was reached.
func ReadLayer(r io.Reader) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		l := &layerReader{from: bufio.NewReaderSize(r, 64<<10)}
		stopped, err := l.all(yield)
		if err != nil && !stopped {
			yield(Entry{}, err)
		}
	}
}

func (l *layerReader) all(yield func(Entry, error) bool) (stopped bool, err error) {
	if err := l.begin(); err != nil {
		return false, err
	}
	var e Entry
	more := false
	for {
		ended, err := l.nextBlock(more)
		if err != nil || ended {
			return false, err
		}
		for range l.block.rows {
			var why string
			if more, why = l.block.next(&e, more); why != "" {
				return false, l.malformed(why)
			}
			if len(e.Chunks) > MaxChunks {
				return false, refuse(TooMuch, e.Path, "more than %d chunks", MaxChunks)
			}
			if more {
				continue
			}
			if err := l.accept(e); err != nil {
				return false, err
			}
			if !yield(e, nil) {
				return true, nil
			}
		}
		if why := l.block.done(); why != "" {
			return false, l.malformed(why)
		}
	}
}

// accept refuses an entry that may not follow the one before it.
func (l *layerReader) accept(e Entry) error {
	if err := validate(e); err != nil {
		return err
	}
	if l.entries > 0 && Compare(l.last, e) >= 0 {
		return refuse(BadOrder, e.Path, "comes after %q, want every path once and in order", l.last.Path)
	}
	l.entries++
	if l.entries > MaxEntries {
		return refuse(TooMuch, e.Path, "more than %d entries", MaxEntries)
	}
	l.last = Entry{Area: e.Area, Path: e.Path}
	return nil
}

func (l *layerReader) begin() error {
	head := make([]byte, len(layerMagic)+1)
	n, err := io.ReadFull(l.from, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("read layer: %w", err)
	}
	l.size = int64(len(head))
	_, err = checkMagic("layer", layerMagic, head[:n])
	return err
}

// nextBlock reads the next block, or the trailer and the end.
func (l *layerReader) nextBlock(more bool) (ended bool, err error) {
	l.at += l.size
	var head [8]byte
	if err := l.read(head[:]); err != nil {
		return false, err
	}
	stored, raw := binary.LittleEndian.Uint32(head[:]), binary.LittleEndian.Uint32(head[4:])
	if stored == 0 && raw == 0 {
		return true, l.end(more)
	}
	if stored == 0 || stored > maxBlockStored || raw == 0 || raw > MaxBlock {
		return false, l.malformed(fmt.Sprintf("a block of %d bytes stored as %d, want at most %d", raw, stored, MaxBlock))
	}
	l.size = int64(len(head)) + int64(stored)
	buffer := storedBuffers.Get().(*[]byte)
	defer storedBuffers.Put(buffer)
	*buffer = sized(*buffer, int(stored))
	if err := l.read(*buffer); err != nil {
		return false, err
	}
	return false, l.open(*buffer, int(raw))
}

// open decompresses the block. The frame must say its size, so that nothing is
// decompressed that is larger than it may be.
func (l *layerReader) open(stored []byte, raw int) error {
	var head zstd.Header
	if err := head.Decode(stored); err != nil || head.Skippable || !head.HasFCS || head.FrameContentSize != uint64(raw) {
		return l.malformed("a block is not a zstd frame of the size it states")
	}
	l.raw = sized(l.raw, raw)
	data, err := zstdDecoder.DecodeAll(stored, l.raw[:0])
	if err != nil || len(data) != raw {
		return l.malformed("a block is not a zstd frame of the size it states")
	}
	if why := openBlock(data, &l.block); why != "" {
		return l.malformed(why)
	}
	return nil
}

func (l *layerReader) end(more bool) error {
	var tail [8]byte
	if err := l.read(tail[:]); err != nil {
		return err
	}
	if more {
		return l.malformed("the last list of chunks is not continued")
	}
	if said := binary.LittleEndian.Uint64(tail[:]); said > math.MaxInt64 || int64(said) != l.entries {
		return l.malformed(fmt.Sprintf("the trailer says %d entries, there are %d", said, l.entries))
	}
	if _, err := l.from.ReadByte(); err == nil {
		return l.malformed("something follows the trailer")
	} else if !errors.Is(err, io.EOF) {
		return fmt.Errorf("read layer: %w", err)
	}
	return nil
}

func (l *layerReader) read(b []byte) error {
	_, err := io.ReadFull(l.from, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return l.malformed("it ends early")
	}
	if err != nil {
		return fmt.Errorf("read layer: %w", err)
	}
	return nil
}

func (l *layerReader) malformed(why string) error {
	return &MalformedError{Object: "layer", At: l.at, Why: why}
}

func sized(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}
