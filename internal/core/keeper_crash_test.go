package core_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// errand is something that a process does with a thread, whose every call may fail.
type errand struct {
	do func(ctx context.Context, w *keeping, p *mem.Process) error
	// again are the codes of a repeat that finds it done.
	again []string
	done  func(w *keeping) bool
}

func (w *keeping) head(id core.ThreadID) core.CheckpointID {
	th, err := w.store.Thread(context.Background(), thread(id))
	w.must(err)
	return th.Head
}

func (w *keeping) has(id core.CheckpointID) bool {
	_, err := w.store.FindCheckpoint(context.Background(), "acme", id)
	return err == nil
}

// errands begin in the world that lived makes.
var errands = map[string]errand{
	"save": {
		do: func(ctx context.Context, w *keeping, p *mem.Process) error {
			return w.save(ctx, p, "t", "c4", tree{"a.txt": "A", "new": "save"})
		},
		done: func(w *keeping) bool { return w.has("c4") },
	},
	"restore": {
		do: func(ctx context.Context, w *keeping, p *mem.Process) error {
			return w.restore(ctx, p, core.RestoreRequest{ThreadKey: thread("t"), ID: "back", Key: "key-t", Instance: "i-t"})
		},
		done: func(w *keeping) bool {
			th, err := w.store.Thread(context.Background(), thread("t"))
			w.must(err)
			return th.Step != nil && th.Step.ID == "back" && th.Step.State == core.StepDone
		},
	},
	"fork": {
		do: func(ctx context.Context, w *keeping, p *mem.Process) error {
			_, err := w.keeper(p).Fork(ctx, core.ForkRequest{Source: thread("t"), Checkpoint: "c2", Branches: []core.ForkBranch{{Thread: "u", ID: "u1"}, {Thread: "v", ID: "v1"}}})
			return err
		},
		done: func(w *keeping) bool { return w.head("u") == "u1" && w.head("v") == "v1" },
	},
	"delete head": {
		do: func(ctx context.Context, w *keeping, p *mem.Process) error {
			_, err := w.keeper(p).DeleteHead(ctx, thread("t"), "c3")
			return err
		},
		again: []string{"not-head"},
		done:  func(w *keeping) bool { return !w.has("c3") },
	},
	"keep": {
		do: func(ctx context.Context, w *keeping, p *mem.Process) error {
			_, err := w.keeper(p).Keep(ctx, core.KeepRequest{ThreadKey: thread("t"), Newest: 1})
			return err
		},
		done: func(w *keeping) bool { return !w.has("c1") },
	},
	"collect": {
		do: func(ctx context.Context, w *keeping, p *mem.Process) error {
			_, err := w.keeper(p).Collect(ctx, core.CollectRequest{ThreadKey: thread("t"), Apply: true})
			return err
		},
		done: func(w *keeping) bool { return true },
	},
	"collect a branch": {
		do: func(ctx context.Context, w *keeping, p *mem.Process) error {
			_, err := w.keeper(p).Collect(ctx, core.CollectRequest{ThreadKey: thread("branch"), Apply: true})
			return err
		},
		done: func(w *keeping) bool { return true },
	},
	"converse": {
		do: func(ctx context.Context, w *keeping, p *mem.Process) error {
			c, _, err := w.keeper(p).Conversation(ctx, thread("t"))
			if err == nil && c.Version < 3 {
				_, err = w.keeper(p).PutConversation(ctx, thread("t"), c.Version, []byte("once more"), nil)
			}
			return err
		},
		done: func(w *keeping) bool {
			th, err := w.store.Thread(context.Background(), thread("t"))
			w.must(err)
			return th.Conversation.Version >= 3
		},
	},
	"put artifact": {
		do: func(ctx context.Context, w *keeping, p *mem.Process) error {
			_, err := w.keeper(p).PutArtifact(ctx, thread("t"), core.Artifact{Run: "r", ID: "b", Name: "n", MIME: "m"}, []byte("was garbage"))
			return err
		},
		done: func(w *keeping) bool {
			all, err := w.store.Artifacts(context.Background(), thread("t"))
			w.must(err)
			return len(all) == 2
		},
	},
}

// allThreads are all that errands touch.
var allThreads = []core.ThreadID{"t", "u", "v", "branch"}

