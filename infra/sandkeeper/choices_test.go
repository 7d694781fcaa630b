package sandkeeper

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

const (
	aKey      = "arn:aws:kms:eu-west-1:000000000000:key/11111111-2222-3333-4444-555555555555"
	aBoundary = "arn:aws:iam::000000000000:policy/bound"
	aRole     = "arn:aws:iam::000000000000:role/agents"
)

// TestEveryChoiceIsInTheTemplate: each prop, its effect, and where there could be several
// that it is everywhere.
func TestEveryChoiceIsInTheTemplate(t *testing.T) {
	of := chosen(t, map[string]any{
		"install": "staging", "vpc": "vpc-1", "subnets": "subnet-1, subnet-2", "securityGroup": "sg-1", "cluster": "theirs",
		"taskFamilies": "coder,tester", "taskRoles": aRole, "taskTags": "team=agents", "scheduleMinutes": "2",
		"runTTL": "36h", "idleTTL": "5m", "retention": "7d", "breakerMost": 3, "permissionsBoundary": aBoundary,
		"logDays": 90, "logClass": "infrequent", "monitoring": false, "tracing": true, "removal": "destroy", "tags": "cost=ai,owner=platform",
	})
	for _, check := range []struct {
		prop  string
		check func(t *testing.T)
	}{
		{"vpc, subnets, securityGroup", func(t *testing.T) { theirNetwork(t, of) }},
		{"cluster", func(t *testing.T) { theirCluster(t, of) }},
		{"taskFamilies, taskRoles, taskTags", func(t *testing.T) { theirTasks(t, of) }},
		{"scheduleMinutes", func(t *testing.T) {
			same(t, "rate", of.one(t, "AWS::Scheduler::Schedule", names.TickSchedule).Properties["ScheduleExpression"], "rate(2 minutes)")
		}},
		{"limits", func(t *testing.T) { theirLimits(t, of) }},
		{"permissionsBoundary", func(t *testing.T) {
			for id, r := range of.all(t, "AWS::IAM::Role") {
				same(t, id, r.Properties["PermissionsBoundary"], aBoundary)
			}
		}},
		{"logDays, logClass", func(t *testing.T) {
			for id, r := range of.all(t, "AWS::Logs::LogGroup") {
				same(t, id+" retention", r.Properties["RetentionInDays"], 90)
				same(t, id+" class", r.Properties["LogGroupClass"], "INFREQUENT_ACCESS")
			}
		}},
		{"tracing", func(t *testing.T) {
			for id, r := range of.all(t, "AWS::Lambda::Function") {
				same(t, id, at(r.Properties, "TracingConfig", "Mode"), "Active")
			}
			mayNow(t, of, "reap-role", "xray:PutTraceSegments *")
		}},
		{"removal", func(t *testing.T) {
			for _, kind := range []string{"AWS::DynamoDB::GlobalTable", "AWS::S3::Bucket"} {
				for id, r := range of.all(t, kind) {
					same(t, id, r.DeletionPolicy, "Delete")
				}
			}
		}},
		{"tags", func(t *testing.T) { theirTags(t, of) }},
	} {
		t.Run(check.prop, check.check)
	}
}

func theirNetwork(t *testing.T, of template) {
	same(t, "subnets", at(of.Outputs[string(names.OutSubnets)], "Value"), "subnet-1,subnet-2")
	same(t, "group", at(of.Outputs[string(names.OutSecurityGroup)], "Value"), "sg-1")
	for id, r := range of.Resources {
		if strings.HasPrefix(r.Type, "AWS::EC2::") {
			t.Errorf("%s: the stack makes a %s although a network is there", id, r.Type)
		}
	}
}

func theirCluster(t *testing.T, of template) {
	const cluster = "arn:AWS::Partition:ecs:AWS::Region:AWS::AccountId:cluster/theirs"
	same(t, "cluster", flat(at(of.Outputs[string(names.OutCluster)], "Value")), cluster)
	for id, r := range of.Resources {
		if r.Type == "AWS::ECS::Cluster" {
			t.Errorf("%s: the stack makes a cluster although one is there", id)
		}
	}
	for _, rule := range of.all(t, "AWS::Events::Rule") {
		same(t, "tasks heard of", flat(at(rule.Properties, "EventPattern", "detail", "clusterArn")), cluster)
	}
	mayNow(t, of, "reap-role", "ecs:ListTasks * if ArnEquals ecs:cluster "+cluster)
}

