package core_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// owed is an installation in which run r has ended, its task still runs, and the
// message that its sandbox's end is owed has been sent.
type owed struct {
	*world
	job      core.ReclaimJob
	provider string
	foreign  bool // the sandbox is another installation's to end
	stops    int
	asked    []core.CaptureRequest
	keeper   core.Checkpointer         // where capture is not set
	stop     func() (core.Task, error) // instead of ECS, if set
	capture  func() (core.Captured, error)
}

// owe ends run r by its agent, or by end if given.
func owe(t *testing.T, kind core.ReclaimKind, end func(w *world)) *owed {
	o := &owed{world: newWorld(t), provider: "fargate"}
	o.begin("r", func(q *core.RunRequest) { q.Reclaim = kind })
	o.fleet.Write("r", "text\n")
	o.detach("r")
	if end == nil {
		end = func(w *world) { w.fleet.Exit("r", 0) }
	}
	end(o.world)
	if _, err := o.sweep(o.store.Process).Run(t.Context(), core.SweepRequest{}); err != nil {
		t.Fatal(err)
	}
	jobs := o.store.TakeJobs()
	if len(jobs) != 1 {
		t.Fatalf("sent %+v", jobs)
	}
	o.job = jobs[0]
	return o
}

// Stop counts, and may answer in ECS's place.
func (o *owed) Stop(ctx context.Context, cluster, arn, reason string) (core.Task, error) {
	o.stops++
	if o.stop != nil {
		return o.stop()
	}
	return o.fleet.View(o.store.Process).Stop(ctx, cluster, arn, reason)
}

// Capture answers as told.
func (o *owed) Capture(_ context.Context, q core.CaptureRequest) (core.Captured, error) {
	o.asked = append(o.asked, q)
	if o.capture == nil && o.keeper != nil {
		return o.keeper.Capture(context.Background(), q)
	}
	if o.capture == nil {
		return core.Captured{State: core.CaptureDone, ID: core.CheckpointOf(q.Run.RunKey.Run)}, nil
	}
	return o.capture()
}

func (o *owed) do(p *mem.Process, job core.ReclaimJob) (core.ReclaimOutcome, error) {
	c := o.reclaimer(p)
	c.Provider, c.Stopper, c.Checkpoints = o.provider, o, o
	return c.Do(o.t.Context(), job)
}

// expect does a message and compares its outcome and whether it has to come again.
func (o *owed) expect(job core.ReclaimJob, want core.ReclaimOutcome, again bool) {
	o.t.Helper()
	if got, err := o.do(o.store.Process, job); got != want || (err != nil) != again {
		o.t.Errorf("%s %q: %v, want %q, again %t", job.Kind, got, err, want, again)
	}
}

func (o *owed) row() core.LedgerRow { return o.store.State().Rows[o.job.Instance] }

func (o *owed) box() core.Sandbox { return o.store.State().Sandboxes[o.job.Key] }

// mark compares the run's mark: when it is due, zero if it is gone, and the outcome
// that stands there.
func (o *owed) mark(due core.Millis, outcome core.ReclaimOutcome) {
	o.t.Helper()
	r := o.run("r")
	row := core.RowReclaim
	if due == 0 {
		row = core.RowNone
	}
	if r.Row != row || r.DueAt != due || r.ReclaimOutcome != outcome {
		o.t.Errorf("mark %q due at %d with %q, want %q due at %d with %q", r.Row, r.DueAt, r.ReclaimOutcome, row, due, outcome)
	}
}

// running compares whether the task runs, and how often it was told to stop.
func (o *owed) running(runs bool, stops int) {
	o.t.Helper()
	if got := len(o.fleet.Running()) > 0; got != runs || o.stops != stops {
		o.t.Errorf("task runs: %t after %d stops, want %t after %d", got, o.stops, runs, stops)
	}
}

