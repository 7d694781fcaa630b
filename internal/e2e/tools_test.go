package e2e_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/lambdacheckpoint"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/toolwire"
)

// exampleTool deploys the tools of the example and returns the function's name.
func (in *installation) exampleTool(t *testing.T) string {
	t.Helper()
	name, err := in.DeployExampleTool(t.Context(), filepath.Join("..", ".."))
	if errors.Is(err, os.ErrNotExist) && os.Getenv("CI") == "" {
		t.Skip("no example tool, run make build-local")
	}
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// toolsClient is what has a bearer's side of the deployed function's URL.
func (in *installation) toolsClient(t *testing.T, bearer string) *toolwire.Client {
	t.Helper()
	url, host := in.toolsURL(t)
	client, err := toolwire.NewClient(url, host, bearer)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (in *installation) toolsURL(t *testing.T) (url, host string) {
	t.Helper()
	address := &lambdacheckpoint.Address{Lambda: in.functions, Function: in.out[names.OutTools], Dial: &in.engine.Endpoint}
	url, host, err := address.AgentURL(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return url, host
}

// bearer mints one for a run, as the start of its agent does.
func (in *installation) bearer(t *testing.T, key core.RunKey) string {
	t.Helper()
	r := in.run(t, key)
	bearer, hash := core.MintBearer(key)
	if _, err := in.runs.Update(t.Context(), key, core.AddBearer{Epoch: r.Epoch, Was: r.Bearers, Bearer: hash}); err != nil {
		t.Fatal(err)
	}
	return bearer
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*toolwire.Error](err); ok {
		return fmt.Sprint(e.Status, " ", e.Code)
	}
	return fmt.Sprint(err)
}

// asAgent says that this test binary is an agent in a sandbox, which calls tools through
// the server beside it, as the file with that name tells.
const asAgent = "E2E_MCP_AGENT"

// agentMain is that agent: it prints what it saw in JSON, one line a call.
func agentMain(place string) error {
	var at struct{ URL, Token string }
	ctx, cancel := context.WithTimeout(context.Background(), waitMost)
	defer cancel()
	data, err := os.ReadFile(place)
	if place == inEnvironment {
		at.URL, at.Token = os.Getenv(core.MCPURLVariable), os.Getenv(core.MCPTokenVariable)
		data, err = configured(at.URL, at.Token)
	}
	if err == nil {
		err = json.Unmarshal(data, &at)
	}
	if err != nil {
		return err
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil).Connect(ctx,
		&mcp.StreamableClientTransport{Endpoint: at.URL, HTTPClient: &http.Client{Transport: token(at.Token)}}, nil)
	if err != nil {
		return err
	}
	for _, call := range []mcp.CallToolParams{
		{Name: "lookup", Arguments: map[string]any{"key": "größe"}}, {Name: "lookup", Arguments: map[string]any{"key": "missing"}},
		{Name: "whoami"}, {Name: "wait"}, {Name: "permission", Arguments: map[string]any{"tool_name": "Bash", "input": map[string]any{"command": "rm -rf /"}}},
	} {
		r, err := session.CallTool(ctx, &call)
		if e, ok := errors.AsType[*jsonrpc.Error](err); ok {
			fmt.Println(call.Name, "code", e.Code)
			continue
		}
		if err != nil {
			return err
		}
		fmt.Println(call.Name, r.IsError, r.Content[0].(*mcp.TextContent).Text)
	}
	return nil
}

// inEnvironment says that the agent was begun by its wrapper, which tells it where its
// tools are.
const inEnvironment = "environment"

// configured checks that an agent's configuration says the same, to its own user alone.
func configured(url, token string) ([]byte, error) {
	path := os.Getenv(core.MCPConfigVariable)
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if err == nil && (info.Mode().Perm() != 0o600 || !strings.Contains(string(text), url) || !strings.Contains(string(text), token)) {
		err = fmt.Errorf("%s has mode %s, and not what the environment has", path, info.Mode())
	}
	return []byte("{}"), err
}

type token string

func (k token) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(k))
	return http.DefaultTransport.RoundTrip(r)
}

