package ebout_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ebout"
	"github.com/sandkeeper/sandkeeper/internal/engine/enginetest"
)

// notices are n different ones, of every type.
func notices(n int) []core.Notice {
	kinds := []core.NoticeType{core.NoticeFinalized, core.NoticeExpiring, core.NoticeExpired, core.NoticeLost, core.NoticeHeld, core.NoticeLeaked}
	out := make([]core.Notice, n)
	for i := range out {
		out[i] = core.Notice{
			Type: kinds[i%len(kinds)], RunKey: core.RunKey{Tenant: "acme/ü", Run: core.RunID(fmt.Sprint("r", i))},
			Reason: `say "why"`, At: core.Millis(1796031661250 + i),
		}
	}
	return out
}

// received is an event as a target gets it. Its time is not looked at: the engine
// puts its own, see TestAnEntryIsTheNotice.
type received struct {
	Source     string      `json:"source"`
	DetailType string      `json:"detail-type"`
	Detail     core.Notice `json:"detail"`
}

// TestOthersHearEveryNotice announces on a real bus and listens as others do: with a
// rule by source and a queue as its target.
func TestOthersHearEveryNotice(t *testing.T) {
	e := enginetest.Shared(t)
	bus, queue := listen(t, eventbridge.NewFromConfig(e.Config()), sqs.NewFromConfig(e.Config()))
	told := notices(23)
	told[0].ExitCode, told[0].Status, told[0].Outcome = new(0), core.Completed, core.Finalized
	told[5] = core.Notice{Type: core.NoticeLeaked, TaskARN: "arn:aws:ecs:us-east-1:000000000000:task/c/1", Reason: "no ledger row", At: 1796031661000}
	if err := bus.Announce(t.Context(), told); err != nil {
		t.Fatal(err)
	}
	heard := map[string]received{}
	for len(heard) < len(told) {
		for _, r := range queue(t) {
			heard[about(r.Detail)] = r
		}
	}
	for _, n := range told {
		r := heard[about(n)]
		if r.Source != "sandkeeper" || r.DetailType != string(n.Type) || !reflect.DeepEqual(r.Detail, n) {
			t.Errorf("heard %+v, told %+v", r, n)
		}
	}
}

func about(n core.Notice) string { return string(n.Type) + n.RunKey.String() + n.TaskARN }

// listen makes a bus and what hears it. The returned function waits for some events;
// the test's deadline bounds it.
func listen(t *testing.T, events *eventbridge.Client, queues *sqs.Client) (*ebout.Bus, func(t *testing.T) []received) {
	t.Helper()
	name := "bus-" + rand.Text()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := events.CreateEventBus(t.Context(), &eventbridge.CreateEventBusInput{Name: &name})
	ok(err)
	made, err := queues.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: &name})
	ok(err)
	_, err = events.PutRule(t.Context(), &eventbridge.PutRuleInput{
		Name: &name, EventBusName: &name, EventPattern: new(`{"source":["sandkeeper"],"detail-type":[{"prefix":"run."},{"prefix":"sandbox."}]}`),
	})
	ok(err)
	_, err = events.PutTargets(t.Context(), &eventbridge.PutTargetsInput{
		Rule: &name, EventBusName: &name,
		Targets: []types.Target{{Id: new("queue"), Arn: new("arn:aws:sqs:us-east-1:000000000000:" + name)}},
	})
	ok(err)
	return ebout.New(events, name), func(t *testing.T) []received {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		out, err := queues.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: made.QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 20})
		ok(err)
		if len(out.Messages) == 0 {
			t.Fatal("no event within 20 s")
		}
		var heard []received
		for _, m := range out.Messages {
			var r received
			ok(json.Unmarshal([]byte(*m.Body), &r))
			heard = append(heard, r)
			_, err := queues.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: made.QueueUrl, ReceiptHandle: m.ReceiptHandle})
			ok(err)
		}
		return heard
	}
}

// wire answers PutEvents with respond, and keeps what it was asked.
type wire struct {
	mu      sync.Mutex
	bodies  []request
	targets []string
	respond func(n int, w http.ResponseWriter, r request)
}

type request struct {
	Entries []struct {
		EventBusName, Source, DetailType, Detail string
		Time                                     float64 // seconds
	}
}

func (v *wire) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body request
	data, _ := io.ReadAll(r.Body) // a cut request shows in what the test asserts
	_ = json.Unmarshal(data, &body)
	v.mu.Lock()
	v.bodies, v.targets = append(v.bodies, body), append(v.targets, r.Header.Get("X-Amz-Target"))
	n := len(v.bodies)
	v.mu.Unlock()
	v.respond(n, w, body)
}

func bus(t *testing.T, respond func(n int, w http.ResponseWriter, r request)) (*ebout.Bus, *wire) {
	v := &wire{respond: respond}
	server := httptest.NewServer(v)
	t.Cleanup(server.Close)
	return ebout.New(eventbridge.New(eventbridge.Options{
		BaseEndpoint: &server.URL, Region: "us-east-1", Retryer: aws.NopRetryer{},
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	}), "others"), v
}

// taken answers that every entry was taken but those in failed.
func taken(w http.ResponseWriter, r request, failed ...int) {
	entries := make([]map[string]string, len(r.Entries))
	for i := range entries {
		entries[i] = map[string]string{"EventId": fmt.Sprint("e", i)}
		if slices.Contains(failed, i) {
			entries[i] = map[string]string{"ErrorCode": "InternalFailure", "ErrorMessage": "try again"}
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"FailedEntryCount": len(failed), "Entries": entries})
}

