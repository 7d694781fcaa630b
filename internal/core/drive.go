package core

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// Why a finalisation was paused: the next sweep goes on from the log's end.
var (
	errBudget = errors.New("run budget spent")
	errShare  = errors.New("the sweep's share of bytes is spent")
)

// releaseWithin bounds what follows where a run's budget is spent: one call.
const releaseWithin = 5 * time.Second

// workAll does every job, a few at a time, and begins none that might not end before
// the sweep's timeout.
func (s *Sweep) workAll(ctx context.Context, jobs []job, p policy, begun time.Time) ([]RunReport, []Notice) {
	jobs, held := s.admit(ctx, jobs, p)
	entries := make([]RunReport, len(jobs))
	notices := make([]Notice, len(jobs))
	a := newAllowance(s.Limits.SweepBytes)
	pool(s.Limits.SweepWidth, len(jobs), func(i int) {
		entries[i] = RunReport{RunKey: jobs[i].run.RunKey, Outcome: BudgetExceeded, Reason: "sweep time is over"}
		if time.Since(begun) <= s.Limits.lastStart() {
			entries[i], notices[i] = s.work(ctx, jobs[i], a)
		}
	})
	notices = slices.DeleteFunc(notices, func(n Notice) bool { return n.Type == "" })
	return append(entries, held...), notices
}

// admit lets through what may be ended, and reports the rest as held. Ends without a
// sentinel, a user's wish aside, are announced to the breaker before the first of
// them; where they are too many none of them happens.
func (s *Sweep) admit(ctx context.Context, jobs []job, p policy) ([]job, []RunReport) {
	fresh := 0
	for _, j := range jobs {
		if j.counts() && j.run.Ending == nil {
			fresh++
		}
	}
	control, err := s.count(ctx, p.control, fresh)
	if err == nil && control.EndsUnsealed() {
		return jobs, nil
	}
	why := control.Standing()
	if err != nil {
		why = err.Error()
	}
	var admitted []job
	var held []RunReport
	for _, j := range jobs {
		if !j.counts() {
			admitted = append(admitted, j)
			continue
		}
		held = append(held, RunReport{RunKey: j.run.RunKey, Outcome: Held, Reason: why})
	}
	return admitted, held
}

// counts reports whether a job ends a run that neither ended by itself nor was
// cancelled.
func (j job) counts() bool {
	return (j.decision.act == actEnd || j.decision.act == actConclude) && j.decision.reason != EndCancelled
}

// countTries bounds how often a count reads the breaker again that moved under it.
const countTries = 10

// count announces n ends to the breaker.
func (s *Sweep) count(ctx context.Context, c Control, n int) (Control, error) {
	return counting{s.Controls, s.Breaker, s.Announcer, s.Logger, s.Limits}.count(ctx, c, n)
}

// counting is what counts ends for the breaker.
type counting struct {
	controls  Controls
	breaker   ControlWriter
	announcer Announcer    // nil: nobody is told
	logger    *slog.Logger // nil: none
	limits    Limits
}

// count announces n ends before any of them happens, and tells others if they trip the
// breaker.
func (t counting) count(ctx context.Context, c Control, n int) (Control, error) {
	for range countTries {
		if n == 0 || !c.EndsUnsealed() {
			return c, nil
		}
		next, err := t.breaker.UpdateControl(ctx, CountEnds{
			Seen: c.Breaker, N: n, Now: nowMillis(), Window: t.limits.BreakerWindow, Most: t.limits.BreakerMost,
		})
		if err == nil && next.Breaker.TrippedAt != 0 {
			t.tell(ctx, next.Breaker)
		}
		if !Refused(err) {
			return next, err
		}
		if c, err = t.controls.Control(ctx); err != nil {
			return Control{}, err
		}
	}
	return Control{}, errors.New("count ends: the breaker moves too fast")
}

// tell says that the breaker has tripped. It is not worth failing for.
func (t counting) tell(ctx context.Context, b Breaker) {
	why := fmt.Sprintf("%d ends without a sentinel within %s, at most %d are let", b.Count, t.limits.BreakerWindow, t.limits.BreakerMost)
	if t.logger != nil {
		t.logger.WarnContext(ctx, "breaker", "reason", why, "since", b.TrippedAt)
	}
	if t.announcer == nil {
		return
	}
	err := t.announcer.Announce(ctx, []Notice{{Type: NoticeTripped, Reason: why, At: b.TrippedAt}})
	if err != nil && t.logger != nil {
		t.logger.WarnContext(ctx, "announce", "err", err)
	}
}

