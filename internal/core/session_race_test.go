package core_test

import (
	"context"
	"strings"
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
			at := 0
			var err2 error
			p := h.store.NewProcess(mem.Faults{Before: func(ctx context.Context, _ string) {
				if at++; at == n {
					err2 = second(ctx, h.self())
				}
			}})
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

// intruders are what others do within an operation of the host "one" on run r.
var intruders = map[string]func(ctx context.Context, h *hosting){
	"another host takes it over": func(ctx context.Context, h *hosting) {
		_, _ = h.self().Attach(ctx, core.AttachRequest{RunKey: key("r"), Host: hostOf("two"), Takeover: true})
	},
	"another host starts the same run": func(ctx context.Context, h *hosting) { _, _ = h.self().Start(ctx, startOf("r", "two")) },
	"another run of the thread starts": func(ctx context.Context, h *hosting) { _, _ = h.self().Start(ctx, startOf("s", "two")) },
	"its own host asks for the same":   nil, // whatever the operation is
	"its own host detaches": func(ctx context.Context, h *hosting) {
		_, _ = h.self().Detach(ctx, core.HostRequest{RunKey: key("r"), Host: hostOf("one")})
	},
	"its own host pauses it": func(ctx context.Context, h *hosting) {
		_, _ = h.self().Interrupt(ctx, core.HostRequest{RunKey: key("r"), Host: hostOf("one")})
	},
	"its own host finishes it": func(ctx context.Context, h *hosting) {
		_, _ = h.self().Finish(ctx, core.FinishRequest{RunKey: key("r"), Host: hostOf("one")})
	},
	"its own host fails it": func(ctx context.Context, h *hosting) {
		_, _ = h.self().Fail(ctx, core.FailRequest{RunKey: key("r"), Host: hostOf("one"), Error: core.RunFault{Code: "host"}})
	},
	"somebody cancels it": func(ctx context.Context, h *hosting) {
		_, _ = h.self().Cancel(ctx, core.CancelRequest{RunKey: key("r")})
	},
	"somebody reads": func(ctx context.Context, h *hosting) {
		_, _ = h.self().List(ctx, core.ListRunsRequest{ThreadKey: core.ThreadKey{Tenant: "acme", Thread: "t"}})
		_, _ = h.self().Tail(ctx, core.TailRequest{RunKey: key("r")})
	},
	"a sweep comes": func(ctx context.Context, h *hosting) {
		_, _ = h.sweep(h.store.Process).Run(ctx, core.SweepRequest{})
		h.drainQueue(h.store.Process)
	},
}

// TestSessionSurvivesAnotherAtEveryCall: whatever comes within an operation, before any of
// its calls, no run has two agents, a thread has one sandbox, and once all hosts are gone
// nothing is left.
func TestSessionSurvivesAnotherAtEveryCall(t *testing.T) {
	points := 0
	for what, c := range sessionCalls {
		for who, intrudes := range intruders {
			t.Run(what+", "+who, func(t *testing.T) {
				for n, calls := 1, 1; n <= calls; n++ {
					points++
					synctest.Test(t, func(t *testing.T) { calls = max(calls, intrude(newHosting(t), c, n, intrudes)) })
				}
			})
		}
	}
	t.Logf("session pairs: %d points", points)
	if points < 800 {
		t.Errorf("%d points: the operations have shrunk", points)
	}
}

// intrude does the operation with another before its nth call, looks, lets all hosts be
// gone, and returns how many calls it made.
func intrude(h *hosting, c call, n int, other func(ctx context.Context, h *hosting)) int {
	h.t.Helper()
	h.limits.PauseTTL = 10 * time.Minute
	c.before(h)
	if other == nil {
		other = func(ctx context.Context, h *hosting) { _, _ = c.do(ctx, h.self()) }
	}
	at := 0
	p := h.store.NewProcess(mem.Faults{Before: func(ctx context.Context, _ string) {
		if at++; at == n {
			other(ctx, h)
		}
	}})
	_, _ = c.do(h.t.Context(), h.session(p)) // it may fail
	h.check()
	h.alone(n, p)
	h.gone()
	return len(p.Calls())
}

// alone fails the test if a run has two agents at work, or a thread two sandboxes in
// service.
func (h *hosting) alone(n int, p *mem.Process) {
	h.t.Helper()
	agents, serving := map[core.RunID]int{}, map[core.SandboxKey]int{}
	for _, a := range h.fleet.Agents() {
		if a.Alive {
			agents[a.Run]++
		}
	}
	for _, row := range h.store.State().Rows {
		if row.State == core.LedgerRunning {
			serving[row.Key]++
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
}

// TestAdoptSurvivesAnotherAtEveryCall: whatever comes within an adoption, the task serves
// one run at most, by one ledger row, and an adoption that was told that it is ready has it.
func TestAdoptSurvivesAnotherAtEveryCall(t *testing.T) {
	for who, intrudes := range intruders {
		if intrudes == nil {
			intrudes = func(ctx context.Context, h *hosting) { _, _ = adopts(ctx, h.self()) }
		}
		t.Run(who, func(t *testing.T) {
			for n, calls := 1, 1; n <= calls; n++ {
				synctest.Test(t, func(t *testing.T) {
					h := newHosting(t)
					h.fleet.RunStray("mine/own")
					at := 0
					p := h.store.NewProcess(mem.Faults{Before: func(ctx context.Context, _ string) {
						if at++; at == n {
							intrudes(ctx, h)
						}
					}})
					report, err := adopts(t.Context(), h.session(p))
					calls = max(calls, len(p.Calls()))
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
