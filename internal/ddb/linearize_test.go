package ddb_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// The histories below are made by clients that run at once against the engine, and
// checked for being linearizable: there must be an order of all operations, each
// between its call and its return, in which core's own rules, carried out one after
// the other, give every caller the very answer that it got (I3, I8, I14).

var linearizeSeed = flag.Uint64("linearize.seed", 0, "seed of the fresh history; 0 draws one")

const (
	// clientOps is how many things each client of a history does.
	clientOps = 60
	// checkWithin bounds the search for an order; legal histories take milliseconds.
	checkWithin = 10 * time.Second
	// drawWithin bounds the second search, for the picture of a history that failed.
	drawWithin = 3 * time.Second
)

func TestConcurrentCallsAreLinearizable(t *testing.T) {
	fresh := *linearizeSeed
	if fresh == 0 {
		fresh = rand.Uint64()
	}
	v := newTables(t)
	seeds, seen := []uint64{1, 2, 3, 4, 5, fresh}, counts{}
	for i, seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			w := v.world(t, fmt.Sprint("history", i), worldOptions{faults: true})
			w.staleOwner(t)
			w.play(t, seed)
			w.linearizable(t)
			if err := w.history.oneOwnerEach(); err != nil {
				t.Error(err)
			}
			w.logsAreWhole(t)
			c := w.history.counts()
			t.Logf("seed %d: %v", seed, c)
			seen.add(c)
			seen["history"]++
			if got := porcupine.CheckOperationsTimeout(runModel(epochless), w.history.closed(), checkWithin); got != porcupine.Illegal {
				t.Errorf("under a model that knows no epochs: %s, want Illegal", got)
			}
		})
	}
	if seen["history"] < len(seeds) {
		return // some were left out, or failed
	}
	for _, what := range []string{
		"answer lost", "repeat knew its success", "refused: epoch", "refused: claimed", "refused: log-end",
		"create", "attach", "renew", "detach", "claim", "release", "append", "finish", "cancel",
	} {
		if seen[what] == 0 {
			t.Errorf("%s: none in any history; the check proves nothing about it", what)
		}
	}
}

// TestTheLinearizabilityCheckCanFail holds the check against stores that break the
// rule it is there for.
func TestTheLinearizabilityCheckCanFail(t *testing.T) {
	v := newTables(t)
	t.Run("a store that ignores the epoch", func(t *testing.T) {
		w := v.world(t, "epochless", worldOptions{over: func(s *ddb.Runs) store { return epochlessStore{s} }})
		w.play(t, 1)
		w.illegal(t)
	})
	t.Run("a store that reads, decides and then writes", func(t *testing.T) {
		var both sync.WaitGroup
		both.Add(2)
		w := v.world(t, "check-then-write", worldOptions{over: func(s *ddb.Runs) store { return checkThenWrite{s, &both} }})
		r := w.actors[0].start(w.runs[0])
		r.AttachedUntil, r.Row, r.DueAt, r.DetachedSince = 0, core.RowDetached, 0, 1000
		if _, err := w.actors[0].Create(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for _, sweep := range w.actors[1:3] {
			claim := core.Claim{Seen: r.Epoch, Since: r.DetachedSince, Nonce: sweep.nonce(), Now: 1001, Until: 1010}
			all.Go(func() { _, _ = sweep.Update(t.Context(), r.RunKey, claim) }) // what it is told is in the history
		}
		all.Wait()
		w.illegal(t)
		if w.history.oneOwnerEach() == nil {
			t.Error("two sweeps hold one epoch, and the history passes")
		}
	})
}

// world is one history being made: runs, one after the other, and clients that all
// work on the one whose turn it is.
type world struct {
	history *history
	actors  []*actor
	runs    []core.RunKey
	turn    atomic.Int64
	now     atomic.Int64 // what clients take for the time; the store never reads it
	post    post
}

type worldOptions struct {
	faults bool
	over   func(*ddb.Runs) store // what the clients use in its place
}

// store is what is under test.
type store interface {
	core.Runs
	core.RunLog
}

// world makes the clients of a history. With faults, a third of them lose answers and
// leave it to the SDK to send again, a third lose answers and repeat the call
// themselves.
func (v tables) world(t *testing.T, name string, o worldOptions) *world {
	w := &world{history: &history{}}
	w.now.Store(1000)
	for i := range 12 {
		w.runs = append(w.runs, core.RunKey{Tenant: "acme", Run: core.RunID(fmt.Sprint(name, "-", i))})
	}
	for id, moves := range slices.Concat(hosts, sweeps, operators) {
		l := &line{next: v.config.HTTPClient, history: w.history, post: &w.post, faulty: o.faults && id%3 != 0}
		runs := ddb.NewRuns(dynamodb.NewFromConfig(v.config, func(d *dynamodb.Options) {
			d.HTTPClient, d.Retryer = l, aws.NopRetryer{}
			if id%3 == 1 {
				d.Retryer = atOnce
			}
		}), names.Runs.Name+v.suffix)
		c := &client{id: id, store: runs, line: l, history: w.history}
		if o.over != nil {
			c.store = o.over(runs)
		}
		a := &actor{client: c, world: w, moves: moves, isHost: id < len(hosts)}
		a.log = core.LogWriter{Log: c, Inline: 32 << 10}
		w.actors = append(w.actors, a)
	}
	t.Cleanup(w.post.empty)
	return w
}

// atOnce is the SDK's own retry without its pauses.
var atOnce = retry.NewStandard(func(o *retry.StandardOptions) {
	o.RateLimiter = ratelimit.None
	o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return 0, nil })
})

