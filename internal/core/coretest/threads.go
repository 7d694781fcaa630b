package coretest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/draw"
)

// Shelf is a store of threads. The seeds put records as they are.
type Shelf struct {
	Threads        core.Threads
	SeedThread     func(ctx context.Context, th core.Thread) error
	SeedCheckpoint func(ctx context.Context, c core.Checkpoint) error
}

// OpenShelf returns an empty store for one test.
type OpenShelf func(t *testing.T) Shelf

// long is an id that is as long as its tenant allows, of bytes that take three in a key.
var long = strings.Repeat("ü", 140)

func threadOf(id core.ThreadID) core.ThreadKey { return core.ThreadKey{Tenant: "acme", Thread: id} }

// leased is a thread whose lease is held by a until 9000, under fence 3.
func leased(id core.ThreadID) core.Thread {
	return core.Thread{ThreadKey: threadOf(id), Fence: 3, Lease: core.Lease{Owner: "a", Until: 9000}}
}

// checkpointOf is a checkpoint with every member set.
func checkpointOf(k core.ThreadKey, id core.CheckpointID, parent core.CheckpointID, at core.Millis) core.Checkpoint {
	object := func(kind string) core.ObjectRef {
		return core.ObjectRef{Key: core.ThreadPrefix(k) + kind, Version: "v", SHA256: "ab", Size: 3}
	}
	return core.Checkpoint{
		ThreadKey: k, ID: id, Parent: parent, CreatedAt: at, Reason: core.ReasonNamed, Label: new(""), SourceRun: "r", Digest: "d-" + string(id),
		Manifest: object("checkpoints/3-ab"), Files: 7, Bytes: 8,
		Conversation: core.Conversation{Version: 2, Object: object("conversations/2-ab"), Runs: []core.RunID{"r0"}},
		Artifacts:    []core.Artifact{{Run: "r", ID: "a/b", Name: "größer", MIME: "text/plain", CreatedAt: 5, Object: object("artifacts/3-ab")}},
		PendingRuns:  []core.RunID{"r"},
	}
}

// Threads checks the contract of [core.Threads].
func Threads(t *testing.T, open OpenShelf) {
	checks := map[string]func(t *testing.T, s Shelf){
		"Thread without an item is the zero thread with its key": threadMissing,
		"Thread reads what was stored, every member":             threadWhole,
		"AcquireLease by many at once gives it to one":           leaseRace,
		"AcquireLease never gives a fence twice":                 fenceGrows,
		"Commit moves the head and is found by its id":           commitAll,
		"Commit again is a success, whatever came since":         commitAgain,
		"Commit that is refused writes nothing":                  commitRefused,
		"Commit by many at once moves the head once":             commitRace,
		"Checkpoints are by time, then by the id's bytes":        checkpointOrder,
		"Checkpoint of another thread or tenant is not found":    checkpointForeign,
		"DeleteHead makes the next one head":                     deleteHead,
		"DeleteHead that is refused writes nothing":              deleteRefused,
		"Trim takes checkpoints away, the head never":            trim,
		"Fork begins all branches and pins what they need":       forkAll,
		"Fork that is refused writes nothing":                    forkRefused,
		"Unpin lets go of one owner":                             unpin,
		"PutArtifact is refused below the floor":                 putArtifact,
		"keys hold the longest ids":                              longIDs,
	}
	for name, check := range checks {
		t.Run(name, func(t *testing.T) { check(t, open(t)) })
	}
}

func readThread(t tb, s Shelf, k core.ThreadKey) core.Thread {
	t.Helper()
	th, err := s.Threads.Thread(t.Context(), k)
	must(t, err)
	return th
}

func ids(all []core.Checkpoint) []core.CheckpointID {
	var out []core.CheckpointID
	for _, c := range all {
		out = append(out, c.ID)
	}
	return out
}

func listedIDs(t tb, s Shelf, k core.ThreadKey) []core.CheckpointID {
	t.Helper()
	all, err := s.Threads.Checkpoints(t.Context(), k)
	must(t, err)
	return ids(all)
}

func threadMissing(t *testing.T, s Shelf) {
	equal(t, "thread", readThread(t, s, threadOf("none")), core.Thread{ThreadKey: threadOf("none")})
	_, err := s.Threads.Checkpoint(t.Context(), threadOf("none"), "c")
	notFound(t, err)
	_, err = s.Threads.FindCheckpoint(t.Context(), "acme", "c")
	notFound(t, err)
	equal(t, "checkpoints", len(listedIDs(t, s, threadOf("none"))), 0)
}

func wholeThread(id core.ThreadID) core.Thread {
	th := leased(id)
	th.Head, th.Floor, th.FirstRun, th.Artifacts, th.UpdatedAt = "c1", 2, "r0", true, 7
	th.Conversation = checkpointOf(th.ThreadKey, "c1", "", 1).Conversation
	th.PendingRuns = []core.RunID{"r1", "r2"}
	th.WorkspaceLost = &core.WorkspaceLoss{Run: "r1", Why: "agent-silent", At: 6}
	th.Step = &core.Step{
		ID: "s", Kind: core.StepCapture, Run: "r1", Fence: 3, Former: []int64{2, 1}, Token: "00ff", State: core.StepFailed, Why: "because", Attempts: 2, Checkpoint: "c1",
		Reason: core.ReasonNamed, Label: new(""), StartedAt: 1, SeenAt: 2, Files: 3, Bytes: 4, Granted: 5,
		Job: &core.ReclaimJob{Tenant: "acme", Run: "r1", Key: "k", Instance: "i", Kind: core.JobEnd},
	}
	th.Fork = &core.ForkRoot{From: "src", Checkpoint: "c0", Manifest: core.ObjectRef{Key: "k", SHA256: "s", Size: 1}, Owners: []core.ThreadID{"o1", "o2"}}
	return th
}

