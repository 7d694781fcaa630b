package core

// Outcome is what a sweep did with one run. Each asks something else of the
// operator, or nothing.
type Outcome string

// The outcomes, with what they ask.
const (
	Finalized      Outcome = "finalized"       // the agent had ended; transcript saved, run closed
	Expired        Outcome = "expired"         // its time was over; the agent was ended
	Cancelled      Outcome = "cancelled"       // as a user wished
	Lost           Outcome = "lost"            // its task ended under it: look at the task's reason
	Died           Outcome = "died"            // its agent died or never began: look at the image
	Producing      Outcome = "producing"       // the agent works; left alone
	Unknown        Outcome = "unknown"         // could not tell; left alone. Lasting: look at the reason
	Held           Outcome = "held"            // would have ended, but is held or frozen
	BudgetExceeded Outcome = "budget-exceeded" // paused; the next sweep goes on
	NotClaimed     Outcome = "not-claimed"     // somebody else has it
	ReclaimFailed  Outcome = "reclaim-failed"  // closed, but its sandbox's end could not be announced yet
	FailedSweep    Outcome = "failed"          // an error; the next sweep tries again
)

// Outcomes lists them all; reports count each, zeros too.
var Outcomes = []Outcome{Finalized, Expired, Cancelled, Lost, Died, Producing, Unknown, Held,
	BudgetExceeded, NotClaimed, ReclaimFailed, FailedSweep}

// RunReport is the one entry of a run in a sweep's report.
type RunReport struct {
	RunKey
	Outcome     Outcome `json:"outcome"`
	Status      Status  `json:"status,omitempty"` // terminal, where the sweep closed it
	ExitCode    *int    `json:"exitCode,omitempty"`
	BudgetSpent bool    `json:"budgetSpent,omitempty"`
	Reason      string  `json:"reason,omitempty"`  // the evidence
	Planned     bool    `json:"planned,omitempty"` // not carried out: a plan, or an installation that observes
	Epoch       int64   `json:"epoch,omitempty"`   // of a planned entry, as it was
	Healing     Healing `json:"healing,omitempty"`
	Error       string  `json:"error,omitempty"`
	Refused     bool    `json:"refused,omitempty"`  // a write was, since somebody else has the run
	SavedUSD    float64 `json:"savedUSD,omitempty"` // what its task would have cost up to its expiry, see [SavedTime]
}

// ReasonUnexamined is the reason of a run for which the minute's tokens did not last.
const ReasonUnexamined = "unexamined"

// Stopped is a task that reclaim had condemned and that ECS says has stopped.
type Stopped struct {
	RunKey
	AgentEnded Millis `json:"agentEnded"` // as far as the run's record knows
	At         Millis `json:"at"`
}

// SweepReport is what one sweep did.
type SweepReport struct {
	Considered int             `json:"considered"`
	Probed     int             `json:"probed"`
	Turned     int             `json:"turned"`              // lapses and due cancels turned
	Resent     int             `json:"resent"`              // reclaim messages sent again
	Settled    int             `json:"settled"`             // ledger rows moved
	OldestLap  Millis          `json:"oldestLap,omitempty"` // since when a run waits to be examined
	Outcomes   map[Outcome]int `json:"outcomes"`
	Runs       []RunReport     `json:"runs"`
	Standing   string          `json:"standing,omitempty"`  // as [Control.Standing], when the sweep began
	FannedOut  int             `json:"fannedOut,omitempty"` // shards handed to sweeps of their own
	Errors     []string        `json:"errors,omitempty"`    // of what concerns no run
	Stopped    *Stopped        `json:"stopped,omitempty"`   // which an event told of

	notices []Notice
}

// Plan is what a saved plan holds of a report: the entries that would be carried
// out, for [SweepRequest.Plan].
func (s SweepReport) Plan() []PlanEntry {
	var plan []PlanEntry
	for _, e := range s.Runs {
		if e.Planned {
			plan = append(plan, PlanEntry{RunKey: e.RunKey, Outcome: e.Outcome, Epoch: e.Epoch})
		}
	}
	return plan
}

func newReport() SweepReport {
	report := SweepReport{Outcomes: make(map[Outcome]int, len(Outcomes)), Runs: []RunReport{}}
	for _, o := range Outcomes {
		report.Outcomes[o] = 0
	}
	return report
}

func (s *SweepReport) add(entries ...RunReport) {
	for _, e := range entries {
		s.Outcomes[e.Outcome]++
		s.Runs = append(s.Runs, e)
	}
}
