package core

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

func isNotFound(err error) bool { return errors.Is(err, ErrNotFound) }

// settle moves what is due among sandboxes: idle ones are announced, and open
// ledger rows get their task, their message or their end (DESIGN 4.2).
func (s *Sweep) settle(ctx context.Context, due []DueSandbox, report *SweepReport) {
	var jobs []ReclaimJob
	var mu sync.Mutex
	pool(s.Limits.SweepWidth, len(due), func(n int) {
		job, settled, err := s.settleOne(ctx, due[n])
		mu.Lock()
		defer mu.Unlock()
		report.Settled += settled
		switch {
		case err != nil && !Refused(err) && !isNotFound(err):
			report.Errors = append(report.Errors, err.Error())
		case job != nil:
			jobs = append(jobs, *job)
		}
	})
	s.send(ctx, jobs, report)
}

// settleOne looks at one due row and tells whether it moved it.
func (s *Sweep) settleOne(ctx context.Context, d DueSandbox) (*ReclaimJob, int, error) {
	if d.Instance != "" {
		return s.settleRow(ctx, d.Instance)
	}
	job, err := s.settleIdle(ctx, d.Key)
	return job, 0, err
}

func (s *Sweep) settleIdle(ctx context.Context, key SandboxKey) (*ReclaimJob, error) {
	box, err := s.Sandboxes.Sandbox(ctx, key)
	if err != nil || box.DueAt == 0 || box.DueAt > nowMillis() {
		return nil, err
	}
	return &ReclaimJob{Tenant: box.Material.Tenant, Key: key, Instance: box.Instance, Kind: JobDue}, nil
}

// settleRow looks at one open row. A launch that turns up late is condemned, never
// taken into service: whoever asked for it has given up.
func (s *Sweep) settleRow(ctx context.Context, id InstanceID) (*ReclaimJob, int, error) {
	now := nowMillis()
	row, err := s.Ledger.Row(ctx, id)
	if err != nil || row.DueAt == 0 || row.DueAt > now {
		return nil, 0, err
	}
	if row.State == LedgerStopping && row.TaskARN != "" {
		return &ReclaimJob{Tenant: row.Tenant, Instance: id, Kind: JobLedger}, 0, nil
	}
	if row.State != LedgerIntent && row.State != LedgerStopping {
		return nil, 0, nil
	}
	arn, err := s.findTask(ctx, row)
	if err != nil {
		return nil, 0, err
	}
	over := now >= row.LaunchUntil.Add(s.Limits.LaunchLag)
	var t LedgerTransition
	switch {
	case arn != "" && row.State == LedgerStopping:
		t = NameTask{TaskARN: arn, Now: now}
	case arn != "" && over:
		t = StopLaunch{TaskARN: arn, Why: "late launch", Now: now, DueAt: now.Add(s.Limits.RetryStop)}
	case over:
		t = CloseRow{From: row.State, Why: "no task was launched", Now: now, Quota: row.Quota, Tenant: row.Tenant, Metered: row.Metered}
	default:
		t = Postpone{State: row.State, Attempts: row.Attempts, DueAt: now.Add(s.Limits.RetryStop)}
	}
	moved, err := s.Ledger.UpdateRow(ctx, id, t)
	if err != nil {
		return nil, 0, err
	}
	if moved.State == LedgerStopping && moved.TaskARN != "" {
		return &ReclaimJob{Tenant: row.Tenant, Instance: id, Kind: JobLedger}, 1, nil
	}
	return nil, 1, nil
}

// findTask asks ECS for the task of a row whose RunTask answer was lost.
func (s *Sweep) findTask(ctx context.Context, row LedgerRow) (string, error) {
	arns, err := s.Tasks.StartedBy(ctx, row.Cluster, StartedBy(s.Install, row.Instance))
	if err != nil {
		return "", err
	}
	switch len(arns) {
	case 0:
		return "", nil
	case 1:
		return arns[0], nil
	}
	return "", fmt.Errorf("find task of instance %s: want at most one, ECS lists %d", row.Instance, len(arns))
}
