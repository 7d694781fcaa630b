package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// Config is what an episode's installation is like.
type Config struct {
	Runs, Threads int
	Idle          bool                  // sandboxes are kept warm
	Lapses        bool                  // of every second run a lapse cancels
	Retries       bool                  // writes that fail are sent once more
	Checkpoint    core.CheckpointPolicy // of all runs
	Release       bool                  // what cannot be stored is let go at once
	Breaker       int                   // how many ends without a sentinel trip it
	Skew          time.Duration         // how far clocks may be off, either way
	ListLag       time.Duration         // how long ECS does not list a task that it started
	Keeper        bool                  `json:",omitempty"` // the keeper of checkpoints is the real one, and others ask it for things
	Session       bool                  `json:",omitempty"` // hosts do what they do through sessions

	// Of sessions.
	SetUp   bool                `json:",omitempty"` // sandboxes are set up before their agents
	Hooks   int                 `json:",omitempty"` // 1: hooks are told; 2: some ready hooks fail
	Copies  core.SnapshotPolicy `json:",omitempty"` // the provider copies disks, then
	Spool   bool                `json:",omitempty"` // agents have bearers, and spool
	Adopts  bool                `json:",omitempty"` // some hosts start their own tasks
	Follows bool                `json:",omitempty"` // hosts follow their runs by long polls and in process, files too
	Quota   int                 `json:",omitempty"` // sandboxes of a tenant at once; 0: any number

	// Of what befalls an installation beside.
	Deletes  bool `json:",omitempty"` // threads are deleted, and the lists of their runs lag
	Spokes   bool `json:",omitempty"` // every second thread's sandboxes are in another account's cluster
	Caps     bool `json:",omitempty"` // tenants have a spend cap, now and then
	Redrives bool `json:",omitempty"` // letters that were dead are sent again
	Warns    bool `json:",omitempty"` // other systems are told of what expires soon
}

// Script is one episode: an installation and everything that happens there.
type Script struct {
	Config  Config
	Choices []Choice
}

// Choice is one thing that happens. What it cannot happen to any more it leaves
// alone, so that a script from which choices are taken out remains one.
type Choice struct {
	Op    Op
	ID    int       `json:",omitempty"` // of the actor that it brings or lets go on
	Run   int       `json:",omitempty"`
	N     int       `json:",omitempty"` // of a burst, text, seconds, host or kind, by Op
	Fault mem.Fault `json:",omitempty"`
	To    string    `json:",omitempty"` // actor ID first makes its calls up to the one of that name
}

// Op is what kind of thing happens.
type Op string

