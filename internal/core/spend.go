package core

import (
	"context"
	"fmt"
	"math"
	"time"
)

// Dollars is an amount of money in millionths of a dollar; zero, as a limit or a price,
// is "none" or "not known".
type Dollars int64

// dollar is one of them.
const dollar Dollars = 1_000_000

// MostDollars is the largest cap: far above any bill, and far below where sums overflow.
const MostDollars = 1_000_000 * dollar

// DollarsOf rounds an amount up, so that no price above zero becomes unknown.
func DollarsOf(usd float64) Dollars { return Dollars(math.Ceil(usd * float64(dollar))) }

// USD is the amount in dollars.
func (d Dollars) USD() float64 { return float64(d) / float64(dollar) }

// String is the amount for people.
func (d Dollars) String() string {
	if d != 0 && d < dollar {
		return fmt.Sprintf("$%.4f", d.USD())
	}
	return fmt.Sprintf("$%.2f", d.USD())
}

// check bounds a cap that somebody asks for.
func (d Dollars) check() error {
	if d < 0 || d > MostDollars {
		return fmt.Errorf("want dollars from 0 to %.0f, got %g", MostDollars.USD(), d.USD())
	}
	return nil
}

// Price is what an hour of a task costs by list price; zero where its size is not told.
func (s TaskSize) Price() Dollars {
	if s.VCPU <= 0 || s.GB <= 0 {
		return 0
	}
	return DollarsOf(s.Hourly())
}

// spentAt is what an hourly price comes to over a time.
func (d Dollars) spentAt(used time.Duration) Dollars {
	return Dollars(float64(d) * used.Hours())
}

// RunSpent is what a run has cost by now: from its start, by the price of its task. Zero
// where no price is known.
func RunSpent(r Run, price Dollars, now Millis) Dollars { return price.spentAt(RunTime(r, now)) }

// RunCap is what a run may cost; zero: any amount.
func RunCap(r Run, l Limits) Dollars {
	if r.SpendCap != 0 {
		return r.SpendCap
	}
	return l.RunSpendCap
}

// priceOf is the price on the record, else by what ECS says of the task, which knows of no
// public address.
func priceOf(r Run, task TaskSize) Dollars {
	if r.Price != 0 {
		return r.Price
	}
	task.PublicIPv4 = task.PublicIPv4 || r.PublicIP
	return task.Price()
}

// capAt is when a run will have cost its cap; zero where it has none, or no price is
// known.
func capAt(r Run, price Dollars, l Limits) Millis {
	most := RunCap(r, l)
	if most == 0 || price == 0 || r.TaskARN == "" || r.StartedAt == 0 {
		return 0
	}
	ms := math.Ceil(float64(most) / float64(price) * float64(time.Hour/time.Millisecond))
	return r.StartedAt + Millis(ms)
}

// Spending is what a tenant's sandboxes cost in a calendar month, UTC, by list prices: an
// estimate.
type Spending struct {
	Spent  Dollars // since the month began
	Hourly Dollars // of those that live
}

// over reports whether a tenant has spent its cap; inclusive.
func (s Spending) over(most Dollars) bool { return most > 0 && s.Spent >= most }

// overIn reports whether it will have within d, at the present price.
func (s Spending) overIn(most Dollars, d time.Duration) bool {
	return most > 0 && s.Spent+s.Hourly.spentAt(d) >= most
}

// overAt is when it will have, at the present price, which is above zero unless it has
// already.
func (s Spending) overAt(most Dollars, now Millis) Millis {
	if s.over(most) {
		return now
	}
	return now + Millis(math.Ceil(float64(most-s.Spent)/float64(s.Hourly)*float64(time.Hour/time.Millisecond)))
}

// Meters tell what tenants have spent.
type Meters interface {
	// Spent answers for each tenant that could be read; those of which nothing is metered have
	// the zero Spending. Any that could not be is missing, and an error beside the others.
	Spent(ctx context.Context, tenants []TenantID, now Millis) (map[TenantID]Spending, error)
}

// Metering is what a ledger row's task is metered by; the zero value is not metered.
type Metering struct {
	Price Dollars // an hour
	Since Millis
}

// StartMeter begins to meter the task of a ledger row: from when ECS made it, however late
// somebody asks. Its tenant's meter moves in the same write.
type StartMeter struct {
	Tenant TenantID // the row's
	Metering
}

// Name is "start meter".
func (StartMeter) Name() string { return "start meter" }

