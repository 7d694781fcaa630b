package bench_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/ebout"
	"github.com/sandkeeper/sandkeeper/internal/ecstask"
	"github.com/sandkeeper/sandkeeper/internal/mem"
	"github.com/sandkeeper/sandkeeper/internal/s3blob"
	"github.com/sandkeeper/sandkeeper/internal/sqsout"
)

// List prices of us-east-1 in dollars, arm64.
const (
	priceRead     = 0.125e-6   // DynamoDB on demand, a read unit
	priceWrite    = 0.625e-6   // a write unit
	priceGBSecond = 13.3334e-6 // Lambda
	priceInvoke   = 0.20e-6    // Lambda, a request
	priceSQS      = 0.40e-6    // a request
	pricePut      = 5e-6       // S3
	priceEvent    = 1e-6       // EventBridge, an event of one's own
	priceLogByte  = 0.50 / 1e9 // CloudWatch, taken in
)

// Memory of the functions in GB, as the stack sets it.
const (
	reapGB    = 0.5
	probeGB   = 0.5
	reclaimGB = 0.25
)

// bill is what some runs cost, for each service.
type bill struct{ dynamo, lambda, others, logs float64 }

func (b bill) sum() float64 { return b.dynamo + b.lambda + b.others + b.logs }

func (b bill) parts() string {
	total := b.sum()
	return fmt.Sprintf("Lambda %.0f %%, DynamoDB %.0f %%, S3, SQS and events %.0f %%, logs %.0f %%; Fargate itself left out",
		100*b.lambda/total, 100*b.dynamo/total, 100*b.others/total, 100*b.logs/total)
}

// cost prices what is counted: requests and their units from the functions' adapters
// against a stand-in of the account, durations of the functions on a bubble's clock
// with likely delays, a sweep over 1,000 runs.
func cost(t *testing.T, scale int) []figure {
	small, large := record(t, turn()), record(t, []byte(strings.Repeat(string(turn()), 30)))
	runs := 1000 / scale
	examined := priced(t, small, runs, false)
	finished := priced(t, small, runs, true)
	stored := priced(t, large, runs, true)
	return []figure{
		{Name: "list price of a million examined runs", Value: 1e6 * examined.sum(), Unit: "$", how: examined.parts()},
		{Name: fmt.Sprintf("list price of a million finished runs, %d kB of journal each", len(small.journal)/1000), Value: 1e6 * finished.sum(), Unit: "$", how: finished.parts()},
		{Name: fmt.Sprintf("list price of a million finished runs, %d kB of journal each", len(large.journal)/1000), Value: 1e6 * stored.sum(), Unit: "$", how: stored.parts()},
	}
}

// priced is what one run costs: to be examined while it works, or to be found over,
// saved, closed and stopped.
func priced(t *testing.T, a answers, runs int, over bool) bill {
	t.Helper()
	b := requests(t, a, min(runs, 100), over)
	w := durations(t, a, runs, over)
	n := float64(runs)
	b.lambda = (reapGB*w.sweeps.time.Seconds() + probeGB*w.probes.time.Seconds() + reclaimGB*w.reclaim.time.Seconds()) * priceGBSecond / n
	b.lambda += float64(w.sweeps.calls+w.probes.calls+w.reclaim.calls) * priceInvoke / n
	b.logs = float64(w.logged.bytes) * priceLogByte / n
	return b
}

// durations is a sweep, and what follows from it, with likely delays.
func durations(t *testing.T, a answers, runs int, over bool) (w *world) {
	synctest.Test(t, func(t *testing.T) {
		w = newWorld(t, likely, a)
		exit := time.Time{}
		if over {
			exit = time.Now()
		}
		for i := range runs {
			w.detached(i, exit)
		}
		w.everyMinute(t, 1)
		if w.execs != runs || over && w.stops != runs {
			t.Fatalf("%d execs and %d stops for %d runs", w.execs, w.stops, runs)
		}
	})
	return w
}

// requests is the same through the functions' own adapters, charged as AWS counts.
func requests(t *testing.T, a answers, runs int, over bool) bill {
	t.Helper()
	acc := newAccount(t, nil)
	use := newUseCases(acc, a, over)
	for i := range runs {
		if err := use.begin(t.Context(), benchRun(i, core.MillisOf(time.Now()), a.nonce)); err != nil {
			t.Fatal(err)
		}
	}
	acc.units, acc.calls = units{}, map[string]int{}
	report, err := use.sweep.Run(t.Context(), core.SweepRequest{})
	want := map[bool]core.Outcome{false: core.Producing, true: core.Finalized}[over]
	if err != nil || report.Outcomes[want] != runs {
		t.Fatalf("%v, %v", report.Outcomes, err)
	}
	for _, job := range use.jobs {
		if outcome, err := use.reclaim.Do(t.Context(), job); err != nil || outcome != core.ReclaimDestroyed {
			t.Fatalf("%s, %v", outcome, err)
		}
	}
	n := float64(runs)
	// A message is sent by itself, received and deleted in batches of ten.
	queue := float64(acc.calls["SendMessageBatch"]) * (1 + 2.0/reclaimBatch)
	return bill{
		dynamo: (acc.units.read*priceRead + acc.units.write*priceWrite) / n,
		others: (float64(acc.calls["PutObject"])*pricePut + queue*priceSQS + float64(len(use.jobs))*priceEvent) / n,
	}
}