func TestAnEntryIsTheNotice(t *testing.T) {
	b, v := bus(t, func(_ int, w http.ResponseWriter, r request) { taken(w, r) })
	n := core.Notice{
		Type: core.NoticeLost, RunKey: core.RunKey{Tenant: "acme", Run: "r"}, Thread: "t", Outcome: core.Lost,
		Status: core.Failed, Reason: "OutOfMemoryError", TaskARN: "arn", At: 1796031661250,
	}
	if err := b.Announce(t.Context(), []core.Notice{n}); err != nil {
		t.Fatal(err)
	}
	if len(v.bodies) != 1 || v.targets[0] != "AWSEvents.PutEvents" || len(v.bodies[0].Entries) != 1 {
		t.Fatalf("asked %v: %+v", v.targets, v.bodies)
	}
	e := v.bodies[0].Entries[0]
	if e.EventBusName != "others" || e.Source != "sandkeeper" || e.DetailType != "run.lost" || e.Time != 1796031661.25 {
		t.Errorf("entry %+v", e)
	}
	want := `{"type":"run.lost","tenant":"acme","run":"r","thread":"t","outcome":"lost","status":"failed",` +
		`"reason":"OutOfMemoryError","taskArn":"arn","at":1796031661250}`
	if e.Detail != want {
		t.Errorf("detail %s, want %s", e.Detail, want)
	}
}

func TestAnnounceGoesInBatchesOfTen(t *testing.T) {
	b, v := bus(t, func(_ int, w http.ResponseWriter, r request) { taken(w, r) })
	if err := b.Announce(t.Context(), notices(23)); err != nil {
		t.Fatal(err)
	}
	var sizes []int
	for _, body := range v.bodies {
		sizes = append(sizes, len(body.Entries))
	}
	if !slices.Equal(sizes, []int{10, 10, 3}) {
		t.Errorf("batches of %v", sizes)
	}
}

func TestAnnounceOfNothingAsksNothing(t *testing.T) {
	b, v := bus(t, func(_ int, w http.ResponseWriter, r request) { taken(w, r) })
	if err := b.Announce(t.Context(), nil); err != nil || len(v.bodies) != 0 {
		t.Errorf("Announce = %v after %d requests", err, len(v.bodies))
	}
}

// TestAnnounceNamesWhatWasNotTaken: an answer of 200 is no success by itself.
func TestAnnounceNamesWhatWasNotTaken(t *testing.T) {
	answer := func(text string) func(int, http.ResponseWriter, request) {
		return func(_ int, w http.ResponseWriter, _ request) { _, _ = io.WriteString(w, text) }
	}
	tests := []struct {
		name     string
		respond  func(n int, w http.ResponseWriter, r request)
		requests int
		want     []string
		not      string
	}{
		{"entries failed", func(_ int, w http.ResponseWriter, r request) { taken(w, r, 1) }, 2,
			[]string{"run.expiring of run acme/ü/r1: not taken: InternalFailure: try again", "run.leaked", "r11"}, "r2:"},
		{"the answer is too short", answer(`{"FailedEntryCount":0,"Entries":[{"EventId":"a"}]}`), 2, []string{"r1: not taken: no answer", "r9:", "r11:"}, "r0:"},
		{"the answer names nothing", answer(`{}`), 2, []string{"r0:", "r11:"}, ""},
		{"an entry has no id", answer(`{"FailedEntryCount":0,"Entries":[{},{"EventId":"b"}]}`), 2, []string{"r0:", "r10:"}, "r11:"},
		{"some failed and none is named", func(_ int, w http.ResponseWriter, r request) {
			entries := make([]map[string]string, len(r.Entries))
			for i := range entries {
				entries[i] = map[string]string{"EventId": "e"}
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"FailedEntryCount": 2, "Entries": entries})
		}, 2, []string{"r0 and 9 more: 2 of them not taken", "r10 and 1 more: 2 of them"}, ""},
		{"the first request is refused", func(n int, w http.ResponseWriter, r request) {
			if n == 1 {
				w.WriteHeader(http.StatusBadRequest)
				_, _ = io.WriteString(w, `{"__type":"AccessDeniedException","message":"not yours"}`)
				return
			}
			taken(w, r)
		}, 2, []string{"run.finalized of run acme/ü/r0 and 9 more", "AccessDenied"}, "r10"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, v := bus(t, tt.respond)
			told := notices(12)
			told[11].Type = "run.leaked"
			err := b.Announce(t.Context(), told)
			if err == nil || len(v.bodies) != tt.requests {
				t.Fatalf("Announce = %v after %d requests", err, len(v.bodies))
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %v does not say %q", err, want)
				}
			}
			if tt.not != "" && strings.Contains(err.Error(), tt.not) {
				t.Errorf("error %v names %q, which was taken", err, tt.not)
			}
		})
	}
}

// stuck never answers.
type stuck struct{}

func (stuck) PutEvents(ctx context.Context, _ *eventbridge.PutEventsInput, _ ...func(*eventbridge.Options)) (*eventbridge.PutEventsOutput, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestARequestHasItsOwnDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		err := ebout.New(stuck{}, "b").Announce(t.Context(), notices(1))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != 10*time.Second {
			t.Errorf("Announce = %v after %s", err, time.Since(begun))
		}
	})
}
