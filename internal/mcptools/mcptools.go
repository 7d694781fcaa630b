// Package mcptools serves the tools of a run to the agent beside it: MCP over streamable
// HTTP on loopback, by the protocol's official SDK, with a tool that answers requests for
// permission. Its rule: whatever a tool does, its agent gets a result and goes on; only
// what is no use of the protocol is an error of the protocol.
package mcptools

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandkeeper/sandkeeper/internal/toolwire"
)

// ServerName is what the server calls itself, and what an agent's configuration calls it.
const ServerName = "sandkeeper"

// PermissionTool is the name of the tool that answers requests for permission. No tool of
// the host may have it.
const PermissionTool = "permission"

// Caller calls a tool of the host. Its error is told to the agent as it is.
type Caller interface {
	Call(ctx context.Context, name string, args json.RawMessage) (json.RawMessage, error)
}

var _ Caller = (*toolwire.Client)(nil)

// Config is what a server serves.
type Config struct {
	Tools  []toolwire.Tool
	Caller Caller // nil only where there are no tools
	// Permit answers whether the agent may use a tool of its own with an input, and why
	// not; nil: there is no permission tool.
	Permit func(tool string, input json.RawMessage) (allow bool, reason string)
	Token  string // that requests must have as bearer, of at least 16 characters; see [NewToken]
	// Addr is where to listen, an address on loopback; empty: a free port of 127.0.0.1.
	Addr string
	// Listener is where to listen, instead of Addr: also one on loopback. It is closed
	// when the server ends.
	Listener net.Listener
	Version  string // that the server says it has; empty: "0"
	// Timeout bounds one call of a tool; zero: the longest that the host may take.
	Timeout time.Duration
}

// NewToken makes a token for a server.
func NewToken() string {
	secret := make([]byte, 24)
	_, _ = rand.Read(secret) // it never fails
	return hex.EncodeToString(secret)
}

// newServer puts the tools together. The SDK panics for a schema that it does not take.
func newServer(c Config) (s *mcp.Server, err error) {
	version := c.Version
	if version == "" {
		version = "0"
	}
	s = mcp.NewServer(&mcp.Implementation{Name: ServerName, Version: version}, &mcp.ServerOptions{
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
		PageSize:     maxTools + 1,
	})
	calls := make(chan struct{}, maxCalls)
	seen := map[string]bool{}
	if c.Permit != nil {
		seen[PermissionTool] = true
		if err := add(s, permissionDescriptor(), c.permission); err != nil {
			return nil, err
		}
	}
	if len(c.Tools) > maxTools {
		return nil, fmt.Errorf("serve tools: want at most %d, got %d", maxTools, len(c.Tools))
	}
	for _, tool := range c.Tools {
		if seen[tool.Name] || tool.Name == PermissionTool {
			return nil, fmt.Errorf("serve tools: %.80q is the name of two tools, or of the permission tool", tool.Name)
		}
		seen[tool.Name] = true
		if err := add(s, tool, c.host(tool.Name, calls)); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// How many tools one server has at most, and how many calls of them are under way at a
// time; others wait.
const (
	maxTools = 256
	maxCalls = 32
)

func add(s *mcp.Server, tool toolwire.Tool, handle mcp.ToolHandler) (err error) {
	defer func() {
		if broken := recover(); broken != nil {
			err = fmt.Errorf("serve tool %.80q: %v", tool.Name, broken)
		}
	}()
	if !validName(tool.Name) {
		return fmt.Errorf("serve tool %.80q: want a name of 1 to %d letters, digits, dots, dashes and underscores", tool.Name, toolwire.MaxName)
	}
	schema, err := schemaOf(tool)
	if err != nil {
		return fmt.Errorf("serve tool %s: %w", tool.Name, err)
	}
	s.AddTool(&mcp.Tool{Name: tool.Name, Description: tool.Description, InputSchema: schema}, handle)
	return nil
}

func validName(name string) bool {
	return name != "" && len(name) <= toolwire.MaxName && strings.IndexFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	}) < 0
}

// schemaOf is a tool's schema, or that of any object where it has none.
func schemaOf(tool toolwire.Tool) (json.RawMessage, error) {
	var members map[string]json.RawMessage
	if text := bytes.TrimSpace(tool.InputSchema); len(text) > 0 {
		if err := json.Unmarshal(text, &members); err != nil {
			return nil, fmt.Errorf("input schema: want an object: %w", err)
		}
	}
	if len(members) == 0 {
		return json.RawMessage(`{"type":"object","properties":{}}`), nil
	}
	switch string(members["type"]) {
	case `"object"`:
		return tool.InputSchema, nil
	case "":
		members["type"] = json.RawMessage(`"object"`)
		return json.Marshal(members)
	}
	return nil, fmt.Errorf(`input schema: want "type": "object", got %.80q`, members["type"])
}

// host answers calls of one of the host's tools.
func (c Config) host(name string, calls chan struct{}) mcp.ToolHandler {
	return func(ctx context.Context, q *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		within := c.Timeout
		if within == 0 {
			within = toolwire.CallTimeout
		}
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		select {
		case calls <- struct{}{}:
			defer func() { <-calls }()
		case <-ctx.Done():
			return failed(context.Cause(ctx)), nil
		}
		result, err := c.Caller.Call(ctx, name, q.Params.Arguments)
		if err != nil {
			return failed(err), nil
		}
		return text(shown(result)), nil
	}
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

// failed is a result that says why there is none: the model reads it and goes on.
func failed(err error) *mcp.CallToolResult {
	message := err.Error()
	if e, ok := errors.AsType[*toolwire.Error](err); ok {
		message = e.Message
	}
	r := text("Tool execution failed: " + message)
	r.IsError = true
	return r
}

// shown is a result as a model reads it: a text as it is, anything else as JSON.
func shown(result json.RawMessage) string {
	var s string
	if len(result) > 0 && result[0] == '"' && json.Unmarshal(result, &s) == nil {
		return s
	}
	return string(result)
}
