package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	dynamotypes "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/core/coretest"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/ecstask"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/engine/installtest"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// world is a deployed stack with local Fargate, and a host's side of both. One serves
// the whole test process.
type world struct {
	*installtest.Installation

	dir     string
	engine  *engine.Engine
	fargate *localfargate.Server
	out     engine.Outputs
	db      *dynamodb.Client
	queues  *sqs.Client
	lambda  *lambda.Client
	runs    *ddb.Runs
	boxes   *ddb.Sandboxes
	host    core.Launcher
}

// shared is the installation of this test process. The agent is where tasks look for
// it while a test puts it there.
var shared installtest.Shared

// installed returns the installation of this test process, and points the tool's
// environment at it.
func installed(t *testing.T) *world {
	t.Helper()
	in := shared.Get(t)
	for _, name := range []string{"AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "SANDKEEPER_STACK", "SANDKEEPER_OUTPUTS", "SANDKEEPER_AS"} {
		t.Setenv(name, "")
		os.Unsetenv(name)
	}
	t.Setenv("AWS_ENDPOINT_URL", in.Engine.Endpoint)
	t.Setenv("AWS_ENDPOINT_URL_ECS", in.Fargate.URL())
	return &world{
		Installation: in, dir: in.Dir, engine: in.Engine, fargate: in.Fargate, out: in.Out,
		db: in.DB, queues: in.Queues, lambda: in.Functions, runs: in.Runs, boxes: in.Boxes, host: in.Host,
	}
}

// answer is what a command line came to.
type answer struct {
	code     int
	out, err string
}

// sandkeeper runs the tool in this process as a script would: no terminal.
func sandkeeper(t *testing.T, args ...string) answer {
	t.Helper()
	return tool(t, "", append([]string{"--local", "--as", "tester"}, args...)...)
}

func tool(t *testing.T, input string, args ...string) answer {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(context.WithoutCancel(t.Context()), args, &console.Console{In: strings.NewReader(input), Out: &out, Err: &errs})
	if slices.Contains(args, "--json") {
		checkDocument(t, args, out.String())
	}
	return answer{code, out.String(), errs.String()}
}

// wants fails the test unless the tool exited so.
func (a answer) wants(t *testing.T, code int) answer {
	t.Helper()
	if a.code != code {
		t.Fatalf("exit code %d, want %d\nstdout: %s\nstderr: %s", a.code, code, a.out, a.err)
	}
	return a
}

// read runs the tool with --json and returns its document.
func read[V any](t *testing.T, code int, args ...string) V {
	t.Helper()
	a := sandkeeper(t, append(args, "--json")...).wants(t, code)
	var v V
	if err := json.Unmarshal([]byte(a.out), &v); err != nil {
		t.Fatalf("sandkeeper %v printed %q: %v", args, a.out, err)
	}
	return v
}

// agent is a run to begin: a real process in a task of its own.
type agent struct {
	tenant  core.TenantID // "": one of its own
	run     core.RunID
	thread  core.ThreadID // "": of its own, called after the run
	shell   string
	reclaim core.ReclaimKind
	stays   bool // the host stays attached
}

// lives is an agent that goes on for longer than any test.
const lives = `echo begun; exec sleep 3600`

// begin is a host that starts a run up to its agent. At the test's end what is left of
// it is ended by the tool.
func (w *world) begin(t *testing.T, a agent) core.Run {
	t.Helper()
	if a.tenant == "" {
		a.tenant = core.TenantID(rand.Text())
	}
	r, err := w.host.Start(t.Context(), core.RunRequest{
		RunKey: core.RunKey{Tenant: a.tenant, Run: a.run}, Thread: cmp.Or(a.thread, core.ThreadID(a.run)), HostNonce: "host", Definition: "cli", Reclaim: a.reclaim, Checkpoint: core.CheckpointNone,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.end(t, r.RunKey) })
	m := core.KeyMaterial{Provider: ecstask.Provider, Definition: r.Definition, Tenant: r.Tenant, Thread: r.Thread}
	if r, err = w.host.Launch(t.Context(), r, m, w.Spec()); err != nil {
		t.Fatal(err)
	}
	if _, err = coretest.StartAgent(t.Context(), &w.host, r, core.JournalStart{Shell: a.shell}, nil); err != nil {
		t.Fatal(err)
	}
	if a.stays {
		return r
	}
	if r, err = w.runs.Update(t.Context(), r.RunKey, core.Detach{Epoch: r.Epoch, Now: core.MillisOf(time.Now())}); err != nil {
		t.Fatal(err)
	}
	return r
}

