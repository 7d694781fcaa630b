package core_test

import (
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

func (w *world) sweepWith(request core.SweepRequest) core.SweepReport {
	w.t.Helper()
	report, err := w.sweep(w.store.Process).Run(w.t.Context(), request)
	if err != nil {
		w.t.Fatal(err)
	}
	return report
}

// TestObserveAndPlanWriteNothingAndReportTheSame: both are the same code up to the
// first write (I13).
func TestObserveAndPlanWriteNothingAndReportTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.seedMainScenario()
		before := w.store.State()
		plan := w.sweepWith(core.SweepRequest{Mode: core.ModePlan})
		w.store.SetControl(core.Control{Mode: core.Observe})
		observed := w.sweepWith(core.SweepRequest{})
		if after := w.store.State(); !reflect.DeepEqual(before, after) {
			t.Error("a plan or an observing sweep wrote")
		}
		want := map[core.RunID]core.Outcome{
			"zero": core.Finalized, "three": core.Finalized, "long": core.Finalized, "producing": core.Producing,
			"silent": core.Producing, "expired": core.Expired, "traps": core.Expired, "dead-task": core.Lost,
			"lapsed": core.Finalized, "cancelled": core.Cancelled,
		}
		for name, report := range map[string]core.SweepReport{"plan": plan, "observe": observed} {
			if got := outcomes(report); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
		w.store.SetControl(core.Control{})
		w.tick()
		if got := w.run("zero").Status; got != core.Completed {
			t.Errorf("after thawing out of observe, zero is %s", got)
		}
	})
}

// TestAPlanIsAppliedEntryByEntryAsItWas: what changed since is left alone.
func TestAPlanIsAppliedEntryByEntryAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.left("same", "done\n")
		w.left("back", "done\n")
		w.left("late", "works\n")
		w.fleet.Exit("same", 0)
		w.fleet.Exit("back", 0)
		plan := w.sweepWith(core.SweepRequest{Mode: core.ModePlan}).Plan()
		if len(plan) != 2 {
			t.Fatalf("plan %+v", plan)
		}
		w.fleet.Exit("late", 0) // finished after the plan: not in it
		r := w.run("back")
		if _, err := w.store.Update(t.Context(), r.RunKey, core.Attach{Seen: r.Epoch, Nonce: "viewer", Now: now(), Until: now().Add(time.Minute)}); err != nil {
			t.Fatal(err)
		}
		w.detach("back") // a viewer came and went: another epoch
		report := w.sweepWith(core.SweepRequest{Mode: core.ModeApply, Plan: plan})
		want := map[core.RunID]core.Outcome{"same": core.Finalized, "back": core.NotClaimed}
		if got := outcomes(report); !reflect.DeepEqual(got, want) {
			t.Errorf("applied %v, want %v", got, want)
		}
		if r := w.run("late"); r.Status != core.Running {
			t.Errorf("a run outside the plan is %s", r.Status)
		}
	})
}

// TestTheBreakerStopsAMassEnd: too many ends at once end nothing, finished runs are
// still saved, and thaw lets go (DESIGN 5).
func TestTheBreakerStopsAMassEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.limits.BreakerMost = 3
		w.left("fine", "done\n")
		w.fleet.Exit("fine", 0)
		for i := range 4 {
			r := w.left(fmt.Sprint("lost-", i), "x")
			w.fleet.KillTask(r.TaskARN)
		}
		w.tick()
		report := w.tick()
		if report.Outcomes[core.Held] != 4 || w.run("fine").Status != core.Completed {
			t.Errorf("tripped: %+v, fine is %s", report.Outcomes, w.run("fine").Status)
		}
		if told := w.told(core.NoticeTripped); len(told) != 1 {
			t.Errorf("others were told %d times that the breaker tripped, want once: %+v", len(told), w.notices)
		}
		if again := w.tick(); again.Standing != core.StandingTripped || len(w.told(core.NoticeTripped)) != 1 {
			t.Errorf("the next sweep: standing %q, told %v", again.Standing, w.told(core.NoticeTripped))
		}
		operator := &core.Operator{Controls: w.store, Audit: w.store}
		if err := operator.Thaw(t.Context(), core.By{Who: "ops", Why: "was a real outage"}); err != nil {
			t.Fatal(err)
		}
		w.limits.BreakerMost = 10
		if report := w.tick(); report.Outcomes[core.Lost] != 4 {
			t.Errorf("thawed: %+v", report.Outcomes)
		}
		if a := w.store.Audit(); len(a) != 1 || a[0].Op != "thaw" || a[0].By != "ops" {
			t.Errorf("audit %+v", a)
		}
	})
}

// TestAnAgentThatDiedEndsAfterTwoSightings, and no sooner (DESIGN 5.7).
func TestAnAgentThatDiedEndsAfterTwoSightings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.left("dies", "half\n")
		w.fleet.Die("dies")
		for _, want := range []core.Outcome{core.Producing, core.Producing, core.Died} {
			if got := outcomes(w.tick())["dies"]; got != want {
				t.Errorf("outcome %s, want %s", got, want)
			}
			time.Sleep(time.Minute)
		}
		r := w.run("dies")
		if r.Status != core.Failed || r.Error.Code != "agent-died" || w.transcript("dies") != "half\n" {
			t.Errorf("ended as %s, %+v with %q", r.Status, r.Error, w.transcript("dies"))
		}
	})
}

// TestAMissingTaskIsGoneOnlyAfterAWhileWithoutABreak (DESIGN 5.3).
func TestAMissingTaskIsGoneOnlyAfterAWhileWithoutABreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.left("other", "works\n")
		r := w.left("missing", "x")
		w.fleet.Forget(r.TaskARN)
		begun := time.Now()
		for time.Since(begun) < w.limits.MissingGrace {
			if got := outcomes(w.tick())["missing"]; got != core.Unknown {
				t.Fatalf("after %s: outcome %s", time.Since(begun), got)
			}
			time.Sleep(time.Minute)
		}
		if got := outcomes(w.tick())["missing"]; got != core.Lost {
			t.Errorf("outcome %s, want lost", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.left("other", "works\n")
		r := w.left("missing", "x")
		w.fleet.Forget(r.TaskARN)
		w.tick()
		time.Sleep(w.limits.MissingGrace + time.Minute) // nobody looked meanwhile
		if got := outcomes(w.tick())["missing"]; got != core.Unknown {
			t.Errorf("two sightings far apart: outcome %s, want unknown", got)
		}
	})
}
