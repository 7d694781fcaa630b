package s3blob_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/engine/enginetest"
	"github.com/sandkeeper/sandkeeper/internal/s3blob"
)

// bucketOf makes a versioned bucket of the engine's.
func bucketOf(t *testing.T) (*s3.Client, string, *s3blob.Objects) {
	t.Helper()
	client := s3.NewFromConfig(enginetest.Shared(t).Config(), func(o *s3.Options) { o.UsePathStyle = true })
	bucket := "objects-" + strings.ToLower(rand.Text())
	if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &bucket}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.PutBucketVersioning(t.Context(), &s3.PutBucketVersioningInput{
		Bucket: &bucket, VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
	}); err != nil {
		t.Fatal(err)
	}
	return client, bucket, s3blob.NewObjects(client, bucket)
}

// objectsAt are objects of a store that answers with respond.
func objectsAt(t *testing.T, respond func(n int, w http.ResponseWriter, r *http.Request)) (*s3blob.Objects, *wire) {
	v := &wire{respond: respond}
	server := httptest.NewServer(v)
	t.Cleanup(server.Close)
	return s3blob.NewObjects(s3.New(s3.Options{
		BaseEndpoint: &server.URL, Region: "us-east-1", UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""), Retryer: aws.NopRetryer{},
	}), "bucket"), v
}

// past signs as if it were an hour ago.
type past struct{ s3.HTTPPresignerV4 }

func (p past) PresignHTTP(ctx context.Context, c aws.Credentials, r *http.Request, hash, service, region string, at time.Time, options ...func(*v4.SignerOptions)) (string, http.Header, error) {
	return p.HTTPPresignerV4.PresignHTTP(ctx, c, r, hash, service, region, at.Add(-time.Hour), options...)
}

func base64Of(data []byte) string { return base64.StdEncoding.EncodeToString(data) }

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

const packKey = "acme/threads/t/packs/7-abc"

// use sends a request under a grant, as somebody without credentials does, and
// returns S3's status and body.
func use(t *testing.T, method string, g core.Grant, body []byte, change func(*http.Request)) (int, []byte) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, g.URL, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range g.Header {
		request.Header.Set(name, value)
	}
	if change != nil {
		change(request)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, data
}

func TestAGrantIsForOneObjectOnce(t *testing.T) {
	_, _, objects := bucketOf(t)
	data := []byte("what a sandbox packed")
	grant, err := objects.GrantPut(t.Context(), packKey, digest(data), int64(len(data)), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(grant.Until.Time()); left <= 0 || left > time.Minute {
		t.Errorf("good for %s, want a minute", left)
	}
	if status, body := use(t, http.MethodPut, grant, data, nil); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, body)
	}
	if status, _ := use(t, http.MethodPut, grant, data, nil); status != http.StatusPreconditionFailed {
		t.Errorf("used again: status %d, want %d", status, http.StatusPreconditionFailed)
	}
	info, err := objects.Stat(t.Context(), packKey)
	if err != nil {
		t.Fatal(err)
	}
	if info.Key != packKey || info.Size != int64(len(data)) || info.SHA256 != digest(data) || info.Version == "" || info.ModifiedAt == 0 {
		t.Errorf("stored as %+v", info)
	}
}

func TestWhatAGrantIsNotForIsRefused(t *testing.T) {
	_, _, objects := bucketOf(t)
	data, other := []byte("what was asked for"), []byte("as long, but other")
	otherKey := strings.Replace(packKey, "/t/", "/u/", 1)
	tests := []struct {
		name   string
		life   time.Duration
		body   []byte
		change func(r *http.Request)
	}{
		{"another body", time.Minute, other, nil},
		{"a longer body", time.Minute, append(bytes.Clone(data), '!'), nil},
		{"a shorter body", time.Minute, data[1:], nil},
		{"no checksum", time.Minute, data, func(r *http.Request) { r.Header.Del("X-Amz-Checksum-Sha256") }},
		{"another checksum with its body", time.Minute, other, func(r *http.Request) {
			sum := sha256.Sum256(other)
			r.Header.Set("X-Amz-Checksum-Sha256", base64Of(sum[:]))
		}},
		{"no condition", time.Minute, data, func(r *http.Request) { r.Header.Del("If-None-Match") }},
		{"another thread's key", time.Minute, data, func(r *http.Request) { r.URL.Path = strings.Replace(r.URL.Path, packKey, otherKey, 1) }},
		{"a read", time.Minute, nil, func(r *http.Request) { r.Method = http.MethodGet }},
		{"a longer life", time.Minute, data, func(r *http.Request) {
			q := r.URL.Query()
			q.Set("X-Amz-Expires", "900")
			r.URL.RawQuery = q.Encode()
		}},
		{"without the signature", time.Minute, data, func(r *http.Request) {
			q := r.URL.Query()
			q.Set("X-Amz-Signature", strings.Repeat("0", 64))
			r.URL.RawQuery = q.Encode()
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			grant, err := objects.GrantPut(t.Context(), packKey, digest(data), int64(len(data)), tt.life)
			if err != nil {
				t.Fatal(err)
			}
			if status, body := use(t, http.MethodPut, grant, tt.body, tt.change); status < 400 || status >= 500 {
				t.Errorf("status %d: %s", status, body)
			}
			for _, key := range []string{packKey, otherKey} {
				if _, err := objects.Stat(t.Context(), key); !errors.Is(err, core.ErrNotFound) {
					t.Errorf("%s is there: %v", key, err)
				}
			}
		})
	}
}

