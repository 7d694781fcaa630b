package e2e_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

func TestACancelOfARunWhoseHostIsGone(t *testing.T) {
	in := installed(t)
	r := in.begin(t, agent{run: "cancelled", shell: lives, stays: true})
	if _, err := core.RequestCancelOf(t.Context(), in.runs, r.RunKey); err != nil {
		t.Fatal(err)
	}
	asked := in.run(t, r.RunKey)
	if want := asked.CancelRequested.Add(core.CancelGrace); asked.DueAt != want {
		t.Errorf("it is due at %d, want %d", asked.DueAt, want)
	}
	in.delay(t, runItem(in, r.RunKey))
	asked = in.run(t, r.RunKey)
	in.reap(t, event(t, "reap-tick.json"))
	if now := in.run(t, r.RunKey); now.Status != core.Running || now.Row != core.RowCancel || now.DueAt != asked.DueAt {
		t.Errorf("within the host's grace it is %s, row %s due %d", now.Status, now.Row, now.DueAt)
	}
	in.hasten(t, runItem(in, r.RunKey))
	if e := in.seen(t, r.RunKey); e.Outcome != core.Cancelled {
		t.Errorf("the sweep says %+v", e)
	}
	r = in.settle(t, r.RunKey)
	in.checkTranscript(t, r, []byte("begun\n"))
	checkTerminated(t, r, core.EndCancelled)
}

// checkTerminated: an agent that dies of SIGTERM has its own end on the record, and
// beside it why it was sent.
func checkTerminated(t *testing.T, r core.Run, reason core.EndReason) {
	t.Helper()
	if r.Status != core.Failed || r.ExitCode == nil || *r.ExitCode != 143 || r.Ending == nil || r.Ending.Reason != reason {
		t.Errorf("run %s ended as %s, exit %v, for %+v, want failed, 143, %s", r.RunKey, r.Status, value(r.ExitCode), r.Ending, reason)
	}
}

func TestAnAttachmentThatNobodyRenewsLapses(t *testing.T) {
	in := installed(t)
	runs := in.beginAll(t, []agent{
		{run: "lapsed", shell: "echo done", stays: true},
		{run: "lapsed-cancels", shell: lives, stays: true, onLapse: core.LapseCancels},
		{run: "renewed", shell: "echo done", stays: true},
	})
	in.hasten(t, runItem(in, runs[0].RunKey), runItem(in, runs[1].RunKey), runItem(in, runs[2].RunKey))
	until := core.MillisOf(time.Now()).Add(time.Hour)
	if _, err := in.runs.Update(t.Context(), runs[2].RunKey, core.Renew{Epoch: runs[2].Epoch, Until: until}); err != nil {
		t.Fatal(err)
	}
	in.exited(t, runs[0])
	in.exited(t, runs[2])
	in.finishAll(t, runs[:2])

	r := in.settle(t, runs[0].RunKey)
	in.checkTranscript(t, r, []byte("done\n"))
	if r.Status != core.Completed || r.Epoch <= runs[0].Epoch {
		t.Errorf("the lapsed run ended as %s at epoch %d", r.Status, r.Epoch)
	}
	checkTerminated(t, in.settle(t, runs[1].RunKey), core.EndCancelled)
	if r = in.run(t, runs[2].RunKey); r.Status != core.Running || r.Epoch != runs[2].Epoch || r.AttachedUntil != until {
		t.Errorf("the renewed run is %s at epoch %d, attached until %d", r.Status, r.Epoch, r.AttachedUntil)
	}
}

