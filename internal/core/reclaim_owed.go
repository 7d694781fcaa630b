package core

import (
	"cmp"
	"context"
	"fmt"
)

// CheckpointOf names the checkpoint that a run's end owes.
func CheckpointOf(run RunID) CheckpointID { return CheckpointID("checkpoint-" + string(run)) }

func runThread(r Run) ThreadKey { return ThreadKey{Tenant: r.Tenant, Thread: r.Thread} }

// reclaimOwner is as whom reclaim writes the thread of a run.
func reclaimOwner(r Run) string { return OwnerReclaim + string(r.RunKey.Run) }

func (c *Reclaimer) losses() losses { return losses{c.Runs, c.Ledger, c.Threads, c.Announcer} }

// debt finds out whose checkpoint the sandbox owes.
func (c *Reclaimer) debt(ctx context.Context, a *attempt) (ReclaimOutcome, error) {
	owes, err := c.losses().debt(ctx, a.run, a.row, a.box)
	if err != nil {
		return ReclaimDestroyFailed, err
	}
	a.owes = owes
	if owes != nil && owes.Checkpoint.Settled() { // and whoever settled it did not come to the row
		return c.settle(ctx, a, owes.Checkpoint)
	}
	return "", nil
}

// lease takes the thread's lease for the capture. While a live run has it the sandbox
// waits. Where a newer workspace of the thread is stored, this one must not follow it.
func (c *Reclaimer) lease(ctx context.Context, a *attempt) (ReclaimOutcome, error) {
	if a.owes == nil || a.box == nil || c.Threads == nil {
		return "", nil
	}
	now := nowMillis()
	th, err := c.losses().acquire(ctx, *a.owes, now)
	switch {
	case Refused(err):
		return ReclaimLeased, c.postponeMark(ctx, a.job, ReclaimLeased, now.Add(c.Limits.RetryStop))
	case err != nil:
		return ReclaimDestroyFailed, err
	}
	a.leased, a.thread, a.owner = true, th.ThreadKey, reclaimOwner(*a.owes)
	if step := th.Step; step != nil && step.ID == CheckpointOf(a.owes.RunKey.Run) {
		a.capturing = step.State == StepWorking && step.Fence == th.Fence
		a.overdue = a.capturing && now >= step.StartedAt.Add(c.Limits.CaptureMost)
		// Whoever notes a failure gives the lease back: that of an older fence is noted.
		a.again = step.State == StepFailed && step.Fence < th.Fence && a.owes.Checkpoint.Tries > 0
	}
	newer, err := c.losses().superseded(ctx, th, *a.owes)
	switch {
	case err != nil:
		return ReclaimDestroyFailed, err
	case newer:
		final := a.owes.Checkpoint
		final.State, final.ID = CheckpointSuperseded, th.Head
		if err := c.losses().announce(ctx, *a.owes, final); err != nil {
			return ReclaimDestroyFailed, err
		}
		return c.settle(ctx, a, final)
	}
	return "", nil
}

// unlease gives the thread's lease back. It is a courtesy to the next writer: a lease
// that stays lapses by itself.
func (c *Reclaimer) unlease(ctx context.Context, a attempt) {
	if !a.leased {
		return
	}
	_, err := c.Threads.UpdateThread(ctx, a.thread, ReleaseLease{Owner: a.owner})
	if ignoreRefused(err) != nil && c.Logger != nil {
		c.Logger.WarnContext(ctx, "give back lease", "phase", string(phaseOf(a.run)), "run", a.run.RunKey.String(), "err", err)
	}
}

// stored has the workspace stored that the sandbox owes, and lets the attempt go on once
// nothing is owed any more.
func (c *Reclaimer) stored(ctx context.Context, a *attempt) (ReclaimOutcome, error) {
	switch {
	case a.owes == nil:
		return "", nil
	case a.box == nil:
		return c.lose(ctx, a, "no-record: no instance record names the task")
	case a.owes.FinishedAt == 0: // what it says of secrets and exclusions is gone with it
		return c.lose(ctx, a, "run-expired: how its workspace is to be stored is not known any more")
	case a.overdue: // giving the lease back fences it
		c.unlease(ctx, *a)
		return c.uncaptured(ctx, a, "too-long: the capture went on for "+c.Limits.CaptureMost.String(), true)
	}
	got, err := c.Checkpoints.Capture(ctx, CaptureRequest{Run: *a.owes, Sandbox: *a.box, Owner: reclaimOwner(*a.owes), Job: a.job, Again: a.again})
	switch {
	case err != nil:
		return c.uncaptured(ctx, a, "unknown: "+err.Error(), false)
	case got.State == Capturing:
		a.capturing = true
		return c.later(ctx, *a, ReclaimCapturing, nowMillis().Add(c.Limits.CaptureWait))
	case got.State == CaptureDone:
		final := a.owes.Checkpoint
		final.State, final.ID = CheckpointDone, got.ID
		return c.settle(ctx, a, final)
	case got.State == CaptureFailed:
		return c.uncaptured(ctx, a, got.Why, true)
	}
	return ReclaimDestroyFailed, fmt.Errorf("capture run %s: want one of %v, got %.80q", a.owes.RunKey, []CaptureState{CaptureDone, CaptureFailed, Capturing}, got.State)
}

