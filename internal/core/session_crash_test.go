package core_test

import (
	"context"
	"errors"
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

// call is an operation of a session, each of whose calls may fail.
type call struct {
	of     string           // the method of [core.Session]
	before func(h *hosting) // what has happened, by processes without faults
	do     func(ctx context.Context, s *core.Session) (done bool, err error)
	done   func(h *hosting) bool
}

func started(run, host string) func(ctx context.Context, s *core.Session) (bool, error) {
	return func(ctx context.Context, s *core.Session) (bool, error) {
		report, err := s.Start(ctx, startOf(run, host))
		return report.State == core.Ready, err
	}
}

func begins(run, host string) func(h *hosting) {
	return func(h *hosting) { h.ready(startOf(run, host)) }
}

// sessionCalls are every operation, in its most telling situations; those that only read
// change nothing.
var sessionCalls = map[string]call{
	"start": {
		of:     "Start",
		before: func(*hosting) {}, do: started("r", "one"),
		done: func(h *hosting) bool { return h.fleet.Alive("r") },
	},
	"start in a warm sandbox": {
		of:     "Start",
		before: func(h *hosting) { h.ready(startOf("first", "zero")); h.warm("first") }, do: started("r", "one"),
		done: func(h *hosting) bool { return h.fleet.Alive("r") && len(h.fleet.Running()) == 1 },
	},
	"start where the sandbox is gone": {
		of: "Start",
		before: func(h *hosting) {
			h.ready(startOf("first", "zero"))
			h.warm("first")
			h.fleet.KillTask(h.run("first").TaskARN)
		},
		do:   started("r", "one"),
		done: func(h *hosting) bool { return h.fleet.Alive("r") },
	},
	"continue": {
		of: "Start",
		before: func(h *hosting) {
			h.ready(startOf("ask", "zero"))
			_, err := host{h, "ask", "zero"}.interrupt()
			h.must(err)
		},
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			q := startOf("r", "one")
			q.Parent = "ask"
			report, err := s.Start(ctx, q)
			return report.State == core.Ready, err
		},
		done: func(h *hosting) bool {
			return h.fleet.Alive("r") && !h.fleet.Alive("ask") && len(h.fleet.Running()) == 1
		},
	},
	"renew": {
		of:     "Renew",
		before: begins("r", "one"),
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			_, err := s.Renew(ctx, core.HostRequest{RunKey: key("r"), Host: hostOf("one")})
			return true, err
		},
		done: func(h *hosting) bool { return h.run("r").AttachedUntil != 0 },
	},
	"attach": {
		of:     "Attach",
		before: func(h *hosting) { begins("r", "zero")(h); h.detach("r") },
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			_, err := s.Attach(ctx, core.AttachRequest{RunKey: key("r"), Host: hostOf("one")})
			return true, err
		},
		done: func(h *hosting) bool { return h.run("r").ClaimNonce == hostOf("one") },
	},
	"detach": {
		of:     "Detach",
		before: begins("r", "one"),
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			_, err := s.Detach(ctx, core.HostRequest{RunKey: key("r"), Host: hostOf("one")})
			return true, err
		},
		done: func(h *hosting) bool { return h.run("r").Row == core.RowDetached },
	},
	"interrupt": {
		of:     "Interrupt",
		before: begins("r", "one"),
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			_, err := s.Interrupt(ctx, core.HostRequest{RunKey: key("r"), Host: hostOf("one")})
			return true, err
		},
		done: func(h *hosting) bool { return h.run("r").Status == core.Interrupted },
	},
	"cancel": {
		of:     "Cancel",
		before: begins("r", "one"),
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			report, err := s.Cancel(ctx, core.CancelRequest{RunKey: key("r"), Host: hostOf("one")})
			return report.Ended, err
		},
		done: func(h *hosting) bool { return h.run("r").Status == core.Aborted },
	},
	"fail": {
		of:     "Fail",
		before: begins("r", "one"),
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			report, err := s.Fail(ctx, core.FailRequest{RunKey: key("r"), Host: hostOf("one"), Error: core.RunFault{Code: "host"}})
			return report.Ended, err
		},
		done: func(h *hosting) bool { return h.run("r").Status == core.Failed && h.run("r").Error.Code == "host" },
	},
	"finish": {
		of: "Finish",
		before: func(h *hosting) {
			begins("r", "one")(h)
			h.fleet.Write("r", "done\n")
			h.fleet.Exit("r", 0)
		},
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			report, err := s.Finish(ctx, core.FinishRequest{RunKey: key("r"), Host: hostOf("one")})
			return report.State == core.Finished, err
		},
		done: func(h *hosting) bool { return h.run("r").Status == core.Completed && h.run("r").Transcript.Complete },
	},
	"tail to the end": {
		of: "Tail",
		before: func(h *hosting) {
			begins("r", "one")(h)
			h.fleet.Write("r", "done\n")
			h.fleet.Exit("r", 0)
		},
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			report, err := s.Tail(ctx, core.TailRequest{RunKey: key("r"), Host: hostOf("one"), WaitSeconds: 1})
			return report.End, err
		},
		done: func(h *hosting) bool { return h.run("r").Sealed != nil },
	},
	"tail of an agent that works": {
		of: "Tail",
		before: func(h *hosting) {
			begins("r", "one")(h)
			h.fleet.Write("r", strings.Repeat("line\n", 20_000)) // enough for the log
		},
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			report, err := s.Tail(ctx, core.TailRequest{RunKey: key("r"), Host: hostOf("one"), WaitSeconds: 1})
			return len(report.Data) > 0, err
		},
		done: func(h *hosting) bool { return h.run("r").LogEnd > 0 },
	},
	"tail by who only reads": {
		of: "Tail",
		before: func(h *hosting) {
			begins("r", "one")(h)
			h.fleet.Write("r", "done\n")
			h.fleet.Exit("r", 0)
			_, err := host{h, "r", "one"}.finish(nil)
			h.must(err)
		},
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			report, err := s.Tail(ctx, core.TailRequest{RunKey: key("r")})
			return string(report.Data) == "done\n", err
		},
		done: func(h *hosting) bool { return h.run("r").Status == core.Completed },
	},
	"list": {
		of:     "List",
		before: func(h *hosting) { begins("r", "one")(h) },
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			report, err := s.List(ctx, core.ListRunsRequest{ThreadKey: core.ThreadKey{Tenant: "acme", Thread: "t"}, Active: true})
			return len(report.Runs) == 1 && report.Runs[0].RunKey == key("r"), err
		},
		done: func(h *hosting) bool { return h.fleet.Alive("r") },
	},
	"get": {
		of:     "Get",
		before: begins("r", "one"),
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			view, err := s.Get(ctx, core.GetRequest{RunKey: key("r")})
			return view.ReadyAt != 0, err
		},
		done: func(h *hosting) bool { return h.fleet.Alive("r") },
	},
	"start with all that a definition can say": {
		of:     "Start",
		before: func(h *hosting) { h.complete() },
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			report, err := s.Start(ctx, fullStart("r", "one"))
			return report.State == core.Ready, err
		},
		done: func(h *hosting) bool {
			return h.fleet.Alive("r") && len(h.fleet.Running()) == 1 && h.hooked(core.HookReady, "r") > 0 && len(h.run("r").Bearers) > 0
		},
	},
	"start by the name of a definition": {
		of:     "Start",
		before: func(h *hosting) { h.complete() },
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			q := fullStart("r", "one")
			q.DefinitionName, q.Definition = q.Definition.Name, nil
			report, err := s.Start(ctx, q)
			return report.State == core.Ready, err
		},
		done: func(h *hosting) bool { return h.fleet.Alive("r") && h.run("r").Definition == "d@1" },
	},
	"start from a copy": {
		of: "Start",
		before: func(h *hosting) {
			h.complete()
			h.ready(fullStart("first", "zero"))
			h.warm("first")
			h.fleet.KillTask(h.run("first").TaskARN)
		},
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			report, err := s.Start(ctx, fullStart("r", "one"))
			return report.State == core.Ready, err
		},
		done: func(h *hosting) bool {
			return h.fleet.Alive("r") && len(h.fleet.Running()) == 1 && h.run("r").Start.Native != ""
		},
	},
	"start at the quota's edge": {
		of: "Start",
		before: func(h *hosting) {
			h.complete()
			q := fullStart("other", "zero")
			q.Thread = "u"
			h.ready(q)
		},
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			report, err := s.Start(ctx, fullStart("r", "one"))
			return report.State == core.Ready, err
		},
		done: func(h *hosting) bool { return h.fleet.Alive("r") && len(h.fleet.Running()) == 2 },
	},
	"start whose set-up fails": {
		of: "Start",
		before: func(h *hosting) {
			h.complete()
			h.fleet.SetupsByHand = true
		},
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			h := hostingOf(ctx)
			if r, err := h.store.Run(ctx, key("r")); err == nil {
				h.fleet.EndSetup(r.TaskARN, core.SetupState{Phase: core.SetupFailed, Code: "step-failed"})
			}
			_, err := s.Start(ctx, fullStart("r", "one"))
			return refusalCode(err, "setup-failed", "terminal-run", "too-late"), nil
		},
		done: func(h *hosting) bool { return h.failsWith("setup-failed") },
	},
	"start whose ready hook fails": {
		of: "Start",
		before: func(h *hosting) {
			h.complete()
			h.fleet.FailsHook = func(e core.HookEvent) bool { return e.Hook == core.HookReady }
		},
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			_, err := s.Start(ctx, fullStart("r", "one"))
			return refusalCode(err, "hook-failed", "terminal-run", "too-late"), nil
		},
		done: func(h *hosting) bool { return h.failsWith("hook-failed") },
	},
	"fail, with hooks": {
		of:     "Fail",
		before: func(h *hosting) { h.complete(); h.ready(fullStart("r", "one")); h.fleet.Touch("r", change) },
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			report, err := s.Fail(ctx, core.FailRequest{RunKey: key("r"), Host: hostOf("one"), Error: core.RunFault{Code: "host"}})
			return report.Ended, err
		},
		done: func(h *hosting) bool { return h.run("r").Status == core.Failed && h.run("r").Error.Code == "host" },
	},
	"finish, with changes of files": {
		of: "Finish",
		before: func(h *hosting) {
			h.complete()
			h.ready(fullStart("r", "one"))
			h.fleet.Touch("r", change)
			h.fleet.Write("r", "done\n")
			h.fleet.Exit("r", 0)
		},
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			report, err := s.Finish(ctx, core.FinishRequest{RunKey: key("r"), Host: hostOf("one")})
			return report.State == core.Finished, err
		},
		done: func(h *hosting) bool { return h.run("r").Status == core.Completed && h.run("r").Transcript.Complete },
	},
	"tail of the spool": {
		of: "Tail",
		before: func(h *hosting) {
			h.complete()
			h.ready(fullStart("r", "one"))
			h.fleet.Write("r", strings.Repeat("line\n", 20_000))
			h.store.Spool(key("r"), 0, []byte(strings.Repeat("line\n", 20_000)))
		},
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			report, err := s.Tail(ctx, core.TailRequest{RunKey: key("r"), Host: hostOf("one"), WaitSeconds: 1})
			return len(report.Data) > 0, err
		},
		done: func(h *hosting) bool { return h.run("r").LogEnd > 0 },
	},
	"tail of files": {
		of:     "Tail",
		before: func(h *hosting) { h.complete(); h.ready(fullStart("r", "one")); h.fleet.Touch("r", change) },
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			report, err := s.Tail(ctx, core.TailRequest{RunKey: key("r"), Host: hostOf("one"), WaitSeconds: 1, Stream: core.StreamFiles})
			return len(report.Data) > 0, err
		},
		done: func(h *hosting) bool { return h.fleet.Alive("r") },
	},
	"segments": {
		of: "Segments",
		before: func(h *hosting) {
			h.complete()
			begins("r", "one")(h)
			h.fleet.Write("r", "done\n")
			h.fleet.Exit("r", 0)
			_, err := host{h, "r", "one"}.finish(nil)
			h.must(err)
		},
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			report, err := s.Segments(ctx, core.SegmentsRequest{RunKey: key("r")})
			return report.End, err
		},
		done: func(h *hosting) bool { return h.run("r").Status == core.Completed },
	},
	"active": {
		of:     "List",
		before: func(h *hosting) { begins("r", "one")(h); h.detach("r") },
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			report, err := s.List(ctx, core.ListRunsRequest{ThreadKey: core.ThreadKey{Tenant: "acme", Thread: "t"}, Active: true})
			return len(report.Runs) == 1, err
		},
		done: func(h *hosting) bool { return h.fleet.Alive("r") },
	},
	"adopt": {
		of:     "Adopt",
		before: func(h *hosting) { h.fleet.BeginStray(h.fleet.RunStray("mine/own"), "r", adoptedJournal) },
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			report, err := adopts(ctx, s)
			return report.State == core.Ready, err
		},
		done: func(h *hosting) bool { return h.run("r").TaskARN == h.fleet.Running()[0] },
	},
}

