package core_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// hosting is a world whose runs hosts begin through sessions.
type hosting struct {
	*world
	keep *keeping // nil: no checkpoints are kept
	full bool     // the installation has all that a definition can ask for
}

func newHosting(t *testing.T) *hosting { return &hosting{world: newWorld(t)} }

// keepingHosting keeps the workspaces of finished runs. The agents that capture and
// restore are carried out by the test.
func keepingHosting(t *testing.T) *hosting {
	h := newHosting(t)
	h.checkpoint = core.CheckpointFinished
	h.keep = newKeeping(t)
	h.keep.store = h.store
	return h
}

func (h *hosting) session(p *mem.Process) *core.Session {
	s := &core.Session{
		Launcher: h.launcher(p), Binds: p, Controls: p, Log: &core.LogWriter{Log: p, Blobs: p, Inline: h.limits.InlineSegment},
		Prober: h.fleet.View(p), Notes: p, History: p, Checkpoint: h.checkpoint, Provider: "fargate", Cluster: "c",
	}
	if h.keep != nil {
		s.Keeper = h.keep.keeper(p)
	}
	if h.full {
		view := h.fleet.View(p)
		s.Setups, s.Functions, s.HostFunctions, s.Secrets = view, view, []string{"hook", "tool"}, p
		s.Spool, s.Grants, s.Definitions, s.ToolsURL, s.Launcher.Quota = p, p, p, place{"https://tools.test", ""}, core.Quota{Each: 2}
	}
	return s
}

// complete gives the installation all that a definition can ask for.
func (h *hosting) complete() {
	h.full, h.functions, h.copies = true, true, true
	h.store.SeedSecret(secretRef, "value")
	h.store.SeedDefinition(*fullStart("", "").Definition)
}

// fullStart is a start whose definition asks for all that there is: a set-up with a secret,
// hooks, a tool, file events, and a copy.
func fullStart(run, host string) core.StartRequest {
	q := planned(run)
	q.Host = hostOf(host)
	q.Definition.Hooks = core.HookPlan{Ready: "hook", Error: "hook", Destroyed: "hook", File: "hook"}
	q.Definition.Tools = []core.ToolPlan{{Name: "ask", Function: "tool"}}
	q.Definition.FileEvents.Enabled = true
	q.Definition.Snapshots = core.SnapshotsAfterSetup
	return q
}

func (h *hosting) self() *core.Session { return h.session(h.store.Process) }

// hostOf is what a host calls its attachment.
func hostOf(name string) string { return name + "-0123456789abcdef" }

var definition = core.Definition{
	Name: "d", Version: 1, Task: core.TaskTemplate{TaskDefinition: "family", Container: "agent", Subnets: []string{"subnet-1"}},
}

// startOf is the request with which a host begins a run of the thread t.
func startOf(run, host string) core.StartRequest {
	return core.StartRequest{
		RunKey: key(run), Thread: "t", Host: hostOf(host), Definition: new(definition), Agent: core.AgentPlan{Argv: []string{"agent"}},
	}
}

func (h *hosting) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// ready has a run started, in as many steps as it takes.
func (h *hosting) ready(q core.StartRequest) core.StartReport {
	h.t.Helper()
	for range 20 {
		report, err := h.self().Start(h.t.Context(), q)
		h.must(err)
		if report.State == core.Ready {
			return report
		}
		time.Sleep(time.Second)
	}
	h.t.Fatalf("run %s never gets ready", q.RunKey)
	return core.StartReport{}
}

// TestANudgeSaysHowLongTheHostIsBelieved: what the record tells of an attachment is when
// another host may have the run, and whatever the host asks for next keeps it, a start that
// goes on too.
func TestANudgeSaysHowLongTheHostIsBelieved(t *testing.T) {
	for what, keep := range map[string]func(h *hosting) error{
		"renew":  func(h *hosting) error { _, err := host{h, "r", "one"}.renew(); return err },
		"attach": func(h *hosting) error { _, err := host{h, "r", "one"}.attach(false); return err },
		"start":  func(h *hosting) error { _, err := h.self().Start(t.Context(), startOf("r", "one")); return err },
		"none":   func(*hosting) error { return nil },
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newHosting(t)
			h.ready(startOf("r", "one"))
			_, err := host{h, "r", "one"}.renew()
			h.must(err)
			_, err = h.sweep(h.store.Process).Nudged(t.Context(), key("r"))
			h.must(err)
			view, err := h.self().Get(t.Context(), core.GetRequest{RunKey: key("r")})
			h.must(err)
			if view.AttachedUntil != now().Add(h.limits.HintLapse) {
				t.Errorf("%s: attached until %s from now", what, view.AttachedUntil.Sub(now()))
			}
			time.Sleep(h.limits.HintLapse - 1)
			_, err = host{h, "r", "two"}.attach(false)
			refusedFor(t, what+": attach before", err, "attached-elsewhere")
			h.must(keep(h))
			time.Sleep(time.Second)
			_, err = host{h, "r", "two"}.attach(false)
			if (err == nil) != (what == "none") {
				t.Errorf("%s: attach after: %v", what, err)
			}
		})
	}
}

