package core_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

func (w *world) operator() core.Operator {
	return core.Operator{
		Runs: w.store, Sandboxes: w.store, Ledger: w.store, Due: w.store, Controls: w.store, Audit: w.store, Queue: w.store, Limits: w.limits,
	}
}

func (w *world) auditor(p *mem.Process) *core.Auditor {
	view := w.fleet.View(p)
	return &core.Auditor{
		Lister: view, Tasks: view, Runs: p, Index: p, Sandboxes: p, Ledger: p, Due: p, Install: "test", Provider: "fargate", Limits: w.limits,
	}
}

// TestARehearsalAnswersAsTheOperatorDoesAndWritesNothing (I13).
func TestARehearsalAnswersAsTheOperatorDoesAndWritesNothing(t *testing.T) {
	by := core.By{Who: "ops", Why: "test"}
	for name, act := range map[string]func(ctx context.Context, o *core.Operator, key core.RunKey) error{
		"hold": func(ctx context.Context, o *core.Operator, key core.RunKey) error {
			return o.Hold(ctx, key, now().Add(time.Hour), by)
		},
		"a hold in the past": func(ctx context.Context, o *core.Operator, key core.RunKey) error {
			return o.Hold(ctx, key, now(), by)
		},
		"release": func(ctx context.Context, o *core.Operator, key core.RunKey) error { return o.Release(ctx, key, by) },
		"extend":  func(ctx context.Context, o *core.Operator, key core.RunKey) error { return o.Extend(ctx, key, 600, by) },
		"kill":    func(ctx context.Context, o *core.Operator, key core.RunKey) error { return o.Kill(ctx, key, by) },
		"without a reason": func(ctx context.Context, o *core.Operator, key core.RunKey) error {
			return o.Kill(ctx, key, core.By{Who: "ops"})
		},
	} {
		for _, run := range []string{"works", "ended", "nobody"} {
			t.Run(name+" "+run, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					w.left("works", "at it\n")
					w.left("ended", "done\n")
					w.fleet.Exit("ended", 0)
					w.tick()
					o := w.operator()
					rehearsal := core.Rehearse(o, w.store)
					before := w.store.State()
					rehearsed := act(t.Context(), &rehearsal.Operator, key(run))
					would, _ := rehearsal.Operator.Runs.Run(t.Context(), key(run))
					if !reflect.DeepEqual(before, w.store.State()) {
						t.Error("a rehearsal wrote")
					}
					done := act(t.Context(), &o, key(run))
					if fmt.Sprint(rehearsed) != fmt.Sprint(done) {
						t.Errorf("rehearsed: %v, done: %v", rehearsed, done)
					}
					did, _ := w.store.Run(t.Context(), key(run))
					would.Hold.ID, did.Hold.ID = "", ""
					if !reflect.DeepEqual(would, did) {
						t.Errorf("rehearsed %+v, done %+v", would, did)
					}
				})
			})
		}
	}
}

// TestAnActOnARunThatNobodyBeganIsRefused, and leaves nothing behind: no entry tells of
// something done to what never was.
func TestAnActOnARunThatNobodyBeganIsRefused(t *testing.T) {
	by := core.By{Who: "ops", Why: "test"}
	for name, act := range map[string]func(ctx context.Context, o *core.Operator, key core.RunKey) error{
		"hold": func(ctx context.Context, o *core.Operator, key core.RunKey) error {
			return o.Hold(ctx, key, now().Add(time.Hour), by)
		},
		"release": func(ctx context.Context, o *core.Operator, key core.RunKey) error { return o.Release(ctx, key, by) },
		"extend":  func(ctx context.Context, o *core.Operator, key core.RunKey) error { return o.Extend(ctx, key, 600, by) },
		"extend by": func(ctx context.Context, o *core.Operator, key core.RunKey) error {
			return o.ExtendBy(ctx, key, time.Hour, by)
		},
		"extend spend": func(ctx context.Context, o *core.Operator, key core.RunKey) error {
			return o.ExtendSpend(ctx, key, core.DollarsOf(2), by)
		},
		"kill": func(ctx context.Context, o *core.Operator, key core.RunKey) error { return o.Kill(ctx, key, by) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				o := w.operator()
				before := w.store.State()
				err := act(t.Context(), &o, key("nobody"))
				op, _, _ := strings.Cut(name, " ")
				if !errors.Is(err, core.ErrNotFound) || !strings.HasPrefix(err.Error(), op+" run "+key("nobody").String()+": ") {
					t.Errorf("%v, want that there is no such run", err)
				}
				if after, told := w.store.State(), w.store.Audit(); !reflect.DeepEqual(before, after) || len(told) != 0 {
					t.Errorf("it left %+v, where there was %+v, and the entries %+v", after, before, told)
				}
			})
		})
	}
}

func TestARehearsalOfTheSettingsTellsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		rehearsal := core.Rehearse(w.operator(), w.store)
		by := core.By{Who: "ops", Why: "test"}
		if _, ok := rehearsal.Settled(); ok {
			t.Error("settled before anything was done")
		}
		if _, err := rehearsal.Operator.Freeze(t.Context(), by); err != nil {
			t.Fatal(err)
		}
		if err := rehearsal.Operator.SetMode(t.Context(), core.Observe, by); err != nil {
			t.Fatal(err)
		}
		c, ok := rehearsal.Settled()
		if !ok || !c.Frozen || c.Mode != core.Observe || c.FrozenBy != "ops" {
			t.Errorf("settled %+v, %v", c, ok)
		}
		if c, err := w.store.Control(t.Context()); err != nil || c != (core.Control{}) {
			t.Errorf("written %+v, %v", c, err)
		}
	})
}

// TestARehearsedReleaseTellsWhatItWouldSend: what the hold kept back.
func TestARehearsedReleaseTellsWhatItWouldSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.left("kept", "done\n")
		o := w.operator()
		if err := o.Hold(t.Context(), key("kept"), now().Add(time.Hour), core.By{Who: "ops", Why: "look"}); err != nil {
			t.Fatal(err)
		}
		w.fleet.Exit("kept", 0)
		w.tick()
		rehearsal := core.Rehearse(o, w.store)
		if err := rehearsal.Operator.Release(t.Context(), key("kept"), core.By{Who: "ops", Why: "looked"}); err != nil {
			t.Fatal(err)
		}
		if len(rehearsal.Sent) != 1 || rehearsal.Sent[0].Run != "kept" || rehearsal.Sent[0].Kind != core.JobEnd {
			t.Errorf("would send %+v", rehearsal.Sent)
		}
		if n := len(w.store.TakeJobs()); n != 0 {
			t.Errorf("sent %d messages", n)
		}
	})
}

// found are the findings of a kind, by run or task.
func found(report core.AuditReport, kind core.AuditKind) []core.AuditFinding {
	return slices.DeleteFunc(slices.Clone(report.Findings), func(f core.AuditFinding) bool { return f.Kind != kind })
}

func TestTheAuditorComparesBothWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.left("fine", "works\n")
		w.left("dead", "works\n")
		w.begin("warm", func(q *core.RunRequest) { q.Reclaim = core.ReclaimIdle })
		w.fleet.Write("warm", "done\n")
		w.fleet.Exit("warm", 0)
		w.detach("warm")
		w.tick()
		stray := w.fleet.RunStray("test/stray")
		w.fleet.RunStray("someone-else/x")
		time.Sleep(w.limits.LeakGrace)
		w.fleet.RunStray("test/young")
		w.fleet.KillTask(w.run("dead").TaskARN)
		before := w.store.State()
		report, err := w.auditor(w.store.Process).Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(before, w.store.State()) {
			t.Error("an audit wrote")
		}
		if got := found(report, core.AuditLeaked); len(got) != 1 || got[0].TaskARN != stray || got[0].Settles {
			t.Errorf("leaked %+v", got)
		}
		if got := found(report, core.AuditLost); len(got) != 1 || got[0].RunKey != key("dead") || !got[0].Settles {
			t.Errorf("lost %+v", got)
		}
		if len(report.Findings) != 2 {
			t.Errorf("findings %+v", report.Findings)
		}
		w.fleet.KillTask(w.run("warm").TaskARN)
		w.store.Spoil(key("fine"), errors.New("schema version 9"))
		if report, err = w.auditor(w.store.Process).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := found(report, core.AuditIdleGone); len(got) != 1 || got[0].RunKey != key("warm") {
			t.Errorf("idle %+v", got)
		}
		if got := found(report, core.AuditUnreadable); len(got) != 1 || got[0].RunKey != key("fine") {
			t.Errorf("unreadable %+v", got)
		}
	})
}

