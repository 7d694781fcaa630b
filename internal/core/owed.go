package core

import "cmp"

// CheckpointPolicy says which ends of a run owe a checkpoint of its workspace.
type CheckpointPolicy string

// The policies. A finished run is one that ended with its own sentinel, whatever its
// exit status.
const (
	CheckpointDefault  CheckpointPolicy = "" // the installation's
	CheckpointNone     CheckpointPolicy = "none"
	CheckpointFinished CheckpointPolicy = "finished"
	CheckpointAlways   CheckpointPolicy = "always"
)

// CheckpointPolicies is the closed set.
var CheckpointPolicies = []CheckpointPolicy{CheckpointDefault, CheckpointNone, CheckpointFinished, CheckpointAlways}

// owesCheckpoint reports whether the end of a run owes a checkpoint: its policy, or
// else the installation's, asks for one, and there is a workspace that is not stored; or
// a paused run before it has left its own to it.
func owesCheckpoint(r Run, sealed bool, installation CheckpointPolicy) bool {
	if r.TaskARN == "" || r.Thread == "" || r.Checkpoint.Settled() {
		return false
	}
	if r.Start.Owes {
		return true
	}
	switch cmp.Or(r.CheckpointPolicy, installation) {
	case CheckpointAlways:
		return sealed || !r.idle()
	case CheckpointFinished:
		return sealed
	}
	return false
}

// keepsWorkspace reports whether the workspace of a run that has not ended is worth
// storing before its task goes: any policy but none asks for it, once an agent may have
// worked on it. Before that it may be half restored.
func keepsWorkspace(r Run, installation CheckpointPolicy) bool {
	if r.TaskARN == "" || r.Thread == "" || r.Checkpoint.Settled() || r.Start.Hosted && r.Start.AskedAt == 0 {
		return false
	}
	policy := cmp.Or(r.CheckpointPolicy, installation)
	return policy == CheckpointFinished || policy == CheckpointAlways
}

// idle reports whether the run ended before its agent could have done anything: what is in
// its sandbox is no work of the thread's, maybe not even what should have been restored,
// and must not follow the thread's head.
func (r Run) idle() bool {
	return r.Ending != nil && r.Ending.Reason == EndNeverStarted || r.Start.Hosted && r.Start.AskedAt == 0
}

// CheckpointState says how the checkpoint stands that a run's end owes.
type CheckpointState string

// The states. What is owed or failed keeps the run's reclaim mark; what was moved is
// owed by the ledger row of the sandbox; the others are final.
const (
	CheckpointNotOwed    CheckpointState = ""
	CheckpointOwed       CheckpointState = "owed"
	CheckpointFailed     CheckpointState = "failed"     // and is tried again
	CheckpointMoved      CheckpointState = "moved"      // a newer run has the workspace, or it is kept warm
	CheckpointDone       CheckpointState = "done"       // stored
	CheckpointSuperseded CheckpointState = "superseded" // a newer workspace of the thread is stored
	CheckpointLost       CheckpointState = "lost"       // and told to the next run of the thread
)

// CheckpointStates is the closed set.
var CheckpointStates = []CheckpointState{
	CheckpointNotOwed, CheckpointOwed, CheckpointFailed, CheckpointMoved, CheckpointDone, CheckpointSuperseded, CheckpointLost,
}

// RunCheckpoint is the checkpoint of an ended run's workspace.
type RunCheckpoint struct {
	State    CheckpointState
	ID       CheckpointID // of one that is done, or that superseded it
	Why      string       // of one that failed or is lost
	Tries    int          // that failed
	FailedAt Millis       // when the first of them did; zero: none
	// Older is the run whose checkpoint its sandbox owed already when it was moved: with this
	// one's it is stored, or lost.
	Older RunID
}

// Owes reports whether the run's own mark must stay for the checkpoint.
func (c RunCheckpoint) Owes() bool { return c.State == CheckpointOwed || c.State == CheckpointFailed }

// Settled reports whether nothing becomes of the checkpoint any more.
func (c RunCheckpoint) Settled() bool {
	return c.State == CheckpointDone || c.State == CheckpointSuperseded || c.State == CheckpointLost
}