// untouched runs do and fails if it changed a record of tasks.
func (o *owed) untouched(do func()) {
	o.t.Helper()
	before := o.store.State()
	do()
	after := o.store.State()
	if !reflect.DeepEqual(before.Sandboxes, after.Sandboxes) || !reflect.DeepEqual(before.Rows, after.Rows) {
		o.t.Errorf("touched: %+v %+v, was %+v %+v", after.Sandboxes, after.Rows, before.Sandboxes, before.Rows)
	}
}

// outcomeCase is one way for a message to be done.
type outcomeCase struct {
	what string
	kind core.ReclaimKind
	end  func(w *world) // of run r; nil: its agent ends 0
	test func(o *owed)
}

// TestReclaimOutcomes reaches every outcome of a message.
func TestReclaimOutcomes(t *testing.T) {
	for _, c := range outcomeCases {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := owe(t, c.kind, c.end)
				if c.test(o); !o.foreign {
					o.check()
				}
			})
		})
	}
}

var outcomeCases = []outcomeCase{
	{"an ended run's task is stopped, its record and mark are gone", core.ReclaimEnd, nil, func(o *owed) {
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.running(false, 1)
		o.mark(0, core.ReclaimDestroyed)
		if o.row().State != core.LedgerClosed || o.box().Instance != "" {
			o.t.Errorf("row %+v, record %+v", o.row(), o.box())
		}
		o.untouched(func() { o.expect(o.job, core.ReclaimDestroyed, false) }) // a late duplicate
		o.running(false, 1)
	}},
	{"a run without a sandbox has nothing to let go of", core.ReclaimEnd, nil, func(o *owed) {
		r := endedRun("bare")
		o.store.SeedRun(r)
		o.untouched(func() {
			o.expect(core.ReclaimJob{Tenant: "acme", Run: "bare", Kind: core.JobEnd}, core.ReclaimNoSandboxKey, false)
			o.expect(core.ReclaimJob{Tenant: "acme", Run: "none", Kind: core.JobEnd}, core.ReclaimNotFound, false)
		})
		if r := o.run("bare"); r.Row != core.RowNone || r.ReclaimOutcome != core.ReclaimNoSandboxKey {
			o.t.Errorf("mark %s, %s", r.Row, r.ReclaimOutcome)
		}
	}},
	{"a message that forgets the instance of a run is refused", core.ReclaimEnd, nil, func(o *owed) {
		o.untouched(func() {
			o.expect(core.ReclaimJob{Tenant: "acme", Run: "r", Kind: core.JobEnd}, core.ReclaimDestroyFailed, true)
		})
		o.running(true, 0)
	}},
	{"what has neither row nor record is not found", core.ReclaimEnd, nil, func(o *owed) {
		o.untouched(func() {
			o.expect(core.ReclaimJob{Tenant: "acme", Run: "r", Key: "k", Instance: "none", Kind: core.JobEnd}, core.ReclaimNotFound, false)
			o.expect(core.ReclaimJob{Instance: "none", Kind: core.JobLedger}, core.ReclaimNotFound, false)
			o.expect(core.ReclaimJob{Key: o.job.Key, Instance: "none", Kind: core.JobDue}, core.ReclaimNotFound, false)
		})
	}},
	{"another provider's sandbox is not touched", core.ReclaimEnd, nil, func(o *owed) {
		o.provider = "another"
		o.untouched(func() { o.expect(o.job, core.ReclaimProviderMismatch, false) })
		o.running(true, 0)
		o.mark(0, core.ReclaimProviderMismatch)
		o.foreign = true
	}},
	{"another provider's condemned task is not touched", core.ReclaimEnd, nil, func(o *owed) {
		o.condemn()
		o.provider = "another"
		o.untouched(func() { o.expect(o.job, core.ReclaimProviderMismatch, false) })
		o.running(true, 0)
	}},
	{"a sandbox that a newer run has is left to it", core.ReclaimEnd, nil, func(o *owed) {
		o.resume("newer")
		o.untouched(func() { o.expect(o.job, core.ReclaimInUse, false) })
		o.running(true, 0)
		o.mark(0, core.ReclaimInUse)
	}},
	{"a sandbox whose run lives is left alone", core.ReclaimEnd, nil, func(o *owed) {
		live := o.begin("live", nil)
		o.untouched(func() {
			o.expect(core.ReclaimJob{Tenant: "acme", Run: "live", Key: live.SandboxKey, Instance: live.Instance, Kind: core.JobEnd}, core.ReclaimInUse, false)
		})
		if !o.fleet.Alive("live") {
			o.t.Error("its agent was ended")
		}
	}},
	{"a held run's sandbox stays until the hold is over", core.ReclaimEnd, nil, func(o *owed) {
		until := now().Add(time.Hour)
		o.hold(until)
		o.expect(o.job, core.ReclaimHeld, false)
		o.running(true, 0)
		o.mark(until, core.ReclaimHeld)
		if o.box().Reclaiming != "" {
			o.t.Error("the mark stayed, and refuses the next turn")
		}
		time.Sleep(time.Hour)
		o.expect(o.job, core.ReclaimDestroyed, false)
	}},
	{"a held sandbox stays whatever its run says", core.ReclaimEnd, nil, func(o *owed) {
		box := o.box()
		box.HoldUntil = now().Add(time.Hour)
		o.store.SeedSandbox(box)
		o.expect(o.job, core.ReclaimHeld, false)
		o.mark(box.HoldUntil, core.ReclaimHeld)
		o.running(true, 0)
	}},
	{"nothing is stopped in a frozen installation", core.ReclaimEnd, nil, func(o *owed) {
		o.store.SetControl(core.Control{Frozen: true})
		o.expect(o.job, core.ReclaimFrozen, false)
		o.running(true, 0)
		o.mark(now().Add(o.limits.Frozen), core.ReclaimFrozen)
		if o.box().Reclaiming != "" || o.row().State != core.LedgerRunning {
			o.t.Errorf("record %+v, row %+v", o.box(), o.row())
		}
	}},
	{"nothing is stopped by an installation that observes", core.ReclaimEnd, nil, func(o *owed) {
		o.store.SetControl(core.Control{Mode: core.Observe})
		o.expect(o.job, core.ReclaimFrozen, false)
		o.running(true, 0)
	}},
	{"a tripped breaker holds back what ended without a sentinel", core.ReclaimEnd, func(w *world) { time.Sleep(w.limits.RunTTL) }, func(o *owed) {
		o.store.SetControl(core.Control{Breaker: core.Breaker{TrippedAt: 1}})
		o.expect(o.job, core.ReclaimFrozen, false)
		o.running(true, 0)
	}},
	{"a tripped breaker lets go what ended by itself", core.ReclaimEnd, nil, func(o *owed) {
		o.store.SetControl(core.Control{Breaker: core.Breaker{TrippedAt: 1}})
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.running(false, 1)
	}},
	{"a sandbox may be kept warm", core.ReclaimIdle, nil, func(o *owed) {
		o.expect(o.job, core.ReclaimIdled, false)
		o.running(true, 0)
		o.mark(0, core.ReclaimIdled)
		if box := o.box(); box.IdleSince != now() || box.DueAt != now().Add(o.limits.IdleTTL) || box.Reclaiming != "" {
			o.t.Errorf("record %+v", box)
		}
		time.Sleep(time.Minute)
		o.untouched(func() { o.expect(o.job, core.ReclaimNotFound, false) }) // a late duplicate
	}},
}

