package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	dynamotypes "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	ebtypes "github.com/aws/aws-sdk-go-v2/service/eventbridge/types"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	lambdatypes "github.com/aws/aws-sdk-go-v2/service/lambda/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// tells hears what the installation announces, from now on until the test's end.
func (w *world) tells(t *testing.T) (next func() []core.Notice) {
	t.Helper()
	name, bus := "heard-"+rand.Text(), w.out[names.OutEventBus]
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	events := eventbridge.NewFromConfig(w.engine.Config())
	made, err := w.queues.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: &name})
	ok(err)
	_, err = events.PutRule(t.Context(), &eventbridge.PutRuleInput{Name: &name, EventBusName: &bus, EventPattern: new(`{"source":["sandkeeper"]}`)})
	ok(err)
	_, err = events.PutTargets(t.Context(), &eventbridge.PutTargetsInput{Rule: &name, EventBusName: &bus, Targets: []ebtypes.Target{
		{Id: new("queue"), Arn: new("arn:aws:sqs:us-east-1:000000000000:" + name)},
	}})
	ok(err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, err := events.RemoveTargets(ctx, &eventbridge.RemoveTargetsInput{Rule: &name, EventBusName: &bus, Ids: []string{"queue"}})
		ok(err)
		_, err = events.DeleteRule(ctx, &eventbridge.DeleteRuleInput{Name: &name, EventBusName: &bus})
		ok(err)
		_, err = w.queues.DeleteQueue(ctx, &sqs.DeleteQueueInput{QueueUrl: made.QueueUrl})
		ok(err)
	})
	return func() []core.Notice {
		t.Helper()
		var heard []core.Notice
		for _, body := range w.take(t, *made.QueueUrl) {
			var e struct{ Detail core.Notice }
			ok(json.Unmarshal([]byte(body), &e))
			heard = append(heard, e.Detail)
		}
		return heard
	}
}