// Apply: the row is open and has a task, is the tenant's, and is not metered yet.
func (t StartMeter) Apply(row LedgerRow) (LedgerRow, error) {
	if why := failing(
		check{row.State == LedgerRunning, "state"},
		check{row.Tenant == t.Tenant, "tenant"},
		check{row.Metered == Metering{}, "metered"},
		check{t.Price > 0 && t.Since > 0, "price"},
	); why != "" {
		return ledgerRefusal(t, row, why)
	}
	row.Metered = t.Metering
	return row, nil
}

// Landed: it is metered as I said.
func (t StartMeter) Landed(row LedgerRow) bool { return row.Metered == t.Metering }

// Month is a calendar month, UTC, as a meter names it: 2026-11.
type Month string

// MonthOf is the month of a time.
func MonthOf(at Millis) Month { return Month(at.Time().UTC().Format("2006-01")) }

// begins is the month's first moment; zero for what is no month.
func (m Month) begins() Millis {
	at, err := time.Parse("2006-01", string(m))
	if err != nil {
		return 0
	}
	return MillisOf(at)
}

func (m Month) next() Month { return MonthOf(MillisOf(m.begins().Time().UTC().AddDate(0, 1, 0))) }

// MeterChange is what one task adds to the meter of a tenant's month. A meter is linear in
// time, so that its changes commute and only ever add: while a task lives its price is in
// the Burn of the month in which it began, and what it cost up to a time t of that month
// is Burn × (t − the month's begin) + Used.
type MeterChange struct {
	Month Month
	Burn  Dollars // an hour
	Used  int64   // Dollars an hour × milliseconds
}

// Opened is what the beginning of a metering adds.
func (m Metering) Opened() MeterChange {
	month := MonthOf(m.Since)
	return MeterChange{month, m.Price, -int64(m.Price) * int64(m.Since-month.begins())}
}

// Closed is what its end at a time adds: one change a month that it has touched.
func (m Metering) Closed(at Millis) []MeterChange {
	at = max(at, m.Since)
	first, last := MonthOf(m.Since), MonthOf(at)
	changes := []MeterChange{{Month: first, Burn: -m.Price}}
	for month := first; ; month = month.next() {
		until := min(at, month.next().begins())
		if month != first {
			changes = append(changes, MeterChange{Month: month})
		}
		changes[len(changes)-1].Used = int64(m.Price) * int64(until-month.begins())
		if month >= last {
			return changes
		}
	}
}

// MeterSum is the sum of the changes of a tenant's month. While many tasks live, what they
// used goes far below what 64 bits hold.
type MeterSum struct {
	Burn Dollars
	Used float64
}

// SpendingOf is what a tenant's meter tells at a time: by month, the sums of its changes.
// A task that began in an earlier month and lives counts from the month's begin on.
func SpendingOf(meter map[Month]MeterSum, now Millis) Spending {
	month := MonthOf(now)
	hours := float64(time.Hour / time.Millisecond)
	var s Spending
	total := meter[month].Used / hours
	for m, sum := range meter {
		if m <= month {
			s.Hourly += sum.Burn
			total += float64(sum.Burn) * float64(now-month.begins()) / hours
		}
	}
	s.Spent = Dollars(max(0, total))
	return s
}

// NotePrice writes what an hour of a run's task costs, once it is known.
type NotePrice struct {
	Epoch   int64
	TaskARN string // as read
	Price   Dollars
}

// Name is "note price".
func (NotePrice) Name() string { return "note price" }

// Apply: epoch mine, running, the task as read.
func (t NotePrice) Apply(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Running, "not-running"},
		check{r.Epoch == t.Epoch, "epoch"},
		check{r.TaskARN == t.TaskARN, "task"},
	); why != "" {
		return refusal(t, r, why)
	}
	r.Price = t.Price
	return r, nil
}

// Landed: under my epoch the price is mine.
func (t NotePrice) Landed(r Run) bool { return r.Epoch == t.Epoch && r.Price == t.Price }

// SetSpendCap changes what a run may cost. The claim of an end for its cap carries the cap
// as it read it, so that of the two one is refused (I8).
type SetSpendCap struct{ Cap Dollars }

// Name is "extend spend".
func (SetSpendCap) Name() string { return "extend spend" }

// Apply: running, not ending.
func (t SetSpendCap) Apply(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Running, "not-running"},
		check{r.Ending == nil, "ending"},
	); why != "" {
		return refusal(t, r, why)
	}
	r.SpendCap = t.Cap
	return r, nil
}

// Landed: the cap is mine, and in time.
func (t SetSpendCap) Landed(r Run) bool {
	return r.SpendCap == t.Cap && r.Status == Running && r.Ending == nil
}

