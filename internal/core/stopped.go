package core

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// StoppedTask is ECS's news that a task has stopped, or is about to. Events come late,
// twice or never: it makes the sweep look now, and proves nothing (I3).
type StoppedTask struct {
	ARN       string
	StartedBy string
	At        Millis
	// Leaving says that the task still runs, and ECS ends it: capacity that Spot takes
	// back, a host that is retired, or somebody who stops it. Its containers have until
	// their stop timeout, at most two minutes.
	Leaving bool
}

// TaskStopped follows the news to the run or the ledger row that it concerns, and
// looks there at once. News of a task that is not this installation's is no work, nor is
// that of an end which is its own.
func (s *Sweep) TaskStopped(ctx context.Context, task StoppedTask) (SweepReport, error) {
	control, err := s.Controls.Control(ctx)
	if err != nil {
		return SweepReport{}, fmt.Errorf("task stopped: %w", err)
	}
	if !control.Acts() {
		return newReport(), nil
	}
	row, err := s.rowOfTask(ctx, task)
	switch {
	case isNotFound(err) || err == nil && row.TaskARN != "" && row.TaskARN != task.ARN:
		return newReport(), nil
	case err != nil:
		return SweepReport{}, fmt.Errorf("task stopped: %w", err)
	case task.Leaving && row.State != LedgerRunning:
		return newReport(), nil
	case row.State == LedgerStopping:
		report := newReport()
		report.Stopped = s.stoppedOf(ctx, row, task.At)
		s.send(ctx, []ReclaimJob{{Tenant: row.Tenant, Instance: row.Instance, Kind: JobLedger}}, &report)
		return report, nil
	case row.State == LedgerClosed:
		report := newReport()
		report.Stopped = s.stoppedOf(ctx, row, task.At)
		return report, nil
	case row.State != LedgerRunning:
		return newReport(), nil
	}
	return s.hint(ctx, row, task)
}

// rowOfTask is the ledger row of a task: by its name where this installation started it,
// else by its ARN, where it was adopted.
func (s *Sweep) rowOfTask(ctx context.Context, task StoppedTask) (LedgerRow, error) {
	if id, ours := strings.CutPrefix(task.StartedBy, s.Install+"/"); ours {
		return s.Ledger.Row(ctx, InstanceID(id))
	}
	for n := range adoptions {
		row, err := s.Ledger.Row(ctx, adoptedInstance(task.ARN, n))
		if err != nil || row.State != LedgerClosed {
			return row, err
		}
	}
	return LedgerRow{}, ErrNotFound
}

// stoppedOf tells how long after its agent a condemned task ended; nil where that is not
// known. It is a measure only: what cannot be read is left out.
func (s *Sweep) stoppedOf(ctx context.Context, row LedgerRow, at Millis) *Stopped {
	r, err := s.Runs.Run(ctx, RunKey{Tenant: row.Tenant, Run: row.Run})
	if err != nil || r.Instance != row.Instance {
		return nil
	}
	out := Stopped{RunKey: r.RunKey, At: at}
	switch {
	case r.ExitedAt != 0:
		out.AgentEnded = r.ExitedAt
	case r.Sealed != nil:
		out.AgentEnded = r.Sealed.At
	case r.Ending != nil:
		out.AgentEnded = r.Ending.At
	default:
		return nil
	}
	return &out
}

// Nudged follows an agent's own word that it has ended: the run is looked at now. It
// proves nothing (I3); the journal does.
func (s *Sweep) Nudged(ctx context.Context, key RunKey) (SweepReport, error) {
	control, err := s.Controls.Control(ctx)
	if err != nil {
		return SweepReport{}, fmt.Errorf("nudge: %w", err)
	}
	r, err := s.Runs.Run(ctx, key)
	switch {
	case isNotFound(err) || err == nil && (!control.Acts() || r.Status.Terminal()):
		return newReport(), nil // a nudge is worth no error
	case err != nil:
		return SweepReport{}, fmt.Errorf("nudge: run %s: %w", key, err)
	}
	if r.CancelRequested != 0 {
		return s.cancelNow(ctx, r)
	}
	now := nowMillis()
	return s.lookNow(ctx, r, Hint{ExitedAt: now, TaskARN: r.TaskARN})
}

// cancelNow ends a run whose end a user wished, as soon as its host has had its say.
func (s *Sweep) cancelNow(ctx context.Context, r Run) (SweepReport, error) {
	due := r.Row == RowCancel || r.Row == RowDetached
	if !due || r.Row == RowCancel && r.DueAt > nowMillis().Add(CancelGrace) {
		return newReport(), nil
	}
	if r.Row == RowCancel && !waitUntil(ctx, r.DueAt.here()) {
		return newReport(), nil // the next sweep finds it due
	}
	return s.Run(ctx, SweepRequest{Runs: []RunKey{r.RunKey}})
}

