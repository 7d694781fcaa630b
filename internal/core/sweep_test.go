package core_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// TestOneSweepEndsWhatHasEndedAndLeavesTheRest is the main job: each kind of run
// once, in one sweep (I1, I2, I4, I5).
func TestOneSweepEndsWhatHasEndedAndLeavesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.seedMainScenario()
		report := w.tick()
		want := map[core.RunID]core.Outcome{
			"zero": core.Finalized, "three": core.Finalized, "long": core.Finalized, "producing": core.Producing,
			"silent": core.Producing, "expired": core.Expired, "traps": core.Expired, "dead-task": core.Lost,
			"lapsed": core.Finalized, "cancelled": core.Cancelled,
		}
		if got := outcomes(report); !maps.Equal(got, want) {
			t.Errorf("outcomes %v, want %v", got, want)
		}
		if report.Outcomes[core.Finalized] != 4 || report.Considered != 10 {
			t.Errorf("report %+v", report)
		}
		time.Sleep(2 * time.Minute)
		w.tick()
		w.checkMainScenario()
	})
}

// seedMainScenario begins runs of every kind the spine knows.
func (w *world) seedMainScenario() {
	w.begin("expired", func(q *core.RunRequest) { q.TTLSeconds = 30 })
	w.begin("traps", func(q *core.RunRequest) { q.TTLSeconds = 30 })
	w.fleet.Write("expired", "half done")
	w.fleet.Write("traps", "traps\n")
	w.detach("expired")
	w.detach("traps")
	w.begin("lapsed", nil) // its host dies now
	w.fleet.Write("lapsed", "nobody listens\n")
	w.fleet.Exit("lapsed", 0)
	time.Sleep(100 * time.Second)
	w.left("zero", "done\n")
	w.left("three", "oh no")
	w.left("long", long)
	w.left("producing", "at work\n")
	w.left("silent", "")
	dead := w.left("dead-task", "cut off")
	w.left("cancelled", "unwanted")
	w.fleet.Exit("zero", 0)
	w.fleet.Exit("three", 3)
	w.fleet.Exit("long", 0)
	w.fleet.KillTask(dead.TaskARN)
	r := w.run("cancelled")
	if _, err := w.store.Update(w.t.Context(), r.RunKey, core.RequestCancel{Now: now(), Row: r.Row}); err != nil {
		w.t.Fatal(err)
	}
}

// checkMainScenario: everything that ended is saved and reclaimed, what lives is
// as it was.
func (w *world) checkMainScenario() {
	w.t.Helper()
	w.check()
	w.ended("zero", core.Completed, "done\n")
	w.ended("three", core.Failed, "oh no")
	w.ended("long", core.Completed, long)
	w.ended("expired", core.Aborted, "half done")
	w.ended("traps", core.Completed, "traps\n")
	w.ended("lapsed", core.Completed, "nobody listens\n")
	w.ended("dead-task", core.Failed, "")
	w.ended("cancelled", core.Aborted, "unwanted")
	if r := w.run("three"); r.ExitCode == nil || *r.ExitCode != 3 || r.Error.Code != "agent-exit" || r.Error.Message != "it failed" {
		w.t.Errorf("run three: exit %v, error %+v", r.ExitCode, r.Error)
	}
	for _, run := range []string{"producing", "silent"} {
		if r := w.run(run); r.Status != core.Running || r.Epoch != 1 || r.LogEnd != 0 || !w.fleet.Alive(r.RunKey.Run) {
			w.t.Errorf("run %s was touched: %+v", run, r)
		}
	}
	if n := len(w.fleet.Running()); n != 2 {
		w.t.Errorf("%d tasks run, want the two that work", n)
	}
}

// TestCrashMatrix stops a sweep and its reclaims at every call, in every way, and
// lets the next sweeps go on: nothing is lost, leaked or stopped alive (I1 to I9).
func TestCrashMatrix(t *testing.T) {
	faults := []mem.Fault{mem.NotLanded, mem.AnswerLost, mem.StopBefore, mem.StopAfter}
	calls := 0
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.seedMainScenario()
		p := w.store.NewProcess(mem.Faults{})
		w.once(p)
		calls = len(p.Calls())
	})
	if calls < 100 {
		t.Fatalf("the scenario makes %d calls: it has shrunk", calls)
	}
	points := 0
	for n := 1; n <= calls; n++ {
		for _, fault := range faults {
			points++
			t.Run(fmt.Sprintf("%d %s", n, fault), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					w.seedMainScenario()
					w.once(w.store.NewProcess(mem.At(n, fault)))
					w.check()
					w.recover()
					w.checkMainScenario()
				})
			})
		}
	}
	t.Logf("crash matrix: %d points", points)
}

// once is one sweep and the reclaims it asks for, by a process that may fail.
func (w *world) once(p *mem.Process) {
	_, _ = w.sweep(p).Run(w.t.Context(), core.SweepRequest{})
	w.drainQueue(p)
}

// recover lets time pass and sound sweeps go on.
func (w *world) recover() {
	for range 4 {
		time.Sleep(2 * time.Minute)
		w.tick()
	}
}

// TestTwoSweepsAndReclaimsInterleaved runs a second sweep with its reclaims inside
// the first, before each of its calls.
func TestTwoSweepsAndReclaimsInterleaved(t *testing.T) {
	calls := 0
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.seedMainScenario()
		p := w.store.NewProcess(mem.Faults{})
		w.once(p)
		calls = len(p.Calls())
	})
	for n := 1; n <= calls; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.seedMainScenario()
				w.once(w.interrupted(n, func() { w.once(w.store.NewProcess(mem.Faults{})) }))
				w.check()
				w.recover()
				w.checkMainScenario()
			})
		})
	}
}

// interrupted is a process in whose nth call another does something first.
func (w *world) interrupted(n int, other func()) *mem.Process {
	return w.store.NewProcess(mem.Between(n, func(context.Context) { other() }))
}

// TestAFailedListingIsAnError: nothing is done on half a listing (I10).
func TestAFailedListingIsAnError(t *testing.T) {
	listings := 1 + 3*core.Shards // control, then three indexes a shard
	for n := 1; n <= listings; n++ {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.left("zero", "done\n")
			w.fleet.Exit("zero", 0)
			before := w.store.State()
			if _, err := w.sweep(w.store.NewProcess(mem.At(n, mem.NotLanded))).Run(t.Context(), core.SweepRequest{}); err == nil {
				t.Errorf("call %d failed, and the sweep answered", n)
			}
			if after := w.store.State(); after.Runs[key("zero")].Epoch != before.Runs[key("zero")].Epoch {
				t.Errorf("call %d failed, and a run was claimed", n)
			}
		})
	}
}

// TestOneBadRecordKeepsNoOtherRunWaiting: it is reported, and the sweep goes on.
func TestOneBadRecordKeepsNoOtherRunWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.left("bad", "x")
		w.left("zero", "done\n")
		w.fleet.Exit("bad", 0)
		w.fleet.Exit("zero", 0)
		w.store.Spoil(key("bad"), errors.New("schema version 9, want 1"))
		want := map[core.RunID]core.Outcome{"bad": core.FailedSweep, "zero": core.Finalized}
		if got := outcomes(w.tick()); !maps.Equal(got, want) {
			t.Errorf("outcomes %v, want %v", got, want)
		}
		if r := w.run("bad"); r.Status != core.Running || r.Epoch != 1 {
			t.Errorf("the bad record was touched: %+v", r)
		}
	})
}
