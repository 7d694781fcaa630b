package core_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/core/coretest"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

var launchSpec = core.TaskSpec{Cluster: "c", Container: "agent"}

// host begins run r as its host does, by a process that may fail: record, task,
// agent. It may be repeated.
func (w *world) host(p *mem.Process) error {
	l := w.launcher(p)
	r, err := l.Start(w.t.Context(), core.RunRequest{RunKey: key("r"), Thread: "thread-r", HostNonce: "host", Definition: "d"})
	if err == nil {
		r, err = l.Launch(w.t.Context(), r, material("r"), launchSpec)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	_, err = coretest.StartAgent(ctx, l, r, core.JournalStart{Argv: []string{"agent"}}, nil)
	return err
}

// TestLaunchOrder: a task is named, in the run and in the ledger, before it is asked
// for (I6), and what has a task only says that its host is there.
func TestLaunchOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.store.NewProcess(mem.Faults{})
		if err := w.host(p); err != nil {
			t.Fatal(err)
		}
		last := -1
		for _, call := range []string{"create run", "name instance", "put intent", "run task", "launched", "renew", "start agent"} {
			i := slices.Index(p.Calls(), call)
			if i <= last {
				t.Errorf("%s is call %d of %v", call, i, p.Calls())
			}
			last = i
		}
		again := w.store.NewProcess(mem.Faults{})
		if err := w.host(again); err != nil || slices.Contains(again.Calls(), "run task") || !slices.Equal(again.Writes(), []string{"renew run acme/r"}) {
			t.Errorf("again: %v, calls %v, writes %v", err, again.Calls(), again.Writes())
		}
		w.check()
	})
}

// TestLaunchCrashMatrix stops a host at every call of a launch, in every way, and
// lets it repeat itself at once, come back late, or never: no task leaks, no run has
// two, and every row is closed in the end (I6, I15).
func TestLaunchCrashMatrix(t *testing.T) {
	calls := 0
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.store.NewProcess(mem.Faults{})
		if err := w.host(p); err != nil {
			t.Fatal(err)
		}
		calls = len(p.Calls())
	})
	if calls < 8 {
		t.Fatalf("a launch makes %d calls: it has shrunk", calls)
	}
	points := 0
	for n := 1; n <= calls; n++ {
		for _, fault := range []mem.Fault{mem.NotLanded, mem.AnswerLost, mem.StopBefore, mem.StopAfter} {
			for what, after := range map[string]func(w *world){
				"repeats": (*world).repeats, "comes back late": (*world).comesBackLate, "dies": (*world).dies,
			} {
				points++
				t.Run(fmt.Sprintf("%d %s, then the host %s", n, fault, what), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						w := newWorld(t)
						_ = w.host(w.store.NewProcess(mem.At(n, fault)))
						w.check()
						after(w)
						w.launchIsOver()
					})
				})
			}
		}
	}
	t.Logf("launch crash matrix: %d points", points)
}

// repeats has the host go on until its agent runs, a sweep every minute beside it.
func (w *world) repeats() {
	w.t.Helper()
	for range 60 {
		if w.host(w.store.Process) == nil {
			w.oneTask()
			return
		}
		w.wait(time.Minute)
		r := w.run("r")
		if _, err := w.store.Update(w.t.Context(), r.RunKey, core.Renew{Epoch: r.Epoch, Until: now().Add(w.limits.Attachment)}); err != nil {
			w.t.Fatal(err)
		}
	}
	w.t.Error("the host tried for an hour, and its agent does not run")
}

// comesBackLate has the host repeat itself when its launch's window is over and its
// attachment has lapsed. Its run may have ended meanwhile.
func (w *world) comesBackLate() {
	w.t.Helper()
	for range 3 {
		w.wait(time.Minute)
	}
	for range 60 {
		err := w.host(w.store.Process)
		if err == nil || core.Refused(err) {
			w.oneTask()
			return
		}
		w.wait(time.Minute)
	}
	w.t.Error("the host tried for an hour, and its run neither runs nor ended")
}

// dies leaves everything to the sweep.
func (w *world) dies() { w.oneTask() }

// wait lets time pass until the next sweep and its reclaims.
func (w *world) wait(d time.Duration) {
	time.Sleep(d)
	w.tick()
}

