package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Fork begins threads from a checkpoint of another one, all of them or none. Said again
// with the same ids it is success. The source is not touched and needs no lease; those
// of the branches are taken for the time of it (CP-12).
func (k *Keeper) Fork(ctx context.Context, q ForkRequest) ([]ListedCheckpoint, error) {
	source, err := k.forkSource(ctx, q)
	if err != nil {
		return nil, err
	}
	if done, err := k.forked(ctx, q, source); err != nil || done != nil {
		return done, err
	}
	writers, err := k.leaseAll(ctx, q)
	var made []ListedCheckpoint
	if err == nil {
		made, err = k.fork(ctx, forking{source, q, writers, true})
	}
	if err != nil {
		for _, w := range writers {
			err = errors.Join(err, k.giveBack(ctx, w))
		}
		return nil, err
	}
	return made, nil
}

// ForkUnder is Fork under leases of the branches' threads that the caller holds, in the
// order of the branches, and goes on to hold.
func (k *Keeper) ForkUnder(ctx context.Context, q ForkRequest, writers []Writer) ([]ListedCheckpoint, error) {
	source, err := k.forkSource(ctx, q)
	if err != nil {
		return nil, err
	}
	if len(writers) != len(q.Branches) {
		return nil, invalid("invalid-branches", "want a writer for each of %d branches, got %d", len(q.Branches), len(writers))
	}
	for i, b := range q.Branches {
		if writers[i].ThreadKey != (ThreadKey{q.Source.Tenant, b.Thread}) {
			return nil, refuse("fork", "thread "+writers[i].String(), "writer-lost")
		}
	}
	if done, err := k.forked(ctx, q, source); err != nil || done != nil {
		return done, err
	}
	return k.fork(ctx, forking{source, q, writers, false})
}

// forking is a fork whose leases are held, by branch.
type forking struct {
	source  Checkpoint
	request ForkRequest
	writers []Writer
	release bool
}

// fork writes the branches.
func (k *Keeper) fork(ctx context.Context, f forking) ([]ListedCheckpoint, error) {
	t := Fork{Source: f.source, Release: f.release}
	for i, w := range f.writers {
		b, err := k.branch(ctx, f.source, w, f.request.Branches[i].ID)
		if err != nil {
			return nil, err
		}
		t.Branches = append(t.Branches, b)
	}
	if n := t.Items(); n > MaxForkItems {
		return nil, invalid("too-many-branches", "want at most %d records in one fork, got %d", MaxForkItems, n)
	}
	t.Now = nowMillis() // to make the branches took its time
	if err := k.Threads.Fork(ctx, t); err != nil {
		return nil, err
	}
	return forkedAs(t), nil
}

func forkedAs(t Fork) []ListedCheckpoint {
	out := make([]ListedCheckpoint, len(t.Branches))
	for i, b := range t.Branches {
		out[i] = listedAs(b.Checkpoint, b.Checkpoint.ID)
	}
	return out
}

// forkSource checks what is asked for and finds the checkpoint, in the order of CP-12.
func (k *Keeper) forkSource(ctx context.Context, q ForkRequest) (Checkpoint, error) {
	if err := q.check(); err != nil {
		return Checkpoint{}, err
	}
	for _, b := range q.Branches {
		if b.Thread == q.Source.Thread {
			return Checkpoint{}, refuse("fork", "thread "+q.Source.String(), "fork-source-thread-mismatch")
		}
	}
	id := q.Checkpoint
	if id == "" {
		th, err := k.Threads.Thread(ctx, q.Source)
		if err != nil {
			return Checkpoint{}, err
		}
		if id = th.Head; id == "" {
			return Checkpoint{}, refuse("fork", "thread "+q.Source.String(), "missing-checkpoint")
		}
	}
	c, err := k.Threads.FindCheckpoint(ctx, q.Source.Tenant, id)
	switch {
	case errors.Is(err, ErrNotFound):
		return Checkpoint{}, refuse("fork", "checkpoint "+string(id), "fork-source-not-found")
	case err == nil && c.Thread != q.Source.Thread:
		return Checkpoint{}, refuse("fork", "checkpoint "+string(id), "fork-source-thread-mismatch")
	}
	return c, err
}

func (q ForkRequest) check() error {
	if len(q.Branches) == 0 {
		return invalid("invalid-branches", "want at least one branch, got none")
	}
	err := checkThread(q.Source)
	if q.Checkpoint != "" {
		err = cmp.Or(err, checkCheckpoint(q.Source.Tenant, q.Checkpoint))
	}
	threads, ids := map[ThreadID]bool{}, map[CheckpointID]bool{}
	for _, b := range q.Branches {
		err = cmp.Or(err, checkThread(ThreadKey{q.Source.Tenant, b.Thread}), checkCheckpoint(q.Source.Tenant, b.ID))
		threads[b.Thread], ids[b.ID] = true, true
	}
	if err == nil && (len(threads) != len(q.Branches) || len(ids) != len(q.Branches)) {
		err = invalid("invalid-branches", "want threads and ids that differ from one another")
	}
	return err
}

