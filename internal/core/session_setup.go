package core

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

const (
	// setupWait is how long one call waits in the sandbox for a set-up's end.
	setupWait = 8 * time.Second
	// setupPatience is how long a set-up may take in all.
	setupPatience = 2 * time.Hour
)

// clone brings the workspace's source into a sandbox that was made for the run, where a
// head will be restored over it: the state of its repository needs the clone. Where none
// is restored, the set-up clones.
func (s *Session) clone(ctx context.Context, st *starting) (waiting string, err error) {
	r := st.run
	restores := s.keeps(r) && st.thread.Head != "" && !r.Start.Noted && r.Start.AskedAt == 0
	if r.Start.Resumed || r.Start.Native != "" || r.Start.Cloned || !restores || st.definition.Workspace.Source == nil {
		return "", nil
	}
	done := r.Start
	if done.CloneAt == 0 {
		done.CloneAt = nowMillis()
		if err := s.note(ctx, st, done); err != nil {
			return "", err
		}
	}
	plan := SetupPlan{Workspace: WorkspacePlan{Root: st.definition.Workspace.Root, Source: st.definition.Workspace.Source}, CloneOnly: true}
	if waiting, err := s.prepare(ctx, st, "clone", plan, r.Start.CloneAt); waiting != "" || err != nil {
		return waiting, err
	}
	done.Cloned = true
	return "", s.note(ctx, st, done)
}

// setup prepares a sandbox that was made for the run, between the restore and the agent:
// the definition's source, skills, scripts and groups. One that was there is set up.
func (s *Session) setup(ctx context.Context, st *starting) (waiting string, err error) {
	r, d := st.run, st.definition
	if r.Start.Resumed || r.Start.SetUp || r.Start.AskedAt != 0 || !d.prepares() {
		return "", nil
	}
	done := r.Start
	if done.SetupAt == 0 {
		done.SetupAt = nowMillis()
		if err := s.note(ctx, st, done); err != nil {
			return "", err
		}
	}
	plan := SetupPlan{Workspace: d.Workspace, Policy: d.Policy}
	if done.Restored != "" && d.Workspace.Source != nil {
		plan.Restore = CheckpointOf(r.RunKey.Run)
	}
	if waiting, err := s.prepare(ctx, st, "setup", plan, r.Start.SetupAt); waiting != "" || err != nil {
		return waiting, err
	}
	done.SetUp = true
	return "", s.note(ctx, st, done)
}

// prepares reports whether anything is to be done in a new sandbox before its agent: also
// where only secrets are left there, by which captures know them.
func (d Definition) prepares() bool {
	for _, secret := range d.Secrets {
		if secret.From != "" {
			return true
		}
	}
	return !d.Workspace.empty()
}

// prepare has a plan carried out, or asks how far it is. since is when it was begun
// first; zero: now. A worker that was killed, and a call that was lost, are made up for by
// handing the job over once more: the sandbox goes on from where it was.
func (s *Session) prepare(ctx context.Context, st *starting, what string, plan SetupPlan, since Millis) (waiting string, err error) {
	if s.Setups == nil {
		return "", &startError{"setup-failed", errors.New("this session prepares no workspaces")}
	}
	id := what + "-" + string(st.run.RunKey.Run)
	state := SetupState{}
	hold := s.exec(st.run, ExecSetup)
	switch err := hold.take(ctx, execHoldFor); {
	case errors.Is(err, errExecBusy):
		return "busy", nil
	case err != nil:
		return "", err
	}
	defer hold.free(ctx)
	if since != 0 {
		if state, err = s.askSetup(ctx, st, id, nil); err != nil {
			return s.unprepared(ctx, st, err)
		}
	}
	if state.Phase == SetupUnknown || state.Phase == SetupFailed && state.Code == SetupAbandoned {
		job, err := s.setupJob(ctx, st, id, plan)
		if err != nil {
			return "", err
		}
		if state, err = s.askSetup(ctx, st, id, job); err != nil {
			return s.unprepared(ctx, st, err)
		}
	}
	switch {
	case state.Phase == SetupDone:
		return "", nil
	case state.Phase == SetupFailed && state.Code != SetupAbandoned:
		return "", &startError{"setup-failed", state.Err()}
	case since != 0 && nowMillis().Sub(since) > setupPatience:
		return "", &startError{"setup-failed", fmt.Errorf("step %s: not done within %s", state.Step, setupPatience)}
	}
	return what, nil
}

func (s *Session) askSetup(ctx context.Context, st *starting, id string, job *SetupJob) (SetupState, error) {
	until, cancel := context.WithTimeout(ctx, execWithin)
	defer cancel()
	return s.Setups.Setup(until, targetOf(st.run), id, job, setupWait)
}

// setupJob is a plan with the values of its secrets.
func (s *Session) setupJob(ctx context.Context, st *starting, id string, plan SetupPlan) (*SetupJob, error) {
	values, err := s.secretsOf(ctx, st)
	if err != nil {
		return nil, err
	}
	plan.Hash = st.material.WorkspaceHash
	for _, secret := range st.definition.Secrets {
		plan.Secrets = append(plan.Secrets, secret.Name)
	}
	// Of this run's, whoever hands it over.
	token := sha256.Sum256([]byte("sandkeeper/setup/v1:" + st.run.Nonce + ":" + id))
	return &SetupJob{
		Kind: SetupKind, ID: id, Token: hex.EncodeToString(token[:]), Dir: st.definition.Workspace.Root, Plan: plan, Values: values,
	}, nil
}

// unprepared tells whether a sandbox that gave no answer may still be prepared.
func (s *Session) unprepared(ctx context.Context, st *starting, err error) (waiting string, _ error) {
	if e, ok := errors.AsType[*JournalError](err); ok && e.Healing == Configuration {
		code := "setup-failed"
		if e.Reason == ReasonAgentMissing {
			code = ReasonAgentMissing
			err = fmt.Errorf("want %s in the image or where %s says, as the definition's workspace and secrets need it: %w", AgentName, AgentVariable, err)
		}
		return "", &startError{code, err}
	}
	return s.unstarted(ctx, st, err)
}
