package core_test

import (
	"context"
	"errors"
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

// TestAHostWhoseClockIsWrongEndsByTheStoresTime: what a sweep does in its place it does by
// the same time.
func TestAHostWhoseClockIsWrongEndsByTheStoresTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ahead := range []time.Duration{20 * time.Second, -20 * time.Second} {
			h := newHosting(t)
			core.CorrectClock(ahead)
			defer core.CorrectClock(0)
			h.ready(startOf("r", "a"))
			h.fleet.Write("r", "at work\n")
			_, err := host{h, "r", "a"}.fail()
			h.must(err)
			right := core.MillisOf(time.Now().Add(-ahead))
			if r := h.run("r"); r.FinishedAt != right || r.Ending.At != right || r.DueAt.Sub(right) > time.Minute {
				t.Errorf("clock ahead by %s: ended at %s, decided at %s, its sandbox is due at %s; it is %s", ahead, r.FinishedAt.Time(), r.Ending.At.Time(), r.DueAt.Time(), right.Time())
			}
		}
	})
}

// TestAHostWhoseClockIsWrongKeepsToTheWindow of its launch.
func TestAHostWhoseClockIsWrongKeepsToTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ahead := range []time.Duration{20 * time.Second, -20 * time.Second} {
			h := newHosting(t)
			core.CorrectClock(ahead)
			defer core.CorrectClock(0)
			s, begun := h.self(), time.Now()
			s.Launcher.Provider = &hangingRunner{Provider: s.Launcher.Provider}
			if _, err := s.Start(t.Context(), startOf("r", "a")); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("clock ahead by %s: %v, want the deadline", ahead, err)
			}
			if took := time.Since(begun); took != h.limits.LaunchWindow {
				t.Errorf("clock ahead by %s: the launch took %s, want %s", ahead, took, h.limits.LaunchWindow)
			}
		}
	})
}
