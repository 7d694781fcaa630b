package sandkeeper

import (
	"crypto/md5"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/jsii-runtime-go"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/roles"
)

// The two variants, synthesized once: a synthesis takes seconds.
var production, local template

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	defer jsii.Close()
	dir, err := os.MkdirTemp("", "sandkeeper-stack-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	dist := filepath.Join(dir, "dist")
	for _, f := range names.Functions {
		writeBinary(dist, f)
	}
	production = synthesize(filepath.Join(dir, "aws"), dist, nil)
	local = synthesize(filepath.Join(dir, "local"), dist, map[string]any{"local": true})
	return m.Run()
}

// writeBinary makes a stand-in for a built function: synthesis only packs it.
func writeBinary(dist string, f names.Function) {
	if err := os.MkdirAll(filepath.Join(dist, string(f)), 0o755); err != nil {
		panic(err)
	}
	if err := os.WriteFile(filepath.Join(dist, string(f), "bootstrap"), []byte(f), 0o755); err != nil {
		panic(err)
	}
}

type properties = map[string]any

type resource struct {
	Type                string
	Properties          properties
	DeletionPolicy      string
	UpdateReplacePolicy string
}

type template struct {
	Resources  map[string]resource
	Outputs    map[string]any
	Parameters map[string]properties
	Rules      map[string]properties
	text       string
}

// synthesize makes the stack of an app with that context beside what every test needs.
func synthesize(out, dist string, context map[string]any) template {
	given := map[string]any{"install": "keeper", "dist": dist}
	maps.Copy(given, context)
	app := awscdk.NewApp(&awscdk.AppProps{Outdir: &out, Context: &given})
	p := FromContext(app)
	NewStack(app, p)
	app.Synth(nil)
	return templateOf(out, p.Install)
}

// templateOf reads what an app has synthesized of a stack.
func templateOf(out, stack string) template {
	data, err := os.ReadFile(filepath.Join(out, stack+".template.json"))
	if err != nil {
		panic(err)
	}
	t := template{text: string(data)}
	if err := json.Unmarshal(data, &t); err != nil {
		panic(err)
	}
	return t
}

// binaries makes a stand-in for each built function.
func binaries(dist string) {
	for _, f := range names.Functions {
		writeBinary(dist, f)
	}
}

// chosen is the stack of an app with that context.
func chosen(t *testing.T, context map[string]any) template {
	t.Helper()
	dir := t.TempDir()
	for _, f := range names.Functions {
		writeBinary(dir, f)
	}
	return synthesize(t.TempDir(), dir, context)
}

// all returns the resources of a type by logical id, and fails if there are none.
func (t template) all(test *testing.T, kind string) map[string]resource {
	test.Helper()
	found := map[string]resource{}
	for id, r := range t.Resources {
		if r.Type == kind {
			found[id] = r
		}
	}
	if len(found) == 0 {
		test.Fatalf("no %s in the template", kind)
	}
	return found
}

// one returns the only resource of a type whose readable id is id.
func (t template) one(test *testing.T, kind, id string) resource {
	test.Helper()
	for logical, r := range t.all(test, kind) {
		if readable(logical) == readable(id) {
			return r
		}
	}
	test.Fatalf("no %s named %s in the template", kind, id)
	return resource{}
}

var hash = regexp.MustCompile(`[0-9A-F]{8}$`)

// readable takes from a logical id what CDK added to it.
func readable(id string) string { return strings.ReplaceAll(hash.ReplaceAllString(id, ""), "-", "") }

// flat renders a value with its intrinsic functions as text: runs.Arn for an
// attribute, the parts of a join one after another.
func flat(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = flat(v[i])
		}
		return strings.Join(parts, ",")
	case properties:
		for function, argument := range v {
			return flatFunction(function, argument)
		}
	}
	return fmt.Sprint(v)
}

func flatFunction(function string, argument any) string {
	list, _ := argument.([]any)
	switch {
	case function == "Ref":
		return readable(flat(argument))
	case function == "Fn::GetAtt":
		return readable(flat(list[0])) + "." + flat(list[1])
	case function == "Fn::Join":
		var parts []string
		if many, ok := list[1].([]any); ok {
			for _, part := range many {
				parts = append(parts, flat(part))
			}
			return strings.Join(parts, flat(list[0]))
		}
		return strings.ReplaceAll(flat(list[1]), ",", flat(list[0]))
	}
	return function + "(" + flat(argument) + ")"
}

// at follows keys into nested properties.
func at(v any, keys ...string) any {
	for _, key := range keys {
		inner, _ := v.(properties)
		v = inner[key]
	}
	return v
}

// same compares values as JSON.
func same(t *testing.T, what string, got, want any) {
	t.Helper()
	g, _ := json.Marshal(got)
	w, _ := json.Marshal(want)
	if string(g) != string(w) {
		t.Errorf("%s is %s, want %s", what, g, w)
	}
}

