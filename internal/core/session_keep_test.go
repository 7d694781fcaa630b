package core_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

func (c host) finish(conversation *core.ConversationPut) (core.FinishReport, error) {
	return c.h.self().Finish(c.h.t.Context(), core.FinishRequest{RunKey: key(c.run), Host: hostOf(c.name), Conversation: conversation})
}

func (c host) tail(from int64, wait int64) (core.TailReport, error) {
	return c.h.self().Tail(c.h.t.Context(), core.TailRequest{RunKey: key(c.run), Host: hostOf(c.name), From: from, WaitSeconds: wait})
}

// bubble runs check in a bubble, as [synctest.Test] does, once what bubbles share is made
// outside of them.
func bubble(t *testing.T, check func(t *testing.T)) {
	t.Helper()
	if err := outsideOfBubbles(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, check)
}

// captured has the agent of the thread's capture hand its checkpoint in.
func (h *hosting) captured(files tree) {
	h.t.Helper()
	h.must(h.keep.capture(h.t.Context(), h.store.Process, "t", files))
}

// restoredNow has the agent of the thread's restore say that it is done.
func (h *hosting) restoredNow() {
	h.t.Helper()
	_, err := h.keep.keeper(h.store.Process).CommitRoot(h.t.Context(), h.keep.jobs["t"].Token, nil)
	h.must(err)
}

// finished runs a turn from start to finish, with a checkpoint.
func (h *hosting) finished(run, name string, files tree) core.FinishReport {
	h.t.Helper()
	h.ready(startOf(run, name))
	h.fleet.Write(core.RunID(run), "output of "+run+"\n")
	h.fleet.Exit(core.RunID(run), 0)
	report, err := host{h, run, name}.finish(nil)
	h.must(err)
	if report.State != core.Finishing || report.Waiting != "checkpoint" {
		h.t.Fatalf("finish: %+v, want to wait for the checkpoint", report)
	}
	h.captured(files)
	report, err = host{h, run, name}.finish(nil)
	h.must(err)
	if report.State != core.Finished {
		h.t.Fatalf("finish: %+v", report)
	}
	return report
}

// TestFinishStoresAndEnds: the journal, the conversation, the workspace, the run, in that
// order; a repeat changes nothing.
func TestFinishStoresAndEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := keepingHosting(t)
		h.ready(startOf("r", "one"))
		_, err := host{h, "r", "one"}.finish(nil)
		refusedFor(t, "finish of a run at work", err, "still-producing")
		h.fleet.Write("r", "done\n")
		h.fleet.Exit("r", 0)
		put := &core.ConversationPut{Data: []byte("the conversation")}
		report, err := host{h, "r", "one"}.finish(put)
		h.must(err)
		if report.State != core.Finishing || h.run("r").Status != core.Running || h.run("r").Sealed == nil {
			t.Fatalf("finish: %+v", report)
		}
		h.captured(tree{"a.txt": "A"})
		for range 2 {
			report, err = host{h, "r", "one"}.finish(put)
			h.must(err)
			if report.State != core.Finished || report.Run.Status != core.Completed {
				t.Fatalf("finished: %+v", report)
			}
		}
		th, err := h.store.Thread(t.Context(), thread("t"))
		h.must(err)
		if th.Head != "checkpoint-r" || th.Conversation.Version != 1 || !slices.Equal(th.Conversation.Runs, []core.RunID{"r"}) || th.Lease != (core.Lease{}) {
			t.Errorf("thread %+v", th)
		}
		if r := h.run("r"); r.Reclaim != core.ReclaimIdle || r.Checkpoint.Owes() {
			t.Errorf("run %+v", r)
		}
		h.drainQueue(h.store.Process)
		h.ended("r", core.Completed, "done\n")
		if box := h.box("r"); box.IdleSince == 0 || len(h.fleet.Running()) != 1 {
			t.Errorf("its sandbox is not warm: %+v", box)
		}
		h.check()
	})
}

