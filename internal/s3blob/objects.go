package s3blob

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// objectClient is what [Objects] uses of S3 beside what [Blobs] does.
type objectClient interface {
	client
	s3.ListObjectVersionsAPIClient
	s3.ListObjectsV2APIClient
	DeleteObject(context.Context, *s3.DeleteObjectInput, ...func(*s3.Options)) (*s3.DeleteObjectOutput, error)
}

// presigner makes URLs that carry their own signature.
type presigner interface {
	PresignPutObject(context.Context, *s3.PutObjectInput, ...func(*s3.PresignOptions)) (*v4.PresignedHTTPRequest, error)
	PresignGetObject(context.Context, *s3.GetObjectInput, ...func(*s3.PresignOptions)) (*v4.PresignedHTTPRequest, error)
}

var (
	_ objectClient = (*s3.Client)(nil)
	_ presigner    = (*s3.PresignClient)(nil)
	_ core.Objects = (*Objects)(nil)
)

// Objects are blobs that are also looked at, listed, deleted, and read and written by
// others under grants.
type Objects struct {
	Blobs
	client  objectClient
	presign presigner
}

// NewObjects returns the objects of a bucket.
func NewObjects(client *s3.Client, bucket string) *Objects {
	return &Objects{Blobs{client, bucket}, client, s3.NewPresignClient(client)}
}

// maxGrant is the longest life of a grant. One that a function signs dies with the
// session of the function's role, whatever it says itself.
const maxGrant = 15 * time.Minute

// Stat describes the current object under key, or is ErrNotFound. SHA256 is the
// checksum that S3 verified when the object was stored; empty if it has none.
func (o *Objects) Stat(ctx context.Context, key string) (core.ObjectInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := o.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &o.bucket, Key: &key, ChecksumMode: types.ChecksumModeEnabled})
	if _, ok := errors.AsType[*types.NotFound](err); ok {
		return core.ObjectInfo{}, fmt.Errorf("stat object %s: %w", key, core.ErrNotFound)
	}
	if err != nil {
		return core.ObjectInfo{}, fmt.Errorf("stat object %s: %w", key, err)
	}
	sum, err := hexSum(out.ChecksumSHA256)
	if err != nil {
		return core.ObjectInfo{}, fmt.Errorf("stat object %s: %w", key, err)
	}
	return core.ObjectInfo{
		Key: key, Size: aws.ToInt64(out.ContentLength), SHA256: sum, Version: aws.ToString(out.VersionId),
		ModifiedAt: core.MillisOf(aws.ToTime(out.LastModified)),
	}, nil
}

// hexSum turns S3's base64 into hex.
func hexSum(sum *string) (string, error) {
	if sum == nil {
		return "", nil
	}
	raw, err := base64.StdEncoding.DecodeString(*sum)
	if err != nil {
		return "", fmt.Errorf("read checksum %q: %w", *sum, err)
	}
	return hex.EncodeToString(raw), nil
}

// Objects lists the current objects whose keys begin with prefix, in the order of their
// keys, all pages; a page that failed is an error. SHA256 is empty: a listing has none.
func (o *Objects) Objects(ctx context.Context, prefix string) ([]core.ObjectInfo, error) {
	var all []core.ObjectInfo
	pages := s3.NewListObjectVersionsPaginator(o.client, &s3.ListObjectVersionsInput{Bucket: &o.bucket, Prefix: &prefix})
	for pages.HasMorePages() {
		page, err := nextPage(ctx, pages.NextPage)
		if err != nil {
			return nil, fmt.Errorf("list objects %s: %w", prefix, err)
		}
		for _, v := range page.Versions {
			if !aws.ToBool(v.IsLatest) {
				continue
			}
			all = append(all, core.ObjectInfo{
				Key: aws.ToString(v.Key), Size: aws.ToInt64(v.Size), Version: aws.ToString(v.VersionId),
				ModifiedAt: core.MillisOf(aws.ToTime(v.LastModified)),
			})
		}
	}
	return all, nil
}

