package core

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"strings"
)

// stepToken is what lets an agent speak for one step: thread, fence and a secret of 24
// random bytes, of which only the hash is kept. It dies with its fence.
type stepToken struct {
	key    ThreadKey
	fence  int64
	secret string
}

func mintToken(key ThreadKey, fence int64) stepToken {
	secret := make([]byte, 24)
	_, _ = rand.Read(secret) // it never fails
	return stepToken{key, fence, base64.RawURLEncoding.EncodeToString(secret)}
}

// maxToken is the longest token: each byte of the ids may be a dot, which takes three,
// and fence, secret and separators take less than a hundred.
const maxToken = 3*MaxIDs + 100

// text is tenant, thread, fence and secret between dots, which no part holds.
func (t stepToken) text() string {
	return strings.Join([]string{
		dotless(string(t.key.Tenant)), dotless(string(t.key.Thread)), strconv.FormatInt(t.fence, 10), t.secret,
	}, ".")
}

func (t stepToken) hash() string {
	sum := sha256.Sum256([]byte(t.secret))
	return hex.EncodeToString(sum[:])
}

func dotless(id string) string { return strings.ReplaceAll(KeyToken(id), ".", "_2e") }

// parseToken reads a token; only what text writes is one.
func parseToken(text string) (stepToken, bool) {
	parts := strings.Split(text, ".")
	if len(parts) != 4 || len(text) > maxToken {
		return stepToken{}, false
	}
	tenant, ok1 := unescapeToken(parts[0])
	thread, ok2 := unescapeToken(parts[1])
	fence, err := strconv.ParseInt(parts[2], 10, 64)
	t := stepToken{ThreadKey{TenantID(tenant), ThreadID(thread)}, fence, parts[3]}
	return t, ok1 && ok2 && err == nil && t.text() == text && tenant != "" && thread != ""
}

// working is a step whose agent may speak.
type working struct {
	Thread
	step Step
}

// authorize finds the step that a token speaks for. It is dead once its fence is, or
// another step has begun, or, unless ended is asked for, the step has ended.
func (k *Keeper) authorize(ctx context.Context, text string, ended bool) (working, error) {
	t, ok := parseToken(text)
	if !ok {
		return working{}, ErrToken
	}
	th, err := k.Threads.Thread(ctx, t.key)
	switch {
	case err != nil:
		return working{}, err
	case th.Step == nil || th.Step.Fence != t.fence || subtle.ConstantTimeCompare([]byte(th.Step.Token), []byte(t.hash())) != 1:
		return working{}, ErrToken
	case ended && th.Step.State != StepWorking:
		return working{th, *th.Step}, nil
	case th.Step.State != StepWorking || th.Fence != t.fence || !th.Lease.Live(nowMillis()):
		return working{}, ErrToken
	}
	return working{th, *th.Step}, nil
}

// writer is who the step writes as.
func (w working) writer() Writer { return Writer{w.ThreadKey, w.Lease.Owner, w.step.Fence} }
