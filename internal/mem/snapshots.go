package mem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// fleetSnapshot is a copy of a task's disk: the claims of the runs whose agents had begun.
type fleetSnapshot struct {
	key      core.SandboxKey
	instance core.InstanceID
	name     string
	claimed  map[core.RunID]bool
}

var _ core.Snapshotter = View{}

// Snapshot copies a task's disk.
func (v View) Snapshot(ctx context.Context, box core.Sandbox, name string) (core.SnapshotID, error) {
	id := core.SnapshotID(fmt.Sprintf("snap-%s-%s", box.Instance, name))
	err := v.call(ctx, "take snapshot", func() error {
		if _, ok := v.snapshots[id]; ok {
			return nil
		}
		t, ok := v.tasks[box.TaskARN]
		if !ok || t.life != core.TaskLives {
			return errors.New("take snapshot: its task does not run")
		}
		v.accuseSnapshot(t, name)
		v.snapshots[id] = fleetSnapshot{box.Key, box.Instance, name, t.claims()}
		return nil
	})
	if err != nil {
		return "", err
	}
	return id, nil
}

// accuseSnapshot: a copy after a run is one of what it left, when it has ended.
func (f *Fleet) accuseSnapshot(t *fleetTask, name string) {
	id, after := strings.CutPrefix(name, "after-run-")
	if !after {
		return
	}
	if r, known := f.runOf(core.RunID(id)); known && !r.Status.Terminal() {
		f.store.t.Errorf("fleet: the copy %s is taken before that run has ended", name)
	}
	for run, a := range t.agents {
		if _, known := f.runOf(run); known && a.alive && a.begun {
			f.store.t.Errorf("fleet: the copy %s is taken while the agent of run %s works (I7)", name, run)
		}
	}
}

// runOf is the record of a run, of whichever tenant.
func (f *Fleet) runOf(id core.RunID) (core.Run, bool) {
	for key, r := range f.store.State().Runs {
		if key.Run == id {
			return r, true
		}
	}
	return core.Run{}, false
}

// claims are the runs whose agents have begun on a task's disk.
func (t *fleetTask) claims() map[core.RunID]bool {
	out := map[core.RunID]bool{}
	for run := range t.claimed {
		out[run] = true
	}
	for run, a := range t.agents {
		if a.begun || a.blocked {
			out[run] = true
		}
	}
	return out
}

// Restore runs a task with a copy's disk, once for each token.
func (v View) Restore(ctx context.Context, spec core.TaskSpec, id core.SnapshotID) (string, error) {
	var arn string
	err := v.call(ctx, "restore task", func() error {
		copied, ok := v.snapshots[id]
		if !ok {
			return fmt.Errorf("restore task from %s: %w", id, core.ErrSnapshotGone)
		}
		if row, ok := v.store.State().Rows[core.InstanceID(spec.Token)]; ok && row.Key != copied.key {
			v.store.t.Errorf("fleet: a sandbox of key %s is made from a copy of key %s (I16)", row.Key, copied.key)
		}
		arn = v.run(spec.Token, spec.StartedBy)
		v.tasks[arn].claimed = copied.claimed
		return nil
	})
	if err != nil {
		return "", err
	}
	return arn, nil
}

// DropSnapshots forgets a key's copies, but keep.
func (v View) DropSnapshots(ctx context.Context, key core.SandboxKey, keep core.SnapshotID) error {
	return v.call(ctx, "drop snapshots", func() error {
		for id, s := range v.snapshots {
			if s.key == key && id != keep {
				delete(v.snapshots, id)
			}
		}
		return nil
	})
}

// Snapshots lists the copies that are kept, in order.
func (f *Fleet) Snapshots() []core.SnapshotID {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []core.SnapshotID
	for id := range f.snapshots {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}
