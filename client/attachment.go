package client

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"
)

// ErrCancelled is why an attachment's work stops where somebody has asked that the run
// end: its host then asks for [Attachment.Cancel].
var ErrCancelled = errors.New("client: the run is to be cancelled")

const (
	// renewEvery is how often a host says that it is there; after 90 seconds without, its
	// run lapses.
	renewEvery = 30 * time.Second
	// leaveWithin bounds the calls of a host that goes away.
	leaveWithin = 20 * time.Second
)

// Attachment is a run that this host has. It is renewed in the background until the run
// has ended, the host has left, or Close. A call of its methods may be repeated.
type Attachment struct {
	RunKey
	Host string

	api    API
	ctx    context.Context // ends with the reason why the run is not ours any more
	lose   context.CancelCauseFunc
	renews sync.WaitGroup
}

func attached(ctx context.Context, api API, key RunKey, host string) *Attachment {
	a := &Attachment{RunKey: key, Host: host, api: api}
	a.ctx, a.lose = context.WithCancelCause(context.WithoutCancel(ctx))
	a.renews.Go(a.renew)
	return a
}

// Start begins a run, and goes on with its start until the agent works. Where ctx ends or
// the start is refused, the run may have been recorded: a repeat with the same request
// goes on with it, and without one it ends by itself.
func Start(ctx context.Context, api API, q StartRequest) (*Attachment, StartReport, error) {
	for {
		report, err := api.Start(ctx, q)
		switch {
		case err != nil:
			return nil, report, err
		case report.State == Ready:
			return attached(ctx, api, q.RunKey, q.Host), report, nil
		}
		step := stepPause
		if report.Waiting == waitsForTask {
			step = taskPause
		}
		if err := pause(ctx, step); err != nil {
			return nil, report, err
		}
	}
}

// waitsForTask is what a start waits for most often, half a minute: each call in it costs,
// and does not make it shorter.
const (
	waitsForTask = "task"
	taskPause    = 3 * time.Second
)

// Attach takes a run that is under way, as the host comes back or another takes over.
func Attach(ctx context.Context, api API, q AttachRequest) (*Attachment, RenewReport, error) {
	report, err := api.Attach(ctx, q)
	if err != nil {
		return nil, report, err
	}
	return attached(ctx, api, q.RunKey, q.Host), report, nil
}

// Lost is closed once the host does not have the run any more; [Attachment.Err] says why.
func (a *Attachment) Lost() <-chan struct{} { return a.ctx.Done() }

// Err is why the host does not have the run any more: ErrCancelled, the refusal of a
// renewal, or context.Canceled after Close; nil while it has it.
func (a *Attachment) Err() error { return context.Cause(a.ctx) }

// renew says every while that the host is there. A renewal that gets no answer is no
// loss: the next one may. Nor is the loss of the thread's writer lease: finish tells.
func (a *Attachment) renew() {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-a.ctx.Done():
			return
		case <-tick.C:
		}
		report, err := a.api.Renew(a.ctx, a.asked())
		switch {
		case err == nil && report.Cancel:
			a.lose(ErrCancelled)
		case CodeOf(err) != "" && CodeOf(err) != WriterLost:
			a.lose(err)
		}
	}
}

func (a *Attachment) asked() HostRequest { return HostRequest{RunKey: a.RunKey, Host: a.Host} }

// held is ctx, until the host does not have the run any more.
func (a *Attachment) held(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(a.ctx, func() { cancel(context.Cause(a.ctx)) })
	return ctx, func() { stop(); cancel(nil) }
}

// Output is the run's output from a byte position on, as [Follow] gives it. It ends with
// [Attachment.Err] once the host does not have the run any more.
func (a *Attachment) Output(ctx context.Context, from int64) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		ctx, release := a.held(ctx)
		defer release()
		for line, err := range Follow(ctx, a.api, TailRequest{RunKey: a.RunKey, Host: a.Host, From: from}) {
			if errors.Is(err, ErrCancelled) {
				a.lose(ErrCancelled)
			}
			if !yield(line, err) {
				return
			}
		}
	}
}

