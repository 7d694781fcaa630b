package sim

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// keep is what the world knows of a keeper of checkpoints beside its records.
type keep struct {
	agents []*worker
	sent   map[core.ThreadKey]map[string]core.PackRef // what agents remember to have stored, by content
	forks  []core.ForkRequest
	stored map[core.CheckpointID]map[core.ThreadKey]bool // checkpoints that were published, ever
	failed map[core.RunID]bool                           // whose capture has failed, ever
	waits  map[core.ThreadKey]wait
}

// wait is a host that met somebody else's lease.
type wait struct {
	owner string
	until core.Millis
}

// worker is an agent that captures or restores in a task.
type worker struct {
	thread core.ThreadKey
	run    core.RunID
	fence  int64
	task   string
	job    core.AgentJob
	alive  bool
	busy   bool // one of its requests is under way
}

// objectAge is how old an object must be here before it is collected, instead of
// [core.CollectAge].
const objectAge = 4 * time.Minute

func (w *world) keeper(a *actor) *core.Keeper {
	p := w.ports(a)
	return &core.Keeper{
		Threads: p, Objects: aged{p}, Blobs: p, Manifests: roots{}, Sandboxes: p, Controls: p, Runs: p, History: p, Agents: jobs{w.tasks(a)}, URL: w, Queue: p, Width: 1,
	}
}

// AgentURL is where agents would find the keeper: they call it directly here.
func (w *world) AgentURL(context.Context) (url, host string, err error) {
	return "http://127.0.0.1:1", "keeper.local", nil
}

// aged shows objects as old as they would be where nothing was cut short.
type aged struct{ ports }

func (p aged) Objects(ctx context.Context, prefix string) ([]core.ObjectInfo, error) {
	out, err := p.ports.Objects(ctx, prefix)
	for i := range out {
		out[i].ModifiedAt = out[i].ModifiedAt.Add(objectAge - core.CollectAge)
	}
	return out, err
}

// rootText is a root as the agents here write it.
type rootText struct {
	ID, Parent    core.CheckpointID
	CreatedAt     core.Millis
	Layers, Packs []core.PackRef
	Content       string // of the workspace
}

// roots reads roots; what it refuses is [core.InvalidError], as everywhere.
type roots struct{}

var _ core.ManifestReader = roots{}

func decodeRoot(data []byte) (rootText, error) {
	var r rootText
	if err := json.Unmarshal(data, &r); err != nil || len(r.Layers) == 0 {
		return rootText{}, &core.InvalidError{Code: "invalid-entry", Detail: "root: want one with layers"}
	}
	return r, nil
}

func encodeRoot(r rootText) []byte {
	data, err := json.Marshal(r)
	if err != nil {
		panic(err) // it is plain text and numbers
	}
	return data
}

// Facts reads a root.
func (roots) Facts(root []byte) (core.ManifestFacts, error) {
	r, err := decodeRoot(root)
	return core.ManifestFacts{ID: r.ID, Parent: r.Parent, Layers: r.Layers, Packs: r.Packs, Files: 1, Bytes: int64(len(r.Content))}, err
}

// Seal writes a root anew.
func (roots) Seal(root []byte, s core.ManifestSeal) ([]byte, error) {
	r, err := decodeRoot(root)
	if err != nil {
		return nil, err
	}
	r.ID, r.Parent, r.CreatedAt = s.ID, s.Parent, s.CreatedAt
	for _, list := range [][]core.PackRef{r.Layers, r.Packs} {
		for i := range list {
			list[i].Owner = s.Owner(list[i])
		}
	}
	return encodeRoot(r), nil
}

// Check reads all layers of a root.
func (roots) Check(ctx context.Context, root []byte, open core.OpenPack) error {
	r, err := decodeRoot(root)
	if err != nil {
		return err
	}
	for _, layer := range r.Layers {
		body, err := open(ctx, layer)
		if errors.Is(err, core.ErrNotFound) {
			return &core.InvalidError{Code: "invalid-entry", Detail: "layer: want it stored"}
		}
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, body)
		_ = body.Close()
	}
	return nil
}