// condemn brings the sandbox behind its point of no return, and no further.
func (o *owed) condemn() {
	o.t.Helper()
	o.stop = func() (core.Task, error) { return core.Task{}, errors.New("throttled") }
	o.expect(o.job, core.ReclaimDestroyFailed, true)
	o.stop, o.stops = nil, 0
	if o.row().State != core.LedgerStopping || o.box().Instance != "" {
		o.t.Fatalf("row %+v, record %+v", o.row(), o.box())
	}
}

func (o *owed) hold(until core.Millis) {
	o.t.Helper()
	if _, err := o.store.Update(o.t.Context(), key("r"), core.SetHold{Hold: core.Hold{Until: until, By: "b", Why: "w"}}); err != nil {
		o.t.Fatal(err)
	}
}

// resume lets a newer run of the thread have the sandbox.
func (o *owed) resume(run string) {
	box, r := o.box(), leftRun(run)
	r.Instance, r.TaskARN, r.SandboxKey, r.DetachedSince = box.Instance, box.TaskARN, box.Key, now()
	o.store.SeedRun(r)
	box.LatestRun, box.DueAt, box.IdleSince = r.RunKey.Run, 0, 0
	o.store.SeedSandbox(box)
}

// TestAnIdleSandboxEnds: it is announced when it is due, stopped unless somebody
// took it or holds it, and counted by the breaker.
func TestAnIdleSandboxEnds(t *testing.T) {
	for what, test := range map[string]func(o *owed, due core.ReclaimJob){
		"when nobody came back": func(o *owed, due core.ReclaimJob) {
			o.expect(due, core.ReclaimDestroyed, false)
			o.running(false, 1)
			if o.box().Instance != "" || o.row().State != core.LedgerClosed || o.store.State().Jobs != nil {
				o.t.Errorf("record %+v, row %+v", o.box(), o.row())
			}
			o.untouched(func() { o.expect(due, core.ReclaimDestroyed, false) })
		},
		"not when a run has taken it": func(o *owed, due core.ReclaimJob) {
			o.resume("next")
			o.untouched(func() { o.expect(due, core.ReclaimInUse, false) })
			o.running(true, 0)
		},
		"not when a run has taken it and ended": func(o *owed, due core.ReclaimJob) {
			o.resume("next")
			o.store.SeedRun(endedRecord(o.run("next"), core.Completed, now()))
			o.untouched(func() { o.expect(due, core.ReclaimInUse, false) })
			o.running(true, 0)
		},
		"not while it is held": func(o *owed, due core.ReclaimJob) {
			until := now().Add(time.Hour)
			o.hold(until)
			o.expect(due, core.ReclaimHeld, false)
			o.running(true, 0)
			if box := o.box(); box.DueAt != until || box.Reclaiming != "" {
				o.t.Errorf("record %+v, want the idle row at the hold's end", box)
			}
		},
		"not while the installation is frozen": func(o *owed, due core.ReclaimJob) {
			o.store.SetControl(core.Control{Frozen: true})
			o.expect(due, core.ReclaimFrozen, false)
			o.running(true, 0)
			if box := o.box(); box.DueAt != now().Add(o.limits.Frozen) || box.Reclaiming != "" {
				o.t.Errorf("record %+v, want the idle row later", box)
			}
		},
		"not while the breaker is tripped": func(o *owed, due core.ReclaimJob) {
			o.store.SetControl(core.Control{Breaker: core.Breaker{TrippedAt: 1}})
			o.expect(due, core.ReclaimFrozen, false)
			o.running(true, 0)
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := owe(t, core.ReclaimIdle, nil)
				o.expect(o.job, core.ReclaimIdled, false)
				time.Sleep(o.limits.IdleTTL)
				report, err := o.sweep(o.store.Process).Run(t.Context(), core.SweepRequest{})
				jobs := o.store.TakeJobs()
				if err != nil || report.Resent != 1 || len(jobs) != 1 || jobs[0].Kind != core.JobDue {
					t.Fatalf("%v, %+v, sent %+v", err, report, jobs)
				}
				test(o, jobs[0])
				o.check()
			})
		})
	}
}

