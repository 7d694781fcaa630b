package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
)

// fate is how a run of the demo is meant to end.
type fate string

const (
	fateEnds    fate = "ends"    // by itself: saved whole
	fateLives   fate = "lives"   // must not be touched
	fateExpires fate = "expires" // past its TTL: ended, saved whole
	fateLost    fate = "lost"    // its task dies: what was saved is a prefix, and marked
)

// scenario is one run of the demo: an agent, and what becomes of its host.
type scenario struct {
	run     core.RunID
	what    string
	fate    fate
	ttl     int64 // seconds
	vanish  bool  // the host dies attached, without a word
	idle    bool  // its sandbox is kept warm for the thread's next turn
	later   bool  // begun by the operator's part
	thread  core.ThreadID
	flags   []string
	exit    int // of an agent that ends by itself; one that is ended has another
	outcome core.Outcome
}

var scenarios = []scenario{
	{run: "ends-0", what: "ends well", fate: fateEnds, outcome: core.Finalized, flags: []string{"--lines=40", "--every=50ms"}},
	{run: "ends-3", what: "fails with status 3", fate: fateEnds, outcome: core.Finalized, exit: 3,
		flags: []string{"--lines=12", "--every=100ms", "--exit-with=3", "--stderr=compile error: undefined: foo"}},
	{run: "steady", what: "produces steadily", fate: fateLives, outcome: core.Producing, flags: []string{"--lines=100000", "--every=200ms"}},
	{run: "silent", what: "thinks for long, says nothing", fate: fateLives, outcome: core.Producing, flags: []string{"--lines=1", "--stay"}},
	{run: "past-ttl", what: "goes on past its TTL", fate: fateExpires, ttl: 20, outcome: core.Expired, flags: []string{"--lines=100000", "--every=300ms"}},
	{run: "task-dies", what: "its task dies under it", fate: fateLost, outcome: core.Lost, flags: []string{"--lines=100000", "--every=100ms"}},
	{run: "host-dies", what: "its host dies while attached", fate: fateEnds, vanish: true, outcome: core.Finalized, flags: []string{"--lines=25", "--every=40ms"}},
	{run: "open-end", what: "no final newline, multi-byte text", fate: fateEnds, outcome: core.Finalized,
		flags: []string{"--lines=30", "--open", "--text=Grüße, 世界 🚀 \ufffd"}},
	{run: "two-mb", what: "writes 2 MB; its first sweep is ended", fate: fateEnds, outcome: core.Finalized, flags: []string{"--lines=520", "--pad=4096", "--big=100000000"}},
	{run: "held", what: "ends; an operator holds its sandbox", fate: fateEnds, outcome: core.Finalized, flags: []string{"--lines=20"}},
	{run: "no-exec", what: "cannot be reached any more", fate: fateLives, outcome: core.Producing, flags: []string{"--lines=100000", "--every=500ms"}},
	{run: "turn-1", what: "ends; its sandbox is kept, and dies", fate: fateEnds, idle: true, thread: "two-turns", outcome: core.Finalized, flags: []string{"--lines=15"}},
	{run: "turn-2", what: "the next turn, in a new task", fate: fateEnds, later: true, thread: "two-turns", outcome: core.Finalized, flags: []string{"--lines=15"}},
}

const demoTenant = core.TenantID("demo")

func (s scenario) key() core.RunKey { return core.RunKey{Tenant: demoTenant, Run: s.run} }

// begin has the host start every run at once, and lets its viewers leave.
func (d *demo) begin(ctx context.Context) error {
	d.say(fmt.Sprintf("starting the sandboxes of %d runs (%s)", len(scenarios), d.fargate.Isolation()))
	if err := d.operator.SetMode(ctx, core.Observe, byDemo("look before anything is written")); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(d.dir, "wrote"), 0o777); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if err := os.Chmod(filepath.Join(d.dir, "wrote"), 0o777); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	errs := make([]error, len(scenarios))
	var wg sync.WaitGroup
	for i, s := range scenarios {
		if !s.later {
			wg.Go(func() { errs[i] = d.host1(ctx, s) })
		}
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	d.say("every viewer has left; the scheduled sweep does the rest")
	return nil
}

