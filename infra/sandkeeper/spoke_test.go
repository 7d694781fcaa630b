package sandkeeper

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/roles"
)

const (
	spokeRoleARN = "arn:aws:iam::111122223333:role/keeper-spoke-eu-west-1"
	spokesText   = `[{"role":"` + spokeRoleARN + `","region":"eu-west-1","externalId":"7d0e","clusters":["agents"]}]`
	spokeText    = `{"hub":"arn:aws:ecs:us-east-1:444455556666:cluster/keeper","install":"keeper","externalId":"7d0e","clusters":["agents"],` +
		`"taskFamilies":["coder"],"taskRoles":["arn:aws:iam::111122223333:role/coder"],"taskTags":{"app":"agents"},"tags":{"team":"x"}}`
)

// spokeOf is the stack of an app with that spoke.
func spokeOf(t *testing.T, context any) template {
	t.Helper()
	out := t.TempDir()
	app := awscdk.NewApp(&awscdk.AppProps{Outdir: &out, Context: &map[string]any{"spoke": context}})
	p, ok := SpokeFromContext(app)
	if !ok {
		t.Fatal("the context has no spoke")
	}
	stack := NewSpokeStack(app, p)
	app.Synth(nil)
	return templateOf(out, *stack.StackName())
}

// TestSpokesAreAssumedByWhoAsksECS, heard of, and told to the functions; without any
// nobody assumes a role.
func TestSpokesAreAssumedByWhoAsksECS(t *testing.T) {
	for name, context := range map[string]any{"the CLI's text": spokesText, "JSON": decoded(t, spokesText)} {
		t.Run(name, func(t *testing.T) { testSpokes(t, chosen(t, map[string]any{"spokes": context})) })
	}
	if strings.Contains(production.text, "sts:AssumeRole\",\"Resource") || strings.Contains(production.text, "AWS::Events::EventBusPolicy") {
		t.Error("the stack without spokes assumes a role or hears of other accounts")
	}
	same(t, "places without spokes", flat(at(production.Outputs[string(names.OutPlaces)], "Value")), `{"home":"cluster.Arn","spokes":[]}`)
}

func testSpokes(t *testing.T, of template) {
	for _, row := range roles.Table {
		role := row.Name + "-role"
		want := slices.Clone(ships[role])
		if row.Has("spokes") {
			want = append(want, "sts:AssumeRole "+spokeRoleARN)
		}
		got := grants(t, of.one(t, "AWS::IAM::Role", role))
		slices.Sort(want)
		slices.Sort(got)
		same(t, role+" may", got, want)
	}
	told := `{"home":"cluster.Arn","spokes":` + spokesText + "}"
	for _, f := range names.Functions {
		if slices.Contains(names.Env[f], names.Places) {
			env := at(of.one(t, "AWS::Lambda::Function", string(f)).Properties, "Environment", "Variables")
			same(t, string(f)+" is told", flat(at(env, string(names.Places))), told)
		}
	}
	rule := of.one(t, "AWS::Events::Rule", "task-stopped")
	same(t, "clusters heard of", flat(at(rule.Properties, "EventPattern", "detail", "clusterArn")), "cluster.Arn,arn:aws:ecs:eu-west-1:111122223333:cluster/agents")
	policy := of.one(t, "AWS::Events::EventBusPolicy", "hears-111122223333").Properties
	same(t, "who is heard", flat(at(policy, "Statement", "Principal", "AWS")), "arn:AWS::Partition:iam::111122223333:root")
	same(t, "what is heard", at(policy, "Statement", "Condition"), properties{"StringEquals": properties{
		"events:source": names.SourceECS, "events:detail-type": names.DetailTaskState,
	}})
}

