package lambdafn_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/lambdafn"
)

// newFunctions is the adapter, with Lambda's API played by serve.
func newFunctions(t *testing.T, serve http.HandlerFunc) *lambdafn.Functions {
	server := httptest.NewServer(serve)
	t.Cleanup(server.Close)
	client := lambda.New(lambda.Options{
		BaseEndpoint: &server.URL, Region: "us-east-1", Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
		HTTPClient: server.Client(), RetryMode: aws.RetryModeStandard,
	})
	return &lambdafn.Functions{Lambda: client, Allowed: []string{"tool"}}
}

func TestInvokeGivesTheFunctionsAnswer(t *testing.T) {
	f := newFunctions(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Amz-Invocation-Type") != "RequestResponse" || !strings.Contains(r.URL.Path, "/functions/tool/") {
			t.Errorf("asked %s as %s", r.URL.Path, r.Header.Get("X-Amz-Invocation-Type"))
		}
		_, _ = io.Copy(w, r.Body)
	})
	if got, err := f.Invoke(t.Context(), "tool", []byte(`{"a":1}`)); err != nil || string(got) != `{"a":1}` {
		t.Errorf("%s, %v", got, err)
	}
}

func TestAFunctionThatFailsIsAFunctionError(t *testing.T) {
	f := newFunctions(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Amz-Function-Error", "Unhandled")
		_ = json.NewEncoder(w).Encode(map[string]string{"errorMessage": "x" + strings.Repeat("日", 2000), "errorType": "E"})
	})
	_, err := f.Invoke(t.Context(), "tool", nil)
	if e, ok := errors.AsType[*core.FunctionError](err); !ok || e.Function != "tool" || e.Message != "x"+strings.Repeat("日", 333) {
		t.Errorf("%v", err)
	}
}

func TestAFunctionThatIsNotListedIsNotCalled(t *testing.T) {
	f := newFunctions(t, func(http.ResponseWriter, *http.Request) { t.Error("called") })
	_, err := f.Invoke(t.Context(), "other", nil)
	if later := f.InvokeAsync(t.Context(), "tool:live", nil); !errors.Is(err, core.ErrNotAllowed) || !errors.Is(later, core.ErrNotAllowed) {
		t.Errorf("%v, %v", err, later)
	}
}

// TestWhatMayHaveRunIsNotCalledAgain: only what Lambda has turned away is.
func TestWhatMayHaveRunIsNotCalledAgain(t *testing.T) {
	for status, want := range map[int]int32{http.StatusTooManyRequests: 3, http.StatusInternalServerError: 1, http.StatusBadGateway: 1} {
		var calls atomic.Int32
		f := newFunctions(t, func(w http.ResponseWriter, _ *http.Request) {
			calls.Add(1)
			w.WriteHeader(status)
		})
		if _, err := f.Invoke(t.Context(), "tool", nil); err == nil || calls.Load() != want {
			t.Errorf("status %d: %d calls, want %d; %v", status, calls.Load(), want, err)
		}
	}
}

func TestInvokeAsyncHandsOver(t *testing.T) {
	f := newFunctions(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Amz-Invocation-Type") != "Event" {
			t.Errorf("as %s", r.Header.Get("X-Amz-Invocation-Type"))
		}
		w.WriteHeader(http.StatusAccepted)
	})
	if err := f.InvokeAsync(context.Background(), "tool", []byte(`{}`)); err != nil {
		t.Error(err)
	}
}

func TestTheListIsReadAsItIsWritten(t *testing.T) {
	for text, want := range map[string][]string{"-": nil, "a": {"a"}, " a, b ,": {"a", "b"}} {
		if got := lambdafn.Allowed(text); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
