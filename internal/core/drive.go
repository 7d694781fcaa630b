package core

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"
)

// Why a finalisation was paused: the next sweep goes on from the log's end.
var (
	errBudget = errors.New("run budget spent")
	errShare  = errors.New("the sweep's share of bytes is spent")
)

// releaseWithin bounds what follows where a run's budget is spent: one call.
const releaseWithin = 5 * time.Second

// allowance is what the finalisations of one sweep may read together.
type allowance struct{ left atomic.Int64 }

func newAllowance(bytes int64) *allowance {
	a := new(allowance)
	a.left.Store(bytes)
	return a
}

// open refuses once everything is spent. The last page may overdraw.
func (a *allowance) open() error {
	if a.left.Load() <= 0 {
		return errShare
	}
	return nil
}

func (a *allowance) spend(n int) { a.left.Add(-int64(n)) }

// workAll does every job, a few at a time, and begins none that might not end before
// the sweep's timeout.
func (s *Sweep) workAll(ctx context.Context, jobs []job, p policy, begun time.Time) ([]RunReport, []Notice) {
	jobs, held := s.admit(ctx, jobs, p)
	entries := make([]RunReport, len(jobs))
	notices := make([]Notice, len(jobs))
	a := newAllowance(s.Limits.SweepBytes)
	pool(s.Limits.SweepWidth, len(jobs), func(i int) {
		entries[i] = RunReport{RunKey: jobs[i].run.RunKey, Outcome: BudgetExceeded, Reason: "sweep time is over"}
		if time.Since(begun) <= s.Limits.lastStart() {
			entries[i], notices[i] = s.work(ctx, jobs[i], a)
		}
	})
	notices = slices.DeleteFunc(notices, func(n Notice) bool { return n.Type == "" })
	return append(entries, held...), notices
}

// admit lets through what may be ended, and reports the rest as held. Ends without a
// sentinel, a user's wish aside, are announced to the breaker before the first of
// them; where they are too many none of them happens.
func (s *Sweep) admit(ctx context.Context, jobs []job, p policy) ([]job, []RunReport) {
	fresh := 0
	for _, j := range jobs {
		if j.counts() && j.run.Ending == nil {
			fresh++
		}
	}
	control, err := s.count(ctx, p.control, fresh)
	if err == nil && control.EndsUnsealed() {
		return jobs, nil
	}
	why := control.Standing()
	if err != nil {
		why = err.Error()
	}
	var admitted []job
	var held []RunReport
	for _, j := range jobs {
		if !j.counts() {
			admitted = append(admitted, j)
			continue
		}
		held = append(held, RunReport{RunKey: j.run.RunKey, Outcome: Held, Reason: why})
	}
	return admitted, held
}

// counts reports whether a job ends a run that neither ended by itself nor was
// cancelled.
func (j job) counts() bool {
	return (j.decision.act == actEnd || j.decision.act == actConclude) && j.decision.reason != EndCancelled
}

// countTries bounds how often a count reads the breaker again that moved under it.
const countTries = 10

// count announces n ends to the breaker.
func (s *Sweep) count(ctx context.Context, c Control, n int) (Control, error) {
	return counting{s.Controls, s.Breaker, s.Announcer, s.Logger, s.Limits}.count(ctx, c, n)
}

// counting is what counts ends for the breaker.
type counting struct {
	controls  Controls
	breaker   ControlWriter
	announcer Announcer    // nil: nobody is told
	logger    *slog.Logger // nil: none
	limits    Limits
}

// count announces n ends before any of them happens, and tells others if they trip the
// breaker.
func (t counting) count(ctx context.Context, c Control, n int) (Control, error) {
	for range countTries {
		if n == 0 || !c.EndsUnsealed() {
			return c, nil
		}
		next, err := t.breaker.UpdateControl(ctx, CountEnds{
			Seen: c.Breaker, N: n, Now: nowMillis(), Window: t.limits.BreakerWindow, Most: t.limits.BreakerMost,
		})
		if err == nil && next.Breaker.TrippedAt != 0 {
			t.tell(ctx, next.Breaker)
		}
		if !Refused(err) {
			return next, err
		}
		if c, err = t.controls.Control(ctx); err != nil {
			return Control{}, err
		}
	}
	return Control{}, errors.New("count ends: the breaker moves too fast")
}

