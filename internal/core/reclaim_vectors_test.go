package core_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

var _ = exemptVectors(
	vectorExemption{
		file: "reclaim", cases: unlessQuirk(func(in reclaimCase) bool { return in.StoreDelete == "throws" && in.condemns() }),
		reason: "the record goes before the task (DESIGN 6.6): where that transaction fails, nothing is stopped",
	},
	vectorExemption{
		file: "reclaim", cases: unlessQuirk(func(in reclaimCase) bool { return in.live() && in.reaches() }),
		reason: "a sandbox in which a run is not terminal is left alone (DESIGN 6.1, I7)",
	},
	vectorExemption{
		file: "reclaim", cases: unlessQuirk(func(in reclaimCase) bool { return in.moved() && !in.live() && in.reaches() }),
		reason: "a sandbox that a newer run has is in use (DESIGN 6.2, I7)",
	},
	vectorExemption{
		file: "reclaim", cases: unlessQuirk(func(in reclaimCase) bool { return in.Record.SandboxKey != nil && *in.Record.SandboxKey == "" }),
		reason: "a sandbox key is a digest (DESIGN 4.2): an empty one is none",
	},
)

// reclaimCase is one case of reclaim.
type reclaimCase struct {
	Record struct {
		RunID      core.RunID
		SandboxKey *core.SandboxKey
		Status     core.Status
	}
	Provider                       string
	Instances                      []instanceRecord
	StoreGet, StoreDelete, Destroy string
}

// live tells whether the run has not ended. A case without a status is about one
// that has.
func (in reclaimCase) live() bool { return in.Record.Status != "" && !in.Record.Status.Terminal() }

// key is the run's sandbox key, empty if it has none.
func (in reclaimCase) key() core.SandboxKey {
	if in.Record.SandboxKey == nil {
		return ""
	}
	return *in.Record.SandboxKey
}

// own is the record under the run's key.
func (in reclaimCase) own() (instanceRecord, bool) {
	i := slices.IndexFunc(in.Instances, func(i instanceRecord) bool { return i.Key == in.key() && i.Key != "" })
	if i < 0 {
		return instanceRecord{}, false
	}
	return in.Instances[i], true
}

// reaches tells whether the sandbox is there and this provider's.
func (in reclaimCase) reaches() bool {
	own, ok := in.own()
	return ok && in.StoreGet == "" && own.Provider == in.Provider && in.StoreDelete == ""
}

// condemns tells whether a reclaim comes to the deletion of the record.
func (in reclaimCase) condemns() bool {
	own, ok := in.own()
	return ok && in.StoreGet == "" && own.Provider == in.Provider && !in.live() && !in.moved()
}

// moved tells whether the sandbox serves a newer run.
func (in reclaimCase) moved() bool {
	own, _ := in.own()
	return own.LatestRunID != "" && own.LatestRunID != in.Record.RunID
}

// reclaimResult is what a case wants.
type reclaimResult struct {
	Outcome       core.ReclaimOutcome
	Destroyed     []string
	InstancesLeft []core.SandboxKey
	Reclaimer     string
	Rejects       bool
}

// TestReclaimVectors hands the message of an ended run to the reclaimer.
func TestReclaimVectors(t *testing.T) {
	compareVectors(t, "reclaim", func(t *testing.T, c vectorCase) error {
		var in reclaimCase
		var want reclaimResult
		c.decode(t, &in, &want)
		return inBubble(t, func(t *testing.T) error {
			w := newWorld(t)
			faults := &reclaimFaults{world: w, in: in, names: map[string]string{}}
			job := faults.seed()
			outcome, err := faults.reclaimer().Do(t.Context(), job)
			got := reclaimResult{Outcome: outcome, Destroyed: faults.stopped, InstancesLeft: faults.left(), Rejects: want.Rejects && err != nil}
			return differ(failsAlike(got, err), failsAlike(want, errorIf(want.Reclaimer != "resolves")))
		})
	})
}

// failsAlike makes two results comparable: that the message fails counts, not in
// which of the original's two ways, and a message that fails at a store has no
// outcome of its own.
func failsAlike(r reclaimResult, err error) reclaimResult {
	r.Reclaimer = "resolves"
	if err != nil {
		r.Reclaimer = "rejects"
	}
	if r.Rejects {
		r.Outcome = ""
	}
	r.Destroyed = append([]string{}, r.Destroyed...)
	r.InstancesLeft = append([]core.SandboxKey{}, r.InstancesLeft...)
	return r
}

