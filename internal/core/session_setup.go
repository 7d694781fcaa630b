package core

import (
	"context"
	"errors"
)

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
