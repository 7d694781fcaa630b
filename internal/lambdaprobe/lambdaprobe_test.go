package lambdaprobe_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/lambdaprobe"
)

// reply is what Lambda's API answers to an Invoke.
type reply struct {
	status int    // 0: 200
	failed string // X-Amz-Function-Error
	body   string
}

// function is a probe function behind Lambda's API.
type function struct {
	caller *lambdaprobe.Caller
	calls  atomic.Int64
	got    core.ProbeCall // the last call, as it came
}

func serve(t *testing.T, r reply) *function {
	t.Helper()
	f := &function{}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, request *http.Request) {
		f.calls.Add(1)
		payload, err := io.ReadAll(request.Body)
		if err != nil || request.URL.Path != "/2015-03-31/functions/sandkeeper-probe/invocations" || request.Header.Get("X-Amz-Invocation-Type") == "Event" {
			t.Errorf("got %s %s, %v", request.Method, request.URL, err)
		}
		if err := json.Unmarshal(payload, &f.got); err != nil {
			t.Error(err)
		}
		if r.failed != "" {
			rw.Header().Set("X-Amz-Function-Error", r.failed)
		}
		if r.status != 0 {
			rw.Header().Set("X-Amzn-ErrorType", "TooManyRequestsException")
			rw.WriteHeader(r.status)
		}
		fmt.Fprint(rw, r.body)
	}))
	t.Cleanup(server.Close)
	f.caller = &lambdaprobe.Caller{Function: "sandkeeper-probe", Timeout: time.Minute, Lambda: lambda.New(lambda.Options{
		BaseEndpoint: &server.URL, Region: "us-east-1", Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	})}
	return f
}

var (
	target   = core.ExecTarget{Cluster: "c", TaskARN: "t", Container: "agent"}
	requests = []core.ProbeRequest{
		{RunKey: core.RunKey{Tenant: "a", Run: "r1"}, Target: target, Nonce: "n1", LogEnd: 3, LogTail: []byte("\x00\xff")},
		{RunKey: core.RunKey{Tenant: "a", Run: "r2"}, Target: target, Nonce: "n2"},
	}
	page = core.PageRequest{RunKey: requests[0].RunKey, Target: target, Nonce: "n1", From: 3, Final: true}
)

func TestAnAnswerComesBackAsItWasGiven(t *testing.T) {
	exit := 3
	given := core.ProbeAnswer{
		Probe: []core.ProbeReply{
			{RunKey: requests[0].RunKey, State: core.ProbeFinished, Exit: 3, Size: 9, Stderr: "Grüße", Rest: []byte("\x00\xff\n"), Whole: true},
			{RunKey: requests[1].RunKey, Healing: core.Retry, Reason: "busy"},
		},
		Page: &core.PageReply{Data: []byte{0, 255}, Exit: &exit},
	}
	body, err := json.Marshal(given)
	if err != nil {
		t.Fatal(err)
	}
	f := serve(t, reply{body: string(body)})
	call := core.ProbeCall{Probe: &core.ProbeBatch{Rate: 2.5, Requests: requests}}
	answer, err := f.caller.Call(t.Context(), call)
	if err != nil || !reflect.DeepEqual(answer, given) {
		t.Errorf("answered %+v, %v, want %+v", answer, err, given)
	}
	if !reflect.DeepEqual(f.got, call) {
		t.Errorf("the function got %+v, want %+v", f.got, call)
	}
}

// noAnswers are what Lambda says when the function gave no answer.
var noAnswers = map[string]struct {
	reply reply
	want  string
}{
	"a function error": {
		reply{failed: "Unhandled", body: `{"errorMessage":"probe call: want exactly one","errorType":"errorString"}`},
		"function error Unhandled: {\"errorMessage\":\"probe call: want exactly one",
	},
	"a function error in the shape of an answer": {reply{failed: "Unhandled", body: `{"probe":[]}`}, "function error Unhandled"},
	"a function that ran out of time": {
		reply{failed: "Unhandled", body: `{"errorMessage":"2026-11-30T09:41:00Z 1f2e Task timed out after 60.00 seconds"}`}, "Task timed out",
	},
	"text":         {reply{body: `<html>`}, "read answer"},
	"another kind": {reply{body: `[1]`}, "read answer"},
	"half":         {reply{body: `{"probe":[{"tenant":"a"`}, "read answer"},
	"nothing":      {reply{}, "read answer"},
	"a throttle":   {reply{status: http.StatusTooManyRequests, body: `{"message":"Rate exceeded"}`}, "TooManyRequestsException"},
	"a fault":      {reply{status: http.StatusInternalServerError, body: `{}`}, "call sandkeeper-probe: "},
}

