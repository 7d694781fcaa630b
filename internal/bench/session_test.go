package bench_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/ecs/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ecstask"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/localfargate/box"
	"github.com/sandkeeper/sandkeeper/internal/mem"
	"github.com/sandkeeper/sandkeeper/internal/toolwire"
)

// hosts are sessions before a local Fargate, with what their sandboxes reach: the tools
// function's use case behind a server of its own, and a store that takes grants.
type hosts struct {
	*site
	outside *httptest.Server
	bridge  *core.Bridge
	spools  bool
	holds   bool // hosts in process, that hold their sessions
	wg      sync.WaitGroup
	split   split
}

// split is how long sessions waited for ECS, part by part.
type split struct {
	mu       sync.Mutex
	describe time.Duration // DescribeTasks
	exec     time.Duration // sessions of ECS Exec, their call included
}

func (s *split) add(part *time.Duration, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*part += time.Since(since)
}

// timedExec and timedTasks note how long calls take.
type (
	timedExec  struct{ h *hosts }
	timedTasks struct {
		*ecstask.Tasks
		h *hosts
	}
)

func (e timedExec) Exec(ctx context.Context, target core.ExecTarget, script string, stdin []byte) (core.ExecResult, error) {
	defer e.h.split.add(&e.h.split.exec, time.Now())
	return e.h.exec.Exec(ctx, target, script, stdin)
}

func (d timedTasks) Describe(ctx context.Context, cluster string, arns []string) ([]core.Task, error) {
	defer d.h.split.add(&d.h.split.describe, time.Now())
	return d.Tasks.Describe(ctx, cluster, arns)
}