// TestControlIsReadBeforeEachStopTask freezes the installation at every call of a
// reclaim: once the freeze is written, no StopTask follows a later read (I13).
func TestControlIsReadBeforeEachStopTask(t *testing.T) {
	calls := 0
	synctest.Test(t, func(t *testing.T) {
		o := owe(t, core.ReclaimEnd, nil)
		p := o.store.NewProcess(mem.Faults{})
		if outcome, err := o.do(p, o.job); outcome != core.ReclaimDestroyed || err != nil {
			t.Fatal(outcome, err)
		}
		calls = len(p.Calls())
	})
	stopped, kept := 0, 0
	for n := 1; n <= calls; n++ {
		synctest.Test(t, func(t *testing.T) {
			o := owe(t, core.ReclaimEnd, nil)
			readAfter := false
			count := 0
			p := o.store.NewProcess(mem.Faults{Before: func(_ context.Context, name string) {
				if count++; count == n {
					o.store.SetControl(core.Control{Frozen: true})
				}
				readAfter = readAfter || count >= n && name == "read control"
			}})
			outcome, err := o.do(p, o.job)
			switch {
			case readAfter && (o.stops > 0 || outcome != core.ReclaimFrozen || err != nil):
				t.Errorf("frozen before call %d and read after: %d stops, %q, %v", n, o.stops, outcome, err)
			case o.stops > 0:
				stopped++
			default:
				kept++
			}
			o.check()
		})
	}
	if stopped == 0 || kept == 0 {
		t.Errorf("%d reclaims stopped, %d did not: the freeze came always or never in time", stopped, kept)
	}
}

