package lambdacheckpoint_test

import (
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
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/lambdacheckpoint"
)

// api answers calls of Lambda's API with respond.
func api(t *testing.T, respond func(w http.ResponseWriter, r *http.Request, body []byte)) *lambda.Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		respond(w, r, body)
	}))
	t.Cleanup(server.Close)
	return lambda.New(lambda.Options{
		BaseEndpoint: &server.URL, Region: "us-east-1", Retryer: aws.NopRetryer{},
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	})
}

var save = core.SaveRequest{
	ThreadKey: core.ThreadKey{Tenant: "acme", Thread: "t"}, ID: "checkpoint-r", Owner: "reclaim:r", Run: "r", Key: "k", Instance: "i",
}

func TestSaveIsOneInvocation(t *testing.T) {
	var got map[string]core.SaveRequest
	client := api(t, func(w http.ResponseWriter, r *http.Request, body []byte) {
		if r.URL.Path != "/2015-03-31/functions/sandkeeper-checkpoint/invocations" || r.Header.Get("X-Amz-Invocation-Type") == "Event" {
			t.Errorf("got %s %s", r.Method, r.URL)
		}
		if err := core.DecodeStrict(body, &got); err != nil {
			t.Error(err)
		}
		fmt.Fprint(w, `{"save":{"id":"checkpoint-r","kind":"capture","state":"working","files":3,"bytes":9}}`)
	})
	caller := &lambdacheckpoint.Caller{Lambda: client, Function: "sandkeeper-checkpoint", Timeout: time.Minute}
	report, err := caller.Save(t.Context(), save)
	want := core.StepReport{ID: "checkpoint-r", Kind: core.StepCapture, State: core.StepWorking, Files: 3, Bytes: 9}
	if err != nil || report != want {
		t.Errorf("answered %+v, %v, want %+v", report, err, want)
	}
	if !reflect.DeepEqual(got, map[string]core.SaveRequest{"save": save}) {
		t.Errorf("the function got %+v", got)
	}
}

func TestACaptureIsASaveOfWhatTheRunOwes(t *testing.T) {
	job := core.ReclaimJob{Tenant: "acme", Run: "r", Key: "k", Instance: "i", Kind: core.JobEnd}
	options := core.JobOptions{Policy: json.RawMessage(`{"git":"none"}`), Secrets: []string{"API_KEY"}, MaxBytes: 1 << 30}
	request := core.CaptureRequest{
		Run:     core.Run{RunKey: core.RunKey{Tenant: "acme", Run: "r"}, Thread: "t", Capture: &options},
		Sandbox: core.Sandbox{Key: "k", Instance: "i"}, Owner: "reclaim:r", Job: job, Again: true,
	}
	want := save
	want.Job, want.Again, want.JobOptions = &job, true, options
	want.DeadlineSeconds = 29 * 60 // reclaim cuts it off after half an hour
	for name, tt := range map[string]struct {
		body string
		want core.Captured
		err  string
	}{
		"done":      {`{"save":{"state":"done","checkpoint":"checkpoint-r"}}`, core.Captured{State: core.CaptureDone, ID: "checkpoint-r"}, ""},
		"under way": {`{"save":{"state":"working","why":"start-unknown"}}`, core.Captured{State: core.Capturing, Why: "start-unknown"}, ""},
		"failed":    {`{"save":{"state":"failed","why":"agent-missing"}}`, core.Captured{State: core.CaptureFailed, Why: "agent-missing"}, ""},
		"refused": {`{"error":{"code":"missing-reusable-sandbox","message":"m"}}`,
			core.Captured{State: core.CaptureFailed, Why: "missing-reusable-sandbox: m"}, ""},
		"beside another step": {`{"error":{"code":"step-busy","message":"m"}}`, core.Captured{}, "step-busy"},
		"with another writer": {`{"error":{"code":"writer-conflict","message":"m"}}`, core.Captured{}, "writer-conflict"},
		"with a writer lost":  {`{"error":{"code":"writer-lost","message":"m"}}`, core.Captured{}, "writer-lost"},
		"of no known state":   {`{"save":{"state":"paused"}}`, core.Captured{}, `unknown state "paused"`},
		"without an answer":   {`{}`, core.Captured{}, "lacks save"},
	} {
		t.Run(name, func(t *testing.T) {
			var got map[string]core.SaveRequest
			client := api(t, func(w http.ResponseWriter, _ *http.Request, body []byte) {
				if err := core.DecodeStrict(body, &got); err != nil {
					t.Error(err)
				}
				fmt.Fprint(w, tt.body)
			})
			captured, err := (&lambdacheckpoint.Caller{Lambda: client, Function: "f", Timeout: time.Minute}).Capture(t.Context(), request)
			if captured != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("answered %+v, %v; want %+v with %q", captured, err, tt.want, tt.err)
			}
			if !reflect.DeepEqual(got["save"], want) {
				t.Errorf("the function got %+v, want %+v", got["save"], want)
			}
		})
	}
}

