package core

import (
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"
	"time"
)

// Segment is one piece of a run's log: the journal's bytes From to End. Its bytes
// are Inline up to [Limits.InlineSegment], else in the blob store under Blob.
type Segment struct {
	From, End int64
	Epoch     int64
	SHA256    string // hex, over the piece's bytes
	Inline    []byte
	Blob      string
	Omitted   bool   // too many to keep: it has no bytes
	ExpiresAt Millis // when retention may take it, with its run's record
}

// RunLog is the delivered output of runs, by byte position of the journal.
type RunLog interface {
	// Append puts the segment, which must not exist, and moves the run's log end, in
	// one transaction. Without bytes only the run is written. The condition is
	// [Append.Apply]'s; a refused one is a [*RefusedError]. A conflict with another
	// transaction is retried, never reported as a refusal.
	Append(ctx context.Context, key RunKey, a Append, s Segment) (Run, error)
	// Segments lists a run's log in order, from its beginning, all pages.
	Segments(ctx context.Context, key RunKey) ([]Segment, error)
}

// Blobs are immutable objects.
type Blobs interface {
	// PutBlob stores data under key unless it is there. The same bytes again are
	// success; other bytes under a key that exists are an [*BlobConflictError].
	PutBlob(ctx context.Context, key string, data []byte) error
	// Blob returns the bytes under key, verified by the store's checksum, or
	// ErrNotFound.
	Blob(ctx context.Context, key string) ([]byte, error)
}

// BlobConflictError tells that a key holds other bytes.
type BlobConflictError struct{ Key string }

func (e *BlobConflictError) Error() string { return "put blob " + e.Key + ": it holds other bytes" }

// LogWriter appends to run logs.
type LogWriter struct {
	Log    RunLog
	Blobs  Blobs
	Inline int // largest piece kept in the segment itself, bytes
	// Retention is how long a segment stays, counted from when it is written: longer
	// than its run's record, which is counted from the run's end. Zero: for ever.
	Retention time.Duration
}

// Append delivers data, the journal's bytes from r.LogEnd on, and seals the log if
// sealed is given. r is the record as the caller last saw it; its successor is
// returned. The bytes are in their store before the log's end moves past them.
func (w *LogWriter) Append(ctx context.Context, r Run, data []byte, sealed *Sealed) (Run, error) {
	a, segment, err := w.piece(r, data)
	if err != nil {
		return Run{}, err
	}
	a.Sealed = sealed
	switch {
	case len(data) == 0:
	case len(data) <= w.Inline:
		segment.Inline = data
	default:
		segment.Blob = blobKey(r)
		if err := w.Blobs.PutBlob(ctx, segment.Blob, data); err != nil {
			return Run{}, fmt.Errorf("append to run %s: %w", r.RunKey, err)
		}
	}
	return w.Log.Append(ctx, r.RunKey, a, segment)
}

// piece is what data, the journal's bytes from the log's end on, makes of the record and
// of the log. Where the bytes are to be found is for the caller to say.
func (w *LogWriter) piece(r Run, data []byte) (Append, Segment, error) {
	digest, err := resume(r.LogHash)
	if err != nil {
		return Append{}, Segment{}, fmt.Errorf("append to run %s: %w", r.RunKey, err)
	}
	digest.Write(data)
	state, err := digest.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil {
		return Append{}, Segment{}, fmt.Errorf("append to run %s: %w", r.RunKey, err)
	}
	end, sum := r.LogEnd+int64(len(data)), sha256.Sum256(data)
	a := Append{Epoch: r.Epoch, From: r.LogEnd, End: end, Hash: state, Tail: tailOf(r.LogTail, data), Omitted: r.LogOmitted}
	return a, Segment{From: r.LogEnd, End: end, Epoch: r.Epoch, SHA256: hex.EncodeToString(sum[:]), ExpiresAt: w.expiry()}, nil
}

// AppendStored delivers a piece that is under key already; data are its bytes, read from
// there. It never seals.
func (w *LogWriter) AppendStored(ctx context.Context, r Run, key string, data []byte) (Run, error) {
	a, segment, err := w.piece(r, data)
	if err != nil {
		return Run{}, err
	}
	segment.Blob = key
	return w.Log.Append(ctx, r.RunKey, a, segment)
}

