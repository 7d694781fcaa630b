package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sandkeeper/sandkeeper/client"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// restoreAll brings the workspace of every finished thread back into a new task, and
// compares it with what the agent left in the old one. It answers how many checkpoints
// there are, and whether every tree is the same.
func (d *demo) restoreAll(ctx context.Context) (checkpoints int, identical bool, err error) {
	var finished []scenario
	newest := map[core.ThreadID]bool{}
	for i := len(scenarios) - 1; i >= 0; i-- {
		s := scenarios[i]
		r, err := d.run(ctx, s.run)
		if err != nil {
			return 0, false, err
		}
		if s.fate == fateEnds && r.Checkpoint.State != core.CheckpointDone {
			d.say(fmt.Sprintf("run %s: its checkpoint is %q: %s", s.run, r.Checkpoint.State, r.Checkpoint.Why))
			return checkpoints, false, nil
		}
		if r.Checkpoint.State == core.CheckpointDone {
			checkpoints++
		}
		if s.fate == fateEnds && !newest[r.Thread] {
			newest[r.Thread] = true
			finished = append(finished, s)
		}
	}
	d.say(fmt.Sprintf("restoring the workspaces of %d threads into new tasks", len(finished)))
	same, errs := make([]bool, len(finished)), make([]error, len(finished))
	var wg sync.WaitGroup
	for i, s := range finished {
		wg.Go(func() {
			if same[i], errs[i] = d.restore(ctx, s); errs[i] == nil {
				d.say(fmt.Sprintf("run %s: its workspace is in a new task", s.run))
			}
		})
	}
	wg.Wait()
	identical = true
	for _, ok := range same {
		identical = identical && ok
	}
	return checkpoints, identical, errors.Join(errs...)
}

// restore begins another turn of a finished run's thread, which finds the thread's head
// in a new sandbox, and compares.
func (d *demo) restore(ctx context.Context, s scenario) (bool, error) {
	old, err := d.run(ctx, s.run)
	if err != nil {
		return false, err
	}
	q := client.StartRequest{
		RunKey: core.RunKey{Tenant: old.Tenant, Run: "again-" + old.RunKey.Run}, Thread: old.Thread, Host: client.NewHost(),
		Definition: d.definition(s), Agent: client.AgentPlan{Shell: "sleep 600"},
	}
	a, report, err := client.Start(ctx, d.hosts, q)
	if err != nil {
		return false, fmt.Errorf("restore thread %s: %w", old.Thread, err)
	}
	a.Close()
	if report.RestoredFrom != core.CheckpointOf(s.run) {
		return false, fmt.Errorf("restore thread %s: restored from %q", old.Thread, report.RestoredFrom)
	}
	r, err := d.run(ctx, q.Run)
	if err != nil {
		return false, err
	}
	return d.sameTree(s, old, r)
}

// sameTree compares the workspace of the new task with that of the old one, whose files
// local Fargate keeps until it closes.
func (d *demo) sameTree(s scenario, old, fresh core.Run) (bool, error) {
	var trees [2]picture
	for i, r := range []core.Run{old, fresh} {
		task, err := d.fargate.Task(r.TaskARN)
		if err != nil {
			return false, err
		}
		if trees[i], err = pictureOf(task.Containers[0].WorkDir); err != nil {
			return false, fmt.Errorf("demo: %w", err)
		}
	}
	if _, ok := trees[0][secretFile]; !ok && !s.later {
		return false, fmt.Errorf("demo: the agent of %s left no workspace", s.run)
	}
	diff := differences(trees[0], trees[1])
	for _, line := range diff {
		d.say(fmt.Sprintf("run %s: restored %s", s.run, line))
	}
	return len(diff) == 0, nil
}
