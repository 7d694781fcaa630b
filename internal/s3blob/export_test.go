package s3blob

import "github.com/aws/aws-sdk-go-v2/service/s3"

// NewObjectsWith takes the presign client apart from the one that calls.
func NewObjectsWith(client *s3.Client, presign presigner, bucket string) *Objects {
	return &Objects{Blobs{client, bucket}, client, presign}
}