// refusedFor fails unless err is a refusal with that code.
func refusedFor(t *testing.T, what string, err error, code string) {
	t.Helper()
	if e, ok := errors.AsType[*core.RefusedError](err); !ok || e.Why != code {
		t.Errorf("%s: %v, want the refusal %q", what, err, code)
	}
}

// host is one host's calls for one run.
type host struct {
	h    *hosting
	run  string
	name string
}

func (c host) request() core.HostRequest {
	return core.HostRequest{RunKey: key(c.run), Host: hostOf(c.name)}
}

func (c host) renew() (core.RenewReport, error) {
	return c.h.self().Renew(c.h.t.Context(), c.request())
}
func (c host) detach() (core.RenewReport, error) {
	return c.h.self().Detach(c.h.t.Context(), c.request())
}

func (c host) attach(takeover bool) (core.RenewReport, error) {
	return c.h.self().Attach(c.h.t.Context(), core.AttachRequest{RunKey: key(c.run), Host: hostOf(c.name), Takeover: takeover})
}

func (c host) interrupt() (core.RenewReport, error) {
	return c.h.self().Interrupt(c.h.t.Context(), c.request())
}

func (c host) cancel() (core.EndReport, error) {
	return c.h.self().Cancel(c.h.t.Context(), core.CancelRequest{RunKey: key(c.run), Host: hostOf(c.name)})
}

func (c host) fail() (core.EndReport, error) {
	return c.h.self().Fail(c.h.t.Context(), core.FailRequest{RunKey: key(c.run), Host: hostOf(c.name), Error: core.RunFault{Code: "host", Message: "lost its database"}})
}

// TestAStartGoesOnWhenItIsAskedAgain: one record, one task, one agent, whoever asks how
// often.
func TestAStartGoesOnWhenItIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		first := h.ready(startOf("r", "host"))
		if first.Ensured != core.EnsuredCreated || first.Run.Status != core.Running || first.Run.ReadyAt == 0 || first.RestoredFrom != "" {
			t.Errorf("started %+v", first)
		}
		again := h.ready(startOf("r", "host"))
		if again.Run.TaskARN != first.Run.TaskARN || again.Run.ReadyAt != first.Run.ReadyAt || again.Ensured != core.EnsuredCreated {
			t.Errorf("asked again: %+v, want %+v", again, first)
		}
		if n := len(h.fleet.Running()); n != 1 || !h.fleet.Alive("r") {
			t.Errorf("%d tasks run; the agent lives: %t", n, h.fleet.Alive("r"))
		}
		h.check()
	})
}

