package core

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// CommitRoot publishes what a capture hands in, or, without a root, ends a restore or a
// verification. The same root again is success. The checks come in the order of CP-5,
// so that a caller sees the code that it would see upstream.
func (k *Keeper) CommitRoot(ctx context.Context, token string, data []byte) (CheckpointID, error) {
	w, err := k.authorize(ctx, token, true)
	switch {
	case err != nil:
		return "", err
	case len(data) > MaxManifest:
		return "", invalid("too-large", "root: want at most %d bytes, got %d", MaxManifest, len(data))
	case w.step.State == StepFailed:
		return "", refuse("commit", "step "+string(w.step.ID), "failed")
	case w.step.Kind == StepCapture:
		err = k.commitCapture(ctx, w, data)
	default:
		err = k.endRestore(ctx, w, data)
	}
	if err != nil {
		return "", err
	}
	return w.step.ID, k.wake(ctx, w.step)
}

// endRestore ends a step that makes no checkpoint.
func (k *Keeper) endRestore(ctx context.Context, w working, data []byte) error {
	switch {
	case len(data) != 0:
		return invalid("invalid-entry", "root: want none at the end of a %s", w.step.Kind)
	case w.step.State == StepDone:
		return nil
	}
	_, err := k.Threads.UpdateThread(ctx, w.ThreadKey, EndStep{
		Fence: w.step.Fence, Token: w.step.Token, State: StepDone, Release: releases(w.Lease.Owner), Now: nowMillis(),
	})
	if err == nil {
		k.tell(ctx, w.ThreadKey, w.step, StepReport{State: StepDone, Checkpoint: w.step.Checkpoint})
	}
	return err
}

// commitCapture checks a root of an untrusted sandbox and publishes it.
func (k *Keeper) commitCapture(ctx context.Context, w working, data []byte) error {
	digest := sumOf(data)
	if w.step.State == StepDone {
		return k.repeated(ctx, w, digest)
	}
	facts, err := k.Manifests.Facts(data)
	switch {
	case err != nil:
		return err
	case facts.ID != w.step.ID:
		return invalid("invalid-id", "root: want id %q, got %q", w.step.ID, facts.ID)
	}
	// The lease is renewed before and after what takes long (SO-4).
	if _, err := k.note(ctx, w, facts.Files, facts.Bytes); err != nil {
		return err
	}
	made, err := k.checkpointOf(ctx, w, facts)
	if err != nil {
		return err
	}
	made.Digest = digest
	t := &Commit{
		Writer: w.writer(), Expected: w.step.Checkpoint, Checkpoint: made, Token: w.step.Token, Release: releases(w.Lease.Owner),
	}
	if err := AppendCheckpoint(ctx, k.Threads, t, func() error {
		t.Checkpoint.Manifest, err = k.sealRoot(ctx, w, handed{data, facts}, made)
		if err != nil {
			return err
		}
		t.Now = nowMillis()
		_, err = k.note(ctx, w, facts.Files, facts.Bytes)
		return err
	}); err != nil {
		return err
	}
	k.tell(ctx, w.ThreadKey, w.step, StepReport{State: StepDone, Checkpoint: made.ID, Files: facts.Files, Bytes: facts.Bytes})
	return nil
}

// repeated tells a commit that has landed from another of the same id.
func (k *Keeper) repeated(ctx context.Context, w working, digest string) error {
	c, err := k.Threads.Checkpoint(ctx, w.ThreadKey, w.step.ID)
	switch {
	case errors.Is(err, ErrNotFound): // it has been deleted since
		return ErrToken
	case err != nil:
		return err
	case c.Digest != digest:
		return refuse("commit", "checkpoint "+string(w.step.ID), "duplicate-id")
	}
	return nil
}