// play lets all clients loose, and waits until no request is under way.
func (w *world) play(t *testing.T, seed uint64) {
	var all sync.WaitGroup
	for i, a := range w.actors {
		a.rng = rand.New(rand.NewPCG(seed, uint64(i)))
		a.line.rng = rand.New(rand.NewPCG(seed, uint64(i)<<32))
		all.Go(func() { a.live(t.Context()) })
	}
	all.Wait()
	w.post.empty()
	for _, a := range w.actors {
		a.line.faulty = false
	}
	for _, key := range w.runs {
		_, _ = w.actors[0].Run(t.Context(), key) // the last word on each record is part of the history
	}
	for _, err := range w.history.unexpected {
		t.Errorf("a client met %v", err)
	}
}

// staleOwner begins a history with what no schedule may leave out: an owner whose run
// was taken over goes on.
func (w *world) staleOwner(t *testing.T) {
	key, first, second := w.runs[0], w.actors[0], w.actors[len(hosts)] // neither loses answers
	r, err := first.Create(t.Context(), first.start(key))
	if err != nil {
		t.Fatal(err)
	}
	taken, err := second.Update(t.Context(), key, core.Attach{Seen: r.Epoch, Nonce: second.nonce(), Now: 1000, Until: 1010, Takeover: true})
	if err != nil || taken.Epoch != 2 {
		t.Fatalf("takeover = epoch %d, %v; want 2", taken.Epoch, err)
	}
	first.saw(r)
	second.saw(taken)
	_, renewal := first.Update(t.Context(), key, core.Renew{Epoch: r.Epoch, Until: 1020})
	_, piece := first.log.Append(t.Context(), r, journal(0, 5), nil)
	if !core.Refused(renewal) || !core.Refused(piece) {
		t.Errorf("a stale owner's renewal and append = %v, %v; want refusals", renewal, piece)
	}
}

func (w *world) linearizable(t *testing.T) {
	got := porcupine.CheckOperationsTimeout(runModel(deed.carryOut), w.history.closed(), checkWithin)
	if got == porcupine.Ok {
		return
	}
	t.Errorf("%d operations: %s, want Ok", len(w.history.ops), got)
	_, info := porcupine.CheckOperationsVerbose(runModel(deed.carryOut), w.history.closed(), drawWithin)
	picture := filepath.Join(t.ArtifactDir(), "history.html")
	if err := porcupine.VisualizePath(runModel(deed.carryOut), info, picture); err != nil {
		t.Error(err)
	}
	t.Logf("history drawn in %s, kept with -artifacts", picture)
}

func (w *world) illegal(t *testing.T) {
	if got := porcupine.CheckOperationsTimeout(runModel(deed.carryOut), w.history.closed(), checkWithin); got != porcupine.Illegal {
		t.Errorf("%d operations: %s, want Illegal", len(w.history.ops), got)
	}
}

// deed is what one operation of a history does to a run's record: it creates it,
// changes it or, with neither, reads it.
type deed struct {
	run    core.RunKey
	create *core.Run
	change core.Transition
}

// knowledge is what a caller knows about an operation.
type knowledge int

const (
	// answered: it was told the outcome.
	answered knowledge = iota
	// landed: it was carried out, and what the record was then is not known.
	landed
	// unknown: no answer came. It may be carried out at any time from its call on, or
	// never.
	unknown
)

// reply is what a caller was told.
type reply struct {
	known knowledge
	run   *core.Run // the record
	why   string    // or why there is none
}

const whyNotFound = "not-found"

