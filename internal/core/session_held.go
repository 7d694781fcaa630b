package core

import (
	"bytes"
	"context"
	"sync"
	"time"
)

// How a session with a sandbox is held while its run is followed.
const (
	// heldFor is how long one is: ECS ends those that are idle for 20 minutes, and a new one
	// costs one call.
	heldFor = 18 * time.Minute
	// heldUnused is how long one stays for which nobody asks any more.
	heldUnused = 30 * time.Second
	// heldPace is from one question in it to the next: an agent that never stops writing
	// keeps neither its own sandbox nor the tables busy with being followed.
	heldPace = time.Second
	// heldTurn is how long a question waits in the sandbox while output and files are both
	// followed: they take turns.
	heldTurn = 3 * time.Second
)

// heldTails are the sessions that a process holds, one for each run that it follows. The
// zero value is ready.
type heldTails struct {
	mu  sync.Mutex
	all map[RunKey]*heldTail
}

// heldTail is one of them.
type heldTail struct {
	turn chan struct{} // whoever has put something there has the members below, but for the last groups

	pages  PageSession // nil: none is open
	hold   *execHold
	epoch  int64 // under which it was opened
	opened time.Time
	asked  time.Time          // when the last question ended
	looked map[bool]time.Time // when output and files were asked for last
	from   int64              // position of data
	data   []byte             // the journal behind the log's end, as far as it has been read
	unused *time.Timer

	users int // under the lock of all

	mu     sync.Mutex
	open   bool
	barred int                // how many have been given way to
	stop   context.CancelFunc // of the question that is under way, or nil
}

// use gives a run's to who releases it, made where there is none.
func (h *heldTails) use(key RunKey) *heldTail {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.all[key]
	if t == nil {
		if h.all == nil {
			h.all = map[RunKey]*heldTail{}
		}
		t = &heldTail{turn: make(chan struct{}, 1), looked: map[bool]time.Time{}}
		h.all[key] = t
	}
	t.users++
	return t
}

// release drops a run's that nobody uses and that has no session.
func (h *heldTails) release(key RunKey, t *heldTail) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.users--; t.users == 0 && !t.open {
		delete(h.all, key)
	}
}

// open reports whether a run has a session.
func (h *heldTails) open(key RunKey) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.all[key]
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open
}

// holds reports whether a session may be held for a run: of one that is paused the
// continuation is about to need the sandbox.
func (s *Session) holds(r Run) bool {
	return s.Held != nil && r.Row != RowDetached && r.Status == Running
}

// giveWay ends the session that is held for a run, if there is one, and lets none begin
// until done is called: something else is to be done in the container.
func (s *Session) giveWay(ctx context.Context, key RunKey) (done func()) {
	if s.Held == nil {
		return func() {}
	}
	t := s.follows.use(key)
	t.mu.Lock()
	t.barred++
	if t.stop != nil {
		t.stop()
	}
	t.mu.Unlock()
	t.turn <- struct{}{} // the question under way ends with its context
	t.shut(ctx)
	<-t.turn
	return func() {
		t.mu.Lock()
		t.barred--
		t.mu.Unlock()
		s.follows.release(key, t)
	}
}

// shut ends the session and gives the container back; whoever calls it has the turn.
func (t *heldTail) shut(ctx context.Context) {
	if t.pages == nil {
		return
	}
	t.unused.Stop()
	t.pages.Close()
	t.hold.free(ctx)
	t.pages, t.hold, t.data = nil, nil, nil
	t.mu.Lock()
	t.open = false
	t.mu.Unlock()
}

// errOvertaken is why a tail breaks off: something else is to be known, or done.
var errOvertaken = &JournalError{Op: "page", Healing: Retry, Reason: "overtaken"}

