package manifest_test

import (
	"runtime"
	"slices"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// TestARootCostsNoMoreThanItsSize: a root comes from an untrusted sandbox, and functions
// read it again and again. Whatever it is full of, reading it takes memory in proportion.
func TestARootCostsNoMoreThanItsSize(t *testing.T) {
	full := manifest.Rule{Exact: slices.Repeat([]string{"www"}, 1024)}
	rules := slices.Concat(slices.Repeat([]manifest.Rule{full}, 200), make([]manifest.Rule, 1800))
	data, err := manifest.EncodeRoot(manifest.Root{Version: manifest.Version, ID: "c1", Policy: manifest.Policy{Exclude: rules}})
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := manifest.DecodeRoot(data); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 100*uint64(len(data)) {
		t.Errorf("a root of %d bytes takes %d to be read, %d times as much", len(data), took, took/uint64(len(data)))
	}
}
