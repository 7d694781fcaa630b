package core

import (
	"context"
	"errors"
	"time"
)

// ender is a sweep that ends one run: what sweeps do with a run that has to end, a host
// that has it does alike.
func (s *Session) ender(r Run) *Sweep {
	sweep := &Sweep{
		Runs: s.runs(), Sandboxes: s.Launcher.Sandboxes, Log: s.Log, Spool: s.Spool, Prober: s.Prober, Notes: s.Notes, Queue: s.Launcher.Queue,
		Controls: s.Controls, Functions: s.Functions, Checkpoint: s.Checkpoint, Limits: s.limits(), Logger: s.log(),
	}
	return sweep.holding(r)
}

// Cancel records a user's wish that a run end, from any host. The host that has the run
// ends it in the same call; else whoever drives it does, or a sweep, always.
func (s *Session) Cancel(ctx context.Context, q CancelRequest) (EndReport, error) {
	if err := checkRun(q.RunKey); err != nil {
		return EndReport{}, err
	}
	if q.Host != "" {
		if err := checkHost(q.Host); err != nil {
			return EndReport{}, err
		}
	}
	r, err := RequestCancelOf(ctx, s.runs(), q.RunKey)
	if refusalOf(err) == "terminal" {
		return s.overAlready(ctx, "cancel", q.RunKey, q.Host)
	}
	if err != nil {
		return EndReport{}, unknownRun("cancel", q.RunKey, err)
	}
	if r.ClaimNonce != q.Host {
		s.nudge(ctx, r)
		return EndReport{Waiting: "host", Run: viewOf(r)}, nil
	}
	defer s.giveWay(ctx, q.RunKey)()
	return s.endOrLeave(ctx, r, EndRun{Reason: EndCancelled}, "abort")
}

// nudge has a cancelled run looked at by a sweep of its own: where its host is gone, nobody
// waits for the next one. That one finds it too.
func (s *Session) nudge(ctx context.Context, r Run) {
	if s.Nudger == nil {
		return
	}
	if err := s.Nudger.Nudge(ctx, r.RunKey); err != nil {
		s.log().WarnContext(ctx, "nudge", "phase", "abort", "run", r.RunKey.String(), "err", err)
	}
}

// overAlready is for the end of a run that has ended: its own host has ended it.
func (s *Session) overAlready(ctx context.Context, op string, k RunKey, host string) (EndReport, error) {
	r, err := s.runs().Run(ctx, k)
	switch {
	case err != nil:
		return EndReport{}, err
	case host == "" || r.ClaimNonce != host || r.Ending == nil:
		return EndReport{}, refusedRun(op, k, "terminal-run")
	}
	return EndReport{Ended: true, Run: viewOf(r)}, s.announce(ctx, r)
}

// Fail has a run's host give it up: what a cancel does, with the host's error.
func (s *Session) Fail(ctx context.Context, q FailRequest) (EndReport, error) {
	if err := q.check(); err != nil {
		return EndReport{}, err
	}
	r, err := s.mine(ctx, "fail", q.RunKey, q.Host)
	switch {
	case err != nil:
		return EndReport{}, err
	case r.Status.Terminal():
		return EndReport{Ended: true, Run: viewOf(r)}, s.announce(ctx, r)
	}
	defer s.giveWay(ctx, q.RunKey)()
	report, err := s.endOrLeave(ctx, r, EndRun{Reason: EndFailed, Error: new(RunError(q.Error))}, "error")
	if err == nil && r.Ending == nil && gaveUp(report, q.Error) {
		s.hooks().tell(ctx, HookError, r, ErrorDetail(q.Error))
	}
	return report, err
}

// gaveUp reports whether a run ended, or ends, with its host's error: one whose agent had
// ended before ends as that did.
func gaveUp(report EndReport, host RunFault) bool {
	v := report.Run
	return v.Ending == EndFailed && (!report.Ended || v.Error != nil && *v.Error == host)
}

// endOrLeave ends a run whose end is recorded. What fails is logged: the next call or a
// sweep goes on.
func (s *Session) endOrLeave(ctx context.Context, r Run, why EndRun, phase string) (EndReport, error) {
	ended, err := s.end(ctx, r, why)
	if err == nil {
		return EndReport{Ended: true, Run: viewOf(ended)}, nil
	}
	s.log().WarnContext(ctx, "end run", "phase", phase, "run", r.RunKey.String(), "err", err)
	fresh, readErr := s.runs().Run(ctx, r.RunKey)
	switch {
	case readErr != nil:
		return EndReport{}, errors.Join(err, readErr)
	case fresh.Epoch != r.Epoch:
		return EndReport{}, refusedRun("end", r.RunKey, claimLost)
	case fresh.Ending == nil && fresh.CancelRequested == 0 && fresh.Sealed == nil:
		return EndReport{}, err // nothing is recorded: nobody would go on
	}
	reason, _ := reasonFor(err)
	return EndReport{Waiting: reason, Run: viewOf(fresh)}, nil
}