func theirTasks(t *testing.T, of template) {
	for _, rule := range of.all(t, "AWS::Events::Rule") {
		same(t, "tasks heard of", at(rule.Properties, "EventPattern", "detail", "group"), []string{"family:staging-sandbox", "family:coder", "family:tester"})
	}
	const definition = "arn:AWS::Partition:ecs:AWS::Region:AWS::AccountId:task-definition/"
	starts := mayNow(t, of, "session-role", "iam:PassRole "+aRole+" if StringEquals iam:PassedToService ecs-tasks.amazonaws.com")
	starts = slices.DeleteFunc(starts, func(line string) bool { return !strings.HasPrefix(line, "ecs:RunTask ") })
	if len(starts) != 3 {
		t.Errorf("session starts %q", starts)
	}
	for i, family := range []string{"staging-sandbox", "coder", "tester"} {
		if !strings.HasPrefix(starts[i], "ecs:RunTask "+definition+family+":* if ") {
			t.Errorf("session starts %s, want %s", starts[i], family)
		}
	}
	const tagged = "arn:AWS::Partition:ecs:AWS::Region:AWS::AccountId:task/theirs/* if StringEquals aws:ResourceTag/team agents"
	mayNow(t, of, "reclaim-role", "ecs:StopTask "+tagged)
	mayNow(t, of, "probe-role", "ecs:ExecuteCommand "+tagged)
	// One foreign task without the tag would refuse a whole batch of descriptions.
	for _, role := range []string{"reap-role", "reclaim-role", "session-role"} {
		mayNow(t, of, role, "ecs:DescribeTasks arn:AWS::Partition:ecs:AWS::Region:AWS::AccountId:task/theirs/* if ArnEquals ecs:cluster arn:AWS::Partition:ecs:AWS::Region:AWS::AccountId:cluster/theirs")
	}
	sample := of.one(t, "AWS::ECS::TaskDefinition", names.SandboxFamily)
	if !slices.Contains(tagsOf(sample), "team=agents") {
		t.Errorf("the sample has the tags %q", tagsOf(sample))
	}
}

func theirLimits(t *testing.T, of template) {
	const want = `{"breakerMost":3,"idleTTL":"5m","retention":"7d","runTTL":"36h"}`
	for _, f := range names.Functions {
		if slices.Contains(names.Env[f], names.Limits) {
			env := at(of.one(t, "AWS::Lambda::Function", string(f)).Properties, "Environment", "Variables")
			same(t, string(f), at(env, string(names.Limits)), want)
		}
	}
	same(t, "output", at(of.Outputs[string(names.OutLimits)], "Value"), want)
	rules := at(of.one(t, "AWS::S3::Bucket", "logs").Properties, "LifecycleConfiguration", "Rules").([]any)
	kept := slices.ContainsFunc(rules, func(rule any) bool {
		return at(rule, "ExpirationInDays") == 7+names.ObjectsOutlive.Hours()/24
	})
	if !kept {
		t.Errorf("no rule lets logs go with their records: %v", rules)
	}
}

// TestAKeyEncryptsAllThatIsKept: and every role of a function may use it by way of the
// services that keep it.
func TestAKeyEncryptsAllThatIsKept(t *testing.T) {
	of := chosen(t, map[string]any{"key": aKey})
	for id, r := range of.all(t, "AWS::DynamoDB::GlobalTable") {
		same(t, id, at(r.Properties["Replicas"].([]any)[0], "SSESpecification", "KMSMasterKeyId"), aKey)
	}
	for id, r := range of.all(t, "AWS::S3::Bucket") {
		rule := at(r.Properties, "BucketEncryption", "ServerSideEncryptionConfiguration").([]any)[0]
		same(t, id, at(rule, "ServerSideEncryptionByDefault", "KMSMasterKeyID"), aKey)
		same(t, id+" bucket key", at(rule, "BucketKeyEnabled"), true)
	}
	for id, r := range of.all(t, "AWS::SQS::Queue") {
		same(t, id, r.Properties["KmsMasterKeyId"], aKey)
	}
	for id, r := range of.all(t, "AWS::Logs::LogGroup") {
		same(t, id, r.Properties["KmsKeyId"], aKey)
	}
	for name := range ships {
		if name == "sandbox-role" {
			continue
		}
		mayNow(t, of, name, "kms:Decrypt "+aKey+" if StringEquals kms:ViaService dynamodb.eu-west-1.AWS::URLSuffix,s3.eu-west-1.AWS::URLSuffix,sqs.eu-west-1.AWS::URLSuffix")
	}
}

