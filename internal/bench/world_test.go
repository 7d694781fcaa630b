package bench_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// delays is how long the calls of an installation take.
type delays struct {
	store  time.Duration // a request to DynamoDB, S3 or SQS
	ecs    time.Duration // DescribeTasks, StopTask
	exec   time.Duration // a whole session of ECS Exec
	invoke time.Duration // the way to the probe function and back
}

// each is an installation every call of which takes d.
func each(d time.Duration) delays { return delays{store: d, ecs: d, exec: d, invoke: d} }

// bucket is the one that ECS keeps for an account: a burst, and so many calls a
// second. A nil bucket lets everything through.
type bucket struct {
	burst, rate float64
	mu          sync.Mutex
	left        float64
	at          time.Time
	refused     int
}

func newBucket(burst, rate float64) *bucket {
	return &bucket{burst: burst, rate: rate, left: burst, at: time.Now()}
}

func (b *bucket) take() bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.left = min(b.burst, b.left+now.Sub(b.at).Seconds()*b.rate)
	b.at = now
	if b.left < 1 {
		b.refused++
		return false
	}
	b.left--
	return true
}

// world is an installation on a bubble's clock: the use cases as the functions have
// them, over stores in memory and an ECS that keeps nothing but who lives.
type world struct {
	store   *mem.Store
	process *mem.Process // its calls take as long as the delays say
	delays  delays
	limits  core.Limits
	bucket  *bucket
	answers answers
	logged  counter

	mu      sync.Mutex
	exits   map[string]time.Time // by task: when its agent ends; absent: never
	stopped map[string]time.Time // when StopTask was accepted
	probes  billed               // the probe function
	sweeps  billed               // the reap function
	reclaim billed
	execs   int
	stops   int
	reads   int // describe calls
}

// billed is what a function's invocations come to.
type billed struct {
	calls int
	time  time.Duration
}

func (b *billed) add(d time.Duration) { b.calls++; b.time += d }

// counter counts the bytes of a log.
type counter struct {
	mu    sync.Mutex
	bytes int
}

func (c *counter) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes += len(p)
	return len(p), nil
}

var _ io.Writer = (*counter)(nil)

func newWorld(t *testing.T, d delays, a answers) *world {
	w := &world{
		store: mem.New(t), delays: d, limits: core.DefaultLimits, answers: a,
		exits: map[string]time.Time{}, stopped: map[string]time.Time{},
	}
	w.process = w.store.NewProcess(mem.Faults{Before: func(context.Context, string) { time.Sleep(d.store) }})
	return w
}

// unlimited lifts what exists only for the account's bucket.
func (w *world) unlimited() *world {
	w.limits.ProbeRate = 1e6
	return w
}

const clusterName = "arn:aws:ecs:us-east-1:000000000000:cluster/bench"

// benchRun is the ith of the runs whose viewer has left.
func benchRun(i int, now core.Millis, nonce string) core.Run {
	r := core.Run{
		RunKey: core.RunKey{Tenant: "acme", Run: core.RunID(fmt.Sprintf("run-%05d", i))}, Thread: core.ThreadID(fmt.Sprintf("thread-%05d", i)),
		Status: core.Running, StartedAt: now, Provider: "fargate", Definition: "agent", Instance: core.InstanceID(fmt.Sprintf("INSTANCE%018d", i)),
		TaskARN: fmt.Sprintf("arn:aws:ecs:us-east-1:000000000000:task/bench/%032x", i), Cluster: clusterName, Container: container,
		Row: core.RowDetached, DetachedSince: now, Epoch: 1, ClaimNonce: "HOSTNONCEHOSTNONCEHOSTNONC", Nonce: nonce,
	}
	r.SandboxKey = materialOf(r).Key()
	return r
}

func materialOf(r core.Run) core.KeyMaterial {
	return core.KeyMaterial{Provider: r.Provider, Definition: r.Definition, Tenant: r.Tenant, Thread: r.Thread}
}

// detached puts the ith run, whose agent ends at exit, or never if that is zero.
func (w *world) detached(i int, exit time.Time) {
	r := benchRun(i, core.MillisOf(time.Now()), w.answers.nonce)
	w.store.SeedLaunched(r)
	if !exit.IsZero() {
		w.exits[r.TaskARN] = exit
	}
}

func (w *world) sweep() *core.Sweep {
	p := w.process
	return &core.Sweep{
		Runs: p, Index: p, Log: &core.LogWriter{Log: p, Blobs: p, Inline: w.limits.InlineSegment}, Sandboxes: p, Ledger: p, Due: p,
		Tasks: w, Prober: core.RemoteProber{Caller: w}, Queue: p, Controls: p, Breaker: p, Notes: p, Cursors: p, Budget: p,
		Limits: w.limits, Install: "bench", Provider: "fargate", Cluster: clusterName, Logger: slog.New(slog.NewJSONHandler(&w.logged, nil)),
	}
}

