package sandkeeper

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// choiceTests are of each choice its effect, and where there could be several that it is
// everywhere. of has what does without monitoring, and rung what wants it, or a key.
var choiceTests = []struct {
	keys  string // between spaces
	check func(t *testing.T, of, rung template)
}{
	{"install", func(t *testing.T, of, _ template) {
		for _, f := range names.Functions {
			same(t, "name", of.one(t, "AWS::Lambda::Function", string(f)).Properties["FunctionName"], "staging-"+string(f))
		}
		same(t, "told", at(of.Outputs[string(names.OutInstall)], "Value"), "staging")
	}},
	{"vpc subnets securityGroup", func(t *testing.T, of, _ template) { theirNetwork(t, of) }},
	{"cluster", func(t *testing.T, of, _ template) { theirCluster(t, of) }},
	{"taskFamilies taskRoles taskTags", func(t *testing.T, of, _ template) { theirTasks(t, of) }},
	{"sandboxImage", func(t *testing.T, of, _ template) {
		sample := of.one(t, "AWS::ECS::TaskDefinition", names.SandboxFamily)
		same(t, "image", at(sample.Properties["ContainerDefinitions"].([]any)[0], "Image"), "registry.example/coder:1")
	}},
	{"scheduleMinutes", func(t *testing.T, of, _ template) {
		same(t, "rate", of.one(t, "AWS::Scheduler::Schedule", names.TickSchedule).Properties["ScheduleExpression"], "rate(2 minutes)")
	}},
	{"runTTL pauseTTL idleTTL retention checkpointHold breakerMost breakerWindow expiringBefore runSpendCap tenantSpendCap", func(t *testing.T, of, _ template) { theirLimits(t, of) }},
	{"mode", inEnvironment(names.Mode, names.ModeEnforce)},
	{"onCheckpointFailure", inEnvironment(names.OnFailure, names.FailureRelease)},
	{"leaks", inEnvironment(names.Leaks, names.LeaksStop)},
	{"keepCheckpoints", inEnvironment(names.KeepCheckpoints, "7")},
	{"threadRetention", inEnvironment(names.ThreadRetention, "90")},
	{"sandboxesPerTenant", inEnvironment(names.SandboxesPerTenant, "9")},
	{"tenants", inEnvironment(names.Tenants, `{"acme":["acme"]}`)},
	{"eventBus", func(t *testing.T, of, rung template) {
		inEnvironment(names.EventBus, "theirs")(t, of, rung)
		const bus = "arn:AWS::Partition:events:AWS::Region:AWS::AccountId:event-bus/theirs"
		for _, role := range []string{"reap-role", "reclaim-role", "session-role"} {
			mayNow(t, of, role, "events:PutEvents "+bus+" if StringEquals events:source "+names.SourceOwn)
		}
	}},
	{"hostFunctions", func(t *testing.T, of, rung template) {
		inEnvironment(names.HostFunctions, "search")(t, of, rung)
		mayNow(t, of, "tools-role", "lambda:InvokeFunction arn:AWS::Partition:lambda:AWS::Region:AWS::AccountId:function:search")
	}},
	{"secretArns", func(t *testing.T, of, _ template) {
		mayNow(t, of, "session-role", "secretsmanager:GetSecretValue "+aSecret)
		mayNow(t, of, "session-role", "ssm:GetParameter "+aParameter)
		// Whose roles doctor asks about.
		same(t, "told", at(of.Outputs[string(names.OutChosen)], "Value"),
			`{"taskTags":{"team":"agents"},"hostFunctions":["search"],"secretArns":["`+aSecret+`","`+aParameter+`"]}`)
	}},
	{"checkpointConcurrency toolsConcurrency", func(t *testing.T, of, _ template) {
		same(t, "checkpoint", of.one(t, "AWS::Lambda::Function", string(names.Checkpoint)).Properties["ReservedConcurrentExecutions"], 11)
		same(t, "tools", of.one(t, "AWS::Lambda::Function", string(names.Tools)).Properties["ReservedConcurrentExecutions"], 12)
	}},
	{"permissionsBoundary", func(t *testing.T, of, _ template) {
		for id, r := range of.all(t, "AWS::IAM::Role") {
			same(t, id, r.Properties["PermissionsBoundary"], aBoundary)
		}
	}},
	{"logDays logClass", func(t *testing.T, of, _ template) {
		for id, r := range of.all(t, "AWS::Logs::LogGroup") {
			same(t, id+" retention", r.Properties["RetentionInDays"], 90)
			same(t, id+" class", r.Properties["LogGroupClass"], "INFREQUENT_ACCESS")
		}
	}},
	{"tracing", func(t *testing.T, of, _ template) {
		for id, r := range of.all(t, "AWS::Lambda::Function") {
			same(t, id, at(r.Properties, "TracingConfig", "Mode"), "Active")
		}
		mayNow(t, of, "reap-role", "xray:PutTraceSegments *")
	}},
	{"removal", func(t *testing.T, of, _ template) {
		for _, kind := range []string{"AWS::DynamoDB::GlobalTable", "AWS::S3::Bucket"} {
			for id, r := range of.all(t, kind) {
				same(t, id, r.DeletionPolicy, "Delete")
			}
		}
	}},
	{"tags", func(t *testing.T, of, _ template) { theirTags(t, of) }},
	{"monitoring", func(t *testing.T, of, _ template) {
		for id, r := range of.Resources {
			if strings.HasPrefix(r.Type, "AWS::CloudWatch::") || r.Type == "AWS::Logs::QueryDefinition" {
				t.Errorf("%s: a %s, although none was asked for", id, r.Type)
			}
		}
	}},
	{"spokes", func(t *testing.T, of, _ template) { mayNow(t, of, "reap-role", "sts:AssumeRole "+spokeRoleARN) }},
	{"key", func(t *testing.T, _, rung template) { encrypts(t, rung) }},
	{"alarmTopic runbook idleBurnUSD", func(t *testing.T, _, rung template) {
		for id, a := range rung.all(t, "AWS::CloudWatch::Alarm") {
			same(t, id, a.Properties["AlarmActions"], []string{aTopic})
			if text := flat(a.Properties["AlarmDescription"]); !strings.Contains(text, " "+aRunbook+"#") {
				t.Errorf("%s leads nowhere: %s", id, text)
			}
		}
		// doctor warns where nobody hears.
		same(t, "told", at(rung.Outputs[string(names.OutChosen)], "Value"), `{"key":"`+aKey+`","alarmTopic":"`+aTopic+`"}`)
		same(t, "threshold", rung.one(t, "AWS::CloudWatch::Alarm", "alarm-idle-burn").Properties["Threshold"], 2.5)
	}},
}

