package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Status is where a run stands.
type Status string

// The statuses. Interrupted is a pause for a human: neither live nor ended.
const (
	Running     Status = "running"
	Interrupted Status = "interrupted"
	Completed   Status = "completed"
	Failed      Status = "failed"
	Aborted     Status = "aborted"
)

// Statuses is the closed set; membership is exact (RS-2).
var Statuses = []Status{Running, Interrupted, Completed, Failed, Aborted}

// ParseStatus returns the status that text names exactly.
func ParseStatus(text string) (Status, error) {
	if s := Status(text); slices.Contains(Statuses, s) {
		return s, nil
	}
	return "", fmt.Errorf("parse status %q: want one of %v", text, Statuses)
}

// Terminal reports whether a run with this status has ended. An unknown status is
// not terminal: nothing is deleted or stopped for it.
func (s Status) Terminal() bool { return s == Completed || s == Failed || s == Aborted }

// Row says in which sparse index a run stands, if any (I15).
type Row string

// The rows of DESIGN 4.1. The due kinds carry their time in [Run.DueAt].
const (
	RowNone     Row = ""
	RowDetached Row = "detached"
	RowLapse    Row = "lapse"
	RowPause    Row = "pause"
	RowCancel   Row = "cancel"
	RowReclaim  Row = "reclaim"
)

// Due reports whether the row stands in the due index.
func (r Row) Due() bool { return r != RowNone && r != RowDetached }

// EndReason says why a run is being ended without its agent having finished.
type EndReason string

// The reasons a run ends other than by its own sentinel. Except for EndLost and
// EndNeverStarted the agent may still be alive and is ended first.
const (
	EndExpired      EndReason = "expired"
	EndSpendCap     EndReason = "spend-cap" // its own, or its tenant's
	EndCancelled    EndReason = "cancelled"
	EndDied         EndReason = "agent-died"
	EndNeverStarted EndReason = "never-started"
	EndLost         EndReason = "lost"
)

// Ending is the final decision to end a run, written in the claim that took it.
type Ending struct {
	Reason EndReason
	At     Millis
}

// Sealed is the agent's own end: its exit status, read from the sentinel. The
// log holds every byte before it. Stderr, where it could be read, stands here so
// that whoever finishes the run after a crash still has it.
type Sealed struct {
	ExitCode int
	At       Millis
	Stderr   string // the end of the agent's stderr, at most [Limits.StderrTail] characters
	// Side is set where the journal no longer went on from the log's end, having been
	// rewritten: the log ends before, and the journal as it was then is stored beside
	// it, in objects whose keys begin so.
	Side string
}

// RunError is why a run did not complete.
type RunError struct {
	Code    string // short, lower-case with hyphens: "agent-exit"
	Message string
}

// Transcript is what was saved of the agent's stdout.
type Transcript struct {
	Bytes    int64  // of the journal, up to which it was read
	SHA256   string // hex, over exactly those bytes, what was omitted left out
	Complete bool   // the journal was read to its end, and all of it is here
	Omitted  int64  // bytes between head and tail that were too many to keep
	Side     string // see [Sealed]
}

// Hold keeps a run's sandbox from expiry and reclaim until a time.
type Hold struct {
	Until   Millis
	By, Why string
	ID      string // of the command, which tells it from an equal one
}

// Live reports whether the hold still holds at now.
func (h Hold) Live(now Millis) bool { return h.Until > now }

// ReclaimKind says what a run's end owes to its sandbox.
type ReclaimKind string

// What reclaim does: stop the task, or keep it warm for the thread's next turn.
const (
	ReclaimNone ReclaimKind = ""
	ReclaimEnd  ReclaimKind = "end"
	ReclaimIdle ReclaimKind = "idle"
)

