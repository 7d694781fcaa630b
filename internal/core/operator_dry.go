package core

import (
	"context"
	"errors"
)

// Rehearsal is an operator that decides, refuses and answers as the real one does,
// and writes nothing: each transition is applied to the record as it was read, and
// its successor stays here, where later reads of the same command find it.
type Rehearsal struct {
	Operator
	// Sent are the messages that would have been sent.
	Sent []ReclaimJob

	of       Operator
	controls Controls
	runs     map[RunKey]Run
	boxes    map[SandboxKey]Sandbox
	rows     map[InstanceID]LedgerRow
	control  *Control
}

// Rehearse returns the rehearsal of o, which reads the settings from controls.
func Rehearse(o Operator, controls Controls) *Rehearsal {
	r := &Rehearsal{
		of: o, controls: controls,
		runs: map[RunKey]Run{}, boxes: map[SandboxKey]Sandbox{}, rows: map[InstanceID]LedgerRow{},
	}
	p := rehearsed{r}
	r.Operator = Operator{
		Runs: p, Sandboxes: p, Ledger: p, Due: o.Due, Controls: p, Audit: p, Queue: p, Limits: o.Limits,
	}
	return r
}

// rehearsed is the rehearsal as its operator's ports.
type rehearsed struct{ *Rehearsal }

var errRehearsed = errors.New("a rehearsal begins nothing")

// Run reads a record, as the rehearsal has left it.
func (p rehearsed) Run(ctx context.Context, key RunKey) (Run, error) {
	if r, ok := p.runs[key]; ok {
		return r, nil
	}
	return p.of.Runs.Run(ctx, key)
}

// Create is no operator's work.
func (rehearsed) Create(context.Context, Run) (Run, error) { return Run{}, errRehearsed }

// Update applies a transition to the record as read.
func (p rehearsed) Update(ctx context.Context, key RunKey, t Transition) (Run, error) {
	r, err := p.Run(ctx, key)
	if err != nil {
		return Run{}, err
	}
	next, err := rehearse(t, r)
	if err == nil {
		p.runs[key] = next
	}
	return next, err
}

// rehearse is what a conditional write would have made of a record.
func rehearse[R any](t interface {
	Apply(R) (R, error)
	Landed(R) bool
}, record R) (R, error) {
	next, err := t.Apply(record)
	if err != nil && t.Landed(record) {
		return record, nil
	}
	return next, err
}

// Sandbox reads a record, as the rehearsal has left it.
func (p rehearsed) Sandbox(ctx context.Context, key SandboxKey) (Sandbox, error) {
	if s, ok := p.boxes[key]; ok {
		return s, nil
	}
	return p.of.Sandboxes.Sandbox(ctx, key)
}

// UpdateSandbox applies a transition to the record as read.
func (p rehearsed) UpdateSandbox(ctx context.Context, key SandboxKey, t SandboxTransition) (Sandbox, error) {
	s, err := p.Sandbox(ctx, key)
	if err != nil {
		return Sandbox{}, err
	}
	next, err := rehearse(t, s)
	if err == nil {
		p.boxes[key] = next
	}
	return next, err
}

// Row reads a row, as the rehearsal has left it.
func (p rehearsed) Row(ctx context.Context, id InstanceID) (LedgerRow, error) {
	if row, ok := p.rows[id]; ok {
		return row, nil
	}
	return p.of.Ledger.Row(ctx, id)
}

// PutIntent is no operator's work.
func (rehearsed) PutIntent(context.Context, LedgerRow) (LedgerRow, error) {
	return LedgerRow{}, errRehearsed
}

// UpdateRow applies a transition to the row as read.
func (p rehearsed) UpdateRow(ctx context.Context, id InstanceID, t LedgerTransition) (LedgerRow, error) {
	row, err := p.Row(ctx, id)
	if err != nil {
		return LedgerRow{}, err
	}
	next, err := rehearse(t, row)
	if err == nil {
		p.rows[id] = next
	}
	return next, err
}

// UpdateControl applies a transition to the settings as read.
func (p rehearsed) UpdateControl(ctx context.Context, t ControlTransition) (Control, error) {
	var c Control
	var err error
	if p.control != nil {
		c = *p.control
	} else if c, err = p.controls.Control(ctx); err != nil {
		return Control{}, err
	}
	next, err := rehearse(t, c)
	if err == nil {
		p.control = &next
	}
	return next, err
}

// Record keeps no entry: nothing was done.
func (rehearsed) Record(context.Context, AuditEntry) error { return nil }

// Send keeps the messages.
func (p rehearsed) Send(_ context.Context, jobs []ReclaimJob) error {
	p.Sent = append(p.Sent, jobs...)
	return nil
}

// Settled are the settings as the rehearsal has left them; false if it changed none.
func (r *Rehearsal) Settled() (Control, bool) {
	if r.control == nil {
		return Control{}, false
	}
	return *r.control, true
}
