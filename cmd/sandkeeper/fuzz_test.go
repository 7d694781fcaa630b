package main

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// FuzzReadPlan: whatever is read as a plan is one that apply may be asked for, and is
// read back from what save writes.
func FuzzReadPlan(f *testing.F) {
	f.Add(`{"v":1,"install":"sandkeeper","region":"us-east-1","madeAt":"2026-11-30T00:00:00Z","entries":[{"tenant":"a","run":"b","outcome":"finalized","epoch":1}]}`)
	f.Add(`{"v":1,"install":"","region":"","madeAt":"0001-01-01T00:00:00Z","entries":null}`)
	f.Fuzz(func(t *testing.T, text string) {
		plan, err := readPlan("-", strings.NewReader(text))
		if err != nil {
			if codeOf(err) != exitUsage {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		if len(plan.Entries) > 0 {
			if err := (core.SweepRequest{Mode: core.ModeApply, Plan: plan.Entries}).Validate(); err != nil {
				t.Fatalf("%q is a plan that the function refuses: %v", text, err)
			}
		}
		again, err := json.Marshal(plan)
		if err != nil {
			t.Fatal(err)
		}
		back, err := readPlan("-", strings.NewReader(string(again)))
		if err != nil || !reflect.DeepEqual(back, plan) {
			t.Fatalf("%s is read back as %+v: %v", again, back, err)
		}
	})
}

// FuzzSpan: a duration is above zero, and never wraps round.
func FuzzSpan(f *testing.F) {
	for _, text := range []string{"90m", "7d", "1e300d", "NaNd", "-Infd", "106751d", "106752d"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := parseSpan(text); err == nil && d <= 0 {
			t.Errorf("%q is %s", text, d)
		}
	})
}

// FuzzRunName: a name that is taken has a tenant and a run, and is read back from what
// is printed of it.
func FuzzRunName(f *testing.F) {
	for _, text := range []string{"acme/run", "run", "/", "a/b/c", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		k, err := (oneRun{Run: text}).key()
		if err != nil {
			return
		}
		back, err := (oneRun{Run: k.String()}).key()
		if k.Tenant == "" || k.Run == "" || err != nil || back != k {
			t.Errorf("%q is %+v, and back %+v: %v", text, k, back, err)
		}
	})
}
