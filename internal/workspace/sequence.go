package workspace

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// sequencer takes batches in the order of the walk, finds out what of their content
// is stored already and makes frames of the rest. What it decides depends on that
// order only.
type sequencer struct {
	*capture
	known  map[manifest.Digest]place // content of this capture
	before map[manifest.Digest]place // content of the parent, nil until it is needed

	// The file that is read in pieces.
	redacted bool
	fault    error
}

func newSequencer(c *capture) *sequencer {
	return &sequencer{capture: c, known: map[manifest.Digest]place{}}
}

// run is the third stage. After a failure it only gives back what batches hold.
func (s *sequencer) run(ctx context.Context) (err error) {
	defer close(s.steps)
	defer close(s.frames)
	for b := range s.ordered {
		<-b.ready
		if err == nil {
			err = context.Cause(ctx)
		}
		if err == nil {
			err = s.take(ctx, b)
		}
		if err != nil {
			s.fail(err)
		}
		b.release()
		if b.slab != nil {
			s.raws <- b.slab
		}
	}
	return err
}

func (s *sequencer) take(ctx context.Context, b *batch) error {
	if b.large != nil {
		return s.takePiece(ctx, b)
	}
	return s.takeSmall(ctx, b)
}

// takeSmall makes one frame of what the files of a batch hold that is not stored
// yet, by moving it together.
func (s *sequencer) takeSmall(ctx context.Context, b *batch) error {
	f := &frame{info: &frameInfo{}, raw: b.slab[:0]}
	for _, rec := range b.records {
		if rec.changed {
			if err := s.again(ctx, rec); err != nil {
				return err
			}
			continue
		}
		if rec.root == nil || rec.skip != "" {
			continue
		}
		s.count(int64(rec.to - rec.from))
		if err := s.placeSmall(rec, b.slab[:cap(b.slab)][rec.from:rec.to], f); err != nil {
			return err
		}
	}
	if len(f.raw) > 0 {
		f.slab, b.slab = b.slab, nil
		if err := s.emitFrame(ctx, f); err != nil {
			return err
		}
	}
	for _, rec := range b.records {
		if err := s.emit(ctx, rec); err != nil {
			return err
		}
	}
	return nil
}

func (s *sequencer) placeSmall(rec *record, content []byte, f *frame) error {
	for _, c := range rec.chunks {
		p, stored, err := s.find(rec, c)
		if err != nil {
			return err
		}
		if !stored {
			p = place{f.info, int64(len(f.raw))}
			f.ends = f.ends || len(f.raw) == 0 && c.SHA256[0]%2 == 0
			f.raw = append(f.raw, content...)
			s.known[c.SHA256] = p
		}
		rec.places = append(rec.places, p)
	}
	return nil
}

// takePiece makes a frame of a piece of a large file, and passes the file on with
// its last one.
func (s *sequencer) takePiece(ctx context.Context, b *batch) error {
	rec := b.records[0]
	if b.fault == nil && s.fault == nil && b.piece.length > 0 {
		s.count(b.piece.length)
		s.redacted = s.redacted || b.found
		f := &frame{raw: b.raw, slab: b.slab}
		taken, err := s.addPiece(ctx, rec, manifest.Chunk{Offset: b.piece.offset, Length: b.piece.length, SHA256: b.sum}, f)
		if taken {
			b.slab = nil
		}
		if err != nil {
			return err
		}
	}
	s.fault = errors.Join(s.fault, b.fault)
	if !b.last {
		return nil
	}
	rec.redacted = s.redacted
	now, err := statFD(b.large.fd)
	whole := err == nil && s.fault == nil && now.same(b.large.info)
	s.redacted, s.fault = false, nil
	if !whole {
		if err := s.again(ctx, rec); err != nil {
			return err
		}
	}
	return s.emit(ctx, rec)
}

// addPiece places a chunk of a large file. It tells whether the frame was needed.
func (s *sequencer) addPiece(ctx context.Context, rec *record, c manifest.Chunk, f *frame) (taken bool, err error) {
	p, stored, err := s.find(rec, c)
	if err != nil {
		return false, err
	}
	if !stored {
		f.info = &frameInfo{}
		f.ends = c.SHA256[0]%2 == 0
		p = place{frame: f.info}
		s.known[c.SHA256] = p
		taken, err = true, s.emitFrame(ctx, f)
	}
	rec.chunks, rec.places = append(rec.chunks, c), append(rec.places, p)
	return taken, err
}

