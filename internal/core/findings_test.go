package core_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// Each test in this file is one schedule by which an earlier text of the design, or
// of the code, went wrong, carried out step by step.

// scheduled runs a schedule in virtual time.
func scheduled(t *testing.T, schedule func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { schedule(newWorld(t)) })
}

// before returns a process in which do happens before its first call of that name.
// It is a failure if it never comes to one.
func (w *world) before(call string, do func()) *mem.Process {
	came := false
	w.t.Cleanup(func() {
		if !came {
			w.t.Errorf("no call of %q: the schedule has not been carried out", call)
		}
	})
	return w.store.NewProcess(mem.Faults{Before: func(_ context.Context, name string) {
		if name == call && !came {
			came = true
			do()
		}
	}})
}

// crashing returns a process that is stopped at its first call of that name.
func (w *world) crashing(call string, f mem.Fault) *mem.Process {
	plan := map[int]mem.Fault{}
	var p *mem.Process
	p = w.store.NewProcess(mem.Faults{At: plan, Before: func(_ context.Context, name string) {
		if name == call && len(plan) == 0 {
			plan[len(p.Calls())+1] = f
		}
	}})
	w.t.Cleanup(func() {
		if len(plan) == 0 {
			w.t.Errorf("no call of %q: the schedule has not been carried out", call)
		}
	})
	return p
}

// reclaimAs has a process reclaim the first message that waits; the message stays.
func (w *world) reclaimAs(p *mem.Process) {
	w.t.Helper()
	jobs := w.store.State().Jobs
	if len(jobs) == 0 {
		w.t.Fatal("no message waits")
	}
	_, _ = w.reclaimer(p).Do(w.t.Context(), jobs[0]) // a failed message comes again by its mark
}

