package manifest

import (
	"fmt"
	"iter"
)

// Merge answers the tree that layers describe, oldest layer first: of entries with
// the same area and path the one of the newest layer counts, and none remains
// where that is a tombstone. It holds one entry a layer. An error of any layer
// ends it, as does a layer that is not in order.
func Merge(layers ...iter.Seq2[Entry, error]) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		heads := make([]*head, len(layers))
		for i, layer := range layers {
			heads[i] = newHead(layer)
			defer heads[i].stop()
		}
		for _, h := range heads {
			h.advance()
		}
		for {
			e, ok, err := lowest(heads)
			if err != nil {
				yield(Entry{}, err)
				return
			}
			if !ok {
				return
			}
			if !e.Deleted && !yield(e, nil) {
				return
			}
		}
	}
}

// head is a layer with its next entry.
type head struct {
	next  func() (Entry, error, bool)
	stop  func()
	entry Entry
	err   error
	ok    bool // there is an entry
	begun bool
}

func newHead(layer iter.Seq2[Entry, error]) *head {
	next, stop := iter.Pull2(layer)
	return &head{next: next, stop: stop}
}

func (h *head) advance() {
	before := h.entry
	h.entry, h.err, h.ok = h.next()
	if h.ok && h.err == nil && h.begun && Compare(before, h.entry) >= 0 {
		h.err = refuse(BadOrder, h.entry.Path, "comes after %q, want every path once and in order", before.Path)
	}
	h.begun = true
}

// lowest takes the lowest entry off the heads, from the newest layer that has it.
func lowest(heads []*head) (e Entry, ok bool, err error) {
	var from [MaxLayers]int // the layers that have it, oldest first
	same := from[:0]
	for i, h := range heads {
		if h.err != nil {
			return Entry{}, false, fmt.Errorf("merge layer %d of %d: %w", i+1, len(heads), h.err)
		}
		if !h.ok {
			continue
		}
		order := -1
		if len(same) > 0 {
			order = Compare(h.entry, heads[same[0]].entry)
		}
		if order < 0 {
			same = same[:0]
		}
		if order <= 0 {
			same = append(same, i)
		}
	}
	if len(same) == 0 {
		return Entry{}, false, nil
	}
	e = heads[same[len(same)-1]].entry
	for _, i := range same {
		heads[i].advance()
	}
	return e, true, nil
}

// Rebase tells whether the layers of a root should be replaced by one: there are
// more than eight, or those above the first are larger than half of it.
func Rebase(r Root) bool {
	if len(r.Layers) > 8 {
		return true
	}
	above := int64(0)
	for i, layer := range r.Layers {
		if i > 0 {
			above += layer.Size
		}
	}
	return above > 0 && above > r.Layers[0].Size/2
}

// Entries answers entries that are in memory, as they are.
func Entries(entries ...Entry) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for _, e := range entries {
			if !yield(e, nil) {
				return
			}
		}
	}
}
