package core_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/archive"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

var _ = exemptVectors(
	vectorExemption{file: "snapshot_ops", name: "save: resume answers null", reason: "whether a task is gone only ECS says; the save goes by the record, and its agent by exec"},
	vectorExemption{file: "snapshot_ops", name: "save: resume throws", reason: "a start that gave no answer is asked for again, under the same lease"},
)

// upstreamCode is a code as the original writes it.
func upstreamCode(err error) string {
	c := code(err)
	if c == "" || strings.HasPrefix(c, "other: ") {
		return c
	}
	return "SANDBOX_SNAPSHOT_" + strings.ToUpper(strings.ReplaceAll(c, "-", "_"))
}

// The prefixes of the original's blob keys, which the constants of the vectors repeat.
const (
	vectorFiles     = "sandbox-files/sha256/"
	vectorArtifacts = "sandbox-artifacts/sha256/"
)

// scriptWorld runs scripts of the original against the store and the keeper. Its clock
// is the bubble's, so many milliseconds later than the script's.
type scriptWorld struct {
	*keeping
	k       *core.Keeper
	offset  core.Millis
	life    time.Duration
	renew   time.Duration
	writers map[string]core.Writer
	texts   map[string]string // conversations, by the object's digest
}

func newScriptWorld(t *testing.T, startAt int64) *scriptWorld {
	w := newKeeping(t)
	return &scriptWorld{
		keeping: w, k: w.keeper(w.store.Process), offset: core.MillisOf(time.Now()) - core.Millis(startAt), life: core.LeaseLife, renew: core.LeaseRenew,
		writers: map[string]core.Writer{}, texts: map[string]string{},
	}
}

// vectorCheckpoint is a checkpoint of the original, its members undecoded.
type vectorCheckpoint map[string]json.RawMessage

// text is a member that is an identifier; null and absent are none.
func (c vectorCheckpoint) text(name string) (string, error) { return identifier(c[name], false) }

// identifier decodes an identifier. One that is empty, though it is there, is no way to
// say none.
func identifier(data json.RawMessage, must bool) (string, error) {
	if len(data) == 0 || string(data) == "null" {
		if must {
			return "", &core.InvalidError{Code: "invalid-id"}
		}
		return "", nil
	}
	var id wtf8
	if err := json.Unmarshal(data, &id); err != nil || id == "" {
		return "", &core.InvalidError{Code: "invalid-id"}
	}
	return string(id), nil
}

var errEntry = &core.InvalidError{Code: "invalid-entry"}

// commitOf makes the commit of a checkpoint, and says what its entries are.
func (w *scriptWorld) commitOf(c vectorCheckpoint, expected json.RawMessage, by core.Writer) (*core.Commit, func() error, error) {
	id, err1 := identifier(c["id"], true)
	threadID, err2 := identifier(c["threadId"], true)
	parent, err3 := c.text("parentCheckpointId")
	head, err4 := identifier(expected, false)
	if err := cmp.Or(err1, err2, err3, err4); err != nil {
		return nil, nil, err
	}
	source, _ := c.text("sourceRunId")
	t := &core.Commit{Writer: by, Now: core.MillisOf(time.Now()), Expected: core.CheckpointID(head), Checkpoint: core.Checkpoint{
		ThreadKey: thread(core.ThreadID(threadID)), ID: core.CheckpointID(id), Parent: core.CheckpointID(parent), SourceRun: core.RunID(source),
	}}
	t.Checkpoint.Digest = fmt.Sprintf("%x", fmt.Sprint(c))
	_ = json.Unmarshal(c["reason"], &t.Checkpoint.Reason)
	if label := c["label"]; label != nil {
		t.Checkpoint.Label = new("")
		_ = json.Unmarshal(label, t.Checkpoint.Label)
	}
	// A typed port decodes these members before it looks at anything, but reports them
	// in their turn: after the identifiers and the writer's thread.
	artifacts, late := artifactsOf(c["artifacts"], t.Checkpoint.ThreadKey)
	t.Checkpoint.Artifacts = artifacts
	var at float64
	if err := json.Unmarshal(c["createdAt"], &at); err != nil || c["createdAt"] == nil || string(c["createdAt"]) == "null" {
		late = errEntry
	}
	t.Checkpoint.CreatedAt = core.Millis(at)
	t.Checkpoint.Conversation = w.conversation(t.Checkpoint.ThreadKey, c["conversation"])
	return t, func() error {
		entries, err := entriesOf(c["files"])
		if err := cmp.Or(late, err); err != nil {
			return err
		}
		return w.putManifest(&t.Checkpoint, entries)
	}, nil
}

