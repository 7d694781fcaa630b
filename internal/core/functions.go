package core

import (
	"context"
	"errors"
	"fmt"
)

// ErrNotAllowed is returned for what this installation lets nobody use.
var ErrNotAllowed = errors.New("not allowed in this installation")

// Functions are the Lambda functions that definitions name: hooks and tools.
type Functions interface {
	// Invoke calls a function and waits for its answer. One that failed is a
	// [*FunctionError]; one that this installation does not let anybody call is
	// ErrNotAllowed. After any other error it may have run.
	Invoke(ctx context.Context, function string, payload []byte) ([]byte, error)
	// InvokeAsync has a function called, some time, at least once. ErrNotAllowed as above.
	InvokeAsync(ctx context.Context, function string, payload []byte) error
}

// FunctionError is what a function that was called has failed with.
type FunctionError struct {
	Function string
	Message  string // what it said of itself
}

func (e *FunctionError) Error() string {
	return fmt.Sprintf("function %s failed: %s", e.Function, e.Message)
}

// Secrets is where the values of secrets are kept.
type Secrets interface {
	// Resolve reads the value behind the ARN of a secret or parameter: ErrNotFound where
	// there is none, ErrNotAllowed where it may not be read. No error quotes a value.
	Resolve(ctx context.Context, ref string) (string, error)
}
