package core

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"strings"
)

// bearerBytes is how many random bytes a bearer has.
const bearerBytes = 24

// maxBearer is the longest bearer: each byte of the ids may be a dot, which takes three.
const maxBearer = 3*MaxIDs + 2*bearerBytes + 2

// ErrBearer is the answer to a bearer that is malformed, unknown, or of a run that has
// ended or is being ended.
var ErrBearer = &InvalidError{Code: "bearer", Detail: "want the bearer of a run that has not ended"}

// MintBearer makes what the agent of a run says whose it is with: tenant and run in the
// form of [KeyToken], and a secret, between dots, which no part holds. Only its hash, the
// hex SHA-256 over all of it, is kept.
func MintBearer(key RunKey) (bearer, hash string) {
	secret := make([]byte, bearerBytes)
	_, _ = rand.Read(secret) // it never fails
	bearer = bearerPrefix(key) + hex.EncodeToString(secret)
	return bearer, bearerHash(bearer)
}

func bearerPrefix(key RunKey) string {
	return dotless(string(key.Tenant)) + "." + dotless(string(key.Run)) + "."
}

func bearerHash(bearer string) string {
	sum := sha256.Sum256([]byte(bearer))
	return hex.EncodeToString(sum[:])
}

// bearerRun reads whose a bearer claims to be; only what MintBearer may write is one.
func bearerRun(bearer string) (RunKey, bool) {
	if len(bearer) > maxBearer {
		return RunKey{}, false
	}
	parts := strings.Split(bearer, ".")
	if len(parts) != 3 || len(parts[2]) != 2*bearerBytes {
		return RunKey{}, false
	}
	tenant, ok1 := unescapeToken(parts[0])
	run, ok2 := unescapeToken(parts[1])
	key := RunKey{TenantID(tenant), RunID(run)}
	known := ok1 && ok2 && tenant != "" && run != "" && strings.HasPrefix(bearer, bearerPrefix(key))
	return key, known
}

// accepts reports whether the run's record has the hash of a bearer. It looks at every one
// of them, so that the time that it takes tells nothing; none accepts nothing.
func (r Run) accepts(bearer string) bool {
	hash, found := bearerHash(bearer), 0
	for _, stored := range r.Bearers {
		found |= subtle.ConstantTimeCompare([]byte(stored), []byte(hash))
	}
	return found == 1
}
