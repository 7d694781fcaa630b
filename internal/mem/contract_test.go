package mem_test

import (
	"context"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/core/coretest"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// stores is a process's view of a store as the contract's checks see it.
func stores(s *mem.Store, p *mem.Process) coretest.Stores {
	put := func(do func()) error { do(); return nil }
	return coretest.Stores{
		Runs: p, Log: p, Index: p, Sandboxes: p, Ledger: p, Transactions: p, Due: p, Blobs: p, Queue: p, Controls: p, Settings: p, Audit: p, Notes: p, Meters: p, Cursors: p, Budget: p, SpoolQuotas: p,
		Seed: coretest.Seed{
			Run:      func(_ context.Context, r core.Run) error { return put(func() { s.SeedRun(r) }) },
			Sandbox:  func(_ context.Context, box core.Sandbox) error { return put(func() { s.SeedSandbox(box) }) },
			Row:      func(_ context.Context, row core.LedgerRow) error { return put(func() { s.SeedRow(row) }) },
			Control:  func(_ context.Context, c core.Control) error { return put(func() { s.SetControl(c) }) },
			Audited:  func(context.Context, core.Millis) ([]core.AuditEntry, error) { return s.Audit(), nil },
			Received: func(context.Context, int) ([]core.ReclaimJob, error) { return s.TakeJobs(), nil },
		},
	}
}

func open(t *testing.T) coretest.Stores {
	s := mem.New(t)
	return stores(s, s.Process)
}

// openMuted is for checks that draw records which no real history leads to.
func openMuted(t *testing.T) coretest.Stores {
	s := mem.New(&complaints{TB: t})
	return stores(s, s.Process)
}

func TestContract(t *testing.T) {
	t.Run("Runs", func(t *testing.T) { coretest.Runs(t, open) })
	t.Run("RunLog", func(t *testing.T) { coretest.RunLog(t, open) })
	t.Run("RunIndex", func(t *testing.T) { coretest.RunIndex(t, open) })
	t.Run("Sandboxes", func(t *testing.T) { coretest.Sandboxes(t, open) })
	t.Run("Ledger", func(t *testing.T) { coretest.Ledger(t, openMuted) })
	t.Run("Quota", func(t *testing.T) { coretest.Quota(t, openMuted) })
	t.Run("Meters", func(t *testing.T) { coretest.Meters(t, openMuted) })
	t.Run("SandboxIndex", func(t *testing.T) { coretest.SandboxIndex(t, open) })
	t.Run("Transactions", func(t *testing.T) { coretest.Transactions(t, openMuted) })
	t.Run("Blobs", func(t *testing.T) { coretest.Blobs(t, open) })
	t.Run("ReclaimQueue", func(t *testing.T) { coretest.ReclaimQueue(t, open) })
	t.Run("Audit", func(t *testing.T) { coretest.Audit(t, open) })
	t.Run("Notes", func(t *testing.T) { coretest.Notes(t, open) })
	t.Run("Warnings", func(t *testing.T) { coretest.Warnings(t, open) })
	t.Run("Cursors", func(t *testing.T) { coretest.Cursors(t, open) })
	t.Run("Budget", func(t *testing.T) { coretest.Budget(t, open) })
	t.Run("SpoolQuotas", func(t *testing.T) { coretest.SpoolQuotas(t, open) })
	t.Run("Controls", func(t *testing.T) { coretest.Controls(t, open) })
}

func TestRandomRecords(t *testing.T) {
	t.Run("runs", func(t *testing.T) { coretest.RunTransitions(t, openMuted) })
	t.Run("sandboxes", func(t *testing.T) { coretest.SandboxTransitions(t, openMuted) })
	t.Run("ledger", func(t *testing.T) { coretest.LedgerTransitions(t, openMuted) })
	t.Run("control", func(t *testing.T) { coretest.ControlTransitions(t, open) })
	t.Run("transactions", func(t *testing.T) { coretest.RandomTransactions(t, openMuted) })
	t.Run("session transactions", func(t *testing.T) { coretest.SessionTransactions(t, openMuted) })
}

func TestFaultsOfBothKinds(t *testing.T) {
	faults := map[coretest.Fault]mem.Fault{coretest.NotLanded: mem.NotLanded, coretest.AnswerLost: mem.AnswerLost}
	coretest.Faults(t, func(t *testing.T, f coretest.Fault) (sound, broken coretest.Stores) {
		s := mem.New(t)
		return stores(s, s.Process), stores(s, s.NewProcess(mem.At(1, faults[f])))
	})
}
