package core

import (
	"context"
	"slices"
)

// The reasons for which nothing is removed of what is stored, or replaced in a sandbox.
const (
	WithheldObserve = "observe"
	WithheldFrozen  = "frozen"
	WithheldHeld    = "held"
)

// guard says which settings keep an act back. To observe keeps back what an installation
// does by itself, not what a host or an operator asks for.
type guard struct{ observes bool }

// The acts of a keeper that destroy: those of retention, and those of a wish.
var (
	ofRetention = guard{observes: true}
	ofWish      = guard{}
)

// settings says why the settings keep an act back, or "". The breaker counts ends of
// runs, and is no reason: nothing here ends one.
func (k *Keeper) settings(ctx context.Context, g guard) (why string, err error) {
	c, err := k.Controls.Control(ctx)
	switch {
	case err != nil:
		return "", err
	case g.observes && !c.Acts():
		return WithheldObserve, nil
	case c.Frozen:
		return WithheldFrozen, nil
	}
	return "", nil
}

// withheld says why an act on a thread is kept back, or "". It is asked after the act has
// taken the thread's lease, its mark: settings and holds that were written before are seen.
func (k *Keeper) withheld(ctx context.Context, key ThreadKey, g guard) (why string, err error) {
	if why, err = k.settings(ctx, g); why != "" || err != nil {
		return why, err
	}
	held, err := k.held(ctx, key)
	if held {
		why = WithheldHeld
	}
	return why, err
}

// held reports whether somebody holds a run of the thread.
func (k *Keeper) held(ctx context.Context, key ThreadKey) (bool, error) {
	runs, err := k.History.ThreadRuns(ctx, key)
	if err != nil {
		return false, err
	}
	for _, at := range runs {
		r, err := k.Runs.Run(ctx, at)
		if ignoreNotFound(err) != nil {
			return false, err
		}
		if err == nil && r.Hold.Live(nowMillis()) {
			return true, nil
		}
	}
	return false, nil
}

// allowed refuses an act that is kept back.
func (k *Keeper) allowed(ctx context.Context, op string, key ThreadKey, g guard) error {
	why, err := k.withheld(ctx, key, g)
	if err == nil && why != "" {
		err = refuse(op, "thread "+key.String(), why)
	}
	return err
}

// Withheld reports whether an error is the refusal of an act that an operator keeps back.
func Withheld(err error) bool {
	return slices.Contains([]string{WithheldObserve, WithheldFrozen, WithheldHeld}, refusalOf(err))
}