// tell says that the breaker has tripped. It is not worth failing for.
func (t counting) tell(ctx context.Context, b Breaker) {
	why := fmt.Sprintf("%d ends without a sentinel within %s, at most %d are let", b.Count, t.limits.BreakerWindow, t.limits.BreakerMost)
	if t.logger != nil {
		t.logger.WarnContext(ctx, "breaker", "reason", why, "since", b.TrippedAt)
	}
	if t.announcer == nil {
		return
	}
	err := t.announcer.Announce(ctx, []Notice{{Type: NoticeTripped, Reason: why, At: b.TrippedAt}})
	if err != nil && t.logger != nil {
		t.logger.WarnContext(ctx, "announce", "err", err)
	}
}

// work claims one run and drives it to its end, or as far as its budget lasts.
//
// Order: claim, whose condition holds everything that led here; then, from the
// claim's own image, the last appends; then finish, which is terminal status, closed
// log and reclaim mark in one write; then the message. A crash between any two
// leaves a record from which the next sweep goes on.
func (s *Sweep) work(ctx context.Context, j job, a *allowance) (RunReport, Notice) {
	entry := RunReport{RunKey: j.run.RunKey, Reason: j.decision.why}
	claimed, err := s.Runs.Update(ctx, j.run.RunKey, claimOf(j, nowMillis(), s.Limits))
	if err != nil {
		return entry.failed(err), Notice{}
	}
	budget, cancel := context.WithTimeoutCause(ctx, s.Limits.RunBudget, errBudget)
	defer cancel()
	s = s.holding(claimed)
	defer s.hold.free(ctx)
	if j.decision.act == actRescue && claimed.Sealed == nil {
		return s.rescue(budget, j, claimed, entry, a)
	}
	end, err := s.drive(budget, j, claimed, a)
	if blocked, ok := errors.AsType[*blockedError](err); ok {
		s.release(ctx, claimed)
		entry.Outcome, entry.Reason = Held, blocked.why
		return entry, Notice{}
	}
	if err != nil {
		entry = entry.failed(err)
		if context.Cause(budget) == errBudget || errors.Is(err, errShare) {
			entry.Outcome, entry.BudgetSpent = BudgetExceeded, true
		}
		s.release(ctx, claimed)
		return entry, Notice{}
	}
	return s.close(ctx, j, end, entry)
}

// holding is the sweep as it drives one run to its end: what reads the journal holds the
// container meanwhile, from its first session on.
func (s *Sweep) holding(r Run) *Sweep {
	one := *s
	one.hold = &execHold{sandboxes: s.Sandboxes, key: r.SandboxKey, instance: r.Instance, who: ExecOf(ExecDrain, r)}
	return &one
}

// claimOf is the claim that j's decision needs.
func claimOf(j job, now Millis, l Limits) Claim {
	c := Claim{
		Seen: j.run.Epoch, Since: j.run.DetachedSince, Nonce: rand.Text(), Now: now, Until: now.Add(l.ClaimLease),
		TTLSeconds: j.run.TTLSeconds, SpendCap: j.run.SpendCap, Instance: j.run.Instance, TaskARN: j.run.TaskARN,
	}
	if j.run.Status == Interrupted {
		c.Paused, c.Since = true, j.run.InterruptedSince
	}
	reason := j.decision.reason
	c.AboutTask = j.decision.act == actConclude || j.decision.act == actRescue || reason == EndDied || reason == EndNeverStarted
	if j.run.Ending == nil && reason != EndLost {
		c.Ending = reason
	}
	return c
}

