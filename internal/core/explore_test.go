package core_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// TestExploration carries out every schedule of each scenario, at the grain of
// port calls, with a bounded number of preemptions and faults. A schedule that
// comes to a state in which another has been, with no less left to spend, is cut
// there: what follows has been tried.
//
// SANDKEEPER_EXPLORE=full spends more; -short less.
func TestExploration(t *testing.T) {
	b := bound{preemptions: 2, faults: 1}
	switch {
	case os.Getenv("SANDKEEPER_EXPLORE") == "full":
		b = bound{preemptions: 3, faults: 2}
	case testing.Short():
		b = bound{preemptions: 1, faults: 1}
	}
	total := make(chan int, len(scenarios))
	t.Run("scenarios", func(t *testing.T) {
		for _, sc := range scenarios {
			t.Run(sc.name, func(t *testing.T) {
				t.Parallel()
				e := &explorer{t: t, sc: sc, bound: b, best: map[uint64]int{}, ends: map[uint64]bool{}}
				e.explore()
				t.Logf("%s: %d schedules, %d of them cut at a known state, %d ends; %d states", sc.name, e.schedules, e.cut, len(e.ends), len(e.best))
				total <- e.schedules
				if floor := sc.floor; b.preemptions >= 2 && e.schedules < floor {
					t.Errorf("%d schedules, want at least %d: the scenario has shrunk", e.schedules, floor)
				}
			})
		}
	})
	close(total)
	sum := 0
	for n := range total {
		sum += n
	}
	t.Logf("explored %d schedules with at most %d preemptions and %d faults", sum, b.preemptions, b.faults)
}

// bound is what a schedule may spend.
type bound struct{ preemptions, faults int }

// scenario is who acts on what.
type scenario struct {
	name string
	// seed brings the world to where the schedules begin, without faults.
	seed func(w *world)
	// cast adds the actors.
	cast func(s *stage)
	// deliveries bounds the reclaim messages handed out within the schedule; the rest
	// is delivered after it. Each may come twice.
	deliveries int
	// outcome checks what is particular to the scenario, after everything is quiet.
	outcome func(s *stage)
	// floor is the least number of schedules under the default bound.
	floor int
}

// choice is one step of a schedule: an actor, or the delivery of a message to a new
// one, and what befalls its call.
type choice struct {
	who   int // below zero: delivery of message -1-who
	fault mem.Fault
}

// explorer tries the schedules of one scenario, the cheapest first, each from the
// beginning.
type explorer struct {
	t                      *testing.T
	sc                     scenario
	bound                  bound
	todo                   [][]branch      // by what they have spent
	best                   map[uint64]int  // state: the most preemptions that were left in it
	ends                   map[uint64]bool // states in which everybody had ended
	schedules, cut, failed int
}

// branch is a schedule to begin with.
type branch struct {
	steps []choice
	spent bound
}

// mostFailures is after how many a scenario gives up.
const mostFailures = 3

func (e *explorer) explore() {
	e.push(branch{})
	for spent := 0; spent < len(e.todo); spent++ {
		for len(e.todo[spent]) > 0 && e.failed < mostFailures {
			last := len(e.todo[spent]) - 1
			b := e.todo[spent][last]
			e.todo[spent] = e.todo[spent][:last]
			synctest.Test(e.t, func(t *testing.T) { e.carryOut(t, b) })
		}
	}
}

func (e *explorer) push(b branch) {
	cost := b.spent.preemptions + b.spent.faults
	for len(e.todo) <= cost {
		e.todo = append(e.todo, nil)
	}
	e.todo[cost] = append(e.todo[cost], b)
}

// carryOut carries out one schedule: the branch's steps, and then whoever acts goes
// on. What else could have been done at each new state is left for later.
func (e *explorer) carryOut(t *testing.T, b branch) {
	e.schedules++
	s := newStage(t, e.sc)
	defer s.close()
	for n := 0; ; n++ {
		if n < len(b.steps) {
			s.step(b.steps[n], n == len(b.steps)-1)
		} else {
			if !e.fresh(s, b.spent) {
				e.cut++
				return
			}
			next, ok := e.spread(s, b.spent)
			if !ok {
				break
			}
			s.step(next, true)
		}
		if s.broken() {
			e.report(s, "")
			return
		}
	}
	if end := s.sched.Digest(nil, s.extra()...); !e.ends[end] {
		e.ends[end] = true
		s.quiet()
		s.verify()
		e.report(s, " (after everything was quiet)")
	}
}

