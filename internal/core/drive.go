package core

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// errBudget is why a finalisation was paused.
var errBudget = errors.New("run budget spent")

// workAll does every job, a few at a time, and takes no new one after NewRunsFor.
func (s *Sweep) workAll(ctx context.Context, jobs []job, p policy, begun time.Time) []RunReport {
	jobs, held := s.admit(ctx, jobs, p)
	entries := make([]RunReport, len(jobs))
	pool(s.Limits.SweepWidth, len(jobs), func(i int) {
		entries[i] = RunReport{RunKey: jobs[i].run.RunKey, Outcome: BudgetExceeded, Reason: "sweep time is over"}
		if time.Since(begun) <= s.Limits.NewRunsFor {
			entries[i] = s.work(ctx, jobs[i], p)
		}
	})
	return append(entries, held...)
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
	why := stopped(control)
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
	return countEnds(ctx, s.Controls, s.Breaker, c, n, s.Limits)
}

func countEnds(ctx context.Context, controls Controls, breaker ControlWriter, c Control, n int, l Limits) (Control, error) {
	for range countTries {
		if n == 0 || !c.EndsUnsealed() {
			return c, nil
		}
		next, err := breaker.UpdateControl(ctx, CountEnds{
			Seen: c.Breaker, N: n, Now: MillisOf(time.Now()), Window: l.BreakerWindow, Most: l.BreakerMost,
		})
		if !Refused(err) {
			return next, err
		}
		if c, err = controls.Control(ctx); err != nil {
			return Control{}, err
		}
	}
	return Control{}, errors.New("count ends: the breaker moves too fast")
}

// work claims one run and drives it to its end, or as far as its budget lasts.
//
// Order: claim, whose condition holds everything that led here; then, from the
// claim's own image, the last appends; then finish, which is terminal status, closed
// log and reclaim mark in one write; then the message. A crash between any two
// leaves a record from which the next sweep goes on.
func (s *Sweep) work(ctx context.Context, j job, p policy) RunReport {
	entry := RunReport{RunKey: j.run.RunKey, Reason: j.decision.why}
	claimed, err := s.Runs.Update(ctx, j.run.RunKey, claimOf(j, MillisOf(time.Now()), s.Limits))
	if err != nil {
		return entry.failed(err)
	}
	budget, cancel := context.WithTimeoutCause(ctx, s.Limits.RunBudget, errBudget)
	defer cancel()
	end, err := s.drive(budget, j, claimed)
	if err != nil {
		entry = entry.failed(err)
		if context.Cause(budget) == errBudget {
			entry.Outcome, entry.BudgetSpent = BudgetExceeded, true
		}
		s.release(ctx, claimed)
		return entry
	}
	return s.close(ctx, j, end, entry)
}

// claimOf is the claim that j's decision needs.
func claimOf(j job, now Millis, l Limits) Claim {
	c := Claim{
		Seen: j.run.Epoch, Since: j.run.DetachedSince, Nonce: rand.Text(), Now: now, Until: now.Add(l.ClaimLease),
		TTLSeconds: j.run.TTLSeconds, Instance: j.run.Instance, TaskARN: j.run.TaskARN,
	}
	if j.run.Status == Interrupted {
		c.Since = j.run.InterruptedSince
	}
	reason := j.decision.reason
	c.AboutTask = j.decision.act == actConclude || reason == EndDied || reason == EndNeverStarted
	if j.run.Ending == nil && reason != EndLost {
		c.Ending = reason
	}
	return c
}

// failed enters an error. A refused write is somebody else's success.
func (e RunReport) failed(err error) RunReport {
	e.Outcome, e.Error = FailedSweep, err.Error()
	if Refused(err) {
		e.Outcome, e.Error, e.Reason = NotClaimed, "", err.Error()
	}
	return e
}

// ended is a run whose log is complete as far as it will ever be.
type ended struct {
	run      Run
	complete bool
}

// drive brings the log of a claimed run to its end. A seal in the claim's image
// always wins: nothing is asked or ended any more.
func (s *Sweep) drive(ctx context.Context, j job, r Run) (ended, error) {
	switch {
	case r.Sealed != nil:
		return ended{run: r, complete: true}, nil
	case j.decision.act == actConclude:
		return ended{run: r, complete: j.decision.reason == EndNeverStarted}, nil
	case j.decision.act == actFinalize:
		return s.finalize(ctx, j, r)
	}
	return s.end(ctx, r)
}

// finalize drains a finished agent's journal. What the probe brought along is used
// if the log still ends where the probe was asked from.
func (s *Sweep) finalize(ctx context.Context, j job, r Run) (ended, error) {
	if j.reply.Whole && r.LogEnd == j.run.LogEnd {
		sealed := &Sealed{ExitCode: j.reply.Exit, At: MillisOf(time.Now()), Stderr: j.reply.Stderr}
		r, err := s.Log.Append(ctx, r, j.reply.Rest, sealed)
		return ended{run: r, complete: true}, err
	}
	end, err := s.drain(ctx, r, false, j.reply.Stderr)
	if err == nil && end.run.Sealed == nil {
		err = fmt.Errorf("finalize run %s: the journal has no sentinel any more", r.RunKey)
	}
	return end, err
}

