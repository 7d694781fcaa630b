package bench_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go/middleware"

	"github.com/sandkeeper/sandkeeper/internal/archive"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/ebout"
	"github.com/sandkeeper/sandkeeper/internal/ecstask"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/engine/enginetest"
	"github.com/sandkeeper/sandkeeper/internal/lambdacheckpoint"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/s3blob"
	"github.com/sandkeeper/sandkeeper/internal/side"
	"github.com/sandkeeper/sandkeeper/internal/sqsout"
	"github.com/sandkeeper/sandkeeper/internal/toolwire"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
)

// What the price of a run is for.
const (
	priceGet      = 0.4e-6 // S3, a read
	priceSchedule = 1e-6   // EventBridge Scheduler, an invocation
	logOfCall     = 1000   // bytes of log, of an invocation

	ofRun     = 30 * time.Minute
	leaving   = time.Second      // after its agent has begun, a run's host
	ofTask    = 30 * time.Second // until a task runs, with its agent of ECS Exec
	hostPause = time.Second      // between two calls of a start, as the client has it,
	taskPause = 3 * time.Second  // and while it waits for the task
	sweeps    = 30
	together  = 1000 // runs that share a sweep
	inTree    = 500  // files of the workspace
)

// runPrice prices one run from its start to the end of its sandbox: the use cases of the
// functions, with their own adapters before a local engine, invocation by invocation.
func runPrice(t *testing.T, _ int) []figure {
	p := newPriced(t)
	starts := p.start(t)
	pieces := spoolPieces(t)
	before := p.bill().sum()
	p.spool(t, pieces)
	piece := (p.bill().sum() - before) / float64(pieces)
	p.end(t)
	examined := priced(t, record(t, turn()), together, false)
	p.count("Scheduler Invocation", 1) // of sweeps that many share; more than its share
	b := p.bill()
	b.dynamo += sweeps * examined.dynamo
	b.lambda += sweeps * examined.lambda
	b.others += sweeps * examined.others
	b.logs += sweeps * examined.logs
	poll := functionGB["session"]*core.MaxTailWait.Seconds()*priceGBSecond + priceInvoke
	return []figure{{
		Name: "list price of a run of 30 minutes, detached for 29", Value: b.sum(), Unit: "$", Goal: "<= 0.0003",
		how: fmt.Sprintf("%d calls of start, detach, %d pieces of spool, %d sweeps that %d runs share at $%.7f, nudge, finish, checkpoint of %d files, reclaim; %s; "+
			"assumed: %v a request, %v an exec session, %v the way to a function, %d bytes of log a call; %s; a host that stays pays $%.7f for each piece more, one in 2 s, and $%.5f for each long poll of %v",
			starts, pieces, sweeps, together, examined.sum(), inTree, p.counted(), likely.store, likely.exec, likely.invoke, logOfCall, b.parts(), piece, poll, core.MaxTailWait),
	}}
}

// pricedRun is the installation of one run: stores of the engine, and an ECS of which nothing
// costs anything but time.
type pricedRun struct {
	*invoice
	key      core.RunKey
	session  *core.Session
	bridge   *core.Bridge
	sweep    *core.Sweep
	reclaim  *core.Reclaimer
	keeper   *core.Keeper
	prober   *core.JournalProber
	queue    *sqsout.Queue
	answers  answers
	jobs     []core.ReclaimJob
	job      core.AgentJob // of the checkpoint
	running  bool          // the task
	stopped  bool
	bearer   string
	nudges   int
	finished bool
}

func newPriced(t *testing.T) *pricedRun {
	t.Helper()
	e := enginetest.Shared(t)
	cfg := e.Config()
	p := &pricedRun{
		invoice: newInvoice(dynamodb.NewFromConfig(cfg)), key: core.RunKey{Tenant: "acme", Run: "priced"},
		answers: record(t, bytes.Repeat(turn(), 30)),
	}
	bucket, queue := "priced-run", "priced-run"
	for _, table := range names.Tables {
		if err := engine.CreateTable(t.Context(), p.looks, "priced-"+table.Name, table); err != nil {
			t.Fatal(err)
		}
	}
	objects := s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle = true })
	if _, err := objects.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &bucket}); err != nil {
		t.Fatal(err)
	}
	made, err := sqs.NewFromConfig(cfg).CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: &queue})
	if err != nil {
		t.Fatal(err)
	}
	cfg.APIOptions = append(cfg.APIOptions, func(s *middleware.Stack) error { return p.instrument(s) })
	db := dynamodb.NewFromConfig(cfg)
	blobs := s3blob.NewObjects(s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle = true }), bucket)
	p.queue = sqsout.New(sqs.NewFromConfig(cfg), *made.QueueUrl)
	p.wire(db, blobs, ebout.New(eventbridge.NewFromConfig(cfg), "default"))
	return p
}

