package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/metrics"
)

// doer is the use case.
type doer interface {
	Do(ctx context.Context, job core.ReclaimJob) (core.ReclaimOutcome, error)
}

var _ doer = (*core.Reclaimer)(nil)

type handler struct {
	reclaim doer
	log     *slog.Logger
	meter   *metrics.Meter
}

// jobReserve is the time one message may take: a few ECS calls, which may wait, and some writes. One
// that does not fit any more goes back to the queue untouched.
const jobReserve = 40 * time.Second

// handle does each message by itself and answers with those that have to come
// again. A message that cannot be read fails too, so that the dead-letter queue
// keeps it. SQS sends no empty batch: an event without records is no batch.
func (h handler) handle(ctx context.Context, batch events.SQSEvent) (events.SQSEventResponse, error) {
	if len(batch.Records) == 0 {
		return events.SQSEventResponse{}, errors.New("reclaim: want records of SQS, got none")
	}
	// An empty list, not null: not every caller of functions reads null as none.
	out := events.SQSEventResponse{BatchItemFailures: []events.SQSBatchItemFailure{}}
	values := metrics.Reclaims()
	defer func() { h.meter.Emit(values) }()
	for _, message := range batch.Records {
		job, outcome, err := h.one(ctx, message)
		values.AddReclaim(outcome, err != nil)
		h.tell(ctx, message, job, outcome, err)
		if err != nil {
			out.BatchItemFailures = append(out.BatchItemFailures, events.SQSBatchItemFailure{ItemIdentifier: message.MessageId})
		}
	}
	return out, nil
}

// tell logs what became of a message, under the same members whether it failed or not: an
// operator finds a run's failures by the run.
func (h handler) tell(ctx context.Context, message events.SQSMessage, job core.ReclaimJob, outcome core.ReclaimOutcome, err error) {
	about := []any{
		"run", core.RunKey{Tenant: job.Tenant, Run: job.Run}.String(), "instance", string(job.Instance), "kind", job.Kind, "outcome", outcome,
	}
	if failed, ok := errors.AsType[*core.DestroyError](err); ok {
		about = append(about, "phase", failed.Phase)
	}
	if err != nil {
		h.log.ErrorContext(ctx, "reclaim", append(about, "messageId", message.MessageId, "err", err)...)
		return
	}
	level := slog.LevelInfo
	if outcome == core.ReclaimProviderMismatch { // its mark is gone: until the next audit nothing else tells of it
		level = slog.LevelWarn
	}
	h.log.Log(ctx, level, "reclaim", about...)
}

// one does one message. Without an outcome it was not begun.
func (h handler) one(ctx context.Context, message events.SQSMessage) (job core.ReclaimJob, outcome core.ReclaimOutcome, err error) {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < jobReserve {
		return job, "", fmt.Errorf("message %s: no time left in this invocation", message.MessageId)
	}
	if err := core.DecodeStrict([]byte(message.Body), &job); err != nil {
		return core.ReclaimJob{}, "", fmt.Errorf("message %s: %w", message.MessageId, err)
	}
	if outcome, err = h.reclaim.Do(ctx, job); err != nil {
		return job, outcome, fmt.Errorf("message %s of instance %s: %s: %w", message.MessageId, job.Instance, outcome, err)
	}
	return job, outcome, nil
}
