package side_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/side"
	"github.com/sandkeeper/sandkeeper/internal/toolwire"
)

const bearer = "acme.r.00112233445566778899aabbccddeeff0011223344556677"

// outside is the tools function and the store.
type outside struct {
	*httptest.Server
	mu     sync.Mutex
	called []toolwire.CallRequest
	ended  []int
	pieces map[int64]string
	puts   int
	down   map[string]int // so many requests of a path are answered 503 first
	status map[string]int // what a path is answered with, instead
}

func newOutside(t *testing.T) *outside {
	o := &outside{pieces: map[int64]string{}, down: map[string]int{}, status: map[string]int{}}
	o.Server = httptest.NewServer(o)
	t.Cleanup(o.Close)
	return o
}

func (o *outside) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	kind := r.URL.Path
	if strings.HasPrefix(kind, "/store/") {
		kind = "store"
	}
	switch status := o.status[kind]; {
	case kind != "store" && r.Header.Get("Authorization") != "Bearer "+bearer:
		w.WriteHeader(http.StatusUnauthorized)
		return
	case o.down[kind] > 0:
		o.down[kind]--
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case status != 0:
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(toolwire.ErrorAnswer{Error: toolwire.Error{Code: "refused", Message: "as the test says"}})
		return
	}
	o.answer(w, r, kind, body)
}

func (o *outside) answer(w http.ResponseWriter, r *http.Request, kind string, body []byte) {
	switch kind {
	case toolwire.PathCall:
		var q toolwire.CallRequest
		_ = json.Unmarshal(body, &q)
		o.called = append(o.called, q)
		fmt.Fprint(w, `{"result":{"answer":42}}`)
	case toolwire.PathEnded:
		var q toolwire.EndedRequest
		_ = json.Unmarshal(body, &q)
		o.ended = append(o.ended, q.ExitCode)
		fmt.Fprint(w, "{}")
	case toolwire.PathSpool:
		var q toolwire.SpoolRequest
		_ = json.Unmarshal(body, &q)
		answer := toolwire.SpoolAnswer{Watched: true}
		for _, p := range q.Pieces {
			answer.Grants = append(answer.Grants, toolwire.Grant{From: p.From, URL: fmt.Sprintf("%s/store/%d", o.URL, p.From), Headers: map[string]string{"If-None-Match": "*"}})
		}
		_ = json.NewEncoder(w).Encode(answer)
	case "store":
		var from int64
		o.puts++
		if _, err := fmt.Sscanf(r.URL.Path, "/store/%d", &from); err == nil && r.Header.Get("If-None-Match") == "*" {
			o.pieces[from] = string(body)
		}
	}
}

func (o *outside) seen() (called []toolwire.CallRequest, ended []int, journal string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for next, ok := o.pieces[0]; ok && next != ""; next, ok = o.pieces[int64(len(journal))] {
		journal += next
	}
	return append(called, o.called...), append(ended, o.ended...), journal
}

// wrapper is what a companion has at its other end.
type wrapper struct {
	*testing.T
	dir  string
	tell *io.PipeWriter
	said *bufio.Reader
	over chan error
	log  bytes.Buffer
}

// companion starts one.
func companion(t *testing.T, c side.Config) *wrapper {
	t.Helper()
	w := &wrapper{T: t, dir: t.TempDir(), over: make(chan error, 1)}
	c.Run, c.Journal, c.Marker, c.Root = "r", filepath.Join(w.dir, "journal"), w.dir, w.dir
	w.write("")
	hears, tell := io.Pipe()
	reads, says := io.Pipe()
	w.tell, w.said = tell, bufio.NewReader(reads)
	go func() {
		err := side.Run(context.Background(), hears, says, slog.New(slog.NewTextHandler(&w.log, nil)))
		says.Close()
		w.over <- err
	}()
	w.say(c)
	t.Cleanup(func() { tell.Close(); reads.Close() })
	return w
}

func (w *wrapper) say(v any) {
	w.Helper()
	line, err := json.Marshal(v)
	if err == nil {
		_, err = w.tell.Write(append(line, '\n'))
	}
	if err != nil {
		w.Fatal(err)
	}
}

func (w *wrapper) hear() (s side.Said) {
	w.Helper()
	line, err := w.said.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &s)
	}
	if err != nil {
		w.Fatalf("hear: %v", err)
	}
	return s
}