// work claims one run and drives it to its end, or as far as its budget lasts.
//
// Order: claim, whose condition holds everything that led here; then, from the
// claim's own image, the last appends; then finish, which is terminal status, closed
// log and reclaim mark in one write; then the message. A crash between any two
// leaves a record from which the next sweep goes on.
func (s *Sweep) work(ctx context.Context, j job, a *allowance) (RunReport, Notice) {
	entry := RunReport{RunKey: j.run.RunKey, Reason: j.decision.why}
	claimed, err := s.Runs.Update(ctx, j.run.RunKey, claimOf(j, nowMillis(), s.Limits))
	if err != nil {
		return entry.failed(err), Notice{}
	}
	budget, cancel := context.WithTimeoutCause(ctx, s.Limits.RunBudget, errBudget)
	defer cancel()
	s = s.holding(claimed)
	defer s.hold.free(ctx)
	if j.decision.act == actRescue && claimed.Sealed == nil {
		return s.rescue(budget, j, claimed, entry, a)
	}
	end, err := s.drive(budget, j, claimed, a)
	if blocked, ok := errors.AsType[*blockedError](err); ok {
		s.release(ctx, claimed)
		entry.Outcome, entry.Reason = Held, blocked.why
		return entry, Notice{}
	}
	if err != nil {
		entry = entry.failed(err)
		if context.Cause(budget) == errBudget || errors.Is(err, errShare) {
			entry.Outcome, entry.BudgetSpent = BudgetExceeded, true
		}
		s.release(ctx, claimed)
		return entry, Notice{}
	}
	return s.close(ctx, j, end, entry)
}

// holding is the sweep as it drives one run to its end: what reads the journal holds the
// container meanwhile, from its first session on.
func (s *Sweep) holding(r Run) *Sweep {
	one := *s
	one.hold = &execHold{sandboxes: s.Sandboxes, key: r.SandboxKey, instance: r.Instance, who: ExecOf(ExecDrain, r)}
	return &one
}

// claimOf is the claim that j's decision needs.
func claimOf(j job, now Millis, l Limits) Claim {
	c := Claim{
		Seen: j.run.Epoch, Since: j.run.DetachedSince, Nonce: rand.Text(), Now: now, Until: now.Add(l.ClaimLease),
		TTLSeconds: j.run.TTLSeconds, SpendCap: j.run.SpendCap, Instance: j.run.Instance, TaskARN: j.run.TaskARN,
	}
	if j.run.Status == Interrupted {
		c.Paused, c.Since = true, j.run.InterruptedSince
	}
	reason := j.decision.reason
	c.AboutTask = j.decision.act == actConclude || j.decision.act == actRescue || reason == EndDied || reason == EndNeverStarted
	if j.run.Ending == nil && reason != EndLost {
		c.Ending = reason
	}
	return c
}

// failed enters an error. A refused write is somebody else's success.
func (e RunReport) failed(err error) RunReport {
	e.Outcome, e.Error = FailedSweep, err.Error()
	if Refused(err) {
		e.Outcome, e.Error, e.Reason, e.Refused = NotClaimed, "", err.Error(), true
	}
	return e
}

// ended is a run whose log is complete as far as it will ever be.
type ended struct {
	run      Run
	complete bool
	endless  bool // its journal had no end, and the rest of it is left out
}

// drive brings the log of a claimed run to its end. A seal in the claim's image
// always wins: nothing is asked or ended any more.
func (s *Sweep) drive(ctx context.Context, j job, r Run, a *allowance) (ended, error) {
	switch {
	case r.Sealed != nil:
		return ended{run: r, complete: true}, nil
	case j.counts(), j.decision.act == actEnd:
		if err := s.unblocked(ctx, j); err != nil {
			return ended{}, err
		}
	}
	switch j.decision.act {
	case actConclude:
		return ended{run: r, complete: r.TaskARN == ""}, nil // without a task, no agent wrote anything
	case actFinalize:
		return s.finalize(ctx, j, r, a)
	}
	return s.end(ctx, r, a)
}

