// Command tool-go is an example of a function that agents in sandboxes may call as tools,
// and that hears of a definition's hooks: one function serves several, told apart by their
// name. Its rule: whom a call is made
// for is read from the context that Sandkeeper gives, never from the arguments, which a
// model wrote.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
)

// call is what a tool's function is invoked with.
type call struct {
	Name    string          `json:"name"`
	Args    json.RawMessage `json:"args"` // an object; {} where the agent gave none
	Context caller          `json:"context"`

	// What a hook is told, which has no name.
	Hook   string          `json:"hook"`
	Thread string          `json:"thread"`
	Run    string          `json:"run"`
	Detail json.RawMessage `json:"detail"`
}

// caller is whose agent calls.
type caller struct {
	Tenant string `json:"tenant"`
	Thread string `json:"thread"`
	Run    string `json:"run"`
}

// tools are the tools by name. What one returns is the result, a text or anything in
// JSON; an error is a failed call, and the agent reads its text.
var tools = map[string]func(ctx context.Context, c call) (any, error){
	"lookup": lookup,
	"whoami": func(_ context.Context, c call) (any, error) { return c.Context, nil },
	"wait":   wait,
}

func main() { lambda.Start(handle) }

func handle(ctx context.Context, c call) (any, error) {
	if c.Hook != "" {
		return nil, hook(c)
	}
	tool, ok := tools[c.Name]
	if !ok {
		return nil, fmt.Errorf("tool %.80q: want one of lookup, whoami, wait", c.Name)
	}
	return tool(ctx, c)
}

// hook logs what it is told. It lets no agent begin in a thread that is closed: an error of
// the hook ready fails the start.
func hook(c call) error {
	log.Printf("hook %s of run %s: %s", c.Hook, c.Run, c.Detail)
	if c.Hook == "ready" && strings.HasPrefix(c.Thread, "closed-") {
		return fmt.Errorf("thread %s is closed", c.Thread)
	}
	return nil
}

// lookup answers with a text about a key.
func lookup(_ context.Context, c call) (any, error) {
	var args struct {
		Key string `json:"key"`
	}
	if err := json.Unmarshal(c.Args, &args); err != nil || args.Key == "" {
		return nil, fmt.Errorf("lookup: want {\"key\": text}, got %.200s", c.Args)
	}
	if args.Key == "missing" {
		return nil, fmt.Errorf("lookup %q: no such key", args.Key)
	}
	return "value of " + args.Key, nil
}

// longest is the longest wait, seconds.
const longest = 120

// wait answers after a while: something that a user may cancel.
func wait(ctx context.Context, c call) (any, error) {
	var args struct {
		Seconds float64 `json:"seconds"`
	}
	if err := json.Unmarshal(c.Args, &args); err != nil || args.Seconds < 0 || args.Seconds > longest {
		return nil, fmt.Errorf("wait: want {\"seconds\": 0 to %d}, got %.200s", longest, c.Args)
	}
	timer := time.NewTimer(time.Duration(args.Seconds * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return map[string]float64{"waited": args.Seconds}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