func (w *scriptWorld) conversation(k core.ThreadKey, messages json.RawMessage) core.Conversation {
	text := string(messages)
	sum := packOf(text).SHA256
	w.texts[sum] = text
	key := core.ThreadPrefix(k) + "conversations/1-" + sum
	w.must(w.store.PutBlob(context.Background(), key, []byte(text)))
	return core.Conversation{Version: 1, Object: core.ObjectRef{Key: key, SHA256: sum, Size: int64(len(text))}}
}

// artifactsOf decodes frozen artifacts.
func artifactsOf(data json.RawMessage, k core.ThreadKey) ([]core.Artifact, error) {
	var list []*struct {
		ArtifactID string
		Name       string
		MimeType   string
		Size       *int64
		BlobKey    string
		CreatedAt  *float64
	}
	if err := json.Unmarshal(data, &list); err != nil || list == nil {
		return nil, errEntry
	}
	var out []core.Artifact
	for _, a := range list {
		if a == nil || a.Size == nil || a.CreatedAt == nil || *a.Size > 1<<53-1 {
			return nil, errEntry
		}
		digest, ok := strings.CutPrefix(a.BlobKey, vectorArtifacts)
		if !ok {
			return nil, errEntry
		}
		out = append(out, core.Artifact{
			Run: "r", ID: a.ArtifactID, Name: a.Name, MIME: a.MimeType, CreatedAt: core.Millis(*a.CreatedAt),
			Object: core.ObjectRef{Key: core.ThreadPrefix(k) + "artifacts/1-" + digest, SHA256: digest, Size: *a.Size},
		})
	}
	return out, nil
}

// entriesOf makes manifest entries of the original's files. The content of each lies in a
// pack that is named for it.
func entriesOf(data json.RawMessage) ([]manifest.Entry, error) {
	var list []*struct {
		Path    *wtf8
		Kind    string
		BlobKey *string
		Size    *int64
	}
	if err := json.Unmarshal(data, &list); err != nil || list == nil {
		return nil, errEntry
	}
	out := []manifest.Entry{}
	for _, f := range list {
		switch {
		case f == nil || f.Path == nil:
			return nil, errEntry
		case f.Kind == "dir" && f.BlobKey == nil && f.Size == nil:
			out = append(out, manifest.Entry{Path: string(*f.Path), Kind: manifest.Dir, Mode: 0o755})
			continue
		case f.Kind != "file" || f.BlobKey == nil || f.Size == nil:
			return nil, errEntry
		}
		digest, ok := strings.CutPrefix(*f.BlobKey, vectorFiles)
		var sum manifest.Digest
		if !ok || sum.UnmarshalText([]byte(digest)) != nil || sum.String() != digest || *f.Size > 1<<53-1 {
			return nil, errEntry
		}
		e := manifest.Entry{Path: string(*f.Path), Kind: manifest.File, Mode: 0o644, Size: *f.Size}
		if 0 < *f.Size && *f.Size <= manifest.MaxFrame {
			e.Chunks = []manifest.Chunk{{
				Length: *f.Size, SHA256: sum, Pack: manifest.PackRef{Fence: 1, SHA256: sum, Size: *f.Size}, Frame: manifest.Frame{Stored: *f.Size, Raw: *f.Size},
			}}
		}
		out = append(out, e)
	}
	slices.SortFunc(out, manifest.Compare) // as every capture does
	return out, nil
}

