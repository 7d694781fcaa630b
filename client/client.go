// Package client is how a host in Go reaches Sandkeeper: the session function as typed
// calls ([Function]), what every host would otherwise write around them ([Run],
// [Attachment], [Follow]), and the checkpoint function ([Checkpoints]). Its rule: a call
// whose answer did not come is made again with the same ids, a refusal never is, and a
// host that goes away detaches: only who asks for a cancel cancels.
package client

import (
	"context"
	"crypto/rand"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// API is what a host asks of Sandkeeper, an operation a method: of the session function
// ([Function]), or of the same code in the host's own process (package inprocess). Every
// operation may be repeated with the same ids. [CodeOf] tells a refusal from an answer
// that did not come.
type API interface {
	// Start begins a run, or goes on with its start: it is asked again while it answers
	// [Provisioning].
	Start(context.Context, StartRequest) (StartReport, error)
	// Adopt takes over a task that the host started itself, with the run in it.
	Adopt(context.Context, AdoptRequest) (StartReport, error)
	// Attach takes a run for a host; a repeat finds that the host has it.
	Attach(context.Context, AttachRequest) (RenewReport, error)
	// Renew keeps the attachment and the writer lease, and answers a recorded cancel.
	Renew(context.Context, HostRequest) (RenewReport, error)
	// Tail gives whole lines of output from a byte position on, and waits for some.
	Tail(context.Context, TailRequest) (TailReport, error)
	// Segments tells where output lies from a byte position on, with leave to read it.
	Segments(context.Context, SegmentsRequest) (SegmentsReport, error)
	// Detach lets the host leave; the agent works on.
	Detach(context.Context, HostRequest) (RenewReport, error)
	// Interrupt pauses the run for a human.
	Interrupt(context.Context, HostRequest) (RenewReport, error)
	// Cancel ends the run, from any host.
	Cancel(context.Context, CancelRequest) (EndReport, error)
	// Finish ends a run whose agent has ended: it is asked again while it answers
	// [Finishing].
	Finish(context.Context, FinishRequest) (FinishReport, error)
	// Fail has the host give its run up, with its error.
	Fail(context.Context, FailRequest) (EndReport, error)
	// Get reads a run.
	Get(context.Context, GetRequest) (RunView, error)
	// List lists the newest runs of a thread, or those that have not ended.
	List(context.Context, ListRunsRequest) (ListRunsReport, error)
}

var _ API = (*core.Session)(nil)

// NewHost is a new name of a host: random, so that nobody else can act with it. A host
// that comes back to its run under the same name has it still; it keeps the name as it
// keeps a password.
func NewHost() string { return "host-" + rand.Text() }

// NewRun is a new run's id. The host keeps it before it starts the run: a start that is
// made again with the same id begins nothing twice.
func NewRun() RunID { return RunID("run-" + rand.Text()) }
