package core_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// metered is what is said in place of a world's meters. With an error nothing is.
type metered struct {
	spending core.Spending
	err      error
}

func (m metered) Spent(_ context.Context, tenants []core.TenantID, _ core.Millis) (map[core.TenantID]core.Spending, error) {
	all := map[core.TenantID]core.Spending{}
	for _, tenant := range tenants {
		if m.err == nil {
			all[tenant] = m.spending
		}
	}
	return all, m.err
}

// halfMetered tells of every tenant but one.
type halfMetered struct {
	metered
	broken core.TenantID
}

func (m halfMetered) Spent(ctx context.Context, tenants []core.TenantID, now core.Millis) (map[core.TenantID]core.Spending, error) {
	all, _ := m.metered.Spent(ctx, tenants, now)
	delete(all, m.broken)
	return all, errors.New("one of them is broken")
}

// TestABrokenMeterLiftsNoOthersCap: what cannot be read of one tenant ends none of its runs,
// and keeps no other tenant's from ending.
func TestABrokenMeterLiftsNoOthersCap(t *testing.T) {
	for broken, want := range map[core.TenantID]core.Outcome{"umbra": core.Expired, "acme": core.Producing} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.limits.TenantSpendCap = 5
			w.left("r", "works\n")
			s := w.sweep(w.store.Process)
			s.Meters = halfMetered{metered{spending: core.Spending{Spent: 5}}, broken}
			report, err := s.Run(t.Context(), core.SweepRequest{})
			if got := outcomes(report)["r"]; err != nil || got != want {
				t.Errorf("the meter of %s is broken: a run of acme is %s, %v; want %s", broken, got, err, want)
			}
		})
	}
}

// hourly is what an hour of a world's task costs.
var hourly = mem.TaskSize.Price()

// TestWhatARunMayCost: a spend cap ends a run as its time does, inclusive, and what is not
// known ends nothing.
func TestWhatARunMayCost(t *testing.T) {
	sized := core.Task{Life: core.TaskLives, Size: mem.TaskSize}
	costs := func(most core.Dollars) func(r *core.Run) { // after its hour
		return func(r *core.Run) { r.SpendCap, r.TTLSeconds = most, 9*3600 }
	}
	priced := func(most, price core.Dollars) func(r *core.Run) {
		return both(costs(most), func(r *core.Run) { r.Price = price })
	}
	over := metered{spending: core.Spending{Spent: 5_000_000}}
	tests := []struct {
		judgement
		runCap, tenantCap core.Dollars
		meters            core.Meters
	}{
		{judgement: judgement{what: "a run ends when its cap is exactly reached", run: costs(hourly), task: sized, want: core.Expired, why: "spend-cap"}},
		{judgement: judgement{what: "a run goes on below its cap", run: costs(hourly + 1), task: sized, want: core.Producing, asked: true}},
		{judgement: judgement{what: "a run without a cap of its own has the installation's", task: sized, want: core.Expired, why: "spend-cap"}, runCap: hourly},
		{judgement: judgement{what: "a run's own cap may be higher", run: costs(2 * hourly), task: sized, want: core.Producing, asked: true}, runCap: hourly},
		{judgement: judgement{what: "a run without any cap may cost what it likes", task: sized, want: core.Producing, asked: true}},
		{judgement: judgement{what: "a run of which ECS tells no size is not ended for its cap", run: costs(1), want: core.Producing, asked: true}},
		{judgement: judgement{what: "a run whose price is on its record needs no size", run: priced(7, 7), want: core.Expired, why: "spend-cap"}},
		{judgement: judgement{what: "the price on the record goes before ECS's size", run: priced(8, 7), task: sized, want: core.Producing, asked: true}},
		{judgement: judgement{what: "a run without a task costs nothing", run: both(priced(1, 7), unlaunchedRun), row: core.LedgerIntent, want: core.Unknown, why: "launch-intent"}},
		{judgement: judgement{what: "an expiry goes before a cap", run: both(priced(1, 7), expiredRun), want: core.Expired, why: "expired"}},
		{judgement: judgement{what: "a cancel goes before a cap", run: both(priced(1, 7), cancelledByUser), want: core.Cancelled}},
		{judgement: judgement{what: "a held run is not ended for its cap", run: both(priced(1, 7), func(r *core.Run) { r.Hold.Until = now() + 1 }), want: core.Held, why: "held", asked: true}},
		{judgement: judgement{what: "a hold that is just over holds no more", run: both(priced(1, 7), func(r *core.Run) { r.Hold.Until = now() }), want: core.Expired, why: "spend-cap"}},
		{judgement: judgement{what: "a frozen installation ends no run for its cap", run: priced(1, 7), control: frozen, want: core.Held, why: "frozen", asked: true}},
		{judgement: judgement{what: "a tripped breaker ends no run for its cap", run: priced(1, 7), control: tripped, want: core.Held, why: "breaker", asked: true}},
		{judgement: judgement{what: "a frozen installation does not go on with the end for a cap", run: endingRun(core.EndSpendCap), control: frozen, want: core.Held, why: "frozen"}},
		{judgement: judgement{what: "a paused run costs too", run: both(paused(time.Minute, core.RowPause), func(r *core.Run) { r.SpendCap, r.Price = 1, 7 }), want: core.Expired, why: "spend-cap"}},

		{judgement: judgement{what: "a run ends whose tenant has spent its cap", want: core.Expired, why: "spend-cap"}, tenantCap: 5_000_000, meters: over},
		{judgement: judgement{what: "a run goes on whose tenant is below its cap", want: core.Producing, asked: true}, tenantCap: 5_000_001, meters: over},
		{judgement: judgement{what: "a tenant without a cap may spend what it likes", want: core.Producing, asked: true}, meters: over},
		{judgement: judgement{what: "a meter that cannot be read ends nothing", want: core.Producing, asked: true}, tenantCap: 1, meters: metered{over.spending, errors.New("throttled")}},
		{judgement: judgement{what: "a tenant's cap ends no run without a task", run: unlaunchedRun, row: core.LedgerIntent, want: core.Unknown, why: "launch-intent"}, tenantCap: 1, meters: over},
	}
	for _, tt := range tests {
		t.Run(tt.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.limits = func(l *core.Limits) { l.RunSpendCap, l.TenantSpendCap = tt.runCap, tt.tenantCap }
				tt.judgement.meters = tt.meters
				tt.check(t)
			})
		})
	}
}

