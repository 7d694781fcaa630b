package workspace

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// maxSkippedText bounds what the names and reasons of skipped entries take of a
// root.
const maxSkippedText = 1 << 20

// finisher is the last stage: it packs frames and writes the entries that wait for
// their packs into the layer.
type finisher struct {
	*capture
	written  manifest.Summary
	redacted int64     // files
	pending  []*record // in order
	lost     map[string]bool

	spool *spool // nil as long as the layer is empty
	layer *manifest.LayerWriter

	skipped     []manifest.Skipped
	skippedText int
	skippedMore int64
}

func newFinisher(c *capture) finisher {
	return finisher{capture: c, lost: map[string]bool{}}
}

func (f *finisher) close() {
	if f.spool != nil {
		f.spool.close()
	}
}

// run takes all steps. After a failure it only gives back what they hold.
func (f *finisher) run(ctx context.Context) (err error) {
	for s := range f.steps {
		if s.frame != nil {
			<-s.frame.done
		}
		if err == nil {
			err = f.take(ctx, s)
		}
		if err != nil {
			f.fail(err)
		}
		if s.frame != nil {
			f.packings <- s.frame.packed[:0]
		}
	}
	if err != nil {
		return err
	}
	f.packer.end(ctx)
	for f.packer.open > 0 {
		if err := f.await(ctx); err != nil {
			return err
		}
	}
	return f.settle()
}

func (f *finisher) take(ctx context.Context, s step) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if s.frame != nil {
		if err := f.packer.add(ctx, s.frame); err != nil {
			return err
		}
		return f.poll()
	}
	f.pending = append(f.pending, s.record)
	f.packer.count(ctx)
	if err := f.poll(); err != nil {
		return err
	}
	for len(f.pending) > 4*packRecords {
		if err := f.await(ctx); err != nil {
			return err
		}
		if err := f.settle(); err != nil {
			return err
		}
	}
	return nil
}

// poll settles what can be settled without waiting.
func (f *finisher) poll() error {
	for {
		select {
		case pack := <-f.packer.sent:
			f.stored(pack)
		default:
			return f.settle()
		}
	}
}

func (f *finisher) await(ctx context.Context) error {
	select {
	case pack := <-f.packer.sent:
		f.stored(pack)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (f *finisher) stored(pack *packInfo) {
	pack.stored = true
	f.packer.open--
}

// settle writes the entries up to the first that waits for a pack.
func (f *finisher) settle() error {
	done := 0
	for _, rec := range f.pending {
		if !rec.settled() {
			break
		}
		if err := f.finish(rec); err != nil {
			return err
		}
		f.pending[done] = nil
		done++
	}
	f.pending = f.pending[done:]
	return nil
}

func (r *record) settled() bool {
	for _, p := range r.places {
		if !p.stored() {
			return false
		}
	}
	return true
}

// finish writes an entry if it is not what the parent's layers say already.
func (f *finisher) finish(rec *record) error {
	e := &rec.entry
	if e.Kind == manifest.Hardlink && f.lost[e.Target] {
		rec.skip = "hard link to a file that is skipped"
	}
	if rec.skip != "" {
		return f.skip(rec)
	}
	if e.Deleted {
		return f.delete(rec)
	}
	if len(rec.places) > 0 {
		e.Chunks = rec.located()
	}
	if rec.redacted {
		f.redacted++
	}
	if !f.parent.rebase && rec.parent != nil && sameForRestore(e, rec.parent) {
		return f.written.Add(*rec.parent)
	}
	if err := f.written.Add(*e); err != nil {
		return err
	}
	return f.write(*e)
}

// located are the chunks with where they are stored.
func (r *record) located() []manifest.Chunk {
	for i, p := range r.places {
		c := &r.chunks[i]
		c.Pack, c.Skip = p.frame.pack.ref, p.skip
		c.Frame = manifest.Frame{Offset: p.frame.offset, Stored: p.frame.stored, Raw: p.frame.raw}
	}
	return r.chunks
}

func (f *finisher) skip(rec *record) error {
	if f.options.Policy.Strict {
		return refuse(CodeUnsupportedEntry, rec.entry.Path, errors.New(rec.skip))
	}
	if rec.links {
		f.lost[rec.entry.Path] = true
	}
	f.skippedText += len(rec.entry.Path) + len(rec.skip)
	if len(f.skipped) < manifest.MaxSkipped && f.skippedText < maxSkippedText {
		f.skipped = append(f.skipped, manifest.Skipped{Path: rec.entry.Path, Reason: rec.skip})
	} else {
		f.skippedMore++
	}
	return f.delete(rec)
}

func (f *finisher) delete(rec *record) error {
	if f.parent.rebase || rec.parent == nil {
		return nil
	}
	return f.write(manifest.Tombstone(rec.entry.Area, rec.entry.Path))
}

func (f *finisher) write(e manifest.Entry) error {
	if f.layer == nil {
		f.spool = newSpool()
		f.layer = manifest.NewLayerWriter(f.spool)
	}
	if err := f.layer.Add(e); err != nil {
		return fmt.Errorf("write entry: %w", err)
	}
	return nil
}

// storeLayer stores the layer and returns its name and size, zero if there is none.
func (f *finisher) storeLayer(ctx context.Context) (manifest.PackRef, int64, error) {
	if f.layer == nil {
		return manifest.PackRef{}, 0, nil
	}
	if err := f.layer.Close(); err != nil {
		return manifest.PackRef{}, 0, err
	}
	ref, err := f.options.Store.Put(ctx, Object{SHA256: f.spool.digest(), Size: f.spool.size, Body: f.spool})
	if err != nil {
		return manifest.PackRef{}, 0, fmt.Errorf("store layer: %w", err)
	}
	return ref, f.spool.size, nil
}
