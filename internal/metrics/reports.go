package metrics

import (
	"slices"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// OfSweep is what a sweep did, zeros included. whole says that the schedule led to it:
// only such a sweep tells of the oldest run and is a sign that somebody sweeps.
func OfSweep(r core.SweepReport, whole bool, now time.Time) Values {
	v := Values{
		RunsConsidered: float64(r.Considered), RunsProbed: float64(r.Probed), RunsTurned: float64(r.Turned),
		ReclaimsSent: float64(r.Resent), LedgerSettled: float64(r.Settled), ShardsFannedOut: float64(r.FannedOut),
		SweepErrors: float64(len(r.Errors)), RunsUnexamined: 0, RunsPlanned: 0, SavedUSD: 0, FenceRefusals: 0,
	}
	for _, o := range core.Outcomes {
		v[runs(o)] = 0
	}
	for _, e := range r.Runs {
		v.addRun(e)
	}
	if examined := float64(r.Considered) - v[RunsUnexamined]; examined > 0 {
		v[UnknownRatio] = 100 * (v[runs(core.Unknown)] - v[RunsUnexamined]) / examined
	}
	if r.Stopped != nil {
		v[ExitToStoppedSeconds] = max(0, r.Stopped.At.Sub(r.Stopped.AgentEnded).Seconds())
	}
	if whole {
		v[NotActing] = standings[r.Standing]
		v[OldestUnexaminedSeconds] = 0
		if r.OldestLap != 0 {
			v[OldestUnexaminedSeconds] = max(0, core.MillisOf(now).Sub(r.OldestLap).Seconds())
		}
	}
	return v
}

// standings are the values of NotActing.
var standings = map[string]float64{"": 0, core.StandingObserve: 1, core.StandingFrozen: 2, core.StandingTripped: 3}

func (v Values) addRun(e core.RunReport) {
	if e.Planned {
		v[RunsPlanned]++
		return
	}
	v[runs(e.Outcome)]++
	v[SavedUSD] += e.SavedUSD
	if e.Reason == core.ReasonUnexamined {
		v[RunsUnexamined]++
	}
	if e.Refused {
		v[FenceRefusals]++
	}
}

// OfDay is what an audit found, and a daily one pruned.
func OfDay(r core.DailyReport) Values {
	return Values{
		SandboxesLeaked: float64(len(r.Leaked)), IdleBurn: r.IdleBurnUSD, SandboxesIdle: float64(r.Idle),
		TasksLiving: float64(r.Tasks), TasksOurs: float64(r.Ours), JournalsPruned: float64(len(r.Pruned)),
	}
}

// Reclaims sums a batch of messages up, zeros included.
func Reclaims() Values {
	v := Values{ReclaimFailures: 0, CheckpointFailures: 0, ReclaimsUnreadable: 0}
	for _, o := range reclaimOutcomes {
		v[reclaims(o)] = 0
	}
	return v
}

// AddReclaim counts what became of one message; failed, that it comes again. A message
// that was not begun has no outcome.
func (v Values) AddReclaim(o core.ReclaimOutcome, failed bool) {
	switch {
	case o == "":
		v[ReclaimsUnreadable]++
		return
	case failed || o == core.ReclaimDestroyFailed:
		v[ReclaimFailures]++
	case o == core.ReclaimUncaptured:
		v[CheckpointFailures]++
	}
	v[reclaims(o)]++
}

// OfCollection is what became of the garbage of every thread.
func OfCollection(r core.CollectAllReport) Values {
	return Values{
		ObjectsCollected: float64(r.Deleted), BytesCollected: float64(r.Reclaimed),
		ObjectsMissing: float64(r.Missing), CollectionsFailed: float64(r.Failed), CheckpointFailures: float64(r.Missing),
	}
}

// OfCommit is a checkpoint that was published.
func OfCommit(files, bytes int64) Values {
	return Values{CheckpointsMade: 1, CheckpointFiles: float64(files), CheckpointBytes: float64(bytes), CheckpointFailures: 0}
}

// fences are the codes of a caller that goes on writing what another has taken.
var fences = []string{"claim-lost", "writer-lost", "stale-head"}

// OfRefusal is a call that was refused with that code.
func OfRefusal(code string) Values {
	if !slices.Contains(fences, code) {
		return nil
	}
	return Values{FenceRefusals: 1}
}