func threadWhole(t *testing.T, s Shelf) {
	want := wholeThread("größer/#")
	must(t, s.SeedCheckpoint(t.Context(), checkpointOf(want.ThreadKey, "c1", "", 1)))
	must(t, s.SeedThread(t.Context(), want))
	equal(t, "thread", readThread(t, s, want.ThreadKey), want)
	got, err := s.Threads.Checkpoint(t.Context(), want.ThreadKey, "c1")
	must(t, err)
	equal(t, "checkpoint", got, checkpointOf(want.ThreadKey, "c1", "", 1))
}

func leaseRace(t *testing.T, s Shelf) {
	owners := []string{"a", "b", "c", "d", "e"}
	errs := together(len(owners), func(i int) error {
		_, err := s.Threads.UpdateThread(t.Context(), threadOf("t"), core.AcquireLease{Owner: owners[i], Now: 1000, Until: 2000})
		return err
	})
	oneWins(t, errs)
	th := readThread(t, s, threadOf("t"))
	equal(t, "fence", th.Fence, int64(1))
	equal(t, "owner", th.Lease.Owner, owners[slices.Index(errs, nil)])
}

func fenceGrows(t *testing.T, s Shelf) {
	k := threadOf("t")
	take := func(owner string, now core.Millis) core.Thread {
		th, err := s.Threads.UpdateThread(t.Context(), k, core.AcquireLease{Owner: owner, Now: now, Until: now + 10})
		must(t, err)
		return th
	}
	equal(t, "the first fence", take("a", 1).Fence, int64(1))
	equal(t, "the holder's again", take("a", 10).Fence, int64(1))
	equal(t, "the renewed end", readThread(t, s, k).Lease.Until, core.Millis(20))
	equal(t, "a dead holder's again", take("a", 20).Fence, int64(2))
	for range 2 { // the second time there is nothing to give back
		_, err := s.Threads.UpdateThread(t.Context(), k, core.ReleaseLease{Owner: "a", Fence: 2})
		must(t, err)
	}
	equal(t, "after a release", take("b", 21).Fence, int64(3))
	_, err := s.Threads.UpdateThread(t.Context(), k, core.ReleaseLease{Owner: "a", Fence: 2})
	refusedAs(t, err, "writer-lost")
	_, err = s.Threads.UpdateThread(t.Context(), k, core.RenewLease{Owner: "b", Fence: 3, Now: 31, Until: 99})
	refusedAs(t, err, "writer-lost")
}

// commitOf is the commit of a checkpoint by the holder of a leased thread.
func commitOf(th core.Thread, c core.Checkpoint) core.Commit {
	return core.Commit{Writer: core.Writer{ThreadKey: th.ThreadKey, Owner: "a", Fence: 3}, Now: 5000, Expected: c.Parent, Checkpoint: c}
}

func commitAll(t *testing.T, s Shelf) {
	th := leased("t")
	th.WorkspaceLost = &core.WorkspaceLoss{Run: "r", Why: "x", At: 1}
	must(t, s.SeedThread(t.Context(), th))
	first, second := checkpointOf(th.ThreadKey, "c1", "", 10), checkpointOf(th.ThreadKey, "c2", "c1", 20)
	must(t, s.Threads.Commit(t.Context(), commitOf(th, first)))
	commit := commitOf(th, second)
	commit.Release = true
	must(t, s.Threads.Commit(t.Context(), commit))
	want, err := commitOf(th, first).ApplyThread(th)
	must(t, err)
	want, err = commit.ApplyThread(want)
	must(t, err)
	equal(t, "thread", readThread(t, s, th.ThreadKey), want)
	got, err := s.Threads.FindCheckpoint(t.Context(), "acme", "c2")
	must(t, err)
	equal(t, "checkpoint", got, second)
	equal(t, "list", listedIDs(t, s, th.ThreadKey), []core.CheckpointID{"c1", "c2"})
}

func commitAgain(t *testing.T, s Shelf) {
	th := leased("t")
	must(t, s.SeedThread(t.Context(), th))
	first, second := checkpointOf(th.ThreadKey, "c1", "", 10), checkpointOf(th.ThreadKey, "c2", "c1", 20)
	must(t, s.Threads.Commit(t.Context(), commitOf(th, first)))
	must(t, s.Threads.Commit(t.Context(), commitOf(th, second)))
	_, err := s.Threads.UpdateThread(t.Context(), th.ThreadKey, core.ReleaseLease{Owner: "a", Fence: 3})
	must(t, err)
	later := commitOf(th, first)
	later.Checkpoint.CreatedAt = 99 // what was handed in is the same
	must(t, s.Threads.Commit(t.Context(), later))
	later.Checkpoint.Digest = "other"
	refusedAs(t, s.Threads.Commit(t.Context(), later), "writer-lost")
	equal(t, "head", readThread(t, s, th.ThreadKey).Head, core.CheckpointID("c2"))
	equal(t, "list", listedIDs(t, s, th.ThreadKey), []core.CheckpointID{"c1", "c2"})
}

