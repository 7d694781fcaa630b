package lambdacheckpoint_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/lambdacheckpoint"
)

// TestASessionsKeeperAsksTheFunction: each call under its own name, a refusal as core's,
// a fault as neither.
func TestASessionsKeeperAsksTheFunction(t *testing.T) {
	var event, answer string
	client := api(t, func(w http.ResponseWriter, _ *http.Request, body []byte) {
		event = string(body)
		fmt.Fprint(w, answer)
	})
	k := lambdacheckpoint.Keeper{Caller: &lambdacheckpoint.Caller{Lambda: client, Function: "f", Timeout: time.Minute}}
	thread := core.ThreadKey{Tenant: "acme", Thread: "t"}
	calls := map[string]struct {
		answer string
		do     func() (any, error)
		want   any
		sent   any
	}{
		"save": {
			`{"save":{"id":"checkpoint-r","kind":"capture","state":"done","checkpoint":"checkpoint-r"}}`,
			func() (any, error) { return k.Save(t.Context(), save) },
			core.StepReport{ID: "checkpoint-r", Kind: core.StepCapture, State: core.StepDone, Checkpoint: "checkpoint-r"}, save,
		},
		"restore": {
			`{"restore":{"id":"checkpoint-r","kind":"restore","state":"working"}}`,
			func() (any, error) {
				return k.Restore(t.Context(), core.RestoreRequest{ThreadKey: thread, ID: "checkpoint-r", Owner: "run:r", Key: "k", Instance: "i"})
			},
			core.StepReport{ID: "checkpoint-r", Kind: core.StepRestore, State: core.StepWorking},
			core.RestoreRequest{ThreadKey: thread, ID: "checkpoint-r", Owner: "run:r", Key: "k", Instance: "i"},
		},
		"putConversation": {
			`{"putConversation":{"version":3,"runs":["r"]}}`,
			func() (any, error) {
				c, err := k.PutConversation(t.Context(), thread, 2, []byte("said"), []core.RunID{"r"})
				return c.Version, err
			},
			int64(3), map[string]any{"tenant": "acme", "thread": "t", "seen": 2, "data": []byte("said"), "runs": []string{"r"}},
		},
	}
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			answer = c.answer
			got, err := c.do()
			if err != nil || got != c.want {
				t.Errorf("answered %+v, %v, want %+v", got, err, c.want)
			}
			if !sameJSON(t, event, map[string]any{name: c.sent}) {
				t.Errorf("sent %s", event)
			}
			answer = `{"error":{"code":"writer-conflict","message":"another writes"}}`
			if _, err := c.do(); !core.Refused(err) {
				t.Errorf("refused: %v", err)
			} else if e, _ := errors.AsType[*core.RefusedError](err); e.Why != "writer-conflict" {
				t.Errorf("refused for %q", e.Why)
			}
			answer = `{}`
			if _, err := c.do(); err == nil || core.Refused(err) {
				t.Errorf("an answer that is none: %v", err)
			}
		})
	}
}

func sameJSON(t *testing.T, got string, want any) bool {
	t.Helper()
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var a, b any
	if err := errors.Join(json.Unmarshal([]byte(got), &a), json.Unmarshal(text, &b)); err != nil {
		t.Fatal(err)
	}
	x, errA := json.Marshal(a)
	y, errB := json.Marshal(b)
	return errors.Join(errA, errB) == nil && string(x) == string(y)
}
