package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/metrics"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// sweeper is the part of the sweep that events reach.
type sweeper interface {
	Run(ctx context.Context, request core.SweepRequest) (core.SweepReport, error)
	TaskStopped(ctx context.Context, task core.StoppedTask) (core.SweepReport, error)
	Nudged(ctx context.Context, key core.RunKey) (core.SweepReport, error)
	Daily(ctx context.Context) (core.DailyReport, error)
	Audit(ctx context.Context) (core.DailyReport, error)
}

var _ sweeper = (*core.Sweep)(nil)

type handler struct {
	sweep sweeper
	log   *slog.Logger
	meter *metrics.Meter
}

// envelope is what tells one event from another.
type envelope struct {
	Source     string          `json:"source"`
	DetailType string          `json:"detail-type"`
	Records    json.RawMessage `json:"Records"`
}

// handle answers messages with those that have to come again, and any other event
// with the report of what it led to.
func (h handler) handle(ctx context.Context, event json.RawMessage) (any, error) {
	var e envelope
	if err := json.Unmarshal(event, &e); err != nil {
		return nil, fmt.Errorf("reap: want a JSON object, got %.80q: %w", event, err)
	}
	switch {
	case e.Records != nil:
		return h.shards(ctx, event)
	case e.Source == names.SourceSchedule && e.DetailType == names.DetailScheduleDaily:
		return h.day(ctx, h.sweep.Daily)
	case e.Source == names.SourceSchedule && e.DetailType == names.DetailScheduleAudit:
		return h.day(ctx, h.sweep.Audit)
	}
	report, err := h.look(ctx, e, event)
	if err != nil {
		return nil, err
	}
	h.tell(ctx, e, report)
	return report, nil
}

// look sweeps what an event is about.
func (h handler) look(ctx context.Context, e envelope, event json.RawMessage) (core.SweepReport, error) {
	switch {
	case e.Source == names.SourceSchedule && e.DetailType == names.DetailScheduleTick:
		return h.sweep.Run(ctx, core.SweepRequest{})
	case e.DetailType == names.DetailTaskState && slices.Contains([]string{names.SourceECS, names.SourceLocalECS}, e.Source):
		task, err := stoppedTask(event)
		if err != nil {
			return core.SweepReport{}, err
		}
		return h.sweep.TaskStopped(ctx, task)
	case e.Source == names.SourceNudge:
		key, err := nudge(event)
		if err != nil {
			return core.SweepReport{}, err
		}
		return h.sweep.Nudged(ctx, key)
	case e.Source != "" || e.DetailType != "":
		return core.SweepReport{}, fmt.Errorf("reap: want a tick, an audit or a day, a stopped task, a nudge, messages or a request, got source %.80q with %.80q", e.Source, e.DetailType)
	}
	request, err := operatorRequest(event)
	if err != nil {
		return core.SweepReport{}, err
	}
	return h.sweep.Run(ctx, request)
}

// day audits, or audits and prunes. What could be listed is measured even where a spoke
// could not, so that its silence hides no leak of the others.
func (h handler) day(ctx context.Context, do func(context.Context) (core.DailyReport, error)) (core.DailyReport, error) {
	report, err := do(ctx)
	if report.Home {
		h.meter.Emit(metrics.OfDay(report))
	}
	return report, err
}

// scheduled reports whether the schedule led to an event, if only by way of a queue.
func (e envelope) scheduled() bool {
	return e.Source == names.SourceSchedule || e.Source == sourceSQS
}

// tell logs and measures what an event led to: the sweep logs its own work, but one that
// handed everything on, or had nothing to do, has none.
func (h handler) tell(ctx context.Context, e envelope, r core.SweepReport) {
	h.meter.Emit(metrics.OfSweep(r, e.scheduled(), time.Now()))
	h.log.InfoContext(ctx, "reap", "source", e.Source, "detailType", e.DetailType, "considered", r.Considered,
		"probed", r.Probed, "fannedOut", r.FannedOut, "oldestLap", r.OldestLap, "errors", len(r.Errors), "standing", r.Standing)
}

// stoppedTask reads an ECS task state change: of a task that has stopped, or that ECS has
// decided to end.
func stoppedTask(event json.RawMessage) (core.StoppedTask, error) {
	var e struct {
		Time   time.Time `json:"time"`
		Detail struct {
			TaskARN    string    `json:"taskArn"`
			LastStatus string    `json:"lastStatus"`
			Desired    string    `json:"desiredStatus"`
			StartedBy  string    `json:"startedBy"`
			StoppedAt  time.Time `json:"stoppedAt"`
		} `json:"detail"`
	}
	if err := json.Unmarshal(event, &e); err != nil {
		return core.StoppedTask{}, fmt.Errorf("reap: read task state change: %w", err)
	}
	gone := e.Detail.LastStatus == names.TaskStopped
	if e.Detail.TaskARN == "" || !gone && e.Detail.Desired != names.TaskStopped {
		return core.StoppedTask{}, fmt.Errorf("reap: task state change: want a taskArn and lastStatus or desiredStatus %s, got %.80q, %.80q and %.80q",
			names.TaskStopped, e.Detail.TaskARN, e.Detail.LastStatus, e.Detail.Desired)
	}
	at := e.Detail.StoppedAt
	if at.IsZero() {
		at = e.Time
	}
	return core.StoppedTask{ARN: e.Detail.TaskARN, StartedBy: e.Detail.StartedBy, At: core.MillisOf(at), Leaving: !gone}, nil
}

// nudge reads {"source":"sandkeeper.nudge","detail":{"tenant","run"}}.
func nudge(event json.RawMessage) (core.RunKey, error) {
	var e struct {
		Source string      `json:"source"`
		Detail core.RunKey `json:"detail"`
	}
	if err := core.DecodeStrict(event, &e); err != nil {
		return core.RunKey{}, fmt.Errorf("reap: nudge: %w", err)
	}
	if e.Detail.Tenant == "" || e.Detail.Run == "" {
		return core.RunKey{}, fmt.Errorf("reap: nudge: want a tenant and a run, got %.80q", e.Detail.String())
	}
	return e.Detail, nil
}

// operatorRequest reads what an operator asks for: {"mode":"sweep", "plan" or "apply"}
// with {"runs":[{"tenant","run"}]}, {"shards":[…]} or {"plan":[…]}.
func operatorRequest(event json.RawMessage) (core.SweepRequest, error) {
	var request core.SweepRequest
	if err := core.DecodeStrict(event, &request); err != nil {
		return core.SweepRequest{}, fmt.Errorf("reap: request: %w", err)
	}
	if request.Mode == "" && len(request.Runs)+len(request.Shards) == 0 {
		return core.SweepRequest{}, errors.New("reap: request: want a mode, runs or shards, got none of them")
	}
	if err := request.Validate(); err != nil {
		return core.SweepRequest{}, fmt.Errorf("reap: request: %w", err)
	}
	return request, nil
}
