package core

import (
	"context"
	"errors"
	"time"
)

// The beginnings of an agent of which nothing is known.
const (
	startRetry    = 5 * time.Second // then it is begun anew
	startPatience = 3 * time.Minute // from the first of them; then the step has failed
	// youngSandbox is how long after its launch a sandbox may refuse an exec that it will
	// take later: its agent connects after the task runs.
	youngSandbox = 2 * time.Minute
)

// startOf is where an agent is started, where it finds the keeper, and with what token.
type startOf struct {
	box       Sandbox
	target    ExecTarget
	young     bool
	url, host string
	token     stepToken
}

// target is the container of the sandbox that is asked for. A save is of what exists
// (SO-2): it must be that instance, of this tenant and thread.
func (k *Keeper) target(ctx context.Context, q stepRequest) (startOf, error) {
	box, err := k.Sandboxes.Sandbox(ctx, q.key)
	switch {
	case errors.Is(err, ErrNotFound):
		return startOf{}, refuse(string(q.kind), "sandbox "+string(q.key), "missing-reusable-sandbox")
	case err != nil:
		return startOf{}, err
	case box.Instance != q.instance || box.Material.Tenant != q.Tenant || box.Material.Thread != q.Thread:
		return startOf{}, refuse(string(q.kind), "sandbox "+string(q.key), "missing-reusable-sandbox")
	case q.reason == ReasonNamed && box.Material.Run != "":
		return startOf{}, refuse(string(q.kind), "sandbox "+string(q.key), "reuse-none")
	}
	return startOf{
		box:    box,
		target: ExecTarget{Cluster: box.Cluster, TaskARN: box.TaskARN, Container: box.Container},
		young:  nowMillis().Sub(box.CreatedAt) < youngSandbox,
	}, nil
}

// start begins the agent. An answer that says nothing leaves the step working, in doubt:
// it is begun anew, unless the agent is heard of.
func (k *Keeper) start(ctx context.Context, q stepRequest, step Step, at startOf) (StepReport, error) {
	job := AgentJob{
		Kind: q.kind, ID: q.id, URL: at.url, Host: at.host, Token: at.token.text(), Dir: q.options.Dir,
		Policy: q.options.Policy, Secrets: q.options.Secrets, DeadlineSeconds: q.options.DeadlineSeconds, MaxBytes: q.options.MaxBytes,
		Sample: q.options.Sample,
	}
	if q.kind != StepCapture {
		job.Checkpoint = step.Checkpoint
	}
	if q.options.Relay {
		job.Relay = RelayDir(step.Token)
	}
	began, err := k.startHolding(ctx, q, at, job)
	if err != nil {
		k.log().WarnContext(ctx, "start agent", "thread", q.ThreadKey.String(), "step", string(q.id), "err", err)
	}
	why, final := judgeStart(began, err, at.young)
	switch {
	case final:
		return k.fail(ctx, q, step, why)
	case why != "":
		return k.doubt(ctx, q, step, why)
	}
	report := reportOf(step)
	report.Began = true
	return report, nil
}

// startHolding hands the job over while nobody else has the container.
func (k *Keeper) startHolding(ctx context.Context, q stepRequest, at startOf, job AgentJob) (AgentStarted, error) {
	hold := k.exec(q)
	hold.box = &at.box
	if err := hold.take(ctx, execHoldFor); err != nil {
		return "", busyError("agent", err)
	}
	defer hold.free(ctx)
	return k.Agents.Start(ctx, at.target, job)
}

// exec is a hold of the sandbox of a step that has not been taken.
func (k *Keeper) exec(q stepRequest) *execHold {
	return &execHold{sandboxes: k.Sandboxes, key: q.key, instance: q.instance, who: execOfStep(q.id)}
}

// judgeStart tells what speaks against an agent's having begun, "" if it has, and whether
// asking again would not help.
func judgeStart(began AgentStarted, err error, young bool) (why string, final bool) {
	exec, isExec := errors.AsType[*ExecError](err)
	script, isScript := errors.AsType[*JournalError](err)
	switch {
	case began == AgentRefused && isScript:
		return string(began) + ": " + script.Reason, true
	case began == AgentRefused || began == AgentMissing:
		return string(began), true
	case isExec:
		return exec.Reason, exec.Healing == Configuration && !young
	case isScript:
		return script.Reason, false
	case err != nil:
		return "start-unknown", false
	case began == AgentRuns:
		// An agent of an earlier beginning, whose token is dead: it ends by itself.
		return "agent-busy", false
	}
	return "", false
}

// doubt leaves a step working of which it is not known that it began. Where its agent was
// heard of meanwhile there is no doubt.
func (k *Keeper) doubt(ctx context.Context, q stepRequest, step Step, why string) (StepReport, error) {
	th, err := k.Threads.UpdateThread(ctx, q.ThreadKey, DoubtStep{Fence: step.Fence, Token: step.Token, SeenAt: step.SeenAt, Why: why, Now: nowMillis()})
	if Refused(err) {
		th, err = k.Threads.Thread(ctx, q.ThreadKey)
	}
	if own := q.mine(th); err == nil && own != nil {
		return reportOf(*own), nil
	}
	return reportOf(step), err // it lost its lease, and the thread may be another step's: the next call finds that out
}
