package draw_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/draw"
)

// witness is a test that a property may fail.
type witness struct {
	*testing.T
	said            []string
	failed, skipped bool
}

func (w *witness) Errorf(format string, args ...any) {
	w.failed = true
	w.said = append(w.said, fmt.Sprintf(format, args...))
}
func (w *witness) Fatalf(format string, args ...any) { w.Errorf(format, args...); w.FailNow() }
func (w *witness) FailNow()                          { w.failed = true; runtime.Goexit() }
func (w *witness) Failed() bool                      { return w.failed }
func (w *witness) SkipNow()                          { w.skipped = true; runtime.Goexit() }
func (w *witness) Skipped() bool                     { return w.skipped }

// witnessed is what Check makes of property.
func witnessed(t *testing.T, property func(w *witness, r *draw.T)) *witness {
	w := &witness{T: t}
	var group sync.WaitGroup
	group.Go(func() { draw.Check(w, func(r *draw.T) { property(w, r) }) })
	group.Wait()
	return w
}

// failure is the one report of a property that fails.
func failure(t *testing.T, property func(r *draw.T)) string {
	t.Helper()
	w := witnessed(t, func(_ *witness, r *draw.T) { property(r) })
	if !w.failed || len(w.said) != 1 {
		t.Fatalf("failed is %t, said %q, want one failure", w.failed, w.said)
	}
	return w.said[0]
}

// drawsOf are the draws of a report.
func drawsOf(report string) string {
	_, rest, _ := strings.Cut(report, "\nit draws:\n")
	draws, _, _ := strings.Cut(rest, "it says:\n")
	return strings.ReplaceAll(strings.TrimSpace(draws), "\n  ", ", ")
}

var numbers = draw.SliceOf(draw.Range(0, 1000))

func sum(list []int) int {
	n := 0
	for _, one := range list {
		n += one
	}
	return n
}

// planted are properties with a bug, and the least draws that show it.
var planted = []struct {
	name     string
	least    string
	property func(r *draw.T) bool
}{
	{"a number above a bound", "n: 43", func(r *draw.T) bool { return draw.Range(0, 1_000_000).Draw(r, "n") <= 42 }},
	{"a number below a bound", "n: -43", func(r *draw.T) bool { return draw.Integer[int64]().Draw(r, "n") > -43 }},
	{"the last number of its type", "n: 0xff", func(r *draw.T) bool { return draw.Integer[uint8]().Draw(r, "n") < 255 }},
	{"a large item of a list", "list: []int{101}", func(r *draw.T) bool {
		return !slices.ContainsFunc(numbers.Draw(r, "list"), func(n int) bool { return n > 100 })
	}},
	{"a large sum", "list: []int{501, 1000}", func(r *draw.T) bool { return sum(numbers.Draw(r, "list")) <= 1500 }},
	{"an item met twice", "list: []int{0, 0}", func(r *draw.T) bool {
		list := numbers.Draw(r, "list")
		return len(slices.Compact(slices.Sorted(slices.Values(list)))) == len(list)
	}},
	{"a list in the wrong order", "list: []int{1, 0}", func(r *draw.T) bool { return slices.IsSorted(numbers.Draw(r, "list")) }},
	{"two draws that are the same", "a: 11, b: 11", func(r *draw.T) bool {
		few := draw.Range(0, 30)
		a, b := few.Draw(r, "a"), few.Draw(r, "b")
		return a != b || a <= 10
	}},
	{"a long text", `text: "aaa"`, func(r *draw.T) bool { return len([]rune(draw.String().Draw(r, "text"))) < 3 }},
	{"a character of more than a byte", `text: "\u0080"`, func(r *draw.T) bool {
		s := draw.String().Draw(r, "text")
		return len([]rune(s)) == len(s)
	}},
	{"bytes that are no text", `text: "\xff"`, func(r *draw.T) bool {
		s := draw.AnyString().Draw(r, "text")
		return strings.ToValidUTF8(s, "") == s
	}},
	{"a map with a key too many", `map: map[string]int{"a":0, "b":0}`, func(r *draw.T) bool {
		return len(draw.MapOfN(draw.StringMatching(`[a-z]`), draw.Range(0, 9), 0, 6).Draw(r, "map")) < 2
	}},
	{"one of several draws that were counted before", "count: 1, step: \"bad\"", func(r *draw.T) bool {
		ok := true
		for range draw.Range(0, 12).Draw(r, "count") {
			ok = draw.SampledFrom([]string{"good", "fine", "bad"}).Draw(r, "step") != "bad" && ok
		}
		return ok
	}},
	{"a part that a filter lets pass", "n: 8", func(r *draw.T) bool {
		return draw.Range(0, 100).Filter(func(n int) bool { return n%4 == 0 }).Draw(r, "n") < 7
	}},
	{"one of two kinds", `id: "x", more: false`, func(r *draw.T) bool {
		id := draw.OneOf(draw.Just(""), draw.SampledFrom([]string{"x", "y"})).Draw(r, "id")
		draw.Bool().Draw(r, "more")
		return id == ""
	}},
}