func commitRefused(t *testing.T, s Shelf) {
	th := leased("t")
	th.Head = "c1"
	th.Step = &core.Step{ID: "c2", Kind: core.StepCapture, Fence: 3, Token: "mine", State: core.StepWorking, Attempts: 1}
	must(t, s.SeedCheckpoint(t.Context(), checkpointOf(th.ThreadKey, "c1", "", 10)))
	must(t, s.SeedThread(t.Context(), th))
	elsewhere := checkpointOf(threadOf("other"), "taken", "", 10)
	must(t, s.SeedCheckpoint(t.Context(), elsewhere))
	tests := map[string]struct {
		why    string
		change func(c *core.Commit)
	}{
		"another owner":                       {"writer-lost", func(c *core.Commit) { c.Writer.Owner = "b" }},
		"an older fence":                      {"writer-lost", func(c *core.Commit) { c.Writer.Fence = 2 }},
		"a fence that was never":              {"writer-lost", func(c *core.Commit) { c.Writer.Fence = 4 }},
		"the lease's very end":                {"writer-lost", func(c *core.Commit) { c.Now = 9000 }},
		"another step's token":                {"writer-lost", func(c *core.Commit) { c.Token = "other" }},
		"an id that is taken elsewhere":       {"duplicate-id", func(c *core.Commit) { c.Checkpoint.ID = "taken" }},
		"its own id with another content":     {"duplicate-id", func(c *core.Commit) { c.Checkpoint.ID, c.Checkpoint.Digest = "c1", "x" }},
		"a lost writer with an id in use":     {"writer-lost", func(c *core.Commit) { c.Checkpoint.ID, c.Now = "taken", 9000 }},
		"an id in use over a stale head":      {"duplicate-id", func(c *core.Commit) { c.Checkpoint.ID, c.Expected, c.Checkpoint.Parent = "taken", "c0", "c0" }},
		"a stale head":                        {"stale-head", func(c *core.Commit) { c.Expected, c.Checkpoint.Parent = "c0", "c0" }},
		"no head where there is one":          {"stale-head", func(c *core.Commit) { c.Expected, c.Checkpoint.Parent = "", "" }},
		"a parent other than the head":        {"parent-mismatch", func(c *core.Commit) { c.Checkpoint.Parent = "c0" }},
		"a stale head and another parent too": {"stale-head", func(c *core.Commit) { c.Expected = "c0" }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			commit := commitOf(th, checkpointOf(th.ThreadKey, "c2", "c1", 20))
			commit.Token = "mine"
			tt.change(&commit)
			refusedAs(t, s.Threads.Commit(t.Context(), commit), tt.why)
			equal(t, "thread", readThread(t, s, th.ThreadKey), th)
			equal(t, "list", listedIDs(t, s, th.ThreadKey), []core.CheckpointID{"c1"})
			_, err := s.Threads.FindCheckpoint(t.Context(), "acme", "c2")
			notFound(t, err)
		})
	}
}

func commitRace(t *testing.T, s Shelf) {
	th := leased("t")
	must(t, s.SeedThread(t.Context(), th))
	errs := together(5, func(i int) error {
		return s.Threads.Commit(t.Context(), commitOf(th, checkpointOf(th.ThreadKey, core.CheckpointID(fmt.Sprint("c", i)), "", 10)))
	})
	oneWins(t, errs)
	won := core.CheckpointID(fmt.Sprint("c", slices.Index(errs, nil)))
	equal(t, "head", readThread(t, s, th.ThreadKey).Head, won)
	equal(t, "list", listedIDs(t, s, th.ThreadKey), []core.CheckpointID{won})
}

func checkpointOrder(t *testing.T, s Shelf) {
	k := threadOf("t")
	for _, c := range []struct {
		id core.CheckpointID
		at core.Millis
	}{{"z", 2}, {"é", 10}, {"a", 10}, {"B", 10}, {"_", 10}, {"\U0001f600", 10}, {"\ufffd", 10}, {"y", 1700000000000}} {
		must(t, s.SeedCheckpoint(t.Context(), checkpointOf(k, c.id, "", c.at)))
	}
	equal(t, "list", listedIDs(t, s, k), []core.CheckpointID{"z", "B", "_", "a", "é", "\ufffd", "\U0001f600", "y"})
}

func checkpointForeign(t *testing.T, s Shelf) {
	must(t, s.SeedCheckpoint(t.Context(), checkpointOf(threadOf("t"), "c", "", 1)))
	_, err := s.Threads.Checkpoint(t.Context(), threadOf("other"), "c")
	notFound(t, err)
	_, err = s.Threads.FindCheckpoint(t.Context(), "beta", "c")
	notFound(t, err)
	_, err = s.Threads.FindCheckpoint(t.Context(), "acme", "c")
	must(t, err)
}

// chain seeds a leased thread with checkpoints c1 to cn.
func chain(t tb, s Shelf, id core.ThreadID, n int) (core.Thread, []core.Checkpoint) {
	t.Helper()
	th := leased(id)
	var all []core.Checkpoint
	for i := 1; i <= n; i++ {
		c := checkpointOf(th.ThreadKey, core.CheckpointID(fmt.Sprint(id, "-c", i)), th.Head, core.Millis(10*i))
		must(t, s.SeedCheckpoint(t.Context(), c))
		all, th.Head = append(all, c), c.ID
	}
	must(t, s.SeedThread(t.Context(), th))
	return th, all
}

func deleteHead(t *testing.T, s Shelf) {
	th, all := chain(t, s, "t", 2)
	w := th.Writer()
	for range 2 { // the second is told from a loss
		must(t, s.Threads.DeleteHead(t.Context(), core.DeleteHead{Writer: w, Now: 5000, Checkpoint: all[1], Next: &all[0]}))
	}
	equal(t, "head", readThread(t, s, th.ThreadKey).Head, all[0].ID)
	_, err := s.Threads.FindCheckpoint(t.Context(), "acme", all[1].ID)
	notFound(t, err)
	must(t, s.Threads.DeleteHead(t.Context(), core.DeleteHead{Writer: w, Now: 5000, Checkpoint: all[0]}))
	equal(t, "head", readThread(t, s, th.ThreadKey).Head, core.CheckpointID(""))
	must(t, s.Threads.Commit(t.Context(), commitOf(th, checkpointOf(th.ThreadKey, all[1].ID, "", 30)))) // the id is free
}