// end is the end of a run by its own host. Order: the decision, which is final and keeps
// an agent from beginning; the agent's end and the last of its journal; terminal status
// and mark; the message; the lease.
func (s *Session) end(ctx context.Context, r Run, why EndRun) (Run, error) {
	decided, err := s.decide(ctx, r, why)
	switch {
	case err != nil:
		return Run{}, err
	case decided.Epoch != r.Epoch || decided.Status.Terminal():
		return Run{}, refusedRun("end", r.RunKey, claimLost)
	}
	ender := s.ender(decided)
	defer ender.hold.free(ctx)
	over := ended{run: decided, complete: true}
	if decided.Sealed == nil && s.begun(decided) {
		if over, err = ender.end(ctx, decided, newAllowance(s.limits().SweepBytes)); err != nil {
			return Run{}, err
		}
	}
	over.run = ender.keepFiles(ctx, over.run)
	ender.hold.free(ctx)
	finish, err := ender.finishOf(job{run: over.run, decision: decision{reason: why.Reason}}, over)
	if err != nil {
		return Run{}, err
	}
	if s.spared(decided) {
		finish.Reclaim, finish.Owes = ReclaimIdle, decided.Start.Owes
	}
	return s.conclude(ctx, r, finish)
}

// decide writes that a run ends, or finds that it is decided, or sealed, already. From
// then on a host that is not heard of keeps a sweep away no longer than its own next call
// may take.
func (s *Session) decide(ctx context.Context, r Run, why EndRun) (Run, error) {
	for range rowTries {
		why.Epoch, why.Now, why.Row = r.Epoch, nowMillis(), r.Row
		why.Until = why.Now.Add(min(EndGrace, s.limits().Attachment))
		decided, err := s.runs().Update(ctx, r.RunKey, why)
		switch refusalOf(err) {
		case "ending", "sealed":
			return s.runs().Run(ctx, r.RunKey)
		case "row":
			if decided, err = s.runs().Run(ctx, r.RunKey); err != nil || decided.Epoch != r.Epoch {
				return decided, err
			}
			r = decided
			continue
		}
		return decided, err
	}
	return Run{}, refusedRun("end", r.RunKey, "row")
}

// EndGrace is how long a sweep leaves the end of a run to the host that has decided it.
const EndGrace = 30 * time.Second

// begun reports whether the agent of a run may have begun; that of an adopted one has.
func (s *Session) begun(r Run) bool {
	return r.TaskARN != "" && (!r.Start.Hosted || r.Start.AskedAt != 0)
}

// spared reports whether the sandbox of a run that its host gives up goes back to its
// thread: it was there before the run, and no agent of it ever began (EN-11).
func (s *Session) spared(r Run) bool {
	return r.Sealed == nil && !s.begun(r) && r.TaskARN != "" && r.Start.Resumed && r.Ending != nil && r.Ending.Reason == EndFailed
}

// conclude writes the end of a run, announces its mark, gives the lease back, and tells
// other systems.
func (s *Session) conclude(ctx context.Context, r Run, t Finish) (Run, error) {
	r, err := s.runs().Update(ctx, r.RunKey, t)
	if err != nil {
		return Run{}, err
	}
	s.giveBack(ctx, r, phaseOf(r))
	if err := s.announce(ctx, r); err != nil {
		s.log().WarnContext(ctx, "announce end", "phase", string(phaseOf(r)), "run", r.RunKey.String(), "err", err)
	}
	s.tell(ctx, r, true)
	return r, nil
}

// byHost is the evidence of an end that no sweep found.
const byHost = "ended by its host"

// tell tells other systems of a run that its host has ended, and whether its task lived
// until then, as a sweep does of those that it ends. It is not worth failing for.
func (s *Session) tell(ctx context.Context, r Run, lived bool) {
	if s.Launcher.Announcer == nil {
		return
	}
	if err := s.Launcher.Announcer.Announce(ctx, []Notice{endNotice(r, outcomeOf(r, decision{}), byHost, lived)}); err != nil {
		s.log().WarnContext(ctx, "announce", "run", r.RunKey.String(), "err", err)
	}
}

// announce sends the message of an ended run's mark, where there is one. A sweep sends
// it again.
func (s *Session) announce(ctx context.Context, r Run) error {
	if r.Row != RowReclaim {
		return nil
	}
	return s.Launcher.Queue.Send(ctx, []ReclaimJob{jobOf(r)})
}
