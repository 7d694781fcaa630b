package core

import (
	"cmp"
	"context"
	"errors"
	"slices"
)

// Reason says why a checkpoint was made.
type Reason string

// The reasons.
const (
	ReasonAutomatic Reason = "automatic"
	ReasonNamed     Reason = "named"
	ReasonForkRoot  Reason = "fork-root"
	ReasonSafety    Reason = "safety" // before a restore into a running sandbox
)

// Artifact is something that a run made beside its workspace, as a checkpoint froze
// it: its object never changes.
type Artifact struct {
	Run       RunID     `json:"run"`
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	MIME      string    `json:"mimeType"`
	CreatedAt Millis    `json:"createdAt"`
	Object    ObjectRef `json:"object"`
}

// MaxArtifacts is how many artifacts a thread may have.
const MaxArtifacts = 256

// Checkpoint is one picture of a thread. It never changes (CP-1). Parent may be a
// checkpoint that retention has taken since: history is not rewritten.
type Checkpoint struct {
	ThreadKey
	ID           CheckpointID
	Parent       CheckpointID
	CreatedAt    Millis
	Reason       Reason
	Label        *string
	SourceRun    RunID
	Digest       string    // hex SHA-256 of the root as it was handed in, by which a repeat is known
	Manifest     ObjectRef // the root as the server wrote it
	Files        int64
	Bytes        int64
	Conversation Conversation
	Artifacts    []Artifact
	PendingRuns  []RunID
	ForkOf       CheckpointID // of a fork's root
}

// CompareCheckpoints orders by creation time, then by the id's bytes (CP-9).
func CompareCheckpoints(a, b Checkpoint) int {
	if c := int(min(1, max(-1, a.CreatedAt-b.CreatedAt))); c != 0 {
		return c
	}
	switch {
	case a.ID < b.ID:
		return -1
	case a.ID > b.ID:
		return 1
	}
	return 0
}

// CheckpointName is the entry that keeps an id unique in its tenant.
type CheckpointName struct {
	ID        CheckpointID
	Thread    ThreadID
	CreatedAt Millis
	Digest    string
	ForkOf    CheckpointID
}

// NameOf is the entry of a checkpoint.
func NameOf(c Checkpoint) CheckpointName {
	return CheckpointName{c.ID, c.Thread, c.CreatedAt, c.Digest, c.ForkOf}
}

// Pin keeps objects of one thread from collection for another one that was forked
// from it: the packs of the owner that Manifest lists, and Objects.
type Pin struct {
	Owner      ThreadKey // whose objects
	By         ThreadKey // the fork
	Checkpoint CheckpointID
	Manifest   ObjectRef // of the fork's root; the fork keeps it while it has pins
	Objects    []string  // keys of artifacts, sorted
}

// Commit is the transaction that publishes a checkpoint: the head moves, the
// checkpoint and its name are put. All or nothing.
type Commit struct {
	Writer     Writer
	Now        Millis
	Expected   CheckpointID // the head as the writer knows it
	Checkpoint Checkpoint
	Token      string // of the step that this ends, as in [Step.Token]; may be empty
	Release    bool   // give the lease back
}

// Name is "commit".
func (Commit) Name() string { return "commit" }

// ApplyThread: the lease is live and mine, and the step; the head as expected, and the
// parent it (CP-5).
func (t Commit) ApplyThread(th Thread) (Thread, error) {
	if why := failing(
		check{th.Writes(t.Writer, t.Now), "writer-lost"},
		check{t.Token == "" || th.Step != nil && th.Step.Token == t.Token && th.Step.State == StepWorking, "writer-lost"},
		check{th.Head == t.Expected, "stale-head"},
		check{t.Checkpoint.Parent == t.Expected, "parent-mismatch"},
	); why != "" {
		return Thread{}, t.refused(why)
	}
	th.Head, th.WorkspaceLost, th.UpdatedAt = t.Checkpoint.ID, nil, t.Now
	if t.Token != "" {
		step := *th.Step
		step.State, step.Why = StepDone, ""
		step.SeenAt, step.Files, step.Bytes = t.Now, t.Checkpoint.Files, t.Checkpoint.Bytes
		th.Step = &step
	}
	if t.Release {
		th.Lease = Lease{}
	}
	return th, nil
}

