package coretest

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Quota checks that a tenant's rows are counted as [core.Ledger] says: in the write that
// puts them, until the write that closes them.
func Quota(t *testing.T, open Open) {
	counted := func(id string, tenant core.TenantID, quota int) core.LedgerRow {
		row := intent(core.InstanceID(id))
		row.Tenant, row.Quota = tenant, quota
		return row
	}
	put := func(t *testing.T, s Stores, row core.LedgerRow) error {
		_, err := s.Ledger.PutIntent(t.Context(), row)
		return err
	}
	closed := func(row core.LedgerRow) core.CloseRow {
		return core.CloseRow{From: core.LedgerIntent, Now: 9, Quota: row.Quota, Tenant: row.Tenant}
	}
	t.Run("A row above the quota is refused, and none is put", func(t *testing.T) {
		s := open(t)
		must(t, put(t, s, counted("a", "acme", 2)))
		must(t, put(t, s, counted("b", "acme", 2)))
		refusedAs(t, put(t, s, counted("c", "acme", 2)), "quota")
		_, err := s.Ledger.Row(t.Context(), "c")
		notFound(t, err)
		must(t, put(t, s, counted("b", "acme", 2)))   // it is there, and counted once
		must(t, put(t, s, counted("c", "acme", 3)))   // the limit is the asker's
		must(t, put(t, s, counted("d", "acme", 0)))   // not counted
		must(t, put(t, s, counted("e", "acme/b", 1))) // another's
	})
	t.Run("A closed row is counted no more, once", func(t *testing.T) {
		s := open(t)
		a := counted("a", "acme", 1)
		must(t, put(t, s, a))
		uncounted := closed(a)
		uncounted.Quota = 0
		_, err := s.Ledger.UpdateRow(t.Context(), "a", uncounted)
		refusedAs(t, err, "quota")
		refusedAs(t, put(t, s, counted("b", "acme", 1)), "quota")
		for range 2 { // the second is told from a loss
			row, err := s.Ledger.UpdateRow(t.Context(), "a", closed(a))
			must(t, err)
			equal(t, "state", row.State, core.LedgerClosed)
		}
		must(t, put(t, s, counted("b", "acme", 1)))
		refusedAs(t, put(t, s, counted("c", "acme", 1)), "quota")
	})
	t.Run("Many at once are no more than the quota", func(t *testing.T) {
		s := open(t)
		var in atomic.Int32
		together(8, func(i int) error {
			err := put(t, s, counted(fmt.Sprint("r", i), "acme", 3))
			if err == nil {
				in.Add(1)
			}
			return err
		})
		equal(t, "rows", in.Load(), int32(3))
		for i := range 8 { // as many may follow as close
			row, err := s.Ledger.Row(t.Context(), core.InstanceID(fmt.Sprint("r", i)))
			if err == nil {
				_, err = s.Ledger.UpdateRow(t.Context(), row.Instance, closed(row))
				must(t, err)
			}
		}
		for i := range 3 {
			must(t, put(t, s, counted(fmt.Sprint("s", i), "acme", 3)))
		}
		refusedAs(t, put(t, s, counted("s3", "acme", 3)), "quota")
	})
}