// TestFinishRefuses where another has written the thread, or writes it.
func TestFinishRefuses(t *testing.T) {
	for code, before := range map[string]func(h *hosting){
		"writer-lost": func(h *hosting) {
			_, err := h.store.UpdateThread(h.t.Context(), thread("t"), core.ReleaseLease{Owner: "run:r"})
			h.must(err)
			_, err = h.store.UpdateThread(h.t.Context(), thread("t"), core.AcquireLease{Owner: "run:other", Now: now(), Until: now().Add(time.Minute)})
			h.must(err)
		},
		"stale-head": func(h *hosting) {
			_, err := h.store.UpdateThread(h.t.Context(), thread("t"), core.ReleaseLease{Owner: "run:r"})
			h.must(err)
			h.keep.box("t")
			h.must(h.keep.save(h.t.Context(), h.store.Process, "t", "another", tree{"b": "B"}))
		},
		"stale-conversation": func(*hosting) {},
	} {
		t.Run(code, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := keepingHosting(t)
				h.ready(startOf("r", "one"))
				before(h)
				h.fleet.Exit("r", 0)
				put := &core.ConversationPut{Data: []byte("x")}
				if code == "stale-conversation" {
					put.Seen = 3
				}
				_, err := host{h, "r", "one"}.finish(put)
				refusedFor(t, "finish", err, code)
				th, err := h.store.Thread(t.Context(), thread("t"))
				h.must(err)
				if r := h.run("r"); r.Status != core.Running || th.Conversation.Version != 0 {
					t.Errorf("run %s; conversation %+v", r.Status, th.Conversation)
				}
			})
		})
	}
}

// TestAWorkspaceThatCannotBeStoredIsOwed: the run finishes, and reclaim tries again.
func TestAWorkspaceThatCannotBeStoredIsOwed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := keepingHosting(t)
		h.keep.began = core.AgentMissing
		h.ready(startOf("r", "one"))
		h.fleet.Exit("r", 0)
		report, err := host{h, "r", "one"}.finish(nil)
		h.must(err)
		if report.State != core.Finished || report.CheckpointFailed != "agent-missing" || !h.run("r").Checkpoint.Owes() {
			t.Errorf("finish: %+v, %+v", report, h.run("r").Checkpoint)
		}
		h.check()
	})
}

// TestTheNextTurnFindsTheWorkspace: in the warm sandbox, or brought back into a new one
// where the old one is gone.
func TestTheNextTurnFindsTheWorkspace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := keepingHosting(t)
		h.finished("one", "a", tree{"f": "1"})
		h.drainQueue(h.store.Process)
		second := h.ready(startOf("two", "b"))
		if second.Ensured != core.EnsuredResumed || second.RestoredFrom != "" {
			t.Errorf("the warm sandbox: %+v", second)
		}
		h.fleet.Exit("two", 0)
		_, err := host{h, "two", "b"}.finish(nil)
		h.must(err)
		h.captured(tree{"f": "2"})
		_, err = host{h, "two", "b"}.finish(nil)
		h.must(err)
		h.drainQueue(h.store.Process)
		h.fleet.KillTask(second.Run.TaskARN)
		q := startOf("three", "c")
		report, err := h.self().Start(t.Context(), q)
		h.must(err)
		if report.State != core.Provisioning || report.Waiting != "restore" || h.fleet.Alive("three") {
			t.Fatalf("start: %+v, want to wait for the restore", report)
		}
		h.restoredNow()
		third := h.ready(q)
		if third.Ensured != core.EnsuredCreated || third.RestoredFrom != "checkpoint-two" {
			t.Errorf("a new sandbox: %+v", third)
		}
		again := h.ready(q)
		if again.RestoredFrom != third.RestoredFrom || again.Run.ReadyAt != third.Run.ReadyAt {
			t.Errorf("asked again: %+v", again)
		}
		h.drainQueue(h.store.Process)
		h.check()
	})
}

// TestAFailedRestoreFailsTheStart, with the first error; the half-built sandbox ends.
func TestAFailedRestoreFailsTheStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := keepingHosting(t)
		first := h.finished("one", "a", tree{"f": "1"})
		h.drainQueue(h.store.Process)
		h.fleet.KillTask(first.Run.TaskARN)
		h.keep.began = core.AgentMissing
		_, err := h.self().Start(t.Context(), startOf("two", "b"))
		refusedFor(t, "start", err, "restore-failed")
		if r := h.run("two"); r.Status != core.Failed || r.Error.Code != "restore-failed" || r.Error.Message != "agent-missing" {
			t.Errorf("run %+v, error %+v", r, r.Error)
		}
		h.drainQueue(h.store.Process)
		if n := len(h.fleet.Running()); n != 0 {
			t.Errorf("%d tasks run", n)
		}
		h.check()
	})
}

