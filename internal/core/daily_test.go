package core_test

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// TestTheAuditFindsWhatRunsWithoutARow, leaves young and foreign tasks alone, and stops
// only where the policy says so (DESIGN 5.9).
func TestTheAuditFindsWhatRunsWithoutARow(t *testing.T) {
	for _, stops := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.stopLeaks = stops
			w.left("fine", "works\n")
			stray := w.fleet.RunStray("test/stray")
			w.fleet.RunStray("someone-else/x")
			time.Sleep(w.limits.LeakGrace)
			w.fleet.RunStray("test/young")
			report, err := w.sweep(w.store.Process).Daily(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if report.Tasks != 4 || report.Ours != 3 || len(report.Leaked) != 1 || report.Leaked[0].TaskARN != stray || report.Leaked[0].Stopping != stops {
				t.Errorf("report %+v", report)
			}
			if report.Idle != 0 || report.IdleBurnUSD != mem.TaskSize.Hourly() {
				t.Errorf("%d idle and %v dollars an hour, want the stray's alone", report.Idle, report.IdleBurnUSD)
			}
			if got := w.told(core.NoticeLeaked); !slices.Equal(got, []string{stray}) {
				t.Errorf("told %v", got)
			}
			w.drainQueue(w.store.Process)
			if runs := slices.Contains(w.fleet.Running(), stray); runs == stops {
				t.Errorf("stops %v, and the stray runs: %v", stops, runs)
			}
			if n := len(w.fleet.Running()); n != 4-len(report.Leaked)*map[bool]int{true: 1}[stops] {
				t.Errorf("%d tasks run", n)
			}
		})
	}
}

// TestTooManyLeaksTripTheBreaker before the first of them is stopped, as too many ends do: it
// is a table that lost its rows rather than so many leaks. A thaw lets the next audit act.
func TestTooManyLeaksTripTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.stopLeaks, w.limits.BreakerMost = true, 2
		for _, stray := range []string{"a", "b", "c"} {
			w.fleet.RunStray("test/" + stray)
		}
		time.Sleep(w.limits.LeakGrace)
		before := len(w.store.State().Rows)
		report, err := w.sweep(w.store.Process).Audit(t.Context())
		if err != nil || len(report.Leaked) != 3 || slices.ContainsFunc(report.Leaked, func(l core.Leak) bool { return l.Stopping }) {
			t.Errorf("report %+v, %v", report, err)
		}
		w.drainQueue(w.store.Process)
		if rows := len(w.store.State().Rows); rows != before || len(w.fleet.Running()) != 3 || len(w.told(core.NoticeTripped)) != 1 {
			t.Errorf("%d rows, %d tasks run, told %v", rows-before, len(w.fleet.Running()), w.told(core.NoticeTripped))
		}
		operator := w.operator()
		if err := operator.Thaw(t.Context(), core.By{Who: "ops", Why: "they are leaks"}); err != nil {
			t.Fatal(err)
		}
		dailyAndReclaim(w)
		if n := len(w.fleet.Running()); n != 0 {
			t.Errorf("thawed, %d run", n)
		}
	})
}

// TestATrippedBreakerKeepsACondemnedLeak: what trips it between the audit and the stop is
// honoured, and a thaw lets the stop go on (I13).
func TestATrippedBreakerKeepsACondemnedLeak(t *testing.T) {
	for what, cut := range map[string]string{"condemned by the audit": "", "condemned by a sweep after an audit that died": "stop launch"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.stopLeaks = true
				w.fleet.RunStray("test/stray")
				time.Sleep(w.limits.LeakGrace)
				_, _ = w.sweep(w.failing(cut)).Audit(t.Context())
				goOn := func() {
					for range 30 {
						w.tick()
						w.drainQueue(w.store.Process)
						time.Sleep(time.Minute)
					}
				}
				w.store.SetControl(core.Control{Breaker: core.Breaker{TrippedAt: now()}})
				goOn()
				if row := w.store.State().Rows["stray"]; row.State != core.LedgerStopping || len(w.fleet.Running()) != 1 {
					t.Errorf("%d run, row %+v", len(w.fleet.Running()), row)
				}
				w.store.SetControl(core.Control{})
				goOn()
				if n := len(w.fleet.Running()); n != 0 {
					t.Errorf("thawed, %d run", n)
				}
			})
		})
	}
}