// failed enters an error. A refused write is somebody else's success.
func (e RunReport) failed(err error) RunReport {
	e.Outcome, e.Error = FailedSweep, err.Error()
	if Refused(err) {
		e.Outcome, e.Error, e.Reason, e.Refused = NotClaimed, "", err.Error(), true
	}
	return e
}

// ended is a run whose log is complete as far as it will ever be.
type ended struct {
	run      Run
	complete bool
}

// drive brings the log of a claimed run to its end. A seal in the claim's image
// always wins: nothing is asked or ended any more.
func (s *Sweep) drive(ctx context.Context, j job, r Run, a *allowance) (ended, error) {
	switch {
	case r.Sealed != nil:
		return ended{run: r, complete: true}, nil
	case j.counts(), j.decision.act == actEnd:
		if err := s.unblocked(ctx, j); err != nil {
			return ended{}, err
		}
	}
	switch j.decision.act {
	case actConclude:
		return ended{run: r, complete: r.TaskARN == ""}, nil // without a task, no agent wrote anything
	case actFinalize:
		return s.finalize(ctx, j, r, a)
	}
	return s.end(ctx, r, a)
}

// rescue appends what the journal of a run has whose task is about to end. Unless its agent
// has ended meanwhile the run goes on: what comes after is for the sweep that finds the task
// gone, as far as the spool has it.
func (s *Sweep) rescue(ctx context.Context, j job, r Run, entry RunReport, a *allowance) (RunReport, Notice) {
	end, err := s.drain(ctx, r, false, a)
	if err == nil && end.run.Sealed != nil {
		j.decision.act = actFinalize
		return s.close(ctx, j, end, entry)
	}
	s.release(ctx, r)
	if err != nil {
		return entry.failed(err), Notice{}
	}
	entry.Outcome = Producing
	return entry, Notice{}
}

// blockedError is why a claimed run is not ended, or something not removed, now.
type blockedError struct{ why string }

func (e *blockedError) Error() string { return "kept back: " + e.why }

// unblocked reads the operator's settings after the claim, as whoever destroys must: what
// was set meanwhile is honoured (I13). Freeze and breaker let a user's wish be carried out.
func (s *Sweep) unblocked(ctx context.Context, j job) error {
	control, err := s.Controls.Control(ctx)
	if err != nil {
		return err
	}
	if !control.Acts() || j.counts() && !control.EndsUnsealed() {
		return &blockedError{control.Standing()}
	}
	return nil
}

// finalize drains a finished agent's journal. What the probe brought along is used
// if the log still ends where the probe was asked from.
func (s *Sweep) finalize(ctx context.Context, j job, r Run, a *allowance) (ended, error) {
	same := r.LogEnd == j.run.LogEnd
	if j.reply.Whole && same {
		sealed := &Sealed{ExitCode: j.reply.Exit, At: nowMillis(), Stderr: j.reply.Stderr}
		r, err := s.Log.Append(ctx, r, j.reply.Rest, sealed)
		return ended{run: r, complete: true}, err
	}
	if j.reply.Rewritten && same {
		return s.sealBeside(ctx, j, r, a)
	}
	end, err := s.drain(ctx, r, false, a)
	if isRewritten(err) {
		return s.sealBeside(ctx, j, r, a)
	}
	if err == nil && end.run.Sealed == nil {
		err = fmt.Errorf("finalize run %s: the journal has no sentinel any more", r.RunKey)
	}
	return end, err
}

func isRewritten(err error) bool {
	if err == nil {
		return false
	}
	reason, _ := reasonFor(err)
	return reason == reasonRewritten
}

