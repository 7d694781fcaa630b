package core

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
)

// root is a checkpoint's manifest, read.
type root struct {
	data  []byte
	facts ManifestFacts
	packs map[packName]PackRef // layers too
}

// rootCache keeps the roots that were read last: an agent's requests are about the
// same one again and again, and an object under a key never changes.
type rootCache struct {
	mu   sync.Mutex
	keys []string // newest last
	byID map[string]root
}

// cachedRoots is how many roots of up to [MaxManifest] are kept.
const cachedRoots = 4

func (c *rootCache) get(key string) (root, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.byID[key]
	return r, ok
}

func (c *rootCache) put(key string, r root) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byID == nil {
		c.byID = map[string]root{}
	}
	if _, ok := c.byID[key]; ok {
		return
	}
	if c.keys = append(c.keys, key); len(c.keys) > cachedRoots {
		delete(c.byID, c.keys[0])
		c.keys = c.keys[1:]
	}
	c.byID[key] = r
}

// rootOf reads the manifest of a checkpoint.
func (k *Keeper) rootOf(ctx context.Context, key ThreadKey, id CheckpointID) (root, error) {
	c, err := k.Threads.Checkpoint(ctx, key, id)
	if errors.Is(err, ErrNotFound) {
		return root{}, refuse("read", "checkpoint "+string(id), "checkpoint-not-found")
	}
	if err != nil {
		return root{}, err
	}
	return k.root(ctx, c.Manifest)
}

// root reads a manifest. It was checked when it was written: one that does not read is a
// fault of the store, not of who asks.
func (k *Keeper) root(ctx context.Context, at ObjectRef) (root, error) {
	if r, ok := k.roots.get(at.Key); ok {
		return r, nil
	}
	data, err := k.Blobs.Blob(ctx, at.Key)
	if err != nil {
		return root{}, fmt.Errorf("read manifest %s: %w", at.Key, err)
	}
	if sumOf(data) != at.SHA256 {
		return root{}, fmt.Errorf("read manifest %s: its bytes are not those that were written", at.Key)
	}
	r := root{data: data, packs: map[packName]PackRef{}}
	if r.facts, err = k.Manifests.Facts(data); err != nil {
		return root{}, fmt.Errorf("read manifest %s: %v", at.Key, err)
	}
	for _, p := range r.facts.Needed() {
		r.packs[nameOf(p)] = p
	}
	k.roots.put(at.Key, r)
	return r, nil
}

// opener reads the stored bytes of layers that the manifest of a thread names.
func (k *Keeper) opener(key ThreadKey) OpenPack {
	return func(ctx context.Context, p PackRef) (io.ReadCloser, error) {
		data, err := k.Blobs.Blob(ctx, PackKey(key, p))
		if err != nil {
			return nil, err
		}
		if sumOf(data) != p.SHA256 || int64(len(data)) != p.Size {
			return nil, invalid("invalid-entry", "pack %d-%s: its bytes are not those that it is named for", p.Fence, p.SHA256)
		}
		return io.NopCloser(bytes.NewReader(data)), nil
	}
}
