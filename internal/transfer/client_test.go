package transfer_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/transfer"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
)

// script answers calls of the function and requests to S3, and keeps both.
type script struct {
	mu    sync.Mutex
	calls []string // paths
	s3    []*http.Request
	sent  []string // bodies to S3

	call  func(n int, path string, body []byte) (any, error) // n counts from 1
	serve func(n int, r *http.Request) (status int, body string)
}

func (s *script) Call(_ context.Context, path string, body []byte) ([]byte, error) {
	s.mu.Lock()
	s.calls = append(s.calls, path)
	n := len(s.calls)
	s.mu.Unlock()
	answer, err := s.call(n, path, body)
	if err != nil {
		return nil, err
	}
	return json.Marshal(answer)
}

var errCut = errors.New("connection cut")

// RoundTrip answers with status 0 by no answer at all.
func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	s.s3, s.sent = append(s.s3, r), append(s.sent, string(body))
	n := len(s.s3)
	s.mu.Unlock()
	status, text := s.serve(n, r)
	if status == 0 {
		return nil, errCut
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(text)), Header: http.Header{}, Request: r}, nil
}

func (s *script) client() *transfer.Client {
	return &transfer.Client{Transport: s, S3: &http.Client{Transport: s}}
}

const (
	grantURL = "https://bucket.s3.example.test/key?X-Amz-Signature=5ec2e7"
	content  = "what a pack holds"
)

var ref = manifest.PackRef{Fence: 7, SHA256: sha256.Sum256([]byte(content)), Size: int64(len(content))}

func object() workspace.Object {
	return workspace.Object{SHA256: ref.SHA256, Size: ref.Size, Body: strings.NewReader(content)}
}

// granting answers each request for grants with one for every pack.
func granting(present bool) func(int, string, []byte) (any, error) {
	return func(n int, path string, body []byte) (any, error) {
		var q transfer.GrantRequest
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, err
		}
		var grants []transfer.Grant
		for _, p := range q.Packs {
			grants = append(grants, transfer.Grant{
				SHA256: p.SHA256, Fence: 7, Present: present, URL: grantURL + "&n=" + strconv.Itoa(n),
				Headers: map[string]string{"If-None-Match": "*", "X-Amz-Checksum-Sha256": "sum"},
			})
		}
		if path == transfer.PathGrant {
			return transfer.GrantAnswer{Grants: grants}, nil
		}
		return transfer.FetchAnswer{Grants: grants}, nil
	}
}

// fault is an answer of S3's.
func fault(code string) string { return "<?xml?><Error><Code>" + code + "</Code></Error>" }

func TestPut(t *testing.T) {
	refused := &transfer.Error{Code: "token-dead", Message: "want a live one", Status: 401}
	tests := []struct {
		name    string
		present bool
		deny    error
		serve   []int // statuses, in order
		code    string
		puts    int
		want    string // of the error
	}{
		{name: "an object is sent once", serve: []int{200}, puts: 1},
		{name: "one that is known to be there is not sent", present: true},
		{name: "one that turns out to be there is a success", serve: []int{412}, puts: 1},
		{name: "a cut is sent again", serve: []int{0, 200}, puts: 2},
		{name: "a grant that ran out is asked for again", serve: []int{403, 200}, puts: 2},
		{name: "another put under way is waited for", serve: []int{409, 412}, puts: 2},
		{name: "a store that fails is tried again", serve: []int{500, 503, 200}, puts: 3},
		{name: "a slow body is sent again", serve: []int{400, 200}, code: "RequestTimeout", puts: 2},
		{name: "content that S3 finds wrong is not sent again", serve: []int{400}, code: "BadDigest", puts: 1, want: "status 400 BadDigest"},
		{name: "a refusal of the function is final", deny: refused, want: "token-dead: want a live one"},
		{name: "a store that fails for long is given up", serve: []int{500, 500, 500, 500, 500, 500, 500}, puts: 7, want: "status 500"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{call: granting(tt.present)}
				if tt.deny != nil {
					s.call = func(int, string, []byte) (any, error) { return nil, tt.deny }
				}
				s.serve = func(n int, _ *http.Request) (int, string) { return tt.serve[n-1], fault(tt.code) }
				begun := time.Now()
				got, err := s.client().Put(t.Context(), object())
				checkError(t, err, tt.want)
				if err == nil && got != ref {
					t.Errorf("stored as %+v, want %+v", got, ref)
				}
				if len(s.s3) != tt.puts {
					t.Errorf("%d puts, want %d", len(s.s3), tt.puts)
				}
				for i, r := range s.s3 {
					if r.Method != http.MethodPut || s.sent[i] != content || r.ContentLength != ref.Size ||
						r.Header.Get("If-None-Match") != "*" || r.Header.Get("X-Amz-Checksum-Sha256") != "sum" {
						t.Errorf("%s of %q with %v", r.Method, s.sent[i], r.Header)
					}
				}
				if waited := time.Since(begun); waited > time.Minute {
					t.Errorf("it took %s", waited)
				}
			})
		})
	}
}

