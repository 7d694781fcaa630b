package sim

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// hookFunction is what every hook names.
const hookFunction = "hook"

// hookFails says whose ready hook fails.
func (w *world) hookFails(e core.HookEvent) bool {
	return w.config.Hooks == 2 && e.Hook == core.HookReady && w.index(e.Run)%3 == 1
}

// spool is where journals are spooled, if they are.
func (w *world) spool(p ports) core.Spool {
	if !w.config.Spool {
		return nil
	}
	return p
}

// copies is the provider as one that copies disks, if it does.
func (w *world) copies(t tasks) core.Snapshotter {
	if w.config.Copies == "" {
		return nil
	}
	return t
}

// Piece reads a piece of a spool. Several are read at once: their calls belong to the step
// of the one before them.
func (p ports) Piece(ctx context.Context, key core.RunKey, piece core.SpoolPiece) ([]byte, error) {
	return p.skewed.Piece(context.WithValue(ctx, joined{}, true), key, piece)
}

// Setup hands a set-up over, or asks for it.
func (t tasks) Setup(ctx context.Context, target core.ExecTarget, id string, job *core.SetupJob, wait time.Duration) (core.SetupState, error) {
	call := "ask setup"
	if job != nil {
		call = "begin setup"
	}
	t.a.at(ctx, call)
	if err := t.silent(ctx, call, target); err != nil {
		return core.SetupState{}, err
	}
	state, err := t.View.Setup(ctx, target, id, job, wait)
	if err == nil {
		t.w.met("set-up " + string(state.Phase))
	}
	return state, err
}

// Invoke calls a hook that is waited for.
func (t tasks) Invoke(ctx context.Context, function string, payload []byte) ([]byte, error) {
	out, err := t.View.Invoke(ctx, function, payload)
	if err == nil {
		t.w.met("a ready hook answers")
	}
	return out, err
}

// InvokeAsync tells a hook. That a sandbox is destroyed it is told only once ECS says so.
func (t tasks) InvokeAsync(ctx context.Context, function string, payload []byte) error {
	t.a.at(ctx, "tell "+function)
	var event struct{ Detail struct{ TaskARN string } }
	if err := json.Unmarshal(payload, &event); err == nil {
		t.w.tried[event.Detail.TaskARN] = true
	}
	before := len(t.w.fleet.Told())
	err := t.View.InvokeAsync(ctx, function, payload)
	for _, told := range t.w.fleet.Told()[before:] {
		t.w.met("hook " + string(told.Event.Hook))
		if told.Event.Hook == core.HookDestroyed && (t.w.lives(told.Task) || t.w.ecs.leaving[told.Task] > now()) {
			t.w.accuse("%s tells that task %s is destroyed, which ECS has not said", t.a.name, told.Task)
		}
	}
	return err
}

// Restore runs a task from a copy, as [tasks.Start] runs one.
func (t tasks) Restore(ctx context.Context, spec core.TaskSpec, id core.SnapshotID) (string, error) {
	t.a.at(ctx, "restore task")
	if err := t.reaches(ctx, "restore task", spec.Cluster); err != nil {
		return "", err
	}
	arn, err := t.View.Restore(ctx, spec, id)
	if err != nil && !t.w.started(spec) {
		return "", err
	}
	if err == nil {
		t.w.met("a sandbox is made from a copy")
	}
	return t.asked(ctx, spec, arn, err)
}

// Snapshot copies the disk of a task.
func (t tasks) Snapshot(ctx context.Context, box core.Sandbox, name string) (core.SnapshotID, error) {
	id, err := t.View.Snapshot(ctx, box, name)
	if err == nil {
		t.w.met("a copy is taken")
	}
	return id, err
}

// startsOwn has the host of a run start its own task, with its agent, unless the run has
// been begun otherwise.
func (w *world) startsOwn(r *agentRun) bool {
	if r.stray == "" && (r.begun || w.oracle.seen[r.key].Epoch != 0) {
		return false
	}
	if r.stray == "" {
		r.stray = w.fleet.RunStray("host/" + string(r.key.Run))
		w.fleet.BeginStray(r.stray, r.key.Run, strayNonce)
		w.ecs.tasks = append(w.ecs.tasks, taskStart{arn: r.stray, at: now()})
	}
	return true
}

