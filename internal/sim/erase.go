package sim

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// How a thread is deleted.
const (
	eraseCounts = iota
	eraseAll
	eraseUnused // if nobody has used it for a while
)

// unusedFor is that while, and runsLag for how long a list of a thread's runs lacks one
// that begins: nearly as long as it may.
const (
	unusedFor = 8 * time.Minute
	runsLag   = core.IndexLag - 30*time.Second
)

// erasure is what an actor is to delete; zero: nothing.
type erasure struct {
	key         core.ThreadKey
	unusedSince core.Millis // zero: however lately it was used
}

// ThreadRuns lacks runs that have begun just now, where threads are deleted.
func (p ports) ThreadRuns(ctx context.Context, key core.ThreadKey) ([]core.RunKey, error) {
	keys, err := p.skewed.ThreadRuns(ctx, key)
	if !p.w.config.Deletes || err != nil {
		return keys, err
	}
	runs := p.w.store.State().Runs
	return slices.DeleteFunc(keys, func(k core.RunKey) bool { return now() < runs[k].StartedAt.Add(runsLag-2*p.w.config.Skew) }), nil
}

// deleteThread deletes a thread, or counts what that would delete.
func (w *world) deleteThread(ctx context.Context, a *actor, key core.ThreadKey, how int) {
	q := core.DeleteThreadRequest{ThreadKey: key, Apply: how != eraseCounts}
	if how == eraseUnused {
		q.UnusedSince = now().Add(-unusedFor)
		a.erases.unusedSince = q.UnusedSince.Add(a.skew)
	}
	a.erases.key = key
	k := w.keeper(a)
	k.Objects = w.ports(a) // as old as they are: that says when the thread was used
	report, err := k.DeleteThread(ctx, q)
	switch {
	case err != nil:
		w.met("delete thread refused: " + reasonOf(err))
	case report.Already:
		w.met("delete thread: nothing")
	case q.Apply:
		w.met("thread deleted")
	}
}

// judgeForgotten: a thread is emptied only while nobody needs what it has: no run of it
// lives or owes anything, no sandbox is kept for its next one, and no operator has frozen
// the installation (I5, I13). Where it may only go because it is not used, it is not.
func (w *world) judgeForgotten(a *actor, before, after mem.State) {
	key := a.erases.key
	if before.Threads[key].Floor == after.Threads[key].Floor {
		return // it was refused
	}
	of := func(r core.Run) bool { return r.Tenant == key.Tenant && r.Thread == key.Thread }
	for _, r := range before.Runs {
		switch {
		case !of(r):
		case !r.Status.Terminal():
			w.accuse("%s deletes the thread of run %s, which lives (I5)", a.name, r.RunKey)
		case r.Row != core.RowNone, r.Checkpoint.Owes():
			w.accuse("%s deletes the thread of run %s, which owes its workspace or its sandbox's end (I5)", a.name, r.RunKey)
		}
		if used := max(r.StartedAt, r.FinishedAt); of(r) && w.usedSince(a, used) {
			w.accuse("%s deletes the thread of run %s as unused (I5)", a.name, r.RunKey)
		}
	}
	for _, row := range before.Rows {
		if r := before.Runs[core.RunKey{Tenant: row.Tenant, Run: row.Owed}]; row.State != core.LedgerClosed && row.Owed != "" && of(r) {
			w.accuse("%s deletes the thread of run %s, whose workspace a task owes still (I5)", a.name, r.RunKey)
		}
	}
	for _, box := range before.Sandboxes {
		if box.Material.Tenant == key.Tenant && box.Material.Thread == key.Thread {
			w.accuse("%s deletes thread %s, and its sandbox is kept (I5)", a.name, key)
		}
	}
	if w.oracle.frozen && w.oracle.frozenAt <= a.begun {
		w.accuse("%s deletes thread %s, although all is frozen since before it came (I13)", a.name, key)
	}
	objects, err := w.store.Objects(context.Background(), core.ThreadPrefix(key))
	if err != nil {
		w.accuse("list objects of thread %s: %v", key, err)
	}
	for _, o := range objects {
		if w.usedSince(a, o.ModifiedAt) {
			w.accuse("%s deletes thread %s as unused, and %s is of late (I5)", a.name, key, o.Key)
		}
	}
}

// usedSince reports whether a use at a time keeps a from deleting what is not used any
// more: it was before a came, and not before what a was told.
func (w *world) usedSince(a *actor, at core.Millis) bool {
	since := a.erases.unusedSince
	return since != 0 && at >= since.Add(2*w.config.Skew) && at < a.came.Add(-2*w.config.Skew)
}

// eraseAll deletes every thread once everything is over. In a second round nothing of them
// is left: no fork needs it any more.
func (w *world) eraseAll() {
	if !w.config.Deletes || w.broken() {
		return
	}
	w.pass(core.IndexLag + core.LeaseLife)
	var keys []core.ThreadKey
	for key := range w.store.State().Threads {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b core.ThreadKey) int { return compareText(a.String(), b.String()) })
	for range 2 {
		for _, key := range keys {
			w.through(w.spawn(role{1 << 22, "keeper", "sound deletion of " + key.String(), 0}, keeperTimeout, func(ctx context.Context, a *actor) {
				a.erases.key = key
				if _, err := w.keeper(a).DeleteThread(ctx, core.DeleteThreadRequest{ThreadKey: key, Apply: true}); err != nil {
					w.accuse("a sound deletion of thread %s: %v", key, err)
				}
			}))
		}
	}
	state := w.store.State()
	for _, key := range keys {
		for object := range state.Blobs {
			if strings.HasPrefix(object, core.ThreadPrefix(key)) && !w.broken() {
				w.accuse("of thread %s, which is deleted, %s stays for ever", key, object)
			}
		}
	}
}
