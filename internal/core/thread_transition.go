package core

import (
	"slices"
)

// AcquireLease takes a thread's writer lease, or renews it where the owner holds it:
// a repeat, under the same fence.
type AcquireLease struct {
	Owner string
	Now   Millis
	Until Millis
	// Held says that the owner had it when somebody looked last. It is a hint at what to
	// ask for first, and no condition.
	Held bool
}

// Name is "acquire lease".
func (AcquireLease) Name() string { return "acquire lease" }

// Apply: nobody else holds the lease.
func (t AcquireLease) Apply(th Thread) (Thread, error) {
	if th.Lease.Live(t.Now) && th.Lease.Owner != t.Owner {
		return threadRefusal(t, th, "writer-conflict")
	}
	if !th.Lease.Live(t.Now) {
		th.Fence++
	}
	th.Lease, th.UpdatedAt = Lease{t.Owner, t.Until}, t.Now
	return th, nil
}

// Landed is always false: a repeat finds its own lease and renews it.
func (AcquireLease) Landed(Thread) bool { return false }

// RenewLease prolongs a lease that is live.
type RenewLease struct {
	Owner string
	Fence int64
	Now   Millis
	Until Millis
}

// Name is "renew lease".
func (RenewLease) Name() string { return "renew lease" }

// Apply: the lease is live and mine.
func (t RenewLease) Apply(th Thread) (Thread, error) {
	if why := lost(th, t.Owner, t.Fence, t.Now); why != "" {
		return threadRefusal(t, th, why)
	}
	th.Lease.Until, th.UpdatedAt = t.Until, t.Now
	return th, nil
}

// Landed is always false: a renewal may be repeated.
func (RenewLease) Landed(Thread) bool { return false }

// lost names what a writer lacks, or "".
func lost(th Thread, owner string, fence int64, now Millis) string {
	if th.Writes(Writer{th.ThreadKey, owner, fence}, now) {
		return ""
	}
	return "writer-lost"
}

// ReleaseLease gives a lease back. Nothing of its fence lands afterwards.
type ReleaseLease struct {
	Owner string
	Fence int64     // zero: whatever fence the owner has
	Seen  *StepSeen // nil: whatever step there is
}

// Name is "release lease".
func (ReleaseLease) Name() string { return "release lease" }

// Apply: the lease is mine, live or not, and the step as read.
func (t ReleaseLease) Apply(th Thread) (Thread, error) {
	if why := failing(
		check{th.Lease.Owner == t.Owner && (t.Fence == 0 || th.Fence == t.Fence), "writer-lost"},
		check{t.Seen == nil || th.Seen() == *t.Seen, "step"},
	); why != "" {
		return threadRefusal(t, th, why)
	}
	th.Lease = Lease{}
	return th, nil
}

// Landed: nobody has taken it since.
func (t ReleaseLease) Landed(th Thread) bool {
	return th.Lease.Owner == "" && (t.Fence == 0 || th.Fence == t.Fence)
}

// StepSeen is a step as it was read; the zero value is none. Every beginning has a token
// of its own.
type StepSeen struct {
	ID    CheckpointID
	Token string
}

// Seen is what a later write needs to know a step by.
func (th Thread) Seen() StepSeen {
	if th.Step == nil {
		return StepSeen{}
	}
	return StepSeen{th.Step.ID, th.Step.Token}
}

// BeginStep records a step before its agent is started, and renews the lease.
type BeginStep struct {
	Owner string
	Seen  StepSeen // the former step
	Step  Step     // its fence is the writer's
	Now   Millis
	Until Millis
}

// Name is "begin step".
func (BeginStep) Name() string { return "begin step" }

// Apply: the lease is live and mine, the former step as read.
func (t BeginStep) Apply(th Thread) (Thread, error) {
	why := lost(th, t.Owner, t.Step.Fence, t.Now)
	if why == "" {
		why = failing(check{th.Seen() == t.Seen, "step"})
	}
	if why != "" {
		return threadRefusal(t, th, why)
	}
	step := t.Step
	th.Step, th.Lease.Until, th.UpdatedAt = &step, t.Until, t.Now
	return th, nil
}

// Landed: the step has my token.
func (t BeginStep) Landed(th Thread) bool { return th.Step != nil && th.Step.Token == t.Step.Token }

