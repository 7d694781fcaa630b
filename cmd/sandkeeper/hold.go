package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// act is what a command about one run prints.
type act struct {
	Op     string            `json:"op"`
	Run    runView           `json:"run"` // as it is then
	By     string            `json:"by"`
	Why    string            `json:"why"`
	DryRun bool              `json:"dryRun"`
	Sent   []core.ReclaimJob `json:"sent,omitempty"` // of a dry run: the messages that would have been
}

// acting is one command about one run.
type acting struct {
	op     string
	run    oneRun
	why    whyText
	dryRun bool
	ask    string // the question before it, or ""
	do     func(o *core.Operator, key core.RunKey, by core.By) error
}

// carryOut does it and returns how the run stands then.
func (a acting) carryOut(ctx context.Context, in *installation, out *console.Console) (act, error) {
	key, err := a.run.key()
	if err != nil {
		return act{}, err
	}
	by, err := in.by(ctx, a.why)
	if err != nil {
		return act{}, err
	}
	if a.ask != "" && !a.dryRun {
		if err := out.Confirm(ctx, fmt.Sprintf(a.ask, key)); err != nil {
			return act{}, err
		}
	}
	operator, rehearsed := in.operator(a.dryRun)
	if err := a.do(operator, key, by); err != nil {
		return act{}, err
	}
	r, err := operator.Runs.Run(ctx, key)
	if err != nil {
		return act{}, err
	}
	done := act{Op: a.op, Run: viewRun(r, core.MillisOf(time.Now()), in.limits), By: by.Who, Why: by.Why, DryRun: a.dryRun}
	if rehearsed != nil {
		done.Sent = rehearsed.Sent
	}
	return done, nil
}

func (a acting) Run(ctx context.Context, in *installation, out *console.Console) error {
	done, err := a.carryOut(ctx, in, out)
	if err != nil {
		return err
	}
	return out.Print(done, func(w *console.Writer) {
		if a.dryRun {
			w.Line("dry run: nothing is written; %s would leave it so:", a.op)
		}
		w.Pairs(done.Run.pairs())
		for _, job := range done.Sent {
			w.Line("a message would be sent: %s of instance %s", job.Kind, job.Instance)
		}
	})
}

// holdCommand keeps a run's sandbox.
type holdCommand struct {
	oneRun
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
	return acting{op: "hold", run: c.oneRun, why: c.Why, dryRun: c.DryRun, do: func(o *core.Operator, key core.RunKey, by core.By) error {
		return o.Hold(ctx, key, core.MillisOf(until), by)
	}}.Run(ctx, in, out)
}

// releaseCommand takes a hold back.
type releaseCommand struct {
	oneRun
	reason
	sure
	rehearsal
}

// Run releases it. Its sandbox may end at once, so that it asks.
func (c *releaseCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	a := acting{op: "release", run: c.oneRun, why: c.Why, dryRun: c.DryRun, do: func(o *core.Operator, key core.RunKey, by core.By) error {
		return o.Release(ctx, key, by)
	}}
	if !c.Yes {
		a.ask = "release %s? Its sandbox may be stopped at once"
	}
	return a.Run(ctx, in, out)
}

// extendCommand gives a run more time, or lets it cost more.
type extendCommand struct {
	oneRun
	reason
	rehearsal
	TTL      span    `xor:"ttl" required:"" help:"May stay detached this long in all, like 12h or 2d." placeholder:"DURATION"`
	By       span    `xor:"ttl" required:"" help:"May stay detached this much longer than now." placeholder:"DURATION"`
	SpendCap float64 `xor:"ttl" required:"" help:"May cost this much in all, by list price from its start on." placeholder:"DOLLARS"`
}

// Run extends it.
func (c *extendCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	return acting{op: "extend", run: c.oneRun, why: c.Why, dryRun: c.DryRun, do: func(o *core.Operator, key core.RunKey, by core.By) error {
		if c.SpendCap != 0 {
			if !(c.SpendCap > 0 && c.SpendCap <= core.MostDollars.USD()) {
				return badInput("extend: spend cap: want dollars above 0, up to %.0f, got %g", core.MostDollars.USD(), c.SpendCap)
			}
			return o.ExtendSpend(ctx, key, core.DollarsOf(c.SpendCap), by)
		}
		ttl := c.TTL.duration() + c.By.duration()
		if ttl < time.Second {
			return badInput("extend: want a second at least, got %s", ttl)
		}
		if c.By != 0 {
			return o.ExtendBy(ctx, key, ttl, by)
		}
		return o.Extend(ctx, key, int64(ttl/time.Second), by)
	}}.Run(ctx, in, out)
}

// killCommand ends a run.
type killCommand struct {
	oneRun
	reason
	sure
	rehearsal
	Now bool `help:"Have the run swept at once, not by the next tick."`
}

// swiftEnd is what it prints with --now.
type swiftEnd struct {
	act
	Report core.SweepReport `json:"report"`
}

// Run records the wish; its host or a sweep carries it out.
func (c *killCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	a := acting{op: "kill", run: c.oneRun, why: c.Why, dryRun: c.DryRun, do: func(o *core.Operator, key core.RunKey, by core.By) error {
		return o.Kill(ctx, key, by)
	}}
	if !c.Yes {
		a.ask = "end %s and its agent?"
	}
	if !c.Now || c.DryRun {
		return a.Run(ctx, in, out)
	}
	done, err := a.carryOut(ctx, in, out)
	if err != nil {
		return err
	}
	report, err := in.reap(ctx, core.SweepRequest{Mode: core.ModeSweep, Runs: []core.RunKey{done.Run.RunKey}})
	if err != nil {
		return fmt.Errorf("it is recorded, and the next tick ends the run: %w", err)
	}
	return out.Print(swiftEnd{done, report}, func(w *console.Writer) {
		printReport(w, report, true)
	})
}
