package coretest

import (
	"context"
	"errors"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Site is a provider and what its checks need to know of it.
type Site struct {
	Provider core.Provider
	// Spec is a sandbox that can be made; the checks give it tokens.
	Spec core.TaskSpec
	// Unknown is where no sandbox has ever been.
	Unknown core.ExecTarget
	// Await returns once holds does, and fails the test if it never does.
	Await func(what string, holds func() bool)
}

// made makes a sandbox under a token and waits until it serves.
func (s Site) made(t *testing.T, token string) core.ExecTarget {
	t.Helper()
	spec := s.Spec
	spec.Token, spec.StartedBy = token, core.StartedBy("test", core.InstanceID(token))
	arn, err := s.Provider.Start(t.Context(), spec)
	must(t, err)
	at := core.ExecTarget{Cluster: spec.Cluster, TaskARN: arn, Container: spec.Container}
	s.settles(t, at, core.ResumeRunning)
	return at
}

// settles waits until a sandbox is so, and tells how it is.
func (s Site) settles(t *testing.T, at core.ExecTarget, want core.ResumeState) core.Resumption {
	t.Helper()
	var found core.Resumption
	s.Await("the sandbox is "+string(want), func() bool {
		var err error
		found, err = s.Provider.Resume(t.Context(), at)
		must(t, err)
		return found.State == want
	})
	return found
}

// begun begins the agent of a run as soon as the sandbox can be reached.
func (s Site) begun(t *testing.T, at core.ExecTarget, run core.RunID) core.JournalStarted {
	t.Helper()
	agent := core.JournalStart{Run: run, Nonce: "00112233445566778899aabbccddeeff", Argv: []string{"true"}}
	var started core.JournalStarted
	s.Await("the agent begins", func() bool {
		var err error
		started, err = s.Provider.StartAgent(t.Context(), at, agent, nil)
		if _, ok := errors.AsType[*core.ExecError](err); ok {
			return false // of one too young, exec says no more than that it cannot
		}
		must(t, err)
		return true
	})
	return started
}

// over is a context that has ended.
func over(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// Provider checks the contract of [core.Provider]. open returns one that has made nothing.
func Provider(t *testing.T, open func(t *testing.T) Site) {
	t.Run("Start makes a sandbox for a token, once", func(t *testing.T) {
		s := open(t)
		one, two := s.made(t, "i1"), s.made(t, "i2")
		equal(t, "asked again under its token", s.made(t, "i1"), one)
		if one == two {
			t.Errorf("two tokens have one sandbox: %+v", one)
		}
	})
	t.Run("Resume of a sandbox that nobody knows is unreachable", func(t *testing.T) {
		s := open(t)
		found, err := s.Provider.Resume(t.Context(), s.Unknown)
		must(t, err)
		equal(t, "the answer", found.State, core.ResumeUnreachable)
	})
	t.Run("Stop ends a sandbox for good, and again is success", func(t *testing.T) {
		s := open(t)
		at, other := s.made(t, "i1"), s.made(t, "i2")
		for range 2 {
			_, err := s.Provider.Stop(t.Context(), at.Cluster, at.TaskARN, "sandkeeper: a test")
			must(t, err)
			if s.settles(t, at, core.ResumeGone).Why == "" {
				t.Error("gone, and nobody is told why")
			}
		}
		equal(t, "another sandbox", s.settles(t, other, core.ResumeRunning).State, core.ResumeRunning)
	})
	t.Run("Stop of a sandbox that nobody knows says so", func(t *testing.T) {
		s := open(t)
		task, err := s.Provider.Stop(t.Context(), s.Unknown.Cluster, s.Unknown.TaskARN, "sandkeeper: a test")
		must(t, err)
		equal(t, "the answer", task.Life, core.TaskMissing)
	})
	t.Run("StartAgent begins the agent of a run once, and another run's beside it", func(t *testing.T) {
		s := open(t)
		at := s.made(t, "i1")
		for _, run := range []core.RunID{"r1", "r2"} {
			if s.begun(t, at, run).Already {
				t.Errorf("the agent of %s had been begun before", run)
			}
			if !s.begun(t, at, run).Already {
				t.Errorf("the agent of %s was begun twice", run)
			}
		}
	})
	t.Run("StartAgent in a sandbox that is gone is an error of exec", func(t *testing.T) {
		s := open(t)
		at := s.made(t, "i1")
		_, err := s.Provider.Stop(t.Context(), at.Cluster, at.TaskARN, "sandkeeper: a test")
		must(t, err)
		s.settles(t, at, core.ResumeGone)
		agent := core.JournalStart{Run: "r", Nonce: "00112233445566778899aabbccddeeff", Argv: []string{"true"}}
		_, err = s.Provider.StartAgent(t.Context(), at, agent, nil)
		if _, ok := errors.AsType[*core.ExecError](err); !ok {
			t.Errorf("error = %v, want one of exec", err)
		}
	})
	t.Run("Resume that is not answered is an error", func(t *testing.T) {
		s := open(t)
		at := s.made(t, "i1")
		found, err := s.Provider.Resume(over(t), at)
		if err == nil {
			t.Errorf("resume = %+v, want an error", found)
		}
	})
}
