package sandkeeper

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/cdklabs/cdk-nag-go/cdknag/v2"
)

// TestAwsSolutionsFindsNothing that is not suppressed with a reason, and every reason is
// about something.
func TestAwsSolutionsFindsNothing(t *testing.T) {
	dir := t.TempDir()
	binaries(dir)
	used := map[string]bool{}
	variants, err := filepath.Glob(filepath.Join("..", "variants", "*.json"))
	if err != nil || len(variants) < 3 {
		t.Fatalf("variants %q, %v", variants, err)
	}
	for _, file := range append(variants, "") {
		choices, err := ReadChoices(file)
		if err != nil {
			t.Fatal(err)
		}
		examine(t, "variant "+filepath.Base(file), dir, choices, used)
	}
	examine(t, "a bundle", dir, map[string]any{"bundle": t.TempDir()}, used)
	for _, s := range suppressions {
		if !used[s.reason] {
			t.Errorf("%s of %s: nothing is suppressed by %q", s.rule, s.kind, s.reason)
		}
	}
}

// examine has cdk-nag look at the stack of an app with that context.
func examine(t *testing.T, name, dist string, choices map[string]any, used map[string]bool) {
	t.Run(name, func(t *testing.T) {
		context := maps.Clone(choices)
		if context["spoke"] == nil { // which stands alone
			context["dist"] = dist
		}
		out := t.TempDir()
		app := awscdk.NewApp(&awscdk.AppProps{Outdir: &out, Context: &context})
		if spoke, ok := SpokeFromContext(app); ok {
			NewSpokeStack(app, spoke)
		} else {
			NewStack(app, FromContext(app))
		}
		awscdk.Aspects_Of(app).Add(cdknag.NewAwsSolutionsChecks(&cdknag.NagPackProps{
			Reports: new(true), ReportFormats: &[]cdknag.NagReportFormat{cdknag.NagReportFormat_JSON},
		}), nil)
		app.Synth(nil)
		report(t, out, used)
	})
}

// finding begins the reason of what is suppressed in part.
var finding = regexp.MustCompile(`^\[Resource::.*?\] `)

// report fails for what a report found, and notes the reasons that it gives.
func report(t *testing.T, out string, used map[string]bool) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(out, "AwsSolutions-*-NagReport.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no report in %s: %v", out, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var r struct {
			Lines []struct{ RuleID, ResourceID, Compliance, ExceptionReason, RuleInfo string }
		}
		if err := json.Unmarshal(data, &r); err != nil {
			t.Fatal(err)
		}
		for _, line := range r.Lines {
			switch line.Compliance {
			case "Compliant":
			case "Suppressed":
				used[finding.ReplaceAllString(line.ExceptionReason, "")] = true
			default:
				t.Errorf("%s: %s: %s: %s", line.ResourceID, line.RuleID, line.Compliance, line.RuleInfo)
			}
		}
	}
}
