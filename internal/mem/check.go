package mem

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// checker collects what does not hold of one record.
type checker struct {
	t    testing.TB
	what string
}

func (c checker) need(holds bool, rule string) {
	c.t.Helper()
	if !holds {
		c.t.Errorf("check %s: %s", c.what, rule)
	}
}

// Check reports every breach of I3, I4, I6, I9 and I15 in what the store holds.
// It may be called after any step; what a seed left out is a breach too.
func (s *Store) Check(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, r := range s.runs {
		c := checker{t, "run " + key.String()}
		s.checkLog(c, r)
		checkStatus(c, r)
		checkPlace(c, r)
		s.checkTask(c, r)
	}
	for id, row := range s.rows {
		s.checkRow(checker{t, "ledger row " + string(id)}, row)
	}
	for key, box := range s.boxes {
		s.checkBox(checker{t, "sandbox " + string(key)}, box)
	}
}

// checkLog: the segments are the log, whole, in order, by epochs that only grow.
func (s *Store) checkLog(c checker, r core.Run) {
	c.t.Helper()
	var end, epoch int64
	digest := sha256.New()
	for _, segment := range s.segments[r.RunKey] {
		data, whole := s.bytesOf(segment)
		c.need(whole, "a segment does not match its bytes (I3)")
		c.need(segment.From == end, "the log has a gap or an overlap (I3)")
		c.need(segment.Epoch >= epoch && segment.Epoch <= r.Epoch, "a segment was written under a lost claim (I3)")
		end, epoch = segment.End, segment.Epoch
		digest.Write(data)
	}
	c.need(end == r.LogEnd, "the log's end is not the last segment's (I3)")
	sum, err := core.LogSHA256(r)
	c.need(err == nil && sum == hex.EncodeToString(digest.Sum(nil)), "the running digest is not the log's (I3)")
}

// checkStatus: ended and closed are one.
func checkStatus(c checker, r core.Run) {
	c.t.Helper()
	if !r.Status.Terminal() {
		c.need(r.FinishedAt == 0 && r.Transcript == nil && r.ReclaimSince == 0, "a run that has not ended carries an end (I4)")
		return
	}
	c.need(r.FinishedAt != 0 && r.Transcript != nil, "an ended run has its time and transcript (I4)")
	c.need(r.ClaimUntil == 0 && r.AttachedUntil == 0, "an ended run has no driver (I4)")
	c.need((r.Reclaim == core.ReclaimNone) == (r.ReclaimSince == 0), "the mark is written with the end (I4)")
	c.need(r.Row == core.RowNone || r.Reclaim != core.ReclaimNone, "a reclaim row without a kind (I4)")
	c.need(!r.Checkpoint.Owes() || r.Row == core.RowReclaim, "a checkpoint is owed, and nothing leads to it (I5)")
	c.need(r.Reclaim == core.ReclaimNone || r.Row == core.RowReclaim || r.ReclaimOutcome != "", "a mark went without an outcome (I4)")
	if r.Transcript != nil {
		sum, err := core.LogSHA256(r)
		c.need(r.Transcript.Bytes == r.LogEnd && err == nil && r.Transcript.SHA256 == sum, "the transcript is not the log (I4)")
	}
}

// checkPlace: each state has its one row, and the evidence that goes with it.
func checkPlace(c checker, r core.Run) {
	c.t.Helper()
	c.need(!r.Row.Due() || r.DueAt != 0, "a due row has no time (I15)")
	c.need(r.Row.Due() || r.DueAt == 0, "a time without a due row (I15)")
	switch r.Status {
	case core.Running:
		c.need(r.Row == core.RowDetached || r.Row == core.RowLapse || r.Row == core.RowCancel, "a running run is in no index that fits (I15)")
		c.need(r.Row != core.RowDetached || r.DetachedSince != 0 && r.AttachedUntil == 0, "a detached run says since when (I9)")
		c.need(r.Row != core.RowLapse || r.DetachedSince == 0 && r.AttachedUntil != 0, "an attached run is not detached (I9)")
		c.need(r.Row != core.RowLapse || r.AttachedUntil == r.DueAt, "an attachment ends when it lapses (I8)")
		own := r.Ending != nil && (r.Ending.Reason == core.EndFailed || r.Ending.Reason == core.EndCancelled)
		c.need(r.Ending == nil || r.Row == core.RowDetached || own, "only a detached run is ended, unless by its host (I9)")
	case core.Interrupted:
		c.need(r.Row == core.RowPause || r.Row == core.RowCancel, "a paused run is in no index that fits (I15)")
		c.need(r.InterruptedSince != 0 && r.DetachedSince == 0, "a paused run says since when (I9)")
	default:
		c.need(r.Status.Terminal(), "unknown status")
		c.need(r.Row == core.RowNone || r.Row == core.RowReclaim, "an ended run stands in an index for the living (I15)")
	}
	c.need(r.Row != core.RowCancel || r.CancelRequested != 0, "a cancel row without a cancel (I9)")
}

// checkTask: a task is named before it exists.
func (s *Store) checkTask(c checker, r core.Run) {
	c.t.Helper()
	if r.TaskARN == "" {
		return
	}
	row, ok := s.rows[r.Instance]
	c.need(ok, "its task has no ledger row (I6)")
	c.need(!ok || row.TaskARN == r.TaskARN, "its ledger row names another task (I6)")
	c.need(r.Status.Terminal() || !ok || row.State != core.LedgerRunning || s.boxes[r.SandboxKey].Instance == r.Instance,
		"its running task has no instance record (I15)")
}

// checkRow: an open row is due or serves a record.
func (s *Store) checkRow(c checker, row core.LedgerRow) {
	c.t.Helper()
	open := row.State == core.LedgerIntent || row.State == core.LedgerStopping
	c.need(open == (row.DueAt != 0), "a row is due exactly while intent or stopping (I15)")
	c.need(row.Owed == "" || row.State == core.LedgerRunning, "a row whose task nobody finds owes a checkpoint (I5)")
	serves := s.boxes[row.Key].Instance == row.Instance
	c.need((row.State == core.LedgerRunning) == serves, "a row is running exactly while an instance record names it (I6)")
	c.need(row.State != core.LedgerRunning || row.TaskARN != "", "a running row has no task (I6)")
}

// checkBox: a sandbox names a task of the ledger; without a live run it is due.
func (s *Store) checkBox(c checker, box core.Sandbox) {
	c.t.Helper()
	row, ok := s.rows[box.Instance]
	c.need(ok && row.State == core.LedgerRunning && row.TaskARN == box.TaskARN, "it names a task that the ledger does not have running (I6)")
	latest, ok := s.runs[core.RunKey{Tenant: box.Material.Tenant, Run: box.LatestRun}]
	c.need(ok && !latest.Status.Terminal() || ok && latest.Row == core.RowReclaim || box.DueAt != 0,
		"without a live run, nothing leads to it any more (I15)")
	live := 0
	for _, r := range s.runs {
		if !r.Status.Terminal() && r.TaskARN != "" && r.Instance == box.Instance {
			live++
		}
	}
	c.need(live <= 1, "two live runs share it (I7)")
}