// carryOut is the contract of [core.Runs], one operation at a time: the record after
// it, nil being none, and what its caller is told.
func (d deed) carryOut(before *core.Run) (after *core.Run, told reply) {
	switch {
	case d.create != nil && before == nil:
		return d.create, reply{run: d.create}
	case before == nil:
		return nil, reply{why: whyNotFound}
	case d.create != nil:
		return before, replyOf(*before, core.Created(*d.create, *before))
	case d.change == nil:
		return before, reply{run: before}
	}
	next, err := d.change.Apply(*before)
	switch {
	case err == nil:
		return &next, reply{run: &next}
	case d.change.Landed(*before):
		return before, reply{run: before}
	default:
		return before, replyOf(core.Run{}, err)
	}
}

// epochless is a wrong contract, in which every write has the epoch of the day.
func epochless(d deed, before *core.Run) (after *core.Run, told reply) {
	if before != nil && d.change != nil {
		d.change = underEpoch(d.change, before.Epoch)
	}
	return d.carryOut(before)
}

// replyOf is what r and err tell a caller. Errors other than a refusal tell nothing.
func replyOf(r core.Run, err error) reply {
	refusal, refused := errors.AsType[*core.RefusedError](err)
	switch {
	case err == nil:
		return reply{run: &r}
	case refused:
		return reply{why: refusal.Why}
	case errors.Is(err, core.ErrNotFound):
		return reply{why: whyNotFound}
	default:
		return reply{known: unknown}
	}
}

// runModel is the sequential specification of one run's record, by that contract.
func runModel(contract func(deed, *core.Run) (*core.Run, reply)) porcupine.Model {
	return porcupine.Model{
		Partition: byRun,
		Init:      func() any { return (*core.Run)(nil) },
		Step: func(state, input, output any) (bool, any) {
			before, got := state.(*core.Run), output.(reply)
			after, want := contract(input.(deed), before)
			switch got.known {
			case unknown:
				return true, after
			case landed:
				return after != before, after
			}
			return got.known == answered && reflect.DeepEqual(got, want), after
		},
		Equal:             func(a, b any) bool { return reflect.DeepEqual(a, b) },
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%v: %v", input, output) },
		DescribeState:     func(state any) string { return brief(state.(*core.Run)) },
	}
}

func byRun(all []porcupine.Operation) [][]porcupine.Operation {
	runs := map[core.RunKey][]porcupine.Operation{}
	for _, op := range all {
		key := op.Input.(deed).run
		runs[key] = append(runs[key], op)
	}
	var parts [][]porcupine.Operation
	for _, ops := range runs {
		parts = append(parts, ops)
	}
	return parts
}

func (d deed) name() string {
	switch {
	case d.create != nil:
		return "create"
	case d.change == nil:
		return "read"
	default:
		return d.change.Name()
	}
}

func (d deed) String() string {
	if d.change == nil {
		return d.name()
	}
	return fmt.Sprintf("%s %+v", d.name(), d.change)
}

func (r reply) String() string {
	switch {
	case r.known == landed:
		return "landed"
	case r.known == unknown:
		return "unknown"
	case r.run == nil:
		return "refused: " + r.why
	default:
		return brief(r.run)
	}
}

// brief is what of a record decides most.
func brief(r *core.Run) string {
	if r == nil {
		return "no record"
	}
	return fmt.Sprintf("%s, epoch %d by %s, row %s at %d, claimed until %d, log ends at %d", r.Status, r.Epoch, r.ClaimNonce, r.Row, r.DueAt, r.ClaimUntil, r.LogEnd)
}

// history is what clients did and were told. Its clock only counts: it orders calls
// and returns as they happened.
type history struct {
	clock      atomic.Int64
	mu         sync.Mutex
	ops        []porcupine.Operation
	unexpected []error
	repeats    int // calls that lost an answer, and knew by the record that they had succeeded
}

// never is the return of an operation that stays open.
const never = math.MaxInt64

func (h *history) tick() int64 { return h.clock.Add(1) }

func (h *history) add(op porcupine.Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
}

// closed is the history with its open operations ending after all others.
func (h *history) closed() []porcupine.Operation {
	end := h.tick()
	ops := slices.Clone(h.ops)
	for i := range ops {
		ops[i].Return = min(ops[i].Return, end)
	}
	return ops
}

// record notes one call. An attempt that got no answer is an operation of its own,
// open until the end, since the store may carry it out at any time, whatever the next
// attempt is told. The answer is about the attempts after the last one lost.
func (h *history) record(client int, d deed, attempts []attempt, begun int64, got reply) {
	op := porcupine.Operation{ClientId: client, Input: d, Call: begun}
	for i, a := range attempts {
		if a.answered {
			continue
		}
		if a.target != getItem {
			op.Call, op.Return, op.Output = a.sent, never, reply{known: unknown}
			h.add(op)
		}
		if i+1 < len(attempts) {
			op.Call = attempts[i+1].sent
		}
	}
	if got.known != unknown {
		op.Return, op.Output = h.tick(), got
		h.add(op)
	}
}