// fresh reports whether the state is one from which there is more to try.
func (e *explorer) fresh(s *stage, spent bound) bool {
	key := s.state(spent)
	left := 1 + e.bound.preemptions - spent.preemptions
	if e.best[key] >= left {
		return false
	}
	e.best[key] = left
	return true
}

// spread leaves every other choice for later and returns the first.
func (e *explorer) spread(s *stage, spent bound) (choice, bool) {
	var first *choice
	for _, c := range s.choices() {
		after := spent
		if s.current >= 0 && c.who != s.current {
			after.preemptions++
		}
		if c.fault != mem.None {
			after.faults++
		}
		switch {
		case after.preemptions > e.bound.preemptions || after.faults > e.bound.faults:
		case first == nil && after == spent:
			first = &c
		default:
			e.push(branch{steps: append(slices.Clone(s.taken), c), spent: after})
		}
	}
	if first == nil {
		return choice{}, false
	}
	return *first, true
}

func (e *explorer) report(s *stage, when string) {
	if !s.broken() {
		return
	}
	e.failed++
	e.t.Errorf("%s%s:\n  %s\nschedule:\n  %s", e.sc.name, when, strings.Join(s.accusations.texts, "\n  "), strings.Join(s.trace, "\n  "))
}

// recorder is a testing.TB that keeps what is said against it, so that it can be
// told with the schedule that led there.
type recorder struct {
	testing.TB
	texts []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.texts = append(r.texts, fmt.Sprintf(format, args...))
}

// delivery is a message that was sent.
type delivery struct {
	job   core.ReclaimJob
	times int // handed out so far
}

// stage is one world with its actors in the middle of a schedule.
type stage struct {
	*world
	accusations *recorder
	sched       *mem.Sched
	sc          scenario
	actors      []*mem.Actor
	sound       map[*mem.Actor]bool // those that never fail: they are no processes of ours
	current     int                 // who acts; -1: nobody is in the middle of something
	sent        []delivery
	handed      int
	taken       []choice
	trace       []string
	hold        core.Hold // answered ok, and not released
}

func newStage(t *testing.T, sc scenario) *stage {
	accusations := &recorder{TB: t}
	store := mem.New(accusations)
	w := &world{t: t, store: store, fleet: mem.NewFleet(store), limits: testLimits()}
	s := &stage{world: w, accusations: accusations, sc: sc, sound: map[*mem.Actor]bool{}, current: -1}
	sc.seed(w)
	s.sched = mem.NewSched(w.fleet)
	sc.cast(s)
	s.collect()
	return s
}

func testLimits() core.Limits {
	limits := core.DefaultLimits
	limits.SweepWidth, limits.ProbeCalls, limits.ProbeWidth = 1, 1, 1
	limits.InlineSegment = 100
	return limits
}

func (s *stage) close() {
	for _, a := range s.actors {
		a.Close()
	}
}

func (s *stage) broken() bool { return len(s.accusations.texts) > 0 }

// choices lists what may happen next, whoever acts first.
func (s *stage) choices() []choice {
	var out []choice
	add := func(who int) {
		out = append(out, choice{who: who})
	}
	if s.current >= 0 && s.may(s.current) {
		add(s.current)
	}
	for i := range s.actors {
		if i != s.current && s.may(i) {
			add(i)
		}
	}
	for i, d := range s.sent {
		if s.handed < s.sc.deliveries && d.times < 2 {
			add(-1 - i)
		}
	}
	for _, c := range out {
		out = append(out, s.faulty(c)...)
	}
	return out
}

func (s *stage) may(i int) bool {
	a := s.actors[i]
	return !a.Over() && (a.Ready == nil || a.Ready())
}

// faulty lists how a choice may fail. A call that changes nothing has lost nothing
// with its answer.
func (s *stage) faulty(c choice) []choice {
	if c.who < 0 {
		return nil // a delivery fails at its calls
	}
	a := s.actors[c.who]
	faults := []mem.Fault{mem.NotLanded, mem.StopBefore, mem.AnswerLost, mem.StopAfter}
	switch {
	case s.sound[a]:
		return nil
	case a.ReadsOnly():
		faults = faults[:2]
	}
	var out []choice
	for _, f := range faults {
		out = append(out, choice{c.who, f})
	}
	return out
}

