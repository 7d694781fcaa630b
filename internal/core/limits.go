package core

import (
	"errors"
	"fmt"
	"time"
)

// Limits are the durations, sizes and widths of the use cases. Stack and functions
// read them from here, so a function's timeout cannot disagree with its work.
type Limits struct {
	// RunTTL is how long a run may stay detached, where neither the run nor its
	// definition says. Shorter stops long agents, longer pays for lost ones.
	RunTTL time.Duration
	// PauseTTL is how long a run may stay interrupted.
	PauseTTL time.Duration
	// IdleTTL is how long a sandbox stays warm without a run.
	IdleTTL time.Duration
	// Attachment is how long a host is believed after its last renewal.
	Attachment time.Duration
	// RunBudget bounds one finalisation, counted from its claim.
	RunBudget time.Duration
	// ClaimLease is how long other sweeps leave a claimed run alone; longer than the
	// budget, so that they never duel over a healthy finalisation.
	ClaimLease time.Duration
	// NewRunsFor is how long a sweep asks new runs; those that it has found to be over
	// it finalises as long as a whole finalisation fits before SweepTimeout.
	NewRunsFor time.Duration
	// SweepTimeout is the reap function's timeout.
	SweepTimeout time.Duration
	// ProbeTimeout is the probe function's timeout, and bounds one call of it.
	ProbeTimeout time.Duration
	// CheckpointTimeout is the checkpoint function's timeout.
	CheckpointTimeout time.Duration
	// CaptureCall is how long a reclaim waits for one answer of the checkpoint function.
	CaptureCall time.Duration
	// ReclaimTimeout is the reclaim function's timeout.
	ReclaimTimeout time.Duration
	// DrainGrace is how long the end of a run waits for a journal that cannot be
	// read, before the transcript is closed as incomplete (I5).
	DrainGrace time.Duration
	// StopGrace is how long a terminated agent has for its sentinel before SIGKILL.
	StopGrace time.Duration
	// LaunchWindow bounds RunTask, counted from the ledger row; no token is used later.
	LaunchWindow time.Duration
	// LaunchLag is how long after its window a launch may still turn up in ListTasks.
	LaunchLag time.Duration
	// MissingGrace is how long ECS may not know a task that it gave us before the
	// task counts as gone.
	MissingGrace time.Duration
	// DeadApart is how far apart two probes must see an agent dead before it counts.
	DeadApart time.Duration
	// DeadGap is the longest silence between two sightings of a dead agent, or two
	// tries of an end, that still count as one stretch. Longer than a lap may take.
	DeadGap time.Duration
	// SideBytes is how much of a journal that was rewritten is stored beside the log.
	SideBytes int64
	// NoteEvery is how often a note about a lasting state is written again.
	NoteEvery time.Duration
	// NoteGap is the longest silence between two sightings of a missing task that
	// still count as one stretch.
	NoteGap time.Duration
	// ExpiringBefore is how long before its expiry a run is announced as expiring.
	ExpiringBefore time.Duration
	// RunSpendCap is what a run may cost, by list price from its start on, where neither
	// the run nor its definition says; zero: any amount.
	RunSpendCap Dollars
	// TenantSpendCap is what a tenant's sandboxes may cost in a calendar month, UTC; zero:
	// any amount.
	TenantSpendCap Dollars
	// Retention is how long an ended run's record and log stay.
	Retention time.Duration
	// LeakGrace is how old a task must be before an audit calls it leaked.
	LeakGrace time.Duration
	// BreakerWindow is over what time the breaker counts.
	BreakerWindow time.Duration
	// HintLapse is how soon an attachment lapses after news that its task stopped.
	HintLapse time.Duration
	// RetryStop is when an open ledger row is looked at again.
	RetryStop time.Duration
	// ReclaimBackoff and ReclaimBackoffMax bound the wait between failed reclaims.
	ReclaimBackoff, ReclaimBackoffMax time.Duration
	// Frozen is how long a reclaim waits while the installation is frozen.
	Frozen time.Duration
	// CaptureWait is when a reclaim asks again how far a capture is, unless the capture's
	// end calls it sooner.
	CaptureWait time.Duration
	// CaptureMost is how long one capture may go on, however lively its agent is.
	CaptureMost time.Duration
	// CheckpointHold is how long a sandbox is kept whose workspace cannot be stored,
	// from the first try that failed: longer than a fault of ours or of AWS lasts most
	// often, and no longer than one is ready to pay for.
	CheckpointHold time.Duration

	// ProbeTail is how much of a journal's end a probe reads, bytes: enough for a
	// sentinel and the line before it.
	ProbeTail int
	// ProbeRest is the most that a probe carries of what the log lacks, bytes.
	ProbeRest int
	// Page is the most that one drain call carries, bytes.
	Page int
	// UploadAbove is from what size on the rest of a journal does not come by the
	// terminal, where its sandbox has the agent; UploadPiece is the most of it that is
	// moved at a time, which a sweep holds in memory. Bytes.
	UploadAbove, UploadPiece int64
	// InlineSegment is the largest piece of log kept in DynamoDB itself, bytes.
	InlineSegment int
	// TranscriptCap is the longest transcript kept whole, bytes; of a longer one head
	// and tail are kept, half of it each.
	TranscriptCap int64
	// SweepBytes is how much the finalisations of one sweep may read together, bytes;
	// the smallest come first, so that one giant delays no other run.
	SweepBytes int64
	// StderrTail is how much of stderr an error message may show, characters.
	StderrTail int

	// BreakerMost is how many runs may be ended without a sentinel in the breaker's
	// window; more at once are rather a fault of ours or of AWS than of the agents.
	BreakerMost int
	// FanOutAt is how many listed runs one sweep does by itself; above it each shard
	// gets a sweep of its own.
	FanOutAt int
	// ProbeBatch is how many runs one call of the probe function asks.
	ProbeBatch int
	// ProbeCalls is how many probe calls a sweep has under way at most. They begin at
	// the pace of [Limits.Pace], so that more are under way only where answers are slow.
	ProbeCalls int
	// ProbeRate is how many exec calls a second sweeps may cause, on the average of a
	// minute: a share of the account's bucket of 40 a second, which starts and stops of
	// tasks draw on too.
	ProbeRate float64
	// ProbeWidth is how many exec sessions one probe call holds at a time.
	ProbeWidth int
	// SweepWidth is how many runs one sweep finalises at a time, and how many calls it
	// has under way where it lists and describes.
	SweepWidth int
}