// uncaptured is for a workspace that could not be stored; sure says that it is known to
// be so. A sandbox whose task is gone has none any more. One that is to be kept warm is
// kept, and its row owes the checkpoint. Of the others it depends on the policy for how
// long they are held for another try; what is not known is always tried again.
func (c *Reclaimer) uncaptured(ctx context.Context, a *attempt, why string, sure bool) (ReclaimOutcome, error) {
	now := nowMillis()
	next := a.owes.Checkpoint
	next.Why, next.Tries, next.FailedAt = why, next.Tries+1, cmp.Or(next.FailedAt, now)
	if next.State != CheckpointMoved {
		next.State = CheckpointFailed
	}
	until := next.FailedAt.Add(c.Limits.CheckpointHold)
	over := now >= until || sure && c.OnFailure == ReleaseOnFailure
	gone, err := c.gone(ctx, *a.box)
	switch {
	case err != nil:
		return ReclaimDestroyFailed, err
	case gone != "":
		return c.lose(ctx, a, "task-gone: "+gone)
	case over && a.job.Kind != JobIdle:
		return c.lose(ctx, a, why)
	}
	if next.Tries == 1 {
		if err := c.losses().announce(ctx, *a.owes, next); err != nil {
			return ReclaimDestroyFailed, err
		}
	}
	a.capturing = false
	if err := c.losses().note(ctx, a.owes, next); err != nil {
		return c.yield(ctx, *a, err)
	}
	if a.job.Kind == JobIdle && (sure || over) {
		return "", nil
	}
	return c.later(ctx, *a, ReclaimUncaptured, min(until, now.Add(c.backoff(next.Tries-1))))
}

// yield takes back an attempt beside which another has acted: a refused write says so.
func (c *Reclaimer) yield(ctx context.Context, a attempt, err error) (ReclaimOutcome, error) {
	if !Refused(err) {
		return ReclaimDestroyFailed, err
	}
	return c.later(ctx, a, ReclaimInUse, nowMillis().Add(c.Limits.RetryStop))
}

// gone words how the task of a sandbox ended; "" while ECS does not say that it has. An
// answer that does not come says nothing.
func (c *Reclaimer) gone(ctx context.Context, box Sandbox) (string, error) {
	tasks, err := c.Tasks.Describe(ctx, box.Cluster, []string{box.TaskARN})
	if err != nil || len(tasks) != 1 {
		return "", ctx.Err()
	}
	if _, exited := tasks[0].Exits[box.Container]; tasks[0].Life == TaskGone || exited {
		return cmp.Or(describe(tasks[0]), "its container has exited"), nil
	}
	return "", nil
}

// settle writes what became of the checkpoint that the sandbox owed.
func (c *Reclaimer) settle(ctx context.Context, a *attempt, final RunCheckpoint) (ReclaimOutcome, error) {
	if err := c.losses().settle(ctx, a.owes, a.row, final); err != nil {
		return c.yield(ctx, *a, err)
	}
	a.owes, a.capturing = nil, false
	return "", nil
}

// lose lets the workspace go that cannot be stored.
func (c *Reclaimer) lose(ctx context.Context, a *attempt, why string) (ReclaimOutcome, error) {
	if err := c.losses().lose(ctx, *a.owes, a.row, why); err != nil {
		return c.yield(ctx, *a, err)
	}
	a.owes, a.leased = nil, false
	return "", nil
}

// loseOwn tells the loss of a run's workspace, if the run still owes its checkpoint.
func (c *Reclaimer) loseOwn(ctx context.Context, key RunKey, why string) error {
	r, err := c.Runs.Run(ctx, key)
	if err != nil || !r.Checkpoint.Owes() {
		return ignoreNotFound(err)
	}
	return c.losses().lose(ctx, r, nil, why)
}

