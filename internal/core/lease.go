package core

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// lease takes a thread's writer lease for owner, or renews the owner's own.
func (k *Keeper) lease(ctx context.Context, key ThreadKey, owner string) (Thread, error) {
	return k.leaseOf(ctx, Thread{ThreadKey: key}, owner)
}

// leaseOf is lease of a thread that was read a moment ago.
func (k *Keeper) leaseOf(ctx context.Context, was Thread, owner string) (Thread, error) {
	key, now := was.ThreadKey, nowMillis()
	th, err := k.Threads.UpdateThread(ctx, key, AcquireLease{
		Owner: owner, Now: now, Until: leaseUntil(now), Held: was.Lease.Owner == owner && was.Lease.Live(now),
	})
	if err != nil && !Refused(err) {
		return Thread{}, fmt.Errorf("take lease of thread %s: %w", key, err)
	}
	return th, err
}

// renew prolongs the lease of a writer, or tells that it is lost.
func (k *Keeper) renew(ctx context.Context, w Writer) error {
	now := nowMillis()
	_, err := k.Threads.UpdateThread(ctx, w.ThreadKey, RenewLease{Owner: w.Owner, Fence: w.Fence, Now: now, Until: leaseUntil(now)})
	return err
}

// giveBack releases a lease, whether or not it is still the writer's. What comes of it
// is no matter to what was done: a lease ends by itself.
func (k *Keeper) giveBack(ctx context.Context, w Writer) error {
	_, err := k.Threads.UpdateThread(context.WithoutCancel(ctx), w.ThreadKey, ReleaseLease{Owner: w.Owner, Fence: w.Fence})
	return ignoreRefused(err)
}

// under does something under a lease of its own and gives it back. Of several errors
// the first one counts.
func (k *Keeper) under(ctx context.Context, key ThreadKey, owner string, do func(Writer) error) error {
	th, err := k.lease(ctx, key, owner)
	if err != nil {
		return err
	}
	err = do(th.Writer())
	if late := k.giveBack(ctx, th.Writer()); err == nil && late != nil {
		return fmt.Errorf("give back lease of thread %s: %w", key, late)
	}
	return err
}

// releases reports whether a lease ends with the step that it was taken for.
func releases(owner string) bool { return strings.HasPrefix(owner, OwnerSave) }

// checkThread refuses an id that no key could hold.
func checkThread(key ThreadKey) error {
	if key.Tenant == "" || key.Thread == "" {
		return invalid("invalid-id", "tenant and thread: want at least one character, got %q and %q", key.Tenant, key.Thread)
	}
	if err := checkIDs(key.Tenant, "thread", string(key.Thread)); err != nil {
		return invalid("invalid-id", "%v", err)
	}
	return nil
}

// checkCheckpoint refuses an id that no key could hold.
func checkCheckpoint(tenant TenantID, id CheckpointID) error {
	if id == "" {
		return invalid("invalid-id", "checkpoint: want at least one character, got none")
	}
	// The id that is made of a run's has a prefix more than its run.
	if err := checkIDs(tenant, "checkpoint", strings.TrimPrefix(string(id), AutomaticPrefix)); err != nil {
		return invalid("invalid-id", "%v", err)
	}
	return nil
}

// AutomaticPrefix begins the id of the checkpoint that is made at the end of a run; the
// run's id follows.
const AutomaticPrefix = "checkpoint-"

// refusalOf names why a conditional write was refused, empty for any other error.
func refusalOf(err error) string {
	if e, ok := errors.AsType[*RefusedError](err); ok {
		return e.Why
	}
	return ""
}

func refuse(op, record, why string) error { return &RefusedError{Op: op, Record: record, Why: why} }
