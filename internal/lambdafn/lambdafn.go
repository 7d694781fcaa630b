// Package lambdafn calls the Lambda functions that definitions name: tools and hooks. Its
// rule: a function that the installation does not list is never called, and one that is
// called is called once; only what Lambda itself turned away is tried again.
package lambdafn

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/lambda/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

type client interface {
	Invoke(context.Context, *lambda.InvokeInput, ...func(*lambda.Options)) (*lambda.InvokeOutput, error)
}

// Functions calls functions.
type Functions struct {
	Lambda  client
	Allowed []string // names or ARNs, as definitions spell them
}

var (
	_ client         = (*lambda.Client)(nil)
	_ core.Functions = (*Functions)(nil)
)

// none is a list without a function: a variable of ours is never empty.
const none = "-"

// Allowed reads the list of functions that an installation lets definitions name.
func Allowed(list string) []string {
	var out []string
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name != "" && name != none {
			out = append(out, name)
		}
	}
	return out
}

// callWithin bounds a call whose context has no end: Lambda's own longest.
const callWithin = 15 * time.Minute

// asyncWithin bounds handing a call over.
const asyncWithin = 10 * time.Second

// Invoke calls a function and waits for its answer, as core.Functions says.
func (f *Functions) Invoke(ctx context.Context, function string, payload []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	out, err := f.call(ctx, function, payload, types.InvocationTypeRequestResponse)
	if err != nil {
		return nil, err
	}
	if out.FunctionError != nil {
		return nil, &core.FunctionError{Function: function, Message: said(out.Payload)}
	}
	return out.Payload, nil
}

// InvokeAsync has Lambda call a function later.
func (f *Functions) InvokeAsync(ctx context.Context, function string, payload []byte) error {
	ctx, cancel := context.WithTimeout(ctx, asyncWithin)
	defer cancel()
	_, err := f.call(ctx, function, payload, types.InvocationTypeEvent)
	return err
}

func (f *Functions) call(ctx context.Context, function string, payload []byte, how types.InvocationType) (*lambda.InvokeOutput, error) {
	if !slices.Contains(f.Allowed, function) {
		return nil, fmt.Errorf("call function %s: %w", function, core.ErrNotAllowed)
	}
	out, err := f.Lambda.Invoke(ctx, &lambda.InvokeInput{FunctionName: &function, Payload: payload, InvocationType: how}, turnedAway)
	if err != nil {
		return nil, fmt.Errorf("call function %s: %w", function, err)
	}
	return out, nil
}

// maxSaid bounds what is told of a function's failure, bytes.
const maxSaid = 1000

// said is what a failed function says of itself.
func said(payload []byte) string {
	var failure struct{ ErrorMessage string }
	if json.Unmarshal(payload, &failure) == nil && failure.ErrorMessage != "" {
		return core.Clip(failure.ErrorMessage, maxSaid)
	}
	return core.Clip(string(payload), maxSaid)
}

// turnedAway has a call made again only where Lambda has refused to begin it.
func turnedAway(o *lambda.Options) {
	o.Retryer = retry.NewStandard(func(s *retry.StandardOptions) {
		s.MaxAttempts = 3
		s.Retryables = []retry.IsErrorRetryable{
			retry.RetryableHTTPStatusCode{Codes: map[int]struct{}{http.StatusTooManyRequests: {}}},
			retry.IsErrorRetryableFunc(func(error) aws.Ternary { return aws.FalseTernary }),
		}
	})
}
