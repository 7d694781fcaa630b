package core

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"time"
)

// JobKind says what a reclaim message is about.
type JobKind string

// The kinds of message. An ended run owes its sandbox's end or its idleness; an
// idle sandbox is due; a condemned task must be stopped; a task that ECS is about to end
// has a workspace to store.
const (
	JobEnd     JobKind = "end"
	JobIdle    JobKind = "idle"
	JobDue     JobKind = "idle-due"
	JobLedger  JobKind = "ledger"
	JobLeaving JobKind = "leaving"
)

// ReclaimJob is one reclaim message. It only says where to look: everything is
// decided from the records.
type ReclaimJob struct {
	Tenant   TenantID   `json:"tenant,omitempty"`
	Run      RunID      `json:"run,omitempty"` // empty for idle-due and ledger
	Key      SandboxKey `json:"key,omitempty"` // empty for ledger
	Instance InstanceID `json:"instance"`      // empty, as Key, of a run that never had a sandbox
	Kind     JobKind    `json:"kind"`
}

// Validate reports the first member that is not as its kind needs it.
func (j ReclaimJob) Validate() error {
	kinds := []JobKind{JobEnd, JobIdle, JobDue, JobLedger, JobLeaving}
	ofRun := j.Kind == JobEnd || j.Kind == JobIdle || j.Kind == JobLeaving
	switch {
	case !slices.Contains(kinds, j.Kind):
		return fmt.Errorf("reclaim job: kind: want one of %v, got %q", kinds, j.Kind)
	case j.Instance == "" && (j.Key != "" || !ofRun):
		return fmt.Errorf("reclaim job of kind %s: instance: want an instance id, got none", j.Kind)
	case ofRun && (j.Tenant == "" || j.Run == ""):
		return fmt.Errorf("reclaim job of kind %s: want tenant and run, got %q and %q", j.Kind, j.Tenant, j.Run)
	case (j.Kind == JobDue || j.Kind == JobLeaving) && j.Key == "":
		return fmt.Errorf("reclaim job of kind %s: key: want a sandbox key, got none", j.Kind)
	}
	return nil
}

// ReclaimQueue takes reclaim messages. Delivery is at least once, in any order.
type ReclaimQueue interface {
	// Send returns an error if any of the jobs may not have been taken.
	Send(ctx context.Context, jobs []ReclaimJob) error
}

// ReclaimOutcome is what became of one reclaim message.
type ReclaimOutcome string

// The outcomes; each asks something else of the operator.
const (
	ReclaimDestroyed        ReclaimOutcome = "destroyed"         // the task is stopping or gone
	ReclaimDestroyFailed    ReclaimOutcome = "destroy-failed"    // StopTask failed; retried, then in the DLQ
	ReclaimNoSandboxKey     ReclaimOutcome = "no-sandbox-key"    // the run never had a sandbox
	ReclaimNotFound         ReclaimOutcome = "not-found"         // nothing known under that instance
	ReclaimProviderMismatch ReclaimOutcome = "provider-mismatch" // another provider's sandbox; left alone
	ReclaimInUse            ReclaimOutcome = "in-use"            // a newer run has the sandbox
	ReclaimHeld             ReclaimOutcome = "held"              // an operator holds it
	ReclaimFrozen           ReclaimOutcome = "frozen"            // the installation is frozen
	ReclaimIdled            ReclaimOutcome = "idle"              // kept warm
	ReclaimCapturing        ReclaimOutcome = "capturing"         // its workspace is being stored first
	ReclaimLeased           ReclaimOutcome = "lease-held"        // another writes its thread; its workspace waits to be stored
	ReclaimUncaptured       ReclaimOutcome = "checkpoint-failed" // its workspace could not be stored; held, and tried again
	ReclaimStored           ReclaimOutcome = "stored"            // its workspace is stored, and nothing else done to it
)

// CaptureState is how far the storing of a workspace is.
type CaptureState string

