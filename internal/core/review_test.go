package core_test

import (
	"context"
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