// oneTask fails if run r has two tasks, or one that its record does not name.
func (w *world) oneTask() {
	w.t.Helper()
	bound := 0
	for _, row := range w.store.State().Rows {
		if row.Run != "r" || row.State != core.LedgerRunning {
			continue
		}
		if r := w.run("r"); r.TaskARN != row.TaskARN || r.Instance != row.Instance {
			w.t.Errorf("row %+v serves a run that names %s %s", row, r.Instance, r.TaskARN)
		}
		bound++
	}
	if bound > 1 {
		w.t.Errorf("the run has %d tasks", bound)
	}
}

// launchIsOver has the agent end, if it has begun, and its host stay away: whatever
// came of the launch, sweeps alone bring it to its end.
func (w *world) launchIsOver() {
	w.t.Helper()
	if w.fleet.Alive("r") {
		w.fleet.Exit("r", 0)
	}
	for range 30 { // longer than a launch's lag and an agent's two sightings
		w.wait(time.Minute)
		w.oneTask()
	}
	state := w.store.State()
	if r, ok := state.Runs[key("r")]; ok && (!r.Status.Terminal() || r.Row != core.RowNone) {
		w.t.Errorf("the run stays: %+v", r)
	}
	for _, row := range state.Rows {
		if row.State != core.LedgerClosed {
			w.t.Errorf("row stays open: %+v", row)
		}
	}
	if tasks := w.fleet.Running(); len(tasks) != 0 || len(state.Sandboxes) != 0 {
		w.t.Errorf("leaked %v, records %v", tasks, state.Sandboxes)
	}
}

// TestALaunchIsTakenOver: whoever lost the run while RunTask was under way binds
// nothing and condemns what it got; the new host's task is another.
func TestALaunchIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.store.NewProcess(mem.Faults{Before: func(ctx context.Context, name string) {
			if name != "launched" {
				return
			}
			r := w.run("r")
			if _, err := w.store.Update(ctx, r.RunKey, core.Attach{
				Seen: r.Epoch, Nonce: "other", Now: now(), Until: now().Add(time.Hour), Takeover: true,
			}); err != nil && !core.Refused(err) {
				t.Error(err)
			}
		}})
		if err := w.host(p); !core.Refused(err) {
			t.Errorf("%v, want refused", err)
		}
		lost := w.fleet.Running()
		r, err := w.launcher(w.store.Process).Launch(t.Context(), w.run("r"), material("r"), launchSpec)
		if err != nil || len(lost) != 1 || r.TaskARN == lost[0] {
			t.Fatalf("%v, %+v beside %v", err, r, lost)
		}
		w.drainQueue(w.store.Process)
		if got := w.fleet.Running(); !slices.Equal(got, []string{r.TaskARN}) {
			t.Errorf("running %v, want %s alone", got, r.TaskARN)
		}
		w.oneTask()
		w.check()
	})
}

// TestALateLaunchIsCondemned: a task whose RunTask answer was lost is found by its
// name, left alone while its launch may still be going on, then stopped, and never
// taken into service.
func TestALateLaunchIsCondemned(t *testing.T) {
	for what, ranTask := range map[string]bool{"a task was launched": true, "no task was launched": false} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				p := w.store.NewProcess(mem.Faults{})
				l := w.launcher(p)
				l.Provider = lostAnswer{l.Provider, ranTask}
				r, err := l.Start(t.Context(), core.RunRequest{RunKey: key("r"), Thread: "thread-r", HostNonce: "host", Definition: "d"})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := l.Launch(t.Context(), r, material("r"), launchSpec); err == nil {
					t.Fatal("launched, though RunTask gave no answer")
				}
				begun := now()
				over := begun.Add(w.limits.LaunchWindow).Add(w.limits.LaunchLag)
				for now().Add(time.Minute) < over {
					w.wait(time.Minute)
					row := w.store.State().Rows[w.run("r").Instance]
					if row.State != core.LedgerIntent || len(w.fleet.Running()) > 0 != ranTask || w.run("r").Status != core.Running {
						t.Fatalf("after %s: row %+v, run %+v", now().Sub(begun), row, w.run("r"))
					}
				}
				w.wait(2 * time.Minute)
				w.wait(2 * time.Minute)
				row := w.store.State().Rows[w.run("r").Instance]
				if row.State != core.LedgerClosed || len(w.fleet.Running()) > 0 || (row.TaskARN != "") != ranTask {
					t.Errorf("row %+v, running %v", row, w.fleet.Running())
				}
				if r := w.run("r"); r.Status != core.Failed || r.Error.Code != "never-started" {
					t.Errorf("run %+v", r)
				}
			})
		})
	}
}

