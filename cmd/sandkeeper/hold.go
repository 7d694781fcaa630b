package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// holdCommand keeps a run's sandbox.
type holdCommand struct {
	someRuns
	reason
	rehearsal
	For   span      `xor:"until" required:"" help:"For this long from now, like 4h or 3d." placeholder:"DURATION"`
	Until time.Time `xor:"until" required:"" help:"Until this time, as RFC 3339." placeholder:"TIME"`
}

// Run holds it.
func (c *holdCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	until := c.Until
	if c.For != 0 {
		until = time.Now().Add(c.For.duration())
	}
	if left := time.Until(until); left <= 0 || left > core.MaxHold {
		return badInput("hold: want a time to come within %s, got %s", core.MaxHold, until.UTC().Format(time.RFC3339))
	}
	return acting{op: "hold", runs: c.someRuns, why: c.Why, dryRun: c.DryRun, do: func(o *core.Operator, key core.RunKey, by core.By) error {
		return o.Hold(ctx, key, core.MillisOf(until), by)
	}}.Run(ctx, in, out)
}

// releaseCommand takes a hold back.
type releaseCommand struct {
	someRuns
	reason
	sure
	rehearsal
}

// Run releases it. Its sandbox may end at once, so that it asks.
func (c *releaseCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	a := acting{op: "release", runs: c.someRuns, why: c.Why, dryRun: c.DryRun, do: func(o *core.Operator, key core.RunKey, by core.By) error {
		return o.Release(ctx, key, by)
	}}
	if !c.Yes {
		a.ask = question{"release %s? Its sandbox may be stopped at once", "release %s? Their sandboxes may be stopped at once"}
	}
	return a.Run(ctx, in, out)
}

// extendCommand gives a run more time, or lets it cost more.
type extendCommand struct {
	someRuns
	reason
	rehearsal
	TTL      span    `xor:"ttl" required:"" help:"May stay detached this long in all, like 12h or 2d." placeholder:"DURATION"`
	By       span    `xor:"ttl" required:"" help:"May stay detached this much longer than now." placeholder:"DURATION"`
	SpendCap float64 `xor:"ttl" required:"" help:"May cost this much in all, by list price from its start on." placeholder:"DOLLARS"`
}

// Run extends it.
func (c *extendCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	ttl := c.TTL.duration() + c.By.duration()
	switch {
	case c.SpendCap != 0 && !(c.SpendCap > 0 && c.SpendCap <= core.MostDollars.USD()):
		return badInput("extend: spend cap: want dollars above 0, up to %.0f, got %g", core.MostDollars.USD(), c.SpendCap)
	case c.SpendCap == 0 && ttl < time.Second:
		return badInput("extend: want a second at least, got %s", ttl)
	}
	return acting{op: "extend", runs: c.someRuns, why: c.Why, dryRun: c.DryRun, do: func(o *core.Operator, key core.RunKey, by core.By) error {
		switch {
		case c.SpendCap != 0:
			return o.ExtendSpend(ctx, key, core.DollarsOf(c.SpendCap), by)
		case c.By != 0:
			return o.ExtendBy(ctx, key, ttl, by)
		}
		return o.Extend(ctx, key, int64(ttl/time.Second), by)
	}}.Run(ctx, in, out)
}

// killCommand ends a run.
type killCommand struct {
	someRuns
	reason
	sure
	rehearsal
	Now bool `help:"Have the run swept at once, not by the next tick."`
}

// Run records the wish; its host or a sweep carries it out.
func (c *killCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	a := acting{op: "kill", runs: c.someRuns, why: c.Why, dryRun: c.DryRun, do: func(o *core.Operator, key core.RunKey, by core.By) error {
		return o.Kill(ctx, key, by)
	}}
	if !c.Yes {
		a.ask = question{"end %s and its agent?", "end %s and their agents?"}
	}
	if c.Now && !c.DryRun {
		a.then = func(done []core.RunKey) (*core.SweepReport, error) {
			report, err := in.reap(ctx, core.SweepRequest{Mode: core.ModeSweep, Runs: done})
			if err != nil {
				return nil, fmt.Errorf("it is recorded, and the next tick carries it out: %w", err)
			}
			return &report, nil
		}
	}
	return a.Run(ctx, in, out)
}
