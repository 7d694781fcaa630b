package sim

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// oracle is what the invariants need to remember.
type oracle struct {
	begun    core.Millis
	seen     map[core.RunKey]core.Run    // records after the last step
	promised map[core.RunKey]core.Millis // holds that were answered ok
	wishes   map[core.RunKey][]*wish
	frozen   bool
	frozenAt int           // after how many calls
	unsealed []core.Millis // when runs were ended that did not end by themselves, since the last thaw
	ends     int           // runs that came to their end

	threads  map[core.ThreadKey]core.Thread       // after the last step
	state    mem.State                            // then, where there is a keeper
	lost     map[core.RunKey]bool                 // whose loss was written on the thread
	told     map[core.RunKey]core.CheckpointState // of whose checkpoint other systems were told, and what
	storable map[core.RunKey]bool                 // whose workspace could be stored when everything was sound again

	serves  map[string]core.RunID             // whose sandbox a task was last, where there is a keeper
	metered map[core.InstanceID]core.Metering // what tasks are metered by, as seen last
	marked  map[core.RunKey]mark              // of which end a warning was noted as given
}

// judge holds the rules against what a's call changed.
func (w *world) judge(a *actor, call string) {
	w.store.Check(w.recorder)
	w.fleet.CheckTasks()
	w.watch()
	w.judgeControl()
	if w.config.Keeper {
		state := w.store.State()
		w.judgeKept(a, call, w.oracle.state, state)
		for _, box := range state.Sandboxes {
			w.oracle.serves[box.TaskARN] = box.LatestRun
		}
		w.oracle.state = state
	}
	w.judgeThreads(a.name)
	w.judgeHands(a, call)
	w.judgeCaps(a, call)
	w.judgeMarks(a, call)
	w.watchLetters()
	if call == "start capture" && a.kind == "reclaim" {
		w.judgeBegin(a)
	}
	if a.kind == "plan" || a.looks {
		if writes := a.p.Writes(); len(writes) > 0 {
			w.accuse("%s writes although it may only look: %v (I13)", a.name, writes)
		}
	}
	for _, r := range w.runs {
		after, err := w.store.Run(context.Background(), r.key)
		if err != nil {
			continue
		}
		before := w.oracle.seen[r.key]
		w.oracle.seen[r.key] = after
		if before.Epoch != 0 {
			w.judgeRun(a, r, before, after)
		}
	}
}

// judgeControl notes when the installation was frozen.
func (w *world) judgeControl() {
	c, err := w.store.Control(context.Background())
	if err != nil {
		return
	}
	if c.Frozen && !w.oracle.frozen {
		w.oracle.frozenAt = w.calls
	}
	if w.call == "thaw" {
		w.oracle.unsealed = nil
	}
	w.oracle.frozen = c.Frozen
}

func (w *world) judgeRun(a *actor, r *agentRun, before, after core.Run) {
	if a.kind == "sweep" && w.call == "claim" && after.ClaimNonce != before.ClaimNonce {
		a.epochs[r.key] = after.Epoch
		w.judgeClaim(a, r, before, after)
	}
	if a.kind == "sweep" && (after.LogEnd != before.LogEnd || after.Status.Terminal() && !before.Status.Terminal()) && a.epochs[r.key] != before.Epoch {
		w.accuse("%s writes run %s under a claim that it has lost (I3)", a.name, r.key)
	}
	if after.LogEnd != before.LogEnd {
		w.judgeLog(r)
	}
	if w.call == "lapse" && after.Row != before.Row && before.DueAt > now().Add(a.skew) {
		w.accuse("%s lapses run %s, whose host is attached (I8)", a.name, r.key)
	}
	if w.call == "hint" && after.ExitedAt != before.ExitedAt && after.OnLapse == core.LapseCancels && after.Row == core.RowLapse && after.DueAt < before.DueAt {
		w.accuse("%s has run %s cancelled sooner, on its agent's word (I1)", a.name, r.key)
	}
	if after.ClaimNonce != before.ClaimNonce && after.Epoch <= before.Epoch {
		w.accuse("%s takes run %s under epoch %d, which is another's (I3)", a.name, r.key, after.Epoch)
	}
	attached := before.Row == core.RowLapse && before.DueAt > now().Add(a.skew)
	if w.call == "attach" && after.Epoch != before.Epoch && attached && !strings.HasPrefix(a.name, string(OpTake)) {
		w.accuse("%s takes run %s, whose host is attached, and did not say that it would (I8)", a.name, r.key)
	}
	if before.Row == core.RowReclaim && after.Row == core.RowNone && after.ReclaimOutcome == core.ReclaimDestroyed && w.lives(after.TaskARN) {
		w.accuse("%s says that the sandbox of run %s is gone, and its task lives (I5)", a.name, r.key)
	}
	if after.Hold != before.Hold || after.TTLSeconds != before.TTLSeconds || after.SpendCap != before.SpendCap || after.DetachedSince != before.DetachedSince || after.InterruptedSince != before.InterruptedSince || after.Epoch != before.Epoch || after.ClaimUntil != before.ClaimUntil {
		r.moved = w.calls
	}
	if r.over == 0 && (after.Status.Terminal() || after.Ending != nil || after.CancelRequested != 0) {
		r.over = w.calls
	}
	if after.Status.Terminal() && !before.Status.Terminal() {
		w.oracle.ends++
		blocked := a.control.Blocked()
		if w.call == "continued" { // a host's wish, which the breaker does not count
			blocked = a.control.Frozen
		}
		if cancelled := after.Ending != nil && after.Ending.Reason == core.EndCancelled; after.ExitCode == nil && !cancelled && blocked {
			w.accuse("%s closes run %s without a sentinel although it is frozen or tripped (I13)", a.name, r.key)
		}
		w.judgeEnd(r, before, after)
		w.judgeOwing(r, after)
	}
}

