package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	ecstypes "github.com/aws/aws-sdk-go-v2/service/ecs/types"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"
	"github.com/aws/smithy-go"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// quota is a limit of the account that a fleet of sandboxes meets first.
type quota struct {
	service, code, what string
	enough              float64
}

// The quotas by their codes in Service Quotas.
var quotas = []quota{
	{"fargate", "L-3032A538", "Fargate On-Demand vCPUs", 32},
	{"lambda", "L-B99A9384", "concurrent Lambda executions", 100},
}

// quotas asks what the account may have at a time.
func (d *doctor) quotas(ctx context.Context) {
	client := servicequotas.NewFromConfig(d.in.cfg)
	for _, q := range quotas {
		answer, err := client.GetServiceQuota(ctx, &servicequotas.GetServiceQuotaInput{ServiceCode: &q.service, QuotaCode: &q.code})
		switch {
		case err != nil:
			d.unknownOf(fmt.Sprintf("%s (%s)", q.what, q.code), err)
		case answer.Quota == nil || answer.Quota.Value == nil:
			d.add(stateUnknown, "look at it in the console", "%s (%s): no value", q.what, q.code)
		case *answer.Quota.Value < q.enough:
			d.warn(fmt.Sprintf("aws service-quotas request-service-quota-increase --service-code %s --quota-code %s --desired-value …", q.service, q.code),
				"%g %s: new accounts begin low", *answer.Quota.Value, q.what)
		default:
			d.ok("%g %s", *answer.Quota.Value, q.what)
		}
	}
}

// definition checks the sample task definition for what ECS Exec asks for.
func (d *doctor) definition(ctx context.Context) {
	name := d.in.out[names.OutTaskDefinition]
	if name == "" {
		d.ok("the stack has no sample task definition")
		return
	}
	answer, err := d.in.ecs.DescribeTaskDefinition(ctx, &ecs.DescribeTaskDefinitionInput{TaskDefinition: &name})
	if err != nil {
		d.unknown(err)
		return
	}
	wrong := wrongInDefinition(answer.TaskDefinition)
	for _, w := range wrong {
		d.fail("change the task definition, and start tasks from the new revision", "%s: %s", taskID(name), w)
	}
	if len(wrong) == 0 {
		d.ok("%s is fit for ECS Exec", taskID(name))
	}
	for _, s := range hastyIn(answer.TaskDefinition) {
		d.warn("set stopTimeout to 120, and let the main process stay while an agent works: docs/agent.md, When the task is taken away", "%s: %s", taskID(name), s)
	}
}

// hastyIn names the containers of a definition that are killed before what Spot and
// retirement give notice for is over.
func hastyIn(def *ecstypes.TaskDefinition) []string {
	var hasty []string
	for _, c := range def.ContainerDefinitions {
		if aws.ToBool(c.Essential) || c.Essential == nil {
			if had := cmp.Or(aws.ToInt32(c.StopTimeout), defaultStop); had < int32(core.LongestStop/time.Second) {
				hasty = append(hasty, fmt.Sprintf("container %s is killed %d s after a notice, which gives 120 s to save what is in it", aws.ToString(c.Name), had))
			}
		}
	}
	return hasty
}

// defaultStop is Fargate's stop timeout where a definition has none, in seconds.
const defaultStop = 30

func wrongInDefinition(def *ecstypes.TaskDefinition) []string {
	var wrong []string
	if aws.ToString(def.TaskRoleArn) == "" {
		wrong = append(wrong, "it has no task role, so that its exec agent may not connect")
	}
	if def.PidMode == ecstypes.PidModeTask {
		wrong = append(wrong, "its containers share a process namespace, which allows one exec session in all")
	}
	for _, c := range def.ContainerDefinitions {
		if aws.ToBool(c.ReadonlyRootFilesystem) {
			wrong = append(wrong, "container "+aws.ToString(c.Name)+" has a read-only root file system, in which no exec agent starts")
		}
		if c.LinuxParameters == nil || !aws.ToBool(c.LinuxParameters.InitProcessEnabled) {
			wrong = append(wrong, "container "+aws.ToString(c.Name)+" has no init process, so that what ends in it stays as zombies")
		}
	}
	return wrong
}

// definitions checks the task definitions from which sandboxes are made: those of the
// newest version of each definition that is kept.
func (d *doctor) definitions(ctx context.Context) {
	all, err := d.in.boxes.ListDefinitions(ctx)
	if err != nil {
		d.unknown(err)
		return
	}
	newest := map[string]core.Definition{}
	for _, kept := range all {
		if kept.Version >= newest[kept.Name].Version {
			newest[kept.Name] = kept
		}
	}
	if len(newest) == 0 {
		d.ok("none is kept: hosts bring theirs with each start")
	}
	for _, name := range slices.Sorted(maps.Keys(newest)) {
		d.kept(ctx, newest[name])
	}
}

