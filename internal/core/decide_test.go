package core_test

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// judgement is one run as a sweep meets it, and what the sweep makes of it.
type judgement struct {
	what    string
	run     func(r *core.Run) // from a run that left 10 minutes ago and has a task
	row     core.LedgerState  // of its instance; none: no row
	rowOf   core.RunKey       // whose that row is; zero: the run's own
	task    core.Task         // as ECS describes it; zero: it lives
	reply   core.ProbeReply   // zero: producing
	control core.Control
	want    core.Outcome
	why     string
	asked   bool // its journal was
	limits  func(l *core.Limits)
	meters  core.Meters
}

var (
	finishedReply = core.ProbeReply{State: core.ProbeFinished, Exit: 0, Whole: true}
	refusedReply  = core.ProbeReply{Reason: core.ReasonExecRefused, Healing: core.Configuration}
	unknownReply  = core.ProbeReply{Reason: "no-shell", Healing: core.Configuration}
	frozen        = core.Control{Frozen: true}
	tripped       = core.Control{Breaker: core.Breaker{TrippedAt: 1}}
)

// expiredRun left exactly its TTL ago.
func expiredRun(r *core.Run) { r.TTLSeconds = 600 }

func heldUntil(at time.Duration) func(r *core.Run) {
	return func(r *core.Run) { expiredRun(r); r.Hold.Until = now().Add(at) }
}

func cancelledByUser(r *core.Run) { r.CancelRequested = now() - 5 }

func endingRun(reason core.EndReason) func(r *core.Run) {
	return func(r *core.Run) { r.Ending = &core.Ending{Reason: reason, At: now() - 5} }
}

// unlaunchedRun has named its task, which it has not got.
func unlaunchedRun(r *core.Run) { r.TaskARN = "" }

// paused is a run that was paused that long ago, and whose pause may last 600 s.
func paused(since time.Duration, row core.Row) func(r *core.Run) {
	return func(r *core.Run) {
		r.Status, r.Row, r.DueAt, r.DetachedSince = core.Interrupted, row, now(), 0
		r.InterruptedSince, r.PauseSeconds = now().Add(-since), 600
	}
}

func both(changes ...func(r *core.Run)) func(r *core.Run) {
	return func(r *core.Run) {
		for _, change := range changes {
			change(r)
		}
	}
}

