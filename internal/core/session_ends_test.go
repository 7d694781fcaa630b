package core_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// hooked are the functions of an installation, in memory: what they were told, and what
// the one that is waited for fails with.
type hooked struct {
	told []string
	fail error
}

func (f *hooked) Invoke(_ context.Context, function string, payload []byte) ([]byte, error) {
	f.tell(function, payload)
	return nil, f.fail
}

func (f *hooked) InvokeAsync(_ context.Context, function string, payload []byte) error {
	f.tell(function, payload)
	return nil
}

func (f *hooked) tell(function string, payload []byte) {
	var e core.HookEvent
	if err := json.Unmarshal(payload, &e); err != nil || function != "on-"+string(e.Hook) {
		f.told = append(f.told, fmt.Sprintf("%s with %s: %v", function, payload, err))
		return
	}
	f.told = append(f.told, string(e.Hook)+" "+string(e.Run))
}

// prepared are set-ups that end at once, as state says.
type prepared struct{ state core.SetupState }

func (p prepared) Setup(context.Context, core.ExecTarget, string, *core.SetupJob, time.Duration) (core.SetupState, error) {
	return p.state, nil
}

// ending is a world in which runs end.
type ending struct {
	*hosting
	hooks *hooked
	setup core.SetupState
	q     core.StartRequest
	me    host
}

func (e *ending) self() *core.Session { return e.with(e.hosting.self()) }

func (e *ending) with(s *core.Session) *core.Session {
	s.Setups = prepared{e.setup}
	s.Functions, s.HostFunctions = e.hooks, []string{"on-ready", "on-error", "on-destroyed"}
	return s
}

// started is the run r at work in a sandbox made for it.
func (e *ending) started() {
	e.h().must(e.start())
	e.fleet.Write("r", "at work\n")
}

func (e *ending) h() *hosting { return e.hosting }

func (e *ending) start() error {
	for range 20 {
		report, err := e.self().Start(e.t.Context(), e.q)
		if err != nil || report.State == core.Ready {
			return err
		}
		if report.Waiting == "restore" {
			e.restoredNow()
		}
		e.settle()
		time.Sleep(time.Second)
	}
	e.t.Fatal("never ready")
	return nil
}

// before has an earlier turn of the thread leave its sandbox warm, and a head.
func (e *ending) before() string {
	q := e.q
	e.q = startOf("r0", "zero")
	e.q.Definition = q.Definition
	e.must(e.start())
	e.fleet.Exit("r0", 0)
	first, err := host{e.hosting, "r0", "zero"}.finish(nil)
	e.must(err)
	e.captured(tree{"f": "1"})
	_, err = host{e.hosting, "r0", "zero"}.finish(nil)
	e.must(err)
	e.settle()
	e.q = q
	return first.Run.TaskARN
}

// settle has the reclaim of all messages done, hooks and all.
func (e *ending) settle() {
	for range 3 {
		for _, job := range e.store.TakeJobs() {
			c := e.reclaimer(e.store.Process)
			c.Functions = e.hooks
			_, _ = c.Do(e.t.Context(), job)
		}
		if e.fleet.Capturing("r") {
			e.must(e.fleet.View(e.store.Process).CommitCapture(e.t.Context(), "r"))
		}
	}
}

// swept has sweeps look each minute until the run has ended, and what that owes is done.
func (e *ending) swept() {
	left := 6
	for range 20 {
		time.Sleep(time.Minute)
		e.sweepAs(e.store.Process)
		e.settle()
		if e.run("r").Status.Terminal() {
			if left--; left == 0 {
				return
			}
		}
	}
}

