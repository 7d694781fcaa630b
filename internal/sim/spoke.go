package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	smithytime "github.com/aws/smithy-go/time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// abroad is the cluster of a spoke. Its name comes first: it is asked before that at home.
const abroad = "abroad"

// How a spoke fails.
const (
	farRefuses = iota // at once
	farSlow           // it answers, after a while
	farSilent         // it never answers
)

// farSlowFor is that while, farWaits how long somebody waits for an answer that never
// comes. Neither is ever over in the very moment in which another wait is.
const (
	farSlowFor = 8*time.Second + 3*time.Millisecond
	farWaits   = 15*time.Second + 3*time.Millisecond
)

var errRole = errors.New("AccessDenied: not authorized to perform: sts:AssumeRole")

// farSays are the errors of each way.
var farSays = map[int]struct{ call, exec error }{
	farRefuses: {errRole, &core.ExecError{Reason: "access-denied", Healing: core.Configuration}},
	farSilent:  {context.DeadlineExceeded, &core.ExecError{Reason: "timeout", Healing: core.Retry}},
}

// clusterOf is where the sandbox of a run is: that of each thread in one cluster.
func (w *world) clusterOf(r *agentRun) string {
	if w.config.Spokes && r.n%w.config.Threads%2 == 0 {
		return abroad
	}
	return cluster
}

// stands reports whether a task is in a cluster: it is unknown in any other.
func (w *world) stands(arn, where string) bool {
	return !w.config.Spokes || cmp.Or(w.startOf(arn).cluster, cluster) == where
}

// farFails reports whether calls about a cluster go wrong now.
func (w *world) farFails(where string) bool { return where == abroad && w.ecs.farUntil > now() }

// reaches passes a call on to the ECS of a cluster: an error where it gets no answer there,
// and does nothing.
func (t tasks) reaches(ctx context.Context, call, where string) error {
	if !t.w.farFails(where) {
		return nil
	}
	return t.fails(ctx, call, farSays[t.w.ecs.farHow].call)
}

// comesIn is reaches for an exec session.
func (t tasks) comesIn(ctx context.Context, call, where string) error {
	if !t.w.farFails(where) {
		return nil
	}
	return t.fails(ctx, call, farSays[t.w.ecs.farHow].exec)
}

func (t tasks) fails(ctx context.Context, call string, failure error) error {
	switch t.w.ecs.farHow {
	case farSlow:
		t.w.met("a spoke is slow")
		return smithytime.SleepWithContext(ctx, farSlowFor)
	case farSilent:
		t.w.met("a spoke is silent")
		if err := smithytime.SleepWithContext(ctx, farWaits); err != nil {
			return err
		}
	default:
		t.w.met("a spoke refuses")
	}
	return t.a.p.Call(ctx, call, func() error { return fmt.Errorf("at spoke of %s: %w", abroad, failure) })
}

// unsure is what came of a launch in a spoke that gave no answer: one that was silent may
// run the task late.
func (t tasks) unsure(ctx context.Context, spec core.TaskSpec, err error) (string, error) {
	if t.w.ecs.farHow == farSilent {
		return t.asked(ctx, spec, "", err)
	}
	return "", err
}

// probeAbroad has no journal read where no session comes up.
func (t tasks) probeAbroad(ctx context.Context, requests []core.ProbeRequest, replies []core.ProbeReply) {
	waited := false
	for i, q := range requests {
		if !t.w.farFails(q.Target.Cluster) {
			continue
		}
		if how := t.w.ecs.farHow; !waited && how != farRefuses {
			waited = true
			if smithytime.SleepWithContext(ctx, map[int]time.Duration{farSlow: farSlowFor, farSilent: farWaits}[how]) != nil {
				return
			}
		}
		if e, ok := errors.AsType[*core.ExecError](farSays[t.w.ecs.farHow].exec); ok {
			replies[i] = core.ProbeReply{RunKey: q.RunKey, State: core.ProbeUnknown, Reason: e.Reason, Healing: e.Healing}
		}
	}
}

// Living lists the tasks of one cluster.
func (t tasks) Living(ctx context.Context, where string) ([]string, error) {
	if err := t.reaches(ctx, "list living tasks", where); err != nil {
		return nil, err
	}
	arns, err := t.View.Living(ctx, where)
	var out []string
	for _, arn := range arns {
		if t.w.stands(arn, where) {
			out = append(out, arn)
		}
	}
	return out, err
}

// befalls has something befall the installation.
func (w *world) befalls(c Choice) {
	switch c.Op {
	case OpSpoke:
		how := c.N % 4 % 3
		if w.ecs.farUntil <= now() || w.ecs.farHow != how {
			w.ecs.farSince = w.calls
		}
		w.ecs.farUntil, w.ecs.farHow = now().Add(time.Duration(c.N/4)*time.Second), how
		w.note("the spoke fails for %d s: %d", c.N/4, w.ecs.farHow)
	case OpTenantCap:
		w.tenantCap = mem.TaskSize.Price() * core.Dollars(c.N) / 3600
		w.note("a tenant's cap is %s", w.tenantCap)
	case OpMeter:
		w.ecs.meter = now().Add(time.Duration(c.N) * time.Second)
		w.note("a meter cannot be read for %d s", c.N)
	}
}

// homeSound reports whether ECS at home has done its work since a time.
func (w *world) homeSound(since core.Millis) bool {
	for _, until := range w.ecs.hidden {
		if until > since {
			return false
		}
	}
	return max(w.ecs.deaf, w.ecs.blind, w.ecs.mute) <= since
}

// judgeAbroad: what a spoke does not tell keeps nobody from being examined at home. One
// may wait for the next sweep where this one took long.
func (w *world) judgeAbroad(a *actor, begun core.Millis, report core.SweepReport) {
	if !w.config.Spokes || a.faulty || !w.homeSound(begun) {
		return
	}
	quick := now().Sub(begun) < w.limits.NewRunsFor/2
	for _, e := range report.Runs {
		run, r := w.oracle.seen[e.RunKey], w.runs[w.index(e.RunKey.Run)]
		if run.TaskARN == "" || run.Cluster != cluster || e.Outcome != core.Unknown || r.moved >= a.begun || run.ClaimUntil.Add(2*w.config.Skew) > begun {
			continue // it may have been another's when it was to be asked
		}
		if quick && (e.Reason == "task-unknown" || e.Reason == core.ReasonUnexamined) {
			w.accuse("%s does not look at run %s (%s), whose cluster answers (I1)", a.name, e.RunKey, e.Reason)
		}
	}
}

// judgeAudit: what a spoke does not tell is an error, and keeps nobody from being audited
// at home (I10).
func (w *world) judgeAudit(a *actor, begun core.Millis, report core.DailyReport, err error) {
	if !w.config.Spokes || a.faulty || !a.read || now().Sub(begun) > w.limits.SweepTimeout/2 {
		return
	}
	if w.homeSound(begun) && !report.Home {
		w.accuse("%s audits nothing at home, where ECS answers: %v (I10)", a.name, err)
	}
	if failed := w.ecs.farSince <= a.begun && w.ecs.farUntil > now() && w.ecs.farHow != farSlow; failed && err == nil {
		w.accuse("%s says nothing of a spoke that did not answer (I10)", a.name)
	}
}