// TestDueRows is what a sweep does with an open ledger row that is due.
func TestDueRows(t *testing.T) {
	for what, c := range map[string]struct {
		state core.LedgerState
		over  bool // the launch can no longer happen
		tasks int  // that ECS lists under the row's name
		known bool // the row names its task
		want  core.LedgerState
		named bool
		sent  bool
		fails bool
	}{
		"a launch that may be going on is waited for":                {core.LedgerIntent, false, 0, false, core.LedgerIntent, false, false, false},
		"a launch that may be going on is not condemned":             {core.LedgerIntent, false, 1, false, core.LedgerIntent, false, false, false},
		"a launch that never was is closed":                          {core.LedgerIntent, true, 0, false, core.LedgerClosed, false, false, false},
		"a launch that turns up late is condemned":                   {core.LedgerIntent, true, 1, false, core.LedgerStopping, true, true, false},
		"a condemned row without a task waits for it":                {core.LedgerStopping, false, 0, false, core.LedgerStopping, false, false, false},
		"a condemned row gets its task":                              {core.LedgerStopping, false, 1, false, core.LedgerStopping, true, true, false},
		"a condemned row that can have no task any more is closed":   {core.LedgerStopping, true, 0, false, core.LedgerClosed, false, false, false},
		"a condemned row with its task is announced again":           {core.LedgerStopping, true, 1, true, core.LedgerStopping, true, true, false},
		"two tasks under one name are an error, and nothing is done": {core.LedgerIntent, true, 2, false, core.LedgerIntent, false, false, true},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				time.Sleep(time.Hour)
				row := core.LedgerRow{Instance: "i", Key: "k", Provider: "fargate", Tenant: "acme", Run: "r", State: c.state, LaunchUntil: now(), DueAt: now(), Cluster: "c"}
				if c.over {
					row.LaunchUntil = now().Add(-w.limits.LaunchLag)
				}
				if c.known {
					row.TaskARN = "arn-1"
				}
				w.store.SeedRow(row)
				s := w.sweep(w.store.Process)
				s.Tasks = listedTasks{s.Tasks, c.tasks}
				report, err := s.Run(t.Context(), core.SweepRequest{})
				if err != nil || (len(report.Errors) > 0) != c.fails {
					t.Errorf("%v, %+v", err, report)
				}
				after := w.store.State().Rows["i"]
				if after.State != c.want || (after.TaskARN == "arn-1") != c.named || after.State != core.LedgerClosed && !c.known && !c.fails && after.DueAt <= now() && !c.sent {
					t.Errorf("row %+v", after)
				}
				jobs := w.store.TakeJobs()
				if sent := len(jobs) == 1 && jobs[0] == (core.ReclaimJob{Tenant: "acme", Instance: "i", Kind: core.JobLedger}); sent != c.sent || !sent && len(jobs) > 0 {
					t.Errorf("sent %+v", jobs)
				}
			})
		})
	}
}

// listedTasks lists that many tasks under any name.
type listedTasks struct {
	core.TaskDescriber
	n int
}

func (l listedTasks) StartedBy(_ context.Context, _, startedBy string) ([]string, error) {
	if startedBy != "test/i" {
		return nil, fmt.Errorf("list tasks of %q", startedBy)
	}
	return []string{"arn-1", "arn-2"}[:l.n], nil
}

// lostAnswer runs a task, or not, and never says so.
type lostAnswer struct {
	core.Provider
	runs bool
}

func (l lostAnswer) Start(ctx context.Context, spec core.TaskSpec) (string, error) {
	if l.runs {
		_, _ = l.Provider.Start(ctx, spec) // its answer is what gets lost
	}
	return "", errors.New("connection reset")
}

