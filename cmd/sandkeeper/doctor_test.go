package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ecs"
	ecstypes "github.com/aws/aws-sdk-go-v2/service/ecs/types"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/smithy-go"

	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/roles"
)

// somewhere is an installation with every choice that roles know.
func somewhere() deployed {
	at := deployed{
		install: "prod", bus: "theirs", sample: "arn:aws:ecs:eu-west-1:111122223333:task-definition/prod-sandbox:1",
		partition: "aws", region: "eu-west-1", account: "111122223333", cluster: "agents",
		arns: map[string]string{"cluster": "arn:aws:ecs:eu-west-1:111122223333:cluster/agents", "sandboxrole": "arn:aws:iam::111122223333:role/sandbox", "logs": "arn:aws:s3:::bucket"},
		chosen: names.Chosen{
			TaskTags: map[string]string{"team": "agents"}, HostFunctions: []string{"search"}, Key: "arn:aws:kms:eu-west-1:111122223333:key/1",
			SecretARNs: []string{"arn:aws:secretsmanager:eu-west-1:111122223333:secret:s", "arn:aws:ssm:eu-west-1:111122223333:parameter/p"},
		},
		spokes: []string{"arn:aws:iam::444455556666:role/spoke"},
	}
	for _, table := range []names.Table{names.Runs, names.Sandboxes, names.Checkpoints} {
		at.arns[table.Name] = "arn:aws:dynamodb:eu-west-1:111122223333:table/" + table.Name
	}
	for _, queue := range []string{names.ReclaimJobs, names.SweepShards, names.EventDead} {
		at.arns[strings.ReplaceAll(queue, "-", "")] = "arn:aws:sqs:eu-west-1:111122223333:" + queue
	}
	for _, f := range names.Functions {
		at.arns[string(f)] = "arn:aws:lambda:eu-west-1:111122223333:function:prod-" + string(f)
		at.arns[string(f)+"logs"] = "arn:aws:logs:eu-west-1:111122223333:log-group:/aws/lambda/prod-" + string(f) + ":log-stream:sample"
	}
	return at
}

// TestDoctorAsksForAllThatRolesMayDo: every line of every role is a question of an action
// on something of the installation, with the values that its conditions want.
func TestDoctorAsksForAllThatRolesMayDo(t *testing.T) {
	asked := map[string]map[string]need{}
	for _, row := range roles.Table {
		needs, err := needsOf(row, somewhere())
		if err != nil {
			t.Fatal(err)
		}
		if len(needs) < len(roles.Of[row.Name+"-role"]) {
			t.Errorf("%s: %d questions about %d lines", row.Name, len(needs), len(roles.Of[row.Name+"-role"]))
		}
		asked[row.Name] = map[string]need{}
		for _, n := range needs {
			if n.resource != "*" && (strings.Contains(n.resource, "*") || !strings.HasPrefix(n.resource, "arn:aws:")) {
				t.Errorf("%s: %s on %s", row.Name, n.action, n.resource)
			}
			asked[row.Name][n.action+" "+n.resource] = n
		}
	}
	const task = "arn:aws:ecs:eu-west-1:111122223333:task/agents/sample"
	for _, c := range []struct {
		row, want string
		context   map[string][]string
	}{
		{"reclaim", "ecs:StopTask " + task, map[string][]string{"aws:ResourceTag/team": {"agents"}}},
		{"probe", "ecs:ExecuteCommand " + task, map[string][]string{"aws:ResourceTag/team": {"agents"}}},
		{"reap", "ecs:DescribeTasks " + task, map[string][]string{"ecs:cluster": {"arn:aws:ecs:eu-west-1:111122223333:cluster/agents"}}},
		{"session", "ecs:RunTask arn:aws:ecs:eu-west-1:111122223333:task-definition/prod-sandbox:1", map[string][]string{"ecs:cluster": {"arn:aws:ecs:eu-west-1:111122223333:cluster/agents"}}},
		{"session", "ecs:TagResource " + task, map[string][]string{"ecs:CreateAction": {"RunTask"}}},
		{"session", "iam:PassRole arn:aws:iam::111122223333:role/sandbox", map[string][]string{"iam:PassedToService": {"ecs-tasks.amazonaws.com"}}},
		{"session", "secretsmanager:GetSecretValue arn:aws:secretsmanager:eu-west-1:111122223333:secret:s", nil},
		{"session", "ssm:GetParameter arn:aws:ssm:eu-west-1:111122223333:parameter/p", nil},
		{"session", "s3:PutObject arn:aws:s3:::bucket/sample/logs/sample", nil},
		{"session", "s3:GetObject arn:aws:s3:::bucket/sample/spool/sample", nil},
		{"session", "dynamodb:DeleteItem arn:aws:dynamodb:eu-west-1:111122223333:table/sandboxes", map[string][]string{"dynamodb:LeadingKeys": {"key#sample"}}},
		{"reap", "events:PutEvents arn:aws:events:eu-west-1:111122223333:event-bus/theirs", map[string][]string{"events:source": {names.SourceOwn}}},
		{"tools", "lambda:InvokeFunction arn:aws:lambda:eu-west-1:111122223333:function:search", nil},
		{"reap", "sts:AssumeRole arn:aws:iam::444455556666:role/spoke", nil},
		{"tools", "logs:PutLogEvents arn:aws:logs:eu-west-1:111122223333:log-group:/aws/lambda/prod-tools:log-stream:sample", nil},
		{"schedule", "sqs:SendMessage arn:aws:sqs:eu-west-1:111122223333:event-dead-letters", nil},
		{"checkpoint", "kms:Decrypt arn:aws:kms:eu-west-1:111122223333:key/1", map[string][]string{"kms:ViaService": {"dynamodb.eu-west-1.amazonaws.com"}}},
	} {
		n, ok := asked[c.row][c.want]
		if !ok {
			t.Errorf("%s is not asked for %s, but for %q", c.row, c.want, slices.Sorted(maps.Keys(asked[c.row])))
		} else if !maps.EqualFunc(n.context, c.context, slices.Equal) {
			t.Errorf("%s: %s with %v, want %v", c.row, c.want, n.context, c.context)
		}
	}
	if _, ok := asked["sandbox"]["kms:Decrypt arn:aws:kms:eu-west-1:111122223333:key/1"]; ok {
		t.Error("a sandbox uses the key")
	}
}