func deleteRefused(t *testing.T, s Shelf) {
	th, all := chain(t, s, "t", 2)
	gone := checkpointOf(th.ThreadKey, "gone", "", 1)
	tests := map[string]struct {
		why    string
		change func(d *core.DeleteHead)
	}{
		"a dead lease":           {"writer-lost", func(d *core.DeleteHead) { d.Now = 9000 }},
		"a lost writer":          {"writer-lost", func(d *core.DeleteHead) { d.Writer.Owner, d.Checkpoint, d.Next = "b", all[0], nil }},
		"one that is no head":    {"not-head", func(d *core.DeleteHead) { d.Checkpoint, d.Next = all[0], nil }},
		"a next one that is not": {"next", func(d *core.DeleteHead) { d.Next = &gone }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := core.DeleteHead{Writer: th.Writer(), Now: 5000, Checkpoint: all[1], Next: &all[0]}
			tt.change(&d)
			refusedAs(t, s.Threads.DeleteHead(t.Context(), d), tt.why)
			equal(t, "thread", readThread(t, s, th.ThreadKey), th)
			equal(t, "list", listedIDs(t, s, th.ThreadKey), ids(all))
		})
	}
}

func trim(t *testing.T, s Shelf) {
	th, all := chain(t, s, "t", 4)
	w := th.Writer()
	refusedAs(t, s.Threads.Trim(t.Context(), core.Trim{Writer: w, Now: 5000, Checkpoints: all}), "head")
	refusedAs(t, s.Threads.Trim(t.Context(), core.Trim{Writer: w, Now: 9000, Checkpoints: all[:1]}), "writer-lost")
	equal(t, "list", listedIDs(t, s, th.ThreadKey), ids(all))
	for range 2 {
		must(t, s.Threads.Trim(t.Context(), core.Trim{Writer: w, Now: 5000, Checkpoints: all[:2]}))
	}
	equal(t, "list", listedIDs(t, s, th.ThreadKey), ids(all[2:]))
	a := core.Artifact{Run: "r", ID: "a", Name: "n", MIME: "m", Object: core.ObjectRef{Key: "k", SHA256: strings.Repeat("a", 64)}}
	must(t, s.Threads.PutArtifact(t.Context(), core.PutArtifact{Thread: th.ThreadKey, Artifact: a, Fence: th.Fence, Now: 5000}))
	for range 2 {
		must(t, s.Threads.Trim(t.Context(), core.Trim{Writer: w, Now: 5000, Artifacts: []core.Artifact{a}}))
	}
	left, err := s.Threads.Artifacts(t.Context(), th.ThreadKey)
	must(t, err)
	equal(t, "artifacts", len(left), 0)
	_, err = s.Threads.FindCheckpoint(t.Context(), "acme", all[0].ID)
	notFound(t, err)
}

// branchOf begins a leased thread from source.
func branchOf(source core.Checkpoint, id core.ThreadID) core.Branch {
	th := leased(id)
	root := checkpointOf(th.ThreadKey, "root-"+core.CheckpointID(id), "", 50)
	root.Reason, root.ForkOf, root.Label, root.SourceRun = core.ReasonForkRoot, source.ID, nil, ""
	pin := func(owner core.ThreadID) core.Pin {
		return core.Pin{Owner: threadOf(owner), By: th.ThreadKey, Checkpoint: root.ID, Manifest: root.Manifest, Objects: []string{"k1", "k2"}}
	}
	return core.Branch{Writer: th.Writer(), Checkpoint: root, Pins: []core.Pin{pin("older"), pin(source.Thread)}}
}

func forkAll(t *testing.T, s Shelf) {
	src, all := chain(t, s, "src", 2)
	fork := core.Fork{Now: 5000, Source: all[0], Release: true}
	for _, id := range []core.ThreadID{"one", "two"} {
		must(t, s.SeedThread(t.Context(), leased(id)))
		fork.Branches = append(fork.Branches, branchOf(all[0], id))
	}
	for range 2 {
		must(t, s.Threads.Fork(t.Context(), fork))
	}
	var pins []core.Pin
	for _, b := range fork.Branches {
		want, err := fork.ApplyThread(b, leased(b.Writer.Thread))
		must(t, err)
		equal(t, "thread", readThread(t, s, b.Writer.ThreadKey), want)
		got, err := s.Threads.Checkpoint(t.Context(), b.Writer.ThreadKey, b.Checkpoint.ID)
		must(t, err)
		equal(t, "root", got, b.Checkpoint)
		pins = append(pins, b.Pins[1])
	}
	got, err := s.Threads.Pins(t.Context(), src.ThreadKey)
	must(t, err)
	equal(t, "pins", got, pins)
	equal(t, "source", readThread(t, s, src.ThreadKey), src)
}

