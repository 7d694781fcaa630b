package core_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
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
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // short-lived worlds, in thousands
	total := make(chan int, len(scenarios))
	t.Run("scenarios", func(t *testing.T) {
		for _, sc := range scenarios {
			t.Run(sc.name, func(t *testing.T) {
				t.Parallel()
				e := &explorer{sc: sc, bound: b, best: map[uint64]int{}, readsFirst: map[string]bool{}, ends: map[uint64]bool{}}
				synctest.Test(t, e.explore)
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
	// limits, if set, changes them.
	limits func(l *core.Limits)
	// seed, if set, brings the world to where the schedules begin, without faults.
	seed func(w *world)
	// cast adds the actors.
	cast func(s *stage)
	// fair has the sweeps keep their cursors and budgets, which decide nothing where
	// there is one run.
	fair bool
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
	todo                   [][]branch     // by what they have spent
	best                   map[uint64]int // state: the most preemptions that were left in it
	readsFirst             map[string]bool
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

func (e *explorer) explore(t *testing.T) {
	e.t = t
	e.push(branch{})
	for spent := 0; spent < len(e.todo); spent++ {
		for len(e.todo[spent]) > 0 && e.failed < mostFailures {
			last := len(e.todo[spent]) - 1
			b := e.todo[spent][last]
			e.todo[spent] = e.todo[spent][:last]
			e.carryOut(b)
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
func (e *explorer) carryOut(b branch) {
	e.schedules++
	s := newStage(e.t, e.sc, e.readsFirst)
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
			if !ok && s.unfinished() {
				e.cut++ // the same as a schedule without the last preemption
				return
			}
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
	begun       core.Millis
	actors      []*mem.Actor
	sound       map[*mem.Actor]bool // those that never fail: they are no processes of ours
	current     int                 // who acts; -1: nobody is in the middle of something
	waiting     map[int]bool        // preempted, and nothing has happened since that its next call could notice
	preempted   map[int]bool        // at their next call
	readsFirst  map[string]bool     // actors whose first call changes nothing, as far as any schedule has shown
	sent        []delivery
	handed      int
	taken       []choice
	trace       []string
	held        map[core.RunID]core.Millis  // holds that were answered ok and not released
	settings    map[*mem.Actor]core.Control // the settings as each actor last read them
	lost        map[core.RunID]bool         // runs whose task died by itself
}

func newStage(t *testing.T, sc scenario, readsFirst map[string]bool) *stage {
	accusations := &recorder{TB: t}
	store := mem.New(accusations)
	w := &world{t: t, store: store, fleet: mem.NewFleet(store), limits: testLimits()}
	s := &stage{
		world: w, accusations: accusations, sc: sc, current: -1, readsFirst: readsFirst, sound: map[*mem.Actor]bool{}, waiting: map[int]bool{}, preempted: map[int]bool{},
		held: map[core.RunID]core.Millis{}, settings: map[*mem.Actor]core.Control{}, lost: map[core.RunID]bool{},
	}
	if sc.limits != nil {
		sc.limits(&w.limits)
	}
	// Every schedule begins at a full hour: budgets are kept by the minute.
	time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
	if sc.seed != nil {
		sc.seed(w)
	}
	s.begun = now()
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
//
// Left out is what changes nothing against another schedule that spends no more: to
// let an actor go on that was preempted for nothing, since its call could as well
// have come before; and to let it fail there without a trace.
func (s *stage) choices() []choice {
	var out []choice
	if s.current >= 0 && s.may(s.current) {
		out = append(out, choice{who: s.current})
	}
	for i := range s.actors {
		if i != s.current && s.may(i) && !s.waiting[i] {
			out = append(out, choice{who: i})
		}
	}
	for i, d := range s.sent {
		if s.handed < s.sc.deliveries && d.times < 2 {
			out = append(out, choice{who: -1 - i})
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

// unfinished reports whether somebody could go on.
func (s *stage) unfinished() bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(s.waiting)), s.may)
}

// faulty lists how a choice may fail. Where a process stops is told by the last
// write that it made, or that it made none; a call that changes nothing has lost
// nothing with its answer; and one that fails at its first call without a trace has
// not begun.
func (s *stage) faulty(c choice) []choice {
	if c.who < 0 {
		return nil // a delivery fails at its calls
	}
	a := s.actors[c.who]
	if s.sound[a] || strings.HasPrefix(a.Waits(), "(") {
		return nil
	}
	var out []choice
	if a.Begun() && !s.preempted[c.who] {
		out = append(out, choice{c.who, mem.NotLanded})
	}
	if a.Begun() && !a.ReadsOnly() || !a.Begun() && !s.readsFirst[a.Name] {
		out = append(out, choice{c.who, mem.AnswerLost}, choice{c.who, mem.StopAfter})
	}
	if len(s.taken) == 0 {
		out = append(out, choice{c.who, mem.StopBefore})
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
	if !a.Begun() {
		a.Begin()
		s.readsFirst[a.Name] = a.ReadsOnly()
	}
	if a.Over() {
		return // it found nothing to do
	}
	var before facts
	if check {
		before = s.facts(a)
	}
	text := a.Name + ": " + a.Waits()
	if c.fault != mem.None {
		text += " [" + c.fault.String() + "]"
	}
	s.trace = append(s.trace, text)
	s.wake(c)
	if a.Waits() == "read control" {
		s.settings[a] = s.store.Settings()
	}
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

// wake notes that c happens: its actor goes on, one that is preempted by it waits,
// and those go on waiting that cannot notice it.
func (s *stage) wake(c choice) {
	delete(s.waiting, c.who)
	delete(s.preempted, c.who)
	if s.current >= 0 && s.current != c.who { // preempted
		s.waiting[s.current], s.preempted[s.current] = true, true
	}
	call := s.actors[c.who].Waits()
	for i := range s.waiting {
		if c.fault != mem.NotLanded && c.fault != mem.StopBefore && mem.Conflict(call, s.actors[i].Waits()) {
			delete(s.waiting, i)
		}
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
	out := []uint64{uint64(s.handed)}
	for _, run := range slices.Sorted(maps.Keys(s.held)) {
		out = append(out, s.sched.Hash(string(run)), uint64(s.held[run]-s.begun))
	}
	for _, d := range s.sent {
		out = append(out, s.sched.Hash(string(d.job.Kind), string(d.job.Run), string(d.job.Instance)), uint64(d.times))
	}
	return out
}

func (s *stage) state(spent bound) uint64 {
	extra := append(s.extra(), uint64(s.current+1), uint64(spent.faults))
	for i := range s.actors {
		if s.waiting[i] {
			extra = append(extra, uint64(2*i))
		}
		if s.preempted[i] {
			extra = append(extra, uint64(2*i+1))
		}
	}
	return s.sched.Digest(s.actors, extra...)
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

func merged[E any](ctx context.Context, shard int, list func(ctx context.Context, shard int) ([]E, error)) ([]E, error) {
	if shard != 0 {
		return nil, nil
	}
	var out []E
	for n := range core.Shards {
		if n == 1 {
			ctx = mem.Unscheduled(ctx)
		}
		entries, err := list(ctx, n)
		if err != nil {
			return nil, err
		}
		out = append(out, entries...)
	}
	return out, nil
}

func (i oneShard) Detached(ctx context.Context, shard int) ([]core.IndexEntry, error) {
	return merged(ctx, shard, i.Process.Detached)
}

func (i oneShard) Due(ctx context.Context, shard int, until core.Millis) ([]core.IndexEntry, error) {
	return merged(ctx, shard, func(ctx context.Context, n int) ([]core.IndexEntry, error) { return i.Process.Due(ctx, n, until) })
}

func (i oneShard) DueSandboxes(ctx context.Context, shard int, until core.Millis) ([]core.DueSandbox, error) {
	return merged(ctx, shard, func(ctx context.Context, n int) ([]core.DueSandbox, error) {
		return i.Process.DueSandboxes(ctx, n, until)
	})
}

// facts are what a step is judged by: how it was before.
type facts struct {
	read   bool
	actor  *mem.Actor
	call   string
	runs   map[core.RunKey]core.Run
	agents map[string]mem.Agent
	tasks  []string
}

func (s *stage) facts(a *mem.Actor) facts {
	if a.ReadsOnly() {
		return facts{read: true, actor: a, call: a.Waits()}
	}
	f := facts{actor: a, call: a.Waits(), runs: s.store.State().Runs, agents: map[string]mem.Agent{}, tasks: s.fleet.Running()}
	for _, agent := range s.fleet.Agents() {
		f.agents[agent.Task+"/"+string(agent.Run)] = agent
	}
	return f
}

// judge holds the rules of every step that may have changed something.
func (s *stage) judge(before facts) {
	s.store.Check(s.accusations)
	s.fleet.CheckTasks()
	runs := s.store.State().Runs
	s.judgeAgents(before, runs)
	s.judgeEnding(before, runs)
	if before.call == "stop task" {
		s.judgeStop(before, runs)
	}
}

// judgeAgents: one live agent a run, none after the run's end, and nobody ends one
// whose run is not to end.
func (s *stage) judgeAgents(before facts, runs map[core.RunKey]core.Run) {
	alive := map[core.RunID]int{}
	for _, a := range s.fleet.Agents() {
		r, was := runs[key(string(a.Run))], before.agents[a.Task+"/"+string(a.Run)]
		if a.Alive {
			alive[a.Run]++
		}
		s.need(alive[a.Run] <= 1, "run %s has two live agents (I14)", a.Run)
		s.need(!a.Begun || was.Begun || !r.Status.Terminal(), "the agent of run %s begins after the run ended", a.Run)
		s.need(before.call != "terminate" || !was.Alive || a.Alive || r.Ending != nil || r.CancelRequested != 0,
			"%s ends the live agent of run %s, which is neither ending nor cancelled (I1)", before.actor.Name, a.Run)
	}
}

// judgeEnding: a run is decided to end by its clock, under the settings that allow
// it and under no hold.
func (s *stage) judgeEnding(before facts, runs map[core.RunKey]core.Run) {
	for k, r := range runs {
		was := before.runs[k]
		if r.Ending == nil || was.Ending != nil || r.Ending.Reason == core.EndCancelled {
			continue
		}
		s.need(!s.settings[before.actor].Blocked(), "%s ends run %s although it read that nothing is to be ended (I13)", before.actor.Name, k)
		if r.Ending.Reason == core.EndExpired {
			s.need(s.held[k.Run] <= now(), "%s expires run %s after its hold was answered ok (I13)", before.actor.Name, k)
			since, ttl := max(was.DetachedSince, was.InterruptedSince), time.Duration(max(was.TTLSeconds, was.PauseSeconds))*time.Second
			s.need(since.Add(ttl) <= now(), "%s expires run %s before its time", before.actor.Name, k)
		}
	}
}

// judgeStop: nobody stops a task under a hold, or under settings that forbid it.
func (s *stage) judgeStop(before facts, runs map[core.RunKey]core.Run) {
	running := s.fleet.Running()
	for _, arn := range before.tasks {
		if slices.Contains(running, arn) {
			continue
		}
		s.need(s.settings[before.actor].Stops(), "%s stops task %s although it read that nothing is to be stopped (I13)", before.actor.Name, arn)
		for k, until := range s.held {
			s.need(runs[key(string(k))].TaskARN != arn || until <= now(), "%s stops the task of run %s after its hold was answered ok (I13)", before.actor.Name, k)
		}
	}
}

func (s *stage) need(holds bool, format string, args ...any) {
	if !holds {
		s.accusations.Errorf(format, args...)
	}
}

// quiet lets time pass and sound sweeps and reclaims go on, until nothing is owed.
func (s *stage) quiet() {
	for _, d := range s.sent {
		if d.times == 0 {
			_, _ = s.reclaimer(s.store.Process).Do(context.Background(), d.job)
		}
	}
	often := slices.Repeat([]time.Duration{2 * time.Minute}, 20)
	waits := slices.Concat(often, []time.Duration{40 * time.Minute}, often, []time.Duration{9 * time.Hour}, often, []time.Duration{80 * time.Hour}, often)
	for n, wait := range waits {
		if s.settled() || s.broken() {
			return
		}
		time.Sleep(wait)
		if n == 2 { // by now somebody has looked
			_, _ = s.store.UpdateControl(context.Background(), core.Thaw{})
			s.limits.BreakerMost = core.DefaultLimits.BreakerMost
			s.trace = append(s.trace, "(an operator thaws)")
		}
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
	agents := map[core.RunID]mem.Agent{}
	for _, a := range s.fleet.Agents() {
		if a.Begun {
			agents[a.Run] = a
		}
	}
	for k, r := range state.Runs {
		s.verifyRun(r, agents[k.Run])
	}
	if s.sc.outcome != nil {
		s.sc.outcome(s)
	}
}

// verifyRun: what the agent wrote is saved, all of it unless its task was lost, and
// its own end is the run's.
func (s *stage) verifyRun(r core.Run, agent mem.Agent) {
	saved, err := core.ReadLog(context.Background(), s.store, s.store, r.RunKey)
	s.need(err == nil, "run %s: %v", r.RunKey, err)
	whole := string(saved) == agent.Stdout
	s.need(strings.HasPrefix(agent.Stdout, string(saved)), "run %s: transcript %q is not how %q begins", r.RunKey, saved, agent.Stdout)
	s.need(!r.Transcript.Complete || whole, "run %s: transcript %q is called complete, its agent wrote %q", r.RunKey, saved, agent.Stdout)
	s.need(s.lost[r.RunKey.Run] || whole && r.Transcript.Complete, "run %s: transcript %q (complete: %t), want all that its agent wrote, %q",
		r.RunKey, saved, r.Transcript.Complete, agent.Stdout)
	s.need(r.Status != core.Completed || agent.Exited, "run %s is completed without a sentinel (I2)", r.RunKey)
	s.need(s.lost[r.RunKey.Run] || !agent.Exited || r.Status == core.Completed, "run %s: its agent ended by itself, and it is %s (%+v)",
		r.RunKey, r.Status, r.Error)
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
