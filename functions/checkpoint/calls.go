package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// caller is what hosts, reclaim and operators can ask for.
type caller interface {
	Save(context.Context, core.SaveRequest) (core.StepReport, error)
	Restore(context.Context, core.RestoreRequest) (core.StepReport, error)
	Head(context.Context, core.ThreadKey) (core.ListedCheckpoint, error)
	Show(context.Context, core.ThreadKey, core.CheckpointID) (core.ListedCheckpoint, error)
	List(context.Context, core.ThreadKey) ([]core.ListedCheckpoint, error)
	Diff(ctx context.Context, key core.ThreadKey, from, to core.CheckpointID, limit int) ([]core.TreeChange, bool, error)
	ReadArtifact(context.Context, core.ThreadKey, core.CheckpointID, string) (core.Artifact, []byte, error)
	PutArtifact(context.Context, core.ThreadKey, core.Artifact, []byte) (core.Artifact, error)
	Conversation(context.Context, core.ThreadKey) (core.Conversation, []byte, error)
	PutConversation(ctx context.Context, key core.ThreadKey, seen int64, data []byte, folded []core.RunID) (core.Conversation, error)
	Fork(context.Context, core.ForkRequest) ([]core.ListedCheckpoint, error)
	DeleteHead(context.Context, core.ThreadKey, core.CheckpointID) (core.CheckpointID, error)
	Collect(context.Context, core.CollectRequest) (core.CollectReport, error)
	Verify(context.Context, core.ThreadKey, core.CheckpointID, int) (core.VerifyReport, error)
	Keep(context.Context, core.KeepRequest) ([]core.CheckpointID, error)
	ThreadKeys(context.Context) ([]core.ThreadKey, error)
	DeleteThread(context.Context, core.DeleteThreadRequest) (core.DeleteThreadReport, error)
	Relay(context.Context, core.RelayRequest, core.Relay) (core.StepReport, error)
}

// operation carries out one kind of call.
type operation func(ctx context.Context, h handler, body json.RawMessage) (any, error)

// checkpointRequest names a checkpoint of a thread.
type checkpointRequest struct {
	core.ThreadKey
	ID core.CheckpointID `json:"id"`
}

// diffRequest asks for the differences between two checkpoints.
type diffRequest struct {
	core.ThreadKey
	From  core.CheckpointID `json:"from"`
	To    core.CheckpointID `json:"to"`
	Limit int               `json:"limit,omitempty"`
}

// diffAnswer has at most Limit of them.
type diffAnswer struct {
	Changes []core.TreeChange `json:"changes"`
	More    bool              `json:"more,omitempty"`
}

// artifactRequest names an artifact as a checkpoint froze it.
type artifactRequest struct {
	checkpointRequest
	Artifact string `json:"artifact"`
}

// artifactAnswer describes it; where it was asked for, with its verified bytes.
type artifactAnswer struct {
	Run       core.RunID  `json:"run"`
	ID        string      `json:"id"`
	Name      string      `json:"name"`
	MIME      string      `json:"mime"`
	CreatedAt core.Millis `json:"createdAt"`
	Size      int64       `json:"size"`
	SHA256    string      `json:"sha256"`
	Data      []byte      `json:"data,omitempty"`
}

// putArtifactRequest adds an artifact to a thread.
type putArtifactRequest struct {
	core.ThreadKey
	Run       core.RunID  `json:"run"`
	ID        string      `json:"id"`
	Name      string      `json:"name"`
	MIME      string      `json:"mime"`
	CreatedAt core.Millis `json:"createdAt"`
	Data      []byte      `json:"data"`
}

// conversationAnswer is a thread's conversation; version 0 is none.
type conversationAnswer struct {
	Version int64        `json:"version"`
	Runs    []core.RunID `json:"runs,omitempty"`
	Data    []byte       `json:"data,omitempty"`
}

