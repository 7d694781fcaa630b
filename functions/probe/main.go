// Command probe asks sandboxes' journals by ECS Exec. It never fails for a sandbox
// that cannot be asked: unknown is an answer.
package main

import (
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/spokes"
)

func main() {
	b := boot.New(names.Probe)
	journals := &core.JournalProber{
		Exec:      ecsexec.NewFleet(spokes.New(b.AWS, b.Places, string(names.Probe))),
		Sandboxes: ddb.NewSandboxes(dynamodb.NewFromConfig(b.AWS), b.Get(names.SandboxesTable)),
		Format:    core.DefaultJournal,
		Limits:    core.DefaultLimits,
	}
	lambda.StartHandlerFunc(boot.Metered(b, false, handler{journals}.handle))
}
