package sim

import (
	"context"
	"math"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// mark is the end of which a run was noted to be warned, and the call that noted it.
type mark struct {
	end core.Millis
	at  int
}

// teller is how an actor tells other systems.
type teller struct {
	w *world
	a *actor
}

// Announce tells.
func (t teller) Announce(ctx context.Context, notices []core.Notice) error {
	t.a.at(ctx, "announce")
	return t.a.p.Call(ctx, "announce", func() error {
		for _, n := range notices {
			if n.Type == core.NoticeExpiring {
				t.w.judgeWarning(t.a, n)
			}
		}
		return t.w.Announce(ctx, notices)
	})
}

// warnedFrom is from when on a run is warned of its expiry; zero: it is not.
func (w *world) warnedFrom(r core.Run) core.Millis {
	if expiry := w.expiry(r); w.config.Warns && expiry != 0 {
		return expiry.Add(-w.limits.ExpiringBefore)
	}
	return 0
}

// judgeWarning: a warning is of the run's next end, comes before it, and once for each.
// Whoever came before that was noted, or the end moved, may tell it all the same. Where all
// is frozen an end that was due has not come.
func (w *world) judgeWarning(a *actor, n core.Notice) {
	r := w.runs[w.index(n.Run)]
	run := w.oracle.seen[r.key]
	due, noted := n.Due.Add(a.skew), w.oracle.marked[r.key]
	own := near(due, w.expiry(run)) || near(due, capAt(run)) || near(due, run.Hold.Until)
	tenant := n.Reason == string(core.EndSpendCap) && !own
	w.met("warned: " + n.Reason)
	switch {
	case r.over != 0 && r.over <= a.begun:
		w.accuse("%s warns of the end of run %s, which is decided already", a.name, r.key)
	case n.Due < a.came && !a.kept:
		w.accuse("%s warns of the end of run %s, which was due before it came", a.name, r.key)
	case r.over == 0 && r.moved < a.begun && !own && !(tenant && w.config.Caps):
		w.accuse("%s warns of an end of run %s at %s, and it has none then", a.name, r.key, due.Time())
	}
	if tenant && w.config.Skew == 0 {
		due = firstOfMonth(n.At)
	}
	if noted.end == due && noted.at <= a.begun {
		w.accuse("%s warns of the end of run %s, which it was warned of", a.name, r.key)
	}
}

// judgeMarks follows which warnings are noted as given. A note that is written without
// one that its writer must have read takes it back.
func (w *world) judgeMarks(a *actor, call string) {
	if !w.config.Warns || call != "mark warned" && call != "note" {
		return
	}
	for _, r := range w.runs {
		note, err := w.store.Note(context.Background(), r.key)
		was := w.oracle.marked[r.key]
		if err != nil || note.Warned == was.end {
			continue
		}
		if call == "note" && was.end != 0 && was.at <= a.begun {
			w.accuse("%s forgets that run %s was warned", a.name, r.key)
		}
		w.oracle.marked[r.key] = mark{note.Warned, w.calls}
	}
}

func near(a, b core.Millis) bool {
	d := a.Sub(b)
	return -2*time.Millisecond <= d && d <= 2*time.Millisecond
}

// capAt is when a run will have cost what it may; zero: never.
func capAt(r core.Run) core.Millis {
	if r.SpendCap == 0 || r.TaskARN == "" {
		return 0
	}
	return r.StartedAt + core.Millis(math.Ceil(float64(r.SpendCap)/float64(mem.TaskSize.Price())*3_600_000))
}

func firstOfMonth(at core.Millis) core.Millis {
	t := at.Time().UTC()
	return core.MillisOf(time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC))
}