// failed notes an error that tells nothing. Only a lost answer may be the cause.
func (h *history) failed(d deed, err error) {
	if errors.Is(err, errCut) || errors.Is(err, context.DeadlineExceeded) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unexpected = append(h.unexpected, fmt.Errorf("%v: %w", d, err))
}

// counts says how often what happened.
type counts map[string]int

func (c counts) add(o counts) {
	for what, n := range o {
		c[what] += n
	}
}

func (h *history) counts() counts {
	c := counts{"repeat knew its success": h.repeats}
	for _, op := range h.ops {
		d, got := op.Input.(deed), op.Output.(reply)
		c["call"]++
		switch {
		case got.known == unknown:
			c["answer lost"]++
		case got.why != "":
			c["refused: "+got.why]++
		default:
			c[d.name()]++
		}
	}
	return c
}

// oneOwnerEach checks, by what callers were told and not by core's rules, that nobody
// holds an epoch that somebody else was given.
func (h *history) oneOwnerEach() error {
	type tenure struct {
		run   core.RunKey
		epoch int64
	}
	owners := map[tenure]string{}
	for _, op := range h.ops {
		d, got := op.Input.(deed), op.Output.(reply)
		mine := tenure{run: d.run}
		var nonce string
		switch t := d.change.(type) {
		case core.Claim:
			mine.epoch, nonce = t.Seen+1, t.Nonce
		case core.Attach:
			mine.epoch, nonce = t.Seen+1, t.Nonce
		}
		if nonce == "" || got.run == nil {
			continue
		}
		if other, taken := owners[mine]; taken && other != nonce {
			return fmt.Errorf("epoch %d of run %s was given to %s and to %s", mine.epoch, mine.run, other, nonce)
		}
		owners[mine] = nonce
	}
	return nil
}

// client is a store that keeps a history. It serves one call at a time.
type client struct {
	id      int
	store   store
	line    *line
	history *history
}

func (c *client) Run(ctx context.Context, key core.RunKey) (core.Run, error) {
	return c.call(deed{run: key}, func() (core.Run, error) { return c.store.Run(ctx, key) })
}

func (c *client) Create(ctx context.Context, r core.Run) (core.Run, error) {
	return c.call(deed{run: r.RunKey, create: &r}, func() (core.Run, error) { return c.store.Create(ctx, r) })
}

func (c *client) Update(ctx context.Context, key core.RunKey, t core.Transition) (core.Run, error) {
	return c.call(deed{run: key, change: t}, func() (core.Run, error) { return c.store.Update(ctx, key, t) })
}

func (c *client) Append(ctx context.Context, key core.RunKey, a core.Append, s core.Segment) (core.Run, error) {
	return c.call(deed{run: key, change: a}, func() (core.Run, error) { return c.store.Append(ctx, key, a, s) })
}

func (c *client) Segments(ctx context.Context, key core.RunKey) ([]core.Segment, error) {
	return c.store.Segments(ctx, key)
}

func (c *client) call(d deed, do func() (core.Run, error)) (core.Run, error) {
	c.line.attempts = nil
	begun := c.history.tick()
	r, err := do()
	got, attempts := replyOf(r, err), c.line.attempts
	if got.known == unknown {
		c.history.failed(d, err)
	}
	if lostOne(attempts) && got.run != nil && d.change != nil && d.change.Landed(r) {
		c.history.repeated()
	}
	// A transaction returns no image: once it has landed, the adapter reads the record,
	// and answers as if it had asked again.
	if n := written(attempts); n > 0 && n < len(attempts) {
		c.history.add(porcupine.Operation{
			ClientId: c.id, Input: d, Output: reply{known: landed}, Call: attempts[0].sent, Return: attempts[n].sent - 1,
		})
		begun, attempts = attempts[n].sent, attempts[n:]
	}
	c.history.record(c.id, d, attempts, begun, got)
	return r, err
}

func (h *history) repeated() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.repeats++
}

func lostOne(attempts []attempt) bool {
	return slices.ContainsFunc(attempts, func(a attempt) bool { return !a.answered && a.target != getItem })
}

// written is how many attempts there are up to the last transaction.
func written(attempts []attempt) int {
	for i, a := range slices.Backward(attempts) {
		if a.target == "TransactWriteItems" {
			return i + 1
		}
	}
	return 0
}

// attempt is one request of a call.
type attempt struct {
	target   string
	sent     int64
	answered bool // and the client got the answer
}