// TestASandboxThatWasNotRestoredOwesNothing: what is in it is no work of the thread's, and
// must not follow the head that should have come back.
func TestASandboxThatWasNotRestoredOwesNothing(t *testing.T) {
	for name, end := range map[string]func(h *hosting, q core.StartRequest){
		"the restore fails": func(h *hosting, q core.StartRequest) {
			h.keep.began = core.AgentMissing
			_, err := h.self().Start(h.t.Context(), q)
			refusedFor(h.t, "start", err, "restore-failed")
		},
		"the host is gone while it goes on": func(h *hosting, q core.StartRequest) {
			report, err := h.self().Start(h.t.Context(), q)
			h.must(err)
			if report.Waiting != "restore" {
				h.t.Fatalf("start: %+v", report)
			}
			for range 600 {
				time.Sleep(time.Minute)
				h.sweepAs(h.store.Process)
				if h.run("two").Status.Terminal() {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := outsideOfBubbles(); err != nil {
				t.Fatal(err)
			}
			bubble(t, func(t *testing.T) {
				h := keepingHosting(t)
				first := h.finished("one", "a", tree{"f": "1"})
				h.drainQueue(h.store.Process)
				h.fleet.KillTask(first.Run.TaskARN)
				q := startOf("two", "b")
				q.Definition.Checkpoint = core.CheckpointAlways
				end(h, q)
				if r := h.run("two"); !r.Status.Terminal() || r.Checkpoint.State != core.CheckpointNotOwed {
					t.Errorf("%s, error %+v, ending %+v, checkpoint %+v", r.Status, r.Error, r.Ending, r.Checkpoint)
				}
			})
		})
	}
}

// TestAFailedTurnInAWarmSandboxLeavesIt: it was there before, and no agent began (EN-11).
func TestAFailedTurnInAWarmSandboxLeavesIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHosting(t)
		first := h.ready(startOf("one", "a"))
		h.warm("one")
		s := h.self()
		s.Binds = h.store
		s.Launcher.Provider = noExec{s.Launcher.Provider}
		report, err := s.Start(t.Context(), startOf("two", "b"))
		refusedFor(t, "start", err, "agent-not-started")
		h.drainQueue(h.store.Process)
		if n := len(h.fleet.Running()); n != 0 { // its agent may have begun: nobody knows
			t.Errorf("%d tasks run after an agent that may have begun: %+v", n, report)
		}
		third := h.ready(startOf("three", "c"))
		if third.Run.TaskARN == first.Run.TaskARN {
			t.Errorf("an unclean sandbox is used again: %+v", third)
		}
		h.warm("three")
		_, err = h.session(h.failing("note start")).Start(t.Context(), startOf("four", "d"))
		if err == nil {
			t.Fatal("started")
		}
		ended, err := host{h, "four", "d"}.fail()
		h.must(err)
		if !ended.Ended || h.run("four").Reclaim != core.ReclaimIdle {
			t.Errorf("ended %+v, owes %s", ended, h.run("four").Reclaim)
		}
		h.drainQueue(h.store.Process)
		if fifth := h.ready(startOf("five", "e")); fifth.Run.TaskARN != third.Run.TaskARN || fifth.Ensured != core.EnsuredResumed {
			t.Errorf("a clean sandbox is not used again: %+v", fifth)
		}
		h.check()
	})
}

// TestAWriterKeepsOthersOut: one thread has one writer, whatever the definition.
func TestAWriterKeepsOthersOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := keepingHosting(t)
		h.ready(startOf("one", "a"))
		other := startOf("two", "b")
		other.Definition = new(definition)
		other.Definition.Name = "other"
		_, err := h.self().Start(t.Context(), other)
		refusedFor(t, "start", err, "writer-conflict")
		for owner, want := range map[string]string{"reclaim:x": "writer", "gc:y": "writer"} {
			_, err := h.store.UpdateThread(t.Context(), thread("t"), core.ReleaseLease{})
			if err != nil {
				_, err = h.store.UpdateThread(t.Context(), thread("t"), core.ReleaseLease{Owner: "run:one"})
			}
			h.must(err)
			_, err = h.store.UpdateThread(t.Context(), thread("t"), core.AcquireLease{Owner: owner, Now: now(), Until: now().Add(time.Minute)})
			h.must(err)
			report, err := h.self().Start(t.Context(), other)
			h.must(err)
			if report.State != core.Provisioning || report.Waiting != want || h.run("two").Instance != "" {
				t.Errorf("a lease of %s: %+v", owner, report)
			}
			_, err = host{h, "one", "a"}.renew()
			refusedFor(t, "renew", err, "writer-lost")
			_, err = h.store.UpdateThread(t.Context(), thread("t"), core.ReleaseLease{Owner: owner})
			h.must(err)
			_, err = host{h, "one", "a"}.renew()
			h.must(err)
		}
	})
}

