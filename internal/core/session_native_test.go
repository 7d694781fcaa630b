package core_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// copying is a world whose provider takes snapshots.
func copying(t *testing.T) *hosting {
	h := newHosting(t)
	h.copies = true
	return h
}

// copiedStart is a start whose definition has copies taken.
func copiedStart(run, name string, when core.SnapshotPolicy) core.StartRequest {
	q := startOf(run, name)
	q.Definition.Snapshots = when
	return q
}

// TestAGoneSandboxIsMadeFromItsCopy, which the next record keeps; one that is too old, or
// whose copy is gone, is made from its definition.
func TestAGoneSandboxIsMadeFromItsCopy(t *testing.T) {
	for what, c := range map[string]struct {
		when   core.SnapshotPolicy
		before func(h *hosting, q *core.StartRequest)
		want   core.Ensured
	}{
		"after the run":    {core.SnapshotsAfterRun, nil, core.EnsuredNative},
		"after the set-up": {core.SnapshotsAfterSetup, nil, core.EnsuredNative},
		"none":             {core.SnapshotsNone, nil, core.EnsuredCreated},
		"dropped": {core.SnapshotsAfterRun, func(h *hosting, _ *core.StartRequest) {
			h.must(h.fleet.View(h.store.Process).DropSnapshots(h.t.Context(), h.run("one").SandboxKey, ""))
		}, core.EnsuredCreated},
		"too old": {core.SnapshotsAfterRun, func(h *hosting, _ *core.StartRequest) {
			box := h.box("one")
			box.UpdatedAt = now().Add(-2 * time.Hour)
			h.store.SeedSandbox(box)
		}, core.EnsuredCreated},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := copying(t)
				q := copiedStart("one", "a", c.when)
				q.Definition.MaxAgeSeconds = 3600
				first := h.ready(q)
				h.warm("one")
				taken := h.box("one").LatestSnapshot
				if (taken == "") != (c.when == core.SnapshotsNone) {
					t.Fatalf("copy %q", taken)
				}
				q.RunKey, q.Host = key("two"), hostOf("b")
				if c.before != nil {
					c.before(h, &q)
				}
				h.fleet.KillTask(first.Run.TaskARN)
				second := h.ready(q)
				if second.Ensured != c.want || second.Run.TaskARN == first.Run.TaskARN {
					t.Errorf("ensured %s, want %s", second.Ensured, c.want)
				}
				if box := h.box("two"); c.want == core.EnsuredNative && box.LatestSnapshot != taken {
					t.Errorf("the record has the copy %q, want %q", box.LatestSnapshot, taken)
				}
				h.check()
			})
		})
	}
}

// restoreFails is a provider that makes nothing from copies.
type restoreFails struct{ core.Snapshotter }

func (restoreFails) Restore(context.Context, core.TaskSpec, core.SnapshotID) (string, error) {
	return "", errors.New("no capacity")
}

// TestARestoreThatFailsLeavesTheRecord: the start is an error, and asked again it goes on.
func TestARestoreThatFailsLeavesTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := copying(t)
		first := h.ready(copiedStart("one", "a", core.SnapshotsAfterRun))
		h.warm("one")
		before := h.box("one")
		h.fleet.KillTask(first.Run.TaskARN)
		s := h.self()
		s.Launcher.Snapshots = restoreFails{s.Launcher.Snapshots}
		if _, err := s.Start(t.Context(), copiedStart("two", "b", core.SnapshotsAfterRun)); err == nil {
			t.Error("started")
		}
		if after := h.box("one"); after != before {
			t.Errorf("record %+v, want %+v", after, before)
		}
		if report := h.ready(copiedStart("two", "b", core.SnapshotsAfterRun)); report.Ensured != core.EnsuredNative {
			t.Errorf("asked again: %s", report.Ensured)
		}
		h.check()
	})
}

// TestSnapshotCrashMatrix fails every call of a turn whose sandbox is copied after its
// set-up, of the reclaim that copies one after its run, and of a start from a copy. In the
// end nothing runs, nothing is owed, and no copy is left.
func TestSnapshotCrashMatrix(t *testing.T) {
	points := 0
	start := func(run, name string, when core.SnapshotPolicy) func(h *hosting, p *mem.Process) {
		return func(h *hosting, p *mem.Process) {
			_, _ = h.session(p).Start(h.t.Context(), copiedStart(run, name, when))
		}
	}
	cases := map[string]struct {
		before func(h *hosting)
		do     func(h *hosting, p *mem.Process)
		want   func(h *hosting) bool
	}{
		"after the set-up": {func(*hosting) {}, start("r", "one", core.SnapshotsAfterSetup), func(h *hosting) bool {
			return h.ready(copiedStart("r", "one", core.SnapshotsAfterSetup)).State == core.Ready && len(h.fleet.Snapshots()) == 1
		}},
		"after the run": {func(h *hosting) {
			h.ready(copiedStart("r", "one", core.SnapshotsAfterRun))
			h.fleet.Exit("r", 0)
			_, err := host{h, "r", "one"}.finish(nil)
			h.must(err)
		}, func(h *hosting, p *mem.Process) { h.drainQueue(p) }, func(h *hosting) bool {
			h.recover()
			return h.box("r").LatestSnapshot != "" && len(h.fleet.Snapshots()) == 1
		}},
		"restored": {func(h *hosting) {
			first := h.ready(copiedStart("one", "zero", core.SnapshotsAfterRun))
			h.warm("one")
			h.fleet.KillTask(first.Run.TaskARN)
		}, start("r", "one", core.SnapshotsAfterRun), func(h *hosting) bool {
			return h.ready(copiedStart("r", "one", core.SnapshotsAfterRun)).Ensured == core.EnsuredNative
		}},
	}
	for what, c := range cases {
		calls := 0
		synctest.Test(t, func(t *testing.T) {
			h := copying(t)
			c.before(h)
			p := h.store.NewProcess(mem.Faults{})
			c.do(h, p)
			if calls = len(p.Calls()); !c.want(h) || !slices.ContainsFunc(p.Calls(), func(call string) bool { return call == "take snapshot" || call == "restore task" }) {
				t.Errorf("%s without faults: calls %q", what, p.Calls())
			}
		})
		for n := 1; n <= calls; n++ {
			for _, fault := range []mem.Fault{mem.NotLanded, mem.AnswerLost, mem.StopBefore, mem.StopAfter} {
				points++
				t.Run(fmt.Sprintf("%s, %d %s", what, n, fault), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						h := copying(t)
						c.before(h)
						c.do(h, h.store.NewProcess(mem.At(n, fault)))
						h.check()
						h.gone()
						if left := h.fleet.Snapshots(); len(left) > 0 {
							t.Errorf("copies are left: %q", left)
						}
					})
				})
			}
		}
	}
	t.Logf("snapshot crash matrix: %d points", points)
	if points < 100 {
		t.Errorf("%d points: the operations have shrunk", points)
	}
}
