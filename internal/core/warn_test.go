package core_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// obey carries out the command of a warning as the operator's tool does.
func (w *world) obey(command string) {
	w.t.Helper()
	parts := regexp.MustCompile(`^sandkeeper (hold|extend) 'acme/r' (--for|--by|--spend-cap) (\S+) --why '…'$`).FindStringSubmatch(command)
	if parts == nil {
		w.t.Fatalf("told %q", command)
	}
	o, by := w.operator(), core.By{Who: "ops", Why: "look"}
	d, err := time.ParseDuration(parts[3])
	switch parts[1] + parts[2] {
	case "hold--for":
		if err == nil {
			err = o.Hold(w.t.Context(), key("r"), now().Add(d), by)
		}
	case "extend--by":
		if err == nil {
			ttl := time.Duration(w.run("r").TTLSeconds) * time.Second
			if ttl == 0 {
				ttl = w.limits.RunTTL
			}
			err = o.Extend(w.t.Context(), key("r"), int64((ttl+d)/time.Second), by)
		}
	case "extend--spend-cap":
		var usd float64
		if usd, err = strconv.ParseFloat(parts[3], 64); err == nil {
			err = o.ExtendSpend(w.t.Context(), key("r"), core.DollarsOf(usd), by)
		}
	default:
		w.t.Fatalf("told %q", command)
	}
	if err != nil {
		w.t.Errorf("%s: %v", command, err)
	}
}

// warning lets time pass until the run r is warned of its end, or is ended: none then.
func (w *world) warning() (told core.Notice) {
	for told.Type == "" && w.run("r").Ending == nil {
		time.Sleep(10 * time.Minute)
		w.tick()
		for _, n := range w.notices {
			if n.Type == core.NoticeExpiring {
				told = n
			}
		}
	}
	return told
}

// TestTheCommandOfAWarningPutsTheEndOff, however long before the end it is told, and
// whatever end that is.
func TestTheCommandOfAWarningPutsTheEndOff(t *testing.T) {
	detached := func(w *world) { w.left("r", "works\n") }
	priced := func(then func(*world, *core.Session, core.HostRequest)) func(w *world) {
		return func(w *world) {
			w.begin("r", nil)
			session, host := &core.Session{Launcher: w.launcher(w.store.Process)}, core.HostRequest{RunKey: key("r"), Host: hostNonce("r")}
			if _, err := session.Renew(w.t.Context(), host); err != nil {
				w.t.Fatal(err)
			}
			then(w, session, host)
		}
	}
	ends := map[string]struct {
		limits func(l *core.Limits)
		begin  func(w *world)
		op     string
	}{
		"its time":       {begin: detached, op: "extend"},
		"its cap":        {begin: detached, op: "extend", limits: func(l *core.Limits) { l.RunSpendCap = 20 * hourly }},
		"a greatest cap": {begin: detached, op: "hold", limits: func(l *core.Limits) { l.RunSpendCap = core.MostDollars }},
		"a great cap":    {begin: detached, op: "extend", limits: func(l *core.Limits) { l.RunSpendCap = core.MostDollars * 2 / 3 }},
		"a hold": {op: "hold", begin: func(w *world) {
			w.left("r", "works\n")
			o := w.operator()
			if err := o.Hold(w.t.Context(), key("r"), now().Add(27*24*time.Hour), core.By{Who: "ops", Why: "look"}); err != nil {
				w.t.Fatal(err)
			}
		}},
		"its tenant's cap": {op: "hold", limits: func(l *core.Limits) { l.TenantSpendCap = 20 * hourly }, begin: priced(func(w *world, _ *core.Session, _ core.HostRequest) { w.detach("r") })},
		"its pause": {op: "hold", begin: priced(func(w *world, s *core.Session, host core.HostRequest) {
			if _, err := s.Interrupt(w.t.Context(), host); err != nil {
				w.t.Fatal(err)
			}
		})},
	}
	for what, tt := range ends {
		for _, before := range []time.Duration{30 * time.Minute, 9 * time.Hour} {
			t.Run(what+", "+before.String()+" before", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					time.Sleep(time.Until(time.Date(2000, 1, 3, 0, 0, 0, 0, time.UTC)))
					w := newWorld(t)
					w.limits.ExpiringBefore, w.limits.RunTTL, w.limits.PauseTTL = before, 24*time.Hour, 24*time.Hour
					if tt.limits != nil {
						w.limits.RunTTL = 25 * 24 * time.Hour
						tt.limits(&w.limits)
					}
					if w.limits.RunSpendCap > 1000*hourly { // a task so dear that its hours reach it
						w.limits.RunTTL = 25 * 24 * time.Hour
						tt.begin(w)
						r := w.run("r")
						if _, err := w.store.Update(t.Context(), r.RunKey, core.NotePrice{Epoch: r.Epoch, TaskARN: r.TaskARN, Price: w.limits.RunSpendCap / 20}); err != nil {
							t.Fatal(err)
						}
					} else {
						tt.begin(w)
					}
					told := w.warning()
					if !strings.HasPrefix(told.Command, "sandkeeper "+tt.op+" ") {
						t.Fatalf("warned %+v", told)
					}
					w.obey(told.Command)
					for now() < told.Due.Add(time.Hour) {
						time.Sleep(10 * time.Minute)
						w.tick()
					}
					if r := w.run("r"); r.Status.Terminal() || r.Ending != nil {
						t.Errorf("an hour after %s, for which %q was told: %s, %+v", told.Due.Time(), told.Command, r.Status, r.Ending)
					}
				})
			})
		}
	}
}
