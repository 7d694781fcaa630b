package core

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// Known is all that was read about one run for its explanation.
type Known struct {
	Run     Run
	Note    Note
	Control Control
	Sandbox *Sandbox   // of the run's key; nil: no record
	Row     *LedgerRow // of the run's instance; nil: none
	Task    *Task      // as ECS describes it; nil: it was not asked, or gave no answer
	// Spending is what the run's tenant has spent this month; nil: it was not read.
	Spending *Spending
	Verdict  *RunReport // what a sweep would do with it now; nil: it was not asked
}

// Explanation says why a run is where it is.
type Explanation struct {
	Standing string  // one of the Standing constants
	Since    Millis  // zero: not recorded
	Evidence []Point // what was seen, where
	Next     []Point // who looks at it next, and when
	Ends     []Point // what would end it, or its sandbox
	Blocked  []Point // what keeps that from happening now
}

// Point is one statement of an explanation, with the time that it is about.
type Point struct {
	What string // short, fixed, lower-case with hyphens
	Says string // a sentence's worth, for people
	At   Millis // zero: no time
}

// The standings of a run.
const (
	StandingAttached  = "attached"          // a host drives it
	StandingLapsed    = "lapsed"            // its host stopped renewing, and no sweep has turned it yet
	StandingDetached  = "detached"          // nobody watches; sweeps judge it
	StandingPaused    = "paused"            // it waits for a human
	StandingCancelled = "cancel-requested"  // its end is asked for
	StandingEnding    = "ending"            // a sweep has decided its end and carries it out
	StandingOwing     = "ended-owing"       // it has ended; its sandbox's end is owed
	StandingWarm      = "ended-warm"        // it has ended; its sandbox is kept for the thread's next turn
	StandingEnded     = "ended"             // it has ended, and nothing is owed
	StandingLost      = "outside-the-index" // it has not ended and nobody would look at it (I15)
)

// StandingOf is where a run stands at now.
func StandingOf(r Run, now Millis) string {
	switch {
	case r.Status.Terminal() && r.Row == RowReclaim:
		return StandingOwing
	case r.Status.Terminal() && r.ReclaimOutcome == ReclaimIdled:
		return StandingWarm
	case r.Status.Terminal():
		return StandingEnded
	case r.Ending != nil:
		return StandingEnding
	case r.CancelRequested != 0:
		return StandingCancelled
	case r.Status == Interrupted:
		return StandingPaused
	case r.Row == RowDetached:
		return StandingDetached
	case r.Row == RowLapse && r.DueAt > now:
		return StandingAttached
	case r.Row == RowLapse:
		return StandingLapsed
	}
	return StandingLost
}

// Explain puts together why a run is where it is, what would end it, and what keeps
// it from that. It asks nobody.
func Explain(k Known, now Millis, l Limits) Explanation {
	e := Explanation{Standing: StandingOf(k.Run, now), Since: standingSince(k.Run)}
	e.Evidence = evidenceOf(k, now)
	e.Next = nextLooks(k, now, l)
	e.Ends = endsOf(k, now, l)
	e.Blocked = blocks(k, now)
	return e
}

func standingSince(r Run) Millis {
	switch {
	case r.Status.Terminal():
		return r.FinishedAt
	case r.Ending != nil:
		return r.Ending.At
	case r.CancelRequested != 0:
		return r.CancelRequested
	case r.Status == Interrupted:
		return r.InterruptedSince
	}
	return cmp.Or(r.DetachedSince, r.StartedAt)
}

