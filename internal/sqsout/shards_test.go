package sqsout_test

import (
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/engine/enginetest"
	"github.com/sandkeeper/sandkeeper/internal/sqsout"
)

// allShards are as a sweep that fans out sends them.
func allShards() []int {
	all := make([]int, core.Shards)
	for i := range all {
		all[i] = i
	}
	return all
}

func TestEveryShardIsAMessageOfItsOwn(t *testing.T) {
	client := sqs.NewFromConfig(enginetest.Shared(t).Config())
	made, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: new("shards-" + rand.Text())})
	if err != nil {
		t.Fatal(err)
	}
	want := append(allShards(), allShards()...) // more than one request holds
	if err := sqsout.NewShards(client, *made.QueueUrl).SendShards(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	var got []int
	for len(got) < len(want) {
		out, err := client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{
			QueueUrl: made.QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 5,
		})
		if err != nil || len(out.Messages) == 0 {
			t.Fatalf("received %v, then nothing: %v", got, err)
		}
		for _, m := range out.Messages {
			request, err := sqsout.DecodeShards(*m.Body)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, request.Shards...)
		}
	}
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("received shards %v, want %v", got, want)
	}
}

func TestSendShardsNamesEveryShardThatWasNotTaken(t *testing.T) {
	a := &answering{answer: func(e []types.SendMessageBatchRequestEntry) (*sqs.SendMessageBatchOutput, error) {
		return taken(e, 2)
	}}
	err := sqsout.NewShards(a, "url").SendShards(t.Context(), allShards())
	if err == nil || err.Error() != "send shard 2: not taken: InternalError: try again" {
		t.Errorf("SendShards = %v", err)
	}
	if len(a.batches) != 1 || *a.batches[0][7].MessageBody != `{"shards":[7]}` {
		t.Errorf("%d batches", len(a.batches))
	}
	cut := errors.New("connection cut")
	a.answer = func([]types.SendMessageBatchRequestEntry) (*sqs.SendMessageBatchOutput, error) { return nil, cut }
	if err := sqsout.NewShards(a, "url").SendShards(t.Context(), []int{3, 4}); !errors.Is(err, cut) || !strings.Contains(err.Error(), "shard 3 and 1 more") {
		t.Errorf("SendShards = %v", err)
	}
}

func TestSendShardsOfNothingSendsNothing(t *testing.T) {
	a := &answering{}
	if err := sqsout.NewShards(a, "url").SendShards(t.Context(), nil); err != nil || len(a.batches) != 0 {
		t.Errorf("SendShards = %v after %d batches", err, len(a.batches))
	}
}

func TestDecodeShardsRefusesWhatSendShardsDoesNotWrite(t *testing.T) {
	tests := []struct{ name, body, want string }{
		{"no JSON", `nonsense`, "decode shards"},
		{"nothing", ``, "decode shards"},
		{"no shards", `{}`, "want one shard, got 0"},
		{"an empty list", `{"shards":[]}`, "want one shard, got 0"},
		{"several shards", `{"shards":[1,2]}`, "want one shard, got 2"},
		{"a shard that does not exist", `{"shards":[8]}`, "want numbers from 0 to 7, got 8"},
		{"a negative shard", `{"shards":[-1]}`, "got -1"},
		{"a shard as text", `{"shards":["1"]}`, "cannot unmarshal string"},
		{"a fraction", `{"shards":[1.5]}`, "cannot unmarshal number"},
		{"a plan", `{"shards":[1],"mode":"plan"}`, `unknown field "mode"`},
		{"two values", `{"shards":[1]}{}`, "more behind it"},
		{"a reclaim job", `{"instance":"i","kind":"ledger"}`, "unknown field"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			request, err := sqsout.DecodeShards(tt.body)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("DecodeShards = %+v, %v; want an error about %q", request, err, tt.want)
			}
		})
	}
}

func FuzzDecodeShards(f *testing.F) {
	f.Add(`{"shards":[0]}`)
	f.Add(`{"shards":[8]}`)
	f.Fuzz(func(t *testing.T, body string) {
		request, err := sqsout.DecodeShards(body)
		if err == nil && (request.Validate() != nil || len(request.Shards) != 1) {
			t.Errorf("DecodeShards(%q) = %+v, which is not one shard", body, request)
		}
	})
}
