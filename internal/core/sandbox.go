package core

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// KeyMaterial is everything that makes two sandboxes interchangeable. Its SHA-256
// is the sandbox key; the material itself is stored in the instance record and
// compared on every hit, so that a key alone never leads to another tenant's task.
type KeyMaterial struct {
	Provider      string   `json:"provider"`
	Definition    string   `json:"definition"`
	Tenant        TenantID `json:"tenant"`
	Thread        ThreadID `json:"thread"`
	Run           RunID    `json:"run"` // set only where a sandbox serves one run
	WorkspaceHash string   `json:"workspaceHash"`
}

// Key is the hex SHA-256 over the members' tokens, see [KeyToken], a line each:
// JSON would write two ids that are no UTF-8 alike.
func (m KeyMaterial) Key() SandboxKey {
	digest := sha256.New()
	for _, text := range []string{m.Provider, m.Definition, string(m.Tenant), string(m.Thread), string(m.Run), m.WorkspaceHash} {
		fmt.Fprintln(digest, KeyToken(text))
	}
	return SandboxKey(hex.EncodeToString(digest.Sum(nil)))
}

// WorkspaceHash is the hex SHA-256 over a workspace's canonical JSON, its secrets
// left out, so that rotating a secret keeps the sandbox (IS-3). Member order does
// not matter, array order does. An absent workspace hashes as JSON null.
func WorkspaceHash(workspace map[string]any) (string, error) {
	visible := workspace
	if _, ok := workspace["secrets"]; ok {
		visible = make(map[string]any, len(workspace))
		for k, v := range workspace {
			if k != "secrets" {
				visible[k] = v
			}
		}
	}
	text, err := json.Marshal(visible)
	if err != nil {
		return "", fmt.Errorf("hash workspace: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// Sandbox is an instance record: which task serves a key (DESIGN 4.2).
type Sandbox struct {
	Key      SandboxKey
	Material KeyMaterial
	Instance InstanceID

	TaskARN   string
	Cluster   string
	Container string

	LatestRun  RunID // the newest run bound to it; the tenant is the material's
	HoldUntil  Millis
	CreatedAt  Millis
	UpdatedAt  Millis
	Reclaiming string   // the reclaim attempt that is under way, or ""
	Exec       ExecHold // who has the container for a while
	IdleSince  Millis   // zero: not idle
	DueAt      Millis   // of the idle row; zero: no row

	// LatestSnapshot is the native copy that a sandbox after this one is made from; empty:
	// there is none.
	LatestSnapshot SnapshotID
}

// LedgerState is where a task stands in its whole life.
type LedgerState string

// A row is open until ECS itself says that the task is STOPPED (I6).
const (
	LedgerIntent   LedgerState = "intent"   // RunTask may have been asked for
	LedgerRunning  LedgerState = "running"  // the task serves a record
	LedgerStopping LedgerState = "stopping" // condemned; StopTask follows
	LedgerClosed   LedgerState = "closed"   // ECS says it is gone
)

// LedgerRow is one task's row.
type LedgerRow struct {
	Instance    InstanceID
	Key         SandboxKey
	Provider    string
	Tenant      TenantID
	Run         RunID // the run it was launched for
	State       LedgerState
	LaunchUntil Millis // no RunTask is sent after it
	TaskARN     string
	Cluster     string
	DueAt       Millis // while intent or stopping
	Attempts    int
	Why         string // what led to stopping, for people
	Unsealed    bool   // condemned for something else than its run's own end; the breaker holds it back
	Missing     Millis // since when, without a break, ECS does not know the task that it was to stop
	// Quota is how many sandboxes its tenant might have when this one was asked for; zero:
	// it is not counted.
	Quota     int
	Metered   Metering
	Owed      RunID // whose checkpoint the task still owes although another run has it, or none
	UpdatedAt Millis
}

// LedgerTransition is one conditional write of a ledger row, as a value; see
// [Transition] for the contract of its methods.
type LedgerTransition interface {
	Name() string
	Apply(row LedgerRow) (LedgerRow, error)
	Landed(row LedgerRow) bool
}

func ledgerRefusal(t LedgerTransition, row LedgerRow, why string) (LedgerRow, error) {
	return LedgerRow{}, &RefusedError{Op: t.Name(), Record: "ledger row " + string(row.Instance), Why: why}
}

// StopLaunch condemns a task whose launch did not complete, or that nobody serves
// any more. It never revives a row.
type StopLaunch struct {
	TaskARN string
	Why     string
	Now     Millis
	DueAt   Millis // when a sweep sends its message again
}

// Name is "stop launch".
func (StopLaunch) Name() string { return "stop launch" }

// Apply: the row is an intent.
func (t StopLaunch) Apply(row LedgerRow) (LedgerRow, error) {
	if row.State != LedgerIntent {
		return ledgerRefusal(t, row, "state")
	}
	row.State, row.TaskARN, row.Why = LedgerStopping, t.TaskARN, t.Why
	row.DueAt, row.Attempts, row.UpdatedAt = t.DueAt, 0, t.Now
	return row, nil
}

// Landed: stopping, with my task.
func (t StopLaunch) Landed(row LedgerRow) bool {
	return row.State == LedgerStopping && row.TaskARN == t.TaskARN
}

// CloseRow ends a row. From is stopping when ECS reports its task gone, intent when
// its launch can no longer happen and ECS knows no task of it.
type CloseRow struct {
	From    LedgerState
	Why     string
	Now     Millis
	TaskARN string // as read; empty only for a task that never was
	// Quota and Tenant are the row's, as read: one that is counted is no more from then on,
	// in the same write.
	Quota  int
	Tenant TenantID
	// Metered is the row's, as read: its meter stops in the same write.
	Metered Metering
}

// Name is "close row".
func (CloseRow) Name() string { return "close row" }

// Apply: state, task, quota and metering as read, and nothing owed.
func (t CloseRow) Apply(row LedgerRow) (LedgerRow, error) {
	if why := failing(
		check{t.From == LedgerIntent || t.From == LedgerStopping, "from"},
		check{row.State == t.From, "state"},
		check{row.TaskARN == t.TaskARN, "task"},
		check{row.Owed == "", "owed"},
		check{row.Quota == t.Quota, "quota"},
		check{row.Metered == t.Metered, "metered"},
		check{t.Quota == 0 && t.Metered == Metering{} || row.Tenant == t.Tenant, "tenant"},
	); why != "" {
		return ledgerRefusal(t, row, why)
	}
	row.State, row.DueAt, row.UpdatedAt = LedgerClosed, 0, t.Now
	if row.Why == "" {
		row.Why = t.Why
	}
	return row, nil
}

// Landed: closed.
func (CloseRow) Landed(row LedgerRow) bool { return row.State == LedgerClosed }

// NameTask gives a condemned row the task that ECS knows under its instance.
type NameTask struct {
	TaskARN string
	Now     Millis
}

// Name is "name task".
func (NameTask) Name() string { return "name task" }

// Apply: stopping, without a task.
func (t NameTask) Apply(row LedgerRow) (LedgerRow, error) {
	if why := failing(
		check{row.State == LedgerStopping, "state"},
		check{row.TaskARN == "", "task"},
	); why != "" {
		return ledgerRefusal(t, row, why)
	}
	row.TaskARN, row.UpdatedAt = t.TaskARN, t.Now
	return row, nil
}

// Landed: it has my task.
func (t NameTask) Landed(row LedgerRow) bool { return row.TaskARN == t.TaskARN }

// Postpone moves an open row's due time and counts the attempt.
type Postpone struct {
	State    LedgerState // as read
	Attempts int         // as read
	DueAt    Millis
	Missing  Millis // see [LedgerRow]; zero where ECS knew the task, or was not asked
}

// Name is "postpone".
func (Postpone) Name() string { return "postpone" }

// Apply: intent or stopping and attempts as read.
func (t Postpone) Apply(row LedgerRow) (LedgerRow, error) {
	if why := failing(
		check{t.State == LedgerIntent || t.State == LedgerStopping, "from"},
		check{row.State == t.State, "state"},
		check{row.Attempts == t.Attempts, "attempts"},
	); why != "" {
		return ledgerRefusal(t, row, why)
	}
	row.DueAt, row.Attempts, row.Missing = t.DueAt, t.Attempts+1, t.Missing
	return row, nil
}

// Landed: one attempt on, due then.
func (t Postpone) Landed(row LedgerRow) bool {
	return row.State == t.State && row.Attempts == t.Attempts+1 && row.DueAt == t.DueAt
}

// SandboxTransition is one conditional write of an instance record, as a value;
// see [Transition] for the contract of its methods.
type SandboxTransition interface {
	Name() string
	Apply(s Sandbox) (Sandbox, error)
	Landed(s Sandbox) bool
}

func sandboxRefusal(t SandboxTransition, s Sandbox, why string) (Sandbox, error) {
	return Sandbox{}, &RefusedError{Op: t.Name(), Record: "sandbox " + string(s.Key), Why: why}
}

// MarkReclaiming announces a reclaim attempt. A later attempt overwrites it, and
// the former's condemnation then fails.
type MarkReclaiming struct {
	Instance  InstanceID // as read
	LatestRun RunID      // as read
	By        string     // new for every attempt
	Idle      bool       // the attempt rests on the idle row
	Now       Millis
}

// Name is "mark reclaiming".
func (MarkReclaiming) Name() string { return "mark reclaiming" }

// Apply: instance and latest run as read; for an idle message also: idle row there.
func (t MarkReclaiming) Apply(s Sandbox) (Sandbox, error) {
	if why := failing(
		check{s.Instance == t.Instance, "instance"},
		check{s.LatestRun == t.LatestRun, "latest-run"},
		check{!t.Idle || s.DueAt != 0, "idle-row"},
	); why != "" {
		return sandboxRefusal(t, s, why)
	}
	s.Reclaiming, s.UpdatedAt = t.By, t.Now
	return s, nil
}

// Landed: the mark is mine.
func (t MarkReclaiming) Landed(s Sandbox) bool {
	return s.Instance == t.Instance && s.Reclaiming == t.By
}

// Unmark takes a reclaim attempt back; the idle row, if any, is due at DueAt.
type Unmark struct {
	Instance InstanceID
	By       string
	DueAt    Millis // zero: leave the idle row as it is
	Now      Millis
}

// Name is "unmark".
func (Unmark) Name() string { return "unmark" }

// Apply: the mark is mine; DueAt only where there is an idle row.
func (t Unmark) Apply(s Sandbox) (Sandbox, error) {
	if why := failing(
		check{s.Instance == t.Instance, "instance"},
		check{s.Reclaiming == t.By, "reclaiming"},
		check{t.DueAt == 0 || s.DueAt != 0, "idle-row"},
	); why != "" {
		return sandboxRefusal(t, s, why)
	}
	s.Reclaiming, s.UpdatedAt = "", t.Now
	if t.DueAt != 0 {
		s.DueAt = t.DueAt
	}
	return s, nil
}

// Landed is always false: without the mark there is nothing of mine to see.
func (Unmark) Landed(Sandbox) bool { return false }

// MarkIdle keeps a sandbox warm until DueAt, and takes the reclaim mark off.
type MarkIdle struct {
	Instance InstanceID
	By       string
	Since    Millis
	DueAt    Millis
	Hold     Millis     // a run's hold stays with its sandbox
	Snapshot SnapshotID // taken after its run; empty: the record keeps the one it has
}

// Name is "mark idle".
func (MarkIdle) Name() string { return "mark idle" }

// Apply: the mark is mine.
func (t MarkIdle) Apply(s Sandbox) (Sandbox, error) {
	if why := failing(
		check{s.Instance == t.Instance, "instance"},
		check{s.Reclaiming == t.By, "reclaiming"},
	); why != "" {
		return sandboxRefusal(t, s, why)
	}
	s.Reclaiming, s.IdleSince, s.DueAt, s.UpdatedAt = "", t.Since, t.DueAt, t.Since
	s.HoldUntil, s.LatestSnapshot = t.Hold, cmp.Or(t.Snapshot, s.LatestSnapshot)
	return s, nil
}

// Landed: idle since that very moment, due then.
func (t MarkIdle) Landed(s Sandbox) bool {
	return s.Instance == t.Instance && s.Reclaiming == "" && s.IdleSince == t.Since && s.DueAt == t.DueAt
}

// Launched is the transaction that makes a task a sandbox: ledger intent to
// running, instance record put, the run bound (DESIGN 4.2). All or nothing.
type Launched struct {
	Run     RunKey
	Epoch   int64
	Sandbox Sandbox // carries instance, task and key
	Now     Millis
}

// Name is "launched".
func (Launched) Name() string { return "launched" }

// ApplyRun: running, epoch mine, not ending, this instance, no task yet.
func (t Launched) ApplyRun(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Running, "not-running"},
		check{r.Epoch == t.Epoch, "epoch"},
		check{r.Ending == nil, "ending"},
		check{r.Instance == t.Sandbox.Instance, "instance"},
		check{r.TaskARN == "", "task"},
	); why != "" {
		return Run{}, &RefusedError{Op: t.Name(), Record: "run " + t.Run.String(), Why: why}
	}
	r.TaskARN, r.Cluster, r.Container = t.Sandbox.TaskARN, t.Sandbox.Cluster, t.Sandbox.Container
	return r, nil
}

// ApplyRow: the row is an intent.
func (t Launched) ApplyRow(row LedgerRow) (LedgerRow, error) {
	if row.State != LedgerIntent {
		return LedgerRow{}, &RefusedError{Op: t.Name(), Record: "ledger row " + string(t.Sandbox.Instance), Why: "state"}
	}
	row.State, row.TaskARN, row.Cluster = LedgerRunning, t.Sandbox.TaskARN, t.Sandbox.Cluster
	row.DueAt, row.UpdatedAt = 0, t.Now
	return row, nil
}

// Landed: the row is running with my task. The transaction is whole, so the rest
// of it happened too.
func (t Launched) Landed(row LedgerRow) bool {
	return row.State == LedgerRunning && row.TaskARN == t.Sandbox.TaskARN
}

// Condemn is the transaction after which nobody can find a task any more that is
// about to be stopped: ledger intent or running to stopping, and the instance
// record deleted. All or nothing.
type Condemn struct {
	Instance InstanceID
	Key      SandboxKey
	// By is the reclaim attempt whose mark the record must carry. Empty: the record
	// must not name this instance.
	By       string
	Why      string
	Unsealed bool
	Now      Millis
	DueAt    Millis // when a sweep sends its message again
}

// Name is "condemn".
func (Condemn) Name() string { return "condemn" }

// ApplyRow: the row is an intent or running, and owes no checkpoint: it is stored, or
// told as lost, first (I5).
func (t Condemn) ApplyRow(row LedgerRow) (LedgerRow, error) {
	if why := failing(
		check{row.State == LedgerIntent || row.State == LedgerRunning, "state"},
		check{row.Owed == "", "owed"},
	); why != "" {
		return LedgerRow{}, &RefusedError{Op: t.Name(), Record: "ledger row " + string(t.Instance), Why: why}
	}
	row.State, row.Why, row.Unsealed = LedgerStopping, t.Why, t.Unsealed
	row.DueAt, row.Attempts, row.UpdatedAt = t.DueAt, 0, t.Now
	return row, nil
}

// CheckSandbox tells why the record, nil if there is none, does not allow it.
func (t Condemn) CheckSandbox(s *Sandbox) error {
	var why string
	switch {
	case t.By == "" && s != nil && s.Instance == t.Instance:
		why = "instance"
	case t.By != "" && (s == nil || s.Instance != t.Instance):
		why = "instance"
	case t.By != "" && s.Reclaiming != t.By:
		why = "reclaiming"
	default:
		return nil
	}
	return &RefusedError{Op: t.Name(), Record: "sandbox " + string(t.Key), Why: why}
}

// Landed: the row is stopping or closed; whoever condemned it, it is condemned.
func (t Condemn) Landed(row LedgerRow) bool {
	return row.State == LedgerStopping || row.State == LedgerClosed
}

// Sandboxes is where instance records are kept.
type Sandboxes interface {
	// Sandbox reads a record consistently; ErrNotFound if there is none.
	Sandbox(ctx context.Context, key SandboxKey) (Sandbox, error)
	// UpdateSandbox carries out one transition in one conditional request; see
	// [Runs.Update] for what it answers.
	UpdateSandbox(ctx context.Context, key SandboxKey, t SandboxTransition) (Sandbox, error)
}

// Ledger is where every task that may cost money has its row.
type Ledger interface {
	// Row reads a row consistently; ErrNotFound if there is none.
	Row(ctx context.Context, id InstanceID) (LedgerRow, error)
	// PutIntent puts a row with state intent that must be absent. A row that is there
	// already is returned as it is, with a nil error: its state tells how far the
	// launch got. One with a Quota is counted in the same write, until it is closed; where
	// as many of its tenant are, it is a [*RefusedError]: "quota".
	PutIntent(ctx context.Context, row LedgerRow) (LedgerRow, error)
	// UpdateRow carries out one transition in one conditional request; see
	// [Runs.Update] for what it answers.
	UpdateRow(ctx context.Context, id InstanceID, t LedgerTransition) (LedgerRow, error)
}

// SandboxTransactions are the writes that touch more than one record.
type SandboxTransactions interface {
	// Launch carries out t in one transaction: the row by ApplyRow, the record put
	// absent, the run by ApplyRun. Any condition that does not hold is a
	// [*RefusedError] and nothing is written, unless the row shows that this very
	// transaction has landed already. Conflicts are retried.
	Launch(ctx context.Context, t Launched) error
	// Condemn carries out t in one transaction: the row by ApplyRow, the record
	// deleted under CheckSandbox (without By it must only not name the instance, and
	// stays). Refusals as for Launch.
	Condemn(ctx context.Context, t Condemn) error
	// MoveDebt carries out t in one transaction: the run by ApplyRun, the row by
	// ApplyRow. Refusals as for Launch, but that the run shows what has landed.
	MoveDebt(ctx context.Context, t MoveDebt) error
}
