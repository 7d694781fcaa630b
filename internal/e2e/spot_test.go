package e2e_test

import (
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
)

// interrupt takes back the capacity of a run's task, as Fargate Spot does: by an event, and
// by SIGTERM to its main process, which stays while an agent works.
func (in *installation) interrupt(t *testing.T, arn string) {
	t.Helper()
	if err := in.fargate.InterruptTask(arn); err != nil {
		t.Fatal(err)
	}
}

// headOf is the newest checkpoint of the caller's thread; "" without one.
func (c caller) headOf(t *testing.T) core.CheckpointID {
	t.Helper()
	var head core.ListedCheckpoint
	if err := c.in.checkpoint(t, "head", core.ThreadKey{Tenant: "-", Thread: c.thread}, &head); err != nil {
		return ""
	}
	return head.ID
}

// exitOf is how a task's container ended, and why its task did.
func (in *installation) exitOf(t *testing.T, arn string) (exit int, code string) {
	t.Helper()
	task, err := in.fargate.Task(arn)
	if err != nil || task.Containers[0].ExitCode == nil {
		t.Fatalf("task %s: %+v, %v", arn, task, err)
	}
	return *task.Containers[0].ExitCode, task.StopCode
}

// TestATaskThatSpotTakesIsSavedInItsNotice (I1, I5): what a detached run's agent wrote and
// made is stored while it works on; the run ends with its task, and the thread goes on from
// what was stored.
func TestATaskThatSpotTakesIsSavedInItsNotice(t *testing.T) {
	in := installed(t)
	in.needAgent(t)
	c := in.caller()
	run := core.RunID("spot-" + rand.Text())
	key := core.RunKey{Tenant: "-", Run: run}
	begun := c.start(t, run+"-1", `echo kept >file; echo one; echo two; exec sleep 3600`, nil)
	key.Run += "-1"
	in.wrote(t, core.Run{RunKey: key, TaskARN: begun.Run.TaskARN}, "two\n")
	var left core.RenewReport
	c.must(t, "detach", map[string]any{"run": key.Run, "host": c.host}, &left)
	in.interrupt(t, begun.Run.TaskARN)
	await(t, "journal and workspace of "+key.String(), func() bool {
		return in.run(t, key).LogEnd >= int64(len("one\ntwo")) && c.headOf(t) == core.CheckpointOf(key.Run)
	})
	saved := in.run(t, key)
	if saved.Status != core.Running || saved.Ending != nil {
		t.Errorf("in its notice it is %s with %+v", saved.Status, saved.Ending)
	}
	task, err := in.fargate.Task(begun.Run.TaskARN)
	if err != nil || task.LastStatus != "RUNNING" || task.DesiredStatus != "STOPPED" {
		t.Errorf("in its notice the task is %+v, %v", task, err)
	}
	if err := in.fargate.KillTask(begun.Run.TaskARN); err != nil { // the notice's time is over
		t.Fatal(err)
	}
	// A drain of the notice may have the claim still: then a tick ends the run.
	in.sweepUntil(t, "settle "+key.String(), func(core.SweepReport) bool { return in.settled(t, key) })
	r := in.run(t, key)
	if r.Status != core.Failed || r.Error == nil || r.Error.Code != string(core.EndLost) || c.headOf(t) != core.CheckpointOf(key.Run) {
		t.Errorf("ended as %s with %+v, checkpoint %+v", r.Status, r.Error, r.Checkpoint)
	}
	if got := in.saved(t, key); string(got) != "one\ntwo" || r.Transcript == nil || r.Transcript.Complete {
		t.Errorf("saved %q as %+v", got, r.Transcript)
	}
	if exit, code := in.exitOf(t, r.TaskARN); exit != 137 || code != "TerminationNotice" {
		t.Errorf("the container ended with %d, the task by %s", exit, code)
	}
	next := c.start(t, run+"-2", "cat file", nil)
	if next.Ensured != core.EnsuredCreated || next.RestoredFrom != core.CheckpointOf(key.Run) || next.Lost != nil {
		t.Errorf("the next turn: %+v", next)
	}
	if got := c.output(t, run+"-2"); got != "kept\n" {
		t.Errorf("the next turn wrote %q", got)
	}
	c.finish(t, run+"-2")
}