// TestACondemnedTaskWaitsForAThaw: a freeze that comes between a first StopTask that
// failed and its repeat holds the repeat back (I13).
func TestACondemnedTaskWaitsForAThaw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := owe(t, core.ReclaimEnd, nil)
		o.condemn()
		o.store.SetControl(core.Control{Frozen: true})
		ledger := core.ReclaimJob{Tenant: "acme", Instance: o.job.Instance, Kind: core.JobLedger}
		o.expect(o.job, core.ReclaimFrozen, false)
		o.expect(ledger, core.ReclaimFrozen, false)
		o.running(true, 0)
		if due := o.row().DueAt; due != now().Add(o.limits.Frozen) {
			t.Errorf("row due at %d", due)
		}
		o.store.SetControl(core.Control{})
		o.expect(ledger, core.ReclaimDestroyed, false)
		o.running(false, 1)
		o.expect(o.job, core.ReclaimDestroyed, false) // the run's own mark goes as well
		o.mark(0, core.ReclaimDestroyed)
		o.check()
	})
}

// TestAStopThatIsTurnedAwayIsAskedAgainSoon: a few times by one message, and not once the
// installation is frozen, or its breaker trips, in between (I13).
func TestAStopThatIsTurnedAwayIsAskedAgainSoon(t *testing.T) {
	away := func() (core.Task, error) { return core.Task{}, fmt.Errorf("stop: %w", core.ErrTurnedAway) }
	for what, tt := range map[string]struct {
		spoken  core.Control // after the first
		until   int          // from which on it is carried out
		outcome core.ReclaimOutcome
		stops   int
		fails   bool
	}{
		"once":             {until: 2, outcome: core.ReclaimDestroyed, stops: 2},
		"twice":            {until: 3, outcome: core.ReclaimDestroyed, stops: 3},
		"each time":        {until: 9, outcome: core.ReclaimDestroyFailed, stops: 3, fails: true},
		"before a freeze":  {until: 2, spoken: core.Control{Frozen: true}, outcome: core.ReclaimFrozen, stops: 1},
		"before observing": {until: 2, spoken: core.Control{Mode: core.Observe}, outcome: core.ReclaimFrozen, stops: 1},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := owe(t, core.ReclaimEnd, nil)
				o.stop = func() (core.Task, error) {
					o.store.SetControl(tt.spoken)
					if o.stops+1 >= tt.until {
						o.stop = nil
					}
					return away()
				}
				begun := time.Now()
				o.expect(o.job, tt.outcome, tt.fails)
				if o.stops != tt.stops || time.Since(begun) > 10*time.Second {
					t.Errorf("asked %d times in %s, want %d", o.stops, time.Since(begun), tt.stops)
				}
				if tt.outcome == core.ReclaimFrozen {
					o.running(true, 1)
				}
				o.store.SetControl(core.Control{})
				o.check()
			})
		})
	}
}

