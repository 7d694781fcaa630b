// Package draw checks properties: it runs one many times on values drawn at random, and
// reduces a run that fails to the least that still fails. Its rule is that whatever a run
// draws is made of one stream of numbers, its choices, where a smaller choice makes a
// simpler value: a seed is a run, a shorter or lower stream is a simpler run, and no
// generator needs to know how to reduce what it made. It is for tests alone.
package draw

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// What the environment says of every property of a test process.
const (
	// SeedVariable holds the seed of the first run, in Go's syntax for whole numbers; the
	// runs after it follow from it. Without it each Check begins anywhere.
	SeedVariable = "DRAW_SEED"
	// RunsVariable holds how many runs a property has to pass, with -short too.
	RunsVariable = "DRAW_RUNS"
)

const (
	usualRuns = 100
	shorter   = 5 // with -short, one run in so many
	triesARun = 10
	mostWaste = 10 // runs given up for each that counts
)

// TB is what Check needs of a test; *testing.T and its like have it.
type TB interface {
	Helper()
	Name() string
	Context() context.Context
	Errorf(format string, args ...any)
	FailNow()
	Failed() bool
	SkipNow()
	Skipped() bool
}

// Check runs property until it has passed often enough, and fails t at once if it does
// not. It fails by the methods of its T that fail a test, by a panic, and by failing t
// itself. The report has the least run found, each of its draws by label and value, and
// the command that repeats it; a run that failed t itself is reported as it was, since
// that cannot be taken back to try a simpler one. How often is usually 100 runs, 20 with
// -short; Runs and the environment say otherwise. At most ten times as many tries go
// into the reduction. Each run has a goroutine of its own, which has ended before the
// next begins, and which is in t's synctest bubble if t is in one.
func Check(t TB, property func(*T)) {
	t.Helper()
	seed, runs, err := settings()
	if err != nil {
		t.Errorf("%v", err)
		t.FailNow()
	}
	passed := 0
	for n := 0; passed < runs; n++ {
		if n >= runs*mostWaste {
			t.Errorf("%d of %d runs came to an end, want %d: too many were skipped, or had no value that a filter lets pass", passed, n, runs)
			t.FailNow()
		}
		r := run(t, random(seed+uint64(n)), property)
		switch r.outcome {
		case passing:
			passed++
		case failing:
			t.Errorf("%s", reduced(t, r, property, runs*triesARun).report(t.Name(), n+1, seed+uint64(n)))
			t.FailNow()
		case foreign:
			t.Errorf("%s", outcome{least: r}.report(t.Name(), n+1, seed+uint64(n)))
			t.FailNow()
		case leaving:
			t.SkipNow()
		}
	}
}

// Runs has each property of t pass n runs, with -short a fifth of them, unless the
// environment says how many. Like Setenv it is not for parallel tests.
func Runs(t testing.TB, n int) {
	t.Helper()
	if os.Getenv(RunsVariable) == "" {
		t.Setenv(RunsVariable, strconv.Itoa(inShort(n)))
	}
}

func inShort(n int) int {
	if testing.Short() {
		return max(1, n/shorter)
	}
	return n
}

// settings are the first seed and the number of runs.
func settings() (seed uint64, runs int, err error) {
	seed, runs = rand.Uint64(), inShort(usualRuns)
	if text := os.Getenv(SeedVariable); text != "" {
		if seed, err = strconv.ParseUint(text, 0, 64); err != nil {
			return 0, 0, fmt.Errorf("%s is %q, want a whole number of at most 64 bits", SeedVariable, text)
		}
	}
	if text := os.Getenv(RunsVariable); text != "" {
		if runs, err = strconv.Atoi(text); err != nil || runs < 1 {
			return 0, 0, fmt.Errorf("%s is %q, want a whole number from 1", RunsVariable, text)
		}
	}
	return seed, runs, nil
}

// stream is where a run's choices come from: a source of random numbers, or the choices
// of a run before.
type stream struct {
	random *rand.Rand // nil for a run that is given its choices
	given  []uint64
}

// random is the stream of a seed. Neighbours have nothing in common.
func random(seed uint64) stream {
	return stream{random: rand.New(rand.NewPCG(mixed(seed), mixed(^seed)))}
}

// mixed has each bit of x decide about each of its own.
func mixed(x uint64) uint64 {
	for range 3 {
		x ^= x >> 29
		x *= 0xd1342543de82ef95
		x ^= x >> 32
	}
	return x
}
