package main

import (
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	awslambda "github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/ebout"
	"github.com/sandkeeper/sandkeeper/internal/ecstask"
	"github.com/sandkeeper/sandkeeper/internal/lambdafn"
	"github.com/sandkeeper/sandkeeper/internal/lambdaprobe"
	"github.com/sandkeeper/sandkeeper/internal/metrics"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/s3blob"
	"github.com/sandkeeper/sandkeeper/internal/spokes"
	"github.com/sandkeeper/sandkeeper/internal/sqsout"
)

// wire makes the sweep of the adapters that the environment names.
func wire(b *boot.Boot) *core.Sweep {
	limits, db, queues := b.Limits, dynamodb.NewFromConfig(b.AWS), sqs.NewFromConfig(b.AWS)
	runs := ddb.NewRuns(db, b.Get(names.RunsTable))
	boxes := ddb.NewSandboxes(db, b.Get(names.SandboxesTable))
	blobs := s3blob.NewObjects(s3.NewFromConfig(b.AWS), b.Get(names.LogBucket))
	tasks := &ecstask.Tasks{ECS: spokes.New(b.AWS, b.Places, string(names.Reap))}
	functions := awslambda.NewFromConfig(b.AWS)
	probe := core.RemoteProber{Caller: &lambdaprobe.Caller{
		Lambda: functions, Function: b.Get(names.ProbeFunction), Timeout: limits.ProbeTimeout,
	}}
	return &core.Sweep{
		Runs: runs, Index: runs, Notes: runs,
		Log:       &core.LogWriter{Log: runs, Blobs: blobs, Inline: limits.InlineSegment, Retention: limits.Retention + names.SegmentsOutlive},
		Sandboxes: boxes, Ledger: boxes, Due: boxes, Breaker: boxes, Cursors: boxes, Budget: boxes, Meters: boxes,
		Controls: core.ModeDefault{Controls: boxes, Mode: core.Mode(b.Get(names.Mode))},
		Tasks:    tasks, Lister: tasks, Prober: probe, Journals: probe,
		Uploader:  core.GrantedUploader{Pusher: probe, Grants: blobs},
		Spool:     blobs,
		Functions: &lambdafn.Functions{Lambda: functions, Allowed: lambdafn.Allowed(b.Get(names.HostFunctions))},
		Queue:     sqsout.New(queues, b.Get(names.ReclaimQueue)),
		Fanout:    sqsout.NewShards(queues, b.Get(names.ShardQueue)),
		Announcer: metrics.Losses{To: ebout.New(eventbridge.NewFromConfig(b.AWS), b.Get(names.EventBus)), Meter: b.Meter, Log: b.Log},
		Install:   b.Get(names.Install), Provider: ecstask.Provider, Cluster: b.Get(names.Cluster), Abroad: b.Places.Abroad(),
		Checkpoint: core.CheckpointFinished,
		StopLeaks:  b.Get(names.Leaks) == names.LeaksStop,
		Limits:     limits, Logger: b.Log,
	}
}
