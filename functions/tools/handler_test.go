package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
	"github.com/sandkeeper/sandkeeper/internal/toolwire"
)

const bearer = "acme.run-7f3a.00112233445566778899aabbccddeeff0011223344556677"

var runKey = core.RunKey{Tenant: "acme", Run: "run-7f3a"}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// live is a run of tenant acme whose agent holds the bearer.
func live() core.Run {
	return core.Run{
		RunKey: runKey, Thread: "thread-19", Status: core.Running, StartedAt: 1, Epoch: 1, ClaimNonce: "host", Nonce: "n",
		AttachedUntil: core.MillisOf(time.Now().Add(time.Minute)), Row: core.RowLapse, DueAt: core.MillisOf(time.Now().Add(time.Minute)),
		TaskARN: "task", Tools: []core.ToolBinding{{Name: "lookup", Function: "fn"}, {Name: "fail", Function: "fn"}},
		Bearers: []string{hashOf("another"), hashOf(bearer)},
	}
}

// functions are the host's, and reap.
type functions struct {
	called  []string // payloads
	nudged  []core.RunKey
	refuse  error
	results map[string]string // by tool
}

func (f *functions) Invoke(_ context.Context, function string, payload []byte) ([]byte, error) {
	f.called = append(f.called, function+" "+string(payload))
	var call struct{ Name string }
	if err := json.Unmarshal(payload, &call); err != nil {
		return nil, err
	}
	if call.Name == "fail" {
		return nil, &core.FunctionError{Function: function, Message: "broken"}
	}
	return []byte(cmp.Or(f.results[call.Name], `"value"`)), f.refuse
}

func (f *functions) InvokeAsync(context.Context, string, []byte) error {
	return errors.New("no tool is called so")
}

func (f *functions) Nudge(_ context.Context, key core.RunKey) error {
	f.nudged = append(f.nudged, key)
	return nil
}

func (f *functions) GrantPut(_ context.Context, key, sum string, size int64, life time.Duration) (core.Grant, error) {
	return core.Grant{URL: "https://s3.test/" + key, Header: map[string]string{"X-Sum": sum, "X-Size": fmt.Sprint(size)}, Until: 7}, nil
}

// world is the handler over stores in memory.
type world struct {
	handler
	*functions
	store *mem.Store
	log   *bytes.Buffer
}

func newWorld(t *testing.T, r core.Run) *world {
	t.Helper()
	w := &world{functions: &functions{}, store: mem.New(t), log: &bytes.Buffer{}}
	w.store.SeedRun(r)
	w.handler = handler{&core.Bridge{
		Runs: w.store, Functions: w.functions, Nudger: w.functions, Grants: w.functions, Quotas: w.store, Limits: core.DefaultLimits,
	}, slog.New(slog.NewTextHandler(w.log, nil))}
	return w
}

