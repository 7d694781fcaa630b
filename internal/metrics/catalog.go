// Package metrics says what an installation measures: the list of metrics, what each
// report of the core is in their terms, and the lines in embedded metric format that
// functions write. Its rule: a value is a metric that CloudWatch charges for only if
// the list says so, at most ten of them; all others are properties of the same line,
// which queries read.
package metrics

import (
	"slices"
	"strings"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// Name is the name of a metric or of a property beside it.
type Name string

// The metrics that CloudWatch charges for.
const (
	OldestUnexaminedSeconds Name = "OldestUnexaminedSeconds"
	UnknownRatio            Name = "UnknownRatio"
	FenceRefusals           Name = "FenceRefusals"
	ECSThrottled            Name = "ECSThrottled"
	SandboxesLeaked         Name = "SandboxesLeaked"
	IdleBurn                Name = "IdleBurnUSDPerHour"
	ReclaimFailures         Name = "ReclaimFailures"
	CheckpointFailures      Name = "CheckpointFailures"
	ExitToStoppedSeconds    Name = "ExitToStoppedSeconds"
	NotActing               Name = "NotActing"
)

// The properties of their lines.
const (
	RunsConsidered     Name = "RunsConsidered"
	RunsProbed         Name = "RunsProbed"
	RunsUnexamined     Name = "RunsUnexamined"
	RunsPlanned        Name = "RunsPlanned"
	RunsTurned         Name = "RunsTurned"
	ReclaimsSent       Name = "ReclaimsSent"
	LedgerSettled      Name = "LedgerSettled"
	ShardsFannedOut    Name = "ShardsFannedOut"
	SweepErrors        Name = "SweepErrors"
	SavedUSD           Name = "SavedUSD"
	TasksLiving        Name = "TasksLiving"
	TasksOurs          Name = "TasksOurs"
	SandboxesIdle      Name = "SandboxesIdle"
	JournalsPruned     Name = "JournalsPruned"
	WorkspacesLost     Name = "WorkspacesLost"
	CheckpointsMade    Name = "CheckpointsMade"
	CheckpointBytes    Name = "CheckpointBytes"
	CheckpointFiles    Name = "CheckpointFiles"
	ObjectsCollected   Name = "ObjectsCollected"
	BytesCollected     Name = "BytesCollected"
	ObjectsMissing     Name = "ObjectsMissing"
	CollectionsFailed  Name = "CollectionsFailed"
	ReclaimsUnreadable Name = "ReclaimsUnreadable"

	TranscriptsIncomplete Name = "TranscriptsIncomplete"
)

// Unit is a unit as CloudWatch spells it.
type Unit string

// The units in use. CloudWatch has none for money.
const (
	Count   Unit = "Count"
	Seconds Unit = "Seconds"
	Percent Unit = "Percent"
	Bytes   Unit = "Bytes"
	None    Unit = "None"
)

// Metric is one entry of the list.
type Metric struct {
	Name    Name
	Unit    Unit
	Charged bool // a metric of its own; else a property
	// Steady says that the function's schedule writes it, whether anything happens or not.
	Steady bool
	// Sparse says that a zero, which the line has all the same, is no metric on it:
	// CloudWatch charges for the hours in which something happened.
	Sparse bool
	From   []names.Function
	About  string // one sentence
}

// runs is the property that counts an outcome of sweeps: RunsFinalized.
func runs(o core.Outcome) Name { return "Runs" + camel(string(o)) }

// reclaims is the property that counts an outcome of reclaims: ReclaimsDestroyed.
func reclaims(o core.ReclaimOutcome) Name { return "Reclaims" + camel(string(o)) }

func camel(text string) Name {
	var out strings.Builder
	for part := range strings.SplitSeq(text, "-") {
		out.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return Name(out.String())
}

// reclaimOutcomes are those of the core, in its order.
var reclaimOutcomes = []core.ReclaimOutcome{
	core.ReclaimDestroyed, core.ReclaimDestroyFailed, core.ReclaimNoSandboxKey, core.ReclaimNotFound, core.ReclaimProviderMismatch,
	core.ReclaimInUse, core.ReclaimHeld, core.ReclaimFrozen, core.ReclaimIdled, core.ReclaimCapturing, core.ReclaimLeased, core.ReclaimUncaptured,
	core.ReclaimStored,
}

// All lists every metric and property, the charged ones first.
var All = slices.Concat(charged, ofSweeps(), ofReclaims(), ofDays, ofLosses, ofCheckpoints)

var charged = []Metric{
	{OldestUnexaminedSeconds, Seconds, true, true, false, []names.Function{names.Reap},
		"For how long the run has waited that was examined the longest time ago. Each sweep writes it: while there is none, nobody sweeps."},
	{NotActing, None, true, true, false, []names.Function{names.Reap},
		"What keeps ends back, as each sweep finds it: 0 nothing, 1 the installation observes, 2 it is frozen, 3 its breaker has tripped."},
	{UnknownRatio, Percent, true, false, false, []names.Function{names.Reap},
		"Of the runs that a sweep examined, the share whose state could not be told. A sweep that examined none has none."},
	{FenceRefusals, Count, true, false, true, []names.Function{names.Reap, names.Session, names.Checkpoint},
		"Writes that were refused because somebody else had taken the run, the thread or the sandbox: a few are the design at work."},
	{ECSThrottled, Count, true, false, true, []names.Function{names.Reap, names.Probe, names.Reclaim, names.Checkpoint, names.Session},
		"Attempts at calls that ECS turned away because the account made too many."},
	{SandboxesLeaked, Count, true, false, true, []names.Function{names.Reap},
		"Tasks of this installation that run and that no open ledger row names, as an hourly audit finds them: a level, not a sum."},
	{IdleBurn, None, true, false, true, []names.Function{names.Reap},
		"What the tasks without a live run cost, dollars an hour at list prices, as an hourly audit finds them: a level, not a sum."},
	{ReclaimFailures, Count, true, false, true, []names.Function{names.Reclaim},
		"Messages whose sandbox could not be ended; they come again, and in the end are dead letters."},
	{CheckpointFailures, Count, true, false, true, []names.Function{names.Reclaim, names.Checkpoint, names.Reap, names.Session},
		"Workspaces that could not be stored or restored, or are lost, objects of theirs that are missing, and transcripts that were closed without their end."},
	{ExitToStoppedSeconds, Seconds, true, false, false, []names.Function{names.Reap},
		"From an agent's end, as far as it is known, to the end of its task. Without an exit nudge the end is when a sweep saw it."},
}

func ofSweeps() []Metric {
	reap := []names.Function{names.Reap}
	all := []Metric{
		{RunsConsidered, Count, false, true, false, reap, "Runs that a sweep had to judge."},
		{RunsProbed, Count, false, true, false, reap, "Of them, runs whose journal it asked."},
		{RunsUnexamined, Count, false, true, false, reap, "Of them, runs for which the minute's share of ECS calls did not last."},
		{RunsPlanned, Count, false, true, false, reap, "Runs that a sweep would have ended, had it not only observed."},
		{RunsTurned, Count, false, true, false, reap, "Attachments that lapsed, and cancels that came due."},
		{ReclaimsSent, Count, false, true, false, reap, "Reclaim messages that were sent again."},
		{LedgerSettled, Count, false, true, false, reap, "Ledger rows that were moved on."},
		{ShardsFannedOut, Count, false, true, false, reap, "Shards handed to sweeps of their own."},
		{SweepErrors, Count, false, true, false, reap, "Errors that concern no single run."},
		{SavedUSD, None, false, true, false, reap, "What the tasks of runs that ended by themselves would have cost up to the end of the time that a run may stay detached, dollars."},
	}
	for _, o := range core.Outcomes {
		all = append(all, Metric{runs(o), Count, false, true, false, reap, "Runs of a sweep with the outcome " + string(o) + "."})
	}
	return all
}

func ofReclaims() []Metric {
	var all []Metric
	for _, o := range reclaimOutcomes {
		all = append(all, Metric{reclaims(o), Count, false, false, false, []names.Function{names.Reclaim}, "Messages with the outcome " + string(o) + "."})
	}
	return append(all, Metric{ReclaimsUnreadable, Count, false, false, false, []names.Function{names.Reclaim}, "Messages that were not begun: they cannot be read, or no time was left."})
}

var ofDays = []Metric{
	{TasksLiving, Count, false, false, false, []names.Function{names.Reap}, "Tasks of the cluster, whoever started them."},
	{TasksOurs, Count, false, false, false, []names.Function{names.Reap}, "Of them, this installation's."},
	{SandboxesIdle, Count, false, false, false, []names.Function{names.Reap}, "Of them, those kept warm for their thread's next turn."},
	{JournalsPruned, Count, false, false, false, []names.Function{names.Reap}, "Idle sandboxes from which journals of ended runs were removed."},
}

// announcing are the functions that tell what became of runs.
var announcing = []names.Function{names.Reap, names.Reclaim, names.Session}

var ofLosses = []Metric{
	{WorkspacesLost, Count, false, false, false, announcing, "Workspaces that were to be stored and never will be. The line comes only where there is a loss."},
	{TranscriptsIncomplete, Count, false, false, false, announcing, "Transcripts that were closed without their end although the run's task lived. On the same line."},
}

var ofCheckpoints = []Metric{
	{CheckpointsMade, Count, false, false, false, []names.Function{names.Checkpoint}, "Checkpoints published."},
	{CheckpointBytes, Bytes, false, false, false, []names.Function{names.Checkpoint}, "Bytes of the workspaces in them, stored before or not."},
	{CheckpointFiles, Count, false, false, false, []names.Function{names.Checkpoint}, "Files in them."},
	{ObjectsCollected, Count, false, false, false, []names.Function{names.Checkpoint}, "Objects that no checkpoint needs, removed."},
	{BytesCollected, Bytes, false, false, false, []names.Function{names.Checkpoint}, "Bytes of them."},
	{ObjectsMissing, Count, false, false, false, []names.Function{names.Checkpoint}, "Objects that a checkpoint needs and that are not there."},
	{CollectionsFailed, Count, false, false, false, []names.Function{names.Checkpoint}, "Threads whose collection failed."},
}

// Charged lists the metrics that CloudWatch charges for.
func Charged() []Metric { return charged }

// Find returns the entry of a name.
func Find(name Name) (Metric, bool) {
	i := slices.IndexFunc(All, func(m Metric) bool { return m.Name == name })
	if i < 0 {
		return Metric{}, false
	}
	return All[i], true
}