const getItem = "GetItem"

// line is a client's HTTP layer. A faulty one loses answers: of requests that were
// served, of requests that are served some time later, and of requests that never
// arrive.
type line struct {
	next     aws.HTTPClient
	history  *history
	post     *post
	rng      *rand.Rand
	faulty   bool
	attempts []attempt // of the call under way
}

// Do sends a request.
func (l *line) Do(request *http.Request) (*http.Response, error) {
	_, target, _ := strings.Cut(request.Header.Get("X-Amz-Target"), ".")
	n := len(l.attempts)
	l.attempts = append(l.attempts, attempt{target: target, sent: l.history.tick()})
	fault := faultNone
	if l.faulty && l.rng != nil {
		fault = faults[l.rng.IntN(len(faults))]
		if l.rng.IntN(4) == 0 {
			l.post.deliver()
		}
	}
	switch fault {
	case faultUnsent:
		return nil, errCut
	case faultLate:
		return nil, l.send(request)
	}
	answer, err := l.next.Do(request)
	if err != nil {
		return nil, err
	}
	if fault == faultLost {
		_ = answer.Body.Close() // it is lost
		return nil, errCut
	}
	l.attempts[n].answered = true
	return answer, nil
}

type fault int

const (
	faultNone fault = iota
	faultLost
	faultLate
	faultUnsent
)

// faults are drawn from.
var faults = slices.Concat(slices.Repeat([]fault{faultNone}, 14), []fault{faultLost, faultLost, faultLost, faultLate, faultUnsent})

// send puts a request into the post: its sender's connection is cut at once.
func (l *line) send(request *http.Request) error {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return err
	}
	later := request.Clone(context.WithoutCancel(request.Context()))
	later.Body = io.NopCloser(bytes.NewReader(body))
	l.post.keep(func() {
		if answer, err := l.next.Do(later); err == nil {
			_ = answer.Body.Close() // nobody waits for it
		}
	})
	return errCut
}

// post are the requests whose senders gave up on them and that have yet to arrive.
type post struct {
	mu    sync.Mutex
	held  []func()
	going sync.WaitGroup
}

func (p *post) keep(send func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = append(p.held, send)
}

// deliver brings the oldest on its way.
func (p *post) deliver() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.held) > 0 {
		p.going.Go(p.held[0])
		p.held = p.held[1:]
	}
}

// empty delivers everything and waits for it.
func (p *post) empty() {
	p.mu.Lock()
	held := p.held
	p.held = nil
	p.mu.Unlock()
	for _, send := range held {
		p.going.Go(send)
	}
	p.going.Wait()
}

// holding is a claim that an actor won, be it still its own or not.
type holding struct {
	epoch int64
	nonce string
}

// actor is a client with a part to play.
type actor struct {
	*client
	world   *world
	moves   []move
	isHost  bool
	rng     *rand.Rand
	log     core.LogWriter
	seen    core.Run // as it last saw it
	earlier core.Run // as it saw it when the log ended somewhere else
	won     []holding
	count   int
}

// live plays the part on the run whose turn it is.
func (a *actor) live(ctx context.Context) {
	for range clientOps {
		turn := a.world.turn.Load()
		if key := a.world.runs[turn]; a.seen.RunKey != key {
			a.seen, a.won = core.Run{RunKey: key}, nil
		}
		a.act(ctx)
		if a.seen.Status.Terminal() && a.in(6) && int(turn)+1 < len(a.world.runs) {
			a.world.turn.CompareAndSwap(turn, turn+1)
		}
	}
}

func (a *actor) act(ctx context.Context) {
	if a.seen.Status == "" {
		if a.read(ctx); a.seen.Status == "" && a.isHost {
			r := a.start(a.seen.RunKey)
			a.try(ctx, func(ctx context.Context) (core.Run, error) { return a.Create(ctx, r) })
		}
		return
	}
	if a.in(3) {
		a.read(ctx)
	}
	if do := a.moves[a.rng.IntN(len(a.moves))](a); do != nil {
		a.try(ctx, do)
		return
	}
	a.read(ctx)
}

// try calls, and calls again where no answer came, as a caller with the same ids may.
func (a *actor) try(ctx context.Context, do call) {
	r, err := do(ctx)
	for errors.Is(err, errCut) && !a.in(3) {
		r, err = do(ctx)
	}
	switch {
	case err == nil:
		a.saw(r)
	case !a.in(3):
		a.read(ctx)
	}
}

func (a *actor) read(ctx context.Context) {
	if r, err := a.Run(ctx, a.seen.RunKey); err == nil {
		a.saw(r)
	}
}

