package mcptools

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandkeeper/sandkeeper/internal/toolwire"
)

func permissionDescriptor() toolwire.Tool {
	return toolwire.Tool{
		Name:        PermissionTool,
		Description: `Answers a request for permission to use a tool: {"behavior":"allow"} or {"behavior":"deny","message":"…"}.`,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"tool_name":{"type":"string"},"input":{"type":"object"},"tool_use_id":{"type":"string"}},"required":["tool_name"]}`),
	}
}

// permissionAnswer is what agents without a user in front of them ask their permission
// tool for. An agent that sends an input gets it back, since some run what comes back.
type permissionAnswer struct {
	Behavior string          `json:"behavior"`
	Updated  json.RawMessage `json:"updatedInput,omitempty"`
	Message  string          `json:"message,omitempty"`
}

// permission answers from the policy. What it cannot read is denied.
func (c Config) permission(_ context.Context, q *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	var asked struct {
		Tool  string          `json:"tool_name"`
		Input json.RawMessage `json:"input"`
	}
	if err := json.Unmarshal(q.Params.Arguments, &asked); err != nil || asked.Tool == "" {
		return answered(permissionAnswer{Behavior: "deny", Message: "want the name of a tool as tool_name, and its input"})
	}
	if string(bytes.TrimSpace(asked.Input)) == "null" {
		asked.Input = nil
	}
	allow, reason := c.Permit(asked.Tool, asked.Input)
	if !allow {
		return answered(permissionAnswer{Behavior: "deny", Message: reason})
	}
	return answered(permissionAnswer{Behavior: "allow", Updated: asked.Input})
}

func answered(a permissionAnswer) (*mcp.CallToolResult, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(a); err != nil {
		return failed(err), nil
	}
	return text(string(bytes.TrimRight(out.Bytes(), "\n"))), nil
}
