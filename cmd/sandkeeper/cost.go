package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/ecs/types"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// costCommand estimates from task sizes, times and list prices.
type costCommand struct {
	By         string  `enum:"run,thread,tenant" default:"tenant" help:"What to sum up by: run, thread or tenant."`
	Tenant     string  `help:"Only this tenant's." placeholder:"ID"`
	Since      span    `default:"30d" help:"Runs that began within this time." placeholder:"DURATION"`
	Indexed    bool    `help:"Only runs that have not ended or still owe; no scan of the table."`
	VCPU       float64 `name:"vcpu" help:"Size of a task that ECS does not show any more; the sample task definition's otherwise."`
	MemoryGB   float64 `name:"memory-gb" help:"Its memory, GB."`
	ARM        bool    `name:"arm" help:"It is of the ARM64 architecture, with --vcpu."`
	PublicIPv4 bool    `name:"public-ipv4" default:"true" negatable:"" help:"Tasks have a public IPv4 address."`
}

// priceSource says where the prices are from, and for what they are an estimate.
const priceSource = "list prices of us-east-1, https://aws.amazon.com/fargate/pricing/ and https://aws.amazon.com/vpc/pricing/; an estimate: no Savings Plans, no Spot, no image pulls, no data transfer"

// costView is what cost prints. Amounts are dollars.
type costView struct {
	Since   stamp       `json:"since"`
	Assumed sizeView    `json:"assumed"` // of tasks that ECS does not show any more
	Source  string      `json:"source"`
	Groups  []costGroup `json:"groups"`
	Total   costGroup   `json:"total"`
	Leaked  burn        `json:"leaked"` // tasks that live and that nothing would end
	Idle    burn        `json:"idle"`   // sandboxes kept warm, for the time they are by now
}

type sizeView struct {
	VCPU       float64 `json:"vcpu"`
	GB         float64 `json:"gb"`
	ARM        bool    `json:"arm"`
	PublicIPv4 bool    `json:"publicIpv4"`
	Hourly     float64 `json:"hourly"` // dollars
	From       string  `json:"from"`   // whose size it is
}

// costGroup is what some runs cost together.
type costGroup struct {
	Key    string  `json:"key"` // the run, thread or tenant
	Runs   int     `json:"runs"`
	Hours  float64 `json:"hours"`
	Cost   float64 `json:"cost"`   // dollars
	Saved  float64 `json:"saved"`  // against a cleaner that knows only the time limit
	Living int     `json:"living"` // of them, those that have not ended
}

// burn is what tasks have cost that work for nobody.
type burn struct {
	Tasks  int     `json:"tasks"`
	Hourly float64 `json:"hourly"` // dollars
	Cost   float64 `json:"cost"`   // dollars by now
}

// Run prints the estimate.
func (c *costCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	if c.VCPU < 0 || c.MemoryGB < 0 || (c.VCPU == 0) != (c.MemoryGB == 0) {
		return badInput("want --vcpu and --memory-gb together, above zero, got %g and %g", c.VCPU, c.MemoryGB)
	}
	now := core.MillisOf(time.Now())
	v := costView{Since: stamp(now.Add(-c.Since.duration())), Source: priceSource, Groups: []costGroup{}}
	size, from, err := c.assume(ctx, in)
	if err != nil {
		return err
	}
	v.Assumed = sizeView{size.VCPU, size.GB, size.ARM, size.PublicIPv4, size.Hourly(), from}
	runs, err := c.runs(ctx, in, out, core.Millis(v.Since))
	if err != nil {
		return err
	}
	sizes, err := c.sizes(ctx, in, runs)
	if err != nil {
		return err
	}
	pricing := pricing{now, in.limits, size, sizes}
	v.Groups, v.Total = pricing.groups(runs, c.By)
	if v.Leaked, err = pricing.leaked(ctx, in); err != nil {
		return err
	}
	if v.Idle, err = pricing.idle(ctx, in); err != nil {
		return err
	}
	return out.Print(v, v.print)
}