// heldPage asks in the session that is held for the run, which is opened where there is
// none. Data is what the log lacks, as far as it is known; the sandbox sends each byte
// once. from is up to where the caller has it.
func (s *Session) heldPage(ctx context.Context, q PageRequest, r Run, from int64) (PageReply, error) {
	t := s.follows.use(r.RunKey)
	defer s.follows.release(r.RunKey, t)
	select {
	case t.turn <- struct{}{}:
	case <-ctx.Done():
		return PageReply{}, ctx.Err()
	}
	defer func() { <-t.turn }()
	ctx, free, err := t.begin(ctx)
	if err != nil {
		return PageReply{}, err
	}
	defer free()
	if err := s.heldReady(ctx, t, r); err != nil {
		t.shut(ctx)
		return PageReply{}, err
	}
	page, err := s.heldAsk(ctx, t, q, r, from)
	if err != nil || page.Exit != nil {
		t.shut(ctx)
		return page, err
	}
	t.unused.Reset(heldUnused)
	return page, nil
}

// begin makes a question one that can be broken off.
func (t *heldTail) begin(ctx context.Context) (_ context.Context, free func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.barred > 0 {
		return nil, nil, errOvertaken
	}
	ctx, t.stop = context.WithCancel(ctx)
	return ctx, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.stop()
		t.stop = nil
	}, nil
}

// heldReady holds the container, and opens a session where none of this driver is open, or
// the one that is has lasted.
func (s *Session) heldReady(ctx context.Context, t *heldTail, r Run) error {
	if t.pages != nil && (t.epoch != r.Epoch || time.Since(t.opened) >= heldFor) {
		t.shut(ctx)
	}
	if t.pages != nil {
		return busyError("page", t.hold.take(ctx, execHoldFor))
	}
	hold := s.exec(r, ExecTail)
	if err := hold.take(ctx, execHoldFor); err != nil {
		return busyError("page", err)
	}
	pages, err := s.Held.HoldPages(ctx, targetOf(r))
	if err != nil {
		hold.free(ctx)
		return err
	}
	t.pages, t.hold, t.epoch, t.opened, t.data = pages, hold, r.Epoch, time.Now(), nil
	later := context.WithoutCancel(ctx)
	t.unused = time.AfterFunc(heldUnused, func() { s.heldLeft(later, r.RunKey, pages) })
	t.mu.Lock()
	t.open = true
	t.mu.Unlock()
	return nil
}

// heldLeft ends a session for which nobody has asked any more.
func (s *Session) heldLeft(ctx context.Context, key RunKey, pages PageSession) {
	t := s.follows.use(key)
	defer s.follows.release(key, t)
	t.turn <- struct{}{}
	defer func() { <-t.turn }()
	if t.pages == pages && time.Since(t.asked) >= heldUnused {
		t.shut(ctx)
	}
}

// heldAsk asks one question.
func (s *Session) heldAsk(ctx context.Context, t *heldTail, q PageRequest, r Run, from int64) (PageReply, error) {
	if !waitUntil(ctx, t.asked.Add(heldPace)) {
		return PageReply{}, errOvertaken
	}
	defer func() { t.asked = time.Now() }()
	t.looked[q.Files] = time.Now()
	if time.Since(t.looked[!q.Files]) < heldUnused {
		q.WaitSeconds = min(q.WaitSeconds, int64(heldTurn/time.Second))
	}
	if !q.Files {
		t.follow(r)
		q.From, q.Last = t.from+int64(len(t.data)), tailOf(r.LogTail, t.data)
		if len(given(PageReply{Data: t.data}, t.from, from)) > 0 {
			q.WaitSeconds = 0 // there is something new to the caller
		}
	}
	ctx, stop := s.overtaken(ctx, r, t.hold)
	defer stop()
	page, err := t.pages.Page(ctx, q)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = errOvertaken
	}
	if err != nil || q.Files {
		return page, err
	}
	t.data = append(t.data, page.Data...)
	page.Data = bytes.Clone(t.data)
	return page, nil
}

// follow drops what the log has meanwhile, or all where the log does not end in what has
// been read.
func (t *heldTail) follow(r Run) {
	n := r.LogEnd - t.from
	if n < 0 || n > int64(len(t.data)) || !bytes.HasSuffix(t.data[:n], r.LogTail[max(0, len(r.LogTail)-int(n)):]) {
		t.from, t.data = r.LogEnd, nil
		return
	}
	t.from, t.data = r.LogEnd, bytes.Clone(t.data[n:])
}
