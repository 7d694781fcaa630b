package coretest

import (
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// launching is a run that has named the instance of its launch.
func launching(id core.InstanceID) core.Run {
	r := attached("acme", "r1")
	r.Instance, r.SandboxKey = id, "key-"+core.SandboxKey(id)
	return r
}

func launched(id core.InstanceID) core.Launched {
	return core.Launched{Run: core.RunKey{Tenant: "acme", Run: "r1"}, Epoch: 1, Sandbox: sandbox(id), Now: 3000}
}

// Transactions checks the contract of [core.SandboxTransactions].
func Transactions(t *testing.T, open Open) {
	checks := map[string]func(t *testing.T, s Stores){
		"Launch writes row, record and run":                            launchAll,
		"Launch that is refused writes nothing":                        launchRefused,
		"Launch of what does not exist is not found":                   launchMissing,
		"Condemn stops the row and deletes the record":                 condemnAll,
		"Condemn without an attempt leaves another instance's record":  condemnOther,
		"Condemn that is refused writes nothing":                       condemnRefused,
		"Condemn of a row that does not exist is not found":            condemnMissing,
		"MoveDebt lets the row owe what the run owed":                  moveDebt,
		"MoveDebt that is refused writes nothing":                      moveDebtRefused,
		"Condemn by many attempts at once lets the marked one through": condemnRace,
		"Launch and Condemn at once leave either, never both":          launchCondemn,
	}
	for name, check := range checks {
		t.Run(name, func(t *testing.T) { check(t, open(t)) })
	}
}

// trio is what the two transactions write.
type trio struct {
	run core.Run
	row core.LedgerRow
	box *core.Sandbox
}

func seedTrio(t tb, s Stores, v trio) {
	t.Helper()
	must(t, s.Seed.Run(t.Context(), v.run))
	must(t, s.Seed.Row(t.Context(), v.row))
	if v.box != nil {
		must(t, s.Seed.Sandbox(t.Context(), *v.box))
	}
}

// readTrio reads the records of v again.
func readTrio(t tb, s Stores, v trio, key core.SandboxKey) trio {
	t.Helper()
	var got trio
	var err error
	got.run, err = s.Runs.Run(t.Context(), v.run.RunKey)
	must(t, err)
	got.row, err = s.Ledger.Row(t.Context(), v.row.Instance)
	must(t, err)
	if box, err := s.Sandboxes.Sandbox(t.Context(), key); err == nil {
		got.box = &box
	} else {
		notFound(t, err)
	}
	return got
}

func equalTrio(t tb, got, want trio) {
	t.Helper()
	equal(t, "run", got.run, want.run)
	equal(t, "row", got.row, want.row)
	if (got.box == nil) != (want.box == nil) {
		t.Errorf("record there: %t, want %t", got.box != nil, want.box != nil)
	} else if got.box != nil {
		equal(t, "record", *got.box, *want.box)
	}
}

func launchAll(t *testing.T, s Stores) {
	before := trio{run: launching("i1"), row: intent("i1")}
	seedTrio(t, s, before)
	launch := launched("i1")
	launch.Sandbox = wholeSandbox("i1")
	for range 2 { // the second is told from a loss
		must(t, s.Transactions.Launch(t.Context(), launch))
		want := trio{box: &launch.Sandbox}
		var err error
		want.run, err = launch.ApplyRun(before.run)
		must(t, err)
		want.row, err = launch.ApplyRow(before.row)
		must(t, err)
		equalTrio(t, readTrio(t, s, before, launch.Sandbox.Key), want)
	}
}

func launchRefused(t *testing.T, s Stores) {
	stopping := intent("i1")
	stopping.State = core.LedgerStopping
	bound, moved, over := launching("i1"), launching("i1"), ended("acme", "r1")
	bound.TaskARN, moved.Epoch = "arn:other", 2
	there := sandbox("i1")
	tests := []struct {
		why    string
		before trio
	}{
		{"state", trio{launching("i1"), stopping, nil}},
		{"task", trio{bound, intent("i1"), nil}},
		{"epoch", trio{moved, intent("i1"), nil}},
		{"not-running", trio{over, intent("i1"), nil}},
		{"exists", trio{launching("i1"), intent("i1"), &there}},
	}
	for _, tt := range tests {
		seedTrio(t, s, tt.before)
		refusedAs(t, s.Transactions.Launch(t.Context(), launched("i1")), tt.why)
		equalTrio(t, readTrio(t, s, tt.before, there.Key), tt.before)
	}
}

func launchMissing(t *testing.T, s Stores) {
	must(t, s.Seed.Run(t.Context(), launching("i1")))
	notFound(t, s.Transactions.Launch(t.Context(), launched("i1")))
	must(t, s.Seed.Row(t.Context(), intent("i2")))
	launch := launched("i2")
	launch.Run.Run = "none"
	notFound(t, s.Transactions.Launch(t.Context(), launch))
	row, err := s.Ledger.Row(t.Context(), "i2")
	must(t, err)
	equal(t, "row", row, intent("i2"))
}

// serving is a launched sandbox, marked for reclaim by the attempt "a".
func serving(id core.InstanceID) trio {
	box, launch := sandbox(id), launched(id)
	run, err := launch.ApplyRun(launching(id))
	if err != nil {
		panic(err) // the fixtures fit
	}
	row, err := launch.ApplyRow(intent(id))
	if err != nil {
		panic(err) // the fixtures fit
	}
	box.Reclaiming = "a"
	return trio{run, row, &box}
}

func condemn(by string) core.Condemn {
	return core.Condemn{Instance: "i1", Key: "key-i1", By: by, Why: "ended", Now: 4000, DueAt: 5000}
}

func condemnAll(t *testing.T, s Stores) {
	before := serving("i1")
	seedTrio(t, s, before)
	for range 2 { // the second is told from a loss
		must(t, s.Transactions.Condemn(t.Context(), condemn("a")))
		want := before
		want.box = nil
		var err error
		want.row, err = condemn("a").ApplyRow(before.row)
		must(t, err)
		equalTrio(t, readTrio(t, s, before, "key-i1"), want)
	}
}

func condemnOther(t *testing.T, s Stores) {
	before := serving("i1")
	before.box.Instance = "i2"
	seedTrio(t, s, before)
	must(t, s.Transactions.Condemn(t.Context(), condemn("")))
	got := readTrio(t, s, before, "key-i1")
	equal(t, "row state", got.row.State, core.LedgerStopping)
	equal(t, "record", *got.box, *before.box)

	alone := intent("i3")
	must(t, s.Seed.Row(t.Context(), alone))
	must(t, s.Transactions.Condemn(t.Context(), core.Condemn{Instance: "i3", Key: "nowhere", Now: 1, DueAt: 2}))
}

func condemnRefused(t *testing.T, s Stores) {
	other := serving("i1")
	other.box.Instance = "i2"
	tests := []struct {
		by, why string
		before  trio
	}{
		{"b", "reclaiming", serving("i1")},
		{"", "instance", serving("i1")},
		{"a", "instance", other},
	}
	for _, tt := range tests {
		seedTrio(t, s, tt.before)
		refusedAs(t, s.Transactions.Condemn(t.Context(), condemn(tt.by)), tt.why)
		equalTrio(t, readTrio(t, s, tt.before, "key-i1"), tt.before)
	}
	alone := intent("i9")
	must(t, s.Seed.Row(t.Context(), alone))
	refusedAs(t, s.Transactions.Condemn(t.Context(), core.Condemn{Instance: "i9", Key: "key-i9", By: "a", DueAt: 1}), "instance")
}

func condemnMissing(t *testing.T, s Stores) {
	for _, by := range []string{"", "a"} {
		notFound(t, s.Transactions.Condemn(t.Context(), condemn(by)))
		_, err := s.Ledger.Row(t.Context(), "i1")
		notFound(t, err)
	}
	box := sandbox("i1")
	box.Reclaiming = "a"
	must(t, s.Seed.Sandbox(t.Context(), box))
	notFound(t, s.Transactions.Condemn(t.Context(), condemn("a")))
	got, err := s.Sandboxes.Sandbox(t.Context(), box.Key)
	must(t, err)
	equal(t, "record", got, box)
}

// indebtedTo is a sandbox whose first run has ended and owes a checkpoint.
func indebtedTo(id core.InstanceID) trio {
	v := serving(id)
	r := ended("acme", "r1")
	r.Instance, r.TaskARN, r.Checkpoint.State = id, v.run.TaskARN, core.CheckpointOwed
	v.run = r
	return v
}

func moveOf(v trio) core.MoveDebt {
	return core.MoveDebt{Run: v.run.RunKey, Instance: v.row.Instance, Outcome: core.ReclaimInUse, Now: 4000, ExpiresAt: 9000}
}

func moveDebt(t *testing.T, s Stores) {
	before := indebtedTo("i1")
	seedTrio(t, s, before)
	for range 2 { // the second is told from a loss
		must(t, s.Transactions.MoveDebt(t.Context(), moveOf(before)))
		want, err := indebtedTrio(before, moveOf(before))
		must(t, err)
		equalTrio(t, readTrio(t, s, before, "key-i1"), want)
		equal(t, "owed", want.row.Owed, core.RunID("r1"))
	}
}

func moveDebtRefused(t *testing.T, s Stores) {
	paid, stopping := indebtedTo("i1"), indebtedTo("i1")
	paid.run.Checkpoint.State = core.CheckpointDone
	stopping.row.State = core.LedgerStopping
	for _, tt := range []struct {
		why    string
		before trio
	}{{"not-owed", paid}, {"state", stopping}} {
		seedTrio(t, s, tt.before)
		refusedAs(t, s.Transactions.MoveDebt(t.Context(), moveOf(tt.before)), tt.why)
		equalTrio(t, readTrio(t, s, tt.before, "key-i1"), tt.before)
	}
	none := moveOf(paid)
	none.Run.Run = "none"
	notFound(t, s.Transactions.MoveDebt(t.Context(), none))
}

func condemnRace(t *testing.T, s Stores) {
	before := serving("i1")
	seedTrio(t, s, before)
	errs := together(6, func(i int) error {
		mark := core.MarkReclaiming{Instance: "i1", LatestRun: "r1", By: string(rune('p' + i)), Now: 1}
		if _, err := s.Sandboxes.UpdateSandbox(t.Context(), "key-i1", mark); err != nil {
			return err
		}
		return s.Transactions.Condemn(t.Context(), condemn(mark.By))
	})
	got := readTrio(t, s, before, "key-i1")
	if got.box != nil || got.row.State != core.LedgerStopping {
		t.Errorf("row %s, record %v; want one attempt to get through: %v", got.row.State, got.box, errs)
	}
}

func launchCondemn(t *testing.T, s Stores) {
	before := trio{run: launching("i1"), row: intent("i1")}
	seedTrio(t, s, before)
	errs := together(2, func(i int) error {
		if i == 0 {
			return s.Transactions.Launch(t.Context(), launched("i1"))
		}
		return s.Transactions.Condemn(t.Context(), condemn(""))
	})
	oneWins(t, errs)
	got := readTrio(t, s, before, "key-i1")
	if serves := got.row.State == core.LedgerRunning; serves != (got.box != nil) || serves != (got.run.TaskARN != "") {
		t.Errorf("row %s, record there %t, run's task %q: a half", got.row.State, got.box != nil, got.run.TaskARN)
	}
}
