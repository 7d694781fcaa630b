package coretest

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// RunIndex checks the contract of [core.RunIndex]. The index of the stores that
// open returns must not lag.
func RunIndex(t *testing.T, open Open) {
	checks := map[string]func(t *testing.T, s Stores){
		"Detached lists every detached run once, oldest first":   indexDetached,
		"Due lists what is due by then, inclusive, oldest first": indexDue,
		"A transition takes a run out of one index into another": indexFollows,
		"Load reads records, absent ones left out":               indexLoad,
	}
	for name, check := range checks {
		t.Run(name, func(t *testing.T) { check(t, open(t)) })
	}
}

// listed returns all shards' detached runs, and those due by until. Each shard must
// be in order.
func listed(t *testing.T, s Stores, until core.Millis) (detached, due []core.IndexEntry) {
	t.Helper()
	inOrder := func(entries []core.IndexEntry) bool {
		return slices.IsSortedFunc(entries, func(a, b core.IndexEntry) int { return cmp.Compare(a.At, b.At) })
	}
	for shard := range core.Shards {
		d, err := s.Index.Detached(t.Context(), shard)
		must(t, err)
		u, err := s.Index.Due(t.Context(), shard, until)
		must(t, err)
		if !inOrder(d) || !inOrder(u) {
			t.Errorf("shard %d is not in order: %v, %v", shard, d, u)
		}
		detached, due = append(detached, d...), append(due, u...)
	}
	return detached, due
}

// byKey sorts entries for comparison.
func byKey(entries []core.IndexEntry) []core.IndexEntry {
	slices.SortFunc(entries, func(a, b core.IndexEntry) int { return cmp.Compare(a.RunKey.String(), b.RunKey.String()) })
	return entries
}

func indexDetached(t *testing.T, s Stores) {
	var want []core.IndexEntry
	for i := range 40 {
		r := detached(core.TenantID(awkward[i%len(awkward)]), core.RunID(fmt.Sprint("run/", i)))
		r.DetachedSince = core.Millis(1000 + i*7%40)
		must(t, s.Seed.Run(t.Context(), r))
		want = append(want, core.IndexEntry{RunKey: r.RunKey, Row: core.RowDetached, At: r.DetachedSince})
	}
	must(t, s.Seed.Run(t.Context(), attached("acme", "attached")))
	over := ended("acme", "ended")
	over.Row, over.DueAt = core.RowNone, 0
	must(t, s.Seed.Run(t.Context(), over))
	got, _ := listed(t, s, 1<<40)
	equal(t, "detached", byKey(got), byKey(want))
}

func indexDue(t *testing.T, s Stores) {
	var want []core.IndexEntry
	for i, row := range []core.Row{core.RowLapse, core.RowPause, core.RowCancel, core.RowReclaim} {
		for at := core.Millis(4999); at <= 5001; at++ {
			r := attached("acme", core.RunID(fmt.Sprint(i, "-", at)))
			r.Row, r.DueAt = row, at
			must(t, s.Seed.Run(t.Context(), r))
			if at <= 5000 {
				want = append(want, core.IndexEntry{RunKey: r.RunKey, Row: row, At: at})
			}
		}
	}
	must(t, s.Seed.Run(t.Context(), detached("acme", "detached")))
	_, got := listed(t, s, 5000)
	equal(t, "due", byKey(got), byKey(want))
}

func indexFollows(t *testing.T, s Stores) {
	r := attached("acme", "r")
	must(t, s.Seed.Run(t.Context(), r))
	sum, err := core.LogSHA256(r)
	must(t, err)
	detachedSince := func(at core.Millis) core.IndexEntry {
		return core.IndexEntry{RunKey: r.RunKey, Row: core.RowDetached, At: at}
	}
	due := func(row core.Row, at core.Millis) core.IndexEntry {
		return core.IndexEntry{RunKey: r.RunKey, Row: row, At: at}
	}
	steps := []struct {
		t    core.Transition
		want core.IndexEntry
	}{
		{core.Detach{Epoch: 1, Now: 2000}, detachedSince(2000)},
		{core.Attach{Seen: 1, Nonce: "b", Now: 3000, Until: 6000}, due(core.RowLapse, 6000)},
		{core.Renew{Epoch: 2, Until: 7000}, due(core.RowLapse, 7000)},
		{core.Lapse{DueAt: 7000}, detachedSince(7000)},
		{core.Claim{Seen: 2, Since: 7000, Nonce: "c", Now: 8000, Until: 9000}, detachedSince(7000)},
		{core.Finish{Epoch: 3, Nonce: "c", Now: 8500, Status: core.Completed, Transcript: core.Transcript{SHA256: sum}, Reclaim: core.ReclaimEnd, NotBefore: 8600}, due(core.RowReclaim, 8600)},
		{core.ReclaimLater{NotBefore: 9000, Outcome: core.ReclaimFrozen, Attempts: 1}, due(core.RowReclaim, 9000)},
	}
	for _, step := range steps {
		_, err := s.Runs.Update(t.Context(), r.RunKey, step.t)
		must(t, err)
		d, u := listed(t, s, 1<<40)
		equal(t, "rows after "+step.t.Name(), append(d, u...), []core.IndexEntry{step.want})
	}
	_, err = s.Runs.Update(t.Context(), r.RunKey, core.ReclaimDone{Outcome: core.ReclaimDestroyed})
	must(t, err)
	d, u := listed(t, s, 1<<40)
	equal(t, "rows after the end", len(d)+len(u), 0)
}

func indexLoad(t *testing.T, s Stores) {
	want := map[core.RunKey]core.Run{}
	var keys []core.RunKey
	for i := range 130 { // more than a store reads in one request
		r := whole("acme", core.RunID(fmt.Sprint("r", i)))
		must(t, s.Seed.Run(t.Context(), r))
		want[r.RunKey] = r
		keys = append(keys, r.RunKey, core.RunKey{Tenant: "acme", Run: core.RunID(fmt.Sprint("absent", i))})
	}
	got, bad, err := s.Index.Load(t.Context(), keys)
	must(t, err)
	equal(t, "loaded", len(got), len(want))
	equal(t, "unreadable", len(bad), 0)
	for _, r := range got {
		equal(t, "loaded "+r.RunKey.String(), r, want[r.RunKey])
	}
	got, _, err = s.Index.Load(t.Context(), nil)
	must(t, err)
	equal(t, "loaded for no keys", len(got), 0)
}
