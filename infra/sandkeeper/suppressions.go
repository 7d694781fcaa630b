package sandkeeper

import (
	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/constructs-go/constructs/v10"
)

// suppression is a finding of cdk-nag that stands, with the reason.
type suppression struct {
	kind    string // of the resource, as CloudFormation spells it
	rule    string
	applies string // of a rule about permissions: which of them, as a regular expression
	reason  string
}

var suppressions = []suppression{
	{"AWS::S3::Bucket", "AwsSolutions-S1", "", "Who read or wrote an object is in CloudTrail's data events, where an account wants to know; access logs would double the requests and need a bucket of their own."},
	{"AWS::EC2::VPC", "AwsSolutions-VPC7", "", "The network holds sandboxes alone, lets nothing in, and is replaced by an account's own where traffic is to be recorded; flow logs would cost more than the installation."},
	{"AWS::ECS::Cluster", "AwsSolutions-ECS4", "", "Container Insights charges for each task; what the keeper needs to know of its tasks it asks ECS."},
	{"AWS::ECS::TaskDefinition", "AwsSolutions-ECS7", "", "The sample's main process writes nothing: an agent's output goes to its journal, which no log may copy."},
	{"AWS::IAM::Role", "AwsSolutions-IAM5", `^Resource::.*:task\/.*\/\*$`, "The tasks of one cluster, which come and go; their ids are not known before."},
	{"AWS::IAM::Role", "AwsSolutions-IAM5", `^Resource::.*:session\/ecs-execute-command-\*$`, "The sessions of ECS Exec; each is made by ExecuteCommand, which is kept to one cluster's tasks, and its id is not known before."},
	{"AWS::IAM::Role", "AwsSolutions-IAM5", `^Resource::.*:task-definition\/.*\*$`, "Which revisions there are is for definitions to say; the condition keeps their tasks to one cluster, and taskFamilies to named families."},
	{"AWS::IAM::Role", "AwsSolutions-IAM5", `^Resource::.*\.Arn>?\/\*\/(logs|threads|spool)\/\*$`, "The objects of one kind, below each tenant's prefix; tenants are not known to the stack."},
	{"AWS::IAM::Role", "AwsSolutions-IAM5", `^Resource::\*$`, "Actions that know no resource: ListTasks, kept to one cluster by its condition, the four of a task's own exec agent, and X-Ray's two."},
}

// suppress writes the reasons where cdk-nag looks for them, in whatever app the installation
// is made.
func (k *Keeper) suppress() { suppressIn(k.Construct) }

func suppressIn(scope constructs.Construct) {
	byKind := map[string][]any{}
	for _, s := range suppressions {
		entry := map[string]any{"id": s.rule, "reason": s.reason}
		if s.applies != "" {
			entry["applies_to"] = []any{map[string]any{"regex": "/" + s.applies + "/g"}}
		}
		byKind[s.kind] = append(byKind[s.kind], entry)
	}
	for _, node := range *scope.Node().FindAll("") {
		r, ok := node.(awscdk.CfnResource)
		if !ok || byKind[*r.CfnResourceType()] == nil {
			continue
		}
		r.AddMetadata(new("cdk_nag"), map[string]any{"rules_to_suppress": byKind[*r.CfnResourceType()]})
	}
}
