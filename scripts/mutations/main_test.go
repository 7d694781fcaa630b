package main

import "testing"

// TestEveryBreakFits: a change of the code that a break no longer fits is told with the change,
// and not hours into the next run of them all.
func TestEveryBreakFits(t *testing.T) {
	dir := t.TempDir()
	t.Chdir("../..")
	if err := fit(dir); err != nil {
		t.Error(err)
	}
	names := map[string]bool{}
	for _, m := range mutations {
		if names[m.name] {
			t.Errorf("two breaks are named %q", m.name)
		}
		names[m.name] = true
	}
}
