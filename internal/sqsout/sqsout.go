// Package sqsout sends to SQS, and reads again, reclaim messages and the shards of a
// sweep that was too large for one. Its rule: a batch that was answered with success
// may still have failed entries, and a message that is not exactly what was written
// is refused.
package sqsout

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// client is what this package uses of SQS.
type client interface {
	SendMessageBatch(context.Context, *sqs.SendMessageBatchInput, ...func(*sqs.Options)) (*sqs.SendMessageBatchOutput, error)
}

var (
	_ client            = (*sqs.Client)(nil)
	_ core.ReclaimQueue = (*Queue)(nil)
)

// Queue sends reclaim messages to one queue.
type Queue struct{ to sender }

// New returns the queue with that URL.
func New(client client, url string) *Queue { return &Queue{sender{client, url}} }

const (
	// batch is the most that one request may carry; ten messages are far below its
	// limit in bytes.
	batch = 10
	// callTimeout bounds one request with the SDK's own retries.
	callTimeout = 10 * time.Second
)

// Send sends one message a job. It sends what it can, and returns an error naming
// every job that may not have been taken.
func (q *Queue) Send(ctx context.Context, jobs []core.ReclaimJob) error {
	return sendAll(ctx, q.to, jobs, func(job core.ReclaimJob) string {
		return fmt.Sprintf("reclaim of instance %s", job.Instance)
	})
}

// Decode reads a message's body. It refuses members that it does not know and jobs
// that are not valid, and says what it expected.
func Decode(body string) (core.ReclaimJob, error) {
	var job core.ReclaimJob
	if err := core.DecodeStrict([]byte(body), &job); err != nil {
		return core.ReclaimJob{}, fmt.Errorf("decode reclaim job: %w", err)
	}
	if err := job.Validate(); err != nil {
		return core.ReclaimJob{}, fmt.Errorf("decode reclaim job: %w", err)
	}
	return job, nil
}
