package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/agenthttp"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
)

// Client is a job's side of the checkpoint function and of S3. What may pass by itself
// is tried again, with a new grant each time; a refusal is an *[Error] at once. It is
// safe for concurrent use.
type Client struct {
	Transport Transport    // to the function
	S3        *http.Client // to where grants point

	mu       sync.Mutex
	grants   map[manifest.PackRef]fetched // by [manifest.PackRef.ID]
	expected []manifest.PackRef
}

// fetched is leave to read, and since when.
type fetched struct {
	Grant
	at time.Time
}

var _ workspace.Store = (*Client)(nil)

// NewClient returns the client of a job, over the function's URL or, if the job says so,
// over exec sessions.
func NewClient(job Job) (*Client, error) {
	if job.Relay != "" {
		return &Client{Transport: &Files{Dir: job.Relay, Token: job.Token}, S3: NewHTTPClient()}, nil
	}
	t, err := NewHTTP(job.URL, job.Host, job.Token)
	if err != nil {
		return nil, err
	}
	return &Client{Transport: t, S3: NewHTTPClient()}, nil
}

const (
	tries    = 7 // of a step that meets faults that may pass
	waitFrom = 500 * time.Millisecond
	waitMost = 15 * time.Second
	// grantFresh is how long leave to read is used before new leave is asked for;
	// shorter than any grant lives.
	grantFresh = 4 * time.Minute
)

// Parent returns the root that a capture goes out from, or that is to be restored, and
// nil if the thread has none. Its packs are then fetched many at a time.
func (c *Client) Parent(ctx context.Context) (*manifest.Root, error) {
	answer, err := call[ParentAnswer](ctx, c, PathParent, ParentRequest{})
	if err != nil || len(answer.Root) == 0 {
		return nil, err
	}
	root, err := manifest.DecodeRoot(answer.Root)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expected = append(append([]manifest.PackRef{}, root.Layers...), root.Packs...)
	return &root, nil
}

// Has tells for each object whether it is stored; fence zero is the current one.
func (c *Client) Has(ctx context.Context, refs []manifest.PackRef) ([]bool, error) {
	var present []bool
	for len(refs) > 0 {
		n := min(len(refs), MaxPacks)
		answer, err := call[HasAnswer](ctx, c, PathHas, HasRequest{packsOf(refs[:n])})
		if err == nil && len(answer.Present) != n {
			err = fmt.Errorf("call %s: %d answers to %d questions", PathHas, len(answer.Present), n)
		}
		if err != nil {
			return nil, err
		}
		present, refs = append(present, answer.Present...), refs[n:]
	}
	return present, nil
}

// Renew says that the job goes on, and how far it is.
func (c *Client) Renew(ctx context.Context, p workspace.Progress) error {
	_, err := call[RenewAnswer](ctx, c, PathRenew, RenewRequest(p))
	return err
}

// Commit hands in the encoded root of a capture and returns the checkpoint's id. Of a
// restore or a verification it says that it is done; root is then nil.
func (c *Client) Commit(ctx context.Context, root []byte) (string, error) {
	answer, err := call[CommitAnswer](ctx, c, PathCommit, CommitRequest{root})
	return answer.ID, err
}

// Fail ends the step as one that cannot be done.
func (c *Client) Fail(ctx context.Context, code, message string) error {
	_, err := call[FailAnswer](ctx, c, PathFail, FailRequest{Code: code, Message: message})
	return err
}

// call makes one request of the function, again where it may help.
func call[Answer any](ctx context.Context, c *Client, path string, request any) (Answer, error) {
	var answer Answer
	body, err := json.Marshal(request)
	if err != nil {
		return answer, fmt.Errorf("call %s: %w", path, err)
	}
	err = again(ctx, func() error {
		data, err := c.Transport.Call(ctx, path, body)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(data, &answer); err != nil {
			return fmt.Errorf("call %s: read answer: %w", path, err)
		}
		return nil
	})
	return answer, err
}

// again tries until it succeeds or the fault is one that does not pass: with the waits
// between about half a minute.
func again(ctx context.Context, try func() error) error {
	return agenthttp.Backoff{Tries: tries, First: waitFrom, Most: waitMost}.Again(ctx, passes, try)
}

// passes reports whether a fault may pass by itself.
func passes(err error) bool {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code == CodeUnavailable
	}
	e, ok := errors.AsType[*StorageError](err)
	return ok && e.passes()
}

func packsOf(refs []manifest.PackRef) []Pack {
	packs := make([]Pack, len(refs))
	for i, r := range refs {
		packs[i] = Pack{Fence: r.Fence, SHA256: r.SHA256.String(), Size: r.Size, Owner: r.Owner}
	}
	return packs
}
