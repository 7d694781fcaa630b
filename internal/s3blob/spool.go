package s3blob

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

var _ core.Spool = (*Objects)(nil)

// Pieces lists one page of the pieces of a run's journal, from where they begin on.
// Objects that are none are passed over.
func (o *Objects) Pieces(ctx context.Context, key core.RunKey, from int64) (pieces []core.SpoolPiece, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	prefix := core.SpoolPrefix(key)
	page, err := o.client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &o.bucket, Prefix: &prefix, StartAfter: new(core.SpoolAfter(key, from))})
	if err != nil {
		return nil, false, fmt.Errorf("list spool %s: %w", prefix, err)
	}
	for _, object := range page.Contents {
		if p, ok := core.ParseSpoolKey(key, aws.ToString(object.Key)); ok && p.End-p.From == aws.ToInt64(object.Size) {
			p.At = core.MillisOf(aws.ToTime(object.LastModified))
			pieces = append(pieces, p)
		}
	}
	return pieces, aws.ToBool(page.IsTruncated) && len(pieces) > 0, nil
}

// Piece returns the bytes of a piece, verified by S3's checksum.
func (o *Objects) Piece(ctx context.Context, key core.RunKey, p core.SpoolPiece) ([]byte, error) {
	return o.Blob(ctx, core.SpoolKey(key, p))
}
