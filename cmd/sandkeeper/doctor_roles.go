package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	iamtypes "github.com/aws/aws-sdk-go-v2/service/iam/types"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/scheduler"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/roles"
)

// need is one action that a role must be allowed.
type need struct {
	action, resource string              // an ARN, or *
	context          map[string][]string // values of condition keys that the request carries
}

// deployed is an installation as IAM knows it: the ARNs of what roles.Of names, the role
// of each row, and what was chosen.
type deployed struct {
	install, bus, sample       string // sample is the ARN of the sample task definition
	partition, region, account string
	cluster                    string
	arns                       map[string]string // by the name in roles.Of
	roles                      map[string]string // by row
	chosen                     names.Chosen
	spokes                     []string // roles
}

// needsOf reads what a row's role may do, in this installation.
func needsOf(row roles.Row, at deployed) ([]need, error) {
	var out []need
	for _, line := range slices.Concat(roles.Of[row.Name+"-role"], at.chosenLines(row)) {
		n, err := at.need(line)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", row.Name, err)
		}
		out = append(out, n)
	}
	return out, nil
}

// chosenLines are what the choices add to a row.
func (at deployed) chosenLines(row roles.Row) []string {
	var out []string
	add := func(phrase, action string, resources []string) {
		for _, r := range resources {
			if row.Has(phrase) {
				out = append(out, action+" "+r)
			}
		}
	}
	add("spokes", "sts:AssumeRole", at.spokes)
	for _, f := range at.chosen.HostFunctions {
		if !strings.HasPrefix(f, "arn:") {
			f = "arn:AWS::Partition:lambda:AWS::Region:AWS::AccountId:function:" + f
		}
		add("host functions", "lambda:InvokeFunction", []string{f})
	}
	for _, secret := range at.chosen.SecretARNs {
		action := "ssm:GetParameter"
		if strings.Contains(secret, ":secretsmanager:") {
			action = "secretsmanager:GetSecretValue"
		}
		add("secrets that are listed", action, []string{secret})
	}
	if at.chosen.Key != "" && row.Name != sandboxRow {
		for _, action := range []string{"kms:Decrypt", "kms:GenerateDataKey"} {
			out = append(out, action+" "+at.chosen.Key+" if StringEquals kms:ViaService dynamodb."+at.region+"."+suffixOf(at.partition))
		}
	}
	return out
}

// The rows that are no function's.
const (
	scheduleRow = "schedule"
	sandboxRow  = "sandbox"
)

func suffixOf(partition string) string {
	if partition == "aws-cn" {
		return "amazonaws.com.cn"
	}
	return "amazonaws.com"
}

// need reads a line of roles.Of: an action, a resource, and conditions.
func (at deployed) need(line string) (need, error) {
	parts := strings.Split(line, " if ")
	action, resource, ok := strings.Cut(parts[0], " ")
	n := need{action: action, resource: at.resource(action, resource), context: map[string][]string{}}
	if left := unresolved(n.resource); !ok || left != "" {
		return need{}, fmt.Errorf("%s: nobody knows what %q is here", line, left)
	}
	for _, condition := range parts[1:] {
		words := strings.SplitN(condition, " ", 3)
		if len(words) != 3 {
			return need{}, fmt.Errorf("%s: want an operator, a key and a value", line)
		}
		value, _, _ := strings.Cut(words[2], ",")
		if value = at.resource(action, value); unresolved(value) != "" {
			return need{}, fmt.Errorf("%s: nobody knows what %q is here", line, words[2])
		}
		n.context[words[1]] = []string{value}
	}
	if strings.Contains(n.resource, ":task/") && (action == "ecs:StopTask" || action == "ecs:ExecuteCommand") {
		for tag, value := range at.chosen.TaskTags {
			n.context["aws:ResourceTag/"+tag] = []string{value}
		}
	}
	return n, nil
}