// TestAStartLeavesADeadReclaimItsSandbox: a lapsed system lease is not taken while the
// record is marked.
func TestAStartLeavesADeadReclaimItsSandbox(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := keepingHosting(t)
		h.finished("one", "a", tree{"f": "1"})
		h.drainQueue(h.store.Process)
		box := h.box("one")
		_, err := h.store.UpdateThread(t.Context(), thread("t"), core.AcquireLease{Owner: "reclaim:one", Now: now(), Until: now().Add(time.Second)})
		h.must(err)
		_, err = h.store.UpdateSandbox(t.Context(), box.Key, core.MarkReclaiming{Instance: box.Instance, LatestRun: "one", By: "x", Now: now()})
		h.must(err)
		time.Sleep(time.Minute)
		report, err := h.self().Start(t.Context(), startOf("two", "b"))
		h.must(err)
		th, err := h.store.Thread(t.Context(), thread("t"))
		h.must(err)
		if report.Waiting != "reclaim" || th.Lease.Owner != "reclaim:one" {
			t.Errorf("start: %+v, lease %+v", report, th.Lease)
		}
		_, err = h.store.UpdateSandbox(t.Context(), box.Key, core.Unmark{Instance: box.Instance, By: "x", Now: now()})
		h.must(err)
		if two := h.ready(startOf("two", "b")); two.Ensured != core.EnsuredResumed {
			t.Errorf("start: %+v", two)
		}
	})
}

// TestTailGivesWholeLines, first from the log, then from the journal; a viewer reads the
// log alone.
func TestTailGivesWholeLines(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHosting(t)
		h.ready(startOf("r", "one"))
		c := host{h, "r", "one"}
		h.fleet.Write("r", "first\nsec")
		report, err := c.tail(0, 0)
		h.must(err)
		if string(report.Data) != "first\n" || report.Next != 6 || report.End || h.run("r").LogEnd != 0 {
			t.Errorf("tail: %+v", report)
		}
		viewed, err := h.self().Tail(t.Context(), core.TailRequest{RunKey: key("r")})
		h.must(err)
		if len(viewed.Data) != 0 || viewed.End {
			t.Errorf("a viewer is ahead of the log: %+v", viewed)
		}
		h.fleet.Write("r", "ond\n")
		report, err = c.tail(6, 0) // what the poll before gave out goes to the log
		h.must(err)
		if string(report.Data) != "second" || h.run("r").LogEnd != 12 {
			t.Errorf("tail: %+v, log end %d", report, h.run("r").LogEnd)
		}
		h.fleet.Write("r", "no newline")
		h.fleet.Exit("r", 0)
		report, err = c.tail(12, 0)
		h.must(err)
		if string(report.Data) != "\nno newline" || !report.End || !report.Run.Sealed {
			t.Errorf("tail at the end: %+v", report)
		}
		var all []byte
		for from := int64(0); ; {
			viewed, err = h.self().Tail(t.Context(), core.TailRequest{RunKey: key("r"), From: from})
			h.must(err)
			all, from = append(all, viewed.Data...), viewed.Next
			if viewed.End {
				break
			}
		}
		if string(all) != "first\nsecond\nno newline" {
			t.Errorf("a viewer sees %q", all)
		}
		_, err = host{h, "r", "two"}.tail(0, 0)
		refusedFor(t, "tail without a claim", err, "claim-lost")
	})
}

// TestTailWaits for output, tells a silent journal from a slow one, and leaves a busy
// container alone.
func TestTailWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHosting(t)
		h.ready(startOf("r", "one"))
		c := host{h, "r", "one"}
		begun := now()
		_, err := c.tail(0, 25)
		refusedFor(t, "tail of a silent run", err, "journal-stalled")
		if waited := now().Sub(begun); waited != core.TailStall {
			t.Errorf("waited %s", waited)
		}
		go func() {
			time.Sleep(5 * time.Second)
			h.fleet.Write("r", "late\n")
		}()
		report, err := c.tail(0, 25)
		h.must(err)
		if string(report.Data) != "late" {
			t.Errorf("tail: %+v", report)
		}
		begun = now()
		report, err = c.tail(4, 25)
		h.must(err)
		if len(report.Data) != 0 || now().Sub(begun) != core.MaxTailWait {
			t.Errorf("tail of a quiet run: %+v after %s", report, now().Sub(begun))
		}
		long := bytes.Repeat([]byte("x"), 100<<10)
		h.fleet.Write("r", string(long)+"\n")
		var all []byte
		for from := int64(4); int64(len(all)) < int64(len(long))+1; {
			report, err = c.tail(from, 1)
			h.must(err)
			all, from = append(all, report.Data...), report.Next
		}
		if !bytes.Equal(all, append([]byte("\n"), long...)) {
			t.Errorf("a long line: %d bytes", len(all))
		}
		box := h.box("r")
		box.Exec.Until = now().Add(time.Minute)
		h.store.SeedSandbox(box)
		_, err = c.tail(int64(4+len(all)), 0)
		refusedFor(t, "tail of a busy container", err, "busy")
	})
}

