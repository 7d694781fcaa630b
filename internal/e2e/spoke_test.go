package e2e_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/cloudformation"
	cfntypes "github.com/aws/aws-sdk-go-v2/service/cloudformation/types"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	ecstypes "github.com/aws/aws-sdk-go-v2/service/ecs/types"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/engine/enginetest"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/sqsout"
)

const (
	spokeAccount = "111122223333"
	spokeRegion  = "eu-west-1"
	spokeCluster = "arn:aws:ecs:" + spokeRegion + ":" + spokeAccount + ":cluster/agents"
)

// spokeWorld is an installation on an engine that enforces IAM, and its spoke: another
// account in another Region, with an ECS of its own.
type spokeWorld struct {
	*installation
	there      *localfargate.Server
	role       string // name of the spoke's
	trust      string // as the spoke's template has it
	identity   *iam.Client
	definition string // at the spoke
}

func cdkOut(t *testing.T, name string) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", "..", "cdk.out", name))
	if err != nil {
		t.Fatal(err)
	}
	_, err = os.Stat(dir)
	enginetest.Require(t, err)
	return dir
}

// withSpoke deploys the installation and, in the other account, the spoke's own template.
func withSpoke(t *testing.T) *spokeWorld {
	t.Helper()
	hub, there := cdkOut(t, "spokes"), cdkOut(t, "spokes-there")
	e := enginetest.Own(t, engine.Options{IAM: true})
	w := &spokeWorld{installation: &installation{engine: e}}
	abroad := e.Config().Copy()
	abroad.Region, abroad.Credentials = spokeRegion, credentials.NewStaticCredentialsProvider(spokeAccount, "test", "")
	w.identity = iam.NewFromConfig(abroad)
	w.deploySpoke(t, abroad, filepath.Join(there, "sandkeeper-spoke.template.json"))

	sender := &localfargate.Sender{Client: eventbridge.NewFromConfig(e.Config())}
	w.there = fargateOf(t, localfargate.Options{
		Account: spokeAccount, Region: spokeRegion, Clusters: []string{"agents"}, Events: sender.Send,
	})
	keys := sts.NewFromConfig(e.Config())
	w.fargate = fargateOf(t, localfargate.Options{
		Peers: []*localfargate.Server{w.there},
		AccountOf: func(ctx context.Context, key string) (string, error) {
			if key == "test" {
				return engine.Account, nil
			}
			out, err := keys.GetAccessKeyInfo(ctx, &sts.GetAccessKeyInfoInput{AccessKeyId: &key})
			if err != nil {
				return "", err
			}
			return *out.Account, nil
		},
	})
	var err error
	w.out, err = e.Deploy(t.Context(), engine.Deployment{Assembly: hub, ECSEndpoint: w.fargate.URL()})
	enginetest.Require(t, err)
	w.connectAbroad(t)
	w.letSendBatches(t)
	return w
}