// TestDoctorSkipsNoLineThatItCannotRead: a role that may do something new fails, until it
// is known what is asked of it.
func TestDoctorSkipsNoLineThatItCannotRead(t *testing.T) {
	for _, line := range []string{"s3:GetObject other.Arn/x", "s3:GetObject arn:AWS::StackId:x", "ecs:ListTasks", "ecs:ListTasks * if ArnEquals ecs:cluster other.Arn"} {
		if n, err := somewhere().need(line); err == nil {
			t.Errorf("%s: %+v", line, n)
		}
	}
}

// TestDoctorFailsForWhatIsNotThere: a table, bucket, queue, function, schedule, role or
// cluster that was deleted is a failure, and not what may pass.
func TestDoctorFailsForWhatIsNotThere(t *testing.T) {
	for code, want := range map[string]string{
		"ResourceNotFoundException": stateFail, "NoSuchBucket": stateFail, "AWS.SimpleQueueService.NonExistentQueue": stateFail, "QueueDoesNotExist": stateFail,
		"NoSuchEntity": stateFail, "ClusterNotFoundException": stateFail,
		"AccessDeniedException": stateUnknown, "ThrottlingException": stateUnknown, "UnknownOperationException": stateUnknown, "InternalServerError": stateUnknown,
	} {
		d := &doctor{check: "tables"}
		d.unknown(fmt.Errorf("describe: %w", &smithy.GenericAPIError{Code: code, Message: "so"}))
		if c := d.found[0]; c.State != want || c.Cure == "" || !strings.Contains(c.Says, code) {
			t.Errorf("%s: %+v, want %s", code, c, want)
		}
	}
}

// TestDoctorTellsAClockThatIsOff, by the Date of the service's answer.
func TestDoctorTellsAClockThatIsOff(t *testing.T) {
	for off, want := range map[time.Duration]string{0: stateOK, 10 * time.Second: stateWarn, -10 * time.Second: stateWarn, time.Minute: stateFail, -time.Hour: stateFail} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", time.Now().Add(-off).UTC().Format(http.TimeFormat))
			_, _ = io.WriteString(w, `<GetCallerIdentityResponse><GetCallerIdentityResult><Arn>arn:aws:iam::000000000000:root</Arn></GetCallerIdentityResult></GetCallerIdentityResponse>`)
		}))
		cfg, err := (&globals{Local: true, EndpointURL: server.URL}).config(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d := &doctor{in: &installation{cfg: cfg}, check: "identity"}
		d.identity(t.Context())
		server.Close()
		if last := d.found[len(d.found)-1]; last.Check != "clock" || last.State != want || (want == stateOK) != (last.Cure == "") {
			t.Errorf("%s off: %+v, want %s", off, last, want)
		}
	}
}

