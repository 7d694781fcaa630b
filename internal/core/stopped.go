package core

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// StoppedTask is ECS's news that a task has stopped. Events come late, twice or
// never: it makes the sweep look now, and proves nothing (I3).
type StoppedTask struct {
	ARN       string
	StartedBy string
	At        Millis
}

// TaskStopped follows the news to the run or the ledger row that it concerns, and
// looks there at once. News of a task that is not this installation's is no work.
func (s *Sweep) TaskStopped(ctx context.Context, task StoppedTask) (SweepReport, error) {
	id, ours := strings.CutPrefix(task.StartedBy, s.Install+"/")
	control, err := s.Controls.Control(ctx)
	if err != nil {
		return SweepReport{}, fmt.Errorf("task stopped: %w", err)
	}
	if !ours || !control.Acts() {
		return newReport(), nil
	}
	row, err := s.Ledger.Row(ctx, InstanceID(id))
	switch {
	case isNotFound(err) || err == nil && row.TaskARN != "" && row.TaskARN != task.ARN:
		return newReport(), nil
	case err != nil:
		return SweepReport{}, fmt.Errorf("task stopped: %w", err)
	case row.State == LedgerStopping:
		report := newReport()
		s.send(ctx, []ReclaimJob{{Tenant: row.Tenant, Instance: row.Instance, Kind: JobLedger}}, &report)
		return report, nil
	case row.State != LedgerRunning:
		return newReport(), nil
	}
	return s.hint(ctx, row, task)
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
	lapse := min(r.DueAt, MillisOf(time.Now()).Add(s.Limits.HintLapse))
	h := Hint{TaskARN: task.ARN, TaskStoppedAt: task.At, Row: r.Row, DueAt: r.DueAt, Lapse: lapse}
	if _, err := s.Runs.Update(ctx, key, h); err != nil && !Refused(err) {
		return SweepReport{}, fmt.Errorf("task stopped: %w", err)
	}
	if r.Row != RowDetached {
		return newReport(), nil
	}
	return s.Run(ctx, SweepRequest{Runs: []RunKey{key}})
}
