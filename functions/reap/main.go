// Command reap ends detached runs: one sweep for each tick, or one for each shard
// where that is too much for one, and a look at one run for each task that stopped or
// each operator's request; and once a day an audit. It fails only when it cannot list,
// or for an event that it does not know; of messages it fails single ones.
package main

import (
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

func main() {
	b := boot.New(names.Reap)
	lambda.StartHandlerFunc(boot.Metered(b, true, handler{wire(b), b.Log, b.Meter}.handle))
}
