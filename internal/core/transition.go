package core

import "time"

// Transition is one conditional write of a run record, as a value: the rows of
// the table in DESIGN 4.1. A store carries it out in one request.
//
// Apply returns the record after the write, or a [*RefusedError] naming the
// condition that does not hold; r is not changed. Landed reports whether r shows
// that this very write has already happened, so that a store whose first answer
// was lost can tell its own success from a loss.
type Transition interface {
	Name() string
	Apply(r Run) (Run, error)
	Landed(r Run) bool
}

// refusal is what Apply answers when the first failing condition is why.
func refusal(t Transition, r Run, why string) (Run, error) {
	return Run{}, &RefusedError{Op: t.Name(), Record: "run " + r.RunKey.String(), Why: why}
}

// check is one named condition.
type check struct {
	holds bool
	why   string
}

// failing names the first condition that does not hold, or returns "".
func failing(checks ...check) string {
	for _, c := range checks {
		if !c.holds {
			return c.why
		}
	}
	return ""
}

// Renew keeps a host's attachment alive until Until. A recorded cancel refuses it,
// and the host learns of the cancel from the record.
type Renew struct {
	Epoch int64
	Until Millis
}

// Name is "renew".
func (Renew) Name() string { return "renew" }

// Apply: epoch mine, running, no recorded cancel.
func (t Renew) Apply(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Running, "not-running"},
		check{r.Epoch == t.Epoch, "epoch"},
		check{r.CancelRequested == 0, "cancel-requested"},
	); why != "" {
		return refusal(t, r, why)
	}
	r.AttachedUntil, r.DetachedSince = t.Until, 0
	r.Row, r.DueAt = RowLapse, t.Until
	return r, nil
}

// Landed is always false: repeating a renewal is the same renewal.
func (Renew) Landed(Run) bool { return false }

// Detach gives the run to the sweep.
type Detach struct {
	Epoch int64
	Now   Millis
}

// Name is "detach".
func (Detach) Name() string { return "detach" }

// Apply: epoch mine, running, no recorded cancel.
func (t Detach) Apply(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Running, "not-running"},
		check{r.Epoch == t.Epoch, "epoch"},
		check{r.CancelRequested == 0, "cancel-requested"},
	); why != "" {
		return refusal(t, r, why)
	}
	r.AttachedUntil, r.DetachedSince = 0, t.Now
	r.Row, r.DueAt = RowDetached, 0
	return r, nil
}

// Landed is always false: repeating a detach only stamps the same time again.
func (Detach) Landed(Run) bool { return false }

// Lapse detaches a run whose host stopped renewing, or cancels it where its
// definition says so. DueAt is the attachment's end as the sweep read it; it
// becomes detachedSince, so the TTL runs from when the host was last heard.
type Lapse struct {
	DueAt  Millis
	Cancel bool // the definition's onLapse as read
}

// Name is "lapse".
func (Lapse) Name() string { return "lapse" }

// Apply: running, the lapse row as read.
func (t Lapse) Apply(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Running, "not-running"},
		check{r.Row == RowLapse && r.DueAt == t.DueAt, "row"},
	); why != "" {
		return refusal(t, r, why)
	}
	if t.Cancel {
		r.CancelRequested = t.DueAt
	}
	r.AttachedUntil, r.DetachedSince = 0, t.DueAt
	r.Row, r.DueAt = RowDetached, 0
	return r, nil
}

// Landed: detached since that very moment.
func (t Lapse) Landed(r Run) bool { return turned(r, t.DueAt) }

// CancelDue hands a cancelled run, whose host had its grace, to the sweep.
type CancelDue struct{ DueAt Millis }

// Name is "cancel due".
func (CancelDue) Name() string { return "cancel due" }

// Apply: running, the cancel row as read. A paused run is claimed as it is.
func (t CancelDue) Apply(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Running, "not-running"},
		check{r.Row == RowCancel && r.DueAt == t.DueAt, "row"},
	); why != "" {
		return refusal(t, r, why)
	}
	r.AttachedUntil, r.DetachedSince = 0, t.DueAt
	r.Row, r.DueAt = RowDetached, 0
	return r, nil
}

