package sim

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// recorder is a testing.TB that keeps what is said against it, so that it can be
// told with the script that led there.
type recorder struct {
	testing.TB
	texts []string
}

// Helper marks nothing: the place in the code says nothing here.
func (r *recorder) Helper() {}

// Errorf keeps the accusation.
func (r *recorder) Errorf(format string, args ...any) {
	r.texts = append(r.texts, fmt.Sprintf(format, args...))
}

// world is one episode's installation with everything that is under way in it.
type world struct {
	*recorder
	config Config
	limits core.Limits
	store  *mem.Store
	fleet  *mem.Fleet
	ecs    ecs

	actors []*actor
	runs   []*agentRun
	sent   []message
	plan   []core.PlanEntry
	nonces int

	tenantCap core.Dollars // as actors that come are told

	acting   *actor // whose step it is
	call     string // which
	steps    int    // choices, and in the end operations
	calls    int    // of ports
	tracing  bool
	trace    []string
	oracle   oracle
	keep     keep
	counts   map[string]int // what came to happen
	countsMu sync.Mutex
	holding  sync.Mutex               // between what is read before and after a hold is written
	closed   map[core.InstanceID]bool // ledger rows that are known to be
	tried    map[string]bool          // tasks of whose end somebody has tried to tell a hook
}

// agentRun is a run as the world knows it, beside its record.
type agentRun struct {
	key   core.RunKey
	n     int
	hosts [2]host

	written string      // what its agent wrote
	former  []string    // what it had written and replaced
	traps   bool        // it ends with a sentinel when it is told to
	moved   int         // the step in which somebody last changed what its expiry hangs on
	exit    *int        // what it ended with by itself
	idle    core.Millis // since when nobody can end its journal, as long as that lasts

	last    int // who settled its checkpoint last
	crossed int // the call in which another than before began to

	parent   core.RunID // the paused run that it goes on for
	inherits bool       // it has that one's workspace, and owes it

	begun   bool   // a host has asked for a sandbox
	stray   string // the task that its host has started itself
	spooled int    // bytes of what it wrote

	rowOf core.InstanceID // its instance whose ledger row was seen first
	rowAt int             // at this call
	over  int             // the call in which its end was decided
}

// host is a process outside that drives a run.
type host struct {
	nonce string
	run   core.Run // as it saw it last; zero: never
}

// message is a reclaim message that was sent.
type message struct {
	job   core.ReclaimJob
	run   core.RunID
	times int // delivered
}

// Limits are the durations of a simulated installation: what takes hours there
// takes minutes, so that a short episode comes to it.
func Limits(c Config) core.Limits {
	l := core.DefaultLimits
	l.SweepWidth, l.ProbeCalls, l.ProbeWidth, l.InlineSegment = 1, 1, 1, 40
	l.RunTTL, l.PauseTTL, l.IdleTTL = 15*time.Minute, 10*time.Minute, 5*time.Minute
	l.DrainGrace, l.MissingGrace, l.LaunchLag = 5*time.Minute, 6*time.Minute, 4*time.Minute
	l.NoteGap, l.NoteEvery, l.ReclaimBackoffMax = 2*time.Minute, 3*time.Minute, 5*time.Minute
	l.BreakerWindow, l.BreakerMost = 5*time.Minute, c.Breaker
	l.CheckpointHold, l.CaptureMost = 4*time.Minute, 10*time.Minute
	if c.Warns {
		l.ExpiringBefore = 90 * time.Second
	}
	return l
}

