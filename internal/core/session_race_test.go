package core_test

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// between carries out first, and second within each of its calls in turn; then looks.
func between(t *testing.T, before func(h *hosting), first, second func(ctx context.Context, s *core.Session) error, look func(h *hosting, call int, err1, err2 error)) {
	t.Helper()
	calls := 0
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		before(h)
		p := h.store.NewProcess(mem.Faults{})
		h.must(first(t.Context(), h.session(p)))
		calls = len(p.Calls())
	})
	for n := 1; n <= calls; n++ {
		synctest.Test(t, func(t *testing.T) {
			h := newHosting(t)
			before(h)
			var err2 error
			p := h.store.NewProcess(mem.Between(n, func(ctx context.Context) { err2 = second(ctx, h.self()) }))
			err1 := first(t.Context(), h.session(p))
			look(h, n, err1, err2)
			h.store.Check(t)
		})
	}
	if calls < 2 {
		t.Errorf("the first makes %d calls: nothing came between", calls)
	}
}

func startsAs(name string) func(ctx context.Context, s *core.Session) error {
	return func(ctx context.Context, s *core.Session) error {
		_, err := s.Start(ctx, startOf("r", name))
		return err
	}
}

func cancels(ctx context.Context, s *core.Session) error {
	_, err := s.Cancel(ctx, core.CancelRequest{RunKey: key("r"), Host: hostOf("one")})
	return err
}

// TestACancelWithinAStart ends the half-built sandbox at whatever point it comes: no agent
// works afterwards, and nothing stays.
func TestACancelWithinAStart(t *testing.T) {
	between(t, func(*hosting) {}, startsAs("one"), cancels, func(h *hosting, call int, _, err2 error) {
		if err2 != nil {
			refusedFor(h.t, "cancel before there is a run", err2, "unknown-run")
			return
		}
		for range 15 {
			h.drainQueue(h.store.Process)
			time.Sleep(2 * time.Minute)
			h.tick()
		}
		if r := h.run("r"); !r.Status.Terminal() || r.Row != core.RowNone || h.fleet.Alive("r") || len(h.fleet.Running()) != 0 {
			h.t.Errorf("call %d: run %s, row %s, agent lives %t, running %v", call, r.Status, r.Row, h.fleet.Alive("r"), h.fleet.Running())
		}
	})
}

// TestTwoHostsOnOneRun: whatever they do at the same time, one of them has it, one agent
// works, in one sandbox.
func TestTwoHostsOnOneRun(t *testing.T) {
	detached := func(h *hosting) {
		h.ready(startOf("r", "zero"))
		h.detach("r")
	}
	attaches := func(name string) func(ctx context.Context, s *core.Session) error {
		return func(ctx context.Context, s *core.Session) error {
			_, err := s.Attach(ctx, core.AttachRequest{RunKey: key("r"), Host: hostOf(name)})
			return err
		}
	}
	one := func(h *hosting, call int, err1, err2 error) {
		r := h.run("r")
		has := map[bool]string{true: hostOf("one"), false: hostOf("two")}[err1 == nil]
		if (err1 == nil) == (err2 == nil) || r.ClaimNonce != has {
			h.t.Errorf("call %d: %v and %v; %s has it", call, err1, err2, r.ClaimNonce)
		}
		if len(h.fleet.Running()) != 1 || !h.fleet.Alive("r") {
			h.t.Errorf("call %d: running %v, agent lives %t", call, h.fleet.Running(), h.fleet.Alive("r"))
		}
	}
	t.Run("attach", func(t *testing.T) { between(t, detached, attaches("one"), attaches("two"), one) })
	t.Run("start", func(t *testing.T) {
		between(t, func(*hosting) {}, startsAs("one"), startsAs("two"), one)
	})
	t.Run("a start asked twice at once", func(t *testing.T) {
		between(t, func(*hosting) {}, startsAs("one"), startsAs("one"), func(h *hosting, call int, _, _ error) {
			h.ready(startOf("r", "one"))
			h.drainQueue(h.store.Process)
			if len(h.fleet.Running()) != 1 || !h.fleet.Alive("r") {
				h.t.Errorf("call %d: running %v, agent lives %t", call, h.fleet.Running(), h.fleet.Alive("r"))
			}
			h.check()
		})
	})
	t.Run("a takeover within a detach", func(t *testing.T) {
		between(t, func(h *hosting) { h.ready(startOf("r", "one")) }, func(ctx context.Context, s *core.Session) error {
			_, err := s.Detach(ctx, core.HostRequest{RunKey: key("r"), Host: hostOf("one")})
			return err
		}, func(ctx context.Context, s *core.Session) error {
			_, err := s.Attach(ctx, core.AttachRequest{RunKey: key("r"), Host: hostOf("two"), Takeover: true})
			return err
		}, func(h *hosting, call int, err1, err2 error) {
			if r := h.run("r"); err1 != nil || err2 != nil || r.ClaimNonce != hostOf("two") || r.Row != core.RowLapse {
				h.t.Errorf("call %d: %v, %v, %s has it, row %s", call, err1, err2, r.ClaimNonce, r.Row)
			}
		})
	})
}

