package bench_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/mem"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
)

// callOfStore is what every request takes, to whatever service.
const callOfStore = 20 * time.Millisecond

// storing compares what a capture waits for.
func storing(t *testing.T, scale int) []figure {
	files := 10_000 / scale
	ours, calls := capturing(t, files)
	theirs := originalCapture(t, files)
	how := fmt.Sprintf("bubble's clock, every call %v; ours makes %d, those of the function among them", callOfStore, calls)
	return []figure{
		{Name: "first capture of 10,000 files, waiting for calls", Value: ours.Seconds(), Unit: "s", how: how},
		{Name: "the same, by the original's order of calls", Value: theirs.Seconds(), Unit: "s", how: "a head and a put a file, one after another"},
		{Name: "first capture, against the original", Value: theirs.Seconds() / ours.Seconds(), Unit: "times", Goal: ">= 50"},
	}
}

// capturing is how long a save of a tree takes, from the request until the checkpoint
// is the thread's head, on a clock that only calls move.
func capturing(t *testing.T, files int) (took time.Duration, calls int) {
	dir := t.TempDir()
	for i := range files {
		if err := writeSmall(dir, i); err != nil {
			t.Fatal(err)
		}
	}
	openCodecs(t)
	synctest.Test(t, func(t *testing.T) {
		store := mem.New(t)
		store.SeedSandbox(benchBox)
		p := store.NewProcess(mem.Faults{Before: func(context.Context, string) { time.Sleep(callOfStore) }})
		k := keepingIn(p, p)
		began := time.Now()
		if _, err := k.begin(t.Context(), "bench", core.StepCapture, dir); err != nil {
			t.Fatal(err)
		}
		a := &caller{keeping: k, process: p, token: k.job.Token}
		if err := a.capture(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		took, calls = time.Since(began), len(p.Calls())+a.calls
		root, _, err := k.head(t.Context())
		if err != nil || root.Counts.Files != int64(files) {
			t.Fatalf("%d files stored, %v", root.Counts.Files, err)
		}
	})
	return took, calls
}

// openCodecs has the format make what it keeps for the life of a process: made in a
// bubble, it could not be used outside.
func openCodecs(t *testing.T) {
	t.Helper()
	var layer bytes.Buffer
	w := manifest.NewLayerWriter(&layer)
	err := w.Add(manifest.Entry{Path: "a", Kind: manifest.Dir})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range manifest.ReadLayer(&layer) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// caller is an agent that has the function and the store beside it; going there and
// back takes its time all the same.
type caller struct {
	*keeping
	process *mem.Process
	token   string
	mu      sync.Mutex
	calls   int
}

func (a *caller) call() {
	time.Sleep(callOfStore)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls++
}

func (a *caller) capture(ctx context.Context, dir string) error {
	a.call()
	if _, err := a.Parent(ctx, a.token); err != nil {
		return err
	}
	made, err := workspace.Capture(ctx, workspace.CaptureOptions{Root: dir, Store: a, ID: "bench", Policy: everything})
	if err != nil {
		return err
	}
	root, err := manifest.EncodeRoot(made.Root)
	if err != nil {
		return err
	}
	a.call()
	_, err = a.CommitRoot(ctx, a.token, root)
	return err
}

// Put is what the agent's client does for a pack: a grant, and a request under it.
func (a *caller) Put(ctx context.Context, o workspace.Object) (manifest.PackRef, error) {
	a.call()
	grants, _, err := a.Grant(ctx, a.token, []core.PackRef{{SHA256: o.SHA256.String(), Size: o.Size}})
	if err != nil {
		return manifest.PackRef{}, err
	}
	data := make([]byte, o.Size)
	if _, err := o.Body.ReadAt(data, 0); err != nil && err != io.EOF {
		return manifest.PackRef{}, err
	}
	if err := a.process.Upload(ctx, grants[0].Grant, data); err != nil {
		return manifest.PackRef{}, err
	}
	return manifest.PackRef{Fence: grants[0].Pack.Fence, SHA256: o.SHA256, Size: o.Size}, nil
}

// Get is not asked for: a first capture has no parent.
func (*caller) Get(context.Context, manifest.PackRef, int64, []byte) error {
	return workspace.ErrNotStored
}

// Renew says that the work goes on.
func (a *caller) Renew(ctx context.Context, p workspace.Progress) error {
	a.call()
	_, err := a.keeping.Renew(ctx, a.token, p.Files, p.Bytes)
	return err
}

func originalCapture(t *testing.T, files int) (took time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		o := &original{call: callOfStore}
		began := time.Now()
		o.capture(files)
		took = time.Since(began)
	})
	return took
}

// agentSizes are what an image takes on for the agent.
func agentSizes(t *testing.T, _ int) []figure {
	var figures []figure
	for _, arch := range []string{"arm64", "amd64"} {
		info, err := os.Stat(agentFor(t, arch))
		if err != nil {
			t.Fatal(err)
		}
		figures = append(figures, figure{Name: "binary of the agent, " + arch, Value: float64(info.Size()) / megabyte, Unit: "MB", Goal: "<= 12"})
	}
	return figures
}