// TestAStopIsAskedAgainOnlyInTime: what is left of an invocation is for noting that the stop
// failed.
func TestAStopIsAskedAgainOnlyInTime(t *testing.T) {
	for left, stops := range map[time.Duration]int{time.Second: 1, 20 * time.Second: 1, 40 * time.Second: 3} {
		t.Run(left.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := owe(t, core.ReclaimEnd, nil)
				o.stop = func() (core.Task, error) { return core.Task{}, core.ErrTurnedAway }
				ctx, cancel := context.WithTimeout(t.Context(), left)
				defer cancel()
				c := o.reclaimer(o.store.Process)
				c.Stopper, c.Checkpoints = o, o
				outcome, err := c.Do(ctx, o.job)
				if outcome != core.ReclaimDestroyFailed || !errors.Is(err, core.ErrTurnedAway) || o.stops != stops {
					t.Errorf("asked %d times, want %d: %s, %v", o.stops, stops, outcome, err)
				}
				if row := o.row(); row.Attempts != 1 || ctx.Err() != nil {
					t.Errorf("row %+v, %v; want the attempt noted in time", row, ctx.Err())
				}
			})
		})
	}
}

// TestALedgerMessageStopsOnlyWhatIsCondemned: on an open launch or a task in service
// it does nothing.
func TestALedgerMessageStopsOnlyWhatIsCondemned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := owe(t, core.ReclaimEnd, nil)
		o.store.SeedRow(core.LedgerRow{Instance: "intent", State: core.LedgerIntent, Provider: "fargate", LaunchUntil: now(), DueAt: now()})
		o.untouched(func() {
			for _, id := range []core.InstanceID{o.job.Instance, "intent"} {
				o.expect(core.ReclaimJob{Tenant: "acme", Instance: id, Kind: core.JobLedger}, core.ReclaimNotFound, false)
			}
		})
		o.running(true, 0)
	})
}

// TestAFailedStopComesAgain: later each time, until the task is gone; the next turn
// never finds the condemned task.
func TestAFailedStopComesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := owe(t, core.ReclaimEnd, nil)
		o.stop = func() (core.Task, error) { return core.Task{}, errors.New("throttled") }
		for _, minutes := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			o.expect(o.job, core.ReclaimDestroyFailed, true)
			due := now().Add(minutes * time.Minute)
			if row := o.row(); row.State != core.LedgerStopping || row.DueAt != due || o.box().Instance != "" {
				t.Errorf("row %+v, want it due in %d minutes; record %+v", row, minutes, o.box())
			}
			o.mark(due, core.ReclaimDestroyFailed)
			time.Sleep(minutes * time.Minute)
		}
		o.stop = nil
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.running(false, 9)
		o.check()
	})
}

// TestATaskOnItsWayOutIsLetGoOnce: ECS accepted the stop, so the mark goes; the row
// stays open until ECS says STOPPED, and nobody asks for another stop.
func TestATaskOnItsWayOutIsLetGoOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := owe(t, core.ReclaimEnd, nil)
		arn := o.run("r").TaskARN
		o.stop = func() (core.Task, error) { return core.Task{ARN: arn, Life: core.TaskLeaving}, nil }
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.mark(0, core.ReclaimDestroyed)
		if row := o.row(); row.State != core.LedgerStopping || row.DueAt != now().Add(o.limits.RetryStop) {
			t.Errorf("row %+v", row)
		}
		o.fleet.KillTask(arn) // now it has stopped
		o.expect(core.ReclaimJob{Tenant: "acme", Instance: o.job.Instance, Kind: core.JobLedger}, core.ReclaimDestroyed, false)
		o.running(false, 1)
		if row := o.row(); row.State != core.LedgerClosed {
			t.Errorf("row %+v", row)
		}
		o.check()
	})
}

