package core

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"
)

// TailRequest asks for a run's output from a byte position on.
type TailRequest struct {
	RunKey
	// Host reads the journal itself, and brings new output to the log; without it the log
	// is read.
	Host        string `json:"host,omitempty"`
	From        int64  `json:"from"`
	WaitSeconds int64  `json:"waitSeconds,omitempty"` // for output, at most [MaxTailWait]
	// Stream is what is read: the run's output, or what changed in the workspace.
	Stream TailStream `json:"stream,omitempty"`
	// StallSeconds is how long a host waits for a run's first byte; zero: [TailStall].
	StallSeconds int64 `json:"stallSeconds,omitempty"`
}

// TailStream is one of the two things that a run leaves behind line by line.
type TailStream string

// A run has its output, by default, and the lines that tell which files changed.
const (
	StreamDefault TailStream = "" // output
	StreamOutput  TailStream = "output"
	StreamFiles   TailStream = "files"
)

// TailStreams is the closed set.
var TailStreams = []TailStream{StreamDefault, StreamOutput, StreamFiles}

// MaxTailWait is the longest poll.
const MaxTailWait = 25 * time.Second

// TailStall is how long one poll waits for a run's very first byte before it says that
// the journal is stalled.
const TailStall = 10 * time.Second

// TailReport is a piece of a run's output: whole lines, unless the run has ended or a
// line is very long. The newline of the last one may come with the next piece.
type TailReport struct {
	From int64  `json:"from"`
	Data []byte `json:"data"` // base64
	Next int64  `json:"next"` // from where to go on; behind an omitted piece it is more than Data is long
	// End says that nothing follows.
	End     bool    `json:"end,omitempty"`
	Waiting string  `json:"waiting,omitempty"` // why the sandbox gave no answer
	Run     RunView `json:"run"`
}

// The sizes and times of a tail.
const (
	tailBytes  = 1 << 20          // most of one answer
	tailAppend = 64 << 10         // new output that goes to the log at once
	tailHold   = 30 * time.Second // how long less waits for more
	tailPoll   = 2 * time.Second
)

func (q TailRequest) check() error {
	err := checkRun(q.RunKey)
	if err == nil && q.Host != "" {
		err = checkHost(q.Host)
	}
	most := int64(MaxTailWait / time.Second)
	switch {
	case err != nil:
		return err
	case !slices.Contains(TailStreams, q.Stream):
		return invalid("bad-request", "stream: want output or files, got %.80q", q.Stream)
	case q.From < 0:
		return invalid("invalid-position", "from: want 0 or more, got %d", q.From)
	case q.WaitSeconds < 0 || q.WaitSeconds > most || q.StallSeconds < 0 || q.StallSeconds > maxSeconds:
		return invalid("invalid-time", "waitSeconds: want 0 to %d, got %d; stallSeconds: 0 or more, got %d", most, q.WaitSeconds, q.StallSeconds)
	}
	return nil
}

// Tail gives a run's output from a position on, and waits for some. The host that has
// the run reads the journal, in the spool as far as that has it, else in the sandbox;
// what is new goes to the log once it is much, or has waited: so nobody else is far behind.
func (s *Session) Tail(ctx context.Context, q TailRequest) (TailReport, error) {
	if err := q.check(); err != nil {
		return TailReport{}, err
	}
	begun := time.Now()
	for {
		r, err := s.runs().Run(ctx, q.RunKey)
		switch {
		case err != nil:
			return TailReport{}, unknownRun("tail", q.RunKey, err)
		case q.Host != "" && r.ClaimNonce != q.Host:
			return TailReport{}, refusedRun("tail", q.RunKey, claimLost)
		}
		wanted := q.Host != "" && r.CancelRequested != 0 && !r.Status.Terminal()
		report, err := s.look(ctx, q, r, time.Duration(q.WaitSeconds)*time.Second-time.Since(begun))
		if err != nil || len(report.Data) > 0 || report.Next > q.From || report.End || wanted {
			return report, err // a recorded cancel is the host's to know at once
		}
		pause := min(tailPoll, time.Duration(q.WaitSeconds)*time.Second-time.Since(begun))
		if q.Stream != StreamFiles && q.Host != "" && q.From == 0 && r.LogEnd == 0 && report.Waiting == "" {
			stall := seconds(q.StallSeconds, TailStall) - time.Since(begun)
			if stall <= 0 {
				return TailReport{}, refusedRun("tail", q.RunKey, "journal-stalled")
			}
			pause = min(pause, stall)
		}
		if pause <= 0 || !waitUntil(ctx, time.Now().Add(pause)) {
			return report, ctx.Err()
		}
	}
}

