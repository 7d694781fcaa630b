package core

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
)

// ForgetThread empties a thread's item under its lease: no head, conversation, pending run
// or step is left. What carries on stays, for neither may come again (I11): the fence, and
// the version of the conversation. Objects of older fences are being collected from then on.
type ForgetThread struct {
	Owner string
	Fence int64
	Seen  int64 // the version of the conversation as read
	Now   Millis
}

// Name is "forget thread".
func (ForgetThread) Name() string { return "forget thread" }

// Apply: the lease is live and mine, the conversation as read.
func (t ForgetThread) Apply(th Thread) (Thread, error) {
	why := lost(th, t.Owner, t.Fence, t.Now)
	if why == "" {
		why = failing(check{th.Conversation.Version == t.Seen, "stale-conversation"})
	}
	if why != "" {
		return threadRefusal(t, th, why)
	}
	th.Head, th.Conversation, th.PendingRuns, th.WorkspaceLost, th.Step = "", t.Next(), nil, nil, nil
	th.Floor, th.UpdatedAt = t.Fence, t.Now
	return th, nil
}

// Next is the conversation that is left: none, under the version after that which was.
func (t ForgetThread) Next() Conversation {
	if t.Seen == 0 {
		return Conversation{}
	}
	return Conversation{Version: t.Seen + 1}
}

// Landed: the thread is empty under my floor.
func (t ForgetThread) Landed(th Thread) bool {
	return th.Floor == t.Fence && th.Head == "" && th.Conversation.Version == t.Next().Version && th.Conversation.Object.Key == "" &&
		th.Step == nil && len(th.PendingRuns) == 0 && th.WorkspaceLost == nil
}

// DeleteThreadRequest asks for a thread to be deleted: its checkpoints, conversation,
// artifacts and objects, but for what forks of it need.
type DeleteThreadRequest struct {
	ThreadKey
	Apply bool `json:"apply,omitempty"` // else it is only counted
	// UnusedSince, if not zero, refuses a thread that was used since as "used".
	UnusedSince Millis `json:"unusedSince,omitempty"`
}

// DeleteThreadReport says what was, or would be, deleted.
type DeleteThreadReport struct {
	Checkpoints  int    `json:"checkpoints"`
	Artifacts    int    `json:"artifacts"`
	Conversation bool   `json:"conversation"`
	Objects      int    `json:"objects"` // that nothing needs without the thread
	Bytes        int64  `json:"bytes"`
	Kept         int    `json:"kept"` // objects that forks of it need
	LastUsed     Millis `json:"lastUsed,omitempty"`
	Deleted      int    `json:"deleted"` // objects
}

// DeleteThread deletes a thread, or counts what that would delete. It is refused as
// "live-run" while a run of the thread has not ended, or owes its checkpoint; as
// "writer-conflict" while somebody holds its lease; as "observe", "frozen" or "held" while
// an operator keeps it back. Carried out again after a crash it goes on.
//
// Order: the item is emptied first, so that no head ever names what is gone; then the
// records of checkpoints and artifacts go, then objects that nothing names, as a
// collection finds them. A crash leaves garbage, which the daily collection removes too.
func (k *Keeper) DeleteThread(ctx context.Context, q DeleteThreadRequest) (report DeleteThreadReport, err error) {
	if err := checkThread(q.ThreadKey); err != nil {
		return DeleteThreadReport{}, err
	}
	if report, err = k.planDeletion(ctx, q); err != nil || !q.Apply {
		return report, err
	}
	// An installation that observes writes nothing, not even a lease.
	if why, err := k.settings(ctx, ofRetention); err != nil || why != "" {
		return report, cmp.Or(err, refuse("delete", "thread "+q.ThreadKey.String(), why))
	}
	err = k.under(ctx, q.ThreadKey, OwnerCollect+rand.Text(), func(w Writer) error {
		if err := k.deletable(ctx, q); err != nil {
			return err
		}
		if err := k.forget(ctx, w); err != nil {
			return err
		}
		report.Deleted, err = k.sweepOut(ctx, w)
		return err
	})
	return report, err
}

// sweepOut removes the objects of a thread that has been forgotten. The root of a fork goes
// once the fork has let go of what others own, in a second round.
func (k *Keeper) sweepOut(ctx context.Context, w Writer) (deleted int, err error) {
	for again := true; again; {
		c := &collection{k: k, writer: w, young: true}
		err := c.apply(ctx)
		deleted += c.report.Deleted
		if err == nil && c.report.Withheld != "" {
			err = refuse("delete", "thread "+w.ThreadKey.String(), c.report.Withheld)
		}
		if err != nil {
			return deleted, err
		}
		again = c.report.Unpinned > 0
	}
	return deleted, nil
}