// TestATaskThatECSDoesNotKnowClosesLate: it may be a task that ECS does not show yet.
func TestATaskThatECSDoesNotKnowClosesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := owe(t, core.ReclaimEnd, nil)
		o.fleet.Forget(o.run("r").TaskARN)
		condemned := now()
		for now() < condemned.Add(o.limits.MissingGrace) {
			o.expect(o.job, core.ReclaimDestroyFailed, false)
			if o.row().State != core.LedgerStopping {
				t.Fatalf("closed after %s", now().Sub(condemned))
			}
			time.Sleep(time.Minute)
		}
		o.expect(o.job, core.ReclaimDestroyed, false)
		if o.row().State != core.LedgerClosed {
			t.Errorf("row %+v", o.row())
		}
		o.check()
	})
}

// TestACondemnedRowGetsItsTaskFromTheSweep: a row whose RunTask answer was lost is
// condemned without a task; nothing can be stopped until the sweep has found it.
func TestACondemnedRowGetsItsTaskFromTheSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := owe(t, core.ReclaimEnd, nil)
		row := o.row()
		row.State, row.TaskARN, row.DueAt = core.LedgerStopping, "", now()
		o.store.SeedRow(row)
		r := o.run("r")
		r.TaskARN = ""
		o.store.SeedRun(r)
		o.expect(o.job, core.ReclaimDestroyFailed, false)
		o.running(true, 0)
		o.mark(now().Add(o.limits.RetryStop), core.ReclaimDestroyFailed)
		time.Sleep(o.limits.RetryStop)
		if report, err := o.sweep(o.store.Process).Run(t.Context(), core.SweepRequest{}); err != nil || report.Settled != 1 {
			t.Errorf("%v, %+v", err, report)
		}
		for _, job := range o.store.TakeJobs() {
			o.expect(job, core.ReclaimDestroyed, false)
		}
		o.running(false, 1)
	})
}

// TestReclaimJobValidate: a message that lacks what its kind needs is refused, and
// changes nothing.
func TestReclaimJobValidate(t *testing.T) {
	whole := core.ReclaimJob{Tenant: "t", Run: "r", Key: "k", Instance: "i", Kind: core.JobEnd}
	for what, c := range map[string]struct {
		job core.ReclaimJob
		ok  bool
	}{
		"an end":                           {whole, true},
		"an idle":                          {changed(whole, func(j *core.ReclaimJob) { j.Kind = core.JobIdle }), true},
		"an end without a run":             {changed(whole, func(j *core.ReclaimJob) { j.Run = "" }), false},
		"an end without a tenant":          {changed(whole, func(j *core.ReclaimJob) { j.Tenant = "" }), false},
		"an end without an instance":       {changed(whole, func(j *core.ReclaimJob) { j.Instance = "" }), false},
		"the end of a run without sandbox": {core.ReclaimJob{Tenant: "t", Run: "r", Kind: core.JobEnd}, true},
		"an idle that is due":              {core.ReclaimJob{Key: "k", Instance: "i", Kind: core.JobDue}, true},
		"one without a key":                {core.ReclaimJob{Instance: "i", Kind: core.JobDue}, false},
		"one without an instance":          {core.ReclaimJob{Key: "k", Kind: core.JobDue}, false},
		"a condemned task":                 {core.ReclaimJob{Instance: "i", Kind: core.JobLedger}, true},
		"none":                             {core.ReclaimJob{Kind: core.JobLedger}, false},
		"an unknown kind":                  {changed(whole, func(j *core.ReclaimJob) { j.Kind = "nuke" }), false},
		"nothing":                          {core.ReclaimJob{}, false},
	} {
		if err := c.job.Validate(); (err == nil) != c.ok {
			t.Errorf("%s: %v, want ok %t", what, err, c.ok)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		o := owe(t, core.ReclaimEnd, nil)
		o.untouched(func() {
			o.expect(core.ReclaimJob{Instance: o.job.Instance, Kind: "nuke"}, core.ReclaimDestroyFailed, true)
		})
		o.running(true, 0)
	})
}
