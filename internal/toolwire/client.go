package toolwire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/agenthttp"
)

// Client is a sandbox's side of the function's URL. A refusal is an *[Error] with the
// function's own code; what may pass by itself has [CodeUnavailable]. It is safe for
// concurrent use.
type Client struct {
	url, host, bearer string
	http              *http.Client
}

// NewClient returns the client of a run. The URL is where the function is dialled,
// without a path; host, if not empty, is the host that requests name instead of the
// URL's.
func NewClient(base, host, bearer string) (*Client, error) {
	at, err := agenthttp.Base(base)
	if err == nil {
		err = agenthttp.Word(bearer)
	}
	if err != nil {
		return nil, fmt.Errorf("tools function: %w", err)
	}
	return &Client{url: at, host: host, bearer: bearer, http: agenthttp.NewClient(8)}, nil
}

// Call has a tool called and returns its result as JSON. It is not made again after any
// answer but one that says that nothing was begun: a tool may have effects.
func (c *Client) Call(ctx context.Context, name string, args json.RawMessage) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	var answer CallAnswer
	err := again(ctx, throttled, func() error {
		return c.post(ctx, PathCall, CallRequest{Name: name, Args: args}, &answer)
	})
	if err == nil && answer.Result == nil {
		return nil, fmt.Errorf("call tool %.80q: malformed answer: want a result", name)
	}
	return answer.Result, err
}

// smallTimeout bounds what takes no tool.
const smallTimeout = 20 * time.Second

// Ended says that the agent has ended. It may be said again.
func (c *Client) Ended(ctx context.Context, exitCode int) error {
	return again(ctx, passes, func() error {
		ctx, cancel := context.WithTimeout(ctx, smallTimeout)
		defer cancel()
		return c.post(ctx, PathEnded, EndedRequest{ExitCode: exitCode}, &EndedAnswer{})
	})
}

// Spool asks for a grant for each of at most [MaxPieces] pieces, in the same order.
func (c *Client) Spool(ctx context.Context, pieces []Piece) (SpoolAnswer, error) {
	var answer SpoolAnswer
	err := again(ctx, passes, func() error {
		ctx, cancel := context.WithTimeout(ctx, smallTimeout)
		defer cancel()
		return c.post(ctx, PathSpool, SpoolRequest{Pieces: pieces}, &answer)
	})
	if err == nil && len(answer.Grants) != len(pieces) {
		return SpoolAnswer{}, fmt.Errorf("spool: %d grants for %d pieces", len(answer.Grants), len(pieces))
	}
	return answer, err
}

// post makes one request.
func (c *Client) post(ctx context.Context, path string, request, answer any) error {
	body, err := json.Marshal(request)
	switch {
	case err != nil:
		return &Error{Code: CodeBadRequest, Message: err.Error()}
	case len(body) > MaxBody:
		return &Error{Code: CodeTooLarge, Message: fmt.Sprintf("a request of %d bytes, want at most %d", len(body), MaxBody)}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("post %s: %w", path, err)
	}
	r.Host = c.host
	r.Header.Set("Authorization", "Bearer "+c.bearer)
	r.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(r)
	if err != nil {
		return unavailable(ctx, path, err)
	}
	defer response.Body.Close()
	return read(ctx, path, response, answer)
}

// maxAnswer is the longest answer that is read, bytes: a result, or a grant of up to
// 4 KiB for each piece.
const maxAnswer = 2 * MaxResult

func read(ctx context.Context, path string, response *http.Response, answer any) error {
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return unavailable(ctx, path, err)
	case len(body) > maxAnswer:
		return fmt.Errorf("post %s: an answer longer than %d bytes", path, maxAnswer)
	case response.StatusCode/100 != 2:
		return refusal(response.StatusCode, body)
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("post %s: malformed answer: %w", path, err)
	}
	return nil
}

// unavailable is a request without an answer. The caller's own end goes before it.
func unavailable(ctx context.Context, path string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("post %s: %w", path, context.Cause(ctx))
	}
	return &Error{Code: CodeUnavailable, Message: fmt.Sprintf("post %s: %v", path, err)}
}

// quoted is how many bytes of an answer that nobody understands an error quotes.
const quoted = 200

// refusal reads an answer that is no success: the function's own, or that of what stands
// before it.
func refusal(status int, body []byte) error {
	var answer ErrorAnswer
	if err := json.Unmarshal(body, &answer); err != nil || answer.Error.Code == "" {
		answer.Error = Error{Code: CodeUnavailable, Message: fmt.Sprintf("status %d: %q", status, body[:min(len(body), quoted)])}
		if status < 500 && status != http.StatusTooManyRequests {
			answer.Error.Code = fmt.Sprintf("http-%d", status)
		}
	}
	answer.Error.Status = status
	return &answer.Error
}

const (
	tries    = 4
	waitFrom = 250 * time.Millisecond
	waitMost = time.Second
)

// again tries until it succeeds or the fault is one that another try does not help.
func again(ctx context.Context, helps func(*Error) bool, try func() error) error {
	return agenthttp.Backoff{Tries: tries, First: waitFrom, Most: waitMost}.Again(ctx, func(err error) bool {
		e, ok := errors.AsType[*Error](err)
		return ok && helps(e)
	}, try)
}

// passes reports whether a fault may pass by itself.
func passes(e *Error) bool { return e.Code == CodeUnavailable }

// throttled reports whether the request was turned away before anything was begun.
func throttled(e *Error) bool { return e.Status == http.StatusTooManyRequests }
