// Package boottest gives tests of a function the environment that the stack gives it. Its
// rule: every variable is set, to something that is read without an error, so that a test
// says only what it is about.
package boottest

import (
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/names"
)

// Value is what a stack could give a function: of what has listed values the first, of places
// one cluster and no spoke, of limits, tenants' quotas and retentions none.
func Value(key names.Key) string {
	if allowed := names.Values[key]; allowed != nil {
		return allowed[0]
	}
	switch key {
	case names.Limits:
		return "{}"
	case names.Places:
		return `{"home":"arn:aws:ecs:us-east-1:000000000000:cluster/c","spokes":[]}`
	case names.Tenants:
		return `{"":["-"]}`
	case names.KeepCheckpoints, names.ThreadRetention, names.SandboxesPerTenant:
		return "0"
	}
	return "some"
}

// Environment sets what the stack sets for f.
func Environment(t *testing.T, f names.Function) {
	t.Helper()
	t.Setenv("AWS_REGION", "us-east-1")
	for _, key := range names.Env[f] {
		t.Setenv(string(key), Value(key))
	}
}
