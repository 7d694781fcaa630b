package client

import (
	"context"
	"errors"
	"fmt"
)

// Turn is what one turn of an agent is made of, for [Run].
type Turn struct {
	// Start begins the run. Exactly one of Start and Attach is given.
	Start *StartRequest
	// Attach takes a run that is under way.
	Attach *AttachRequest
	// From is the byte position of the output that the host has seen already.
	From int64
	// Started is told once the agent works; nil: nobody.
	Started func(StartReport)
	// Line gets the output. Its error ends the host's part: it detaches.
	Line func(Line) error
	// Conversation says what to save before the run ends; nil, or nil returned: nothing.
	Conversation func(context.Context) (*ConversationPut, error)
}

// Result is how a turn went.
type Result struct {
	Run      RunView      // as last seen
	Position int64        // of the output behind the last line that was given out
	Finish   FinishReport // of a turn that came to its end
	Left     bool         // the host left, and the agent works on
}

var errNoTurn = errors.New("want exactly one of Start and Attach")

// Run does a turn from its start to its end: it starts or attaches, renews, gives out
// the output line by line, and finishes.
//
// Where ctx ends, or Line or Conversation fails, it detaches, and returns Left with the
// error: the agent works on, and a Run with Attach and From = Position goes on. Where
// somebody asks for a cancel, it ends the run and returns ErrCancelled. A lost claim is
// the refusal of [ClaimLost]: somebody else drives the run.
func Run(ctx context.Context, api API, t Turn) (Result, error) {
	a, result, err := t.begin(ctx, api)
	if err != nil {
		return result, err
	}
	defer a.Close()
	result.Position = t.From
	if err = t.follow(ctx, a, &result); err == nil {
		err = t.finish(ctx, a, &result)
	}
	switch {
	case err == nil:
		return result, nil
	case errors.Is(a.Err(), ErrCancelled):
		return cancelled(ctx, a, result)
	case a.Err() != nil:
		return result, fmt.Errorf("run %s: %w", a.Run, a.Err())
	case CodeOf(err) == ClaimLost:
		return result, err
	}
	left := a.Detach(ctx)
	result.Left = left == nil
	return result, errors.Join(err, left)
}

// begin starts or attaches. A start whose host goes away, or that is to be cancelled, has
// left a run behind.
func (t Turn) begin(ctx context.Context, api API) (*Attachment, Result, error) {
	if (t.Start == nil) == (t.Attach == nil) {
		return nil, Result{}, errNoTurn
	}
	if t.Attach != nil {
		a, report, err := Attach(ctx, api, *t.Attach)
		return a, Result{Run: report.Run}, err
	}
	a, report, err := Start(ctx, api, *t.Start)
	if err == nil {
		if t.Started != nil {
			t.Started(report)
		}
		return a, Result{Run: report.Run}, nil
	}
	result := Result{Run: report.Run}
	behind := &Attachment{RunKey: t.Start.RunKey, Host: t.Start.Host, api: api}
	behind.ctx, behind.lose = context.WithCancelCause(context.WithoutCancel(ctx))
	switch {
	case CodeOf(err) == CancelRequested:
		result, err = cancelled(ctx, behind, result)
	case ctx.Err() != nil:
		left := behind.Detach(ctx)
		result.Left = left == nil
		if CodeOf(left) != UnknownRun { // nothing was begun
			err = errors.Join(err, left)
		}
	}
	return nil, result, err
}

func (t Turn) follow(ctx context.Context, a *Attachment, result *Result) error {
	for line, err := range a.Output(ctx, t.From) {
		if err == nil && t.Line != nil {
			err = t.Line(line)
		}
		if err != nil {
			return err
		}
		result.Position = line.Next
	}
	return nil
}

func (t Turn) finish(ctx context.Context, a *Attachment, result *Result) error {
	var put *ConversationPut
	if t.Conversation != nil {
		var err error
		if put, err = t.Conversation(ctx); err != nil {
			return err
		}
	}
	report, err := a.Finish(ctx, put)
	if err == nil {
		result.Finish, result.Run = report, report.Run
		// The newline of the last line comes when the line has been given out.
		result.Position = max(result.Position, report.Run.LogEnd)
	}
	return err
}

// cancelled ends a run whose cancel has been asked for.
func cancelled(ctx context.Context, a *Attachment, result Result) (Result, error) {
	run, err := a.Cancel(ctx)
	if err != nil {
		return result, errors.Join(ErrCancelled, err)
	}
	result.Run = run
	return result, fmt.Errorf("run %s: %w", a.Run, ErrCancelled)
}
