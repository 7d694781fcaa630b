package sim

import (
	"context"
	"fmt"
	"strings"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// session is a host's session, in a process of its own each time.
func (w *world) session(a *actor) *core.Session {
	p := w.ports(a)
	s := &core.Session{
		Launcher: w.launcher(a), Binds: p, Controls: p, Log: &core.LogWriter{Log: p, Blobs: p, Inline: w.limits.InlineSegment},
		Prober: w.tasks(a), Notes: p, Keeper: w.keeper(a), History: p, Checkpoint: w.config.Checkpoint, Provider: provider, Cluster: cluster,
		Spool: w.spool(p),
	}
	if w.config.SetUp {
		s.Setups = w.tasks(a)
	}
	if w.config.Hooks > 0 {
		s.Functions, s.HostFunctions = w.tasks(a), []string{hookFunction}
	}
	if w.config.Spool {
		s.ToolsURL = w
	}
	return s
}

// hostName is what a host calls its attachment.
func hostName(nonce string) string { return nonce + "-0123456789abcdef" }

// definition is what a run's sandbox is made from: the same for all runs of a thread, for
// each definition has a sandbox of its own.
func (w *world) definition(r *agentRun) *core.Definition {
	kind := r.n % w.config.Threads
	d := &core.Definition{
		Name: "d", Version: 1, Task: core.TaskTemplate{TaskDefinition: "family", Container: "agent", Subnets: []string{"subnet-1"}},
		RunTTLSeconds: []int64{300, 60, 600, 1200}[kind%4], DestroyOnComplete: !w.config.Idle,
	}
	if w.config.Lapses && kind%2 == 1 {
		d.OnLapse = core.LapseCancels
	}
	if w.config.SetUp {
		d.Workspace = core.WorkspacePlan{Root: "/w", Source: &core.SourcePlan{Repository: "https://example.com/r.git"}}
	}
	if w.config.Hooks > 0 {
		d.Hooks = core.HookPlan{Ready: hookFunction, Error: hookFunction, Destroyed: hookFunction}
	}
	if w.config.Spokes {
		d.Task.Cluster = w.clusterOf(r)
	}
	d.Snapshots, d.FileEvents.Enabled = w.config.Copies, w.config.Follows
	return d
}

// hostCall is one operation of a host.
type hostCall struct {
	ctx  context.Context
	a    *actor
	s    *core.Session
	r    *agentRun
	host string
}

func (c hostCall) request() core.HostRequest { return core.HostRequest{RunKey: c.r.key, Host: c.host} }

// enterSession brings a host that asks for something through a session.
func (w *world) enterSession(c Choice, r *agentRun) {
	n := c.N % 2
	switch begins := c.Op == OpBegin || c.Op == OpContinue; {
	case begins && r.stray != "", c.Op == OpAdopt && !w.startsOwn(r):
		return // of a run a host does the one or the other
	case begins:
		r.begun = true
	}
	w.spawn(role{c.ID, "host", fmt.Sprintf("%s of %s by host %d", c.Op, r.key.Run, n), c.Run}, hostTimeout(c.ID), func(ctx context.Context, a *actor) {
		a.host = hostName(r.hosts[n].nonce)
		call := hostCall{ctx, a, w.session(a), r, a.host}
		var err error
		switch c.Op {
		case OpBegin, OpContinue:
			err = w.hostStarts(call, c.Op == OpContinue)
		case OpAdopt:
			err = w.hostAdopts(call, c.N)
		case OpFinish:
			err = w.hostFinishes(call)
		case OpTail:
			err = w.hostTails(call, c.N/2)
		case OpFollow:
			err = w.hostFollows(call, c.N)
		case OpList:
			one := context.WithValue(ctx, joined{}, true) // it reads several runs at once, and writes nothing
			_, err = call.s.List(one, core.ListRunsRequest{ThreadKey: w.threadKey(r), Active: c.N > 1})
		default:
			err = w.hostActs(call, c)
		}
		what := string(c.Op)
		if err != nil {
			what += " refused: " + reasonOf(err)
		}
		w.met(what)
	})
}

func (w *world) hostActs(c hostCall, choice Choice) error {
	var err error
	switch choice.Op {
	case OpRenew:
		_, err = c.s.Renew(c.ctx, c.request())
	case OpDetach:
		_, err = c.s.Detach(c.ctx, c.request())
	case OpPause:
		_, err = c.s.Interrupt(c.ctx, c.request())
	case OpAttach, OpTake:
		_, err = c.s.Attach(c.ctx, core.AttachRequest{RunKey: c.r.key, Host: c.host, Takeover: choice.Op == OpTake})
	case OpCancel:
		q := core.CancelRequest{RunKey: c.r.key}
		if choice.ID%2 == 0 {
			q.Host = c.host
		}
		_, err = c.s.Cancel(c.ctx, q)
	case OpFail:
		_, err = c.s.Fail(c.ctx, core.FailRequest{RunKey: c.r.key, Host: c.host, Error: core.RunFault{Code: "host"}})
	}
	return err
}

// pausedBefore is a paused run of the same thread, which another goes on for.
func (w *world) pausedBefore(r *agentRun) (core.RunID, bool) {
	for _, other := range w.runs {
		if other != r && w.threadKey(other) == w.threadKey(r) && w.oracle.seen[other.key].Status == core.Interrupted {
			return other.key.Run, true
		}
	}
	return "", false
}

// hostStarts starts a run, or goes on to; goesOn says that it goes on for a paused one, if
// there is one and the run has not been begun otherwise.
func (w *world) hostStarts(c hostCall, goesOn bool) error {
	if _, there := w.store.State().Runs[c.r.key]; !there {
		c.r.parent = ""
		if parent, ok := w.pausedBefore(c.r); ok && goesOn {
			c.r.parent = parent
		}
	}
	d := w.definition(c.r)
	if _, there := w.store.State().Runs[c.r.key]; there && w.config.SetUp && c.a.id%8 == 5 {
		d.Workspace.Root = "/elsewhere" // a host that goes on with another definition
	}
	report, err := c.s.Start(c.ctx, core.StartRequest{
		RunKey: c.r.key, Thread: w.thread(c.r), Host: c.host, Definition: d, Parent: c.r.parent, Agent: core.AgentPlan{Argv: []string{"agent"}},
	})
	if err != nil {
		return err
	}
	if report.State != core.Ready {
		if report.Waiting == "busy" {
			w.judgeBusy(c.a, c.r, true)
		}
		w.met("start waits: " + report.Waiting)
		return nil
	}
	w.met("ready " + string(report.Ensured))
	for what, holds := range map[string]bool{
		"ready with what was restored": report.RestoredFrom != "", "ready, and told of a loss": report.Lost != nil, "ready after a pause": c.r.parent != "",
	} {
		if holds {
			w.met(what)
		}
	}
	if agent, begun := w.agent(c.r, report.Run.TaskARN); !begun && w.lives(report.Run.TaskARN) {
		w.accuse("%s is told that run %s is ready, and its agent never began: %+v", c.a.name, c.r.key, agent)
	}
	return nil
}

// hostFinishes finishes a run, sometimes with a conversation.
func (w *world) hostFinishes(c hostCall) error {
	q := core.FinishRequest{RunKey: c.r.key, Host: c.host}
	if c.a.id%3 == 0 {
		seen := w.oracle.threads[w.threadKey(c.r)].Conversation.Version
		q.Conversation = &core.ConversationPut{Seen: seen, Data: []byte("said in " + c.r.key.String())}
	}
	report, err := c.s.Finish(c.ctx, q)
	switch {
	case err != nil:
		return err
	case report.State == core.Finished && report.Checkpoint != "" && !w.isStored(w.threadKey(c.r), report.Checkpoint):
		w.accuse("%s is told that %s is stored, and it is not (I5)", c.a.name, report.Checkpoint)
	case report.State == core.Finished && report.Checkpoint != "":
		w.met("finished with a checkpoint")
	case report.Waiting == "busy":
		w.judgeBusy(c.a, c.r, true)
	}
	w.met(strings.TrimSpace(string(report.State) + " " + report.Waiting))
	return nil
}

// hostTails reads a run's output from where the log ends, or what changed in its workspace,
// and waits for some.
func (w *world) hostTails(c hostCall, kind int) error {
	q := core.TailRequest{RunKey: c.r.key, Host: c.host, From: w.oracle.seen[c.r.key].LogEnd, WaitSeconds: waits[kind%len(waits)]}
	if kind >= len(waits) {
		q.Stream, q.From = core.StreamFiles, 0
	}
	report, err := c.s.Tail(c.ctx, q)
	switch {
	case err != nil:
		w.tailBusy(c, err)
	case q.Stream == core.StreamDefault:
		w.judgeTail(c, report)
	}
	return err
}

// driving are the writes of a run that only its driver makes.
var driving = map[string]bool{
	"renew": true, "detach": true, "interrupt": true, "note start": true, "end run": true, "finish": true, "append": true, "name instance": true, "launched": true, "resumed": true,
}

// judgeDriver: a host writes a run only while it has it, and of a thread one run at a time
// has a sandbox (I3, I7).
func (w *world) judgeDriver(a *actor, call string, before, after mem.State) {
	for _, r := range w.runs {
		was, is := before.Runs[r.key], after.Runs[r.key]
		changed := !was.Status.Terminal() && (was.Row != is.Row || was.DueAt != is.DueAt || was.Status != is.Status || was.LogEnd != is.LogEnd ||
			was.Start != is.Start || was.Instance != is.Instance || was.TaskARN != is.TaskARN || (was.Ending == nil) != (is.Ending == nil))
		if a.kind == "host" && driving[call] && changed && was.Epoch != 0 && !strings.HasSuffix(was.ClaimNonce, a.host) {
			w.accuse("%s: %s on run %s, which %s has (I3)", a.name, call, r.key, was.ClaimNonce)
		}
	}
	serving := map[core.ThreadKey]core.InstanceID{}
	for _, row := range after.Rows {
		r, ok := after.Runs[core.RunKey{Tenant: row.Tenant, Run: row.Run}]
		if !ok || row.State != core.LedgerRunning || !w.lives(row.TaskARN) || w.isStray(row.TaskARN) {
			continue // what hosts start themselves are their own sandboxes
		}
		key := core.ThreadKey{Tenant: r.Tenant, Thread: r.Thread}
		if other, two := serving[key]; two {
			w.accuse("%s: thread %s has two sandboxes in service, %s and %s (I6)", a.name, key, other, row.Instance)
		}
		serving[key] = row.Instance
	}
	w.judgeAgents(a, after)
}

// judgeAgents: of a thread one agent works for a run that goes on.
func (w *world) judgeAgents(a *actor, state mem.State) {
	working := map[core.ThreadKey]core.RunID{}
	for _, agent := range w.fleet.Agents() {
		r := w.runs[w.index(agent.Run)]
		run := state.Runs[r.key]
		if !agent.Alive || run.Status != core.Running || run.Ending != nil || run.CancelRequested != 0 || !w.lives(agent.Task) || w.isStray(agent.Task) {
			continue
		}
		if agent.Task != run.TaskARN {
			w.accuse("%s: the agent of run %s works in a task that is not the run's (I7)", a.name, r.key)
		}
		if other, two := working[w.threadKey(r)]; two {
			w.accuse("%s: the agents of %s and %s work in one thread (I7)", a.name, other, agent.Run)
		}
		working[w.threadKey(r)] = agent.Run
	}
}