// putConversationRequest moves a thread's conversation on from the version seen.
type putConversationRequest struct {
	core.ThreadKey
	Seen int64        `json:"seen"`
	Data []byte       `json:"data"`
	Runs []core.RunID `json:"runs,omitempty"` // whose transcripts it folds in
}

// verifyRequest asks whether what a checkpoint needs is stored; Sample packs are read
// back, all if it is zero.
type verifyRequest struct {
	checkpointRequest
	Sample int `json:"sample,omitempty"`
}

// agentRequest is a request of an agent that somebody carries on.
type agentRequest struct {
	Path  string          `json:"path"`
	Token string          `json:"token"`
	Body  json.RawMessage `json:"body"`
}

// toolRequest is a model's call of one of the tools on checkpoints. Everything but Tool
// and Args comes from the host, which binds the tools to a thread: it may be repeated
// with the same ID, that of the checkpoint which a save or a fork makes.
type toolRequest struct {
	core.ThreadKey
	Run      core.RunID        `json:"run"`
	ID       core.CheckpointID `json:"id,omitempty"`
	Branch   core.ThreadID     `json:"branch,omitempty"` // of a fork
	Key      core.SandboxKey   `json:"key,omitempty"`    // of a save, as Instance and the options
	Instance core.InstanceID   `json:"instance,omitempty"`
	core.JobOptions
	Tool string          `json:"tool"`
	Args json.RawMessage `json:"args,omitempty"`
}

const (
	// diffLimit is how many differences an answer has where the caller does not say.
	diffLimit = 1000
	diffMost  = 10_000
	// dataMost is the most that an answer carries: a function gives 6 MB, as base64.
	dataMost = 4 << 20
)

// operations are all that can be called, by name.
var operations = map[string]operation{
	"save":    call(save),
	"restore": call(restore),
	"head": call(func(ctx context.Context, h handler, q core.ThreadKey) (core.ListedCheckpoint, error) {
		return h.keeper.Head(ctx, q)
	}),
	"list": call(func(ctx context.Context, h handler, q core.ThreadKey) ([]core.ListedCheckpoint, error) {
		return h.keeper.List(ctx, q)
	}),
	"show": call(func(ctx context.Context, h handler, q checkpointRequest) (core.ListedCheckpoint, error) {
		return h.keeper.Show(ctx, q.ThreadKey, q.ID)
	}),
	"fork": call(func(ctx context.Context, h handler, q core.ForkRequest) ([]core.ListedCheckpoint, error) {
		return h.keeper.Fork(ctx, q)
	}),
	"keep": call(func(ctx context.Context, h handler, q core.KeepRequest) ([]core.CheckpointID, error) {
		return h.keeper.Keep(ctx, q)
	}),
	"verify": call(func(ctx context.Context, h handler, q verifyRequest) (core.VerifyReport, error) {
		return h.keeper.Verify(ctx, q.ThreadKey, q.ID, q.Sample)
	}),
	"deleteHead": call(deleteHead),
	"threads":    call(threads),
	"deleteThread": call(func(ctx context.Context, h handler, q core.DeleteThreadRequest) (core.DeleteThreadReport, error) {
		return h.keeper.DeleteThread(ctx, q)
	}),
	"diff":            call(diff),
	"artifact":        call(artifact),
	"putArtifact":     call(putArtifact),
	"conversation":    call(conversation),
	"putConversation": call(putConversation),
	"gc":              call(collect),
	"tool":            call(tool),
	"relay":           call(relay),
	"agent":           call(byHand),
}

// call makes an operation of a request in JSON, whose members must all be known.
func call[Q, A any](do func(ctx context.Context, h handler, q Q) (A, error)) operation {
	return func(ctx context.Context, h handler, body json.RawMessage) (any, error) {
		var q Q
		if err := core.DecodeStrict(body, &q); err != nil {
			return nil, badRequest("%v", err)
		}
		return do(ctx, h, q)
	}
}

// threadsRequest asks for the threads of a tenant, or of all.
type threadsRequest struct {
	Tenant core.TenantID `json:"tenant,omitempty"`
}