// useCases are reap and reclaim as their functions make them, before an account.
type useCases struct {
	runs    *ddb.Runs
	boxes   *ddb.Sandboxes
	both    *ddb.Transactions
	sweep   *core.Sweep
	reclaim *core.Reclaimer
	prober  *core.JournalProber
	queue   *sqsout.Queue
	answer  []byte
	jobs    []core.ReclaimJob
}

func newUseCases(acc *account, a answers, over bool) *useCases {
	cfg := aws.Config{
		Region: "us-east-1", BaseEndpoint: &acc.URL,
		Credentials: aws.NewCredentialsCache(credentials.NewStaticCredentialsProvider("test", "test", "")),
	}
	db, limits := acc.dynamo(), core.DefaultLimits
	limits.ProbeRate, limits.SweepWidth = 1e6, 1 // one at a time: nothing is charged for a conflict
	u := &useCases{
		runs: ddb.NewRuns(db, "bench"), boxes: ddb.NewSandboxes(db, "bench"), both: ddb.NewTransactions(db, "bench", "bench"),
		queue: sqsout.New(sqs.NewFromConfig(cfg), acc.URL+"/000000000000/bench"), answer: a.producing,
	}
	if over {
		u.answer = a.finished
	}
	tasks := &ecstask.Tasks{ECS: ecs.NewFromConfig(cfg)}
	blobs := s3blob.New(s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle = true }), "bench")
	u.prober = &core.JournalProber{Exec: u, Sandboxes: u.boxes, Format: core.DefaultJournal, Limits: limits}
	u.sweep = &core.Sweep{
		Runs: u.runs, Index: u.runs, Notes: u.runs, Log: &core.LogWriter{Log: u.runs, Blobs: blobs, Inline: limits.InlineSegment, Retention: limits.Retention},
		Sandboxes: u.boxes, Ledger: u.boxes, Due: u.boxes, Breaker: u.boxes, Cursors: u.boxes, Budget: u.boxes, Controls: u.boxes,
		Tasks: tasks, Prober: core.RemoteProber{Caller: u}, Queue: u, Announcer: ebout.New(eventbridge.NewFromConfig(cfg), "bench"),
		Install: "bench", Provider: ecstask.Provider, Cluster: clusterName, Limits: limits, Logger: slog.New(slog.DiscardHandler),
	}
	u.reclaim = &core.Reclaimer{
		Runs: u.runs, Sandboxes: u.boxes, Ledger: u.boxes, Transactions: u.both, Tasks: tasks, Stopper: tasks, Controls: u.boxes,
		Breaker: u.boxes, Checkpoints: mem.NoCheckpoints{}, Provider: ecstask.Provider, Limits: limits,
	}
	return u
}

// begin takes a run from its start to its detach, as a host does.
func (u *useCases) begin(ctx context.Context, r core.Run) error {
	box := core.Sandbox{
		Key: r.SandboxKey, Material: materialOf(r), Instance: r.Instance, TaskARN: r.TaskARN, Cluster: r.Cluster, Container: r.Container,
		LatestRun: r.RunKey.Run, CreatedAt: r.StartedAt, UpdatedAt: r.StartedAt,
	}
	row := core.LedgerRow{
		Instance: r.Instance, Key: r.SandboxKey, Provider: r.Provider, Tenant: r.Tenant, Run: r.RunKey.Run, State: core.LedgerIntent,
		LaunchUntil: r.StartedAt.Add(time.Minute), DueAt: r.StartedAt.Add(time.Minute), Cluster: r.Cluster, UpdatedAt: r.StartedAt,
	}
	attached := r
	attached.TaskARN, attached.Cluster, attached.Container = "", "", ""
	attached.Row, attached.DueAt, attached.DetachedSince, attached.AttachedUntil = core.RowLapse, r.StartedAt.Add(time.Minute), 0, r.StartedAt.Add(time.Minute)
	if _, err := u.runs.Create(ctx, attached); err != nil {
		return err
	}
	if _, err := u.boxes.PutIntent(ctx, row); err != nil {
		return err
	}
	if err := u.both.Launch(ctx, core.Launched{Run: r.RunKey, Epoch: r.Epoch, Sandbox: box, Now: r.StartedAt}); err != nil {
		return err
	}
	_, err := u.runs.Update(ctx, r.RunKey, core.Detach{Epoch: r.Epoch, Now: r.DetachedSince})
	return err
}

// Call is the probe function.
func (u *useCases) Call(ctx context.Context, call core.ProbeCall) (core.ProbeAnswer, error) {
	payload, err := json.Marshal(call)
	if err != nil {
		return core.ProbeAnswer{}, err
	}
	if call, err = core.DecodeProbeCall(payload); err != nil {
		return core.ProbeAnswer{}, err
	}
	return core.ServeProbe(ctx, u.prober, call)
}

// Exec stands in for a session.
func (u *useCases) Exec(context.Context, core.ExecTarget, string, []byte) (core.ExecResult, error) {
	return core.ExecResult{Stdout: u.answer}, nil
}

// Send sends reclaim messages, and keeps them for reclaim.
func (u *useCases) Send(ctx context.Context, jobs []core.ReclaimJob) error {
	u.jobs = append(u.jobs, jobs...)
	return u.queue.Send(ctx, jobs)
}
