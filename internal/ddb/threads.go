package ddb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/expression"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// Threads keeps threads, their checkpoints, artifacts and pins in the checkpoints table.
type Threads struct {
	client client
	table  string
}

var _ core.Threads = (*Threads)(nil)

// NewThreads returns the threads of a table.
func NewThreads(client client, table string) *Threads { return &Threads{client, table} }

// Thread reads a thread.
func (s *Threads) Thread(ctx context.Context, k core.ThreadKey) (core.Thread, error) {
	it, err := get(ctx, s.client, s.table, key(threadPK(k), skHead))
	if err == nil {
		var th core.Thread
		if th, err = threadDecoder(k)(it); err == nil {
			return th, nil
		}
	}
	return core.Thread{}, fmt.Errorf("read thread %s: %w", k, err)
}

// UpdateThread carries out one transition of a thread in one request.
func (s *Threads) UpdateThread(ctx context.Context, k core.ThreadKey, t core.ThreadTransition) (core.Thread, error) {
	if a, ok := t.(core.AcquireLease); ok {
		th, err := s.acquire(ctx, k, a)
		return th, wrapUnlessRefused(err, "%s of thread %s", t.Name(), k)
	}
	c, err := threadChange(k, t)
	if err != nil {
		return core.Thread{}, fmt.Errorf("update thread %s: %w", k, err)
	}
	th, err := transit(ctx, place[core.Thread]{s.client, s.table, key(threadPK(k), skHead), threadDecoder(k)}, c, t)
	return th, wrapUnlessRefused(err, "%s of thread %s", t.Name(), k)
}

// acquireTries is how often a lease that changes hands meanwhile is asked for.
const acquireTries = 8

// acquire takes a lease that nobody holds, or renews the owner's own: which of the two it
// is, and so whether the fence grows, is the condition of the request that does it. A
// refusal brings what is there, and so which of them to ask for next.
func (s *Threads) acquire(ctx context.Context, k core.ThreadKey, t core.AcquireLease) (core.Thread, error) {
	for range acquireTries {
		change := takeLease
		if t.Held {
			change = keepLease
		}
		input, err := change(k, t).input(s.table, key(threadPK(k), skHead))
		if err != nil {
			return core.Thread{}, err
		}
		out, err := send(ctx, s.client.UpdateItem, input)
		failed, refused := errors.AsType[*types.ConditionalCheckFailedException](err)
		switch {
		case !refused && err != nil:
			return core.Thread{}, err
		case !refused:
			return threadDecoder(k)(out.Attributes)
		}
		th, err := threadDecoder(k)(failed.Item)
		if err != nil {
			return core.Thread{}, err
		}
		if _, err := t.Apply(th); err != nil {
			return core.Thread{}, err
		}
		t.Held = th.Lease.Live(t.Now)
	}
	return core.Thread{}, fmt.Errorf("%w: the lease changes hands too fast", errDisagree)
}

// Checkpoint reads a checkpoint of a thread.
func (s *Threads) Checkpoint(ctx context.Context, k core.ThreadKey, id core.CheckpointID) (core.Checkpoint, error) {
	c, err := s.FindCheckpoint(ctx, k.Tenant, id)
	if err == nil && c.Thread != k.Thread {
		return core.Checkpoint{}, fmt.Errorf("read checkpoint %s of thread %s: %w", id, k, core.ErrNotFound)
	}
	return c, err
}

// FindCheckpoint reads a checkpoint of a tenant: its name says where it is.
func (s *Threads) FindCheckpoint(ctx context.Context, tenant core.TenantID, id core.CheckpointID) (core.Checkpoint, error) {
	c, err := s.find(ctx, tenant, id)
	if err != nil {
		return core.Checkpoint{}, fmt.Errorf("read checkpoint %s: %w", id, err)
	}
	return c, nil
}

func (s *Threads) find(ctx context.Context, tenant core.TenantID, id core.CheckpointID) (core.Checkpoint, error) {
	it, err := get(ctx, s.client, s.table, key(namesPK(tenant), nameSK(id)))
	if err != nil {
		return core.Checkpoint{}, err
	}
	name, err := decodeName(it)
	if err != nil {
		return core.Checkpoint{}, err
	}
	at := core.ThreadKey{Tenant: tenant, Thread: name.Thread}
	if it, err = get(ctx, s.client, s.table, key(threadPK(at), checkpointSK(name.CreatedAt, id))); err != nil {
		return core.Checkpoint{}, err
	}
	return decodeCheckpoint(it)
}

// Checkpoints lists a thread's checkpoints.
func (s *Threads) Checkpoints(ctx context.Context, k core.ThreadKey) ([]core.Checkpoint, error) {
	out, err := list(ctx, s, k, skCheckpoint, decodeCheckpoint)
	slices.SortFunc(out, core.CompareCheckpoints) // the ids' tokens sort otherwise
	return out, err
}

// Pins lists the pins on a thread's objects.
func (s *Threads) Pins(ctx context.Context, k core.ThreadKey) ([]core.Pin, error) {
	return list(ctx, s, k, skPin, decodePin)
}

// Artifacts lists a thread's artifacts.
func (s *Threads) Artifacts(ctx context.Context, k core.ThreadKey) ([]core.Artifact, error) {
	out, err := list(ctx, s, k, skArtifact, decodeArtifact)
	slices.SortFunc(out, func(a, b core.Artifact) int { return cmp.Or(cmp.Compare(a.Run, b.Run), cmp.Compare(a.ID, b.ID)) })
	return out, err
}

// list reads all items of a thread whose sort keys begin so.
func list[R any](ctx context.Context, s *Threads, k core.ThreadKey, prefix string, decode func(item) (R, error)) ([]R, error) {
	condition := expression.Key(names.PK.Name).Equal(expression.Value(threadPK(k))).And(expression.Key(names.SK.Name).BeginsWith(prefix))
	out, err := query(ctx, s.client, &dynamodb.QueryInput{TableName: &s.table, ConsistentRead: new(true)}, condition, decode)
	if err != nil {
		return nil, fmt.Errorf("list %s of thread %s: %w", prefix, k, err)
	}
	return out, nil
}
