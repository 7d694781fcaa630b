package agenthttp_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/agenthttp"
)

func TestBaseTakesAPlaceAndNothingElse(t *testing.T) {
	for base, want := range map[string]string{
		"https://x.example":      "https://x.example",
		"https://x.example/":     "https://x.example",
		"http://127.0.0.1:4566":  "http://127.0.0.1:4566",
		"x.example":              "",
		"ftp://x.example":        "",
		"https://x.example/path": "",
		"https://x.example?q=1":  "",
		"https://me@x.example":   "",
		"https://":               "",
	} {
		if got, err := agenthttp.Base(base); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", base, got, err)
		}
	}
	for bearer, ok := range map[string]bool{"a.b.c": true, "": false, "two words": false, "line\n": false} {
		if err := agenthttp.Word(bearer); (err == nil) != ok {
			t.Errorf("%q: %v", bearer, err)
		}
	}
}

func TestAgainTriesWhatHelps(t *testing.T) {
	passing, final := errors.New("passing"), errors.New("final")
	helps := func(err error) bool { return errors.Is(err, passing) }
	for _, tt := range []struct {
		name  string
		fails []error
		tries int
		least time.Duration
		most  time.Duration
		want  error
	}{
		{"success is not tried again", nil, 1, 0, 0, nil},
		{"a fault that passes is", []error{passing}, 2, 500 * time.Millisecond, time.Second, nil},
		{"the waits double, up to the longest", []error{passing, passing, passing}, 4, 2 * time.Second, 4 * time.Second, nil},
		{"all tries are used up", []error{passing, passing, passing, passing, passing}, 4, 2 * time.Second, 4 * time.Second, passing},
		{"what does not pass ends it", []error{final}, 1, 0, 0, final},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries, began := 0, time.Now()
				err := agenthttp.Backoff{Tries: 4, First: time.Second, Most: 1500 * time.Millisecond}.Again(t.Context(), helps, func() error {
					if tries++; tries <= len(tt.fails) {
						return tt.fails[tries-1]
					}
					return nil
				})
				if took := time.Since(began); tries != tt.tries || !errors.Is(err, tt.want) || took < tt.least || took > tt.most {
					t.Errorf("%d tries, %v after %s", tries, err, took)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		err := agenthttp.Backoff{Tries: 10, First: time.Hour, Most: time.Hour}.Again(ctx, helps, func() error { return passing })
		if time.Since(began) != time.Second || !errors.Is(err, passing) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

func TestPutStoresExactlyTheBytesAndNamesNoGrant(t *testing.T) {
	var got, header string
	var length int64
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got, header, length = string(body), r.Header.Get("If-None-Match"), r.ContentLength
		if r.URL.Path == "/moved" {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}
	}))
	client := agenthttp.NewClient(1)
	put := func(path string) (*http.Response, error) {
		return agenthttp.Put(t.Context(), client, agenthttp.Object{
			URL: store.URL + path + "?X-Amz-Signature=secret", Headers: map[string]string{"If-None-Match": "*"}, Body: strings.NewReader("some bytes"), Size: 4,
		})
	}
	answer, err := put("/object")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if got != "some" || length != 4 || header != "*" || !agenthttp.Stored(answer.StatusCode) {
		t.Errorf("stored %q of %d bytes with %q, status %d", got, length, header, answer.StatusCode)
	}
	answer, err = put("/moved")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if agenthttp.Stored(answer.StatusCode) {
		t.Errorf("a grant is followed elsewhere: %d", answer.StatusCode)
	}
	store.Close()
	for _, path := range []string{"/object", "\x7f"} {
		if _, err := put(path); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", path, err)
		}
	}
	for status, stored := range map[int]bool{200: true, 412: true, 403: false, 307: false, 503: false} {
		if agenthttp.Stored(status) != stored {
			t.Errorf("status %d: %t", status, !stored)
		}
	}
}