// sample is an event as the function's URL makes it.
func sample(t *testing.T, name string) events.LambdaFunctionURLRequest {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "events", "tools-"+name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var r events.LambdaFunctionURLRequest
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// ask has a request answered.
func (w *world) ask(t *testing.T, r events.LambdaFunctionURLRequest) (status int, body string) {
	t.Helper()
	answer, err := w.handle(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Headers["Content-Type"] != "application/json" || answer.Headers["Cache-Control"] != "no-store" {
		t.Errorf("headers %v", answer.Headers)
	}
	return answer.StatusCode, strings.TrimSpace(answer.Body)
}

func TestEachPathDoesWhatItSays(t *testing.T) {
	w := newWorld(t, live())
	if status, body := w.ask(t, sample(t, "call")); status != 200 || body != `{"result":"value"}` {
		t.Errorf("call: %d %s", status, body)
	}
	if want := `fn {"name":"lookup","args":{"key":"a"},"context":{"tenant":"acme","thread":"thread-19","run":"run-7f3a"}}`; len(w.called) != 1 || w.called[0] != want {
		t.Errorf("called %q, want %q", w.called, want)
	}
	status, body := w.ask(t, sample(t, "spool"))
	const sum = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
	want := `{"grants":[{"from":0,"url":"https://s3.test/acme/spool/run-7f3a/0000000000000000-0000000000000005-` + sum + `","headers":{"X-Size":"5","X-Sum":"` + sum + `"},"until":7}],"watched":true}`
	if status != 200 || body != want {
		t.Errorf("spool: %d %s, want %s", status, body, want)
	}
	for range 2 { // the second changes nothing
		if status, body := w.ask(t, sample(t, "ended")); status != 200 || body != `{}` {
			t.Errorf("ended: %d %s", status, body)
		}
	}
	if len(w.nudged) != 1 || w.nudged[0] != runKey {
		t.Errorf("nudged %v", w.nudged)
	}
}

// TestARefusalIsOneClearLine: with its status and code, and changes and calls nothing.
func TestARefusalIsOneClearLine(t *testing.T) {
	body := func(text string) func(*events.LambdaFunctionURLRequest) {
		return func(r *events.LambdaFunctionURLRequest) { r.Body = text }
	}
	header := func(text string) func(*events.LambdaFunctionURLRequest) {
		return func(r *events.LambdaFunctionURLRequest) { r.Headers["authorization"] = text }
	}
	tests := []struct {
		name   string
		path   string // of the sample; "": call
		change func(*events.LambdaFunctionURLRequest)
		run    func(*core.Run)
		status int
		want   string // of the body
	}{
		{name: "no bearer", change: func(r *events.LambdaFunctionURLRequest) { delete(r.Headers, "authorization") }, status: 401, want: `{"error":{"code":"bearer","message":"want the bearer of a run that has not ended"}}`},
		{name: "another scheme", change: header("bearer " + bearer), status: 401, want: `"bearer"`},
		{name: "an empty bearer", change: header("Bearer "), status: 401, want: `"bearer"`},
		{name: "a bearer of a run without any", run: func(r *core.Run) { r.Bearers = nil }, status: 401, want: `"bearer"`},
		{name: "a bearer of an ended run", run: func(r *core.Run) { r.Status, r.Row, r.DueAt, r.AttachedUntil = core.Aborted, "", 0, 0 }, status: 401, want: `"bearer"`},
		{name: "a bearer of a run that is being ended", run: func(r *core.Run) { r.Ending = &core.Ending{Reason: core.EndExpired, At: 1} }, status: 401, want: `"bearer"`},
		{name: "no JSON without a bearer tells of the bearer", change: func(r *events.LambdaFunctionURLRequest) {
			r.Body, r.Headers = "{", nil
		}, status: 401, want: `"bearer"`},
		{name: "no JSON", change: body(`{"name":`), status: 400, want: `{"error":{"code":"bad-request","message":`},
		{name: "nothing", change: body(``), status: 400, want: `want a JSON object`},
		{name: "a text", change: body(`"a"`), status: 400, want: `want a JSON object`},
		{name: "a list", change: body(`[]`), status: 400, want: `want a JSON object`},
		{name: "null", change: body(`null`), status: 400, want: `want a JSON object`},
		{name: "two values", change: body(`{"name":"lookup"}{}`), status: 400, want: `"bad-request"`},
		{name: "no name", change: body(`{"args":{}}`), status: 400, want: `{"error":{"code":"bad-request","message":"name: want the name of a tool"}}`},
		{name: "a name that is a number", change: body(`{"name":1}`), status: 400, want: `"bad-request"`},
		{name: "a member that is none", change: body(`{"name":"lookup","tenant":"other"}`), status: 400, want: `tenant`},
		{name: "arguments that are a list", change: body(`{"name":"lookup","args":[1]}`), status: 400, want: `"message":"args: want an object, got \"[1]\""`},
		{name: "a tool of no list", change: body(`{"name":"rm"}`), status: 404, want: `{"error":{"code":"no-such-tool","message":"tool \"rm\": this run may call lookup, fail"}}`},
		{name: "a tool of an empty list", run: func(r *core.Run) { r.Tools = nil }, status: 404, want: `"message":"tool \"lookup\": this run may call no tool"`},
		{name: "another path", change: func(r *events.LambdaFunctionURLRequest) { r.RawPath = "/rm" }, status: 404, want: `"no-such-path"`},
		{name: "another method", change: func(r *events.LambdaFunctionURLRequest) { r.RequestContext.HTTP.Method = "GET" }, status: 405, want: `"message":"want POST, got \"GET\""`},
		{name: "a cancelled run", run: func(r *core.Run) { r.CancelRequested = 5 }, status: 409, want: `{"error":{"code":"cancelled","message":"the run was cancelled"}}`},
		{name: "a body that is too long", change: body(`{"name":"` + strings.Repeat("x", toolwire.MaxBody) + `"}`), status: 413, want: `"message":"want a body of at most 1000000 bytes, got 1000011"`},
		{name: "a body that is no base64", change: func(r *events.LambdaFunctionURLRequest) { r.Body, r.IsBase64Encoded = "%", true }, status: 400, want: `want base64`},
		{name: "an end without JSON", path: "ended", change: body(`exit 0`), status: 400, want: `want a JSON object`},
		{name: "an end of a text", path: "ended", change: body(`{"exitCode":"0"}`), status: 400, want: `"bad-request"`},
		{name: "no pieces", path: "spool", change: body(`{"pieces":[]}`), status: 400, want: `pieces: want 1 to 32, got 0`},
		{name: "a piece with a path for a hash", path: "spool", change: body(`{"pieces":[{"from":0,"size":1,"sha256":"../../b"}]}`), status: 400, want: `sha256`},
		{name: "a piece of another run", path: "spool", change: body(`{"pieces":[{"from":0,"size":1,"sha256":"` + strings.Repeat("0", 64) + `","run":"other"}]}`), status: 400, want: `run`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			run := live()
			if tt.run != nil {
				tt.run(&run)
			}
			w := newWorld(t, run)
			r := sample(t, cmp.Or(tt.path, "call"))
			if tt.change != nil {
				tt.change(&r)
			}
			status, answer := w.ask(t, r)
			if status != tt.status || !strings.Contains(answer, tt.want) || strings.Contains(answer, "\n") {
				t.Errorf("%d %s, want %d %s", status, answer, tt.status, tt.want)
			}
			if len(w.called)+len(w.nudged) != 0 {
				t.Errorf("called %q, nudged %v", w.called, w.nudged)
			}
			if log := w.log.String(); strings.Contains(log, "00112233") || strings.Count(log, "msg=tools ") != 1 || !strings.Contains(log, fmt.Sprint("status=", tt.status)) {
				t.Errorf("logged %s", log)
			}
		})
	}
}

// TestABearerOpensItsOwnRunOnly: whatever of it is changed, or added.
func TestABearerOpensItsOwnRunOnly(t *testing.T) {
	victim := live()
	secret := strings.TrimPrefix(bearer, "acme.run-7f3a.")
	others := map[string]string{
		"of another run":                "acme.run-1." + secret,
		"of another tenant":             "evil.run-7f3a." + secret,
		"with another secret":           "acme.run-7f3a." + strings.Repeat("0", 48),
		"with a secret in capitals":     "acme.run-7f3a." + strings.ToUpper(secret),
		"that is the stored hash":       "acme.run-7f3a." + hashOf(bearer)[:48],
		"of the hash alone":             hashOf(bearer),
		"that goes on":                  bearer + "0",
		"that is cut":                   bearer[:len(bearer)-1],
		"with a space":                  bearer + " ",
		"with another part":             bearer + ".x",
		"with an id in another form":    "acme.run_2d7f3a." + secret,
		"with an empty tenant":          ".run-7f3a." + secret,
		"with an empty run":             "acme.." + secret,
		"of the form of a step's token": "acme.run-7f3a.7.c2VjcmV0LW9mLXR3ZW50eS1mb3VyLWI",
		"that is very long":             strings.Repeat("a", 1<<20),
		"with a NUL":                    "acme.run-7f3a\x00." + secret,
	}
	for name, other := range others {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, victim)
			evil := live()
			evil.RunKey = core.RunKey{Tenant: "evil", Run: "run-7f3a"}
			evil.Bearers = []string{hashOf("evil.run-7f3a." + strings.Repeat("f", 48))}
			w.store.SeedRun(evil)
			for _, path := range []string{"call", "ended", "spool"} {
				r := sample(t, path)
				r.Headers["authorization"] = "Bearer " + other
				if status, body := w.ask(t, r); status != 401 {
					t.Errorf("%s: %d %s", path, status, body)
				}
			}
			if len(w.called)+len(w.nudged) != 0 {
				t.Errorf("called %q, nudged %v", w.called, w.nudged)
			}
		})
	}
}

