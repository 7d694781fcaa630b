package main

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	dynamotypes "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	lambdatypes "github.com/aws/aws-sdk-go-v2/service/lambda/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/aws-sdk-go-v2/service/scheduler"
	schedulertypes "github.com/aws/aws-sdk-go-v2/service/scheduler/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// Above skewMost a host refuses to work; from skewWarn on somebody should look.
const (
	skewMost = 30 * time.Second
	skewWarn = 5 * time.Second
)

// identity says who asks, and how far this machine's clock is from AWS's.
func (d *doctor) identity(ctx context.Context) {
	who, err := sts.NewFromConfig(d.in.cfg).GetCallerIdentity(ctx, nil)
	if err != nil {
		d.unknown(err)
		return
	}
	d.ok("%s", aws.ToString(who.Arn))
	d.check = "clock"
	server, ok := awsmiddleware.GetServerTime(who.ResultMetadata)
	if !ok {
		d.add(stateUnknown, "this endpoint sends no Date", "the answer carries no date")
		return
	}
	// The header has whole seconds: half of one is no skew.
	skew := time.Since(server.Add(time.Second / 2))
	switch away := skew.Abs(); {
	case away > skewMost:
		d.fail("set this machine's clock by NTP; a host here would be refused", "%s off the service's Date", skewText(skew))
	case away > skewWarn:
		d.warn("set this machine's clock by NTP", "%s off the service's Date", skewText(skew))
	default:
		d.ok("%s off the service's Date", skewText(skew))
	}
}

// endpointsOf lists the configured endpoints, those of this machine apart.
func endpointsOf(g *globals) (here, elsewhere []string) {
	add := func(name, url string) {
		if engine.Loopback(url) {
			here = append(here, name+"="+url)
		} else {
			elsewhere = append(elsewhere, name+"="+url)
		}
	}
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		global := name == "AWS_ENDPOINT_URL" && g.EndpointURL != ""
		if strings.HasPrefix(name, "AWS_ENDPOINT_URL") && value != "" && !global {
			add(name, value)
		}
	}
	if g.EndpointURL != "" {
		add("--endpoint-url", g.EndpointURL)
	}
	slices.Sort(here)
	slices.Sort(elsewhere)
	return here, elsewhere
}

// stack asks CloudFormation how the last deploy ended.
func (d *doctor) stack(ctx context.Context) {
	s, err := d.in.globals.describeStack(ctx, d.in.cfg)
	switch {
	case err != nil:
		d.unknown(err)
	case strings.Contains(s.status, "ROLLBACK") || strings.Contains(s.status, "FAILED"):
		d.warn("look at the stack's events and deploy again", "%s is %s", d.in.globals.Stack, s.status)
	case !strings.HasSuffix(s.status, "_COMPLETE"):
		d.warn("wait until the deploy is over", "%s is %s", d.in.globals.Stack, s.status)
	default:
		d.ok("%s is %s", d.in.globals.Stack, s.status)
	}
}

// settings tells what keeps the installation from acting.
func (d *doctor) settings(ctx context.Context) {
	c, err := d.in.controls().Control(ctx)
	if err != nil {
		d.unknown(err)
		return
	}
	before := len(d.found)
	if !c.Acts() {
		d.warn("sandkeeper plan, and then sandkeeper mode enforce", "the installation observes: nothing is ended")
	}
	if c.Frozen {
		d.warn("sandkeeper thaw --why '…'", "frozen since %s by %s: %s", stamp(c.FrozenAt), c.FrozenBy, c.FrozenWhy)
	}
	if at := c.Breaker.TrippedAt; at != 0 {
		d.warn("look at what ended, and then sandkeeper thaw --why '…'", "the breaker tripped at %s after %d ends without a sentinel", stamp(at), c.Breaker.Count)
	}
	if len(d.found) == before {
		d.ok("the installation enforces")
	}
}

