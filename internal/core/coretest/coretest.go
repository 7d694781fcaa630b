// Package coretest checks implementations of core's store ports: one check for
// each sentence of a port's contract, one property for each conditional write. Its
// rule is that it speaks the ports only, so that memory and the real stores pass the
// very same checks.
package coretest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Stores are one installation's stores. A nil member is not checked by the
// functions that need it; those fail.
type Stores struct {
	Runs         core.Runs
	Log          core.RunLog
	Index        core.RunIndex
	Sandboxes    core.Sandboxes
	Ledger       core.Ledger
	Transactions core.SandboxTransactions
	Due          core.SandboxIndex
	Blobs        core.Blobs
	Queue        core.ReclaimQueue
	Controls     core.Controls
	Settings     core.ControlWriter
	Audit        core.AuditLog
	Notes        core.Notes
	Meters       core.Meters
	Cursors      core.Cursors
	Budget       core.Budget
	SpoolQuotas  core.SpoolQuotas
	Seed         Seed
}

// Seed brings a store into a state that its port cannot reach in one step.
type Seed struct {
	// Run, Sandbox and Row put a record as it is, over any that is there.
	Run     func(ctx context.Context, r core.Run) error
	Sandbox func(ctx context.Context, box core.Sandbox) error
	Row     func(ctx context.Context, row core.LedgerRow) error
	// Control is what an operator sets.
	Control func(ctx context.Context, c core.Control) error
	// Audited lists the audit entries of the day, in UTC, on which at is.
	Audited func(ctx context.Context, at core.Millis) ([]core.AuditEntry, error)
	// Received returns and removes the messages in the queue, n of them.
	Received func(ctx context.Context, n int) ([]core.ReclaimJob, error)
}

// Open returns empty stores for one test.
type Open func(t *testing.T) Stores

// must fails the test if err is not nil.
func must(t tb, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// equal fails the test if got is not want; nil and empty bytes are the same.
func equal(t tb, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n got %s\nwant %s", what, show(got), show(want))
	}
}

// refusedAs fails the test if err does not refuse for why.
func refusedAs(t tb, err error, why string) {
	t.Helper()
	if e, ok := errors.AsType[*core.RefusedError](err); !ok || e.Why != why {
		t.Errorf("error = %v, want a refusal for %q", err, why)
	}
}

func notFound(t tb, err error) {
	t.Helper()
	if !errors.Is(err, core.ErrNotFound) {
		t.Errorf("error = %v, want not found", err)
	}
}

// together runs do n times at once and returns the errors, by index.
func together(n int, do func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = do(i) })
	}
	wg.Wait()
	return errs
}

// oneWins fails the test unless exactly one error is nil and the others refuse.
func oneWins(t tb, errs []error) {
	t.Helper()
	won := 0
	for i, err := range errs {
		switch {
		case err == nil:
			won++
		case !core.Refused(err):
			t.Errorf("contender %d: %v, want success or a refusal", i, err)
		}
	}
	if won != 1 {
		t.Errorf("%d contenders won, want 1", won)
	}
}

// attached is a run as a host's start leaves it.
func attached(tenant core.TenantID, id core.RunID) core.Run {
	return core.Run{
		RunKey: core.RunKey{Tenant: tenant, Run: id}, Thread: "thread", Status: core.Running, StartedAt: 1000,
		Definition: "d", Epoch: 1, ClaimNonce: "host", Nonce: "n", AttachedUntil: 5000, Row: core.RowLapse, DueAt: 5000,
	}
}

// detached is a run whose host left.
func detached(tenant core.TenantID, id core.RunID) core.Run {
	r := attached(tenant, id)
	r.AttachedUntil, r.DetachedSince = 0, 2000
	r.Row, r.DueAt = core.RowDetached, 0
	return r
}

// claimed is a detached run that a sweep works on.
func claimed(tenant core.TenantID, id core.RunID) core.Run {
	r := detached(tenant, id)
	r.ClaimUntil = 9000
	return r
}

// ended is a run that completed and owes its sandbox's end.
func ended(tenant core.TenantID, id core.RunID) core.Run {
	r := detached(tenant, id)
	r.Status, r.FinishedAt, r.ExitCode, r.Transcript = core.Completed, 7000, new(0), &core.Transcript{Complete: true}
	r.Reclaim, r.ReclaimSince, r.Row, r.DueAt = core.ReclaimEnd, 7000, core.RowReclaim, 8000
	return r
}

