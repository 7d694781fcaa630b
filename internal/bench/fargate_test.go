package bench_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/ecs/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
	"github.com/sandkeeper/sandkeeper/internal/ecstask"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// site is a local Fargate with the functions' own adapters before it, and stores in
// memory beside it. Its time is real.
type site struct {
	dir    string
	server *localfargate.Server
	ecs    *ecs.Client
	exec   *ecsexec.Executor
	tasks  *ecstask.Tasks
	store  *mem.Store
	limits core.Limits
}

const (
	family    = "sandbox"
	container = "agent"
)

// newSite starts local Fargate with a definition whose container begins the agents
// before it settles down to be stopped.
func newSite(t *testing.T, agents []core.JournalStart, alter func(*localfargate.Options)) *site {
	t.Helper()
	s := &site{dir: t.TempDir(), store: mem.New(t), limits: core.DefaultLimits}
	// Tasks may run as another user.
	if err := os.Chmod(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	habits := localfargate.RealHabits()
	// Launches are not what is measured.
	habits.Visible, habits.Provision, habits.AgentStart, habits.AgentConnect = 0, 0, 0, 0
	options := localfargate.Options{Dir: filepath.Join(s.dir, "fargate"), Habits: habits, Visible: []string{s.dir}}
	alter(&options)
	server, err := localfargate.New(options)
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	keys := credentials.NewStaticCredentialsProvider("test", "test", "")
	s.server = server
	s.ecs = ecs.New(ecs.Options{BaseEndpoint: new(server.URL()), Region: "us-east-1", Credentials: keys})
	s.exec = &ecsexec.Executor{ECS: s.ecs, Credentials: keys, Region: "us-east-1"}
	s.tasks = &ecstask.Tasks{ECS: s.ecs}
	s.define(t, agents)
	return s
}

// define registers the tasks' definition: a shell that runs the agents' start
// scripts, as a host would by ECS Exec, and then waits for SIGTERM.
func (s *site) define(t *testing.T, agents []core.JournalStart) {
	t.Helper()
	var main strings.Builder
	for i, agent := range agents {
		script, err := core.DefaultJournal.StartScript(agent)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(s.dir, fmt.Sprintf("start-%d.sh", i))
		if err := os.WriteFile(path, []byte(script), 0o644); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&main, "/bin/sh %s </dev/null >/dev/null\n", path)
	}
	main.WriteString("trap 'exit 0' TERM\nwhile :; do sleep 3600 & wait $!; done")
	_, err := s.ecs.RegisterTaskDefinition(t.Context(), &ecs.RegisterTaskDefinitionInput{
		Family: new(family), ContainerDefinitions: []types.ContainerDefinition{{
			Name: new(container), Command: []string{"/bin/sh", "-c", main.String()},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// launch runs n tasks, at the pace that ECS allows.
func (s *site) launch(t *testing.T, n int) []string {
	t.Helper()
	var arns []string
	for len(arns) < n {
		out, err := s.ecs.RunTask(t.Context(), &ecs.RunTaskInput{
			Cluster: new("default"), TaskDefinition: new(family), Count: new(int32(min(10, n-len(arns)))), EnableExecuteCommand: true,
		})
		if throttled, ok := errors.AsType[interface {
			error
			ErrorCode() string
		}](err); ok && throttled.ErrorCode() == "ThrottlingException" {
			continue // the client has waited before it gave up
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range out.Tasks {
			arns = append(arns, *task.TaskArn)
		}
	}
	return arns
}

// await waits until each task has that many journals that hold text.
func (s *site) await(t *testing.T, arns []string, journals int, text string) {
	t.Helper()
	for _, arn := range arns {
		await(t, "journals in "+arn, func() bool {
			task, err := s.server.Task(arn)
			if err != nil {
				t.Fatal(err)
			}
			names, err := filepath.Glob(filepath.Join(task.Containers[0].JournalDir, "*"+core.DefaultJournal.Ext))
			if err != nil {
				t.Fatal(err)
			}
			found := 0
			for _, name := range names {
				data, err := os.ReadFile(name)
				if err == nil && bytes.Contains(data, []byte(text)) {
					found++
				}
			}
			return found == journals
		})
	}
}

// connected waits until the exec agent of each task can be reached.
func (s *site) connected(t *testing.T, arns []string) {
	t.Helper()
	for _, arn := range arns {
		await(t, "exec agent of "+arn, func() bool {
			out, err := s.ecs.DescribeTasks(t.Context(), &ecs.DescribeTasksInput{Tasks: []string{arn}})
			if err != nil || len(out.Tasks) != 1 {
				return false
			}
			agents := out.Tasks[0].Containers[0].ManagedAgents
			return len(agents) == 1 && *agents[0].LastStatus == "RUNNING"
		})
	}
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: waited in vain", what)
		}
	}
}

// detached puts a run whose viewer has left, in a task that runs.
func (s *site) detached(key core.RunKey, arn, nonce string, since time.Time) {
	r := core.Run{
		RunKey: key, Thread: core.ThreadID(key.Run), Status: core.Running, StartedAt: core.MillisOf(since), Provider: ecstask.Provider,
		Definition: family, Instance: core.InstanceID(key.String()), TaskARN: arn, Cluster: "default", Container: container,
		Row: core.RowDetached, DetachedSince: core.MillisOf(since), Epoch: 1, ClaimNonce: "host", Nonce: nonce,
	}
	r.SandboxKey = core.KeyMaterial{Provider: r.Provider, Definition: r.Definition, Tenant: r.Tenant, Thread: r.Thread}.Key()
	s.store.SeedLaunched(r)
}

// Call is the probe function, reached in JSON.
func (s *site) Call(ctx context.Context, call core.ProbeCall) (core.ProbeAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, s.limits.ProbeTimeout)
	defer cancel()
	payload, err := json.Marshal(call)
	if err != nil {
		return core.ProbeAnswer{}, err
	}
	if call, err = core.DecodeProbeCall(payload); err != nil {
		return core.ProbeAnswer{}, err
	}
	return core.ServeProbe(ctx, &core.JournalProber{Exec: s.exec, Sandboxes: s.store, Format: core.DefaultJournal, Limits: s.limits}, call)
}

func (s *site) tick(ctx context.Context) (core.SweepReport, error) {
	p := s.store
	sweep := &core.Sweep{
		Runs: p, Index: p, Log: &core.LogWriter{Log: p, Blobs: p, Inline: s.limits.InlineSegment}, Sandboxes: p, Ledger: p, Due: p,
		Tasks: s.tasks, Prober: core.RemoteProber{Caller: s}, Queue: p, Controls: p, Breaker: p, Notes: p, Cursors: p, Budget: p,
		Limits: s.limits, Install: "bench", Provider: ecstask.Provider, Cluster: "default", Logger: slog.New(slog.DiscardHandler),
	}
	return sweep.Run(ctx, core.SweepRequest{})
}

// tokensPerRun counts what finished runs cost of the ECS bucket, from the sweep that
// finds them to the stop of their tasks.
func tokensPerRun(t *testing.T, _ int) []figure {
	const runs, size = 20, 60_000
	nonce := core.NewJournalNonce()
	agent := core.JournalStart{Run: "run", Nonce: nonce, Shell: fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", size)}
	s := newSite(t, []core.JournalStart{agent}, func(o *localfargate.Options) { o.Throttle.Off = true })
	arns := s.launch(t, runs)
	s.await(t, arns, 1, nonce)
	s.connected(t, arns)
	for i, arn := range arns {
		s.detached(core.RunKey{Tenant: core.TenantID(fmt.Sprint("t", i)), Run: "run"}, arn, nonce, time.Now())
	}
	before := s.server.Metrics().Calls
	reclaimer := &core.Reclaimer{
		Runs: s.store, Sandboxes: s.store, Ledger: s.store, Transactions: s.store, Tasks: s.tasks, Stopper: s.tasks, Controls: s.store,
		Breaker: s.store, Checkpoints: mem.NoCheckpoints{}, Provider: ecstask.Provider, Limits: s.limits,
	}
	for done := 0; done < runs; {
		report, err := s.tick(t.Context())
		if err != nil || report.Outcomes[core.Finalized]+report.Outcomes[core.Unknown] == 0 {
			t.Fatalf("%+v, %v", report.Outcomes, err)
		}
		done += report.Outcomes[core.Finalized]
	}
	for _, job := range s.store.TakeJobs() {
		if outcome, err := reclaimer.Do(t.Context(), job); err != nil || outcome != core.ReclaimDestroyed {
			t.Fatalf("reclaim: %s, %v", outcome, err)
		}
	}
	for key, r := range s.store.State().Runs {
		if r.Status != core.Completed || r.Transcript.Bytes != size || !r.Transcript.Complete {
			t.Fatalf("run %s: %s with %+v", key, r.Status, r.Transcript)
		}
	}
	after := s.server.Metrics().Calls
	spent := 0
	for _, operation := range []string{"ExecuteCommand", "StopTask", "RunTask", "StartTask"} {
		spent += after[operation] - before[operation]
	}
	return []figure{{Name: "ECS tokens per finished run with a journal of 60 kB", Value: float64(spent) / runs, Unit: "tokens", Goal: "<= 2",
		how: fmt.Sprintf("local Fargate: %d ExecuteCommand and %d StopTask for %d runs",
			after["ExecuteCommand"]-before["ExecuteCommand"], after["StopTask"]-before["StopTask"], runs)}}
}

// lossySessions asks for answers of 64 KiB over links that lose every tenth frame in
// each direction, up to three times.
func lossySessions(t *testing.T, _ int) []figure {
	const questions, tasks, loss = 200, 25, 0.1
	s := newSite(t, nil, func(o *localfargate.Options) {
		o.Throttle.Off = true
		o.Faults = localfargate.Faults{LossToClient: loss, LossToAgent: loss, Seed: 1} // each session draws its own
	})
	arns := s.launch(t, tasks)
	s.connected(t, arns)
	began := time.Now()
	var all tally
	var wg sync.WaitGroup
	for first, arn := range arns { // one session at a time in a container
		wg.Go(func() {
			for q := first; q < questions; q += tasks {
				all.add(s.ask(t.Context(), arn, 1000*(q+1)))
			}
		})
	}
	wg.Wait()
	how := fmt.Sprintf("local Fargate: %d questions in %d sessions, 10 %% of the frames lost each way, %.0f s", questions, all.sessions, time.Since(began).Seconds())
	return []figure{
		{Name: "64 KiB answers that came in at most 3 tries", Value: 100 * float64(all.answered) / questions, Unit: "%", Goal: ">= 95", how: how},
		{Name: "64 KiB answers that were wrong", Value: float64(all.wrong), Unit: "answers", Goal: "= 0"},
	}
}

// tally is what became of questions.
type tally struct {
	mu                        sync.Mutex
	answered, wrong, sessions int
}

func (a *tally) add(answered, wrong bool, sessions int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sessions += sessions
	if answered {
		a.answered++
	}
	if wrong {
		a.wrong++
	}
}

// ask wants the numbers from one on, up to three times.
func (s *site) ask(ctx context.Context, arn string, from int) (answered, wrong bool, sessions int) {
	const tries, size = 3, 64 << 10
	target := core.ExecTarget{Cluster: "default", TaskARN: arn, Container: container}
	script := fmt.Sprintf("seq %d 1000000 | head -c %d", from, size)
	for n := range tries {
		got, err := s.exec.Exec(ctx, target, script, nil)
		if err == nil {
			return true, got.Exit != 0 || !bytes.Equal(got.Stdout, sequence(from, size)), n + 1
		}
	}
	return false, false, tries
}

// sequence is what seq prints from a number on, cut off.
func sequence(from, size int) []byte {
	var b bytes.Buffer
	for n := from; b.Len() < size; n++ {
		fmt.Fprintln(&b, n)
	}
	return b.Bytes()[:size]
}

// bucketShare sweeps twice, a minute apart, over more runs than a minute has tokens
// for, against the account's real bucket.
func bucketShare(t *testing.T, _ int) []figure {
	const runs, tasks, minutes = 2000, 200, 2
	nonce := core.NewJournalNonce()
	agent := core.JournalStart{Run: "run", Nonce: nonce, Shell: "echo begun; exec sleep 3600"}
	s := newSite(t, []core.JournalStart{agent}, func(*localfargate.Options) {})
	arns := s.launch(t, tasks)
	s.await(t, arns, 1, "begun")
	s.connected(t, arns)
	for i := range runs { // runs of one task are far apart: a container takes one session at a time
		key := core.RunKey{Tenant: core.TenantID(fmt.Sprintf("t%04d", i)), Run: agent.Run}
		s.detached(key, arns[i%tasks], nonce, time.Now().Add(time.Duration(i-runs)*time.Millisecond))
	}
	before := s.server.Metrics()
	start := time.Now()
	answered, surfaced := map[core.RunKey]bool{}, 0
	for n := range minutes {
		pause(t, time.Until(start.Add(time.Duration(n)*time.Minute)))
		report, err := s.tick(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range report.Runs {
			switch {
			case e.Outcome == core.Producing:
				answered[e.RunKey] = true
			case e.Reason == "throttled":
				surfaced++
			case e.Reason != "unexamined":
				t.Logf("run %s: %s: %s", e.RunKey, e.Outcome, e.Reason)
			}
		}
	}
	after := s.server.Metrics()
	used := after.Calls["ExecuteCommand"] - before.Calls["ExecuteCommand"]
	turned := after.Throttled["ExecuteCommand"] - before.Throttled["ExecuteCommand"]
	allowed := s.limits.ProbeRate * 60 * minutes
	how := fmt.Sprintf("local Fargate, real time and bucket: %d runs, ten to an agent, in %d tasks; %d of %g execs in %d minutes; %d calls turned away",
		runs, tasks, used-turned, allowed, minutes, turned)
	return []figure{
		{Name: "share of the policy's ECS tokens used while 2,000 runs wait", Value: 100 * float64(used-turned) / allowed, Unit: "%", Goal: ">= 90", how: how},
		{Name: "throttle errors that reached a report", Value: float64(surfaced), Unit: "errors", Goal: "= 0"},
		{Name: "runs answered within the first lap", Value: 100 * float64(len(answered)) / runs, Unit: "%", Goal: "= 100"},
	}
}

func pause(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}
