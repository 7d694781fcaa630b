// Package sandkeeper is the stack as a construct that any CDK app in Go can use:
//
//	sandkeeper.New(stack, "Sandkeeper", sandkeeper.Props{Install: "prod", Dist: "dist"})
//
// Its rule: every string that a function also knows comes from internal/names, and nothing
// grants by a construct's convenience: each role is an explicit list. What cannot be made
// as it was asked for panics, and so fails the synthesis, with what was expected.
package sandkeeper

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awscloudwatch"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsdynamodb"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsec2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsecs"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsevents"
	"github.com/aws/aws-cdk-go/awscdk/v2/awseventstargets"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/aws-cdk-go/awscdk/v2/awskms"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslogs"
	"github.com/aws/aws-cdk-go/awscdk/v2/awss3"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsscheduler"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsschedulertargets"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssqs"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// The local variant belongs to an account and a region that only an emulator
// answers for, so that its assembly cannot be deployed anywhere else.
const (
	localAccount = "000000000000"
	localRegion  = "us-east-1"
)

// loopback is what the local variant takes as an endpoint: this machine, or this
// machine as its own containers see it.
const loopback = `^https?://(127\.0\.0\.1|localhost|\[::1\]|host\.docker\.internal)(:[0-9]+)?/?$`

// reclaimWorkers times the ECS calls a second of one worker stays under the
// account's shared bucket for ExecuteCommand, StopTask and RunTask.
const reclaimWorkers = 5

// shardWorkers is how many shards are swept at a time, where one sweep is not enough:
// they share the account's bucket for probes, so more of them would only wait.
const shardWorkers = 4

const day = 24 * time.Hour

// Keeper is one installation. A stack has one at most: its outputs have the names that
// the operator's tool looks for.
type Keeper struct {
	constructs.Construct

	stack        awscdk.Stack
	props        Props
	runs         awsdynamodb.TableV2
	sandboxes    awsdynamodb.TableV2
	checkpoints  awsdynamodb.TableV2
	bucket       awss3.Bucket
	jobs, shards queue
	cluster      awsecs.ICluster
	key          awskms.IKey // nil: the services' own
	sandboxRole  awsiam.IRole
	scheduleRole awsiam.IRole
	events       awssqs.Queue // dead letters of what is invoked asynchronously
	functions    map[names.Function]awslambda.Function
	logs         map[names.Function]awslogs.LogGroup
	alarms       []awscloudwatch.Alarm
	dashboard    awscloudwatch.Dashboard
	endpoints    map[names.Key]*string
	codeBucket   awss3.IBucket // of a bundle
	codePrefix   string
}

// NewStack makes a stack that holds one installation and nothing else.
func NewStack(app constructs.Construct, p Props) awscdk.Stack {
	p = p.complete()
	p.check()
	props := &awscdk.StackProps{
		StackName:   &p.Install,
		Description: new("Sandkeeper: the end of life of AI-agent sandboxes on Fargate"),
		Synthesizer: p.synthesizer(),
	}
	switch {
	case p.Local:
		props.Env = &awscdk.Environment{Account: new(localAccount), Region: new(localRegion)}
	case p.Key != "":
		props.Env = homeOf(p.Key)
	}
	stack := awscdk.NewStack(app, &p.Install, props)
	// CDK leaves this id out of logical ids: they are those of the stack's own children.
	New(stack, "Default", p)
	if !p.Local {
		p.keep(stack)
	}
	return stack
}