// TestAttachmentsPassBetweenHosts: a host that leaves lets another in; a takeover takes;
// who lost the run learns it, and changes nothing any more.
func TestAttachmentsPassBetweenHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		h.ready(startOf("r", "one"))
		one, two := host{h, "r", "one"}, host{h, "r", "two"}
		_, err := two.attach(false)
		refusedFor(t, "attach to an attached run", err, "attached-elsewhere")
		_, err = two.renew()
		refusedFor(t, "renew without a claim", err, "claim-lost")
		report, err := one.detach()
		h.must(err)
		if report.Run.DetachedSince != now() || report.Run.AttachedUntil != 0 {
			t.Errorf("detached: %+v", report.Run)
		}
		time.Sleep(time.Minute)
		again, err := one.detach()
		h.must(err)
		if again.Run.DetachedSince != report.Run.DetachedSince {
			t.Errorf("detached again: %d, want %d", again.Run.DetachedSince, report.Run.DetachedSince)
		}
		report, err = two.attach(false)
		h.must(err)
		if report.Run.DetachedSince != 0 || report.Run.AttachedUntil != now().Add(h.limits.Attachment) {
			t.Errorf("attached: %+v", report.Run)
		}
		_, err = one.interrupt()
		refusedFor(t, "interrupt without a claim", err, "claim-lost")
		report, err = one.detach() // it has left already: nothing happens to the other
		h.must(err)
		if report.Run.DetachedSince != 0 {
			t.Errorf("a host without a claim detached the run: %+v", report.Run)
		}
		_, err = one.attach(true)
		h.must(err)
		_, err = two.renew()
		refusedFor(t, "renew after a takeover", err, "claim-lost")
		_, err = one.attach(false) // its own attachment
		h.must(err)
		if r := h.run("r"); r.Epoch != 3 {
			t.Errorf("epoch %d, want 3", r.Epoch)
		}
		time.Sleep(h.limits.Attachment)
		_, err = two.attach(false) // the other's has lapsed
		h.must(err)
	})
}

// TestSessionRefusals are the refusals of each operation, by the state of the run.
func TestSessionRefusals(t *testing.T) {
	states := map[string]func(h *hosting){
		"none": func(*hosting) {},
		"cancelled elsewhere": func(h *hosting) {
			h.ready(startOf("r", "one"))
			_, err := h.self().Cancel(h.t.Context(), core.CancelRequest{RunKey: key("r")})
			h.must(err)
		},
		"ended": func(h *hosting) {
			h.ready(startOf("r", "one"))
			h.fleet.Exit("r", 0)
			_, err := host{h, "r", "one"}.detach()
			h.must(err)
			h.tick()
		},
		"paused": func(h *hosting) {
			h.ready(startOf("r", "one"))
			_, err := host{h, "r", "one"}.interrupt()
			h.must(err)
		},
	}
	ops := map[string]func(c host) error{
		"start":     func(c host) error { _, err := c.h.self().Start(c.h.t.Context(), startOf(c.run, c.name)); return err },
		"attach":    func(c host) error { _, err := c.attach(false); return err },
		"renew":     func(c host) error { _, err := c.renew(); return err },
		"detach":    func(c host) error { _, err := c.detach(); return err },
		"interrupt": func(c host) error { _, err := c.interrupt(); return err },
		"cancel":    func(c host) error { _, err := c.cancel(); return err },
		"fail":      func(c host) error { _, err := c.fail(); return err },
		"get": func(c host) error {
			_, err := c.h.self().Get(c.h.t.Context(), core.GetRequest{RunKey: key(c.run)})
			return err
		},
	}
	for state, want := range map[string]map[string]string{
		"none": {
			"start": "", "attach": "unknown-run", "renew": "unknown-run", "detach": "unknown-run", "interrupt": "unknown-run",
			"cancel": "unknown-run", "fail": "unknown-run", "get": "unknown-run",
		},
		"cancelled elsewhere": {
			"start": "cancel-requested", "attach": "cancel-requested", "renew": "", "detach": "", "interrupt": "cancel-requested", "cancel": "", "fail": "", "get": "",
		},
		"ended": {
			"start": "terminal-run", "attach": "terminal-run", "renew": "claim-lost", "detach": "", "interrupt": "claim-lost", "cancel": "terminal-run", "fail": "claim-lost", "get": "",
		},
		"paused": {
			"start": "too-late", "attach": "too-late", "renew": "claim-lost", "detach": "", "interrupt": "", "cancel": "", "fail": "", "get": "",
		},
	} {
		for op, code := range want {
			t.Run(state+" "+op, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newHosting(t)
					states[state](h)
					err := ops[op](host{h, "r", "one"})
					if code != "" {
						refusedFor(t, op, err, code)
					} else if err != nil {
						t.Errorf("%s: %v", op, err)
					}
					h.check()
				})
			})
		}
	}
}