func TestTablesAreAsNamesDescribesThem(t *testing.T) {
	for _, table := range names.Tables {
		r := production.one(t, "AWS::DynamoDB::GlobalTable", table.Name)
		same(t, table.Name+" keys", schema(r.Properties["KeySchema"]), []string{names.PK.Name, names.SK.Name})
		indexes, _ := r.Properties["GlobalSecondaryIndexes"].([]any)
		if len(indexes) != len(table.Indexes) {
			t.Fatalf("%s has %d indexes, want %d", table.Name, len(indexes), len(table.Indexes))
		}
		types := map[string]names.AttributeType{}
		for _, a := range r.Properties["AttributeDefinitions"].([]any) {
			types[flat(at(a, "AttributeName"))] = names.AttributeType(flat(at(a, "AttributeType")))
		}
		for i, index := range table.Indexes {
			name := table.Name + "/" + index.Name
			same(t, name, at(indexes[i], "IndexName"), index.Name)
			same(t, name+" keys", schema(at(indexes[i], "KeySchema")), []string{index.PK.Name, index.SK.Name})
			same(t, name+" key types", []names.AttributeType{types[index.PK.Name], types[index.SK.Name]}, []names.AttributeType{index.PK.Type, index.SK.Type})
			// Anything more projected would make claims and renewals write to the index.
			projection := properties{"ProjectionType": "KEYS_ONLY"}
			if len(index.Include) > 0 {
				projection = properties{"ProjectionType": "INCLUDE", "NonKeyAttributes": index.Include}
			}
			same(t, name+" projection", at(indexes[i], "Projection"), projection)
		}
	}
}

func schema(v any) []string {
	var keys []string
	for _, element := range v.([]any) {
		keys = append(keys, flat(at(element, "AttributeName")))
	}
	return keys
}

func TestStoresOutliveTheStack(t *testing.T) {
	for id, r := range production.all(t, "AWS::DynamoDB::GlobalTable") {
		same(t, id+" on delete", r.DeletionPolicy, "Retain")
		same(t, id+" on replacement", r.UpdateReplacePolicy, "Retain")
		same(t, id+" billing", r.Properties["BillingMode"], "PAY_PER_REQUEST")
		same(t, id+" expiry", r.Properties["TimeToLiveSpecification"], properties{"AttributeName": names.TTL, "Enabled": true})
		for _, replica := range r.Properties["Replicas"].([]any) {
			same(t, id+" point-in-time recovery", at(replica, "PointInTimeRecoverySpecification", "PointInTimeRecoveryEnabled"), true)
		}
	}
	for id, r := range production.all(t, "AWS::S3::Bucket") {
		same(t, id+" on delete", r.DeletionPolicy, "Retain")
		same(t, id+" on replacement", r.UpdateReplacePolicy, "Retain")
		same(t, id+" versioning", r.Properties["VersioningConfiguration"], properties{"Status": "Enabled"})
		for _, key := range []string{"BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"} {
			same(t, id+" "+key, at(r.Properties, "PublicAccessBlockConfiguration", key), true)
		}
		if r.Properties["BucketEncryption"] == nil {
			t.Errorf("%s is not encrypted", id)
		}
	}
}

// TestLogsGoWithTheirRecords: and after the pieces that name them, while what is no
// log stays.
func TestLogsGoWithTheirRecords(t *testing.T) {
	rules := at(production.one(t, "AWS::S3::Bucket", "logs").Properties, "LifecycleConfiguration", "Rules").([]any)
	if len(rules) != 3 {
		t.Fatalf("%d rules, want 3", len(rules))
	}
	same(t, "rule of every object", rules[0], properties{
		"AbortIncompleteMultipartUpload": properties{"DaysAfterInitiation": 1},
		"ExpiredObjectDeleteMarker":      true,
		"NoncurrentVersionExpiration":    properties{"NoncurrentDays": 7},
		"Status":                         "Enabled",
	})
	same(t, "rule of logs", rules[1], properties{
		"ExpirationInDays": 121, "Status": "Enabled",
		"TagFilters": []properties{{"Key": names.TagKind, "Value": names.KindLog}},
	})
	same(t, "rule of the spool", rules[2], properties{
		"ExpirationInDays": 1, "NoncurrentVersionExpiration": properties{"NoncurrentDays": 1}, "Status": "Enabled",
		"TagFilters": []properties{{"Key": names.TagKind, "Value": names.KindSpool}},
	})
	expiry := time.Duration(at(rules[1], "ExpirationInDays").(float64)) * 24 * time.Hour
	if segments := core.DefaultLimits.Retention + names.SegmentsOutlive; expiry != core.DefaultLimits.Retention+names.ObjectsOutlive || expiry < segments+24*time.Hour {
		t.Errorf("log objects go after %s, the pieces that name them after %s", expiry, segments)
	}
}

// TestOnlyTLS: a bucket and each queue refuse what does not come over TLS.
func TestOnlyTLS(t *testing.T) {
	policies := map[string]string{}
	for _, kind := range []string{"AWS::S3::BucketPolicy", "AWS::SQS::QueuePolicy"} {
		for _, r := range production.all(t, kind) {
			for _, statement := range at(r.Properties, "PolicyDocument", "Statement").([]any) {
				if flat(at(statement, "Effect")) == "Deny" && flat(at(statement, "Condition", "Bool", "aws:SecureTransport")) == "false" {
					policies[flat(r.Properties["Bucket"])+flat(r.Properties["Queues"])] = kind
				}
			}
		}
	}
	for _, kind := range []string{"AWS::S3::Bucket", "AWS::SQS::Queue"} {
		for id := range production.all(t, kind) {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(policies)), func(of string) bool { return strings.Contains(of, readable(id)) }) {
				t.Errorf("%s %s takes requests without TLS", kind, id)
			}
		}
	}
}