// sealBeside seals the log of a run whose journal was rewritten: nothing of it is
// appended, since it does not go on from the log's end; as it is now it is stored
// beside, as much as fits into one finalisation (DESIGN 5.8). The exit status is the
// one that the probe read.
func (s *Sweep) sealBeside(ctx context.Context, j job, r Run, a *allowance) (ended, error) {
	sealed := &Sealed{At: nowMillis(), ExitCode: j.reply.Exit, Stderr: j.reply.Stderr}
	for from := int64(0); from < s.Limits.SideBytes; {
		page, err := s.page(ctx, pageOf(r, from), a)
		if err != nil {
			return ended{}, err
		}
		if sealed.Side, err = s.Log.Beside(ctx, r, from, page.Data); err != nil {
			return ended{}, err
		}
		from += int64(len(page.Data))
		if page.Exit != nil || page.End || len(page.Data) == 0 {
			break
		}
	}
	r, err := s.Log.Append(ctx, r, nil, sealed)
	return ended{run: r, complete: true}, err
}

// end ends the agent, then drains what there is. While the journal cannot be read
// nothing is finished, until the drain grace is over; then the transcript is closed
// as incomplete (I5).
func (s *Sweep) end(ctx context.Context, r Run, a *allowance) (ended, error) {
	_, err := s.Prober.Terminate(ctx, TerminateRequest{RunKey: r.RunKey, Target: targetOf(r), Nonce: r.Nonce})
	if err == nil {
		var end ended
		if end, err = s.drain(ctx, r, true, a); err == nil {
			return end, nil
		}
	}
	if Refused(err) || errors.Is(err, errShare) {
		return ended{}, err
	}
	// A sandbox that never answers has used up the run's budget by now, each time.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	if !isRewritten(err) && !s.givesUp(ctx, r) {
		return ended{}, err
	}
	fresh, err := s.Runs.Run(ctx, r.RunKey)
	if err != nil {
		return ended{}, err
	}
	if fresh.Epoch != r.Epoch {
		return ended{}, &RefusedError{Op: "end", Record: "run " + r.RunKey.String(), Why: "epoch"}
	}
	return ended{run: fresh}, nil
}

// givesUp notes that an end failed, and reports whether it has for the whole drain
// grace. Only time in which it was tried counts: a freeze or a tripped breaker must not
// use the grace up.
func (s *Sweep) givesUp(ctx context.Context, r Run) bool {
	now := nowMillis()
	note, err := s.Notes.Note(ctx, r.RunKey)
	if err == nil {
		note = note.failing(now, s.Limits)
		err = s.Notes.PutNote(ctx, r.RunKey, note)
	}
	if err != nil {
		s.Logger.WarnContext(ctx, "note", "run", r.RunKey.String(), "err", err)
		return false
	}
	return now >= note.EndFailing.Add(s.Limits.DrainGrace)
}

// page reads a piece of a journal out of the sweep's allowance.
func (s *Sweep) page(ctx context.Context, q PageRequest, a *allowance) (PageReply, error) {
	if err := a.open(); err != nil {
		return PageReply{}, err
	}
	if err := s.hold.take(ctx, execHoldFor); err != nil {
		return PageReply{}, busyError("page", err)
	}
	page, err := s.Prober.Page(ctx, q)
	a.spend(len(page.Data))
	return page, err
}

// drain appends the journal from the log's end, page by page, until the sentinel
// or, for an agent that is dead for sure, the journal's end. What the spool has comes from
// there; the rest, and the end, the sandbox alone can tell. Of a journal that is too long
// the middle is skipped.
func (s *Sweep) drain(ctx context.Context, r Run, dead bool, a *allowance) (ended, error) {
	r, err := s.drainSpool(ctx, r, a)
	if err != nil {
		return ended{}, err
	}
	pushes := s.Uploader != nil
	for {
		q := pageOf(r, r.LogEnd)
		q.Last, q.Final = r.LogTail, dead
		page, err := s.page(ctx, q, a)
		if err != nil {
			return ended{}, err
		}
		var sealed *Sealed
		if page.Exit != nil {
			sealed = &Sealed{ExitCode: *page.Exit, At: nowMillis(), Stderr: page.Stderr}
		}
		if len(page.Data) > 0 || sealed != nil {
			if r, err = s.Log.Append(ctx, r, page.Data, sealed); err != nil {
				return ended{}, err
			}
		}
		if sealed != nil || page.End {
			return ended{run: r, complete: sealed != nil || dead}, nil
		}
		if len(page.Data) == 0 {
			return ended{}, fmt.Errorf("drain run %s: a page at %d is empty before the journal's end", r.RunKey, r.LogEnd)
		}
		if pushes {
			if r, pushes, err = s.upload(ctx, r, page.Size, a); err != nil {
				return ended{}, err
			}
		}
		half := s.Limits.TranscriptCap / 2
		if to := page.Size - half; r.LogOmitted == 0 && r.LogEnd >= half && to > r.LogEnd {
			if r, err = s.Log.Skip(ctx, r, to); err != nil {
				return ended{}, err
			}
		}
	}
}