// checkError compares an error with what it should say, and looks for the grant in it.
func checkError(t *testing.T, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
	if err != nil && strings.Contains(err.Error(), "5ec2e7") {
		t.Errorf("the error tells the grant: %v", err)
	}
}

func TestPutMistrustsTheAnswer(t *testing.T) {
	for name, grants := range map[string][]transfer.Grant{
		"no grant":          nil,
		"of another object": {{SHA256: strings.Repeat("0", 64), Fence: 7, URL: grantURL}},
		"without a fence":   {{SHA256: ref.SHA256.String(), URL: grantURL}},
		"more than one":     {{SHA256: ref.SHA256.String(), Fence: 7, URL: grantURL}, {}},
	} {
		s := &script{call: func(int, string, []byte) (any, error) { return transfer.GrantAnswer{Grants: grants}, nil }}
		if got, err := s.client().Put(t.Context(), object()); err == nil || len(s.s3) != 0 {
			t.Errorf("%s: stored as %+v", name, got)
		}
	}
}

func TestAnErrorTellsNoGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{call: granting(false), serve: func(int, *http.Request) (int, string) { return 0, "" }}
		_, err := s.client().Put(t.Context(), object())
		checkError(t, err, "put object "+ref.SHA256.String()+": connection cut")
		checkError(t, s.client().Get(t.Context(), ref, 0, make([]byte, 1)), "connection cut")
	})
}

func TestGet(t *testing.T) {
	tests := []struct {
		name    string
		serve   []int
		bodies  []string
		fetches int
		want    string
		is      error
	}{
		{name: "a range is read", serve: []int{206}, bodies: []string{content[5:9]}, fetches: 1},
		{name: "the whole is cut to the range", serve: []int{200}, bodies: []string{content}, fetches: 1},
		{name: "a cut body is read again", serve: []int{206, 206}, bodies: []string{"at", content[5:9]}, fetches: 2},
		{name: "a grant that ran out is asked for again", serve: []int{403, 206}, bodies: []string{"", content[5:9]}, fetches: 2},
		{name: "what is gone is not stored", serve: []int{404}, bodies: []string{""}, fetches: 1, want: "no such object", is: workspace.ErrNotStored},
		{name: "a refusal is final", serve: []int{416}, bodies: []string{fault("InvalidRange")}, fetches: 1, want: "InvalidRange"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{call: granting(false)}
				s.serve = func(n int, r *http.Request) (int, string) {
					if got := r.Header.Get("Range"); got != "bytes=5-8" {
						t.Errorf("range %q", got)
					}
					return tt.serve[n-1], tt.bodies[n-1]
				}
				dst := make([]byte, 4)
				err := s.client().Get(t.Context(), ref, 5, dst)
				checkError(t, err, tt.want)
				if tt.is != nil && !errors.Is(err, tt.is) {
					t.Errorf("error %v is not %v", err, tt.is)
				}
				if err == nil && string(dst) != content[5:9] {
					t.Errorf("read %q", dst)
				}
				if len(s.calls) != tt.fetches {
					t.Errorf("%d fetches, want %d", len(s.calls), tt.fetches)
				}
			})
		})
	}
}

func TestAnObjectThatNobodyListsIsNotStored(t *testing.T) {
	s := &script{call: func(int, string, []byte) (any, error) {
		return nil, &transfer.Error{Code: "not-found", Message: "not listed", Status: http.StatusNotFound}
	}}
	if err := s.client().Get(t.Context(), ref, 0, make([]byte, 1)); !errors.Is(err, workspace.ErrNotStored) {
		t.Errorf("Get = %v", err)
	}
}