const (
	aTopic     = "arn:aws:sns:eu-west-1:000000000000:pager"
	aRunbook   = "https://wiki.example/runbook"
	aSecret    = "arn:aws:secretsmanager:eu-west-1:000000000000:secret:github-a1b2c3"
	aParameter = "arn:aws:ssm:eu-west-1:000000000000:parameter/agents/npm"
)

// inEnvironment wants a value in every function that reads it.
func inEnvironment(key names.Key, want string) func(*testing.T, template, template) {
	return func(t *testing.T, of, _ template) {
		for _, f := range names.Functions {
			if slices.Contains(names.Env[f], key) {
				env := at(of.one(t, "AWS::Lambda::Function", string(f)).Properties, "Environment", "Variables")
				same(t, string(f), at(env, string(key)), want)
			}
		}
	}
}

// TestEveryChoiceIsInTheTemplate: each has its effect, and a test, and a row in
// docs/deploy.md; no row and no test is about what is no choice.
func TestEveryChoiceIsInTheTemplate(t *testing.T) {
	of := chosen(t, map[string]any{
		"install": "staging", "vpc": "vpc-1", "subnets": "subnet-1, subnet-2", "securityGroup": "sg-1", "cluster": "theirs",
		"taskFamilies": "coder,tester", "taskRoles": aRole, "taskTags": "team=agents", "sandboxImage": "registry.example/coder:1", "scheduleMinutes": "2",
		"runTTL": "36h", "pauseTTL": "48h", "idleTTL": "5m", "retention": "7d", "checkpointHold": "1h", "breakerMost": 3, "breakerWindow": "20m", "expiringBefore": "1h", "runSpendCap": "2.5", "tenantSpendCap": 400,
		"mode": names.ModeEnforce, "onCheckpointFailure": names.FailureRelease, "leaks": names.LeaksStop, "keepCheckpoints": 7, "threadRetention": 90, "sandboxesPerTenant": 9, "tenants": `{"acme":["acme"]}`,
		"eventBus": "theirs", "hostFunctions": "search", "secretArns": aSecret + "," + aParameter, "checkpointConcurrency": 11, "toolsConcurrency": 12,
		"permissionsBoundary": aBoundary, "logDays": 90, "logClass": "infrequent", "monitoring": false, "tracing": true, "removal": "destroy",
		"tags": "cost=ai,owner=platform", "spokes": spokesText,
	})
	rung := chosen(t, map[string]any{"key": aKey, "alarmTopic": aTopic, "runbook": aRunbook, "idleBurnUSD": "2.5"})
	var tested []string
	for _, c := range choiceTests {
		t.Run(c.keys, func(t *testing.T) { c.check(t, of, rung) })
		tested = append(tested, strings.Fields(c.keys)...)
	}
	known := choiceKeys(t)
	same(t, "choices with a test", slices.Sorted(slices.Values(tested)), known)
	same(t, "choices with a row in docs/deploy.md", slices.Sorted(slices.Values(choicesInDocs(t))), known)
}

