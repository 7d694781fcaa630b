package mcptools

import (
	"cmp"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandkeeper/sandkeeper/internal/toolwire"
)

// Path is the path of the server's one endpoint.
const Path = "/mcp"

// Limits of the server, which untrusted code reaches.
const (
	headerTimeout = 10 * time.Second
	bodyTimeout   = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10
	minToken      = 16
)

// Serve serves in the background until ctx ends, and returns the address that it listens
// on. Requests under way then are cut.
func Serve(ctx context.Context, c Config) (addr string, err error) {
	switch {
	case len(c.Token) < minToken:
		return "", fmt.Errorf("serve tools: want a token of at least %d characters, got %d", minToken, len(c.Token))
	case c.Caller == nil && len(c.Tools) > 0:
		return "", errors.New("serve tools: want somebody who calls them")
	}
	handler, err := newHandler(c)
	if err != nil {
		return "", err
	}
	listener, err := c.listen(ctx)
	if err != nil {
		return "", err
	}
	addr = listener.Addr().String()
	server := &http.Server{
		Handler: guard(handler, c.Token, addr), ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout,
		// An answer takes as long as its tool.
		WriteTimeout: bodyTimeout + toolwire.CallTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	go func() { _ = server.Serve(listener) }() // it ends when it is closed
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return addr, nil
}

func newHandler(c Config) (http.Handler, error) {
	s, err := newServer(c)
	if err != nil {
		return nil, err
	}
	return inProtocol(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{
		// Any request may be the first: an agent's restart needs no new session. Answers are
		// JSON, which the simplest client reads too.
		Stateless: true, JSONResponse: true, MaxRequestBodyBytes: toolwire.MaxBody, PropagateRequestCancellation: true,
	})), nil
}

// listen listens on loopback only.
func (c Config) listen(ctx context.Context) (net.Listener, error) {
	addr := cmp.Or(c.Addr, "127.0.0.1:0")
	if c.Listener != nil {
		addr = c.Listener.Addr().String()
	}
	at, err := netip.ParseAddrPort(addr)
	if err != nil || !at.Addr().IsLoopback() {
		return nil, fmt.Errorf("serve tools: want an address on loopback with a port, got %.80q", addr)
	}
	if c.Listener != nil {
		return c.Listener, nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("serve tools at %s: %w", addr, err)
	}
	return listener, nil
}

// guard lets through who has the token and asks for this very server by its address: a
// page in a browser can be made to send requests here, but not with this host or this
// token.
func guard(next http.Handler, token, addr string) http.Handler {
	_, port, _ := net.SplitHostPort(addr)
	want := []byte("Bearer " + token)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch given := []byte(r.Header.Get("Authorization")); {
		case r.Host != addr && r.Host != net.JoinHostPort("localhost", port):
			refuse(w, http.StatusForbidden, "want a request to "+addr)
		case r.Header.Get("Origin") != "":
			refuse(w, http.StatusForbidden, "want a request of an agent, not of a page")
		case len(given) != len(want) || subtle.ConstantTimeCompare(given, want) != 1:
			w.Header().Set("WWW-Authenticate", "Bearer")
			refuse(w, http.StatusUnauthorized, "want the server's token as bearer")
		case r.URL.Path != Path:
			refuse(w, http.StatusNotFound, "want the path "+Path)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func refuse(w http.ResponseWriter, status int, message string) {
	body, _ := json.Marshal(toolwire.ErrorAnswer{Error: toolwire.Error{Code: "http", Message: message}})
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
