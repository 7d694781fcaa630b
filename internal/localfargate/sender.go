package localfargate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge/types"
)

// Sender delivers task state changes to an EventBridge bus, for [Options.Events].
type Sender struct {
	Client *eventbridge.Client
	Bus    string       // "" is the account's default bus
	Log    *slog.Logger // gets what could not be delivered; nil is silence
}

// ErrRefused means that EventBridge answered and did not take an event.
var ErrRefused = errors.New("event refused")

const (
	sendAttempts = 3
	sendLimit    = 5 * time.Second // for each attempt
	sendPause    = 200 * time.Millisecond
)

// NewSender returns a sender for a local EventBridge. The endpoint must be loopback;
// the credentials are the local ones.
func NewSender(endpoint, region, bus string) (*Sender, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, fmt.Errorf("read events endpoint: %w", err)
	}
	if ip := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("read events endpoint: %q is not loopback", endpoint)
	}
	return &Sender{Bus: bus, Client: eventbridge.New(eventbridge.Options{
		BaseEndpoint: &endpoint, Region: cmpOr(region, "us-east-1"),
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	})}, nil
}

// Send delivers one event, with a few attempts; like ECS it promises nothing.
func (s *Sender) Send(ctx context.Context, e Event) {
	var err error
	for range sendAttempts {
		if err = s.try(ctx, e); err == nil || ctx.Err() != nil {
			return
		}
		sleep(ctx, sendPause)
	}
	if s.Log != nil {
		s.Log.Warn("deliver task event", "task", e.TaskARN, "status", e.LastStatus, "err", err)
	}
}

func (s *Sender) try(ctx context.Context, e Event) error {
	ctx, cancel := context.WithTimeout(ctx, sendLimit)
	defer cancel()
	entry := types.PutEventsRequestEntry{
		Source: new(Source), DetailType: new(DetailType), Detail: new(string(e.Detail)), Resources: []string{e.TaskARN}, Time: &e.Time,
	}
	if s.Bus != "" {
		entry.EventBusName = &s.Bus
	}
	out, err := s.Client.PutEvents(ctx, &eventbridge.PutEventsInput{Entries: []types.PutEventsRequestEntry{entry}})
	if err != nil {
		return fmt.Errorf("put event of task %s: %w", e.TaskARN, err)
	}
	if out.FailedEntryCount > 0 && len(out.Entries) > 0 && out.Entries[0].ErrorCode != nil {
		return fmt.Errorf("put event of task %s: %w: %s", e.TaskARN, ErrRefused, *out.Entries[0].ErrorCode)
	}
	return nil
}
