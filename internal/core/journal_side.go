package core

import "encoding/json"

// Side is what goes on beside an agent, in a process of its own: its tools, the copy of
// its journal for those who watch, the word that it has ended.
type Side struct {
	URL    string     `json:"url,omitempty"`    // of the tools function
	Host   string     `json:"host,omitempty"`   // to be asked for, where the URL's is an address
	Bearer string     `json:"bearer,omitempty"` // of the run
	Tools  []SideTool `json:"tools,omitempty"`
	// Policy is what the permission tool answers from; nil: there is no such tool.
	Policy *PolicyPlan `json:"policy,omitempty"`
	Spool  bool        `json:"spool,omitempty"`
	Nudge  bool        `json:"nudge,omitempty"`
	Watch  *SideWatch  `json:"watch,omitempty"`
}

// SideTool is a tool as the agent sees it.
type SideTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	InputSchema json.RawMessage `json:"inputSchema,omitempty"`
}

// SideWatch says which changes of files are written down.
type SideWatch struct {
	Root         string   `json:"root,omitempty"` // absolute; empty: as [WorkspaceVariable] says
	Exclude      []string `json:"exclude,omitempty"`
	MaxDiffBytes int64    `json:"maxDiffBytes,omitempty"`
	Repository   string   `json:"repository,omitempty"` // where the repository is, below the root; empty: the root itself
	Baseline     string   `json:"baseline,omitempty"`   // the commit that differences are told from
	Out          string   `json:"out,omitempty"`        // where they are written; empty: beside the journal
	MaxBytes     int64    `json:"maxBytes,omitempty"`
}

// NeedsAgent reports whether only the sandbox's agent binary can do what s asks for. What
// only makes things faster is left out where there is none.
func (s *Side) NeedsAgent() bool {
	return s != nil && (len(s.Tools) > 0 || s.Policy != nil || s.Watch != nil)
}