// Capturing makes reclaim come back, when it is called or later; the others are an end.
const (
	CaptureDone   CaptureState = "done"
	CaptureFailed CaptureState = "failed"
	Capturing     CaptureState = "capturing"
)

// CaptureRequest asks for the checkpoint that a run owes.
type CaptureRequest struct {
	Run     Run        // whose checkpoint; its id names it, see [CheckpointOf]
	Sandbox Sandbox    // where the workspace is
	Owner   string     // of the thread's lease, which is held
	Job     ReclaimJob // the message that waits for the capture's end
	Again   bool       // begin a capture anew that failed: its failure is noted
}

// Captured is how far a capture is.
type Captured struct {
	State CaptureState
	ID    CheckpointID // of one that is done
	// Why one failed, or why it is not known that one under way has begun, which is so until
	// it is asked for again: a code, and for people after it ": " and a text.
	Why string
}

// doubted reports whether a capture under way may have no agent.
func (c Captured) doubted() bool { return c.State == Capturing && c.Why != "" }

// Checkpointer stores a sandbox's workspace before the sandbox ends.
type Checkpointer interface {
	// Capture begins to store the workspace that a run owes, or tells how far it is. It
	// waits for no capture. An error says that nothing is known.
	Capture(ctx context.Context, q CaptureRequest) (Captured, error)
}

// OnFailure says what becomes of a sandbox whose workspace cannot be stored.
type OnFailure string

// Held, it is kept for [Limits.CheckpointHold] and tried again; released, it is let go
// at once. Either way the loss is recorded and told.
const (
	HoldOnFailure    OnFailure = "" // the default
	ReleaseOnFailure OnFailure = "release"
)

// Reclaimer is the use case of reclaim: it ends the sandbox of an ended run, or
// keeps it warm (DESIGN 6). Every message may come twice, late, or for something
// that has long been done.
type Reclaimer struct {
	Runs         Runs
	Sandboxes    Sandboxes
	Ledger       Ledger
	Transactions SandboxTransactions
	Tasks        TaskDescriber
	Stopper      TaskStopper
	Controls     Controls
	Breaker      ControlWriter
	Checkpoints  Checkpointer
	Threads      Threads     // nil: no thread is kept, and no lease taken
	Announcer    Announcer   // nil: nobody is told
	Functions    Functions   // nil: no hook is told
	Snapshots    Snapshotter // nil: the provider takes no copies
	Logger       *slog.Logger
	OnFailure    OnFailure
	Provider     string // whose sandboxes this installation may touch
	Limits       Limits
}

// Do carries out one message. It returns an error where the message has to come
// again; the outcome says why.
func (c *Reclaimer) Do(ctx context.Context, job ReclaimJob) (ReclaimOutcome, error) {
	if err := job.Validate(); err != nil {
		return ReclaimDestroyFailed, err
	}
	switch {
	case job.Kind == JobLeaving:
		return c.leaving(ctx, job)
	case job.Instance == "":
		return c.without(ctx, job)
	}
	control, err := c.Controls.Control(ctx)
	if err != nil {
		return ReclaimDestroyFailed, err
	}
	if !control.Acts() {
		return ReclaimFrozen, nil // whoever observes writes nothing; the mark is sent again
	}
	row, err := c.row(ctx, job.Instance)
	if err != nil {
		return ReclaimDestroyFailed, err
	}
	switch {
	case row != nil && job.foreign(*row):
		return c.unmark(ctx, job, ReclaimNotFound)
	case row != nil && row.State == LedgerStopping:
		return c.stopCondemned(ctx, job, *row)
	case row != nil && row.State == LedgerClosed:
		return c.unmark(ctx, job, ReclaimDestroyed)
	case job.Kind == JobLedger:
		return ReclaimNotFound, nil
	}
	return c.release(ctx, job, row)
}

// foreign reports whether a row is not that of the message's sandbox, which a row's key and
// tenant say for its whole life: of two runs that adopt one task both name its instance,
// and one of them gets the row.
func (j ReclaimJob) foreign(row LedgerRow) bool {
	return j.Kind != JobLedger && (row.Tenant != j.Tenant || j.Key != "" && row.Key != j.Key)
}

