package core_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// asked is one request, and with what code it is refused.
type asked struct {
	of   string // the method of [core.Session]
	what string
	do   func(ctx context.Context, s *core.Session) error
	code string
}

// ask is a request of a run that exists, changed.
func ask[Q, A any](of, what string, do func(s *core.Session, ctx context.Context, q Q) (A, error), q Q, change func(q *Q), code string) asked {
	change(&q)
	return asked{of, what, func(ctx context.Context, s *core.Session) error {
		_, err := do(s, ctx, q)
		return err
	}, code}
}

// adoptOf is a request that is well formed.
func adoptOf(run, host string) core.AdoptRequest {
	return core.AdoptRequest{
		RunKey: key(run), Thread: "t", Host: hostOf(host), Container: "agent", Journal: adoptedJournal,
		TaskARN: "arn:aws:ecs:eu-west-1:123456789012:task/c/0001",
	}
}

// wrong are requests of each operation that are not well formed; those of start have a test
// of their own, TestBadInputChangesNothing.
var wrong = func() []asked {
	long := strings.Repeat("x", 5<<20)
	mine := core.HostRequest{RunKey: key("r"), Host: hostOf("one")}
	tail := core.TailRequest{RunKey: key("r"), Host: hostOf("one")}
	finish := core.FinishRequest{RunKey: key("r"), Host: hostOf("one"), Conversation: &core.ConversationPut{Data: []byte("said")}}
	fail := core.FailRequest{RunKey: key("r"), Host: hostOf("one"), Error: core.RunFault{Code: "host"}}
	attach := core.AttachRequest{RunKey: key("r"), Host: hostOf("one")}
	start, renew, detach, interrupt := (*core.Session).Start, (*core.Session).Renew, (*core.Session).Detach, (*core.Session).Interrupt
	adopt, cancel := (*core.Session).Adopt, (*core.Session).Cancel
	return []asked{
		ask("Start", "no run", start, startOf("r", "one"), func(q *core.StartRequest) { q.Run = "" }, "invalid-id"),
		ask("Start", "its own parent", start, startOf("r", "one"), func(q *core.StartRequest) { q.Parent = "r" }, "invalid-id"),
		ask("Start", "an unknown source of the conversation", start, startOf("r", "one"), func(q *core.StartRequest) { q.Conversation = "agent" }, "bad-request"),
		ask("Start", "a tool that the definition lacks", start, startOf("r", "one"), func(q *core.StartRequest) { q.Tools = []string{"ask"} }, "bad-request"),
		ask("Attach", "no run", (*core.Session).Attach, attach, func(q *core.AttachRequest) { q.Run = "" }, "invalid-id"),
		ask("Attach", "a short host", (*core.Session).Attach, attach, func(q *core.AttachRequest) { q.Host = "me" }, "invalid-host"),
		ask("Renew", "no tenant", renew, mine, func(q *core.HostRequest) { q.Tenant = "" }, "invalid-id"),
		ask("Renew", "no host", renew, mine, func(q *core.HostRequest) { q.Host = "" }, "invalid-host"),
		ask("Detach", "no run", detach, mine, func(q *core.HostRequest) { q.Run = "" }, "invalid-id"),
		ask("Detach", "a long host", detach, mine, func(q *core.HostRequest) { q.Host = long[:200] }, "invalid-host"),
		ask("Interrupt", "no run", interrupt, mine, func(q *core.HostRequest) { q.Run = "" }, "invalid-id"),
		ask("Interrupt", "a host of two lines", interrupt, mine, func(q *core.HostRequest) { q.Host = "0123456789\nabcdef" }, "invalid-host"),
		ask("Tail", "no run", (*core.Session).Tail, tail, func(q *core.TailRequest) { q.Run = "" }, "invalid-id"),
		ask("Tail", "a short host", (*core.Session).Tail, tail, func(q *core.TailRequest) { q.Host = "me" }, "invalid-host"),
		ask("Tail", "before the beginning", (*core.Session).Tail, tail, func(q *core.TailRequest) { q.From = -1 }, "invalid-position"),
		ask("Tail", "a wait of an hour", (*core.Session).Tail, tail, func(q *core.TailRequest) { q.WaitSeconds = 3600 }, "invalid-time"),
		ask("Tail", "a stall of less than nothing", (*core.Session).Tail, tail, func(q *core.TailRequest) { q.StallSeconds = -1 }, "invalid-time"),
		ask("Tail", "an unknown stream", (*core.Session).Tail, tail, func(q *core.TailRequest) { q.Stream = "stderr" }, "bad-request"),
		ask("Segments", "no run", (*core.Session).Segments, core.SegmentsRequest{RunKey: key("r")}, func(q *core.SegmentsRequest) { q.Run = "" }, "invalid-id"),
		ask("Segments", "before the beginning", (*core.Session).Segments, core.SegmentsRequest{RunKey: key("r")}, func(q *core.SegmentsRequest) { q.From = -1 }, "invalid-position"),
		ask("Cancel", "no run", cancel, core.CancelRequest{RunKey: key("r")}, func(q *core.CancelRequest) { q.Run = "" }, "invalid-id"),
		ask("Cancel", "a short host", cancel, core.CancelRequest{RunKey: key("r")}, func(q *core.CancelRequest) { q.Host = "me" }, "invalid-host"),
		ask("Finish", "no host", (*core.Session).Finish, finish, func(q *core.FinishRequest) { q.Host = "" }, "invalid-host"),
		ask("Finish", "a version below none", (*core.Session).Finish, finish, func(q *core.FinishRequest) { q.Conversation = &core.ConversationPut{Seen: -1} }, "invalid-conversation"),
		ask("Finish", "a conversation of 5 MiB", (*core.Session).Finish, finish, func(q *core.FinishRequest) { q.Conversation = &core.ConversationPut{Data: []byte(long)} }, "too-large"),
		ask("Finish", "too many runs folded", (*core.Session).Finish, finish, func(q *core.FinishRequest) {
			q.Conversation = &core.ConversationPut{Folded: make([]core.RunID, core.MaxFolded+1)}
		}, "invalid-conversation"),
		ask("Finish", "a folded run without an id", (*core.Session).Finish, finish, func(q *core.FinishRequest) { q.Conversation = &core.ConversationPut{Folded: []core.RunID{""}} }, "invalid-id"),
		ask("Fail", "no code", (*core.Session).Fail, fail, func(q *core.FailRequest) { q.Error.Code = "" }, "invalid-error"),
		ask("Fail", "a long code", (*core.Session).Fail, fail, func(q *core.FailRequest) { q.Error.Code = long[:100] }, "invalid-error"),
		ask("Fail", "a message that is no text", (*core.Session).Fail, fail, func(q *core.FailRequest) { q.Error.Message = "\xff" }, "invalid-error"),
		ask("Fail", "a long message", (*core.Session).Fail, fail, func(q *core.FailRequest) { q.Error.Message = long[:5000] }, "invalid-error"),
		ask("Fail", "no host", (*core.Session).Fail, fail, func(q *core.FailRequest) { q.Host = "" }, "invalid-host"),
		ask("Get", "no run", (*core.Session).Get, core.GetRequest{RunKey: key("r")}, func(q *core.GetRequest) { q.Run = "" }, "invalid-id"),
		ask("List", "no thread", (*core.Session).List, core.ListRunsRequest{ThreadKey: thread("t")}, func(q *core.ListRunsRequest) { q.Thread = "" }, "invalid-id"),
		ask("Adopt", "no thread", adopt, adoptOf("a", "one"), func(q *core.AdoptRequest) { q.Thread = "" }, "invalid-id"),
		ask("Adopt", "a short host", adopt, adoptOf("a", "one"), func(q *core.AdoptRequest) { q.Host = "me" }, "invalid-host"),
		ask("Adopt", "no task", adopt, adoptOf("a", "one"), func(q *core.AdoptRequest) { q.TaskARN = "" }, "invalid-task"),
		ask("Adopt", "no container", adopt, adoptOf("a", "one"), func(q *core.AdoptRequest) { q.Container = "" }, "invalid-task"),
		ask("Adopt", "a nonce that is none", adopt, adoptOf("a", "one"), func(q *core.AdoptRequest) { q.Journal = "secret" }, "invalid-journal"),
		ask("Adopt", "a negative TTL", adopt, adoptOf("a", "one"), func(q *core.AdoptRequest) { q.TTLSeconds = -1 }, "invalid-time"),
		ask("Adopt", "an unknown policy", adopt, adoptOf("a", "one"), func(q *core.AdoptRequest) { q.Checkpoint = "often" }, "invalid-definition"),
	}
}()