func TestWhatTheFunctionDidNotSayIsNoAnswer(t *testing.T) {
	for name, c := range noAnswers {
		t.Run(name, func(t *testing.T) {
			f := serve(t, c.reply)
			answer, err := f.caller.Call(t.Context(), core.ProbeCall{Page: &page})
			if err == nil || !strings.HasPrefix(err.Error(), "call sandkeeper-probe: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if !reflect.DeepEqual(answer, core.ProbeAnswer{}) {
				t.Errorf("answered %+v", answer)
			}
			if n := f.calls.Load(); n != 1 {
				t.Errorf("asked %d times: an exec may still be under way", n)
			}
		})
	}
}

// TestWhatIsNoAnswerLeavesRunsUnknown: the sweep's side of the same.
func TestWhatIsNoAnswerLeavesRunsUnknown(t *testing.T) {
	replies := map[string]reply{
		"null":                   {body: `null`},
		"an empty answer":        {body: `{}`},
		"a shorter batch":        {body: `{"probe":[{"tenant":"a","run":"r1","state":"finished"}]}`},
		"a longer batch":         {body: `{"probe":[{"state":"finished"},{"state":"finished"},{"state":"finished"}]}`},
		"a failure":              {body: `{"failure":{"healing":"configuration","reason":"no-exec"}}`},
		"an answer to a page":    {body: `{"page":{"data":"AA=="}}`},
		"an exit that is a text": {body: `{"probe":[{"tenant":"a","run":"r1","state":"finished","exit":"0"},{"tenant":"a","run":"r2"}]}`},
	}
	for name, c := range noAnswers {
		replies[name] = c.reply
	}
	for name, r := range replies {
		t.Run(name, func(t *testing.T) {
			got := core.RemoteProber{Caller: serve(t, r).caller}.Probe(t.Context(), 1, requests)
			if len(got) != len(requests) {
				t.Fatalf("%d replies to %d requests", len(got), len(requests))
			}
			for i, reply := range got {
				want := core.ProbeReply{RunKey: requests[i].RunKey, Healing: core.Retry, Reason: "probe-call-failed", Unasked: true}
				if !reflect.DeepEqual(reply, want) {
					t.Errorf("reply %+v, want %+v", reply, want)
				}
			}
		})
	}
}

func TestAnAnswerToSomethingElseIsAnError(t *testing.T) {
	for name, body := range map[string]string{
		"null": `null`, "an empty answer": `{}`, "an answer to a probe": `{"probe":[{"tenant":"a","run":"r1","state":"finished"}]}`,
		"a failure beside it": `{"page":{"data":"AA=="},"terminate":{},"list":{},"failure":{"healing":"retry","reason":"busy"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			p := core.RemoteProber{Caller: serve(t, reply{body: body}).caller}
			_, pageErr := p.Page(t.Context(), page)
			_, terminateErr := p.Terminate(t.Context(), core.TerminateRequest{RunKey: page.RunKey, Target: target, Nonce: "n"})
			_, listErr := p.List(t.Context(), target)
			for op, err := range map[string]error{"page": pageErr, "terminate": terminateErr, "list": listErr} {
				if err == nil {
					t.Errorf("%s: no error", op)
				}
			}
		})
	}
}

// silent is a Lambda that answers never.
type silent struct{}

func (silent) Invoke(ctx context.Context, _ *lambda.InvokeInput, _ ...func(*lambda.Options)) (*lambda.InvokeOutput, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestACallWaitsALittleLongerThanTheFunctionMayTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		c := &lambdaprobe.Caller{Lambda: silent{}, Function: "sandkeeper-probe", Timeout: time.Minute}
		_, err := c.Call(t.Context(), core.ProbeCall{Page: &page})
		if waited := time.Since(begun); !errors.Is(err, context.DeadlineExceeded) || waited <= time.Minute || waited > 2*time.Minute {
			t.Errorf("%v after %s", err, waited)
		}
	})
}

func TestACallEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		c := &lambdaprobe.Caller{Lambda: silent{}, Function: "sandkeeper-probe", Timeout: time.Minute}
		if _, err := c.Call(ctx, core.ProbeCall{Page: &page}); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Second {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
	})
}
