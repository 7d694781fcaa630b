package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// TestDefinitionsArePutListedAndShown: each version once, the newest by its name.
func TestDefinitionsArePutListedAndShown(t *testing.T) {
	w := installed(t)
	file := filepath.Join(t.TempDir(), "d.json")
	text := `{"name": "cli", "version": 1, "task": {"taskDefinition": "f", "container": "c", "subnets": ["s"]}, "secrets": ["A"], "idleTtlSeconds": 60}`
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put := []string{"definitions", "put", file, "--why", "a test"}
	if a := sandkeeper(t, "definitions", "put", file+"x", "--why", "a test").wants(t, exitUsage); !strings.Contains(a.err, "read definition: want a file, or a directory of files: ") {
		t.Errorf("a file that is not there: %q", a.err)
	}
	write(text)
	w.unchanged(t, func() {
		sandkeeper(t, append(put, "--dry-run")...).wants(t, exitDone)
		sandkeeper(t, "definitions", "show", "cli").wants(t, exitNotFound)
		sandkeeper(t, "definitions", "show", "cli@x").wants(t, exitUsage)
	})
	sandkeeper(t, put...).wants(t, exitDone)
	sandkeeper(t, put...).wants(t, exitDone) // as it is
	write(strings.Replace(text, "60", "61", 1))
	if a := sandkeeper(t, put...).wants(t, exitRefused); !strings.Contains(a.err, "want a version that is not kept yet, cli@1 is and differs") {
		t.Errorf("another definition under a number that is taken: %q", a.err)
	}
	write(strings.Replace(text, `"version": 1`, `"version": 2`, 1))
	sandkeeper(t, put...).wants(t, exitDone)
	write(strings.Replace(text, "idleTtlSeconds", "idleTTL", 1))
	if a := sandkeeper(t, put...).wants(t, exitUsage); !strings.Contains(a.err, "idleTTL") {
		t.Errorf("an unknown member: %q", a.err)
	}
	list := slices.DeleteFunc(read[struct{ Definitions []definitionView }](t, exitDone, "definitions", "list").Definitions, func(d definitionView) bool {
		return d.Name != "cli" // another test's
	})
	if len(list) != 2 || list[0].Version != 1 || list[1].Version != 2 || list[0].Secrets != 1 || list[0].Hash == list[1].Hash {
		t.Errorf("listed %+v", list)
	}
	for ref, version := range map[string]int{"cli": 2, "cli@1": 1} {
		if d := read[core.Definition](t, exitDone, "definitions", "show", ref); d.Version != version || d.IdleTTLSeconds != 60 {
			t.Errorf("%s: %+v", ref, d)
		}
	}
	sandkeeper(t, "definitions", "show", "cli@3").wants(t, exitNotFound)
}

// TestADirectoryOfDefinitionsIsPut: all that are new, or, where one of them is wrong, none.
func TestADirectoryOfDefinitionsIsPut(t *testing.T) {
	w := installed(t)
	dir := t.TempDir()
	write := func(file, text string) {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := func(name, version string) string {
		return `{"name": "` + name + `", "version": ` + version + `, "task": {"taskDefinition": "f", "container": "c", "subnets": ["s"]}}`
	}
	put := []string{"definitions", "put", dir, "--why", "a test"}
	refused := func(want string) {
		t.Helper()
		w.unchanged(t, func() {
			if a := sandkeeper(t, put...).wants(t, exitUsage); !strings.Contains(a.err, want) {
				t.Errorf("told %q, want %q", a.err, want)
			}
		})
	}
	refused("want files that end in .json")
	write("README", "of another kind")
	write("a.json", text("dir-a", "1"))
	write("b.json", `{"name": "dir-b"}`)
	refused("b.json")
	write("b.json", text("dir-a", "1"))
	refused("a.json too")
	write("b.json", text("dir-b", "4"))
	for range 2 {
		got := read[struct{ Definitions []definitionView }](t, exitDone, put...).Definitions
		if len(got) != 2 || got[0].Name != "dir-a" || got[1].Version != 4 {
			t.Errorf("put %+v", got)
		}
	}
	sandkeeper(t, "definitions", "show", "dir-b@4").wants(t, exitDone)
}