// step carries out one choice and, if asked to, holds the rules against what came
// of it.
func (s *stage) step(c choice, check bool) {
	s.taken = append(s.taken, c)
	if c.who < 0 {
		c.who = s.deliver(-1 - c.who)
	}
	a := s.actors[c.who]
	before := s.facts(a)
	text := a.Name + ": " + a.Waits()
	if c.fault != mem.None {
		text += " [" + c.fault.String() + "]"
	}
	s.trace = append(s.trace, text)
	s.sched.Step(a, c.fault)
	s.collect()
	s.current = c.who
	if a.Over() {
		s.current = -1
	}
	if check && !before.read {
		s.judge(before)
	}
}

// deliver hands a message to a new reclaimer.
func (s *stage) deliver(n int) int {
	s.sent[n].times++
	s.handed++
	job := s.sent[n].job
	s.play(fmt.Sprintf("reclaim %d (%s)", s.handed, job.Kind), func(p *mem.Process) {
		_, _ = s.reclaimer(p).Do(context.Background(), job) // a failed message comes again by its mark
	})
	return len(s.actors) - 1
}

// collect takes what was sent off the queue.
func (s *stage) collect() {
	for _, job := range s.store.TakeJobs() {
		s.sent = append(s.sent, delivery{job: job})
	}
}

// extra is what matters beside the records.
func (s *stage) extra() []uint64 {
	out := []uint64{uint64(s.hold.Until), uint64(s.handed)}
	for _, d := range s.sent {
		out = append(out, s.sched.Hash(string(d.job.Kind), string(d.job.Run), string(d.job.Instance)), uint64(d.times))
	}
	return out
}

func (s *stage) state(spent bound) uint64 {
	return s.sched.Digest(s.actors, append(s.extra(), uint64(s.current+1), uint64(spent.faults))...)
}

// play adds a process that may fail.
func (s *stage) play(name string, act func(p *mem.Process)) *mem.Actor {
	a := s.sched.Go(name, act)
	s.actors = append(s.actors, a)
	return a
}

// event adds something that happens in one step and never fails.
func (s *stage) event(name string, happen func()) *mem.Actor {
	a := s.play("world", func(p *mem.Process) {
		_ = p.Call(context.Background(), name, func() error { happen(); return nil })
	})
	s.sound[a] = true
	return a
}

// oneShard shows the whole index as its first shard, in one call each.
type oneShard struct{ *mem.Process }

func merged[E any](ctx context.Context, list func(ctx context.Context, shard int) ([]E, error)) ([]E, error) {
	var out []E
	for shard := range core.Shards {
		if shard == 1 {
			ctx = mem.Unscheduled(ctx)
		}
		entries, err := list(ctx, shard)
		if err != nil {
			return nil, err
		}
		out = append(out, entries...)
	}
	return out, nil
}

func (i oneShard) Detached(ctx context.Context, _ int) ([]core.IndexEntry, error) {
	return merged(ctx, i.Process.Detached)
}

func (i oneShard) Due(ctx context.Context, _ int, until core.Millis) ([]core.IndexEntry, error) {
	return merged(ctx, func(ctx context.Context, shard int) ([]core.IndexEntry, error) {
		return i.Process.Due(ctx, shard, until)
	})
}

func (i oneShard) DueSandboxes(ctx context.Context, _ int, until core.Millis) ([]core.DueSandbox, error) {
	return merged(ctx, func(ctx context.Context, shard int) ([]core.DueSandbox, error) {
		return i.Process.DueSandboxes(ctx, shard, until)
	})
}

// sweeper adds a sweep.
func (s *stage) sweeper(name string) *mem.Actor {
	return s.play(name, func(p *mem.Process) {
		sweep := s.sweep(p)
		sweep.Index, sweep.Due = oneShard{p}, oneShard{p}
		sweep.Logger = slog.New(slog.DiscardHandler)
		_, _ = sweep.Run(context.Background(), core.SweepRequest{Shards: []int{0}})
	})
}

// facts is what a step may be judged by.
type facts struct {
	read   bool
	call   string
	by     string
	agents []mem.Agent
}

func (s *stage) facts(a *mem.Actor) facts {
	if a.ReadsOnly() {
		return facts{read: true}
	}
	return facts{call: a.Waits(), by: a.Name, agents: s.fleet.Agents()}
}