// rescue appends what the journal of a run has whose task is about to end. Unless its agent
// has ended meanwhile the run goes on: what comes after is for the sweep that finds the task
// gone, as far as the spool has it.
func (s *Sweep) rescue(ctx context.Context, j job, r Run, entry RunReport, a *allowance) (RunReport, Notice) {
	end, err := s.drain(ctx, r, false, a)
	if err == nil && end.run.Sealed != nil {
		j.decision.act = actFinalize
		return s.close(ctx, j, end, entry)
	}
	s.release(ctx, r)
	if err != nil {
		return entry.failed(err), Notice{}
	}
	entry.Outcome = Producing
	return entry, Notice{}
}

// blockedError is why a claimed run is not ended, or something not removed, now.
type blockedError struct{ why string }

func (e *blockedError) Error() string { return "kept back: " + e.why }

// unblocked reads the operator's settings after the claim, as whoever destroys must: what
// was set meanwhile is honoured (I13). Freeze and breaker let a user's wish be carried out.
func (s *Sweep) unblocked(ctx context.Context, j job) error {
	control, err := s.Controls.Control(ctx)
	if err != nil {
		return err
	}
	if !control.Acts() || j.counts() && !control.EndsUnsealed() {
		return &blockedError{control.Standing()}
	}
	return nil
}

// finalize drains a finished agent's journal. What the probe brought along is used
// if the log still ends where the probe was asked from.
func (s *Sweep) finalize(ctx context.Context, j job, r Run, a *allowance) (ended, error) {
	same := r.LogEnd == j.run.LogEnd
	if j.reply.Whole && same {
		sealed := &Sealed{ExitCode: j.reply.Exit, At: nowMillis(), Stderr: j.reply.Stderr}
		r, err := s.Log.Append(ctx, r, j.reply.Rest, sealed)
		return ended{run: r, complete: true}, err
	}
	if j.reply.Rewritten && same {
		return s.sealBeside(ctx, j, r, a)
	}
	end, err := s.drain(ctx, r, false, a)
	if isRewritten(err) {
		return s.sealBeside(ctx, j, r, a)
	}
	switch {
	case err != nil || end.run.Sealed != nil:
		return end, err
	case end.endless: // it has ended all the same: the probe has read its sentinel
		end.run, err = s.Log.Append(ctx, end.run, nil, &Sealed{ExitCode: j.reply.Exit, At: nowMillis(), Stderr: j.reply.Stderr})
		return end, err
	}
	return end, fmt.Errorf("finalize run %s: the journal has no sentinel any more", r.RunKey)
}

// end ends the agent, then drains what there is. While the journal cannot be read
// nothing is finished, until the drain grace is over; then the transcript is closed
// as incomplete (I5).
func (s *Sweep) end(ctx context.Context, r Run, a *allowance) (ended, error) {
	_, err := s.Prober.Terminate(ctx, TerminateRequest{RunKey: r.RunKey, Target: targetOf(r), Nonce: r.Nonce})
	if err == nil {
		var end ended
		if end, err = s.drain(ctx, r, true, a); err == nil {
			return end, nil
		}
	}
	if Refused(err) || errors.Is(err, errShare) {
		return ended{}, err
	}
	// A sandbox that never answers has used up the run's budget by now, each time.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	if !isRewritten(err) && !s.givesUp(ctx, r) {
		return ended{}, err
	}
	fresh, err := s.Runs.Run(ctx, r.RunKey)
	if err != nil {
		return ended{}, err
	}
	if fresh.Epoch != r.Epoch {
		return ended{}, &RefusedError{Op: "end", Record: "run " + r.RunKey.String(), Why: "epoch"}
	}
	return ended{run: fresh}, nil
}

// givesUp notes that an end failed, and reports whether it has for the whole drain
// grace. Only time in which it was tried counts: a freeze or a tripped breaker must not
// use the grace up.
func (s *Sweep) givesUp(ctx context.Context, r Run) bool {
	now := nowMillis()
	note, err := s.Notes.Note(ctx, r.RunKey)
	if err == nil {
		note = note.failing(now, s.Limits)
		err = s.Notes.PutNote(ctx, r.RunKey, note)
	}
	if err != nil {
		s.Logger.WarnContext(ctx, "note", "run", r.RunKey.String(), "err", err)
		return false
	}
	return now >= note.EndFailing.Add(s.Limits.DrainGrace)
}