// Landed: detached since that very moment.
func (t CancelDue) Landed(r Run) bool { return turned(r, t.DueAt) }

func turned(r Run, since Millis) bool {
	return r.Status == Running && r.Row == RowDetached && r.DetachedSince == since
}

// Attach takes a run for a host. It pre-empts a sweep's claim (I8).
type Attach struct {
	Seen     int64 // epoch as read
	Nonce    string
	Now      Millis
	Until    Millis
	Takeover bool // take it although another host is attached
}

// Name is "attach".
func (Attach) Name() string { return "attach" }

// Apply: running, not ending, no cancel, epoch as read; and detached, or lapsed, or
// a takeover.
func (t Attach) Apply(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Running, "not-running"},
		check{r.Ending == nil, "ending"},
		check{r.CancelRequested == 0, "cancel-requested"},
		check{r.Epoch == t.Seen, "epoch"},
		check{t.Takeover || r.Row == RowDetached || r.Row == RowLapse && r.DueAt <= t.Now, "attached-elsewhere"},
	); why != "" {
		return refusal(t, r, why)
	}
	r.Epoch, r.ClaimNonce, r.ClaimUntil = t.Seen+1, t.Nonce, 0
	r.AttachedUntil, r.DetachedSince = t.Until, 0
	r.Row, r.DueAt = RowLapse, t.Until
	return r, nil
}

// Landed: the claim carries my nonce.
func (t Attach) Landed(r Run) bool { return r.ClaimNonce == t.Nonce && r.Epoch == t.Seen+1 }

// Claim takes a detached or paused run for a sweep. What led to it is part of its
// own condition (I8), so a viewer who came back wins.
type Claim struct {
	Seen   int64  // epoch as read
	Paused bool   // as read
	Since  Millis // detachedSince, or interruptedSince of a paused run, as read
	Nonce  string
	Now    Millis
	Until  Millis
	// Ending, if set, is the decision to end the run, final from here on. It needs
	// that the run has none yet.
	Ending EndReason
	// AboutTask says that the decision rests on what the run's task is or does, as
	// those that it is gone, that its agent died or that it never began; then
	// Instance and TaskARN must be as read.
	AboutTask bool
	Instance  InstanceID
	TaskARN   string
	// TTLSeconds is the run's TTL as read, for EndExpired, and SpendCap its cap, for
	// EndSpendCap.
	TTLSeconds int64
	SpendCap   Dollars
}

// Name is "claim".
func (Claim) Name() string { return "claim" }

// Apply: running and detached, or paused, since then; epoch as read; no live claim;
// to end also: not ending yet, the task as read, for an expiry the TTL as read and
// no live hold, for a spend cap the cap as read and no live hold, for a cancel the
// recorded cancel.
func (t Claim) Apply(r Run) (Run, error) {
	if why := failing(
		check{!t.Paused && r.Status == Running && r.Row == RowDetached && r.DetachedSince == t.Since ||
			t.Paused && r.Status == Interrupted && r.InterruptedSince == t.Since, "not-detached"},
		check{r.Epoch == t.Seen, "epoch"},
		check{r.ClaimUntil <= t.Now, "claimed"},
		check{t.Ending == "" || r.Ending == nil, "ending"},
		check{!t.AboutTask || r.Instance == t.Instance && r.TaskARN == t.TaskARN, "task"},
		check{t.Ending != EndExpired || r.TTLSeconds == t.TTLSeconds, "ttl"},
		check{t.Ending != EndSpendCap || r.SpendCap == t.SpendCap, "spend-cap"},
		check{t.Ending != EndExpired && t.Ending != EndSpendCap || !r.Hold.Live(t.Now), "held"},
		check{t.Ending != EndCancelled || r.CancelRequested != 0, "not-cancelled"},
	); why != "" {
		return refusal(t, r, why)
	}
	r.Epoch, r.ClaimNonce, r.ClaimUntil = t.Seen+1, t.Nonce, t.Until
	if t.Ending != "" {
		r.Ending = &Ending{Reason: t.Ending, At: t.Now}
	}
	return r, nil
}

