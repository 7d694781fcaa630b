package core

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Launcher is how a host begins a run: record, task, agent. Each step may be
// repeated by the same host with the same ids and goes on where it stopped.
type Launcher struct {
	Runs         Runs
	Sandboxes    Sandboxes
	Ledger       Ledger
	Transactions SandboxTransactions
	Provider     Provider
	Snapshots    Snapshotter // nil: the provider takes no copies
	Describer    TaskDescriber
	Queue        ReclaimQueue
	Threads      Threads   // nil: no checkpoints are kept
	Announcer    Announcer // nil: nobody is told
	Limits       Limits
	Install      string
	Quota        Quota
	Meters       Meters // nil: no tenant's spending is metered
}

// RunRequest is what a host wants to run.
type RunRequest struct {
	RunKey
	Thread     ThreadID
	HostNonce  string // the host's own, the same when it repeats its start
	Definition string
	TTLSeconds int64
	SpendCap   Dollars     // zero: the installation's
	Reclaim    ReclaimKind // what its end owes; none: ReclaimEnd
	OnLapse    OnLapse
	Checkpoint CheckpointPolicy

	PauseSeconds int64       // how long it may stay paused; zero: the installation's time
	Capture      *JobOptions // what a checkpoint of its workspace is told

	Tools       []ToolBinding
	Watched     bool
	Hooks       HookPlan
	Snapshots   SnapshotPolicy
	IdleSeconds int64
	PublicIP    bool // its task gets a public IPv4 address, which costs
}

// Launch errors that a host handles by waiting or by choosing another thread.
var (
	// ErrLaunchPending: an earlier launch of this run has not been settled yet.
	ErrLaunchPending = errors.New("an earlier launch is not settled")
	// ErrSandboxExists: the key has a sandbox whose task lives; it is to be reclaimed
	// first.
	ErrSandboxExists = errors.New("the key has a sandbox")
)

// Start puts the run's record, attached to this host.
func (l *Launcher) Start(ctx context.Context, q RunRequest) (Run, error) {
	r, err := l.record(q)
	if err != nil {
		return Run{}, err
	}
	return l.Runs.Create(ctx, r)
}

// record is the record of a run that begins now.
func (l *Launcher) record(q RunRequest) (Run, error) {
	switch {
	case q.Tenant == "" || q.Run == "" || q.Thread == "":
		return Run{}, fmt.Errorf("start run %q: want a tenant, a run and a thread", q.RunKey.String())
	case q.HostNonce == "":
		return Run{}, fmt.Errorf("start run %s: want the host's nonce", q.RunKey)
	case q.TTLSeconds < 0:
		return Run{}, fmt.Errorf("start run %s: ttl: want seconds from 0 on, got %d", q.RunKey, q.TTLSeconds)
	case q.SpendCap.check() != nil:
		return Run{}, fmt.Errorf("start run %s: spend cap: %w", q.RunKey, q.SpendCap.check())
	case !slices.Contains(CheckpointPolicies, q.Checkpoint):
		return Run{}, fmt.Errorf("start run %s: checkpoint policy: want one of %q, got %.80q", q.RunKey, CheckpointPolicies, q.Checkpoint)
	}
	if err := cmp.Or(checkIDs(q.Tenant, "run", string(q.Run)), checkIDs(q.Tenant, "thread", string(q.Thread))); err != nil {
		return Run{}, fmt.Errorf("start run %.100q: %w", q.RunKey.String(), err)
	}
	now := nowMillis()
	until := now.Add(l.Limits.Attachment)
	if q.Reclaim == ReclaimNone {
		q.Reclaim = ReclaimEnd
	}
	return Run{
		RunKey: q.RunKey, Thread: q.Thread, Status: Running, StartedAt: now, Definition: q.Definition,
		Row: RowLapse, DueAt: until, AttachedUntil: until, Epoch: 1, ClaimNonce: q.HostNonce,
		Nonce: NewJournalNonce(), TTLSeconds: q.TTLSeconds, SpendCap: q.SpendCap, Reclaim: q.Reclaim, OnLapse: q.OnLapse,
		CheckpointPolicy: q.Checkpoint, PauseSeconds: q.PauseSeconds, Capture: q.Capture,
		Tools: q.Tools, Watched: q.Watched, Hooks: q.Hooks, Snapshots: q.Snapshots, IdleSeconds: q.IdleSeconds, PublicIP: q.PublicIP,
	}, nil
}

