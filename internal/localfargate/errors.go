package localfargate

import (
	"errors"
	"fmt"
	"net/http"
)

// Errors of a [Server] and of [New].
var (
	// ErrNotLoopback means that the address asked for could be reached from elsewhere.
	ErrNotLoopback = errors.New("listen for local fargate: the address is not a loopback literal")
	// ErrUnknownTask means that a server method was given a task that does not exist.
	ErrUnknownTask = errors.New("find task: unknown id")
	// ErrNotRunning means that a task has no container that runs.
	ErrNotRunning = errors.New("no container runs")
	// ErrNoRestart means that a container has no restart policy.
	ErrNoRestart = errors.New("the container has no restart policy")
)

// apiError is an error of the ECS API.
type apiError struct {
	code        string
	message     string
	status      int
	resourceIDs []string
}

func (e *apiError) Error() string { return e.code + ": " + e.message }

func clientError(code, format string, args ...any) *apiError {
	return &apiError{code: code, message: fmt.Sprintf(format, args...), status: http.StatusBadRequest}
}

func invalid(format string, args ...any) *apiError {
	return clientError("InvalidParameterException", format, args...)
}

var (
	errThrottled       = clientError("ThrottlingException", "Rate exceeded")
	errClusterNotFound = clientError("ClusterNotFoundException", "Cluster not found.")
	errTaskNotFound    = invalid("The referenced task was not found.")
	errNotInteractive  = invalid("Interactive is the only mode supported currently.")
	errExecNotEnabled  = invalid("The execute command failed because execute command was not enabled when the task was run or the execute command agent isn’t running. Wait and try again or run a new task with execute command enabled and try again.")
	errNotConnected    = clientError("TargetNotConnectedException", "The execute command failed due to an internal error. Try again later.")
)
