package core_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// slowRuns answers each reading of a run after a while, and counts them.
type slowRuns struct {
	core.Runs
	after time.Duration
	reads atomic.Int64
}

func (s *slowRuns) Run(ctx context.Context, k core.RunKey) (core.Run, error) {
	s.reads.Add(1)
	time.Sleep(s.after)
	return s.Runs.Run(ctx, k)
}

type objectStore = core.Objects

// slowObjects removes an object in a while, and tells when it begins to.
type slowObjects struct {
	objectStore
	after   time.Duration
	removes func(n int)
	n       int
}

func (s *slowObjects) Delete(ctx context.Context, key, version string) error {
	s.n++
	s.removes(s.n)
	time.Sleep(s.after)
	return s.objectStore.Delete(ctx, key, version)
}

// longLived gives the thread many runs that have ended, and one that is kept warm.
func longLived(w *keeping, ended int) {
	lived(w)
	for n := range ended {
		w.store.SeedRun(core.Run{RunKey: key(fmt.Sprintf("old%d", n)), Thread: "t", Status: core.Completed, StartedAt: 1000, FinishedAt: 2000})
	}
	w.store.SeedRun(core.Run{RunKey: key("warm"), Thread: "t", Status: core.Completed, ReclaimOutcome: core.ReclaimIdled, StartedAt: 3000, FinishedAt: 4000})
}

// TestTheHoldsOfAThreadWithManyRunsAreReadOnce: to read them takes longer than a lease
// lives, and the collection keeps its lease, and removes all that it found; each look after
// the first is at those runs that can still come to be held, where a hold is heard.
func TestTheHoldsOfAThreadWithManyRunsAreReadOnce(t *testing.T) {
	const ended = 2000
	for name, hold := range map[string]bool{"without a hold": false, "with a hold that comes late": true} {
		t.Run(name, func(t *testing.T) {
			kept(t, func(w *keeping) {
				longLived(w, ended)
				k := w.keeper(w.store.Process)
				runs := &slowRuns{Runs: k.Runs, after: 2 * time.Second}
				k.Runs = runs
				k.Objects = &slowObjects{k.Objects, core.LeaseRenew, func(n int) {
					if hold && n == 1 {
						r, err := w.store.Run(w.ctx(), key("warm"))
						w.must(err)
						r.Hold = core.Hold{Until: now().Add(time.Hour), By: "ops"}
						w.store.SeedRun(r)
					}
				}, 0}
				report, err := k.Collect(w.ctx(), core.CollectRequest{ThreadKey: thread("t"), Apply: true})
				w.must(err)
				if report.Garbage < 2 {
					t.Fatalf("nothing to look at: %+v", report)
				}
				want := core.CollectReport{Deleted: report.Garbage}
				if hold {
					want = core.CollectReport{Deleted: 1, Withheld: core.WithheldHeld}
				}
				if report.Deleted != want.Deleted || report.Withheld != want.Withheld {
					t.Errorf("collected %+v, want %+v", report, want)
				}
				if n := runs.reads.Load(); n < ended+2 || n > ended+1+int64(report.Garbage) {
					t.Errorf("%d readings of %d runs for %d objects", n, ended+1, report.Garbage)
				}
			})
		})
	}
}

// TestRetentionAndDeletionReadTheRunsOfALongThreadFewTimes, and keep their lease meanwhile.
func TestRetentionAndDeletionReadTheRunsOfALongThreadFewTimes(t *testing.T) {
	const ended = 2000
	kept(t, func(w *keeping) {
		longLived(w, ended)
		k := w.keeper(w.store.Process)
		runs := &slowRuns{Runs: k.Runs, after: 2 * time.Second}
		k.Runs = runs
		removed, err := k.Keep(w.ctx(), core.KeepRequest{ThreadKey: thread("t"), Newest: 1})
		if n := runs.reads.Swap(0); err != nil || len(removed) != 2 || n != ended+1 {
			t.Errorf("removed %v, %v, with %d readings of %d runs", removed, err, n, ended+1)
		}
		report, err := k.DeleteThread(w.ctx(), deletionOf("t"))
		if n := runs.reads.Load(); err != nil || report.Deleted == 0 || n > 3*(ended+1)+100 {
			t.Errorf("deleted %+v, %v, with %d readings of %d runs", report, err, n, ended+1)
		}
	})
}
