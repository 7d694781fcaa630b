package core_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// TestTenants says who may act for whom, and refuses what it cannot mean.
func TestTenants(t *testing.T) {
	allowed, err := core.ReadTenants(`{"": ["acme", {"tenant": "big", "quota": 50}], "ops": ["*"]}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		alias  string
		tenant core.TenantID
		may    bool
	}{{"", "acme", true}, {"", "big", true}, {"", "other", false}, {"", "*", false}, {"ops", "other", true}, {"elsewhere", "acme", false}} {
		if got := allowed.Allow(c.alias, c.tenant); got != c.may {
			t.Errorf("%q for %q: %t", c.alias, c.tenant, got)
		}
	}
	for bad, says := range map[string]string{
		``: "tenants: ", `[]`: "tenants: ", `{}`: "at least one alias", `{"a": []}`: `alias "a": want at least one tenant`, `{"a": [""]}`: "not empty",
		`{"a": [1]}`: "tenants: ", `{"a": [{"quota": 1}]}`: "not empty", `{"a": [{"tenant": "x", "quota": -1}]}`: `tenant "x": quota: want a whole number from 0 on, got -1`,
		`{"a": [{"tenant": "x", "quota": 1.5}]}`: "quota", `{"a": [{"tenant": "x", "limit": 1}]}`: "limit",
		`{"a": [{"tenant": "x", "quota": 1}], "b": [{"tenant": "x", "quota": 2}]}`: `tenant "x": quota: want one`,
	} {
		if _, err := core.ReadTenants(bad); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want an error that says %q", bad, err, says)
		}
	}
}

// TestATenantHasItsOwnQuota, beside that of all others; none is none.
func TestATenantHasItsOwnQuota(t *testing.T) {
	for text, want := range map[string]map[core.TenantID]int{
		`{"": ["small", {"tenant": "big", "quota": 3}, {"tenant": "free", "quota": 0}]}`: {"small": 1, "big": 3, "free": 4},
		`{"": [{"tenant": "*", "quota": 2}, {"tenant": "big", "quota": 3}]}`:             {"small": 2, "big": 3, "free": 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newHosting(t)
			tenants, err := core.ReadTenants(text)
			h.must(err)
			for tenant, most := range want {
				for n := range 4 {
					s := h.self()
					s.Launcher.Quota = tenants.Quota(1)
					run := string(rune('a' + n))
					q := startOf(run, run)
					q.Tenant, q.Thread = tenant, core.ThreadID("of-"+run)
					_, err := s.Start(t.Context(), q)
					if n < most {
						h.must(err)
					} else {
						refusedFor(t, "start above the quota of "+string(tenant), err, "quota")
					}
				}
			}
			h.check()
		})
	}
}
