package workspace

import (
	"maps"
	"slices"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// tally is what entries amount to, and the packs that they need.
type tally struct {
	counts manifest.Counts
	packs  map[manifest.PackRef]manifest.PackRef // by ID
	last   manifest.PackRef                      // the ID that was added last
}

func newTally() tally { return tally{packs: map[manifest.PackRef]manifest.PackRef{}} }

func (t *tally) add(e *manifest.Entry) {
	switch e.Kind {
	case manifest.File:
		t.counts.Files++
		t.counts.Bytes += e.Size
	case manifest.Dir:
		t.counts.Dirs++
	case manifest.Symlink:
		t.counts.Symlinks++
		if manifest.Outward(e.Path, e.Target) {
			t.counts.OutwardLinks++
		}
	case manifest.Hardlink:
		t.counts.Hardlinks++
	}
	for i := range e.Chunks {
		if id := e.Chunks[i].Pack.ID(); id != t.last {
			ref := e.Chunks[i].Pack
			ref.Owner = ""
			t.packs[id], t.last = ref, id
		}
	}
}

func (t *tally) merge(o tally) {
	t.counts.Files += o.counts.Files
	t.counts.Dirs += o.counts.Dirs
	t.counts.Symlinks += o.counts.Symlinks
	t.counts.Hardlinks += o.counts.Hardlinks
	t.counts.OutwardLinks += o.counts.OutwardLinks
	t.counts.Bytes += o.counts.Bytes
	t.counts.RedactedFiles += o.counts.RedactedFiles
	maps.Copy(t.packs, o.packs)
}

func (t *tally) packList() []manifest.PackRef {
	return slices.SortedFunc(maps.Values(t.packs), manifest.ComparePacks)
}
