package metrics

import "time"

// Alarm is a state in which an operator has to look, as a rule over one metric.
type Alarm struct {
	Name      string // last part of the alarm's name, and its heading in docs/runbook.md
	Metric    Name   // empty: the depth of the dead-letter queues, which SQS measures
	Statistic string // as CloudWatch spells it
	// It rings while the statistic is above the threshold, or with Below under it, for
	// that many periods one after another.
	Threshold float64
	Below     bool
	Period    time.Duration // zero: that of the schedule
	Periods   int
	Missing   Missing
	About     string // one sentence
}

// Missing is what a period without data means, as CloudWatch spells it.
type Missing string

// Nobody measured: a fault of its own, nothing happened, or no news.
const (
	Breaching    Missing = "breaching"
	NotBreaching Missing = "notBreaching"
	Ignore       Missing = "ignore"
)

const (
	minutes = 5 * time.Minute
	day     = 24 * time.Hour
)

// Alarms lists every alarm, the worst first. The thresholds of ratios and rates are where
// the design's own noise ends.
var Alarms = []Alarm{
	{"reaper-silent", OldestUnexaminedSeconds, "SampleCount", 1, true, 0, 5, Breaching,
		"No sweep has come to its end: nothing is finished, and nothing is stopped."},
	{"not-acting", NotActing, "Minimum", 1, false, minutes, 1, Ignore,
		"The installation is frozen, or its breaker has tripped: nothing expires, and nothing that an expiry left is stopped, until somebody thaws it."},
	{"sandboxes-leaked", SandboxesLeaked, "Maximum", 0, false, time.Hour, 2, NotBreaching,
		"Tasks run that no record knows of, and cost money until somebody stops them."},
	{"dead-letters", "", "Maximum", 0, false, minutes, 1, NotBreaching,
		"Messages or events failed each time they were tried, and wait for an operator."},
	{"reclaim-failures", ReclaimFailures, "Sum", 0, false, 3 * minutes, 2, NotBreaching,
		"Sandboxes of ended runs cannot be ended, or not yet."},
	{"checkpoint-failures", CheckpointFailures, "Sum", 0, false, minutes, 1, NotBreaching,
		"A workspace could not be stored or restored, or a transcript lacks its end; finished work may be lost."},
	{"run-unexamined", OldestUnexaminedSeconds, "Maximum", 900, false, minutes, 2, Ignore,
		"Sweeps do not come round: a run has waited for a quarter of an hour to be looked at."},
	{"unknown-ratio", UnknownRatio, "Average", 50, false, minutes, 3, NotBreaching,
		"Sandboxes do not answer: of most runs nobody can tell whether they have ended, so none of them ends."},
	{"fence-refusals", FenceRefusals, "Sum", 20, false, minutes, 2, NotBreaching,
		"Writers keep meeting each other: two hosts drive the same runs, or a clock is wrong."},
	{"ecs-throttled", ECSThrottled, "Sum", 50, false, minutes, 3, NotBreaching,
		"ECS turns calls away: the account makes more than its share."},
	{"idle-burn", IdleBurn, "Maximum", 5, false, time.Hour, 2, NotBreaching,
		"Sandboxes without a live run cost more an hour than they should."},
	{"observing", NotActing, "Minimum", 0, false, day, 3, Ignore,
		"For three days the installation has acted on nothing; most likely nobody has told it to enforce."},
}