// TestDoctorTellsAToolOfAnotherVersion before it meets a record that it cannot read, or
// writes one that the functions cannot.
func TestDoctorTellsAToolOfAnotherVersion(t *testing.T) {
	own := strconv.Itoa(names.Schema)
	for deployed, want := range map[string]string{
		own: "", strconv.Itoa(names.Schema + 1): "reads up to " + own, strconv.Itoa(names.Schema - 1): "which they do not read", "": "which they do not read", "new": "no version",
	} {
		says, cure := versionsApart(deployed)
		if (says == "") != (want == "") || !strings.Contains(says, want) || (cure == "") != (want == "") {
			t.Errorf("%q: %q, cure %q", deployed, says, cure)
		}
	}
	installed(t)
	later := read[diagnosed](t, exitFindings, "doctor", "--sandboxes", "0", "--output", "Schema="+strconv.Itoa(names.Schema+1))
	if found := later.of("versions"); len(found) != 1 || found[0].State != stateFail || !strings.Contains(found[0].Cure, "make cli") {
		t.Errorf("of a newer stack: %+v", found)
	}
}

// TestDoctorLooksAtWhatSandboxesAreMadeFrom: the task definitions that kept definitions
// name, not the stack's sample alone.
func TestDoctorLooksAtWhatSandboxesAreMadeFrom(t *testing.T) {
	w := installed(t)
	dir, cfg := t.TempDir(), w.engine.Config()
	cfg.BaseEndpoint = new(w.fargate.URL())
	client := ecs.NewFromConfig(cfg)
	register := func(family string, container ecstypes.ContainerDefinition) {
		t.Helper()
		container.Name, container.Image = new("agent"), new("debian")
		if _, err := client.RegisterTaskDefinition(t.Context(), &ecs.RegisterTaskDefinitionInput{
			Family: &family, Cpu: new("256"), Memory: new("512"), ContainerDefinitions: []ecstypes.ContainerDefinition{container},
		}); err != nil {
			t.Fatal(err)
		}
	}
	put := func(name, family, container, more string) {
		t.Helper()
		text := fmt.Sprintf(`{"name": %q, "version": 1, "task": {"taskDefinition": %q, "container": %q, "subnets": ["s"]%s}}`, name, family, container, more)
		if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	init := &ecstypes.LinuxParameters{InitProcessEnabled: new(true)}
	register("doctored-fit", ecstypes.ContainerDefinition{LinuxParameters: init, StopTimeout: new(int32(120))})
	register("doctored-deaf", ecstypes.ContainerDefinition{ReadonlyRootFilesystem: new(true)})
	put("doctored-fit", "doctored-fit", "agent", `, "taskRole": "arn:aws:iam::000000000000:role/own"`)
	put("doctored-roleless", "doctored-fit", "agent", "")
	put("doctored-deaf", "doctored-deaf", "agent", "")
	put("doctored-absent", "doctored-none", "agent", "")
	put("doctored-other", "doctored-fit", "nosuch", "")
	sandkeeper(t, "definitions", "put", dir, "--why", "a test").wants(t, exitDone)
	found := read[diagnosed](t, exitFindings, "doctor", "--sandboxes", "0").of("definitions")
	for name, wants := range map[string][]string{
		"doctored-fit": {stateOK + " fit for ECS Exec"}, "doctored-roleless": {stateFail + " no task role"},
		"doctored-deaf":   {stateFail + " no task role", stateFail + " read-only root", stateFail + " no init process", stateWarn + " is killed 30 s"},
		"doctored-absent": {stateFail + " no task definition doctored-none"}, "doctored-other": {stateFail + " no container nosuch"},
	} {
		var said []string
		for _, c := range found {
			if strings.HasPrefix(c.Says, name+"@1: ") {
				said = append(said, c.State+" "+c.Says)
			}
		}
		for i, want := range wants {
			state, text, _ := strings.Cut(want, " ")
			if len(said) != len(wants) || !strings.HasPrefix(said[i], state) || !strings.Contains(said[i], text) {
				t.Errorf("%s: %q, want %q", name, said, wants)
			}
		}
	}
}

// TestDoctorFindsWhatSomebodyHasStopped, in an incident perhaps, and forgot: a function whose
// reserved concurrency is 0, and a queue that no longer reaches its function. No deploy that
// changes nothing else takes either back.
func TestDoctorFindsWhatSomebodyHasStopped(t *testing.T) {
	w := installed(t)
	stopped, ctx := w.out[names.OutCheckpoint], context.WithoutCancel(t.Context())
	set := func(n int32) {
		t.Helper()
		if _, err := w.lambda.PutFunctionConcurrency(ctx, &lambda.PutFunctionConcurrencyInput{FunctionName: &stopped, ReservedConcurrentExecutions: &n}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if _, err := w.lambda.DeleteFunctionConcurrency(ctx, &lambda.DeleteFunctionConcurrencyInput{FunctionName: &stopped}); err != nil {
			t.Error(err)
		}
	})
	set(5)
	for _, c := range read[diagnosed](t, exitFindings, "doctor", "--sandboxes", "0").of("functions") {
		if c.State != stateOK {
			t.Errorf("with five invocations: %+v", c)
		}
	}
	set(0)
	mappings, err := w.lambda.ListEventSourceMappings(ctx, &lambda.ListEventSourceMappingsInput{FunctionName: new(w.out[names.OutReclaimFunction])})
	if err != nil || len(mappings.EventSourceMappings) != 1 {
		t.Fatalf("%+v, %v", mappings, err)
	}
	mapping := mappings.EventSourceMappings[0].UUID
	enable := func(on bool) {
		t.Helper()
		if _, err := w.lambda.UpdateEventSourceMapping(ctx, &lambda.UpdateEventSourceMappingInput{UUID: mapping, Enabled: &on}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { enable(true) })
	enable(false)
	found := read[diagnosed](t, exitFindings, "doctor", "--sandboxes", "0")
	for check, want := range map[string]checked{
		"functions": {State: stateFail, Says: stopped + " is stopped", Cure: "delete-function-concurrency --function-name " + stopped},
		"sources":   {State: stateFail, Says: "what is sent there waits", Cure: "--enabled --uuid " + *mapping},
	} {
		bad := slices.DeleteFunc(found.of(check), func(c checked) bool { return c.State == stateOK })
		if len(bad) != 1 || bad[0].State != want.State || !strings.Contains(bad[0].Says, want.Says) || !strings.Contains(bad[0].Cure, want.Cure) {
			t.Errorf("%s: %+v, want %+v", check, bad, want)
		}
	}
}

// TestDoctorFindsFunctionsThatAskAnotherECS than this tool does: of what they start here, it
// would say that it is lost.
func TestDoctorFindsFunctionsThatAskAnotherECS(t *testing.T) {
	w := installed(t)
	t.Setenv("AWS_ENDPOINT_URL_ECS", w.engine.Endpoint)
	found := read[diagnosed](t, exitFindings, "doctor", "--sandboxes", "0").of("functions")
	for _, c := range found {
		if c.State != stateFail || !strings.Contains(c.Says, w.engine.Endpoint) || !strings.Contains(c.Cure, "AWS_ENDPOINT_URL_ECS="+w.fargate.URL()) {
			t.Errorf("%+v", c)
		}
	}
	if len(found) != len(names.Functions) {
		t.Errorf("found %+v", found)
	}
	for _, row := range []struct {
		a, b string
		same bool
	}{
		{"http://127.0.0.1:4570", "http://localhost:4570/", true},
		{"http://host.docker.internal:4570", "http://[::1]:4570", true},
		{"http://127.0.0.1:4570", "http://127.0.0.1:4566", false},
		{"http://127.0.0.1:4570", "https://127.0.0.1:4570", false},
		{"http://127.0.0.1:4570", "", false},
		{"https://ecs.example.test", "https://ecs.example.test", true},
		{"https://ecs.example.test", "https://localhost", false},
	} {
		if got := sameEndpoint(row.a, row.b); got != row.same {
			t.Errorf("%s and %s: %v, want %v", row.a, row.b, got, row.same)
		}
	}
}

// TestDoctorWarnsWhereNobodyHearsOfAlarms: a cleaner that has stopped is else not noticed.
func TestDoctorWarnsWhereNobodyHearsOfAlarms(t *testing.T) {
	for chosen, want := range map[string]checked{
		"":                               {State: stateWarn, Says: "no alarm tells anybody"},
		`{"hostFunctions":["search"]}`:   {State: stateWarn, Says: "no alarm tells anybody"},
		`{"alarmTopic":"arn:aws:sns:x"}`: {State: stateOK, Says: "arn:aws:sns:x hears of them"},
		"{":                              {State: stateUnknown},
	} {
		d := &doctor{in: &installation{out: map[names.Output]string{names.OutChosen: chosen}}}
		d.alarms(t.Context())
		if len(d.found) != 1 || d.found[0].State != want.State || !strings.Contains(d.found[0].Says, want.Says) || (d.found[0].Cure == "") != (want.State == stateOK) {
			t.Errorf("%q: %+v", chosen, d.found)
		}
	}
}