// TestAPausedRunIsContinued by another run in the same sandbox: one write ends the one
// and begins the other.
func TestAPausedRunIsContinued(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := keepingHosting(t)
		parent := h.ready(startOf("ask", "one"))
		h.fleet.Write("ask", "may I?\n")
		_, err := host{h, "ask", "one"}.interrupt()
		h.must(err)
		_, err = h.self().Start(t.Context(), startOf("other", "two"))
		refusedFor(t, "a turn beside a paused one", err, "thread-busy")
		q := startOf("yes", "two")
		q.Parent = "ask"
		child := h.ready(q)
		if child.Ensured != core.EnsuredResumed || child.Run.TaskARN != parent.Run.TaskARN || child.Run.Parent != "ask" || child.RestoredFrom != "" {
			t.Errorf("child: %+v", child)
		}
		h.ended("ask", core.Completed, "may I?\n")
		if h.fleet.Alive("ask") || !h.fleet.Alive("yes") {
			t.Error("not one agent, the child's, is at work")
		}
		again := h.ready(q)
		if again.Run.ReadyAt != child.Run.ReadyAt || len(h.fleet.Running()) != 1 {
			t.Errorf("asked again: %+v", again)
		}
		late := startOf("late", "three")
		late.Parent = "ask"
		_, err = h.self().Start(t.Context(), late)
		refusedFor(t, "a second continuation", err, "terminal-run")
		h.check()
	})
}

// TestAPausedRunEndsAsItsAgentDid, if it had ended by itself; what the continuation ended is
// completed, whatever status the signal left.
func TestAPausedRunEndsAsItsAgentDid(t *testing.T) {
	for name, c := range map[string]struct {
		wrote string
		exits *int
		want  core.Status
	}{
		"at work, and killed":           {"works\n", nil, core.Completed},
		"at work, and traps the signal": {"traps\n", nil, core.Completed},
		"at work, and heeds the signal": {"heeds\n", nil, core.Completed},
		"ended by itself":               {"done\n", new(0), core.Completed},
		"failed by itself":              {"fails\n", new(1), core.Failed},
		"killed before the pause":       {"grows\n", new(137), core.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := keepingHosting(t)
				h.ready(startOf("ask", "one"))
				h.fleet.Write("ask", c.wrote)
				if c.exits != nil {
					h.fleet.Exit("ask", *c.exits)
				}
				if c.exits != nil { // its host has seen it
					_, err := host{h, "ask", "one"}.tail(int64(len(c.wrote)), 0)
					h.must(err)
					time.Sleep(time.Second)
				}
				_, err := host{h, "ask", "one"}.interrupt()
				h.must(err)
				q := startOf("yes", "two")
				q.Parent = "ask"
				h.ready(q)
				h.ended("ask", c.want, c.wrote)
			})
		})
	}
}

// TestAdoptTakesOverATask that a host started itself, once, and only one that lives.
func TestAdoptTakesOverATask(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHosting(t)
		arn := h.fleet.RunStray("mine/own")
		q := core.AdoptRequest{
			RunKey: key("r"), Thread: "t", Host: hostOf("one"), TaskARN: arn, Container: "agent", Journal: core.NewJournalNonce(),
		}
		for range 2 {
			report, err := h.self().Adopt(t.Context(), q)
			h.must(err)
			if report.State != core.Ready || report.Run.TaskARN != arn {
				t.Fatalf("adopted: %+v", report)
			}
		}
		r := h.run("r")
		if row, err := h.store.Row(t.Context(), r.Instance); err != nil || row.State != core.LedgerRunning || row.TaskARN != arn || r.Nonce != q.Journal {
			t.Errorf("row %+v, %v; nonce %s", row, err, r.Nonce)
		}
		_, err := h.session(h.store.Process).Adopt(t.Context(), func() core.AdoptRequest { q := q; q.Host = hostOf("two"); return q }())
		refusedFor(t, "adopt by another host", err, "attached-elsewhere")
		ended, err := host{h, "r", "one"}.cancel()
		h.must(err)
		h.drainQueue(h.store.Process)
		if !ended.Ended || len(h.fleet.Running()) != 0 {
			t.Errorf("ended %+v, running %v", ended, h.fleet.Running())
		}
		dead := q
		dead.RunKey, dead.Host = key("dead"), hostOf("three")
		_, err = h.self().Adopt(t.Context(), dead)
		refusedFor(t, "adopt of a task that is gone", err, "task-gone")
	})
}