// New makes an installation in a scope's stack.
func New(scope constructs.Construct, id string, p Props) *Keeper {
	k := &Keeper{Construct: constructs.NewConstruct(scope, &id), stack: awscdk.Stack_Of(scope), props: p.complete()}
	k.functions, k.logs = map[names.Function]awslambda.Function{}, map[names.Function]awslogs.LogGroup{}
	k.props.check()
	k.read()
	k.alone()
	k.everywhere()
	k.endpoints = k.localEndpoints()
	k.stores()
	k.queues()
	network := k.network()
	probe := k.probe()
	checkpoint, url := k.checkpoint()
	reclaim := k.reclaim(checkpoint)
	reap := k.reap(probe)
	sample := k.sampleTask()
	tools, toolsURL := k.tools(reap)
	session := k.session(reap, checkpoint)
	k.schedules(reap, checkpoint)
	if k.props.Local {
		k.localOperator()
	}
	k.taskEvents(reap)
	k.monitor()
	k.suppress()
	k.outputs(map[names.Output]*string{
		names.OutCheckpoint:      checkpoint.FunctionName(),
		names.OutCheckpointURL:   url,
		names.OutReapFunction:    reap.FunctionName(),
		names.OutProbeFunction:   probe.FunctionName(),
		names.OutReclaimFunction: reclaim.FunctionName(),
		names.OutSession:         session.FunctionName(),
		names.OutTools:           tools.FunctionName(),
		names.OutToolsURL:        toolsURL,
		names.OutTaskDefinition:  sample.TaskDefinitionArn(),
		names.OutSubnets:         network.subnets,
		names.OutSecurityGroup:   network.group,
	})
	return k
}

// alone refuses a second installation in a stack, whose outputs would be those of the
// first, and a key where the stack does not say where it is, by which CDK encrypts no table.
func (k *Keeper) alone() {
	const mark = "sandkeeper-installation"
	if k.stack.Node().TryFindChild(new(mark)) != nil {
		panic(fmt.Errorf("stack %s has an installation already: want one a stack", *k.stack.StackName()))
	}
	constructs.NewConstruct(k.stack, new(mark))
	if k.props.Key != "" && (*awscdk.Token_IsUnresolved(k.stack.Region()) || *awscdk.Token_IsUnresolved(k.stack.Account())) {
		panic(errors.New("key: want a stack whose env says its account and Region, those of the key"))
	}
}

// localEndpoints declares the endpoints as parameters without a default: a local
// deploy that forgets them fails before any function could reach AWS.
func (k *Keeper) localEndpoints() map[names.Key]*string {
	if !k.props.Local {
		return nil
	}
	own := &awscdk.CfnParameterProps{AllowedPattern: new(loopback)}
	return map[names.Key]*string{
		names.EndpointURL:    k.parameter(names.ParamEndpoint, own),
		names.EndpointURLECS: k.parameter(names.ParamEndpointECS, own),
	}
}

// stores makes what must outlive the stack: tables and bucket.
func (k *Keeper) stores() {
	k.runs = k.table(names.Runs)
	k.sandboxes = k.table(names.Sandboxes)
	k.checkpoints = k.table(names.Checkpoints)
	limits, _ := k.limits()
	props := &awss3.BucketProps{
		Versioned:         new(true),
		BlockPublicAccess: awss3.BlockPublicAccess_BLOCK_ALL(),
		ObjectOwnership:   awss3.ObjectOwnership_BUCKET_OWNER_ENFORCED,
		EnforceSSL:        new(true),
		RemovalPolicy:     k.removal(),
		LifecycleRules: &[]*awss3.LifecycleRule{{
			AbortIncompleteMultipartUploadAfter: days(day),
			// A week in which a deletion may be taken back.
			NoncurrentVersionExpiration: days(7 * day),
			ExpiredObjectDeleteMarker:   new(true),
		}, {
			// Logs alone: checkpoints share packs, which only their collection may judge.
			TagFilters: &map[string]any{names.TagKind: names.KindLog},
			Expiration: days(limits.Retention + names.ObjectsOutlive),
		}, {
			// What was said is in the log by then, or nobody listened.
			TagFilters:                  &map[string]any{names.TagKind: names.KindSpool},
			Expiration:                  days(day),
			NoncurrentVersionExpiration: days(day),
		}},
	}
	k.encryptBucket(props)
	k.bucket = awss3.NewBucket(k.Construct, new("logs"), props)
}

// queue is a queue with its dead letters and how it is consumed.
type queue struct {
	awssqs.Queue
	dead awssqs.Queue
	spec queueSpec
}

