package sandkeeper

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsevents"
	"github.com/aws/aws-cdk-go/awscdk/v2/awseventstargets"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// SpokeProps is what is chosen for one account and Region in which an installation's
// sandboxes may run beside its own.
type SpokeProps struct {
	// Hub is the ARN of the installation's own cluster, its output ClusterArn: it says in
	// which account and Region the installation is.
	Hub string `json:"hub"`
	// Install names the installation, whose stack has that name. Default: sandkeeper.
	Install string `json:"install"`
	// ExternalID is what the installation shows when it assumes the role.
	ExternalID string `json:"externalId"`
	// Clusters are the names of the clusters here that it may use. They are not made.
	Clusters []string `json:"clusters"`
	// RoleName is the role's. Default: <Install>-spoke-<Region>.
	RoleName string `json:"roleName"`
	// Callers are, by the function's short name, patterns of the ARNs of the roles that may
	// assume the role in the function's name. Default: those of a stack that [NewStack] makes,
	// called after the installation, while its name has at most 24 characters.
	Callers map[string][]string `json:"callers"`
	// TaskFamilies, TaskRoles and TaskTags are as in [Props].
	TaskFamilies []string          `json:"taskFamilies"`
	TaskRoles    []string          `json:"taskRoles"`
	TaskTags     map[string]string `json:"taskTags"`
	// PermissionsBoundary and Tags are as in [Props].
	PermissionsBoundary string            `json:"permissionsBoundary"`
	Tags                map[string]string `json:"tags"`
}

// Spoke is one account and Region in which an installation may run sandboxes.
type Spoke struct {
	constructs.Construct

	stack awscdk.Stack
	props SpokeProps
	hub   hub
}

// hub is where the installation is.
type hub struct{ partition, region, account string }

var hubARN = regexp.MustCompile(`^arn:(aws[a-z-]*):ecs:([a-z0-9-]+):([0-9]{12}):cluster/[A-Za-z0-9_-]+$`)

// NewSpokeStack makes a stack that holds one spoke and nothing else. Its template asks for
// nothing that cdk bootstrap makes, so that stack sets take it.
func NewSpokeStack(app constructs.Construct, p SpokeProps) awscdk.Stack {
	p, _ = p.complete()
	name := p.Install + "-spoke"
	stack := awscdk.NewStack(app, &name, &awscdk.StackProps{
		StackName: &name, Description: new("Lets Sandkeeper of another account or Region run sandboxes here"),
		Synthesizer: awscdk.NewBootstraplessSynthesizer(nil),
	})
	NewSpoke(stack, "Default", p)
	return stack
}

// SpokeFromContext reads the context "spoke": the JSON of [SpokeProps]. ok is false where
// there is none.
func SpokeFromContext(app awscdk.App) (p SpokeProps, ok bool) {
	c := reader{app, map[string]bool{}}
	if ok = c.json("spoke", &p); ok {
		c.refuseOthers()
	}
	return p, ok
}

// NewSpoke makes the role that an installation assumes in this stack's account and Region,
// and has the ends of its tasks told to it.
func NewSpoke(scope constructs.Construct, id string, p SpokeProps) *Spoke {
	p, at := p.complete()
	s := &Spoke{Construct: constructs.NewConstruct(scope, &id), stack: awscdk.Stack_Of(scope), props: p, hub: at}
	s.props.RoleName = cmp.Or(p.RoleName, p.Install+"-spoke-"+*s.stack.Region())
	for _, name := range slices.Sorted(maps.Keys(p.Tags)) {
		awscdk.Tags_Of(s.Construct).Add(&name, new(p.Tags[name]), nil)
	}
	if p.PermissionsBoundary != "" {
		bound := awsiam.ManagedPolicy_FromManagedPolicyArn(s.Construct, new("boundary"), &p.PermissionsBoundary)
		awsiam.PermissionsBoundary_Of(s.Construct).Apply(bound)
	}
	role := s.role()
	s.forward()
	suppressIn(s.Construct)
	output := awscdk.NewCfnOutput(s.Construct, new("SpokeRole"), &awscdk.CfnOutputProps{Value: role.RoleArn()})
	output.OverrideLogicalId(new("SpokeRole"))
	return s
}

// abroad are the functions that act in spokes, and the operator's tool.
var abroad = []string{string(names.Reap), string(names.Probe), string(names.Checkpoint), string(names.Reclaim), string(names.Session), names.Operator}

// role is what the installation may do here. A function is told by its session's name,
// which the trust binds to the function's own role: each may here what it may at home.
func (s *Spoke) role() awsiam.Role {
	policy := awsiam.NewPolicyDocument(nil)
	for _, g := range s.grants() {
		policy.AddStatements(statementOf(g))
	}
	role := awsiam.NewRole(s.Construct, new("role"), &awsiam.RoleProps{
		RoleName:       &s.props.RoleName,
		Description:    new("Assumed by Sandkeeper " + s.props.Install + " of account " + s.hub.account),
		AssumedBy:      s.trusted(abroad[0]),
		InlinePolicies: &map[string]awsiam.PolicyDocument{"own": policy},
	})
	for _, caller := range abroad[1:] {
		role.AssumeRolePolicy().AddStatements(awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
			Actions: texts([]string{"sts:AssumeRole"}), Principals: &[]awsiam.IPrincipal{s.trusted(caller)},
		}))
	}
	return role
}

