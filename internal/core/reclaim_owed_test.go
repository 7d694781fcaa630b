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

// oweCheckpoint is an installation in which run r has ended and owes a checkpoint; the message
// has been sent.
func oweCheckpoint(t *testing.T, kind core.ReclaimKind) *owed {
	o := &owed{world: newWorld(t), provider: "fargate"}
	o.checkpoint = core.CheckpointFinished
	o.begin("r", func(q *core.RunRequest) { q.Reclaim = kind })
	o.fleet.Write("r", "text\n")
	o.fleet.Exit("r", 0)
	o.detach("r")
	if _, err := o.sweep(o.store.Process).Run(t.Context(), core.SweepRequest{}); err != nil {
		t.Fatal(err)
	}
	o.job = o.store.TakeJobs()[0]
	if c := o.run("r").Checkpoint; c.State != core.CheckpointOwed {
		t.Fatalf("checkpoint %+v, want it owed", c)
	}
	o.keeper = o.fleet.View(o.store.Process)
	return o
}

var threadR = core.ThreadKey{Tenant: "acme", Thread: "thread-r"}

func (o *owed) thread() core.Thread { return o.store.State().Threads[threadR] }

// captures has the agent that captures come to its end, and the message that waits for
// it carried out.
func (o *owed) captured() {
	o.t.Helper()
	if err := o.fleet.View(o.store.Process).CommitCapture(o.t.Context(), "r"); err != nil {
		o.t.Fatal(err)
	}
	jobs := o.store.TakeJobs()
	if !slices.Contains(jobs, o.job) {
		o.t.Errorf("the commit sent %+v, want %+v", jobs, o.job)
	}
}

// stands compares how the checkpoint of run r stands.
func (o *owed) stands(want core.CheckpointState) {
	o.t.Helper()
	if c := o.run("r").Checkpoint; c.State != want {
		o.t.Errorf("checkpoint %+v, want it %q", c, want)
	}
}

// lostToThread compares whose workspace the thread says is lost.
func (o *owed) lostToThread(run core.RunID) {
	o.t.Helper()
	var got core.RunID
	if l := o.thread().WorkspaceLost; l != nil {
		got = l.Run
	}
	if got != run {
		o.t.Errorf("the thread lost the workspace of %q, want %q", got, run)
	}
}

// live takes the thread's lease as a live run's host does.
func (o *owed) live(owner string) error {
	_, err := o.store.UpdateThread(o.t.Context(), threadR, core.AcquireLease{Owner: owner, Now: now(), Until: now().Add(core.LeaseLife)})
	return err
}

func answer(state core.CaptureState, why string) func() (core.Captured, error) {
	return func() (core.Captured, error) { return core.Captured{State: state, Why: why}, nil }
}