// queues makes the queue of reclaim jobs and that of shards to sweep.
func (k *Keeper) queues() {
	limits := core.DefaultLimits
	k.jobs = k.queue(names.ReclaimJobs, names.ReclaimDead, queueSpec{
		timeout: limits.ReclaimTimeout, keep: 4 * day, receives: 5, batch: 10, workers: reclaimWorkers,
	})
	// A shard is swept again by the next tick anyway: what has waited for an hour is
	// worth nothing, and only what fails each time is kept, as evidence.
	k.shards = k.queue(names.SweepShards, names.SweepDead, queueSpec{
		// A shard a time: each has the whole of a sweep's time.
		timeout: limits.SweepTimeout, keep: time.Hour, receives: 3, batch: 1, workers: shardWorkers,
	})
	// What cannot be delivered is sent there by Lambda, Scheduler and EventBridge: no queue's
	// dead letters are.
	k.events = k.deadQueue(names.EventDead, &awssqs.RedriveAllowPolicy{RedrivePermission: awssqs.RedrivePermission_DENY_ALL})
}

// deadQueue makes a queue for what failed each time it was tried. allow says which queues
// may name it as theirs; nil is any of the account.
func (k *Keeper) deadQueue(id string, allow *awssqs.RedriveAllowPolicy) awssqs.Queue {
	props := &awssqs.QueueProps{EnforceSSL: new(true), RetentionPeriod: days(14 * day), RedriveAllowPolicy: allow}
	k.encryptQueue(props)
	return awssqs.NewQueue(k.Construct, &id, props)
}

// queueSpec is what distinguishes one queue from another.
type queueSpec struct {
	timeout  time.Duration // of the function that consumes it
	keep     time.Duration // how long a message may wait
	receives float64       // before a message is a dead letter
	batch    float64       // messages an invocation
	workers  float64       // invocations at a time
}

func (k *Keeper) queue(id, dead string, spec queueSpec) queue {
	// By queue would need the ARN of the queue that names this one: a circle, unless either had
	// a name of its own, for which the next deploy would replace it and lose what is in it.
	letters := k.deadQueue(dead, nil)
	props := &awssqs.QueueProps{
		EnforceSSL: new(true),
		// Six times the consumer's timeout: a batch that is still being worked on
		// must not be handed out again.
		VisibilityTimeout: duration(6 * spec.timeout),
		RetentionPeriod:   duration(spec.keep),
		DeadLetterQueue:   &awssqs.DeadLetterQueue{Queue: letters, MaxReceiveCount: &spec.receives},
	}
	k.encryptQueue(props)
	return queue{dead: letters, spec: spec, Queue: awssqs.NewQueue(k.Construct, &id, props)}
}

// consume feeds a queue's messages to a function.
func (k *Keeper) consume(id string, q queue, f awslambda.Function) {
	awslambda.NewEventSourceMapping(k.Construct, &id, &awslambda.EventSourceMappingProps{
		Target:         f,
		EventSourceArn: q.QueueArn(),
		BatchSize:      &q.spec.batch,
		// One poisoned message must not bring nine others back.
		ReportBatchItemFailures: new(true),
		// Not reserved concurrency: throttled pollers use up the receive count.
		MaxConcurrency: &q.spec.workers,
	})
}

// network is where sandboxes of the sample task definition run.
type network struct{ subnets, group *string }

// network is that of the props, or one that the stack makes; so is the cluster.
func (k *Keeper) network() network {
	makes := k.ownNetwork
	if k.props.VPC != "" {
		makes = k.theirNetwork
	}
	vpc, where := makes()
	k.cluster = k.clusterIn(vpc)
	return where
}

// ownNetwork makes public subnets without NAT: a sandbox needs a route to Systems
// Manager for ECS Exec and nothing may reach it.
func (k *Keeper) ownNetwork() (awsec2.IVpc, network) {
	zones := []*string{zone(0), zone(1)}
	vpc := awsec2.NewVpc(k.Construct, new("vpc"), &awsec2.VpcProps{
		// Zones by intrinsic function: a look-up would need an account.
		AvailabilityZones: &zones,
		NatGateways:       new(0.0),
		// The restriction is a custom resource with a function of its own.
		RestrictDefaultSecurityGroup: new(false),
		SubnetConfiguration: &[]*awsec2.SubnetConfiguration{{
			Name: new("sandboxes"), SubnetType: awsec2.SubnetType_PUBLIC, CidrMask: new(20.0),
		}},
	})
	subnets := vpc.SelectSubnets(&awsec2.SubnetSelection{SubnetType: awsec2.SubnetType_PUBLIC}).SubnetIds
	return vpc, network{subnets: awscdk.Fn_Join(new(","), subnets), group: k.group(vpc).SecurityGroupId()}
}