// stopCondemned goes on with the end of a condemned task. A run that owes a checkpoint
// all the same was overlooked by whoever condemned it: its loss is told first (I5).
func (c *Reclaimer) stopCondemned(ctx context.Context, job ReclaimJob, row LedgerRow) (ReclaimOutcome, error) {
	if job.Run != "" {
		if err := c.loseOwn(ctx, RunKey{Tenant: job.Tenant, Run: job.Run}, "condemned: "+row.Why); err != nil {
			return refusedOr(err, ReclaimInUse)
		}
	}
	return c.stop(ctx, job, row)
}

// without is for the message of a run that never had a sandbox; there is nothing to
// let go of.
func (c *Reclaimer) without(ctx context.Context, job ReclaimJob) (ReclaimOutcome, error) {
	r, err := c.Runs.Run(ctx, RunKey{Tenant: job.Tenant, Run: job.Run})
	switch {
	case isNotFound(err):
		return ReclaimNotFound, nil
	case err != nil:
		return ReclaimDestroyFailed, err
	case r.Instance != "":
		return ReclaimDestroyFailed, fmt.Errorf("reclaim job of run %s: instance: want %q, got none", r.RunKey, r.Instance)
	}
	return c.unmark(ctx, job, ReclaimNoSandboxKey)
}

func (c *Reclaimer) row(ctx context.Context, id InstanceID) (*LedgerRow, error) {
	row, err := c.Ledger.Row(ctx, id)
	if isNotFound(err) {
		return nil, nil
	}
	return &row, err
}

// box reads the record that names this instance; nil if none does.
func (c *Reclaimer) box(ctx context.Context, job ReclaimJob) (*Sandbox, error) {
	if job.Key == "" {
		return nil, nil
	}
	box, err := c.Sandboxes.Sandbox(ctx, job.Key)
	switch {
	case isNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case box.Instance != job.Instance:
		return nil, nil
	}
	return &box, nil
}

// attempt is one try to end or idle a sandbox that nobody has condemned yet.
type attempt struct {
	job ReclaimJob
	run Run      // the run whose end is owed, or the idle sandbox's latest
	box *Sandbox // nil: no record names the instance
	row *LedgerRow
	by  string

	owes      *Run // whose checkpoint the sandbox owes; nil: nobody's
	leased    bool // the thread's lease was taken for it
	thread    ThreadKey
	owner     string  // of that lease
	again     bool    // the capture that failed has been noted
	capturing bool    // its capture was under way before
	overdue   bool    // and for longer than a capture may be
	control   Control // as read after the mark
}

// release decides whether the sandbox may be let go. Order: provider first, since a
// mismatch touches nothing; the thread's lease, where a checkpoint is owed, since a start
// takes it first too; then the mark, then hold and freeze are read, so that whoever sets
// them afterwards reads the mark (I13); then the workspace is stored (I5).
func (c *Reclaimer) release(ctx context.Context, job ReclaimJob, row *LedgerRow) (ReclaimOutcome, error) {
	box, err := c.box(ctx, job)
	if err != nil {
		return ReclaimDestroyFailed, err
	}
	if box == nil && (row == nil || job.Kind == JobDue) {
		return c.unmark(ctx, job, ReclaimNotFound)
	}
	if provider := providerOf(box, row); provider != c.Provider {
		return c.unmark(ctx, job, ReclaimProviderMismatch)
	}
	a := attempt{job: job, box: box, row: row, by: rand.Text()}
	for _, step := range []func(context.Context, *attempt) (ReclaimOutcome, error){c.bind, c.debt, c.lease} {
		if outcome, err := step(ctx, &a); outcome != "" || err != nil {
			return outcome, err
		}
	}
	if outcome, err := c.mark(ctx, a); outcome != "" || err != nil {
		return outcome, err
	}
	for _, step := range []func(context.Context, *attempt) (ReclaimOutcome, error){c.guarded, c.stored, c.counted} {
		if outcome, err := step(ctx, &a); outcome != "" || err != nil {
			return outcome, err
		}
	}
	if box != nil && job.Kind == JobIdle {
		return c.idle(ctx, a)
	}
	return c.condemn(ctx, a)
}

