package e2e_test

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	lambdatypes "github.com/aws/aws-sdk-go-v2/service/lambda/types"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

func TestATaskThatDiesEndsItsRunWithoutATick(t *testing.T) {
	in := installed(t)
	r := in.begin(t, agent{run: "task-dies", shell: lives})
	if err := in.fargate.KillTask(r.TaskARN); err != nil {
		t.Fatal(err)
	}
	r = in.settle(t, r.RunKey)
	if r.Status != core.Failed || r.Error == nil || r.Error.Code != string(core.EndLost) || r.ExitCode != nil {
		t.Errorf("ended as %s with %+v and exit %v", r.Status, r.Error, r.ExitCode)
	}
	if r.Transcript == nil || r.Transcript.Complete {
		t.Errorf("a journal that nobody can read any more gives transcript %+v", r.Transcript)
	}
}

func TestATaskThatDiesUnderAnAttachedHostIsOnlyAHint(t *testing.T) {
	in := installed(t)
	r := in.begin(t, agent{run: "task-dies-attached", shell: lives, stays: true, attachment: time.Hour})
	if err := in.fargate.KillTask(r.TaskARN); err != nil {
		t.Fatal(err)
	}
	await(t, "hint", func() bool { return in.run(t, r.RunKey).TaskStoppedAt != 0 })
	hinted := in.run(t, r.RunKey)
	if hinted.Status != core.Running || hinted.Epoch != r.Epoch || hinted.Row != core.RowLapse || hinted.DueAt >= r.DueAt {
		t.Errorf("the hint left it %s at epoch %d, row %s due %d, not sooner than %d",
			hinted.Status, hinted.Epoch, hinted.Row, hinted.DueAt, r.DueAt)
	}
	in.hasten(t, runItem(in, r.RunKey))
	in.reap(t, event(t, "reap-tick.json"))
	if r = in.settle(t, r.RunKey); r.Error == nil || r.Error.Code != string(core.EndLost) {
		t.Errorf("ended as %s with %+v", r.Status, r.Error)
	}
}

func TestNewsOfSomebodyElsesTaskIsNoWork(t *testing.T) {
	in := installed(t)
	r := in.begin(t, agent{run: "bystander", shell: lives})
	sample := string(event(t, "reap-task-stopped.json"))
	for what, news := range map[string]string{
		"another installation's":                    strings.Replace(sample, "sandkeeper/5HQZ", "other/5HQZ", 1),
		"an instance unknown":                       sample,
		"an instance of ours that has another task": strings.Replace(sample, "5HQZJ4KVTN2WYD7RC3MXB6AFGE", string(r.Instance), 1),
	} {
		before := in.rested(t)
		report := in.reap(t, []byte(news))
		checkUnchanged(t, "news of "+what, before, in.scan(t))
		if len(report.Runs) != 0 {
			t.Errorf("news of %s: the sweep says %+v", what, report.Runs)
		}
	}
}

func TestMalformedEventsAreOneErrorAndChangeNothing(t *testing.T) {
	in := installed(t)
	in.begin(t, agent{run: "bystander", shell: lives})
	in.drained(t)
	target := `"target":{"cluster":"c","taskArn":"t","container":"agent"}`
	cases := map[names.Output]map[string]string{ // event: what the error says
		names.OutReapFunction: {
			`[1]`:                            "want a JSON object",
			`"tick"`:                         "want a JSON object",
			`{}`:                             "reap: request: want ",
			`{"source":"aws.s3"}`:            `got source "aws.s3"`,
			`{"runs":[{"run":"bystander"}]}`: "want a tenant and a run",
			`{"shards":[-1]}`:                "want numbers from 0 to 7, got -1",
			`{"shards":[0],"force":true}`:    `unknown field "force"`,
			`{"source":"local.ecs","detail-type":"ECS Task State Change","detail":{"lastStatus":"STOPPED"}}`: "want a taskArn",
		},
		names.OutProbeFunction: {
			`[]`:                                     "cannot unmarshal array",
			`{}`:                                     "want exactly one of",
			`{"kill":{}}`:                            `unknown field "kill"`,
			`{"page":{},"probe":{"requests":[]}}`:    "got 2",
			`{"terminate":{"tenant":"a","run":"b"}}`: "want a task ARN and a container",
			`{"page":{"tenant":"a","run":"b",` + target + `,"from":-1}}`: "want a position from 0 on, got -1",
			`{"probe":{"requests":[{"run":"b",` + target + `}]}}`:        "want a tenant and a run",
		},
		names.OutReclaimFunction: {
			`[1]`:            "cannot unmarshal array",
			`{}`:             "want records of SQS, got none",
			`{"tenant":"a"}`: "want records of SQS, got none",
		},
	}
	before := in.rested(t)
	for output, byEvent := range cases {
		for payload, want := range byEvent {
			t.Run(string(output)+" "+payload, func(t *testing.T) {
				answer, err := in.invoke(in.out[output], []byte(payload))
				failed, ok := errors.AsType[*functionError](err)
				if !ok || !strings.Contains(failed.ErrorMessage, want) || strings.Contains(failed.ErrorMessage, "\n") {
					t.Errorf("answered %s, %v, want one line with %q", answer, err, want)
				}
			})
		}
	}
	checkUnchanged(t, "a malformed event", before, in.scan(t))
}