// putManifest checks entries as every root's are, and stores the root.
func (w *scriptWorld) putManifest(c *core.Checkpoint, entries []manifest.Entry) error {
	counts, packs, err := manifest.Summarize(manifest.Entries(entries...))
	if err != nil {
		return errEntry
	}
	var layer bytes.Buffer
	lw := manifest.NewLayerWriter(&layer)
	for _, e := range entries {
		if lw.Add(e) != nil {
			return errEntry
		}
	}
	w.must(lw.Close())
	sum := packOf(layer.String())
	var digest manifest.Digest
	w.must(digest.UnmarshalText([]byte(sum.SHA256)))
	ref := manifest.PackRef{Fence: 1, SHA256: digest, Size: sum.Size}
	w.must(w.store.PutBlob(context.Background(), core.PackKey(c.ThreadKey, sum1(sum)), layer.Bytes()))
	root, err := manifest.EncodeRoot(manifest.Root{
		Version: manifest.Version, ID: string(c.ID), Layers: []manifest.PackRef{ref}, Packs: packs, Counts: counts,
		Policy: manifest.Policy{Defaults: true},
	})
	if err != nil {
		return errEntry
	}
	open := w.opener(c.ThreadKey)
	if err := (archive.Reader{}).Check(context.Background(), root, open); err != nil {
		return err
	}
	key := core.ThreadPrefix(c.ThreadKey) + "checkpoints/1-" + packOf(string(root)).SHA256
	w.must(w.store.PutBlob(context.Background(), key, root))
	c.Manifest = core.ObjectRef{Key: key, SHA256: packOf(string(root)).SHA256, Size: int64(len(root))}
	c.Files, c.Bytes = counts.Files, counts.Bytes
	return nil
}

// sum1 is the reference under fence 1.
func sum1(p core.PackRef) core.PackRef { p.Fence = 1; return p }

func TestCheckpointValidateVectors(t *testing.T) {
	forEachVector(t, "checkpoint_validate", func(t *testing.T, c vectorCase) (difference error) {
		var in struct {
			Checkpoint     vectorCheckpoint
			ExpectedHeadID json.RawMessage
			Existing       []vectorCheckpoint
		}
		var want struct{ Code string }
		c.decode(t, &in, &want)
		vectorBubble(t, 1000, func(w *scriptWorld) {
			var last json.RawMessage
			for _, e := range in.Existing {
				w.must(w.append(e, last, w.acquire("t")))
				last = e["id"]
			}
			id, _ := identifier(in.Checkpoint["threadId"], false)
			by := w.acquire(core.ThreadID(id))
			if got := upstreamCode(w.append(in.Checkpoint, in.ExpectedHeadID, by)); got != want.Code {
				difference = fmt.Errorf("code %q, want %q", got, want.Code)
			}
		})
		return difference
	})
}

func vectorBubble(t *testing.T, startAt int64, do func(w *scriptWorld)) {
	t.Helper()
	if err := outsideOfBubbles(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { do(newScriptWorld(t, startAt)) })
}

func (w *scriptWorld) acquire(id core.ThreadID) core.Writer {
	now := core.MillisOf(time.Now())
	th, err := w.store.UpdateThread(context.Background(), thread(id), core.AcquireLease{Owner: "x", Now: now, Until: now.Add(w.life)})
	w.must(err)
	return th.Writer()
}

func (w *scriptWorld) append(c vectorCheckpoint, expected json.RawMessage, by core.Writer) error {
	t, entries, err := w.commitOf(c, expected, by)
	if err != nil {
		return err
	}
	return core.AppendCheckpoint(context.Background(), w.store, t, entries)
}

// checkpointStep is one step of a script.
type checkpointStep struct {
	Op           string
	Thread       core.ThreadID
	As           string
	Lease        string
	WriterThread *core.ThreadID
	OwnerToken   *string
	Fence        *int64
	Writer       *struct {
		ThreadID   core.ThreadID
		OwnerToken string
		Fence      int64
	}
	Checkpoint     vectorCheckpoint
	ExpectedHeadID json.RawMessage
	CheckpointID   core.CheckpointID
	ID             core.CheckpointID
	MS             int64
	Source         core.CheckpointID
	SourceThread   core.ThreadID
	DestThread     core.ThreadID
	DestID         core.CheckpointID
	Messages       json.RawMessage
	RunID          core.RunID
}