// judgements are the rows of [TestDecide].
var judgements = []judgement{
	{what: "a run whose agent works is left alone", want: core.Producing, why: "no-sentinel", asked: true},
	{what: "a run whose agent has ended is finished", reply: finishedReply, want: core.Finalized, why: "sentinel", asked: true},
	{what: "a run that could not be asked is left alone, with the reason", reply: unknownReply, want: core.Unknown, why: "no-shell", asked: true},

	{what: "a sealed run is finished from its record alone", run: sealed, want: core.Finalized, why: "sealed"},
	{what: "a sealed run is finished although its time is over", run: both(sealed, expiredRun), want: core.Finalized, why: "sealed"},
	{what: "a sealed run is finished although its task is gone", run: sealed, task: core.Task{Life: core.TaskGone}, want: core.Finalized, why: "sealed"},
	{what: "a sealed run is finished although a user cancelled it", run: both(sealed, cancelledByUser), want: core.Finalized, why: "sealed"},
	{what: "a sealed run is finished in a frozen installation", run: sealed, control: frozen, want: core.Finalized, why: "sealed"},
	{what: "a run that another sweep has is left to it, sealed or not", run: both(sealed, func(r *core.Run) { r.ClaimUntil = now() + 1 }),
		want: core.NotClaimed, why: "claimed"},
	{what: "a run whose claim is just over is judged", run: func(r *core.Run) { r.ClaimUntil = now() }, want: core.Producing, asked: true},

	{what: "a run is expired when its time is exactly over", run: expiredRun, want: core.Expired, why: "expired"},
	{what: "a run is not expired one millisecond before", run: both(expiredRun, func(r *core.Run) { r.DetachedSince++ }),
		want: core.Producing, asked: true},
	{what: "an expired run is not asked whether it has ended", run: expiredRun, reply: finishedReply, want: core.Expired},
	{what: "a run without a TTL of its own has the installation's", run: func(r *core.Run) { r.DetachedSince = now().Add(-core.DefaultLimits.RunTTL) },
		want: core.Expired},
	{what: "a run's own TTL may be longer", run: func(r *core.Run) {
		r.DetachedSince, r.TTLSeconds = now().Add(-core.DefaultLimits.RunTTL), 9*3600
	}, want: core.Producing, asked: true},

	{what: "a held run does not expire", run: heldUntil(time.Minute), want: core.Held, why: "held", asked: true},
	{what: "a held run that has ended is finished", run: heldUntil(time.Minute), reply: finishedReply, want: core.Finalized, asked: true},
	{what: "a hold that is just over holds no more", run: heldUntil(0), want: core.Expired},
	{what: "a held run is ended where a user cancelled it", run: both(heldUntil(time.Minute), cancelledByUser), want: core.Cancelled},
	{what: "a held run whose task is gone is lost", run: heldUntil(time.Minute), task: core.Task{Life: core.TaskGone}, want: core.Lost},

	{what: "a cancelled run is ended without a question", run: cancelledByUser, want: core.Cancelled, why: "cancelled"},
	{what: "a cancel goes before an expiry", run: both(cancelledByUser, expiredRun), want: core.Cancelled},
	{what: "an end that is decided stays as it was decided", run: both(endingRun(core.EndExpired), cancelledByUser), want: core.Expired},
	{what: "an end that is decided goes before the hold that came too late", run: both(endingRun(core.EndExpired), heldUntil(time.Minute)), want: core.Expired},

	{what: "a frozen installation expires nothing", run: expiredRun, control: frozen, want: core.Held, why: "frozen", asked: true},
	{what: "a frozen installation does not go on with an expiry", run: endingRun(core.EndExpired), control: frozen, want: core.Held, why: "frozen"},
	{what: "a frozen installation gives up no lost run", task: core.Task{Life: core.TaskGone}, control: frozen, want: core.Held, why: "frozen"},
	{what: "a frozen installation finishes what has ended", control: frozen, reply: finishedReply, want: core.Finalized, asked: true},
	{what: "a frozen installation lets a user cancel", run: cancelledByUser, control: frozen, want: core.Cancelled},
	{what: "a tripped breaker expires nothing", run: expiredRun, control: tripped, want: core.Held, why: "breaker", asked: true},
	{what: "a tripped breaker gives up no lost run", task: core.Task{Life: core.TaskGone}, control: tripped, want: core.Held, why: "breaker"},
	{what: "a tripped breaker gives up no run that was never launched", run: unlaunchedRun, control: tripped, want: core.Held, why: "breaker"},
	{what: "a tripped breaker finishes what has ended", control: tripped, reply: finishedReply, want: core.Finalized, asked: true},

	{what: "a run whose task has stopped is lost, with ECS's words", task: core.Task{Life: core.TaskGone, StopCode: "TaskFailedToStart", Reason: "no image"},
		want: core.Lost, why: "TaskFailedToStart: no image"},
	{what: "a run whose agent's container has exited is lost", task: core.Task{Life: core.TaskLives, Exits: map[string]int{"agent": 137}}, want: core.Lost},
	{what: "another container's exit says nothing", task: core.Task{Life: core.TaskLives, Exits: map[string]int{"sidecar": 1}},
		want: core.Producing, asked: true},
	{what: "a task on its way out does not end its run", task: core.Task{Life: core.TaskLeaving}, want: core.Producing, why: "task-leaving", asked: true},
	{what: "a task on its way out may have finished", task: core.Task{Life: core.TaskLeaving}, reply: finishedReply, want: core.Finalized, asked: true},
	{what: "a task on its way out may not answer", task: core.Task{Life: core.TaskLeaving}, reply: refusedReply, want: core.Unknown, why: "task-leaving", asked: true},
	{what: "a task of which ECS says nothing is unknown", task: core.Task{ARN: "silent"}, want: core.Unknown, why: "task-unknown"},
	{what: "a task whose name ECS refuses is a fault of configuration", task: core.Task{ARN: "malformed", Reason: "taskId length should be one of [32,36]"}, want: core.Unknown, why: "task-refused"},
	{what: "a task that ECS does not know yet is unknown", task: core.Task{Life: core.TaskMissing}, want: core.Unknown, why: "task-missing"},
	{what: "a probe that is refused while the agent comes up may be tried again", reply: refusedReply, want: core.Unknown, why: "agent-pending", asked: true,
		task: core.Task{Life: core.TaskLives, ExecEnabled: true, Agents: map[string]core.ExecAgent{"agent": {Status: "PENDING"}}}},
	{what: "a probe that is refused because the agent stopped may not", reply: refusedReply, want: core.Unknown, why: "agent-stopped", asked: true,
		task: core.Task{Life: core.TaskLives, ExecEnabled: true, Agents: map[string]core.ExecAgent{"agent": {Status: "STOPPED"}}}},
	{what: "an expired run whose task is gone has expired", run: expiredRun, task: core.Task{Life: core.TaskGone}, want: core.Expired},

	{what: "a run that names no task was never launched", run: both(unlaunchedRun, func(r *core.Run) { r.Instance = "" }), want: core.Died, why: "never-launched"},
	{what: "a run whose launch has no row was never launched", run: unlaunchedRun, want: core.Died, why: "never-launched"},
	{what: "a run whose launch is over was never launched", run: unlaunchedRun, row: core.LedgerClosed, want: core.Died, why: "never-launched"},
	{what: "a run whose launch is under way is left alone", run: unlaunchedRun, row: core.LedgerIntent, want: core.Unknown, why: "launch-intent"},
	{what: "a run whose launch is being undone is left alone", run: unlaunchedRun, row: core.LedgerStopping, want: core.Unknown, why: "launch-stopping"},
	{what: "a run whose instance is another run's was never launched", run: unlaunchedRun, row: core.LedgerRunning, rowOf: key("other"), want: core.Died, why: "never-launched"},
	{what: "nor was one whose instance a run of another tenant began to launch", run: unlaunchedRun, row: core.LedgerIntent,
		rowOf: core.RunKey{Tenant: "umbra", Run: "r"}, want: core.Died, why: "never-launched"},
	{what: "a row that the audit wrote may be of its launch", run: unlaunchedRun, row: core.LedgerStopping, rowOf: core.RunKey{Tenant: "-"}, want: core.Unknown, why: "launch-stopping"},
	{what: "an expired run whose launch is under way has expired", run: both(unlaunchedRun, expiredRun), row: core.LedgerIntent, want: core.Expired},

	{what: "a paused run is left alone until its time is over", run: paused(599*time.Second, core.RowPause), want: core.Producing, why: "paused"},
	{what: "a paused run expires when its time is exactly over", run: paused(600*time.Second, core.RowPause), want: core.Expired},
	{what: "a paused run that is held does not expire", run: both(paused(600*time.Second, core.RowPause), func(r *core.Run) { r.Hold.Until = now() + 1 }),
		want: core.Held, why: "held"},
	{what: "a paused run whose time is over waits for a thaw", run: paused(600*time.Second, core.RowPause), control: frozen, want: core.Held, why: "frozen"},
	{what: "a paused run that is held within its time is just paused", run: both(paused(599*time.Second, core.RowPause), func(r *core.Run) { r.Hold.Until = now() + 1 }),
		want: core.Producing, why: "paused"},
	{what: "a paused run is ended where a user cancelled it", run: both(paused(time.Second, core.RowCancel), cancelledByUser), want: core.Cancelled},
}