// choose has deployed functions run under other limits until the test's end, as an update
// of the stack with those choices does.
func (w *world) choose(t *testing.T, limits string) {
	t.Helper()
	for _, output := range []names.Output{names.OutReapFunction, names.OutSession} {
		name := w.out[output]
		now, err := w.lambda.GetFunctionConfiguration(t.Context(), &lambda.GetFunctionConfigurationInput{FunctionName: &name})
		if err != nil {
			t.Fatal(err)
		}
		put := func(variables map[string]string) {
			t.Helper()
			_, err := w.lambda.UpdateFunctionConfiguration(context.WithoutCancel(t.Context()), &lambda.UpdateFunctionConfigurationInput{
				FunctionName: &name, Environment: &lambdatypes.Environment{Variables: variables},
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		changed := maps.Clone(now.Environment.Variables)
		changed[string(names.Limits)] = limits
		put(changed)
		t.Cleanup(func() { put(now.Environment.Variables) })
	}
}

// session makes one call of the session function, in the tenant that there is.
func (w *world) session(t *testing.T, operation string, request map[string]any, answer any) error {
	t.Helper()
	request["tenant"] = "-"
	payload, err := json.Marshal(map[string]any{operation: request})
	if err != nil {
		t.Fatal(err)
	}
	out, err := w.lambda.Invoke(t.Context(), &lambda.InvokeInput{FunctionName: new(w.out[names.OutSession]), Payload: payload})
	if err != nil || out.FunctionError != nil {
		t.Fatalf("%s: %s, %v", operation, out.Payload, err)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(out.Payload, &members); err != nil {
		t.Fatal(err)
	}
	if members["error"] != nil {
		return fmt.Errorf("%s: %s", operation, members["error"])
	}
	return json.Unmarshal(members[operation], answer)
}

// hosted is a run that a host begins by the session function and leaves, by detach or
// interrupt.
func (w *world) hosted(t *testing.T, definition map[string]any, leaves string) core.Run {
	t.Helper()
	key, spec := core.RunKey{Tenant: "-", Run: core.RunID("warned-" + rand.Text())}, w.Spec()
	whole := map[string]any{"name": "warned", "version": 1, "checkpoint": "always", "destroyOnComplete": true, "task": map[string]any{
		"taskDefinition": spec.TaskDefinition, "container": spec.Container, "subnets": spec.Subnets, "assignPublicIp": true,
	}}
	maps.Copy(whole, definition)
	request := map[string]any{"run": key.Run, "thread": key.Run, "host": "host-of-the-test", "agent": map[string]any{"shell": works}, "definition": whole}
	t.Cleanup(func() { w.end(t, key) })
	var begun core.StartReport
	eventually(t, "the run is ready", func() bool {
		if err := w.session(t, "start", request, &begun); err != nil {
			t.Fatal(err)
		}
		return begun.State == core.Ready
	})
	r := w.read(t, key)
	w.wrote(t, r, "begun")
	var left core.RenewReport
	if err := w.session(t, leaves, map[string]any{"run": key.Run, "host": "host-of-the-test"}, &left); err != nil {
		t.Fatal(err)
	}
	return w.read(t, key)
}

// works is an agent that makes something, and goes on for longer than any test.
const works = `echo half >work; echo begun; exec sleep 3600`

// earlier moves a time of a run's record back, so that nobody waits for it.
func (w *world) earlier(t *testing.T, key core.RunKey, attribute string, by time.Duration) {
	t.Helper()
	_, err := w.db.UpdateItem(t.Context(), &dynamodb.UpdateItemInput{
		TableName: new(w.out[names.OutRunsTable]), Key: item{
			names.PK.Name: &dynamotypes.AttributeValueMemberS{Value: core.KeyToken(string(key.Tenant)) + "#" + core.KeyToken(string(key.Run))},
			names.SK.Name: &dynamotypes.AttributeValueMemberS{Value: "run"},
		},
		UpdateExpression: new("SET #at = #at - :by"), ExpressionAttributeNames: map[string]string{"#at": attribute},
		ExpressionAttributeValues: item{":by": &dynamotypes.AttributeValueMemberN{Value: fmt.Sprint(by.Milliseconds())}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// spent is what the tenant that there is costs by now, dollars.
func (w *world) spent(t *testing.T) float64 {
	t.Helper()
	all, err := w.boxes.Spent(t.Context(), []core.TenantID{"-"}, core.MillisOf(time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	return all["-"].Spent.USD()
}

// words are those of a command as a shell reads it.
func words(t *testing.T, command string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `sandkeeper() { printf '%s\0' "$@"; }; `+command).Output()
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

// TestAWarningsCommandPutsTheEndOff: of two runs whose end is near both are announced on the
// bus; the command that comes with the news is run for one, as it stands there, and when the
// time has come that one goes on. The other ends, with what it wrote and made.
func TestAWarningsCommandPutsTheEndOff(t *testing.T) {
	w := installed(t)
	w.image(t)
	for _, row := range []struct {
		name       string
		limits     string // of the installation; CAP is a little above what its tenant costs by now
		definition map[string]any
		leaves     string
		reason     core.EndReason
		says       string // of the command
		passes     func(t *testing.T, w *world, key core.RunKey)
		then       core.Outcome // of the one that is put off
	}{
		{"its time", "{}", map[string]any{"runTtlSeconds": 1200}, "detach", core.EndExpired, "extend '%s' --by 4h", func(t *testing.T, w *world, key core.RunKey) {
			w.earlier(t, key, "detachedSince", 20*time.Minute)
		}, core.Producing},
		{"its cap", "{}", map[string]any{"spendCapUSD": 0.004}, "detach", core.EndSpendCap, "extend '%s' --spend-cap 0.008", func(t *testing.T, w *world, key core.RunKey) {
			w.earlier(t, key, "startedAt", 20*time.Minute)
		}, core.Producing},
		{"its tenant's cap", `{"tenantSpendCap":CAP}`, nil, "detach", core.EndSpendCap, "hold '%s' --for 4h", func(t *testing.T, w *world, key core.RunKey) {
			w.choose(t, `{"tenantSpendCap":0.000001}`)
		}, core.Held},
		{"its pause", "{}", map[string]any{"pauseTtlSeconds": 1200}, "interrupt", core.EndExpired, "hold '%s' --for 4h", func(t *testing.T, w *world, key core.RunKey) {
			w.earlier(t, key, "interruptedSince", 20*time.Minute)
		}, core.Held},
	} {
		t.Run(row.name, func(t *testing.T) {
			w.choose(t, strings.Replace(row.limits, "CAP", fmt.Sprint(w.spent(t)+0.005), 1))
			next := w.tells(t)
			goesOn, ends := w.hosted(t, row.definition, row.leaves), w.hosted(t, row.definition, row.leaves)
			warnings := map[core.RunKey]core.Notice{}
			eventually(t, "both are warned of", func() bool {
				w.sweep(t)
				for _, n := range next() {
					if n.Type == core.NoticeExpiring {
						warnings[n.RunKey] = n
					}
				}
				return len(warnings) == 2
			})
			n := warnings[goesOn.RunKey]
			if want := "sandkeeper " + fmt.Sprintf(row.says, goesOn.RunKey) + " --why '…'"; n.Reason != string(row.reason) || n.Command != want || n.Due <= n.At {
				t.Errorf("warned %+v, want the command %s", n, want)
			}
			sandkeeper(t, words(t, n.Command)...).wants(t, exitDone)
			row.passes(t, w, goesOn.RunKey)
			row.passes(t, w, ends.RunKey)

			var reports []core.RunReport
			eventually(t, "the other's end", func() bool {
				reports = w.sweep(t).Runs
				return w.read(t, ends.RunKey).Status.Terminal()
			})
			if got := (reported{Report: core.SweepReport{Runs: reports}}).of(goesOn.RunKey).Outcome; got != row.then {
				t.Errorf("of the one that is put off the sweep says %s, want %s", got, row.then)
			}
			if now := w.read(t, goesOn.RunKey); now.Status.Terminal() || now.Ending != nil {
				t.Errorf("it is %s with %+v", now.Status, now.Ending)
			}
			w.checkEnded(t, ends, row.reason)
			eventually(t, "its end is told", func() bool {
				return slices.ContainsFunc(next(), func(n core.Notice) bool {
					return n.Type == core.NoticeExpired && n.RunKey == ends.RunKey && n.Reason == string(row.reason)
				})
			})
		})
	}
}

// sweep has the deployed function sweep as the schedule does.
func (w *world) sweep(t *testing.T) core.SweepReport {
	t.Helper()
	out, err := w.lambda.Invoke(context.WithoutCancel(t.Context()), &lambda.InvokeInput{
		FunctionName: new(w.out[names.OutReapFunction]), Payload: []byte(`{"source":"sandkeeper.schedule","detail-type":"Tick"}`),
	})
	if err != nil || out.FunctionError != nil {
		t.Fatalf("%s, %v", out.Payload, err)
	}
	var report core.SweepReport
	if err := json.Unmarshal(out.Payload, &report); err != nil {
		t.Fatal(err)
	}
	return report
}

// checkEnded: the run was ended for that reason, with what it wrote and made, and its task
// was stopped.
func (w *world) checkEnded(t *testing.T, r core.Run, reason core.EndReason) {
	t.Helper()
	var now core.Run
	eventually(t, "it is reclaimed", func() bool {
		now = w.read(t, r.RunKey)
		if now.Row != core.RowNone {
			w.hasten(t, r.RunKey)
			w.sweep(t)
		}
		return now.Row == core.RowNone && w.closed(t, now)
	})
	if now.Ending == nil || now.Ending.Reason != reason || now.Transcript == nil || !now.Transcript.Complete || now.Transcript.Bytes != int64(len("begun\n")) {
		t.Errorf("ended as %s for %+v with the transcript %+v", now.Status, now.Ending, now.Transcript)
	}
	if got := sandkeeper(t, "logs", r.RunKey.String()).wants(t, exitDone); got.out != "begun\n" {
		t.Errorf("it wrote %q", got.out)
	}
	if now.Checkpoint.State != core.CheckpointDone {
		t.Fatalf("its workspace is %+v", now.Checkpoint)
	}
	shown := read[shown](t, exitDone, "checkpoints", "show", threadOf(now), string(now.Checkpoint.ID))
	if !slices.Contains(shown.paths(), "work") {
		t.Errorf("its workspace holds %q", shown.paths())
	}
}
