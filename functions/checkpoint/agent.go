package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/aws/aws-lambda-go/events"

	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/metrics"
	"github.com/sandkeeper/sandkeeper/internal/transfer"
)

// agents is what a token's holder can ask for, as long as its fence lives.
type agents interface {
	Grant(ctx context.Context, token string, packs []core.PackRef) ([]core.PackGrant, core.Millis, error)
	Has(ctx context.Context, token string, packs []core.PackRef) ([]bool, error)
	Parent(ctx context.Context, token string) ([]byte, error)
	Fetch(ctx context.Context, token string, packs []core.PackRef) ([]core.Grant, error)
	Renew(ctx context.Context, token string, files, bytes int64) (core.Millis, error)
	Fail(ctx context.Context, token, code, message string) error
	CommitRoot(ctx context.Context, token string, root []byte) (core.CheckpointID, error)
}

// routes are the paths of the function's URL.
var routes = map[string]func(ctx context.Context, a agents, token string, body []byte) (any, error){
	transfer.PathGrant:  route(grant),
	transfer.PathHas:    route(has),
	transfer.PathParent: route(parent),
	transfer.PathFetch:  route(fetch),
	transfer.PathRenew:  route(renew),
	transfer.PathFail:   route(fail),
	transfer.PathCommit: route(commit),
}

// request answers one request to the function's URL. Whatever becomes of it is an
// answer: the function itself does not fail.
func (h handler) request(ctx context.Context, event json.RawMessage) (any, error) {
	var r events.LambdaFunctionURLRequest
	if err := json.Unmarshal(event, &r); err != nil {
		return nil, fmt.Errorf("checkpoint: read request: %w", err)
	}
	path := r.RawPath
	if routes[path] == nil {
		path = "other"
	}
	answer, err := h.serve(ctx, r)
	if err == nil {
		h.log.InfoContext(ctx, "agent", "path", path)
		return boot.Respond(200, answer)
	}
	refused := refusalOf(err)
	h.log.WarnContext(ctx, "agent", append([]any{"path", path}, refused.told(err)...)...)
	h.meter.Emit(metrics.OfRefusal(refused.Code))
	return boot.Respond(refused.Status, refused.answer())
}

// serve takes the request apart, the token first: who has none learns nothing else.
func (h handler) serve(ctx context.Context, r events.LambdaFunctionURLRequest) (any, error) {
	token, ok := boot.Bearer(r)
	if !ok {
		return nil, refusal{statusNoToken, core.ErrToken.Code, "want the job's token as bearer"}
	}
	if method := r.RequestContext.HTTP.Method; method != "POST" {
		return nil, refusal{statusMethod, "bad-method", fmt.Sprintf("want POST, got %.20q", method)}
	}
	body, err := boot.Body(r)
	if err != nil {
		return nil, err
	}
	return h.agent(ctx, r.RawPath, token, body)
}

// agent carries out what an agent asks for.
func (h handler) agent(ctx context.Context, path, token string, body []byte) (any, error) {
	answer, ok := routes[path]
	switch {
	case !ok:
		return nil, refusal{statusNotFound, "no-such-path", fmt.Sprintf("want a path of agents, got %.80q", path)}
	case len(body) > transfer.MaxBody:
		return nil, refusal{statusTooLarge, "too-large", fmt.Sprintf("want a body of at most %d bytes, got %d", transfer.MaxBody, len(body))}
	}
	return answer(ctx, h.keeper, token, body)
}

// route reads a request, whose members must all be known.
func route[Q, A any](do func(ctx context.Context, a agents, token string, q Q) (A, error)) func(context.Context, agents, string, []byte) (any, error) {
	return func(ctx context.Context, a agents, token string, body []byte) (any, error) {
		var q Q
		if err := core.DecodeStrict(body, &q); err != nil {
			return nil, badRequest("%v", err)
		}
		return do(ctx, a, token, q)
	}
}

func grant(ctx context.Context, a agents, token string, q transfer.GrantRequest) (transfer.GrantAnswer, error) {
	packs, err := packs(q.Packs, true)
	if err != nil {
		return transfer.GrantAnswer{}, err
	}
	granted, until, err := a.Grant(ctx, token, packs)
	if err != nil {
		return transfer.GrantAnswer{}, err
	}
	answer := transfer.GrantAnswer{Until: int64(until), Grants: make([]transfer.Grant, len(granted))}
	for i, g := range granted {
		answer.Grants[i] = transfer.Grant{
			SHA256: g.Pack.SHA256, Fence: g.Pack.Fence, Present: g.Present, URL: g.Grant.URL, Headers: g.Grant.Header,
		}
	}
	return answer, nil
}

func has(ctx context.Context, a agents, token string, q transfer.HasRequest) (transfer.HasAnswer, error) {
	packs, err := packs(q.Packs, false)
	if err != nil {
		return transfer.HasAnswer{}, err
	}
	present, err := a.Has(ctx, token, packs)
	return transfer.HasAnswer{Present: present}, err
}

func parent(ctx context.Context, a agents, token string, _ transfer.ParentRequest) (transfer.ParentAnswer, error) {
	root, err := a.Parent(ctx, token)
	return transfer.ParentAnswer{Root: root}, err
}

func fetch(ctx context.Context, a agents, token string, q transfer.FetchRequest) (transfer.FetchAnswer, error) {
	packs, err := packs(q.Packs, false)
	if err != nil {
		return transfer.FetchAnswer{}, err
	}
	granted, err := a.Fetch(ctx, token, packs)
	if err != nil {
		return transfer.FetchAnswer{}, err
	}
	answer := transfer.FetchAnswer{Grants: make([]transfer.Grant, len(granted))}
	for i, g := range granted {
		answer.Grants[i] = transfer.Grant{SHA256: packs[i].SHA256, Fence: packs[i].Fence, URL: g.URL, Headers: g.Header}
	}
	return answer, nil
}

func renew(ctx context.Context, a agents, token string, q transfer.RenewRequest) (transfer.RenewAnswer, error) {
	if q.Files < 0 || q.Bytes < 0 {
		return transfer.RenewAnswer{}, badRequest("want counts from 0 on, got %d files and %d bytes", q.Files, q.Bytes)
	}
	until, err := a.Renew(ctx, token, q.Files, q.Bytes)
	return transfer.RenewAnswer{Until: int64(until)}, err
}

func fail(ctx context.Context, a agents, token string, q transfer.FailRequest) (transfer.FailAnswer, error) {
	return transfer.FailAnswer{}, a.Fail(ctx, token, q.Code, q.Message)
}

func commit(ctx context.Context, a agents, token string, q transfer.CommitRequest) (transfer.CommitAnswer, error) {
	if len(q.Root) > transfer.MaxRoot {
		return transfer.CommitAnswer{}, refusal{statusTooLarge, "too-large", fmt.Sprintf("root: want at most %d bytes, got %d", transfer.MaxRoot, len(q.Root))}
	}
	id, err := a.CommitRoot(ctx, token, q.Root)
	return transfer.CommitAnswer{ID: string(id)}, err
}

// packs reads the names of packs; sized says that their sizes matter.
func packs(list []transfer.Pack, sized bool) ([]core.PackRef, error) {
	if err := transfer.CheckPacks(list, sized); err != nil {
		return nil, badRequest("%v", err)
	}
	refs := make([]core.PackRef, len(list))
	for i, p := range list {
		refs[i] = core.PackRef{Fence: p.Fence, SHA256: p.SHA256, Size: p.Size, Owner: core.ThreadID(p.Owner)}
	}
	return refs, nil
}