// wire makes the use cases as the functions do.
func (p *pricedRun) wire(db *dynamodb.Client, blobs *s3blob.Objects, events *ebout.Bus) {
	limits := core.DefaultLimits
	runs, boxes := ddb.NewRuns(db, "priced-runs"), ddb.NewSandboxes(db, "priced-sandboxes")
	both, threads := ddb.NewTransactions(db, "priced-runs", "priced-sandboxes"), ddb.NewThreads(db, "priced-checkpoints")
	log := &core.LogWriter{Log: runs, Blobs: blobs, Inline: limits.InlineSegment, Retention: limits.Retention}
	checkpoint := &lambdacheckpoint.Caller{Lambda: checkpointFunction{p}, Function: "checkpoint", Timeout: limits.CaptureCall}
	tasks := pricedTasks{p}
	p.prober = &core.JournalProber{Exec: tasks, Sandboxes: boxes, Format: core.DefaultJournal, Limits: limits}
	p.keeper = &core.Keeper{
		Threads: threads, Objects: blobs, Blobs: blobs, Manifests: archive.Reader{}, Sandboxes: boxes, Controls: boxes, Runs: runs, History: ddb.NewHistory(db, "priced-runs"), Agents: pricedJobs{p}, URL: p, Queue: p,
	}
	p.session = &core.Session{
		Launcher: &core.Launcher{
			Runs: runs, Sandboxes: boxes, Ledger: boxes, Transactions: both, Describer: tasks, Queue: p,
			Provider: core.TaskProvider{TaskAPI: tasks, AgentStarter: p}, Threads: threads, Announcer: events, Limits: limits, Install: "bench",
		},
		Binds: both, Controls: boxes, Notes: runs, Definitions: boxes, Log: log, Spool: blobs, Grants: blobs, Nudger: p, Prober: p.prober,
		Keeper: lambdacheckpoint.Keeper{Caller: checkpoint}, ToolsURL: p, Checkpoint: core.CheckpointFinished, Provider: ecstask.Provider, Cluster: clusterName,
	}
	p.bridge = &core.Bridge{Runs: runs, Quotas: runs, Grants: blobs, Nudger: p, Limits: limits}
	p.sweep = &core.Sweep{
		Runs: runs, Index: runs, Notes: runs, Log: log, Sandboxes: boxes, Ledger: boxes, Due: boxes, Breaker: boxes, Cursors: boxes, Budget: boxes,
		Controls: boxes, Tasks: tasks, Prober: core.RemoteProber{Caller: p}, Spool: blobs, Queue: p, Announcer: events, Checkpoint: core.CheckpointFinished,
		Install: "bench", Provider: ecstask.Provider, Cluster: clusterName, Limits: limits, Logger: slog.New(slog.DiscardHandler),
	}
	p.reclaim = &core.Reclaimer{
		Runs: runs, Sandboxes: boxes, Ledger: boxes, Transactions: both, Tasks: tasks, Stopper: tasks, Controls: boxes, Breaker: boxes,
		Threads: threads, Checkpoints: checkpoint, Announcer: events, Provider: ecstask.Provider, Limits: limits,
	}
}