// unstoppable has StopTask fail three times, and the run's mark and the task's row stay due.
func (e *ending) unstoppable(phase string) {
	for range 3 {
		for _, job := range e.store.TakeJobs() {
			c := e.reclaimer(e.failing("stop task"))
			c.Functions = e.hooks
			outcome, err := c.Do(e.t.Context(), job)
			failed, ok := errors.AsType[*core.DestroyError](err)
			if outcome != core.ReclaimDestroyFailed || !ok || failed.Phase != phase {
				e.t.Errorf("%s, %v, want a task that is not destroyed in phase %s", outcome, err, phase)
			}
		}
		if r, n := e.run("r"), len(e.fleet.Running()); r.Row != core.RowReclaim || n != 1 || strings.Contains(strings.Join(e.hooks.told, ", "), "destroyed") {
			e.t.Errorf("the mark is %q, %d tasks run, told %v", r.Row, n, e.hooks.told)
		}
		time.Sleep(e.limits.ReclaimBackoffMax)
		e.sweepAs(e.store.Process)
	}
}

func (e *ending) finish() {
	report, err := e.me.finish(nil)
	e.must(err)
	if report.Waiting == "checkpoint" {
		e.captured(tree{"f": "2"})
		_, err = e.me.finish(nil)
		e.must(err)
	}
}

// unwatched is a sandbox whose side journal cannot be read.
type unwatched struct {
	core.Prober
	asked int
}

func (u *unwatched) Page(ctx context.Context, q core.PageRequest) (core.PageReply, error) {
	if q.Files {
		u.asked++
		return core.PageReply{}, &core.JournalError{Op: "page", Healing: core.Configuration, Reason: "unsafe-journal"}
	}
	return u.Prober.Page(ctx, q)
}

// fate is what an end leaves behind.
type fate struct {
	status     core.Status
	code       string // of the record's error
	sandbox    string // gone, warm, or serving
	lease      bool   // the thread has a writer still
	head       core.CheckpointID
	checkpoint core.CheckpointState
	whole      bool // the log is closed, with all that the agent wrote
	told       string
}

func (e *ending) fate() fate {
	r := e.run("r")
	out := fate{status: r.Status, checkpoint: r.Checkpoint.State, told: strings.Join(e.hooks.told, ", "), sandbox: "gone"}
	if r.Error != nil {
		out.code = r.Error.Code
	}
	if n := len(e.fleet.Running()); n > 0 {
		out.sandbox = "serving"
		if box, err := e.store.Sandbox(e.t.Context(), r.SandboxKey); err == nil && box.IdleSince != 0 {
			out.sandbox = "warm"
		}
	}
	th, err := e.store.Thread(e.t.Context(), thread("t"))
	if err == nil {
		out.lease, out.head = th.Lease.Live(now()), th.Head
	}
	out.whole = r.Transcript != nil && r.Transcript.Complete && e.transcript("r") == "at work\n"
	return out
}