// Diff tells whether two workspaces differ.
func (roots) Diff(_ context.Context, a, b core.TreeSource, _ int) ([]core.TreeChange, bool, error) {
	from, err := decodeRoot(a.Root)
	to, other := decodeRoot(b.Root)
	if err = cmp.Or(err, other); err != nil || from.Content == to.Content {
		return nil, false, err
	}
	return []core.TreeChange{{Path: "workspace", Kind: "changed"}}, false, nil
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Capture is the checkpoint function as reclaim reaches it.
func (t tasks) Capture(ctx context.Context, q core.CaptureRequest) (core.Captured, error) {
	if !t.w.config.Keeper {
		return t.View.Capture(ctx, q)
	}
	report, err := t.w.keeper(t.a).Save(ctx, core.SaveRequest{
		ThreadKey: core.ThreadKey{Tenant: q.Run.Tenant, Thread: q.Run.Thread}, ID: core.CheckpointOf(q.Run.RunKey.Run), Run: q.Run.RunKey.Run,
		Owner: q.Owner, Key: q.Sandbox.Key, Instance: q.Sandbox.Instance, Job: &q.Job, Again: q.Again,
	})
	switch e, refused := errors.AsType[*core.RefusedError](err); {
	case refused && !slices.Contains([]string{"writer-conflict", "writer-lost", "step-busy", "step"}, e.Why):
		return core.Captured{State: core.CaptureFailed, Why: e.Why}, nil
	case err != nil:
		return core.Captured{}, err
	case report.State == core.StepDone:
		return core.Captured{State: core.CaptureDone, ID: report.Checkpoint}, nil
	case report.State == core.StepFailed:
		return core.Captured{State: core.CaptureFailed, Why: report.Why}, nil
	}
	return core.Captured{State: core.Capturing, Why: report.Why}, nil
}

// startJob begins an agent of the keeper in a task, once for each step.
func (t tasks) startJob(ctx context.Context, target core.ExecTarget, job core.AgentJob) (core.AgentStarted, error) {
	call := "start " + string(job.Kind)
	t.a.at(ctx, call)
	if err := t.silent(ctx, call, target); err != nil {
		return "", err
	}
	for _, wrong := range t.w.jobWrongs(job, target.TaskARN) {
		t.w.accuse("%s begins %s of %s: %s", t.a.name, job.Kind, job.ID, wrong)
	}
	began := core.AgentBegan
	err := t.a.p.Call(ctx, call, func() error {
		if !t.w.lives(target.TaskARN) {
			return &core.ExecError{Target: target, Healing: core.Retry, Reason: "target-not-connected"}
		}
		for _, other := range t.w.keep.agents {
			if other.alive && other.task == target.TaskARN && other.job.ID == job.ID && other.job.Kind == job.Kind {
				began = core.AgentRuns
				return nil
			}
		}
		t.w.keep.agents = append(t.w.keep.agents, t.w.workerOf(target.TaskARN, job))
		return nil
	})
	if err != nil {
		return "", err
	}
	return began, nil
}

// jobs is the cluster as the keeper reaches it.
type jobs struct{ tasks }

// Start begins an agent.
func (j jobs) Start(ctx context.Context, target core.ExecTarget, job core.AgentJob) (core.AgentStarted, error) {
	return j.startJob(ctx, target, job)
}

// workerOf is the agent of a job, with what its token says.
func (w *world) workerOf(task string, job core.AgentJob) *worker {
	parts := strings.Split(job.Token, ".")
	sum := digestOf([]byte(parts[3]))
	for _, th := range w.store.State().Threads {
		if th.Step != nil && th.Step.Token == sum {
			return &worker{thread: th.ThreadKey, run: th.Step.Run, fence: th.Step.Fence, task: task, job: job, alive: true}
		}
	}
	return &worker{task: task, job: job, alive: true} // its step is over already
}

// workers are the agents at work for a thread, newest first.
func (w *world) workers(key core.ThreadKey) []*worker {
	var out []*worker
	for _, j := range slices.Backward(w.keep.agents) {
		if j.alive && !j.busy && w.lives(j.task) && j.thread.Tenant == key.Tenant && w.family(j.thread.Thread) == w.family(key.Thread) {
			out = append(out, j)
		}
	}
	return out
}

// family is the thread from which others of a family are forked.
func (w *world) family(id core.ThreadID) core.ThreadID {
	base, _, _ := strings.Cut(string(id), "-b")
	return core.ThreadID(base)
}

// final reports whether an agent that is told so has nothing more to say.
func final(err error) bool {
	_, invalid := errors.AsType[*core.InvalidError](err)
	return invalid || core.Refused(err)
}

// What an agent does that gets its turn.
const (
	agentWorks = iota
	agentNotes
	agentFails
	agentRemembers // it names what it stored before without asking whether it is there
	agentCut       // it dies before it hands anything in
	agentLies      // it names what it did not store
)

// work lets an agent do its work, or a part of it.
func (w *world) work(ctx context.Context, a *actor, j *worker, how int) {
	k := w.keeper(a)
	data, err := k.Parent(ctx, j.job.Token)
	switch {
	case err != nil:
		j.alive = !final(err)
		return
	case how == agentNotes:
		_, err := k.Renew(ctx, j.job.Token, 1, 1)
		j.alive = !final(err)
		return
	case how == agentFails:
		err := k.Fail(ctx, j.job.Token, "too-large", "for this episode")
		j.alive = err != nil && !final(err)
		return
	}
	if j.job.Kind == core.StepCapture {
		data, err = w.capture(ctx, a, j, data, how == agentRemembers)
	} else {
		err = w.readBack(ctx, a, j, data)
		data = nil
	}
	if err != nil || how == agentCut {
		j.alive = how != agentCut && !final(err)
		return
	}
	if how == agentLies && data != nil {
		data = lie(data)
	}
	w.handIn(ctx, a, j, data)
}

// lie names a pack in a root that nobody has stored.
func lie(root []byte) []byte {
	r, err := decodeRoot(root)
	if err != nil {
		return root
	}
	last := r.Layers[len(r.Layers)-1]
	r.Packs = append(r.Packs, core.PackRef{Fence: last.Fence, SHA256: digestOf([]byte("nothing")), Size: 7})
	return encodeRoot(r)
}

// handIn says what has been done; an agent that gets no answer says it again.
func (w *world) handIn(ctx context.Context, a *actor, j *worker, root []byte) {
	for range 3 {
		id, err := w.keeper(a).CommitRoot(ctx, j.job.Token, root)
		switch {
		case err == nil:
			j.alive = false
			w.met(string(j.job.Kind) + " ended")
			if j.job.Kind == core.StepCapture && !w.isStored(j.thread, id) {
				w.accuse("%s is told that %s is stored in thread %s, and it is not (I5)", a.name, id, j.thread)
			}
			return
		case final(err):
			w.met("hand-in refused: " + reasonOf(err))
			j.alive = false
			return
		case a.p.Stopped():
			return
		}
	}
}

func reasonOf(err error) string {
	if e, ok := errors.AsType[*core.RefusedError](err); ok {
		return e.Why
	}
	if e, ok := errors.AsType[*core.InvalidError](err); ok {
		return e.Code
	}
	return "unknown"
}

// capture stores what the parent lacks, and makes the root.
func (w *world) capture(ctx context.Context, a *actor, j *worker, parent []byte, remembers bool) ([]byte, error) {
	r := rootText{ID: j.job.ID, Content: w.fleet.Workspace(j.task)}
	if parent != nil {
		before, err := decodeRoot(parent)
		if err != nil {
			return nil, err
		}
		r.Parent, r.Layers, r.Packs = before.ID, newest(before.Layers), newest(before.Packs)
	}
	pack, layer := []byte("pack of "+r.Content), []byte("layer of "+r.Content+" after "+string(r.Parent))
	for _, one := range []struct {
		data []byte
		list *[]core.PackRef
	}{{pack, &r.Packs}, {layer, &r.Layers}} {
		sum := digestOf(one.data)
		if slices.ContainsFunc(*one.list, func(p core.PackRef) bool { return p.SHA256 == sum }) {
			w.met("a pack of the parent is used again")
			continue
		}
		ref, err := w.put(ctx, a, j, one.data, remembers)
		if err != nil {
			return nil, err
		}
		*one.list = append(*one.list, ref)
	}
	return encodeRoot(r), nil
}

// newest are the last of a list; the others nobody needs any more.
func newest(of []core.PackRef) []core.PackRef { return slices.Clone(of[max(0, len(of)-2):]) }

// put stores a pack, unless it is there.
func (w *world) put(ctx context.Context, a *actor, j *worker, data []byte, remembers bool) (core.PackRef, error) {
	sent := w.keep.sent[j.thread]
	if sent == nil {
		sent = map[string]core.PackRef{}
		w.keep.sent[j.thread] = sent
	}
	p := core.PackRef{SHA256: digestOf(data), Size: int64(len(data))}
	if old, ok := sent[p.SHA256]; ok && remembers {
		w.met("a pack is named from memory")
		return old, nil
	}
	grants, _, err := w.keeper(a).Grant(ctx, j.job.Token, []core.PackRef{p})
	if err != nil {
		return core.PackRef{}, err
	}
	if grants[0].Present {
		w.met("a pack of a cut capture is used again")
	} else if err := a.p.Upload(ctx, grants[0].Grant, data); err != nil {
		return core.PackRef{}, err
	}
	sent[p.SHA256] = grants[0].Pack
	return grants[0].Pack, nil
}

// readBack reads all that a root names, as a restore does.
func (w *world) readBack(ctx context.Context, a *actor, j *worker, root []byte) error {
	r, err := decodeRoot(root)
	if err != nil {
		return err
	}
	k := w.keeper(a)
	packs := slices.Concat(r.Layers, r.Packs)
	grants, err := k.Fetch(ctx, j.job.Token, packs)
	if err != nil {
		return err
	}
	for i, g := range grants {
		data, err := a.p.Download(ctx, g)
		if errors.Is(err, core.ErrNotFound) {
			if _, late := k.Renew(ctx, j.job.Token, 1, 1); late == nil {
				w.accuse("%s restores %s, and pack %d-%s is not there (I5)", a.name, r.ID, packs[i].Fence, packs[i].SHA256)
			}
		}
		if err != nil {
			return err
		}
		if !bytes.Equal([]byte(digestOf(data)), []byte(packs[i].SHA256)) {
			w.accuse("%s restores %s, and pack %d-%s has other bytes (I12)", a.name, r.ID, packs[i].Fence, packs[i].SHA256)
		}
	}
	return nil
}
