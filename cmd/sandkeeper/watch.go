package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// watchCommand shows the runs as they are, again and again.
type watchCommand struct {
	Every span `default:"2s" help:"How often to look." placeholder:"DURATION"`
	Live  bool `help:"In a transcript, read what is not saved yet in the sandbox itself; each look is an exec session."`
	Count int  `help:"With --json: end after so many looks; 0 never ends." default:"0"`
}

// snapshot is the installation at one moment.
type snapshot struct {
	At         stamp            `json:"at"`
	Control    controlView      `json:"control"`
	Runs       []runView        `json:"runs"`
	Unreadable []unreadableView `json:"unreadable,omitempty"`
}

// snapshot reads what the indexes show, and the settings.
func (in *installation) snapshot(ctx context.Context) (snapshot, error) {
	control, err := in.controls().Control(ctx)
	if err != nil {
		return snapshot{}, err
	}
	runs, bad, err := in.indexed(ctx)
	if err != nil {
		return snapshot{}, err
	}
	byStart(runs)
	now := core.MillisOf(time.Now())
	s := snapshot{At: stamp(now), Control: viewControl(control), Runs: []runView{}, Unreadable: viewUnreadable(bad)}
	for _, r := range runs {
		s.Runs = append(s.Runs, viewRun(r, now, in.limits))
	}
	return s, nil
}

// Run draws the view on a terminal; elsewhere, and with --json, it writes a JSON
// object a look.
func (c *watchCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	if c.Count < 0 {
		return badInput("count: want a number from 0 on, got %d", c.Count)
	}
	if out.JSON || !out.OutTerminal || !out.Asks || os.Getenv("TERM") == "dumb" { // which shows what is drawn as it is
		return c.stream(ctx, in, out)
	}
	w := &watcher{ctx: ctx, in: in, every: c.Every.duration(), live: c.Live, title: in.out[names.OutInstall] + " in " + in.cfg.Region}
	_, err := tea.NewProgram(w, tea.WithContext(ctx), tea.WithInput(out.In), tea.WithOutput(out.Out)).Run()
	if errors.Is(err, tea.ErrInterrupted) || ctx.Err() != nil {
		return nil // it was left, as by q
	}
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	return nil
}

// stream writes a snapshot a line.
func (c *watchCommand) stream(ctx context.Context, in *installation, out *console.Console) error {
	for n := 1; ; n++ {
		s, err := in.snapshot(ctx)
		if err != nil {
			return err
		}
		if err := printJSON(out.Out, s); err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		if n == c.Count {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(c.Every.duration()):
		}
	}
}
