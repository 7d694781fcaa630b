package manifest

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"iter"
)

// ObjectError reports stored bytes that are not those that a reference names.
type ObjectError struct {
	Want, Got PackRef // Got has the digest and the size of what was read, as far as it was read
}

func (e *ObjectError) Error() string {
	return fmt.Sprintf("read object %s: %d bytes with digest %s, want %d", e.Want.Name(), e.Got.Size, e.Got.SHA256, e.Want.Size)
}

// OpenLayer reads the layer that a reference names as ReadLayer does, and compares
// the bytes with the reference: *ObjectError at the end if they differ. It never
// reads far beyond the size that the reference states.
func OpenLayer(r io.Reader, ref PackRef) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		// State of its own for each pass: the sequence may be ranged over again
		// where the reader can be.
		ReadLayer(&verified{from: io.LimitReader(r, ref.Size+1), ref: ref, hash: sha256.New()})(yield)
	}
}

// verified compares what passes with a reference when the end is reached.
type verified struct {
	from io.Reader
	ref  PackRef
	hash hash.Hash
	size int64
}

func (v *verified) Read(b []byte) (int, error) {
	n, err := v.from.Read(b)
	v.hash.Write(b[:n])
	v.size += int64(n)
	if err == io.EOF || v.size > v.ref.Size {
		got := PackRef{Fence: v.ref.Fence, SHA256: Digest(v.hash.Sum(nil)), Size: v.size}
		if got.SHA256 != v.ref.SHA256 || got.Size != v.ref.Size {
			return 0, &ObjectError{Want: v.ref, Got: got}
		}
	}
	return n, err
}
