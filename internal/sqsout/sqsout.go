// Package sqsout sends reclaim messages to SQS, and reads them again. Its rule: a
// batch that was answered with success may still have failed entries, and a message
// that is not exactly what Send writes is refused.
package sqsout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

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

// Queue sends to one queue.
type Queue struct {
	client client
	url    string
}

// New returns the queue with that URL.
func New(client client, url string) *Queue { return &Queue{client, url} }

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
	var errs []error
	for chunk := range slices.Chunk(jobs, batch) {
		errs = append(errs, q.send(ctx, chunk))
	}
	return errors.Join(errs...)
}

func (q *Queue) send(ctx context.Context, jobs []core.ReclaimJob) error {
	entries := make([]types.SendMessageBatchRequestEntry, len(jobs))
	for i, job := range jobs {
		body, err := json.Marshal(job)
		if err != nil {
			return fmt.Errorf("send reclaim of instance %s: %w", job.Instance, err)
		}
		entries[i] = types.SendMessageBatchRequestEntry{Id: new(strconv.Itoa(i)), MessageBody: new(string(body))}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := q.client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: &q.url, Entries: entries})
	if err != nil {
		return fmt.Errorf("send reclaim of instance %s and %d more: %w", jobs[0].Instance, len(jobs)-1, err)
	}
	return notTaken(jobs, out)
}

// notTaken names every job that the answer does not say to be taken.
func notTaken(jobs []core.ReclaimJob, out *sqs.SendMessageBatchOutput) error {
	missing := map[string]string{}
	for i := range jobs {
		missing[strconv.Itoa(i)] = "no answer"
	}
	for _, e := range out.Successful {
		delete(missing, text(e.Id))
	}
	for _, e := range out.Failed {
		missing[text(e.Id)] = text(e.Code) + ": " + text(e.Message)
	}
	var errs []error
	for i, job := range jobs {
		if why, ok := missing[strconv.Itoa(i)]; ok {
			errs = append(errs, fmt.Errorf("send reclaim of instance %s: not taken: %s", job.Instance, why))
		}
	}
	return errors.Join(errs...)
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
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
