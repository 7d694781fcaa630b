// Command tools is what agents in sandboxes reach: it calls the host's tools for them,
// hears that they have ended, and gives leave to spool their journals. Whose agent asks is
// read from the run's bearer alone.
package main

import (
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	awslambda "github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/lambdafn"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/s3blob"
)

func main() {
	b := boot.New(names.Tools)
	runs, functions := ddb.NewRuns(dynamodb.NewFromConfig(b.AWS), b.Get(names.RunsTable)), awslambda.NewFromConfig(b.AWS)
	bridge := &core.Bridge{
		Runs: runs, Quotas: runs, Grants: s3blob.NewObjects(s3.NewFromConfig(b.AWS), b.Get(names.LogBucket)),
		Functions: &lambdafn.Functions{Lambda: functions, Allowed: lambdafn.Allowed(b.Get(names.HostFunctions))},
		Nudger:    &lambdafn.Nudger{Lambda: functions, Reap: b.Get(names.ReapFunction)},
		Limits:    core.DefaultLimits,
	}
	lambda.StartHandlerFunc(boot.Metered(b, false, handler{bridge, b.Log}.handle))
}
