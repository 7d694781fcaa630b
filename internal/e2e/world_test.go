package e2e_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	dynamotypes "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/core/coretest"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// agent is a run to begin: a real process in a task of its own.
type agent struct {
	tenant  core.TenantID // "": one of its own
	run     core.RunID
	thread  core.ThreadID // "": named as the run
	shell   string        // text for sh -c
	input   []byte        // stdin; nil: none
	ttl     int64         // seconds after the detach; 0: the installation's
	reclaim core.ReclaimKind
	onLapse core.OnLapse
	left    time.Duration // how long ago its viewer left; 0: now
	// stays says that the host stays attached, for attachment after its start; 0:
	// the default.
	stays      bool
	attachment time.Duration
	checkpoint core.CheckpointPolicy // "": none, since most tests are about something else
	tools      []core.ToolBinding
}

// lives is an agent that goes on for longer than any test.
const lives = `echo begun; exec sleep 3600`

// prints is an agent that writes exactly data and exits.
func (in *installation) prints(t *testing.T, data []byte, exit int) string {
	t.Helper()
	path := filepath.Join(in.dir, rand.Text())
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("cat %s; exit %d", path, exit)
}

// begin is a host that starts a run up to its agent, and detaches unless told
// otherwise. At the test's end what is left of it is ended by the installation's own
// means.
func (in *installation) begin(t *testing.T, a agent) core.Run {
	t.Helper()
	return in.beginAll(t, []agent{a})[0]
}

// hosts is how many hosts start their runs at a time.
const hosts = 6

// beginAll begins each agent and returns the runs in the same order.
func (in *installation) beginAll(t *testing.T, agents []agent) []core.Run {
	t.Helper()
	runs, errs := make([]core.Run, len(agents)), make([]error, len(agents))
	var wg sync.WaitGroup
	for first := range hosts {
		wg.Go(func() {
			for i := first; i < len(agents); i += hosts {
				runs[i], errs[i] = in.start(t, agents[i])
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return runs
}

func (in *installation) start(t *testing.T, a agent) (core.Run, error) {
	r, err := in.starting(t, a)
	if err != nil {
		return core.Run{}, err
	}
	if r, err = in.launched(t, r, a.shell, a.input); err != nil || a.stays {
		return r, err
	}
	return in.runs.Update(t.Context(), r.RunKey, core.Detach{Epoch: r.Epoch, Now: core.MillisOf(time.Now()).Add(-a.left)})
}

// starting puts the run's record.
func (in *installation) starting(t *testing.T, a agent) (core.Run, error) {
	if a.tenant == "" {
		a.tenant = core.TenantID(rand.Text())
	}
	host := in.host
	if a.attachment > 0 {
		host.Limits.Attachment = a.attachment
	}
	r, err := host.Start(t.Context(), core.RunRequest{
		RunKey: core.RunKey{Tenant: a.tenant, Run: a.run}, Thread: cmp.Or(a.thread, core.ThreadID(a.run)),
		HostNonce: "host", Definition: "e2e", TTLSeconds: a.ttl, Reclaim: a.reclaim, OnLapse: a.onLapse,
		Checkpoint: cmp.Or(a.checkpoint, core.CheckpointNone), Tools: a.tools,
	})
	if err != nil {
		return core.Run{}, err
	}
	t.Cleanup(func() { in.end(t, r.RunKey) })
	return r, nil
}

// launched gives the run a task, and its agent.
func (in *installation) launched(t *testing.T, r core.Run, shell string, input []byte) (core.Run, error) {
	host := in.host
	m := core.KeyMaterial{Provider: "fargate", Definition: r.Definition, Tenant: r.Tenant, Thread: r.Thread}
	r, err := host.Launch(t.Context(), r, m, in.Spec())
	if err != nil {
		return core.Run{}, err
	}
	_, err = coretest.StartAgent(t.Context(), &host, r, core.JournalStart{Shell: shell}, input)
	return r, err
}

const (
	waitMost = 5 * time.Minute
	waitStep = 100 * time.Millisecond
)

// await asks until the answer is yes, and fails the test if it never is.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(contextOf(t), waitMost)
	defer cancel()
	tick := time.NewTicker(waitStep)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within %s", what, waitMost)
		}
	}
}

// sweepUntil lets the schedule tick until the answer is yes.
func (in *installation) sweepUntil(t *testing.T, what string, is func(core.SweepReport) bool) {
	t.Helper()
	tick := event(t, "reap-tick.json")
	await(t, what, func() bool { return is(in.reap(t, tick)) })
}

// seen lets the schedule tick until a sweep knows how it is with a run: on a busy machine a
// sandbox may not answer in time, and is asked again.
func (in *installation) seen(t *testing.T, key core.RunKey) core.RunReport {
	t.Helper()
	var e *core.RunReport
	in.sweepUntil(t, "look at "+key.String(), func(report core.SweepReport) bool {
		e = entry(report, key)
		return e != nil && e.Outcome != core.Unknown
	})
	return *e
}

// event is a sample event of a trigger.
func event(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "events", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// functionError is how a function failed.
type functionError struct {
	ErrorMessage string `json:"errorMessage"`
	ErrorType    string `json:"errorType"`
}

func (e *functionError) Error() string { return e.ErrorMessage }

// invoke calls a function as its trigger does, and waits for its answer.
func (in *installation) invoke(function string, payload []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), waitMost)
	defer cancel()
	out, err := in.functions.Invoke(ctx, &lambda.InvokeInput{FunctionName: &function, Payload: payload})
	if err != nil {
		return nil, fmt.Errorf("invoke %s: %w", function, err)
	}
	if out.FunctionError == nil {
		return out.Payload, nil
	}
	var failed functionError
	if err := json.Unmarshal(out.Payload, &failed); err != nil {
		return nil, fmt.Errorf("invoke %s: read error %s: %w", function, out.Payload, err)
	}
	return nil, &failed
}

