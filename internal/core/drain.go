package core

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync/atomic"
)

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
	last := int64(0) // where a log of which enough is kept ends at the latest; 0: it is not known
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
		if r.LogEnd-r.LogOmitted >= s.enough(r) {
			if r, last, err = s.nearEnd(ctx, r, page.Size, last); err != nil {
				return ended{}, err
			}
			if r.LogEnd >= last {
				return s.leaveRest(ctx, r, page.Size)
			}
			continue
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

// enough is how much is kept of a journal at most, bytes: half the cap before and after what
// is skipped, and whatever a host has followed before.
func (s *Sweep) enough(r Run) int64 {
	if r.LogOmitted != 0 {
		return 3 * s.Limits.TranscriptCap
	}
	return 2 * s.Limits.TranscriptCap
}

// lastPages is how much is read of the end of a journal of which enough is kept, pages.
const lastPages = 4

// nearEnd goes to the last pages of a journal of which enough is kept: a host may have
// followed so much of it, and what matters most stands at its end. It answers with where
// they are over, whatever the sandbox says then. One that was skipped in has had its end.
func (s *Sweep) nearEnd(ctx context.Context, r Run, size, last int64) (Run, int64, error) {
	most := min(int64(lastPages*s.Limits.Page), s.Limits.SweepBytes/4)
	switch to := size - most; {
	case last != 0:
		return r, last, nil
	case r.LogOmitted != 0:
		return r, r.LogEnd, nil
	case to > r.LogEnd:
		var err error
		if r, err = s.Log.Skip(ctx, r, to); err != nil {
			return r, 0, err
		}
	}
	return r, size, nil
}

// leaveRest ends the log of a journal of which more is kept than of any that has an end:
// the sandbox goes on to give, whatever it said of its length. That the rest is left out is
// written first, so that whoever goes on from the record knows it.
func (s *Sweep) leaveRest(ctx context.Context, r Run, size int64) (ended, error) {
	if size > r.LogEnd {
		var err error
		if r, err = s.Log.Skip(ctx, r, size); err != nil {
			return ended{}, err
		}
	}
	return ended{run: r, endless: true}, nil
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
