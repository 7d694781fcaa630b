package sandkeeper

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// The grants of each function. A DynamoDB transaction needs the actions of its
// parts; ConditionCheckItem is the part that only looks.

func (k *Keeper) reapGrants(probe awslambda.Function) []grant {
	return append(slices.Concat(k.spooled(), k.assumes(), k.invokesHost()), []grant{{
		// No Scan, and no DeleteItem: an item that carries an epoch is never deleted.
		actions: []string{
			"dynamodb:BatchGetItem", "dynamodb:ConditionCheckItem", "dynamodb:GetItem",
			"dynamodb:PutItem", "dynamodb:UpdateItem",
		},
		resources: []*string{k.runs.TableArn(), k.sandboxes.TableArn()},
	}, {
		actions: []string{"dynamodb:Query"},
		resources: []*string{
			indexARN(k.runs, names.DetachedIndex), indexARN(k.runs, names.DueIndex),
			indexARN(k.sandboxes, names.SandboxesDueIndex),
		},
	}, {
		actions:   []string{"s3:GetObject", "s3:GetObjectVersion", "s3:PutObject", "s3:PutObjectTagging"},
		resources: []*string{k.bucket.ArnForObjects(join("*/", names.LogsPrefix, "/*"))},
	}, {
		// By cluster, not by tag: one call asks for a hundred tasks, and IAM refuses it whole
		// for one that lacks a tag.
		actions: []string{"ecs:DescribeTasks"}, resources: []*string{k.tasks()}, conditions: k.ownCluster(),
	}, {
		// ListTasks takes no task as resource; the condition keeps it to the cluster.
		actions: []string{"ecs:ListTasks"}, resources: []*string{new("*")},
		conditions: k.ownCluster(),
	}, {
		actions: []string{"lambda:InvokeFunction"}, resources: []*string{probe.FunctionArn()},
	}, {
		actions: []string{"sqs:SendMessage"}, resources: []*string{k.jobs.QueueArn(), k.shards.QueueArn()},
	}, consumes(k.shards), k.announces()}...)
}

// announces is telling other systems, in the installation's own name only: not even a
// fault of ours passes for another's event.
func (k *Keeper) announces() grant {
	return grant{
		actions: []string{"events:PutEvents"}, resources: []*string{k.bus()},
		conditions: map[string]any{"StringEquals": map[string]any{"events:source": new(names.SourceOwn)}},
	}
}

func (k *Keeper) probeGrants() []grant {
	return append(slices.Concat(k.execs(), k.assumes()), grant{
		actions: []string{"dynamodb:GetItem"}, resources: []*string{k.sandboxes.TableArn()},
	})
}

// execs is what running a script in a sandbox takes.
func (k *Keeper) execs() []grant {
	return []grant{{
		// ECS asks for it on both.
		actions: []string{"ecs:ExecuteCommand"}, resources: []*string{k.tasks()}, conditions: k.tagged(),
	}, {
		actions: []string{"ecs:ExecuteCommand"}, resources: []*string{k.cluster.ClusterArn()},
	}, {
		// The data channel of an exec session is opened by the caller itself.
		actions: []string{"ssmmessages:OpenDataChannel"},
		resources: []*string{k.stack.FormatArn(&awscdk.ArnComponents{
			Service: new("ssm"), Resource: new("session"), ResourceName: new("ecs-execute-command-*"),
		})},
	}}
}

func (k *Keeper) checkpointGrants() []grant {
	objects := k.bucket.ArnForObjects(join("*/", names.ThreadsPrefix, "/*"))
	return append(slices.Concat(k.execs(), k.assumes()), grant{
		// DeleteItem is for checkpoints, their names and pins; the item of a thread, which
		// carries its fence, is deleted by no code.
		actions: []string{
			"dynamodb:ConditionCheckItem", "dynamodb:DeleteItem", "dynamodb:GetItem", "dynamodb:PutItem",
			"dynamodb:Query", "dynamodb:UpdateItem",
		},
		resources: []*string{k.checkpoints.TableArn()},
	}, grant{
		// Of sandboxes, the instance records alone: it holds their exec sessions.
		actions: []string{"dynamodb:UpdateItem"}, resources: []*string{k.sandboxes.TableArn()},
		conditions: k.instanceRecords(),
	}, grant{
		// Sandboxes and the operator's settings; the holds of a thread's runs.
		actions: []string{"dynamodb:GetItem"}, resources: []*string{k.sandboxes.TableArn(), k.runs.TableArn()},
	}, grant{
		actions: []string{"dynamodb:Query"}, resources: []*string{indexARN(k.runs, names.ThreadIndex)},
	}, grant{
		// What a grant lets a sandbox do is also the function's own to do. Versions are
		// deleted, never hidden, and of threads alone.
		actions:   []string{"s3:DeleteObjectVersion", "s3:GetObject", "s3:GetObjectVersion", "s3:PutObject"},
		resources: []*string{objects},
	}, grant{
		// Without it S3 answers "denied" for "not there". A look at one object names no
		// prefix, so no condition on prefixes could be met.
		actions: []string{"s3:ListBucket", "s3:ListBucketVersions"}, resources: []*string{k.bucket.BucketArn()},
	}, grant{
		actions: []string{"sqs:SendMessage"}, resources: []*string{k.jobs.QueueArn()},
	}, grant{
		// Its own URL, and its own time where that of one invocation is too short. By name:
		// the function's ARN would make a circle of function and role.
		actions:   []string{"lambda:GetFunctionUrlConfig", "lambda:InvokeFunction"},
		resources: []*string{k.functionNamed(deployedName(k.props, names.Checkpoint))},
	})
}

