package inprocess_test

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/sandkeeper/sandkeeper/client"
	"github.com/sandkeeper/sandkeeper/client/inprocess"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

var outputs = map[string]string{
	"RunsTable": "runs", "SandboxesTable": "sandboxes", "CheckpointsTable": "checkpoints", "LogBucket": "log", "ReclaimQueueUrl": "queue",
	"EventBus": "default", "ClusterArn": "c", "CheckpointFunction": "checkpoint", "ToolsFunction": "tools", "ReapFunction": "reap", "Install": "test",
	"Limits": `{"runTTL":"8h"}`, "Places": `{"home":"arn:aws:ecs:us-east-1:000000000000:cluster/c","spokes":[]}`,
}

// stores answer that there is no item, at a time that is off by ahead.
type stores struct {
	ahead atomic.Int64
	calls atomic.Int64
}

func (s *stores) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.calls.Add(1)
	w.Header().Set("Date", time.Now().Add(-time.Duration(s.ahead.Load())).UTC().Format(http.TimeFormat))
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	io.WriteString(w, `{}`)
}

func options(t *testing.T, s *stores) inprocess.Options {
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	t.Cleanup(func() { core.CorrectClock(0) })
	return inprocess.Options{Outputs: outputs, AWS: aws.Config{
		Region: "us-east-1", BaseEndpoint: &server.URL, Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	}}
}

// TestAClockThatIsTooWrongDoesNothing, until it is put right; a small error is corrected.
func TestAClockThatIsTooWrongDoesNothing(t *testing.T) {
	for ahead, fits := range map[time.Duration]bool{0: true, 20 * time.Second: true, -20 * time.Second: true, 40 * time.Second: false, -40 * time.Second: false} {
		s := &stores{}
		s.ahead.Store(int64(ahead))
		api, err := inprocess.Open(t.Context(), options(t, s))
		skew, skewed := errors.AsType[*inprocess.SkewError](err)
		if skewed == fits || skewed && (skew.Ahead-ahead).Abs() > 5*time.Second || !skewed && err != nil {
			t.Fatalf("ahead by %s: %v", ahead, err)
		}
		get := client.GetRequest{RunKey: client.RunKey{Tenant: "-", Run: "r"}}
		before := s.calls.Load()
		if _, err := api.Get(t.Context(), get); (client.CodeOf(err) == client.UnknownRun) != fits {
			t.Errorf("ahead by %s: %v", ahead, err)
		}
		if calls := s.calls.Load() - before; calls != 1 {
			t.Errorf("ahead by %s: %d calls", ahead, calls)
		}
		s.ahead.Store(0)
		for range 2 { // the first call may have been the one that tells
			_, err = api.Get(t.Context(), get)
		}
		if client.CodeOf(err) != client.UnknownRun {
			t.Errorf("put right: %v", err)
		}
	}
}

// TestRefusalsAreThoseOfTheFunction: code and text, of a condition and of bad input.
func TestRefusalsAreThoseOfTheFunction(t *testing.T) {
	api, err := inprocess.Open(t.Context(), options(t, &stores{}))
	if err != nil {
		t.Fatal(err)
	}
	_, unknown := api.Get(t.Context(), client.GetRequest{RunKey: client.RunKey{Tenant: "-", Run: "r"}})
	_, invalid := api.Renew(t.Context(), client.HostRequest{RunKey: client.RunKey{Tenant: "-", Run: "r"}, Host: "h"})
	for code, err := range map[client.Code]error{client.UnknownRun: unknown, "invalid-host": invalid} {
		if e, ok := errors.AsType[*client.RefusedError](err); !ok || e.Code != code || e.Message == "" || strings.HasPrefix(e.Message, string(code)) {
			t.Errorf("%v, want %s", err, code)
		}
	}
}

// TestTheLimitsAreTheInstallations: a host in process keeps to what the stack chose, and
// does not begin with limits that it cannot read.
func TestTheLimitsAreTheInstallations(t *testing.T) {
	o := options(t, &stores{})
	o.Outputs = maps.Clone(outputs)
	o.Outputs["Limits"] = `{"runTTL":"soon"}`
	if _, err := inprocess.Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "runTTL") {
		t.Errorf("limits that cannot be read: %v", err)
	}
}

// TestEveryOutputIsWanted, by name.
func TestEveryOutputIsWanted(t *testing.T) {
	o := options(t, &stores{})
	for key := range outputs {
		o.Outputs = map[string]string{}
		for k, v := range outputs {
			if k != key {
				o.Outputs[k] = v
			}
		}
		if _, err := inprocess.Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("without %s: %v", key, err)
		}
	}
}