// TestATaskIsNobodysToTakeTwice: what the installation started is no tenant's to adopt, and
// what a host started serves the run that adopted it first, whichever tenant asks next,
// until that run's attempt is over.
func TestATaskIsNobodysToTakeTwice(t *testing.T) {
	ask := func(tenant, run, arn string) core.AdoptRequest {
		return core.AdoptRequest{
			RunKey: core.RunKey{Tenant: core.TenantID(tenant), Run: core.RunID(run)}, Thread: core.ThreadID("of-" + run), Host: hostOf(run), TaskARN: arn, Container: "agent", Journal: core.NewJournalNonce(),
		}
	}
	bubble(t, func(t *testing.T) {
		h := newHosting(t)
		theirs := h.ready(startOf("one", "a"))
		stray := h.fleet.RunStray("mine/own")
		_, err := h.self().Adopt(t.Context(), ask("x", "first", stray))
		h.must(err)
		for name, q := range map[string]core.AdoptRequest{
			"a sandbox of the tenant's": ask("x", "two", theirs.Run.TaskARN), "a sandbox of another tenant's": ask("y", "three", theirs.Run.TaskARN),
			"an adopted task": ask("x", "four", stray), "another tenant's adopted task": ask("y", "five", stray),
		} {
			for range 2 {
				_, err := h.self().Adopt(t.Context(), q)
				refusedFor(t, "adopt of "+name, err, "task-taken")
			}
		}
		if n := len(h.fleet.Running()); n != 2 {
			t.Errorf("%d tasks run", n)
		}
		h.store.Check(t)
	})
	for _, spent := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			h := newHosting(t)
			stray := h.fleet.RunStray("mine/own")
			p := h.store.NewProcess(mem.Faults{Before: func(_ context.Context, call string) {
				if call == "launched" {
					panic(call) // a host crashes that has put its row
				}
			}})
			func() {
				defer func() { _ = recover() }()
				_, err := h.session(p).Adopt(t.Context(), ask("x", "first", stray))
				t.Errorf("adopted all the same: %v", err)
			}()
			for id, row := range h.store.State().Rows {
				if spent { // as a sweep does once nobody can go on
					_, err := h.store.UpdateRow(t.Context(), id, core.CloseRow{From: row.State, Why: "no task was launched", Now: core.MillisOf(time.Now()), Tenant: row.Tenant})
					h.must(err)
				}
			}
			report, err := h.self().Adopt(t.Context(), ask("y", "second", stray))
			if spent != (err == nil && report.State == core.Ready) {
				t.Errorf("spent %t: %s, %v", spent, report.State, err)
			}
			h.store.Check(t)
		})
	}
}

// TestListTellsTheRunsOfAThread, newest first, and which of them have not ended.
func TestListTellsTheRunsOfAThread(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHosting(t)
		h.ready(startOf("one", "a"))
		h.warm("one")
		time.Sleep(time.Second)
		h.ready(startOf("two", "b"))
		for active, want := range map[bool][]core.RunID{false: {"two", "one"}, true: {"two"}} {
			runs, err := h.self().List(t.Context(), core.ListRunsRequest{ThreadKey: thread("t"), Active: active})
			h.must(err)
			var got []core.RunID
			for _, r := range runs.Runs {
				got = append(got, r.Run)
			}
			if !slices.Equal(got, want) {
				t.Errorf("active %t: %v, want %v", active, got, want)
			}
		}
		_, err := h.self().List(t.Context(), core.ListRunsRequest{})
		if e, ok := errors.AsType[*core.InvalidError](err); !ok || e.Code != "invalid-id" {
			t.Errorf("no thread: %v", err)
		}
	})
}

// longThread is a thread with many runs, of which every hundredth has not ended.
type longThread struct {
	core.Runs
	runs []core.RunKey
}

