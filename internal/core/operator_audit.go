package core

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// AuditKind says what an audit found.
type AuditKind string

// What ECS has and the records do not, and the other way round.
const (
	// AuditLeaked is a task of ours that lives past the grace without an open row.
	AuditLeaked AuditKind = "leaked"
	// AuditUnwatched is a task whose row is open and that nothing in an index leads
	// to: no sweep would ever end it (I15).
	AuditUnwatched AuditKind = "unwatched"
	// AuditLost is a run that has not ended and whose task is no more.
	AuditLost AuditKind = "lost"
	// AuditIdleGone is an idle sandbox whose task is no more.
	AuditIdleGone AuditKind = "idle-gone"
	// AuditOverdue is a debt that is long due: a row to be stopped or closed, or a
	// sandbox's end that an ended run owes.
	AuditOverdue AuditKind = "overdue"
	// AuditUnreadable is a record that this code does not understand.
	AuditUnreadable AuditKind = "unreadable"
)

// AuditFinding is one disagreement between ECS and the records.
type AuditFinding struct {
	Kind AuditKind
	RunKey
	TaskARN  string
	Instance InstanceID
	Since    Millis
	Why      string
	// Settles says that a sweep that acts puts it right by itself, within minutes.
	Settles bool
}

// AuditReport is what a two-sided audit found.
type AuditReport struct {
	Tasks    int // living in the cluster
	Ours     int // of them started by this installation
	Runs     int // in an index: not ended, or owing
	Rows     int // due: idle sandboxes, and ledger rows to be stopped or closed
	Findings []AuditFinding
}

// Auditor compares ECS with the records, both ways, and changes nothing. ECS is
// listed first and the records are read after it: a task that begins meanwhile has
// its row before it exists (I6).
type Auditor struct {
	Lister    TaskLister
	Tasks     TaskDescriber
	Runs      Runs
	Index     RunIndex
	Sandboxes Sandboxes
	Ledger    Ledger
	Due       SandboxIndex
	Install   string
	Provider  string // whose sandboxes the installation may touch
	Cluster   string
	Abroad    []string // clusters of spokes
	Limits    Limits
}

// auditing is one audit under way.
type auditing struct {
	*Auditor
	now    Millis
	tasks  map[string]Task // living, by ARN
	runs   map[RunKey]Run  // in an index
	due    []DueSandbox
	report AuditReport
}

// overdue is how long after its time a debt counts as one that nobody pays: past the
// longest wait between two tries.
func (a *Auditor) overdue() time.Duration { return a.Limits.ReclaimBackoffMax + a.Limits.LaunchLag }

// Run carries out one audit. A listing that failed, on either side, is an error: what
// could not be read is not empty (I10).
func (a *Auditor) Run(ctx context.Context) (AuditReport, error) {
	u := &auditing{Auditor: a, now: nowMillis(), tasks: map[string]Task{}, runs: map[RunKey]Run{}}
	for _, step := range []func(context.Context) error{u.listTasks, u.listRecords, u.fromECS, u.fromRuns, u.fromRows} {
		if err := step(ctx); err != nil {
			return AuditReport{}, fmt.Errorf("audit: %w", err)
		}
	}
	slices.SortStableFunc(u.report.Findings, func(a, b AuditFinding) int { return cmp.Compare(a.Since, b.Since) })
	return u.report, nil
}

func (u *auditing) found(f AuditFinding) { u.report.Findings = append(u.report.Findings, f) }

func (u *auditing) listTasks(ctx context.Context) error {
	for _, cluster := range slices.Concat([]string{u.Cluster}, u.Abroad) {
		tasks, err := livingTasks(ctx, u.Lister, u.Tasks, cluster)
		if err != nil {
			return err
		}
		u.report.Tasks += len(tasks)
		for _, t := range tasks {
			u.tasks[t.ARN] = t
		}
	}
	return nil
}

// livingTasks describes every task of a cluster that is not to be stopped, all or none.
func livingTasks(ctx context.Context, lister TaskLister, describer TaskDescriber, cluster string) ([]Task, error) {
	arns, err := lister.Living(ctx, cluster)
	if err != nil {
		return nil, err
	}
	var all []Task
	for batch := range slices.Chunk(arns, describeBatch) {
		tasks, err := describer.Describe(ctx, cluster, batch)
		if err != nil {
			return nil, err
		}
		all = append(all, tasks...)
	}
	return all, nil
}