// Landed: the claim carries my nonce.
func (t Claim) Landed(r Run) bool { return r.ClaimNonce == t.Nonce && r.Epoch == t.Seen+1 }

// Release lets the next sweep go on at once with a paused finalisation.
type Release struct{ Epoch int64 }

// Name is "release".
func (Release) Name() string { return "release" }

// Apply: epoch mine, not terminal.
func (t Release) Apply(r Run) (Run, error) {
	if why := driving(r, t.Epoch); why != "" {
		return refusal(t, r, why)
	}
	r.ClaimUntil = 0
	return r, nil
}

// Landed is always false: a release may be repeated.
func (Release) Landed(Run) bool { return false }

// driving names what a driver's write under epoch lacks, or "".
func driving(r Run, epoch int64) string {
	return failing(
		check{!r.Status.Terminal(), "terminal"},
		check{r.Epoch == epoch, "epoch"},
	)
}

// Append moves the log's end over one piece of the journal, and seals the log
// when the piece was followed by the sentinel. A store puts the segment in the same
// transaction; an empty piece has no segment.
type Append struct {
	Epoch int64
	From  int64
	End   int64
	Hash  []byte // state of the running SHA-256 after End
	Tail  []byte // the last bytes before End, at most JournalOverlap
	// Omitted is how many bytes the log lacks, this piece included.
	Omitted int64
	Sealed  *Sealed
}

// Name is "append".
func (Append) Name() string { return "append" }

// Apply: epoch mine, not terminal, not sealed, the log ends where the piece begins.
func (t Append) Apply(r Run) (Run, error) {
	why := driving(r, t.Epoch)
	if why == "" {
		why = failing(
			check{r.Sealed == nil, "sealed"},
			check{r.LogEnd == t.From, "log-end"},
		)
	}
	if why != "" {
		return refusal(t, r, why)
	}
	r.LogEnd, r.LogHash, r.LogTail, r.LogOmitted = t.End, t.Hash, t.Tail, t.Omitted
	if t.Sealed != nil {
		r.Sealed = t.Sealed
	}
	return r, nil
}

// Landed: under my epoch, the log ends where the piece ends, and is sealed if it
// was to be. Nobody else can have written that.
func (t Append) Landed(r Run) bool {
	return r.Epoch == t.Epoch && r.LogEnd == t.End && (t.Sealed == nil && r.Sealed == nil && t.End > t.From ||
		t.Sealed != nil && r.Sealed != nil && *t.Sealed == *r.Sealed)
}

// Finish ends a run: terminal status, closed log and reclaim mark are this one
// write (I4).
type Finish struct {
	Epoch      int64
	Nonce      string // the claim's, by which a repeat knows its own success
	Now        Millis
	Status     Status // terminal
	Error      *RunError
	ExitCode   *int
	Transcript Transcript // Bytes must equal the log's end
	Reclaim    ReclaimKind
	ExpiresAt  Millis // when the record may go, unless a mark is still owed then
	NotBefore  Millis // when a sweep sends the reclaim message again; not before the first was sent
	Owes       bool   // a checkpoint of its workspace; needs a mark
	// Stored is the checkpoint of its workspace, where one is stored.
	Stored CheckpointID
}

// Name is "finish".
func (Finish) Name() string { return "finish" }

// Apply: epoch mine, not terminal, the log ends where the transcript does, and only
// what leaves a mark owes a checkpoint.
func (t Finish) Apply(r Run) (Run, error) {
	why := driving(r, t.Epoch)
	if why == "" {
		why = failing(
			check{t.Status.Terminal(), "status"},
			check{r.LogEnd == t.Transcript.Bytes, "log-end"},
			check{!t.Owes || t.Reclaim != ReclaimNone, "owes"},
			check{!t.Owes || t.Stored == "", "stored"},
		)
	}
	if why != "" {
		return refusal(t, r, why)
	}
	transcript := t.Transcript
	r.Status, r.FinishedAt, r.Error, r.ExitCode, r.Transcript = t.Status, t.Now, t.Error, t.ExitCode, &transcript
	r.ClaimUntil, r.AttachedUntil = 0, 0
	r.Reclaim, r.ExpiresAt = t.Reclaim, 0
	if t.Reclaim == ReclaimNone {
		r.ExpiresAt = t.ExpiresAt
	}
	if t.Owes {
		r.Checkpoint = RunCheckpoint{State: CheckpointOwed}
	}
	if t.Stored != "" {
		r.Checkpoint = RunCheckpoint{State: CheckpointDone, ID: t.Stored}
	}
	r.Row, r.DueAt, r.ReclaimSince = RowNone, 0, 0
	if t.Reclaim != ReclaimNone {
		r.Row, r.DueAt, r.ReclaimSince = RowReclaim, t.NotBefore, t.Now
	}
	return r, nil
}