// hostingOf is the world that an operation is carried out in.
func hostingOf(ctx context.Context) *hosting { return ctx.Value(hostingKey{}).(*hosting) }

type hostingKey struct{}

// in is a context of the world.
func (h *hosting) in() context.Context { return context.WithValue(h.t.Context(), hostingKey{}, h) }

// refusalCode reports whether an error is a refusal with one of the codes.
func refusalCode(err error, codes ...string) bool {
	e, ok := errors.AsType[*core.RefusedError](err)
	return ok && slices.Contains(codes, e.Why)
}

// failsWith reports whether the run r has failed without an agent, or will by the next
// sweep: its end is decided.
func (h *hosting) failsWith(code string) bool {
	r := h.run("r")
	return (r.Status == core.Failed || r.Ending != nil) && r.Error.Code == code && !h.fleet.Alive("r")
}

// hooked is how often a hook was told of a run.
func (h *hosting) hooked(hook core.Hook, run core.RunID) int {
	n := 0
	for _, told := range h.fleet.Told() {
		if told.Event.Hook == hook && told.Event.Run == run {
			n++
		}
	}
	return n
}

// TestEveryOperationHasItsRows: an operation of a session, or an errand of the keeper, that
// no matrix tries is none that anybody vouches for.
func TestEveryOperationHasItsRows(t *testing.T) {
	for method := range reflect.TypeFor[*core.Session]().Methods() {
		rows := 0
		for _, c := range sessionCalls {
			if c.of == method.Name {
				rows++
			}
		}
		if moves := slices.ContainsFunc(moves, func(m move) bool { return m.of == method.Name }); rows == 0 || !moves {
			t.Errorf("operation %s: %d rows in the crash matrix; among the pairs: %t", method.Name, rows, moves)
		}
	}
	for what, c := range sessionCalls {
		if _, ok := reflect.TypeFor[*core.Session]().MethodByName(c.of); !ok {
			t.Errorf("row %q is of %q, which is no operation", what, c.of)
		}
	}
}