// agent is a run's agent in its own task, as it truly is.
func (w *world) agent(r *agentRun, task string) (mem.Agent, bool) {
	for _, agent := range w.fleet.Agents() {
		if agent.Run == r.key.Run && agent.Task == task {
			return agent, true
		}
	}
	return mem.Agent{}, false
}

// watch notes since when nobody can end a run's journal any more, and that no run
// has two agents.
func (w *world) watch() {
	alive := map[core.RunID]int{}
	agents := w.fleet.Agents()
	for _, a := range agents {
		if a.Alive {
			if alive[a.Run]++; alive[a.Run] > 1 {
				w.accuse("run %s has two live agents (I14)", a.Run)
			}
		}
	}
	for _, r := range w.runs {
		run, err := w.store.Run(context.Background(), r.key)
		if err != nil {
			continue
		}
		if run.Instance != r.rowOf {
			if _, err := w.store.Row(context.Background(), run.Instance); err == nil {
				r.rowOf, r.rowAt = run.Instance, w.calls
			}
		}
		able := slices.ContainsFunc(agents, func(a mem.Agent) bool {
			return a.Run == r.key.Run && a.Task == run.TaskARN && (a.Alive || a.Exited)
		})
		if run.Status.Terminal() && alive[r.key.Run] > 0 && !w.oracle.seen[r.key].Status.Terminal() && w.call == "start agent" {
			w.accuse("the agent of run %s begins after its end", r.key.Run)
		}
		switch {
		case able || run.TaskARN == "":
			r.idle = 0
		case r.idle == 0:
			r.idle = now()
		}
	}
}

// judgeClaim: a sweep takes only what has ended, or must (I1, I2, I13).
func (w *world) judgeClaim(a *actor, r *agentRun, before, after core.Run) {
	at := now().Add(a.skew)
	if after.Epoch != before.Epoch+1 {
		w.accuse("%s claims run %s without a new epoch (I3)", a.name, r.key)
	}
	if before.Status == core.Running && before.Row != core.RowDetached {
		w.accuse("%s claims run %s, whose host is attached (I8)", a.name, r.key)
	}
	if !a.read {
		w.accuse("%s claims run %s without knowing the operator's settings (I13)", a.name, r.key)
	}
	if fresh := before.Ending == nil && after.Ending != nil; fresh && after.Ending.Reason != core.EndCancelled {
		if !a.free {
			w.accuse("%s ends run %s (%s) although it is frozen or tripped (I13)", a.name, r.key, after.Ending.Reason)
		}
		if due := after.Ending.Reason == core.EndExpired || after.Ending.Reason == core.EndSpendCap; due && before.Hold.Live(at) {
			w.accuse("%s expires run %s, which is held (I13)", a.name, r.key)
		}
		w.count(r)
	}
	agent, begun := w.agent(r, before.TaskARN)
	end := core.EndReason("")
	if after.Ending != nil {
		end = after.Ending.Reason
	}
	switch {
	case before.Ending != nil, before.Sealed != nil:
	case end == core.EndCancelled || before.CancelRequested != 0:
		if before.CancelRequested == 0 {
			w.accuse("%s cancels run %s, which nobody wished to end (I9)", a.name, r.key)
		}
	case end == core.EndExpired:
		if !w.expired(before, at) {
			w.accuse("%s expires run %s before its time (I1)", a.name, r.key)
		}
	case end == core.EndSpendCap:
		if !overspent(before, at) && !w.tenantOverspent(a, before, at) {
			w.accuse("%s ends run %s for its spend cap, which it has not reached (I1)", a.name, r.key)
		}
	case end == core.EndDied || end == core.EndNeverStarted && before.TaskARN != "":
		if r.idle == 0 || now() < r.idle.Add(w.limits.DeadApart-2*w.config.Skew) {
			w.accuse("%s ends run %s (%s), whose agent was not dead for long enough (I1)", a.name, r.key, end)
		}
	case before.TaskARN == "":
		// A row that came after the sweep had begun, it may have read as absent: then the
		// launch loses its claim, and its task is condemned before an agent begins.
		known := r.rowOf == before.Instance && r.rowAt < a.begun
		if row, err := w.store.Row(context.Background(), before.Instance); known && err == nil && launches(row, r) && row.State != core.LedgerClosed {
			w.accuse("%s ends run %s, whose launch is not settled: its row is %s (I6)", a.name, r.key, row.State)
		}
	case begun && agent.Alive && w.lives(before.TaskARN):
		w.accuse("%s claims run %s, whose agent works (I1)", a.name, r.key)
	case w.lives(before.TaskARN) && !agent.Exited:
		w.accuse("%s claims run %s, which has not ended (I1)", a.name, r.key)
	}
}

