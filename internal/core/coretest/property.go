package coretest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/draw"
)

// transition is what core's three kinds of transition have in common.
type transition[R any] interface {
	Name() string
	Apply(R) (R, error)
	Landed(R) bool
}

// drawing makes transitions of one type: draw one that often fits the record,
// example one that is well-formed. shape, if there is one, brings every other record
// to where the rarer of the two answers is likely.
type drawing[R any, T transition[R]] struct {
	draw  func(rt *draw.T, r R) T
	shape func(rt *draw.T, r R) R
}

// shaped is r, or r in its shape.
func (d drawing[R, T]) shaped(rt *draw.T, r R) R {
	if d.shape == nil || booleans.Draw(rt, "any record") {
		return r
	}
	return d.shape(rt, r)
}

// example is a transition drawn for r with a fixed seed.
func (d drawing[R, T]) example(r R) T {
	return draw.Custom(func(rt *draw.T) T { return d.draw(rt, r) }).Example(1)
}

// access is how a store is asked about one kind of record.
type access[R any, T transition[R]] struct {
	record func(rt *draw.T, number int64) R
	seed   func(rt *draw.T, r R) error
	update func(rt *draw.T, r R, t T) (R, error)
	read   func(rt *draw.T, r R) (R, error)
}

// always are the transitions that no record refuses.
var always = map[string]bool{"Freeze": true, "Thaw": true, "NoteRun": true}

// number makes records of one test process distinct.
var number atomic.Int64

// conform checks that the store answers each transition exactly as core's Apply and
// Landed do, twice in a row, on random records.
func conform[R any, T transition[R]](t *testing.T, table map[string]drawing[R, T], store func(t *testing.T) access[R, T]) {
	for _, name := range slices.Sorted(maps.Keys(table)) {
		t.Run(name, func(t *testing.T) {
			a := store(t)
			bothAnswers(t, func(rt *draw.T) bool {
				before := table[name].shaped(rt, a.record(rt, number.Add(1)))
				transition := table[name].draw(rt, before)
				must(rt, a.seed(rt, before))
				after, accepted := expect(rt, a, before, transition)
				after, _ = expect(rt, a, after, transition)
				stored, err := a.read(rt, before)
				must(rt, err)
				equal(rt, "stored after "+name, stored, after)
				return accepted
			})
		})
	}
}

// expect carries t out on a record that is as before, and returns the record that
// must now be stored, and whether t was accepted.
func expect[R any, T transition[R]](rt *draw.T, a access[R, T], before R, t T) (R, bool) {
	got, err := a.update(rt, before, t)
	want, refusal := t.Apply(before)
	switch {
	case refusal == nil:
	case t.Landed(before):
		want = before
	default:
		sameRefusal(rt, err, refusal)
		return before, false
	}
	if err != nil {
		rt.Fatalf("%s %+v on\n%s\nerror = %v, want success", t.Name(), t, show(before), err)
	}
	equal(rt, fmt.Sprintf("%s %+v on\n%s\nanswer", t.Name(), t, show(before)), got, want)
	return want, refusal == nil
}

func sameRefusal(rt *draw.T, err, want error) {
	got, ok := errors.AsType[*core.RefusedError](err)
	if !ok || got.Error() != want.Error() {
		rt.Fatalf("error = %v, want %v", err, want)
	}
}

// RunTransitions checks every transition of a run record against core's own
// meaning of it.
func RunTransitions(t *testing.T, open Open) {
	conform(t, runTransitions, func(t *testing.T) access[core.Run, core.Transition] {
		s := open(t)
		return access[core.Run, core.Transition]{
			record: drawRun,
			seed:   func(rt *draw.T, r core.Run) error { return s.Seed.Run(rt.Context(), r) },
			update: func(rt *draw.T, r core.Run, t core.Transition) (core.Run, error) {
				if a, ok := t.(core.Append); ok {
					_, segment := piece(a.Epoch, a.From, strings.Repeat("x", int(a.End-a.From)))
					return s.Log.Append(rt.Context(), r.RunKey, a, segment)
				}
				return s.Runs.Update(rt.Context(), r.RunKey, t)
			},
			read: func(rt *draw.T, r core.Run) (core.Run, error) { return s.Runs.Run(rt.Context(), r.RunKey) },
		}
	})
}

// SandboxTransitions checks every transition of an instance record likewise.
func SandboxTransitions(t *testing.T, open Open) {
	conform(t, sandboxTransitions, func(t *testing.T) access[core.Sandbox, core.SandboxTransition] {
		s := open(t)
		return access[core.Sandbox, core.SandboxTransition]{
			record: drawSandbox,
			seed:   func(rt *draw.T, box core.Sandbox) error { return s.Seed.Sandbox(rt.Context(), box) },
			update: func(rt *draw.T, box core.Sandbox, t core.SandboxTransition) (core.Sandbox, error) {
				return s.Sandboxes.UpdateSandbox(rt.Context(), box.Key, t)
			},
			read: func(rt *draw.T, box core.Sandbox) (core.Sandbox, error) {
				return s.Sandboxes.Sandbox(rt.Context(), box.Key)
			},
		}
	})
}