// mark announces the attempt. Where it cannot, another has acted since the record was
// read, and goes on; the lease that was taken for nothing is given back.
func (c *Reclaimer) mark(ctx context.Context, a attempt) (ReclaimOutcome, error) {
	if a.box == nil {
		return "", nil
	}
	t := MarkReclaiming{
		Instance: a.job.Instance, LatestRun: a.box.LatestRun, By: a.by, Idle: a.job.Kind == JobDue, Now: nowMillis(),
	}
	_, err := c.Sandboxes.UpdateSandbox(ctx, a.job.Key, t)
	if (isNotFound(err) || Refused(err)) && !a.capturing {
		c.unlease(ctx, a)
	}
	switch {
	case err == nil:
		return "", nil
	case isNotFound(err):
		return ReclaimNotFound, nil
	}
	return refusedOr(err, ReclaimInUse)
}

// bind reads the run that the message is about and says whether it lets the
// sandbox go: it must have ended, its mark must still be there, and no newer run may
// have the sandbox (I7).
func (c *Reclaimer) bind(ctx context.Context, a *attempt) (ReclaimOutcome, error) {
	key := RunKey{Tenant: a.job.Tenant, Run: a.job.Run}
	if a.job.Kind == JobDue {
		key = RunKey{Tenant: a.box.Material.Tenant, Run: a.box.LatestRun}
	}
	r, err := c.Runs.Run(ctx, key)
	switch {
	case isNotFound(err) && a.job.Kind == JobDue:
		a.run = Run{RunKey: key} // retention took the run; its sandbox must not outlive it
		return "", nil
	case isNotFound(err):
		return ReclaimNotFound, nil
	case err != nil:
		return ReclaimDestroyFailed, err
	case !r.Status.Terminal():
		return ReclaimInUse, nil
	case a.job.Kind == JobDue:
		a.run = r
		return "", nil
	case r.Row == RowReclaim && (a.job.Kind == JobIdle) != (r.Reclaim == ReclaimIdle):
		return ReclaimNotFound, nil // the mark says what is owed, not the message
	case r.Row != RowReclaim || r.Instance != a.job.Instance:
		return ReclaimNotFound, nil // a late duplicate: the mark is gone
	case a.box != nil && a.box.LatestRun != r.RunKey.Run:
		return c.moveOn(ctx, a.job, r, ReclaimInUse)
	}
	a.run = r
	return "", nil
}

// unsealed reports whether the sandbox ends for something else than its run's own
// end or a user's wish; the breaker holds that back.
func (a attempt) unsealed() bool {
	cancelled := a.run.Ending != nil && a.run.Ending.Reason == EndCancelled
	return a.job.Kind == JobDue || a.run.ExitCode == nil && !cancelled
}

// mayStop reports whether control lets a task be stopped.
func mayStop(c Control, unsealed bool) bool {
	return c.Stops() && (!unsealed || c.EndsUnsealed())
}

func providerOf(box *Sandbox, row *LedgerRow) string {
	if box != nil {
		return box.Material.Provider
	}
	return row.Provider
}

// guarded reads hold, freeze and mode after the mark; any of them takes the attempt
// back.
func (c *Reclaimer) guarded(ctx context.Context, a *attempt) (ReclaimOutcome, error) {
	now := nowMillis()
	control, err := c.Controls.Control(ctx)
	if err != nil {
		return ReclaimDestroyFailed, err
	}
	r, err := c.Runs.Run(ctx, a.run.RunKey)
	if err != nil && !(isNotFound(err) && a.job.Kind == JobDue) {
		return ReclaimDestroyFailed, err
	}
	until := r.Hold.Until
	if a.box != nil {
		until = max(until, a.box.HoldUntil)
	}
	a.control, a.run.Hold = control, r.Hold
	switch {
	case !mayStop(control, a.unsealed()):
		return c.later(ctx, *a, ReclaimFrozen, now.Add(c.Limits.Frozen))
	case until > now:
		return c.later(ctx, *a, ReclaimHeld, until)
	}
	return "", nil
}