// owedCases are the ways of a sandbox whose workspace is owed.
var owedCases = map[string]struct {
	kind core.ReclaimKind
	test func(o *owed)
}{
	"its workspace is stored before its task is stopped": {core.ReclaimEnd, func(o *owed) {
		o.expect(o.job, core.ReclaimCapturing, false)
		o.running(true, 0)
		o.mark(now().Add(o.limits.CaptureWait), core.ReclaimCapturing)
		if o.box().Reclaiming != "" || !o.thread().Lease.Live(now()) {
			o.t.Errorf("while it is captured: record %+v, lease %+v", o.box(), o.thread().Lease)
		}
		o.captured()
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.running(false, 1)
		o.stands(core.CheckpointDone)
		o.lostToThread("")
		if th := o.thread(); th.Head != "checkpoint-r" || th.Lease.Owner != "" || o.run("r").Checkpoint.ID != "checkpoint-r" {
			o.t.Errorf("thread %+v, run %+v", th, o.run("r").Checkpoint)
		}
		o.untouched(func() { o.expect(o.job, core.ReclaimDestroyed, false) })
	}},
	"one that is kept warm is stored as well": {core.ReclaimIdle, func(o *owed) {
		o.expect(o.job, core.ReclaimCapturing, false)
		o.captured()
		o.expect(o.job, core.ReclaimIdled, false)
		o.running(true, 0)
		o.stands(core.CheckpointDone)
		if o.row().Owed != "" || o.thread().Lease.Owner != "" {
			o.t.Errorf("row owes %q, lease %+v", o.row().Owed, o.thread().Lease)
		}
	}},
	"one that is kept warm and cannot be stored owes it until its end": {core.ReclaimIdle, func(o *owed) {
		o.capture = answer(core.CaptureFailed, "too-large")
		o.expect(o.job, core.ReclaimIdled, false)
		o.running(true, 0)
		o.mark(0, core.ReclaimIdled)
		o.stands(core.CheckpointMoved)
		if o.row().Owed != "r" || o.thread().Lease.Owner != "" {
			o.t.Errorf("row owes %q, lease %+v", o.row().Owed, o.thread().Lease)
		}
		time.Sleep(o.limits.IdleTTL)
		due := core.ReclaimJob{Tenant: "acme", Key: o.job.Key, Instance: o.job.Instance, Kind: core.JobDue}
		o.expect(due, core.ReclaimUncaptured, false)
		o.running(true, 0)
		if o.box().DueAt <= now() {
			o.t.Error("it is due at once")
		}
		o.capture, o.job = nil, due
		o.expect(due, core.ReclaimCapturing, false)
		o.captured()
		o.expect(due, core.ReclaimDestroyed, false)
		o.running(false, 1)
		o.stands(core.CheckpointDone)
	}},
	"what cannot be stored is held, tried again, and let go": {core.ReclaimEnd, func(o *owed) {
		o.capture = answer(core.CaptureFailed, "too-large")
		begun := now()
		for now() < begun.Add(o.limits.CheckpointHold) {
			o.expect(o.job, core.ReclaimUncaptured, false)
			o.running(true, 0)
			o.stands(core.CheckpointFailed)
			o.lostToThread("")
			if o.box().Reclaiming != "" || o.thread().Lease.Owner != "" {
				o.t.Errorf("held: record %+v, lease %+v", o.box(), o.thread().Lease)
			}
			time.Sleep(o.run("r").DueAt.Sub(now()))
		}
		if got := o.told(core.NoticeCheckpointFailed); !slices.Equal(got, []string{"r"}) {
			o.t.Errorf("told %v while it is held, want it once", got)
		}
		if c := o.run("r").Checkpoint; c.Why != "too-large" || c.Tries < 3 || c.FailedAt != begun {
			o.t.Errorf("checkpoint %+v", c)
		}
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.running(false, 1)
		o.stands(core.CheckpointLost)
		o.lostToThread("r")
		if got := o.told(core.NoticeCheckpointFailed); len(got) != 2 {
			o.t.Errorf("told %v, want the loss as well", got)
		}
	}},
	"what cannot be stored is let go at once where the policy says so": {core.ReclaimEnd, func(o *owed) {
		o.onFailure = core.ReleaseOnFailure
		o.capture = answer(core.CaptureFailed, "too-large")
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.running(false, 1)
		o.stands(core.CheckpointLost)
		o.lostToThread("r")
	}},
	"a keeper that says nothing is asked again, whatever the policy": {core.ReclaimEnd, func(o *owed) {
		o.onFailure = core.ReleaseOnFailure
		o.capture = func() (core.Captured, error) { return core.Captured{}, errors.New("throttled") }
		o.expect(o.job, core.ReclaimUncaptured, false)
		o.running(true, 0)
		o.capture = answer("?", "")
		o.expect(o.job, core.ReclaimDestroyFailed, true)
		o.running(true, 0)
		o.capture = nil
		o.expect(o.job, core.ReclaimCapturing, false)
		o.captured()
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.stands(core.CheckpointDone)
	}},
	"a task that is gone has no workspace any more": {core.ReclaimEnd, func(o *owed) {
		o.fleet.KillTask(o.run("r").TaskARN)
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.stands(core.CheckpointLost)
		o.lostToThread("r")
	}},
	"what a dead task had stored before is not lost": {core.ReclaimEnd, func(o *owed) {
		o.expect(o.job, core.ReclaimCapturing, false)
		o.captured()
		o.fleet.KillTask(o.run("r").TaskARN)
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.stands(core.CheckpointDone)
		o.lostToThread("")
	}},
	"a run whose task was condemned by another has lost its workspace": {core.ReclaimEnd, func(o *owed) {
		row := o.row()
		row.State, row.Why, row.DueAt = core.LedgerStopping, "leaked", now()
		o.store.SeedRow(row)
		o.foreign = true // its record is left
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.stands(core.CheckpointLost)
		o.lostToThread("r")
	}},
	"a run whose task's row is closed has lost its workspace": {core.ReclaimEnd, func(o *owed) {
		row := o.row()
		row.State, row.DueAt = core.LedgerClosed, 0
		o.store.SeedRow(row)
		o.foreign = true
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.stands(core.CheckpointLost)
		o.lostToThread("r")
	}},
	"a hold keeps it from being captured, and gives the lease back": {core.ReclaimEnd, func(o *owed) {
		o.hold(now().Add(time.Hour))
		o.expect(o.job, core.ReclaimHeld, false)
		if len(o.asked) != 0 || o.thread().Lease.Owner != "" {
			o.t.Errorf("asked %d times, lease %+v", len(o.asked), o.thread().Lease)
		}
		time.Sleep(time.Hour)
		o.expect(o.job, core.ReclaimCapturing, false)
	}},
	"a hold lets a capture that is under way come to its end": {core.ReclaimEnd, func(o *owed) {
		o.expect(o.job, core.ReclaimCapturing, false)
		o.hold(now().Add(time.Hour))
		o.expect(o.job, core.ReclaimHeld, false)
		o.captured()
		o.expect(o.job, core.ReclaimHeld, false)
		o.running(true, 0)
		time.Sleep(time.Hour)
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.stands(core.CheckpointDone)
	}},
	"a freeze keeps it from being captured": {core.ReclaimEnd, func(o *owed) {
		o.store.SetControl(core.Control{Frozen: true})
		o.expect(o.job, core.ReclaimFrozen, false)
		if len(o.asked) != 0 || o.thread().Lease.Owner != "" {
			o.t.Errorf("asked %d times, lease %+v", len(o.asked), o.thread().Lease)
		}
	}},
	"a live run that writes the thread comes first": {core.ReclaimEnd, func(o *owed) {
		if err := o.live("next"); err != nil {
			o.t.Fatal(err)
		}
		o.untouched(func() { o.expect(o.job, core.ReclaimLeased, false) })
		o.mark(now().Add(o.limits.RetryStop), core.ReclaimLeased)
		time.Sleep(core.LeaseLife)
		o.expect(o.job, core.ReclaimCapturing, false)
		if err := o.live("next"); !core.Refused(err) {
			o.t.Errorf("a start takes the lease of a capture: %v", err)
		}
	}},
	"a capture whose lease a start has taken publishes nothing": {core.ReclaimEnd, func(o *owed) {
		o.expect(o.job, core.ReclaimCapturing, false)
		time.Sleep(core.LeaseLife)
		if err := o.live("next"); err != nil {
			o.t.Fatal(err)
		}
		if err := o.fleet.View(o.store.Process).CommitCapture(o.t.Context(), "r"); !core.Refused(err) {
			o.t.Errorf("commit: %v", err)
		}
		if th := o.thread(); th.Head != "" {
			o.t.Errorf("head %q", th.Head)
		}
	}},
	"agents that die one after another are no more than a few": {core.ReclaimEnd, func(o *owed) {
		for range 3 {
			o.expect(o.job, core.ReclaimCapturing, false)
			o.fleet.KillCapture("r")
			time.Sleep(core.LeaseLife)
		}
		o.expect(o.job, core.ReclaimUncaptured, false)
		if why := o.run("r").Checkpoint.Why; why != "agent-silent" {
			o.t.Errorf("why %q", why)
		}
		time.Sleep(time.Minute)
		o.expect(o.job, core.ReclaimCapturing, false) // begun anew
		o.captured()
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.stands(core.CheckpointDone)
	}},
	"a capture that never ends is cut off": {core.ReclaimEnd, func(o *owed) {
		o.expect(o.job, core.ReclaimCapturing, false)
		for begun := now(); now() < begun.Add(o.limits.CaptureMost); time.Sleep(time.Minute) {
			if err := o.fleet.View(o.store.Process).NoteCapture(o.t.Context(), "r"); err != nil {
				o.t.Fatal(err)
			}
		}
		o.expect(o.job, core.ReclaimUncaptured, false)
		if err := o.fleet.View(o.store.Process).CommitCapture(o.t.Context(), "r"); !core.Refused(err) {
			o.t.Errorf("its agent still publishes: %v", err)
		}
		o.stands(core.CheckpointFailed)
	}},
	"a workspace does not follow a newer one of its thread": {core.ReclaimEnd, func(o *owed) {
		time.Sleep(time.Second)
		o.saved("newer")
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.stands(core.CheckpointSuperseded)
		o.lostToThread("")
		if len(o.asked) != 0 || o.thread().Head != "newer" {
			o.t.Errorf("asked %d times, head %q", len(o.asked), o.thread().Head)
		}
	}},
	"a newer one that follows on it does not supersede it": {core.ReclaimEnd, func(o *owed) {
		o.expect(o.job, core.ReclaimCapturing, false)
		time.Sleep(time.Second)
		o.captured()
		time.Sleep(core.LeaseLife)
		o.saved("newer")
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.stands(core.CheckpointDone)
	}},
	"a loss is not told while another attempt may capture": {core.ReclaimEnd, func(o *owed) {
		o.capture, o.onFailure = answer(core.CaptureFailed, "too-large"), core.ReleaseOnFailure
		must := func(err error) {
			if err != nil {
				o.t.Fatal(err)
			}
		}
		leases := 0
		p := o.store.NewProcess(mem.Faults{Before: func(_ context.Context, call string) {
			switch leases += map[string]int{"acquire lease": 1}[call]; {
			case call == "acquire lease" && leases == 2: // between its own lease and the one of the loss
				must(o.live("gc:1"))
			case call == "lose workspace":
				_, err := o.store.UpdateThread(o.t.Context(), threadR, core.ReleaseLease{Owner: "gc:1"})
				must(err)
				must(o.live("reclaim:r"))
			}
		}})
		if outcome, err := o.do(p, o.job); outcome != core.ReclaimInUse || err != nil {
			o.t.Errorf("%q, %v; want it in use", outcome, err)
		}
		o.stands(core.CheckpointOwed)
		o.lostToThread("")
	}},
	"a save of the run itself that began before its end is not newer": {core.ReclaimEnd, func(o *owed) {
		o.savedLate("mine", o.run("r").FinishedAt.Add(-time.Second), "r")
		o.expect(o.job, core.ReclaimCapturing, false)
		o.captured()
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.stands(core.CheckpointDone)
		if o.thread().Head != "checkpoint-r" {
			o.t.Errorf("head %q", o.thread().Head)
		}
	}},
	"a save of nobody's run that began before its end is not newer": {core.ReclaimEnd, func(o *owed) {
		o.savedLate("host", o.run("r").FinishedAt.Add(-time.Second), "")
		o.expect(o.job, core.ReclaimCapturing, false)
		o.captured()
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.stands(core.CheckpointDone)
	}},
	"a save of nobody's run that began after its end is newer": {core.ReclaimEnd, func(o *owed) {
		o.savedLate("host", o.run("r").FinishedAt.Add(time.Millisecond), "")
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.stands(core.CheckpointSuperseded)
	}},
	"the head that its run began from is not newer, whatever the clocks say": {core.ReclaimEnd, func(o *owed) {
		time.Sleep(time.Minute) // by which the clock of whoever finished the run was behind
		o.saved("before")
		r := o.run("r")
		r.Start.Noted, r.Start.Head = true, "before"
		o.store.SeedRun(r)
		o.expect(o.job, core.ReclaimCapturing, false)
		o.captured()
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.stands(core.CheckpointDone)
	}},
	"an older head is gone out from": {core.ReclaimEnd, func(o *owed) {
		r := o.run("r")
		r.FinishedAt += 1000
		o.store.SeedRun(r)
		o.saved("older")
		o.expect(o.job, core.ReclaimCapturing, false)
		o.captured()
		if o.thread().Head != "checkpoint-r" {
			o.t.Errorf("head %q", o.thread().Head)
		}
	}},
	"a newer run's sandbox goes on with the debt": {core.ReclaimEnd, func(o *owed) {
		o.resume("newer")
		o.expect(o.job, core.ReclaimInUse, false)
		o.mark(0, core.ReclaimInUse)
		o.stands(core.CheckpointMoved)
		if o.row().Owed != "r" {
			o.t.Errorf("the row owes %q", o.row().Owed)
		}
		// The newer run expires: it owes nothing itself, and its sandbox does.
		o.store.SeedRun(endedRecord(o.run("newer"), core.Aborted, now()))
		newer := o.run("newer")
		job := core.ReclaimJob{Tenant: "acme", Run: "newer", Key: newer.SandboxKey, Instance: newer.Instance, Kind: core.JobEnd}
		o.job = job
		o.expect(job, core.ReclaimCapturing, false)
		o.captured()
		o.expect(job, core.ReclaimDestroyed, false)
		o.running(false, 1)
		o.stands(core.CheckpointDone)
		o.foreign = true // the newer run is a fixture
	}},
	"a debt that comes to the row late holds the end up": {core.ReclaimEnd, func(o *owed) {
		o.resume("newer")
		o.store.SeedRun(endedRecord(o.run("newer"), core.Aborted, now()))
		newer := o.run("newer")
		job := core.ReclaimJob{Tenant: "acme", Run: "newer", Key: newer.SandboxKey, Instance: newer.Instance, Kind: core.JobEnd}
		p := o.before("condemn", func() { o.expect(o.job, core.ReclaimInUse, false) })
		if outcome, err := o.do(p, job); outcome != core.ReclaimInUse || err != nil {
			o.t.Errorf("%s, %v", outcome, err)
		}
		o.running(true, 0)
		o.foreign = true
	}},
	"a debt of a run that retention took is a loss": {core.ReclaimEnd, func(o *owed) {
		o.resume("newer")
		o.expect(o.job, core.ReclaimInUse, false)
		row := o.row()
		row.Owed = "forgotten"
		o.store.SeedRow(row)
		o.store.SeedRun(endedRecord(o.run("newer"), core.Aborted, now()))
		newer := o.run("newer")
		o.expect(core.ReclaimJob{Tenant: "acme", Run: "newer", Key: newer.SandboxKey, Instance: newer.Instance, Kind: core.JobEnd}, core.ReclaimDestroyed, false)
		o.running(false, 1)
		o.lostToThread("forgotten")
		if len(o.asked) != 0 {
			o.t.Errorf("asked %d times", len(o.asked))
		}
		o.foreign = true // the runs are fixtures
	}},
	"an installation that keeps nothing says so": {core.ReclaimEnd, func(o *owed) {
		o.capture = func() (core.Captured, error) {
			return mem.NoCheckpoints{}.Capture(context.Background(), core.CaptureRequest{})
		}
		o.onFailure = core.ReleaseOnFailure
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.stands(core.CheckpointLost)
	}},
	"the lease of the run's own host is over with the run": {core.ReclaimEnd, func(o *owed) {
		if err := o.live(core.OwnerRun + "r"); err != nil {
			o.t.Fatal(err)
		}
		before := o.thread().Fence
		o.expect(o.job, core.ReclaimCapturing, false)
		if th := o.thread(); th.Fence <= before || th.Lease.Owner != core.OwnerReclaim+"r" {
			o.t.Errorf("the fence went from %d to %d, the lease to %q", before, th.Fence, th.Lease.Owner)
		}
		o.captured()
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.stands(core.CheckpointDone)
	}},
	"another provider's sandbox is not captured": {core.ReclaimEnd, func(o *owed) {
		o.provider, o.foreign = "another", true
		o.untouched(func() { o.expect(o.job, core.ReclaimProviderMismatch, false) })
		o.running(true, 0)
		if len(o.asked) != 0 {
			o.t.Errorf("asked %d times", len(o.asked))
		}
		o.stands(core.CheckpointLost)
	}},
}

