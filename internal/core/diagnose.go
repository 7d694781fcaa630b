package core

import (
	"cmp"
	"time"
)

// Reasons of an [ExecError] that ECS gives to different faults; what it says of the
// task tells them apart, see [Diagnose].
const (
	// ReasonExecRefused: exec was not enabled at the start, its agent does not run
	// (yet), the task is stopped, or the container does not exist.
	ReasonExecRefused = "exec-not-enabled"
	// ReasonNotConnected: the agent is not connected, for the moment or for good.
	ReasonNotConnected = "target-not-connected"
)

// containerUnknown is the reason of a diagnosis: the task has no such container.
const containerUnknown = "container-unknown"

// ExecAgent is the managed agent that serves ECS Exec in one container. The zero
// value is a container of which ECS shows none.
type ExecAgent struct {
	Status string // PENDING, RUNNING or STOPPED
	Reason string // ECS's text
	Since  Millis // when it started last
}

// Diagnosis is what a failed exec means.
type Diagnosis struct {
	Gone    bool    // the task, or the container, has ended: there is nobody to ask
	Healing Healing // otherwise
	Reason  string  // short, fixed, lower-case with hyphens
	Detail  string  // ECS's own text, for people; may be empty
}

// AgentGrace is how long an agent that runs may take to connect. AWS speaks of a few
// seconds. One that is unreachable for longer stays so: its role lacks the ssmmessages
// actions, its subnet a route to the service, the container overrides its
// credentials, shares a PID namespace, or was restarted without it.
const AgentGrace = 5 * time.Minute

// Diagnose tells what it means that exec in a container failed as it did, once ECS
// was asked about the task. Without an answer of ECS's the reason stands as it is:
// an exec failure alone never proves a task gone.
func Diagnose(task Task, container string, failure ProbeFailure, now Millis) Diagnosis {
	asIs := Diagnosis{Healing: failure.Healing, Reason: failure.Reason}
	_, exited := task.Exits[container]
	switch {
	case task.Life == TaskGone || exited:
		return Diagnosis{Gone: true, Reason: "task-gone", Detail: describe(task)}
	case task.Life == TaskLeaving, task.Life == TaskMissing:
		return Diagnosis{Healing: Retry, Reason: "task-" + string(task.Life), Detail: task.Reason}
	case task.Life == TaskUnknown:
		return asIs
	case failure.Reason == ReasonExecRefused:
		return refusedExec(task, container)
	case failure.Reason == ReasonNotConnected:
		return unreachable(task.Agents[container], asIs, now)
	}
	return asIs
}

// refusedExec tells why ECS starts no session in a task that lives.
func refusedExec(task Task, container string) Diagnosis {
	agent, known := task.Agents[container]
	switch {
	case !task.ExecEnabled:
		return Diagnosis{Healing: Configuration, Reason: ReasonExecRefused}
	case !known:
		return Diagnosis{Healing: Configuration, Reason: containerUnknown}
	case agent.Status == "STOPPED":
		return Diagnosis{Healing: Configuration, Reason: "agent-stopped", Detail: agent.Reason}
	}
	return Diagnosis{Healing: Retry, Reason: "agent-pending", Detail: agent.Reason}
}

// unreachable tells an agent that has not got that far from one that never will.
func unreachable(agent ExecAgent, asIs Diagnosis, now Millis) Diagnosis {
	switch {
	case agent.Status == "STOPPED":
		return Diagnosis{Healing: Configuration, Reason: "agent-stopped", Detail: agent.Reason}
	case agent.Since != 0 && now >= agent.Since.Add(AgentGrace):
		return Diagnosis{
			Healing: Configuration, Reason: "agent-unreachable",
			Detail: cmp.Or(agent.Reason, "check the task role's ssmmessages actions, the route to the service, credentials in the container's environment, and restarts"),
		}
	}
	return asIs
}

// diagnose replaces an unknown answer's reason by what it means, given what ECS said
// of the task before.
func (r *ProbeReply) diagnose(task Task, container string, now Millis) {
	if r.State != ProbeUnknown {
		return
	}
	if d := Diagnose(task, container, ProbeFailure{Healing: r.Healing, Reason: r.Reason}, now); !d.Gone {
		r.Reason, r.Healing = d.Reason, d.Healing
	}
}
