package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// TestWhoLostATaskEndsNobodysSandbox: of two tenants whose runs adopt one task at the same
// time, whichever comes between which calls, one has it; and whatever becomes of the other's
// run, however often its end is told, the task serves on.
func TestWhoLostATaskEndsNobodysSandbox(t *testing.T) {
	lost, named := 0, 0
	for n := 1; n <= 9; n++ { // as many as it makes
		synctest.Test(t, func(t *testing.T) {
			h := newHosting(t)
			arn := h.fleet.RunStray("mine/own")
			h.fleet.BeginStray(arn, "r", adoptedJournal)
			ask := func(tenant core.TenantID) core.AdoptRequest {
				return core.AdoptRequest{
					RunKey: core.RunKey{Tenant: tenant, Run: "r"}, Thread: "t", Host: hostOf(string(tenant)), TaskARN: arn, Container: "agent", Journal: adoptedJournal,
				}
			}
			p := h.store.NewProcess(mem.Between(n, func(ctx context.Context) { _, _ = h.self().Adopt(ctx, ask("umbra")) }))
			_, _ = h.session(p).Adopt(t.Context(), ask("acme"))
			h.limits.RunTTL = 10 * time.Minute
			for range 20 { // who has the task keeps it, and the other leaves
				for k, r := range h.store.State().Runs {
					if r.TaskARN != "" {
						_, err := h.self().Renew(t.Context(), core.HostRequest{RunKey: k, Host: r.ClaimNonce})
						h.must(err)
					}
				}
				time.Sleep(time.Minute)
				h.tick()
			}
			for k, r := range h.store.State().Runs {
				if r.TaskARN == "" {
					if r.Instance != "" {
						named++
					}
					if lost++; !r.Status.Terminal() || r.Row != core.RowNone {
						t.Errorf("before call %d: run %s is left: %s, %s", n, k, r.Status, r.Row)
					}
				}
			}
			if len(h.fleet.Running()) != 1 || !h.fleet.Alive("r") {
				t.Errorf("before call %d of %v: running %v", n, p.Calls(), h.fleet.Running())
			}
			h.check()
		})
	}
	if lost < 3 || named == 0 {
		t.Errorf("%d runs lost the task, %d of them had named it: nothing came between", lost, named)
	}
}

// TestAnAdoptedAgentEndsBeforeItsRun: also where its host gives the run up, or finishes it,
// before it was told that it has the task.
func TestAnAdoptedAgentEndsBeforeItsRun(t *testing.T) {
	for what, end := range map[string]func(c host) error{
		"cancel": func(c host) error { _, err := c.cancel(); return err },
		"fail":   func(c host) error { _, err := c.fail(); return err },
		"finish": func(c host) error { c.h.fleet.Exit("r", 0); _, err := c.finish(nil); return err },
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newHosting(t)
			h.checkpoint = core.CheckpointAlways
			h.fleet.BeginStray(h.fleet.RunStray("mine/own"), "r", adoptedJournal)
			h.fleet.Write("r", "work\n")
			_, err := adopts(t.Context(), h.session(h.failing("note start")))
			if err == nil || h.run("r").TaskARN == "" {
				t.Fatalf("%s: adopted: %v, task %q", what, err, h.run("r").TaskARN)
			}
			h.must(end(host{h, "r", "one"}))
			if r := h.run("r"); !r.Status.Terminal() || h.fleet.Alive("r") || h.transcript("r") != "work\n" || !r.Checkpoint.Owes() {
				t.Errorf("%s: run %s, agent lives %t, transcript %q, checkpoint %+v", what, r.Status, h.fleet.Alive("r"), h.transcript("r"), r.Checkpoint)
			}
			h.check()
		})
	}
}

// TestASandboxThatNobodyCouldEnterIsNoHeritage: the agent of a paused run that could not be
// ended for the whole drain grace may work on, and the run that goes on works elsewhere.
func TestASandboxThatNobodyCouldEnterIsNoHeritage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		h.limits.PauseTTL = 4 * time.Hour
		first := h.ready(startOf("ask", "zero"))
		_, err := host{h, "ask", "zero"}.interrupt()
		h.must(err)
		q := startOf("r", "one")
		q.Parent = "ask"
		var report core.StartReport
		for begun := time.Now(); time.Since(begun) < 2*h.limits.DrainGrace && report.State != core.Ready; time.Sleep(2 * time.Minute) {
			report, _ = h.session(h.failing("terminate")).Start(t.Context(), q) // it may fail
			if task := h.run("ask").TaskARN; h.fleet.Alive("r") && h.run("r").TaskARN == task {
				t.Fatal("two agents work in one sandbox")
			}
			h.drainQueue(h.store.Process)
		}
		if report.State != core.Ready || report.Run.TaskARN == first.Run.TaskARN || h.run("ask").Status != core.Completed {
			t.Errorf("continued %+v; ask is %s", report, h.run("ask").Status)
		}
		h.check()
	})
}

// TestTheEndOfAnAdoptedTaskIsHeard at once, though its host has named it: the row is found
// by the task.
func TestTheEndOfAnAdoptedTaskIsHeard(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHosting(t)
		arn := h.fleet.RunStray("mine/own")
		h.fleet.BeginStray(arn, "r", adoptedJournal)
		_, err := adopts(t.Context(), h.self())
		h.must(err)
		_, err = host{h, "r", "one"}.detach()
		h.must(err)
		h.fleet.KillTask(arn)
		for _, news := range []string{h.fleet.RunStray("mine/own"), arn} {
			_, err = h.sweep(h.store.Process).TaskStopped(t.Context(), core.StoppedTask{ARN: news, StartedBy: "mine/own", At: now()})
			h.must(err)
			if r := h.run("r"); r.Status.Terminal() != (news == arn) {
				t.Errorf("after news of %s the run is %s", news, r.Status)
			}
		}
	})
}
