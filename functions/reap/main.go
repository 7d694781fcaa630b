// Command reap ends detached runs: one sweep for each tick, or one for each shard
// where that is too much for one, and a look at one run for each task that stopped or
// each operator's request. It fails only when it cannot list, or for an event that it
// does not know; of messages it fails single ones.
package main

import (
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	awslambda "github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/ebout"
	"github.com/sandkeeper/sandkeeper/internal/ecstask"
	"github.com/sandkeeper/sandkeeper/internal/lambdaprobe"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/s3blob"
	"github.com/sandkeeper/sandkeeper/internal/sqsout"
)

func main() {
	b := boot.New(names.Reap)
	limits, db := core.DefaultLimits, dynamodb.NewFromConfig(b.AWS)
	runs := ddb.NewRuns(db, b.Get(names.RunsTable))
	boxes := ddb.NewSandboxes(db, b.Get(names.SandboxesTable))
	blobs := s3blob.New(s3.NewFromConfig(b.AWS), b.Get(names.LogBucket))
	probe := &lambdaprobe.Caller{Lambda: awslambda.NewFromConfig(b.AWS), Function: b.Get(names.ProbeFunction), Timeout: limits.ProbeTimeout}
	queues := sqs.NewFromConfig(b.AWS)
	sweep := &core.Sweep{
		Runs: runs, Index: runs, Log: &core.LogWriter{Log: runs, Blobs: blobs, Inline: limits.InlineSegment},
		Sandboxes: boxes, Ledger: boxes, Due: boxes, Controls: core.ModeDefault{Controls: boxes, Mode: core.Mode(b.Get(names.Mode))}, Tasks: &ecstask.Tasks{ECS: ecs.NewFromConfig(b.AWS)},
		Prober: core.RemoteProber{Caller: probe}, Queue: sqsout.New(queues, b.Get(names.ReclaimQueue)),
		Announcer: ebout.New(eventbridge.NewFromConfig(b.AWS), b.Get(names.EventBus)), Fanout: sqsout.NewShards(queues, b.Get(names.ShardQueue)),
		Breaker: boxes, Notes: runs, Cursors: boxes, Budget: boxes, Limits: limits, Install: b.Get(names.Install), Logger: b.Log,
	}
	lambda.StartHandlerFunc(handler{sweep, b.Log}.handle)
}
