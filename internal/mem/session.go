package mem

import (
	"cmp"
	"context"
	"slices"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

var _ core.SessionTransactions = (*Process)(nil)

// Resume carries out t, all or nothing.
func (p *Process) Resume(ctx context.Context, t core.Resumed) error {
	return p.transact(ctx, t.Name(), func(s *Store) error {
		before, err := s.run(t.Run)
		if err != nil {
			return err
		}
		after, err := t.ApplyRun(clone(before))
		if err != nil {
			return unless(t.Landed(before), err)
		}
		box, err := s.box(t.Sandbox.Key)
		if err != nil {
			return err
		}
		passed, err := t.ApplySandbox(box)
		if err != nil {
			return err
		}
		if t.Debt != nil {
			if err := s.moveDebt(*t.Debt); err != nil {
				return err
			}
		}
		s.accuseRun(t.Name(), before, after)
		s.setRun(after)
		s.setBox(passed)
		p.wrote("resumed " + t.Run.String())
		return nil
	})
}

// moveDebt carries out t as a part of another transaction.
func (s *Store) moveDebt(t core.MoveDebt) error {
	before, err := s.run(t.Run)
	if err != nil {
		return err
	}
	after, err := t.ApplyRun(clone(before))
	if err != nil {
		return err
	}
	row, err := s.row(t.Instance)
	if err != nil {
		return err
	}
	moved, err := t.ApplyRow(row)
	if err != nil {
		return err
	}
	s.accuseRow(t.Name(), row, moved)
	s.accuseRun(t.Name(), before, after)
	s.setRun(after)
	s.setRow(moved)
	return nil
}

// Continue carries out t, all or nothing.
func (p *Process) Continue(ctx context.Context, t core.Continued) error {
	return p.transact(ctx, t.Name(), func(s *Store) error {
		if have, ok := s.runs[t.Child.RunKey]; ok {
			return t.Met(have)
		}
		before, err := s.run(t.Parent)
		if err != nil {
			return err
		}
		after, err := t.ApplyParent(clone(before))
		if err != nil {
			return err
		}
		if t.Sandbox != nil {
			box, err := s.box(t.Sandbox.Key)
			if err != nil {
				return err
			}
			passed, err := t.ApplySandbox(box)
			if err != nil {
				return err
			}
			s.setBox(passed)
		}
		s.accuseRun("finish", before, after)
		s.accuseRun("create", core.Run{}, t.Child)
		s.setRun(after)
		s.setRun(t.Child)
		p.wrote("continued " + t.Parent.String())
		return nil
	})
}

var _ core.ThreadHistory = (*Process)(nil)

// ThreadRuns lists a thread's runs, newest first.
func (p *Process) ThreadRuns(ctx context.Context, k core.ThreadKey) ([]core.RunKey, error) {
	return get(ctx, p, "list runs of thread", func(s *Store) ([]core.RunKey, error) {
		var runs []core.Run
		for _, r := range s.runs {
			if r.Tenant == k.Tenant && r.Thread == k.Thread {
				runs = append(runs, r)
			}
		}
		slices.SortFunc(runs, func(a, b core.Run) int {
			return cmp.Or(cmp.Compare(b.StartedAt, a.StartedAt), cmp.Compare(a.RunKey.Run, b.RunKey.Run))
		})
		var keys []core.RunKey
		for _, r := range runs {
			keys = append(keys, r.RunKey)
		}
		return keys, nil
	})
}
