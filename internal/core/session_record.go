package core

import (
	"context"
	"slices"
)

// EndFailed is the end that the host of a run decided because something failed; what,
// stands in the record's Error.
const EndFailed EndReason = "failed"

// OwnerRun begins the owner of the writer lease that the host of a run holds; the run's
// id follows.
const OwnerRun = "run:"

// RunStart is what the start of a run has come to. It is kept on the record, so that a
// start that is asked again goes on, and says the same.
type RunStart struct {
	Hosted   bool         // a session's: before AskedAt no agent of it has begun
	Parent   RunID        // the paused run that this one continues
	Resumed  bool         // its sandbox was there before it
	Noted    bool         // what follows is written, up to LostWhy
	Head     CheckpointID // of the thread as the run found it, or as it was moved for it
	Restored CheckpointID // brought back into the run's sandbox
	LostRun  RunID        // whose workspace the thread had lost
	LostWhy  string
	AskedAt  Millis     // from when on the agent may have begun
	ReadyAt  Millis     // since when it is known to have
	Native   SnapshotID // that its sandbox is made from; empty: from the definition alone
	CloneAt  Millis     // when the clone was begun
	Cloned   bool       // it is done
	SetupAt  Millis     // when the set-up was begun
	SetUp    bool       // it is done
	HookedAt Millis     // when the ready hook had answered
	Owes     bool       // the workspace holds what its parent would have owed: each end owes it
	Key      SandboxKey // what its sandbox is made for
}

// NoteStart writes how far the start of a run is.
type NoteStart struct {
	Epoch int64
	Was   RunStart // as read
	Start RunStart
}

// Name is "note start".
func (NoteStart) Name() string { return "note start" }

// Apply: epoch mine, running, no recorded cancel, not ending, the start as read.
func (t NoteStart) Apply(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Running, "not-running"},
		check{r.Epoch == t.Epoch, "epoch"},
		check{r.CancelRequested == 0, "cancel-requested"},
		check{r.Ending == nil, "ending"},
		check{r.Start == t.Was, "start"},
	); why != "" {
		return refusal(t, r, why)
	}
	r.Start = t.Start
	return r, nil
}

// Landed: under my epoch, the start is mine.
func (t NoteStart) Landed(r Run) bool { return r.Epoch == t.Epoch && r.Start == t.Start }

// AddBearer writes what a new attempt at starting the run's agent will be known by, before
// it is made.
type AddBearer struct {
	Epoch  int64
	Was    []string // as read
	Bearer string   // hex SHA-256
}

// Name is "add bearer".
func (AddBearer) Name() string { return "add bearer" }

// Bearers are those after it: the oldest goes where there are too many.
func (t AddBearer) Bearers() []string {
	all := append(slices.Clone(t.Was), t.Bearer)
	return all[max(0, len(all)-MaxBearers):]
}

// Apply: epoch mine, running, no recorded cancel, not ending, the bearers as read.
func (t AddBearer) Apply(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Running, "not-running"},
		check{r.Epoch == t.Epoch, "epoch"},
		check{r.CancelRequested == 0, "cancel-requested"},
		check{r.Ending == nil, "ending"},
		check{slices.Equal(r.Bearers, t.Was), "bearers"},
	); why != "" {
		return refusal(t, r, why)
	}
	r.Bearers = t.Bearers()
	return r, nil
}

// Landed: under my epoch it is the newest.
func (t AddBearer) Landed(r Run) bool {
	return r.Epoch == t.Epoch && slices.Equal(r.Bearers, t.Bearers())
}

// NoteFiles writes where the record of a run's changes of files is kept.
type NoteFiles struct {
	Epoch int64
	Files RunFiles
}

// Name is "note files".
func (NoteFiles) Name() string { return "note files" }

// Apply: epoch mine, not terminal.
func (t NoteFiles) Apply(r Run) (Run, error) {
	if why := driving(r, t.Epoch); why != "" {
		return refusal(t, r, why)
	}
	r.Files = new(t.Files)
	return r, nil
}

// Landed: under my epoch it is mine.
func (t NoteFiles) Landed(r Run) bool {
	return r.Epoch == t.Epoch && r.Files != nil && *r.Files == t.Files
}

// EndRun is the final decision of a run's own host to end it: before its agent is
// touched, so that whoever takes over goes on with the end (I9).
type EndRun struct {
	Epoch  int64
	Reason EndReason
	Error  *RunError // nil: as the reason says
	Now    Millis
	// Until is when a sweep goes on with the end of an attached run whose host is not heard
	// of any more; Row is the run's as read.
	Row   Row
	Until Millis
}

// Name is "end run".
func (EndRun) Name() string { return "end run" }

// Apply: epoch mine, not terminal, not sealed, not ending, the row as read; for a cancel,
// the recorded cancel.
func (t EndRun) Apply(r Run) (Run, error) {
	why := driving(r, t.Epoch)
	if why == "" {
		why = failing(
			check{r.Sealed == nil, "sealed"},
			check{r.Ending == nil, "ending"},
			check{t.Reason != EndCancelled || r.CancelRequested != 0, "not-cancelled"},
			check{r.Row == t.Row, "row"},
		)
	}
	if why != "" {
		return refusal(t, r, why)
	}
	r.Ending, r.Error = &Ending{Reason: t.Reason, At: t.Now}, t.Error
	if t.Row == RowLapse {
		r.DueAt, r.AttachedUntil = t.Until, t.Until
	}
	return r, nil
}

// Landed: under my epoch it was decided so at that very moment.
func (t EndRun) Landed(r Run) bool {
	return r.Epoch == t.Epoch && r.Ending != nil && *r.Ending == Ending{Reason: t.Reason, At: t.Now}
}