// Prefixes lists what the keys that begin with prefix go on with, up to the next "/" and
// with it, in order, all pages; a page that failed is an error.
func (o *Objects) Prefixes(ctx context.Context, prefix string) ([]string, error) {
	var all []string
	pages := s3.NewListObjectsV2Paginator(o.client, &s3.ListObjectsV2Input{Bucket: &o.bucket, Prefix: &prefix, Delimiter: new("/")})
	for pages.HasMorePages() {
		page, err := nextPage(ctx, pages.NextPage)
		if err != nil {
			return nil, fmt.Errorf("list prefixes %s: %w", prefix, err)
		}
		for _, p := range page.CommonPrefixes {
			all = append(all, aws.ToString(p.Prefix))
		}
	}
	return all, nil
}

// nextPage bounds the request for one page.
func nextPage[Page any](ctx context.Context, next func(context.Context, ...func(*s3.Options)) (Page, error)) (Page, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return next(ctx)
}

// Delete removes exactly this version of the object under key, for ever. One that is
// gone is success. A version stored meanwhile under the same key stays.
func (o *Objects) Delete(ctx context.Context, key, version string) error {
	if version == "" {
		// Without one S3 would only hide whatever is there now.
		return fmt.Errorf("delete object %s: want a version", key)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := o.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &o.bucket, Key: &key, VersionId: &version}); err != nil {
		return fmt.Errorf("delete object %s version %s: %w", key, version, err)
	}
	return nil
}

// GrantPut gives leave to store one object under key, once, of exactly size bytes with
// this SHA-256 in hex. All three are signed, so that S3 refuses anything else.
func (o *Objects) GrantPut(ctx context.Context, key, sha256 string, size int64, ttl time.Duration) (core.Grant, error) {
	raw, err := hex.DecodeString(sha256)
	if err != nil || len(raw) != 32 {
		return core.Grant{}, fmt.Errorf("grant put of %s: want 64 hex digits, got %q", key, sha256)
	}
	return o.grant(ctx, key, ttl, func(within func(*s3.PresignOptions)) (*v4.PresignedHTTPRequest, error) {
		return o.presign.PresignPutObject(ctx, &s3.PutObjectInput{
			Bucket: &o.bucket, Key: &key, ContentLength: &size, IfNoneMatch: new("*"),
			ChecksumSHA256: new(base64.StdEncoding.EncodeToString(raw)), Tagging: tagging(key),
		}, within)
	})
}

// GrantGet gives leave to read a version of the object under key, whole or in ranges;
// an empty version is the current one.
func (o *Objects) GrantGet(ctx context.Context, key, version string, ttl time.Duration) (core.Grant, error) {
	in := &s3.GetObjectInput{Bucket: &o.bucket, Key: &key}
	if version != "" {
		in.VersionId = &version
	}
	return o.grant(ctx, key, ttl, func(within func(*s3.PresignOptions)) (*v4.PresignedHTTPRequest, error) {
		return o.presign.PresignGetObject(ctx, in, within)
	})
}

func (o *Objects) grant(ctx context.Context, key string, ttl time.Duration, sign func(func(*s3.PresignOptions)) (*v4.PresignedHTTPRequest, error)) (core.Grant, error) {
	if ttl < time.Second || ttl > maxGrant {
		return core.Grant{}, fmt.Errorf("grant of %s: want 1s to %s, got %s", key, maxGrant, ttl)
	}
	until := core.MillisOf(time.Now().Add(ttl))
	signed, err := sign(s3.WithPresignExpires(ttl))
	if err != nil {
		return core.Grant{}, fmt.Errorf("grant of %s: %w", key, err)
	}
	return core.Grant{URL: signed.URL, Header: sentHeaders(signed.SignedHeader), Until: until}, nil
}

// sentHeaders are those signed headers that a client does not send by itself.
func sentHeaders(signed http.Header) map[string]string {
	sent := map[string]string{}
	for name, values := range signed {
		if name != "Host" && name != "Content-Length" {
			sent[name] = strings.Join(values, ",")
		}
	}
	return sent
}
