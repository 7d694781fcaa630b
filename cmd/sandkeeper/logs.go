package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// logsCommand prints a transcript.
type logsCommand struct {
	oneRun
	Follow bool  `short:"f" help:"Go on until the run has ended."`
	From   int64 `default:"0" help:"Begin at this byte of the journal." placeholder:"BYTE"`
	Live   bool  `help:"Read what is not saved yet in the sandbox itself; each look is an exec session."`
	Every  span  `default:"2s" help:"How often to look, with --follow." placeholder:"DURATION"`
}

// pieceView is a line of the JSON: a piece by its bytes' positions in the journal.
type pieceView struct {
	From    int64  `json:"from"` // byte of the journal
	End     int64  `json:"end"`
	Data    []byte `json:"data,omitempty"`    // base64
	Omitted bool   `json:"omitted,omitempty"` // nothing is kept of it
	Live    bool   `json:"live,omitempty"`    // read in the sandbox, not saved yet
}

// Run prints the log from a byte position on. Positions are the journal's, so that an
// interrupted reader goes on where it was.
func (c *logsCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	key, err := c.key()
	if err != nil {
		return err
	}
	if c.From < 0 {
		return badInput("from: want a byte position from 0 on, got %d", c.From)
	}
	t := &tail{in: in, key: key, at: c.From, live: c.Live, print: func(p pieceView) error { return printPiece(out, p) }}
	defer t.endLine(out)
	for first := true; ; first = false {
		ended, err := t.step(ctx)
		if first && !ended && err == nil && t.at == c.From && !c.Live && !out.JSON {
			out.Note("%s has not ended, and from byte %d on nothing is saved yet: --live reads in its sandbox", key, c.From)
		}
		switch {
		case ctx.Err() != nil:
			t.endLine(out)
			if line := core.CommandLine("logs", key, fmt.Sprintf("--from %d%s", t.at, c.flags())); line != "" {
				out.Note("go on with: %s", line)
			}
			return ctx.Err()
		case err != nil:
			return err
		case ended && !t.whole() && !out.JSON:
			t.endLine(out)
			out.Note("%s has ended as %s, and its transcript is incomplete: sandkeeper explain says why", key, t.run.Status)
			return t.trouble()
		case ended || !c.Follow:
			return t.trouble()
		}
		select {
		case <-ctx.Done():
		case <-time.After(c.Every.duration()):
		}
	}
}

// flags are those with which the command is to be given again.
func (c *logsCommand) flags() string {
	var text string
	if c.Follow {
		text += " --follow"
	}
	if c.Live {
		text += " --live"
	}
	return text
}

// printPiece writes a piece: its exact bytes, unless a terminal would obey them.
func printPiece(out *console.Console, p pieceView) error {
	var err error
	switch {
	case out.JSON:
		err = printJSON(out.Out, p)
	case p.Omitted:
		out.Note("bytes %d to %d were too many to keep", p.From, p.End)
	case out.OutTerminal:
		_, err = fmt.Fprint(out.Out, console.CleanLines(string(p.Data)))
	default:
		_, err = out.Out.Write(p.Data)
	}
	if err != nil {
		return fmt.Errorf("print log: %w", err)
	}
	return nil
}

// tail reads a transcript by byte position, step by step.
type tail struct {
	in    *installation
	key   core.RunKey
	at    int64
	live  bool
	print func(pieceView) error

	run  core.Run
	last []byte // the bytes before at that a sandbox gave
	err  error  // why the sandbox could not be asked, the last time
}

// whole reports whether a run that has ended has all that its agent wrote.
func (t *tail) whole() bool {
	return !t.run.Status.Terminal() || t.run.Transcript != nil && t.run.Transcript.Complete
}

// endLine ends a line that is not ended yet, whose newline may be the journal's own: what a
// terminal shows next begins on one of its own.
func (t *tail) endLine(out *console.Console) {
	if n := len(t.last); n > 0 && t.last[n-1] != '\n' && out.OutTerminal && !out.JSON {
		t.last = nil
		fmt.Fprintln(out.Out)
	}
}

