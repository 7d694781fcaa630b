package boot_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/events"

	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// TestACallNamesOneOperation of those that are known, or is refused by what is wanted.
func TestACallNamesOneOperation(t *testing.T) {
	known := map[string]int{"get": 1, "list": 2}
	name, op, body, err := boot.Call(json.RawMessage(`{"list": {"a": 1}}`), known)
	if err != nil || name != "list" || op != 2 || string(body) != `{"a": 1}` {
		t.Errorf("%q %d %s, %v", name, op, body, err)
	}
	for event, says := range map[string]string{
		``: "one of get, list", `[]`: "one of get, list", `null`: "exactly one of get, list, got 0", `{}`: "got 0 members",
		`{"get": {}, "list": {}}`: "got 2 members", `{"stop": {}}`: `got "stop"`, `{"get": {}} x`: "one of get, list",
	} {
		name, op, body, err := boot.Call(json.RawMessage(event), known)
		refused, ok := errors.AsType[*core.InvalidError](err)
		if !ok || refused.Code != "bad-request" || !strings.Contains(refused.Detail, says) || name != "" || op != 0 || body != nil {
			t.Errorf("%s: %q %d %s, %v, want a refusal that says %q", event, name, op, body, err, says)
		}
	}
}

// TestRequestsToURLs are read as they were sent.
func TestRequestsToURLs(t *testing.T) {
	for header, want := range map[string]string{"Bearer x": "x", "Bearer ": "", "bearer x": "", "x": "", "": ""} {
		r := events.LambdaFunctionURLRequest{Headers: map[string]string{"authorization": header}}
		if got, ok := boot.Bearer(r); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %t", header, got, ok)
		}
	}
	for _, c := range []struct {
		body    string
		encoded bool
		want    string
		fails   bool
	}{{"{}", false, "{}", false}, {"e30=", true, "{}", false}, {"e30=", false, "e30=", false}, {"{}", true, "", true}} {
		got, err := boot.Body(events.LambdaFunctionURLRequest{Body: c.body, IsBase64Encoded: c.encoded})
		if _, invalid := errors.AsType[*core.InvalidError](err); string(got) != c.want || invalid != c.fails || !invalid && err != nil {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
}

// TestAnswersOfURLs are JSON, unescaped and stored by nobody.
func TestAnswersOfURLs(t *testing.T) {
	out, err := boot.Respond(404, map[string]string{"said": "<no>"})
	if err != nil || out.StatusCode != 404 || out.Body != `{"said":"<no>"}` ||
		out.Headers["Content-Type"] != "application/json" || out.Headers["Cache-Control"] != "no-store" {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := boot.Respond(200, func() {}); err == nil {
		t.Error("an answer that is no JSON is written")
	}
}