// choiceKeys are what FromContext asks for, but for what the Makefile gives.
func choiceKeys(t *testing.T) []string {
	t.Helper()
	c := reader{awscdk.NewApp(&awscdk.AppProps{Outdir: new(t.TempDir())}), map[string]bool{}}
	c.props()
	for _, key := range []string{"dist", "bundle", "local"} {
		if !c.keys[key] {
			t.Errorf("nobody asks for %s", key)
		}
		delete(c.keys, key)
	}
	return slices.Sorted(maps.Keys(c.keys))
}

// choicesInDocs are the first column of the table in docs/deploy.md.
func choicesInDocs(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "deploy.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, part, _ := strings.Cut(string(page), "\n## Choices\n")
	part, _, _ = strings.Cut(part, "\n## ")
	var keys []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]+`) \\|").FindAllStringSubmatch(part, -1) {
		for key := range strings.FieldsSeq(row[1]) {
			keys = append(keys, strings.Trim(key, "`"))
		}
	}
	return keys
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
		heard := flat(at(rule.Properties, "EventPattern", "detail", "clusterArn"))
		same(t, "tasks heard of", heard, cluster+",arn:aws:ecs:eu-west-1:111122223333:cluster/agents")
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
	const want = `{"breakerMost":3,"breakerWindow":"20m","checkpointHold":"1h","expiringBefore":"1h","idleTTL":"5m","pauseTTL":"48h","retention":"7d","runSpendCap":2.5,"runTTL":"36h","tenantSpendCap":400}`
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

