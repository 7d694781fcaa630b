package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"
	"unicode/utf8"
)

// stepRequest is what save, restore and verify have in common.
type stepRequest struct {
	ThreadKey
	id         CheckpointID
	kind       StepKind
	run        RunID
	owner      string
	key        SandboxKey
	instance   InstanceID
	checkpoint CheckpointID // to restore; empty: the head
	reason     Reason
	label      *string
	job        *ReclaimJob
	again      bool
	options    JobOptions
}

// Save begins a checkpoint of a sandbox's workspace, or tells how far it is. A step
// whose agent is not heard of for a lease's life is begun anew, three times at most.
func (k *Keeper) Save(ctx context.Context, q SaveRequest) (StepReport, error) {
	reason := cmp.Or(q.Reason, ReasonAutomatic)
	if !slices.Contains([]Reason{ReasonAutomatic, ReasonNamed, ReasonSafety}, reason) {
		return StepReport{}, invalid("invalid-reason", "want automatic, named or safety, got %q", q.Reason)
	}
	r := stepRequest{
		ThreadKey: q.ThreadKey, id: q.ID, kind: StepCapture, run: q.Run, owner: cmp.Or(q.Owner, OwnerSave+string(q.ID)),
		key: q.Key, instance: q.Instance, reason: reason, label: q.Label, job: q.Job, again: q.Again, options: q.JobOptions,
	}
	if err := r.check(); err != nil {
		return StepReport{}, err
	}
	made, err := k.Threads.FindCheckpoint(ctx, q.Tenant, q.ID)
	switch {
	case err == nil && made.ThreadKey == q.ThreadKey:
		return StepReport{ID: q.ID, Kind: StepCapture, State: StepDone, Checkpoint: q.ID, Files: made.Files, Bytes: made.Bytes}, nil
	case err == nil:
		return StepReport{}, refuse("save", "checkpoint "+string(q.ID), "duplicate-id")
	case !errors.Is(err, ErrNotFound):
		return StepReport{}, err
	}
	return k.step(ctx, r)
}

// Restore begins to bring a checkpoint back, or to read it back where it is to be
// verified, or tells how far it is. Into a sandbox that somebody has worked in, under a
// lease of its own, it is refused as "frozen" or "held" while an operator keeps it back.
func (k *Keeper) Restore(ctx context.Context, q RestoreRequest) (StepReport, error) {
	r := stepRequest{
		ThreadKey: q.ThreadKey, id: q.ID, kind: StepRestore, run: q.Run, owner: cmp.Or(q.Owner, OwnerSave+string(q.ID)),
		key: q.Key, instance: q.Instance, checkpoint: q.Checkpoint, again: q.Again, options: q.JobOptions,
	}
	if q.Verify {
		r.kind = StepVerify
	}
	if err := r.check(); err != nil {
		return StepReport{}, err
	}
	return k.step(ctx, r)
}

// MaxLabel is the longest label, bytes.
const MaxLabel = 1024

func (q stepRequest) check() error {
	if err := errors.Join(checkThread(q.ThreadKey), checkCheckpoint(q.Tenant, q.id)); err != nil {
		return invalid("invalid-id", "%v", err)
	}
	dir := cmp.Or(q.options.Dir, "/")
	switch {
	case q.label != nil && (len(*q.label) > MaxLabel || !utf8.ValidString(*q.label)):
		return invalid("invalid-label", "want at most %d bytes in UTF-8, got %d", MaxLabel, len(*q.label))
	case q.key == "" || q.instance == "":
		return invalid("missing-sandbox", "want the key and the instance of a sandbox, got %q and %q", q.key, q.instance)
	case !path.IsAbs(dir) || path.Clean(dir) != dir:
		return invalid("invalid-dir", "want a clean absolute path, got %q", q.options.Dir)
	case q.options.DeadlineSeconds < 0 || q.options.MaxBytes < 0 || q.options.Sample < 0:
		return invalid("invalid-limit", "want deadline, bytes and sample of 0 or more")
	}
	return nil
}

