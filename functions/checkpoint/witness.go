package main

import (
	"context"
	"log/slog"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/metrics"
)

// witness logs and measures how steps end, whichever request ended them.
type witness struct {
	log   *slog.Logger
	meter *metrics.Meter
}

var _ core.StepWitness = witness{}

// StepEnded writes a line of each.
func (w witness) StepEnded(ctx context.Context, key core.ThreadKey, end core.StepReport) {
	level, values := slog.LevelInfo, metrics.Values{metrics.CheckpointFailures: 0, metrics.CheckpointsMade: 0, metrics.CheckpointFiles: 0}
	switch {
	case end.State == core.StepFailed:
		level, values = slog.LevelWarn, metrics.Values{metrics.CheckpointFailures: 1, metrics.CheckpointsMade: 0, metrics.CheckpointFiles: 0}
	case end.Kind == core.StepCapture:
		values = metrics.OfCommit(end.Files, end.Bytes)
	}
	w.log.Log(ctx, level, "step", "tenant", string(key.Tenant), "thread", string(key.Thread), "id", string(end.ID), "kind", end.Kind,
		"outcome", end.State, "reason", end.Why, "files", end.Files, "bytes", end.Bytes)
	w.meter.Emit(values)
}
