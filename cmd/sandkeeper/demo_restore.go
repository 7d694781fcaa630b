package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/lambdacheckpoint"
	"github.com/sandkeeper/sandkeeper/internal/names"
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
		wg.Go(func() { same[i], errs[i] = d.restore(ctx, s) })
	}
	wg.Wait()
	identical = true
	for _, ok := range same {
		identical = identical && ok
	}
	return checkpoints, identical, errors.Join(errs...)
}

// restore begins a sandbox for the thread of a finished run, has the thread's head
// restored into it, and compares.
func (d *demo) restore(ctx context.Context, s scenario) (bool, error) {
	old, err := d.run(ctx, s.run)
	if err != nil {
		return false, err
	}
	q := core.RunRequest{
		RunKey: core.RunKey{Tenant: old.Tenant, Run: "again-" + old.Run}, Thread: old.Thread,
		HostNonce: "host-" + strconv.Itoa(os.Getpid()), Definition: old.Definition, Checkpoint: core.CheckpointNone,
	}
	r, err := d.host.Start(ctx, q)
	if err != nil {
		return false, err
	}
	m := core.KeyMaterial{Provider: "fargate", Definition: r.Definition, Tenant: r.Tenant, Thread: r.Thread}
	if r, err = d.host.Launch(ctx, r, m, d.spec()); err != nil {
		return false, err
	}
	if err := d.restored(ctx, r); err != nil {
		return false, fmt.Errorf("restore thread %s: %w", r.Thread, err)
	}
	return d.sameTree(s, old, r)
}

// restored has the head of a run's thread restored into its sandbox.
func (d *demo) restored(ctx context.Context, r core.Run) error {
	caller := &lambdacheckpoint.Caller{Lambda: d.lambda, Function: d.out[names.OutCheckpoint], Timeout: time.Minute}
	q := core.RestoreRequest{
		ThreadKey: core.ThreadKey{Tenant: r.Tenant, Thread: r.Thread}, ID: core.CheckpointID("restore-" + r.Run), Run: r.Run, Key: r.SandboxKey, Instance: r.Instance,
	}
	return d.until(ctx, func() (bool, error) {
		var report core.StepReport
		if err := caller.Call(ctx, "restore", q, &report); err != nil {
			return false, err
		}
		if report.State == core.StepFailed {
			return false, errors.New(report.Why)
		}
		return report.State == core.StepDone, nil
	})
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
	if _, ok := trees[0][secretFile]; !ok {
		return false, fmt.Errorf("demo: the agent of %s left no workspace", s.run)
	}
	diff := differences(trees[0], trees[1])
	for _, line := range diff {
		d.say(fmt.Sprintf("run %s: restored %s", s.run, line))
	}
	return len(diff) == 0, nil
}
