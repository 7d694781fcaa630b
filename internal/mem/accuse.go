package mem

import (
	"reflect"
	"slices"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// accuse reports a broken rule; the write goes on, so that the test shows what
// follows from it.
func (s *Store) accuse(holds bool, op, record, rule string) {
	s.t.Helper()
	if !holds {
		s.t.Errorf("mem: %s %s: %s", op, record, rule)
	}
}

// accuseRun checks what no transition may do to a run record.
func (s *Store) accuseRun(op string, before, after core.Run) {
	s.t.Helper()
	need := func(holds bool, rule string) { s.t.Helper(); s.accuse(holds, op, "run "+after.RunKey.String(), rule) }
	need(after.Status.Terminal() || after.Row != core.RowNone, "a run that has not ended stands in an index (I15)")
	need(!after.Status.Terminal() || after.Row == core.RowNone || after.Row == core.RowReclaim, "an ended run has no row but its reclaim mark (I4)")
	need(!after.Row.Due() || after.DueAt != 0, "a due row has a time (I15)")
	if op == "create" {
		return
	}
	if before.Status.Terminal() {
		need(reflect.DeepEqual(unmarked(before), unmarked(after)), "an ended run changes in its reclaim mark only (I4)")
		need(!before.Checkpoint.Settled() || after.Checkpoint == before.Checkpoint, "what became of a checkpoint is final (I5)")
		need(before.Checkpoint.State != core.CheckpointNotOwed || after.Checkpoint.State == core.CheckpointNotOwed, "a checkpoint is owed from the end on (I4)")
	}
	need(after.Status.Terminal() || after.Checkpoint == before.Checkpoint, "a checkpoint is owed by the end of a run (I4)")
	need(!after.Checkpoint.Owes() || after.Row == core.RowReclaim, "a checkpoint that is owed keeps the mark (I5)")
	host := slices.Contains([]string{"attach", "renew", "interrupt"}, op)
	need(before.DetachedSince == 0 || after.DetachedSince != 0 || host, "detachedSince is cleared by a host only (I9)")
	need(before.CancelRequested == 0 || after.CancelRequested == before.CancelRequested, "a cancel is never taken back (I9)")
	need(before.CancelRequested != 0 || after.CancelRequested == 0 || op == "cancel" || op == "lapse", "cancelRequested is a user's wish (I9)")
	need(after.Epoch == before.Epoch || after.Epoch == before.Epoch+1, "an epoch grows by one (I3)")
	need(after.Epoch == before.Epoch || after.ClaimNonce != before.ClaimNonce, "every claim has its own nonce (I3)")
	need(after.LogEnd >= before.LogEnd, "a log's end never goes back (I3)")
	need(before.Sealed == nil || reflect.DeepEqual(before.Sealed, after.Sealed), "a sealed log stays as it is (I4)")
	need(before.Sealed == nil || before.LogEnd == after.LogEnd, "nothing is appended to a sealed log (I4)")
	need(before.Ending == nil || reflect.DeepEqual(before.Ending, after.Ending), "an ending is final (I9)")
	need(before.TaskARN == "" || after.TaskARN == before.TaskARN, "a run with a task keeps it (I6)")
	if after.TaskARN != before.TaskARN || after.Instance != before.Instance {
		need(op == "name instance" || op == "launched" || op == "resumed", "only a launch or a resume binds a task (I6)")
	}
}

// unmarked is r without its reclaim mark, and without what an operator may still
// say of it.
func unmarked(r core.Run) core.Run {
	r.Hold = core.Hold{}
	r.Row, r.DueAt, r.ReclaimAttempts, r.ReclaimOutcome, r.ExpiresAt = "", 0, 0, "", 0
	r.Checkpoint = core.RunCheckpoint{}
	return r
}

// accuseRow checks what no transition may do to a ledger row.
func (s *Store) accuseRow(op string, before, after core.LedgerRow) {
	s.t.Helper()
	need := func(holds bool, rule string) {
		s.t.Helper()
		s.accuse(holds, op, "ledger row "+string(after.Instance), rule)
	}
	age := []core.LedgerState{"", core.LedgerIntent, core.LedgerRunning, core.LedgerStopping, core.LedgerClosed}
	need(slices.Index(age, after.State) >= slices.Index(age, before.State), "a row never goes back in its life (I6)")
	need(before.State != "" || after.State == core.LedgerIntent, "a row begins as an intent (I6)")
	need(before.State != core.LedgerClosed, "a closed row is over (I6)")
	need(before.TaskARN == "" || before.TaskARN == after.TaskARN, "a row keeps its task (I6)")
	open := after.State == core.LedgerIntent || after.State == core.LedgerStopping
	need(open == (after.DueAt != 0), "a row is due while intent or stopping (I15)")
	need(after.State != core.LedgerIntent || after.LaunchUntil != 0, "a launch has a deadline (I6)")
	need(after.State == core.LedgerRunning || after.Owed == "", "a task is condemned once what its row owes is stored or told as lost (I5)")
	need(after.State != core.LedgerClosed || before.State == core.LedgerStopping || before.TaskARN == "",
		"a row with a task is closed from stopping only (I6)")
}

// accuseSegment checks that a piece of log is what its append says, and is stored.
func (s *Store) accuseSegment(key core.RunKey, a core.Append, segment core.Segment) {
	s.t.Helper()
	need := func(holds bool, rule string) { s.t.Helper(); s.accuse(holds, "append", "run "+key.String(), rule) }
	need(segment.From == a.From && segment.End == a.End && segment.Epoch == a.Epoch, "the segment is not the append's")
	need(segment.Blob == "" || segment.Inline == nil, "a segment's bytes are in one place")
	_, whole := s.bytesOf(segment)
	need(whole, "a segment's bytes are stored before the log's end moves past them (I4)")
}

// accuseJob checks that a message comes after what it is about.
func (s *Store) accuseJob(job core.ReclaimJob) {
	s.t.Helper()
	need := func(holds bool, rule string) {
		s.t.Helper()
		s.accuse(holds, "send", string(job.Kind)+" of "+string(job.Instance), rule)
	}
	switch job.Kind {
	case core.JobEnd, core.JobIdle:
		r, ok := s.runs[core.RunKey{Tenant: job.Tenant, Run: job.Run}]
		need(ok && r.Status.Terminal(), "a run's end is reclaimed after it (I4)")
		need(!ok || r.Instance == job.Instance, "the message names the run's instance (I7)")
	case core.JobLeaving:
		need(job.Key != "" && s.runs[core.RunKey{Tenant: job.Tenant, Run: job.Run}].Instance == job.Instance, "the message names the run's sandbox (I7)")
	case core.JobLedger:
		need(s.rows[job.Instance].State != "", "a ledger message is about a row (I6)")
	case core.JobDue:
		need(job.Key != "", "an idle sandbox has a key")
	default:
		need(false, "unknown kind")
	}
}
