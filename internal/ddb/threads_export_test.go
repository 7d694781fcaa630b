package ddb

import (
	"context"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

func (s *Threads) SeedThread(ctx context.Context, th core.Thread) error {
	it, err := encodeThread(th)
	return seed(ctx, s.client, s.table, it, err)
}

func (s *Threads) SeedCheckpoint(ctx context.Context, c core.Checkpoint) error {
	it, err := encodeCheckpoint(c)
	if err := seed(ctx, s.client, s.table, it, err); err != nil {
		return err
	}
	it, err = encodeName(c.Tenant, core.NameOf(c))
	return seed(ctx, s.client, s.table, it, err)
}
