package core_test

import (
	"encoding/json"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

var _ = exemptVectors(
	vectorExemption{
		file: "ensure", cases: unlessQuirk(func(in ensuring) bool { return in.Op != "" }),
		reason: "a save of what exists is a step of the keeper, and a sandbox ends by reclaim (DESIGN 6, 8): their own vectors are snapshot_ops and reclaim",
	},
	vectorExemption{
		file: "ensure", name: "bootstrap throws and destroy throws",
		reason: "set-up is the agent's; what of a start can fail, a restore, ends the run and owes its sandbox's end (DESIGN 9)",
	},
	vectorExemption{
		file: "ensure", name: "max age zero",
		reason: "an age is a number of seconds, and zero is no limit: a sandbox of no age at all would never be used again, which reuse none says",
	},
	vectorExemption{
		file: "ensure", name: "reuse none",
		reason: "the key of a private sandbox holds its run (IS-2): no other run's sandbox is ever found under it",
	},
	vectorExemption{
		file: "detach", cases: unlessQuirk(func(in detaching) bool { return !in.wired() }),
		reason: "every run has a record and a journal (DESIGN 4.1, 7), and a viewer who leaves never ends it",
	},
	vectorExemption{
		file: "detach", name: "abort, both fail",
		reason: "a detach whose write fails is an error that its host repeats; one that never does lapses (DESIGN 4.1), so nothing is destroyed for a store's fault",
	},
	vectorExemption{
		file: "detach", name: "disconnect then error",
		reason: "a run that ends without a sentinel always owes its sandbox's end (DESIGN 5.7)",
	},
)

// ensuring is a question of ensure.
type ensuring struct {
	Op        string
	Existing  *struct{ ThreadID, LatestSnapshotID string }
	Resume    string
	Lifecycle struct{ SnapshotMaxAge, Reuse string }
	AgeMs     int64
	RunID     string
}

// maxAge is the age in seconds; a text that means none is none.
func (in ensuring) maxAge() int64 {
	text := in.Lifecycle.SnapshotMaxAge
	if text == "" {
		return 0
	}
	unit, ok := map[byte]int64{'h': 3600, 'm': 60}[text[len(text)-1]]
	n, err := strconv.ParseInt(text[:len(text)-1], 10, 64)
	if !ok || err != nil {
		return 0
	}
	return n * unit
}

// ensured is what came of it: the outcome, whether the sandbox is the old one, and the
// latest run of its record.
type ensured struct {
	Outcome string
	Old     bool
	Latest  string
}

// TestEnsureVectors has a second run of a thread start, in the state that the case
// describes.
func TestEnsureVectors(t *testing.T) {
	compareVectors(t, "ensure", func(t *testing.T, c vectorCase) error {
		var in ensuring
		var result struct {
			Outcome string
			Rejects bool
			Record  *struct{ ProviderSandboxID, LatestRunID string }
		}
		c.decode(t, &in, &result)
		want := ensured{Outcome: result.Outcome}
		if result.Rejects {
			want.Outcome = "rejects"
		}
		if result.Record != nil {
			want.Old, want.Latest = result.Record.ProviderSandboxID == "sbx-old", result.Record.LatestRunID
		}
		return inBubble(t, func(t *testing.T) error { return differ(ensure(newHosting(t), in), want) })
	})
}

// ensure starts the run, over the sandbox that exists.
func ensure(h *hosting, in ensuring) ensured {
	if in.Op != "" {
		return ensured{Outcome: "no operation of a session"}
	}
	q := startOf(firstOf(in.RunID, "run-2"), "two")
	q.Definition.MaxAgeSeconds, q.Definition.Reuse = in.maxAge(), core.Reuse(in.Lifecycle.Reuse)
	var old core.Sandbox
	if in.Existing != nil {
		if h.copies = in.Existing.LatestSnapshotID != ""; h.copies {
			q.Definition.Snapshots = core.SnapshotsAfterRun
		}
		first := q
		first.RunKey, first.Host, first.Thread = key("run-1"), hostOf("one"), core.ThreadID(in.Existing.ThreadID)
		h.ready(first)
		h.warm("run-1")
		var err error
		if old, err = h.store.Sandbox(h.t.Context(), h.run("run-1").SandboxKey); err != nil {
			return ensured{Outcome: "a private sandbox ends with its run"}
		}
		time.Sleep(time.Duration(min(in.AgeMs, 20*60_000))*time.Millisecond - now().Sub(old.UpdatedAt))
		if in.AgeMs > 20*60_000 && in.maxAge() > 0 { // as long as it stays warm
			q.Definition.MaxAgeSeconds = in.maxAge()
			old.UpdatedAt = now().Add(-time.Duration(in.AgeMs) * time.Millisecond)
			h.store.SeedSandbox(old)
		}
		if in.Resume == "null" {
			h.fleet.KillTask(old.TaskARN)
		}
	}
	if in.Resume == "throws" {
		_, err := h.session(h.failing("describe tasks")).Start(h.t.Context(), q)
		box := h.box("run-1")
		if err == nil {
			return ensured{Outcome: "started"}
		}
		return ensured{"rejects", box.Instance == old.Instance, string(box.LatestRun)}
	}
	var report core.StartReport
	for range 10 {
		var err error
		report, err = h.self().Start(h.t.Context(), q)
		h.must(err)
		if report.State == core.Ready {
			break
		}
		h.drainQueue(h.store.Process)
		time.Sleep(time.Second)
	}
	box := h.box(string(q.Run))
	return ensured{string(report.Ensured), old.Instance != "" && box.Instance == old.Instance, string(box.LatestRun)}
}

func firstOf(texts ...string) string {
	return texts[slices.IndexFunc(texts, func(s string) bool { return s != "" })]
}

// detaching is a question of detach.
type detaching struct {
	Runs, Durability, DetachOnDisconnect *bool
	DestroyOnComplete                    bool
	Record                               *struct{ CancelRequested bool }
	Events, DuringEnsure                 []json.RawMessage
	Destroy                              string
}

func (in detaching) wired() bool {
	for _, on := range []*bool{in.Runs, in.Durability, in.DetachOnDisconnect} {
		if on != nil && !*on {
			return false
		}
	}
	return true
}

// left is what the host's end leaves behind.
type left struct {
	Destroyed bool
	Detached  bool // of a run that goes on
}

// TestDetachVectors has a host lose its viewer, abort, cancel, finish and fail.
func TestDetachVectors(t *testing.T) {
	compareVectors(t, "detach", func(t *testing.T, c vectorCase) error {
		var in detaching
		var result struct {
			Destroys int
			Record   *struct{ DetachedSince core.Millis }
		}
		c.decode(t, &in, &result)
		want := left{Destroyed: result.Destroys > 0}
		want.Detached = !want.Destroyed && result.Record != nil && result.Record.DetachedSince != 0
		return inBubble(t, func(t *testing.T) error { return differ(in.leave(newHosting(t)), want) })
	})
}

func (in detaching) leave(h *hosting) left {
	q := startOf("r1", "one")
	q.Definition.DestroyOnComplete = in.DestroyOnComplete
	if len(in.DuringEnsure) > 0 {
		_, _ = h.session(h.failing("run task")).Start(h.t.Context(), q) // the sandbox is being made
	} else {
		h.ready(q)
	}
	if in.Record != nil && in.Record.CancelRequested {
		in.event(h, `{"set":{"cancelRequested":true}}`)
	}
	for _, e := range append(in.DuringEnsure, in.Events...) {
		in.event(h, string(e))
	}
	h.drainQueue(h.store.Process)
	r := h.run("r1")
	out := left{Destroyed: len(h.fleet.Running()) == 0 && r.Status.Terminal()}
	out.Detached = r.Status == core.Running && r.DetachedSince != 0
	return out
}

// event does what the host does then. A host that is aborted acts on a recorded cancel.
func (in detaching) event(h *hosting, event string) {
	c := host{h, "r1", "one"}
	var err error
	switch event {
	case `"disconnect"`:
		_, err = c.detach()
	case `"abort"`:
		var report core.RenewReport
		if report, err = c.detach(); err == nil && report.Cancel {
			_, err = c.cancel()
		}
	case `"cancel"`:
		_, err = c.cancel()
	case `"finish"`:
		h.fleet.Exit("r1", 0)
		_, err = c.finish(nil)
	case `"error"`:
		_, err = c.fail()
	case `"getFails"`, `"updateFails"`:
	default:
		_, err = h.self().Cancel(h.t.Context(), core.CancelRequest{RunKey: key("r1")})
	}
	h.must(err)
}