// resource is what a name in roles.Of is here, with something in place of each wildcard.
func (at deployed) resource(action, named string) string {
	if named == "*" {
		return named
	}
	if action == "ecs:RunTask" && strings.Contains(named, ":task-definition/") {
		return cmp.Or(at.sample, named)
	}
	if thing, rest, ok := strings.Cut(named, ".Arn"); ok {
		if arn := at.arns[thing]; arn != "" {
			named = arn + rest
		}
	}
	here := strings.NewReplacer("AWS::Partition", at.partition, "AWS::Region", at.region, "AWS::AccountId", at.account,
		"task/cluster/", "task/"+at.cluster+"/", "event-bus/default", "event-bus/"+at.bus, "function:keeper-", "function:"+at.install+"-")
	return strings.ReplaceAll(here.Replace(named), "*", "sample")
}

// unresolved is what of a name is still the template's.
func unresolved(resource string) string {
	if strings.Contains(resource, ".Arn") || strings.Contains(resource, "AWS::") {
		return resource
	}
	return ""
}

// permissions has IAM simulate what each role does. Where there is no simulation it is
// unknown, never fine.
func (d *doctor) permissions(ctx context.Context) {
	at, err := d.deployed(ctx)
	if err != nil {
		d.unknown(err)
		return
	}
	for _, row := range roles.Table {
		role := at.roles[row.Name]
		if role == "" {
			continue // it has no sample task definition
		}
		needs, err := needsOf(row, at)
		if err == nil {
			err = d.simulate(ctx, row.Name, role, needs)
		}
		if err != nil {
			d.unknownOf(row.Name, err)
		}
	}
}

// simulate asks for all actions on one resource at once.
func (d *doctor) simulate(ctx context.Context, name, role string, needs []need) error {
	client := iam.NewFromConfig(d.in.cfg)
	allowed, unsure := 0, []string{}
	for len(needs) > 0 {
		first, actions := needs[0], []string{}
		needs = slices.DeleteFunc(needs, func(n need) bool {
			together := n.resource == first.resource && maps.EqualFunc(n.context, first.context, slices.Equal)
			if together {
				actions = append(actions, n.action)
			}
			return together
		})
		answer, err := client.SimulatePrincipalPolicy(ctx, &iam.SimulatePrincipalPolicyInput{
			PolicySourceArn: &role, ActionNames: actions, ResourceArns: []string{first.resource}, ContextEntries: entries(first.context),
		})
		if err != nil {
			return err
		}
		for _, r := range answer.EvaluationResults {
			action := aws.ToString(r.EvalActionName)
			switch {
			case r.EvalDecision == iamtypes.PolicyEvaluationDecisionTypeAllowed:
				allowed++
			case len(first.context) > 0 && d.isEmulator():
				unsure = append(unsure, action+" on "+first.resource)
			default:
				d.fail("deploy the stack; look for a permissions boundary or a service control policy that denies it",
					"%s may not %s on %s: %s", name, action, first.resource, r.EvalDecision)
			}
		}
	}
	if len(unsure) > 0 {
		d.add(stateUnknown, "this endpoint's simulation does not know conditions", "whether %s may %s", name, strings.Join(unsure, ", "))
	}
	if allowed > 0 {
		d.ok("%s: %d actions are allowed by simulation", name, allowed)
	}
	return nil
}

// isEmulator says that all endpoints are this machine's.
func (d *doctor) isEmulator() bool {
	here, elsewhere := endpointsOf(d.in.globals)
	return len(here) > 0 && len(elsewhere) == 0
}

func entries(values map[string][]string) []iamtypes.ContextEntry {
	var out []iamtypes.ContextEntry
	for _, key := range slices.Sorted(maps.Keys(values)) {
		kind := iamtypes.ContextKeyTypeEnumString
		if key == "dynamodb:LeadingKeys" {
			kind = iamtypes.ContextKeyTypeEnumStringList
		}
		out = append(out, iamtypes.ContextEntry{ContextKeyName: &key, ContextKeyType: kind, ContextKeyValues: values[key]})
	}
	return out
}

// chosen is what the stack tells of its choices.
func (d *doctor) chosen() (c names.Chosen, err error) {
	if err = json.Unmarshal([]byte(cmp.Or(d.in.out[names.OutChosen], "{}")), &c); err != nil {
		err = fmt.Errorf("output %s: %w", names.OutChosen, err)
	}
	return c, err
}

