package metrics

import (
	"fmt"
	"strings"

	"github.com/sandkeeper/sandkeeper/internal/names"
)

// Query is a query of CloudWatch Logs Insights that the stack saves, and that the runbook
// names or the dashboard draws.
type Query struct {
	ID, Name, Text string
	Of             []names.Function // whose lines it reads
	// Lines are the kinds of line that it is about, each with members that stand on it
	// together: a query that sums what no one line has is empty for ever.
	Lines []Line
}

// Line is a kind of line: one of logs by its message, one of metrics without.
type Line struct {
	Message string
	Level   string // empty: any
	Members []string
}

var reap, reclaim, checkpoint = []names.Function{names.Reap}, []names.Function{names.Reclaim}, []names.Function{names.Checkpoint}

// The lines that several queries are about.
var (
	failedSweep   = Line{"reap", "ERROR", []string{"err"}}
	failedReclaim = Line{"reclaim", "ERROR", []string{"run", "instance", "kind", "outcome", "err"}}
	failedStep    = Line{"step", "WARN", []string{"tenant", "thread", "id", "kind", "reason", "outcome"}}
	brokenThread  = Line{"broken", "ERROR", []string{"tenant", "thread", "missing"}}
	lostWork      = Line{"loss", "WARN", []string{"run", "thread", "kind", "status", "reason", "task"}}
	decidedRun    = Line{"run", "", []string{"run", "outcome"}}
	unknownRun    = Line{"run", "", []string{"run", "outcome", "reason", "healing"}}
)

// Queries lists them.
var Queries = []Query{
	{"errors", "errors", queryErrors, names.Functions, []Line{failedSweep, failedReclaim}},
	{"run", "one run", queryRun, names.Functions, []Line{decidedRun, failedReclaim}},
	sums("sweeps", "sweeps", reap, RunsConsidered, RunsProbed, RunsUnexamined, RunsPlanned, SweepErrors),
	sums("outcomes", "runs by outcome", reap, "RunsFinalized", "RunsExpired", "RunsCancelled", "RunsLost", "RunsDied", "RunsHeld", "RunsFailed"),
	{"unknown", "what could not be told", queryUnknown, reap, []Line{unknownRun}},
	sums("reclaims", "sandboxes by outcome", reclaim, "ReclaimsDestroyed", "ReclaimsIdle", "ReclaimsCapturing", "ReclaimsHeld", "ReclaimsFrozen", "ReclaimsDestroyFailed"),
	{"reclaim-failures", "reclaims that failed", queryReclaimFailures, reclaim, []Line{failedReclaim}},
	sums("checkpoints", "workspaces stored", checkpoint, CheckpointsMade, CheckpointFiles, CheckpointFailures),
	{"checkpoint-failures", "checkpoints that failed", queryCheckpointFailures, []names.Function{names.Checkpoint, names.Reclaim, names.Reap, names.Session},
		[]Line{failedStep, {"reclaim", "", []string{"run", "instance", "kind", "outcome"}}, lostWork, brokenThread}},
	{"refusals", "refusals", queryRefusals, []names.Function{names.Reap, names.Session, names.Checkpoint},
		[]Line{{"run", "", []string{"run", "outcome", "reason"}}, {"session", "WARN", []string{"operation", "code", "run", "err"}}}},
	{"throttles", "throttles", queryThrottles, []names.Function{names.Reap, names.Probe, names.Reclaim, names.Checkpoint, names.Session},
		[]Line{{Members: []string{string(ECSThrottled), "function"}}}},
	{"leaks", "leaks", queryLeaks, reap, []Line{{"leak", "", []string{"task", "startedBy", "since", "reason", "stopping"}}}},
	sums("saved", "what was saved", reap, SavedUSD),
}

// FindQuery returns the query of that id. It panics where there is none.
func FindQuery(id string) Query {
	for _, q := range Queries {
		if q.ID == id {
			return q
		}
	}
	panic(fmt.Sprintf("metrics: no query %s", id))
}

const (
	queryErrors = `fields @timestamp, message, run, instance, kind, outcome, err
| filter level = "ERROR"
| sort @timestamp desc
| limit 50`

	queryRun = `# Put tenant/run between the quotes; a slash alone finds every run.
fields @timestamp, message, instance, kind, outcome, status, reason, healing, exitCode, operation, code, err
| filter run like "/"
| sort @timestamp desc
| limit 200`

	queryUnknown = `filter message = "run" and outcome = "unknown"
| stats count(*) as runs by reason, healing
| sort runs desc`

	queryReclaimFailures = `fields @timestamp, run, instance, kind, outcome, err
| filter message = "reclaim" and level = "ERROR"
| sort @timestamp desc
| limit 100`

	queryCheckpointFailures = `fields @timestamp, message, tenant, thread, id, kind, reason, run, instance, outcome, missing
| filter (message = "step" and outcome = "failed") or (message = "reclaim" and outcome = "checkpoint-failed") or message = "loss" or message = "broken"
| sort @timestamp desc
| limit 100`

	queryRefusals = `fields @timestamp, message, operation, code, run, reason, err
| filter code in ["claim-lost", "writer-lost", "stale-head"] or (message = "run" and outcome = "not-claimed")
| sort @timestamp desc
| limit 100`

	queryThrottles = `filter ECSThrottled > 0
| stats sum(ECSThrottled) as turnedAway by function, bin(1m)`

	queryLeaks = `fields @timestamp, task, startedBy, since, reason, stopping
| filter message = "leak"
| sort @timestamp desc
| limit 100`
)

// sums adds properties of one line of metrics up, five minutes by five minutes. It panics
// for one that the list does not have.
func sums(id, name string, from []names.Function, of ...Name) Query {
	parts, members := make([]string, len(of)), make([]string, len(of))
	for i, n := range of {
		if _, ok := Find(n); !ok {
			panic(fmt.Errorf("query: no metric %s", n))
		}
		parts[i] = fmt.Sprintf("sum(%s) as %s", n, strings.ToLower(string(n[:1]))+string(n[1:]))
		members[i] = string(n)
	}
	text := fmt.Sprintf("filter ispresent(%s)\n| stats %s by bin(5m)", of[0], strings.Join(parts, ", "))
	return Query{id, name, text, from, []Line{{Members: members}}}
}
