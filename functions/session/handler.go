package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/metrics"
)

type handler struct {
	session *core.Session
	tenants tenants
	log     *slog.Logger
	meter   *metrics.Meter
}

// handle carries out {"<operation>": {…}} and answers {"<operation>": …}, or
// {"error": {code, message}} where the call is refused. It fails where nobody can tell
// whether it has been carried out; it may be made again. No event is quoted in an error
// or a log: requests hold prompts.
func (h handler) handle(ctx context.Context, event json.RawMessage) (any, error) {
	name, op, body, err := which(event)
	if err != nil {
		return refusalOf(err).answer(), nil
	}
	q, err := op.decode(body)
	if err != nil {
		return refusalOf(&core.InvalidError{Code: "bad-request", Detail: fmt.Sprintf("%s: %v; want an object of %s", name, err, op.wanted())}).answer(), nil
	}
	tenant := op.tenant(q)
	if !h.tenants.allow(alias(ctx), tenant) {
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

// which finds the one operation that a call names.
func which(event json.RawMessage) (string, operation, json.RawMessage, error) {
	known := strings.Join(slices.Sorted(maps.Keys(operations)), ", ")
	var members map[string]json.RawMessage
	if err := core.DecodeStrict(event, &members); err != nil {
		return "", operation{}, nil, &core.InvalidError{Code: "bad-request", Detail: fmt.Sprintf(`%v; want {"<operation>": {…}} with one of %s`, err, known)}
	}
	if len(members) != 1 {
		return "", operation{}, nil, &core.InvalidError{Code: "bad-request", Detail: fmt.Sprintf("want exactly one of %s, got %d members", known, len(members))}
	}
	name := slices.Collect(maps.Keys(members))[0]
	op, ok := operations[name]
	if !ok {
		return "", operation{}, nil, &core.InvalidError{Code: "bad-request", Detail: fmt.Sprintf("want one of %s, got %.80q", known, name)}
	}
	return name, op, members[name], nil
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