// lonely is a store in which no instance record is found.
type lonely struct{ *mem.Process }

func (lonely) Sandbox(context.Context, core.SandboxKey) (core.Sandbox, error) {
	return core.Sandbox{}, core.ErrNotFound
}

// TestTheAuditorFindsATaskThatNothingLeadsTo (I15): its row is open, and no sweep would
// ever come to it.
func TestTheAuditorFindsATaskThatNothingLeadsTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.left("works", "at it\n")
		time.Sleep(w.limits.LeakGrace)
		a := w.auditor(w.store.Process)
		if report, err := a.Run(t.Context()); err != nil || len(report.Findings) != 0 {
			t.Errorf("a run that works: %+v, %v", report.Findings, err)
		}
		a.Sandboxes = lonely{w.store.Process}
		report, err := a.Run(t.Context())
		if err != nil || len(report.Findings) != 1 || report.Findings[0].Kind != core.AuditUnwatched || report.Findings[0].TaskARN != r.TaskARN {
			t.Errorf("without an instance record: %+v, %v", report.Findings, err)
		}
	})
}

// TestADebtThatNobodyPaysIsOverdue, and one that is paid in time is none.
func TestADebtThatNobodyPaysIsOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.left("owes", "done\n")
		w.fleet.Exit("owes", 0)
		if _, err := w.sweep(w.store.Process).Run(t.Context(), core.SweepRequest{}); err != nil { // and no reclaim
			t.Fatal(err)
		}
		if report, err := w.auditor(w.store.Process).Run(t.Context()); err != nil || len(report.Findings) != 0 {
			t.Errorf("at once: %+v, %v", report.Findings, err)
		}
		time.Sleep(w.limits.ReclaimBackoffMax + w.limits.LaunchLag + time.Hour)
		report, err := w.auditor(w.store.Process).Run(t.Context())
		if got := found(report, core.AuditOverdue); err != nil || len(got) != 1 || got[0].RunKey != key("owes") || got[0].Settles {
			t.Errorf("later: %+v, %v", report.Findings, err)
		}
	})
}

// TestAnAuditThatCouldNotReadIsAnError, whichever read it was (I10).
func TestAnAuditThatCouldNotReadIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.left("works", "at it\n")
		time.Sleep(w.limits.LeakGrace)
		p := w.store.NewProcess(mem.Faults{})
		if _, err := w.auditor(p).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for n := 1; n <= len(p.Calls()); n++ {
			if report, err := w.auditor(w.store.NewProcess(mem.At(n, mem.NotLanded))).Run(t.Context()); err == nil {
				t.Errorf("call %d, %s, failed, and the audit answers %+v", n, p.Calls()[n-1], report)
			}
		}
	})
}

func TestALogIsReadFromAnyPosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fleet.PageBytes, w.limits.Page, w.fleet.RestBytes = 1000, 1000, 0
		text := strings.Repeat("a line of output\n", 400)
		w.left("long", text)
		w.fleet.Exit("long", 0)
		w.tick()
		whole := w.transcript("long")
		if whole != text {
			t.Fatalf("transcript of %d bytes, want %d", len(whole), len(text))
		}
		reader := core.LogReader{Log: w.store, Blobs: w.store}
		for _, from := range []int64{0, 1, 999, 1000, 1001, int64(len(text)) - 1, int64(len(text)), int64(len(text)) + 5} {
			var got []byte
			at := from
			for piece, err := range reader.From(t.Context(), key("long"), from) {
				if err != nil || piece.From != at || piece.End != at+int64(len(piece.Data)) {
					t.Fatalf("from %d: piece %d to %d of %d bytes: %v", from, piece.From, piece.End, len(piece.Data), err)
				}
				got, at = append(got, piece.Data...), piece.End
			}
			if want := text[min(from, int64(len(text))):]; string(got) != want {
				t.Errorf("from %d: %d bytes, want %d", from, len(got), len(want))
			}
		}
	})
}

func TestDebtsTellWhatIsStillOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.left("owes", "done\n")
		w.left("works", "at it\n")
		w.fleet.Exit("owes", 0)
		if _, err := w.sweep(w.store.Process).Run(t.Context(), core.SweepRequest{}); err != nil {
			t.Fatal(err)
		}
		jobs := w.store.TakeJobs()
		if len(jobs) != 1 {
			t.Fatalf("jobs %+v", jobs)
		}
		job, works := jobs[0], w.run("works")
		other := job
		other.Instance = "ANOTHER"
		debts := core.Debts{Runs: w.store, Sandboxes: w.store, Ledger: w.store}
		for name, row := range map[string]struct {
			job  core.ReclaimJob
			owed bool
		}{
			"the end of an ended run's sandbox": {job, true},
			"of another instance":               {other, false},
			"of an instance nobody knows":       {core.ReclaimJob{Instance: "NOBODY", Kind: core.JobLedger}, false},
			"of a run that works":               {core.ReclaimJob{Tenant: works.Tenant, Run: works.RunKey.Run, Key: works.SandboxKey, Instance: works.Instance, Kind: core.JobEnd}, false},
			"of a sandbox that is not idle":     {core.ReclaimJob{Tenant: works.Tenant, Key: works.SandboxKey, Instance: works.Instance, Kind: core.JobDue}, false},
		} {
			if owed, why, err := debts.Owed(t.Context(), row.job); err != nil || owed != row.owed || why == "" {
				t.Errorf("%s: %v, %q, %v", name, owed, why, err)
			}
		}
		if _, _, err := debts.Owed(t.Context(), core.ReclaimJob{Kind: "nuke"}); err == nil {
			t.Error("a job that is none is taken")
		}
		failing := core.Debts{Runs: w.store.NewProcess(mem.At(1, mem.NotLanded)), Sandboxes: w.store, Ledger: w.store}
		if _, _, err := failing.Owed(t.Context(), job); err == nil {
			t.Error("what could not be read counts as paid or owed")
		}
		if err := w.store.Send(t.Context(), jobs); err != nil {
			t.Fatal(err)
		}
		w.drainQueue(w.store.Process)
		if owed, _, err := debts.Owed(t.Context(), job); err != nil || owed {
			t.Errorf("once paid: %v, %v", owed, err)
		}
	})
}

func TestCostsAreThoseOfTheListPrices(t *testing.T) {
	for name, row := range map[string]struct {
		size core.TaskSize
		want float64
	}{
		"2 vCPU and 4 GB":            {core.TaskSize{VCPU: 2, GB: 4}, 0.0987},
		"the same on ARM":            {core.TaskSize{VCPU: 2, GB: 4, ARM: true}, 0.0790},
		"with a public IPv4 address": {core.TaskSize{VCPU: 2, GB: 4, PublicIPv4: true}, 0.1037},
	} {
		if got := row.size.Hourly(); math.Abs(got-row.want) > 0.00005 {
			t.Errorf("%s: $%g an hour, want $%g", name, got, row.want)
		}
	}
	size := core.TaskSize{VCPU: 2, GB: 4}
	if got, want := size.Cost(time.Second), size.Cost(time.Minute); got != want || size.Cost(0) != 0 {
		t.Errorf("a second costs %g, want a minute's %g; nothing costs %g", got, want, size.Cost(0))
	}
	l := core.DefaultLimits
	at := core.MillisOf(time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC))
	ended := core.Run{
		TaskARN: "task", Status: core.Completed, StartedAt: at, DetachedSince: at.Add(time.Hour), FinishedAt: at.Add(2 * time.Hour), Sealed: &core.Sealed{},
	}
	if got := core.RunTime(ended, at.Add(9*time.Hour)); got != 2*time.Hour {
		t.Errorf("an ended run had its task for %s", got)
	}
	if got := core.SavedTime(ended, l); got != l.RunTTL-time.Hour {
		t.Errorf("it saved %s", got)
	}
	expired, attached, works := ended, ended, ended
	expired.Ending = &core.Ending{Reason: core.EndExpired}
	attached.DetachedSince = 0
	works.Status, works.FinishedAt = core.Running, 0
	for name, r := range map[string]core.Run{"an expired run": expired, "one that nobody left": attached, "one that works": works} {
		if got := core.SavedTime(r, l); got != 0 {
			t.Errorf("%s saved %s", name, got)
		}
	}
	if got := core.RunTime(works, at.Add(9*time.Hour)); got != 9*time.Hour {
		t.Errorf("a run that works has its task for %s", got)
	}
	if got := core.RunTime(core.Run{Status: core.Running, StartedAt: at}, at.Add(time.Hour)); got != 0 {
		t.Errorf("a run without a task has it for %s", got)
	}
}