// TestALaunchEndsWithItsWindow: RunTask is under the row's deadline, and no token is
// used after it.
func TestALaunchEndsWithItsWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.launcher(w.store.Process)
		hanging := &hangingRunner{Provider: l.Provider}
		l.Provider = hanging
		r, err := l.Start(t.Context(), core.RunRequest{RunKey: key("r"), Thread: "thread-r", HostNonce: "host", Definition: "d"})
		if err != nil {
			t.Fatal(err)
		}
		begun := now()
		if _, err := l.Launch(t.Context(), r, material("r"), launchSpec); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the deadline", err)
		}
		if took := now().Sub(begun); took != w.limits.LaunchWindow {
			t.Errorf("took %s, want %s", took, w.limits.LaunchWindow)
		}
		for range 10 {
			if _, err := l.Launch(t.Context(), w.run("r"), material("r"), launchSpec); !errors.Is(err, core.ErrLaunchPending) {
				t.Errorf("%v, want pending", err)
			}
			time.Sleep(time.Minute)
		}
		if hanging.calls != 1 {
			t.Errorf("asked for a task %d times", hanging.calls)
		}
	})
}

type hangingRunner struct {
	core.Provider
	calls int
}

func (h *hangingRunner) Start(ctx context.Context, _ core.TaskSpec) (string, error) {
	h.calls++
	<-ctx.Done()
	return "", ctx.Err()
}

// TestAKeyHasOneSandbox: a second run of the thread launches nothing beside it.
func TestAKeyHasOneSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.begin("r", nil)
		l := w.launcher(w.store.Process)
		second, err := l.Start(t.Context(), core.RunRequest{RunKey: key("second"), Thread: "thread-r", HostNonce: "h", Definition: "d"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Launch(t.Context(), second, material("r"), launchSpec); !errors.Is(err, core.ErrSandboxExists) {
			t.Errorf("%v, want the sandbox that exists", err)
		}
		if n := len(w.fleet.Running()); n != 1 || w.run("second").Instance != "" {
			t.Errorf("%d tasks run, and the second run names %q", n, w.run("second").Instance)
		}
	})
}

// TestStartAsksForWhatItNeeds: a request that lacks an id is refused, and puts no
// record.
func TestStartAsksForWhatItNeeds(t *testing.T) {
	whole := core.RunRequest{RunKey: key("r"), Thread: "t", HostNonce: "h"}
	for what, q := range map[string]core.RunRequest{
		"no tenant":                  changed(whole, func(q *core.RunRequest) { q.Tenant = "" }),
		"no run":                     changed(whole, func(q *core.RunRequest) { q.Run = "" }),
		"no thread":                  changed(whole, func(q *core.RunRequest) { q.Thread = "" }),
		"no host nonce":              changed(whole, func(q *core.RunRequest) { q.HostNonce = "" }),
		"a negative TTL":             changed(whole, func(q *core.RunRequest) { q.TTLSeconds = -1 }),
		"a run that is no UTF-8":     changed(whole, func(q *core.RunRequest) { q.Run = "\xff" }),
		"a tenant that is no UTF-8":  changed(whole, func(q *core.RunRequest) { q.Tenant = "\xff" }),
		"a thread that is no UTF-8":  changed(whole, func(q *core.RunRequest) { q.Thread = "\xff" }),
		"a run too long for keys":    changed(whole, func(q *core.RunRequest) { q.Run = core.RunID(strings.Repeat("r", core.MaxIDs)) }),
		"a thread too long for keys": changed(whole, func(q *core.RunRequest) { q.Thread = core.ThreadID(strings.Repeat("🚀", core.MaxIDs/12)) }),
	} {
		w := newWorld(t)
		if _, err := w.launcher(w.store.Process).Start(t.Context(), q); err == nil || len(w.store.State().Runs) != 0 {
			t.Errorf("%s: %v, %d records", what, err, len(w.store.State().Runs))
		}
	}
	w := newWorld(t)
	longest := changed(whole, func(q *core.RunRequest) {
		q.Run = core.RunID(strings.Repeat("r", core.MaxIDs-len(q.Tenant)))
	})
	if _, err := w.launcher(w.store.Process).Start(t.Context(), longest); err != nil {
		t.Errorf("the longest ids: %v", err)
	}
	if _, err := w.launcher(w.store.Process).Start(t.Context(), whole); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		q   core.RunRequest
		why string
	}{
		"the host again":  {whole, ""},
		"another host":    {changed(whole, func(q *core.RunRequest) { q.HostNonce = "other" }), "attached-elsewhere"},
		"an id used once": {changed(whole, func(q *core.RunRequest) { q.Run = "over" }), "terminal"},
	} {
		w.store.SeedRun(endedRun("over"))
		_, err := w.launcher(w.store.Process).Start(t.Context(), c.q)
		if e, ok := errors.AsType[*core.RefusedError](err); ok != (c.why != "") || ok && e.Why != c.why {
			t.Errorf("%s: %v, want %q", what, err, c.why)
		}
	}
}

