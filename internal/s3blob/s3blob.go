// Package s3blob keeps immutable objects in a bucket. Its rule: an object is written
// at most once, under a condition and with a SHA-256 that S3 itself verifies, and its
// bytes are believed only when they match that checksum again.
package s3blob

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	smithytime "github.com/aws/smithy-go/time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// client is what this package uses of S3.
type client interface {
	PutObject(context.Context, *s3.PutObjectInput, ...func(*s3.Options)) (*s3.PutObjectOutput, error)
	HeadObject(context.Context, *s3.HeadObjectInput, ...func(*s3.Options)) (*s3.HeadObjectOutput, error)
	GetObject(context.Context, *s3.GetObjectInput, ...func(*s3.Options)) (*s3.GetObjectOutput, error)
}

var (
	_ client     = (*s3.Client)(nil)
	_ core.Blobs = (*Blobs)(nil)
)

// Blobs keeps objects in one bucket.
type Blobs struct {
	client client
	bucket string
}

// New returns the blobs of a bucket.
func New(client client, bucket string) *Blobs { return &Blobs{client, bucket} }

const (
	// callTimeout bounds one request with the SDK's own retries; an object is a piece of
	// a log of at most 16 MiB, or a checkpoint's layer of at most 256.
	callTimeout = 30 * time.Second
	// conflictTries is how often a put that met another one under way is sent.
	conflictTries = 5
	conflictWait  = 50 * time.Millisecond
)

// PutBlob stores data under key unless it is there. A key that exists is a success
// if its checksum is that of data, which also covers a put whose answer was lost.
func (b *Blobs) PutBlob(ctx context.Context, key string, data []byte) error {
	digest := sha256.Sum256(data)
	sum := base64.StdEncoding.EncodeToString(digest[:])
	err := b.put(ctx, key, data, sum)
	switch {
	case err == nil:
		return nil
	case code(err) == "PreconditionFailed":
		return b.compare(ctx, key, sum)
	default:
		return fmt.Errorf("put blob %s: %w", key, err)
	}
}

// put sends the object; where another put of the key is under way, once more after
// a pause, to learn how that one ended.
func (b *Blobs) put(ctx context.Context, key string, data []byte, sum string) error {
	for try := 0; ; try++ {
		err := b.putOnce(ctx, key, data, sum)
		if code(err) != "ConditionalRequestConflict" || try == conflictTries-1 {
			return err
		}
		if err := smithytime.SleepWithContext(ctx, rand.N(conflictWait<<try)); err != nil {
			return err
		}
	}
}

func (b *Blobs) putOnce(ctx context.Context, key string, data []byte, sum string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := b.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: &b.bucket, Key: &key, Body: bytes.NewReader(data), ContentLength: new(int64(len(data))),
		IfNoneMatch: new("*"), ChecksumAlgorithm: types.ChecksumAlgorithmSha256, ChecksumSHA256: &sum,
		Tagging: tagging(key),
	})
	return err
}

// tagging is what the bucket's retention goes by: logs and pieces of the spool, whose
// keys are <tenant>/logs/… and <tenant>/spool/…, are tagged; all else stays until it is
// collected.
func tagging(key string) *string {
	parts := strings.SplitN(key, "/", 3)
	if len(parts) < 3 {
		return nil
	}
	kind, ok := map[string]string{names.LogsPrefix: names.KindLog, names.SpoolPrefix: names.KindSpool}[parts[1]]
	if !ok {
		return nil
	}
	return new(url.Values{names.TagKind: {kind}}.Encode())
}

// compare tells whether the object that is there has the checksum sum.
func (b *Blobs) compare(ctx context.Context, key, sum string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.bucket, Key: &key, ChecksumMode: types.ChecksumModeEnabled})
	switch {
	case err != nil:
		return fmt.Errorf("put blob %s: it is there, compare it: %w", key, err)
	case out.ChecksumSHA256 == nil:
		return fmt.Errorf("put blob %s: it is there, compare it: %w", key, errUnverifiable)
	case *out.ChecksumSHA256 != sum:
		return &core.BlobConflictError{Key: key}
	}
	return nil
}

var (
	// errUnverifiable tells of an object that was not written by this package.
	errUnverifiable = errors.New("it has no SHA-256 checksum")
	errChecksum     = errors.New("its bytes do not match its SHA-256 checksum")
)

// Blob returns the bytes under key.
func (b *Blobs) Blob(ctx context.Context, key string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := b.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.bucket, Key: &key, ChecksumMode: types.ChecksumModeEnabled})
	if _, ok := errors.AsType[*types.NoSuchKey](err); ok {
		return nil, fmt.Errorf("read blob %s: %w", key, core.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", key, err)
	}
	defer out.Body.Close()
	data, err := readAll(out.Body, aws.ToInt64(out.ContentLength))
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", key, err)
	}
	digest := sha256.Sum256(data)
	switch {
	case out.ChecksumSHA256 == nil:
		return nil, fmt.Errorf("read blob %s: %w", key, errUnverifiable)
	case *out.ChecksumSHA256 != base64.StdEncoding.EncodeToString(digest[:]):
		return nil, fmt.Errorf("read blob %s: %w", key, errChecksum)
	}
	return data, nil
}

// readAll reads a body of the length that its header says, without the copies that a
// buffer makes which grows. A body that is longer or shorter is read as it is.
func readAll(body io.Reader, length int64) ([]byte, error) {
	whole := bytes.NewBuffer(make([]byte, 0, max(0, length)+bytes.MinRead))
	_, err := whole.ReadFrom(body)
	return whole.Bytes(), err
}

// code is S3's name for an error, empty for any other.
func code(err error) string {
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		return e.ErrorCode()
	}
	return ""
}