func forkRefused(t *testing.T, s Shelf) {
	_, all := chain(t, s, "src", 1)
	_, used := chain(t, s, "used", 1)
	must(t, s.SeedThread(t.Context(), leased("free")))
	tests := map[string]struct {
		why    string
		thread core.Thread // of the second branch
		change func(f *core.Fork)
	}{
		"a source that is gone":      {"fork-source-not-found", leased("t"), func(f *core.Fork) { f.Source.ID = "gone" }},
		"a dead lease":               {"writer-lost", leased("t"), func(f *core.Fork) { f.Now = 9000 }},
		"a lease of somebody else's": {"writer-lost", leased("t"), func(f *core.Fork) { f.Branches[1].Writer.Owner = "b" }},
		"an id that is taken":        {"fork-destination-not-empty", leased("t"), func(f *core.Fork) { f.Branches[1].Checkpoint.ID = used[0].ID }},
	}
	for name, change := range map[string]func(th *core.Thread){
		"a conversation": func(th *core.Thread) { th.Conversation.Version = 1 }, "a first run": func(th *core.Thread) { th.FirstRun = "r" },
		"a pending run": func(th *core.Thread) { th.PendingRuns = []core.RunID{"r"} }, "an artifact": func(th *core.Thread) { th.Artifacts = true },
		"an origin": func(th *core.Thread) { th.Fork = &core.ForkRoot{From: "x"} }, "a loss": func(th *core.Thread) { th.WorkspaceLost = &core.WorkspaceLoss{Run: "r"} },
	} {
		th := leased("t")
		change(&th)
		tests["a thread with "+name] = struct {
			why    string
			thread core.Thread
			change func(f *core.Fork)
		}{"fork-destination-not-empty", th, func(*core.Fork) {}}
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			must(t, s.SeedThread(t.Context(), tt.thread))
			f := core.Fork{Now: 5000, Source: all[0], Branches: []core.Branch{branchOf(all[0], "free"), branchOf(all[0], "t")}}
			tt.change(&f)
			refusedAs(t, s.Threads.Fork(t.Context(), f), tt.why)
			equal(t, "the free thread", readThread(t, s, threadOf("free")), leased("free"))
			equal(t, "the other thread", readThread(t, s, threadOf("t")), tt.thread)
			pins, err := s.Threads.Pins(t.Context(), threadOf("src"))
			must(t, err)
			equal(t, "pins", len(pins), 0)
		})
	}
}

func unpin(t *testing.T, s Shelf) {
	_, all := chain(t, s, "src", 1)
	must(t, s.SeedThread(t.Context(), leased("t")))
	b := branchOf(all[0], "t")
	must(t, s.Threads.Fork(t.Context(), core.Fork{Now: 5000, Source: all[0], Branches: []core.Branch{b}}))
	th, err := s.Threads.UpdateThread(t.Context(), threadOf("t"), core.AcquireLease{Owner: "a", Now: 6000, Until: 9000})
	must(t, err)
	u := core.Unpin{Writer: th.Writer(), Now: 7000, Owner: "src", Root: b.Checkpoint.ID}
	late := u
	late.Now = 9000
	refusedAs(t, s.Threads.Unpin(t.Context(), late), "writer-lost")
	for range 2 {
		must(t, s.Threads.Unpin(t.Context(), u))
	}
	want, err := u.ApplyThread(th)
	must(t, err)
	equal(t, "thread", readThread(t, s, threadOf("t")), want)
	for owner, n := range map[core.ThreadID]int{"src": 0, "older": 1} {
		pins, err := s.Threads.Pins(t.Context(), threadOf(owner))
		must(t, err)
		equal(t, "pins on "+string(owner), len(pins), n)
	}
}

func putArtifact(t *testing.T, s Shelf) {
	th := leased("t")
	th.Floor = 3
	must(t, s.SeedThread(t.Context(), th))
	a := checkpointOf(th.ThreadKey, "c", "", 1).Artifacts[0]
	refusedAs(t, s.Threads.PutArtifact(t.Context(), core.PutArtifact{Thread: th.ThreadKey, Artifact: a, Fence: 2, Now: 7}), "floor")
	equal(t, "thread", readThread(t, s, th.ThreadKey), th)
	want := a
	want.Name = "other"
	for _, put := range []core.Artifact{a, want, {Run: "q", ID: "z", Name: "n", MIME: "m", Object: a.Object}} {
		must(t, s.Threads.PutArtifact(t.Context(), core.PutArtifact{Thread: th.ThreadKey, Artifact: put, Fence: 3, Now: 7}))
	}
	got, err := s.Threads.Artifacts(t.Context(), th.ThreadKey)
	must(t, err)
	equal(t, "artifacts", got, []core.Artifact{{Run: "q", ID: "z", Name: "n", MIME: "m", Object: a.Object}, want})
	equal(t, "artifacts of the thread", readThread(t, s, th.ThreadKey).Artifacts, true)
}

func longIDs(t *testing.T, s Shelf) {
	src, all := chain(t, s, core.ThreadID(long), 1)
	twin := core.ThreadID(strings.TrimSuffix(long, "ü") + "ö")
	var fork core.Fork
	fork.Now, fork.Source = 5000, all[0]
	for _, id := range []core.ThreadID{core.ThreadID(long + "a"), twin + "a"} {
		must(t, s.SeedThread(t.Context(), leased(id)))
		fork.Branches = append(fork.Branches, branchOf(all[0], id))
	}
	must(t, s.Threads.Fork(t.Context(), fork))
	pins, err := s.Threads.Pins(t.Context(), src.ThreadKey)
	must(t, err)
	equal(t, "pins", len(pins), 2)
	for _, b := range fork.Branches {
		got, err := s.Threads.FindCheckpoint(t.Context(), "acme", b.Checkpoint.ID)
		must(t, err)
		equal(t, "root", got, b.Checkpoint)
	}
}

// ThreadTransitions checks every transition of a thread against core's own meaning of it.
func ThreadTransitions(t *testing.T, open OpenShelf) {
	conform(t, threadTransitions, func(t *testing.T) access[core.Thread, core.ThreadTransition] {
		s := open(t)
		return access[core.Thread, core.ThreadTransition]{
			record: drawThread,
			seed:   func(rt *draw.T, th core.Thread) error { return s.SeedThread(rt.Context(), th) },
			update: func(rt *draw.T, th core.Thread, t core.ThreadTransition) (core.Thread, error) {
				return s.Threads.UpdateThread(rt.Context(), th.ThreadKey, t)
			},
			read: func(rt *draw.T, th core.Thread) (core.Thread, error) {
				return s.Threads.Thread(rt.Context(), th.ThreadKey)
			},
		}
	})
}

