package client

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"iter"
	"time"
)

// ErrTaskStopped says that the run's task has stopped under its agent, and that nothing
// can be read there any more. A host detaches: a sweep finds out what is lost, and ends
// the run.
var ErrTaskStopped = errors.New("client: the task of the run has stopped")

// Line is a line of a run's output.
type Line struct {
	From int64  // byte position of its first byte
	Next int64  // byte position behind it: from there Follow goes on
	Text []byte // without the newline; the caller's own
	// Cut says that the line goes on in the next one, being too long for one, or that its
	// end is left out.
	Cut bool
	// Omitted says that output is missing here, from From to Next: of a transcript that is
	// too long, head and tail are kept.
	Omitted bool
}

const (
	// longest is the longest line that is given whole, bytes, and the longest piece that a
	// tail answers: a shorter one ends where a line does.
	longest = 1 << 20
	// pollSeconds is how long one tail waits for output.
	pollSeconds = 20
	// stallSeconds is how long a run may be without its first byte: an agent that thinks
	// first is not dead. The run's TTL bounds it.
	stallSeconds = 7 * 24 * 3600
	// stepPause is between two calls of a step, and after a tail that came back empty.
	stepPause = time.Second
)

// Follow gives a run's output line by line from a byte position on, and waits for more
// until the run's output is over or ctx ends. With q.Host, the host that has the run, it
// reads the sandbox's journal; without, as every viewer may, the log, which is a little
// behind. An error is the last that it yields: a refusal, no answer, why ctx ended, or, to
// the run's host, ErrCancelled. To
// go on, Follow again from the last line's Next.
func Follow(ctx context.Context, api API, q TailRequest) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		f := follower{api: api, q: q, begins: q.From}
		if q.From > 0 {
			f.q.From-- // the byte before tells whether a line begins here
			f.before = true
		}
		f.q.WaitSeconds = cmp.Or(q.WaitSeconds, pollSeconds)
		f.q.StallSeconds = cmp.Or(q.StallSeconds, stallSeconds)
		for {
			report, err := f.tail(ctx)
			if err != nil {
				yield(Line{}, err)
				return
			}
			if !f.take(report, yield) || report.End {
				return
			}
			if f.q.Host != "" && report.Run.CancelRequested != 0 && !report.Run.Status.Terminal() {
				yield(Line{}, ErrCancelled)
				return
			}
		}
	}
}

// follower is a Follow on its way.
type follower struct {
	api    API
	q      TailRequest
	held   []byte // the line that has not ended yet
	begins int64  // its position
	before bool   // the first byte that comes is one that the caller has
	open   bool   // the line before has ended, and its newline may still come
	spent  bool   // the last tail gave nothing
}

// tail asks once, and again where somebody else reads the sandbox.
func (f *follower) tail(ctx context.Context) (TailReport, error) {
	for {
		if f.spent {
			if err := pause(ctx, stepPause); err != nil {
				return TailReport{}, err
			}
		}
		report, err := f.api.Tail(ctx, f.q)
		f.spent = err != nil || report.Next <= f.q.From
		switch {
		case ctx.Err() != nil:
			return TailReport{}, context.Cause(ctx)
		case CodeOf(err) == Busy:
			continue
		case f.spent && report.Waiting != "" && report.Run.TaskStoppedAt != 0 && !report.End:
			return report, ErrTaskStopped
		}
		return report, err
	}
}

// take gives out the lines of a piece; false: nobody wants more.
func (f *follower) take(report TailReport, yield func(Line, error) bool) bool {
	if report.Next <= f.q.From {
		return !report.End || f.rest(report, nil, yield)
	}
	data := f.fresh(report.Data)
	f.q.From = report.Next
	f.held = append(f.held, data...)
	for {
		end := bytes.IndexByte(f.held, '\n')
		switch {
		case end >= 0 && end <= longest:
			if !f.give(end, 1, false, yield) {
				return false
			}
		case len(f.held) > longest:
			if !f.give(longest, 0, true, yield) {
				return false
			}
		default:
			return f.rest(report, data, yield)
		}
	}
}

// fresh is what of a piece belongs to lines that have not been given: not the byte before
// the position that was asked for, nor the newline of a line that was.
func (f *follower) fresh(data []byte) []byte {
	if f.before && len(data) > 0 {
		f.open, data = data[0] != '\n', data[1:]
	}
	f.before = false
	if len(data) > 0 {
		if f.open && data[0] == '\n' {
			data = data[1:]
			f.begins++
		}
		f.open = false
	}
	return data
}

// rest deals with what is behind the last newline. It is a line, whose newline comes with
// the next piece if at all, unless the piece is cut because the line is very long.
func (f *follower) rest(report TailReport, data []byte, yield func(Line, error) bool) bool {
	gap := report.Next > report.From+int64(len(report.Data))
	whole := report.End || gap || len(data) > 0 && len(report.Data) < longest
	if whole && len(f.held) > 0 {
		if !f.give(len(f.held), 0, gap, yield) {
			return false
		}
		f.open = !gap
	}
	if !gap || report.Next <= f.begins {
		return true
	}
	from := f.begins
	f.begins, f.open = report.Next, false
	return yield(Line{From: from, Next: report.Next, Omitted: true}, nil)
}

// give gives out the first n bytes that are held, and drops what is behind them.
func (f *follower) give(n, drop int, cut bool, yield func(Line, error) bool) bool {
	line := Line{From: f.begins, Next: f.begins + int64(n+drop), Text: bytes.Clone(f.held[:n]), Cut: cut}
	f.held, f.begins = f.held[n+drop:], line.Next
	return yield(line, nil)
}