// TestACapRaisedMeanwhileIsHonoured: what led to the claim is part of its condition (I8).
func TestACapRaisedMeanwhileIsHonoured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.limits.RunSpendCap = hourly
		w.left("r", "works\n")
		time.Sleep(time.Hour)
		operator := w.operator()
		raised := false
		p := w.store.NewProcess(mem.Faults{Before: func(_ context.Context, name string) {
			if name == "claim" && !raised {
				raised = true
				if err := operator.ExtendSpend(t.Context(), key("r"), 3*hourly, core.By{Who: "ops", Why: "nearly done"}); err != nil {
					t.Error(err)
				}
			}
		}})
		report, err := w.sweep(p).Run(t.Context(), core.SweepRequest{})
		if err != nil || outcomes(report)["r"] != core.NotClaimed || !w.fleet.Alive("r") {
			t.Errorf("outcome %v, %v; the agent lives: %v", outcomes(report), err, w.fleet.Alive("r"))
		}
		if got := outcomes(w.tick())["r"]; got != core.Producing {
			t.Errorf("with the new cap: %s", got)
		}
		time.Sleep(2 * time.Hour)
		if got := outcomes(w.tick())["r"]; got != core.Expired {
			t.Errorf("at the new cap: %s", got)
		}
		w.tick()
		w.ended("r", core.Aborted, "works\n")
		if r := w.run("r"); r.Error.Code != "spend-cap" || r.Ending.Reason != core.EndSpendCap {
			t.Errorf("ended as %+v, %+v", r.Error, r.Ending)
		}
		if told := w.notices[len(w.notices)-1]; told.Type != core.NoticeExpired || told.Reason != "spend-cap" {
			t.Errorf("told %+v", told)
		}
	})
}

// TestAnAttachedRunIsNeverEndedForItsCap: its host is told, and the sweep has no say.
func TestAnAttachedRunIsNeverEndedForItsCap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.limits.RunSpendCap = hourly
		r := w.begin("r", nil)
		session := &core.Session{Launcher: w.launcher(w.store.Process)}
		var report core.RenewReport
		for range 61 {
			var err error
			if report, err = session.Renew(t.Context(), core.HostRequest{RunKey: r.RunKey, Host: "host-r-of-the-run"}); err == nil {
				t.Fatal("a host renewed that has no claim")
			}
			if report, err = session.Renew(t.Context(), core.HostRequest{RunKey: r.RunKey, Host: hostNonce("r")}); err != nil {
				t.Fatal(err)
			}
			if got := outcomes(w.tick())["r"]; got != "" {
				t.Fatalf("the sweep answered %s", got)
			}
			time.Sleep(time.Minute)
		}
		want := core.SpendView{USD: hourly.USD(), CapUSD: hourly.USD(), CapAt: r.StartedAt.Add(time.Hour), Over: true}
		if report.Spend == nil || *report.Spend != want {
			t.Errorf("renew answers %+v, want %+v", report.Spend, want)
		}
		w.detach("r")
		if got := outcomes(w.tick())["r"]; got != core.Expired {
			t.Errorf("left by its host: %s", got)
		}
	})
}