// checkpointOf is the checkpoint that a step makes, but for its manifest.
func (k *Keeper) checkpointOf(ctx context.Context, w working, facts ManifestFacts) (Checkpoint, error) {
	th, err := k.Threads.Thread(ctx, w.ThreadKey)
	if err != nil {
		return Checkpoint{}, err
	}
	artifacts, err := k.Threads.Artifacts(ctx, w.ThreadKey)
	if err != nil {
		return Checkpoint{}, err
	}
	c := Checkpoint{
		ThreadKey: w.ThreadKey, ID: w.step.ID, Parent: facts.Parent, CreatedAt: nowMillis(), Reason: w.step.Reason, Label: w.step.Label,
		SourceRun: w.step.Run, Files: facts.Files, Bytes: facts.Bytes, Conversation: th.Conversation, Artifacts: artifacts, PendingRuns: th.PendingRuns,
	}
	if w.step.Checkpoint == "" {
		return c, nil
	}
	parent, err := k.Threads.Checkpoint(ctx, w.ThreadKey, w.step.Checkpoint)
	if errors.Is(err, ErrNotFound) {
		return Checkpoint{}, refuse("commit", "checkpoint "+string(c.ID), "stale-head")
	}
	// A list is in the order of history, whatever the clocks say and the ids are.
	c.CreatedAt = max(c.CreatedAt, parent.CreatedAt+1)
	return c, err
}

// handed is a root as a sandbox hands it in.
type handed struct {
	data  []byte
	facts ManifestFacts
}

// sealRoot writes a root as the server knows it, once everything that it names is there
// and it is one that can be restored.
func (k *Keeper) sealRoot(ctx context.Context, w working, in handed, c Checkpoint) (ObjectRef, error) {
	listed, err := k.listed(ctx, w)
	if err != nil {
		return ObjectRef{}, err
	}
	if err := k.checkStored(ctx, w, in.facts, listed); err != nil {
		return ObjectRef{}, err
	}
	sealed, err := k.Manifests.Seal(in.data, ManifestSeal{
		ID: c.ID, Parent: c.Parent, CreatedAt: c.CreatedAt, Owner: func(p PackRef) ThreadID { return listed[nameOf(p)].Owner },
	})
	if err != nil {
		return ObjectRef{}, err
	}
	if err := k.Manifests.Check(ctx, sealed, k.opener(w.ThreadKey)); err != nil {
		return ObjectRef{}, err
	}
	return k.putObject(ctx, objectKey(w.ThreadKey, manifestObjects, w.step.Fence, sumOf(sealed)), sealed)
}

// checkStored refuses a root that names a pack which is neither the parent's nor stored
// under the own thread, where nobody collects it.
func (k *Keeper) checkStored(ctx context.Context, w working, facts ManifestFacts, listed map[packName]PackRef) error {
	var own []PackRef
	for _, p := range facts.Needed() {
		known, ok := listed[nameOf(p)]
		switch {
		case ok && known.Size != p.Size:
			return invalid("invalid-entry", "pack %d-%s: want %d bytes, got %d", p.Fence, p.SHA256, known.Size, p.Size)
		case ok:
		case !isSHA256(p.SHA256) || p.Size < 1 || p.Size > MaxPack || !w.reuses(p):
			return invalid("invalid-entry", "pack %d-%s of %d bytes: want one that the parent lists, or that was stored since fence %d", p.Fence, p.SHA256, p.Size, w.Floor)
		default:
			own = append(own, p)
		}
	}
	return each(len(own), k.width(), func(i int) error {
		there, err := k.stored(ctx, PackKey(w.ThreadKey, PackRef{Fence: own[i].Fence, SHA256: own[i].SHA256}), own[i])
		if err == nil && !there {
			return invalid("invalid-entry", "pack %d-%s: want it stored", own[i].Fence, own[i].SHA256)
		}
		return err
	})
}

// putObject stores an object and names its version.
func (k *Keeper) putObject(ctx context.Context, key string, data []byte) (ObjectRef, error) {
	if err := k.Blobs.PutBlob(ctx, key, data); err != nil {
		return ObjectRef{}, err
	}
	info, err := k.Objects.Stat(ctx, key)
	if err != nil {
		return ObjectRef{}, fmt.Errorf("find what was stored: %w", err)
	}
	return ObjectRef{Key: key, Version: info.Version, SHA256: sumOf(data), Size: int64(len(data))}, nil
}
