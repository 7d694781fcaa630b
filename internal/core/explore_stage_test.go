package core_test

import (
	"context"
	"fmt"
	"maps"
	"math/bits"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// scenario is who acts on what.
type scenario struct {
	name string
	// limits, if set, changes them.
	limits func(l *core.Limits)
	// checkpoint is the installation's policy.
	checkpoint core.CheckpointPolicy
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

// delivery is a message that was sent.
type delivery struct {
	job   core.ReclaimJob
	hash  uint64
	times int // handed out so far
}

// stage is one world with its actors in the middle of a schedule.
type stage struct {
	*world
	*explorer
	accusations *recorder
	sched       *mem.Sched
	begun       core.Millis
	actors      []*mem.Actor
	sound       map[*mem.Actor]bool // those that never fail: they are no processes of ours
	current     int                 // who acts; -1: nobody is in the middle of something
	waits       waits
	sent        []delivery
	handed      int
	taken       []choice
	trace       []string
	held        map[core.RunID]core.Millis  // holds that were answered ok and not released
	settings    map[*mem.Actor]core.Control // the settings as each actor last read them
	lost        map[core.RunID]bool         // runs whose task died by itself
}

// waits are sets of actors, a bit each.
type waits struct {
	preempted uint64 // at their next call
	asleep    uint64 // and nothing has happened since that their next call could notice
}

func newStage(e *explorer) *stage {
	accusations := &recorder{TB: e.t}
	store := mem.New(accusations)
	s := &stage{
		world:    &world{t: e.t, store: store, fleet: mem.NewFleet(store), limits: testLimits(), checkpoint: e.sc.checkpoint},
		explorer: e, accusations: accusations, current: -1, sound: map[*mem.Actor]bool{},
		held: map[core.RunID]core.Millis{}, settings: map[*mem.Actor]core.Control{}, lost: map[core.RunID]bool{},
	}
	if e.sc.limits != nil {
		e.sc.limits(&s.limits)
	}
	// Every schedule begins at a full hour: budgets are kept by the minute.
	time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
	if e.sc.seed != nil {
		e.sc.seed(s.world)
	}
	s.begun = now()
	s.sched = mem.NewSched(s.fleet)
	e.sc.cast(s)
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
// Left out, unless everything is asked for, is what changes nothing against another schedule that spends no more: to
// let an actor go on that was preempted for nothing, since its call could as well
// have come before; and to let it fail there without a trace.
func (s *stage) choices() []choice {
	var out []choice
	if s.current >= 0 && s.may(s.current) {
		out = append(out, choice{who: int8(s.current)})
	}
	for i := range s.actors {
		if i != s.current && s.may(i) && (s.everything || s.waits.asleep&(1<<i) == 0) {
			out = append(out, choice{who: int8(i)})
		}
	}
	for i, d := range s.sent {
		if s.handed < s.sc.deliveries && d.times < 2 {
			out = append(out, choice{who: int8(-1 - i)})
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
	for i := range s.actors {
		if s.waits.asleep&(1<<i) != 0 && s.may(i) {
			return true
		}
	}
	return false
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
	call := a.Waits()
	if !a.Begun() {
		call = s.first[a.Name]
	}
	if s.sound[a] || strings.HasPrefix(call, "(") {
		return nil
	}
	var out []choice
	add := func(f mem.Fault) { out = append(out, choice{c.who, int8(f)}) }
	if s.everything || a.Begun() && s.waits.preempted&(1<<c.who) == 0 {
		add(mem.NotLanded)
	}
	if !mem.ReadsOnly(call) {
		add(mem.AnswerLost)
		add(mem.StopAfter)
	}
	if s.everything || len(s.taken) == 0 {
		add(mem.StopBefore)
	}
	return out
}

// after is who waits once c happens: its actor goes on, one that is preempted by it
// waits, and those sleep on that cannot notice it.
func (s *stage) after(c choice, call string) waits {
	w := s.waits
	w.asleep &^= 1 << c.who
	w.preempted &^= 1 << c.who
	if s.current >= 0 && s.current != int(c.who) {
		w.asleep |= 1 << s.current
		w.preempted |= 1 << s.current
	}
	if f := mem.Fault(c.fault); f == mem.NotLanded || f == mem.StopBefore {
		return w
	}
	for rest := w.asleep; rest != 0; rest &= rest - 1 {
		i := bits.TrailingZeros64(rest)
		if mem.Conflict(call, s.actors[i].Waits()) {
			w.asleep &^= 1 << i
		}
	}
	return w
}

// step carries out one choice and, if asked to, holds the rules against what came
// of it.
func (s *stage) step(c choice, check bool) {
	s.taken = append(s.taken, c)
	if c.who < 0 {
		c.who = int8(s.deliver(int(-1 - c.who)))
	}
	a, f := s.actors[c.who], mem.Fault(c.fault)
	if !a.Begun() {
		a.Begin()
		s.first[a.Name] = a.Waits()
	}
	call := a.Waits()
	var before facts
	if check && !mem.ReadsOnly(call) {
		before = s.facts(a)
	}
	s.note(a, f)
	s.waits = s.after(c, call)
	if call == "read control" {
		s.settings[a] = s.store.Settings()
	}
	var o outlook
	if check {
		o = s.outlook(c)
	}
	begun := now()
	s.sched.Step(a, f)
	s.collect()
	s.current = int(c.who)
	if a.Over() {
		s.current = -1
	}
	if o.known && now() == begun {
		s.goesOn[o.told] = a.Standing()
		if o.writes {
			s.effect[mem.Mix(o.around, o.plain)] = s.around()
		}
	}
	if before.actor != nil {
		s.judge(before)
	}
}

func (s *stage) note(a *mem.Actor, f mem.Fault) {
	text := a.Name + ": " + a.Waits()
	if f != mem.None {
		text += " [" + f.String() + "]"
	}
	s.trace = append(s.trace, text)
}

// deliver hands a message to a new reclaimer.
func (s *stage) deliver(n int) int {
	s.sent[n].times++
	s.handed++
	job := s.sent[n].job
	s.play(fmt.Sprintf("reclaim %d (%s)", s.handed, s.named(job)), func(p *mem.Process) {
		_, _ = s.reclaimer(p).Do(context.Background(), job) // a failed message comes again by its mark
	})
	return len(s.actors) - 1
}

// named words a message, the same in every schedule.
func (s *stage) named(job core.ReclaimJob) string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", job.Kind, s.sched.Named(string(job.Instance)), job.Run))
}

// collect takes what was sent off the queue.
func (s *stage) collect() {
	for _, job := range s.store.TakeJobs() {
		s.sent = append(s.sent, delivery{job: job, hash: mem.HashOf(s.named(job))})
	}
}

// extra is what matters beside the records.
func (s *stage) extra() []uint64 {
	out := []uint64{uint64(s.handed)}
	for _, run := range slices.Sorted(maps.Keys(s.held)) {
		out = append(out, mem.HashOf(string(run)), uint64(s.held[run]-s.begun))
	}
	for _, d := range s.sent {
		out = append(out, d.hash, uint64(d.times))
	}
	return out
}

// around is everything outside the actors.
func (s *stage) around() uint64 { return mem.Mix(append(s.extra(), s.sched.Digest())...) }

// key is the state, with the faults that were spent.
func (s *stage) key(faults int) uint64 {
	return keyOf(s.around(), s.others(-1), s.current, s.waits, faults)
}

// others is where all actors but one stand.
func (s *stage) others(but int) uint64 {
	var sum uint64
	for i, a := range s.actors {
		if i != but {
			sum += a.Standing().Digest(i)
		}
	}
	return sum
}

func keyOf(around, actors uint64, current int, w waits, faults int) uint64 {
	return mem.Mix(around, actors, uint64(current+1), uint64(faults), w.asleep, w.preempted)
}

// outlook is what may be told of a choice before it is carried out.
func (s *stage) outlook(c choice) outlook {
	if c.who < 0 {
		return outlook{}
	}
	a, f := s.actors[c.who], mem.Fault(c.fault)
	call := a.Waits()
	if !a.Begun() {
		call = s.first[a.Name]
	}
	if !mem.Known(call) {
		return outlook{}
	}
	return outlook{
		known: true, who: c.who, stops: f == mem.StopBefore || f == mem.StopAfter,
		writes: !mem.ReadsOnly(call) && f != mem.NotLanded && f != mem.StopBefore,
		around: s.around(), others: s.others(int(c.who)),
		plain: s.sched.Told(a, call, mem.None), told: s.sched.Told(a, call, f), waits: s.after(c, call),
	}
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
	actor  *mem.Actor
	call   string
	runs   map[core.RunKey]core.Run
	agents map[string]mem.Agent
	tasks  []string
	thread core.Thread
}

func (s *stage) facts(a *mem.Actor) facts {
	f := facts{actor: a, call: a.Waits(), runs: s.store.State().Runs, agents: map[string]mem.Agent{}, tasks: s.fleet.Running(), thread: s.store.State().Threads[threadR]}
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
	s.judgeClaims(before, runs)
	s.judgeAgents(before, runs)
	s.judgeEnding(before, runs)
	if before.call == "stop task" {
		s.judgeStop(before, runs)
	}
	s.judgeThread(before, runs)
}

// judgeThread: a capture publishes nothing once its loss is told or its lease is
// another's, and a loss is told only of what is not stored (I5, I11).
func (s *stage) judgeThread(before facts, runs map[core.RunKey]core.Run) {
	state := s.store.State()
	th := state.Threads[threadR]
	stored := state.Checkpoints[threadR]
	if th.Head != before.thread.Head {
		r := runs[key("r")]
		s.need(r.Checkpoint.State != core.CheckpointLost && before.thread.WorkspaceLost == nil, "%s publishes %s after its loss was told (I5)", before.actor.Name, th.Head)
		s.need(before.thread.Lease.Owner == core.OwnerReclaim+"r", "%s publishes under the lease of %q (I11)", before.actor.Name, before.thread.Lease.Owner)
	}
	if lost := th.WorkspaceLost; lost != nil && before.thread.WorkspaceLost == nil {
		_, there := stored[core.CheckpointOf(lost.Run)]
		s.need(!there, "%s tells the loss of run %s, whose workspace is stored (I5)", before.actor.Name, lost.Run)
		s.need(th.Lease.Owner != core.OwnerReclaim+string(lost.Run), "%s tells the loss of run %s while it may be captured (I5)", before.actor.Name, lost.Run)
	}
}

// judgeClaims: a claim raises the epoch of a run that is free to be claimed, and what
// is written under a claim is written while it holds (I3, I8).
func (s *stage) judgeClaims(before facts, runs map[core.RunKey]core.Run) {
	for k, r := range runs {
		was := before.runs[k]
		if reflect.DeepEqual(was, r) {
			continue
		}
		switch before.call {
		case "claim", "attach":
			s.need(r.Epoch == was.Epoch+1, "%s takes run %s without an epoch of its own (I3)", before.actor.Name, k)
		case "lapse", "cancel due":
			s.need(was.DueAt <= now(), "%s turns run %s, whose host has time left (I9)", before.actor.Name, k)
		case "append", "finish", "release":
			holder := s.sched.Named(was.ClaimNonce) // an actor's nonces begin with its name
			s.need(strings.HasPrefix(holder, before.actor.Name), "%s carries out %q on run %s under a lost claim (I3)", before.actor.Name, before.call, k)
		}
		s.need(r.Status != core.Running || r.ClaimUntil == 0 || r.Row == core.RowDetached, "run %s is claimed although it is not detached (I8)", k)
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
		s.reclaims()
		for k := range s.store.State().Runs { // whoever captures still comes to its end, or is fenced
			_ = s.fleet.View(s.store.Process).CommitCapture(context.Background(), k.Run)
		}
		s.reclaims()
		s.store.Check(s.accusations)
		s.fleet.CheckTasks()
	}
}

func (s *stage) reclaims() {
	for _, job := range s.store.TakeJobs() {
		_, _ = s.reclaimer(s.store.Process).Do(context.Background(), job)
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
		s.verifyCheckpoint(r, state)
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

// verifyCheckpoint: what a run owed is stored, whole, or its loss is recorded and told;
// and the record says which.
func (s *stage) verifyCheckpoint(r core.Run, state mem.State) {
	thread := core.ThreadKey{Tenant: r.Tenant, Thread: r.Thread}
	stored, there := state.Checkpoints[thread][core.CheckpointOf(r.RunKey.Run)]
	loss := state.Threads[thread].WorkspaceLost
	told := loss != nil && loss.Run == r.RunKey.Run
	c := r.Checkpoint
	s.need(c.State == core.CheckpointNotOwed || c.Settled(), "run %s: what became of its checkpoint is not known: %+v (I5)", r.RunKey, c)
	s.need(there == (c.State == core.CheckpointDone), "run %s: checkpoint %+v, stored %t (I5)", r.RunKey, c, there)
	s.need(told == (c.State == core.CheckpointLost), "run %s: checkpoint %+v, told as lost %t (I5)", r.RunKey, c, told)
	s.need(!there || s.lost[r.RunKey.Run] || stored.Digest == s.fleet.Workspace(r.TaskARN), "run %s: its checkpoint is not its workspace (I5)", r.RunKey)
	s.need(c.State != core.CheckpointLost || slices.Contains(s.told(core.NoticeCheckpointFailed), string(r.RunKey.Run)), "run %s: nobody was told of its loss (I5)", r.RunKey)
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
