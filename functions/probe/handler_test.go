package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// recorder notes what the handler asks of sandboxes, and cannot reach any.
type recorder struct{ asked []any }

var errUnreachable = &core.ExecError{Healing: core.Configuration, Reason: "no-exec"}

func (r *recorder) Probe(_ context.Context, rate float64, requests []core.ProbeRequest) []core.ProbeReply {
	r.asked = append(r.asked, rate)
	replies := make([]core.ProbeReply, len(requests))
	for i, q := range requests {
		r.asked = append(r.asked, q)
		replies[i] = core.ProbeReply{RunKey: q.RunKey, Reason: errUnreachable.Reason, Healing: errUnreachable.Healing}
	}
	return replies
}

func (r *recorder) Page(_ context.Context, q core.PageRequest) (core.PageReply, error) {
	r.asked = append(r.asked, q)
	return core.PageReply{}, errUnreachable
}

func (r *recorder) Terminate(_ context.Context, q core.TerminateRequest) (core.TerminateReply, error) {
	r.asked = append(r.asked, q)
	return core.TerminateReply{}, errUnreachable
}

func (r *recorder) List(_ context.Context, target core.ExecTarget) (core.JournalListing, error) {
	r.asked = append(r.asked, target)
	return core.JournalListing{}, errUnreachable
}

func (r *recorder) Remove(_ context.Context, target core.ExecTarget, runs []core.RunID) ([]bool, error) {
	r.asked = append(r.asked, target, runs)
	return nil, errors.New("anything else")
}

func TestTheSampleCallIsUnderstood(t *testing.T) {
	event, err := os.ReadFile("../../events/probe.json")
	if err != nil {
		t.Fatal(err)
	}
	var got recorder
	answer, err := handler{&got}.handle(t.Context(), event)
	if err != nil {
		t.Fatal(err)
	}
	run := core.RunKey{Tenant: "acme", Run: "run-7f3a"}
	want := []any{10.0, core.ProbeRequest{
		RunKey: run, Nonce: "9f86d081884c7d659a2feaa0c55ad015", LogEnd: 48213, LogTail: []byte("{\"type\":\"assistant\"}\n"),
		SandboxKey: "4b1f6ac2a8f8a1c5d5b9e0a3f2c7d6e41b0a9f8e7d6c5b4a39281706f5e4d3c2",
		Target: core.ExecTarget{
			Cluster:   "arn:aws:ecs:us-east-1:000000000000:cluster/sandkeeper",
			TaskARN:   "arn:aws:ecs:us-east-1:000000000000:task/sandkeeper/8f2b1a7c0d5e4f6aa1b2c3d4e5f60718",
			Container: "agent",
		},
	}}
	if !reflect.DeepEqual(got.asked, want) {
		t.Errorf("asked %+v, want %+v", got.asked, want)
	}
	if want := []core.ProbeReply{{RunKey: run, Reason: "no-exec", Healing: core.Configuration}}; !reflect.DeepEqual(answer.Probe, want) {
		t.Errorf("answered %+v, want %+v", answer.Probe, want)
	}
}

func TestUnknownIsAnAnswer(t *testing.T) {
	const about = `"tenant":"a","run":"b","nonce":"n","target":{"cluster":"c","taskArn":"t","container":"agent"}`
	cases := map[string]struct {
		event string
		want  core.ProbeFailure
	}{
		"of a page":        {`{"page":{` + about + `,"from":7}}`, core.ProbeFailure{Healing: core.Configuration, Reason: "no-exec"}},
		"of a termination": {`{"terminate":{` + about + `}}`, core.ProbeFailure{Healing: core.Configuration, Reason: "no-exec"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var got recorder
			answer, err := handler{&got}.handle(t.Context(), json.RawMessage(c.event))
			if err != nil || answer.Failure == nil || *answer.Failure != c.want || len(got.asked) != 1 {
				t.Errorf("answered %+v, %v after %+v", answer.Failure, err, got.asked)
			}
		})
	}
}

var malformed = map[string]struct{ event, want string }{
	"nothing":              {``, "decode JSON"},
	"no object":            {`[1]`, "cannot unmarshal array"},
	"null":                 {`null`, "want exactly one of"},
	"no question":          {`{}`, "want exactly one of"},
	"two questions":        {`{"page":{},"terminate":{}}`, "got 2"},
	"unknown question":     {`{"kill":{}}`, `unknown field "kill"`},
	"unknown member":       {`{"page":{"tenant":"a","run":"b","force":true}}`, `unknown field "force"`},
	"more behind it":       {`{"probe":{"requests":[]}} {}`, "want one value"},
	"cut short":            {`{"probe":{"requests":[`, "decode JSON"},
	"no tenant":            {`{"probe":{"requests":[{"run":"b"}]}}`, "want a tenant and a run"},
	"no target":            {`{"page":{"tenant":"a","run":"b"}}`, "want a task ARN and a container"},
	"negative position":    {`{"page":{"tenant":"a","run":"b","from":-1,"target":{"taskArn":"t","container":"c"}}}`, "want a position from 0 on, got -1"},
	"tail of another kind": {`{"probe":{"requests":[{"tenant":"a","run":"b","logTail":"*"}]}}`, "decode JSON"},
	"one bad of two": {`{"probe":{"requests":[{"tenant":"a","run":"b","target":{"taskArn":"t","container":"c"}},{"tenant":"a"}]}}`,
		"want a tenant and a run"},
}

func TestAMalformedCallIsOneClearErrorAndAsksNobody(t *testing.T) {
	for name, c := range malformed {
		t.Run(name, func(t *testing.T) {
			var got recorder
			answer, err := handler{&got}.handle(t.Context(), json.RawMessage(c.event))
			if err == nil || !strings.HasPrefix(err.Error(), "probe call: ") || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, c.want)
			}
			if len(got.asked) != 0 || !reflect.DeepEqual(answer, core.ProbeAnswer{}) {
				t.Errorf("answered %+v after asking %+v", answer, got.asked)
			}
		})
	}
}

func FuzzCall(f *testing.F) {
	for _, c := range malformed {
		f.Add([]byte(c.event))
	}
	f.Add([]byte(`{"page":{"tenant":"a","run":"b","target":{"taskArn":"t","container":"c"}}}`))
	f.Fuzz(func(t *testing.T, event []byte) {
		var got recorder
		if _, err := (handler{&got}).handle(t.Context(), event); (err == nil) != (len(got.asked) > 0) {
			t.Errorf("error %v, and asked %+v", err, got.asked)
		}
	})
}
