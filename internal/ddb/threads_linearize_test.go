package ddb_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
)

// The histories below are of writers that take the leases of threads and move their
// heads, at once and over lines that lose answers. They are checked as those of runs are
// (I11): a stale fence never writes, a head moves from the one that its writer saw.

const (
	writers   = 6 // of a history
	writerOps = 45
	heads     = 3 // threads of a history
)

// headDeed is what one operation does to a thread: change, commit, delete or, with none
// of them, read.
type headDeed struct {
	thread core.ThreadKey
	change core.ThreadTransition
	commit *core.Commit
	delete *core.DeleteHead
}

// headReply is what a caller was told: the thread, where the operation answers with it,
// or why it was refused.
type headReply struct {
	known knowledge
	th    *core.Thread
	why   string
}

// headState is a thread with its checkpoints' names. It is never changed.
type headState struct {
	th    core.Thread
	names map[core.CheckpointID]core.CheckpointName
}

// carryOut is the contract of [core.Threads], one operation at a time.
func (d headDeed) carryOut(s headState) (headState, headReply) {
	switch {
	case d.change != nil:
		next, err := d.change.Apply(s.th)
		if err != nil && d.change.Landed(s.th) {
			return s, headReply{th: &s.th}
		}
		if err != nil {
			return s, refusedReply(err)
		}
		return headState{next, s.names}, headReply{th: &next}
	case d.commit != nil:
		return d.commitIn(s)
	case d.delete != nil:
		return d.deleteIn(s)
	}
	return s, headReply{th: &s.th}
}

func (d headDeed) commitIn(s headState) (headState, headReply) {
	next, err := d.commit.ApplyThread(s.th)
	name, taken := s.names[d.commit.Checkpoint.ID]
	switch {
	case taken && err != nil:
		return s, refusedReply(d.commit.Judge(&s.th, &name))
	case taken:
		return s, refusedReply(d.commit.Judge(nil, &name))
	case err != nil:
		return s, refusedReply(d.commit.Judge(&s.th, nil))
	}
	names := maps.Clone(s.names)
	if names == nil {
		names = map[core.CheckpointID]core.CheckpointName{}
	}
	names[d.commit.Checkpoint.ID] = core.NameOf(d.commit.Checkpoint)
	return headState{next, names}, headReply{}
}

func (d headDeed) deleteIn(s headState) (headState, headReply) {
	next, err := d.delete.ApplyThread(s.th)
	_, there := s.names[d.delete.Checkpoint.ID]
	switch {
	case err != nil && d.delete.Landed(s.th, !there):
		return s, headReply{}
	case err != nil:
		return s, refusedReply(err)
	}
	if d.delete.Next != nil {
		if _, ok := s.names[d.delete.Next.ID]; !ok {
			return s, headReply{why: "next"}
		}
	}
	names := maps.Clone(s.names)
	delete(names, d.delete.Checkpoint.ID)
	return headState{next, names}, headReply{}
}

// fenceless is a wrong contract, in which every writer has the lease of the day.
func fenceless(d headDeed, s headState) (headState, headReply) {
	if d.commit != nil {
		commit := *d.commit
		commit.Writer, commit.Now = s.th.Writer(), 0
		d.commit = &commit
		if !s.th.Lease.Live(0) {
			s.th.Lease = core.Lease{Owner: "x", Until: 1}
			commit.Writer = s.th.Writer()
		}
	}
	return d.carryOut(s)
}

func refusedReply(err error) headReply {
	if err == nil {
		return headReply{}
	}
	if e, ok := errors.AsType[*core.RefusedError](err); ok {
		return headReply{why: e.Why}
	}
	return headReply{known: unknown}
}

func headModel(contract func(headDeed, headState) (headState, headReply)) porcupine.Model {
	return porcupine.Model{
		Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
			byThread := map[core.ThreadKey][]porcupine.Operation{}
			for _, op := range all {
				k := op.Input.(headDeed).thread
				byThread[k] = append(byThread[k], op)
			}
			return slices.Collect(maps.Values(byThread))
		},
		Init: func() any { return headState{} },
		Step: func(state, input, output any) (bool, any) {
			s, d, told := state.(headState), input.(headDeed), output.(headReply)
			s.th.ThreadKey = d.thread
			next, want := contract(d, s)
			if told.known == unknown {
				return true, next
			}
			return told.why == want.why && (told.th == nil || want.th != nil && reflect.DeepEqual(*told.th, *want.th)), next
		},
		Equal: func(a, b any) bool { return reflect.DeepEqual(a, b) },
		DescribeOperation: func(input, output any) string {
			d, told := input.(headDeed), output.(headReply)
			return fmt.Sprintf("%s -> %+v", d, told)
		},
		DescribeState: func(state any) string { return fmt.Sprintf("%+v", state.(headState)) },
	}
}

