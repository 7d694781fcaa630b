package sandkeeper_test

import (
	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/jsii-runtime-go"

	"github.com/sandkeeper/sandkeeper/infra/sandkeeper"
)

// An installation in somebody's own stack, which may run sandboxes in another account too,
// and a role that runs agents through it. Where the binaries are is all that has to be said.
func ExampleNew() {
	defer jsii.Close()
	app := awscdk.NewApp(nil)
	stack := awscdk.NewStack(app, new("agents"), nil)
	keeper := sandkeeper.New(stack, "Sandkeeper", sandkeeper.Props{
		Install: "agents",
		Dist:    "dist",
		Limits:  map[string]any{"runTTL": "4h"},
		Spokes: []sandkeeper.SpokeAccess{{
			Role: "arn:aws:iam::111122223333:role/agents-spoke-eu-west-1", Region: "eu-west-1",
			ExternalID: "of-the-agents-spoke", Clusters: []string{"agents"},
		}},
	})
	host := awsiam.NewRole(stack, new("host"), &awsiam.RoleProps{
		AssumedBy: awsiam.NewServicePrincipal(new("lambda.amazonaws.com"), nil),
	})
	keeper.GrantHost(host)
	app.Synth(nil)
}

// As docs/deploy.md shows it.
func ExampleNew_beside() {
	defer jsii.Close()
	app := awscdk.NewApp(nil)
	stack := awscdk.NewStack(app, new("agents"), nil)
	keeper := sandkeeper.New(stack, "Sandkeeper", sandkeeper.Props{Install: "agents", Dist: "../sandkeeper/dist"})
	orchestrator := awsiam.NewRole(stack, new("orchestrator"), &awsiam.RoleProps{
		AssumedBy: awsiam.NewServicePrincipal(new("lambda.amazonaws.com"), nil),
	})
	keeper.GrantHost(orchestrator)
	app.Synth(nil)
}
