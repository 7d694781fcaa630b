package core

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// warning is an end of a run that comes soon, unless somebody does something.
type warning struct {
	// key names that end, so that it is warned of once, and again where it moves: its time
	// or, where a tenant's cap has no exact one, the begin of the tenant's month.
	key    Millis
	due    Millis // when the run will be ended; for a tenant's cap as things are now
	reason EndReason
	tenant bool // the cap is the tenant's
}

// warningOf is what a run is to be warned of at now: the first of its ends that comes
// within [Limits.ExpiringBefore]. A run that ends, or is to be ended now, or has a host, is
// not warned of. One whose end is due and that a freeze or the breaker keeps from it is: it
// ends with the thaw.
func warningOf(r Run, e evidence, now Millis, p policy) (warning, bool) {
	if r.Status.Terminal() || r.Ending != nil || r.CancelRequested != 0 || r.Sealed != nil || ending(r, e, now, p) != "" {
		return warning{}, false
	}
	soon := now.Add(p.limits.ExpiringBefore)
	w := warning{due: timeOver(r, p.limits), reason: EndExpired}
	if at := capAt(r, priceOf(r, e.task.Size), p.limits); at != 0 && (w.due == 0 || at < w.due) {
		w = warning{due: at, reason: EndSpendCap}
	}
	if r.Hold.Live(now) {
		w.due = max(w.due, r.Hold.Until)
	}
	w.key = w.due
	if w.due != 0 && w.due <= soon {
		return w, true
	}
	s, most := p.spending[r.Tenant], p.limits.TenantSpendCap
	if r.TaskARN == "" || r.Hold.Live(now) || s.Hourly <= 0 || !s.overIn(most, p.limits.ExpiringBefore) {
		return warning{}, false
	}
	left := time.Duration(float64(most-s.Spent) / float64(s.Hourly) * float64(time.Hour))
	return warning{key: MonthOf(now).begins(), due: now.Add(left), reason: EndSpendCap, tenant: true}, true
}

// timeOver is when the time of a run without a host is over; zero where it has none.
func timeOver(r Run, l Limits) Millis {
	switch {
	case r.Status == Interrupted && r.InterruptedSince != 0:
		return r.InterruptedSince.Add(seconds(r.PauseSeconds, l.PauseTTL))
	case r.Status == Running && r.DetachedSince != 0:
		return r.DetachedSince.Add(seconds(r.TTLSeconds, l.RunTTL))
	}
	return 0
}

// notice is the warning as other systems get it.
func (w warning) notice(r Run, now Millis, l Limits) Notice {
	return Notice{
		Type: NoticeExpiring, RunKey: r.RunKey, Thread: r.Thread, Status: r.Status, TaskARN: r.TaskARN, At: now,
		Reason: string(w.reason), Due: w.due, Command: w.command(r, now, l),
	}
}

// command is what an operator runs to have the run go on. A pause has no extension, and a
// tenant's cap is the stack's: both are held up, hours past the end.
func (w warning) command(r Run, now Millis, l Limits) string {
	op, rest := "extend", "--by "+hoursPast(now.Sub(w.due))
	most := RunCap(r, l)
	switch {
	case w.tenant, r.Status == Interrupted, r.Hold.Until != 0 && w.due == r.Hold.Until, w.reason == EndSpendCap && most >= MostDollars:
		op, rest = "hold", "--for "+hoursPast(w.due.Sub(now))
	case w.reason == EndSpendCap:
		rest = fmt.Sprintf("--spend-cap %g", min(2*most, MostDollars).USD())
	}
	return CommandLine(op, r.RunKey, rest+" --why '…'")
}

// hoursPast is some hours more than d, as long as holds may last.
func hoursPast(d time.Duration) string {
	return fmt.Sprintf("%dh", min(max(d, 0)/time.Hour+4, MaxHold/time.Hour))
}

// warn announces the ends that come soon. Order: the notice, then the mark that keeps it
// from being given again, so that a crash between gives it twice rather than never. The
// mark is a hint beside the record; it is written only where it is as read.
func (s *Sweep) warn(ctx context.Context, x *examination) {
	if s.Announcer == nil || !x.policy.acts {
		return
	}
	now := nowMillis()
	var mu sync.Mutex
	var due []warned
	var soon []int
	for i, r := range x.runs {
		d := decide(r, x.evidences[i], now, x.policy)
		_, ok := warningOf(r, x.evidences[i], now, x.policy)
		if ok && (d.act == actLeave && d.outcome != NotClaimed || d.act == actAsk) {
			soon = append(soon, i)
		}
	}
	pool(s.Limits.SweepWidth, len(soon), func(n int) {
		r := x.runs[soon[n]]
		w, _ := warningOf(r, x.evidences[soon[n]], now, x.policy)
		note, err := s.Notes.Note(ctx, r.RunKey)
		if err != nil {
			s.Logger.WarnContext(ctx, "note", "run", r.RunKey.String(), "err", err)
			return
		}
		if note.Warned != w.key {
			mu.Lock()
			defer mu.Unlock()
			due = append(due, warned{r.RunKey, note.Warned, w.key, w.notice(r, now, x.policy.limits)})
		}
	})
	s.giveWarnings(ctx, due)
}

// warned is a warning that is due, and the mark that it leaves.
type warned struct {
	run    RunKey
	was    Millis
	end    Millis
	notice Notice
}

// giveWarnings announces first and marks then.
func (s *Sweep) giveWarnings(ctx context.Context, due []warned) {
	if len(due) == 0 {
		return
	}
	notices := make([]Notice, len(due))
	for i, w := range due {
		notices[i] = w.notice
	}
	if err := s.Announcer.Announce(ctx, notices); err != nil {
		s.Logger.WarnContext(ctx, "announce", "err", err)
		return
	}
	pool(s.Limits.SweepWidth, len(due), func(n int) {
		if err := ignoreRefused(s.Notes.MarkWarned(ctx, due[n].run, due[n].was, due[n].end)); err != nil {
			s.Logger.WarnContext(ctx, "mark warned", "run", due[n].run.String(), "err", err)
		}
	})
}

// spending reads what the tenants of runs have spent, where they have a cap. What cannot
// be read is not known, and ends nothing.
func (s *Sweep) spending(ctx context.Context, runs []Run) map[TenantID]Spending {
	if s.Meters == nil || s.Limits.TenantSpendCap == 0 || len(runs) == 0 {
		return nil
	}
	seen := map[TenantID]bool{}
	var tenants []TenantID
	for _, r := range runs {
		if !seen[r.Tenant] {
			seen[r.Tenant] = true
			tenants = append(tenants, r.Tenant)
		}
	}
	all, err := s.Meters.Spent(ctx, tenants, nowMillis())
	if err != nil {
		s.Logger.WarnContext(ctx, "read meters", "err", err)
	}
	return all
}
