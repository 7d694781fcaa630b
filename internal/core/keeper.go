package core

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
)

// InvalidError tells of input that is not as it has to be; nothing has changed.
type InvalidError struct {
	Code   string // lower-case with hyphens: "invalid-id", "invalid-entry", "too-large", …
	Detail string // what was expected
}

func (e *InvalidError) Error() string { return e.Code + ": " + e.Detail }

func invalid(code, format string, args ...any) error {
	return &InvalidError{code, fmt.Sprintf(format, args...)}
}

// ErrToken is the answer to a token that is unknown, malformed, or whose fence is dead.
var ErrToken = &InvalidError{Code: "token-dead", Detail: "want the token of a step whose lease is live"}

// AgentStarted is how the start of an agent ended.
type AgentStarted string

// The answers of a start.
const (
	AgentBegan   AgentStarted = "started"
	AgentRuns    AgentStarted = "already"
	AgentMissing AgentStarted = "agent-missing" // the image has none
	AgentRefused AgentStarted = "agent-refused" // it says that it cannot, and the error why
)

// AgentJob is what an agent is started for. It holds a token: it goes over stdin and is
// in no record, log or command line.
type AgentJob struct {
	Kind            StepKind        `json:"kind"`
	ID              CheckpointID    `json:"id"`
	URL             string          `json:"url"`
	Host            string          `json:"host,omitempty"`
	Token           string          `json:"token"`
	Dir             string          `json:"dir,omitempty"` // empty: as [WorkspaceVariable] says
	Policy          json.RawMessage `json:"policy,omitempty"`
	Secrets         []string        `json:"secrets,omitempty"` // names
	DeadlineSeconds int64           `json:"deadlineSeconds,omitempty"`
	MaxBytes        int64           `json:"maxBytes,omitempty"`
	Checkpoint      CheckpointID    `json:"checkpoint,omitempty"`
	Sample          int             `json:"sample,omitempty"`
	Relay           string          `json:"relay,omitempty"` // see [RelayDir]; empty: the agent calls the URL
}

// JobStarter starts agents in sandboxes.
type JobStarter interface {
	// Start begins a job in the container, once: a repeat finds the claim that the first
	// one made there. An error leaves open whether it began.
	Start(ctx context.Context, target ExecTarget, job AgentJob) (AgentStarted, error)
}

// AgentURL says where agents reach the keeper.
type AgentURL interface {
	// AgentURL is the URL to dial, and the host to name where it is another.
	AgentURL(ctx context.Context) (url, host string, err error)
}

// JobOptions are what a caller of save, restore or verify says to the agent.
type JobOptions struct {
	Dir             string          `json:"dir,omitempty"` // the workspace, absolute; empty: as [WorkspaceVariable] says
	Policy          json.RawMessage `json:"policy,omitempty"`
	Secrets         []string        `json:"secrets,omitempty"` // names
	DeadlineSeconds int64           `json:"deadlineSeconds,omitempty"`
	MaxBytes        int64           `json:"maxBytes,omitempty"`
	Sample          int             `json:"sample,omitempty"` // packs to verify; zero: all
	// Relay says that the sandbox has no route to the keeper's URL: requests go over exec
	// sessions, see [Keeper.Relay].
	Relay bool `json:"relay,omitempty"`
}

// SaveRequest asks for a checkpoint of the workspace of a sandbox. It may be repeated
// with the same id, and is, until it is done.
type SaveRequest struct {
	ThreadKey
	ID       CheckpointID `json:"id"`
	Reason   Reason       `json:"reason,omitempty"` // automatic, named or safety; empty: automatic
	Label    *string      `json:"label,omitempty"`
	Run      RunID        `json:"run,omitempty"`
	Owner    string       `json:"owner,omitempty"` // of the lease; empty: save:<id>, given back at the end
	Key      SandboxKey   `json:"key"`
	Instance InstanceID   `json:"instance"`
	Job      *ReclaimJob  `json:"job,omitempty"` // sent when the step has ended
	// Again begins a step anew that has failed.
	Again bool `json:"again,omitempty"`
	JobOptions
}

// RestoreRequest asks to bring a checkpoint back into a sandbox, or, with Verify, to
// read it back there without changing anything. It may be repeated with the same id.
type RestoreRequest struct {
	ThreadKey
	ID         CheckpointID `json:"id"`                   // of the step
	Checkpoint CheckpointID `json:"checkpoint,omitempty"` // empty: the head
	Verify     bool         `json:"verify,omitempty"`
	Run        RunID        `json:"run,omitempty"`
	Owner      string       `json:"owner,omitempty"`
	Key        SandboxKey   `json:"key"`
	Instance   InstanceID   `json:"instance"`
	Again      bool         `json:"again,omitempty"` // begin a step anew that has failed
	JobOptions
}

// StepReport says how far a step is.
type StepReport struct {
	ID         CheckpointID `json:"id"`
	Kind       StepKind     `json:"kind"`
	State      StepState    `json:"state"`
	Why        string       `json:"why,omitempty"`
	Checkpoint CheckpointID `json:"checkpoint,omitempty"` // made, or restored
	Attempts   int          `json:"attempts,omitempty"`
	Began      bool         `json:"began,omitempty"` // by this very call
	Fence      int64        `json:"fence,omitempty"`
	SeenAt     Millis       `json:"seenAt,omitempty"`
	Files      int64        `json:"files"`
	Bytes      int64        `json:"bytes"`
}

