package core_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// setups is what sandboxes make of set-ups: each job goes on until it is let to end.
type setups struct {
	calls  []string // ids; with a job behind it, the job's
	jobs   map[string]core.SetupJob
	states map[string]core.SetupState
	ends   func(job core.SetupJob) core.SetupState // of one that is handed over; nil: working
	err    error                                   // of the next call
}

func newSetups() *setups {
	return &setups{jobs: map[string]core.SetupJob{}, states: map[string]core.SetupState{}}
}

func (s *setups) Setup(_ context.Context, _ core.ExecTarget, id string, job *core.SetupJob, _ time.Duration) (core.SetupState, error) {
	if job == nil {
		s.calls = append(s.calls, "ask "+id)
	} else {
		s.calls = append(s.calls, "begin "+id)
	}
	if err := s.err; err != nil {
		s.err = nil
		return core.SetupState{}, err
	}
	if job != nil {
		s.jobs[id] = *job
		s.states[id] = core.SetupState{Phase: core.SetupWorking, Step: "clone"}
		if s.ends != nil {
			s.states[id] = s.ends(*job)
		}
	}
	return s.states[id], nil
}

type secretStore map[string]string

func (s secretStore) Resolve(_ context.Context, ref string) (string, error) {
	if v, ok := s[ref]; ok {
		return v, nil
	}
	return "", core.ErrNotFound
}

const secretRef = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:git"

// planned is a start whose definition has a plan.
func planned(run string) core.StartRequest {
	q := startOf(run, "host")
	q.Definition.Workspace = core.WorkspacePlan{Root: "/w", Source: &core.SourcePlan{Repository: "https://example.com/r.git", Credential: "GIT_TOKEN"}}
	q.Definition.Secrets = []core.SecretPlan{{Name: "GIT_TOKEN", From: secretRef}}
	return q
}

func done(core.SetupJob) core.SetupState { return core.SetupState{Phase: core.SetupDone} }

func setUpSession(h *hosting, s *setups) *core.Session {
	session := h.self()
	session.Setups, session.Secrets = s, secretStore{secretRef: "value"}
	return session
}

// startUntil starts as often as it takes.
func startUntil(h *hosting, s *setups, q core.StartRequest, is func(core.StartReport) bool) core.StartReport {
	h.t.Helper()
	for range 20 {
		report, err := setUpSession(h, s).Start(h.t.Context(), q)
		h.must(err)
		if is(report) {
			return report
		}
		time.Sleep(time.Second)
	}
	h.t.Fatalf("run %s does not get there", q.RunKey)
	return core.StartReport{}
}

func isReady(r core.StartReport) bool { return r.State == core.Ready }

func TestASandboxIsSetUpOnceBeforeItsAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := newHosting(t), newSetups()
		waits := startUntil(h, s, planned("r"), func(r core.StartReport) bool { return r.Waiting == "setup" })
		if h.fleet.Alive("r") || waits.State != core.Provisioning {
			t.Errorf("the agent runs before the set-up is done: %+v", waits)
		}
		startUntil(h, s, planned("r"), func(r core.StartReport) bool { return r.Waiting == "setup" })
		job := s.jobs["setup-r"]
		if job.Values["GIT_TOKEN"] != "value" || job.Dir != "/w" || job.Plan.Workspace.Source == nil || job.Plan.Hash == "" || job.Plan.CloneOnly || !slices.Equal(job.Plan.Secrets, []string{"GIT_TOKEN"}) {
			t.Errorf("job %+v", job)
		}
		s.states["setup-r"] = core.SetupState{Phase: core.SetupDone}
		startUntil(h, s, planned("r"), isReady)
		n := len(s.calls)
		startUntil(h, s, planned("r"), isReady)
		if !slices.Equal(s.calls, []string{"begin setup-r", "ask setup-r", "ask setup-r"}) || len(s.calls) != n {
			t.Errorf("asked %q", s.calls)
		}
		h.check()
	})
}

func TestADefinitionWithoutAPlanCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := newHosting(t), newSetups()
		startUntil(h, s, startOf("r", "host"), isReady)
		if len(s.calls) != 0 {
			t.Errorf("asked %q", s.calls)
		}
	})
}

// TestALostCallAndAKilledWorkerAreMadeUpFor by handing the same job over once more.
func TestALostCallAndAKilledWorkerAreMadeUpFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := newHosting(t), newSetups()
		s.err = &core.ExecError{Healing: core.Retry, Reason: "stream-cut"}
		startUntil(h, s, planned("r"), func(r core.StartReport) bool { return r.Waiting == "task" })
		startUntil(h, s, planned("r"), func(r core.StartReport) bool { return r.Waiting == "setup" })
		first := s.jobs["setup-r"].Token
		s.states["setup-r"] = core.SetupState{Phase: core.SetupFailed, Code: core.SetupAbandoned}
		s.ends = done
		startUntil(h, s, planned("r"), isReady)
		want := []string{"begin setup-r", "ask setup-r", "begin setup-r", "ask setup-r", "begin setup-r"}
		if !slices.Equal(s.calls, want) || s.jobs["setup-r"].Token != first || first == "" {
			t.Errorf("asked %q, want %q", s.calls, want)
		}
	})
}

func TestAFailedSetupEndsAPrivateSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := newHosting(t), newSetups()
		s.ends = func(core.SetupJob) core.SetupState {
			return core.SetupState{Phase: core.SetupFailed, Code: "step-failed", Message: "step g/test: exit status 1", Step: "g/test", Tail: "no such module"}
		}
		_, err := setUpSession(h, s).Start(t.Context(), planned("r"))
		refusedFor(t, "start", err, "setup-failed")
		if !strings.Contains(err.Error(), "step g/test: exit status 1: no such module") {
			t.Errorf("told %v", err)
		}
		if r := h.run("r"); r.Status != core.Failed || r.Error.Code != "setup-failed" {
			t.Errorf("run %+v, error %+v", r, r.Error)
		}
		h.drainQueue(h.store.Process)
		if n := len(h.fleet.Running()); n != 0 {
			t.Errorf("%d tasks run", n)
		}
		h.check()
	})
}

func TestAnImageWithoutTheBinaryIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := newHosting(t), newSetups()
		s.err = &core.JournalError{Op: "setup", Healing: core.Configuration, Reason: core.ReasonAgentMissing}
		_, err := setUpSession(h, s).Start(t.Context(), planned("r"))
		refusedFor(t, "start", err, core.ReasonAgentMissing)
		if !strings.Contains(err.Error(), "want sandkeeper-agent in the image") {
			t.Errorf("start: %v", err)
		}
		without := h.self()
		without.Secrets = secretStore{secretRef: "value"}
		q := planned("r2")
		q.Thread = "t2"
		_, err = without.Start(t.Context(), q)
		refusedFor(t, "start", err, "setup-failed")
	})
}

// TestAHeadIsRestoredBetweenTheCloneAndTheRest: the state of a repository needs the
// clone, and the rest needs the files.
func TestAHeadIsRestoredBetweenTheCloneAndTheRest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h, s := keepingHosting(t), newSetups()
		s.ends = done
		first := h.finished("one", "a", tree{"f": "1"})
		h.drainQueue(h.store.Process)
		h.fleet.KillTask(first.Run.TaskARN)
		q := planned("two")
		startUntil(h, s, q, func(r core.StartReport) bool { return r.Waiting == "restore" })
		if !slices.Equal(s.calls, []string{"begin clone-two"}) {
			t.Errorf("before the restore: %q", s.calls)
		}
		if job := s.jobs["clone-two"]; !job.Plan.CloneOnly || job.Plan.Restore != "" || job.Values["GIT_TOKEN"] != "value" {
			t.Errorf("clone %+v", job)
		}
		h.restoredNow()
		report := startUntil(h, s, q, isReady)
		if !slices.Equal(s.calls, []string{"begin clone-two", "begin setup-two"}) || report.RestoredFrom != "checkpoint-one" {
			t.Errorf("asked %q, restored %q", s.calls, report.RestoredFrom)
		}
		if job := s.jobs["setup-two"]; job.Plan.Restore != core.CheckpointOf("two") || job.Plan.CloneOnly {
			t.Errorf("set-up %+v", job)
		}
		h.check()
	})
}

func TestSetupScriptsAnswerIsWholeOrNone(t *testing.T) {
	whole := core.AppendJournalAnswer(nil, []string{"state=18"}, []byte(`{"state":"failed"}`))
	if state, err := core.ParseSetup(whole); err != nil || state.Phase != core.SetupFailed {
		t.Errorf("%+v, %v", state, err)
	}
	if state, err := core.ParseSetup(core.AppendJournalAnswer(nil, []string{"state=0"})); err != nil || state.Phase != core.SetupUnknown {
		t.Errorf("%+v, %v", state, err)
	}
	for _, out := range [][]byte{whole[:len(whole)-1], nil, core.AppendJournalAnswer(nil, []string{"state=3"}, []byte(`{"s`)), core.AppendJournalAnswer(nil, []string{"state=2"}, []byte(`{}x`))} {
		if _, err := core.ParseSetup(out); err == nil {
			t.Errorf("took %q", out)
		}
	}
	_, err := core.ParseSetup(core.AppendJournalAnswer(nil, []string{"refused=agent-missing", "healing=configuration"}))
	if e, ok := errors.AsType[*core.JournalError](err); !ok || e.Reason != core.ReasonAgentMissing || e.Healing != core.Configuration {
		t.Errorf("%v", err)
	}
}

// TestAHalfPreparedSandboxIsNoHeritage: a run that goes on for one which was paused in its
// set-up gets a sandbox of its own, and that is set up.
func TestAHalfPreparedSandboxIsNoHeritage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := newHosting(t), newSetups()
		first := startUntil(h, s, planned("ask"), func(r core.StartReport) bool { return r.Waiting == "setup" })
		_, err := host{h, "ask", "host"}.interrupt()
		h.must(err)
		q := planned("r")
		q.Parent = "ask"
		s.ends = done
		report := startUntil(h, s, q, func(r core.StartReport) bool {
			h.drainQueue(h.store.Process)
			return isReady(r)
		})
		if report.Run.TaskARN == first.Run.TaskARN || report.Ensured != core.EnsuredCreated || s.jobs["setup-r"].ID == "" {
			t.Errorf("continued %+v, set-ups %q", report, s.calls)
		}
		if n := len(h.fleet.Running()); n != 1 {
			t.Errorf("%d tasks run", n)
		}
		h.check()
	})
}

// TestATaskThatDiesBeforeItsAgentTakesNoWork with it: nothing is owed of it, and no loss is
// told to the thread's next run.
func TestATaskThatDiesBeforeItsAgentTakesNoWork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHosting(t)
		h.checkpoint = core.CheckpointAlways
		report, err := setUpSession(h, newSetups()).Start(t.Context(), planned("r"))
		h.must(err)
		if report.Waiting != "setup" {
			t.Fatalf("it begins: %+v", report)
		}
		h.fleet.KillTask(h.run("r").TaskARN)
		for range 10 {
			time.Sleep(time.Minute)
			h.tick()
		}
		if r := h.run("r"); r.Status != core.Failed || r.Checkpoint != (core.RunCheckpoint{}) {
			t.Errorf("run %s, checkpoint %+v", r.Status, r.Checkpoint)
		}
		h.check()
	})
}
