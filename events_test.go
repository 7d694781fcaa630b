package sandkeeper_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// TestEveryOutboundEventIsDocumented: whoever writes a rule for them has docs/events.md and
// nothing else. Each type and each member has its row, and no row is about another; the
// example is one.
func TestEveryOutboundEventIsDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("docs", "events.md"))
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile(filepath.Join("internal", "core", "notice.go"))
	if err != nil {
		t.Fatal(err)
	}
	var types []string
	for _, found := range regexp.MustCompile(`(?m)^\tNotice\w+ +NoticeType = "([a-z.]+)"`).FindAllSubmatch(code, -1) {
		types = append(types, string(found[1]))
	}
	sameRows(t, "type", rowsOf(string(page), "| detail type |"), types)
	var members []string
	for _, field := range reflect.VisibleFields(reflect.TypeFor[core.Notice]()) {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
			members = append(members, name)
		}
	}
	sameRows(t, "member", rowsOf(string(page), "| member of `detail` |"), members)

	_, rest, _ := strings.Cut(string(page), "```json\n")
	example, _, _ := strings.Cut(rest, "```")
	var event struct {
		Source     string          `json:"source"`
		DetailType string          `json:"detail-type"`
		Time       string          `json:"time"`
		Detail     json.RawMessage `json:"detail"`
	}
	var notice core.Notice
	if err := json.Unmarshal([]byte(example), &event); err != nil {
		t.Fatal(err)
	}
	if err := core.DecodeStrict(event.Detail, &notice); err != nil {
		t.Fatal(err)
	}
	if event.Source != names.SourceOwn || event.DetailType != string(notice.Type) || notice.At.Time().UTC().Format("2006-01-02T15:04:05Z") != event.Time {
		t.Errorf("the example: %+v with %+v", event, notice)
	}
}

// rowsOf are the names in the first column of the table that begins with head.
func rowsOf(page, head string) []string {
	_, table, _ := strings.Cut(page, head)
	var names []string
	for line := range strings.Lines(table) {
		if strings.TrimSpace(line) == "" {
			break
		}
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		names = append(names, codeOf(first)...)
	}
	return names
}

func sameRows(t *testing.T, what string, documented, coded []string) {
	t.Helper()
	slices.Sort(documented)
	slices.Sort(coded)
	if !slices.Equal(documented, coded) || len(coded) == 0 {
		t.Errorf("%ss in docs/events.md: %q, in the code %q", what, documented, coded)
	}
}
