package coretest

import (
	"fmt"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/draw"
)

// Small domains, so that conditions hold often and fail often.
var (
	times     = draw.SampledFrom([]core.Millis{0, 1000, 2000, 3000})
	moments   = draw.SampledFrom([]core.Millis{1000, 2000, 3000})
	epochs    = draw.SampledFrom([]int64{1, 2})
	sizes     = draw.SampledFrom([]int64{0, 1, 8})
	nonces    = draw.SampledFrom([]string{"a", "b"})
	texts     = draw.SampledFrom([]string{"", "x", "größer"})
	tasks     = draw.SampledFrom([]string{"", "arn:1", "arn:2"})
	instances = draw.SampledFrom([]core.InstanceID{"", "i1", "i2"})
	rows      = draw.SampledFrom([]core.Row{core.RowNone, core.RowDetached, core.RowLapse, core.RowPause, core.RowCancel, core.RowReclaim})
	statuses  = draw.SampledFrom([]core.Status{core.Running, core.Running, core.Running, core.Interrupted, core.Completed, core.Failed, core.Aborted})
	endings   = draw.SampledFrom([]core.EndReason{"", core.EndExpired, core.EndExpired, core.EndSpendCap, core.EndSpendCap, core.EndCancelled, core.EndDied, core.EndNeverStarted, core.EndLost})
	outcomes  = draw.SampledFrom([]core.ReclaimOutcome{"", core.ReclaimHeld, core.ReclaimDestroyed, core.ReclaimIdled})
	kinds     = draw.SampledFrom([]core.ReclaimKind{core.ReclaimNone, core.ReclaimEnd, core.ReclaimIdle})
	states    = draw.SampledFrom([]core.LedgerState{core.LedgerIntent, core.LedgerRunning, core.LedgerStopping, core.LedgerClosed})
	booleans  = draw.Bool()

	checkpoints = draw.SampledFrom([]core.CheckpointState{
		core.CheckpointNotOwed, core.CheckpointNotOwed, core.CheckpointOwed, core.CheckpointOwed, core.CheckpointFailed, core.CheckpointMoved,
		core.CheckpointDone, core.CheckpointSuperseded, core.CheckpointLost,
	})
)

// as is value itself, nine times in ten, so that most transitions were made by
// somebody who had read the record.
func as[V any](rt *draw.T, what string, value V, others draw.Generator[V]) V {
	if draw.Range(0, 9).Draw(rt, what+" as read") > 0 {
		return value
	}
	return others.Draw(rt, what)
}

// maybe is a pointer to a drawn value, or nil.
func maybe[V any](rt *draw.T, what string, value func(rt *draw.T) V) *V {
	if booleans.Draw(rt, what+" absent") {
		return nil
	}
	return new(value(rt))
}

// drawRun draws any record that a store can hold: its row and its due time go
// together, nothing else has to.
func drawRun(rt *draw.T, number int64) core.Run {
	r := core.Run{
		RunKey: core.RunKey{
			Tenant: core.TenantID(draw.SampledFrom(awkward).Draw(rt, "tenant")),
			Run:    core.RunID(fmt.Sprint(draw.SampledFrom(awkward).Draw(rt, "run"), number)),
		},
		Thread: core.ThreadID(texts.Draw(rt, "thread")), Status: statuses.Draw(rt, "status"),
		StartedAt: moments.Draw(rt, "startedAt"), FinishedAt: times.Draw(rt, "finishedAt"),
		Provider: texts.Draw(rt, "provider"), Definition: texts.Draw(rt, "definition"),
		SandboxKey: core.SandboxKey(texts.Draw(rt, "key")), Instance: instances.Draw(rt, "instance"),
		TaskARN: tasks.Draw(rt, "task"), Cluster: texts.Draw(rt, "cluster"), Container: texts.Draw(rt, "container"),
		Row: rows.Draw(rt, "row"), Epoch: epochs.Draw(rt, "epoch"), ClaimNonce: nonces.Draw(rt, "claimNonce"),
		ClaimUntil: times.Draw(rt, "claimUntil"), AttachedUntil: times.Draw(rt, "attachedUntil"),
		DetachedSince: times.Draw(rt, "detachedSince"), InterruptedSince: times.Draw(rt, "interruptedSince"),
		CancelRequested: sometimes(rt, "cancelRequested"), Nonce: nonces.Draw(rt, "nonce"),
		LogEnd: sizes.Draw(rt, "logEnd"), TTLSeconds: sizes.Draw(rt, "ttlSeconds"), SpendCap: amounts.Draw(rt, "spendCap"), Price: amounts.Draw(rt, "price"), PublicIP: booleans.Draw(rt, "publicIp"),
		Reclaim: kinds.Draw(rt, "reclaim"), PauseSeconds: sizes.Draw(rt, "pauseSeconds"),
		ReclaimSince: times.Draw(rt, "reclaimSince"), ReclaimAttempts: draw.Range(0, 2).Draw(rt, "attempts"),
		ReclaimOutcome: outcomes.Draw(rt, "outcome"), TaskStoppedAt: times.Draw(rt, "taskStoppedAt"), ExitedAt: times.Draw(rt, "exitedAt"),
	}
	drawParts(rt, &r)
	return placed(rt, r)
}

