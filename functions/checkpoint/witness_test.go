package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/metrics"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// TestEveryEndOfAStepIsMeasured: what was made counts as made, what failed as failed.
func TestEveryEndOfAStepIsMeasured(t *testing.T) {
	for _, c := range []struct {
		end          core.StepReport
		failed, made any
		level        string
	}{
		{core.StepReport{Kind: core.StepCapture, State: core.StepDone, Files: 3, Bytes: 70}, 0.0, 1.0, "INFO"},
		{core.StepReport{Kind: core.StepCapture, State: core.StepFailed, Why: "disk-full: none left"}, 1.0, 0.0, "WARN"},
		{core.StepReport{Kind: core.StepRestore, State: core.StepDone}, 0.0, 0.0, "INFO"},
	} {
		var log, line bytes.Buffer
		w := witness{slog.New(slog.NewJSONHandler(&log, nil)), &metrics.Meter{Out: &line, Install: "keeper", Function: names.Checkpoint}}
		w.StepEnded(t.Context(), core.ThreadKey{Tenant: "a", Thread: "t"}, c.end)
		var told, values map[string]any
		if err := json.Unmarshal(line.Bytes(), &values); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(log.Bytes(), &told); err != nil {
			t.Fatal(err)
		}
		if values["CheckpointFailures"] != c.failed || values["CheckpointsMade"] != c.made || c.made == 1.0 && values["CheckpointBytes"] != 70.0 {
			t.Errorf("%+v: measured %v", c.end, values)
		}
		if told["level"] != c.level || told["thread"] != "t" || told["outcome"] != string(c.end.State) || told["reason"] != c.end.Why {
			t.Errorf("%+v: told %v", c.end, told)
		}
	}
}

// TestABrokenCheckpointRings: what a collection finds to be needed and not there cannot be
// restored any more, and a line names the thread.
func TestABrokenCheckpointRings(t *testing.T) {
	var log, line bytes.Buffer
	h := handler{
		keeper: &recorder{keys: []core.ThreadKey{{Tenant: "a", Thread: "t"}}},
		log:    slog.New(slog.NewJSONHandler(&log, nil)), meter: &metrics.Meter{Out: &line, Function: names.Checkpoint},
	}
	if _, err := h.daily(t.Context()); err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := json.Unmarshal(line.Bytes(), &values); err != nil {
		t.Fatal(err)
	}
	if values["ObjectsMissing"] != 1.0 || values["CheckpointFailures"] != 1.0 {
		t.Errorf("measured %v", values)
	}
	if !strings.Contains(log.String(), `"level":"ERROR","msg":"broken","tenant":"a","thread":"t","missing":1`) {
		t.Errorf("told %s", &log)
	}
}