// standingRow is what is known of a run, and what it is explained as.
type standingRow struct {
	known    core.Known
	standing string
	next     []string
	ends     []string
	blocked  []string
}

// standingAt is when the runs of standings are asked about.
var standingAt = core.MillisOf(time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC))

// standingRun is a run with a task, changed.
func standingRun(change func(*core.Run)) core.Run {
	r := core.Run{RunKey: key("x"), Status: core.Running, StartedAt: standingAt, Instance: "I", TaskARN: "task", Container: "agent", Epoch: 2}
	change(&r)
	return r
}

// standingsAtWork are of runs that nobody ends yet.
func standingsAtWork() map[string]standingRow {
	at, l, run := standingAt, core.DefaultLimits, standingRun
	held := core.Hold{Until: at.Add(time.Hour), By: "ops", Why: "look"}
	return map[string]standingRow{
		"a host drives it": {
			core.Known{Run: run(func(r *core.Run) {
				r.Row, r.DueAt, r.AttachedUntil = core.RowLapse, at.Add(time.Minute), at.Add(time.Minute)
			})},
			core.StandingAttached, []string{"lapse"}, []string{"sentinel", "expired", "lost", "agent-died", "cancelled"}, []string{"attached"},
		},
		"its host stopped renewing": {
			core.Known{Run: run(func(r *core.Run) { r.Row, r.DueAt = core.RowLapse, at.Add(-1) })},
			core.StandingLapsed, []string{"lapse"}, []string{"sentinel", "expired", "lost", "agent-died", "cancelled"}, nil,
		},
		"nobody watches, and it is held": {
			core.Known{Run: run(func(r *core.Run) { r.Row, r.DetachedSince, r.Hold = core.RowDetached, at, held })},
			core.StandingDetached, []string{"sweep"}, []string{"sentinel", "expired", "lost", "agent-died", "cancelled"}, []string{"held"},
		},
		"the installation is frozen, observes, and its breaker tripped": {
			core.Known{
				Run:     run(func(r *core.Run) { r.Row, r.DetachedSince = core.RowDetached, at }),
				Control: core.Control{Mode: core.Observe, Frozen: true, Breaker: core.Breaker{TrippedAt: at}},
			},
			core.StandingDetached, []string{"sweep"}, []string{"sentinel", "expired", "lost", "agent-died", "cancelled"}, []string{"observe", "frozen", "breaker"},
		},
		"it waits for a human": {
			core.Known{Run: run(func(r *core.Run) {
				r.Status, r.Row, r.DueAt, r.InterruptedSince = core.Interrupted, core.RowPause, at.Add(l.PauseTTL), at
			})},
			core.StandingPaused, []string{"pause"}, []string{"sentinel", "expired", "lost", "agent-died", "cancelled"}, nil,
		},
	}
}

