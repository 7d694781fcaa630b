package draw

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
)

// outcome is what a Check has to report.
type outcome struct {
	least   *T
	choices int  // of the run that failed first
	tries   int  // spent on less
	unsure  bool // the same choices have passed as well
}

// reducer looks for the least run that fails.
type reducer struct {
	again func([]uint64) *T
	best  *T
	tries int
	most  int // tries, fewer once the test itself is over
	tried map[string]bool
}

// reduced is what at most tries runs find less than first, which failed. A run is less if
// it has fewer choices, or as many and the first that differs is lower.
func reduced(tb TB, first *T, property func(*T), tries int) outcome {
	r := &reducer{again: func(c []uint64) *T { return run(tb, stream{given: c}, property) }, best: first, most: tries, tried: map[string]bool{}}
	if t := r.again(first.taken); t.outcome != failing {
		return outcome{least: first, choices: len(first.taken), tries: 1, unsure: true}
	}
	for before := (*T)(nil); before != r.best && r.tries < r.most; {
		before = r.best
		r.removeParts()
		r.removeAny()
		r.lowerEach()
		r.lowerEqual()
		r.moveOn()
		if r.best == before {
			r.countDown()
		}
	}
	return outcome{least: r.best, choices: len(first.taken), tries: r.tries + 1}
}

// try tells whether a run on c fails and is less than the best, which it is then.
func (r *reducer) try(c []uint64) bool {
	key := make([]byte, 0, 2*len(c))
	for _, one := range c {
		key = binary.AppendUvarint(key, one)
	}
	if r.tries >= r.most || !less(c, r.best.taken) || r.tried[string(key)] {
		return false
	}
	r.tried[string(key)] = true
	r.tries++
	t := r.again(c)
	if t.outcome == foreign || t.outcome == leaving {
		r.most = r.tries
	}
	if t.outcome != failing || !less(t.taken, r.best.taken) {
		return false
	}
	r.best = t
	return true
}

func less(a, b []uint64) bool {
	if len(a) != len(b) {
		return len(a) < len(b)
	}
	return slices.Compare(a, b) < 0
}

// without is c with its choices from one to another left out.
func without(c []uint64, from, to int) []uint64 {
	return slices.Concat(c[:from], c[to:])
}

// removeParts leaves out draws and items: first many neighbours at once, then fewer.
func (r *reducer) removeParts() {
	for level := 0; ; level++ {
		count := len(r.parts(level))
		if count == 0 {
			return
		}
		for many := count; many > 0; many /= 2 {
			for at := 0; ; {
				parts := r.parts(level)
				if at+many > len(parts) {
					break
				}
				if !r.try(without(r.best.taken, parts[at].from, parts[at+many-1].to)) {
					at += many
				}
			}
		}
	}
}

// parts are the draws, or the items of one depth, in order.
func (r *reducer) parts(level int) []span {
	var parts []span
	for _, s := range r.best.spans {
		if s.level == level {
			parts = append(parts, s)
		}
	}
	return parts
}

// removeAny leaves out up to four choices in a row, wherever they are.
func (r *reducer) removeAny() {
	for many := 4; many > 0; many-- {
		for at := 0; at+many <= len(r.best.taken); {
			if !r.try(without(r.best.taken, at, at+many)) {
				at++
			}
		}
	}
}

// lowerEach lowers one choice after the other.
func (r *reducer) lowerEach() {
	for at := 0; at < len(r.best.taken); at++ {
		r.lower([]int{at})
	}
}

// lowerEqual lowers choices together that are the same, and of the same kind.
func (r *reducer) lowerEqual() {
	type same struct{ choice, top uint64 }
	places := map[same][]int{}
	var order []same
	for at, c := range r.best.taken {
		one := same{c, r.best.tops[at]}
		if places[one] == nil {
			order = append(order, one)
		}
		places[one] = append(places[one], at)
	}
	size := len(r.best.taken)
	for _, one := range order {
		if len(places[one]) > 1 && len(r.best.taken) == size {
			r.lower(places[one])
		}
	}
}

// lower finds, by halving and then by small steps, how low the choices at these places, all
// the same, can be.
func (r *reducer) lower(places []int) {
	if places[len(places)-1] >= len(r.best.taken) {
		return
	}
	set := func(v uint64) bool {
		size := len(r.best.taken)
		c := slices.Clone(r.best.taken)
		for _, at := range places {
			c[at] = v
		}
		return r.try(c) && len(r.best.taken) == size
	}
	high := r.best.taken[places[0]]
	if high == 0 || set(0) {
		return
	}
	for low := uint64(0); high-low > 1; { // low passes, high fails
		if middle := low + (high-low)/2; set(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	for step := uint64(1); step <= min(8, high); step++ { // over what a filter keeps away
		jump := step
		for ; jump <= high && set(high-jump); jump *= 2 {
			high -= jump
		}
		if jump > step {
			step = 0
		}
	}
}

// moveOn takes from a choice as much as one soon after it can have.
func (r *reducer) moveOn() {
	const soon = 4
	for at := 0; at < len(r.best.taken); at++ {
		for to := at + 1; to <= at+soon && to < len(r.best.taken); to++ {
			c := slices.Clone(r.best.taken)
			part := min(c[at], r.best.tops[to]-c[to])
			c[at], c[to] = c[at]-part, c[to]+part
			r.try(c)
		}
	}
}

// countDown lowers a choice by one, in case it is a count, and leaves out up to six of
// the property's draws after it.
func (r *reducer) countDown() {
	for many := 1; many <= 6; many++ {
		for at := 0; at < len(r.best.taken); at++ {
			for n := 0; n+many <= len(r.parts(0)); n++ {
				r.countDownAt(at, r.parts(0)[n:n+many])
			}
		}
	}
}

func (r *reducer) countDownAt(at int, draws []span) {
	c := r.best.taken
	if at >= len(c) || c[at] == 0 || draws[0].from <= at {
		return
	}
	fewer := without(c, draws[0].from, draws[len(draws)-1].to)
	fewer[at]--
	r.try(fewer)
}

// report says which run failed, the n-th, on what draws and how, and how to repeat it.
func (o outcome) report(test string, n int, seed uint64) string {
	var text strings.Builder
	fmt.Fprintf(&text, "run %d fails", n)
	switch {
	case o.unsure:
		text.WriteString(", but not when it is repeated on the same draws: it depends on something else as well")
	case o.least.outcome == foreign:
		text.WriteString("; it failed the test itself, so that nothing simpler was tried")
	default:
		fmt.Fprintf(&text, ", reduced in %d tries from %d choices to %d", o.tries, o.choices, len(o.least.taken))
	}
	text.WriteString("\nit draws:\n")
	for _, d := range o.least.draws {
		fmt.Fprintf(&text, "  %s: %s\n", d.label, d.value)
	}
	text.WriteString("it says:\n")
	for _, said := range o.least.said {
		fmt.Fprintf(&text, "  %s\n", strings.ReplaceAll(said, "\n", "\n  "))
	}
	fmt.Fprintf(&text, "repeat it: %s=%#x go test %s -run '%s'", SeedVariable, seed, testedPackage(), pattern(test))
	return text.String()
}

// pattern is what -run finds one test by.
func pattern(test string) string {
	parts := strings.Split(test, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.ReplaceAll(strings.Join(parts, "/"), "'", `'\''`)
}

// testedPackage is the package that this process tests.
func testedPackage() string {
	if info, ok := debug.ReadBuildInfo(); ok && strings.HasSuffix(info.Path, ".test") {
		return strings.TrimSuffix(info.Path, ".test")
	}
	return "."
}
