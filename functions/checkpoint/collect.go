package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/metrics"
	"github.com/sandkeeper/sandkeeper/internal/names"
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

// collectAll collects the garbage of all threads, or plans to.
func (h handler) collectAll(ctx context.Context, apply bool) (core.CollectAllReport, error) {
	return h.everywhere(ctx, func(key core.ThreadKey, report *core.CollectAllReport) {
		h.collectOne(ctx, core.CollectRequest{ThreadKey: key, Apply: apply}, report)
	})
}

// daily lets go of the checkpoints that the installation keeps no longer, and of what
// only they needed. What an operator keeps back it only counts.
func (h handler) daily(ctx context.Context) (core.CollectAllReport, error) {
	return h.everywhere(ctx, func(key core.ThreadKey, report *core.CollectAllReport) {
		if h.unused > 0 && h.deleted(ctx, key, report) {
			return
		}
		if h.keep > 0 && !h.keepOne(ctx, key, report) {
			return
		}
		h.collectOne(ctx, core.CollectRequest{ThreadKey: key, Apply: true}, report)
	})
}

// everywhere visits all threads, and fails at the end if any of them did. It begins
// somewhere else each time: where one invocation's time is too short, nobody's garbage
// stays for ever.
func (h handler) everywhere(ctx context.Context, visit func(core.ThreadKey, *core.CollectAllReport)) (core.CollectAllReport, error) {
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
		visit(key, &report)
	}
	h.log.InfoContext(ctx, "collect", "threads", report.Threads, "collected", report.Collected, "busy", report.Busy, "withheld", report.Withheld, "failed", report.Failed, "gone", report.Gone,
		"removed", report.Removed, "deleted", report.Deleted, "reclaimed", report.Reclaimed, "missing", report.Missing, "more", report.More)
	h.meter.Emit(metrics.OfCollection(report))
	if report.Failed > 0 {
		return report, fmt.Errorf("collect: %d of %d threads failed", report.Failed, report.Threads)
	}
	return report, nil
}

// deleted deletes a thread that nobody has used for as long as threads are kept, and tells
// whether nothing is left to do for it. One that is used, or kept back, is collected.
func (h handler) deleted(ctx context.Context, key core.ThreadKey, report *core.CollectAllReport) bool {
	since := core.MillisOf(time.Now().Add(-h.unused))
	gone, err := h.keeper.DeleteThread(ctx, core.DeleteThreadRequest{ThreadKey: key, Apply: true, UnusedSince: since})
	switch {
	case core.Refused(err):
		return false
	case err != nil:
		return !h.visited(ctx, "delete", key, err, report)
	}
	if gone.Already {
		return true // on another day
	}
	report.Gone++
	report.Deleted += gone.Deleted
	h.log.InfoContext(ctx, "delete", "tenant", string(key.Tenant), "thread", string(key.Thread), "deleted", gone.Deleted, "bytes", gone.Bytes)
	return true
}

// keepOne lets go of a thread's old checkpoints, and tells whether there is anything left
// to do for it: who could not be asked now is asked tomorrow.
func (h handler) keepOne(ctx context.Context, key core.ThreadKey, report *core.CollectAllReport) bool {
	removed, err := h.keeper.Keep(ctx, core.KeepRequest{ThreadKey: key, Newest: h.keep})
	report.Removed += len(removed)
	if core.Withheld(err) {
		return true // the collection finds the same, and counts it
	}
	return h.visited(ctx, "keep", key, err, report)
}

// visited counts a thread that was not to be had, and tells whether it was.
func (h handler) visited(ctx context.Context, what string, key core.ThreadKey, err error, report *core.CollectAllReport) bool {
	switch {
	case core.Refused(err):
		report.Busy++
	case err != nil:
		report.Failed++
		h.log.ErrorContext(ctx, what, "tenant", string(key.Tenant), "thread", string(key.Thread), "err", err)
	}
	return err == nil
}

func (h handler) collectOne(ctx context.Context, q core.CollectRequest, report *core.CollectAllReport) {
	r, err := h.keeper.Collect(ctx, q)
	if !h.visited(ctx, "collect", q.ThreadKey, err, report) {
		return
	}
	report.Collected++
	if r.Missing > 0 {
		report.Missing += r.Missing
		h.log.ErrorContext(ctx, "broken", "tenant", string(q.Tenant), "thread", string(q.Thread), "missing", r.Missing)
	}
	if r.Withheld != "" {
		report.Withheld++
		h.log.InfoContext(ctx, "withheld", "tenant", string(q.Tenant), "thread", string(q.Thread), "reason", r.Withheld, "planned", r.Garbage)
		return
	}
	report.Deleted += r.Deleted
	report.Reclaimed += r.Reclaimed
}

// parseUnused reads for how many days a thread is kept that nobody uses.
func parseUnused(text string) (time.Duration, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%s: want a whole number of days of at least 0, got %q", names.ThreadRetention, text)
	}
	return time.Duration(n) * 24 * time.Hour, nil
}

// parseKeep reads how many checkpoints of a thread outlive the day.
func parseKeep(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%s: want a whole number of at least 0, got %q", names.KeepCheckpoints, text)
	}
	return int(n), nil
}