// look reads what there is now; a sandbox that is asked may wait so long for some.
func (s *Session) look(ctx context.Context, q TailRequest, r Run, wait time.Duration) (TailReport, error) {
	report := TailReport{From: q.From, Next: q.From, Run: viewOf(r)}
	if q.Stream == StreamFiles {
		return s.lookFiles(ctx, q, report, r, wait)
	}
	over := r.Sealed != nil || r.Status.Terminal()
	switch {
	case q.From < r.LogEnd:
		logged, err := s.logged(ctx, report, r, over, over)
		if err != nil || logged.Next > q.From || over {
			return logged, err
		}
	case over:
		report.End = true
		return report, nil
	}
	if q.Host == "" || !s.begun(r) {
		return report, nil
	}
	if q.From == 0 && r.LogEnd == 0 { // a stall is to be told in time
		wait = min(wait, seconds(q.StallSeconds, TailStall))
	}
	return s.journaled(ctx, report, r, wait)
}

// logged gives a piece of the log; over says that nothing follows it, whole that its end
// is the end of a line.
func (s *Session) logged(ctx context.Context, report TailReport, r Run, over, whole bool) (TailReport, error) {
	for piece, err := range (LogReader{s.Log.Log, s.Log.Blobs}).From(ctx, r.RunKey, report.From) {
		if err != nil {
			return TailReport{}, err
		}
		if piece.Omitted && len(report.Data) == 0 {
			report.Next = piece.End
			return report, nil
		}
		if piece.Omitted {
			break
		}
		report.Data = append(report.Data, piece.Data...)
		if len(report.Data) >= tailBytes {
			break
		}
	}
	all := report.From+int64(len(report.Data)) == r.LogEnd && len(report.Data) <= tailBytes
	report.Data = lines(report.Data, whole && all)
	report.Next = report.From + int64(len(report.Data))
	report.End = over && all
	return report, nil
}

// lines cuts data behind its last newline, unless it is all that will come or one very
// long line.
func lines(data []byte, whole bool) []byte {
	if whole {
		return data
	}
	data = data[:min(len(data), tailBytes)]
	if end := bytes.LastIndexByte(data, '\n'); end >= 0 {
		return data[:end+1]
	}
	if len(data) == tailBytes {
		return data
	}
	return nil
}

// journaled gives what is behind the log's end.
func (s *Session) journaled(ctx context.Context, report TailReport, r Run, wait time.Duration) (TailReport, error) {
	page, source, err := s.next(ctx, report.From, r, wait)
	if reason, unheard := unheardOf(err); unheard {
		report.Waiting = reason
		return report, nil
	}
	if err != nil {
		return TailReport{}, err
	}
	whole := wholeLines(page, r.LogEnd)
	// Before the log's end there is the beginning of a line, whose rest is here.
	if page.Exit != nil || len(page.Data) > 0 && (report.From < r.LogEnd || s.tails.due(r, report.From, len(page.Data))) {
		return s.deliver(ctx, report, r, page, whole)
	}
	behind := report.From - r.LogEnd - int64(len(page.Data))
	switch {
	case report.From < r.LogEnd:
		return s.logged(ctx, report, r, false, whole)
	case behind > 0 && source == fromSandbox:
		return TailReport{}, invalid("invalid-position", "from: want at most the journal's end, %d, got %d", report.From-behind, report.From)
	case behind > 0:
		return report, nil
	}
	report.Data = given(page, r.LogEnd, report.From)
	report.Next = report.From + int64(len(report.Data))
	return report, nil
}

// wholeLines tells whether a page that begins at the log's end ends with a whole line: with
// the agent's end, or before a newline that is held back since it may be the sentinel's.
func wholeLines(page PageReply, logEnd int64) bool {
	return page.Exit != nil || page.End && page.Size > logEnd+int64(len(page.Data))
}

// given is what of a page that begins at the log's end is given out to who has read up to
// from: whole lines.
func given(page PageReply, logEnd, from int64) []byte {
	if from < logEnd || from > logEnd+int64(len(page.Data)) {
		return nil
	}
	return lines(page.Data[from-logEnd:], wholeLines(page, logEnd))
}

// unheardOf tells whether the sandbox gave no answer, and why.
func unheardOf(err error) (string, bool) {
	e, ok := errors.AsType[*unheard](err)
	if !ok {
		return "", false
	}
	reason, _ := reasonFor(e.err)
	return reason, true
}

// deliver brings a page to the log, and gives out what is asked for from there.
func (s *Session) deliver(ctx context.Context, report TailReport, r Run, page PageReply, whole bool) (TailReport, error) {
	var sealed *Sealed
	if page.Exit != nil {
		sealed = &Sealed{ExitCode: *page.Exit, At: nowMillis(), Stderr: page.Stderr}
	}
	after, err := s.Log.Append(ctx, r, page.Data, sealed)
	if err != nil {
		return TailReport{}, lostClaim("tail", r.RunKey, err)
	}
	s.tails.delivered(r.RunKey)
	report.Run = viewOf(after)
	if report.From >= after.LogEnd {
		report.End = sealed != nil
		return report, nil
	}
	return s.logged(ctx, report, after, sealed != nil, whole)
}