func TestAPlantedBugIsReducedToItsLeast(t *testing.T) {
	t.Setenv(draw.RunsVariable, "2000")
	for _, c := range planted {
		t.Run(c.name, func(t *testing.T) {
			for seed := range 20 {
				t.Setenv(draw.SeedVariable, fmt.Sprint(seed*1_000_003))
				report := failure(t, func(r *draw.T) {
					if !c.property(r) {
						r.Fatal("the bug")
					}
				})
				if got := drawsOf(report); got != c.least {
					t.Errorf("from seed %d: reduced to %s, want %s\n%s", seed, got, c.least, report)
				}
			}
		})
	}
}

func TestTheSameSeedGivesTheSameDraws(t *testing.T) {
	drawn := func(seed string) (all []string) {
		t.Setenv(draw.SeedVariable, seed)
		draw.Check(t, func(r *draw.T) {
			all = append(all, fmt.Sprintf("%q", draw.AnyString().Draw(r, "text")), fmt.Sprint(numbers.Draw(r, "list"), draw.Integer[int]().Draw(r, "n")))
		})
		return all
	}
	if a, b := drawn("7"), drawn("0x7"); !slices.Equal(a, b) || len(a) < 2 {
		t.Errorf("%d draws of one seed are %v and %v", len(a), a, b)
	}
	if slices.Equal(drawn("7"), drawn("8")) || slices.Equal(drawn(""), drawn("")) {
		t.Error("other seeds give the same draws")
	}
	one := draw.SliceOf(draw.String())
	if a, b, c := one.Example(1), one.Example(1), one.Example(2); !slices.Equal(a, b) || slices.Equal(a, c) {
		t.Errorf("examples are %q, %q and of another seed %q", a, b, c)
	}
}

// TestTheSeedOfAReportRepeatsItsRun: the first run of that seed is the one that failed.
func TestTheSeedOfAReportRepeatsItsRun(t *testing.T) {
	property := func(r *draw.T) {
		if n := draw.Range(0, 1000).Draw(r, "n"); n > 900 {
			r.Errorf("%d is too many", n)
		}
	}
	first := failure(t, property)
	_, rest, _ := strings.Cut(first, draw.SeedVariable+"=")
	seed, command, _ := strings.Cut(rest, " ")
	t.Setenv(draw.SeedVariable, seed)
	second := failure(t, property)
	if !strings.HasPrefix(second, "run 1 fails") || drawsOf(second) != "n: 901" || drawsOf(first) != "n: 901" {
		t.Errorf("%s\nis repeated as\n%s", first, second)
	}
	want := `go test github.com/sandkeeper/sandkeeper/internal/draw -run '^TestTheSeedOfAReportRepeatsItsRun$'`
	if command != want {
		t.Errorf("repeats by %s, want %s", command, want)
	}
	if !strings.Contains(first, "it says:\n  draw_test.go:") || !strings.Contains(first, ": 901 is too many\n") {
		t.Errorf("the report does not say what the property says:\n%s", first)
	}
}

// TestTheCommandOfAReportWorks in a shell, for a subtest with signs in its name.
func TestTheCommandOfAReportWorks(t *testing.T) {
	if os.Getenv("DRAW_TEST_INNER") != "" {
		t.Run("it's 1+1 (or so)", func(t *testing.T) {
			draw.Check(t, func(r *draw.T) {
				if draw.Range(0, 9).Draw(r, "n") > 3 {
					r.FailNow()
				}
			})
		})
		return
	}
	inner := func(command ...string) string {
		c := exec.CommandContext(t.Context(), command[0], command[1:]...)
		c.Env = append(os.Environ(), "DRAW_TEST_INNER=yes")
		said, err := c.CombinedOutput()
		if _, failed := errors.AsType[*exec.ExitError](err); !failed || !strings.Contains(string(said), "n: 4\n") {
			t.Fatalf("run %q: %v, want it to fail on 4\n%s", command, err, said)
		}
		return string(said)
	}
	_, command, _ := strings.Cut(inner(os.Args[0], "-test.run", "^TestTheCommandOfAReportWorks$"), "repeat it: ")
	command, _, _ = strings.Cut(command, "\n")
	if again := inner("sh", "-c", command); !strings.Contains(again, "run 1 fails") {
		t.Errorf("%s does not repeat the run:\n%s", command, again)
	}
}

