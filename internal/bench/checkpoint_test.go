package bench_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

// contender keeps a tree in a bucket of the store. Each step is a process of its own.
type contender interface {
	name() string
	begin(t *testing.T, bucket, tree string)
	capture(t *testing.T) used
	restore(t *testing.T, into string) used
	end(t *testing.T)
}

// rounds is how often everything is measured: what is shown is the median.
const rounds = 3

// step is what both contenders do with a tree before either does the next.
type step string

// The steps of a round, in order.
const (
	first   step = "first capture"
	again   step = "unchanged again"
	touched step = "1 % touched"
	restore step = "restore"
)

// match is ours and theirs on one tree, in turn.
type match struct {
	tree    tree
	storage *storage
	ours    *sandkeeper
	theirs  *restic
	took    map[step]map[string][]used // by step and contender
	puts    map[step]int               // of ours, at most
	shares  []shares                   // of each round
}

// shares are what a small change costs.
type shares struct {
	packs    float64 // bytes of new packs, by bytes written to files
	manifest float64 // bytes of the new root and layer, by those of the first
}

func newMatch(t *testing.T, tr tree) *match {
	t.Helper()
	m := &match{tree: tr.ready(t), storage: newStorage(t), took: map[step]map[string][]used{}, puts: map[step]int{}}
	m.ours = &sandkeeper{program: agentFor(t, runtime.GOARCH), storage: m.storage}
	m.theirs = &restic{program: built(t, "github.com/restic/restic/cmd/restic"), storage: m.storage}
	return m
}

// play has both do the steps: each step of the one is followed by that of the other,
// and which begins changes from round to round.
func (m *match) play(t *testing.T, steps ...step) {
	t.Helper()
	for round := range rounds {
		m.round(t, round, steps)
	}
}

func (m *match) round(t *testing.T, round int, steps []step) {
	t.Helper()
	both := []contender{m.ours, m.theirs}
	if round%2 == 1 {
		slices.Reverse(both)
	}
	for _, c := range both {
		c.begin(t, fmt.Sprintf("%s-%d", c.name(), round), m.tree.dir)
		defer c.end(t)
	}
	written := int64(0)
	for _, s := range steps {
		if s == touched {
			written = touch(t, m.tree, round)
		}
		before := m.storage.puts(t, m.ours.bucket)
		for _, c := range both {
			m.note(s, c, m.step(t, round, s, c))
		}
		m.puts[s] = max(m.puts[s], m.storage.puts(t, m.ours.bucket)-before)
	}
	if written > 0 {
		m.shares = append(m.shares, m.ours.shares(written))
	}
}

func (m *match) step(t *testing.T, round int, s step, c contender) used {
	t.Helper()
	if s != restore {
		return c.capture(t)
	}
	into := filepath.Join(memoryDir(t), "restored")
	if err := os.Mkdir(into, 0o755); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(into) }()
	u := c.restore(t, into)
	if round == 0 {
		same(t, c.name(), into, m.tree.dir)
	}
	return u
}

func (m *match) note(s step, c contender, u used) {
	if m.took[s] == nil {
		m.took[s] = map[string][]used{}
	}
	m.took[s][c.name()] = append(m.took[s][c.name()], u)
}

// figures are ours of a step, in the unit of amount a second, and how much faster that
// is than theirs: the median of the rounds' ratios.
func (m *match) figures(s step, amount float64, unit, goal string) []figure {
	ours, theirs := m.took[s][m.ours.name()], m.took[s][m.theirs.name()]
	ratios := make([]float64, len(ours))
	for i := range ours {
		ratios[i] = theirs[i].Wall.Seconds() / ours[i].Wall.Seconds()
	}
	name := fmt.Sprintf("%s of %s", s, m.tree.name)
	if s == again {
		name = m.tree.name + ", " + string(s)
	}
	said := ""
	if s == first {
		said = m.tree.said()
	}
	how := fmt.Sprintf("%s; the same, restic v0.18.1: %s; ratios %.2f to %.2f", middle(ours), middle(theirs), slices.Min(ratios), slices.Max(ratios))
	return []figure{
		{Name: name, Value: amount / median(ours, wall), Unit: unit + "/s", how: said},
		{Name: name + ", against restic", Value: median(ratios, itself), Unit: "times", Goal: goal, how: how},
	}
}

