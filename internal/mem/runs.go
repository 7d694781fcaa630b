package mem

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// clone copies everything that r points to, so that no caller shares state with
// the store.
func clone(r core.Run) core.Run {
	r.LogHash, r.LogTail = bytes.Clone(r.LogHash), bytes.Clone(r.LogTail)
	r.Error, r.ExitCode = copied(r.Error), copied(r.ExitCode)
	r.Ending, r.Sealed, r.Transcript = copied(r.Ending), copied(r.Sealed), copied(r.Transcript)
	r.Capture, r.Files = copied(r.Capture), copied(r.Files)
	r.Tools, r.Bearers = slices.Clone(r.Tools), slices.Clone(r.Bearers)
	return r
}

func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return new(*p)
}

// Run reads a record.
func (p *Process) Run(ctx context.Context, key core.RunKey) (core.Run, error) {
	return get(ctx, p, "read run", func(s *Store) (core.Run, error) { return s.run(key) })
}

func (s *Store) run(key core.RunKey) (core.Run, error) {
	r, ok := s.runs[key]
	if !ok {
		return core.Run{}, fmt.Errorf("read run %s: %w", key, core.ErrNotFound)
	}
	return clone(r), nil
}

// Create puts a record that must be absent, or recognises the host's own start.
func (p *Process) Create(ctx context.Context, r core.Run) (core.Run, error) {
	return get(ctx, p, "create run", func(s *Store) (core.Run, error) {
		if have, ok := s.runs[r.RunKey]; ok {
			if err := core.Created(r, have); err != nil {
				return core.Run{}, err
			}
			return clone(have), nil
		}
		s.accuseRun("create", core.Run{}, r)
		s.setRun(r)
		p.wrote("create run " + r.RunKey.String())
		return clone(r), nil
	})
}

// Update carries out one transition.
func (p *Process) Update(ctx context.Context, key core.RunKey, t core.Transition) (core.Run, error) {
	return get(ctx, p, t.Name(), func(s *Store) (core.Run, error) {
		if a, ok := t.(core.Append); ok {
			s.accuse(a.End == a.From, "append", "run "+key.String(), "bytes are appended with their segment (I4)")
		}
		after, landed, err := s.apply(key, t)
		if err != nil || landed {
			return clone(after), err
		}
		s.setRun(after)
		p.wrote(t.Name() + " run " + key.String())
		return clone(after), nil
	})
}

// apply tells what t makes of the record, and whether it had landed before. The
// condition is tried first, as DynamoDB does.
func (s *Store) apply(key core.RunKey, t core.Transition) (after core.Run, landed bool, err error) {
	before, err := s.run(key)
	if err != nil {
		return core.Run{}, false, err
	}
	after, err = t.Apply(clone(before))
	switch {
	case err == nil:
		s.accuseRun(t.Name(), before, after)
		return after, false, nil
	case t.Landed(before):
		return before, true, nil
	default:
		return core.Run{}, false, err
	}
}

// setRun stores a record and lets the indexes follow.
func (s *Store) setRun(r core.Run) {
	s.version++
	s.runs[r.RunKey] = clone(r)
	entry := core.IndexEntry{RunKey: r.RunKey, Row: r.Row, At: r.DueAt}
	if r.Row == core.RowDetached {
		entry.At = r.DetachedSince
	}
	s.runLog[r.RunKey] = append(s.runLog[r.RunKey], change[core.IndexEntry]{s.version, entry, r.Row == core.RowNone})
}

// Append puts a segment and moves the log's end, or only the latter where there
// are no bytes.
func (p *Process) Append(ctx context.Context, key core.RunKey, a core.Append, segment core.Segment) (core.Run, error) {
	return get(ctx, p, a.Name(), func(s *Store) (core.Run, error) {
		after, landed, err := s.apply(key, a)
		if err != nil || landed {
			return clone(after), err
		}
		s.setRun(after)
		p.wrote("append run " + key.String())
		if a.End > a.From {
			s.accuseSegment(key, a, segment)
			segment.Inline = bytes.Clone(segment.Inline)
			s.segments[key] = append(s.segments[key], segment)
		}
		return clone(after), nil
	})
}

// Segments lists a run's log in order.
func (p *Process) Segments(ctx context.Context, key core.RunKey) ([]core.Segment, error) {
	return get(ctx, p, "list segments", func(s *Store) ([]core.Segment, error) {
		out := slices.Clone(s.segments[key])
		for i := range out {
			out[i].Inline = bytes.Clone(out[i].Inline)
		}
		return out, nil
	})
}

// bytesOf returns a segment's bytes, and whether they are all there.
func (s *Store) bytesOf(segment core.Segment) ([]byte, bool) {
	if segment.Omitted {
		return nil, segment.Inline == nil && segment.Blob == ""
	}
	data := segment.Inline
	if segment.Blob != "" {
		data = s.blobs[segment.Blob]
	}
	sum := sha256.Sum256(data)
	return data, int64(len(data)) == segment.End-segment.From && hex.EncodeToString(sum[:]) == segment.SHA256
}

// Detached lists a shard's detached runs, oldest first.
func (p *Process) Detached(ctx context.Context, shard int) ([]core.IndexEntry, error) {
	return get(ctx, p, "list detached", func(s *Store) ([]core.IndexEntry, error) {
		return s.entries(shard, func(e core.IndexEntry) bool { return e.Row == core.RowDetached }), nil
	})
}

// Due lists a shard's due runs, oldest first.
func (p *Process) Due(ctx context.Context, shard int, until core.Millis) ([]core.IndexEntry, error) {
	return get(ctx, p, "list due", func(s *Store) ([]core.IndexEntry, error) {
		return s.entries(shard, func(e core.IndexEntry) bool { return e.Row.Due() && e.At <= until }), nil
	})
}

func (s *Store) entries(shard int, want func(core.IndexEntry) bool) []core.IndexEntry {
	var out []core.IndexEntry
	for key, log := range s.runLog {
		if core.ShardOf(key) != shard {
			continue
		}
		if e, ok := shown(log, s.version-s.lag); ok && want(e) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b core.IndexEntry) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.RunKey.String(), b.RunKey.String()))
	})
	return out
}

// Load reads records; absent ones are left out.
func (p *Process) Load(ctx context.Context, keys []core.RunKey) ([]core.Run, []core.Unreadable, error) {
	var bad []core.Unreadable
	runs, err := get(ctx, p, "load runs", func(s *Store) ([]core.Run, error) {
		var out []core.Run
		for _, key := range keys {
			if err := s.spoiled[key]; err != nil {
				bad = append(bad, core.Unreadable{RunKey: key, Err: err})
			} else if r, ok := s.runs[key]; ok {
				out = append(out, clone(r))
			}
		}
		return out, nil
	})
	if err != nil {
		return nil, nil, err
	}
	return runs, bad, nil
}

// Spoil makes a run's record one that cannot be understood when it is loaded.
func (s *Store) Spoil(key core.RunKey, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spoiled[key] = err
}
