// Command localstack tests what answers at an endpoint of this machine: with the
// end-to-end tests where it can run the stack, else, on LocalStack's free core, with the
// adapters' own tests against its stores, queues and buses; and says which.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/sandkeeper/sandkeeper/internal/engine"
)

func main() {
	endpoint := flag.String("endpoint", "http://127.0.0.1:4566", "loopback URL of the engine")
	run := flag.String("run", "", "tests to run, as of go test (default: all)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := test(ctx, *endpoint, *run); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func test(ctx context.Context, endpoint, run string) (err error) {
	dir, err := os.MkdirTemp("", "sandkeeper-localstack-")
	if err != nil {
		return fmt.Errorf("make tool directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	e, err := engine.Attach(endpoint, engine.Options{Dir: dir})
	if err != nil {
		return err
	}
	kind, err := e.Kind(ctx)
	if err != nil {
		return err
	}
	args := append([]string{"test", "-count=1", "-timeout", "30m"}, kind.Tests()...)
	if run != "" {
		args = append(args, "-run", run)
	}
	fmt.Printf("%s at %s: go %q\n", kind, endpoint, args)
	command := exec.CommandContext(ctx, "go", args...)
	command.Env = append(os.Environ(), engine.EndpointVariable+"="+endpoint, "CI=true")
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	return command.Run()
}
