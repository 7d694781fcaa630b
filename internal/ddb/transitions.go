package ddb

import (
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/expression"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// runChange says each transition of a run record in DynamoDB's words. It means
// exactly what the transition's Apply means; coretest holds the two together.
func runChange(key core.RunKey, t core.Transition) (*change, error) {
	c := newChange(runPK(key))
	switch t := t.(type) {
	case core.Renew:
		renew(c, t)
	case core.Detach:
		c.need(is("status", core.Running), is("driverEpoch", t.Epoch), gone("cancelRequested"))
		c.remove("attachedUntil")
		c.detach(t.Now)
	case core.Lapse:
		lapse(c, t)
	case core.CancelDue:
		c.need(is("status", core.Running), is("dueKind", core.RowCancel), is("dueAt", t.DueAt))
		c.remove("attachedUntil")
		c.detach(t.DueAt)
	case core.Attach:
		attach(c, t)
	case core.Claim:
		claim(c, t)
	case core.Release:
		c.need(open(), is("driverEpoch", t.Epoch))
		c.remove("claimUntil")
	case core.Append:
		appendLog(c, t)
	case core.Finish:
		finish(c, t)
	case core.Interrupt:
		interrupt(c, t)
	case core.RequestCancel:
		requestCancel(c, t)
	case core.Hint:
		hint(c, t)
	case core.ReclaimDone:
		c.need(over(), stands(core.RowReclaim), is("instanceId", t.Instance), owes().Not())
		c.set("reclaimOutcome", t.Outcome)
		c.settle()
		c.keep(t.ExpiresAt)
	case core.ReclaimLater:
		c.need(over(), stands(core.RowReclaim), is("instanceId", t.Instance))
		c.set("reclaimOutcome", t.Outcome)
		c.set("reclaimAttempts", t.Attempts)
		c.due(core.RowReclaim, t.NotBefore)
	case core.NameInstance:
		nameInstance(c, t)
	case core.SetHold:
		setHold(c, t)
	case core.NoteCheckpoint:
		noteCheckpoint(c, t)
	case core.NoteStart:
		noteStart(c, t)
	case core.AddBearer:
		addBearer(c, t)
	case core.NoteFiles:
		noteFiles(c, t)
	case core.EndRun:
		endRun(c, t)
	case core.SetTTL:
		c.need(is("status", core.Running), gone("ending"))
		if t.Was != nil {
			c.need(is("ttlSeconds", *t.Was))
		}
		c.set("ttlSeconds", t.Seconds)
	case core.SetSpendCap:
		c.need(is("status", core.Running), gone("ending"))
		c.set("spendCap", t.Cap)
	case core.NotePrice:
		c.need(is("status", core.Running), is("driverEpoch", t.Epoch), is("taskArn", t.TaskARN))
		c.set("price", t.Price)
	default:
		return nil, fmt.Errorf("no conditional write for transition %T", t)
	}
	return c, nil
}

func renew(c *change, t core.Renew) {
	c.need(is("status", core.Running), is("driverEpoch", t.Epoch), gone("cancelRequested"))
	c.set("attachedUntil", t.Until)
	c.remove("detachedSince")
	c.due(core.RowLapse, t.Until)
}

func lapse(c *change, t core.Lapse) {
	c.need(is("status", core.Running), is("dueKind", core.RowLapse), is("dueAt", t.DueAt))
	if t.Cancel {
		c.set("cancelRequested", t.DueAt)
	}
	c.remove("attachedUntil")
	c.detach(t.DueAt)
}

func attach(c *change, t core.Attach) {
	c.need(is("status", core.Running), gone("ending"), gone("cancelRequested"), is("driverEpoch", t.Seen))
	if !t.Takeover {
		c.need(there("detachedShard").Or(is("dueKind", core.RowLapse).And(atMost("dueAt", t.Now))))
	}
	c.set("driverEpoch", t.Seen+1)
	c.set("claimNonce", t.Nonce)
	c.set("attachedUntil", t.Until)
	c.remove("claimUntil", "detachedSince")
	c.due(core.RowLapse, t.Until)
}

func claim(c *change, t core.Claim) {
	if t.Paused {
		c.need(is("status", core.Interrupted), is("interruptedSince", t.Since))
	} else {
		c.need(is("status", core.Running), there("detachedShard"), is("detachedSince", t.Since))
	}
	c.need(is("driverEpoch", t.Seen), atMost("claimUntil", t.Now))
	if t.AboutTask {
		c.need(is("instanceId", t.Instance), is("taskArn", t.TaskARN))
	}
	if t.Ending != "" {
		c.need(gone("ending"))
		c.set("ending", endingRow{Reason: t.Ending, At: t.Now})
	}
	switch t.Ending {
	case core.EndExpired:
		c.need(is("ttlSeconds", t.TTLSeconds), atMost("hold.until", t.Now))
	case core.EndSpendCap:
		c.need(is("spendCap", t.SpendCap), atMost("hold.until", t.Now))
	case core.EndCancelled:
		c.need(there("cancelRequested"))
	}
	c.set("driverEpoch", t.Seen+1)
	c.set("claimNonce", t.Nonce)
	c.set("claimUntil", t.Until)
}

func appendLog(c *change, t core.Append) {
	c.need(open(), is("driverEpoch", t.Epoch), gone("sealed"), is("logEnd", t.From))
	c.set("logEnd", t.End)
	c.set("logHash", t.Hash)
	c.set("logTail", t.Tail)
	c.set("logOmitted", t.Omitted)
	if t.Sealed != nil {
		c.set("sealed", (*sealedRow)(t.Sealed))
	}
}

func finish(c *change, t core.Finish) {
	c.need(open(), is("driverEpoch", t.Epoch), is("logEnd", t.Transcript.Bytes))
	if !t.Status.Terminal() {
		c.never()
	}
	c.set("status", t.Status)
	c.set("finishedAt", t.Now)
	c.set("error", (*errorRow)(t.Error))
	c.set("exitCode", t.ExitCode)
	c.update = c.update.Set(expression.Name("transcript"), expression.Value(transcriptRow(t.Transcript)))
	c.set("reclaimKind", t.Reclaim)
	c.remove("claimUntil", "attachedUntil")
	if t.Owes {
		c.set("checkpoint", checkpointRow{State: core.CheckpointOwed})
	}
	if t.Stored != "" {
		c.set("checkpoint", checkpointRow{State: core.CheckpointDone, ID: t.Stored})
	}
	if t.Owes && t.Stored != "" {
		c.never()
	}
	if t.Owes && t.Reclaim == core.ReclaimNone {
		c.never()
	}
	if t.Reclaim == core.ReclaimNone {
		c.remove("reclaimSince")
		c.settle()
		c.keep(t.ExpiresAt)
		return
	}
	c.keep(0)
	c.set("reclaimSince", t.Now)
	c.due(core.RowReclaim, t.NotBefore)
}

func interrupt(c *change, t core.Interrupt) {
	c.need(is("status", core.Running), is("driverEpoch", t.Epoch), gone("cancelRequested"))
	c.set("status", core.Interrupted)
	c.set("interruptedSince", t.Now)
	c.remove("attachedUntil", "detachedSince", "claimUntil")
	c.due(core.RowPause, t.Until)
}

func requestCancel(c *change, t core.RequestCancel) {
	c.need(open(), stands(t.Row))
	c.setOnce("cancelRequested", t.Now)
	if t.Row == core.RowLapse || t.Row == core.RowPause {
		c.due(core.RowCancel, t.Now.Add(core.CancelGrace))
	}
}

func hint(c *change, t core.Hint) {
	c.need(open(), is("taskArn", t.TaskARN), stands(t.Row), is("dueAt", t.DueAt))
	if t.First {
		c.need(gone("exitedAt"))
	}
	if t.TaskStoppedAt != 0 {
		c.set("taskStoppedAt", t.TaskStoppedAt)
	}
	if t.ExitedAt != 0 {
		c.set("exitedAt", t.ExitedAt)
	}
	if t.Row == core.RowLapse {
		c.due(core.RowLapse, t.Lapse)
		c.set("attachedUntil", t.Lapse)
	}
}

func nameInstance(c *change, t core.NameInstance) {
	c.need(is("status", core.Running), is("driverEpoch", t.Epoch), gone("ending"), gone("taskArn"), is("instanceId", t.Old))
	c.set("instanceId", t.Instance)
	c.set("sandboxKey", t.Key)
	c.set("provider", t.Provider)
	c.set("cluster", t.Cluster)
}

// owes is the condition that a run's mark must stay for its checkpoint.
func owes() expression.ConditionBuilder {
	return expression.Name("checkpoint.state").In(expression.Value(core.CheckpointOwed), expression.Value(core.CheckpointFailed))
}

func noteCheckpoint(c *change, t core.NoteCheckpoint) {
	c.need(over(), is("checkpoint.state", t.From), owes().Or(is("checkpoint.state", core.CheckpointMoved)))
	if t.Checkpoint.State == core.CheckpointNotOwed {
		c.never()
	}
	c.set("checkpoint", checkpointRow(t.Checkpoint))
}

func setHold(c *change, t core.SetHold) {
	c.need(open().Or(there("detachedShard"), there("dueShard"), is("reclaimOutcome", core.ReclaimIdled)))
	switch {
	case t.Was == nil:
	case *t.Was == (core.Hold{}):
		c.need(gone("hold"))
	default:
		c.need(same("hold.until", t.Was.Until), same("hold.by", t.Was.By), same("hold.why", t.Was.Why), same("hold.id", t.Was.ID))
	}
	if t.Hold == (core.Hold{}) {
		c.remove("hold")
		return
	}
	c.set("hold", holdRow(t.Hold))
}

// sandboxChange says each transition of an instance record likewise.
func sandboxChange(key core.SandboxKey, t core.SandboxTransition) (*change, error) {
	c := newChange(sandboxPK(key))
	switch t := t.(type) {
	case core.MarkReclaiming:
		c.need(is("instanceId", t.Instance), is("latestRun", t.LatestRun))
		if t.Idle {
			c.need(there("dueShard"))
		}
		c.set("reclaiming", t.By)
		c.set("updatedAt", t.Now)
	case core.Unmark:
		c.need(is("instanceId", t.Instance), is("reclaiming", t.By))
		if t.DueAt != 0 {
			c.need(there("dueShard"))
			c.dueAt(t.DueAt)
		}
		c.remove("reclaiming")
		c.set("updatedAt", t.Now)
	case core.HoldExec:
		c.need(is("instanceId", t.Instance), is("execUntil", t.Was.Until), is("execBy", t.Was.By), is("execEpoch", t.Was.Epoch))
		c.set("execUntil", t.Hold.Until)
		c.set("execBy", t.Hold.By)
		c.set("execEpoch", t.Hold.Epoch)
	case core.MarkIdle:
		c.need(is("instanceId", t.Instance), is("reclaiming", t.By))
		c.remove("reclaiming")
		c.set("idleSince", t.Since)
		c.set("updatedAt", t.Since)
		c.set("holdUntil", t.Hold)
		if t.Snapshot != "" {
			c.set("latestSnapshotId", t.Snapshot)
		}
		c.dueAt(t.DueAt)
	case core.NoteSnapshot:
		c.need(is("instanceId", t.Instance), is("latestRun", t.Run), gone("reclaiming"))
		c.set("latestSnapshotId", t.Snapshot)
	default:
		return nil, fmt.Errorf("no conditional write for transition %T", t)
	}
	return c, nil
}

// closedFor is how long a closed ledger row is kept for people to look at.
const closedFor = 7 * 24 * time.Hour

// expiry is when a row closed at t may be deleted, in seconds.
func expiry(t core.Millis) int64 { return t.Add(closedFor).Time().Unix() }

// ledgerChange says each transition of a ledger row likewise.
func ledgerChange(id core.InstanceID, t core.LedgerTransition) (*change, error) {
	c := newChange(rowPK(id))
	switch t := t.(type) {
	case core.StopLaunch:
		c.need(is("state", core.LedgerIntent))
		c.set("taskArn", t.TaskARN)
		stopRow(c, t.Why, t.Now, t.DueAt)
	case core.CloseRow:
		closeRow(c, t)
	case core.StartMeter:
		startMeter(c, t)
	case core.NameTask:
		c.need(is("state", core.LedgerStopping), gone("taskArn"))
		c.set("taskArn", t.TaskARN)
		c.set("updatedAt", t.Now)
	case core.SettleDebt:
		c.need(there("owed"), is("owed", t.Owed), expression.Name("state").NotEqual(expression.Value(core.LedgerClosed)))
		c.remove("owed")
		c.set("updatedAt", t.Now)
	case core.Postpone:
		c.need(is("state", t.State), is("attempts", t.Attempts))
		if t.State != core.LedgerIntent && t.State != core.LedgerStopping {
			c.never()
		}
		c.set("attempts", t.Attempts+1)
		c.set("missing", t.Missing)
		c.dueAt(t.DueAt)
	default:
		return nil, fmt.Errorf("no conditional write for transition %T", t)
	}
	return c, nil
}

// startMeter is the row's part of it; the tenant's meter moves with it.
func startMeter(c *change, t core.StartMeter) {
	c.need(is("state", core.LedgerRunning), is("tenant", t.Tenant), gone("price"), gone("pricedSince"))
	if t.Price <= 0 || t.Since <= 0 {
		c.never()
	}
	c.set("price", t.Price)
	c.set("pricedSince", t.Since)
}

// stopRow is what condemns a row.
func stopRow(c *change, why string, now, dueAt core.Millis) {
	c.set("state", core.LedgerStopping)
	c.set("why", why)
	c.set("updatedAt", now)
	c.remove("attempts")
	c.dueAt(dueAt)
}

func closeRow(c *change, t core.CloseRow) {
	c.need(is("state", t.From), is("taskArn", t.TaskARN), gone("owed"), is("quota", t.Quota),
		is("price", t.Metered.Price), is("pricedSince", t.Metered.Since))
	if t.Quota != 0 || t.Metered != (core.Metering{}) {
		c.need(is("tenant", t.Tenant))
	}
	if t.From != core.LedgerIntent && t.From != core.LedgerStopping {
		c.never()
	}
	c.set("state", core.LedgerClosed)
	c.set("updatedAt", t.Now)
	c.set("expiresAt", expiry(t.Now))
	if t.Why != "" {
		c.setOnce("why", t.Why)
	}
	c.dueAt(0)
}

// controlChange says each transition of the settings likewise.
func controlChange(t core.ControlTransition) (*change, error) {
	c := newUpsert()
	switch t := t.(type) {
	case core.SetMode:
		if t.Mode != core.Observe && t.Mode != core.Enforce {
			c.never()
		}
		c.set("mode", t.Mode)
	case core.Freeze:
		c.set("frozen", true)
		c.set("frozenAt", t.Now)
		c.set("frozenBy", t.By)
		c.set("frozenWhy", t.Why)
	case core.Thaw:
		c.remove("frozen", "frozenAt", "frozenBy", "frozenWhy", "windowStart", "count", "trippedAt")
		c.set("quietUntil", t.QuietUntil)
	case core.CountEnds:
		c.need(is("windowStart", t.Seen.WindowStart), is("count", t.Seen.Count), is("trippedAt", t.Seen.TrippedAt), is("quietUntil", t.Seen.QuietUntil))
		next := t.Next()
		c.set("windowStart", next.WindowStart)
		c.set("count", next.Count)
		c.set("trippedAt", next.TrippedAt)
	default:
		return nil, fmt.Errorf("no conditional write for transition %T", t)
	}
	return c, nil
}
