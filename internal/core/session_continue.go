package core

import (
	"context"
	"slices"
	"syscall"
)

// goOn begins a run that goes on for a paused one, or finds that another call of its host has
// begun it meanwhile, which ended the parent or moved its sandbox.
func (s *Session) goOn(ctx context.Context, st *starting, child Run) (err error) {
	for range rowTries {
		if err = s.resumeParent(ctx, st, child); !Refused(err) {
			return err
		}
		r, found := s.runs().Run(ctx, child.RunKey)
		switch {
		case found == nil:
			st.run = r
			return s.own(st.q, r)
		case !isNotFound(found):
			return found
		case final(err):
			return err
		}
	}
	return refusedRun("continue", RunKey{Tenant: st.q.Tenant, Run: st.q.Parent}, "attached-elsewhere")
}

// final reports whether a refusal is one that start promises: any other tells only that a
// record moved between its reading and the write.
func final(err error) bool { return slices.Contains(refusals["start"], refusalOf(err)) }

// resumeParent begins a run that goes on for a paused one. Order: the pause is claimed,
// so that no sweep ends it under our hands; its agent is ended and its journal drained;
// then one transaction ends the parent, passes its sandbox on, and begins the child.
func (s *Session) resumeParent(ctx context.Context, st *starting, child Run) error {
	defer s.giveWay(ctx, RunKey{Tenant: st.q.Tenant, Run: st.q.Parent})()
	parent, err := s.claimPaused(ctx, st)
	if err != nil {
		return err
	}
	over, gone, err := s.settleParent(ctx, parent)
	if err != nil {
		return err
	}
	finish, err := s.ender(over.run).finishOf(job{run: over.run}, over)
	if err != nil {
		return err
	}
	if s := over.run.Sealed; s == nil || ofSignal(s.ExitCode) && s.At >= parent.InterruptedSince {
		finish.Status, finish.Error = Completed, nil // a human's answer continues it
	}
	// An agent that nobody could end may work on in there.
	unsettled := gone || !over.complete && over.run.Sealed == nil
	box, err := s.heir(ctx, st, over.run, unsettled)
	if err != nil {
		return err
	}
	if !s.begun(over.run) {
		finish.Owes = over.run.Start.Owes // it has done no work of its own
	}
	child.Start.Parent = parent.RunKey.Run
	if box != nil {
		child.Start.Owes = finish.Owes
		finish.Reclaim, finish.Owes = ReclaimNone, false
		child.Start.Resumed = true
		child = bound(child, *box)
	}
	t := Continued{Parent: parent.RunKey, End: finish, Child: child, Sandbox: box}
	if err := s.Binds.Continue(ctx, t); err != nil {
		return err
	}
	ended, err := s.runs().Run(ctx, parent.RunKey)
	if err == nil {
		s.tell(ctx, ended, !gone)
		err = s.announce(ctx, ended)
	}
	if err != nil {
		s.log().WarnContext(ctx, "announce end", "phase", string(phaseFinish), "run", parent.RunKey.String(), "err", err)
	}
	st.run, err = s.runs().Run(ctx, st.q.RunKey)
	return err
}

// ofSignal reports whether an exit status is that of an agent which a terminate ended.
func ofSignal(exit int) bool {
	return exit == 128+int(syscall.SIGTERM) || exit == 128+int(syscall.SIGKILL)
}

// claimPaused takes a paused run for its continuation; asked again it has it.
func (s *Session) claimPaused(ctx context.Context, st *starting) (Run, error) {
	key := RunKey{Tenant: st.q.Tenant, Run: st.q.Parent}
	r, err := s.runs().Run(ctx, key)
	if err != nil {
		return Run{}, unknownRun("start", key, err)
	}
	why := failing(
		check{!r.Status.Terminal(), "terminal-run"},
		check{r.Status == Interrupted, "thread-busy"},
		check{r.CancelRequested == 0, "cancel-requested"},
		check{r.Ending == nil, "too-late"},
		check{r.Thread == st.q.Thread, "another-thread"},
	)
	if why != "" {
		return Run{}, refusedRun("continue", key, why)
	}
	nonce, now := "continue:"+string(st.q.Run)+":"+st.q.Host, nowMillis()
	if r.ClaimNonce == nonce {
		return r, nil
	}
	claim := Claim{Seen: r.Epoch, Paused: true, Since: r.InterruptedSince, Nonce: nonce, Now: now, Until: now.Add(s.limits().ClaimLease)}
	claimed, err := s.runs().Update(ctx, key, claim)
	if Refused(err) {
		return Run{}, refusedRun("continue", key, "attached-elsewhere")
	}
	return claimed, err
}

// settleParent ends what is left of a paused run's agent and drains its journal.
func (s *Session) settleParent(ctx context.Context, r Run) (_ ended, gone bool, err error) {
	if r.Sealed != nil || !s.begun(r) {
		return ended{run: r, complete: true}, false, nil
	}
	ender := s.ender(r)
	defer ender.hold.free(ctx)
	over, err := ender.end(ctx, r, newAllowance(s.limits().SweepBytes))
	if err == nil {
		return over, false, nil
	}
	tasks, describeErr := s.Launcher.Describer.Describe(ctx, r.Cluster, []string{r.TaskARN})
	if describeErr != nil || len(tasks) != 1 || tasks[0].Life != TaskGone {
		return ended{}, false, err
	}
	return ended{run: r}, true, nil
}

// heir is the sandbox of a paused run, if the run that goes on may have it: one in which no
// agent may have begun yet may be half prepared, unless it was there before that run.
func (s *Session) heir(ctx context.Context, st *starting, parent Run, gone bool) (*Sandbox, error) {
	if gone || parent.TaskARN == "" || !s.begun(parent) && !parent.Start.Resumed {
		return nil, nil
	}
	box, err := s.Launcher.Sandboxes.Sandbox(ctx, st.key)
	switch {
	case isNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case box.Material != st.material || box.Instance != parent.Instance || box.LatestRun != parent.RunKey.Run || box.Reclaiming != "":
		return nil, nil
	}
	return &box, nil
}