// Check refuses what no store need be asked for: identifiers, then a writer of another
// thread, then the artifacts.
func (t Commit) Check() error {
	c := t.Checkpoint
	err := cmp.Or(checkThread(c.ThreadKey), checkThread(t.Writer.ThreadKey), checkCheckpoint(c.Tenant, c.ID))
	for _, id := range []CheckpointID{c.Parent, t.Expected} {
		if id != "" {
			err = cmp.Or(err, checkCheckpoint(c.Tenant, id))
		}
	}
	if err != nil {
		return err
	}
	if t.Writer.ThreadKey != c.ThreadKey {
		return t.refused("writer-lost")
	}
	for _, a := range c.Artifacts {
		if err := cmp.Or(a.check(), a.checkObject()); err != nil {
			return err
		}
	}
	return nil
}

// checkObject refuses an artifact that is not frozen.
func (a Artifact) checkObject() error {
	if o := a.Object; o.Key == "" || !isSHA256(o.SHA256) || o.Size < 0 {
		return invalid("invalid-entry", "artifact %.80q: want a key, 64 hex digits and a size of 0 or more, got %.80q, %.80q and %d", a.ID, o.Key, o.SHA256, o.Size)
	}
	return nil
}

// AppendCheckpoint publishes a checkpoint, with the checks in the order of CP-5, by which
// callers see the code that they would see upstream: identifiers, the writer's thread,
// artifacts, entries, then under the conditions of the write itself the lease, the id,
// the head and the parent. entries checks what the checkpoint stores, and may complete t.
func AppendCheckpoint(ctx context.Context, threads Threads, t *Commit, entries func() error) error {
	if err := t.Check(); err != nil {
		return err
	}
	if err := entries(); err != nil {
		return err
	}
	return threads.Commit(ctx, *t)
}

func (t Commit) refused(why string) error {
	return &RefusedError{Op: t.Name(), Record: "checkpoint " + string(t.Checkpoint.ID), Why: why}
}

// Landed: the name is this very checkpoint's.
func (t Commit) Landed(taken CheckpointName) bool {
	return taken.Thread == t.Checkpoint.Thread && taken.Digest == t.Checkpoint.Digest && taken.Digest != "" &&
		taken.ForkOf == t.Checkpoint.ForkOf
}

// Judge tells what a refused commit means, in the order of CP-5: nil is its own
// success. th and taken are those records whose conditions failed, else nil.
func (t Commit) Judge(th *Thread, taken *CheckpointName) error {
	if taken != nil && t.Landed(*taken) {
		return nil
	}
	var err error
	if th != nil {
		if _, err = t.ApplyThread(*th); err == nil {
			return errAllowed
		}
	}
	if e, ok := errors.AsType[*RefusedError](err); taken != nil && (!ok || e.Why != "writer-lost") {
		return t.refused("duplicate-id")
	}
	return err
}

// errAllowed tells of a write that was refused although its records allow it.
var errAllowed = errors.New("store refuses a write that the records allow")

// DeleteHead is the transaction that takes the newest checkpoint away (CP-11).
type DeleteHead struct {
	Writer     Writer
	Now        Millis
	Checkpoint Checkpoint  // the head
	Next       *Checkpoint // which becomes head: the newest older one that is left; nil for none
}

// Name is "delete head".
func (DeleteHead) Name() string { return "delete head" }

// ApplyThread: the lease is live and mine, the checkpoint the head.
func (t DeleteHead) ApplyThread(th Thread) (Thread, error) {
	if why := failing(
		check{th.Writes(t.Writer, t.Now), "writer-lost"},
		check{th.Head == t.Checkpoint.ID, "not-head"},
	); why != "" {
		return Thread{}, &RefusedError{Op: t.Name(), Record: "checkpoint " + string(t.Checkpoint.ID), Why: why}
	}
	th.Head, th.UpdatedAt = t.next(), t.Now
	return th, nil
}

