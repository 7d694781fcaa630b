// Package workspacetest holds stores for tests and benchmarks of the workspace
// engine. Its rule: a store checks what it is given as the real one does.
package workspacetest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
)

// DirStore keeps objects as files of a directory. Fence is the writer's.
type DirStore struct {
	Dir   string
	Fence int64

	Puts     atomic.Int64 // objects that were sent
	Present  atomic.Int64 // objects that were there already
	Gets     atomic.Int64
	PutBytes atomic.Int64
	Renewals atomic.Int64
	// FailPut, if not nil, is asked before an object is stored.
	FailPut func(workspace.Object) error
}

var _ workspace.Store = (*DirStore)(nil)

func (s *DirStore) path(ref manifest.PackRef) string { return filepath.Join(s.Dir, ref.Name()) }

// Put checks size and digest and stores the object once.
func (s *DirStore) Put(ctx context.Context, object workspace.Object) (manifest.PackRef, error) {
	ref := manifest.PackRef{Fence: s.Fence, SHA256: object.SHA256, Size: object.Size}
	if err := ctx.Err(); err != nil {
		return ref, context.Cause(ctx)
	}
	if s.FailPut != nil {
		if err := s.FailPut(object); err != nil {
			return ref, err
		}
	}
	if _, err := os.Stat(s.path(ref)); err == nil {
		s.Present.Add(1)
		return ref, nil
	}
	sum := sha256.New()
	file, err := os.CreateTemp(s.Dir, "put-")
	if err != nil {
		return ref, err
	}
	defer file.Close()
	n, err := io.Copy(io.MultiWriter(file, sum), io.NewSectionReader(object.Body, 0, object.Size+1))
	if err != nil {
		return ref, err
	}
	if n != object.Size || manifest.Digest(sum.Sum(nil)) != object.SHA256 {
		return ref, fmt.Errorf("store object %s: the body does not have its size and digest", ref.Name())
	}
	s.Puts.Add(1)
	s.PutBytes.Add(n)
	return ref, os.Rename(file.Name(), s.path(ref))
}

// Get reads a part of an object.
func (s *DirStore) Get(ctx context.Context, ref manifest.PackRef, offset int64, dst []byte) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	s.Gets.Add(1)
	file, err := os.Open(s.path(ref))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read object %s: %w", ref.Name(), workspace.ErrNotStored)
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.ReadAt(dst, offset); err != nil {
		return fmt.Errorf("read object %s: %w", ref.Name(), err)
	}
	return nil
}

// Renew counts.
func (s *DirStore) Renew(context.Context, workspace.Progress) error {
	s.Renewals.Add(1)
	return nil
}
