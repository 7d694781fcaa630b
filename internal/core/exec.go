package core

import (
	"context"
	"fmt"
)

// ExecTarget is the container in which a script runs.
type ExecTarget struct {
	Cluster   string `json:"cluster"`
	TaskARN   string `json:"taskArn"`
	Container string `json:"container"`
	// Journals is the directory of the journals that a script is about; empty: where the
	// container says, else [DefaultJournal]'s.
	Journals string `json:"journals,omitempty"`
}

// among has a script look for journals where the target has them.
func (t ExecTarget) among(script string) string {
	if t.Journals == "" {
		return script
	}
	return JournalDirVariable + "=" + quoteShell(t.Journals) + "\nexport " + JournalDirVariable + "\n" + script
}

// ExecResult is what a script left behind: its exact stdout bytes and its exit
// status. It exists only when the complete, marked trailer arrived.
type ExecResult struct {
	Stdout []byte
	Exit   int
}

// Executor runs POSIX shell scripts in a task's container.
//
// Exec returns a result only if the whole answer arrived, marked, with its exit
// status; everything else is an [ExecError]. A script may have run, wholly or in
// part, although Exec fails. input, if not nil, is the script's stdin; otherwise
// stdin is empty. Input never appears in a command line, a log or an error.
type Executor interface {
	Exec(ctx context.Context, target ExecTarget, script string, input []byte) (ExecResult, error)
}

// ExecSession is one session with a container that is held open: many scripts, one after
// another, at the price of one call of ECS.
type ExecSession interface {
	// Exec runs a script as [Executor.Exec] does, without input. One that is not answered
	// whole ends the session: every later call fails.
	Exec(ctx context.Context, script string) (ExecResult, error)
	// Close ends the session, and a script that runs in it.
	Close()
}

// ExecDialer opens sessions that are held.
type ExecDialer interface {
	Dial(ctx context.Context, target ExecTarget) (ExecSession, error)
}

// Healing says whether a failed question may be answered if asked again.
type Healing string

// The kinds of exec failure. None of them says anything about the agent: only
// ECS says gone, only a trailer says finished (ecs-exec.md section 3).
const (
	// Retry is a fault that passes: throttling, a cut socket, a young task.
	Retry Healing = "retry"
	// Configuration is a fault that will not heal by itself; somebody must act.
	Configuration Healing = "configuration"
)

// ExecError tells why an exec gave no complete answer.
type ExecError struct {
	Target  ExecTarget
	Healing Healing
	Reason  string // short, fixed, lower-case with hyphens: "target-not-connected"
	Cause   error  // may be nil
}

func (e *ExecError) Error() string {
	text := fmt.Sprintf("exec in %s/%s: %s (%s)", e.Target.TaskARN, e.Target.Container, e.Reason, e.Healing)
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

func (e *ExecError) Unwrap() error { return e.Cause }