// host1 starts one run up to its agent, and leaves it as the scenario says.
func (d *demo) host1(ctx context.Context, s scenario) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	q := core.RunRequest{
		RunKey: s.key(), Thread: cmp.Or(s.thread, core.ThreadID("thread-"+s.run)), HostNonce: "host-" + strconv.Itoa(os.Getpid()),
		Definition: "demo", TTLSeconds: s.ttl,
	}
	if s.idle {
		q.Reclaim = core.ReclaimIdle
	}
	r, err := d.host.Start(ctx, q)
	if err != nil {
		return err
	}
	m := core.KeyMaterial{Provider: "fargate", Definition: r.Definition, Tenant: r.Tenant, Thread: r.Thread}
	if r, err = d.host.Launch(ctx, r, m, d.spec()); err != nil {
		return err
	}
	argv := append([]string{exe, "demo-agent", "--copy=" + d.copyOf(s.run), "--work=" + string(s.run)}, s.flags...)
	if _, err = d.host.StartAgent(ctx, r, core.JournalStart{Argv: argv}, nil); err != nil {
		return err
	}
	if s.vanish {
		return nil
	}
	_, err = d.runs.Update(ctx, r.RunKey, core.Detach{Epoch: r.Epoch, Now: core.MillisOf(time.Now())})
	return err
}

