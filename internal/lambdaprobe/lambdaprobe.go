// Package lambdaprobe carries the sweep's questions to the probe function by a
// synchronous Lambda invocation. Its rule: an answer counts only if the function
// itself gave it; a function error, a time-out or another text is no answer.
package lambdaprobe

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

type client interface {
	Invoke(context.Context, *lambda.InvokeInput, ...func(*lambda.Options)) (*lambda.InvokeOutput, error)
}

// Caller invokes one function.
type Caller struct {
	Lambda   client
	Function string        // name or ARN
	Timeout  time.Duration // of the function; a call waits a little longer
}

var (
	_ client           = (*lambda.Client)(nil)
	_ core.ProbeCaller = (*Caller)(nil)
)

// answerSlack is for the way to the function and back, a cold start included.
const answerSlack = 5 * time.Second

// Call invokes the function once. A lost answer is not asked for again: an exec may
// still be under way in the container, which takes one at a time.
func (c *Caller) Call(ctx context.Context, call core.ProbeCall) (core.ProbeAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout+answerSlack)
	defer cancel()
	payload, err := json.Marshal(call)
	if err != nil {
		return core.ProbeAnswer{}, fmt.Errorf("call %s: %w", c.Function, err)
	}
	out, err := c.Lambda.Invoke(ctx, &lambda.InvokeInput{FunctionName: &c.Function, Payload: payload}, once)
	if err != nil {
		return core.ProbeAnswer{}, fmt.Errorf("call %s: %w", c.Function, err)
	}
	if out.FunctionError != nil {
		return core.ProbeAnswer{}, fmt.Errorf("call %s: function error %s: %.300s", c.Function, *out.FunctionError, out.Payload)
	}
	var answer core.ProbeAnswer
	if err := json.Unmarshal(out.Payload, &answer); err != nil {
		return core.ProbeAnswer{}, fmt.Errorf("call %s: read answer: %w", c.Function, err)
	}
	return answer, nil
}

func once(o *lambda.Options) { o.RetryMaxAttempts = 1 }
