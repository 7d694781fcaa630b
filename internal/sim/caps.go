package sim

import (
	"context"
	"errors"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

var errMeter = errors.New("read meter of tenant acme: it cannot be read")

// limitsOf are the limits that an actor was given: what a tenant may spend changes.
func (w *world) limitsOf(a *actor) core.Limits {
	l := w.limits
	l.TenantSpendCap = a.cap
	return l
}

// Spent lacks a tenant whose meter is broken, and notes what the actor learns.
func (p ports) Spent(ctx context.Context, tenants []core.TenantID, at core.Millis) (map[core.TenantID]core.Spending, error) {
	all, err := p.skewed.Spent(ctx, tenants, at)
	if err != nil {
		return nil, err
	}
	if _, asked := all["acme"]; asked && p.w.ecs.meter > now() {
		delete(all, "acme")
		err = errMeter
		p.w.met("a meter is broken")
	}
	for tenant, spending := range all {
		p.a.told[tenant] = spending.Spent
	}
	return all, err
}

// tenantSpent is what the tasks of a tenant have cost by a time, added up task by task
// where the code keeps sums. An episode is over long before its month is.
func (w *world) tenantSpent(tenant core.TenantID, at core.Millis) core.Dollars {
	var sum float64
	for _, row := range w.store.State().Rows {
		if row.Tenant != tenant || row.Metered.Price == 0 {
			continue
		}
		until := at
		if row.State == core.LedgerClosed {
			until = row.UpdatedAt
		}
		sum += float64(row.Metered.Price) * max(0, until.Sub(row.Metered.Since).Hours())
	}
	return core.Dollars(sum)
}

// tenantOverspent reports whether the tenant of a run has spent its cap, as the actor has
// it, and the actor knows.
func (w *world) tenantOverspent(a *actor, r core.Run, at core.Millis) bool {
	_, known := a.told[r.Tenant]
	over := known && a.cap != 0 && r.TaskARN != "" && w.tenantSpent(r.Tenant, at.Add(w.config.Skew))+1 >= a.cap
	if over {
		w.met("ended for its tenant's cap")
	}
	return over
}

// judgeCaps: a task is metered once, by its price, from when it was made.
func (w *world) judgeCaps(a *actor, call string) {
	if !w.config.Caps || call != "start meter" {
		return
	}
	for id, row := range w.oracle.state.Rows {
		was, is := w.oracle.metered[id], row.Metered
		if is == was {
			continue
		}
		w.oracle.metered[id] = is
		w.met("metered")
		off := is.Since.Sub(w.startOf(row.TaskARN).at)
		switch {
		case was != core.Metering{}:
			w.accuse("%s meters task %s twice", a.name, row.TaskARN)
		case is.Price != mem.TaskSize.Price() || off > w.config.Skew || off < -w.config.Skew:
			w.accuse("%s meters task %s at %s from %s after its beginning", a.name, row.TaskARN, is.Price, off)
		}
	}
}