func newWorld(t testing.TB, c Config) *world {
	rec := &recorder{TB: t}
	store := mem.New(rec)
	w := &world{recorder: rec, config: c, limits: Limits(c), store: store, fleet: mem.NewFleet(store)}
	w.ecs = ecs{hidden: map[string]core.Millis{}, leaving: map[string]core.Millis{}, forgotten: map[string]string{}}
	w.oracle = oracle{begun: now(), promised: map[core.RunKey]core.Millis{}, wishes: map[core.RunKey][]*wish{}, seen: map[core.RunKey]core.Run{}}
	w.oracle.threads, w.oracle.told = map[core.ThreadKey]core.Thread{}, map[core.RunKey]core.CheckpointState{}
	w.keep = keep{
		sent: map[core.ThreadKey]map[string]core.PackRef{}, stored: map[core.CheckpointID]map[core.ThreadKey]bool{},
		failed: map[core.RunID]bool{}, waits: map[core.ThreadKey]wait{},
	}
	w.counts, w.oracle.state, w.closed, w.tried = map[string]int{}, store.State(), map[core.InstanceID]bool{}, map[string]bool{}
	w.fleet.SetupsByHand, w.fleet.FailsHook = true, w.hookFails
	w.oracle.serves = map[string]core.RunID{}
	w.oracle.metered, w.oracle.marked = map[core.InstanceID]core.Metering{}, map[core.RunKey]mark{}
	w.oracle.lost, w.oracle.storable = map[core.RunKey]bool{}, map[core.RunKey]bool{}
	for n := range c.Runs {
		tenant := core.TenantID("acme")
		if n%3 == 2 {
			tenant = "umbra"
		}
		key := core.RunKey{Tenant: tenant, Run: core.RunID(fmt.Sprintf("r%d", n))}
		w.runs = append(w.runs, &agentRun{key: key, n: n, hosts: [2]host{{nonce: fmt.Sprintf("host-%d-a", n)}, {nonce: fmt.Sprintf("host-%d-b", n)}}})
	}
	return w
}

func (w *world) accuse(format string, args ...any) { w.Errorf(format, args...) }

func (w *world) broken() bool { return len(w.texts) > 0 }

func (w *world) note(format string, args ...any) {
	if w.tracing {
		w.trace = append(w.trace, fmt.Sprintf("%6.1fs  ", now().Sub(w.oracle.begun).Seconds())+fmt.Sprintf(format, args...))
	}
}

func now() core.Millis { return core.MillisOf(time.Now()) }

// busy lists the actors that are at work.
func (w *world) busy() []*actor {
	var out []*actor
	for _, a := range w.actors {
		if !a.over {
			out = append(out, a)
		}
	}
	w.actors = out
	return out
}

// end stops every actor where it stands.
func (w *world) end() {
	for _, a := range w.actors {
		a.close()
	}
	w.actors = nil
}

// collect takes what was sent off the queue.
func (w *world) collect() {
	for _, job := range w.store.TakeJobs() {
		m := message{job: job, run: job.Run}
		if m.run == "" {
			if row, err := w.store.Row(context.Background(), job.Instance); err == nil {
				m.run = row.Run
			}
		}
		again := func(other message) bool { return other.times == 0 && other.job == job }
		if !slices.ContainsFunc(w.sent, again) {
			w.sent = append(w.sent, m)
		}
	}
}

// ports is the store as an actor reaches it: by its clock, and with what it learns
// of the operator's settings kept for the oracle.
type ports struct {
	skewed
	a *actor
	w *world
}

func (w *world) ports(a *actor) ports { return ports{skewed{a.p, a.skew, w.config.Retries}, a, w} }

func (p ports) learn(c core.Control, err error) (core.Control, error) {
	if err == nil {
		if !p.a.read {
			p.a.looks = p.a.kind == "sweep" && c.Mode == core.Observe
		}
		p.a.free, p.a.kept = p.a.free || !c.Blocked(), p.a.kept || c.Blocked()
		p.a.control, p.a.read, p.a.sinceRead, p.a.readAt = c, true, 0, p.w.calls
	}
	return c, err
}

func (p ports) Control(ctx context.Context) (core.Control, error) {
	return p.learn(p.skewed.Control(ctx))
}

func (p ports) UpdateControl(ctx context.Context, t core.ControlTransition) (core.Control, error) {
	return p.learn(p.skewed.UpdateControl(ctx, t))
}

// Update notes which run the actor is about.
func (p ports) Update(ctx context.Context, key core.RunKey, t core.Transition) (core.Run, error) {
	p.a.run = p.w.index(key.Run)
	return p.skewed.Update(ctx, key, t)
}

// UpdateThread notes under which fence the actor writes.
func (p ports) UpdateThread(ctx context.Context, key core.ThreadKey, t core.ThreadTransition) (core.Thread, error) {
	th, err := p.skewed.UpdateThread(ctx, key, t)
	if _, acquires := t.(core.AcquireLease); acquires && p.w.config.Keeper {
		if err == nil {
			p.a.fences[key] = th.Fence
		}
		if p.a.kind == "host" && (err == nil || core.Refused(err)) {
			p.w.judgeWaits(key, err != nil, p.w.store.State().Threads[key])
		}
	}
	return th, err
}

