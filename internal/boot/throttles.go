package boot

import (
	"context"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/smithy-go/middleware"

	"github.com/sandkeeper/sandkeeper/internal/metrics"
)

// throttles counts the attempts that ECS turned away, those that a retry made good
// included: the account's bucket is the first thing of an installation that runs out.
type throttles struct{ n atomic.Int64 }

// take returns the count since the last take.
func (t *throttles) take() int64 { return t.n.Swap(0) }

// watch looks at each attempt of each client that is made of the configuration.
func (t *throttles) watch(stack *middleware.Stack) error {
	// In front of what reads answers, which each attempt passes. Not next to the retry:
	// a presigner's stack has none.
	return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("countThrottles", t.attempt), middleware.Before)
}

func (t *throttles) attempt(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
	out, metadata, err := next.HandleDeserialize(ctx, in)
	if err != nil && awsmiddleware.GetServiceID(ctx) == ecs.ServiceID && retry.IsErrorThrottles(retry.DefaultThrottles).IsErrorThrottle(err) == aws.TrueTernary {
		t.n.Add(1)
	}
	return out, metadata, err
}

// Metered is handle, and after each of its invocations a line of metrics if ECS turned
// calls away; with steady, a zero too. An invocation that fails is logged as well: what
// Lambda's runtime prints of it no query finds.
func Metered[Q, A any](b *Boot, steady bool, handle func(context.Context, Q) (A, error)) func(context.Context, Q) (A, error) {
	return func(ctx context.Context, q Q) (A, error) {
		defer func() {
			if n := b.throttles.take(); n > 0 || steady {
				b.Meter.Emit(metrics.Values{metrics.ECSThrottled: float64(n)})
			}
		}()
		answer, err := handle(ctx, q)
		if err != nil {
			b.Log.ErrorContext(ctx, string(b.env.function), "err", err)
		}
		return answer, err
	}
}
