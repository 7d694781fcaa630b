// Command reclaim has the workspaces saved that ended runs owe, then ends their
// sandboxes or keeps them warm. It fails single messages, never a batch.
package main

import (
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	awslambda "github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/ebout"
	"github.com/sandkeeper/sandkeeper/internal/ecstask"
	"github.com/sandkeeper/sandkeeper/internal/lambdacheckpoint"
	"github.com/sandkeeper/sandkeeper/internal/lambdafn"
	"github.com/sandkeeper/sandkeeper/internal/metrics"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/spokes"
)

func main() {
	b := boot.New(names.Reclaim)
	lambda.StartHandlerFunc(boot.Metered(b, false, handler{wire(b), b.Log, b.Meter}.handle))
}

// onFailure is what the values of [names.OnFailure] mean.
var onFailure = map[string]core.OnFailure{
	names.FailureHold:    core.HoldOnFailure,
	names.FailureRelease: core.ReleaseOnFailure,
}

// wire ties the use case to its adapters.
func wire(b *boot.Boot) *core.Reclaimer {
	db := dynamodb.NewFromConfig(b.AWS)
	boxes := ddb.NewSandboxes(db, b.Get(names.SandboxesTable))
	tasks := &ecstask.Tasks{ECS: spokes.New(b.AWS, b.Places, string(names.Reclaim))}
	limits := b.Limits
	functions := awslambda.NewFromConfig(b.AWS)
	return &core.Reclaimer{
		Runs: ddb.NewRuns(db, b.Get(names.RunsTable)), Sandboxes: boxes, Ledger: boxes, Controls: core.ModeDefault{Controls: boxes, Mode: core.Mode(b.Get(names.Mode))},
		Transactions: ddb.NewTransactions(db, b.Get(names.RunsTable), b.Get(names.SandboxesTable)), Breaker: boxes, Tasks: tasks, Stopper: tasks,
		Threads: ddb.NewThreads(db, b.Get(names.CheckpointsTable)),
		Checkpoints: &lambdacheckpoint.Caller{
			Lambda: functions, Function: b.Get(names.CheckpointFunction), Timeout: limits.CaptureCall,
		},
		Announcer: metrics.Losses{To: ebout.New(eventbridge.NewFromConfig(b.AWS), b.Get(names.EventBus)), Meter: b.Meter, Log: b.Log},
		Functions: &lambdafn.Functions{Lambda: functions, Allowed: lambdafn.Allowed(b.Get(names.HostFunctions))}, Logger: b.Log,
		OnFailure: onFailure[b.Get(names.OnFailure)],
		Provider:  ecstask.Provider, Limits: limits,
	}
}
