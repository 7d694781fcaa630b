// Command sandkeeper is the operator's tool. Each subcommand is one file, one
// struct with a Run method, and one line below.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
)

type commands struct {
	globals

	Plan  planCommand  `cmd:"" group:"sweeps" help:"Show what a sweep would do, and write nothing."`
	Apply applyCommand `cmd:"" group:"sweeps" help:"Carry out a saved plan, each entry checked again."`
	Sweep sweepCommand `cmd:"" group:"sweeps" help:"Sweep now, as the schedule does each minute."`

	Runs    runsCommand    `cmd:"" group:"runs" help:"List runs: what has not ended, or still owes."`
	Show    showCommand    `cmd:"" group:"runs" help:"Show the record of a run."`
	Explain explainCommand `cmd:"" group:"runs" help:"Say why a run is where it is, and what would end it."`
	Logs    logsCommand    `cmd:"" group:"runs" help:"Print a run's transcript, or follow it."`
	Watch   watchCommand   `cmd:"" group:"runs" help:"Live view of the runs: open a transcript, hold, kill."`

	Hold    holdCommand    `cmd:"" group:"acts" help:"Keep a run's sandbox from expiry and reclaim."`
	Release releaseCommand `cmd:"" group:"acts" help:"Take a hold back."`
	Extend  extendCommand  `cmd:"" group:"acts" help:"Let a run stay detached longer, or cost more."`
	Kill    killCommand    `cmd:"" group:"acts" help:"Ask for the end of a run and its agent."`
	Freeze  freezeCommand  `cmd:"" group:"acts" help:"Stop all stopping, now."`
	Thaw    thawCommand    `cmd:"" group:"acts" help:"Take a freeze back and reset the breaker."`
	Mode    modeCommand    `cmd:"" group:"acts" help:"Show or set whether the installation observes or enforces."`
	Redrive redriveCommand `cmd:"" group:"acts" help:"Send dead letters again, each checked against the records first."`

	Checkpoints checkpointsCommand `cmd:"" group:"checkpoints" help:"What is stored of the workspaces of threads."`

	Threads threadsCommand `cmd:"" group:"checkpoints" help:"Threads as a whole: list, show, delete."`

	Definitions definitionsCommand `cmd:"" group:"state" help:"What sandboxes are made from: keep, list, show."`

	Audit  auditCommand  `cmd:"" group:"state" help:"Compare ECS with the records, both ways; or list what operators did."`
	Cost   costCommand   `cmd:"" group:"state" help:"Estimate what runs cost, what leaked, and what was saved."`
	Doctor doctorCommand `cmd:"" group:"state" help:"Check the installation; each finding with its cure."`

	Bench      benchCommand      `cmd:"" group:"state" help:"Measure what calls, plans and probes take from here."`
	Local      localCommand      `cmd:"" group:"machine" help:"Run a local stand-in for ECS and Fargate on loopback."`
	Demo       demoCommand       `cmd:"" group:"machine" help:"Do the main job on this machine, without an account."`
	Completion completionCommand `cmd:"" group:"machine" help:"Print the completion script of a shell."`
	Agent      agentCommand      `cmd:"" name:"demo-agent" hidden:""`
	Complete   completeCommand   `cmd:"" name:"__complete" hidden:"" passthrough:""`
}

func main() {
	localfargate.MaybeInit() // tasks of "local" begin as this program
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], console.Std())
	stop()
	os.Exit(code)
}
