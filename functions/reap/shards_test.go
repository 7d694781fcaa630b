package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

func message(id, body string) events.SQSMessage {
	return events.SQSMessage{MessageId: id, Body: body, EventSource: "aws:sqs"}
}

func batch(t *testing.T, messages ...events.SQSMessage) json.RawMessage {
	t.Helper()
	data, err := json.Marshal(events.SQSEvent{Records: messages})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestAMessageSweepsItsShard(t *testing.T) {
	var got recorder
	ctx, cancel := context.WithTimeout(t.Context(), core.DefaultLimits.SweepTimeout)
	defer cancel()
	answer, err := quiet(&got).handle(ctx, sample(t, "reap-shards.json"))
	if err != nil {
		t.Fatal(err)
	}
	if want := []core.SweepRequest{{Shards: []int{3}}}; !reflect.DeepEqual(got.requests, want) || got.calls() != 1 {
		t.Errorf("asked %+v, want %+v", got, want)
	}
	// Lambda takes anything but an empty list, or null, for the failure of a message.
	if text, err := json.Marshal(answer); err != nil || string(text) != `{"batchItemFailures":[]}` {
		t.Errorf("answered %s, %v", text, err)
	}
}

func TestOnlyTheMessageThatFailedComesAgain(t *testing.T) {
	got := recorder{fail: map[int]error{2: errors.New("list shard 2: throttled")}}
	var log bytes.Buffer
	h := handler{&got, slog.New(slog.NewTextHandler(&log, nil)), nil}
	answer, err := h.handle(t.Context(), batch(t,
		message("m1", `{"shards":[1]}`),
		message("m2", `{"shards":[2]}`),
		message("poison", `{"shards":`),
		message("not a shard", `{"shards":[8]}`),
		message("no shard", `{}`),
		message("a request", `{"mode":"plan"}`),
		message("m3", `{"shards":[3]}`),
	))
	if err != nil {
		t.Fatal(err)
	}
	var failed []string
	for _, f := range answer.(events.SQSEventResponse).BatchItemFailures {
		failed = append(failed, f.ItemIdentifier)
	}
	if want := []string{"m2", "poison", "not a shard", "no shard", "a request"}; !slices.Equal(failed, want) {
		t.Errorf("failed %q, want %q", failed, want)
	}
	want := []core.SweepRequest{{Shards: []int{1}}, {Shards: []int{2}}, {Shards: []int{3}}}
	if !reflect.DeepEqual(got.requests, want) {
		t.Errorf("asked %+v, want %+v", got.requests, want)
	}
	for _, id := range failed {
		if !strings.Contains(log.String(), id) {
			t.Errorf("the log does not say why %s failed:\n%s", id, log.String())
		}
	}
	if !strings.Contains(log.String(), "throttled") {
		t.Errorf("the log does not name the cause:\n%s", log.String())
	}
}

func TestAShardWithoutTimeGoesBackUntouched(t *testing.T) {
	var got recorder
	ctx, cancel := context.WithTimeout(t.Context(), shardReserve-time.Second)
	defer cancel()
	answer, err := quiet(&got).handle(ctx, sample(t, "reap-shards.json"))
	if err != nil || got.calls() != 0 || len(answer.(events.SQSEventResponse).BatchItemFailures) != 1 {
		t.Errorf("answered %+v, %v after %+v", answer, err, got)
	}
	if shardReserve >= core.DefaultLimits.SweepTimeout {
		t.Errorf("a sweep of %s never fits into %s", shardReserve, core.DefaultLimits.SweepTimeout)
	}
}

func TestRecordsThatAreNoMessagesAreOneClearError(t *testing.T) {
	cases := map[string]struct{ event, want string }{
		"no records":       {`{"Records":[]}`, "want records of SQS, got none"},
		"null":             {`{"Records":null}`, "want records of SQS, got none"},
		"no list":          {`{"Records":{"a":1}}`, "read records"},
		"another service":  {`{"Records":[{"eventSource":"aws:s3","s3":{}}]}`, `want records of aws:sqs, got one of "aws:s3"`},
		"one among others": {`{"Records":[{"eventSource":"aws:sqs","body":"{\"shards\":[1]}"},{"body":"x"}]}`, `got one of ""`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var got recorder
			_, err := quiet(&got).handle(t.Context(), json.RawMessage(c.event))
			if err == nil || !strings.Contains(err.Error(), c.want) || got.calls() != 0 {
				t.Errorf("error %v after %+v, want %q", err, got, c.want)
			}
		})
	}
}

// TestEveryReportIsLogged: also of a tick that handed everything on, and of news that
// led to no sweep.
func TestEveryReportIsLogged(t *testing.T) {
	cases := map[string]struct{ event, want string }{
		"a tick":         {string(sample(t, "reap-tick.json")), "source=sandkeeper.schedule detailType=Tick considered=1 probed=0 fannedOut=8"},
		"a stopped task": {string(sample(t, "reap-task-stopped.json")), `source=aws.ecs detailType="ECS Task State Change" considered=2`},
		"a nudge":        {string(sample(t, "reap-nudge.json")), "source=sandkeeper.nudge detailType=\"\" considered=3"},
		"a request":      {string(sample(t, "reap-request.json")), `source="" detailType="" considered=1`},
		"a shard":        {string(sample(t, "reap-shards.json")), `source=aws:sqs detailType="" considered=1`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			h := handler{&recorder{}, slog.New(slog.NewTextHandler(&log, nil)), nil}
			if _, err := h.handle(t.Context(), json.RawMessage(c.event)); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(log.String(), "msg=reap "); n != 1 || !strings.Contains(log.String(), c.want) {
				t.Errorf("logged %d lines:\n%s\nwant one with %s", n, log.String(), c.want)
			}
		})
	}
}