// placed gives r the index key that its row has, and no other.
func placed(rt *draw.T, r core.Run) core.Run {
	r.DueAt = 0
	if r.Row.Due() {
		r.DueAt = moments.Draw(rt, "dueAt")
	}
	if r.Row == core.RowDetached && r.DetachedSince == 0 {
		r.DetachedSince = 2000
	}
	return r
}

// sometimes is a time that is absent three times in four.
func sometimes(rt *draw.T, what string) core.Millis {
	return draw.SampledFrom([]core.Millis{0, 0, 0, 2000}).Draw(rt, what)
}

// drawParts draws the members of r that are records themselves.
func drawParts(rt *draw.T, r *core.Run) {
	r.Error = maybe(rt, "error", func(rt *draw.T) core.RunError {
		return core.RunError{Code: "agent-exit", Message: texts.Draw(rt, "message")}
	})
	r.ExitCode = maybe(rt, "exitCode", func(rt *draw.T) int { return draw.Range(0, 2).Draw(rt, "exitCode") })
	if r.Epoch == 1 { // mostly absent, as in life
		r.Ending = maybe(rt, "ending", func(rt *draw.T) core.Ending {
			return core.Ending{Reason: core.EndExpired, At: times.Draw(rt, "endingAt")}
		})
		r.Sealed = maybe(rt, "sealed", func(rt *draw.T) core.Sealed {
			return core.Sealed{ExitCode: draw.Range(0, 1).Draw(rt, "sealedExit"), At: times.Draw(rt, "sealedAt")}
		})
	}
	r.Transcript = maybe(rt, "transcript", func(rt *draw.T) core.Transcript {
		return core.Transcript{
			Bytes: sizes.Draw(rt, "bytes"), SHA256: texts.Draw(rt, "sha256"), Complete: booleans.Draw(rt, "complete"),
			Omitted: sizes.Draw(rt, "omitted"), Side: texts.Draw(rt, "side"),
		}
	})
	if booleans.Draw(rt, "hold") {
		r.Hold = core.Hold{Until: times.Draw(rt, "holdUntil"), By: texts.Draw(rt, "holdBy"), Why: texts.Draw(rt, "holdWhy"), ID: texts.Draw(rt, "holdID")}
	}
	if booleans.Draw(rt, "logHash") {
		r.LogHash, r.LogTail = []byte{0, 255, byte(r.LogEnd)}, []byte("tail")
	}
	r.CheckpointPolicy = draw.SampledFrom(core.CheckpointPolicies).Draw(rt, "policy")
	r.Checkpoint = drawCheckpoint(rt, "checkpoint")
	r.Bearers = draw.SampledFrom([][]string{nil, {"a"}, {"x", "a"}, {"1", "2", "3", "4", "5", "6", "7", "8"}}).Draw(rt, "bearers")
	r.Files = maybe(rt, "files", drawFiles)
	if booleans.Draw(rt, "start") {
		r.Start = drawStart(rt, "start")
	}
	if booleans.Draw(rt, "onLapse") {
		r.OnLapse = core.LapseCancels
	}
}