func TestMalformedMessagesComeAgainAndChangeNothing(t *testing.T) {
	in := installed(t)
	in.begin(t, agent{run: "bystander", shell: lives})
	in.drained(t)
	bodies := []string{"", "null", "[]", "{", `{"kind":"end"}`, `{"kind":"idle-due","instance":"i"}`, `{"kind":"ledger","instance":"i"}x`,
		`{"kind":"ledger","instance":1}`, `{"kind":"end","tenant":"a","run":"b","key":"k"}`}
	// Well formed, about nothing that exists: done, not to come again.
	nobody := []string{`{"kind":"ledger","instance":"../x"}`, `{"kind":"end","tenant":"a","run":"b","key":"k","instance":"i"}`}
	var batch events.SQSEvent
	var want []string
	for i, body := range append(bodies, nobody...) {
		id := fmt.Sprint("message-", i)
		batch.Records = append(batch.Records, events.SQSMessage{MessageId: id, Body: body})
		if i < len(bodies) {
			want = append(want, id)
		}
	}
	payload, err := json.Marshal(batch)
	if err != nil {
		t.Fatal(err)
	}
	before := in.rested(t)
	answer, err := in.invoke(in.out[names.OutReclaimFunction], payload)
	if err != nil {
		t.Fatal(err)
	}
	var out events.SQSEventResponse
	if err := json.Unmarshal(answer, &out); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range out.BatchItemFailures {
		got = append(got, f.ItemIdentifier)
	}
	if !slices.Equal(got, want) {
		t.Errorf("failed %q, want %q", got, want)
	}
	checkUnchanged(t, "a malformed message", before, in.scan(t))
}

func TestAListingThatFailsIsAnErrorAndNothingIsDone(t *testing.T) {
	in := installed(t)
	r := in.begin(t, agent{run: "unlisted", shell: "echo done"})
	in.exited(t, r)
	in.drained(t)
	bare := names.Table{Name: "bare"}
	half := names.Table{Name: "half", Indexes: []names.Index{names.DetachedIndex}}
	for _, table := range []names.Table{bare, half} {
		if err := engine.CreateTable(t.Context(), in.db, table.Name, table); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = in.db.DeleteTable(contextOf(t), &dynamodb.DeleteTableInput{TableName: &table.Name}) })
	}
	before := in.rested(t)
	for name, env := range map[string]map[names.Key]string{
		"the runs table is gone":             {names.RunsTable: "nowhere"},
		"the index of detached runs is gone": {names.RunsTable: bare.Name},
		"the index of due runs is gone":      {names.RunsTable: half.Name},
		"the sandboxes table is gone":        {names.SandboxesTable: "nowhere"},
		"the index of due sandboxes is gone": {names.SandboxesTable: bare.Name},
	} {
		t.Run(name, func(t *testing.T) {
			report, err := in.tryReap(in.reapWith(t, env), event(t, "reap-tick.json"))
			failed, ok := errors.AsType[*functionError](err)
			if !ok || !strings.HasPrefix(failed.ErrorMessage, "sweep: ") {
				t.Errorf("answered %+v, %v", report, err)
			}
		})
	}
	checkUnchanged(t, "a sweep that cannot list", before, in.scan(t))
	in.drained(t)
	if n := in.gate.count("StopTask", r.TaskARN); n != 0 {
		t.Errorf("StopTask was called %d times", n)
	}
}

// reapWith deploys a copy of the reap function with some of its environment changed,
// for the test's time, and returns its name.
func (in *installation) reapWith(t *testing.T, env map[names.Key]string) string {
	t.Helper()
	deployed, err := in.functions.GetFunctionConfiguration(t.Context(), &lambda.GetFunctionConfigurationInput{
		FunctionName: new(in.out[names.OutReapFunction]),
	})
	if err != nil {
		t.Fatal(err)
	}
	variables := maps.Clone(deployed.Environment.Variables)
	for key, value := range env {
		variables[string(key)] = value
	}
	name := fmt.Sprintf("reap-copy-%d", time.Now().UnixNano())
	_, err = in.functions.CreateFunction(t.Context(), &lambda.CreateFunctionInput{
		FunctionName: &name, Runtime: deployed.Runtime, Handler: deployed.Handler, Role: deployed.Role, Timeout: deployed.Timeout,
		MemorySize: deployed.MemorySize, Architectures: deployed.Architectures, Code: &lambdatypes.FunctionCode{ZipFile: bootstrap(t)},
		Environment: &lambdatypes.Environment{Variables: variables},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := in.functions.DeleteFunction(contextOf(t), &lambda.DeleteFunctionInput{FunctionName: &name}); err != nil {
			t.Error(err)
		}
	})
	return name
}

// bootstrap is the reap function's deployment package.
func bootstrap(t *testing.T) []byte {
	t.Helper()
	binary, err := os.ReadFile(filepath.Join("..", "..", "dist", "local", string(names.Reap), "bootstrap"))
	if err != nil {
		t.Fatal(err)
	}
	var buffer bytes.Buffer
	archive := zip.NewWriter(&buffer)
	header := &zip.FileHeader{Name: "bootstrap"} // stored: it goes nowhere
	header.SetMode(0o755)
	file, err := archive.CreateHeader(header)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.Write(binary); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}
