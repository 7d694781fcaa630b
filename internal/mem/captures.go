package mem

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// fleetCapture is the agent of one capture, in a task.
type fleetCapture struct {
	thread core.ThreadKey
	id     core.CheckpointID
	run    core.RunID
	token  string
	fence  int64
	job    core.ReclaimJob
	alive  bool
}

// captureAttempts is how many agents of a capture may fall silent.
const captureAttempts = 3

var _ core.Checkpointer = View{}

// Capture is the checkpoint function as reclaim reaches it. It keeps to the order and
// the writes of core's keeper; its agents do nothing by themselves, the test moves them.
func (v View) Capture(ctx context.Context, q core.CaptureRequest) (core.Captured, error) {
	key, id := core.ThreadKey{Tenant: q.Run.Tenant, Thread: q.Run.Thread}, core.CheckpointOf(q.Run.RunKey.Run)
	_, err := v.p.Checkpoint(ctx, key, id)
	switch {
	case err == nil:
		return core.Captured{State: core.CaptureDone, ID: id}, nil
	case !errors.Is(err, core.ErrNotFound):
		return core.Captured{}, err
	}
	at := core.MillisOf(time.Now())
	th, err := v.p.UpdateThread(ctx, key, core.AcquireLease{Owner: q.Owner, Now: at, Until: at.Add(core.LeaseLife)})
	if err != nil {
		return core.Captured{}, err
	}
	former := th.Step
	switch {
	case former == nil || former.ID != id:
		former = nil
	case former.State == core.StepFailed && !q.Again:
		return core.Captured{State: core.CaptureFailed, Why: former.Why}, nil
	case former.State == core.StepWorking && former.Fence == th.Fence && at.Sub(former.SeenAt) < core.LeaseLife:
		return core.Captured{State: core.Capturing}, nil
	}
	step := core.Step{
		ID: id, Kind: core.StepCapture, Run: q.Run.RunKey.Run, Fence: th.Fence, Token: rand.Text(), State: core.StepWorking, Attempts: 1,
		Checkpoint: th.Head, Reason: core.ReasonAutomatic, Job: &q.Job, StartedAt: at, SeenAt: at,
	}
	if former != nil && !q.Again {
		step.Attempts = former.Attempts + 1
	}
	begin := core.BeginStep{Owner: q.Owner, Seen: th.Seen(), Step: step, Now: at, Until: at.Add(core.LeaseLife)}
	if _, err := v.p.UpdateThread(ctx, key, begin); err != nil {
		return core.Captured{}, err
	}
	if step.Attempts > captureAttempts {
		return v.failStep(ctx, key, step, "agent-silent")
	}
	return v.startCapture(ctx, q, key, step)
}

func (v View) startCapture(ctx context.Context, q core.CaptureRequest, key core.ThreadKey, step core.Step) (core.Captured, error) {
	reached := false
	err := v.call(ctx, "start capture", func() error {
		t, err := v.reach(q.Sandbox.TaskARN)
		if reached = err == nil; !reached {
			return nil
		}
		t.captures = append(t.captures, &fleetCapture{
			thread: key, id: step.ID, run: step.Run, token: step.Token, fence: step.Fence, job: q.Job, alive: true,
		})
		return nil
	})
	if err == nil && !reached {
		return v.failStep(ctx, key, step, "target-unreachable")
	}
	return core.Captured{State: core.Capturing}, nil // what became of the start, the next question tells
}

func (v View) failStep(ctx context.Context, key core.ThreadKey, step core.Step, why string) (core.Captured, error) {
	end := core.EndStep{Fence: step.Fence, Token: step.Token, State: core.StepFailed, Why: why, Now: core.MillisOf(time.Now())}
	if _, err := v.p.UpdateThread(ctx, key, end); err != nil {
		return core.Captured{}, err
	}
	return core.Captured{State: core.CaptureFailed, Why: why}, nil
}

// Capturing reports whether an agent captures for that run.
func (f *Fleet) Capturing(run core.RunID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.capture(run) != nil
}

// capture is the newest live capture for a run.
func (f *Fleet) capture(run core.RunID) *fleetCapture {
	for _, t := range f.tasks {
		for _, c := range slices.Backward(t.captures) {
			if c.run == run && c.alive && t.up() {
				return c
			}
		}
	}
	return nil
}

// KillCapture lets the agents that capture for a run die.
func (f *Fleet) KillCapture(run core.RunID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := f.capture(run); c != nil; c = f.capture(run) {
		c.alive = false
	}
}

// CaptureAgent is the agent of a capture as its own process moves it.
type CaptureAgent struct {
	view      View
	is        fleetCapture
	workspace string // a digest of what it finds
}

