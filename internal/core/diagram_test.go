package core_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// stateOf is the state that a run's record shows.
func stateOf(r core.Run) string {
	switch {
	case r.Status.Terminal() && r.Row == core.RowReclaim:
		return "owing"
	case r.Status.Terminal():
		return "ended"
	case r.Row == core.RowCancel:
		return "cancelled"
	case r.Status == core.Interrupted:
		return "paused"
	case r.Row == core.RowDetached:
		return "detached"
	case r.Row == core.RowLapse:
		return "attached"
	}
	return "none"
}

// arrows applies each transition to a record in each state, and returns by which of them
// a run goes from one state to another, or stays in one.
func arrows() map[string][]string {
	records := []core.Run{
		attachedRun(), detachedRun(), pausedRun(), cancelledRun(), terminalRun(), unlaunched,
		changed(detachedRun(), func(r *core.Run) { r.CancelRequested = 40 }),
		changed(terminalRun(), func(r *core.Run) { r.Row, r.DueAt = core.RowNone, 0 }),
		owingRun(core.CheckpointOwed),
	}
	paused, marked, takeover := claim, finish, attach
	paused.Since, paused.Paused, takeover.Takeover = 60, true, true
	marked.Reclaim, marked.NotBefore = core.ReclaimEnd, 200
	transitions := []stored[core.Run]{
		renew, detach, lapse, cancelDue, attach, takeover, claim, paused, release, appended, finish, marked, interrupt,
		cancel, core.RequestCancel{Now: 80, Row: core.RowDetached}, core.RequestCancel{Now: 80, Row: core.RowPause},
		hint, reclaimed, postponed, noted, named, hold,
	}
	found := map[string]map[string]bool{}
	for _, t := range transitions {
		for _, r := range records {
			after, err := t.Apply(r)
			if err != nil {
				continue
			}
			arrow := stateOf(r) + " --> " + stateOf(after)
			if found[arrow] == nil {
				found[arrow] = map[string]bool{}
			}
			found[arrow][t.Name()] = true
		}
	}
	out := map[string][]string{}
	for arrow, by := range found {
		out[arrow] = slices.Sorted(maps.Keys(by))
	}
	return out
}

// TestTheDiagramOfStatesIsTheCodes: the document is written by the transitions themselves.
// With UPDATE set it is written anew.
func TestTheDiagramOfStatesIsTheCodes(t *testing.T) {
	all := arrows()
	var text strings.Builder
	text.WriteString("# The states of a run\n\nWritten by the code: each transition of `internal/core` is applied to a record in each state, and what it does not refuse is an arrow.\n" +
		"`UPDATE=1 go test -run TestTheDiagramOfStatesIsTheCodes ./internal/core` writes this page anew. Each arrow is one conditional write.\n\n```mermaid\nstateDiagram-v2\n")
	for _, s := range [][2]string{
		{"attached", "attached: a host has it"}, {"detached", "detached: nobody has it, the sweep looks"}, {"paused", "paused: waits for a person"},
		{"cancelled", "cancelled: to be ended, by its host or at the due time"}, {"owing", "ended, its sandbox's end is owed"}, {"ended", "ended"},
	} {
		fmt.Fprintf(&text, "    state \"%s\" as %s\n", s[1], s[0])
	}
	text.WriteString("    [*] --> attached: start\n")
	for _, arrow := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&text, "    %s: %s\n", arrow, strings.Join(all[arrow], ", "))
	}
	text.WriteString("    ended --> [*]: 90 days\n```\n")
	same(t, "../../docs/architecture/run.md", text.String())

	// What the design forbids is no arrow, whatever the code has become.
	for arrow := range all {
		from, to, _ := strings.Cut(arrow, " --> ")
		if (from == "owing" || from == "ended") && to != "owing" && to != "ended" {
			t.Errorf("a run that has ended goes on: %s by %v", arrow, all[arrow])
		}
	}
	if len(all) < 10 {
		t.Errorf("%d arrows: the records fit the transitions no more", len(all))
	}
}

// same holds a document against what the code says.
func same(t *testing.T, file, want string) {
	t.Helper()
	got, err := os.ReadFile(file)
	if err == nil && string(got) == want {
		return
	}
	if os.Getenv("UPDATE") == "" {
		t.Fatalf("%s is not what the code says: UPDATE=1 writes it (%v)", file, err)
	}
	if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