// drainSpool appends what the spool has of the journal behind the log's end. How long the
// journal is it does not know, so that where the middle may have to be skipped the sandbox
// is asked.
func (s *Sweep) drainSpool(ctx context.Context, r Run, a *allowance) (Run, error) {
	if s.Spool == nil {
		return r, nil
	}
	reader := SpoolReader{Spool: s.Spool, Most: s.Limits.Page, Logger: s.Logger}
	for r.LogOmitted == 0 && r.LogEnd < s.Limits.TranscriptCap/2 {
		if err := a.open(); err != nil {
			return r, err
		}
		page := reader.Page(ctx, PageRequest{RunKey: r.RunKey, Nonce: r.Nonce, From: r.LogEnd, Last: r.LogTail})
		a.spend(len(page.Data))
		if len(page.Data) == 0 {
			return r, ctx.Err()
		}
		var err error
		if r, err = s.Log.Append(ctx, r, page.Data, nil); err != nil {
			return r, err
		}
	}
	return r, nil
}

// upload moves a piece of a large journal past the terminal: the sandbox's agent stores
// it, and it is read from there and held against what a page is held against. Its end,
// where the sentinel may be, is left to pages. Where that does not work, false is
// answered, and pages go on.
func (s *Sweep) upload(ctx context.Context, r Run, size int64, a *allowance) (Run, bool, error) {
	left := size - r.LogEnd - int64(s.Limits.Page)
	if half := s.Limits.TranscriptCap / 2; r.LogOmitted == 0 && size > s.Limits.TranscriptCap {
		left = min(left, half-r.LogEnd)
	}
	if size-r.LogEnd <= s.Limits.UploadAbove || left < int64(s.Limits.Page) {
		return r, true, nil
	}
	if err := a.open(); err != nil {
		return r, false, err
	}
	data, err := s.pushed(ctx, r, min(left, s.Limits.UploadPiece))
	a.spend(len(data))
	if err != nil {
		s.Logger.InfoContext(ctx, "upload", "run", r.RunKey.String(), "from", r.LogEnd, "err", err)
		return r, false, ctx.Err()
	}
	next, err := s.Log.AppendStored(ctx, r, uploadKey(r), data)
	if err != nil {
		return r, false, err
	}
	return next, true, nil
}

