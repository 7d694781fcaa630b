package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// archived is a checkpoint as the caller's own credentials read it: its record, its root,
// and where its layers and packs are.
type archived struct {
	record core.Checkpoint
	root   manifest.Root
	packs  packReader
}

// threads are the records of checkpoints.
func (in *installation) threads() *ddb.Threads {
	return ddb.NewThreads(dynamodb.NewFromConfig(in.cfg), in.out[names.OutCheckpoints])
}

// archived reads a checkpoint's record and root, the head's where id is empty.
func (in *installation) archived(ctx context.Context, key core.ThreadKey, id core.CheckpointID) (archived, error) {
	threads := in.threads()
	th, err := threads.Thread(ctx, key)
	if err != nil {
		return archived{}, err
	}
	if id = cmp.Or(id, th.Head); id == "" {
		return archived{}, fmt.Errorf("thread %s: checkpoint %w", key, core.ErrNotFound)
	}
	a := archived{packs: in.packs(key)}
	if a.record, err = threads.Checkpoint(ctx, key, id); err != nil {
		return archived{}, err
	}
	at := a.record.Manifest
	data, err := in.blobs.Blob(ctx, at.Key)
	if errors.Is(err, core.ErrNotFound) { // which is no matter of a wrong name
		return archived{}, fmt.Errorf("read root of checkpoint %s: %s is not stored", id, at.Key)
	}
	if err != nil {
		return archived{}, fmt.Errorf("read root of checkpoint %s: %w", id, err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != at.SHA256 {
		return archived{}, fmt.Errorf("read root of checkpoint %s: the bytes of %s are not those that its record names", id, at.Key)
	}
	if a.root, err = manifest.DecodeRoot(data); err != nil {
		return archived{}, fmt.Errorf("read root of checkpoint %s: %w", id, err)
	}
	return a, nil
}

// each reads the entries in order, layer by layer side by side, and checks what a reader
// must refuse. The entries before an error are valid in themselves, but the checkpoint is
// not to be trusted.
func (a archived) each(ctx context.Context, do func(manifest.Entry) error) error {
	layers := make([]iter.Seq2[manifest.Entry, error], len(a.root.Layers))
	for i, ref := range a.root.Layers {
		layers[i] = func(yield func(manifest.Entry, error) bool) {
			manifest.OpenLayer(a.packs.reader(ctx, ref), ref)(yield)
		}
	}
	var failed error
	seen := func(yield func(manifest.Entry, error) bool) {
		for e, err := range manifest.Merge(layers...) {
			if !yield(e, err) {
				return
			}
			if err != nil {
				continue
			}
			if failed = do(e); failed != nil {
				return
			}
		}
	}
	theirs := func(string) bool { return true } // the owners are the server's own word
	err := manifest.CheckWith(a.root, seen, manifest.CheckOptions{Owners: theirs})
	return cmp.Or(failed, err)
}

// packReader reads the objects of a thread's checkpoints from S3, and writes none.
type packReader struct {
	client *s3.Client
	bucket string
	key    core.ThreadKey
}

// errNotStored is of an object that is not there, which no repetition brings.
var errNotStored = errors.New("not stored")

func (in *installation) packs(key core.ThreadKey) packReader {
	// A checksum of S3's is of a whole object, and what is read are parts. Every layer and
	// every chunk has a digest of its own.
	parts := func(o *s3.Options) { o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired }
	return packReader{s3.NewFromConfig(in.cfg, pathStyle, parts), in.out[names.OutBucket], key}
}

const (
	// partWithin bounds one read of a part, of at most a few MiB.
	partWithin = 2 * time.Minute
	// partTries is how often a part is read whose answer broke off.
	partTries = 3
	// layerPart is how much of a layer is read at once.
	layerPart = 1 << 20
)

// Get reads a part of an object.
func (p packReader) Get(ctx context.Context, ref manifest.PackRef, offset int64, dst []byte) error {
	var err error
	for range partTries {
		err = p.part(ctx, ref, offset, dst)
		if err == nil || ctx.Err() != nil || errors.Is(err, errNotStored) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("read object %s: %w", ref.Name(), err)
	}
	return nil
}

func (p packReader) part(ctx context.Context, ref manifest.PackRef, offset int64, dst []byte) error {
	ctx, cancel := context.WithTimeout(ctx, partWithin)
	defer cancel()
	name := core.PackKey(p.key, core.PackRef{Fence: ref.Fence, SHA256: ref.SHA256.String(), Owner: core.ThreadID(ref.Owner)})
	answer, err := p.client.GetObject(ctx, &s3.GetObjectInput{
		Bucket: &p.bucket, Key: &name, Range: new(fmt.Sprintf("bytes=%d-%d", offset, offset+int64(len(dst))-1)),
	})
	if _, ok := errors.AsType[*types.NoSuchKey](err); ok {
		return errNotStored
	}
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.ReadFull(answer.Body, dst)
	return err
}

// reader reads a layer from its beginning to its end, part by part.
func (p packReader) reader(ctx context.Context, ref manifest.PackRef) io.Reader {
	return bufio.NewReaderSize(io.NewSectionReader(partsOf{ctx, p, ref}, 0, ref.Size), layerPart)
}

// partsOf is one object as an [io.ReaderAt].
type partsOf struct {
	ctx  context.Context
	from packReader
	ref  manifest.PackRef
}

// ReadAt reads a part.
func (o partsOf) ReadAt(dst []byte, offset int64) (int, error) {
	if len(dst) == 0 {
		return 0, nil
	}
	if err := o.from.Get(o.ctx, o.ref, offset, dst); err != nil {
		return 0, err
	}
	return len(dst), nil
}