// strayNonce is the nonce of the journals that hosts begin themselves.
const strayNonce = "00112233445566778899aabbccddeeff"

// isStray reports whether a host has started the task itself.
func (w *world) isStray(arn string) bool {
	for _, r := range w.runs {
		if r.stray == arn && arn != "" {
			return true
		}
	}
	return false
}

// instanceOf is the instance that a task is; of one that a host has started, that of the
// ledger row which names it last.
func (w *world) instanceOf(arn string) core.InstanceID {
	if !w.isStray(arn) {
		return w.startOf(arn).instance
	}
	var found core.LedgerRow
	for _, row := range w.store.State().Rows {
		if row.TaskARN == arn && (found.Instance == "" || row.State != core.LedgerClosed || found.State == core.LedgerClosed && row.Instance > found.Instance) {
			found = row
		}
	}
	return found.Instance
}

// hostAdopts has a host hand over the task that it has started; above 1 one that another
// has, above 2 one of the installation's own.
func (w *world) hostAdopts(c hostCall, n int) error {
	arn := c.r.stray
	for i := range w.runs {
		if other := w.runs[(c.r.n+i)%len(w.runs)]; n > 1 && other.stray != "" && other != c.r {
			arn = other.stray
			break
		}
	}
	for _, task := range w.ecs.tasks {
		if n > 2 && !w.isStray(task.arn) && w.lives(task.arn) {
			arn = task.arn // the installation's own
			break
		}
	}
	report, err := c.s.Adopt(c.ctx, core.AdoptRequest{
		RunKey: c.r.key, Thread: w.thread(c.r), Host: c.host, TaskARN: arn, Container: "agent", Journal: strayNonce, Keep: w.config.Idle, TTLSeconds: 300,
	})
	if err == nil && report.State == core.Ready {
		if report.Run.TaskARN != arn {
			w.accuse("%s is told that task %s is run %s's, which has %q", c.a.name, arn, c.r.key, report.Run.TaskARN)
		}
		w.met("adopted")
	}
	return err
}

// working reports whether the worker of a set-up is at work in the run's task.
func (w *world) working(r *agentRun, seen core.Run) bool {
	for _, id := range []string{"setup-", "clone-"} {
		if state, _ := w.fleet.SetupState(seen.TaskARN, id+string(r.key.Run)); state.Phase == core.SetupWorking {
			return w.lives(seen.TaskARN)
		}
	}
	return false
}

// setupEnds has the worker of a run's set-up end.
func (w *world) setupEnds(c Choice, r *agentRun) {
	seen := w.oracle.seen[r.key]
	if !w.working(r, seen) {
		return
	}
	state := core.SetupState{Phase: core.SetupDone}
	switch c.N {
	case 1:
		state = core.SetupState{Phase: core.SetupFailed, Code: "step-failed", Message: "for this episode"}
	case 2:
		state = core.SetupState{Phase: core.SetupFailed, Code: core.SetupAbandoned}
	}
	w.note("the set-up of %s ends: %s %s", r.key.Run, state.Phase, state.Code)
	w.fleet.EndSetup(seen.TaskARN, state)
}

// spools has the sandbox of a run put pieces of its journal into the spool: what is new, all
// of it, a piece that begins in the midst of another, or what it had written before it wrote
// it anew.
func (w *world) spools(c Choice, r *agentRun) {
	if r.stray != "" && w.oracle.seen[r.key].TaskARN != r.stray {
		return // it is not the run's sandbox, and has nothing by which to spool for it
	}
	text, from := r.written, min(r.spooled, len(r.written))
	switch c.N {
	case 1:
		from = 0
	case 2:
		from = len(text) / 2
	case 3:
		if len(r.former) == 0 {
			return
		}
		text, from = r.former[len(r.former)-1], 0
	}
	const most = 90 // of a piece
	w.note("the sandbox of %s spools from %d on", r.key.Run, from)
	for ; from < len(text); from += most {
		w.store.Spool(r.key, int64(from), []byte(text[from:min(from+most, len(text))]))
	}
	if c.N != 3 {
		r.spooled = len(text)
	}
}

