package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/aws/aws-sdk-go-v2/config"

	"github.com/sandkeeper/sandkeeper/client"
)

// A turn of an agent, from its start to its end. Where the host is told to stop, it
// leaves: the agent works on, and whoever attaches goes on at the position.
func ExampleRun() {
	ctx := context.Background()
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		log.Fatal(err)
	}
	session := client.NewFunction(cfg, "sandkeeper-session:acme")
	result, err := client.Run(ctx, session, client.Turn{
		Start: &client.StartRequest{
			RunKey: client.RunKey{Tenant: "acme", Run: client.NewRun()}, Thread: "thread-7", Host: client.NewHost(),
			DefinitionName: "worker", Agent: client.AgentPlan{Argv: []string{"agent", "--print"}},
		},
		Line: func(l client.Line) error {
			_, err := fmt.Printf("%s\n", l.Text)
			return err
		},
	})
	switch {
	case errors.Is(err, client.ErrCancelled):
		fmt.Println("somebody has cancelled it")
	case result.Left:
		fmt.Printf("left at byte %d: %v\n", result.Position, err)
	case client.CodeOf(err) == client.Quota:
		fmt.Println("the tenant has as many sandboxes as it may")
	case err != nil:
		log.Fatal(err)
	default:
		fmt.Println(result.Run.Status, result.Finish.State)
	}
}

// As README shows it.
func ExampleRun_line() {
	ctx := context.Background()
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		log.Fatal(err)
	}
	var request client.StartRequest
	show := func(client.Line) error { return nil }
	result, err := client.Run(ctx, client.NewFunction(cfg, "sandkeeper-session:acme"), client.Turn{Start: &request, Line: show})
	fmt.Println(result.Left, err)
}

// A viewer, who has no host's name, reads the log from its begin.
func ExampleFollow() {
	ctx := context.Background()
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		log.Fatal(err)
	}
	session := client.NewFunction(cfg, "sandkeeper-session:acme")
	run := client.RunKey{Tenant: "acme", Run: "run-of-today"}
	for line, err := range client.Follow(ctx, session, client.TailRequest{RunKey: run}) {
		if err != nil {
			log.Fatal(err)
		}
		os.Stdout.Write(append(line.Text, '\n'))
	}
}

// A refusal has a code; what went wrong on the way has none, and the call may be repeated.
func ExampleCodeOf() {
	_, err := client.ParseDefinition([]byte(`{"name": "worker", "image": "busybox"}`))
	fmt.Println(client.CodeOf(err) == client.InvalidDefinition)
	fmt.Println(client.CodeOf(&client.NoAnswerError{Operation: "get", Attempts: 5, Err: context.DeadlineExceeded}) == "")
	// Output:
	// true
	// true
}

// What an agent did with tools of its own becomes part of the saved conversation, and is
// taken out again before that goes to a model.
func ExampleMergeObserved() {
	conversation := []byte(`[{"role":"user","content":"what is here?"},{"role":"assistant","content":"a file"}]`)
	output := []byte(`{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"Bash","input":{"command":"ls"}}]}` + "\n")
	merged, err := client.MergeObserved(conversation, output)
	if err != nil {
		log.Fatal(err)
	}
	stripped, err := client.StripObserved(merged)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n%s\n", merged, stripped)
	// Output:
	// [{"role":"user","content":"what is here?"},{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"Bash","input":{"command":"ls"},"observed":true}]},{"role":"assistant","content":"a file"}]
	// [{"role":"user","content":"what is here?"},{"role":"assistant","content":"a file"}]
}
