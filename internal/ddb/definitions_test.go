package ddb_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// TestDefinitionsAreKeptByVersion: each stands as it was put, once; the name means the
// newest, in whatever order they came.
func TestDefinitionsAreKeptByVersion(t *testing.T) {
	v := newTables(t)
	boxes := ddb.NewSandboxes(dynamodb.NewFromConfig(v.config), names.Sandboxes.Name+v.suffix)
	d := core.Definition{
		Name: "agent", Version: 2, Task: core.TaskTemplate{TaskDefinition: "f", Container: "c", Subnets: []string{"s"}, Tags: map[string]string{"a": "b"}},
		Secrets: []core.SecretPlan{{Name: "TOKEN"}}, Capture: core.CapturePlan{Policy: []byte(`{"exclude":["x"]}`)},
	}
	for _, version := range []int{0, 2} {
		if _, err := boxes.Definition(t.Context(), "agent", version); !errors.Is(err, core.ErrNotFound) {
			t.Errorf("before any: %v", err)
		}
	}
	other, older, newer := d, d, d
	other.Name, older.Version, newer.Version = "agent-2", 1, 10
	for _, put := range []core.Definition{d, d, newer, other, older, newer} {
		if err := boxes.PutDefinition(t.Context(), put); err != nil {
			t.Fatal(err)
		}
	}
	changed := d
	changed.MaxAgeSeconds = 1
	if err := boxes.PutDefinition(t.Context(), changed); !core.Refused(err) {
		t.Errorf("a version put anew: %v", err)
	}
	if err := boxes.PutDefinition(t.Context(), core.Definition{Name: "agent"}); err == nil {
		t.Error("one that is not valid is kept")
	}
	for version, want := range map[int]int{0: 10, 1: 1, 2: 2, 10: 10} {
		got, err := boxes.Definition(t.Context(), "agent", version)
		if err != nil || got.Version != want || string(got.Capture.Policy) != `{"exclude":["x"]}` {
			t.Errorf("version %d: %+v, %v", version, got, err)
		}
	}
	all, err := boxes.ListDefinitions(t.Context())
	var refs []string
	for _, d := range all {
		refs = append(refs, d.Ref())
	}
	if want := []string{"agent@1", "agent@2", "agent@10", "agent-2@2"}; err != nil || !slices.Equal(refs, want) {
		t.Errorf("listed %q, %v, want %q", refs, err, want)
	}
}