func (k *Keeper) clusterIn(vpc awsec2.IVpc) awsecs.ICluster {
	if k.props.Cluster != "" {
		return k.theirCluster(vpc)
	}
	return awsecs.NewCluster(k.Construct, new("cluster"), &awsecs.ClusterProps{
		Vpc:         vpc,
		ClusterName: &k.props.Install,
		// Exec output is journals and secrets' surroundings: it goes to no log.
		ExecuteCommandConfiguration: &awsecs.ExecuteCommandConfiguration{
			Logging: awsecs.ExecuteCommandLogging_NONE,
		},
	})
}

func zone(i float64) *string { return awscdk.Fn_Select(&i, awscdk.Fn_GetAzs(new(""))) }

func (k *Keeper) sampleFamily() string { return k.props.Install + "-" + names.SandboxFamily }

// sampleTask is a task definition that satisfies what ECS Exec asks for: an init
// process, a writable root file system, a role with the four channel actions and
// nothing of ours, and a main process that outlives the agent, a notice of its end too.
func (k *Keeper) sampleTask() awsecs.FargateTaskDefinition {
	channels := []grant{{
		actions: []string{
			"ssmmessages:CreateControlChannel", "ssmmessages:CreateDataChannel",
			"ssmmessages:OpenControlChannel", "ssmmessages:OpenDataChannel",
		},
		resources: []*string{new("*")}, // these actions know no resource
	}}
	k.sandboxRole = role(k.Construct, "sandbox-role", "ecs-tasks.amazonaws.com", channels).WithoutPolicyUpdates(nil)
	task := awsecs.NewFargateTaskDefinition(k.Construct, new("sandbox"), &awsecs.FargateTaskDefinitionProps{
		Family:          new(k.sampleFamily()),
		Cpu:             new(256.0),
		MemoryLimitMiB:  new(512.0),
		TaskRole:        k.sandboxRole,
		RuntimePlatform: &awsecs.RuntimePlatform{CpuArchitecture: awsecs.CpuArchitecture_ARM64(), OperatingSystemFamily: awsecs.OperatingSystemFamily_LINUX()},
	})
	for _, name := range slices.Sorted(maps.Keys(k.props.TaskTags)) {
		awscdk.Tags_Of(task).Add(&name, new(k.props.TaskTags[name]), nil)
	}
	task.AddContainer(new(names.AgentContainer), &awsecs.ContainerDefinitionOptions{
		Image:                  awsecs.ContainerImage_FromRegistry(&k.props.SandboxImage, nil),
		Command:                texts([]string{"sh", "-c", core.MainProcess}),
		Essential:              new(true),
		ReadonlyRootFilesystem: new(false),
		StopTimeout:            duration(core.LongestStop), // used up only while there is something to save
		LinuxParameters: awsecs.NewLinuxParameters(k.Construct, new("sandbox-linux"), &awsecs.LinuxParametersProps{
			InitProcessEnabled: new(true),
		}),
	})
	return task
}

func (k *Keeper) probe() awslambda.Function {
	return k.function(functionSpec{
		name:     names.Probe,
		about:    "Asks sandboxes' journals by ECS Exec whether their agents ended",
		timeout:  core.DefaultLimits.ProbeTimeout,
		memoryMB: 512,
		env: map[names.Key]*string{
			names.SandboxesTable: k.sandboxes.TableName(), names.Install: &k.props.Install, names.Places: k.placesText(),
		},
		local:  k.endpoints,
		grants: k.probeGrants(),
	})
}