// counted announces the end of an idle sandbox to the breaker, once nothing else keeps
// it from its end.
func (c *Reclaimer) counted(ctx context.Context, a *attempt) (ReclaimOutcome, error) {
	if a.job.Kind != JobDue {
		return "", nil
	}
	control, err := counting{c.Controls, c.Breaker, c.Announcer, c.Logger, c.Limits}.count(ctx, a.control, 1)
	if err != nil {
		return ReclaimDestroyFailed, err
	}
	if !mayStop(control, a.unsealed()) {
		return c.later(ctx, *a, ReclaimFrozen, nowMillis().Add(c.Limits.Frozen))
	}
	return "", nil
}

// later takes the attempt back until notBefore. A capture that is under way goes on, and
// keeps the lease.
func (c *Reclaimer) later(ctx context.Context, a attempt, outcome ReclaimOutcome, notBefore Millis) (ReclaimOutcome, error) {
	if a.box != nil {
		t := Unmark{Instance: a.job.Instance, By: a.by, Now: nowMillis()}
		if a.job.Kind == JobDue {
			t.DueAt = notBefore
		}
		if _, err := c.Sandboxes.UpdateSandbox(ctx, a.job.Key, t); err != nil && !Refused(err) {
			return outcome, err
		}
	}
	if !a.capturing {
		c.unlease(ctx, a)
	}
	return outcome, c.postponeMark(ctx, a.job, outcome, notBefore)
}

// snapshot takes the copy after a run, where its policy says so; empty: there is none. Under
// the mark no other run has the sandbox, and its checkpoint is stored before (SN-20). A
// sandbox that ends leaves nobody who could be made from a copy of it, so none is taken.
func (c *Reclaimer) snapshot(ctx context.Context, a attempt) SnapshotID {
	if c.Snapshots == nil || a.run.Snapshots != SnapshotsAfterRun {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, snapshotWithin)
	defer cancel()
	id, err := c.Snapshots.Snapshot(ctx, *a.box, afterRun+string(a.run.RunKey.Run))
	if err != nil {
		c.snapshotFailed(ctx, a, "take native snapshot", err)
		return ""
	}
	return id
}

// dropSnapshots lets go of a key's copies but one. What stays is found again when the key's
// sandbox idles or ends the next time.
func (c *Reclaimer) dropSnapshots(ctx context.Context, key SandboxKey, keep SnapshotID) error {
	ctx, cancel := context.WithTimeout(ctx, snapshotWithin)
	defer cancel()
	return c.Snapshots.DropSnapshots(ctx, key, keep)
}

// dropOrphans lets go of the copies of a key that has no sandbox any more, before the row of
// its last task is closed: nobody comes back to a closed one.
func (c *Reclaimer) dropOrphans(ctx context.Context, row LedgerRow) error {
	if c.Snapshots == nil {
		return nil
	}
	if _, err := c.Sandboxes.Sandbox(ctx, row.Key); !isNotFound(err) {
		return err
	}
	return c.dropSnapshots(ctx, row.Key, "")
}

func (c *Reclaimer) snapshotFailed(ctx context.Context, a attempt, what string, err error) {
	if c.Logger != nil {
		c.Logger.WarnContext(ctx, what, "run", a.run.RunKey.String(), "instance", string(a.job.Instance), "err", err)
	}
}