// forked finds the branches of a fork that has landed before; nil if it has not.
func (k *Keeper) forked(ctx context.Context, q ForkRequest, source Checkpoint) ([]ListedCheckpoint, error) {
	var out []ListedCheckpoint
	for _, b := range q.Branches {
		c, err := k.Threads.FindCheckpoint(ctx, q.Source.Tenant, b.ID)
		switch {
		case errors.Is(err, ErrNotFound), err == nil && (c.Thread != b.Thread || c.ForkOf != source.ID):
			return nil, nil
		case err != nil:
			return nil, err
		}
		out = append(out, listedAs(c, c.ID))
	}
	return out, nil
}

// leaseAll takes the lease of every branch. On an error it returns those that it took.
func (k *Keeper) leaseAll(ctx context.Context, q ForkRequest) (taken []Writer, err error) {
	for _, b := range q.Branches {
		th, err := k.lease(ctx, ThreadKey{q.Source.Tenant, b.Thread}, OwnerSave+string(b.ID))
		if err != nil {
			return taken, err
		}
		taken = append(taken, th.Writer())
		if !th.Empty() {
			return taken, refuse("fork", "thread "+th.String(), "fork-destination-not-empty")
		}
	}
	return taken, nil
}

// branch is what begins a thread: the source's checkpoint as the thread's own root, and
// pins on what others own of it.
func (k *Keeper) branch(ctx context.Context, source Checkpoint, w Writer, id CheckpointID) (Branch, error) {
	r, err := k.root(ctx, source.Manifest)
	if err != nil {
		return Branch{}, err
	}
	now := max(nowMillis(), source.CreatedAt)
	sealed, err := k.Manifests.Seal(r.data, ManifestSeal{ID: id, CreatedAt: now, Owner: func(p PackRef) ThreadID {
		return cmp.Or(r.packs[nameOf(p)].Owner, source.Thread)
	}})
	if err != nil {
		return Branch{}, fmt.Errorf("seal branch %s: %w", id, err)
	}
	c := Checkpoint{
		ThreadKey: w.ThreadKey, ID: id, CreatedAt: now, Reason: ReasonForkRoot, Digest: sumOf(sealed), Files: source.Files, Bytes: source.Bytes,
		Artifacts: source.Artifacts, PendingRuns: source.PendingRuns, ForkOf: source.ID,
	}
	if c.Conversation, err = k.copyConversation(ctx, source.Conversation, w); err != nil {
		return Branch{}, err
	}
	if c.Manifest, err = k.putObject(ctx, objectKey(w.ThreadKey, manifestObjects, w.Fence, sumOf(sealed)), sealed); err != nil {
		return Branch{}, err
	}
	pins, err := pinsOf(c, source.Thread, r.facts)
	return Branch{Writer: w, Checkpoint: c, Pins: pins}, err
}

// copyConversation makes a conversation the first version of a branch's own: it outlives
// the branch's root, which alone is pinned for.
func (k *Keeper) copyConversation(ctx context.Context, from Conversation, to Writer) (Conversation, error) {
	if from.Object.Key == "" {
		return Conversation{}, nil
	}
	data, err := k.readObject(ctx, from.Object)
	if err != nil {
		return Conversation{}, fmt.Errorf("copy conversation %s: %w", from.Object.Key, err)
	}
	object, err := k.putObject(ctx, objectKey(to.ThreadKey, conversationObjects, to.Fence, sumOf(data)), data)
	return Conversation{Version: 1, Object: object, Runs: from.Runs}, err
}

// pinsOf are the pins that the root of a branch needs, by owner.
func pinsOf(c Checkpoint, source ThreadID, facts ManifestFacts) ([]Pin, error) {
	pins := map[ThreadID]*Pin{}
	under := func(owner ThreadID) *Pin {
		if pins[owner] == nil {
			pins[owner] = &Pin{Owner: ThreadKey{c.Tenant, owner}, By: c.ThreadKey, Checkpoint: c.ID, Manifest: c.Manifest}
		}
		return pins[owner]
	}
	for _, p := range facts.Needed() {
		under(cmp.Or(p.Owner, source))
	}
	for _, key := range c.objects() {
		owner, ok := ownerOfKey(c.Tenant, key)
		if !ok {
			return nil, fmt.Errorf("pin object %s: want one of a thread of the tenant", key)
		}
		if owner == c.Thread {
			continue
		}
		pin := under(owner)
		pin.Objects = append(pin.Objects, key)
	}
	var out []Pin
	for _, owner := range slices.Sorted(maps.Keys(pins)) {
		pin := *pins[owner]
		slices.Sort(pin.Objects)
		out = append(out, pin)
	}
	return out, nil
}

// objects are the keys that a checkpoint names beside those in its manifest.
func (c Checkpoint) objects() []string {
	var keys []string
	if c.Conversation.Object.Key != "" {
		keys = append(keys, c.Conversation.Object.Key)
	}
	for _, a := range c.Artifacts {
		keys = append(keys, a.Object.Key)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// ownerOfKey is the thread under which an object of a tenant lies.
func ownerOfKey(tenant TenantID, key string) (ThreadID, bool) {
	rest, ok := strings.CutPrefix(key, KeyToken(string(tenant))+"/threads/")
	if !ok {
		return "", false
	}
	token, _, ok := strings.Cut(rest, "/")
	id, plain := unescapeToken(token)
	return ThreadID(id), ok && plain && id != ""
}