// hint tells the run that the sandbox serves now. An attached run lapses soon, so
// that a host that still lives can say so; a detached one is swept at once.
func (s *Sweep) hint(ctx context.Context, row LedgerRow, task StoppedTask) (SweepReport, error) {
	box, err := s.Sandboxes.Sandbox(ctx, row.Key)
	if err != nil {
		return newReport(), ignoreNotFound(err)
	}
	key := RunKey{Tenant: box.Material.Tenant, Run: box.LatestRun}
	r, err := s.Runs.Run(ctx, key)
	if err != nil {
		return newReport(), ignoreNotFound(err)
	}
	if task.Leaving {
		return s.leave(ctx, r, box)
	}
	return s.lookNow(ctx, r, Hint{TaskARN: task.ARN, TaskStoppedAt: task.At})
}

// leave has saved what can be saved of a run whose task is about to end: reclaim has the
// workspace stored meanwhile, and the sweep drains the journal. Both need the container,
// which one of them has at a time: the drain asks again, and reclaim is asked again once the
// drain is over, for nobody else will in the minutes that are left. An attached run's host
// drains, if it lives; the run lapses soon, in case it does not.
func (s *Sweep) leave(ctx context.Context, r Run, box Sandbox) (SweepReport, error) {
	report := newReport()
	var stores []ReclaimJob
	switch {
	case r.Status.Terminal() && r.Row == RowReclaim:
		s.send(ctx, []ReclaimJob{jobOf(r)}, &report) // what it owes is stored now or never
		return report, nil
	case r.Status.Terminal():
		return report, nil
	case keepsWorkspace(r, s.Checkpoint):
		stores = []ReclaimJob{{Tenant: r.Tenant, Run: r.RunKey.Run, Key: box.Key, Instance: box.Instance, Kind: JobLeaving}}
		s.send(ctx, stores, &report)
	}
	looked, err := s.lookNow(ctx, r, Hint{TaskARN: r.TaskARN})
	for range leaveTries {
		if err != nil || !unanswered(looked, r.RunKey) || !waitUntil(ctx, time.Now().Add(leaveRetry)) {
			break
		}
		looked, err = s.Run(ctx, SweepRequest{Runs: []RunKey{r.RunKey}})
	}
	if len(stores) > 0 && len(looked.Runs) > 0 {
		s.send(ctx, stores, &report)
	}
	looked.Resent += report.Resent
	looked.Errors = append(looked.Errors, report.Errors...)
	return looked, err
}

// A task that is about to end is asked again before the next sweep finds it gone. Whoever
// keeps its exec session, as the start of the capture does, lets it go in seconds.
const (
	leaveTries = 5
	leaveRetry = 3 * time.Second
)

// unanswered reports whether a sweep learned nothing of a run, or could not save what it
// learned, for a reason that passes.
func unanswered(report SweepReport, key RunKey) bool {
	return slices.ContainsFunc(report.Runs, func(e RunReport) bool {
		return e.RunKey == key && (e.Outcome == Unknown && e.Healing == Retry || e.Outcome == FailedSweep)
	})
}

// lookNow writes a hint and, where no host may still have its say, sweeps the run.
func (s *Sweep) lookNow(ctx context.Context, r Run, h Hint) (SweepReport, error) {
	r, err := s.hinted(ctx, r, h)
	if err != nil {
		return SweepReport{}, fmt.Errorf("hint: %w", err)
	}
	if r.Row != RowDetached {
		return newReport(), nil
	}
	return s.Run(ctx, SweepRequest{Runs: []RunKey{r.RunKey}})
}

// hinted writes a hint. One that meets another's, as the news of a task's end meets that of
// its notice, is written again over what it left; what is refused for another reason is
// worth nothing any more.
func (s *Sweep) hinted(ctx context.Context, r Run, h Hint) (Run, error) {
	for range rowTries {
		h.Row, h.DueAt = r.Row, r.DueAt
		h.Lapse = s.Limits.hintLapse(r, h)
		after, err := s.Runs.Update(ctx, r.RunKey, h)
		switch {
		case err == nil:
			return after, nil
		case refusalOf(err) != "row":
			return r, ignoreRefused(err)
		}
		if r, err = s.Runs.Run(ctx, r.RunKey); err != nil {
			return r, err
		}
	}
	return r, nil
}