// saw takes note of a record, and of a claim on it that is the actor's own.
func (a *actor) saw(r core.Run) {
	if r.LogEnd != a.seen.LogEnd {
		a.earlier = a.seen
	}
	a.seen = r
	mine := holding{r.Epoch, r.ClaimNonce}
	if strings.HasPrefix(r.ClaimNonce, a.prefix()) && !slices.Contains(a.won, mine) {
		a.won = append(a.won, mine)
	}
}

// in is true once in n times.
func (a *actor) in(n int) bool { return a.rng.IntN(n) == 0 }

func (a *actor) prefix() string { return fmt.Sprintf("client%d-", a.id) }

func (a *actor) nonce() string {
	a.count++
	return fmt.Sprint(a.prefix(), a.count)
}

// time is a moment after all that were taken before.
func (a *actor) time() core.Millis { return core.Millis(a.world.now.Add(1)) }

// until is a while after now: it passes within a few of the others' moves.
func (a *actor) until(now core.Millis) core.Millis { return now + core.Millis(1+a.rng.IntN(25)) }

// start is the record of a run that a host starts.
func (a *actor) start(key core.RunKey) core.Run {
	now := a.time()
	return core.Run{
		RunKey: key, Thread: "thread", Status: core.Running, StartedAt: now, TaskARN: "task", Epoch: 1,
		ClaimNonce: a.nonce(), Nonce: "n", AttachedUntil: now + 20, Row: core.RowLapse, DueAt: now + 20,
	}
}

// call is one call of the store, which may be repeated.
type call func(ctx context.Context) (core.Run, error)

// move draws what an actor does next; nil is a look at the record.
type move func(a *actor) call

func (a *actor) update(t core.Transition) call {
	key := a.seen.RunKey
	return func(ctx context.Context) (core.Run, error) { return a.Update(ctx, key, t) }
}

var (
	host     = []move{renew, renew, renew, detach, detach, interrupt, appendPiece, appendPiece, appendPiece, finish}
	sweeper  = []move{claim, appendPiece, appendPiece, appendPiece, seal, release, finish, finish, reclaimed}
	operator = []move{hint, hint, hold, extend, extend, cancel, look}

	hosts     = [][]move{host, host, host}
	sweeps    = [][]move{sweeper, sweeper, sweeper}
	operators = [][]move{operator}
)

func look(*actor) call { return nil }

// held writes under the actor's claim. One that has lost its claim, or had none, most
// often takes the run; now and then it goes on under a claim that is no longer its own.
func (a *actor) held(write func(holding) call) call {
	mine := holding{a.seen.Epoch, a.seen.ClaimNonce}
	switch {
	case slices.Contains(a.won, mine) && !a.in(10):
		return write(mine)
	case len(a.won) > 0 && a.in(3):
		return write(a.won[a.rng.IntN(len(a.won))])
	case a.isHost:
		return attach(a)
	default:
		return claim(a)
	}
}

// attach takes a run for a host: one that can be had, or now and then any.
func attach(a *actor) call {
	now := a.time()
	free := a.seen.Row == core.RowDetached || a.seen.Row == core.RowLapse && a.seen.DueAt <= now
	if !free && !a.in(5) {
		return look(a)
	}
	return a.update(core.Attach{Seen: a.seen.Epoch, Nonce: a.nonce(), Now: now, Until: a.until(now), Takeover: a.in(4)})
}

// claim takes a run for a sweep, or brings it to where it can be taken.
func claim(a *actor) call {
	switch {
	case a.seen.Row == core.RowLapse && a.in(2):
		return a.update(core.Lapse{DueAt: a.seen.DueAt})
	case a.seen.Row == core.RowCancel && a.seen.Status == core.Running:
		return a.update(core.CancelDue{DueAt: a.seen.DueAt})
	case a.seen.Row == core.RowLapse && !a.in(4):
		return look(a)
	}
	now := a.time()
	t := core.Claim{Seen: a.seen.Epoch, Since: a.seen.DetachedSince, Nonce: a.nonce(), Now: now, Until: a.until(now), TTLSeconds: a.seen.TTLSeconds}
	if a.seen.Status == core.Interrupted {
		t.Since = a.seen.InterruptedSince
	}
	switch {
	case a.seen.CancelRequested != 0 && a.in(2):
		t.Ending = core.EndCancelled
	case a.in(25):
		t.Ending = core.EndExpired
	}
	return a.update(t)
}

func renew(a *actor) call {
	return a.held(func(h holding) call { return a.update(core.Renew{Epoch: h.epoch, Until: a.until(a.time())}) })
}

func detach(a *actor) call {
	return a.held(func(h holding) call { return a.update(core.Detach{Epoch: h.epoch, Now: a.time()}) })
}

