package localfargate

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
)

// agentPaths are what the managed agent must be able to write to.
var agentPaths = []string{"/managed-agents", "/var/lib/amazon/ssm", "/var/log/amazon/ssm"}

// strayCredentials are environment variables by which the agent signs in place of
// the task role; nothing that a container sets there is allowed to do its calls.
const strayCredentials = "AWS_ACCESS_KEY_ID"

// agentBegin is the managed agent's first state and the reason for it: where it
// cannot write it does not start. The root itself stays writable here.
func agentBegin(d containerDefinition) (status, reason string) {
	for _, path := range agentPaths {
		if d.ReadOnlyRoot && !writable(d.MountPoints, path) {
			return statusStopped, "unable to start ExecuteCommandAgent: mkdir " + path + ": read-only file system"
		}
	}
	return statusPending, ""
}

func writable(mounts []mountPoint, path string) bool {
	return slices.ContainsFunc(mounts, func(m mountPoint) bool {
		return !m.ReadOnly && (m.ContainerPath == path || strings.HasPrefix(path, strings.TrimSuffix(m.ContainerPath, "/")+"/"))
	})
}

// agentState is the managed agent as ECS shows it. Call with the lock held.
func (t *task) agentState(c *container) (status, reason string) {
	f := t.faults.Load()
	switch {
	case c.agentStatus == statusRunning && f.AgentPending:
		return statusPending, ""
	case c.agentStatus != "" && f.AgentStopped != "":
		return statusStopped, f.AgentStopped
	}
	return cmpOr(c.agentStatus, statusPending), c.agentReason
}

// cutOff says whether the agent can never be reached: it signs with credentials of
// the container's own, another container's agent has the shared PID namespace, or
// the container was restarted and the agent was not.
func (t *task) cutOff(c *container) bool {
	own := append(slices.Clone(c.definition.Environment), t.overrides[c.definition.Name].Environment...)
	stray := slices.ContainsFunc(own, func(v keyValue) bool { return v.Name == strayCredentials })
	return stray || t.definition.PIDMode == "task" && c != t.containers[0] || c.restarts > 0
}

// messages are what the API says with some of its codes.
var messages = map[string]string{
	"AccessDeniedException": "User is not authorized to perform: ecs:ExecuteCommand on the resource.",
	"ServerException":       "Service Unavailable. Please try again later.",
	"ThrottlingException":   "Rate exceeded",
}

// refusal is the error with which the faults refuse ExecuteCommand, or nil. Call
// with the lock held.
func (t *task) refusal() error {
	f := t.faults.Load()
	if f.ExecError == "" || f.ExecErrors > 0 && t.refused >= f.ExecErrors {
		return nil
	}
	t.refused++
	e := &apiError{code: f.ExecError, message: cmpOr(messages[f.ExecError], "Refused on purpose."), status: http.StatusBadRequest}
	if f.ExecError == "ServerException" {
		e.status = http.StatusInternalServerError
	}
	return e
}

// runtimeID names the present start of a container.
func (t *task) runtimeID(c *container) string {
	return t.id + "-" + fmt.Sprintf("%010d", t.number+int64(c.restarts)*1_000_000)
}

// RestartContainer lets a container end and its restart policy start it again, with
// a new runtime id: the task lives on, the managed agent is not restarted and never
// reached again.
func (s *Server) RestartContainer(ref, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.anyTask(ref)
	if err != nil {
		return err
	}
	for _, c := range t.containers {
		if c.definition.Name != name || c.lastStatus != statusRunning {
			continue
		}
		if !c.definition.RestartPolicy.Enabled {
			return fmt.Errorf("restart container %s of task %s: %w", name, ref, ErrNoRestart)
		}
		c.restart = true
		return c.box.Load().Signal(syscall.SIGKILL)
	}
	return fmt.Errorf("restart container %s of task %s: %w", name, ref, ErrNotRunning)
}

// again starts a container anew that was killed for it; false means that it has
// ended for good.
func (t *task) again(ctx context.Context, c *container) bool {
	t.server.mu.Lock()
	restart := c.restart && t.stopCode == "" && ctx.Err() == nil
	c.restart = false
	t.server.mu.Unlock()
	if !restart {
		return false
	}
	b, err := t.startBox(c)
	if err != nil {
		t.server.log.Error("restart container", "task", t.arn, "err", err)
		return false
	}
	t.change(func() {
		c.box.Store(b)
		c.restarts++
		c.runtimeID = t.runtimeID(c)
		if t.stopCode != "" || ctx.Err() != nil { // whoever ends the task has signalled the old box
			b.Kill()
		}
	})
	return true
}
