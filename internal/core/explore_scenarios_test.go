package core_test

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/core/coretest"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// The actors. Each is a process of its own; what it does after an error is what
// such a process does.

// sweeps adds n sweeps. They are alike, so they begin in order.
func (s *stage) sweeps(n int) {
	var before *mem.Actor
	for i := range n {
		a := s.sweeper("sweep " + string(rune('A'+i)))
		if before != nil {
			a.Ready = before.Begun
		}
		before = a
	}
}

// sweeper is one scheduled sweep.
func (s *stage) sweeper(name string) *mem.Actor {
	return s.play(name, func(p *mem.Process) {
		_, _ = s.indexed(p).Run(context.Background(), core.SweepRequest{Shards: []int{0}})
	})
}

// indexed is a sweep that lists in three calls.
func (s *stage) indexed(p *mem.Process) *core.Sweep {
	sweep := s.sweep(p)
	sweep.Index, sweep.Due = oneShard{p}, oneShard{p}
	if !s.sc.fair {
		sweep.Cursors, sweep.Budget = boundless{}, boundless{}
	}
	return sweep
}

// boundless is a budget that is never spent, and needs no cursor.
type boundless struct{}

func (boundless) Cursor(_ context.Context, shard int) (core.Cursor, error) {
	return core.Cursor{Shard: shard}, nil
}

func (boundless) MoveCursor(context.Context, core.Cursor, core.Cursor) error { return nil }

func (boundless) Take(_ context.Context, _ core.Millis, want, _ int) (int, error) { return want, nil }

// hint is reap told by ECS that a task stopped.
func (s *stage) hint(name, run string) *mem.Actor {
	r := s.run(run)
	return s.play(name, func(p *mem.Process) {
		_, _ = s.indexed(p).TaskStopped(context.Background(), core.StoppedTask{
			ARN: r.TaskARN, StartedBy: core.StartedBy("test", r.Instance), At: now(),
		})
	})
}

// start is a request for a run in the sandbox of its own thread, or of another
// run's.
func start(run string) core.RunRequest {
	return core.RunRequest{RunKey: key(run), Thread: core.ThreadID("thread-" + run), HostNonce: "host-" + run, Definition: "d"}
}

// host begins a run up to its agent, tries again where it got no answer, and then
// falls silent, unless then is set.
func (s *stage) host(name string, q core.RunRequest, sandbox string, then func(p *mem.Process, r core.Run)) *mem.Actor {
	return s.play(name, func(p *mem.Process) {
		for range 2 {
			r, err := s.starting(p, q, sandbox)
			if err == nil {
				if then != nil {
					then(p, r)
				}
				return
			}
			if core.Refused(err) {
				return
			}
		}
	})
}

func (s *stage) starting(p *mem.Process, q core.RunRequest, sandbox string) (core.Run, error) {
	l := s.launcher(p)
	r, err := l.Start(context.Background(), q)
	if err != nil {
		return core.Run{}, err
	}
	if r, err = l.Launch(context.Background(), r, material(sandbox), core.TaskSpec{Cluster: "c", Container: "agent"}); err != nil {
		return core.Run{}, err
	}
	return r, startAgent(l, r)
}

// startAgent tries once: a host's own patience is not what is explored.
func startAgent(l *core.Launcher, r core.Run) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l.Provider = impatient{l.Provider, cancel}
	_, err := coretest.StartAgent(ctx, l, r, core.JournalStart{Argv: []string{"agent"}}, nil)
	return err
}

type impatient struct {
	core.Provider
	giveUp func()
}

func (i impatient) StartAgent(ctx context.Context, target core.ExecTarget, agent core.JournalStart, input []byte) (core.JournalStarted, error) {
	started, err := i.Provider.StartAgent(ctx, target, agent, input)
	if err != nil {
		i.giveUp()
	}
	return started, err
}