// RandomCommits checks Commit against core's own meaning of it, on random threads.
func RandomCommits(t *testing.T, open OpenShelf) {
	s := open(t)
	bothAnswers(t, func(rt *draw.T) bool {
		before := drawThread(rt, number.Add(1))
		before.Tenant += core.TenantID(fmt.Sprint("-", number.Add(1))) // ids are a tenant's
		commit := drawCommit(rt, before)
		must(rt, s.SeedThread(rt.Context(), before))
		var taken *core.CheckpointName
		if draw.Range(0, 4).Draw(rt, "id taken") == 0 {
			other := checkpointOf(before.ThreadKey, commit.Checkpoint.ID, "", moments.Draw(rt, "taken at"))
			other.Digest = as(rt, "digest", commit.Checkpoint.Digest, draw.SampledFrom([]string{"x", "y"}))
			must(rt, s.SeedCheckpoint(rt.Context(), other))
			taken = new(core.NameOf(other))
		}
		want, err := commit.ApplyThread(before)
		if err != nil || taken != nil {
			var th *core.Thread
			if err != nil {
				th = &before
			}
			want, err = before, commit.Judge(th, taken)
		}
		sameAnswer(rt, s.Threads.Commit(rt.Context(), commit), err)
		equal(rt, "thread", readThread(rt, s, before.ThreadKey), want)
		return err == nil && taken == nil
	})
}

func drawCommit(rt *draw.T, th core.Thread) core.Commit {
	head := as(rt, "expected", th.Head, heads)
	c := core.Commit{
		Writer: core.Writer{ThreadKey: th.ThreadKey, Owner: as(rt, "owner", th.Lease.Owner, leaseOwners), Fence: as(rt, "fence", th.Fence, epochs)},
		Now:    moments.Draw(rt, "now"), Expected: head, Release: booleans.Draw(rt, "release"),
		Checkpoint: checkpointOf(th.ThreadKey, "made", as(rt, "parent", head, heads), moments.Draw(rt, "at")),
	}
	if th.Step != nil && booleans.Draw(rt, "of a step") {
		c.Token = as(rt, "token", th.Step.Token, nonces)
	}
	return c
}

var (
	leaseOwners = draw.SampledFrom([]string{"", "a", "a", "b"})
	heads       = draw.SampledFrom([]core.CheckpointID{"", "h1", "h2"})
	runIDs      = draw.SampledFrom([]core.RunID{"r1", "größer", "r3"})
	stepStates  = draw.SampledFrom([]core.StepState{core.StepWorking, core.StepWorking, core.StepDone, core.StepFailed})
)

// someRuns is a sorted list of different runs, nil for none.
func someRuns(rt *draw.T, what string) []core.RunID {
	runs := draw.SliceOfNDistinct(runIDs, 0, 3).Draw(rt, what)
	if len(runs) == 0 {
		return nil
	}
	return slices.Sorted(slices.Values(runs))
}

func drawThread(rt *draw.T, number int64) core.Thread {
	th := core.Thread{
		ThreadKey: core.ThreadKey{
			Tenant: core.TenantID(draw.SampledFrom(awkward).Draw(rt, "tenant")),
			Thread: core.ThreadID(fmt.Sprint(draw.SampledFrom(awkward).Draw(rt, "thread"), number)),
		},
		Head: heads.Draw(rt, "head"), Fence: epochs.Draw(rt, "fence"), FirstRun: core.RunID(texts.Draw(rt, "first run")), BegunAt: draw.SampledFrom([]core.Millis{0, 500, 900}).Draw(rt, "begun at"),
		Artifacts: booleans.Draw(rt, "artifacts"), UpdatedAt: times.Draw(rt, "updatedAt"), PendingRuns: someRuns(rt, "pending"),
	}
	th.Floor = draw.Range(0, th.Fence).Draw(rt, "floor")
	if owner := leaseOwners.Draw(rt, "lease"); owner != "" {
		th.Lease = core.Lease{Owner: owner, Until: moments.Draw(rt, "until")}
	}
	th.Conversation = drawConversation(rt)
	th.WorkspaceLost = maybe(rt, "loss", func(rt *draw.T) core.WorkspaceLoss {
		return core.WorkspaceLoss{Run: runIDs.Draw(rt, "lost"), Why: texts.Draw(rt, "why"), At: moments.Draw(rt, "at")}
	})
	th.Step = maybe(rt, "step", func(rt *draw.T) core.Step { return drawStep(rt, th.Fence) })
	th.Fork = maybe(rt, "fork", func(rt *draw.T) core.ForkRoot {
		f := core.ForkRoot{From: "src", Checkpoint: "c", Manifest: core.ObjectRef{Key: "k", SHA256: "s", Size: 1}}
		if booleans.Draw(rt, "owners") {
			f.Owners = []core.ThreadID{"o1", "o2"}
		}
		return f
	})
	return th
}

// drawConversation draws one of two versions of one history, or none: what a version
// holds is the same wherever it is met.
func drawConversation(rt *draw.T) core.Conversation {
	c := core.Conversation{Version: draw.Range[int64](0, 2).Draw(rt, "conversation")}
	if c.Version > 0 {
		c.Object = core.ObjectRef{Key: fmt.Sprint("k", c.Version), SHA256: "s", Size: c.Version}
		c.Runs = []core.RunID{"größer", "r3"}[:c.Version]
	}
	return c
}

// leaves are bytes that a step may store: none, some, and all that it may have.
var leaves = draw.SampledFrom([]int64{0, 1, core.MaxGranted - 1, core.MaxGranted})

