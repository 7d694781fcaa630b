package core_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// silent is a sandbox in which a session begins and never answers.
type silent struct{ core.Prober }

func (silent) Terminate(ctx context.Context, _ core.TerminateRequest) (core.TerminateReply, error) {
	<-ctx.Done()
	return core.TerminateReply{}, ctx.Err()
}

// TestASilentSandboxIsGivenUpAfterTheDrainGrace, although each try uses up the whole
// run budget: its transcript is closed as incomplete, and its task stopped (I5).
func TestASilentSandboxIsGivenUpAfterTheDrainGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.left("r", "half\n")
		w.cancel("r")
		s := w.sweep(w.store.Process)
		s.Prober = silent{s.Prober}
		begun := time.Now()
		for time.Since(begun) < w.limits.DrainGrace+5*time.Minute && !w.run("r").Status.Terminal() {
			if _, err := s.Run(t.Context(), core.SweepRequest{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		r := w.run("r")
		if r.Status != core.Aborted || r.Transcript == nil || r.Transcript.Complete {
			t.Fatalf("after %s the run is %s, transcript %+v", time.Since(begun), r.Status, r.Transcript)
		}
		if waited := r.FinishedAt.Sub(r.Ending.At); waited < w.limits.DrainGrace {
			t.Errorf("given up after %s", waited)
		}
		w.drainQueue(w.store.Process)
		w.check()
		if n := len(w.fleet.Running()); n != 0 {
			t.Errorf("%d tasks run", n)
		}
	})
}

// hung is a sandbox that keeps each probe of one run waiting.
type hung struct {
	core.Prober
	run core.RunID
}

func (h hung) Probe(ctx context.Context, rate float64, requests []core.ProbeRequest) []core.ProbeReply {
	if requests[0].Run != h.run {
		return h.Prober.Probe(ctx, rate, requests)
	}
	reply := core.ProbeReply{RunKey: requests[0].RunKey, Healing: core.Retry, Reason: "deadline"}
	select {
	case <-time.After(45 * time.Second):
	case <-ctx.Done():
		reply.Unasked = true
	}
	return []core.ProbeReply{reply}
}

// TestAHungSandboxKeepsNoEndedRunWaiting: it is asked last, and what was found before
// is finalised although no answer comes.
func TestAHungSandboxKeepsNoEndedRunWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.limits.ProbeCalls, w.limits.ProbeBatch, w.limits.ProbeRate = 16, 1, 80.0/60
		for i := range 80 {
			w.left(fmt.Sprint("r", i), "works\n")
			time.Sleep(time.Second)
		}
		w.fleet.Exit("r0", 0)
		s := w.sweep(w.store.Process)
		s.Prober = hung{s.Prober, "r79"}
		begun := time.Now()
		if _, err := s.Run(t.Context(), core.SweepRequest{}); err != nil {
			t.Fatal(err)
		}
		if got := w.run("r0").Status; got != core.Completed {
			t.Errorf("after %s r0 is %s", time.Since(begun), got)
		}
		report, err := s.Run(t.Context(), core.SweepRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range report.Runs {
			if e.Run == "r79" && e.Reason != "deadline" {
				t.Errorf("in the next sweep r79 is not asked first: %s", e.Reason)
			}
		}
	})
}

// TestOldHintsComeBeforeNobody: agents that said that they had ended, and work on, do
// not use up the probes of those that did end.
func TestOldHintsComeBeforeNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.limits.ProbeRate = 10.0 / 60
		for i := range 12 {
			run := fmt.Sprint("liar", i)
			w.left(run, "works\n")
			if _, err := w.sweep(w.store.Process).Nudged(t.Context(), key(run)); err != nil {
				t.Fatal(err)
			}
		}
		w.left("honest", "done\n")
		w.fleet.Exit("honest", 0)
		for range 10 {
			time.Sleep(time.Minute)
			w.tick()
		}
		w.ended("honest", core.Completed, "done\n")
	})
}

// TestADeadAgentSeenLongAgoIsNoSecondSighting: between two sightings that count lies no
// silence in which anything may have happened.
func TestADeadAgentSeenLongAgoIsNoSecondSighting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.left("r", "works\n")
		note := core.Note{At: now(), DeadSince: now(), DeadAs: core.DeadGone}
		if err := w.store.PutNote(t.Context(), r.RunKey, note); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		w.fleet.Die("r")
		if got := outcomes(w.tick())["r"]; got != core.Producing {
			t.Errorf("outcome %s, want producing: this is the first sighting of its stretch", got)
		}
	})
}

