// Package ebout announces what became of runs and sandboxes on an EventBridge bus. Its
// rule: a request that was answered with success may still have failed entries, and
// what the answer does not say to be taken counts as not taken.
package ebout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// client is what this package uses of EventBridge.
type client interface {
	PutEvents(context.Context, *eventbridge.PutEventsInput, ...func(*eventbridge.Options)) (*eventbridge.PutEventsOutput, error)
}

var (
	_ client         = (*eventbridge.Client)(nil)
	_ core.Announcer = (*Bus)(nil)
)

// Bus announces on one event bus.
type Bus struct {
	client client
	name   string
}

// New returns the bus with that name or ARN.
func New(client client, name string) *Bus { return &Bus{client, name} }

const (
	// batch is the most that one request may carry; ten notices are far below its
	// limit in bytes.
	batch = 10
	// callTimeout bounds one request with the SDK's own retries.
	callTimeout = 10 * time.Second
)

// Announce puts one event a notice: its type as the detail type, its JSON as the
// detail, its moment as the time. It puts what it can, and returns an error naming
// every notice that may not have been taken.
func (b *Bus) Announce(ctx context.Context, notices []core.Notice) error {
	var errs []error
	for chunk := range slices.Chunk(notices, batch) {
		errs = append(errs, b.put(ctx, chunk))
	}
	return errors.Join(errs...)
}

func (b *Bus) put(ctx context.Context, notices []core.Notice) error {
	entries := make([]types.PutEventsRequestEntry, len(notices))
	for i, n := range notices {
		detail, err := json.Marshal(n)
		if err != nil {
			return fmt.Errorf("announce %s: %w", about(n), err)
		}
		entries[i] = types.PutEventsRequestEntry{
			EventBusName: &b.name, Source: new(names.SourceOwn), DetailType: new(string(n.Type)),
			Detail: new(string(detail)), Time: new(n.At.Time()),
		}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := b.client.PutEvents(ctx, &eventbridge.PutEventsInput{Entries: entries})
	if err != nil {
		return fmt.Errorf("announce %s and %d more: %w", about(notices[0]), len(notices)-1, err)
	}
	return notTaken(notices, out)
}

// notTaken names every notice that the answer does not say to be taken. Entries are
// answered in order; one that was taken has an id.
func notTaken(notices []core.Notice, out *eventbridge.PutEventsOutput) error {
	var errs []error
	for i, n := range notices {
		why := "no answer"
		if i < len(out.Entries) {
			e := out.Entries[i]
			if e.ErrorCode == nil && text(e.EventId) != "" {
				continue
			}
			why = text(e.ErrorCode) + ": " + text(e.ErrorMessage)
		}
		errs = append(errs, fmt.Errorf("announce %s: not taken: %s", about(n), why))
	}
	if len(errs) == 0 && out.FailedEntryCount > 0 {
		return fmt.Errorf("announce %s and %d more: %d of them not taken, none named", about(notices[0]), len(notices)-1, out.FailedEntryCount)
	}
	return errors.Join(errs...)
}

// about names a notice: its type and what it tells of.
func about(n core.Notice) string {
	if n.Run == "" {
		return string(n.Type) + " of task " + n.TaskARN
	}
	return string(n.Type) + " of run " + n.RunKey.String()
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
