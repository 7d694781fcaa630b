package workspace

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// spoolMemory is how much of a layer is held in memory; the rest goes to a file
// without a name.
const spoolMemory = 8 << 20

// spoolBlock is the unit in which a spool grows.
const spoolBlock = 256 << 10

// spool holds bytes that are written once and read from any offset.
type spool struct {
	blocks [][]byte // full but for the last
	file   *os.File // nil as long as the blocks hold everything
	size   int64
	sum    hash.Hash
}

func newSpool() *spool { return &spool{sum: sha256.New()} }

// Write appends b.
func (s *spool) Write(b []byte) (int, error) {
	s.sum.Write(b)
	written := len(b)
	for len(b) > 0 && s.size < spoolMemory {
		at := int(s.size % spoolBlock)
		if at == 0 {
			s.blocks = append(s.blocks, make([]byte, spoolBlock))
		}
		n := copy(s.blocks[len(s.blocks)-1][at:], b)
		b, s.size = b[n:], s.size+int64(n)
	}
	if len(b) == 0 {
		return written, nil
	}
	if s.file == nil {
		if err := s.spill(); err != nil {
			return 0, err
		}
	}
	if _, err := s.file.Write(b); err != nil {
		return 0, fmt.Errorf("write temporary file: %w", err)
	}
	s.size += int64(len(b))
	return written, nil
}

// spill opens a file without a name, in memory where there is no directory for it.
func (s *spool) spill() error {
	file, err := os.CreateTemp("", "sandkeeper-layer-")
	if err == nil {
		s.file = file
		return os.Remove(file.Name())
	}
	fd, memoryErr := unix.MemfdCreate("sandkeeper-layer", unix.MFD_CLOEXEC)
	if memoryErr != nil {
		return fmt.Errorf("open temporary file: %w", err)
	}
	s.file = os.NewFile(uintptr(fd), "sandkeeper-layer")
	return nil
}

// ReadAt reads what was written.
func (s *spool) ReadAt(b []byte, offset int64) (int, error) {
	done := 0
	for done < len(b) && offset < min(s.size, spoolMemory) {
		block := s.blocks[offset/spoolBlock]
		within := min(spoolBlock, s.size-offset/spoolBlock*spoolBlock)
		n := copy(b[done:], block[offset%spoolBlock:within])
		done, offset = done+n, offset+int64(n)
	}
	if done == len(b) {
		return done, nil
	}
	if s.file == nil {
		return done, io.EOF
	}
	n, err := s.file.ReadAt(b[done:], offset-spoolMemory)
	return done + n, err
}

func (s *spool) reader() io.Reader { return io.NewSectionReader(s, 0, s.size) }

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