func release(a *actor) call {
	return a.held(func(h holding) call { return a.update(core.Release{Epoch: h.epoch}) })
}

func interrupt(a *actor) call {
	if !a.in(3) {
		return renew(a)
	}
	return a.held(func(h holding) call {
		now := a.time()
		return a.update(core.Interrupt{Epoch: h.epoch, Now: now, Until: a.until(now)})
	})
}

// appendPiece appends the journal from where the actor last saw the log end, be the
// claim that it appends under still its own or not.
func appendPiece(a *actor) call {
	return a.held(func(h holding) call { return a.append(h, 1+a.rng.Int64N(40), nil) })
}

func seal(a *actor) call {
	if !a.in(3) {
		return appendPiece(a)
	}
	return a.held(func(h holding) call {
		return a.append(h, a.rng.Int64N(2)*20, &core.Sealed{ExitCode: a.rng.IntN(2), At: a.time()})
	})
}

func (a *actor) append(h holding, size int64, sealed *core.Sealed) call {
	r := a.seen
	if a.in(10) && a.earlier.RunKey == r.RunKey {
		// Further than any log goes: what ends where the log does is taken for what this
		// owner wrote before.
		r, size = a.earlier, 20_000
	}
	r.Epoch, r.ClaimNonce = h.epoch, h.nonce
	data := journal(r.LogEnd, r.LogEnd+size)
	return func(ctx context.Context) (core.Run, error) { return a.log.Append(ctx, r, data, sealed) }
}

// finish ends a run that is over, and now and then one that is not.
func finish(a *actor) call {
	over := a.seen.Sealed != nil || a.seen.Ending != nil || a.seen.CancelRequested != 0 || a.seen.Status == core.Interrupted
	if !over && !a.in(10) {
		return appendPiece(a)
	}
	return a.held(func(h holding) call {
		now := a.time()
		digest, err := core.LogSHA256(a.seen)
		if err != nil {
			return look(a)
		}
		t := core.Finish{
			Epoch: h.epoch, Nonce: h.nonce, Now: now, Status: core.Completed, ExitCode: new(0), NotBefore: a.until(now), ExpiresAt: now + 1000,
			Transcript: core.Transcript{Bytes: a.seen.LogEnd, SHA256: digest, Complete: a.seen.Sealed != nil},
		}
		if a.in(2) {
			t.Reclaim = core.ReclaimEnd
		}
		return a.update(t)
	})
}

func reclaimed(a *actor) call {
	switch {
	case a.seen.Row != core.RowReclaim:
		return look(a)
	case a.in(2):
		return a.update(core.ReclaimLater{Outcome: core.ReclaimHeld, NotBefore: a.until(a.time()), Attempts: a.seen.ReclaimAttempts + 1})
	default:
		return a.update(core.ReclaimDone{Outcome: core.ReclaimDestroyed, ExpiresAt: a.time()})
	}
}

func hint(a *actor) call {
	now := a.time()
	return a.update(core.Hint{TaskARN: "task", ExitedAt: now, Row: a.seen.Row, DueAt: a.seen.DueAt, Lapse: now})
}

func hold(a *actor) call {
	return a.update(core.SetHold{Hold: core.Hold{Until: a.until(a.time()), By: "ops", Why: "look"}, Was: new(a.seen.Hold)})
}

func extend(a *actor) call { return a.update(core.SetTTL{Seconds: int64(a.time())}) }

func cancel(a *actor) call {
	if !a.in(3) {
		return look(a)
	}
	return a.update(core.RequestCancel{Now: a.time(), Row: a.seen.Row})
}

// journal is what any run's agent writes, by position.
func journal(from, end int64) []byte {
	var b []byte
	for i := from; i < end; i++ {
		b = append(b, 'a'+byte((i*i+i/7)%26))
	}
	return b
}

// span is an append, by what tells it from all others: an epoch has one owner.
type span struct {
	epoch, from, end int64
}

// appends are the appends of bytes to a run's log, and whether one was accepted;
// those that were refused for certain are left out.
func (h *history) appends(key core.RunKey) map[span]bool {
	all := map[span]bool{}
	for _, op := range h.ops {
		d, got := op.Input.(deed), op.Output.(reply)
		t, ok := d.change.(core.Append)
		if !ok || d.run != key || t.From == t.End || got.why != "" {
			continue
		}
		s := span{t.Epoch, t.From, t.End}
		all[s] = all[s] || got.known != unknown
	}
	return all
}

