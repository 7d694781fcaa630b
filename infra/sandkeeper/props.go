package sandkeeper

import (
	"cmp"
	"path/filepath"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// SpokeAccess is how an installation reaches a spoke: the role that it assumes there.
type SpokeAccess = core.Spoke

// Props is what one installation may choose. Nothing but Dist has to be chosen.
type Props struct {
	// Install names the installation, the stack and all that it names: two installations in
	// an account differ in it. Letters, digits and hyphens, a letter first, at most 53.
	// Default: sandkeeper.
	Install string
	// Dist is the directory with <function>/bootstrap. Default: dist beside the module, with
	// Local dist/local.
	Dist string
	// Bundle is a directory for a zip of each function. The template then takes them from a
	// bucket that its parameters name, and needs neither CDK nor its bootstrap stack.
	Bundle       string
	SandboxImage string // image of the sample task definition
	// Mode is observe or enforce: it holds until an operator sets a mode. Default: observe,
	// since what a first deploy would do is to be seen before it does it; with Local enforce.
	Mode string
	// OnFailure is what becomes of a sandbox whose workspace cannot be stored: hold or release.
	// Default: hold.
	OnFailure string
	// Leaks is what becomes of a task of the installation that no record names: report or stop.
	// Default: report.
	Leaks    string
	EventBus string // name of the bus for outbound events; the stack does not make it
	Tenants  string // JSON: for which tenants a caller may act, by the alias of session that it invokes
	// CheckpointConcurrency is a whole number, at least 1: invocations of the checkpoint
	// function at a time. Empty: none is reserved. ToolsConcurrency is the same of the tools
	// function.
	CheckpointConcurrency, ToolsConcurrency string
	// HostFunctions are the names or ARNs, between commas, of the functions that may be
	// tools and hooks of definitions. Default: none; with Local the example's.
	HostFunctions string
	// SecretARNs are the secrets of Secrets Manager and the parameters of Systems Manager,
	// between commas, that session may read for definitions. Default: none.
	SecretARNs string
	// SandboxesPerTenant is a whole number: how many sandboxes a tenant may have at once. 0:
	// any number.
	SandboxesPerTenant string
	// KeepCheckpoints is a whole number: how many of a thread's newest checkpoints outlive
	// the day, beside the named ones. 0: all.
	KeepCheckpoints string
	// ThreadRetention is a whole number of days: a thread that nobody has used for so long is
	// deleted. Default 0: never.
	ThreadRetention string

	// VPC, with Subnets, is where sandboxes run, by id: the stack then makes no network.
	// Without SecurityGroup it makes a group there that lets nothing in.
	VPC           string
	Subnets       []string
	SecurityGroup string
	// Cluster is the name of an ECS cluster that is there. Empty: the stack makes one.
	Cluster string
	// TaskFamilies are the families of task definitions that sandboxes are made from, beside
	// the sample. Given, no other task is started and no other's end is heard of.
	TaskFamilies []string
	// TaskRoles are the ARNs of the roles that their tasks have, which session passes on.
	TaskRoles []string
	// TaskTags are tags that a task must have to be asked or stopped. Task
	// definitions hand theirs on to their tasks.
	TaskTags map[string]string

	// Spokes are other accounts and Regions in which sandboxes may run; [NewSpoke] makes
	// what each needs.
	Spokes []SpokeAccess

	// ScheduleMinutes is how often reap sweeps, at most every third minute. Default: each.
	ScheduleMinutes int
	// Limits are the limits that differ from their defaults, which docs/deploy.md has:
	// runTTL, pauseTTL, idleTTL, retention, checkpointHold, breakerWindow, expiringBefore as
	// durations, breakerMost as a number, runSpendCap and tenantSpendCap as dollars by list
	// price, of a run and of a tenant's month.
	Limits map[string]any

	// Key is the ARN of a KMS key for tables, bucket, queues and logs. Its policy must let
	// CloudWatch Logs use it. Empty: the services' own keys.
	Key string
	// PermissionsBoundary is the ARN of a managed policy that bounds every role.
	PermissionsBoundary string
	LogDays             int  // how long logs of functions stay, as CloudWatch knows it. Default: 30
	InfrequentLogs      bool // at half the price, without metrics: it wants NoMonitoring
	Tracing             bool // by X-Ray
	// Destroy has tables and bucket go with the stack, where the bucket is empty. Default:
	// they stay.
	Destroy bool
	Tags    map[string]string // of every resource

	// NoMonitoring leaves alarms, dashboard and saved queries out.
	NoMonitoring bool
	AlarmTopic   string  // ARN of the SNS topic that hears of alarms; empty: nobody hears
	IdleBurnUSD  float64 // above which the alarm idle-burn rings, dollars an hour; 0: the list's
	// Runbook is the address of docs/runbook.md, or of a copy, for alarms and dashboard. With
	// AlarmTopic it has to be chosen. Default: docs/runbook.md.
	Runbook string

	// Local makes the variant for an engine on loopback: pinned to an account that
	// no one owns, endpoints as parameters, task events from local Fargate.
	Local bool
}

// complete fills in the defaults.
func (p Props) complete() Props {
	mode, dist := names.ModeObserve, filepath.Join("..", "dist")
	if p.Local {
		mode, dist = names.ModeEnforce, filepath.Join(dist, "local")
	}
	p.Install = cmp.Or(p.Install, names.Stack)
	if p.Local { // the example is the demo's and the tests' tool
		p.HostFunctions = cmp.Or(p.HostFunctions, p.Install+"-example-tool")
	}
	p.Dist = cmp.Or(p.Dist, dist)
	p.SandboxImage = cmp.Or(p.SandboxImage, "debian:stable-slim")
	p.Mode = cmp.Or(p.Mode, mode)
	p.OnFailure = cmp.Or(p.OnFailure, names.FailureHold)
	p.Leaks = cmp.Or(p.Leaks, names.LeaksReport)
	p.EventBus = cmp.Or(p.EventBus, "default")
	p.Tenants = cmp.Or(p.Tenants, `{"":["-"]}`)
	p.SandboxesPerTenant = cmp.Or(p.SandboxesPerTenant, "0")
	p.KeepCheckpoints = cmp.Or(p.KeepCheckpoints, "0")
	p.ThreadRetention = cmp.Or(p.ThreadRetention, "0")
	p.ScheduleMinutes = cmp.Or(p.ScheduleMinutes, 1)
	p.LogDays = cmp.Or(p.LogDays, 30)
	p.Runbook = cmp.Or(p.Runbook, runbook)
	return p
}

func (k *Keeper) scheduleRate() time.Duration {
	return time.Duration(k.props.ScheduleMinutes) * time.Minute
}
