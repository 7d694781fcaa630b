package core

import (
	"context"
	"fmt"
)

// Debts tells whether a reclaim message is still about something.
type Debts struct {
	Runs      Runs
	Sandboxes Sandboxes
	Ledger    Ledger
}

// Owed reports whether anything of what a message is about is still to be done, and
// says by which record. A record that cannot be read is an error: unknown is not paid.
func (d Debts) Owed(ctx context.Context, job ReclaimJob) (owed bool, why string, err error) {
	if err := job.Validate(); err != nil {
		return false, "", err
	}
	if job.Run != "" {
		r, err := d.Runs.Run(ctx, RunKey{Tenant: job.Tenant, Run: job.Run})
		switch {
		case err != nil && !isNotFound(err):
			return false, "", err
		case err == nil && r.Row == RowReclaim && r.Instance == job.Instance:
			return true, "run " + r.RunKey.String() + " owes the end of its sandbox", nil
		}
	}
	if job.Kind == JobDue {
		box, err := d.Sandboxes.Sandbox(ctx, job.Key)
		switch {
		case err != nil && !isNotFound(err):
			return false, "", err
		case err == nil && box.Instance == job.Instance && box.DueAt != 0:
			return true, "its sandbox is idle", nil
		}
	}
	return d.row(ctx, job.Instance)
}

// row tells what the ledger says. A running task is no debt by itself: its run's mark
// or its idle row is.
func (d Debts) row(ctx context.Context, id InstanceID) (owed bool, why string, err error) {
	if id == "" {
		return false, "the run's mark is gone, and it never had a sandbox", nil
	}
	row, err := d.Ledger.Row(ctx, id)
	switch {
	case isNotFound(err):
		return false, "nothing is known of instance " + string(id), nil
	case err != nil:
		return false, "", err
	}
	return row.State == LedgerStopping, fmt.Sprintf("the ledger row of instance %s is %s", id, row.State), nil
}
