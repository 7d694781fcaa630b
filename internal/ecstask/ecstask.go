// Package ecstask starts, describes, lists and stops Fargate tasks through the ECS
// API, in core's terms. Its rule: what ECS did not say is no answer. A task that
// the API leaves out of a whole answer is missing, an answer that is not whole is an
// error.
package ecstask

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/ecs/types"
	"github.com/aws/smithy-go"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Provider is the name of sandboxes that are Fargate tasks.
const Provider = "fargate"

// callTimeout bounds one call, the SDK's own retries included.
const callTimeout = 15 * time.Second

type client interface {
	RunTask(context.Context, *ecs.RunTaskInput, ...func(*ecs.Options)) (*ecs.RunTaskOutput, error)
	StopTask(context.Context, *ecs.StopTaskInput, ...func(*ecs.Options)) (*ecs.StopTaskOutput, error)
	DescribeTasks(context.Context, *ecs.DescribeTasksInput, ...func(*ecs.Options)) (*ecs.DescribeTasksOutput, error)
	ListTasks(context.Context, *ecs.ListTasksInput, ...func(*ecs.Options)) (*ecs.ListTasksOutput, error)
}

// Tasks is ECS.
type Tasks struct {
	ECS client
}

var (
	_ client             = (*ecs.Client)(nil)
	_ core.TaskDescriber = (*Tasks)(nil)
	_ core.TaskStopper   = (*Tasks)(nil)
	_ core.TaskRunner    = (*Tasks)(nil)
	_ core.TaskLister    = (*Tasks)(nil)
)

// Describe answers for each ARN, at most 100. An ARN that ECS refuses to read, or that
// the caller may not, for which it refuses the whole call, comes back alone with ECS's
// reason and no life. Where the caller may read none of them that is the error.
func (t *Tasks) Describe(ctx context.Context, cluster string, arns []string) ([]core.Task, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := t.describe(ctx, cluster, arns)
	if denial, ok := errors.AsType[*deniedError](err); ok {
		return nil, fmt.Errorf("describe %d tasks in %s: %w", len(arns), cluster, denial.cause)
	}
	return out, err
}

// deniedError is a call none of whose tasks the caller may read.
type deniedError struct{ cause smithy.APIError }

func (e *deniedError) Error() string { return e.cause.Error() }

func (t *Tasks) describe(ctx context.Context, cluster string, arns []string) ([]core.Task, error) {
	out, err := t.ECS.DescribeTasks(ctx, &ecs.DescribeTasksInput{Cluster: &cluster, Tasks: arns})
	api, ok := errors.AsType[smithy.APIError](err)
	switch {
	case ok && ofCredentials(err):
		return nil, fmt.Errorf("describe %d tasks in %s: %w", len(arns), cluster, err)
	case ok && api.ErrorCode() == "InvalidParameterException" && len(arns) == 1:
		return []core.Task{refused(arns[0], api)}, nil
	case ok && api.ErrorCode() == "InvalidParameterException" && len(arns) > 0:
		return t.describeApart(ctx, cluster, arns)
	case ok && slices.Contains(denials, api.ErrorCode()) && len(arns) > 1:
		return t.describeApart(ctx, cluster, arns)
	case ok && slices.Contains(denials, api.ErrorCode()):
		return nil, &deniedError{api}
	case err != nil:
		return nil, fmt.Errorf("describe %d tasks in %s: %w", len(arns), cluster, err)
	}
	found := map[string]core.Task{}
	for _, task := range out.Tasks {
		found[value(task.TaskArn)] = read(task)
	}
	for _, f := range out.Failures {
		if value(f.Reason) != "MISSING" {
			return nil, fmt.Errorf("describe task %s: %s %s", value(f.Arn), value(f.Reason), value(f.Detail))
		}
		found[value(f.Arn)] = core.Task{ARN: value(f.Arn), Life: core.TaskMissing}
	}
	tasks := make([]core.Task, 0, len(arns))
	for _, arn := range arns {
		task, ok := found[arn]
		if !ok {
			return nil, fmt.Errorf("describe task %s: ECS answers neither with it nor that it is missing", arn)
		}
		tasks = append(tasks, task)
	}
	return tasks, nil
}

// denials are the codes by which AWS says that the caller may not.
var denials = []string{"AccessDeniedException", "AccessDenied"}

// issuer is what the SDK calls the service that gives out credentials.
const issuer = "STS"

// ofCredentials says that ECS was not asked: the credentials could not be had, as where a
// spoke's role may not be assumed. Asking for fewer tasks would be refused as often.
func ofCredentials(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if o, ok := err.(*smithy.OperationError); ok && o.ServiceID == issuer {
			return true
		}
	}
	return false
}