// saved puts a checkpoint as the thread's head.
func (o *owed) saved(id core.CheckpointID) {
	o.t.Helper()
	th, err := o.store.UpdateThread(o.t.Context(), threadR, core.AcquireLease{Owner: "save:" + string(id), Now: now(), Until: now().Add(core.LeaseLife)})
	if err == nil {
		err = o.store.Commit(o.t.Context(), core.Commit{
			Writer: th.Writer(), Now: now(), Expected: th.Head, Release: true,
			Checkpoint: core.Checkpoint{ThreadKey: threadR, ID: id, Parent: th.Head, CreatedAt: now(), Reason: core.ReasonNamed, Digest: "d"},
		})
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

// savedLate has a save end now whose agent was started at a time before.
func (o *owed) savedLate(id core.CheckpointID, started core.Millis, run core.RunID) {
	o.t.Helper()
	time.Sleep(time.Minute)
	owner := "save:" + string(id)
	th, err := o.store.UpdateThread(o.t.Context(), threadR, core.AcquireLease{Owner: owner, Now: now(), Until: now().Add(core.LeaseLife)})
	if err == nil {
		step := core.Step{ID: id, Kind: core.StepCapture, Run: run, Fence: th.Fence, Token: "t", State: core.StepWorking, Checkpoint: th.Head, StartedAt: started, SeenAt: now()}
		_, err = o.store.UpdateThread(o.t.Context(), threadR, core.BeginStep{Owner: owner, Seen: th.Seen(), Step: step, Now: now(), Until: now().Add(core.LeaseLife)})
	}
	if err == nil {
		err = o.store.Commit(o.t.Context(), core.Commit{
			Writer: th.Writer(), Now: now(), Expected: th.Head, Release: true, Token: "t",
			Checkpoint: core.Checkpoint{ThreadKey: threadR, ID: id, Parent: th.Head, CreatedAt: now(), Reason: core.ReasonNamed, Digest: "d", SourceRun: run},
		})
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

// TestAnOwedWorkspace reaches every end of a sandbox whose workspace is owed (I5).
func TestAnOwedWorkspace(t *testing.T) {
	for what, c := range owedCases {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := oweCheckpoint(t, c.kind)
				if c.test(o); !o.foreign {
					o.check()
				}
			})
		})
	}
}