func drawCheckpoint(rt *draw.T, what string) core.RunCheckpoint {
	return core.RunCheckpoint{
		State: checkpoints.Draw(rt, what), ID: core.CheckpointID(texts.Draw(rt, what+" id")), Why: texts.Draw(rt, what+" why"),
		Tries: draw.Range(0, 1).Draw(rt, what+" tries"), FailedAt: times.Draw(rt, what+" failed"),
	}
}

// runTransitions draws each transition of a run record, by the name of its type.
var runTransitions = map[string]drawing[core.Run, core.Transition]{
	"Renew": {shape: live, draw: func(rt *draw.T, r core.Run) core.Transition {
		return core.Renew{Epoch: as(rt, "epoch", r.Epoch, epochs), Until: moments.Draw(rt, "until")}
	}},
	"Detach": {shape: live, draw: func(rt *draw.T, r core.Run) core.Transition {
		return core.Detach{Epoch: as(rt, "epoch", r.Epoch, epochs), Now: moments.Draw(rt, "now")}
	}},
	"Lapse": {shape: in(core.Running, core.RowLapse), draw: func(rt *draw.T, r core.Run) core.Transition {
		return core.Lapse{DueAt: dueAt(rt, r), Cancel: booleans.Draw(rt, "cancel")}
	}},
	"CancelDue": {shape: in(core.Running, core.RowCancel), draw: func(rt *draw.T, r core.Run) core.Transition {
		return core.CancelDue{DueAt: dueAt(rt, r)}
	}},
	"Attach": {shape: live, draw: drawAttach},
	"Claim":  {shape: claimable, draw: drawClaim},
	"Release": {draw: func(rt *draw.T, r core.Run) core.Transition {
		return core.Release{Epoch: as(rt, "epoch", r.Epoch, epochs)}
	}},
	"Append":        {shape: live, draw: drawAppend},
	"Finish":        {shape: live, draw: drawFinish},
	"Interrupt":     {shape: live, draw: drawInterrupt},
	"RequestCancel": {draw: drawRequestCancel},
	"Hint":          {shape: in(core.Running, core.RowLapse), draw: drawHint},
	"ReclaimDone": {shape: in(core.Completed, core.RowReclaim), draw: func(rt *draw.T, r core.Run) core.Transition {
		return core.ReclaimDone{Instance: as(rt, "instance", r.Instance, instances), Outcome: outcomes.Draw(rt, "becomes"), ExpiresAt: times.Draw(rt, "expires")}
	}},
	"ReclaimLater": {shape: in(core.Completed, core.RowReclaim), draw: drawReclaimLater},
	"NoteCheckpoint": {shape: in(core.Completed, core.RowReclaim), draw: func(rt *draw.T, r core.Run) core.Transition {
		return core.NoteCheckpoint{From: as(rt, "from", r.Checkpoint.State, checkpoints), Checkpoint: drawCheckpoint(rt, "becomes checkpoint")}
	}},
	"NameInstance": {shape: live, draw: drawNameInstance},
	"SetHold": {shape: in(core.Completed, core.RowNone), draw: func(rt *draw.T, r core.Run) core.Transition {
		if booleans.Draw(rt, "release") {
			return core.SetHold{}
		}
		hold := core.Hold{Until: times.Draw(rt, "until"), By: texts.Draw(rt, "by"), Why: texts.Draw(rt, "why"), ID: texts.Draw(rt, "id")}
		if booleans.Draw(rt, "as read") {
			return core.SetHold{Hold: hold, Was: new(as(rt, "was", r.Hold, draw.Just(hold)))}
		}
		return core.SetHold{Hold: hold}
	}},
	"SetSpendCap": {shape: live, draw: func(rt *draw.T, r core.Run) core.Transition {
		return core.SetSpendCap{Cap: amounts.Draw(rt, "cap")}
	}},
	"NotePrice": {shape: live, draw: func(rt *draw.T, r core.Run) core.Transition {
		return core.NotePrice{
			Epoch: as(rt, "epoch", r.Epoch, epochs), TaskARN: as(rt, "task", r.TaskARN, tasks), Price: 1 + amounts.Draw(rt, "noted"),
		}
	}},
	"SetTTL": {shape: live, draw: func(rt *draw.T, r core.Run) core.Transition {
		t := core.SetTTL{Seconds: sizes.Draw(rt, "seconds")}
		if booleans.Draw(rt, "as read") {
			t.Was = new(as(rt, "was", r.TTLSeconds, sizes))
		}
		return t
	}},
}