// Finish ends the run, whose output is over: conversation and workspace are saved first.
// It is asked until it is done.
func (a *Attachment) Finish(ctx context.Context, c *ConversationPut) (FinishReport, error) {
	ctx, release := a.held(ctx)
	defer release()
	for {
		report, err := a.api.Finish(ctx, FinishRequest{RunKey: a.RunKey, Host: a.Host, Conversation: c})
		switch {
		case ctx.Err() != nil && err != nil:
			return report, context.Cause(ctx)
		case err != nil:
			return report, err
		case report.State == Finished:
			a.Close()
			return report, nil
		}
		if err := pause(ctx, stepPause); err != nil {
			return report, err
		}
	}
}

// Cancel ends the run, whatever it does, and waits until it has ended.
func (a *Attachment) Cancel(ctx context.Context) (RunView, error) {
	return a.end(ctx, func() (EndReport, error) {
		return a.api.Cancel(ctx, CancelRequest{RunKey: a.RunKey, Host: a.Host})
	})
}

// Fail gives the run up, with the host's own error, and waits until it has ended.
func (a *Attachment) Fail(ctx context.Context, why RunFault) (RunView, error) {
	return a.end(ctx, func() (EndReport, error) {
		return a.api.Fail(ctx, FailRequest{RunKey: a.RunKey, Host: a.Host, Error: why})
	})
}

// Cancel asks that a run end, from whatever host. With q.Host, the host that has it, it
// waits until it has ended; else whoever has it ends it within one renewal, or a sweep.
func Cancel(ctx context.Context, api API, q CancelRequest) (RunView, error) {
	for {
		report, err := api.Cancel(ctx, q)
		if err != nil || report.Ended || report.Waiting == waitsForHost {
			return report.Run, err
		}
		if err := pause(ctx, stepPause); err != nil {
			return report.Run, err
		}
	}
}

// waitsForHost is what the cancel of another's run waits for.
const waitsForHost = "host"

// end asks until the run has ended. A run that a sweep has ended meanwhile has ended too.
func (a *Attachment) end(ctx context.Context, ask func() (EndReport, error)) (RunView, error) {
	for {
		report, err := ask()
		switch CodeOf(err) {
		case TerminalRun, ClaimLost:
			a.Close()
			run, err := a.ended(ctx, err)
			if err == nil || CodeOf(err) == "" || run.CancelRequested == 0 {
				return run, err
			}
			err = pause(ctx, stepPause) // a sweep is about to end it
			if err != nil {
				return run, err
			}
			continue
		}
		switch {
		case err != nil:
			return report.Run, err
		case report.Ended:
			a.Close()
			return report.Run, nil
		}
		if err := pause(ctx, stepPause); err != nil {
			return report.Run, err
		}
	}
}

// ended reads a run that is said to have ended; refused is the refusal where it has not.
func (a *Attachment) ended(ctx context.Context, refused error) (RunView, error) {
	run, err := a.api.Get(ctx, GetRequest{RunKey: a.RunKey})
	if err == nil && !run.Status.Terminal() {
		err = refused
	}
	return run, err
}

// Interrupt pauses the run for a human. A run that names this one as its parent goes on
// for it, in the same sandbox.
func (a *Attachment) Interrupt(ctx context.Context) (RunView, error) {
	report, err := a.api.Interrupt(ctx, a.asked())
	if err == nil {
		a.Close()
	}
	return report.Run, err
}

// Detach leaves the run: its agent works on, and any host may attach. It also works where
// ctx has ended, for then it is what there is to do.
func (a *Attachment) Detach(ctx context.Context) error {
	a.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveWithin)
	defer cancel()
	_, err := a.api.Detach(ctx, a.asked())
	return err
}

// Close ends the renewals, and waits for one that is under way. The run lapses unless it
// has ended or the host has left.
func (a *Attachment) Close() {
	a.lose(context.Canceled)
	a.renews.Wait()
}
