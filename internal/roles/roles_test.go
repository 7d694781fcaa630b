package roles_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/roles"
)

// TestTheDocumentShowsTheTable, the one from which roles are tested. With UPDATE set it
// writes it anew.
func TestTheDocumentShowsTheTable(t *testing.T) {
	const file = "../../ARCHITECTURE.md"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	begin := strings.Index(text, "| role | trigger |")
	if begin < 0 {
		t.Fatal("no table of roles")
	}
	end := min(begin+strings.Index(text[begin:]+"\n\n", "\n\n")+1, len(text))
	if text[begin:end] == roles.Markdown() {
		return
	}
	if os.Getenv("UPDATE") == "" {
		t.Fatalf("it shows\n%s\nwant\n%s\nUPDATE=1 go test ./internal/roles writes it", text[begin:end], roles.Markdown())
	}
	if err := os.WriteFile(file, []byte(text[:begin]+roles.Markdown()+text[end:]), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestEveryFunctionHasItsRow, and no line is said twice.
func TestEveryFunctionHasItsRow(t *testing.T) {
	for _, f := range names.Functions {
		if len(roles.Of[string(f)+"-role"]) == 0 {
			t.Errorf("%s has no row", f)
		}
	}
	for name, lines := range roles.Of {
		if n := len(slices.Compact(slices.Clone(lines))); n != len(lines) {
			t.Errorf("%s: %d lines are said twice", name, len(lines)-n)
		}
	}
}

// TestOnlyTheDesignsFunctionsDestroy: the rules that no change of a phrase may break.
func TestOnlyTheDesignsFunctionsDestroy(t *testing.T) {
	for action, may := range map[string][]string{
		"ecs:StopTask": {"reclaim-role"}, "ecs:RunTask": {"session-role"}, "iam:PassRole": {"session-role"},
		"ecs:ExecuteCommand":     {"checkpoint-role", "probe-role", "session-role"},
		"dynamodb:Scan":          nil,
		"dynamodb:DeleteItem":    {"checkpoint-role", "reclaim-role", "session-role"},
		"s3:DeleteObjectVersion": {"checkpoint-role"}, "s3:DeleteObject": nil,
	} {
		var got []string
		for name, lines := range roles.Of {
			if slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, action+" ") }) {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, may) {
			t.Errorf("%s: %v may, want %v", action, got, may)
		}
	}
}