// trusted is one caller of the installation's account. Its role is named by a condition
// rather than as the principal: as such it would have to be there before the spoke, and
// would be forgotten with the role.
func (s *Spoke) trusted(caller string) awsiam.PrincipalWithConditions {
	conditions := map[string]any{
		"StringEquals": map[string]any{"sts:ExternalId": s.props.ExternalID, "sts:RoleSessionName": caller},
	}
	patterns := s.props.Callers[caller]
	if len(patterns) == 0 && caller != names.Operator {
		// As CloudFormation names what a stack does not: the stack, the logical id. Nothing may
		// stand between, or a stack whose name begins with this one's would be trusted.
		patterns = []string{"arn:" + s.hub.partition + ":iam::" + s.hub.account + ":role/" + s.props.Install + "-" + caller + "role*"}
	}
	if len(patterns) > 0 {
		conditions["ArnLike"] = map[string]any{"aws:PrincipalArn": patterns}
	}
	return awsiam.NewPrincipalWithConditions(awsiam.NewAccountPrincipal(s.hub.account), &conditions)
}

// may is a grant of those callers alone.
func may(callers []string, g grant) grant {
	sessions := make([]string, len(callers))
	for i, c := range callers {
		sessions[i] = "*:" + c
	}
	all := map[string]any{"StringLike": map[string]any{"aws:userid": sessions}}
	maps.Copy(all, g.conditions)
	g.conditions = all
	return g
}

// The callers of each thing that is done to tasks.
var (
	describers = []string{string(names.Reap), string(names.Reclaim), string(names.Session), names.Operator}
	listers    = []string{string(names.Reap), names.Operator}
	askers     = []string{string(names.Probe), string(names.Checkpoint), string(names.Session)}
	stoppers   = []string{string(names.Reclaim)}
	starters   = []string{string(names.Session)}
)

func (s *Spoke) grants() []grant {
	tagged := tagConditions(s.props.TaskTags)
	out := []grant{
		// No tags: of a task that ECS has forgotten there are none to ask for.
		may(describers, grant{actions: []string{"ecs:DescribeTasks"}, resources: s.tasks(), conditions: s.ownClusters()}),
		// ListTasks takes no task as resource; the condition keeps it to the clusters.
		may(listers, grant{actions: []string{"ecs:ListTasks"}, resources: []*string{new("*")}, conditions: s.ownClusters()}),
		may(askers, grant{actions: []string{"ecs:ExecuteCommand"}, resources: s.tasks(), conditions: tagged}),
		may(askers, grant{actions: []string{"ecs:ExecuteCommand"}, resources: s.clusters()}),
		may(askers, grant{actions: []string{"ssmmessages:OpenDataChannel"}, resources: []*string{s.arn("ssm", "session", "ecs-execute-command-*")}}),
		may(stoppers, grant{actions: []string{"ecs:StopTask"}, resources: s.tasks(), conditions: tagged}),
		may(starters, grant{actions: []string{"ecs:RunTask"}, resources: s.definitions(), conditions: s.ownClusters()}),
		may(starters, grant{actions: []string{"ecs:TagResource"}, resources: s.tasks(), conditions: map[string]any{
			"StringEquals": map[string]any{"ecs:CreateAction": "RunTask"},
		}}),
	}
	if len(s.props.TaskRoles) > 0 {
		out = append(out, may(starters, grant{actions: []string{"iam:PassRole"}, resources: *texts(s.props.TaskRoles), conditions: map[string]any{
			"StringEquals": map[string]any{"iam:PassedToService": "ecs-tasks.amazonaws.com"},
		}}))
	}
	return out
}

func (s *Spoke) arn(service, kind, name string) *string {
	return s.stack.FormatArn(&awscdk.ArnComponents{Service: &service, Resource: &kind, ResourceName: &name})
}

func (s *Spoke) clusters() []*string {
	var out []*string
	for _, name := range s.props.Clusters {
		out = append(out, s.arn("ecs", "cluster", name))
	}
	return out
}

func (s *Spoke) tasks() []*string {
	var out []*string
	for _, name := range s.props.Clusters {
		out = append(out, s.arn("ecs", "task", name+"/*"))
	}
	return out
}

func (s *Spoke) definitions() []*string {
	if len(s.props.TaskFamilies) == 0 {
		return []*string{s.arn("ecs", "task-definition", "*")}
	}
	var out []*string
	for _, family := range s.props.TaskFamilies {
		out = append(out, s.arn("ecs", "task-definition", family+":*"))
	}
	return out
}

func (s *Spoke) ownClusters() map[string]any {
	return map[string]any{"ArnEquals": map[string]any{"ecs:cluster": s.clusters()}}
}

