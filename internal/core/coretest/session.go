package coretest

import (
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/draw"
)

func init() {
	runTransitions["NoteStart"] = drawing[core.Run, core.Transition]{shape: live, draw: func(rt *draw.T, r core.Run) core.Transition {
		return core.NoteStart{Epoch: as(rt, "epoch", r.Epoch, epochs), Was: as(rt, "was", r.Start, draw.Custom(anyStart)), Start: drawStart(rt, "becomes")}
	}}
	runTransitions["AddBearer"] = drawing[core.Run, core.Transition]{shape: live, draw: func(rt *draw.T, r core.Run) core.Transition {
		t := core.AddBearer{Epoch: as(rt, "epoch", r.Epoch, epochs), Was: r.Bearers, Bearer: nonces.Draw(rt, "bearer")}
		if draw.Range(0, 4).Draw(rt, "bearers as read") == 0 {
			t.Was = []string{"x"}
		}
		return t
	}}
	runTransitions["NoteFiles"] = drawing[core.Run, core.Transition]{shape: live, draw: func(rt *draw.T, r core.Run) core.Transition {
		return core.NoteFiles{Epoch: as(rt, "epoch", r.Epoch, epochs), Files: drawFiles(rt)}
	}}
	runTransitions["EndRun"] = drawing[core.Run, core.Transition]{shape: live, draw: func(rt *draw.T, r core.Run) core.Transition {
		t := core.EndRun{Epoch: as(rt, "epoch", r.Epoch, epochs), Reason: core.EndFailed, Now: moments.Draw(rt, "now"), Row: as(rt, "row", r.Row, rows), Until: moments.Draw(rt, "until")}
		if booleans.Draw(rt, "cancels") {
			t.Reason = core.EndCancelled
			return t
		}
		t.Error = maybe(rt, "why", func(rt *draw.T) core.RunError { return core.RunError{Code: "host", Message: texts.Draw(rt, "text")} })
		return t
	}}
}

func drawFiles(rt *draw.T) core.RunFiles {
	return core.RunFiles{Key: texts.Draw(rt, "files key"), Version: texts.Draw(rt, "files version"), Bytes: sizes.Draw(rt, "files bytes"), SHA256: texts.Draw(rt, "files sum")}
}

func anyStart(rt *draw.T) core.RunStart { return drawStart(rt, "other start") }

func drawStart(rt *draw.T, what string) core.RunStart {
	return core.RunStart{
		Hosted: booleans.Draw(rt, what+" hosted"), Parent: core.RunID(texts.Draw(rt, what+" parent")), Resumed: booleans.Draw(rt, what+" resumed"), Noted: booleans.Draw(rt, what+" noted"), Head: core.CheckpointID(texts.Draw(rt, what+" head")),
		Restored: core.CheckpointID(texts.Draw(rt, what+" restored")), LostRun: core.RunID(texts.Draw(rt, what+" lost")),
		LostWhy: texts.Draw(rt, what+" why"), AskedAt: times.Draw(rt, what+" asked"), ReadyAt: times.Draw(rt, what+" ready"),
		Native: core.SnapshotID(texts.Draw(rt, what+" native")), CloneAt: times.Draw(rt, what+" clone"), Cloned: booleans.Draw(rt, what+" cloned"), SetupAt: times.Draw(rt, what+" setup"), SetUp: booleans.Draw(rt, what+" set up"), HookedAt: times.Draw(rt, what+" hooked"), Owes: booleans.Draw(rt, what+" owes"), Key: core.SandboxKey(texts.Draw(rt, what+" key")),
	}
}

// sessions are the transactions of a session that a store has.
func sessions(t tb, s Stores) core.SessionTransactions {
	t.Helper()
	out, ok := s.Transactions.(core.SessionTransactions)
	if !ok {
		t.Fatalf("%T has no transactions of sessions", s.Transactions)
	}
	return out
}

// resuming is a sandbox that is warm, and the next run of its thread, which has named an
// instance of its own.
func resuming() (core.Run, core.Sandbox) {
	r, box := attached("acme", "r2"), sandbox("i1")
	r.Thread, r.Instance = box.Material.Thread, "i2"
	box.IdleSince, box.DueAt, box.HoldUntil = 2000, 9000, 7
	return r, box
}

