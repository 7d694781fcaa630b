// Package enginetest gives tests an engine: one for each test process, started by
// the first test that asks, or the one that somebody else runs and
// [engine.EndpointVariable] names. Where it is not installed the test skips and says so,
// except under CI, where a missing component is a failure.
package enginetest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/engine"
)

var start = sync.OnceValues(func() (*engine.Engine, error) {
	// Not the test's context: the engine outlives the test that starts it, and
	// ends with the process.
	if e, err := engine.Foreign(); e != nil || err != nil {
		return e, err
	}
	return engine.Start(context.Background(), engine.Options{})
})

// Shared returns the engine of this test process. Tests keep apart by the names
// of what they make.
func Shared(t testing.TB) *engine.Engine {
	t.Helper()
	e, err := start()
	Require(t, err)
	return e
}

// Own starts an engine for one test, for what only one stack at a time can be,
// and stops it at the test's end.
func Own(t testing.TB, o engine.Options) *engine.Engine {
	t.Helper()
	e, err := engine.Start(t.Context(), o)
	Require(t, err)
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// Require fails the test for an error; for one that says that something is not
// installed or not built the test skips instead, unless CI is set.
func Require(t testing.TB, err error) {
	t.Helper()
	missing := errors.Is(err, engine.ErrNotInstalled) || errors.Is(err, fs.ErrNotExist)
	if missing && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}
