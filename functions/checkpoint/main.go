// Command checkpoint keeps the workspaces of threads: it starts captures and restores in
// sandboxes, gives their agents leave to store and read packs, publishes what they hand
// in, and forks, lists, verifies and collects what is stored. Bytes of workspaces do not
// pass through it.
package main

import (
	"cmp"
	"fmt"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	awslambda "github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sandkeeper/sandkeeper/internal/archive"
	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
	"github.com/sandkeeper/sandkeeper/internal/lambdacheckpoint"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/s3blob"
	"github.com/sandkeeper/sandkeeper/internal/spokes"
	"github.com/sandkeeper/sandkeeper/internal/sqsout"
)

func main() {
	b := boot.New(names.Checkpoint)
	keep, err := parseKeep(b.Get(names.KeepCheckpoints))
	unused, wrong := parseUnused(b.Get(names.ThreadRetention))
	if err := cmp.Or(err, wrong); err != nil {
		panic(fmt.Errorf("boot checkpoint: %w", err)) // it does not start half configured
	}
	db, functions := dynamodb.NewFromConfig(b.AWS), awslambda.NewFromConfig(b.AWS)
	objects := s3blob.NewObjects(s3.NewFromConfig(b.AWS), b.Get(names.LogBucket))
	boxes, runs := ddb.NewSandboxes(db, b.Get(names.SandboxesTable)), b.Get(names.RunsTable)
	agents := core.ExecJobStarter{Exec: ecsexec.NewFleet(spokes.New(b.AWS, b.Places, string(names.Checkpoint))), Format: core.DefaultJournal}
	keeper := &core.Keeper{
		Threads: ddb.NewThreads(db, b.Get(names.CheckpointsTable)), Objects: objects, Blobs: objects, Manifests: archive.Reader{},
		Sandboxes: boxes, Controls: core.ModeDefault{Controls: boxes, Mode: core.Mode(b.Get(names.Mode))},
		Runs: ddb.NewRuns(db, runs), History: ddb.NewHistory(db, runs), Agents: agents,
		URL:   &lambdacheckpoint.Address{Lambda: functions, Function: b.Get(names.CheckpointFunction), Dial: b.AWS.BaseEndpoint},
		Queue: sqsout.New(sqs.NewFromConfig(b.AWS), b.Get(names.ReclaimQueue)), Witness: witness{b.Log, b.Meter}, Logger: b.Log,
	}
	self := &lambdacheckpoint.Caller{Lambda: functions, Function: b.Get(names.CheckpointFunction)}
	lambda.StartHandlerFunc(boot.Metered(b, false, handler{keeper, b.Log, b.Meter, agents, self, keep, unused}.handle))
}