func resumed(r core.Run, box core.Sandbox) core.Resumed {
	return core.Resumed{Run: r.RunKey, Epoch: r.Epoch, Instance: r.Instance, Was: r.Start, Sandbox: box, Now: 5000}
}

// SessionTransactions checks the contract of [core.SessionTransactions].
func SessionTransactions(t *testing.T, open Open) {
	t.Run("Resume moves the sandbox and binds the run", func(t *testing.T) {
		s := open(t)
		r, box := resuming()
		must(t, s.Seed.Run(t.Context(), r))
		must(t, s.Seed.Sandbox(t.Context(), box))
		for range 2 { // the second is told from a loss
			must(t, sessions(t, s).Resume(t.Context(), resumed(r, box)))
			wantRun, err := resumed(r, box).ApplyRun(r)
			must(t, err)
			wantBox, err := resumed(r, box).ApplySandbox(box)
			must(t, err)
			equalPair(t, s, wantRun, wantBox)
		}
	})
	t.Run("Resume that is refused writes nothing", func(t *testing.T) { resumeRefused(t, open(t)) })
	t.Run("Resume passes a debt on in the same write", func(t *testing.T) { resumeDebt(t, open(t)) })
	t.Run("Resume of what does not exist is not found", func(t *testing.T) {
		s := open(t)
		r, box := resuming()
		must(t, s.Seed.Sandbox(t.Context(), box))
		notFound(t, sessions(t, s).Resume(t.Context(), resumed(r, box)))
		must(t, s.Seed.Run(t.Context(), r))
		box.Key = "none"
		notFound(t, sessions(t, s).Resume(t.Context(), resumed(r, box)))
	})
	t.Run("Resume by many runs at once has one winner", func(t *testing.T) {
		s := open(t)
		r, box := resuming()
		must(t, s.Seed.Sandbox(t.Context(), box))
		runs := make([]core.Run, 6)
		for i := range runs {
			runs[i] = r
			runs[i].RunKey.Run = core.RunID("r-" + string(rune('a'+i)))
			must(t, s.Seed.Run(t.Context(), runs[i]))
		}
		oneWins(t, together(len(runs), func(i int) error { return sessions(t, s).Resume(t.Context(), resumed(runs[i], box)) }))
	})
	t.Run("Continue ends the parent and begins the child", func(t *testing.T) { continueAll(t, open(t)) })
	t.Run("Continue that is refused writes nothing", func(t *testing.T) { continueRefused(t, open(t)) })
	t.Run("Continue at once by two hosts has one winner", func(t *testing.T) {
		s := open(t)
		parent, box, c := continuing()
		must(t, s.Seed.Run(t.Context(), parent))
		must(t, s.Seed.Sandbox(t.Context(), box))
		oneWins(t, together(4, func(i int) error {
			mine := c
			mine.Child.ClaimNonce = string(rune('p' + i))
			return sessions(t, s).Continue(t.Context(), mine)
		}))
	})
	t.Run("Resumed", func(t *testing.T) { randomResumes(t, open(t)) })
}

func equalPair(t tb, s Stores, wantRun core.Run, wantBox core.Sandbox) {
	t.Helper()
	r, err := s.Runs.Run(t.Context(), wantRun.RunKey)
	must(t, err)
	equal(t, "run", r, wantRun)
	box, err := s.Sandboxes.Sandbox(t.Context(), wantBox.Key)
	must(t, err)
	equal(t, "record", box, wantBox)
}