// NoteCheckpoint writes how the checkpoint of an ended run stands.
type NoteCheckpoint struct {
	From       CheckpointState // as read
	Checkpoint RunCheckpoint
}

// Name is "note checkpoint".
func (NoteCheckpoint) Name() string { return "note checkpoint" }

// Apply: terminal, the state as read, and one that is not final; nothing is owed anew.
func (t NoteCheckpoint) Apply(r Run) (Run, error) {
	if why := failing(
		check{r.Status.Terminal(), "not-terminal"},
		check{r.Checkpoint.State == t.From, "checkpoint"},
		check{r.Checkpoint.Owes() || r.Checkpoint.State == CheckpointMoved, "settled"},
		check{t.Checkpoint.State != CheckpointNotOwed, "state"},
	); why != "" {
		return refusal(t, r, why)
	}
	r.Checkpoint = t.Checkpoint
	return r, nil
}

// Landed: it stands so.
func (t NoteCheckpoint) Landed(r Run) bool {
	return r.Status.Terminal() && r.Checkpoint == t.Checkpoint && t.Checkpoint.State != CheckpointNotOwed
}

// MoveDebt is the transaction in which a sandbox goes on with what a run owes: the
// run's mark is removed and the ledger row of the task owes the checkpoint. All or
// nothing, so that at each moment somebody owes it.
type MoveDebt struct {
	Run       RunKey
	Instance  InstanceID // as read
	Older     RunID      // what the row owes, as read
	Outcome   ReclaimOutcome
	Now       Millis
	ExpiresAt Millis // when the run's record may go
}

// Name is "move debt".
func (MoveDebt) Name() string { return "move debt" }

// ApplyRun: the reclaim row, the instance as read, and a checkpoint that is owed.
func (t MoveDebt) ApplyRun(r Run) (Run, error) {
	why := marked(r, t.Instance)
	if why == "" {
		why = failing(check{r.Checkpoint.Owes(), "not-owed"})
	}
	if why != "" {
		return Run{}, &RefusedError{Op: t.Name(), Record: "run " + t.Run.String(), Why: why}
	}
	r.Row, r.DueAt, r.ReclaimOutcome, r.ExpiresAt = RowNone, 0, t.Outcome, t.ExpiresAt
	r.Checkpoint.State, r.Checkpoint.Older = CheckpointMoved, t.Older
	return r, nil
}

// ApplyRow: the task is in service, and owes what it did. A debt that the row has already
// passes to the newer run, whose workspace holds the older one's and whose record names it.
func (t MoveDebt) ApplyRow(row LedgerRow) (LedgerRow, error) {
	if why := failing(check{row.State == LedgerRunning, "state"}, check{row.Owed == t.Older, "debt"}); why != "" {
		return LedgerRow{}, &RefusedError{Op: t.Name(), Record: "ledger row " + string(t.Instance), Why: why}
	}
	row.Owed, row.UpdatedAt = t.Run.Run, t.Now
	return row, nil
}

// Landed: the run owes nothing by itself any more, and my outcome stands there. The
// transaction is whole, so the row owed it.
func (t MoveDebt) Landed(r Run) bool {
	return r.Status.Terminal() && r.Row == RowNone && r.Instance == t.Instance && r.ReclaimOutcome == t.Outcome &&
		r.Checkpoint.State == CheckpointMoved
}

// SettleDebt takes from a ledger row what is stored, or told as lost.
type SettleDebt struct {
	Owed RunID // as read
	Now  Millis
}

// Name is "settle debt".
func (SettleDebt) Name() string { return "settle debt" }

// Apply: not closed, the debt as read.
func (t SettleDebt) Apply(row LedgerRow) (LedgerRow, error) {
	if why := failing(
		check{t.Owed != "", "owed"},
		check{row.State != LedgerClosed, "state"},
		check{row.Owed == t.Owed, "debt"},
	); why != "" {
		return ledgerRefusal(t, row, why)
	}
	row.Owed, row.UpdatedAt = "", t.Now
	return row, nil
}

// Landed: it owes nothing.
func (SettleDebt) Landed(row LedgerRow) bool { return row.Owed == "" }