func drawStep(rt *draw.T, fence int64) core.Step {
	s := core.Step{
		ID: heads.Draw(rt, "step id"), Kind: core.StepCapture, Run: core.RunID(texts.Draw(rt, "step run")), Fence: as(rt, "step fence", fence, epochs),
		Token: nonces.Draw(rt, "token"), State: stepStates.Draw(rt, "state"), Why: texts.Draw(rt, "why"), Attempts: draw.Range(1, 2).Draw(rt, "attempts"),
		Checkpoint: heads.Draw(rt, "of"), Reason: core.ReasonAutomatic, StartedAt: moments.Draw(rt, "startedAt"), SeenAt: moments.Draw(rt, "seenAt"),
		Files: sizes.Draw(rt, "files"), Bytes: sizes.Draw(rt, "bytes"), Granted: leaves.Draw(rt, "granted"), Label: maybe(rt, "label", func(rt *draw.T) string { return texts.Draw(rt, "label") }),
	}
	s.Job = maybe(rt, "job", func(*draw.T) core.ReclaimJob {
		return core.ReclaimJob{Tenant: "acme", Run: "r", Key: "k", Instance: "i", Kind: core.JobEnd}
	})
	return s
}

// working brings every other thread to where a step is under way and its lease live.
func working(rt *draw.T, th core.Thread) core.Thread {
	th.Lease = core.Lease{Owner: "a", Until: 3000}
	if th.Step == nil {
		th.Step = new(drawStep(rt, th.Fence))
	}
	th.Step.State = core.StepWorking
	return th
}

func tokenOf(rt *draw.T, th core.Thread) string {
	if th.Step == nil {
		return nonces.Draw(rt, "token")
	}
	return as(rt, "token", th.Step.Token, nonces)
}

func writerOf(rt *draw.T, th core.Thread) (owner string, fence int64, now core.Millis) {
	return cmp.Or(as(rt, "owner", th.Lease.Owner, leaseOwners), "a"), as(rt, "fence", th.Fence, epochs), draw.SampledFrom([]core.Millis{1000, 1000, 2000, 3000}).Draw(rt, "now")
}

var threadTransitions = map[string]drawing[core.Thread, core.ThreadTransition]{
	"AcquireLease": {draw: func(rt *draw.T, th core.Thread) core.ThreadTransition {
		return core.AcquireLease{
			Owner: draw.SampledFrom([]string{"a", "b"}).Draw(rt, "owner"), Now: moments.Draw(rt, "now"), Until: 4000,
			Held: draw.SampledFrom([]bool{false, true}).Draw(rt, "held"),
		}
	}},
	"RenewLease": {shape: working, draw: func(rt *draw.T, th core.Thread) core.ThreadTransition {
		owner, fence, now := writerOf(rt, th)
		return core.RenewLease{Owner: owner, Fence: fence, Now: now, Until: 4000}
	}},
	"ReleaseLease": {shape: working, draw: func(rt *draw.T, th core.Thread) core.ThreadTransition {
		owner, fence, _ := writerOf(rt, th)
		seen := draw.SampledFrom([]*core.StepSeen{nil, new(th.Seen()), {}, {ID: "h1", Token: "a"}}).Draw(rt, "seen")
		return core.ReleaseLease{Owner: owner, Fence: draw.SampledFrom([]int64{0, fence}).Draw(rt, "any fence"), Seen: seen}
	}},
	"BeginStep": {shape: working, draw: func(rt *draw.T, th core.Thread) core.ThreadTransition {
		owner, fence, now := writerOf(rt, th)
		step := drawStep(rt, fence)
		step.Fence, step.Token = fence, "new"
		seen := as(rt, "seen", th.Seen(), draw.SampledFrom([]core.StepSeen{{}, {ID: "h1", Token: "a"}}))
		return core.BeginStep{Owner: owner, Seen: seen, Step: step, Now: now, Until: 4000}
	}},
	"NoteStep": {shape: working, draw: func(rt *draw.T, th core.Thread) core.ThreadTransition {
		_, fence, now := writerOf(rt, th)
		return core.NoteStep{Fence: fence, Token: tokenOf(rt, th), Files: sizes.Draw(rt, "files"), Bytes: sizes.Draw(rt, "bytes"), Grant: leaves.Draw(rt, "grant"), Now: now, Until: 4000}
	}},
	"DoubtStep": {shape: working, draw: func(rt *draw.T, th core.Thread) core.ThreadTransition {
		_, fence, now := writerOf(rt, th)
		seen := moments.Draw(rt, "seen at")
		if th.Step != nil {
			seen = as(rt, "seen", th.Step.SeenAt, moments)
		}
		return core.DoubtStep{Fence: fence, Token: tokenOf(rt, th), SeenAt: seen, Why: "why", Now: now}
	}},
	"EndStep": {shape: working, draw: func(rt *draw.T, th core.Thread) core.ThreadTransition {
		_, fence, now := writerOf(rt, th)
		state := draw.SampledFrom([]core.StepState{core.StepDone, core.StepFailed}).Draw(rt, "state")
		return core.EndStep{Fence: fence, Token: tokenOf(rt, th), State: state, Why: texts.Draw(rt, "why"), Release: booleans.Draw(rt, "release"), Now: now}
	}},
	"PutConversation": {draw: func(rt *draw.T, th core.Thread) core.ThreadTransition {
		seen := th.Conversation
		if draw.Range(0, 3).Draw(rt, "seen another") == 0 {
			seen = drawConversation(rt)
		}
		return core.PutConversation{Seen: seen, Object: core.ObjectRef{Key: "next", SHA256: "n", Size: 9}, Fence: as(rt, "fence", th.Fence, epochs), Runs: someRuns(rt, "folded"), Now: moments.Draw(rt, "now")}
	}},
	"AddPending": {draw: func(rt *draw.T, th core.Thread) core.ThreadTransition {
		return core.AddPending{Run: runIDs.Draw(rt, "run"), Now: moments.Draw(rt, "now")}
	}},
	"LoseWorkspace": {draw: func(rt *draw.T, th core.Thread) core.ThreadTransition {
		return core.LoseWorkspace{Run: runIDs.Draw(rt, "run"), Why: texts.Draw(rt, "why"), Head: as(rt, "head", th.Head, heads), Fence: as(rt, "fence", th.Fence, epochs), Now: moments.Draw(rt, "now")}
	}},
	"NoteRun": {draw: func(rt *draw.T, th core.Thread) core.ThreadTransition {
		return core.NoteRun{Run: runIDs.Draw(rt, "run"), Now: moments.Draw(rt, "now")}
	}},
	"RaiseFloor": {shape: working, draw: func(rt *draw.T, th core.Thread) core.ThreadTransition {
		owner, fence, now := writerOf(rt, th)
		return core.RaiseFloor{Owner: owner, Fence: fence, Now: now}
	}},
	"ForgetThread": {shape: working, draw: func(rt *draw.T, th core.Thread) core.ThreadTransition {
		owner, fence, now := writerOf(rt, th)
		seen := th.Conversation
		if draw.Range(0, 3).Draw(rt, "seen another") == 0 {
			seen = drawConversation(rt)
		}
		begun := as(rt, "begun", th.BegunAt, draw.SampledFrom([]core.Millis{0, 500, 900}))
		return core.ForgetThread{Owner: owner, Fence: fence, Head: as(rt, "head", th.Head, heads), Seen: seen, BegunAt: begun, Now: now}
	}},
}