// TestStartRefuses is what a start is refused for, beside the state of its run.
func TestStartRefuses(t *testing.T) {
	for code, c := range map[string]struct {
		before func(h *hosting)
		change func(q *core.StartRequest)
	}{
		"frozen": {before: func(h *hosting) {
			_, err := h.store.UpdateControl(h.t.Context(), core.Freeze{Now: now(), By: "ops", Why: "look"})
			h.must(err)
		}},
		"unknown-definition": {change: func(q *core.StartRequest) { q.Definition, q.DefinitionName = nil, "none" }},
		"thread-busy":        {before: func(h *hosting) { h.ready(startOf("first", "one")) }},
		"attached-elsewhere": {before: func(h *hosting) { h.ready(startOf("r", "another")) }},
	} {
		t.Run(code, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHosting(t)
				if c.before != nil {
					c.before(h)
				}
				q := startOf("r", "one")
				if c.change != nil {
					c.change(&q)
				}
				_, err := h.self().Start(t.Context(), q)
				refusedFor(t, "start", err, code)
				if code == "unknown-definition" && !strings.Contains(err.Error(), `want a definition that the installation keeps, got "none"`) {
					t.Errorf("start: %v", err)
				}
				h.check()
			})
		})
	}
}

// TestARefusedStartLapses: a run whose start was refused and is not asked again ends by
// itself, and leaves nothing.
func TestARefusedStartLapses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		h.ready(startOf("first", "one"))
		_, err := h.self().Start(t.Context(), startOf("r", "two"))
		refusedFor(t, "start", err, "thread-busy")
		for range 3 {
			time.Sleep(2 * time.Minute)
			_, err = host{h, "first", "one"}.attach(true)
			h.must(err)
			h.tick()
		}
		if r := h.run("r"); r.Status != core.Failed || r.Error.Code != "never-started" || r.Row != core.RowNone {
			t.Errorf("run %+v", r)
		}
		if r := h.run("first"); r.Status != core.Running || len(h.fleet.Running()) != 1 {
			t.Errorf("first: %+v", r)
		}
	})
}

// TestTheHostEndsItsRun: a cancel or failure by the host that has the run ends agent, run
// and sandbox, in the same call up to the message.
func TestTheHostEndsItsRun(t *testing.T) {
	for what, c := range map[string]struct {
		end    func(c host) (core.EndReport, error)
		status core.Status
		code   string
	}{
		"cancel": {host.cancel, core.Aborted, "cancelled"},
		"fail":   {host.fail, core.Failed, "host"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHosting(t)
				h.ready(startOf("r", "one"))
				h.fleet.Write("r", "at work\n")
				for range 2 { // the second only reports
					report, err := c.end(host{h, "r", "one"})
					h.must(err)
					if !report.Ended || report.Run.Status != c.status || report.Run.Error == nil || report.Run.Error.Code != c.code {
						t.Fatalf("ended: %+v", report)
					}
				}
				if h.fleet.Alive("r") {
					t.Error("the agent lives")
				}
				h.drainQueue(h.store.Process)
				h.ended("r", c.status, "at work\n")
				if n := len(h.fleet.Running()); n != 0 {
					t.Errorf("%d tasks run", n)
				}
				h.check()
			})
		})
	}
}

// TestACancelReachesTheDrivingHost within one renewal, and a sweep where there is none.
func TestACancelReachesTheDrivingHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		h.ready(startOf("r", "one"))
		report, err := h.self().Cancel(t.Context(), core.CancelRequest{RunKey: key("r")})
		h.must(err)
		if report.Ended || report.Waiting != "host" {
			t.Errorf("another host's cancel: %+v", report)
		}
		renewed, err := host{h, "r", "one"}.renew()
		h.must(err)
		if !renewed.Cancel || h.run("r").DueAt != now().Add(core.CancelGrace) {
			t.Errorf("renewed: %+v, due %d", renewed, h.run("r").DueAt)
		}
		time.Sleep(core.CancelGrace)
		h.tick()
		h.recover()
		h.ended("r", core.Aborted, "")
		if len(h.fleet.Running()) != 0 {
			t.Error("its sandbox stays")
		}
	})
}

// TestACancelDuringEnsure ends the half-built sandbox: RunTask has been asked for, and
// nobody knows with what answer.
func TestACancelDuringEnsure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		s := h.self()
		s.Launcher.Provider = lostAnswer{s.Launcher.Provider, true}
		if _, err := s.Start(t.Context(), startOf("r", "one")); err == nil {
			t.Fatal("started")
		}
		report, err := host{h, "r", "one"}.cancel()
		h.must(err)
		if !report.Ended || report.Run.Status != core.Aborted {
			t.Errorf("ended: %+v", report)
		}
		for range 15 {
			time.Sleep(2 * time.Minute)
			h.tick()
		}
		h.ended("r", core.Aborted, "")
		if n := len(h.fleet.Running()); n != 0 {
			t.Errorf("%d tasks run", n)
		}
	})
}

