package sandkeeper

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsdynamodb"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsec2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsecs"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/aws-cdk-go/awscdk/v2/awskms"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslogs"
	"github.com/aws/aws-cdk-go/awscdk/v2/awss3"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssqs"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// What the choices of [Props] mean. Each panics, and so fails the synthesis, for what
// cannot be.

// mostMinutes between two sweeps: what is seen once by each of two sweeps counts as one
// stretch only if they are no further apart than core.Limits.NoteGap.
const mostMinutes = 3

// installName is what all of an installation's names may begin with: the stack's knows the
// fewest characters. Names of functions and schedules have 64 characters at most, and the
// longest of them is the installation's with that of checkpoint.
var installName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]*$`)

const mostInstall = 64 - len("-"+names.Checkpoint)

// runbook is the page in this repository; nobody knows where a reader's copy is.
const runbook = "docs/runbook.md"

// read reads every choice that has a form of its own, so that one that cannot be is refused
// before anything is made.
func (k *Keeper) read() {
	k.limits()
	k.logRetention()
	k.tenants()
	k.hostFunctions()
	listed("secretArns", k.props.SecretARNs, secretARN)
	concurrency("checkpointConcurrency", k.props.CheckpointConcurrency)
	concurrency("toolsConcurrency", k.props.ToolsConcurrency)
	k.keepCheckpoints()
	number("threadRetention", k.props.ThreadRetention)
	number("sandboxesPerTenant", k.props.SandboxesPerTenant)
	if k.props.Key != "" {
		homeOf(k.props.Key)
	}
}

// limits are the installation's, and the text from which the functions read them.
func (k *Keeper) limits() (core.Limits, *string) {
	chosen := k.props.Limits
	if chosen == nil {
		chosen = map[string]any{}
	}
	text, err := json.Marshal(chosen)
	if err != nil {
		panic(fmt.Errorf("limits: %w", err))
	}
	limits, err := core.ReadLimits(string(text))
	if err != nil {
		panic(fmt.Errorf("context: %w", err))
	}
	return limits, new(string(text))
}

// limitsText is what the functions read.
func (k *Keeper) limitsText() *string {
	_, text := k.limits()
	return text
}

// everywhere is what holds for all resources at once.
func (k *Keeper) everywhere() {
	for _, name := range slices.Sorted(maps.Keys(k.props.Tags)) {
		awscdk.Tags_Of(k.Construct).Add(&name, new(k.props.Tags[name]), nil)
	}
	if k.props.PermissionsBoundary != "" {
		bound := awsiam.ManagedPolicy_FromManagedPolicyArn(k.Construct, new("boundary"), &k.props.PermissionsBoundary)
		awsiam.PermissionsBoundary_Of(k.Construct).Apply(bound)
	}
	if k.props.Key != "" {
		k.key = awskms.Key_FromKeyArn(k.Construct, new("key"), &k.props.Key)
	}
}

// removal is what becomes of what must outlive the stack, when it goes.
func (k *Keeper) removal() awscdk.RemovalPolicy {
	if k.props.Destroy {
		return awscdk.RemovalPolicy_DESTROY
	}
	return awscdk.RemovalPolicy_RETAIN
}

// tableKey is how tables are encrypted; nil: by DynamoDB's own key.
func (k *Keeper) tableKey() awsdynamodb.TableEncryptionV2 {
	if k.key == nil {
		return nil
	}
	return awsdynamodb.TableEncryptionV2_CustomerManagedKey(k.key, nil)
}

// encryptBucket has objects encrypted by the chosen key, or by S3's own. A bucket key
// spares a call to KMS for each object.
func (k *Keeper) encryptBucket(props *awss3.BucketProps) {
	props.Encryption = awss3.BucketEncryption_S3_MANAGED
	if k.key != nil {
		props.Encryption, props.EncryptionKey, props.BucketKeyEnabled = awss3.BucketEncryption_KMS, k.key, new(true)
	}
}

func (k *Keeper) encryptQueue(props *awssqs.QueueProps) {
	if k.key != nil {
		props.Encryption, props.EncryptionMasterKey = awssqs.QueueEncryption_KMS, k.key
	}
}

// keyARN is how a key is named.
var keyARN = regexp.MustCompile(`^arn:aws[a-z-]*:kms:([a-z0-9-]+):([0-9]{12}):key/[A-Za-z0-9-]+$`)

// homeOf is where a key is: CDK encrypts tables by one only in a stack that knows its
// Region.
func homeOf(key string) *awscdk.Environment {
	parts := keyARN.FindStringSubmatch(key)
	if parts == nil {
		panic(fmt.Errorf("context key: want the ARN of a KMS key, got %q", key))
	}
	return &awscdk.Environment{Region: &parts[1], Account: &parts[2]}
}

// ciphers is what reading and writing under the chosen key takes, by way of the services
// that keep what is ours, and of no other.
func (k *Keeper) ciphers() []grant {
	if k.key == nil {
		return nil
	}
	via := []*string{}
	for _, service := range []string{"dynamodb", "s3", "sqs"} {
		via = append(via, join(service, ".", *k.stack.Region(), ".", *k.stack.UrlSuffix()))
	}
	return []grant{{
		actions:    []string{"kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey", "kms:ReEncryptFrom", "kms:ReEncryptTo"},
		resources:  []*string{k.key.KeyArn()},
		conditions: map[string]any{"StringEquals": map[string]any{"kms:ViaService": via}},
	}}
}

// traces is what X-Ray takes; its actions know no resource.
func (k *Keeper) traces() []grant {
	if !k.props.Tracing {
		return nil
	}
	return []grant{{actions: []string{"xray:PutTelemetryRecords", "xray:PutTraceSegments"}, resources: []*string{new("*")}}}
}

func (k *Keeper) tracing() awslambda.Tracing {
	if k.props.Tracing {
		return awslambda.Tracing_ACTIVE
	}
	return awslambda.Tracing_DISABLED
}

// retentions are those that CloudWatch Logs knows, by days.
var retentions = map[int]awslogs.RetentionDays{
	1: awslogs.RetentionDays_ONE_DAY, 3: awslogs.RetentionDays_THREE_DAYS, 5: awslogs.RetentionDays_FIVE_DAYS, 7: awslogs.RetentionDays_ONE_WEEK,
	14: awslogs.RetentionDays_TWO_WEEKS, 30: awslogs.RetentionDays_ONE_MONTH, 60: awslogs.RetentionDays_TWO_MONTHS, 90: awslogs.RetentionDays_THREE_MONTHS,
	180: awslogs.RetentionDays_SIX_MONTHS, 365: awslogs.RetentionDays_ONE_YEAR, 731: awslogs.RetentionDays_TWO_YEARS, 1827: awslogs.RetentionDays_FIVE_YEARS,
}

func (k *Keeper) logRetention() awslogs.RetentionDays {
	r, ok := retentions[k.props.LogDays]
	if !ok {
		panic(fmt.Errorf("context logDays: want one of %v, got %d", slices.Sorted(maps.Keys(retentions)), k.props.LogDays))
	}
	return r
}

func (k *Keeper) logClass() awslogs.LogGroupClass {
	if k.props.InfrequentLogs {
		return awslogs.LogGroupClass_INFREQUENT_ACCESS
	}
	return awslogs.LogGroupClass_STANDARD
}

// theirNetwork is where sandboxes run in a network that is there.
func (k *Keeper) theirNetwork() (awsec2.IVpc, network) {
	zones := []*string{zone(0), zone(1)}
	vpc := awsec2.Vpc_FromVpcAttributes(k.Construct, new("vpc"), &awsec2.VpcAttributes{VpcId: &k.props.VPC, AvailabilityZones: &zones})
	group := &k.props.SecurityGroup
	if *group == "" {
		group = k.group(vpc).SecurityGroupId()
	}
	return vpc, network{subnets: awscdk.Fn_Join(new(","), texts(k.props.Subnets)), group: group}
}

// group is a security group that lets nothing in.
func (k *Keeper) group(vpc awsec2.IVpc) awsec2.SecurityGroup {
	return awsec2.NewSecurityGroup(k.Construct, new("sandbox-group"), &awsec2.SecurityGroupProps{
		Vpc: vpc, Description: new("Sandboxes: outbound only"),
	})
}

// theirCluster is a cluster that is there.
func (k *Keeper) theirCluster(vpc awsec2.IVpc) awsecs.ICluster {
	return awsecs.Cluster_FromClusterAttributes(k.Construct, new("cluster"), &awsecs.ClusterAttributes{ClusterName: &k.props.Cluster, Vpc: vpc})
}

// families are the task definitions whose tasks the installation starts and hears of, the
// sample's first; nil: any.
func (k *Keeper) families() []string {
	if len(k.props.TaskFamilies) == 0 {
		return nil
	}
	return append([]string{k.sampleFamily()}, k.props.TaskFamilies...)
}

// definitions are what RunTask may start.
func (k *Keeper) definitions() []*string {
	patterns := []string{"*"}
	if families := k.families(); families != nil {
		patterns = nil
		for _, f := range families {
			patterns = append(patterns, f+":*")
		}
	}
	var out []*string
	for _, name := range patterns {
		out = append(out, k.stack.FormatArn(&awscdk.ArnComponents{Service: new("ecs"), Resource: new("task-definition"), ResourceName: &name}))
	}
	return out
}

// tagged are the conditions of what is done to a task.
func (k *Keeper) tagged() map[string]any {
	return tagConditions(k.props.TaskTags)
}

// chosenText tells the operator's tool what was chosen of what roles hold.
func (k *Keeper) chosenText() *string {
	c := names.Chosen{TaskTags: k.props.TaskTags, Key: k.props.Key, AlarmTopic: k.props.AlarmTopic}
	for _, f := range k.hostFunctions() {
		if f != names.None {
			c.HostFunctions = append(c.HostFunctions, f)
		}
	}
	for _, arn := range listed("secretArns", k.props.SecretARNs, secretARN) {
		c.SecretARNs = append(c.SecretARNs, *arn)
	}
	text, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Errorf("context: %w", err))
	}
	return new(string(text))
}

// keep guards the choices of which a forgotten one would change the stack at its next deploy:
// another network or cluster for sandboxes, another key for what is stored. Each is a
// parameter whose default is the choice and which a deploy leaves at the value of the one
// before, and a rule by which CloudFormation refuses a template whose choice is another.
func (p Props) keep(stack awscdk.Stack) {
	for _, c := range []struct{ parameter, key, value string }{
		{"KeptVpc", "vpc", p.VPC}, {"KeptCluster", "cluster", p.Cluster}, {"KeptKey", "key", p.Key},
	} {
		chosen := cmp.Or(c.value, "none")
		parameter := awscdk.NewCfnParameter(stack, &c.parameter, &awscdk.CfnParameterProps{
			Default: chosen, Description: new("The choice " + c.key + " of the deploy before; not to be given, except to change it on purpose"),
		})
		awscdk.NewCfnRule(stack, new(c.parameter+"Rule"), &awscdk.CfnRuleProps{Assertions: &[]*awscdk.CfnRuleAssertion{{
			Assert: awscdk.Fn_ConditionEquals(parameter.ValueAsString(), chosen),
			AssertDescription: new("This template was made with another choice of " + c.key + " than the stack has. Make it with the choices of that deploy, or change it on purpose: give the parameter " +
				c.parameter + " the value " + chosen),
		}}})
	}
}
