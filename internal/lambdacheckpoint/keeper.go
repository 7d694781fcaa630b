package lambdacheckpoint

import (
	"context"
	"errors"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Keeper is the checkpoint function as a session reaches it: its refusals are core's.
type Keeper struct{ *Caller }

var _ core.ThreadKeeper = Keeper{}

// Save asks for a checkpoint, or how far it is.
func (k Keeper) Save(ctx context.Context, q core.SaveRequest) (core.StepReport, error) {
	var report core.StepReport
	err := k.ask(ctx, "save", "checkpoint "+string(q.ID), q, &report)
	return report, err
}

// Restore asks to bring a checkpoint back, or how far that is.
func (k Keeper) Restore(ctx context.Context, q core.RestoreRequest) (core.StepReport, error) {
	var report core.StepReport
	err := k.ask(ctx, "restore", "checkpoint "+string(q.Checkpoint), q, &report)
	return report, err
}

// PutConversation saves the version of a thread's conversation after seen.
func (k Keeper) PutConversation(ctx context.Context, key core.ThreadKey, seen int64, data []byte, folded []core.RunID) (core.Conversation, error) {
	request := struct {
		core.ThreadKey
		Seen int64        `json:"seen"`
		Data []byte       `json:"data"`
		Runs []core.RunID `json:"runs,omitempty"`
	}{key, seen, data, folded}
	var answer struct {
		Version int64        `json:"version"`
		Runs    []core.RunID `json:"runs"`
	}
	err := k.ask(ctx, "putConversation", "thread "+key.String(), request, &answer)
	return core.Conversation{Version: answer.Version, Runs: answer.Runs}, err
}

// ask makes a call; a refusal comes back as core's own.
func (k Keeper) ask(ctx context.Context, operation, record string, request, answer any) error {
	err := k.Call(ctx, operation, request, answer)
	if e, ok := errors.AsType[*RefusedError](err); ok {
		return &core.RefusedError{Op: operation, Record: record + ": " + e.Message, Why: e.Code}
	}
	return err
}
