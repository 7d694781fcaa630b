package coretest

import (
	"reflect"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Fault is how a call fails although the caller did nothing wrong.
type Fault string

// The two ways. They look the same to the caller.
const (
	NotLanded  Fault = "not landed"
	AnswerLost Fault = "answer lost"
)

// OpenFaulty returns stores of which sound works and broken fails its first call by
// f; both hold the same records.
type OpenFaulty func(t *testing.T, f Fault) (sound, broken Stores)

// Faults checks that every write may be repeated after a call that failed either
// way, and that the second time it is a success and done once (I14).
func Faults(t *testing.T, open OpenFaulty) {
	for _, f := range []Fault{NotLanded, AnswerLost} {
		for _, w := range repeatable {
			t.Run(w.name+", "+string(f), func(t *testing.T) {
				sound, broken := open(t, f)
				w.seed(t, sound)
				if err := w.do(t, broken); err == nil || core.Refused(err) {
					t.Fatalf("the call that fails: %v, want an error that is no refusal", err)
				}
				if landed := w.done(t, sound); landed != (f == AnswerLost) {
					t.Errorf("after a call with %q, landed = %t", f, landed)
				}
				must(t, w.do(t, broken))
				if !w.done(t, sound) {
					t.Error("the repeat did not land")
				}
			})
		}
	}
}

// write is one kind of write: what it needs, the write, and whether it happened
// exactly once.
type write struct {
	name string
	seed func(t *testing.T, s Stores)
	do   func(t *testing.T, s Stores) error
	done func(t *testing.T, s Stores) bool
}

func changedRun(r core.Run, change func(r *core.Run)) core.Run {
	change(&r)
	return r
}

// onRun is a write of one run record.
func onRun(name string, seed core.Run, transition core.Transition) write {
	return write{
		name: name,
		seed: func(t *testing.T, s Stores) { must(t, s.Seed.Run(t.Context(), seed)) },
		do: func(t *testing.T, s Stores) error {
			_, err := s.Runs.Update(t.Context(), seed.RunKey, transition)
			return err
		},
		done: func(t *testing.T, s Stores) bool {
			got, err := s.Runs.Run(t.Context(), seed.RunKey)
			must(t, err)
			want, err := transition.Apply(seed)
			must(t, err)
			return reflect.DeepEqual(got, want)
		},
	}
}

var repeatable = []write{
	{
		name: "create",
		seed: func(*testing.T, Stores) {},
		do: func(t *testing.T, s Stores) error {
			_, err := s.Runs.Create(t.Context(), attached("acme", "r"))
			return err
		},
		done: func(t *testing.T, s Stores) bool {
			_, err := s.Runs.Run(t.Context(), core.RunKey{Tenant: "acme", Run: "r"})
			return err == nil
		},
	},
	onRun("renew", attached("acme", "r"), core.Renew{Epoch: 1, Until: 9000}),
	onRun("detach", attached("acme", "r"), core.Detach{Epoch: 1, Now: 3000}),
	onRun("lapse", attached("acme", "r"), core.Lapse{DueAt: 5000}),
	onRun("attach", detached("acme", "r"), core.Attach{Seen: 1, Nonce: "mine", Now: 3000, Until: 9000}),
	onRun("claim", detached("acme", "r"), core.Claim{Seen: 1, Since: 2000, Nonce: "mine", Now: 3000, Until: 4000}),
	onRun("release", claimed("acme", "r"), core.Release{Epoch: 1}),
	onRun("finish", detached("acme", "r"), core.Finish{Epoch: 1, Nonce: "host", Now: 3000, Status: core.Completed, Reclaim: core.ReclaimEnd, NotBefore: 4000}),
	onRun("interrupt", attached("acme", "r"), core.Interrupt{Epoch: 1, Now: 3000, Until: 9000}),
	onRun("reclaim done", ended("acme", "r"), core.ReclaimDone{Outcome: core.ReclaimDestroyed}),
	onRun("reclaim later", ended("acme", "r"), core.ReclaimLater{Outcome: core.ReclaimHeld, NotBefore: 9000, Attempts: 1}),
	onRun("note checkpoint", changedRun(ended("acme", "r"), func(r *core.Run) { r.Checkpoint.State = core.CheckpointOwed }),
		core.NoteCheckpoint{From: core.CheckpointOwed, Checkpoint: core.RunCheckpoint{State: core.CheckpointDone, ID: "c"}}),
	onRun("name instance", attached("acme", "r"), core.NameInstance{Epoch: 1, Instance: "i1", Key: "k"}),
	{
		name: "append",
		seed: func(t *testing.T, s Stores) { must(t, s.Seed.Run(t.Context(), detached("acme", "r"))) },
		do: func(t *testing.T, s Stores) error {
			a, segment := piece(1, 0, "once\n")
			_, err := s.Log.Append(t.Context(), core.RunKey{Tenant: "acme", Run: "r"}, a, segment)
			return err
		},
		done: func(t *testing.T, s Stores) bool {
			segments, err := s.Log.Segments(t.Context(), core.RunKey{Tenant: "acme", Run: "r"})
			must(t, err)
			return len(segments) == 1
		},
	},
	{
		name: "put intent",
		seed: func(*testing.T, Stores) {},
		do: func(t *testing.T, s Stores) error {
			_, err := s.Ledger.PutIntent(t.Context(), intent("i1"))
			return err
		},
		done: func(t *testing.T, s Stores) bool {
			_, err := s.Ledger.Row(t.Context(), "i1")
			return err == nil
		},
	},
	{
		name: "postpone",
		seed: func(t *testing.T, s Stores) { must(t, s.Seed.Row(t.Context(), intent("i1"))) },
		do: func(t *testing.T, s Stores) error {
			_, err := s.Ledger.UpdateRow(t.Context(), "i1", core.Postpone{State: core.LedgerIntent, DueAt: 9000})
			return err
		},
		done: func(t *testing.T, s Stores) bool {
			row, err := s.Ledger.Row(t.Context(), "i1")
			must(t, err)
			return row.Attempts == 1
		},
	},
	{
		name: "mark reclaiming",
		seed: func(t *testing.T, s Stores) { must(t, s.Seed.Sandbox(t.Context(), sandbox("i1"))) },
		do: func(t *testing.T, s Stores) error {
			mark := core.MarkReclaiming{Instance: "i1", LatestRun: "r1", By: "a", Now: 9000}
			_, err := s.Sandboxes.UpdateSandbox(t.Context(), "key-i1", mark)
			return err
		},
		done: func(t *testing.T, s Stores) bool {
			box, err := s.Sandboxes.Sandbox(t.Context(), "key-i1")
			must(t, err)
			return box.Reclaiming == "a"
		},
	},
	{
		name: "launch",
		seed: func(t *testing.T, s Stores) { seedTrio(t, s, trio{run: launching("i1"), row: intent("i1")}) },
		do:   func(t *testing.T, s Stores) error { return s.Transactions.Launch(t.Context(), launched("i1")) },
		done: func(t *testing.T, s Stores) bool {
			got := readTrio(t, s, trio{run: launching("i1"), row: intent("i1")}, "key-i1")
			return got.row.State == core.LedgerRunning && got.box != nil && got.run.TaskARN != ""
		},
	},
	{
		name: "condemn",
		seed: func(t *testing.T, s Stores) { seedTrio(t, s, serving("i1")) },
		do:   func(t *testing.T, s Stores) error { return s.Transactions.Condemn(t.Context(), condemn("a")) },
		done: func(t *testing.T, s Stores) bool {
			got := readTrio(t, s, serving("i1"), "key-i1")
			return got.row.State == core.LedgerStopping && got.box == nil
		},
	},
	{
		name: "move debt",
		seed: func(t *testing.T, s Stores) { seedTrio(t, s, indebtedTo("i1")) },
		do: func(t *testing.T, s Stores) error {
			return s.Transactions.MoveDebt(t.Context(), moveOf(indebtedTo("i1")))
		},
		done: func(t *testing.T, s Stores) bool {
			got := readTrio(t, s, indebtedTo("i1"), "key-i1")
			return got.row.Owed != "" && got.run.Checkpoint.State == core.CheckpointMoved
		},
	},
	{
		name: "settle debt",
		seed: func(t *testing.T, s Stores) {
			row := intent("i1")
			row.Owed = "r0"
			must(t, s.Seed.Row(t.Context(), row))
		},
		do: func(t *testing.T, s Stores) error {
			_, err := s.Ledger.UpdateRow(t.Context(), "i1", core.SettleDebt{Owed: "r0", Now: 9000})
			return err
		},
		done: func(t *testing.T, s Stores) bool {
			row, err := s.Ledger.Row(t.Context(), "i1")
			must(t, err)
			return row.Owed == ""
		},
	},
	{
		name: "put blob",
		seed: func(*testing.T, Stores) {},
		do:   func(t *testing.T, s Stores) error { return s.Blobs.PutBlob(t.Context(), "k", []byte("data")) },
		done: func(t *testing.T, s Stores) bool {
			_, err := s.Blobs.Blob(t.Context(), "k")
			return err == nil
		},
	},
}
