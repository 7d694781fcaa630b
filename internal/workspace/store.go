package workspace

import (
	"context"
	"errors"
	"io"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// ErrNotStored tells that there is no such object. Errors of [Store.Get] match it.
var ErrNotStored = errors.New("no such object")

// Store keeps the objects of a thread: packs and layers. It is safe for concurrent
// use, and each call has a deadline of its own under the context's.
type Store interface {
	// Put stores an object under the writer's current fence and returns its name.
	// One that is there already is not sent again: that is success.
	Put(ctx context.Context, object Object) (manifest.PackRef, error)
	// Get fills dst with the bytes of an object from offset on. Fewer bytes are an
	// error; an object that is not there is [ErrNotStored].
	Get(ctx context.Context, ref manifest.PackRef, offset int64, dst []byte) error
	// Renew says that the work goes on, and how far it is.
	Renew(ctx context.Context, progress Progress) error
}

// Object is what a store is given. Body is read from any offset, more than once
// where a request is repeated, until Put returns.
type Object struct {
	SHA256 manifest.Digest
	Size   int64
	Body   io.ReaderAt
}

// Progress is how far a capture or a restore is.
type Progress struct {
	Files int64 // entries done with
	Bytes int64 // of content, read or written
}
