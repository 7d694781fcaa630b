package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/lambda/types"

	"github.com/sandkeeper/sandkeeper/client"
)

// invoked answers invocations one after another, the last one for ever.
type invoked struct {
	answers []invocation
	events  []string
	name    string
}

type invocation struct {
	payload string
	failed  bool // FunctionError
	err     error
}

func (i *invoked) Invoke(_ context.Context, in *lambda.InvokeInput, _ ...func(*lambda.Options)) (*lambda.InvokeOutput, error) {
	i.name = *in.FunctionName
	i.events = append(i.events, string(in.Payload))
	a := i.answers[min(len(i.events), len(i.answers))-1]
	if a.err != nil {
		return nil, a.err
	}
	out := &lambda.InvokeOutput{Payload: []byte(a.payload)}
	if a.failed {
		out.FunctionError = new("Unhandled")
	}
	return out, nil
}

var found = invocation{payload: `{"get":{"tenant":"acme","run":"r","thread":"t","status":"running","startedAt":1,"logEnd":7}}`}

func TestAnswersThatDoNotComeAreAskedForAgain(t *testing.T) {
	for what, c := range map[string]struct {
		answers []invocation
		calls   int
		code    client.Code
		says    string
	}{
		"an answer":                      {[]invocation{found}, 1, "", ""},
		"a function that fails":          {[]invocation{{payload: `{"errorMessage":"timed out"}`, failed: true}, found}, 2, "", ""},
		"a network that fails":           {[]invocation{{err: errors.New("connection reset")}, {err: errors.New("connection reset")}, found}, 3, "", ""},
		"too many requests":              {[]invocation{{err: &types.TooManyRequestsException{}}, found}, 2, "", ""},
		"Lambda's own fault":             {[]invocation{{err: &types.ServiceException{}}, found}, 2, "", ""},
		"an answer that is none":         {[]invocation{{payload: `{}`}, {payload: `[`}, {payload: `{"error":{}}`}, found}, 4, "", ""},
		"a refusal is one":               {[]invocation{{payload: `{"error":{"code":"unknown-run","message":"get run r: refused"}}`}, found}, 1, client.UnknownRun, "get: unknown-run: get run r: refused"},
		"a function that is not there":   {[]invocation{{err: &types.ResourceNotFoundException{}}, found}, 1, "", "ResourceNotFoundException"},
		"a request that is too long":     {[]invocation{{err: &types.RequestTooLargeException{}}, found}, 1, "", "RequestTooLargeException"},
		"an answer that does not come":   {[]invocation{{err: errors.New("no route")}}, 5, "", "no answer to 5 calls"},
		"a function that fails for ever": {[]invocation{{payload: `{"errorMessage":"x"}`, failed: true}}, 5, "", "failed"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := &invoked{answers: c.answers}
				f := &client.Function{Lambda: i, Name: "session:acme"}
				run, err := f.Get(t.Context(), client.GetRequest{RunKey: key})
				if len(i.events) != c.calls || client.CodeOf(err) != c.code || i.name != "session:acme" {
					t.Fatalf("%d calls of %s: %v", len(i.events), i.name, err)
				}
				if c.says == "" && (err != nil || run.LogEnd != 7) || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
					t.Errorf("%+v, %v, want %q", run, err, c.says)
				}
				for _, event := range i.events {
					if event != `{"get":{"tenant":"acme","run":"r"}}` {
						t.Errorf("event %s", event)
					}
				}
			})
		})
	}
}

// TestACallEndsWithItsContext, and what was done is open.
func TestACallEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		f := &client.Function{Lambda: &invoked{answers: []invocation{{err: errors.New("no route")}}}, Name: "session", Attempts: 100}
		begun := time.Now()
		_, err := f.Get(ctx, client.GetRequest{RunKey: key})
		if _, ok := errors.AsType[*client.NoAnswerError](err); !ok || time.Since(begun) != time.Second {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
	})
}

// TestEveryOperationIsCalledByItsName.
func TestEveryOperationIsCalledByItsName(t *testing.T) {
	ctx := t.Context()
	for name, do := range map[string]func(f client.API) error{
		"start":     func(f client.API) error { _, err := f.Start(ctx, client.StartRequest{}); return err },
		"adopt":     func(f client.API) error { _, err := f.Adopt(ctx, client.AdoptRequest{}); return err },
		"attach":    func(f client.API) error { _, err := f.Attach(ctx, client.AttachRequest{}); return err },
		"renew":     func(f client.API) error { _, err := f.Renew(ctx, client.HostRequest{}); return err },
		"tail":      func(f client.API) error { _, err := f.Tail(ctx, client.TailRequest{}); return err },
		"segments":  func(f client.API) error { _, err := f.Segments(ctx, client.SegmentsRequest{}); return err },
		"detach":    func(f client.API) error { _, err := f.Detach(ctx, client.HostRequest{}); return err },
		"interrupt": func(f client.API) error { _, err := f.Interrupt(ctx, client.HostRequest{}); return err },
		"cancel":    func(f client.API) error { _, err := f.Cancel(ctx, client.CancelRequest{}); return err },
		"finish":    func(f client.API) error { _, err := f.Finish(ctx, client.FinishRequest{}); return err },
		"fail":      func(f client.API) error { _, err := f.Fail(ctx, client.FailRequest{}); return err },
		"get":       func(f client.API) error { _, err := f.Get(ctx, client.GetRequest{}); return err },
		"list":      func(f client.API) error { _, err := f.List(ctx, client.ListRunsRequest{}); return err },
	} {
		i := &invoked{answers: []invocation{{payload: `{"` + name + `":{}}`}}}
		if err := do(&client.Function{Lambda: i, Name: "session"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal([]byte(i.events[0]), &members); err != nil || len(members) != 1 || members[name] == nil {
			t.Errorf("%s is called by %s", name, i.events[0])
		}
	}
}
