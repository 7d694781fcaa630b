package core

import (
	"context"
	"time"
)

// LeavingFor is how long a capture may take in a task that ECS is about to end: Fargate
// gives a container two minutes at most.
const LeavingFor = 110 * time.Second

// leaving has the workspace of a run stored whose task is about to end. It stops nothing,
// marks nothing and claims nothing: whatever the run comes to, its checkpoint is there then.
// The message proves nothing: ECS is asked whether the task leaves.
func (c *Reclaimer) leaving(ctx context.Context, job ReclaimJob) (ReclaimOutcome, error) {
	box, r, err := c.serving(ctx, job)
	switch {
	case err != nil:
		return refusedOr(err, ReclaimNotFound)
	case box == nil:
		return c.left(ctx, job)
	}
	tasks, err := c.Tasks.Describe(ctx, box.Cluster, []string{box.TaskARN})
	switch {
	case err != nil:
		return ReclaimDestroyFailed, err
	case len(tasks) != 1 || tasks[0].Life != TaskLeaving:
		return c.left(ctx, job)
	}
	owner, outcome, err := c.leaseOf(ctx, r)
	if outcome != "" || err != nil {
		return outcome, err
	}
	return c.snatch(ctx, CaptureRequest{Run: hurried(r), Sandbox: *box, Owner: owner, Job: job})
}

// left gives back the lease under which a workspace was stored whose run or task has ended
// since, so that the thread's next turn need not wait for it to lapse. What is still being
// stored keeps it.
func (c *Reclaimer) left(ctx context.Context, job ReclaimJob) (ReclaimOutcome, error) {
	if control, err := c.Controls.Control(ctx); err != nil || !control.Acts() || c.Threads == nil {
		return ReclaimNotFound, err
	}
	r, err := c.Runs.Run(ctx, RunKey{Tenant: job.Tenant, Run: job.Run})
	if err != nil {
		return ReclaimNotFound, ignoreNotFound(err)
	}
	th, err := c.Threads.Thread(ctx, runThread(r))
	switch {
	case err != nil:
		return ReclaimNotFound, ignoreNotFound(err)
	case th.Lease.Owner != reclaimOwner(r) || th.Step != nil && th.Step.State == StepWorking:
		return ReclaimNotFound, nil
	}
	_, err = c.Threads.UpdateThread(ctx, runThread(r), ReleaseLease{Owner: reclaimOwner(r), Fence: th.Fence, Seen: new(th.Seen())})
	return ReclaimNotFound, ignoreRefused(err)
}

// serving is the sandbox that a message is about, and the run that it serves; none where
// that run has ended, or another has the sandbox.
func (c *Reclaimer) serving(ctx context.Context, job ReclaimJob) (*Sandbox, Run, error) {
	control, err := c.Controls.Control(ctx)
	if err != nil || !control.Acts() || c.Threads == nil {
		return nil, Run{}, err
	}
	row, err := c.row(ctx, job.Instance)
	if err != nil || row == nil || row.State != LedgerRunning {
		return nil, Run{}, err
	}
	box, err := c.box(ctx, job)
	if err != nil || box == nil || providerOf(box, row) != c.Provider {
		return nil, Run{}, err
	}
	r, err := c.Runs.Run(ctx, RunKey{Tenant: job.Tenant, Run: job.Run})
	if err != nil || r.Status.Terminal() || r.Instance != job.Instance || box.LatestRun != job.Run {
		return nil, Run{}, ignoreNotFound(err)
	}
	return box, r, nil
}

// leaseOf is as whom the workspace of a run is stored: as its host while that holds the
// thread's lease, which is not taken from it; else under a lease of our own.
func (c *Reclaimer) leaseOf(ctx context.Context, r Run) (owner string, outcome ReclaimOutcome, err error) {
	th, err := c.Threads.Thread(ctx, runThread(r))
	if err != nil {
		return "", ReclaimDestroyFailed, err
	}
	now := nowMillis()
	if th.Lease.Live(now) && th.Lease.Owner == hostOwner(r) {
		return hostOwner(r), "", nil
	}
	_, err = c.Threads.UpdateThread(ctx, runThread(r), AcquireLease{Owner: reclaimOwner(r), Now: now, Until: now.Add(LeaseLife)})
	switch {
	case Refused(err):
		return "", ReclaimLeased, nil
	case err != nil:
		return "", ReclaimDestroyFailed, err
	}
	return reclaimOwner(r), "", nil
}

// snatch begins the capture, or asks how far it is. Nobody sends the message again once an
// agent is at work but that agent: one of which nobody knows that it began is asked for again
// here, while there is a task.
func (c *Reclaimer) snatch(ctx context.Context, q CaptureRequest) (ReclaimOutcome, error) {
	got, err := c.Checkpoints.Capture(ctx, q)
	for range leaveTries {
		if err == nil && !got.doubted() || !waitUntil(ctx, time.Now().Add(leaveRetry)) {
			break
		}
		got, err = c.Checkpoints.Capture(ctx, q)
	}
	if err == nil && got.State == Capturing {
		return ReclaimCapturing, nil
	}
	if q.Owner == reclaimOwner(q.Run) { // a courtesy to the next writer
		_, _ = c.Threads.UpdateThread(ctx, runThread(q.Run), ReleaseLease{Owner: q.Owner})
	}
	switch {
	case err != nil:
		return ReclaimDestroyFailed, err
	case got.State == CaptureDone:
		return ReclaimStored, nil
	}
	return ReclaimUncaptured, nil
}

// hurried is a run whose capture has no more time than its task.
func hurried(r Run) Run {
	var options JobOptions
	if r.Capture != nil {
		options = *r.Capture
	}
	most := int64(LeavingFor / time.Second)
	if options.DeadlineSeconds == 0 || options.DeadlineSeconds > most {
		options.DeadlineSeconds = most
	}
	r.Capture = &options
	return r
}
