package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/aws/aws-lambda-go/events"

	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/toolwire"
)

// bridge is what agents can ask for.
type bridge interface {
	Admit(ctx context.Context, bearer string) (core.RunAgent, error)
	Call(ctx context.Context, a core.RunAgent, name string, args json.RawMessage) (json.RawMessage, error)
	Ended(ctx context.Context, a core.RunAgent) error
	Spool(ctx context.Context, a core.RunAgent, pieces []core.SpoolPiece) (core.SpoolLeave, error)
}

var _ bridge = (*core.Bridge)(nil)

type handler struct {
	bridge bridge
	log    *slog.Logger
}

// route is one path of the function's URL.
type route func(ctx context.Context, b bridge, a core.RunAgent, body []byte) (answer any, said []any, err error)

var routes = map[string]route{toolwire.PathCall: call, toolwire.PathEnded: ended, toolwire.PathSpool: spool}

// handle answers one request to the function's URL. Whatever becomes of it is an answer:
// the function itself does not fail. No request is quoted in a log: it holds a bearer.
func (h handler) handle(ctx context.Context, r events.LambdaFunctionURLRequest) (events.LambdaFunctionURLResponse, error) {
	if r.RequestContext.HTTP.Method == "" {
		return events.LambdaFunctionURLResponse{}, errors.New("tools: want a request to the function's URL")
	}
	path := r.RawPath
	if routes[path] == nil {
		path = "other"
	}
	agent, answer, said, err := h.serve(ctx, r)
	said = append([]any{"path", path, "run", agent.Key().String()}, said...)
	if err == nil {
		h.log.InfoContext(ctx, "tools", said...)
		return boot.Respond(200, answer)
	}
	refused := refusalOf(err)
	h.log.WarnContext(ctx, "tools", append(said, "status", refused.Status, "code", refused.Code, "err", cause(err))...)
	return boot.Respond(refused.Status, toolwire.ErrorAnswer{Error: refused})
}

// serve takes the request apart, the bearer first: who has none learns nothing else.
func (h handler) serve(ctx context.Context, r events.LambdaFunctionURLRequest) (a core.RunAgent, answer any, said []any, err error) {
	bearer, ok := boot.Bearer(r)
	if !ok {
		return a, nil, nil, core.ErrBearer
	}
	if a, err = h.bridge.Admit(ctx, bearer); err != nil {
		return a, nil, nil, err
	}
	do, ok := routes[r.RawPath]
	switch method := r.RequestContext.HTTP.Method; {
	case !ok:
		return a, nil, nil, refuse(404, toolwire.CodeNoSuchPath, "want one of %s, %s, %s, got %.80q", toolwire.PathCall, toolwire.PathEnded, toolwire.PathSpool, r.RawPath)
	case method != "POST":
		return a, nil, nil, refuse(405, toolwire.CodeMethod, "want POST, got %.20q", method)
	}
	body, err := boot.Body(r)
	if err != nil {
		return a, nil, nil, err
	}
	if len(body) > toolwire.MaxBody {
		return a, nil, nil, refuse(413, toolwire.CodeTooLarge, "want a body of at most %d bytes, got %d", toolwire.MaxBody, len(body))
	}
	answer, said, err = do(ctx, h.bridge, a, body)
	return a, answer, said, err
}

func call(ctx context.Context, b bridge, a core.RunAgent, body []byte) (any, []any, error) {
	var q toolwire.CallRequest
	if err := decode(body, &q); err != nil {
		return nil, nil, err
	}
	result, err := b.Call(ctx, a, q.Name, q.Args)
	return toolwire.CallAnswer{Result: result}, []any{"tool", fmt.Sprintf("%.128s", q.Name), "bytes", len(result)}, err
}

func ended(ctx context.Context, b bridge, a core.RunAgent, body []byte) (any, []any, error) {
	var q toolwire.EndedRequest
	if err := decode(body, &q); err != nil {
		return nil, nil, err
	}
	return toolwire.EndedAnswer{}, []any{"exitCode", q.ExitCode}, b.Ended(ctx, a)
}

func spool(ctx context.Context, b bridge, a core.RunAgent, body []byte) (any, []any, error) {
	var q toolwire.SpoolRequest
	if err := decode(body, &q); err != nil {
		return nil, nil, err
	}
	if err := q.Check(); err != nil {
		return nil, nil, refuse(400, toolwire.CodeBadRequest, "%v", err)
	}
	pieces := make([]core.SpoolPiece, len(q.Pieces))
	for i, p := range q.Pieces {
		pieces[i] = core.SpoolPiece{From: p.From, End: p.From + p.Size, SHA256: p.SHA256}
	}
	leave, err := b.Spool(ctx, a, pieces)
	if err != nil {
		return nil, nil, err
	}
	answer := toolwire.SpoolAnswer{Grants: make([]toolwire.Grant, len(leave.Grants)), Watched: leave.Watched}
	for i, g := range leave.Grants {
		answer.Grants[i] = toolwire.Grant{From: q.Pieces[i].From, URL: g.URL, Headers: g.Header, Until: int64(g.Until)}
	}
	return answer, []any{"pieces", len(pieces)}, nil
}

// decode reads a request, whose members must all be known.
func decode(body []byte, q any) error {
	if trimmed := bytes.TrimSpace(body); len(trimmed) == 0 || trimmed[0] != '{' {
		return refuse(400, toolwire.CodeBadRequest, "want a JSON object")
	}
	if err := core.DecodeStrict(body, q); err != nil {
		return refuse(400, toolwire.CodeBadRequest, "%v", err)
	}
	return nil
}

func refuse(status int, code, format string, args ...any) error {
	return &toolwire.Error{Status: status, Code: code, Message: fmt.Sprintf(format, args...)}
}

// statuses are those of the core's codes.
var statuses = map[string]int{
	core.ErrBearer.Code: 401, core.ToolUnknown: 404, core.ToolCancelled: 409, core.ToolTooLarge: 413, core.SpoolFull: 413,
	core.ToolFailed: 502, core.ToolTimeout: 504,
}

// refusalOf words an error. What a fault says inside stays in the log.
func refusalOf(err error) toolwire.Error {
	if e, ok := errors.AsType[*toolwire.Error](err); ok {
		return *e
	}
	if e, ok := errors.AsType[*core.ToolError](err); ok {
		return toolwire.Error{Status: statuses[e.Code], Code: e.Code, Message: e.Message}
	}
	if e, ok := errors.AsType[*core.InvalidError](err); ok {
		status := statuses[e.Code]
		if status == 0 {
			status = 400
		}
		return toolwire.Error{Status: status, Code: e.Code, Message: e.Detail}
	}
	if e, ok := errors.AsType[*core.RefusedError](err); ok && e.Why == core.SpoolFull {
		return toolwire.Error{Status: statuses[e.Why], Code: e.Why, Message: fmt.Sprintf("this run has spooled all that it may: %d bytes or %d pieces", core.MaxSpoolBytes, core.MaxSpoolPieces)}
	}
	return toolwire.Error{Status: 503, Code: toolwire.CodeUnavailable, Message: "the request could not be carried out to its end"}
}

// cause is what a log says of an error: of a tool's failure what lies behind it, of a
// refusal nothing but its code, since it may quote what was sent.
func cause(err error) any {
	if e, ok := errors.AsType[*core.ToolError](err); ok {
		if e.Cause != nil {
			return e.Cause
		}
		return e.Code
	}
	if refused := refusalOf(err); refused.Status < 500 {
		return refused.Code
	}
	return err
}
