package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/agenthttp"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
)

// StorageError is S3's answer to a request under a grant, or why there was none. It
// holds no part of the grant.
type StorageError struct {
	Op     string // put or get
	Object string // the object's name
	Status int    // zero: no answer
	Code   string // S3's word, empty if it said none
	Cause  error  // where there was no answer
}

func (e *StorageError) Error() string {
	if e.Status == 0 {
		return fmt.Sprintf("%s object %s: %v", e.Op, e.Object, e.Cause)
	}
	return fmt.Sprintf("%s object %s: status %d %s", e.Op, e.Object, e.Status, e.Code)
}

func (e *StorageError) Unwrap() error { return e.Cause }

// passes reports whether another try, under a new grant, may be answered otherwise. A
// grant that ran out is refused as one that was never given.
func (e *StorageError) passes() bool {
	switch e.Code {
	case "RequestTimeout", "ExpiredToken":
		return true
	}
	switch e.Status {
	case 0, http.StatusForbidden, http.StatusConflict, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	}
	return e.Status >= 500
}

// transferWithin bounds one transfer: a slow line may bring 256 KiB a second.
func transferWithin(size int64) time.Duration {
	return time.Minute + time.Duration(size/(256<<10))*time.Second
}

// Put stores an object under the current fence. One that is there is success: its name
// holds its hash, which S3 verified when it was stored.
func (c *Client) Put(ctx context.Context, o workspace.Object) (manifest.PackRef, error) {
	ref := manifest.PackRef{SHA256: o.SHA256, Size: o.Size}
	err := again(ctx, func() error {
		answer, err := call[GrantAnswer](ctx, c, PathGrant, GrantRequest{packsOf([]manifest.PackRef{ref})})
		if err != nil {
			return err
		}
		if len(answer.Grants) != 1 || answer.Grants[0].SHA256 != o.SHA256.String() || answer.Grants[0].Fence < 1 {
			return fmt.Errorf("call %s: the answer is about another object than %s", PathGrant, o.SHA256)
		}
		grant := answer.Grants[0]
		if !grant.Present {
			err = c.send(ctx, grant, o)
		}
		if err == nil {
			ref.Fence = grant.Fence
		}
		return err
	})
	return ref, err
}

func (c *Client) send(ctx context.Context, g Grant, o workspace.Object) error {
	ctx, cancel := context.WithTimeout(ctx, transferWithin(o.Size))
	defer cancel()
	response, err := agenthttp.Put(ctx, c.S3, agenthttp.Object{URL: g.URL, Headers: g.Headers, Body: o.Body, Size: o.Size})
	if err != nil {
		return noAnswer("put", o.SHA256.String(), err)
	}
	defer response.Body.Close()
	if agenthttp.Stored(response.StatusCode) {
		_, err := io.Copy(io.Discard, io.LimitReader(response.Body, maxFault))
		_ = err // the answer has been given; only the connection is not kept
		return nil
	}
	return answered("put", o.SHA256.String(), response)
}

// Get fills dst with the bytes of an object from offset on.
func (c *Client) Get(ctx context.Context, ref manifest.PackRef, offset int64, dst []byte) error {
	if len(dst) == 0 {
		return nil
	}
	renew := false
	return again(ctx, func() error {
		grant, err := c.leave(ctx, ref, renew)
		if err != nil {
			return err
		}
		renew = true // whatever failed may have been the grant
		return c.receive(ctx, grant, ref, offset, dst)
	})
}

// leave is a grant to read an object, kept from before unless renew is set. The ones
// that will be asked for next come with it.
func (c *Client) leave(ctx context.Context, ref manifest.PackRef, renew bool) (Grant, error) {
	asked, grant := c.missing(ref, renew)
	if grant.URL != "" {
		return grant, nil
	}
	answer, err := call[FetchAnswer](ctx, c, PathFetch, FetchRequest{packsOf(asked)})
	if e, ok := errors.AsType[*Error](err); ok && e.Status == http.StatusNotFound {
		return Grant{}, fmt.Errorf("object %s: %w", ref.Name(), workspace.ErrNotStored)
	}
	if err == nil && len(answer.Grants) != len(asked) {
		err = fmt.Errorf("call %s: %d answers to %d questions", PathFetch, len(answer.Grants), len(asked))
	}
	if err != nil {
		return Grant{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.grants == nil {
		c.grants = map[manifest.PackRef]fetched{}
	}
	for i, r := range asked {
		c.grants[r.ID()] = fetched{answer.Grants[i], time.Now()}
	}
	return answer.Grants[0], nil
}

// missing returns a fresh grant that is there, or what to ask for: the object first.
func (c *Client) missing(ref manifest.PackRef, renew bool) ([]manifest.PackRef, Grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g, ok := c.grants[ref.ID()]; ok && !renew && time.Since(g.at) < grantFresh {
		return nil, g.Grant
	}
	asked := []manifest.PackRef{ref}
	for _, r := range c.expected {
		if len(asked) == MaxPacks {
			break
		}
		if g, ok := c.grants[r.ID()]; r.ID() != ref.ID() && (!ok || time.Since(g.at) >= grantFresh) {
			asked = append(asked, r)
		}
	}
	return asked, Grant{}
}

func (c *Client) receive(ctx context.Context, g Grant, ref manifest.PackRef, offset int64, dst []byte) error {
	ctx, cancel := context.WithTimeout(ctx, transferWithin(int64(len(dst))))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.URL, nil)
	if err != nil {
		return noAnswer("get", ref.Name(), err)
	}
	for name, value := range g.Headers {
		request.Header.Set(name, value)
	}
	request.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, offset+int64(len(dst))-1))
	response, err := c.S3.Do(request)
	if err != nil {
		return noAnswer("get", ref.Name(), err)
	}
	defer response.Body.Close()
	switch {
	case response.StatusCode == http.StatusNotFound:
		return fmt.Errorf("object %s: %w", ref.Name(), workspace.ErrNotStored)
	case response.StatusCode == http.StatusOK:
		// A server may pass a range over, and send the whole.
		if _, err := io.CopyN(io.Discard, response.Body, offset); err != nil {
			return noAnswer("get", ref.Name(), err)
		}
	case response.StatusCode != http.StatusPartialContent:
		return answered("get", ref.Name(), response)
	}
	if _, err := io.ReadFull(response.Body, dst); err != nil {
		return noAnswer("get", ref.Name(), err)
	}
	return nil
}

// noAnswer tells of a request that was not answered. The cause names no URL, for that
// is the grant.
func noAnswer(op, object string, err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	return &StorageError{Op: op, Object: object, Cause: err}
}

// maxFault is how much of an answer that is no success is read.
const maxFault = 64 << 10

var faultCode = regexp.MustCompile(`<Code>([A-Za-z0-9.]{1,100})</Code>`)

func answered(op, object string, response *http.Response) error {
	e := &StorageError{Op: op, Object: object, Status: response.StatusCode}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxFault))
	if err != nil {
		e.Cause = err
		return e
	}
	if found := faultCode.FindSubmatch(body); found != nil {
		e.Code = string(bytes.Clone(found[1]))
	} else {
		e.Code = strconv.Quote(string(body[:min(len(body), 120)]))
	}
	return e
}