// checkpoint makes the function and its URL, at which agents ask for grants. The URL
// takes everybody's requests: whoever has the token of a live step is answered, others
// are not, since no sandbox has credentials that AWS could check.
func (k *Keeper) checkpoint() (awslambda.Function, *string) {
	f := k.function(functionSpec{
		name:     names.Checkpoint,
		about:    "Keeps the workspaces of threads: grants, heads, forks, restores and collection",
		timeout:  core.DefaultLimits.CheckpointTimeout,
		memoryMB: 1024,
		env: map[names.Key]*string{
			names.RunsTable:          k.runs.TableName(),
			names.CheckpointsTable:   k.checkpoints.TableName(),
			names.SandboxesTable:     k.sandboxes.TableName(),
			names.LogBucket:          k.bucket.BucketName(),
			names.ReclaimQueue:       k.jobs.QueueUrl(),
			names.Mode:               &k.props.Mode,
			names.CheckpointFunction: new(deployedName(k.props, names.Checkpoint)),
			names.KeepCheckpoints:    k.keepCheckpoints(),
			names.ThreadRetention:    number("threadRetention", k.props.ThreadRetention),
			names.Install:            &k.props.Install,
			names.Places:             k.placesText(),
		},
		local:    k.endpoints,
		grants:   k.checkpointGrants(),
		async:    true,
		reserved: concurrency("checkpointConcurrency", k.props.CheckpointConcurrency),
	})
	url := f.AddFunctionUrl(&awslambda.FunctionUrlOptions{AuthType: awslambda.FunctionUrlAuthType_NONE})
	return f, url.Url()
}

// concurrency caps a function that everybody may call, so that a flood leaves the
// account's concurrency to the others. There is no default: an account whose limit is 10,
// as new ones have, has none to reserve, and its deploy would fail. It panics, and so
// fails the synthesis, for what is no number of invocations; 0 would be one, and refuse
// them all.
func concurrency(context, given string) *float64 {
	if given == "" {
		return nil
	}
	n, err := strconv.ParseUint(given, 10, 31)
	if err != nil || n == 0 {
		panic(fmt.Errorf("context %s: want a whole number of at least 1, got %q", context, given))
	}
	return new(float64(n))
}

// keepCheckpoints is how many checkpoints of a thread are kept.
func (k *Keeper) keepCheckpoints() *string {
	return number("keepCheckpoints", k.props.KeepCheckpoints)
}

// number panics, and so fails the synthesis, for what is no number: the function would not
// start.
func number(name, given string) *string {
	if _, err := strconv.ParseUint(given, 10, 31); err != nil {
		panic(fmt.Errorf("context %s: want a whole number of at least 0, got %q", name, given))
	}
	return &given
}

// tenants refuses what session would not start with.
func (k *Keeper) tenants() *string {
	if _, err := core.ReadTenants(k.props.Tenants); err != nil {
		panic(fmt.Errorf("context tenants: %w", err))
	}
	return &k.props.Tenants
}

func (k *Keeper) reclaim(checkpoint awslambda.Function) awslambda.Function {
	f := k.function(functionSpec{
		name:     names.Reclaim,
		about:    "Has workspaces saved, then stops the tasks of ended runs or marks them idle",
		timeout:  core.DefaultLimits.ReclaimTimeout,
		memoryMB: 256,
		env: map[names.Key]*string{
			names.RunsTable:          k.runs.TableName(),
			names.SandboxesTable:     k.sandboxes.TableName(),
			names.CheckpointsTable:   k.checkpoints.TableName(),
			names.CheckpointFunction: checkpoint.FunctionName(),
			names.HostFunctions:      new(strings.Join(k.hostFunctions(), ",")),
			names.EventBus:           &k.props.EventBus,
			names.Install:            &k.props.Install,
			names.Limits:             k.limitsText(),
			names.Mode:               &k.props.Mode,
			names.OnFailure:          &k.props.OnFailure,
			names.Places:             k.placesText(),
		},
		local:  k.endpoints,
		grants: k.reclaimGrants(checkpoint),
	})
	k.consume("reclaim-source", k.jobs, f)
	return f
}