// TestWhatARunOwes: by its own policy, else the installation's, and by how it ended.
func TestWhatARunOwes(t *testing.T) {
	finished := func(w *world) { w.fleet.Exit("r", 3) }
	expires := func(w *world) { time.Sleep(w.limits.RunTTL) }
	for what, c := range map[string]struct {
		own, installation core.CheckpointPolicy
		end               func(w *world)
		owes              bool
	}{
		"a finished run, by the installation's policy":    {"", core.CheckpointFinished, finished, true},
		"a finished run of an installation without one":   {"", "", finished, false},
		"a finished run that asks for none":               {core.CheckpointNone, core.CheckpointFinished, finished, false},
		"a finished run that asks for it":                 {core.CheckpointFinished, "", finished, true},
		"an expired run, of which finished ones are kept": {"", core.CheckpointFinished, expires, false},
		"an expired run, of which all are kept":           {core.CheckpointAlways, core.CheckpointNone, expires, true},
		"a lost run, of which all are kept": {core.CheckpointAlways, "", func(w *world) {
			w.fleet.KillTask(w.run("r").TaskARN)
		}, true},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.checkpoint = c.installation
				w.begin("r", func(q *core.RunRequest) { q.Checkpoint = c.own })
				w.detach("r")
				c.end(w)
				sweepOnly(w)
				r := w.run("r")
				if !r.Status.Terminal() || r.Checkpoint.Owes() != c.owes {
					t.Errorf("run %s owes %+v, want %t", r.Status, r.Checkpoint, c.owes)
				}
				w.check()
			})
		})
	}
}

