package core_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// pruneStore knows the standing of runs; those it does not list are unknown.
type pruneStore map[core.RunID]core.PruneStanding

var errStore = errors.New("store does not answer")

func (s pruneStore) Standing(_ context.Context, run core.RunID) (core.PruneStanding, error) {
	standing, known := s[run]
	if !known {
		return core.PruneUnknown, nil
	}
	if standing < 0 {
		return core.PruneTerminal, errStore
	}
	return standing, nil
}

// pruneFiles removes all runs but the one named.
type pruneFiles struct {
	stays core.RunID
	tried []core.RunID
}

func (f *pruneFiles) Remove(_ context.Context, runs []core.RunID) []error {
	f.tried = append(f.tried, runs...)
	errs := make([]error, len(runs))
	for i, run := range runs {
		if run == f.stays {
			errs[i] = errors.New("read-only file system")
		}
	}
	return errs
}

const pruneNow = core.Millis(10_000_000)

// listingOf lists names that changed so long ago.
func listingOf(age time.Duration, names ...string) core.JournalListing {
	listing := core.JournalListing{Names: names, Times: core.JournalTimes{Known: true}}
	for _, name := range names {
		listing.Times.Of = append(listing.Times.Of, core.JournalTime{Name: name, At: pruneNow.Add(-age)})
	}
	return listing
}

func TestPruneDeletesOnlyWhatNobodyWillRead(t *testing.T) {
	unknownTimes := listingOf(2*time.Hour, "r.ndjson")
	unknownTimes.Times = core.JournalTimes{}
	noEntry := listingOf(2*time.Hour, "r.ndjson")
	noEntry.Names = append(noEntry.Names, "r.err")
	newSidecar := listingOf(2*time.Hour, "r.ndjson")
	newSidecar.Names = append(newSidecar.Names, "r.err")
	newSidecar.Times.Of = append(newSidecar.Times.Of, core.JournalTime{Name: "r.err", At: pruneNow})
	for _, c := range []struct {
		name    string
		listing core.JournalListing
		store   pruneStore
		kept    core.PruneReason // empty: deleted
	}{
		{"a terminal run goes, however young", listingOf(0, "r.ndjson", "r.err"), pruneStore{"r": core.PruneTerminal}, ""},
		{"and without known times", unknownTimes, pruneStore{"r": core.PruneTerminal}, ""},
		{"a live run stays, however old", listingOf(999*time.Hour, "r.ndjson"), pruneStore{"r": core.PruneLive}, core.KeptNonTerminal},
		{"an unknown run stays while it is young", listingOf(time.Hour-time.Millisecond, "r.ndjson"), nil, core.KeptTooRecent},
		{"and goes at exactly the age", listingOf(time.Hour, "r.ndjson"), nil, ""},
		{"the newest of its files counts", newSidecar, nil, core.KeptTooRecent},
		{"every file has to have a time", noEntry, nil, core.KeptNoEntry},
		{"without known times it stays", unknownTimes, nil, core.KeptNoAgeGate},
		{"a time in the future is young", listingOf(-time.Hour, "r.ndjson"), nil, core.KeptTooRecent},
		{"a store that does not answer keeps it", listingOf(2*time.Hour, "r.ndjson"), pruneStore{"r": -1}, core.KeptStoreError},
		{"a start marker alone is a run's file", listingOf(0, "r.started"), pruneStore{"r": core.PruneTerminal}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := &pruneFiles{}
			report := journal.PlanPrune(c.listing, pruneNow, core.PrunePolicy{}).Apply(t.Context(), c.store, files)
			if c.kept == "" {
				if !slices.Equal(report.Deleted, []core.RunID{"r"}) || len(report.Kept) != 0 {
					t.Errorf("report %+v, want r deleted", report)
				}
				return
			}
			if len(report.Kept) != 1 || report.Kept[0].Reason != c.kept || len(report.Deleted)+len(files.tried) != 0 {
				t.Errorf("report %+v, want r kept as %s", report, c.kept)
			}
		})
	}
}

func TestPruneNeverTouchesNamesOfNoRun(t *testing.T) {
	names := []string{"_61.ndjson", "notes.txt", "_ef_bb_bf.ndjson", strings.Repeat("x", 300) + ".ndjson", "a.ndjson"}
	files := &pruneFiles{}
	report := journal.PlanPrune(listingOf(2*time.Hour, names...), pruneNow, core.PrunePolicy{}).Apply(t.Context(), pruneStore{}, files)
	if want := []core.RunID{"\ufeff", "a"}; !slices.Equal(files.tried, want) || report.Listed != 5 || report.Runs != 2 {
		t.Errorf("removed %q, want %q; report %+v", files.tried, want, report)
	}
	for _, kept := range report.Kept {
		if kept.Reason != core.KeptUndecodable || kept.Run != "" {
			t.Errorf("kept %+v", kept)
		}
	}
}