// finished begins a run whose agent ends, and which a sweep closes; its reclaim
// message waits.
func (w *world) finished(run string, change func(*core.RunRequest)) {
	w.t.Helper()
	w.begin(run, change)
	w.fleet.Write(core.RunID(run), "done\n")
	w.fleet.Exit(core.RunID(run), 0)
	w.detach(run)
	if _, err := w.sweep(w.store.Process).Run(w.t.Context(), core.SweepRequest{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) taskLives(run string) bool {
	return slices.Contains(w.fleet.Running(), w.run(run).TaskARN)
}

func (w *world) hold(p *mem.Process, run string) error {
	o := &core.Operator{Runs: p, Sandboxes: p, Ledger: p, Due: p, Controls: p, Audit: p, Queue: p}
	return o.Hold(w.t.Context(), key(run), now().Add(time.Hour), core.By{Who: "ops", Why: "to see"})
}

// TestAHoldReadsTheMarkBeforeTheRow: a condemnation between the hold's two readings
// takes the mark away with the record. Had the hold read the row first, it would
// have met neither, and answered ok for a task about to be stopped.
func TestAHoldReadsTheMarkBeforeTheRow(t *testing.T) {
	for n := range 2 {
		scheduled(t, func(w *world) {
			w.finished("r", nil)
			var err error
			reclaim := w.before("condemn", func() {
				readings := 0
				p := w.store.NewProcess(mem.Faults{Before: func(_ context.Context, name string) {
					if name != "read sandbox" && name != "read ledger row" {
						return
					}
					if readings++; readings == n+1 {
						w.condemnAsMarked("r")
					}
				}})
				err = w.hold(p, "r")
			})
			w.reclaimAs(reclaim)
			if !errors.Is(err, core.ErrTooLate) {
				t.Errorf("condemned before reading %d of the hold: it answers %v, want that it is too late", n+1, err)
			}
		})
	}
}

// condemnAsMarked is the condemnation by the reclaimer whose mark the sandbox
// carries.
func (w *world) condemnAsMarked(run string) {
	w.t.Helper()
	r := w.run(run)
	box, err := w.store.Sandbox(w.t.Context(), r.SandboxKey)
	if err == nil {
		err = w.store.Condemn(w.t.Context(), core.Condemn{
			Instance: r.Instance, Key: r.SandboxKey, By: box.Reclaiming, Why: "run ended", Now: now(), DueAt: now().Add(time.Minute),
		})
	}
	if err != nil {
		w.t.Error(err)
	}
}

// TestARunThatNeverHadATaskHasAWholeTranscript: nothing was written, so nothing is
// missing, whatever ended it.
func TestARunThatNeverHadATaskHasAWholeTranscript(t *testing.T) {
	scheduled(t, func(w *world) {
		r, err := w.launcher(w.store.Process).Start(w.t.Context(), core.RunRequest{RunKey: key("r"), Thread: "t", HostNonce: "h"})
		if err == nil {
			_, err = core.RequestCancelOf(w.t.Context(), w.store, r.RunKey)
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		w.tick()
		if r := w.run("r"); r.Status != core.Aborted || !r.Transcript.Complete {
			t.Errorf("run %s, transcript %+v, want aborted and whole", r.Status, r.Transcript)
		}
	})
}

// sweepAs has a process sweep; its messages wait.
func (w *world) sweepAs(p *mem.Process) core.SweepReport {
	w.t.Helper()
	report, err := w.sweep(p).Run(w.t.Context(), core.SweepRequest{})
	if err != nil && !p.Stopped() {
		w.t.Error(err)
	}
	return report
}

// launchAs has a process begin a run up to its agent, or as far as it comes.
func (w *world) launchAs(p *mem.Process, q core.RunRequest, sandbox string) (core.Run, error) {
	l := w.launcher(p)
	r, err := l.Start(w.t.Context(), q)
	if err == nil {
		r, err = l.Launch(w.t.Context(), r, material(sandbox), core.TaskSpec{Cluster: "c", Container: "agent"})
	}
	if err == nil {
		err = startAgent(l, r)
	}
	return r, err
}

func (w *world) cancel(run string) {
	w.t.Helper()
	if _, err := core.RequestCancelOf(w.t.Context(), w.store, key(run)); err != nil {
		w.t.Error(err)
	}
}

// later lets time pass with a sweep and its reclaims every minute.
func (w *world) later(d time.Duration) {
	w.t.Helper()
	for range d / time.Minute {
		time.Sleep(time.Minute)
		w.tick()
	}
}

// nothingLeft fails unless every task has stopped, every row is closed, no instance
// record is left and every run has been reclaimed.
func (w *world) nothingLeft() {
	w.t.Helper()
	state := w.store.State()
	for _, row := range state.Rows {
		if row.State != core.LedgerClosed {
			w.t.Errorf("the ledger row of run %s is %s for ever (%s)", row.Run, row.State, row.Why)
		}
	}
	for _, r := range state.Runs {
		if !r.Status.Terminal() || r.Row != core.RowNone {
			w.t.Errorf("run %s is %s with row %q for ever", r.RunKey, r.Status, r.Row)
		}
	}
	if n := len(state.Sandboxes) + len(w.fleet.Running()); n != 0 {
		w.t.Errorf("%d instance records and tasks are left", n)
	}
}

// TestALaunchThatIsOverAfterItsRunLeaksNothing: the run ends between its RunTask and
// the transaction that would have made the task its own; with and without a reclaim
// that condemns the row before its task is known.
func TestALaunchThatIsOverAfterItsRunLeaksNothing(t *testing.T) {
	for _, reclaimed := range []bool{false, true} {
		scheduled(t, func(w *world) {
			host := w.before("launched", func() {
				w.cancel("r")
				time.Sleep(time.Minute)
				w.sweepAs(w.store.Process)
				if reclaimed {
					w.drainQueue(w.store.Process)
				}
			})
			if _, err := w.launchAs(host, start("r"), "r"); !core.Refused(err) {
				t.Errorf("the launch of an ended run answers %v, want a refusal", err)
			}
			w.check()
			w.later(30 * time.Minute)
			if r := w.run("r"); r.Status != core.Aborted || r.TaskARN != "" {
				t.Errorf("run %s, task %q, want it aborted without one", r.Status, r.TaskARN)
			}
			w.nothingLeft()
		})
	}
}

// TestADuplicateStartKeepsItsTask: the same host's second start completes the launch
// while the first is about to; running with my task is my own success.
func TestADuplicateStartKeepsItsTask(t *testing.T) {
	scheduled(t, func(w *world) {
		host := w.before("launched", func() {
			if _, err := w.launchAs(w.store.Process, start("r"), "r"); err != nil {
				t.Error(err)
			}
		})
		r, err := w.launchAs(host, start("r"), "r")
		if err != nil || r.TaskARN == "" || r.TaskARN != w.run("r").TaskARN {
			t.Errorf("the first start: task %q, %v", r.TaskARN, err)
		}
		w.drainQueue(w.store.Process)
		w.check()
		if len(w.fleet.Running()) != 1 || !w.fleet.Alive("r") {
			t.Errorf("tasks %v run, agent alive: %t, want one and its agent", w.fleet.Running(), w.fleet.Alive("r"))
		}
	})
}

// TestTwoTurnsOfAThreadNeverShareATask: both launch at once; who comes second loses
// its task to its ledger row, and never the other's.
func TestTwoTurnsOfAThreadNeverShareATask(t *testing.T) {
	scheduled(t, func(w *world) {
		first := w.before("launched", func() {
			if _, err := w.launchAs(w.store.Process, start("q"), "r"); err != nil {
				t.Error(err)
			}
		})
		if _, err := w.launchAs(first, start("r"), "r"); !core.Refused(err) {
			t.Errorf("the second to launch is answered %v, want a refusal", err)
		}
		w.drainQueue(w.store.Process)
		w.check()
		if running := w.fleet.Running(); !slices.Equal(running, []string{w.run("q").TaskARN}) || !w.fleet.Alive("q") {
			t.Errorf("tasks %v run, want that of q alone", running)
		}
	})
}

// TestAHoldIsHonouredWhereverItFalls: an operator holds before each call of a
// reclaim. Where the hold is answered ok the task lives until the hold is over; where
// it is too late, the task ends.
func TestAHoldIsHonouredWhereverItFalls(t *testing.T) {
	answers := map[bool]int{}
	for n, calls := 0, 1; n <= calls; n++ { // the zeroth: nobody comes
		scheduled(t, func(w *world) {
			w.finished("r", nil)
			var held error
			p := w.interrupted(n, func() { held = w.hold(w.store.NewProcess(mem.Faults{}), "r") })
			w.reclaimAs(p)
			if calls = max(calls, len(p.Calls())); n == 0 {
				return
			}
			answers[held == nil]++
			if held != nil && !errors.Is(held, core.ErrTooLate) {
				t.Errorf("hold before call %d: %v", n, held)
			}
			w.later(50 * time.Minute)
			if lives := w.taskLives("r"); lives != (held == nil) {
				t.Errorf("hold before call %d of %v is answered %v; the task lives: %t", n, p.Calls(), held, lives)
			}
			w.later(30 * time.Minute)
			w.nothingLeft()
		})
	}
	if answers[true] < 3 || answers[false] < 3 {
		t.Errorf("the hold is answered ok and too late %v times: the schedules have shrunk", answers)
	}
}

// TestAFormerReclaimAttemptCannotCondemn: two deliveries of one message. The first
// has read no hold and is about to condemn; the second marks the sandbox anew, meets
// the hold that was written meanwhile, and takes its mark back. The hold then meets no
// mark, and the first has lost its own.
func TestAFormerReclaimAttemptCannotCondemn(t *testing.T) {
	scheduled(t, func(w *world) {
		w.finished("r", nil)
		held := errors.New("not answered")
		w.reclaimAs(w.before("condemn", func() {
			held = w.hold(w.before("read sandbox", func() { w.reclaimAs(w.store.NewProcess(mem.Faults{})) }), "r")
		}))
		if held != nil || !w.taskLives("r") {
			t.Errorf("the hold is answered %v and the task lives: %t; want it held", held, w.taskLives("r"))
		}
	})
}

// TestTheNextTurnWaitsForACondemnedSandbox: a host that starts the thread's next run
// before each call of the former one's reclaim either waits, or gets a task of its own.
func TestTheNextTurnWaitsForACondemnedSandbox(t *testing.T) {
	waited, began := 0, 0
	for n, calls := 0, 1; n <= calls; n++ { // the zeroth: nobody comes
		scheduled(t, func(w *world) {
			w.finished("r", nil)
			var err error
			p := w.interrupted(n, func() { _, err = w.launchAs(w.store.NewProcess(mem.Faults{}), start("q"), "r") })
			w.reclaimAs(p)
			w.check()
			if calls = max(calls, len(p.Calls())); n == 0 {
				return
			}
			if err != nil {
				waited++
				return
			}
			began++
			if q := w.run("q"); q.TaskARN == w.run("r").TaskARN || !w.fleet.Alive("q") || !w.taskLives("q") {
				t.Errorf("next turn before call %d: task %q, agent alive %t", n, q.TaskARN, w.fleet.Alive("q"))
			}
		})
	}
	if waited < 3 || began < 2 {
		t.Errorf("the next turn waited %d times and began %d times: the schedules have shrunk", waited, began)
	}
}

// seal is a host's last page: it drains to the sentinel under its claim.
func (w *world) seal(run, text string) {
	w.t.Helper()
	writer := &core.LogWriter{Log: w.store, Blobs: w.store, Inline: 1000}
	if _, err := writer.Append(w.t.Context(), w.run(run), []byte(text), &core.Sealed{At: now()}); err != nil {
		w.t.Error(err)
	}
}

// TestASealedRunEndsAsItsAgentDid: the log is sealed after a sweep judged the run
// and before its claim; the claim's own image decides.
func TestASealedRunEndsAsItsAgentDid(t *testing.T) {
	for what, end := range map[string]func(w *world){
		"expired":   func(*world) { time.Sleep(time.Minute) },
		"cancelled": func(w *world) { w.cancel("r") },
		"lost":      func(w *world) { w.fleet.KillTask(w.run("r").TaskARN) },
	} {
		scheduled(t, func(w *world) {
			w.begin("r", shortTTL)
			w.fleet.Write("r", "done\n")
			w.detach("r")
			end(w)
			w.sweepAs(w.before("claim", func() { w.seal("r", "done\n") }))
			w.later(10 * time.Minute)
			w.ended("r", core.Completed, "done\n")
			if r := w.run("r"); !r.Transcript.Complete || r.ExitCode == nil {
				t.Errorf("%s after it was sealed: transcript %+v, exit %v", what, r.Transcript, r.ExitCode)
			}
		})
	}
}

// TestTheAgentOfAnEndedRunNeverBegins: its host comes to start it after each call of
// the sweep that ends the run, and once everything is over.
func TestTheAgentOfAnEndedRunNeverBegins(t *testing.T) {
	for n, calls := 0, 1; n <= calls+1; n++ { // the zeroth: nobody comes
		scheduled(t, func(w *world) {
			host := w.before("start agent", func() {
				w.cancel("r")
				time.Sleep(time.Minute)
				began := false
				p := w.interrupted(n, func() {
					r := w.run("r")
					began = !r.Status.Terminal() && startAgent(w.launcher(w.store.NewProcess(mem.Faults{})), r) == nil
				})
				w.sweepAs(p)
				calls = max(calls, len(p.Calls()))
				if alive := w.fleet.Alive("r"); alive {
					t.Errorf("host before call %d of %v (began: %t): the agent outlives its run", n, p.Calls(), began)
				}
			})
			_, _ = w.launchAs(host, start("r"), "r")
			if w.fleet.Alive("r") {
				t.Errorf("the agent began after its run ended, in the schedule of call %d", n)
			}
			w.later(10 * time.Minute)
			w.nothingLeft()
		})
	}
}

// TestAViewerCannotTakeARunThatIsEnding: the ending stands in the claim of a sweep
// that saw the agent dead, so that no viewer attaches to a run whose start marker
// that sweep takes.
func TestAViewerCannotTakeARunThatIsEnding(t *testing.T) {
	scheduled(t, func(w *world) {
		w.left("r", "cut off\n")
		w.fleet.Die("r")
		w.tick()
		time.Sleep(3 * time.Minute)
		var err error
		w.sweepAs(w.before("terminate", func() {
			r := w.run("r")
			_, err = w.store.Update(w.t.Context(), r.RunKey, core.Attach{Seen: r.Epoch, Nonce: "v", Now: now(), Until: now().Add(time.Minute), Takeover: true})
		}))
		if refused, ok := errors.AsType[*core.RefusedError](err); !ok || refused.Why != "ending" {
			t.Errorf("a viewer of a run that is ending is answered %v, want a refusal for its ending", err)
		}
		w.later(5 * time.Minute)
		w.ended("r", core.Failed, "cut off\n")
		w.nothingLeft()
	})
}

// TestACancelledRunOfADeadHostEnds: nobody renews and nobody detaches; the cancel's
// own due row leads the sweep there.
func TestACancelledRunOfADeadHostEnds(t *testing.T) {
	scheduled(t, func(w *world) {
		w.begin("r", nil)
		w.fleet.Write("r", "unwanted\n")
		w.cancel("r")
		w.tick()
		if r := w.run("r"); r.Status != core.Running {
			t.Errorf("the run is %s before its host had its grace", r.Status)
		}
		time.Sleep(core.CancelGrace)
		w.tick()
		w.ended("r", core.Aborted, "unwanted\n")
		w.later(3 * time.Minute)
		w.nothingLeft()
	})
}

// TestARenewalNeverHidesACancelledRun: a host that renews learns of the cancel and
// writes nothing, in whichever order the two come.
func TestARenewalNeverHidesACancelledRun(t *testing.T) {
	scheduled(t, func(w *world) {
		r := w.begin("r", nil)
		w.cancel("r")
		due := w.run("r")
		_, err := w.store.Update(w.t.Context(), r.RunKey, core.Renew{Epoch: r.Epoch, Until: now().Add(time.Hour)})
		if refused, ok := errors.AsType[*core.RefusedError](err); !ok || refused.Why != "cancel-requested" {
			t.Errorf("a renewal of a cancelled run is answered %v", err)
		}
		if after := w.run("r"); after.Row != core.RowCancel || after.DueAt != due.DueAt {
			t.Errorf("the row is %s at %d, want the cancel's at %d", after.Row, after.DueAt, due.DueAt)
		}
		w.later(3 * time.Minute)
		w.nothingLeft()
	})
}

// TestARunThatNeverGotATaskEnds: its host stops after each write of its start.
func TestARunThatNeverGotATaskEnds(t *testing.T) {
	for _, call := range []string{"create run", "name instance", "put intent"} {
		scheduled(t, func(w *world) {
			_, _ = w.launchAs(w.crashing(call, mem.StopAfter), start("r"), "r")
			w.later(30 * time.Minute)
			if r := w.run("r"); r.Status != core.Failed || r.Error == nil || r.Error.Code != string(core.EndNeverStarted) {
				t.Errorf("stopped after %q: run %s, %+v, want failed, never started", call, r.Status, r.Error)
			}
			w.nothingLeft()
		})
	}
}

// TestARunNeverEndsWhileItLaunches: its launch completes between a sweep's judgement
// that it never began and its claim. The claim's condition names instance and task
// as they were read.
func TestARunNeverEndsWhileItLaunches(t *testing.T) {
	for _, stage := range []string{"name instance", "launched"} {
		scheduled(t, func(w *world) {
			r, err := w.launcher(w.store.Process).Start(w.t.Context(), start("r"))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Second) // its host is slow, and has not renewed
			report := w.sweepAs(w.before("claim", func() {
				host := w.store.NewProcess(mem.Faults{})
				if stage == "name instance" {
					host = w.crashing("put intent", mem.StopBefore)
				}
				_, err = w.launcher(host).Launch(w.t.Context(), r, material("r"), core.TaskSpec{Cluster: "c", Container: "agent"})
				if stage == "launched" && err == nil {
					err = startAgent(w.launcher(host), w.run("r"))
				}
			}))
			if got := outcomes(report)["r"]; got != core.NotClaimed || w.run("r").Status != core.Running {
				t.Errorf("up to %q while it was judged: outcome %s, run %s; want it left alone", stage, got, w.run("r").Status)
			}
			if stage == "launched" && (err != nil || !w.fleet.Alive("r")) {
				t.Errorf("the launch answers %v; agent alive: %t", err, w.fleet.Alive("r"))
			}
			w.check()
		})
	}
}

// TestALateLaunchIsNeverRevived: the host stopped after RunTask. Its row is over
// before anybody finds the task; the task is condemned, and a host that comes back
// gets another.
func TestALateLaunchIsNeverRevived(t *testing.T) {
	for _, back := range []bool{false, true} {
		scheduled(t, func(w *world) {
			_, _ = w.launchAs(w.crashing("run task", mem.StopAfter), start("r"), "r")
			first := w.run("r").Instance
			for range 25 {
				time.Sleep(time.Minute)
				r := w.run("r")
				_, _ = w.store.Update(w.t.Context(), r.RunKey, core.Renew{Epoch: r.Epoch, Until: now().Add(90 * time.Second)})
				w.tick()
			}
			if row := w.store.State().Rows[first]; row.State != core.LedgerStopping && row.State != core.LedgerClosed {
				t.Errorf("the late launch's row is %s, want it condemned", row.State)
			}
			if back {
				r, err := w.launchAs(w.store.Process, start("r"), "r")
				if err != nil || r.Instance == first || !w.fleet.Alive("r") || len(w.fleet.Running()) != 1 {
					t.Errorf("the host that comes back: instance %s (first %s), %v, tasks %v", r.Instance, first, err, w.fleet.Running())
				}
				w.fleet.Exit("r", 0)
			}
			w.later(40 * time.Minute)
			w.nothingLeft()
		})
	}
}

// TestAReplacedSandboxIsCondemnedFirst: the thread's next turn finds its task gone.
// It stops after each of its calls; the old row closes all the same.
func TestAReplacedSandboxIsCondemnedFirst(t *testing.T) {
	const most = 40 // calls of a start
	began := false
	for n := 1; n <= most && !began; n++ {
		scheduled(t, func(w *world) {
			w.finished("r", nil)
			w.fleet.KillTask(w.run("r").TaskARN)
			_, err := w.launchAs(w.store.NewProcess(mem.At(n, mem.StopAfter)), start("q"), "r")
			began = err == nil
			w.check()
			if w.fleet.Alive("q") {
				w.fleet.Exit("q", 0)
			}
			w.later(40 * time.Minute)
			w.nothingLeft()
		})
	}
	if !began {
		t.Errorf("the next turn has not begun within %d calls", most)
	}
}