// newHosts starts a site whose sandboxes have the agent binary.
func newHosts(t *testing.T, spools bool) *hosts {
	t.Helper()
	h := &hosts{site: newSite(t, nil, func(o *localfargate.Options) { o.Throttle.Off = true }), spools: spools}
	agent := filepath.Join(h.dir, core.AgentName)
	c := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", agent, "./cmd/sandkeeper-agent")
	c.Dir, c.Env = filepath.Join("..", ".."), append(os.Environ(), "CGO_ENABLED=0")
	if said, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v: %.1000s", err, said)
	}
	_, err := h.ecs.RegisterTaskDefinition(t.Context(), &ecs.RegisterTaskDefinitionInput{
		Family: new("hosted"), ContainerDefinitions: []types.ContainerDefinition{{
			Name: new(container), Command: []string{"/bin/sh", "-c", "trap 'exit 0' TERM\nwhile :; do sleep 3600 & wait $!; done"},
			Environment: []types.KeyValuePair{{Name: new(core.AgentVariable), Value: &agent}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	h.outside = httptest.NewServer(h)
	t.Cleanup(func() {
		h.outside.Close()
		h.wg.Wait()
	})
	h.bridge = &core.Bridge{Runs: h.store, Quotas: h.store, Grants: h, Nudger: h, Limits: h.limits}
	return h
}

// AgentURL is where sandboxes reach the tools function.
func (h *hosts) AgentURL(context.Context) (url, host string, err error) {
	return h.outside.URL, "", nil
}

// GrantPut is a grant at this very server.
func (h *hosts) GrantPut(_ context.Context, key, _ string, _ int64, _ time.Duration) (core.Grant, error) {
	return core.Grant{URL: h.outside.URL + "/store/" + key}, nil
}

// Nudge is the invocation of reap as an event.
func (h *hosts) Nudge(_ context.Context, key core.RunKey) error {
	h.wg.Go(func() { _, _ = h.sweep().Nudged(context.Background(), key) })
	return nil
}

func (h *hosts) sweep() *core.Sweep {
	p := h.store
	return &core.Sweep{
		Runs: p, Index: p, Log: &core.LogWriter{Log: p, Blobs: p, Inline: h.limits.InlineSegment}, Spool: p, Sandboxes: p, Ledger: p, Due: p,
		Tasks: h.tasks, Prober: core.RemoteProber{Caller: h.site}, Queue: p, Controls: p, Breaker: p, Notes: p, Cursors: p, Budget: p,
		Limits: h.limits, Install: "bench", Provider: ecstask.Provider, Cluster: "default", Logger: slog.New(slog.DiscardHandler),
	}
}

func (h *hosts) session() *core.Session {
	p := h.store
	s := &core.Session{
		Launcher: &core.Launcher{
			Runs: p, Sandboxes: p, Ledger: p, Transactions: p, Describer: timedTasks{h.tasks, h}, Threads: p, Queue: p,
			Provider: core.TaskProvider{TaskAPI: timedTasks{h.tasks, h}, AgentStarter: core.JournalStarter{Exec: timedExec{h}, Format: core.DefaultJournal}}, Limits: h.limits, Install: "bench",
		},
		Binds: p, Controls: p, Notes: p, Log: &core.LogWriter{Log: p, Blobs: p, Inline: h.limits.InlineSegment}, Nudger: h,
		Prober:     &core.JournalProber{Exec: h.exec, Sandboxes: p, Format: core.DefaultJournal, Limits: h.limits},
		Checkpoint: core.CheckpointNone, Provider: ecstask.Provider, Cluster: "default",
	}
	if h.holds {
		s.Held = &core.JournalProber{Exec: h.exec, Sandboxes: p, Format: core.DefaultJournal, Limits: h.limits, Dialer: h.exec}
	}
	if h.spools {
		s.ToolsURL, s.Spool = h, p
	}
	return s
}

// ServeHTTP is the tools function, and the store that it grants rights at.
func (h *hosts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if key, ok := strings.CutPrefix(r.URL.Path, "/store/"); ok && err == nil {
		err = h.store.PutBlob(r.Context(), key, body)
	} else if err == nil {
		err = h.tool(w, r, body)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

func (h *hosts) tool(w http.ResponseWriter, r *http.Request, body []byte) error {
	agent, err := h.bridge.Admit(r.Context(), strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	if err != nil {
		return err
	}
	if r.URL.Path == toolwire.PathEnded {
		fmt.Fprint(w, "{}")
		return h.bridge.Ended(r.Context(), agent)
	}
	var q toolwire.SpoolRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return err
	}
	var pieces []core.SpoolPiece
	for _, p := range q.Pieces {
		pieces = append(pieces, core.SpoolPiece{From: p.From, End: p.From + p.Size, SHA256: p.SHA256})
	}
	leave, err := h.bridge.Spool(r.Context(), agent, pieces)
	if err != nil {
		return err
	}
	answer := toolwire.SpoolAnswer{Watched: leave.Watched}
	for i, g := range leave.Grants {
		answer.Grants = append(answer.Grants, toolwire.Grant{From: pieces[i].From, URL: g.URL, Headers: g.Header})
	}
	return json.NewEncoder(w).Encode(answer)
}

// hosted is a run of one of the hosts.
type hosted struct {
	h       *hosts
	key     core.RunKey
	host    string
	session *core.Session
}

// begin starts a run whose agent is a shell, and waits until it has begun.
func (h *hosts) begin(t *testing.T, run, thread, shell string) (hosted, core.StartReport) {
	t.Helper()
	r := hosted{h, core.RunKey{Tenant: "acme", Run: core.RunID(run)}, "host-of-the-bench-" + run, h.session()}
	q := core.StartRequest{
		RunKey: r.key, Thread: core.ThreadID(thread), Host: r.host, Agent: core.AgentPlan{Shell: shell},
		Definition: &core.Definition{Name: "bench", Version: 1, DestroyOnComplete: run == thread, Task: core.TaskTemplate{
			TaskDefinition: "hosted", Container: container, Subnets: []string{"subnet-bench"},
		}},
	}
	var report core.StartReport
	await(t, "start of "+run, func() bool {
		var err error
		report, err = r.session.Start(t.Context(), q)
		if err != nil {
			t.Errorf("start %s: %v", run, err)
			return true
		}
		return report.State == core.Ready
	})
	return r, report
}

// reclaiming is the reclaim function behind its queue, until the end of ctx.
func (h *hosts) reclaiming(ctx context.Context) {
	p := h.store
	c := &core.Reclaimer{
		Runs: p, Sandboxes: p, Ledger: p, Transactions: p, Tasks: h.tasks, Stopper: h.tasks, Controls: p, Breaker: p,
		Checkpoints: mem.NoCheckpoints{}, Provider: ecstask.Provider, Limits: h.limits,
	}
	h.wg.Go(func() {
		for waits(ctx, reclaimPoll) {
			for _, job := range p.TakeJobs() {
				_, _ = c.Do(ctx, job)
			}
		}
	})
}

func waits(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// nudged takes the time from an agent's last act until its task is STOPPED, with the nudge
// and without any sweep by the clock.
func nudged(t *testing.T, _ int) []figure {
	const runs, wide = 100, 5
	h := newHosts(t, true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h.reclaiming(ctx)
	took := make([]time.Duration, runs)
	var wg sync.WaitGroup
	for first := range wide {
		wg.Go(func() {
			for i := first; i < runs; i += wide {
				took[i] = h.nudgedRun(t, i)
			}
		})
	}
	wg.Wait()
	slices.Sort(took)
	return []figure{
		{Name: "exit to stopped with the nudge, p50 of 100 runs", Value: took[runs/2-1].Seconds(), Unit: "s"},
		{Name: "exit to stopped with the nudge, p99 of 100 runs", Value: took[runs*99/100-1].Seconds(), Unit: "s", Goal: "< 15",
			how: fmt.Sprintf("local Fargate, %d at a time, stores in memory, messages to reclaim taken each %v", wide, reclaimPoll)},
	}
}

// nudgedRun is one of them; its agent says when it ends, and a user wants it no more.
func (h *hosts) nudgedRun(t *testing.T, i int) time.Duration {
	name := fmt.Sprintf("nudged-%d", i)
	r, report := h.begin(t, name, name, "sleep 1; date +%s.%N")
	if _, err := r.session.Detach(t.Context(), core.HostRequest{RunKey: r.key, Host: r.host}); err != nil {
		t.Error(err)
		return 0
	}
	var stopped time.Time
	await(t, "stop of "+name, func() bool {
		task, err := h.server.Task(report.Run.TaskARN)
		if err != nil {
			t.Error(err)
			return true
		}
		stopped = task.StoppedAt
		return task.LastStatus == "STOPPED"
	})
	log, err := core.ReadLog(t.Context(), h.store, h.store, r.key)
	seconds, parse := strconv.ParseFloat(strings.TrimSpace(string(log)), 64)
	if err := cmp.Or(err, parse); err != nil {
		t.Error(err)
		return 0
	}
	return stopped.Sub(time.UnixMicro(int64(seconds * 1e6)))
}

// cancelled takes the time from a user's cancel until no process of the agent is left.
func cancelled(t *testing.T, _ int) []figure {
	h := newHosts(t, true)
	const wide = 10
	attached, gone := h.cancels(t, wide, true), h.cancels(t, 2*wide, false)
	return []figure{
		{Name: "cancel asked to agent dead, host attached, p99 of 100 runs", Value: attached.Seconds(), Unit: "s", Goal: "< 10",
			how: fmt.Sprintf("local Fargate, %d at a time: another's cancel, which the host's tail tells it", wide)},
		{Name: "cancel asked to agent dead, host gone, p99 of 100 runs", Value: gone.Seconds(), Unit: "s", Goal: "< 75",
			how: fmt.Sprintf("%d at a time: the host is silent, and still counted as attached; no sweep by the clock", 2*wide)},
	}
}

// cancels is the 99th percentile of 100 cancels, wide of them at a time.
func (h *hosts) cancels(t *testing.T, wide int, attached bool) time.Duration {
	const runs = 100
	took := make([]time.Duration, runs)
	var wg sync.WaitGroup
	for first := range wide {
		wg.Go(func() {
			for i := first; i < runs; i += wide {
				took[i] = h.cancelledRun(t, fmt.Sprintf("cancelled-%v-%d", attached, i), attached)
			}
		})
	}
	wg.Wait()
	slices.Sort(took)
	return took[runs*99/100-1]
}

func (h *hosts) cancelledRun(t *testing.T, name string, attached bool) time.Duration {
	r, report := h.begin(t, name, name, "echo begun; exec sleep 1234")
	var wg sync.WaitGroup
	defer wg.Wait()
	if attached {
		wg.Go(func() { r.attend(t) })
		waits(t.Context(), 3*time.Second) // it tails
	}
	asked := time.Now()
	if _, err := h.session().Cancel(t.Context(), core.CancelRequest{RunKey: r.key}); err != nil {
		t.Error(err)
		return 0
	}
	await(t, "end of "+name, func() bool {
		task, err := h.server.Task(report.Run.TaskARN)
		if err != nil {
			t.Error(err)
			return true
		}
		return !slices.ContainsFunc(task.Containers[0].Processes, func(p box.Process) bool {
			return strings.HasSuffix(p.Command, "sleep 1234")
		})
	})
	return time.Since(asked)
}

// attend is a host that follows its run, and ends it where it is told to.
func (r hosted) attend(t *testing.T) {
	var from int64
	for {
		report, err := r.session.Tail(t.Context(), core.TailRequest{RunKey: r.key, Host: r.host, From: from, WaitSeconds: 25})
		if err != nil {
			t.Error(err)
			return
		}
		from = report.Next
		if report.Run.CancelRequested != 0 {
			if _, err := r.session.Cancel(t.Context(), core.CancelRequest{RunKey: r.key, Host: r.host}); err != nil {
				t.Error(err)
			}
			return
		}
	}
}

// tailed counts what a minute of a chatty run costs a host that follows it, and what a
// start into a sandbox that is there.
func tailed(t *testing.T, _ int) []figure {
	var figures []figure
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, kind := range []struct{ spools, holds bool }{{spools: true}, {}, {holds: true}} {
		h := newHosts(t, kind.spools)
		h.holds = kind.holds
		wg.Go(func() {
			f := h.tailedMinute(t)
			mu.Lock()
			defer mu.Unlock()
			figures = append(figures, f...)
		})
	}
	wg.Wait()
	slices.SortFunc(figures, func(a, b figure) int { return cmp.Compare(a.Name, b.Name) })
	return figures
}

func (h *hosts) tailedMinute(t *testing.T) []figure {
	r, _ := h.begin(t, "chatty", "thread", `while :; do echo "a line of what it does"; sleep 0.2; done`)
	var from, bytes int64
	tail := func(until time.Time) {
		for time.Now().Before(until) {
			report, err := r.session.Tail(t.Context(), core.TailRequest{RunKey: r.key, Host: r.host, From: from, WaitSeconds: 25})
			if err != nil {
				t.Error(err)
				return
			}
			bytes, from = bytes+int64(len(report.Data)), report.Next
			if _, err := r.session.Renew(t.Context(), core.HostRequest{RunKey: r.key, Host: r.host}); err != nil {
				t.Error(err)
				return
			}
		}
	}
	begun := h.server.Metrics().Calls["ExecuteCommand"]
	tail(time.Now().Add(10 * time.Second)) // it is under way
	before, began := h.server.Metrics().Calls["ExecuteCommand"], time.Now()
	bytes = 0
	tail(began.Add(2 * time.Minute))
	tokens := float64(h.server.Metrics().Calls["ExecuteCommand"]-before) / time.Since(began).Minutes()
	how := fmt.Sprintf("local Fargate, 5 lines a second, %d bytes seen in %.0f s", bytes, time.Since(began).Seconds())
	switch {
	case h.holds:
		opened := before - begun
		tokens += float64(opened) / (18 * time.Minute).Minutes()
		return []figure{{Name: "ECS exec tokens per live-tailed minute in process, without the spool", Value: tokens, Unit: "tokens", Goal: "<= 0.1",
			how: fmt.Sprintf("%s; %d sessions opened before, of which each is held for 18 minutes", how, opened)}}
	case !h.spools:
		return []figure{{Name: "ECS exec tokens per live-tailed minute, without the spool", Value: tokens, Unit: "tokens", Goal: "<= 4", how: how}}
	}
	figures := []figure{{Name: "ECS exec tokens per live-tailed minute, with the spool", Value: tokens, Unit: "tokens", Goal: "= 0", how: how}}
	return append(figures, h.resumed(t)...)
}

// resumed starts the second turn of a thread.
func (h *hosts) resumed(t *testing.T) []figure {
	first, _ := h.begin(t, "first", "warm", "echo done")
	await(t, "finish of the first turn", func() bool {
		report, err := first.session.Finish(t.Context(), core.FinishRequest{RunKey: first.key, Host: first.host})
		return err == nil && report.State == core.Finished
	})
	h.split.describe, h.split.exec = 0, 0
	before, began := h.server.Metrics().Calls, time.Now()
	_, report := h.begin(t, "second", "warm", "echo done")
	took, after := time.Since(began), h.server.Metrics().Calls
	if report.Ensured != core.EnsuredResumed {
		t.Errorf("the second turn's sandbox was %s", report.Ensured)
	}
	var calls int
	var parts []string
	for name, n := range after {
		if n -= before[name]; n > 0 {
			calls += n
			parts = append(parts, fmt.Sprintf("%d %s", n, name))
		}
	}
	slices.Sort(parts)
	return []figure{{Name: "ECS calls of a start on a resumed sandbox", Value: float64(calls), Unit: "calls", Goal: "<= 3",
		how: fmt.Sprintf("local Fargate: %s; of %v in all %v DescribeTasks, %v the exec session with its call, %v stores, which are in memory, and all else",
			strings.Join(parts, ", "), took.Round(time.Millisecond), h.split.describe.Round(time.Millisecond/10), h.split.exec.Round(time.Millisecond),
			(took - h.split.describe - h.split.exec).Round(time.Millisecond/10))}}
}
