package workspace_test

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
)

type vectorEntry struct {
	Path, Kind, BlobKey string
	Size                json.RawMessage
	Protected           bool
}

func (e vectorEntry) kind() manifest.Kind {
	switch e.Kind {
	case "file":
		return manifest.File
	case "dir":
		return manifest.Dir
	}
	return 0
}

// shallow is the original's order of removes and mkdirs.
func shallow(paths []string) []string {
	return slices.SortedFunc(slices.Values(paths), func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Count(a, "/"), strings.Count(b, "/")), cmp.Compare(a, b))
	})
}

func TestVectorsOfRestorePlans(t *testing.T) {
	forEachVector(t, "restore_plan", func(t *testing.T, c vectorCase) error {
		var input struct{ Entries, Current []vectorEntry }
		var want struct {
			Removes, Mkdirs []string
			Writes          []vectorEntry
		}
		c.decode(t, &input, &want)
		var wanted []manifest.Entry
		for _, e := range input.Entries {
			wanted = append(wanted, manifest.Entry{Path: e.Path, Kind: e.kind()})
		}
		var now []workspace.Present
		for _, e := range input.Current {
			now = append(now, workspace.Present{Path: e.Path, Kind: e.kind(), Protected: e.Protected})
		}
		slices.SortFunc(wanted, manifest.Compare)
		slices.SortFunc(now, func(a, b workspace.Present) int { return manifest.ComparePaths(a.Path, b.Path) })
		plan, err := workspace.PlanRestore(wanted, now)
		if err != nil {
			return err
		}
		writes := []string{}
		for _, e := range want.Writes {
			writes = append(writes, e.Path)
		}
		slices.Sort(plan.Writes)
		return errors.Join(
			compare("removes", shallow(plan.Removes), append([]string(nil), want.Removes...)),
			compare("mkdirs", shallow(plan.Mkdirs), append([]string(nil), want.Mkdirs...)),
			compare("writes", append([]string(nil), plan.Writes...), append([]string(nil), writes...)))
	})
}

// builder makes checkpoints entry by entry, right or wrong.
type builder struct {
	t     testing.TB
	store workspace.Store
}

// frame stores content as a pack of one frame and returns a chunk that is all of it.
func (b *builder) chunk(content string) manifest.Chunk {
	b.t.Helper()
	encoder, err := zstd.NewWriter(nil)
	must(b.t, err)
	stored := encoder.EncodeAll([]byte(content), nil)
	ref, err := b.store.Put(b.t.Context(), workspace.Object{SHA256: sha256.Sum256(stored), Size: int64(len(stored)), Body: bytes.NewReader(stored)})
	must(b.t, err)
	return manifest.Chunk{
		Length: int64(len(content)), SHA256: sha256.Sum256([]byte(content)), Pack: ref,
		Frame: manifest.Frame{Stored: int64(len(stored)), Raw: int64(len(content))},
	}
}

// root stores entries as one layer. A refusal of the writer is that of a reader:
// both ask the same function.
func (b *builder) root(entries []manifest.Entry, policy manifest.Policy) (manifest.Root, error) {
	b.t.Helper()
	slices.SortStableFunc(entries, manifest.Compare)
	var data bytes.Buffer
	layer := manifest.NewLayerWriter(&data)
	root := manifest.Root{Version: manifest.Version, ID: "c", CreatedAt: 1, Policy: policy}
	packs := map[manifest.PackRef]manifest.PackRef{}
	for _, e := range entries {
		if err := layer.Add(e); err != nil {
			return root, err
		}
		switch e.Kind {
		case manifest.File:
			root.Counts.Files++
			root.Counts.Bytes += e.Size
		case manifest.Dir:
			root.Counts.Dirs++
		case manifest.Symlink:
			root.Counts.Symlinks++
			if manifest.Outward(e.Path, e.Target) {
				root.Counts.OutwardLinks++
			}
		case manifest.Hardlink:
			root.Counts.Hardlinks++
		}
		for _, c := range e.Chunks {
			packs[c.Pack.ID()] = c.Pack
		}
	}
	must(b.t, layer.Close())
	ref, err := b.store.Put(b.t.Context(), workspace.Object{SHA256: sha256.Sum256(data.Bytes()), Size: int64(data.Len()), Body: bytes.NewReader(data.Bytes())})
	must(b.t, err)
	root.Layers = []manifest.PackRef{ref}
	for _, p := range packs {
		root.Packs = append(root.Packs, p)
		root.Counts.StoredBytes += p.Size
	}
	slices.SortFunc(root.Packs, manifest.ComparePacks)
	return root, nil
}

