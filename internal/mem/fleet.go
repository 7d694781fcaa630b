package mem

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// TaskSize is what every task of a fleet is charged for.
var TaskSize = core.TaskSize{VCPU: 1, GB: 2}

// Fleet is an ECS cluster in memory: tasks, and in them agents that write
// journals. Its processes' views answer core's task, probe and agent ports. It
// accuses a caller that stops a task which a live run is bound to.
type Fleet struct {
	store     *Store
	mu        sync.Mutex
	tasks     map[string]*fleetTask
	snapshots map[core.SnapshotID]fleetSnapshot
	next      int
	sessions  int // held ever
	ended     int // of them

	// PageBytes is the largest page of a journal, and RestBytes the most of it that a
	// probe carries along. A test that wants many pages makes them small.
	PageBytes, RestBytes int

	// SetupsByHand leaves the end of set-ups to [Fleet.EndSetup]; FailsHook, if set, says
	// which hooks' functions fail.
	SetupsByHand bool
	FailsHook    func(e core.HookEvent) bool
	told         []Told
}

type fleetTask struct {
	arn, token, startedBy string
	createdAt             core.Millis
	life                  core.TaskLife
	reason                string
	agents                map[core.RunID]*fleetAgent
	captures              []*fleetCapture
	setups                map[string]*fleetSetup
	stray                 bool                // its host has started it
	claimed               map[core.RunID]bool // on the disk that it was made with
}

// fleetAgent is one run's agent. Without a journal it has not begun.
type fleetAgent struct {
	begun, alive, blocked bool
	pruned                bool // its journal is gone, its start marker is not
	nonce, bearer         string
	stdout                []byte
	files                 []byte // the side journal
	exit                  *int
}

// NewFleet returns an empty cluster beside a store.
func NewFleet(s *Store) *Fleet {
	return &Fleet{store: s, tasks: map[string]*fleetTask{}, snapshots: map[core.SnapshotID]fleetSnapshot{}, PageBytes: 64 << 10, RestBytes: core.JournalRest}
}

// View is the cluster as one process reaches it: through the same gate as the
// stores.
type View struct {
	*Fleet
	p *Process
}

var (
	_ core.TaskDescriber = View{}
	_ core.TaskStopper   = View{}
	_ core.TaskRunner    = View{}
	_ core.Prober        = View{}
	_ core.AgentStarter  = View{}
	_ core.TaskLister    = View{}

	_ core.JournalDirectory = View{}
	_ core.PageHolder       = View{}
)

// View returns a process's view.
func (f *Fleet) View(p *Process) View { return View{Fleet: f, p: p} }

// call passes do through the process's gate, under the fleet's lock.
func (v View) call(ctx context.Context, name string, do func() error) error {
	return v.p.Call(ctx, name, func() error {
		v.mu.Lock()
		defer v.mu.Unlock()
		return do()
	})
}

// Start runs a task, once for each token.
func (v View) Start(ctx context.Context, spec core.TaskSpec) (string, error) {
	var arn string
	err := v.call(ctx, "run task", func() error {
		arn = v.run(spec.Token, spec.StartedBy)
		return nil
	})
	if err != nil {
		return "", err
	}
	return arn, nil
}

func (f *Fleet) run(token, startedBy string) string {
	for _, t := range f.tasks {
		if t.token == token {
			return t.arn
		}
	}
	f.next++
	arn := fmt.Sprintf("arn:aws:ecs:local:000000000000:task/c/%04d", f.next)
	f.tasks[arn] = &fleetTask{arn: arn, token: token, startedBy: startedBy, createdAt: core.MillisOf(time.Now()), life: core.TaskLives, agents: map[core.RunID]*fleetAgent{}, setups: map[string]*fleetSetup{}}
	return arn
}

