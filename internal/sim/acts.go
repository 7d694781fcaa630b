package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/core/coretest"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// apply lets a choice happen, if it can.
func (w *world) apply(c Choice) {
	w.steps++
	switch {
	case c.Op == OpGo:
		w.goOn(c)
	case c.Op.spawns():
		w.enter(c)
	default:
		w.happen(c)
	}
	w.collect()
}

// goOn lets an actor make its next calls.
func (w *world) goOn(c Choice) {
	for _, a := range w.actors {
		if a.id != c.ID {
			continue
		}
		for c.To != "" && a.waits != c.To && !a.over && !w.broken() {
			w.step(a, mem.None)
		}
		fault := c.Fault
		for n := 0; n < c.N && !a.over && !w.broken(); n++ {
			w.step(a, fault)
			fault = mem.None
		}
	}
}

// enter brings an actor.
func (w *world) enter(c Choice) {
	r := w.runs[c.Run]
	switch c.Op {
	case OpSweep, OpPlan, OpApply:
		w.enterSweep(c)
	case OpDaily:
		w.spawn(role{c.ID, "daily", "daily", c.Run}, w.limits.SweepTimeout, func(ctx context.Context, a *actor) {
			s := w.sweep(a)
			s.Due = joinedShards{w.ports(a), 0}
			begun := now()
			report, err := s.Daily(ctx) // the next day does what is left
			w.judgeAudit(a, begun, report, err)
		})
	case OpStopped:
		w.tell(c, r)
	case OpNudge:
		w.spawn(role{c.ID, "sweep", "nudge of " + string(r.key.Run), c.Run}, w.limits.SweepTimeout, func(ctx context.Context, a *actor) {
			_, _ = w.sweep(a).Nudged(ctx, r.key)
		})
	case OpDeliver:
		w.deliver(c, r)
	case OpCapture:
		if w.config.Keeper {
			w.enterWork(c, r)
		} else {
			w.enterCapture(c, r)
		}
	case OpSave, OpVerify, OpFork, OpDeleteHead, OpKeep, OpCollect, OpConverse, OpArtifact, OpErase:
		w.enterKeeper(c, r)
	case OpRedrive:
		w.redrive(c, r)
	case OpBegin, OpRenew, OpDetach, OpAttach, OpTake, OpPause, OpCancel:
		if w.config.Session {
			w.enterSession(c, r)
		} else {
			w.enterHost(c, r)
		}
	case OpContinue, OpFinish, OpFail, OpTail, OpFollow, OpList, OpAdopt:
		w.enterSession(c, r)
	default:
		w.enterOperator(c, r)
	}
}

func (w *world) enterSweep(c Choice) {
	request := core.SweepRequest{}
	switch {
	case c.Op == OpPlan:
		request.Mode = core.ModePlan
	case c.Op == OpApply && len(w.plan) == 0:
		return
	case c.Op == OpApply:
		request.Mode, request.Plan = core.ModeApply, w.plan
	case c.Op == OpSweep && c.N == 1:
		request.Runs = []core.RunKey{w.runs[c.Run].key}
	case c.Op == OpSweep && c.N > 1:
		request.Shards = []int{c.N % core.Shards, (c.N + 1) % core.Shards}
	}
	kind := "sweep"
	if c.Op == OpPlan {
		kind = "plan"
	}
	w.spawn(role{c.ID, kind, string(c.Op), c.Run}, w.limits.SweepTimeout, func(ctx context.Context, a *actor) {
		begun := now()
		report, err := w.carryOut(ctx, a, request)
		if err != nil {
			return // the next one does what is left
		}
		w.judgeReport(a, begun, report)
		if kind == "plan" {
			w.plan = report.Plan()
		}
	})
}

// tell lets ECS tell that the run's task has stopped.
func (w *world) tell(c Choice, r *agentRun) {
	task, ok := w.taskOf(r)
	if !ok || w.lives(task.arn) {
		return
	}
	news := core.StoppedTask{ARN: task.arn, StartedBy: core.StartedBy(install, task.instance), At: now().Add(-time.Duration(c.N) * time.Second)}
	w.spawn(role{c.ID, "sweep", "news of " + string(r.key.Run), c.Run}, w.limits.SweepTimeout, func(ctx context.Context, a *actor) {
		_, _ = w.sweep(a).TaskStopped(ctx, news) // late, twice or lost: it proves nothing
	})
}

