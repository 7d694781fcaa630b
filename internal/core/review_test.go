package core_test

import (
	"context"
	"fmt"
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