// evidenceOf lists what record, probe, notes and ECS say.
func evidenceOf(k Known, now Millis) []Point {
	r := k.Run
	points := []Point{{What: "record", Says: fmt.Sprintf("%s under epoch %d, %d bytes of its journal saved", r.Status, r.Epoch, r.LogEnd), At: r.StartedAt}}
	add := func(when bool, p Point) {
		if when {
			points = append(points, p)
		}
	}
	add(r.ClaimUntil > now, Point{What: "claim", Says: "somebody finishes it under a claim that lasts until then", At: r.ClaimUntil})
	if r.Sealed != nil {
		add(true, Point{What: "sealed", Says: fmt.Sprintf("its agent ended with exit status %d, and the log holds every byte", r.Sealed.ExitCode), At: r.Sealed.At})
	}
	add(r.CancelRequested != 0, Point{What: "cancel", Says: "somebody cancelled it, or its host was gone and its definition says so", At: r.CancelRequested})
	if r.Ending != nil {
		add(true, Point{What: "ending", Says: "it was decided to end it: " + string(r.Ending.Reason), At: r.Ending.At})
	}
	if r.Error != nil {
		add(true, Point{What: r.Error.Code, Says: errorSays(r), At: r.FinishedAt})
	}
	if v := k.Verdict; v != nil {
		add(true, Point{What: "verdict", Says: verdictSays(*v), At: now})
	}
	if n := k.Note; n.UnknownSince != 0 {
		add(true, Point{What: "unknown", Says: fmt.Sprintf("%d probes could not tell (%s, %s): %s", n.Count, n.Reason, n.Healing, Advice(n.Reason)), At: n.UnknownSince})
	}
	add(k.Note.DeadSince != 0, Point{What: "dead-" + string(k.Note.DeadAs), Says: "a probe saw no process that could still end its journal", At: k.Note.DeadSince})
	add(k.Note.Missing != 0, Point{What: "task-missing", Says: "ECS has not known its task since then", At: k.Note.Missing})
	add(k.Note.EndFailing != 0, Point{What: "end-failing", Says: "its end is tried, and its journal cannot be read", At: k.Note.EndFailing})
	if c := r.Checkpoint; c.State != "" {
		says := "its workspace's checkpoint is " + string(c.State)
		if c.Why != "" {
			says += ": " + c.Why
		}
		add(true, Point{What: "checkpoint", Says: says, At: c.FailedAt})
	}
	add(r.TaskStoppedAt != 0, Point{What: "hint", Says: "ECS told that its task stopped", At: r.TaskStoppedAt})
	add(r.ExitedAt != 0, Point{What: "hint", Says: "its agent told that it has ended", At: r.ExitedAt})
	return append(points, sandboxEvidence(k)...)
}

// errorSays words a run's error. An agent that ends without a word on stderr leaves none.
func errorSays(r Run) string {
	switch {
	case r.Error.Message != "":
		return r.Error.Message
	case r.ExitCode != nil:
		return fmt.Sprintf("its agent ended with exit status %d and wrote nothing to stderr", *r.ExitCode)
	}
	return cmp.Or(Advice(r.Error.Code), "nothing more is recorded")
}

func verdictSays(v RunReport) string {
	text := "a sweep would answer " + string(v.Outcome)
	if v.Planned {
		text = "a sweep would make it " + string(v.Outcome)
	}
	if v.Reason != "" {
		text += " (" + v.Reason + ")"
	}
	if advice := Advice(v.Reason); advice != "" {
		text += ": " + advice
	}
	if v.Error != "" {
		text += ": " + v.Error
	}
	return text
}

// sandboxEvidence is what ECS, the instance record and the ledger say of its task.
func sandboxEvidence(k Known) []Point {
	var points []Point
	if k.Run.TaskARN == "" {
		points = append(points, Point{What: "task", Says: "it never had one"})
	}
	if t := k.Task; t != nil {
		life := string(t.Life)
		if t.Life == TaskUnknown {
			life = "not told"
		}
		points = append(points, Point{What: "task", Says: life + describeAfter(*t) + execState(*t, k.Run.Container), At: t.CreatedAt})
	}
	if s := k.Sandbox; s != nil {
		switch {
		case s.Instance != k.Run.Instance:
			points = append(points, Point{What: "sandbox", Says: "its key's record names another instance, " + string(s.Instance), At: s.UpdatedAt})
		case s.Reclaiming != "":
			points = append(points, Point{What: "sandbox", Says: "a reclaim of it is under way", At: s.UpdatedAt})
		case s.IdleSince != 0:
			points = append(points, Point{What: "sandbox", Says: "kept warm, its latest run is " + string(s.LatestRun), At: s.IdleSince})
		default:
			points = append(points, Point{What: "sandbox", Says: "its latest run is " + string(s.LatestRun), At: s.UpdatedAt})
		}
	}
	if row := k.Row; row != nil {
		says := string(row.State)
		if row.Why != "" {
			says += ", because " + row.Why
		}
		points = append(points, Point{What: "ledger", Says: says, At: row.UpdatedAt})
	}
	return points
}

func execState(t Task, container string) string {
	agent, known := t.Agents[container]
	switch {
	case t.Life != TaskLives:
		return ""
	case !t.ExecEnabled:
		return "; started without ECS Exec"
	case !known:
		return "; ECS shows no exec agent in container " + container
	}
	return "; exec agent " + agent.Status
}