// TestSessionCrashMatrix fails every call of every operation in every way. A host that
// asks again gets what it asked for; one that never comes back leaves nothing behind.
func TestSessionCrashMatrix(t *testing.T) {
	points := 0
	for what, c := range sessionCalls {
		calls := 0
		synctest.Test(t, func(t *testing.T) {
			h := newHosting(t)
			c.before(h)
			p := h.store.NewProcess(mem.Faults{})
			done, err := false, error(nil)
			for range 10 { // one that waits is asked again
				if done, err = c.do(h.in(), h.session(p)); done || err != nil {
					break
				}
				time.Sleep(2 * time.Second)
			}
			if err != nil || !done || !c.done(h) {
				t.Fatalf("%s without faults: done %t, %v, after %v", what, done, err, p.Calls())
			}
			calls = len(p.Calls())
		})
		for n := 1; n <= calls; n++ {
			for _, fault := range []mem.Fault{mem.NotLanded, mem.AnswerLost, mem.StopBefore, mem.StopAfter} {
				points++
				for _, back := range []bool{true, false} {
					t.Run(fmt.Sprintf("%s, %d %s, comes back %t", what, n, fault, back), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) { crash(newHosting(t), c, mem.At(n, fault), back) })
					})
				}
			}
		}
	}
	t.Logf("session crash matrix: %d points", points)
	if points < 1000 {
		t.Errorf("%d points: the operations have shrunk", points)
	}
}

