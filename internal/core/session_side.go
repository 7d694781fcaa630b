package core

import (
	"context"
	"errors"
	"slices"
)

// side is what goes on beside the agent of a run, nil where nothing does. What the agent
// will be known by is written before any agent can hold it, beside that of earlier
// attempts: one whose answer was lost may be the one that runs.
func (s *Session) side(ctx context.Context, st *starting) (*Side, error) {
	side := st.definition.side(st.run.Tools)
	if s.ToolsURL == nil {
		if len(side.Tools) > 0 {
			return nil, &startError{"tools-unavailable", errors.New("this session knows of no tools function")}
		}
		if side.Policy == nil && side.Watch == nil {
			return nil, nil
		}
		return side, nil
	}
	var err error
	if side.URL, side.Host, err = s.ToolsURL.AgentURL(ctx); err != nil {
		return nil, err
	}
	side.Spool, side.Nudge = true, true
	side.Bearer, err = s.mint(ctx, st)
	return side, err
}

// mint makes a bearer and writes its hash, over the record as it is.
func (s *Session) mint(ctx context.Context, st *starting) (bearer string, err error) {
	bearer, hash := MintBearer(st.run.RunKey)
	for range rowTries {
		var r Run
		r, err = s.runs().Update(ctx, st.run.RunKey, AddBearer{Epoch: st.run.Epoch, Was: st.run.Bearers, Bearer: hash})
		if err == nil {
			st.run = r
			return bearer, nil
		}
		if refusalOf(err) != "bearers" { // another attempt of this host's was faster
			return "", err
		}
		if st.run, err = s.runs().Run(ctx, st.run.RunKey); err != nil {
			return "", err
		}
	}
	return "", err
}

// side is the part that the definition says.
func (d Definition) side(bound []ToolBinding) *Side {
	side := &Side{}
	for _, t := range d.Tools {
		if slices.ContainsFunc(bound, func(b ToolBinding) bool { return b.Name == t.Name }) {
			side.Tools = append(side.Tools, SideTool{Name: t.Name, Description: t.Description, InputSchema: t.InputSchema})
		}
	}
	if !d.Policy.Empty() {
		side.Policy = &d.Policy
	}
	if f := d.FileEvents; f.Enabled {
		side.Watch = &SideWatch{Root: d.Workspace.Root, Exclude: f.Exclude, MaxDiffBytes: f.MaxDiffBytes}
		if source := d.Workspace.Source; source != nil {
			side.Watch.Repository = source.Directory
		}
	}
	return side
}