// start begins the run as a host does that asks until its agent has begun, renews, and
// leaves.
func (p *pricedRun) start(t *testing.T) (calls int) {
	t.Helper()
	q := core.StartRequest{
		RunKey: p.key, Thread: "priced", Host: "host-of-the-bench", Agent: core.AgentPlan{Shell: "true"},
		Definition: &core.Definition{Name: "bench", Version: 1, DestroyOnComplete: true, Task: core.TaskTemplate{
			TaskDefinition: "priced", Container: container, Subnets: []string{"subnet-bench"},
		}},
	}
	var since time.Duration
	for ; ; calls++ {
		p.running = since >= ofTask
		var report core.StartReport
		took, err := p.invoke("session", func() (err error) {
			report, err = p.session.Start(t.Context(), q)
			return err
		})
		if err != nil || calls > 100 {
			t.Fatalf("start: %v after %d calls, %s", err, calls, report.Waiting)
		}
		if report.State == core.Ready {
			calls++
			break
		}
		since += took + likely.invoke + map[bool]time.Duration{false: hostPause, true: taskPause}[report.Waiting == "task"]
	}
	host := core.HostRequest{RunKey: p.key, Host: q.Host}
	for _, do := range []func(context.Context, core.HostRequest) (core.RenewReport, error){p.session.Renew, p.session.Detach} {
		if _, err := p.invoke("session", func() error { _, err := do(t.Context(), host); return err }); err != nil {
			t.Fatal(err)
		}
	}
	return calls
}

// spoolPieces is how many pieces a companion makes of a journal to which a line a second
// is written, in a run whose host leaves.
func spoolPieces(t *testing.T) (n int) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		journal := filepath.Join(dir, "journal")
		line := bytes.Repeat([]byte("x"), 30*len(turn())/int(ofRun.Seconds()))
		line[len(line)-1] = '\n'
		f, err := os.Create(journal)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		began, end := time.Now(), make(chan int64, 1)
		go func() {
			size := 0
			for time.Since(began) < ofRun-ofTask {
				n, err := f.Write(line)
				if err != nil {
					t.Error(err)
				}
				size += n
				time.Sleep(time.Second)
			}
			end <- int64(size)
		}()
		pusher := side.Pusher{
			Journal: journal, State: filepath.Join(dir, "state"), Follow: filepath.Join(dir, "follow"), Client: &http.Client{Transport: taken{}},
			Grants: func(context.Context, []toolwire.Piece) (toolwire.SpoolAnswer, error) {
				n++
				return toolwire.SpoolAnswer{Watched: time.Since(began) < leaving, Grants: []toolwire.Grant{{URL: "http://store.invalid/"}}}, nil
			},
			Log: slog.New(slog.DiscardHandler),
		}
		if err := pusher.Run(t.Context(), end); err != nil {
			t.Fatal(err)
		}
	})
	return n
}

// taken is a store that takes everything.
type taken struct{}

func (taken) RoundTrip(r *http.Request) (*http.Response, error) {
	_, err := io.Copy(io.Discard, r.Body)
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, err
}

