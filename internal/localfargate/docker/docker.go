// Package docker runs a task's containers on a Docker engine, by the engine's HTTP API
// on its socket, with their limits of memory and processor. Its rule: every container
// carries the label of its server, and none outlives it, however the server ends. It
// speaks the API itself: a dozen calls of one fixed version, where the engine's own
// client would bring its telemetry and some thirty modules along.
package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// apiVersion is what Debian's engine speaks, and newer ones still do.
const apiVersion = "v1.41"

// callWithin bounds every call but those that wait for a container.
const callWithin = 30 * time.Second

// DefaultSocket is where an engine listens unless DOCKER_HOST says otherwise.
const DefaultSocket = "/var/run/docker.sock"

// ErrNotHere means that no engine answers at the socket.
var ErrNotHere = errors.New("no docker engine answers")

// APIError is a refusal of the engine.
type APIError struct {
	Status  int
	Message string
}

func (e *APIError) Error() string {
	return fmt.Sprintf("docker engine says %d: %s", e.Status, e.Message)
}

func isMissing(err error) bool {
	e, ok := errors.AsType[*APIError](err)
	return ok && e.Status == http.StatusNotFound
}

// Engine is a Docker engine on this machine. Its methods may be called by many
// goroutines.
type Engine struct {
	socket string
	http   *http.Client
}

// Open returns the engine at a socket; "" is DOCKER_HOST if that names one, else
// [DefaultSocket]. An engine elsewhere is refused: its containers would not see this
// machine's files. It is [ErrNotHere] if nothing answers.
func Open(ctx context.Context, socket string) (*Engine, error) {
	if socket == "" {
		socket = os.Getenv("DOCKER_HOST")
	}
	if socket == "" {
		socket = DefaultSocket
	}
	socket = strings.TrimPrefix(socket, "unix://")
	if !strings.HasPrefix(socket, "/") {
		return nil, fmt.Errorf("open docker engine: want a unix socket, got %q", socket)
	}
	e := &Engine{socket: socket, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute,
	}}}
	if err := e.call(ctx, http.MethodGet, "/version", nil, nil); err != nil {
		return nil, fmt.Errorf("open docker engine at %s: %w: %w", socket, ErrNotHere, err)
	}
	return e, nil
}

// call makes one request and reads a JSON answer into out, if out is not nil.
func (e *Engine) call(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	return e.callLong(ctx, method, path, in, out)
}

// callLong is call without a deadline of its own.
func (e *Engine) callLong(ctx context.Context, method, path string, in, out any) error {
	response, err := e.request(ctx, method, path, in, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, response.Body)
	} else {
		err = json.NewDecoder(response.Body).Decode(out)
	}
	if err != nil {
		return fmt.Errorf("read answer of docker engine to %s %s: %w", method, path, err)
	}
	return nil
}

// request sends in, a reader or else a value as JSON, to a path, which may have a query,
// and returns an answer that is no refusal. The caller closes its body.
func (e *Engine) request(ctx context.Context, method, path string, in any, header http.Header) (*http.Response, error) {
	var body io.Reader
	switch in := in.(type) {
	case nil:
	case io.Reader:
		body = in
	default:
		data, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("ask docker engine: %w", err)
		}
		body = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://docker/"+apiVersion+path, body)
	if err != nil {
		return nil, fmt.Errorf("ask docker engine: %w", err)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	maps.Copy(request.Header, header)
	response, err := e.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask docker engine: %w", err)
	}
	if response.StatusCode < http.StatusBadRequest {
		return response, nil
	}
	defer response.Body.Close()
	var said struct{ Message string }
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err != nil || json.Unmarshal(text, &said) != nil {
		said.Message = string(text)
	}
	return nil, &APIError{Status: response.StatusCode, Message: said.Message}
}

// stream is a connection that the engine has taken out of HTTP.
func (e *Engine) stream(ctx context.Context, path string, in any) (io.ReadWriteCloser, error) {
	response, err := e.request(ctx, http.MethodPost, path, in, http.Header{"Connection": {"Upgrade"}, "Upgrade": {"tcp"}})
	if err != nil {
		return nil, err
	}
	both, ok := response.Body.(io.ReadWriteCloser)
	if response.StatusCode != http.StatusSwitchingProtocols || !ok {
		response.Body.Close()
		return nil, fmt.Errorf("ask docker engine: %s gives no stream but %s", path, response.Status)
	}
	return both, nil
}

// HasImage says whether an image is there.
func (e *Engine) HasImage(ctx context.Context, name string) (bool, error) {
	err := e.call(ctx, http.MethodGet, "/images/"+name+"/json", nil, nil)
	if isMissing(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for image %s: %w", name, err)
	}
	return true, nil
}

// RemoveAll removes every container with a value of [Label], running or not.
func (e *Engine) RemoveAll(ctx context.Context, server string) error {
	filter, err := json.Marshal(map[string][]string{"label": {Label + "=" + server}})
	if err != nil {
		return fmt.Errorf("remove containers of %s: %w", server, err)
	}
	return e.removeWhere(ctx, string(filter))
}

func (e *Engine) removeWhere(ctx context.Context, filters string) error {
	var found []struct {
		ID string `json:"Id"`
	}
	query := url.Values{"all": {"true"}, "filters": {filters}}
	if err := e.call(ctx, http.MethodGet, "/containers/json?"+query.Encode(), nil, &found); err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	var errs []error
	for _, c := range found {
		errs = append(errs, e.remove(ctx, c.ID))
	}
	return errors.Join(errs...)
}

func (e *Engine) remove(ctx context.Context, id string) error {
	err := e.call(ctx, http.MethodDelete, "/containers/"+id+"?force=true&v=true", nil, nil)
	if refused, ok := errors.AsType[*APIError](err); ok && refused.Status == http.StatusConflict {
		return nil // somebody removes it already
	}
	if err != nil && !isMissing(err) {
		return fmt.Errorf("remove container %s: %w", id, err)
	}
	return nil
}

// RemoveImages removes every image of a repository, and first the containers that run
// one, whoever made them.
func (e *Engine) RemoveImages(ctx context.Context, repository string) error {
	filter, err := json.Marshal(map[string][]string{"reference": {repository + ":*"}})
	if err != nil {
		return fmt.Errorf("remove images of %s: %w", repository, err)
	}
	var images []struct {
		ID       string `json:"Id"`
		RepoTags []string
	}
	if err := e.call(ctx, http.MethodGet, "/images/json?filters="+url.QueryEscape(string(filter)), nil, &images); err != nil {
		return fmt.Errorf("remove images of %s: %w", repository, err)
	}
	var errs []error
	for _, image := range images {
		errs = append(errs, e.removeOf(ctx, image.ID))
	}
	for _, image := range images {
		for _, tag := range image.RepoTags {
			err := e.call(ctx, http.MethodDelete, "/images/"+tag+"?force=true", nil, nil)
			if err != nil && !isMissing(err) {
				errs = append(errs, fmt.Errorf("remove image %s: %w", tag, err))
			}
		}
	}
	return errors.Join(errs...)
}

// removeOf removes the containers of an image.
func (e *Engine) removeOf(ctx context.Context, image string) error {
	filter, err := json.Marshal(map[string][]string{"ancestor": {image}})
	if err != nil {
		return fmt.Errorf("remove containers of %s: %w", image, err)
	}
	return e.removeWhere(ctx, string(filter))
}
