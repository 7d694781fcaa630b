package sim

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// letter is a reclaim message that an actor is about.
type letter struct {
	job           core.ReclaimJob
	always, never bool // something was owed of it, or nothing, since the actor came
}

// owes reports whether anything of what a message is about is to be done now.
func (w *world) owes(job core.ReclaimJob) bool {
	if r, err := w.store.Run(context.Background(), core.RunKey{Tenant: job.Tenant, Run: job.Run}); err == nil && r.Row == core.RowReclaim && r.Instance == job.Instance {
		return true
	}
	if box, err := w.store.Sandbox(context.Background(), job.Key); err == nil && job.Kind == core.JobDue && box.Instance == job.Instance && box.DueAt != 0 {
		return true
	}
	row, err := w.store.Row(context.Background(), job.Instance)
	return err == nil && row.State == core.LedgerStopping
}

// letterOf is a message as an actor comes to it; nil where no letters are sent again.
func (w *world) letterOf(job core.ReclaimJob) *letter {
	if !w.config.Redrives {
		return nil
	}
	owes := w.owes(job)
	return &letter{job: job, always: owes, never: !owes}
}

// redrive has an operator send a letter again that came to nothing before, if anything of
// it is owed still: the nth of those about the run, from the newest.
func (w *world) redrive(c Choice, r *agentRun) {
	skip := c.N
	for i := len(w.sent) - 1; i >= 0; i-- {
		if m := w.sent[i]; m.run == r.key.Run && m.times > 0 {
			if skip--; skip < 0 {
				w.spawn(role{c.ID, "operator", "redrive of " + string(m.job.Kind) + " of " + string(m.run), c.Run}, time.Minute, func(ctx context.Context, a *actor) {
					w.sendsAgain(ctx, a, m.job)
				})
				return
			}
		}
	}
}

func (w *world) sendsAgain(ctx context.Context, a *actor, job core.ReclaimJob) {
	a.letter = w.letterOf(job)
	p := w.ports(a)
	owed, why, err := core.Debts{Runs: p, Sandboxes: p, Ledger: p}.Owed(ctx, job)
	switch {
	case err != nil:
		return
	case !owed && a.letter.always:
		w.accuse("%s: it is said that nothing is owed (%s), and something is (I4)", a.name, why)
	case owed && a.letter.never:
		w.accuse("%s: it is said that something is owed (%s), and nothing is", a.name, why)
	case owed:
		w.met("redriven")
		_ = p.Send(ctx, []core.ReclaimJob{job})
		return
	}
	w.met("a letter is settled")
}

// watchLetters follows what is owed of the letters that somebody looks at.
func (w *world) watchLetters() {
	for _, a := range w.actors {
		if a.letter != nil && !a.over {
			owes := w.owes(a.letter.job)
			a.letter.always, a.letter.never = a.letter.always && owes, a.letter.never && !owes
		}
	}
}

// harmless are the writes of a reclaim that give back what it took.
var harmless = []string{"acquire lease", "release lease"}

// letters: a message of which nothing is owed when it comes changes nothing, however late
// or often that is (I4). One of a task that is about to end is of a run that goes on.
func (w *world) letters(a *actor, step func()) {
	if a.kind != "reclaim" || a.letter == nil || !a.letter.never || a.letter.job.Kind == core.JobLeaving {
		step()
		return
	}
	before := len(a.p.Writes())
	step()
	for _, what := range a.p.Writes()[before:] {
		if !slices.ContainsFunc(harmless, func(prefix string) bool { return strings.HasPrefix(what, prefix) }) {
			w.accuse("%s: %s, and nothing is owed of its letter any more (I4)", a.name, what)
		}
	}
}