// spool has so many pieces stored.
func (p *pricedRun) spool(t *testing.T, pieces int) {
	t.Helper()
	for i := range pieces {
		_, err := p.invoke("tools", func() error {
			agent, err := p.bridge.Admit(t.Context(), p.bearer)
			if err != nil {
				return err
			}
			piece := core.SpoolPiece{From: int64(i) * 100, End: int64(i)*100 + 100, SHA256: fmt.Sprintf("%064x", i)}
			_, err = p.bridge.Spool(t.Context(), agent, []core.SpoolPiece{piece})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		p.count("S3 PutObject", 1) // the sandbox's own, under the grant
	}
}

// end lets the agent end and say so, and has all that comes of it done.
func (p *pricedRun) end(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	p.finished = true
	p.must(t, "tools", func() error {
		agent, err := p.bridge.Admit(ctx, p.bearer)
		if err != nil {
			return err
		}
		return p.bridge.Ended(ctx, agent)
	})
	if p.nudges != 1 {
		t.Fatalf("%d nudges", p.nudges)
	}
	p.must(t, "reap", func() error { _, err := p.sweep.Nudged(ctx, p.key); return err })
	if outcome := p.reclaimed(t); outcome != core.ReclaimCapturing {
		t.Fatalf("reclaim: %s before the checkpoint", outcome)
	}
	p.count("SQS ChangeMessageVisibility", 1)
	p.capture(t)
	if outcome := p.reclaimed(t); outcome != core.ReclaimDestroyed || !p.stopped {
		t.Fatalf("reclaim: %s after the checkpoint", outcome)
	}
	r, err := p.session.Launcher.Runs.Run(ctx, p.key)
	if err != nil || r.Status != core.Completed || r.Checkpoint.State != core.CheckpointDone || r.Transcript.Bytes != int64(len(p.answers.journal)) {
		t.Fatalf("ended as %+v, %v", r, err)
	}
	stopped := core.StoppedTask{ARN: r.TaskARN, StartedBy: core.StartedBy("bench", r.Instance), At: core.MillisOf(time.Now())}
	p.must(t, "reap", func() error { _, err := p.sweep.TaskStopped(ctx, stopped); return err })
	for len(p.jobs) > 0 {
		p.reclaimed(t)
	}
}

func (p *pricedRun) must(t *testing.T, function string, do func() error) {
	t.Helper()
	if _, err := p.invoke(function, do); err != nil {
		t.Fatalf("%s: %v", function, err)
	}
}

// reclaimed has the next message done: it is received and deleted.
func (p *pricedRun) reclaimed(t *testing.T) (outcome core.ReclaimOutcome) {
	t.Helper()
	if len(p.jobs) == 0 {
		t.Fatal("no message to reclaim")
	}
	job := p.jobs[0]
	p.jobs = p.jobs[1:]
	p.count("SQS ReceiveMessage", 1)
	p.count("SQS DeleteMessage", 1)
	p.must(t, "reclaim", func() (err error) {
		outcome, err = p.reclaim.Do(t.Context(), job)
		return err
	})
	return outcome
}

// capture is the agent in the sandbox: every call of it is one of the function's URL.
func (p *pricedRun) capture(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for i := range inTree {
		if err := writeSmall(dir, i); err != nil {
			t.Fatal(err)
		}
	}
	p.must(t, "checkpoint", func() error { _, err := p.keeper.Parent(t.Context(), p.job.Token); return err })
	made, err := workspace.Capture(t.Context(), workspace.CaptureOptions{Root: dir, Store: pricedStore{p}, ID: string(p.job.ID), Policy: everything})
	if err != nil {
		t.Fatal(err)
	}
	root, err := manifest.EncodeRoot(made.Root)
	if err != nil {
		t.Fatal(err)
	}
	p.must(t, "checkpoint", func() error { _, err := p.keeper.CommitRoot(t.Context(), p.job.Token, root); return err })
}

// pricedStore is where that agent stores.
type pricedStore struct{ p *pricedRun }

// Put asks for a grant, and stores under it.
func (s pricedStore) Put(ctx context.Context, o workspace.Object) (ref manifest.PackRef, err error) {
	var granted []core.PackGrant
	_, err = s.p.invoke("checkpoint", func() (err error) {
		granted, _, err = s.p.keeper.Grant(ctx, s.p.job.Token, []core.PackRef{{SHA256: o.SHA256.String(), Size: o.Size}})
		return err
	})
	if err != nil {
		return ref, err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPut, granted[0].Grant.URL, io.NewSectionReader(o.Body, 0, o.Size))
	if err != nil {
		return ref, err
	}
	q.ContentLength = o.Size
	for name, value := range granted[0].Grant.Header {
		q.Header.Set(name, value)
	}
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		return ref, err
	}
	defer answer.Body.Close()
	s.p.count("S3 PutObject", 1)
	if answer.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(answer.Body)
		return ref, fmt.Errorf("status %d: %.300s", answer.StatusCode, said)
	}
	return manifest.PackRef{Fence: granted[0].Pack.Fence, SHA256: o.SHA256, Size: o.Size}, nil
}

// Get is not asked for: a first capture has no parent.
func (pricedStore) Get(context.Context, manifest.PackRef, int64, []byte) error {
	return workspace.ErrNotStored
}

// Renew says that the work goes on.
func (s pricedStore) Renew(ctx context.Context, progress workspace.Progress) error {
	_, err := s.p.invoke("checkpoint", func() error {
		_, err := s.p.keeper.Renew(ctx, s.p.job.Token, progress.Files, progress.Bytes)
		return err
	})
	return err
}

// checkpointFunction is the function behind its API.
type checkpointFunction struct{ p *pricedRun }

