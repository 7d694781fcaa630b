package core

import (
	"context"
	"sync"
	"time"
)

// How often a tail asks a sandbox, which costs of what all starts and stops of the
// account's tasks draw on.
const (
	// tailPace is from one question to the next where nothing else tells of the journal:
	// four a minute, whatever the agent writes.
	tailPace = 15 * time.Second
	// tailEnd is the pace once the sandbox has said that the agent has ended, for as long as
	// tailEndFor: an agent may say so that goes on.
	tailEnd    = 2 * time.Second
	tailEndFor = 30 * time.Second
	// spoolQuiet is how long a spool into which nothing comes is believed to have all, and
	// the pace from then on.
	spoolQuiet = 2 * time.Minute
	// spoolRouse is how long a host that has come back waits for the spool's next piece,
	// before one question to the sandbox tells it that somebody follows again.
	spoolRouse = 3 * time.Second
	// waitLeast is the shortest wait in a sandbox that is worth its question, and waitSpare
	// what a question takes beside it.
	waitLeast = 3 * time.Second
	waitSpare = time.Second
)

// tailSource is where a page came from.
type tailSource int

const (
	fromSpool tailSource = iota
	fromSandbox
)

// unheard is a question to a sandbox that it gave no answer to.
type unheard struct{ err error }

func (e *unheard) Error() string { return "tail: " + e.err.Error() }
func (e *unheard) Unwrap() error { return e.err }

// next brings the page behind the log's end: what the spool has, where that is news to who
// has read up to from; else what the sandbox says, if it is time to ask it.
func (s *Session) next(ctx context.Context, from int64, r Run, wait time.Duration) (PageReply, tailSource, error) {
	q := pageOf(r, r.LogEnd)
	q.Last, q.Follow = r.LogTail, true
	var spooled SpoolPage
	var page PageReply
	if s.Spool != nil {
		spooled = SpoolReader{s.Spool, s.limits().Page, s.log()}.Page(ctx, q)
		page = PageReply{Data: spooled.Data, End: true, Size: spooled.End}
		s.tails.spooled(r.RunKey, spooled.End)
		if from < r.LogEnd && len(page.Data) > 0 || len(given(page, r.LogEnd, from)) > 0 {
			return page, fromSpool, nil
		}
	}
	held := s.holds(r) && s.tails.unspooled(r.RunKey, spooled.Newest)
	if !held && s.follows.open(r.RunKey) {
		s.giveWay(ctx, r.RunKey)()
	}
	known, ask := s.tails.ask(r, spooled.Newest, s.follows.open(r.RunKey))
	if !ask {
		return page, fromSpool, nil
	}
	if wait -= waitSpare; wait >= waitLeast && spooled.Newest == 0 && r.ExitedAt == 0 {
		q.WaitSeconds, q.Beyond = int64(min(wait, MaxPageWait)/time.Second), max(known, from)
	}
	page, err := s.asked(ctx, q, r, from, held)
	switch {
	case refusalOf(err) != "":
		return PageReply{}, fromSandbox, err
	case err != nil:
		return PageReply{}, fromSandbox, &unheard{err}
	}
	s.tails.answered(r.RunKey, page.Size, spooled.End)
	return page, fromSandbox, nil
}

// asked has the sandbox answer. Where that may take a while the record is looked at
// meanwhile: a cancel that is recorded, or the word that the agent has ended, lets nobody
// wait on.
func (s *Session) asked(ctx context.Context, q PageRequest, r Run, from int64, held bool) (PageReply, error) {
	if held {
		return s.heldPage(ctx, q, r, from)
	}
	if err := s.unoccupied(ctx, "tail", r, ExecOf(ExecTail, r)); err != nil {
		return PageReply{}, err
	}
	if q.WaitSeconds == 0 {
		return s.Prober.Page(ctx, q)
	}
	hold := s.exec(r, ExecTail)
	if err := hold.take(ctx, time.Duration(q.WaitSeconds)*time.Second+execWithin); err != nil {
		return PageReply{}, busyError("page", err)
	}
	defer hold.free(ctx)
	ctx, stop := s.overtaken(ctx, r, hold)
	defer stop()
	page, err := s.Prober.Page(ctx, q)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return page, err
}

// overtaken is ctx until there is something for which nobody should wait on: a cancel, the
// word that the agent has ended, another driver, or another user of the container. stop
// ends the look-out, and waits for it.
func (s *Session) overtaken(ctx context.Context, r Run, hold *execHold) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var looks sync.WaitGroup
	looks.Go(func() {
		for n := 1; waitUntil(ctx, time.Now().Add(tailPoll)); n++ {
			now, err := s.runs().Run(ctx, r.RunKey)
			moved := err == nil && (now.CancelRequested != r.CancelRequested || now.Epoch != r.Epoch || now.ExitedAt != r.ExitedAt)
			if moved || n%holdLook == 0 && hold.stolen(ctx) {
				cancel(errOvertaken)
				return
			}
		}
	})
	return ctx, func() {
		cancel(nil)
		looks.Wait()
	}
}