// TestAnAgentCallsAToolOfItsHost: from a sandbox, by MCP, through the deployed function, to
// a deployed function of the host.
func TestAnAgentCallsAToolOfItsHost(t *testing.T) {
	in := installed(t)
	in.needAgent(t)
	tool := in.exampleTool(t)
	program := in.mcpAgent(t)
	r, err := in.starting(t, agent{run: "calls", tools: []core.ToolBinding{{Name: "lookup", Function: tool}, {Name: "whoami", Function: tool}}})
	if err != nil {
		t.Fatal(err)
	}
	url, host := in.toolsURL(t)
	job, err := json.Marshal(map[string]any{
		"url": url, "host": host, "bearer": in.bearer(t, r.RunKey), "root": "/",
		"tools": []toolwire.Tool{{Name: "lookup", Description: "finds"}, {Name: "whoami"}}, "policy": map[string]any{"commands": map[string]any{"deny": []string{"rm"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	shell := fmt.Sprintf(`exec 3<&0
%s.real tools <&3 >place & server=$!
until [ -s place ]; do sleep 0.1; done
%s=place %s; code=$?
kill $server
exit $code`, filepath.Join(in.dir, core.AgentName), asAgent, program)
	if r, err = in.launched(t, r, shell, job); err != nil {
		t.Fatal(err)
	}
	if r, err = in.runs.Update(t.Context(), r.RunKey, core.Detach{Epoch: r.Epoch, Now: core.MillisOf(time.Now())}); err != nil {
		t.Fatal(err)
	}
	in.exited(t, r)
	in.sweepUntil(t, "settle "+r.RunKey.String(), func(core.SweepReport) bool { return in.settled(t, r.RunKey) })
	in.checkAgentSaw(t, in.run(t, r.RunKey))
}

// mcpAgent puts this test binary where sandboxes see it.
func (in *installation) mcpAgent(t *testing.T) string {
	t.Helper()
	program := filepath.Join(in.dir, "mcp-agent")
	if _, err := os.Stat(program); err == nil {
		return program
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(program, data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// checkAgentSaw compares an ended run's log with what the agent must have seen.
func (in *installation) checkAgentSaw(t *testing.T, r core.Run) {
	t.Helper()
	want := []string{
		"lookup false value of größe", `lookup true Tool execution failed: tool lookup: lookup "missing": no such key`,
		fmt.Sprintf(`whoami false {"tenant":"%s","thread":"%s","run":"%s"}`, r.Tenant, r.Thread, r.RunKey.Run), "wait code -32602", `permission false {"behavior":"deny",`,
	}
	got := strings.Split(strings.TrimSpace(string(in.saved(t, r.RunKey))), "\n")
	for i := range want {
		if i >= len(got) || !strings.HasPrefix(got[i], want[i]) {
			t.Fatalf("the agent saw %q, want %q", got, want)
		}
	}
	if r.ExitCode == nil || *r.ExitCode != 0 {
		t.Errorf("the agent ended with %v", r.ExitCode)
	}
}

// TestATurnCallsToolsAndSettlesByItself: begun by the session function, whose host leaves;
// the wrapper's companion serves the tools, and says that the agent has ended, so that no
// tick is needed.
func TestATurnCallsToolsAndSettlesByItself(t *testing.T) {
	in := installed(t)
	in.needAgent(t)
	tool := in.exampleTool(t)
	c := in.caller()
	run := core.RunID("tools-" + rand.Text())
	spec := in.Spec()
	left := filepath.Join(in.dir, rand.Text()) // a file: the host has left
	begun := c.start(t, run, fmt.Sprintf("until [ -e %s ]; do sleep 0.1; done; %s=%s exec %s", left, asAgent, inEnvironment, in.mcpAgent(t)), map[string]any{
		"tools": []string{"lookup", "whoami"},
		"definition": map[string]any{
			"name": "tools", "version": 1, "checkpoint": "none", "destroyOnComplete": true, "task": map[string]any{
				"taskDefinition": spec.TaskDefinition, "container": spec.Container, "subnets": spec.Subnets, "assignPublicIp": true,
			},
			"tools": []map[string]any{
				{"name": "lookup", "function": tool, "description": "finds", "inputSchema": map[string]any{"type": "object"}},
				{"name": "whoami", "function": tool}, {"name": "wait", "function": tool},
			},
			"policy": map[string]any{"commands": map[string]any{"deny": []string{"rm"}}},
		},
	})
	var report core.RenewReport
	c.must(t, "detach", map[string]any{"run": run, "host": c.host}, &report)
	if err := os.WriteFile(left, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	key := core.RunKey{Tenant: "-", Run: run}
	r := in.settle(t, key)
	in.checkAgentSaw(t, r)
	if r.ExitedAt == 0 || r.TaskARN != begun.Run.TaskARN || len(r.Bearers) == 0 {
		t.Errorf("settled as %+v", r)
	}
	t.Logf("from the nudge to the end of the run %s", r.FinishedAt.Sub(r.ExitedAt))
}

// TestACancelEndsACallUnderWay: within 2 s of its record, whoever waits.
func TestACancelEndsACallUnderWay(t *testing.T) {
	in := installed(t)
	tool := in.exampleTool(t)
	r := in.begin(t, agent{run: "waits", shell: lives, stays: true, tools: []core.ToolBinding{{Name: "wait", Function: tool}, {Name: "lookup", Function: tool, TimeoutSeconds: 1}}})
	client := in.toolsClient(t, in.bearer(t, r.RunKey))
	if result, err := client.Call(t.Context(), "wait", json.RawMessage(`{"seconds":0.01}`)); err != nil || string(result) != `{"waited":0.01}` {
		t.Fatalf("result %s, %v", result, err)
	}
	type ended struct {
		err error
		at  time.Time
	}
	done := make(chan ended, 1)
	go func() {
		_, err := client.Call(t.Context(), "wait", json.RawMessage(`{"seconds":100}`))
		done <- ended{err, time.Now()}
	}()
	timer := time.NewTimer(1500 * time.Millisecond) // the call is under way by then, or meets the cancel at its start
	<-timer.C
	asked := time.Now()
	if _, err := core.RequestCancelOf(t.Context(), in.runs, r.RunKey); err != nil {
		t.Fatal(err)
	}
	got := <-done
	t.Logf("ended %s after the cancel", got.at.Sub(asked))
	if codeOf(got.err) != "409 cancelled" {
		t.Errorf("error %v", got.err)
	}
	if _, err := client.Call(t.Context(), "lookup", json.RawMessage(`{"key":"a"}`)); codeOf(err) != "409 cancelled" {
		t.Errorf("a call of a cancelled run: %v", err)
	}
}

// TestANudgeSettlesARunWithoutATick (I2, I3): the agent says that it has ended, and the
// journal that it has; said of a run that works on it changes nothing.
func TestANudgeSettlesARunWithoutATick(t *testing.T) {
	in := installed(t)
	r := in.begin(t, agent{run: "nudges", shell: "echo said; exit 3"})
	works := in.begin(t, agent{run: "works-on", shell: lives})
	in.exited(t, r)
	for _, run := range []core.Run{r, works} {
		if err := in.toolsClient(t, in.bearer(t, run.RunKey)).Ended(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	if r = in.settle(t, r.RunKey); r.Status != core.Failed || *r.ExitCode != 3 || r.ExitedAt == 0 {
		t.Errorf("ended as %s with %v, said at %d", r.Status, r.ExitCode, r.ExitedAt)
	}
	in.checkTranscript(t, r, []byte("said\n"))
	if w := in.run(t, works.RunKey); w.Status != core.Running || w.Epoch != works.Epoch || w.ExitedAt == 0 {
		t.Errorf("a run that works on: %s, epoch %d, said at %d", w.Status, w.Epoch, w.ExitedAt)
	}
}

// TestASpoolGrantIsForOnePiece: stored once, with the tag by which the bucket lets it go,
// and no other bytes.
func TestASpoolGrantIsForOnePiece(t *testing.T) {
	in := installed(t)
	r := in.begin(t, agent{run: "spools", shell: lives, stays: true})
	client := in.toolsClient(t, in.bearer(t, r.RunKey))
	data := []byte("what the agent said")
	sum := sha256.Sum256(data)
	answer, err := client.Spool(t.Context(), []toolwire.Piece{{From: 7, Size: int64(len(data)), SHA256: hex.EncodeToString(sum[:])}})
	if err != nil || len(answer.Grants) != 1 || !answer.Watched {
		t.Fatalf("answered %+v, %v", answer, err)
	}
	put := func(body []byte) int {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPut, answer.Grants[0].URL, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range answer.Grants[0].Headers {
			q.Header.Set(name, value)
		}
		response, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		return response.StatusCode
	}
	if status := put([]byte("what another saids!")); status/100 != 4 {
		t.Errorf("other bytes: status %d", status)
	}
	if first, second := put(data), put(data); first != 200 || second != 412 {
		t.Errorf("statuses %d and %d, want 200 and 412", first, second)
	}
	key := core.SpoolKey(r.RunKey, core.SpoolPiece{From: 7, End: 7 + int64(len(data)), SHA256: hex.EncodeToString(sum[:])})
	objects := s3.NewFromConfig(in.engine.Config(), func(o *s3.Options) { o.UsePathStyle = true })
	tags, err := objects.GetObjectTagging(t.Context(), &s3.GetObjectTaggingInput{Bucket: new(in.out[names.OutBucket]), Key: &key})
	if err != nil || len(tags.TagSet) != 1 || *tags.TagSet[0].Key != names.TagKind || *tags.TagSet[0].Value != names.KindSpool {
		t.Errorf("tags of %s: %+v, %v", key, tags, err)
	}
}

// TestABearerOpensItsRunOnly: at the deployed URL, of another run, of another tenant and
// of an ended run.
func TestABearerOpensItsRunOnly(t *testing.T) {
	in := installed(t)
	tool := in.exampleTool(t)
	bindings := []core.ToolBinding{{Name: "lookup", Function: tool}, {Name: "foreign", Function: in.out[names.OutReapFunction]}}
	r := in.begin(t, agent{run: "own", shell: "exit 0", tools: bindings})
	other := in.begin(t, agent{run: "other", shell: lives, stays: true, tools: bindings})
	bearer, foreign := in.bearer(t, r.RunKey), in.bearer(t, other.RunKey)
	secret := foreign[strings.LastIndex(foreign, "."):]
	for name, text := range map[string]string{
		"another's secret": bearer[:strings.LastIndex(bearer, ".")] + secret,
		"another tenant":   "someone." + strings.SplitN(foreign, ".", 2)[1],
		"none at all":      "x",
	} {
		if _, err := in.toolsClient(t, text).Call(t.Context(), "lookup", nil); codeOf(err) != "401 bearer" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for call, want := range map[string]string{"lookup": "502 tool-failed", "rm": "404 no-such-tool", "foreign": "502 tool-failed"} {
		if _, err := in.toolsClient(t, foreign).Call(t.Context(), call, nil); codeOf(err) != want {
			t.Errorf("%s: %v, want %s", call, err, want)
		}
	}
	in.exited(t, r)
	in.sweepUntil(t, "settle "+r.RunKey.String(), func(core.SweepReport) bool { return in.settled(t, r.RunKey) })
	if _, err := in.toolsClient(t, bearer).Call(t.Context(), "lookup", json.RawMessage(`{"key":"a"}`)); codeOf(err) != "401 bearer" {
		t.Errorf("an ended run's bearer: %v", err)
	}
}
