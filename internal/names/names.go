// Package names holds every string that the stack, the functions and the
// operator's tool must agree on: functions and their environment, outputs, queues,
// prefixes, event sources, and the tables and indexes as data. It imports nothing
// of ours, so that anything may read it, and it decides nothing.
package names

import "time"

// Function is the short name of a Lambda function: its folder under functions/
// and under dist/, and the last part of its deployed name.
type Function string

// The functions of the stack.
const (
	Reap       Function = "reap"
	Probe      Function = "probe"
	Reclaim    Function = "reclaim"
	Checkpoint Function = "checkpoint"
	Session    Function = "session"
	Tools      Function = "tools"
)

// Functions lists every function in the order in which the stack makes them: a
// function stands after those that it invokes.
var Functions = []Function{Probe, Checkpoint, Reclaim, Reap, Tools, Session}

// Key is the name of an environment variable that the stack gives a function.
type Key string

// The environment of the functions.
const (
	RunsTable          Key = "RUNS_TABLE"            // name of the runs table
	SandboxesTable     Key = "SANDBOXES_TABLE"       // name of the sandboxes table
	CheckpointsTable   Key = "CHECKPOINTS_TABLE"     // name of the checkpoints table
	LogBucket          Key = "LOG_BUCKET"            // name of the bucket for logs and the objects of threads
	Cluster            Key = "CLUSTER_ARN"           // ARN of the ECS cluster of the sandboxes
	Places             Key = "PLACES"                // JSON: the own cluster and the spokes, see core.ReadPlaces
	ReclaimQueue       Key = "RECLAIM_QUEUE_URL"     // URL of the reclaim queue
	ShardQueue         Key = "SHARD_QUEUE_URL"       // URL of the queue of shards to sweep
	EventBus           Key = "EVENT_BUS"             // name of the bus for outbound events
	ProbeFunction      Key = "PROBE_FUNCTION"        // name of the probe function
	CheckpointFunction Key = "CHECKPOINT_FUNCTION"   // name of the checkpoint function; its own asks for its URL by it
	ReapFunction       Key = "REAP_FUNCTION"         // name of the reap function
	ToolsFunction      Key = "TOOLS_FUNCTION"        // name of the tools function
	Install            Key = "INSTALL"               // name of this installation; startedBy at ECS is <install>/<instanceId>
	Limits             Key = "LIMITS"                // JSON: the limits that the installation chose, see core.ReadLimits
	Mode               Key = "MODE"                  // the mode that holds until an operator sets one
	OnFailure          Key = "ON_CHECKPOINT_FAILURE" // what becomes of a sandbox whose workspace cannot be stored
	Leaks              Key = "LEAKS"                 // what becomes of a task that no ledger row names
	KeepCheckpoints    Key = "KEEP_CHECKPOINTS"      // how many of a thread's newest checkpoints outlive the day, beside the named ones; 0: all
	ThreadRetention    Key = "THREAD_RETENTION"      // for how many days a thread is kept that nobody uses; 0: for ever
	Tenants            Key = "TENANTS"               // JSON: for which tenants a caller may act, by the alias that it invokes
	SandboxesPerTenant Key = "SANDBOXES_PER_TENANT"  // how many sandboxes a tenant may have at once; 0: any number
	HostFunctions      Key = "HOST_FUNCTIONS"        // comma-separated names or ARNs of the functions that tools and hooks may be; - for none
)

// None is the value of a list that has nothing in it: no variable is empty.
const None = "-"

// The values of [Mode]: the core's modes.
const (
	ModeObserve = "observe"
	ModeEnforce = "enforce"
)

// The values of [OnFailure]: the sandbox is held for a bounded time and its checkpoint
// tried again, or it is let go at once.
const (
	FailureHold    = "hold"
	FailureRelease = "release"
)

// The values of [Leaks]: an audit reports what it finds, or has it stopped too.
const (
	LeaksReport = "report"
	LeaksStop   = "stop"
)

