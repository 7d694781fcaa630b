package core_test

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/core/coretest"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// world is an installation in memory: stores, a cluster, and the use cases over
// them. Time is the bubble's.
type world struct {
	t      *testing.T
	store  *mem.Store
	fleet  *mem.Fleet
	limits core.Limits

	stopLeaks  bool
	checkpoint core.CheckpointPolicy // of runs that have none
	onFailure  core.OnFailure
	copies     bool // the provider takes snapshots
	functions  bool // hooks are told
	notices    []core.Notice
	keeping    *keeping // of checkpoints, once it is asked for
}

// Announce notes what is told to other systems.
func (w *world) Announce(_ context.Context, notices []core.Notice) error {
	w.notices = append(w.notices, notices...)
	return nil
}

// told lists what was announced of a kind, by run or task.
func (w *world) told(kind core.NoticeType) []string {
	var out []string
	for _, n := range w.notices {
		if n.Type == kind {
			out = append(out, cmp.Or(string(n.Run), n.TaskARN))
		}
	}
	slices.Sort(out)
	return out
}

func newWorld(t *testing.T) *world {
	store := mem.New(t)
	limits := core.DefaultLimits
	// One thing at a time, so that the nth call is the same call in every run.
	limits.SweepWidth, limits.ProbeCalls, limits.ProbeWidth = 1, 1, 1
	limits.InlineSegment = 100
	return &world{t: t, store: store, fleet: mem.NewFleet(store), limits: limits}
}

func (w *world) sweep(p *mem.Process) *core.Sweep {
	view := w.fleet.View(p)
	return &core.Sweep{
		Runs: p, Index: p, Log: &core.LogWriter{Log: p, Blobs: p, Inline: w.limits.InlineSegment}, Sandboxes: p, Ledger: p,
		Due: p, Tasks: view, Lister: view, Prober: view, Journals: view, Announcer: w, Queue: p, Controls: p, Breaker: p, Notes: p, Meters: p, Cursors: p, Budget: p, Limits: w.limits, Install: "test", Provider: "fargate", Cluster: "c", StopLeaks: w.stopLeaks, Checkpoint: w.checkpoint,
		Logger: slog.New(slog.DiscardHandler),
	}
}

func (w *world) reclaimer(p *mem.Process) *core.Reclaimer {
	view := w.fleet.View(p)
	c := &core.Reclaimer{
		Runs: p, Sandboxes: p, Ledger: p, Transactions: p, Tasks: view, Stopper: view, Controls: p, Breaker: p,
		Checkpoints: view, Threads: p, Announcer: w, OnFailure: w.onFailure, Provider: "fargate", Limits: w.limits, Snapshots: w.snapshotter(view),
	}
	if w.functions {
		c.Functions = view
	}
	return c
}

// snapshotter is what the provider takes copies with, where it does.
func (w *world) snapshotter(view mem.View) core.Snapshotter {
	if !w.copies {
		return nil
	}
	return view
}

func (w *world) launcher(p *mem.Process) *core.Launcher {
	view := w.fleet.View(p)
	return &core.Launcher{
		Runs: p, Sandboxes: p, Ledger: p, Transactions: p, Describer: view, Queue: p,
		Provider: core.TaskProvider{TaskAPI: view, AgentStarter: view}, Snapshots: w.snapshotter(view), Threads: p, Announcer: w, Meters: p, Limits: w.limits, Install: "test",
	}
}

func key(run string) core.RunKey { return core.RunKey{Tenant: "acme", Run: core.RunID(run)} }

func material(run string) core.KeyMaterial {
	return core.KeyMaterial{Provider: "fargate", Definition: "d", Tenant: "acme", Thread: core.ThreadID("thread-" + run)}
}

// begin has a host start a run up to its agent, and returns the record.
func (w *world) begin(run string, change func(*core.RunRequest)) core.Run {
	w.t.Helper()
	l := w.launcher(w.store.Process)
	q := core.RunRequest{RunKey: key(run), Thread: core.ThreadID("thread-" + run), HostNonce: hostNonce(run), Definition: "d"}
	if change != nil {
		change(&q)
	}
	r, err := l.Start(w.t.Context(), q)
	if err == nil {
		r, err = l.Launch(w.t.Context(), r, material(run), core.TaskSpec{Cluster: "c", Container: "agent"})
	}
	if err == nil {
		_, err = coretest.StartAgent(w.t.Context(), l, r, core.JournalStart{Argv: []string{"agent"}}, nil)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// detach lets the viewer of a run leave.
func (w *world) detach(run string) {
	w.t.Helper()
	r := w.run(run)
	if _, err := w.store.Update(w.t.Context(), r.RunKey, core.Detach{Epoch: r.Epoch, Now: now()}); err != nil {
		w.t.Fatal(err)
	}
}

// left begins a run, lets its agent write text, and lets its viewer leave.
func (w *world) left(run, text string) core.Run {
	w.t.Helper()
	r := w.begin(run, nil)
	w.fleet.Write(r.RunKey.Run, text)
	w.detach(run)
	return r
}

func (w *world) run(run string) core.Run {
	w.t.Helper()
	r, err := w.store.Run(w.t.Context(), key(run))
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// tick is one scheduled sweep and the reclaim of every message it left, by a
// process without faults.
func (w *world) tick() core.SweepReport {
	w.t.Helper()
	report, err := w.sweep(w.store.Process).Run(w.t.Context(), core.SweepRequest{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.drainQueue(w.store.Process)
	w.check()
	return report
}

// drainQueue has every waiting message reclaimed once.
func (w *world) drainQueue(p *mem.Process) {
	for _, job := range w.store.TakeJobs() {
		_, _ = w.reclaimer(p).Do(w.t.Context(), job) // a failed message is sent again by its mark
	}
}

func (w *world) check() {
	w.t.Helper()
	w.store.Check(w.t)
	w.fleet.CheckTasks()
}

// transcript is the saved log of a run.
func (w *world) transcript(run string) string {
	w.t.Helper()
	data, err := core.ReadLog(w.t.Context(), w.store, w.store, key(run))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(data)
}

// ended fails unless the run has that status, its whole transcript is text, and its
// task is gone from the ledger's open rows.
func (w *world) ended(run string, status core.Status, text string) {
	w.t.Helper()
	r := w.run(run)
	if r.Status != status {
		w.t.Errorf("run %s: status %q, want %q (%+v)", run, r.Status, status, r)
	}
	if got := w.transcript(run); got != text {
		w.t.Errorf("run %s: transcript of %d bytes, want %d", run, len(got), len(text))
	}
	if r.Row != core.RowNone {
		w.t.Errorf("run %s: still owes its reclaim: %s %s", run, r.Row, r.ReclaimOutcome)
	}
}

func now() core.Millis { return core.MillisOf(time.Now()) }

// outcomes counts a report's entries by run.
func outcomes(report core.SweepReport) map[core.RunID]core.Outcome {
	out := map[core.RunID]core.Outcome{}
	for _, e := range report.Runs {
		out[e.RunKey.Run] = e.Outcome
	}
	return out
}

var long = strings.Repeat("{\"type\":\"text\",\"text\":\"Grüße, 世界\"}\n", 6000)

func sorted[T cmp.Ordered](seq iter.Seq[T]) []T { return slices.Sorted(seq) }

// failing is a process whose calls of that name do not land.
func (w *world) failing(name string) *mem.Process {
	faults := mem.Faults{At: map[int]mem.Fault{}}
	n := 0
	faults.Before = func(_ context.Context, call string) {
		if n++; call == name {
			faults.At[n] = mem.NotLanded
		}
	}
	return w.store.NewProcess(faults)
}
