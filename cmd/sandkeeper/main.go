// Command sandkeeper is the operator's tool. Each subcommand is one file, one
// struct with a Run method, and one line below.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/sandkeeper/sandkeeper/internal/localfargate"
)

type commands struct {
	Local localCommand `cmd:"" help:"Run a local stand-in for ECS and Fargate on loopback."`
	Demo  demoCommand  `cmd:"" help:"Do the main job on this machine, without an account."`
	Agent agentCommand `cmd:"" name:"demo-agent" hidden:""`
}

func main() {
	localfargate.MaybeInit() // tasks of "local" begin as this program
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var c commands
	k := kong.Parse(&c, kong.Name("sandkeeper"), kong.UsageOnError(),
		kong.Description("The end-of-life keeper of AI-agent sandboxes on Fargate."),
		kong.BindTo(ctx, (*context.Context)(nil)))
	k.FatalIfErrorf(k.Run())
}
