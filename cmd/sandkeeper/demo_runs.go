package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandkeeper/sandkeeper/client"
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
	fateEnded   fate = "ended"   // by a cancel: saved whole
)

// manner is what a run's host does once the agent works.
type manner string

const (
	hostLeaves   manner = ""           // at once
	hostVanishes manner = "vanishes"   // dies attached, without a word
	hostStays    manner = "stays"      // follows the output to its end, and finishes the run
	hostReturns  manner = "comes back" // leaves, and later does as one that stays
	hostCancels  manner = "cancels"    // has the agent ended
)

// scenario is one run of the demo: an agent, and what becomes of its host.
type scenario struct {
	run     core.RunID
	what    string
	fate    fate
	manner  manner
	ttl     int64         // seconds
	later   bool          // begun by a later turn's host
	thread  core.ThreadID // whose sandbox is kept warm for the next turn; empty: the run's own
	flags   []string
	exit    int // of an agent that ends by itself; one that is ended has another
	outcome core.Outcome
}

// warm says that the run's sandbox outlives it.
func (s scenario) warm() bool { return s.thread != "" }

var scenarios = []scenario{
	{run: "ends-0", what: "ends well", fate: fateEnds, outcome: core.Finalized, flags: []string{"--lines=40", "--every=50ms"}},
	{run: "ends-3", what: "fails with status 3", fate: fateEnds, outcome: core.Finalized, exit: 3,
		flags: []string{"--lines=12", "--every=100ms", "--exit-with=3", "--stderr=compile error: undefined: foo"}},
	{run: "steady", what: "produces steadily", fate: fateLives, outcome: core.Producing, flags: []string{"--lines=100000", "--every=200ms"}},
	{run: "silent", what: "thinks for long, says nothing", fate: fateLives, outcome: core.Producing, flags: []string{"--lines=1", "--stay"}},
	{run: "past-ttl", what: "goes on past its TTL", fate: fateExpires, ttl: 20, outcome: core.Expired, flags: []string{"--lines=100000", "--every=300ms"}},
	{run: "task-dies", what: "its task dies under it", fate: fateLost, outcome: core.Lost, flags: []string{"--lines=100000", "--every=100ms"}},
	{run: "host-dies", what: "its host dies while attached", fate: fateEnds, manner: hostVanishes, outcome: core.Finalized, flags: []string{"--lines=25", "--every=40ms"}},
	{run: "open-end", what: "no final newline, multi-byte text", fate: fateEnds, outcome: core.Finalized,
		flags: []string{"--lines=30", "--open", "--text=Grüße, 世界 🚀 \ufffd"}},
	{run: "two-mb", what: "writes 2 MB; its first sweep is ended", fate: fateEnds, outcome: core.Finalized, flags: []string{"--lines=520", "--pad=4096", "--big=100000000"}},
	{run: "held", what: "ends; an operator holds its sandbox", fate: fateEnds, outcome: core.Finalized, flags: []string{"--lines=20"}},
	{run: "no-exec", what: "cannot be reached any more", fate: fateLives, outcome: core.Producing, flags: []string{"--lines=100000", "--every=500ms"}},
	{run: "comes-back", what: "its viewer leaves, and comes back", fate: fateEnds, manner: hostReturns, outcome: core.Finalized, flags: []string{"--lines=80", "--every=100ms"}},
	{run: "asks", what: "calls a tool of its host", fate: fateEnds, outcome: core.Finalized, flags: []string{"--lines=10", "--ask=" + askedKey}},
	{run: "cancelled", what: "its viewer cancels it", fate: fateEnded, manner: hostCancels, outcome: core.Cancelled, flags: []string{"--lines=100000", "--every=50ms"}},
	{run: "left-cancelled", what: "somebody cancels it, its host is gone", fate: fateEnded, outcome: core.Cancelled, flags: []string{"--lines=100000", "--every=50ms"}},
	{run: "turn-1", what: "the first of three turns", fate: fateEnds, manner: hostStays, thread: turnsThread, outcome: core.Finalized, flags: []string{"--lines=15", "--every=50ms"}},
	{run: "turn-2", what: "the second, in the same task", fate: fateEnds, manner: hostStays, later: true, thread: turnsThread, outcome: core.Finalized,
		flags: []string{"--lines=15", "--read=" + turnsFile}},
	{run: "turn-3", what: "the third, in a new task", fate: fateEnds, later: true, thread: turnsThread, outcome: core.Finalized,
		flags: []string{"--lines=15", "--read=" + turnsFile}},
}