// TestAnEndThatCannotBeReachedGoesOn: what a host decides stands, though its sandbox does
// not answer: the next sweep ends it with the host's own error.
func TestAnEndThatCannotBeReachedGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		h.ready(startOf("r", "one"))
		s := h.session(h.failing("terminate"))
		report, err := s.Fail(t.Context(), core.FailRequest{RunKey: key("r"), Host: hostOf("one"), Error: core.RunFault{Code: "host", Message: "m"}})
		h.must(err)
		if report.Ended || report.Waiting == "" || report.Run.Ending != core.EndFailed {
			t.Fatalf("ended: %+v", report)
		}
		_, err = host{h, "r", "one"}.renew()
		refusedFor(t, "renew of a run that ends", err, "claim-lost")
		_, err = host{h, "r", "two"}.attach(true)
		refusedFor(t, "attach to a run that ends", err, "too-late")
		h.recover()
		h.ended("r", core.Failed, "")
		if r := h.run("r"); r.Error.Code != "host" || r.Error.Message != "m" {
			t.Errorf("error %+v", r.Error)
		}
	})
}

// TestAWarmSandboxServesTheNextTurn of its thread, and one of another definition does not.
func TestAWarmSandboxServesTheNextTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		first := h.ready(startOf("first", "one"))
		h.fleet.Exit("first", 0)
		_, err := host{h, "first", "one"}.detach()
		h.must(err)
		h.tick()
		second := h.ready(startOf("second", "two"))
		if second.Ensured != core.EnsuredResumed || second.Run.TaskARN != first.Run.TaskARN {
			t.Errorf("second turn: %+v", second)
		}
		box, err := h.store.Sandbox(t.Context(), h.run("second").SandboxKey)
		h.must(err)
		if box.LatestRun != "second" || box.DueAt != 0 || box.IdleSince != 0 {
			t.Errorf("sandbox %+v", box)
		}
		other := startOf("third", "three")
		other.Definition = new(definition)
		other.Definition.Task.TaskDefinition = "another"
		third := h.ready(other)
		if third.Ensured != core.EnsuredCreated || third.Run.TaskARN == first.Run.TaskARN {
			t.Errorf("another definition: %+v", third)
		}
		h.check()
	})
}

// TestAWarmSandboxOutlivesItsRunsRecord: a sandbox may be kept warm, or held, for longer
// than the records of ended runs are kept. The next turn finds it all the same.
func TestAWarmSandboxOutlivesItsRunsRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		h.limits.Retention = 24 * time.Hour
		q := startOf("first", "one")
		q.Definition.IdleTTLSeconds = 48 * 60 * 60
		first := h.ready(q)
		h.warm("first")
		time.Sleep(25 * time.Hour)
		h.store.Retire(now())
		if _, err := h.store.Run(t.Context(), key("first")); !errors.Is(err, core.ErrNotFound) {
			t.Fatalf("its run's record is there still: %v", err)
		}
		q.RunKey, q.Host = key("second"), hostOf("two")
		if second := h.ready(q); second.Ensured != core.EnsuredResumed || second.Run.TaskARN != first.Run.TaskARN {
			t.Errorf("second turn: %+v", second)
		}
		h.check()
	})
}

// TestASandboxThatServesANewerRunIsNotHeldForAnOlder: whoever asks is told, and holds the newer.
func TestASandboxThatServesANewerRunIsNotHeldForAnOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		q := startOf("first", "one")
		h.ready(q)
		h.warm("first")
		if err := h.hold(h.store.Process, "first"); err != nil {
			t.Errorf("of the run that it is kept for: %v", err)
		}
		q.RunKey, q.Host = key("second"), hostOf("two")
		if second := h.ready(q); second.Ensured != core.EnsuredResumed {
			t.Fatalf("second turn: %+v", second)
		}
		before := h.run("first").Hold
		if err := h.hold(h.store.Process, "first"); !errors.Is(err, core.ErrTooLate) || h.run("first").Hold != before {
			t.Errorf("of the run that it served before: %v, %+v, want that it is too late, and %+v", err, h.run("first").Hold, before)
		}
		if err := h.hold(h.store.Process, "second"); err != nil {
			t.Errorf("of the run that it serves: %v", err)
		}
	})
}

