package bench_test

import (
	"encoding/json"
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
	bridge := bridgeTo(t, in, tool)
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
	// Both warm first: a cold start is measured elsewhere.
	medians(t, 3, "lookup", `{"key":"a"}`, direct, through)
	slow := medians(t, calls, "wait", `{"seconds":0.1}`, direct, through)
	quick := medians(t, calls, "lookup", `{"key":"a"}`, direct, through)
	return []figure{
		{Name: "tool call through the bridge against a direct invoke, p50", Value: slow[1].Seconds() / slow[0].Seconds(), Unit: "times", Goal: "<= 1.5",
			how: "a tool of 100 ms, calls in turn on the local engine: " + slow[1].String() + " against " + slow[0].String()},
		{Name: "time that the bridge adds to a tool call, p50", Value: (quick[1] - quick[0]).Seconds() * 1000, Unit: "ms",
			how: "a tool of no work: " + quick[1].String() + " against " + quick[0].String()},
	}
}

// bridgeTo begins a run that may call the tool's function, and is its agent's side.
func bridgeTo(t *testing.T, in *installtest.Installation, tool string) *toolwire.Client {
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
	client, err := toolwire.NewClient(url, host, bearer)
	if err != nil {
		t.Fatal(err)
	}
	return client
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
