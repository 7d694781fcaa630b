package core

import (
	"context"
	"fmt"
	"time"
)

// ObjectInfo is what a store says of an object.
type ObjectInfo struct {
	Key        string
	Size       int64
	SHA256     string // hex, of the checksum that the store verified; empty in listings
	Version    string
	ModifiedAt Millis
}

// Grant is leave for one request to the object store, for who has no other.
type Grant struct {
	URL    string
	Header map[string]string // to be sent with it
	Until  Millis
}

// Objects are the immutable objects of threads, beside [Blobs], which reads and writes
// them whole.
type Objects interface {
	// Stat describes an object, its checksum included; ErrNotFound if there is none.
	Stat(ctx context.Context, key string) (ObjectInfo, error)
	// Objects lists all objects whose keys begin so, all pages, the newest version of
	// each.
	Objects(ctx context.Context, prefix string) ([]ObjectInfo, error)
	// Prefixes lists what the keys that begin so go on with, up to the next "/", which
	// it includes; all pages.
	Prefixes(ctx context.Context, prefix string) ([]string, error)
	// Delete removes that one version. One that is gone is success.
	Delete(ctx context.Context, key, version string) error
	// GrantPut lets somebody store an object that must be absent, of that size and
	// SHA-256 (hex); both are signed.
	GrantPut(ctx context.Context, key, sha256 string, size int64, life time.Duration) (Grant, error)
	// GrantGet lets somebody read that version, or parts of it.
	GrantGet(ctx context.Context, key, version string, life time.Duration) (Grant, error)
}

// GrantLife is how long a grant is good: long enough for the largest pack on a slow
// network.
const GrantLife = 15 * time.Minute

// CollectAge is how old an object must be before it is collected, far more than any
// grant's life.
const CollectAge = 24 * time.Hour

// MaxPack is the longest stored pack or layer, bytes.
const MaxPack = 256 << 20

// MaxManifest is the longest root of a checkpoint, bytes.
const MaxManifest = 4 << 20

// PackRef names a pack or a layer. Its key follows from it: it is never told.
type PackRef struct {
	Fence  int64
	SHA256 string   // hex
	Size   int64    // of the stored bytes
	Owner  ThreadID // empty: the thread whose manifest names it
}

// The last part but one of an object's key.
const (
	packObjects         = "packs"
	manifestObjects     = "checkpoints"
	conversationObjects = "conversations"
	artifactObjects     = "artifacts"
)

// ThreadPrefix begins the keys of all objects of a thread.
func ThreadPrefix(key ThreadKey) string {
	return KeyToken(string(key.Tenant)) + "/threads/" + KeyToken(string(key.Thread)) + "/"
}

// objectKey is the key of an object of a thread: <prefix><kind>/<fence>-<sha256>. The
// fence is the one under which it is written, so that no writer ever takes an object for
// its own that a collector has set eyes on.
func objectKey(key ThreadKey, kind string, fence int64, sha256 string) string {
	return fmt.Sprintf("%s%s/%d-%s", ThreadPrefix(key), kind, fence, sha256)
}

// PackKey is the key of a pack that the manifest of a thread names.
func PackKey(key ThreadKey, p PackRef) string {
	if p.Owner != "" {
		key.Thread = p.Owner
	}
	return objectKey(key, packObjects, p.Fence, p.SHA256)
}