// Resumed is the transaction in which a sandbox passes to the next run of its thread:
// its latest run moves, its idle row goes, and the run is bound to it (DESIGN 4.2). All
// or nothing.
type Resumed struct {
	Run      RunKey
	Epoch    int64
	Instance InstanceID // of the run as read: a launch that is given up for this
	Was      RunStart   // of the run as read
	Sandbox  Sandbox    // as read; its latest run was read as one that ended cleanly
	// Debt passes the checkpoint that the latest run still owes to the task's row, in the
	// same write: the next turn may end before anybody looks at the old one's mark.
	Debt *MoveDebt
	Now  Millis
}

// Name is "resumed".
func (Resumed) Name() string { return "resumed" }

// ApplyRun: running, epoch mine, no task yet, the instance as read; no recorded cancel,
// not ending, the start as read.
func (t Resumed) ApplyRun(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Running, "not-running"},
		check{r.Epoch == t.Epoch, "epoch"},
		check{r.TaskARN == "", "task"},
		check{r.Instance == t.Instance, "instance"},
		check{r.CancelRequested == 0, "cancel-requested"},
		check{r.Ending == nil, "ending"},
		check{r.Start == t.Was, "start"},
	); why != "" {
		return Run{}, &RefusedError{Op: t.Name(), Record: "run " + t.Run.String(), Why: why}
	}
	r.Start.Resumed = true
	return bound(r, t.Sandbox), nil
}

// bound is r in a sandbox.
func bound(r Run, s Sandbox) Run {
	r.Provider, r.SandboxKey, r.Instance = s.Material.Provider, s.Key, s.Instance
	r.TaskARN, r.Cluster, r.Container = s.TaskARN, s.Cluster, s.Container
	return r
}

// ApplySandbox: instance and latest run as read, and nobody reclaims it.
func (t Resumed) ApplySandbox(s Sandbox) (Sandbox, error) {
	return handover{seen: t.Sandbox, next: t.Run.Run, op: t.Name(), now: t.Now}.apply(s)
}

// handover passes a sandbox on to the next run of its thread.
type handover struct {
	seen Sandbox // as it was read
	next RunID
	op   string
	now  Millis
}

func (h handover) apply(s Sandbox) (Sandbox, error) {
	if why := failing(
		check{s.Instance == h.seen.Instance, "instance"},
		check{s.LatestRun == h.seen.LatestRun, "latest-run"},
		check{s.Reclaiming == "", "reclaiming"},
	); why != "" {
		return Sandbox{}, &RefusedError{Op: h.op, Record: "sandbox " + string(h.seen.Key), Why: why}
	}
	s.LatestRun, s.IdleSince, s.DueAt, s.UpdatedAt = h.next, 0, 0, h.now
	return s, nil
}

// Landed: the run has that very task under my epoch.
func (t Resumed) Landed(r Run) bool {
	return r.Epoch == t.Epoch && r.Instance == t.Sandbox.Instance && r.TaskARN == t.Sandbox.TaskARN && r.TaskARN != ""
}

// Continued is the transaction in which a run goes on for one that was paused: the
// parent ends, its sandbox passes on, and the child begins, bound to it. All or nothing.
type Continued struct {
	Parent  RunKey
	End     Finish
	Child   Run      // whole; its Start names the parent
	Sandbox *Sandbox // as read; nil: the parent has none that could serve
}

// Name is "continued".
func (Continued) Name() string { return "continued" }

func (t Continued) refused(record, why string) error {
	return &RefusedError{Op: t.Name(), Record: record, Why: why}
}

// ApplyParent: paused, no recorded cancel, not ending; and what [Finish] asks for.
func (t Continued) ApplyParent(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Interrupted, "not-paused"},
		check{r.CancelRequested == 0, "cancel-requested"},
		check{r.Ending == nil, "ending"},
	); why != "" {
		return Run{}, t.refused("run "+t.Parent.String(), why)
	}
	after, err := t.End.Apply(r)
	if why := refusalOf(err); why != "" {
		return Run{}, t.refused("run "+t.Parent.String(), why)
	}
	return after, err
}

// ApplySandbox: instance and latest run as read, and nobody reclaims it.
func (t Continued) ApplySandbox(s Sandbox) (Sandbox, error) {
	return handover{seen: *t.Sandbox, next: t.Child.RunKey.Run, op: t.Name(), now: t.End.Now}.apply(s)
}

// Met tells what it means that the child is there already: nil if it is this host's own
// continuation of that parent.
func (t Continued) Met(have Run) error {
	if why := failing(
		check{!have.Status.Terminal(), "terminal"},
		check{have.ClaimNonce == t.Child.ClaimNonce, "attached-elsewhere"},
		check{have.Start.Parent == t.Parent.Run, "parent"},
	); why != "" {
		return t.refused("run "+t.Child.RunKey.String(), why)
	}
	return nil
}

// SessionTransactions are the writes of a session that touch more than one record.
type SessionTransactions interface {
	// Resume carries out t in one transaction: the run by ApplyRun, the record by
	// ApplySandbox. Any condition that does not hold is a [*RefusedError] and nothing is
	// written, unless the run shows that this very transaction has landed already. With
	// a Debt it carries that out too, by its own conditions. Conflicts are retried.
	Resume(ctx context.Context, t Resumed) error
	// Continue carries out t in one transaction: the child put, absent or by Met; the
	// parent by ApplyParent; the record by ApplySandbox, if there is one. Refusals as
	// for Resume, but that the child shows what has landed.
	Continue(ctx context.Context, t Continued) error
}
