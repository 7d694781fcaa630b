package core_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// Each test in this file is one schedule by which an earlier text of the design, or
// of the code, went wrong, carried out step by step.

// scheduled runs a schedule in virtual time.
func scheduled(t *testing.T, schedule func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { schedule(newWorld(t)) })
}

// before returns a process in which do happens before its first call of that name.
// It is a failure if it never comes to one.
func (w *world) before(call string, do func()) *mem.Process {
	came := false
	w.t.Cleanup(func() {
		if !came {
			w.t.Errorf("no call of %q: the schedule has not been carried out", call)
		}
	})
	return w.store.NewProcess(mem.Faults{Before: func(_ context.Context, name string) {
		if name == call && !came {
			came = true
			do()
		}
	}})
}

// crashing returns a process that is stopped at its first call of that name.
func (w *world) crashing(call string, f mem.Fault) *mem.Process {
	plan := map[int]mem.Fault{}
	var p *mem.Process
	p = w.store.NewProcess(mem.Faults{At: plan, Before: func(_ context.Context, name string) {
		if name == call && len(plan) == 0 {
			plan[len(p.Calls())+1] = f
		}
	}})
	w.t.Cleanup(func() {
		if len(plan) == 0 {
			w.t.Errorf("no call of %q: the schedule has not been carried out", call)
		}
	})
	return p
}

// reclaimAs has a process reclaim the first message that waits; the message stays.
func (w *world) reclaimAs(p *mem.Process) {
	w.t.Helper()
	jobs := w.store.State().Jobs
	if len(jobs) == 0 {
		w.t.Fatal("no message waits")
	}
	_, _ = w.reclaimer(p).Do(w.t.Context(), jobs[0]) // a failed message comes again by its mark
}

// finished begins a run whose agent ends, and which a sweep closes; its reclaim
// message waits.
func (w *world) finished(run string, change func(*core.RunRequest)) {
	w.t.Helper()
	w.begin(run, change)
	w.fleet.Write(core.RunID(run), "done\n")
	w.fleet.Exit(core.RunID(run), 0)
	w.detach(run)
	if _, err := w.sweep(w.store.Process).Run(w.t.Context(), core.SweepRequest{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) taskLives(run string) bool {
	return slices.Contains(w.fleet.Running(), w.run(run).TaskARN)
}

func (w *world) hold(p *mem.Process, run string) error {
	o := &core.Operator{Runs: p, Sandboxes: p, Ledger: p, Due: p, Controls: p, Audit: p, Queue: p}
	return o.Hold(w.t.Context(), key(run), now().Add(time.Hour), core.By{Who: "ops", Why: "to see"})
}

// TestAHoldReadsTheMarkBeforeTheRow: a condemnation between the hold's two readings
// takes the mark away with the record. Had the hold read the row first, it would
// have met neither, and answered ok for a task about to be stopped.
func TestAHoldReadsTheMarkBeforeTheRow(t *testing.T) {
	for n := range 2 {
		scheduled(t, func(w *world) {
			w.finished("r", nil)
			var err error
			reclaim := w.before("condemn", func() {
				readings := 0
				p := w.store.NewProcess(mem.Faults{Before: func(_ context.Context, name string) {
					if name != "read sandbox" && name != "read ledger row" {
						return
					}
					if readings++; readings == n+1 {
						w.condemnAsMarked("r")
					}
				}})
				err = w.hold(p, "r")
			})
			w.reclaimAs(reclaim)
			if !errors.Is(err, core.ErrTooLate) {
				t.Errorf("condemned before reading %d of the hold: it answers %v, want that it is too late", n+1, err)
			}
		})
	}
}

// condemnAsMarked is the condemnation by the reclaimer whose mark the sandbox
// carries.
func (w *world) condemnAsMarked(run string) {
	w.t.Helper()
	r := w.run(run)
	box, err := w.store.Sandbox(w.t.Context(), r.SandboxKey)
	if err == nil {
		err = w.store.Condemn(w.t.Context(), core.Condemn{
			Instance: r.Instance, Key: r.SandboxKey, By: box.Reclaiming, Why: "run ended", Now: now(), DueAt: now().Add(time.Minute),
		})
	}
	if err != nil {
		w.t.Error(err)
	}
}

// TestARunThatNeverHadATaskHasAWholeTranscript: nothing was written, so nothing is
// missing, whatever ended it.
func TestARunThatNeverHadATaskHasAWholeTranscript(t *testing.T) {
	scheduled(t, func(w *world) {
		r, err := w.launcher(w.store.Process).Start(t.Context(), core.RunRequest{RunKey: key("r"), Thread: "t", HostNonce: "h"})
		if err == nil {
			_, err = core.RequestCancelOf(t.Context(), w.store, r.RunKey)
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		w.tick()
		if r := w.run("r"); r.Status != core.Aborted || !r.Transcript.Complete {
			t.Errorf("run %s, transcript %+v, want aborted and whole", r.Status, r.Transcript)
		}
	})
}
