package core_test

import (
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

func deletionOf(id core.ThreadID) core.DeleteThreadRequest {
	return core.DeleteThreadRequest{ThreadKey: thread(id), Apply: true}
}

// forgotten fails unless nothing is left of a thread but its fence, the version of its
// conversation, and what forks of it need.
func (w *keeping) forgotten(id core.ThreadID, fence int64) {
	w.t.Helper()
	th, err := w.store.Thread(w.ctx(), thread(id))
	w.must(err)
	if th.Head != "" || th.Conversation.Object.Key != "" || th.Step != nil || th.Fence <= fence || th.Floor > th.Fence {
		w.t.Errorf("left of %s after fence %d: %+v", id, fence, th)
	}
	all, err := w.store.Checkpoints(w.ctx(), thread(id))
	w.must(err)
	artifacts, err := w.store.Artifacts(w.ctx(), thread(id))
	w.must(err)
	if len(all)+len(artifacts) > 0 {
		w.t.Errorf("left of %s: %d checkpoints and %d artifacts", id, len(all), len(artifacts))
	}
	report, err := w.keeper(w.store.Process).Collect(w.ctx(), core.CollectRequest{ThreadKey: thread(id)})
	if err != nil || report.Objects != report.Needed {
		w.t.Errorf("left of %s: %+v, %v; want what forks need", id, report, err)
	}
}

// TestADeletedThreadLeavesItsFenceAndWhatForksNeed (I11).
func TestADeletedThreadLeavesItsFenceAndWhatForksNeed(t *testing.T) {
	kept(t, func(w *keeping) {
		lived(w)
		k := w.keeper(w.store.Process)
		before, err := w.store.Thread(w.ctx(), thread("t"))
		w.must(err)
		plan, err := k.DeleteThread(w.ctx(), core.DeleteThreadRequest{ThreadKey: thread("t")})
		w.must(err)
		if plan.Checkpoints != 3 || plan.Artifacts != 1 || !plan.Conversation || plan.Objects == 0 || plan.Kept == 0 || plan.Deleted != 0 || !w.has("c3") {
			t.Errorf("the plan is %+v", plan)
		}
		report, err := k.DeleteThread(w.ctx(), deletionOf("t"))
		if err != nil || report.Deleted != plan.Objects {
			t.Errorf("deleted %+v, %v; planned %+v", report, err, plan)
		}
		w.forgotten("t", before.Fence)
		w.check(allThreads...)
		c, data, err := k.Conversation(w.ctx(), thread("t"))
		if err != nil || c.Version <= before.Conversation.Version || data != nil {
			t.Errorf("the conversation is %+v, %q, %v", c, data, err)
		}
		if _, err = k.PutConversation(w.ctx(), thread("t"), c.Version, []byte("anew"), nil); err != nil {
			t.Error(err)
		}
		w.must(w.save(w.ctx(), w.store.Process, "t", "anew", tree{"a.txt": "A"}))
		w.check(allThreads...)
		_, err = k.DeleteThread(w.ctx(), deletionOf("branch"))
		w.must(err)
		w.forgotten("branch", 0)
		pins, err := w.store.Pins(w.ctx(), thread("t"))
		if err != nil || len(pins) > 0 {
			t.Errorf("the branch is gone, and pins %+v, %v", pins, err)
		}
		w.collectAll()
	})
}

func TestADeletionIsRefused(t *testing.T) {
	run := core.Run{RunKey: key("r"), Thread: "t", Status: core.Completed, StartedAt: 1000, FinishedAt: 2000}
	for name, tt := range map[string]struct {
		why    string
		set    func(w *keeping)
		change func(q *core.DeleteThreadRequest)
	}{
		"while a run lives":        {"live-run", func(w *keeping) { r := run; r.Status, r.Row = core.Running, core.RowDetached; w.store.SeedRun(r) }, nil},
		"while a run owes its end": {"live-run", func(w *keeping) { r := run; r.Row = core.RowReclaim; w.store.SeedRun(r) }, nil},
		"while a lease is live": {"writer-conflict", func(w *keeping) {
			_, err := w.store.UpdateThread(w.ctx(), thread("t"), core.AcquireLease{Owner: "run:x", Now: now(), Until: now().Add(time.Minute)})
			w.must(err)
		}, nil},
		"while it is used":        {"used", nil, func(q *core.DeleteThreadRequest) { q.UnusedSince = now().Add(-48 * time.Hour) }},
		"while the mode observes": {"observe", func(w *keeping) { w.store.SetControl(core.Control{Mode: core.Observe}) }, nil},
		"while there is a freeze": {"frozen", func(w *keeping) { w.store.SetControl(core.Control{Frozen: true}) }, nil},
		"while a run is held": {"held", func(w *keeping) {
			r := run
			r.Hold = core.Hold{Until: now().Add(time.Hour), By: "ops"}
			w.store.SeedRun(r)
		}, nil},
		"with an id that is none":  {"invalid-id", nil, func(q *core.DeleteThreadRequest) { q.Thread = "" }},
		"unless it was used since": {"", func(w *keeping) { w.store.SeedRun(run) }, func(q *core.DeleteThreadRequest) { q.UnusedSince = now() }},
	} {
		t.Run(name, func(t *testing.T) {
			kept(t, func(w *keeping) {
				lived(w)
				if tt.set != nil {
					tt.set(w)
				}
				q := deletionOf("t")
				if tt.change != nil {
					tt.change(&q)
				}
				_, err := w.keeper(w.store.Process).DeleteThread(w.ctx(), q)
				w.coded(err, tt.why)
				if w.has("c3") != (tt.why != "") {
					t.Errorf("%v, and the head is there: %v", err, w.has("c3"))
				}
				w.check(allThreads...)
			})
		})
	}
}

// TestADeletionSurvivesACrashAtEveryCall: carried out again it is done, and no head and no
// fork ever misses what it needs.
func TestADeletionSurvivesACrashAtEveryCall(t *testing.T) {
	for _, id := range []core.ThreadID{"t", "branch"} {
		calls := 0
		kept(t, func(w *keeping) {
			lived(w)
			p := w.store.NewProcess(mem.Faults{})
			_, err := w.keeper(p).DeleteThread(w.ctx(), deletionOf(id))
			w.must(err)
			calls = len(p.Calls())
		})
		if calls < 10 {
			t.Fatalf("a deletion makes %d calls", calls)
		}
		for i := 1; i <= calls; i++ {
			for _, f := range []mem.Fault{mem.NotLanded, mem.AnswerLost, mem.StopBefore, mem.StopAfter} {
				kept(t, func(w *keeping) {
					lived(w)
					p := w.store.NewProcess(mem.At(i, f))
					_, _ = w.keeper(p).DeleteThread(w.ctx(), deletionOf(id))
					w.check(allThreads...)
					time.Sleep(core.LeaseLife)
					if _, err := w.keeper(w.store.NewProcess(mem.Faults{})).DeleteThread(w.ctx(), deletionOf(id)); err != nil {
						t.Errorf("carried out again: %v", err)
					}
					w.forgotten(id, 0)
					w.check(allThreads...)
					if t.Failed() {
						t.Fatalf("%s at call %d of %v", f, i, p.Calls())
					}
				})
			}
		}
	}
}
