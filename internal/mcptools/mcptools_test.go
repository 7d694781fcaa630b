package mcptools_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandkeeper/sandkeeper/internal/mcptools"
	"github.com/sandkeeper/sandkeeper/internal/toolwire"
)

const token = "0123456789abcdef0123456789abcdef"

// hostTools are tools of a host, which answer at once.
type hostTools struct {
	mu   sync.Mutex
	seen []string // "name args"
}

func (h *hostTools) Call(ctx context.Context, name string, args json.RawMessage) (json.RawMessage, error) {
	h.mu.Lock()
	h.seen = append(h.seen, name+" "+string(args))
	h.mu.Unlock()
	switch name {
	case "echo":
		if args == nil {
			args = json.RawMessage("{}") // as the function does
		}
		return args, nil
	case "text":
		return json.RawMessage(`"größer, as it is"`), nil
	case "fail":
		return nil, &toolwire.Error{Code: toolwire.CodeToolFailed, Message: "broken", Status: 502}
	case "reject":
		return nil, errors.New("text error")
	case "undef":
		return json.RawMessage("null"), nil
	case "hang":
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return nil, fmt.Errorf("unexpected tool %q", name)
}

// permit denies Bash, as the original's vectors do.
func permit(tool string, _ json.RawMessage) (bool, string) {
	if tool == "Bash" {
		return false, "no"
	}
	return true, ""
}

var descriptors = []toolwire.Tool{
	{Name: "echo", Description: "e", InputSchema: json.RawMessage(`{"type":"object","properties":{"a":{}}}`)},
	{Name: "text", Description: "t"}, {Name: "fail", Description: "f", InputSchema: json.RawMessage(`null`)},
	{Name: "reject", Description: "r", InputSchema: json.RawMessage(`{}`)}, {Name: "undef", Description: "u"}, {Name: "hang", Description: "h"},
}

// serving is a server for the time of a test.
func serving(t *testing.T, change func(*mcptools.Config)) (addr string, h *hostTools) {
	t.Helper()
	h = &hostTools{}
	c := mcptools.Config{Tools: descriptors, Caller: h, Permit: permit, Token: token, Timeout: time.Minute}
	if change != nil {
		change(&c)
	}
	addr, err := mcptools.Serve(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return addr, h
}

// withToken sends a token with each request.
type withToken string

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(w))
	return http.DefaultTransport.RoundTrip(r)
}

// connect is a session of the SDK's own client.
func connect(t *testing.T, addr string) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint: mcptools.Endpoint(addr), HTTPClient: &http.Client{Transport: withToken(token)},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

func TestTheSDKsClientListsAndCalls(t *testing.T) {
	addr, h := serving(t, nil)
	session := connect(t, addr)
	if info := session.InitializeResult(); info.ServerInfo.Name != "sandkeeper" || info.Capabilities.Tools == nil || info.Capabilities.Tools.ListChanged {
		t.Errorf("server %+v, capabilities %+v", info.ServerInfo, info.Capabilities)
	}
	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
		if schema, ok := tool.InputSchema.(map[string]any); !ok || schema["type"] != "object" {
			t.Errorf("tool %s: schema %v", tool.Name, tool.InputSchema)
		}
	}
	slices.Sort(names)
	if want := []string{"echo", "fail", "hang", "permission", "reject", "text", "undef"}; !slices.Equal(names, want) || list.NextCursor != "" {
		t.Errorf("tools %q %q, want %q", names, list.NextCursor, want)
	}
	tests := []struct {
		tool   string
		args   any
		want   string
		failed bool
	}{
		{tool: "echo", args: map[string]any{"a": "<b>"}, want: `{"a":"<b>"}`},
		{tool: "echo", want: `{}`},
		{tool: "text", want: "größer, as it is"},
		{tool: "undef", want: "null"},
		{tool: "fail", want: "Tool execution failed: broken", failed: true},
		{tool: "reject", want: "Tool execution failed: text error", failed: true},
		{tool: "permission", args: map[string]any{"tool_name": "Bash", "input": map[string]any{}}, want: `{"behavior":"deny","message":"no"}`},
		{tool: "permission", args: map[string]any{"tool_name": "Read", "input": map[string]any{"a": 1}}, want: `{"behavior":"allow","updatedInput":{"a":1}}`},
		{tool: "permission", args: map[string]any{"tool_name": "Read"}, want: `{"behavior":"allow"}`},
		{tool: "permission", args: map[string]any{"tool_name": 5}, want: `{"behavior":"deny","message":"want the name of a tool as tool_name, and its input"}`},
	}
	for _, tt := range tests {
		r, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: tt.tool, Arguments: tt.args})
		if err != nil {
			t.Errorf("%s: %v", tt.tool, err)
			continue
		}
		content, ok := r.Content[0].(*mcp.TextContent)
		if !ok || len(r.Content) != 1 || content.Text != tt.want || r.IsError != tt.failed {
			t.Errorf("%s: %v %+v, want %q", tt.tool, r.IsError, r.Content[0], tt.want)
		}
	}
	if want := []string{`echo {"a":"<b>"}`, "echo {}", "text {}", "undef {}", "fail {}", "reject {}"}; len(h.seen) != len(want) {
		t.Errorf("called %q", h.seen)
	}
}

