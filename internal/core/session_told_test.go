package core_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// TestEveryEndByAHostIsTold on the bus, as one by a sweep is: who listens need not know
// which of the two ended a run.
func TestEveryEndByAHostIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		end    func(h *hosting, me host)
		status core.Status
		of     core.Outcome
	}{
		"finish": {func(h *hosting, me host) {
			h.fleet.Exit("r", 0)
			_, err := me.finish(nil)
			h.must(err)
		}, core.Completed, core.Finalized},
		"cancel": {func(h *hosting, me host) {
			_, err := me.cancel()
			h.must(err)
		}, core.Aborted, core.Cancelled},
		"fail": {func(h *hosting, me host) {
			_, err := me.fail()
			h.must(err)
		}, core.Failed, core.Cancelled},
		"a run that goes on for it": {func(h *hosting, me host) {
			_, err := me.interrupt()
			h.must(err)
			q := startOf("next", "two")
			q.Parent = "r"
			h.ready(q)
		}, core.Completed, core.Finalized},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHosting(t)
				h.ready(startOf("r", "one"))
				me := host{h, "r", "one"}
				c.end(h, me)
				r := h.run("r")
				want := []core.Notice{{
					Type: core.NoticeFinalized, RunKey: key("r"), Thread: "t", Outcome: c.of, Status: c.status, ExitCode: r.ExitCode,
					Reason: "ended by its host", TaskARN: r.TaskARN, At: r.FinishedAt,
				}}
				if !slices.EqualFunc(h.notices, want, func(a, b core.Notice) bool {
					a.ExitCode, b.ExitCode = nil, nil
					return a == b
				}) || r.Status != c.status {
					t.Errorf("run %+v\ntold %+v\nwant %+v", r, h.notices, want)
				}
				_, err := me.finish(nil) // asked again
				if e, refused := errors.AsType[*core.RefusedError](err); err != nil && !refused {
					t.Errorf("asked again: %v, %+v", err, e)
				}
				if len(h.notices) != 1 {
					t.Errorf("told again: %+v", h.notices)
				}
			})
		})
	}
}

// TestAnEndIsNotWorthFailingForABus that takes nothing: the record is the truth.
func TestAnEndIsNotWorthFailingForABus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		h.ready(startOf("r", "one"))
		h.fleet.Exit("r", 0)
		s := h.self()
		s.Launcher.Announcer = deafBus{}
		report, err := s.Finish(t.Context(), core.FinishRequest{RunKey: key("r"), Host: hostOf("one")})
		if err != nil || report.State != core.Finished || !h.run("r").Status.Terminal() {
			t.Errorf("finish: %+v, %v", report, err)
		}
	})
}

// TestATranscriptWithoutItsEndIsTold: it is the work of an agent that has finished (I5). One
// that ends with its task, or keeps head and tail by its limit, is what was to be expected.
func TestATranscriptWithoutItsEndIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		happens    func(h *hosting)
		incomplete bool
	}{
		"a journal that was rewritten, drained by its host": {func(h *hosting) {
			h.fleet.Write("r", strings.Repeat("a line of what it did first\n", 4<<10))
			_, err := h.self().Tail(h.t.Context(), core.TailRequest{RunKey: key("r"), Host: hostOf("one")})
			h.must(err)
			h.fleet.Rewrite("r", "it is something else altogether\n")
			h.fleet.Exit("r", 0)
			_, err = host{h, "r", "one"}.finish(nil)
			h.must(err)
		}, true},
		"a sandbox that does not answer for the whole grace": {func(h *hosting) {
			_, err := h.self().Cancel(h.t.Context(), core.CancelRequest{RunKey: key("r")})
			h.must(err)
			time.Sleep(core.CancelGrace)
			sweep := h.sweep(h.store.Process)
			sweep.Prober = silent{sweep.Prober}
			for begun := time.Now(); time.Since(begun) < 2*h.limits.DrainGrace && !h.run("r").Status.Terminal(); time.Sleep(time.Minute) {
				_, err := sweep.Run(h.t.Context(), core.SweepRequest{})
				h.must(err)
			}
		}, true},
		"a task that died": {func(h *hosting) {
			_, err := host{h, "r", "one"}.detach()
			h.must(err)
			h.fleet.KillTask(h.run("r").TaskARN)
			h.recover()
		}, false},
		"a task that died, of a run that was to end": {func(h *hosting) {
			_, err := host{h, "r", "one"}.detach()
			h.must(err)
			h.fleet.KillTask(h.run("r").TaskARN)
			_, err = h.self().Cancel(h.t.Context(), core.CancelRequest{RunKey: key("r")})
			h.must(err)
			h.recover()
		}, false},
		"a task that died in a pause, of a run that goes on": {func(h *hosting) {
			_, err := host{h, "r", "one"}.interrupt()
			h.must(err)
			h.fleet.KillTask(h.run("r").TaskARN)
			q := startOf("next", "two")
			q.Parent = "r"
			h.ready(q)
		}, false},
		"a whole one": {func(h *hosting) {
			h.fleet.Write("r", "whole\n")
			h.fleet.Exit("r", 0)
			_, err := host{h, "r", "one"}.finish(nil)
			h.must(err)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHosting(t)
				h.ready(startOf("r", "one"))
				c.happens(h)
				if r := h.run("r"); !r.Status.Terminal() || len(h.notices) != 1 || h.notices[0].Incomplete != c.incomplete {
					t.Errorf("run %+v, transcript %+v\ntold %+v, want incomplete: %t", r.Status, r.Transcript, h.notices, c.incomplete)
				}
			})
		})
	}
}
