package core_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// refusing is a provider that starts no such task, or says so after it has started one.
type refusing struct {
	core.Provider
	started bool
}

func (p refusing) Start(ctx context.Context, spec core.TaskSpec) (string, error) {
	if p.started {
		_, _ = p.Provider.Start(ctx, spec) // its answer was lost
	}
	return "", &core.TaskRefusedError{TaskDefinition: spec.TaskDefinition, Cluster: spec.Cluster, Code: "ClientException", Message: "TaskDefinition not found."}
}

// TestATaskThatIsNeverStarted ends its run with one clear refusal, and leaves nothing:
// neither a row that stays open nor a task that an earlier call began.
func TestATaskThatIsNeverStarted(t *testing.T) {
	for what, started := range map[string]bool{"no task": false, "a task of a call whose answer was lost": true} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := keepingHosting(t)
				s := h.self()
				s.Launcher.Provider = refusing{s.Launcher.Provider, started}
				_, err := s.Start(t.Context(), startOf("r", "one"))
				refusedFor(t, "start", err, "invalid-task")
				for _, said := range []string{"family", "cluster c", "want a task definition, cluster, subnets", "TaskDefinition not found."} {
					if err == nil || !strings.Contains(err.Error(), said) {
						t.Errorf("%v does not say %q", err, said)
					}
				}
				if r := h.run("r"); r.Status != core.Failed || r.Error == nil || r.Error.Code != "invalid-task" {
					t.Errorf("run %s, %+v", r.Status, r.Error)
				}
				_, err = s.Start(t.Context(), startOf("r", "one"))
				refusedFor(t, "start again", err, "terminal-run")
				_, err = h.self().Start(t.Context(), startOf("next", "one"))
				h.must(err) // the thread is free at once
				_, err = host{h, "next", "one"}.cancel()
				h.must(err)
				for range 30 {
					time.Sleep(time.Minute)
					h.tick()
				}
				for id, row := range h.store.State().Rows {
					if row.State != core.LedgerClosed {
						t.Errorf("row %s is %s after half an hour", id, row.State)
					}
				}
				if r := h.run("r"); r.Row != core.RowNone {
					t.Errorf("the run's row is %q after half an hour", r.Row)
				}
				if n := h.fleet.Running(); len(n) != 0 {
					t.Errorf("tasks run: %v", n)
				}
				h.check()
			})
		})
	}
}

// containing is a provider whose tasks have containers with names.
type containing struct {
	core.TaskDescriber
	containers map[string]core.ExecAgent
}

func (d containing) Describe(ctx context.Context, cluster string, arns []string) ([]core.Task, error) {
	tasks, err := d.TaskDescriber.Describe(ctx, cluster, arns)
	for i := range tasks {
		tasks[i].Agents = d.containers
	}
	return tasks, err
}

// TestAContainerThatTheTaskDoesNotHave ends the start before anything is tried in it.
func TestAContainerThatTheTaskDoesNotHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		s := h.self()
		s.Launcher.Describer = containing{s.Launcher.Describer, map[string]core.ExecAgent{"app": {Status: "PENDING"}, "sidecar": {}}}
		_, err := s.Start(t.Context(), startOf("r", "one"))
		refusedFor(t, "start", err, "invalid-task")
		for _, said := range []string{`"agent"`, "app, sidecar"} {
			if err == nil || !strings.Contains(err.Error(), said) {
				t.Errorf("%v does not say %q", err, said)
			}
		}
		if r := h.run("r"); r.Status != core.Failed || r.Error.Code != "invalid-task" || h.fleet.Alive("r") {
			t.Errorf("run %s, %+v; its agent lives: %t", r.Status, r.Error, h.fleet.Alive("r"))
		}
		h.drainQueue(h.store.Process)
		h.drainQueue(h.store.Process)
		if n := h.fleet.Running(); len(n) != 0 {
			t.Errorf("tasks run: %v", n)
		}
		h.check()
	})
}

// TestAnAdoptedContainerIsThere, or the adoption is refused and nothing is bound.
func TestAnAdoptedContainerIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		s := h.self()
		s.Launcher.Describer = containing{s.Launcher.Describer, map[string]core.ExecAgent{"app": {Status: "RUNNING"}}}
		arn := h.fleet.RunStray("theirs/0001")
		_, err := s.Adopt(t.Context(), core.AdoptRequest{
			RunKey: key("r"), Thread: "t", Host: hostOf("one"), TaskARN: arn, Container: "agent", Journal: core.NewJournalNonce(),
		})
		refusedFor(t, "adopt", err, "invalid-task")
		if r := h.run("r"); r.TaskARN != "" {
			t.Errorf("bound to %s", r.TaskARN)
		}
		if n := len(h.fleet.Running()); n != 1 {
			t.Errorf("%d tasks run: theirs is theirs", n)
		}
	})
}