// joinedShards is an index whose shards are all listed in the steps of the first:
// nothing is at stake between them.
type joinedShards struct {
	ports
	after int // 1 where something else was listed before
}

func join(ctx context.Context, shard int) context.Context {
	if shard > 0 {
		ctx = context.WithValue(ctx, joined{}, true)
	}
	return ctx
}

func (p joinedShards) Detached(ctx context.Context, shard int) ([]core.IndexEntry, error) {
	return p.ports.Detached(join(ctx, shard), shard)
}

func (p joinedShards) Due(ctx context.Context, shard int, until core.Millis) ([]core.IndexEntry, error) {
	return p.ports.Due(join(ctx, shard+1), shard, until)
}

func (p joinedShards) DueSandboxes(ctx context.Context, shard int, until core.Millis) ([]core.DueSandbox, error) {
	return p.ports.DueSandboxes(join(ctx, shard+p.after), shard, until)
}

// carryOut does a sweep.
func (w *world) carryOut(ctx context.Context, a *actor, q core.SweepRequest) (core.SweepReport, error) {
	s := w.sweep(a)
	if len(q.Shards) == 0 {
		s.Index, s.Due = joinedShards{w.ports(a), 0}, joinedShards{w.ports(a), 1}
	}
	return s.Run(ctx, q)
}

const (
	install  = "sim"
	cluster  = "c"
	provider = "fargate"
)

func (w *world) sweep(a *actor) *core.Sweep {
	p, tasks := w.ports(a), w.tasks(a)
	s := &core.Sweep{
		Runs: p, Index: p, Log: &core.LogWriter{Log: p, Blobs: p, Inline: w.limits.InlineSegment}, Sandboxes: p, Ledger: p,
		Due: p, Tasks: tasks, Lister: tasks, Prober: tasks, Journals: tasks, Queue: p, Controls: p, Breaker: p, Notes: p,
		Cursors: p, Budget: p, Limits: w.limitsOf(a), Install: install, Provider: provider, Cluster: cluster, StopLeaks: true,
		Checkpoint: w.config.Checkpoint,
		Logger:     slog.New(slog.DiscardHandler),
		Spool:      w.spool(p),
	}
	if w.config.Caps {
		s.Meters = p
	}
	if w.config.Warns {
		s.Announcer = teller{w, a}
	}
	if w.config.Spokes {
		s.Abroad = []string{abroad}
	}
	return s
}

func (w *world) reclaimer(a *actor) *core.Reclaimer {
	p, tasks := w.ports(a), w.tasks(a)
	c := &core.Reclaimer{
		Runs: p, Sandboxes: p, Ledger: p, Transactions: p, Tasks: tasks, Stopper: tasks, Controls: p, Breaker: p,
		Checkpoints: tasks, Threads: p, Announcer: w, Provider: provider, Limits: w.limitsOf(a),
	}
	if w.config.Release {
		c.OnFailure = core.ReleaseOnFailure
	}
	c.Snapshots = w.copies(tasks)
	if w.config.Hooks > 0 {
		c.Functions = tasks
	}
	return c
}

func (w *world) launcher(a *actor) *core.Launcher {
	p, tasks := w.ports(a), w.tasks(a)
	l := &core.Launcher{
		Runs: p, Sandboxes: p, Ledger: p, Transactions: p, Describer: tasks, Queue: p,
		Provider: core.TaskProvider{TaskAPI: tasks, AgentStarter: tasks},
		Threads:  p, Announcer: w, Limits: w.limitsOf(a), Install: install, Snapshots: w.copies(tasks), Quota: core.Quota{Each: w.config.Quota},
	}
	if w.config.Caps {
		l.Meters = p
	}
	return l
}

func (w *world) operator(a *actor) *core.Operator {
	p := w.ports(a)
	return &core.Operator{Runs: p, Sandboxes: p, Ledger: p, Due: joinedShards{p, 0}, Controls: p, Audit: p, Queue: p}
}
