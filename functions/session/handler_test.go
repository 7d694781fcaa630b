package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// newHandler is the function over an installation in memory.
func newHandler(t *testing.T, log *strings.Builder) handler {
	store := mem.New(t)
	fleet := mem.NewFleet(store).View(store.Process)
	allowed, err := core.ReadTenants(`{"": ["acme"], "ops": ["*"]}`)
	if err != nil {
		t.Fatal(err)
	}
	return handler{
		session: &core.Session{
			Launcher: &core.Launcher{
				Runs: store, Sandboxes: store, Ledger: store, Transactions: store, Describer: fleet, Provider: core.TaskProvider{TaskAPI: fleet, AgentStarter: fleet},
				Queue: store, Threads: store, Limits: core.DefaultLimits, Install: "test",
			},
			Binds: store, Controls: store, Log: &core.LogWriter{Log: store, Blobs: store, Inline: 100}, Prober: fleet, Notes: store, History: store,
			Provider: "fargate", Cluster: "c",
		},
		tenants: allowed, log: slog.New(slog.NewJSONHandler(log, nil)),
	}
}

// ask sends an event and returns the answer's only member, by name.
func ask(ctx context.Context, t *testing.T, h handler, event string) (name string, answer map[string]any) {
	t.Helper()
	out, err := h.handle(ctx, json.RawMessage(event))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	var members map[string]map[string]any
	if err := json.Unmarshal(text, &members); err != nil || len(members) != 1 {
		t.Fatalf("answer %s: %v", text, err)
	}
	for name, answer = range members {
	}
	return name, answer
}

const startEvent = `{"start": {"tenant": "acme", "run": "r", "thread": "t", "host": "host-0123456789abcdef", "definition": {"name": "d", "version": 1,
	"task": {"taskDefinition": "f", "container": "agent", "subnets": ["s"]}}, "agent": {"argv": ["agent"], "input": "a secret prompt"}}}`

// TestARunByJSON goes through a run's life as a host does.
func TestARunByJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		h := newHandler(t, &log)
		me := `"tenant": "acme", "run": "r", "host": "host-0123456789abcdef"`
		for _, step := range []struct{ event, name, member, want string }{
			{startEvent, "start", "state", "ready"},
			{startEvent, "start", "ensured", "created"},
			{`{"renew": {` + me + `}}`, "renew", "", ""},
			{`{"tail": {` + me + `, "from": 0, "stallSeconds": 60}}`, "tail", "data", "<nil>"},
			{`{"finish": {` + me + `}}`, "error", "code", "still-producing"},
			{`{"list": {"tenant": "acme", "thread": "t"}}`, "list", "", ""},
			{`{"active": {"tenant": "acme", "thread": "t"}}`, "active", "", ""},
			{`{"detach": {` + me + `}}`, "detach", "", ""},
			{`{"attach": {` + me + `}}`, "attach", "", ""},
			{`{"interrupt": {` + me + `}}`, "interrupt", "", ""},
			{`{"fail": {` + me + `, "error": {"code": "gone"}}}`, "fail", "ended", "true"},
			{`{"cancel": {"tenant": "acme", "run": "r"}}`, "error", "code", "terminal-run"},
			{`{"get": {"tenant": "acme", "run": "r"}}`, "get", "status", "failed"},
			{startEvent, "error", "code", "terminal-run"},
		} {
			name, answer := ask(t.Context(), t, h, step.event)
			if name != step.name || step.member != "" && text(answer[step.member]) != step.want {
				t.Fatalf("%.60s: %s %v, want %s with %s %s", step.event, name, answer, step.name, step.member, step.want)
			}
		}
		if strings.Contains(log.String(), "secret") {
			t.Error("the log holds the agent's input")
		}
	})
}

func text(v any) string {
	if v == nil {
		return "<nil>"
	}
	if s, ok := v.(string); ok {
		return s
	}
	out, _ := json.Marshal(v) // of what JSON gave
	return string(out)
}