// Spends puts prices to what runs and tenants use, where somebody has set a cap.
type Spends struct {
	Runs   Runs
	Ledger Ledger
	Tasks  TaskDescriber
	Meters Meters // nil: no tenant is metered
	Limits Limits
}

// capped reports whether what r costs matters to anybody.
func (s Spends) capped(r Run) bool { return RunCap(r, s.Limits) != 0 || s.metered() }

func (s Spends) metered() bool { return s.Meters != nil && s.Limits.TenantSpendCap != 0 }

// price asks ECS, once a run, what its task costs, and begins to meter the task. Order:
// the meter, then the price, which keeps it from being asked again. What ECS does not tell
// stays unknown, and is asked with the next renewal.
func (s Spends) price(ctx context.Context, r Run) (Run, error) {
	if r.Price != 0 || r.TaskARN == "" || !s.capped(r) {
		return r, nil
	}
	tasks, err := s.Tasks.Describe(ctx, r.Cluster, []string{r.TaskARN})
	if err != nil || len(tasks) != 1 {
		return r, err
	}
	price := priceOf(r, tasks[0].Size)
	if price == 0 {
		return r, nil
	}
	if s.metered() {
		since := tasks[0].CreatedAt
		if since == 0 {
			since = r.StartedAt
		}
		_, err := s.Ledger.UpdateRow(ctx, r.Instance, StartMeter{r.Tenant, Metering{price, since}})
		if err := ignoreNotFound(ignoreRefused(err)); err != nil {
			return r, err
		}
	}
	next, err := s.Runs.Update(ctx, r.RunKey, NotePrice{Epoch: r.Epoch, TaskARN: r.TaskARN, Price: price})
	if err != nil {
		return r, err
	}
	return next, nil
}

// tenant is what one tenant has spent; false where it is not metered.
func (s Spends) tenant(ctx context.Context, id TenantID, now Millis) (Spending, bool, error) {
	if !s.metered() {
		return Spending{}, false, nil
	}
	all, err := s.Meters.Spent(ctx, []TenantID{id}, now)
	if err != nil {
		return Spending{}, false, err
	}
	return all[id], true, nil
}

// reached is from when on a sweep has to look whether r, or its tenant at its present
// price, has spent a cap; zero where none applies. What cannot be told may be reached
// already: the sweep, which asks again, ends nothing for it.
func (s Spends) reached(ctx context.Context, r Run, now Millis) (Millis, error) {
	at := capAt(r, r.Price, s.Limits)
	if r.TaskARN != "" && r.Price == 0 && RunCap(r, s.Limits) != 0 {
		at = now
	}
	tenant, metered, err := s.tenant(ctx, r.Tenant, now)
	switch {
	case err != nil:
		return now, err
	case !metered || tenant.Hourly <= 0 && !tenant.over(s.Limits.TenantSpendCap):
		return at, nil
	}
	if tenants := tenant.overAt(s.Limits.TenantSpendCap, now); at == 0 || tenants < at {
		at = tenants
	}
	return at, nil
}

// SpendView is what a run and its tenant have cost by now, as hosts see it; dollars.
type SpendView struct {
	USD       float64 `json:"usd"`                 // of the run
	CapUSD    float64 `json:"capUSD,omitempty"`    // of the run; absent: none
	CapAt     Millis  `json:"capAt,omitempty"`     // when the run will have cost that
	TenantUSD float64 `json:"tenantUSD,omitempty"` // of the tenant, this calendar month, UTC
	TenantCap float64 `json:"tenantCapUSD,omitempty"`
	// Over says that a cap is reached: once its host leaves or pauses it, the next sweep
	// ends the run.
	Over bool `json:"over,omitempty"`
}

// view is what a host is told of its run; nil where no cap applies. What cannot be read is
// not told: it keeps no run from going on.
func (s Spends) view(ctx context.Context, r Run, now Millis) (*SpendView, error) {
	if !s.capped(r) {
		return nil, nil
	}
	most := RunCap(r, s.Limits)
	spent := RunSpent(r, r.Price, now)
	v := &SpendView{USD: spent.USD(), CapUSD: most.USD(), CapAt: capAt(r, r.Price, s.Limits)}
	v.Over = v.CapAt != 0 && now >= v.CapAt
	tenant, metered, err := s.tenant(ctx, r.Tenant, now)
	if metered {
		v.TenantUSD, v.TenantCap = tenant.Spent.USD(), s.Limits.TenantSpendCap.USD()
		v.Over = v.Over || tenant.over(s.Limits.TenantSpendCap)
	}
	return v, err
}
