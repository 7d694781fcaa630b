package engine_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	ecstypes "github.com/aws/aws-sdk-go-v2/service/ecs/types"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/engine/policy"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// commandRows say how each command of the tool is tried by an operator. Several are
// several tries; none is a command that asks no service of AWS's.
var commandRows = map[string][]string{
	"plan": {"plan --out PLAN"}, "apply": {"apply PLAN --yes"}, "sweep": {"sweep --yes", "sweep --dry-run"},
	"runs": {"runs", "runs --all"}, "show": {"show acme/r"}, "explain": {"explain acme/r"},
	"logs": {"logs acme/r", "logs acme/r --live"}, "watch": {"watch --count 1"},
	"hold": {"hold acme/r --for 1h --why w"}, "release": {"release acme/r --why w --yes"}, "extend": {"extend acme/r --by 1h --why w"},
	"kill": {"kill acme/r --now --why w --yes"}, "freeze": {"freeze --why w"}, "thaw": {"thaw --why w --yes"},
	"mode": {"mode", "mode observe --why w", "mode enforce --why w --yes"}, "redrive": {"redrive --yes"},
	"audit tasks": {"audit tasks"}, "audit trail": {"audit trail"},
	"checkpoints list": {"checkpoints list acme/t"}, "checkpoints head": {"checkpoints head acme/t"}, "checkpoints show": {"checkpoints show acme/t"},
	"checkpoints diff": {"checkpoints diff acme/t a b"}, "checkpoints restore": {"checkpoints restore acme/t --to TO", "checkpoints restore acme/t --why w --yes"},
	"checkpoints fork": {"checkpoints fork acme/t u --why w"}, "checkpoints verify": {"checkpoints verify acme/t"},
	"checkpoints gc": {"checkpoints gc acme/t"}, "checkpoints keep": {"checkpoints keep acme/t --newest 1 --why w --yes"},
	"threads list": {"threads list"}, "threads show": {"threads show acme/t"}, "threads delete": {"threads delete acme/t --why w --yes"},
	"definitions put": {"definitions put DEFINITION --why w"}, "definitions list": {"definitions list"}, "definitions show": {"definitions show coder"},
	"cost": {"cost", "cost --vcpu 1 --memory-gb 2"}, "doctor": {"doctor"}, "bench": {"bench"},
	"local": nil, "demo": nil, "completion": nil,
}

const aDefinition = `{"name": "coder", "version": 1, "task": {"taskDefinition": "sample", "container": "agent", "subnets": ["subnet-1"]}}`

// refusals are how AWS, and the tool after it, say that the caller may not.
var refusals = regexp.MustCompile(`(?i)access ?denied|not authorized|let the caller do what the error names`)

// testOperator runs the tool under the role of an operator. Whatever a command comes to,
// no call of it is refused; and the same command under a role without grants is, so that
// the engine is known to ask.
func (w *iamWorld) testOperator(t *testing.T) {
	dir := t.TempDir()
	tool := filepath.Join(dir, "sandkeeper")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", tool, "../../cmd/sandkeeper").CombinedOutput(); err != nil {
		t.Fatalf("build the tool: %v\n%s", err, out)
	}
	w.someRun(t)
	w.letSimulate(t)
	definition := filepath.Join(dir, "definition.json")
	if err := os.WriteFile(definition, []byte(aDefinition), 0o600); err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("PLAN", filepath.Join(dir, "plan.json"), "TO", filepath.Join(dir, "to"), "DEFINITION", definition)
	local := w.localECS(t)
	run := func(as deployedRole, line string) string {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		command := exec.CommandContext(ctx, tool, strings.Fields(fill.Replace(line))...)
		// The last of a name holds.
		command.Env = slices.Concat(w.Env(), as.env, []string{"AWS_ENDPOINT_URL_ECS=" + local})
		out, err := command.CombinedOutput()
		if ctx.Err() != nil {
			t.Errorf("%s: %v, %v", line, ctx.Err(), err)
		}
		return string(out)
	}
	// What ends runs comes after what keeps them.
	keep := []string{"hold", "release", "extend", "kill"}
	ends := func(name string) bool { return slices.Contains(keep, name) }
	for _, name := range slices.Concat(keep, slices.DeleteFunc(manualsCommands(t), ends)) {
		rows, ok := commandRows[name]
		if !ok {
			t.Errorf("no row says how an operator tries %s", name)
		}
		for _, line := range rows {
			out := run(w.operator, line)
			if refusals.MatchString(out) || strings.Contains(out, "see sandkeeper --help") {
				t.Errorf("sandkeeper %s: %s", line, out)
			}
			if line == "doctor" && !strings.Contains(out, "reap: ") {
				t.Errorf("sandkeeper doctor simulates nothing: %s", out)
			}
		}
	}
	i := slices.IndexFunc(w.roles, func(r deployedRole) bool { return r.name == "sandbox-role" })
	for _, line := range []string{"runs", "doctor", "cost"} {
		if out := run(w.roles[i], line); !refusals.MatchString(out) {
			t.Errorf("sandkeeper %s by one who may do nothing: %s", line, out)
		}
	}
}