// step tells of a step that is under way or has ended, else begins it.
func (k *Keeper) step(ctx context.Context, q stepRequest) (StepReport, error) {
	th, err := k.Threads.Thread(ctx, q.ThreadKey)
	if err != nil {
		return StepReport{}, err
	}
	if report, ok := q.under(th, nowMillis()); ok {
		return report, nil
	}
	if q.cutsOff(th, nowMillis()) {
		return StepReport{}, refuse(string(q.kind), "thread "+q.ThreadKey.String(), "step-busy")
	}
	if k.Sandboxes == nil {
		return StepReport{}, refuse(string(q.kind), "thread "+q.ThreadKey.String(), "missing-instances")
	}
	if th, err = k.leaseOf(ctx, th, q.owner); err != nil {
		return StepReport{}, err
	}
	// Its agent may have spoken, or another call begun it, before the lease was taken.
	report, ok := q.under(th, nowMillis())
	if !ok {
		report, err = k.begin(ctx, q, th)
	}
	if refusalOf(err) == "step" {
		report, err = k.begun(ctx, q)
	}
	if releases(q.owner) && (err != nil || report.State != StepWorking) {
		if late := k.giveBack(ctx, th.Writer()); err == nil && late != nil {
			return report, fmt.Errorf("give back lease of thread %s: %w", q.ThreadKey, late)
		}
	}
	return report, err
}

// begun reports on the step where another call of the same owner has just begun one: the one
// that is asked for, or another's.
func (k *Keeper) begun(ctx context.Context, q stepRequest) (StepReport, error) {
	th, err := k.Threads.Thread(ctx, q.ThreadKey)
	if err != nil {
		return StepReport{}, err
	}
	if report, ok := q.under(th, nowMillis()); ok {
		return report, nil
	}
	return StepReport{}, refuse(string(q.kind), "thread "+q.ThreadKey.String(), "step-busy")
}

// replaces reports whether the step replaces what is in a sandbox. A run's host restores
// under the run's lease, before the agent begins, where nothing is yet.
func (q stepRequest) replaces() bool { return q.kind == StepRestore && releases(q.owner) }

// mine is the thread's step, if it is the one that is asked for.
func (q stepRequest) mine(th Thread) *Step {
	if th.Step == nil || th.Step.ID != q.id || th.Step.Kind != q.kind {
		return nil
	}
	return th.Step
}

// cutsOff reports whether the same owner has another step under way, whose agent lives:
// to begin this one would make that one's token dead.
func (q stepRequest) cutsOff(th Thread, now Millis) bool {
	s := th.Step
	return s != nil && q.mine(th) == nil && s.State == StepWorking && s.Fence == th.Fence &&
		th.Lease.Owner == q.owner && th.Lease.Live(now) && now.Sub(s.SeenAt) < s.patience()
}

// anew reports whether a step is begun as one that was never tried.
func (q stepRequest) anew(s *Step) bool { return s == nil || q.again && s.State == StepFailed }

// under reports on the step that is asked for, if it needs no beginning.
func (q stepRequest) under(th Thread, now Millis) (StepReport, bool) {
	s := q.mine(th)
	switch {
	case s == nil:
		return StepReport{}, false
	case s.State == StepFailed && q.again:
		return StepReport{}, false
	case s.State == StepWorking && (th.Fence != s.Fence || !th.Lease.Live(now) || now.Sub(s.SeenAt) >= s.patience()):
		return StepReport{}, false
	}
	return reportOf(*s), true
}

// patience is how long a step may go unheard of before it is begun anew.
func (s Step) patience() time.Duration {
	switch {
	case s.doubted() && s.Why == execBusy:
		return 0 // nobody was in the sandbox to begin it
	case s.doubted():
		return startRetry
	}
	return stepSilence
}

// doubted reports whether it is not known that the step's agent began.
func (s Step) doubted() bool { return s.State == StepWorking && s.Why != "" }

func reportOf(s Step) StepReport {
	r := StepReport{
		ID: s.ID, Kind: s.Kind, State: s.State, Why: s.Why, Attempts: s.Attempts, Fence: s.Fence, SeenAt: s.SeenAt, Files: s.Files, Bytes: s.Bytes,
	}
	if s.Kind != StepCapture {
		r.Checkpoint = s.Checkpoint
	} else if s.State == StepDone {
		r.Checkpoint = s.ID
	}
	return r
}

