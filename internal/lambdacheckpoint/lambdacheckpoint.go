// Package lambdacheckpoint reaches the checkpoint function: its operations by a
// synchronous invocation, and its URL for agents. Its rule: an answer counts only if the
// function itself gave it, and a step that was asked for is asked for again, never
// assumed.
package lambdacheckpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/lambda/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

type client interface {
	Invoke(context.Context, *lambda.InvokeInput, ...func(*lambda.Options)) (*lambda.InvokeOutput, error)
}

// Caller invokes the function.
type Caller struct {
	Lambda   client
	Function string        // name or ARN
	Timeout  time.Duration // of one call, the way there and back included
}

var _ client = (*lambda.Client)(nil)

// RefusedError is the function's refusal of a call. Nothing has changed.
type RefusedError struct {
	Operation string
	Code      string `json:"code"` // short, lower-case with hyphens
	Message   string `json:"message"`
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("checkpoint function: %s: %s: %s", e.Operation, e.Code, e.Message)
}

// Call makes one call of an operation: request and answer are in JSON as the function
// documents them. A refusal is a *[RefusedError]; any other error leaves open whether
// the call was carried out, and it may be made again.
func (c *Caller) Call(ctx context.Context, operation string, request, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	payload, err := json.Marshal(map[string]any{operation: request})
	if err != nil {
		return fmt.Errorf("call %s: %w", c.Function, err)
	}
	out, err := c.Lambda.Invoke(ctx, &lambda.InvokeInput{FunctionName: &c.Function, Payload: payload})
	if err != nil {
		return fmt.Errorf("call %s: %w", c.Function, err)
	}
	if out.FunctionError != nil {
		return fmt.Errorf("call %s: function error %s: %.300s", c.Function, *out.FunctionError, out.Payload)
	}
	return c.read(operation, out.Payload, answer)
}

// beginTimeout bounds the hand-over of a call that nobody waits for.
const beginTimeout = 10 * time.Second

// Begin makes one call of an operation whose answer nobody waits for.
func (c *Caller) Begin(ctx context.Context, operation string, request any) error {
	ctx, cancel := context.WithTimeout(ctx, beginTimeout)
	defer cancel()
	payload, err := json.Marshal(map[string]any{operation: request})
	if err != nil {
		return fmt.Errorf("begin %s: %w", operation, err)
	}
	in := &lambda.InvokeInput{FunctionName: &c.Function, Payload: payload, InvocationType: types.InvocationTypeEvent}
	if _, err := c.Lambda.Invoke(ctx, in); err != nil {
		return fmt.Errorf("begin %s at %s: %w", operation, c.Function, err)
	}
	return nil
}

func (c *Caller) read(operation string, payload []byte, answer any) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(payload, &members); err != nil {
		return fmt.Errorf("call %s: read answer: %w", c.Function, err)
	}
	if refused := members["error"]; refused != nil {
		e := &RefusedError{Operation: operation}
		if err := json.Unmarshal(refused, e); err != nil || e.Code == "" {
			return fmt.Errorf("call %s: read refusal %.300s: %w", c.Function, refused, errors.Join(err, errNoCode))
		}
		return e
	}
	if members[operation] == nil {
		return fmt.Errorf("call %s: the answer lacks %s", c.Function, operation)
	}
	if err := json.Unmarshal(members[operation], answer); err != nil {
		return fmt.Errorf("call %s: read answer: %w", c.Function, err)
	}
	return nil
}

var errNoCode = errors.New("want a code")

// Save asks for a checkpoint, or how far it is.
func (c *Caller) Save(ctx context.Context, q core.SaveRequest) (core.StepReport, error) {
	var report core.StepReport
	err := c.Call(ctx, "save", q, &report)
	return report, err
}

var _ core.Checkpointer = (*Caller)(nil)

// captureSeconds is when a capture that reclaim waits for ends by itself, and says so: a
// little before it is cut off.
var captureSeconds = int64((core.DefaultLimits.CaptureMost - time.Minute).Seconds())

// passing are the refusals that say nothing of the workspace.
var passing = []string{"writer-conflict", "writer-lost", "step-busy"}

// Capture has the workspace that a run owes saved, or tells how far that is. While
// somebody else writes the thread, or another step of the owner is under way, nothing is
// known; every other refusal is a failure.
func (c *Caller) Capture(ctx context.Context, q core.CaptureRequest) (core.Captured, error) {
	save := core.SaveRequest{
		ThreadKey: core.ThreadKey{Tenant: q.Run.Tenant, Thread: q.Run.Thread}, ID: core.CheckpointOf(q.Run.Run), Run: q.Run.Run,
		Owner: q.Owner, Key: q.Sandbox.Key, Instance: q.Sandbox.Instance, Job: &q.Job, Again: q.Again,
	}
	if q.Run.Capture != nil { // what to leave out, and which secrets to redact
		save.JobOptions = *q.Run.Capture
	}
	if own := save.DeadlineSeconds; own == 0 || own > captureSeconds {
		save.DeadlineSeconds = captureSeconds
	}
	report, err := c.Save(ctx, save)
	if e, ok := errors.AsType[*RefusedError](err); ok && !slices.Contains(passing, e.Code) {
		return core.Captured{State: core.CaptureFailed, Why: e.Code + ": " + e.Message}, nil
	}
	if err != nil {
		return core.Captured{}, fmt.Errorf("capture for run %s: %w", q.Run.RunKey, err)
	}
	switch report.State {
	case core.StepDone:
		return core.Captured{State: core.CaptureDone, ID: report.Checkpoint}, nil
	case core.StepFailed:
		return core.Captured{State: core.CaptureFailed, Why: report.Why}, nil
	case core.StepWorking:
		return core.Captured{State: core.Capturing, Why: report.Why}, nil
	}
	return core.Captured{}, fmt.Errorf("capture for run %s: unknown state %q", q.Run.RunKey, report.State)
}