// write appends to the run's journal.
func (w *wrapper) write(text string) {
	w.Helper()
	f, err := os.OpenFile(filepath.Join(w.dir, "journal"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
		f.Close()
	}
	if err != nil {
		w.Fatal(err)
	}
}

// end tells that the run is over, and returns how the companion ended.
func (w *wrapper) end(size int64, exit int) error {
	w.Helper()
	w.say(side.Told{Over: true, End: size})
	for !w.hear().Drained {
	}
	w.say(side.Told{Sealed: true, Exit: exit})
	return <-w.over
}

func sideOf(o *outside, change func(*core.Side)) side.Config {
	c := side.Config{Side: core.Side{URL: o.URL, Bearer: bearer}}
	change(&c.Side)
	return c
}

// TestACompanionServesTheRunsTools by MCP on loopback, to who has its token, and to nobody
// else; what the function refuses is a result that says so.
func TestACompanionServesTheRunsTools(t *testing.T) {
	o := newOutside(t)
	w := companion(t, sideOf(o, func(s *core.Side) {
		s.Tools = []core.SideTool{{Name: "lookup", Description: "looks it up", InputSchema: json.RawMessage(`{"type":"object"}`)}}
	}))
	ready := w.hear().Ready
	if ready == nil || !strings.HasPrefix(ready.Addr, "127.0.0.1:") || !strings.Contains(ready.Agents, ready.Token) {
		t.Fatalf("ready %+v", ready)
	}
	if status := stranger(ready.URL); status != http.StatusUnauthorized {
		t.Errorf("without a token: status %d", status)
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil).Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint: ready.URL, HTTPClient: &http.Client{Transport: bearing(ready.Token)},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tools, err := session.ListTools(t.Context(), nil)
	if err != nil || len(tools.Tools) != 1 || tools.Tools[0].Name != "lookup" || tools.Tools[0].Description != "looks it up" {
		t.Fatalf("tools %+v, %v", tools, err)
	}
	ask := func() *mcp.CallToolResult {
		t.Helper()
		result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "lookup", Arguments: map[string]any{"key": "k"}})
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	if result := ask(); result.IsError || result.Content[0].(*mcp.TextContent).Text != `{"answer":42}` {
		t.Errorf("result %+v", result)
	}
	o.mu.Lock()
	o.status[toolwire.PathCall] = http.StatusNotFound
	o.mu.Unlock()
	if result := ask(); !result.IsError || !strings.Contains(result.Content[0].(*mcp.TextContent).Text, "as the test says") {
		t.Errorf("a refused call: %+v", result)
	}
	if called, _, _ := o.seen(); len(called) != 1 || called[0].Name != "lookup" || string(called[0].Args) != `{"key":"k"}` {
		t.Errorf("called %+v", called)
	}
	session.Close()
	if err := w.end(0, 0); err != nil {
		t.Error(err)
	}
	if stranger(ready.URL) == http.StatusUnauthorized {
		t.Error("the server outlives its companion")
	}
}