func TestWhatBecomesOfACall(t *testing.T) {
	long := `"` + strings.Repeat("x", core.MaxToolResult) + `"`
	tests := []struct {
		name, body string
		result     string
		refuse     error
		status     int
		want       string
		args       string // that the function was called with
	}{
		{name: "a text", result: `"größer <b>"`, status: 200, want: `{"result":"größer <b>"}`},
		{name: "an object", result: `{"a": [1, null]}`, status: 200, want: `{"result":{"a":[1,null]}}`},
		{name: "null", result: `null`, status: 200, want: `{"result":null}`},
		{name: "no arguments", body: `{"name":"lookup"}`, status: 200, want: `{"result":"value"}`, args: `{}`},
		{name: "null for arguments", body: `{"name":"lookup","args":null}`, status: 200, want: `{"result":"value"}`, args: `{}`},
		{name: "a tool that fails", body: `{"name":"fail"}`, status: 502, want: `{"error":{"code":"tool-failed","message":"tool fail: broken"}}`},
		{name: "a function that cannot be called", refuse: errors.New("secret inside"), status: 502, want: `{"error":{"code":"tool-failed","message":"tool lookup: its function could not be called"}}`},
		{name: "a function that is not listed", refuse: core.ErrNotAllowed, status: 502, want: `"message":"tool lookup: this installation lets nobody call its function"`},
		{name: "a result that is too long", result: long, status: 413, want: `{"error":{"code":"too-large","message":"tool lookup: want a result of at most 1000000 bytes, got 1000002"}}`},
		{name: "a result that is no JSON", result: `value`, status: 502, want: `"tool-failed"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, live())
			w.results, w.refuse = map[string]string{"lookup": tt.result}, tt.refuse
			r := sample(t, "call")
			r.Body, r.IsBase64Encoded = base64.StdEncoding.EncodeToString([]byte(cmp.Or(tt.body, r.Body))), true
			status, answer := w.ask(t, r)
			if status != tt.status || !strings.Contains(answer, tt.want) {
				t.Errorf("%d %.300s, want %d %s", status, answer, tt.status, tt.want)
			}
			if len(w.called) != 1 || !strings.Contains(w.called[0], `"args":`+tt.args) {
				t.Errorf("called %q", w.called)
			}
		})
	}
}

func TestAFullSpoolSaysSo(t *testing.T) {
	w := newWorld(t, live())
	spend := core.SpoolSpend{Pieces: 1, Bytes: core.MaxSpoolBytes, MostPieces: core.MaxSpoolPieces, MostBytes: core.MaxSpoolBytes}
	if err := w.store.SpendSpool(t.Context(), runKey, spend); err != nil {
		t.Fatal(err)
	}
	if status, body := w.ask(t, sample(t, "spool")); status != 413 || !strings.Contains(body, `{"error":{"code":"spool-full","message":"this run has spooled all that it may: 1073741824 bytes or 50000 pieces"}}`) {
		t.Errorf("%d %s", status, body)
	}
}

func TestAStoreThatFailsIsToldAsNothingMore(t *testing.T) {
	w := newWorld(t, live())
	w.handler.bridge = &core.Bridge{Runs: w.store.NewProcess(mem.At(1, mem.NotLanded)), Functions: w.functions}
	status, body := w.ask(t, sample(t, "call"))
	if status != 503 || body != `{"error":{"code":"unavailable","message":"the request could not be carried out to its end"}}` {
		t.Errorf("%d %s", status, body)
	}
	if !strings.Contains(w.log.String(), "injected fault") {
		t.Errorf("logged %s", w.log)
	}
}

func TestWhatIsNoRequestIsAnError(t *testing.T) {
	if _, err := newWorld(t, live()).handle(t.Context(), events.LambdaFunctionURLRequest{}); err == nil {
		t.Error("want an error")
	}
}

// TestTheWireSaysWhatTheCoreDoes: a sandbox knows the limits that the function keeps.
func TestTheWireSaysWhatTheCoreDoes(t *testing.T) {
	for what, pair := range map[string][2]any{
		"time of a tool":         {toolwire.DefaultTool, core.DefaultToolTimeout},
		"longest time of a tool": {toolwire.MaxTool, core.MaxToolTimeout},
		"time of the function":   {toolwire.FunctionTimeout, core.ToolsTimeout},
		"longest result":         {toolwire.MaxResult, core.MaxToolResult},
		"longest piece":          {toolwire.MaxPiece, core.MaxSpoolPiece},
		"bytes of a spool":       {toolwire.MaxSpool, core.MaxSpoolBytes},
		"pieces of a spool":      {toolwire.MaxSpoolPieces, core.MaxSpoolPieces},
		"code of a bearer":       {toolwire.CodeBearer, core.ErrBearer.Code},
		"code of no tool":        {toolwire.CodeNoSuchTool, core.ToolUnknown},
		"code of a cancel":       {toolwire.CodeCancelled, core.ToolCancelled},
		"code of a long result":  {toolwire.CodeTooLarge, core.ToolTooLarge},
		"code of a failure":      {toolwire.CodeToolFailed, core.ToolFailed},
		"code of a time limit":   {toolwire.CodeToolTimeout, core.ToolTimeout},
		"code of a full spool":   {toolwire.CodeSpoolFull, core.SpoolFull},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: the wire says %v, the core does %v", what, pair[0], pair[1])
		}
	}
}

func FuzzRequest(f *testing.F) {
	f.Add("/", "Bearer "+bearer, `{"name":"lookup","args":{}}`)
	f.Add("/ended", "Bearer "+bearer, `{"exitCode":-1}`)
	f.Add("/spool", "Bearer "+bearer, `{"pieces":[{"from":1,"size":2,"sha256":"x"}]}`)
	f.Add("/x", "", "")
	f.Fuzz(func(t *testing.T, path, authorization, body string) {
		w := newWorld(t, live())
		r := events.LambdaFunctionURLRequest{RawPath: path, Headers: map[string]string{"authorization": authorization}, Body: body}
		r.RequestContext.HTTP.Method = "POST"
		status, answer := w.ask(t, r)
		if !json.Valid([]byte(answer)) {
			t.Errorf("answered %d %q", status, answer)
		}
		if authorization != "Bearer "+bearer && status != 401 || status == 503 {
			t.Errorf("%q is answered with %d %s", authorization, status, answer)
		}
	})
}
