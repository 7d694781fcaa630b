package core

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"
)

// ForgetThread empties a thread's item under its lease: no head, conversation, pending run
// or step is left. What carries on stays, for neither may come again (I11): the fence, and
// the version of the conversation. Objects of older fences are being collected from then on.
type ForgetThread struct {
	Owner string
	Fence int64
	// Head, Seen and BegunAt are as read when it was found that nobody uses the thread. What
	// else could be written since needs a fence of its own.
	Head    CheckpointID
	Seen    Conversation
	BegunAt Millis
	Now     Millis
}

// Name is "forget thread".
func (ForgetThread) Name() string { return "forget thread" }

// Apply: the lease is live and mine; head and conversation as read, and no run begun since.
func (t ForgetThread) Apply(th Thread) (Thread, error) {
	why := lost(th, t.Owner, t.Fence, t.Now)
	if why == "" {
		why = failing(
			check{th.Conversation.Version == t.Seen.Version, "stale-conversation"},
			check{th.Head == t.Head && th.BegunAt == t.BegunAt, used},
		)
	}
	if why != "" {
		return threadRefusal(t, th, why)
	}
	th.Head, th.Conversation, th.PendingRuns, th.WorkspaceLost, th.Step = "", t.Next(), nil, nil, nil
	th.Floor, th.UpdatedAt = t.Fence, t.Now
	return th, nil
}

// Next is the conversation that is left: none, under the version after that which was. Where
// none was left already its version stays, which hosts know.
func (t ForgetThread) Next() Conversation {
	if t.Seen.Object.Key == "" {
		return Conversation{Version: t.Seen.Version}
	}
	return Conversation{Version: t.Seen.Version + 1}
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
	// Already says that nothing was left to delete; then nothing is written.
	Already bool `json:"already,omitempty"`
}

// Why a deletion is refused because of its thread's use.
const (
	used        = "used"
	liveRun     = "live-run"
	keptSandbox = "kept-sandbox"
)

// IndexLag is for how long after a run began the list of its thread's runs may lack it, by
// far: until then the thread is in use, whatever the list says.
const IndexLag = 5 * time.Minute

// deletion is one under way: what was found when nobody used the thread, and is a condition
// of the write that empties it.
type deletion struct {
	k      *Keeper
	q      DeleteThreadRequest
	thread Thread
	newest Millis // when an object was stored last
	report DeleteThreadReport
	holds  *watch
}

func (d *deletion) refused(why string) error {
	return refuse("delete", "thread "+d.q.ThreadKey.String(), why)
}

// DeleteThread deletes a thread, or counts what that would delete. It is refused as
// "live-run" while a run of the thread has not ended, or owes its checkpoint, or began so
// recently that nobody can tell; as "kept-sandbox" while its sandbox is kept warm, in which
// all of it would come back with the next run; as "used" where anything was written since it was looked
// at; as "writer-conflict" while somebody holds its lease; as "observe", "frozen" or "held"
// while an operator keeps it back. Carried out again after a crash it goes on, and where
// nothing is left it writes nothing.
//
// The list of a thread's runs lags. A run that it lacks has written [Thread.BegunAt] before
// its own record: either that is read here and is younger than [IndexLag], or it is written
// later and the write that empties the item is refused. Who writes under a lease has a fence
// of his own, so that the deletion's is not the one after that which was read. A start that
// meets the deletion's lease waits for it.
//
// Order: the item is emptied first, so that no head ever names what is gone; then the
// records of checkpoints and artifacts go, then objects that nothing names, as a
// collection finds them. A crash leaves garbage, which the daily collection removes too.
func (k *Keeper) DeleteThread(ctx context.Context, q DeleteThreadRequest) (DeleteThreadReport, error) {
	if err := checkThread(q.ThreadKey); err != nil {
		return DeleteThreadReport{}, err
	}
	d := &deletion{k: k, q: q, holds: k.watch(Writer{ThreadKey: q.ThreadKey})}
	if err := d.plan(ctx); err != nil || !q.Apply || d.report.Already {
		return d.report, err
	}
	// An installation that observes writes nothing, not even a lease.
	if why, err := k.settings(ctx, ofRetention); err != nil || why != "" {
		return d.report, cmp.Or(err, d.refused(why))
	}
	err := k.under(ctx, q.ThreadKey, OwnerCollect+rand.Text(), func(w Writer) (err error) {
		d.holds = k.watch(w)
		if err := d.permit(ctx); err != nil {
			return err
		}
		if err := d.forget(ctx); err != nil {
			return err
		}
		d.report.Deleted, err = d.sweepOut(ctx)
		return err
	})
	return d.report, err
}

// sweepOut removes the objects of a thread that has been forgotten. The root of a fork goes
// once the fork has let go of what others own, in a second round.
func (d *deletion) sweepOut(ctx context.Context) (deleted int, err error) {
	for again := true; again; {
		c := &collection{k: d.k, writer: d.holds.writer, holds: d.holds, young: true}
		err := c.apply(ctx)
		deleted += c.report.Deleted
		if err == nil && c.report.Withheld != "" {
			err = d.refused(c.report.Withheld)
		}
		if err != nil {
			return deleted, err
		}
		again = c.report.Unpinned > 0
	}
	return deleted, nil
}

