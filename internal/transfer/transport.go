package transfer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/agenthttp"
)

// Transport carries requests to the checkpoint function, one try a call.
type Transport interface {
	// Call sends a body of JSON to one of the paths and returns the answer's body. A
	// refusal is an *[Error] with the function's own code; whatever may pass by itself
	// has [CodeUnavailable].
	Call(ctx context.Context, path string, body []byte) ([]byte, error)
}

// callTimeout bounds one call. A commit that takes longer goes on in the function, and is
// found done when it is made again.
const callTimeout = 75 * time.Second

// HTTP is the [Transport] over the function's URL.
type HTTP struct {
	URL    string // where to dial: scheme, host and port
	Host   string // the host that requests name; empty: the URL's
	Token  string // the job's
	Client *http.Client
}

// NewHTTP returns the transport of a job.
func NewHTTP(base, host, token string) (*HTTP, error) {
	at, err := agenthttp.Base(base)
	if err == nil {
		err = agenthttp.Word(token)
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint function: %w", err)
	}
	return &HTTP{URL: at, Host: host, Token: token, Client: NewHTTPClient()}, nil
}

// NewHTTPClient returns a client that follows no redirect: a grant or a token is for
// one place.
func NewHTTPClient() *http.Client { return agenthttp.NewClient(16) }

// Call posts the body.
func (h *HTTP) Call(ctx context.Context, path string, body []byte) ([]byte, error) {
	if len(body) > MaxBody {
		return nil, &Error{Code: "too-large", Message: fmt.Sprintf("a request of %d bytes, want at most %d", len(body), MaxBody), Status: http.StatusRequestEntityTooLarge}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", path, err)
	}
	request.Host = h.Host
	request.Header.Set("Authorization", "Bearer "+h.Token)
	request.Header.Set("Content-Type", "application/json")
	response, err := h.Client.Do(request)
	if err != nil {
		return nil, unavailable(path, err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, MaxBody+1))
	switch {
	case err != nil:
		return nil, unavailable(path, err)
	case len(answer) > MaxBody:
		return nil, fmt.Errorf("call %s: the answer is longer than %d bytes", path, MaxBody)
	case response.StatusCode != http.StatusOK:
		return nil, refusal(response.StatusCode, answer)
	}
	return answer, nil
}

func unavailable(path string, err error) error {
	// The URL is no secret, and the token stands in a header.
	return &Error{Code: CodeUnavailable, Message: fmt.Sprintf("call %s: %v", path, err)}
}

// refusal reads an answer that is no success: the function's own, or that of what
// stands before it.
func refusal(status int, body []byte) error {
	var answer ErrorAnswer
	if err := json.Unmarshal(body, &answer); err != nil || answer.Error.Code == "" {
		answer.Error = Error{Code: "http-" + strconv.Itoa(status), Message: fmt.Sprintf("%.200q", body)}
	}
	answer.Error.Status = status
	if status >= 500 || status == http.StatusTooManyRequests {
		answer.Error.Code = CodeUnavailable
	}
	return &answer.Error
}
