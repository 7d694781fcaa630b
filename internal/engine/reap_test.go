package engine_test

import (
	"context"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/sqsout"
)

// checkShards sends every shard of an empty installation, and a message that is none,
// through the deployed queue: the shards are swept, the other stays.
func checkShards(t *testing.T, e *engine.Engine, outputs engine.Outputs) {
	t.Helper()
	queues, url := sqs.NewFromConfig(e.Config()), outputs[names.OutShardQueue]
	shards := make([]int, core.Shards)
	for i := range shards {
		shards[i] = i
	}
	if err := sqsout.NewShards(queues, url).SendShards(t.Context(), shards); err != nil {
		t.Fatal(err)
	}
	if _, err := queues.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: &url, MessageBody: new(`{"shards":[99]}`)}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		// A message under way is hidden; one that failed stays hidden until it may come again.
		waiting, hidden := depth(t, queues, url)
		if waiting == 0 && hidden == 1 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%d messages wait and %d are under way, want the one alone that is no shard", waiting, hidden)
		}
	}
}

// checkDaily lets the day's schedule be, and invokes its target in an empty installation.
func checkDaily(t *testing.T, functions *lambda.Client, outputs engine.Outputs) {
	t.Helper()
	event, err := os.ReadFile("../../events/reap-daily.json")
	if err != nil {
		t.Fatal(err)
	}
	out, err := functions.Invoke(t.Context(), &lambda.InvokeInput{FunctionName: new(outputs[names.OutReapFunction]), Payload: event})
	if err != nil {
		t.Fatal(err)
	}
	var report core.DailyReport
	if err := core.DecodeStrict(out.Payload, &report); err != nil || out.FunctionError != nil {
		t.Fatalf("reap answered the day with %s: %v", out.Payload, err)
	}
	if report.Tasks != 0 || len(report.Leaked)+len(report.Errors) != 0 || report.Skipped != "" {
		t.Errorf("an empty installation's day is %+v", report)
	}
}

// depth is how many messages of a queue wait, and how many were handed out.
func depth(t *testing.T, queues *sqs.Client, url string) (waiting, hidden int) {
	t.Helper()
	names := []types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible}
	out, err := queues.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: names})
	if err != nil {
		t.Fatal(err)
	}
	for i, into := range []*int{&waiting, &hidden} {
		if *into, err = strconv.Atoi(out.Attributes[string(names[i])]); err != nil {
			t.Fatal(err)
		}
	}
	return waiting, hidden
}
