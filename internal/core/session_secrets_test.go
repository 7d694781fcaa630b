package core_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// value is what nobody but the agent may see.
const value = "hunter2-hunter2"

// vault knows one secret.
type vault struct {
	err   error
	other string // the value, instead of the usual one
}

func (v vault) Resolve(context.Context, string) (string, error) { return cmp.Or(v.other, value), v.err }

// overseen are calls that leave the session's process, as others see them.
type overseen struct {
	core.Provider
	seen   []string // what stands in an argument, an override or a script
	agents []core.JournalStart
	err    error
}

func (o *overseen) StartAgent(ctx context.Context, target core.ExecTarget, agent core.JournalStart, input []byte) (core.JournalStarted, error) {
	script, err := core.DefaultJournal.ProgramStartScript(agent)
	if err != nil {
		return core.JournalStarted{}, err
	}
	stdin, err := agent.Stdin(input)
	if err != nil || !strings.Contains(string(stdin), value) {
		return core.JournalStarted{}, fmt.Errorf("stdin of %d bytes without the value: %w", len(stdin), err)
	}
	o.seen, o.agents = append(o.seen, script), append(o.agents, agent)
	if o.err != nil {
		return core.JournalStarted{}, o.err
	}
	return o.Provider.StartAgent(ctx, target, agent, input)
}

// Setup is done at once.
func (o *overseen) Setup(_ context.Context, target core.ExecTarget, id string, job *core.SetupJob, _ time.Duration) (core.SetupState, error) {
	if job != nil && job.Values["TOKEN"] != value {
		return core.SetupState{}, fmt.Errorf("set-up %s without the value", id)
	}
	o.seen = append(o.seen, fmt.Sprint(target, id), core.DefaultJournal.AgentScript())
	return core.SetupState{Phase: core.SetupDone}, nil
}

func (o *overseen) Start(ctx context.Context, spec core.TaskSpec) (string, error) {
	o.seen = append(o.seen, fmt.Sprintf("%+v", spec))
	return o.Provider.Start(ctx, spec)
}

// everything is all that is kept or said of what has happened.
func (h *hosting) everything(t *testing.T) string {
	state := h.store.State()
	var all []any
	for _, r := range state.Runs {
		all = append(all, r)
	}
	for _, box := range state.Sandboxes {
		all = append(all, box)
	}
	for _, row := range state.Rows {
		all = append(all, row)
	}
	text, err := json.Marshal(append(all, h.notices, h.store.TakeJobs()))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestASecretIsTheAgentsAlone: on a sandbox that is made and on one that was there, when all
// goes well and when it does not, its value is in no record, message, event, log, script
// or override; it travels on stdin.
func TestASecretIsTheAgentsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		var log strings.Builder
		o := &overseen{}
		with := func() *core.Session {
			s := h.self()
			s.Secrets, s.Logger = vault{}, slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			o.Provider = s.Launcher.Provider
			s.Launcher.Provider, s.Setups = o, o
			return s
		}
		q := startOf("one", "a")
		q.Definition.Secrets = []core.SecretPlan{{Name: "TOKEN", From: "arn:aws:ssm:us-east-1:000000000000:parameter/t"}, {Name: "PLAIN"}}
		first, err := with().Start(t.Context(), q)
		h.must(err)
		h.warm("one")
		next := q
		next.RunKey, next.Host = key("two"), hostOf("b")
		second, err := with().Start(t.Context(), next)
		h.must(err)
		if first.Ensured != core.EnsuredCreated || second.Ensured != core.EnsuredResumed || len(o.agents) != 2 {
			t.Fatalf("%s, %s, %d agents", first.Ensured, second.Ensured, len(o.agents))
		}
		for _, agent := range o.agents {
			if len(agent.Env) != 1 || agent.Env["TOKEN"] != value {
				t.Errorf("the agent gets %d values", len(agent.Env))
			}
		}
		last := q
		last.RunKey, last.Host, last.Thread = key("three"), hostOf("c"), "another"
		o.err = &core.JournalError{Op: "start", Healing: core.Configuration, Reason: core.ReasonAgentMissing}
		_, err = with().Start(t.Context(), last)
		refusedFor(t, "start in an image without the agent", err, "agent-not-started")
		said := strings.Join(o.seen, "\n") + log.String() + h.everything(t) + err.Error()
		if !strings.Contains(said, "three") || strings.Contains(said, value) {
			t.Errorf("%d bytes are kept or said, and the value is among them: %t", len(said), strings.Contains(said, value))
		}
	})
}