// idle keeps the sandbox warm. A hold of its run stays with it.
func (c *Reclaimer) idle(ctx context.Context, a attempt) (ReclaimOutcome, error) {
	now := nowMillis()
	t := MarkIdle{
		Instance: a.job.Instance, By: a.by, Since: now, DueAt: now.Add(seconds(a.run.IdleSeconds, c.Limits.IdleTTL)), Hold: a.run.Hold.Until,
		Snapshot: c.snapshot(ctx, a),
	}
	if _, err := c.Sandboxes.UpdateSandbox(ctx, a.job.Key, t); err != nil {
		return refusedOr(err, ReclaimInUse)
	}
	if t.Snapshot != "" {
		if err := c.dropSnapshots(ctx, a.job.Key, t.Snapshot); err != nil {
			c.snapshotFailed(ctx, a, "drop native snapshots", err)
		}
	}
	c.unlease(ctx, a)
	if a.owes != nil {
		return c.moveOn(ctx, a.job, *a.owes, ReclaimIdled)
	}
	return c.unmark(ctx, a.job, ReclaimIdled)
}

// condemn is the point of no return: from here on nobody finds the task.
func (c *Reclaimer) condemn(ctx context.Context, a attempt) (ReclaimOutcome, error) {
	now := nowMillis()
	t := Condemn{Instance: a.job.Instance, Key: a.job.Key, Unsealed: a.unsealed(), Why: "run ended: " + a.run.RunKey.String(), Now: now, DueAt: now.Add(c.Limits.RetryStop)}
	if a.box != nil {
		t.By = a.by
	}
	if err := c.Transactions.Condemn(ctx, t); err != nil {
		return refusedOr(err, ReclaimInUse)
	}
	c.unlease(ctx, a)
	row, err := c.Ledger.Row(ctx, a.job.Instance)
	if err != nil {
		return ReclaimDestroyFailed, err
	}
	return c.stop(ctx, a.job, row)
}

// refusedOr: a refused write means that somebody else acted; the mark stays and is
// looked at again. Anything else fails the message.
func refusedOr(err error, outcome ReclaimOutcome) (ReclaimOutcome, error) {
	if Refused(err) {
		return outcome, nil
	}
	return ReclaimDestroyFailed, err
}

// stop stops the task of a condemned row. Control is read before every StopTask
// (I13).
func (c *Reclaimer) stop(ctx context.Context, job ReclaimJob, row LedgerRow) (ReclaimOutcome, error) {
	now := nowMillis()
	if row.Provider != c.Provider {
		return c.unmark(ctx, job, ReclaimProviderMismatch)
	}
	if row.State == LedgerClosed {
		return c.unmark(ctx, job, ReclaimDestroyed)
	}
	control, err := c.Controls.Control(ctx)
	if err != nil {
		return ReclaimDestroyFailed, err
	}
	if !mayStop(control, row.Unsealed) {
		return ReclaimFrozen, c.postpone(ctx, job, row, ReclaimFrozen, now.Add(c.Limits.Frozen))
	}
	if row.TaskARN == "" { // the sweep names it, or closes the row
		return ReclaimDestroyFailed, c.postpone(ctx, job, row, ReclaimDestroyFailed, now.Add(c.Limits.RetryStop))
	}
	task, may, err := c.ask(ctx, row)
	if !may {
		return ReclaimFrozen, c.postpone(ctx, job, row, ReclaimFrozen, nowMillis().Add(c.Limits.Frozen))
	}
	if err != nil {
		if later := c.postpone(ctx, job, row, ReclaimDestroyFailed, now.Add(c.backoff(row.Attempts))); later != nil {
			return ReclaimDestroyFailed, later
		}
		return ReclaimDestroyFailed, c.undestroyed(ctx, job, row, err)
	}
	return c.stopped(ctx, job, row, task)
}

// stopTries is how often one message asks ECS, which turns it away; stopWait is the least
// time between the first two, and doubles. Each but the first has to have stopReserve left:
// for the call, and to note that it failed.
const (
	stopTries   = 3
	stopWait    = 500 * time.Millisecond
	stopReserve = 20 * time.Second
)

