package e2e_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

func TestATickBringsAFinishedRunToAStoppedTask(t *testing.T) {
	in := installed(t)
	wrote := []byte("{\"type\":\"assistant\",\"text\":\"Grüße, 世界 🚀\"}\n{\"type\":\"result\"}\n")
	finished := in.begin(t, agent{run: "finished", shell: "echo compile error >&2; " + in.prints(t, wrote, 3)})
	producing := in.begin(t, agent{run: "producing", shell: lives})
	beside := []place{runItem(in, producing.RunKey), boxItem(in, producing), rowItem(in, producing)}
	before := in.items(t, beside)

	var found *core.RunReport
	in.sweepUntil(t, "finish", func(report core.SweepReport) bool {
		if e := entry(report, producing.RunKey); e == nil || e.Outcome != core.Producing && e.Outcome != core.Unknown {
			t.Fatalf("the sweep says of the producing run: %+v", e)
		}
		found = entry(report, finished.RunKey)
		return found != nil && found.Outcome != core.Producing && found.Outcome != core.Unknown
	})
	if found.Outcome != core.Finalized || found.Status != core.Failed || found.ExitCode == nil || *found.ExitCode != 3 {
		t.Errorf("the sweep says of the finished run: %+v", found)
	}
	r := in.settle(t, finished.RunKey)
	in.checkTranscript(t, r, wrote)
	if r.Status != core.Failed || r.ExitCode == nil || *r.ExitCode != 3 {
		t.Errorf("ended as %s with exit %v", r.Status, r.ExitCode)
	}
	if want := (core.RunError{Code: "agent-exit", Message: "compile error"}); r.Error == nil || *r.Error != want {
		t.Errorf("ended with %+v, want %+v", r.Error, want)
	}
	if r.ReclaimOutcome != core.ReclaimDestroyed {
		t.Errorf("reclaimed as %s", r.ReclaimOutcome)
	}
	if it := in.item(t, boxItem(in, finished)); it != nil {
		t.Errorf("the stopped task's record is left: %v", it)
	}
	if after := in.items(t, beside); !reflect.DeepEqual(before, after) {
		t.Errorf("beside it changed\n%v to\n%v", before, after)
	}
	if n := in.gate.count("StopTask", producing.TaskARN); n != 0 {
		t.Errorf("asked %d times to stop the task of a producing run", n)
	}
	if task, err := in.fargate.Task(producing.TaskARN); err != nil || task.DesiredStatus != "RUNNING" {
		t.Errorf("the producing run's task is to be %s: %v", task.DesiredStatus, err)
	}
}

func TestARequestByNameSweepsOnlyThatRun(t *testing.T) {
	in := installed(t)
	runs := in.beginAll(t, []agent{{run: "named", shell: "echo done"}, {run: "not/named", shell: "echo done"}})
	for _, r := range runs {
		in.exited(t, r)
	}
	other := runItem(in, runs[1].RunKey)
	before := in.item(t, other)
	request, err := json.Marshal(core.SweepRequest{Runs: []core.RunKey{runs[0].RunKey}})
	if err != nil {
		t.Fatal(err)
	}
	await(t, "finish the named run", func() bool {
		if report := in.reap(t, request); len(report.Runs) > 1 {
			t.Fatalf("asked for one run, the sweep says %+v", report.Runs)
		}
		return in.run(t, runs[0].RunKey).Status.Terminal()
	})
	in.settle(t, runs[0].RunKey)
	if after := in.item(t, other); !reflect.DeepEqual(before, after) {
		t.Errorf("the other run changed from %v to %v", before, after)
	}
}

func TestEveryTranscriptIsWhatItsAgentWrote(t *testing.T) {
	in := installed(t)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	noise := make([]byte, 70_000) // more than a probe carries along
	_, _ = rand.Read(noise)
	line := []byte(`{"type":"assistant","text":"` + strings.Repeat("and on 🚀 ", 400) + "\"}\n")
	cases := []struct {
		run   core.RunID
		wrote []byte
		exit  int
		shell string // instead of printing what it wrote
		input []byte
	}{
		{run: "all-bytes", wrote: every},
		{run: "all-bytes-from-stdin", wrote: every, shell: "cat", input: every},
		{run: "noise", wrote: noise, exit: 1},
		{run: "no-final-newline", wrote: []byte("Grüße\n世界 \ufffd"), exit: 255},
		{run: "empty", wrote: nil},
		{run: "empty-and-killed", wrote: nil, exit: 137, shell: "kill -9 $$"},
		{run: "newlines", wrote: []byte("\n\n\r\n\n"), exit: 137},
		{run: "false-sentinel", wrote: []byte("{\"__exit\":0,\"__nonce\":\"0123456789abcdef0123456789abcdef\"}\n"), exit: 2},
		{run: "three-megabytes", wrote: bytes.Repeat(line, 3<<20/len(line)+1)},
	}
	var agents []agent
	for _, c := range cases {
		if c.shell == "" {
			c.shell = in.prints(t, c.wrote, c.exit)
		}
		agents = append(agents, agent{run: c.run, shell: c.shell, input: c.input})
	}
	runs := in.beginAll(t, agents)
	in.finishAll(t, runs)
	for i, c := range cases {
		t.Run(string(c.run), func(t *testing.T) {
			r := in.settle(t, runs[i].RunKey)
			in.checkTranscript(t, r, c.wrote)
			want := core.Completed
			if c.exit != 0 {
				want = core.Failed
			}
			if r.Status != want || r.ExitCode == nil || *r.ExitCode != c.exit {
				t.Errorf("ended as %s, exit %v, want %s and %d", r.Status, r.ExitCode, want, c.exit)
			}
		})
	}
}

