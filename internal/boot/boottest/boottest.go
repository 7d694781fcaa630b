// Package boottest gives tests of a function the environment that the stack gives it. Its
// rule: every variable is set, to something that is read without an error, so that a test
// says only what it is about.
package boottest

import (
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/names"
)

// Environment sets what the stack sets for f: of what has listed values the first, of places
// one cluster and no spoke, of limits none.
func Environment(t *testing.T, f names.Function) {
	t.Helper()
	t.Setenv("AWS_REGION", "us-east-1")
	for _, key := range names.Env[f] {
		value := "some"
		switch key {
		case names.Limits:
			value = "{}"
		case names.Places:
			value = `{"home":"arn:aws:ecs:us-east-1:000000000000:cluster/c","spokes":[]}`
		}
		if allowed := names.Values[key]; allowed != nil {
			value = allowed[0]
		}
		t.Setenv(string(key), value)
	}
}