// TestAReplacedSandboxTellsItsLoss: the run that replaces a sandbox whose task is gone
// finds the loss on its thread when it begins (I5).
func TestAReplacedSandboxTellsItsLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := oweCheckpoint(t, core.ReclaimEnd)
		o.fleet.KillTask(o.run("r").TaskARN)
		q := core.RunRequest{RunKey: key("next"), Thread: "thread-r", HostNonce: "h", Definition: "d"}
		if _, err := o.launchAs(o.store.Process, q, "r"); err != nil {
			t.Fatal(err)
		}
		o.stands(core.CheckpointLost)
		o.lostToThread("r")
		o.drainQueue(o.store.Process)
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.check()
	})
}

// TestReclaimWithACaptureCrashMatrix stops a reclaim at every call, in every way, while
// the workspace is owed, while it is captured, once it is stored, where it fails and where
// it is lost; then sound sweeps, reclaims and agents go on. In the end the workspace is
// stored, or its loss is recorded and told, and nothing runs (I5, I14).
func TestReclaimWithACaptureCrashMatrix(t *testing.T) {
	stages := map[string]struct {
		seed func(o *owed)
		want []core.CheckpointState
	}{
		"owed":      {func(*owed) {}, []core.CheckpointState{core.CheckpointDone}},
		"capturing": {func(o *owed) { o.expect(o.job, core.ReclaimCapturing, false) }, []core.CheckpointState{core.CheckpointDone}},
		"stored": {func(o *owed) {
			o.expect(o.job, core.ReclaimCapturing, false)
			o.captured()
		}, []core.CheckpointState{core.CheckpointDone}},
		"gone": {func(o *owed) { o.fleet.KillTask(o.run("r").TaskARN) }, []core.CheckpointState{core.CheckpointLost}},
		"failed": {func(o *owed) {
			o.onFailure = core.ReleaseOnFailure
			o.expect(o.job, core.ReclaimCapturing, false)
			if err := o.fleet.View(o.store.Process).FailCapture(o.t.Context(), "r", "too-large"); err != nil {
				o.t.Error(err)
			}
		}, []core.CheckpointState{core.CheckpointLost, core.CheckpointDone}}, // done, where it is tried again
		"in use": {func(o *owed) { o.resume("newer") }, []core.CheckpointState{core.CheckpointMoved}},
	}
	points := 0
	for what, stage := range stages {
		calls := 0
		synctest.Test(t, func(t *testing.T) {
			o := oweCheckpoint(t, core.ReclaimEnd)
			stage.seed(o)
			p := o.store.NewProcess(mem.Faults{})
			_, _ = o.reclaimer(p).Do(t.Context(), o.job)
			calls = len(p.Calls())
		})
		for n := 1; n <= calls; n++ {
			for _, fault := range []mem.Fault{mem.NotLanded, mem.AnswerLost, mem.StopBefore, mem.StopAfter} {
				points++
				synctest.Test(t, func(t *testing.T) {
					o := oweCheckpoint(t, core.ReclaimEnd)
					stage.seed(o)
					_, _ = o.reclaimer(o.store.NewProcess(mem.At(n, fault))).Do(t.Context(), o.job)
					o.goOn(what == "in use")
					if c := o.run("r").Checkpoint; !slices.Contains(stage.want, c.State) {
						t.Errorf("%s, call %d %s: checkpoint %+v, want one of %v", what, n, fault, c, stage.want)
					}
					o.settledWell(what, what == "in use")
				})
			}
		}
	}
	if points < 250 {
		t.Errorf("tried %d points: the matrix has shrunk", points)
	}
}