func TestQueues(t *testing.T) {
	const day = 24 * 60 * 60
	tests := []struct {
		queue, dead, source string
		function            names.Function
		keep, receives      int
		batch, workers      int
	}{
		{names.ReclaimJobs, names.ReclaimDead, "reclaim-source", names.Reclaim, 4 * day, 5, 10, reclaimWorkers},
		{names.SweepShards, names.SweepDead, "reap-source", names.Reap, day / 24, 3, 1, shardWorkers},
	}
	if n := len(production.all(t, "AWS::SQS::Queue")); n != 2*len(tests)+1 {
		t.Errorf("%d queues, want %d and that of events", n, 2*len(tests))
	}
	for _, test := range tests {
		t.Run(test.queue, func(t *testing.T) {
			queue := production.one(t, "AWS::SQS::Queue", test.queue)
			function := production.one(t, "AWS::Lambda::Function", string(test.function))
			visible, _ := queue.Properties["VisibilityTimeout"].(float64)
			timeout, _ := function.Properties["Timeout"].(float64)
			if timeout == 0 || visible < 6*timeout {
				t.Errorf("visibility timeout is %v s, the function may take %v s: want at least six times that", visible, timeout)
			}
			keep, _ := queue.Properties["MessageRetentionPeriod"].(float64)
			same(t, "retention", keep, test.keep)
			if keep < visible*float64(test.receives) {
				t.Errorf("a message is dropped after %v s, before %d receives of %v s: it can be no dead letter", keep, test.receives, visible)
			}
			same(t, "receives before the dead letters", at(queue.Properties, "RedrivePolicy", "maxReceiveCount"), test.receives)
			same(t, "dead letters", flat(at(queue.Properties, "RedrivePolicy", "deadLetterTargetArn")), readable(test.dead)+".Arn")
			dead := production.one(t, "AWS::SQS::Queue", test.dead)
			same(t, "retention of dead letters", dead.Properties["MessageRetentionPeriod"], 14*day)
			source := production.one(t, "AWS::Lambda::EventSourceMapping", test.source)
			same(t, "function", flat(source.Properties["FunctionName"]), string(test.function))
			same(t, "source", flat(source.Properties["EventSourceArn"]), readable(test.queue)+".Arn")
			same(t, "responses", source.Properties["FunctionResponseTypes"], []string{"ReportBatchItemFailures"})
			same(t, "batch size", source.Properties["BatchSize"], test.batch)
			same(t, "concurrency", at(source.Properties, "ScalingConfig", "MaximumConcurrency"), test.workers)
		})
	}
}

// TestNoQueueCallsAnothersDeadLettersItsOwn: a queue that takes what services could not
// deliver refuses to be any queue's dead-letter queue, where else every queue of the account
// may name it. One that is a queue's of the stack cannot say so: each would need the other's
// ARN.
func TestNoQueueCallsAnothersDeadLettersItsOwn(t *testing.T) {
	named := map[string]bool{}
	for _, queue := range production.all(t, "AWS::SQS::Queue") {
		named[flat(at(queue.Properties, "RedrivePolicy", "deadLetterTargetArn"))] = true
	}
	seen := 0
	for id, queue := range production.all(t, "AWS::SQS::Queue") {
		switch allow := queue.Properties["RedriveAllowPolicy"]; {
		case named[readable(id)+".Arn"]:
			same(t, id+" may be named by", allow, nil)
		case queue.Properties["RedrivePolicy"] == nil:
			seen++
			same(t, id+" may be named by", allow, properties{"redrivePermission": "denyAll"})
		}
	}
	same(t, "queues of what services could not deliver", seen, 1)
}

func TestWhatIsNoBusIsRefused(t *testing.T) {
	for _, bus := range []string{"arn:aws:events:eu-west-1:000000000000:event-bus/others", "my bus", "*"} {
		func() {
			defer func() {
				if said := fmt.Sprint(recover()); !strings.Contains(said, "context eventBus: want the name of a bus, got "+strconv.Quote(bus)) {
					t.Errorf("%s: said %q", bus, said)
				}
			}()
			(&Keeper{props: Props{EventBus: bus}}).bus()
		}()
	}
}

func TestContextChoosesTheBus(t *testing.T) {
	dir := t.TempDir()
	for _, f := range names.Functions {
		writeBinary(dir, f)
	}
	of := synthesize(t.TempDir(), dir, map[string]any{"eventBus": "others"})
	env := at(of.one(t, "AWS::Lambda::Function", string(names.Reap)).Properties, "Environment", "Variables")
	same(t, "bus", at(env, string(names.EventBus)), "others")
	may := grants(t, of.one(t, "AWS::IAM::Role", "reap-role"))
	if !slices.ContainsFunc(may, func(line string) bool {
		return strings.HasPrefix(line, "events:PutEvents ") && strings.Contains(line, ":event-bus/others if ")
	}) {
		t.Errorf("reap may %q", may)
	}
	same(t, "events of the stack without context", at(production.one(t, "AWS::Lambda::Function", string(names.Reap)).Properties,
		"Environment", "Variables", string(names.EventBus)), "default")
}

func TestSchedules(t *testing.T) {
	schedules := production.all(t, "AWS::Scheduler::Schedule")
	tests := map[string]struct{ when, target string }{
		names.TickSchedule:    {"rate(1 minute)", "reap.Arn"},
		names.DailySchedule:   {"cron(17 4 * * ? *)", "reap.Arn"},
		names.CollectSchedule: {"cron(43 3 * * ? *)", "checkpoint.Arn"},
		names.AuditSchedule:   {"cron(47 * * * ? *)", "reap.Arn"},
	}
	for name, want := range tests {
		s := production.one(t, "AWS::Scheduler::Schedule", name)
		same(t, name+" name", s.Properties["Name"], "keeper-"+name)
		same(t, name+" expression", s.Properties["ScheduleExpression"], want.when)
		same(t, name+" zone", s.Properties["ScheduleExpressionTimezone"], "Etc/UTC")
		same(t, name+" target", flat(at(s.Properties, "Target", "Arn")), want.target)
		same(t, name+" role", flat(at(s.Properties, "Target", "RoleArn")), "schedulerole.Arn")
	}
	same(t, "number of schedules", len(schedules), len(tests))
	for _, name := range []string{names.DailySchedule, names.CollectSchedule} {
		same(t, "delivery of "+name, at(production.one(t, "AWS::Scheduler::Schedule", name).Properties, "Target", "RetryPolicy"),
			properties{"MaximumEventAgeInSeconds": 3600, "MaximumRetryAttempts": 5})
	}
}

