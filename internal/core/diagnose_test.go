package core_test

import (
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

func TestDiagnose(t *testing.T) {
	now := core.Millis(1_900_000_000_000)
	agent := func(status string, age time.Duration) map[string]core.ExecAgent {
		return map[string]core.ExecAgent{"main": {Status: status, Since: now.Add(-age)}}
	}
	lives := core.Task{Life: core.TaskLives, ExecEnabled: true}
	with := func(agents map[string]core.ExecAgent) core.Task {
		task := lives
		task.Agents = agents
		return task
	}
	for _, c := range []struct {
		name   string
		task   core.Task
		reason string
		want   core.Diagnosis
	}{
		{"a stopped task is gone whatever failed", core.Task{Life: core.TaskGone, StopCode: "UserInitiated"}, "throttled",
			core.Diagnosis{Gone: true, Reason: "task-gone", Detail: "UserInitiated"}},
		{"an exited container is gone though its task runs", core.Task{Life: core.TaskLives, Exits: map[string]int{"main": 0}}, "agent-absent",
			core.Diagnosis{Gone: true, Reason: "task-gone"}},
		{"a sidecar's exit says nothing", core.Task{Life: core.TaskLives, Exits: map[string]int{"proxy": 1}}, "agent-absent",
			core.Diagnosis{Healing: core.Retry, Reason: "agent-absent"}},
		{"a task on its way to stopped will be gone", core.Task{Life: core.TaskLeaving}, core.ReasonExecRefused,
			core.Diagnosis{Healing: core.Retry, Reason: "task-leaving"}},
		{"a task that ECS does not know is not gone by that", core.Task{Life: core.TaskMissing}, core.ReasonExecRefused,
			core.Diagnosis{Healing: core.Retry, Reason: "task-missing"}},
		{"without an answer the reason stands", core.Task{}, core.ReasonExecRefused,
			core.Diagnosis{Healing: core.Retry, Reason: core.ReasonExecRefused}},
		{"exec that was not enabled never will be", core.Task{Life: core.TaskLives, Agents: agent("", 0)}, core.ReasonExecRefused,
			core.Diagnosis{Healing: core.Configuration, Reason: core.ReasonExecRefused}},
		{"another container", with(map[string]core.ExecAgent{"proxy": {}}), core.ReasonExecRefused,
			core.Diagnosis{Healing: core.Configuration, Reason: "container-unknown"}},
		{"an agent that comes up", with(agent("PENDING", 0)), core.ReasonExecRefused,
			core.Diagnosis{Healing: core.Retry, Reason: "agent-pending"}},
		{"an agent that came up since", with(agent("RUNNING", time.Second)), core.ReasonExecRefused,
			core.Diagnosis{Healing: core.Retry, Reason: "agent-pending"}},
		{"an agent that stopped", with(agent("STOPPED", time.Hour)), core.ReasonExecRefused,
			core.Diagnosis{Healing: core.Configuration, Reason: "agent-stopped"}},
		{"a young agent connects later", with(agent("RUNNING", core.AgentGrace-time.Millisecond)), core.ReasonNotConnected,
			core.Diagnosis{Healing: core.Retry, Reason: core.ReasonNotConnected}},
		{"an agent whose age is not told", with(map[string]core.ExecAgent{"main": {Status: "RUNNING"}}), core.ReasonNotConnected,
			core.Diagnosis{Healing: core.Retry, Reason: core.ReasonNotConnected}},
		{"a disconnected agent that stopped", with(agent("STOPPED", 0)), core.ReasonNotConnected,
			core.Diagnosis{Healing: core.Configuration, Reason: "agent-stopped"}},
		{"any other reason stands", with(agent("RUNNING", time.Hour)), "throttled",
			core.Diagnosis{Healing: core.Retry, Reason: "throttled"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := core.Diagnose(c.task, "main", core.ProbeFailure{Healing: core.Retry, Reason: c.reason}, now); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
	old := core.Diagnose(with(agent("RUNNING", core.AgentGrace)), "main", core.ProbeFailure{Healing: core.Retry, Reason: core.ReasonNotConnected}, now)
	if old.Healing != core.Configuration || old.Reason != "agent-unreachable" || old.Detail == "" {
		t.Errorf("an agent that never connected: %+v", old)
	}
}