// in brings a record to a status and a row.
func in(status core.Status, row core.Row) func(rt *draw.T, r core.Run) core.Run {
	return func(rt *draw.T, r core.Run) core.Run {
		r.Status, r.Row = status, row
		return placed(rt, r)
	}
}

// live is a detached run without a task that nobody claims, ends or cancels.
func live(rt *draw.T, r core.Run) core.Run {
	r.Status, r.Row = core.Running, core.RowDetached
	r.TaskARN, r.ClaimUntil, r.CancelRequested, r.Ending, r.Sealed = "", 0, 0, nil, nil
	return placed(rt, r)
}

// dueAt is the row's time as read, or another; a due time is never zero.
func dueAt(rt *draw.T, r core.Run) core.Millis {
	if r.DueAt == 0 {
		return moments.Draw(rt, "dueAt of none")
	}
	return as(rt, "dueAt", r.DueAt, moments)
}

func drawAttach(rt *draw.T, r core.Run) core.Transition {
	return core.Attach{
		Seen: as(rt, "epoch", r.Epoch, epochs), Nonce: nonces.Draw(rt, "mine"), Now: moments.Draw(rt, "now"),
		Until: moments.Draw(rt, "until"), Takeover: booleans.Draw(rt, "takeover"),
	}
}

func drawClaim(rt *draw.T, r core.Run) core.Transition {
	since := r.DetachedSince
	if r.Status == core.Interrupted {
		since = r.InterruptedSince
	}
	return core.Claim{
		Seen: as(rt, "epoch", r.Epoch, epochs), Since: as(rt, "since", since, times), Nonce: nonces.Draw(rt, "mine"),
		Paused: as(rt, "paused", r.Status == core.Interrupted, booleans), Now: moments.Draw(rt, "now"), Until: moments.Draw(rt, "until"), Ending: endings.Draw(rt, "to end"),
		AboutTask: booleans.Draw(rt, "about task"), Instance: as(rt, "instance", r.Instance, instances),
		TaskARN: as(rt, "task", r.TaskARN, tasks), TTLSeconds: draw.SampledFrom([]int64{r.TTLSeconds, r.TTLSeconds, r.TTLSeconds + 1}).Draw(rt, "ttl"),
		SpendCap: draw.SampledFrom([]core.Dollars{r.SpendCap, r.SpendCap, r.SpendCap + 1}).Draw(rt, "spend cap"),
	}
}

func drawAppend(rt *draw.T, r core.Run) core.Transition {
	from := as(rt, "from", r.LogEnd, sizes)
	end := from + sizes.Draw(rt, "length")
	return core.Append{
		Epoch: as(rt, "epoch", r.Epoch, epochs), From: from, End: end, Hash: []byte{1, byte(end)}, Tail: []byte{2, byte(end)},
		Omitted: sizes.Draw(rt, "lacking"),
		Sealed: maybe(rt, "to seal", func(rt *draw.T) core.Sealed {
			return core.Sealed{
				ExitCode: draw.Range(0, 1).Draw(rt, "exit"), At: times.Draw(rt, "at"),
				Stderr: texts.Draw(rt, "stderr"), Side: texts.Draw(rt, "side"),
			}
		}),
	}
}

