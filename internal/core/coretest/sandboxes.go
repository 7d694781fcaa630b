package coretest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Sandboxes checks the contract of [core.Sandboxes].
func Sandboxes(t *testing.T, open Open) {
	t.Run("Sandbox of a record that does not exist is not found", func(t *testing.T) {
		_, err := open(t).Sandboxes.Sandbox(t.Context(), "none")
		notFound(t, err)
	})
	t.Run("A record keeps every member", func(t *testing.T) {
		s := open(t)
		for _, want := range []core.Sandbox{sandbox("i1"), wholeSandbox("i2")} {
			must(t, s.Seed.Sandbox(t.Context(), want))
			got, err := s.Sandboxes.Sandbox(t.Context(), want.Key)
			must(t, err)
			equal(t, "sandbox", got, want)
		}
	})
	t.Run("UpdateSandbox of a record that does not exist is not found", func(t *testing.T) {
		s := open(t)
		for _, draw := range sandboxTransitions {
			transition := draw.example(core.Sandbox{Key: "none"})
			_, err := s.Sandboxes.UpdateSandbox(t.Context(), "none", transition)
			notFound(t, err)
		}
		_, err := s.Sandboxes.Sandbox(t.Context(), "none")
		notFound(t, err)
	})
	t.Run("UpdateSandbox returns the record, is its own success, and is refused", func(t *testing.T) {
		s := open(t)
		box := sandbox("i1")
		must(t, s.Seed.Sandbox(t.Context(), box))
		mark := core.MarkReclaiming{Instance: "i1", LatestRun: "r1", By: "mine", Now: 5000}
		want, err := mark.Apply(box)
		must(t, err)
		for range 2 {
			got, err := s.Sandboxes.UpdateSandbox(t.Context(), box.Key, mark)
			must(t, err)
			equal(t, "the answer", got, want)
		}
		mark.LatestRun = "r0"
		mark.By = "another"
		_, err = s.Sandboxes.UpdateSandbox(t.Context(), box.Key, mark)
		refusedAs(t, err, "latest-run")
		got, err := s.Sandboxes.Sandbox(t.Context(), box.Key)
		must(t, err)
		equal(t, "the record", got, want)
	})
	t.Run("UpdateSandbox ends no exec hold of another", func(t *testing.T) { execHolds(t, open) })
}

// execHolds checks that a hold of a container's exec sessions is taken, renewed and ended
// as it was read, and that nobody ends another's.
func execHolds(t *testing.T, open Open) {
	s := open(t)
	box := sandbox("i1")
	must(t, s.Seed.Sandbox(t.Context(), box))
	ask := func(was, hold core.ExecHold) error {
		_, err := s.Sandboxes.UpdateSandbox(t.Context(), box.Key, core.HoldExec{Instance: box.Instance, Was: was, Hold: hold})
		return err
	}
	held := func(by string, epoch int64, until core.Millis) core.ExecHold {
		return core.ExecHold{ExecHolder: core.ExecHolder{By: by, Epoch: epoch}, Until: until}
	}
	none, mine, others := core.ExecHold{}, held("drain:r1", 1, 9000), held("drain:r1", 2, 9000)
	must(t, ask(none, mine))
	must(t, ask(none, mine)) // its answer was lost
	refusedAs(t, ask(none, others), "busy")
	renewed := held("drain:r1", 1, 9500)
	must(t, ask(mine, renewed))
	refusedAs(t, ask(mine, none), "busy") // of a renewal that it does not know of
	must(t, ask(renewed, others))
	refusedAs(t, ask(renewed, none), "busy")
	got, err := s.Sandboxes.Sandbox(t.Context(), box.Key)
	must(t, err)
	box.Exec = others
	equal(t, "the record", got, box)
	must(t, ask(others, none))
	box.Exec = none
	got, err = s.Sandboxes.Sandbox(t.Context(), box.Key)
	must(t, err)
	equal(t, "the record that nobody holds", got, box)
	_, err = s.Sandboxes.UpdateSandbox(t.Context(), box.Key, core.HoldExec{Instance: "i0", Hold: mine})
	refusedAs(t, err, "instance")
}