// The kinds, with what N means.
const (
	OpGo      Op = "go"      // actor ID makes up to N calls, the first with Fault
	OpWait    Op = "wait"    // N milliseconds pass
	OpUntil   Op = "until"   // time goes by until the Nth thing that the records say is over
	OpSweep   Op = "sweep"   // N: 0 all, 1 the run by name, else two shards from N on
	OpPlan    Op = "plan"    // a sweep in plan mode
	OpApply   Op = "apply"   // of the plan that was made last
	OpDaily   Op = "daily"   // audit and prune
	OpDeliver Op = "deliver" // a reclaim message about the run; N: which, from the newest
	OpStopped Op = "stopped" // ECS's news of the run's task; N: how late it tells, seconds
	OpNudge   Op = "nudge"   // the agent's own word that it has ended
	OpBegin   Op = "begin"   // host N starts or goes on to start the run
	OpRenew   Op = "renew"   // by host N, and so on
	OpDetach  Op = "detach"
	OpAttach  Op = "attach"
	OpTake    Op = "takeover"
	OpPause   Op = "interrupt"
	OpCancel  Op = "cancel"
	OpHold    Op = "hold" // for N seconds
	OpRelease Op = "release"
	OpExtend  Op = "extend" // to N seconds
	OpSpend   Op = "spend"  // may cost what its task does in N seconds from its start
	OpKill    Op = "kill"
	OpFreeze  Op = "freeze"
	OpThaw    Op = "thaw"
	OpObserve Op = "observe"
	OpEnforce Op = "enforce"
	OpWrite   Op = "write"   // the run's agent writes N bytes
	OpRewrite Op = "rewrite" // it replaces what it has written by N bytes
	OpExit    Op = "exit"    // with status N
	OpDie     Op = "die"
	OpTrap    Op = "trap" // it traps the signal from now on
	OpTask    Op = "task" // the run's task dies
	OpHide    Op = "hide" // ECS does not know the task, for N seconds
	OpForget  Op = "forget"
	OpBlind   Op = "blind" // ECS knows no task at all, for N seconds
	OpDeaf    Op = "deaf"  // ECS does not answer, for N seconds
	OpMute    Op = "mute"  // no exec session comes up, for N seconds
	OpLag     Op = "lag"   // the indexes lag by N changes

	OpCapture    Op = "capture"      // the agent that captures the run's workspace; N: 0 hands it in, 1 lives, 2 fails
	OpCaptureDie Op = "capture dies" // that agent does

	// Of the keeper; N: of which thread of the run's family, and a multiple of that says how.
	OpSave       Op = "save"
	OpVerify     Op = "verify"
	OpFork       Op = "fork"
	OpDeleteHead Op = "delete head"
	OpKeep       Op = "keep"
	OpCollect    Op = "collect"
	OpConverse   Op = "converse"

	// Of hosts with a session, beside those above.
	OpContinue Op = "continue" // it begins the run for a paused one of its thread
	OpFinish   Op = "finish"
	OpFail     Op = "fail"
	OpTail     Op = "tail"   // N above 1: how long it waits, and above 7 for files
	OpFollow   Op = "follow" // in process, poll by poll; N above 1: how it ends
	OpList     Op = "list"
	OpAdopt    Op = "adopt" // of the run's own task; N above 1: of another run's; above 2: of the installation's

	OpSetup    Op = "setup"    // the worker of a set-up ends; N: 0 it is done, 1 it fails, 2 it was killed
	OpSpool    Op = "spool"    // the sandbox spools; N: 0 what is new, 1 all, 2 a piece from the middle, 3 what it wrote before
	OpArtifact Op = "artifact" // somebody adds one to the thread, as of the keeper

	OpErase     Op = "delete thread" // as of the keeper
	OpSpoke     Op = "spoke fails"   // N: for how many seconds, times four, and how
	OpTenantCap Op = "tenant cap"    // what N seconds of a task cost, for each tenant; 0: none
	OpMeter     Op = "meter breaks"  // for N seconds
	OpRedrive   Op = "redrive"       // of a letter about the run; N: which, from the newest
)

// String writes a choice as Go source.
func (c Choice) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "{Op: %q", string(c.Op))
	for _, f := range []struct {
		name string
		n    int
	}{{"ID", c.ID}, {"Run", c.Run}, {"N", c.N}, {"Fault", int(c.Fault)}} {
		if f.n != 0 {
			fmt.Fprintf(&b, ", %s: %d", f.name, f.n)
		}
	}
	if c.To != "" {
		fmt.Fprintf(&b, ", To: %q", c.To)
	}
	return b.String() + "}"
}

