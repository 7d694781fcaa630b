package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// keeperTimeout bounds a request to the keeper, which may well outlive its lease. It is
// never over in the very moment in which a wait is.
const keeperTimeout = 20*time.Minute + 7*time.Millisecond

// branches is how many threads may be forked in each family.
const branches = 4

// relative is a thread of the run's family: its root for 0, then its branches.
func (w *world) relative(r *agentRun, n int) core.ThreadKey {
	key := w.threadKey(r)
	key.Thread = w.family(key.Thread)
	if n %= branches + 1; n > 0 {
		key.Thread += core.ThreadID(fmt.Sprintf("-b%d", n-1))
	}
	return key
}

// enterKeeper brings somebody who asks the keeper for something; N says of which thread
// of the family, and how, see the kinds.
func (w *world) enterKeeper(c Choice, r *agentRun) {
	key := w.relative(r, c.N)
	how := c.N / (branches + 1)
	do := map[Op]func(ctx context.Context, a *actor, key core.ThreadKey, how int){
		OpSave: w.saveByName, OpFork: w.fork, OpDeleteHead: w.deleteHead, OpKeep: w.retain, OpCollect: w.collectObjects, OpConverse: w.converse,
		OpVerify: w.verify, OpArtifact: w.addArtifact, OpErase: w.deleteThread,
	}[c.Op]
	if c.Op == OpSave || c.Op == OpVerify {
		key = w.threadKey(r) // where there are sandboxes
	}
	w.spawn(role{c.ID, "keeper", string(c.Op) + " of " + key.String(), c.Run}, keeperTimeout, func(ctx context.Context, a *actor) {
		do(ctx, a, key, how)
		w.judgeLeaving(a)
	})
}

// useful reports whether somebody finds something to ask the keeper for, as far as the
// records will say then.
func (w *world) useful(c Choice, at core.Millis) bool {
	r := w.runs[c.Run]
	th := w.oracle.threads[w.relative(r, c.N)]
	free := !th.Lease.Live(at)
	switch c.Op {
	case OpFork:
		empty := 0
		for n := range branches + 1 {
			if key := w.relative(r, n); w.oracle.threads[key].Empty() {
				empty++
			}
		}
		return th.Head != "" && empty > 0
	case OpDeleteHead:
		return th.Head != "" && free
	case OpKeep:
		return free && len(w.oracle.state.Checkpoints[th.ThreadKey]) > 1
	case OpCollect, OpErase:
		return free && th.Fence > 0
	case OpVerify:
		th = w.oracle.threads[w.threadKey(r)]
		return th.Head != "" && !th.Lease.Live(at)
	case OpSave:
		th = w.oracle.threads[w.threadKey(r)]
		return !th.Lease.Live(at) || th.Lease.Owner == w.ownerOf(r.key.Run)
	}
	return true
}

// ownerOf is as whom the host of a run writes its thread.
func (w *world) ownerOf(run core.RunID) string {
	if w.config.Session {
		return core.OwnerRun + string(run)
	}
	return string(run)
}

// boxOf is the sandbox of a thread, if it has one.
func (w *world) boxOf(key core.ThreadKey) (core.Sandbox, bool) {
	var found core.Sandbox
	for _, box := range w.store.State().Sandboxes {
		if box.Material.Tenant == key.Tenant && box.Material.Thread == key.Thread && (found.Key == "" || box.CreatedAt < found.CreatedAt || box.CreatedAt == found.CreatedAt && box.LatestRun < found.LatestRun) {
			found = box
		}
	}
	return found, found.Key != ""
}

// names is how many names checkpoints have here: some are asked for twice.
const names = 12

// saveByName asks for a checkpoint; how: 0 under the lease of the run in the sandbox where
// it has it, 3 in any case, else under a lease of its own.
func (w *world) saveByName(ctx context.Context, a *actor, key core.ThreadKey, how int) {
	box, ok := w.boxOf(key)
	if !ok {
		return
	}
	q := core.SaveRequest{
		ThreadKey: key, ID: core.CheckpointID(fmt.Sprintf("named-%d", a.id/32%names)), Key: box.Key, Instance: box.Instance, Again: a.id%4 == 0,
		Reason: []core.Reason{core.ReasonNamed, core.ReasonAutomatic, core.ReasonSafety}[a.id%3],
	}
	own := w.ownerOf(box.LatestRun)
	if lease := w.oracle.threads[key].Lease; how == 0 && lease.Owner == own || how == 3 {
		q.Owner = own
	}
	report, err := w.keeper(a).Save(ctx, q)
	switch {
	case err != nil:
		w.met("save refused: " + reasonOf(err))
	case report.State == core.StepDone && !w.isStored(key, q.ID):
		w.accuse("%s is told that %s is stored, and it is not (I5)", a.name, q.ID)
	default:
		w.met("save " + string(report.State))
	}
}