func decoded(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

const (
	abroadTasks = "arn:AWS::Partition:ecs:AWS::Region:AWS::AccountId:task/agents/*"
	abroadOnes  = "arn:AWS::Partition:ecs:AWS::Region:AWS::AccountId:cluster/agents"
)

// TestASpokeGrantsNoMoreThanItSays.
func TestASpokeGrantsNoMoreThanItSays(t *testing.T) {
	of := spokeOf(t, spokeText)
	tagged, cluster := " if StringEquals aws:ResourceTag/app agents", " if ArnEquals ecs:cluster "+abroadOnes
	as := func(callers ...string) string { return " if StringLike aws:userid *:" + strings.Join(callers, ",*:") }
	want := []string{
		"ecs:DescribeTasks " + abroadTasks + cluster + as("reap", "reclaim", "session", "operator"),
		"ecs:ListTasks *" + cluster + as("reap", "operator"),
		"ecs:ExecuteCommand " + abroadTasks + tagged + as("probe", "checkpoint", "session"),
		"ecs:ExecuteCommand " + abroadOnes + as("probe", "checkpoint", "session"),
		"ssmmessages:OpenDataChannel arn:AWS::Partition:ssm:AWS::Region:AWS::AccountId:session/ecs-execute-command-*" + as("probe", "checkpoint", "session"),
		"ecs:StopTask " + abroadTasks + tagged + as("reclaim"),
		"ecs:RunTask arn:AWS::Partition:ecs:AWS::Region:AWS::AccountId:task-definition/coder:*" + cluster + as("session"),
		"ecs:TagResource " + abroadTasks + " if StringEquals ecs:CreateAction RunTask" + as("session"),
		"iam:PassRole arn:aws:iam::111122223333:role/coder if StringEquals iam:PassedToService ecs-tasks.amazonaws.com" + as("session"),
	}
	role := of.one(t, "AWS::IAM::Role", "role")
	got := grants(t, role)
	slices.Sort(want)
	slices.Sort(got)
	same(t, "the spoke's role may", got, want)
	same(t, "its name", flat(role.Properties["RoleName"]), "keeper-spoke-AWS::Region")
	same(t, "the event role may", grants(t, of.one(t, "AWS::IAM::Role", "event-role")), []string{
		"events:PutEvents arn:aws:events:us-east-1:444455556666:event-bus/default",
	})
	if n := len(of.all(t, "AWS::IAM::Role")); n != 2 {
		t.Errorf("%d roles, want 2", n)
	}
	if len(of.Parameters) != 0 {
		t.Errorf("it wants parameters: %v", of.Parameters)
	}
}

// TestASpokeTrustsEachFunctionByItsOwnName, with the external id.
func TestASpokeTrustsEachFunctionByItsOwnName(t *testing.T) {
	of := spokeOf(t, spokeText)
	trusted := map[string]string{}
	for _, s := range at(of.one(t, "AWS::IAM::Role", "role").Properties, "AssumeRolePolicyDocument", "Statement").([]any) {
		same(t, "who", flat(at(s, "Principal", "AWS")), "arn:AWS::Partition:iam::444455556666:root")
		same(t, "action", at(s, "Action"), "sts:AssumeRole")
		same(t, "external id", at(s, "Condition", "StringEquals", "sts:ExternalId"), "7d0e")
		trusted[flat(at(s, "Condition", "StringEquals", "sts:RoleSessionName"))] = fmt.Sprint(at(s, "Condition", "ArnLike", "aws:PrincipalArn"))
	}
	want := map[string]string{names.Operator: "<nil>"}
	for _, f := range abroad[:len(abroad)-1] {
		want[f] = "arn:aws:iam::444455556666:role/keeper-" + f + "role*"
		// What CloudFormation calls the role of the function, by its logical id.
		id := ""
		for logical := range production.all(t, "AWS::IAM::Role") {
			if readable(logical) == f+"role" {
				id = "keeper-" + logical + "-A1B2C3D4E5F6"
			}
		}
		if prefix := "keeper-" + f + "role"; !strings.HasPrefix(id, prefix) {
			t.Errorf("the role of %s is called %q, want %s…", f, id, prefix)
		}
	}
	for name, pattern := range trusted {
		if got := strings.Trim(pattern, "[]"); got != want[name] {
			t.Errorf("%s is trusted as %s, want %s", name, got, want[name])
		}
	}
	same(t, "callers", slices.Sorted(maps.Keys(trusted)), slices.Sorted(slices.Values(abroad)))
}

// TestASpokeTrustsNoOtherInstallation, not even one in the same account whose name begins
// with this one's.
func TestASpokeTrustsNoOtherInstallation(t *testing.T) {
	for _, s := range at(spokeOf(t, spokeText).one(t, "AWS::IAM::Role", "role").Properties, "AssumeRolePolicyDocument", "Statement").([]any) {
		pattern := strings.Trim(fmt.Sprint(at(s, "Condition", "ArnLike", "aws:PrincipalArn")), "[]")
		shape := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + "$")
		for id := range production.all(t, "AWS::IAM::Role") {
			for stack, own := range map[string]bool{"keeper": true, "keeper-beside": false, "keepers": false} {
				role := "arn:aws:iam::444455556666:role/" + stack + "-" + id + "-A1B2C3D4E5F6"
				if own = own && readable(id) == flat(at(s, "Condition", "StringEquals", "sts:RoleSessionName"))+"role"; shape.MatchString(role) != own {
					t.Errorf("%s: %s is trusted: %v", pattern, role, !own)
				}
			}
		}
	}
}

