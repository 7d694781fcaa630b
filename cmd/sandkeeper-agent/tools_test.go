package main_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// bearing sends an agent's configuration's headers.
type bearing map[string]string

func (b bearing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, value := range b {
		r.Header.Set(name, value)
	}
	return http.DefaultTransport.RoundTrip(r)
}

// toolServer begins the command with a job and returns a session with it, as an agent's
// configuration says.
func toolServer(t *testing.T, job string) (session *mcp.ClientSession, command *exec.Cmd) {
	t.Helper()
	command = exec.Command(binary, "tools")
	command.Stdin = strings.NewReader(job)
	out, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var place struct {
		URL, Token string
		Config     struct {
			MCPServers map[string]struct {
				Type, URL string
				Headers   bearing
			} `json:"mcpServers"`
		}
	}
	if err := json.Unmarshal(line, &place); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	of := place.Config.MCPServers["sandkeeper"]
	if of.URL != place.URL || of.Type != "http" || of.Headers["Authorization"] != "Bearer "+place.Token {
		t.Errorf("said %s", line)
	}
	session, err = mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, nil).Connect(t.Context(),
		&mcp.StreamableClientTransport{Endpoint: of.URL, HTTPClient: &http.Client{Transport: of.Headers}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return session, command
}

// TestTheToolsCommandServesARun: its tools reach the function with the run's bearer, its
// policy answers requests for permission, and a signal ends it.
func TestTheToolsCommandServesARun(t *testing.T) {
	var asked atomic.Value
	function := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked.Store(fmt.Sprint(r.Host, " ", r.URL.Path, " ", r.Header.Get("Authorization"), " ", string(body)))
		_, _ = io.WriteString(w, `{"result":{"found":true}}`)
	}))
	defer function.Close()
	session, command := toolServer(t, fmt.Sprintf(`{"url":%q,"host":"id.test","bearer":"acme.r.00","tools":[{"name":"look","description":"d"}],
		"policy":{"commands":{"deny":["rm"]}},"root":"/work"}`, function.URL))
	list, err := session.ListTools(t.Context(), nil)
	if err != nil || len(list.Tools) != 2 {
		t.Fatalf("tools %+v, %v", list, err)
	}
	call := func(name string, args map[string]any) string {
		r, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
		if err != nil {
			t.Fatal(err)
		}
		return r.Content[0].(*mcp.TextContent).Text
	}
	if got := call("look", map[string]any{"key": "a"}); got != `{"found":true}` || asked.Load() != `id.test / Bearer acme.r.00 {"name":"look","args":{"key":"a"}}` {
		t.Errorf("got %s after %q", got, asked.Load())
	}
	ask := func(command string) string {
		return call("permission", map[string]any{"tool_name": "Bash", "input": map[string]any{"command": command}})
	}
	if got := ask("rm -rf /"); !strings.HasPrefix(got, `{"behavior":"deny","message":`) {
		t.Errorf("rm: %s", got)
	}
	if got := ask("ls"); got != `{"behavior":"allow","updatedInput":{"command":"ls"}}` {
		t.Errorf("ls: %s", got)
	}
	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := command.Wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestWhatTheToolsCommandDoesNotServe(t *testing.T) {
	tests := []struct {
		name, job string
		words     []string
		exit      int
		want      string
	}{
		{"no job", ``, nil, 2, "want a job as one JSON object"},
		{"a member that is none", `{"urls":[]}`, nil, 2, "urls"},
		{"words", `{}`, []string{"-x"}, 2, "want no words"},
		{"tools without a function", `{"tools":[{"name":"a"}]}`, nil, 2, "tools function: want an http or https URL"},
		{"a place for everybody", `{"addr":"0.0.0.0:0"}`, nil, 1, "loopback"},
		{"a short token", `{"token":"short"}`, nil, 1, "token of at least 16"},
		{"a policy that is none", `{"policy":{"default":5}}`, nil, 2, "want a job"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			command := exec.Command(binary, append([]string{"tools"}, tt.words...)...)
			command.Stdin = strings.NewReader(tt.job)
			out, err := command.CombinedOutput()
			if err == nil || command.ProcessState.ExitCode() != tt.exit || !strings.Contains(string(out), tt.want) {
				t.Errorf("exit %d: %s", command.ProcessState.ExitCode(), out)
			}
		})
	}
}