// step prints what there is now. ended says that nothing more will come.
func (t *tail) step(ctx context.Context) (ended bool, err error) {
	// The record first: what it says is saved is there to read.
	r, err := t.in.runs.Run(ctx, t.key)
	if err != nil {
		return false, err
	}
	t.run = r
	reader := core.LogReader{Log: t.in.runs, Blobs: t.in.blobs}
	for piece, err := range reader.From(ctx, t.key, t.at) {
		if err != nil {
			return false, err
		}
		t.at, t.last = piece.End, piece.Data
		if err := t.print(pieceView{From: piece.From, End: piece.End, Data: piece.Data, Omitted: piece.Omitted}); err != nil {
			return false, err
		}
	}
	if r.Status.Terminal() {
		return true, nil
	}
	if !t.live || r.TaskARN == "" {
		return false, nil
	}
	return t.look(ctx, r)
}

// look reads on in the sandbox, up to the journal's end. A sandbox that cannot be
// asked now is asked again at the next step.
func (t *tail) look(ctx context.Context, r core.Run) (ended bool, err error) {
	if t.err = t.in.free(ctx, r); t.err != nil {
		return false, ctx.Err()
	}
	for {
		page, err := t.in.probe.Page(ctx, core.PageRequest{RunKey: r.RunKey, Target: core.ExecTarget{
			Cluster: r.Cluster, TaskARN: r.TaskARN, Container: r.Container,
		}, Nonce: r.Nonce, From: t.at, Last: t.before(r)})
		if t.err = t.in.diagnosed(ctx, r, err); err != nil {
			return false, ctx.Err()
		}
		if n := int64(len(page.Data)); n > 0 {
			if err := t.print(pieceView{From: t.at, End: t.at + n, Data: page.Data, Live: true}); err != nil {
				return false, err
			}
			t.at, t.last = t.at+n, page.Data
		}
		if page.Exit != nil {
			return true, nil
		}
		if page.End || len(page.Data) == 0 {
			return false, nil
		}
	}
}

// free refuses a container that a long exec user has: one session at a time, whoever
// asks for it.
func (in *installation) free(ctx context.Context, r core.Run) error {
	box, err := in.boxes.Sandbox(ctx, r.SandboxKey)
	switch {
	case errors.Is(err, core.ErrNotFound):
		return nil
	case err != nil:
		return err
	case box.Exec.Bars(core.ExecHolder{}, box.LatestRun, core.MillisOf(time.Now())):
		return &core.ProbeFailure{Healing: core.Retry, Reason: "busy"}
	}
	return nil
}

// diagnosed is a probe's failure as ECS explains it: a task that is not up yet refuses
// sessions with the same words as one that was started without ECS Exec.
func (in *installation) diagnosed(ctx context.Context, r core.Run, err error) error {
	failure, ok := errors.AsType[*core.ProbeFailure](err)
	if !ok {
		return err
	}
	tasks, askErr := in.tasks.Describe(ctx, r.Cluster, []string{r.TaskARN})
	if askErr != nil || len(tasks) != 1 {
		return err // the reason stands as it is
	}
	d := core.Diagnose(tasks[0], r.Container, *failure, core.MillisOf(time.Now()))
	return &core.ProbeFailure{Healing: d.Healing, Reason: d.Reason}
}

// before are the journal's bytes before the position, as far as they are known.
func (t *tail) before(r core.Run) []byte {
	known := t.last
	if t.at == r.LogEnd {
		known = r.LogTail
	}
	return known[max(0, len(known)-core.JournalOverlap):]
}

// trouble says why the sandbox could not be asked, where that was the last word: what was
// printed is what is saved, and not all that was asked for.
func (t *tail) trouble() error {
	if failure, ok := errors.AsType[*core.ProbeFailure](t.err); ok {
		return fmt.Errorf("the sandbox could not be asked: %s: %s", failure.Reason, core.Advice(failure.Reason))
	}
	return t.err
}
