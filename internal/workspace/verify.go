package workspace

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// VerifyOptions say what is read back. Store and Manifest are required.
type VerifyOptions struct {
	Store    Store
	Manifest manifest.Root
	// Sample is the part of the frames that is read, chosen by Seed: above 0 and up
	// to 1. Layers are read in any case. Zero: all.
	Sample   float64
	Seed     int64
	Progress func(Progress)
}

// VerifyResult is what was read.
type VerifyResult struct {
	Entries int64
	Frames  int64 // that were read
	All     int64 // that there are
	Bytes   int64 // of content that was compared with its digest
}

// Verify reads a checkpoint back from the store: every entry, and all or a sample of
// the content. Errors are those of [Restore].
func Verify(ctx context.Context, options VerifyOptions) (VerifyResult, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	fetched, err := fetchLayers(ctx, options.Store, options.Manifest)
	if err != nil {
		return VerifyResult{}, err
	}
	defer fetched.close()
	if err := checkTree(options.Manifest, fetched.merged()); err != nil {
		return VerifyResult{}, err
	}
	v := &verifier{options: options, fail: cancel, owners: ownersOf(options.Manifest), requests: make(chan *wantedFrame, workers())}
	if v.decoder, err = newDecoder(); err != nil {
		return VerifyResult{}, err
	}
	defer v.decoder.Close()
	var group sync.WaitGroup
	for range workers() {
		group.Go(func() {
			if err := v.work(ctx); err != nil {
				cancel(err)
			}
		})
	}
	err = v.ask(ctx, fetched)
	close(v.requests)
	group.Wait()
	if err := causeOf(ctx, err); err != nil {
		return VerifyResult{}, err
	}
	v.result.Frames, v.result.Bytes = v.frames.Load(), v.bytes.Load()
	return v.result, nil
}

type verifier struct {
	options       VerifyOptions
	fail          context.CancelCauseFunc
	owners        map[manifest.PackRef]manifest.PackRef
	decoder       *zstd.Decoder
	requests      chan *wantedFrame
	result        VerifyResult
	frames, bytes atomic.Int64
}

// ask collects the chunks of each frame over a run of entries. A frame that a later
// run needs as well is read again there.
func (v *verifier) ask(ctx context.Context, from layers) error {
	frames, chunks := map[frameKey]*wantedFrame{}, 0
	for e, err := range from.merged() {
		if err != nil {
			return err
		}
		v.result.Entries++
		for _, c := range e.Chunks {
			key := frameKey{c.Pack.ID(), c.Frame.Offset}
			w := frames[key]
			if w == nil {
				v.result.All++
				if !v.chosen(key) {
					continue
				}
				w = &wantedFrame{ref: v.owners[key.pack], frame: c.Frame}
				frames[key] = w
			}
			w.parts = append(w.parts, part{&stagedFile{entry: manifest.Entry{Path: e.Path}}, c})
			chunks++
		}
		if chunks >= roundFiles {
			if err := v.send(ctx, frames); err != nil {
				return err
			}
			frames, chunks = map[frameKey]*wantedFrame{}, 0
		}
	}
	return v.send(ctx, frames)
}

// chosen tells whether a frame is in the sample.
func (v *verifier) chosen(key frameKey) bool {
	if v.options.Sample <= 0 || v.options.Sample >= 1 {
		return true
	}
	h := fnv.New64a()
	fmt.Fprint(h, v.options.Seed, key.pack.Name(), key.offset)
	return float64(h.Sum64()>>11)/(1<<53) < v.options.Sample
}

func (v *verifier) send(ctx context.Context, frames map[frameKey]*wantedFrame) error {
	order := func(a, b *wantedFrame) int {
		if a.ref != b.ref {
			return manifest.ComparePacks(a.ref, b.ref)
		}
		return int(a.frame.Offset - b.frame.Offset)
	}
	for _, w := range slices.SortedFunc(maps.Values(frames), order) {
		select {
		case v.requests <- w:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (v *verifier) work(ctx context.Context) error {
	slabs, err := newPool(2)
	if err != nil {
		return err
	}
	defer slabs.close()
	stored, raw := <-slabs, <-slabs
	defer func() { slabs <- stored; slabs <- raw }()
	for w := range v.requests {
		if ctx.Err() != nil {
			continue
		}
		if err := v.read(ctx, w, stored[:w.frame.Stored], raw); err != nil {
			v.fail(err)
		}
	}
	return nil
}

func (v *verifier) read(ctx context.Context, w *wantedFrame, data, slab []byte) error {
	if err := v.options.Store.Get(ctx, w.ref, w.frame.Offset, data); err != nil {
		return fmt.Errorf("read pack %s: %w", w.ref.Name(), storeFault(err))
	}
	content, err := openFrame(v.decoder, data, w.frame.Raw, slab)
	if err != nil {
		return fmt.Errorf("read pack %s: %w", w.ref.Name(), err)
	}
	for _, p := range w.parts {
		if _, err := chunkOf(p.Chunk, content, p.file.entry.Path); err != nil {
			return err
		}
		v.bytes.Add(p.Length)
	}
	v.frames.Add(1)
	return nil
}