// launches reports whether a row is of the run's own launch. Two runs that adopt one task
// name one instance: the task is that run's whose row it is, and of the other nothing works
// there that anybody has been told of.
func launches(row core.LedgerRow, r *agentRun) bool {
	return r.key == core.RunKey{Tenant: row.Tenant, Run: row.Run}
}

func (w *world) expired(r core.Run, at core.Millis) bool {
	expiry := w.expiry(r)
	return expiry != 0 && at >= expiry
}

// overspent is told by multiplying where the code divides; a millisecond is a rounding.
func overspent(r core.Run, at core.Millis) bool {
	ms := float64(at-r.StartedAt) + 1
	return r.SpendCap != 0 && r.TaskARN != "" && float64(mem.TaskSize.Price())*ms >= float64(r.SpendCap)*3_600_000
}

// expiry is when a run's time is over; zero: it does not run.
func (w *world) expiry(r core.Run) core.Millis {
	switch {
	case r.Status == core.Interrupted:
		return r.InterruptedSince.Add(w.limits.PauseTTL)
	case r.Status == core.Running && r.DetachedSince != 0:
		return r.DetachedSince.Add(time.Duration(r.TTLSeconds) * time.Second)
	}
	return 0
}

// count holds the breaker to its word: no more ends without a sentinel than it
// allows, in any stretch that touches two of its windows. What an operator's thaw lets
// go, until a sweep that began under it must be over, is not counted.
func (w *world) count(r *agentRun) {
	at := now()
	c, err := w.store.Control(context.Background())
	if err == nil && at < c.Breaker.QuietUntil.Add(w.limits.SweepTimeout+2*w.config.Skew) {
		return
	}
	w.oracle.unsealed = append(w.oracle.unsealed, at)
	n := 0
	for _, then := range w.oracle.unsealed {
		if at < then.Add(w.limits.BreakerWindow-w.limits.SweepTimeout) {
			n++
		}
	}
	if n > 2*w.limits.BreakerMost {
		w.accuse("run %s is the %dth to end without a sentinel, and the breaker lets %d (I13)", r.key, n, w.limits.BreakerMost)
	}
}

// judgeReport: a run is left to work on only while it may (RP-3), and no run waits for a
// launch that is another's.
func (w *world) judgeReport(a *actor, begun core.Millis, report core.SweepReport) {
	w.judgeAbroad(a, begun, report)
	for _, e := range report.Runs {
		r := w.runs[w.index(e.RunKey.Run)]
		run, err := w.store.Run(context.Background(), r.key)
		if row := w.store.State().Rows[run.Instance]; err == nil && strings.HasPrefix(e.Reason, "launch-") && row.Run != "" && !launches(row, r) {
			w.accuse("%s leaves run %s alone (%s), and the launch is another run's", a.name, r.key, e.Reason)
		}
	}
	for _, r := range w.runs {
		run, err := w.store.Run(context.Background(), r.key)
		if err != nil || run.Hold.Until != 0 || a.kept || r.moved >= a.begun || !w.expired(run, begun.Add(a.skew)) {
			continue
		}
		for _, e := range report.Runs {
			if e.RunKey == r.key && e.Outcome == core.Producing {
				w.accuse("%s leaves run %s alone (%s), whose time is over", a.name, r.key, e.Reason)
			}
		}
	}
}

// judgeLog: what was saved is how the agent's output begins (I3, I5).
func (w *world) judgeLog(r *agentRun) string {
	saved, err := core.ReadLog(context.Background(), w.store, w.store, r.key)
	switch {
	case err != nil:
		w.accuse("run %s: %v", r.key, err)
	case w.config.Spool && len(r.former) > 0: // pieces of what it had written and of what it wrote anew may follow on one another
	case !strings.HasPrefix(r.written, string(saved)) && !slices.ContainsFunc(r.former, func(text string) bool { return strings.HasPrefix(text, string(saved)) }):
		w.accuse("run %s: the log %q is not how its agent's output begins: %q (I3)", r.key, saved, r.written)
	}
	return string(saved)
}