func TestAPanicIsAFailure(t *testing.T) {
	list := []int{1, 2, 3}
	report := failure(t, func(r *draw.T) {
		i := draw.Range(0, 9).Draw(r, "i")
		_ = list[i]
	})
	if drawsOf(report) != "i: 3" || !strings.Contains(report, "panic: runtime error: index out of range [3]") || !strings.Contains(report, "draw_test.go:") {
		t.Errorf("said %s", report)
	}
	report = failure(t, func(r *draw.T) { r.Cleanup(func() { panic("late") }) })
	if !strings.Contains(report, "panic: late") {
		t.Errorf("of a panic in a cleanup, said %s", report)
	}
}

// TestAPropertyMayFailTheTestItself, which is reported once, with the draws as they were.
func TestAPropertyMayFailTheTestItself(t *testing.T) {
	for name, fail := range map[string]func(w *witness){
		"and stop":  func(w *witness) { w.Fatalf("outer") },
		"and go on": func(w *witness) { w.Errorf("outer") },
	} {
		t.Run(name, func(t *testing.T) {
			runs := 0
			w := witnessed(t, func(w *witness, r *draw.T) {
				runs++
				if numbers.Draw(r, "list"); runs == 3 {
					fail(w)
				}
			})
			if runs != 3 || !w.failed || len(w.said) != 2 || w.said[0] != "outer" {
				t.Fatalf("%d runs, said %q", runs, w.said)
			}
			if !strings.HasPrefix(w.said[1], "run 3 fails; it failed the test itself") || !strings.Contains(w.said[1], "list: []int{") || !strings.Contains(w.said[1], draw.SeedVariable) {
				t.Errorf("said %s", w.said[1])
			}
		})
	}
	runs := 0
	w := witnessed(t, func(w *witness, _ *draw.T) { runs++; w.SkipNow() })
	if runs != 1 || w.failed || !w.skipped {
		t.Errorf("of a test that is skipped, %d runs, failed %t, skipped %t", runs, w.failed, w.skipped)
	}
}

func TestAPropertyThatDependsOnMoreThanItsDraws(t *testing.T) {
	runs := 0
	report := failure(t, func(r *draw.T) {
		runs++
		draw.Bool().Draw(r, "b")
		if runs == 5 {
			r.Error("once")
		}
	})
	if runs != 6 || !strings.HasPrefix(report, "run 5 fails, but not when it is repeated") || !strings.Contains(report, "once") || !strings.Contains(report, "b: ") {
		t.Errorf("%d runs, said %s", runs, report)
	}
}

func TestTheReductionHasABound(t *testing.T) {
	t.Setenv(draw.RunsVariable, "10")
	runs := 0
	failure(t, func(r *draw.T) {
		runs++
		draw.SliceOfN(draw.Integer[uint64](), 500, 1000).Draw(r, "list")
		r.Fail()
	})
	if runs < 50 || runs > 1+1+10*10 {
		t.Errorf("%d runs, want the first, its repetition and at most 100", runs)
	}
}

func TestTheNumberOfRuns(t *testing.T) {
	count := func() (n int) {
		draw.Check(t, func(*draw.T) { n++ })
		return n
	}
	t.Setenv(draw.RunsVariable, "")
	usual := 100
	if testing.Short() {
		usual = 20
	}
	if n := count(); n != usual {
		t.Errorf("usually %d runs, want %d", n, usual)
	}
	t.Run("as the test says", func(t *testing.T) {
		draw.Runs(t, 30)
		if n := count(); n != 30*usual/100 {
			t.Errorf("%d runs, want %d", n, 30*usual/100)
		}
	})
	t.Setenv(draw.RunsVariable, "17")
	draw.Runs(t, 30)
	if n := count(); n != 17 {
		t.Errorf("%d runs, want the environment's 17", n)
	}
	for variable, text := range map[string]string{draw.RunsVariable: "0", draw.SeedVariable: "-1"} {
		t.Run(variable, func(t *testing.T) {
			t.Setenv(variable, text)
			want := fmt.Sprintf("%s is %q, want a whole number", variable, text)
			if said := failure(t, func(*draw.T) {}); !strings.HasPrefix(said, want) {
				t.Errorf("said %s, want %s", said, want)
			}
		})
	}
}

