package core

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// MaxFiles is how much of a run's side journal is kept, bytes.
const MaxFiles = 8 << 20

// filesWithin bounds the drain of a side journal: it must not hold an end up.
const filesWithin = 20 * time.Second

// filesKey is where a side journal is kept. It is named by what it holds, so that an end
// that is gone on from stores nothing twice and is refused nothing.
func filesKey(r Run, sum string) string {
	return fmt.Sprintf("%s/logs/%s/files-%s", KeyToken(string(r.Tenant)), KeyToken(string(r.RunKey.Run)), sum)
}

// keepFiles stores the side journal of a run that ends, and notes where. What fails is
// logged and costs the side journal, never the end (MW-7). The run is given back as it is
// then.
func (s *Sweep) keepFiles(ctx context.Context, r Run) Run {
	if !r.Watched || r.Files != nil || r.TaskARN == "" || r.Start.AskedAt == 0 {
		return r
	}
	until, cancel := context.WithTimeout(ctx, filesWithin)
	defer cancel()
	kept, err := s.storeFiles(until, r)
	if err != nil {
		if s.Logger != nil {
			s.Logger.WarnContext(ctx, "keep files", "run", r.RunKey.String(), "err", err)
		}
		return r
	}
	return kept
}

// storeFiles tells the file hook of all of it before it notes that it is kept, for nobody
// comes back to what is: what a host has seen before is told once more.
func (s *Sweep) storeFiles(ctx context.Context, r Run) (Run, error) {
	data, err := s.readFiles(ctx, r)
	if err != nil || len(data) == 0 {
		return r, err
	}
	hookTeller{s.Functions, s.Logger}.files(ctx, r, 0, data)
	sum := sha256.Sum256(data)
	files := RunFiles{Bytes: int64(len(data)), SHA256: hex.EncodeToString(sum[:])}
	files.Key = filesKey(r, files.SHA256)
	if err := s.Log.Blobs.PutBlob(ctx, files.Key, data); err != nil {
		return r, err
	}
	return s.Runs.Update(ctx, r.RunKey, NoteFiles{Epoch: r.Epoch, Files: files})
}

// readFiles reads a side journal from the sandbox, as far as it is kept.
func (s *Sweep) readFiles(ctx context.Context, r Run) ([]byte, error) {
	var data []byte
	for len(data) < MaxFiles {
		if err := s.hold.take(ctx, execHoldFor); err != nil {
			return nil, busyError("files", err)
		}
		q := pageOf(r, int64(len(data)))
		q.Files = true
		page, err := s.Prober.Page(ctx, q)
		if err != nil {
			return nil, err
		}
		data = append(data, page.Data...)
		if page.End || len(page.Data) == 0 {
			break
		}
	}
	data = data[:min(len(data), MaxFiles)]
	return data[:bytes.LastIndexByte(data, '\n')+1], nil
}

// lookFiles reads what a run has changed: where it is kept, else, for the host that has
// the run, in its sandbox.
func (s *Session) lookFiles(ctx context.Context, q TailRequest, report TailReport, r Run, wait time.Duration) (TailReport, error) {
	switch {
	case r.Files != nil:
		return s.keptFiles(ctx, report, *r.Files)
	case !r.Watched || r.Status.Terminal():
		report.End = true
		return report, nil
	case q.Host == "" || !s.begun(r):
		return report, nil
	}
	// However fast an agent changes files, it has no more asked of ECS than one that writes.
	if _, ask := s.fileTails.ask(r, 0, s.holds(r) && s.follows.open(r.RunKey)); !ask {
		return report, nil
	}
	page, err := s.askFiles(ctx, PageRequest{
		RunKey: r.RunKey, Target: targetOf(r), Nonce: r.Nonce, From: q.From, Files: true, Beyond: q.From,
		WaitSeconds: int64(max(0, min(wait, MaxPageWait)) / time.Second),
	}, r)
	if err != nil {
		if ctx.Err() != nil {
			return TailReport{}, ctx.Err()
		}
		report.Waiting, _ = reasonFor(err)
		return report, nil
	}
	report.Data = lines(page.Data, false)
	report.Next = q.From + int64(len(report.Data))
	s.hooks().files(ctx, r, q.From, report.Data)
	return report, nil
}

// askFiles reads the side journal in its sandbox.
func (s *Session) askFiles(ctx context.Context, q PageRequest, r Run) (PageReply, error) {
	ctx, cancel := context.WithTimeout(ctx, execWithin+MaxPageWait)
	defer cancel()
	if s.holds(r) {
		return s.heldPage(ctx, q, r, q.From)
	}
	if s.follows.open(r.RunKey) { // of a run that was left since: this would be a second session
		s.giveWay(ctx, r.RunKey)()
	}
	hold := s.exec(r, ExecFiles)
	if err := hold.take(ctx, execWithin+MaxPageWait); err != nil {
		return PageReply{}, busyError("files", err)
	}
	defer hold.free(ctx)
	return s.Prober.Page(ctx, q)
}

// maxHookEvents is how much of a side journal one call of the file hook is told, bytes: an
// asynchronous call takes 256 KB.
const maxHookEvents = 200 << 10

// files has the file hook told of changes, whole lines of a side journal from a byte on: of
// those that the run's host sees, and at the run's end of all. Each is told at least once,
// and where it begins says which it is.
func (h hookTeller) files(ctx context.Context, r Run, from int64, data []byte) {
	if r.Hooks.File == "" || len(data) == 0 {
		return
	}
	detail := FileDetail{From: from}
	size := 0
	tell := func() {
		if err := ctx.Err(); err != nil {
			h.failed(ctx, HookFile, r.RunKey, err)
			return
		}
		if len(detail.Events) > 0 {
			h.tell(ctx, HookFile, r, detail)
		}
		detail, size = FileDetail{From: from}, 0
	}
	for line := range bytes.Lines(data) {
		if size+len(line) > maxHookEvents {
			tell()
		}
		from += int64(len(line))
		if size += len(line); json.Valid(line) && len(line) <= maxHookEvents {
			detail.Events = append(detail.Events, json.RawMessage(bytes.TrimSpace(line)))
		}
	}
	tell()
}

var errFilesRewritten = errors.New("the object is not what was stored")

// keptFiles reads the object that a side journal became.
func (s *Session) keptFiles(ctx context.Context, report TailReport, files RunFiles) (TailReport, error) {
	if report.From > files.Bytes {
		return TailReport{}, invalid("invalid-position", "from: want at most the end, %d, got %d", files.Bytes, report.From)
	}
	data, err := s.Log.Blobs.Blob(ctx, files.Key)
	if err == nil && int64(len(data)) != files.Bytes {
		err = errFilesRewritten
	}
	if err != nil {
		return TailReport{}, fmt.Errorf("read files %s: %w", files.Key, err)
	}
	rest := data[report.From:]
	report.Data = lines(rest, len(rest) <= tailBytes)
	report.Next = report.From + int64(len(report.Data))
	report.End = report.Next == files.Bytes
	return report, nil
}
