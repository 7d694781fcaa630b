package core_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/archive"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// tree is a workspace of small files: text by name.
type tree map[string]string

// keeping is an installation in memory whose sandboxes' agents are carried out by the
// test. Time is the bubble's.
type keeping struct {
	t     *testing.T
	store *mem.Store
	jobs  map[core.ThreadID]core.AgentJob // the newest of each thread
	mine  map[*mem.Process]core.AgentJob  // the newest that each process had started
	// sent are the packs that the agents remember to have stored, with their fences, by
	// thread: what a capture that was cut leaves to the next.
	sent map[core.ThreadID]map[string]core.PackRef
	// began is the answer of every start, by default that it began.
	began core.AgentStarted
	fault error // what every start fails with
	// stubborn agents name what they remember to have stored, without asking.
	stubborn bool
	// trees are what each checkpoint must give back.
	trees map[core.CheckpointID]tree
}

func newKeeping(t *testing.T) *keeping {
	return &keeping{
		t: t, store: mem.New(t), jobs: map[core.ThreadID]core.AgentJob{}, mine: map[*mem.Process]core.AgentJob{}, sent: map[core.ThreadID]map[string]core.PackRef{},
		began: core.AgentBegan, trees: map[core.CheckpointID]tree{},
	}
}

func (w *keeping) keeper(p *mem.Process) *core.Keeper {
	return &core.Keeper{
		Threads: p, Objects: p, Blobs: p, Manifests: archive.Reader{}, Sandboxes: p, Controls: p, Runs: p, History: p, Agents: starter{w, p}, URL: fixedURL{}, Queue: p,
	}
}

type fixedURL struct{}

func (fixedURL) AgentURL(context.Context) (url, host string, err error) {
	return "http://127.0.0.1:1", "keeper.local", nil
}

// starter notes the job that an agent would get.
type starter struct {
	w *keeping
	p *mem.Process
}

func (s starter) Start(ctx context.Context, _ core.ExecTarget, job core.AgentJob) (began core.AgentStarted, err error) {
	err = s.p.Call(ctx, "start agent", func() error {
		th, err := s.w.store.Thread(ctx, threadKeyOf(job.Token))
		s.w.jobs[th.Thread], s.w.mine[s.p], began = job, job, s.w.began
		return cmp.Or(err, s.w.fault)
	})
	return began, err
}

// threadKeyOf finds the thread of a token of the plain ids of these tests.
func threadKeyOf(token string) core.ThreadKey {
	parts := bytes.Split([]byte(token), []byte("."))
	return core.ThreadKey{Tenant: core.TenantID(parts[0]), Thread: core.ThreadID(parts[1])}
}

func thread(id core.ThreadID) core.ThreadKey { return core.ThreadKey{Tenant: "acme", Thread: id} }

// box puts a thread's sandbox.
func (w *keeping) box(id core.ThreadID) {
	w.store.SeedSandbox(core.Sandbox{
		Key: core.SandboxKey("key-" + id), Instance: core.InstanceID("i-" + id), TaskARN: "arn:task", Cluster: "c", Container: "agent",
		Material: core.KeyMaterial{Provider: "fargate", Definition: "d", Tenant: "acme", Thread: id},
	})
}

func saveOf(id core.ThreadID, checkpoint core.CheckpointID) core.SaveRequest {
	return core.SaveRequest{ThreadKey: thread(id), ID: checkpoint, Key: core.SandboxKey("key-" + id), Instance: core.InstanceID("i-" + id)}
}

// save makes a checkpoint of a tree, from the request to its end.
func (w *keeping) save(ctx context.Context, p *mem.Process, id core.ThreadID, checkpoint core.CheckpointID, files tree) error {
	delete(w.mine, p)
	report, err := w.keeper(p).Save(ctx, saveOf(id, checkpoint))
	if err != nil || report.State == core.StepDone {
		return err
	}
	if report.State == core.StepFailed {
		return errors.New("step failed: " + report.Why)
	}
	job, ok := w.mine[p]
	if !ok {
		return errUnderWay
	}
	return w.carryOut(ctx, p, job, files)
}

// errUnderWay says that another process's agent is at work.
var errUnderWay = errors.New("an agent is at work")

// capture is the agent's part of a save, of the newest job of the thread.
func (w *keeping) capture(ctx context.Context, p *mem.Process, id core.ThreadID, files tree) error {
	return w.carryOut(ctx, p, w.jobs[id], files)
}

