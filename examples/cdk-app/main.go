// Command cdk-app is a CDK app of somebody else's that has Sandkeeper in it: an
// orchestrator's stack with a topic for alarms, the keeper, and a role that may run agents
// through it.
package main

import (
	"os"
	"time"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awscloudwatch"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsevents"
	"github.com/aws/aws-cdk-go/awscdk/v2/awseventstargets"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssns"
	"github.com/aws/jsii-runtime-go"
	"github.com/sandkeeper/sandkeeper/infra/sandkeeper"
)

func main() {
	defer jsii.Close()
	app := awscdk.NewApp(nil)
	newStack(app, os.Getenv("SANDKEEPER_DIST"))
	app.Synth(nil)
}

// newStack makes the orchestrator's stack. dist holds the functions' binaries, as make
// build leaves them.
func newStack(app awscdk.App, dist string) awscdk.Stack {
	stack := awscdk.NewStack(app, new("orchestrator"), nil)
	pager := awssns.NewTopic(stack, new("pager"), &awssns.TopicProps{EnforceSSL: new(true)})
	keeper := sandkeeper.New(stack, "Sandkeeper", sandkeeper.Props{
		Install:    "agents",
		Dist:       dist,
		AlarmTopic: *pager.TopicArn(),
		Runbook:    "https://wiki.example.com/sandkeeper/runbook",
		Limits:     map[string]any{"runTTL": "4h", "idleTTL": "15m"},
		Tags:       map[string]string{"team": "agents"},
	})
	host := awsiam.NewRole(stack, new("host"), &awsiam.RoleProps{
		AssumedBy: awsiam.NewServicePrincipal(new("lambda.amazonaws.com"), nil),
	})
	keeper.GrantHost(host)
	operator := awsiam.NewRole(stack, new("operator"), &awsiam.RoleProps{AssumedBy: awsiam.NewAccountRootPrincipal()})
	keeper.GrantOperator(operator)
	// Above that many refusals in an hour somebody's host is broken.
	keeper.Metric("FenceRefusals", "Sum", time.Hour).CreateAlarm(stack, new("hosts-quarrel"), &awscloudwatch.CreateAlarmOptions{
		Threshold: new(500.0), EvaluationPeriods: new(1.0),
	})
	tellChannel(stack, "default")
	return stack
}

// tellChannel has a topic hear what somebody should look at: in words for a mail, and in
// the form that Amazon Q Developer in chat applications shows in a Slack or Teams channel
// that is subscribed to the topic. An event may come twice.
func tellChannel(stack awscdk.Stack, bus string) awssns.Topic {
	channel := awssns.NewTopic(stack, new("channel"), &awssns.TopicProps{EnforceSSL: new(true)})
	field := func(path string) *string { return awsevents.EventField_FromPath(new("$.detail." + path)) }
	message := awsevents.RuleTargetInput_FromObject(map[string]any{
		"version": "1.0", "source": "custom",
		"content": map[string]any{
			"textType":    "client-markdown",
			"title":       *awsevents.EventField_DetailType() + ": " + *field("tenant") + "/" + *field("run"),
			"description": *field("reason") + " " + *field("command"), // of run.expiring: what keeps it from its end
		},
	})
	awsevents.NewRule(stack, new("tell-channel"), &awsevents.RuleProps{
		EventBus: awsevents.EventBus_FromEventBusName(stack, new("bus"), &bus),
		EventPattern: &awsevents.EventPattern{
			Source: &[]*string{new("sandkeeper")},
			DetailType: &[]*string{
				new("run.expiring"), new("run.lost"), new("sandbox.leaked"), new("breaker.tripped"), new("checkpoint.failed"),
			},
		},
		Targets: &[]awsevents.IRuleTarget{awseventstargets.NewSnsTopic(channel, &awseventstargets.SnsTopicProps{Message: message})},
	})
	return channel
}