// TestEverybodyReachesOnlyTheURLs: agents have no credentials, only the URLs' own check
// of their token or bearer. Nobody may invoke those functions otherwise, and no other
// function has a URL.
func TestEverybodyReachesOnlyTheURLs(t *testing.T) {
	want := []string{"checkpoint.Arn", "tools.Arn"}
	var functions []string
	for _, r := range production.all(t, "AWS::Lambda::Url") {
		functions = append(functions, flat(r.Properties["TargetFunctionArn"]))
		same(t, "authentication", r.Properties["AuthType"], "NONE")
		same(t, "pages of others", r.Properties["Cors"], nil)
	}
	slices.Sort(functions)
	same(t, "functions with a URL", functions, want)
	open := map[string][]string{}
	for _, r := range production.all(t, "AWS::Lambda::Permission") {
		if r.Properties["Principal"] != "*" {
			continue
		}
		name := flat(r.Properties["FunctionName"])
		open[name] = append(open[name], flat(r.Properties["Action"]))
		if r.Properties["FunctionUrlAuthType"] != "NONE" && r.Properties["InvokedViaFunctionUrl"] != true {
			t.Errorf("everybody may %s otherwise than by the URL: %v", flat(r.Properties["Action"]), r.Properties)
		}
	}
	same(t, "functions open to all", slices.Sorted(maps.Keys(open)), want)
	for name, actions := range open {
		slices.Sort(actions)
		same(t, "what everybody may with "+name, actions, []string{"lambda:InvokeFunction", "lambda:InvokeFunctionUrl"})
	}
}

// TestContextCapsWhatEverybodyReaches: and no other function, whether the number comes as
// the CLI passes it or as JSON.
func TestContextCapsWhatEverybodyReaches(t *testing.T) {
	dir := t.TempDir()
	for _, f := range names.Functions {
		writeBinary(dir, f)
	}
	capped := func(checkpoint, tools any) template {
		return synthesize(t.TempDir(), dir, map[string]any{"checkpointConcurrency": checkpoint, "toolsConcurrency": tools})
	}
	for _, test := range []struct {
		name              string
		of                template
		checkpoint, tools any
	}{
		{"the stack without context reserves none", production, nil, nil},
		{"the local variant reserves none", local, nil, nil},
		{"the CLI's text", capped("1", "30"), 1, 30},
		{"a number", capped(20, 5), 20, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, f := range names.Functions {
				want := map[names.Function]any{names.Checkpoint: test.checkpoint, names.Tools: test.tools}[f]
				reserved := test.of.one(t, "AWS::Lambda::Function", string(f)).Properties["ReservedConcurrentExecutions"]
				same(t, string(f)+" reserved concurrency", reserved, want)
			}
		})
	}
}

func TestWhatIsNoConcurrencyIsRefused(t *testing.T) {
	for given, shown := range map[any]string{
		"0": "0", "-1": "-1", "+5": "+5", "2.5": "2.5", "many": "many", " 5": " 5", "99999999999": "99999999999",
		0: "0", 2.5: "2.5", 1e12: "1000000000000", true: "true",
	} {
		func() {
			defer func() {
				want := "context checkpointConcurrency: want a whole number of at least 1, got " + strconv.Quote(shown)
				if said := fmt.Sprint(recover()); !strings.Contains(said, want) {
					t.Errorf("%v: said %q, want %q", given, said, want)
				}
			}()
			app := awscdk.NewApp(&awscdk.AppProps{Outdir: new(t.TempDir()), Context: &map[string]any{"checkpointConcurrency": given}})
			concurrency("checkpointConcurrency", FromContext(app).CheckpointConcurrency)
		}()
	}
}

// TestContextListsTheFunctionsOfTheHost: tools and session may call those and no other,
// and are told the same list. Where there is none they may call none.
func TestContextListsTheFunctionsOfTheHost(t *testing.T) {
	dir := t.TempDir()
	for _, f := range names.Functions {
		writeBinary(dir, f)
	}
	const foreign = "arn:aws:lambda:eu-west-1:123456789012:function:shared:live"
	listing := synthesize(t.TempDir(), dir, map[string]any{"hostFunctions": "search, tickets:3," + foreign})
	own := "lambda:InvokeFunction arn:AWS::Partition:lambda:AWS::Region:AWS::AccountId:function:"
	for _, f := range []names.Function{names.Tools, names.Session, names.Reclaim} {
		listed := func(of template) any {
			return at(of.one(t, "AWS::Lambda::Function", string(f)).Properties, "Environment", "Variables", string(names.HostFunctions))
		}
		same(t, string(f)+" is told", listed(listing), "search,tickets:3,"+foreign)
		same(t, string(f)+" is told without context", listed(production), names.None)
		same(t, string(f)+" is told in the local variant", listed(local), "keeper-example-tool")
		want := append(slices.Clone(ships[string(f)+"-role"]), own+"search", own+"tickets:3", "lambda:InvokeFunction "+foreign)
		got := grants(t, listing.one(t, "AWS::IAM::Role", string(f)+"-role"))
		slices.Sort(want)
		slices.Sort(got)
		same(t, string(f)+" may", got, want)
	}
}

