package mcptools

import (
	"encoding/json"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/policy"
	"github.com/sandkeeper/sandkeeper/internal/toolwire"
)

// FromSide is what a run's side is to serve: its tools, called at the tools function, and
// its policy. Root is the workspace, where relative paths of requests for permission
// begin. Token and place are still to be said.
func FromSide(side core.Side, root string) (Config, error) {
	c := Config{Tools: make([]toolwire.Tool, len(side.Tools))}
	for i, t := range side.Tools {
		c.Tools[i] = toolwire.Tool(t)
	}
	if len(c.Tools) > 0 {
		client, err := toolwire.NewClient(side.URL, side.Host, side.Bearer)
		if err != nil {
			return Config{}, err
		}
		c.Caller = client
	}
	if side.Policy == nil {
		return c, nil
	}
	plan := side.Policy
	p := policy.Policy{
		Commands: policy.Rules(plan.Commands), Write: policy.Rules(plan.Write), Reach: policy.Rules(plan.Reach), Default: string(plan.Default),
	}
	c.Permit = func(tool string, input json.RawMessage) (bool, string) {
		d := policy.Decide(p, policy.Request{Tool: tool, Input: input, Root: root})
		return d.Allow, d.Reason
	}
	return c, nil
}