// TestManyObjectsAreFetchedAtOnce, and again once their grants are old.
func TestManyObjectsAreFetchedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := manifest.Root{Version: manifest.Version, ID: "c", CreatedAt: 1}
		for i := range 300 {
			sum := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
			root.Packs = append(root.Packs, manifest.PackRef{Fence: 1, SHA256: sum, Size: 1})
		}
		slices.SortFunc(root.Packs, manifest.ComparePacks)
		root.Counts.StoredBytes = int64(len(root.Packs))
		encoded, err := manifest.EncodeRoot(root)
		if err != nil {
			t.Fatal(err)
		}
		s := &script{serve: func(int, *http.Request) (int, string) { return 206, "x" }}
		s.call = func(n int, path string, body []byte) (any, error) {
			if path == transfer.PathParent {
				return transfer.ParentAnswer{Root: encoded}, nil
			}
			return granting(false)(n, path, body)
		}
		client := s.client()
		got, err := client.Parent(t.Context())
		if err != nil || got.ID != "c" {
			t.Fatalf("parent %+v, %v", got, err)
		}
		read := func() {
			for _, p := range root.Packs {
				if err := client.Get(t.Context(), p, 0, make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
			}
		}
		read()
		if n := len(s.calls) - 1; n != 2 {
			t.Errorf("%d fetches for %d objects, want 2", n, len(root.Packs))
		}
		time.Sleep(5 * time.Minute)
		read()
		if n := len(s.calls) - 1; n != 4 {
			t.Errorf("%d fetches after the grants grew old, want 4", n)
		}
	})
}

func TestAThreadWithoutACheckpointHasNoParent(t *testing.T) {
	s := &script{call: func(int, string, []byte) (any, error) { return transfer.ParentAnswer{}, nil }}
	if root, err := s.client().Parent(t.Context()); root != nil || err != nil {
		t.Errorf("parent %+v, %v", root, err)
	}
	s.call = func(int, string, []byte) (any, error) { return transfer.ParentAnswer{Root: []byte("no root")}, nil }
	if root, err := s.client().Parent(t.Context()); root != nil || err == nil {
		t.Errorf("parent %+v, %v", root, err)
	}
}

func TestHasAsksInPages(t *testing.T) {
	refs := make([]manifest.PackRef, 300)
	for i := range refs {
		refs[i] = manifest.PackRef{SHA256: sha256.Sum256([]byte{byte(i), byte(i >> 8)}), Size: 1}
	}
	s := &script{call: func(_ int, _ string, body []byte) (any, error) {
		var q transfer.HasRequest
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, err
		}
		if err := transfer.CheckPacks(q.Packs, true); err != nil {
			t.Error(err)
		}
		var a transfer.HasAnswer
		for _, p := range q.Packs {
			a.Present = append(a.Present, p.SHA256 == refs[299].SHA256.String())
		}
		return a, nil
	}}
	present, err := s.client().Has(t.Context(), refs)
	if err != nil || len(present) != 300 || slices.Index(present, true) != 299 || len(s.calls) != 2 {
		t.Errorf("%d answers in %d calls, %v", len(present), len(s.calls), err)
	}
	s.call = func(int, string, []byte) (any, error) { return transfer.HasAnswer{Present: []bool{true}}, nil }
	if present, err := s.client().Has(t.Context(), refs); err == nil {
		t.Errorf("a short answer gives %v", present)
	}
}

// TestWhatMayPassIsTriedAgain, until the context ends.
func TestWhatMayPassIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := &transfer.Error{Code: transfer.CodeUnavailable, Message: "down"}
		s := &script{call: func(n int, path string, body []byte) (any, error) {
			if n < 4 {
				return nil, down
			}
			return transfer.CommitAnswer{ID: "c"}, nil
		}}
		if id, err := s.client().Commit(t.Context(), []byte("root")); err != nil || id != "c" || len(s.calls) != 4 {
			t.Errorf("committed %q after %d calls, %v", id, len(s.calls), err)
		}
		s.calls, s.call = nil, func(int, string, []byte) (any, error) { return nil, down }
		if err := s.client().Fail(t.Context(), "time-limit", "late"); !errors.Is(err, down) || len(s.calls) != 7 {
			t.Errorf("gave up after %d calls with %v", len(s.calls), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		err := s.client().Renew(ctx, workspace.Progress{Files: 1, Bytes: 2})
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) > time.Second {
			t.Errorf("ended after %s with %v", time.Since(begun), err)
		}
	})
}

