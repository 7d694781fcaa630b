package core_test

import (
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// TestExploration tries every schedule of each scenario, at the grain of port
// calls, with a bounded number of preemptions and faults, the cheapest first. A
// schedule is cut where it comes to a state in which another has been with no less
// left to spend: what follows has been tried.
//
// SANDKEEPER_EXPLORE=full spends more, -short less; SANDKEEPER_EXPLORE=3,2 spends that
// many preemptions and faults. The race detector finds nothing
// here, where one goroutine runs at a time, and needs many times the memory.
func TestExploration(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector makes it ten times as large; make test explores without it, by itself")
	}
	b := boundOf(t, os.Getenv("SANDKEEPER_EXPLORE"), testing.Short())
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // short-lived worlds, in thousands
	total := make(chan int, len(scenarios))
	t.Run("scenarios", func(t *testing.T) {
		for _, sc := range scenarios {
			t.Run(sc.name, func(t *testing.T) {
				t.Parallel()
				e := newExplorer(sc, b)
				e.push(branch{})
				for e.todo != nil { // a bubble's clock is good for some centuries only
					synctest.Test(t, e.explore)
				}
				t.Logf("%s: %d schedules, %d carried out; %d states, %d ends", sc.name, e.schedules, e.carried, len(e.best), len(e.ends))
				if b.covers(bound{2, 1}) && e.schedules < sc.floor {
					t.Errorf("%d schedules, want at least %d: the scenario has shrunk", e.schedules, sc.floor)
				}
				total <- e.schedules
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

// TestNothingIsLeftOut holds what exploration leaves out against the whole: both come
// to the same ends.
func TestNothingIsLeftOut(t *testing.T) {
	b := bound{1, 1}
	if !testing.Short() && !raceDetector {
		b = bound{2, 1}
	}
	names := []string{
		"a finished run, two sweeps and reclaim", "an expiry and an extension", "a hold against reclaim",
		"a sweep that outlives its claim", "a pause and its end", "a task that ECS forgets",
	}
	for _, sc := range scenarios {
		if !slices.Contains(names, sc.name) {
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			reduced, whole := newExplorer(sc, b), newExplorer(sc, b)
			whole.everything = true
			for _, e := range []*explorer{reduced, whole} {
				e.push(branch{})
				for e.todo != nil {
					synctest.Test(t, e.explore)
				}
			}
			t.Logf("%d of %d schedules, %d of %d ends", reduced.schedules, whole.schedules, len(reduced.ends), len(whole.ends))
			if !maps.Equal(reduced.ends, whole.ends) {
				t.Error("the ends are not the same")
			}
		})
	}
}

// bound is what a schedule may spend.
type bound struct{ preemptions, faults int }

func boundOf(t *testing.T, asked string, short bool) bound {
	var b bound
	switch {
	case asked == "" && short:
		return bound{1, 1}
	case asked == "":
		return bound{2, 1}
	case asked == "full":
		return bound{3, 1}
	}
	if _, err := fmt.Sscanf(asked, "%d,%d", &b.preemptions, &b.faults); err != nil {
		t.Fatalf("SANDKEEPER_EXPLORE: want full, or preemptions and faults as in 3,2; got %q", asked)
	}
	return b
}

func (b bound) covers(o bound) bool { return b.preemptions >= o.preemptions && b.faults >= o.faults }

// choice is one step of a schedule: an actor, or the delivery of a message to a new
// one, and what befalls its call. There are many, so it is small.
type choice struct {
	who   int8 // below zero: delivery of message -1-who
	fault int8 // a mem.Fault
}

// branch is a schedule to begin with.
type branch struct {
	steps []choice
	spent bound
	last  outlook // on the last step
}

// outlook is what may be told of a step before it is carried out.
type outlook struct {
	known  bool
	who    int8
	stops  bool // its actor is over after it
	writes bool // it changes what is outside the actors

	around, others uint64 // what is outside the actors, and where the other actors stand, before it
	plain, told    uint64 // what its actor has been told after it, without and with its fault
	waits          waits  // after it
}

// explorer tries the schedules of one scenario, each from the beginning.
type explorer struct {
	t     *testing.T // the bubble's: time is virtual, and every schedule takes a piece of it
	sc    scenario
	bound bound

	todo [][]branch          // by what they have spent
	best map[uint64]int8     // state: one more than the preemptions that were left in it
	ends map[uint64]struct{} // states in which everybody had ended

	first  map[string]string       // each actor's first call
	goesOn map[uint64]mem.Standing // how an actor goes on, by what it has been told
	effect map[uint64]uint64       // what is outside the actors after a step, by what was before and who was told what

	schedules, carried, failed int

	everything bool // try what can change nothing, too
}

func newExplorer(sc scenario, b bound) *explorer {
	return &explorer{
		sc: sc, bound: b, best: map[uint64]int8{}, ends: map[uint64]struct{}{},
		first: map[string]string{}, goesOn: map[uint64]mem.Standing{}, effect: map[uint64]uint64{},
	}
}

// mostFailures is after how many a scenario gives up.
const mostFailures = 3

// bubbleful is how many schedules share a bubble.
const bubbleful = 1000

// explore carries out schedules until none is left to try, or time is up in t's
// bubble.
func (e *explorer) explore(t *testing.T) {
	e.t = t
	for range bubbleful {
		b, ok := e.next()
		if !ok || e.failed >= mostFailures {
			e.todo = nil
			return
		}
		e.carried++
		e.carryOut(b)
	}
}

// next takes the cheapest schedule that may lead somewhere new.
func (e *explorer) next() (branch, bool) {
	for spent := range e.todo {
		for len(e.todo[spent]) > 0 {
			last := len(e.todo[spent]) - 1
			b := e.todo[spent][last]
			e.todo[spent] = e.todo[spent][:last]
			e.schedules++
			if key, ok := e.foresee(b); !ok || e.best[key] < e.left(b.spent) {
				return b, true
			}
		}
	}
	return branch{}, false
}

func (e *explorer) push(b branch) {
	cost := b.spent.preemptions + b.spent.faults
	for len(e.todo) <= cost {
		e.todo = append(e.todo, nil)
	}
	e.todo[cost] = append(e.todo[cost], b)
}

func (e *explorer) left(spent bound) int8 { return int8(1 + e.bound.preemptions - spent.preemptions) }

// carryOut carries out one schedule and, where all its actors come to their end in
// a way that is new, everything that follows.
func (e *explorer) carryOut(b branch) {
	s := newStage(e)
	defer s.close()
	ended := e.follow(s, b)
	if e.carried%trustEvery == 0 {
		e.trust(s)
	}
	if s.broken() {
		e.report(s, "")
		return
	}
	around := s.around()
	if _, known := e.ends[around]; known || !ended {
		return
	}
	e.ends[around] = struct{}{}
	s.quiet()
	s.verify()
	e.report(s, " (after everything was quiet)")
}

// follow carries out a branch's steps, and then whoever acts goes on. What else
// could have been done at each new state is left for later. It reports whether all
// actors have come to their end.
func (e *explorer) follow(s *stage, b branch) bool {
	for n := 0; !s.broken(); n++ {
		if n < len(b.steps) {
			s.step(b.steps[n], n == len(b.steps)-1)
			continue
		}
		key := s.key(b.spent.faults)
		if foreseen, ok := e.foresee(b); ok && n == len(b.steps) && key != foreseen {
			e.t.Errorf("%s: a state was not foreseen as it is, in %s", e.sc.name, strings.Join(s.trace, "; "))
		}
		if e.best[key] >= e.left(b.spent) {
			return false
		}
		e.best[key] = e.left(b.spent)
		next, ok := e.spread(s, b.spent)
		if !ok {
			return !s.unfinished() // otherwise it is the same as a schedule without the last preemption
		}
		s.step(next, true)
	}
	return false
}

// trustEvery is how many schedules are believed for one that is checked.
const trustEvery = 8

// trust fails where a call changed what it is not known to change.
func (e *explorer) trust(s *stage) {
	if stale := s.sched.Stale(); len(stale) > 0 {
		e.t.Errorf("%s: %v changed unseen, in %s", e.sc.name, stale, strings.Join(s.trace, "; "))
	}
}

// spread leaves every other choice for later and returns the first.
func (e *explorer) spread(s *stage, spent bound) (choice, bool) {
	var first choice
	found := false
	for _, c := range s.choices() {
		after := spent
		if s.current >= 0 && int(c.who) != s.current {
			after.preemptions++
		}
		if c.fault != 0 {
			after.faults++
		}
		switch {
		case after.preemptions > e.bound.preemptions || after.faults > e.bound.faults:
		case !found && after == spent:
			first, found = c, true
		default:
			e.push(branch{steps: append(slices.Clone(s.taken), c), spent: after, last: s.outlook(c)})
		}
	}
	return first, found
}

// foresee tells the state that a schedule leads to, where its last step has been seen
// from another side: what it changes, and how its actor goes on.
func (e *explorer) foresee(b branch) (uint64, bool) {
	o := b.last
	if !o.known {
		return 0, false
	}
	around, then := o.around, mem.Standing{Over: true}
	if o.writes {
		var ok bool
		if around, ok = e.effect[mem.Mix(o.around, o.plain)]; !ok {
			return 0, false
		}
	}
	if !o.stops {
		var ok bool
		if then, ok = e.goesOn[o.told]; !ok {
			return 0, false
		}
	}
	current := int(o.who)
	if then.Over {
		current = -1
	}
	return keyOf(around, o.others+then.Digest(int(o.who)), current, o.waits, b.spent.faults), true
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
