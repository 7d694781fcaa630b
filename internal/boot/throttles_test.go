package boot_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// configured is the environment of reap.
func configured(t *testing.T) {
	t.Helper()
	t.Setenv("AWS_REGION", "us-east-1")
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	for _, key := range names.Env[names.Reap] {
		value, _ := whole(string(key))
		t.Setenv(string(key), value)
	}
}

// TestACountedConfigurationPresigns: a presigner takes steps out of the stack that calls
// go through.
func TestACountedConfigurationPresigns(t *testing.T) {
	configured(t)
	signer := s3.NewPresignClient(s3.NewFromConfig(boot.New(names.Reap).AWS))
	signed, err := signer.PresignPutObject(t.Context(), &s3.PutObjectInput{Bucket: new("bucket"), Key: new("key")})
	if err != nil || !strings.Contains(signed.URL, "X-Amz-Signature=") {
		t.Errorf("signed %+v, %v", signed, err)
	}
}

// TestWhatECSTurnsAwayIsCounted, although a retry makes it good; other services are not,
// and neither are other errors.
func TestWhatECSTurnsAwayIsCounted(t *testing.T) {
	configured(t)
	var answers []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answer := answers[0]
		answers = answers[1:]
		if answer != "{}" {
			w.WriteHeader(http.StatusBadRequest)
			answer = `{"__type":"` + answer + `"}`
		}
		_, _ = w.Write([]byte(answer))
	}))
	defer server.Close()
	b := boot.New(names.Reap)
	b.AWS.BaseEndpoint = &server.URL
	var out bytes.Buffer
	b.Meter.Out = &out
	tasks, queues := ecs.NewFromConfig(b.AWS), sqs.NewFromConfig(b.AWS)
	list := func(ctx context.Context, _ struct{}) (any, error) {
		return tasks.ListTasks(ctx, &ecs.ListTasksInput{})
	}
	get := func(ctx context.Context, _ struct{}) (any, error) {
		return queues.ListQueues(ctx, &sqs.ListQueuesInput{})
	}
	for _, c := range []struct {
		name    string
		do      func(context.Context, struct{}) (any, error)
		steady  bool
		answers []string
		want    string // of the line; "": none
	}{
		{"two of three attempts are turned away", list, false, []string{"ThrottlingException", "ThrottlingException", "{}"}, `"ECSThrottled":2,`},
		{"none is, and a zero is told", list, true, []string{"{}"}, `"ECSThrottled":0,`},
		{"none is, and nobody asks", list, false, []string{"{}"}, ""},
		{"another error", list, false, []string{"ClusterNotFoundException"}, ""},
		{"another service", get, false, []string{"ThrottlingException", "{}"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			answers = c.answers
			out.Reset()
			_, _ = boot.Metered(b, c.steady, c.do)(t.Context(), struct{}{})
			if len(answers) > 0 || (c.want == "") != (out.Len() == 0) || !strings.Contains(out.String(), c.want) {
				t.Errorf("wrote %q with %d answers left, want %q", out.String(), len(answers), c.want)
			}
		})
	}
}

// TestAnInvocationThatFailsIsLogged, so that a query for errors finds it.
func TestAnInvocationThatFailsIsLogged(t *testing.T) {
	configured(t)
	b := boot.New(names.Reap)
	var meters, log bytes.Buffer
	b.Meter.Out, b.Log = &meters, slog.New(slog.NewJSONHandler(&log, nil))
	var failure error
	handle := boot.Metered(b, false, func(context.Context, struct{}) (int, error) { return 7, failure })
	if answer, err := handle(t.Context(), struct{}{}); answer != 7 || err != nil || log.Len() > 0 {
		t.Errorf("answered %d, %v and logged %s", answer, err, log.String())
	}
	failure = errors.New("sweep: no such table")
	if answer, err := handle(t.Context(), struct{}{}); answer != 7 || !errors.Is(err, failure) {
		t.Errorf("answered %d, %v", answer, err)
	}
	var line struct{ Level, Msg, Err string }
	if err := json.Unmarshal(log.Bytes(), &line); err != nil || line.Level != "ERROR" || line.Msg != "reap" || line.Err != failure.Error() {
		t.Errorf("logged %s: %v", log.String(), err)
	}
}