// askedKey is what the agent that calls a tool asks about.
const askedKey = "größe"

// The thread of three turns, and what each of its agents finds there.
const (
	turnsThread = core.ThreadID("three-turns")
	turnsFile   = "README.md"
)

const demoTenant = core.TenantID("-")

func (s scenario) key() core.RunKey { return core.RunKey{Tenant: demoTenant, Run: s.run} }

// begin has a host start every run at once, and lets the viewers leave who leave.
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
	attached, errs := make([]*client.Attachment, len(scenarios)), make([]error, len(scenarios))
	var wg sync.WaitGroup
	for i, s := range scenarios {
		if !s.later {
			wg.Go(func() { attached[i], errs[i] = d.start(ctx, s) })
		}
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i, s := range scenarios {
		if !s.later {
			d.hosting.Go(func() error { return d.host(ctx, s, attached[i]) })
		}
	}
	d.say("all agents work; most viewers leave, and the scheduled sweep does the rest")
	return nil
}

// watch shows the runs until operator and hosts are through, every run that should has
// ended, and its task is gone.
func (d *demo) watch(ctx context.Context) error {
	through := make(chan error, 1)
	d.hosting.Go(func() error { return d.operate(ctx) })
	go func() { through <- d.hosting.Wait() }()
	for waiting := true; ; {
		rows, open, err := d.look(ctx)
		if err != nil {
			return err
		}
		d.table.draw(time.Since(d.started), rows)
		if len(open) == 0 && !waiting {
			return nil
		}
		if waiting {
			open = append(open, "the operator and the hosts that stay")
		}
		d.table.waits(time.Since(d.started), open)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-through:
			if err != nil {
				return err
			}
			waiting, through = false, nil
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// look is where the runs stand, and what of them is to happen still.
func (d *demo) look(ctx context.Context) ([]row, []string, error) {
	var rows []row
	var open []string
	for _, s := range scenarios {
		r, err := d.runs.Run(ctx, s.key())
		if errors.Is(err, core.ErrNotFound) || err == nil && r.TaskARN == "" {
			rows, open = append(rows, row{run: s.run, what: s.what}), append(open, string(s.run)+" to begin")
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		task, err := d.fargate.Task(r.TaskARN)
		if err != nil {
			return nil, nil, err
		}
		ledger, err := d.boxes.Row(ctx, r.Instance)
		if err != nil {
			return nil, nil, err
		}
		rows = append(rows, row{
			run: s.run, what: s.what, state: stateOf(r), outcome: string(outcomeOf(r)), task: task.LastStatus,
			age: time.Since(r.StartedAt.Time()), saved: r.LogEnd, workspace: strings.TrimSpace(string(r.Checkpoint.State) + " " + r.Checkpoint.Why),
		})
		if next := toCome(r, ledger); s.fate != fateLives && next != "" {
			open = append(open, string(s.run)+next)
		}
	}
	return rows, open, nil
}

// toCome words what a run is to come to still, or "".
func toCome(r core.Run, row core.LedgerRow) string {
	switch {
	case !r.Status.Terminal():
		return " to end"
	case r.Row != core.RowNone:
		return "'s sandbox to be reclaimed"
	case row.State != core.LedgerClosed:
		return "'s task to stop"
	}
	return ""
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
	Turns                int                  `json:"turns"` // of one thread, that found what they should
	ToolCalls            int                  `json:"toolCalls"`
	Checkpoints          int                  `json:"checkpoints"`
	TreesIdentical       bool                 `json:"treesIdentical"`
	StoppedLive          int                  `json:"stoppedLive"`
	Leaked               int                  `json:"leaked"`
	ExitToStoppedP50     float64              `json:"exitToStoppedSecondsP50"`
	ExitToStoppedP99     float64              `json:"exitToStoppedSecondsP99"`
	CancelledP99         float64              `json:"cancelledSecondsP99"`
	Seconds              float64              `json:"seconds"` // of the whole, from its start
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
		if s.run == "asks" && d.wrote(s, "value of "+askedKey) {
			out.ToolCalls++
		}
		if s.thread == turnsThread && d.found(s) {
			out.Turns++
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
	slices.Sort(d.seen.cancelled)
	out.CancelledP99 = percentile(d.seen.cancelled, 99)
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
	if err != nil || s.fate != fateEnds || s.warm() || s.run == "held" || task.StoppedAt.IsZero() {
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