// TestAnAgentThatEndsInANoticeIsFinished (I2, I5): its main process stays until somebody has
// come for its end, and nothing of it is lost.
func TestAnAgentThatEndsInANoticeIsFinished(t *testing.T) {
	in := installed(t)
	in.needAgent(t)
	c := in.caller()
	run := core.RunID("spot-ends-" + rand.Text())
	key := core.RunKey{Tenant: "-", Run: run}
	first, second := []byte("before\n"), []byte("after the notice\n")
	shell, say := in.inParts(t, first, second)
	spec := in.Spec()
	begun := c.start(t, run, "echo kept >file; "+shell, map[string]any{"definition": map[string]any{
		"name": "spot-ends", "version": 1, "checkpoint": "finished", "destroyOnComplete": true, "task": map[string]any{
			"taskDefinition": spec.TaskDefinition, "container": spec.Container, "subnets": spec.Subnets, "assignPublicIp": true,
		},
	}})
	say()
	var left core.RenewReport
	c.must(t, "detach", map[string]any{"run": run, "host": c.host}, &left)
	in.interrupt(t, begun.Run.TaskARN)
	await(t, "notice of "+key.String(), func() bool { return c.headOf(t) == core.CheckpointOf(run) })
	say()
	say()
	// On a busy machine the nudge's sweep may find no answer, and the main process stays for
	// 20 seconds: sweeps come as ticks do.
	in.sweepUntil(t, "end of "+key.String(), func(core.SweepReport) bool { return in.run(t, key).Status.Terminal() })
	// Its main process waits for somebody who comes for what is left, and nobody will.
	if err := in.fargate.KillTask(begun.Run.TaskARN); err != nil && !errors.Is(err, localfargate.ErrNotRunning) {
		t.Fatal(err)
	}
	r := in.settle(t, key)
	if r.Status != core.Failed || r.ExitCode == nil || *r.ExitCode != 3 || r.Checkpoint.State != core.CheckpointDone {
		t.Errorf("ended as %s with %v, checkpoint %+v", r.Status, r.ExitCode, r.Checkpoint)
	}
	in.checkTranscript(t, r, append(first, second...))
}

// TestAnAttachedRunsTaskThatSpotTakes is stored under its host's lease, and stays its
// host's: it hears the rest, and of the end.
func TestAnAttachedRunsTaskThatSpotTakes(t *testing.T) {
	in := installed(t)
	in.needAgent(t)
	c := in.caller()
	run := core.RunID("spot-attached-" + rand.Text())
	key := core.RunKey{Tenant: "-", Run: run}
	begun := c.start(t, run, `echo kept >file; echo one; exec sleep 3600`, nil)
	in.wrote(t, core.Run{RunKey: key, TaskARN: begun.Run.TaskARN}, "one\n")
	before := in.run(t, key)
	in.interrupt(t, begun.Run.TaskARN)
	await(t, "workspace of "+key.String(), func() bool { return c.headOf(t) == core.CheckpointOf(run) })
	if got := string(c.follow(t, run, 0, len("one\n"))); !strings.HasPrefix("one\n", got) || got == "" {
		t.Errorf("its host heard %q", got)
	}
	if after := in.run(t, key); after.Epoch != before.Epoch || after.Status != core.Running {
		t.Errorf("it went from epoch %d to %d, and is %s", before.Epoch, after.Epoch, after.Status)
	}
	if err := in.fargate.KillTask(begun.Run.TaskARN); err != nil {
		t.Fatal(err)
	}
	await(t, "news of the end", func() bool { return in.run(t, key).TaskStoppedAt != 0 })
	in.hasten(t, runItem(in, key)) // a host that is gone; one that lives renews, and is told
	in.reap(t, event(t, "reap-tick.json"))
	if r := in.settle(t, key); r.Error == nil || r.Error.Code != string(core.EndLost) || c.headOf(t) != core.CheckpointOf(key.Run) {
		t.Errorf("ended as %s with %+v, checkpoint %+v", r.Status, r.Error, r.Checkpoint)
	}
	if _, code := in.exitOf(t, begun.Run.TaskARN); code != "TerminationNotice" {
		t.Errorf("the task ended by %s", code)
	}
}
