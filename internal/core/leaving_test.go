package core_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// leaves tells the sweep that the task of the run r is about to end, as ECS does.
func (e *ending) leaves() core.SweepReport {
	e.t.Helper()
	r := e.run("r")
	report, err := e.sweep(e.store.Process).TaskStopped(e.t.Context(), core.StoppedTask{
		ARN: r.TaskARN, StartedBy: core.StartedBy("test", r.Instance), At: now(), Leaving: true,
	})
	e.must(err)
	return report
}

// outcomes are what the reclaim of all messages comes to.
func (e *ending) outcomes() []core.ReclaimOutcome {
	e.t.Helper()
	var out []core.ReclaimOutcome
	for _, job := range e.store.TakeJobs() {
		outcome, err := e.reclaimer(e.store.Process).Do(e.t.Context(), job)
		e.must(err)
		out = append(out, outcome)
	}
	return out
}

func (e *ending) expect(want ...core.ReclaimOutcome) {
	e.t.Helper()
	got := slices.Compact(e.outcomes()) // of what was asked for twice
	if len(got) != len(want) || len(want) == 1 && got[0] != want[0] {
		e.t.Errorf("reclaim comes to %v, want %v", got, want)
	}
}

// stopped is the end of a task that was told of.
func (e *ending) stopped() {
	r := e.run("r")
	e.fleet.KillTask(r.TaskARN)
	_, err := e.sweep(e.store.Process).TaskStopped(e.t.Context(), core.StoppedTask{ARN: r.TaskARN, StartedBy: core.StartedBy("test", r.Instance), At: now()})
	e.must(err)
}

// leavings are what may happen to a run whose task is about to end.
var leavings = map[string]func(e *ending){
	"a detached run's journal is drained and its workspace stored; only the task's end ends it": func(e *ending) {
		_, err := e.me.detach()
		e.must(err)
		e.fleet.Leave(e.run("r").TaskARN)
		report := e.leaves()
		if r := e.run("r"); r.Status != core.Running || r.Row != core.RowDetached || r.ClaimUntil > now() || r.LogEnd != int64(len("at work")) {
			e.t.Errorf("run is %s in %s, claimed until %d, its log ends at %d; report %+v", r.Status, r.Row, r.ClaimUntil, r.LogEnd, report)
		}
		e.expect(core.ReclaimCapturing)
		e.must(e.fleet.View(e.store.Process).CommitCapture(e.t.Context(), "r"))
		e.expect(core.ReclaimStored)
		e.stopped()
		if got := e.fate(); got.status != core.Failed || got.code != "lost" || got.head != "checkpoint-r" || got.lease || e.transcript("r") != "at work" {
			e.t.Errorf("got %+v", got)
		}
	},
	"a journal that another session keeps out of reach is asked for again": func(e *ending) {
		_, err := e.me.detach()
		e.must(err)
		r := e.run("r")
		e.fleet.Leave(r.TaskARN)
		_, err = e.store.UpdateSandbox(e.t.Context(), r.SandboxKey, core.HoldExec{
			Instance: r.Instance, Hold: core.ExecHold{ExecHolder: core.ExecHolder{By: "another"}, Until: now().Add(5 * time.Second)},
		})
		e.must(err)
		e.leaves()
		if r = e.run("r"); r.Status != core.Running || r.LogEnd != int64(len("at work")) {
			e.t.Errorf("run is %s, its log ends at %d", r.Status, r.LogEnd)
		}
		e.outcomes()
	},
	"a workspace that another session keeps out of reach is asked for again": func(e *ending) {
		_, err := e.me.detach()
		e.must(err)
		e.fleet.Leave(e.run("r").TaskARN)
		e.leaves()
		e.occupy("r", core.ExecHold{ExecHolder: core.ExecOf(core.ExecDrain, e.run("r")), Until: now().Add(2 * time.Second)})
		k, c := &keeper{}, e.reclaimer(e.store.Process)
		k.Keeper = &core.Keeper{Threads: e.store, Sandboxes: e.store, Controls: e.store, Runs: e.store, History: e.store, Agents: k, URL: k, Queue: e.store}
		c.Checkpoints = k
		began := time.Now()
		for _, job := range e.store.TakeJobs() {
			outcome, err := c.Do(e.t.Context(), job)
			if outcome != core.ReclaimCapturing || err != nil {
				e.t.Errorf("reclaim comes to %s, %v", outcome, err)
			}
		}
		if len(k.jobs) != 1 || time.Since(began) > 4*time.Second {
			e.t.Errorf("%d captures have begun after %s", len(k.jobs), time.Since(began))
		}
	},
	"a run that ends before anybody sees that its workspace is stored holds the next turn up for nothing": func(e *ending) {
		_, err := e.me.detach()
		e.must(err)
		e.fleet.Leave(e.run("r").TaskARN)
		e.leaves()
		e.expect(core.ReclaimCapturing)
		e.must(e.fleet.View(e.store.Process).CommitCapture(e.t.Context(), "r"))
		e.stopped()
		e.outcomes()
		if got := e.fate(); got.status != core.Failed || got.code != "lost" || got.head != "checkpoint-r" || got.lease {
			e.t.Errorf("got %+v", got)
		}
	},
	"a run whose agent has ended meanwhile is finished": func(e *ending) {
		_, err := e.me.detach()
		e.must(err)
		e.fleet.Exit("r", 0)
		e.fleet.Leave(e.run("r").TaskARN)
		e.leaves()
		if r := e.run("r"); r.Status != core.Completed || r.Sealed == nil {
			e.t.Errorf("run %+v", r)
		}
	},
	"an attached run is its host's: nothing is claimed, and its workspace is stored under the host's lease": func(e *ending) {
		e.fleet.Leave(e.run("r").TaskARN)
		before := e.run("r")
		e.leaves()
		r := e.run("r")
		if r.Epoch != before.Epoch || r.Row != core.RowLapse || r.DueAt > now().Add(e.limits.HintLapse) || r.TaskStoppedAt != 0 {
			e.t.Errorf("run %+v", r)
		}
		e.expect(core.ReclaimCapturing)
		e.must(e.fleet.View(e.store.Process).CommitCapture(e.t.Context(), "r"))
		e.expect(core.ReclaimStored)
		_, err := e.me.renew()
		e.must(err)
		th, err := e.store.Thread(e.t.Context(), thread("t"))
		e.must(err)
		if th.Head != "checkpoint-r" || th.Lease.Owner != "run:r" || !th.Lease.Live(now()) {
			e.t.Errorf("thread %+v", th)
		}
	},
	"a thread that another writes is left alone": func(e *ending) {
		_, err := e.me.detach()
		e.must(err)
		_, err = e.store.UpdateThread(e.t.Context(), thread("t"), core.AcquireLease{Owner: "save:other", Now: now(), Until: now().Add(core.LeaseLife)})
		e.must(err)
		e.fleet.Leave(e.run("r").TaskARN)
		e.leaves()
		e.expect(core.ReclaimLeased)
	},
	"news that ECS does not bear out changes nothing": func(e *ending) {
		_, err := e.me.detach()
		e.must(err)
		e.leaves()
		if r := e.run("r"); r.LogEnd != 0 || r.Status != core.Running {
			e.t.Errorf("run %+v", r)
		}
		e.expect(core.ReclaimNotFound)
		if e.fleet.Capturing("r") {
			e.t.Error("a workspace is stored under a working agent")
		}
	},
	"an end of ours is no news": func(e *ending) {
		_, err := e.me.cancel()
		e.must(err)
		e.settle()
		r := e.run("r")
		report := e.leaves()
		if after := e.run("r"); after.DueAt != r.DueAt || report.Resent != 0 || len(e.outcomes()) != 0 {
			e.t.Errorf("report %+v", report)
		}
	},
}