// viewer attaches, renews and leaves.
func (s *stage) viewer(name, run string, takeover bool) *mem.Actor {
	return s.play(name, func(p *mem.Process) {
		ctx := context.Background()
		r, err := p.Run(ctx, key(run))
		if err != nil {
			return
		}
		r, err = p.Update(ctx, r.RunKey, core.Attach{
			Seen: r.Epoch, Nonce: name, Now: now(), Until: now().Add(s.limits.Attachment), Takeover: takeover,
		})
		if err != nil {
			return
		}
		if _, err = p.Update(ctx, r.RunKey, core.Renew{Epoch: r.Epoch, Until: now().Add(s.limits.Attachment)}); err != nil {
			return
		}
		_, _ = p.Update(ctx, r.RunKey, core.Detach{Epoch: r.Epoch, Now: now()})
	})
}

// drains has a host that knows its epoch seal the log and finish the run.
func (s *stage) drains(name, run, text string) *mem.Actor {
	r := s.run(run)
	return s.play(name, func(p *mem.Process) {
		ctx := context.Background()
		writer := &core.LogWriter{Log: p, Blobs: p, Inline: s.limits.InlineSegment}
		sealed, err := writer.Append(ctx, r, []byte(text), &core.Sealed{At: now()})
		if err != nil {
			return
		}
		sum, _ := core.LogSHA256(sealed)
		_, _ = p.Update(ctx, r.RunKey, core.Finish{
			Epoch: r.Epoch, Nonce: r.ClaimNonce, Now: now(), Status: core.Completed, ExitCode: new(0),
			Transcript: core.Transcript{Bytes: sealed.LogEnd, SHA256: sum, Complete: true},
			Reclaim:    core.ReclaimEnd, NotBefore: now().Add(s.limits.RetryStop),
		})
	})
}

func (s *stage) operator(p *mem.Process) *core.Operator {
	return &core.Operator{Runs: p, Sandboxes: p, Ledger: p, Due: oneShard{p}, Controls: p, Audit: p, Queue: p}
}

var ops = core.By{Who: "ops", Why: "to see"}

// holds has an operator hold a run, and release it.
func (s *stage) holds(run string, release bool) *mem.Actor {
	return s.play("operator", func(p *mem.Process) {
		until := now().Add(time.Hour)
		if s.operator(p).Hold(context.Background(), key(run), until, ops) != nil {
			return
		}
		_ = p.Call(context.Background(), "(the hold is answered ok)", nothing)
		s.held[core.RunID(run)] = until
		r := s.store.State().Runs[key(run)]
		s.need(r.TaskARN == "" || s.store.State().Rows[r.Instance].State == core.LedgerRunning,
			"the hold of run %s is answered ok although its task is condemned (I13)", run)
		if release {
			_ = p.Call(context.Background(), "(decides to release it)", nothing)
			delete(s.held, core.RunID(run))
			_ = s.operator(p).Release(context.Background(), key(run), ops)
		}
	})
}

func nothing() error { return nil }

// cancels has a user cancel a run.
func (s *stage) cancels(run string) *mem.Actor {
	return s.play("user", func(p *mem.Process) {
		_, _ = core.RequestCancelOf(context.Background(), p, key(run))
	})
}

// freezes has an operator freeze, and thaw.
func (s *stage) freezes(thaw bool) *mem.Actor {
	return s.play("operator", func(p *mem.Process) {
		if _, err := s.operator(p).Freeze(context.Background(), ops); err == nil && thaw {
			_ = s.operator(p).Thaw(context.Background(), ops)
		}
	})
}

// The world's events: one step each, whenever they are possible.

func (s *stage) passes(d time.Duration) *mem.Actor {
	return s.event(d.String()+" pass", func() { time.Sleep(d) })
}

func (s *stage) exits(run string) *mem.Actor {
	a := s.event("the agent of "+run+" ends", func() {
		s.fleet.Write(core.RunID(run), "the end\n")
		s.fleet.Exit(core.RunID(run), 0)
	})
	a.Ready = func() bool { return s.fleet.Alive(core.RunID(run)) }
	return a
}

func (s *stage) dies(run string) *mem.Actor {
	a := s.event("the agent of "+run+" dies", func() { s.fleet.Die(core.RunID(run)) })
	a.Ready = func() bool { return s.fleet.Alive(core.RunID(run)) }
	return a
}

func (s *stage) taskOf(run string) string { return s.store.State().Runs[key(run)].TaskARN }

