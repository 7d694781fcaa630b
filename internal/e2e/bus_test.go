package e2e_test

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	eventtypes "github.com/aws/aws-sdk-go-v2/service/eventbridge/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// listener is a queue that a rule of somebody else's fills from the bus.
type listener struct {
	in    *installation
	queue string
	heard []core.Notice
}

// listen has the events of runs come to a queue, as docs/events.md says.
func (in *installation) listen(t *testing.T, types ...core.NoticeType) *listener {
	t.Helper()
	name, bus := "listens-"+strings.ToLower(rand.Text()), eventbridge.NewFromConfig(in.engine.Config())
	made, err := in.Queues.CreateQueue(contextOf(t), &sqs.CreateQueueInput{QueueName: &name})
	if err != nil {
		t.Fatal(err)
	}
	asked, err := in.Queues.GetQueueAttributes(contextOf(t), &sqs.GetQueueAttributesInput{
		QueueUrl: made.QueueUrl, AttributeNames: []sqstypes.QueueAttributeName{sqstypes.QueueAttributeNameQueueArn},
	})
	if err != nil {
		t.Fatal(err)
	}
	pattern, err := json.Marshal(map[string]any{"source": []string{"sandkeeper"}, "detail-type": types})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bus.PutRule(contextOf(t), &eventbridge.PutRuleInput{Name: &name, EventPattern: new(string(pattern))}); err != nil {
		t.Fatal(err)
	}
	target := eventtypes.Target{Id: new("queue"), Arn: new(asked.Attributes[string(sqstypes.QueueAttributeNameQueueArn)])}
	if _, err := bus.PutTargets(contextOf(t), &eventbridge.PutTargetsInput{Rule: &name, Targets: []eventtypes.Target{target}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = bus.RemoveTargets(contextOf(t), &eventbridge.RemoveTargetsInput{Rule: &name, Ids: []string{"queue"}})
		_, _ = bus.DeleteRule(contextOf(t), &eventbridge.DeleteRuleInput{Name: &name})
		_, _ = in.Queues.DeleteQueue(contextOf(t), &sqs.DeleteQueueInput{QueueUrl: made.QueueUrl})
	})
	return &listener{in: in, queue: *made.QueueUrl}
}

// of waits for an event of a type and a run.
func (l *listener) of(t *testing.T, kind core.NoticeType, run core.RunKey) core.Notice {
	t.Helper()
	var found core.Notice
	await(t, fmt.Sprintf("%s of %s", kind, run), func() bool {
		got, err := l.in.Queues.ReceiveMessage(contextOf(t), &sqs.ReceiveMessageInput{QueueUrl: &l.queue, MaxNumberOfMessages: 10, VisibilityTimeout: 600})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range got.Messages {
			var event struct {
				Source     string          `json:"source"`
				DetailType string          `json:"detail-type"`
				Detail     json.RawMessage `json:"detail"`
			}
			var n core.Notice
			if err := json.Unmarshal([]byte(*m.Body), &event); err != nil {
				t.Fatal(err)
			}
			if err := core.DecodeStrict(event.Detail, &n); err != nil || event.Source != names.SourceOwn || event.DetailType != string(n.Type) {
				t.Fatalf("heard %s: %v", *m.Body, err)
			}
			l.heard = append(l.heard, n)
		}
		for _, n := range l.heard {
			if n.Type == kind && n.RunKey == run {
				found = n
				return true
			}
		}
		return false
	})
	return found
}

// TestWhatBecomesOfRunsIsOnTheBus: an end that a sweep found, one that a host decided, and
// one that comes soon reach whoever has a rule for them, from the deployed functions.
func TestWhatBecomesOfRunsIsOnTheBus(t *testing.T) {
	in := installed(t)
	l := in.listen(t, core.NoticeFinalized, core.NoticeExpiring)

	soon := in.begin(t, agent{run: "ends-soon", shell: lives, ttl: 20 * 60})
	in.reap(t, event(t, "reap-tick.json"))
	told := l.of(t, core.NoticeExpiring, soon.RunKey)
	if told.Due != in.run(t, soon.RunKey).DetachedSince.Add(20*60e9) || !strings.HasPrefix(told.Command, "sandkeeper extend '"+soon.RunKey.String()+"' --by ") {
		t.Errorf("warned by %+v", told)
	}

	swept := in.begin(t, agent{run: "ends-by-itself", shell: "exit 3"})
	in.exited(t, swept)
	in.sweepUntil(t, "end of "+swept.RunKey.String(), func(core.SweepReport) bool { return in.run(t, swept.RunKey).Status.Terminal() })
	if told := l.of(t, core.NoticeFinalized, swept.RunKey); told.Outcome != core.Finalized || told.Status != core.Failed || told.ExitCode == nil || *told.ExitCode != 3 || told.Incomplete {
		t.Errorf("ended by a sweep: told %+v", told)
	}

	c, run := in.caller(), core.RunID("ends-by-its-host-"+rand.Text())
	c.start(t, run, lives, nil)
	var report core.EndReport
	await(t, "cancel "+string(run), func() bool {
		c.must(t, "cancel", map[string]any{"run": run, "host": c.host}, &report)
		return report.Ended
	})
	if told := l.of(t, core.NoticeFinalized, report.Run.RunKey); told.Outcome != core.Cancelled || told.Status != report.Run.Status || told.Incomplete {
		t.Errorf("ended by its host: told %+v", told)
	}
}
