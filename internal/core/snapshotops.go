package core

import (
	"context"
	"encoding/json"
	"fmt"
)

// SnapshotKeeper is what the tools use of a [Keeper].
type SnapshotKeeper interface {
	Save(ctx context.Context, q SaveRequest) (StepReport, error)
	Fork(ctx context.Context, q ForkRequest) ([]ListedCheckpoint, error)
	ReadArtifact(ctx context.Context, key ThreadKey, id CheckpointID, artifact string) (Artifact, []byte, error)
}

var _ SnapshotKeeper = (*Keeper)(nil)

// SnapshotTools are the operations on checkpoints that a model may call (SO-8). They are
// bound to one thread when they are made: no argument ever names a thread.
type SnapshotTools struct {
	Keeper  SnapshotKeeper
	Thread  ThreadKey
	Run     RunID
	Sandbox SaveRequest // of which key, instance and options are used
	// NewID makes the id of a checkpoint, NewThread that of the thread of a fork.
	NewID     func() CheckpointID
	NewThread func() (ThreadID, error)
	// Forked, if not nil, is told of a fork that has been published. If it fails, so does
	// the call, but the fork stays (SO-9).
	Forked func(ctx context.Context, c ListedCheckpoint, thread ThreadID) error
}

// The names of the tools.
const (
	ToolSave         = "save_sandbox_snapshot"
	ToolFork         = "fork_sandbox_snapshot"
	ToolReadArtifact = "read_sandbox_snapshot_artifact"
)

// SavedSnapshot is the answer of [ToolSave]. A save goes on after it.
type SavedSnapshot struct {
	Checkpoint CheckpointID `json:"checkpointId"`
	State      StepState    `json:"state"`
}

// ForkedSnapshot is the answer of [ToolFork].
type ForkedSnapshot struct {
	Checkpoint CheckpointID `json:"checkpointId"`
	Thread     ThreadID     `json:"destinationThreadId"`
}

// ArtifactFacts is the answer of [ToolReadArtifact]: never bytes.
type ArtifactFacts struct {
	ID        string `json:"artifactId"`
	Name      string `json:"name"`
	MIME      string `json:"mimeType"`
	Size      int64  `json:"size"`
	CreatedAt Millis `json:"createdAt"`
}

func invalidTool(format string, args ...any) error {
	return invalid("invalid-tool-input", format, args...)
}

// Check refuses tools that are not bound to a thread and a run.
func (s *SnapshotTools) Check() error {
	if s.Thread.Tenant == "" || s.Thread.Thread == "" || s.Run == "" {
		return invalidTool("want tools bound to a tenant, a thread and a run")
	}
	return nil
}

// Call carries out the tool of that name.
func (s *SnapshotTools) Call(ctx context.Context, tool string, args json.RawMessage) (any, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	var in map[string]any
	if len(args) > 0 && json.Unmarshal(args, &in) != nil {
		return nil, invalidTool("arguments: want an object")
	}
	switch tool {
	case ToolSave:
		return s.save(ctx, in)
	case ToolFork:
		return s.fork(ctx, in)
	case ToolReadArtifact:
		return s.readArtifact(ctx, in)
	}
	return nil, invalidTool("tool: want %s, %s or %s, got %.80q", ToolSave, ToolFork, ToolReadArtifact, tool)
}

// text is an argument, which must be a text that is not empty.
func text(in map[string]any, name string) (string, error) {
	if t, ok := in[name].(string); ok && t != "" {
		return t, nil
	}
	return "", invalidTool("%s: want a text of at least one character", name)
}

func (s *SnapshotTools) save(ctx context.Context, in map[string]any) (any, error) {
	label, err := text(in, "label")
	if err != nil {
		return nil, err
	}
	q := s.Sandbox
	q.ThreadKey, q.ID, q.Reason, q.Label, q.Run = s.Thread, s.NewID(), ReasonNamed, &label, s.Run
	report, err := s.Keeper.Save(ctx, q)
	if err != nil {
		return nil, err
	}
	return SavedSnapshot{report.ID, report.State}, nil
}

func (s *SnapshotTools) fork(ctx context.Context, in map[string]any) (any, error) {
	var from string
	if _, given := in["checkpointId"]; given {
		var err error
		if from, err = text(in, "checkpointId"); err != nil {
			return nil, err
		}
	}
	thread, err := s.NewThread()
	if err != nil {
		return nil, fmt.Errorf("name thread of fork: %w", err)
	}
	if thread == "" {
		return nil, invalidTool("thread of the fork: want at least one character")
	}
	made, err := s.Keeper.Fork(ctx, ForkRequest{Source: s.Thread, Checkpoint: CheckpointID(from), Branches: []ForkBranch{{thread, s.NewID()}}})
	if err != nil {
		return nil, err
	}
	if s.Forked != nil {
		if err := s.Forked(ctx, made[0], thread); err != nil {
			return nil, fmt.Errorf("tell of fork %s: %w", made[0].ID, err)
		}
	}
	return ForkedSnapshot{made[0].ID, thread}, nil
}

func (s *SnapshotTools) readArtifact(ctx context.Context, in map[string]any) (any, error) {
	id, err := text(in, "checkpointId")
	if err != nil {
		return nil, err
	}
	artifact, err := text(in, "artifactId")
	if err != nil {
		return nil, err
	}
	a, _, err := s.Keeper.ReadArtifact(ctx, s.Thread, CheckpointID(id), artifact)
	if err != nil {
		return nil, err
	}
	return ArtifactFacts{a.ID, a.Name, a.MIME, a.Object.Size, a.CreatedAt}, nil
}