// forward hands the ends of tasks to the default bus of the installation's account, whose
// rule has reap look at once. They are hints: what does not arrive is found by the sweep.
func (s *Spoke) forward() {
	bus := "arn:" + s.hub.partition + ":events:" + s.hub.region + ":" + s.hub.account + ":event-bus/default"
	sender := role(s.Construct, "event-role", "events.amazonaws.com", []grant{{
		actions: []string{"events:PutEvents"}, resources: []*string{&bus},
	}}).WithoutPolicyUpdates(nil)
	awsevents.NewRule(s.Construct, new("task-stopped"), &awsevents.RuleProps{
		Description:  new("Tasks of sandboxes that have stopped or are about to, for Sandkeeper " + s.props.Install),
		EventPattern: taskPattern(names.SourceECS, s.clusters(), s.props.TaskFamilies),
		Targets: &[]awsevents.IRuleTarget{awseventstargets.NewEventBus(
			awsevents.EventBus_FromEventBusArn(s.Construct, new("hub"), &bus), &awseventstargets.EventBusProps{Role: sender},
		)},
	})
}

// placesText is what the functions read of where sandboxes may be. More spokes than fit
// beside the other variables fail the synthesis: Lambda takes 4 KiB of them in all.
func (k *Keeper) placesText() *string {
	if err := core.CheckSpokes(k.props.Spokes); err != nil {
		panic(fmt.Errorf("context spokes: %w", err))
	}
	spokes := slices.Clone(k.props.Spokes)
	if spokes == nil {
		spokes = []core.Spoke{}
	}
	text, err := json.Marshal(spokes)
	if err != nil {
		panic(fmt.Errorf("context spokes: %w", err))
	}
	if len(text) > mostSpokes {
		panic(fmt.Errorf("context spokes: want at most %d bytes of JSON, got %d: begin another installation", mostSpokes, len(text)))
	}
	return join(`{"home":"`, *k.cluster.ClusterArn(), `","spokes":`, string(text), "}")
}

// mostSpokes is how long the list may be, in bytes: some 15 spokes.
const mostSpokes = 2560

// assumes is to act in spokes.
func (k *Keeper) assumes() []grant {
	var roles []*string
	for _, s := range k.props.Spokes {
		roles = append(roles, new(s.Role))
	}
	if roles == nil {
		return nil
	}
	return []grant{{actions: []string{"sts:AssumeRole"}, resources: roles}}
}

// hears lets each spoke's account hand task events to the default bus, where the rules
// of the installation are, and no other events.
func (k *Keeper) hears() {
	var accounts []string
	for _, s := range k.props.Spokes {
		accounts = append(accounts, s.Place().Account)
	}
	slices.Sort(accounts)
	for _, account := range slices.Compact(accounts) {
		awsevents.NewCfnEventBusPolicy(k.Construct, new("hears-"+account), &awsevents.CfnEventBusPolicyProps{
			StatementId: join(k.props.Install, "-spoke-", account),
			Statement: map[string]any{
				"Effect": "Allow", "Action": "events:PutEvents", "Principal": map[string]any{"AWS": join("arn:", *k.stack.Partition(), ":iam::", account, ":root")},
				"Resource": k.stack.FormatArn(&awscdk.ArnComponents{Service: new("events"), Resource: new("event-bus"), ResourceName: new("default")}),
				"Condition": map[string]any{"StringEquals": map[string]any{
					"events:source": names.SourceECS, "events:detail-type": names.DetailTaskState,
				}},
			},
		})
	}
}

// clusterARNs are the clusters of which the installation hears.
func (k *Keeper) clusterARNs() []*string {
	out := []*string{k.cluster.ClusterArn()}
	for _, s := range k.props.Spokes {
		out = append(out, *texts(s.ClusterARNs())...)
	}
	return out
}

// taskPattern is ends of tasks in those clusters, of those families; nil: of any.
func taskPattern(source string, clusters []*string, families []string) *awsevents.EventPattern {
	detail := map[string]any{
		"clusterArn": clusters,
		// A task that ECS is about to end still runs; of the statuses between there is
		// nothing to do, since ECS Exec reaches nothing any more.
		"lastStatus":    []*string{new(names.TaskRunning), new(names.TaskStopped)},
		"desiredStatus": []*string{new(names.TaskStopped)},
	}
	if len(families) > 0 {
		groups := make([]string, len(families))
		for i, f := range families {
			groups[i] = "family:" + f
		}
		detail["group"] = groups
	}
	return &awsevents.EventPattern{
		Source: texts([]string{source}), DetailType: texts([]string{names.DetailTaskState}), Detail: &detail,
	}
}

// tagConditions are the conditions of what is done to a task.
func tagConditions(want map[string]string) map[string]any {
	if len(want) == 0 {
		return nil
	}
	tags := map[string]any{}
	for name, value := range want {
		tags["aws:ResourceTag/"+name] = value
	}
	return map[string]any{"StringEquals": tags}
}

// jsonText is a context as JSON, whether the app was given text or a value.
func jsonText(v any) string {
	if text, ok := v.(string); ok {
		return strings.TrimSpace(text)
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Errorf("context: %w", err))
	}
	return string(text)
}