// TestAValueThatCannotBeCarriedFailsTheStart before anything begins, with one clear line:
// what no environment or line can hold would come to be another value, or none.
func TestAValueThatCannotBeCarriedFailsTheStart(t *testing.T) {
	for name, c := range map[string]struct {
		value string
		many  int
		want  string // "": it is carried
	}{
		"a NUL byte":                {"hunter2\x00", 1, "NUL byte"},
		"no text":                   {"hunter2\xff\xfe", 1, "UTF-8"},
		"too long":                  {strings.Repeat("x", 64<<10+1), 1, "at most 65536 bytes"},
		"as long as one may be":     {strings.Repeat("x", 64<<10), 1, ""},
		"too long together":         {strings.Repeat("x", 30<<10), 20, "together"},
		"too long as JSON together": {strings.Repeat("\x01", 60<<10), 2, "together"},
		"as many as there may be":   {strings.Repeat("<", 1<<10), 50, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHosting(t)
				s, o := h.self(), &counted{}
				o.Provider, s.Secrets, s.Setups = s.Launcher.Provider, vault{other: c.value}, o
				s.Launcher.Provider = o
				q := startOf("one", "a")
				for i := range c.many {
					q.Definition.Secrets = append(q.Definition.Secrets, core.SecretPlan{Name: fmt.Sprint("S", i), From: "arn:aws:ssm:us-east-1:000000000000:parameter/t"})
				}
				_, err := s.Start(t.Context(), q)
				if c.want == "" {
					h.must(err)
					if o.longest == 0 || o.longest > 1<<20 {
						t.Errorf("a line of %d bytes", o.longest)
					}
					return
				}
				refusedFor(t, "start", err, "secret-unavailable")
				if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), c.value[:7]) || o.longest != 0 {
					t.Errorf("%.300v; a line of %d bytes", err, o.longest)
				}
			})
		})
	}
}

// counted measures what is handed to sandboxes.
type counted struct {
	core.Provider
	longest int
}

func (c *counted) StartAgent(ctx context.Context, target core.ExecTarget, agent core.JournalStart, input []byte) (core.JournalStarted, error) {
	stdin, err := agent.Stdin(input)
	if err != nil {
		return core.JournalStarted{}, err
	}
	c.longest = max(c.longest, len(stdin))
	return c.Provider.StartAgent(ctx, target, agent, input)
}

func (c *counted) Setup(_ context.Context, _ core.ExecTarget, _ string, job *core.SetupJob, _ time.Duration) (core.SetupState, error) {
	if job != nil {
		text, err := json.Marshal(job)
		if err != nil {
			return core.SetupState{}, err
		}
		c.longest = max(c.longest, len(text))
	}
	return core.SetupState{Phase: core.SetupDone}, nil
}

// TestTheScriptRefusesWhatOnlyTheAgentCanDo, and leaves out what only makes things faster.
func TestTheScriptRefusesWhatOnlyTheAgentCanDo(t *testing.T) {
	start := core.JournalStart{Run: "r", Nonce: strings.Repeat("ab", 16), Argv: []string{"agent"}}
	for what, c := range map[string]struct {
		change func(*core.JournalStart)
		needs  bool
	}{
		"nothing":            {func(*core.JournalStart) {}, false},
		"the spool and word": {func(s *core.JournalStart) { s.Side = &core.Side{URL: "u", Bearer: "b", Spool: true, Nudge: true} }, false},
		"a secret":           {func(s *core.JournalStart) { s.Env = map[string]string{"A": "b"} }, true},
		"a tool":             {func(s *core.JournalStart) { s.Side = &core.Side{Tools: []core.SideTool{{Name: "t"}}} }, true},
		"a policy":           {func(s *core.JournalStart) { s.Side = &core.Side{Policy: &core.PolicyPlan{}} }, true},
		"file events":        {func(s *core.JournalStart) { s.Side = &core.Side{Watch: &core.SideWatch{}} }, true},
	} {
		s := start
		c.change(&s)
		script, err := core.DefaultJournal.StartScript(s)
		if err != nil {
			t.Fatal(err)
		}
		if s.NeedsAgent() != c.needs || strings.Contains(script, "sandkeeper-run") == c.needs {
			t.Errorf("%s: needs the agent: %t", what, s.NeedsAgent())
		}
	}
	for _, bad := range []map[string]string{{"SANDKEEPER_X": "a"}, {"A=B": "a"}, {"A": "a\x00"}} {
		s := start
		s.Env = bad
		if err := s.Check(); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
