// Package agenthttp is what the clients of our functions' URLs in a sandbox have in common.
// Its rule: a bearer and a grant are each for one place, so no redirect is followed, and no
// error names a grant.
package agenthttp

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Base checks where a function's URL is dialled, which has neither path nor query nor
// credentials, and returns it without a slash at its end.
func Base(base string) (string, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return "", errors.New("want an http or https URL without a path")
	}
	return strings.TrimSuffix(base, "/"), nil
}

// Word checks a bearer: one word, which a header can carry.
func Word(bearer string) error {
	if bearer == "" || strings.ContainsAny(bearer, " \t\r\n") {
		return errors.New("want a bearer of one word")
	}
	return nil
}

// NewClient returns a client that follows no redirect and keeps so many idle connections
// to a host.
func NewClient(idle int) *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = idle
	t.DisableCompression = true // stored bytes are compressed, and their length is what counts
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// Backoff is how often something is tried, and how long is waited in between: up to First,
// twice as long each time, at most Most, of which half is drawn.
type Backoff struct {
	Tries       int
	First, Most time.Duration
}

// Again tries until it succeeds, the fault is one that another try does not help, the tries
// are used up, or ctx ends. It returns the last fault.
func (b Backoff) Again(ctx context.Context, helps func(error) bool, try func() error) error {
	for n := 0; ; n++ {
		err := try()
		if err == nil || n == b.Tries-1 || ctx.Err() != nil || !helps(err) {
			return err
		}
		wait := min(b.First<<n, b.Most)
		timer := time.NewTimer(wait/2 + rand.N(wait/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

// Object is what is to be stored under a grant: one PUT of exactly these bytes, with all of
// the headers.
type Object struct {
	URL     string
	Headers map[string]string
	Body    io.ReaderAt
	Size    int64
}

// Put stores an object and returns the store's answer, whose body is the caller's to close.
// [Stored] tells what it means. An error is why there was none, without the grant.
func Put(ctx context.Context, client *http.Client, o Object) (*http.Response, error) {
	open := func() (io.ReadCloser, error) { return io.NopCloser(io.NewSectionReader(o.Body, 0, o.Size)), nil }
	body, _ := open() // it never fails
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, o.URL, body)
	if err != nil {
		return nil, errors.New("the grant is no URL")
	}
	request.ContentLength, request.GetBody = o.Size, open
	for name, value := range o.Headers {
		request.Header.Set(name, value)
	}
	response, err := client.Do(request)
	if e, ok := errors.AsType[*url.Error](err); ok {
		return nil, e.Err
	}
	return response, err
}

// Stored reports whether an answer to a PUT says that the object is there: now, or, since
// its name says what it holds, before.
func Stored(status int) bool {
	return status == http.StatusOK || status == http.StatusPreconditionFailed
}