// holdLook is at how many looks at a run there is one at its sandbox: who takes that over
// is served meanwhile, beside the one who follows.
const holdLook = 3

// exec is a hold of a run's sandbox that has not been taken.
func (s *Session) exec(r Run, use ExecUse) *execHold {
	return &execHold{sandboxes: s.Launcher.Sandboxes, key: r.SandboxKey, instance: r.Instance, who: ExecOf(use, r)}
}

// unoccupied refuses while a long user of exec sessions has the run's sandbox.
func (s *Session) unoccupied(ctx context.Context, op string, r Run, who ExecHolder) error {
	box, err := s.Launcher.Sandboxes.Sandbox(ctx, r.SandboxKey)
	if err == nil && box.Exec.Bars(who, box.LatestRun, nowMillis()) {
		return refusedRun(op, r.RunKey, "busy")
	}
	return ignoreNotFound(err)
}

// tail is what a process remembers of a run that it tails: a courtesy to the account and
// to the table, of which nothing but the pace depends.
type tail struct {
	asked time.Time // when the sandbox was asked last
	size  int64     // of the journal then
	since time.Time // since when there is output that the log lacks
	late  bool      // the spool did not have what the journal had
	epoch int64     // under which it is tailed
	begun time.Time // when that was first seen
}

// tailsMost is how many runs are remembered.
const tailsMost = 1000

// tails are the runs that a process tails. The zero value is ready.
type tails struct {
	mu  sync.Mutex
	all map[RunKey]*tail
}

// with has a run's memory changed.
func (t *tails) with(key RunKey, do func(*tail)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all[key] == nil {
		if t.all == nil || len(t.all) >= tailsMost {
			t.all = map[RunKey]*tail{}
		}
		t.all[key] = new(tail)
	}
	do(t.all[key])
}

// unspooled tells whether the spool, whose newest piece is given, lacks what the journal
// has.
func (t *tails) unspooled(key RunKey, newest Millis) (lacks bool) {
	t.with(key, func(k *tail) { lacks = newest == 0 || k.late })
	return lacks
}

// ask tells whether to ask the sandbox now, which then counts as asked, and how long the
// journal was the last time. In a session that is held questions are free.
func (t *tails) ask(r Run, newest Millis, held bool) (size int64, now bool) {
	t.with(r.RunKey, func(k *tail) {
		if k.epoch != r.Epoch {
			k.epoch, k.begun = r.Epoch, time.Now()
		}
		if size, now = k.size, held; held {
			return
		}
		pace := tailPace
		switch {
		case r.ExitedAt != 0 && nowMillis() < r.ExitedAt.Add(tailEndFor):
			pace = tailEnd
		case newest == 0 || k.late || k.rouses(newest):
		case nowMillis() < newest.Add(spoolQuiet):
			return
		default:
			pace = spoolQuiet
		}
		if now = k.asked.IsZero() || time.Since(k.asked) >= pace; now {
			k.asked = time.Now()
		}
	})
	return size, now
}

// rouses tells whether the run was come back to, and its spool has not said anything since:
// the sandbox may believe that nobody follows, until it has been asked once.
func (k *tail) rouses(newest Millis) bool {
	return k.epoch > 1 && newest < MillisOf(k.begun) && k.asked.Before(k.begun) && time.Since(k.begun) >= spoolRouse
}

// answered remembers what the sandbox has said.
func (t *tails) answered(key RunKey, size, spooled int64) {
	t.with(key, func(k *tail) { k.size, k.late = size, size > spooled })
}

// spooled remembers how far the spool is.
func (t *tails) spooled(key RunKey, end int64) {
	t.with(key, func(k *tail) { k.late = k.late && end < k.size })
}

// due tells whether output that the log lacks is to go there: it is much, or has waited,
// or was given out by another process.
func (t *tails) due(r Run, from int64, bytes int) (due bool) {
	t.with(r.RunKey, func(k *tail) {
		due = bytes >= tailAppend || k.since.IsZero() && from > r.LogEnd || !k.since.IsZero() && time.Since(k.since) >= tailHold
		if k.since.IsZero() {
			k.since = time.Now()
		}
	})
	return due
}

// delivered remembers that the log lacks nothing.
func (t *tails) delivered(key RunKey) { t.with(key, func(k *tail) { k.since = time.Time{} }) }