// listRecords reads everything that an index shows, whenever it is due.
func (u *auditing) listRecords(ctx context.Context) error {
	var keys []RunKey
	for shard := range Shards {
		detached, err := u.Index.Detached(ctx, shard)
		if err != nil {
			return err
		}
		due, err := u.Index.Due(ctx, shard, farAhead)
		if err != nil {
			return err
		}
		for _, e := range slices.Concat(detached, due) {
			keys = append(keys, e.RunKey)
		}
		boxes, err := u.Auditor.Due.DueSandboxes(ctx, shard, farAhead)
		if err != nil {
			return err
		}
		u.due = append(u.due, boxes...)
	}
	u.report.Rows = len(u.due)
	return u.load(ctx, keys)
}

func (u *auditing) load(ctx context.Context, keys []RunKey) error {
	if len(keys) == 0 {
		return nil
	}
	runs, bad, err := u.Index.Load(ctx, keys)
	if err != nil {
		return err
	}
	for _, r := range runs {
		u.runs[r.RunKey] = r
	}
	for _, b := range bad {
		u.found(AuditFinding{Kind: AuditUnreadable, RunKey: b.RunKey, Why: b.Err.Error()})
	}
	u.report.Runs = len(u.runs)
	return nil
}

// fromECS asks of each task of ours whether somebody will end it.
func (u *auditing) fromECS(ctx context.Context) error {
	for _, t := range u.tasks {
		id, ours := strings.CutPrefix(t.StartedBy, u.Install+"/")
		if !ours || t.Life != TaskLives {
			continue
		}
		u.report.Ours++
		if u.now < t.CreatedAt.Add(u.Limits.LeakGrace) {
			continue
		}
		row, why, err := rowOf(ctx, u.Ledger, InstanceID(id), t, u.Provider)
		if err != nil {
			return err
		}
		f := AuditFinding{Kind: AuditLeaked, TaskARN: t.ARN, Instance: InstanceID(id), Since: t.CreatedAt, Why: why}
		if why == "" && row.State == LedgerRunning {
			f.Kind = AuditUnwatched
			if f.Why, err = u.unwatched(ctx, row); err != nil {
				return err
			}
		}
		if f.Why != "" {
			u.found(f)
		}
	}
	return nil
}

// unwatched says why no index leads to a running task, or "". The records are read
// consistently; indexes lag.
func (u *auditing) unwatched(ctx context.Context, row LedgerRow) (string, error) {
	box, err := u.Sandboxes.Sandbox(ctx, row.Key)
	switch {
	case err != nil && !isNotFound(err):
		return "", err
	case err != nil || box.Instance != row.Instance:
		return u.still(ctx, row, "no instance record names it")
	case box.DueAt != 0:
		return "", nil
	}
	latest := RunKey{Tenant: box.Material.Tenant, Run: box.LatestRun}
	r, err := u.Runs.Run(ctx, latest)
	switch {
	case err != nil && !isNotFound(err):
		return "", err
	case err != nil:
		return u.still(ctx, row, "its latest run "+latest.String()+" has no record")
	case r.Row == RowNone:
		return u.still(ctx, row, "its latest run "+latest.String()+" is "+string(r.Status)+" and in no index")
	}
	return "", nil
}

// still reads the row again: it may have been condemned since.
func (u *auditing) still(ctx context.Context, row LedgerRow, why string) (string, error) {
	again, err := u.Ledger.Row(ctx, row.Instance)
	if err != nil {
		return "", ignoreNotFound(err)
	}
	if again.State != LedgerRunning {
		return "", nil
	}
	return why, nil
}