// TestASweepWithinAFinish: of host and sweep one ends the run, with all that its agent
// wrote.
func TestASweepWithinAFinish(t *testing.T) {
	between(t, func(h *hosting) {
		h.ready(startOf("r", "one"))
		h.fleet.Write("r", "done\n")
		h.fleet.Exit("r", 0)
	}, func(ctx context.Context, s *core.Session) error {
		_, err := s.Finish(ctx, core.FinishRequest{RunKey: key("r"), Host: hostOf("one")})
		return err
	}, func(ctx context.Context, s *core.Session) error {
		_, err := s.Detach(ctx, core.HostRequest{RunKey: key("r"), Host: hostOf("one")}) // and a sweep comes at once
		return err
	}, func(h *hosting, call int, _, _ error) {
		h.recover()
		h.ended("r", core.Completed, "done\n")
	})
}

// move is one operation as a host carries it out, on a run of the thread.
type move struct {
	name string
	of   string // the method of [core.Session]; empty: no host's
	do   func(ctx context.Context, h *hosting, run, host string) error
}

func of(run, host string) core.HostRequest {
	return core.HostRequest{RunKey: key(run), Host: hostOf(host)}
}

// moves are all that a host can do, and a sweep.
var moves = []move{
	{"starts", "Start", func(ctx context.Context, h *hosting, run, host string) error {
		_, err := h.self().Start(ctx, startOf(run, host))
		return err
	}},
	{"starts all that there is", "Start", func(ctx context.Context, h *hosting, run, host string) error {
		_, err := h.self().Start(ctx, fullStart(run, host))
		return err
	}},
	{"goes on for a paused run", "Start", func(ctx context.Context, h *hosting, run, host string) error {
		q := startOf(run, host)
		q.Parent = map[bool]core.RunID{true: "ask", false: "r"}[run == "r"]
		_, err := h.self().Start(ctx, q)
		return err
	}},
	{"adopts", "Adopt", func(ctx context.Context, h *hosting, run, host string) error {
		if strays := h.fleet.Running(); len(strays) > 0 {
			_, err := h.self().Adopt(ctx, core.AdoptRequest{
				RunKey: key(run), Thread: "t", Host: hostOf(host), TaskARN: strays[0], Container: "agent", Journal: adoptedJournal,
			})
			return err
		}
		return nil
	}},
	{"attaches", "Attach", func(ctx context.Context, h *hosting, run, host string) error {
		_, err := h.self().Attach(ctx, core.AttachRequest{RunKey: key(run), Host: hostOf(host)})
		return err
	}},
	{"takes over", "Attach", func(ctx context.Context, h *hosting, run, host string) error {
		_, err := h.self().Attach(ctx, core.AttachRequest{RunKey: key(run), Host: hostOf(host), Takeover: true})
		return err
	}},
	{"renews", "Renew", func(ctx context.Context, h *hosting, run, host string) error {
		_, err := h.self().Renew(ctx, of(run, host))
		return err
	}},
	{"tails", "Tail", func(ctx context.Context, h *hosting, run, host string) error {
		_, err := h.self().Tail(ctx, core.TailRequest{RunKey: key(run), Host: hostOf(host)})
		_, files := h.self().Tail(ctx, core.TailRequest{RunKey: key(run), Host: hostOf(host), Stream: core.StreamFiles})
		return cmp.Or(err, files)
	}},
	{"detaches", "Detach", func(ctx context.Context, h *hosting, run, host string) error {
		_, err := h.self().Detach(ctx, of(run, host))
		return err
	}},
	{"pauses", "Interrupt", func(ctx context.Context, h *hosting, run, host string) error {
		_, err := h.self().Interrupt(ctx, of(run, host))
		return err
	}},
	{"cancels", "Cancel", func(ctx context.Context, h *hosting, run, host string) error {
		_, err := h.self().Cancel(ctx, core.CancelRequest{RunKey: key(run), Host: hostOf(host)})
		return err
	}},
	{"asks for a cancel", "Cancel", func(ctx context.Context, h *hosting, run, _ string) error {
		_, err := h.self().Cancel(ctx, core.CancelRequest{RunKey: key(run)})
		return err
	}},
	{"finishes", "Finish", func(ctx context.Context, h *hosting, run, host string) error {
		_, err := h.self().Finish(ctx, core.FinishRequest{RunKey: key(run), Host: hostOf(host)})
		return err
	}},
	{"fails", "Fail", func(ctx context.Context, h *hosting, run, host string) error {
		_, err := h.self().Fail(ctx, core.FailRequest{RunKey: key(run), Host: hostOf(host), Error: core.RunFault{Code: "host"}})
		return err
	}},
	{"gets", "Get", func(ctx context.Context, h *hosting, run, _ string) error {
		_, err := h.self().Get(ctx, core.GetRequest{RunKey: key(run)})
		return err
	}},
	{"lists", "List", func(ctx context.Context, h *hosting, _, _ string) error {
		_, err := h.self().List(ctx, core.ListRunsRequest{ThreadKey: core.ThreadKey{Tenant: "acme", Thread: "t"}})
		return err
	}},
	{"reads segments", "Segments", func(ctx context.Context, h *hosting, run, _ string) error {
		_, err := h.self().Segments(ctx, core.SegmentsRequest{RunKey: key(run)})
		return err
	}},
	{"sweeps", "", func(ctx context.Context, h *hosting, _, _ string) error {
		_, err := h.sweep(h.store.Process).Run(ctx, core.SweepRequest{})
		h.drainQueue(h.store.Process)
		return err
	}},
}