// theirTags looks at what CloudFormation can tag: table, bucket, queues, functions, roles.
func theirTags(t *testing.T, of template) {
	for _, kind := range []string{"AWS::S3::Bucket", "AWS::SQS::Queue", "AWS::Lambda::Function", "AWS::IAM::Role", "AWS::ECS::TaskDefinition", "AWS::Logs::LogGroup"} {
		for id, r := range of.all(t, kind) {
			for _, tag := range []string{"cost=ai", "owner=platform"} {
				if !slices.Contains(tagsOf(r), tag) {
					t.Errorf("%s %s has the tags %q", kind, id, tagsOf(r))
				}
			}
		}
	}
}

func tagsOf(r resource) []string {
	tags, _ := r.Properties["Tags"].([]any)
	var out []string
	for _, tag := range tags {
		out = append(out, flat(at(tag, "Key"))+"="+flat(at(tag, "Value")))
	}
	return out
}

// mayNow fails if a role of a template may not do something, and returns all that it may.
func mayNow(t *testing.T, of template, role, line string) []string {
	t.Helper()
	may := grants(t, of.one(t, "AWS::IAM::Role", role))
	if !slices.Contains(may, line) {
		t.Errorf("%s may not %s, but %q", role, line, may)
	}
	return may
}

func TestChoicesThatCannotBeAreRefused(t *testing.T) {
	for want, context := range map[string]map[string]any{
		"scheduleMinutes: want at most 3, got 4":                                  {"scheduleMinutes": 4},
		`scheduleMinutes: want a whole number of at least 1, got "often"`:         {"scheduleMinutes": "often"},
		"vpc and subnets: want both or neither":                                   {"vpc": "vpc-1"},
		"securityGroup: want vpc and subnets with it":                             {"securityGroup": "sg-1"},
		"logClass: CloudWatch makes no metrics from infrequent logs":              {"logClass": "infrequent"},
		`logClass: want standard or infrequent, got "cheap"`:                      {"logClass": "cheap"},
		`removal: want retain or destroy, got "yes"`:                              {"removal": "yes"},
		"taskRoles: want taskFamilies with them":                                  {"taskRoles": aRole},
		`tags: want key=value between commas, got "team"`:                         {"tags": "team"},
		`tracing: want true or false, got "maybe"`:                                {"tracing": "maybe"},
		`idleBurnUSD: want a number above 0, got "-1"`:                            {"idleBurnUSD": "-1"},
		`runTTL: want a duration as "90m", "36h" or "7d", at most 3650d, got "8"`: {"runTTL": 8},
		"logDays: want one of [1 3 5 7 14 30 60 90 180 365 731 1827], got 31":     {"logDays": 31},
	} {
		t.Run(want, func(t *testing.T) {
			defer func() {
				if said := fmt.Sprint(recover()); !strings.Contains(said, "context") || !strings.Contains(said, want) {
					t.Errorf("said %q", said)
				}
			}()
			app := awscdk.NewApp(&awscdk.AppProps{Outdir: new(t.TempDir()), Context: &context})
			k := &Keeper{props: FromContext(app)}
			k.props.check()
			k.limits()
			k.logRetention()
		})
	}
}

// TestTwoInstallationsStandSideBySide: nothing that one account has only once bears the
// same name in both, and no role of the one reaches what the other has.
func TestTwoInstallationsStandSideBySide(t *testing.T) {
	other := chosen(t, map[string]any{"install": "other"})
	taken := physicalNames(production)
	for name := range physicalNames(other) {
		if taken[name] {
			t.Errorf("both have %s", name)
		}
	}
	if len(taken) < 20 {
		t.Errorf("only %d names: %v", len(taken), slices.Sorted(maps.Keys(taken)))
	}
	for id, r := range other.all(t, "AWS::IAM::Role") {
		for _, line := range grants(t, r) {
			if strings.Contains(line, "keeper-") || strings.Contains(line, "/keeper") {
				t.Errorf("%s of the other may %s", id, line)
			}
		}
	}
	same(t, "metrics", at(other.one(t, "AWS::CloudWatch::Alarm", "alarm-reaper-silent").Properties["Dimensions"].([]any)[0], "Value"), "other")
}

// nameProperties hold the names that an account has only once.
var nameProperties = []string{
	"AlarmName", "BucketName", "ClusterName", "DashboardName", "Family", "FunctionName", "LogGroupName", "Name", "QueueName", "RoleName", "TableName",
}

func physicalNames(of template) map[string]bool {
	out := map[string]bool{}
	for _, r := range of.Resources {
		for _, property := range nameProperties {
			if name, ok := r.Properties[property].(string); ok {
				out[r.Type+" "+name] = true
			}
		}
	}
	return out
}
