package mem

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// PutBlob stores data under key unless it is there.
func (p *Process) PutBlob(ctx context.Context, key string, data []byte) error {
	return p.transact(ctx, "put blob", func(s *Store) error {
		if have, ok := s.blobs[key]; ok {
			if !bytes.Equal(have, data) {
				return &core.BlobConflictError{Key: key}
			}
			return nil
		}
		s.keep(key, data)
		p.wrote("put blob " + key)
		return nil
	})
}

// Blob returns the bytes under key.
func (p *Process) Blob(ctx context.Context, key string) ([]byte, error) {
	return get(ctx, p, "read blob", func(s *Store) ([]byte, error) {
		data, ok := s.blobs[key]
		if !ok {
			return nil, fmt.Errorf("read blob %s: %w", key, core.ErrNotFound)
		}
		return bytes.Clone(data), nil
	})
}

// Send takes reclaim messages.
func (p *Process) Send(ctx context.Context, jobs []core.ReclaimJob) error {
	return p.transact(ctx, "send reclaim jobs", func(s *Store) error {
		for _, job := range jobs {
			s.accuseJob(job)
			s.jobs = append(s.jobs, job)
			p.wrote("send " + string(job.Kind) + " " + string(job.Instance))
		}
		return nil
	})
}

// TakeJobs empties the queue. A test that wants a redelivery hands a job out twice.
func (s *Store) TakeJobs() []core.ReclaimJob {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.jobs
	s.jobs = nil
	return out
}

// Control reads the operator's settings.
func (p *Process) Control(ctx context.Context) (core.Control, error) {
	return get(ctx, p, "read control", func(s *Store) (core.Control, error) { return s.control, nil })
}

// SetControl is what an operator does.
func (s *Store) SetControl(c core.Control) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.control = c
}

// UpdateControl carries out one transition of the settings.
func (p *Process) UpdateControl(ctx context.Context, t core.ControlTransition) (core.Control, error) {
	return get(ctx, p, t.Name(), func(s *Store) (core.Control, error) {
		next, err := t.Apply(s.control)
		if err != nil {
			if t.Landed(s.control) {
				return s.control, nil
			}
			return core.Control{}, err
		}
		s.control = next
		p.wrote(t.Name())
		return next, nil
	})
}

// Record appends an audit entry.
func (p *Process) Record(ctx context.Context, e core.AuditEntry) error {
	_, err := get(ctx, p, "audit", func(s *Store) (struct{}, error) {
		s.audit = append(s.audit, e)
		p.wrote("audit")
		return struct{}{}, nil
	})
	return err
}

// Audit lists what was recorded, in order.
func (s *Store) Audit() []core.AuditEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.audit)
}

// Note reads a run's note.
func (p *Process) Note(ctx context.Context, key core.RunKey) (core.Note, error) {
	return get(ctx, p, "read note", func(s *Store) (core.Note, error) { return s.notes[key], nil })
}

// PutNote replaces a run's note.
func (p *Process) PutNote(ctx context.Context, key core.RunKey, n core.Note) error {
	_, err := get(ctx, p, "note", func(s *Store) (struct{}, error) {
		s.notes[key] = n
		p.wrote("note")
		return struct{}{}, nil
	})
	return err
}

// MarkWarned sets a note's mark that is as read still.
func (p *Process) MarkWarned(ctx context.Context, key core.RunKey, was, end core.Millis) error {
	_, err := get(ctx, p, "mark warned", func(s *Store) (struct{}, error) {
		n := s.notes[key]
		if n.Warned != was && n.Warned != end {
			return struct{}{}, &core.RefusedError{Op: "mark warned", Record: "note of run " + key.String(), Why: "warned"}
		}
		n.Warned = end
		s.notes[key] = n
		p.wrote("mark warned")
		return struct{}{}, nil
	})
	return err
}

// Spent adds up what the ledger rows of tenants are metered by.
func (p *Process) Spent(ctx context.Context, tenants []core.TenantID, now core.Millis) (map[core.TenantID]core.Spending, error) {
	return get(ctx, p, "read meters", func(s *Store) (map[core.TenantID]core.Spending, error) {
		all := make(map[core.TenantID]core.Spending, len(tenants))
		for _, tenant := range tenants {
			meter := map[core.Month]core.MeterSum{}
			add := func(c core.MeterChange) {
				sum := meter[c.Month]
				meter[c.Month] = core.MeterSum{Burn: sum.Burn + c.Burn, Used: sum.Used + float64(c.Used)}
			}
			for _, row := range s.rows {
				if row.Tenant != tenant || row.Metered == (core.Metering{}) {
					continue
				}
				add(row.Metered.Opened())
				if row.State == core.LedgerClosed {
					for _, c := range row.Metered.Closed(row.UpdatedAt) {
						add(c)
					}
				}
			}
			all[tenant] = core.SpendingOf(meter, now)
		}
		return all, nil
	})
}

// Cursor reads a shard's cursor.
func (p *Process) Cursor(ctx context.Context, shard int) (core.Cursor, error) {
	return get(ctx, p, "read cursor", func(s *Store) (core.Cursor, error) { return s.cursor(shard), nil })
}

func (s *Store) cursor(shard int) core.Cursor {
	c := s.cursors[shard]
	c.Shard = shard
	return c
}

// MoveCursor replaces a cursor that is as read still.
func (p *Process) MoveCursor(ctx context.Context, old, next core.Cursor) error {
	_, err := get(ctx, p, "move cursor", func(s *Store) (struct{}, error) {
		if have := s.cursor(next.Shard); have != old && have != next {
			return struct{}{}, &core.RefusedError{Op: "move cursor", Record: fmt.Sprint("cursor ", next.Shard), Why: "cursor"}
		}
		s.cursors[next.Shard] = next
		p.wrote("move cursor")
		return struct{}{}, nil
	})
	return err
}

// Take takes tokens of a minute's budget.
func (p *Process) Take(ctx context.Context, minute core.Millis, want, most int) (int, error) {
	return get(ctx, p, "take budget", func(s *Store) (int, error) {
		got := max(0, min(want, most-s.taken[minute]))
		s.taken[minute] += got
		return got, nil
	})
}