// pushed has a piece stored and reads it. What it is not cut as, or does not follow the
// log, is not used.
func (s *Sweep) pushed(ctx context.Context, r Run, most int64) ([]byte, error) {
	if err := s.hold.take(ctx, execHoldFor); err != nil {
		return nil, busyError("push", err)
	}
	up, err := s.Uploader.Upload(ctx, UploadRequest{
		RunKey: r.RunKey, Target: targetOf(r), Nonce: r.Nonce, From: r.LogEnd, Max: most, Key: uploadKey(r),
	})
	if err != nil {
		return nil, err
	}
	data, err := s.Log.Blobs.Blob(ctx, uploadKey(r))
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	// The agent cuts where a newline or the rest of a line follows: with either there is
	// nothing to hold back.
	closed := make([]byte, len(data)+1) // of the size at once: a piece is large
	copy(closed, data)
	closed[len(data)] = '\n'
	cut := DefaultJournal.Cut(r.Nonce, closed, EdgeMore)
	switch {
	case int64(len(data)) != up.Size || hex.EncodeToString(sum[:]) != up.SHA256:
		return nil, fmt.Errorf("upload of run %s: stored are %d other bytes than the %d that were measured", r.RunKey, len(data), up.Size)
	case len(data) == 0 || int64(len(data)) > most || cut.Sealed || cut.Append != len(data):
		return nil, fmt.Errorf("upload of run %s: %d bytes are not cut as a page is", r.RunKey, len(data))
	case !bytes.HasSuffix(up.Overlap, r.LogTail) && !bytes.HasSuffix(r.LogTail, up.Overlap):
		return nil, fmt.Errorf("upload of run %s: %w", r.RunKey, &JournalError{Op: "push", Healing: Retry, Reason: reasonRewritten})
	}
	return data, nil
}

// close finishes the run and announces its sandbox's end.
func (s *Sweep) close(ctx context.Context, j job, end ended, entry RunReport) (RunReport, Notice) {
	end.run = s.keepFiles(ctx, end.run)
	s.hold.free(ctx) // before the message: who captures the workspace begins at once
	finish, err := s.finishOf(j, end)
	if err != nil {
		return entry.failed(err), Notice{}
	}
	r, err := s.Runs.Update(ctx, j.run.RunKey, finish)
	if err != nil {
		return entry.failed(err), Notice{}
	}
	entry.Outcome, entry.Status, entry.ExitCode = outcomeOf(r, j.decision), r.Status, r.ExitCode
	entry.SavedUSD = j.task.Size.Hourly() * SavedTime(r, s.Limits).Hours()
	notice := endNotice(r, entry.Outcome, entry.Reason)
	if r.Row != RowReclaim {
		return entry, notice
	}
	if r.Reclaim == ReclaimIdle {
		s.tidy(ctx, r)
	}
	if err := s.Queue.Send(ctx, []ReclaimJob{jobOf(r)}); err != nil {
		entry.Outcome, entry.Error = ReclaimFailed, err.Error()
	}
	return entry, notice
}

// tidy removes the journal of a run whose sandbox is kept: its transcript is saved. It
// is not worth failing for; what it leaves, the daily prune finds.
func (s *Sweep) tidy(ctx context.Context, r Run) {
	if s.Journals == nil {
		return
	}
	control, err := s.Controls.Control(ctx)
	if err != nil || !control.Stops() || r.Hold.Live(nowMillis()) {
		return
	}
	if _, err := s.Journals.Remove(ctx, targetOf(r), []RunID{r.RunKey.Run}); err != nil {
		s.Logger.InfoContext(ctx, "tidy", "run", r.RunKey.String(), "err", err)
	}
}

// release lets the next sweep go on at once. It is a courtesy: a claim that stays
// lapses by itself. It outlives the run's budget, and the sweep where that is ended.
func (s *Sweep) release(ctx context.Context, r Run) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	if _, err := s.Runs.Update(ctx, r.RunKey, Release{Epoch: r.Epoch}); err != nil && !Refused(err) {
		s.Logger.WarnContext(ctx, "release", "run", r.RunKey.String(), "err", err)
	}
}