func TestAnUnknownToolIsAnErrorOfTheProtocol(t *testing.T) {
	addr, h := serving(t, nil)
	_, err := connect(t, addr).CallTool(t.Context(), &mcp.CallToolParams{Name: "rm"})
	if e, ok := errors.AsType[*jsonrpc.Error](err); !ok || e.Code != jsonrpc.CodeInvalidParams || len(h.seen) != 0 {
		t.Errorf("error %v after %q", err, h.seen)
	}
}

func TestACallThatTakesTooLongIsAFailedResult(t *testing.T) {
	addr, _ := serving(t, func(c *mcptools.Config) { c.Timeout = 50 * time.Millisecond })
	r, err := connect(t, addr).CallTool(t.Context(), &mcp.CallToolParams{Name: "hang"})
	if err != nil || !r.IsError || r.Content[0].(*mcp.TextContent).Text != "Tool execution failed: context deadline exceeded" {
		t.Errorf("result %+v, %v", r, err)
	}
}

// post sends a body as the simplest of agents does.
func post(t *testing.T, addr, body string, change func(*http.Request)) (status int, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, mcptools.Endpoint(addr), strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if change != nil {
		change(r)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(data)
}

const list = `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`

func TestAnAgentNeedsNoSession(t *testing.T) {
	addr, _ := serving(t, nil)
	if status, answer := post(t, addr, list, nil); status != http.StatusOK || !json.Valid([]byte(answer)) || !strings.Contains(answer, `"echo"`) {
		t.Errorf("status %d: %s", status, answer)
	}
}

func TestWhoIsLetIn(t *testing.T) {
	addr, h := serving(t, nil)
	_, port, _ := strings.Cut(addr, ":")
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	tests := []struct {
		name   string
		change func(*http.Request)
		want   int
	}{
		{"by address", nil, 200},
		{"by name", host("localhost:" + port), 200},
		{"without a token", func(r *http.Request) { r.Header.Del("Authorization") }, 401},
		{"with an empty token", header("Authorization", "Bearer "), 401},
		{"with another token", header("Authorization", "Bearer "+strings.Repeat("f", len(token))), 401},
		{"with a longer token", header("Authorization", "Bearer "+token+"0"), 401},
		{"with a space behind it", header("Authorization", "Bearer "+token+"x "), 401},
		{"in another scheme", header("Authorization", "bearer "+token), 401},
		{"of a rebound name", host("evil.example.test:" + port), 403},
		{"of a rebound name without port", host("evil.example.test"), 403},
		{"of another port", host("127.0.0.1:1"), 403},
		{"of a page", header("Origin", "http://127.0.0.1:"+port), 403},
		{"on another path", func(r *http.Request) { r.URL.Path = "/" }, 404},
		{"by GET", func(r *http.Request) { r.Method, r.Body, r.ContentLength = http.MethodGet, nil, 0 }, 405},
		{"by DELETE", func(r *http.Request) { r.Method, r.Body, r.ContentLength = http.MethodDelete, nil, 0 }, 405},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status, answer := post(t, addr, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"text"}}`, tt.change)
			if status != tt.want || strings.Contains(answer, token) || status != 200 && strings.Contains(answer, "größer") {
				t.Errorf("status %d, want %d: %s", status, tt.want, answer)
			}
		})
	}
	if len(h.seen) != 2 {
		t.Errorf("called %q", h.seen)
	}
}

// TestWhatIsNoUseOfTheProtocol gets one error, by status or in the answer, and calls
// nothing.
func TestWhatIsNoUseOfTheProtocol(t *testing.T) {
	addr, h := serving(t, nil)
	tests := []struct {
		name, body string
		status     int
		want       string
	}{
		{"no JSON", `{"jsonrpc":`, 400, `{"error":{"code":-32700,"message":"Parse error"},"id":null,"jsonrpc":"2.0"}`},
		{"nothing", ``, 400, `"code":-32700`},
		{"a text", `"text"`, 400, `{"error":{"code":-32600,"message":"Invalid Request"},"id":null,"jsonrpc":"2.0"}`},
		{"null", `null`, 400, `"code":-32600`},
		{"an unknown method", `{"jsonrpc":"2.0","id":3,"method":"rm"}`, 200, `{"error":{"code":-32601,"message":"Method not found"},"id":3,"jsonrpc":"2.0"}`},
		{"a method that is a number", `{"jsonrpc":"2.0","id":"a","method":5}`, 200, `{"error":{"code":-32601,"message":"Method not found"},"id":"a","jsonrpc":"2.0"}`},
		{"no name", `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{}}`, 200, `"code":-32602`},
		{"no parameters", `{"jsonrpc":"2.0","id":3,"method":"tools/call"}`, 200, `{"error":{"code":-32602,"message":"Invalid params"},"id":3,"jsonrpc":"2.0"}`},
		{"a number for a name", `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":42}}`, 200, `"code":-32602`},
		{"an unknown notification", `{"jsonrpc":"2.0","method":"rm"}`, 400, `"id":null`},
		{"too long", `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"text","arguments":{"a":"` + strings.Repeat("x", toolwire.MaxBody) + `"}}}`, 413, "at most 1000000 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status, answer := post(t, addr, tt.body, nil)
			if status != tt.status || !strings.Contains(answer, tt.want) {
				t.Errorf("status %d: %.300s", status, answer)
			}
		})
	}
	if len(h.seen) != 0 {
		t.Errorf("called %q", h.seen)
	}
}