// Run is the record of one agent turn (DESIGN 4.1). Zero means "not set" in every
// member but ExitCode, whose absence is nil.
type Run struct {
	RunKey
	Thread     ThreadID
	Status     Status
	StartedAt  Millis
	FinishedAt Millis
	Error      *RunError
	ExitCode   *int

	Provider   string
	Definition string
	SandboxKey SandboxKey
	Instance   InstanceID
	TaskARN    string
	Cluster    string
	Container  string

	Row   Row
	DueAt Millis // of a due row: lapse, pause, cancel, or reclaim's notBefore

	Epoch            int64
	ClaimNonce       string
	ClaimUntil       Millis
	AttachedUntil    Millis
	DetachedSince    Millis
	InterruptedSince Millis
	CancelRequested  Millis // when; zero: not requested
	Ending           *Ending
	Nonce            string // of the journal's sentinel
	JournalDir       string // of an adopted run's journal; empty: where the container says
	Sealed           *Sealed
	LogEnd           int64  // bytes of the journal that are in the log
	LogHash          []byte // state of the running SHA-256 over them
	LogOmitted       int64  // of them were too many to keep
	LogTail          []byte // the last of them, at most JournalOverlap, to know a rewritten journal
	Transcript       *Transcript

	TTLSeconds   int64   // after the detach; zero: the installation's default
	SpendCap     Dollars // what it may cost; zero: the installation's default
	Price        Dollars // an hour of its task, once somebody has asked; zero: not known
	PublicIP     bool    // its definition gives its task a public IPv4 address
	Hold         Hold
	Reclaim      ReclaimKind // what this run's end owes, by its definition
	OnLapse      OnLapse
	Start        RunStart
	PauseSeconds int64 // how long a pause may last; zero: the default

	CheckpointPolicy CheckpointPolicy
	Capture          *JobOptions   // what a checkpoint of its workspace is told; nil: nothing
	Checkpoint       RunCheckpoint // what its end owed of its workspace, and what became of it

	// Tools are what the run's agent may call; Bearers are the hex SHA-256 of what it may
	// say that it is the run's agent with, the newest last, at most [MaxBearers].
	Tools   []ToolBinding
	Bearers []string
	// Files is the record of what the run's agent changed, once it is saved. Watched says
	// that there is one to be saved.
	Files   *RunFiles
	Watched bool

	// What the sandbox's end needs to know of the definition.
	Hooks       HookPlan
	Snapshots   SnapshotPolicy
	IdleSeconds int64 // how long the sandbox is kept warm; zero: the installation's time

	ReclaimSince    Millis
	ReclaimAttempts int
	ReclaimOutcome  ReclaimOutcome

	// ExpiresAt is when retention may take the record; zero while it has not ended or
	// its sandbox's end is owed.
	ExpiresAt Millis

	TaskStoppedAt Millis // hint
	ExitedAt      Millis // hint
}

// ToolBinding is a tool that a run may call, and the function behind it.
type ToolBinding struct {
	Name           string `json:"name"`
	Function       string `json:"function"`
	TimeoutSeconds int64  `json:"timeoutSeconds,omitempty"` // zero: the installation's
}

// RunFiles is where the record of a run's changes of files is kept: one object.
type RunFiles struct {
	Key     string
	Version string
	Bytes   int64
	SHA256  string // hex
}

// MaxBearers is how many bearers of one run are good at once: as many attempts at starting
// its agent may be in doubt.
const MaxBearers = 8

// OnLapse is what becomes of a run whose host stopped renewing.
type OnLapse string

// By default a lapsed run is detached; a definition may have it cancelled.
const (
	LapseDetaches OnLapse = ""
	LapseCancels  OnLapse = "cancel"
)

// ErrNotFound is returned for a record that does not exist.
var ErrNotFound = errors.New("not found")

// RefusedError tells that a conditional write was refused: what it required does
// not hold in the record as it was at that moment.
type RefusedError struct {
	Op     string // the transition's name
	Why    string // the condition that failed, lower-case with hyphens
	Record string // which record, for people
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s %s: refused: %s", e.Op, e.Record, e.Why)
}

// Refused reports whether err says that a condition did not hold. Any other error
// leaves open whether the write landed.
func Refused(err error) bool {
	_, ok := errors.AsType[*RefusedError](err)
	return ok
}

// Runs is where run records are kept.
type Runs interface {
	// Run reads a record consistently; ErrNotFound if there is none.
	Run(ctx context.Context, key RunKey) (Run, error)
	// Create puts a record that must be absent. One that is there already is
	// returned with a nil error if it is this host's own start: not terminal and the
	// same ClaimNonce. Otherwise it is a [*RefusedError]: "terminal" or
	// "attached-elsewhere".
	Create(ctx context.Context, r Run) (Run, error)
	// Update carries out one transition in one conditional request and returns the
	// record as it then is. A condition that does not hold is a [*RefusedError],
	// unless the record shows that this very write has landed already. A record that
	// does not exist is ErrNotFound. After any other error the write may have landed.
	Update(ctx context.Context, key RunKey, t Transition) (Run, error)
}

// Created tells what a Create meets in a record that exists: nil if it is the
// host's own earlier start.
func Created(want, have Run) error {
	why := failing(
		check{!have.Status.Terminal(), "terminal"},
		check{have.ClaimNonce == want.ClaimNonce, "attached-elsewhere"},
	)
	if why == "" {
		return nil
	}
	return &RefusedError{Op: "create", Record: "run " + want.RunKey.String(), Why: why}
}