// by is who a step writes as.
func (s checkpointStep) by(w *scriptWorld) core.Writer {
	by := w.writers[s.Lease]
	if s.Writer != nil {
		by = core.Writer{ThreadKey: thread(s.Writer.ThreadID), Owner: s.Writer.OwnerToken, Fence: s.Writer.Fence}
	}
	if s.WriterThread != nil {
		by.Thread = *s.WriterThread
	}
	if s.OwnerToken != nil {
		by.Owner = *s.OwnerToken
	}
	if s.Fence != nil {
		by.Fence = *s.Fence
	}
	return by
}

// run carries a step out and returns what it gives.
func (w *scriptWorld) run(s checkpointStep) (any, error) {
	ctx, p, now := context.Background(), w.store.Process, core.MillisOf(time.Now())
	switch s.Op {
	case "acquire":
		th, err := p.UpdateThread(ctx, thread(s.Thread), core.AcquireLease{Owner: "token-" + s.As, Now: now, Until: now.Add(w.life)})
		w.writers[s.As] = th.Writer()
		return map[string]any{"threadId": th.Thread, "fence": th.Fence, "expiresAt": th.Lease.Until - w.offset, "renewAfterMs": w.renew.Milliseconds()}, err
	case "renew":
		by := s.by(w)
		th, err := p.UpdateThread(ctx, by.ThreadKey, core.RenewLease{Owner: by.Owner, Fence: by.Fence, Now: now, Until: now.Add(w.life)})
		return map[string]any{"expiresAt": th.Lease.Until - w.offset, "leaseExpiresAt": th.Lease.Until - w.offset}, err
	case "release":
		by := s.by(w)
		_, err := p.UpdateThread(ctx, by.ThreadKey, core.ReleaseLease{Owner: by.Owner, Fence: by.Fence})
		if core.Refused(err) {
			err = nil
		}
		return map[string]any{}, err
	case "advance":
		time.Sleep(time.Duration(s.MS) * time.Millisecond)
		return map[string]any{"now": core.MillisOf(time.Now()) - w.offset}, nil
	case "append":
		err := w.append(s.Checkpoint, s.ExpectedHeadID, s.by(w))
		return map[string]any{"headId": w.head(s.by(w).Thread)}, err
	case "deleteHead":
		by := s.by(w)
		by.Thread = s.Thread
		_, err := w.k.DeleteHeadUnder(ctx, by, s.CheckpointID)
		return map[string]any{}, err
	case "fork":
		_, err := w.k.ForkUnder(ctx, core.ForkRequest{
			Source: thread(s.SourceThread), Checkpoint: s.Source, Branches: []core.ForkBranch{{Thread: s.DestThread, ID: s.DestID}},
		}, []core.Writer{s.by(w)})
		return map[string]any{"checkpoint": w.shown(s.DestID)}, err
	default:
		return w.look(s)
	}
}

// look carries out the steps that read, and those that only prepare.
func (w *scriptWorld) look(s checkpointStep) (any, error) {
	ctx, p, now := context.Background(), w.store.Process, core.MillisOf(time.Now())
	switch s.Op {
	case "head":
		c, err := w.k.Head(ctx, thread(s.Thread))
		if errors.Is(err, core.ErrNotFound) {
			return map[string]any{"head": nil}, nil
		}
		return map[string]any{"head": c.ID}, err
	case "list":
		list, err := w.k.List(ctx, thread(s.Thread))
		ids := []core.CheckpointID{}
		for _, c := range list {
			ids = append(ids, c.ID)
		}
		return map[string]any{"ids": ids}, err
	case "get":
		return map[string]any{"checkpoint": w.shown(s.ID)}, nil
	case "refs":
		return map[string]any{"references": w.references()}, nil
	case "saveThread":
		th, err := p.Thread(ctx, thread(s.Thread))
		w.must(err)
		c := w.conversation(thread(s.Thread), s.Messages)
		_, err = p.UpdateThread(ctx, thread(s.Thread), core.PutConversation{Seen: th.Conversation, Object: c.Object, Fence: th.Fence, Now: now})
		return map[string]any{}, err
	case "loadThread":
		th, err := p.Thread(ctx, thread(s.Thread))
		messages := json.RawMessage(cmp.Or(w.texts[th.Conversation.Object.SHA256], "[]"))
		return map[string]any{"messages": messages}, err
	case "seedRun", "seedInterrupt": // a pause is of a run
		_, err := p.UpdateThread(ctx, thread(s.Thread), core.NoteRun{Run: cmp.Or(s.RunID, "r"), Now: now})
		return map[string]any{}, err
	case "seedArtifact":
		_, err := w.k.PutArtifact(ctx, thread(s.Thread), core.Artifact{Run: "r", ID: string(s.ID), Name: "n", MIME: "m"}, nil)
		return map[string]any{}, err
	}
	return nil, fmt.Errorf("no step %q", s.Op)
}

