package core

import "context"

// Mode says whether a sweep acts.
type Mode string

// Observe writes nothing at all; Enforce acts.
const (
	Observe Mode = "observe"
	Enforce Mode = "enforce"
)

// Control is what an operator has set for the installation. The zero value
// enforces: an installation that shall observe says so.
type Control struct {
	Mode   Mode
	Frozen bool // finished runs are saved and closed; nothing is stopped or expired
}

// Acts reports whether anything may be written.
func (c Control) Acts() bool { return c.Mode != Observe }

// Stops reports whether a task may be stopped or a run ended without a sentinel.
func (c Control) Stops() bool { return c.Acts() && !c.Frozen }

// Controls is where the operator's settings are.
type Controls interface {
	// Control reads them consistently. No settings are the zero Control.
	Control(ctx context.Context) (Control, error)
}