// TestRequestsThatAreRefused change nothing, and say what was expected.
func TestRequestsThatAreRefused(t *testing.T) {
	for what, c := range map[string]struct{ event, code, says string }{
		"no object":                     {`[]`, "bad-request", "want {\"<operation>\""},
		"no operation":                  {`{}`, "bad-request", "exactly one"},
		"two operations":                {`{"get": {}, "list": {}}`, "bad-request", "exactly one"},
		"an unknown operation":          {`{"stop": {}}`, "bad-request", "want one of"},
		"an unknown member":             {`{"get": {"tenant": "acme", "run": "r", "force": true}}`, "bad-request", `unknown field "force"; want an object of tenant, run`},
		"an unknown member of a member": {strings.Replace(startEvent, `"name": "d"`, `"name": "d", "image": "x"`, 1), "bad-request", "image"},
		"another's tenant":              {`{"get": {"tenant": "other", "run": "r"}}`, "not-your-tenant", ""},
		"no tenant":                     {`{"get": {"run": "r"}}`, "not-your-tenant", ""},
		"a run that is not there":       {`{"get": {"tenant": "acme", "run": "r"}}`, "unknown-run", ""},
		"no host":                       {`{"renew": {"tenant": "acme", "run": "r"}}`, "invalid-host", "16 to 128"},
	} {
		t.Run(what, func(t *testing.T) {
			var log strings.Builder
			name, answer := ask(t.Context(), t, newHandler(t, &log), c.event)
			if name != "error" || answer["code"] != c.code || !strings.Contains(text(answer["message"]), c.says) {
				t.Errorf("%s %v, want %s that says %q", name, answer, c.code, c.says)
			}
		})
	}
}

// TestAnAliasHasItsTenants: who may invoke another alias may act for others.
func TestAnAliasHasItsTenants(t *testing.T) {
	var log strings.Builder
	h := newHandler(t, &log)
	for arn, code := range map[string]string{
		"arn:aws:lambda:local:000000000000:function:session":           "not-your-tenant",
		"arn:aws:lambda:local:000000000000:function:session:$LATEST":   "not-your-tenant",
		"arn:aws:lambda:local:000000000000:function:session:elsewhere": "not-your-tenant",
		"arn:aws:lambda:local:000000000000:function:session:ops":       "unknown-run",
	} {
		ctx := lambdacontext.NewContext(t.Context(), &lambdacontext.LambdaContext{InvokedFunctionArn: arn})
		if _, answer := ask(ctx, t, h, `{"get": {"tenant": "other", "run": "r"}}`); answer["code"] != code {
			t.Errorf("%s: %v, want %s", arn, answer, code)
		}
	}
}

// TestAFaultIsNoAnswer: whether it was carried out, nobody knows; the inside stays in.
func TestAFaultIsNoAnswer(t *testing.T) {
	var log strings.Builder
	h := newHandler(t, &log)
	broken := mem.New(t).NewProcess(mem.At(1, mem.NotLanded))
	h.session.Launcher.Runs = broken
	_, err := h.handle(t.Context(), json.RawMessage(`{"get": {"tenant": "acme", "run": "r"}}`))
	if err == nil || strings.Contains(err.Error(), "injected") || !strings.Contains(log.String(), "injected") {
		t.Errorf("%v, logged %s", err, log.String())
	}
}

// TestTheSampleEventIsAStart: the file that the function is tried with.
func TestTheSampleEventIsAStart(t *testing.T) {
	event, err := os.ReadFile("../../events/session-start.json")
	if err != nil {
		t.Fatal(err)
	}
	name, op, body, err := boot.Call(event, operations)
	if err != nil || name != "start" {
		t.Fatalf("operation %q, %v", name, err)
	}
	q, err := op.decode(body)
	if err != nil || q.(core.StartRequest).Definition.Validate() != nil || op.tenant(q) != "-" {
		t.Errorf("request %+v, %v", q, err)
	}
}