func TestAGrantExpires(t *testing.T) {
	client, bucket, _ := bucketOf(t)
	data := []byte("late")
	// Signed an hour ago, which no wait in a test could reach.
	presign := s3.NewPresignClient(client, func(o *s3.PresignOptions) {
		o.Presigner = past{v4.NewSigner(func(s *v4.SignerOptions) { s.DisableURIPathEscaping = true })}
	})
	objects := s3blob.NewObjectsWith(client, presign, bucket)
	grant, err := objects.GrantPut(t.Context(), packKey, digest(data), int64(len(data)), 15*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if status, body := use(t, http.MethodPut, grant, data, nil); status != http.StatusForbidden || !bytes.Contains(body, []byte("expired")) {
		t.Errorf("status %d: %s", status, body)
	}
	if _, err := objects.Stat(t.Context(), packKey); !errors.Is(err, core.ErrNotFound) {
		t.Errorf("it is there: %v", err)
	}
}

func TestGrantsAreRefusedForWhatNoneCanBe(t *testing.T) {
	objects := s3blob.NewObjectsWith(nil, nil, "b")
	for name, grant := range map[string]func() (core.Grant, error){
		"no hash":        func() (core.Grant, error) { return objects.GrantPut(t.Context(), "k", "abc", 1, time.Minute) },
		"a short life":   func() (core.Grant, error) { return objects.GrantGet(t.Context(), "k", "", time.Millisecond) },
		"a long life":    func() (core.Grant, error) { return objects.GrantGet(t.Context(), "k", "", time.Hour) },
		"no life at all": func() (core.Grant, error) { return objects.GrantPut(t.Context(), "k", digest(nil), 1, 0) },
	} {
		if g, err := grant(); err == nil {
			t.Errorf("%s: granted %+v", name, g)
		}
	}
}

func TestAReadIsOfOneVersion(t *testing.T) {
	client, bucket, objects := bucketOf(t)
	data := []byte("0123456789")
	if err := objects.PutBlob(t.Context(), packKey, data); err != nil {
		t.Fatal(err)
	}
	info, err := objects.Stat(t.Context(), packKey)
	if err != nil {
		t.Fatal(err)
	}
	// Whoever may overwrite cannot change what a version is.
	if _, err := client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: new(packKey), Body: strings.NewReader("overwritten")}); err != nil {
		t.Fatal(err)
	}
	grant, err := objects.GrantGet(t.Context(), packKey, info.Version, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if status, body := use(t, http.MethodGet, grant, nil, nil); status != http.StatusOK || string(body) != string(data) {
		t.Errorf("status %d: %q", status, body)
	}
	for name, change := range map[string]func(q url.Values){
		"another version": func(q url.Values) { q.Del("versionId") },
		"a write":         nil,
	} {
		status, _ := use(t, http.MethodGet, grant, nil, func(r *http.Request) {
			if change == nil {
				r.Method = http.MethodPut
				return
			}
			q := r.URL.Query()
			change(q)
			r.URL.RawQuery = q.Encode()
		})
		if status != http.StatusForbidden {
			t.Errorf("%s: status %d", name, status)
		}
	}
}

