package coretest

import (
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Meters checks that what a tenant's tasks cost is added up as [core.Meters] says: from the
// write that begins to meter a row's task until the write that closes the row, once each.
func Meters(t *testing.T, open Open) {
	t.Run("A task is metered from its begin to its row's end, once", func(t *testing.T) {
		s := open(t)
		seedRunning(t, s, "a", "acme")
		seedRunning(t, s, "b", "beta")
		for range 2 { // the second is told from a loss
			must(t, startMeter(t, s, "a", "acme", "2026-11-10T10:00:00Z"))
		}
		must(t, startMeter(t, s, "b", "beta", "2026-11-10T10:00:00Z"))
		equal(t, "after an hour", spentAt(t, s, "acme", "2026-11-10T11:00:00Z"), core.Spending{Spent: 60_000, Hourly: meterPrice})
		for range 2 {
			must(t, closeMetered(t, s, "a", "acme", "2026-11-10T11:30:00Z"))
		}
		equal(t, "after its end", spentAt(t, s, "acme", "2026-11-20T00:00:00Z"), core.Spending{Spent: 90_000})
		equal(t, "another tenant", spentAt(t, s, "beta", "2026-11-10T12:00:00Z"), core.Spending{Spent: 120_000, Hourly: meterPrice})
		equal(t, "the next month", spentAt(t, s, "acme", "2026-12-01T00:00:00Z"), core.Spending{})
	})
	t.Run("A task that lives over a month's end counts in each month for its part", func(t *testing.T) {
		s := open(t)
		seedRunning(t, s, "a", "acme")
		must(t, startMeter(t, s, "a", "acme", "2026-11-30T23:30:00Z"))
		equal(t, "in its month", spentAt(t, s, "acme", "2026-11-30T23:59:00Z"), core.Spending{Spent: 29_000, Hourly: meterPrice})
		equal(t, "in the next", spentAt(t, s, "acme", "2026-12-01T00:10:00Z"), core.Spending{Spent: 10_000, Hourly: meterPrice})
		must(t, closeMetered(t, s, "a", "acme", "2026-12-01T01:00:00Z"))
		equal(t, "after its end", spentAt(t, s, "acme", "2026-12-05T00:00:00Z"), core.Spending{Spent: 60_000})
	})
	t.Run("What many dear tasks cost at the end of a month overflows nothing", func(t *testing.T) {
		s := open(t)
		const dear = 2_000_000_000 // $2000 an hour: of 31 days, four are beyond 64 bits
		for _, id := range []core.InstanceID{"a", "b", "c", "d", "e", "f"} {
			seedRunning(t, s, id, "acme")
			_, err := s.Ledger.UpdateRow(t.Context(), id, core.StartMeter{Tenant: "acme", Metering: core.Metering{Price: dear, Since: moment(t, "2026-10-31T22:00:00Z")}})
			must(t, err)
		}
		equal(t, "after half an hour", spentAt(t, s, "acme", "2026-10-31T22:30:00Z"), core.Spending{Spent: 6 * dear / 2, Hourly: 6 * dear})
		for _, id := range []core.InstanceID{"a", "b", "c", "d"} {
			must(t, closeMetered(t, s, id, "acme", "2026-10-31T23:00:00Z"))
		}
		equal(t, "after an hour and a half", spentAt(t, s, "acme", "2026-10-31T23:30:00Z"), core.Spending{Spent: 4*dear + 2*dear*3/2, Hourly: 2 * dear})
	})
	t.Run("A row that is not as read is not metered, nor its meter stopped", func(t *testing.T) {
		s := open(t)
		seedRunning(t, s, "a", "acme")
		refusedAs(t, startMeter(t, s, "a", "beta", "2026-11-10T10:00:00Z"), "tenant")
		must(t, startMeter(t, s, "a", "acme", "2026-11-10T10:00:00Z"))
		refusedAs(t, startMeter(t, s, "a", "acme", "2026-11-10T09:00:00Z"), "metered")
		row, err := s.Ledger.Row(t.Context(), "a")
		must(t, err)
		row.State, row.DueAt = core.LedgerStopping, 1
		must(t, s.Seed.Row(t.Context(), row))
		_, err = s.Ledger.UpdateRow(t.Context(), "a", core.CloseRow{From: core.LedgerStopping, TaskARN: row.TaskARN, Now: moment(t, "2026-11-10T11:00:00Z")})
		refusedAs(t, err, "metered")
		equal(t, "spent", spentAt(t, s, "acme", "2026-11-10T11:00:00Z"), core.Spending{Spent: 60_000, Hourly: meterPrice})
	})
}

// meterPrice is what a task of these checks costs an hour: a minute is a thousand.
const meterPrice core.Dollars = 60_000

// moment reads a time.
func moment(t *testing.T, text string) core.Millis {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	must(t, err)
	return core.MillisOf(at)
}

// spentAt is what a tenant has spent by then, beside one that has no task.
func spentAt(t *testing.T, s Stores, tenant core.TenantID, now string) core.Spending {
	t.Helper()
	all, err := s.Meters.Spent(t.Context(), []core.TenantID{tenant, "nobody"}, moment(t, now))
	must(t, err)
	equal(t, "a tenant without tasks", all["nobody"], core.Spending{})
	return all[tenant]
}

// seedRunning puts the row of a task that runs.
func seedRunning(t *testing.T, s Stores, id core.InstanceID, tenant core.TenantID) {
	t.Helper()
	row := intent(id)
	row.Tenant, row.State, row.TaskARN, row.DueAt = tenant, core.LedgerRunning, "arn:task/"+string(id), 0
	must(t, s.Seed.Row(t.Context(), row))
}

func startMeter(t *testing.T, s Stores, id core.InstanceID, tenant core.TenantID, since string) error {
	_, err := s.Ledger.UpdateRow(t.Context(), id, core.StartMeter{Tenant: tenant, Metering: core.Metering{Price: meterPrice, Since: moment(t, since)}})
	return err
}

// closeMetered closes a row with what its task's meter says.
func closeMetered(t *testing.T, s Stores, id core.InstanceID, tenant core.TenantID, now string) error {
	row, err := s.Ledger.Row(t.Context(), id)
	must(t, err)
	if row.State == core.LedgerRunning {
		row.State, row.DueAt = core.LedgerStopping, 1
		must(t, s.Seed.Row(t.Context(), row))
	}
	_, err = s.Ledger.UpdateRow(t.Context(), id, core.CloseRow{
		From: core.LedgerStopping, TaskARN: row.TaskARN, Now: moment(t, now), Tenant: tenant, Metered: row.Metered,
	})
	return err
}