// TestTheWireIsAsDocumented: a client in another language reads these.
func TestTheWireIsAsDocumented(t *testing.T) {
	for want, v := range map[string]any{
		`{"packs":[{"sha256":"ab","size":3}]}`:                            transfer.GrantRequest{Packs: []transfer.Pack{{SHA256: "ab", Size: 3}}},
		`{"packs":[{"fence":2,"sha256":"ab","owner":"t"}]}`:               transfer.FetchRequest{Packs: []transfer.Pack{{Fence: 2, SHA256: "ab", Owner: "t"}}},
		`{"grants":[{"sha256":"ab","fence":2,"present":true}],"until":5}`: transfer.GrantAnswer{Grants: []transfer.Grant{{SHA256: "ab", Fence: 2, Present: true}}, Until: 5},
		`{"grants":[{"url":"u","headers":{"If-None-Match":"*"}}]}`:        transfer.FetchAnswer{Grants: []transfer.Grant{{URL: "u", Headers: map[string]string{"If-None-Match": "*"}}}},
		`{"present":[true,false]}`:                                        transfer.HasAnswer{Present: []bool{true, false}},
		`{}`:                                                              transfer.ParentRequest{},
		`{"root":null}`:                                                   transfer.ParentAnswer{},
		`{"root":"cg=="}`:                                                 transfer.CommitRequest{Root: []byte("r")},
		`{"files":1,"bytes":2}`:                                           transfer.RenewRequest{Files: 1, Bytes: 2},
		`{"until":5}`:                                                     transfer.RenewAnswer{Until: 5},
		`{"code":"c","message":"m"}`:                                      transfer.FailRequest{Code: "c", Message: "m"},
		`{"error":{"code":"c","message":"m"}}`:                            transfer.ErrorAnswer{Error: transfer.Error{Code: "c", Message: "m", Status: 400}},
		`{"kind":"capture","id":"i","url":"u","token":"t","dir":"/workspace"}`: transfer.Job{Kind: transfer.JobCapture, ID: "i", URL: "u", Token: "t", Dir: "/workspace"},
	} {
		if got, err := json.Marshal(v); err != nil || string(got) != want {
			t.Errorf("%T is %s, want %s (%v)", v, got, want, err)
		}
	}
}

func TestCheckPacks(t *testing.T) {
	good := transfer.Pack{SHA256: ref.SHA256.String(), Size: 1}
	tests := []struct {
		name  string
		packs []transfer.Pack
		want  string
	}{
		{"one", []transfer.Pack{good}, ""},
		{"as many as go", slices.Repeat([]transfer.Pack{good}, transfer.MaxPacks), ""},
		{"none", nil, "packs: want 1 to 256, got 0"},
		{"too many", slices.Repeat([]transfer.Pack{good}, transfer.MaxPacks+1), "got 257"},
		{"a short hash", []transfer.Pack{good, {SHA256: "ab", Size: 1}}, "packs[1]: sha256: want 64 lower-case hex digits"},
		{"capitals", []transfer.Pack{{SHA256: strings.ToUpper(good.SHA256), Size: 1}}, "sha256"},
		{"a path", []transfer.Pack{{SHA256: "../" + good.SHA256[3:], Size: 1}}, "sha256"},
		{"a negative fence", []transfer.Pack{{SHA256: good.SHA256, Size: 1, Fence: -1}}, "fence"},
		{"no size", []transfer.Pack{{SHA256: good.SHA256}}, "size"},
		{"a huge size", []transfer.Pack{{SHA256: good.SHA256, Size: transfer.MaxPack + 1}}, "size"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			checkError(t, transfer.CheckPacks(tt.packs, true), tt.want)
		})
	}
	if err := transfer.CheckPacks([]transfer.Pack{{SHA256: good.SHA256}}, false); err != nil {
		t.Errorf("where sizes do not matter: %v", err)
	}
}