// standingsAtTheEnd are of runs that end or have ended, and of one that nobody would look
// at.
func standingsAtTheEnd() map[string]standingRow {
	at, l, run := standingAt, core.DefaultLimits, standingRun
	return map[string]standingRow{
		"its end is asked for": {
			core.Known{Run: run(func(r *core.Run) { r.Row, r.DueAt, r.CancelRequested = core.RowCancel, at, at })},
			core.StandingCancelled, []string{"cancel"}, []string{"cancelled"}, nil,
		},
		"a sweep has decided its end": {
			core.Known{Run: run(func(r *core.Run) {
				r.Row, r.DetachedSince, r.Ending, r.ClaimUntil = core.RowDetached, at, &core.Ending{Reason: core.EndExpired, At: at}, at.Add(time.Minute)
			})},
			core.StandingEnding, []string{"sweep"}, []string{"expired"}, nil,
		},
		"it owes its sandbox's end": {
			core.Known{Run: run(func(r *core.Run) {
				r.Status, r.Row, r.DueAt, r.Reclaim = core.Completed, core.RowReclaim, at, core.ReclaimEnd
			})},
			core.StandingOwing, []string{"reclaim"}, []string{"reclaim"}, nil,
		},
		"its sandbox is kept warm": {
			core.Known{
				Run:     run(func(r *core.Run) { r.Status, r.ReclaimOutcome = core.Completed, core.ReclaimIdled }),
				Sandbox: &core.Sandbox{Instance: "I", IdleSince: at, DueAt: at.Add(l.IdleTTL)},
			},
			core.StandingWarm, []string{"idle"}, []string{"idle-due"}, nil,
		},
		"it has ended and its task is stopping": {
			core.Known{
				Run: run(func(r *core.Run) { r.Status, r.ReclaimOutcome = core.Failed, core.ReclaimDestroyed }),
				Row: &core.LedgerRow{Instance: "I", State: core.LedgerStopping, DueAt: at.Add(time.Minute)},
			},
			core.StandingEnded, []string{"ledger"}, nil, nil,
		},
		"nothing is owed": {
			core.Known{Run: run(func(r *core.Run) { r.Status = core.Aborted })}, core.StandingEnded, nil, nil, nil,
		},
		"nobody would look at it": {
			core.Known{Run: run(func(*core.Run) {})}, core.StandingLost, nil, []string{"sentinel", "expired", "lost", "agent-died", "cancelled"}, nil,
		},
	}
}

// TestExplainTellsEveryStanding: each with somebody who looks next, unless nothing is
// owed, and with what would end it.
func TestExplainTellsEveryStanding(t *testing.T) {
	rows := standingsAtWork()
	maps.Copy(rows, standingsAtTheEnd())
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			e := core.Explain(row.known, standingAt, core.DefaultLimits)
			whats := func(points []core.Point) []string {
				var out []string
				for _, p := range points {
					if p.Says == "" {
						t.Errorf("%s says nothing", p.What)
					}
					out = append(out, p.What)
				}
				return out
			}
			if e.Standing != row.standing {
				t.Errorf("it is %s, want %s", e.Standing, row.standing)
			}
			for part, pair := range map[string][2][]string{
				"next": {whats(e.Next), row.next}, "ends": {whats(e.Ends), row.ends}, "blocked": {whats(e.Blocked), row.blocked},
			} {
				if !slices.Equal(pair[0], pair[1]) {
					t.Errorf("%s: %q, want %q", part, pair[0], pair[1])
				}
			}
			if len(whats(e.Evidence)) == 0 {
				t.Error("no evidence")
			}
		})
	}
}

// TestEvidenceHasAllThatIsKnown of one run that nobody can tell about.
func TestEvidenceHasAllThatIsKnown(t *testing.T) {
	at := core.MillisOf(time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC))
	e := core.Explain(core.Known{
		Run:  core.Run{RunKey: key("x"), Status: core.Running, Row: core.RowDetached, TaskARN: "task", Instance: "I", Container: "agent", TaskStoppedAt: at, Checkpoint: core.RunCheckpoint{State: core.CheckpointLost, Why: core.ReasonAgentMissing}},
		Note: core.Note{UnknownSince: at, Reason: core.ReasonExecRefused, Healing: core.Configuration, Count: 7, Missing: at, DeadSince: at, DeadAs: core.DeadGone, EndFailing: at},
		Task: &core.Task{Life: core.TaskLives}, Row: &core.LedgerRow{State: core.LedgerRunning}, Sandbox: &core.Sandbox{Instance: "OTHER"},
		Verdict: &core.RunReport{Outcome: core.Unknown, Reason: core.ReasonExecRefused},
	}, at, core.DefaultLimits)
	for what, says := range map[string]string{
		"unknown": "7 probes could not tell", "verdict": "start tasks with enableExecuteCommand", "dead-gone": "no process", "task-missing": "has not known",
		"end-failing": "cannot be read", "checkpoint": "lost: agent-missing", "hint": "its task stopped", "task": "started without ECS Exec", "sandbox": "another instance", "ledger": "running",
	} {
		if !slices.ContainsFunc(e.Evidence, func(p core.Point) bool { return p.What == what && strings.Contains(p.Says, says) }) {
			t.Errorf("no %s that says %q in %+v", what, says, e.Evidence)
		}
	}
}

