package core

import (
	"context"
	"io"
)

// ManifestFacts is what the rules need to know of a root.
type ManifestFacts struct {
	ID, Parent  CheckpointID
	Layers      []PackRef // oldest first
	Packs       []PackRef // every pack that an entry needs
	Files       int64
	Bytes       int64
	StoredBytes int64
}

// Needed lists layers and packs.
func (f ManifestFacts) Needed() []PackRef {
	return append(append([]PackRef(nil), f.Layers...), f.Packs...)
}

// ManifestSeal is what the server, and nobody else, says in a root.
type ManifestSeal struct {
	ID, Parent CheckpointID
	CreatedAt  Millis // at the latest: a capture says when it began
	// Owner tells the owner of each pack and layer, by what the root says of it; empty
	// is the own thread.
	Owner func(PackRef) ThreadID
}

// TreeChange is one difference between two trees.
type TreeChange struct {
	Path string `json:"path"`
	Kind string `json:"kind"` // added, removed, changed, mode
	From int64  `json:"from"` // size
	To   int64  `json:"to"`
}

// OpenPack opens the stored bytes of a layer.
type OpenPack func(ctx context.Context, p PackRef) (io.ReadCloser, error)

// ManifestReader reads the checkpoint format. Whatever it refuses of a root is an
// [*InvalidError].
type ManifestReader interface {
	// Facts reads a root, within the format's limits.
	Facts(root []byte) (ManifestFacts, error)
	// Seal writes the root anew with what only the server says.
	Seal(root []byte, s ManifestSeal) ([]byte, error)
	// Check reads all layers of a root and refuses what a restore would.
	Check(ctx context.Context, root []byte, open OpenPack) error
	// Diff tells the differences from a to b in order of paths, at most limit of them;
	// more says that there are others.
	Diff(ctx context.Context, a, b TreeSource, limit int) (changes []TreeChange, more bool, err error)
}

// TreeSource is a root and where its layers are.
type TreeSource struct {
	Root []byte
	Open OpenPack
}
