package manifest

import (
	"encoding/binary"
	"math"
	"math/bits"
)

func appendInt(b []byte, v int64) []byte { return binary.AppendUvarint(b, uint64(v)) }

// appendSigned writes small numbers of either sign in few bytes.
func appendSigned(b []byte, v int64) []byte { return binary.AppendVarint(b, v) }

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// cursor reads what appendInt and its siblings wrote. It stops at the first
// fault, and answers zeros from there on.
type cursor struct {
	data []byte
	at   int
	why  string
}

func (c *cursor) fail(why string) {
	if c.why == "" {
		c.why = why
	}
	c.at = len(c.data)
}

func (c *cursor) left() int { return len(c.data) - c.at }

// uvarint refuses numbers that have a shorter form, so that what is accepted has
// one encoding.
func (c *cursor) uvarint() uint64 {
	if c.at < len(c.data) && c.data[c.at] < 0x80 {
		c.at++
		return uint64(c.data[c.at-1])
	}
	v, n := binary.Uvarint(c.data[c.at:])
	if n <= 0 {
		c.fail("a number is cut short or too large")
		return 0
	}
	if n != max(1, (bits.Len64(v)+6)/7) {
		c.fail("a number has more bytes than it needs")
		return 0
	}
	c.at += n
	return v
}

// number reads one that fits into 63 bits.
func (c *cursor) number() int64 {
	v := c.uvarint()
	if v > math.MaxInt64 {
		c.fail("a number is too large")
		return 0
	}
	return int64(v)
}

func (c *cursor) signed() int64 {
	v := c.uvarint()
	return int64(v>>1) ^ -int64(v&1)
}

// count reads how many items follow, each of at least size bytes.
func (c *cursor) count(most, size int) int {
	v := c.uvarint()
	if v > uint64(most) || size > 0 && v > uint64(c.left()/size) {
		c.fail("a list is longer than it may be")
		return 0
	}
	return int(v)
}

func (c *cursor) byte() byte {
	if c.at >= len(c.data) {
		c.fail("it ends early")
		return 0
	}
	c.at++
	return c.data[c.at-1]
}

// take answers the next n bytes, not copied.
func (c *cursor) take(n int) []byte {
	if n < 0 || n > c.left() {
		c.fail("it ends early")
		return nil
	}
	c.at += n
	return c.data[c.at-n : c.at]
}

func (c *cursor) text(most int) string { return string(c.take(c.count(most, 1))) }

func (c *cursor) digest() (d Digest) {
	copy(d[:], c.take(len(d)))
	return d
}
