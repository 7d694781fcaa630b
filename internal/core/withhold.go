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

// watch reads what keeps acts on one thread back, again and again while one goes on. A
// thread may have had thousands of runs: their records are read several at a time, the
// writer's lease is renewed between them, and a run that nobody can hold any more is not
// read twice.
type watch struct {
	k       *Keeper
	writer  Writer // without an owner there is no lease to renew
	renewed Millis
	over    map[RunKey]bool // have no hold, and never get one
}

// watch begins one for a writer that took or renewed its lease a moment ago.
func (k *Keeper) watch(w Writer) *watch {
	return &watch{k: k, writer: w, renewed: nowMillis(), over: map[RunKey]bool{}}
}

// keepUp renews the lease when it is time.
func (a *watch) keepUp(ctx context.Context) error {
	if a.writer.Owner == "" || nowMillis().Sub(a.renewed) < LeaseRenew {
		return nil
	}
	a.renewed = nowMillis()
	return a.k.renew(ctx, a.writer)
}

// withheld says why an act on the thread is kept back, or "". It is asked after the act has
// taken the thread's lease, its mark: settings and holds that were written before are seen.
func (a *watch) withheld(ctx context.Context, g guard) (why string, err error) {
	if why, err = a.k.settings(ctx, g); why != "" || err != nil {
		return why, err
	}
	held, err := a.held(ctx)
	if held {
		why = WithheldHeld
	}
	return why, err
}

// held reports whether somebody holds a run of the thread.
func (a *watch) held(ctx context.Context) (held bool, err error) {
	keys, err := a.k.History.ThreadRuns(ctx, a.writer.ThreadKey)
	if err != nil {
		return false, err
	}
	keys = slices.DeleteFunc(slices.Clone(keys), func(k RunKey) bool { return a.over[k] })
	err = a.read(ctx, keys, func(r Run) (done bool) {
		held = r.Hold.Live(nowMillis())
		if !held && !holdable(r) {
			a.over[r.RunKey] = true
		}
		return held
	})
	return held, err
}

// read reads runs, those that are there, until visit has found what it looks for.
func (a *watch) read(ctx context.Context, keys []RunKey, visit func(Run) (done bool)) error {
	for some := range slices.Chunk(keys, readAtOnce) {
		if err := a.keepUp(ctx); err != nil {
			return err
		}
		runs, errs := make([]Run, len(some)), make([]error, len(some))
		pool(min(a.k.width(), len(some)), len(some), func(i int) { runs[i], errs[i] = a.k.Runs.Run(ctx, some[i]) })
		for i, err := range errs {
			switch {
			case isNotFound(err):
			case err != nil:
				return err
			case visit(runs[i]):
				return nil
			}
		}
	}
	return nil
}

// readAtOnce is how many runs are read between two looks at the lease.
const readAtOnce = 128

// allowed refuses an act that is kept back.
func (a *watch) allowed(ctx context.Context, op string, g guard) error {
	why, err := a.withheld(ctx, g)
	if err == nil && why != "" {
		err = refuse(op, "thread "+a.writer.ThreadKey.String(), why)
	}
	return err
}

// Withheld reports whether an error is the refusal of an act that an operator keeps back.
func Withheld(err error) bool {
	return slices.Contains([]string{WithheldObserve, WithheldFrozen, WithheldHeld}, refusalOf(err))
}