func (d headDeed) String() string {
	switch {
	case d.change != nil:
		return fmt.Sprintf("%s %+v", d.change.Name(), d.change)
	case d.commit != nil:
		return fmt.Sprintf("commit %s on %q by %s/%d", d.commit.Checkpoint.ID, d.commit.Expected, d.commit.Writer.Owner, d.commit.Writer.Fence)
	case d.delete != nil:
		return fmt.Sprintf("delete %s by %s/%d", d.delete.Checkpoint.ID, d.delete.Writer.Owner, d.delete.Writer.Fence)
	}
	return "read"
}

// headStore is what is under test.
type headStore interface {
	Thread(context.Context, core.ThreadKey) (core.Thread, error)
	UpdateThread(context.Context, core.ThreadKey, core.ThreadTransition) (core.Thread, error)
	Commit(context.Context, core.Commit) error
	DeleteHead(context.Context, core.DeleteHead) error
}

// headWorld is one history being made.
type headWorld struct {
	history *history
	post    post
	threads []core.ThreadKey
	writers []*writer
	now     atomic.Int64
	met     sync.Map // what callers were told, to its count
}

func newHeadWorld(t *testing.T, name string, faults bool, over func(*ddb.Threads) headStore) *headWorld {
	config, table := newShelfTable(t)
	w := &headWorld{history: &history{}}
	w.now.Store(1000)
	for i := range heads {
		w.threads = append(w.threads, core.ThreadKey{Tenant: "acme", Thread: core.ThreadID(fmt.Sprint(name, "-", i))})
	}
	for id := range writers {
		l := &line{next: config.HTTPClient, history: w.history, post: &w.post, faulty: faults && id%3 != 0}
		s := ddb.NewThreads(dynamodb.NewFromConfig(config, func(d *dynamodb.Options) {
			d.HTTPClient, d.Retryer = l, aws.NopRetryer{}
			if id%3 == 1 {
				d.Retryer = atOnce
			}
		}), table)
		a := &writer{id: id, world: w, line: l, store: s, seen: map[core.ThreadKey]core.Thread{}, mine: map[core.ThreadKey][]core.Checkpoint{}, older: map[core.ThreadKey]core.CheckpointID{}}
		if over != nil {
			a.store = over(s)
		}
		w.writers = append(w.writers, a)
	}
	t.Cleanup(w.post.empty)
	return w
}

func (w *headWorld) play(t *testing.T, seed uint64) {
	var all sync.WaitGroup
	for i, a := range w.writers {
		a.rng = rand.New(rand.NewPCG(seed, uint64(i)))
		a.line.rng = rand.New(rand.NewPCG(seed, uint64(i)<<32))
		all.Go(func() {
			for range writerOps {
				a.act(t.Context())
			}
		})
	}
	all.Wait()
	w.post.empty()
	w.writers[0].line.faulty = false
	for _, k := range w.threads {
		w.writers[0].read(t.Context(), k) // the last word is part of the history
	}
	for _, err := range w.history.unexpected {
		t.Errorf("a writer met %v", err)
	}
}

// prelude is what no schedule may leave out: a writer that expects a head that has moved,
// and one whose lease another has taken. Neither loses answers.
func (w *headWorld) prelude(t *testing.T) {
	ctx, k, first, second := t.Context(), w.threads[0], w.writers[0], w.writers[3]
	commit := func(a *writer, id, on core.CheckpointID, now core.Millis) {
		c := core.Commit{
			Writer: core.Writer{ThreadKey: k, Owner: a.owner(), Fence: a.seen[k].Fence}, Now: now, Expected: on,
			Checkpoint: core.Checkpoint{ThreadKey: k, ID: id, Parent: on, CreatedAt: now, Reason: core.ReasonAutomatic, Digest: string(id)},
		}
		_ = a.carry(ctx, headDeed{thread: k, commit: &c}, func() (core.Thread, error) { return core.Thread{}, a.store.Commit(ctx, c) })
	}
	first.update(ctx, k, core.AcquireLease{Owner: first.owner(), Now: 1, Until: 100})
	commit(first, "p1", "", 2)
	commit(first, "p2", "p1", 3)
	commit(first, "p3", "p1", 4)
	first.read(ctx, k)
	second.update(ctx, k, core.AcquireLease{Owner: second.owner(), Now: 100, Until: 200})
	commit(first, "p4", "p2", 101)
	second.read(ctx, k)
}

func (w *headWorld) check(contract func(headDeed, headState) (headState, headReply)) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(headModel(contract), w.history.closed(), checkWithin)
}