func (t DeleteHead) next() CheckpointID {
	if t.Next == nil {
		return ""
	}
	return t.Next.ID
}

// Landed: the head is the next one. gone says that the checkpoint is no more.
func (t DeleteHead) Landed(th Thread, gone bool) bool {
	return gone && th.Fence == t.Writer.Fence && th.Head == t.next()
}

// MaxTrim is how many checkpoints one [Trim] takes away.
const MaxTrim = 40

// Trim is the transaction with which retention takes checkpoints away that are not the
// head. One that is gone already is no matter.
type Trim struct {
	Writer      Writer
	Now         Millis
	Checkpoints []Checkpoint // with Artifacts at most [MaxTrim]
	Artifacts   []Artifact   // of a thread that is deleted
}

// Name is "trim".
func (Trim) Name() string { return "trim" }

// ApplyThread: the lease is live and mine, the head not among them. The thread stays as
// it is.
func (t Trim) ApplyThread(th Thread) (Thread, error) {
	if why := failing(
		check{th.Writes(t.Writer, t.Now), "writer-lost"},
		check{!slices.ContainsFunc(t.Checkpoints, func(c Checkpoint) bool { return c.ID == th.Head }), "head"},
	); why != "" {
		return Thread{}, &RefusedError{Op: t.Name(), Record: "thread " + t.Writer.ThreadKey.String(), Why: why}
	}
	return th, nil
}

// Branch is one thread that a fork begins.
type Branch struct {
	Writer     Writer
	Checkpoint Checkpoint // its root
	Pins       []Pin      // one under each thread that owns objects of it
}

// MaxForkItems is how many records one fork may write: three a branch, its pins, and
// the source.
const MaxForkItems = 100

// Fork is the transaction that begins branches from a checkpoint, all of them or none
// (CP-12).
type Fork struct {
	Now      Millis
	Source   Checkpoint
	Branches []Branch
	Release  bool // give the branches' leases back
}

// Name is "fork".
func (Fork) Name() string { return "fork" }

// Items counts the records that the transaction touches.
func (t Fork) Items() int {
	n := 1
	for _, b := range t.Branches {
		n += 3 + len(b.Pins)
	}
	return n
}

// ApplyThread gives the thread of a branch after it: the lease is live and mine, the
// thread empty.
func (t Fork) ApplyThread(b Branch, th Thread) (Thread, error) {
	if why := failing(
		check{th.Writes(b.Writer, t.Now), "writer-lost"},
		check{th.Empty(), "fork-destination-not-empty"},
	); why != "" {
		return Thread{}, t.Refused(b, why)
	}
	th.Head, th.Conversation, th.UpdatedAt = b.Checkpoint.ID, b.Checkpoint.Conversation, t.Now
	if t.Release {
		th.Lease = Lease{}
	}
	th.PendingRuns, th.Fork = slices.Clone(b.Checkpoint.PendingRuns), b.Root(t.Source)
	return th, nil
}

// Root is what the thread of the branch remembers.
func (b Branch) Root(source Checkpoint) *ForkRoot {
	root := &ForkRoot{From: source.Thread, Checkpoint: b.Checkpoint.ID, Manifest: b.Checkpoint.Manifest}
	for _, p := range b.Pins {
		root.Owners = append(root.Owners, p.Owner.Thread)
	}
	slices.Sort(root.Owners)
	return root
}

// Refused is the refusal of a branch.
func (Fork) Refused(b Branch, why string) error {
	return &RefusedError{Op: "fork", Record: "thread " + b.Writer.ThreadKey.String(), Why: why}
}

// Landed: the name is that of the branch's root.
func (Fork) Landed(b Branch, taken CheckpointName) bool {
	return taken.Thread == b.Writer.Thread && taken.ForkOf == b.Checkpoint.ForkOf && taken.ForkOf != ""
}