// deliver hands out a message about the run, the newest or one before it, perhaps
// again.
func (w *world) deliver(c Choice, r *agentRun) {
	skip := c.N
	for i := len(w.sent) - 1; i >= 0; i-- {
		if m := &w.sent[i]; m.run == r.key.Run {
			if skip--; skip < 0 {
				w.reclaim(c.ID, m)
				return
			}
		}
	}
}

func (w *world) reclaim(id int, m *message) *actor {
	m.times++
	job, of := m.job, m.run
	return w.spawn(role{id, "reclaim", fmt.Sprintf("reclaim (%s of %s)", job.Kind, of), w.index(of)}, w.limits.ReclaimTimeout, func(ctx context.Context, a *actor) {
		a.letter = w.letterOf(job)
		outcome, err := w.reclaimer(a).Do(ctx, job)
		if err == nil { // a failed message comes again by its mark
			w.judgeWaiting(a, of, outcome)
		}
	})
}

// index is which run has that id.
func (w *world) index(id core.RunID) int {
	return max(0, slices.IndexFunc(w.runs, func(r *agentRun) bool { return r.key.Run == id }))
}

// hostTimeout bounds a host's operation; some hosts stand still for long. It is never
// over in the very moment in which one of its waits is: either might come first.
func hostTimeout(id int) time.Duration {
	if id%4 == 0 {
		return 20*time.Minute + 7*time.Millisecond
	}
	return 70*time.Second + 7*time.Millisecond
}

func (w *world) enterHost(c Choice, r *agentRun) {
	h := &r.hosts[c.N%2]
	name := fmt.Sprintf("%s of %s by host %d", c.Op, r.key.Run, c.N%2)
	known := h.run.Epoch != 0
	if !known && (c.Op == OpRenew || c.Op == OpDetach || c.Op == OpPause) {
		return
	}
	w.spawn(role{c.ID, "host", name, c.Run}, hostTimeout(c.ID), func(ctx context.Context, a *actor) {
		p, at := w.ports(a), now()
		switch c.Op {
		case OpBegin:
			w.begin(ctx, a, r, h)
		case OpRenew:
			_, _ = p.Update(ctx, r.key, core.Renew{Epoch: h.run.Epoch, Until: at.Add(w.limits.Attachment)})
			w.writes(ctx, a, r)
		case OpDetach:
			_, _ = p.Update(ctx, r.key, core.Detach{Epoch: h.run.Epoch, Now: at})
			w.rests(ctx, a, r)
		case OpPause:
			_, _ = p.Update(ctx, r.key, core.Interrupt{Epoch: h.run.Epoch, Now: at, Until: at.Add(w.limits.PauseTTL)})
		case OpCancel:
			_, _ = core.RequestCancelOf(ctx, p, r.key)
		default:
			w.attach(ctx, a, r, h, c.Op == OpTake)
		}
	})
}

// begin starts a run, or goes on to. Whatever hinders it, the host may ask again.
func (w *world) begin(ctx context.Context, a *actor, r *agentRun, h *host) {
	request := core.RunRequest{
		RunKey: r.key, Thread: w.thread(r), HostNonce: h.nonce, Definition: "d", TTLSeconds: []int64{300, 60, 600, 1200}[r.n%4],
	}
	if w.config.Idle {
		request.Reclaim = core.ReclaimIdle
	}
	if w.config.Lapses && r.n%2 == 1 {
		request.OnLapse = core.LapseCancels
	}
	run, err := w.launcher(a).Start(ctx, request)
	if err != nil {
		return
	}
	h.run = run
	if w.writes(ctx, a, r) {
		w.ensure(ctx, a, r, h)
	}
}

// ensure gives the run its task and its agent.
func (w *world) ensure(ctx context.Context, a *actor, r *agentRun, h *host) {
	l := w.launcher(a)
	material := core.KeyMaterial{Provider: provider, Definition: "d", Tenant: r.key.Tenant, Thread: w.thread(r)}
	run, err := l.Launch(ctx, h.run, material, core.TaskSpec{Cluster: w.clusterOf(r), Container: "agent"})
	if err != nil {
		w.rests(ctx, a, r)
		return
	}
	h.run = run
	if w.config.Keeper && !w.brought(ctx, a, r, run) {
		return // it asks again
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute+3*time.Millisecond)
	defer cancel()
	_, _ = coretest.StartAgent(ctx, l, run, core.JournalStart{Argv: []string{"agent"}}, nil) // it may ask again
}