// ends are all ways in which a host's part in a run ends, or the run itself (MW-1 to MW-10,
// SN-17 to SN-20, EN-11, and the hazards that are marked there).
var ends = []struct {
	name string
	plan func(d *core.Definition)
	act  func(e *ending)
	want fate
}{
	{"a disconnect is bookkeeping: the agent works on, the lease is given up", nil, func(e *ending) {
		e.started()
		_, err := e.me.detach()
		e.must(err)
	}, fate{status: core.Running, sandbox: "serving", told: "ready r"}},
	{"a second disconnect changes nothing", nil, func(e *ending) {
		e.started()
		for range 2 {
			_, err := e.me.detach()
			e.must(err)
		}
	}, fate{status: core.Running, sandbox: "serving", told: "ready r"}},
	{"a host that dies lapses: the run is detached, and swept when its agent has ended", nil, func(e *ending) {
		e.started()
		e.fleet.Exit("r", 0)
		e.swept()
	}, fate{status: core.Completed, sandbox: "warm", head: "checkpoint-r", checkpoint: core.CheckpointDone, whole: true, told: "ready r"}},
	{"an abort without a cancel is a disconnect", nil, func(e *ending) {
		e.started()
		report, err := e.me.detach()
		e.must(err)
		if report.Cancel {
			e.t.Error("a cancel that nobody asked for")
		}
	}, fate{status: core.Running, sandbox: "serving", told: "ready r"}},
	{"an abort with a cancel ends the sandbox, whatever the definition keeps", nil, func(e *ending) {
		e.started()
		_, err := e.self().Cancel(e.t.Context(), core.CancelRequest{RunKey: key("r")})
		e.must(err)
		report, err := e.me.renew()
		e.must(err)
		if !report.Cancel {
			e.t.Error("the driving host does not hear of the cancel within one renewal")
		}
		_, err = e.me.cancel()
		e.must(err)
	}, fate{status: core.Aborted, code: "cancelled", sandbox: "gone", whole: true, told: "ready r, destroyed r"}},
	{"a cancel reaches a run whose host is gone", nil, func(e *ending) {
		e.started()
		_, err := e.self().Cancel(e.t.Context(), core.CancelRequest{RunKey: key("r")})
		e.must(err)
		e.swept()
	}, fate{status: core.Aborted, code: "cancelled", sandbox: "gone", whole: true, told: "ready r, destroyed r"}},
	{"a run that is not durable ends with its host", func(d *core.Definition) { d.OnLapse = core.LapseCancels }, func(e *ending) {
		e.started()
		e.swept()
	}, fate{status: core.Aborted, code: "cancelled", sandbox: "gone", whole: true, told: "ready r, destroyed r"}},
	{"a finish keeps the sandbox warm and stores the workspace", nil, func(e *ending) {
		e.started()
		e.fleet.Exit("r", 0)
		e.finish()
	}, fate{status: core.Completed, sandbox: "warm", head: "checkpoint-r", checkpoint: core.CheckpointDone, whole: true, told: "ready r"}},
	{"a watch that cannot be read holds up nothing that follows", func(d *core.Definition) { d.FileEvents = core.FileEventsPlan{Enabled: true} }, func(e *ending) {
		e.started()
		e.fleet.Exit("r", 0)
		s := e.self()
		files := &unwatched{Prober: s.Prober}
		s.Prober = files
		for range 2 {
			report, err := s.Finish(e.t.Context(), core.FinishRequest{RunKey: key("r"), Host: e.q.Host})
			e.must(err)
			if report.Waiting == "checkpoint" {
				e.captured(tree{"f": "2"})
			}
		}
		if files.asked == 0 || e.run("r").Files != nil {
			e.t.Errorf("the side journal was asked for %d times, and %+v kept", files.asked, e.run("r").Files)
		}
	}, fate{status: core.Completed, sandbox: "warm", head: "checkpoint-r", checkpoint: core.CheckpointDone, whole: true, told: "ready r"}},
	{"a finish ends the sandbox where the definition says so, after the checkpoint", func(d *core.Definition) { d.DestroyOnComplete = true }, func(e *ending) {
		e.started()
		e.fleet.Exit("r", 0)
		e.finish()
	}, fate{status: core.Completed, sandbox: "gone", head: "checkpoint-r", checkpoint: core.CheckpointDone, whole: true, told: "ready r, destroyed r"}},
	{"a task that cannot be stopped is stopped later, and only then is told as destroyed", func(d *core.Definition) { d.DestroyOnComplete = true }, func(e *ending) {
		e.started()
		e.fleet.Exit("r", 0)
		e.finish()
		e.unstoppable("finish")
	}, fate{status: core.Completed, sandbox: "gone", head: "checkpoint-r", checkpoint: core.CheckpointDone, whole: true, told: "ready r, destroyed r"}},
	{"a cancelled task that cannot be stopped is stopped later", nil, func(e *ending) {
		e.started()
		_, err := e.me.cancel()
		e.must(err)
		e.unstoppable("abort")
	}, fate{status: core.Aborted, code: "cancelled", sandbox: "gone", whole: true, told: "ready r, destroyed r"}},
	{"the task of a run that its host gave up and that cannot be stopped is stopped later", nil, func(e *ending) {
		e.started()
		_, err := e.self().Fail(e.t.Context(), core.FailRequest{RunKey: key("r"), Host: e.q.Host, Error: core.RunFault{Code: "host"}})
		e.must(err)
		e.unstoppable("error")
	}, fate{status: core.Failed, code: "host", sandbox: "gone", whole: true, told: "ready r, error r, destroyed r"}},
	{"a finish by a host that had left owes its reclaim", func(d *core.Definition) { d.DestroyOnComplete = true }, func(e *ending) {
		e.started()
		_, err := e.me.detach()
		e.must(err)
		e.fleet.Exit("r", 0)
		e.finish()
	}, fate{status: core.Completed, sandbox: "gone", head: "checkpoint-r", checkpoint: core.CheckpointDone, whole: true, told: "ready r, destroyed r"}},
	{"an agent's error is a finish: the sandbox is kept", nil, func(e *ending) {
		e.started()
		e.fleet.Exit("r", 3)
		e.finish()
	}, fate{status: core.Failed, code: "agent-exit", sandbox: "warm", head: "checkpoint-r", checkpoint: core.CheckpointDone, whole: true, told: "ready r"}},
	{"a host's error ends the sandbox, with that error", nil, func(e *ending) {
		e.started()
		_, err := e.self().Fail(e.t.Context(), core.FailRequest{RunKey: key("r"), Host: e.q.Host, Error: core.RunFault{Code: "host"}})
		e.must(err)
	}, fate{status: core.Failed, code: "host", sandbox: "gone", whole: true, told: "ready r, error r, destroyed r"}},
	{"a host's error after its agent's end is a finish, and no error is told", nil, func(e *ending) {
		e.started()
		e.fleet.Exit("r", 0)
		_, err := e.self().Fail(e.t.Context(), core.FailRequest{RunKey: key("r"), Host: e.q.Host, Error: core.RunFault{Code: "host"}})
		e.must(err)
	}, fate{status: core.Completed, sandbox: "gone", head: "checkpoint-r", checkpoint: core.CheckpointDone, whole: true, told: "ready r, destroyed r"}},
	{"a host's error after the log was sealed is a finish, and no error is told", nil, func(e *ending) {
		e.started()
		e.fleet.Exit("r", 0)
		_, err := e.self().Tail(e.t.Context(), core.TailRequest{RunKey: key("r"), Host: e.q.Host})
		e.must(err)
		if e.run("r").Sealed == nil {
			e.t.Error("the log is not sealed")
		}
		_, err = e.self().Fail(e.t.Context(), core.FailRequest{RunKey: key("r"), Host: e.q.Host, Error: core.RunFault{Code: "host"}})
		e.must(err)
	}, fate{status: core.Completed, sandbox: "warm", head: "checkpoint-r", checkpoint: core.CheckpointDone, whole: true, told: "ready r"}},
	{"an agent that was told to end has no error of its own", nil, func(e *ending) {
		e.started()
		e.fleet.Exit("r", 143)
		_, err := e.me.cancel()
		e.must(err)
		v, err := e.self().Get(e.t.Context(), core.GetRequest{RunKey: key("r")})
		e.must(err)
		if v.Ending != core.EndCancelled || !strings.Contains(v.Error.Message, "exit status 143, read after the run was to end (cancelled)") {
			e.t.Errorf("ending %q, error %+v", v.Ending, v.Error)
		}
		var said strings.Builder
		for _, p := range core.Explain(core.Known{Run: e.run("r")}, now(), e.limits).Evidence {
			fmt.Fprintf(&said, "%s: %s\n", p.What, p.Says)
		}
		for _, want := range []string{"cancel: somebody cancelled it", "ending: it was decided to end it: cancelled"} {
			if !strings.Contains(said.String(), want) {
				e.t.Errorf("explained without %q:\n%s", want, &said)
			}
		}
	}, fate{status: core.Failed, code: "agent-exit", sandbox: "gone", head: "checkpoint-r", checkpoint: core.CheckpointDone, whole: true, told: "ready r, destroyed r"}},
	{"a host that dies right after it decided an end is waited for no longer than needed", nil, func(e *ending) {
		e.started()
		s := e.with(e.session(e.failing("terminate")))
		_, err := s.Fail(e.t.Context(), core.FailRequest{RunKey: key("r"), Host: e.q.Host, Error: core.RunFault{Code: "host"}})
		e.must(err)
		time.Sleep(core.EndGrace)
		for range 2 {
			e.sweepAs(e.store.Process)
		}
		if r := e.run("r"); !r.Status.Terminal() {
			e.t.Errorf("after %s the run is %s", core.EndGrace, r.Status)
		}
		e.swept()
	}, fate{status: core.Failed, code: "host", sandbox: "gone", whole: true, told: "ready r, error r, destroyed r"}},
	{"a warm sandbox ends after the definition's own time", func(d *core.Definition) { d.IdleTTLSeconds = 20 }, func(e *ending) {
		e.started()
		e.fleet.Exit("r", 0)
		e.finish()
		e.settle()
		if box := e.box("r"); box.DueAt != now().Add(20*time.Second) {
			e.t.Errorf("idle since %d, due at %d", box.IdleSince, box.DueAt)
		}
		time.Sleep(20 * time.Second)
		e.sweepAs(e.store.Process)
	}, fate{status: core.Completed, sandbox: "gone", head: "checkpoint-r", checkpoint: core.CheckpointDone, whole: true, told: "ready r, destroyed r"}},
	{"a pause keeps everything but the lease", nil, func(e *ending) {
		e.started()
		_, err := e.me.interrupt()
		e.must(err)
	}, fate{status: core.Interrupted, sandbox: "serving", told: "ready r"}},
	{"a pause past its time is an end", func(d *core.Definition) { d.PauseTTLSeconds = 60 }, func(e *ending) {
		e.started()
		_, err := e.me.interrupt()
		e.must(err)
		e.swept()
	}, fate{status: core.Aborted, code: "expired", sandbox: "gone", whole: true, told: "ready r, destroyed r"}},
	{"a lost lease fails the finish, and nothing is stored", nil, func(e *ending) {
		e.started()
		e.fleet.Exit("r", 0)
		_, err := e.store.UpdateThread(e.t.Context(), thread("t"), core.ReleaseLease{Owner: "run:r"})
		e.must(err)
		_, err = e.store.UpdateThread(e.t.Context(), thread("t"), core.AcquireLease{Owner: "save:other", Now: now(), Until: now().Add(core.LeaseLife)})
		e.must(err)
		_, err = e.me.finish(nil)
		refusedFor(e.t, "finish", err, "writer-lost")
	}, fate{status: core.Running, sandbox: "serving", lease: true, told: "ready r"}},
	{"a restore that fails ends the sandbox that was made for it", nil, func(e *ending) {
		e.fleet.KillTask(e.before())
		e.hooks.told = nil
		e.keep.began = core.AgentMissing
		refusedFor(e.t, "start", e.start(), "restore-failed")
		e.keep.began = ""
	}, fate{status: core.Failed, code: "restore-failed", sandbox: "gone", head: "checkpoint-r0", told: "error r, destroyed r0, destroyed r"}},
	{"a secret that is not there ends the sandbox that was made for it", func(d *core.Definition) {
		d.Secrets = []core.SecretPlan{{Name: "A", From: "arn:aws:ssm:us-east-1:000000000000:parameter/none"}}
	}, func(e *ending) {
		refusedFor(e.t, "start", e.start(), "secret-unavailable")
	}, fate{status: core.Failed, code: "secret-unavailable", sandbox: "gone", told: "error r, destroyed r"}},
	{"a bootstrap that fails ends the sandbox that was made for it", func(d *core.Definition) { d.Workspace.Instructions = "x" }, func(e *ending) {
		e.setup = core.SetupState{Phase: core.SetupFailed, Code: "step-failed", Message: "no"}
		refusedFor(e.t, "start", e.start(), "setup-failed")
	}, fate{status: core.Failed, code: "setup-failed", sandbox: "gone", told: "error r, destroyed r"}},
	{"a ready hook that fails ends a sandbox that was made for it", nil, func(e *ending) {
		e.hooks.fail = &core.FunctionError{Function: "on-ready", Message: "no"}
		refusedFor(e.t, "start", e.start(), "hook-failed")
	}, fate{status: core.Failed, code: "hook-failed", sandbox: "gone", told: "ready r, error r, destroyed r"}},
	{"a ready hook that fails leaves a sandbox that was there", nil, func(e *ending) {
		e.before()
		e.hooks.told, e.hooks.fail = nil, &core.FunctionError{Function: "on-ready", Message: "no"}
		refusedFor(e.t, "start", e.start(), "hook-failed")
	}, fate{status: core.Failed, code: "hook-failed", sandbox: "warm", head: "checkpoint-r0", told: "ready r, error r"}},
	{"a ready hook that is not heard of is told again", nil, func(e *ending) {
		e.hooks.fail = context.DeadlineExceeded
		report, err := e.self().Start(e.t.Context(), e.q)
		e.must(err)
		if report.Waiting != "ready-hook" {
			e.t.Errorf("start waits for %q", report.Waiting)
		}
		e.hooks.fail = nil
		e.started()
	}, fate{status: core.Running, sandbox: "serving", lease: true, told: "ready r, ready r"}},
	{"a cancel during ensure ends the half-built sandbox", nil, func(e *ending) {
		s := e.self()
		s.Launcher.Provider = lostAnswer{s.Launcher.Provider, true}
		if _, err := s.Start(e.t.Context(), e.q); err == nil {
			e.t.Fatal("started")
		}
		_, err := e.me.cancel()
		e.must(err)
		for range 15 {
			time.Sleep(2 * time.Minute)
			e.sweepAs(e.store.Process)
			e.settle()
		}
	}, fate{status: core.Aborted, code: "cancelled", sandbox: "gone", told: "destroyed r"}},
	{"a cancel during the restore owes nothing of a tree that is half there", func(d *core.Definition) { d.Checkpoint = core.CheckpointAlways }, func(e *ending) {
		e.fleet.KillTask(e.before())
		e.hooks.told = nil
		report, err := e.self().Start(e.t.Context(), e.q)
		e.must(err)
		if report.Waiting != "restore" {
			e.t.Fatalf("start waits for %q", report.Waiting)
		}
		_, err = e.me.cancel()
		e.must(err)
	}, fate{status: core.Aborted, code: "cancelled", sandbox: "gone", head: "checkpoint-r0", told: "destroyed r0, destroyed r"}},
	{"a sandbox that is too old is reclaimed, and another made", func(d *core.Definition) { d.MaxAgeSeconds = 60 }, func(e *ending) {
		e.before()
		e.hooks.told = nil
		time.Sleep(2 * time.Minute)
		e.started()
	}, fate{status: core.Running, sandbox: "serving", lease: true, head: "checkpoint-r0", told: "destroyed r0, ready r"}},
}

