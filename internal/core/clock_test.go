package core_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// TestAHostWhoseClockIsWrongWritesTheStoresTime, and its attachment lasts as long as any.
func TestAHostWhoseClockIsWrongWritesTheStoresTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ahead := range []time.Duration{20 * time.Second, -20 * time.Second} {
			h := newHosting(t)
			core.CorrectClock(ahead)
			defer core.CorrectClock(0)
			run := h.ready(startOf("r", "a")).Run
			right := core.MillisOf(time.Now().Add(-ahead))
			if run.StartedAt != right || run.ReadyAt != right || run.AttachedUntil != right.Add(h.limits.Attachment) {
				t.Errorf("clock ahead by %s: started at %s, ready at %s, attached until %s; it is %s", ahead, run.StartedAt.Time(), run.ReadyAt.Time(), run.AttachedUntil.Time(), right.Time())
			}
		}
	})
}
