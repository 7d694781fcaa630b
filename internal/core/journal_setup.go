package core

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// SetupPlan is what a sandbox's workspace is prepared by. It holds no secret: those are
// named.
type SetupPlan struct {
	Workspace WorkspacePlan `json:"workspace"`
	Policy    PolicyPlan    `json:"policy,omitzero"`
	Secrets   []string      `json:"secrets,omitempty"` // names
	Hash      string        `json:"hash"`              // of the definition, as in its sandbox's key
	// Restore is the step that brought a checkpoint back before; what it could not finish
	// without the source's remote is finished. Empty: none.
	Restore CheckpointID `json:"restore,omitempty"`
	// CloneOnly ends the set-up behind the clone: a restore comes next.
	CloneOnly bool `json:"cloneOnly,omitempty"`
}

// Projects reports whether the plan puts files into the workspace.
func (p SetupPlan) Projects() bool {
	w := p.Workspace
	return w.Instructions != "" || len(w.Skills)+len(w.Plugins)+len(w.Scripts) > 0 || !p.Policy.Empty()
}

// SetupJob is what a sandbox's agent sets a workspace up by. It holds the values of
// secrets: it goes over stdin and is in no record, log or command line.
type SetupJob struct {
	Kind   string            `json:"kind"` // [SetupKind]
	ID     string            `json:"id"`
	Token  string            `json:"token"` // the same for each time that the job is handed over
	Dir    string            `json:"dir,omitempty"`
	Plan   SetupPlan         `json:"plan"`
	Values map[string]string `json:"values,omitempty"`
}

// SetupKind is the kind of a job that prepares a workspace.
const SetupKind = "setup"

// SetupPhase is how far a set-up is.
type SetupPhase string

// The phases. In the sandbox nothing is known of one that never began.
const (
	SetupUnknown SetupPhase = ""
	SetupWorking SetupPhase = "working"
	SetupDone    SetupPhase = "done"
	SetupFailed  SetupPhase = "failed"
)

// SetupAbandoned is the code of a set-up whose worker was killed: handed over once more
// it goes on.
const SetupAbandoned = "abandoned"

// SetupState is what a sandbox says of a set-up.
type SetupState struct {
	Phase     SetupPhase `json:"state"`
	Code      string     `json:"code,omitempty"`
	Message   string     `json:"message,omitempty"`
	Step      string     `json:"step,omitempty"` // at work, or failed
	Tail      string     `json:"tail,omitempty"` // the end of what a failed step printed, without secrets
	StepsDone int        `json:"stepsDone,omitempty"`
	Steps     int        `json:"steps,omitempty"`
	Baseline  string     `json:"baseline,omitempty"` // the commit that is checked out
}

// Err is why a set-up failed, in one text.
func (s SetupState) Err() error {
	if s.Tail == "" {
		return errors.New(s.Message)
	}
	return fmt.Errorf("%s: %s", s.Message, s.Tail)
}

// Setups prepares the workspaces of sandboxes.
type Setups interface {
	// Setup hands job over, once, however often it is called; with a nil job it only asks.
	// It waits up to that long for the end, and tells how far the set-up with that id is.
	// After an error it may have begun.
	Setup(ctx context.Context, target ExecTarget, id string, job *SetupJob, wait time.Duration) (SetupState, error)
}

// ExecSetups is the [Setups] that runs the agent's set-up by ECS Exec.
type ExecSetups struct {
	Exec   Executor
	Format JournalFormat
}

var _ Setups = ExecSetups{}

// Setup runs one script.
func (s ExecSetups) Setup(ctx context.Context, target ExecTarget, id string, job *SetupJob, wait time.Duration) (SetupState, error) {
	var input []byte
	if job != nil {
		var err error
		if input, err = json.Marshal(job); err != nil {
			return SetupState{}, fmt.Errorf("set up %s: %w", id, err)
		}
	}
	out, err := s.Exec.Exec(ctx, target, s.Format.SetupScript(id, job != nil, wait), input)
	if err != nil {
		return SetupState{}, fmt.Errorf("set up %s: %w", id, err)
	}
	state, err := ParseSetup(out.Stdout)
	if err != nil {
		return SetupState{}, fmt.Errorf("set up %s: %w", id, err)
	}
	return state, nil
}

// SetupScript composes the script that asks the sandbox's agent how far the set-up id is,
// waiting up to that long for its end; with begin it hands its own stdin, a job, over
// first. The answer is read by [ParseSetup].
func (f JournalFormat) SetupScript(id string, begin bool, wait time.Duration) string {
	seconds := int(wait / time.Second)
	vars := fmt.Sprintf("id=%s wait=%d\n", quoteShell(id), seconds)
	start := ""
	if begin {
		start = handOver
	}
	return boundedScript(startAgentSeconds+seconds, f.shellDir()+vars+shellLocale+shellAnswer+findAgent+checkAgent+start+askSetup)
}

// handOver hands the job to the agent, which answers with one line of words.
const handOver = `said=$("$a" start -claims "$d" 2>/dev/null)
code=$?
case $code in 126|127) refuse agent-unusable configuration ;; esac
[ $code -eq 0 ] || refuse agent-failed
case $said in *[!a-z0-9\ -]*) refuse agent-failed ;; esac
set -- $said
case "$#.${1-}" in
1.started|1.already) ;;
2.refused) refuse "$2" ;;
3.refused) refuse "$2" "$3" ;;
*) refuse agent-failed ;;
esac
`

// askSetup passes on what the agent knows of the job, or nothing.
const askSetup = `state=$("$a" status -kind ` + SetupKind + ` -id "$id" -claims "$d" -wait "$wait" 2>/dev/null </dev/null) || state=
answer "state=${#state}"
printf '%s' "$state"
finish
`

// ParseSetup reads the stdout of a set-up script. A script or an agent that refused, or
// an answer that is not whole, is a *[JournalError].
func ParseSetup(out []byte) (SetupState, error) {
	a, err := parseAnswer("setup", out)
	if err != nil {
		return SetupState{}, err
	}
	text, err := a.section("state")
	if err != nil {
		return SetupState{}, err
	}
	var state SetupState
	if len(text) > 0 && json.Unmarshal(text, &state) != nil {
		return SetupState{}, incomplete("setup")
	}
	return state, a.done()
}