// TestEnds: what each end does to sandbox, record, log, lease, checkpoint and hooks.
func TestEnds(t *testing.T) {
	for _, c := range ends {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := keepingHosting(t)
				e := &ending{hosting: h, hooks: &hooked{}, setup: core.SetupState{Phase: core.SetupDone}, q: startOf("r", "one"), me: host{h, "r", "one"}}
				e.q.Definition.Hooks = core.HookPlan{Ready: "on-ready", Error: "on-error", Destroyed: "on-destroyed"}
				if c.plan != nil {
					c.plan(e.q.Definition)
				}
				c.act(e)
				for range 5 { // what is owed is done, though no run begins or ends by it
					e.settle()
					time.Sleep(time.Second)
				}
				if got := e.fate(); got != c.want {
					t.Errorf("got  %+v\nwant %+v", got, c.want)
				}
				h.check()
			})
		})
	}
}

// TestWhatFailsBesideAnEndIsLogged with the phase; what is reported is the end itself, or
// the error for which it came.
func TestWhatFailsBesideAnEndIsLogged(t *testing.T) {
	cases := []struct {
		name, phase, fails string
		plan               func(e *ending)
		end                func(e *ending, s *core.Session) error
		code               string // of the error that is reported
	}{
		{"the lease of a disconnect", "disconnect", "release lease", nil, func(e *ending, s *core.Session) error {
			_, err := s.Detach(e.t.Context(), core.HostRequest{RunKey: key("r"), Host: e.q.Host})
			return err
		}, ""},
		{"the lease of a pause", "pause", "release lease", nil, func(e *ending, s *core.Session) error {
			_, err := s.Interrupt(e.t.Context(), core.HostRequest{RunKey: key("r"), Host: e.q.Host})
			return err
		}, ""},
		{"the lease of a finish", "finish", "release lease", func(e *ending) { e.q.Definition.Checkpoint = core.CheckpointNone }, func(e *ending, s *core.Session) error {
			e.fleet.Exit("r", 0)
			_, err := s.Finish(e.t.Context(), core.FinishRequest{RunKey: key("r"), Host: e.q.Host})
			return err
		}, ""},
		{"the lease of an abort", "abort", "release lease", nil, func(e *ending, s *core.Session) error {
			_, err := s.Cancel(e.t.Context(), core.CancelRequest{RunKey: key("r"), Host: e.q.Host})
			return err
		}, ""},
		{"the lease of an error", "error", "release lease", nil, func(e *ending, s *core.Session) error {
			_, err := s.Fail(e.t.Context(), core.FailRequest{RunKey: key("r"), Host: e.q.Host, Error: core.RunFault{Code: "host"}})
			return err
		}, ""},
		{"the agent's end of an abort", "abort", "terminate", nil, func(e *ending, s *core.Session) error {
			_, err := s.Cancel(e.t.Context(), core.CancelRequest{RunKey: key("r"), Host: e.q.Host})
			return err
		}, ""},
		{"the agent's end of an error", "error", "terminate", nil, func(e *ending, s *core.Session) error {
			_, err := s.Fail(e.t.Context(), core.FailRequest{RunKey: key("r"), Host: e.q.Host, Error: core.RunFault{Code: "host"}})
			return err
		}, ""},
		{"the end of a sandbox whose set-up failed", "error", "finish", func(e *ending) {
			e.q.Definition.Workspace.Instructions = "x"
			e.setup = core.SetupState{Phase: core.SetupFailed, Code: "step-failed", Message: "no"}
		}, func(e *ending, s *core.Session) error {
			_, err := s.Start(e.t.Context(), e.q)
			return err
		}, "setup-failed"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := keepingHosting(t)
				e := &ending{hosting: h, hooks: &hooked{}, setup: core.SetupState{Phase: core.SetupDone}, q: startOf("r", "one"), me: host{h, "r", "one"}}
				if c.plan != nil {
					c.plan(e)
				}
				if c.code == "" {
					e.started()
				}
				var logged strings.Builder
				s := e.with(e.session(e.failing(c.fails)))
				s.Logger = slog.New(slog.NewTextHandler(&logged, nil))
				err := c.end(e, s)
				if c.code == "" {
					e.must(err)
				} else {
					refusedFor(t, "start", err, c.code)
				}
				if n := strings.Count(logged.String(), "phase="+c.phase+" "); n != 1 {
					t.Errorf("logged %d times with phase %s:\n%s", n, c.phase, &logged)
				}
				h.check()
			})
		})
	}
}