// letSimulate lets the operator ask for simulations of every role: the engine looks for a
// grant on everything where IAM looks for one on the role, which the policy is judged for. And
// it lets it read how many of a function may run, for which the engine wants the grant to set
// that.
func (w *iamWorld) letSimulate(t *testing.T) {
	t.Helper()
	const action = "iam:SimulatePrincipalPolicy"
	for _, role := range w.roles {
		if !w.operator.policy.Allows(policy.Request{Action: action, Resource: "arn:aws:iam::" + engine.Account + ":role/" + role.physical}) {
			t.Errorf("an operator may not %s on %s", action, role.name)
		}
	}
	const reads, writes = "lambda:GetFunctionConcurrency", "lambda:PutFunctionConcurrency"
	for _, f := range names.Functions {
		arn := "arn:aws:lambda:" + engine.Region + ":" + engine.Account + ":function:" + names.Stack + "-" + string(f)
		if !w.operator.policy.Allows(policy.Request{Action: reads, Resource: arn}) || w.operator.policy.Allows(policy.Request{Action: writes, Resource: arn}) {
			t.Errorf("an operator may not %s on %s, or may %s", reads, f, writes)
		}
	}
	if w.operator.policy.Allows(policy.Request{Action: action, Resource: "arn:aws:iam::" + engine.Account + ":role/another"}) {
		t.Errorf("an operator may %s on a role that is not the stack's", action)
	}
	_, err := w.admin.identity.PutRolePolicy(t.Context(), &iam.PutRolePolicyInput{
		RoleName: &w.operator.physical, PolicyName: new("engine"),
		PolicyDocument: new(`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["` + action + `","` + writes + `"],"Resource":"*"}]}`),
	})
	if err != nil {
		t.Fatal(err)
	}
}

// manualsCommands are all that docs/cli.md has, which the tool's own tests hold complete.
func manualsCommands(t *testing.T) []string {
	t.Helper()
	manual, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, _ := strings.Cut(string(manual), "\n## Commands\n")
	part, _, _ = strings.Cut(part, "\n## ")
	var all []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z ]+)` \\|").FindAllStringSubmatch(part, -1) {
		all = append(all, row[1])
	}
	if len(all) < 30 {
		t.Fatalf("docs/cli.md has %d commands: %q", len(all), all)
	}
	return all
}

// someRun is a run that waits for its task, and a dead letter of each queue.
func (w *iamWorld) someRun(t *testing.T) {
	t.Helper()
	host := core.Launcher{Runs: ddb.NewRuns(dynamodb.NewFromConfig(w.Config()), w.out[names.OutRunsTable])}
	_, err := host.Start(t.Context(), core.RunRequest{
		RunKey: core.RunKey{Tenant: "acme", Run: "r"}, Thread: "t", HostNonce: "host", Definition: "coder", Reclaim: core.ReclaimEnd, Checkpoint: core.CheckpointNone,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, output := range []names.Output{names.OutDeadLetterQueue, names.OutShardDead, names.OutEventDead} {
		if _, err := w.admin.queues.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: new(w.out[output]), MessageBody: new(`{}`)}); err != nil {
			t.Fatal(err)
		}
	}
}

// localECS serves ECS, of whose permissions testConditions judges.
func (w *iamWorld) localECS(t *testing.T) string {
	t.Helper()
	server, err := localfargate.New(localfargate.Options{Dir: t.TempDir(), Habits: localfargate.QuickHabits()})
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	i := slices.IndexFunc(w.roles, func(r deployedRole) bool { return r.name == "sandbox-role" })
	_, err = w.ECS(server.URL()).RegisterTaskDefinition(t.Context(), &ecs.RegisterTaskDefinitionInput{
		Family: new(names.Stack + "-" + names.SandboxFamily), NetworkMode: ecstypes.NetworkModeAwsvpc,
		TaskRoleArn:          new("arn:aws:iam::" + engine.Account + ":role/" + w.roles[i].physical),
		ContainerDefinitions: []ecstypes.ContainerDefinition{{Name: new(names.AgentContainer), Image: new("image"), Essential: new(true)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return server.URL()
}
