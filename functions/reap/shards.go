package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/sqsout"
)

// sourceSQS is the source of each record of a batch of messages.
const sourceSQS = "aws:sqs"

// shardReserve is the time a sweep of one shard takes at most: new runs, and then the
// last of them to its end. A shard that does not fit any more goes back untouched.
var shardReserve = core.DefaultLimits.NewRunsFor + core.DefaultLimits.RunBudget + core.DefaultLimits.StopGrace

// shards sweeps the shard of each message by itself and answers with the messages
// that have to come again. One that cannot be read fails too, so that the dead-letter
// queue keeps it. It errs for records that are no messages.
func (h handler) shards(ctx context.Context, event json.RawMessage) (events.SQSEventResponse, error) {
	var batch events.SQSEvent
	if err := json.Unmarshal(event, &batch); err != nil {
		return events.SQSEventResponse{}, fmt.Errorf("reap: read records: %w", err)
	}
	if len(batch.Records) == 0 {
		return events.SQSEventResponse{}, errors.New("reap: want records of SQS, got none")
	}
	for _, message := range batch.Records {
		if message.EventSource != sourceSQS {
			return events.SQSEventResponse{}, fmt.Errorf("reap: want records of %s, got one of %q", sourceSQS, message.EventSource)
		}
	}
	// An empty list, not null: not every caller of functions reads null as none.
	out := events.SQSEventResponse{BatchItemFailures: []events.SQSBatchItemFailure{}}
	for _, message := range batch.Records {
		if err := h.shard(ctx, message); err != nil {
			h.log.ErrorContext(ctx, "reap", "messageId", message.MessageId, "err", err)
			out.BatchItemFailures = append(out.BatchItemFailures, events.SQSBatchItemFailure{ItemIdentifier: message.MessageId})
		}
	}
	return out, nil
}

func (h handler) shard(ctx context.Context, message events.SQSMessage) error {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < shardReserve {
		return fmt.Errorf("message %s: no time left in this invocation", message.MessageId)
	}
	request, err := sqsout.DecodeShards(message.Body)
	if err != nil {
		return fmt.Errorf("message %s: %w", message.MessageId, err)
	}
	report, err := h.sweep.Run(ctx, request)
	if err != nil {
		return fmt.Errorf("message %s: %w", message.MessageId, err)
	}
	h.tell(ctx, envelope{Source: sourceSQS}, report)
	return nil
}
