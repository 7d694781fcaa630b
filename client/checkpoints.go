package client

import (
	"context"
	"encoding/json"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// What a host asks of the checkpoint function, beside what start and finish do by
// themselves.
type (
	// CheckpointID is a checkpoint.
	CheckpointID = core.CheckpointID
	// SandboxKey names a thread's sandbox, as [RunView] tells it.
	SandboxKey = core.SandboxKey
	// SaveRequest asks for a checkpoint of the workspace of a sandbox.
	SaveRequest = core.SaveRequest
	// RestoreRequest asks to bring a checkpoint back into a sandbox.
	RestoreRequest = core.RestoreRequest
	// StepReport says how a save or a restore ended.
	StepReport = core.StepReport
	// ListedCheckpoint is a checkpoint as lists show it.
	ListedCheckpoint = core.ListedCheckpoint
	// ForkRequest begins threads from a checkpoint.
	ForkRequest = core.ForkRequest
	// ForkBranch is one thread to begin.
	ForkBranch = core.ForkBranch
	// TreeChange is one path that differs between two checkpoints.
	TreeChange = core.TreeChange
)

// Why a checkpoint is made, by a host, and how a step stands.
const (
	ReasonNamed  = core.ReasonNamed
	ReasonSafety = core.ReasonSafety

	StepDone   = core.StepDone
	StepFailed = core.StepFailed
)

// Conversation is what a thread's conversation is; version 0 is none.
type Conversation struct {
	Version int64   `json:"version"`
	Runs    []RunID `json:"runs,omitempty"` // whose transcripts it holds
	Data    []byte  `json:"data,omitempty"`
}

// Artifact is a file that a run gave out, beside the workspace.
type Artifact struct {
	Run       RunID  `json:"run"`
	ID        string `json:"id"`
	Name      string `json:"name"`
	MIME      string `json:"mime"`
	CreatedAt Millis `json:"createdAt"`
	Size      int64  `json:"size"`
	SHA256    string `json:"sha256"` // hex
	Data      []byte `json:"data,omitempty"`
}

// ToolCall is a model's call of one of the tools on checkpoints: save_sandbox_snapshot,
// fork_sandbox_snapshot, read_sandbox_snapshot_artifact. Tool and Args are the model's;
// everything else binds the call to a thread, and is the host's.
type ToolCall struct {
	ThreadKey
	Run      RunID           `json:"run"`
	ID       CheckpointID    `json:"id,omitempty"`       // of what a save or a fork makes
	Branch   ThreadID        `json:"branch,omitempty"`   // of a fork
	Key      SandboxKey      `json:"key,omitempty"`      // of a save
	Instance InstanceID      `json:"instance,omitempty"` // of a save
	Tool     string          `json:"tool"`
	Args     json.RawMessage `json:"args,omitempty"`
}

// Checkpoints is the checkpoint function, as hosts use it. Its calls may be made again as
// the session function's, and refuse as those do. It has no tenants: who may invoke it
// acts for all.
type Checkpoints struct{ function *Function }

// NewCheckpoints reaches the checkpoint function by an AWS configuration.
func NewCheckpoints(cfg aws.Config, name string) *Checkpoints {
	return &Checkpoints{NewFunction(cfg, name)}
}

// Save makes a checkpoint, and asks until it is done or has failed.
func (c *Checkpoints) Save(ctx context.Context, q SaveRequest) (StepReport, error) {
	return c.step(ctx, "save", q)
}

// Restore brings a checkpoint back, and asks until that is done or has failed.
func (c *Checkpoints) Restore(ctx context.Context, q RestoreRequest) (StepReport, error) {
	return c.step(ctx, "restore", q)
}

func (c *Checkpoints) step(ctx context.Context, operation string, q any) (StepReport, error) {
	for {
		report, err := call[StepReport](ctx, c.function, operation, q)
		if err != nil || report.State != core.StepWorking {
			return report, err
		}
		if err := pause(ctx, stepPause); err != nil {
			return report, err
		}
	}
}

// List lists a thread's checkpoints, the oldest first.
func (c *Checkpoints) List(ctx context.Context, thread ThreadKey) ([]ListedCheckpoint, error) {
	return call[[]ListedCheckpoint](ctx, c.function, "list", thread)
}

// Head reads the newest checkpoint of a thread, which its next sandbox begins with.
func (c *Checkpoints) Head(ctx context.Context, thread ThreadKey) (ListedCheckpoint, error) {
	return call[ListedCheckpoint](ctx, c.function, "head", thread)
}

// checkpointOf names a checkpoint of a thread, and what of it.
type checkpointOf struct {
	ThreadKey
	ID       CheckpointID `json:"id"`
	Artifact string       `json:"artifact,omitempty"`
}

// Show reads a checkpoint.
func (c *Checkpoints) Show(ctx context.Context, thread ThreadKey, id CheckpointID) (ListedCheckpoint, error) {
	return call[ListedCheckpoint](ctx, c.function, "show", checkpointOf{ThreadKey: thread, ID: id})
}

// Difference is how the workspaces of two checkpoints differ. More says that there is more
// of it than was asked for.
type Difference struct {
	Changes []TreeChange `json:"changes"`
	More    bool         `json:"more,omitempty"`
}

// Diff compares two checkpoints of a thread: at most limit paths; 0: the function's own most.
func (c *Checkpoints) Diff(ctx context.Context, thread ThreadKey, from, to CheckpointID, limit int) (Difference, error) {
	return call[Difference](ctx, c.function, "diff", struct {
		ThreadKey
		From  CheckpointID `json:"from"`
		To    CheckpointID `json:"to"`
		Limit int          `json:"limit,omitempty"`
	}{thread, from, to, limit})
}

// Fork begins threads from a checkpoint, all that are named or none.
func (c *Checkpoints) Fork(ctx context.Context, q ForkRequest) ([]ListedCheckpoint, error) {
	return call[[]ListedCheckpoint](ctx, c.function, "fork", q)
}

// Conversation reads the conversation of a thread.
func (c *Checkpoints) Conversation(ctx context.Context, thread ThreadKey) (Conversation, error) {
	return call[Conversation](ctx, c.function, "conversation", thread)
}

// PutConversation saves the version after seen, which is given out without its data.
func (c *Checkpoints) PutConversation(ctx context.Context, thread ThreadKey, seen int64, data []byte, folded ...RunID) (Conversation, error) {
	return call[Conversation](ctx, c.function, "putConversation", struct {
		ThreadKey
		Seen int64   `json:"seen"`
		Data []byte  `json:"data"`
		Runs []RunID `json:"runs,omitempty"`
	}{thread, seen, data, folded})
}

// Artifact reads an artifact as a checkpoint froze it, with its verified bytes.
func (c *Checkpoints) Artifact(ctx context.Context, thread ThreadKey, id CheckpointID, artifact string) (Artifact, error) {
	return call[Artifact](ctx, c.function, "artifact", checkpointOf{thread, id, artifact})
}

// PutArtifact adds an artifact to a thread: Size and SHA256 are the function's to tell.
func (c *Checkpoints) PutArtifact(ctx context.Context, thread ThreadKey, a Artifact) (Artifact, error) {
	return call[Artifact](ctx, c.function, "putArtifact", struct {
		ThreadKey
		Run       RunID  `json:"run"`
		ID        string `json:"id"`
		Name      string `json:"name"`
		MIME      string `json:"mime"`
		CreatedAt Millis `json:"createdAt"`
		Data      []byte `json:"data"`
	}{thread, a.Run, a.ID, a.Name, a.MIME, a.CreatedAt, a.Data})
}

// Tool carries a model's call out, and gives its result as JSON.
func (c *Checkpoints) Tool(ctx context.Context, q ToolCall) (json.RawMessage, error) {
	return call[json.RawMessage](ctx, c.function, "tool", q)
}
