package mem

import (
	"context"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

var _ core.SpoolQuotas = (*Process)(nil)

// SpendSpool counts what a run has been given leave to spool.
func (p *Process) SpendSpool(ctx context.Context, k core.RunKey, spend core.SpoolSpend) error {
	_, err := get(ctx, p, "spend spool", func(s *Store) (struct{}, error) {
		have := s.spooled[k]
		have.Pieces, have.Bytes = have.Pieces+spend.Pieces, have.Bytes+spend.Bytes
		if have.Pieces > spend.MostPieces || have.Bytes > spend.MostBytes {
			return struct{}{}, &core.RefusedError{Op: "spool", Record: "run " + k.String(), Why: core.SpoolFull}
		}
		s.spooled[k] = have
		p.wrote("spend spool")
		return struct{}{}, nil
	})
	return err
}
