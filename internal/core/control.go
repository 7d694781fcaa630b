package core

import (
	"context"
	"time"
)

// Mode says whether a sweep acts.
type Mode string

// Observe writes nothing at all; Enforce acts.
const (
	Observe Mode = "observe"
	Enforce Mode = "enforce"
)

// Control is what an operator has settled for the installation, and the breaker's
// count. The zero value enforces: an installation that shall observe says so.
type Control struct {
	Mode Mode
	// Frozen is the operator's stop: finished runs are saved and closed; nothing is
	// stopped or expired.
	Frozen    bool
	FrozenAt  Millis
	FrozenBy  string
	FrozenWhy string
	Breaker   Breaker
}

// Breaker counts ends without a sentinel in a window. Tripped, they and their
// reclaims wait until an operator thaws: so many at once are rather a fault of ours,
// or of AWS, than of the agents.
type Breaker struct {
	WindowStart Millis
	Count       int
	TrippedAt   Millis // zero: not tripped
	// QuietUntil is until when it does not count: an operator has looked and thawed,
	// and the crowd that tripped it may end.
	QuietUntil Millis
}

// Acts reports whether anything may be written.
func (c Control) Acts() bool { return c.Mode != Observe }

// Stops reports whether a task may be stopped or a run expired, by whatever has a
// sentinel or a user's wish behind it.
func (c Control) Stops() bool { return c.Acts() && !c.Frozen }

// EndsUnsealed reports whether a run may be ended that did not end by itself, and
// what such an end left be stopped.
func (c Control) EndsUnsealed() bool { return c.Acts() && !c.Blocked() }

// Blocked reports whether freeze or breaker keep such ends back, whatever the mode:
// an installation that observes reports what it would do.
func (c Control) Blocked() bool { return c.Frozen || c.Breaker.TrippedAt != 0 }

// What keeps ends back, as [Control.Standing] says.
const (
	StandingObserve = "observe"
	StandingFrozen  = "frozen"
	StandingTripped = "breaker"
)

// Standing says what keeps ends back; empty where nothing does.
func (c Control) Standing() string {
	switch {
	case !c.Acts():
		return StandingObserve
	case c.Frozen:
		return StandingFrozen
	case c.Breaker.TrippedAt != 0:
		return StandingTripped
	}
	return ""
}

// Controls is where the operator's settings are.
type Controls interface {
	// Control reads them consistently. No settings are the zero Control.
	Control(ctx context.Context) (Control, error)
}

// ControlWriter changes the operator's settings.
type ControlWriter interface {
	// UpdateControl carries out one transition in one conditional request; see
	// [Runs.Update] for what it answers. Without settings it begins from the zero
	// Control.
	UpdateControl(ctx context.Context, t ControlTransition) (Control, error)
}

// ControlTransition is one conditional write of the settings, as a value; see
// [Transition] for the contract of its methods.
type ControlTransition interface {
	Name() string
	Apply(c Control) (Control, error)
	Landed(c Control) bool
}

// SetMode makes the installation observe or enforce.
type SetMode struct{ Mode Mode }

// Name is "set mode".
func (SetMode) Name() string { return "set mode" }

// Apply needs nothing but a mode that exists.
func (t SetMode) Apply(c Control) (Control, error) {
	if t.Mode != Observe && t.Mode != Enforce {
		return Control{}, &RefusedError{Op: t.Name(), Record: "control", Why: "mode"}
	}
	c.Mode = t.Mode
	return c, nil
}

// Landed: that mode is set.
func (t SetMode) Landed(c Control) bool { return c.Mode == t.Mode }

// Freeze stops all stopping.
type Freeze struct {
	Now     Millis
	By, Why string
}

// Name is "freeze".
func (Freeze) Name() string { return "freeze" }

// Apply always holds: freezing again only names who did.
func (t Freeze) Apply(c Control) (Control, error) {
	c.Frozen, c.FrozenAt, c.FrozenBy, c.FrozenWhy = true, t.Now, t.By, t.Why
	return c, nil
}

// Landed is always false: it may be repeated.
func (Freeze) Landed(Control) bool { return false }

// Thaw takes a freeze back and resets the breaker, which does not count again before
// QuietUntil: the runs that tripped it are still due, and would trip it again.
type Thaw struct{ QuietUntil Millis }

// Name is "thaw".
func (Thaw) Name() string { return "thaw" }

// Apply always holds.
func (t Thaw) Apply(c Control) (Control, error) {
	return Control{Mode: c.Mode, Breaker: Breaker{QuietUntil: t.QuietUntil}}, nil
}

// Landed is always false: it may be repeated.
func (Thaw) Landed(Control) bool { return false }

// CountEnds announces N ends without a sentinel before any of them happens, and
// trips the breaker where they are too many for the window.
type CountEnds struct {
	Seen   Breaker // as read
	N      int
	Now    Millis
	Window time.Duration
	Most   int // in a window
}

// Name is "count ends".
func (CountEnds) Name() string { return "count ends" }

// Apply: the breaker as read.
func (t CountEnds) Apply(c Control) (Control, error) {
	if c.Breaker != t.Seen {
		return Control{}, &RefusedError{Op: t.Name(), Record: "control", Why: "breaker"}
	}
	c.Breaker = t.Next()
	return c, nil
}

// Next is the breaker after the count.
func (t CountEnds) Next() Breaker {
	b := t.Seen
	if b.TrippedAt != 0 || t.Now < b.QuietUntil {
		return b
	}
	if t.Now >= b.WindowStart.Add(t.Window) {
		b = Breaker{WindowStart: t.Now, QuietUntil: b.QuietUntil}
	}
	b.Count += t.N
	if b.Count > t.Most {
		b.TrippedAt = t.Now
	}
	return b
}

// Landed is always false: a count that lost its answer is counted twice, which
// trips sooner.
func (CountEnds) Landed(Control) bool { return false }