// TestAFunctionMayAbroadWhatItMayAtHome: the same actions of ECS, neither fewer nor more.
func TestAFunctionMayAbroadWhatItMayAtHome(t *testing.T) {
	of := spokeOf(t, spokeText)
	there := map[string]map[string]bool{}
	for _, line := range grants(t, of.one(t, "AWS::IAM::Role", "role")) {
		_, callers, _ := strings.Cut(line, "aws:userid ")
		for caller := range strings.SplitSeq(callers, ",") {
			name := strings.TrimPrefix(caller, "*:")
			if there[name] == nil {
				there[name] = map[string]bool{}
			}
			there[name][strings.Fields(line)[0]] = true
		}
	}
	for _, f := range abroad[:len(abroad)-1] {
		here := map[string]bool{}
		for _, line := range ships[f+"-role"] {
			if action := strings.Fields(line)[0]; strings.HasPrefix(action, "ecs:") || strings.HasPrefix(action, "ssmmessages:") || action == "iam:PassRole" {
				here[action] = true
			}
		}
		same(t, f+" may abroad", slices.Sorted(maps.Keys(there[f])), slices.Sorted(maps.Keys(here)))
	}
	same(t, "the operator may", slices.Sorted(maps.Keys(there[names.Operator])), []string{"ecs:DescribeTasks", "ecs:ListTasks"})
}

// TestASpokeTellsOfItsTasks: with the same pattern as at home, to the bus that listens.
func TestASpokeTellsOfItsTasks(t *testing.T) {
	rule := spokeOf(t, spokeText).one(t, "AWS::Events::Rule", "task-stopped").Properties
	detail := at(rule, "EventPattern", "detail").(properties)
	same(t, "clusters", flat(detail["clusterArn"]), abroadOnes)
	same(t, "groups", detail["group"], []string{"family:coder"})
	home := at(production.one(t, "AWS::Events::Rule", "task-stopped").Properties, "EventPattern")
	for _, key := range []string{"lastStatus", "desiredStatus"} {
		same(t, key, detail[key], at(home, "detail", key))
	}
	same(t, "source", at(rule, "EventPattern", "source"), at(home, "source"))
	target := rule["Targets"].([]any)[0]
	same(t, "target", flat(at(target, "Arn")), "arn:aws:events:us-east-1:444455556666:event-bus/default")
	same(t, "sender", flat(at(target, "RoleArn")), "eventrole.Arn")
}