// TestATenantsMonth: what its sandboxes cost is metered from start to stop, refuses a
// start, and ends what runs without a host; the next month it begins anew.
func TestATenantsMonth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2000, 1, 31, 20, 0, 0, 0, time.UTC)))
		w := newWorld(t)
		w.limits.TenantSpendCap, w.limits.RunTTL = 2*hourly, 24*time.Hour
		for _, run := range []string{"a", "b"} {
			w.begin(run, nil)
			session := &core.Session{Launcher: w.launcher(w.store.Process)}
			if _, err := session.Renew(t.Context(), core.HostRequest{RunKey: key(run), Host: hostNonce(run)}); err != nil {
				t.Fatal(err)
			}
			w.detach(run)
		}
		w.tick()
		time.Sleep(30 * time.Minute)
		w.tick()
		if got := w.told(core.NoticeExpiring); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("half an hour before the cap, warned of %v", got)
		}
		time.Sleep(30*time.Minute - time.Second)
		if got := outcomes(w.tick()); got["a"] != core.Producing || got["b"] != core.Producing {
			t.Errorf("a second before the cap: %v", got)
		}
		time.Sleep(2 * time.Second)
		if got := outcomes(w.tick()); got["a"] != core.Expired || got["b"] != core.Expired {
			t.Errorf("at the cap: %v", got)
		}
		time.Sleep(time.Minute)
		w.tick()
		spent, err := w.store.Spent(t.Context(), []core.TenantID{"acme"}, now())
		if err != nil || spent["acme"].Hourly != 0 || spent["acme"].Spent < 2*hourly || spent["acme"].Spent > 2*hourly+hourly/20 {
			t.Errorf("metered %+v, %v: want two hours and no more", spent["acme"], err)
		}
		time.Sleep(3 * time.Hour) // February
		if spent, err = w.store.Spent(t.Context(), []core.TenantID{"acme"}, now()); err != nil || spent["acme"] != (core.Spending{}) {
			t.Errorf("the next month begins with %+v, %v", spent["acme"], err)
		}
	})
}

// TestARunIsWarnedOfItsEnd once, and again where its end was put off.
func TestARunIsWarnedOfItsEnd(t *testing.T) {
	warnings := func(w *world) (out []core.Notice) {
		for _, n := range w.notices {
			if n.Type == core.NoticeExpiring {
				out = append(out, n)
			}
		}
		return out
	}
	by := core.By{Who: "ops", Why: "look"}
	tests := []struct {
		what   string
		limits func(l *core.Limits)
		later  func(w *world) error
		want   string // in the command
		again  string
	}{
		{what: "its time", limits: func(*core.Limits) {}, want: "sandkeeper extend 'acme/r' --by 4h", again: "extend",
			later: func(w *world) error { o := w.operator(); return o.Extend(w.t.Context(), key("r"), 9*3600, by) }},
		{what: "its cap", limits: func(l *core.Limits) { l.RunSpendCap = hourly }, want: "sandkeeper extend 'acme/r' --spend-cap", again: "extend",
			later: func(w *world) error { o := w.operator(); return o.ExtendSpend(w.t.Context(), key("r"), 3*hourly, by) }},
		{what: "the end of a hold", limits: func(*core.Limits) {}, want: "extend 'acme/r' --by 4h", again: "hold 'acme/r'",
			later: func(w *world) error {
				o := w.operator()
				return o.Hold(w.t.Context(), key("r"), now().Add(9*time.Hour), by)
			}},
	}
	for _, tt := range tests {
		t.Run(tt.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				tt.limits(&w.limits)
				w.left("r", "works\n")
				until := func(n int) core.Notice {
					for range 1000 {
						if got := warnings(w); len(got) >= n {
							for range 5 {
								w.tick()
								time.Sleep(time.Minute)
							}
							if got := warnings(w); len(got) != n {
								t.Fatalf("warned %d times, want %d: %+v", len(got), n, got)
							}
							return got[n-1]
						}
						w.tick()
						time.Sleep(time.Minute)
					}
					t.Fatalf("never warned %d times", n)
					return core.Notice{}
				}
				n := until(1)
				if !strings.HasPrefix(n.Command, "sandkeeper ") || !strings.Contains(n.Command, tt.want) || n.Due.Sub(n.At) > w.limits.ExpiringBefore || n.Due.Sub(n.At) < 29*time.Minute {
					t.Errorf("warned %+v, %s before", n, n.Due.Sub(n.At))
				}
				if err := tt.later(w); err != nil {
					t.Fatal(err)
				}
				if n := until(2); !strings.Contains(n.Command, tt.again) {
					t.Errorf("warned again %+v", n)
				}
				for w.run("r").Status == core.Running {
					w.tick()
					time.Sleep(time.Minute)
				}
				if n := len(warnings(w)); n != 2 {
					t.Errorf("warned %d times in all", n)
				}
			})
		})
	}
}

