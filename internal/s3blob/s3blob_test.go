package s3blob_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/core/coretest"
	"github.com/sandkeeper/sandkeeper/internal/engine/enginetest"
	"github.com/sandkeeper/sandkeeper/internal/s3blob"
)

func TestContract(t *testing.T) {
	client := s3.NewFromConfig(enginetest.Shared(t).Config(), func(o *s3.Options) { o.UsePathStyle = true })
	coretest.Blobs(t, func(t *testing.T) coretest.Stores {
		bucket := "blobs-" + strings.ToLower(rand.Text())
		if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &bucket}); err != nil {
			t.Fatal(err)
		}
		return coretest.Stores{Blobs: s3blob.New(client, bucket)}
	})
}

// The SHA-256 of "hello", as S3 writes it.
const sumOfHello = "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ="

// wire answers requests with respond, and keeps them.
type wire struct {
	mu       sync.Mutex
	requests []*http.Request
	bodies   []string
	respond  func(n int, w http.ResponseWriter, r *http.Request)
}

func (v *wire) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // a cut request shows in what the test asserts
	v.mu.Lock()
	v.requests, v.bodies = append(v.requests, r), append(v.bodies, string(body))
	n := len(v.requests)
	v.mu.Unlock()
	v.respond(n, w, r)
}

func blobs(t *testing.T, respond func(n int, w http.ResponseWriter, r *http.Request)) (*s3blob.Blobs, *wire) {
	v := &wire{respond: respond}
	server := httptest.NewServer(v)
	t.Cleanup(server.Close)
	return s3blob.New(s3.New(s3.Options{
		BaseEndpoint: &server.URL, Region: "us-east-1", UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""), Retryer: aws.NopRetryer{},
	}), "bucket"), v
}

// fail answers with an S3 error.
func fail(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	_, _ = io.WriteString(w, `<?xml version="1.0"?><Error><Code>`+code+`</Code></Error>`)
}

func TestPutIsConditionalAndChecked(t *testing.T) {
	b, v := blobs(t, func(int, http.ResponseWriter, *http.Request) {})
	if err := b.PutBlob(t.Context(), "a/b", []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if len(v.requests) != 1 {
		t.Fatalf("%d requests, want one", len(v.requests))
	}
	r := v.requests[0]
	if r.Method != http.MethodPut || r.URL.Path != "/bucket/a/b" || v.bodies[0] != "hello" {
		t.Errorf("%s %s with %q", r.Method, r.URL.Path, v.bodies[0])
	}
	for name, want := range map[string]string{"If-None-Match": "*", "X-Amz-Checksum-Sha256": sumOfHello} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("header %s = %q, want %q", name, got, want)
		}
	}
}

func TestOnlyLogsAreTaggedForRetention(t *testing.T) {
	for key, want := range map[string]string{
		"acme/logs/r/1-n-0000000000000000":              "kind=log",
		"-/logs/r/1-n-0000000000000000-side-0000000000": "kind=log",
		"acme/threads/t/packs/1-abc":                    "",
		"acme/threads/logs/packs/1-abc":                 "",
		"logs/r/1":                                      "",
		"acme/logs":                                     "",
		"acme/logsx/r":                                  "",
	} {
		b, v := blobs(t, func(int, http.ResponseWriter, *http.Request) {})
		if err := b.PutBlob(t.Context(), key, nil); err != nil {
			t.Fatal(err)
		}
		if got := v.requests[0].Header.Get("X-Amz-Tagging"); got != want {
			t.Errorf("%s is tagged %q, want %q", key, got, want)
		}
	}
}

// TestTheTagIsOnTheObject: as a lifecycle rule sees it.
func TestTheTagIsOnTheObject(t *testing.T) {
	client := s3.NewFromConfig(enginetest.Shared(t).Config(), func(o *s3.Options) { o.UsePathStyle = true })
	bucket, key := "tags-"+strings.ToLower(rand.Text()), "acme/logs/r/1-n-0000000000000000"
	if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &bucket}); err != nil {
		t.Fatal(err)
	}
	if err := s3blob.New(client, bucket).PutBlob(t.Context(), key, []byte("text")); err != nil {
		t.Fatal(err)
	}
	out, err := client.GetObjectTagging(t.Context(), &s3.GetObjectTaggingInput{Bucket: &bucket, Key: &key})
	if err != nil || len(out.TagSet) != 1 || *out.TagSet[0].Key != "kind" || *out.TagSet[0].Value != "log" {
		t.Errorf("tags %+v, %v", out, err)
	}
}

