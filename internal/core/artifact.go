package core

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// MaxArtifact is the longest artifact, bytes.
const MaxArtifact = 64 << 20

// MaxArtifactText is how many bytes all artifacts of a thread may take beside their
// content. A checkpoint's item holds them all, and an item of DynamoDB 400 KiB: the rest
// is for the runs of its conversation and those that are pending, whose ids are as long.
const MaxArtifactText = 256_000

// ArtifactSource is an artifact in a host's own store.
type ArtifactSource struct {
	Run       RunID
	ID        string
	Name      string
	MIME      string
	CreatedAt Millis
	Key       string // in that store; empty: artifacts/<run>/<id>
}

// ArtifactReader is a host's own store of artifacts.
type ArtifactReader interface {
	// ReadArtifact returns the bytes under a key, or ErrNotFound.
	ReadArtifact(ctx context.Context, key string) ([]byte, error)
}

// FreezeArtifacts takes artifacts of a host into a thread (SN-11): every distinct source
// is read once, all of them before anything is written; secrets are redacted; equal
// content is stored once. Checkpoints that follow hold them.
func (k *Keeper) FreezeArtifacts(ctx context.Context, key ThreadKey, from ArtifactReader, list []ArtifactSource, secrets []string) ([]Artifact, error) {
	if from == nil {
		return nil, refuse("freeze artifacts", "thread "+key.String(), "artifact-support-required")
	}
	read := map[string][]byte{}
	for _, a := range list {
		at := a.key()
		if _, ok := read[at]; ok {
			continue
		}
		data, err := from.ReadArtifact(ctx, at)
		if errors.Is(err, ErrNotFound) {
			return nil, refuse("freeze artifacts", "artifact "+a.ID, "missing-artifact-blob")
		}
		if err != nil {
			return nil, err
		}
		read[at] = Redact(data, secrets)
	}
	var out []Artifact
	for _, a := range list {
		frozen, err := k.PutArtifact(ctx, key, Artifact{Run: a.Run, ID: a.ID, Name: a.Name, MIME: a.MIME, CreatedAt: a.CreatedAt}, read[a.key()])
		if err != nil {
			return nil, err
		}
		out = append(out, frozen)
	}
	return out, nil
}

func (a ArtifactSource) key() string {
	return cmp.Or(a.Key, fmt.Sprintf("artifacts/%s/%s", a.Run, a.ID))
}

// Redact overwrites every occurrence of every secret, overlapping ones included, with
// zero bytes (SN-10). It looks for all of them in the bytes as they came, so that none
// hides another. data stays as it is.
func Redact(data []byte, secrets []string) []byte {
	out := bytes.Clone(data)
	for _, s := range secrets {
		if s == "" {
			continue
		}
		for from := 0; ; {
			i := bytes.Index(data[from:], []byte(s))
			if i < 0 {
				break
			}
			clear(out[from+i : from+i+len(s)])
			from += i + 1
		}
	}
	return out
}

// PutArtifact stores an artifact of a thread. It replaces that of the same run and id;
// checkpoints that hold the former one keep it.
func (k *Keeper) PutArtifact(ctx context.Context, key ThreadKey, a Artifact, data []byte) (Artifact, error) {
	if err := cmp.Or(checkThread(key), a.check()); err != nil {
		return Artifact{}, err
	}
	if len(data) > MaxArtifact {
		return Artifact{}, invalid("too-large", "artifact: want at most %d bytes, got %d", MaxArtifact, len(data))
	}
	have, err := k.Threads.Artifacts(ctx, key)
	if err != nil {
		return Artifact{}, err
	}
	have = slices.DeleteFunc(have, func(b Artifact) bool { return b.Run == a.Run && b.ID == a.ID })
	if len(have) >= MaxArtifacts {
		return Artifact{}, refuse("put artifact", "thread "+key.String(), "too-many-artifacts")
	}
	a.Object = ObjectRef{Key: objectKey(key, artifactObjects, math.MaxInt64, sumOf(data)), SHA256: sumOf(data)}
	if n := weightOf(append(have, a)); n > MaxArtifactText {
		return Artifact{}, invalid("too-large", "artifacts of a thread: want run, id, name, type and key of at most %d bytes together, got %d", MaxArtifactText, n)
	}
	// Again where a collection began meanwhile: it may take what was stored before.
	for {
		th, err := k.Threads.Thread(ctx, key)
		if err != nil {
			return Artifact{}, err
		}
		if a.Object, err = k.putObject(ctx, objectKey(key, artifactObjects, th.Fence, sumOf(data)), data); err != nil {
			return Artifact{}, err
		}
		err = k.Threads.PutArtifact(ctx, PutArtifact{Thread: key, Artifact: a, Fence: th.Fence, Now: nowMillis()})
		if refusalOf(err) != "floor" {
			return a, err
		}
	}
}

// weightOf is how many bytes a list of artifacts takes in an item, or a little more.
func weightOf(list []Artifact) int {
	const fields = 128 // the names of an artifact's attributes, its numbers, and their framing
	n := 0
	for _, a := range list {
		n += fields + len(a.Run) + len(a.ID) + len(a.Name) + len(a.MIME) + len(a.Object.Key) + len(a.Object.Version) + len(a.Object.SHA256)
	}
	return n
}

// check refuses an artifact that no reader could make use of (CP-7).
func (a Artifact) check() error {
	for _, text := range []string{string(a.Run), a.ID, a.Name, a.MIME} {
		if text == "" || !utf8.ValidString(text) || len(text) > MaxIDs {
			return invalid("invalid-entry", "artifact: want run, id, name and type of 1 to %d bytes in UTF-8, got %.80q", MaxIDs, text)
		}
	}
	if n := len(KeyToken(string(a.Run))) + len(KeyToken(a.ID)); n > MaxIDs || a.CreatedAt < 0 {
		return invalid("invalid-entry", "artifact: want run and id of at most %d bytes in keys and a time of 0 or more, got %d and %d", MaxIDs, n, a.CreatedAt)
	}
	return nil
}

// ReadArtifact returns an artifact that a checkpoint froze, and its bytes, which are what
// was frozen (SO-7).
func (k *Keeper) ReadArtifact(ctx context.Context, key ThreadKey, id CheckpointID, artifact string) (Artifact, []byte, error) {
	if err := cmp.Or(checkThread(key), checkCheckpoint(key.Tenant, id)); err != nil {
		return Artifact{}, nil, err
	}
	c, err := k.Threads.FindCheckpoint(ctx, key.Tenant, id)
	switch {
	case errors.Is(err, ErrNotFound):
		return Artifact{}, nil, refuse("read artifact", "checkpoint "+string(id), "missing-checkpoint-artifact")
	case err != nil:
		return Artifact{}, nil, err
	case c.Thread != key.Thread:
		return Artifact{}, nil, refuse("read artifact", "checkpoint "+string(id), "foreign-checkpoint-artifact")
	}
	for _, a := range c.Artifacts {
		if a.ID != artifact {
			continue
		}
		data, err := k.readObject(ctx, a.Object)
		if errors.Is(err, ErrNotFound) || errors.Is(err, errAltered) {
			return Artifact{}, nil, refuse("read artifact", "artifact "+artifact, "invalid-artifact-bytes")
		}
		return a, data, err
	}
	return Artifact{}, nil, refuse("read artifact", "artifact "+artifact, "missing-checkpoint-artifact")
}