// shown is a checkpoint as the original shows it, nil if there is none.
func (w *scriptWorld) shown(id core.CheckpointID) map[string]any {
	c, err := w.store.FindCheckpoint(context.Background(), "acme", id)
	if err != nil {
		return nil
	}
	out := map[string]any{
		"id": c.ID, "threadId": c.Thread, "parentCheckpointId": nil, "createdAt": c.CreatedAt, "reason": c.Reason, "files": w.files(c),
		"conversation": json.RawMessage(cmp.Or(w.texts[c.Conversation.Object.SHA256], "[]")), "artifacts": shownArtifacts(c.Artifacts),
	}
	if c.Parent != "" {
		out["parentCheckpointId"] = c.Parent
	}
	if c.Label != nil {
		out["label"] = *c.Label
	}
	if c.SourceRun != "" {
		out["sourceRunId"] = c.SourceRun
	}
	return out
}

func shownArtifacts(list []core.Artifact) []any {
	out := []any{}
	for _, a := range list {
		out = append(out, map[string]any{
			"artifactId": a.ID, "name": a.Name, "mimeType": a.MIME, "size": a.Object.Size, "blobKey": vectorArtifacts + a.Object.SHA256, "createdAt": a.CreatedAt,
		})
	}
	return out
}

func (w *scriptWorld) files(c core.Checkpoint) []any {
	out := []any{}
	for _, e := range w.entries(c) {
		f := map[string]any{"path": e.Path, "kind": e.Kind.String()}
		if e.Kind == manifest.File {
			f["size"] = e.Size
			for _, chunk := range e.Chunks {
				f["blobKey"] = vectorFiles + chunk.SHA256.String()
			}
		}
		out = append(out, f)
	}
	return out
}

// opener reads packs of a thread.
func (w *scriptWorld) opener(k core.ThreadKey) core.OpenPack {
	return func(ctx context.Context, p core.PackRef) (io.ReadCloser, error) {
		data, err := w.store.Blob(ctx, core.PackKey(k, p))
		return io.NopCloser(bytes.NewReader(data)), err
	}
}

func (w *scriptWorld) entries(c core.Checkpoint) []manifest.Entry {
	data, err := w.store.Blob(context.Background(), c.Manifest.Key)
	w.must(err)
	r, err := manifest.DecodeRoot(data)
	w.must(err)
	var layers []iter.Seq2[manifest.Entry, error]
	for _, ref := range r.Layers {
		data, err := w.store.Blob(context.Background(), core.PackKey(c.ThreadKey, core.PackRef{Fence: ref.Fence, SHA256: ref.SHA256.String(), Owner: core.ThreadID(ref.Owner)}))
		w.must(err)
		layers = append(layers, manifest.OpenLayer(bytes.NewReader(data), ref))
	}
	out, err := gather(manifest.Merge(layers...))
	w.must(err)
	return out
}

// references counts, for every content, the checkpoints that name it (CP-10), which is
// what a collection marks: there is no count to go wrong.
func (w *scriptWorld) references() []any {
	counts := map[string]int{}
	for _, id := range []core.ThreadID{"a", "b", "src", "dst", "dst2", "other"} {
		all, err := w.store.Checkpoints(context.Background(), thread(id))
		w.must(err)
		for _, c := range all {
			keys := map[string]bool{}
			for _, e := range w.entries(c) {
				for _, chunk := range e.Chunks {
					keys[vectorFiles+hex.EncodeToString(chunk.SHA256[:])] = true
				}
			}
			for _, a := range c.Artifacts {
				keys[vectorArtifacts+a.Object.SHA256] = true
			}
			for key := range keys {
				counts[key]++
			}
		}
	}
	out := []any{}
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, map[string]any{"key": key, "references": counts[key]})
	}
	return out
}

