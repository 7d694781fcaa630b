package core

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// AgentVariable names the agent binary's absolute path inside a sandbox. Without it the
// binary is looked for by [AgentName] in the search path, the session's and the
// container's.
const AgentVariable = "SANDKEEPER_AGENT"

// AgentName is the file name of the agent binary.
const AgentName = "sandkeeper-agent"

// Where a sandbox's workspace lies, if no caller says: the variable of the container's
// main process, else the directory, else that process's own working directory.
const (
	WorkspaceVariable = "SANDKEEPER_WORKSPACE"
	DefaultWorkspace  = "/workspace"
)

// ReasonAgentMissing is why no agent could begin in an image without the binary: a
// journal can be kept and probed there, a workspace cannot be captured.
const ReasonAgentMissing = "agent-missing"

// startAgentSeconds bounds the script; the agent leaves its worker behind at once.
const startAgentSeconds = 30

// AgentScript composes the script that hands its own stdin, a job, to the sandbox's
// agent, which claims the job in the journal directory and leaves a worker of its own
// session behind. The job holds a token: it is in no command line and no file. The
// answer is read by [ParseAgent].
func (f JournalFormat) AgentScript() string {
	return boundedScript(startAgentSeconds, f.shellDir()+shellLocale+shellAnswer+findAgent+agentScript)
}

// findAgent leaves the binary's path in a, or anything else where there is none. It is
// looked for first in the session's own environment, then in that of the container's
// main process, whose lines may be read by its user alone.
const findAgent = "init=${" + JournalInitVariable + ":-1}\nname=" + AgentName + " variable=" + AgentVariable + "\na=${" + AgentVariable + `-}
[ "$init" != self ] || init=$$
main() { tr '\000\n' '\n\001' 2>/dev/null <"/proc/$init/environ" | sed -n "s/^$1=//p" | head -n 1; }
[ -n "$a" ] || a=$(main "$variable")
if [ -z "$a" ]; then
  a=$(command -v "$name" 2>/dev/null) || a=$(PATH=$(main PATH); command -v "$name" 2>/dev/null)
fi
`

// checkAgent refuses where there is no binary that could be run.
const checkAgent = `case $a in /*) ;; *) refuse agent-missing configuration ;; esac
if [ ! -f "$a" ]; then refuse agent-missing configuration; fi
[ -x "$a" ] || refuse agent-not-executable configuration
case $d in /*) ;; *) refuse directory-not-absolute configuration ;; esac
`

// agentScript passes on what the agent answers to the job.
const agentScript = checkAgent + handOver + `answer "result=$1"
finish
`

// ParseAgent reads the stdout of an agent script: whether a worker had the job before.
// A script or an agent that refused, or an answer that is not whole, is a
// *[JournalError]; a worker may have begun all the same, and asking again tells.
func ParseAgent(out []byte) (already bool, err error) {
	a, err := parseAnswer("agent", out)
	if err != nil {
		return false, err
	}
	result := a.fields["result"]
	if result != "started" && result != "already" {
		return false, incomplete("agent")
	}
	return result == "already", a.done()
}

// ExecJobStarter is the [JobStarter] that runs the agent script by ECS Exec.
type ExecJobStarter struct {
	Exec   Executor
	Format JournalFormat
}

var _ JobStarter = ExecJobStarter{}

// Start hands the job to the agent. A container without one is [AgentMissing], which is
// no error; where the sandbox refuses for good the answer is [AgentRefused] beside the
// reason. Any other error may pass, and the agent may have begun.
func (s ExecJobStarter) Start(ctx context.Context, target ExecTarget, job AgentJob) (AgentStarted, error) {
	input, err := json.Marshal(job)
	if err != nil {
		return "", fmt.Errorf("start %s %s: %w", job.Kind, job.ID, err)
	}
	out, err := s.Exec.Exec(ctx, target, s.Format.AgentScript(), input)
	if err != nil {
		return "", fmt.Errorf("start %s %s: %w", job.Kind, job.ID, err)
	}
	already, err := ParseAgent(out.Stdout)
	if e, ok := errors.AsType[*JournalError](err); ok && e.Healing == Configuration {
		if e.Reason == ReasonAgentMissing {
			return AgentMissing, nil
		}
		return AgentRefused, err
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("start %s %s: %w", job.Kind, job.ID, err)
	case already:
		return AgentRuns, nil
	}
	return AgentBegan, nil
}
