package client

import (
	"errors"
	"fmt"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Code is why a call was refused.
type Code string

// The codes that a host acts on; docs/session-api.md has them all, by operation.
const (
	UnknownRun        Code = "unknown-run"
	TerminalRun       Code = "terminal-run"       // it has ended
	AttachedElsewhere Code = "attached-elsewhere" // another host has it; attach with Takeover takes it
	CancelRequested   Code = "cancel-requested"   // it is to end: ask for cancel
	TooLate           Code = "too-late"           // it is being ended
	ClaimLost         Code = "claim-lost"         // another has it by now: stop, and write nothing
	WriterConflict    Code = "writer-conflict"    // another run writes the thread
	WriterLost        Code = "writer-lost"        // another wrote the thread meanwhile
	ThreadBusy        Code = "thread-busy"        // the thread's sandbox has another live run
	Frozen            Code = "frozen"             // an operator froze the installation
	Quota             Code = "quota"              // the tenant has as many sandboxes as it may
	SpendCap          Code = "spend-cap"          // the tenant has spent what it may this month
	StillProducing    Code = "still-producing"    // finish before the agent's end
	JournalStalled    Code = "journal-stalled"    // not one byte of output yet
	Busy              Code = "busy"               // somebody else reads the sandbox: again later
	StaleHead         Code = "stale-head"         // the thread went on without this run
	StaleConversation Code = "stale-conversation" // its version is another by now
	UnknownDefinition Code = "unknown-definition"
	InvalidDefinition Code = "invalid-definition"
	NotYourTenant     Code = "not-your-tenant"
	BadRequest        Code = "bad-request"
	TooLarge          Code = "too-large"
)

// RefusedError is a refusal: the call was understood, and changed nothing.
type RefusedError struct {
	Operation string
	Code      Code
	Message   string // for people
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.Operation, e.Code, e.Message)
}

// NoAnswerError says that no answer came, however often the call was made. What was done
// is open: the same call may be made again.
type NoAnswerError struct {
	Operation string
	Attempts  int
	Err       error // of the last
}

func (e *NoAnswerError) Error() string {
	return fmt.Sprintf("%s: no answer to %d calls: %v", e.Operation, e.Attempts, e.Err)
}

// Unwrap gives the error of the last call.
func (e *NoAnswerError) Unwrap() error { return e.Err }

// CodeOf is the code of a refusal, of the function or in process; "" for every other
// error, and none.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*RefusedError](err); ok {
		return e.Code
	}
	if e, ok := errors.AsType[*core.RefusedError](err); ok {
		return Code(e.Why)
	}
	if e, ok := errors.AsType[*core.InvalidError](err); ok {
		return Code(e.Code)
	}
	return ""
}