// tables compares the tables with what this version reads.
func (d *doctor) tables(ctx context.Context) {
	db := dynamodb.NewFromConfig(d.in.cfg)
	for output, want := range map[names.Output]names.Table{names.OutRunsTable: names.Runs, names.OutSandboxesTable: names.Sandboxes, names.OutCheckpoints: names.Checkpoints} {
		name := d.in.out[output]
		answer, err := db.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &name})
		if err != nil {
			d.unknown(err)
			continue
		}
		lacks := lackingIndexes(answer.Table, want)
		switch {
		case answer.Table.TableStatus != dynamotypes.TableStatusActive:
			d.fail("wait, or look at the table", "%s is %s", name, answer.Table.TableStatus)
		case len(lacks) > 0:
			d.fail("deploy the stack of this version", "%s has no index %s that is ready", name, strings.Join(lacks, ", "))
		default:
			d.ok("%s is there, with its %d indexes", name, len(want.Indexes))
		}
		d.recovery(ctx, db, name)
	}
}

func lackingIndexes(table *dynamotypes.TableDescription, want names.Table) []string {
	var lacks []string
	for _, index := range want.Indexes {
		if !slices.ContainsFunc(table.GlobalSecondaryIndexes, func(g dynamotypes.GlobalSecondaryIndexDescription) bool {
			// Some emulators do not tell a state.
			return aws.ToString(g.IndexName) == index.Name && (g.IndexStatus == dynamotypes.IndexStatusActive || g.IndexStatus == "")
		}) {
			lacks = append(lacks, index.Name)
		}
	}
	return lacks
}

func (d *doctor) recovery(ctx context.Context, db *dynamodb.Client, name string) {
	answer, err := db.DescribeContinuousBackups(ctx, &dynamodb.DescribeContinuousBackupsInput{TableName: &name})
	if err != nil {
		d.unknown(err)
		return
	}
	b := answer.ContinuousBackupsDescription
	on := b != nil && b.PointInTimeRecoveryDescription != nil &&
		b.PointInTimeRecoveryDescription.PointInTimeRecoveryStatus == dynamotypes.PointInTimeRecoveryStatusEnabled
	if !on {
		d.warn("aws dynamodb update-continuous-backups --table-name "+name+" --point-in-time-recovery-specification PointInTimeRecoveryEnabled=true", "%s has no point-in-time recovery", name)
	}
}

// bucket checks that transcripts can be kept, and taken back for a while.
func (d *doctor) bucket(ctx context.Context) {
	store, name := s3.NewFromConfig(d.in.cfg, pathStyle), d.in.out[names.OutBucket]
	answer, err := store.GetBucketVersioning(ctx, &s3.GetBucketVersioningInput{Bucket: &name})
	switch {
	case err != nil:
		d.unknown(err)
	case answer.Status != s3types.BucketVersioningStatusEnabled:
		d.warn("aws s3api put-bucket-versioning --bucket "+name+" --versioning-configuration Status=Enabled", "%s keeps no versions", name)
	default:
		d.ok("%s is there and keeps versions", name)
	}
}

// functionOf is the output that names a function's deployed name.
func functionOf(f names.Function) names.Output {
	return names.Output(strings.ToUpper(string(f[:1])) + string(f[1:]) + "Function")
}

// timeouts are what this version's limits ask for.
var timeouts = map[names.Function]time.Duration{
	names.Reap: core.DefaultLimits.SweepTimeout, names.Probe: core.DefaultLimits.ProbeTimeout,
	names.Reclaim: core.DefaultLimits.ReclaimTimeout, names.Checkpoint: core.DefaultLimits.CheckpointTimeout,
	names.Session: core.SessionTimeout, names.Tools: core.ToolsTimeout,
}

