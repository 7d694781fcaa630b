package core

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
)

// LogPiece is a run of bytes of a transcript, by the journal's byte positions. Of an
// omitted piece there are no bytes.
type LogPiece struct {
	From, End int64
	Data      []byte
	Omitted   bool
}

// LogReader reads runs' logs by byte position.
type LogReader struct {
	Log   RunLog
	Blobs Blobs
}

// From yields a run's log from a byte position on, piece by piece, each checked
// against its digest before any of it is given out. A position behind the log's end
// yields nothing: the log may grow to it. It ends with the first error.
func (l LogReader) From(ctx context.Context, key RunKey, from int64) iter.Seq2[LogPiece, error] {
	return func(yield func(LogPiece, error) bool) {
		segments, err := l.Log.Segments(ctx, key)
		if err != nil {
			yield(LogPiece{}, err)
			return
		}
		var end int64
		for _, s := range segments {
			if s.From != end {
				yield(LogPiece{}, fmt.Errorf("read log of run %s: segment begins at %d, want %d", key, s.From, end))
				return
			}
			if end = s.End; end <= from {
				continue
			}
			piece, err := readSegment(ctx, l.Blobs, s)
			if err != nil {
				yield(LogPiece{}, fmt.Errorf("read log of run %s: %w", key, err))
				return
			}
			if !yield(piece.after(from), nil) {
				return
			}
		}
	}
}

// readSegment reads a segment's bytes and checks them.
func readSegment(ctx context.Context, blobs Blobs, s Segment) (LogPiece, error) {
	piece := LogPiece{From: s.From, End: s.End, Omitted: s.Omitted}
	if s.Omitted {
		return piece, nil
	}
	piece.Data = s.Inline
	if s.Blob != "" {
		var err error
		if piece.Data, err = blobs.Blob(ctx, s.Blob); err != nil {
			return LogPiece{}, err
		}
	}
	sum := sha256.Sum256(piece.Data)
	if hex.EncodeToString(sum[:]) != s.SHA256 || int64(len(piece.Data)) != s.End-s.From {
		return LogPiece{}, fmt.Errorf("segment at %d does not match its digest", s.From)
	}
	return piece, nil
}

// after is the part of a piece from a position on.
func (p LogPiece) after(from int64) LogPiece {
	skip := from - p.From
	if skip <= 0 {
		return p
	}
	p.From = from
	if !p.Omitted {
		p.Data = p.Data[skip:]
	}
	return p
}