// judgeEnd: a run ends as its agent did, with all that it wrote (I2, I5).
func (w *world) judgeEnd(r *agentRun, before, after core.Run) {
	agent, _ := w.agent(r, before.TaskARN)
	lives := before.TaskARN != "" && w.lives(before.TaskARN)
	saved, wrote := w.judgeLog(r), r.written
	if r.stray != "" && before.TaskARN != r.stray {
		wrote = "" // in a task that is not the run's
	}
	whole := saved == wrote || len(r.former) > 0 && (!after.Transcript.Complete || w.config.Spool)
	decided := before.InterruptedSince // to be gone on for
	if before.Ending != nil {
		decided = before.Ending.At
	}
	grace := (before.Ending != nil || w.call == "continued") && now().Add(w.config.Skew) >= decided.Add(w.limits.DrainGrace)
	switch {
	case after.Status == core.Completed && !(agent.Exited || before.Sealed != nil) && w.call != "continued":
		w.accuse("run %s is completed without a sentinel (I2)", r.key)
	case after.ExitCode != nil && r.exit != nil && *after.ExitCode != *r.exit:
		w.accuse("run %s ends with status %d, and its agent ended with %d (I2)", r.key, *after.ExitCode, *r.exit)
	case after.ExitCode != nil && !whole, after.Transcript.Complete && !whole:
		w.accuse("run %s: its transcript of %d bytes is said to be whole, and its agent wrote %d (I5)", r.key, len(saved), len(wrote))
	case lives && agent.Exited && after.ExitCode == nil && !grace && !(len(r.former) > 0 && !after.Transcript.Complete): // what it wrote anew is not read
		w.accuse("run %s had finished, and ends as %s (I5)", r.key, after.Status)
	case lives && agent.Alive && !grace:
		w.accuse("run %s ends while its agent works (I1)", r.key)
	case lives && !whole && !grace:
		w.accuse("run %s ends with %d of the %d bytes that its agent wrote, and its task lives (I5)", r.key, len(saved), len(r.written))
	}
	if after.Error != nil && after.Error.Code == string(core.EndLost) && before.Ending == nil {
		w.count(r)
		if lives {
			w.accuse("run %s ends as lost, and its task lives (I2)", r.key)
		}
	}
}

// endWrongs tells what speaks against it that a ends the agent of a run now (I13).
func (w *world) endWrongs(a *actor, key core.RunKey) []string {
	run, err := w.store.Run(context.Background(), key)
	switch {
	case err != nil || run.Ending == nil || run.Epoch != a.epochs[key]:
		return nil // another rule's
	case run.Ending.Reason == core.EndCancelled:
		return nil
	case a.control.Blocked():
		return []string{"it is frozen or tripped, as it read it (I13)"}
	case w.oracle.frozen && w.oracle.frozenAt >= a.readAt && a.sinceRead > 1:
		return []string{"it is frozen, and it did not read control again (I13)"}
	}
	return nil
}

// passed reports whether the sandbox of a run has become another's, whose hold counts from
// then on.
func (w *world) passed(run core.Run) bool {
	latest, known := w.oracle.serves[run.TaskARN]
	return known && latest != run.RunKey.Run
}

// stopWrongs tells what speaks against it that a stops a task now (I1, I7, I13).
func (w *world) stopWrongs(a *actor, arn string) []string {
	var wrongs []string
	need := func(holds bool, wrong string) {
		if !holds {
			wrongs = append(wrongs, wrong)
		}
	}
	instance := w.instanceOf(arn)
	row, err := w.store.Row(context.Background(), instance)
	need(err == nil && row.State == core.LedgerStopping, "its row is not condemned (I6)")
	need(a.read && a.control.Stops(), "control, as it read it, does not let it (I13)")
	need(!row.Unsealed || a.control.Breaker.TrippedAt == 0, "the breaker, as it read it, has tripped (I13)")
	need(!w.oracle.frozen || w.oracle.frozenAt < a.readAt || a.sinceRead <= 1, "the installation is frozen, and it did not read control again (I13)")
	for _, r := range w.runs {
		run, err := w.store.Run(context.Background(), r.key)
		if err != nil || run.Instance != instance || run.TaskARN == "" && !launches(row, r) {
			continue
		}
		held := run.TaskARN == arn && w.oracle.promised[r.key] > now().Add(2*w.config.Skew) && !w.passed(run)
		need(!held, "run "+r.key.String()+" was promised a hold (I13)")
		agent, _ := w.agent(r, arn)
		need(!agent.Alive || run.Ending != nil, "the agent of run "+r.key.String()+" works (I1)")
	}
	return wrongs
}
