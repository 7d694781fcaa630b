package mem

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// shelf is what the store keeps of threads.
type shelf struct {
	threads     map[core.ThreadKey]core.Thread
	checkpoints map[core.ThreadKey]map[core.CheckpointID]core.Checkpoint
	names       map[core.TenantID]map[core.CheckpointID]core.CheckpointName
	pins        map[core.ThreadKey]map[pinID]core.Pin
	artifacts   map[core.ThreadKey]map[artifactID]core.Artifact
}

type pinID struct {
	by         core.ThreadID
	checkpoint core.CheckpointID
}

type artifactID struct {
	run core.RunID
	id  string
}

func newShelf() shelf {
	return shelf{
		threads:     map[core.ThreadKey]core.Thread{},
		checkpoints: map[core.ThreadKey]map[core.CheckpointID]core.Checkpoint{},
		names:       map[core.TenantID]map[core.CheckpointID]core.CheckpointName{},
		pins:        map[core.ThreadKey]map[pinID]core.Pin{},
		artifacts:   map[core.ThreadKey]map[artifactID]core.Artifact{},
	}
}

var _ core.Threads = (*Process)(nil)

// within is the inner map of key, made where there is none.
func within[K, I comparable, V any](m map[K]map[I]V, key K) map[I]V {
	if m[key] == nil {
		m[key] = map[I]V{}
	}
	return m[key]
}

func cloneThread(th core.Thread) core.Thread {
	th.Conversation.Runs, th.PendingRuns = slices.Clone(th.Conversation.Runs), slices.Clone(th.PendingRuns)
	th.WorkspaceLost, th.Step, th.Fork = copied(th.WorkspaceLost), copied(th.Step), copied(th.Fork)
	if th.Step != nil {
		th.Step.Label, th.Step.Job, th.Step.Former = copied(th.Step.Label), copied(th.Step.Job), slices.Clone(th.Step.Former)
	}
	if th.Fork != nil {
		th.Fork.Owners = slices.Clone(th.Fork.Owners)
	}
	return th
}

func cloneCheckpoint(c core.Checkpoint) core.Checkpoint {
	c.Label, c.Artifacts, c.PendingRuns = copied(c.Label), slices.Clone(c.Artifacts), slices.Clone(c.PendingRuns)
	c.Conversation.Runs = slices.Clone(c.Conversation.Runs)
	return c
}

func clonePin(p core.Pin) core.Pin {
	p.Objects = slices.Clone(p.Objects)
	return p
}

// Thread reads a thread.
func (p *Process) Thread(ctx context.Context, key core.ThreadKey) (core.Thread, error) {
	return get(ctx, p, "read thread", func(s *Store) (core.Thread, error) { return s.thread(key), nil })
}

func (s *Store) thread(key core.ThreadKey) core.Thread {
	th, ok := s.shelf.threads[key]
	if !ok {
		return core.Thread{ThreadKey: key}
	}
	return cloneThread(th)
}

// UpdateThread carries out one transition of a thread.
func (p *Process) UpdateThread(ctx context.Context, key core.ThreadKey, t core.ThreadTransition) (core.Thread, error) {
	return get(ctx, p, t.Name(), func(s *Store) (core.Thread, error) {
		before := s.thread(key)
		after, err := t.Apply(cloneThread(before))
		switch {
		case err == nil:
			s.setThread(t.Name(), after)
			p.wrote(t.Name() + " thread " + key.String())
			return cloneThread(after), nil
		case t.Landed(before):
			return before, nil
		default:
			return core.Thread{}, err
		}
	})
}

// setThread stores a thread, and accuses of what no write may do to one.
func (s *Store) setThread(op string, after core.Thread) {
	s.t.Helper()
	before := s.thread(after.ThreadKey)
	need := func(holds bool, rule string) {
		s.t.Helper()
		s.accuse(holds, op, "thread "+after.ThreadKey.String(), rule)
	}
	need(after.Fence == before.Fence || after.Fence == before.Fence+1 && op == "acquire lease", "a fence grows by one, when the lease is taken (I11)")
	need(after.Floor >= before.Floor && after.Floor <= after.Fence, "the floor follows the fence (I11)")
	need(after.Conversation.Version >= before.Conversation.Version, "a conversation's version never goes back (I11)")
	_, there := s.shelf.checkpoints[after.ThreadKey][after.Head]
	need(after.Head == "" || there, "the head is a checkpoint that exists (I11)")
	s.shelf.threads[after.ThreadKey] = cloneThread(after)
}