// nextLooks says who looks at it next.
func nextLooks(k Known, now Millis, l Limits) []Point {
	r := k.Run
	switch {
	case r.Row == RowDetached && r.ClaimUntil > now:
		return []Point{{What: "sweep", Says: "the first sweep after its claim has run out", At: r.ClaimUntil}}
	case r.Row == RowDetached:
		return []Point{{What: "sweep", Says: "the next sweep, once a minute; it is probed when its turn comes", At: now.Add(time.Minute)}}
	case r.Row == RowLapse:
		return []Point{{What: "lapse", Says: "its host renews before then, or a sweep takes it as detached", At: r.DueAt}}
	case r.Row == RowPause:
		return []Point{{What: "pause", Says: "the sweeps from then on, which warn of its end and then end it", At: r.DueAt}}
	case r.Row == RowCancel:
		return []Point{{What: "cancel", Says: "its host ends it before then, or a sweep does", At: max(r.DueAt, now)}}
	case r.Row == RowReclaim:
		return []Point{{What: "reclaim", Says: "reclaim's message comes again, unless the first did it", At: max(r.DueAt, now)}}
	}
	if s := k.Sandbox; s != nil && s.Instance == r.Instance && s.DueAt != 0 {
		return []Point{{What: "idle", Says: "its warm sandbox is due then", At: s.DueAt}}
	}
	if row := k.Row; row != nil && row.DueAt != 0 {
		return []Point{{What: "ledger", Says: "a sweep looks after its ledger row", At: row.DueAt}}
	}
	return nil
}

// endsOf lists what would end the run; of an ended one, its sandbox.
func endsOf(k Known, now Millis, l Limits) []Point {
	r := k.Run
	if r.Status.Terminal() {
		return sandboxEnds(k, l)
	}
	ends := []Point{{What: "sentinel", Says: "its agent ends, and a probe finds the end line in its journal"}}
	switch {
	case r.Ending != nil:
		return []Point{{What: string(r.Ending.Reason), Says: "decided; it waits for its journal, at most " + l.DrainGrace.String(), At: r.Ending.At.Add(l.DrainGrace)}}
	case r.CancelRequested != 0:
		return []Point{{What: string(EndCancelled), Says: "asked for; no probe is needed", At: r.CancelRequested}}
	case r.Status == Interrupted:
		ends = append(ends, Point{What: string(EndExpired), Says: "its pause lasts longer", At: r.InterruptedSince.Add(seconds(r.PauseSeconds, l.PauseTTL))})
	case r.DetachedSince != 0:
		ends = append(ends, Point{What: string(EndExpired), Says: "it stays detached longer than its time", At: r.DetachedSince.Add(seconds(r.TTLSeconds, l.RunTTL))})
	default:
		ends = append(ends, Point{What: string(EndExpired), Says: "its host leaves, and it stays detached for " + seconds(r.TTLSeconds, l.RunTTL).String()})
	}
	ends = append(ends, capsOf(k, now, l)...)
	return append(ends,
		Point{What: string(EndLost), Says: "ECS says that its task has stopped"},
		Point{What: string(EndDied), Says: fmt.Sprintf("two probes, %s apart, see its agent dead without an end line", l.DeadApart)},
		Point{What: string(EndCancelled), Says: strings.TrimSuffix("somebody asks for it: "+CommandLine("kill", r.RunKey, ""), ": ")})
}

// capsOf lists the spend caps that would end a run without a host.
func capsOf(k Known, now Millis, l Limits) []Point {
	r := k.Run
	var points []Point
	add := func(says string, at Millis) {
		if r.Row == RowLapse {
			says += "; not while its host is attached"
		}
		points = append(points, Point{What: string(EndSpendCap), Says: says, At: at})
	}
	var size TaskSize
	if k.Task != nil {
		size = k.Task.Size
	}
	price, most := priceOf(r, size), RunCap(r, l)
	switch {
	case most == 0:
	case price == 0:
		add(fmt.Sprintf("it costs more than %s; what its task costs is not known, so that nothing ends it for that", most), 0)
	default:
		add(fmt.Sprintf("it costs more than %s; %s by now, at %s an hour", most, RunSpent(r, price, now), price), capAt(r, price, l))
	}
	if s := k.Spending; s != nil && l.TenantSpendCap != 0 {
		add(fmt.Sprintf("its tenant costs more than %s in a calendar month; %s by now, at %s an hour", l.TenantSpendCap, s.Spent, s.Hourly), 0)
	}
	return points
}

func sandboxEnds(k Known, l Limits) []Point {
	s := k.Sandbox
	switch {
	case k.Run.Row == RowReclaim && k.Run.Reclaim == ReclaimIdle:
		return []Point{{What: "idle", Says: "reclaim marks its sandbox idle"}}
	case k.Run.Row == RowReclaim:
		return []Point{{What: "reclaim", Says: "reclaim stops its task"}}
	case s != nil && s.Instance == k.Run.Instance && s.DueAt != 0:
		return []Point{{What: "idle-due", Says: "no turn of its thread comes before then", At: s.DueAt}}
	}
	return nil
}

