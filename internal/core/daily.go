package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// TaskLister lists every task of a cluster.
type TaskLister interface {
	// Living lists the ARNs of the tasks of a cluster that are not to be stopped, all
	// pages. A listing that failed is an error (I10).
	Living(ctx context.Context, cluster string) ([]string, error)
}

// Leak is a task that runs and that no open ledger row names.
type Leak struct {
	TaskARN   string `json:"taskArn"`
	StartedBy string `json:"startedBy"`
	Since     Millis `json:"since"`
	Why       string `json:"why"`
	Stopping  bool   `json:"stopping,omitempty"` // handed to reclaim, since the policy says so

	cluster  string
	instance InstanceID
}

// DailyReport is what the daily audit and prune found.
type DailyReport struct {
	Tasks int `json:"tasks"` // living in the cluster
	Ours  int `json:"ours"`  // of them started by this installation
	Idle  int `json:"idle"`  // of those, kept warm for their thread's next turn
	// Home says that the tasks of the installation's own cluster could be listed: without
	// them no number here is to be measured.
	Home   bool   `json:"-"`
	Leaked []Leak `json:"leaked"`
	// IdleBurnUSD is what tasks without a live run cost, leaked ones and those kept warm,
	// dollars an hour.
	IdleBurnUSD float64       `json:"idleBurnUSD"`
	Pruned      []PruneReport `json:"pruned"`
	Errors      []string      `json:"errors,omitempty"`
	Skipped     string        `json:"skipped,omitempty"` // why nothing was pruned
}

// Daily compares ECS with the ledger, and removes leftover journals from idle
// sandboxes. The cloud is listed first and the records are read after it: a task
// that began meanwhile has its row before it exists (I6). It fails only where the
// tasks of a cluster cannot be listed; those of the others are audited all the same,
// and reported.
func (s *Sweep) Daily(ctx context.Context) (DailyReport, error) {
	return s.compare(ctx, "daily", func(control Control, report *DailyReport) {
		if control.Stops() {
			s.prune(ctx, report)
		} else {
			report.Skipped = control.Standing()
		}
	})
}

// Audit is the part of [Sweep.Daily] that compares ECS with the ledger.
func (s *Sweep) Audit(ctx context.Context) (DailyReport, error) {
	return s.compare(ctx, "audit", func(_ Control, report *DailyReport) { report.Skipped = "an audit removes no journals" })
}

// compare audits, does what else is to be done, and tells of both.
func (s *Sweep) compare(ctx context.Context, what string, then func(Control, *DailyReport)) (DailyReport, error) {
	control, err := s.Controls.Control(ctx)
	if err != nil {
		return DailyReport{}, fmt.Errorf("%s: %w", what, err)
	}
	report := DailyReport{Leaked: []Leak{}, Pruned: []PruneReport{}}
	unlisted := s.audit(ctx, control, &report)
	then(control, &report)
	for _, l := range report.Leaked {
		s.Logger.WarnContext(ctx, "leak", "task", l.TaskARN, "startedBy", l.StartedBy, "since", l.Since, "reason", l.Why, "stopping", l.Stopping)
	}
	s.Logger.InfoContext(ctx, what, "tasks", report.Tasks, "ours", report.Ours, "leaked", len(report.Leaked),
		"idle", report.Idle, "idleBurnUSD", report.IdleBurnUSD, "pruned", len(report.Pruned), "errors", report.Errors)
	if unlisted != nil {
		return report, fmt.Errorf("%s: %w", what, unlisted)
	}
	return report, nil
}

// audit reports every task of this installation, past a grace, that no open ledger
// row names.
func (s *Sweep) audit(ctx context.Context, control Control, report *DailyReport) error {
	clusters := slices.Concat([]string{s.Cluster}, s.Abroad)
	living, failed := make([][]Task, len(clusters)), make([]error, len(clusters))
	pool(s.abreast(len(clusters)), len(clusters), func(c int) {
		living[c], failed[c] = livingTasks(ctx, s.Lister, s.Tasks, clusters[c])
	})
	for c, cluster := range clusters {
		if failed[c] != nil {
			continue
		}
		report.Home = report.Home || cluster == s.Cluster
		report.Tasks += len(living[c])
		for _, t := range living[c] {
			s.auditTask(ctx, cluster, t, report)
		}
	}
	s.stopLeaks(ctx, control, report)
	var notices []Notice
	for _, l := range report.Leaked {
		notices = append(notices, Notice{Type: NoticeLeaked, TaskARN: l.TaskARN, Reason: l.Why, At: nowMillis()})
	}
	s.announce(ctx, notices)
	return errors.Join(failed...)
}