// Pace is how many exec calls a second a sweep causes while it asks: so many that a
// minute's share is used up within NewRunsFor.
func (l Limits) Pace() float64 { return l.ProbeRate * time.Minute.Seconds() / l.NewRunsFor.Seconds() }

// lastStart is how long after its begin a sweep may still begin a finalisation.
func (l Limits) lastStart() time.Duration { return l.SweepTimeout - l.RunBudget - l.StopGrace }

// askUntil is how long after its begin a sweep waits for answers: half of the time
// that is left for the finalisations of what it has found by then.
func (l Limits) askUntil() time.Duration { return (l.NewRunsFor + l.lastStart()) / 2 }

// DefaultLimits are the production values.
var DefaultLimits = Limits{
	RunTTL:            8 * time.Hour,
	PauseTTL:          72 * time.Hour,
	IdleTTL:           30 * time.Minute,
	Attachment:        90 * time.Second,
	RunBudget:         30 * time.Second,
	ClaimLease:        90 * time.Second,
	NewRunsFor:        50 * time.Second,
	SweepTimeout:      120 * time.Second,
	ProbeTimeout:      60 * time.Second,
	CheckpointTimeout: 5 * time.Minute,
	CaptureCall:       30 * time.Second,
	ReclaimTimeout:    60 * time.Second,
	DrainGrace:        30 * time.Minute,
	StopGrace:         10 * time.Second,
	LaunchWindow:      60 * time.Second,
	LaunchLag:         20 * time.Minute,
	MissingGrace:      15 * time.Minute,
	DeadApart:         2 * time.Minute,
	DeadGap:           15 * time.Minute,
	SideBytes:         8 << 20,
	NoteEvery:         10 * time.Minute,
	NoteGap:           5 * time.Minute,
	ExpiringBefore:    30 * time.Minute,
	Retention:         90 * 24 * time.Hour,
	LeakGrace:         time.Hour,
	BreakerWindow:     10 * time.Minute,
	HintLapse:         30 * time.Second,
	RetryStop:         time.Minute,
	ReclaimBackoff:    time.Minute,
	ReclaimBackoffMax: time.Hour,
	Frozen:            5 * time.Minute,
	CaptureWait:       LeaseLife,
	CaptureMost:       30 * time.Minute,
	CheckpointHold:    2 * time.Hour,
	ProbeTail:         4096,
	ProbeRest:         64 << 10,
	Page:              1 << 20,
	UploadAbove:       4 << 20,
	UploadPiece:       16 << 20,
	InlineSegment:     8 << 10,
	TranscriptCap:     1 << 30,
	SweepBytes:        64 << 20,
	StderrTail:        MaxExitMessage,
	BreakerMost:       50,
	FanOutAt:          10_000,
	ProbeBatch:        20,
	ProbeCalls:        16,
	ProbeRate:         20,
	ProbeWidth:        20,
	SweepWidth:        8,
}