func (s *sequencer) count(n int64) { s.readBytes.Add(n) }

// find looks for content where the parent has it at the same path, in this capture
// and anywhere in the parent.
func (s *sequencer) find(rec *record, c manifest.Chunk) (place, bool, error) {
	if rec.parent != nil {
		for _, old := range rec.parent.Chunks {
			if old.Offset == c.Offset && old.Length == c.Length && old.SHA256 == c.SHA256 {
				return s.parent.frames.place(old), true, nil
			}
		}
	}
	if p, known := s.known[c.SHA256]; known {
		return p, true, nil
	}
	if s.before == nil {
		var err error
		if s.before, err = s.parent.index(); err != nil {
			return place{}, false, err
		}
	}
	p, known := s.before[c.SHA256]
	return p, known, nil
}

// again reads a file once more that was not what it looked like. One that changes
// while it is read this time too is skipped.
func (s *sequencer) again(ctx context.Context, rec *record) error {
	rec.chunks, rec.places, rec.skip, rec.redacted = nil, nil, "", false
	fd, err := rec.open()
	if scarce(err) {
		return fmt.Errorf("open %.300q: %w", rec.entry.Path, err)
	}
	if err != nil {
		rec.skip = openFault(err)
		return nil
	}
	defer unix.Close(fd)
	info, err := statFD(fd)
	if err != nil || info.kind() != manifest.File {
		rec.skip = "became another kind of entry"
		return nil
	}
	if why, err := s.readAgain(ctx, rec, fd, info); err != nil || why != "" {
		rec.skip = why
		return err
	}
	if now, err := statFD(fd); err != nil || !now.same(info) {
		rec.skip = "changed while it was read"
		return nil
	}
	describe(&rec.entry, info)
	rec.entry.Size = info.size
	return nil
}

// readAgain reads all of a file piece by piece. why tells that it cannot be read.
func (s *sequencer) readAgain(ctx context.Context, rec *record, fd int, info fileInfo) (why string, err error) {
	if err := s.reader.attributes(rec, fd); err != nil {
		return "unreadable attributes: " + err.Error(), nil
	}
	extents := []extent{{0, info.size}}
	if sparse(info) {
		if extents, err = dataExtents(fd, info.size); err != nil {
			return "unreadable: " + err.Error(), nil
		}
	}
	pieces := cutIntoPieces(extents)
	if len(pieces) > manifest.MaxChunks {
		return tooManyPieces, nil
	}
	for _, piece := range pieces {
		raw, found, err := s.reader.readPiece(fd, piece, s.spare)
		if errors.Is(err, errShort) {
			return "changed while it was read", nil
		}
		if err != nil {
			return "unreadable: " + err.Error(), nil
		}
		rec.redacted = rec.redacted || found
		s.count(piece.length)
		c := manifest.Chunk{Offset: piece.offset, Length: piece.length, SHA256: sha256.Sum256(raw)}
		if _, err := s.addPiece(ctx, rec, c, &frame{raw: raw}); err != nil {
			return "", err
		}
	}
	return "", nil
}

// emitFrame sends a frame to be compressed and to the finisher. The frame's slab is
// given back in any case.
func (s *sequencer) emitFrame(ctx context.Context, f *frame) error {
	f.info.raw, f.done = int64(len(f.raw)), make(chan struct{})
	select {
	case packing := <-s.packings:
		f.packed = packing[:0]
	case <-ctx.Done():
		if f.slab != nil {
			s.raws <- f.slab
		}
		return context.Cause(ctx)
	}
	if f.slab == nil {
		s.compress(f) // raw is used again when this returns
	} else {
		s.frames <- f
	}
	s.steps <- step{frame: f}
	return nil
}

func (s *sequencer) emit(_ context.Context, rec *record) error {
	if rec.skip == "" && rec.entry.Kind == manifest.File && rec.root != nil {
		s.readFiles.Add(1)
	}
	s.steps <- step{record: rec}
	return nil
}