// wrote waits until text is in the run's journal.
func (w *world) wrote(t *testing.T, r core.Run, text string) {
	t.Helper()
	eventually(t, "the journal of "+r.RunKey.String()+" holds "+text, func() bool {
		task, err := w.fargate.Task(r.TaskARN)
		if err != nil {
			t.Fatal(err)
		}
		journals, err := filepath.Glob(filepath.Join(task.Containers[0].JournalDir, "*"+core.DefaultJournal.Ext))
		if err != nil || len(journals) != 1 {
			return false
		}
		journal, err := os.ReadFile(journals[0])
		return err == nil && bytes.Contains(journal, []byte(text))
	})
}

// exited waits until the run's wrapper has written its sentinel.
func (w *world) exited(t *testing.T, r core.Run) {
	t.Helper()
	w.wrote(t, r, r.Nonce)
}

func (w *world) read(t *testing.T, key core.RunKey) core.Run {
	t.Helper()
	r, err := w.runs.Run(context.WithoutCancel(t.Context()), key)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// end ends what is left of a run: its hold goes, its agent is killed, its task stopped.
func (w *world) end(t *testing.T, key core.RunKey) {
	r := w.read(t, key)
	ctx := context.WithoutCancel(t.Context())
	if r.Hold.Until != 0 {
		if _, err := w.runs.Update(ctx, key, core.SetHold{}); err != nil && !core.Refused(err) {
			t.Error(err)
		}
	}
	if _, err := core.RequestCancelOf(ctx, w.runs, key); err != nil && !core.Refused(err) {
		t.Error(err)
	}
	eventually(t, "nothing is left of "+key.String(), func() bool {
		if now := w.read(t, key); now.Status.Terminal() && now.Row == core.RowNone {
			return w.closed(t, now)
		}
		w.hasten(t, key)
		payload, err := json.Marshal(core.SweepRequest{Runs: []core.RunKey{key}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.lambda.Invoke(ctx, &lambda.InvokeInput{FunctionName: new(w.out[names.OutReapFunction]), Payload: payload}); err != nil {
			t.Fatal(err)
		}
		return false
	})
}

// closed reports whether the ledger has seen the end of a run's task.
func (w *world) closed(t *testing.T, r core.Run) bool {
	t.Helper()
	if r.Instance == "" {
		return true
	}
	row, err := w.boxes.Row(context.WithoutCancel(t.Context()), r.Instance)
	if err != nil {
		t.Fatal(err)
	}
	return row.State == core.LedgerClosed
}

// hasten makes a due run due now.
func (w *world) hasten(t *testing.T, key core.RunKey) {
	t.Helper()
	_, err := w.db.UpdateItem(context.WithoutCancel(t.Context()), &dynamodb.UpdateItemInput{
		TableName: new(w.out[names.OutRunsTable]), Key: item{
			names.PK.Name: &dynamotypes.AttributeValueMemberS{Value: core.KeyToken(string(key.Tenant)) + "#" + core.KeyToken(string(key.Run))},
			names.SK.Name: &dynamotypes.AttributeValueMemberS{Value: "run"},
		},
		UpdateExpression: new("SET dueAt = :now"), ConditionExpression: new("attribute_exists(dueShard)"),
		ExpressionAttributeValues: item{":now": &dynamotypes.AttributeValueMemberN{Value: "1"}},
	})
	if _, ok := errors.AsType[*dynamotypes.ConditionalCheckFailedException](err); err != nil && !ok {
		t.Fatal(err)
	}
}

type item = map[string]dynamotypes.AttributeValue

// scan is everything that the tables hold.
func (w *world) scan(t *testing.T) map[string]item {
	t.Helper()
	all := map[string]item{}
	for _, output := range []names.Output{names.OutRunsTable, names.OutSandboxesTable, names.OutCheckpoints} {
		pages := dynamodb.NewScanPaginator(w.db, &dynamodb.ScanInput{TableName: new(w.out[output]), ConsistentRead: new(true)})
		for pages.HasMorePages() {
			page, err := pages.NextPage(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, it := range page.Items {
				pk, sk := it[names.PK.Name].(*dynamotypes.AttributeValueMemberS), it[names.SK.Name].(*dynamotypes.AttributeValueMemberS)
				if !strings.HasPrefix(pk.Value, "budget#") { // a probe takes its token, in a plan too
					all[string(output)+" "+pk.Value+" "+sk.Value] = it
				}
			}
		}
	}
	return all
}

// unchanged runs something that must write nothing.
func (w *world) unchanged(t *testing.T, do func()) {
	t.Helper()
	before := w.scan(t)
	do()
	after := w.scan(t)
	for k, it := range before {
		if !reflect.DeepEqual(it, after[k]) {
			t.Errorf("%s changed from %v to %v", k, it, after[k])
		}
	}
	for k := range after {
		if before[k] == nil {
			t.Errorf("%s was put", k)
		}
	}
}