// TestContextSaysWhatSessionMayRead, each by its ARN.
func TestContextSaysWhatSessionMayRead(t *testing.T) {
	dir := t.TempDir()
	for _, f := range names.Functions {
		writeBinary(dir, f)
	}
	const secret = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:git-AbCdEf"
	const parameter, role = "arn:aws:ssm:eu-west-1:123456789012:parameter/app/key", "arn:aws:iam::123456789012:role/coder"
	given := synthesize(t.TempDir(), dir, map[string]any{"secretArns": secret + ", " + parameter, "sandboxesPerTenant": "7"})
	want := append(slices.Clone(ships["session-role"]), "secretsmanager:GetSecretValue "+secret, "ssm:GetParameter "+parameter)
	got := grants(t, given.one(t, "AWS::IAM::Role", "session-role"))
	slices.Sort(want)
	slices.Sort(got)
	same(t, "session may", got, want)
	quota := func(of template) any {
		return at(of.one(t, "AWS::Lambda::Function", string(names.Session)).Properties, "Environment", "Variables", string(names.SandboxesPerTenant))
	}
	same(t, "quota", quota(given), "7")
	same(t, "quota without context", quota(production), "0")
	func() {
		defer func() {
			if said := fmt.Sprint(recover()); !strings.Contains(said, `context tenants: tenants: alias "": tenant "x": quota`) {
				t.Errorf("said %q", said)
			}
		}()
		(&Keeper{props: Props{Tenants: `{"": [{"tenant": "x", "quota": -1}]}`}}).tenants()
	}()
	for _, bad := range []string{"*", secret + "*", secret + ",,", role} {
		func() {
			defer func() {
				if said := fmt.Sprint(recover()); !strings.Contains(said, "context secretArns: want ARNs") {
					t.Errorf("%q: said %q", bad, said)
				}
			}()
			(&Keeper{props: Props{SecretARNs: bad}}).readsSecrets()
		}()
	}
}

func TestWhatIsNoFunctionIsRefused(t *testing.T) {
	for _, given := range []string{"*", "search*", "a,,b", "arn:aws:lambda:*:123456789012:function:a", "arn:aws:s3:::bucket", "a b", "a:b:c"} {
		func() {
			defer func() {
				if said := fmt.Sprint(recover()); !strings.Contains(said, "context hostFunctions: want names or ARNs") {
					t.Errorf("%q: said %q", given, said)
				}
			}()
			(&Keeper{props: Props{HostFunctions: given}}).hostFunctions()
		}()
	}
}

// TestContextSaysHowManyCheckpointsAreKept: all of them, where it does not.
func TestContextSaysHowManyCheckpointsAreKept(t *testing.T) {
	dir := t.TempDir()
	for _, f := range names.Functions {
		writeBinary(dir, f)
	}
	for _, test := range []struct {
		name string
		of   template
		want string
	}{
		{"without context", production, "0"},
		{"the CLI's text", synthesize(t.TempDir(), dir, map[string]any{"keepCheckpoints": "20"}), "20"},
		{"a number", synthesize(t.TempDir(), dir, map[string]any{"keepCheckpoints": 7}), "7"},
	} {
		env := test.of.one(t, "AWS::Lambda::Function", string(names.Checkpoint)).Properties["Environment"]
		same(t, test.name, at(env, "Variables", string(names.KeepCheckpoints)), test.want)
	}
	for _, given := range []any{"-1", "2.5", "some", "+5", " 5", true, -3} {
		func() {
			defer func() {
				want := "context keepCheckpoints: want a whole number of at least 0, got " + strconv.Quote(fmt.Sprint(given))
				if said := fmt.Sprint(recover()); !strings.Contains(said, want) {
					t.Errorf("%v: said %q, want %q", given, said, want)
				}
			}()
			app := awscdk.NewApp(&awscdk.AppProps{Outdir: new(t.TempDir()), Context: &map[string]any{"keepCheckpoints": given}})
			(&Keeper{props: FromContext(app)}).keepCheckpoints()
		}()
	}
}

// TestATickIsTriedOnce: a tick is worthless a minute later, at each of its hops.
func TestATickIsTriedOnce(t *testing.T) {
	once := properties{"MaximumEventAgeInSeconds": 60, "MaximumRetryAttempts": 0}
	schedule := production.one(t, "AWS::Scheduler::Schedule", names.TickSchedule)
	same(t, "schedule's retries", at(schedule.Properties, "Target", "RetryPolicy"), once)
	invoke := production.one(t, "AWS::Lambda::EventInvokeConfig", "reapEventInvokeConfig")
	same(t, "reap's retries", invoke.Properties["MaximumRetryAttempts"], 0)
	same(t, "reap's event age", invoke.Properties["MaximumEventAgeInSeconds"], 60)
	same(t, "reserved concurrency", production.one(t, "AWS::Lambda::Function", string(names.Reap)).Properties["ReservedConcurrentExecutions"], nil)
}

func TestTaskEvents(t *testing.T) {
	tests := []struct {
		name    string
		of      template
		sources []string
	}{
		{"the stack hears ECS alone", production, []string{names.SourceECS}},
		{"the local variant hears local Fargate too", local, []string{names.SourceECS, names.SourceLocalECS}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var sources []string
			for id, r := range test.of.all(t, "AWS::Events::Rule") {
				sources = append(sources, flat(at(r.Properties, "EventPattern", "source")))
				same(t, id+" detail type", at(r.Properties, "EventPattern", "detail-type"), []string{names.DetailTaskState})
				same(t, id+" status", at(r.Properties, "EventPattern", "detail", "lastStatus"), []string{names.TaskRunning, names.TaskStopped})
				same(t, id+" desired status", at(r.Properties, "EventPattern", "detail", "desiredStatus"), []string{names.TaskStopped})
				same(t, id+" cluster", flat(at(r.Properties, "EventPattern", "detail", "clusterArn")), "cluster.Arn")
				same(t, id+" target", flat(at(r.Properties["Targets"].([]any)[0], "Arn")), "reap.Arn")
				same(t, id+" dead letters", flat(at(r.Properties["Targets"].([]any)[0], "DeadLetterConfig", "Arn")), "eventdeadletters.Arn")
			}
			slices.Sort(sources)
			same(t, "sources", sources, test.sources)
		})
	}
}

