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

// looking is a prober, a preparer of workspaces and a starter of agents that tell how the
// sandbox is held while they are in it.
type looking struct {
	core.Prober
	core.Setups
	core.JobStarter
	h    *hosting
	run  string
	held []core.ExecHold
}

func (l *looking) look() { l.held = append(l.held, l.h.box(l.run).Exec) }

func (l *looking) Page(ctx context.Context, q core.PageRequest) (core.PageReply, error) {
	l.look()
	return l.Prober.Page(ctx, q)
}

func (l *looking) Setup(ctx context.Context, target core.ExecTarget, id string, job *core.SetupJob, wait time.Duration) (core.SetupState, error) {
	l.look()
	return l.Setups.Setup(ctx, target, id, job, wait)
}

func (l *looking) Start(ctx context.Context, target core.ExecTarget, job core.AgentJob) (core.AgentStarted, error) {
	l.look()
	return l.JobStarter.Start(ctx, target, job)
}

// wants fails unless each look met a live hold of that holder, and none is left.
func (l *looking) wants(what string, who core.ExecHolder) {
	l.h.t.Helper()
	if len(l.held) == 0 {
		l.h.t.Errorf("%s: nobody came into the sandbox", what)
	}
	for _, held := range l.held {
		if held.ExecHolder != who || held.Until <= now() || held.Until > now().Add(core.MaxExecHold) {
			l.h.t.Errorf("%s: held as %+v, want %+v for a while", what, held, who)
		}
	}
	if left := l.h.box(l.run).Exec; left != (core.ExecHold{}) {
		l.h.t.Errorf("%s: %+v is left", what, left)
	}
}

// occupy has another hold the sandbox of a run.
func (h *hosting) occupy(run string, hold core.ExecHold) {
	h.t.Helper()
	box := h.box(run)
	_, err := h.store.UpdateSandbox(h.t.Context(), box.Key, core.HoldExec{Instance: box.Instance, Was: box.Exec, Hold: hold})
	h.must(err)
}

func holds(by string, epoch int64) core.ExecHold {
	return core.ExecHold{ExecHolder: core.ExecHolder{By: by, Epoch: epoch}, Until: now().Add(time.Minute)}
}

// TestWhoIsBarred from a container by who has it.
func TestWhoIsBarred(t *testing.T) {
	at := func(by string, epoch int64, until core.Millis) core.ExecHold {
		return core.ExecHold{ExecHolder: core.ExecHolder{By: by, Epoch: epoch}, Until: until}
	}
	who := func(by string, epoch int64) core.ExecHolder { return core.ExecHolder{By: by, Epoch: epoch} }
	tests := []struct {
		name string
		hold core.ExecHold
		who  core.ExecHolder
		bars bool
	}{
		{"a free container bars nobody", core.ExecHold{}, core.ExecHolder{}, false},
		{"a long user bars a probe", at("step:c", 0, 11), core.ExecHolder{}, true},
		{"a hold that is over bars nobody", at("step:c", 0, 10), core.ExecHolder{}, false},
		{"one who does not say who it is bars a probe like it", at("", 0, 11), core.ExecHolder{}, true},
		{"a step bars another", at("step:c", 0, 11), who("step:d", 0), true},
		{"a step goes on under its own hold", at("step:c", 0, 11), who("step:c", 0), false},
		{"a driver bars a step", at("drain:r", 3, 11), who("step:c", 0), true},
		{"a driver's drain bars its own host's tail", at("drain:r", 3, 11), who("tail:r", 3), true},
		{"a driver whose claim has passed on bars his successor no more", at("drain:r", 3, 11), who("drain:r", 4), false},
		{"a former driver is barred", at("drain:r", 4, 11), who("drain:r", 3), true},
		{"a run that the sandbox serves no more holds nothing", at("drain:old", 3, 11), core.ExecHolder{}, false},
		{"a step holds it for whichever run", at("step:checkpoint-old", 0, 11), core.ExecHolder{}, true},
		{"a tail bars a probe", at("tail:r", 3, 11), core.ExecHolder{}, true},
		{"a tail bars a look at the files", at("tail:r", 3, 11), who("files:r", 3), true},
		{"a tail gives way to a step", at("tail:r", 3, 11), who("step:c", 0), false},
		{"a tail gives way to its own run's end", at("tail:r", 3, 11), who("drain:r", 3), false},
		{"a look at the files gives way to a set-up", at("files:r", 3, 11), who("setup:r", 3), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.hold.Bars(tt.who, "r", 10); got != tt.bars {
				t.Errorf("%+v bars %+v: %t, want %t", tt.hold, tt.who, got, tt.bars)
			}
		})
	}
}