// permit reads, under the lease, whether anything speaks against the deletion: an operator,
// or a use since the plan that its list or fence tells. What is written from now on without
// a lease, the emptying of the item sees.
func (d *deletion) permit(ctx context.Context) error {
	if d.holds.writer.Fence != d.thread.Fence+1 {
		return d.refused(used)
	}
	if err := d.holds.allowed(ctx, "delete", ofRetention); err != nil {
		return err
	}
	if _, err := d.lastRun(ctx); err != nil {
		return err
	}
	objects, err := d.k.Objects.Objects(ctx, ThreadPrefix(d.q.ThreadKey))
	if err != nil {
		return fmt.Errorf("delete thread %s: %w", d.q.ThreadKey, err)
	}
	if slices.ContainsFunc(objects, func(o ObjectInfo) bool { return o.ModifiedAt > d.newest }) {
		return d.refused(used)
	}
	return nil
}

// lastRun is when a run of the thread began or ended last; it is refused while one lives,
// or left a workspace that is to be stored or to serve the next one.
func (d *deletion) lastRun(ctx context.Context) (last Millis, err error) {
	keys, err := d.k.History.ThreadRuns(ctx, d.q.ThreadKey)
	if err != nil {
		return 0, err
	}
	lives, kept := false, map[SandboxKey]bool{}
	err = d.holds.read(ctx, keys, func(r Run) (done bool) {
		lives = !r.Status.Terminal() || r.Row != RowNone || r.Checkpoint.State == CheckpointMoved
		last = max(last, r.StartedAt, r.FinishedAt)
		if r.ReclaimOutcome == ReclaimIdled {
			kept[r.SandboxKey] = true
		}
		return lives
	})
	switch {
	case err != nil:
		return 0, err
	case lives:
		return 0, d.refused(liveRun)
	}
	if err := d.unused(last); err != nil {
		return 0, err
	}
	return last, d.bare(ctx, kept)
}

// bare refuses a thread one of whose sandboxes is kept. Their keys are of the thread alone.
func (d *deletion) bare(ctx context.Context, kept map[SandboxKey]bool) error {
	for key := range kept {
		_, err := d.k.Sandboxes.Sandbox(ctx, key)
		switch {
		case err == nil:
			return d.refused(keptSandbox)
		case !isNotFound(err):
			return err
		}
	}
	return nil
}

// unused refuses a thread that was used since it may have been, at the latest then.
func (d *deletion) unused(last Millis) error {
	if d.q.UnusedSince != 0 && last >= d.q.UnusedSince {
		return d.refused(used)
	}
	return nil
}

// plan counts what the deletion would delete, and notes what it goes by. Order: the item
// before the list of runs. Whatever is stored of a thread says when it was used: a
// collection stores nothing.
func (d *deletion) plan(ctx context.Context) (err error) {
	if d.thread, err = d.k.Threads.Thread(ctx, d.q.ThreadKey); err != nil {
		return err
	}
	th, now := d.thread, nowMillis()
	switch {
	case th.Lease.Live(now):
		return d.refused("writer-conflict")
	case th.BegunAt != 0 && now.Sub(th.BegunAt) < IndexLag:
		return d.refused(liveRun)
	}
	last, err := d.lastRun(ctx)
	if err != nil {
		return err
	}
	last = max(last, th.BegunAt)
	d.report.LastUsed, d.report.Conversation = last, th.Conversation.Object.Key != ""
	c := &collection{k: d.k, writer: Writer{ThreadKey: d.q.ThreadKey, Fence: th.Fence + 1}, young: true, forgotten: true}
	if err := c.plan(ctx); err != nil {
		return err
	}
	d.report.Objects, d.report.Bytes, d.report.Kept = c.report.Garbage, c.report.Reclaimed, c.report.Needed
	d.newest, d.report.LastUsed = c.newest, max(last, c.newest)
	if err := d.unused(d.report.LastUsed); err != nil {
		return err
	}
	all, artifacts, err := d.k.recorded(ctx, d.q.ThreadKey)
	d.report.Checkpoints, d.report.Artifacts = len(all), len(artifacts)
	d.report.Already = err == nil && d.nothing()
	return err
}

// nothing reports whether nothing is left to delete: no record, no object but those that
// forks need, and no thread of which this one needs anything.
func (d *deletion) nothing() bool {
	th, r := d.thread, d.report
	bare := th.Head == "" && !r.Conversation && len(th.PendingRuns) == 0 && th.WorkspaceLost == nil && th.Step == nil
	return bare && (th.Fork == nil || len(th.Fork.Owners) == 0) && r.Checkpoints+r.Artifacts+r.Objects == 0
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

// forget empties the thread's item, as it was planned, and removes its other records.
func (d *deletion) forget(ctx context.Context) error {
	w, th := d.holds.writer, d.thread
	t := ForgetThread{Owner: w.Owner, Fence: w.Fence, Head: th.Head, Seen: th.Conversation, BegunAt: th.BegunAt, Now: nowMillis()}
	if _, err := d.k.Threads.UpdateThread(ctx, w.ThreadKey, t); err != nil {
		return err
	}
	all, artifacts, err := d.k.recorded(ctx, w.ThreadKey)
	if err != nil {
		return err
	}
	for some := range slices.Chunk(all, MaxTrim) {
		if err := d.drop(ctx, Trim{Checkpoints: some}); err != nil {
			return err
		}
	}
	for some := range slices.Chunk(artifacts, MaxTrim) {
		if err := d.drop(ctx, Trim{Artifacts: some}); err != nil {
			return err
		}
	}
	return nil
}

// drop removes records, unless an operator has spoken since.
func (d *deletion) drop(ctx context.Context, t Trim) error {
	if err := d.k.renew(ctx, d.holds.writer); err != nil {
		return err
	}
	if err := d.holds.allowed(ctx, "delete", ofRetention); err != nil {
		return err
	}
	t.Writer, t.Now = d.holds.writer, nowMillis()
	return d.k.Threads.Trim(ctx, t)
}