func (s *Sweep) auditTask(ctx context.Context, cluster string, t Task, report *DailyReport) {
	id, ours := strings.CutPrefix(t.StartedBy, s.Install+"/")
	if !ours || t.Life != TaskLives {
		return
	}
	report.Ours++
	row, why, err := rowOf(ctx, s.Ledger, InstanceID(id), t, s.Provider)
	switch {
	case err != nil:
		report.Errors = append(report.Errors, err.Error())
		return
	case why == "":
		s.auditIdle(ctx, t, row, report)
		return
	}
	leak := Leak{TaskARN: t.ARN, StartedBy: t.StartedBy, Since: t.CreatedAt, Why: why, cluster: cluster, instance: InstanceID(id)}
	if nowMillis() < t.CreatedAt.Add(s.Limits.LeakGrace) {
		return
	}
	report.Leaked = append(report.Leaked, leak)
	report.IdleBurnUSD += t.Size.Hourly()
}

// rowOf reads the ledger row under which t was started, and says why by it nobody here ends
// t, or "": reclaim touches no other provider's sandbox (I7).
func rowOf(ctx context.Context, ledger Ledger, id InstanceID, t Task, provider string) (row LedgerRow, why string, err error) {
	row, err = ledger.Row(ctx, id)
	switch {
	case isNotFound(err):
		return row, noLedgerRow, nil
	case err != nil:
		return row, "", err
	case row.State == LedgerClosed:
		return row, "its ledger row is closed", nil
	case row.TaskARN != "" && row.TaskARN != t.ARN:
		return row, "its ledger row names " + row.TaskARN, nil
	case row.Provider != provider:
		return row, fmt.Sprintf("its ledger row is of the provider %.40s, whose sandboxes are not ended here", row.Provider), nil
	}
	return row, "", nil
}

// auditIdle counts a task that is kept warm.
func (s *Sweep) auditIdle(ctx context.Context, t Task, row LedgerRow, report *DailyReport) {
	box, err := s.Sandboxes.Sandbox(ctx, row.Key)
	switch {
	case isNotFound(err):
	case err != nil:
		report.Errors = append(report.Errors, err.Error())
	case box.Instance == row.Instance && box.IdleSince != 0:
		report.Idle++
		report.IdleBurnUSD += t.Size.Hourly()
	}
}

// noLedgerRow is why a task is leaked that the audit may have stopped.
const noLedgerRow = "no ledger row"

// stopLeaks has the tasks without a row stopped, where the policy says so. They are
// announced to the breaker before the first of them; where they are too many none is. A row
// that is there, if only closed, is left to the operator.
func (s *Sweep) stopLeaks(ctx context.Context, control Control, report *DailyReport) {
	var leaks []*Leak
	for i := range report.Leaked {
		if s.StopLeaks && report.Leaked[i].Why == noLedgerRow {
			leaks = append(leaks, &report.Leaked[i])
		}
	}
	control, err := s.count(ctx, control, len(leaks))
	if err != nil {
		report.Errors = append(report.Errors, err.Error())
	}
	if err != nil || !control.EndsUnsealed() {
		return
	}
	for _, leak := range leaks {
		if err := s.stopLeak(ctx, leak); err != nil {
			report.Errors = append(report.Errors, err.Error())
		}
	}
}

// stopLeak gives a task without a row one that condemns it: reclaim then stops it as any
// other that did not end by itself, which the breaker keeps back.
func (s *Sweep) stopLeak(ctx context.Context, leak *Leak) error {
	now, id := nowMillis(), leak.instance
	row, err := s.Ledger.PutIntent(ctx, LedgerRow{
		Instance: id, Provider: s.Provider, State: LedgerIntent, LaunchUntil: now, Cluster: leak.cluster, DueAt: now, UpdatedAt: now, Unsealed: true,
	})
	if err != nil || row.State != LedgerIntent {
		return err
	}
	if _, err = s.Ledger.UpdateRow(ctx, id, StopLaunch{TaskARN: leak.TaskARN, Why: "leaked: " + leak.Why, Now: now, DueAt: now.Add(s.Limits.RetryStop)}); err != nil {
		return err
	}
	leak.Stopping = true
	return s.Queue.Send(ctx, []ReclaimJob{{Instance: id, Kind: JobLedger}})
}