// rivals are who makes a move within an operation of the host one on the run r.
var rivals = map[string]struct{ run, host string }{
	"its own host": {"r", "one"}, "another host on the run": {"r", "two"}, "another host on the thread": {"s", "two"},
}

// TestSessionSurvivesAnotherAtEveryCall: whatever comes within an operation, before any of
// its calls, of a run one host is the driver, of a thread one run the writer; a thread has
// one sandbox in service, each task a ledger row, no run two agents, no tenant more than
// its quota; and once all hosts are gone nothing is left.
func TestSessionSurvivesAnotherAtEveryCall(t *testing.T) {
	points, pair := 0, 0
	for what, c := range sessionCalls {
		for _, m := range moves {
			for who, rival := range rivals {
				if pair++; raceDetector && pair%8 != 0 {
					continue // the schedules are the same without it
				}
				t.Run(what+", "+who+" "+m.name, func(t *testing.T) {
					calls := 0
					for n := 0; n <= calls; n++ { // the zeroth: nobody comes
						points++
						synctest.Test(t, func(t *testing.T) {
							h := newHosting(t)
							calls = max(calls, h.intrude(what, m, c, n, func(ctx context.Context) error { return m.do(ctx, h, rival.run, rival.host) }))
							h.gone()
						})
					}
				})
			}
		}
	}
	t.Logf("session pairs: %d points", points)
	if points < 15_000 && !raceDetector {
		t.Errorf("%d points: the operations have shrunk", points)
	}
}

