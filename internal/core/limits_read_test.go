package core_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

func TestAnInstallationChoosesItsLimits(t *testing.T) {
	l, err := core.ReadLimits(`{"runTTL":"36h","idleTTL":"5m","retention":"7d","breakerMost":3}`)
	want := core.DefaultLimits
	want.RunTTL, want.IdleTTL, want.Retention, want.BreakerMost = 36*time.Hour, 5*time.Minute, 7*24*time.Hour, 3
	if err != nil || l != want {
		t.Errorf("limits %+v, %v", l, err)
	}
	if l, err := core.ReadLimits("{}"); err != nil || l != core.DefaultLimits {
		t.Errorf("nothing chosen gives %+v, %v", l, err)
	}
}

func TestLimitsThatCannotBeAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		``:                         "read limits",
		`{"runTTL":"8"}`:           `runTTL: want a duration as "90m", "36h" or "7d", at most 3650d, got "8"`,
		`{"runTTL":"-8h"}`:         "runTTL: want a duration",
		`{"idleTTL":"0d"}`:         "idleTTL: want a duration",
		`{"retention":"99999d"}`:   "retention: want a duration",
		`{"retention":"1.5d"}`:     "retention: want a duration",
		`{"runTTL":"30s"}`:         "a claim's lease must be shorter than the run TTL",
		`{"breakerMost":-1}`:       "every size and width must be positive",
		`{"breakerMost":"many"}`:   "read limits",
		`{"page":1}`:               "page",
		`{"checkpointHold":"10s"}`: "a workspace that cannot be stored must be tried more than once",
	} {
		if l, err := core.ReadLimits(text); err == nil || !strings.Contains(err.Error(), want) || l != (core.Limits{}) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