// Launch gives the run a task (DESIGN 4.2). Order: the run names the instance; the
// ledger names it; only then RunTask, under the row's deadline; then one transaction
// makes the task the key's sandbox and the run's. A crash anywhere leaves a ledger
// row from which the sweep finds and stops the task.
//
// The record of a sandbox whose copy is restored goes only once there is another: a restore
// that fails leaves it as it is.
func (l *Launcher) Launch(ctx context.Context, r Run, material KeyMaterial, spec TaskSpec) (Run, error) {
	if r.TaskARN != "" {
		return r, nil
	}
	key := material.Key()
	box, err := l.Sandboxes.Sandbox(ctx, key)
	former := err == nil && box.Instance != r.Instance
	if former && r.Start.Native == "" {
		err = l.replace(ctx, box)
	}
	if err != nil && !isNotFound(err) {
		return Run{}, fmt.Errorf("launch run %s: %w", r.RunKey, err)
	}
	r, err = l.name(ctx, r, key, material.Provider, spec.Cluster)
	if err != nil {
		return Run{}, err
	}
	row, err := l.intend(ctx, r, key, material.Provider, spec.Cluster)
	if err != nil {
		return Run{}, err
	}
	arn, err := l.runTask(ctx, row, spec, r.Start.Native)
	if err == nil && former && r.Start.Native != "" {
		err = l.replace(ctx, box)
	}
	if err != nil {
		return Run{}, fmt.Errorf("launch run %s: %w", r.RunKey, err)
	}
	return l.bind(ctx, r, row, Sandbox{
		Key: key, Material: material, Instance: r.Instance, TaskARN: arn, Cluster: spec.Cluster,
		Container: spec.Container, LatestRun: r.RunKey.Run, LatestSnapshot: r.Start.Native,
	})
}

// replace makes room for a new task where the key's has gone: the old one is
// condemned as any other, never only forgotten. A sandbox that lives, or that a live
// run is bound to, is not replaced.
func (l *Launcher) replace(ctx context.Context, box Sandbox) error {
	if !replaceable(box) {
		return ErrLaunchPending
	}
	latest, err := l.Runs.Run(ctx, RunKey{Tenant: box.Material.Tenant, Run: box.LatestRun})
	if err != nil && !isNotFound(err) {
		return err
	}
	if err == nil && !latest.Status.Terminal() {
		return ErrSandboxExists
	}
	found, err := l.Provider.Resume(ctx, box.place())
	switch {
	case err != nil:
		return err
	case found.State != ResumeGone:
		return ErrSandboxExists
	}
	now := nowMillis()
	by := replacing + rand.Text()
	mark := MarkReclaiming{Instance: box.Instance, LatestRun: box.LatestRun, By: by, Now: now}
	if _, err := l.Sandboxes.UpdateSandbox(ctx, box.Key, mark); err != nil {
		return err
	}
	if err := l.loseWorkspace(ctx, latest, box, "task-gone: "+found.Why); err != nil {
		return err
	}
	condemn := Condemn{
		Instance: box.Instance, Key: box.Key, By: by, Why: "replaced: " + found.Why, Now: now, DueAt: now.Add(l.Limits.RetryStop),
	}
	if err := l.Transactions.Condemn(ctx, condemn); err != nil {
		return err
	}
	return l.Queue.Send(ctx, []ReclaimJob{{Tenant: box.Material.Tenant, Instance: box.Instance, Kind: JobLedger}})
}

// replacing begins the mark of a host that makes room for a new task. Whoever finds it on
// a sandbox whose task is gone may go on: nothing else comes back for it soon.
const replacing = "replace:"

// replaceable reports whether no reclaim is at a sandbox.
func replaceable(box Sandbox) bool {
	return box.Reclaiming == "" || strings.HasPrefix(box.Reclaiming, replacing)
}

// loseWorkspace tells what goes with the sandbox that is replaced, before the next run
// of the thread begins: that run is the first to be told.
func (l *Launcher) loseWorkspace(ctx context.Context, latest Run, box Sandbox, why string) error {
	row, err := l.Ledger.Row(ctx, box.Instance)
	if err != nil {
		return err
	}
	ls := losses{l.Runs, l.Ledger, l.Threads, l.Announcer}
	owes, err := ls.debt(ctx, latest, &row, &box)
	if err != nil || owes == nil {
		return err
	}
	return ls.lose(ctx, *owes, &row, why)
}

// name makes sure that the run names an instance whose launch may still happen.
func (l *Launcher) name(ctx context.Context, r Run, key SandboxKey, provider, cluster string) (Run, error) {
	if r.Instance != "" {
		row, err := l.Ledger.Row(ctx, r.Instance)
		switch {
		case isNotFound(err):
			return r, nil // named, and not asked for yet
		case err != nil:
			return Run{}, fmt.Errorf("launch run %s: %w", r.RunKey, err)
		case row.State == LedgerIntent && row.LaunchUntil > nowMillis():
			return r, nil
		case row.State == LedgerIntent, row.State == LedgerRunning:
			return Run{}, fmt.Errorf("launch run %s: %w", r.RunKey, ErrLaunchPending)
		}
	}
	return l.Runs.Update(ctx, r.RunKey, NameInstance{
		Epoch: r.Epoch, Old: r.Instance, Instance: InstanceID(rand.Text()), Key: key, Provider: provider, Cluster: cluster,
	})
}

