package bench_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/engine/installtest"
	"github.com/sandkeeper/sandkeeper/internal/lambdacheckpoint"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/toolwire"
)

// toolCalls times calls of a tool through the deployed function's URL and direct invokes
// of the same function, in turn, on the local engine, whose own work is in both. The tool
// takes a tenth of a second, as one that asks a service of its own does; what is added to
// a tool of no work at all is told beside it.
func toolCalls(t *testing.T, _ int) []figure {
	const calls = 40
	var shared installtest.Shared
	in := shared.Get(t)
	t.Cleanup(func() {
		if err := shared.Close(); err != nil {
			t.Error(err)
		}
	})
	tool, err := in.DeployExampleTool(t.Context(), filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	bridge, stranger := bridgeTo(t, in, tool)
	direct := func(name, args string) error {
		payload, err := json.Marshal(map[string]any{"name": name, "args": json.RawMessage(args), "context": map[string]string{}})
		if err != nil {
			return err
		}
		_, err = in.Functions.Invoke(t.Context(), &lambda.InvokeInput{FunctionName: &tool, Payload: payload})
		return err
	}
	through := func(name, args string) error {
		_, err := bridge.Call(t.Context(), name, json.RawMessage(args))
		return err
	}
	// What is refused before the run's record is read, and right after.
	refused := func(c *toolwire.Client, status int) func(string, string) error {
		return func(_, args string) error {
			_, err := c.Call(t.Context(), "no-such-tool", json.RawMessage(args))
			if e, ok := errors.AsType[*toolwire.Error](err); ok && e.Status == status {
				return nil
			}
			return fmt.Errorf("want status %d, got %w", status, err)
		}
	}
	// All warm first: a cold start is measured elsewhere.
	ways := []func(name, args string) error{direct, through, refused(stranger, http.StatusUnauthorized), refused(bridge, http.StatusNotFound)}
	medians(t, 3, "lookup", `{"key":"a"}`, ways...)
	slow := medians(t, calls, "wait", `{"seconds":0.1}`, direct, through)
	quick := medians(t, calls, "lookup", `{"key":"a"}`, ways...)
	added := quick[1] - quick[0]
	return []figure{
		{Name: "tool call through the bridge against a direct invoke, p50", Value: slow[1].Seconds() / slow[0].Seconds(), Unit: "times", Goal: "<= 1.5",
			how: "a tool of 100 ms, calls in turn on the local engine: " + slow[1].String() + " against " + slow[0].String()},
		{Name: "time that the bridge adds to a tool call, p50", Value: added.Seconds() * 1000, Unit: "ms",
			how: fmt.Sprintf("a tool of no work: %v against %v, %.2f times; of what is added %v are an invocation by URL that does nothing, %v the read of the run's record, %v all else; both ways hold 50 ms in which the engine waits for a log line that the tool does not write",
				quick[1], quick[0], quick[1].Seconds()/quick[0].Seconds(), quick[2], quick[3]-quick[2], added-quick[3])},
	}
}

// bridgeTo begins a run that may call the tool's function, and is its agent's side, and that
// of somebody whose bearer is none.
func bridgeTo(t *testing.T, in *installtest.Installation, tool string) (agent, stranger *toolwire.Client) {
	t.Helper()
	r, err := in.Host.Start(t.Context(), core.RunRequest{
		RunKey: core.RunKey{Tenant: "bench", Run: "tools"}, Thread: "tools", HostNonce: "host", Definition: "bench",
		Tools: []core.ToolBinding{{Name: "lookup", Function: tool}, {Name: "wait", Function: tool}},
	})
	if err != nil {
		t.Fatal(err)
	}
	bearer, hash := core.MintBearer(r.RunKey)
	if _, err := in.Runs.Update(t.Context(), r.RunKey, core.AddBearer{Epoch: r.Epoch, Bearer: hash}); err != nil {
		t.Fatal(err)
	}
	address := &lambdacheckpoint.Address{Lambda: in.Functions, Function: in.Out[names.OutTools], Dial: &in.Engine.Endpoint}
	url, host, err := address.AgentURL(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	agent, err = toolwire.NewClient(url, host, bearer)
	if err != nil {
		t.Fatal(err)
	}
	if stranger, err = toolwire.NewClient(url, host, "none"); err != nil {
		t.Fatal(err)
	}
	return agent, stranger
}

// medians times ways of calling a tool, in turn, so that whatever else this machine does
// meets all of them.
func medians(t *testing.T, calls int, name, args string, ways ...func(name, args string) error) []time.Duration {
	t.Helper()
	took := make([][]time.Duration, len(ways))
	for range calls {
		for i, way := range ways {
			began := time.Now()
			if err := way(name, args); err != nil {
				t.Fatal(err)
			}
			took[i] = append(took[i], time.Since(began))
		}
	}
	middle := make([]time.Duration, len(ways))
	for i := range took {
		slices.Sort(took[i])
		middle[i] = took[i][len(took[i])/2].Round(time.Millisecond / 10)
	}
	return middle
}
