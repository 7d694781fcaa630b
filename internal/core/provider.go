package core

import "context"

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
func (s Sandbox) place() ExecTarget { return ExecTarget{s.Cluster, s.TaskARN, s.Container} }