func (s *stage) taskDies(run string) *mem.Actor {
	a := s.event("the task of "+run+" dies", func() {
		s.lost[core.RunID(run)] = true
		s.fleet.KillTask(s.taskOf(run))
	})
	a.Ready = func() bool { return slices.Contains(s.fleet.Running(), s.taskOf(run)) }
	return a
}

func (s *stage) taskForgotten(run string) *mem.Actor {
	a := s.event("ECS forgets the task of "+run, func() {
		s.lost[core.RunID(run)] = true
		arn := s.taskOf(run)
		s.fleet.KillTask(arn)
		s.fleet.Forget(arn)
	})
	a.Ready = func() bool { return s.taskOf(run) != "" }
	return a
}

// captures is the agent that captures run r: it says that it lives, and hands in what it
// has; where it gets no answer it repeats itself.
func (s *stage) captures(run core.RunID) *mem.Actor {
	a := s.play("capture", func(p *mem.Process) {
		agent, err := s.fleet.View(p).CaptureAgent(context.Background(), run)
		if err != nil || agent == nil || core.Refused(agent.Note(context.Background())) {
			return
		}
		for range 2 {
			if err := agent.Commit(context.Background()); err == nil || core.Refused(err) {
				return
			}
		}
	})
	a.Ready = func() bool { return a.Begun() || s.fleet.Capturing(run) }
	return a
}

// captureFails is an agent that cannot.
func (s *stage) captureFails(run core.RunID) *mem.Actor {
	a := s.play("capture that fails", func(p *mem.Process) {
		_ = s.fleet.View(p).FailCapture(context.Background(), run, "too-large")
	})
	a.Ready = func() bool { return a.Begun() || s.fleet.Capturing(run) }
	return a
}

func (s *stage) captureDies(run core.RunID) *mem.Actor {
	a := s.event("the capture of "+string(run)+" dies", func() { s.fleet.KillCapture(run) })
	a.Ready = func() bool { return s.fleet.Capturing(run) }
	return a
}

// writes has a live run's host take the lease of r's thread, and give it back.
func (s *stage) writes(owner string) *mem.Actor {
	return s.play(owner, func(p *mem.Process) {
		ctx := context.Background()
		if _, err := p.UpdateThread(ctx, threadR, core.AcquireLease{Owner: owner, Now: now(), Until: now().Add(core.LeaseLife)}); err != nil {
			return
		}
		_, _ = p.UpdateThread(ctx, threadR, core.ReleaseLease{Owner: owner})
	})
}

// leave seeds a run whose viewer has left, and lets time pass.
func leave(text string, change func(q *core.RunRequest), wait time.Duration) func(w *world) {
	return func(w *world) {
		w.begin("r", change)
		w.fleet.Write("r", text)
		w.detach("r")
		time.Sleep(wait)
	}
}

// ended seeds a run that has ended by itself, and whose mark waits.
func ended(kind core.ReclaimKind) func(w *world) {
	return func(w *world) {
		w.begin("r", func(q *core.RunRequest) { q.Reclaim = kind })
		w.fleet.Write("r", "done\n")
		w.fleet.Exit("r", 0)
		w.detach("r")
		if _, err := w.sweep(w.store.Process).Run(context.Background(), core.SweepRequest{}); err != nil {
			w.t.Error(err)
		}
	}
}

var shortTTL = func(q *core.RunRequest) { q.TTLSeconds = 30 }

// one is what every scenario of one run r says of its end.
func one(allowed ...core.Status) func(s *stage) {
	return func(s *stage) {
		if r := s.run("r"); !slices.Contains(allowed, r.Status) {
			s.accusations.Errorf("run r ended as %s (%+v), want one of %v", r.Status, r.Error, allowed)
		}
	}
}

