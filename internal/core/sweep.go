package core

import (
	"context"
)

// IndexEntry is a run as a sparse index shows it. The index lags: an entry says
// where to look, never what is.
type IndexEntry struct {
	RunKey
	Row Row
	At  Millis // detachedSince, or the due time
}

// DueSandbox is an instance record or a ledger row as the due index shows it;
// exactly one of Key and Instance is set.
type DueSandbox struct {
	Key      SandboxKey // an idle sandbox
	Instance InstanceID // an open ledger row
	At       Millis
}

// Shards is how many shards each sparse index has (DESIGN 4.1).
const Shards = 8

// RunIndex lists what a sweep has to look at. A listing that failed, on any page,
// is an error and never a shorter listing (I10).
type RunIndex interface {
	// Detached lists a shard's detached runs, oldest first, all pages.
	Detached(ctx context.Context, shard int) ([]IndexEntry, error)
	// Due lists a shard's due rows up to until, inclusive, oldest first, all pages.
	Due(ctx context.Context, shard int, until Millis) ([]IndexEntry, error)
	// Load reads records consistently, in any order; absent ones are left out.
	Load(ctx context.Context, keys []RunKey) ([]Run, error)
}

// SandboxIndex lists idle sandboxes and open ledger rows that are due.
type SandboxIndex interface {
	// DueSandboxes lists a shard's due rows up to until, inclusive, oldest first, all
	// pages. A listing that failed is an error (I10).
	DueSandboxes(ctx context.Context, shard int, until Millis) ([]DueSandbox, error)
}
