package core_test

import (
	"context"
	"reflect"
	"strings"
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
		"while a run lives":               {"live-run", func(w *keeping) { r := run; r.Status, r.Row = core.Running, core.RowDetached; w.store.SeedRun(r) }, nil},
		"while a run owes its end":        {"live-run", func(w *keeping) { r := run; r.Row = core.RowReclaim; w.store.SeedRun(r) }, nil},
		"while its task owes a workspace": {"live-run", func(w *keeping) { r := run; r.Checkpoint.State = core.CheckpointMoved; w.store.SeedRun(r) }, nil},
		"while its sandbox is kept warm": {"kept-sandbox", func(w *keeping) {
			r := run
			r.ReclaimOutcome, r.SandboxKey, r.Instance = core.ReclaimIdled, "key-warm", "i-warm"
			w.store.SeedRun(r)
			w.store.SeedSandbox(core.Sandbox{Key: "key-warm", Instance: "i-warm", LatestRun: "r", IdleSince: 2000, DueAt: 3000})
		}, nil},
		"unless its sandbox was kept and is gone": {"", func(w *keeping) {
			r := run
			r.ReclaimOutcome, r.SandboxKey, r.Instance = core.ReclaimIdled, "key-gone", "i-gone"
			w.store.SeedRun(r)
		}, nil},
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

// lagging is an index of runs that lacks what came last. It calls before at each question.
type lagging struct{ before func(question int) }

func (l *lagging) history() core.ThreadHistory {
	asked := 0
	return historyFunc(func() {
		asked++
		if l.before != nil {
			l.before(asked)
		}
	})
}

type historyFunc func()

func (f historyFunc) ThreadRuns(context.Context, core.ThreadKey) ([]core.RunKey, error) {
	f()
	return nil, nil
}

// TestADeletionSeesWhatTheListOfRunsLacks: a run that has begun, or anything that is written
// between the plan and the emptying of the item, keeps the thread.
func TestADeletionSeesWhatTheListOfRunsLacks(t *testing.T) {
	begin := func(w *keeping) {
		_, err := w.store.UpdateThread(w.ctx(), thread("t"), core.NoteRun{Run: "new", Now: now()})
		w.must(err)
	}
	const planning, permitting, counting = 1, 2, 3 // the questions: the plan's, and two under the lease
	for name, tt := range map[string]struct {
		why string
		at  int // before that question; 0: before the deletion
		do  func(w *keeping)
	}{
		"a run that began a moment ago": {"live-run", 0, func(w *keeping) { begin(w); time.Sleep(core.IndexLag - time.Second) }},
		"a run that began a while ago":  {"", 0, func(w *keeping) { begin(w); time.Sleep(core.IndexLag) }},
		"a run that begins meanwhile":   {"used", planning, begin},
		"a run that begins under it":    {"used", permitting, begin},
		"one that begins at the last":   {"used", counting, begin},
		"a lease that came and went": {"used", planning, func(w *keeping) {
			th, err := w.store.UpdateThread(w.ctx(), thread("t"), core.AcquireLease{Owner: "run:x", Now: now(), Until: now().Add(time.Minute)})
			w.must(err)
			_, err = w.store.UpdateThread(w.ctx(), thread("t"), core.ReleaseLease{Owner: "run:x", Fence: th.Fence})
			w.must(err)
		}},
		"a conversation": {"used", permitting, func(w *keeping) {
			_, err := w.keeper(w.store.Process).PutConversation(w.ctx(), thread("t"), 2, []byte("three"), nil)
			w.must(err)
		}},
		"an artifact": {"used", permitting, func(w *keeping) {
			time.Sleep(time.Second)
			_, err := w.keeper(w.store.Process).PutArtifact(w.ctx(), thread("t"), core.Artifact{Run: "r", ID: "late", Name: "n", MIME: "m"}, []byte("late"))
			w.must(err)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			kept(t, func(w *keeping) {
				lived(w)
				if tt.at == 0 {
					tt.do(w)
				}
				k := w.keeper(w.store.Process)
				l := lagging{func(question int) {
					if question == tt.at {
						tt.do(w)
					}
				}}
				k.History = l.history()
				_, err := k.DeleteThread(w.ctx(), deletionOf("t"))
				w.coded(err, tt.why)
				if w.has("c3") != (tt.why != "") {
					t.Errorf("%v, and the head is there: %v", err, w.has("c3"))
				}
				w.check(allThreads...)
			})
		})
	}
}

// TestAStartIsOnItsThreadBeforeItsRecord: whoever lists the runs too early reads it there,
// and a start that is stopped between the two goes on.
func TestAStartIsOnItsThreadBeforeItsRecord(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := keepingHosting(t)
		begun := core.Millis(-1)
		p := h.store.NewProcess(mem.Faults{Before: func(ctx context.Context, name string) {
			if strings.HasPrefix(name, "create run") && begun < 0 {
				th, err := h.store.Thread(ctx, thread("t"))
				h.must(err)
				begun = th.BegunAt
			}
		}})
		_, err := h.session(p).Start(t.Context(), startOf("r", "one"))
		h.must(err)
		if begun != now() {
			t.Errorf("a run is recorded at %d, and its thread was begun at %d; calls %v", now(), begun, p.Calls())
		}
		_, err = h.keep.keeper(h.store.Process).DeleteThread(t.Context(), deletionOf("t"))
		if !core.Refused(err) {
			t.Errorf("its deletion: %v", err)
		}
	})
}

// TestADeletedThreadIsNotDeletedAgain: what is left of it, and the objects that its forks
// need, are no work for the next day; hosts keep the version of the conversation.
func TestADeletedThreadIsNotDeletedAgain(t *testing.T) {
	kept(t, func(w *keeping) {
		lived(w)
		for _, id := range []core.ThreadID{"t", "branch"} {
			first, err := w.keeper(w.store.Process).DeleteThread(w.ctx(), deletionOf(id))
			if err != nil || first.Already {
				t.Fatalf("deleted %+v, %v", first, err)
			}
			left, err := w.store.Thread(w.ctx(), thread(id))
			w.must(err)
			p := w.store.NewProcess(mem.Faults{})
			again, err := w.keeper(p).DeleteThread(w.ctx(), deletionOf(id))
			if err != nil || !again.Already || again.Deleted != 0 || len(p.Writes()) > 0 {
				t.Errorf("again %+v, %v; it wrote %v", again, err, p.Writes())
			}
			if th, err := w.store.Thread(w.ctx(), thread(id)); err != nil || !reflect.DeepEqual(th, left) {
				t.Errorf("left %+v, %v; then %+v", left, err, th)
			}
		}
		// The branch is gone, and what only it needed of the thread is garbage: to delete that
		// moves no version of a conversation that is gone.
		before, err := w.store.Thread(w.ctx(), thread("t"))
		w.must(err)
		rest, err := w.keeper(w.store.Process).DeleteThread(w.ctx(), deletionOf("t"))
		after, _ := w.store.Thread(w.ctx(), thread("t"))
		if err != nil || rest.Already || rest.Deleted == 0 || after.Conversation.Version != before.Conversation.Version {
			t.Errorf("the rest %+v, %v; conversation %+v, then %+v", rest, err, before.Conversation, after.Conversation)
		}
	})
}