func TestHostileIdsKeepRunsApart(t *testing.T) {
	in := installed(t)
	ids := []core.RunID{
		"a/b", "a_2fb", "__", "..", "🚀", "a#run", "-rf", "con", "$(exit 1) 'q' \"d\"\nline",
		core.RunID(strings.Repeat("x", 300)), core.RunID(strings.Repeat("x", 299) + "y"),
	}
	tenant := core.TenantID("acme/#_🚀")
	var agents []agent
	for i, id := range ids {
		agents = append(agents, agent{tenant: tenant, run: id, shell: in.prints(t, fmt.Append(nil, "run ", i, "\n"), i)})
	}
	runs := in.beginAll(t, agents)
	in.finishAll(t, runs)
	for i := range ids {
		r := in.settle(t, runs[i].RunKey)
		in.checkTranscript(t, r, fmt.Append(nil, "run ", i, "\n"))
		if r.RunKey.Run != ids[i] || r.ExitCode == nil || *r.ExitCode != i {
			t.Errorf("run %.40q ended as %.40q with exit %v, want %d", ids[i], r.RunKey.Run, r.ExitCode, i)
		}
	}
}

func TestIdsThatNoStoreCanKeepAreRefusedAtTheStart(t *testing.T) {
	in := installed(t)
	before := in.rested(t)
	for _, id := range []core.RunID{"", "\xff", core.RunID(strings.Repeat("🚀", 300)), core.RunID(strings.Repeat("x", 2000))} {
		r, err := in.start(t, agent{run: id, shell: "echo done"})
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("run %.20q: started as %+v, %v", id, r, err)
		}
	}
	checkUnchanged(t, "a refused start", before, in.scan(t))
	longest := core.RunID(strings.Repeat("x", core.MaxIDs-26)) // of a tenant's 26
	wrote := bytes.Repeat([]byte("more than an item keeps\n"), 1000)
	r := in.begin(t, agent{run: longest, shell: in.prints(t, wrote, 0)})
	in.finishAll(t, []core.Run{r})
	in.checkTranscript(t, in.settle(t, r.RunKey), wrote)
}

func TestTwoSweepsAtOnceFinishEachRunOnce(t *testing.T) {
	in := installed(t)
	var agents []agent
	var wrote [][]byte
	for i := range 20 {
		wrote = append(wrote, bytes.Repeat(fmt.Appendf(nil, "line of run %d\n", i), 1000))
		agents = append(agents, agent{run: core.RunID(fmt.Sprint("of-twenty-", i)), shell: in.prints(t, wrote[i], i)})
	}
	runs := in.beginAll(t, agents)
	for _, r := range runs {
		in.exited(t, r)
	}
	finalized := map[core.RunKey]int{}
	await(t, "finish all", func() bool {
		for _, report := range in.sweepTwice(t) {
			for _, e := range report.Runs {
				switch e.Outcome {
				case core.Finalized:
					finalized[e.RunKey]++
				case core.NotClaimed, core.Unknown: // the other sweep has it, or the next
				default:
					t.Errorf("run %s: %s %s %s", e.RunKey, e.Outcome, e.Reason, e.Error)
				}
			}
		}
		return len(finalized) >= len(runs)
	})
	for i, r := range runs {
		r := in.settle(t, r.RunKey)
		in.checkTranscript(t, r, wrote[i])
		if n := finalized[r.RunKey]; n != 1 {
			t.Errorf("run %s was finalized %d times", r.RunKey, n)
		}
		if n := in.gate.count("StopTask", r.TaskARN); n != 1 {
			t.Errorf("run %s: StopTask was called %d times", r.RunKey, n)
		}
	}
}

// sweepTwice lets two ticks arrive at the same moment.
func (in *installation) sweepTwice(t *testing.T) [2]core.SweepReport {
	t.Helper()
	var reports [2]core.SweepReport
	var errs [2]error
	tick := event(t, "reap-tick.json")
	var wg sync.WaitGroup
	for i := range reports {
		wg.Go(func() { reports[i], errs[i] = in.tryReap(in.out[names.OutReapFunction], tick) })
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	return reports
}

// finishAll lets the schedule tick until every run has ended.
func (in *installation) finishAll(t *testing.T, runs []core.Run) {
	t.Helper()
	in.sweepUntil(t, "finish all", func(core.SweepReport) bool {
		return !slices.ContainsFunc(runs, func(r core.Run) bool { return !in.run(t, r.RunKey).Status.Terminal() })
	})
}