func TestPutOfAKeyThatExists(t *testing.T) {
	tests := []struct {
		name string
		head func(w http.ResponseWriter)
		want func(err error) bool
	}{
		{"the same checksum is a success", func(w http.ResponseWriter) { w.Header().Set("X-Amz-Checksum-Sha256", sumOfHello) },
			func(err error) bool { return err == nil }},
		{"another checksum is a conflict", func(w http.ResponseWriter) { w.Header().Set("X-Amz-Checksum-Sha256", "b3RoZXI=") },
			func(err error) bool { e, ok := errors.AsType[*core.BlobConflictError](err); return ok && e.Key == "k" }},
		{"no checksum is neither", func(http.ResponseWriter) {},
			func(err error) bool { return err != nil && strings.Contains(err.Error(), "no SHA-256") }},
		{"gone again is an error", func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) },
			func(err error) bool { return err != nil }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, v := blobs(t, func(_ int, w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPut {
					fail(w, http.StatusPreconditionFailed, "PreconditionFailed")
					return
				}
				tt.head(w)
			})
			err := b.PutBlob(t.Context(), "k", []byte("hello"))
			if !tt.want(err) {
				t.Errorf("PutBlob = %v", err)
			}
			if len(v.requests) != 2 || v.requests[1].Method != http.MethodHead || v.requests[1].Header.Get("X-Amz-Checksum-Mode") != "ENABLED" {
				t.Errorf("%d requests, want a put and a head that asks for the checksum", len(v.requests))
			}
		})
	}
}

func TestGetBelievesOnlyCheckedBytes(t *testing.T) {
	tests := []struct {
		name, body, sum, want string
	}{
		{"the bytes of the checksum", "hello", sumOfHello, ""},
		{"other bytes", "hullo", sumOfHello, "read blob k"},
		{"no checksum", "hello", "", "no SHA-256"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, v := blobs(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
				if tt.sum != "" {
					w.Header().Set("X-Amz-Checksum-Sha256", tt.sum)
				}
				_, _ = io.WriteString(w, tt.body)
			})
			data, err := b.Blob(t.Context(), "k")
			if tt.want == "" && (err != nil || string(data) != tt.body) {
				t.Errorf("Blob = %q, %v", data, err)
			}
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("Blob = %q, %v; want %q", data, err, tt.want)
			}
			if got := v.requests[0].Header.Get("X-Amz-Checksum-Mode"); got != "ENABLED" {
				t.Errorf("checksum mode %q", got)
			}
		})
	}
}

func TestAFailureIsNoAbsence(t *testing.T) {
	b, _ := blobs(t, func(_ int, w http.ResponseWriter, _ *http.Request) { fail(w, http.StatusForbidden, "AccessDenied") })
	if _, err := b.Blob(t.Context(), "k"); err == nil || errors.Is(err, core.ErrNotFound) {
		t.Errorf("Blob = %v, want an error that is not absence", err)
	}
	if err := b.PutBlob(t.Context(), "k", nil); err == nil {
		t.Error("PutBlob = nil")
	}
}

// conflicting answers that another put is under way, for a while.
type conflicting struct {
	*s3.Client
	times int
}

func (c *conflicting) PutObject(context.Context, *s3.PutObjectInput, ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	if c.times--; c.times >= 0 {
		return nil, &smithy.GenericAPIError{Code: "ConditionalRequestConflict"}
	}
	return &s3.PutObjectOutput{}, nil
}

func TestAPutUnderWayIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if err := s3blob.New(&conflicting{times: 3}, "b").PutBlob(t.Context(), "k", nil); err != nil {
			t.Errorf("PutBlob = %v", err)
		}
		begun := time.Now()
		if err := s3blob.New(&conflicting{times: 99}, "b").PutBlob(t.Context(), "k", nil); err == nil {
			t.Error("PutBlob succeeds although it never got through")
		}
		if waited := time.Since(begun); waited > 2*time.Second {
			t.Errorf("it gave up after %s", waited)
		}
	})
}
