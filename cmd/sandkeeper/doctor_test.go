package main

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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
