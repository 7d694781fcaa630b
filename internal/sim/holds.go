package sim

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing/synctest"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// execs is what an actor knows of the containers that it comes into. What ends a session
// that nobody follows any more changes it too, from a goroutine of its own.
type execs struct {
	mu   sync.Mutex
	mine map[core.SandboxKey]core.ExecHold // its own holds, as it wrote them
	saw  map[core.SandboxKey]sighting
	open map[string]bool // tasks with which it holds a session
}

// change lets do read and write e.
func (e *execs) change(do func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	do()
}

// opened says that a session with a task begins; closed, that it is over.
func (e *execs) opened(task string) { e.change(func() { e.open[task] = true }) }
func (e *execs) closed(task string) { e.change(func() { delete(e.open, task) }) }

// holding is the actor's own hold of a container.
func (e *execs) holding(key core.SandboxKey) (hold core.ExecHold) {
	e.change(func() { hold = e.mine[key] })
	return hold
}

// sighting is how an actor found a container held, and the claim that it had on the run
// then; zero: none.
type sighting struct {
	hold   core.ExecHold
	latest core.RunID
	claim  int64
	at     core.Millis
}

func newExecs() *execs {
	return &execs{mine: map[core.SandboxKey]core.ExecHold{}, saw: map[core.SandboxKey]sighting{}, open: map[string]bool{}}
}

// goroutine names the goroutine that asks. What looks out beside a poll, or ends a session
// that nobody follows any more, is another than the one that stands still for its actor.
func goroutine() string {
	var text [64]byte
	name, _, _ := bytes.Cut(text[:runtime.Stack(text[:], false)], []byte(" ["))
	return string(name)
}

// keepsOut reports whether a hold keeps who out at a time, of a container whose latest run is
// given.
func keepsOut(hold core.ExecHold, who core.ExecHolder, latest core.RunID, at core.Millis) bool {
	if hold.Until <= at || who.By != "" && who == hold.ExecHolder {
		return false
	}
	_, of, _ := strings.Cut(hold.By, ":")
	_, by, _ := strings.Cut(who.By, ":")
	former := hold.Epoch > 0 && (core.RunID(of) != latest && latest != "" || of == by && who.Epoch > hold.Epoch)
	return !former && !(follows(hold.By) && who.By != "" && !follows(who.By))
}

// follows reports whether a use gives way to those that do not follow a run.
func follows(by string) bool {
	return strings.HasPrefix(by, string(core.ExecTail)+":") || strings.HasPrefix(by, string(core.ExecFiles)+":")
}

// Sandbox notes how the actor finds the container.
func (p ports) Sandbox(ctx context.Context, key core.SandboxKey) (core.Sandbox, error) {
	box, err := p.skewed.Sandbox(ctx, key)
	if err == nil && p.a.routine == goroutine() {
		p.w.sees(p.a, key)
	}
	return box, err
}

// sees notes how an actor finds a container now.
func (w *world) sees(a *actor, key core.SandboxKey) {
	box, err := w.store.Sandbox(context.Background(), key)
	if err != nil {
		a.execs.change(func() { delete(a.execs.saw, key) })
		return
	}
	seen := sighting{hold: box.Exec, latest: box.LatestRun, at: now()}
	if r, err := w.store.Run(context.Background(), core.RunKey{Tenant: box.Material.Tenant, Run: box.LatestRun}); err == nil && a.host != "" && r.ClaimNonce == a.host {
		seen.claim = r.Epoch
	}
	a.execs.change(func() { a.execs.saw[key] = seen })
}

// UpdateSandbox holds the rules of who takes a container against each hold: whom another's
// keeps out does not take it.
func (p ports) UpdateSandbox(ctx context.Context, key core.SandboxKey, t core.SandboxTransition) (core.Sandbox, error) {
	hold, holds := t.(core.HoldExec)
	if !holds {
		return p.skewed.UpdateSandbox(ctx, key, t)
	}
	box, err := p.writeHold(ctx, key, hold)
	if p.retries && errors.Is(err, mem.ErrInjected) {
		box, err = p.writeHold(ctx, key, hold)
	}
	if err == nil {
		p.w.met("hold: " + strings.SplitN(hold.Hold.By+":", ":", 2)[0])
	}
	p.a.execs.change(func() {
		if err == nil {
			p.a.execs.mine[key] = hold.Hold
		}
		if core.Refused(err) {
			delete(p.a.execs.saw, key) // it lost it to who was faster
		}
		if core.Refused(err) || hold.Hold.Until == 0 { // what cannot be given back ends by itself
			delete(p.a.execs.mine, key)
		}
	})
	return box, err
}