func TestAViewerWhoComesBackWins(t *testing.T) {
	in := installed(t)
	r := in.begin(t, agent{run: "back", shell: "echo done"})
	in.exited(t, r)
	attached, err := in.runs.Update(t.Context(), r.RunKey, core.Attach{
		Seen: r.Epoch, Nonce: "viewer", Now: core.MillisOf(time.Now()), Until: core.MillisOf(time.Now()).Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	before := in.item(t, runItem(in, r.RunKey))
	in.reap(t, event(t, "reap-tick.json"))
	checkUnchanged(t, "a tick", map[place]item{runItem(in, r.RunKey): before}, map[place]item{runItem(in, r.RunKey): in.item(t, runItem(in, r.RunKey))})
	if _, err := in.runs.Update(t.Context(), r.RunKey, core.Detach{Epoch: attached.Epoch, Now: core.MillisOf(time.Now())}); err != nil {
		t.Fatal(err)
	}
	in.finishAll(t, []core.Run{r})
	in.checkTranscript(t, in.settle(t, r.RunKey), []byte("done\n"))
}

func TestARunPastItsTTLIsEndedWithWhatItWrote(t *testing.T) {
	in := installed(t)
	const loop = "echo begun; while :; do sleep 0.2; done"
	cases := []struct {
		run    core.RunID
		shell  string
		wrote  string
		status core.Status
		exit   *int
	}{
		{"heeds-sigterm", "trap 'echo saved; exit 7' TERM; " + loop, "begun\nsaved\n", core.Failed, new(7)},
		{"ends-well-at-sigterm", "trap 'exit 0' TERM; " + loop, "begun\n", core.Completed, new(0)},
		{"ignores-sigterm", "trap '' TERM; " + loop, "begun\n", core.Aborted, nil},
		{"left-its-session", "trap '' TERM; setsid sh -c '" + loop + "' & wait", "begun\n", core.Aborted, nil},
	}
	var agents []agent
	for _, c := range cases {
		agents = append(agents, agent{run: c.run, shell: c.shell, ttl: 60, left: time.Minute})
	}
	runs := in.beginAll(t, agents)
	for _, r := range runs {
		in.wrote(t, r, "begun")
	}
	expired := map[core.RunKey]bool{}
	in.sweepUntil(t, "expire all", func(report core.SweepReport) bool {
		for _, e := range report.Runs {
			if e.Outcome == core.Expired {
				expired[e.RunKey] = true
			}
		}
		return len(expired) == len(runs)
	})
	for i, c := range cases {
		t.Run(string(c.run), func(t *testing.T) {
			r := in.settle(t, runs[i].RunKey)
			in.checkTranscript(t, r, []byte(c.wrote))
			if r.Status != c.status || r.Ending == nil || r.Ending.Reason != core.EndExpired {
				t.Errorf("ended as %s with %+v, want %s", r.Status, r.Ending, c.status)
			}
			if fmt.Sprint(value(r.ExitCode)) != fmt.Sprint(value(c.exit)) {
				t.Errorf("exit %v, want %v", value(r.ExitCode), value(c.exit))
			}
		})
	}
}

// value is what p points to, or nil.
func value(p *int) any {
	if p == nil {
		return nil
	}
	return *p
}

func TestAnIdleSandboxIsKeptWarmAndThenStopped(t *testing.T) {
	in := installed(t)
	r := in.begin(t, agent{run: "idles", shell: "echo done", reclaim: core.ReclaimIdle})
	in.exited(t, r)
	in.finishAll(t, []core.Run{r})
	await(t, "idle", func() bool { return in.run(t, r.RunKey).ReclaimOutcome == core.ReclaimIdled })
	in.checkTranscript(t, in.run(t, r.RunKey), []byte("done\n"))
	warm, err := in.boxes.Sandbox(t.Context(), r.SandboxKey)
	if err != nil || warm.IdleSince == 0 || warm.DueAt != warm.IdleSince.Add(core.DefaultLimits.IdleTTL) || warm.Reclaiming != "" {
		t.Errorf("idle record %+v, %v", warm, err)
	}
	in.reap(t, event(t, "reap-tick.json"))
	in.drained(t)
	if task, err := in.fargate.Task(r.TaskARN); err != nil || task.DesiredStatus != "RUNNING" || in.ledger(t, r).State != core.LedgerRunning {
		t.Errorf("the warm sandbox's task is to be %s: %v", task.DesiredStatus, err)
	}

	in.hasten(t, boxItem(in, r))
	in.reap(t, event(t, "reap-tick.json"))
	in.settle(t, r.RunKey)
	if it := in.item(t, boxItem(in, r)); it != nil {
		t.Errorf("the stopped task's record is left: %v", it)
	}
	if n := in.gate.count("StopTask", r.TaskARN); n != 1 {
		t.Errorf("StopTask was called %d times", n)
	}
}

func TestPlansAndObservationWriteNothing(t *testing.T) {
	in := installed(t)
	runs := in.beginAll(t, []agent{
		{run: "observed", shell: "echo done"},
		{run: "observed-expired", shell: lives, ttl: 60, left: time.Minute},
		{run: "observed-lapsed", shell: "echo done", stays: true},
	})
	in.exited(t, runs[0])
	in.exited(t, runs[2])
	in.hasten(t, runItem(in, runs[2].RunKey))
	want := []core.Outcome{core.Finalized, core.Expired, core.Finalized}
	in.rested(t)
	before := in.scanWithoutBudget(t)
	reports := func(event []byte) {
		await(t, "report what would be done", func() bool {
			report := in.reap(t, event)
			return !slices.ContainsFunc([]int{0, 1, 2}, func(i int) bool {
				e := entry(report, runs[i].RunKey)
				return e == nil || e.Outcome != want[i] || !e.Planned
			})
		})
	}
	reports([]byte(`{"mode":"plan"}`))
	checkUnchanged(t, "a plan", before, in.scanWithoutBudget(t))
	in.setMode(t, core.Observe)
	before = in.scanWithoutBudget(t)
	reports(event(t, "reap-tick.json"))
	checkUnchanged(t, "observing", before, in.scanWithoutBudget(t))
	in.setMode(t, core.Enforce)
	in.finishAll(t, runs)
}

// scanWithoutBudget leaves the tokens of ECS calls out: they are taken whatever is
// done with the answers.
func (in *installation) scanWithoutBudget(t *testing.T) map[place]item {
	t.Helper()
	all := in.scan(t)
	maps.DeleteFunc(all, func(p place, _ item) bool { return strings.HasPrefix(p.pk, "budget#") })
	return all
}

// setMode sets the installation's mode; at the test's end it enforces again.
func (in *installation) setMode(t *testing.T, mode core.Mode) {
	t.Helper()
	if _, err := in.boxes.UpdateControl(contextOf(t), core.SetMode{Mode: mode}); err != nil {
		t.Fatal(err)
	}
	if mode != core.Enforce {
		t.Cleanup(func() { in.setMode(t, core.Enforce) })
	}
}
