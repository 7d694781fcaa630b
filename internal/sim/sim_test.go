package sim_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/sim"
)

// number reads an environment variable.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 0, 64)
	if err != nil {
		t.Fatalf("%s: want a number, got %q", name, text)
	}
	return n
}

// spread makes the nth seed that follows from a base.
func spread(base, n uint64) uint64 { return (base+n)*0x9e3779b97f4a7c15 ^ base }

// simulate carries out episodes until they have made so many steps.
func simulate(t *testing.T, base uint64, steps int) (met map[string]int) {
	t.Helper()
	begun, done, calls, ends := time.Now(), 0, 0, 0
	met = map[string]int{}
	for n := uint64(0); done < steps; n++ {
		seed := spread(base, n)
		r := sim.Draw(t, seed)
		done, calls, ends = done+r.Steps, calls+r.Calls, ends+r.Ends
		for what, n := range r.Met {
			met[what] += n
		}
		if len(r.Wrongs) > 0 {
			report(t, seed, r)
			return met
		}
	}
	t.Logf("%d steps (%d calls) from seed %#x, %d runs ended, in %s", done, calls, base, ends, time.Since(begun).Round(time.Millisecond))
	return met
}

func report(t *testing.T, seed uint64, r sim.Result) {
	t.Helper()
	if os.Getenv("SIM_SHRINK") == "no" {
		t.Errorf("seed %#x breaks: %s", seed, strings.Join(r.Wrongs, "\n"))
		return
	}
	short := sim.Shrink(t, r.Script, 2000)
	again := sim.Replay(t, short, true)
	save(t, short)
	said := again.Wrongs
	if len(said) == 0 {
		said = r.Wrongs
	}
	t.Errorf("seed %#x breaks, after %d steps:\n  %s\nits shortest script:\n%s\nwhat happens in it:\n  %s\nreplay: SOAK_SEED=%#x go test ./internal/sim -run TestReplay -v",
		seed, r.Steps, strings.Join(said, "\n  "), short, strings.Join(again.Trace, "\n  "), seed)
}

// save keeps a script in the file that SIM_SAVE names.
func save(t *testing.T, s sim.Script) {
	t.Helper()
	file := os.Getenv("SIM_SAVE")
	if file == "" {
		return
	}
	data, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(file, append(data, '\n'), 0o644)
	}
	if err != nil {
		t.Errorf("save the script: %v", err)
	}
}

// TestScripts carries out the scripts that are kept because each of them tells a
// broken place of the code from a sound one; see scripts/mutations.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) < 10 {
		t.Fatalf("found %d scripts, %v", len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		var s sim.Script
		if err == nil {
			err = json.Unmarshal(data, &s)
		}
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if r := sim.Replay(t, s, false); len(r.Wrongs) > 0 {
			again := sim.Replay(t, s, true)
			t.Errorf("script %s breaks: %s\nwhat happens:\n  %s", filepath.Base(file), strings.Join(r.Wrongs, "\n"), strings.Join(again.Trace, "\n  "))
		}
	}
}

// TestSimulation is what every build tries: the same episodes each time. It fails, too,
// where they do not come to what they are for.
func TestSimulation(t *testing.T) {
	met := simulate(t, 1, int(number(t, "SIM_STEPS", 150_000)))
	for _, what := range slices.Sorted(maps.Keys(met)) {
		t.Logf("%6d %s", met[what], what)
	}
	for _, what := range common {
		if met[what] == 0 && !t.Failed() && os.Getenv("SIM_SHRINK") != "no" { // a broken place of the code may keep it away
			t.Errorf("it never happens: %s", what)
		}
	}
}

// common is what so many steps come to, whatever is drawn first.
var common = []string{
	"save done", "save refused: writer-conflict", "save refused: duplicate-id", "save refused: step-busy", "capture ended",
	"a pack of the parent is used again", "a pack of a cut capture is used again", "hand-in refused: invalid-entry", "restore ended", "verify ended",
	"fork of 1", "fork of 2", "fork of 3", "fork refused: fork-destination-not-empty", "head deleted", "old checkpoints taken away",
	"collection planned", "objects collected", "collect refused: writer-conflict", "collect refused: writer-lost", "unpinned",
	"conversation saved", "conversation refused: stale-conversation", "a host waits for a collector",
	"ready created", "ready resumed", "start waits: launch", "start waits: reclaim",
	"start waits: writer", "begin refused: thread-busy", "begin refused: attached-elsewhere", "begin refused: writer-conflict", "begin refused: cancel-requested",
	"attach", "takeover", "renew", "renew refused: claim-lost", "renew refused: writer-lost", "detach", "interrupt", "continue",
	"continue refused: attached-elsewhere", "cancel", "fail", "finished", "finished with a checkpoint", "finishing checkpoint",
	"finish refused: still-producing", "tail", "tailed to the end", "list",
	"set-up working", "set-up done", "a ready hook answers", "begin refused: hook-failed", "hook error", "hook destroyed", "a copy is taken",
	"adopt", "adopted", "begin refused: quota", "begin refused: another-definition", "artifact added",
	"thread deleted", "delete thread refused: live-run", "delete thread: nothing", "a spoke refuses", "a spoke is slow", "a spoke is silent",
	"metered", "a meter is broken", "begin refused: spend-cap", "redriven", "a letter is settled", "warned: expired",
	"follow", "a session is held", "hold: tail", "hold: files", "hold: drain", "hold: setup", "hold: step", "busy",
}

// TestSimulationAfresh tries episodes that nobody has seen.
func TestSimulationAfresh(t *testing.T) {
	base := uint64(time.Now().UnixNano())
	t.Logf("fresh base seed %#x", base)
	simulate(t, base, 20_000)
}

// TestSoak goes on for SOAK_STEPS steps that nobody has seen.
func TestSoak(t *testing.T) {
	steps := number(t, "SOAK_STEPS", 0)
	if steps == 0 {
		t.Skip("SOAK_STEPS asks for no steps")
	}
	base := number(t, "SOAK_BASE", uint64(time.Now().UnixNano()))
	const part = 100_000
	for n := uint64(0); n < steps && !t.Failed(); n += part {
		simulate(t, base+n<<20, int(min(part, steps-n)))
	}
}

// TestReplay carries out the episode of SOAK_SEED again.
func TestReplay(t *testing.T) {
	if os.Getenv("SOAK_SEED") == "" {
		t.Skip("SOAK_SEED names no episode")
	}
	seed := number(t, "SOAK_SEED", 0)
	r := sim.Draw(t, seed)
	if len(r.Wrongs) > 0 {
		report(t, seed, r)
		return
	}
	t.Logf("seed %#x: %d steps, every invariant holds", seed, r.Steps)
}

// TestAnEpisodeIsDecidedByItsSeed: the same seed is the same episode, and its script
// too.
func TestAnEpisodeIsDecidedByItsSeed(t *testing.T) {
	for n := range uint64(20) {
		a, b := sim.Draw(t, spread(7, n)), sim.Draw(t, spread(7, n))
		if a.Steps != b.Steps || fmt.Sprint(a.Script) != fmt.Sprint(b.Script) {
			t.Errorf("seed %d: %d steps and then %d", n, a.Steps, b.Steps)
		}
		c, d := sim.Replay(t, a.Script, true), sim.Replay(t, a.Script, true)
		if fmt.Sprint(c.Trace) != fmt.Sprint(d.Trace) {
			t.Errorf("seed %d: a script goes two ways", n)
		}
	}
}