// fromRuns asks of each run in an index whether its task is there, and of each debt
// whether it is paid in time.
func (u *auditing) fromRuns(ctx context.Context) error {
	var absent []Run
	for _, r := range u.runs {
		_, living := u.tasks[r.TaskARN]
		switch {
		case !r.Status.Terminal() && r.TaskARN != "" && !living:
			absent = append(absent, r)
		case r.Row == RowReclaim && u.now > r.DueAt.Add(u.overdue()):
			u.found(AuditFinding{
				Kind: AuditOverdue, RunKey: r.RunKey, TaskARN: r.TaskARN, Instance: r.Instance, Since: r.ReclaimSince,
				Why: fmt.Sprintf("its sandbox's end is owed and was due at %s, after %d attempts", r.DueAt.Time().Format(time.RFC3339), r.ReclaimAttempts),
			})
		}
	}
	gone, err := u.gone(ctx, absent)
	for _, r := range gone {
		u.found(AuditFinding{
			Kind: AuditLost, RunKey: r.run.RunKey, TaskARN: r.run.TaskARN, Instance: r.run.Instance, Since: r.run.StartedAt,
			Why: "its task is " + string(r.task.Life) + describeAfter(r.task), Settles: true,
		})
	}
	return err
}

// vanished is a run with its task that is no more.
type vanished struct {
	run  Run
	task Task
}

// gone are those of the runs whose tasks ECS says are stopped, or does not know.
func (u *auditing) gone(ctx context.Context, runs []Run) ([]vanished, error) {
	byCluster := map[string][]Run{}
	for _, r := range runs {
		byCluster[r.Cluster] = append(byCluster[r.Cluster], r)
	}
	var out []vanished
	for cluster, all := range byCluster {
		for batch := range slices.Chunk(all, describeBatch) {
			arns := make([]string, len(batch))
			for i, r := range batch {
				arns[i] = r.TaskARN
			}
			slices.Sort(arns)
			tasks, err := u.Tasks.Describe(ctx, cluster, slices.Compact(arns))
			if err != nil {
				return nil, err
			}
			out = append(out, match(batch, tasks)...)
		}
	}
	return out, nil
}

func match(runs []Run, tasks []Task) []vanished {
	byARN := map[string]Task{}
	for _, t := range tasks {
		byARN[t.ARN] = t
	}
	var out []vanished
	for _, r := range runs {
		if t := byARN[r.TaskARN]; t.Life == TaskGone || t.Life == TaskMissing {
			out = append(out, vanished{r, t})
		}
	}
	return out
}

func describeAfter(t Task) string {
	if text := describe(t); text != "" {
		return ": " + text
	}
	return ""
}

// fromRows asks of each idle sandbox whether its task is there, and of each row to be
// stopped or closed whether it is done in time.
func (u *auditing) fromRows(ctx context.Context) error {
	for _, d := range u.due {
		var err error
		if d.Key != "" {
			err = u.idle(ctx, d.Key)
		} else {
			err = u.row(ctx, d.Instance)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (u *auditing) idle(ctx context.Context, key SandboxKey) error {
	box, err := u.Sandboxes.Sandbox(ctx, key)
	if err != nil {
		return ignoreNotFound(err)
	}
	if _, living := u.tasks[box.TaskARN]; living || box.DueAt == 0 {
		return nil
	}
	tasks, err := u.Tasks.Describe(ctx, box.Cluster, []string{box.TaskARN})
	if err != nil {
		return err
	}
	if t := tasks[0]; t.Life == TaskGone || t.Life == TaskMissing {
		u.found(AuditFinding{
			Kind: AuditIdleGone, RunKey: RunKey{Tenant: box.Material.Tenant, Run: box.LatestRun},
			TaskARN: box.TaskARN, Instance: box.Instance, Since: box.IdleSince,
			Why: "its task is " + string(t.Life) + describeAfter(t), Settles: true,
		})
	}
	return nil
}

func (u *auditing) row(ctx context.Context, id InstanceID) error {
	row, err := u.Ledger.Row(ctx, id)
	if err != nil {
		return ignoreNotFound(err)
	}
	if row.DueAt == 0 || u.now <= row.DueAt.Add(u.overdue()) {
		return nil
	}
	u.found(AuditFinding{
		Kind: AuditOverdue, RunKey: RunKey{Tenant: row.Tenant, Run: row.Run}, TaskARN: row.TaskARN, Instance: id, Since: row.UpdatedAt,
		Why: fmt.Sprintf("its ledger row is %s and was due at %s, after %d attempts", row.State, row.DueAt.Time().Format(time.RFC3339), row.Attempts),
	})
	return nil
}
