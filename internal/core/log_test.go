package core_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// keyed notes the keys that objects are put under.
type keyed struct {
	*mem.Process
	keys *[]string
}

func (k keyed) PutBlob(ctx context.Context, key string, data []byte) error {
	*k.keys = append(*k.keys, key)
	return k.Process.PutBlob(ctx, key, data)
}

// TestKeysOfLogsAreWhatAStoreTakes: at most 1,024 bytes, and in it nothing but what every
// client writes alike, whatever the ids are and the host calls itself.
func TestKeysOfLogsAreWhatAStoreTakes(t *testing.T) {
	longest := strings.Repeat("r", core.MaxIDs-len("acme"))
	for name, nonce := range map[string]string{
		"the nonce of a sweep":        "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
		"the longest of a host":       strings.Repeat("h", 128),
		"a host that is a path":       "../../../../../../../../x",
		"a host of dots":              strings.Repeat(".", 16),
		"a host of odd characters":    "a host?/#%+\\ 0123456789",
		"that of a continuation":      "continue:" + longest + ":" + strings.Repeat("h", 128),
		"a continuation with accents": "continue:d\u00e9j\u00e0-vu:host-0123456789abcdef",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				r := core.Run{
					RunKey: key(longest), Thread: "t", Status: core.Running, StartedAt: now(), Row: core.RowDetached, DetachedSince: now(),
					Epoch: 1_000_000_000_000, ClaimNonce: nonce, Nonce: core.NewJournalNonce(), LogEnd: 0,
				}
				w.store.SeedRun(r)
				var keys []string
				p := w.store.NewProcess(mem.Faults{})
				log := &core.LogWriter{Log: p, Blobs: keyed{p, &keys}, Inline: 1}
				if _, err := log.Beside(t.Context(), r, 1<<52, []byte("beside")); err != nil {
					t.Fatal(err)
				}
				if _, err := log.Append(t.Context(), r, []byte("output\n"), nil); err != nil {
					t.Fatal(err)
				}
				other := r
				other.ClaimNonce += "x"
				if _, err := log.Beside(t.Context(), other, 1<<52, []byte("beside")); err != nil {
					t.Fatal(err)
				}
				for _, k := range keys {
					odd := strings.ContainsFunc(k, func(c rune) bool { return !strings.ContainsRune("/-._", c) && !strings.ContainsRune(alphanumeric, c) })
					if len(k) > 1024 || odd || slices.Contains(strings.Split(k, "/"), "..") {
						t.Errorf("key of %d bytes: %.200s", len(k), k)
					}
				}
				if len(keys) != 3 || keys[0] == keys[2] {
					t.Errorf("keys %q: two claims write one object", keys)
				}
			})
		})
	}
}

const alphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