func (k *Keeper) reclaimGrants(checkpoint awslambda.Function) []grant {
	return append(slices.Concat(k.invokesHost(), k.assumes()), []grant{{
		actions: []string{"lambda:InvokeFunction"}, resources: []*string{checkpoint.FunctionArn()},
	}, {
		// The writer lease of the thread whose workspace is owed.
		actions:   []string{"dynamodb:GetItem", "dynamodb:UpdateItem"},
		resources: []*string{k.checkpoints.TableArn()},
	}, {
		actions:   []string{"dynamodb:ConditionCheckItem", "dynamodb:GetItem", "dynamodb:UpdateItem"},
		resources: []*string{k.runs.TableArn()},
	}, {
		actions:   []string{"dynamodb:ConditionCheckItem", "dynamodb:GetItem", "dynamodb:UpdateItem"},
		resources: []*string{k.sandboxes.TableArn()},
	}, {
		// Instance records only: ledger rows, settings and audit entries are never deleted.
		actions: []string{"dynamodb:DeleteItem"}, resources: []*string{k.sandboxes.TableArn()},
		conditions: k.instanceRecords(),
	}, {
		actions: []string{"ecs:DescribeTasks"}, resources: []*string{k.tasks()}, conditions: k.ownCluster(),
	}, {
		actions: []string{"ecs:StopTask"}, resources: []*string{k.tasks()}, conditions: k.tagged(),
	}, consumes(k.jobs), k.announces()}...)
}

// instanceRecords keeps a grant on the sandboxes table to them.
func (k *Keeper) instanceRecords() map[string]any {
	return map[string]any{"ForAllValues:StringLike": map[string]any{"dynamodb:LeadingKeys": []string{names.SandboxKeys + "*"}}}
}

// secretARN is what may be listed: never a pattern.
var secretARN = regexp.MustCompile(`^arn:aws[a-z-]*:(secretsmanager:[a-z0-9-]+:[0-9]{12}:secret:|ssm:[a-z0-9-]+:[0-9]{12}:parameter/)[A-Za-z0-9/_+=.@-]{1,512}$`)

// listed reads a list of ARNs between commas. It panics, and so fails the synthesis, for
// anything else.
func listed(name, given string, want *regexp.Regexp) []*string {
	var all []*string
	for text := range strings.SplitSeq(given, ",") {
		if text = strings.TrimSpace(text); text == "" && given == "" {
			continue
		}
		if !want.MatchString(text) {
			panic(fmt.Errorf("context %s: want ARNs between commas, got %q", name, text))
		}
		all = append(all, &text)
	}
	return all
}

// readsSecrets is reading the values that definitions name, those alone that are listed.
func (k *Keeper) readsSecrets() []grant {
	by := map[string][]*string{}
	for _, arn := range listed("secretArns", k.props.SecretARNs, secretARN) {
		action := "ssm:GetParameter"
		if strings.Contains(*arn, ":secretsmanager:") {
			action = "secretsmanager:GetSecretValue"
		}
		by[action] = append(by[action], arn)
	}
	var out []grant
	for _, action := range slices.Sorted(maps.Keys(by)) {
		out = append(out, grant{actions: []string{action}, resources: by[action]})
	}
	return out
}

