package sim

import (
	"context"
	"maps"
	"slices"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// Announce keeps of whose workspace other systems were told.
func (w *world) Announce(_ context.Context, notices []core.Notice) error {
	for _, n := range notices {
		if n.Type == core.NoticeCheckpointFailed && w.oracle.told[n.RunKey] != core.CheckpointLost {
			w.oracle.told[n.RunKey] = n.Checkpoint
		}
	}
	return nil
}

// enterCapture brings the agent that captures the workspace of a run: N says whether it
// only says that it lives, fails, or hands in what it has.
func (w *world) enterCapture(c Choice, r *agentRun) {
	if !w.fleet.Capturing(r.key.Run) {
		return
	}
	w.spawn(role{c.ID, "agent", "capture of " + string(r.key.Run), c.Run}, hostTimeout(c.ID), func(ctx context.Context, a *actor) {
		agent, err := w.fleet.View(a.p).CaptureAgent(ctx, r.key.Run)
		if err != nil || agent == nil || core.Refused(agent.Note(ctx)) || c.N == 1 {
			return
		}
		if c.N == 2 {
			_ = agent.Fail(ctx, "too-large: for this episode")
			return
		}
		for range 3 { // an agent that gets no answer says it again
			if err := agent.Commit(ctx); err == nil || core.Refused(err) || a.p.Stopped() {
				return
			}
		}
	})
}

// dueCapture has every agent that captures come to its end.
func (w *world) dueCapture(id int) {
	w.dueWork(id)
	for _, r := range w.runs {
		_ = w.fleet.View(w.store.Process).CommitCapture(context.Background(), r.key.Run) // refused where it is fenced
	}
	w.collect()
	w.judgeThreads("a sound capture")
}

// writes has a host take the thread's lease for its run, before it looks at sandboxes.
func (w *world) writes(ctx context.Context, a *actor, r *agentRun) bool {
	if w.config.Checkpoint == core.CheckpointDefault {
		return true
	}
	at := now()
	th, err := w.ports(a).UpdateThread(ctx, w.threadKey(r), core.AcquireLease{Owner: string(r.key.Run), Now: at, Until: at.Add(core.LeaseLife)})
	if err == nil && w.config.Keeper && th.FirstRun == "" {
		_, err = w.ports(a).UpdateThread(ctx, w.threadKey(r), core.NoteRun{Run: r.key.Run, Now: at})
	}
	return err == nil
}

// rests gives the lease back: a host that waits holds nothing.
func (w *world) rests(ctx context.Context, a *actor, r *agentRun) {
	if w.config.Checkpoint != core.CheckpointDefault {
		_, _ = w.ports(a).UpdateThread(ctx, w.threadKey(r), core.ReleaseLease{Owner: string(r.key.Run)})
	}
}

func (w *world) threadKey(r *agentRun) core.ThreadKey {
	return core.ThreadKey{Tenant: r.key.Tenant, Thread: w.thread(r)}
}

// judgeThreads: a capture publishes nothing once its loss is told or its lease is
// another's, and a loss is told only of what is not stored (I5, I11).
func (w *world) judgeThreads(who string) {
	state := w.store.State()
	for _, r := range w.runs {
		id, key := core.CheckpointOf(r.key.Run), w.threadKey(r)
		before, after := w.oracle.threads[key], state.Threads[key]
		_, stored := state.Checkpoints[key][id]
		run := state.Runs[r.key]
		if after.Head == id && before.Head != id && (!w.config.Keeper || w.call == "commit") {
			if owner := before.Lease.Owner; owner != core.OwnerReclaim+string(r.key.Run) && !(w.config.Session && owner == core.OwnerRun+string(r.key.Run)) {
				w.accuse("%s publishes %s under the lease of %q (I11)", who, id, before.Lease.Owner)
			}
			if run.Checkpoint.State == core.CheckpointLost {
				w.accuse("%s publishes %s after its loss was told (I5)", who, id)
			}
		}
		if lost := after.WorkspaceLost; lost != nil && lost.Run == r.key.Run && (before.WorkspaceLost == nil || before.WorkspaceLost.Run != lost.Run) {
			if stored {
				w.accuse("%s tells the loss of run %s, whose workspace is stored (I5)", who, r.key)
			}
			if after.Lease.Owner == core.OwnerReclaim+string(r.key.Run) {
				w.accuse("%s tells the loss of run %s while it may be captured (I5)", who, r.key)
			}
			w.judgeLoss(who, r, run, after)
			w.oracle.lost[r.key] = true
		}
	}
	maps.Copy(w.oracle.threads, state.Threads)
}

// judgeLoss: a workspace that is there still is given up only once its capture has
// failed, and has for as long as the policy wants.
func (w *world) judgeLoss(who string, r *agentRun, run core.Run, th core.Thread) {
	row, err := w.store.Row(context.Background(), run.Instance)
	if err != nil || row.State != core.LedgerRunning || !w.lives(run.TaskARN) {
		return
	}
	failedAt := run.Checkpoint.FailedAt
	held := failedAt != 0 && now() >= failedAt.Add(w.limits.CheckpointHold-2*w.config.Skew)
	failed := th.Step != nil && th.Step.Run == r.key.Run && th.Step.State == core.StepFailed || w.keep.failed[r.key.Run]
	if !held && !(w.config.Release && failed) {
		w.accuse("%s gives the workspace of run %s up, which is there and could be stored (I5)", who, r.key)
	}
}

// judgeBegin: nobody captures where nothing may be stopped (I13). An attempt whose mark
// another has taken over may still, and ends nothing.
func (w *world) judgeBegin(a *actor) {
	r := w.runs[a.run]
	if r.crossed <= a.start && w.oracle.promised[r.key] > now().Add(2*w.config.Skew) {
		w.accuse("%s captures the workspace of run %s, which was promised a hold (I13)", a.name, r.key)
	}
	if !a.read || !a.control.Stops() {
		w.accuse("%s captures the workspace of run %s, although control, as it read it, lets nothing end (I13)", a.name, r.key)
	}
}

// judgeOwing: an end owes what its policy says, from the very write of the end (I4). An
// agent that never began has done no work.
func (w *world) judgeOwing(r *agentRun, after core.Run) {
	began := after.Ending == nil || after.Ending.Reason != core.EndNeverStarted
	owes := after.TaskARN != "" && (w.config.Checkpoint == core.CheckpointAlways && began || w.config.Checkpoint == core.CheckpointFinished && after.ExitCode != nil)
	owed := after.Checkpoint.State == core.CheckpointOwed
	if w.config.Session {
		owes = owes && (after.Start.AskedAt != 0 || w.isStray(after.TaskARN)) || r.inherits
		if w.call == "continued" && w.passesOn(r, after, owes) {
			owes = false
		}
		if w.isStored(w.threadKey(r), core.CheckpointOf(r.key.Run)) {
			owes = owed
		}
	}
	if owes != owed {
		w.accuse("run %s ends with checkpoint %+v, want it owed: %t (I5)", r.key, after.Checkpoint, owes)
	}
}

// passesOn reports whether a run goes on for a paused one in its sandbox, and notes that it
// owes what that one did.
func (w *world) passesOn(r *agentRun, after core.Run, owes bool) bool {
	for _, child := range w.runs {
		run, err := w.store.Run(context.Background(), child.key)
		if err == nil && run.Tenant == after.Tenant && run.Start.Parent == r.key.Run && run.TaskARN == after.TaskARN {
			child.inherits = owes
			return true
		}
	}
	return false
}

// cross notes when one of those who settle a run's checkpoint goes on after another.
func (w *world) cross(a *actor) {
	r := w.runs[a.run]
	switch {
	case a.kind != "reclaim" && a.kind != "agent" && a.kind != "host":
	case a.start == 0:
		a.start, r.last = w.calls, a.id
	case r.last != a.id:
		r.last, r.crossed = a.id, w.calls
	}
}

// judgeWaiting: a reclaim that has come to its end keeps the next turn waiting only while
// somebody captures, or may.
func (w *world) judgeWaiting(a *actor, run core.RunID, outcome core.ReclaimOutcome) {
	r := w.runs[w.index(run)]
	th := w.store.State().Threads[w.threadKey(r)]
	others := r.crossed > a.start // somebody else acted meanwhile
	working := th.Step != nil && th.Step.State == core.StepWorking
	took := slices.Contains(a.p.Calls(), "acquire lease")
	if a.faulty || !took || others || working || a.skew != 0 || outcome == core.ReclaimCapturing {
		return
	}
	if th.Lease.Owner == core.OwnerReclaim+string(run) && th.Lease.Live(now()) {
		w.accuse("%s ends (%s) and keeps the lease of the thread of %s (I5)", a.name, outcome, r.key)
	}
}

// judgeCheckpoints says what must be true at last: what a run owed is stored, whole, or
// its loss is recorded and told; and its record says which.
func (w *world) judgeCheckpoints() {
	state := w.store.State()
	for _, r := range w.runs {
		run, c := state.Runs[r.key], state.Runs[r.key].Checkpoint
		stored, there := state.Checkpoints[w.threadKey(r)][core.CheckpointOf(r.key.Run)]
		content := w.fleet.Workspace(run.TaskARN)
		if root, err := decodeRoot(state.Blobs[stored.Manifest.Key]); there && err == nil {
			stored.Digest = root.Content
		}
		if c.State == core.CheckpointDone && w.config.Keeper { // it may be taken away since, or a newer workspace hold this one
			there = w.isStored(w.threadKey(r), c.ID)
		}
		switch {
		case c.State != core.CheckpointNotOwed && !c.Settled() && !(w.config.Session && w.passedOn(run, state)):
			w.accuse("run %s: what became of its checkpoint is not known: %+v (I5)", r.key, c)
		case there != (c.State == core.CheckpointDone) && !(there && w.config.Session && c.State == core.CheckpointNotOwed):
			w.accuse("run %s: checkpoint %+v, and stored: %t (I5)", r.key, c, there)
		case stored.ID != "" && !w.config.Session && run.ExitCode != nil && content != "" && stored.Digest != content: // an agent that was given up may work on
			w.accuse("run %s: its checkpoint is not its workspace (I5)", r.key)
		case c.State == core.CheckpointLost && !w.lossTold(run):
			w.accuse("run %s lost its workspace, and nobody was told (I5)", r.key)
		case w.oracle.storable[r.key] && c.State == core.CheckpointLost:
			w.accuse("run %s lost its workspace, which could have been stored: %s (I5)", r.key, c.Why)
		}
	}
}

// passedOn reports whether a later run in the same sandbox has taken a debt over, and what
// became of that is known.
func (w *world) passedOn(run core.Run, state mem.State) bool {
	for _, later := range state.Runs {
		if run.Checkpoint.State == core.CheckpointMoved && later.Instance == run.Instance && later.StartedAt > run.StartedAt && later.Checkpoint.Settled() {
			return true
		}
	}
	return false
}

// lossTold reports whether the loss of a run's workspace was told: as its own, or as that of
// a later run in the same sandbox.
func (w *world) lossTold(run core.Run) bool {
	for _, r := range w.runs {
		if other := w.store.State().Runs[r.key]; r.key == run.RunKey || w.config.Session && other.Instance == run.Instance && other.StartedAt >= run.StartedAt {
			if w.oracle.lost[r.key] && w.oracle.told[r.key] == core.CheckpointLost {
				return true
			}
		}
	}
	return false
}

// noteStorable keeps whose workspace is there still, and has not failed to be stored,
// when all that goes wrong is over.
func (w *world) noteStorable() {
	for _, r := range w.runs {
		run, err := w.store.Run(context.Background(), r.key)
		if err == nil && run.Checkpoint.State == core.CheckpointOwed && w.lives(run.TaskARN) {
			row, err := w.store.Row(context.Background(), run.Instance)
			step := w.store.State().Threads[w.threadKey(r)].Step
			failed := step != nil && step.Run == r.key.Run && step.State == core.StepFailed
			w.oracle.storable[r.key] = err == nil && row.State == core.LedgerRunning && !failed && !w.config.Release
		}
	}
}
