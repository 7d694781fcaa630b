package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// Result is what became of an episode.
type Result struct {
	Script Script
	Steps  int            // what was chosen to happen, and in the calm end whole operations
	Calls  int            // of ports, by processes
	Ends   int            // runs that came to their end
	Met    map[string]int // how often what came to happen
	Wrongs []string       // broken invariants; empty: all held
	Trace  []string       // what happened, where it was asked for
}

// choices is how long an episode is, before it comes to its calm end.
const choices = 800

// Draw carries out the episode of a seed. It must not run beside other tests: it
// sets the process's source of randomness, so that ids are the same each time.
func Draw(t *testing.T, seed uint64) Result {
	t.Helper()
	var out Result
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 0))
		cryptotest.SetGlobalRandom(t, seed)
		config, m := drawn(rng)
		m.keeps(&config, rand.New(rand.NewPCG(seed, 1)))
		m.troubles(&config, rand.New(rand.NewPCG(seed, 2)))
		w := newWorld(t, config)
		for n := 0; n < choices && (!w.idle() || config.Keeper && n < choices/2); n++ {
			c := m.choice(w)
			out.Script.Choices = append(out.Script.Choices, c)
			if w.apply(c); w.broken() {
				break
			}
		}
		out.Script.Config = config
		w.conclude(&out)
	})
	return out
}

// Replay carries out a script again, and tells what happened.
func Replay(t *testing.T, s Script, trace bool) Result {
	t.Helper()
	out := Result{Script: s}
	synctest.Test(t, func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, 1)
		w := newWorld(t, s.Config)
		w.tracing = trace
		for _, c := range s.Choices {
			if w.apply(c); w.broken() {
				break
			}
		}
		w.conclude(&out)
	})
	return out
}

func (w *world) conclude(out *Result) {
	if !w.broken() {
		w.calmDown()
	}
	w.end()
	out.Met = w.counts
	out.Steps, out.Calls, out.Ends, out.Wrongs, out.Trace = w.steps, w.calls, w.oracle.ends, w.texts, w.trace
}

// patience is after how long in calm nothing may be owed any more: the longest of
// each wait once, and then some.
const patience = 100 * time.Minute

// calmDown lets every process stop where it is and everything be sound from then
// on: sweeps come all the time and each message once, until nothing is owed (I5,
// I6, I15).
func (w *world) calmDown() {
	w.note("from here on everything is sound")
	for _, a := range w.busy() {
		a.fault(mem.StopBefore)
		for !a.over {
			w.advance(a)
		}
	}
	w.collect()
	w.sent = nil // whatever is under way is lost
	w.fleet.KillStrays()
	w.store.SetIndexLag(0)
	w.store.SetControl(core.Control{})
	w.limits.BreakerMost = 1000
	w.config.Skew, w.config.ListLag = 0, 0
	w.ecs.hidden, w.ecs.blind, w.ecs.deaf, w.ecs.mute, w.ecs.farUntil, w.ecs.meter = nil, 0, 0, 0, 0, 0
	for _, r := range w.runs { // some agents work on until their time is over
		if r.n%2 == 0 {
			w.agentActs(Choice{Op: OpExit}, r)
		}
	}
	w.noteStorable()
	begun := now()
	for id := 1 << 20; !w.settled() && !w.broken(); id++ {
		if now() > begun.Add(patience) {
			w.accuse("something is owed for ever: %s", w.describe())
			return
		}
		w.pass(90 * time.Second)
		w.watch()
		w.through(w.spawn(role{id, "sweep", "sweep", 0}, w.limits.SweepTimeout, func(ctx context.Context, a *actor) {
			begun := now()
			report, err := w.carryOut(ctx, a, core.SweepRequest{})
			if err != nil {
				w.accuse("a sound sweep: %v", err)
			}
			w.judgeReport(a, begun, report)
		}))
		for range 2 { // once more for those whom a capture's end has called
			for i := range w.sent {
				w.through(w.reclaim(id, &w.sent[i]))
			}
			w.sent = nil
			w.dueCapture(id)
		}
	}
	if copies := w.fleet.Snapshots(); len(copies) > 0 {
		w.accuse("copies stay for ever: %v", copies)
	}
	if !w.broken() {
		w.judgeCheckpoints()
		if w.config.Keeper && !w.broken() {
			w.collectAll()
			w.eraseAll()
		}
	}
}

// through lets an actor come to its end.
func (w *world) through(a *actor) {
	w.steps++
	for !a.over && !w.broken() {
		w.step(a, mem.None)
	}
}

// idle reports whether every run has come to its end and nobody is at work.
func (w *world) idle() bool {
	for _, r := range w.runs {
		if seen := w.oracle.seen[r.key]; !seen.Status.Terminal() || seen.Row != core.RowNone {
			return false
		}
	}
	return len(w.busy()) == 0
}

// settled reports whether nothing is owed any more.
func (w *world) settled() bool {
	state := w.store.State()
	for _, r := range state.Runs {
		if !r.Status.Terminal() || r.Row != core.RowNone {
			return false
		}
	}
	for _, row := range state.Rows {
		if row.State != core.LedgerClosed {
			return false
		}
	}
	return len(state.Sandboxes) == 0 && len(w.fleet.Running()) == 0 && len(w.ecs.late) == 0
}

func (w *world) describe() string {
	var parts []string
	state := w.store.State()
	for key, r := range state.Runs {
		if !r.Status.Terminal() || r.Row != core.RowNone {
			parts = append(parts, fmt.Sprintf("run %s is %s in row %q (%s)", key, r.Status, r.Row, r.ReclaimOutcome))
		}
	}
	for _, row := range state.Rows {
		if row.State != core.LedgerClosed {
			parts = append(parts, fmt.Sprintf("the ledger row of %s is %s", row.Run, row.State))
		}
	}
	for _, box := range state.Sandboxes {
		parts = append(parts, fmt.Sprintf("the sandbox of %s is there", box.LatestRun))
	}
	slices.Sort(parts)
	return strings.Join(append(parts, fmt.Sprintf("%d tasks run", len(w.fleet.Running()))), "; ")
}

// Shrink takes as much out of a script that breaks an invariant as it can, for as
// long as one breaks.
func Shrink(t *testing.T, s Script, tries int) Script {
	t.Helper()
	breaks := func(c []Choice) bool {
		tries--
		return len(Replay(t, Script{Config: s.Config, Choices: c}, false).Wrongs) > 0
	}
	if !breaks(s.Choices) {
		return s // it hangs on the ids that were drawn
	}
	for size := len(s.Choices) / 2; size > 0; {
		shorter := false
		for at := 0; at < len(s.Choices) && tries > 0; {
			less := slices.Concat(s.Choices[:at], s.Choices[min(at+size, len(s.Choices)):])
			if breaks(less) {
				s.Choices, shorter = less, true
			} else {
				at += size
			}
		}
		if !shorter || size > 1 {
			size /= 2
		}
	}
	s.Choices = joinedBursts(s.Choices)
	return s
}

// joinedBursts writes the calls that an actor makes one after another as one burst.
func joinedBursts(of []Choice) []Choice {
	var out []Choice
	for _, c := range of {
		if n := len(out) - 1; n >= 0 && c.Op == OpGo && out[n].Op == OpGo && out[n].ID == c.ID && c.Fault == mem.None && c.To == "" {
			out[n].N += c.N
			continue
		}
		out = append(out, c)
	}
	return out
}