// deployed asks for those names that the stack does not put out.
func (d *doctor) deployed(ctx context.Context) (deployed, error) {
	out := d.in.out
	at := deployed{
		install: out[names.OutInstall], bus: cmp.Or(out[names.OutEventBus], "default"), sample: out[names.OutTaskDefinition],
		arns: map[string]string{"cluster": out[names.OutCluster]}, roles: map[string]string{},
	}
	parts := strings.SplitN(out[names.OutCluster], ":", 6)
	if len(parts) != 6 {
		return deployed{}, fmt.Errorf("output %s: want the ARN of a cluster, got %q", names.OutCluster, out[names.OutCluster])
	}
	at.partition, at.region, at.account, at.cluster = parts[1], parts[3], parts[4], strings.TrimPrefix(parts[5], "cluster/")
	at.arns["logs"] = "arn:" + at.partition + ":s3:::" + out[names.OutBucket]
	var err error
	if at.chosen, err = d.chosen(); err != nil {
		return deployed{}, err
	}
	for _, spoke := range d.in.places.Spokes {
		at.spokes = append(at.spokes, spoke.Role)
	}
	for _, ask := range []func(context.Context, *deployed) error{d.askTables, d.askQueues, d.askFunctions, d.askOthers} {
		if err := ask(ctx, &at); err != nil {
			return deployed{}, err
		}
	}
	return at, nil
}

func (d *doctor) askTables(ctx context.Context, at *deployed) error {
	db := dynamodb.NewFromConfig(d.in.cfg)
	for output, table := range map[names.Output]names.Table{names.OutRunsTable: names.Runs, names.OutSandboxesTable: names.Sandboxes, names.OutCheckpoints: names.Checkpoints} {
		answer, err := db.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: new(d.in.out[output])})
		if err != nil {
			return err
		}
		at.arns[table.Name] = aws.ToString(answer.Table.TableArn)
	}
	return nil
}

func (d *doctor) askQueues(ctx context.Context, at *deployed) error {
	for output, id := range map[names.Output]string{
		names.OutReclaimQueue: names.ReclaimJobs, names.OutShardQueue: names.SweepShards, names.OutEventDead: names.EventDead,
	} {
		answer, err := d.in.queues.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
			QueueUrl: new(d.in.out[output]), AttributeNames: []sqstypes.QueueAttributeName{sqstypes.QueueAttributeNameQueueArn},
		})
		if err != nil {
			return err
		}
		at.arns[strings.ReplaceAll(id, "-", "")] = answer.Attributes[string(sqstypes.QueueAttributeNameQueueArn)]
	}
	return nil
}

func (d *doctor) askFunctions(ctx context.Context, at *deployed) error {
	for _, f := range names.Functions {
		c, err := d.in.lambda.GetFunctionConfiguration(ctx, &lambda.GetFunctionConfigurationInput{FunctionName: new(d.in.out[functionOf(f)])})
		if err != nil {
			return err
		}
		at.arns[string(f)], at.roles[string(f)] = aws.ToString(c.FunctionArn), aws.ToString(c.Role)
		at.arns[string(f)+"logs"] = "arn:" + at.partition + ":logs:" + at.region + ":" + at.account + ":log-group:/aws/lambda/" + aws.ToString(c.FunctionName) + ":log-stream:sample"
	}
	return nil
}

// askOthers asks for the roles that are no function's.
func (d *doctor) askOthers(ctx context.Context, at *deployed) error {
	tick := at.install + "-" + names.TickSchedule
	s, err := scheduler.NewFromConfig(d.in.cfg).GetSchedule(ctx, &scheduler.GetScheduleInput{Name: &tick})
	if err != nil {
		return err
	}
	if s.Target != nil {
		at.roles[scheduleRow] = aws.ToString(s.Target.RoleArn)
	}
	if at.sample == "" {
		return nil
	}
	t, err := d.in.ecs.DescribeTaskDefinition(ctx, &ecs.DescribeTaskDefinitionInput{TaskDefinition: &at.sample})
	if err != nil {
		return err
	}
	role := aws.ToString(t.TaskDefinition.TaskRoleArn)
	at.roles[sandboxRow], at.arns["sandboxrole"] = role, role
	return nil
}
