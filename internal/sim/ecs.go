package sim

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// ecs is what ECS gets wrong for a while.
type ecs struct {
	hidden      map[string]core.Millis // tasks that it does not know until then
	leaving     map[string]core.Millis // stopped tasks that still leave until then
	blind, deaf core.Millis            // it knows no task, or does not answer, until then
	forgotten   map[string]string      // tasks that died and that it knows no more, by token
	mute        core.Millis            // no exec session comes up until then
	plain       core.Millis            // from when it may forget again, so that nothing is missing for too long
	tasks       []taskStart
	late        []launch

	farUntil core.Millis // until then the spoke fails
	farHow   int         // so
	farSince int         // after that call it began to
	meter    core.Millis // until then one tenant's meter cannot be read
}

// taskStart is one task that was ever started.
type taskStart struct {
	arn      string
	instance core.InstanceID
	at       core.Millis
	cluster  string // empty: at home
}

// launch is a RunTask whose answer was an error and whose task comes all the same.
type launch struct {
	spec core.TaskSpec
	at   core.Millis
}

// tasks is the cluster as an actor reaches it, with ECS's habits.
type tasks struct {
	mem.View
	a *actor
	w *world
}

func (w *world) tasks(a *actor) tasks { return tasks{w.fleet.View(a.p), a, w} }

var errDeaf = errors.New("ThrottlingException: rate exceeded")

// seen is a task as ECS shows it just now.
func (t tasks) seen(task core.Task) core.Task {
	e, at := &t.w.ecs, now()
	switch {
	case e.blind > at || e.hidden[task.ARN] > at:
		return core.Task{ARN: task.ARN, Life: core.TaskMissing}
	case task.Life == core.TaskGone && e.leaving[task.ARN] > at:
		task.Life = core.TaskLeaving
	}
	return task
}

// Describe answers for each ARN.
func (t tasks) Describe(ctx context.Context, cluster string, arns []string) ([]core.Task, error) {
	if err := t.reaches(ctx, "describe tasks", cluster); err != nil {
		return nil, err
	}
	out, err := t.View.Describe(ctx, cluster, arns)
	if err != nil {
		return nil, err
	}
	if t.w.ecs.deaf > now() {
		return nil, errDeaf
	}
	for i := range out {
		out[i] = t.seen(out[i])
		if !t.w.stands(out[i].ARN, cluster) {
			out[i] = core.Task{ARN: out[i].ARN, Life: core.TaskMissing}
		}
	}
	return out, nil
}

// StartedBy lists living tasks, young ones only after a while.
func (t tasks) StartedBy(ctx context.Context, cluster, startedBy string) ([]string, error) {
	if err := t.reaches(ctx, "list tasks", cluster); err != nil {
		return nil, err
	}
	arns, err := t.View.StartedBy(ctx, cluster, startedBy)
	if err != nil {
		return nil, err
	}
	if t.w.ecs.deaf > now() {
		return nil, errDeaf
	}
	var out []string
	for _, arn := range arns {
		if now() >= t.w.startOf(arn).at.Add(t.w.config.ListLag) && t.w.stands(arn, cluster) {
			out = append(out, arn)
		}
	}
	return out, nil
}

// pageSize and restSize make drains of several pages of what agents write here.
const (
	pageSize = 100
	restSize = 200
)

// Probe carries less of a journal than a sandbox would.
func (t tasks) Probe(ctx context.Context, rate float64, requests []core.ProbeRequest) []core.ProbeReply {
	replies := t.View.Probe(ctx, rate, requests)
	for _, q := range requests {
		t.w.sees(t.a, q.SandboxKey)
	}
	t.probeAbroad(ctx, requests, replies)
	for i := range replies {
		if t.w.ecs.mute > now() {
			replies[i] = core.ProbeReply{RunKey: requests[i].RunKey, Reason: errMute.Reason, Healing: errMute.Healing}
		}
		if len(replies[i].Rest) > restSize {
			replies[i].Rest, replies[i].Whole = nil, false
		}
	}
	return replies
}

// Terminate ends an agent.
func (t tasks) Terminate(ctx context.Context, q core.TerminateRequest) (core.TerminateReply, error) {
	t.a.at(ctx, "terminate")
	if err := t.silent(ctx, "terminate", q.Target); err != nil {
		return core.TerminateReply{}, err
	}
	wrongs, lived := t.w.endWrongs(t.a, q.RunKey), t.w.fleet.Alive(q.Run)
	done, err := t.View.Terminate(ctx, q)
	if lived && !t.w.fleet.Alive(q.Run) {
		for _, wrong := range wrongs {
			t.w.accuse("%s ends the agent of run %s: %s", t.a.name, q.RunKey, wrong)
		}
	}
	return done, err
}

// StartAgent begins an agent.
func (t tasks) StartAgent(ctx context.Context, target core.ExecTarget, agent core.JournalStart, input []byte) (core.JournalStarted, error) {
	t.a.at(ctx, "start agent")
	if err := t.silent(ctx, "start agent", target); err != nil {
		return core.JournalStarted{}, err
	}
	wrongs := t.w.beginWrongs(agent.Run, target.TaskARN)
	_, begun := t.w.agent(t.w.runs[t.w.index(agent.Run)], target.TaskARN)
	started, err := t.View.StartAgent(ctx, target, agent, input)
	if now, _ := t.w.agent(t.w.runs[t.w.index(agent.Run)], target.TaskARN); !begun && now.Begun {
		for _, wrong := range wrongs {
			t.w.accuse("%s begins the agent of run %s: %s", t.a.name, agent.Run, wrong)
		}
	}
	return started, err
}