// TestAWarningComesAtLeastOnce: it is marked after it was given, so that neither an event
// bus that fails nor a crash loses it.
func TestAWarningComesAtLeastOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.left("r", "works\n")
		time.Sleep(w.limits.RunTTL - w.limits.ExpiringBefore)
		s := w.sweep(w.store.Process)
		s.Announcer = deafBus{}
		if _, err := s.Run(t.Context(), core.SweepRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.sweep(w.failing("mark warned")).Run(t.Context(), core.SweepRequest{}); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			w.tick()
		}
		if got := w.told(core.NoticeExpiring); !slices.Equal(got, []string{"r", "r"}) {
			t.Errorf("told of %v: once by the sweep that could not mark, and once by the next", got)
		}
		w.store.SetControl(core.Control{Mode: core.Observe})
		w.notices = nil
		w.left("other", "works\n")
		time.Sleep(w.limits.RunTTL - time.Minute)
		w.tick()
		if got := w.told(core.NoticeExpiring); len(got) != 0 {
			t.Errorf("an installation that observes told of %v", got)
		}
	})
}

// deafBus takes no notice.
type deafBus struct{}

func (deafBus) Announce(context.Context, []core.Notice) error { return errors.New("throttled") }

// hostOf is the host of a run that the world has begun.
func hostNonce(run string) string { return "host-" + run + "-0123456789" }

// TestAStartPricesItsTask where somebody has set a cap, and is refused where its tenant has
// spent the month's.
func TestAStartPricesItsTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		h.limits.TenantSpendCap = hourly / 2
		capped := func() *core.Session {
			s := h.session(h.store.Process)
			s.Launcher.Limits, s.Launcher.Meters = h.limits, h.store
			return s
		}
		q := ofThread("one")
		d := *q.Definition
		d.SpendCapUSD = 2
		q.Definition = &d
		report, err := capped().Start(t.Context(), q)
		h.must(err)
		if r := h.run("one"); report.State != core.Ready || r.Price != hourly || r.SpendCap != core.DollarsOf(2) {
			t.Errorf("started %+v: it costs %s an hour, and may cost %s", report.State, r.Price, r.SpendCap)
		}
		_, err = capped().Start(t.Context(), ofThread("two"))
		h.must(err)
		time.Sleep(15 * time.Minute) // of two tasks
		_, err = capped().Start(t.Context(), ofThread("three"))
		refusedFor(t, "start above the tenant's cap", err, "spend-cap")
		s := capped()
		s.Launcher.Meters = metered{err: errors.New("throttled")}
		_, err = s.Start(t.Context(), ofThread("three"))
		h.must(err) // unknown refuses nothing
		h.check()
	})
}

// TestAPausedRunIsWarnedOfItsEnd too: sweeps look at it before its pause is over, or its
// cap reached, and leave it alone until then.
func TestAPausedRunIsWarnedOfItsEnd(t *testing.T) {
	for what, row := range map[string]struct {
		most core.Dollars
		ends func(w *world) time.Duration
	}{
		"its pause": {ends: func(w *world) time.Duration { return w.limits.PauseTTL }},
		"its cap":   {most: 10 * hourly, ends: func(*world) time.Duration { return 10 * time.Hour }},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.limits.RunSpendCap = row.most
				w.begin("r", nil)
				session := &core.Session{Launcher: w.launcher(w.store.Process)}
				host := core.HostRequest{RunKey: key("r"), Host: hostNonce("r")}
				for _, do := range []func(context.Context, core.HostRequest) (core.RenewReport, error){session.Renew, session.Interrupt} {
					if _, err := do(t.Context(), host); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(row.ends(w) - w.limits.ExpiringBefore - time.Minute)
				w.tick()
				if got := w.told(core.NoticeExpiring); len(got) != 0 {
					t.Errorf("too early, warned of %v", got)
				}
				for range 30 {
					time.Sleep(time.Minute)
					if got := outcomes(w.tick())["r"]; got != core.Producing {
						t.Fatalf("the sweep answered %s", got)
					}
				}
				if got := w.told(core.NoticeExpiring); !slices.Equal(got, []string{"r"}) || !strings.Contains(w.notices[0].Command, "hold 'acme/r'") {
					t.Errorf("warned of %v: %+v", got, w.notices)
				}
				time.Sleep(time.Minute)
				if got := outcomes(w.tick())["r"]; got != core.Expired {
					t.Errorf("at its end: %s", got)
				}
			})
		})
	}
}

