package core_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// meanwhile lets something happen before the first write to an instance record.
type meanwhile struct {
	core.Sandboxes
	happens func()
}

func (m *meanwhile) UpdateSandbox(ctx context.Context, key core.SandboxKey, t core.SandboxTransition) (core.Sandbox, error) {
	if happens := m.happens; happens != nil {
		m.happens = nil
		happens()
	}
	return m.Sandboxes.UpdateSandbox(ctx, key, t)
}

// TestOfTwoMessagesAtOnceOneIsDone (I14): the other finds the record gone that it was
// about to mark, and has nothing left to do; it must not come back as a failure.
func TestOfTwoMessagesAtOnceOneIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := owe(t, core.ReclaimEnd, nil)
		c := o.reclaimer(o.store.Process)
		c.Provider, c.Stopper, c.Checkpoints = o.provider, o, o
		c.Sandboxes = &meanwhile{c.Sandboxes, func() { o.expect(o.job, core.ReclaimDestroyed, false) }}
		if got, err := c.Do(t.Context(), o.job); got != core.ReclaimNotFound || err != nil {
			t.Errorf("the slower one: %q, %v, want %q", got, err, core.ReclaimNotFound)
		}
		o.running(false, 1)
		o.mark(0, core.ReclaimDestroyed)
	})
}