// TestALongPollKeepsProbesAway while it waits in the sandbox, and no longer; another's
// sessions are left alone, for as long as they were asked for.
func TestALongPollKeepsProbesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		h.ready(startOf("r", "one"))
		h.fleet.Write("r", "a line\n")
		s := h.self()
		l := &looking{Prober: s.Prober, h: h, run: "r"}
		s.Prober = l
		q := core.TailRequest{RunKey: key("r"), Host: hostOf("one"), WaitSeconds: 20}
		_, err := s.Tail(t.Context(), q)
		h.must(err)
		l.wants("a long poll", core.ExecOf(core.ExecTail, h.run("r")))
		h.occupy("r", core.ExecHold{Until: now().Add(time.Minute)})
		_, err = s.Tail(t.Context(), core.TailRequest{RunKey: key("r"), Host: hostOf("one"), From: 7, WaitSeconds: 20})
		refusedFor(t, "tail of a sandbox that another has", err, "busy")
		time.Sleep(time.Minute)
		if _, err = s.Tail(t.Context(), q); err != nil {
			t.Errorf("after its time: %v", err)
		}
	})
}

// TestEveryLongUseHoldsTheContainer from its first session on, and gives it back.
func TestEveryLongUseHoldsTheContainer(t *testing.T) {
	tests := map[string]struct {
		who func(r core.Run) core.ExecHolder
		do  func(h *hosting, s *core.Session)
	}{
		"the drain of a finish": {
			who: func(r core.Run) core.ExecHolder { return core.ExecOf(core.ExecDrain, r) },
			do: func(h *hosting, s *core.Session) {
				h.fleet.RestBytes, h.fleet.PageBytes = 0, 1000
				h.fleet.Write("r", strings.Repeat("several pages of it\n", 100))
				h.fleet.Exit("r", 0)
				_, err := s.Finish(h.t.Context(), core.FinishRequest{RunKey: key("r"), Host: hostOf("one")})
				h.must(err)
			},
		},
		"the drain of a cancel": {
			who: func(r core.Run) core.ExecHolder { return core.ExecOf(core.ExecDrain, r) },
			do: func(h *hosting, s *core.Session) {
				h.fleet.Write("r", "output\n")
				_, err := s.Cancel(h.t.Context(), core.CancelRequest{RunKey: key("r"), Host: hostOf("one")})
				h.must(err)
			},
		},
		"a look at the files": {
			who: func(r core.Run) core.ExecHolder { return core.ExecOf(core.ExecFiles, r) },
			do: func(h *hosting, s *core.Session) {
				h.fleet.Touch("r", "{\"path\":\"a\"}\n")
				_, err := s.Tail(h.t.Context(), core.TailRequest{RunKey: key("r"), Host: hostOf("one"), Stream: core.StreamFiles})
				h.must(err)
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := newHosting(t)
				q := startOf("r", "one")
				q.Definition = new(definition)
				q.Definition.FileEvents.Enabled = name == "a look at the files"
				h.ready(q)
				s := h.self()
				l := &looking{Prober: s.Prober, h: h, run: "r"}
				s.Prober = l
				who := tt.who(h.run("r"))
				tt.do(h, s)
				l.wants(name, who)
			})
		})
	}
}

// TestTheDrainOfASweepHoldsTheContainer is TestEveryLongUseHoldsTheContainer for what no host asks for.
func TestTheDrainOfASweepHoldsTheContainer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHosting(t)
		h.ready(startOf("r", "one"))
		h.fleet.RestBytes, h.fleet.PageBytes = 0, 1000
		h.fleet.Write("r", strings.Repeat("several pages of it\n", 100))
		h.fleet.Exit("r", 0)
		h.detach("r")
		s := h.sweep(h.store.Process)
		l := &looking{Prober: s.Prober, h: h, run: "r"}
		s.Prober = l
		_, err := s.Run(t.Context(), core.SweepRequest{})
		h.must(err)
		l.wants("a sweep", core.ExecOf(core.ExecDrain, h.run("r")))
	})
}

