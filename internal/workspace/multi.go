package workspace

import "bytes"

// Patterns of at least minMulti bytes are looked for together from manyPatterns on:
// one alone is found faster by itself.
const (
	minMulti     = 6
	manyPatterns = 2
)

// multi finds all occurrences of many patterns in one pass, in time that hardly
// depends on their number: it looks at the last two bytes of a window as long as the
// shortest pattern, and moves the window as far as no pattern can have them earlier.
type multi struct {
	window  int
	shift   [1 << 16]uint8
	endings map[uint16][]pattern // by the last two bytes of the window
}

func newMulti(patterns []pattern) *multi {
	m := &multi{window: 255, endings: map[uint16][]pattern{}}
	for _, p := range patterns {
		m.window = min(m.window, len(p.text))
	}
	for i := range m.shift {
		m.shift[i] = uint8(m.window - 1)
	}
	for _, p := range patterns {
		for end := 2; end <= m.window; end++ {
			pair := pairOf(p.text[end-2:])
			m.shift[pair] = min(m.shift[pair], uint8(m.window-end))
		}
		last := pairOf(p.text[m.window-2:])
		m.endings[last] = append(m.endings[last], p)
	}
	return m
}

func pairOf(b []byte) uint16 { return uint16(b[0]) | uint16(b[1])<<8 }

func (m *multi) markAll(marks *bitmap, data []byte) {
	for end := m.window; end <= len(data); {
		pair := pairOf(data[end-2:])
		if step := int(m.shift[pair]); step > 0 {
			end += step
			continue
		}
		for _, p := range m.endings[pair] {
			if bytes.HasPrefix(data[end-m.window:], p.text) {
				p.mark(marks, data, end-m.window)
			}
		}
		end++
	}
}