// crash does the operation under a fault, and looks at what comes of it.
func crash(h *hosting, c call, faults mem.Faults, back bool) {
	h.t.Helper()
	h.limits.PauseTTL = 10 * time.Minute
	c.before(h)
	p := h.store.NewProcess(faults)
	for range 5 { // it may fail
		if done, _ := c.do(h.in(), h.session(p)); done || p.Stopped() {
			break
		}
		time.Sleep(2 * time.Second)
	}
	h.check()
	if back {
		h.comesBack(c)
	}
	h.gone()
}

// comesBack has the host ask again until it is done.
func (h *hosting) comesBack(c call) {
	h.t.Helper()
	for range 90 {
		done, err := c.do(h.in(), h.self())
		if err == nil && done {
			break
		}
		if err != nil {
			h.t.Logf("asked again: %v", err)
		}
		time.Sleep(2 * time.Second)
	}
	if !c.done(h) {
		h.t.Errorf("asked again, it is not done: %s %+v %+v", h.run("r").Status, h.run("r").Error, h.run("r").Start)
	}
	h.drainQueue(h.store.Process)
	h.check()
}

// gone lets all hosts be gone, and the tasks that are theirs: agents finish, runs lapse, and in the end nothing runs and
// nothing is owed.
func (h *hosting) gone() {
	h.t.Helper()
	for range 4 { // lapse or pause, end, idle, and the capture that is owed before
		h.fleet.KillStrays()
		for run := range h.store.State().Runs {
			h.fleet.Exit(run.Run, 0)
		}
		h.recover()
		if h.nothingLeft() {
			break
		}
		time.Sleep(h.limits.IdleTTL)
		h.recover()
	}
	if h.nothingLeft() && len(h.fleet.Snapshots()) == 0 {
		return
	}
	for k, r := range h.store.State().Runs {
		if !r.Status.Terminal() || r.Row != core.RowNone {
			h.t.Errorf("run %s is left: %s, row %s, %s", k, r.Status, r.Row, r.ReclaimOutcome)
		}
	}
	for id, row := range h.store.State().Rows {
		if row.State != core.LedgerClosed {
			h.t.Errorf("row %s is left: %s, %s", id, row.State, row.Why)
		}
	}
	if copies := h.fleet.Snapshots(); len(copies) > 0 {
		h.t.Errorf("copies are left: %v", copies)
	}
}