// lived is a world with a history: three checkpoints of which each reuses the one before,
// a branch of a checkpoint that is gone, a cut capture's packs, all old enough to be
// collected.
func lived(w *keeping) {
	k, p, ctx := w.keeper(w.store.Process), w.store.Process, w.ctx()
	w.box("branch")
	_, err := k.PutConversation(ctx, thread("t"), 0, []byte("one"), nil)
	w.must(err)
	_, err = k.PutArtifact(ctx, thread("t"), core.Artifact{Run: "r", ID: "a", Name: "n", MIME: "m"}, []byte("art"))
	w.must(err)
	w.must(w.save(ctx, p, "t", "c0", tree{"zero": "0"}))
	_, err = k.Fork(ctx, core.ForkRequest{Source: thread("t"), Branches: []core.ForkBranch{{Thread: "branch", ID: "b1"}}})
	w.must(err)
	_, err = k.DeleteHead(ctx, thread("t"), "c0")
	w.must(err)
	_, err = k.PutConversation(ctx, thread("t"), 1, []byte("two"), nil)
	w.must(err)
	for i, files := range []tree{first, second, {"a.txt": "A", "c.txt": "C"}} {
		time.Sleep(time.Second)
		w.must(w.save(ctx, p, "t", core.CheckpointID(fmt.Sprint("c", i+1)), files))
	}
	// What a capture that was cut left, of the very content that a later one wants.
	_, err = k.Save(ctx, saveOf("t", "cut"))
	w.must(err)
	_, err = w.pack(ctx, p, "t", tree{"a.txt": "A", "new": "save"})
	w.must(err)
	time.Sleep(core.CollectAge)
	w.check(allThreads...)
}

// calls is how many calls an errand makes where nothing fails.
func (e errand) calls(t *testing.T) (n int) {
	t.Helper()
	kept(t, func(w *keeping) {
		lived(w)
		p := w.store.NewProcess(mem.Faults{})
		if err := e.do(w.ctx(), w, p); err != nil {
			t.Fatal(err)
		}
		if n = len(p.Calls()); !e.done(w) || n < 3 {
			t.Fatalf("after %d calls it is not done", n)
		}
	})
	return n
}

// finish carries an errand out where nothing fails, and then collects everything.
func (e errand) finish(w *keeping) {
	w.t.Helper()
	time.Sleep(core.LeaseLife)
	if err := e.do(w.ctx(), w, w.store.NewProcess(mem.Faults{})); err != nil && !slices.Contains(e.again, code(err)) {
		w.t.Errorf("carried out after the fault: %v", err)
	}
	if !e.done(w) {
		w.t.Error("it is not done")
	}
	w.check(allThreads...)
	w.collectAll()
}

// collectAll removes what nothing needs, and fails the test if it takes more, or leaves
// what it could have taken.
func (w *keeping) collectAll() {
	w.t.Helper()
	for range 2 {
		time.Sleep(core.CollectAge)
		for _, id := range allThreads {
			report, err := w.keeper(w.store.NewProcess(mem.Faults{})).Collect(w.ctx(), core.CollectRequest{ThreadKey: thread(id), Apply: true})
			if err != nil || report.Missing != 0 {
				w.t.Errorf("collect %s: %+v, %v", id, report, err)
			}
		}
		w.check(allThreads...)
	}
	for _, id := range allThreads {
		report, err := w.keeper(w.store.Process).Collect(w.ctx(), core.CollectRequest{ThreadKey: thread(id)})
		if err != nil || report.Objects != report.Needed {
			w.t.Errorf("left of %s: %+v, %v; want what is needed", id, report, err)
		}
	}
}

// TestKeeperSurvivesACrashAtEveryCall: whichever call fails, in whichever way, no head
// names what cannot be restored, and carried out again it is done.
func TestKeeperSurvivesACrashAtEveryCall(t *testing.T) {
	for name, e := range errands {
		t.Run(name, func(t *testing.T) {
			n := e.calls(t)
			for i := 1; i <= n; i++ {
				for _, f := range []mem.Fault{mem.NotLanded, mem.AnswerLost, mem.StopBefore, mem.StopAfter} {
					kept(t, func(w *keeping) {
						lived(w)
						p := w.store.NewProcess(mem.At(i, f))
						_ = e.do(w.ctx(), w, p) // it fails, or not, as the fault will have it
						w.check(allThreads...)
						e.finish(w)
						if t.Failed() {
							t.Fatalf("%s at call %d of %v", f, i, p.Calls())
						}
					})
				}
			}
		})
	}
}