// TestAnExtensionThatComesTooLateSaysSo, also one to what the run had already.
func TestAnExtensionThatComesTooLateSaysSo(t *testing.T) {
	by := core.By{Who: "ops", Why: "look"}
	for what, extend := range map[string]func(o core.Operator, ctx context.Context) error{
		"its time": func(o core.Operator, ctx context.Context) error { return o.Extend(ctx, key("r"), 3600, by) },
		"its cap":  func(o core.Operator, ctx context.Context) error { return o.ExtendSpend(ctx, key("r"), hourly, by) },
	} {
		for _, stage := range []string{"ending", "ended", "paused"} {
			t.Run(what+", "+stage, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					r := w.left("r", "works\n")
					if err := extend(w.operator(), t.Context()); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Hour)
					p := w.store.Process
					switch stage {
					case "ending": // claimed, and its sandbox does not answer
						p = w.failing("terminate")
						w.sweepAs(p)
						if w.run("r").Ending == nil {
							t.Fatal("it does not end")
						}
					case "ended":
						w.sweepAs(p)
					case "paused":
						r = w.run("r")
						attached, err := w.store.Update(t.Context(), r.RunKey, core.Attach{Seen: r.Epoch, Nonce: "viewer", Now: now(), Until: now() + 1000})
						if err == nil {
							_, err = w.store.Update(t.Context(), r.RunKey, core.Interrupt{Epoch: attached.Epoch, Now: now(), Until: now().Add(time.Hour)})
						}
						if err != nil {
							t.Fatal(err)
						}
					}
					if err := extend(w.operator(), t.Context()); !core.Refused(err) {
						t.Errorf("it is %s, and the extension says %v", stage, err)
					}
				})
			})
		}
	}
}

// TestTwoExtensionsAtOnceAddUp: whatever the other operator does between the reading and the
// write of one, none of their promises is taken back.
func TestTwoExtensionsAtOnceAddUp(t *testing.T) {
	by := core.By{Who: "ops", Why: "look"}
	for what, other := range map[string]struct {
		do   func(o core.Operator, ctx context.Context) error
		want time.Duration
	}{
		"nobody": {func(core.Operator, context.Context) error { return nil }, 12 * time.Hour},
		"by":     {func(o core.Operator, ctx context.Context) error { return o.ExtendBy(ctx, key("r"), 5*time.Hour, by) }, 17 * time.Hour},
		"to":     {func(o core.Operator, ctx context.Context) error { return o.Extend(ctx, key("r"), 24*3600, by) }, 28 * time.Hour},
		"alike":  {func(o core.Operator, ctx context.Context) error { return o.ExtendBy(ctx, key("r"), 4*time.Hour, by) }, 16 * time.Hour},
		"ever":   {func(o core.Operator, ctx context.Context) error { return o.ExtendBy(ctx, key("r"), math.MaxInt64, by) }, math.MaxInt64 / time.Second * time.Second},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.left("r", "works\n")
				o, done := w.operator(), false
				mine := o
				mine.Runs = w.store.NewProcess(mem.Faults{Before: func(_ context.Context, name string) {
					if name == "extend" && !done {
						done = true
						if err := other.do(o, t.Context()); err != nil {
							t.Error(err)
						}
					}
				}})
				if err := mine.ExtendBy(t.Context(), key("r"), 4*time.Hour, by); err != nil {
					t.Fatal(err)
				}
				if got := time.Duration(w.run("r").TTLSeconds) * time.Second; got != other.want {
					t.Errorf("it may stay %s, want %s", got, other.want)
				}
				if got := outcomes(w.tick())["r"]; got != core.Producing {
					t.Errorf("then it is %s", got)
				}
			})
		})
	}
}