// nothingLeft reports whether no run goes on or owes anything, and no task runs.
func (h *hosting) nothingLeft() bool {
	state := h.store.State()
	for _, r := range state.Runs {
		if !r.Status.Terminal() || r.Row != core.RowNone {
			return false
		}
	}
	for _, row := range state.Rows {
		if row.State != core.LedgerClosed {
			return false
		}
	}
	return true
}

// adoptedJournal is the nonce of an adopted run's journal.
const adoptedJournal = "00112233445566778899aabbccddeeff"

// adopts takes the one task over that a host has started itself.
func adopts(ctx context.Context, s *core.Session) (core.StartReport, error) {
	return s.Adopt(ctx, core.AdoptRequest{
		RunKey: key("r"), Thread: "t", Host: hostOf("one"), TaskARN: "arn:aws:ecs:local:000000000000:task/c/0001", Container: "agent",
		Journal: adoptedJournal,
	})
}

// TestAdoptCrashMatrix fails every call of an adoption in every way: asked again, it takes
// the task; never asked again, the task is its host's own still, or ends.
func TestAdoptCrashMatrix(t *testing.T) {
	calls := 0
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		h.fleet.RunStray("mine/own")
		p := h.store.NewProcess(mem.Faults{})
		_, err := adopts(t.Context(), h.session(p))
		h.must(err)
		calls = len(p.Calls())
	})
	for n := 1; n <= calls; n++ {
		for _, fault := range []mem.Fault{mem.NotLanded, mem.AnswerLost, mem.StopBefore, mem.StopAfter} {
			for _, wait := range []time.Duration{time.Second, 70 * time.Second, 30 * time.Minute} {
				synctest.Test(t, func(t *testing.T) {
					h := newHosting(t)
					h.fleet.RunStray("mine/own")
					_, _ = adopts(t.Context(), h.session(h.store.NewProcess(mem.At(n, fault)))) // it may fail
					time.Sleep(wait)
					var err error
					for range 20 {
						var report core.StartReport
						if report, err = adopts(t.Context(), h.self()); err == nil && report.State == core.Ready {
							break
						}
						time.Sleep(2 * time.Minute)
					}
					h.must(err)
					h.store.Check(t)
					row, err := h.store.Row(t.Context(), h.run("r").Instance)
					h.must(err)
					if r := h.run("r"); r.TaskARN == "" || row.State != core.LedgerRunning || row.TaskARN != r.TaskARN {
						t.Errorf("call %d, %s, after %s: run %+v, row %+v", n, fault, wait, r, row)
					}
				})
			}
		}
	}
}

