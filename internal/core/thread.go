package core

import "time"

// CheckpointID names a checkpoint, unique in its tenant.
type CheckpointID string

// ThreadKey names one thread of one tenant. Every operation takes it whole (I16).
type ThreadKey struct {
	Tenant TenantID `json:"tenant"`
	Thread ThreadID `json:"thread"`
}

// String gives "tenant/thread", for logs and errors.
func (k ThreadKey) String() string { return string(k.Tenant) + "/" + string(k.Thread) }

// The times of a writer lease. A lease is dead at exactly its end, even if nobody
// takes it.
const (
	LeaseLife  = 120 * time.Second // from when it was taken or renewed
	LeaseRenew = 45 * time.Second  // its holder renews it so long after that
)

// The owners that are no run of a host begin so.
const (
	OwnerReclaim = "reclaim:" // and the run's id
	OwnerCollect = "gc:"      // and a nonce
	OwnerSave    = "save:"    // and the id of what is saved or restored
)

// Lease is the right to write a thread, for a time. The zero value is no lease.
type Lease struct {
	Owner string // whose; each attempt that must not be taken for another has its own
	Until Millis
}

// Live reports whether somebody holds the lease at now.
func (l Lease) Live(now Millis) bool { return l.Owner != "" && l.Until > now }

// Writer is who holds a thread's lease: thread, owner and fence must all match.
type Writer struct {
	ThreadKey
	Owner string
	Fence int64
}

// ObjectRef names one version of an immutable object.
type ObjectRef struct {
	Key     string `json:"key"`
	Version string `json:"version,omitempty"` // the store's; empty where it keeps none
	SHA256  string `json:"sha256"`            // hex
	Size    int64  `json:"size"`
}

// Conversation is the transcript that a host last saved, opaque to Sandkeeper. Version
// zero is none; a saved empty one is a conversation. One whose object has no key went with
// its thread: the next is a version after it.
type Conversation struct {
	Version int64
	Object  ObjectRef
	// Runs are those whose transcripts the latest versions fold in, newest last, at
	// most [MaxFolded].
	Runs []RunID
}

// MaxFolded is how many folded runs a conversation remembers, and how many runs a
// thread may have pending.
const MaxFolded = 64

// WorkspaceLoss tells the next run of a thread that the work of one before it was
// lost with its sandbox.
type WorkspaceLoss struct {
	Run RunID
	Why string
	At  Millis
}

// StepKind is what an agent is started for.
type StepKind string

// The kinds of step.
const (
	StepCapture StepKind = "capture"
	StepRestore StepKind = "restore"
	StepVerify  StepKind = "verify"
)

// StepState is how far a step is.
type StepState string

// The states of a step.
const (
	StepWorking StepState = "working"
	StepDone    StepState = "done"
	StepFailed  StepState = "failed"
)

// MaxFormer is how many cut captures a step remembers: each costs a look at the store for
// each pack.
const MaxFormer = 4

// Step is what an agent does for a thread, under one fence.
type Step struct {
	ID    CheckpointID // of the checkpoint to be made, or of the restore
	Kind  StepKind
	Run   RunID // whose workspace it is; may be empty
	Fence int64 // under which it was begun; its token dies with it
	// Former are fences of captures before this one that made no checkpoint, newest
	// first, at most [MaxFormer]: what they stored is not sent again.
	Former []int64
	Token  string // hex SHA-256 of the token's secret
	State  StepState
	// Why is, of a failed step, a code, and for people after it ": " and a text; of one
	// that is at work, why it is not known whether its agent began.
	Why      string
	Attempts int // beginnings, this one included
	// Checkpoint is the parent of a capture, and what a restore or verification is of.
	Checkpoint CheckpointID
	Reason     Reason
	Label      *string
	Job        *ReclaimJob // the message that waits for the end of this step
	StartedAt  Millis
	SeenAt     Millis // when it was begun, doubted, or its agent heard of, last
	Files      int64  // so far
	Bytes      int64  // so far
	Granted    int64  // bytes that its agent may have stored, at most [MaxGranted]
}

// MaxGranted is how many bytes one step may be given leave to store, those of a pack that
// it asks for again included: more than the largest disk of a Fargate task, 200 GiB, so
// that only an agent that means harm meets it.
const MaxGranted = 256 << 30

// cut are the fences under which captures stored what no checkpoint names, as far as it is
// remembered: those of the thread's step, if it is a capture that did not get done.
func (th Thread) cut() []int64 {
	s := th.Step
	switch {
	case s == nil || s.Kind != StepCapture || s.State == StepDone:
		return nil
	case s.Fence == th.Fence:
		return s.Former // what this fence stored is found by itself
	}
	former := append([]int64{s.Fence}, s.Former...)
	return former[:min(len(former), MaxFormer)]
}

// ForkRoot says where a thread was forked from, and which threads still own objects
// that it needs.
type ForkRoot struct {
	From       ThreadID
	Checkpoint CheckpointID // the fork's own root
	Manifest   ObjectRef    // of the fork's root: what its pins protect
	Owners     []ThreadID   // under which it has pins, sorted
}

// Thread is the item of a thread. The zero value but for its key is a thread of which
// nothing is known. Items are never deleted, for a fence must never come again (I11).
type Thread struct {
	ThreadKey
	Head  CheckpointID
	Fence int64 // of the newest lease
	Lease Lease
	// Floor is the fence under which objects were last collected. An object of an older
	// fence counts only where a checkpoint or pin names it: it may be about to go.
	Floor         int64
	Conversation  Conversation
	PendingRuns   []RunID // with transcripts that no conversation folds in yet
	WorkspaceLost *WorkspaceLoss
	Step          *Step
	FirstRun      RunID // the first run that began in it
	// BegunAt is when a run was begun in it last: it is written before the run's record, and
	// tells of one that an index does not show yet.
	BegunAt   Millis
	Artifacts bool // it has, or had, artifacts
	Fork      *ForkRoot
	UpdatedAt Millis
}

// Empty reports whether a fork may begin in the thread: nothing has happened in it yet
// but the taking of leases (CP-12).
func (th Thread) Empty() bool {
	return th.Head == "" && th.Conversation.Version == 0 && len(th.PendingRuns) == 0 && th.FirstRun == "" &&
		!th.Artifacts && th.Fork == nil && th.WorkspaceLost == nil
}

// Writes reports whether w holds the live lease.
func (th Thread) Writes(w Writer, now Millis) bool {
	return th.ThreadKey == w.ThreadKey && th.Fence == w.Fence && th.Lease.Owner == w.Owner && th.Lease.Live(now)
}

// Writer is who holds, or last held, the lease.
func (th Thread) Writer() Writer { return Writer{th.ThreadKey, th.Lease.Owner, th.Fence} }

// ThreadTransition is one conditional write of a thread's item, as a value; see
// [Transition] for the contract of its methods. Where there is no item, Apply gets the
// zero thread with its key.
type ThreadTransition interface {
	Name() string
	Apply(th Thread) (Thread, error)
	Landed(th Thread) bool
}

func threadRefusal(t ThreadTransition, th Thread, why string) (Thread, error) {
	return Thread{}, &RefusedError{Op: t.Name(), Record: "thread " + th.ThreadKey.String(), Why: why}
}