func (k *Keeper) reap(probe awslambda.Function) awslambda.Function {
	f := k.function(functionSpec{
		name:     names.Reap,
		about:    "Finds detached runs whose agents ended, finishes them, hands their sandboxes to reclaim",
		timeout:  core.DefaultLimits.SweepTimeout,
		memoryMB: 512,
		env: map[names.Key]*string{
			names.RunsTable:      k.runs.TableName(),
			names.SandboxesTable: k.sandboxes.TableName(),
			names.LogBucket:      k.bucket.BucketName(),
			names.Cluster:        k.cluster.ClusterArn(),
			names.ReclaimQueue:   k.jobs.QueueUrl(),
			names.ShardQueue:     k.shards.QueueUrl(),
			names.EventBus:       &k.props.EventBus,
			names.ProbeFunction:  probe.FunctionName(),
			names.HostFunctions:  new(strings.Join(k.hostFunctions(), ",")),
			names.Install:        &k.props.Install,
			names.Leaks:          &k.props.Leaks,
			names.Limits:         k.limitsText(),
			names.Mode:           &k.props.Mode,
			names.Places:         k.placesText(),
		},
		local:    k.endpoints,
		grants:   k.reapGrants(probe),
		async:    true,
		dropLate: true, // a missed tick is worthless a minute later
	})
	k.consume("reap-source", k.shards, f)
	return f
}

// session makes what hosts invoke. Whoever may invoke it, or an alias of it, may act for
// the tenants that are listed for that alias.
func (k *Keeper) session(reap, checkpoint awslambda.Function) awslambda.Function {
	return k.function(functionSpec{
		name:     names.Session,
		about:    "Begins, attaches, tails, leaves, pauses and ends runs for hosts",
		timeout:  core.SessionTimeout,
		memoryMB: 512,
		env: map[names.Key]*string{
			names.RunsTable:          k.runs.TableName(),
			names.SandboxesTable:     k.sandboxes.TableName(),
			names.CheckpointsTable:   k.checkpoints.TableName(),
			names.LogBucket:          k.bucket.BucketName(),
			names.Cluster:            k.cluster.ClusterArn(),
			names.ReclaimQueue:       k.jobs.QueueUrl(),
			names.CheckpointFunction: checkpoint.FunctionName(),
			names.ReapFunction:       reap.FunctionName(),
			names.ToolsFunction:      new(deployedName(k.props, names.Tools)),
			names.HostFunctions:      new(strings.Join(k.hostFunctions(), ",")),
			names.EventBus:           &k.props.EventBus,
			names.Install:            &k.props.Install,
			names.Limits:             k.limitsText(),
			names.Tenants:            k.tenants(),
			names.Places:             k.placesText(),
			names.SandboxesPerTenant: number("sandboxesPerTenant", k.props.SandboxesPerTenant),
		},
		local: k.endpoints,
		grants: append(k.sessionGrants(checkpoint), grant{
			// A cancel is looked at now.
			actions: []string{"lambda:InvokeFunction"}, resources: []*string{reap.FunctionArn()},
		}),
	})
}

// timetable is what distinguishes one schedule from another.
type timetable struct {
	name, detailType, about string
	target                  awslambda.Function
	when                    awsscheduler.ScheduleExpression
	retries                 float64       // of the delivery to Lambda, which tries the function once
	within                  time.Duration // until when a delivery is worth something
}

// schedules fire reap once a minute, and once a day for what looks at everything, and
// the collection of garbage once a day. A tick that could not be delivered is dropped:
// the next one sees all that it would have seen.
func (k *Keeper) schedules(reap, checkpoint awslambda.Function) {
	invoke := role(k.Construct, "schedule-role", "scheduler.amazonaws.com", append(k.ciphers(), grant{
		actions: []string{"lambda:InvokeFunction"}, resources: []*string{reap.FunctionArn(), checkpoint.FunctionArn()},
	}, k.buries())).WithoutPolicyUpdates(nil)
	k.scheduleRole = invoke
	for _, t := range []timetable{{
		name: names.TickSchedule, detailType: names.DetailScheduleTick, about: "One sweep of all that has not ended", target: reap,
		when: awsscheduler.ScheduleExpression_Rate(duration(k.scheduleRate())), within: time.Minute,
	}, {
		name: names.DailySchedule, detailType: names.DetailScheduleDaily, about: "One audit of ECS and one prune of idle sandboxes a day", target: reap,
		// Not on the hour, when everybody's daily work asks ECS.
		when: daily("4", "17"), retries: 5, within: time.Hour,
	}, {
		name: names.AuditSchedule, detailType: names.DetailScheduleAudit, about: "One audit of ECS an hour", target: reap,
		when: hourly("47"), retries: 1, within: 10 * time.Minute,
	}, {
		name: names.CollectSchedule, detailType: names.DetailScheduleCollect, about: "One collection of what no checkpoint needs a day", target: checkpoint,
		when: daily("3", "43"), retries: 5, within: time.Hour,
	}} {
		k.schedule(t, invoke)
	}
}

