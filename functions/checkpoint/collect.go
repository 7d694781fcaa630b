package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// collectReserve is how much of an invocation's time is left to a thread at least.
const collectReserve = 30 * time.Second

// collectRequest is one thread's collection, or, without a thread, everybody's.
type collectRequest = core.CollectRequest

func collect(ctx context.Context, h handler, q collectRequest) (any, error) {
	if q.ThreadKey == (core.ThreadKey{}) {
		return h.collectAll(ctx, q.Apply)
	}
	return h.keeper.Collect(ctx, q)
}

// collectAll goes over all threads, and fails at the end if any of them did. It begins
// somewhere else each time: where one invocation's time is too short, nobody's garbage
// stays for ever.
func (h handler) collectAll(ctx context.Context, apply bool) (core.CollectAllReport, error) {
	keys, err := h.keeper.ThreadKeys(ctx)
	if err != nil {
		return core.CollectAllReport{}, err
	}
	report := core.CollectAllReport{Threads: len(keys)}
	if len(keys) > 0 {
		first := rand.N(len(keys))
		keys = append(keys[first:len(keys):len(keys)], keys[:first]...)
	}
	for _, key := range keys {
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < collectReserve {
			report.More = true
			break
		}
		h.collectOne(ctx, core.CollectRequest{ThreadKey: key, Apply: apply}, &report)
	}
	h.log.InfoContext(ctx, "collect", "threads", report.Threads, "collected", report.Collected, "busy", report.Busy, "failed", report.Failed,
		"deleted", report.Deleted, "reclaimed", report.Reclaimed, "missing", report.Missing, "more", report.More)
	if report.Failed > 0 {
		return report, fmt.Errorf("collect: %d of %d threads failed", report.Failed, report.Threads)
	}
	return report, nil
}

func (h handler) collectOne(ctx context.Context, q core.CollectRequest, report *core.CollectAllReport) {
	r, err := h.keeper.Collect(ctx, q)
	switch {
	case core.Refused(err):
		report.Busy++
	case err != nil:
		report.Failed++
		h.log.ErrorContext(ctx, "collect", "tenant", string(q.Tenant), "thread", string(q.Thread), "err", err)
	default:
		report.Collected++
		report.Deleted += r.Deleted
		report.Reclaimed += r.Reclaimed
		report.Missing += r.Missing
	}
}