// fork begins branches from the head of a thread; how: 0 one, 1 two, 2 three, 3 as
// somebody did before.
func (w *world) fork(ctx context.Context, a *actor, key core.ThreadKey, how int) {
	q := core.ForkRequest{Source: key}
	for n := range branches + 1 {
		to := w.relative(w.runs[a.run], (a.id+n)%(branches+1)).Thread
		if to != key.Thread && len(q.Branches) <= how%4 && (a.id%8 == 0 || w.oracle.threads[core.ThreadKey{Tenant: key.Tenant, Thread: to}].Empty()) {
			q.Branches = append(q.Branches, core.ForkBranch{Thread: to, ID: core.CheckpointID(fmt.Sprintf("fork-%d-%d", a.id, n))})
		}
	}
	if n := len(w.keep.forks); how%4 == 3 && n > 0 {
		q = w.keep.forks[a.id%n]
	}
	w.keep.forks = append(w.keep.forks, q)
	a.forks = q.Branches
	made, err := w.keeper(a).Fork(ctx, q)
	if err != nil {
		w.met("fork refused: " + reasonOf(err))
		return
	}
	w.met(fmt.Sprintf("fork of %d", len(made)))
	for _, b := range q.Branches {
		if !w.isStored(core.ThreadKey{Tenant: q.Source.Tenant, Thread: b.Thread}, b.ID) {
			w.accuse("%s is told that thread %s is forked, and it is not", a.name, b.Thread)
		}
	}
}

// deleteHead takes the head of a thread away that somebody saw a while ago.
func (w *world) deleteHead(ctx context.Context, a *actor, key core.ThreadKey, _ int) {
	id := w.oracle.threads[key].Head
	for other := range w.oracle.state.Checkpoints[key] {
		if a.id%4 == 0 && other < id {
			id = other // which is head no more
		}
	}
	if id == "" {
		return
	}
	_, err := w.keeper(a).DeleteHead(ctx, key, id)
	if err != nil {
		w.met("delete refused: " + reasonOf(err))
		return
	}
	w.met("head deleted")
}

func (w *world) retain(ctx context.Context, a *actor, key core.ThreadKey, how int) {
	removed, err := w.keeper(a).Keep(ctx, core.KeepRequest{ThreadKey: key, Newest: 1 + how%2})
	switch {
	case err != nil:
		w.met("keep refused: " + reasonOf(err))
	case len(removed) > 0:
		w.met("old checkpoints taken away")
	}
}

// collectObjects removes what nothing needs; how: 0 only plans, 1 one object, 2 all.
func (w *world) collectObjects(ctx context.Context, a *actor, key core.ThreadKey, how int) {
	report, err := w.keeper(a).Collect(ctx, core.CollectRequest{ThreadKey: key, Apply: how%3 > 0, Most: how % 3 % 2})
	switch {
	case err != nil:
		w.met("collect refused: " + reasonOf(err))
	case how%3 == 0:
		w.met("collection planned")
	}
	if report.Deleted > 0 {
		w.met("objects collected")
	}
	if report.Unpinned > 0 {
		w.met("unpinned")
	}
}

// converse saves the next version of a conversation.
func (w *world) converse(ctx context.Context, a *actor, key core.ThreadKey, _ int) {
	seen := w.oracle.threads[key].Conversation.Version
	text := fmt.Sprintf("said in %s before %d", key, seen+int64(a.id%2))
	_, err := w.keeper(a).PutConversation(ctx, key, seen, []byte(text), nil)
	if err != nil {
		w.met("conversation refused: " + reasonOf(err))
		return
	}
	w.met("conversation saved")
}