func TestWhatCannotBeServed(t *testing.T) {
	good := mcptools.Config{Tools: descriptors, Caller: &hostTools{}, Permit: permit, Token: token}
	tests := []struct {
		name   string
		change func(*mcptools.Config)
		want   string
	}{
		{"no token", func(c *mcptools.Config) { c.Token = "" }, "token of at least 16"},
		{"every interface", func(c *mcptools.Config) { c.Addr = "0.0.0.0:0" }, "loopback"},
		{"an address of others", func(c *mcptools.Config) { c.Addr = "10.0.0.1:80" }, "loopback"},
		{"a name", func(c *mcptools.Config) { c.Addr = "localhost:0" }, "loopback"},
		{"nobody to call", func(c *mcptools.Config) { c.Caller = nil }, "somebody who calls"},
		{"two tools of a name", func(c *mcptools.Config) { c.Tools = append(slices.Clone(c.Tools), c.Tools[0]) }, "two tools"},
		{"a tool named as the permission tool", func(c *mcptools.Config) { c.Permit, c.Tools = nil, []toolwire.Tool{{Name: "permission"}} }, "permission tool"},
		{"a bad name", func(c *mcptools.Config) { c.Tools = []toolwire.Tool{{Name: "a b"}} }, "want a name"},
		{"too many", func(c *mcptools.Config) { c.Tools = make([]toolwire.Tool, 257) }, "at most 256"},
		{"a schema of a text", func(c *mcptools.Config) {
			c.Tools = []toolwire.Tool{{Name: "a", InputSchema: json.RawMessage(`{"type":"string"}`)}}
		}, `want "type": "object"`},
		{"a schema that is none", func(c *mcptools.Config) { c.Tools = []toolwire.Tool{{Name: "a", InputSchema: json.RawMessage(`[1]`)}} }, "want an object"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := good
			tt.change(&c)
			if addr, err := mcptools.Serve(t.Context(), c); err == nil || !strings.Contains(err.Error(), tt.want) || addr != "" {
				t.Errorf("at %q: %v", addr, err)
			}
		})
	}
}

func TestTheEndEndsTheServer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	addr, err := mcptools.Serve(ctx, mcptools.Config{Tools: descriptors, Caller: &hostTools{}, Token: token, Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	session := connect(t, addr)
	cancel()
	if _, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "text"}); err == nil {
		t.Error("a server that has ended answers")
	}
}

// TestAServerTakesOverAListener: one that is begun again serves where the one before did.
func TestAServerTakesOverAListener(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr, _ := serving(t, func(c *mcptools.Config) { c.Listener = listener })
	if addr != listener.Addr().String() {
		t.Errorf("serves at %s, want %s", addr, listener.Addr())
	}
	if status, answer := post(t, addr, list, nil); status != http.StatusOK {
		t.Errorf("status %d: %s", status, answer)
	}
	everywhere, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer everywhere.Close()
	if _, err := mcptools.Serve(t.Context(), mcptools.Config{Token: token, Listener: everywhere}); err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("error %v", err)
	}
}

func TestTheConfigurationOfAnAgent(t *testing.T) {
	text, err := mcptools.AgentConfig("127.0.0.1:4711", token)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"mcpServers":{"sandkeeper":{"type":"http","url":"http://127.0.0.1:4711/mcp","headers":{"Authorization":"Bearer ` + token + `"}}}}`
	var got bytes.Buffer
	if err := json.Compact(&got, text); err != nil || got.String() != want {
		t.Errorf("got %s, %v", got.String(), err)
	}
	if a, b := mcptools.NewToken(), mcptools.NewToken(); a == b || len(a) != 48 {
		t.Errorf("tokens %q and %q", a, b)
	}
}
