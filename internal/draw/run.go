package draw

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
)

// ending is how a run came to its end.
type ending int

const (
	passing ending = iota
	failing
	givenUp // it was skipped, or has no values to go on with
	foreign // it failed the test around it
	leaving // it skipped the test around it
)

// mostChoices is where a run that draws without end is given up.
const mostChoices = 1 << 17

// span is a part of a run's choices that can go as a whole: a draw, or an item of a
// list. Those of one level do not overlap.
type span struct{ from, to, level int }

// drawn is a value that the property itself has drawn.
type drawn struct{ label, value string }

// T is one run of a property, as a *testing.T is one of a test: only the goroutine that
// the property was called on may draw, fail now or skip, any may log or fail.
type T struct {
	stream
	tb      TB // nil for an example
	ctx     context.Context
	outcome ending
	taken   []uint64
	tops    []uint64 // how high each could have been
	echo    []uint64 // choices of an item before, of which the next is made
	spans   []span
	level   int
	draws   []drawn

	mu       sync.Mutex
	failed   bool
	skipped  bool
	said     []string
	helpers  map[string]bool
	cleanups []func()
}

// run is property's run on the choices of s, when it is over.
func run(tb TB, s stream, property func(*T)) *T {
	ctx, cancel := context.WithCancel(tb.Context())
	t := &T{stream: s, tb: tb, ctx: ctx}
	before, returned, done := tb.Failed(), false, make(chan struct{})
	go func() {
		defer close(done)
		defer t.cleanUp()
		defer cancel()
		defer t.caught()
		property(t)
		returned = true
	}()
	<-done
	switch {
	case tb.Skipped():
		t.outcome = leaving
	case tb.Failed() && !before:
		t.outcome = foreign
	case t.failed:
		t.outcome = failing
	case t.skipped:
		t.outcome = givenUp
	case !returned: // by runtime.Goexit, which is how a test that failed before fails again
		t.outcome = foreign
	}
	return t
}

// caught makes a failure of a panic.
func (t *T) caught() {
	if v := recover(); v != nil {
		_, stack, _ := bytes.Cut(debug.Stack(), []byte("\npanic("))
		_, stack, _ = bytes.Cut(stack, []byte("\n\t"))
		_, stack, _ = bytes.Cut(stack, []byte("\n"))
		t.fail(fmt.Sprintf("panic: %v\n%s", v, bytes.TrimSpace(stack)))
	}
}

// cleanUp calls what Cleanup was given, the last first, and the rest even if one does
// not return.
func (t *T) cleanUp() {
	t.mu.Lock()
	n := len(t.cleanups)
	if n == 0 {
		t.mu.Unlock()
		return
	}
	last := t.cleanups[n-1]
	t.cleanups = t.cleanups[:n-1]
	t.mu.Unlock()
	defer t.cleanUp()
	defer t.caught()
	last()
}

// Name is the name of the test.
func (t *T) Name() string { return t.tb.Name() }

// Context is done when the property has returned, before what Cleanup was given is called.
func (t *T) Context() context.Context { return t.ctx }

// Cleanup has f called after the run, the last given first.
func (t *T) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

// Helper leaves the calling function out where a message says what line it is from.
func (t *T) Helper() {
	var pc [1]uintptr
	runtime.Callers(2, pc[:])
	frame, _ := runtime.CallersFrames(pc[:]).Next()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.helpers == nil {
		t.helpers = map[string]bool{}
	}
	t.helpers[frame.Function] = true
}

// Failed tells whether the run has failed so far.
func (t *T) Failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

// Fail fails the run, which goes on.
func (t *T) Fail() { t.fail("") }

// FailNow fails the run and ends it.
func (t *T) FailNow() {
	t.fail("")
	runtime.Goexit()
}

// Log keeps a line for the report of the run, should it fail.
func (t *T) Log(args ...any) { t.say(fmt.Sprintln(args...)) }

// Logf is Log with a format.
func (t *T) Logf(format string, args ...any) { t.say(fmt.Sprintf(format, args...)) }

// Error is Log and Fail.
func (t *T) Error(args ...any) {
	t.say(fmt.Sprintln(args...))
	t.fail("")
}

// Errorf is Logf and Fail.
func (t *T) Errorf(format string, args ...any) {
	t.say(fmt.Sprintf(format, args...))
	t.fail("")
}

// Fatal is Log and FailNow.
func (t *T) Fatal(args ...any) {
	t.say(fmt.Sprintln(args...))
	t.FailNow()
}

// Fatalf is Logf and FailNow.
func (t *T) Fatalf(format string, args ...any) {
	t.say(fmt.Sprintf(format, args...))
	t.FailNow()
}

// Skip is Log and SkipNow.
func (t *T) Skip(args ...any) {
	t.say(fmt.Sprintln(args...))
	t.SkipNow()
}

// SkipNow ends the run, which counts neither as passed nor, unless it has failed already,
// as failed.
func (t *T) SkipNow() {
	t.mu.Lock()
	t.skipped = true
	t.mu.Unlock()
	runtime.Goexit()
}

func (t *T) fail(why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = true
	if why != "" {
		t.said = append(t.said, why)
	}
}

// say keeps a message of the caller's caller, and what line it is from.
func (t *T) say(text string) {
	pcs := make([]uintptr, 50)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	t.mu.Lock()
	defer t.mu.Unlock()
	frame, more := frames.Next()
	for more && t.helpers[frame.Function] {
		frame, more = frames.Next()
	}
	t.said = append(t.said, fmt.Sprintf("%s:%d: %s", filepath.Base(frame.File), frame.Line, strings.TrimSuffix(text, "\n")))
}

// giveUp ends a run that has no values to go on with.
func (t *T) giveUp() {
	if t.tb == nil {
		panic("draw: an example has no value that a filter lets pass")
	}
	t.SkipNow()
}

// choose is the next choice, from 0 to most; likely makes one that is random.
func (t *T) choose(most uint64, likely func(*rand.Rand) uint64) uint64 {
	var c uint64
	switch {
	case len(t.taken) == mostChoices:
		t.giveUp()
	case len(t.echo) > 0:
		c, t.echo = t.echo[0], t.echo[1:]
	case t.random != nil:
		c = likely(t.random)
	case len(t.taken) < len(t.given):
		c = t.given[len(t.taken)]
	default: // what a shorter run leads to instead may have no end
		t.giveUp()
	}
	c = min(c, most)
	t.taken, t.tops = append(t.taken, c), append(t.tops, most)
	return c
}

// until has try make a value until it says that it is one, and forgets the choices of
// those before. A run that is given its choices has one attempt.
func (t *T) until(try func() bool) bool {
	const patience = 100
	taken, spans := len(t.taken), len(t.spans)
	for range patience {
		if try() {
			return true
		}
		if t.random == nil {
			return false
		}
		t.taken, t.tops, t.spans, t.echo = t.taken[:taken], t.tops[:taken], t.spans[:spans], nil
	}
	return false
}

// part has make's choices go as a whole.
func (t *T) part(make func()) span {
	from := len(t.taken)
	t.level++
	make()
	t.level--
	s := span{from, len(t.taken), t.level}
	if s.to > s.from {
		t.spans = append(t.spans, s)
	}
	return s
}
