package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/smithy-go"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Invoker is what is needed of the SDK's client of Lambda.
type Invoker interface {
	Invoke(context.Context, *lambda.InvokeInput, ...func(*lambda.Options)) (*lambda.InvokeOutput, error)
}

// Function is the session function. A call whose answer does not come is made again, at
// most Attempts times.
type Function struct {
	Lambda Invoker
	// Name of the function, or its ARN. The alias at its end decides for which tenants the
	// caller may act: "sandkeeper-session:acme".
	Name     string
	Attempts int // zero: 5
}

var (
	_ Invoker = (*lambda.Client)(nil)
	_ API     = (*Function)(nil)
)

// NewFunction reaches the session function by an AWS configuration.
func NewFunction(cfg aws.Config, name string) *Function {
	return &Function{Lambda: lambda.NewFromConfig(cfg), Name: name}
}

// Start implements [API].
func (f *Function) Start(ctx context.Context, q StartRequest) (StartReport, error) {
	return call[StartReport](ctx, f, "start", q)
}

// Adopt implements [API].
func (f *Function) Adopt(ctx context.Context, q AdoptRequest) (StartReport, error) {
	return call[StartReport](ctx, f, "adopt", q)
}

// Attach implements [API].
func (f *Function) Attach(ctx context.Context, q AttachRequest) (RenewReport, error) {
	return call[RenewReport](ctx, f, "attach", q)
}

// Renew implements [API].
func (f *Function) Renew(ctx context.Context, q HostRequest) (RenewReport, error) {
	return call[RenewReport](ctx, f, "renew", q)
}

// Tail implements [API].
func (f *Function) Tail(ctx context.Context, q TailRequest) (TailReport, error) {
	return call[TailReport](ctx, f, "tail", q)
}

// Segments implements [API].
func (f *Function) Segments(ctx context.Context, q SegmentsRequest) (SegmentsReport, error) {
	return call[SegmentsReport](ctx, f, "segments", q)
}

// Detach implements [API].
func (f *Function) Detach(ctx context.Context, q HostRequest) (RenewReport, error) {
	return call[RenewReport](ctx, f, "detach", q)
}

// Interrupt implements [API].
func (f *Function) Interrupt(ctx context.Context, q HostRequest) (RenewReport, error) {
	return call[RenewReport](ctx, f, "interrupt", q)
}

// Cancel implements [API].
func (f *Function) Cancel(ctx context.Context, q CancelRequest) (EndReport, error) {
	return call[EndReport](ctx, f, "cancel", q)
}

// Finish implements [API].
func (f *Function) Finish(ctx context.Context, q FinishRequest) (FinishReport, error) {
	return call[FinishReport](ctx, f, "finish", q)
}

// Fail implements [API].
func (f *Function) Fail(ctx context.Context, q FailRequest) (EndReport, error) {
	return call[EndReport](ctx, f, "fail", q)
}

// Get implements [API].
func (f *Function) Get(ctx context.Context, q GetRequest) (RunView, error) {
	return call[RunView](ctx, f, "get", q)
}

// List implements [API].
func (f *Function) List(ctx context.Context, q ListRunsRequest) (ListRunsReport, error) {
	return call[ListRunsReport](ctx, f, "list", q)
}

const (
	defaultAttempts = 5
	firstBackoff    = 500 * time.Millisecond
	mostBackoff     = 8 * time.Second
	// callSlack is for the way to the function and back.
	callSlack = 15 * time.Second
)

// call makes a call until its answer has come.
func call[A any](ctx context.Context, f *Function, operation string, request any) (A, error) {
	var none A
	payload, err := json.Marshal(map[string]any{operation: request})
	if err != nil {
		return none, fmt.Errorf("%s: %w", operation, err)
	}
	most := f.Attempts
	if most <= 0 {
		most = defaultAttempts
	}
	for attempt := 1; ; attempt++ {
		var answer A
		err := f.once(ctx, operation, payload, &answer)
		switch {
		case err == nil:
			return answer, nil
		case CodeOf(err) != "" || !passing(err):
			return none, err
		case ctx.Err() != nil || attempt == most:
			return none, &NoAnswerError{operation, attempt, err}
		}
		backoff := min(firstBackoff<<(attempt-1), mostBackoff)
		if err := pause(ctx, backoff/2+rand.N(backoff/2)); err != nil {
			return none, &NoAnswerError{operation, attempt, err}
		}
	}
}

// once makes one call, without retries of the SDK's own: they would not know for how long.
func (f *Function) once(ctx context.Context, operation string, payload []byte, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, core.SessionTimeout+callSlack)
	defer cancel()
	out, err := f.Lambda.Invoke(ctx, &lambda.InvokeInput{FunctionName: &f.Name, Payload: payload}, func(o *lambda.Options) {
		o.RetryMaxAttempts = 1
	})
	if err != nil {
		return fmt.Errorf("%s: invoke %s: %w", operation, f.Name, err)
	}
	if out.FunctionError != nil {
		return fmt.Errorf("%s: function %s failed: %.300s", operation, f.Name, out.Payload)
	}
	return read(operation, out.Payload, answer)
}

// passing reports whether a failed call may do better the next time: not one that Lambda
// itself has refused, for a caller's fault.
func passing(err error) bool {
	api, ok := errors.AsType[smithy.APIError](err)
	return !ok || api.ErrorFault() != smithy.FaultClient || throttled[api.ErrorCode()]
}

// throttled are what Lambda calls a client's fault and is none.
var throttled = map[string]bool{
	"TooManyRequestsException": true, "ResourceConflictException": true, "ResourceNotReadyException": true,
	"SnapStartNotReadyException": true, "ThrottlingException": true, "RequestTimeout": true,
}

var errNoCode = errors.New("want a code")

// read takes the operation's answer, or the refusal, out of what the function answered.
func read(operation string, payload []byte, answer any) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(payload, &members); err != nil {
		return fmt.Errorf("%s: read answer: %w", operation, err)
	}
	if refused := members["error"]; refused != nil {
		e := &RefusedError{Operation: operation}
		if err := json.Unmarshal(refused, e); err != nil || e.Code == "" {
			return fmt.Errorf("%s: read refusal: %w", operation, errors.Join(err, errNoCode))
		}
		return e
	}
	if members[operation] == nil {
		return fmt.Errorf("%s: the answer lacks %s", operation, operation)
	}
	if err := json.Unmarshal(members[operation], answer); err != nil {
		return fmt.Errorf("%s: read answer: %w", operation, err)
	}
	return nil
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