func resumeRefused(t *testing.T, s Stores) {
	for why, change := range map[string]func(r *core.Run, box *core.Sandbox){
		"not-running":      func(r *core.Run, _ *core.Sandbox) { r.Status, r.Row, r.DueAt = core.Interrupted, core.RowPause, 9 },
		"epoch":            func(r *core.Run, _ *core.Sandbox) { r.Epoch = 2 },
		"task":             func(r *core.Run, _ *core.Sandbox) { r.TaskARN = "arn:mine" },
		"instance":         func(_ *core.Run, box *core.Sandbox) { box.Instance = "i3" },
		"latest-run":       func(_ *core.Run, box *core.Sandbox) { box.LatestRun = "another" },
		"reclaiming":       func(_ *core.Run, box *core.Sandbox) { box.Reclaiming = "a" },
		"cancel-requested": func(r *core.Run, _ *core.Sandbox) { r.CancelRequested = 4 },
		"start":            func(r *core.Run, _ *core.Sandbox) { r.Start.Noted = true },
		"ending":           func(r *core.Run, _ *core.Sandbox) { r.Ending = &core.Ending{Reason: core.EndFailed, At: 1} },
	} {
		r, box := resuming()
		want := resumed(r, box)
		change(&r, &box)
		must(t, s.Seed.Run(t.Context(), r))
		must(t, s.Seed.Sandbox(t.Context(), box))
		refusedAs(t, sessions(t, s).Resume(t.Context(), want), why)
		equalPair(t, s, r, box)
	}
}

// randomResumes holds Resume against core's meaning of it, on random records.
func randomResumes(t *testing.T, s Stores) {
	bothAnswers(t, func(rt *draw.T) bool {
		n := number.Add(1)
		r, box := drawRun(rt, n), drawSandbox(rt, n)
		if booleans.Draw(rt, "about to resume") {
			r = live(rt, r)
			box.Reclaiming = ""
		}
		seen := box
		seen.Instance, seen.LatestRun = as(rt, "instance seen", box.Instance, instances), as(rt, "latest seen", box.LatestRun, draw.Just(core.RunID("other")))
		seen.TaskARN = as(rt, "task seen", box.TaskARN, tasks)
		resume := core.Resumed{
			Run: r.RunKey, Epoch: as(rt, "epoch", r.Epoch, epochs), Instance: as(rt, "run's instance", r.Instance, instances),
			Was: as(rt, "was", r.Start, draw.Custom(anyStart)), Sandbox: seen, Now: moments.Draw(rt, "now"),
		}
		must(rt, s.Seed.Run(rt.Context(), r))
		must(rt, s.Seed.Sandbox(rt.Context(), box))
		after, passed, refusal := resumePair(r, box, resume)
		sameAnswer(rt, sessions(rt, s).Resume(rt.Context(), resume), refusal)
		equalPair(rt, s, after, passed)
		return refusal == nil
	})
}

// resumePair is what core's own rules make of a resume.
func resumePair(r core.Run, box core.Sandbox, t core.Resumed) (core.Run, core.Sandbox, error) {
	after, err := t.ApplyRun(r)
	if err != nil {
		if t.Landed(r) {
			return r, box, nil
		}
		return r, box, err
	}
	passed, err := t.ApplySandbox(box)
	if err != nil {
		return r, box, err
	}
	return after, passed, nil
}

// continuing is a paused run in its sandbox, and the run that goes on for it.
func continuing() (parent core.Run, box core.Sandbox, t core.Continued) {
	parent, box = attached("acme", "r1"), sandbox("i1")
	parent.Status, parent.Row, parent.DueAt, parent.AttachedUntil, parent.InterruptedSince = core.Interrupted, core.RowPause, 90_000, 0, 3000
	parent.Instance, parent.TaskARN, parent.SandboxKey = box.Instance, box.TaskARN, box.Key
	child := attached("acme", "r2")
	child.ClaimNonce, child.Instance, child.TaskARN, child.SandboxKey = "child", box.Instance, box.TaskARN, box.Key
	child.Start = core.RunStart{Parent: "r1", Resumed: true}
	end := core.Finish{
		Epoch: parent.Epoch, Nonce: parent.ClaimNonce, Now: 5000, Status: core.Completed, ExpiresAt: 9000,
		Transcript: core.Transcript{Bytes: parent.LogEnd, SHA256: "00"},
	}
	return parent, box, core.Continued{Parent: parent.RunKey, End: end, Child: child, Sandbox: &box}
}