// TestDecide is the sweep's judgement, by a plan: which evidence it asks for, and
// what goes before what (DESIGN 5.2).
func TestDecide(t *testing.T) {
	for _, j := range judgements {
		t.Run(j.what, func(t *testing.T) { synctest.Test(t, j.check) })
	}
}

func sealed(r *core.Run) { r.Sealed = &core.Sealed{ExitCode: 0, At: 1} }

// judged is a sweep's world with one run that a table describes, and one beside it
// whose task is described alike, so that a batch is not all missing.
type judged struct {
	core.TaskDescriber
	core.Prober
	j     judgement
	asked int
}

func (d *judged) Describe(_ context.Context, _ string, arns []string) ([]core.Task, error) {
	var out []core.Task
	for _, arn := range arns {
		task := core.Task{ARN: arn, Life: core.TaskLives}
		if (d.j.task.Life != "" || d.j.task.ARN != "") && arn == "arn-r" {
			task = d.j.task
			task.ARN = arn
		}
		out = append(out, task)
	}
	return out, nil
}

func (d *judged) Probe(_ context.Context, _ float64, requests []core.ProbeRequest) []core.ProbeReply {
	var out []core.ProbeReply
	for _, q := range requests {
		reply := core.ProbeReply{State: core.ProbeProducing}
		if q.Run == "r" {
			d.asked++
			if d.j.reply.State != "" || d.j.reply.Reason != "" {
				reply = d.j.reply
			}
		}
		reply.RunKey = q.RunKey
		out = append(out, reply)
	}
	return out
}

// leftRun left its viewer 10 minutes ago and has a task.
func leftRun(run string) core.Run {
	return core.Run{
		RunKey: key(run), Thread: "t", Status: core.Running, StartedAt: now().Add(-time.Hour), Row: core.RowDetached, DetachedSince: now().Add(-10 * time.Minute),
		Epoch: 1, ClaimNonce: "host", Nonce: "n", Instance: core.InstanceID("i-" + run), TaskARN: "arn-" + run, Cluster: "c", Container: "agent",
		Provider: "fargate", SandboxKey: core.SandboxKey("k-" + run), Reclaim: core.ReclaimEnd,
	}
}