// writeHold writes a hold, once: others act between one try and the next.
func (p ports) writeHold(ctx context.Context, key core.SandboxKey, hold core.HoldExec) (core.Sandbox, error) {
	p.a.at(ctx, hold.Name())
	once := p.skewed
	once.retries = false
	p.w.holding.Lock() // at this very moment a session of whomever may end
	before, beforeErr := p.w.store.Sandbox(context.Background(), key)
	box, err := once.UpdateSandbox(ctx, key, hold)
	after, afterErr := p.w.store.Sandbox(context.Background(), key)
	p.w.holding.Unlock()
	written := beforeErr == nil && afterErr == nil && before.Exec != after.Exec && after.Exec.ExecHolder == hold.Hold.ExecHolder
	switch at := now().Add(2 * p.w.config.Skew); {
	case written && hold.Hold.Until != 0 && keepsOut(before.Exec, hold.Hold.ExecHolder, before.LatestRun, at):
		p.w.accuse("%s takes the container of %s as %s, which %s has", p.a.name, before.LatestRun, hold.Hold.By, before.Exec.By)
	case written && hold.Hold.Until == 0 && before.Exec != moved(hold.Was, p.by):
		p.w.accuse("%s gives the container of %s back, which %s has", p.a.name, before.LatestRun, before.Exec.By)
	}
	return box, err
}

// comes holds the rules of who comes into a container against an actor that is about to:
// long users hold it, and others come in only where nobody has it.
func (t tasks) comes(what string, key core.RunKey, long bool) {
	w := t.w
	run, err := w.store.Run(context.Background(), key)
	if err != nil {
		return
	}
	box, err := w.store.Sandbox(context.Background(), run.SandboxKey)
	if err != nil || box.Instance != run.Instance || t.a.execs.holding(box.Key).Until > now() {
		return
	}
	who := core.ExecOf(core.ExecTail, run)
	if t.a.host != "" && run.ClaimNonce != t.a.host {
		who.Epoch = 0 // a former driver's call; it has looked under its own claim
	}
	switch {
	case long:
		w.accuse("%s comes into the container of run %s for a %s, and does not hold it", t.a.name, key, what)
	case who.Epoch != 0 && keepsOut(box.Exec, who, box.LatestRun, now().Add(2*w.config.Skew)):
		w.accuse("%s comes into the container of run %s for a %s, which %s has", t.a.name, key, what, box.Exec.By)
	}
}

// judgeBusy: whom a container is denied, somebody has it who may. long says that the actor
// asked for something to which those who follow give way.
func (w *world) judgeBusy(a *actor, r *agentRun, long bool) {
	var seen sighting
	var ok bool
	a.execs.change(func() { seen, ok = a.execs.saw[w.oracle.seen[r.key].SandboxKey] })
	if !ok {
		return
	}
	_, of, _ := strings.Cut(seen.hold.By, ":")
	switch driver := seen.hold.Epoch != 0; {
	case seen.hold.Until <= seen.at.Add(-2*w.config.Skew):
		w.accuse("%s finds the container of run %s busy, which %s had until long ago", a.name, r.key, seen.hold.By)
	case driver && core.RunID(of) != seen.latest && seen.latest != "":
		w.accuse("%s finds the container of run %s busy, and %s is over there", a.name, r.key, seen.hold.By)
	case driver && core.RunID(of) == r.key.Run && seen.hold.Epoch < seen.claim:
		w.accuse("%s finds the container of run %s busy under a former driver's hold", a.name, r.key)
	case long && follows(seen.hold.By):
		w.accuse("%s finds the container of run %s busy, and who has it only follows", a.name, r.key)
	}
	w.met("busy")
}

// judgeLeft: who is done gives the container back.
func (w *world) judgeLeft(a *actor) {
	synctest.Wait() // for a session that ends at this very moment
	var open int
	var mine map[core.SandboxKey]core.ExecHold
	a.execs.change(func() { open, mine = len(a.execs.open), maps.Clone(a.execs.mine) })
	if a.faulty || a.p.Stopped() || open > 0 {
		return
	}
	for key, hold := range mine {
		box, err := w.store.Sandbox(context.Background(), key)
		if err == nil && hold.Until > now() && box.Exec.ExecHolder == hold.ExecHolder {
			w.accuse("%s is done, and keeps the container of %s as %s", a.name, box.LatestRun, hold.By)
		}
	}
}

// heldPages is a session that an actor holds.
type heldPages struct {
	core.PageSession
	t     tasks
	task  string
	fresh bool // nothing was asked yet: who opened it held the container
}

// HoldPages opens a session.
func (t tasks) HoldPages(ctx context.Context, target core.ExecTarget) (core.PageSession, error) {
	for _, r := range t.w.runs {
		if t.w.oracle.seen[r.key].TaskARN == target.TaskARN && !t.w.oracle.seen[r.key].Status.Terminal() {
			t.comes("session", r.key, true)
		}
	}
	t.a.at(ctx, "hold session")
	if err := t.silent(ctx, "hold session", target); err != nil {
		return nil, err
	}
	pages, err := t.View.HoldPages(ctx, target)
	if err != nil {
		return nil, err
	}
	t.w.met("a session is held")
	t.a.execs.opened(target.TaskARN)
	return &heldPages{pages, t, target.TaskARN, true}, nil
}

