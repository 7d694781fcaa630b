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

// MaxRead is how much the entries of the layers of one checkpoint, or of the two that
// are compared, may take together, bytes in memory: all that are read, also those that a
// newer layer overrides or takes away. Layers compress to next to nothing.
const MaxRead = 8 << 30

// Reader is core's reader of manifests.
type Reader struct {
	MaxRead int64 // zero: [MaxRead]
}

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
	// When its capture began only the sandbox knows: by that the next one tells which
	// files may have changed since they were read.
	r.ID, r.Parent, r.CreatedAt = string(s.ID), string(s.Parent), min(r.CreatedAt, int64(s.CreatedAt))
	for _, list := range [][]manifest.PackRef{r.Layers, r.Packs} {
		for i, p := range list {
			list[i].Owner = string(s.Owner(refOf(p)))
		}
	}
	sealed, err := manifest.EncodeRoot(r)
	return sealed, refused(err)
}

// Check reads all layers of a root.
func (c Reader) Check(ctx context.Context, root []byte, open core.OpenPack) error {
	r, err := manifest.DecodeRoot(root)
	if err != nil {
		return refused(err)
	}
	return refused(manifest.CheckWith(r, c.budget().tree(ctx, r, open), manifest.CheckOptions{
		Owners: func(string) bool { return true }, MaxLayers: MaxLayers, // the owners are the server's own word
	}))
}

// budget is what entries may still take.
type budget int64

func (c Reader) budget() *budget { return new(budget(cmp.Or(c.MaxRead, MaxRead))) }

// spend counts an entry.
func (b *budget) spend(e manifest.Entry) error {
	size := 128 + len(e.Path) + len(e.Target) + 128*len(e.Chunks)
	for name, value := range e.Xattrs {
		size += 64 + len(name) + len(value)
	}
	if *b -= budget(size); *b < 0 {
		return &core.InvalidError{Code: "invalid-entry", Detail: "layers: want fewer entries, or smaller ones"}
	}
	return nil
}

// tree is the merged tree of a root.
func (b *budget) tree(ctx context.Context, r manifest.Root, open core.OpenPack) iter.Seq2[manifest.Entry, error] {
	layers := make([]iter.Seq2[manifest.Entry, error], len(r.Layers))
	for i, ref := range r.Layers {
		layers[i] = b.layer(ctx, ref, open)
	}
	return manifest.Merge(layers...)
}

// layer opens a layer when it is ranged over.
func (b *budget) layer(ctx context.Context, ref manifest.PackRef, open core.OpenPack) iter.Seq2[manifest.Entry, error] {
	return func(yield func(manifest.Entry, error) bool) {
		body, err := open(ctx, refOf(ref))
		if err != nil {
			yield(manifest.Entry{}, fmt.Errorf("open layer %s: %w", ref.Name(), err))
			return
		}
		defer body.Close()
		for e, err := range manifest.OpenLayer(body, ref) {
			if err == nil {
				err = cmp.Or(ctx.Err(), b.spend(e))
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// Diff tells the differences between two trees.
func (c Reader) Diff(ctx context.Context, a, b core.TreeSource, limit int) (changes []core.TreeChange, more bool, err error) {
	from, err := manifest.DecodeRoot(a.Root)
	if err != nil {
		return nil, false, refused(err)
	}
	to, err := manifest.DecodeRoot(b.Root)
	if err != nil {
		return nil, false, refused(err)
	}
	all := c.budget()
	for change, err := range manifest.Diff(all.tree(ctx, from, a.Open), all.tree(ctx, to, b.Open)) {
		switch {
		case err != nil:
			return nil, false, refused(err)
		case change.Area != manifest.Workspace:
			continue
		case len(changes) == limit:
			return changes, true, nil
		}
		changes = append(changes, changeOf(change))
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