// TestReclaimCrashMatrix stops the reclaims of an ended run, of one whose sandbox is
// kept warm, and of that sandbox when it is due, at every call and in every way: in
// the end each task is gone, each row closed, and nothing owed.
func TestReclaimCrashMatrix(t *testing.T) {
	calls := 0
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.seedReclaims()
		p := w.store.NewProcess(mem.Faults{})
		w.reclaimAll(p)
		calls = len(p.Calls())
		w.reclaimsAreOver()
	})
	if calls < 50 {
		t.Fatalf("the reclaims make %d calls: they have shrunk", calls)
	}
	points := 0
	for n := 1; n <= calls; n++ {
		for _, fault := range []mem.Fault{mem.NotLanded, mem.AnswerLost, mem.StopBefore, mem.StopAfter} {
			points++
			t.Run(fmt.Sprintf("%d %s", n, fault), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					w.seedReclaims()
					w.reclaimAll(w.store.NewProcess(mem.At(n, fault)))
					w.check()
					w.recover()
					time.Sleep(w.limits.IdleTTL)
					w.recover()
					w.reclaimsAreOver()
				})
			})
		}
	}
	t.Logf("reclaim crash matrix: %d points", points)
}

// seedReclaims has two runs end: one owes its sandbox's end, one its idleness. A
// third works on.
func (w *world) seedReclaims() {
	w.begin("end", nil)
	w.begin("idle", func(q *core.RunRequest) { q.Reclaim = core.ReclaimIdle })
	w.left("works", "at work\n")
	for _, run := range []core.RunID{"end", "idle"} {
		w.fleet.Write(run, "done\n")
		w.fleet.Exit(run, 0)
		w.detach(string(run))
	}
	if _, err := w.sweep(w.store.Process).Run(w.t.Context(), core.SweepRequest{}); err != nil {
		w.t.Fatal(err)
	}
}

// reclaimAll does the messages, and those of the sandbox that is due later.
func (w *world) reclaimAll(p *mem.Process) {
	w.drainQueue(p)
	time.Sleep(w.limits.IdleTTL)
	w.once(p)
}

func (w *world) reclaimsAreOver() {
	w.t.Helper()
	w.check()
	w.ended("end", core.Completed, "done\n")
	w.ended("idle", core.Completed, "done\n")
	works := w.run("works")
	if got := w.fleet.Running(); !slices.Equal(got, []string{works.TaskARN}) || works.Epoch != 1 {
		w.t.Errorf("running %v, want %s alone, untouched: %+v", got, works.TaskARN, works)
	}
	for id, row := range w.store.State().Rows {
		if id != works.Instance && row.State != core.LedgerClosed {
			w.t.Errorf("row stays open: %+v", row)
		}
	}
}

// TestAGoneSandboxIsReplaced: its task ended while it was idle; the next turn condemns
// the old one and gets a new one, and no row stays open.
func TestAGoneSandboxIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.begin("first", func(q *core.RunRequest) { q.Reclaim = core.ReclaimIdle })
		w.fleet.Exit("first", 0)
		w.detach("first")
		w.tick()
		first := w.run("first")
		if box, err := w.store.Sandbox(t.Context(), first.SandboxKey); err != nil || box.IdleSince == 0 {
			t.Fatalf("first is not idle: %+v, %v", box, err)
		}
		l := w.launcher(w.store.Process)
		q := core.RunRequest{RunKey: key("second"), Thread: "thread-first", HostNonce: "host", Definition: "d"}
		r, err := l.Start(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		spec := core.TaskSpec{Cluster: "c", Container: "agent"}
		if _, err := l.Launch(t.Context(), r, material("first"), spec); !errors.Is(err, core.ErrSandboxExists) {
			t.Errorf("a sandbox that lives: %v", err)
		}
		w.fleet.KillTask(first.TaskARN)
		r, err = l.Launch(t.Context(), r, material("first"), spec)
		if err != nil || r.TaskARN == first.TaskARN || r.TaskARN == "" {
			t.Fatalf("launched %q, %v", r.TaskARN, err)
		}
		w.drainQueue(w.store.Process)
		w.check()
		if row, err := w.store.Row(t.Context(), first.Instance); err != nil || row.State != core.LedgerClosed {
			t.Errorf("the old row: %+v, %v", row, err)
		}
	})
}