// whole is a run with every member set, so far as members go together.
func whole(tenant core.TenantID, id core.RunID) core.Run {
	r := ended(tenant, id)
	r.Status, r.ExitCode = core.Failed, new(3)
	r.Error = &core.RunError{Code: "agent-exit", Message: "größer als 5 µm"}
	r.Provider, r.SandboxKey, r.Instance, r.TaskARN = "fargate", "abc", "i-1", "arn:task/1"
	r.Cluster, r.Container = "arn:cluster", "agent"
	r.ClaimUntil, r.AttachedUntil, r.DetachedSince, r.InterruptedSince = 1, 2, 3, 4
	r.CancelRequested, r.Ending = 5, &core.Ending{Reason: core.EndCancelled, At: 6}
	r.Sealed = &core.Sealed{ExitCode: 3, At: 7, Stderr: "panic: größer\n"}
	r.LogEnd, r.LogHash, r.LogTail = 8, []byte{0, 1, 255}, []byte("the end\n")
	r.Transcript = &core.Transcript{Bytes: 8, SHA256: "00ff", Complete: true}
	r.SpendCap, r.Price, r.PublicIP = 25, 26, true
	r.TTLSeconds, r.Hold, r.PauseSeconds = 9, core.Hold{Until: 10, By: "ops", Why: "look"}, 11
	r.OnLapse, r.ReclaimAttempts, r.ReclaimOutcome = core.LapseCancels, 12, core.ReclaimHeld
	r.TaskStoppedAt, r.ExitedAt = 13, 14
	r.CheckpointPolicy = core.CheckpointAlways
	r.Checkpoint = core.RunCheckpoint{State: core.CheckpointMoved, ID: "c", Why: "größer", Tries: 15, FailedAt: 16}
	r.Capture = &core.JobOptions{Dir: "/w", Policy: []byte(`{"exclude":["x"]}`), Secrets: []string{"A"}, MaxBytes: 19}
	r.Start = core.RunStart{Hosted: true, Parent: "p", Resumed: true, Noted: true, Head: "h", Restored: "c", LostRun: "r0", LostWhy: "größer", AskedAt: 17, ReadyAt: 18, Native: "snap", CloneAt: 24, Cloned: true, SetupAt: 19, SetUp: true, HookedAt: 20, Owes: true, Key: "start-key"}
	r.Tools = []core.ToolBinding{{Name: "t", Function: "größer", TimeoutSeconds: 21}}
	r.Bearers, r.Files, r.Watched = []string{"00", "ff"}, &core.RunFiles{Key: "k", Version: "v", Bytes: 22, SHA256: "0f"}, true
	r.Hooks, r.Snapshots, r.IdleSeconds = core.HookPlan{Ready: "f", Destroyed: "g"}, core.SnapshotsAfterRun, 23
	return r
}

// intent is a launch that has been asked for.
func intent(id core.InstanceID) core.LedgerRow {
	return core.LedgerRow{
		Instance: id, Key: "key-" + core.SandboxKey(id), Provider: "fargate", Tenant: "acme", Run: "r1",
		State: core.LedgerIntent, LaunchUntil: 61_000, Cluster: "arn:cluster", DueAt: 120_000, UpdatedAt: 1000,
	}
}

// sandbox is an instance record as a launch leaves it.
func sandbox(id core.InstanceID) core.Sandbox {
	return core.Sandbox{
		Key: "key-" + core.SandboxKey(id), Instance: id, TaskARN: "arn:task/" + string(id), Cluster: "arn:cluster",
		Container: "agent", LatestRun: "r1", CreatedAt: 1000, UpdatedAt: 1000,
		Material: core.KeyMaterial{Provider: "fargate", Definition: "d", Tenant: "acme", Thread: "thread", WorkspaceHash: "w"},
	}
}

// wholeSandbox is an instance record with every member set.
func wholeSandbox(id core.InstanceID) core.Sandbox {
	box := sandbox(id)
	box.Material.Run = "r1"
	box.HoldUntil, box.UpdatedAt, box.Reclaiming, box.IdleSince, box.DueAt = 1, 2, "attempt", 4, 5
	box.Exec = core.ExecHold{ExecHolder: core.ExecHolder{By: "tail:r1", Epoch: 6}, Until: 3}
	box.LatestSnapshot = "snapshot"
	return box
}

// show writes a value with what it points to.
func show(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%+v", v)
	}
	return string(text)
}

// tb is what the checks need of testing.TB, which a property's T is not.
type tb interface {
	Helper()
	Context() context.Context
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}
