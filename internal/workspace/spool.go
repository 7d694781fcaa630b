package workspace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"os"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// spoolMemory is how much of a layer is held in memory; the rest goes to a file
// without a name.
const spoolMemory = 8 << 20

// spool holds bytes that are written once and read from any offset.
type spool struct {
	memory []byte
	file   *os.File
	size   int64
	sum    hash.Hash
}

func newSpool() *spool { return &spool{sum: sha256.New()} }

// Write appends b.
func (s *spool) Write(b []byte) (int, error) {
	s.sum.Write(b)
	s.size += int64(len(b))
	if s.file == nil && len(s.memory)+len(b) <= spoolMemory {
		s.memory = append(s.memory, b...)
		return len(b), nil
	}
	if s.file == nil {
		if err := s.spill(); err != nil {
			return 0, err
		}
	}
	if _, err := s.file.Write(b); err != nil {
		return 0, fmt.Errorf("write temporary file: %w", err)
	}
	return len(b), nil
}

func (s *spool) spill() error {
	file, err := os.CreateTemp("", "sandkeeper-layer-")
	if err != nil {
		return fmt.Errorf("open temporary file: %w", err)
	}
	os.Remove(file.Name())
	s.file = file
	return nil
}

// ReadAt reads what was written.
func (s *spool) ReadAt(b []byte, offset int64) (int, error) {
	return io.NewSectionReader(s.parts(), 0, s.size).ReadAt(b, offset)
}

func (s *spool) parts() io.ReaderAt {
	if s.file == nil {
		return bytes.NewReader(s.memory)
	}
	return spilled{s}
}

// spilled reads over the border between memory and file.
type spilled struct{ *spool }

func (s spilled) ReadAt(b []byte, offset int64) (int, error) {
	n := 0
	if offset < int64(len(s.memory)) {
		n = copy(b, s.memory[offset:])
	}
	if n == len(b) {
		return n, nil
	}
	m, err := s.file.ReadAt(b[n:], offset+int64(n)-int64(len(s.memory)))
	return n + m, err
}

func (s *spool) reader() io.Reader { return io.NewSectionReader(s.parts(), 0, s.size) }

func (s *spool) digest() manifest.Digest { return manifest.Digest(s.sum.Sum(nil)) }

func (s *spool) close() {
	if s.file != nil {
		s.file.Close()
	}
}

// layers are the layers of a checkpoint, fetched and checked.
type layers []*spool

func (l layers) close() {
	for _, s := range l {
		s.close()
	}
}

// merged is the tree that the layers describe. It may be read more than once.
func (l layers) merged() iter.Seq2[manifest.Entry, error] {
	opened := make([]iter.Seq2[manifest.Entry, error], 0, len(l))
	for _, s := range l {
		opened = append(opened, manifest.ReadLayer(s.reader()))
	}
	return manifest.Merge(opened...)
}

// fetchRange is how much of a layer one request asks for.
const fetchRange = 4 << 20

// fetchLayers reads the layers of a root and checks their digests.
func fetchLayers(ctx context.Context, store Store, root manifest.Root) (layers, error) {
	var fetched layers
	for _, ref := range root.Layers {
		s, err := fetchObject(ctx, store, ref)
		if err != nil {
			fetched.close()
			return nil, fmt.Errorf("read layer %s: %w", ref.Name(), err)
		}
		fetched = append(fetched, s)
	}
	return fetched, nil
}

func fetchObject(ctx context.Context, store Store, ref manifest.PackRef) (*spool, error) {
	if ref.Size < 0 || ref.Size > manifest.MaxLayer {
		return nil, refuse(CodeInvalidManifest, "", fmt.Errorf("layer of %d bytes: want at most %d", ref.Size, manifest.MaxLayer))
	}
	s := newSpool()
	buf := make([]byte, min(ref.Size, fetchRange))
	for s.size < ref.Size {
		part := buf[:min(ref.Size-s.size, fetchRange)]
		err := store.Get(ctx, ref, s.size, part)
		if err == nil {
			_, err = s.Write(part)
		}
		if err != nil {
			s.close()
			return nil, storeFault(err)
		}
	}
	if s.digest() != ref.SHA256 {
		s.close()
		return nil, refuse(CodeInvalidBlob, "", errors.New("stored bytes do not have their digest"))
	}
	return s, nil
}

// storeFault gives what is not there its code.
func storeFault(err error) error {
	if errors.Is(err, ErrNotStored) {
		return refuse(CodeMissingBlob, "", err)
	}
	return err
}