// tick is one scheduled sweep.
func (w *world) tick(t *testing.T) core.SweepReport {
	t.Helper()
	began := time.Now()
	report, err := w.sweep().Run(t.Context(), core.SweepRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sweeps.add(time.Since(began))
	return report
}

// Call is the probe function: its own code, reached and answered in JSON.
func (w *world) Call(ctx context.Context, call core.ProbeCall) (core.ProbeAnswer, error) {
	time.Sleep(w.delays.invoke)
	payload, err := json.Marshal(call)
	if err != nil {
		return core.ProbeAnswer{}, err
	}
	if call, err = core.DecodeProbeCall(payload); err != nil {
		return core.ProbeAnswer{}, err
	}
	prober := &core.JournalProber{Exec: w, Sandboxes: w.process, Format: core.DefaultJournal, Limits: w.limits}
	began := time.Now()
	answer, err := core.ServeProbe(ctx, prober, call)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.probes.add(time.Since(began))
	return answer, err
}

// Exec stands in for a session: it answers what a real sandbox answered, see
// [record].
func (w *world) Exec(_ context.Context, target core.ExecTarget, _ string, _ []byte) (core.ExecResult, error) {
	if !w.bucket.take() {
		return core.ExecResult{}, &core.ExecError{Target: target, Healing: core.Retry, Reason: "throttled"}
	}
	w.mu.Lock()
	w.execs++
	exit, ends := w.exits[target.TaskARN]
	w.mu.Unlock()
	over := ends && !time.Now().Before(exit)
	time.Sleep(w.delays.exec)
	if over {
		return core.ExecResult{Stdout: w.answers.finished}, nil
	}
	return core.ExecResult{Stdout: w.answers.producing}, nil
}

// Describe answers for each ARN.
func (w *world) Describe(_ context.Context, _ string, arns []string) ([]core.Task, error) {
	time.Sleep(w.delays.ecs)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads++
	tasks := make([]core.Task, len(arns))
	for i, arn := range arns {
		tasks[i] = core.Task{ARN: arn, Life: core.TaskLives}
		if _, ok := w.stopped[arn]; ok {
			tasks[i].Life = core.TaskGone
		}
	}
	return tasks, nil
}

// StartedBy finds nothing: no launch of the bench is lost.
func (w *world) StartedBy(context.Context, string, string) ([]string, error) { return nil, nil }

// Stop accepts the stop of a task.
func (w *world) Stop(_ context.Context, _, arn, _ string) (core.Task, error) {
	time.Sleep(w.delays.ecs)
	if !w.bucket.take() {
		return core.Task{}, fmt.Errorf("stop task %s: throttled", arn)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stops++
	if _, ok := w.stopped[arn]; !ok {
		w.stopped[arn] = time.Now()
	}
	return core.Task{ARN: arn, Life: core.TaskGone}, nil
}

// How the queue's messages reach reclaim: as the stack has it.
const (
	reclaimBatch   = 10
	reclaimWorkers = 5
	reclaimPoll    = time.Second // at most, from a message until a poller has it
)

// reclaiming is the reclaim function behind its queue, until the end of ctx.
func (w *world) reclaiming(ctx context.Context, wg *sync.WaitGroup) {
	jobs := make(chan []core.ReclaimJob, 100_000)
	for range reclaimWorkers {
		wg.Go(func() {
			for batch := range jobs {
				w.reclaimBatch(ctx, batch)
			}
		})
	}
	wg.Go(func() {
		defer close(jobs)
		tick := time.NewTicker(reclaimPoll)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for taken := w.store.TakeJobs(); len(taken) > 0; {
				n := min(reclaimBatch, len(taken))
				jobs <- taken[:n]
				taken = taken[n:]
			}
		}
	})
}

// reclaimBatch is one invocation. What fails is left to its mark, as if the queue
// had given up.
func (w *world) reclaimBatch(ctx context.Context, batch []core.ReclaimJob) {
	p := w.process
	c := &core.Reclaimer{
		Runs: p, Sandboxes: p, Ledger: p, Transactions: p, Tasks: w, Stopper: w, Controls: p, Breaker: p,
		Checkpoints: mem.NoCheckpoints{}, Provider: "fargate", Limits: w.limits,
	}
	began := time.Now()
	for _, job := range batch {
		_, _ = c.Do(ctx, job)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reclaim.add(time.Since(began))
}
