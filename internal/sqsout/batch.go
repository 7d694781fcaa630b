package sqsout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// sender is where messages go.
type sender struct {
	client client
	url    string
}

// sendAll sends one message a value, its JSON as the body. It sends what it can, and
// returns an error naming, by about, every value that may not have been taken.
func sendAll[T any](ctx context.Context, to sender, values []T, about func(T) string) error {
	var errs []error
	for chunk := range slices.Chunk(values, batch) {
		errs = append(errs, send(ctx, to, chunk, about))
	}
	return errors.Join(errs...)
}

func send[T any](ctx context.Context, to sender, values []T, about func(T) string) error {
	entries := make([]types.SendMessageBatchRequestEntry, len(values))
	for i, value := range values {
		body, err := json.Marshal(value)
		if err != nil {
			return fmt.Errorf("send %s: %w", about(value), err)
		}
		entries[i] = types.SendMessageBatchRequestEntry{Id: new(strconv.Itoa(i)), MessageBody: new(string(body))}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := to.client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: &to.url, Entries: entries})
	if err != nil {
		return fmt.Errorf("send %s and %d more: %w", about(values[0]), len(values)-1, err)
	}
	return notTaken(values, out, about)
}

// notTaken names every value that the answer does not say to be taken.
func notTaken[T any](values []T, out *sqs.SendMessageBatchOutput, about func(T) string) error {
	missing := map[string]string{}
	for i := range values {
		missing[strconv.Itoa(i)] = "no answer"
	}
	for _, e := range out.Successful {
		delete(missing, text(e.Id))
	}
	for _, e := range out.Failed {
		missing[text(e.Id)] = text(e.Code) + ": " + text(e.Message)
	}
	var errs []error
	for i, value := range values {
		if why, ok := missing[strconv.Itoa(i)]; ok {
			errs = append(errs, fmt.Errorf("send %s: not taken: %s", about(value), why))
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
