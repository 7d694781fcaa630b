package client_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/sandkeeper/sandkeeper/client"
)

// TestCheckpointCallsAreWhatTheFunctionReads, member by member.
func TestCheckpointCallsAreWhatTheFunctionReads(t *testing.T) {
	ctx, thread := t.Context(), client.ThreadKey{Tenant: "acme", Thread: "t"}
	for want, do := range map[string]func(c *client.Checkpoints) error{
		`{"list":{"tenant":"acme","thread":"t"}}`:          func(c *client.Checkpoints) error { _, err := c.List(ctx, thread); return err },
		`{"head":{"tenant":"acme","thread":"t"}}`:          func(c *client.Checkpoints) error { _, err := c.Head(ctx, thread); return err },
		`{"show":{"tenant":"acme","thread":"t","id":"c"}}`: func(c *client.Checkpoints) error { _, err := c.Show(ctx, thread, "c"); return err },
		`{"diff":{"tenant":"acme","thread":"t","from":"a","to":"b","limit":3}}`: func(c *client.Checkpoints) error {
			_, err := c.Diff(ctx, thread, "a", "b", 3)
			return err
		},
		`{"artifact":{"tenant":"acme","thread":"t","id":"c","artifact":"a"}}`: func(c *client.Checkpoints) error {
			_, err := c.Artifact(ctx, thread, "c", "a")
			return err
		},
		`{"putArtifact":{"tenant":"acme","thread":"t","run":"r","id":"a","name":"n","mime":"text/plain","createdAt":1,"data":"eA=="}}`: func(c *client.Checkpoints) error {
			_, err := c.PutArtifact(ctx, thread, client.Artifact{Run: "r", ID: "a", Name: "n", MIME: "text/plain", CreatedAt: 1, Data: []byte("x")})
			return err
		},
		`{"conversation":{"tenant":"acme","thread":"t"}}`: func(c *client.Checkpoints) error { _, err := c.Conversation(ctx, thread); return err },
		`{"putConversation":{"tenant":"acme","thread":"t","seen":2,"data":"W10=","runs":["r"]}}`: func(c *client.Checkpoints) error {
			_, err := c.PutConversation(ctx, thread, 2, []byte("[]"), "r")
			return err
		},
		`{"fork":{"source":{"tenant":"acme","thread":"t"},"branches":[{"thread":"b","id":"i"}]}}`: func(c *client.Checkpoints) error {
			_, err := c.Fork(ctx, client.ForkRequest{Source: thread, Branches: []client.ForkBranch{{Thread: "b", ID: "i"}}})
			return err
		},
		`{"tool":{"tenant":"acme","thread":"t","run":"r","branch":"b","tool":"fork_sandbox_snapshot","args":{}}}`: func(c *client.Checkpoints) error {
			_, err := c.Tool(ctx, client.ToolCall{ThreadKey: thread, Run: "r", Branch: "b", Tool: "fork_sandbox_snapshot", Args: json.RawMessage(`{}`)})
			return err
		},
	} {
		var members map[string]json.RawMessage
		if err := json.Unmarshal([]byte(want), &members); err != nil {
			t.Fatal(err)
		}
		for name := range members {
			answer := `{"` + name + `":{}}`
			if name == "list" || name == "fork" {
				answer = `{"` + name + `":[]}`
			}
			i := &invoked{answers: []invocation{{payload: answer}}}
			c := client.NewCheckpoints(aws.Config{}, "checkpoint")
			c.By(i)
			if err := do(c); err != nil || i.events[0] != want {
				t.Errorf("%v, event\n%s, want\n%s", err, i.events[0], want)
			}
		}
	}
}

// TestAStepIsAskedForUntilItHasEnded, and failed is an end.
func TestAStepIsAskedForUntilItHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		working := invocation{payload: `{"save":{"id":"c","kind":"capture","state":"working"}}`}
		i := &invoked{answers: []invocation{working, working, {payload: `{"save":{"id":"c","kind":"capture","state":"failed","why":"agent-missing"}}`}}}
		c := client.NewCheckpoints(aws.Config{}, "checkpoint")
		c.By(i)
		begun := time.Now()
		report, err := c.Save(t.Context(), client.SaveRequest{ID: "c"})
		if err != nil || report.State != client.StepFailed || report.Why != "agent-missing" || len(i.events) != 3 || time.Since(begun) != 2*time.Second {
			t.Errorf("%+v, %v after %d calls and %s", report, err, len(i.events), time.Since(begun))
		}
	})
}