// moveOn removes the mark of a run whose sandbox goes on; the row of the sandbox owes
// from then on what the run did. A task that is in service no more can store nothing.
func (c *Reclaimer) moveOn(ctx context.Context, job ReclaimJob, r Run, outcome ReclaimOutcome) (ReclaimOutcome, error) {
	if !r.Checkpoint.Owes() {
		return c.unmark(ctx, job, outcome)
	}
	row, err := c.Ledger.Row(ctx, job.Instance)
	if err == nil {
		now := nowMillis()
		err = c.Transactions.MoveDebt(ctx, MoveDebt{
			Run: r.RunKey, Instance: job.Instance, Older: row.Owed, Outcome: outcome, Now: now, ExpiresAt: now.Add(c.Limits.Retention),
		})
	}
	switch {
	case refusalOf(err) == "debt": // the row's changed meanwhile; the mark is sent again
		return outcome, nil
	case Refused(err) || isNotFound(err):
		return c.unmark(ctx, job, outcome)
	}
	return outcome, err
}

// losses settles checkpoints that nobody will make any more. Everything it does may be
// repeated: the run's record comes last, so that a crash before it repeats the rest.
type losses struct {
	runs      Runs
	ledger    Ledger
	threads   Threads   // nil: there are none
	announcer Announcer // nil: nobody is told
}

// debt finds out whose checkpoint a sandbox owes, nil for none: that of its latest run,
// or of an older one, with which its ledger row was left. Of a run that retention took
// only the name is left.
func (l losses) debt(ctx context.Context, latest Run, row *LedgerRow, box *Sandbox) (*Run, error) {
	switch {
	case latest.Checkpoint.Owes():
		return &latest, nil
	case row == nil || row.Owed == "":
		return nil, nil
	}
	key := RunKey{Tenant: row.Tenant, Run: row.Owed}
	r, err := l.runs.Run(ctx, key)
	if isNotFound(err) {
		r, err = Run{RunKey: key, Checkpoint: RunCheckpoint{State: CheckpointMoved}}, nil
		if box != nil {
			r.Thread = box.Material.Thread
		}
	}
	return &r, err
}

// lose records that what a sandbox owes is lost, for the next run of the thread, for
// other systems, and on the records; unless it is stored after all, or a newer one is.
func (l losses) lose(ctx context.Context, r Run, row *LedgerRow, why string) error {
	final, err := l.final(ctx, r, why)
	if err == nil && final.State != CheckpointDone {
		err = l.announce(ctx, r, final)
	}
	if err == nil {
		err = l.settle(ctx, &r, row, final)
	}
	if l.threads != nil && r.Thread != "" {
		_, _ = l.threads.UpdateThread(ctx, runThread(r), ReleaseLease{Owner: reclaimLoser(r)}) // else it lapses
	}
	return err
}

// settle writes what became of a checkpoint on its run's record, and then on the row.
// What the row owes may be an older run's, and what that one's record names a still older
// one's; the newer workspace holds all of theirs.
func (l losses) settle(ctx context.Context, r *Run, row *LedgerRow, final RunCheckpoint) error {
	if err := l.note(ctx, r, final); err != nil || row == nil || row.Owed == "" {
		return err
	}
	next := row.Owed
	if next == r.RunKey.Run {
		next = r.Checkpoint.Older
	}
	for next != "" {
		older, err := l.runs.Run(ctx, RunKey{Tenant: row.Tenant, Run: next})
		if next = older.Checkpoint.Older; err == nil && (older.Checkpoint.Owes() || older.Checkpoint.State == CheckpointMoved) {
			final.Older = next
			err = l.note(ctx, &older, final)
		}
		if err != nil && !isNotFound(err) {
			return err
		}
	}
	_, err := l.ledger.UpdateRow(ctx, row.Instance, SettleDebt{Owed: row.Owed, Now: nowMillis()})
	return err
}

// final is what becomes of a checkpoint that is not made any more. The thread is fenced
// before it is looked at: no capture publishes after that.
func (l losses) final(ctx context.Context, r Run, why string) (RunCheckpoint, error) {
	final := r.Checkpoint
	final.State, final.ID, final.Why = CheckpointLost, "", why
	if l.threads == nil || r.Thread == "" {
		return final, nil
	}
	th, err := l.fence(ctx, r)
	if err != nil {
		return final, err
	}
	_, err = l.threads.Checkpoint(ctx, th.ThreadKey, CheckpointOf(r.RunKey.Run))
	if err == nil {
		final.State, final.ID = CheckpointDone, CheckpointOf(r.RunKey.Run)
		return final, nil
	}
	if !isNotFound(err) {
		return final, err
	}
	newer, err := l.superseded(ctx, th, r)
	if newer {
		final.State, final.ID = CheckpointSuperseded, th.Head
	}
	if newer || err != nil {
		return final, err
	}
	_, err = l.threads.UpdateThread(ctx, th.ThreadKey, LoseWorkspace{Run: r.RunKey.Run, Why: why, Head: th.Head, Fence: th.Fence, Now: nowMillis()})
	return final, err
}