func drawFinish(rt *draw.T, r core.Run) core.Transition {
	t := core.Finish{
		Epoch: as(rt, "epoch", r.Epoch, epochs), Nonce: as(rt, "mine", r.ClaimNonce, nonces), Now: moments.Draw(rt, "now"),
		Status:     as(rt, "becomes", core.Failed, statuses),
		Transcript: core.Transcript{Bytes: as(rt, "log end", r.LogEnd, sizes), SHA256: "00", Complete: booleans.Draw(rt, "whole")},
		Owes:       booleans.Draw(rt, "a checkpoint"), Stored: draw.SampledFrom([]core.CheckpointID{"", "", "c"}).Draw(rt, "stored"),
		Reclaim: kinds.Draw(rt, "owes"), NotBefore: moments.Draw(rt, "notBefore"), ExpiresAt: times.Draw(rt, "expires"),
	}
	t.Error = maybe(rt, "with error", func(rt *draw.T) core.RunError { return core.RunError{Code: "c", Message: texts.Draw(rt, "text")} })
	t.ExitCode = maybe(rt, "with exit", func(rt *draw.T) int { return draw.Range(0, 2).Draw(rt, "exit") })
	return t
}

func drawInterrupt(rt *draw.T, r core.Run) core.Transition {
	return core.Interrupt{Epoch: as(rt, "epoch", r.Epoch, epochs), Now: moments.Draw(rt, "now"), Until: moments.Draw(rt, "until")}
}

func drawRequestCancel(rt *draw.T, r core.Run) core.Transition {
	return core.RequestCancel{Now: moments.Draw(rt, "now"), Row: as(rt, "row as", r.Row, rows)}
}

func drawHint(rt *draw.T, r core.Run) core.Transition {
	return core.Hint{
		TaskARN: as(rt, "task", r.TaskARN, tasks), TaskStoppedAt: times.Draw(rt, "stopped"), ExitedAt: times.Draw(rt, "exited"), First: booleans.Draw(rt, "first"),
		Row: as(rt, "row as", r.Row, rows), DueAt: as(rt, "due as", r.DueAt, times), Lapse: moments.Draw(rt, "lapse"),
	}
}

func drawReclaimLater(rt *draw.T, r core.Run) core.Transition {
	return core.ReclaimLater{
		Instance: as(rt, "instance", r.Instance, instances), Outcome: outcomes.Draw(rt, "becomes"),
		NotBefore: moments.Draw(rt, "notBefore"), Attempts: draw.Range(0, 3).Draw(rt, "attempts so far"),
	}
}

func drawNameInstance(rt *draw.T, r core.Run) core.Transition {
	return core.NameInstance{
		Epoch: as(rt, "epoch", r.Epoch, epochs), Old: as(rt, "old", r.Instance, instances), Instance: instances.Draw(rt, "new"),
		Key: "k", Provider: texts.Draw(rt, "becomes provider"), Cluster: texts.Draw(rt, "becomes cluster"),
	}
}

// claimable is a detached run without a live claim; it may be ending or held.
func claimable(rt *draw.T, r core.Run) core.Run {
	r.Status, r.Row, r.ClaimUntil = core.Running, core.RowDetached, 0
	r.Hold.Until = draw.SampledFrom([]core.Millis{0, 9000}).Draw(rt, "held until")
	return placed(rt, r)
}

// drawSandbox draws any instance record.
func drawSandbox(rt *draw.T, number int64) core.Sandbox {
	return core.Sandbox{
		Key: core.SandboxKey(fmt.Sprint("key", number)), Instance: instances.Draw(rt, "instance"),
		Material: core.KeyMaterial{
			Provider: texts.Draw(rt, "provider"), Definition: texts.Draw(rt, "definition"), Tenant: "acme",
			Thread: core.ThreadID(texts.Draw(rt, "thread")), Run: core.RunID(texts.Draw(rt, "run")), WorkspaceHash: texts.Draw(rt, "hash"),
		},
		TaskARN: tasks.Draw(rt, "task"), Cluster: texts.Draw(rt, "cluster"), Container: texts.Draw(rt, "container"),
		LatestRun: core.RunID(texts.Draw(rt, "latestRun")), HoldUntil: times.Draw(rt, "holdUntil"),
		CreatedAt: times.Draw(rt, "createdAt"), UpdatedAt: times.Draw(rt, "updatedAt"), Reclaiming: texts.Draw(rt, "reclaiming"),
		Exec: drawExecHold(rt, "exec"), IdleSince: times.Draw(rt, "idleSince"), DueAt: times.Draw(rt, "dueAt"),
		LatestSnapshot: core.SnapshotID(texts.Draw(rt, "snapshot")),
	}
}