// TestAFreezeUsesUpNoDrainGrace: only time in which the end was tried counts (I5).
func TestAFreezeUsesUpNoDrainGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.left("r", "saved?\n")
		if _, err := core.RequestCancelOf(t.Context(), w.store, key("r")); err != nil {
			t.Fatal(err)
		}
		// The first try fails at its page, the second is hours later and fails too.
		fail := func() { w.once(w.failing("page")) }
		fail()
		time.Sleep(2 * time.Hour)
		fail()
		if r := w.run("r"); r.Status != core.Running {
			t.Fatalf("a journal that can be read was given up: %+v", r.Transcript)
		}
		time.Sleep(2 * time.Minute)
		w.tick()
		w.ended("r", core.Aborted, "saved?\n")
	})
}

// TestHoldsAndExtensionsThatCannotBeKeptAreRefused, each with what was expected.
func TestHoldsAndExtensionsThatCannotBeKeptAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.left("r", "works\n")
		o := &core.Operator{Runs: w.store, Sandboxes: w.store, Ledger: w.store, Audit: w.store}
		by := core.By{Who: "ops", Why: "look"}
		for _, until := range []core.Millis{now(), now().Add(core.MaxHold + time.Minute)} {
			if err := o.Hold(t.Context(), r.RunKey, until, by); err == nil || !strings.Contains(err.Error(), "want a time to come within") {
				t.Errorf("hold until %d: %v", until, err)
			}
		}
		if _, err := w.store.Update(t.Context(), r.RunKey, core.Attach{Seen: r.Epoch, Nonce: "n", Now: now(), Until: now().Add(time.Minute)}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.store.Update(t.Context(), r.RunKey, core.Interrupt{Epoch: r.Epoch + 1, Now: now(), Until: now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		if err := o.Extend(t.Context(), r.RunKey, 60, by); !core.Refused(err) {
			t.Errorf("extend of a paused run: %v", err)
		}
	})
}

// TestAReleasedIdleSandboxIsDueAgain, not only when the hold would have ended.
func TestAReleasedIdleSandboxIsDueAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		keptWarm(w)
		o := &core.Operator{Runs: w.store, Sandboxes: w.store, Ledger: w.store, Audit: w.store, Queue: w.store, Limits: w.limits}
		by := core.By{Who: "ops", Why: "look"}
		if err := o.Hold(t.Context(), key("r"), now().Add(24*time.Hour), by); err != nil {
			t.Fatal(err)
		}
		time.Sleep(w.limits.IdleTTL)
		w.tick()
		if noTask(w) {
			t.Fatal("a held sandbox is gone")
		}
		if err := o.Release(t.Context(), key("r"), by); err != nil {
			t.Fatal(err)
		}
		w.drainQueue(w.store.Process)
		if !noTask(w) {
			t.Error("a released sandbox whose time is over lives on")
		}
		w.check()
	})
}

// TestAMessageOfTheWrongKindDoesNothing: the run's mark says what its sandbox owes.
func TestAMessageOfTheWrongKindDoesNothing(t *testing.T) {
	for _, c := range []struct {
		owes core.ReclaimKind
		kind core.JobKind
	}{{core.ReclaimEnd, core.JobIdle}, {core.ReclaimIdle, core.JobEnd}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.begin("r", func(q *core.RunRequest) { q.Reclaim = c.owes })
			w.fleet.Exit("r", 0)
			w.detach("r")
			sweepOnly(w)
			jobs := w.store.TakeJobs()
			forged := jobs[0]
			forged.Kind = c.kind
			before := w.store.State()
			if out, err := w.reclaimer(w.store.Process).Do(t.Context(), forged); err != nil || out != core.ReclaimNotFound {
				t.Errorf("%s for a run that owes %s: %s, %v", c.kind, c.owes, out, err)
			}
			if after := w.store.State(); !reflect.DeepEqual(before, after) || noTask(w) {
				t.Errorf("%s for a run that owes %s changed something", c.kind, c.owes)
			}
		})
	}
}

// TestAThawReleasesACrowd: more runs than the breaker lets through are due at once; an
// operator who looked and thawed must not meet the same trip again (DESIGN 5). Once the
// window after the thaw is over, it counts again.
func TestAThawReleasesACrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.limits.BreakerMost = 2
		o := &core.Operator{Controls: w.store, Audit: w.store, Limits: w.limits}
		crowd := func(name string) {
			for i := range 5 {
				r := w.left(fmt.Sprint(name, i), "x")
				w.fleet.KillTask(r.TaskARN)
			}
		}
		crowd("a")
		if got := w.tick().Outcomes[core.Held]; got != 5 {
			t.Fatalf("%d held, want 5", got)
		}
		if err := o.Thaw(t.Context(), core.By{Who: "ops", Why: "a real outage"}); err != nil {
			t.Fatal(err)
		}
		if got := w.tick().Outcomes[core.Lost]; got != 5 {
			t.Errorf("after the thaw %d ended, want all 5", got)
		}
		time.Sleep(w.limits.BreakerWindow)
		crowd("b")
		if got := w.tick().Outcomes[core.Held]; got != 5 {
			t.Errorf("a window later %d held, want 5: the breaker counts again", got)
		}
	})
}