// refused is a task that ECS does not tell of.
func refused(arn string, cause smithy.APIError) core.Task {
	return core.Task{ARN: arn, Life: core.TaskUnknown, Reason: cause.ErrorMessage()}
}

// describeApart halves a refused call until what is refused is a single ARN. A half of
// which nothing may be read is unknown, as long as the other can be.
func (t *Tasks) describeApart(ctx context.Context, cluster string, arns []string) ([]core.Task, error) {
	half := len(arns) / 2
	first, err := t.describe(ctx, cluster, arns[:half])
	denied, ok := errors.AsType[*deniedError](err)
	if err != nil && !ok {
		return nil, err
	}
	second, err := t.describe(ctx, cluster, arns[half:])
	deniedToo, ok := errors.AsType[*deniedError](err)
	switch {
	case err != nil && !ok:
		return nil, err
	case denied != nil && deniedToo != nil:
		return nil, deniedToo
	case denied != nil:
		first = allRefused(arns[:half], denied.cause)
	case deniedToo != nil:
		second = allRefused(arns[half:], deniedToo.cause)
	}
	return slices.Concat(first, second), nil
}

func allRefused(arns []string, cause smithy.APIError) []core.Task {
	out := make([]core.Task, len(arns))
	for i, arn := range arns {
		out[i] = refused(arn, cause)
	}
	return out
}

// StartedBy lists the tasks started under that name, all pages. ECS allows no
// other filter beside it.
func (t *Tasks) StartedBy(ctx context.Context, cluster, startedBy string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var arns []string
	pages := ecs.NewListTasksPaginator(t.ECS, &ecs.ListTasksInput{Cluster: &cluster, StartedBy: &startedBy})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fmt.Errorf("list tasks started by %s in %s: %w", startedBy, cluster, err)
		}
		arns = append(arns, page.TaskArns...)
	}
	return arns, nil
}

// Living lists the tasks of a cluster that are not to be stopped, all pages.
func (t *Tasks) Living(ctx context.Context, cluster string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var arns []string
	pages := ecs.NewListTasksPaginator(t.ECS, &ecs.ListTasksInput{Cluster: &cluster, DesiredStatus: types.DesiredStatusRunning})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fmt.Errorf("list tasks of %s: %w", cluster, err)
		}
		arns = append(arns, page.TaskArns...)
	}
	return arns, nil
}

// maxReason is the longest reason that StopTask takes, characters.
const maxReason = 255

// once has a call made once: the SDK would repeat it behind the back of whoever reads the
// operator's settings before each.
func once(o *ecs.Options) { o.RetryMaxAttempts = 1 }

// turnedAway marks an error with which the SDK would have repeated the call.
func turnedAway(err error) error {
	if retry.NewStandard().IsErrorRetryable(err) {
		return fmt.Errorf("%w: %w", core.ErrTurnedAway, err)
	}
	return err
}

// Stop asks ECS to stop a task. ECS answers a task that it does not know any more
// and a malformed id with one and the same code, so it is asked which it is.
func (t *Tasks) Stop(ctx context.Context, cluster, arn, reason string) (core.Task, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	reason = string([]rune(reason)[:min(maxReason, len([]rune(reason)))])
	out, err := t.ECS.StopTask(ctx, &ecs.StopTaskInput{Cluster: &cluster, Task: &arn, Reason: &reason}, once)
	if err == nil && out.Task == nil {
		return core.Task{}, fmt.Errorf("stop task %s: ECS answers without it", arn)
	}
	if err == nil {
		return read(*out.Task), nil
	}
	if _, ok := errors.AsType[*types.InvalidParameterException](err); ok {
		tasks, describeErr := t.Describe(ctx, cluster, []string{arn})
		if describeErr == nil && tasks[0].Life == core.TaskMissing {
			return tasks[0], nil
		}
		err = errors.Join(err, describeErr)
	}
	return core.Task{}, fmt.Errorf("stop task %s: %w", arn, turnedAway(err))
}