// keeps are the operations that write a thread, where checkpoints are kept: a turn that
// is restored, and one that is stored.
var keeps = map[string]call{
	"start with a restore": {
		before: func(h *hosting) {
			first := h.finished("first", "zero", tree{"f": "1"})
			h.drainQueue(h.store.Process)
			h.fleet.KillTask(first.Run.TaskARN)
		},
		do:   started("r", "one"),
		done: func(h *hosting) bool { return h.fleet.Alive("r") && h.run("r").Start.Restored == "checkpoint-first" },
	},
	"finish with a checkpoint": {
		before: func(h *hosting) {
			begins("r", "one")(h)
			h.fleet.Write("r", "done\n")
			h.fleet.Exit("r", 0)
		},
		do: func(ctx context.Context, s *core.Session) (bool, error) {
			report, err := s.Finish(ctx, core.FinishRequest{RunKey: key("r"), Host: hostOf("one"), Conversation: &core.ConversationPut{Data: []byte("said")}})
			return report.State == core.Finished, err
		},
		done: func(h *hosting) bool {
			return h.run("r").Status == core.Completed && h.keep.head("t") == "checkpoint-r"
		},
	},
}

// atWork carries out the newest step of the thread, if it is under way.
func (h *hosting) atWork(ctx context.Context) {
	th, err := h.store.Thread(ctx, thread("t"))
	h.must(err)
	job, ok := h.keep.jobs["t"]
	if !ok || th.Step == nil || th.Step.State != core.StepWorking {
		return
	}
	if th.Step.Kind == core.StepCapture {
		_ = h.keep.carryOut(ctx, h.store.Process, job, tree{"f": "2"}) // an agent whose token is dead is refused
		return
	}
	_, _ = h.keep.keeper(h.store.Process).CommitRoot(ctx, job.Token, nil) // so is this one
}

// TestKeptSessionCrashMatrix fails every call of what writes a thread, in every way; a
// host that asks again gets what it asked for.
func TestKeptSessionCrashMatrix(t *testing.T) {
	points := 0
	for what, c := range keeps {
		calls := 0
		again := func(h *hosting, faults mem.Faults) (n int) {
			p := h.store.NewProcess(faults)
			for range 90 {
				done, err := c.do(h.t.Context(), h.session(p))
				h.atWork(h.t.Context())
				if p.Stopped() {
					n, p = len(p.Calls()), h.store.NewProcess(mem.Faults{})
				}
				if err == nil && done {
					break
				}
				time.Sleep(2 * time.Second)
			}
			if !c.done(h) {
				h.t.Errorf("it is not done: %s, head %s", h.run("r").Status, h.keep.head("t"))
			}
			h.store.Check(h.t)
			return max(n, len(p.Calls()))
		}
		bubble(t, func(t *testing.T) {
			h := keepingHosting(t)
			c.before(h)
			calls = again(h, mem.Faults{})
		})
		for n := 1; n <= calls; n++ {
			for _, fault := range []mem.Fault{mem.NotLanded, mem.AnswerLost, mem.StopBefore, mem.StopAfter} {
				points++
				t.Run(fmt.Sprintf("%s, %d %s", what, n, fault), func(t *testing.T) {
					bubble(t, func(t *testing.T) {
						h := keepingHosting(t)
						h.t = t
						c.before(h)
						again(h, mem.At(n, fault))
					})
				})
			}
		}
	}
	t.Logf("kept session crash matrix: %d points", points)
}