// Landed: terminal under my epoch and nonce is my own success.
func (t Finish) Landed(r Run) bool {
	return r.Status.Terminal() && r.Epoch == t.Epoch && r.ClaimNonce == t.Nonce
}

// Interrupt pauses a run for a human. From Until on sweeps look at it: some time before
// its pause is over, so that its end is warned of.
type Interrupt struct {
	Epoch int64
	Now   Millis
	Until Millis
}

// Name is "interrupt".
func (Interrupt) Name() string { return "interrupt" }

// Apply: epoch mine, running, no recorded cancel.
func (t Interrupt) Apply(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Running, "not-running"},
		check{r.Epoch == t.Epoch, "epoch"},
		check{r.CancelRequested == 0, "cancel-requested"},
	); why != "" {
		return refusal(t, r, why)
	}
	r.Status, r.InterruptedSince = Interrupted, t.Now
	r.AttachedUntil, r.DetachedSince, r.ClaimUntil = 0, 0, 0
	r.Row, r.DueAt = RowPause, t.Until
	return r, nil
}

// Landed: paused since that very moment under my epoch.
func (t Interrupt) Landed(r Run) bool {
	return r.Status == Interrupted && r.Epoch == t.Epoch && r.InterruptedSince == t.Now
}

// CancelGrace is how long the host that drives a run has to act on a recorded
// cancel before the sweep does.
const CancelGrace = 15 * time.Second

// RequestCancel records a user's wish. It needs the row as read, since it moves
// one; refused for the row, the caller reads again.
type RequestCancel struct {
	Now Millis
	Row Row // as read
}

// Name is "cancel".
func (RequestCancel) Name() string { return "cancel" }

// Apply: not terminal, the row as read. A cancel already recorded stays as it is.
func (t RequestCancel) Apply(r Run) (Run, error) {
	if why := failing(
		check{!r.Status.Terminal(), "terminal"},
		check{r.Row == t.Row, "row"},
	); why != "" {
		return refusal(t, r, why)
	}
	if r.CancelRequested == 0 {
		r.CancelRequested = t.Now
	}
	if t.Row == RowLapse || t.Row == RowPause {
		r.Row, r.DueAt = RowCancel, t.Now.Add(CancelGrace)
	}
	return r, nil
}

// Landed is always false: a repeat finds the cancel and changes nothing.
func (RequestCancel) Landed(Run) bool { return false }

// Hint makes somebody look sooner (I3): the task was seen stopping, or the agent
// said that it ended. It shortens an attachment to Lapse: whoever renews keeps it. The
// run's own TaskARN guards against news of another task.
type Hint struct {
	TaskARN       string
	TaskStoppedAt Millis
	ExitedAt      Millis
	First         bool   // only if no agent's end was hinted at before
	Row           Row    // as read
	DueAt         Millis // as read
	Lapse         Millis // when a lapse row is due from now on
}

// hintLapse is when an attached run lapses after a hint. An agent's own word brings no lapse
// nearer that would cancel the run: its host may be there, and the agent at work.
func (l Limits) hintLapse(r Run, h Hint) Millis {
	if r.OnLapse == LapseCancels && h.ExitedAt != 0 {
		return r.DueAt
	}
	return min(r.DueAt, nowMillis().Add(l.HintLapse))
}

// Name is "hint".
func (Hint) Name() string { return "hint" }

