package core_test

import (
	"testing"
	"testing/synctest"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// TestAStartGoesOnWithItsDefinition: by name that is the version that was the newest when it
// began; with another definition it is refused, and changes nothing.
func TestAStartGoesOnWithItsDefinition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		h.complete()
		q := fullStart("r", "one")
		other := *q.Definition
		q.DefinitionName, q.Definition = other.Name, nil
		first, err := h.self().Start(t.Context(), q)
		h.must(err)
		if first.State != core.Provisioning || first.Run.Definition != "d@1" {
			t.Fatalf("begun: %+v", first)
		}
		other.Version, other.Workspace.Root = 2, "/elsewhere"
		h.store.SeedDefinition(other)
		before := h.run("r")
		for what, change := range map[string]func(q *core.StartRequest){
			"the newer version":       func(q *core.StartRequest) { q.DefinitionName = "d@2" },
			"another of that version": func(q *core.StartRequest) { d := other; d.Version = 1; q.Definition, q.DefinitionName = &d, "" },
			"another name":            func(q *core.StartRequest) { d := other; d.Name = "e"; q.Definition, q.DefinitionName = &d, "" },
		} {
			changed := q
			change(&changed)
			_, err := h.self().Start(t.Context(), changed)
			refusedFor(t, "start with "+what, err, "another-definition")
		}
		if after := h.run("r"); after.Start != before.Start || after.SandboxKey != before.SandboxKey || after.Definition != before.Definition {
			t.Errorf("run %+v, want %+v", after, before)
		}
		if report := h.ready(q); report.Run.TaskARN != first.Run.TaskARN || report.Run.Definition != "d@1" || len(h.fleet.Running()) != 1 {
			t.Errorf("gone on: %+v", report)
		}
		h.check()
	})
}