// goOn lets time pass while sweeps, reclaims and agents are sound.
func (o *owed) goOn(live bool) {
	o.t.Helper()
	for range 60 {
		time.Sleep(time.Minute)
		o.sweepAs(o.store.Process)
		o.drainQueue(o.store.Process)
		_ = o.fleet.View(o.store.Process).CommitCapture(o.t.Context(), "r") // refused where it is fenced
		o.drainQueue(o.store.Process)
		if r := o.run("r"); r.Row == core.RowNone && (live || len(o.fleet.Running()) == 0) {
			return
		}
	}
}

// settledWell: the thread says what the run's record says, and nothing is owed.
func (o *owed) settledWell(what string, live bool) {
	o.t.Helper()
	state, r := o.store.State(), o.run("r")
	_, stored := state.Checkpoints[threadR]["checkpoint-r"]
	lost := o.thread().WorkspaceLost != nil
	if stored != (r.Checkpoint.State == core.CheckpointDone) || lost != (r.Checkpoint.State == core.CheckpointLost) {
		o.t.Errorf("%s: stored %t, told as lost %t, checkpoint %+v", what, stored, lost, r.Checkpoint)
	}
	if r.Row != core.RowNone || o.row().State != core.LedgerClosed && !live {
		o.t.Errorf("%s: mark %q, row %s", what, r.Row, o.row().State)
	}
	if owes := o.row().Owed != ""; owes != (r.Checkpoint.State == core.CheckpointMoved) {
		o.t.Errorf("%s: the row owes %q, checkpoint %+v", what, o.row().Owed, r.Checkpoint)
	}
	if lost && len(o.told(core.NoticeCheckpointFailed)) == 0 {
		o.t.Errorf("%s: nobody was told", what)
	}
}

