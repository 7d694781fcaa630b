package sandkeeper

import (
	"errors"
	"fmt"
	"slices"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsecs"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// Function is one of the installation's functions by its short name, as "session". It
// panics for another.
func (k *Keeper) Function(name string) awslambda.Function {
	f, ok := k.functions[names.Function(name)]
	if !ok {
		panic(fmt.Errorf("function %q: want one of %v", name, names.Functions))
	}
	return f
}

// Cluster is where sandboxes run.
func (k *Keeper) Cluster() awsecs.ICluster { return k.cluster }

// GrantHost lets somebody run agents: invoke session, which acts for the tenants that are
// bound to it.
func (k *Keeper) GrantHost(to awsiam.IGrantable) awsiam.Grant {
	return k.functions[names.Session].GrantInvoke(to)
}

// GrantOperator lets somebody use the operator's tool: see everything, hold, end and
// freeze. Who has it can run scripts in every sandbox, by way of probe.
func (k *Keeper) GrantOperator(to awsiam.IGrantable) {
	for _, g := range k.operatorGrants() {
		statement := statementOf(g)
		if !*to.GrantPrincipal().AddToPrincipalPolicy(statement).StatementAdded {
			panic(errors.New("grant operator: want a principal that takes statements, got one from elsewhere"))
		}
	}
}

func (k *Keeper) operatorGrants() []grant {
	stack := k.stack.FormatArn(&awscdk.ArnComponents{Service: new("cloudformation"), Resource: new("stack"), ResourceName: join(*k.stack.StackName(), "/*")})
	return append(slices.Concat(k.ciphers(), k.assumes(), k.examines()), grant{
		actions: []string{"cloudformation:DescribeStacks"}, resources: []*string{stack},
	}, grant{
		actions:   []string{"dynamodb:BatchGetItem", "dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:Query", "dynamodb:Scan", "dynamodb:UpdateItem"},
		resources: []*string{k.runs.TableArn(), k.sandboxes.TableArn(), join(*k.runs.TableArn(), "/index/*"), join(*k.sandboxes.TableArn(), "/index/*")},
	}, grant{
		actions: []string{"dynamodb:GetItem", "dynamodb:Query"}, resources: []*string{k.checkpoints.TableArn()},
	}, grant{
		actions: []string{"lambda:InvokeFunction"}, resources: []*string{
			k.functions[names.Reap].FunctionArn(), k.functions[names.Probe].FunctionArn(), k.functions[names.Checkpoint].FunctionArn(),
		},
	}, grant{
		actions: []string{"ecs:DescribeTasks"}, resources: []*string{k.tasks()}, conditions: k.ownCluster(),
	}, grant{
		// ListTasks takes no task as resource; the condition keeps it to the cluster.
		actions: []string{"ecs:ListTasks"}, resources: []*string{new("*")}, conditions: k.ownCluster(),
	}, grant{
		actions:   []string{"s3:GetObject", "s3:GetObjectVersion"},
		resources: []*string{k.bucket.ArnForObjects(join("*/", names.LogsPrefix, "/*")), k.bucket.ArnForObjects(join("*/", names.ThreadsPrefix, "/*"))},
	}, grant{
		actions:   []string{"sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"},
		resources: []*string{k.jobs.dead.QueueArn(), k.shards.dead.QueueArn(), k.events.QueueArn()},
	}, grant{
		actions: []string{"sqs:SendMessage"}, resources: []*string{k.jobs.QueueArn(), k.shards.QueueArn()},
	})
}

// examines is what the tool's doctor asks beside what other commands do. It changes
// nothing.
func (k *Keeper) examines() []grant {
	var functions, roles, schedules []*string
	for _, f := range names.Functions {
		functions = append(functions, k.functions[f].FunctionArn())
		roles = append(roles, k.functions[f].Role().RoleArn())
	}
	for _, last := range names.Schedules {
		schedules = append(schedules, k.stack.FormatArn(&awscdk.ArnComponents{Service: new("scheduler"), Resource: new("schedule"), ResourceName: join("default/", k.props.Install, "-", last)}))
	}
	quota := func(service string) *string {
		return k.stack.FormatArn(&awscdk.ArnComponents{Service: new("servicequotas"), Resource: &service, ResourceName: new("*")})
	}
	return []grant{{
		actions:   []string{"dynamodb:DescribeContinuousBackups", "dynamodb:DescribeTable"},
		resources: []*string{k.runs.TableArn(), k.sandboxes.TableArn(), k.checkpoints.TableArn()},
	}, {
		actions: []string{"s3:GetBucketVersioning"}, resources: []*string{k.bucket.BucketArn()},
	}, {
		actions: []string{"lambda:GetFunctionConcurrency", "lambda:GetFunctionConfiguration"}, resources: functions,
	}, {
		// These know no resource.
		actions: []string{"ecs:DescribeTaskDefinition", "lambda:ListEventSourceMappings"}, resources: []*string{new("*")},
	}, {
		actions: []string{"scheduler:GetSchedule"}, resources: schedules,
	}, {
		actions: []string{"sqs:GetQueueAttributes"}, resources: []*string{k.jobs.QueueArn(), k.shards.QueueArn()},
	}, {
		actions: []string{"iam:SimulatePrincipalPolicy"}, resources: append(roles, k.scheduleRole.RoleArn(), k.sandboxRole.RoleArn()),
	}, {
		actions: []string{"servicequotas:GetServiceQuota"}, resources: []*string{quota("fargate"), quota("lambda")},
	}}
}

// localOperator is a role with the grants of an operator, for the tests of the local
// variant alone: who operates an installation is its owner's to say.
func (k *Keeper) localOperator() {
	policy := awsiam.NewPolicyDocument(nil)
	for _, g := range k.operatorGrants() {
		policy.AddStatements(statementOf(g))
	}
	awsiam.NewRole(k.Construct, new("operator-role"), &awsiam.RoleProps{
		AssumedBy: awsiam.NewAccountRootPrincipal(), InlinePolicies: &map[string]awsiam.PolicyDocument{"own": policy},
	})
}
