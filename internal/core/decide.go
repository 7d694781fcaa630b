package core

import (
	"cmp"
	"time"
)

// act is what a sweep does with one run.
type act int

const (
	actLeave    act = iota // nothing, and say why
	actAsk                 // ask its task and its journal first
	actSeal                // finish from the record: the log is sealed
	actRescue              // its task is about to end: append what its journal has, and let it go on
	actFinalize            // the agent has ended: drain, then finish
	actEnd                 // end the agent, drain, then finish
	actConclude            // nothing can be asked any more: finish as it is
)

// decision is what decide answers.
type decision struct {
	act     act
	reason  EndReason // of an end
	outcome Outcome   // of a run left alone
	why     string    // evidence, for the report
	healing Healing   // of an unknown
}

// evidence is what was found out about a run beside its record. The zero value
// knows nothing.
type evidence struct {
	asked      bool       // task and ledger were asked
	task       Task       // of the run's own TaskARN; unknown if ECS gave no answer
	allMissing bool       // ECS knows no task of the whole batch: a wrong cluster or account
	row        *LedgerRow // of the run's instance, if it has no task; nil: none
	probe      *ProbeReply
	note       Note // what earlier sweeps could not tell; zero: nothing, or not read
}

// policy is what an operator has settled.
type policy struct {
	limits  Limits
	control Control
	acts    bool // the sweep may write: it enforces, and is no plan
	named   bool // the runs were asked for by name
	unasked bool // no journal is read
	// spending is what the runs' tenants have spent, where they have a cap; one that is
	// not there is not known, and stops nothing.
	spending map[TenantID]Spending
}

// decide says what becomes of r at now. It is the whole of the sweep's judgement
// (DESIGN 5.2), in this order: terminal; sealed; ending or cancelled; expired, or its
// spend cap reached, and not held; task gone; never launched; else what the journal says.
func decide(r Run, e evidence, now Millis, p policy) decision {
	switch {
	case r.Status.Terminal():
		return decision{act: actLeave, outcome: NotClaimed, why: "terminal"}
	case r.Status == Interrupted && r.Row != RowPause && r.Row != RowCancel:
		return decision{act: actLeave, outcome: NotClaimed, why: "not-detached"}
	case r.Status == Running && r.Row != RowDetached:
		return decision{act: actLeave, outcome: NotClaimed, why: "attached"}
	case r.ClaimUntil > now:
		return decision{act: actLeave, outcome: NotClaimed, why: "claimed"}
	case r.Sealed != nil:
		return decision{act: actSeal, why: "sealed"}
	case !e.asked:
		return decision{act: actAsk}
	}
	if reason := ending(r, e, now, p); reason != "" {
		if reason != EndCancelled && p.control.Blocked() {
			return decision{act: actLeave, outcome: Held, why: p.control.Standing()}
		}
		return decision{act: endOrConclude(r, e, now, p), reason: reason, why: string(reason)}
	}
	if r.Status == Interrupted {
		return waiting(r, e, now, p)
	}
	return judge(r, e, now, p)
}

// waiting is for a paused run: a human is awaited, or its time is over and it is kept.
func waiting(r Run, e evidence, now Millis, p policy) decision {
	if why := kept(r, e, now, p); why != "" {
		return decision{act: actLeave, outcome: Held, why: why}
	}
	return decision{act: actLeave, outcome: Producing, why: "paused"}
}

// kept says what keeps a run whose time or cap is reached from its end, or "".
func kept(r Run, e evidence, now Millis, p policy) string {
	switch {
	case overdue(r, e, now, p) == "":
		return ""
	case r.Hold.Live(now):
		return "held"
	case p.control.Blocked():
		return p.control.Standing()
	}
	return ""
}

// ending names why r has to end, whatever its agent does, or "".
func ending(r Run, e evidence, now Millis, p policy) EndReason {
	switch {
	case r.Ending != nil:
		return r.Ending.Reason
	case r.CancelRequested != 0:
		return EndCancelled
	case r.Hold.Live(now) || p.control.Blocked():
		return ""
	}
	return overdue(r, e, now, p)
}

// overdue names the limit of r that is reached, whatever keeps it from its end, or "".
func overdue(r Run, e evidence, now Millis, p policy) EndReason {
	switch {
	case expired(r, now, p.limits):
		return EndExpired
	case overspent(r, e, now, p):
		return EndSpendCap
	}
	return ""
}

// overspent is inclusive, as expired is. Where no price is known, nothing is spent; and
// what its tenant has spent is no reason to end a run that has no task.
func overspent(r Run, e evidence, now Millis, p policy) bool {
	if r.TaskARN == "" {
		return false
	}
	at := capAt(r, priceOf(r, e.task.Size), p.limits)
	return at != 0 && now >= at || p.spending[r.Tenant].over(p.limits.TenantSpendCap)
}

// expired is inclusive: a run whose time is exactly over is expired (RP-3).
func expired(r Run, now Millis, l Limits) bool {
	if r.Status == Interrupted {
		return r.InterruptedSince != 0 && now >= r.InterruptedSince.Add(seconds(r.PauseSeconds, l.PauseTTL))
	}
	return r.DetachedSince != 0 && now >= r.DetachedSince.Add(seconds(r.TTLSeconds, l.RunTTL))
}