func continueAll(t *testing.T, s Stores) {
	parent, box, c := continuing()
	must(t, s.Seed.Run(t.Context(), parent))
	must(t, s.Seed.Sandbox(t.Context(), box))
	for range 2 { // the second is told from a loss
		must(t, sessions(t, s).Continue(t.Context(), c))
		over, err := c.ApplyParent(parent)
		must(t, err)
		passed, err := c.ApplySandbox(box)
		must(t, err)
		equalPair(t, s, over, passed)
		equalPair(t, s, c.Child, passed)
	}
	alone, _, c := continuing()
	alone.RunKey.Run, c.Parent.Run, c.Child.RunKey.Run, c.Child.Start.Parent, c.Sandbox = "r3", "r3", "r4", "r3", nil
	must(t, s.Seed.Run(t.Context(), alone))
	must(t, sessions(t, s).Continue(t.Context(), c))
	got, err := s.Runs.Run(t.Context(), alone.RunKey)
	must(t, err)
	equal(t, "status", got.Status, core.Completed)
}

func continueRefused(t *testing.T, s Stores) {
	for why, change := range map[string]func(parent *core.Run, box *core.Sandbox){
		"not-paused": func(r *core.Run, _ *core.Sandbox) {
			r.Status, r.Row, r.InterruptedSince = core.Running, core.RowLapse, 0
		},
		"cancel-requested": func(r *core.Run, _ *core.Sandbox) { r.CancelRequested = 4 },
		"ending":           func(r *core.Run, _ *core.Sandbox) { r.Ending = &core.Ending{Reason: core.EndExpired, At: 1} },
		"epoch":            func(r *core.Run, _ *core.Sandbox) { r.Epoch = 2 },
		"log-end":          func(r *core.Run, _ *core.Sandbox) { r.LogEnd = 77 },
		"latest-run":       func(_ *core.Run, box *core.Sandbox) { box.LatestRun = "another" },
		"reclaiming":       func(_ *core.Run, box *core.Sandbox) { box.Reclaiming = "a" },
		"instance":         func(_ *core.Run, box *core.Sandbox) { box.Instance = "i3" },
	} {
		parent, box, c := continuing()
		c.Child.RunKey.Run = core.RunID("child-" + why)
		change(&parent, &box)
		must(t, s.Seed.Run(t.Context(), parent))
		must(t, s.Seed.Sandbox(t.Context(), box))
		refusedAs(t, sessions(t, s).Continue(t.Context(), c), why)
		equalPair(t, s, parent, box)
		_, err := s.Runs.Run(t.Context(), c.Child.RunKey)
		notFound(t, err)
	}
	parent, box, c := continuing()
	must(t, s.Seed.Run(t.Context(), parent))
	must(t, s.Seed.Sandbox(t.Context(), box))
	for why, change := range map[string]func(child *core.Run){
		"attached-elsewhere": func(r *core.Run) { r.ClaimNonce = "another" },
		"parent":             func(r *core.Run) { r.Start.Parent = "another" },
	} {
		there := c.Child
		change(&there)
		must(t, s.Seed.Run(t.Context(), there))
		refusedAs(t, sessions(t, s).Continue(t.Context(), c), why)
		equalPair(t, s, parent, box)
	}
}

// resumeDebt: the former run owes a checkpoint, and the task's row owes it afterwards;
// where that is refused nothing is written.
func resumeDebt(t *testing.T, s Stores) {
	for why, change := range map[string]func(v *trio){
		"":         func(*trio) {},
		"not-owed": func(v *trio) { v.run.Checkpoint.State = core.CheckpointDone },
		"state":    func(v *trio) { v.row.State, v.row.DueAt = core.LedgerStopping, 9000 },
	} {
		before := indebtedTo("i1")
		before.box.Reclaiming = ""
		change(&before)
		seedTrio(t, s, before)
		r, _ := resuming()
		r.RunKey.Run = core.RunID("next-" + why)
		must(t, s.Seed.Run(t.Context(), r))
		resume, move := resumed(r, *before.box), moveOf(before)
		resume.Debt = &move
		if why != "" {
			refusedAs(t, sessions(t, s).Resume(t.Context(), resume), why)
			equalTrio(t, readTrio(t, s, before, before.box.Key), before)
			equalPair(t, s, r, *before.box)
			continue
		}
		for range 2 { // the second is told from a loss
			must(t, sessions(t, s).Resume(t.Context(), resume))
		}
		want, err := indebtedTrio(before, move)
		must(t, err)
		passed, err := resume.ApplySandbox(*before.box)
		must(t, err)
		want.box = &passed
		equalTrio(t, readTrio(t, s, before, before.box.Key), want)
	}
}