// TestASandboxOfAnotherProviderIsReported by every audit for as long as it runs: reclaim
// leaves it alone and takes its mark off, so that nothing else would tell of it (DESIGN 6).
func TestASandboxOfAnotherProviderIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.stopLeaks = true
		w.left("theirs", "works\n")
		time.Sleep(w.limits.LeakGrace)
		before := w.store.State()
		s := w.sweep(w.store.Process)
		s.Provider = "another"
		for range 2 {
			report, err := s.Audit(t.Context())
			if err != nil || len(report.Leaked) != 1 || report.Leaked[0].Stopping || !strings.Contains(report.Leaked[0].Why, "provider fargate") {
				t.Errorf("report %+v, %v", report, err)
			}
		}
		if !reflect.DeepEqual(w.store.State(), before) {
			t.Error("something was written")
		}
		a := w.auditor(w.store.Process)
		a.Provider = "another"
		both, err := a.Run(t.Context())
		if err != nil || len(both.Findings) != 1 || both.Findings[0].Kind != core.AuditLeaked || !strings.Contains(both.Findings[0].Why, "provider fargate") {
			t.Errorf("found %+v, %v", both.Findings, err)
		}
	})
}

// TestAFailedTaskListingIsAnError: half a listing accuses nobody (I10).
func TestAFailedTaskListingIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fleet.RunStray("test/stray")
		time.Sleep(2 * w.limits.LeakGrace)
		for n := 1; n <= 3; n++ {
			if report, err := w.sweep(w.store.NewProcess(mem.At(n, mem.NotLanded))).Daily(t.Context()); err == nil {
				t.Errorf("call %d failed, and the audit answers %+v", n, report)
			}
		}
	})
}

// TestIdleSandboxesArePruned of the journals of ended runs, and keep the markers.
func TestIdleSandboxesArePruned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.begin("idle", func(q *core.RunRequest) { q.Reclaim = core.ReclaimIdle })
		w.fleet.Write("idle", "done\n")
		w.fleet.Exit("idle", 0)
		w.detach("idle")
		w.left("works", "at it\n")
		w.tick()
		if !w.fleet.Pruned("idle") {
			t.Error("the journal of a run whose sandbox is kept lies around")
		}
		w.fleet.Litter("idle")
		report, err := w.sweep(w.store.Process).Daily(t.Context())
		if err != nil || len(report.Pruned) != 1 || !slices.Equal(report.Pruned[0].Deleted, []core.RunID{"idle"}) {
			t.Errorf("report %+v, %v", report, err)
		}
		if report.Idle != 1 || report.IdleBurnUSD != mem.TaskSize.Hourly() {
			t.Errorf("%d idle and %v dollars an hour, want one", report.Idle, report.IdleBurnUSD)
		}
		if !w.fleet.Pruned("idle") || w.fleet.Pruned("works") {
			t.Error("the wrong journals are gone")
		}
		r := w.run("idle")
		target := core.ExecTarget{TaskARN: r.TaskARN}
		if s, err := w.fleet.View(w.store.Process).StartAgent(t.Context(), target, core.JournalStart{Run: "idle"}, nil); err != nil || !s.Already {
			t.Errorf("a pruned run began again: %+v, %v", s, err)
		}
		time.Sleep(w.limits.IdleTTL)
		w.tick()
		if n := len(w.fleet.Running()); n != 1 {
			t.Errorf("%d tasks run, want the one that works", n)
		}
	})
}