// reap invokes the reap function, which must not fail.
func (in *installation) reap(t *testing.T, payload []byte) core.SweepReport {
	t.Helper()
	report, err := in.tryReap(in.out[names.OutReapFunction], payload)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func (in *installation) tryReap(function string, payload []byte) (core.SweepReport, error) {
	answer, err := in.invoke(function, payload)
	if err != nil {
		return core.SweepReport{}, err
	}
	var report core.SweepReport
	if err := json.Unmarshal(answer, &report); err != nil {
		return core.SweepReport{}, fmt.Errorf("read sweep report %s: %w", answer, err)
	}
	return report, nil
}

// entry is what a report says of one run; nil if nothing.
func entry(report core.SweepReport, key core.RunKey) *core.RunReport {
	for _, e := range report.Runs {
		if e.RunKey == key {
			return &e
		}
	}
	return nil
}

func (in *installation) run(t *testing.T, key core.RunKey) core.Run {
	t.Helper()
	r, err := in.runs.Run(contextOf(t), key)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// ledger is the row of a run's task; the zero row if there is none.
func (in *installation) ledger(t *testing.T, r core.Run) core.LedgerRow {
	t.Helper()
	row, err := in.boxes.Row(contextOf(t), r.Instance)
	if err != nil && !errors.Is(err, core.ErrNotFound) {
		t.Fatal(err)
	}
	return row
}

// exited waits until the run's wrapper has written its sentinel.
func (in *installation) exited(t *testing.T, r core.Run) {
	t.Helper()
	in.wrote(t, r, r.Nonce)
}

// wrote waits until text is in the run's journal.
func (in *installation) wrote(t *testing.T, r core.Run, text string) {
	t.Helper()
	await(t, "journal of "+r.RunKey.String(), func() bool {
		task, err := in.fargate.Task(r.TaskARN)
		if err != nil {
			t.Fatal(err)
		}
		journals, err := filepath.Glob(filepath.Join(task.Containers[0].JournalDir, "*"+core.DefaultJournal.Ext))
		if err != nil || len(journals) > 1 {
			t.Fatalf("run %s: want one journal, got %q: %v", r.RunKey, journals, err)
		}
		if len(journals) == 0 {
			return false
		}
		journal, err := os.ReadFile(journals[0])
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Contains(journal, []byte(text))
	})
}

// settled reports whether nothing of the run is left that could cost money or be
// looked at again.
func (in *installation) settled(t *testing.T, key core.RunKey) bool {
	t.Helper()
	r := in.run(t, key)
	if !r.Status.Terminal() || r.Row != core.RowNone {
		return false
	}
	row := in.ledger(t, r)
	return row.Instance == "" || row.State == core.LedgerClosed
}

// settle waits until the run has ended and its task is gone, without any tick, and
// returns the record.
func (in *installation) settle(t *testing.T, key core.RunKey) core.Run {
	t.Helper()
	await(t, "settle "+key.String(), func() bool { return in.settled(t, key) })
	r := in.run(t, key)
	task, err := in.fargate.Task(r.TaskARN)
	if err != nil {
		t.Fatal(err)
	}
	if task.LastStatus != "STOPPED" {
		t.Errorf("run %s: its ledger row is closed and its task is %s", key, task.LastStatus)
	}
	for _, c := range task.Containers {
		if len(c.Processes) > 0 {
			t.Errorf("run %s: task STOPPED, and %+v runs", key, c.Processes)
		}
	}
	return r
}

// end has a run that a test left behind ended as a user's cancel would.
func (in *installation) end(t *testing.T, key core.RunKey) {
	ctx := contextOf(t)
	in.sweepUntil(t, "end what is left of "+key.String(), func(core.SweepReport) bool {
		r := in.run(t, key)
		if in.settled(t, key) {
			return true
		}
		if _, err := core.RequestCancelOf(ctx, in.runs, key); err != nil && !core.Refused(err) {
			t.Fatal(err)
		}
		in.hasten(t, runItem(in, key), boxItem(in, r), rowItem(in, r))
		return false
	})
}

// saved is the transcript as the stores have it.
func (in *installation) saved(t *testing.T, key core.RunKey) []byte {
	t.Helper()
	data, err := core.ReadLog(t.Context(), in.runs, in.blobs, key)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// checkTranscript compares stores and record with what the agent wrote.
func (in *installation) checkTranscript(t *testing.T, r core.Run, wrote []byte) {
	t.Helper()
	saved := in.saved(t, r.RunKey)
	if !bytes.Equal(saved, wrote) {
		t.Errorf("run %.40s: saved %d bytes %.60q, the agent wrote %d bytes %.60q", r.RunKey, len(saved), saved, len(wrote), wrote)
	}
	sum := sha256.Sum256(wrote)
	want := core.Transcript{Bytes: int64(len(wrote)), SHA256: hex.EncodeToString(sum[:]), Complete: true}
	if r.Transcript == nil || *r.Transcript != want {
		t.Errorf("run %.40s: transcript %+v, want %+v", r.RunKey, r.Transcript, want)
	}
}

// place is an item in a table.
type place struct{ table, pk, sk string }

func runItem(in *installation, key core.RunKey) place {
	return place{in.out[names.OutRunsTable], core.KeyToken(string(key.Tenant)) + "#" + core.KeyToken(string(key.Run)), "run"}
}

func boxItem(in *installation, r core.Run) place {
	return place{in.out[names.OutSandboxesTable], "key#" + string(r.SandboxKey), "sandbox"}
}

func rowItem(in *installation, r core.Run) place {
	return place{in.out[names.OutSandboxesTable], "task#" + string(r.Instance), "row"}
}

type item = map[string]dynamotypes.AttributeValue

func (p place) key() item {
	return item{
		names.PK.Name: &dynamotypes.AttributeValueMemberS{Value: p.pk},
		names.SK.Name: &dynamotypes.AttributeValueMemberS{Value: p.sk},
	}
}

// item reads an item as it is stored.
func (in *installation) item(t *testing.T, p place) item {
	t.Helper()
	out, err := in.db.GetItem(t.Context(), &dynamodb.GetItemInput{TableName: &p.table, Key: p.key(), ConsistentRead: new(true)})
	if err != nil {
		t.Fatal(err)
	}
	return out.Item
}

func (in *installation) items(t *testing.T, places []place) []item {
	t.Helper()
	var all []item
	for _, p := range places {
		all = append(all, in.item(t, p))
	}
	return all
}

// hasten makes what is due later due now, where something is; no test waits for
// half an hour.
func (in *installation) hasten(t *testing.T, places ...place) {
	t.Helper()
	in.due(t, time.Now(), "dueAt > :at", places)
}

// delay makes what is due soon due in an hour, so that it is not yet due when a slow test
// looks at it.
func (in *installation) delay(t *testing.T, places ...place) {
	t.Helper()
	in.due(t, time.Now().Add(time.Hour), "dueAt < :at", places)
}

func (in *installation) due(t *testing.T, at time.Time, needs string, places []place) {
	t.Helper()
	for _, p := range places {
		_, err := in.db.UpdateItem(contextOf(t), &dynamodb.UpdateItemInput{
			TableName: &p.table, Key: p.key(), UpdateExpression: new("SET dueAt = :at"),
			ConditionExpression:       new("attribute_exists(dueShard) AND " + needs),
			ExpressionAttributeValues: item{":at": &dynamotypes.AttributeValueMemberN{Value: strconv.FormatInt(at.UnixMilli(), 10)}},
		})
		if _, ok := errors.AsType[*dynamotypes.ConditionalCheckFailedException](err); err != nil && !ok {
			t.Fatal(err)
		}
	}
}

// scan is everything that the tables hold.
func (in *installation) scan(t *testing.T) map[place]item {
	t.Helper()
	all := map[place]item{}
	for _, output := range []names.Output{names.OutRunsTable, names.OutSandboxesTable, names.OutCheckpoints} {
		table := in.out[output]
		pages := dynamodb.NewScanPaginator(in.db, &dynamodb.ScanInput{TableName: &table, ConsistentRead: new(true)})
		for pages.HasMorePages() {
			page, err := pages.NextPage(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, it := range page.Items {
				pk, sk := it[names.PK.Name].(*dynamotypes.AttributeValueMemberS), it[names.SK.Name].(*dynamotypes.AttributeValueMemberS)
				all[place{table, pk.Value, sk.Value}] = it
			}
		}
	}
	return all
}

// rested is scan once nothing changes any more: a run may have ended in an earlier test, and
// its sandbox after that.
func (in *installation) rested(t *testing.T) map[place]item {
	t.Helper()
	in.drained(t)
	all, alike := in.scan(t), 0
	await(t, "the installation rests", func() bool {
		now := in.scan(t)
		if alike++; !reflect.DeepEqual(all, now) {
			alike = 0
		}
		all = now
		return alike == 5
	})
	return all
}

// checkUnchanged compares two scans.
func checkUnchanged(t *testing.T, what string, before, after map[place]item) {
	t.Helper()
	for p, it := range before {
		if !reflect.DeepEqual(it, after[p]) {
			t.Errorf("%s changed %+v from %v to %v", what, p, it, after[p])
		}
	}
	for p := range after {
		if before[p] == nil {
			t.Errorf("%s put %+v", what, p)
		}
	}
}

// inWork is what a file in a task's working directory holds; "" where there is none.
func (in *installation) inWork(t *testing.T, arn, name string) string {
	t.Helper()
	task, err := in.fargate.Task(arn)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(task.Containers[0].WorkDir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(data)
}

func (in *installation) putWork(t *testing.T, arn, name, text string) {
	t.Helper()
	task, err := in.fargate.Task(arn)
	if err == nil {
		err = os.WriteFile(filepath.Join(task.Containers[0].WorkDir, name), []byte(text), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// contextOf is a context for what may run in a test's clean-up too.
func contextOf(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }
