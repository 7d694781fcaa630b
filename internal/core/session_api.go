package core

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"
)

// The requests of a session. Each may be made again with the same ids: what has been
// done is not done twice, and what is under way goes on. Host is what a host calls its
// attachment: a random text of its own, the same in all its calls.

// StartRequest begins a run, or asks how far its start is.
type StartRequest struct {
	RunKey
	Thread ThreadID `json:"thread"`
	Host   string   `json:"host"`
	// Definition is given, or the name of one that the installation keeps: its newest
	// version, or name@version.
	Definition     *Definition `json:"definition,omitempty"`
	DefinitionName string      `json:"definitionName,omitempty"`
	// Tools are the definition's tools that the run's agent may call; absent: all.
	Tools []string `json:"tools,omitzero"`
	// Conversation says who keeps the thread's conversation: the host, which hands it in
	// with finish or by the checkpoint function, or none. Without one no workspace is kept.
	Conversation ConversationSource `json:"conversation,omitempty"`
	// Parent is the paused run that this one goes on for, in the same sandbox.
	Parent RunID     `json:"parent,omitempty"`
	Agent  AgentPlan `json:"agent"`
}

// AgentPlan is the program of a run: words, or text for a shell.
type AgentPlan struct {
	Argv  []string `json:"argv,omitempty"`
	Shell string   `json:"shell,omitempty"`
	Dir   string   `json:"dir,omitempty"`   // absolute; empty: the container's
	Input *string  `json:"input,omitempty"` // its stdin; it is in no record, argument or log
}

// ConversationSource is who keeps a thread's conversation.
type ConversationSource string

// By default the host keeps it.
const (
	ConversationDefault ConversationSource = "" // host
	ConversationHost    ConversationSource = "host"
	ConversationNone    ConversationSource = "none"
)

// HostRequest is for what only the host of a run may ask: renew, detach, interrupt.
type HostRequest struct {
	RunKey
	Host string `json:"host"`
}

// AttachRequest takes a run for a host.
type AttachRequest struct {
	RunKey
	Host     string `json:"host"`
	Takeover bool   `json:"takeover,omitempty"` // although another host has it
}

// CancelRequest asks that a run end. With the host that has it, it ends it at once.
type CancelRequest struct {
	RunKey
	Host string `json:"host,omitempty"`
}

// FailRequest has a run's host give it up.
type FailRequest struct {
	RunKey
	Host  string   `json:"host"`
	Error RunFault `json:"error"`
}

// RunFault is a [RunError] as hosts see it.
type RunFault struct {
	Code    string `json:"code"` // short, lower-case with hyphens
	Message string `json:"message,omitempty"`
}

// GetRequest asks for a run.
type GetRequest struct{ RunKey }

// ListRunsRequest asks for the runs of a thread.
type ListRunsRequest struct {
	ThreadKey
	Active bool `json:"active,omitempty"` // only those that have not ended
}

// ListRunsReport is the answer of list and active: newest first.
type ListRunsReport struct {
	Runs []RunView `json:"runs"`
	More bool      `json:"more,omitempty"` // older ones are left out
}

// StartState is how far a start is.
type StartState string

// A start that is provisioning is asked again.
const (
	Provisioning StartState = "provisioning"
	Ready        StartState = "ready"
)

// Ensured is how a run came to its sandbox.
type Ensured string

// A sandbox was made for the run, from its definition or from a native snapshot, or was
// there. A checkpoint is brought back into one that was made, only.
const (
	EnsuredCreated Ensured = "created"
	EnsuredResumed Ensured = "resumed"
	EnsuredNative  Ensured = "native-restored"
)

// StartReport is the answer of start.
type StartReport struct {
	State        StartState     `json:"state"`
	Waiting      string         `json:"waiting,omitempty"` // what a provisioning start waits for
	Ensured      Ensured        `json:"ensured,omitempty"`
	RestoredFrom CheckpointID   `json:"restoredFrom,omitempty"`
	Lost         *LostWorkspace `json:"workspaceLost,omitempty"`
	Run          RunView        `json:"run"`
}

// LostWorkspace tells that the work of an earlier run of the thread is not in the
// workspace.
type LostWorkspace struct {
	Run RunID  `json:"run"`
	Why string `json:"why"`
}

// RenewReport is the answer of attach and renew.
type RenewReport struct {
	Run RunView `json:"run"`
	// Cancel says that the run is to end: its host asks for cancel, and it ends.
	Cancel bool `json:"cancel,omitempty"`
	// Spend is what the run costs, of renew, where the installation, the definition or an
	// operator has set a cap.
	Spend  *SpendView `json:"spend,omitempty"`
	Writer string     `json:"writer,omitempty"` // of attach: why the thread's writer lease was not to be had
}

// EndReport is the answer of cancel and fail. An end that is not over yet is recorded,
// and goes on: in the host's next call, or in a sweep.
type EndReport struct {
	Ended   bool    `json:"ended"`
	Waiting string  `json:"waiting,omitempty"`
	Run     RunView `json:"run"`
}

// RunView is a run as hosts see it.
type RunView struct {
	RunKey
	Thread           ThreadID     `json:"thread"`
	Status           Status       `json:"status"`
	StartedAt        Millis       `json:"startedAt"`
	FinishedAt       Millis       `json:"finishedAt,omitempty"`
	Error            *RunFault    `json:"error,omitempty"`
	ExitCode         *int         `json:"exitCode,omitempty"`
	Definition       string       `json:"definition,omitempty"`
	Parent           RunID        `json:"parent,omitempty"`
	SandboxKey       SandboxKey   `json:"sandboxKey,omitempty"` // with instance, what a save by name asks for
	Instance         InstanceID   `json:"instance,omitempty"`
	TaskARN          string       `json:"taskArn,omitempty"`
	ReadyAt          Millis       `json:"readyAt,omitempty"`
	AttachedUntil    Millis       `json:"attachedUntil,omitempty"`
	DetachedSince    Millis       `json:"detachedSince,omitempty"`
	InterruptedSince Millis       `json:"interruptedSince,omitempty"`
	CancelRequested  Millis       `json:"cancelRequested,omitempty"`
	Ending           EndReason    `json:"ending,omitempty"`
	LogEnd           int64        `json:"logEnd"`
	Sealed           bool         `json:"sealed,omitempty"`
	Complete         bool         `json:"complete,omitempty"` // of an ended run: the log is whole
	Checkpoint       string       `json:"checkpoint,omitempty"`
	CheckpointID     CheckpointID `json:"checkpointId,omitempty"`
	TaskStoppedAt    Millis       `json:"taskStoppedAt,omitempty"` // hint
	ExitedAt         Millis       `json:"exitedAt,omitempty"`      // hint
}

func viewOf(r Run) RunView {
	v := RunView{
		RunKey: r.RunKey, Thread: r.Thread, Status: r.Status, StartedAt: r.StartedAt, FinishedAt: r.FinishedAt, Error: (*RunFault)(r.Error),
		ExitCode: r.ExitCode, Definition: r.Definition, Parent: r.Start.Parent, SandboxKey: r.SandboxKey, Instance: r.Instance, TaskARN: r.TaskARN,
		ReadyAt: r.Start.ReadyAt, AttachedUntil: r.AttachedUntil, DetachedSince: r.DetachedSince, InterruptedSince: r.InterruptedSince,
		CancelRequested: r.CancelRequested, LogEnd: r.LogEnd, Sealed: r.Sealed != nil, Checkpoint: string(r.Checkpoint.State),
		CheckpointID: r.Checkpoint.ID, TaskStoppedAt: r.TaskStoppedAt, ExitedAt: r.ExitedAt,
	}
	if r.Ending != nil {
		v.Ending = r.Ending.Reason
	}
	if r.Transcript != nil {
		v.Complete = r.Transcript.Complete
	}
	return v
}

