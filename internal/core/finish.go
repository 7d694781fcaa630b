package core

import (
	"context"
	"fmt"
)

// close finishes the run and announces its sandbox's end.
func (s *Sweep) close(ctx context.Context, j job, end ended, entry RunReport) (RunReport, Notice) {
	end.run = s.keepFiles(ctx, end.run)
	s.hold.free(ctx) // before the message: who captures the workspace begins at once
	finish, err := s.finishOf(j, end)
	if err != nil {
		return entry.failed(err), Notice{}
	}
	r, err := s.Runs.Update(ctx, j.run.RunKey, finish)
	if err != nil {
		return entry.failed(err), Notice{}
	}
	entry.Outcome, entry.Status, entry.ExitCode = outcomeOf(r, j.decision), r.Status, r.ExitCode
	entry.SavedUSD = j.task.Size.Hourly() * SavedTime(r, s.Limits).Hours()
	notice := endNotice(r, entry.Outcome, entry.Reason, j.decision.act != actConclude)
	if r.Row != RowReclaim {
		return entry, notice
	}
	if r.Reclaim == ReclaimIdle {
		s.tidy(ctx, r)
	}
	if err := s.Queue.Send(ctx, []ReclaimJob{jobOf(r)}); err != nil {
		entry.Outcome, entry.Error = ReclaimFailed, err.Error()
	}
	return entry, notice
}

// tidy removes the journal of a run whose sandbox is kept: its transcript is saved. It
// is not worth failing for; what it leaves, the daily prune finds.
func (s *Sweep) tidy(ctx context.Context, r Run) {
	if s.Journals == nil {
		return
	}
	control, err := s.Controls.Control(ctx)
	if err != nil || !control.Stops() || r.Hold.Live(nowMillis()) {
		return
	}
	if _, err := s.Journals.Remove(ctx, targetOf(r), []RunID{r.RunKey.Run}); err != nil {
		s.Logger.InfoContext(ctx, "tidy", "run", r.RunKey.String(), "err", err)
	}
}

// release lets the next sweep go on at once. It is a courtesy: a claim that stays
// lapses by itself. It outlives the run's budget, and the sweep where that is ended.
func (s *Sweep) release(ctx context.Context, r Run) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
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
	now := nowMillis()
	f := Finish{
		Epoch: r.Epoch, Nonce: r.ClaimNonce, Now: now, NotBefore: now.Add(s.Limits.RetryStop),
		Transcript: Transcript{Bytes: r.LogEnd, SHA256: sum, Complete: end.complete && r.LogOmitted == 0, Omitted: r.LogOmitted},
		Reclaim:    ReclaimEnd,
		ExpiresAt:  now.Add(s.Limits.Retention),
	}
	switch {
	case r.Sealed != nil:
		f.Status, f.Error = sealedStatus(r)
		f.ExitCode = new(r.Sealed.ExitCode)
		if r.Sealed.Side != "" {
			f.Transcript.Complete, f.Transcript.Side = false, r.Sealed.Side
		}
		if r.Reclaim == ReclaimIdle && !r.givenUp() {
			f.Reclaim = ReclaimIdle // only a clean end leaves a sandbox that may be used again
		}
	default:
		f.Status, f.Error = unsealedStatus(reasonOf(r, j.decision), j.decision.why)
		if r.Ending != nil && r.Ending.Reason == EndFailed && r.Error != nil {
			f.Error = r.Error // the host has said what
		}
	}
	f.Owes = owesCheckpoint(r, r.Sealed != nil, s.Checkpoint)
	if r.Instance == "" {
		f.Reclaim = ReclaimNone
	}
	return f, nil
}

// givenUp reports whether a user or the run's own host wished its end: then its sandbox
// ends too, whatever the agent made of its last seconds.
func (r Run) givenUp() bool {
	return r.CancelRequested != 0 || r.Ending != nil && (r.Ending.Reason == EndCancelled || r.Ending.Reason == EndFailed)
}

// sealedStatus is how a run ended whose agent ended. The status with which one ended that
// was told to is no error of its own, and its run's error says so.
func sealedStatus(r Run) (Status, *RunError) {
	exit, message := r.Sealed.ExitCode, r.Sealed.Stderr
	if exit == 0 {
		return Completed, nil
	}
	if why := r.toEnd(); why != "" {
		message = fmt.Sprintf("exit status %d, read after the run was to end (%s)", exit, why)
		if r.Sealed.Stderr != "" {
			message += ": " + r.Sealed.Stderr
		}
	}
	return Failed, &RunError{Code: "agent-exit", Message: message}
}

// toEnd is why a run was to end before its agent's end was read; "" for a run that was not.
func (r Run) toEnd() EndReason {
	switch {
	case r.Ending != nil:
		return r.Ending.Reason
	case r.CancelRequested != 0:
		return EndCancelled
	}
	return ""
}

// unsealedStatus: what a user or the clock ended is aborted, what ended by itself
// has failed.
func unsealedStatus(reason EndReason, why string) (Status, *RunError) {
	switch reason {
	case EndExpired:
		return Aborted, &RunError{Code: string(reason), Message: "the run's time was over"}
	case EndSpendCap:
		return Aborted, &RunError{Code: string(reason), Message: "the run's or its tenant's spend cap was reached"}
	case EndCancelled:
		return Aborted, &RunError{Code: string(reason), Message: "a user cancelled the run"}
	case EndDied:
		return Failed, &RunError{Code: string(reason), Message: "the agent died without a sentinel"}
	case EndNeverStarted:
		return Failed, &RunError{Code: string(reason), Message: "the run's agent never began"}
	case EndFailed:
		return Failed, &RunError{Code: string(reason), Message: "the run's host gave it up"}
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
	if d.act == actRescue {
		return Producing
	}
	switch reasonOf(r, d) {
	case EndExpired, EndSpendCap:
		return Expired
	case EndCancelled, EndFailed:
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