func TestSpokesAreRefusedWithWhatWasExpected(t *testing.T) {
	many := []core.Spoke{}
	for i := range 30 {
		many = append(many, core.Spoke{Role: fmt.Sprintf("arn:aws:iam::1111222233%02d:role/keeper-spoke-eu-west-1", i), Region: "eu-west-1", ExternalID: "7d0e", Clusters: []string{"agents"}})
	}
	text, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		make func()
		want string
	}{
		"a role that is none":     {func() { chosen(t, map[string]any{"spokes": strings.Replace(spokesText, ":role/", ":user/", 1)}) }, "context spokes: spoke 1: role: want the ARN of a role"},
		"what is no JSON":         {func() { chosen(t, map[string]any{"spokes": "eu-west-1"}) }, "context spokes: decode JSON"},
		"too many":                {func() { chosen(t, map[string]any{"spokes": string(text)}) }, "begin another installation"},
		"a hub that is none":      {func() { spokeOf(t, strings.Replace(spokeText, "444455556666", "home", 1)) }, "spoke hub: want the ARN of the installation's cluster"},
		"no external id":          {func() { spokeOf(t, strings.Replace(spokeText, `"7d0e"`, `""`, 1)) }, "spoke externalId: want"},
		"roles of any family":     {func() { spokeOf(t, strings.Replace(spokeText, `["coder"]`, `[]`, 1)) }, "spoke taskRoles: want taskFamilies with them"},
		"an install that is none": {func() { spokeOf(t, strings.Replace(spokeText, `"install":"keeper"`, `"install":"a b*"`, 1)) }, "spoke install: want letters"},
		"a name too long for its role": {func() {
			spokeOf(t, strings.Replace(spokeText, `"install":"keeper"`, `"install":"`+strings.Repeat("a", 50)+`"`, 1))
		}, "spoke roleName: want one"},
		"a name that is shortened": {func() {
			spokeOf(t, strings.Replace(spokeText, `"install":"keeper"`, `"install":"`+strings.Repeat("a", 25)+`"`, 1))
		}, "spoke callers: want patterns for reap"},
		"a role's name that is none": {func() { spokeOf(t, strings.Replace(spokeText, `"install"`, `"roleName":"a b","install"`, 1)) }, "spoke roleName: want the name of a role"},
		"a caller that is none": {func() {
			spokeOf(t, strings.Replace(spokeText, `"install"`, `"callers":{"reaper":["arn:aws:iam::444455556666:role/a"]},"install"`, 1))
		}, `spoke callers: want some of reap, probe`},
		"every caller": {func() { spokeOf(t, strings.Replace(spokeText, `"install"`, `"callers":{"reap":["*"]},"install"`, 1)) }, `spoke callers: reap: want patterns of ARNs as arn:aws:iam::444455556666:role/name-*, got "*"`},
		"every role": {func() {
			spokeOf(t, strings.Replace(spokeText, `"install"`, `"callers":{"reap":["arn:aws:iam::444455556666:role/*"]},"install"`, 1))
		}, `spoke callers: reap: want patterns`},
		"a caller of another account": {func() {
			spokeOf(t, strings.Replace(spokeText, `"install"`, `"callers":{"reap":["arn:aws:iam::999999999999:role/a"]},"install"`, 1))
		}, `spoke callers: reap: want patterns`},
		"every family":        {func() { spokeOf(t, strings.Replace(spokeText, `"coder"`, `"*"`, 1)) }, "spoke taskFamilies: want names of families"},
		"every role of tasks": {func() { spokeOf(t, strings.Replace(spokeText, `role/coder`, `role/*`, 1)) }, "spoke taskRoles: want ARNs of roles"},
		"another choice":      {func() { spokeOf(t, strings.Replace(spokeText, `"tags"`, `"tag"`, 1)) }, "context spoke: decode JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if said := fmt.Sprint(recover()); !strings.Contains(said, c.want) {
					t.Errorf("said %q, want %q", said, c.want)
				}
			}()
			c.make()
		})
	}
}