// spooled is to read what sandboxes have spooled, found by listing under a run's prefix.
func (k *Keeper) spooled() []grant {
	return []grant{{
		actions: []string{"s3:ListBucket"}, resources: []*string{k.bucket.BucketArn()},
		conditions: map[string]any{"StringLike": map[string]any{"s3:prefix": "*/" + names.SpoolPrefix + "/*"}},
	}, {
		actions: []string{"s3:GetObject"}, resources: []*string{k.bucket.ArnForObjects(join("*/", names.SpoolPrefix, "/*"))},
	}}
}

func (k *Keeper) sessionGrants(checkpoint awslambda.Function) []grant {
	return append(slices.Concat(k.execs(), k.assumes(), k.invokesHost(), k.spooled(), k.readsSecrets()), grant{
		// Where agents reach the tools.
		actions: []string{"lambda:GetFunctionUrlConfig"}, resources: []*string{k.functionNamed(deployedName(k.props, names.Tools))},
	}, grant{
		actions:   []string{"dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:UpdateItem"},
		resources: []*string{k.runs.TableArn(), k.sandboxes.TableArn()},
	}, grant{
		// A run's log, and the runs of a thread.
		actions: []string{"dynamodb:Query"}, resources: []*string{k.runs.TableArn(), indexARN(k.runs, names.ThreadIndex)},
	}, grant{
		// Instance records only, of sandboxes that are replaced.
		actions: []string{"dynamodb:DeleteItem"}, resources: []*string{k.sandboxes.TableArn()},
		conditions: k.instanceRecords(),
	}, grant{
		actions: []string{"dynamodb:GetItem", "dynamodb:UpdateItem"}, resources: []*string{k.checkpoints.TableArn()},
	}, grant{
		actions:   []string{"s3:GetObject", "s3:GetObjectVersion", "s3:PutObject", "s3:PutObjectTagging"},
		resources: []*string{k.bucket.ArnForObjects(join("*/", names.LogsPrefix, "/*"))},
	}, grant{
		actions: []string{"ecs:DescribeTasks"}, resources: []*string{k.tasks()}, conditions: k.ownCluster(),
	}, grant{
		// Without families, definitions name any task definition; the condition keeps its
		// tasks to the cluster.
		actions: []string{"ecs:RunTask"}, resources: k.definitions(), conditions: k.ownCluster(),
	}, grant{
		actions: []string{"ecs:TagResource"}, resources: []*string{k.tasks()},
		conditions: map[string]any{"StringEquals": map[string]any{"ecs:CreateAction": "RunTask"}},
	}, grant{
		// The sample's role. Who adds task definitions with others lets session pass those.
		actions: []string{"iam:PassRole"}, resources: append([]*string{k.sandboxRole.RoleArn()}, *texts(k.props.TaskRoles)...),
		conditions: map[string]any{"StringEquals": map[string]any{"iam:PassedToService": "ecs-tasks.amazonaws.com"}},
	}, grant{
		actions: []string{"lambda:InvokeFunction"}, resources: []*string{checkpoint.FunctionArn()},
	}, grant{
		actions: []string{"sqs:SendMessage"}, resources: []*string{k.jobs.QueueArn()},
	}, k.announces())
}

// buries is putting what failed where an operator finds it.
func (k *Keeper) buries() grant {
	return grant{actions: []string{"sqs:SendMessage"}, resources: []*string{k.events.QueueArn()}}
}

// consumes is what Lambda's poller does in the name of the function.
func consumes(q queue) grant {
	return grant{
		actions: []string{
			"sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage",
		},
		resources: []*string{q.QueueArn()},
	}
}

// busName is how EventBridge spells the name of a bus; an ARN is none.
var busName = regexp.MustCompile(`^[A-Za-z0-9._/-]+$`)

// bus is the bus for outbound events. It panics, and so fails the synthesis, for what
// is no name: reap would be refused there, and nobody would hear anything.
func (k *Keeper) bus() *string {
	if !busName.MatchString(k.props.EventBus) {
		panic(fmt.Errorf("context eventBus: want the name of a bus, got %q", k.props.EventBus))
	}
	return k.stack.FormatArn(&awscdk.ArnComponents{
		Service: new("events"), Resource: new("event-bus"), ResourceName: &k.props.EventBus,
	})
}

// tasks is every task of the installation's cluster.
func (k *Keeper) tasks() *string {
	return k.stack.FormatArn(&awscdk.ArnComponents{
		Service: new("ecs"), Resource: new("task"),
		ResourceName: join(*k.cluster.ClusterName(), "/*"),
	})
}

func (k *Keeper) ownCluster() map[string]any {
	return map[string]any{"ArnEquals": map[string]any{"ecs:cluster": k.cluster.ClusterArn()}}
}
