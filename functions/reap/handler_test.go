package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/boot/boottest"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/metrics"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// recorder notes what the handler asks of the sweep.
type recorder struct {
	requests []core.SweepRequest
	stopped  []core.StoppedTask
	nudged   []core.RunKey
	days     int
	audits   int
	audit    core.DailyReport
	auditErr error
	fail     map[int]error // by shard
}

func (r *recorder) calls() int {
	return len(r.requests) + len(r.stopped) + len(r.nudged) + r.days + r.audits
}

func (r *recorder) Run(_ context.Context, q core.SweepRequest) (core.SweepReport, error) {
	r.requests = append(r.requests, q)
	for _, shard := range q.Shards {
		if err := r.fail[shard]; err != nil {
			return core.SweepReport{}, err
		}
	}
	return core.SweepReport{Considered: 1, FannedOut: 8}, nil
}

func (r *recorder) TaskStopped(_ context.Context, task core.StoppedTask) (core.SweepReport, error) {
	r.stopped = append(r.stopped, task)
	return core.SweepReport{Considered: 2}, nil
}

func (r *recorder) Daily(context.Context) (core.DailyReport, error) {
	r.days++
	return core.DailyReport{Tasks: 4}, nil
}

func (r *recorder) Audit(context.Context) (core.DailyReport, error) {
	r.audits++
	if r.auditErr != nil {
		return r.audit, r.auditErr
	}
	return core.DailyReport{Tasks: 4}, nil
}

func (r *recorder) Nudged(_ context.Context, key core.RunKey) (core.SweepReport, error) {
	r.nudged = append(r.nudged, key)
	return core.SweepReport{Considered: 3}, nil
}

// quiet is a handler whose log nobody reads.
func quiet(s sweeper) handler { return handler{s, slog.New(slog.DiscardHandler), nil} }