// Checkpoint reads a checkpoint of a thread.
func (p *Process) Checkpoint(ctx context.Context, key core.ThreadKey, id core.CheckpointID) (core.Checkpoint, error) {
	return get(ctx, p, "read checkpoint", func(s *Store) (core.Checkpoint, error) { return s.checkpoint(key, id) })
}

func (s *Store) checkpoint(key core.ThreadKey, id core.CheckpointID) (core.Checkpoint, error) {
	c, ok := s.shelf.checkpoints[key][id]
	if !ok {
		return core.Checkpoint{}, fmt.Errorf("read checkpoint %s of thread %s: %w", id, key, core.ErrNotFound)
	}
	return cloneCheckpoint(c), nil
}

// FindCheckpoint reads a checkpoint of a tenant.
func (p *Process) FindCheckpoint(ctx context.Context, tenant core.TenantID, id core.CheckpointID) (core.Checkpoint, error) {
	return get(ctx, p, "find checkpoint", func(s *Store) (core.Checkpoint, error) {
		return s.checkpoint(core.ThreadKey{Tenant: tenant, Thread: s.shelf.names[tenant][id].Thread}, id)
	})
}

// Checkpoints lists a thread's checkpoints.
func (p *Process) Checkpoints(ctx context.Context, key core.ThreadKey) ([]core.Checkpoint, error) {
	return get(ctx, p, "list checkpoints", func(s *Store) ([]core.Checkpoint, error) {
		var out []core.Checkpoint
		for _, c := range s.shelf.checkpoints[key] {
			out = append(out, cloneCheckpoint(c))
		}
		slices.SortFunc(out, core.CompareCheckpoints)
		return out, nil
	})
}

// Pins lists the pins on a thread's objects.
func (p *Process) Pins(ctx context.Context, key core.ThreadKey) ([]core.Pin, error) {
	return get(ctx, p, "list pins", func(s *Store) ([]core.Pin, error) {
		var out []core.Pin
		for _, pin := range s.shelf.pins[key] {
			out = append(out, clonePin(pin))
		}
		slices.SortFunc(out, func(a, b core.Pin) int {
			return cmp.Or(cmp.Compare(a.By.Thread, b.By.Thread), cmp.Compare(a.Checkpoint, b.Checkpoint))
		})
		return out, nil
	})
}

// Artifacts lists a thread's artifacts.
func (p *Process) Artifacts(ctx context.Context, key core.ThreadKey) ([]core.Artifact, error) {
	return get(ctx, p, "list artifacts", func(s *Store) ([]core.Artifact, error) {
		return slices.SortedFunc(maps.Values(s.shelf.artifacts[key]), func(a, b core.Artifact) int {
			return cmp.Or(cmp.Compare(a.Run, b.Run), cmp.Compare(a.ID, b.ID))
		}), nil
	})
}

// putCheckpoint puts a checkpoint and its name.
func (s *Store) putCheckpoint(c core.Checkpoint) {
	within(s.shelf.checkpoints, c.ThreadKey)[c.ID] = cloneCheckpoint(c)
	within(s.shelf.names, c.Tenant)[c.ID] = core.NameOf(c)
}

func (s *Store) dropCheckpoint(c core.Checkpoint) {
	delete(s.shelf.checkpoints[c.ThreadKey], c.ID)
	delete(s.shelf.names[c.Tenant], c.ID)
}

// Commit publishes a checkpoint.
func (p *Process) Commit(ctx context.Context, t core.Commit) error {
	return p.transact(ctx, t.Name(), func(s *Store) error {
		th := s.thread(t.Writer.ThreadKey)
		after, err := t.ApplyThread(cloneThread(th))
		name, taken := s.shelf.names[t.Checkpoint.Tenant][t.Checkpoint.ID]
		switch {
		case taken && err != nil:
			return t.Judge(&th, &name)
		case taken:
			return t.Judge(nil, &name)
		case err != nil:
			return t.Judge(&th, nil)
		}
		s.putCheckpoint(t.Checkpoint)
		s.setThread(t.Name(), after)
		p.wrote("commit checkpoint " + string(t.Checkpoint.ID))
		return nil
	})
}