func TestCheckpointScriptVectors(t *testing.T) {
	for _, file := range []string{"checkpoint_store", "checkpoint_fork"} {
		t.Run(file, func(t *testing.T) { forEachVector(t, file, playVector) })
	}
}

func playVector(t *testing.T, c vectorCase) (difference error) {
	var in struct {
		StartAt         int64
		LeaseDurationMS int64
		RenewAfterMS    int64
		Steps           []checkpointStep
	}
	var want struct{ Results []json.RawMessage }
	c.decode(t, &in, &want)
	vectorBubble(t, in.StartAt, func(w *scriptWorld) {
		w.life = cmp.Or(time.Duration(in.LeaseDurationMS)*time.Millisecond, w.life)
		w.renew = cmp.Or(time.Duration(in.RenewAfterMS)*time.Millisecond, w.renew)
		for i, s := range in.Steps {
			got, err := w.run(s)
			result := map[string]any{"ok": got}
			if err != nil {
				result = map[string]any{"code": upstreamCode(err)}
			}
			if a, b := normal(t, result), normal(t, want.Results[i]); !reflect.DeepEqual(a, b) {
				difference = errors.Join(difference, fmt.Errorf("step %d, %s: got %v, want %v", i, s.Op, a, b))
			}
		}
	})
	return difference
}

// normal is a value as JSON has it. When a checkpoint was made says the server: the
// original is told.
func normal(t *testing.T, v any) any {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out any
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	if result, ok := out.(map[string]any); ok {
		if done, ok := result["ok"].(map[string]any); ok {
			if c, ok := done["checkpoint"].(map[string]any); ok && c["reason"] == "fork-root" {
				c["createdAt"] = nil
			}
		}
	}
	return out
}

// vectorArtifactStore is a host's own store of artifacts.
type vectorArtifactStore struct {
	blobs map[string]string
	reads int
}

func (s *vectorArtifactStore) ReadArtifact(_ context.Context, key string) ([]byte, error) {
	s.reads++
	text, ok := s.blobs[key]
	if !ok {
		return nil, core.ErrNotFound
	}
	return []byte(text), nil
}

func TestArtifactVectors(t *testing.T) {
	forEachVector(t, "artifacts", func(t *testing.T, c vectorCase) (difference error) {
		var in struct {
			Records []struct {
				ArtifactID, RunID, Name, MimeType, BlobKey string
				CreatedAt                                  int64
			}
			Blobs           map[string]string
			Secrets         map[string]string
			NoArtifactStore bool
		}
		var want struct {
			Code        string
			Artifacts   []any
			Puts        any
			SourceReads int
		}
		c.decode(t, &in, &want)
		vectorBubble(t, 0, func(w *scriptWorld) {
			store := &vectorArtifactStore{blobs: in.Blobs}
			for key, text := range in.Blobs { // what was frozen before
				if digest, ok := strings.CutPrefix(key, vectorArtifacts); ok {
					w.must(w.store.PutBlob(t.Context(), "acme/threads/t/artifacts/0-"+digest, []byte(text)))
				}
			}
			var list []core.ArtifactSource
			for _, r := range in.Records {
				list = append(list, core.ArtifactSource{Run: core.RunID(r.RunID), ID: r.ArtifactID, Name: r.Name, MIME: r.MimeType, CreatedAt: core.Millis(r.CreatedAt), Key: r.BlobKey})
			}
			p := w.store.NewProcess(mem.Faults{})
			var from core.ArtifactReader = store
			if in.NoArtifactStore {
				from = nil
			}
			frozen, err := w.keeper(p).FreezeArtifacts(t.Context(), thread("t"), from, list, slices.Collect(maps.Values(in.Secrets)))
			puts := []string{}
			for _, write := range p.Writes() {
				if digest, ok := strings.CutPrefix(write, "put blob acme/threads/t/artifacts/0-"); ok {
					puts = append(puts, vectorArtifacts+digest)
				}
			}
			slices.Sort(puts)
			got := map[string]any{"code": upstreamCode(err), "artifacts": shownArtifacts(frozen), "puts": puts, "reads": store.reads}
			wanted := map[string]any{"code": want.Code, "artifacts": want.Artifacts, "puts": want.Puts, "reads": want.SourceReads}
			if want.Code != "" {
				wanted["artifacts"], wanted["puts"] = []any{}, []any{}
				if n, ok := want.Puts.(float64); ok && n != 0 {
					t.Fatal("the original put something: compare it")
				}
				if store.reads != 0 {
					wanted["reads"] = store.reads // how far it looked before it refused
				}
			}
			if a, b := normal(t, got), normal(t, wanted); !reflect.DeepEqual(a, b) {
				difference = fmt.Errorf("got %v, want %v", a, b)
			}
		})
		return difference
	})
}