func TestBeginWaitsForNoAnswer(t *testing.T) {
	var got map[string]core.RelayRequest
	client := api(t, func(w http.ResponseWriter, r *http.Request, body []byte) {
		if r.Header.Get("X-Amz-Invocation-Type") != "Event" {
			t.Errorf("invoked as %q", r.Header.Get("X-Amz-Invocation-Type"))
		}
		if err := core.DecodeStrict(body, &got); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusAccepted)
	})
	q := core.RelayRequest{ThreadKey: save.ThreadKey, ID: save.ID, Kind: core.StepCapture, Key: "k", Instance: "i"}
	if err := (&lambdacheckpoint.Caller{Lambda: client, Function: "f"}).Begin(t.Context(), "relay", q); err != nil || got["relay"] != q {
		t.Errorf("the function got %+v, %v", got, err)
	}
	refuse := api(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) { w.WriteHeader(http.StatusTooManyRequests) })
	if err := (&lambdacheckpoint.Caller{Lambda: refuse, Function: "f"}).Begin(t.Context(), "relay", q); err == nil {
		t.Error("begun although it was throttled")
	}
}

func TestARefusalHasItsCode(t *testing.T) {
	client := api(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		fmt.Fprint(w, `{"error":{"code":"writer-conflict","message":"acquire lease: thread acme/t: writer-conflict"}}`)
	})
	_, err := (&lambdacheckpoint.Caller{Lambda: client, Function: "f", Timeout: time.Minute}).Save(t.Context(), save)
	if e, ok := errors.AsType[*lambdacheckpoint.RefusedError](err); !ok || e.Code != "writer-conflict" || e.Operation != "save" {
		t.Errorf("error %v", err)
	}
}

func TestWhatTheFunctionDidNotSayIsNoAnswer(t *testing.T) {
	for name, tt := range map[string]struct {
		failed, body string
		status       int
		want         string
	}{
		"a function error":              {failed: "Unhandled", body: `{"errorMessage":"checkpoint: save: throttled"}`, want: "throttled"},
		"one in the shape of an answer": {failed: "Unhandled", body: `{"save":{"state":"done"}}`, want: "function error Unhandled"},
		"one in the shape of a refusal": {failed: "Unhandled", body: `{"error":{"code":"c"}}`, want: "function error Unhandled"},
		"the answer to something else":  {body: `{"restore":{"state":"done"}}`, want: "lacks save"},
		"an answer of another kind":     {body: `{"save":[1]}`, want: "read answer"},
		"a refusal without a code":      {body: `{"error":{"message":"m"}}`, want: "want a code"},
		"a refusal of another kind":     {body: `{"error":"no"}`, want: "read refusal"},
		"text":                          {body: `<html>`, want: "read answer"},
		"nothing":                       {want: "read answer"},
		"a throttle":                    {status: http.StatusTooManyRequests, body: `{}`, want: "call f: "},
	} {
		t.Run(name, func(t *testing.T) {
			client := api(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) {
				if tt.failed != "" {
					w.Header().Set("X-Amz-Function-Error", tt.failed)
				}
				if tt.status != 0 {
					w.WriteHeader(tt.status)
				}
				fmt.Fprint(w, tt.body)
			})
			report, err := (&lambdacheckpoint.Caller{Lambda: client, Function: "f", Timeout: time.Minute}).Save(t.Context(), save)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("answered %+v, %v; want %q", report, err, tt.want)
			}
			if _, ok := errors.AsType[*lambdacheckpoint.RefusedError](err); ok {
				t.Errorf("it counts as a refusal: %v", err)
			}
		})
	}
}

func TestAFunctionFindsItsURLOnce(t *testing.T) {
	const host = "0123456789abcdef.lambda-url.us-east-1.example.test"
	for name, tt := range map[string]struct {
		dial      *string
		url, host string
	}{
		"where the name resolves":   {nil, "https://" + host, ""},
		"where all is at an engine": {new("http://127.0.0.1:4566/"), "http://127.0.0.1:4566", host},
	} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int64
			client := api(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
				if r.Method != http.MethodGet || r.URL.Path != "/2021-10-31/functions/sandkeeper-checkpoint/url" {
					t.Errorf("got %s %s", r.Method, r.URL)
				}
				if calls.Add(1) == 1 {
					w.WriteHeader(http.StatusServiceUnavailable) // is not remembered
					return
				}
				if err := json.NewEncoder(w).Encode(map[string]string{"FunctionUrl": "https://" + host + "/", "AuthType": "NONE"}); err != nil {
					t.Error(err)
				}
			})
			address := &lambdacheckpoint.Address{Lambda: client, Function: "sandkeeper-checkpoint", Dial: tt.dial}
			if url, _, err := address.AgentURL(t.Context()); err == nil {
				t.Errorf("found %q without an answer", url)
			}
			for range 2 {
				if url, host, err := address.AgentURL(t.Context()); err != nil || url != tt.url || host != tt.host {
					t.Errorf("found %q with host %q, %v", url, host, err)
				}
			}
			if n := calls.Load(); n != 2 {
				t.Errorf("asked %d times", n)
			}
		})
	}
}

func TestAURLThatIsNoneIsAnError(t *testing.T) {
	for _, answer := range []string{`{}`, `{"FunctionUrl":"no url"}`, `{"FunctionUrl":"https://"}`} {
		client := api(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) { fmt.Fprint(w, answer) })
		if url, _, err := (&lambdacheckpoint.Address{Lambda: client, Function: "f"}).AgentURL(t.Context()); err == nil {
			t.Errorf("%s is %q", answer, url)
		}
	}
}