func TestPruneBoundsItsDeletes(t *testing.T) {
	listing := listingOf(0, "a.ndjson", "b.ndjson", "c.ndjson", "d.ndjson")
	store := pruneStore{"a": core.PruneTerminal, "b": core.PruneTerminal, "c": core.PruneTerminal, "d": core.PruneTerminal}
	files := &pruneFiles{stays: "a"}
	report := journal.PlanPrune(listing, pruneNow, core.PrunePolicy{MaxDeletes: 2}).Apply(t.Context(), store, files)
	if !slices.Equal(report.Deleted, []core.RunID{"b", "c"}) || !slices.Equal(files.tried, []core.RunID{"a", "b", "c"}) {
		t.Errorf("deleted %v after trying %v", report.Deleted, files.tried)
	}
	if len(report.Failures) != 1 || report.Failures[0].Stage != "delete" || len(report.Kept) != 2 ||
		report.Kept[0].Reason != core.KeptDeleteFailed || report.Kept[1].Reason != core.KeptMaxDeletes {
		t.Errorf("report %+v", report)
	}
}

// boxExec runs scripts in a box, as an executor.
type boxExec struct {
	*box
	fail error
}

func (b boxExec) Exec(_ context.Context, _ core.ExecTarget, script string, input []byte) (core.ExecResult, error) {
	if b.fail != nil {
		return core.ExecResult{}, b.fail
	}
	return core.ExecResult{Stdout: b.run(script, string(input), nil)}, nil
}

func TestPrunerListsAndRemovesInTheSandbox(t *testing.T) {
	inEachShell(t, func(t *testing.T, b *box) {
		pruner := core.JournalPruner{Dir: &core.JournalProber{Exec: boxExec{box: b}, Format: b.runs}, Format: b.runs, Store: pruneStore{"done/1": core.PruneTerminal, "live": core.PruneLive}}
		empty := pruner.Prune(t.Context(), core.ExecTarget{}, core.MillisOf(time.Now()))
		if empty.Listed != 0 || empty.AgeGate {
			t.Errorf("no directory: %+v", empty)
		}
		b.shellRun("done/1", "echo x")
		b.write("live", "x\n")
		b.write("old", "x\n")
		b.write(".dot", "x\n")
		b.write("日本", "x\n")
		old := time.Now().Add(-2 * time.Hour)
		for _, id := range []core.RunID{"old", ".dot", "日本"} {
			if err := os.Chtimes(b.paths(id).Journal, old, old); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(b.dir, "odd name\nx"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		report := pruner.Prune(t.Context(), core.ExecTarget{}, core.MillisOf(time.Now()))
		slices.Sort(report.Deleted)
		if want := []core.RunID{".dot", "done/1", "old", "日本"}; !slices.Equal(report.Deleted, want) || !report.AgeGate || len(report.Failures) != 0 {
			t.Errorf("deleted %q, want %q; %+v", report.Deleted, want, report)
		}
		// The start marker of the run that ended stays, so that it never begins again.
		var left []string
		entries, err := os.ReadDir(b.dir)
		for _, e := range entries {
			left = append(left, e.Name())
		}
		if want := []string{"done_2f1.started", "live.ndjson", "odd name\nx"}; err != nil || !slices.Equal(left, want) {
			t.Errorf("left %q, want %q; %v", left, want, err)
		}
		if held, err := os.ReadDir(filepath.Join(b.dir, "done_2f1.started")); err != nil || len(held) != 0 {
			t.Errorf("the marker holds %v, %v", held, err)
		}
	})
}

func TestPrunerReportsAFailedListing(t *testing.T) {
	b := newBox(t, shells(t)[0])
	pruner := core.JournalPruner{Dir: &core.JournalProber{Exec: boxExec{b, errStore}, Format: b.runs}, Format: b.runs, Store: pruneStore{}}
	report := pruner.Prune(t.Context(), core.ExecTarget{}, pruneNow)
	if len(report.Failures) != 1 || report.Failures[0].Stage != "list" || !errors.Is(report.Failures[0].Err, errStore) || report.Listed != 0 {
		t.Errorf("report %+v", report)
	}
}
