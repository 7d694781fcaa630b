package main

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// TestVectorsOfRemoteTools holds the function against the original's results: what is a
// request, and what becomes of a tool that is unknown or fails.
func TestVectorsOfRemoteTools(t *testing.T) {
	dir := cmp.Or(os.Getenv("SANDKEEPER_VECTORS"), filepath.Join("..", "..", "..", "shared", "vectors"))
	data, err := os.ReadFile(filepath.Join(dir, "tool_bridge.json"))
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	var file struct {
		Cases []struct {
			Name  string
			Input struct {
				Request json.RawMessage
				Tool    string
				Args    json.RawMessage
			}
			Want struct{ OK, Rejects *bool }
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, c := range file.Cases {
		body := string(c.Input.Request)
		if c.Input.Tool != "" {
			text, err := json.Marshal(map[string]any{"name": c.Input.Tool, "args": c.Input.Args})
			if err != nil {
				t.Fatal(err)
			}
			body = string(text)
		}
		if body == "" {
			continue
		}
		seen++
		t.Run(c.Name, func(t *testing.T) {
			run := live()
			run.Tools = append(run.Tools, core.ToolBinding{Name: "a", Function: "fn"})
			w := newWorld(t, run)
			r := sample(t, "call")
			r.Body = body
			status, answer := w.ask(t, r)
			want := c.Want.OK != nil && *c.Want.OK || c.Want.Rejects != nil && !*c.Want.Rejects
			if (status == 200) != want || status == 503 {
				t.Errorf("%d %s, want success: %v", status, answer, want)
			}
			if strings.HasPrefix(c.Name, "exec request") && !want && status != 400 {
				t.Errorf("%d %s, want 400", status, answer)
			}
		})
	}
	if seen < 7 {
		t.Errorf("%d cases", seen)
	}
}