func TestFunctions(t *testing.T) {
	limits := core.DefaultLimits
	timeouts := map[names.Function]float64{
		names.Reap:       limits.SweepTimeout.Seconds(),
		names.Probe:      limits.ProbeTimeout.Seconds(),
		names.Reclaim:    limits.ReclaimTimeout.Seconds(),
		names.Checkpoint: limits.CheckpointTimeout.Seconds(),
		names.Session:    core.SessionTimeout.Seconds(),
		names.Tools:      core.ToolsTimeout.Seconds(),
	}
	for _, f := range names.Functions {
		r := production.one(t, "AWS::Lambda::Function", string(f)).Properties
		same(t, string(f)+" runtime", r["Runtime"], "provided.al2023")
		same(t, string(f)+" architecture", r["Architectures"], []string{"arm64"})
		same(t, string(f)+" timeout", r["Timeout"], timeouts[f])
		same(t, string(f)+" log format", at(r, "LoggingConfig", "LogFormat"), "JSON")
		var keys []names.Key
		for key := range at(r, "Environment", "Variables").(properties) {
			keys = append(keys, names.Key(key))
		}
		slices.Sort(keys)
		same(t, string(f)+" environment", keys, slices.Sorted(slices.Values(names.Env[f])))
	}
	for id, r := range production.all(t, "AWS::Logs::LogGroup") {
		same(t, id+" retention", r.Properties["RetentionInDays"], 30)
	}
}

// TestEventsAreWhatTheStackSends: the files that functions are tested with.
func TestEventsAreWhatTheStackSends(t *testing.T) {
	for file, name := range map[string]string{"reap-tick.json": names.TickSchedule, "reap-daily.json": names.DailySchedule, "reap-audit.json": names.AuditSchedule, "checkpoint-collect.json": names.CollectSchedule} {
		var sent, sample properties
		schedule := production.one(t, "AWS::Scheduler::Schedule", name)
		if err := json.Unmarshal([]byte(flat(at(schedule.Properties, "Target", "Input"))), &sent); err != nil {
			t.Fatal(err)
		}
		event(t, file, &sample)
		same(t, file+" keys", slices.Sorted(maps.Keys(sample)), slices.Sorted(maps.Keys(sent)))
		same(t, file+" source", sample["source"], sent["source"])
		same(t, file+" detail type", sample["detail-type"], sent["detail-type"])
	}
	pattern := at(production.one(t, "AWS::Events::Rule", "task-stopped").Properties, "EventPattern")
	for _, file := range []string{"reap-task-stopped.json", "reap-task-leaving.json"} {
		var sample properties
		event(t, file, &sample)
		same(t, file+" source", []any{sample["source"]}, at(pattern, "source"))
		same(t, file+" detail type", []any{sample["detail-type"]}, at(pattern, "detail-type"))
		same(t, file+" desired status", []any{at(sample, "detail", "desiredStatus")}, at(pattern, "detail", "desiredStatus"))
		if status := at(sample, "detail", "lastStatus"); !slices.Contains(at(pattern, "detail", "lastStatus").([]any), status) {
			t.Errorf("%s: the rule does not take lastStatus %v", file, status)
		}
	}
	for file, queue := range map[string]string{"reclaim.json": names.ReclaimJobs, "reap-shards.json": names.SweepShards} {
		var batch properties
		event(t, file, &batch)
		for _, record := range batch["Records"].([]any) {
			if arn := flat(at(record, "eventSourceARN")); !strings.HasSuffix(arn, "-"+queue) {
				t.Errorf("%s comes from %s, want the queue %s", file, arn, queue)
			}
			body := flat(at(record, "body"))
			same(t, file+" digest", at(record, "md5OfBody"), fmt.Sprintf("%x", md5.Sum([]byte(body))))
		}
	}
}