// String writes a script as Go source, to be kept as a test.
func (s Script) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Script{Config: %s, Choices: []Choice{\n", strings.TrimPrefix(fmt.Sprintf("%#v", s.Config), "sim."))
	for _, c := range s.Choices {
		fmt.Fprintf(&b, "\t%s,\n", c)
	}
	b.WriteString("}}")
	return b.String()
}

// maker draws the choices of one episode, each for the world as it then is.
type maker struct {
	rng     *rand.Rand
	weights []weight
	total   int
	faults  float64 // share of calls that fail
	bursts  []int   // how many calls a process makes before another acts
	next    []Choice
	ids     int
	kept    bool // there is a keeper
}

type weight struct {
	op Op
	n  int
}

// usual is how often things happen, one to another.
var usual = []weight{
	{OpGo, 700}, {OpWait, 30}, {OpUntil, 8}, {OpSweep, 30}, {OpPlan, 2}, {OpApply, 2}, {OpDaily, 1}, {OpDeliver, 90}, {OpStopped, 4}, {OpNudge, 3},
	{OpBegin, 80}, {OpRenew, 12}, {OpDetach, 60}, {OpAttach, 12}, {OpTake, 2}, {OpPause, 2}, {OpCancel, 4},
	{OpHold, 5}, {OpRelease, 5}, {OpExtend, 5}, {OpSpend, 4}, {OpKill, 2}, {OpFreeze, 2}, {OpThaw, 40}, {OpObserve, 1}, {OpEnforce, 40},
	{OpWrite, 100}, {OpRewrite, 4}, {OpExit, 70}, {OpDie, 10}, {OpTrap, 10},
	{OpTask, 4}, {OpHide, 2}, {OpForget, 1}, {OpBlind, 1}, {OpDeaf, 1}, {OpMute, 2}, {OpLag, 3},
	{OpCapture, 60}, {OpCaptureDie, 3},
}

// keeping is how often the keeper is asked for something, beside.
var keeping = []weight{{OpSave, 40}, {OpVerify, 8}, {OpFork, 40}, {OpDeleteHead, 16}, {OpKeep, 16}, {OpCollect, 40}, {OpConverse, 24}, {OpCapture, 300}, {OpArtifact, 12}}

// hosting is how often hosts do what needs a session.
var hosting = []weight{{OpBegin, 240}, {OpContinue, 60}, {OpPause, 12}, {OpFinish, 120}, {OpFail, 6}, {OpTail, 40}, {OpList, 6}, {OpRenew, 40}}

// drawn makes the installation of an episode, and the maker of what happens there.
// Each episode has its own taste: some things happen often in it, some never.
func drawn(rng *rand.Rand) (Config, *maker) {
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	c := Config{
		Runs: 1 + rng.IntN(8), Idle: rng.IntN(3) == 0, Lapses: rng.IntN(3) == 0, Retries: rng.IntN(2) == 0, Breaker: pick(1, 3, 50, 50),
		Skew: time.Duration(pick(0, 0, 1, 3)) * time.Second, ListLag: time.Duration(pick(0, 0, 5, 60)) * time.Second,
	}
	if c.Release = rng.IntN(4) == 0; rng.IntN(2) == 0 {
		c.Checkpoint = []core.CheckpointPolicy{core.CheckpointFinished, core.CheckpointAlways}[rng.IntN(2)]
	}
	c.Threads = 1 + rng.IntN(c.Runs)
	m := &maker{rng: rng, faults: []float64{0, 0.02, 0.1, 0.3}[rng.IntN(4)], bursts: [][]int{{1}, {1, 1, 2, 3}, {1, 1, 2, 5, 40}}[rng.IntN(3)]}
	for _, w := range usual {
		switch w.op {
		case OpGo, OpWait, OpUntil, OpSweep, OpBegin, OpDeliver, OpThaw, OpEnforce:
		default:
			w.n = w.n * pick(0, 1, 1, 3)
		}
		m.weights = append(m.weights, w)
		m.total += w.n
	}
	return c, m
}

// keeps makes every second episode one with a keeper. It draws from a source of its own,
// so that the others stay what they are.
func (m *maker) keeps(c *Config, rng *rand.Rand) {
	m.kept = rng.IntN(2) == 0
	if c.Keeper = m.kept; !c.Keeper {
		return
	}
	if c.Checkpoint == core.CheckpointDefault {
		c.Checkpoint = []core.CheckpointPolicy{core.CheckpointFinished, core.CheckpointAlways}[rng.IntN(2)]
	}
	weights := keeping
	if c.Session = rng.IntN(3) > 0; c.Session {
		weights = slices.Concat(keeping, hosting)
		c.Idle = c.Idle || rng.IntN(4) == 0
	}
	if c.Session {
		weights = slices.Concat(weights, m.equips(c, rng))
	}
	for _, w := range weights {
		w.n *= []int{0, 1, 1, 3}[rng.IntN(4)]
		m.weights = append(m.weights, w)
		m.total += w.n
	}
}

// troubles draws what befalls an installation beside, from a source of its own as keeps.
func (m *maker) troubles(c *Config, rng *rand.Rand) {
	var weights []weight
	if c.Spokes = rng.IntN(4) == 0; c.Spokes {
		c.Threads = min(max(c.Threads, 2), c.Runs)
		weights = append(weights, weight{OpSpoke, 16})
	}
	if c.Redrives = rng.IntN(4) == 0; c.Redrives {
		weights = append(weights, weight{OpRedrive, 60})
	}
	if c.Warns = rng.IntN(4) == 0; c.Warns {
		weights = append(weights, weight{OpExtend, 20}, weight{OpHold, 8}, weight{OpUntil, 60}, weight{OpSweep, 90})
	}
	if c.Caps = c.Session && rng.IntN(3) == 0; c.Caps {
		if rng.IntN(3) > 0 { // it is there from the beginning
			m.next = []Choice{{Op: OpTenantCap, N: []int{100, 300, 1000, 3000}[rng.IntN(4)]}}
		}
		weights = append(weights, weight{OpTenantCap, 16}, weight{OpMeter, 8}, weight{OpRenew, 60}, weight{OpDetach, 60}, weight{OpSweep, 60})
	}
	if c.Deletes = c.Session && rng.IntN(3) == 0; c.Deletes {
		weights = append(weights, weight{OpErase, 60})
	}
	for _, w := range weights {
		m.weights = append(m.weights, w)
		m.total += w.n
	}
}

// equips draws what an installation with sessions has beside, and how often that shows.
func (m *maker) equips(c *Config, rng *rand.Rand) (weights []weight) {
	if c.SetUp = rng.IntN(3) == 0; c.SetUp {
		weights = append(weights, weight{OpSetup, 150})
	}
	if c.Spool = rng.IntN(2) == 0; c.Spool {
		weights = append(weights, weight{OpSpool, 60})
	}
	if c.Adopts = rng.IntN(3) == 0; c.Adopts {
		weights = append(weights, weight{OpAdopt, 60})
	}
	if c.Follows = rng.IntN(2) == 0; c.Follows {
		weights = append(weights, weight{OpFollow, 60}, weight{OpTail, 40})
	}
	c.Hooks = rng.IntN(3)
	c.Copies = []core.SnapshotPolicy{"", core.SnapshotsAfterRun, core.SnapshotsAfterSetup}[rng.IntN(3)]
	c.Quota = []int{0, 0, 1, 2, 3}[rng.IntN(5)]
	if c.Idle = c.Idle || c.Copies != "" && rng.IntN(4) > 0; c.Idle {
		c.Threads = 1 + rng.IntN(min(c.Threads, 2))
	}
	return weights
}

func (m *maker) op() Op {
	n := m.rng.IntN(m.total)
	for _, w := range m.weights {
		if n -= w.n; n < 0 {
			return w.op
		}
	}
	return OpWait
}

// most is how many actors are at work at a time, atOnce how many runs have their turn.
const (
	most   = 6
	atOnce = 3
)

// choice draws what happens next, of what can.
func (m *maker) choice(w *world) Choice {
	if len(m.next) > 0 {
		c := m.next[0]
		m.next = m.next[1:]
		return c
	}
	m.ids++
	for {
		c := Choice{Op: m.op(), ID: m.ids, Run: m.about(w)}
		busy := w.busy()
		if rival, ok := m.rival(w, busy); ok {
			return rival
		}
		if next, ok := m.nextTurn(w); ok {
			return next
		}
		if c.Op.spawns() && len(busy) >= most {
			c.Op = OpGo
		}
		if c.Op == OpGo && len(busy) > 0 {
			a := busy[m.rng.IntN(len(busy))]
			return Choice{Op: OpGo, ID: a.id, N: m.burst(w, a), Fault: m.fault(a)}
		}
		if w.config.Session && (c.Op == OpContinue || c.Op == OpBegin && m.rng.IntN(2) == 0) { // few can
			for _, r := range w.runs {
				if w.can(c.Op, r, false) && (c.Op == OpContinue || w.oracle.threads[w.threadKey(r)].Head != "") {
					c.Run = r.n
				}
			}
		}
		again := m.rng.IntN(8) == 0 // what has been done is done again
		if c.Op != OpGo && w.can(c.Op, w.runs[c.Run], again) {
			if c.N = m.number(c.Op); again || w.useful(c, now()) {
				m.follow(w, c)
				return c
			}
		}
	}
}

// nextTurn lets the next turn of a thread begin whose sandbox is kept warm, or has died.
func (m *maker) nextTurn(w *world) (Choice, bool) {
	if !w.config.Session || !w.config.Idle || m.rng.IntN(6) > 0 {
		return Choice{}, false
	}
	for _, r := range w.runs {
		box, ok := w.boxOf(w.threadKey(r))
		if !ok || box.DueAt == 0 || w.oracle.seen[r.key].Epoch != 0 || r.begun || r.stray != "" {
			continue
		}
		m.ids++
		c := Choice{Op: OpBegin, ID: m.ids, Run: r.n}
		m.next = []Choice{{Op: OpGo, ID: m.ids, N: m.among(5, 10, 40)}}
		if m.rng.IntN(2) == 0 {
			m.next = append([]Choice{c}, m.next...)
			c = Choice{Op: OpTask, Run: w.index(box.LatestRun)}
		}
		return c, true
	}
	return Choice{}, false
}

// follow draws what comes of a choice at once: a run that is paused is gone on for by
// another of its thread, if there is one that has not begun.
func (m *maker) follow(w *world, c Choice) {
	if c.Op != OpPause || !w.config.Session || m.rng.IntN(2) == 0 {
		return
	}
	for _, r := range w.runs {
		if w.threadKey(r) == w.threadKey(w.runs[c.Run]) && w.oracle.seen[r.key].Epoch == 0 {
			m.ids++
			m.next = []Choice{
				{Op: OpGo, ID: c.ID, N: 40}, {Op: OpContinue, ID: m.ids, Run: r.n}, {Op: OpGo, ID: m.ids, N: m.among(3, 6, 10, 40, 40)},
			}
			return
		}
	}
}

// crucial are the calls before which something may have changed that they rest on.
var crucial = map[string]bool{
	"claim": true, "append": true, "finish": true, "terminate": true, "mark reclaiming": true, "condemn": true, "stop task": true,
	"close row": true, "stop launch": true, "mark idle": true, "reclaim done": true, "put intent": true, "run task": true,
	"launched": true, "start agent": true, "renew": true, "lapse": true, "hold": true, "hold exec": true,
	"note snapshot": true, "restore task": true, "drop snapshots": true, "add bearer": true, "resumed": true,
	"announce": true, "mark warned": true, "start meter": true, "note price": true,
}

// crucialToKeep are those of the keeper.
var crucialToKeep = map[string]bool{
	"commit": true, "fork": true, "delete head": true, "trim": true, "raise floor": true, "unpin": true, "delete object": true, "begin step": true,
	"end step": true, "note step": true, "put conversation": true, "put artifact": true, "acquire lease": true, "list pins": true, "list objects": true,
	"forget thread": true,
}

// rival lets another cross an actor that is about to make such a call, as far as it
// comes.
func (m *maker) rival(w *world, busy []*actor) (Choice, bool) {
	for _, a := range busy {
		if !(crucial[a.waits] || w.config.Keeper && crucialToKeep[a.waits]) || m.rng.IntN(8) > 0 {
			continue
		}
		for range 10 {
			if op := m.op(); op.spawns() && w.can(op, w.runs[a.run], m.rng.IntN(4) == 0) {
				c, sleep := Choice{Op: op, ID: m.ids, Run: a.run, N: m.number(op)}, 0
				if m.kept && m.rng.IntN(2) == 0 { // it sleeps, perhaps past its lease
					sleep = m.among(60_000, 130_000, 260_000)
				}
				if !w.useful(c, now().Add(time.Duration(sleep)*time.Millisecond)) {
					continue
				}
				m.next = []Choice{{Op: OpGo, ID: m.ids, N: m.among(2, 4, 8, 40)}}
				if sleep > 0 {
					m.next = append([]Choice{c}, m.next...)
					c = Choice{Op: OpWait, N: sleep}
				}
				return c, true
			}
		}
	}
	return Choice{}, false
}

// about picks whom a choice is about: somebody who is at work on it already, or one of
// those few whose turn it is, now and then any.
func (m *maker) about(w *world) int {
	if busy := w.busy(); len(busy) > 0 && m.rng.IntN(2) == 0 {
		return busy[m.rng.IntN(len(busy))].run
	}
	var turn []int
	for _, r := range w.runs {
		if seen := w.oracle.seen[r.key]; len(turn) < atOnce && (!seen.Status.Terminal() || seen.Row != core.RowNone) {
			turn = append(turn, r.n)
		}
	}
	if len(turn) == 0 || m.rng.IntN(10) == 0 {
		return m.rng.IntN(len(w.runs))
	}
	return turn[m.rng.IntN(len(turn))]
}

// number draws what goes with an op.
func (m *maker) number(op Op) int {
	switch op {
	case OpWait:
		return m.among(100, 1000, 1000, 1000, 5000, 5000, 15000, 20000, 30000, 60000, 60000, 130000, 300000)
	case OpUntil:
		return m.among(0, 0, 0, 1, 2)
	case OpSweep:
		return m.among(0, 0, 1, 1, 1, 2, 4, 6, 8)
	case OpDeliver:
		return m.among(0, 0, 0, 1, 2, 3)
	case OpStopped, OpBegin, OpRenew, OpDetach, OpAttach, OpTake, OpPause, OpContinue, OpFinish, OpFail, OpList:
		return m.among(0, 0, 0, 0, 0, 0, 0, 1)
	case OpTail:
		return m.among(0, 0, 0, 1, 2, 4, 6, 8)
	case OpFollow:
		return m.among(0, 0, 2, 2, 2, 4, 6, 1)
	case OpAdopt:
		return m.among(0, 0, 0, 0, 0, 1, 2, 3)
	case OpSetup:
		return m.among(0, 0, 0, 0, 0, 0, 1, 2)
	case OpSpool:
		return m.among(0, 0, 0, 1, 2, 2, 3)
	case OpHold:
		return m.among(20, 60, 300, 900)
	case OpExtend:
		return m.among(30, 120, 600)
	case OpSpend:
		return m.among(60, 200, 400, 900)
	case OpWrite, OpRewrite:
		return m.among(1, 5, 50, 130, 300)
	case OpExit:
		return m.among(0, 0, 3)
	case OpHide, OpBlind, OpDeaf, OpMute:
		return m.among(10, 60, 200)
	case OpLag:
		return m.among(0, 0, 1, 3, 8)
	case OpCapture:
		if m.kept {
			return m.among(0, 0, 0, 0, 0, 0, 1, 2, 3, 3, 4, 4, 5, 6, 12)
		}
		return m.among(0, 0, 0, 0, 1, 2)
	case OpSpoke:
		return 4*m.among(20, 60, 200, 400) + m.among(farRefuses, farSlow, farSilent)
	case OpTenantCap:
		return m.among(0, 20, 60, 200, 1000)
	case OpMeter:
		return m.among(30, 200, 600)
	case OpRedrive:
		return m.among(0, 0, 0, 1, 2)
	case OpErase:
		return m.among(0, 0, 0, 1, 1, 2, 3, 4) + (branches+1)*m.among(eraseCounts, eraseAll, eraseAll, eraseAll, eraseUnused, eraseUnused)
	case OpSave, OpVerify, OpFork, OpDeleteHead, OpKeep, OpCollect, OpConverse, OpArtifact:
		return m.among(0, 0, 0, 0, 1, 1, 2, 3, 4) + (branches+1)*m.among(0, 1, 2, 2, 3)
	}
	return 0
}

// can reports whether something of the kind can happen to a run now, perhaps again.
func (w *world) can(op Op, r *agentRun, again bool) bool {
	seen := w.oracle.seen[r.key]
	switch op {
	case OpSweep:
		return again || seen.Row == core.RowDetached && seen.ClaimUntil <= now() || seen.Row.Due() && seen.DueAt <= now()
	case OpDeliver:
		return slices.ContainsFunc(w.sent, func(m message) bool { return m.run == r.key.Run && (again || m.times == 0 && w.due(m)) })
	case OpApply:
		return len(w.plan) > 0
	case OpContinue:
		_, paused := w.pausedBefore(r)
		return w.config.Session && r.stray == "" && (again || paused && seen.Epoch == 0)
	case OpFinish:
		return w.config.Session && seen.Epoch != 0 && (again || !seen.Status.Terminal() && !w.fleet.Alive(r.key.Run) && seen.Start.ReadyAt != 0)
	case OpFollow:
		return w.config.Follows && seen.Epoch != 0 && (again || !seen.Status.Terminal() && seen.Start.ReadyAt != 0)
	case OpFail, OpTail, OpList:
		return w.config.Session && seen.Epoch != 0 && (again || !seen.Status.Terminal())
	case OpBegin:
		if w.config.Session {
			return r.stray == "" && (again || !seen.Status.Terminal() && seen.Start.ReadyAt == 0)
		}
		return again || seen.Epoch <= 1 && (seen.TaskARN == "" || w.config.Keeper && !w.begun(r, seen)) && !seen.Status.Terminal()
	case OpDetach:
		return seen.Row == core.RowLapse || seen.Row == core.RowDetached && again
	case OpWrite, OpRewrite, OpExit, OpDie, OpTrap:
		return w.fleet.Alive(r.key.Run)
	case OpAttach:
		return again || seen.Row == core.RowDetached
	case OpRenew, OpPause, OpTake, OpCancel, OpKill, OpNudge, OpExtend, OpSpend:
		return seen.Epoch != 0 && !seen.Status.Terminal()
	case OpHold:
		return seen.Epoch != 0
	case OpRelease:
		return seen.Hold.Until != 0
	case OpTask, OpHide, OpForget:
		return seen.TaskARN != "" && w.lives(seen.TaskARN)
	case OpStopped:
		return seen.TaskARN != "" && !w.lives(seen.TaskARN)
	case OpSave, OpVerify:
		return w.config.Keeper && seen.TaskARN != ""
	case OpAdopt:
		return w.config.Adopts && (again || r.stray == "" && !r.begun && seen.Epoch == 0 || r.stray != "" && !seen.Status.Terminal() && seen.Start.ReadyAt == 0)
	case OpSetup:
		return w.config.SetUp && w.working(r, seen)
	case OpSpool:
		return w.config.Spool && seen.TaskARN != "" && (r.spooled < len(r.written) || again)
	case OpRedrive:
		return w.config.Redrives && slices.ContainsFunc(w.sent, func(m message) bool { return m.run == r.key.Run && m.times > 0 })
	case OpErase:
		return w.config.Deletes
	case OpFork, OpDeleteHead, OpKeep, OpCollect, OpConverse, OpArtifact:
		return w.config.Keeper && (again || len(w.keep.stored) > 0)
	case OpCapture, OpCaptureDie:
		if w.config.Keeper {
			return len(w.workers(w.threadKey(r))) > 0
		}
		return w.fleet.Capturing(r.key.Run)
	case OpThaw, OpEnforce:
		c, err := w.store.Control(context.Background())
		return err == nil && (op == OpThaw && c.Blocked() || op == OpEnforce && c.Mode == core.Observe)
	}
	return true
}

// due reports whether a message finds something to do, as far as the records say.
func (w *world) due(m message) bool {
	row, err := w.store.Row(context.Background(), m.job.Instance)
	return err != nil || row.Attempts == 0 || row.DueAt <= now()
}

func (m *maker) among(of ...int) int { return of[m.rng.IntN(len(of))] }

// burst is how many calls an actor makes before another acts.
func (m *maker) burst(w *world, a *actor) int {
	if (a.kind == "host" || a.kind == "keeper" || w.config.Keeper && a.kind == "agent") && m.rng.IntN(3) == 0 {
		return 40
	}
	return m.among(m.bursts...)
}

func (m *maker) fault(a *actor) mem.Fault {
	share := m.faults
	if crucial[a.waits] {
		share *= 2
	}
	if m.rng.Float64() >= share {
		return mem.None
	}
	return m.faulty()
}

// faulty draws a fault.
func (m *maker) faulty() mem.Fault {
	return []mem.Fault{mem.NotLanded, mem.AnswerLost, mem.StopBefore, mem.StopAfter}[m.rng.IntN(4)]
}

// spawns reports whether the op brings an actor.
func (o Op) spawns() bool {
	switch o {
	case OpGo, OpWait, OpUntil, OpWrite, OpRewrite, OpExit, OpDie, OpTrap, OpTask, OpHide, OpForget, OpBlind, OpDeaf, OpMute, OpLag, OpCaptureDie,
		OpSetup, OpSpool, OpSpoke, OpTenantCap, OpMeter:
		return false
	}
	return true
}
