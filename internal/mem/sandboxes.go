package mem

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Sandbox reads an instance record.
func (p *Process) Sandbox(ctx context.Context, key core.SandboxKey) (core.Sandbox, error) {
	return get(ctx, p, "read sandbox", func(s *Store) (core.Sandbox, error) { return s.box(key) })
}

func (s *Store) box(key core.SandboxKey) (core.Sandbox, error) {
	box, ok := s.boxes[key]
	if !ok {
		return core.Sandbox{}, fmt.Errorf("read sandbox %s: %w", key, core.ErrNotFound)
	}
	return box, nil
}

// UpdateSandbox carries out one transition of an instance record.
func (p *Process) UpdateSandbox(ctx context.Context, key core.SandboxKey, t core.SandboxTransition) (core.Sandbox, error) {
	return get(ctx, p, t.Name(), func(s *Store) (core.Sandbox, error) {
		before, err := s.box(key)
		if err != nil {
			return core.Sandbox{}, err
		}
		after, err := t.Apply(before)
		switch {
		case err == nil:
			s.setBox(after)
			p.wrote(t.Name() + " sandbox " + string(key))
			return after, nil
		case t.Landed(before):
			return before, nil
		default:
			return core.Sandbox{}, err
		}
	})
}

// bars reports whether another has the exec sessions of a sandbox's container.
func (s *Store) bars(key core.SandboxKey, who core.ExecHolder) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	box, ok := s.boxes[key]
	return ok && box.Exec.Bars(who, box.LatestRun, core.MillisOf(time.Now()))
}

func (s *Store) setBox(box core.Sandbox) {
	s.version++
	s.boxes[box.Key] = box
	s.boxLog[box.Key] = append(s.boxLog[box.Key], change[core.DueSandbox]{
		s.version, core.DueSandbox{Key: box.Key, At: box.DueAt}, box.DueAt == 0,
	})
}

func (s *Store) dropBox(key core.SandboxKey) {
	s.version++
	delete(s.boxes, key)
	s.boxLog[key] = append(s.boxLog[key], change[core.DueSandbox]{version: s.version, gone: true})
}

// Row reads a ledger row.
func (p *Process) Row(ctx context.Context, id core.InstanceID) (core.LedgerRow, error) {
	return get(ctx, p, "read ledger row", func(s *Store) (core.LedgerRow, error) { return s.row(id) })
}

func (s *Store) row(id core.InstanceID) (core.LedgerRow, error) {
	row, ok := s.rows[id]
	if !ok {
		return core.LedgerRow{}, fmt.Errorf("read ledger row %s: %w", id, core.ErrNotFound)
	}
	return row, nil
}

// PutIntent puts a row that must be absent, or returns the one that is there.
func (p *Process) PutIntent(ctx context.Context, row core.LedgerRow) (core.LedgerRow, error) {
	return get(ctx, p, "put intent", func(s *Store) (core.LedgerRow, error) {
		if have, ok := s.rows[row.Instance]; ok {
			return have, nil
		}
		if row.Quota > 0 && s.counted(row.Tenant) >= row.Quota {
			return core.LedgerRow{}, &core.RefusedError{Op: "put intent", Record: "tenant " + string(row.Tenant), Why: "quota"}
		}
		s.accuseRow("put intent", core.LedgerRow{}, row)
		s.setRow(row)
		p.wrote("put intent " + string(row.Instance))
		return row, nil
	})
}

// UpdateRow carries out one transition of a ledger row.
func (p *Process) UpdateRow(ctx context.Context, id core.InstanceID, t core.LedgerTransition) (core.LedgerRow, error) {
	return get(ctx, p, t.Name(), func(s *Store) (core.LedgerRow, error) {
		before, err := s.row(id)
		if err != nil {
			return core.LedgerRow{}, err
		}
		after, err := t.Apply(before)
		switch {
		case err == nil:
			s.accuseRow(t.Name(), before, after)
			s.setRow(after)
			p.wrote(t.Name() + " ledger row " + string(id))
			return after, nil
		case t.Landed(before):
			return before, nil
		default:
			return core.LedgerRow{}, err
		}
	})
}

