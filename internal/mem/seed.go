package mem

import (
	"maps"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// SeedRun puts a run record as it is, over any that is there.
func (s *Store) SeedRun(r core.Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setRun(r)
}

// SeedSandbox puts an instance record as it is, over any that is there.
func (s *Store) SeedSandbox(box core.Sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setBox(box)
}

// SeedRow puts a ledger row as it is, over any that is there.
func (s *Store) SeedRow(row core.LedgerRow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setRow(row)
}

// SeedLaunched puts a run together with the instance record and the running ledger
// row that a launch of its task would have left; the record's key is r.SandboxKey.
func (s *Store) SeedLaunched(r core.Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setRun(r)
	s.setRow(core.LedgerRow{
		Instance: r.Instance, Key: r.SandboxKey, Provider: r.Provider, Tenant: r.Tenant, Run: r.RunKey.Run,
		State: core.LedgerRunning, LaunchUntil: r.StartedAt, TaskARN: r.TaskARN, Cluster: r.Cluster, UpdatedAt: r.StartedAt,
	})
	s.setBox(core.Sandbox{
		Key: r.SandboxKey, Instance: r.Instance, TaskARN: r.TaskARN, Cluster: r.Cluster, Container: r.Container,
		Material:  core.KeyMaterial{Provider: r.Provider, Definition: r.Definition, Tenant: r.Tenant, Thread: r.Thread},
		LatestRun: r.RunKey.Run, CreatedAt: r.StartedAt, UpdatedAt: r.StartedAt,
	})
}

// Retire is retention: the records of ended runs whose time is over go, as DynamoDB's TTL
// has them go some time.
func (s *Store) Retire(now core.Millis) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, r := range s.runs {
		if r.ExpiresAt != 0 && r.ExpiresAt <= now {
			delete(s.runs, key)
		}
	}
}

// State is a copy of everything a store holds, for assertions; it passes no gate.
type State struct {
	Runs      map[core.RunKey]core.Run
	Segments  map[core.RunKey][]core.Segment
	Sandboxes map[core.SandboxKey]core.Sandbox
	Rows      map[core.InstanceID]core.LedgerRow
	Blobs     map[string][]byte
	Jobs      []core.ReclaimJob

	Threads     map[core.ThreadKey]core.Thread
	Checkpoints map[core.ThreadKey]map[core.CheckpointID]core.Checkpoint
	Names       map[core.TenantID]map[core.CheckpointID]core.CheckpointName
	Pins        []core.Pin
	Artifacts   map[core.ThreadKey][]core.Artifact
}

// State returns a copy of what the store holds now.
func (s *Store) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := State{
		Runs: map[core.RunKey]core.Run{}, Segments: map[core.RunKey][]core.Segment{},
		Sandboxes: map[core.SandboxKey]core.Sandbox{}, Rows: map[core.InstanceID]core.LedgerRow{},
		Blobs: map[string][]byte{},
	}
	for k, v := range s.runs {
		out.Runs[k] = clone(v)
	}
	for k, v := range s.segments {
		out.Segments[k] = append([]core.Segment(nil), v...)
	}
	maps.Copy(out.Sandboxes, s.boxes)
	maps.Copy(out.Rows, s.rows)
	maps.Copy(out.Blobs, s.blobs) // their bytes never change
	out.Jobs = append(out.Jobs, s.jobs...)
	out.Threads, out.Checkpoints = map[core.ThreadKey]core.Thread{}, map[core.ThreadKey]map[core.CheckpointID]core.Checkpoint{}
	for k, v := range s.shelf.threads {
		out.Threads[k] = cloneThread(v)
	}
	for k, v := range s.shelf.checkpoints {
		out.Checkpoints[k] = maps.Clone(v)
	}
	out.Names = map[core.TenantID]map[core.CheckpointID]core.CheckpointName{}
	for k, v := range s.shelf.names {
		out.Names[k] = maps.Clone(v)
	}
	out.Artifacts = map[core.ThreadKey][]core.Artifact{}
	for k, all := range s.shelf.artifacts {
		for _, one := range all {
			out.Artifacts[k] = append(out.Artifacts[k], one)
		}
	}
	for _, pins := range s.shelf.pins {
		for _, pin := range pins {
			out.Pins = append(out.Pins, clonePin(pin))
		}
	}
	return out
}