// TestKeptSessionSurvivesAnotherAtEveryCall: the same, of what writes a thread where
// checkpoints are kept.
func TestKeptSessionSurvivesAnotherAtEveryCall(t *testing.T) {
	points, pair := 0, 0
	rows := maps.Clone(keeps)
	for _, what := range []string{"renew", "interrupt", "continue"} {
		rows[what] = sessionCalls[what]
	}
	for what, c := range rows {
		for _, m := range moves {
			for who, rival := range rivals {
				if pair++; raceDetector && pair%8 != 0 {
					continue
				}
				t.Run(what+", "+who+" "+m.name, func(t *testing.T) {
					calls := 0
					for n := 0; n <= calls; n++ { // the zeroth: nobody comes
						points++
						bubble(t, func(t *testing.T) {
							h := keepingHosting(t)
							calls = max(calls, h.intrude(what, m, c, n, func(ctx context.Context) error { return m.do(ctx, h, rival.run, rival.host) }))
							h.oneWriter()
						})
					}
				})
			}
		}
	}
	t.Logf("kept session pairs: %d points", points)
	if points < 3_000 && !raceDetector {
		t.Errorf("%d points: the operations have shrunk", points)
	}
}

// intrude does the operation with another before its nth call, looks before each of its
// calls and at the end, and returns how many there were.
func (h *hosting) intrude(what string, m move, c call, n int, other func(ctx context.Context) error) int {
	h.t.Helper()
	h.limits.PauseTTL = 10 * time.Minute
	c.before(h)
	var at atomic.Int64 // a listing reads runs side by side
	var p *mem.Process
	p = h.store.NewProcess(mem.Faults{Before: func(ctx context.Context, _ string) {
		now := int(at.Add(1))
		if now == n {
			h.listed(m.of, other(context.WithValue(ctx, hostingKey{}, h)))
		}
		if now >= n {
			h.alone(n, p)
		}
	}})
	for range 3 { // it may fail
		done, err := c.do(h.in(), h.session(p))
		h.listed(operationOf(what), err)
		if h.keep != nil {
			h.atWork(h.t.Context())
		}
		if done || err != nil {
			break
		}
		time.Sleep(2 * time.Second)
	}
	h.check()
	h.alone(n, p)
	h.oneDriver()
	return len(p.Calls())
}

// operationOf names what a call of [sessionCalls] does.
func operationOf(what string) string {
	op := strings.TrimRight(strings.Fields(what)[0], ",")
	if op == "continue" {
		return "start"
	}
	return op
}

// listed fails the test if an operation was refused with a code that it does not promise:
// to a host every code is final.
func (h *hosting) listed(op string, err error) {
	h.t.Helper()
	if refused, ok := errors.AsType[*core.RefusedError](err); ok && op != "" && !slices.Contains(core.Refusals(strings.ToLower(op)), refused.Why) {
		h.t.Errorf("%s is refused as %s, which it does not list: %v", op, refused.Why, err)
	}
}

// oneDriver fails the test if two hosts have a run.
func (h *hosting) oneDriver() {
	h.t.Helper()
	for k := range h.store.State().Runs {
		have := 0
		for _, name := range []string{"zero", "one", "two"} {
			if _, err := h.self().Renew(h.t.Context(), core.HostRequest{RunKey: k, Host: hostOf(name)}); err == nil {
				have++
			}
		}
		if have > 1 {
			h.t.Errorf("%d hosts drive run %s", have, k)
		}
	}
}

// oneWriter fails the test if two runs of a thread write it: of those that go on, their
// hosts renewing, one is told that it does.
func (h *hosting) oneWriter() {
	h.t.Helper()
	var writers []core.RunKey
	for k, r := range h.store.State().Runs {
		if r.Status == core.Running && r.Row == core.RowLapse {
			if report, err := h.self().Renew(h.t.Context(), core.HostRequest{RunKey: k, Host: r.ClaimNonce}); err == nil && !report.Cancel {
				writers = append(writers, k)
			}
		}
	}
	if len(writers) > 1 {
		h.t.Errorf("%v write one thread", writers)
	}
}

