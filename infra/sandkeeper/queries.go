package sandkeeper

import (
	"fmt"
	"strings"

	"github.com/sandkeeper/sandkeeper/internal/metrics"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// savedQuery is a query of CloudWatch Logs Insights that the stack saves.
type savedQuery struct {
	id, name, text string
	of             []names.Function
}

var reap, reclaim, checkpoint = []names.Function{names.Reap}, []names.Function{names.Reclaim}, []names.Function{names.Checkpoint}

// savedQueries are those that the runbook names.
var savedQueries = []savedQuery{
	{"errors", "errors", queryErrors, names.Functions},
	{"run", "one run", queryRun, names.Functions},
	{"sweeps", "sweeps", querySweeps, reap},
	{"outcomes", "runs by outcome", queryOutcomes, reap},
	{"unknown", "what could not be told", queryUnknown, reap},
	{"reclaims", "sandboxes by outcome", queryReclaims, reclaim},
	{"reclaim-failures", "reclaims that failed", queryReclaimFailures, reclaim},
	{"checkpoints", "workspaces stored", queryCheckpoints, checkpoint},
	{"checkpoint-failures", "checkpoints that failed", queryCheckpointFailures, append(checkpoint, names.Reclaim)},
	{"refusals", "refusals", queryRefusals, []names.Function{names.Reap, names.Session, names.Checkpoint}},
	{"leaks", "leaks", queryLeaks, reap},
	{"saved", "what was saved", querySaved, reap},
}

const (
	queryErrors = `fields @timestamp, message, run, outcome, err
| filter level = "ERROR"
| sort @timestamp desc
| limit 50`

	queryRun = `# Put tenant/run between the slashes.
fields @timestamp, message, outcome, status, reason, healing, exitCode, operation, code, err
| filter run like /./
| sort @timestamp desc
| limit 200`

	queryUnknown = `filter message = "run" and outcome = "unknown"
| stats count(*) as runs by reason, healing
| sort runs desc`

	queryReclaimFailures = `fields @timestamp, outcome, err
| filter message = "reclaim" and level = "ERROR"
| sort @timestamp desc
| limit 100`

	queryCheckpointFailures = `fields @timestamp, tenant, thread, id, kind, reason, run, outcome
| filter (message = "step" and outcome = "failed") or (message = "reclaim" and outcome = "checkpoint-failed")
| sort @timestamp desc
| limit 100`

	queryRefusals = `fields @timestamp, message, operation, code, run, thread, reason, err
| filter code in ["claim-lost", "writer-lost", "stale-head"] or (message = "run" and outcome = "not-claimed")
| sort @timestamp desc
| limit 100`

	queryLeaks = `fields @timestamp, task, startedBy, since, reason, stopping
| filter message = "leak"
| sort @timestamp desc
| limit 100`
)

var (
	querySweeps      = sums(metrics.RunsConsidered, metrics.RunsProbed, metrics.RunsUnexamined, metrics.RunsPlanned, metrics.ECSThrottled)
	queryOutcomes    = sums("RunsFinalized", "RunsExpired", "RunsCancelled", "RunsLost", "RunsDied", "RunsHeld", "RunsFailed")
	queryReclaims    = sums("ReclaimsDestroyed", "ReclaimsIdle", "ReclaimsCapturing", "ReclaimsHeld", "ReclaimsFrozen", "ReclaimsDestroyFailed")
	queryCheckpoints = sums(metrics.CheckpointsMade, metrics.CheckpointFiles, metrics.CheckpointFailures)
	querySaved       = sums(metrics.SavedUSD)
)

// sums adds properties of lines of metrics up, five minutes by five minutes. It panics for
// one that the list does not have.
func sums(of ...metrics.Name) string {
	parts := make([]string, len(of))
	for i, name := range of {
		if _, ok := metrics.Find(name); !ok {
			panic(fmt.Errorf("query: no metric %s", name))
		}
		parts[i] = fmt.Sprintf("sum(%s) as %s", name, strings.ToLower(string(name[:1]))+string(name[1:]))
	}
	return fmt.Sprintf("filter ispresent(%s)\n| stats %s by bin(5m)", of[0], strings.Join(parts, ", "))
}
