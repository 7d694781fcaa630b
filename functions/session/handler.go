package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/metrics"
)

type handler struct {
	session *core.Session
	tenants core.Tenants
	log     *slog.Logger
	meter   *metrics.Meter
}

// handle carries out {"<operation>": {…}} and answers {"<operation>": …}, or
// {"error": {code, message}} where the call is refused. It fails where nobody can tell
// whether it has been carried out; it may be made again. No event is quoted in an error
// or a log: requests hold prompts.
func (h handler) handle(ctx context.Context, event json.RawMessage) (any, error) {
	name, op, body, err := boot.Call(event, operations)
	if err != nil {
		return refusalOf(err).answer(), nil
	}
	q, err := op.decode(body)
	if err != nil {
		return refusalOf(&core.InvalidError{Code: "bad-request", Detail: fmt.Sprintf("%s: %v; want an object of %s", name, err, op.wanted())}).answer(), nil
	}
	tenant := op.tenant(q)
	if !h.tenants.Allow(alias(ctx), tenant) {
		h.log.WarnContext(ctx, "session", "operation", name, "code", "not-your-tenant")
		return refusal{Code: "not-your-tenant", Message: "the caller may not act for this tenant"}.answer(), nil
	}
	answer, err := op.do(ctx, h.session, q)
	about := append([]any{"operation", name, "tenant", string(tenant)}, op.about(q)...)
	if err == nil {
		h.log.InfoContext(ctx, "session", about...)
		return map[string]any{name: answer}, nil
	}
	r := refusalOf(err)
	h.log.WarnContext(ctx, "session", append(about, r.told(err)...)...)
	h.meter.Emit(metrics.OfRefusal(r.Code))
	if r.Code == unavailable {
		return nil, fmt.Errorf("session: %s: %s", name, r.Message)
	}
	return r.answer(), nil
}

// alias is the alias of the function through which it was invoked; empty for none.
func alias(ctx context.Context) string {
	lc, ok := lambdacontext.FromContext(ctx)
	if !ok {
		return ""
	}
	// arn:aws:lambda:region:account:function:name[:alias]
	parts := strings.Split(lc.InvokedFunctionArn, ":")
	if len(parts) < 8 || parts[7] == "$LATEST" {
		return ""
	}
	return parts[7]
}

// refusal is an error as hosts see it.
type refusal struct {
	Code    string `json:"code"` // lower-case with hyphens
	Message string `json:"message"`
}

func (r refusal) answer() any { return map[string]refusal{"error": r} }

// unavailable is no refusal: whether the call was carried out is not known.
const unavailable = "unavailable"

// refusalOf words an error. What a fault says inside stays in the log.
func refusalOf(err error) refusal {
	if e, ok := errors.AsType[*core.InvalidError](err); ok {
		return refusal{e.Code, e.Detail}
	}
	if e, ok := errors.AsType[*core.RefusedError](err); ok {
		return refusal{e.Why, e.Error()}
	}
	return refusal{unavailable, "the call could not be carried out to its end; it may be made again"}
}

// told is what a log says of it. Input that is refused is not quoted.
func (r refusal) told(err error) []any {
	said := []any{"code", r.Code}
	if _, ok := errors.AsType[*core.InvalidError](err); !ok {
		said = append(said, "err", err)
	}
	return said
}
