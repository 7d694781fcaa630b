package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
)

// unpacks says that this system can keep a tree inside a directory.
const unpacks = true

// packStore is what a restore here reads from. It stores nothing.
type packStore struct{ packReader }

var _ workspace.Store = packStore{}

// Get reads a part of an object.
func (s packStore) Get(ctx context.Context, ref manifest.PackRef, offset int64, dst []byte) error {
	err := s.packReader.Get(ctx, ref, offset, dst)
	if errors.Is(err, errNotStored) {
		return fmt.Errorf("read object %s: %w", ref.Name(), workspace.ErrNotStored)
	}
	return err
}

var errReadOnly = errors.New("this tool stores nothing")

// Put is refused.
func (packStore) Put(context.Context, workspace.Object) (manifest.PackRef, error) {
	return manifest.PackRef{}, errReadOnly
}

// Renew is nothing: there is no lease to a reader.
func (packStore) Renew(context.Context, workspace.Progress) error { return nil }

// unpack restores a checkpoint's files to a directory, and what git is to read to another.
func unpack(ctx context.Context, a archived, to, git string, progress func(files, bytes int64)) (unpacked, error) {
	r, err := workspace.Restore(ctx, workspace.RestoreOptions{
		Root: to, Store: packStore{a.packs}, Manifest: a.root, GitDir: git,
		Progress: func(p workspace.Progress) { progress(p.Files, p.Bytes) },
	})
	return unpacked{r.Written, r.Bytes, r.Unset}, err
}