// finishOf words a run's end: completed or failed by its own exit status if it is
// sealed, else by the reason for which it was ended.
func (s *Sweep) finishOf(j job, end ended) (Finish, error) {
	r := end.run
	sum, err := LogSHA256(r)
	if err != nil {
		return Finish{}, fmt.Errorf("finish run %s: %w", r.RunKey, err)
	}
	now := nowMillis()
	f := Finish{
		Epoch: r.Epoch, Nonce: r.ClaimNonce, Now: now, NotBefore: now.Add(s.Limits.RetryStop),
		Transcript: Transcript{Bytes: r.LogEnd, SHA256: sum, Complete: end.complete && r.LogOmitted == 0, Omitted: r.LogOmitted},
		Reclaim:    ReclaimEnd,
		ExpiresAt:  now.Add(s.Limits.Retention),
	}
	switch {
	case r.Sealed != nil:
		f.Status, f.Error = sealedStatus(r)
		f.ExitCode = new(r.Sealed.ExitCode)
		if r.Sealed.Side != "" {
			f.Transcript.Complete, f.Transcript.Side = false, r.Sealed.Side
		}
		if r.Reclaim == ReclaimIdle && !r.givenUp() {
			f.Reclaim = ReclaimIdle // only a clean end leaves a sandbox that may be used again
		}
	default:
		f.Status, f.Error = unsealedStatus(reasonOf(r, j.decision), j.decision.why)
		if r.Ending != nil && r.Ending.Reason == EndFailed && r.Error != nil {
			f.Error = r.Error // the host has said what
		}
	}
	f.Owes = owesCheckpoint(r, r.Sealed != nil, s.Checkpoint)
	if r.Instance == "" {
		f.Reclaim = ReclaimNone
	}
	return f, nil
}

// givenUp reports whether a user or the run's own host wished its end: then its sandbox
// ends too, whatever the agent made of its last seconds.
func (r Run) givenUp() bool {
	return r.CancelRequested != 0 || r.Ending != nil && (r.Ending.Reason == EndCancelled || r.Ending.Reason == EndFailed)
}

// sealedStatus is how a run ended whose agent ended. The status with which one ended that
// was told to is no error of its own, and its run's error says so.
func sealedStatus(r Run) (Status, *RunError) {
	exit, message := r.Sealed.ExitCode, r.Sealed.Stderr
	if exit == 0 {
		return Completed, nil
	}
	if why := r.toEnd(); why != "" {
		message = fmt.Sprintf("exit status %d, read after the run was to end (%s)", exit, why)
		if r.Sealed.Stderr != "" {
			message += ": " + r.Sealed.Stderr
		}
	}
	return Failed, &RunError{Code: "agent-exit", Message: message}
}

// toEnd is why a run was to end before its agent's end was read; "" for a run that was not.
func (r Run) toEnd() EndReason {
	switch {
	case r.Ending != nil:
		return r.Ending.Reason
	case r.CancelRequested != 0:
		return EndCancelled
	}
	return ""
}

// unsealedStatus: what a user or the clock ended is aborted, what ended by itself
// has failed.
func unsealedStatus(reason EndReason, why string) (Status, *RunError) {
	switch reason {
	case EndExpired:
		return Aborted, &RunError{Code: string(reason), Message: "the run's time was over"}
	case EndSpendCap:
		return Aborted, &RunError{Code: string(reason), Message: "the run's or its tenant's spend cap was reached"}
	case EndCancelled:
		return Aborted, &RunError{Code: string(reason), Message: "a user cancelled the run"}
	case EndDied:
		return Failed, &RunError{Code: string(reason), Message: "the agent died without a sentinel"}
	case EndNeverStarted:
		return Failed, &RunError{Code: string(reason), Message: "the run's agent never began"}
	case EndFailed:
		return Failed, &RunError{Code: string(reason), Message: "the run's host gave it up"}
	}
	return Failed, &RunError{Code: string(EndLost), Message: why}
}

// reasonOf is the reason on the record, which is final, else the decision's.
func reasonOf(r Run, d decision) EndReason {
	if r.Ending != nil {
		return r.Ending.Reason
	}
	return d.reason
}

// outcomeOf names what a decision comes to.
func outcomeOf(r Run, d decision) Outcome {
	if d.act == actRescue {
		return Producing
	}
	switch reasonOf(r, d) {
	case EndExpired, EndSpendCap:
		return Expired
	case EndCancelled, EndFailed:
		return Cancelled
	case EndDied, EndNeverStarted:
		return Died
	case EndLost:
		if r.Sealed == nil {
			return Lost
		}
	}
	return Finalized
}
