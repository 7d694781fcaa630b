package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// TestWhatWasAskedForGoesOn: Ctrl-C ends the waiting for a function and not the function,
// and the operator is told.
func TestWhatWasAskedForGoesOn(t *testing.T) {
	thread := core.ThreadKey{Tenant: "acme", Thread: "t"}
	for what, ask := range map[string]func(ctx context.Context, in *installation) error{
		"a sweep": func(ctx context.Context, in *installation) error {
			_, err := in.reap(ctx, core.SweepRequest{Mode: core.ModeSweep})
			return err
		},
		"a deletion": func(ctx context.Context, in *installation) error {
			return in.checkpoint(ctx, "deleteThread", thread, core.DeleteThreadRequest{ThreadKey: thread, Apply: true}, &core.DeleteThreadReport{})
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		asked := 0
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			asked++
			_, _ = io.Copy(io.Discard, r.Body)
			cancel()
			<-r.Context().Done()
		}))
		in := &installation{
			lambda: lambda.New(lambda.Options{BaseEndpoint: &server.URL, Region: "eu-west-1", Credentials: credentials.NewStaticCredentialsProvider("test", "test", "")}),
			out:    map[names.Output]string{names.OutReapFunction: "sandkeeper-reap", names.OutCheckpoint: "sandkeeper-checkpoint"},
		}
		var errs strings.Builder
		code := report(&console.Console{Err: &errs}, ask(ctx, in))
		server.Close()
		if code != exitInterrupted || asked != 1 || !strings.Contains(errs.String(), "interrupted: sandkeeper-") || !strings.Contains(errs.String(), "goes on") {
			t.Errorf("%s, asked %d times: exit code %d, %s", what, asked, code, errs.String())
		}
	}
}