func (l *longThread) ThreadRuns(context.Context, core.ThreadKey) ([]core.RunKey, error) {
	return l.runs, nil
}

func (l *longThread) Run(_ context.Context, k core.RunKey) (core.Run, error) {
	r := core.Run{RunKey: k, Thread: "t", Status: core.Completed}
	if strings.HasSuffix(string(k.Run), "00") {
		r.Status = core.Running
	}
	return r, nil
}

// TestAListGoesOnToWhatItIsAskedFor: those that have not ended are told although newer ones
// that have are many, and no more than a list holds.
func TestAListGoesOnToWhatItIsAskedFor(t *testing.T) {
	for _, c := range []struct {
		runs   int
		active bool
		told   int
		first  core.RunID
		more   bool
	}{
		{350, true, 4, "r0000", false}, {350, false, 100, "r0000", true}, {100, false, 100, "r0000", false}, {0, true, 0, "", false},
		{11_000, true, 100, "r0000", true}, {9901, true, 100, "r0000", false},
	} {
		l := &longThread{}
		for n := range c.runs {
			l.runs = append(l.runs, key(fmt.Sprintf("r%04d", n)))
		}
		s := &core.Session{Launcher: &core.Launcher{Runs: l}, History: l}
		out, err := s.List(t.Context(), core.ListRunsRequest{ThreadKey: thread("t"), Active: c.active})
		if err != nil || len(out.Runs) != c.told || out.More != c.more || c.told > 0 && out.Runs[0].Run != c.first || out.Runs == nil {
			t.Errorf("%+v: %d runs, more: %t, %v", c, len(out.Runs), out.More, err)
		}
		if !slices.IsSortedFunc(out.Runs, func(a, b core.RunView) int { return strings.Compare(string(a.Run), string(b.Run)) }) {
			t.Errorf("%+v: not newest first", c)
		}
	}
}

// noExec is a sandbox that takes no exec at all.
type noExec struct{ core.Provider }

func (noExec) StartAgent(_ context.Context, target core.ExecTarget, _ core.JournalStart, _ []byte) (core.JournalStarted, error) {
	return core.JournalStarted{}, &core.ExecError{Target: target, Healing: core.Configuration, Reason: "no-shell"}
}

// TestACancelledSandboxEnds although its agent said goodbye with a sentinel, by its host
// or by a sweep; the next turn gets another (MW-5).
func TestACancelledSandboxEnds(t *testing.T) {
	for what, end := range map[string]func(h *hosting){
		"by its host": func(h *hosting) {
			_, err := host{h, "one", "a"}.cancel()
			h.must(err)
		},
		"by a sweep": func(h *hosting) {
			_, err := h.self().Cancel(h.t.Context(), core.CancelRequest{RunKey: key("one")})
			h.must(err)
			time.Sleep(core.CancelGrace)
			for range 2 {
				_, err = h.sweep(h.store.Process).Run(h.t.Context(), core.SweepRequest{})
				h.must(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := newHosting(t)
				first := h.ready(startOf("one", "a"))
				h.fleet.Write("one", "traps\n")
				end(h)
				if r := h.run("one"); r.Sealed == nil || r.Reclaim != core.ReclaimEnd {
					t.Errorf("sealed %v, owes %s", r.Sealed, r.Reclaim)
				}
				report, err := h.self().Start(t.Context(), startOf("two", "b"))
				h.must(err)
				if report.Waiting != "reclaim" {
					t.Errorf("the next turn: %+v", report)
				}
				h.drainQueue(h.store.Process)
				if second := h.ready(startOf("two", "b")); second.Run.TaskARN == first.Run.TaskARN || len(h.fleet.Running()) != 1 {
					t.Errorf("the next turn: %+v, running %v", second.Run.TaskARN, h.fleet.Running())
				}
				h.check()
			})
		})
	}
}

// TestADebtStaysWithTheSandbox: the next turn takes over a sandbox whose last run still
// owes its checkpoint; from then on the task's row owes it, though that turn be cancelled
// before anybody looks at the old one's mark.
func TestADebtStaysWithTheSandbox(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := keepingHosting(t)
		h.ready(startOf("one", "a"))
		h.fleet.Exit("one", 0)
		h.keep.began = core.AgentMissing
		_, err := host{h, "one", "a"}.finish(nil)
		h.must(err)
		if !h.run("one").Checkpoint.Owes() {
			t.Fatalf("checkpoint %+v", h.run("one").Checkpoint)
		}
		second := h.ready(startOf("two", "b"))
		row, err := h.store.Row(t.Context(), h.run("two").Instance)
		h.must(err)
		one := h.run("one")
		if second.Ensured != core.EnsuredResumed || row.Owed != "one" || one.Row != core.RowNone || one.Checkpoint.State != core.CheckpointMoved {
			t.Errorf("second turn %s, row owes %q, first run's row %q, checkpoint %+v", second.Ensured, row.Owed, one.Row, one.Checkpoint)
		}
		h.check()
	})
}