// TestASetUpHoldsTheContainer from its first session on, and waits for another.
func TestASetUpHoldsTheContainer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h, made := newHosting(t), newSetups()
		l := &looking{Setups: made, h: h, run: "r"}
		s := setUpSession(h, made)
		s.Setups = l
		start := func() core.StartReport {
			report, err := s.Start(t.Context(), planned("r"))
			h.must(err)
			return report
		}
		if report := start(); report.Waiting != "setup" {
			t.Fatalf("it begins: %+v", report)
		}
		asked := len(made.calls)
		h.occupy("r", holds("step:another", 0))
		if report := start(); report.Waiting != "busy" || len(made.calls) != asked {
			t.Errorf("beside another: %+v, asked %q", report, made.calls)
		}
		h.occupy("r", core.ExecHold{})
		made.states["setup-r"] = core.SetupState{Phase: core.SetupDone}
		if report := start(); report.State != core.Ready {
			t.Errorf("after the other: %+v", report)
		}
		l.wants("a set-up", core.ExecOf(core.ExecSetup, h.run("r")))
	})
}

// TestTheBeginningOfACaptureHoldsTheContainer and waits for another step.
func TestTheBeginningOfACaptureHoldsTheContainer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := keepingHosting(t)
		h.ready(startOf("r", "one"))
		h.fleet.Exit("r", 0)
		s := h.self()
		k := h.keep.keeper(h.store.Process)
		l := &looking{JobStarter: k.Agents, h: h, run: "r"}
		k.Agents, s.Keeper = l, k
		h.occupy("r", holds("step:another", 0))
		report, err := s.Finish(t.Context(), core.FinishRequest{RunKey: key("r"), Host: hostOf("one")})
		if err != nil || report.State != core.Finishing || len(l.held) > 0 {
			t.Fatalf("beside another step: %+v, %v, %d came into the sandbox", report, err, len(l.held))
		}
		time.Sleep(time.Minute + time.Second)
		_, err = s.Finish(t.Context(), core.FinishRequest{RunKey: key("r"), Host: hostOf("one")})
		h.must(err)
		l.wants("a capture", core.ExecHolder{By: "step:checkpoint-r"})
	})
}

// TestACrashedHoldersHoldEndsByItself: whoever comes after is kept away for its time at
// most, and a driver that follows one of the same run not at all.
func TestACrashedHoldersHoldEndsByItself(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHosting(t)
		h.ready(startOf("r", "one"))
		h.fleet.RestBytes, h.fleet.PageBytes = 0, 1000
		h.fleet.Write("r", strings.Repeat("several pages of it\n", 100))
		h.fleet.Exit("r", 0)
		if _, err := h.session(h.crashing("page", mem.StopAfter)).Finish(t.Context(), core.FinishRequest{RunKey: key("r"), Host: hostOf("one")}); err == nil {
			t.Fatal("a process that has died answers")
		}
		if h.box("r").Exec == (core.ExecHold{}) {
			t.Fatal("the dead one left no hold")
		}
		probe := core.ProbeRequest{RunKey: key("r"), Target: core.ExecTarget{TaskARN: h.run("r").TaskARN}, SandboxKey: h.run("r").SandboxKey, Nonce: h.run("r").Nonce}
		ask := func() core.ProbeReply {
			return h.fleet.View(h.store.Process).Probe(t.Context(), 0, []core.ProbeRequest{probe})[0]
		}
		if reply := ask(); reply.Reason != "busy" {
			t.Errorf("a probe meanwhile: %+v", reply)
		}
		report, err := h.self().Finish(t.Context(), core.FinishRequest{RunKey: key("r"), Host: hostOf("one")})
		if err != nil || report.State != core.Finished {
			t.Errorf("its own host's next call: %+v, %v", report, err)
		}
		h.occupy("r", holds("step:another", 0))
		time.Sleep(core.MaxExecHold)
		if reply := ask(); reply.State != core.ProbeFinished {
			t.Errorf("a probe after its time: %+v", reply)
		}
	})
}
