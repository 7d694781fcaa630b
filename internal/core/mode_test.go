package core_test

import (
	"context"
	"errors"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// settled answers with the same settings always.
type settled struct {
	control core.Control
	err     error
}

func (s settled) Control(context.Context) (core.Control, error) { return s.control, s.err }

func TestModeDefaultHoldsUntilAnOperatorSetsAMode(t *testing.T) {
	for _, tt := range []struct {
		name        string
		byDefault   core.Mode
		control     core.Control
		acts, stops bool
	}{
		{"no settings observe where the stack observes", core.Observe, core.Control{}, false, false},
		{"no settings enforce where the stack enforces", core.Enforce, core.Control{}, true, true},
		{"an operator who enforces wins", core.Observe, core.Control{Mode: core.Enforce}, true, true},
		{"an operator who observes wins", core.Enforce, core.Control{Mode: core.Observe}, false, false},
		{"a freeze without a mode stays a freeze", core.Enforce, core.Control{Frozen: true}, true, false},
		{"a freeze does not make an observer act", core.Observe, core.Control{Frozen: true}, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := core.ModeDefault{Controls: settled{control: tt.control}, Mode: tt.byDefault}.Control(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if c.Acts() != tt.acts || c.Stops() != tt.stops {
				t.Errorf("acts %v and stops %v, want %v and %v", c.Acts(), c.Stops(), tt.acts, tt.stops)
			}
			if tt.control.Mode = c.Mode; c != tt.control {
				t.Errorf("settings are %+v, want %+v", c, tt.control)
			}
		})
	}
}

func TestModeDefaultFillsInNothingWhereTheSettingsCannotBeRead(t *testing.T) {
	down := errors.New("throttled")
	c, err := core.ModeDefault{Controls: settled{err: down}, Mode: core.Enforce}.Control(t.Context())
	if !errors.Is(err, down) || c != (core.Control{}) {
		t.Errorf("got %+v, %v", c, err)
	}
}