// writer is a client that takes leases and writes, also under those that it has lost.
type writer struct {
	id    int
	world *headWorld
	line  *line
	store headStore
	rng   *rand.Rand
	count int
	seen  map[core.ThreadKey]core.Thread // as it last saw it, with its own lease or another's
	mine  map[core.ThreadKey][]core.Checkpoint
	older map[core.ThreadKey]core.CheckpointID // a head before that
}

func (a *writer) owner() string { return fmt.Sprint("writer", a.id) }

func (a *writer) in(n int) bool { return a.rng.IntN(n) == 0 }

func (a *writer) act(ctx context.Context) {
	k := a.world.threads[a.rng.IntN(heads)]
	th, now := a.seen[k], core.Millis(a.world.now.Add(1))
	until := now + core.Millis(5+a.rng.IntN(40))
	switch a.rng.IntN(10) {
	case 0, 1:
		a.update(ctx, k, core.AcquireLease{Owner: a.owner(), Now: now, Until: until})
	case 2:
		a.update(ctx, k, core.RenewLease{Owner: a.owner(), Fence: th.Fence, Now: now, Until: until})
	case 3:
		a.update(ctx, k, core.ReleaseLease{Owner: a.owner(), Fence: th.Fence})
	case 4:
		a.update(ctx, k, core.PutConversation{Seen: th.Conversation, Object: core.ObjectRef{Key: fmt.Sprint("k", a.id, "-", a.bump()), SHA256: "s"}, Fence: th.Fence, Now: now})
	case 5:
		a.deleteHead(ctx, k, now)
	case 6, 7, 8:
		a.commit(ctx, k, now)
	default:
		a.read(ctx, k)
	}
}

func (a *writer) bump() int { a.count++; return a.count }

// commit moves the head that it saw, under its own name and the fence that it saw; half
// of what is lost is said again.
func (a *writer) commit(ctx context.Context, k core.ThreadKey, now core.Millis) {
	th := a.seen[k]
	if a.in(4) {
		th.Head = a.older[k] // as a writer would that has slept
	}
	id := core.CheckpointID(fmt.Sprint("c", a.id, "-", a.bump()))
	c := core.Checkpoint{ThreadKey: k, ID: id, Parent: th.Head, CreatedAt: now, Reason: core.ReasonAutomatic, Digest: string(id)}
	t := core.Commit{Writer: core.Writer{ThreadKey: k, Owner: a.owner(), Fence: th.Fence}, Now: now, Expected: th.Head, Checkpoint: c, Release: a.in(4)}
	err := a.carry(ctx, headDeed{thread: k, commit: &t}, func() (core.Thread, error) { return core.Thread{}, a.store.Commit(ctx, t) })
	if err == nil {
		a.mine[k] = append(a.mine[k], c)
		a.older[k], th.Head = th.Head, id
		a.seen[k] = th
	} else if core.Refused(err) {
		a.read(ctx, k)
	}
}

// deleteHead takes its own last checkpoint away.
func (a *writer) deleteHead(ctx context.Context, k core.ThreadKey, now core.Millis) {
	mine := a.mine[k]
	if len(mine) == 0 {
		return
	}
	c, th := mine[len(mine)-1], a.seen[k]
	t := core.DeleteHead{Writer: core.Writer{ThreadKey: k, Owner: a.owner(), Fence: th.Fence}, Now: now, Checkpoint: c}
	if len(mine) > 1 && mine[len(mine)-2].ID == c.Parent {
		t.Next = &mine[len(mine)-2]
	} else if c.Parent != "" {
		return // somebody else's comes before, of which it knows too little
	}
	if a.carry(ctx, headDeed{thread: k, delete: &t}, func() (core.Thread, error) { return core.Thread{}, a.store.DeleteHead(ctx, t) }) == nil {
		a.mine[k] = mine[:len(mine)-1]
		th.Head = c.Parent
		a.seen[k] = th
	}
}

func (a *writer) read(ctx context.Context, k core.ThreadKey) {
	_ = a.carry(ctx, headDeed{thread: k}, func() (core.Thread, error) { return a.store.Thread(ctx, k) })
}

func (a *writer) update(ctx context.Context, k core.ThreadKey, t core.ThreadTransition) {
	_ = a.carry(ctx, headDeed{thread: k, change: t}, func() (core.Thread, error) { return a.store.UpdateThread(ctx, k, t) })
}