// The limits of what a host may say.
const (
	minHost    = 16 // characters: two hosts must not choose the same
	maxHost    = 128
	maxAgent   = 32 << 10  // bytes of a command
	maxInput   = 256 << 10 // bytes of an agent's stdin
	maxCode    = 64        // bytes
	maxMessage = 4 << 10   // bytes
)

func checkHost(host string) error {
	printable := strings.IndexFunc(host, func(r rune) bool { return r < '!' || r > '~' }) < 0
	if len(host) < minHost || len(host) > maxHost || !printable {
		return invalid("invalid-host", "want %d to %d printable ASCII characters without spaces, got %d bytes", minHost, maxHost, len(host))
	}
	return nil
}

func checkRun(k RunKey) error {
	if k.Tenant == "" || k.Run == "" {
		return invalid("invalid-id", "tenant and run: want at least one character, got %.80q and %.80q", k.Tenant, k.Run)
	}
	if err := checkIDs(k.Tenant, "run", string(k.Run)); err != nil {
		return invalid("invalid-id", "%v", err)
	}
	return nil
}

func (q StartRequest) check() error {
	err := cmp.Or(checkRun(q.RunKey), checkThread(ThreadKey{q.Tenant, q.Thread}), checkHost(q.Host), q.Agent.check())
	if err == nil && q.Parent != "" {
		err = checkRun(RunKey{q.Tenant, q.Parent})
	}
	switch {
	case err != nil:
		return err
	case !slices.Contains([]ConversationSource{ConversationDefault, ConversationHost, ConversationNone}, q.Conversation):
		return invalid("bad-request", "conversation: want host or none, got %.80q", q.Conversation)
	case len(q.Tools) > maxTools:
		return invalid("bad-request", "tools: want at most %d, got %d", maxTools, len(q.Tools))
	case q.Parent == q.Run:
		return invalid("invalid-id", "parent: want another run than the one that begins")
	case (q.Definition == nil) == (q.DefinitionName == ""):
		return invalid("invalid-definition", "want either a definition or the name of one")
	case q.Definition != nil:
		return q.Definition.Validate()
	}
	if _, _, err := ParseDefinitionRef(q.DefinitionName); err != nil {
		return invalid("invalid-definition", "%v", err)
	}
	return nil
}

func (a AgentPlan) check() error {
	if a.Input != nil && len(*a.Input) > maxInput {
		return invalid("too-large", "agent.input: want at most %d bytes, got %d", maxInput, len(*a.Input))
	}
	size := len(a.Shell) + len(a.Dir)
	for _, word := range a.Argv {
		size += len(word) + 1
	}
	if size > maxAgent {
		return invalid("too-large", "agent: want a command of at most %d bytes, got %d", maxAgent, size)
	}
	if err := (JournalStart{Nonce: "-", Argv: a.Argv, Shell: a.Shell, Dir: a.Dir}).check(); err != nil {
		return invalid("invalid-agent", "%v", err)
	}
	return nil
}

func (q FailRequest) check() error {
	e := q.Error
	switch err := cmp.Or(checkRun(q.RunKey), checkHost(q.Host)); {
	case err != nil:
		return err
	case e.Code == "" || len(e.Code) > maxCode || !utf8.ValidString(e.Code):
		return invalid("invalid-error", "code: want 1 to %d bytes in UTF-8, got %d", maxCode, len(e.Code))
	case len(e.Message) > maxMessage || !utf8.ValidString(e.Message):
		return invalid("invalid-error", "message: want at most %d bytes in UTF-8, got %d", maxMessage, len(e.Message))
	}
	return nil
}

// claimLost is the code of who does not have the run that it wants to act on.
const claimLost = "claim-lost"

// refusedRun names a refusal of an operation on a run.
func refusedRun(op string, k RunKey, why string) error { return refuse(op, "run "+k.String(), why) }

// unknownRun turns a record that does not exist into the refusal that it is.
func unknownRun(op string, k RunKey, err error) error {
	if errors.Is(err, ErrNotFound) {
		return refusedRun(op, k, "unknown-run")
	}
	return err
}