// keeper is core's own keeper as reclaim reaches it; its agents are started nowhere.
type keeper struct {
	*core.Keeper
	jobs []core.AgentJob
}

func (k *keeper) Start(_ context.Context, _ core.ExecTarget, job core.AgentJob) (core.AgentStarted, error) {
	k.jobs = append(k.jobs, job)
	return core.AgentBegan, nil
}

func (k *keeper) AgentURL(context.Context) (string, string, error) {
	return "http://127.0.0.1", "", nil
}

func (k *keeper) Capture(ctx context.Context, q core.CaptureRequest) (core.Captured, error) {
	var options core.JobOptions
	if q.Run.Capture != nil {
		options = *q.Run.Capture
	}
	report, err := k.Save(ctx, core.SaveRequest{
		JobOptions: options,
		ThreadKey:  core.ThreadKey{Tenant: q.Run.Tenant, Thread: q.Run.Thread}, ID: core.CheckpointOf(q.Run.RunKey.Run), Run: q.Run.RunKey.Run,
		Owner: q.Owner, Key: q.Sandbox.Key, Instance: q.Sandbox.Instance, Job: &q.Job, Again: q.Again,
	})
	state := map[core.StepState]core.CaptureState{core.StepWorking: core.Capturing, core.StepDone: core.CaptureDone, core.StepFailed: core.CaptureFailed}
	return core.Captured{State: state[report.State], ID: report.ID, Why: report.Why}, err
}