// begin records a step under the lease and starts its agent.
func (k *Keeper) begin(ctx context.Context, q stepRequest, th Thread) (StepReport, error) {
	at, err := k.target(ctx, q)
	if err == nil && q.replaces() {
		err = k.watch(Writer{ThreadKey: q.ThreadKey}).allowed(ctx, string(q.kind), ofWish)
	}
	if err != nil {
		return StepReport{}, err
	}
	// Before anything is recorded: a step without an agent is silent for a lease's life.
	if at.url, at.host, err = k.URL.AgentURL(ctx); err != nil {
		return StepReport{}, err
	}
	at.token = mintToken(q.ThreadKey, th.Fence)
	step, err := k.newStep(ctx, q, th, at.token)
	if err != nil {
		return StepReport{}, err
	}
	if q.kind == StepCapture && q.run != "" && q.reason == ReasonAutomatic {
		_, err := k.Threads.UpdateThread(ctx, q.ThreadKey, AddPending{Run: q.run, Now: step.SeenAt})
		if err = ignoreRefused(err); err != nil {
			return StepReport{}, err
		}
	}
	// A step that is begun no more is recorded all the same, so that the former agent's
	// token is dead when it fails.
	begin := BeginStep{Owner: q.owner, Seen: th.Seen(), Step: step, Now: step.SeenAt, Until: leaseUntil(step.SeenAt)}
	if _, err = k.Threads.UpdateThread(ctx, q.ThreadKey, begin); err != nil {
		return StepReport{}, err
	}
	if why := q.exhausted(th, step.SeenAt); why != "" {
		return k.fail(ctx, q, step, why)
	}
	return k.start(ctx, q, step, at)
}

// exhausted says why a step is not begun once more, or "".
func (q stepRequest) exhausted(th Thread, now Millis) string {
	s := q.mine(th)
	switch {
	case q.anew(s):
		return ""
	case s.doubted() && now.Sub(s.StartedAt) >= startPatience:
		return s.Why
	case !s.doubted() && s.Attempts >= stepAttempts:
		return "agent-silent"
	}
	return ""
}

// newStep is the step to record. A beginning of which nothing is known is made up for
// without being counted, from when it was made first.
func (k *Keeper) newStep(ctx context.Context, q stepRequest, th Thread, token stepToken) (Step, error) {
	now := nowMillis()
	step := Step{
		ID: q.id, Kind: q.kind, Run: q.run, Fence: th.Fence, Token: token.hash(), State: StepWorking, Attempts: 1,
		Checkpoint: th.Head, Reason: q.reason, Label: q.label, Job: q.job, StartedAt: now, SeenAt: now,
	}
	switch former := q.mine(th); {
	case q.anew(former):
	case former.doubted():
		step.Attempts, step.StartedAt = former.Attempts, former.StartedAt
	default:
		step.Attempts = former.Attempts + 1
	}
	if q.kind == StepCapture {
		step.Former = th.cut()
		return step, nil
	}
	step.Checkpoint = cmp.Or(q.checkpoint, th.Head)
	if step.Checkpoint == "" {
		return Step{}, refuse(string(q.kind), "thread "+q.ThreadKey.String(), "checkpoint-not-found")
	}
	if _, err := k.Threads.Checkpoint(ctx, q.ThreadKey, step.Checkpoint); errors.Is(err, ErrNotFound) {
		return Step{}, refuse(string(q.kind), "checkpoint "+string(step.Checkpoint), "checkpoint-not-found")
	} else if err != nil {
		return Step{}, err
	}
	return step, nil
}

// fail ends a step that did not come to run. Who asks learns it at once.
func (k *Keeper) fail(ctx context.Context, q stepRequest, step Step, why string) (StepReport, error) {
	end := EndStep{Fence: step.Fence, Token: step.Token, State: StepFailed, Why: why, Release: releases(q.owner), Now: nowMillis()}
	th, err := k.Threads.UpdateThread(ctx, q.ThreadKey, end)
	if err != nil {
		return StepReport{}, err
	}
	k.tell(ctx, q.ThreadKey, step, StepReport{State: StepFailed, Why: why})
	return reportOf(*th.Step), nil
}