func sample(t *testing.T, name string) json.RawMessage {
	t.Helper()
	data, err := os.ReadFile("../../events/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestEachTriggerReachesTheSweep(t *testing.T) {
	request := core.SweepRequest{Runs: []core.RunKey{{Tenant: "acme", Run: "run-7f3a"}, {Tenant: "-", Run: "nightly/2026-11-30"}}}
	cases := map[string]struct {
		event json.RawMessage
		want  recorder
	}{
		"a tick sweeps everything":    {sample(t, "reap-tick.json"), recorder{requests: []core.SweepRequest{{}}}},
		"a request sweeps its runs":   {sample(t, "reap-request.json"), recorder{requests: []core.SweepRequest{request}}},
		"a nudge looks at its run":    {sample(t, "reap-nudge.json"), recorder{nudged: []core.RunKey{{Tenant: "acme", Run: "run-7f3a"}}}},
		"a request for a plan":        {json.RawMessage(`{"mode":"plan"}`), recorder{requests: []core.SweepRequest{{Mode: core.ModePlan}}}},
		"a request sweeps its shards": {json.RawMessage(`{"shards":[0,7]}`), recorder{requests: []core.SweepRequest{{Shards: []int{0, 7}}}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var got recorder
			answer, err := quiet(&got).handle(t.Context(), c.event)
			if err != nil {
				t.Fatal(err)
			}
			if report, ok := answer.(core.SweepReport); !ok || report.Considered == 0 {
				t.Errorf("answered %+v, want the sweep's report", answer)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("asked %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestADayAuditsAndSweepsNothing(t *testing.T) {
	var got recorder
	answer, err := quiet(&got).handle(t.Context(), sample(t, "reap-daily.json"))
	if err != nil || got.days != 1 || got.calls() != 1 || !reflect.DeepEqual(answer, core.DailyReport{Tasks: 4}) {
		t.Errorf("answered %+v, %v after %+v", answer, err, got)
	}
}

func TestAnHourAuditsAndRemovesNothing(t *testing.T) {
	var got recorder
	answer, err := quiet(&got).handle(t.Context(), sample(t, "reap-audit.json"))
	if err != nil || got.audits != 1 || got.calls() != 1 || !reflect.DeepEqual(answer, core.DailyReport{Tasks: 4}) {
		t.Errorf("answered %+v, %v after %+v", answer, err, got)
	}
}

// TestAnAuditMeasuresWhatItCouldList: a cluster that does not answer hides no leak of the
// others, and the invocation fails; without the installation's own there is no number.
func TestAnAuditMeasuresWhatItCouldList(t *testing.T) {
	for name, home := range map[string]bool{"a spoke does not answer": true, "home does not answer": false} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			denied := errors.New("access denied")
			got := recorder{audit: core.DailyReport{Home: home, Tasks: 4, Leaked: make([]core.Leak, 2)}, auditErr: denied}
			h := quiet(&got)
			h.meter = &metrics.Meter{Out: &out, Function: names.Reap}
			if _, err := h.handle(t.Context(), sample(t, "reap-audit.json")); !errors.Is(err, denied) {
				t.Errorf("the invocation answers %v", err)
			}
			if told := strings.Contains(out.String(), `"SandboxesLeaked":2`); told != home || (out.Len() != 0) != home {
				t.Errorf("measured %q", out.String())
			}
		})
	}
}

func TestAStoppedTaskIsReadFromItsEvent(t *testing.T) {
	for source, file := range map[string]string{"aws.ecs": "reap-task-stopped.json", "local.ecs": "reap-task-leaving.json"} {
		var got recorder
		event := strings.Replace(string(sample(t, file)), `"aws.ecs"`, `"`+source+`"`, 1)
		if _, err := quiet(&got).handle(t.Context(), json.RawMessage(event)); err != nil {
			t.Fatal(err)
		}
		if len(got.stopped) != 1 || len(got.requests) != 0 {
			t.Fatalf("source %s: asked %+v", source, got)
		}
		task := got.stopped[0]
		if !strings.HasPrefix(task.ARN, "arn:aws:ecs:") || !strings.Contains(task.StartedBy, "/") || task.At.Time().Before(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)) || task.Leaving != strings.Contains(file, "leaving") {
			t.Errorf("source %s: read %+v", source, task)
		}
	}
}

func TestAMalformedEventIsOneClearErrorAndNoWork(t *testing.T) {
	cases := map[string]struct{ event, want string }{
		"no object":                {`[1]`, "want a JSON object"},
		"nothing":                  {``, "want a JSON object"},
		"neither":                  {`{}`, "want a mode, runs or shards, got none of them"},
		"both":                     {`{"runs":[{"tenant":"a","run":"b"}],"shards":[1]}`, "want runs or shards, got both"},
		"mode that is none":        {`{"mode":"nuke"}`, "want sweep, plan or apply"},
		"apply without a plan":     {`{"mode":"apply"}`, "want entries with mode apply"},
		"nudge without a run":      {`{"source":"sandkeeper.nudge","detail":{"tenant":"a"}}`, "want a tenant and a run"},
		"nudge with more":          {`{"source":"sandkeeper.nudge","detail":{"tenant":"a","run":"b"},"kill":true}`, "unknown field"},
		"unknown member":           {`{"run":"b"}`, `unknown field "run"`},
		"run without tenant":       {`{"runs":[{"run":"b"}]}`, "want a tenant and a run"},
		"shard out of range":       {`{"shards":[8]}`, "want numbers from 0 to 7, got 8"},
		"shard of wrong type":      {`{"shards":["0"]}`, "cannot unmarshal string"},
		"schedule of another kind": {`{"source":"sandkeeper.schedule","detail-type":"Weekly"}`, `with "Weekly"`},
		"foreign event":            {`{"source":"aws.s3","detail-type":"Object Created"}`, `got source "aws.s3"`},
		"task that did not stop":   {`{"source":"aws.ecs","detail-type":"ECS Task State Change","detail":{"taskArn":"x","lastStatus":"RUNNING","desiredStatus":"RUNNING"}}`, "lastStatus or desiredStatus STOPPED"},
		"task without an ARN":      {`{"source":"aws.ecs","detail-type":"ECS Task State Change","detail":{"lastStatus":"STOPPED"}}`, "want a taskArn"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var got recorder
			_, err := quiet(&got).handle(t.Context(), json.RawMessage(c.event))
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, c.want)
			}
			if got.calls() != 0 {
				t.Errorf("asked %+v", got)
			}
		})
	}
}

// Whatever the stack may say of leaks, the use case is told the same.
func TestTheStackChoosesWhatBecomesOfLeaks(t *testing.T) {
	boottest.Environment(t, names.Reap)
	wants := map[string]bool{names.LeaksReport: false, names.LeaksStop: true}
	for _, value := range names.Values[names.Leaks] {
		want, known := wants[value]
		t.Setenv(string(names.Leaks), value)
		if got := wire(boot.New(names.Reap)).StopLeaks; !known || got != want {
			t.Errorf("%s: got %t, want %t", value, got, want)
		}
	}
}

func FuzzEvent(f *testing.F) {
	f.Add([]byte(`{"source":"sandkeeper.schedule","detail-type":"Tick"}`))
	f.Add([]byte(`{"source":"sandkeeper.schedule","detail-type":"Daily"}`))
	f.Add([]byte(`{"Records":[{"messageId":"m","eventSource":"aws:sqs","body":"{\"shards\":[1]}"}]}`))
	f.Add([]byte(`{"runs":[{"tenant":"a","run":"b"}]}`))
	f.Add([]byte(`{"source":"aws.ecs","detail-type":"ECS Task State Change","detail":{"taskArn":"x","lastStatus":"STOPPED"}}`))
	f.Fuzz(func(t *testing.T, event []byte) {
		var got recorder
		answer, err := quiet(&got).handle(t.Context(), event)
		if batch, ok := answer.(events.SQSEventResponse); ok && err == nil {
			if len(batch.BatchItemFailures)+got.calls() == 0 {
				t.Error("messages were answered, and none was swept or failed")
			}
			return
		}
		if (err == nil) != (got.calls() == 1) {
			t.Errorf("error %v, and %d calls", err, got.calls())
		}
	})
}