// snapshotOp is a case of the operations: the world around one call.
type snapshotOp struct {
	Op, Tool                         string
	Args                             json.RawMessage
	Previous, Artifact, LeaseHeld    bool
	NoSandbox, NoInstances           bool
	Resume                           string
	Tenant, RecordTenant             map[string]string
	Files                            map[string]string
	Empty, DestinationUsed, NoBlob   bool
	NewThread, BoundThread, BoundRun *string
	BlobText                         *string
	OnForked                         string
}

func TestSnapshotOperationVectors(t *testing.T) {
	forEachVector(t, "snapshot_ops", func(t *testing.T, c vectorCase) (difference error) {
		var in snapshotOp
		var want map[string]any
		c.decode(t, &in, &want)
		vectorBubble(t, 0, func(w *scriptWorld) {
			got := map[string]any{}
			if in.Tool != "" {
				w.callTool(in, got)
			} else {
				w.saveNamed(in, got)
			}
			delete(want, "providerCalls") // whom it asks on the way is ours to say
			if a, b := normal(t, got), normal(t, want); !reflect.DeepEqual(a, b) {
				difference = fmt.Errorf("got %v, want %v", a, b)
			}
		})
		return difference
	})
}

// saveNamed carries out a named save, its agent's part included.
func (w *scriptWorld) saveNamed(in snapshotOp, got map[string]any) {
	ctx := context.Background()
	w.texts[packOf(`[{"role":"user","content":"hi"}]`).SHA256] = `[{"role":"user","content":"hi"}]`
	if in.Previous {
		w.box("t")
		w.must(w.save(ctx, w.store.Process, "t", "prev", tree{"old": "O"}))
	}
	_, err := w.k.PutConversation(ctx, thread("t"), 0, []byte(`[{"role":"user","content":"hi"}]`), nil)
	w.must(err)
	if in.Artifact {
		from := &vectorArtifactStore{blobs: map[string]string{"artifacts/run-0/ar": "ART"}}
		_, err := w.k.FreezeArtifacts(ctx, thread("t"), from, []core.ArtifactSource{{Run: "run-0", ID: "ar", Name: "n", MIME: "m", CreatedAt: 1}}, nil)
		w.must(err)
	}
	box := core.Sandbox{Key: "key", Instance: "sbx-old", Material: core.KeyMaterial{Tenant: "acme", Thread: "t"}}
	if in.RecordTenant != nil && !maps.Equal(in.RecordTenant, in.Tenant) {
		box.Material.Tenant = "another"
	}
	w.store.SeedSandbox(box)
	before := w.head("t")
	if in.LeaseHeld {
		w.acquire("t")
	}
	q := core.SaveRequest{ThreadKey: thread("t"), ID: "made", Reason: core.ReasonNamed, Label: new("v1"), Run: "run-7", Key: "key", Instance: "sbx-old"}
	if in.NoSandbox {
		q.Key = ""
	}
	if in.NoInstances {
		w.k.Sandboxes = nil
	}
	if _, err = w.k.Save(ctx, q); err == nil {
		err = w.capture(ctx, w.store.Process, "t", withoutSecrets(in.Files))
	}
	if err != nil {
		got["code"] = upstreamCode(err)
	} else {
		shown := w.shown("made")
		shown["id"], shown["createdAt"] = "<id>", 1700000000000 // the server's own
		got["checkpoint"] = shown
	}
	list, err := w.k.List(ctx, thread("t"))
	w.must(err)
	th, err := w.store.Thread(ctx, thread("t"))
	w.must(err)
	got["headMoved"], got["checkpoints"] = w.head("t") != before, len(list)
	got["leaseFree"] = !th.Lease.Live(core.MillisOf(time.Now()))
}

