package e2e_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// oneTry is for how many seconds a message is hidden, so that it comes again only when the
// function has failed for it: one that comes again sooner is done twice at a time.
const oneTry = 3

func TestAMessageThatComesAgainStopsNothingMore(t *testing.T) {
	in := installed(t)
	r := in.begin(t, agent{run: "told-twice", shell: "echo done"})
	in.exited(t, r)
	in.deliver(t, false)
	in.finishAll(t, []core.Run{r})
	job := in.receive(t)
	stops := in.fargate.Metrics().Calls["StopTask"]

	in.send(t, job, job, job)
	in.deliver(t, true)
	in.settle(t, r.RunKey)
	in.drained(t)
	before := in.rested(t)
	in.send(t, job)
	in.drained(t)
	in.send(t, job)
	in.drained(t)

	checkUnchanged(t, "a late message", before, in.scan(t))
	if n := in.gate.count("StopTask", r.TaskARN); n != 1 {
		t.Errorf("StopTask was called %d times", n)
	}
	if n := in.fargate.Metrics().Calls["StopTask"] - stops; n != 1 {
		t.Errorf("ECS saw %d calls of StopTask", n)
	}
	if dead := in.dead(t); len(dead) != 0 {
		t.Errorf("dead letters %q", dead)
	}
}

func TestAStopTaskThatFailsIsTriedAgain(t *testing.T) {
	in := installed(t)
	in.visibility(t, 8) // longer than the SDK tries one call
	r := in.begin(t, agent{run: "throttled", shell: "echo done"})
	in.exited(t, r)
	// As often as one message's call is tried by the SDK.
	in.gate.refuse("StopTask", r.TaskARN, "ThrottlingException", 3)
	in.finishAll(t, []core.Run{r})

	r = in.settle(t, r.RunKey) // no tick: the message itself comes back
	if n := in.gate.left("StopTask", r.TaskARN); n != 0 {
		t.Errorf("%d of 3 throttlings were not met", n)
	}
	if n := in.gate.count("StopTask", r.TaskARN); n != 1 {
		t.Errorf("StopTask was let through %d times", n)
	}
	if r.ReclaimOutcome != core.ReclaimDestroyed || r.ReclaimAttempts == 0 {
		t.Errorf("reclaimed as %s after %d attempts", r.ReclaimOutcome, r.ReclaimAttempts)
	}
	in.drained(t)
}

func TestWhatNeverSucceedsIsADeadLetterAndADebt(t *testing.T) {
	in := installed(t)
	in.visibility(t, oneTry)
	r := in.begin(t, agent{run: "denied", shell: "echo done"})
	in.exited(t, r)
	in.gate.refuse("StopTask", r.TaskARN, "AccessDeniedException", 1000)
	in.finishAll(t, []core.Run{r})
	var dead []string
	await(t, "dead letter", func() bool {
		dead = append(dead, in.dead(t)...)
		return len(dead) > 0
	})
	var job core.ReclaimJob
	if err := json.Unmarshal([]byte(dead[0]), &job); err != nil || job.Instance != r.Instance || len(dead) != 1 {
		t.Errorf("dead letters %q: %v", dead, err)
	}
	owing := in.run(t, r.RunKey)
	if row := in.ledger(t, r); row.State != core.LedgerStopping || row.DueAt == 0 || owing.Row != core.RowReclaim {
		t.Errorf("the debt is forgotten: ledger row %+v, run's row %q", row, owing.Row)
	}

	in.visibility(t, 60) // what succeeds is done once, however long it takes
	in.gate.refuse("StopTask", r.TaskARN, "", 0)
	in.hasten(t, runItem(in, r.RunKey))
	in.reap(t, event(t, "reap-tick.json"))
	in.settle(t, r.RunKey)
	in.drained(t)
	if n := in.gate.count("StopTask", r.TaskARN); n != 1 {
		t.Errorf("StopTask was let through %d times", n)
	}
}

func TestAPoisonedMessageDoesNotHoldUpItsBatch(t *testing.T) {
	in := installed(t)
	in.visibility(t, oneTry)
	r := in.begin(t, agent{run: "beside-poison", shell: "echo done"})
	in.exited(t, r)
	in.deliver(t, false)
	in.finishAll(t, []core.Run{r})
	poison := []string{`{"tenant":`, `{"instance":"x","kind":"nuke"}`}
	in.send(t, append(poison, in.receive(t))...) // one batch
	in.deliver(t, true)

	in.settle(t, r.RunKey)
	var dead []string
	await(t, "dead letters", func() bool {
		dead = append(dead, in.dead(t)...)
		return len(dead) >= len(poison)
	})
	if slices.Sort(dead); !slices.Equal(dead, slices.Sorted(slices.Values(poison))) {
		t.Errorf("dead letters %q, want %q", dead, poison)
	}
	if n := in.gate.count("StopTask", r.TaskARN); n != 1 {
		t.Errorf("StopTask was called %d times", n)
	}
	in.drained(t)
}