// counted is how many open rows of a tenant are counted.
func (s *Store) counted(tenant core.TenantID) int {
	n := 0
	for _, row := range s.rows {
		if row.Tenant == tenant && row.Quota > 0 && row.State != core.LedgerClosed {
			n++
		}
	}
	return n
}

func (s *Store) setRow(row core.LedgerRow) {
	s.version++
	s.rows[row.Instance] = row
	s.rowLog[row.Instance] = append(s.rowLog[row.Instance], change[core.DueSandbox]{
		s.version, core.DueSandbox{Instance: row.Instance, At: row.DueAt}, row.DueAt == 0,
	})
}

// Launch carries out t, all or nothing.
func (p *Process) Launch(ctx context.Context, t core.Launched) error {
	return p.transact(ctx, t.Name(), func(s *Store) error {
		before, err := s.row(t.Sandbox.Instance)
		if err != nil {
			return err
		}
		row, err := t.ApplyRow(before)
		if err != nil {
			return unless(t.Landed(before), err)
		}
		run, err := s.run(t.Run)
		if err != nil {
			return err
		}
		after, err := t.ApplyRun(clone(run))
		if err != nil {
			return err
		}
		if _, ok := s.boxes[t.Sandbox.Key]; ok {
			return &core.RefusedError{Op: t.Name(), Record: "sandbox " + string(t.Sandbox.Key), Why: "exists"}
		}
		s.accuseRow(t.Name(), before, row)
		s.accuseRun(t.Name(), run, after)
		s.setRow(row)
		s.setBox(t.Sandbox)
		s.setRun(after)
		p.wrote("launched " + string(t.Sandbox.Instance))
		return nil
	})
}

// Condemn carries out t, all or nothing.
func (p *Process) Condemn(ctx context.Context, t core.Condemn) error {
	return p.transact(ctx, t.Name(), func(s *Store) error {
		before, err := s.row(t.Instance)
		if err != nil {
			return err
		}
		row, err := t.ApplyRow(before)
		if err != nil {
			return unless(t.Landed(before), err)
		}
		var box *core.Sandbox
		if have, ok := s.boxes[t.Key]; ok {
			box = &have
		}
		if err := t.CheckSandbox(box); err != nil {
			return err
		}
		s.accuseRow(t.Name(), before, row)
		s.setRow(row)
		if t.By != "" {
			s.dropBox(t.Key)
		}
		p.wrote("condemn " + string(t.Instance))
		return nil
	})
}

// MoveDebt carries out t, all or nothing.
func (p *Process) MoveDebt(ctx context.Context, t core.MoveDebt) error {
	return p.transact(ctx, t.Name(), func(s *Store) error {
		before, err := s.run(t.Run)
		if err != nil {
			return err
		}
		if err := s.moveDebt(t); err != nil {
			return unless(t.Landed(before), err)
		}
		p.wrote("move debt " + t.Run.String())
		return nil
	})
}

func (p *Process) transact(ctx context.Context, name string, do func(s *Store) error) error {
	_, err := get(ctx, p, name, func(s *Store) (struct{}, error) { return struct{}{}, do(s) })
	return err
}

func unless(landed bool, err error) error {
	if landed {
		return nil
	}
	return err
}

// DueSandboxes lists a shard's idle sandboxes and open ledger rows that are due.
func (p *Process) DueSandboxes(ctx context.Context, shard int, until core.Millis) ([]core.DueSandbox, error) {
	return get(ctx, p, "list due sandboxes", func(s *Store) ([]core.DueSandbox, error) {
		var out []core.DueSandbox
		take := func(id string, e core.DueSandbox, ok bool) {
			if ok && e.At <= until && core.ShardOfKey(id) == shard {
				out = append(out, e)
			}
		}
		for key, log := range s.boxLog {
			e, ok := shown(log, s.version-s.lag)
			take(string(key), e, ok)
		}
		for id, log := range s.rowLog {
			e, ok := shown(log, s.version-s.lag)
			take(string(id), e, ok)
		}
		slices.SortFunc(out, func(a, b core.DueSandbox) int {
			return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Instance, b.Instance))
		})
		return out, nil
	})
}
