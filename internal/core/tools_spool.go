package core

import (
	"context"
	"time"
)

// The most that one run may spool.
const (
	MaxSpoolBytes  = 1 << 30
	MaxSpoolPieces = 50_000
)

// SpoolFull is why no more leave to spool is given.
const SpoolFull = "spool-full"

// spoolGrantLife is how long a grant to spool is good: a piece is small, and asked for
// again where it was slow.
const spoolGrantLife = 5 * time.Minute

// spoolCountLife is how long the count of what a run spooled stays after its last piece.
const spoolCountLife = 7 * 24 * time.Hour

// SpoolSpend is leave that is about to be given: so much of what a run may spool.
type SpoolSpend struct {
	Pieces, Bytes         int64
	MostPieces, MostBytes int64
	ExpiresAt             Millis // when the count may go
}

// SpoolQuotas counts what runs have been given leave to spool.
type SpoolQuotas interface {
	// SpendSpool counts it in one conditional write; where that would be more than the
	// most, it is a [*RefusedError] with [SpoolFull], and nothing is counted.
	SpendSpool(ctx context.Context, key RunKey, spend SpoolSpend) error
}

// SpoolLeave is leave to store pieces of a journal.
type SpoolLeave struct {
	Grants  []Grant
	Watched bool // a host has the run, and waits for what comes next
}

// Spool gives an agent leave to store pieces of its journal, one grant for each, in the
// same order. They are a cache that S3 lets go soon; who reads them compares them with
// their names.
func (b *Bridge) Spool(ctx context.Context, a RunAgent, pieces []SpoolPiece) (SpoolLeave, error) {
	spend := SpoolSpend{
		Pieces: int64(len(pieces)), MostPieces: MaxSpoolPieces, MostBytes: MaxSpoolBytes, ExpiresAt: nowMillis().Add(spoolCountLife),
	}
	for _, p := range pieces {
		if err := p.Check(); err != nil {
			return SpoolLeave{}, invalid("bad-request", "%v", err)
		}
		spend.Bytes += p.End - p.From
	}
	if err := b.Quotas.SpendSpool(ctx, a.Key(), spend); err != nil {
		return SpoolLeave{}, err
	}
	grants := make([]Grant, len(pieces))
	for i, p := range pieces {
		var err error
		if grants[i], err = b.Grants.GrantPut(ctx, SpoolKey(a.Key(), p), p.SHA256, p.End-p.From, spoolGrantLife); err != nil {
			return SpoolLeave{}, err
		}
	}
	return SpoolLeave{grants, a.run.Status == Running && a.run.AttachedUntil > nowMillis()}, nil
}