func (f checkpointFunction) Invoke(ctx context.Context, in *lambda.InvokeInput, _ ...func(*lambda.Options)) (*lambda.InvokeOutput, error) {
	var q struct{ Save *core.SaveRequest }
	if err := json.Unmarshal(in.Payload, &q); err != nil || q.Save == nil {
		return nil, fmt.Errorf("want a save, got %.300s: %w", in.Payload, errors.Join(err))
	}
	var report core.StepReport
	_, err := f.p.invoke("checkpoint", func() (err error) {
		report, err = f.p.keeper.Save(ctx, *q.Save)
		return err
	})
	if err != nil {
		return nil, err
	}
	payload, err := json.Marshal(map[string]any{"save": report})
	return &lambda.InvokeOutput{Payload: payload}, err
}

// pricedTasks is ECS: nothing of it costs anything but time.
type pricedTasks struct{ p *pricedRun }

func (f pricedTasks) task(arn string) core.Task {
	life := core.TaskLives
	if f.p.stopped {
		life = core.TaskGone
	}
	agent := map[bool]string{false: "PENDING", true: "RUNNING"}[f.p.running]
	return core.Task{ARN: arn, Life: life, ExecEnabled: true, Agents: map[string]core.ExecAgent{container: {Status: agent}}}
}

func (f pricedTasks) Start(context.Context, core.TaskSpec) (string, error) {
	f.p.takes(likely.ecs)
	return "arn:aws:ecs:us-east-1:000000000000:task/bench/priced", nil
}

func (f pricedTasks) Describe(_ context.Context, _ string, arns []string) (all []core.Task, _ error) {
	f.p.takes(likely.ecs)
	for _, arn := range arns {
		all = append(all, f.task(arn))
	}
	return all, nil
}

func (pricedTasks) StartedBy(context.Context, string, string) ([]string, error) { return nil, nil }

func (f pricedTasks) Stop(_ context.Context, _, arn, _ string) (core.Task, error) {
	f.p.takes(likely.ecs)
	f.p.stopped = true
	return f.task(arn), nil
}

// Exec answers what a real sandbox answered whose agent had ended.
func (f pricedTasks) Exec(ctx context.Context, _ core.ExecTarget, _ string, _ []byte) (core.ExecResult, error) {
	f.p.takes(likely.exec)
	if !f.p.finished {
		return core.ExecResult{}, errors.New("no question was to be asked")
	}
	r, err := f.p.session.Launcher.Runs.Run(ctx, f.p.key)
	return core.ExecResult{Stdout: bytes.ReplaceAll(f.p.answers.finished, []byte(f.p.answers.nonce), []byte(r.Nonce))}, err
}

// StartAgent begins the agent once its task runs; before, ECS refuses.
func (p *pricedRun) StartAgent(_ context.Context, target core.ExecTarget, agent core.JournalStart, _ []byte) (core.JournalStarted, error) {
	if !p.running {
		p.takes(likely.ecs)
		return core.JournalStarted{}, &core.ExecError{Target: target, Healing: core.Retry, Reason: "task-not-running"}
	}
	p.takes(likely.exec)
	p.bearer = agent.Side.Bearer
	return core.JournalStarted{}, nil
}

// pricedJobs start the agents of checkpoints.
type pricedJobs struct{ p *pricedRun }

func (j pricedJobs) Start(_ context.Context, _ core.ExecTarget, job core.AgentJob) (core.AgentStarted, error) {
	j.p.takes(likely.exec)
	j.p.job = job
	return core.AgentBegan, nil
}

// AgentURL names no place: nothing here is reached by it.
func (p *pricedRun) AgentURL(context.Context) (url, host string, err error) {
	return "http://functions.invalid", "", nil
}

// Nudge is an invocation that nobody waits for.
func (p *pricedRun) Nudge(context.Context, core.RunKey) error {
	p.takes(likely.store)
	p.nudges++
	return nil
}

// Send sends messages, and keeps them for reclaim.
func (p *pricedRun) Send(ctx context.Context, jobs []core.ReclaimJob) error {
	p.jobs = append(p.jobs, jobs...)
	return p.queue.Send(ctx, jobs)
}

// Call is the probe function.
func (p *pricedRun) Call(ctx context.Context, call core.ProbeCall) (answer core.ProbeAnswer, err error) {
	_, err = p.invoke("probe", func() (err error) {
		answer, err = core.ServeProbe(ctx, p.prober, call)
		return err
	})
	return answer, err
}
