package core

import (
	"context"
)

// JobKind says what a reclaim message is about.
type JobKind string

// The kinds of message. An ended run owes its sandbox's end or its idleness; an
// idle sandbox is due; a condemned task must be stopped.
const (
	JobEnd    JobKind = "end"
	JobIdle   JobKind = "idle"
	JobDue    JobKind = "idle-due"
	JobLedger JobKind = "ledger"
)

// ReclaimJob is one reclaim message. It only says where to look: everything is
// decided from the records.
type ReclaimJob struct {
	Tenant   TenantID   `json:"tenant,omitempty"`
	Run      RunID      `json:"run,omitempty"` // empty for idle-due and ledger
	Key      SandboxKey `json:"key,omitempty"` // empty for ledger
	Instance InstanceID `json:"instance"`
	Kind     JobKind    `json:"kind"`
}

// ReclaimQueue takes reclaim messages. Delivery is at least once, in any order.
type ReclaimQueue interface {
	// Send returns an error if any of the jobs may not have been taken.
	Send(ctx context.Context, jobs []ReclaimJob) error
}

// ReclaimOutcome is what became of one reclaim message.
type ReclaimOutcome string

// The outcomes; each asks something else of the operator.
const (
	ReclaimDestroyed        ReclaimOutcome = "destroyed"         // the task is stopping or gone
	ReclaimDestroyFailed    ReclaimOutcome = "destroy-failed"    // StopTask failed; retried, then in the DLQ
	ReclaimNoSandboxKey     ReclaimOutcome = "no-sandbox-key"    // the run never had a sandbox
	ReclaimNotFound         ReclaimOutcome = "not-found"         // nothing known under that instance
	ReclaimProviderMismatch ReclaimOutcome = "provider-mismatch" // another provider's sandbox; left alone
	ReclaimInUse            ReclaimOutcome = "in-use"            // a newer run has the sandbox
	ReclaimHeld             ReclaimOutcome = "held"              // an operator holds it
	ReclaimFrozen           ReclaimOutcome = "frozen"            // the installation is frozen
	ReclaimIdled            ReclaimOutcome = "idle"              // kept warm
)