// TestBadInputToEachOperation is one clear error that says what was expected, and changes
// nothing. Each operation has its rows.
func TestBadInputToEachOperation(t *testing.T) {
	rows := map[string]int{}
	for _, c := range wrong {
		rows[c.of]++
		t.Run(c.of+", "+c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHosting(t)
				h.ready(startOf("r", "one"))
				h.fleet.Write("r", "a line\n")
				before := h.run("r")
				written := len(h.store.Writes())
				err := c.do(t.Context(), h.self())
				e, ok := errors.AsType[*core.InvalidError](err)
				if !ok || e.Code != c.code || !strings.Contains(err.Error(), "want ") {
					t.Errorf("%v, want the code %s and what was expected", err, c.code)
				}
				if w := h.store.Writes()[written:]; len(w) != 0 || !reflect.DeepEqual(h.run("r"), before) {
					t.Errorf("it wrote %v", w)
				}
			})
		})
	}
	for method := range reflect.TypeFor[*core.Session]().Methods() {
		if rows[method.Name] == 0 {
			t.Errorf("operation %s has no bad input", method.Name)
		}
	}
}

// denied are refusals of well-formed requests that no other test brings about.
var denied = []struct {
	code   string
	keeps  bool // checkpoints
	before func(h *hosting)
	do     func(h *hosting) error
}{
	{"another-thread", false, begins("r", "one"), func(h *hosting) error {
		q := startOf("r", "one")
		q.Thread = "u"
		_, err := h.self().Start(h.t.Context(), q)
		return err
	}},
	{"another-parent", false, begins("r", "one"), func(h *hosting) error {
		q := startOf("r", "one")
		q.Parent = "ask"
		_, err := h.self().Start(h.t.Context(), q)
		return err
	}},
	{"another-thread", false, begins("ask", "one"), func(h *hosting) error {
		_, err := host{h, "ask", "one"}.interrupt()
		h.must(err)
		q := startOf("r", "one")
		q.Thread, q.Parent = "u", "ask"
		_, err = h.self().Start(h.t.Context(), q)
		return err
	}},
	{"another-task", false, func(h *hosting) {
		h.fleet.RunStray("mine/own")
		_, err := adopts(h.t.Context(), h.self())
		h.must(err)
	}, func(h *hosting) error {
		q := adoptOf("r", "one")
		q.TaskARN = h.fleet.RunStray("mine/other")
		_, err := h.self().Adopt(h.t.Context(), q)
		return err
	}},
	{"task-missing", false, func(*hosting) {}, func(h *hosting) error {
		_, err := h.self().Adopt(h.t.Context(), adoptOf("r", "one"))
		return err
	}},
	{"task-leaving", false, func(h *hosting) { h.fleet.Leave(h.fleet.RunStray("mine/own")) }, func(h *hosting) error {
		_, err := adopts(h.t.Context(), h.self())
		return err
	}},
	{"no-checkpoints", false, func(h *hosting) { begins("r", "one")(h); h.fleet.Exit("r", 0) }, func(h *hosting) error {
		_, err := host{h, "r", "one"}.finish(&core.ConversationPut{Data: []byte("said")})
		return err
	}},
	{"no-grants", false, func(h *hosting) {
		begins("r", "one")(h)
		h.fleet.Write("r", strings.Repeat("line\n", 20_000))
		_, err := host{h, "r", "one"}.tail(0, 0)
		h.must(err)
	}, func(h *hosting) error {
		_, err := h.self().Segments(h.t.Context(), core.SegmentsRequest{RunKey: key("r")})
		return err
	}},
	{"attached-elsewhere", false, begins("r", "zero"), func(h *hosting) error { _, err := host{h, "r", "one"}.attach(false); return err }},
	{"claim-lost", false, begins("r", "zero"), func(h *hosting) error { _, err := host{h, "r", "one"}.tail(0, 0); return err }},
	{"claim-lost", false, begins("r", "zero"), func(h *hosting) error { _, err := host{h, "r", "one"}.finish(nil); return err }},
	{"claim-lost", false, func(h *hosting) { begins("r", "zero")(h); h.detach("r") }, func(h *hosting) error { _, err := host{h, "r", "one"}.renew(); return err }},
	{"unknown-run", false, func(*hosting) {}, func(h *hosting) error { _, err := host{h, "r", "one"}.tail(0, 0); return err }},
	{"unknown-run", false, func(*hosting) {}, func(h *hosting) error { _, err := host{h, "r", "one"}.finish(nil); return err }},
	{"unknown-run", false, func(*hosting) {}, func(h *hosting) error {
		_, err := h.self().Segments(h.t.Context(), core.SegmentsRequest{RunKey: key("r")})
		return err
	}},
	{"too-late", false, func(h *hosting) { // its end is decided, and cannot be carried out
		begins("r", "one")(h)
		_, _ = h.session(h.failing("terminate")).Fail(h.t.Context(), core.FailRequest{RunKey: key("r"), Host: hostOf("one"), Error: core.RunFault{Code: "host"}})
	}, func(h *hosting) error { _, err := host{h, "r", "one"}.attach(true); return err }},
	{"sandbox-gone", false, func(h *hosting) {
		report, err := h.session(h.failing("start agent")).Start(h.t.Context(), startOf("r", "one"))
		if err == nil && report.State == core.Ready {
			h.t.Error("its agent began")
		}
		h.fleet.KillTask(h.run("r").TaskARN)
	}, func(h *hosting) error { _, err := h.self().Start(h.t.Context(), startOf("r", "one")); return err }},
	{"invalid-definition", true, func(*hosting) {}, func(h *hosting) error { // a workspace that is kept beside no conversation
		q := startOf("r", "one")
		q.Conversation = core.ConversationNone
		_, err := h.self().Start(h.t.Context(), q)
		return err
	}},
}