// stranger asks for the tools without a token, and returns the status of the answer; zero
// is none. The port of a server that is gone may be somebody else's.
func stranger(url string) int {
	client := &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Post(url, "application/json", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	if err != nil {
		return 0
	}
	answer.Body.Close()
	return answer.StatusCode
}

// bearing adds a token to requests.
type bearing string

func (b bearing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// TestTheNudgeComesLast: when the journal is stored and its sentinel is on the disk, once
// heard, again where it was not; a refusal is told to the wrapper.
func TestTheNudgeComesLast(t *testing.T) {
	for name, tt := range map[string]struct {
		down, status int
		ended        int
		fails        bool
	}{
		"heard at once":             {ended: 1},
		"heard at the second try":   {down: 1, ended: 1},
		"refused, and not repeated": {status: http.StatusUnauthorized, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOutside(t)
			o.down[toolwire.PathEnded], o.status[toolwire.PathEnded] = tt.down, tt.status
			w := companion(t, sideOf(o, func(s *core.Side) { s.Nudge, s.Spool = true, true }))
			const text = "all that the agent wrote\n"
			w.write(text)
			w.say(side.Told{Over: true, End: int64(len(text))})
			if !w.hear().Drained {
				t.Fatal("it does not say that all is told")
			}
			if _, ended, _ := o.seen(); len(ended) > 0 {
				t.Error("nudged before the sentinel")
			}
			w.say(side.Told{Sealed: true, Exit: 7})
			err := <-w.over
			if _, ended, journal := o.seen(); len(ended) != tt.ended || tt.ended == 1 && ended[0] != 7 || journal != text || (err != nil) != tt.fails {
				t.Errorf("ended %v, journal %q, %v", ended, journal, err)
			}
		})
	}
}

// TestAJournalIsSpooledToItsEnd past a store and a function that are down for a while; what
// will not heal ends the copy, and nothing else.
func TestAJournalIsSpooledToItsEnd(t *testing.T) {
	text := strings.Repeat("a line of the journal\n", 100_000) // more than one piece
	for name, tt := range map[string]struct {
		path         string
		down, status int
		whole        bool
	}{
		"all is well":                   {whole: true},
		"the store is down at first":    {path: "store", down: 1, whole: true},
		"the function is down at first": {path: toolwire.PathSpool, down: 2, whole: true},
		"the piece is there already":    {path: "store", status: http.StatusPreconditionFailed},
		"the run may spool no more":     {path: toolwire.PathSpool, status: http.StatusRequestEntityTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOutside(t)
			o.down[tt.path], o.status[tt.path] = tt.down, tt.status
			w := companion(t, sideOf(o, func(s *core.Side) { s.Spool, s.Nudge = true, true }))
			w.write(text)
			if tt.whole {
				await(t, func() bool { _, _, journal := o.seen(); return journal == text })
			}
			if err := w.end(int64(len(text)), 0); err != nil {
				t.Error(err)
			}
			if _, ended, journal := o.seen(); len(ended) != 1 || tt.whole != (journal == text) {
				t.Errorf("nudged %d times, %d bytes of %d", len(ended), len(journal), len(text))
			}
		})
	}
}

// await waits, but not for ever.
func await(t *testing.T, holds func() bool) {
	t.Helper()
	late, pace := time.After(2*time.Minute), time.NewTicker(10*time.Millisecond)
	defer pace.Stop()
	for !holds() {
		select {
		case <-pace.C:
		case <-late:
			t.Fatal("waited in vain")
		}
	}
}

// TestACompanionGoesWithItsWrapper, whatever it was doing: its server with it, and without
// a nudge.
func TestACompanionGoesWithItsWrapper(t *testing.T) {
	o := newOutside(t)
	w := companion(t, sideOf(o, func(s *core.Side) {
		s.Nudge, s.Spool, s.Tools = true, true, []core.SideTool{{Name: "lookup"}}
	}))
	ready := w.hear().Ready
	w.tell.Close()
	if err := <-w.over; err == nil || !strings.Contains(err.Error(), "wrapper is gone") {
		t.Errorf("got %v", err)
	}
	await(t, func() bool { return stranger(ready.URL) != http.StatusUnauthorized })
	if _, ended, _ := o.seen(); len(ended) > 0 {
		t.Error("a dead wrapper's run is said to have ended")
	}
}

// TestANewCompanionTakesTheFormersPlace: the agent knows one server and one token.
func TestANewCompanionTakesTheFormersPlace(t *testing.T) {
	o := newOutside(t)
	config := sideOf(o, func(s *core.Side) { s.Tools = []core.SideTool{{Name: "lookup"}} })
	first := companion(t, config)
	was := first.hear().Ready
	first.tell.Close()
	<-first.over
	await(t, func() bool { return stranger(was.URL) == 0 }) // its process would be gone
	config.Addr, config.Token = was.Addr, was.Token
	second := companion(t, config)
	if is := second.hear().Ready; is == nil || is.Addr != was.Addr || is.Token != was.Token {
		t.Errorf("was %+v, is %+v", was, is)
	}
	if err := second.end(0, 0); err != nil {
		t.Error(err)
	}
}

// TestACompanionRefusesWhatItCannotRead, and quotes nothing of it: it may be a secret.
func TestACompanionRefusesWhatItCannotRead(t *testing.T) {
	for name, line := range map[string]string{
		"no JSON":                 "a secret\n",
		"a URL that is none":      `{"url":"x","bearer":"secret"}` + "\n",
		"a bearer of two words":   `{"url":"http://127.0.0.1:1","bearer":"two secret"}` + "\n",
		"a line that is too long": strings.Repeat("secret", 400_000) + "\n",
		"nothing":                 "",
	} {
		t.Run(name, func(t *testing.T) {
			err := side.Run(t.Context(), strings.NewReader(line), io.Discard, slog.New(slog.DiscardHandler))
			if err == nil || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v", err)
			}
		})
	}
}