// DoubtStep says that it is not known whether a step's agent began, and why.
type DoubtStep struct {
	Fence  int64
	Token  string // hex SHA-256, as in [Step.Token]
	SeenAt Millis // as recorded when it was begun
	Why    string
	Now    Millis
}

// Name is "doubt step".
func (DoubtStep) Name() string { return "doubt step" }

// Apply: the step is mine and working, and its agent has not been heard of.
func (t DoubtStep) Apply(th Thread) (Thread, error) {
	if why := failing(
		check{th.Fence == t.Fence, "writer-lost"},
		check{th.Step != nil && th.Step.Token == t.Token && th.Step.State == StepWorking, "step"},
		check{th.Step != nil && th.Step.SeenAt == t.SeenAt, "heard"},
	); why != "" {
		return threadRefusal(t, th, why)
	}
	step := *th.Step
	step.Why, step.SeenAt = t.Why, t.Now
	th.Step, th.UpdatedAt = &step, t.Now
	return th, nil
}

// Landed: my step is in that doubt.
func (t DoubtStep) Landed(th Thread) bool {
	return th.Step != nil && th.Step.Token == t.Token && th.Step.Why == t.Why && th.Step.SeenAt == t.Now && th.Step.State == StepWorking
}

// NoteStep says that a step's agent lives, how far it is, and renews the lease.
type NoteStep struct {
	Fence int64
	Token string // hex SHA-256, as in [Step.Token]
	Files int64
	Bytes int64
	Grant int64 // bytes that it gets leave to store, beside what it had
	Now   Millis
	Until Millis
}

// Name is "note step".
func (NoteStep) Name() string { return "note step" }

// Apply: the step is mine and working, its fence's lease live; it asks for no more than a
// step may store.
func (t NoteStep) Apply(th Thread) (Thread, error) {
	if why := failing(
		check{th.Fence == t.Fence && th.Lease.Live(t.Now), "writer-lost"},
		check{th.Step != nil && th.Step.Token == t.Token && th.Step.State == StepWorking, "step"},
		check{t.Grant == 0 || th.Step != nil && th.Step.Granted <= MaxGranted-t.Grant, "granted"},
	); why != "" {
		return threadRefusal(t, th, why)
	}
	step := *th.Step
	step.Granted += t.Grant
	step.SeenAt, step.Files, step.Bytes, step.Why = t.Now, t.Files, t.Bytes, ""
	th.Step, th.Lease.Until, th.UpdatedAt = &step, t.Until, t.Now
	return th, nil
}

// Landed is always false: a note may be repeated, and its grant counts as often.
func (NoteStep) Landed(Thread) bool { return false }

// EndStep ends a step that makes no checkpoint, or could not.
type EndStep struct {
	Fence   int64
	Token   string // hex SHA-256, as in [Step.Token]
	State   StepState
	Why     string
	Release bool // give the lease back, which is the step's own
	Now     Millis
}

// Name is "end step".
func (EndStep) Name() string { return "end step" }

// Apply: the step is mine and working, and no fence is newer than its.
func (t EndStep) Apply(th Thread) (Thread, error) {
	if why := failing(
		check{th.Fence == t.Fence, "writer-lost"},
		check{th.Step != nil && th.Step.Token == t.Token && th.Step.State == StepWorking, "step"},
	); why != "" {
		return threadRefusal(t, th, why)
	}
	step := *th.Step
	step.State, step.Why, step.SeenAt = t.State, t.Why, t.Now
	th.Step, th.UpdatedAt = &step, t.Now
	if t.Release {
		th.Lease = Lease{}
	}
	return th, nil
}

// Landed: my step has ended so.
func (t EndStep) Landed(th Thread) bool {
	return th.Step != nil && th.Step.Token == t.Token && th.Step.State == t.State && th.Step.Why == t.Why
}

// PutConversation moves a thread's conversation to the next version.
type PutConversation struct {
	Seen   Conversation // as read
	Object ObjectRef
	Fence  int64   // in the object's key: of the thread as read
	Runs   []RunID // whose transcripts it folds in
	Now    Millis
}

// Name is "put conversation".
func (PutConversation) Name() string { return "put conversation" }

// Apply: the version as read, and nothing of that fence is being collected.
func (t PutConversation) Apply(th Thread) (Thread, error) {
	if why := failing(
		check{th.Conversation.Version == t.Seen.Version, "stale-conversation"},
		check{th.Floor <= t.Fence, "floor"},
	); why != "" {
		return threadRefusal(t, th, why)
	}
	th.Conversation, th.UpdatedAt = t.Next(), t.Now
	th.PendingRuns = slices.DeleteFunc(slices.Clone(th.PendingRuns), func(r RunID) bool { return slices.Contains(t.Runs, r) })
	if len(th.PendingRuns) == 0 {
		th.PendingRuns = nil
	}
	return th, nil
}

