package core

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// Cursor says how far the probing of a shard's detached runs has come: a lap goes
// through all of them, oldest first, and every run is answered once a lap, however
// many there are. The age of the oldest open lap is the age of the oldest unexamined
// run.
type Cursor struct {
	Shard      int
	AfterSince Millis // the last run answered
	AfterRun   string // "tenant/run" of it
	LapStarted Millis // zero: no lap is open
}

// Cursors is where they are kept.
type Cursors interface {
	// Cursor reads a shard's cursor; none is one at the beginning.
	Cursor(ctx context.Context, shard int) (Cursor, error)
	// MoveCursor replaces old by next, if it is as old still; else [*RefusedError].
	MoveCursor(ctx context.Context, old, next Cursor) error
}

// Budget hands out the share of the account's ECS calls that probes may use: a
// token is one ExecuteCommand.
type Budget interface {
	// Take takes up to want tokens of those that most allows in the minute, and
	// returns how many it got, perhaps none. A token whose answer was lost is spent.
	Take(ctx context.Context, minute Millis, want, most int) (int, error)
}

// lap is one shard's window: the runs to ask, in the order in which they come up.
type lap struct {
	cursor Cursor
	asking []int // indexes of runs, from behind the cursor on, once round
}

// place orders runs in a lap.
func place(since Millis, key string, otherSince Millis, otherKey string) int {
	return cmp.Or(cmp.Compare(since, otherSince), cmp.Compare(key, otherKey))
}

// behind tells where a run stands to the cursor: above 0 is still to come.
func (c Cursor) behind(r Run) int {
	return place(r.DetachedSince, r.RunKey.String(), c.AfterSince, c.AfterRun)
}

// turn sorts the runs of one shard so that those behind the cursor come first.
func (c Cursor) turn(runs []Run, asking []int) []int {
	slices.SortFunc(asking, func(a, b int) int {
		return place(runs[a].DetachedSince, runs[a].RunKey.String(), runs[b].DetachedSince, runs[b].RunKey.String())
	})
	first := slices.IndexFunc(asking, func(i int) bool { return c.behind(runs[i]) > 0 })
	if first < 0 {
		return asking
	}
	return slices.Concat(asking[first:], asking[:first])
}

// moved is the cursor once the runs of the lap were asked in order and answered
// tells which of them were: it stops before the first that was not, and begins a new
// lap where it passes the end.
func (l lap) moved(runs []Run, answered func(i int) bool, now Millis) Cursor {
	next := l.cursor
	if next.LapStarted == 0 {
		next.LapStarted = now
	}
	for _, i := range l.asking {
		if !answered(i) {
			return next
		}
		if l.cursor.behind(runs[i]) <= 0 && next.behind(runs[i]) <= 0 {
			next.LapStarted = now // round the end
		}
		next.AfterSince, next.AfterRun = runs[i].DetachedSince, runs[i].RunKey.String()
	}
	next.LapStarted = 0 // everything was answered: no lap is open
	return next
}

// share takes the tokens for n probes and says how many it got.
func (s *Sweep) share(ctx context.Context, n int) int {
	minute := MillisOf(nowMillis().Time().Truncate(time.Minute))
	got, err := s.Budget.Take(ctx, minute, n, int(s.Limits.ProbeRate*60))
	if err != nil {
		s.Logger.WarnContext(ctx, "take probe budget", "err", err)
		return 0
	}
	return got
}
