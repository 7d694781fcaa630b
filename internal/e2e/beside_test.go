package e2e_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/engine/enginetest"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

const besideStack = "sandkeeper-beside"

// beside is a second installation, which shares engine and cluster with the first. The name
// of the first is how the second's begins.
func (in *installation) beside(t *testing.T) *installation {
	t.Helper()
	other, err := in.Beside(t.Context(), engine.Deployment{Assembly: cdkOut(t, "beside"), Stack: besideStack})
	enginetest.Require(t, err)
	if !strings.HasPrefix(besideStack, in.out[names.OutInstall]) || other.Out[names.OutCluster] != in.out[names.OutCluster] {
		t.Fatalf("installations %s in %s and %s in %s", in.out[names.OutInstall], in.out[names.OutCluster], other.Out[names.OutInstall], other.Out[names.OutCluster])
	}
	return of(other)
}

// daily is what an installation's audit says of the cluster.
func (in *installation) daily(t *testing.T) core.DailyReport {
	t.Helper()
	answer, err := in.invoke(in.out[names.OutReapFunction], event(t, "reap-daily.json"))
	if err != nil {
		t.Fatal(err)
	}
	var report core.DailyReport
	if err := json.Unmarshal(answer, &report); err != nil {
		t.Fatal(err)
	}
	return report
}

// TestTwoInstallationsSideBySide: in one account, one engine and one cluster neither reads,
// writes, stops or accuses what is the other's, whichever of them sweeps, audits, or hears
// of a task.
func TestTwoInstallationsSideBySide(t *testing.T) {
	in := installed(t)
	other := in.beside(t)
	for _, output := range []names.Output{
		names.OutInstall, names.OutRunsTable, names.OutSandboxesTable, names.OutCheckpoints, names.OutBucket, names.OutReclaimQueue, names.OutDeadLetterQueue,
		names.OutReapFunction, names.OutProbeFunction, names.OutReclaimFunction, names.OutCheckpoint, names.OutSession, names.OutTools, names.OutTaskDefinition,
	} {
		if other.out[output] == "" || other.out[output] == in.out[output] {
			t.Errorf("the other installation has %q as %s, the first has %q", other.out[output], output, in.out[output])
		}
	}
	warm := map[*installation]int{in: in.daily(t).Ours, other: other.daily(t).Ours} // of tests before
	// The same tenant and run in both: nothing but the installation tells them apart.
	same := agent{tenant: "-", run: "beside", shell: lives}
	ours, theirs := in.begin(t, same), other.begin(t, same)
	for _, turn := range []struct {
		acts, rests *installation
		own, others core.Run
	}{{in, other, ours, theirs}, {other, in, theirs, ours}} {
		what := turn.acts.out[names.OutInstall]
		before := turn.rests.scan(t)
		if e := turn.acts.seen(t, turn.own.RunKey); e.Outcome != core.Producing {
			t.Errorf("%s: the sweep says %+v", what, e)
		}
		if audit := turn.acts.daily(t); audit.Tasks < 2 || audit.Ours != warm[turn.acts]+1 || len(audit.Leaked) != 0 || len(audit.Errors) != 0 {
			t.Errorf("%s: the audit says %+v", what, audit)
		}
		checkUnchanged(t, "a sweep and an audit of "+what, before, turn.rests.scan(t))
	}

	// One dies: both hear of it.
	before := other.scan(t)
	if err := in.fargate.KillTask(ours.TaskARN); err != nil {
		t.Fatal(err)
	}
	r := in.settle(t, ours.RunKey)
	other.reap(t, event(t, "reap-tick.json"))
	if r.Error == nil || r.Error.Code != string(core.EndLost) {
		t.Errorf("ours ended as %s with %+v", r.Status, r.Error)
	}
	settled := other.scan(t)
	checkUnchanged(t, "the end of a task of "+in.out[names.OutInstall], withoutRun(before), withoutRun(settled))

	// The other's run ends by its user's wish, and its task by its own reclaim.
	before = in.scan(t)
	if _, err := core.RequestCancelOf(t.Context(), other.runs, theirs.RunKey); err != nil {
		t.Fatal(err)
	}
	in.reap(t, event(t, "reap-tick.json"))
	if now := other.run(t, theirs.RunKey); now.Status != core.Running {
		t.Errorf("the other's run is %s", now.Status)
	}
	other.end(t, theirs.RunKey)
	checkUnchanged(t, "the end of a run of "+besideStack, withoutRun(before), withoutRun(in.scan(t)))
	if audit := in.daily(t); audit.Ours != warm[in] || len(audit.Leaked) != 0 {
		t.Errorf("in the end the audit says %+v", audit)
	}
}

// withoutRun leaves out what a sweep keeps for itself: cursors, and tokens of ECS's share.
func withoutRun(all map[place]item) map[place]item {
	for p := range all {
		if strings.HasPrefix(p.pk, "cursor#") || strings.HasPrefix(p.pk, "budget#") {
			delete(all, p)
		}
	}
	return all
}