func seconds(n int64, otherwise time.Duration) time.Duration {
	if n > 0 {
		return time.Duration(n) * time.Second
	}
	return otherwise
}

// endOrConclude: an agent whose task is gone, or never was, needs no ending.
func endOrConclude(r Run, e evidence, now Millis, p policy) act {
	if r.TaskARN == "" || gone(r, e, now, p.limits) {
		return actConclude
	}
	return actEnd
}

// gone is true only on ECS's word about the run's own task (I2): it has stopped, or
// the agent's container has exited, which Fargate may know long before. A task that
// ECS gave us and does not know any more must be missing for a while, without a
// break.
func gone(r Run, e evidence, now Millis, l Limits) bool {
	_, exited := e.task.Exits[r.Container]
	return e.task.Life == TaskGone || exited ||
		e.task.Life == TaskMissing && e.note.missingFor(now) >= l.MissingGrace
}

// judge is for a run that nothing but its task and agent can end.
func judge(r Run, e evidence, now Millis, p policy) decision {
	switch {
	case r.TaskARN == "":
		return unlaunched(r, e, p)
	case gone(r, e, now, p.limits):
		if p.control.Blocked() {
			return decision{act: actLeave, outcome: Held, why: p.control.Standing()}
		}
		return decision{act: actConclude, reason: EndLost, why: describe(e.task)}
	case e.allMissing:
		return decision{act: actLeave, outcome: Unknown, healing: Configuration, why: "all-tasks-missing"}
	case e.task.Life == TaskUnknown && e.task.Reason != "":
		return decision{act: actLeave, outcome: Unknown, healing: Configuration, why: "task-refused"}
	case e.task.Life == TaskUnknown, e.task.Life == TaskMissing:
		return decision{act: actLeave, outcome: Unknown, healing: Retry, why: "task-" + string(cmp.Or(e.task.Life, "unknown"))}
	case e.probe == nil:
		return decision{act: actAsk}
	case e.task.Life == TaskLeaving:
		return leaving(*e.probe)
	}
	return probed(r, e, now, p)
}

// leaving is for a run whose task ECS is about to end: what its agent has written is saved
// while it can be. Only the task's end, or the agent's, ends the run.
func leaving(reply ProbeReply) decision {
	switch reply.State {
	case ProbeFinished:
		return decision{act: actFinalize, why: "sentinel"}
	case ProbeProducing:
		return decision{act: actRescue, outcome: Producing, why: "task-leaving"}
	}
	return decision{act: actLeave, outcome: Unknown, healing: Retry, why: "task-leaving"}
}

// unlaunched: a run without a task has not begun and never will, unless its launch
// is still under way. A row that another run has put under the same instance, as of two
// that adopt one task, is that run's launch.
func unlaunched(r Run, e evidence, p policy) decision {
	if r.Instance == "" || e.row == nil || e.row.State == LedgerClosed || e.row.Run != "" && r.RunKey != (RunKey{e.row.Tenant, e.row.Run}) {
		if p.control.Blocked() {
			return decision{act: actLeave, outcome: Held, why: p.control.Standing()}
		}
		return decision{act: actConclude, reason: EndNeverStarted, why: "never-launched"}
	}
	return decision{act: actLeave, outcome: Unknown, healing: Retry, why: "launch-" + string(e.row.State)}
}

// probed reads the journal's answer.
func probed(r Run, e evidence, now Millis, p policy) decision {
	reply := *e.probe
	switch {
	case reply.State == ProbeFinished:
		return decision{act: actFinalize, why: "sentinel"}
	case reply.State == ProbeUnknown:
		return decision{act: actLeave, outcome: Unknown, healing: reply.Healing, why: reply.Reason}
	case e.note.sure(reply.Dead, now, p.limits):
		return died(reply.Dead, p)
	case kept(r, e, now, p) != "":
		return decision{act: actLeave, outcome: Held, why: kept(r, e, now, p)}
	case reply.Dead != NotDead:
		return decision{act: actLeave, outcome: Producing, why: "dead-" + string(reply.Dead) + "-once"}
	}
	return decision{act: actLeave, outcome: Producing, why: "no-sentinel"}
}

// died is for an agent that was seen dead twice, far enough apart.
func died(dead Dead, p policy) decision {
	if p.control.Blocked() {
		return decision{act: actLeave, outcome: Held, why: p.control.Standing()}
	}
	reason := EndDied
	if dead == NeverBegan {
		reason = EndNeverStarted
	}
	return decision{act: actEnd, reason: reason, why: "dead-" + string(dead)}
}

// describe words a stopped task for the record.
func describe(t Task) string {
	switch {
	case t.Life == TaskMissing:
		return "ECS does not know the task any more"
	case t.StopCode == "":
		return t.Reason
	case t.Reason == "":
		return t.StopCode
	}
	return t.StopCode + ": " + t.Reason
}
