package main_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

const pushNonce = "0123456789abcdef0123456789abcdef"

// shelf is where pieces are put, once each.
type shelf struct {
	*httptest.Server
	stored map[string][]byte
	header http.Header
	status int // instead of 200
}

func newShelf(t *testing.T) *shelf {
	s := &shelf{stored: map[string][]byte{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		s.header = r.Header
		switch _, there := s.stored[r.URL.Path]; {
		case s.status != 0:
			w.WriteHeader(s.status)
		case there:
			w.WriteHeader(http.StatusPreconditionFailed)
		default:
			s.stored[r.URL.Path] = data
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// pushIn hands q to the push script in a directory of journals, and parses its answer.
func pushIn(t *testing.T, dir string, q core.PushRequest) (core.PushReply, error) {
	t.Helper()
	input, err := core.PushInput(q)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", core.DefaultJournal.PushScript())
	cmd.Env = append(os.Environ(), core.AgentVariable+"="+binary, core.JournalDirVariable+"="+dir)
	cmd.Stdin = bytes.NewReader(input)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return core.ParsePush(q, out)
}

// TestPush moves a journal piece by piece, as the sweep asks for it: the pieces are the
// agent's output, whole and in order, without the sentinel.
func TestPush(t *testing.T) {
	dir, s := t.TempDir(), newShelf(t)
	output := strings.Repeat("{\"type\":\"text\"}\nplain Grüße\n", 4000)
	journal := output + "\n" + core.DefaultJournal.Sentinel(pushNonce, 0) + "\nwritten after the end\n"
	format := core.DefaultJournal
	format.Dir = dir
	paths, err := format.Paths("r")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(paths.Journal, []byte(journal), 0o600); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for from := int64(0); from < int64(len(output)); {
		q := core.PushRequest{RunKey: core.RunKey{Tenant: "a", Run: "r"}, Nonce: pushNonce, From: from, Max: 20_000}
		measured, err := pushIn(t, dir, q)
		if err != nil || measured.Stored || measured.Size == 0 {
			t.Fatalf("measured at %d: %+v, %v", from, measured, err)
		}
		if want := output[max(0, from-core.JournalOverlap):from]; string(measured.Overlap) != want {
			t.Errorf("overlap at %d: %q, want %q", from, measured.Overlap, want)
		}
		path := "/piece-" + hex.EncodeToString([]byte{byte(from >> 16), byte(from >> 8), byte(from)})
		q.Size, q.SHA256, q.URL, q.Header = measured.Size, measured.SHA256, s.URL+path, map[string]string{"X-Amz-Tagging": "kind=log"}
		for range 2 { // once more, as after an answer that was lost
			stored, err := pushIn(t, dir, q)
			if err != nil || !stored.Stored || stored.SHA256 != measured.SHA256 {
				t.Fatalf("stored at %d: %+v, %v", from, stored, err)
			}
		}
		piece := s.stored[path]
		if sum := sha256.Sum256(piece); hex.EncodeToString(sum[:]) != measured.SHA256 || s.header.Get("X-Amz-Tagging") != "kind=log" {
			t.Errorf("at %d: %d bytes stored, headers %v", from, len(piece), s.header)
		}
		got = append(got, piece...)
		from += measured.Size
	}
	if string(got) != output {
		t.Errorf("moved %d bytes, want the %d of the output", len(got), len(output))
	}
}

// TestPushRefuses: nothing is stored that is not what was measured.
func TestPushRefuses(t *testing.T) {
	dir, s := t.TempDir(), newShelf(t)
	format := core.DefaultJournal
	format.Dir = dir
	paths, err := format.Paths("r")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(paths.Journal, []byte("some output\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	linked, err := format.Paths("linked")
	if err == nil {
		err = os.Symlink(filepath.Base(paths.Journal), linked.Journal)
	}
	if err != nil {
		t.Fatal(err)
	}
	base := core.PushRequest{RunKey: core.RunKey{Tenant: "a", Run: "r"}, Nonce: pushNonce, Max: 100}
	for what, c := range map[string]struct {
		change func(q *core.PushRequest)
		reason string
	}{
		"a journal that is a link":   {func(q *core.PushRequest) { q.Run = "linked" }, "no-journal"},
		"no journal":                 {func(q *core.PushRequest) { q.Run = "none" }, "no-journal"},
		"a journal that ends before": {func(q *core.PushRequest) { q.From = 50 }, "journal-short"},
		"more than a piece may be":   {func(q *core.PushRequest) { q.Max = 1 << 40 }, "push-invalid"},
		"other bytes than measured":  {func(q *core.PushRequest) { q.Size, q.SHA256, q.URL = 3, strings.Repeat("a", 64), s.URL+"/x" }, "journal-changed"},
		"a store that refuses":       {func(q *core.PushRequest) { refusing(q, s, "some output") }, "upload-failed"},
		"a URL that is none":         {func(q *core.PushRequest) { refusing(q, s, "some output"); q.URL = "::" }, "upload-failed"},
	} {
		q := base
		s.status = http.StatusForbidden
		c.change(&q)
		_, err := pushIn(t, dir, q)
		if err == nil || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: %v, want %s", what, err, c.reason)
		}
	}
	if len(s.stored) != 0 {
		t.Errorf("stored %v", s.stored)
	}
}

// refusing asks to store what is there.
func refusing(q *core.PushRequest, s *shelf, text string) {
	sum := sha256.Sum256([]byte(text))
	q.Size, q.SHA256, q.URL = int64(len(text)), hex.EncodeToString(sum[:]), s.URL+"/x"
}