// beginWrongs tells what speaks against it that the agent of a run begins in a task now.
func (w *world) beginWrongs(id core.RunID, task string) []string {
	run, err := w.store.Run(context.Background(), w.runs[w.index(id)].key)
	if err != nil || !w.config.Session {
		return nil
	}
	var wrongs []string
	state, _ := w.fleet.SetupState(task, "setup-"+string(id))
	if w.config.SetUp && !run.Start.Resumed && state.Phase != core.SetupDone {
		wrongs = append(wrongs, "its set-up is not done: "+string(state.Phase))
	}
	if w.config.Hooks == 0 {
		return wrongs
	}
	for _, told := range w.fleet.Told() {
		if told.Event.Hook == core.HookReady && told.Event.Run == id && told.Task == task && !told.Failed {
			return wrongs
		}
	}
	return append(wrongs, "its ready hook has not answered")
}

// jobWrongs tells what speaks against it that a job of the keeper begins in a task now: the
// state of a repository needs its clone.
func (w *world) jobWrongs(job core.AgentJob, task string) []string {
	id, own := strings.CutPrefix(string(job.ID), string(core.CheckpointOf("")))
	if !w.config.SetUp || !own || job.Kind != core.StepRestore {
		return nil
	}
	run, err := w.store.Run(context.Background(), w.runs[w.index(core.RunID(id))].key)
	if err != nil || run.Start.Resumed || run.Start.Native != "" {
		return nil
	}
	if state, _ := w.fleet.SetupState(task, "clone-"+id); state.Phase != core.SetupDone {
		return []string{"its clone is not done: " + string(state.Phase)}
	}
	return nil
}

// judgeHands holds the rules of quotas, bearers, hooks, copies and adoptions.
func (w *world) judgeHands(a *actor, call string) {
	if !w.config.Session {
		return
	}
	open, named := map[core.TenantID]int{}, map[string]core.InstanceID{}
	for _, row := range w.oracle.state.Rows {
		if row.State == core.LedgerClosed {
			w.judgeClosed(a, call, row)
			continue
		}
		open[row.Tenant]++
		if other, two := named[row.TaskARN]; two && row.TaskARN != "" {
			w.accuse("%s: task %s has two open ledger rows, %s and %s (I6)", a.name, row.TaskARN, other, row.Instance)
		}
		named[row.TaskARN] = row.Instance
	}
	for tenant, n := range open {
		if w.config.Quota > 0 && n > w.config.Quota {
			w.accuse("%s: tenant %s has %d sandboxes, and its quota is %d", a.name, tenant, n, w.config.Quota)
		}
	}
	for _, box := range w.oracle.state.Sandboxes {
		instance, _, _ := strings.Cut(strings.TrimPrefix(string(box.LatestSnapshot), "snap-"), "-")
		if row := w.oracle.state.Rows[core.InstanceID(instance)]; box.LatestSnapshot != "" && row.Key != box.Key {
			w.accuse("%s: sandbox %s has the copy %s of key %s (I16)", a.name, box.Key, box.LatestSnapshot, row.Key)
		}
	}
	w.judgeBearers(a)
}

// judgeClosed: before a row is closed whose task has ended, somebody tries to tell the hook.
func (w *world) judgeClosed(a *actor, call string, row core.LedgerRow) {
	if call != "close row" || w.closed[row.Instance] {
		return
	}
	w.closed[row.Instance] = true
	if w.config.Hooks > 0 && !a.faulty && a.kind == "reclaim" && row.TaskARN != "" && !w.isStray(row.TaskARN) && !w.tried[row.TaskARN] {
		w.accuse("%s closes the row of task %s, and its hook was not told", a.name, row.TaskARN)
	}
}

// judgeBearers: an agent's bearer is that of its run, for as long as the run goes on.
func (w *world) judgeBearers(a *actor) {
	bridge := core.Bridge{Runs: w.store}
	for _, agent := range w.fleet.Agents() {
		if agent.Bearer == "" || !agent.Alive {
			continue
		}
		r := w.runs[w.index(agent.Run)]
		run := w.oracle.state.Runs[r.key]
		who, err := bridge.Admit(context.Background(), agent.Bearer)
		switch over := run.Status.Terminal() || run.Ending != nil; {
		case over && err == nil:
			w.accuse("%s: the bearer of run %s is good after its end (I16)", a.name, r.key)
		case !over && (err != nil || who.Key() != r.key):
			w.accuse("%s: the agent of run %s has a bearer that is not its run's: %v", a.name, r.key, err)
		}
	}
}