// TestReclaimWithTheKeeper goes through a capture that fails, is begun anew, and is
// stored, with core's keeper in the model's place.
func TestReclaimWithTheKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := oweCheckpoint(t, core.ReclaimEnd)
		k := &keeper{}
		k.Keeper = &core.Keeper{Threads: o.store, Sandboxes: o.store, Controls: o.store, Runs: o.store, History: o.store, Agents: k, URL: k, Queue: o.store}
		o.keeper = k
		o.expect(o.job, core.ReclaimCapturing, false)
		o.expect(o.job, core.ReclaimCapturing, false) // a duplicate begins nothing
		if len(k.jobs) != 1 {
			t.Fatalf("started %d agents", len(k.jobs))
		}
		if err := k.Fail(t.Context(), k.jobs[0].Token, "too-large", "1 TiB"); err != nil {
			t.Fatal(err)
		}
		if jobs := o.store.TakeJobs(); !slices.Equal(jobs, []core.ReclaimJob{o.job}) {
			t.Errorf("the failure sent %+v", jobs)
		}
		o.expect(o.job, core.ReclaimUncaptured, false)
		o.stands(core.CheckpointFailed)
		time.Sleep(time.Minute)
		o.expect(o.job, core.ReclaimCapturing, false)
		if len(k.jobs) != 2 {
			t.Fatalf("started %d agents, want the capture begun anew", len(k.jobs))
		}
		if _, err := k.Renew(t.Context(), k.jobs[0].Token, 1, 1); err == nil {
			t.Error("the first agent's token lives")
		}
		th := o.thread()
		err := o.store.Commit(t.Context(), core.Commit{
			Writer: th.Writer(), Now: now(), Token: th.Step.Token,
			Checkpoint: core.Checkpoint{ThreadKey: threadR, ID: "checkpoint-r", CreatedAt: now(), SourceRun: "r", Digest: "d"},
		})
		if err != nil {
			t.Fatal(err)
		}
		o.expect(o.job, core.ReclaimDestroyed, false)
		o.stands(core.CheckpointDone)
		o.running(false, 1)
		o.check()
	})
}
