package sim

import (
	"context"
	"fmt"
	"iter"
	"runtime/debug"
	"strings"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// actor is one process of ours: a sweep, a reclaim, a host's or an operator's
// operation. It stands still before each of its port calls.
type actor struct {
	id     int
	kind   string // sweep, plan, reclaim, host, operator, agent, keeper
	name   string
	run    int           // whom it is about
	host   string        // of a host with a session, what it calls its attachment
	skew   time.Duration // how far its clock is ahead
	p      *mem.Process
	next   func() (string, bool)
	close  func()
	yield  func(string) bool
	faulty bool   // a fault was planned for it
	stood  bool   // it stood still for the next call already
	waits  string // the call it is about to make
	over   bool

	routine string // the goroutine that it acts in; others of its process do not stand still
	execs   *execs
	// What the oracle remembers of it.
	fences    map[core.ThreadKey]int64 // of the leases that it took, or that its token is of
	forks     []core.ForkBranch        // that it asks for
	begun     int                      // when it came
	start     int                      // its first step
	epochs    map[core.RunKey]int64    // of its claims
	control   core.Control             // as it knows it
	free      bool                     // some time it read that nothing keeps it from ending runs
	kept      bool                     // some time it read that something does
	looks     bool                     // it began where nothing may be written
	read      bool                     // it has read control
	sinceRead int                      // its calls since, describing aside
	readAt    int                      // the step of that
	erases    erasure
	came      core.Millis
	letter    *letter                        // that it is about
	cap       core.Dollars                   // of tenants, as its settings say
	told      map[core.TenantID]core.Dollars // what it was told that they have spent
}

// aside are the calls that decide nothing about anybody: they belong to the step of
// the call before them.
var aside = map[string]bool{"audit": true, "read cursor": true, "move cursor": true, "take budget": true}

// joined marks a context whose calls belong to the step of the call before them.
type joined struct{}

// role is who an actor is: a number of its own, what it does, what traces call it, and the
// run that it is about.
type role struct {
	id         int
	kind, name string
	run        int
}

// spawn adds an actor and lets it come to its first call. do must make its calls
// through a and start no goroutine that does.
func (w *world) spawn(as role, timeout time.Duration, do func(ctx context.Context, a *actor)) *actor {
	a := &actor{
		id: as.id, kind: as.kind, run: as.run, name: fmt.Sprintf("%s#%d", as.name, as.id), begun: w.calls, came: now(),
		epochs: map[core.RunKey]int64{}, fences: map[core.ThreadKey]int64{},
	}
	if w.config.Skew > 0 {
		a.skew = w.config.Skew * time.Duration(as.id%3-1)
	}
	a.cap, a.told = w.tenantCap, map[core.TenantID]core.Dollars{}
	a.next, a.close = iter.Pull(func(yield func(string) bool) {
		a.yield, a.routine, a.execs = yield, goroutine(), newExecs()
		a.p = w.store.NewProcess(mem.Faults{Before: a.stand})
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		do(ctx, a)
		w.judgeLeft(a)
	})
	w.actors = append(w.actors, a)
	w.advance(a)
	return a
}

// stand lets an actor stand still before a call.
func (a *actor) stand(ctx context.Context, call string) {
	switch {
	case a.routine != goroutine(), a.p.Stopped(), ctx.Value(joined{}) != nil, aside[call]:
	case a.stood:
		a.stood = false
	case !a.yield(call):
		a.fault(mem.StopBefore)
	}
}

// fault has one befall a's next call.
func (a *actor) fault(f mem.Fault) {
	a.faulty = true
	a.p.Plan(f)
}

// at lets an actor stand still before a call that it then makes: what follows sees
// the world as the call does.
func (a *actor) at(ctx context.Context, call string) {
	if a.routine == goroutine() {
		a.stand(ctx, call)
		a.stood = true
	}
}

// advance carries out the call that a waits for.
func (w *world) advance(a *actor) {
	defer func() {
		if what := recover(); what != nil {
			a.over = true
			w.accuse("%s panics: %v\n%s", a.name, what, debug.Stack())
		}
	}()
	begun := now()
	call, more := a.next()
	a.waits, a.over = call, !more
	if now() != begun {
		synctest.Wait() // it waited, and others' deadlines of this very moment are over
	}
}

// step carries out the next call of a, with that fault, and holds the rules against
// what came of it.
func (w *world) step(a *actor, fault mem.Fault) {
	call := a.waits
	w.calls++
	if w.tracing {
		text := a.name + ": " + call
		if fault != mem.None {
			text += " [" + fault.String() + "]"
		}
		w.note("%s", text)
	}
	if fault != mem.None {
		a.fault(fault)
	}
	w.acting, w.call = a, call
	w.cross(a)
	if !strings.HasPrefix(call, "describe") {
		a.sinceRead++
	}
	w.letters(a, func() { w.advance(a) })
	w.collect()
	if changes(call) {
		w.judge(a, call)
	}
	w.acting = nil
}

// changes reports whether a call of that name may change anything.
func changes(call string) bool {
	first, _, _ := strings.Cut(call, " ")
	switch first {
	case "read", "list", "load", "describe", "probe", "page", "stat", "find", "grant", "download", "follow":
		return false
	}
	return true
}