// alone fails the test if a run has two agents at work, a thread two sandboxes in service,
// a task no ledger row, or a tenant more sandboxes than its quota.
func (h *hosting) alone(n int, p *mem.Process) {
	h.t.Helper()
	h.fleet.CheckTasks()
	agents, serving, counted := map[core.RunID]int{}, map[core.SandboxKey]int{}, map[core.TenantID]int{}
	rows := h.store.State().Rows
	named := map[string]bool{} // a task that no row names is its host's own still
	for _, row := range rows {
		named[row.TaskARN] = true
	}
	for _, a := range h.fleet.Agents() {
		if a.Alive && named[a.Task] {
			agents[a.Run]++
		}
	}
	for _, row := range rows {
		if row.State == core.LedgerRunning {
			serving[row.Key]++
		}
		if row.State != core.LedgerClosed && row.Quota > 0 {
			counted[row.Tenant]++
		}
	}
	for run, many := range agents {
		if many > 1 {
			h.t.Errorf("before call %d of %v: run %s has %d agents", n, p.Calls(), run, many)
		}
	}
	for key, many := range serving {
		if many > 1 {
			h.t.Errorf("before call %d of %v: %s has %d sandboxes in service", n, p.Calls(), key, many)
		}
	}
	for tenant, many := range counted {
		if many > 2 {
			h.t.Errorf("before call %d of %v: tenant %s has %d sandboxes of 2", n, p.Calls(), tenant, many)
		}
	}
}

// TestTwoStartsAtTheQuotasEdge: of two starts of a tenant, in threads of their own, with
// room for one sandbox, one gets it, whichever comes between which calls of the other; it
// is never passed, and the other gets its turn when the first is gone.
func TestTwoStartsAtTheQuotasEdge(t *testing.T) {
	calls := 0
	for n := 0; n <= calls; n++ {
		synctest.Test(t, func(t *testing.T) {
			h := newHosting(t)
			at, most := 0, 0
			p := h.store.NewProcess(mem.Faults{Before: func(ctx context.Context, _ string) {
				if at++; at == n {
					_, _ = h.limited(h.store.Process).Start(ctx, ofThread("two"))
				}
				most = max(most, len(h.fleet.Running()))
			}})
			_, err1 := h.limited(p).Start(t.Context(), ofThread("one"))
			calls = max(calls, len(p.Calls()))
			report, err2 := h.limited(h.store.Process).Start(t.Context(), ofThread("two"))
			first := err1 == nil && h.fleet.Alive("one")
			second := err2 == nil && report.State == core.Ready && h.fleet.Alive("two")
			if first == second || max(most, len(h.fleet.Running())) != 1 {
				t.Fatalf("before call %d of %v: %v and %v, at most %d tasks", n, p.Calls(), err1, err2, most)
			}
			has, waits := "one", "two"
			if second {
				has, waits = "two", "one"
			}
			refusedFor(t, "the other start", map[bool]error{true: err2, false: err1}[first], "quota")
			_, err := h.limited(h.store.Process).Cancel(t.Context(), core.CancelRequest{RunKey: key(has), Host: hostOf(has)})
			h.must(err)
			h.drainQueue(h.store.Process)
			report, err = h.limited(h.store.Process).Start(t.Context(), ofThread(waits))
			h.must(err)
			if report.State != core.Ready {
				t.Errorf("the other start, when there is room: %+v", report)
			}
			h.check()
		})
	}
}

// TestAdoptSurvivesAnotherAtEveryCall: whatever comes within an adoption, the task serves
// one run at most, by one ledger row, and an adoption that was told that it is ready has it.
func TestAdoptSurvivesAnotherAtEveryCall(t *testing.T) {
	for _, m := range moves {
		for who, rival := range rivals {
			t.Run(who+" "+m.name, func(t *testing.T) {
				calls := 0
				for n := 0; n <= calls; n++ {
					synctest.Test(t, func(t *testing.T) {
						h := newHosting(t)
						h.fleet.RunStray("mine/own")
						p := h.store.NewProcess(mem.Between(n, func(ctx context.Context) { h.listed(m.of, m.do(ctx, h, rival.run, rival.host)) }))
						report, err := adopts(t.Context(), h.session(p))
						calls = max(calls, len(p.Calls()))
						h.listed("adopt", err)
						h.store.Check(t)
						h.alone(n, p)
						rows := 0
						for _, row := range h.store.State().Rows {
							if row.State == core.LedgerRunning && strings.HasSuffix(row.TaskARN, "/0001") {
								rows++
							}
						}
						if rows > 1 || err == nil && report.State == core.Ready && rows != 1 {
							t.Errorf("before call %d of %v: %s, %v, and %d rows", n, p.Calls(), report.State, err, rows)
						}
					})
				}
			})
		}
	}
}