// watch shows the runs until the operator is through, every run that should has
// ended, and its task is gone.
func (d *demo) watch(ctx context.Context) error {
	operated := make(chan error, 1)
	go func() { operated <- d.operate(ctx) }()
	through := false
	for {
		rows, done, err := d.look(ctx)
		if err != nil {
			return err
		}
		d.table.draw(time.Since(d.started), rows)
		if done && through {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-operated:
			if err != nil {
				return err
			}
			through, operated = true, nil
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (d *demo) look(ctx context.Context) ([]row, bool, error) {
	var rows []row
	done := true
	for _, s := range scenarios {
		r, err := d.runs.Run(ctx, s.key())
		if errors.Is(err, core.ErrNotFound) || err == nil && r.TaskARN == "" {
			rows, done = append(rows, row{run: s.run, what: s.what}), false
			continue
		}
		if err != nil {
			return nil, false, err
		}
		task, err := d.fargate.Task(r.TaskARN)
		if err != nil {
			return nil, false, err
		}
		ledger, err := d.boxes.Row(ctx, r.Instance)
		if err != nil {
			return nil, false, err
		}
		rows = append(rows, row{
			run: s.run, what: s.what, state: stateOf(r), outcome: string(outcomeOf(r)), task: task.LastStatus,
			age: time.Since(r.StartedAt.Time()), saved: r.LogEnd, workspace: strings.TrimSpace(string(r.Checkpoint.State) + " " + r.Checkpoint.Why),
		})
		if s.fate != fateLives && (!r.Status.Terminal() || r.Row != core.RowNone || ledger.State != core.LedgerClosed) {
			done = false
		}
	}
	return rows, done, nil
}

// stateOf words where a run stands.
func stateOf(r core.Run) string {
	switch {
	case r.Status.Terminal():
		return string(r.Status)
	case r.Row == core.RowDetached:
		return "detached"
	}
	return "attached"
}

// outcomeOf reads the sweep's outcome off an ended record.
func outcomeOf(r core.Run) core.Outcome {
	switch {
	case !r.Status.Terminal():
		return core.Producing
	case r.Ending != nil && r.Ending.Reason == core.EndExpired:
		return core.Expired
	case r.Ending != nil && r.Ending.Reason == core.EndCancelled:
		return core.Cancelled
	case r.Ending != nil:
		return core.Died
	case r.Error != nil && r.Error.Code == string(core.EndLost):
		return core.Lost
	}
	return core.Finalized
}

// demoResult is the demo's last line.
type demoResult struct {
	Runs                 int                  `json:"runs"`
	Outcomes             map[core.Outcome]int `json:"outcomes"`
	TranscriptsIdentical bool                 `json:"transcriptsIdentical"`
	Checkpoints          int                  `json:"checkpoints"`
	TreesIdentical       bool                 `json:"treesIdentical"`
	StoppedLive          int                  `json:"stoppedLive"`
	Leaked               int                  `json:"leaked"`
	ExitToStoppedP50     float64              `json:"exitToStoppedSecondsP50"`
	ExitToStoppedP99     float64              `json:"exitToStoppedSecondsP99"`
}

// result compares what was saved with what the agents wrote, and what runs with
// what should.
func (d *demo) result(ctx context.Context) (demoResult, error) {
	out := demoResult{Runs: len(scenarios), Outcomes: map[core.Outcome]int{}, TranscriptsIdentical: true}
	known := map[string]bool{}
	var waits []float64
	for _, s := range scenarios {
		r, err := d.runs.Run(ctx, s.key())
		if err != nil {
			return out, err
		}
		task, err := d.fargate.Task(r.TaskARN)
		if err != nil {
			return out, err
		}
		known[r.TaskARN] = s.fate == fateLives
		out.Outcomes[outcomeOf(r)]++
		if outcomeOf(r) != s.outcome {
			d.say(fmt.Sprintf("run %s: outcome %s, want %s: %+v", s.run, outcomeOf(r), s.outcome, r.Error))
			out.TranscriptsIdentical = false
		}
		same, err := d.identical(ctx, s, r)
		if err != nil {
			return out, err
		}
		if !same {
			d.say(fmt.Sprintf("run %s: the saved transcript is not what its agent wrote", s.run))
			out.TranscriptsIdentical = false
		}
		if d.stoppedLive(s, r, task) {
			out.StoppedLive++
		}
		if wait, ok := d.exitToStopped(s, task); ok {
			waits = append(waits, wait.Seconds())
		}
	}
	for _, task := range d.fargate.Tasks() {
		if task.LastStatus != "STOPPED" && !known[task.ARN] {
			out.Leaked++
		}
	}
	slices.Sort(waits)
	out.ExitToStoppedP50, out.ExitToStoppedP99 = percentile(waits, 50), percentile(waits, 99)
	return out, nil
}

// identical compares byte for byte. Of a task that died only what had been saved
// can be right: a part from the beginning, marked as incomplete.
func (d *demo) identical(ctx context.Context, s scenario, r core.Run) (bool, error) {
	saved, err := d.saved(ctx, r.RunKey)
	if err != nil {
		return false, err
	}
	wrote, err := os.ReadFile(d.copyOf(s.run))
	if err != nil {
		return false, fmt.Errorf("demo: %w", err)
	}
	switch s.fate {
	case fateLives:
		return r.Transcript == nil && len(saved) == 0 && len(wrote) > 0, nil
	case fateLost:
		return r.Transcript != nil && !r.Transcript.Complete && bytes.HasPrefix(wrote, saved), nil
	}
	return r.Transcript != nil && r.Transcript.Complete && bytes.Equal(saved, wrote), nil
}

// stoppedLive: an agent that should live is gone, or one that ends by itself did
// not come to its own end.
func (d *demo) stoppedLive(s scenario, r core.Run, task localfargate.TaskState) bool {
	switch s.fate {
	case fateLives:
		return task.DesiredStatus != "RUNNING" || !d.agentLives(s, task)
	case fateEnds:
		return r.ExitCode == nil || *r.ExitCode != s.exit
	}
	return false
}

// agentLives looks for the agent among the task's processes.
func (d *demo) agentLives(s scenario, task localfargate.TaskState) bool {
	for _, c := range task.Containers {
		for _, p := range c.Processes {
			if strings.Contains(p.Command, "--copy="+d.copyOf(s.run)) {
				return true
			}
		}
	}
	return false
}

// exitToStopped is the time from the agent's last byte to the end of its task, where
// nothing was meant to keep the task.
func (d *demo) exitToStopped(s scenario, task localfargate.TaskState) (time.Duration, bool) {
	info, err := os.Stat(d.copyOf(s.run))
	if err != nil || s.fate != fateEnds || s.idle || s.run == "held" || task.StoppedAt.IsZero() {
		return 0, false
	}
	return task.StoppedAt.Sub(info.ModTime()), true
}

// percentile of sorted values, nearest rank; 0 for none.
func percentile(sorted []float64, p int) float64 {
	if len(sorted) == 0 {
		return 0
	}
	rank := (len(sorted)*p + 99) / 100
	return float64(int(sorted[max(rank, 1)-1]*10)) / 10
}
