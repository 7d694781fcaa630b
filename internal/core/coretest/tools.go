package coretest

import (
	"errors"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// SpoolQuotas checks the contract of [core.SpoolQuotas].
func SpoolQuotas(t *testing.T, open Open) {
	spend := func(pieces, bytes int64) core.SpoolSpend {
		return core.SpoolSpend{Pieces: pieces, Bytes: bytes, MostPieces: 10, MostBytes: 1000, ExpiresAt: 4_000_000_000_000}
	}
	k := core.RunKey{Tenant: "acme/ü", Run: "r#1"}
	full := func(t *testing.T, err error) {
		t.Helper()
		if e, ok := errors.AsType[*core.RefusedError](err); !ok || e.Why != core.SpoolFull {
			t.Errorf("error %v, want the refusal %s", err, core.SpoolFull)
		}
	}
	t.Run("SpendSpool counts up to the most, and not beyond it", func(t *testing.T) {
		s := open(t)
		must(t, s.SpoolQuotas.SpendSpool(t.Context(), k, spend(1, 600)))
		full(t, s.SpoolQuotas.SpendSpool(t.Context(), k, spend(1, 401)))
		must(t, s.SpoolQuotas.SpendSpool(t.Context(), k, spend(1, 400)))
		full(t, s.SpoolQuotas.SpendSpool(t.Context(), k, spend(1, 1)))
		other := core.RunKey{Tenant: k.Tenant, Run: "r"}
		must(t, s.SpoolQuotas.SpendSpool(t.Context(), other, spend(10, 1)))
		full(t, s.SpoolQuotas.SpendSpool(t.Context(), other, spend(1, 1)))
	})
	t.Run("SpendSpool refuses at once what is more than the most", func(t *testing.T) {
		s := open(t)
		full(t, s.SpoolQuotas.SpendSpool(t.Context(), k, spend(11, 1)))
		full(t, s.SpoolQuotas.SpendSpool(t.Context(), k, spend(1, 1001)))
		must(t, s.SpoolQuotas.SpendSpool(t.Context(), k, spend(10, 1000)))
	})
	t.Run("SpendSpool by many at once never gives more than there is", func(t *testing.T) {
		s := open(t)
		given := 0
		for _, err := range together(6, func(int) error { return s.SpoolQuotas.SpendSpool(t.Context(), k, spend(3, 1)) }) {
			if err == nil {
				given++
			} else {
				full(t, err)
			}
		}
		equal(t, "requests that were given leave", given, 3)
	})
}