// TestRefusals brings about what is refused for a state that few runs come to.
func TestRefusals(t *testing.T) {
	for i, c := range denied {
		t.Run(fmt.Sprintf("%s, %d", c.code, i+1), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := newHosting(t)
				if c.keeps {
					h = keepingHosting(t)
				}
				c.before(h)
				err := c.do(h)
				if e, ok := errors.AsType[*core.InvalidError](err); ok && e.Code == c.code {
					return
				}
				refusedFor(t, c.code, err, c.code)
				h.check()
			})
		})
	}
}

// TestEveryCodeIsTried: whatever an operation may refuse with, some test brings about.
func TestEveryCodeIsTried(t *testing.T) {
	tests, err := filepath.Glob("*_test.go")
	if err != nil || len(tests) < 50 {
		t.Fatalf("%d tests, %v", len(tests), err)
	}
	var all strings.Builder
	for _, test := range tests {
		text, err := os.ReadFile(test)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	for _, op := range []string{"start", "attach", "renew", "tail", "segments", "detach", "interrupt", "cancel", "finish", "fail", "get", "list", "active", "adopt"} {
		for _, code := range core.Refusals(op) {
			if !strings.Contains(all.String(), `"`+code+`"`) {
				t.Errorf("%s: no test names %s", op, code)
			}
		}
	}
}