// uploadKey is where a piece is stored that does not come by the terminal. It is not
// where one is that does: an upload that cannot be used leaves that free.
func uploadKey(r Run) string { return blobKey(r) + "-pushed" }

// Skip moves the log's end to where the journal is kept again: what lies between was
// too much. The log says so in a segment without bytes.
func (w *LogWriter) Skip(ctx context.Context, r Run, to int64) (Run, error) {
	if to <= r.LogEnd {
		return Run{}, fmt.Errorf("skip in run %s: from %d to %d: want a position behind", r.RunKey, r.LogEnd, to)
	}
	segment := Segment{From: r.LogEnd, End: to, Epoch: r.Epoch, Omitted: true, ExpiresAt: w.expiry()}
	a := Append{Epoch: r.Epoch, From: r.LogEnd, End: to, Hash: r.LogHash, Omitted: r.LogOmitted + to - r.LogEnd}
	return w.Log.Append(ctx, r.RunKey, a, segment)
}

func (w *LogWriter) expiry() Millis {
	if w.Retention == 0 {
		return 0
	}
	return nowMillis().Add(w.Retention)
}

// Beside stores a piece of a journal that does not go on from the log, and returns
// the prefix of all such keys of this claim.
func (w *LogWriter) Beside(ctx context.Context, r Run, from int64, data []byte) (string, error) {
	prefix := blobKey(r) + "-side-"
	return prefix, w.Blobs.PutBlob(ctx, fmt.Sprintf("%s%016d", prefix, from), data)
}

// tailOf is the end of what the log holds once data follows before.
func tailOf(before, data []byte) []byte {
	if len(data) < JournalOverlap {
		data = slices.Concat(before, data)
	}
	return slices.Clone(data[max(0, len(data)-JournalOverlap):])
}

// blobKey is unique to one claim and position: no two claims ever write one object.
func blobKey(r Run) string {
	return fmt.Sprintf("%s/logs/%s/%d-%s-%016d",
		KeyToken(string(r.Tenant)), KeyToken(string(r.RunKey.Run)), r.Epoch, claimToken(r.ClaimNonce), r.LogEnd)
}

// claimToken is a claim's nonce as it stands in keys. A host's is a text of its own choice,
// and that of a continuation holds a run's id: where that is long, or more than letters,
// digits, dots and hyphens, its digest stands for it, so that every key is one that a store
// takes.
func claimToken(nonce string) string {
	const most = 32
	if len(nonce) <= most && nonce == KeyToken(nonce) {
		return nonce
	}
	sum := sha256.Sum256([]byte(nonce))
	return hex.EncodeToString(sum[:])[:most]
}

// resume continues a running SHA-256; no state begins one.
func resume(state []byte) (hash.Hash, error) {
	digest := sha256.New()
	if len(state) == 0 {
		return digest, nil
	}
	if err := digest.(encoding.BinaryUnmarshaler).UnmarshalBinary(state); err != nil {
		return nil, fmt.Errorf("resume log hash: %w", err)
	}
	return digest, nil
}

// LogSHA256 is the hex digest over the log of r so far.
func LogSHA256(r Run) (string, error) {
	digest, err := resume(r.LogHash)
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(digest.Sum(nil)), nil
}

// ReadLog returns the whole log of a run, each piece checked against its digest. Of a
// log that was too long it is head and tail.
func ReadLog(ctx context.Context, log RunLog, blobs Blobs, key RunKey) ([]byte, error) {
	segments, err := log.Segments(ctx, key)
	if err != nil {
		return nil, err
	}
	var out []byte
	var end int64
	for _, s := range segments {
		if s.From != end {
			return nil, fmt.Errorf("read log of run %s: segment begins at %d, want %d", key, s.From, end)
		}
		end = s.End
		if s.Omitted {
			continue
		}
		data := s.Inline
		if s.Blob != "" {
			if data, err = blobs.Blob(ctx, s.Blob); err != nil {
				return nil, fmt.Errorf("read log of run %s: %w", key, err)
			}
		}
		sum := sha256.Sum256(data)
		if hex.EncodeToString(sum[:]) != s.SHA256 || int64(len(data)) != s.End-s.From {
			return nil, fmt.Errorf("read log of run %s: segment at %d does not match its digest", key, s.From)
		}
		out = append(out, data...)
	}
	return out, nil
}