// runs are those to price, each that had a task.
func (c *costCommand) runs(ctx context.Context, in *installation, out *console.Console, since core.Millis) ([]core.Run, error) {
	var runs []core.Run
	var bad []core.Unreadable
	var err error
	if c.Indexed {
		runs, bad, err = in.indexed(ctx)
	} else {
		runs, bad, err = scan(ctx, in, out)
	}
	if err != nil {
		return nil, err
	}
	if len(bad) > 0 {
		out.Note("%d records could not be read and are not in the sums", len(bad))
	}
	return slices.DeleteFunc(runs, func(r core.Run) bool {
		return r.TaskARN == "" || r.StartedAt < since || c.Tenant != "" && string(r.Tenant) != c.Tenant
	}), nil
}

// assume is the size of a task that ECS does not show any more.
func (c *costCommand) assume(ctx context.Context, in *installation) (core.TaskSize, string, error) {
	if c.VCPU > 0 {
		return core.TaskSize{VCPU: c.VCPU, GB: c.MemoryGB, ARM: c.ARM, PublicIPv4: c.PublicIPv4}, "flags", nil
	}
	definition := in.out[names.OutTaskDefinition]
	if definition == "" {
		return core.TaskSize{}, "", badInput("the stack has no sample task definition: say --vcpu and --memory-gb")
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	answer, err := in.ecs.DescribeTaskDefinition(ctx, &ecs.DescribeTaskDefinitionInput{TaskDefinition: &definition})
	if err != nil {
		return core.TaskSize{}, "", fmt.Errorf("describe task definition %s (--vcpu and --memory-gb do without): %w", definition, err)
	}
	d := answer.TaskDefinition
	size, err := sizeOf(aws.ToString(d.Cpu), aws.ToString(d.Memory))
	if err != nil {
		return core.TaskSize{}, "", fmt.Errorf("task definition %s: %w", definition, err)
	}
	size.ARM = d.RuntimePlatform != nil && d.RuntimePlatform.CpuArchitecture == types.CPUArchitectureArm64
	size.PublicIPv4 = c.PublicIPv4
	return size, taskID(definition), nil
}

// sizeOf reads CPU units, 1,024 to a vCPU, and MiB.
func sizeOf(cpu, memory string) (core.TaskSize, error) {
	units, err := strconv.ParseFloat(cpu, 64)
	if err != nil {
		return core.TaskSize{}, fmt.Errorf("read cpu %q: %w", cpu, err)
	}
	mib, err := strconv.ParseFloat(memory, 64)
	if err != nil {
		return core.TaskSize{}, fmt.Errorf("read memory %q: %w", memory, err)
	}
	return core.TaskSize{VCPU: units / 1024, GB: mib / 1024}, nil
}

// sizes asks ECS for the sizes of the tasks that it still shows.
func (c *costCommand) sizes(ctx context.Context, in *installation, runs []core.Run) (map[string]core.TaskSize, error) {
	byCluster := map[string][]string{}
	for _, r := range runs {
		if !r.Status.Terminal() {
			byCluster[r.Cluster] = append(byCluster[r.Cluster], r.TaskARN)
		}
	}
	sizes := map[string]core.TaskSize{}
	for cluster, arns := range byCluster {
		slices.Sort(arns)
		for batch := range slices.Chunk(slices.Compact(arns), 100) {
			tasks, err := in.rawTasks(ctx, cluster, batch)
			if err != nil {
				return nil, err
			}
			for _, t := range tasks {
				if size, ok := c.sizeOfTask(t); ok {
					sizes[aws.ToString(t.TaskArn)] = size
				}
			}
		}
	}
	return sizes, nil
}

// rawTasks are tasks in ECS's own terms, which tell their sizes.
func (in *installation) rawTasks(ctx context.Context, cluster string, arns []string) ([]types.Task, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	answer, err := in.fleet.DescribeTasks(ctx, &ecs.DescribeTasksInput{Cluster: &cluster, Tasks: arns})
	if err != nil {
		return nil, fmt.Errorf("describe %d tasks in %s: %w", len(arns), cluster, err)
	}
	return answer.Tasks, nil
}

// sizeOfTask is false for a task that tells no size: the assumed one will do.
func (c *costCommand) sizeOfTask(t types.Task) (core.TaskSize, bool) {
	size, err := sizeOf(aws.ToString(t.Cpu), aws.ToString(t.Memory))
	size.PublicIPv4 = c.PublicIPv4
	size.ARM = slices.ContainsFunc(t.Attributes, func(a types.Attribute) bool {
		return aws.ToString(a.Name) == "ecs.cpu-architecture" && aws.ToString(a.Value) == "arm64"
	})
	return size, err == nil
}

// pricing is what an estimate is made from.
type pricing struct {
	now     core.Millis
	limits  core.Limits
	assumed core.TaskSize
	sizes   map[string]core.TaskSize // by task
}

func (p pricing) size(arn string) core.TaskSize {
	if s, ok := p.sizes[arn]; ok {
		return s
	}
	return p.assumed
}

// groups sums runs up by run, thread or tenant, the most expensive first.
func (p pricing) groups(runs []core.Run, by string) ([]costGroup, costGroup) {
	sums := map[string]*costGroup{}
	total := costGroup{Key: "total"}
	for _, r := range runs {
		key := map[string]string{
			"run": r.RunKey.String(), "thread": string(r.Tenant) + "/" + string(r.Thread), "tenant": string(r.Tenant),
		}[by]
		if sums[key] == nil {
			sums[key] = &costGroup{Key: key}
		}
		size, used := p.size(r.TaskARN), core.RunTime(r, p.now)
		for _, g := range []*costGroup{sums[key], &total} {
			g.Runs++
			g.Hours += used.Hours()
			g.Cost += size.Cost(used)
			g.Saved += size.Cost(core.SavedTime(r, p.limits))
			if !r.Status.Terminal() {
				g.Living++
			}
		}
	}
	groups := []costGroup{}
	for _, g := range sums {
		groups = append(groups, *g)
	}
	slices.SortFunc(groups, func(a, b costGroup) int { return cmp.Or(cmp.Compare(b.Cost, a.Cost), strings.Compare(a.Key, b.Key)) })
	return groups, total
}

// leaked prices what an audit finds that nothing would end.
func (p pricing) leaked(ctx context.Context, in *installation) (burn, error) {
	report, err := in.audit(ctx, core.DefaultLimits.LeakGrace)
	if err != nil {
		return burn{}, err
	}
	var b burn
	for _, f := range report.Findings {
		if f.Kind == core.AuditLeaked || f.Kind == core.AuditUnwatched {
			b.add(p.size(f.TaskARN), p.now.Sub(f.Since))
		}
	}
	return b, nil
}

// idle prices the sandboxes that are kept warm.
func (p pricing) idle(ctx context.Context, in *installation) (burn, error) {
	var b burn
	for shard := range core.Shards {
		due, err := in.boxes.DueSandboxes(ctx, shard, farAhead)
		if err != nil {
			return burn{}, err
		}
		for _, d := range due {
			if d.Key == "" {
				continue
			}
			box, err := in.boxes.Sandbox(ctx, d.Key)
			if err != nil || box.IdleSince == 0 {
				continue // it has been taken since
			}
			b.add(p.size(box.TaskARN), p.now.Sub(box.IdleSince))
		}
	}
	return b, nil
}

func (b *burn) add(size core.TaskSize, d time.Duration) {
	b.Tasks++
	b.Hourly += size.Hourly()
	b.Cost += size.Cost(d)
}

func (v costView) print(w *console.Writer) {
	var rows [][]string
	for _, g := range append(v.Groups, v.Total) {
		rows = append(rows, []string{
			g.Key, strconv.Itoa(g.Runs), strconv.Itoa(g.Living), fmt.Sprintf("%.1f", g.Hours), dollars(g.Cost), dollars(g.Saved),
		})
	}
	w.Table([]string{"", "RUNS", "LIVING", "HOURS", "COST", "SAVED"}, rows, "")
	w.Line("leaked: %d tasks, %s by now, %s an hour", v.Leaked.Tasks, dollars(v.Leaked.Cost), dollars(v.Leaked.Hourly))
	w.Line("kept warm: %d sandboxes, %s by now, %s an hour", v.Idle.Tasks, dollars(v.Idle.Cost), dollars(v.Idle.Hourly))
	w.Line("a task that ECS does not show any more counts %g vCPU and %g GB, %s an hour (%s)", v.Assumed.VCPU, v.Assumed.GB, dollars(v.Assumed.Hourly), v.Assumed.From)
	w.Line("saved: against a cleaner that knows nothing but the time a run may stay detached")
	w.Line("%s", v.Source)
}

func dollars(n float64) string {
	if n != 0 && n < 1 {
		return fmt.Sprintf("$%.4f", n)
	}
	return fmt.Sprintf("$%.2f", n)
}