// TestNoDebtIsForgotten: a sandbox that goes from turn to turn before anything is stored owes
// the work of each, and of each it is told what became of it.
func TestNoDebtIsForgotten(t *testing.T) {
	for what, end := range map[string]struct {
		act  func(h *hosting, arn string)
		want core.CheckpointState
	}{
		"the task dies": {func(h *hosting, arn string) { h.fleet.KillTask(arn) }, core.CheckpointLost},
		"it is stored at last": {func(h *hosting, _ string) {
			_, err := host{h, "three", "d"}.cancel()
			h.must(err)
		}, core.CheckpointDone},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := keepingHosting(t)
				h.keep.began = core.AgentMissing
				for _, run := range []string{"zero", "one", "two"} {
					h.ready(startOf(run, "a"+run))
					h.fleet.Exit(core.RunID(run), 0)
					_, err := host{h, run, "a" + run}.finish(nil)
					h.must(err)
				}
				arn := h.ready(startOf("three", "d")).Run.TaskARN
				if row, err := h.store.Row(t.Context(), h.run("three").Instance); err != nil || row.Owed != "two" {
					t.Errorf("the row owes %q, %v", row.Owed, err)
				}
				end.act(h, arn)
				for range 60 {
					time.Sleep(20 * time.Second)
					h.tick()
					if h.fleet.Capturing("two") {
						h.must(h.fleet.View(h.store.Process).CommitCapture(t.Context(), "two"))
					}
				}
				for _, run := range []string{"zero", "one", "two"} {
					if c := h.run(run).Checkpoint; c.State != end.want {
						t.Errorf("run %s: checkpoint %+v, want %s", run, c, end.want)
					}
				}
				if row, err := h.store.Row(t.Context(), h.run("three").Instance); err != nil || row.State != core.LedgerClosed || row.Owed != "" {
					t.Errorf("row %+v, %v", row, err)
				}
				h.check()
			})
		})
	}
}

// TestAPausedRunsWorkIsStoredThoughItsContinuationNeverBegins: the run that goes on has the
// paused one's workspace, and owes it however it ends (I5).
func TestAPausedRunsWorkIsStoredThoughItsContinuationNeverBegins(t *testing.T) {
	for what, ends := range map[string]func(h *hosting) (last string){
		"its host dies": func(h *hosting) string { h.recover(); return "r" },
		"its host gives it up": func(h *hosting) string {
			_, err := host{h, "r", "one"}.fail()
			h.must(err)
			return "r"
		},
		"another goes on for it, and fails": func(h *hosting) string {
			_, err := host{h, "r", "one"}.interrupt()
			h.must(err)
			q := startOf("s", "two")
			q.Parent = "r"
			if report := h.ready(q); report.Ensured != core.EnsuredResumed {
				h.t.Errorf("continued %+v", report)
			}
			_, err = host{h, "s", "two"}.fail()
			h.must(err)
			return "s"
		},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := keepingHosting(t)
				h.ready(startOf("ask", "zero"))
				h.fleet.Write("ask", "work\n")
				_, err := host{h, "ask", "zero"}.interrupt()
				h.must(err)
				h.fleet.Exit("ask", 0)
				ctx, dies := context.WithCancel(t.Context())
				q := startOf("r", "one")
				q.Parent = "ask"
				_, err = h.session(h.store.NewProcess(mem.Faults{Before: func(_ context.Context, call string) {
					if call == "note start" {
						dies()
					}
				}})).Start(ctx, q)
				if err == nil || h.run("ask").Status != core.Completed || h.run("r").TaskARN == "" || h.run("r").Start.AskedAt != 0 {
					t.Fatalf("%v; ask is %s, r has task %q", err, h.run("ask").Status, h.run("r").TaskARN)
				}
				last := ends(h)
				if r := h.run(last); !r.Status.Terminal() || r.Checkpoint.State == core.CheckpointNotOwed {
					t.Errorf("it is %s (%+v), checkpoint %+v; want it owed", r.Status, r.Ending, r.Checkpoint)
				}
			})
		})
	}
}