const blobPrefix = "sandbox-files/sha256/"

func TestVectorsOfRestores(t *testing.T) {
	forEachVector(t, "restore", func(t *testing.T, c vectorCase) error {
		var input struct {
			Tree      map[string]vectorNode
			Files     []vectorEntry
			Policy    vectorPolicy
			BlobTexts []string
			BlobRaw   map[string]string
			FS        struct {
				RootType string
				NoRoot   bool
			}
		}
		var want struct {
			Tree    map[string]vectorNode
			Code    string
			Mutated bool
		}
		if json.Unmarshal(c.Input, &input) != nil {
			return errors.New("a member of another type than the format has")
		}
		must(t, json.Unmarshal(c.Want, &want))
		root := vectorWorld(t, input.Tree, input.FS.RootType, input.FS.NoRoot)
		b := &builder{t: t, store: newStore(t)}
		blobs := map[string]manifest.Chunk{}
		for _, text := range input.BlobTexts {
			sum := sha256.Sum256([]byte(text))
			blobs[blobPrefix+hex.EncodeToString(sum[:])] = b.chunk(text)
		}
		for key, text := range input.BlobRaw {
			blobs[key] = b.chunk(text)
		}
		var entries []manifest.Entry
		for _, f := range input.Files {
			entries = append(entries, entryOfVector(f, blobs))
		}
		before := map[string]node{}
		if !input.FS.NoRoot && input.FS.RootType == "" {
			before = snapshot(t, root)
		}
		made, err := b.root(entries, input.Policy.policy())
		if refused, ok := errors.AsType[*manifest.RefusedError](err); ok {
			err = &workspace.Error{Code: workspace.CodeInvalidPath, Err: refused}
		} else {
			_, err = workspace.Restore(t.Context(), workspace.RestoreOptions{Root: root, Store: b.store, Manifest: made})
		}
		if want.Code != "" || err != nil {
			if !input.FS.NoRoot && input.FS.RootType == "" {
				if changed := differences(snapshot(t, root), before); changed != nil {
					return changed
				}
			}
			return compare("code", originalCode(err), want.Code)
		}
		return compareTree(snapshot(t, root), want.Tree)
	})
}

func entryOfVector(f vectorEntry, blobs map[string]manifest.Chunk) manifest.Entry {
	e := manifest.Entry{Path: ourMarker(f.Path), Kind: f.kind(), Mode: 0o644}
	if e.Kind != manifest.File {
		e.Mode = 0o755
		return e
	}
	var size int64
	if err := json.Unmarshal(f.Size, &size); err != nil {
		e.Size = -1
		return e
	}
	e.Size = size
	chunk, stored := blobs[f.BlobKey]
	if !stored {
		chunk = manifest.Chunk{Pack: manifest.PackRef{Size: 100}, Frame: manifest.Frame{Stored: 100, Raw: max(size, 1)}}
	}
	sum, err := hex.DecodeString(strings.TrimPrefix(f.BlobKey, blobPrefix))
	if err == nil && len(sum) == len(chunk.SHA256) {
		copy(chunk.SHA256[:], sum)
	}
	chunk.Length = size
	chunk.Frame.Raw = max(size, 1)
	if size > 0 {
		e.Chunks = []manifest.Chunk{chunk}
	}
	return e
}

// compareTree compares what the vectors know of a tree: kinds and content.
func compareTree(got map[string]node, want map[string]vectorNode) error {
	flat, expected := map[string]string{}, map[string]string{}
	for name, n := range got {
		flat[name] = n.mode.Type().String()
		if n.mode.IsRegular() {
			flat[name] = "file " + n.text
		}
	}
	for name, n := range want {
		switch n.Type {
		case "dir":
			expected[ourMarker(name)] = "d---------"
		case "symlink":
			expected[ourMarker(name)] = "L---------"
		default:
			expected[ourMarker(name)] = "file " + string(n.Base64)
		}
	}
	return compare("tree", flat, expected)
}