// memory is the most that any step of ours took.
func (m *match) memory() figure {
	most := int64(0)
	for _, took := range m.took {
		for _, u := range took[m.ours.name()] {
			most = max(most, u.Peak)
		}
	}
	return figure{Name: "peak memory of the agent, " + m.tree.name, Value: float64(most) / (1 << 20), Unit: "MiB", Goal: "<= 128",
		how: "of its captures and restores, each in a process of its own"}
}

func wall(u used) float64      { return u.Wall.Seconds() }
func cpu(u used) float64       { return u.CPU.Seconds() }
func peaked(u used) float64    { return float64(u.Peak) / (1 << 20) }
func itself(v float64) float64 { return v }

// middle says what a step took, in the median.
func middle(list []used) string {
	return fmt.Sprintf("%.2f s, %.2f CPU s, peak %.0f MiB", median(list, wall), median(list, cpu), median(list, peaked))
}

func median[T any](list []T, value func(T) float64) float64 {
	values := make([]float64, len(list))
	for i, v := range list {
		values[i] = value(v)
	}
	slices.SortFunc(values, cmp.Compare)
	return values[len(values)/2]
}

// said is on what, and how, both are measured.
func (tr tree) said() string {
	return fmt.Sprintf("%d files, %.0f MB, on %d cores with versitygw on loopback, grants from the function's use case; restic as by default, with --no-scan and its cache kept",
		tr.files, float64(tr.bytes)/megabyte, runtime.NumCPU())
}

const (
	megabyte = 1e6
	faster   = ">= 1.5"
	asFast   = ">= 1"
)

// ofLargeFiles is a tree of few files.
func ofLargeFiles(t *testing.T, _ int) []figure {
	m := newMatch(t, largeFiles)
	m.play(t, first, restore)
	size := float64(m.tree.bytes) / megabyte
	return slices.Concat(m.figures(first, size, "MB", faster), m.figures(restore, size, "MB", asFast), []figure{m.memory()})
}

// ofModules is what agents really work in.
func ofModules(t *testing.T, _ int) []figure {
	m := newMatch(t, modules)
	m.play(t, first, restore)
	files := float64(m.tree.files)
	return slices.Concat(m.figures(first, files, "files", faster), m.figures(restore, files, "files", asFast), []figure{m.memory()})
}

// ofSmallFiles is a tree of many files, and what it costs to keep it again.
func ofSmallFiles(t *testing.T, _ int) []figure {
	m := newMatch(t, smallFiles)
	m.play(t, first, again, touched, restore)
	files := float64(m.tree.files)
	how := "the store's log, with the root that the function puts"
	return slices.Concat(
		m.figures(first, files, "files", ">= 2"),
		[]figure{{Name: "PUTs of that first capture", Value: float64(m.puts[first]), Unit: "PUTs", Goal: "<= 100", how: how}},
		m.figures(again, files, "files", ">= 2"),
		[]figure{
			{Name: "PUTs of that unchanged one", Value: float64(m.puts[again]), Unit: "PUTs", Goal: "<= 2", how: how},
			{Name: "packs for 1 % of files touched, by their size", Value: median(m.shares, func(s shares) float64 { return s.packs }), Unit: "times",
				Goal: "<= 1.2", how: "1,000 files rewritten with what does not compress, spread over the tree"},
			{Name: "manifest for 1 % of files touched, by a whole one", Value: 100 * median(m.shares, func(s shares) float64 { return s.manifest }), Unit: "%",
				Goal: "<= 10", how: m.ours.sizes},
		},
		m.figures(restore, files, "files", asFast), []figure{m.memory()})
}
