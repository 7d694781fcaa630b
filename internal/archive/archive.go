// Package archive reads the checkpoint format for the rules in core, which know no
// format. Its rule: whatever it refuses of a root or a layer is core's
// [core.InvalidError], for it comes out of a sandbox; every other error is a fault of
// where the bytes were read.
package archive

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// MaxLayers is how many stored bytes the layers of one checkpoint may have together,
// which a function that checks it holds in memory.
const MaxLayers = 256 << 20

// Reader is core's reader of manifests.
type Reader struct{}

var _ core.ManifestReader = Reader{}

// Facts reads a root.
func (Reader) Facts(root []byte) (core.ManifestFacts, error) {
	r, err := manifest.DecodeRoot(root)
	if err != nil {
		return core.ManifestFacts{}, refused(err)
	}
	return core.ManifestFacts{
		ID: core.CheckpointID(r.ID), Parent: core.CheckpointID(r.Parent), Layers: refs(r.Layers), Packs: refs(r.Packs),
		Files: r.Counts.Files, Bytes: r.Counts.Bytes, StoredBytes: r.Counts.StoredBytes,
	}, nil
}

func refs(list []manifest.PackRef) []core.PackRef {
	out := make([]core.PackRef, len(list))
	for i, p := range list {
		out[i] = refOf(p)
	}
	return out
}

func refOf(p manifest.PackRef) core.PackRef {
	return core.PackRef{Fence: p.Fence, SHA256: hex.EncodeToString(p.SHA256[:]), Size: p.Size, Owner: core.ThreadID(p.Owner)}
}

// Seal writes a root anew.
func (Reader) Seal(root []byte, s core.ManifestSeal) ([]byte, error) {
	r, err := manifest.DecodeRoot(root)
	if err != nil {
		return nil, refused(err)
	}
	r.ID, r.Parent, r.CreatedAt = string(s.ID), string(s.Parent), int64(s.CreatedAt)
	for _, list := range [][]manifest.PackRef{r.Layers, r.Packs} {
		for i, p := range list {
			list[i].Owner = string(s.Owner(refOf(p)))
		}
	}
	sealed, err := manifest.EncodeRoot(r)
	return sealed, refused(err)
}

// Check reads all layers of a root.
func (Reader) Check(ctx context.Context, root []byte, open core.OpenPack) error {
	r, err := manifest.DecodeRoot(root)
	if err != nil {
		return refused(err)
	}
	return refused(manifest.CheckWith(r, tree(ctx, r, open), manifest.CheckOptions{
		Owners: func(string) bool { return true }, MaxLayers: MaxLayers, // the owners are the server's own word
	}))
}

// tree is the merged tree of a root.
func tree(ctx context.Context, r manifest.Root, open core.OpenPack) iter.Seq2[manifest.Entry, error] {
	layers := make([]iter.Seq2[manifest.Entry, error], len(r.Layers))
	for i, ref := range r.Layers {
		layers[i] = layer(ctx, ref, open)
	}
	return manifest.Merge(layers...)
}

// layer opens a layer when it is ranged over.
func layer(ctx context.Context, ref manifest.PackRef, open core.OpenPack) iter.Seq2[manifest.Entry, error] {
	return func(yield func(manifest.Entry, error) bool) {
		body, err := open(ctx, refOf(ref))
		if err != nil {
			yield(manifest.Entry{}, fmt.Errorf("open layer %s: %w", ref.Name(), err))
			return
		}
		defer body.Close()
		manifest.OpenLayer(body, ref)(yield)
	}
}

// Diff tells the differences between two trees.
func (Reader) Diff(ctx context.Context, a, b core.TreeSource, limit int) (changes []core.TreeChange, more bool, err error) {
	from, err := manifest.DecodeRoot(a.Root)
	if err != nil {
		return nil, false, refused(err)
	}
	to, err := manifest.DecodeRoot(b.Root)
	if err != nil {
		return nil, false, refused(err)
	}
	for c, err := range manifest.Diff(tree(ctx, from, a.Open), tree(ctx, to, b.Open)) {
		switch {
		case err != nil:
			return nil, false, refused(err)
		case c.Area != manifest.Workspace:
			continue
		case len(changes) == limit:
			return changes, true, nil
		}
		changes = append(changes, changeOf(c))
	}
	return changes, false, nil
}

func changeOf(c manifest.Change) core.TreeChange {
	out := core.TreeChange{Path: c.Path, Kind: "mode"}
	switch {
	case c.Before == nil:
		out.Kind = "added"
	case c.After == nil:
		out.Kind = "removed"
	case c.Content:
		out.Kind = "changed"
	}
	out.From, out.To = sizeOf(c.Before), sizeOf(c.After)
	return out
}

func sizeOf(e *manifest.Entry) int64 { return cmp.Or(e, &manifest.Entry{}).Size }

// refused says what the format refuses in core's words.
func refused(err error) error {
	if err == nil {
		return nil
	}
	_, refused := errors.AsType[*manifest.RefusedError](err)
	_, malformed := errors.AsType[*manifest.MalformedError](err)
	_, version := errors.AsType[*manifest.VersionError](err)
	_, object := errors.AsType[*manifest.ObjectError](err)
	if refused || malformed || version || object {
		return &core.InvalidError{Code: "invalid-entry", Detail: err.Error()}
	}
	return err
}