func TestASkippedRunDoesNotCount(t *testing.T) {
	t.Setenv(draw.RunsVariable, "50")
	passed := 0
	draw.Check(t, func(r *draw.T) {
		if draw.Bool().Draw(r, "skip") {
			r.Skip("not this one")
		}
		passed++
	})
	if passed != 50 {
		t.Errorf("%d runs passed, want 50", passed)
	}
	for name, property := range map[string]func(*draw.T){
		"skipped":  func(r *draw.T) { r.SkipNow() },
		"filtered": func(r *draw.T) { draw.Bool().Filter(func(bool) bool { return false }).Draw(r, "b") },
		"distinct": func(r *draw.T) { draw.SliceOfNDistinct(draw.Bool(), 3, 3).Draw(r, "three of two") },
		"endless": func(r *draw.T) {
			for {
				draw.Just(1).Draw(r, "one")
				draw.Bool().Draw(r, "b")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(draw.RunsVariable, "1")
			if said := failure(t, property); !strings.HasPrefix(said, "0 of 10 runs came to an end, want 1") {
				t.Errorf("said %s", said)
			}
		})
	}
}

// TestATestThatHasFailedBefore says so of the run that stops it all the same, and one that
// is failed by a simpler run is not run on.
func TestATestThatHasFailedBefore(t *testing.T) {
	w := &witness{T: t}
	var group sync.WaitGroup
	group.Go(func() {
		w.Errorf("before")
		draw.Check(w, func(*draw.T) { w.FailNow() })
	})
	group.Wait()
	if len(w.said) != 2 || !strings.HasPrefix(w.said[1], "run 1 fails; it failed the test itself") {
		t.Errorf("said %q", w.said)
	}
	runs := 0
	w = witnessed(t, func(w *witness, r *draw.T) {
		if draw.Range(1000, 9999).Draw(r, "m")+draw.Range(1000, 9999).Draw(r, "n") < 2100 {
			return
		}
		if runs++; runs > 2 {
			w.Fatalf("outer")
		}
		r.Fail()
	})
	if runs != 3 || len(w.said) != 2 || !strings.Contains(w.said[1], "fails, reduced in ") {
		t.Errorf("%d runs, said %q", runs, w.said)
	}
}

// TestALineIsKeptForTheReport of the run that it is from, and of no other.
func TestALineIsKeptForTheReport(t *testing.T) {
	report := failure(t, func(r *draw.T) {
		n := draw.Range(0, 1000).Draw(r, "n")
		r.Log("drew", n)
		r.Logf("that is %d", n)
		if n > 500 {
			r.Fatalf("too many: %d", n)
		}
	})
	_, said, _ := strings.Cut(report, "it says:\n")
	lines := strings.Split(said, "\n")
	if len(lines) != 4 || !strings.HasSuffix(lines[0], ": drew 501") || !strings.HasSuffix(lines[1], ": that is 501") || !strings.HasSuffix(lines[2], ": too many: 501") {
		t.Errorf("said %q", lines)
	}
}

// TestARunIsLikeATest: what it is given lasts as long as it does.
func TestARunIsLikeATest(t *testing.T) {
	var order []string
	var ctx context.Context
	report := failure(t, func(r *draw.T) {
		order, ctx = nil, r.Context()
		r.Cleanup(func() { order = append(order, fmt.Sprint("first, ", ctx.Err())) })
		r.Cleanup(func() { order = append(order, "second"); r.Fatal("from a cleanup") })
		if r.Context().Err() != nil || r.Failed() || r.Name() != t.Name() {
			r.Error("begins badly")
		}
		helper(r)
		if !r.Failed() {
			r.Error("has not failed")
		}
		panics(r)
	})
	if want := []string{"second", "first, context canceled"}; !slices.Equal(order, want) {
		t.Errorf("cleaned up %q, want %q", order, want)
	}
	line := lineOf("help" + "er(r)\n")
	for _, want := range []string{fmt.Sprintf("draw_test.go:%d: helped\n", line), "panic: oh", "from a cleanup"} {
		if !strings.Contains(report, want) {
			t.Errorf("the report has no %q:\n%s", want, report)
		}
	}
}

func helper(r *draw.T) {
	r.Helper()
	r.Errorf("helped")
}

func panics(*draw.T) { panic("oh") }

// lineOf is the line of this file that text is first on.
func lineOf(text string) int {
	data, err := os.ReadFile("draw_test.go")
	if err != nil {
		return 0
	}
	before, _, _ := strings.Cut(string(data), text)
	return 1 + strings.Count(before, "\n")
}

// TestInABubble: a property waits there as its test does, and no goroutine stays behind,
// or the bubble could not end.
func TestInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, runs := time.Now(), 0
		draw.Check(t, func(r *draw.T) {
			runs++
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				<-r.Context().Done()
			}()
			r.Cleanup(func() { <-stopped })
			time.Sleep(time.Hour)
			synctest.Wait()
		})
		if took := time.Since(begin); took != time.Duration(runs)*time.Hour {
			t.Errorf("%d runs took %v of the bubble's time", runs, took)
		}
		failure(t, func(r *draw.T) {
			time.Sleep(time.Second)
			if draw.Bool().Draw(r, "fatal") {
				r.FailNow()
			}
		})
	})
}