// kept checks one of them. The task definition of a spoke's is in the spoke's account.
func (d *doctor) kept(ctx context.Context, kept core.Definition) {
	if slices.Contains(d.in.places.Abroad(), kept.Task.Cluster) {
		d.add(stateUnknown, "look at it there: what ECS Exec asks for is in README.md, Deploy", "%s: its task definition is where its cluster is, %s", kept.Ref(), kept.Task.Cluster)
		return
	}
	answer, err := d.in.ecs.DescribeTaskDefinition(ctx, &ecs.DescribeTaskDefinitionInput{TaskDefinition: &kept.Task.TaskDefinition})
	if api, ok := errors.AsType[smithy.APIError](err); ok && api.ErrorCode() == "ClientException" { // so ECS says "not there"
		d.fail("register it, or keep a new version: sandkeeper definitions put", "%s: ECS has no task definition %s: no start of it can succeed", kept.Ref(), kept.Task.TaskDefinition)
		return
	}
	if err != nil {
		d.unknownOf(kept.Ref(), err)
		return
	}
	one, ok := agentsOwn(answer.TaskDefinition, kept.Task)
	if !ok {
		d.fail("keep a new version that names one of its containers", "%s: %s has no container %s", kept.Ref(), kept.Task.TaskDefinition, kept.Task.Container)
		return
	}
	wrong := wrongInDefinition(one)
	for _, w := range wrong {
		d.fail("change the task definition; a family is used as it is then, of a revision keep a new version", "%s: %s: %s", kept.Ref(), kept.Task.TaskDefinition, w)
	}
	if len(wrong) == 0 {
		d.ok("%s: %s is fit for ECS Exec", kept.Ref(), kept.Task.TaskDefinition)
	}
	for _, s := range hastyIn(one) {
		d.warn("set stopTimeout to 120, and let the main process stay while an agent works: docs/agent.md, When the task is taken away", "%s: %s", kept.Ref(), s)
	}
}

// agentsOwn is what of a task definition an agent's container makes use of, with the role
// that the definition gives its tasks; false where the container is not there.
func agentsOwn(def *ecstypes.TaskDefinition, task core.TaskTemplate) (*ecstypes.TaskDefinition, bool) {
	at := slices.IndexFunc(def.ContainerDefinitions, func(c ecstypes.ContainerDefinition) bool { return aws.ToString(c.Name) == task.Container })
	if at < 0 {
		return nil, false
	}
	one := *def
	one.ContainerDefinitions = def.ContainerDefinitions[at : at+1]
	one.TaskRoleArn = new(cmp.Or(task.TaskRole, aws.ToString(def.TaskRoleArn)))
	return &one, true
}

// tasks checks that the living tasks of this installation can be asked.
func (d *doctor) tasks(ctx context.Context) {
	for _, cluster := range slices.Concat([]string{d.in.out[names.OutCluster]}, d.in.places.Abroad()) {
		d.tasksOf(ctx, cluster)
	}
}

// tasksOf checks those of one cluster.
func (d *doctor) tasksOf(ctx context.Context, cluster string) {
	arns, err := d.in.tasks.Living(ctx, cluster)
	if err != nil {
		d.unknownOf("cluster "+cluster, err)
		return
	}
	ours, deaf := 0, 0
	for batch := range slices.Chunk(arns, 100) {
		tasks, err := d.in.tasks.Describe(ctx, cluster, batch)
		if err != nil {
			d.unknown(err)
			return
		}
		for _, t := range tasks {
			if !strings.HasPrefix(t.StartedBy, d.in.out[names.OutInstall]+"/") || t.Life != core.TaskLives {
				continue
			}
			ours++
			if says := deafness(t); says != "" {
				deaf++
				d.fail("start tasks with enableExecuteCommand, a task role with the four ssmmessages actions and a route to Systems Manager", "task %s: %s", taskID(t.ARN), says)
			}
		}
	}
	if deaf == 0 {
		d.ok("%d living tasks%s, %d of them ours, each with ECS Exec", len(arns), d.where(cluster), ours)
	}
}

// deafness says why a task cannot be asked, or nothing.
func deafness(t core.Task) string {
	now := core.MillisOf(time.Now())
	if !t.ExecEnabled {
		return core.Advice(core.ReasonExecRefused)
	}
	for container := range t.Agents {
		for _, reason := range []string{core.ReasonExecRefused, core.ReasonNotConnected} {
			refused := core.ProbeFailure{Healing: core.Retry, Reason: reason}
			if diagnosis := core.Diagnose(t, container, refused, now); !diagnosis.Gone && diagnosis.Reason == "agent-stopped" {
				return "container " + container + ": " + core.Advice(diagnosis.Reason)
			}
		}
	}
	return ""
}

// endings looks at the tasks that ECS still remembers: a container's main process must
// outlive every agent in it, or there is nothing left to read when one ends.
func (d *doctor) endings(ctx context.Context) {
	for _, cluster := range slices.Concat([]string{d.in.out[names.OutCluster]}, d.in.places.Abroad()) {
		d.endingsIn(ctx, cluster)
	}
}

