package sim

import (
	"slices"
	"strings"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// met counts that something came to happen.
func (w *world) met(what string) {
	w.countsMu.Lock()
	defer w.countsMu.Unlock()
	w.counts[what]++
}

// fenced are the writes of a thread that need its fence.
var fenced = map[string]bool{
	"commit": true, "delete head": true, "trim": true, "raise floor": true, "begin step": true, "note step": true, "end step": true,
	"unpin": true, "fork": true, "renew lease": true, "doubt step": true, "forget thread": true,
}

// unleased are those of them that need no lease, as long as no other was taken.
var unleased = map[string]bool{"end step": true, "doubt step": true}

// judgeKept holds the rules of threads and their checkpoints against what a's call
// changed.
func (w *world) judgeKept(a *actor, call string, before, after mem.State) {
	if w.config.Session {
		w.judgeDriver(a, call, before, after)
	}
	for key, now := range after.Threads {
		was := before.Threads[key]
		w.judgeLease(a, call, was, now)
		if is := now.Conversation; is.Object != was.Conversation.Object && is.Version != was.Conversation.Version+1 {
			w.accuse("%s saves version %d of the conversation of %s after version %d", a.name, is.Version, key, was.Conversation.Version)
		}
		same := was.UpdatedAt == now.UpdatedAt && was.Head == now.Head && was.Fence == now.Fence && len(before.Checkpoints[key]) == len(after.Checkpoints[key])
		if fenced[call] && !(same && sameStep(was, now)) {
			w.judgeFence(a, call, was, now)
		}
	}
	for key, all := range after.Checkpoints {
		for id := range all {
			if _, had := before.Checkpoints[key][id]; !had {
				w.published(a, call, before, after.Checkpoints[key][id])
			}
		}
	}
	switch call {
	case "forget thread":
		w.judgeForgotten(a, before, after)
		w.judgeObjects(a.name, after)
	case "fork":
		w.judgeFork(a, before, after)
		w.judgeObjects(a.name, after)
	case "delete head":
		w.judgeDeleted(a, before, after)
		w.judgeObjects(a.name, after)
	case "commit", "delete object", "unpin", "trim", "put conversation", "put artifact":
		w.judgeObjects(a.name, after)
	}
}

func sameStep(a, b core.Thread) bool {
	return a.Step == b.Step || a.Step != nil && b.Step != nil && a.Step.Token == b.Step.Token && a.Step.State == b.Step.State && a.Step.SeenAt == b.Step.SeenAt
}

// judgeLease: a lease that lives is nobody else's, and each that is taken has a fence of
// its own (I11). Nothing of the background takes a live run's.
func (w *world) judgeLease(a *actor, call string, was, now core.Thread) {
	switch {
	case now.Fence < was.Fence || now.Floor < was.Floor:
		w.accuse("%s takes back a fence of thread %s (I11)", a.name, now.ThreadKey)
	case now.Lease.Owner == "" || now.Lease.Owner == was.Lease.Owner:
	case now.Fence == was.Fence:
		w.accuse("%s takes the lease of thread %s under the fence of %q (I11)", a.name, now.ThreadKey, was.Lease.Owner)
	case call == "acquire lease" && was.Lease.Live(moment().Add(2*w.config.Skew)):
		w.accuse("%s takes the lease of thread %s, which is that of %q (I11)", a.name, now.ThreadKey, was.Lease.Owner)
	}
}

func moment() core.Millis { return now() }

// judgeFence: whoever writes a thread has its newest fence, and its lease lives (I11).
func (w *world) judgeFence(a *actor, call string, was, now core.Thread) {
	if was.Fence == 0 && now.Fence == 0 {
		return
	}
	mine, ok := a.fences[now.ThreadKey]
	switch {
	case !ok || mine != was.Fence:
		w.accuse("%s: %s in thread %s under fence %d, and the newest is %d (I11)", a.name, call, now.ThreadKey, mine, was.Fence)
	case !unleased[call] && was.Lease.Owner == "":
		w.accuse("%s: %s in thread %s, whose lease was given back (I11)", a.name, call, now.ThreadKey)
	}
}

// published: a checkpoint is new, under an id that no other has.
func (w *world) published(a *actor, call string, before mem.State, c core.Checkpoint) {
	if call != "commit" && call != "fork" {
		w.accuse("%s: checkpoint %s comes by a %s", a.name, c.ID, call)
	}
	for key, all := range before.Checkpoints {
		if _, taken := all[c.ID]; taken && key.Tenant == c.Tenant {
			w.accuse("%s publishes %s in thread %s, and thread %s has it", a.name, c.ID, c.Thread, key)
		}
	}
	if c.Parent != before.Threads[c.ThreadKey].Head && c.ForkOf == "" {
		w.accuse("%s publishes %s after %q, and the head is %q (I11)", a.name, c.ID, c.Parent, before.Threads[c.ThreadKey].Head)
	}
	if w.keep.stored[c.ID] == nil {
		w.keep.stored[c.ID] = map[core.ThreadKey]bool{}
	}
	w.keep.stored[c.ID][c.ThreadKey] = true
}

// judgeDeleted: what is taken away as a head is one (CP-11).
func (w *world) judgeDeleted(a *actor, before, after mem.State) {
	for key, all := range before.Checkpoints {
		for id := range all {
			if _, there := after.Checkpoints[key][id]; !there && before.Threads[key].Head != id {
				w.accuse("%s deletes %s of thread %s, whose head is %s", a.name, id, key, before.Threads[key].Head)
			}
		}
	}
}

// isStored reports whether a checkpoint is stored, or was.
func (w *world) isStored(key core.ThreadKey, id core.CheckpointID) bool {
	_, ok := w.store.State().Checkpoints[key][id]
	return ok || w.keep.stored[id][key]
}

// judgeFork: a fork is whole or absent, and begins only in threads in which nothing has
// happened.
func (w *world) judgeFork(a *actor, before, after mem.State) {
	made := 0
	for _, b := range a.forks {
		key := core.ThreadKey{Tenant: w.runs[a.run].key.Tenant, Thread: b.Thread}
		_, had := before.Names[key.Tenant][b.ID]
		if _, has := after.Names[key.Tenant][b.ID]; had || !has {
			continue
		}
		made++
		if was := before.Threads[key]; was.Head != "" || was.Conversation.Version != 0 || was.FirstRun != "" || len(before.Checkpoints[key]) > 0 {
			w.accuse("%s forks into thread %s, which is not empty", a.name, key)
		}
	}
	if made != 0 && made != len(a.forks) {
		w.accuse("%s forks %d of %d branches", a.name, made, len(a.forks))
	}
}

// judgeObjects: every checkpoint can be restored, its head above all, and what a pin
// protects is there; a checkpoint that needs what another thread owns has a pin on it.
func (w *world) judgeObjects(who string, state mem.State) {
	in := storage{w: w, who: who, state: state, pinned: map[core.ThreadKey]map[core.ThreadKey]bool{}}
	for _, p := range state.Pins {
		if in.pinned[p.Owner] == nil {
			in.pinned[p.Owner] = map[core.ThreadKey]bool{}
		}
		in.pinned[p.Owner][p.By] = true
		if what := "the pin of " + p.By.String(); in.has(what, p.Manifest.Key) {
			in.judgePacks(what, p.By, state.Blobs[p.Manifest.Key])
		}
	}
	for key, th := range state.Threads {
		if th.Conversation.Object.Key != "" {
			in.has("thread "+key.String(), th.Conversation.Object.Key)
		}
		for _, one := range state.Artifacts[key] {
			in.has("an artifact of thread "+key.String(), one.Object.Key)
		}
		if _, ok := state.Checkpoints[key][th.Head]; th.Head != "" && !ok {
			w.accuse("%s: the head of thread %s is %s, which does not exist (I11)", who, key, th.Head)
		}
		for _, c := range state.Checkpoints[key] {
			in.judgeCheckpoint(c)
		}
	}
}

// storage is all that is kept at one moment, with which thread's checkpoints pin which
// other's, and who last changed any of it.
type storage struct {
	w      *world
	who    string
	state  mem.State
	pinned map[core.ThreadKey]map[core.ThreadKey]bool
}

// has accuses what names an object that is not there.
func (in storage) has(what, key string) bool {
	_, ok := in.state.Blobs[key]
	if !ok {
		in.w.accuse("%s: %s names %s, which is not there (I5)", in.who, what, key)
	}
	return ok
}

func (in storage) judgeCheckpoint(c core.Checkpoint) {
	what := "checkpoint " + string(c.ID)
	if c.Conversation.Object.Key != "" {
		in.has(what, c.Conversation.Object.Key)
	}
	for _, one := range c.Artifacts {
		in.has(what, one.Object.Key)
	}
	if !in.has(what, c.Manifest.Key) {
		return
	}
	data := in.state.Blobs[c.Manifest.Key]
	if digestOf(data) != c.Manifest.SHA256 {
		in.w.accuse("%s: the manifest of %s has other bytes (I12)", in.who, what)
	}
	for _, owner := range in.judgePacks(what, c.ThreadKey, data) {
		if !in.pinned[core.ThreadKey{Tenant: c.Tenant, Thread: owner}][c.ThreadKey] {
			in.w.accuse("%s: %s needs what thread %s owns, and no pin keeps it", in.who, what, owner)
		}
	}
	if name, ok := in.state.Names[c.Tenant][c.ID]; !ok || name.Thread != c.Thread {
		in.w.accuse("%s: the name of %s is that of thread %q", in.who, what, name.Thread)
	}
}

// judgePacks: all that a manifest names is there. It returns which other threads own some.
func (in storage) judgePacks(what string, of core.ThreadKey, manifest []byte) []core.ThreadID {
	r, err := decodeRoot(manifest)
	if err != nil {
		in.w.accuse("%s: %s: %v", in.who, what, err)
		return nil
	}
	var owners []core.ThreadID
	for _, p := range slices.Concat(r.Layers, r.Packs) {
		in.has(what, core.PackKey(of, p))
		if p.Owner != "" && p.Owner != of.Thread {
			owners = append(owners, p.Owner)
		}
	}
	return owners
}

// judgeLeaving: who has asked the keeper for something and is done keeps nobody waiting:
// of its own leases only that of an agent at work is left.
func (w *world) judgeLeaving(a *actor) {
	if a.faulty || a.p.Stopped() {
		return
	}
	for key, th := range w.store.State().Threads {
		working := th.Step != nil && th.Step.State == core.StepWorking && th.Step.Fence == th.Fence
		own := strings.HasPrefix(th.Lease.Owner, core.OwnerCollect) || strings.HasPrefix(th.Lease.Owner, core.OwnerSave)
		if a.fences[key] == th.Fence && own && !working && th.Lease.Live(now()) {
			w.accuse("%s is done, and keeps the lease of thread %s as %s", a.name, key, th.Lease.Owner)
		}
	}
}

// judgeWaits: a run whose host waits for the background waits for one step of it: who had
// the lease when the host first met it gives it back, or is at work still.
func (w *world) judgeWaits(key core.ThreadKey, refused bool, th core.Thread) {
	system := strings.HasPrefix(th.Lease.Owner, core.OwnerCollect)
	switch first, ok := w.keep.waits[key]; {
	case !refused || !system:
		delete(w.keep.waits, key)
	case !ok || first.owner != th.Lease.Owner:
		w.keep.waits[key] = wait{th.Lease.Owner, now().Add(w.longest())}
		w.met("a host waits for a collector")
	case now() > first.until:
		w.accuse("the host of a run in thread %s still waits for %s (I11)", key, th.Lease.Owner)
	}
}

// longest is how long a collector works at most: until its function is over, and then
// its lease.
func (w *world) longest() time.Duration { return hostTimeout(0) + core.LeaseLife }
