package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
)

// gate stands between the functions and local Fargate's ECS API: it counts what
// passes, and refuses calls about a task in ECS's own words.
type gate struct {
	server *httptest.Server
	proxy  *httputil.ReverseProxy

	mu        sync.Mutex
	passed    map[call]int
	refusals  map[call]*refusal
	throttled int
}

// call is an operation on one task.
type call struct{ operation, task string }

// refusal answers the next calls with an error code.
type refusal struct {
	code string
	left int
}

func openGate(target string) (*gate, error) {
	to, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	g := &gate{passed: map[call]int{}, refusals: map[call]*refusal{}}
	g.proxy = &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, ModifyResponse: g.hear}
	g.server = httptest.NewServer(g)
	return g, nil
}

func (g *gate) url() string { return g.server.URL }

func (g *gate) close() { g.server.Close() }

// refuse has the next n calls of the operation about the task answered with code.
func (g *gate) refuse(operation, task, code string, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refusals[call{operation, task}] = &refusal{code, n}
}

// left is how many refusals have not been used up.
func (g *gate) left(operation, task string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.refusals[call{operation, task}]; r != nil {
		return r.left
	}
	return 0
}

// count is how many calls of the operation about the task reached ECS.
func (g *gate) count(operation, task string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.passed[call{operation, task}]
}

// hear counts what ECS itself turns away.
func (g *gate) hear(r *http.Response) error {
	if r.StatusCode != http.StatusBadRequest {
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if bytes.Contains(body, []byte("ThrottlingException")) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.throttled++
	}
	return nil
}

// turnedAway is how many calls ECS has turned away.
func (g *gate) turnedAway() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.throttled
}

// ServeHTTP implements [http.Handler].
func (g *gate) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	var about struct{ Task string }
	_ = json.Unmarshal(body, &about) // calls about no single task have none
	if code := g.admit(call{operation, about.Task}); code != "" {
		rw.Header().Set("Content-Type", "application/x-amz-json-1.1")
		rw.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(rw, `{"__type":%q,"message":"refused by the test"}`, code)
		return
	}
	g.proxy.ServeHTTP(rw, r)
}

// admit counts a call, or names the code of its refusal.
func (g *gate) admit(c call) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.refusals[c]; r != nil && r.left > 0 {
		r.left--
		return r.code
	}
	g.passed[c]++
	return ""
}