func (w *world) thread(r *agentRun) core.ThreadID {
	id := core.ThreadID(fmt.Sprintf("thread-%d", r.n%w.config.Threads))
	if w.config.Keeper && r.n%2 == 1 {
		id += "-b0" // where somebody may fork to before
	}
	return id
}

// begun reports whether an agent of the run has begun in its task.
func (w *world) begun(r *agentRun, run core.Run) bool {
	_, begun := w.agent(r, run.TaskARN)
	return begun
}

// attach has a viewer come back.
func (w *world) attach(ctx context.Context, a *actor, r *agentRun, h *host, takeover bool) {
	p := w.ports(a)
	w.nonces++
	nonce := fmt.Sprintf("%s-%d", h.nonce, w.nonces)
	have, err := p.Run(ctx, r.key)
	if err != nil {
		return
	}
	t := core.Attach{Seen: have.Epoch, Nonce: nonce, Now: now(), Until: now().Add(w.limits.Attachment), Takeover: takeover}
	run, err := p.Update(ctx, r.key, t)
	if err != nil {
		return
	}
	h.run = run
	w.ensure(ctx, a, r, h)
}

func (w *world) enterOperator(c Choice, r *agentRun) {
	by := core.By{Who: "operator", Why: "an episode"}
	name := string(c.Op)
	if c.Op == OpHold || c.Op == OpRelease || c.Op == OpExtend || c.Op == OpSpend || c.Op == OpKill {
		name += " " + string(r.key.Run)
	}
	w.spawn(role{c.ID, "operator", name, c.Run}, time.Minute, func(ctx context.Context, a *actor) {
		o := w.operator(a)
		switch c.Op {
		case OpHold:
			until := now().Add(time.Duration(c.N) * time.Second)
			w.hold(r.key, until.Add(a.skew), func() error { return o.Hold(ctx, r.key, until, by) })
		case OpRelease:
			w.hold(r.key, 0, func() error { return o.Release(ctx, r.key, by) }) // what is released was promised until now
		case OpExtend:
			_ = o.Extend(ctx, r.key, int64(c.N), by)
		case OpSpend:
			_ = o.ExtendSpend(ctx, r.key, mem.TaskSize.Price()*core.Dollars(c.N)/3600, by)
		case OpKill:
			_ = o.Kill(ctx, r.key, by)
		case OpFreeze:
			_, _ = o.Freeze(ctx, by)
		case OpThaw:
			_ = o.Thaw(ctx, by)
		case OpObserve:
			_ = o.SetMode(ctx, core.Observe, by)
		case OpEnforce:
			_ = o.SetMode(ctx, core.Enforce, by)
		}
	})
}

// wish is a hold, or a release, that is under way.
type wish struct{ until, sure core.Millis }

// hold carries out an operator's wish about a hold and remembers what was promised.
// Of several wishes at a time any may be the last; the run is sure to be held for no
// longer than the shortest of them says.
func (w *world) hold(key core.RunKey, until core.Millis, do func() error) {
	o, mine := &w.oracle, &wish{until, until}
	for _, other := range o.wishes[key] {
		other.sure, mine.sure = min(other.sure, until), min(mine.sure, other.until)
	}
	o.wishes[key] = append(o.wishes[key], mine)
	o.promised[key] = min(o.promised[key], until)
	if err := do(); err == nil {
		o.promised[key] = mine.sure
	}
	o.wishes[key] = slices.DeleteFunc(o.wishes[key], func(w *wish) bool { return w == mine })
}

