package core

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
)

// List tells a thread's checkpoints by time, then by id.
func (k *Keeper) List(ctx context.Context, key ThreadKey) ([]ListedCheckpoint, error) {
	if err := checkThread(key); err != nil {
		return nil, err
	}
	th, err := k.Threads.Thread(ctx, key)
	if err != nil {
		return nil, err
	}
	all, err := k.Threads.Checkpoints(ctx, key)
	if err != nil {
		return nil, err
	}
	out := make([]ListedCheckpoint, len(all))
	for i, c := range all {
		out[i] = listedAs(c, th.Head)
	}
	return out, nil
}

func listedAs(c Checkpoint, head CheckpointID) ListedCheckpoint {
	return ListedCheckpoint{
		ID: c.ID, Parent: c.Parent, CreatedAt: c.CreatedAt, Reason: c.Reason, Label: c.Label, SourceRun: c.SourceRun, ForkOf: c.ForkOf,
		Head: c.ID == head, Files: c.Files, Bytes: c.Bytes, PendingRuns: c.PendingRuns, Artifacts: c.Artifacts,
	}
}

// Show tells one checkpoint of a thread, the head where id is empty; ErrNotFound if
// there is none.
func (k *Keeper) Show(ctx context.Context, key ThreadKey, id CheckpointID) (ListedCheckpoint, error) {
	if err := checkThread(key); err != nil {
		return ListedCheckpoint{}, err
	}
	th, err := k.Threads.Thread(ctx, key)
	if err != nil {
		return ListedCheckpoint{}, err
	}
	if id == "" {
		id = th.Head
	}
	if id == "" {
		return ListedCheckpoint{}, ErrNotFound
	}
	c, err := k.Threads.Checkpoint(ctx, key, id)
	return listedAs(c, th.Head), err
}

// Head tells the newest checkpoint of a thread; ErrNotFound if there is none.
func (k *Keeper) Head(ctx context.Context, key ThreadKey) (ListedCheckpoint, error) {
	return k.Show(ctx, key, "")
}

// Diff tells what changed between two checkpoints of a thread, at most limit paths.
func (k *Keeper) Diff(ctx context.Context, key ThreadKey, a, b CheckpointID, limit int) (changes []TreeChange, more bool, err error) {
	if err := checkThread(key); err != nil {
		return nil, false, err
	}
	if limit < 1 {
		return nil, false, invalid("invalid-limit", "want at least 1, got %d", limit)
	}
	from, err := k.rootOf(ctx, key, a)
	if err != nil {
		return nil, false, err
	}
	to, err := k.rootOf(ctx, key, b)
	if err != nil {
		return nil, false, err
	}
	return k.Manifests.Diff(ctx, TreeSource{from.data, k.opener(key)}, TreeSource{to.data, k.opener(key)}, limit)
}

// DeleteHead takes a thread's newest checkpoint away; the newest older one that is left
// becomes head, or none (CP-11). It returns the new head. While the installation is frozen,
// or a run of the thread held, it is refused as that.
func (k *Keeper) DeleteHead(ctx context.Context, key ThreadKey, id CheckpointID) (head CheckpointID, err error) {
	if err := cmp.Or(checkThread(key), checkCheckpoint(key.Tenant, id)); err != nil {
		return "", err
	}
	err = k.under(ctx, key, OwnerSave+"delete-"+rand.Text(), func(w Writer) error {
		head, err = k.DeleteHeadUnder(ctx, w, id)
		return err
	})
	return head, err
}

// DeleteHeadUnder is DeleteHead under a lease that the caller holds.
func (k *Keeper) DeleteHeadUnder(ctx context.Context, w Writer, id CheckpointID) (CheckpointID, error) {
	if err := cmp.Or(checkThread(w.ThreadKey), checkCheckpoint(w.Tenant, id)); err != nil {
		return "", err
	}
	t := DeleteHead{Writer: w, Now: nowMillis(), Checkpoint: Checkpoint{ThreadKey: w.ThreadKey, ID: id}}
	th, err := k.Threads.Thread(ctx, w.ThreadKey)
	if err == nil {
		_, err = t.ApplyThread(th)
	}
	if err != nil {
		return "", err
	}
	all, err := k.Threads.Checkpoints(ctx, w.ThreadKey)
	if err != nil {
		return "", err
	}
	for _, c := range all {
		if c.ID == id {
			t.Checkpoint = c
		}
	}
	if err := k.watch(w).allowed(ctx, t.Name(), ofWish); err != nil {
		return "", err
	}
	t.Next, t.Now = before(all, t.Checkpoint), nowMillis() // to read took its time
	if err := k.Threads.DeleteHead(ctx, t); err != nil {
		return "", err
	}
	return t.next(), nil
}

// before is the checkpoint that was head before c: its parent, or, where retention took
// that, the newest older one. Nil if there is none.
func before(all []Checkpoint, c Checkpoint) *Checkpoint {
	var newest *Checkpoint
	for i := range all {
		switch o := &all[i]; {
		case o.ID == c.Parent:
			return o
		case c.Parent != "" && o.ID != c.ID && o.CreatedAt <= c.CreatedAt:
			newest = o
		}
	}
	return newest
}

// Keep is retention: it takes a thread's checkpoints away but for the head, the newest
// ones, and those that somebody named, and tells which. It is refused as "observe", "frozen" or "held"
// where an operator keeps it back. Objects go at the next
// collection. The parent of one that stays may be gone then: what was made from what is
// not rewritten, and what a checkpoint needs it lists itself.
func (k *Keeper) Keep(ctx context.Context, q KeepRequest) (removed []CheckpointID, err error) {
	if err := checkThread(q.ThreadKey); err != nil {
		return nil, err
	}
	if q.Newest < 1 {
		return nil, invalid("invalid-newest", "want at least 1, got %d", q.Newest)
	}
	// An installation that observes writes nothing, not even a lease.
	if why, err := k.settings(ctx, ofRetention); err != nil || why != "" {
		return nil, cmp.Or(err, refuse("keep", "thread "+q.ThreadKey.String(), why))
	}
	err = k.under(ctx, q.ThreadKey, OwnerCollect+rand.Text(), func(w Writer) error {
		removed, err = k.trim(ctx, w, q.Newest)
		return err
	})
	return removed, err
}

func (k *Keeper) trim(ctx context.Context, w Writer, newest int) (removed []CheckpointID, err error) {
	th, err := k.Threads.Thread(ctx, w.ThreadKey)
	if err != nil {
		return nil, err
	}
	all, err := k.Threads.Checkpoints(ctx, w.ThreadKey)
	if err != nil {
		return nil, err
	}
	old := slices.DeleteFunc(all[:max(0, len(all)-newest)], func(c Checkpoint) bool {
		return c.ID == th.Head || c.Reason == ReasonNamed || c.Label != nil
	})
	holds := k.watch(w)
	for some := range slices.Chunk(old, MaxTrim) {
		if err := k.renew(ctx, w); err != nil {
			return removed, err
		}
		if err := holds.allowed(ctx, "keep", ofRetention); err != nil {
			return removed, err
		}
		if err := k.Threads.Trim(ctx, Trim{Writer: w, Now: nowMillis(), Checkpoints: some}); err != nil {
			return removed, err
		}
		for _, c := range some {
			removed = append(removed, c.ID)
		}
	}
	return removed, nil
}