// Validate reports every relation between the limits that does not hold.
func (l Limits) Validate() error {
	var errs []error
	need := func(holds bool, what string) {
		if !holds {
			errs = append(errs, fmt.Errorf("limits: %s", what))
		}
	}
	for _, d := range []time.Duration{l.RunTTL, l.PauseTTL, l.IdleTTL, l.Attachment, l.RunBudget, l.ClaimLease,
		l.NewRunsFor, l.SweepTimeout, l.ProbeTimeout, l.CheckpointTimeout, l.CaptureCall, l.ReclaimTimeout, l.DrainGrace, l.StopGrace, l.LaunchWindow,
		l.LaunchLag, l.MissingGrace, l.DeadApart, l.DeadGap, l.NoteEvery, l.NoteGap, l.ExpiringBefore, l.Retention, l.LeakGrace, l.BreakerWindow, l.HintLapse, l.RetryStop, l.ReclaimBackoff, l.ReclaimBackoffMax, l.Frozen,
		l.CaptureWait, l.CaptureMost, l.CheckpointHold} {
		need(d > 0, "every duration must be positive")
	}
	for _, n := range []int{l.ProbeTail, l.ProbeRest, l.Page, l.InlineSegment, l.StderrTail, l.BreakerMost, l.FanOutAt, l.ProbeBatch, l.ProbeCalls, l.ProbeWidth, l.SweepWidth} {
		need(n > 0, "every size and width must be positive")
	}
	need(l.ProbeRate > 0 && l.Pace() <= 40, "the probe rate, spent in the time for new runs, must be above 0 and within the account's 40 a second")
	need(l.RunSpendCap.check() == nil && l.TenantSpendCap.check() == nil, fmt.Sprintf("a spend cap must be from 0 to %.0f dollars", MostDollars.USD()))
	need(l.RunBudget < l.ClaimLease, "a claim's lease must outlive the run budget, or sweeps duel")
	need(l.ClaimLease < l.RunTTL, "a claim's lease must be shorter than the run TTL")
	need(l.NewRunsFor < l.lastStart(), "the last run taken must fit into the sweep's timeout")
	need(max(l.SweepTimeout, l.CheckpointTimeout) <= 15*time.Minute, "a function may run 15 minutes at most")
	need(l.CaptureCall < l.ReclaimTimeout, "one question for a capture must fit into a reclaim")
	need(l.StopGrace < l.ProbeTimeout, "a termination must fit into one probe call")
	need(l.HintLapse < l.Attachment, "a hint must make somebody look sooner, not later")
	need(l.LaunchWindow < l.LaunchLag, "a launch must be over before its row may be closed")
	need(l.DeadApart < l.DeadGap, "two sightings of a dead agent must fit into one stretch")
	need(l.SideBytes >= int64(l.Page), "what is stored beside must hold a page")
	need(l.NoteGap < l.MissingGrace, "a missing task must be seen more than once within its grace")
	need(l.ReclaimBackoff <= l.ReclaimBackoffMax, "the first backoff must not exceed the last")
	need(l.CaptureWait < l.CaptureMost, "a capture must be asked about before it is cut off")
	need(l.ReclaimBackoff < l.CheckpointHold, "a workspace that cannot be stored must be tried more than once")
	need(l.Page <= 4<<20, "a page must fit into a function's answer of 6 MB as base64")
	need(l.TranscriptCap >= 4*int64(l.Page), "a transcript's cap must hold some pages")
	need(l.SweepBytes >= int64(l.Page), "a sweep must be able to read a page")
	need(l.UploadAbove >= 2*int64(l.Page) && l.UploadPiece >= int64(l.Page), "what is moved past the terminal must be more than some pages")
	need(l.ProbeRest <= l.Page, "a probe must not carry more than a page")
	need(l.ProbeBatch*l.ProbeRest <= 4<<20, "a probe batch must fit into a function's answer of 6 MB as base64")
	need(l.InlineSegment <= 300<<10, "an inline segment must fit into an item of 400 KB")
	return errors.Join(errs...)
}
