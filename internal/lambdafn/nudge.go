package lambdafn

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// Nudger has the reap function look at a run now, and waits for no answer.
type Nudger struct {
	Lambda client
	Reap   string // name or ARN
}

var _ core.Nudger = (*Nudger)(nil)

// Nudge hands the event over. A nudge that comes twice does no harm.
func (n *Nudger) Nudge(ctx context.Context, key core.RunKey) error {
	payload, err := json.Marshal(struct {
		Source string      `json:"source"`
		Detail core.RunKey `json:"detail"`
	}{names.SourceNudge, key})
	if err == nil {
		err = (&Functions{Lambda: n.Lambda, Allowed: []string{n.Reap}}).InvokeAsync(ctx, n.Reap, payload)
	}
	if err != nil {
		return fmt.Errorf("nudge for run %s: %w", key, err)
	}
	return nil
}