// PackGrant is the answer for one pack.
type PackGrant struct {
	Pack    PackRef
	Present bool // stored already; there is no grant
	Grant   Grant
}

// ListedCheckpoint is a checkpoint as list and show tell it.
type ListedCheckpoint struct {
	ID          CheckpointID `json:"id"`
	Parent      CheckpointID `json:"parent,omitempty"`
	CreatedAt   Millis       `json:"createdAt"`
	Reason      Reason       `json:"reason"`
	Label       *string      `json:"label,omitempty"`
	SourceRun   RunID        `json:"sourceRun,omitempty"`
	ForkOf      CheckpointID `json:"forkOf,omitempty"`
	Head        bool         `json:"head,omitempty"`
	Files       int64        `json:"files"`
	Bytes       int64        `json:"bytes"`
	PendingRuns []RunID      `json:"pendingRuns,omitempty"`
	Artifacts   []Artifact   `json:"artifacts,omitempty"`
}

// ForkRequest begins threads from a checkpoint.
type ForkRequest struct {
	Source     ThreadKey    `json:"source"`
	Checkpoint CheckpointID `json:"checkpoint,omitempty"` // empty: the head
	Branches   []ForkBranch `json:"branches"`
}

// ForkBranch is one thread to begin.
type ForkBranch struct {
	Thread ThreadID     `json:"thread"`
	ID     CheckpointID `json:"id"` // of its root
}

// CollectRequest asks for what nothing needs any more of a thread to be removed.
type CollectRequest struct {
	ThreadKey
	Apply bool `json:"apply,omitempty"` // else it is only counted
	// Most is how many objects one call removes at most; zero: all.
	Most int `json:"most,omitempty"`
}

// CollectReport says what was, or would be, removed.
type CollectReport struct {
	Objects   int   `json:"objects"`   // found
	Bytes     int64 `json:"bytes"`     // found
	Needed    int   `json:"needed"`    // that a checkpoint, pin, artifact or conversation names
	Young     int   `json:"young"`     // not needed, but too young
	Garbage   int   `json:"garbage"`   // to be removed
	Reclaimed int64 `json:"reclaimed"` // bytes of garbage
	Deleted   int   `json:"deleted"`
	Missing   int   `json:"missing"` // needed, but not there: something is broken
	Unpinned  int   `json:"unpinned"`
	More      bool  `json:"more,omitempty"` // Most was reached
	// Withheld says why nothing was removed although that was asked for: observe, frozen
	// or held. The counts are those of a plan then.
	Withheld string `json:"withheld,omitempty"`
}

// CollectAllReport is what became of the collection of every thread.
type CollectAllReport struct {
	Threads   int   `json:"threads"`
	Collected int   `json:"collected"`
	Busy      int   `json:"busy"`     // with a writer; theirs comes another day
	Withheld  int   `json:"withheld"` // of which nothing is removed: observed, frozen or held
	Failed    int   `json:"failed"`
	Gone      int   `json:"gone"` // deleted whole: nobody used them for longer than threads are kept
	Deleted   int   `json:"deleted"`
	Reclaimed int64 `json:"reclaimed"` // bytes
	Missing   int   `json:"missing"`   // needed, but not there
	Removed   int   `json:"removed"`   // checkpoints that are kept no longer
	More      bool  `json:"more,omitempty"`
}

// KeepRequest is retention: the newest checkpoints stay, and named ones.
type KeepRequest struct {
	ThreadKey
	Newest int `json:"newest"` // at least 1
}

// VerifyReport says whether what a checkpoint needs is stored.
type VerifyReport struct {
	Checkpoint CheckpointID `json:"checkpoint"`
	Packs      int          `json:"packs"`
	Read       int          `json:"read"` // packs whose bytes were read back
	Bytes      int64        `json:"bytes"`
	Broken     []string     `json:"broken,omitempty"` // keys that are missing or differ
}

// Keeper is the use case of the checkpoint function.
type Keeper struct {
	Threads   Threads
	Objects   Objects
	Blobs     Blobs
	Manifests ManifestReader
	Sandboxes Sandboxes
	Controls  Controls      // asked before anything is removed or replaced, as are the holds of
	Runs      Runs          // the runs
	History   ThreadHistory // of a thread
	Agents    JobStarter
	URL       AgentURL
	Queue     ReclaimQueue // may be nil: nobody waits
	Witness   StepWitness  // nil: nobody is told of ends
	Logger    *slog.Logger // nil: none
	Width     int          // how many objects are asked about at once; zero: 16

	roots rootCache
}

// StepWitness is told of each step's end, once, by whoever wrote it; a crash right after
// the write leaves it untold.
type StepWitness interface {
	StepEnded(ctx context.Context, key ThreadKey, end StepReport)
}

// tell tells of a step's end.
func (k *Keeper) tell(ctx context.Context, key ThreadKey, step Step, end StepReport) {
	if k.Witness == nil {
		return
	}
	end.ID, end.Kind, end.Fence = step.ID, step.Kind, step.Fence
	k.Witness.StepEnded(ctx, key, end)
}

func (k *Keeper) log() *slog.Logger {
	if k.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return k.Logger
}

// stepLimits of an agent that is not heard of any more.
const (
	stepSilence  = LeaseLife // then it is begun anew
	stepAttempts = 3
)

func leaseUntil(now Millis) Millis { return now.Add(LeaseLife) }
