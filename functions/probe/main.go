// Command probe asks sandboxes' journals by ECS Exec. It never fails for a sandbox
// that cannot be asked: unknown is an answer.
package main

import (
	"context"
	"encoding/json"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

func main() {
	b := boot.New(names.Probe)
	prober := &core.JournalProber{
		Exec:      ecsexec.New(b.AWS),
		Sandboxes: ddb.NewSandboxes(dynamodb.NewFromConfig(b.AWS), b.Get(names.SandboxesTable)),
		Format:    core.DefaultJournal,
		Limits:    core.DefaultLimits,
	}
	lambda.StartHandlerFunc(func(ctx context.Context, event json.RawMessage) (core.ProbeAnswer, error) {
		call, err := core.DecodeProbeCall(event)
		if err != nil {
			return core.ProbeAnswer{}, err
		}
		return core.ServeProbe(ctx, prober, call)
	})
}