// planted is a sandbox that means harm: its journal directory is full of names, or every
// answer about it is slow.
type planted struct {
	core.JournalDirectory
	names int
	slow  time.Duration
}

func (d planted) List(ctx context.Context, target core.ExecTarget) (core.JournalListing, error) {
	listing := core.JournalListing{Times: core.JournalTimes{Known: true}}
	for n := range d.names {
		name, at := fmt.Sprintf("planted-%d.ndjson", n), now()
		if d.slow > 0 {
			at = at.Add(-24 * time.Hour) // old enough to go
		}
		listing.Names = append(listing.Names, name)
		listing.Times.Of = append(listing.Times.Of, core.JournalTime{Name: name, At: at})
	}
	return listing, d.wait(ctx)
}

func (d planted) Remove(ctx context.Context, _ core.ExecTarget, runs []core.RunID) ([]bool, error) {
	return make([]bool, len(runs)), d.wait(ctx)
}

func (d planted) wait(ctx context.Context) error {
	select {
	case <-time.After(d.slow):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestNoSandboxKeepsTheDayFromItsEnd: what the audit found is told at the end of the day's
// function, which has a timeout.
func TestNoSandboxKeepsTheDayFromItsEnd(t *testing.T) {
	for name, dir := range map[string]planted{
		"names by the thousand": {names: 50_000},
		"slow answers":          {names: 1000, slow: 25 * time.Second},
		"no answers":            {names: 1000, slow: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				for _, run := range []string{"a", "b", "c"} {
					w.begin(run, func(q *core.RunRequest) { q.Reclaim = core.ReclaimIdle })
					w.fleet.Exit(core.RunID(run), 0)
					w.detach(run)
				}
				w.tick()
				p := w.store.NewProcess(mem.Faults{})
				s := w.sweep(p)
				dir.JournalDirectory = s.Journals
				s.Journals = dir
				ctx, cancel := context.WithTimeout(t.Context(), w.limits.SweepTimeout)
				defer cancel()
				begun := time.Now()
				report, err := s.Daily(ctx)
				if took := time.Since(begun); err != nil || report.Tasks != 3 || took > w.limits.SweepTimeout-5*time.Second {
					t.Errorf("after %s: %v, %d tasks", took, err, report.Tasks)
				}
				if reads := len(p.Calls()); reads > 10_000 {
					t.Errorf("the stores were asked %d times", reads)
				}
				if text, err := json.Marshal(report); err != nil || len(text) > 1<<20 {
					t.Errorf("report of %d bytes, %v", len(text), err)
				}
			})
		})
	}
}

// TestOthersAreTold of each end, and once of each state that lasts.
func TestOthersAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.seedMainScenario()
		for _, run := range []string{"held", "soon"} {
			w.begin(run, func(q *core.RunRequest) { q.TTLSeconds = 600 })
			w.detach(run)
		}
		operator := &core.Operator{Runs: w.store, Sandboxes: w.store, Ledger: w.store, Controls: w.store, Audit: w.store, Queue: w.store, Limits: w.limits}
		if err := operator.Hold(t.Context(), key("held"), now().Add(time.Hour), core.By{Who: "ops", Why: "look at it"}); err != nil {
			t.Fatal(err)
		}
		for range 12 {
			w.tick()
			time.Sleep(time.Minute)
		}
		for kind, want := range map[core.NoticeType][]string{
			core.NoticeFinalized: {"cancelled", "lapsed", "long", "three", "zero"},
			core.NoticeExpired:   {"expired", "soon", "traps"},
			core.NoticeLost:      {"dead-task"},
			core.NoticeHeld:      {"held"},
			core.NoticeExpiring:  {"soon"},
		} {
			if got := w.told(kind); !slices.Equal(got, want) {
				t.Errorf("%s told of %v, want %v", kind, got, want)
			}
		}
	})
}