// pauses are for how long a process sleeps while another one works: not at all, past its
// lease, and until everything is old.
var pauses = map[string]time.Duration{"at once": 0, "past its lease": core.LeaseLife, "a day": core.CollectAge}

// TestKeeperSurvivesAnotherProcessAtEveryCall: a process that sleeps before any of its
// calls, while another one carries out another errand, does no harm when it wakes.
func TestKeeperSurvivesAnotherProcessAtEveryCall(t *testing.T) {
	met := map[string]int{}
	for name, e := range errands {
		n := e.calls(t)
		for other, o := range errands {
			t.Run(name+" and "+other, func(t *testing.T) {
				for i := 1; i <= n; i++ {
					for pause, d := range pauses {
						if raceDetector && d != core.LeaseLife {
							continue // the schedules are the same without it
						}
						kept(t, func(w *keeping) {
							lived(w)
							s := interrupted{w: w, at: i, pause: d, other: o}
							err := s.carryOut(e)
							met[code(err)]++
							met[code(s.told)]++
							w.check(allThreads...)
							s.stale()
							if name != other || len(e.again) == 0 {
								e.settle(w, o)
							}
							if t.Failed() {
								t.Fatalf("%s before call %d of %v, which ended with %v; the other one with %v", pause, i, s.p.Calls(), err, s.told)
							}
						})
					}
				}
			})
		}
	}
	for _, why := range []string{"", "writer-lost", "writer-conflict", "token-dead"} {
		if met[why] == 0 && !raceDetector {
			t.Errorf("nothing ended with %q; met %v", why, met)
		}
	}
}

// settle carries an errand out again after another one; what that one made impossible is
// no fault.
func (e errand) settle(w *keeping, other errand) {
	w.t.Helper()
	time.Sleep(core.LeaseLife)
	err := e.do(w.ctx(), w, w.store.NewProcess(mem.Faults{}))
	impossible := []string{"not-head", "fork-source-not-found"}
	if err != nil && !slices.Contains(e.again, code(err)) && !slices.Contains(impossible, code(err)) {
		w.t.Errorf("carried out after the other: %v", err)
	}
	w.check(allThreads...)
	w.collectAll()
}

// interrupted is a process that sleeps before one of its calls while another one works.
type interrupted struct {
	w     *keeping
	at    int
	pause time.Duration
	other errand
	p     *mem.Process
	told  error // how the other one ended
	wrote int   // what p had written when it woke
	taken bool  // the other one took the lease of the thread t
}

func (s *interrupted) carryOut(e errand) error {
	var calls atomic.Int64 // the keeper asks about several packs at once
	s.p = s.w.store.NewProcess(mem.Faults{Before: func(ctx context.Context, _ string) {
		if calls.Add(1) != int64(s.at) {
			return
		}
		time.Sleep(s.pause)
		before := s.fence()
		s.told = s.other.do(ctx, s.w, s.w.store.NewProcess(mem.Faults{}))
		s.wrote, s.taken = len(s.p.Writes()), s.fence() > before
	}})
	return e.do(s.w.ctx(), s.w, s.p)
}

func (s *interrupted) fence() int64 {
	th, err := s.w.store.Thread(context.Background(), thread("t"))
	s.w.must(err)
	return th.Fence
}

// stale fails the test if the process wrote to the thread under a fence that died while
// it slept: what it writes then has to follow on a lease that it took after it woke.
func (s *interrupted) stale() {
	s.w.t.Helper()
	if !s.taken {
		return
	}
	fenced := []string{"commit", "delete head", "trim", "raise floor thread acme/t", "begin step", "note step", "end step", "renew lease thread acme/t"}
	for _, write := range s.p.Writes()[s.wrote:] {
		if strings.HasPrefix(write, "acquire lease thread acme/t") {
			return
		}
		if slices.ContainsFunc(fenced, func(prefix string) bool { return strings.HasPrefix(write, prefix) }) {
			s.w.t.Errorf("a stale fence wrote: %s", write)
		}
	}
}