// drawExecHold draws any hold of a container's exec sessions, or none.
func drawExecHold(rt *draw.T, label string) core.ExecHold {
	return core.ExecHold{
		ExecHolder: core.ExecHolder{By: texts.Draw(rt, label+" by"), Epoch: draw.SampledFrom([]int64{0, 1, 2}).Draw(rt, label+" epoch")},
		Until:      times.Draw(rt, label+" until"),
	}
}

// sandboxTransitions draws each transition of an instance record.
var sandboxTransitions = map[string]drawing[core.Sandbox, core.SandboxTransition]{
	"MarkReclaiming": {draw: func(rt *draw.T, box core.Sandbox) core.SandboxTransition {
		return core.MarkReclaiming{
			Instance: as(rt, "instance", box.Instance, instances), By: nonces.Draw(rt, "mine"), Now: moments.Draw(rt, "now"),
			LatestRun: core.RunID(as(rt, "latest", string(box.LatestRun), texts)), Idle: booleans.Draw(rt, "idle"),
		}
	}},
	"Unmark": {draw: func(rt *draw.T, box core.Sandbox) core.SandboxTransition {
		return core.Unmark{
			Instance: as(rt, "instance", box.Instance, instances), By: as(rt, "mine", box.Reclaiming, texts),
			DueAt: times.Draw(rt, "due"), Now: moments.Draw(rt, "now"),
		}
	}},
	"HoldExec": {draw: func(rt *draw.T, box core.Sandbox) core.SandboxTransition {
		return core.HoldExec{
			Instance: as(rt, "instance", box.Instance, instances),
			Was: core.ExecHold{
				ExecHolder: core.ExecHolder{By: as(rt, "by as read", box.Exec.By, texts), Epoch: as(rt, "epoch as read", box.Exec.Epoch, epochs)},
				Until:      as(rt, "until as read", box.Exec.Until, times),
			},
			Hold: drawExecHold(rt, "hold"),
		}
	}},
	"MarkIdle": {draw: func(rt *draw.T, box core.Sandbox) core.SandboxTransition {
		return core.MarkIdle{
			Instance: as(rt, "instance", box.Instance, instances), By: as(rt, "mine", box.Reclaiming, texts),
			Since: moments.Draw(rt, "since"), DueAt: moments.Draw(rt, "due"), Hold: times.Draw(rt, "hold"),
			Snapshot: core.SnapshotID(texts.Draw(rt, "snapshot of the run")),
		}
	}},
	"NoteSnapshot": {draw: func(rt *draw.T, box core.Sandbox) core.SandboxTransition {
		return core.NoteSnapshot{
			Instance: as(rt, "instance", box.Instance, instances), Run: core.RunID(as(rt, "latest", string(box.LatestRun), texts)),
			Snapshot: core.SnapshotID(nonces.Draw(rt, "noted")),
		}
	}},
}

// drawRow draws any ledger row.
func drawRow(rt *draw.T, number int64) core.LedgerRow {
	return core.LedgerRow{
		Instance: core.InstanceID(fmt.Sprint(draw.SampledFrom(awkward).Draw(rt, "instance"), number)),
		Key:      core.SandboxKey(texts.Draw(rt, "key")), Provider: texts.Draw(rt, "provider"), Tenant: "acme",
		Run: core.RunID(texts.Draw(rt, "run")), State: states.Draw(rt, "state"), LaunchUntil: times.Draw(rt, "launchUntil"),
		TaskARN: tasks.Draw(rt, "task"), Cluster: texts.Draw(rt, "cluster"), DueAt: times.Draw(rt, "dueAt"),
		Attempts: draw.Range(0, 2).Draw(rt, "attempts"), Why: texts.Draw(rt, "why"), UpdatedAt: times.Draw(rt, "updatedAt"),
		Missing: times.Draw(rt, "missing"), Owed: debtors.Draw(rt, "owed"), Quota: draw.Range(0, 1).Draw(rt, "quota"), Metered: meterings.Draw(rt, "metered"),
	}
}