// blocks lists what keeps an end from happening now.
func blocks(k Known, now Millis) []Point {
	var points []Point
	if !k.Control.Acts() {
		points = append(points, Point{What: "observe", Says: "the installation observes and writes nothing: sandkeeper mode enforce"})
	}
	if k.Control.Frozen {
		points = append(points, Point{What: "frozen", Says: fmt.Sprintf("by %s: %s", k.Control.FrozenBy, k.Control.FrozenWhy), At: k.Control.FrozenAt})
	}
	if at := k.Control.Breaker.TrippedAt; at != 0 {
		points = append(points, Point{What: "breaker", Says: fmt.Sprintf("%d ends without a sentinel tripped it: look at them, then sandkeeper thaw --why '…'", k.Control.Breaker.Count), At: at})
	}
	if h := k.Run.Hold; h.Live(now) {
		points = append(points, Point{What: "held", Says: fmt.Sprintf("until then by %s: %s", h.By, h.Why), At: h.Until})
	}
	if StandingOf(k.Run, now) == StandingAttached {
		points = append(points, Point{What: "attached", Says: "its host is believed until then; no sweep judges it", At: k.Run.AttachedUntil})
	}
	return points
}

// advice says what a reason of a sweep or a probe means, and what there is to do.
var advice = map[string]string{
	"no-sentinel":            "its journal has no end line yet; the agent works",
	"sentinel":               "its journal has the end line",
	"sealed":                 "its log is complete; only the record has to be closed",
	"terminal":               "it has ended",
	"attached":               "a host drives it",
	"claimed":                "somebody finishes it right now",
	"not-detached":           "it is in no index that a sweep looks at",
	"not-due":                "its pause is not over",
	string(EndSpendCap):      "it, or its tenant this month, has cost what it may: raise the cap, or hold it",
	"paused":                 "it waits for a human",
	"held":                   "its time is over, and an operator holds it",
	"observe":                "the installation observes",
	"frozen":                 "the installation is frozen",
	"breaker":                "the breaker has tripped",
	ReasonUnexamined:         "the share of exec calls of this minute is used up; its turn comes",
	"unknown-run":            "there is no such run",
	"all-tasks-missing":      "ECS knows none of the tasks: look whether cluster, account and Region are right",
	"task-missing":           "ECS does not know its task; it counts as gone after a while",
	"task-unknown":           "ECS gave no answer about its task",
	"task-refused":           "ECS refuses to read its task's ARN",
	"task-leaving":           "its task is stopping",
	"busy":                   "another session has its container; it is asked again",
	"probe-call-failed":      "the probe function gave no answer: look at its log",
	"sandbox-unreadable":     "its instance record could not be read",
	"no-time-left":           "the probe function's time was over before its turn",
	ReasonExecRefused:        "its task was started without ECS Exec: start tasks with enableExecuteCommand",
	ReasonNotConnected:       "its exec agent is not connected; a young task needs a moment",
	"agent-pending":          "its exec agent has not started yet",
	"agent-stopped":          "its exec agent has stopped; only a new task helps",
	"agent-unreachable":      "its exec agent never connects: look at the task role's ssmmessages actions and the route to Systems Manager",
	"container-unknown":      "its task has no container of that name: look at the definition",
	"dead-gone-once":         "its wrapper is gone without an end line; a second look decides",
	"dead-absent-once":       "it was claimed and no wrapper came; a second look decides",
	"dead-never-once":        "nothing of it ever began; a second look decides",
	ReasonAgentMissing:       "its image has no " + AgentName + ": it can be journaled and probed, and not captured",
	"changed since the plan": "it is not as the plan had it: make a new plan",
	"never-launched":         "it never had a task, and no launch is under way",
	"launch-intent":          "its launch is under way",
	"launch-running":         "its launch has its task, and the record will name it",
	"launch-stopping":        "its launch failed, and what may have started is being stopped",
	liveRun:                  "a run of the thread has not ended or owes its checkpoint, or one began less than five minutes ago",
	keptSandbox:              "a sandbox of the thread is kept warm, and what is in it would come back with the next run: its idle time has to be over first",
	used:                     "somebody has written the thread since it was looked at: look again",
	"writer-conflict":        "somebody writes the thread right now: later",
	"rewritten":              "its journal is not what was read before, or does not reach so far",
	string(EndExpired):       "its time is over",
	string(EndCancelled):     "its end was asked for",
}

// Advice says what a reason means and what there is to do, or nothing.
func Advice(reason string) string { return advice[reason] }
