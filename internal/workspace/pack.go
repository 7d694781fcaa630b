package workspace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// Sizes that decide how content is laid out. All but the last depend on content
// only, so that a capture that was cut makes the same packs again.
const (
	frameTarget = manifest.MaxFrame / 4 // raw bytes of a frame of small files, at most
	pieceSize   = manifest.MaxFrame     // raw bytes of a piece of a large file
	packTarget  = 8 << 20               // stored bytes from which on a pack may end
	packFull    = 10 << 20              // stored bytes from which on it does
	packRecords = 8 << 10               // entries that wait for one pack
	packBuffers = 3                     // packs in memory: one grows, the others are sent
)

// packInfo is a pack of which parts are referred to before it has a name.
type packInfo struct {
	ref    manifest.PackRef
	stored bool
}

// frameInfo is a frame, new or of an earlier checkpoint. pack and offset are set
// when its pack takes it.
type frameInfo struct {
	pack                *packInfo
	offset, stored, raw int64
}

// place is where a chunk's bytes are.
type place struct {
	frame *frameInfo
	skip  int64
}

func (p place) stored() bool { return p.frame.pack != nil && p.frame.pack.stored }

// frame is content on its way into a pack.
type frame struct {
	info   *frameInfo
	raw    []byte
	slab   []byte // that raw lies in; nil where it is not given back
	packed []byte // a slab
	ends   bool   // a pack may end after it
	done   chan struct{}
}

// newEncoder makes an encoder that is shared by n workers.
func newEncoder(n int) (*zstd.Encoder, error) {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(n),
		zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false),
		zstd.WithSingleSegment(true)) // a frame says its size, however small it is
	if err != nil {
		return nil, fmt.Errorf("open zstd encoder: %w", err)
	}
	return encoder, nil
}

// samples of a frame are compressed first: content that does not shrink is stored as
// it is, which costs nearly nothing.
const (
	sampleSize  = 8 << 10
	sampleCount = 4
)

// compress writes raw as one zstd frame into dst.
func compress(encoder *zstd.Encoder, raw, dst []byte) []byte {
	if len(raw) > 2*sampleSize*sampleCount && !shrinks(encoder, raw, dst) {
		return rawFrame(raw, dst)
	}
	return encoder.EncodeAll(raw, dst)
}

func shrinks(encoder *zstd.Encoder, raw, dst []byte) bool {
	step := len(raw) / sampleCount
	for i := range sampleCount {
		sample := raw[i*step : i*step+sampleSize]
		if len(encoder.EncodeAll(sample, dst[:0])) < sampleSize-sampleSize/32 {
			return true
		}
	}
	return false
}

// rawFrame writes a zstd frame of uncompressed blocks.
func rawFrame(raw, dst []byte) []byte {
	const (
		maxBlock       = 128 << 10
		singleSegment4 = 0xa0 // content size in four bytes, no window
	)
	dst = append(dst, 0x28, 0xb5, 0x2f, 0xfd, singleSegment4)
	size := uint32(len(raw))
	dst = append(dst, byte(size), byte(size>>8), byte(size>>16), byte(size>>24))
	for len(raw) > 0 {
		n := min(len(raw), maxBlock)
		header := uint32(n) << 3
		if n == len(raw) {
			header |= 1
		}
		dst = append(dst, byte(header), byte(header>>8), byte(header>>16))
		dst = append(dst, raw[:n]...)
		raw = raw[n:]
	}
	return dst
}

// packer lays frames into packs in the order in which it is given them, and sends
// full packs in parallel. One goroutine uses it.
type packer struct {
	store   Store
	fail    context.CancelCauseFunc
	buffers pool
	sent    chan *packInfo // packs that are stored now
	sending sync.WaitGroup

	current *packInfo
	content []byte
	records int
	open    int // packs that are not known to be stored

	packs, bytes int64
}

// add appends a compressed frame and ends the pack where one may end.
func (p *packer) add(ctx context.Context, f *frame) error {
	if len(p.content)+len(f.packed) > manifest.MaxPack {
		p.end(ctx)
	}
	if p.current == nil {
		select {
		case content := <-p.buffers:
			p.content = content[:0]
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		p.current = &packInfo{}
		p.open++
	}
	f.info.pack, f.info.offset, f.info.stored = p.current, int64(len(p.content)), int64(len(f.packed))
	p.content = append(p.content, f.packed...)
	if size := len(p.content); size >= packFull || size >= packTarget && f.ends {
		p.end(ctx)
	}
	return nil
}

// count says that one more entry may wait for the pack that grows.
func (p *packer) count(ctx context.Context) {
	if p.records++; p.records >= packRecords {
		p.end(ctx)
	}
}

// end sends the pack that grows.
func (p *packer) end(ctx context.Context) {
	p.records = 0
	if p.current == nil {
		return
	}
	pack, content := p.current, p.content
	p.current, p.content = nil, nil
	p.packs, p.bytes = p.packs+1, p.bytes+int64(len(content))
	p.sending.Go(func() {
		ref, err := p.store.Put(ctx, objectOf(content))
		p.buffers <- content
		if err != nil {
			p.fail(fmt.Errorf("store pack: %w", err))
			return
		}
		pack.ref = ref
		select {
		case p.sent <- pack:
		case <-ctx.Done():
		}
	})
}

// close gives the buffers back.
func (p *packer) close() {
	if p.current != nil {
		p.buffers <- p.content
	}
	p.buffers.close()
}

func objectOf(content []byte) Object {
	return Object{SHA256: sha256.Sum256(content), Size: int64(len(content)), Body: bytes.NewReader(content)}
}
