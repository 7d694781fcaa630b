package e2e_test

import (
	"reflect"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
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
		if e := entry(report, producing.RunKey); e == nil || e.Outcome != core.Producing {
			t.Fatalf("the sweep says of the producing run: %+v", e)
		}
		found = entry(report, finished.RunKey)
		return found != nil && found.Outcome != core.Producing
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