// amounts are of money, often none.
var amounts = draw.SampledFrom([]core.Dollars{0, 0, 1, 20_000, core.MostDollars})

// meterings are what a row is metered by, often nothing.
var meterings = draw.SampledFrom([]core.Metering{{}, {}, {Price: 20_000, Since: 3000}, {Price: 7, Since: 2_678_400_001}})

// unmetered is a row whose task nobody has metered yet.
func unmetered(_ *draw.T, row core.LedgerRow) core.LedgerRow {
	row.State, row.Metered = core.LedgerRunning, core.Metering{}
	return row
}

// debtors are whose checkpoint a row owes, most often nobody's.
var debtors = draw.SampledFrom([]core.RunID{"", "", "r0", "a/b"})

// ledgerTransitions draws each transition of a ledger row.
var ledgerTransitions = map[string]drawing[core.LedgerRow, core.LedgerTransition]{
	"StopLaunch": {draw: func(rt *draw.T, row core.LedgerRow) core.LedgerTransition {
		return core.StopLaunch{TaskARN: tasks.Draw(rt, "mine"), Why: texts.Draw(rt, "becomes why"), Now: moments.Draw(rt, "now"), DueAt: moments.Draw(rt, "due")}
	}},
	"CloseRow": {draw: func(rt *draw.T, row core.LedgerRow) core.LedgerTransition {
		return core.CloseRow{
			From: as(rt, "from", row.State, states), Why: texts.Draw(rt, "becomes why"), Now: moments.Draw(rt, "now"),
			TaskARN: as(rt, "task", row.TaskARN, tasks), Quota: as(rt, "quota", row.Quota, draw.Range(0, 1)), Tenant: row.Tenant,
			Metered: as(rt, "metered", row.Metered, meterings),
		}
	}},
	"StartMeter": {shape: unmetered, draw: func(rt *draw.T, row core.LedgerRow) core.LedgerTransition {
		return core.StartMeter{
			Tenant:   core.TenantID(as(rt, "tenant", string(row.Tenant), texts)),
			Metering: core.Metering{Price: 1 + amounts.Draw(rt, "price"), Since: moments.Draw(rt, "since")},
		}
	}},
	"SettleDebt": {draw: func(rt *draw.T, row core.LedgerRow) core.LedgerTransition {
		return core.SettleDebt{Owed: as(rt, "debtor", row.Owed, debtors), Now: moments.Draw(rt, "now")}
	}},
	"NameTask": {shape: condemned, draw: func(rt *draw.T, row core.LedgerRow) core.LedgerTransition {
		return core.NameTask{TaskARN: tasks.Draw(rt, "mine"), Now: moments.Draw(rt, "now")}
	}},
	"Postpone": {draw: func(rt *draw.T, row core.LedgerRow) core.LedgerTransition {
		return core.Postpone{
			State: as(rt, "from", row.State, states), DueAt: moments.Draw(rt, "due"), Missing: times.Draw(rt, "missing"),
			Attempts: as(rt, "attempts as read", row.Attempts, draw.Range(0, 2)),
		}
	}},
}

// condemned is a row that ECS has not been asked about.
func condemned(_ *draw.T, row core.LedgerRow) core.LedgerRow {
	row.State, row.TaskARN = core.LedgerStopping, ""
	return row
}

// drawTrio draws what a transaction may meet; the record may be absent.
func drawTrio(rt *draw.T) trio {
	n := number.Add(1)
	v := trio{run: drawRun(rt, n), row: drawRow(rt, n)}
	v.box = maybe(rt, "record", func(rt *draw.T) core.Sandbox { return drawSandbox(rt, n) })
	v.run.Instance = as(rt, "run's instance", v.row.Instance, instances)
	if v.box != nil {
		v.box.Instance = as(rt, "record's instance", v.row.Instance, instances)
	}
	if booleans.Draw(rt, "about to launch") {
		v.run.Status, v.run.TaskARN, v.row.State, v.box = core.Running, "", core.LedgerIntent, nil
	}
	return v
}

// keyOf is the record's key, whether it is there or not.
func keyOf(rt *draw.T, v trio) core.SandboxKey {
	if v.box != nil {
		return v.box.Key
	}
	return core.SandboxKey(fmt.Sprint("absent", number.Add(1)))
}

