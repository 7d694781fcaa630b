package sqsout_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/core/coretest"
	"github.com/sandkeeper/sandkeeper/internal/engine/enginetest"
	"github.com/sandkeeper/sandkeeper/internal/mem"
	"github.com/sandkeeper/sandkeeper/internal/sqsout"
)

func TestContract(t *testing.T) {
	client := sqs.NewFromConfig(enginetest.Shared(t).Config())
	coretest.ReclaimQueue(t, func(t *testing.T) coretest.Stores {
		made, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: new("jobs-" + rand.Text())})
		if err != nil {
			t.Fatal(err)
		}
		store := mem.New(t)
		return coretest.Stores{
			Queue: sqsout.New(client, *made.QueueUrl),
			Seed: coretest.Seed{
				Run: func(_ context.Context, r core.Run) error { store.SeedRun(r); return nil },
				Row: func(_ context.Context, row core.LedgerRow) error { store.SeedRow(row); return nil },
				Received: func(ctx context.Context, n int) ([]core.ReclaimJob, error) {
					return receive(ctx, client, made.QueueUrl, n)
				},
			},
		}
	})
}

// receive takes n messages out of a queue, and those that are there beyond.
func receive(ctx context.Context, client *sqs.Client, url *string, n int) ([]core.ReclaimJob, error) {
	var jobs []core.ReclaimJob
	for {
		out, err := client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: url, MaxNumberOfMessages: 10})
		if err != nil || len(out.Messages) == 0 && len(jobs) >= n {
			return jobs, err
		}
		for _, m := range out.Messages {
			job, err := sqsout.Decode(*m.Body)
			if err != nil {
				return nil, err
			}
			jobs = append(jobs, job)
			if _, err := client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: url, ReceiptHandle: m.ReceiptHandle}); err != nil {
				return nil, err
			}
		}
	}
}

// answering keeps what it is sent and answers as told.
type answering struct {
	batches [][]types.SendMessageBatchRequestEntry
	answer  func(entries []types.SendMessageBatchRequestEntry) (*sqs.SendMessageBatchOutput, error)
}

func (a *answering) SendMessageBatch(_ context.Context, in *sqs.SendMessageBatchInput, _ ...func(*sqs.Options)) (*sqs.SendMessageBatchOutput, error) {
	a.batches = append(a.batches, in.Entries)
	return a.answer(in.Entries)
}

// taken says that every entry but those in failed was taken.
func taken(entries []types.SendMessageBatchRequestEntry, failed ...int) (*sqs.SendMessageBatchOutput, error) {
	out := &sqs.SendMessageBatchOutput{}
	for i, e := range entries {
		bad := false
		for _, f := range failed {
			bad = bad || f == i
		}
		if bad {
			out.Failed = append(out.Failed, types.BatchResultErrorEntry{Id: e.Id, Code: new("InternalError"), Message: new("try again")})
		} else {
			out.Successful = append(out.Successful, types.SendMessageBatchResultEntry{Id: e.Id})
		}
	}
	return out, nil
}

func jobs(n int) []core.ReclaimJob {
	out := make([]core.ReclaimJob, n)
	for i := range out {
		out[i] = core.ReclaimJob{Tenant: "acme", Run: "r", Instance: core.InstanceID(fmt.Sprint("i", i)), Kind: core.JobEnd}
	}
	return out
}

func TestSendGoesInBatchesOfTen(t *testing.T) {
	a := &answering{answer: func(e []types.SendMessageBatchRequestEntry) (*sqs.SendMessageBatchOutput, error) { return taken(e) }}
	if err := sqsout.New(a, "url").Send(t.Context(), jobs(23)); err != nil {
		t.Fatal(err)
	}
	var sizes []int
	for _, batch := range a.batches {
		sizes = append(sizes, len(batch))
		ids := map[string]bool{}
		for _, e := range batch {
			ids[*e.Id] = true
		}
		if len(ids) != len(batch) {
			t.Errorf("a batch has %d ids for %d entries", len(ids), len(batch))
		}
	}
	if fmt.Sprint(sizes) != "[10 10 3]" {
		t.Errorf("batches of %v", sizes)
	}
	if want := `{"tenant":"acme","run":"r","instance":"i22","kind":"end"}`; *a.batches[2][2].MessageBody != want {
		t.Errorf("body %s, want %s", *a.batches[2][2].MessageBody, want)
	}
}

func TestSendNamesEveryJobThatWasNotTaken(t *testing.T) {
	a := &answering{answer: func(e []types.SendMessageBatchRequestEntry) (*sqs.SendMessageBatchOutput, error) {
		return taken(e, 1, 3)
	}}
	err := sqsout.New(a, "url").Send(t.Context(), jobs(12))
	if len(a.batches) != 2 {
		t.Errorf("%d batches, want the second in spite of the first", len(a.batches))
	}
	for _, id := range []string{"i1:", "i3:", "i11:", "InternalError"} {
		if err == nil || !strings.Contains(err.Error(), id) {
			t.Errorf("error %v does not name %s", err, id)
		}
	}
	if err != nil && strings.Contains(err.Error(), "i2:") {
		t.Errorf("error %v names a job that was taken", err)
	}
}

func TestSendWithoutAnAnswerIsAnError(t *testing.T) {
	cut := errors.New("connection cut")
	a := &answering{answer: func([]types.SendMessageBatchRequestEntry) (*sqs.SendMessageBatchOutput, error) { return nil, cut }}
	if err := sqsout.New(a, "url").Send(t.Context(), jobs(1)); !errors.Is(err, cut) {
		t.Errorf("Send = %v", err)
	}
	a.answer = func([]types.SendMessageBatchRequestEntry) (*sqs.SendMessageBatchOutput, error) {
		return &sqs.SendMessageBatchOutput{}, nil
	}
	if err := sqsout.New(a, "url").Send(t.Context(), jobs(1)); err == nil {
		t.Error("an answer that names no entry is a success")
	}
}

func TestDecodeRefusesWhatSendDoesNotWrite(t *testing.T) {
	tests := []struct{ name, body, want string }{
		{"no JSON", `nonsense`, "decode reclaim job"},
		{"nothing", ``, "decode reclaim job"},
		{"an unknown member", `{"kind":"ledger","instance":"i","force":true}`, "force"},
		{"a wrong type", `{"kind":"ledger","instance":7}`, "instance"},
		{"two values", `{"kind":"ledger","instance":"i"}{}`, "decode reclaim job"},
		{"an unknown kind", `{"kind":"stop","instance":"i"}`, "kind"},
		{"no instance", `{"kind":"ledger"}`, "instance"},
		{"an end without a run", `{"kind":"end","instance":"i","tenant":"acme"}`, "run"},
		{"an end without a tenant", `{"kind":"idle","instance":"i","run":"r"}`, "tenant"},
		{"an idle sandbox without a key", `{"kind":"idle-due","instance":"i"}`, "key"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			job, err := sqsout.Decode(tt.body)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Decode = %+v, %v; want an error about %q", job, err, tt.want)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(`{"kind":"ledger","instance":"i"}`)
	f.Add(`{"tenant":"a","run":"r","key":"k","instance":"i","kind":"end"}`)
	f.Fuzz(func(t *testing.T, body string) {
		job, err := sqsout.Decode(body)
		if err == nil && job.Validate() != nil {
			t.Errorf("Decode(%q) = %+v, which is not valid", body, job)
		}
	})
}