// Describe answers for each ARN.
func (v View) Describe(ctx context.Context, _ string, arns []string) ([]core.Task, error) {
	var out []core.Task
	err := v.call(ctx, "describe tasks", func() error {
		for _, arn := range arns {
			out = append(out, v.describe(arn))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (f *Fleet) describe(arn string) core.Task {
	t, ok := f.tasks[arn]
	if !ok {
		return core.Task{ARN: arn, Life: core.TaskMissing}
	}
	return core.Task{ARN: arn, Life: t.life, Reason: t.reason, StartedBy: t.startedBy, CreatedAt: t.createdAt, Size: TaskSize}
}

// StartedBy lists living tasks.
func (v View) StartedBy(ctx context.Context, _, startedBy string) ([]string, error) {
	var out []string
	err := v.call(ctx, "list tasks", func() error {
		for _, t := range v.tasks {
			if t.startedBy == startedBy && t.life == core.TaskLives {
				out = append(out, t.arn)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(out)
	return out, nil
}

// Living lists the tasks that live.
func (v View) Living(ctx context.Context, _ string) ([]string, error) {
	var out []string
	err := v.call(ctx, "list living tasks", func() error {
		for arn, t := range v.tasks {
			if t.life == core.TaskLives {
				out = append(out, arn)
			}
		}
		slices.Sort(out)
		return nil
	})
	return out, err
}

// RunStray starts a task behind everybody's back; its instance is what follows the
// installation in startedBy.
func (f *Fleet) RunStray(startedBy string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	arn := f.run(startedBy[strings.LastIndex(startedBy, "/")+1:], startedBy)
	f.tasks[arn].stray = true
	return arn
}

// BeginStray begins an agent in a task as a host does that starts its own.
func (f *Fleet) BeginStray(arn string, run core.RunID, nonce string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.tasks[arn].agent(run)
	a.begun, a.alive, a.nonce = true, true, nonce
}

// List lists the journals of a task's agents, all of them old.
func (v View) List(ctx context.Context, target core.ExecTarget) (core.JournalListing, error) {
	var out core.JournalListing
	err := v.call(ctx, "list journals", func() error {
		t, err := v.reach(target.TaskARN)
		if err != nil {
			return err
		}
		out.Times.Known = true
		for run, a := range t.agents {
			token, err := core.DefaultJournal.Token(run)
			if err != nil || !a.begun || a.pruned {
				continue
			}
			out.Names = append(out.Names, token+".ndjson")
			out.Times.Of = append(out.Times.Of, core.JournalTime{Name: token + ".ndjson", At: 1})
		}
		return nil
	})
	return out, err
}

// Remove removes runs' journals; a live agent's is an accusation.
func (v View) Remove(ctx context.Context, target core.ExecTarget, runs []core.RunID) ([]bool, error) {
	gone := make([]bool, len(runs))
	err := v.call(ctx, "remove journals", func() error {
		t, err := v.reach(target.TaskARN)
		if err != nil {
			return err
		}
		for i, run := range runs {
			a := t.agent(run)
			if a.alive {
				v.store.t.Errorf("fleet: the journal of run %s is removed, and its agent lives", run)
			}
			a.pruned, gone[i] = true, true
		}
		return nil
	})
	return gone, err
}

// Litter makes a run's journal one that lies around again.
func (f *Fleet) Litter(run core.RunID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.agentOf(run).pruned = false
}

// Pruned reports whether a run's journal has been removed.
func (f *Fleet) Pruned(run core.RunID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.agentOf(run).pruned
}

// Stop ends a task at once.
func (v View) Stop(ctx context.Context, _, arn, reason string) (core.Task, error) {
	var out core.Task
	err := v.call(ctx, "stop task", func() error {
		v.accuseStop(arn)
		v.end(arn, reason)
		out = v.describe(arn)
		return nil
	})
	if err != nil {
		return core.Task{}, err
	}
	return out, nil
}

// accuseStop: nobody stops a task that a live run is bound to (I1, I7), or whose
// workspace is owed (I5).
func (f *Fleet) accuseStop(arn string) {
	f.store.t.Helper()
	for key, r := range f.store.State().Runs {
		if r.TaskARN == arn && !r.Status.Terminal() {
			f.store.t.Errorf("fleet: StopTask on %s, to which the live run %s is bound (I7)", arn, key)
		}
		if r.TaskARN == arn && r.Checkpoint.Owes() && f.tasks[arn] != nil && f.tasks[arn].life != core.TaskGone {
			f.store.t.Errorf("fleet: StopTask on %s, whose workspace run %s owes (I5)", arn, key)
		}
	}
}

func (f *Fleet) end(arn, reason string) {
	t, ok := f.tasks[arn]
	if !ok || t.life == core.TaskGone {
		return
	}
	t.life, t.reason = core.TaskGone, reason
	for _, a := range t.agents {
		a.alive = false
	}
}

// KillTask lets a task die by itself.
func (f *Fleet) KillTask(arn string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.end(arn, "it died by itself")
}

// Leave has ECS decide that a task ends, which goes on until [Fleet.KillTask].
func (f *Fleet) Leave(arn string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.tasks[arn]; t != nil && t.life == core.TaskLives {
		t.life, t.reason = core.TaskLeaving, "its capacity is taken back"
	}
}

// up reports whether processes of the task run.
func (t *fleetTask) up() bool { return t.life == core.TaskLives || t.life == core.TaskLeaving }

// Forget makes ECS not know a task any more.
func (f *Fleet) Forget(arn string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.tasks, arn)
}

// StartAgent claims the run in its task and begins its agent, once. It accuses a
// host that begins the agent of a run that has ended.
func (v View) StartAgent(ctx context.Context, target core.ExecTarget, agent core.JournalStart, _ []byte) (core.JournalStarted, error) {
	var out core.JournalStarted
	err := v.call(ctx, "start agent", func() error {
		t, err := v.reach(target.TaskARN)
		if err != nil {
			return err
		}
		a := t.agent(agent.Run)
		out = core.JournalStarted{Already: a.begun || a.blocked || t.claimed[agent.Run], Wrapper: core.WrapperAlive}
		if !out.Already {
			if id, found := t.unprepared(); found {
				v.store.t.Errorf("fleet: the agent of run %s begins, and set-up %s is not done", agent.Run, id)
			}
			a.begun, a.alive, a.nonce = true, true, agent.Nonce
			if agent.Side != nil {
				a.bearer = agent.Side.Bearer
			}
		}
		return nil
	})
	if err != nil {
		return core.JournalStarted{}, err
	}
	return out, nil
}

func (t *fleetTask) agent(run core.RunID) *fleetAgent {
	if t.agents[run] == nil {
		t.agents[run] = &fleetAgent{}
	}
	return t.agents[run]
}

// seen is a run's agent to somebody who only looks.
func (t *fleetTask) seen(run core.RunID) *fleetAgent {
	if a := t.agents[run]; a != nil {
		return a
	}
	return &fleetAgent{}
}

// reach is the task, if an exec session can reach it.
func (f *Fleet) reach(arn string) (*fleetTask, error) {
	t, ok := f.tasks[arn]
	if !ok || !t.up() {
		return nil, &core.ExecError{Target: core.ExecTarget{TaskARN: arn}, Healing: core.Retry, Reason: "target-not-connected"}
	}
	return t, nil
}

// Write lets a run's agent write to its stdout.
func (f *Fleet) Write(run core.RunID, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.agentOf(run)
	a.stdout = append(a.stdout, text...)
}

// Touch lets the side journal of a run have more text.
func (f *Fleet) Touch(run core.RunID, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.agentOf(run)
	a.files = append(a.files, text...)
}

// Rewrite lets a run's agent replace what it has written.
func (f *Fleet) Rewrite(run core.RunID, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.agentOf(run).stdout = []byte(text)
}

// rewritten reports whether the journal does not go on from a log that ends there.
func (a *fleetAgent) rewritten(end int64, tail []byte) bool {
	journal := a.journal()
	return end > int64(len(journal)) || !bytes.HasSuffix(journal[:end], tail)
}

// Exit lets a run's agent end with a status.
func (f *Fleet) Exit(run core.RunID, status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.agentOf(run)
	if a.alive {
		a.alive, a.exit = false, new(status)
	}
}

// Alive reports whether a run's agent lives.
func (f *Fleet) Alive(run core.RunID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.agentOf(run).alive
}

// Running lists the tasks that cost money, in order.
func (f *Fleet) Running() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for arn, t := range f.tasks {
		if t.life == core.TaskLives {
			out = append(out, arn)
		}
	}
	slices.SortFunc(out, cmp.Compare[string])
	return out
}

// CheckTasks reports every task that runs without an open ledger row of its own:
// a leak (I6). A task that a host has started is its own until a row names it.
func (f *Fleet) CheckTasks() {
	f.store.t.Helper()
	rows := f.store.State().Rows
	f.mu.Lock()
	defer f.mu.Unlock()
	for arn, t := range f.tasks {
		row, ok := rows[core.InstanceID(t.token)]
		open := ok && row.State != core.LedgerClosed
		if t.stray && !ok {
			named := 0
			for _, row := range rows {
				if row.TaskARN == arn {
					named++
					open = open || row.State != core.LedgerClosed
				}
			}
			open = open || named == 0
		}
		if t.life == core.TaskLives && !open {
			f.store.t.Errorf("fleet: task %s runs without an open ledger row (I6)", arn)
		}
	}
}

// agentOf finds a run's agent in whichever task it is; a new one if in none.
func (f *Fleet) agentOf(run core.RunID) *fleetAgent {
	for _, t := range f.tasks {
		if a := t.agents[run]; a != nil {
			return a
		}
	}
	return &fleetAgent{}
}

// journal is the file as the wrapper leaves it.
func (a *fleetAgent) journal() []byte {
	if a.exit == nil {
		return a.stdout
	}
	line := "\n" + core.DefaultJournal.Sentinel(a.nonce, *a.exit) + "\n"
	return append(slices.Clone(a.stdout), line...)
}

// Probe answers from the agents' journals.
func (v View) Probe(ctx context.Context, _ float64, requests []core.ProbeRequest) []core.ProbeReply {
	out := make([]core.ProbeReply, len(requests))
	for i, q := range requests {
		err := v.call(ctx, "probe", func() error {
			t, err := v.reach(q.Target.TaskARN)
			switch {
			case err != nil:
				return err
			case v.store.bars(q.SandboxKey, q.Holder):
				out[i] = core.ProbeReply{RunKey: q.RunKey, Healing: core.Retry, Reason: "busy"}
			default:
				out[i] = t.seen(q.Run).probe(q, v.RestBytes)
			}
			return nil
		})
		if err != nil {
			out[i] = core.ProbeReply{RunKey: q.RunKey, Healing: core.Retry, Reason: "fault"}
		}
	}
	return out
}

func (a *fleetAgent) probe(q core.ProbeRequest, most int) core.ProbeReply {
	reply := core.ProbeReply{RunKey: q.RunKey, State: core.ProbeProducing, Size: int64(len(a.journal()))}
	if a.exit == nil || a.nonce != q.Nonce {
		reply.Dead = a.dead()
		return reply
	}
	reply.State, reply.Exit = core.ProbeFinished, *a.exit
	if *a.exit != 0 {
		reply.Stderr = "it failed"
	}
	if reply.Rewritten = a.rewritten(q.LogEnd, q.LogTail); reply.Rewritten {
		return reply
	}
	if rest := a.journal()[q.LogEnd:]; len(rest) <= most {
		cut := core.DefaultJournal.Cut(q.Nonce, rest, core.EdgeEnd)
		reply.Rest, reply.Whole = slices.Clone(rest[:cut.Append]), cut.Sealed
	}
	return reply
}

// dead is how the sandbox shows that nobody can end the journal.
func (a *fleetAgent) dead() core.Dead {
	switch {
	case a.begun && !a.alive && a.exit == nil:
		return core.DeadGone
	case !a.begun && !a.blocked:
		return core.NeverBegan
	}
	return core.NotDead
}

// Die lets a run's agent end without a sentinel, its wrapper with it.
func (f *Fleet) Die(run core.RunID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.agentOf(run).alive = false
}

// Page reads a piece of a journal.
func (v View) Page(ctx context.Context, q core.PageRequest) (core.PageReply, error) {
	var out core.PageReply
	for until := time.Now().Add(time.Duration(q.WaitSeconds) * time.Second); time.Now().Before(until) && ctx.Err() == nil && v.size(q) <= q.Beyond; {
		time.Sleep(500 * time.Millisecond)
	}
	err := v.call(ctx, "page", func() error {
		t, err := v.reach(q.Target.TaskARN)
		if err != nil {
			return err
		}
		a := t.seen(q.Run)
		if q.Files {
			piece := a.files[min(q.From, int64(len(a.files))):]
			piece = piece[:min(len(piece), v.PageBytes)]
			out = core.PageReply{Data: slices.Clone(piece), Size: int64(len(a.files)), End: q.From+int64(len(piece)) >= int64(len(a.files))}
			return nil
		}
		if a.rewritten(q.From, q.Last) {
			return &core.JournalError{Op: "page", Healing: core.Retry, Reason: "rewritten"}
		}
		out = page(a.journal(), q, v.PageBytes)
		return nil
	})
	if err != nil {
		return core.PageReply{}, err
	}
	return out, nil
}

// HoldPages opens a session with a task, as one call.
func (v View) HoldPages(ctx context.Context, target core.ExecTarget) (core.PageSession, error) {
	err := v.call(ctx, "hold session", func() error {
		_, err := v.reach(target.TaskARN)
		v.sessions++
		return err
	})
	if err != nil {
		return nil, err
	}
	return &heldSession{view: v}, nil
}

// Held is how many sessions are held now, and how many have been.
func (f *Fleet) Held() (now, ever int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sessions - f.ended, f.sessions
}

// heldSession is a session in which pages are asked for.
type heldSession struct {
	view View
	over bool
}

func (h *heldSession) Page(ctx context.Context, q core.PageRequest) (core.PageReply, error) {
	if h.over {
		return core.PageReply{}, &core.ExecError{Target: q.Target, Healing: core.Retry, Reason: "channel-cut"}
	}
	page, err := h.view.Page(ctx, q)
	if err != nil {
		h.Close()
	}
	return page, err
}

func (h *heldSession) Close() {
	h.view.mu.Lock()
	defer h.view.mu.Unlock()
	if !h.over {
		h.over = true
		h.view.ended++
	}
}

// size is how long a journal is, which is what a waiting page looks at.
func (v View) size(q core.PageRequest) int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	t, err := v.reach(q.Target.TaskARN)
	if err != nil {
		return q.Beyond + 1 // nothing waits there
	}
	if a := t.seen(q.Run); q.Files {
		return int64(len(a.files))
	}
	return int64(len(t.seen(q.Run).journal()))
}

func page(journal []byte, q core.PageRequest, size int) core.PageReply {
	piece := journal[min(q.From, int64(len(journal))):]
	edge := core.EdgeEnd
	if q.Final {
		edge = core.EdgeFinal
	}
	if len(piece) > size {
		piece, edge = piece[:size], core.EdgeMore
	}
	cut := core.DefaultJournal.Cut(q.Nonce, piece, edge)
	out := core.PageReply{Data: slices.Clone(piece[:cut.Append]), End: edge != core.EdgeMore, Size: int64(len(journal))}
	if cut.Sealed {
		out.Exit = new(cut.Exit)
		if cut.Exit != 0 {
			out.Stderr = "it failed"
		}
	}
	return out
}

// Terminate ends a run's agent. One whose stdout says that it traps the signal ends with
// status 0, one that says that it heeds it with that of the signal; any other is killed
// without a sentinel.
func (v View) Terminate(ctx context.Context, q core.TerminateRequest) (core.TerminateReply, error) {
	var out core.TerminateReply
	err := v.call(ctx, "terminate", func() error {
		t, err := v.reach(q.Target.TaskARN)
		if err != nil {
			return err
		}
		a := t.agent(q.Run)
		out.Started = a.begun
		if !a.begun {
			a.blocked = true
		}
		if a.alive && strings.Contains(string(a.stdout), "traps") {
			a.exit = new(0)
		}
		if a.alive && strings.Contains(string(a.stdout), "heeds") {
			a.exit = new(128 + 15)
		}
		a.alive = false
		return nil
	})
	return out, err
}