func (w *keeping) carryOut(ctx context.Context, p *mem.Process, job core.AgentJob, files tree) error {
	w.trees[job.ID] = files
	root, err := w.packOf(ctx, p, job, files)
	if err != nil {
		return err
	}
	_, err = w.keeper(p).CommitRoot(ctx, job.Token, root)
	return err
}

// restore brings a checkpoint back, from the request to its end: its agent reads the root
// and all that it names, and changes nothing.
func (w *keeping) restore(ctx context.Context, p *mem.Process, q core.RestoreRequest) error {
	delete(w.mine, p)
	k := w.keeper(p)
	report, err := k.Restore(ctx, q)
	switch {
	case err != nil || report.State == core.StepDone:
		return err
	case report.State == core.StepFailed:
		return errors.New("step failed: " + report.Why)
	}
	job, ok := w.mine[p]
	if !ok {
		return errUnderWay
	}
	data, err := k.Parent(ctx, job.Token)
	if err != nil {
		return err
	}
	root, err := manifest.DecodeRoot(data)
	if err != nil {
		return err
	}
	var packs []core.PackRef
	for _, ref := range slices.Concat(root.Layers, root.Packs) {
		packs = append(packs, core.PackRef{Fence: ref.Fence, SHA256: ref.SHA256.String()})
	}
	grants, err := k.Fetch(ctx, job.Token, packs)
	if err != nil {
		return err
	}
	for i, g := range grants {
		data, err := p.Download(ctx, g)
		if err != nil {
			return err
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != packs[i].SHA256 {
			w.t.Errorf("pack %s has other bytes", packs[i].SHA256)
		}
	}
	_, err = k.CommitRoot(ctx, job.Token, nil)
	return err
}

// pack stores what the parent of the thread's newest job lacks and returns the root.
func (w *keeping) pack(ctx context.Context, p *mem.Process, id core.ThreadID, files tree) ([]byte, error) {
	return w.packOf(ctx, p, w.jobs[id], files)
}

func (w *keeping) packOf(ctx context.Context, p *mem.Process, job core.AgentJob, files tree) ([]byte, error) {
	k := w.keeper(p)
	var parent manifest.Root
	data, err := k.Parent(ctx, job.Token)
	if err != nil {
		return nil, err
	}
	if data != nil {
		if parent, err = manifest.DecodeRoot(data); err != nil {
			return nil, err
		}
	}
	a := &capturer{w: w, ctx: ctx, p: p, k: k, id: threadKeyOf(job.Token).Thread, token: job.Token}
	before, err := a.entries(parent)
	if err != nil {
		return nil, err
	}
	after, err := a.fill(before, files)
	if err != nil {
		return nil, err
	}
	return a.root(job, parent, before, after)
}

// capturer is one capture under way.
type capturer struct {
	w     *keeping
	ctx   context.Context
	p     *mem.Process
	k     *core.Keeper
	id    core.ThreadID
	token string
}

// entries reads the tree of a root through grants.
func (a *capturer) entries(r manifest.Root) ([]manifest.Entry, error) {
	var layers []iter.Seq2[manifest.Entry, error]
	for _, ref := range r.Layers {
		grants, err := a.k.Fetch(a.ctx, a.token, []core.PackRef{{Fence: ref.Fence, SHA256: ref.SHA256.String()}})
		if err != nil {
			return nil, err
		}
		data, err := a.p.Download(a.ctx, grants[0])
		if err != nil {
			return nil, err
		}
		layers = append(layers, manifest.OpenLayer(bytes.NewReader(data), ref))
	}
	return gather(manifest.Merge(layers...))
}

// entriesOf is entries of an encoded root.
func (a *capturer) entriesOf(root []byte) ([]manifest.Entry, error) {
	r, err := manifest.DecodeRoot(root)
	if err != nil {
		return nil, err
	}
	return a.entries(r)
}

func gather(seq iter.Seq2[manifest.Entry, error]) ([]manifest.Entry, error) {
	var out []manifest.Entry
	for e, err := range seq {
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

// fill makes the entries of files: content that the tree before has is not sent again.
func (a *capturer) fill(before []manifest.Entry, files tree) ([]manifest.Entry, error) {
	known := map[manifest.Digest]manifest.Chunk{}
	for _, e := range before {
		for _, c := range e.Chunks {
			known[c.SHA256] = c
		}
	}
	var pack []byte
	var fresh []*manifest.Chunk
	var out []manifest.Entry
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := files[name]
		e := manifest.Entry{Path: name, Kind: manifest.File, Mode: 0o644, Size: int64(len(text))}
		sum := manifest.Digest(sha256.Sum256([]byte(text)))
		c, ok := known[sum]
		if !ok {
			c = manifest.Chunk{Length: int64(len(text)), SHA256: sum, Frame: manifest.Frame{Offset: int64(len(pack)), Stored: int64(len(text)), Raw: int64(len(text))}}
			pack = append(pack, text...)
		}
		e.Chunks = []manifest.Chunk{c}
		out = append(out, e)
		if !ok {
			fresh = append(fresh, &out[len(out)-1].Chunks[0])
		}
	}
	slices.SortFunc(out, manifest.Compare)
	if len(pack) == 0 {
		return out, nil
	}
	ref, err := a.put(pack)
	for _, c := range fresh {
		c.Pack = ref
	}
	return out, err
}

// put stores a pack, unless it is there.
func (a *capturer) put(data []byte) (manifest.PackRef, error) {
	sum := sha256.Sum256(data)
	p := core.PackRef{SHA256: hex.EncodeToString(sum[:]), Size: int64(len(data))}
	sent := a.w.sent[a.id]
	if sent == nil {
		sent = map[string]core.PackRef{}
		a.w.sent[a.id] = sent
	}
	if old, ok := sent[p.SHA256]; ok && a.w.stubborn {
		return manifest.PackRef{Fence: old.Fence, SHA256: manifest.Digest(sum), Size: p.Size}, nil
	} else if ok {
		has, err := a.k.Has(a.ctx, a.token, []core.PackRef{old})
		if err != nil {
			return manifest.PackRef{}, err
		}
		if has[0] {
			return manifest.PackRef{Fence: old.Fence, SHA256: manifest.Digest(sum), Size: p.Size}, nil
		}
	}
	grants, _, err := a.k.Grant(a.ctx, a.token, []core.PackRef{p})
	if err != nil {
		return manifest.PackRef{}, err
	}
	if !grants[0].Present {
		if err := a.p.Upload(a.ctx, grants[0].Grant, data); err != nil {
			return manifest.PackRef{}, err
		}
	}
	sent[p.SHA256] = grants[0].Pack
	return manifest.PackRef{Fence: grants[0].Pack.Fence, SHA256: manifest.Digest(sum), Size: p.Size}, nil
}

// root stores the layer that makes after of before, and encodes the root.
func (a *capturer) root(job core.AgentJob, parent manifest.Root, before, after []manifest.Entry) ([]byte, error) {
	var layer bytes.Buffer
	lw := manifest.NewLayerWriter(&layer)
	for e, err := range manifest.Delta(manifest.Entries(before...), manifest.Entries(after...)) {
		if err == nil {
			err = lw.Add(e)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := lw.Close(); err != nil {
		return nil, err
	}
	r := manifest.Root{
		Version: manifest.Version, ID: string(job.ID), Parent: parent.ID, CreatedAt: time.Now().UnixMilli(), Layers: parent.Layers,
		Policy: manifest.Policy{Defaults: true},
	}
	if lw.Entries() > 0 || len(r.Layers) == 0 {
		ref, err := a.put(layer.Bytes())
		if err != nil {
			return nil, err
		}
		r.Layers = append(slices.Clone(r.Layers), ref)
	}
	var err error
	if r.Counts, r.Packs, err = manifest.Summarize(manifest.Entries(after...)); err != nil {
		return nil, err
	}
	for i := range r.Layers {
		r.Layers[i].Owner = "" // what an agent says of owners counts for nothing
	}
	return manifest.EncodeRoot(r)
}

// restored reads a checkpoint back from what is stored, as a restore would.
func (w *keeping) restored(c core.Checkpoint) (tree, error) {
	data, err := w.store.Blob(context.Background(), c.Manifest.Key)
	if err != nil {
		return nil, err
	}
	r, err := manifest.DecodeRoot(data)
	if err != nil {
		return nil, err
	}
	open := func(p manifest.PackRef) ([]byte, error) {
		data, err := w.store.Blob(context.Background(), core.PackKey(c.ThreadKey, core.PackRef{Fence: p.Fence, SHA256: p.SHA256.String(), Owner: core.ThreadID(p.Owner)}))
		if err == nil && sha256.Sum256(data) != [32]byte(p.SHA256) {
			err = fmt.Errorf("pack %s is damaged", p.Name())
		}
		return data, err
	}
	var layers []iter.Seq2[manifest.Entry, error]
	for _, ref := range r.Layers {
		data, err := open(ref)
		if err != nil {
			return nil, err
		}
		layers = append(layers, manifest.OpenLayer(bytes.NewReader(data), ref))
	}
	listed := map[manifest.PackRef]manifest.PackRef{}
	for _, p := range r.Packs {
		listed[p.ID()] = p
	}
	out := tree{}
	for e, err := range manifest.Merge(layers...) {
		if err != nil {
			return nil, err
		}
		for _, chunk := range e.Chunks {
			ref, ok := listed[chunk.Pack.ID()]
			if !ok {
				return nil, fmt.Errorf("%s: pack %s is not listed", e.Path, chunk.Pack.Name())
			}
			data, err := open(ref)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", e.Path, err)
			}
			out[e.Path] += string(data[chunk.Frame.Offset : chunk.Frame.Offset+chunk.Length])
		}
	}
	return out, nil
}

// check fails the test unless every checkpoint can be restored to what was saved, every
// head is one, and every object that a pin protects is there.
func (w *keeping) check(threads ...core.ThreadID) {
	w.t.Helper()
	ctx := context.Background()
	for _, id := range threads {
		th, err := w.store.Thread(ctx, thread(id))
		if err != nil {
			w.t.Fatal(err)
		}
		all, err := w.store.Checkpoints(ctx, thread(id))
		if err != nil {
			w.t.Fatal(err)
		}
		if th.Head != "" && !slices.ContainsFunc(all, func(c core.Checkpoint) bool { return c.ID == th.Head }) {
			w.t.Errorf("thread %s: head %s is no checkpoint", id, th.Head)
		}
		for _, c := range all {
			got, err := w.restored(c)
			if want := w.trees[cmp.Or(c.ForkOf, c.ID)]; err != nil || !maps.Equal(got, want) {
				w.t.Errorf("thread %s: checkpoint %s restores to %v, %v; want %v", id, c.ID, got, err, want)
			}
			for _, a := range c.Artifacts {
				w.there(a.Object, "artifact of "+string(c.ID))
			}
			if c.Conversation.Object.Key != "" {
				w.there(c.Conversation.Object, "conversation of "+string(c.ID))
			}
		}
		if th.Conversation.Object.Key != "" {
			w.there(th.Conversation.Object, "conversation of "+string(id))
		}
		w.checkPins(id)
	}
}

func (w *keeping) checkPins(id core.ThreadID) {
	w.t.Helper()
	pins, err := w.store.Pins(context.Background(), thread(id))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range pins {
		w.there(p.Manifest, "pin on "+string(id))
		data, err := w.store.Blob(context.Background(), p.Manifest.Key)
		if err != nil {
			continue
		}
		facts, err := archive.Reader{}.Facts(data)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, pack := range facts.Needed() {
			if _, err := w.store.Stat(context.Background(), core.PackKey(p.By, pack)); err != nil {
				w.t.Errorf("pin on %s by %s: %v", id, p.By, err)
			}
		}
	}
}

func (w *keeping) there(o core.ObjectRef, what string) {
	w.t.Helper()
	info, err := w.store.Stat(context.Background(), o.Key)
	if err != nil || info.SHA256 != o.SHA256 || info.Version != o.Version {
		w.t.Errorf("%s: %+v, %v; want %+v", what, info, err, o)
	}
}

// outsideOfBubbles makes what the format's compression keeps for good, which must not
// belong to a bubble.
var outsideOfBubbles = sync.OnceValue(func() error {
	var layer bytes.Buffer
	w := manifest.NewLayerWriter(&layer)
	if err := errors.Join(w.Add(manifest.Entry{Path: "x", Kind: manifest.Dir, Mode: 0o755}), w.Close()); err != nil {
		return err
	}
	if _, err := gather(manifest.ReadLayer(&layer)); err != nil {
		return err
	}
	data, err := manifest.EncodeRoot(manifest.Root{Version: manifest.Version, ID: "x", Policy: manifest.Policy{Defaults: true}})
	if err == nil {
		_, err = manifest.DecodeRoot(data)
	}
	return err
})

// must fails the test at once if err is not nil.
func (w *keeping) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// code is what a caller branches on.
func code(err error) string {
	if e, ok := errors.AsType[*core.InvalidError](err); ok {
		return e.Code
	}
	if e, ok := errors.AsType[*core.RefusedError](err); ok {
		return e.Why
	}
	if err != nil {
		return "other: " + err.Error()
	}
	return ""
}

// coded fails the test if err has not that code.
func (w *keeping) coded(err error, want string) {
	w.t.Helper()
	if got := code(err); got != want {
		w.t.Errorf("error = %v, want code %q", err, want)
	}
}