// TestAStopTellsHowLongItTook from the agent's end on, and a run that ended by itself
// what that saved.
func TestAStopTellsHowLongItTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.left("r", "done\n")
		w.fleet.Exit("r", 0)
		w.detach("r")
		report := w.tick()
		i := slices.IndexFunc(report.Runs, func(e core.RunReport) bool { return e.Outcome == core.Finalized })
		if i < 0 || report.Runs[i].SavedUSD <= 0 || report.Runs[i].SavedUSD > mem.TaskSize.Cost(w.limits.RunTTL) {
			t.Errorf("report %+v", report.Runs)
		}
		w.drainQueue(w.store.Process)
		r := w.run("r")
		at := r.Sealed.At.Add(40 * time.Second)
		stopped := core.StoppedTask{ARN: r.TaskARN, StartedBy: core.StartedBy("test", r.Instance), At: at}
		got, err := w.sweep(w.store.Process).TaskStopped(t.Context(), stopped)
		if err != nil || got.Stopped == nil || *got.Stopped != (core.Stopped{RunKey: r.RunKey, AgentEnded: r.Sealed.At, At: at}) {
			t.Errorf("report %+v, %v", got.Stopped, err)
		}
	})
}

// TestAnOperatorIsHeardAmongPrunes: whatever is set between two calls of a day's prune, no
// journal is removed after the settings, or the holds, were read again (I13).
func TestAnOperatorIsHeardAmongPrunes(t *testing.T) {
	idle := func(t *testing.T) *world {
		w := newWorld(t)
		for _, run := range []string{"a", "b", "c"} {
			w.begin(run, func(q *core.RunRequest) { q.Reclaim = core.ReclaimIdle })
			w.fleet.Exit(core.RunID(run), 0)
			w.detach(run)
		}
		w.tick()
		for _, run := range []core.RunID{"a", "b", "c"} {
			w.fleet.Litter(run)
		}
		return w
	}
	calls := 0
	synctest.Test(t, func(t *testing.T) {
		w := idle(t)
		p := w.store.NewProcess(mem.Faults{})
		if _, err := w.sweep(p).Daily(t.Context()); err != nil || !w.fleet.Pruned("a") || !w.fleet.Pruned("b") || !w.fleet.Pruned("c") {
			t.Fatalf("%v after %v", err, p.Calls())
		}
		calls = len(p.Calls())
	})
	for name, speak := range map[string]struct {
		say  func(w *world)
		read string // the last reading before a removal that does not see it
	}{
		"freeze":  {func(w *world) { w.store.SetControl(core.Control{Frozen: true}) }, "read control"},
		"observe": {func(w *world) { w.store.SetControl(core.Control{Mode: core.Observe}) }, "read control"},
		"hold": {func(w *world) {
			o := w.operator()
			for _, run := range []string{"a", "b", "c"} {
				if err := o.Hold(w.t.Context(), key(run), now().Add(time.Hour), core.By{Who: "ops", Why: "look"}); err != nil {
					w.t.Error(err)
				}
			}
		}, "read run"},
	} {
		early := 0
		for n := 1; n <= calls; n++ {
			synctest.Test(t, func(t *testing.T) {
				w := idle(t)
				count, removed, allowed := 0, 0, 0
				p := w.store.NewProcess(mem.Faults{Before: func(_ context.Context, call string) {
					if count++; count == n {
						speak.say(w)
						allowed = 1 // of which the last reading was before
					}
					if count > n && call == speak.read || count == n && call == speak.read {
						allowed = 0
					}
					if count >= n && call == "remove journals" {
						if removed++; removed > allowed {
							t.Errorf("%s before call %d: journals are removed by call %d", name, n, count)
						}
					}
				}})
				_, _ = w.sweep(p).Daily(t.Context())
				if removed == 0 {
					early++
				}
			})
		}
		if early == 0 {
			t.Errorf("%s: it never comes in time", name)
		}
	}
}
