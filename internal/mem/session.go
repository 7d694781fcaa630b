package mem

import (
	"context"

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
		s.accuseRun(t.Name(), before, after)
		s.setRun(after)
		s.setBox(passed)
		p.wrote("resumed " + t.Run.String())
		return nil
	})
}
