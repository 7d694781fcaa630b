package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// relayGap is after what silence of its agent a step's relay is taken for ended.
const relayGap = 45 * time.Second

func save(ctx context.Context, h handler, q core.SaveRequest) (core.StepReport, error) {
	report, err := h.keeper.Save(ctx, q)
	if err != nil || !q.Relay {
		return report, err
	}
	return h.withRelay(ctx, report, core.RelayRequest{ThreadKey: q.ThreadKey, ID: q.ID, Key: q.Key, Instance: q.Instance})
}

func restore(ctx context.Context, h handler, q core.RestoreRequest) (core.StepReport, error) {
	report, err := h.keeper.Restore(ctx, q)
	if err != nil || !q.Relay {
		return report, err
	}
	return h.withRelay(ctx, report, core.RelayRequest{ThreadKey: q.ThreadKey, ID: q.ID, Key: q.Key, Instance: q.Instance})
}

// withRelay begins to carry the agent's requests where the call began the step, or
// where its agent has not been heard of for so long that nobody seems to. An agent of
// ECS Exec has two slots for sessions, of which a relay takes one.
func (h handler) withRelay(ctx context.Context, report core.StepReport, q core.RelayRequest) (core.StepReport, error) {
	if report.State != core.StepWorking || !report.Began && time.Since(report.SeenAt.Time()) < relayGap {
		return report, nil
	}
	q.Kind = report.Kind
	return report, h.self.Begin(ctx, "relay", q)
}

// relay serves the agent of a step over exec sessions while the time lasts, and then has
// that go on in another invocation.
func relay(ctx context.Context, h handler, q core.RelayRequest) (core.StepReport, error) {
	report, err := h.keeper.Relay(ctx, q, core.Relay{Relayer: h.relays, Serve: h.relayed})
	if err == nil && report.State == core.StepWorking && ctx.Err() == nil && time.Since(report.SeenAt.Time()) < relayGap {
		err = h.self.Begin(ctx, "relay", q)
	}
	return report, err
}

// relayed answers a request as the URL does.
func (h handler) relayed(ctx context.Context, r core.RelayedRequest) core.RelayedAnswer {
	answer, err := h.agent(ctx, r.Path, r.Token, r.Body)
	status := 200
	if err != nil {
		refused := refusalOf(err)
		status, answer = refused.Status, refused.answer()
		h.log.WarnContext(ctx, "relayed", refused.told(err)...)
	}
	body, err := json.Marshal(answer)
	if err != nil {
		return core.RelayedAnswer{Name: r.Name, Status: statusUnavailable}
	}
	return core.RelayedAnswer{Name: r.Name, Status: status, Body: body}
}