// end ends the agent, then drains what there is. While the journal cannot be read
// nothing is finished, until the drain grace is over; then the transcript is closed
// as incomplete (I5).
func (s *Sweep) end(ctx context.Context, r Run) (ended, error) {
	_, err := s.Prober.Terminate(ctx, TerminateRequest{RunKey: r.RunKey, Target: targetOf(r), Nonce: r.Nonce})
	if err == nil {
		var end ended
		if end, err = s.drain(ctx, r, true, ""); err == nil {
			return end, nil
		}
	}
	if Refused(err) || r.Ending == nil || MillisOf(time.Now()) < r.Ending.At.Add(s.Limits.DrainGrace) {
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

// drain appends the journal from the log's end, page by page, until the sentinel
// or, for an agent that is dead for sure, the journal's end.
func (s *Sweep) drain(ctx context.Context, r Run, dead bool, stderr string) (ended, error) {
	for {
		page, err := s.Prober.Page(ctx, PageRequest{
			RunKey: r.RunKey, Target: targetOf(r), Nonce: r.Nonce, From: r.LogEnd, Last: r.LogTail, Final: dead,
		})
		if err != nil {
			return ended{}, err
		}
		var sealed *Sealed
		if page.Exit != nil {
			sealed = &Sealed{ExitCode: *page.Exit, At: MillisOf(time.Now()), Stderr: stderr}
		}
		if len(page.Data) > 0 || sealed != nil {
			if r, err = s.Log.Append(ctx, r, page.Data, sealed); err != nil {
				return ended{}, err
			}
		}
		if sealed != nil || page.End {
			return ended{run: r, complete: sealed != nil || dead}, nil
		}
		if len(page.Data) == 0 {
			return ended{}, fmt.Errorf("drain run %s: a page at %d is empty before the journal's end", r.RunKey, r.LogEnd)
		}
	}
}

// close finishes the run and announces its sandbox's end.
func (s *Sweep) close(ctx context.Context, j job, end ended, entry RunReport) RunReport {
	finish, err := s.finishOf(j, end)
	if err != nil {
		return entry.failed(err)
	}
	r, err := s.Runs.Update(ctx, j.run.RunKey, finish)
	if err != nil {
		return entry.failed(err)
	}
	entry.Outcome, entry.Status, entry.ExitCode = outcomeOf(r, j.decision), r.Status, r.ExitCode
	if r.Row != RowReclaim {
		return entry
	}
	if err := s.Queue.Send(ctx, []ReclaimJob{jobOf(r)}); err != nil {
		entry.Outcome, entry.Error = ReclaimFailed, err.Error()
	}
	return entry
}

// release lets the next sweep go on at once. It is a courtesy: a claim that stays
// lapses by itself. It outlives the run's budget.
func (s *Sweep) release(ctx context.Context, r Run) {
	if _, err := s.Runs.Update(ctx, r.RunKey, Release{Epoch: r.Epoch}); err != nil && !Refused(err) {
		s.Logger.WarnContext(ctx, "release", "run", r.RunKey.String(), "err", err)
	}
}

// finishOf words a run's end: completed or failed by its own exit status if it is
// sealed, else by the reason for which it was ended.
func (s *Sweep) finishOf(j job, end ended) (Finish, error) {
	r := end.run
	sum, err := LogSHA256(r)
	if err != nil {
		return Finish{}, fmt.Errorf("finish run %s: %w", r.RunKey, err)
	}
	now := MillisOf(time.Now())
	f := Finish{
		Epoch: r.Epoch, Nonce: r.ClaimNonce, Now: now, NotBefore: now.Add(s.Limits.RetryStop),
		Transcript: Transcript{Bytes: r.LogEnd, SHA256: sum, Complete: end.complete},
		Reclaim:    ReclaimEnd,
	}
	switch {
	case r.Sealed != nil:
		f.Status, f.Error = sealedStatus(*r.Sealed)
		f.ExitCode = new(r.Sealed.ExitCode)
		if r.Reclaim == ReclaimIdle {
			f.Reclaim = ReclaimIdle // only a clean end leaves a sandbox that may be used again
		}
	default:
		f.Status, f.Error = unsealedStatus(reasonOf(r, j.decision), j.decision.why)
	}
	if r.Instance == "" {
		f.Reclaim = ReclaimNone
	}
	return f, nil
}

func sealedStatus(sealed Sealed) (Status, *RunError) {
	if sealed.ExitCode == 0 {
		return Completed, nil
	}
	return Failed, &RunError{Code: "agent-exit", Message: sealed.Stderr}
}

// unsealedStatus: what a user or the clock ended is aborted, what ended by itself
// has failed.
func unsealedStatus(reason EndReason, why string) (Status, *RunError) {
	switch reason {
	case EndExpired:
		return Aborted, &RunError{Code: string(reason), Message: "the run's time was over"}
	case EndCancelled:
		return Aborted, &RunError{Code: string(reason), Message: "a user cancelled the run"}
	case EndDied:
		return Failed, &RunError{Code: string(reason), Message: "the agent died without a sentinel"}
	case EndNeverStarted:
		return Failed, &RunError{Code: string(reason), Message: "the run's agent never began"}
	}
	return Failed, &RunError{Code: string(EndLost), Message: why}
}

// reasonOf is the reason on the record, which is final, else the decision's.
func reasonOf(r Run, d decision) EndReason {
	if r.Ending != nil {
		return r.Ending.Reason
	}
	return d.reason
}

// outcomeOf names what a decision comes to.
func outcomeOf(r Run, d decision) Outcome {
	switch reasonOf(r, d) {
	case EndExpired:
		return Expired
	case EndCancelled:
		return Cancelled
	case EndDied, EndNeverStarted:
		return Died
	case EndLost:
		if r.Sealed == nil {
			return Lost
		}
	}
	return Finalized
}