func hourly(minute string) awsscheduler.ScheduleExpression {
	return awsscheduler.ScheduleExpression_Cron(&awsscheduler.CronOptionsWithTimezone{Minute: &minute})
}

func daily(hour, minute string) awsscheduler.ScheduleExpression {
	return awsscheduler.ScheduleExpression_Cron(&awsscheduler.CronOptionsWithTimezone{Hour: &hour, Minute: &minute})
}

func (k *Keeper) schedule(t timetable, invoke awsiam.IRole) {
	awsscheduler.NewSchedule(k.Construct, &t.name, &awsscheduler.ScheduleProps{
		ScheduleName: join(k.props.Install, "-", t.name),
		Description:  &t.about,
		Schedule:     t.when,
		Target: awsschedulertargets.NewLambdaInvoke(t.target, &awsschedulertargets.ScheduleTargetBaseProps{
			Role:            invoke,
			RetryAttempts:   &t.retries,
			MaxEventAge:     duration(t.within),
			DeadLetterQueue: k.events,
			Input: awsscheduler.ScheduleTargetInput_FromObject(map[string]any{
				"source":        names.SourceSchedule,
				"detail-type":   t.detailType,
				"scheduledTime": awsscheduler.ContextAttribute_ScheduledTime(),
				"executionId":   awsscheduler.ContextAttribute_ExecutionId(),
			}),
		}),
	})
}

// taskEvents sends the stopped tasks of the clusters to reap: a hint to look now.
func (k *Keeper) taskEvents(reap awslambda.Function) {
	k.taskRule("task-stopped", names.SourceECS, reap)
	if k.props.Local {
		k.taskRule("local-task-stopped", names.SourceLocalECS, reap)
	} else { // the local engine knows no policies of buses
		k.hears()
	}
}

func (k *Keeper) taskRule(id, source string, reap awslambda.Function) {
	awsevents.NewRule(k.Construct, &id, &awsevents.RuleProps{
		Description:  new("Tasks of the sandboxes' clusters that have stopped or are about to"),
		EventPattern: taskPattern(source, k.clusterARNs(), k.families()),
		Targets: &[]awsevents.IRuleTarget{awseventstargets.NewLambdaFunction(reap, &awseventstargets.LambdaFunctionProps{
			RetryAttempts:   new(0.0),
			MaxEventAge:     duration(time.Minute),
			DeadLetterQueue: k.events,
		})},
	})
}

func (k *Keeper) outputs(more map[names.Output]*string) {
	all := map[names.Output]*string{
		names.OutRunsTable:       k.runs.TableName(),
		names.OutSandboxesTable:  k.sandboxes.TableName(),
		names.OutCheckpoints:     k.checkpoints.TableName(),
		names.OutBucket:          k.bucket.BucketName(),
		names.OutReclaimQueue:    k.jobs.QueueUrl(),
		names.OutDeadLetterQueue: k.jobs.dead.QueueUrl(),
		names.OutShardQueue:      k.shards.QueueUrl(),
		names.OutShardDead:       k.shards.dead.QueueUrl(),
		names.OutEventDead:       k.events.QueueUrl(),
		names.OutEventBus:        &k.props.EventBus,
		names.OutCluster:         k.cluster.ClusterArn(),
		names.OutInstall:         &k.props.Install,
		names.OutLimits:          k.limitsText(),
		names.OutMode:            &k.props.Mode,
		names.OutChosen:          k.chosenText(),
		names.OutPlaces:          k.placesText(),
		names.OutSchema:          new(strconv.Itoa(names.Schema)),
	}
	maps.Copy(all, more)
	for _, id := range slices.Sorted(maps.Keys(all)) {
		output := awscdk.NewCfnOutput(k.Construct, new(string(id)), &awscdk.CfnOutputProps{Value: all[id]})
		output.OverrideLogicalId(new(string(id)))
	}
}
