package coretest

import (
	"fmt"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// awkward are ids that collide in a store that does not encode its keys.
var awkward = []string{"a", "A", "a#b", "a/b", "a_23b", "_", "-", ".", "run", "seg#0", "ü", "a b", "%2F", "日本"}

// Runs checks the contract of [core.Runs].
func Runs(t *testing.T, open Open) {
	checks := map[string]func(t *testing.T, s Stores){
		"Run of a record that does not exist is not found":     runMissing,
		"Create puts a record that is absent, every member":    runCreate,
		"Create meets its own start":                           runCreateOwn,
		"Create is refused by another's start or an ended run": runCreateRefused,
		"Create by many at once has one winner":                runCreateRace,
		"Update returns the record as it then is":              runUpdate,
		"Update that is refused changes nothing":               runUpdateRefused,
		"Update that has landed already is a success":          runUpdateLanded,
		"Update of a record that does not exist is not found":  runUpdateMissing,
		"Update by many claims at once has one winner":         runClaimRace,
		"Records of different tenants and ids are kept apart":  runKeys,
		"A record shares no memory with the store":             runAlias,
	}
	for name, check := range checks {
		t.Run(name, func(t *testing.T) { check(t, open(t)) })
	}
}

func runMissing(t *testing.T, s Stores) {
	_, err := s.Runs.Run(t.Context(), core.RunKey{Tenant: "acme", Run: "none"})
	notFound(t, err)
}

func runCreate(t *testing.T, s Stores) {
	for i, want := range []core.Run{attached("acme", "r0"), detached("acme", "r1"), ended("acme", "r2"), whole("acme", "r3")} {
		got, err := s.Runs.Create(t.Context(), want)
		must(t, err)
		equal(t, fmt.Sprintf("created %d", i), got, want)
		got, err = s.Runs.Run(t.Context(), want.RunKey)
		must(t, err)
		equal(t, fmt.Sprintf("read %d", i), got, want)
	}
}

func runCreateOwn(t *testing.T, s Stores) {
	first := attached("acme", "r")
	_, err := s.Runs.Create(t.Context(), first)
	must(t, err)
	later, err := s.Runs.Update(t.Context(), first.RunKey, core.Renew{Epoch: 1, Until: 9000})
	must(t, err)
	got, err := s.Runs.Create(t.Context(), first)
	must(t, err)
	equal(t, "the record met", got, later)
}

func runCreateRefused(t *testing.T, s Stores) {
	_, err := s.Runs.Create(t.Context(), attached("acme", "live"))
	must(t, err)
	other := attached("acme", "live")
	other.ClaimNonce = "another"
	_, err = s.Runs.Create(t.Context(), other)
	refusedAs(t, err, "attached-elsewhere")

	_, err = s.Runs.Create(t.Context(), ended("acme", "over"))
	must(t, err)
	_, err = s.Runs.Create(t.Context(), attached("acme", "over"))
	refusedAs(t, err, "terminal")
	got, err := s.Runs.Run(t.Context(), core.RunKey{Tenant: "acme", Run: "over"})
	must(t, err)
	equal(t, "the ended run", got, ended("acme", "over"))
}

func runCreateRace(t *testing.T, s Stores) {
	oneWins(t, together(8, func(i int) error {
		r := attached("acme", "r")
		r.ClaimNonce = fmt.Sprint("host", i)
		_, err := s.Runs.Create(t.Context(), r)
		return err
	}))
}

func runUpdate(t *testing.T, s Stores) {
	r := attached("acme", "r")
	must(t, s.Seed.Run(t.Context(), r))
	got, err := s.Runs.Update(t.Context(), r.RunKey, core.Detach{Epoch: 1, Now: 2000})
	must(t, err)
	want := detached("acme", "r")
	equal(t, "the answer", got, want)
	got, err = s.Runs.Run(t.Context(), r.RunKey)
	must(t, err)
	equal(t, "the record", got, want)
}

func runUpdateRefused(t *testing.T, s Stores) {
	r := attached("acme", "r")
	must(t, s.Seed.Run(t.Context(), r))
	_, err := s.Runs.Update(t.Context(), r.RunKey, core.Detach{Epoch: 2, Now: 2000})
	refusedAs(t, err, "epoch")
	got, err := s.Runs.Run(t.Context(), r.RunKey)
	must(t, err)
	equal(t, "the record", got, r)
}

func runUpdateLanded(t *testing.T, s Stores) {
	r := detached("acme", "r")
	must(t, s.Seed.Run(t.Context(), r))
	claim := core.Claim{Seen: 1, Since: 2000, Nonce: "mine", Now: 3000, Until: 4000}
	first, err := s.Runs.Update(t.Context(), r.RunKey, claim)
	must(t, err)
	again, err := s.Runs.Update(t.Context(), r.RunKey, claim)
	must(t, err)
	equal(t, "the second answer", again, first)
	claim.Nonce = "another"
	_, err = s.Runs.Update(t.Context(), r.RunKey, claim)
	refusedAs(t, err, "epoch")
}

func runUpdateMissing(t *testing.T, s Stores) {
	key := core.RunKey{Tenant: "acme", Run: "none"}
	for name, draw := range runTransitions {
		if name == "Append" {
			continue // with its segment, by RunLog
		}
		transition := draw.example(attached(key.Tenant, key.Run))
		_, err := s.Runs.Update(t.Context(), key, transition)
		notFound(t, err)
		if _, err := s.Runs.Run(t.Context(), key); err == nil {
			t.Fatalf("%s made a record", transition.Name())
		}
	}
}

func runClaimRace(t *testing.T, s Stores) {
	r := detached("acme", "r")
	must(t, s.Seed.Run(t.Context(), r))
	oneWins(t, together(8, func(i int) error {
		claim := core.Claim{Seen: 1, Since: 2000, Nonce: fmt.Sprint("sweep", i), Now: 3000, Until: 4000}
		got, err := s.Runs.Update(t.Context(), r.RunKey, claim)
		if err == nil && got.ClaimNonce != claim.Nonce {
			t.Errorf("contender %d was told that it won, with %q on the record", i, got.ClaimNonce)
		}
		return err
	}))
	got, err := s.Runs.Run(t.Context(), r.RunKey)
	must(t, err)
	equal(t, "epoch", got.Epoch, int64(2))
}

func runKeys(t *testing.T, s Stores) {
	var want []core.Run
	for i, tenant := range awkward {
		for j, id := range awkward {
			r := attached(core.TenantID(tenant), core.RunID(id))
			r.StartedAt = core.Millis(1 + i*100 + j)
			must(t, s.Seed.Run(t.Context(), r))
			want = append(want, r)
		}
	}
	for _, r := range want {
		got, err := s.Runs.Run(t.Context(), r.RunKey)
		must(t, err)
		equal(t, r.RunKey.String(), got, r)
	}
}

func runAlias(t *testing.T, s Stores) {
	r := whole("acme", "r")
	must(t, s.Seed.Run(t.Context(), r))
	for range 2 {
		got, err := s.Runs.Run(t.Context(), r.RunKey)
		must(t, err)
		equal(t, "the record", got, whole("acme", "r"))
		got.LogHash[0], got.LogTail[0], *got.ExitCode, got.Error.Code, got.Sealed.At = 77, 77, 77, "77", 77
	}
	r.LogHash[0], r.LogTail[0], *r.ExitCode, r.Transcript.Bytes, r.Ending.At = 77, 77, 77, 77, 77
	got, err := s.Runs.Run(t.Context(), r.RunKey)
	must(t, err)
	equal(t, "the record", got, whole("acme", "r"))
}
