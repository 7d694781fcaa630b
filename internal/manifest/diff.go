package manifest

import (
	"fmt"
	"iter"
)

// Change is a path at which two trees differ.
type Change struct {
	Area    Area
	Path    string
	Before  *Entry // nil where the path is new
	After   *Entry // nil where it is gone
	Content bool   // both are there and differ in kind, size, bytes or target
	Meta    bool   // both are there and differ in mode, owner, attributes or mtime
}

// Diff answers in order what a restore of b would make different from a. Both are
// merged trees. Where a file is stored, and what it looked like when it was read,
// does not count.
func Diff(a, b iter.Seq2[Entry, error]) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		for pair, err := range pairs(a, b) {
			if err != nil {
				yield(Change{}, err)
				return
			}
			if pair.before != nil && pair.after != nil && pair.before.sameTree(*pair.after) {
				continue
			}
			if !yield(pair.change(), nil) {
				return
			}
		}
	}
}

// Delta answers the layer that makes the tree b of the tree a: what is new or
// different in any member, and tombstones of what is gone. Merge(a, Delta(a, b))
// is b.
func Delta(a, b iter.Seq2[Entry, error]) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for pair, err := range pairs(a, b) {
			if err != nil {
				yield(Entry{}, err)
				return
			}
			if e, differs := pair.delta(); differs && !yield(e, nil) {
				return
			}
		}
	}
}

// pair is a path with the entries that two trees have there.
type pair struct{ before, after *Entry }

func (p pair) change() Change {
	if p.before == nil {
		return Change{Area: p.after.Area, Path: p.after.Path, After: p.after}
	}
	c := Change{Area: p.before.Area, Path: p.before.Path, Before: p.before, After: p.after}
	if p.after != nil {
		a, b := *p.before, *p.after
		c.Content = a.Kind != b.Kind || a.Target != b.Target || !a.SameContent(b)
		c.Meta = a.Mode != b.Mode || a.UID != b.UID || a.GID != b.GID || a.MTime != b.MTime || !sameXattrs(a.Xattrs, b.Xattrs)
	}
	return c
}

func (p pair) delta() (Entry, bool) {
	switch {
	case p.after == nil:
		return Tombstone(p.before.Area, p.before.Path), true
	case p.before == nil || !p.before.Equal(*p.after):
		return *p.after, true
	}
	return Entry{}, false
}

// pairs walks two trees side by side.
func pairs(a, b iter.Seq2[Entry, error]) iter.Seq2[pair, error] {
	return func(yield func(pair, error) bool) {
		x, y := newHead(a), newHead(b)
		defer x.stop()
		defer y.stop()
		x.advance()
		y.advance()
		for x.ok || y.ok {
			if x.err != nil || y.err != nil {
				yield(pair{}, sideError(x.err, y.err))
				return
			}
			if !yield(takePair(x, y), nil) {
				return
			}
		}
	}
}

func sideError(before, after error) error {
	if before != nil {
		return fmt.Errorf("compare trees: first: %w", before)
	}
	return fmt.Errorf("compare trees: second: %w", after)
}

// takePair takes the lower of two entries, or both where they are of one path.
func takePair(x, y *head) (p pair) {
	order := 0
	switch {
	case !y.ok:
		order = -1
	case !x.ok:
		order = 1
	default:
		order = Compare(x.entry, y.entry)
	}
	if order <= 0 {
		p.before = new(x.entry)
		x.advance()
	}
	if order >= 0 {
		p.after = new(y.entry)
		y.advance()
	}
	return p
}
