package main

import (
	"errors"
	"io"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

func TestBenchMeasuresAndChangesNothing(t *testing.T) {
	w := installed(t)
	r := w.begin(t, agent{run: "benched", shell: lives})
	w.wrote(t, r, "begun")
	var v benchView
	w.unchanged(t, func() { v = read[benchView](t, exitDone, "bench", "--samples", "3") })
	if len(v.Latencies) != 8 {
		t.Errorf("%d kinds of call", len(v.Latencies))
	}
	for _, l := range v.Latencies {
		if l.N != 3 || l.P50 <= 0 || l.P50 > l.P90 || l.P90 > l.Max {
			t.Errorf("took %+v", l)
		}
	}
	if len(v.Rates) != 2 || v.Rates[0].N < 1 || v.Rates[1].N < 1 || v.Rates[1].Rate <= 0 {
		t.Errorf("rates %+v", v.Rates)
	}
	if got := w.read(t, r.RunKey); got.Status != core.Running || got.Epoch != r.Epoch {
		t.Errorf("the run is %s under epoch %d", got.Status, got.Epoch)
	}
}

// TestABenchThatEndsRunsIsForThisMachine only.
func TestABenchThatEndsRunsIsForThisMachine(t *testing.T) {
	err := (&benchCommand{Samples: 1, Sweep: true}).Run(t.Context(), &installation{globals: &globals{}}, &console.Console{Out: io.Discard, Err: io.Discard})
	if _, refused := errors.AsType[*refusedError](err); !refused || codeOf(err) != exitRefused {
		t.Errorf("answered %v", err)
	}
}
