package mem

import (
	"cmp"
	"context"
	"hash/maphash"
	"iter"
	"slices"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Sched lets processes on one store and cluster go one call at a time, in the
// order that its user picks, so that a schedule can be carried out again exactly.
//
// It also tells states apart: [Sched.Digest] covers everything that decides what
// may still happen, with random ids replaced by who minted them, so that two
// schedules that lead to one state have one digest.
type Sched struct {
	store  *Store
	fleet  *Fleet
	begun  core.Millis
	names  map[string]string // of random ids
	digest map[string]uint64 // of each part of the state

	scratch []byte
}

// Actor is one process under a schedule.
type Actor struct {
	Name string
	// Ready, if set, tells whether its next call may be made now.
	Ready func() bool

	process *Process
	plan    map[int]Fault
	next    func() (string, bool)
	stop    func()
	waits   string
	begun   bool
	over    bool
	history uint64
	minted  int
	fault   Fault // of the call under way
}

// NewSched schedules what happens on f and its store.
func NewSched(f *Fleet) *Sched {
	s := &Sched{store: f.store, fleet: f, begun: core.MillisOf(time.Now()), names: map[string]string{}, digest: map[string]uint64{}}
	s.look(&Actor{Name: "seed"}, "")
	return s
}

// unscheduled marks a context whose calls belong to the one before them.
type unscheduled struct{}

// Unscheduled returns a context under which calls are part of the caller's
// previous one: a schedule does not stop before them.
func Unscheduled(ctx context.Context) context.Context {
	return context.WithValue(ctx, unscheduled{}, true)
}

// Go adds an actor, which has not begun. Everything that it will do through p waits
// for [Sched.Step]; act must start no goroutine that uses p. Actors of one name must
// act alike.
func (s *Sched) Go(name string, act func(p *Process)) *Actor {
	a := &Actor{Name: name, plan: map[int]Fault{}, history: maphash.String(seed, name)}
	a.process = s.store.NewProcess(Faults{At: a.plan})
	a.next, a.stop = iter.Pull(func(yield func(string) bool) {
		a.process.faults.Before = func(ctx context.Context, call string) {
			if a.process.Stopped() || ctx.Value(unscheduled{}) != nil {
				return
			}
			goesOn := yield(call)
			if stops := a.fault == StopBefore || a.fault == StopAfter; !goesOn || stops && ctx.Err() != nil {
				a.process.kill() // it stops here, whether or not it had given the call up
			}
		}
		act(a.process)
	})
	return a
}

func (a *Actor) advance() {
	call, ok := a.next()
	a.waits, a.over = call, !ok
}

// Waits is the call that the actor is about to make, "" before it begins and once
// it is over.
func (a *Actor) Waits() string { return a.waits }

// Begin lets the actor come to its first call. What it does before that, such as
// looking at the clock, it does now.
func (a *Actor) Begin() {
	a.begun = true
	a.advance()
}

// Begun reports whether the actor has begun.
func (a *Actor) Begun() bool { return a.begun }

// Over reports whether the actor has come to its end or was stopped.
func (a *Actor) Over() bool { return a.over }

// Close ends the actor: each call that it still makes answers ErrStopped.
func (a *Actor) Close() { a.stop() }

// Step carries out the call that a waits for, with that fault, and lets a come to
// its next one.
func (s *Sched) Step(a *Actor, f Fault) {
	call := a.waits
	a.history = s.Told(a, call, f)
	n := len(a.process.Calls()) + 1
	a.plan[n], a.fault = f, f
	a.advance()
	delete(a.plan, n)
	if !ReadsOnly(call) {
		s.look(a, call)
	}
}

// Told is what a will have been told once a call was made with that fault now. It
// decides alone how a goes on from there.
func (s *Sched) Told(a *Actor, call string, f Fault) uint64 {
	return mix(a.history, maphash.String(seed, call), uint64(f), s.now(), s.seen(call))
}

// Standing is where an actor stands.
type Standing struct {
	Told  uint64 // a digest of its name and all it has been told
	Waits string // the call it is about to make
	Over  bool   // nothing remembers what it was told
}

// Standing is where a stands.
func (a *Actor) Standing() Standing { return Standing{Told: a.history, Waits: a.waits, Over: a.over} }

// now is the time since the schedule began, in milliseconds.
func (s *Sched) now() uint64 { return uint64(core.MillisOf(time.Now()) - s.begun) }

// kill ends a process as StopBefore does.
func (p *Process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
}

// Agent is one run's agent in one task, as it is.
type Agent struct {
	Task    string
	Run     core.RunID
	Begun   bool
	Alive   bool
	Blocked bool // its start marker was taken by whoever ended the run
	Exited  bool // its journal has a sentinel
	Stdout  string
	Bearer  string // that it was begun with
}

// Agents lists all agents of all tasks, those of stopped ones too.
func (f *Fleet) Agents() []Agent {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []Agent
	for arn, t := range f.tasks {
		for run, a := range t.agents {
			out = append(out, Agent{
				Task: arn, Run: run, Begun: a.begun, Alive: a.alive, Blocked: a.blocked, Exited: a.exit != nil, Stdout: string(a.stdout), Bearer: a.bearer,
			})
		}
	}
	slices.SortFunc(out, func(a, b Agent) int { return cmp.Or(cmp.Compare(a.Task, b.Task), cmp.Compare(a.Run, b.Run)) })
	return out
}

// Settings are the operator's, past every gate.
func (s *Store) Settings() core.Control {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.control
}
