package toolwire_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/toolwire"
)

const bearer = "acme.run-1.00112233445566778899aabbccddeeff0011223344556677"

// server answers the nth request, from 1 on, and keeps all of them.
type server struct {
	mu     sync.Mutex
	asked  []string // "path body"
	answer func(n int, w http.ResponseWriter, r *http.Request)
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.asked = append(s.asked, r.URL.Path+" "+string(body))
	n := len(s.asked)
	s.mu.Unlock()
	s.answer(n, w, r)
}

func clientOf(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) (*toolwire.Client, *server) {
	t.Helper()
	s := &server{answer: answer}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	c, err := toolwire.NewClient(h.URL+"/", "id.lambda-url.example.test", bearer)
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

func says(status int, body string) func(int, http.ResponseWriter, *http.Request) {
	return func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "http://127.0.0.1:1/")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestARequestIsAPostWithTheBearer(t *testing.T) {
	c, s := clientOf(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.Host != "id.lambda-url.example.test" || r.Header.Get("Content-Type") != "application/json" ||
			r.Header.Get("Authorization") != "Bearer "+bearer {
			t.Errorf("%s of %s: %v", r.Method, r.Host, r.Header)
		}
		answers := map[string]string{
			"/": `{"result":null}`, "/ended": `{}`, "/spool": `{"grants":[{"from":3,"url":"http://s3.test/k","headers":{"If-None-Match":"*"},"until":9}],"watched":true}`,
		}
		_, _ = io.WriteString(w, answers[r.URL.Path])
	})
	result, err := c.Call(t.Context(), "look", json.RawMessage(`{"a":[1]}`))
	if err != nil || string(result) != "null" {
		t.Errorf("result %s, %v", result, err)
	}
	if err := c.Ended(t.Context(), 3); err != nil {
		t.Error(err)
	}
	piece := toolwire.Piece{From: 3, Size: 4, SHA256: strings.Repeat("0a", 32)}
	answer, err := c.Spool(t.Context(), []toolwire.Piece{piece})
	if grants := answer.Grants; err != nil || !answer.Watched || len(grants) != 1 || grants[0].From != 3 || grants[0].Headers["If-None-Match"] != "*" || grants[0].Until != 9 {
		t.Errorf("answered %+v, %v", answer, err)
	}
	want := []string{
		`/ {"name":"look","args":{"a":[1]}}`, `/ended {"exitCode":3}`,
		fmt.Sprintf(`/spool {"pieces":[{"from":3,"size":4,"sha256":"%s"}]}`, piece.SHA256),
	}
	if !slices.Equal(s.asked, want) {
		t.Errorf("asked %q, want %q", s.asked, want)
	}
}

func TestWhatACallAnswersThatIsNoResult(t *testing.T) {
	tests := []struct {
		name   string
		status int
		body   string
		want   toolwire.Error
		text   string // of an error that is no *Error
	}{
		{name: "a refusal", status: 404, body: `{"error":{"code":"no-such-tool","message":"want a"}}`, want: toolwire.Error{Code: "no-such-tool", Message: "want a", Status: 404}},
		{name: "a failed tool", status: 502, body: `{"error":{"code":"tool-failed","message":"broken"}}`, want: toolwire.Error{Code: "tool-failed", Message: "broken", Status: 502}},
		{name: "of something before the function", status: 403, body: `{"Message":"Forbidden"}`, want: toolwire.Error{Code: "http-403", Message: `status 403: "{\"Message\":\"Forbidden\"}"`, Status: 403}},
		{name: "a redirect is not followed", status: 302, want: toolwire.Error{Code: "http-302", Message: `status 302: ""`, Status: 302}},
		{name: "a crash", status: 502, body: "Internal Server Error", want: toolwire.Error{Code: "unavailable", Message: `status 502: "Internal Server Error"`, Status: 502}},
		{name: "a long text is quoted in part", status: 500, body: strings.Repeat("x", 900), want: toolwire.Error{Code: "unavailable", Message: `status 500: "` + strings.Repeat("x", 200) + `"`, Status: 500}},
		{name: "no result", status: 200, body: `{"answer":1}`, text: `call tool "look": malformed answer: want a result`},
		{name: "no JSON", status: 200, body: `result`, text: "post /: malformed answer"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, s := clientOf(t, says(tt.status, tt.body))
			_, err := c.Call(t.Context(), "look", nil)
			e, ok := errors.AsType[*toolwire.Error](err)
			if ok != (tt.text == "") || ok && *e != tt.want || !ok && (err == nil || !strings.Contains(err.Error(), tt.text)) {
				t.Errorf("error %+v, want %+v %q", err, tt.want, tt.text)
			}
			if len(s.asked) != 1 {
				t.Errorf("a tool was called %d times", len(s.asked))
			}
		})
	}
}

