package core

import (
	"context"
	"errors"
)

// SetupPlan is what a sandbox's workspace is prepared by. It holds no secret: those are
// named.
type SetupPlan struct {
	Workspace WorkspacePlan `json:"workspace"`
	Policy    PolicyPlan    `json:"policy,omitzero"`
	Secrets   []string      `json:"secrets,omitempty"` // names, of those that hold for the sandbox
	Hash      string        `json:"hash"`              // of the definition, as in its sandbox's key
	// Restore is the step that brought a checkpoint back before; what it could not finish
	// without the source's remote is finished. Empty: none.
	Restore CheckpointID `json:"restore,omitempty"`
	// CloneOnly ends the set-up behind the clone: a restore comes next.
	CloneOnly bool `json:"cloneOnly,omitempty"`
}

// Projects reports whether the plan puts files into the workspace.
func (p SetupPlan) Projects() bool {
	w := p.Workspace
	return w.Instructions != "" || len(w.Skills)+len(w.Plugins)+len(w.Scripts) > 0 || !p.Policy.Empty()
}

// clone brings the workspace's source into a sandbox that was made for the run, where a
// head will be restored over it: the state of its repository needs the clone.
func (s *Session) clone(context.Context, *starting) (waiting string, err error) { return "", nil }

// setup prepares a sandbox that was made for the run, between the restore and the agent:
// the definition's source, skills, scripts and groups. One that was there is set up.
func (s *Session) setup(_ context.Context, st *starting) (waiting string, err error) {
	r := st.run
	if r.Start.Resumed || r.Start.SetUp || st.definition.Workspace.empty() {
		return "", nil
	}
	return "", &startError{"setup-failed", errors.New("this session prepares no workspaces")}
}