// CaptureAgent is the agent that captures for a run; nil if there is none.
func (v View) CaptureAgent(ctx context.Context, run core.RunID) (*CaptureAgent, error) {
	var out *CaptureAgent
	err := v.call(ctx, "read capture", func() error {
		if c := v.capture(run); c != nil {
			out = &CaptureAgent{v, *c, v.taskOf(c.token).workspace()}
		}
		return nil
	})
	return out, err
}

func (f *Fleet) taskOf(token string) *fleetTask {
	for _, t := range f.tasks {
		if slices.ContainsFunc(t.captures, func(c *fleetCapture) bool { return c.token == token }) {
			return t
		}
	}
	return nil
}

// Note says how far the agent is.
func (a *CaptureAgent) Note(ctx context.Context) error {
	at := core.MillisOf(time.Now())
	_, err := a.view.p.UpdateThread(ctx, a.is.thread, core.NoteStep{Fence: a.is.fence, Token: a.is.token, Files: 1, Bytes: 1, Now: at, Until: at.Add(core.LeaseLife)})
	if core.Refused(err) {
		return errors.Join(err, a.end(ctx))
	}
	return err
}

// Commit hands in what it has captured; the message that waits for it is sent. After an
// error that is no refusal it may be repeated, as an agent does.
func (a *CaptureAgent) Commit(ctx context.Context) error {
	th, err := a.view.p.Thread(ctx, a.is.thread)
	if err != nil {
		return err
	}
	at := core.MillisOf(time.Now())
	return a.ended(ctx, a.view.p.Commit(ctx, core.Commit{
		Writer: core.Writer{ThreadKey: a.is.thread, Owner: th.Lease.Owner, Fence: a.is.fence}, Now: at, Expected: th.Head, Token: a.is.token,
		Checkpoint: core.Checkpoint{
			ThreadKey: a.is.thread, ID: a.is.id, Parent: th.Head, CreatedAt: at, Reason: core.ReasonAutomatic, SourceRun: a.is.run, Digest: a.workspace,
		},
	}))
}

// Fail gives up.
func (a *CaptureAgent) Fail(ctx context.Context, why string) error {
	_, err := a.view.p.UpdateThread(ctx, a.is.thread, core.EndStep{
		Fence: a.is.fence, Token: a.is.token, State: core.StepFailed, Why: why, Now: core.MillisOf(time.Now()),
	})
	return a.ended(ctx, err)
}

// ended lets an agent end whose last word was heard or refused.
func (a *CaptureAgent) ended(ctx context.Context, err error) error {
	if err != nil && !core.Refused(err) {
		return err
	}
	if err == nil {
		err = a.view.p.Send(ctx, []core.ReclaimJob{a.is.job})
	}
	return errors.Join(err, a.end(ctx))
}

func (a *CaptureAgent) end(ctx context.Context) error {
	return a.view.call(ctx, "capture ends", func() error {
		if t := a.view.taskOf(a.is.token); t != nil {
			for _, c := range t.captures {
				c.alive = c.alive && c.token != a.is.token
			}
		}
		return nil
	})
}

// CommitCapture has the agent that captures for a run, if any, hand in what it has.
func (v View) CommitCapture(ctx context.Context, run core.RunID) error {
	a, err := v.CaptureAgent(ctx, run)
	if err != nil || a == nil {
		return err
	}
	return a.Commit(ctx)
}

// NoteCapture has it say that it lives.
func (v View) NoteCapture(ctx context.Context, run core.RunID) error {
	a, err := v.CaptureAgent(ctx, run)
	if err != nil || a == nil {
		return err
	}
	return a.Note(ctx)
}

// FailCapture has it give up.
func (v View) FailCapture(ctx context.Context, run core.RunID, why string) error {
	a, err := v.CaptureAgent(ctx, run)
	if err != nil || a == nil {
		return err
	}
	return a.Fail(ctx, why)
}

func (t *fleetTask) workspace() string {
	var runs []core.RunID
	for run := range t.agents {
		runs = append(runs, run)
	}
	slices.Sort(runs)
	digest := sha256.New()
	for _, run := range runs {
		fmt.Fprintf(digest, "%s %q\n", run, t.agents[run].stdout)
	}
	return hex.EncodeToString(digest.Sum(nil))
}

// Workspace is a digest of what the agents of a task have written, as captures keep it.
func (f *Fleet) Workspace(arn string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t, ok := f.tasks[arn]; ok {
		return t.workspace()
	}
	return ""
}

// NoCheckpoints is the checkpointer of whoever has none: what a run owes is not stored.
type NoCheckpoints struct{}

// Capture fails.
func (NoCheckpoints) Capture(context.Context, core.CaptureRequest) (core.Captured, error) {
	return core.Captured{State: core.CaptureFailed, Why: "no-keeper: the installation keeps no checkpoints"}, nil
}
