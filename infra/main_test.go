package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/infra/sandkeeper"
)

// TestWhatCannotBeIsOneError, and nothing is synthesized.
func TestWhatCannotBeIsOneError(t *testing.T) {
	for text, want := range map[string]string{
		`{"mode": "dry"}`:                           `synthesize: context mode: want observe or enforce, got "dry"`,
		`{"mode": "observe", "mode": "enforce"}`:    "mode: it is there twice",
		`{"stack": "x"}`:                            "synthesize: context stack: no such choice: want one of alarmTopic",
		`{"spoke": {"hub": "x"}, "install": "y"}`:   "synthesize: context install: no such choice: want one of spoke",
		`{"spoke": {"hub": "x"}}`:                   "synthesize: spoke hub: want the ARN of the installation's cluster",
		`{"eventBus": "arn:aws:events:x:y:bus/z"}`:  "synthesize: context eventBus: want the name of a bus",
		`{"tenants": {"acme": []}, "install": "i"}`: "synthesize: context tenants: tenants: alias",
	} {
		file, out := filepath.Join(t.TempDir(), "choices.json"), filepath.Join(t.TempDir(), "out")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv(sandkeeper.ChoicesVariable, file)
		t.Setenv("CDK_CONTEXT_JSON", "{}")
		t.Setenv("CDK_OUTDIR", out)
		if err := synthesize(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		if _, err := os.Stat(filepath.Join(out, "manifest.json")); err == nil {
			t.Errorf("%s: an assembly was made", text)
		}
	}
}