func (j judgement) check(t *testing.T) {
	w := newWorld(t)
	w.store.SetControl(j.control)
	r := leftRun("r")
	if j.run != nil {
		j.run(&r)
	}
	w.store.SeedRun(r)
	w.store.SeedRun(leftRun("beside"))
	if j.row != "" {
		of := cmp.Or(j.rowOf, r.RunKey)
		w.store.SeedRow(core.LedgerRow{Instance: r.Instance, Tenant: of.Tenant, Run: of.Run, State: j.row, Provider: "fargate", LaunchUntil: 1})
	}
	if j.limits != nil {
		j.limits(&w.limits)
	}
	s := w.sweep(w.store.Process)
	s.Meters = j.meters
	d := &judged{TaskDescriber: s.Tasks, Prober: s.Prober, j: j}
	s.Tasks, s.Prober = d, d
	report, err := s.Run(t.Context(), core.SweepRequest{Mode: core.ModePlan, Runs: []core.RunKey{r.RunKey, key("beside")}})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range report.Runs {
		if e.RunKey.Run == "r" && (e.Outcome != j.want || !strings.Contains(e.Reason, j.why) || (d.asked == 1) != j.asked) {
			t.Errorf("%s because of %q, asked %d times; want %s because of %q, asked %t", e.Outcome, e.Reason, d.asked, j.want, j.why, j.asked)
		}
	}
	if len(report.Runs) != 2 {
		t.Errorf("reported %+v, want an entry for each run", report.Runs)
	}
}

// TestWhatIsNoCandidateIsNotJudged: attached and ended runs are left alone, even when
// they are asked for by name; the report says that they were.
func TestWhatIsNoCandidateIsNotJudged(t *testing.T) {
	for what, change := range map[string]func(r *core.Run){
		"an attached run": func(r *core.Run) {
			r.Row, r.DueAt, r.DetachedSince, r.AttachedUntil = core.RowLapse, now()+1, 0, now()+1
		},
		"a run whose host may act":  func(r *core.Run) { r.Row, r.DueAt, r.DetachedSince, r.CancelRequested = core.RowCancel, now()+1, 0, 1 },
		"a pause that is not due":   both(paused(700*time.Second, core.RowPause), func(r *core.Run) { r.DueAt = now() + 1 }),
		"an ended run":              func(r *core.Run) { *r = endedRecord(*r, core.Completed, now()-5); r.DueAt = farOff },
		"an ended run without mark": func(r *core.Run) { *r = endedRecord(*r, core.Failed, now()-5); r.Row, r.DueAt = core.RowNone, 0 },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				r := leftRun("r")
				change(&r)
				w.store.SeedRun(r)
				p := w.store.NewProcess(mem.Faults{})
				report, err := w.sweep(p).Run(t.Context(), core.SweepRequest{Runs: []core.RunKey{r.RunKey}})
				if err != nil || report.Considered != 0 || len(p.Writes()) != 0 {
					t.Errorf("%v, %+v, wrote %v", err, report, p.Writes())
				}
				if len(report.Runs) != 1 || report.Runs[0].Outcome != core.NotClaimed || report.Runs[0].Reason == "" {
					t.Errorf("reported %+v, want one entry that says why", report.Runs)
				}
			})
		})
	}
}

// TestABatchThatIsAllMissingIsUnknown: a wrong cluster or account is likelier than
// so many ends at once.
func TestABatchThatIsAllMissingIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, run := range []string{"a", "b", "c"} {
			w.fleet.Forget(w.left(run, "text\n").TaskARN)
		}
		for range 30 { // longer than any grace
			time.Sleep(time.Minute)
			report, err := w.sweep(w.store.Process).Run(t.Context(), core.SweepRequest{})
			if err != nil || report.Outcomes[core.Unknown] != 3 {
				t.Fatalf("%v, %v", err, report.Outcomes)
			}
			for _, e := range report.Runs {
				if e.Healing != core.Configuration || e.Reason != "all-tasks-missing" {
					t.Fatalf("%+v, want it told as a fault of configuration", e)
				}
			}
		}
	})
}

