package e2e_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/client"
	"github.com/sandkeeper/sandkeeper/client/inprocess"
)

// TestAHostInProcessDoesATurn by the code of the function, without the function: it
// leaves, comes back through the function, and finds the rest.
func TestAHostInProcessDoesATurn(t *testing.T) {
	in := installed(t)
	outputs := map[string]string{}
	for key, value := range in.out {
		outputs[string(key)] = value
	}
	api, err := inprocess.Open(t.Context(), inprocess.Options{AWS: in.engine.Config(), ECS: new(in.fargate.URL()), Outputs: outputs})
	if err != nil {
		t.Fatal(err)
	}
	spec := in.Spec()
	shell, say := in.inParts(t, []byte("one\n"), []byte("two\n"))
	say()
	start := &client.StartRequest{
		RunKey: client.RunKey{Tenant: "-", Run: client.NewRun()}, Thread: client.ThreadID(client.NewRun()), Host: client.NewHost(),
		Agent: client.AgentPlan{Shell: shell},
		Definition: &client.Definition{Name: "e2e", Version: 1, Checkpoint: client.CheckpointNone, Task: client.TaskTemplate{
			TaskDefinition: spec.TaskDefinition, Container: spec.Container, Subnets: spec.Subnets, AssignPublicIP: true,
		}},
	}
	var said strings.Builder
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	left, err := client.Run(ctx, api, client.Turn{Start: start, Line: func(l client.Line) error {
		said.Write(append(l.Text, '|'))
		leave()
		return nil
	}})
	if !errors.Is(err, context.Canceled) || !left.Left {
		t.Fatalf("left as %+v, %v", left, err)
	}
	say()
	say()
	back := client.NewFunction(in.engine.Config(), in.out["SessionFunction"])
	end, err := client.Run(t.Context(), back, client.Turn{
		Attach: &client.AttachRequest{RunKey: start.RunKey, Host: client.NewHost()}, From: left.Position,
		Line: func(l client.Line) error { said.Write(append(l.Text, '|')); return nil },
	})
	if err != nil || end.Run.Status != client.Failed || end.Run.ExitCode == nil || *end.Run.ExitCode != 3 || said.String() != "one|two|" {
		t.Errorf("%+v, %v, output %q", end, err, said.String())
	}
}