// Start asks for one task.
func (t *Tasks) Start(ctx context.Context, spec core.TaskSpec) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	public := types.AssignPublicIpDisabled
	if spec.AssignPublicIP {
		public = types.AssignPublicIpEnabled
	}
	out, err := t.ECS.RunTask(ctx, &ecs.RunTaskInput{
		Cluster:              &spec.Cluster,
		TaskDefinition:       &spec.TaskDefinition,
		ClientToken:          &spec.Token,
		StartedBy:            &spec.StartedBy,
		Count:                new(int32(1)),
		LaunchType:           types.LaunchTypeFargate,
		EnableExecuteCommand: true,
		PropagateTags:        types.PropagateTagsTaskDefinition,
		Tags:                 tags(spec.Tags),
		Overrides:            overrides(spec),
		NetworkConfiguration: &types.NetworkConfiguration{AwsvpcConfiguration: &types.AwsVpcConfiguration{
			Subnets: spec.Subnets, SecurityGroups: spec.SecurityGroups, AssignPublicIp: public,
		}},
	})
	if err != nil {
		return "", cmp.Or(ofCall(spec, err), fmt.Errorf("run task of %s: %w", spec.TaskDefinition, err))
	}
	if len(out.Tasks) != 1 || value(out.Tasks[0].TaskArn) == "" {
		return "", cmp.Or(ofAnswer(spec, out.Failures), fmt.Errorf("run task of %s: %s", spec.TaskDefinition, failures(out.Failures)))
	}
	return *out.Tasks[0].TaskArn, nil
}

// overrides is what the task has in place of its definition's.
func overrides(spec core.TaskSpec) *types.TaskOverride {
	if spec.TaskRole == "" {
		return nil
	}
	return &types.TaskOverride{TaskRoleArn: &spec.TaskRole}
}

// tags in the order of their keys, so that a repeated call is the same call.
func tags(m map[string]string) []types.Tag {
	var out []types.Tag
	for k, v := range m {
		out = append(out, types.Tag{Key: new(k), Value: new(v)})
	}
	slices.SortFunc(out, func(a, b types.Tag) int {
		if *a.Key < *b.Key {
			return -1
		}
		return 1
	})
	return out
}

func failures(all []types.Failure) string {
	var text strings.Builder
	text.WriteString("ECS started no task")
	for _, f := range all {
		text.WriteString(": " + value(f.Reason) + " " + value(f.Detail))
	}
	return text.String()
}

// leaving are the statuses of a task on its way to STOPPED.
var leaving = []string{"DEACTIVATING", "STOPPING", "DEPROVISIONING"}

// read puts a task into core's terms.
func read(task types.Task) core.Task {
	out := core.Task{
		ARN: value(task.TaskArn), Life: core.TaskLives,
		StopCode: string(task.StopCode), Reason: value(task.StoppedReason), StartedBy: value(task.StartedBy),
		ExecEnabled: task.EnableExecuteCommand, Agents: agents(task.Containers), Size: size(task),
	}
	if task.CreatedAt != nil {
		out.CreatedAt = core.MillisOf(*task.CreatedAt)
	}
	for _, c := range task.Containers {
		if c.ExitCode == nil {
			continue
		}
		if out.Exits == nil {
			out.Exits = map[string]int{}
		}
		out.Exits[value(c.Name)] = int(*c.ExitCode)
		if c.Reason != nil {
			out.Reason = strings.TrimPrefix(out.Reason+": "+*c.Reason, ": ")
		}
	}
	last := value(task.LastStatus)
	switch {
	case last == "STOPPED" || last == "DELETED":
		out.Life = core.TaskGone
	case value(task.DesiredStatus) == "STOPPED" || slices.Contains(leaving, last):
		out.Life = core.TaskLeaving
	}
	return out
}

// size reads CPU units, 1,024 to a vCPU, and MiB; zero where ECS tells of none.
func size(task types.Task) core.TaskSize {
	units, err := strconv.ParseFloat(value(task.Cpu), 64)
	mib, otherErr := strconv.ParseFloat(value(task.Memory), 64)
	if err != nil || otherErr != nil {
		return core.TaskSize{}
	}
	return core.TaskSize{VCPU: units / 1024, GB: mib / 1024, ARM: slices.ContainsFunc(task.Attributes, func(a types.Attribute) bool {
		return value(a.Name) == "ecs.cpu-architecture" && value(a.Value) == "arm64"
	})}
}

// agents reads the managed agents of ECS Exec; every container has an entry.
func agents(containers []types.Container) map[string]core.ExecAgent {
	out := make(map[string]core.ExecAgent, len(containers))
	for _, c := range containers {
		var agent core.ExecAgent
		for _, a := range c.ManagedAgents {
			if a.Name != types.ManagedAgentNameExecuteCommandAgent {
				continue
			}
			agent = core.ExecAgent{Status: value(a.LastStatus), Reason: value(a.Reason)}
			if a.LastStartedAt != nil {
				agent.Since = core.MillisOf(*a.LastStartedAt)
			}
		}
		out[value(c.Name)] = agent
	}
	return out
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