// DeleteHead takes the newest checkpoint away.
func (p *Process) DeleteHead(ctx context.Context, t core.DeleteHead) error {
	return p.transact(ctx, t.Name(), func(s *Store) error {
		th := s.thread(t.Writer.ThreadKey)
		after, err := t.ApplyThread(cloneThread(th))
		_, there := s.shelf.checkpoints[t.Writer.ThreadKey][t.Checkpoint.ID]
		switch {
		case err != nil && t.Landed(th, !there):
			return nil
		case err != nil:
			return err
		}
		if t.Next != nil {
			if _, ok := s.shelf.checkpoints[t.Writer.ThreadKey][t.Next.ID]; !ok {
				return &core.RefusedError{Op: t.Name(), Record: "checkpoint " + string(t.Next.ID), Why: "next"}
			}
		}
		s.setThread(t.Name(), after)
		s.dropCheckpoint(t.Checkpoint)
		p.wrote("delete head " + string(t.Checkpoint.ID))
		return nil
	})
}

// Trim takes old checkpoints away.
func (p *Process) Trim(ctx context.Context, t core.Trim) error {
	return p.transact(ctx, t.Name(), func(s *Store) error {
		if _, err := t.ApplyThread(s.thread(t.Writer.ThreadKey)); err != nil {
			return err
		}
		for _, c := range t.Checkpoints {
			s.dropCheckpoint(c)
			p.wrote("trim checkpoint " + string(c.ID))
		}
		for _, a := range t.Artifacts {
			delete(s.shelf.artifacts[t.Writer.ThreadKey], artifactID{a.Run, a.ID})
			p.wrote("trim artifact " + a.ID)
		}
		return nil
	})
}

// Fork begins threads from a checkpoint.
func (p *Process) Fork(ctx context.Context, t core.Fork) error {
	return p.transact(ctx, t.Name(), func(s *Store) error {
		if landed, err := s.judgeFork(t); landed || err != nil {
			return err
		}
		for _, b := range t.Branches {
			after, err := t.ApplyThread(b, s.thread(b.Writer.ThreadKey))
			if err != nil {
				return err
			}
			s.putCheckpoint(b.Checkpoint)
			s.setThread(t.Name(), after)
			for _, pin := range b.Pins {
				within(s.shelf.pins, pin.Owner)[pinID{pin.By.Thread, pin.Checkpoint}] = clonePin(pin)
			}
			p.wrote("fork thread " + b.Writer.ThreadKey.String())
		}
		return nil
	})
}

// judgeFork tells whether the fork has landed, or what speaks against it.
func (s *Store) judgeFork(t core.Fork) (landed bool, err error) {
	for _, b := range t.Branches {
		if name, ok := s.shelf.names[b.Checkpoint.Tenant][b.Checkpoint.ID]; ok && t.Landed(b, name) {
			return true, nil
		}
	}
	if _, err := s.checkpoint(t.Source.ThreadKey, t.Source.ID); err != nil {
		return false, &core.RefusedError{Op: t.Name(), Record: "checkpoint " + string(t.Source.ID), Why: "fork-source-not-found"}
	}
	for _, b := range t.Branches {
		if _, err := t.ApplyThread(b, s.thread(b.Writer.ThreadKey)); err != nil {
			return false, err
		}
		if _, taken := s.shelf.names[b.Checkpoint.Tenant][b.Checkpoint.ID]; taken {
			return false, t.Refused(b, "fork-destination-not-empty")
		}
	}
	return false, nil
}

// Unpin lets a fork's pin go.
func (p *Process) Unpin(ctx context.Context, t core.Unpin) error {
	return p.transact(ctx, t.Name(), func(s *Store) error {
		after, err := t.ApplyThread(s.thread(t.Writer.ThreadKey))
		if err != nil {
			return err
		}
		s.setThread(t.Name(), after)
		owner := core.ThreadKey{Tenant: t.Writer.Tenant, Thread: t.Owner}
		delete(s.shelf.pins[owner], pinID{t.Writer.Thread, t.Root})
		p.wrote("unpin thread " + owner.String())
		return nil
	})
}

// PutArtifact adds an artifact to a thread.
func (p *Process) PutArtifact(ctx context.Context, t core.PutArtifact) error {
	return p.transact(ctx, t.Name(), func(s *Store) error {
		after, err := t.ApplyThread(s.thread(t.Thread))
		if err != nil {
			return err
		}
		s.setThread(t.Name(), after)
		within(s.shelf.artifacts, t.Thread)[artifactID{t.Artifact.Run, t.Artifact.ID}] = t.Artifact
		p.wrote("put artifact " + t.Artifact.ID)
		return nil
	})
}

// SeedThread puts a thread as it is, over any that is there.
func (s *Store) SeedThread(th core.Thread) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shelf.threads[th.ThreadKey] = cloneThread(th)
}

// SeedCheckpoint puts a checkpoint and its name as they are.
func (s *Store) SeedCheckpoint(c core.Checkpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putCheckpoint(c)
}