var errMute = &core.ExecError{Reason: "target-not-connected", Healing: core.Retry}

// silent fails a call while no exec session comes up, in the cluster or anywhere.
func (t tasks) silent(ctx context.Context, call string, target core.ExecTarget) error {
	if t.w.ecs.mute <= now() {
		return t.comesIn(ctx, call, target.Cluster)
	}
	return t.a.p.Call(ctx, call, func() error { return errMute })
}

// Start runs a task. One that fails may come late all the same.
func (t tasks) Start(ctx context.Context, spec core.TaskSpec) (string, error) {
	t.a.at(ctx, "run task")
	if arn := t.w.ecs.forgotten[spec.Token]; arn != "" { // a token is remembered for longer than a task
		if err := t.a.p.Call(ctx, "run task", func() error { return nil }); err != nil {
			return "", err
		}
		return arn, nil
	}
	if err := t.reaches(ctx, "run task", spec.Cluster); err != nil {
		return t.unsure(ctx, spec, err)
	}
	arn, err := t.View.Start(ctx, spec)
	return t.asked(ctx, spec, arn, err)
}

// asked is what came of a task that was asked for.
func (t tasks) asked(ctx context.Context, spec core.TaskSpec, arn string, err error) (string, error) {
	if !t.w.started(spec) && err != nil && ctx.Err() == nil && !t.a.p.Stopped() {
		t.w.ecs.late = append(t.w.ecs.late, launch{spec: spec, at: now().Add(t.w.limits.LaunchLag / 4)})
	}
	return arn, err
}

// Stop asks for a task's end. One that ECS does not know just now goes on.
func (t tasks) Stop(ctx context.Context, cluster, arn, reason string) (core.Task, error) {
	t.a.at(ctx, "stop task")
	e, at := &t.w.ecs, now()
	if e.deaf > at || e.blind > at || e.hidden[arn] > at {
		err := t.a.p.Call(ctx, "stop task", func() error {
			if e.deaf > at {
				return errDeaf
			}
			return nil
		})
		return core.Task{ARN: arn, Life: core.TaskMissing}, err
	}
	if err := t.reaches(ctx, "stop task", cluster); err != nil {
		return core.Task{}, err
	}
	if !t.w.stands(arn, cluster) {
		return core.Task{ARN: arn, Life: core.TaskMissing}, t.a.p.Call(ctx, "stop task", func() error { return nil })
	}
	wrongs := t.w.stopWrongs(t.a, arn)
	ran := t.w.lives(arn)
	task, err := t.View.Stop(ctx, cluster, arn, reason)
	if ran && !t.w.lives(arn) {
		e.leaving[arn] = at.Add(t.w.limits.StopGrace)
		for _, wrong := range wrongs {
			t.w.accuse("%s stops %s: %s", t.a.name, arn, wrong)
		}
	}
	if err != nil {
		return core.Task{}, err
	}
	return t.seen(task), nil
}

// started notes the task of a launch, if there is one.
func (w *world) started(spec core.TaskSpec) bool {
	arns, _ := w.fleet.View(w.store.Process).StartedBy(context.Background(), spec.Cluster, spec.StartedBy)
	for _, arn := range arns {
		if w.startOf(arn).arn == "" {
			w.ecs.tasks = append(w.ecs.tasks, taskStart{arn, core.InstanceID(spec.Token), now(), spec.Cluster})
		}
	}
	return len(arns) > 0
}

func (w *world) startOf(arn string) taskStart {
	for _, t := range w.ecs.tasks {
		if t.arn == arn {
			return t
		}
	}
	return taskStart{}
}

// lives reports whether a task costs money.
func (w *world) lives(arn string) bool { return slices.Contains(w.fleet.Running(), arn) }

// taskOf is the newest task that was started for a run.
func (w *world) taskOf(r *agentRun) (taskStart, bool) {
	for _, t := range slices.Backward(w.ecs.tasks) {
		t.instance = w.instanceOf(t.arn)
		if row, err := w.store.Row(context.Background(), t.instance); err == nil && row.Run == r.key.Run {
			return t, true
		}
	}
	return taskStart{}, false
}

// land lets those tasks come that come late.
func (w *world) land() {
	var waiting []launch
	for _, l := range w.ecs.late {
		if l.at > now() {
			waiting = append(waiting, l)
			continue
		}
		if w.ecs.forgotten[l.spec.Token] != "" { // it was launched again meanwhile, under this token
			continue
		}
		if _, err := w.fleet.View(w.store.Process).Start(context.Background(), l.spec); err == nil && w.started(l.spec) {
			w.note("a late task comes")
		}
	}
	w.ecs.late = waiting
}

// forgetful reports whether ECS may not know tasks for the next seconds, and notes
// it: what is missing comes back for a while before the grace is over.
func (w *world) forgetful(seconds int) (until core.Millis, ok bool) {
	if now() < w.ecs.plain {
		return 0, false
	}
	until = now().Add(time.Duration(seconds) * time.Second)
	w.ecs.plain = until.Add(w.limits.NoteGap + 4*w.config.Skew + time.Second)
	return until, true
}