// acquire takes the thread's lease for the capture of an ended run. The lease that the
// run's own host has left is over: it ends with the run, which never begins again.
func (l losses) acquire(ctx context.Context, r Run, now Millis) (Thread, error) {
	key := runThread(r)
	take := AcquireLease{Owner: reclaimOwner(r), Now: now, Until: now.Add(LeaseLife), Held: r.ReclaimOutcome == ReclaimCapturing}
	th, err := l.threads.UpdateThread(ctx, key, take)
	if !Refused(err) {
		return th, err
	}
	if _, err := l.threads.UpdateThread(ctx, key, ReleaseLease{Owner: hostOwner(r)}); err != nil {
		return Thread{}, err
	}
	return l.threads.UpdateThread(ctx, key, take)
}

// reclaimLoser is as whom a run's loss is written: not as whom its capture is.
func reclaimLoser(r Run) string { return reclaimOwner(r) + ":lost" }

// fence ends whatever capture of the run is under way, its host's own too, and returns the thread as it is
// then. A lease of somebody else has a newer fence than any capture.
func (l losses) fence(ctx context.Context, r Run) (Thread, error) {
	key := runThread(r)
	for range rowTries {
		for _, owner := range []string{reclaimOwner(r), hostOwner(r)} {
			if _, err := l.threads.UpdateThread(ctx, key, ReleaseLease{Owner: owner}); err != nil && !Refused(err) {
				return Thread{}, err
			}
		}
		now := nowMillis()
		th, err := l.threads.UpdateThread(ctx, key, AcquireLease{Owner: reclaimLoser(r), Now: now, Until: now.Add(LeaseLife)})
		if !Refused(err) {
			return th, err
		}
		if th, err = l.threads.Thread(ctx, key); err != nil || th.Lease.Owner != reclaimOwner(r) && th.Lease.Owner != hostOwner(r) {
			return th, err
		}
	}
	return Thread{}, fmt.Errorf("fence the capture of run %s: its lease is taken again each time", r.RunKey)
}

// superseded reports whether the thread's head is newer than the end of the run, not of
// its own workspace, and does not follow on what is stored of that. What the head was made of is as old as the beginning of its
// capture: the agent may have gone on writing after that.
func (l losses) superseded(ctx context.Context, th Thread, r Run) (bool, error) {
	if th.Head == "" || th.Head == CheckpointOf(r.RunKey.Run) || r.FinishedAt == 0 {
		return false, nil
	}
	if r.Start.Noted && th.Head == r.Start.Head {
		return false, nil // it went out from that, whatever the clocks say
	}
	head, err := l.threads.Checkpoint(ctx, th.ThreadKey, th.Head)
	if err != nil {
		return false, ignoreNotFound(err)
	}
	taken := head.CreatedAt
	if step := th.Step; step != nil && step.ID == th.Head && step.Kind == StepCapture {
		taken = min(taken, step.StartedAt)
	}
	if head.SourceRun == r.RunKey.Run || taken <= r.FinishedAt {
		return false, nil
	}
	_, err = l.threads.Checkpoint(ctx, th.ThreadKey, CheckpointOf(r.RunKey.Run))
	return isNotFound(err), ignoreNotFound(err)
}

// announce tells other systems that a checkpoint failed, was superseded or is lost.
func (l losses) announce(ctx context.Context, r Run, c RunCheckpoint) error {
	if l.announcer == nil {
		return nil
	}
	return l.announcer.Announce(ctx, []Notice{{
		Type: NoticeCheckpointFailed, RunKey: r.RunKey, Thread: r.Thread, Status: r.Status, ExitCode: r.ExitCode,
		Reason: c.Why, TaskARN: r.TaskARN, At: nowMillis(), Checkpoint: c.State,
	}})
}

// note writes how a checkpoint stands on its run's record, if there is one still.
func (l losses) note(ctx context.Context, r *Run, c RunCheckpoint) error {
	if r.Checkpoint == c {
		return nil
	}
	_, err := l.runs.Update(ctx, r.RunKey, NoteCheckpoint{From: r.Checkpoint.State, Checkpoint: c})
	if isNotFound(err) {
		err = nil
	}
	if err == nil {
		r.Checkpoint = c
	}
	return err
}