// TestWhatIsNotResumed: an unclean end, a sandbox that is too old, one that is being
// reclaimed, one of which ECS says nothing.
func TestWhatIsNotResumed(t *testing.T) {
	for what, c := range map[string]struct {
		before func(h *hosting)
		change func(d *core.Definition)
		wait   string
	}{
		"a sandbox whose run ended without a sentinel": {wait: "reclaim", before: func(h *hosting) {
			_, err := host{h, "first", "one"}.cancel()
			h.must(err)
		}},
		"a sandbox that is being reclaimed": {wait: "reclaim", before: func(h *hosting) {
			h.warm("first")
			box := h.box("first")
			_, err := h.store.UpdateSandbox(h.t.Context(), box.Key, core.MarkReclaiming{Instance: box.Instance, LatestRun: "first", By: "a", Now: now()})
			h.must(err)
		}},
		"a sandbox that is too old": {wait: "reclaim", change: func(d *core.Definition) { d.MaxAgeSeconds = 60 }, before: func(h *hosting) {
			h.warm("first")
			time.Sleep(time.Minute + time.Millisecond)
		}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHosting(t)
				q := startOf("first", "one")
				if c.change != nil {
					c.change(q.Definition)
				}
				first := h.ready(q)
				c.before(h)
				q.RunKey, q.Host = key("second"), hostOf("two")
				report, err := h.self().Start(t.Context(), q)
				h.must(err)
				if report.State != core.Provisioning || report.Waiting != c.wait {
					t.Fatalf("start: %+v, want to wait for %s", report, c.wait)
				}
				for range 3 {
					h.drainQueue(h.store.Process)
					_, err := h.sweep(h.store.Process).Run(t.Context(), core.SweepRequest{})
					h.must(err)
					time.Sleep(time.Second)
				}
				if what == "a sandbox that is being reclaimed" {
					return // by a reclaim that never comes back in this test
				}
				second := h.ready(q)
				if second.Ensured != core.EnsuredCreated || second.Run.TaskARN == first.Run.TaskARN || len(h.fleet.Running()) != 1 {
					t.Errorf("second turn: %+v, running %v", second, h.fleet.Running())
				}
				h.check()
			})
		})
	}
}

// warm lets a run's agent finish, and its sandbox be kept for the next turn.
func (h *hosting) warm(run string) {
	h.t.Helper()
	h.fleet.Exit(core.RunID(run), 0)
	r := h.run(run)
	_, err := h.self().Detach(h.t.Context(), core.HostRequest{RunKey: r.RunKey, Host: r.ClaimNonce})
	h.must(err)
	h.tick()
}

func (h *hosting) box(run string) core.Sandbox {
	h.t.Helper()
	box, err := h.store.Sandbox(h.t.Context(), h.run(run).SandboxKey)
	h.must(err)
	return box
}

// TestAGoneSandboxIsReplacedByAStart: the thread's sandbox died while it was warm.
func TestAGoneSandboxIsReplacedByAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		first := h.ready(startOf("first", "one"))
		h.warm("first")
		h.fleet.KillTask(first.Run.TaskARN)
		second := h.ready(startOf("second", "two"))
		if second.Ensured != core.EnsuredCreated || second.Run.TaskARN == first.Run.TaskARN {
			t.Errorf("second turn: %+v", second)
		}
		h.drainQueue(h.store.Process)
		h.check()
	})
}