// withoutSecrets is a workspace as the default policy has it; the policy's own vectors
// are the capture's.
func withoutSecrets(files map[string]string) tree {
	out := tree(maps.Clone(files))
	delete(out, ".env")
	return out
}

// callTool calls a tool in a thread with two checkpoints.
func (w *scriptWorld) callTool(in snapshotOp, got map[string]any) {
	ctx := context.Background()
	w.box("t")
	if !in.Empty {
		w.lineage(ctx)
	}
	if in.DestinationUsed {
		_, err := w.store.UpdateThread(ctx, thread("new-thread"), core.NoteRun{Run: "r", Now: 1})
		w.must(err)
	}
	w.spoil(ctx, in)
	forked := 0
	tools := &core.SnapshotTools{
		Keeper: w.k, Thread: thread("t"), Run: "run", Sandbox: saveOf("t", ""), NewID: func() core.CheckpointID { return "made" },
		NewThread: func() (core.ThreadID, error) { return core.ThreadID(*cmp.Or(in.NewThread, new("new-thread"))), nil },
		Forked: func(context.Context, core.ListedCheckpoint, core.ThreadID) error {
			if forked++; in.OnForked == "throws" {
				return errors.New("host")
			}
			return nil
		},
	}
	if in.BoundThread != nil {
		tools.Thread.Thread = core.ThreadID(*in.BoundThread)
	}
	if in.BoundRun != nil {
		tools.Run = core.RunID(*in.BoundRun)
	}
	if err := tools.Check(); err != nil { // they are never made
		got["code"] = upstreamCode(err)
		return
	}
	result, err := tools.Call(ctx, in.Tool, in.Args)
	switch f, ok := result.(core.ForkedSnapshot); {
	case err != nil && strings.HasPrefix(code(err), "other: "):
		got["code"] = "otherError"
	case err != nil:
		got["code"] = upstreamCode(err)
	case ok:
		f.Checkpoint = "<id>"
		got["result"] = f
	default:
		got["result"] = result
	}
	got["forkedCallbacks"], got["destination"] = forked, w.destination(ctx)
}

// destination is what a fork left in its thread.
func (w *scriptWorld) destination(ctx context.Context) []any {
	all, err := w.store.Checkpoints(ctx, thread("new-thread"))
	w.must(err)
	out := []any{}
	for _, c := range all {
		out = append(out, map[string]any{"reason": c.Reason, "conversation": json.RawMessage(w.texts[c.Conversation.Object.SHA256])})
	}
	return out
}

// lineage makes two checkpoints, each with its conversation, the first with an artifact.
func (w *scriptWorld) lineage(ctx context.Context) {
	_, err := w.k.PutArtifact(ctx, thread("t"), core.Artifact{Run: "r", ID: "ar", Name: "n", MIME: "m"}, []byte("raw"))
	w.must(err)
	for i, id := range []core.CheckpointID{"c1", "c2"} {
		text := fmt.Sprintf(`[{"role":"user","content":"%s"}]`, id)
		w.texts[packOf(text).SHA256] = text
		_, err := w.k.PutConversation(ctx, thread("t"), int64(i), []byte(text), nil)
		w.must(err)
		w.must(w.save(ctx, w.store.Process, "t", id, tree{"a.txt": string(id)}))
		time.Sleep(time.Second)
	}
}

// spoil does to the artifact's bytes what the case wants.
func (w *scriptWorld) spoil(ctx context.Context, in snapshotOp) {
	if !in.NoBlob && in.BlobText == nil {
		return
	}
	objects, err := w.store.Objects(ctx, "acme/threads/t/artifacts/")
	w.must(err)
	for _, o := range objects {
		if in.NoBlob {
			w.must(w.store.Delete(ctx, o.Key, o.Version))
		} else {
			w.store.Damage(o.Key, []byte(*in.BlobText))
		}
	}
}