// intend puts the ledger row, before the task can exist (I6).
func (l *Launcher) intend(ctx context.Context, r Run, key SandboxKey, provider, cluster string) (LedgerRow, error) {
	now := nowMillis()
	until := now.Add(l.Limits.LaunchWindow)
	row, err := l.Ledger.PutIntent(ctx, LedgerRow{
		Instance: r.Instance, Key: key, Provider: provider, Tenant: r.Tenant, Run: r.RunKey.Run, State: LedgerIntent,
		LaunchUntil: until, Cluster: cluster, DueAt: until.Add(l.Limits.LaunchLag), UpdatedAt: now, Quota: l.Quota.of(r.Tenant),
	})
	if err != nil {
		return LedgerRow{}, fmt.Errorf("launch run %s: %w", r.RunKey, err)
	}
	if row.State != LedgerIntent || row.LaunchUntil <= now {
		return LedgerRow{}, fmt.Errorf("launch run %s: %w", r.RunKey, ErrLaunchPending)
	}
	return row, nil
}

// runTask asks ECS under the row's deadline: no token is used after it.
func (l *Launcher) runTask(ctx context.Context, row LedgerRow, spec TaskSpec, native SnapshotID) (string, error) {
	ctx, cancel := context.WithDeadline(ctx, row.LaunchUntil.here())
	defer cancel()
	spec.Token = string(row.Instance)
	spec.StartedBy = StartedBy(l.Install, row.Instance)
	if native != "" && l.Snapshots == nil {
		return "", ErrSnapshotGone
	}
	if native != "" {
		return l.Snapshots.Restore(ctx, spec, native)
	}
	return l.Provider.Start(ctx, spec)
}

// bind takes the task into service, or condemns it. Nobody stops a task directly: a
// refused transaction leaves the task to its ledger row.
func (l *Launcher) bind(ctx context.Context, r Run, row LedgerRow, box Sandbox) (Run, error) {
	now := nowMillis()
	box.CreatedAt, box.UpdatedAt = now, now
	err := l.Transactions.Launch(ctx, Launched{Run: r.RunKey, Epoch: r.Epoch, Sandbox: box, Now: now})
	if err == nil {
		return l.launched(ctx, r)
	}
	if !Refused(err) {
		return Run{}, fmt.Errorf("launch run %s: %w", r.RunKey, err)
	}
	return Run{}, errors.Join(fmt.Errorf("launch run %s: %w", r.RunKey, err), l.condemn(ctx, row, box.TaskARN))
}

// launched reads the run again, which has its task now. Whoever has claimed it
// meanwhile has another epoch, and the host must not go on under that.
func (l *Launcher) launched(ctx context.Context, r Run) (Run, error) {
	fresh, err := l.Runs.Run(ctx, r.RunKey)
	switch {
	case err != nil:
		return Run{}, fmt.Errorf("launch run %s: %w", r.RunKey, err)
	case fresh.Epoch != r.Epoch:
		return Run{}, &RefusedError{Op: "launch", Record: "run " + r.RunKey.String(), Why: "epoch"}
	}
	return fresh, nil
}

// condemn hands a task that nobody will use to reclaim. Losing the message only
// delays it: the row is due.
func (l *Launcher) condemn(ctx context.Context, row LedgerRow, arn string) error {
	now := nowMillis()
	_, err := l.Ledger.UpdateRow(ctx, row.Instance, StopLaunch{
		TaskARN: arn, Why: "launch lost its run", Now: now, DueAt: now.Add(l.Limits.RetryStop),
	})
	if Refused(err) { // condemned meanwhile, perhaps without its task
		_, err = l.Ledger.UpdateRow(ctx, row.Instance, NameTask{TaskARN: arn, Now: now})
	}
	if err != nil {
		return ignoreRefused(err)
	}
	return l.Queue.Send(ctx, []ReclaimJob{{Tenant: row.Tenant, Instance: row.Instance, Kind: JobLedger}})
}

// diagnose asks ECS what a failed exec means: a young task is to be waited for, one
// that was started without ECS Exec is not.
func (l *Launcher) diagnose(ctx context.Context, r Run, err error) Diagnosis {
	reason, healing := reasonFor(err)
	tasks, describeErr := l.Describer.Describe(ctx, r.Cluster, []string{r.TaskARN})
	if describeErr != nil {
		return Diagnosis{Reason: reason, Healing: healing}
	}
	return Diagnose(tasks[0], r.Container, ProbeFailure{Healing: healing, Reason: reason}, nowMillis())
}

// AgentStarter begins agents in sandboxes.
type AgentStarter interface {
	// StartAgent claims the run in the sandbox and begins its agent, or reports that
	// the run had been claimed there before. An incomplete answer is an error, and the
	// agent may have begun.
	StartAgent(ctx context.Context, target ExecTarget, agent JournalStart, input []byte) (JournalStarted, error)
}

// JournalStarter is the [AgentStarter] that runs the start script.
type JournalStarter struct {
	Exec   Executor
	Format JournalFormat
}

// StartAgent runs the script.
func (s JournalStarter) StartAgent(ctx context.Context, target ExecTarget, agent JournalStart, input []byte) (JournalStarted, error) {
	script, err := s.Format.ProgramStartScript(agent)
	if err != nil {
		return JournalStarted{}, err
	}
	if input, err = agent.Stdin(input); err != nil {
		return JournalStarted{}, err
	}
	out, err := s.Exec.Exec(ctx, target, script, input)
	if err != nil {
		return JournalStarted{}, err
	}
	return ParseStart(out.Stdout)
}