// TestAPausedRunEndsAtACap: a sweep looks at it when a cap is reached, though its pause
// lasts longer; where what it costs could not be told when it was paused, from then on.
func TestAPausedRunEndsAtACap(t *testing.T) {
	lost := errors.New("throttled")
	for what, row := range map[string]struct {
		own, tenant core.Dollars
		unpriced    bool
		meter       error // as the pause begins
		before      time.Duration
		ends        time.Duration // after the pause begins
	}{
		"its tenant's, reached already":    {tenant: hourly, before: time.Hour, ends: time.Minute},
		"its tenant's, in time":            {tenant: 5 * hourly, ends: 5 * time.Hour},
		"its tenant's, of a lost meter":    {tenant: 5 * hourly, meter: lost, ends: 5 * time.Hour},
		"its own, of a price not known":    {own: 5 * hourly, unpriced: true, ends: 5 * time.Hour},
		"its own, the tenant's comes late": {own: 3 * hourly, tenant: 9 * hourly, ends: 3 * time.Hour},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.limits.RunSpendCap, w.limits.TenantSpendCap, w.limits.Attachment = row.own, row.tenant, 2*time.Hour
				w.begin("r", nil)
				session := &core.Session{Launcher: w.launcher(w.store.Process)}
				host := core.HostRequest{RunKey: key("r"), Host: hostNonce("r")}
				if row.unpriced {
					session.Launcher.Describer = noDescriber{}
				} else if _, err := session.Renew(t.Context(), host); err != nil {
					t.Fatal(err)
				}
				time.Sleep(row.before)
				if row.meter != nil {
					session.Launcher.Meters = metered{err: row.meter}
				}
				if _, err := session.Interrupt(t.Context(), host); err != nil {
					t.Fatal(err)
				}
				time.Sleep(row.ends - time.Minute)
				if got := outcomes(w.tick())["r"]; row.ends > time.Minute && got != core.Producing {
					t.Errorf("a minute before the cap: %q", got)
				}
				time.Sleep(2 * time.Minute)
				if got, r := outcomes(w.tick())["r"], w.run("r"); row.ends > time.Minute && got != core.Expired || r.Ending == nil || r.Ending.Reason != core.EndSpendCap {
					t.Errorf("at the cap: %q, ending %+v", got, r.Ending)
				}
			})
		})
	}
}

// noDescriber tells nothing of any task.
type noDescriber struct{ core.TaskDescriber }

func (noDescriber) Describe(context.Context, string, []string) ([]core.Task, error) {
	return nil, errors.New("throttled")
}

// TestALatePriceHasThePublicAddress: where ECS tells a task's size only after its start,
// renewals and sweeps price it with the address that its definition gave it.
func TestALatePriceHasThePublicAddress(t *testing.T) {
	size := mem.TaskSize
	size.PublicIPv4 = true
	for _, public := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			h := newHosting(t)
			h.limits.RunSpendCap = 2 * hourly
			s := h.session(h.store.Process)
			s.Launcher.Limits = h.limits
			describer := s.Launcher.Describer
			s.Launcher.Describer = noDescriber{}
			q := ofThread("one")
			d := *q.Definition
			d.Task.AssignPublicIP = public
			q.Definition = &d
			_, err := s.Start(t.Context(), q)
			h.must(err)
			if r := h.run("one"); r.Price != 0 || r.PublicIP != public {
				t.Fatalf("started with the price %s, public %t", r.Price, r.PublicIP)
			}
			s.Launcher.Describer = describer
			_, err = s.Renew(t.Context(), core.HostRequest{RunKey: q.RunKey, Host: q.Host})
			h.must(err)
			want := hourly
			if public {
				want = size.Price()
			}
			if r := h.run("one"); r.Price != want {
				t.Errorf("public %t: it costs %s an hour, want %s", public, r.Price, want)
			}
			h.check()
		})
	}
}