func drawLaunched(rt *draw.T, v trio) core.Launched {
	box := drawSandbox(rt, 0)
	box.Key, box.Instance = keyOf(rt, v), v.row.Instance
	box.TaskARN = as(rt, "my task", v.row.TaskARN, tasks)
	return core.Launched{Run: v.run.RunKey, Epoch: as(rt, "epoch", v.run.Epoch, epochs), Sandbox: box, Now: moments.Draw(rt, "now")}
}

func drawCondemn(rt *draw.T, v trio) core.Condemn {
	t := core.Condemn{Instance: v.row.Instance, Key: keyOf(rt, v), Why: texts.Draw(rt, "becomes why"), Now: moments.Draw(rt, "now"), DueAt: moments.Draw(rt, "due")}
	switch {
	case booleans.Draw(rt, "some attempt"): // most often not the one that is marked
		t.By = texts.Draw(rt, "mine")
	case v.box != nil:
		t.By = v.box.Reclaiming
	}
	return t
}

func drawMoveDebt(rt *draw.T, v trio) core.MoveDebt {
	return core.MoveDebt{
		Run: v.run.RunKey, Instance: v.row.Instance, Older: as(rt, "older", v.row.Owed, debtors), Outcome: outcomes.Draw(rt, "becomes"), Now: moments.Draw(rt, "now"), ExpiresAt: times.Draw(rt, "expires"),
	}
}

// indebted brings a trio to where a debt most often moves.
func indebted(rt *draw.T, v trio) trio {
	if booleans.Draw(rt, "as it is") {
		return v
	}
	v.run.Status, v.run.Row, v.run.Instance, v.row.State = core.Completed, core.RowReclaim, v.row.Instance, core.LedgerRunning
	v.run.Checkpoint.State = core.CheckpointOwed
	v.run = placed(rt, v.run)
	return v
}

// drawControl draws any settings.
func drawControl(rt *draw.T, _ int64) core.Control {
	c := core.Control{
		Mode:    draw.SampledFrom([]core.Mode{"", core.Observe, core.Enforce}).Draw(rt, "mode"),
		Breaker: core.Breaker{WindowStart: times.Draw(rt, "window"), Count: int(sizes.Draw(rt, "count")), TrippedAt: times.Draw(rt, "tripped"), QuietUntil: times.Draw(rt, "quiet")},
	}
	if booleans.Draw(rt, "frozen") {
		c.Frozen, c.FrozenAt, c.FrozenBy, c.FrozenWhy = true, times.Draw(rt, "frozenAt"), texts.Draw(rt, "frozenBy"), texts.Draw(rt, "frozenWhy")
	}
	return c
}

// controlTransitions draws each transition of the settings.
var controlTransitions = map[string]drawing[core.Control, core.ControlTransition]{
	"SetMode": {draw: func(rt *draw.T, _ core.Control) core.ControlTransition {
		return core.SetMode{Mode: draw.SampledFrom([]core.Mode{core.Observe, core.Enforce, "both"}).Draw(rt, "becomes")}
	}},
	"Freeze": {draw: func(rt *draw.T, _ core.Control) core.ControlTransition {
		return core.Freeze{Now: moments.Draw(rt, "now"), By: texts.Draw(rt, "by"), Why: texts.Draw(rt, "why")}
	}},
	"Thaw": {draw: func(rt *draw.T, _ core.Control) core.ControlTransition {
		return core.Thaw{QuietUntil: times.Draw(rt, "quiet until")}
	}},
	"CountEnds": {draw: func(rt *draw.T, c core.Control) core.ControlTransition {
		seen := c.Breaker
		seen.Count = as(rt, "count", c.Breaker.Count, draw.Range(0, 2))
		seen.WindowStart = as(rt, "window", c.Breaker.WindowStart, times)
		return core.CountEnds{
			Seen: seen, N: draw.Range(0, 3).Draw(rt, "ends"), Now: moments.Draw(rt, "now"),
			Window: time.Second, Most: draw.Range(1, 9).Draw(rt, "most"),
		}
	}},
}