// judge holds the rules of every step.
func (s *stage) judge(before facts) {
	s.store.Check(s.accusations)
	s.fleet.CheckTasks()
	runs := s.store.State().Runs
	was := map[string]mem.Agent{}
	for _, a := range before.agents {
		was[a.Task+"/"+string(a.Run)] = a
	}
	alive := map[core.RunID]int{}
	for _, a := range s.fleet.Agents() {
		r, old := runs[key(string(a.Run))], was[a.Task+"/"+string(a.Run)]
		if a.Alive {
			alive[a.Run]++
		}
		if alive[a.Run] > 1 {
			s.accusations.Errorf("run %s has two live agents", a.Run)
		}
		if a.Begun && !old.Begun && r.Status.Terminal() {
			s.accusations.Errorf("the agent of run %s begins after the run ended", a.Run)
		}
		if old.Alive && !a.Alive && before.call == "terminate" && r.Ending == nil && r.CancelRequested == 0 {
			s.accusations.Errorf("%s ends the live agent of run %s, which is neither ending nor cancelled (I1)", before.by, a.Run)
		}
		if old.Alive && !a.Alive && before.call == "stop task" && s.hold.Live(now()) {
			s.accusations.Errorf("%s stops the task of run %s after its hold was answered ok (I13)", before.by, a.Run)
		}
	}
}

// quiet lets time pass and sound sweeps and reclaims go on, until nothing is owed.
func (s *stage) quiet() {
	for _, d := range s.sent {
		if d.times == 0 {
			_, _ = s.reclaimer(s.store.Process).Do(context.Background(), d.job)
		}
	}
	for _, wait := range []time.Duration{
		2 * time.Minute, 2 * time.Minute, 25 * time.Minute, 2 * time.Minute, 40 * time.Minute, 2 * time.Minute,
		9 * time.Hour, 40 * time.Minute, 2 * time.Minute, 2 * time.Minute, 80 * time.Hour, 40 * time.Minute, 2 * time.Minute, 25 * time.Minute,
	} {
		if s.settled() || s.broken() {
			return
		}
		time.Sleep(wait)
		sweep := s.sweep(s.store.Process)
		if _, err := sweep.Run(context.Background(), core.SweepRequest{}); err != nil {
			s.accusations.Errorf("a sound sweep: %v", err)
		}
		s.trace = append(s.trace, fmt.Sprintf("(%s pass, a sound sweep and its reclaims)", wait))
		for _, job := range s.store.TakeJobs() {
			_, _ = s.reclaimer(s.store.Process).Do(context.Background(), job)
		}
		s.store.Check(s.accusations)
		s.fleet.CheckTasks()
	}
}

// settled reports whether nothing is owed any more.
func (s *stage) settled() bool {
	state := s.store.State()
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
	return len(state.Sandboxes) == 0 && len(s.fleet.Running()) == 0
}

// verify says what must be true at last, whatever the schedule was.
func (s *stage) verify() {
	if s.broken() {
		return
	}
	state := s.store.State()
	if !s.settled() {
		s.accusations.Errorf("something is owed for ever: %s", s.describe(state))
		return
	}
	written := map[core.RunID]mem.Agent{}
	for _, a := range s.fleet.Agents() {
		if a.Begun {
			written[a.Run] = a
		}
	}
	for k, r := range state.Runs {
		agent := written[k.Run]
		saved, err := core.ReadLog(context.Background(), s.store, s.store, k)
		switch {
		case err != nil:
			s.accusations.Errorf("run %s: %v", k, err)
		case r.Transcript.Complete && string(saved) != agent.Stdout:
			s.accusations.Errorf("run %s: transcript %q, want all that its agent wrote, %q", k, saved, agent.Stdout)
		case !strings.HasPrefix(agent.Stdout, string(saved)):
			s.accusations.Errorf("run %s: transcript %q is not how %q begins", k, saved, agent.Stdout)
		case r.Status == core.Completed && !agent.Exited:
			s.accusations.Errorf("run %s is completed without a sentinel (I2)", k)
		}
	}
	if s.sc.outcome != nil {
		s.sc.outcome(s)
	}
}

func (s *stage) describe(state mem.State) string {
	var b strings.Builder
	for k, r := range state.Runs {
		fmt.Fprintf(&b, "run %s %s row %q outcome %q; ", k, r.Status, r.Row, r.ReclaimOutcome)
	}
	for _, row := range state.Rows {
		fmt.Fprintf(&b, "ledger row of %s %s; ", row.Run, row.State)
	}
	for range state.Sandboxes {
		b.WriteString("an instance record; ")
	}
	fmt.Fprintf(&b, "%d tasks run", len(s.fleet.Running()))
	return b.String()
}

var scenarios = []scenario{
	{
		name: "a finished run, two sweeps and reclaim",
		seed: func(w *world) {
			w.left("r", "done\n")
			w.fleet.Exit("r", 0)
		},
		cast: func(s *stage) {
			s.sweeper("sweep A")
			s.sweeper("sweep B")
		},
		deliveries: 3,
		floor:      25000,
	},
}
