package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/archive"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// rehearsedKeeper is the use case of the checkpoint function in this process, with the
// caller's own credentials: it decides, refuses and answers by the same code, and what it
// would write stays here. Each rehearses one call.
func (in *installation) rehearsedKeeper() *core.Keeper {
	objects := &rehearsedObjects{of: in.blobs, put: map[string][]byte{}}
	return &core.Keeper{
		Threads: &rehearsedThreads{in.threads(), map[core.ThreadKey]core.Thread{}},
		Objects: objects, Blobs: objects, Manifests: archive.Reader{},
		Sandboxes: readOnlySandboxes{in.boxes}, Controls: in.controls(), Runs: in.runs, History: in.history(), Agents: noAgents{}, URL: noAgents{},
	}
}

var errRehearsed = errors.New("a rehearsal does not get that far")

// rehearsedThreads applies each transition to the record as it was read, and keeps its
// successor for later reads of the same call.
type rehearsedThreads struct {
	of   core.Threads
	left map[core.ThreadKey]core.Thread
}

var _ core.Threads = (*rehearsedThreads)(nil)

// Thread reads a thread, as the rehearsal has left it.
func (r *rehearsedThreads) Thread(ctx context.Context, key core.ThreadKey) (core.Thread, error) {
	if th, ok := r.left[key]; ok {
		return th, nil
	}
	return r.of.Thread(ctx, key)
}

// UpdateThread applies a transition.
func (r *rehearsedThreads) UpdateThread(ctx context.Context, key core.ThreadKey, t core.ThreadTransition) (core.Thread, error) {
	th, err := r.Thread(ctx, key)
	if err != nil {
		return core.Thread{}, err
	}
	next, err := t.Apply(th)
	switch {
	case err == nil:
		r.left[key] = next
		return next, nil
	case t.Landed(th):
		return th, nil
	}
	return next, err
}

// Checkpoint reads a checkpoint.
func (r *rehearsedThreads) Checkpoint(ctx context.Context, key core.ThreadKey, id core.CheckpointID) (core.Checkpoint, error) {
	return r.of.Checkpoint(ctx, key, id)
}

// FindCheckpoint reads a checkpoint of whatever thread.
func (r *rehearsedThreads) FindCheckpoint(ctx context.Context, tenant core.TenantID, id core.CheckpointID) (core.Checkpoint, error) {
	return r.of.FindCheckpoint(ctx, tenant, id)
}

// Checkpoints lists a thread's checkpoints.
func (r *rehearsedThreads) Checkpoints(ctx context.Context, key core.ThreadKey) ([]core.Checkpoint, error) {
	return r.of.Checkpoints(ctx, key)
}

// Pins lists the pins on objects of the thread.
func (r *rehearsedThreads) Pins(ctx context.Context, key core.ThreadKey) ([]core.Pin, error) {
	return r.of.Pins(ctx, key)
}

// Artifacts lists a thread's artifacts.
func (r *rehearsedThreads) Artifacts(ctx context.Context, key core.ThreadKey) ([]core.Artifact, error) {
	return r.of.Artifacts(ctx, key)
}

// Trim looks whether it would be carried out.
func (r *rehearsedThreads) Trim(ctx context.Context, t core.Trim) error {
	th, err := r.Thread(ctx, t.Writer.ThreadKey)
	if err == nil {
		_, err = t.ApplyThread(th)
	}
	return err
}

// Fork looks whether it would be carried out.
func (r *rehearsedThreads) Fork(ctx context.Context, t core.Fork) error {
	for _, b := range t.Branches {
		th, err := r.Thread(ctx, b.Writer.ThreadKey)
		if err == nil {
			_, err = t.ApplyThread(b, th)
		}
		if err != nil {
			return err
		}
		switch _, err := r.of.FindCheckpoint(ctx, b.Checkpoint.Tenant, b.Checkpoint.ID); {
		case err == nil:
			return t.Refused(b, "fork-destination-not-empty")
		case !errors.Is(err, core.ErrNotFound):
			return err
		}
	}
	return nil
}

// Commit is no part of what is rehearsed.
func (*rehearsedThreads) Commit(context.Context, core.Commit) error { return errRehearsed }

// DeleteHead is no part of what is rehearsed.
func (*rehearsedThreads) DeleteHead(context.Context, core.DeleteHead) error { return errRehearsed }

// Unpin is no part of what is rehearsed.
func (*rehearsedThreads) Unpin(context.Context, core.Unpin) error { return errRehearsed }

// PutArtifact is no part of what is rehearsed.
func (*rehearsedThreads) PutArtifact(context.Context, core.PutArtifact) error { return errRehearsed }

// rehearsedObjects reads what is stored, and keeps what would be.
type rehearsedObjects struct {
	of  core.Blobs
	put map[string][]byte
}

var (
	_ core.Objects = (*rehearsedObjects)(nil)
	_ core.Blobs   = (*rehearsedObjects)(nil)
)

// Blob reads an object.
func (r *rehearsedObjects) Blob(ctx context.Context, key string) ([]byte, error) {
	if data, ok := r.put[key]; ok {
		return data, nil
	}
	return r.of.Blob(ctx, key)
}

// PutBlob keeps an object.
func (r *rehearsedObjects) PutBlob(_ context.Context, key string, data []byte) error {
	r.put[key] = data
	return nil
}

// Stat describes what the rehearsal has put: nothing else is asked for.
func (r *rehearsedObjects) Stat(_ context.Context, key string) (core.ObjectInfo, error) {
	data, ok := r.put[key]
	if !ok {
		return core.ObjectInfo{}, fmt.Errorf("stat object %s: %w", key, errRehearsed)
	}
	return core.ObjectInfo{Key: key, Size: int64(len(data)), ModifiedAt: core.MillisOf(time.Now())}, nil
}

// Objects is no part of what is rehearsed.
func (*rehearsedObjects) Objects(context.Context, string) ([]core.ObjectInfo, error) {
	return nil, errRehearsed
}

// Prefixes is no part of what is rehearsed.
func (*rehearsedObjects) Prefixes(context.Context, string) ([]string, error) {
	return nil, errRehearsed
}

// Delete is no part of what is rehearsed.
func (*rehearsedObjects) Delete(context.Context, string, string) error { return errRehearsed }

// GrantPut is no part of what is rehearsed.
func (*rehearsedObjects) GrantPut(context.Context, string, string, int64, time.Duration) (core.Grant, error) {
	return core.Grant{}, errRehearsed
}

// GrantGet is no part of what is rehearsed.
func (*rehearsedObjects) GrantGet(context.Context, string, string, time.Duration) (core.Grant, error) {
	return core.Grant{}, errRehearsed
}

// readOnlySandboxes changes no record.
type readOnlySandboxes struct{ of core.Sandboxes }

// Sandbox reads a record.
func (r readOnlySandboxes) Sandbox(ctx context.Context, key core.SandboxKey) (core.Sandbox, error) {
	return r.of.Sandbox(ctx, key)
}

// UpdateSandbox is no part of what is rehearsed.
func (readOnlySandboxes) UpdateSandbox(context.Context, core.SandboxKey, core.SandboxTransition) (core.Sandbox, error) {
	return core.Sandbox{}, errRehearsed
}

// noAgents starts none, and answers as one that began.
type noAgents struct{}

// Start starts nothing.
func (noAgents) Start(context.Context, core.ExecTarget, core.AgentJob) (core.AgentStarted, error) {
	return core.AgentBegan, nil
}

// AgentURL is nobody's: no agent is told of it.
func (noAgents) AgentURL(context.Context) (url, host string, err error) { return "", "", nil }