// Ledger checks the contract of [core.Ledger].
func Ledger(t *testing.T, open Open) {
	t.Run("Row that does not exist is not found", func(t *testing.T) {
		_, err := open(t).Ledger.Row(t.Context(), "none")
		notFound(t, err)
	})
	t.Run("PutIntent puts a row that is absent, every member", func(t *testing.T) {
		s := open(t)
		want := intent("i1")
		want.TaskARN, want.Attempts, want.Why, want.Owed = "arn:task", 3, "why", "r0"
		got, err := s.Ledger.PutIntent(t.Context(), want)
		must(t, err)
		equal(t, "the answer", got, want)
		got, err = s.Ledger.Row(t.Context(), "i1")
		must(t, err)
		equal(t, "the row", got, want)
	})
	t.Run("PutIntent returns a row that is there as it is", func(t *testing.T) {
		s := open(t)
		_, err := s.Ledger.PutIntent(t.Context(), intent("i1"))
		must(t, err)
		want, err := s.Ledger.UpdateRow(t.Context(), "i1", core.StopLaunch{TaskARN: "arn:task", Why: "late", Now: 2000, DueAt: 3000})
		must(t, err)
		got, err := s.Ledger.PutIntent(t.Context(), intent("i1"))
		must(t, err)
		equal(t, "the answer", got, want)
	})
	t.Run("UpdateRow of a row that does not exist is not found", func(t *testing.T) {
		s := open(t)
		for _, draw := range ledgerTransitions {
			_, err := s.Ledger.UpdateRow(t.Context(), "none", draw.example(core.LedgerRow{Instance: "none"}))
			notFound(t, err)
		}
		_, err := s.Ledger.Row(t.Context(), "none")
		notFound(t, err)
	})
	t.Run("UpdateRow returns the row, is its own success, and is refused", func(t *testing.T) {
		s := open(t)
		row := intent("i1")
		must(t, s.Seed.Row(t.Context(), row))
		stop := core.StopLaunch{TaskARN: "arn:task", Why: "late", Now: 2000, DueAt: 3000}
		want, err := stop.Apply(row)
		must(t, err)
		for range 2 {
			got, err := s.Ledger.UpdateRow(t.Context(), "i1", stop)
			must(t, err)
			equal(t, "the answer", got, want)
		}
		stop.TaskARN = "arn:other"
		_, err = s.Ledger.UpdateRow(t.Context(), "i1", stop)
		refusedAs(t, err, "state")
		got, err := s.Ledger.Row(t.Context(), "i1")
		must(t, err)
		equal(t, "the row", got, want)
	})
}

// SandboxIndex checks the contract of [core.SandboxIndex]. The index of the stores
// that open returns must not lag.
func SandboxIndex(t *testing.T, open Open) {
	t.Run("DueSandboxes lists idle sandboxes and open rows due by then, once, in order", func(t *testing.T) {
		s := open(t)
		want := map[core.DueSandbox]bool{}
		for i := range 30 {
			box := sandbox(core.InstanceID(fmt.Sprint("box", i)))
			box.IdleSince, box.DueAt = 1, core.Millis(4990+i)
			must(t, s.Seed.Sandbox(t.Context(), box))
			row := intent(core.InstanceID(fmt.Sprint("row/", i)))
			row.DueAt = core.Millis(4990 + i)
			must(t, s.Seed.Row(t.Context(), row))
			if 4990+i <= 5000 {
				want[core.DueSandbox{Key: box.Key, At: box.DueAt}] = true
				want[core.DueSandbox{Instance: row.Instance, At: row.DueAt}] = true
			}
		}
		must(t, s.Seed.Sandbox(t.Context(), sandbox("busy")))
		closed := intent("closed")
		closed.State, closed.DueAt = core.LedgerClosed, 0
		must(t, s.Seed.Row(t.Context(), closed))
		got := dueSandboxes(t, s, 5000)
		equal(t, "entries", len(got), len(want))
		for _, e := range got {
			if !want[e] {
				t.Errorf("listed %+v, which is not due", e)
			}
		}
	})
	t.Run("A transition takes an entry out of the index and puts it in", func(t *testing.T) {
		s := open(t)
		box, row := sandbox("box"), intent("row")
		must(t, s.Seed.Sandbox(t.Context(), box))
		must(t, s.Seed.Row(t.Context(), row))
		_, err := s.Sandboxes.UpdateSandbox(t.Context(), box.Key, core.MarkReclaiming{Instance: "box", LatestRun: "r1", By: "a", Now: 1})
		must(t, err)
		_, err = s.Sandboxes.UpdateSandbox(t.Context(), box.Key, core.MarkIdle{Instance: "box", By: "a", Since: 2, DueAt: 3})
		must(t, err)
		_, err = s.Ledger.UpdateRow(t.Context(), "row", core.CloseRow{From: core.LedgerIntent, Why: "never launched", Now: 4})
		must(t, err)
		equal(t, "entries", dueSandboxes(t, s, 1<<40), []core.DueSandbox{{Key: box.Key, At: 3}})
	})
}

func dueSandboxes(t *testing.T, s Stores, until core.Millis) []core.DueSandbox {
	t.Helper()
	var out []core.DueSandbox
	for shard := range core.Shards {
		entries, err := s.Due.DueSandboxes(t.Context(), shard, until)
		must(t, err)
		if !slices.IsSortedFunc(entries, func(a, b core.DueSandbox) int { return int(a.At - b.At) }) {
			t.Errorf("shard %d is not in order: %v", shard, entries)
		}
		out = append(out, entries...)
	}
	return out
}