// Page asks in it.
func (h *heldPages) Page(ctx context.Context, q core.PageRequest) (core.PageReply, error) {
	if !h.fresh {
		h.t.comes("page in a session", q.RunKey, true)
	}
	h.fresh = false
	return h.t.ask(ctx, q, h.PageSession.Page)
}

// Close ends it.
func (h *heldPages) Close() {
	h.t.a.execs.closed(h.task)
	h.PageSession.Close()
}

// Page gives smaller pages than a sandbox would.
func (t tasks) Page(ctx context.Context, q core.PageRequest) (core.PageReply, error) {
	what := "tail"
	switch {
	case q.Files:
		what = "look at the files"
	case !q.Follow:
		what = "drain"
	}
	t.comes(what, q.RunKey, what != "tail" || q.WaitSeconds > 0)
	var beside bool
	t.a.execs.change(func() { beside = t.a.execs.open[q.Target.TaskARN] })
	if beside {
		t.w.accuse("%s comes into the container of run %s for a %s, beside the session that it holds", t.a.name, q.RunKey, what)
	}
	return t.ask(ctx, q, t.View.Page)
}

// ask asks for a page.
func (t tasks) ask(ctx context.Context, q core.PageRequest, page func(context.Context, core.PageRequest) (core.PageReply, error)) (core.PageReply, error) {
	t.a.at(ctx, "page")
	if err := t.silent(ctx, "page", q.Target); err != nil {
		return core.PageReply{}, err
	}
	out, err := page(ctx, q)
	if err == nil && len(out.Data) > pageSize && !q.Files {
		out.Data, out.Exit, out.Stderr, out.End = out.Data[:pageSize], nil, "", false
	}
	return out, err
}

// waits are the seconds for which polls wait.
var waits = []int64{0, 5, 20}

// hostFollows has a host in process follow a run poll by poll, for as long as it has it and
// there is something to come, and then do what N says.
func (w *world) hostFollows(c hostCall, n int) error {
	c.s.Held = w.tasks(c.a)
	from, files := w.oracle.seen[c.r.key].LogEnd, int64(0)
	for turn := range 2 + c.a.id%12 {
		q := core.TailRequest{RunKey: c.r.key, Host: c.host, From: from, WaitSeconds: waits[c.a.id%3], StallSeconds: 3600}
		if turn%3 == 2 {
			q.Stream, q.From = core.StreamFiles, files
		}
		report, err := c.s.Tail(c.ctx, q)
		switch {
		case err != nil:
			w.tailBusy(c, err)
			return err
		case q.Stream == core.StreamFiles:
			files = report.Next
		default:
			w.judgeTail(c, report)
			from = report.Next
		}
		if report.End && q.Stream != core.StreamFiles {
			break
		}
		if _, err := c.s.Renew(c.ctx, c.request()); err != nil {
			return err
		}
		c.a.stand(c.ctx, "follow")
	}
	ends := []Op{"", OpFinish, OpDetach, OpCancel}
	switch end := ends[n/2%len(ends)]; end {
	case "":
		return nil
	case OpFinish:
		return w.hostFinishes(c)
	default:
		return w.hostActs(c, Choice{Op: end})
	}
}

// tailBusy judges a poll that was turned away.
func (w *world) tailBusy(c hostCall, err error) {
	if reasonOf(err) == "busy" {
		w.judgeBusy(c.a, c.r, false)
	}
}

// judgeTail holds what a poll gives against what the agent wrote.
func (w *world) judgeTail(c hostCall, report core.TailReport) {
	if report.Waiting == "busy" {
		w.judgeBusy(c.a, c.r, false)
	}
	wrote := c.r.written
	if len(c.r.former) > 0 {
		return
	}
	if end := report.From + int64(len(report.Data)); end > int64(len(wrote))+1 || !strings.HasPrefix(wrote[min(report.From, int64(len(wrote))):], strings.TrimSuffix(string(report.Data), "\n")) {
		w.accuse("%s reads %q from %d on, and the agent of run %s wrote %q", c.a.name, report.Data, report.From, c.r.key, wrote)
	}
	if report.End {
		w.met("tailed to the end")
	}
}

// touches has the agent of a run change files, beside what it writes.
func (w *world) touches(r *agentRun, n int) {
	if w.config.Follows && n > 1 {
		w.fleet.Touch(r.key.Run, string(slices.Concat([]byte(`{"path":"`), bytes.Repeat([]byte("f"), n%50+1), []byte("\"}\n"))))
	}
}