// happen lets something happen outside our processes.
func (w *world) happen(c Choice) {
	switch c.Op {
	case OpWait:
		w.note("%s pass", time.Duration(c.N)*time.Millisecond)
		w.pass(time.Duration(c.N) * time.Millisecond)
	case OpUntil:
		w.untilNext(c.N)
	case OpLag:
		w.note("indexes lag by %d", c.N)
		w.store.SetIndexLag(c.N)
	case OpWrite, OpRewrite, OpExit, OpDie, OpTrap:
		w.agentActs(c, w.runs[c.Run])
	case OpBlind, OpDeaf, OpMute:
		w.ecsFails(c)
	case OpSpoke, OpTenantCap, OpMeter:
		w.befalls(c)
	case OpSetup:
		w.setupEnds(c, w.runs[c.Run])
	case OpSpool:
		w.spools(c, w.runs[c.Run])
	case OpCaptureDie:
		w.note("the capture of %s dies", w.runs[c.Run].key.Run)
		w.fleet.KillCapture(w.runs[c.Run].key.Run)
		if at := w.workers(w.threadKey(w.runs[c.Run])); len(at) > 0 {
			at[0].alive = false
		}
	default:
		w.taskFails(c, w.runs[c.Run])
	}
	w.watch()
}

// untilNext lets time go by until something is over, to the millisecond: the nth of
// what the records say.
func (w *world) untilNext(n int) {
	var ends []core.Millis
	for _, r := range w.oracle.seen {
		for _, at := range []core.Millis{r.DueAt, w.expiry(r), r.ClaimUntil, r.Hold.Until, w.warnedFrom(r)} {
			if at > now() && at < now().Add(6*time.Minute) {
				ends = append(ends, at)
			}
		}
	}
	slices.Sort(ends)
	if ends = slices.Compact(ends); len(ends) > 0 {
		d := ends[min(n, len(ends)-1)].Sub(now())
		w.note("%s pass", d)
		w.pass(d)
	}
}

// pass lets time go by, and everything that was to happen by then happen.
func (w *world) pass(d time.Duration) {
	for end := now().Add(d); now() < end; {
		next := end
		for _, l := range w.ecs.late {
			next = min(next, max(l.at, now()+1))
		}
		time.Sleep(next.Sub(now()))
		synctest.Wait() // a deadline of this very moment is over
		w.land()
	}
}

func (w *world) agentActs(c Choice, r *agentRun) {
	id := r.key.Run
	if !w.fleet.Alive(id) {
		return
	}
	w.note("agent of %s: %s %d", id, c.Op, c.N)
	switch c.Op {
	case OpWrite:
		w.write(r, strings.Repeat(string(rune('a'+len(r.former)%26)), c.N-1)+"\n")
	case OpRewrite:
		r.former = append(r.former, r.written)
		r.written, r.spooled = "", 0
		w.fleet.Rewrite(id, "")
		w.write(r, strings.Repeat(string(rune('a'+len(r.former)%26)), c.N-1)+"\n")
	case OpTrap:
		r.traps = true
		w.write(r, "traps\n")
	case OpExit:
		r.exit = new(c.N)
		w.fleet.Exit(id, c.N)
	case OpDie:
		w.fleet.Die(id)
	}
}

func (w *world) write(r *agentRun, text string) {
	r.written += text
	w.touches(r, len(text))
	w.fleet.Write(r.key.Run, text)
}

func (w *world) ecsFails(c Choice) {
	until := now().Add(time.Duration(c.N) * time.Second)
	switch c.Op {
	case OpDeaf:
		w.note("ECS does not answer for %d s", c.N)
		w.ecs.deaf = until
	case OpMute:
		w.note("no exec session comes up for %d s", c.N)
		w.ecs.mute = until
	case OpBlind:
		if until, ok := w.forgetful(c.N); ok {
			w.note("ECS knows no task for %d s", c.N)
			w.ecs.blind = until
		}
	}
}

func (w *world) taskFails(c Choice, r *agentRun) {
	task, ok := w.taskOf(r)
	if !ok || !w.lives(task.arn) {
		return
	}
	switch c.Op {
	case OpTask:
		w.note("the task of %s dies", r.key.Run)
		w.fleet.KillTask(task.arn)
	case OpHide:
		if until, ok := w.forgetful(c.N); ok {
			w.note("ECS does not know the task of %s for %d s", r.key.Run, c.N)
			w.ecs.hidden[task.arn] = until
		}
	case OpForget:
		w.note("the task of %s dies, and ECS forgets it", r.key.Run)
		w.fleet.KillTask(task.arn)
		w.fleet.Forget(task.arn)
		w.ecs.forgotten[string(task.instance)] = task.arn
	}
}
