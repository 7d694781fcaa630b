// Command session is what hosts call: it begins, attaches, tails, leaves, pauses and ends
// runs, one JSON operation a request, as docs/session-api.md says. The tenant is bound to
// the caller by the stack, never taken from a sandbox.
package main

import (
	"fmt"
	"strconv"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	awslambda "github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/ssm"

	"github.com/sandkeeper/sandkeeper/internal/awssecrets"
	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/ebout"
	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
	"github.com/sandkeeper/sandkeeper/internal/ecstask"
	"github.com/sandkeeper/sandkeeper/internal/lambdacheckpoint"
	"github.com/sandkeeper/sandkeeper/internal/lambdafn"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/s3blob"
	"github.com/sandkeeper/sandkeeper/internal/spokes"
	"github.com/sandkeeper/sandkeeper/internal/sqsout"
)

func main() {
	b := boot.New(names.Session)
	allowed, err := parseTenants(b.Get(names.Tenants))
	if err != nil {
		panic(fmt.Errorf("boot session: %w", err)) // it does not start half configured
	}
	lambda.StartHandlerFunc(boot.Metered(b, false, handler{session(b), allowed, b.Log, b.Meter}.handle))
}

// session wires the use case.
func session(b *boot.Boot) *core.Session {
	limits := b.Limits
	db := dynamodb.NewFromConfig(b.AWS)
	runs, boxes := ddb.NewRuns(db, b.Get(names.RunsTable)), ddb.NewSandboxes(db, b.Get(names.SandboxesTable))
	transactions := ddb.NewTransactions(db, b.Get(names.RunsTable), b.Get(names.SandboxesTable))
	fleet := spokes.New(b.AWS, b.Places, string(names.Session))
	tasks, exec := &ecstask.Tasks{ECS: fleet}, ecsexec.NewFleet(fleet)
	functions, hosts := awslambda.NewFromConfig(b.AWS), lambdafn.Allowed(b.Get(names.HostFunctions))
	blobs := s3blob.NewObjects(s3.NewFromConfig(b.AWS), b.Get(names.LogBucket))
	quota, err := strconv.Atoi(b.Get(names.SandboxesPerTenant))
	if err != nil || quota < 0 {
		panic(fmt.Errorf("boot session: sandboxes per tenant: want a whole number from 0 on, got %.20q", b.Get(names.SandboxesPerTenant)))
	}
	return &core.Session{
		Launcher: &core.Launcher{
			Runs: runs, Sandboxes: boxes, Ledger: boxes, Transactions: transactions, Describer: tasks,
			Provider: core.TaskProvider{TaskAPI: tasks, AgentStarter: core.JournalStarter{Exec: exec, Format: core.DefaultJournal}},
			Queue:    sqsout.New(sqs.NewFromConfig(b.AWS), b.Get(names.ReclaimQueue)), Threads: ddb.NewThreads(db, b.Get(names.CheckpointsTable)),
			Announcer: ebout.New(eventbridge.NewFromConfig(b.AWS), b.Get(names.EventBus)), Limits: limits, Install: b.Get(names.Install), Quota: quota,
		},
		Binds: transactions, Controls: boxes, Notes: runs, Definitions: boxes, History: ddb.NewHistory(db, b.Get(names.RunsTable)),
		Log: &core.LogWriter{
			Log: runs, Blobs: blobs, Inline: limits.InlineSegment, Retention: limits.Retention + names.SegmentsOutlive,
		},
		Spool: blobs, Grants: blobs, Nudger: &lambdafn.Nudger{Lambda: functions, Reap: b.Get(names.ReapFunction)},
		Prober: &core.JournalProber{Exec: exec, Sandboxes: boxes, Format: core.DefaultJournal, Limits: limits},
		Keeper: lambdacheckpoint.Keeper{Caller: &lambdacheckpoint.Caller{
			Lambda: functions, Function: b.Get(names.CheckpointFunction), Timeout: limits.CaptureCall,
		}},
		Functions: &lambdafn.Functions{Lambda: functions, Allowed: hosts}, HostFunctions: hosts,
		ToolsURL:   &lambdacheckpoint.Address{Lambda: functions, Function: b.Get(names.ToolsFunction), Dial: b.AWS.BaseEndpoint},
		Secrets:    &awssecrets.Values{Secrets: secretsmanager.NewFromConfig(b.AWS), Parameters: ssm.NewFromConfig(b.AWS)},
		Setups:     core.ExecSetups{Exec: exec, Format: core.DefaultJournal},
		Checkpoint: core.CheckpointFinished, Provider: ecstask.Provider, Cluster: b.Get(names.Cluster), Places: b.Places, Logger: b.Log,
	}
}