// Apply: not terminal, the task and the row as read; no hint yet where it must be the
// first.
func (t Hint) Apply(r Run) (Run, error) {
	if why := failing(
		check{!r.Status.Terminal(), "terminal"},
		check{r.TaskARN == t.TaskARN, "task"},
		check{!t.First || r.ExitedAt == 0, "exited"},
		check{r.Row == t.Row && r.DueAt == t.DueAt, "row"},
	); why != "" {
		return refusal(t, r, why)
	}
	if t.TaskStoppedAt != 0 {
		r.TaskStoppedAt = t.TaskStoppedAt
	}
	if t.ExitedAt != 0 {
		r.ExitedAt = t.ExitedAt
	}
	if t.Row == RowLapse {
		r.DueAt, r.AttachedUntil = t.Lapse, t.Lapse
	}
	return r, nil
}

// Landed is always false: a hint may be repeated.
func (Hint) Landed(Run) bool { return false }

// ReclaimDone removes an ended run's reclaim mark.
type ReclaimDone struct {
	Instance  InstanceID // as read
	Outcome   ReclaimOutcome
	ExpiresAt Millis // when the record may go
}

// Name is "reclaim done".
func (ReclaimDone) Name() string { return "reclaim done" }

// Apply: the reclaim row, the instance as read, and no checkpoint owed: the mark is
// what leads to one (I5).
func (t ReclaimDone) Apply(r Run) (Run, error) {
	why := marked(r, t.Instance)
	if why == "" {
		why = failing(check{!r.Checkpoint.Owes(), "owes-checkpoint"})
	}
	if why != "" {
		return refusal(t, r, why)
	}
	r.Row, r.DueAt, r.ReclaimOutcome, r.ExpiresAt = RowNone, 0, t.Outcome, t.ExpiresAt
	return r, nil
}

// Landed: no row, and my outcome.
func (t ReclaimDone) Landed(r Run) bool {
	return r.Status.Terminal() && r.Row == RowNone && r.Instance == t.Instance && r.ReclaimOutcome == t.Outcome
}

// ReclaimLater moves an ended run's reclaim mark to NotBefore.
type ReclaimLater struct {
	Instance  InstanceID // as read
	Outcome   ReclaimOutcome
	NotBefore Millis
	Attempts  int
}

// Name is "reclaim later".
func (ReclaimLater) Name() string { return "reclaim later" }

// Apply: the reclaim row, the instance as read.
func (t ReclaimLater) Apply(r Run) (Run, error) {
	if why := marked(r, t.Instance); why != "" {
		return refusal(t, r, why)
	}
	r.DueAt, r.ReclaimOutcome, r.ReclaimAttempts = t.NotBefore, t.Outcome, t.Attempts
	return r, nil
}

// Landed is always false: a repeat moves the mark to the same time.
func (ReclaimLater) Landed(Run) bool { return false }

func marked(r Run, instance InstanceID) string {
	return failing(
		check{r.Status.Terminal(), "not-terminal"},
		check{r.Row == RowReclaim, "row"},
		check{r.Instance == instance, "instance"},
	)
}

// NameInstance writes the id of the task a launch is about to ask for, before it
// exists (I6).
type NameInstance struct {
	Epoch    int64
	Old      InstanceID // as read; overwritten only when its row is spent
	Instance InstanceID
	Key      SandboxKey
	Provider string
	Cluster  string
}

// Name is "name instance".
func (NameInstance) Name() string { return "name instance" }

// Apply: epoch mine, running, not ending, no task yet, the former instance as read. Whoever
// has decided the end has looked which sandbox goes with it.
func (t NameInstance) Apply(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Running, "not-running"},
		check{r.Epoch == t.Epoch, "epoch"},
		check{r.Ending == nil, "ending"},
		check{r.TaskARN == "", "task"},
		check{r.Instance == t.Old, "instance"},
	); why != "" {
		return refusal(t, r, why)
	}
	r.Instance, r.SandboxKey, r.Provider, r.Cluster = t.Instance, t.Key, t.Provider, t.Cluster
	return r, nil
}

// Landed: the record names my instance under my epoch.
func (t NameInstance) Landed(r Run) bool {
	return r.Epoch == t.Epoch && r.Instance == t.Instance && r.Status == Running
}