// TestATaskThatIsAboutToEnd: what its run has is saved while it can be.
func TestATaskThatIsAboutToEnd(t *testing.T) {
	for name, act := range leavings {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := keepingHosting(t)
				e := &ending{hosting: h, hooks: &hooked{}, setup: core.SetupState{Phase: core.SetupDone}, q: startOf("r", "one"), me: host{h, "r", "one"}}
				e.started()
				time.Sleep(time.Second)
				act(e)
				h.check()
			})
		})
	}
}

// TestAWorkspaceThatTheDrainKeepsOutOfReach of its agent is stored once the journal is saved:
// whoever asks for both has the sandbox for one at a time, and nobody else comes in the
// minutes of a notice.
func TestAWorkspaceThatTheDrainKeepsOutOfReach(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := keepingHosting(t)
		e := &ending{hosting: h, hooks: &hooked{}, setup: core.SetupState{Phase: core.SetupDone}, q: startOf("r", "one"), me: host{h, "r", "one"}}
		e.started()
		_, err := e.me.detach()
		e.must(err)
		e.fleet.RestBytes, e.fleet.PageBytes = 0, 1000
		e.fleet.Write("r", strings.Repeat("several pages of it\n", 100))
		r := e.run("r")
		e.fleet.Leave(r.TaskARN)
		reclaim := func() {
			for _, job := range e.store.TakeJobs() {
				c := e.reclaimer(e.store.Process)
				c.Checkpoints = &keeper{Keeper: h.keep.keeper(e.store.Process)}
				_, err := c.Do(t.Context(), job)
				e.must(err)
			}
		}
		met := false
		p := e.store.NewProcess(mem.Faults{Before: func(_ context.Context, name string) {
			if met || !strings.HasPrefix(name, "page") {
				return
			}
			met = true
			if reclaim(); len(h.keep.jobs) > 0 {
				t.Error("an agent was begun beside the drain")
			}
		}})
		_, err = e.sweep(p).TaskStopped(t.Context(), core.StoppedTask{ARN: r.TaskARN, StartedBy: core.StartedBy("test", r.Instance), At: now(), Leaving: true})
		e.must(err)
		if reclaim(); !met || h.keep.jobs["t"].ID != "checkpoint-r" {
			t.Errorf("met %v, and in the end agents are begun for %+v", met, h.keep.jobs)
		}
	})
}

// TestNewsThatMeetOneAnotherAreBothHeard: that a task has stopped, while its notice is
// being written, which moves the same row.
func TestNewsThatMeetOneAnotherAreBothHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.begin("r", nil)
		met := false
		p := w.store.NewProcess(mem.Faults{Before: func(_ context.Context, name string) {
			if met || !strings.HasPrefix(name, "hint") {
				return
			}
			met = true
			notice := core.Hint{TaskARN: r.TaskARN, Row: r.Row, DueAt: r.DueAt, Lapse: r.DueAt - 1}
			if _, err := w.store.Update(t.Context(), r.RunKey, notice); err != nil {
				t.Error(err)
			}
		}})
		at := now()
		stopped := core.StoppedTask{ARN: r.TaskARN, StartedBy: core.StartedBy("test", r.Instance), At: at}
		if _, err := w.sweep(p).TaskStopped(t.Context(), stopped); err != nil {
			t.Fatal(err)
		}
		if got := w.run("r"); !met || got.TaskStoppedAt != at {
			t.Errorf("met %v, stopped at %d, want %d", met, got.TaskStoppedAt, at)
		}
	})
}