// logsAreWhole checks each run's log, and that the check would find a log that is not.
func (w *world) logsAreWhole(t *testing.T) {
	pieces := 0
	for _, key := range w.runs {
		segments, err := w.actors[0].Segments(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		r, err := w.actors[0].Run(t.Context(), key)
		if errors.Is(err, core.ErrNotFound) && len(segments) == 0 {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		appends := w.history.appends(key)
		if err := wholeLog(r, segments, appends); err != nil {
			t.Errorf("log of run %s: %v", key, err)
		}
		pieces += len(segments)
		for i := range segments {
			for what, broken := range spoilt(segments, i) {
				if wholeLog(r, broken, appends) == nil {
					t.Errorf("log of run %s with segment %d %s: passes as whole", key, i, what)
				}
			}
		}
	}
	if pieces == 0 {
		t.Error("no log has a segment")
	}
}

// spoilt are logs in which one segment is not as it was written.
func spoilt(segments []core.Segment, i int) map[string][]core.Segment {
	other := slices.Clone(segments)
	other[i].Epoch += 1000
	altered := slices.Clone(segments)
	altered[i].Inline = bytes.ToUpper(altered[i].Inline)
	return map[string][]core.Segment{
		"missing":          slices.Delete(slices.Clone(segments), i, i+1),
		"twice":            slices.Insert(slices.Clone(segments), i, segments[i]),
		"by another owner": other,
		"altered":          altered,
	}
}

// wholeLog checks that the segments cover the log without gap or overlap, each one by
// an append that may have succeeded, and that each append that was accepted is there.
func wholeLog(r core.Run, segments []core.Segment, appends map[span]bool) error {
	missing := maps.Clone(appends)
	var end int64
	for _, s := range segments {
		by := span{s.Epoch, s.From, s.End}
		_, made := appends[by]
		sum := sha256.Sum256(s.Inline)
		switch {
		case s.From != end:
			return fmt.Errorf("a segment begins at %d, want %d", s.From, end)
		case !made:
			return fmt.Errorf("segment %v: want one that somebody appended and was not refused", by)
		case !bytes.Equal(s.Inline, journal(s.From, s.End)) || s.SHA256 != hex.EncodeToString(sum[:]):
			return fmt.Errorf("segment %v: other bytes than the journal's", by)
		}
		end = s.End
		delete(missing, by)
	}
	for s, accepted := range missing {
		if accepted {
			return fmt.Errorf("append %v was accepted and has no segment", s)
		}
	}
	digest, err := core.LogSHA256(r)
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(journal(0, end)); r.LogEnd != end || digest != hex.EncodeToString(sum[:]) {
		return fmt.Errorf("record ends the log at %d with digest %s, want %d", r.LogEnd, digest, end)
	}
	return nil
}

// underEpoch is t with another epoch as its condition.
func underEpoch(t core.Transition, epoch int64) core.Transition {
	switch t := t.(type) {
	case core.Renew:
		t.Epoch = epoch
		return t
	case core.Detach:
		t.Epoch = epoch
		return t
	case core.Interrupt:
		t.Epoch = epoch
		return t
	case core.Release:
		t.Epoch = epoch
		return t
	case core.Append:
		t.Epoch = epoch
		return t
	case core.Finish:
		t.Epoch = epoch
		return t
	case core.Attach:
		t.Seen = epoch
		return t
	case core.Claim:
		t.Seen = epoch
		return t
	}
	return t
}

// epochlessStore is a store whose every write has the epoch of the day.
type epochlessStore struct{ *ddb.Runs }

func (s epochlessStore) Update(ctx context.Context, key core.RunKey, t core.Transition) (core.Run, error) {
	r, err := s.Run(ctx, key)
	if err != nil {
		return core.Run{}, err
	}
	return s.Runs.Update(ctx, key, underEpoch(t, r.Epoch))
}

func (s epochlessStore) Append(ctx context.Context, key core.RunKey, a core.Append, segment core.Segment) (core.Run, error) {
	r, err := s.Run(ctx, key)
	if err != nil {
		return core.Run{}, err
	}
	a.Epoch, segment.Epoch = r.Epoch, r.Epoch
	return s.Runs.Append(ctx, key, a, segment)
}

// checkThenWrite is a store without conditions: it decides by what it has read. Two
// callers decide before either writes.
type checkThenWrite struct {
	*ddb.Runs
	both *sync.WaitGroup
}

func (s checkThenWrite) Update(ctx context.Context, key core.RunKey, t core.Transition) (core.Run, error) {
	r, err := s.Run(ctx, key)
	s.both.Done()
	s.both.Wait()
	if err != nil {
		return core.Run{}, err
	}
	next, err := t.Apply(r)
	if err != nil {
		return core.Run{}, err
	}
	return next, s.SeedRun(ctx, next)
}
