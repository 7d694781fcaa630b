package core

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// Tenants says for which tenants a caller may act, by the alias of the function that it
// invokes, which IAM lets it invoke or not; and how many sandboxes each may have at once.
// The empty alias is the function itself. See [ReadTenants].
type Tenants struct {
	of     map[string][]TenantID
	quotas map[TenantID]int
}

// AnyTenant stands for every tenant.
const AnyTenant TenantID = "*"

// tenantEntry is a tenant's id, or an object of it and its quota.
type tenantEntry struct {
	Tenant TenantID `json:"tenant"`
	Quota  *int     `json:"quota,omitempty"`
}

func (e *tenantEntry) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(text, []byte(`"`)) {
		return json.Unmarshal(text, &e.Tenant)
	}
	type plain tenantEntry
	return DecodeStrict(text, (*plain)(e))
}

// ReadTenants reads {"<alias>": ["<tenant>", {"tenant": "<tenant>", "quota": <n>}, …], …}; a
// tenant "*" stands for all. A quota of 0 is any number of sandboxes; a tenant has one
// quota, whoever acts for it.
func ReadTenants(text string) (Tenants, error) {
	var aliases map[string][]tenantEntry
	if err := DecodeStrict([]byte(text), &aliases); err != nil {
		return Tenants{}, fmt.Errorf(`tenants: want {"<alias>": ["<tenant>", …], …}: %w`, err)
	}
	if len(aliases) == 0 {
		return Tenants{}, fmt.Errorf("tenants: want at least one alias with its tenants, got none")
	}
	t := Tenants{of: map[string][]TenantID{}, quotas: map[TenantID]int{}}
	for alias, list := range aliases {
		if len(list) == 0 {
			return Tenants{}, fmt.Errorf("tenants: alias %q: want at least one tenant, got none", alias)
		}
		for _, e := range list {
			if err := t.add(alias, e); err != nil {
				return Tenants{}, fmt.Errorf("tenants: alias %q: %w", alias, err)
			}
		}
	}
	return t, nil
}

func (t Tenants) add(alias string, e tenantEntry) error {
	if e.Tenant == "" {
		return fmt.Errorf("want tenants that are not empty")
	}
	t.of[alias] = append(t.of[alias], e.Tenant)
	if e.Quota == nil {
		return nil
	}
	before, told := t.quotas[e.Tenant]
	switch {
	case *e.Quota < 0:
		return fmt.Errorf("tenant %q: quota: want a whole number from 0 on, got %d", e.Tenant, *e.Quota)
	case told && before != *e.Quota:
		return fmt.Errorf("tenant %q: quota: want one, got %d and %d", e.Tenant, before, *e.Quota)
	}
	t.quotas[e.Tenant] = *e.Quota
	return nil
}

// Allow reports whether the caller that used the alias may act for a tenant.
func (t Tenants) Allow(alias string, tenant TenantID) bool {
	return slices.Contains(t.of[alias], tenant) || slices.Contains(t.of[alias], AnyTenant)
}

// Quota is what each tenant may have; each of those that are not told of, each, or what "*"
// may have.
func (t Tenants) Quota(each int) Quota {
	if every, ok := t.quotas[AnyTenant]; ok {
		each = every
	}
	return Quota{Each: each, Of: t.quotas}
}

// Quota is how many sandboxes a tenant may have at once, until ECS says that they are gone;
// zero: any number.
type Quota struct {
	Each int
	Of   map[TenantID]int // where a tenant has another
}

func (q Quota) of(t TenantID) int {
	if n, ok := q.Of[t]; ok {
		return n
	}
	return q.Each
}
