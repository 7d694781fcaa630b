package mcptools_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/mcptools"
	"github.com/sandkeeper/sandkeeper/internal/toolwire"
)

// TestTheTypeScriptClientListsAndCalls: most agents speak through that library.
func TestTheTypeScriptClientListsAndCalls(t *testing.T) {
	node, err := exec.LookPath("node")
	if err == nil {
		_, err = os.Stat(filepath.Join("..", "..", "node_modules", "@modelcontextprotocol", "sdk"))
	}
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("want node, and what make setup installs: %v", err)
		}
		t.Skipf("want node, and what make setup installs: %v", err)
	}
	addr, _ := serving(t, func(c *mcptools.Config) {
		c.Tools = []toolwire.Tool{descriptors[0], descriptors[1], descriptors[2]}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, node, filepath.Join("testdata", "client.mjs"), mcptools.Endpoint(addr), token)
	var said bytes.Buffer
	command.Stderr = &said
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, said.String())
	}
	want := `{
		"server": "sandkeeper",
		"capabilities": {"tools": {}},
		"ping": {},
		"tools": [
			{"name":"echo","description":"e","inputSchema":{"type":"object","properties":{"a":{}}}},
			{"name":"fail","description":"f","inputSchema":{"type":"object","properties":{}}},
			{"name":"permission","description":"Answers a request for permission to use a tool: {\"behavior\":\"allow\"} or {\"behavior\":\"deny\",\"message\":\"…\"}.",
				"inputSchema":{"type":"object","properties":{"tool_name":{"type":"string"},"input":{"type":"object"},"tool_use_id":{"type":"string"}},"required":["tool_name"]}},
			{"name":"text","description":"t","inputSchema":{"type":"object","properties":{}}}
		],
		"echo": {"content":[{"type":"text","text":"{\"a\":[1,\"<b>\"]}"}]},
		"none": {"content":[{"type":"text","text":"{}"}]},
		"text": {"content":[{"type":"text","text":"größer, as it is"}]},
		"fail": {"content":[{"type":"text","text":"Tool execution failed: broken"}],"isError":true},
		"denied": {"content":[{"type":"text","text":"{\"behavior\":\"deny\",\"message\":\"no\"}"}]},
		"allowed": {"content":[{"type":"text","text":"{\"behavior\":\"allow\",\"updatedInput\":{\"file_path\":\"a\"}}"}]},
		"unknown": {"code":-32602}
	}`
	if got, want := decoded(t, output), decoded(t, []byte(want)); !reflect.DeepEqual(got, want) {
		t.Errorf("saw %s", output)
	}
}

func decoded(t *testing.T, text []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}
