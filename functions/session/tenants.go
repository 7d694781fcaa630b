package main

import (
	"fmt"
	"slices"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// tenants says for which tenants a caller may act: by the alias of the function that it
// invokes, which IAM lets it invoke or not. The empty alias is the function itself.
type tenants map[string][]core.TenantID

// anyTenant stands for every tenant.
const anyTenant core.TenantID = "*"

// parseTenants reads {"<alias>": ["<tenant>", …], …}; a tenant "*" stands for all.
func parseTenants(text string) (tenants, error) {
	var t tenants
	if err := core.DecodeStrict([]byte(text), &t); err != nil {
		return nil, fmt.Errorf("tenants: %w", err)
	}
	if len(t) == 0 {
		return nil, fmt.Errorf("tenants: want at least one alias with its tenants, got none")
	}
	for alias, list := range t {
		if len(list) == 0 || slices.Contains(list, "") {
			return nil, fmt.Errorf("tenants: alias %q: want at least one tenant and none that is empty, got %q", alias, list)
		}
	}
	return t, nil
}

// allow reports whether the caller that used the alias may act for a tenant.
func (t tenants) allow(alias string, tenant core.TenantID) bool {
	return slices.Contains(t[alias], tenant) || slices.Contains(t[alias], anyTenant)
}