// ask has ECS asked to stop a task that may be stopped now, and asked again soon where it
// turns that away; not once an operator has spoken meanwhile.
func (c *Reclaimer) ask(ctx context.Context, row LedgerRow) (task Task, may bool, err error) {
	for try := 1; ; try++ {
		task, err = c.stopTask(ctx, row)
		if !errors.Is(err, ErrTurnedAway) || try == stopTries {
			return task, true, err
		}
		wait := stopWait << (try - 1)
		wait += mathrand.N(wait)
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < wait+stopReserve || !waitUntil(ctx, time.Now().Add(wait)) {
			return task, true, err
		}
		control, readErr := c.Controls.Control(ctx)
		if readErr != nil || !mayStop(control, row.Unsealed) {
			return Task{}, readErr != nil, readErr
		}
	}
}

// stopTask asks ECS to stop the task unless an earlier attempt already has: a
// second StopTask would only cost a token of the shared bucket.
func (c *Reclaimer) stopTask(ctx context.Context, row LedgerRow) (Task, error) {
	if row.Attempts > 0 {
		tasks, err := c.Tasks.Describe(ctx, row.Cluster, []string{row.TaskARN})
		if err == nil && len(tasks) == 1 && tasks[0].Life != TaskLives && tasks[0].Life != TaskUnknown {
			return tasks[0], nil
		}
	}
	return c.Stopper.Stop(ctx, row.Cluster, row.TaskARN, "sandkeeper: "+row.Why)
}

// undestroyed says of a task that could not be stopped what its run ended as.
func (c *Reclaimer) undestroyed(ctx context.Context, job ReclaimJob, row LedgerRow, cause error) error {
	r, err := c.Runs.Run(ctx, RunKey{Tenant: row.Tenant, Run: cmp.Or(job.Run, row.Run)})
	if err != nil {
		return cause
	}
	return &DestroyError{Phase: string(phaseOf(r)), Err: cause}
}

// tellDestroyed tells the definition's hook that a task has ended: before its row is
// closed, for nobody comes back to a closed one. The run that the task was launched for
// knows the hook, as does every later one of the same sandbox.
func (c *Reclaimer) tellDestroyed(ctx context.Context, job ReclaimJob, row LedgerRow, task Task) {
	if c.Functions == nil {
		return
	}
	hooks, key := hookTeller{c.Functions, c.Logger}, RunKey{Tenant: row.Tenant, Run: cmp.Or(job.Run, row.Run)}
	r, err := c.Runs.Run(ctx, key)
	if err != nil {
		hooks.failed(ctx, HookDestroyed, key, ignoreNotFound(err)) // without its record there is no hook
		return
	}
	hooks.tell(ctx, HookDestroyed, r, DestroyedDetail{row.Instance, row.TaskARN, cmp.Or(row.Why, describe(task))})
}

// stopped closes the row if ECS says that the task is gone, and takes the mark off
// once it is at least on its way. A task that ECS does not know is believed gone
// only after a while.
func (c *Reclaimer) stopped(ctx context.Context, job ReclaimJob, row LedgerRow, task Task) (ReclaimOutcome, error) {
	now := nowMillis()
	missing := task.Life == TaskMissing
	since := row.missingSince(now, c.Limits)
	if task.Life == TaskGone || missing && now >= since.Add(c.Limits.MissingGrace) {
		if err := c.dropOrphans(ctx, row); err != nil {
			return ReclaimDestroyFailed, err
		}
		c.tellDestroyed(ctx, job, row, task)
		t := CloseRow{From: LedgerStopping, Why: describe(task), Now: now, TaskARN: row.TaskARN, Quota: row.Quota, Tenant: row.Tenant, Metered: row.Metered}
		if _, err := c.Ledger.UpdateRow(ctx, row.Instance, t); err != nil && !Refused(err) {
			return ReclaimDestroyFailed, err
		}
		return c.unmark(ctx, job, ReclaimDestroyed)
	}
	if missing {
		again := now.Add(c.Limits.RetryStop)
		if err := c.postponeMissing(ctx, row, again, since); err != nil {
			return ReclaimDestroyFailed, err
		}
		return ReclaimDestroyFailed, c.postponeMark(ctx, job, ReclaimDestroyFailed, again)
	}
	if err := c.postponeRow(ctx, row, now.Add(c.Limits.RetryStop)); err != nil {
		return ReclaimDestroyFailed, err
	}
	return c.unmark(ctx, job, ReclaimDestroyed)
}