// prune removes the journals of ended runs from every idle sandbox. Start markers
// stay: a run that was claimed in a sandbox never begins there again (I14).
func (s *Sweep) prune(ctx context.Context, report *DailyReport) {
	// Another shard comes first each day, in case time does not last for all.
	first := int(nowMillis().Time().Unix() / (24 * 60 * 60) % Shards)
	for n := range Shards {
		shard := (first + n) % Shards
		due, err := s.Due.DueSandboxes(ctx, shard, farAhead)
		if err != nil {
			report.Errors = append(report.Errors, err.Error())
			continue
		}
		for _, d := range due {
			if d.Key == "" {
				continue
			}
			if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < s.Limits.ProbeTimeout {
				report.Skipped = "no time left for the other idle sandboxes"
				return
			}
			pruned, err := s.pruneSandbox(ctx, d.Key)
			switch {
			case err != nil:
				report.Errors = append(report.Errors, err.Error())
			case pruned != nil:
				report.Pruned = append(report.Pruned, *pruned)
			}
		}
	}
}

// pruneReserve is how much of the day's time the prune leaves for what comes after it.
const pruneReserve = 10 * time.Second

func (s *Sweep) pruneSandbox(ctx context.Context, key SandboxKey) (*PruneReport, error) {
	box, err := s.prunable(ctx, key)
	if err != nil || box.Key == "" {
		return nil, err
	}
	// One sandbox that is slow, or full of planted names, must not keep the day from its end:
	// what was audited is told only then.
	within := s.Limits.ProbeTimeout
	if deadline, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(deadline)-pruneReserve)
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	target := ExecTarget{Cluster: box.Cluster, TaskARN: box.TaskARN, Container: box.Container}
	pruner := JournalPruner{
		Dir: s.Journals, Format: DefaultJournal, Store: runStanding{s.Runs, box.Material.Tenant},
		Permit: func(ctx context.Context) error { return s.mayPrune(ctx, box) },
	}
	report := pruner.Prune(ctx, target, nowMillis())
	report.Kept = report.Kept[:min(len(report.Kept), prunedTold)]
	report.Failures = report.Failures[:min(len(report.Failures), prunedTold)]
	return &report, nil
}

// prunedTold is of how many kept runs, and failures, the day's report tells for each sandbox.
const prunedTold = 100

// prunable reads the sandbox of a key, if it idles and nobody holds it; else it is the zero
// Sandbox: in use again, about to end, or held as it is.
func (s *Sweep) prunable(ctx context.Context, key SandboxKey) (Sandbox, error) {
	box, err := s.Sandboxes.Sandbox(ctx, key)
	now := nowMillis()
	if err != nil || box.DueAt == 0 || box.Reclaiming != "" || box.Exec.Until > now || box.HoldUntil > now {
		return Sandbox{}, ignoreNotFound(err)
	}
	latest, err := s.Runs.Run(ctx, RunKey{Tenant: box.Material.Tenant, Run: box.LatestRun})
	if err != nil && !isNotFound(err) || latest.Hold.Live(now) {
		return Sandbox{}, ignoreNotFound(err)
	}
	return box, nil
}

// mayPrune refuses to remove anything in a sandbox that is not as it was, or once an
// operator has spoken: a day's prune takes minutes (I13).
func (s *Sweep) mayPrune(ctx context.Context, box Sandbox) error {
	control, err := s.Controls.Control(ctx)
	if err == nil && !control.Stops() {
		err = &blockedError{control.Standing()}
	}
	if err != nil {
		return err
	}
	again, err := s.prunable(ctx, box.Key)
	if err == nil && again.Instance != box.Instance {
		err = &blockedError{"in use or held"}
	}
	return err
}

// runStanding answers what the run store says of runs of one tenant.
type runStanding struct {
	runs   Runs
	tenant TenantID
}

// Standing reads the record.
func (s runStanding) Standing(ctx context.Context, run RunID) (PruneStanding, error) {
	r, err := s.runs.Run(ctx, RunKey{Tenant: s.tenant, Run: run})
	switch {
	case isNotFound(err):
		return PruneUnknown, nil
	case err != nil:
		return PruneLive, err
	case r.Status.Terminal():
		return PruneTerminal, nil
	}
	return PruneLive, nil
}