// Values lists, for each variable that takes one of a few, all that it may be.
// The stack refuses to synthesize with another, the function refuses to start.
var Values = map[Key][]string{Mode: {ModeObserve, ModeEnforce}, OnFailure: {FailureHold, FailureRelease}, Leaks: {LeaksReport, LeaksStop}}

// Env lists for each function exactly the variables it reads. The stack refuses
// to synthesize with more or fewer, the function refuses to start with fewer.
var Env = map[Function][]Key{
	Reap:       {RunsTable, SandboxesTable, LogBucket, Cluster, ReclaimQueue, ShardQueue, EventBus, ProbeFunction, HostFunctions, Install, Leaks, Limits, Mode, Places},
	Probe:      {SandboxesTable, Install, Places},
	Checkpoint: {RunsTable, CheckpointsTable, SandboxesTable, LogBucket, ReclaimQueue, CheckpointFunction, KeepCheckpoints, ThreadRetention, Install, Mode, Places},
	Reclaim:    {RunsTable, SandboxesTable, CheckpointsTable, CheckpointFunction, HostFunctions, EventBus, Install, Limits, Mode, OnFailure, Places},
	Tools:      {RunsTable, LogBucket, ReapFunction, HostFunctions, Install},
	Session: {
		RunsTable, SandboxesTable, CheckpointsTable, LogBucket, Cluster, ReclaimQueue, CheckpointFunction, ReapFunction, ToolsFunction, HostFunctions,
		SandboxesPerTenant, EventBus, Install, Limits, Tenants, Places,
	},
}

// The endpoint variables that only the local variant of the stack declares. The
// SDK reads them; our code never does.
const (
	EndpointURL    Key = "AWS_ENDPOINT_URL"
	EndpointURLECS Key = "AWS_ENDPOINT_URL_ECS"
)

// The parameters of the local variant that fill the endpoint variables.
const (
	ParamEndpoint    = "Endpoint"
	ParamEndpointECS = "EndpointEcs"
)

// Output is the key of a stack output.
type Output string

// The outputs of the stack: what a host, the operator's tool and the demo need.
const (
	OutRunsTable       Output = "RunsTable"
	OutSandboxesTable  Output = "SandboxesTable"
	OutCheckpoints     Output = "CheckpointsTable"
	OutBucket          Output = "LogBucket"
	OutReclaimQueue    Output = "ReclaimQueueUrl"
	OutDeadLetterQueue Output = "ReclaimDeadLetterQueueUrl"
	OutShardQueue      Output = "ShardQueueUrl"
	OutShardDead       Output = "ShardDeadLetterQueueUrl"
	OutEventDead       Output = "EventDeadLetterQueueUrl"
	OutEventBus        Output = "EventBus" // name of the bus for outbound events
	OutCluster         Output = "ClusterArn"
	OutTaskDefinition  Output = "TaskDefinitionArn"
	OutReapFunction    Output = "ReapFunction"
	OutProbeFunction   Output = "ProbeFunction"
	OutReclaimFunction Output = "ReclaimFunction"
	OutCheckpoint      Output = "CheckpointFunction"
	OutSession         Output = "SessionFunction" // what hosts invoke
	OutTools           Output = "ToolsFunction"
	OutToolsURL        Output = "ToolsUrl"      // where agents in sandboxes reach the tools function
	OutCheckpointURL   Output = "CheckpointUrl" // where agents in sandboxes reach the checkpoint function
	OutSubnets         Output = "Subnets"       // comma-separated subnet ids
	OutSecurityGroup   Output = "SecurityGroup" // security group id for sandboxes
	OutInstall         Output = "Install"
	OutLimits          Output = "Limits" // what was chosen of them, as the functions read it
	OutPlaces          Output = "Places" // own cluster and spokes, as the functions read it
	OutChosen          Output = "Chosen" // Chosen as JSON
	OutMode            Output = "Mode"   // the mode that holds until an operator sets one
	OutSchema          Output = "Schema" // Schema of the release that is deployed
)