// TestAnEvidenceThatCannotBeReadLeavesTheRun: a ledger row or a task list that fails
// says nothing about any run.
func TestAnEvidenceThatCannotBeReadLeavesTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		unlaunched, launched := leftRun("unlaunched"), leftRun("launched")
		unlaunched.TaskARN = ""
		w.store.SeedRun(unlaunched)
		w.store.SeedRun(launched)
		s := w.sweep(w.store.Process)
		s.Ledger, s.Tasks = failingLedger{s.Ledger}, failingTasks{s.Tasks}
		report, err := s.Run(t.Context(), core.SweepRequest{})
		if err != nil || report.Outcomes[core.Unknown] != 2 {
			t.Errorf("%v, %+v", err, report)
		}
		for _, run := range []string{"unlaunched", "launched"} {
			if r := w.run(run); r.Epoch != 1 || r.ClaimUntil != 0 || r.Status != core.Running {
				t.Errorf("run %s was touched: %+v", run, r)
			}
		}
	})
}

type failingLedger struct{ core.Ledger }

func (failingLedger) Row(context.Context, core.InstanceID) (core.LedgerRow, error) {
	return core.LedgerRow{}, errors.New("throttled")
}

type failingTasks struct{ core.TaskDescriber }

func (failingTasks) Describe(context.Context, string, []string) ([]core.Task, error) {
	return nil, errors.New("throttled")
}

// TestHowARunEnds is what a sweep writes at the end of a run: the status, the error,
// and what is owed to its sandbox.
func TestHowARunEnds(t *testing.T) {
	for _, c := range []struct {
		what    string
		begin   func(w *world)
		outcome core.Outcome
		status  core.Status
		code    string
		whole   bool
		text    string
		owed    core.ReclaimKind
	}{
		{"an agent that ends 0 has completed", func(w *world) { w.fleet.Exit("r", 0) }, core.Finalized, core.Completed, "", true, "text\n", core.ReclaimIdle},
		{"an agent that ends 3 has failed", func(w *world) { w.fleet.Exit("r", 3) }, core.Finalized, core.Failed, "agent-exit", true, "text\n", core.ReclaimIdle},
		{"a run that expired was aborted", func(w *world) { time.Sleep(w.limits.RunTTL) }, core.Expired, core.Aborted, "expired", true, "text\n", core.ReclaimEnd},
		{"a run that expired as its agent ended has completed", func(w *world) { w.fleet.Exit("r", 0); time.Sleep(w.limits.RunTTL) },
			core.Expired, core.Completed, "", true, "text\n", core.ReclaimIdle},
		{"a run that a user cancelled was aborted", (*world).cancelR, core.Cancelled, core.Aborted, "cancelled", true, "text\n", core.ReclaimEnd},
		{"a run whose task is gone has failed, its rest unread", func(w *world) { w.fleet.KillTask(w.run("r").TaskARN) },
			core.Lost, core.Failed, "lost", false, "", core.ReclaimEnd},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.begin("r", func(q *core.RunRequest) { q.Reclaim = core.ReclaimIdle })
				w.fleet.Write("r", "text\n")
				w.detach("r")
				c.begin(w)
				report, err := w.sweep(w.store.Process).Run(t.Context(), core.SweepRequest{})
				if err != nil || outcomes(report)["r"] != c.outcome {
					t.Fatalf("%v, %+v", err, report)
				}
				r, code := w.run("r"), ""
				if r.Error != nil {
					code = r.Error.Code
				}
				if r.Status != c.status || code != c.code || r.Transcript.Complete != c.whole || r.Reclaim != c.owed || w.transcript("r") != c.text {
					t.Errorf("status %s, error %+v, transcript %+v of %q, owes %s", r.Status, r.Error, r.Transcript, w.transcript("r"), r.Reclaim)
				}
				if jobs := w.store.TakeJobs(); len(jobs) != 1 || string(jobs[0].Kind) != string(c.owed) || jobs[0].Instance != r.Instance {
					t.Errorf("sent %+v", jobs)
				}
				w.check()
			})
		})
	}
}

func (w *world) cancelR() {
	r := w.run("r")
	if _, err := w.store.Update(w.t.Context(), r.RunKey, core.RequestCancel{Now: now(), Row: r.Row}); err != nil {
		w.t.Fatal(err)
	}
}

// TestARunThatNeverBeganOwesNothing: it has no sandbox.
func TestARunThatNeverBeganOwesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.launcher(w.store.Process)
		if _, err := l.Start(t.Context(), core.RunRequest{RunKey: key("r"), Thread: "t", HostNonce: "h"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(w.limits.Attachment) // its host dies
		report := w.tick()
		r := w.run("r")
		if report.Outcomes[core.Died] != 1 || r.Status != core.Failed || r.Error.Code != "never-started" || r.Row != core.RowNone || !r.Transcript.Complete {
			t.Errorf("%+v, %+v", report, r)
		}
		if jobs := w.store.TakeJobs(); len(jobs) != 0 {
			t.Errorf("sent %+v", jobs)
		}
	})
}
