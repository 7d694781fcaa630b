// Package wiring builds the session of an installation from AWS clients. Its rule: what the
// session function has, a host that calls the session in its own process has too, for there
// is one place where either is put together.
package wiring

import (
	"log/slog"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/ssm"

	"github.com/sandkeeper/sandkeeper/internal/awssecrets"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/ebout"
	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
	"github.com/sandkeeper/sandkeeper/internal/ecstask"
	"github.com/sandkeeper/sandkeeper/internal/lambdacheckpoint"
	"github.com/sandkeeper/sandkeeper/internal/lambdafn"
	"github.com/sandkeeper/sandkeeper/internal/metrics"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/s3blob"
	"github.com/sandkeeper/sandkeeper/internal/spokes"
	"github.com/sandkeeper/sandkeeper/internal/sqsout"
)

// Installation is what a session reaches, and how.
type Installation struct {
	AWS aws.Config
	ECS aws.Config // as AWS, unless ECS is elsewhere

	Places core.Places

	RunsTable, SandboxesTable, CheckpointsTable string
	LogBucket, ReclaimQueue, EventBus           string
	CheckpointFunction, ToolsFunction           string
	ReapFunction                                string
	Cluster                                     string // where a definition names none
	Install                                     string

	HostFunctions []string // that definitions may name as tools and hooks
	Quota         core.Quota
	Limits        core.Limits
	Logger        *slog.Logger   // nil: nothing is logged
	Meter         *metrics.Meter // nil: nothing is measured
	// Holds says that the process lives on between two calls: it holds a session with the
	// sandbox of each run that is followed.
	Holds bool

	DynamoDB func(*dynamodb.Options) // nil: as AWS says
	S3       func(*s3.Options)       // nil: as AWS says
}

// Session is the session of an installation.
func (i Installation) Session() *core.Session {
	db := dynamodb.NewFromConfig(i.AWS, given(i.DynamoDB)...)
	runs, boxes := ddb.NewRuns(db, i.RunsTable), ddb.NewSandboxes(db, i.SandboxesTable)
	fleet := spokes.New(i.ECS, i.Places, string(names.Session))
	exec, functions := ecsexec.NewFleet(fleet), lambda.NewFromConfig(i.AWS)
	blobs := s3blob.NewObjects(s3.NewFromConfig(i.AWS, given(i.S3)...), i.LogBucket)
	prober := &core.JournalProber{Exec: exec, Sandboxes: boxes, Format: core.DefaultJournal, Limits: i.Limits, Dialer: exec}
	s := &core.Session{
		Launcher: i.launcher(db, &ecstask.Tasks{ECS: fleet}, exec),
		Binds:    ddb.NewTransactions(db, i.RunsTable, i.SandboxesTable), Controls: boxes, Notes: runs, Definitions: boxes, History: ddb.NewHistory(db, i.RunsTable),
		Log: &core.LogWriter{
			Log: runs, Blobs: blobs, Inline: i.Limits.InlineSegment, Retention: i.Limits.Retention + names.SegmentsOutlive,
		},
		Spool: blobs, Grants: blobs, Nudger: &lambdafn.Nudger{Lambda: functions, Reap: i.ReapFunction},
		Prober: prober,
		Keeper: lambdacheckpoint.Keeper{Caller: &lambdacheckpoint.Caller{
			Lambda: functions, Function: i.CheckpointFunction, Timeout: i.Limits.CaptureCall,
		}},
		Functions: &lambdafn.Functions{Lambda: functions, Allowed: i.HostFunctions}, HostFunctions: i.HostFunctions,
		ToolsURL:   &lambdacheckpoint.Address{Lambda: functions, Function: i.ToolsFunction, Dial: i.AWS.BaseEndpoint},
		Secrets:    &awssecrets.Values{Secrets: secretsmanager.NewFromConfig(i.AWS), Parameters: ssm.NewFromConfig(i.AWS)},
		Setups:     core.ExecSetups{Exec: exec, Format: core.DefaultJournal},
		Checkpoint: core.CheckpointFinished, Provider: ecstask.Provider, Cluster: i.Cluster, Places: i.Places, Logger: i.Logger,
	}
	if i.Holds {
		s.Held = prober
	}
	return s
}

func (i Installation) launcher(db *dynamodb.Client, tasks *ecstask.Tasks, exec core.Executor) *core.Launcher {
	boxes := ddb.NewSandboxes(db, i.SandboxesTable)
	return &core.Launcher{
		Runs: ddb.NewRuns(db, i.RunsTable), Sandboxes: boxes, Ledger: boxes, Describer: tasks, Meters: boxes,
		Transactions: ddb.NewTransactions(db, i.RunsTable, i.SandboxesTable),
		Provider:     core.TaskProvider{TaskAPI: tasks, AgentStarter: core.JournalStarter{Exec: exec, Format: core.DefaultJournal}},
		Queue:        sqsout.New(sqs.NewFromConfig(i.AWS), i.ReclaimQueue),
		Threads:      ddb.NewThreads(db, i.CheckpointsTable),
		Announcer:    metrics.Losses{To: ebout.New(eventbridge.NewFromConfig(i.AWS), i.EventBus), Meter: i.Meter, Log: i.Logger},
		Limits:       i.Limits, Install: i.Install, Quota: i.Quota,
	}
}

// given are the options of a client that has at most one.
func given[O any](option func(*O)) []func(*O) {
	if option == nil {
		return nil
	}
	return []func(*O){option}
}

// HostFunctions reads the list of functions that an installation lets definitions name.
func HostFunctions(list string) []string { return lambdafn.Allowed(list) }