// LedgerTransitions checks every transition of a ledger row likewise.
func LedgerTransitions(t *testing.T, open Open) {
	conform(t, ledgerTransitions, func(t *testing.T) access[core.LedgerRow, core.LedgerTransition] {
		s := open(t)
		return access[core.LedgerRow, core.LedgerTransition]{
			record: drawRow,
			seed:   func(rt *draw.T, row core.LedgerRow) error { return s.Seed.Row(rt.Context(), row) },
			update: func(rt *draw.T, row core.LedgerRow, t core.LedgerTransition) (core.LedgerRow, error) {
				return s.Ledger.UpdateRow(rt.Context(), row.Instance, t)
			},
			read: func(rt *draw.T, row core.LedgerRow) (core.LedgerRow, error) {
				return s.Ledger.Row(rt.Context(), row.Instance)
			},
		}
	})
}

// ControlTransitions checks every transition of the settings likewise.
func ControlTransitions(t *testing.T, open Open) {
	conform(t, controlTransitions, func(t *testing.T) access[core.Control, core.ControlTransition] {
		s := open(t)
		return access[core.Control, core.ControlTransition]{
			record: drawControl,
			seed:   func(rt *draw.T, c core.Control) error { return s.Seed.Control(rt.Context(), c) },
			update: func(rt *draw.T, _ core.Control, t core.ControlTransition) (core.Control, error) {
				return s.Settings.UpdateControl(rt.Context(), t)
			},
			read: func(rt *draw.T, _ core.Control) (core.Control, error) { return s.Controls.Control(rt.Context()) },
		}
	})
}

// RandomTransactions checks Launch, Condemn and MoveDebt against core's meaning of them, on
// random records.
func RandomTransactions(t *testing.T, open Open) {
	t.Run("Launched", func(t *testing.T) {
		s := open(t)
		bothAnswers(t, func(rt *draw.T) bool {
			before := drawTrio(rt)
			launch := drawLaunched(rt, before)
			seedTrio(rt, s, before)
			want, refusal := launchedTrio(before, launch)
			sameAnswer(rt, s.Transactions.Launch(rt.Context(), launch), refusal)
			equalTrio(rt, readTrio(rt, s, before, launch.Sandbox.Key), want)
			return refusal == nil
		})
	})
	t.Run("Condemn", func(t *testing.T) {
		s := open(t)
		bothAnswers(t, func(rt *draw.T) bool {
			before := drawTrio(rt)
			condemn := drawCondemn(rt, before)
			seedTrio(rt, s, before)
			want, refusal := condemnedTrio(before, condemn)
			sameAnswer(rt, s.Transactions.Condemn(rt.Context(), condemn), refusal)
			equalTrio(rt, readTrio(rt, s, before, condemn.Key), want)
			return refusal == nil
		})
	})
	t.Run("MoveDebt", func(t *testing.T) {
		s := open(t)
		bothAnswers(t, func(rt *draw.T) bool {
			before := indebted(rt, drawTrio(rt))
			move := drawMoveDebt(rt, before)
			seedTrio(rt, s, before)
			want, refusal := indebtedTrio(before, move)
			sameAnswer(rt, s.Transactions.MoveDebt(rt.Context(), move), refusal)
			equalTrio(rt, readTrio(rt, s, before, keyOf(rt, before)), want)
			return refusal == nil
		})
	})
}

// indebtedTrio is what core's own rules make of a debt's move.
func indebtedTrio(before trio, t core.MoveDebt) (trio, error) {
	run, err := t.ApplyRun(before.run)
	if err != nil {
		if t.Landed(before.run) {
			return before, nil
		}
		return before, err
	}
	row, err := t.ApplyRow(before.row)
	if err != nil {
		return before, err
	}
	return trio{run, row, before.box}, nil
}

// bothAnswers checks a property that tells whether its write was accepted, and that
// both answers were met, which by chance they are not where it runs a few times only.
func bothAnswers(t *testing.T, property func(rt *draw.T) bool) {
	t.Helper()
	const enough = 60
	met := map[bool]int{}
	draw.Check(t, func(rt *draw.T) { met[property(rt)]++ })
	if met[true]+met[false] < enough {
		return
	}
	if met[true] == 0 || met[false] == 0 && !always[t.Name()[strings.LastIndex(t.Name(), "/")+1:]] {
		t.Errorf("%d were accepted and %d refused, want some of both", met[true], met[false])
	}
}

func sameAnswer(rt *draw.T, err, refusal error) {
	if refusal == nil {
		must(rt, err)
		return
	}
	sameRefusal(rt, err, refusal)
}

// launchedTrio is what core's own rules make of a launch.
func launchedTrio(before trio, t core.Launched) (trio, error) {
	row, err := t.ApplyRow(before.row)
	if err != nil {
		if t.Landed(before.row) {
			return before, nil
		}
		return before, err
	}
	run, err := t.ApplyRun(before.run)
	if err != nil {
		return before, err
	}
	if before.box != nil {
		return before, &core.RefusedError{Op: t.Name(), Record: "sandbox " + string(t.Sandbox.Key), Why: "exists"}
	}
	return trio{run, row, &t.Sandbox}, nil
}

// condemnedTrio is what core's own rules make of a condemnation.
func condemnedTrio(before trio, t core.Condemn) (trio, error) {
	row, err := t.ApplyRow(before.row)
	if err != nil {
		if t.Landed(before.row) {
			return before, nil
		}
		return before, err
	}
	if err := t.CheckSandbox(before.box); err != nil {
		return before, err
	}
	after := trio{before.run, row, before.box}
	if t.By != "" {
		after.box = nil
	}
	return after, nil
}
