package core

import (
	"context"
	"errors"
	"time"
)

// Provider is where sandboxes are made and ended. What a sandbox is stands in the records,
// and their order is not the provider's: the ledger names an instance before a provider is
// asked for it, the instance's id is the token of that question, and a sandbox is ended only
// after its row is condemned (DESIGN 4.2).
//
// Of exec it has what begins an agent; whatever else runs in a sandbox goes through an
// [Executor] of its own.
type Provider interface {
	TaskRunner   // makes a sandbox, once for a token
	TaskStopper  // ends one; one that has ended already is success
	AgentStarter // begins an agent in one, once for a run
	// Resume tells what has become of a sandbox, and changes nothing. An error says that
	// nothing is known.
	Resume(ctx context.Context, at ExecTarget) (Resumption, error)
}

// ResumeState is an answer of [Provider.Resume].
type ResumeState string

// Only a sandbox that is gone is replaced; nobody may act on one that is unreachable.
const (
	ResumeRunning     ResumeState = "running"     // it may serve, or will soon
	ResumeGone        ResumeState = "gone"        // it has ended, and stays so
	ResumeUnreachable ResumeState = "unreachable" // on its way out, not known, or not told
)

// Resumption is what has become of a sandbox.
type Resumption struct {
	State ResumeState
	Why   string // of one that is gone, for people
}

// TaskAPI is what of a task service makes a provider.
type TaskAPI interface {
	TaskRunner
	TaskDescriber
	TaskStopper
}

// TaskProvider is the provider whose sandboxes are tasks, which agents are begun in by
// exec.
type TaskProvider struct {
	TaskAPI
	AgentStarter
}

var _ Provider = TaskProvider{}

// Resume asks what has become of the task.
func (p TaskProvider) Resume(ctx context.Context, at ExecTarget) (Resumption, error) {
	tasks, err := p.Describe(ctx, at.Cluster, []string{at.TaskARN})
	switch {
	case err != nil:
		return Resumption{}, err
	case len(tasks) != 1:
		return Resumption{State: ResumeUnreachable}, nil
	case tasks[0].Life == TaskGone:
		return Resumption{ResumeGone, describe(tasks[0])}, nil
	case tasks[0].Life == TaskLives:
		return Resumption{State: ResumeRunning}, nil
	}
	return Resumption{State: ResumeUnreachable}, nil
}

// place is where a sandbox is.
func (s Sandbox) place() ExecTarget {
	return ExecTarget{Cluster: s.Cluster, TaskARN: s.TaskARN, Container: s.Container}
}

// SnapshotID names a native snapshot at its provider.
type SnapshotID string

// ErrSnapshotGone tells that a provider has no such snapshot any more.
var ErrSnapshotGone = errors.New("the provider has no such snapshot")

// Snapshotter is what a provider can do that keeps copies of sandboxes' disks. A copy has
// all that is on the disk, also what a checkpoint leaves out, and is its key's alone. It is
// no workspace: only a checkpoint is, and the thread's head is restored over it.
type Snapshotter interface {
	// Snapshot copies the disk of a sandbox that runs. The same sandbox under the same name
	// has the same copy, so that one whose answer was lost is found again.
	Snapshot(ctx context.Context, box Sandbox, name string) (SnapshotID, error)
	// Restore asks for one sandbox whose disk is as in the copy, as [TaskRunner.Start] asks
	// for a fresh one. A copy that is gone is [ErrSnapshotGone], and nothing is made.
	Restore(ctx context.Context, spec TaskSpec, id SnapshotID) (arn string, err error)
	// DropSnapshots lets go of the copies that were made of a key's sandboxes, but of the one
	// to be kept, if any. Where there is none it is success.
	DropSnapshots(ctx context.Context, key SandboxKey, keep SnapshotID) error
}

// The names of snapshots; that after a run ends with the run's id.
const (
	afterSetup = "after-setup"
	afterRun   = "after-run-"
)

// snapshotWithin bounds a snapshot, and the letting go of some. Without one the sandbox is
// as good: nothing waits for it longer.
const snapshotWithin = 20 * time.Second

// NoteSnapshot records the copy that a later run's sandbox may be made from.
type NoteSnapshot struct {
	Instance InstanceID // as read
	Run      RunID      // whose sandbox it is
	Snapshot SnapshotID
}

// Name is "note snapshot".
func (NoteSnapshot) Name() string { return "note snapshot" }

// Apply: instance and latest run as read, and nobody reclaims it. The time of its last use
// stays: a copy is none.
func (t NoteSnapshot) Apply(s Sandbox) (Sandbox, error) {
	if why := failing(
		check{s.Instance == t.Instance, "instance"},
		check{s.LatestRun == t.Run, "latest-run"},
		check{s.Reclaiming == "", "reclaiming"},
	); why != "" {
		return sandboxRefusal(t, s, why)
	}
	s.LatestSnapshot = t.Snapshot
	return s, nil
}

// Landed: it is the instance's.
func (t NoteSnapshot) Landed(s Sandbox) bool {
	return s.Instance == t.Instance && s.LatestSnapshot == t.Snapshot
}
