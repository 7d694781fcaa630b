package bench_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/archive"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/mem"
	"github.com/sandkeeper/sandkeeper/internal/s3blob"
	"github.com/sandkeeper/sandkeeper/internal/transfer"
)

// keeping is the checkpoint function's use case at a URL of loopback, with the store
// for its objects and memory for its records. It starts no agent: it hands the job out.
type keeping struct {
	*core.Keeper
	url string
	job core.AgentJob // the newest
}

var (
	benchThread = core.ThreadKey{Tenant: "acme", Thread: "bench"}
	benchBox    = core.Sandbox{
		Key: "bench", Instance: "bench", TaskARN: "arn:aws:ecs:us-east-1:000000000000:task/bench/0", Cluster: clusterName, Container: container,
		Material: core.KeyMaterial{Provider: "fargate", Definition: "agent", Tenant: benchThread.Tenant, Thread: benchThread.Thread},
	}
)

// bucketObjects are objects, whole and in parts.
type bucketObjects interface {
	core.Objects
	core.Blobs
}

func keepingIn(p *mem.Process, objects bucketObjects) *keeping {
	k := &keeping{}
	k.Keeper = &core.Keeper{Threads: p, Objects: objects, Blobs: objects, Manifests: archive.Reader{}, Sandboxes: p, Controls: p, Runs: p, History: p, Agents: k, URL: k, Queue: p}
	return k
}

// served is a keeping at a URL, until the end of the test.
func served(t *testing.T, s *storage, bucket string) *keeping {
	t.Helper()
	store := mem.New(t)
	store.SeedSandbox(benchBox)
	k := keepingIn(store.NewProcess(mem.Faults{}), s3blob.NewObjects(s.Client, bucket))
	server := httptest.NewServer(http.HandlerFunc(k.serve))
	t.Cleanup(server.Close)
	k.url = server.URL
	return k
}

// Start notes the job.
func (k *keeping) Start(_ context.Context, _ core.ExecTarget, job core.AgentJob) (core.AgentStarted, error) {
	k.job = job
	return core.AgentBegan, nil
}

// AgentURL is the server's.
func (k *keeping) AgentURL(context.Context) (url, host string, err error) {
	return k.url, "", nil
}

// head is the newest root, as it is stored.
func (k *keeping) head(ctx context.Context) (manifest.Root, int64, error) {
	head, err := k.Head(ctx, benchThread)
	if err != nil {
		return manifest.Root{}, 0, err
	}
	made, err := k.Threads.Checkpoint(ctx, benchThread, head.ID)
	if err != nil {
		return manifest.Root{}, 0, err
	}
	data, err := k.Blobs.Blob(ctx, made.Manifest.Key)
	if err != nil {
		return manifest.Root{}, 0, err
	}
	root, err := manifest.DecodeRoot(data)
	return root, int64(len(data)), err
}

func (k *keeping) serve(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, transfer.MaxBody))
	var answer any
	if err == nil {
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		answer, err = k.answer(r.Context(), r.URL.Path, token, body)
	}
	if err != nil {
		rw.WriteHeader(http.StatusBadRequest)
		answer = transfer.ErrorAnswer{Error: transfer.Error{Code: "refused", Message: err.Error()}}
	}
	_ = json.NewEncoder(rw).Encode(answer)
}

// answer is what the function answers to an agent of the bench.
func (k *keeping) answer(ctx context.Context, path, token string, body []byte) (any, error) {
	switch path {
	case transfer.PathGrant:
		return ask(body, func(q transfer.GrantRequest) (transfer.GrantAnswer, error) { return k.grant(ctx, token, q) })
	case transfer.PathParent:
		root, err := k.Parent(ctx, token)
		return transfer.ParentAnswer{Root: root}, err
	case transfer.PathFetch:
		return ask(body, func(q transfer.FetchRequest) (transfer.FetchAnswer, error) { return k.fetch(ctx, token, q) })
	case transfer.PathRenew:
		return ask(body, func(q transfer.RenewRequest) (transfer.RenewAnswer, error) {
			until, err := k.Renew(ctx, token, q.Files, q.Bytes)
			return transfer.RenewAnswer{Until: int64(until)}, err
		})
	case transfer.PathFail:
		return ask(body, func(q transfer.FailRequest) (transfer.FailAnswer, error) {
			return transfer.FailAnswer{}, k.Fail(ctx, token, q.Code, q.Message)
		})
	case transfer.PathCommit:
		return ask(body, func(q transfer.CommitRequest) (transfer.CommitAnswer, error) {
			id, err := k.CommitRoot(ctx, token, q.Root)
			return transfer.CommitAnswer{ID: string(id)}, err
		})
	}
	return nil, fmt.Errorf("no such path as %s", path)
}

func ask[Q, A any](body []byte, do func(Q) (A, error)) (A, error) {
	var q Q
	if err := json.Unmarshal(body, &q); err != nil {
		var none A
		return none, err
	}
	return do(q)
}

func (k *keeping) grant(ctx context.Context, token string, q transfer.GrantRequest) (transfer.GrantAnswer, error) {
	granted, until, err := k.Grant(ctx, token, packs(q.Packs))
	answer := transfer.GrantAnswer{Until: int64(until)}
	for _, g := range granted {
		answer.Grants = append(answer.Grants, transfer.Grant{
			SHA256: g.Pack.SHA256, Fence: g.Pack.Fence, Present: g.Present, URL: g.Grant.URL, Headers: g.Grant.Header,
		})
	}
	return answer, err
}

func (k *keeping) fetch(ctx context.Context, token string, q transfer.FetchRequest) (transfer.FetchAnswer, error) {
	granted, err := k.Fetch(ctx, token, packs(q.Packs))
	var answer transfer.FetchAnswer
	for i, g := range granted {
		answer.Grants = append(answer.Grants, transfer.Grant{SHA256: q.Packs[i].SHA256, Fence: q.Packs[i].Fence, URL: g.URL, Headers: g.Header})
	}
	return answer, err
}

func packs(list []transfer.Pack) []core.PackRef {
	refs := make([]core.PackRef, len(list))
	for i, p := range list {
		refs[i] = core.PackRef{Fence: p.Fence, SHA256: p.SHA256, Size: p.Size, Owner: core.ThreadID(p.Owner)}
	}
	return refs
}

// begin has the function begin a step, and returns the job that an agent would get.
func (k *keeping) begin(ctx context.Context, id core.CheckpointID, kind core.StepKind, dir string) ([]byte, error) {
	policy, err := json.Marshal(everything)
	if err != nil {
		return nil, err
	}
	options := core.JobOptions{Dir: dir, Policy: policy}
	if kind == core.StepCapture {
		_, err = k.Save(ctx, core.SaveRequest{ThreadKey: benchThread, ID: id, Key: benchBox.Key, Instance: benchBox.Instance, JobOptions: options})
	} else {
		_, err = k.Restore(ctx, core.RestoreRequest{ThreadKey: benchThread, ID: id, Key: benchBox.Key, Instance: benchBox.Instance, JobOptions: options})
	}
	if err != nil {
		return nil, err
	}
	if k.job.ID != id {
		return nil, errors.New("no agent was started")
	}
	return json.Marshal(k.job)
}