// deletable reads, under the lease, whether anything speaks against a deletion.
func (k *Keeper) deletable(ctx context.Context, q DeleteThreadRequest) error {
	if err := k.allowed(ctx, "delete", q.ThreadKey, ofRetention); err != nil {
		return err
	}
	_, err := k.lastRun(ctx, q)
	return err
}

// lastRun is when a run of the thread began or ended last; it is refused while one lives.
func (k *Keeper) lastRun(ctx context.Context, q DeleteThreadRequest) (last Millis, err error) {
	runs, err := k.History.ThreadRuns(ctx, q.ThreadKey)
	if err != nil {
		return 0, err
	}
	for _, at := range runs {
		r, err := k.Runs.Run(ctx, at)
		switch {
		case isNotFound(err):
			continue
		case err != nil:
			return 0, err
		case !r.Status.Terminal() || r.Row != RowNone:
			return 0, refuse("delete", "thread "+q.ThreadKey.String(), "live-run")
		}
		last = max(last, r.StartedAt, r.FinishedAt)
	}
	if q.UnusedSince != 0 && last >= q.UnusedSince {
		return last, refuse("delete", "thread "+q.ThreadKey.String(), "used")
	}
	return last, nil
}

// planDeletion counts what a deletion would delete. Whatever is stored of a thread says
// when it was used: a collection stores nothing.
func (k *Keeper) planDeletion(ctx context.Context, q DeleteThreadRequest) (DeleteThreadReport, error) {
	th, err := k.Threads.Thread(ctx, q.ThreadKey)
	if err != nil {
		return DeleteThreadReport{}, err
	}
	if th.Lease.Live(nowMillis()) {
		return DeleteThreadReport{}, refuse("delete", "thread "+q.ThreadKey.String(), "writer-conflict")
	}
	last, err := k.lastRun(ctx, q)
	if err != nil {
		return DeleteThreadReport{}, err
	}
	report := DeleteThreadReport{LastUsed: last, Conversation: th.Conversation.Object.Key != ""}
	c := &collection{k: k, writer: Writer{ThreadKey: q.ThreadKey, Fence: th.Fence + 1}, young: true, forgotten: true}
	if err := c.plan(ctx); err != nil {
		return report, err
	}
	report.Objects, report.Bytes, report.Kept = c.report.Garbage, c.report.Reclaimed, c.report.Needed
	report.LastUsed = max(last, c.newest)
	if q.UnusedSince != 0 && report.LastUsed >= q.UnusedSince {
		return report, refuse("delete", "thread "+q.ThreadKey.String(), "used")
	}
	all, artifacts, err := k.recorded(ctx, q.ThreadKey)
	report.Checkpoints, report.Artifacts = len(all), len(artifacts)
	return report, err
}

// recorded lists the records of a thread beside its item.
func (k *Keeper) recorded(ctx context.Context, key ThreadKey) ([]Checkpoint, []Artifact, error) {
	all, err := k.Threads.Checkpoints(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	artifacts, err := k.Threads.Artifacts(ctx, key)
	return all, artifacts, err
}

// forget empties the thread's item and removes its other records.
func (k *Keeper) forget(ctx context.Context, w Writer) error {
	th, err := k.Threads.Thread(ctx, w.ThreadKey)
	if err != nil {
		return err
	}
	t := ForgetThread{Owner: w.Owner, Fence: w.Fence, Seen: th.Conversation.Version, Now: nowMillis()}
	if _, err := k.Threads.UpdateThread(ctx, w.ThreadKey, t); err != nil {
		return err
	}
	all, artifacts, err := k.recorded(ctx, w.ThreadKey)
	if err != nil {
		return err
	}
	for some := range slices.Chunk(all, MaxTrim) {
		if err := k.drop(ctx, w, Trim{Checkpoints: some}); err != nil {
			return err
		}
	}
	for some := range slices.Chunk(artifacts, MaxTrim) {
		if err := k.drop(ctx, w, Trim{Artifacts: some}); err != nil {
			return err
		}
	}
	return nil
}

// drop removes records, unless an operator has spoken since.
func (k *Keeper) drop(ctx context.Context, w Writer, t Trim) error {
	if err := k.renew(ctx, w); err != nil {
		return err
	}
	if err := k.allowed(ctx, "delete", w.ThreadKey, ofRetention); err != nil {
		return err
	}
	t.Writer, t.Now = w, nowMillis()
	return k.Threads.Trim(ctx, t)
}
