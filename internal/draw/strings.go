package draw

import (
	"math/rand/v2"
	"strings"
	"unicode"
)

// odd are characters that programs take for another, for none or for an end.
var odd = []rune{
	0, '\t', '\n', '\r', 0x1b, ' ', '"', '\'', '\\', '/', '%', '<', 0x7f, 0x85, 0xa0, 'é', 0x301, 'ß', 'İ', 'ı', 0x200b, 0x200d, 0x202e, 0x2028, 0x2029,
	0xd7ff, 0xe000, 0xfeff, 0xfffd, 0xfffe, 0xffff, 0x10000, 0x1f600, unicode.MaxRune,
}

// broken are sequences of bytes that are no UTF-8.
var broken = []string{"\xff", "\xfe", "\x80", "\xc3", "\xe2\x80", "\xf0\x9f\x98", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80"}

// bands are the characters that UTF-8 has a sequence for, the simplest first.
var bands = []rune{
	'a', 'z', 'A', 'Z', '0', '9', ' ', '/', ':', '@', '[', '`', '{', '~', 0, 0x1f, 0x7f, 0x7f, 0x80, 0xd7ff, 0xe000, unicode.MaxRune,
}

// String makes texts of UTF-8, odd characters in them, the empty one among them. Letters
// are simpler than other characters.
func String() Generator[string] {
	all := newAlphabet([]rune{0, unicode.MaxRune})
	return Custom(func(t *T) string { return t.text(bounds(0, roomy/2), all.draw) })
}

// AnyString is String with bytes between that are no UTF-8.
func AnyString() Generator[string] {
	all, none := newAlphabet([]rune{0, unicode.MaxRune}), SampledFrom(broken)
	piece := func(t *T) string {
		if t.choose(7, even(7)) == 7 {
			return none.value(t)
		}
		return all.draw(t)
	}
	return Custom(func(t *T) string { return t.text(bounds(0, roomy/2), piece) })
}

// text is a text of s pieces.
func (t *T) text(s size, piece func(*T) string) string {
	var text strings.Builder
	t.items(s, func() bool { text.WriteString(piece(t)); return true })
	return text.String()
}

// alphabet is a set of characters: ranges, first and last of each, the simplest first.
type alphabet struct {
	ranges []rune
	size   uint64
	plain  uint64   // so many, the first, are letters and signs of ASCII
	edges  []uint64 // the odd ones, and those at either end of a range
}

// newAlphabet is the set of the ranges of class, without what UTF-8 has no sequence for.
func newAlphabet(class []rune) alphabet {
	var a alphabet
	for b := 0; b < len(bands); b += 2 {
		for c := 0; c+1 < len(class); c += 2 {
			a.add(max(bands[b], class[c]), min(bands[b+1], class[c+1]))
		}
		if bands[b+1] == '~' {
			a.plain = a.size
		}
	}
	return a
}

func (a *alphabet) add(first, last rune) {
	if first > last {
		return
	}
	for _, r := range odd {
		if first < r && r < last {
			a.edges = append(a.edges, a.size+uint64(r-first))
		}
	}
	a.ranges = append(a.ranges, first, last)
	a.size += uint64(last-first) + 1
	a.edges = append(a.edges, a.size-uint64(last-first)-1, a.size-1)
}

// draw is one character: half of them plain, a quarter at the edges.
func (a alphabet) draw(t *T) string {
	c := t.choose(a.size-1, func(r *rand.Rand) uint64 {
		switch n := r.IntN(4); {
		case n < 2 && a.plain > 0:
			return r.Uint64N(a.plain)
		case n == 2:
			return a.edges[r.IntN(len(a.edges))]
		}
		return r.Uint64N(a.size)
	})
	for i := 0; ; i += 2 {
		n := uint64(a.ranges[i+1]-a.ranges[i]) + 1
		if c < n {
			return string(a.ranges[i] + rune(c))
		}
		c -= n
	}
}
