package ddb_test

import (
	"errors"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// TestDefinitionsAreKeptByVersion: the newest stands, the same again is success, an older
// or changed one is refused.
func TestDefinitionsAreKeptByVersion(t *testing.T) {
	v := newTables(t)
	boxes := ddb.NewSandboxes(dynamodb.NewFromConfig(v.config), names.Sandboxes.Name+v.suffix)
	d := core.Definition{
		Name: "agent", Version: 2, Task: core.TaskTemplate{TaskDefinition: "f", Container: "c", Subnets: []string{"s"}, Tags: map[string]string{"a": "b"}},
		Secrets: []core.SecretPlan{{Name: "TOKEN"}}, Capture: core.CapturePlan{Policy: []byte(`{"exclude":["x"]}`)},
	}
	if _, err := boxes.Definition(t.Context(), "agent"); !errors.Is(err, core.ErrNotFound) {
		t.Errorf("before any: %v", err)
	}
	for range 2 {
		if err := boxes.PutDefinition(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	changed, older, newer := d, d, d
	changed.MaxAgeSeconds, older.Version, newer.Version = 5, 1, 3
	for what, other := range map[string]core.Definition{"changed": changed, "older": older} {
		if err := boxes.PutDefinition(t.Context(), other); !core.Refused(err) {
			t.Errorf("%s: %v, want a refusal", what, err)
		}
	}
	if got, err := boxes.Definition(t.Context(), "agent"); err != nil || got.Version != 2 || string(got.Capture.Policy) != `{"exclude":["x"]}` {
		t.Errorf("read %+v, %v", got, err)
	}
	if err := boxes.PutDefinition(t.Context(), newer); err != nil {
		t.Fatal(err)
	}
	if got, err := boxes.Definition(t.Context(), "agent"); err != nil || got.Version != 3 {
		t.Errorf("read %+v, %v", got, err)
	}
	if err := boxes.PutDefinition(t.Context(), core.Definition{Name: "agent"}); err == nil {
		t.Error("an invalid definition is kept")
	}
}

// TestHistoryListsAThread, newest first.
func TestHistoryListsAThread(t *testing.T) {
	v := newTables(t)
	runs := ddb.NewRuns(dynamodb.NewFromConfig(v.config), names.Runs.Name+v.suffix)
	history := ddb.NewHistory(dynamodb.NewFromConfig(v.config), names.Runs.Name+v.suffix)
	for i, run := range []core.RunID{"old", "new", "other"} {
		r := core.Run{
			RunKey: core.RunKey{Tenant: "acme", Run: run}, Thread: "t", Status: core.Running, StartedAt: core.Millis(1000 + i), Row: core.RowLapse,
			DueAt: 5, AttachedUntil: 5, Epoch: 1, ClaimNonce: "n",
		}
		if run == "other" {
			r.Thread = "u"
		}
		if _, err := runs.Create(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	keys, err := history.ThreadRuns(t.Context(), core.ThreadKey{Tenant: "acme", Thread: "t"})
	if err != nil || len(keys) != 2 || keys[0].Run != "new" || keys[1].Run != "old" {
		t.Errorf("listed %v, %v", keys, err)
	}
}