// letSendBatches: the engine asks for an action of its own where IAM takes sqs:SendMessage.
func (w *spokeWorld) letSendBatches(t *testing.T) {
	t.Helper()
	document := `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"sqs:SendMessageBatch","Resource":"*"}]}`
	for _, name := range w.functionRoles(t) {
		if _, err := iam.NewFromConfig(w.engine.Config()).PutRolePolicy(t.Context(), &iam.PutRolePolicyInput{
			RoleName: &name, PolicyName: new("engine"), PolicyDocument: &document,
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// functionRoles are the names of the roles at home, by function.
func (w *spokeWorld) functionRoles(t *testing.T) map[string]string {
	t.Helper()
	all, err := cloudformation.NewFromConfig(w.engine.Config()).DescribeStackResources(t.Context(), &cloudformation.DescribeStackResourcesInput{StackName: new(names.Stack)})
	if err != nil {
		t.Fatal(err)
	}
	roles := map[string]string{}
	for _, r := range all.StackResources {
		if *r.ResourceType != "AWS::IAM::Role" {
			continue
		}
		if function, _, is := strings.Cut(*r.LogicalResourceId, "role"); is && slices.Contains(names.Functions, names.Function(function)) {
			roles[function] = *r.PhysicalResourceId
		}
	}
	if len(roles) != len(names.Functions) {
		t.Fatalf("roles %v, want one of each function", roles)
	}
	return roles
}

func fargateOf(t *testing.T, o localfargate.Options) *localfargate.Server {
	t.Helper()
	o.Habits = localfargate.QuickHabits()
	s, err := localfargate.New(o)
	if err == nil {
		err = s.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// deploySpoke creates the stack from its template alone, as a stack set does.
func (w *spokeWorld) deploySpoke(t *testing.T, cfg aws.Config, file string) {
	t.Helper()
	template, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	stacks, name := cloudformation.NewFromConfig(cfg), names.Stack+"-spoke"
	if _, err := stacks.CreateStack(t.Context(), &cloudformation.CreateStackInput{
		StackName: &name, TemplateBody: new(string(template)), Capabilities: []cfntypes.Capability{cfntypes.CapabilityCapabilityNamedIam},
	}); err != nil {
		t.Fatal(err)
	}
	var stack cfntypes.Stack
	await(t, "deploy the spoke", func() bool {
		out, err := stacks.DescribeStacks(t.Context(), &cloudformation.DescribeStacksInput{StackName: &name})
		if err != nil || len(out.Stacks) != 1 {
			t.Fatalf("%+v, %v", out, err)
		}
		stack = out.Stacks[0]
		return stack.StackStatus != cfntypes.StackStatusCreateInProgress
	})
	if stack.StackStatus != cfntypes.StackStatusCreateComplete || len(stack.Outputs) != 1 {
		t.Fatalf("the spoke's stack is %s with %v", stack.StackStatus, stack.Outputs)
	}
	arn := *stack.Outputs[0].OutputValue
	w.role = arn[strings.LastIndex(arn, "/")+1:]
	role, err := w.identity.GetRole(t.Context(), &iam.GetRoleInput{RoleName: &w.role})
	if err != nil {
		t.Fatal(err)
	}
	if w.trust, err = url.PathUnescape(*role.Role.AssumeRolePolicyDocument); err != nil {
		t.Fatal(err)
	}
	// The engine has the session in aws:PrincipalArn, where IAM has the role of it.
	function, session := "arn:aws:iam::"+engine.Account+":role/", "arn:aws:sts::"+engine.Account+":assumed-role/"
	if strings.Count(w.trust, function) != 5 {
		t.Fatalf("the spoke trusts %s, want five functions by their roles", w.trust)
	}
	w.trust = strings.ReplaceAll(w.trust, function, session)
}

func (w *spokeWorld) connectAbroad(t *testing.T) {
	t.Helper()
	cfg := w.engine.Config()
	w.db, w.functions, w.queues = dynamodb.NewFromConfig(cfg), lambda.NewFromConfig(cfg), sqs.NewFromConfig(cfg)
	w.runs = ddb.NewRuns(w.db, w.out[names.OutRunsTable])
	w.boxes = ddb.NewSandboxes(w.db, w.out[names.OutSandboxesTable])
	w.queue = sqsout.New(w.queues, w.out[names.OutReclaimQueue])
	made, err := w.engine.ECS(w.there.URL()).RegisterTaskDefinition(t.Context(), &ecs.RegisterTaskDefinitionInput{
		Family: new("coder"), Cpu: new("256"), Memory: new("512"), NetworkMode: ecstypes.NetworkModeAwsvpc,
		RequiresCompatibilities: []ecstypes.Compatibility{ecstypes.CompatibilityFargate},
		ContainerDefinitions: []ecstypes.ContainerDefinition{{
			Name: new("agent"), Image: new("debian"), Command: []string{"sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.definition = *made.TaskDefinition.TaskDefinitionArn
}

// trustOf gives the spoke's role another trust.
func (w *spokeWorld) trustOf(t *testing.T, document string) {
	t.Helper()
	if _, err := w.identity.UpdateAssumeRolePolicy(t.Context(), &iam.UpdateAssumeRolePolicyInput{RoleName: &w.role, PolicyDocument: &document}); err != nil {
		t.Fatal(err)
	}
}

// in is a definition whose tasks run in a cluster.
func (w *spokeWorld) in(cluster string) map[string]any {
	return map[string]any{"definition": map[string]any{"name": "abroad", "version": 1, "checkpoint": "none", "task": map[string]any{
		"cluster": cluster, "taskDefinition": w.definition, "container": "agent", "subnets": []string{"subnet-1"},
	}}}
}

// living lists the tasks of a server.
func living(t *testing.T, e *engine.Engine, s *localfargate.Server, cluster string) []string {
	t.Helper()
	out, err := e.ECS(s.URL()).ListTasks(t.Context(), &ecs.ListTasksInput{Cluster: &cluster})
	if err != nil {
		t.Fatal(err)
	}
	return out.TaskArns
}

// TestARunInAnotherAccount begins, ends and is reclaimed there, by the functions' own
// roles and the spoke's; without the right external id nothing begins and nothing is
// taken for gone.
func TestARunInAnotherAccount(t *testing.T) {
	w := withSpoke(t)
	c := caller{w.installation, core.ThreadID("thread-" + rand.Text()), "host-" + rand.Text()}
	id := core.RunID("abroad-" + rand.Text())

	err := c.ask(t, "start", w.startRequest(c, id+"-nowhere", strings.Replace(spokeCluster, spokeAccount, "999999999999", 1), "true"), &core.StartReport{})
	if err == nil || !strings.Contains(err.Error(), "no spoke for cluster") {
		t.Errorf("a start in an account that is no spoke: %v", err)
	}

	w.trustOf(t, strings.ReplaceAll(w.trust, "of-the-local-spoke", "of-another"))
	var report core.StartReport
	if err := w.tryStart(t, c, id); err == nil || !strings.Contains(err.Error(), "could not be carried out") {
		t.Errorf("a start under another external id: %v", err)
	}
	if got := living(t, w.engine, w.there, "agents"); len(got) != 0 {
		t.Errorf("tasks %v began without the external id", got)
	}
	w.trustOf(t, w.trust)
	await(t, "start "+string(id), func() bool {
		c.must(t, "start", w.startRequest(c, id, spokeCluster, "echo abroad; exec sleep 3600"), &report)
		return report.State == core.Ready
	})
	if !strings.HasPrefix(report.Run.TaskARN, "arn:aws:ecs:"+spokeRegion+":"+spokeAccount+":task/agents/") {
		t.Fatalf("it runs as %s", report.Run.TaskARN)
	}
	key := core.RunKey{Tenant: "-", Run: id}
	c.must(t, "detach", map[string]any{"run": id, "host": c.host}, &struct{}{})
	w.tickUntil(t, "see it produce", func(r core.SweepReport) bool {
		e := entry(r, key)
		return e != nil && e.Outcome == core.Producing
	})
	var ended core.EndReport
	c.must(t, "cancel", map[string]any{"run": id, "host": c.host}, &ended)
	w.tickUntil(t, "end it and stop its task", func(core.SweepReport) bool {
		return w.run(t, key).Status.Terminal() && len(living(t, w.engine, w.there, "agents")) == 0
	})
	w.tickUntil(t, "close its row", func(core.SweepReport) bool {
		return w.ledger(t, w.run(t, key)).State == core.LedgerClosed
	})
	if got := living(t, w.engine, w.fargate, w.out[names.OutCluster]); len(got) != 0 {
		t.Errorf("tasks %v ran at home", got)
	}
	w.testDaily(t)
	w.testStrangers(t)
}

// tickUntil lets the schedule tick until the answer is yes. An enforcing engine is slow: a
// sweep that ran out of time is followed by another, as a minute later.
func (w *spokeWorld) tickUntil(t *testing.T, what string, is func(core.SweepReport) bool) {
	t.Helper()
	tick := event(t, "reap-tick.json")
	await(t, what, func() bool {
		report, err := w.tryReap(w.out[names.OutReapFunction], tick)
		if err != nil {
			t.Log(err)
		}
		return err == nil && is(report)
	})
}

func (w *spokeWorld) startRequest(c caller, run core.RunID, cluster, shell string) map[string]any {
	q := w.in(cluster)
	q["run"], q["thread"], q["host"], q["agent"] = run, c.thread, c.host, map[string]any{"shell": shell}
	return q
}

// tryStart asks once and returns a failure of the function as an error.
func (w *spokeWorld) tryStart(t *testing.T, c caller, run core.RunID) error {
	t.Helper()
	_, err := c.try(t, "start", w.startRequest(c, run, spokeCluster, "echo abroad; exec sleep 3600"))
	return err
}

// testDaily: what runs in the spoke without a row is found there.
func (w *spokeWorld) testDaily(t *testing.T) {
	t.Helper()
	out, err := w.engine.ECS(w.there.URL()).RunTask(t.Context(), &ecs.RunTaskInput{
		Cluster: new("agents"), TaskDefinition: &w.definition, StartedBy: new(w.out[names.OutInstall] + "/stray"), LaunchType: ecstypes.LaunchTypeFargate,
		NetworkConfiguration: &ecstypes.NetworkConfiguration{AwsvpcConfiguration: &ecstypes.AwsVpcConfiguration{Subnets: []string{"subnet-1"}}},
	})
	if err != nil || len(out.Tasks) != 1 {
		t.Fatalf("%+v, %v", out, err)
	}
	answer, err := w.invoke(w.out[names.OutReapFunction], event(t, "reap-daily.json"))
	var report core.DailyReport
	if err == nil {
		err = json.Unmarshal(answer, &report)
	}
	if err != nil || report.Tasks != 1 || report.Ours != 1 {
		t.Errorf("the daily audit says %s, %v", answer, err)
	}
}

// testStrangers: neither another function of the installation nor a function under
// another's name is let in.
func (w *spokeWorld) testStrangers(t *testing.T) {
	t.Helper()
	home := iam.NewFromConfig(w.engine.Config())
	open := `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"AWS":"arn:aws:iam::` + engine.Account + `:root"},"Action":"sts:AssumeRole"}]}`
	tried := 0
	for function, name := range w.functionRoles(t) {
		if _, err := home.UpdateAssumeRolePolicy(t.Context(), &iam.UpdateAssumeRolePolicyInput{RoleName: &name, PolicyDocument: &open}); err != nil {
			t.Fatal(err)
		}
		own, err := sts.NewFromConfig(w.engine.Config()).AssumeRole(t.Context(), &sts.AssumeRoleInput{
			RoleArn: new("arn:aws:iam::" + engine.Account + ":role/" + name), RoleSessionName: new("test"),
		})
		if err != nil {
			t.Fatal(err)
		}
		cfg := w.engine.Config()
		cfg.Credentials = credentials.NewStaticCredentialsProvider(*own.Credentials.AccessKeyId, *own.Credentials.SecretAccessKey, *own.Credentials.SessionToken)
		for _, as := range []string{"reap", "probe", "checkpoint", "reclaim", "session", "tools"} {
			for _, external := range []string{"of-the-local-spoke", "of-another", ""} {
				q := &sts.AssumeRoleInput{RoleArn: new("arn:aws:iam::" + spokeAccount + ":role/" + w.role), RoleSessionName: &as}
				if external != "" {
					q.ExternalId = &external
				}
				_, err := sts.NewFromConfig(cfg).AssumeRole(t.Context(), q)
				if want := as == function && as != "tools" && external == "of-the-local-spoke"; (err == nil) != want {
					t.Errorf("%s as %s with %q: %v, want it let in: %v", function, as, external, err, want)
				}
				tried++
			}
		}
	}
	if tried < 6*6*3 {
		t.Errorf("%d calls were tried", tried)
	}
}