// encrypts: a key encrypts all that is kept, and every role of a function may use it by
// way of the services that keep it.
func encrypts(t *testing.T, of template) {
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
		"scheduleMinutes: want at most 3, got 4":                                             {"scheduleMinutes": 4},
		`scheduleMinutes: want a whole number of at least 1, got "often"`:                    {"scheduleMinutes": "often"},
		"vpc and subnets: want both or neither":                                              {"vpc": "vpc-1"},
		"securityGroup: want vpc and subnets with it":                                        {"securityGroup": "sg-1"},
		"logClass: CloudWatch makes no metrics from infrequent logs":                         {"logClass": "infrequent"},
		`logClass: want standard or infrequent, got "cheap"`:                                 {"logClass": "cheap"},
		`removal: want retain or destroy, got "yes"`:                                         {"removal": "yes"},
		"taskRoles: want taskFamilies with them":                                             {"taskRoles": aRole},
		`tags: want key=value between commas, got "team"`:                                    {"tags": "team"},
		`tracing: want true or false, got "maybe"`:                                           {"tracing": "maybe"},
		`idleBurnUSD: want a number above 0, got "-1"`:                                       {"idleBurnUSD": "-1"},
		`runTTL: want a duration as "90m", "36h" or "7d", at most 3650d, got "8"`:            {"runTTL": 8},
		`install: want letters, digits and hyphens, a letter first, at most 53, got "pro d"`: {"install": "pro d"},
		`install: want letters, digits and hyphens, a letter first, at most 53, got "a/b"`:   {"install": "a/b"},
		`install: want letters, digits and hyphens, a letter first, at most 53, got "1"`:     {"install": "1"},
		`at most 53, got "` + strings.Repeat("a", 54):                                        {"install": strings.Repeat("a", 54)},
		"alarmTopic: want runbook with it":                                                   {"alarmTopic": aTopic},
		"vcp: no such choice: want one of alarmTopic, breakerMost":                           {"vcp": "vpc-1"},
		`mode: want observe or enforce, got "dry"`:                                           {"mode": "dry"},
		`onCheckpointFailure: want hold or release, got "retry"`:                             {"onCheckpointFailure": "retry"},
		`leaks: want report or stop, got "kill"`:                                             {"leaks": "kill"},
		`install: want text, got true`:                                                       {"install": true},
		`vpc: want text, got 5`:                                                              {"vpc": 5},
		`vpc: want the id of a VPC, as vpc-0abc, got "mine"`:                                 {"vpc": "mine", "subnets": "subnet-1"},
		`subnets: want ids of subnets, as subnet-0abc, got "a"`:                              {"vpc": "vpc-1", "subnets": "subnet-1,a"},
		`securityGroup: want the id of a security group, as sg-0abc, got "default"`:          {"vpc": "vpc-1", "subnets": "subnet-1", "securityGroup": "default"},
		`cluster: want the name of a cluster, no ARN, got "arn:aws:ecs`:                      {"cluster": "arn:aws:ecs:us-east-1:111122223333:cluster/agents"},
		`cluster: want the name of a cluster, no ARN, got "*"`:                               {"cluster": "*"},
		`taskFamilies: want names of families, no ARNs, got "*"`:                             {"taskFamilies": "coder,*"},
		`taskRoles: want ARNs of roles, got "*"`:                                             {"taskFamilies": "coder", "taskRoles": "*"},
		`taskRoles: want ARNs of roles, got "arn:aws:iam::111122223333:role/*"`:              {"taskFamilies": "coder", "taskRoles": "arn:aws:iam::111122223333:role/*"},
		`permissionsBoundary: want the ARN of a managed policy, got "bound"`:                 {"permissionsBoundary": "bound"},
		`alarmTopic: want the ARN of an SNS topic, got "pager"`:                              {"alarmTopic": "pager", "runbook": aRunbook},
		`runbook: want an address without spaces, got "ask around"`:                          {"runbook": "ask around"},
		`sandboxImage: want an image, as registry/name:tag, got "a b"`:                       {"sandboxImage": "a b"},
		`tags: want names of tags, at most 128 characters, not aws:…, got "aws:team"`:        {"tags": "aws:team=x"},
		`tags: team: want values of tags, at most 256 characters, got "xxx`:                  {"tags": "team=" + strings.Repeat("x", 257)},
		`tags: want each key once, got "team" twice`:                                         {"tags": "team=x,team=y"},
		`taskTags: team: want values of tags, at most 256 characters, got "*"`:               {"taskTags": "team=*"},
		`hostFunctions: want functions of the host, got "sandkeeper-session:live", which`:    {"hostFunctions": "search,sandkeeper-session:live"},
		`got "arn:aws:lambda:eu-west-1:111122223333:function:sandkeeper-probe", which`:       {"hostFunctions": "arn:aws:lambda:eu-west-1:111122223333:function:sandkeeper-probe"},
		`install: want at most 45 characters with spokes, got 46`:                            {"install": strings.Repeat("a", 46), "spokes": spokesText},
		`tenants: want {"<alias>": ["<tenant>", …], …}: decode JSON`:                         {"tenants": `{"acme": "acme"}`},
		"logDays: want one of [1 3 5 7 14 30 60 90 180 365 731 1827], got 31":                {"logDays": 31},
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
			k.read()
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

// global are the names that an account has once in all Regions together.
var global = map[string]string{
	"AWS::CloudWatch::Dashboard": "DashboardName", "AWS::IAM::Role": "RoleName", "AWS::IAM::ManagedPolicy": "ManagedPolicyName", "AWS::S3::Bucket": "BucketName",
}

// TestOneNameServesEveryRegion: an installation, or a spoke, may be in several Regions of
// an account under the same name.
func TestOneNameServesEveryRegion(t *testing.T) {
	for what, of := range map[string]template{"an installation": production, "a spoke": spokeOf(t, spokeText)} {
		for id, r := range of.Resources {
			if name := r.Properties[global[r.Type]]; name != nil && !strings.Contains(flat(name), "AWS::Region") {
				t.Errorf("%s: %s is called %s in every Region", what, id, flat(name))
			}
		}
	}
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

// TestAChoicesFileIsRead: texts, numbers and truths as they are, lists and objects as what
// stands between commas, and anything else is refused with its key.
func TestAChoicesFileIsRead(t *testing.T) {
	write := func(text string) string {
		file := filepath.Join(t.TempDir(), "choices.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	got, err := ReadChoices(write(`{"install": "staging", "mode": "enforce", "logDays": 90, "tracing": true, "vpc": "vpc-1",
		"subnets": ["subnet-1", "subnet-2"], "tags": {"owner": "platform", "cost": "ai"}, "tenants": {"acme": ["acme"]}, "spokes": ` + spokesText + `}`))
	if err != nil {
		t.Fatal(err)
	}
	p := FromContext(awscdk.NewApp(&awscdk.AppProps{Outdir: new(t.TempDir()), Context: &got}))
	same(t, "install", p.Install, "staging")
	same(t, "mode", p.Mode, "enforce")
	same(t, "days", p.LogDays, 90)
	same(t, "tracing", p.Tracing, true)
	same(t, "subnets", p.Subnets, []string{"subnet-1", "subnet-2"})
	same(t, "tags", p.Tags, map[string]string{"cost": "ai", "owner": "platform"})
	same(t, "tenants", p.Tenants, `{"acme":["acme"]}`)
	same(t, "spokes", p.Spokes[0].Role, spokeRoleARN)
	if none, err := ReadChoices(""); err != nil || len(none) != 0 {
		t.Errorf("without a file %v, %v", none, err)
	}
	for text, want := range map[string]string{
		`["install"]`:              "want a JSON object of choices",
		`null`:                     "want a JSON object of choices",
		``:                         "want a JSON object of choices",
		`{"vpc": null}`:            "vpc: want text, a number",
		`{"subnets": ["a", 1]}`:    "subnets: want texts without commas, got 1",
		`{"subnets": ["a,b"]}`:     "subnets: want texts without commas, got a,b",
		`{"vpc": "a", "vpc": "b"}`: "vpc: it is there twice",
		`{"tags": {"a": "b", "c": "d", "a": "e"}}`:                "a: it is there twice",
		`{"spokes": [{"role": "a"}, {"role": "b", "role": "c"}]}`: "role: it is there twice",
		`{"tags": {"a=b": "c"}}`:                                  "tags: want names without =, got a=b",
		`{"tags": {"a": ["b"]}}`:                                  "tags: want a text for a",
		`{"local": true}`:                                         "local: the Makefile gives it",
		`{"bundle": "elsewhere"}`:                                 "bundle: the Makefile gives it",
	} {
		if got, err := ReadChoices(write(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want %q", text, got, err, want)
		}
	}
	if _, err := ReadChoices(filepath.Join(t.TempDir(), "absent.json")); err == nil {
		t.Error("a file that is not there is none to forget")
	}
}

// TestTheFilesOnThePageAreTaken: every JSON file that docs/deploy.md shows is one that make
// takes, of choices or of a spoke's.
func TestTheFilesOnThePageAreTaken(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "deploy.md"))
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(shown) < 3 {
		t.Errorf("the page shows %d files, which are too few", len(shown))
	}
	for _, text := range shown {
		file := filepath.Join(t.TempDir(), "choices.json")
		if err := os.WriteFile(file, []byte(text[1]), 0o600); err != nil {
			t.Fatal(err)
		}
		read := ReadChoices
		if strings.Contains(text[1], `"hub"`) {
			read = ReadSpoke
		}
		choices, err := read(file)
		if err != nil {
			t.Fatal(err)
		}
		app := awscdk.NewApp(&awscdk.AppProps{Outdir: new(t.TempDir()), Context: &choices})
		if spoke, ok := SpokeFromContext(app); ok {
			NewSpokeStack(app, spoke) // which panics at what cannot be
			continue
		}
		FromContext(app).complete().check()
	}
}

// TestAFileWithASpokeHoldsNothingElse: what else it chooses would be left out unsaid.
func TestAFileWithASpokeHoldsNothingElse(t *testing.T) {
	defer func() {
		if said := fmt.Sprint(recover()); !strings.Contains(said, "context mode: no such choice: want one of spoke") {
			t.Errorf("said %q", said)
		}
	}()
	SpokeFromContext(awscdk.NewApp(&awscdk.AppProps{Outdir: new(t.TempDir()), Context: &map[string]any{"spoke": spokeText, "mode": "enforce"}}))
}

// TestATokenIsTakenForWhatItWillBe: an app of its own passes what it makes itself.
func TestATokenIsTakenForWhatItWillBe(t *testing.T) {
	later := *awscdk.Fn_ImportValue(new("of-another-stack"))
	Props{VPC: later, Subnets: []string{later}, SecurityGroup: later, Cluster: later, AlarmTopic: later, Runbook: aRunbook, TaskFamilies: []string{later}, TaskRoles: []string{later},
		PermissionsBoundary: later, SandboxImage: later, Tags: map[string]string{"team": later}}.complete().check()
}

// TestWhatLambdaWouldNotTakeOfVariables is refused before the deploy.
func TestWhatLambdaWouldNotTakeOfVariables(t *testing.T) {
	var many []string
	for i := range 80 {
		many = append(many, fmt.Sprintf("%s%d", strings.Repeat("f", 60), i))
	}
	defer func() {
		if said := fmt.Sprint(recover()); !strings.Contains(said, "Lambda takes 4096: want fewer hostFunctions") {
			t.Errorf("said %.200q", said)
		}
	}()
	chosen(t, map[string]any{"hostFunctions": strings.Join(many, ",")})
}

// stateful are the logical ids of what an upgrade must not replace: CloudFormation makes
// anew what has another id, and forgets or deletes the old.
var stateful = map[string]string{
	"runs6827F221": "AWS::DynamoDB::GlobalTable", "sandboxes42E03E52": "AWS::DynamoDB::GlobalTable", "checkpoints62073A2D": "AWS::DynamoDB::GlobalTable",
	"logs0B6081B1":        "AWS::S3::Bucket",
	"reclaimjobsCFBD8873": "AWS::SQS::Queue", "reclaimdeadlettersC97ECF2C": "AWS::SQS::Queue",
	"sweepshards3A0B18ED": "AWS::SQS::Queue", "sweepdeadletters08812840": "AWS::SQS::Queue", "eventdeadlettersBF253E80": "AWS::SQS::Queue",
	"checkpointlogs206A6AAE": "AWS::Logs::LogGroup", "probelogs6D739E6A": "AWS::Logs::LogGroup", "reaplogsE0700DED": "AWS::Logs::LogGroup",
	"reclaimlogs4334D577": "AWS::Logs::LogGroup", "sessionlogs13EE6C70": "AWS::Logs::LogGroup", "toolslogs5B0539AF": "AWS::Logs::LogGroup",
}

// TestStatefulLogicalIDsStay what they were, whatever is chosen, and none of what keeps
// data has a property, but its keys, for which CloudFormation would replace it.
func TestStatefulLogicalIDsStay(t *testing.T) {
	theirs := chosen(t, map[string]any{
		"install": "other", "vpc": "vpc-1", "subnets": "subnet-1", "cluster": "theirs", "key": aKey, "removal": "destroy", "tags": "a=b", "taskTags": "a=b",
		"monitoring": false, "logClass": "infrequent", "spokes": spokesText, "permissionsBoundary": aBoundary, "tracing": true, "scheduleMinutes": 2, "retention": "7d",
	})
	bundled := chosen(t, map[string]any{"bundle": t.TempDir()})
	for name, of := range map[string]template{"the stack": production, "with every choice": theirs, "a bundle": bundled, "the local variant": local} {
		found := map[string]string{}
		for id, r := range of.Resources {
			if slices.Contains(slices.Collect(maps.Values(stateful)), r.Type) {
				found[id] = r.Type
			}
			for _, property := range []string{"TableName", "BucketName", "QueueName"} {
				same(t, name+": "+id+"'s own name", r.Properties[property], nil)
			}
		}
		same(t, name, found, stateful)
	}
	for _, table := range names.Tables {
		same(t, table.Name+" keys", theirs.one(t, "AWS::DynamoDB::GlobalTable", table.Name).Properties["KeySchema"], production.one(t, "AWS::DynamoDB::GlobalTable", table.Name).Properties["KeySchema"])
	}
	for id, kind := range map[string]string{"cluster611F8AFF": "AWS::ECS::Cluster", "vpcA2121C38": "AWS::EC2::VPC"} {
		same(t, id, production.Resources[id].Type, kind)
	}
}

// TestMakeTakesTheChoices: the assembly and the bundle are made with one and the same file,
// and a file that is not there is refused.
func TestMakeTakesTheChoices(t *testing.T) {
	file := filepath.Join(t.TempDir(), "choices.json")
	dry := func(target string) (string, error) {
		command := exec.CommandContext(t.Context(), "make", "--no-print-directory", "-n", "-B", target, "CONTEXT="+file)
		command.Dir, command.Env = filepath.Join("..", ".."), append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=")
		out, err := command.CombinedOutput()
		return string(out), err
	}
	if out, err := dry("synth"); err == nil || !strings.Contains(out, "no such file") {
		t.Errorf("without the file: %v\n%s", err, out)
	}
	if err := os.WriteFile(file, []byte(`{}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"synth", "bundle"} {
		if out, err := dry(target); err != nil || !strings.Contains(out, ChoicesVariable+"='"+file+"'") {
			t.Errorf("make %s: %v\n%s", target, err, out)
		}
	}
	if out, err := dry("synth-local"); err != nil || !strings.Contains(out, ChoicesVariable+"= ") {
		t.Errorf("the local variant has choices of its own: %v\n%s", err, out)
	}
}

// TestAForgottenChoiceIsRefused: of the choices that would move or encrypt anew what a
// stack has, the template asks whether the deploy before made the same.
func TestAForgottenChoiceIsRefused(t *testing.T) {
	theirs := chosen(t, map[string]any{"vpc": "vpc-1", "subnets": "subnet-1", "cluster": "theirs", "key": aKey})
	for parameter, want := range map[string]string{"KeptVpc": "vpc-1", "KeptCluster": "theirs", "KeptKey": aKey} {
		for _, c := range []struct {
			of   template
			want string
		}{{production, "none"}, {theirs, want}} {
			same(t, parameter, c.of.Parameters[parameter]["Default"], c.want)
			rule := at(c.of.Rules[parameter+"Rule"], "Assertions").([]any)[0]
			same(t, parameter+" asked", at(rule, "Assert", "Fn::Equals"), []any{properties{"Ref": parameter}, c.want})
			if says := flat(at(rule, "AssertDescription")); !strings.Contains(says, parameter+" the value "+c.want) {
				t.Errorf("%s says %q", parameter, says)
			}
		}
		if local.Parameters[parameter] != nil {
			t.Errorf("the local variant has %s", parameter)
		}
	}
}
