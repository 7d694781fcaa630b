package core_test

import (
	"context"
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