// Next is the conversation that the write leaves.
func (t PutConversation) Next() Conversation {
	runs := slices.Concat(t.Seen.Runs, t.Runs)
	return Conversation{Version: t.Seen.Version + 1, Object: t.Object, Runs: runs[max(0, len(runs)-MaxFolded):]}
}

// Landed: my version, with my object and my runs.
func (t PutConversation) Landed(th Thread) bool {
	return th.Conversation.Version == t.Seen.Version+1 && th.Conversation.Object == t.Object &&
		slices.Equal(th.Conversation.Runs, t.Next().Runs)
}

// AddPending says that a run's transcript is in no conversation yet.
type AddPending struct {
	Run RunID
	Now Millis
}

// Name is "add pending run".
func (AddPending) Name() string { return "add pending run" }

// Apply: no conversation has folded the run in, and there is room.
func (t AddPending) Apply(th Thread) (Thread, error) {
	if why := failing(
		check{!slices.Contains(th.Conversation.Runs, t.Run), "folded"},
		check{slices.Contains(th.PendingRuns, t.Run) || len(th.PendingRuns) < MaxFolded, "pending-full"},
	); why != "" {
		return threadRefusal(t, th, why)
	}
	th.UpdatedAt = t.Now
	if !slices.Contains(th.PendingRuns, t.Run) {
		th.PendingRuns = slices.Sorted(slices.Values(append(slices.Clone(th.PendingRuns), t.Run)))
	}
	return th, nil
}

// Landed is always false: a repeat finds the run and changes nothing.
func (AddPending) Landed(Thread) bool { return false }

// LoseWorkspace records that a run's work was lost with its sandbox.
type LoseWorkspace struct {
	Run RunID
	Why string
	// Head and Fence are as read, when no capture of the run could publish any more.
	Head  CheckpointID
	Fence int64
	Now   Millis
}

// Name is "lose workspace".
func (LoseWorkspace) Name() string { return "lose workspace" }

// Apply: the head and the fence as read, so that a loss is not told after a newer
// checkpoint, nor while a capture that has begun since may publish.
func (t LoseWorkspace) Apply(th Thread) (Thread, error) {
	if why := failing(
		check{th.Head == t.Head, "head"},
		check{th.Fence == t.Fence, "fence"},
	); why != "" {
		return threadRefusal(t, th, why)
	}
	th.WorkspaceLost, th.UpdatedAt = &WorkspaceLoss{t.Run, t.Why, t.Now}, t.Now
	return th, nil
}

// Landed: that run's loss is recorded.
func (t LoseWorkspace) Landed(th Thread) bool {
	return th.WorkspaceLost != nil && th.WorkspaceLost.Run == t.Run
}

// NoteRun says that a run begins in the thread, which is no place for a fork any more, and
// is used from now on. Order: before the run's record, so that a deletion of the thread
// sees the one or the other.
type NoteRun struct {
	Run RunID
	Now Millis
}

// Name is "note run".
func (NoteRun) Name() string { return "note run" }

// Apply holds always: the first run stays.
func (t NoteRun) Apply(th Thread) (Thread, error) {
	if th.FirstRun == "" {
		th.FirstRun = t.Run
	}
	th.BegunAt, th.UpdatedAt = t.Now, t.Now
	return th, nil
}

// Landed is always false: it may be repeated.
func (NoteRun) Landed(Thread) bool { return false }

// RaiseFloor says that objects of older fences are being collected from now on.
type RaiseFloor struct {
	Owner string
	Fence int64
	Now   Millis
}

// Name is "raise floor".
func (RaiseFloor) Name() string { return "raise floor" }

// Apply: the lease is live and mine.
func (t RaiseFloor) Apply(th Thread) (Thread, error) {
	if why := lost(th, t.Owner, t.Fence, t.Now); why != "" {
		return threadRefusal(t, th, why)
	}
	th.Floor, th.UpdatedAt = t.Fence, t.Now
	return th, nil
}

// Landed: the floor is mine.
func (t RaiseFloor) Landed(th Thread) bool { return th.Floor == t.Fence }