func (d *doctor) endingsIn(ctx context.Context, cluster string) {
	tasks, err := d.remembered(ctx, cluster)
	if err != nil {
		d.unknownOf("cluster "+cluster, err)
		return
	}
	before := len(d.found)
	for _, t := range tasks {
		if t.StopCode == string(ecstypes.TaskStopCodeEssentialContainerExited) {
			d.warn("let the container's main process be one that waits, and outlives every agent in it; look at the container's log", "task %s ended by itself: %s", taskID(t.ARN), t.Reason)
		}
	}
	if len(d.found) == before {
		d.ok("none of the %d tasks%s that ECS remembers ended by itself", len(tasks), d.where(cluster))
	}
}

// where names a cluster that is not the installation's own.
func (d *doctor) where(cluster string) string {
	if cluster == d.in.out[names.OutCluster] {
		return ""
	}
	return " in " + cluster
}

// remembered are stopped tasks of this installation.
func (d *doctor) remembered(ctx context.Context, cluster string) ([]core.Task, error) {
	answer, err := d.in.fleet.ListTasks(ctx, &ecs.ListTasksInput{Cluster: &cluster, DesiredStatus: ecstypes.DesiredStatusStopped})
	if err != nil || len(answer.TaskArns) == 0 {
		return nil, err
	}
	arns := answer.TaskArns
	tasks, err := d.in.tasks.Describe(ctx, cluster, arns[:min(len(arns), 100)])
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(tasks, func(t core.Task) bool {
		return t.Life != core.TaskGone || !strings.HasPrefix(t.StartedBy, d.in.out[names.OutInstall]+"/")
	}), nil
}

// looking is what a sandbox is asked: which of the tools that our scripts use it
// lacks, and whether our agent is there.
const looking = `for t in cat dd grep head mkdir od sed sleep stat tail tr wc; do command -v $t >/dev/null 2>&1 || echo "lacks $t"; done
{ [ -x "${` + core.AgentVariable + `-}" ] || command -v ` + core.AgentName + ` >/dev/null 2>&1; } && echo agent
echo asked`

// sandboxes asks some living sandboxes by ECS Exec, one session each.
func (d *doctor) sandboxes(ctx context.Context) {
	if d.command.Sandboxes == 0 {
		d.add(stateUnknown, "sandkeeper doctor --sandboxes 3", "none was asked")
		return
	}
	runs, _, err := d.in.indexed(ctx)
	if err != nil {
		d.unknown(err)
		return
	}
	byStart(runs)
	exec, asked := ecsexec.NewFleet(d.in.fleet), 0
	for _, r := range runs {
		if r.TaskARN == "" || r.Status.Terminal() || asked == d.command.Sandboxes {
			continue
		}
		asked++
		var answer core.ExecResult
		if err = d.in.free(ctx, r); err == nil {
			answer, err = exec.Exec(ctx, core.ExecTarget{Cluster: r.Cluster, TaskARN: r.TaskARN, Container: r.Container}, looking, nil)
		}
		if err != nil {
			d.unasked(ctx, r, err)
			continue
		}
		d.sandbox(r, strings.Fields(strings.ReplaceAll(string(answer.Stdout), "lacks ", "lacks-")))
	}
	if asked == 0 {
		d.ok("no sandbox lives that could be asked")
	}
}

// unasked says why a sandbox gave no answer, as explain does. What will not heal is a fault.
func (d *doctor) unasked(ctx context.Context, r core.Run, err error) {
	api, ok := errors.AsType[smithy.APIError](err)
	denied := ok && slices.Contains(denied, api.ErrorCode()) // the caller is, not the sandbox
	failure, ok := errors.AsType[*core.ProbeFailure](d.in.diagnosed(ctx, r, core.FailureOf(err)))
	if denied || !ok || core.Advice(failure.Reason) == "" {
		d.unknownOf("run "+r.RunKey.String(), err)
		return
	}
	state := stateUnknown
	if failure.Healing == core.Configuration {
		state = stateFail
	}
	d.add(state, core.Advice(failure.Reason), "run %s: it could not be asked: %s", r.RunKey, failure.Reason)
}

// sandbox reads what a sandbox answered.
func (d *doctor) sandbox(r core.Run, words []string) {
	var lacks []string
	for _, w := range words {
		if tool, ok := strings.CutPrefix(w, "lacks-"); ok {
			lacks = append(lacks, tool)
		}
	}
	switch {
	case !slices.Contains(words, "asked"):
		d.add(stateUnknown, "ask again", "run %s: its answer is not whole", r.RunKey)
	case len(lacks) > 0:
		d.fail("put them into the image, or busybox", "run %s: its image lacks %s", r.RunKey, strings.Join(lacks, ", "))
	case !slices.Contains(words, "agent"):
		d.warn("put "+core.AgentName+" into the image; a plain shell journals and probes, and captures nothing", "run %s: its image has no %s", r.RunKey, core.AgentName)
	default:
		d.ok("run %s: it answers, and has %s", r.RunKey, core.AgentName)
	}
}