// TestBadInputChangesNothing: one clear error, with its code.
func TestBadInputChangesNothing(t *testing.T) {
	long := string(make([]byte, 300<<10))
	for what, c := range map[string]struct {
		change func(q *core.StartRequest)
		code   string
	}{
		"no tenant":              {func(q *core.StartRequest) { q.Tenant = "" }, "invalid-id"},
		"no run":                 {func(q *core.StartRequest) { q.Run = "" }, "invalid-id"},
		"no thread":              {func(q *core.StartRequest) { q.Thread = "" }, "invalid-id"},
		"a run of 2,000 bytes":   {func(q *core.StartRequest) { q.Run = core.RunID(long[:2000]) }, "invalid-id"},
		"a short host":           {func(q *core.StartRequest) { q.Host = "me" }, "invalid-host"},
		"a host with a space":    {func(q *core.StartRequest) { q.Host = "0123456789 abcdef" }, "invalid-host"},
		"no definition":          {func(q *core.StartRequest) { q.Definition = nil }, "invalid-definition"},
		"two definitions":        {func(q *core.StartRequest) { q.DefinitionName = "d" }, "invalid-definition"},
		"a definition unnamed":   {func(q *core.StartRequest) { q.Definition.Name = "" }, "invalid-definition"},
		"no subnets":             {func(q *core.StartRequest) { q.Definition.Task.Subnets = nil }, "invalid-definition"},
		"a role by its name":     {func(q *core.StartRequest) { q.Definition.Task.TaskRole = "coder" }, "invalid-definition"},
		"a relative root":        {func(q *core.StartRequest) { q.Definition.Workspace.Root = "work" }, "invalid-definition"},
		"a negative TTL":         {func(q *core.StartRequest) { q.Definition.RunTTLSeconds = -1 }, "invalid-definition"},
		"an unknown reuse":       {func(q *core.StartRequest) { q.Definition.Reuse = "some" }, "invalid-definition"},
		"an unknown onLapse":     {func(q *core.StartRequest) { q.Definition.OnLapse = "stop" }, "invalid-definition"},
		"an unknown policy":      {func(q *core.StartRequest) { q.Definition.Checkpoint = "often" }, "invalid-definition"},
		"a secret with a value":  {func(q *core.StartRequest) { q.Definition.Secrets = []core.SecretPlan{{Name: "A=b"}} }, "invalid-definition"},
		"no agent":               {func(q *core.StartRequest) { q.Agent = core.AgentPlan{} }, "invalid-agent"},
		"two agents":             {func(q *core.StartRequest) { q.Agent.Shell = "x" }, "invalid-agent"},
		"an agent's NUL":         {func(q *core.StartRequest) { q.Agent.Argv = []string{"a\x00"} }, "invalid-agent"},
		"a command of 300 KiB":   {func(q *core.StartRequest) { q.Agent.Argv = []string{"a", long} }, "too-large"},
		"an input of 300 KiB":    {func(q *core.StartRequest) { q.Agent.Input = &long }, "too-large"},
		"a version that is none": {func(q *core.StartRequest) { q.Definition.Version = 0 }, "invalid-definition"},
	} {
		t.Run(what, func(t *testing.T) {
			h := newHosting(t)
			q := startOf("r", "one")
			c.change(&q)
			_, err := h.self().Start(t.Context(), q)
			if e, ok := errors.AsType[*core.InvalidError](err); !ok || e.Code != c.code {
				t.Errorf("%v, want the code %s", err, c.code)
			}
			if w := h.store.Writes(); len(w) != 0 {
				t.Errorf("it wrote %v", w)
			}
		})
	}
}

// TestTwoHostsOnOneThread begin a run each at every pair of calls: one of them drives,
// there is one sandbox for the thread, and none without a ledger row.
func TestTwoHostsOnOneThread(t *testing.T) {
	calls := 0
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		p := h.store.NewProcess(mem.Faults{})
		_, err := h.session(p).Start(t.Context(), startOf("a", "one"))
		h.must(err)
		calls = len(p.Calls())
	})
	for n := 1; n <= calls; n++ {
		synctest.Test(t, func(t *testing.T) {
			h := newHosting(t)
			faults := mem.Between(n, func(ctx context.Context) {
				_, _ = h.self().Start(ctx, startOf("b", "two")) // refused or not, it must do no harm
			})
			_, _ = h.session(h.store.NewProcess(faults)).Start(t.Context(), startOf("a", "one"))
			alive := 0
			for _, run := range []core.RunID{"a", "b"} {
				if h.fleet.Alive(run) {
					alive++
				}
			}
			if alive > 1 {
				t.Errorf("call %d: two agents at work", n)
			}
			h.drainQueue(h.store.Process)
			for range 4 {
				time.Sleep(time.Second)
				for run, name := range map[string]string{"a": "one", "b": "two"} {
					_, _ = h.self().Start(t.Context(), startOf(run, name))
				}
				h.drainQueue(h.store.Process)
			}
			h.check()
			if got := h.fleet.Running(); len(got) != 1 || h.fleet.Alive("a") == h.fleet.Alive("b") {
				t.Errorf("call %d: running %v, a works %t, b works %t", n, got, h.fleet.Alive("a"), h.fleet.Alive("b"))
			}
		})
	}
}
