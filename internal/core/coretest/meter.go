package coretest

import (
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Meters checks that what a tenant's tasks cost is added up as [core.Meters] says: from the
// write that begins to meter a row's task until the write that closes the row, once each.
func Meters(t *testing.T, open Open) {
	at := func(text string) core.Millis {
		moment, err := time.Parse(time.RFC3339, text)
		must(t, err)
		return core.MillisOf(moment)
	}
	const price core.Dollars = 60_000 // an hour: a minute is a thousand
	spent := func(t *testing.T, s Stores, tenant core.TenantID, now string) core.Spending {
		t.Helper()
		all, err := s.Meters.Spent(t.Context(), []core.TenantID{tenant, "nobody"}, at(now))
		must(t, err)
		equal(t, "a tenant without tasks", all["nobody"], core.Spending{})
		return all[tenant]
	}
	running := func(t *testing.T, s Stores, id core.InstanceID, tenant core.TenantID) {
		row := intent(id)
		row.Tenant, row.State, row.TaskARN, row.DueAt = tenant, core.LedgerRunning, "arn:task/"+string(id), 0
		must(t, s.Seed.Row(t.Context(), row))
	}
	start := func(t *testing.T, s Stores, id core.InstanceID, tenant core.TenantID, since string) error {
		_, err := s.Ledger.UpdateRow(t.Context(), id, core.StartMeter{Tenant: tenant, Metering: core.Metering{Price: price, Since: at(since)}})
		return err
	}
	end := func(t *testing.T, s Stores, id core.InstanceID, tenant core.TenantID, now string) error {
		row, err := s.Ledger.Row(t.Context(), id)
		must(t, err)
		if row.State == core.LedgerRunning {
			row.State, row.DueAt = core.LedgerStopping, 1
			must(t, s.Seed.Row(t.Context(), row))
		}
		_, err = s.Ledger.UpdateRow(t.Context(), id, core.CloseRow{
			From: core.LedgerStopping, TaskARN: row.TaskARN, Now: at(now), Tenant: tenant, Metered: row.Metered,
		})
		return err
	}
	t.Run("A task is metered from its begin to its row's end, once", func(t *testing.T) {
		s := open(t)
		running(t, s, "a", "acme")
		running(t, s, "b", "beta")
		for range 2 { // the second is told from a loss
			must(t, start(t, s, "a", "acme", "2026-11-10T10:00:00Z"))
		}
		must(t, start(t, s, "b", "beta", "2026-11-10T10:00:00Z"))
		equal(t, "after an hour", spent(t, s, "acme", "2026-11-10T11:00:00Z"), core.Spending{Spent: 60_000, Hourly: price})
		for range 2 {
			must(t, end(t, s, "a", "acme", "2026-11-10T11:30:00Z"))
		}
		equal(t, "after its end", spent(t, s, "acme", "2026-11-20T00:00:00Z"), core.Spending{Spent: 90_000})
		equal(t, "another tenant", spent(t, s, "beta", "2026-11-10T12:00:00Z"), core.Spending{Spent: 120_000, Hourly: price})
		equal(t, "the next month", spent(t, s, "acme", "2026-12-01T00:00:00Z"), core.Spending{})
	})
	t.Run("A task that lives over a month's end counts in each month for its part", func(t *testing.T) {
		s := open(t)
		running(t, s, "a", "acme")
		must(t, start(t, s, "a", "acme", "2026-11-30T23:30:00Z"))
		equal(t, "in its month", spent(t, s, "acme", "2026-11-30T23:59:00Z"), core.Spending{Spent: 29_000, Hourly: price})
		equal(t, "in the next", spent(t, s, "acme", "2026-12-01T00:10:00Z"), core.Spending{Spent: 10_000, Hourly: price})
		must(t, end(t, s, "a", "acme", "2026-12-01T01:00:00Z"))
		equal(t, "after its end", spent(t, s, "acme", "2026-12-05T00:00:00Z"), core.Spending{Spent: 60_000})
	})
	t.Run("What many dear tasks cost at the end of a month overflows nothing", func(t *testing.T) {
		s := open(t)
		const dear = 2_000_000_000 // $2000 an hour: of 31 days, four are beyond 64 bits
		for _, id := range []core.InstanceID{"a", "b", "c", "d", "e", "f"} {
			running(t, s, id, "acme")
			_, err := s.Ledger.UpdateRow(t.Context(), id, core.StartMeter{Tenant: "acme", Metering: core.Metering{Price: dear, Since: at("2026-10-31T22:00:00Z")}})
			must(t, err)
		}
		equal(t, "after half an hour", spent(t, s, "acme", "2026-10-31T22:30:00Z"), core.Spending{Spent: 6 * dear / 2, Hourly: 6 * dear})
		for _, id := range []core.InstanceID{"a", "b", "c", "d"} {
			must(t, end(t, s, id, "acme", "2026-10-31T23:00:00Z"))
		}
		equal(t, "after an hour and a half", spent(t, s, "acme", "2026-10-31T23:30:00Z"), core.Spending{Spent: 4*dear + 2*dear*3/2, Hourly: 2 * dear})
	})
	t.Run("A row that is not as read is not metered, nor its meter stopped", func(t *testing.T) {
		s := open(t)
		running(t, s, "a", "acme")
		refusedAs(t, start(t, s, "a", "beta", "2026-11-10T10:00:00Z"), "tenant")
		must(t, start(t, s, "a", "acme", "2026-11-10T10:00:00Z"))
		refusedAs(t, start(t, s, "a", "acme", "2026-11-10T09:00:00Z"), "metered")
		row, err := s.Ledger.Row(t.Context(), "a")
		must(t, err)
		row.State, row.DueAt = core.LedgerStopping, 1
		must(t, s.Seed.Row(t.Context(), row))
		_, err = s.Ledger.UpdateRow(t.Context(), "a", core.CloseRow{From: core.LedgerStopping, TaskARN: row.TaskARN, Now: at("2026-11-10T11:00:00Z")})
		refusedAs(t, err, "metered")
		equal(t, "spent", spent(t, s, "acme", "2026-11-10T11:00:00Z"), core.Spending{Spent: 60_000, Hourly: price})
	})
}