// deliver lets the queue's messages reach the reclaim function, or keeps them back
// until the test's end at most.
func (in *installation) deliver(t *testing.T, enabled bool) {
	t.Helper()
	ctx := contextOf(t)
	function := in.out[names.OutReclaimFunction]
	sources, err := in.functions.ListEventSourceMappings(ctx, &lambda.ListEventSourceMappingsInput{FunctionName: &function})
	if err != nil || len(sources.EventSourceMappings) != 1 {
		t.Fatalf("want one event source of %s, got %+v: %v", function, sources, err)
	}
	_, err = in.functions.UpdateEventSourceMapping(ctx, &lambda.UpdateEventSourceMappingInput{
		UUID: sources.EventSourceMappings[0].UUID, Enabled: &enabled,
	})
	if err != nil {
		t.Fatal(err)
	}
	if !enabled {
		t.Cleanup(func() { in.deliver(t, true) })
	}
}

// visibility shortens the time after which a failed message comes back, until the
// test's end.
func (in *installation) visibility(t *testing.T, seconds int) {
	t.Helper()
	in.visibilityOf(t, names.OutReclaimQueue, seconds)
}

func (in *installation) visibilityOf(t *testing.T, queue names.Output, seconds int) {
	t.Helper()
	url := in.out[queue]
	attribute := string(types.QueueAttributeNameVisibilityTimeout)
	was := in.attributes(t, url)[attribute]
	set := func(value string) {
		_, err := in.queues.SetQueueAttributes(contextOf(t), &sqs.SetQueueAttributesInput{
			QueueUrl: &url, Attributes: map[string]string{attribute: value},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	set(strconv.Itoa(seconds))
	t.Cleanup(func() { set(was) })
}

func (in *installation) attributes(t *testing.T, url string) map[string]string {
	t.Helper()
	out, err := in.queues.GetQueueAttributes(contextOf(t), &sqs.GetQueueAttributesInput{
		QueueUrl: &url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.Attributes
}

// send puts messages into the reclaim queue with one request.
func (in *installation) send(t *testing.T, bodies ...string) {
	t.Helper()
	in.sendTo(t, names.OutReclaimQueue, bodies...)
}

func (in *installation) sendTo(t *testing.T, queue names.Output, bodies ...string) {
	t.Helper()
	var entries []types.SendMessageBatchRequestEntry
	for i, body := range bodies {
		entries = append(entries, types.SendMessageBatchRequestEntry{Id: new(strconv.Itoa(i)), MessageBody: &body})
	}
	out, err := in.queues.SendMessageBatch(t.Context(), &sqs.SendMessageBatchInput{
		QueueUrl: new(in.out[queue]), Entries: entries,
	})
	if err != nil || len(out.Failed) > 0 {
		t.Fatalf("send %q: %+v, %v", bodies, out, err)
	}
}

// receive takes the one message out of the reclaim queue; whoever sent it may have
// done so twice.
func (in *installation) receive(t *testing.T) string {
	t.Helper()
	bodies := slices.Compact(in.take(t, in.out[names.OutReclaimQueue]))
	if len(bodies) != 1 {
		t.Fatalf("messages %q, want one", bodies)
	}
	return bodies[0]
}

// dead takes the messages out of the dead-letter queue.
func (in *installation) dead(t *testing.T) []string {
	t.Helper()
	return in.take(t, in.out[names.OutDeadLetterQueue])
}

func (in *installation) take(t *testing.T, url string) []string {
	t.Helper()
	out, err := in.queues.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &url, MaxNumberOfMessages: 10})
	if err != nil {
		t.Fatal(err)
	}
	var bodies []string
	for _, m := range out.Messages {
		bodies = append(bodies, *m.Body)
		if _, err := in.queues.DeleteMessage(t.Context(), &sqs.DeleteMessageInput{QueueUrl: &url, ReceiptHandle: m.ReceiptHandle}); err != nil {
			t.Fatal(err)
		}
	}
	return bodies
}

// drained waits until no message is in the reclaim queue, or on its way.
func (in *installation) drained(t *testing.T) {
	t.Helper()
	waiting := []string{"ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed"}
	await(t, "drain the reclaim queue", func() bool {
		have := in.attributes(t, in.out[names.OutReclaimQueue])
		maps.DeleteFunc(have, func(name, n string) bool { return !slices.Contains(waiting, name) || n == "0" })
		return len(have) == 0
	})
}