// addArtifact adds an artifact to a thread, or replaces one.
func (w *world) addArtifact(ctx context.Context, a *actor, key core.ThreadKey, how int) {
	one := core.Artifact{Run: w.runs[a.run].key.Run, ID: fmt.Sprintf("artifact-%d", a.id%2), Name: "a", MIME: "text/plain", CreatedAt: now()}
	_, err := w.keeper(a).PutArtifact(ctx, key, one, fmt.Appendf(nil, "artifact %d of %s", how, key.Thread))
	if err != nil {
		w.met("artifact refused: " + reasonOf(err))
		return
	}
	w.met("artifact added")
}

// verify has the head of a thread read back in its sandbox.
func (w *world) verify(ctx context.Context, a *actor, key core.ThreadKey, _ int) {
	box, ok := w.boxOf(key)
	if !ok {
		return
	}
	_, err := w.keeper(a).Restore(ctx, core.RestoreRequest{
		ThreadKey: key, ID: core.CheckpointID(fmt.Sprintf("verify-%d", a.id%names)), Verify: true, Key: box.Key, Instance: box.Instance,
	})
	if err != nil {
		w.met("verification refused: " + reasonOf(err))
		return
	}
	w.met("verification begun")
}

// enterWork brings a request of an agent that captures or restores: the newest of the
// family, or one before it.
func (w *world) enterWork(c Choice, r *agentRun) {
	at := w.workers(w.threadKey(r))
	if len(at) == 0 {
		return
	}
	j := at[min(c.N/6, len(at)-1)]
	j.busy = true
	w.spawn(role{c.ID, "agent", fmt.Sprintf("%s in %s", j.job.ID, j.thread), c.Run}, keeperTimeout, func(ctx context.Context, a *actor) {
		defer func() { j.busy = false }()
		if j.thread.Tenant != "" {
			a.fences[j.thread] = j.fence
		}
		w.work(ctx, a, j, c.N%6)
	})
}

// dueWork has every agent that captures or restores come to its end.
func (w *world) dueWork(id int) {
	for _, j := range slices.Clone(w.keep.agents) {
		if !j.alive || !w.lives(j.task) {
			continue
		}
		w.through(w.spawn(role{id, "agent", "sound work", 0}, hostTimeout(id), func(ctx context.Context, a *actor) {
			a.fences[j.thread] = j.fence
			w.work(ctx, a, j, agentWorks)
		}))
	}
}

// brought has the head of a run's thread brought back into its sandbox, before its agent
// begins.
func (w *world) brought(ctx context.Context, a *actor, r *agentRun, run core.Run) bool {
	th, err := w.ports(a).Thread(ctx, w.threadKey(r))
	if err != nil || th.Head == "" {
		return err == nil
	}
	report, err := w.keeper(a).Restore(ctx, core.RestoreRequest{
		ThreadKey: w.threadKey(r), ID: core.CheckpointOf(r.key.Run), Checkpoint: th.Head, Run: r.key.Run, Owner: string(r.key.Run),
		Key: run.SandboxKey, Instance: run.Instance, Again: a.id%2 == 0,
	})
	if err != nil {
		w.met("restore refused: " + reasonOf(err))
		return false
	}
	if report.State == core.StepDone {
		w.met("restored before the agent begins")
	}
	return report.State == core.StepDone
}

// collectAll removes what nothing needs once everything is over, and accuses if something
// is missing, or stays for ever.
func (w *world) collectAll() {
	state := w.store.State()
	var keys []core.ThreadKey
	for key := range state.Threads {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b core.ThreadKey) int { return compareText(a.String(), b.String()) })
	for round := range branches + 2 {
		w.pass(objectAge + core.LeaseLife)
		for _, key := range keys {
			last := round > branches
			w.through(w.spawn(role{1 << 21, "keeper", "sound collection of " + key.String(), 0}, 10*time.Minute, func(ctx context.Context, a *actor) {
				report, err := w.keeper(a).Collect(ctx, core.CollectRequest{ThreadKey: key, Apply: !last})
				switch {
				case err != nil:
					w.accuse("a sound collection: %v", err)
				case report.Missing > 0:
					w.accuse("%d objects of thread %s are missing that something names (I5)", report.Missing, key)
				case last && report.Objects != report.Needed:
					w.accuse("of thread %s %d objects stay, and %d are needed", key, report.Objects, report.Needed)
				}
			}))
		}
	}
}

func compareText(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