// functions compares the deployed functions with this version.
func (d *doctor) functions(ctx context.Context) {
	for _, f := range names.Functions {
		name := d.in.out[functionOf(f)]
		if name == "" {
			d.fail("deploy the stack of this version", "the stack has no function %s", f)
			continue
		}
		c, err := d.in.lambda.GetFunctionConfiguration(ctx, &lambda.GetFunctionConfigurationInput{FunctionName: &name})
		if err != nil {
			d.unknown(err)
			continue
		}
		variables := map[string]string{}
		if c.Environment != nil {
			variables = c.Environment.Variables
		}
		var lacks []string
		for _, key := range names.Env[f] {
			if variables[string(key)] == "" {
				lacks = append(lacks, string(key))
			}
		}
		timeout := time.Duration(aws.ToInt32(c.Timeout)) * time.Second
		before := len(d.found)
		switch {
		case c.State != lambdatypes.StateActive || c.LastUpdateStatus == lambdatypes.LastUpdateStatusFailed:
			d.fail("look at the function, and deploy the stack again", "%s is %s, its last update %s", name, c.State, c.LastUpdateStatus)
		case len(lacks) > 0:
			d.fail("deploy the stack of this version", "%s lacks %s", name, strings.Join(lacks, ", "))
		case timeouts[f] != 0 && timeout != timeouts[f]:
			d.warn("deploy the stack of this version", "%s may take %s, this version's limit is %s", name, timeout, timeouts[f])
		}
		d.reserved(ctx, name)
		d.elsewhere(name, variables[string(names.EndpointURLECS)])
		if len(d.found) == before {
			d.ok("%s is ready, changed %s", name, aws.ToString(c.LastModified))
		}
	}
}

// reserved tells of a function that somebody has stopped, as one does in an incident: the
// stack sets no such thing, and no deploy takes it back.
func (d *doctor) reserved(ctx context.Context, name string) {
	answer, err := d.in.lambda.GetFunctionConcurrency(ctx, &lambda.GetFunctionConcurrencyInput{FunctionName: &name})
	switch {
	case err != nil:
		d.unknownOf(name+": how many of it may run", err)
	case answer.ReservedConcurrentExecutions != nil && *answer.ReservedConcurrentExecutions == 0:
		d.fail("aws lambda delete-function-concurrency --function-name "+name+", once what it was stopped for is over; where the stack reserves some for it, put-function-concurrency with that number",
			"%s is stopped: its reserved concurrency is 0, so that Lambda refuses every invocation", name)
	}
}

// elsewhere tells of a function of a local deploy that asks another ECS than this tool: what
// one of them starts, the other knows nothing of.
func (d *doctor) elsewhere(name, theirs string) {
	ours := aws.ToString(d.in.ecs.Options().BaseEndpoint)
	if theirs != "" && !sameEndpoint(theirs, ours) {
		d.fail("set AWS_ENDPOINT_URL_ECS="+theirs+", or deploy anew with the ECS that is meant", "%s asks ECS at %s, this tool at %s", name, theirs, cmp.Or(ours, "AWS's own endpoint"))
	}
}

// sameEndpoint reports whether two URLs lead to one server. This machine has several names,
// one of them among its own containers.
func sameEndpoint(a, b string) bool {
	at := func(text string) string {
		u, err := url.Parse(text)
		if err != nil {
			return text
		}
		host := u.Hostname()
		if engine.Loopback(text) || host == "host.docker.internal" {
			host = "localhost"
		}
		return u.Scheme + "://" + host + ":" + u.Port()
	}
	return at(a) == at(b)
}

// sources checks that queues reach their functions.
func (d *doctor) sources(ctx context.Context) {
	for _, output := range []names.Output{names.OutReapFunction, names.OutReclaimFunction} {
		name := d.in.out[output]
		answer, err := d.in.lambda.ListEventSourceMappings(ctx, &lambda.ListEventSourceMappingsInput{FunctionName: &name})
		if err != nil {
			d.unknown(err)
			continue
		}
		if len(answer.EventSourceMappings) == 0 {
			d.fail("deploy the stack", "no queue reaches %s", name)
		}
		for _, m := range answer.EventSourceMappings {
			source := aws.ToString(m.EventSourceArn)
			switch state := aws.ToString(m.State); state {
			case "Enabled":
				d.ok("%s reaches %s", source, name)
			case "Disabled", "Disabling":
				// A deploy that changes nothing of it leaves it as somebody left it.
				d.fail("aws lambda update-event-source-mapping --enabled --uuid "+aws.ToString(m.UUID)+", once what it was disabled for is over",
					"%s to %s is %s: what is sent there waits", source, name, state)
			default:
				d.fail("ask again in a minute, or deploy the stack", "%s to %s is %s", source, name, state)
			}
		}
	}
}