// TestAReadMayBeOfARange: of the current version, for the engine knows no ranges of
// others.
func TestAReadMayBeOfARange(t *testing.T) {
	_, _, objects := bucketOf(t)
	if err := objects.PutBlob(t.Context(), packKey, []byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	grant, err := objects.GrantGet(t.Context(), packKey, "", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	status, body := use(t, http.MethodGet, grant, nil, func(r *http.Request) { r.Header.Set("Range", "bytes=3-5") })
	if status != http.StatusPartialContent || string(body) != "345" {
		t.Errorf("status %d: %q", status, body)
	}
}

func TestListingAndDeletionGoByVersion(t *testing.T) {
	client, bucket, objects := bucketOf(t)
	var want []string
	for i := range 3 {
		key := fmt.Sprintf("acme/threads/t/packs/%d-x", i)
		if err := objects.PutBlob(t.Context(), key, []byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		want = append(want, key)
	}
	for _, key := range []string{"acme/threads/t2/packs/1-x", "acme/logs/r/1", "other/threads/t/packs/1-x"} {
		if err := objects.PutBlob(t.Context(), key, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: &want[1], Body: strings.NewReader("newer")}); err != nil {
		t.Fatal(err)
	}
	listed, err := objects.Objects(t.Context(), "acme/threads/t/")
	if err != nil {
		t.Fatal(err)
	}
	byKey := map[string]core.ObjectInfo{}
	for _, o := range listed {
		byKey[o.Key] = o
	}
	if got := slices.Sorted(maps.Keys(byKey)); !slices.Equal(got, want) || len(listed) != len(want) {
		t.Fatalf("listed %q, want %q", got, want)
	}
	if o := byKey[want[1]]; o.Size != 5 || o.Version == "" || o.ModifiedAt == 0 {
		t.Errorf("the newest version is listed as %+v", o)
	}
	for range 2 { // the second finds it gone
		if err := objects.Delete(t.Context(), want[0], byKey[want[0]].Version); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := objects.Stat(t.Context(), want[0]); !errors.Is(err, core.ErrNotFound) {
		t.Errorf("it is there: %v", err)
	}
	if err := objects.Delete(t.Context(), want[2], ""); err == nil {
		t.Error("deleted without a version")
	}
	if _, err := objects.Stat(t.Context(), want[2]); err != nil {
		t.Error(err)
	}
	if got, err := objects.Prefixes(t.Context(), ""); err != nil || !slices.Equal(got, []string{"acme/", "other/"}) {
		t.Errorf("prefixes %q, %v", got, err)
	}
	if got, err := objects.Prefixes(t.Context(), "acme/threads/"); err != nil || !slices.Equal(got, []string{"acme/threads/t/", "acme/threads/t2/"}) {
		t.Errorf("prefixes %q, %v", got, err)
	}
}

// TestAllPagesAreListed, and a page that fails is no end.
func TestAllPagesAreListed(t *testing.T) {
	const versions = `<?xml version="1.0"?><ListVersionsResult><IsTruncated>%t</IsTruncated><NextKeyMarker>k%d</NextKeyMarker><NextVersionIdMarker>v</NextVersionIdMarker>` +
		`<Version><Key>k%d</Key><VersionId>v</VersionId><IsLatest>true</IsLatest><Size>1</Size></Version>` +
		`<Version><Key>k%d</Key><VersionId>u</VersionId><IsLatest>false</IsLatest><Size>1</Size></Version>` +
		`<DeleteMarker><Key>gone%d</Key><VersionId>v</VersionId><IsLatest>true</IsLatest></DeleteMarker></ListVersionsResult>`
	const prefixes = `<?xml version="1.0"?><ListBucketResult><IsTruncated>%t</IsTruncated><NextContinuationToken>%d</NextContinuationToken>` +
		`<CommonPrefixes><Prefix>p%d/</Prefix></CommonPrefixes></ListBucketResult>`
	for _, failing := range []bool{false, true} {
		objects, _ := objectsAt(t, func(n int, w http.ResponseWriter, r *http.Request) {
			switch n = (n-1)%3 + 1; {
			case failing && n == 3:
				fail(w, http.StatusInternalServerError, "InternalError")
			case r.URL.Query().Has("versions"):
				fmt.Fprintf(w, versions, n < 3, n, n, n, n)
			default:
				fmt.Fprintf(w, prefixes, n < 3, n, n)
			}
		})
		listed, err := objects.Objects(t.Context(), "")
		names, err2 := objects.Prefixes(t.Context(), "")
		if failing && (err == nil || err2 == nil || listed != nil || names != nil) {
			t.Errorf("a failed page: %v, %v and %v, %v", listed, err, names, err2)
		}
		if !failing && (err != nil || err2 != nil || len(listed) != 3 || listed[2].Key != "k3" || !slices.Equal(names, []string{"p1/", "p2/", "p3/"})) {
			t.Errorf("listed %v, %v and %v, %v", listed, err, names, err2)
		}
	}
}

func TestAFailedStatIsNoAbsence(t *testing.T) {
	objects, _ := objectsAt(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	if _, err := objects.Stat(t.Context(), "k"); err == nil || errors.Is(err, core.ErrNotFound) {
		t.Errorf("Stat = %v, want an error that is not absence", err)
	}
}
