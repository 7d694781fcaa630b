package core_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// TestNobodyStarves: with tokens for a few probes a minute, every producing run is
// asked once a lap, and one that finishes is found within a lap.
func TestNobodyStarves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const runs, tokens = 40, 6
		w.limits.ProbeRate = tokens / 60.0
		for i := range runs {
			w.left(fmt.Sprint("run-", i), "works\n")
			time.Sleep(time.Second)
		}
		lap := (runs + tokens - 1) / tokens
		asked := map[core.RunID]int{}
		for range 3 * lap {
			time.Sleep(time.Minute)
			report := w.tick()
			if report.Probed > tokens {
				t.Fatalf("%d probes with %d tokens", report.Probed, tokens)
			}
			for _, e := range report.Runs {
				if e.Reason != "unexamined" {
					asked[e.RunKey.Run]++
				}
			}
			if report.OldestLap == 0 {
				t.Error("a lap is open, and the report does not say since when")
			}
		}
		for i := range runs {
			if n := asked[core.RunID(fmt.Sprint("run-", i))]; n < 2 || n > 6 {
				t.Errorf("run %d was asked %d times in three laps", i, n)
			}
		}
		w.fleet.Exit("run-17", 0)
		found := false
		for range 2 * lap {
			time.Sleep(time.Minute)
			found = found || outcomes(w.tick())["run-17"] == core.Finalized
		}
		if !found {
			t.Error("a finished run was not found within two laps")
		}
	})
}

// TestProducingRunsCostNoWrite but their shard's cursor and the minute's budget.
func TestProducingRunsCostNoWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for i := range 30 {
			w.left(fmt.Sprint("run-", i), "works\n")
		}
		p := w.store.NewProcess(mem.Faults{})
		w.once(p)
		for _, name := range p.Writes() {
			if name != "move cursor" {
				t.Errorf("wrote %q", name)
			}
		}
		if n := len(p.Writes()); n > core.Shards {
			t.Errorf("%d writes for %d shards", n, core.Shards)
		}
	})
}

// TestAHintGoesFirst: a run whose agent says that it ended waits for no lap.
func TestAHintGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.limits.ProbeRate = 1 / 60.0
		for i := range 10 {
			w.left(fmt.Sprint("run-", i), "works\n")
		}
		w.left("last", "done\n")
		w.fleet.Exit("last", 0)
		r := w.run("last")
		h := core.Hint{ExitedAt: now(), TaskARN: r.TaskARN, Row: r.Row, DueAt: r.DueAt, Lapse: r.DueAt}
		if _, err := w.store.Update(t.Context(), r.RunKey, h); err != nil {
			t.Fatal(err)
		}
		if got := outcomes(w.tick())["last"]; got != core.Finalized {
			t.Errorf("outcome %s, want finalized", got)
		}
	})
}