func event(t *testing.T, file string, into any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "events", file))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func TestFunctionRefusesAnotherEnvironment(t *testing.T) {
	whole := map[names.Key]*string{}
	for _, key := range names.Env[names.Reclaim] {
		whole[key] = new("some")
		if allowed := names.Values[key]; allowed != nil {
			whole[key] = &allowed[0]
		}
	}
	tests := []struct {
		name   string
		change func(env map[names.Key]*string)
		want   string
	}{
		{"a missing key", func(env map[names.Key]*string) { delete(env, names.SandboxesTable) }, "function reclaim: no value for SANDBOXES_TABLE"},
		{"a key too many", func(env map[names.Key]*string) { env[names.Cluster] = new("x") }, "function reclaim: CLUSTER_ARN is not in its list"},
		{"a mode that is none", func(env map[names.Key]*string) { env[names.Mode] = new("dry") }, `function reclaim: MODE: want observe or enforce, got "dry"`},
		{"a policy that is none", func(env map[names.Key]*string) { env[names.OnFailure] = new("retry") }, `function reclaim: ON_CHECKPOINT_FAILURE: want hold or release, got "retry"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			defer func() {
				if said := fmt.Sprint(recover()); !strings.Contains(said, test.want) {
					t.Errorf("said %q, want %q", said, test.want)
				}
			}()
			app := awscdk.NewApp(&awscdk.AppProps{Outdir: new(t.TempDir())})
			stack := awscdk.NewStack(app, new("s"), nil)
			env := maps.Clone(whole)
			test.change(env)
			(&Keeper{Construct: stack, stack: stack, props: Props{Dist: t.TempDir()}}).function(functionSpec{name: names.Reclaim, env: env})
		})
	}
}

// TestAFirstDeployObserves: what it would do is seen before it does it. The local
// variant, which only ends what a demo or a test began, acts at once.
func TestAFirstDeployObserves(t *testing.T) {
	same(t, "modes of the stack", names.Values[names.Mode], []core.Mode{core.Observe, core.Enforce})
	for want, of := range map[string]template{names.ModeObserve: production, names.ModeEnforce: local} {
		for _, f := range []names.Function{names.Reap, names.Reclaim} {
			env := at(of.one(t, "AWS::Lambda::Function", string(f)).Properties, "Environment", "Variables")
			same(t, string(f)+" mode", at(env, string(names.Mode)), want)
		}
		same(t, "mode told", at(of.Outputs[string(names.OutMode)], "Value"), want)
	}
}

func TestContextChoosesTheMode(t *testing.T) {
	app := awscdk.NewApp(&awscdk.AppProps{Outdir: new(t.TempDir()), Context: &map[string]any{"mode": names.ModeEnforce}})
	same(t, "mode", FromContext(app).Mode, names.ModeEnforce)
}

// TestContextChoosesWhatAFailedCheckpointDoes: without it, what a sandbox holds is kept
// for another try, in either variant.
func TestContextChoosesWhatAFailedCheckpointDoes(t *testing.T) {
	dir := t.TempDir()
	for _, f := range names.Functions {
		writeBinary(dir, f)
	}
	released := synthesize(t.TempDir(), dir, map[string]any{"onCheckpointFailure": names.FailureRelease})
	for _, test := range []struct {
		name, want string
		of         template
	}{
		{"the stack without context holds", names.FailureHold, production},
		{"the local variant holds", names.FailureHold, local},
		{"the stack that is told to releases", names.FailureRelease, released},
	} {
		t.Run(test.name, func(t *testing.T) {
			env := at(test.of.one(t, "AWS::Lambda::Function", string(names.Reclaim)).Properties, "Environment", "Variables")
			same(t, "policy", at(env, string(names.OnFailure)), test.want)
		})
	}
	for _, given := range []any{"Release", true} {
		t.Run(fmt.Sprintf("%v is refused", given), func(t *testing.T) {
			defer func() {
				want := map[any]string{"Release": `context onCheckpointFailure: want hold or release, got "Release"`, true: "context onCheckpointFailure: want text, got true"}[given]
				if said := fmt.Sprint(recover()); !strings.Contains(said, want) {
					t.Errorf("said %q, want %q", said, want)
				}
			}()
			synthesize(t.TempDir(), dir, map[string]any{"onCheckpointFailure": given})
		})
	}
}

// ships is the table of roles: what each may do, and nothing else.
var ships = roles.Of

// whole explains each statement on every resource.
var whole = map[string]string{
	"ecs:ListTasks":                    "takes no task as resource; its condition keeps it to the cluster",
	"ssmmessages:CreateControlChannel": "knows no resource",
	"xray:PutTelemetryRecords":         "knows no resource; only where tracing was asked for",
	"xray:PutTraceSegments":            "knows no resource; only where tracing was asked for",
	"ssmmessages:CreateDataChannel":    "knows no resource",
	"ssmmessages:OpenControlChannel":   "knows no resource",
	"ssmmessages:OpenDataChannel":      "knows no resource in a task's own agent",
}

func TestRolesMayDoWhatTheDesignSays(t *testing.T) {
	roles := production.all(t, "AWS::IAM::Role")
	if len(roles) != len(ships) {
		t.Errorf("%d roles, want %d", len(roles), len(ships))
	}
	for name, want := range ships {
		r := production.one(t, "AWS::IAM::Role", name)
		if r.Properties["ManagedPolicyArns"] != nil {
			t.Errorf("%s has managed policies: %v", name, r.Properties["ManagedPolicyArns"])
		}
		got := grants(t, r)
		for _, line := range got {
			if !slices.Contains(want, line) {
				t.Errorf("%s may %s, which the design does not list", name, line)
			}
		}
		for _, line := range want {
			if !slices.Contains(got, line) {
				t.Errorf("%s may not %s, which the design lists", name, line)
			}
		}
	}
	for id, r := range production.Resources {
		if r.Type == "AWS::IAM::Policy" || r.Type == "AWS::IAM::ManagedPolicy" {
			t.Errorf("%s: a policy outside the roles' own", id)
		}
	}
}

// TestARoleIsAssumedByItsServiceAlone, and where the service says for whom it acts, for this
// account alone.
func TestARoleIsAssumedByItsServiceAlone(t *testing.T) {
	for id, r := range production.all(t, "AWS::IAM::Role") {
		want := "lambda.amazonaws.com"
		switch readable(id) {
		case "schedulerole":
			want = "scheduler.amazonaws.com if StringEquals aws:SourceAccount AWS::AccountId"
		case "sandboxrole":
			want = "ecs-tasks.amazonaws.com if StringEquals aws:SourceAccount AWS::AccountId"
		}
		statements := at(r.Properties, "AssumeRolePolicyDocument", "Statement").([]any)
		if len(statements) != 1 {
			t.Errorf("%s is trusted by %v", id, statements)
		}
		same(t, id, flat(at(statements[0], "Principal", "Service"))+conditions(at(statements[0], "Condition")), want)
	}
}

// grants renders a role's inline policies, an action and a resource a line.
func grants(t *testing.T, role resource) []string {
	t.Helper()
	var lines []string
	for _, policy := range role.Properties["Policies"].([]any) {
		for _, statement := range at(policy, "PolicyDocument", "Statement").([]any) {
			same(t, "effect", at(statement, "Effect"), "Allow")
			for _, action := range list(at(statement, "Action")) {
				for _, target := range list(at(statement, "Resource")) {
					line := flat(action) + " " + flat(target) + conditions(at(statement, "Condition"))
					if flat(target) == "*" && whole[flat(action)] == "" {
						t.Errorf("%s on every resource, without a reason", flat(action))
					}
					lines = append(lines, line)
				}
			}
		}
	}
	return lines
}

func conditions(v any) string {
	all, _ := v.(properties)
	var text strings.Builder
	for _, operator := range slices.Sorted(maps.Keys(all)) {
		tests := all[operator].(properties)
		for _, key := range slices.Sorted(maps.Keys(tests)) {
			fmt.Fprintf(&text, " if %s %s %s", operator, key, flat(tests[key]))
		}
	}
	return text.String()
}

func list(v any) []any {
	if many, ok := v.([]any); ok {
		return many
	}
	return []any{v}
}

// TestSampleTaskSuitsExec: what ECS Exec asks of a task.
func TestSampleTaskSuitsExec(t *testing.T) {
	task := production.one(t, "AWS::ECS::TaskDefinition", names.SandboxFamily)
	containers := task.Properties["ContainerDefinitions"].([]any)
	if len(containers) != 1 {
		t.Fatalf("%d containers, want 1", len(containers))
	}
	agent := containers[0]
	same(t, "container", at(agent, "Name"), names.AgentContainer)
	same(t, "init process", at(agent, "LinuxParameters", "InitProcessEnabled"), true)
	same(t, "read-only root", at(agent, "ReadonlyRootFilesystem"), false)
	same(t, "task role", flat(task.Properties["TaskRoleArn"]), "sandboxrole.Arn")
	cluster := production.one(t, "AWS::ECS::Cluster", "cluster")
	// Sessions carry journals and set-up values: no log may keep them.
	same(t, "exec logging", at(cluster.Properties, "Configuration", "ExecuteCommandConfiguration", "Logging"), "NONE")
}

func TestNothingListensAndNothingTranslates(t *testing.T) {
	for id, r := range production.Resources {
		switch r.Type {
		case "AWS::EC2::NatGateway":
			t.Errorf("%s: a NAT gateway costs more than the keeper", id)
		case "AWS::EC2::SecurityGroup":
			same(t, id+" ingress", r.Properties["SecurityGroupIngress"], nil)
		case "AWS::CloudFormation::CustomResource", "AWS::EC2::SecurityGroupIngress":
			t.Errorf("%s: a %s has no place in the stack", id, r.Type)
		}
		if strings.HasPrefix(r.Type, "Custom::") {
			t.Errorf("%s: a custom resource brings a function that no role test knows", id)
		}
	}
}

func TestOutputs(t *testing.T) {
	for _, output := range []names.Output{
		names.OutRunsTable, names.OutSandboxesTable, names.OutCheckpoints, names.OutBucket, names.OutReclaimQueue,
		names.OutDeadLetterQueue, names.OutCluster, names.OutTaskDefinition, names.OutReapFunction,
		names.OutProbeFunction, names.OutReclaimFunction, names.OutSubnets, names.OutSecurityGroup, names.OutInstall, names.OutMode,
		names.OutShardQueue, names.OutShardDead, names.OutEventDead, names.OutEventBus, names.OutCheckpoint, names.OutCheckpointURL, names.OutSession,
		names.OutTools, names.OutToolsURL, names.OutPlaces, names.OutSchema,
	} {
		if production.Outputs[string(output)] == nil {
			t.Errorf("no output %s", output)
		}
	}
}

// TestLocalVariantStaysLocal: its assembly names an account that is nobody's, and
// takes no endpoint but this machine.
func TestLocalVariantStaysLocal(t *testing.T) {
	for _, id := range []string{names.ParamEndpoint, names.ParamEndpointECS} {
		p := local.Parameters[id]
		if p == nil {
			t.Fatalf("no parameter %s", id)
		}
		same(t, id+" default", p["Default"], nil)
		pattern := regexp.MustCompile(flat(p["AllowedPattern"]))
		for endpoint, allowed := range map[string]bool{
			"http://127.0.0.1:4566": true, "http://localhost:4566": true, "http://[::1]:4566": true,
			"http://host.docker.internal:4566": true, "": false, "https://sqs.example.test": false,
			"http://127.0.0.1.example.test": false, "http://localhost@example.test": false,
		} {
			if pattern.MatchString(endpoint) != allowed {
				t.Errorf("%s: %q allowed is %v, want %v", id, endpoint, !allowed, allowed)
			}
		}
		if production.Parameters[id] != nil {
			t.Errorf("the stack has the local parameter %s", id)
		}
	}
	for _, f := range names.Functions {
		env := at(local.one(t, "AWS::Lambda::Function", string(f)).Properties, "Environment", "Variables")
		same(t, string(f)+" endpoint", at(env, string(names.EndpointURL)), properties{"Ref": names.ParamEndpoint})
		same(t, string(f)+" ECS endpoint", at(env, string(names.EndpointURLECS)), properties{"Ref": names.ParamEndpointECS})
	}
	if !strings.Contains(local.text, localAccount) {
		t.Error("the local variant is not pinned to an account")
	}
	if strings.Contains(production.text, "AWS_ENDPOINT_URL") {
		t.Error("the stack sets an endpoint")
	}
}