// Unpin is the transaction with which a fork lets go of what another thread owns.
type Unpin struct {
	Writer Writer // of the fork
	Now    Millis
	Owner  ThreadID
	Root   CheckpointID // the fork's
}

// Name is "unpin".
func (Unpin) Name() string { return "unpin" }

// ApplyThread: the lease is live and mine.
func (t Unpin) ApplyThread(th Thread) (Thread, error) {
	if !th.Writes(t.Writer, t.Now) {
		return Thread{}, &RefusedError{Op: t.Name(), Record: "thread " + t.Writer.ThreadKey.String(), Why: "writer-lost"}
	}
	if th.Fork == nil {
		return th, nil
	}
	fork := *th.Fork
	fork.Owners = slices.DeleteFunc(slices.Clone(fork.Owners), func(o ThreadID) bool { return o == t.Owner })
	if len(fork.Owners) == 0 {
		fork.Owners = nil
	}
	th.Fork, th.UpdatedAt = &fork, t.Now
	return th, nil
}

// PutArtifact is the transaction that adds an artifact to a thread.
type PutArtifact struct {
	Thread   ThreadKey
	Artifact Artifact
	Fence    int64 // in the object's key: of the thread as read
	Now      Millis
}

// Name is "put artifact".
func (PutArtifact) Name() string { return "put artifact" }

// ApplyThread: nothing of that fence is being collected.
func (t PutArtifact) ApplyThread(th Thread) (Thread, error) {
	if th.Floor > t.Fence {
		return Thread{}, &RefusedError{Op: t.Name(), Record: "thread " + t.Thread.String(), Why: "floor"}
	}
	th.Artifacts, th.UpdatedAt = true, t.Now
	return th, nil
}

// Threads is where threads, their checkpoints and pins are kept. Reads are consistent,
// and lists are whole or an error.
type Threads interface {
	// Thread reads a thread; one that has no item is the zero thread with its key.
	Thread(ctx context.Context, key ThreadKey) (Thread, error)
	// UpdateThread carries out one transition in one conditional request, and makes the
	// item where there is none; see [Runs.Update] for what it answers.
	UpdateThread(ctx context.Context, key ThreadKey, t ThreadTransition) (Thread, error)
	// Checkpoint reads a checkpoint of that thread; ErrNotFound if there is none.
	Checkpoint(ctx context.Context, key ThreadKey, id CheckpointID) (Checkpoint, error)
	// FindCheckpoint reads a checkpoint of whatever thread of the tenant.
	FindCheckpoint(ctx context.Context, tenant TenantID, id CheckpointID) (Checkpoint, error)
	// Checkpoints lists a thread's checkpoints in the order of [CompareCheckpoints].
	Checkpoints(ctx context.Context, key ThreadKey) ([]Checkpoint, error)
	// Pins lists the pins on objects of the thread.
	Pins(ctx context.Context, key ThreadKey) ([]Pin, error)
	// Artifacts lists a thread's artifacts by run and id.
	Artifacts(ctx context.Context, key ThreadKey) ([]Artifact, error)

	// Each of the following carries out its transaction: all of it or nothing. A
	// condition that does not hold is a [*RefusedError], unless the records show that
	// this very transaction has landed. Conflicts are retried.

	// Commit is refused as [Commit.Judge] says.
	Commit(ctx context.Context, t Commit) error
	// DeleteHead needs that Next exists.
	DeleteHead(ctx context.Context, t DeleteHead) error
	Trim(ctx context.Context, t Trim) error
	// Fork is refused as "fork-source-not-found" where the source does not exist, then
	// for each branch by ApplyThread, and as "fork-destination-not-empty" where the id
	// of a root is taken.
	Fork(ctx context.Context, t Fork) error
	Unpin(ctx context.Context, t Unpin) error
	// PutArtifact replaces an artifact of that run and id.
	PutArtifact(ctx context.Context, t PutArtifact) error
}