// Schema is the schema version of every item that this release writes. It reads those of
// the release before too.
const Schema = 1

// Names that the stack makes and others find again.
const (
	Operator        = "operator"     // the caller that a spoke knows the operator's tool as; functions by their names
	Stack           = "sandkeeper"   // default name of the stack, and of the installation
	MetricsSpace    = "Sandkeeper"   // CloudWatch namespace
	TickSchedule    = "tick"         // last part of the schedule's name
	DailySchedule   = "daily"        // last part of the schedule's name
	AuditSchedule   = "audit"        // last part of the schedule's name
	CollectSchedule = "collect"      // last part of the schedule's name
	ReclaimJobs     = "reclaim-jobs" // last part of the queue's name
	ReclaimDead     = "reclaim-dead-letters"
	SweepShards     = "sweep-shards" // last part of the queue's name
	SweepDead       = "sweep-dead-letters"
	EventDead       = "event-dead-letters" // what an asynchronous invocation failed for
	AgentContainer  = "agent"              // container of the sample task definition
	SandboxFamily   = "sandbox"            // last part of the sample task definition's family
	LogsPrefix      = "logs"               // second part of a log object's key: <tenant>/logs/<run>/…
	SpoolPrefix     = "spool"              // second part of a spool piece's key: <tenant>/spool/<run>/…
	ThreadsPrefix   = "threads"            // second part of a checkpoint object's key: <tenant>/threads/<thread>/…
)

// The tag of log and spool objects, by which the bucket lets them go: a lifecycle rule
// knows no pattern, and their keys begin with a tenant.
const (
	TagKind   = "kind"
	KindLog   = "log"
	KindSpool = "spool"
)

// How much longer than the record of an ended run its log stays. The record counts
// from the run's end, a piece of log from when it was written: a run may last that
// long. The objects that pieces name go after the pieces.
const (
	SegmentsOutlive = 30 * 24 * time.Hour
	ObjectsOutlive  = SegmentsOutlive + 24*time.Hour
)

// SourceOwn is the source of the events that this installation sends to others.
const SourceOwn = "sandkeeper"

// The events that the stack routes to functions.
const (
	SourceECS             = "aws.ecs"
	SourceLocalECS        = "local.ecs" // local Fargate's: AWS and its emulators refuse events in the name of aws.*
	SourceSchedule        = "sandkeeper.schedule"
	SourceNudge           = "sandkeeper.nudge" // an agent says that it has ended
	DetailTaskState       = "ECS Task State Change"
	DetailScheduleTick    = "Tick"
	DetailScheduleDaily   = "Daily"
	DetailScheduleAudit   = "Audit"
	DetailScheduleCollect = "Collect"
	TaskStopped           = "STOPPED" // with TaskRunning, the lastStatus that the rule lets through, where it is also the desired one
	TaskRunning           = "RUNNING"
)

// Schedules are the last parts of the schedules' names, all of them.
var Schedules = []string{TickSchedule, AuditSchedule, DailySchedule, CollectSchedule}

// Chosen is what an installation lists of what its functions may reach and who hears of
// alarms, as the stack tells the operator's tool in [OutChosen].
type Chosen struct {
	// TaskTags are tags that a task has to have.
	TaskTags map[string]string `json:"taskTags,omitempty"`
	// HostFunctions are names or ARNs, SecretARNs of Secrets Manager and Systems Manager.
	HostFunctions []string `json:"hostFunctions,omitempty"`
	SecretARNs    []string `json:"secretArns,omitempty"`
	Key           string   `json:"key,omitempty"` // ARN
	// AlarmTopic is the ARN of the topic that hears of alarms; empty: nobody hears.
	AlarmTopic string `json:"alarmTopic,omitempty"`
}
