package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/lambdacheckpoint"
	"github.com/sandkeeper/sandkeeper/internal/metrics"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// keeper is the use case, as callers and agents reach it.
type keeper interface {
	caller
	agents
}

var _ keeper = (*core.Keeper)(nil)

type handler struct {
	keeper keeper
	log    *slog.Logger
	meter  *metrics.Meter
	relays core.Relayer
	self   beginner
	// keep is how many of a thread's newest checkpoints outlive the day, beside the named
	// ones; 0: all.
	keep int
	// unused is for how long a thread is kept that nobody uses; 0: for ever.
	unused time.Duration
}

// beginner begins a call of this function that nobody waits for.
type beginner interface {
	Begin(ctx context.Context, operation string, request any) error
}

var _ beginner = (*lambdacheckpoint.Caller)(nil)

// envelope is what tells one event from another.
type envelope struct {
	Source         string          `json:"source"`
	DetailType     string          `json:"detail-type"`
	RequestContext json.RawMessage `json:"requestContext"`
}

// handle answers a request to the function's URL, the daily schedule, or a call. No
// event is quoted in an error or a log: requests hold tokens.
func (h handler) handle(ctx context.Context, event json.RawMessage) (any, error) {
	var e envelope
	if err := json.Unmarshal(event, &e); err != nil {
		return nil, fmt.Errorf("checkpoint: want a JSON object: %w", err)
	}
	switch {
	case e.RequestContext != nil:
		return h.request(ctx, event)
	case e.Source == names.SourceSchedule && e.DetailType == names.DetailScheduleCollect:
		return h.daily(ctx)
	case e.Source != "" || e.DetailType != "":
		return nil, fmt.Errorf("checkpoint: want the schedule, a request or a call, got source %.80q with %.80q", e.Source, e.DetailType)
	}
	return h.call(ctx, event)
}

// call carries out {"<operation>": {…}} and answers {"<operation>": …}, or
// {"error": {code, message}} where the call is refused. It fails where nobody can tell
// whether it has been carried out, and it may be made again.
func (h handler) call(ctx context.Context, event json.RawMessage) (any, error) {
	name, operation, body, err := boot.Call(event, operations)
	if err != nil {
		return refusalOf(err).answer(), nil
	}
	answer, err := operation(ctx, h, body)
	if err == nil {
		h.log.InfoContext(ctx, "checkpoint", about(name, body)...)
		return map[string]any{name: answer}, nil
	}
	r := refusalOf(err)
	h.log.WarnContext(ctx, "checkpoint", append(about(name, body), r.told(err)...)...)
	h.meter.Emit(metrics.OfRefusal(r.Code))
	if r.fault() {
		return nil, fmt.Errorf("checkpoint: %s: %w", name, err)
	}
	return r.answer(), nil
}

// about is what a log says of a call: whose it is.
func about(name string, body json.RawMessage) []any {
	var key struct {
		core.ThreadKey
		Source core.ThreadKey    `json:"source"`
		ID     core.CheckpointID `json:"id"`
	}
	if err := json.Unmarshal(body, &key); err != nil || key.Tenant == "" {
		key.ThreadKey = key.Source
	}
	return []any{"operation", name, "tenant", string(key.Tenant), "thread", string(key.Thread), "id", string(key.ID)}
}

// refusal is an error as callers and agents see it.
type refusal struct {
	Status  int    `json:"-"` // of HTTP
	Code    string `json:"code"`
	Message string `json:"message"`
}

// The statuses of refusals.
const (
	statusBad         = 400
	statusNoToken     = 401
	statusNotFound    = 404
	statusMethod      = 405
	statusRefused     = 409
	statusTooLarge    = 413
	statusUnavailable = 503
)

func (r refusal) Error() string { return r.Code + ": " + r.Message }

// fault reports whether it is no refusal at all: asking again may help.
func (r refusal) fault() bool { return r.Status == statusUnavailable }

// told is what a log says of it. Input that is refused is not quoted: it may be a token
// in the wrong place.
func (r refusal) told(err error) []any {
	said := []any{"status", r.Status, "code", r.Code}
	if r.Status == statusRefused || r.fault() {
		said = append(said, "err", err)
	}
	return said
}

func (r refusal) answer() any { return map[string]refusal{"error": r} }

func badRequest(format string, args ...any) error {
	return refusal{statusBad, "bad-request", fmt.Sprintf(format, args...)}
}

// refusalOf words an error. What a fault says inside stays in the log.
func refusalOf(err error) refusal {
	if r, ok := errors.AsType[refusal](err); ok {
		return r
	}
	if e, ok := errors.AsType[*core.InvalidError](err); ok {
		return refusal{statusOf(e.Code), e.Code, e.Detail}
	}
	if e, ok := errors.AsType[*core.RefusedError](err); ok {
		return refusal{statusRefused, e.Why, e.Error()}
	}
	if errors.Is(err, core.ErrNotFound) {
		return refusal{statusNotFound, "not-found", err.Error()}
	}
	return refusal{statusUnavailable, "unavailable", "the request could not be carried out to its end; it may be made again"}
}

func statusOf(code string) int {
	switch code {
	case core.ErrToken.Code:
		return statusNoToken
	case "too-large":
		return statusTooLarge
	}
	return statusBad
}