func threads(ctx context.Context, h handler, q threadsRequest) ([]core.ThreadKey, error) {
	keys, err := h.keeper.ThreadKeys(ctx)
	return slices.DeleteFunc(keys, func(k core.ThreadKey) bool { return q.Tenant != "" && k.Tenant != q.Tenant }), err
}

func deleteHead(ctx context.Context, h handler, q checkpointRequest) (map[string]core.CheckpointID, error) {
	head, err := h.keeper.DeleteHead(ctx, q.ThreadKey, q.ID)
	return map[string]core.CheckpointID{"head": head}, err
}

func diff(ctx context.Context, h handler, q diffRequest) (diffAnswer, error) {
	switch {
	case q.Limit == 0:
		q.Limit = diffLimit
	case q.Limit < 0 || q.Limit > diffMost:
		return diffAnswer{}, badRequest("limit: want 1 to %d, got %d", diffMost, q.Limit)
	}
	changes, more, err := h.keeper.Diff(ctx, q.ThreadKey, q.From, q.To, q.Limit)
	return diffAnswer{changes, more}, err
}

func artifact(ctx context.Context, h handler, q artifactRequest) (artifactAnswer, error) {
	a, data, err := h.keeper.ReadArtifact(ctx, q.ThreadKey, q.ID, q.Artifact)
	if err == nil {
		err = carried(data)
	}
	if err != nil {
		return artifactAnswer{}, err
	}
	return told(a, data), nil
}

func told(a core.Artifact, data []byte) artifactAnswer {
	return artifactAnswer{
		Run: a.Run, ID: a.ID, Name: a.Name, MIME: a.MIME, CreatedAt: a.CreatedAt,
		Size: a.Object.Size, SHA256: a.Object.SHA256, Data: data,
	}
}

func carried(data []byte) error {
	if len(data) > dataMost {
		return refusal{statusTooLarge, "too-large", fmt.Sprintf("an answer carries %d bytes at most, and these are %d", dataMost, len(data))}
	}
	return nil
}

func putArtifact(ctx context.Context, h handler, q putArtifactRequest) (artifactAnswer, error) {
	a, err := h.keeper.PutArtifact(ctx, q.ThreadKey, core.Artifact{
		Run: q.Run, ID: q.ID, Name: q.Name, MIME: q.MIME, CreatedAt: q.CreatedAt,
	}, q.Data)
	return told(a, nil), err
}

func conversation(ctx context.Context, h handler, q core.ThreadKey) (conversationAnswer, error) {
	c, data, err := h.keeper.Conversation(ctx, q)
	if err == nil {
		err = carried(data)
	}
	if err != nil {
		return conversationAnswer{}, err
	}
	return conversationAnswer{c.Version, c.Runs, data}, nil
}

func putConversation(ctx context.Context, h handler, q putConversationRequest) (conversationAnswer, error) {
	c, err := h.keeper.PutConversation(ctx, q.ThreadKey, q.Seen, q.Data, q.Runs)
	return conversationAnswer{Version: c.Version, Runs: c.Runs}, err
}

func tool(ctx context.Context, h handler, q toolRequest) (any, error) {
	tools := core.SnapshotTools{
		Keeper: h.keeper, Thread: q.ThreadKey, Run: q.Run,
		Sandbox:   core.SaveRequest{Key: q.Key, Instance: q.Instance, JobOptions: q.JobOptions},
		NewID:     func() core.CheckpointID { return q.ID },
		NewThread: func() (core.ThreadID, error) { return q.Branch, nil },
	}
	return tools.Call(ctx, q.Tool, q.Args)
}

// byHand answers an agent whose sandbox has no route to the URL, by whoever holds a
// session with it. The token says what it may do, as it does on the URL.
func byHand(ctx context.Context, h handler, q agentRequest) (any, error) {
	return h.agent(ctx, q.Path, q.Token, q.Body)
}
