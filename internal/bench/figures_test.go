package bench_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/localfargate"
)

func TestMain(m *testing.M) {
	maybeStart()
	localfargate.MaybeInit()
	os.Exit(m.Run())
}

var (
	out  = flag.String("figures", "", "measure everything, and write the list of figures to this file")
	only = flag.String("only", "", "measure only what matches this expression, and leave the file's other figures as they are")
)

// figure is one row of the table.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Goal  string  `json:"goal"` // a comparison with a number; empty: the figure is for information
	Holds bool    `json:"holds"`

	how string // what was measured, where the name cannot say it
}

// judge rounds the figure to what is worth reading, and then says whether it holds.
func (f figure) judge() figure {
	if f.Value != 0 {
		digits := max(0, 3-int(math.Ceil(math.Log10(math.Abs(f.Value)))))
		scale := math.Pow10(digits)
		f.Value = math.Round(f.Value*scale) / scale
	}
	f.Holds = f.Goal == "" || meets(f.Value, f.Goal)
	return f
}

// meets compares with a goal such as ">= 100".
func meets(value float64, goal string) bool {
	op, text, _ := strings.Cut(goal, " ")
	bound, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic("goal " + goal + ": want a comparison and a number")
	}
	switch op {
	case ">=":
		return value >= bound
	case "<=":
		return value <= bound
	case "<":
		return value < bound
	case "=":
		return value == bound
	}
	panic("goal " + goal + ": want a comparison and a number")
}

// part measures some figures.
type part struct {
	name    string
	virtual bool // on a bubble's clock
	measure func(t *testing.T, scale int) []figure
}

var parts = []part{
	{"finalising", true, finalising},
	{"examining", true, examining},
	{"writes", true, writesPerRun},
	{"exit to stopped", true, exitToStopped},
	{"cost", true, cost},
	{"checkpoint calls", true, storing},
	{"plan", true, planning},
	{"cold start", false, coldStart},
	{"tokens", false, tokensPerRun},
	{"lossy sessions", false, lossySessions},
	{"nudged exit", false, nudged},
	{"cancelled", false, cancelled},
	{"tailed", false, tailed},
	{"price of a run", false, runPrice},
	{"memory", false, memory},
	{"bucket share", false, bucketShare},
	{"checkpoints of large files", false, ofLargeFiles},
	{"checkpoints of small files", false, ofSmallFiles},
	{"checkpoints of modules", false, ofModules},
	{"agent", false, agentSizes},
	{"tool calls", false, toolCalls},
	{"explain", false, explaining},
	{"stack", false, stackTimes},
}

// TestFigures fails only for a figure that could not be measured: one that misses its
// goal is in the table, and in the list, as one that does not hold. On the smaller
// scale, where the figures are the same in every run, a missed goal fails too.
func TestFigures(t *testing.T) {
	full := *out != "" || *only != ""
	chosen := regexp.MustCompile(*only)
	var figures []figure
	for _, p := range parts {
		if !full && !p.virtual || !chosen.MatchString(p.name) {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			began := time.Now()
			scale := 1
			if !full {
				scale = 10
			}
			for _, f := range p.measure(t, scale) {
				f = f.judge()
				figures = append(figures, f)
				if !full && !f.Holds {
					t.Errorf("%s: %g %s, want %s", f.Name, f.Value, f.Unit, f.Goal)
				}
			}
			if full {
				fmt.Fprintf(os.Stderr, "%-16s measured in %.0f s\n", p.name, time.Since(began).Seconds())
			}
		})
	}
	if !full || t.Failed() {
		return
	}
	table(os.Stdout, figures)
	if *out == "" {
		return
	}
	if *only != "" {
		figures = among(t, figures)
	}
	write(t, figures)
}

// among puts figures in the place of those of the same names in the file, and the rest
// behind.
func among(t *testing.T, figures []figure) (all []figure) {
	t.Helper()
	text, err := os.ReadFile(*out)
	if errors.Is(err, fs.ErrNotExist) {
		return figures
	}
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range figures {
		if i := slices.IndexFunc(all, func(old figure) bool { return old.Name == f.Name }); i >= 0 {
			all[i] = f
		} else {
			all = append(all, f)
		}
	}
	return all
}

func write(t *testing.T, figures []figure) {
	t.Helper()
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // goals are comparisons
	e.SetIndent("", "  ")
	err := e.Encode(figures)
	if err == nil {
		err = os.WriteFile(*out, text.Bytes(), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\n%d figures in %s\n", len(figures), filepath.Base(*out))
}

// table prints the figures for people: a line each, and below it how it was measured.
func table(w io.Writer, figures []figure) {
	name, value, unit := 0, 0, 0
	for _, f := range figures {
		name, value, unit = max(name, len(f.Name)), max(value, len(number(f.Value))), max(unit, len(f.Unit))
	}
	for _, f := range figures {
		verdict := map[bool]string{true: "holds", false: "MISSED"}[f.Holds]
		if f.Goal == "" {
			verdict = ""
		}
		line := fmt.Sprintf("%-*s  %*s %-*s  %-7s  %s", name, f.Name, value, number(f.Value), unit, f.Unit, f.Goal, verdict)
		fmt.Fprintln(w, strings.TrimRight(line, " "))
		if f.how != "" {
			fmt.Fprintln(w, "    "+f.how)
		}
	}
}

func number(v float64) string { return cmp.Or(strconv.FormatFloat(v, 'f', -1, 64), "0") }
