package core

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// TaskLife is what ECS says of a task. The zero value is "no answer".
type TaskLife string

// The lives of a task. Only TaskGone closes a ledger row.
const (
	TaskUnknown TaskLife = ""
	TaskLives   TaskLife = "lives"   // pending, activating, running
	TaskLeaving TaskLife = "leaving" // desired STOPPED, not yet STOPPED
	TaskGone    TaskLife = "gone"    // STOPPED
	TaskMissing TaskLife = "missing" // ECS does not know it; see [Limits.MissingGrace]
)

// Task is one task as ECS describes it.
type Task struct {
	ARN       string
	Life      TaskLife
	StopCode  string // of a stopped task, ECS's own word
	Reason    string // ECS's text
	StartedBy string
	CreatedAt Millis
	// Exits are the exit codes of those containers that have exited, by name. A
	// sidecar's says nothing of the agent's.
	Exits map[string]int
	// ExecEnabled says that the task was started with ECS Exec, and Agents what
	// became of its agent in each container, by name.
	ExecEnabled bool
	Agents      map[string]ExecAgent
	Size        TaskSize // zero: not told. ECS tells of no public address
}

// lacks reports whether the task is known to have no container of that name.
func (t Task) lacks(container string) bool {
	_, has := t.Agents[container]
	return len(t.Agents) > 0 && !has
}

// noContainer says what a task has instead of a container.
func noContainer(t Task, container string) error {
	return fmt.Errorf("container %q: want one of the task's: %s", container, strings.Join(slices.Sorted(maps.Keys(t.Agents)), ", "))
}

// TaskDescriber asks ECS about tasks.
type TaskDescriber interface {
	// Describe answers for each ARN, at most 100 of one cluster; those that ECS does
	// not know come back missing, and one that it refuses to read unknown, with the
	// reason. An answer that is not whole is an error.
	Describe(ctx context.Context, cluster string, arns []string) ([]Task, error)
	// StartedBy lists the ARNs of the tasks, pending and running, that were started
	// under that name, all pages.
	StartedBy(ctx context.Context, cluster, startedBy string) ([]string, error)
}

// ErrTurnedAway tells that a request was not carried out for a reason that passes in seconds:
// a bucket is empty, a server busy.
var ErrTurnedAway = errors.New("turned away")

// TaskStopper stops tasks.
type TaskStopper interface {
	// Stop asks ECS to stop a task and returns it as ECS then describes it. A task
	// that is stopping or stopped already is success; one that ECS does not know comes
	// back missing. It asks once: before it is asked again the settings are read. An
	// [ErrTurnedAway] says that it may be asked soon.
	Stop(ctx context.Context, cluster, arn, reason string) (Task, error)
}

// TaskSpec is a task to start.
type TaskSpec struct {
	Cluster        string
	TaskDefinition string
	Container      string // the agent's, in the task definition
	Subnets        []string
	SecurityGroups []string
	AssignPublicIP bool
	TaskRole       string // ARN; empty: the task definition's
	Token          string // client token: the instance id
	StartedBy      string
	Tags           map[string]string
}

// TaskRunner starts tasks.
type TaskRunner interface {
	// Start asks for one task, with ECS Exec on, and returns its ARN. The same token
	// with the same specification gives the same task. One that is refused however often
	// it is asked for is a [*TaskRefusedError]; after any other error there may be a task.
	Start(ctx context.Context, spec TaskSpec) (arn string, err error)
}

// TaskRefusedError tells that no such task is started, however often it is asked for: what
// its specification names is not there, does not fit, or may not be used. An earlier call
// with the same token may have started one all the same.
type TaskRefusedError struct {
	TaskDefinition, Cluster string
	Code, Message           string // the task service's own
}

func (e *TaskRefusedError) Error() string {
	return fmt.Sprintf("run task of %s in cluster %s: want a task definition, cluster, subnets and security groups that exist and that this installation may use: %s: %s",
		e.TaskDefinition, e.Cluster, e.Code, e.Message)
}

// StartedBy is the name under which an installation starts the task of an
// instance; it finds the task again when RunTask's answer was lost.
func StartedBy(install string, id InstanceID) string {
	return fmt.Sprintf("%s/%s", install, id)
}
