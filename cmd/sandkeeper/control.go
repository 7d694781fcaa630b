package main

import (
	"cmp"
	"context"
	"strconv"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// controlView is the installation's settings as the tool shows them.
type controlView struct {
	Mode       core.Mode    `json:"mode"`
	Frozen     *frozenView  `json:"frozen,omitempty"`
	Breaker    *breakerView `json:"breaker,omitempty"`
	QuietUntil stamp        `json:"quietUntil,omitzero"` // until then the breaker does not count, after a thaw
}

type frozenView struct {
	At  stamp  `json:"at"`
	By  string `json:"by"`
	Why string `json:"why"`
}

type breakerView struct {
	TrippedAt stamp `json:"trippedAt,omitzero"`
	Count     int   `json:"count"` // ends without a sentinel in its window
	Since     stamp `json:"since"` // since when it counts
}

func viewControl(c core.Control) controlView {
	v := controlView{Mode: c.Mode, QuietUntil: stamp(c.Breaker.QuietUntil)}
	if c.Frozen {
		v.Frozen = &frozenView{stamp(c.FrozenAt), c.FrozenBy, c.FrozenWhy}
	}
	if b := c.Breaker; b.Count > 0 || b.TrippedAt != 0 {
		v.Breaker = &breakerView{stamp(b.TrippedAt), b.Count, stamp(b.WindowStart)}
	}
	return v
}

func (v controlView) print(w *console.Writer) {
	pairs := [][2]string{{"mode", string(v.Mode)}}
	if v.Frozen != nil {
		pairs = append(pairs, [2]string{"frozen", "since " + v.Frozen.At.String() + " by " + v.Frozen.By + ": " + v.Frozen.Why})
	}
	if b := v.Breaker; b != nil {
		text := strconv.Itoa(b.Count) + " ends without a sentinel since " + b.Since.String()
		if b.TrippedAt != 0 {
			text += ", tripped at " + b.TrippedAt.String()
		}
		pairs = append(pairs, [2]string{"breaker", text})
	}
	w.Pairs(pairs)
}

// settled is what a command about the settings prints.
type settled struct {
	Op       string      `json:"op"` // freeze, thaw or mode; show, where nothing is changed
	By       string      `json:"by,omitempty"`
	Why      string      `json:"why,omitempty"`
	DryRun   bool        `json:"dryRun"`
	Control  controlView `json:"control"`
	Stopping []rowView   `json:"stopping,omitempty"` // of a freeze: what is under way still
}

// rowView is a ledger row as the tool shows it.
type rowView struct {
	Instance core.InstanceID  `json:"instanceId"`
	State    core.LedgerState `json:"state"`
	Tenant   core.TenantID    `json:"tenant,omitempty"`
	Run      core.RunID       `json:"run,omitempty"`
	TaskARN  string           `json:"taskArn,omitempty"`
	Why      string           `json:"why,omitempty"`
	Attempts int              `json:"attempts,omitempty"`
	DueAt    stamp            `json:"dueAt,omitzero"`
}

func viewRow(row core.LedgerRow) rowView {
	return rowView{row.Instance, row.State, row.Tenant, row.Run, row.TaskARN, row.Why, row.Attempts, stamp(row.DueAt)}
}

// setting is one command about the settings.
type setting struct {
	op     string
	why    whyText
	dryRun bool
	ask    string
	do     func(o *core.Operator, by core.By) ([]core.LedgerRow, error)
}

// Run carries it out and prints the settings then.
func (s setting) Run(ctx context.Context, in *installation, out *console.Console) error {
	by, err := in.by(ctx, s.why)
	if err != nil {
		return err
	}
	if s.ask != "" && !s.dryRun {
		if err := out.Confirm(ctx, s.ask); err != nil {
			return err
		}
	}
	operator, rehearsed := in.operator(s.dryRun)
	rows, err := s.do(operator, by)
	if err != nil {
		return err
	}
	control, err := in.controls().Control(ctx)
	if err != nil {
		return err
	}
	if rehearsed != nil {
		if c, ok := rehearsed.Settled(); ok {
			c.Mode = cmp.Or(c.Mode, control.Mode)
			control = c
		}
	}
	done := settled{Op: s.op, By: by.Who, Why: by.Why, DryRun: s.dryRun, Control: viewControl(control)}
	for _, row := range rows {
		done.Stopping = append(done.Stopping, viewRow(row))
	}
	return out.Print(done, func(w *console.Writer) {
		if s.dryRun {
			w.Line("dry run: nothing is written; %s would leave it so:", s.op)
		}
		done.Control.print(w)
		done.printStopping(w)
	})
}

func (s settled) printStopping(w *console.Writer) {
	if s.Op != "freeze" {
		return
	}
	var rows [][]string
	for _, r := range s.Stopping {
		rows = append(rows, []string{string(r.Instance), taskID(r.TaskARN), r.Why, strconv.Itoa(r.Attempts)})
	}
	w.Line("complete in %s; under way still:", core.DefaultLimits.ReclaimTimeout)
	w.Table([]string{"INSTANCE", "TASK", "WHY", "ATTEMPTS"}, rows, "nothing")
}

// freezeCommand stops all stopping.
type freezeCommand struct {
	reason
	rehearsal
}

// Run freezes. It keeps things alive, so that it does not ask.
func (c *freezeCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	return setting{op: "freeze", why: c.Why, dryRun: c.DryRun, do: func(o *core.Operator, by core.By) ([]core.LedgerRow, error) {
		return o.Freeze(ctx, by)
	}}.Run(ctx, in, out)
}

// thawCommand takes a freeze back.
type thawCommand struct {
	reason
	sure
	rehearsal
}

// Run thaws, and resets the breaker.
func (c *thawCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	s := setting{op: "thaw", why: c.Why, dryRun: c.DryRun, do: func(o *core.Operator, by core.By) ([]core.LedgerRow, error) {
		return nil, o.Thaw(ctx, by)
	}}
	if !c.Yes {
		s.ask = "thaw? What freeze and breaker kept back ends with the next sweep"
	}
	return s.Run(ctx, in, out)
}

// modeCommand shows or sets the mode.
type modeCommand struct {
	Mode string  `arg:"" optional:"" enum:",observe,enforce" default:"" help:"observe writes nothing, enforce acts; without it, the present one is shown."`
	Why  whyText `help:"Why, for the record; required to set one." placeholder:"TEXT"`
	sure
	rehearsal
}

// Run shows or sets it.
func (c *modeCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	if c.Mode == "" {
		control, err := in.controls().Control(ctx)
		if err != nil {
			return err
		}
		v := viewControl(control)
		return out.Print(settled{Op: "show", Control: v}, func(w *console.Writer) { v.print(w) })
	}
	if c.Why == "" {
		return badInput("mode %s: want a reason: --why", c.Mode)
	}
	s := setting{op: "mode", why: c.Why, dryRun: c.DryRun, do: func(o *core.Operator, by core.By) ([]core.LedgerRow, error) {
		return nil, o.SetMode(ctx, core.Mode(c.Mode), by)
	}}
	if !c.Yes && core.Mode(c.Mode) == core.Enforce {
		s.ask = "enforce? The next sweep ends what has ended, and stops its tasks"
	}
	return s.Run(ctx, in, out)
}