// scenarios are what is explored. What core has no use case for is not among them:
// a sandbox that is resumed, a continuation after a pause.
var scenarios = []scenario{
	{
		name:       "a workspace that is captured",
		checkpoint: core.CheckpointFinished,
		seed:       ended(core.ReclaimEnd),
		cast: func(s *stage) {
			s.captures("r")
		},
		deliveries: 2,
		outcome:    one(core.Completed),
		floor:      12000,
	},
	{
		name:       "a capture whose agent dies",
		checkpoint: core.CheckpointFinished,
		seed:       ended(core.ReclaimEnd),
		cast: func(s *stage) {
			s.captureDies("r")
			s.passes(125 * time.Second)
		},
		deliveries: 2,
		outcome:    one(core.Completed),
		floor:      50000,
	},
	{
		name:       "a capture and a live run that writes its thread",
		checkpoint: core.CheckpointFinished,
		seed:       ended(core.ReclaimEnd),
		cast: func(s *stage) {
			s.captures("r")
			s.writes("host")
			s.passes(125 * time.Second)
		},
		deliveries: 1,
		outcome:    one(core.Completed),
		floor:      9900,
	},
	{
		name:       "a capture and a hold",
		checkpoint: core.CheckpointFinished,
		seed:       ended(core.ReclaimEnd),
		cast: func(s *stage) {
			s.captures("r")
			s.holds("r", false)
		},
		deliveries: 1,
		outcome:    one(core.Completed),
		floor:      2500,
	},
	{
		name:       "a hold against reclaim once the workspace is stored",
		checkpoint: core.CheckpointFinished,
		seed: func(w *world) {
			ended(core.ReclaimEnd)(w)
			w.drainQueue(w.store.Process)
			if err := w.fleet.View(w.store.Process).CommitCapture(context.Background(), "r"); err != nil {
				w.t.Error(err)
			}
		},
		cast: func(s *stage) {
			s.holds("r", true)
		},
		deliveries: 2,
		outcome:    one(core.Completed),
		floor:      29000,
	},
	{
		name:       "a capture whose task dies",
		checkpoint: core.CheckpointFinished,
		seed:       ended(core.ReclaimEnd),
		cast: func(s *stage) {
			s.captures("r")
			s.taskDies("r")
		},
		deliveries: 2,
		outcome:    one(core.Completed),
		floor:      50000,
	},
	{
		name:       "a workspace that cannot be stored",
		checkpoint: core.CheckpointFinished,
		limits:     func(l *core.Limits) { l.CheckpointHold = 3 * time.Minute },
		seed:       ended(core.ReclaimEnd),
		cast: func(s *stage) {
			s.captureFails("r")
		},
		deliveries: 2,
		outcome:    one(core.Completed),
		floor:      9600,
	},
	{
		name:       "a captured sandbox that is kept warm",
		checkpoint: core.CheckpointFinished,
		seed:       ended(core.ReclaimIdle),
		cast: func(s *stage) {
			s.captures("r")
			s.captureFails("r")
		},
		deliveries: 2,
		outcome:    one(core.Completed),
		floor:      40000,
	},
	{
		name:       "the thread's next turn after a dead task",
		checkpoint: core.CheckpointFinished,
		seed: func(w *world) {
			ended(core.ReclaimEnd)(w)
			w.fleet.KillTask(w.run("r").TaskARN)
		},
		cast: func(s *stage) {
			s.lost["r"] = true
			q := start("r2")
			q.Thread = "thread-r"
			s.host("next host", q, "r", nil)
		},
		deliveries: 1,
		floor:      12000,
	},
	{
		name: "a finished run, two sweeps and reclaim",
		seed: func(w *world) {
			leave("done\n", nil, 0)(w)
			w.fleet.Exit("r", 0)
		},
		cast: func(s *stage) {
			s.sweeps(2)
		},
		deliveries: 3,
		outcome:    one(core.Completed),
		floor:      6000,
	},
	{
		name: "a sweep that outlives its claim",
		seed: func(w *world) {
			leave("done\n", nil, 0)(w)
			w.fleet.Exit("r", 0)
		},
		cast: func(s *stage) {
			s.sweeps(2)
			s.passes(95 * time.Second)
		},
		deliveries: 1,
		outcome:    one(core.Completed),
		floor:      9000,
	},
	{
		name: "a host that drains its run itself",
		seed: func(w *world) {
			leave("done\n", shortTTL, time.Minute)(w)
			w.fleet.Exit("r", 0)
		},
		cast: func(s *stage) {
			s.drains("host", "r", "done\n")
			s.cancels("r")
			s.sweeps(2)
		},
		deliveries: 1,
		outcome:    one(core.Completed),
		floor:      41000,
	},
	{
		name: "the next turn after the task died",
		seed: func(w *world) {
			ended(core.ReclaimEnd)(w)
			w.fleet.KillTask(w.run("r").TaskARN)
		},
		cast: func(s *stage) {
			q := start("r2")
			q.Thread = "thread-r"
			s.host("next host", q, "r", nil)
		},
		deliveries: 2,
		floor:      12000,
	},
	{
		name: "a host that starts and falls silent",
		cast: func(s *stage) {
			s.host("host", start("r"), "r", nil)
			s.exits("r")
			s.passes(100 * time.Second)
			s.sweeps(1)
		},
		deliveries: 2,
		floor:      6000,
	},
	{
		name: "a start that comes twice",
		cast: func(s *stage) {
			first := s.host("host", start("r"), "r", nil)
			s.host("host again", start("r"), "r", nil).Ready = first.Begun // they are alike
			s.passes(100 * time.Second)
			s.sweeps(1)
		},
		deliveries: 1,
		floor:      44000,
	},
	{
		name: "a launch that is over after its run",
		cast: func(s *stage) {
			s.host("host", start("r"), "r", nil)
			s.cancels("r")
			s.passes(100 * time.Second)
			s.sweeps(1)
		},
		deliveries: 2,
		floor:      34000,
	},
	{
		name: "a launch that outlives its row's time",
		cast: func(s *stage) {
			s.host("host", start("r"), "r", nil)
			s.passes(25 * time.Minute)
			s.sweeps(2)
		},
		deliveries: 2,
		floor:      37000,
	},
	{
		name: "a host that starts its agent late",
		seed: func(w *world) {
			l := w.launcher(w.store.Process)
			r, err := l.Start(w.t.Context(), start("r"))
			if err == nil {
				_, err = l.Launch(w.t.Context(), r, material("r"), core.TaskSpec{Cluster: "c", Container: "agent"})
			}
			if err != nil {
				w.t.Error(err)
			}
			time.Sleep(100 * time.Second)
			if _, err := w.sweep(w.store.Process).Run(w.t.Context(), core.SweepRequest{}); err != nil {
				w.t.Error(err)
			}
			time.Sleep(3 * time.Minute)
		},
		cast: func(s *stage) {
			r := s.run("r")
			s.play("host", func(p *mem.Process) {
				_ = startAgent(s.launcher(p), r)
			})
			s.viewer("viewer", "r", false)
			s.sweeps(1)
		},
		deliveries: 2,
		floor:      12000,
	},
	{
		name: "a viewer who comes back while the agent ends",
		seed: leave("half\n", nil, time.Minute),
		cast: func(s *stage) {
			s.viewer("viewer", "r", false)
			s.exits("r")
			s.sweeps(2)
		},
		deliveries: 1,
		outcome:    one(core.Completed),
		floor:      14000,
	},
	{
		name: "a takeover",
		seed: func(w *world) { w.begin("r", nil) },
		cast: func(s *stage) {
			r := s.run("r")
			s.play("host", func(p *mem.Process) {
				ctx := context.Background()
				if _, err := p.Update(ctx, r.RunKey, core.Renew{Epoch: r.Epoch, Until: now().Add(s.limits.Attachment)}); err == nil {
					_, _ = p.Update(ctx, r.RunKey, core.Detach{Epoch: r.Epoch, Now: now()})
				}
			})
			s.viewer("viewer", "r", true)
			s.exits("r")
			s.passes(100 * time.Second)
			s.sweeps(1)
		},
		deliveries: 1,
		outcome:    one(core.Completed),
		floor:      21000,
	},
	{
		name: "a cancel beside its host",
		seed: func(w *world) {
			w.begin("r", nil)
			w.fleet.Write("r", "unwanted\n")
		},
		cast: func(s *stage) {
			r := s.run("r")
			s.play("host", func(p *mem.Process) {
				ctx := context.Background()
				_, _ = p.Update(ctx, r.RunKey, core.Renew{Epoch: r.Epoch, Until: now().Add(s.limits.Attachment)})
				_, _ = p.Update(ctx, r.RunKey, core.Detach{Epoch: r.Epoch, Now: now()})
			})
			s.cancels("r")
			s.exits("r")
			s.passes(20 * time.Second)
			s.sweeps(1)
		},
		deliveries: 1,
		outcome:    one(core.Completed, core.Aborted),
		floor:      14000,
	},
	{
		name: "an expiry and a viewer who comes back",
		seed: leave("half\n", shortTTL, time.Minute),
		cast: func(s *stage) {
			s.sweeps(2)
			s.viewer("viewer", "r", false)
			s.exits("r")
		},
		deliveries: 1,
		outcome:    one(core.Completed, core.Aborted),
		floor:      27000,
	},
	{
		name: "an expiry and an extension",
		seed: leave("half\n", shortTTL, time.Minute),
		cast: func(s *stage) {
			s.sweeps(1)
			s.play("operator", func(p *mem.Process) { _ = s.operator(p).Extend(context.Background(), key("r"), 3600, ops) })
			s.exits("r")
		},
		deliveries: 2,
		outcome:    one(core.Completed, core.Aborted),
		floor:      7000,
	},
	{
		name: "a hold against an expiry",
		seed: leave("half\n", shortTTL, time.Minute),
		cast: func(s *stage) {
			s.sweeps(2)
			s.holds("r", false)
		},
		deliveries: 2,
		outcome:    one(core.Aborted),
		floor:      52000,
	},
	{
		name: "a hold against reclaim",
		seed: ended(core.ReclaimEnd),
		cast: func(s *stage) {
			s.holds("r", true)
		},
		deliveries: 2,
		outcome:    one(core.Completed),
		floor:      8000,
	},
	{
		name: "a freeze against reclaim",
		seed: ended(core.ReclaimEnd),
		cast: func(s *stage) {
			s.freezes(true)
			s.passes(6 * time.Minute)
		},
		deliveries: 2,
		outcome:    one(core.Completed),
		floor:      38000,
	},
	{
		name: "a freeze against an expiry",
		seed: leave("half\n", shortTTL, time.Minute),
		cast: func(s *stage) {
			s.freezes(true)
			s.sweeps(2)
		},
		deliveries: 1,
		outcome:    one(core.Aborted),
		floor:      15000,
	},
	{
		name:   "two expiries and the breaker",
		limits: func(l *core.Limits) { l.BreakerMost = 1 },
		seed: func(w *world) {
			w.begin("r", shortTTL)
			w.begin("q", shortTTL)
			w.detach("r")
			w.detach("q")
			time.Sleep(time.Minute)
		},
		cast: func(s *stage) {
			s.sweeps(2)
			s.play("operator", func(p *mem.Process) { _ = s.operator(p).Thaw(context.Background(), ops) })
		},
		deliveries: 1,
		outcome:    one(core.Aborted),
		floor:      500,
	},
	{
		name: "a task that dies",
		seed: leave("cut off\n", nil, time.Minute),
		cast: func(s *stage) {
			s.taskDies("r")
			s.exits("r")
			s.sweeps(1)
			s.hint("reap", "r")
		},
		deliveries: 1,
		outcome:    one(core.Completed, core.Failed),
		floor:      17000,
	},
	{
		name: "a task that dies under its host",
		seed: func(w *world) {
			w.begin("r", nil)
			w.fleet.Write("r", "cut off\n")
		},
		cast: func(s *stage) {
			s.taskDies("r")
			s.hint("reap", "r")
			r := s.run("r")
			s.play("host", func(p *mem.Process) {
				ctx := context.Background()
				_, _ = p.Update(ctx, r.RunKey, core.Renew{Epoch: r.Epoch, Until: now().Add(s.limits.Attachment)})
				_, _ = p.Update(ctx, r.RunKey, core.Detach{Epoch: r.Epoch, Now: now()})
			})
			s.passes(40 * time.Second)
		},
		deliveries: 2,
		outcome:    one(core.Failed, core.Aborted),
		floor:      8000,
	},
	{
		name: "a task that ECS forgets",
		seed: leave("cut off\n", nil, time.Minute),
		cast: func(s *stage) {
			s.taskForgotten("r")
			s.sweeps(2)
			s.passes(4 * time.Minute)
		},
		deliveries: 1,
		outcome:    one(core.Failed),
		floor:      3000,
	},
	{
		name: "an agent that dies",
		seed: leave("cut off\n", nil, time.Minute),
		cast: func(s *stage) {
			s.dies("r")
			s.sweeps(2)
			s.passes(3 * time.Minute)
			s.viewer("viewer", "r", false)
		},
		deliveries: 1,
		outcome:    one(core.Failed),
		floor:      37000,
	},
	{
		name: "a sandbox that becomes idle",
		seed: ended(core.ReclaimIdle),
		cast: func(s *stage) {
			s.passes(40 * time.Minute)
			s.sweeps(1)
		},
		deliveries: 3,
		outcome:    one(core.Completed),
		floor:      30000,
	},
	{
		name: "an idle sandbox that is held",
		seed: func(w *world) {
			ended(core.ReclaimIdle)(w)
			w.drainQueue(w.store.Process)
			time.Sleep(40 * time.Minute)
		},
		cast: func(s *stage) {
			s.holds("r", false)
			s.sweeps(2)
		},
		deliveries: 2,
		outcome:    one(core.Completed),
		floor:      50000,
	},
	{
		name: "a pause and its end",
		seed: func(w *world) {
			w.begin("r", nil)
			w.fleet.Write("r", "may I?\n")
		},
		cast: func(s *stage) {
			r := s.run("r")
			s.play("host", func(p *mem.Process) {
				_, _ = p.Update(context.Background(), r.RunKey, core.Interrupt{Epoch: r.Epoch, Now: now(), Until: now().Add(s.limits.PauseTTL)})
			})
			s.cancels("r")
			s.passes(73 * time.Hour)
			s.sweeps(1)
		},
		deliveries: 1,
		outcome:    one(core.Aborted),
		floor:      3600,
	},
	{
		name: "a journal of several pages",
		seed: func(w *world) {
			w.fleet.PageBytes, w.fleet.RestBytes = 160, 0
			leave(strings.Repeat("several pages\n", 25), nil, time.Minute)(w)
			w.fleet.Exit("r", 0)
		},
		cast: func(s *stage) {
			s.sweeps(2)
			s.viewer("viewer", "r", false)
		},
		deliveries: 1,
		outcome:    one(core.Completed),
		floor:      14000,
	},
	{
		name: "the thread's next turn",
		seed: ended(core.ReclaimEnd),
		cast: func(s *stage) {
			q := start("r2")
			q.Thread = "thread-r"
			s.host("next host", q, "r", nil)
		},
		deliveries: 2,
		floor:      13000,
	},
	{
		name:   "two runs and a token a minute",
		limits: func(l *core.Limits) { l.ProbeRate = 1.0 / 60 },
		fair:   true,
		seed: func(w *world) {
			w.left("r", "done\n")
			w.left("q", "done\n")
			w.fleet.Exit("r", 0)
			w.fleet.Exit("q", 0)
		},
		cast: func(s *stage) {
			s.sweeps(2)
			s.passes(time.Minute)
		},
		deliveries: 1,
		outcome:    one(core.Completed),
		floor:      42000,
	},
	{
		name: "a plan, and its application",
		seed: leave("half\n", shortTTL, time.Minute),
		cast: func(s *stage) {
			s.play("plan", func(p *mem.Process) {
				report, err := s.indexed(p).Run(context.Background(), core.SweepRequest{Mode: core.ModePlan, Shards: []int{0}})
				if err == nil && len(report.Plan()) > 0 {
					_, _ = s.indexed(p).Run(context.Background(), core.SweepRequest{Mode: core.ModeApply, Plan: report.Plan()})
				}
			})
			s.viewer("viewer", "r", false)
			s.sweeps(1)
			s.exits("r")
		},
		deliveries: 1,
		outcome:    one(core.Completed, core.Aborted),
		floor:      58000,
	},
}