// missingSince is since when a task is missing that is missing now. Whoever saw it
// missing before asked for another look after RetryStop; a silence after that is a
// break, as it is for notes.
func (row LedgerRow) missingSince(now Millis, l Limits) Millis {
	if row.Missing == 0 || now >= row.DueAt.Add(l.NoteGap-l.RetryStop) {
		return now
	}
	return row.Missing
}

// backoff grows from ReclaimBackoff to ReclaimBackoffMax by the attempts so far.
func (c *Reclaimer) backoff(attempts int) time.Duration {
	return min(c.Limits.ReclaimBackoff<<min(attempts, 10), c.Limits.ReclaimBackoffMax)
}

func (c *Reclaimer) postpone(ctx context.Context, job ReclaimJob, row LedgerRow, outcome ReclaimOutcome, at Millis) error {
	if err := c.postponeRow(ctx, row, at); err != nil {
		return err
	}
	return c.postponeMark(ctx, job, outcome, at)
}

func (c *Reclaimer) postponeRow(ctx context.Context, row LedgerRow, at Millis) error {
	return c.postponeMissing(ctx, row, at, 0)
}

func (c *Reclaimer) postponeMissing(ctx context.Context, row LedgerRow, at, since Millis) error {
	t := Postpone{State: row.State, Attempts: row.Attempts, DueAt: at, Missing: since}
	_, err := c.Ledger.UpdateRow(ctx, row.Instance, t)
	return ignoreRefused(err)
}

// postponeMark moves the run's mark, where the message is about one.
func (c *Reclaimer) postponeMark(ctx context.Context, job ReclaimJob, outcome ReclaimOutcome, at Millis) error {
	if job.Run == "" {
		return nil
	}
	key := RunKey{Tenant: job.Tenant, Run: job.Run}
	r, err := c.Runs.Run(ctx, key)
	if err != nil {
		return ignoreNotFound(err)
	}
	attempts := r.ReclaimAttempts
	if outcome == ReclaimDestroyFailed { // to wait for an operator is no failure
		attempts++
	}
	_, err = c.Runs.Update(ctx, key, ReclaimLater{Instance: job.Instance, Outcome: outcome, NotBefore: at, Attempts: attempts})
	return ignoreRefused(err)
}

// unmark takes the run's mark off, where the message is about one. A run that owes a
// checkpoint although nothing is left to make it of has lost its workspace.
func (c *Reclaimer) unmark(ctx context.Context, job ReclaimJob, outcome ReclaimOutcome) (ReclaimOutcome, error) {
	if job.Run == "" {
		return outcome, nil
	}
	key := RunKey{Tenant: job.Tenant, Run: job.Run}
	done := ReclaimDone{Instance: job.Instance, Outcome: outcome, ExpiresAt: nowMillis().Add(c.Limits.Retention)}
	_, err := c.Runs.Update(ctx, key, done)
	if e, ok := errors.AsType[*RefusedError](err); ok && e.Why == "owes-checkpoint" {
		if err := c.loseOwn(ctx, key, string(outcome)+": nothing is left to store"); err != nil {
			return refusedOr(err, ReclaimInUse)
		}
		_, err = c.Runs.Update(ctx, key, done)
	}
	return outcome, ignoreNotFound(ignoreRefused(err))
}

func ignoreRefused(err error) error {
	if Refused(err) {
		return nil
	}
	return err
}

func ignoreNotFound(err error) error {
	if isNotFound(err) {
		return nil
	}
	return err
}
