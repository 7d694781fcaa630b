package coretest

import (
	"context"
	"errors"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Site is a provider and what its checks need to know of it.
type Site struct {
	Provider  core.Provider
	Snapshots core.Snapshotter // nil: it takes none, and that is not checked
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

// Snapshots checks the contract of [core.Snapshotter].
func Snapshots(t *testing.T, open func(t *testing.T) Site) {
	taken := func(t *testing.T, s Site, token core.InstanceID, name string) (core.Sandbox, core.SnapshotID) {
		t.Helper()
		at := s.made(t, string(token))
		box := core.Sandbox{Key: "key", Instance: token, TaskARN: at.TaskARN, Cluster: at.Cluster, Container: at.Container}
		s.begun(t, at, "r1")
		id, err := s.Snapshots.Snapshot(t.Context(), box, name)
		must(t, err)
		return box, id
	}
	restored := func(t *testing.T, s Site, token string, id core.SnapshotID) (string, error) {
		spec := s.Spec
		spec.Token = token
		return s.Snapshots.Restore(t.Context(), spec, id)
	}
	t.Run("Snapshot of one sandbox under one name is one copy, under another another", func(t *testing.T) {
		s := open(t)
		box, one := taken(t, s, "i1", "after-run-r1")
		again, err := s.Snapshots.Snapshot(t.Context(), box, "after-run-r1")
		must(t, err)
		equal(t, "asked again", again, one)
		other, err := s.Snapshots.Snapshot(t.Context(), box, "after-setup")
		must(t, err)
		if other == one || one == "" {
			t.Errorf("two names, and copies %q and %q", one, other)
		}
	})
	t.Run("Restore makes a sandbox with the copy's disk for a token, once, also when the first is gone", func(t *testing.T) {
		s := open(t)
		box, id := taken(t, s, "i1", "after-run-r1")
		at := core.ExecTarget{Cluster: box.Cluster, TaskARN: box.TaskARN, Container: box.Container}
		s.begun(t, at, "r2") // after the copy
		_, err := s.Provider.Stop(t.Context(), at.Cluster, at.TaskARN, "sandkeeper: a test")
		must(t, err)
		first, err := restored(t, s, "i2", id)
		must(t, err)
		again, err := restored(t, s, "i2", id)
		must(t, err)
		equal(t, "asked again under its token", again, first)
		if at.TaskARN = first; first == box.TaskARN {
			t.Error("restored into the sandbox that it is a copy of")
		}
		s.settles(t, at, core.ResumeRunning)
		if !s.begun(t, at, "r1").Already || s.begun(t, at, "r2").Already {
			t.Error("the disk is not as it was when it was copied")
		}
	})
	t.Run("DropSnapshots lets go of a key's copies but one, and Restore of another makes nothing", func(t *testing.T) {
		s := open(t)
		box, old := taken(t, s, "i1", "after-setup")
		kept, err := s.Snapshots.Snapshot(t.Context(), box, "after-run-r1")
		must(t, err)
		for _, key := range []core.SandboxKey{"key", "key", "another key"} {
			must(t, s.Snapshots.DropSnapshots(t.Context(), key, kept))
		}
		if _, err := restored(t, s, "i2", old); !errors.Is(err, core.ErrSnapshotGone) {
			t.Errorf("restore of a copy that was dropped: %v", err)
		}
		_, err = restored(t, s, "i2", kept)
		must(t, err)
		must(t, s.Snapshots.DropSnapshots(t.Context(), "key", ""))
		if _, err := restored(t, s, "i3", kept); !errors.Is(err, core.ErrSnapshotGone) {
			t.Errorf("restore of the last copy that was dropped: %v", err)
		}
	})
}