// TestOnlyWhatCannotHaveBegunIsMadeAgain: a tool may have effects, the others have none.
func TestOnlyWhatCannotHaveBegunIsMadeAgain(t *testing.T) {
	unavailable := `{"error":{"code":"unavailable","message":"m"}}`
	tests := []struct {
		name   string
		status int
		body   string
		do     func(*toolwire.Client) error
		tries  int
	}{
		{"a call that was turned away", 429, `{"Reason":"ConcurrentInvocationLimitExceeded"}`, call, 2},
		{"a call that may have been made", 503, unavailable, call, 1},
		{"an end that was not heard", 503, unavailable, func(c *toolwire.Client) error { return c.Ended(t.Context(), 0) }, 2},
		{"an end of a dead run", 401, `{"error":{"code":"bearer","message":"m"}}`, func(c *toolwire.Client) error { return c.Ended(t.Context(), 0) }, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, s := clientOf(t, func(n int, w http.ResponseWriter, r *http.Request) {
				if n == 1 {
					says(tt.status, tt.body)(n, w, r)
					return
				}
				_, _ = io.WriteString(w, `{"result":1}`)
			})
			if err := tt.do(c); (err == nil) != (tt.tries == 2) {
				t.Errorf("error %v", err)
			}
			if len(s.asked) != tt.tries {
				t.Errorf("%d tries, want %d", len(s.asked), tt.tries)
			}
		})
	}
}

func call(c *toolwire.Client) error {
	_, err := c.Call(context.Background(), "look", nil)
	return err
}

func TestWhatIsTooLongIsNotSentAndNotRead(t *testing.T) {
	c, s := clientOf(t, says(200, `{"result":"`+strings.Repeat("x", 2*toolwire.MaxResult)+`"}`))
	args := json.RawMessage(`"` + strings.Repeat("x", toolwire.MaxBody) + `"`)
	_, err := c.Call(t.Context(), "look", args)
	if e, ok := errors.AsType[*toolwire.Error](err); !ok || e.Code != toolwire.CodeTooLarge || len(s.asked) != 0 {
		t.Errorf("error %v after %d requests", err, len(s.asked))
	}
	if _, err := c.Call(t.Context(), "look", nil); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("error %v", err)
	}
}

func TestTheCallersEndIsNoFaultOfTheFunctions(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c, _ := clientOf(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	if _, err := c.Call(ctx, "look", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestBadPlacesAndBearers(t *testing.T) {
	for _, place := range []string{"", "id.lambda-url.test", "ftp://id.test", "https://id.test/path", "https://id.test?q=1", "https://u:secret@id.test", "http://a b"} {
		if _, err := toolwire.NewClient(place, "", bearer); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", place, err)
		}
	}
	for _, word := range []string{"", "two words", "line\nline"} {
		if _, err := toolwire.NewClient("https://id.test", "", word); err == nil || word != "" && strings.Contains(err.Error(), word) {
			t.Errorf("%q: %v", word, err)
		}
	}
}

func TestPieces(t *testing.T) {
	good := toolwire.Piece{From: 0, Size: 1, SHA256: strings.Repeat("0a", 32)}
	change := func(do func(*toolwire.Piece)) []toolwire.Piece {
		p := good
		do(&p)
		return []toolwire.Piece{good, p}
	}
	tests := []struct {
		name   string
		pieces []toolwire.Piece
		want   string // "": accepted
	}{
		{"one", []toolwire.Piece{good}, ""},
		{"as many as there may be", slices.Repeat([]toolwire.Piece{good}, toolwire.MaxPieces), ""},
		{"as long as one may be", change(func(p *toolwire.Piece) { p.Size = toolwire.MaxPiece }), ""},
		{"the last that a key can name", change(func(p *toolwire.Piece) { p.From = toolwire.MaxPosition - p.Size }), ""},
		{"none", nil, "pieces: want 1 to 32, got 0"},
		{"too many", slices.Repeat([]toolwire.Piece{good}, toolwire.MaxPieces+1), "pieces: want 1 to 32, got 33"},
		{"an empty one", change(func(p *toolwire.Piece) { p.Size = 0 }), "pieces[1]: size: want 1 to"},
		{"too long", change(func(p *toolwire.Piece) { p.Size = toolwire.MaxPiece + 1 }), "pieces[1]: size"},
		{"before the journal", change(func(p *toolwire.Piece) { p.From = -1 }), "pieces[1]: from"},
		{"beyond any key", change(func(p *toolwire.Piece) { p.From = toolwire.MaxPosition }), "pieces[1]: from"},
		{"at the end of all numbers", change(func(p *toolwire.Piece) { p.From = 1<<63 - 1 }), "pieces[1]: from"},
		{"upper-case digits", change(func(p *toolwire.Piece) { p.SHA256 = strings.Repeat("0A", 32) }), "pieces[1]: sha256"},
		{"a path for a hash", change(func(p *toolwire.Piece) { p.SHA256 = "../../other/spool" }), "pieces[1]: sha256"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := toolwire.SpoolRequest{Pieces: tt.pieces}.Check()
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestEachTimeIsLongerThanTheOneBefore(t *testing.T) {
	times := []time.Duration{toolwire.DefaultTool, toolwire.MaxTool, toolwire.FunctionTimeout, toolwire.CallTimeout}
	if !slices.IsSorted(times) {
		t.Errorf("%v", times)
	}
}