// carry makes one call, notes it, and calls again where no answer came, as a caller with
// the same ids may.
func (a *writer) carry(_ context.Context, d headDeed, do func() (core.Thread, error)) error {
	for {
		a.line.attempts = nil
		begun := a.world.history.tick()
		th, err := do()
		told := refusedReply(err)
		if err == nil && d.commit == nil && d.delete == nil {
			told.th = &th
			a.seen[d.thread] = th
		}
		if told.known == unknown && !errors.Is(err, errCut) && !errors.Is(err, context.DeadlineExceeded) {
			a.world.history.mu.Lock()
			a.world.history.unexpected = append(a.world.history.unexpected, err)
			a.world.history.mu.Unlock()
		}
		a.note(d, begun, told)
		if !errors.Is(err, errCut) || a.in(2) {
			return err
		}
	}
}

// note adds a call to the history. An attempt without an answer is an operation of its
// own that stays open.
func (a *writer) note(d headDeed, begun int64, told headReply) {
	op := porcupine.Operation{ClientId: a.id, Input: d, Call: begun}
	for i, try := range a.line.attempts {
		if try.answered {
			continue
		}
		if try.target != getItem {
			open := op
			open.Call, open.Return, open.Output = try.sent, never, headReply{known: unknown}
			a.world.history.add(open)
		}
		if i+1 < len(a.line.attempts) {
			op.Call = a.line.attempts[i+1].sent
		}
	}
	what := told.why
	if told.known == unknown {
		what = "no answer"
	} else {
		op.Return, op.Output = a.world.history.tick(), told
		a.world.history.add(op)
		if what == "" && lostOne(a.line.attempts) {
			a.world.tell("success after a lost answer")
		}
		if d.commit != nil {
			what = "commit: " + what
		}
	}
	a.world.tell(what)
}

func (w *headWorld) tell(what string) {
	n, _ := w.met.LoadOrStore(what, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
}

func TestConcurrentWritersOfHeadsAreLinearizable(t *testing.T) {
	fresh := *linearizeSeed
	if fresh == 0 {
		fresh = rand.Uint64()
	}
	met := map[string]int64{}
	for i, seed := range []uint64{1, 2, 3, fresh} {
		w := newHeadWorld(t, fmt.Sprint("heads", i), true, nil)
		w.prelude(t)
		w.play(t, seed)
		if got := w.check(headDeed.carryOut); got != porcupine.Ok {
			t.Errorf("seed %d: %d operations: %s, want Ok", seed, len(w.history.ops), got)
			_, info := porcupine.CheckOperationsVerbose(headModel(headDeed.carryOut), w.history.closed(), drawWithin)
			picture := filepath.Join(t.ArtifactDir(), "heads.html")
			if err := porcupine.VisualizePath(headModel(headDeed.carryOut), info, picture); err != nil {
				t.Error(err)
			}
			t.Logf("history drawn in %s, kept with -artifacts", picture)
		}
		if got := w.check(fenceless); got != porcupine.Illegal {
			t.Errorf("seed %d: under a model that knows no fences: %s, want Illegal", seed, got)
		}
		w.met.Range(func(what, n any) bool { met[what.(string)] += n.(*atomic.Int64).Load(); return true })
	}
	t.Logf("met %v", met)
	for _, what := range []string{"commit: ", "commit: writer-lost", "commit: stale-head", "writer-conflict", "no answer", "success after a lost answer"} {
		if met[what] == 0 {
			t.Errorf("%q: none in any history; the check proves nothing about it", what)
		}
	}
}

// fencelessStore gives every commit the lease of the day, and the head.
type fencelessStore struct{ *ddb.Threads }

func (s fencelessStore) Commit(ctx context.Context, t core.Commit) error {
	th, err := s.Thread(ctx, t.Writer.ThreadKey)
	if err != nil {
		return err
	}
	t.Writer = th.Writer()
	t.Now = min(t.Now, th.Lease.Until-1)
	return s.Threads.Commit(ctx, t)
}

// headlessStore expects whatever head there is.
type headlessStore struct{ *ddb.Threads }

func (s headlessStore) Commit(ctx context.Context, t core.Commit) error {
	th, err := s.Thread(ctx, t.Writer.ThreadKey)
	if err != nil {
		return err
	}
	t.Expected, t.Checkpoint.Parent = th.Head, th.Head
	return s.Threads.Commit(ctx, t)
}

func TestTheCheckOfHeadsCanFail(t *testing.T) {
	for name, over := range map[string]func(*ddb.Threads) headStore{
		"a store that ignores the fence": func(s *ddb.Threads) headStore { return fencelessStore{s} },
		"a store that ignores the head":  func(s *ddb.Threads) headStore { return headlessStore{s} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newHeadWorld(t, "broken", false, over)
			w.prelude(t)
			w.play(t, 1)
			if got := w.check(headDeed.carryOut); got != porcupine.Illegal {
				t.Errorf("%d operations: %s, want Illegal", len(w.history.ops), got)
			}
		})
	}
}
