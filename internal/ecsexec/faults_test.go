package ecsexec_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ecs"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
)

// refusingECS answers each call with an error code, and counts the calls.
func refusingECS(t *testing.T, status int, code string) (*ecs.Client, *atomic.Int32, *atomic.Value) {
	var calls atomic.Int32
	var body atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		b, _ := io.ReadAll(r.Body)
		body.Store(string(b))
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"__type":%q,"message":"the service's words"}`, code)
	}))
	t.Cleanup(server.Close)
	return ecs.New(ecs.Options{
		BaseEndpoint: &server.URL,
		Region:       "eu-west-1",
		Credentials:  credentials.NewStaticCredentialsProvider("test", "test", ""),
	}), &calls, &body
}

func TestServiceErrors(t *testing.T) {
	for _, c := range []struct {
		status  int
		code    string
		healing core.Healing
		reason  string
		again   bool // the SDK repeats the call by itself
	}{
		{400, "TargetNotConnectedException", core.Retry, "target-not-connected", false},
		{400, "InvalidParameterException", core.Configuration, "exec-not-enabled", false},
		{400, "ClusterNotFoundException", core.Configuration, "cluster-not-found", false},
		{400, "AccessDeniedException", core.Configuration, "access-denied", false},
		{400, "ClientException", core.Configuration, "request-refused", false},
		{400, "ValidationException", core.Configuration, "request-refused", false},
		{400, "UnrecognizedClientException", core.Configuration, "credentials-refused", false},
		{400, "ExpiredTokenException", core.Retry, "credentials-expired", false},
		{500, "ServerException", core.Retry, "server-error", false},
		{503, "ServiceUnavailable", core.Retry, "server-error", false},
		{400, "ThrottlingException", core.Retry, "throttled", true},
		{400, "com.amazonaws.ecs#TargetNotConnectedException", core.Retry, "target-not-connected", false},
		{400, "SomethingNewException", core.Retry, "unknown-api-error", false},
	} {
		t.Run(c.code, func(t *testing.T) {
			client, calls, body := refusingECS(t, c.status, c.code)
			e := ecsexec.Executor{ECS: client, Region: "eu-west-1"}
			_, err := e.Exec(t.Context(), target, "echo secret-script", []byte("secret-input"))
			wantFault(t, err, c.healing, c.reason)
			if !strings.Contains(err.Error(), "the service's words") {
				t.Errorf("%q does not tell what the service said", err)
			}
			if got := calls.Load() > 1; got != c.again {
				t.Errorf("%d calls; repeated %v, want %v", calls.Load(), got, c.again)
			}
			request, _ := body.Load().(string)
			if !strings.Contains(request, `"interactive":true`) || !strings.Contains(request, `"container":"main"`) ||
				!strings.Contains(request, `"cluster":"c"`) || !strings.Contains(request, target.TaskARN) {
				t.Errorf("request %s", request)
			}
			if strings.Contains(request, "secret-input") || strings.Contains(request, "c2VjcmV0LWlucHV0") {
				t.Errorf("the input is in the request: %s", request)
			}
		})
	}
}
