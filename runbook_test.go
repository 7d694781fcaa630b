package sandkeeper_test

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/metrics"
)

// TestTheRunbookHasAPartForEachAlarm, in the alarms' order, and no other; each says all
// that an operator needs at night.
func TestTheRunbookHasAPartForEachAlarm(t *testing.T) {
	data, err := os.ReadFile("docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, heading := range regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(string(data), -1) {
		got = append(got, heading[1])
	}
	for _, a := range metrics.Alarms {
		want = append(want, a.Name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("parts %q, want %q", got, want)
	}
	for _, part := range strings.Split(string(data), "\n## ")[1:] {
		name, _, _ := strings.Cut(part, "\n")
		for _, says := range []string{"**Means.**", "**Look at.**", "**Do.**", "**Ends**"} {
			if !strings.Contains(part, says) {
				t.Errorf("%s has no %s", name, says)
			}
		}
	}
}

// TestLinksLeadToHeadings: a part of a page that is linked to is there.
func TestLinksLeadToHeadings(t *testing.T) {
	anchors := map[string]bool{}
	for _, p := range readPages(t) {
		for _, heading := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(p.text, -1) {
			anchors[p.path+"#"+anchor(heading[1])] = true
		}
	}
	seen := 0
	for _, p := range readPages(t) {
		for _, link := range regexp.MustCompile(`\]\(([\w./-]*)#([^)]+)\)`).FindAllStringSubmatch(p.text, -1) {
			at := p.path
			if link[1] != "" {
				at = path.Join(path.Dir(p.path), link[1])
			}
			seen++
			if !anchors[at+"#"+link[2]] {
				t.Errorf("%s links to %s#%s, which is no heading", p.path, at, link[2])
			}
		}
	}
	if seen == 0 {
		t.Error("no page links to a heading")
	}
}

// anchor is how a heading is linked to.
func anchor(heading string) string {
	return strings.ReplaceAll(regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}