func errorIf(fails bool) error {
	if fails {
		return errors.New("it fails")
	}
	return nil
}

// reclaimFaults is the world of a case: its stores and its provider fail as told.
type reclaimFaults struct {
	*world
	in      reclaimCase
	names   map[string]string // of each task, as the case has it
	stopped []string
}

// seed puts the ended run, and each instance with a task that runs, and returns
// the run's message.
func (f *reclaimFaults) seed() core.ReclaimJob {
	ctx, view := f.t.Context(), f.fleet.View(f.store.Process)
	job := core.ReclaimJob{Tenant: "acme", Run: f.in.Record.RunID, Key: f.in.key(), Kind: core.JobEnd}
	if job.Key != "" {
		job.Instance = "i-none"
	}
	var provider string
	for _, i := range f.in.Instances {
		r := endedRun("other-" + string(i.Key))
		r.SandboxKey, r.Instance, r.Provider, r.Thread = i.Key, core.InstanceID("i-"+i.Key), i.Provider, i.ThreadID
		own := i.Key == job.Key && i.Key != "" && i.ThreadID == "t1" // the run's own thread, in every case
		if own {
			r.RunKey, job.Instance, provider = key(string(job.Run)), r.Instance, i.Provider
		}
		arn, err := view.Start(ctx, core.TaskSpec{Token: string(r.Instance)})
		if err != nil {
			f.t.Fatal(err)
		}
		r.TaskARN, f.names[arn] = arn, i.ProviderSandboxID
		f.store.SeedLaunched(r)
		if own && f.in.moved() {
			box := f.store.State().Sandboxes[i.Key]
			box.LatestRun = i.LatestRunID
			f.store.SeedSandbox(box)
		}
	}
	r := endedRun(string(job.Run))
	if f.in.Record.Status != "" {
		r.Status = f.in.Record.Status
	}
	if f.in.live() {
		r.FinishedAt, r.Transcript, r.Row, r.DetachedSince, r.DueAt = 0, nil, core.RowDetached, now(), 0
	}
	r.SandboxKey, r.Instance, r.Provider = job.Key, job.Instance, provider
	f.store.SeedRun(r)
	return job
}

// endedRun is a run that has ended and owes its sandbox's end.
func endedRun(run string) core.Run {
	return core.Run{
		RunKey: key(run), Thread: "t1", Status: core.Completed, StartedAt: now(), FinishedAt: now(), Epoch: 2, ClaimNonce: "c",
		Row: core.RowReclaim, DueAt: now(), Reclaim: core.ReclaimEnd, ReclaimSince: now(),
		Transcript: &core.Transcript{SHA256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", Complete: true},
	}
}

func (f *reclaimFaults) reclaimer() *core.Reclaimer {
	c := f.world.reclaimer(f.store.Process)
	c.Provider, c.Stopper, c.Sandboxes, c.Transactions = f.in.Provider, f, faultySandboxes{c.Sandboxes, f}, faultyTransactions{c.Transactions, f}
	return c
}

// Stop notes whom it stops.
func (f *reclaimFaults) Stop(ctx context.Context, cluster, arn, reason string) (core.Task, error) {
	f.stopped = append(f.stopped, f.names[arn])
	if f.in.Destroy == "throws" {
		return core.Task{}, errors.New("the provider fails")
	}
	return f.fleet.View(f.store.Process).Stop(ctx, cluster, arn, reason)
}

func (f *reclaimFaults) left() []core.SandboxKey {
	var out []core.SandboxKey
	for k := range f.store.State().Sandboxes {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

type faultySandboxes struct {
	core.Sandboxes
	f *reclaimFaults
}

func (s faultySandboxes) Sandbox(ctx context.Context, k core.SandboxKey) (core.Sandbox, error) {
	if s.f.in.StoreGet == "throws" {
		return core.Sandbox{}, errors.New("the store fails")
	}
	return s.Sandboxes.Sandbox(ctx, k)
}

type faultyTransactions struct {
	core.SandboxTransactions
	f *reclaimFaults
}

func (s faultyTransactions) Condemn(ctx context.Context, t core.Condemn) error {
	if s.f.in.StoreDelete == "throws" {
		return errors.New("the store fails")
	}
	return s.SandboxTransactions.Condemn(ctx, t)
}
