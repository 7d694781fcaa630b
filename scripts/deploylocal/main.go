// Command deploylocal deploys the local variant of the stack, with the example tool
// beside it, to an engine that somebody else runs on this machine, and prints the
// stack's outputs as JSON. It refuses any endpoint that is not loopback.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

func main() {
	endpoint := flag.String("endpoint", "http://127.0.0.1:4566", "loopback URL of the engine")
	ecs := flag.String("ecs-endpoint", "", "loopback URL of local Fargate (default: the engine's own ECS)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *endpoint, *ecs); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, endpoint, ecs string) error {
	dir, err := os.MkdirTemp("", "sandkeeper-deploy-")
	if err != nil {
		return fmt.Errorf("make tool directory: %w", err)
	}
	defer os.RemoveAll(dir)
	e, err := engine.Attach(endpoint, engine.Options{Dir: dir, ECSEndpoint: ecs})
	if err != nil {
		return err
	}
	if _, err := e.Kind(ctx); err != nil { // CDK would speak of credentials
		return err
	}
	outputs, err := e.Deploy(ctx, engine.Deployment{})
	if err != nil {
		return err
	}
	tell(endpoint, ecs)
	tool := outputs[names.OutInstall] + "-example-tool"
	if err := engine.PutFunction(ctx, lambda.NewFromConfig(e.Config()), tool, "dist/local/example-tool/bootstrap"); err != nil {
		return err
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(outputs)
}

// tell says on stderr how the operator's tool and the example hosts find the installation.
func tell(endpoint, ecs string) {
	if ecs == "" {
		fmt.Fprintln(os.Stderr, "no ECS_ENDPOINT: the functions ask the engine's own ECS, which may run no task; sandkeeper local is one that does")
		ecs = endpoint
	}
	fmt.Fprintf(os.Stderr, "export AWS_ENDPOINT_URL=%s AWS_ENDPOINT_URL_ECS=%s AWS_REGION=%s AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test SANDKEEPER_LOCAL=true\n",
		endpoint, ecs, engine.Region)
}