// alarms looks whether anybody hears of them: a cleaner that has stopped is else not noticed.
func (d *doctor) alarms(context.Context) {
	switch c, err := d.chosen(); {
	case err != nil:
		d.unknown(err)
	case c.AlarmTopic == "":
		d.warn("choose alarmTopic, and runbook with it, and deploy", "no alarm tells anybody")
	default:
		d.ok("%s hears of them", c.AlarmTopic)
	}
}

// schedules checks that sweeps, audits and the collection happen.
func (d *doctor) schedules(ctx context.Context) {
	client := scheduler.NewFromConfig(d.in.cfg)
	for _, last := range names.Schedules {
		name := d.in.out[names.OutInstall] + "-" + last
		s, err := client.GetSchedule(ctx, &scheduler.GetScheduleInput{Name: &name})
		switch {
		case err != nil:
			d.unknown(err)
		case s.State != schedulertypes.ScheduleStateEnabled:
			// As above: a deploy alone does not enable it.
			d.fail("enable it in EventBridge Scheduler, once what it was disabled for is over", "%s is %s: what it begins does not happen", name, s.State)
		default:
			d.ok("%s fires by %s", name, aws.ToString(s.ScheduleExpression))
		}
	}
}

// queues tells what waits, and what nobody could do.
func (d *doctor) queues(ctx context.Context) {
	for _, q := range []struct {
		output names.Output
		cure   string
	}{
		{names.OutDeadLetterQueue, "sandkeeper redrive --dry-run, and then without"},
		{names.OutShardDead, "sandkeeper redrive --queue shards --dry-run, and then without"},
		{names.OutEventDead, "sandkeeper redrive --queue events --dry-run, and then without"},
	} {
		name := taskID(d.in.out[q.output])
		n, err := depth(ctx, d.in.queues, d.in.out[q.output])
		switch {
		case err != nil:
			d.unknown(err)
		case n > 0:
			d.warn(q.cure, "%s holds about %d dead letters", name, n)
		default:
			d.ok("%s is empty", name)
		}
	}
}

// versions compares this tool with the functions, and looks for records that it does not
// understand: a new installation has none.
func (d *doctor) versions(ctx context.Context) {
	if says, cure := versionsApart(d.in.out[names.OutSchema]); says != "" {
		d.fail(cure, "%s", says)
		return
	}
	runs, bad, err := d.in.indexed(ctx)
	switch {
	case err != nil:
		d.unknown(err)
	case len(bad) > 0:
		d.fail("use the tool of the stack's version, or deploy the stack of this one", "%d of %d records cannot be read: %v", len(bad), len(bad)+len(runs), bad[0].Err)
	default:
		d.ok("this is %s, and it reads all %d records in the indexes", version(), len(runs))
	}
}

// versionsApart says how the schema that the deployed functions write differs from this
// tool's, and the cure; nothing where it does not. A stack that names none is of an older
// release than those that do.
func versionsApart(deployed string) (says, cure string) {
	n, err := strconv.Atoi(cmp.Or(deployed, "0"))
	switch {
	case err != nil:
		return fmt.Sprintf("the stack says that its functions write schema %.20q, which is no version", deployed), "deploy the stack of this version"
	case n > names.Schema:
		return fmt.Sprintf("the functions write schema %d, this tool reads up to %d", n, names.Schema), "use the tool of the stack's version: make cli, in the clone from which it was deployed"
	case n < names.Schema:
		return fmt.Sprintf("the functions write schema %d, this tool writes %d, which they do not read", n, names.Schema), "deploy the stack of this version, or use the tool of the stack's"
	}
	return "", ""
}
