package main

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// operation is one thing that hosts can ask for.
type operation struct {
	what     string // for people, one sentence
	request  reflect.Type
	response reflect.Type
	decode   func(body json.RawMessage) (any, error)
	do       func(ctx context.Context, s *core.Session, q any) (any, error)
}

// tenant is whose data a request is about.
func (operation) tenant(q any) core.TenantID {
	return core.TenantID(reflect.ValueOf(q).FieldByName("Tenant").String())
}

// about is what a log says of a request: run and thread, never what they hold.
func (o operation) about(q any) []any {
	var out []any
	if f := reflect.ValueOf(q).FieldByName("Run"); f.IsValid() {
		out = append(out, "run", core.RunKey{Tenant: o.tenant(q), Run: core.RunID(f.String())}.String())
	}
	if f := reflect.ValueOf(q).FieldByName("Thread"); f.IsValid() {
		out = append(out, "thread", f.String())
	}
	return out
}

// wanted are the names of a request's members, for people.
func (o operation) wanted() string { return strings.Join(namesOf(o.request), ", ") }

// namesOf are the names of a type's members in JSON, embedded ones in place.
func namesOf(t reflect.Type) []string {
	var out []string
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous && name == "" {
			out = append(out, namesOf(field.Type)...)
			continue
		}
		out = append(out, name)
	}
	return out
}

// call makes an operation of a method of the session. Members that the request does not
// know are refused.
func call[Q, A any](do func(s *core.Session, ctx context.Context, q Q) (A, error), what string) operation {
	return operation{
		what: what, request: reflect.TypeFor[Q](), response: reflect.TypeFor[A](),
		decode: func(body json.RawMessage) (any, error) {
			var q Q
			err := core.DecodeStrict(body, &q)
			return q, err
		},
		do: func(ctx context.Context, s *core.Session, q any) (any, error) { return do(s, ctx, q.(Q)) },
	}
}

// operations are all that can be called, by name.
var operations = map[string]operation{
	"start":     call((*core.Session).Start, "Begins a run, or goes on with its start: a step, asked again while it answers `provisioning`."),
	"attach":    call((*core.Session).Attach, "Takes a run for a host; a repeat finds that the host has it."),
	"renew":     call((*core.Session).Renew, "Keeps the attachment and the writer lease, every 30 seconds; answers a recorded cancel."),
	"tail":      call((*core.Session).Tail, "Gives whole lines of output from a byte position on, and waits for some."),
	"segments":  call((*core.Session).Segments, "Tells where output lies from a byte position on, each piece with leave to read it for 15 minutes; what a sandbox has sent ahead of the log is `early`."),
	"detach":    call((*core.Session).Detach, "Lets the host leave; the agent works on."),
	"interrupt": call((*core.Session).Interrupt, "Pauses the run for a human; a run with this one as its parent goes on for it."),
	"cancel":    call((*core.Session).Cancel, "Ends the run, from any host; with the host that has it, at once."),
	"finish":    call((*core.Session).Finish, "Drains, saves conversation and workspace, and ends a run whose agent has ended: a step, asked again while it answers `finishing`."),
	"fail":      call((*core.Session).Fail, "Has the host give its run up, with its error."),
	"get":       call((*core.Session).Get, "Reads a run."),
	"list":      call((*core.Session).List, "Lists the newest runs of a thread."),
	"active": call(func(s *core.Session, ctx context.Context, q core.ThreadKey) (core.ListRunsReport, error) {
		return s.List(ctx, core.ListRunsRequest{ThreadKey: q, Active: true})
	}, "Lists the runs of a thread that have not ended."),
	"adopt": call((*core.Session).Adopt, "Takes over a task that the host started itself, with the run in it."),
}