// OpenFaultyShelf returns stores of which sound works and broken fails its first write by
// f; both hold the same records.
type OpenFaultyShelf func(t *testing.T, f Fault) (sound, broken Shelf)

// shelfWrite is one kind of write, see [write].
type shelfWrite struct {
	name string
	do   func(ctx context.Context, s Shelf) error
	done func(t *testing.T, s Shelf) bool
}

// ThreadFaults checks that every write of threads may be repeated after a call that
// failed either way, and that it is done once (I14).
func ThreadFaults(t *testing.T, open OpenFaultyShelf) {
	for _, f := range []Fault{NotLanded, AnswerLost} {
		for _, w := range shelfWrites() {
			t.Run(w.name+", "+string(f), func(t *testing.T) {
				sound, broken := open(t, f)
				chain(t, sound, "t", 2)
				must(t, sound.SeedThread(t.Context(), leased("free")))
				if err := w.do(t.Context(), broken); err == nil || core.Refused(err) {
					t.Fatalf("the call that fails: %v, want an error that is no refusal", err)
				}
				if landed := w.done(t, sound); landed != (f == AnswerLost) {
					t.Errorf("after a call with %q, landed = %t", f, landed)
				}
				must(t, w.do(t.Context(), broken))
				if !w.done(t, sound) {
					t.Error("the repeat did not land")
				}
			})
		}
	}
}

func shelfWrites() []shelfWrite {
	th := leased("t")
	th.Head = "t-c2"
	c := func(i int) core.Checkpoint {
		return checkpointOf(th.ThreadKey, core.CheckpointID(fmt.Sprint("t-c", i)), map[int]core.CheckpointID{2: "t-c1", 3: "t-c2"}[i], core.Millis(10*i))
	}
	head := func(want core.CheckpointID) func(t *testing.T, s Shelf) bool {
		return func(t *testing.T, s Shelf) bool { return readThread(t, s, th.ThreadKey).Head == want }
	}
	first := c(1)
	return []shelfWrite{
		{"commit", func(ctx context.Context, s Shelf) error { return s.Threads.Commit(ctx, commitOf(th, c(3))) }, head("t-c3")},
		{"delete head", func(ctx context.Context, s Shelf) error {
			return s.Threads.DeleteHead(ctx, core.DeleteHead{Writer: th.Writer(), Now: 5000, Checkpoint: c(2), Next: &first})
		}, head("t-c1")},
		{"fork", func(ctx context.Context, s Shelf) error {
			return s.Threads.Fork(ctx, core.Fork{Now: 5000, Source: c(2), Branches: []core.Branch{branchOf(c(2), "free")}})
		}, func(t *testing.T, s Shelf) bool { return readThread(t, s, threadOf("free")).Fork != nil }},
		{"trim", func(ctx context.Context, s Shelf) error {
			return s.Threads.Trim(ctx, core.Trim{Writer: th.Writer(), Now: 5000, Checkpoints: []core.Checkpoint{first}})
		}, func(t *testing.T, s Shelf) bool { return len(listedIDs(t, s, th.ThreadKey)) == 1 }},
		{"take a lease", func(ctx context.Context, s Shelf) error {
			_, err := s.Threads.UpdateThread(ctx, th.ThreadKey, core.AcquireLease{Owner: "b", Now: 9000, Until: 9999})
			return err
		}, func(t *testing.T, s Shelf) bool {
			got := readThread(t, s, th.ThreadKey)
			return got.Fence == 4 && got.Lease.Owner == "b"
		}},
		{"put conversation", func(ctx context.Context, s Shelf) error {
			_, err := s.Threads.UpdateThread(ctx, th.ThreadKey, core.PutConversation{Object: c(1).Manifest, Runs: []core.RunID{"r"}, Now: 5})
			return err
		}, func(t *testing.T, s Shelf) bool { return readThread(t, s, th.ThreadKey).Conversation.Version == 1 }},
		{"begin step", func(ctx context.Context, s Shelf) error {
			step := core.Step{ID: "s", Kind: core.StepCapture, Fence: 3, Token: "mine", State: core.StepWorking, Attempts: 1}
			_, err := s.Threads.UpdateThread(ctx, th.ThreadKey, core.BeginStep{Owner: "a", Step: step, Now: 5000, Until: 9000})
			return err
		}, func(t *testing.T, s Shelf) bool { return readThread(t, s, th.ThreadKey).Step != nil }},
	}
}
