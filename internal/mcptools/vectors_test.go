package mcptools_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/mcptools"
	"github.com/sandkeeper/sandkeeper/internal/toolwire"
)

// vector is one result of the original that this package is held against.
type vector struct {
	Name  string
	Input struct {
		Message     json.RawMessage
		Header      *string
		Token       *string
		Provider    string
		Request     json.RawMessage
		Tool        string
		InputSchema json.RawMessage
	}
	Want struct {
		Response json.RawMessage
		OK       *bool
		Tool     json.RawMessage `json:"inputSchema"`
	}
	Quirk string
}

// exempt are the cases that the design decides otherwise, or that another test holds.
var exempt = map[string]string{
	"call tool without code":   "an unknown tool is answered by an error of the protocol, where the original throws out of its dispatcher",
	"bearer trailing space":    "HTTP takes blanks at a header's end away before anybody sees them",
	"bearer empty token":       "a server without a token is not served (the quirk says so)",
	"initialized with id":      "what has an id is a request and is answered; the original answers nothing, and its client would wait for ever",
	"host for docker":          "the server is in the sandbox itself, and listens on loopback alone (DESIGN 10)",
	"host for sbx":             "as for docker",
	"host for local-process":   "as for docker: the address is 127.0.0.1 everywhere",
	"host for Docker":          "as for docker",
	"exec request no args":     "functions/tools, TestVectorsOfRemoteTools",
	"exec request name number": "functions/tools, TestVectorsOfRemoteTools",
	"exec request string":      "functions/tools, TestVectorsOfRemoteTools",
	"exec request array":       "functions/tools, TestVectorsOfRemoteTools",
	"exec request no name":     "functions/tools, TestVectorsOfRemoteTools",
	"host tool unknown":        "functions/tools, TestVectorsOfRemoteTools",
	"host tool throws":         "functions/tools, TestVectorsOfRemoteTools",
}

func readVectors(t *testing.T) []vector {
	t.Helper()
	dir := cmp.Or(os.Getenv("SANDKEEPER_VECTORS"), filepath.Join("..", "..", "..", "shared", "vectors"))
	data, err := os.ReadFile(filepath.Join(dir, "tool_bridge.json"))
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	var file struct{ Cases []vector }
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) < 30 {
		t.Fatalf("%d cases", len(file.Cases))
	}
	return file.Cases
}

// TestVectors holds the server against the original's results. Its tools are the
// original's: the name of the permission tool is another.
func TestVectors(t *testing.T) {
	addr, _ := serving(t, func(c *mcptools.Config) {
		c.Tools = slices.Clone(descriptors[:5])
		c.Tools = append(c.Tools, toolwire.Tool{Name: "noexec", Description: "n"})
	})
	used := map[string]bool{}
	for _, v := range readVectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			differs := v.differs(t, addr)
			reason, exempted := exempt[v.Name]
			used[v.Name] = exempted
			switch {
			case exempted && differs == "":
				t.Errorf("it passes, and need not: %s", reason)
			case exempted:
				t.Skip(reason)
			case differs != "":
				t.Error(differs)
			}
		})
	}
	for name := range exempt {
		if !used[name] {
			t.Errorf("no case is named %q", name)
		}
	}
}

// differs runs a case and says how its result differs from the original's.
func (v vector) differs(t *testing.T, addr string) string {
	switch in := v.Input; {
	case in.Message != nil:
		return v.message(t, addr)
	case in.Token != nil:
		return v.bearer(t)
	case in.Provider != "", in.Request != nil, in.Tool != "":
		return "not this package's"
	default:
		return v.descriptor(t)
	}
}

// message compares answers: codes and results, not the texts of errors.
func (v vector) message(t *testing.T, addr string) string {
	if v.Want.Response == nil {
		return "the original throws"
	}
	body := bytes.ReplaceAll(v.Input.Message, []byte(`"name":"ask"`), []byte(`"name":"permission"`))
	if rest, ok := bytes.CutPrefix(body, []byte("{")); ok { // the original does not look at it
		body = append([]byte(`{"jsonrpc":"2.0"`), rest...)
		if string(rest) != "}" {
			body = append([]byte(`{"jsonrpc":"2.0",`), rest...)
		}
	}
	_, answer := post(t, addr, string(body), nil)
	got, want := plain(t, []byte(cmp.Or(answer, "null"))), plain(t, v.Want.Response)
	if !reflect.DeepEqual(got, want) {
		return "answered " + answer + ", want " + string(v.Want.Response)
	}
	return ""
}

// plain is an answer without what may differ: texts of errors, the order of tools, the
// permission tool's name and description.
func plain(t *testing.T, text []byte) any {
	v := decoded(t, text)
	answer, _ := v.(map[string]any)
	if e, ok := answer["error"].(map[string]any); ok {
		delete(e, "message")
	}
	result, _ := answer["result"].(map[string]any)
	delete(result, "ttlMs") // of a newer protocol
	delete(result, "cacheScope")
	tools, _ := result["tools"].([]any)
	byName := map[string]any{}
	for _, tool := range tools {
		m := tool.(map[string]any)
		name := m["name"].(string)
		if name == "permission" || name == "ask" {
			m = map[string]any{}
			name = "permission"
		}
		delete(m, "name")
		byName[name] = m
	}
	if tools != nil {
		result["tools"] = byName
	}
	return v
}

// bearer compares who is let in. Tokens are longer here.
func (v vector) bearer(t *testing.T) string {
	const long = "0123456789abcdef"
	expected := *v.Input.Token
	if expected != "" {
		expected += long
	}
	addr, err := mcptools.Serve(t.Context(), mcptools.Config{Token: expected})
	if err != nil {
		return err.Error()
	}
	status, _ := post(t, addr, list, func(r *http.Request) {
		r.Header.Del("Authorization")
		if v.Input.Header != nil {
			r.Header.Set("Authorization", strings.Replace(*v.Input.Header, *v.Input.Token, expected, 1))
		}
	})
	if (status == http.StatusOK) != *v.Want.OK {
		return http.StatusText(status)
	}
	return ""
}

// descriptor compares the schema of a tool that has none.
func (v vector) descriptor(t *testing.T) string {
	addr, _ := serving(t, func(c *mcptools.Config) {
		c.Permit, c.Tools = nil, []toolwire.Tool{{Name: "a", InputSchema: v.Input.InputSchema}}
	})
	_, answer := post(t, addr, list, nil)
	var got struct {
		Result struct {
			Tools []struct{ InputSchema json.RawMessage }
		}
	}
	if err := json.Unmarshal([]byte(answer), &got); err != nil || len(got.Result.Tools) != 1 {
		t.Fatalf("%v: %s", err, answer)
	}
	if !reflect.DeepEqual(decoded(t, got.Result.Tools[0].InputSchema), decoded(t, v.Want.Tool)) {
		return answer
	}
	return ""
}
