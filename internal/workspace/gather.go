package workspace

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// batchRecords is how many entries a batch has at most.
const batchRecords = 1024

// gatherer walks the trees of a capture side by side with the parent's entries and
// makes batches of what is new, changed or to be read.
type gatherer struct {
	*capture
	policy *Policy
	area   manifest.Area
	top    *dirHandle // of the area
	cursor *parentCursor
	batch  *batch
	used   int // of the batch's bytes
	first  map[inodeKey]string
	held   []heldRecord
}

type inodeKey struct{ dev, inode uint64 }

// heldRecord is a directory that is only stored if something below it is, or what
// comes after such a one.
type heldRecord struct {
	record *record
	maybe  bool
}

// gather is the first stage. It closes the channels to the next ones.
func (c *capture) gather(ctx context.Context) error {
	defer close(c.ordered)
	defer close(c.reads)
	g := &gatherer{capture: c, policy: c.policy, top: c.root, cursor: c.parent.cursor(ctx), batch: &batch{}, first: map[inodeKey]string{}}
	err := walkTree(c.root, c.policy, func(v *visit, dir *dirHandle) error { return g.see(ctx, v, dir) })
	if err == nil && c.git != nil {
		err = g.gatherGit(ctx)
	}
	if err == nil {
		err = g.deleteBefore(ctx, manifest.Entry{Area: manifest.GitState + 1})
	}
	if err == nil {
		err = g.release(ctx, "")
	}
	if err == nil {
		err = g.flush(ctx)
	}
	g.drop(g.batch)
	return err
}

func (g *gatherer) gatherGit(ctx context.Context) error {
	everything, err := NewPolicy(manifest.Policy{Exclude: []manifest.Rule{{}}})
	if err != nil {
		return err
	}
	g.policy, g.area, g.top, g.first = everything, manifest.GitState, g.git, map[inodeKey]string{}
	return walkTree(g.git, everything, func(v *visit, dir *dirHandle) error { return g.see(ctx, v, dir) })
}

// see decides about one entry.
func (g *gatherer) see(ctx context.Context, v *visit, dir *dirHandle) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if scarce(v.err) {
		return fmt.Errorf("read entry %.300q: %w", v.path, v.err)
	}
	g.files.Add(1)
	if err := manifest.CheckPath(v.path); err != nil {
		return g.unstorable(ctx, v, err)
	}
	old, err := g.parentOf(ctx, v.path)
	if err != nil {
		return err
	}
	if why := fault(v); why != "" && v.child == nil {
		return g.skipOrRefuse(ctx, v, old, why)
	}
	if g.options.Policy.Strict && g.area == manifest.Workspace {
		if err := strictly(v); err != nil {
			return err
		}
	}
	if v.kind == manifest.Dir {
		return g.seeDir(ctx, v, old)
	}
	if !g.policy.Includes(v.path, v.kind) {
		return g.remove(ctx, v.path, old)
	}
	if v.kind == manifest.Symlink {
		return g.seeLink(ctx, v, dir, old)
	}
	return g.seeFile(ctx, v, old)
}

// fault is why an entry cannot be stored, empty if it can.
func fault(v *visit) string {
	switch {
	case v.err != nil:
		return "unreadable: " + v.err.Error()
	case v.kind == 0:
		return v.info.special()
	}
	return ""
}

// strictly refuses what the original refuses.
func strictly(v *visit) error {
	if v.kind == manifest.Symlink {
		return refuse(CodeUnsupportedEntry, v.path, errors.New("symbolic link: want regular files and directories"))
	}
	if v.kind == manifest.File && v.info.mode&0o111 != 0 {
		return refuse(CodeUnsupportedEntry, v.path, errors.New("executable file: want files without execute permission"))
	}
	return nil
}

func (g *gatherer) unstorable(ctx context.Context, v *visit, cause error) error {
	if g.options.Policy.Strict {
		return refuse(CodeInvalidWorkspace, v.path, cause)
	}
	return g.add(ctx, &record{entry: manifest.Entry{Area: g.area, Path: v.path}, skip: "name cannot be stored: " + cause.Error()})
}

func (g *gatherer) skipOrRefuse(ctx context.Context, v *visit, old *manifest.Entry, why string) error {
	switch {
	case g.options.Policy.Strict && v.err != nil:
		return fmt.Errorf("read entry %q: %w", v.path, v.err)
	case g.options.Policy.Strict:
		return refuse(CodeUnsupportedEntry, v.path, errors.New(why+": want regular files and directories"))
	case v.kind != 0 && !g.policy.Includes(v.path, v.kind):
		return g.remove(ctx, v.path, old)
	}
	return g.add(ctx, &record{entry: manifest.Entry{Area: g.area, Path: v.path}, parent: old, skip: why})
}

// parentOf is the parent's entry at a path, nil for none. What the parent has
// before it is no longer there.
func (g *gatherer) parentOf(ctx context.Context, path string) (*manifest.Entry, error) {
	at := manifest.Entry{Area: g.area, Path: path}
	if err := g.deleteBefore(ctx, at); err != nil {
		return nil, err
	}
	next, err := g.cursor.peek()
	if err != nil || next == nil || manifest.Compare(*next, at) != 0 {
		return nil, err
	}
	g.cursor.skip()
	return next, nil
}

func (g *gatherer) deleteBefore(ctx context.Context, at manifest.Entry) error {
	for {
		next, err := g.cursor.peek()
		if err != nil || next == nil || manifest.Compare(*next, at) >= 0 {
			return err
		}
		g.cursor.skip()
		if err := g.add(ctx, &record{entry: manifest.Tombstone(next.Area, next.Path), parent: next}); err != nil {
			return err
		}
	}
}

// remove drops what the parent has at a path.
func (g *gatherer) remove(ctx context.Context, path string, old *manifest.Entry) error {
	if old == nil {
		return nil
	}
	return g.add(ctx, &record{entry: manifest.Tombstone(g.area, path), parent: old})
}

func (g *gatherer) entryOf(v *visit, kind manifest.Kind) manifest.Entry {
	e := manifest.Entry{Area: g.area, Path: v.path, Kind: kind}
	describe(&e, v.info)
	return e
}

// describe sets what an entry has of its inode. The git area is made anew for each
// capture: its times say nothing, and would make the same state another one.
func describe(e *manifest.Entry, info fileInfo) {
	e.Mode, e.UID, e.GID = info.mode&0o7777, info.uid, info.gid
	if e.Area == manifest.Workspace {
		e.MTime, e.CTime, e.Inode, e.Device = info.mtime, info.ctime, info.inode, info.dev
	}
}

func (g *gatherer) seeDir(ctx context.Context, v *visit, old *manifest.Entry) error {
	rec := &record{entry: g.entryOf(v, manifest.Dir), parent: old}
	if v.err == nil && v.child != nil && g.reader.xattrs {
		v.err = g.reader.attributes(rec, v.child.dir.fd)
	}
	included := g.policy.Includes(v.path, manifest.Dir)
	if err := g.put(ctx, heldRecord{rec, !included}); err != nil || v.err == nil {
		return err
	}
	if g.options.Policy.Strict {
		return fmt.Errorf("list directory %q: %w", v.path, v.err)
	}
	return g.put(ctx, heldRecord{record: &record{entry: manifest.Entry{Area: g.area, Path: v.path}, skip: "unreadable directory: " + v.err.Error()}})
}

func (g *gatherer) seeLink(ctx context.Context, v *visit, dir *dirHandle, old *manifest.Entry) error {
	target, err := readLinkAt(dir.fd, v.name)
	if err != nil {
		v.err = err
		return g.skipOrRefuse(ctx, v, old, openFault(err))
	}
	if g.reader.redactor.Redact([]byte(target)) { // with other text it would be another link
		return g.skipOrRefuse(ctx, v, old, "its text holds a secret")
	}
	rec := &record{entry: g.entryOf(v, manifest.Symlink), parent: old}
	rec.entry.Target = target
	return g.keep(ctx, rec)
}

func (g *gatherer) seeFile(ctx context.Context, v *visit, old *manifest.Entry) error {
	rec := &record{entry: g.entryOf(v, manifest.File), parent: old, root: g.top, info: v.info}
	if v.info.links > 1 {
		key := inodeKey{v.info.dev, v.info.inode}
		if target, known := g.first[key]; known {
			rec.root = nil
			rec.entry.Kind, rec.entry.Target = manifest.Hardlink, target
			return g.keep(ctx, rec)
		}
		g.first[key], rec.links = v.path, true
	}
	rec.entry.Size = v.info.size
	if err := g.limit(v); err != nil {
		return err
	}
	switch {
	case g.parent.looksUnchanged(old, v.info):
		rec.root, rec.entry = nil, *old
		return g.keep(ctx, rec)
	case v.info.size == 0 && !g.reader.xattrs:
		rec.root = nil
		return g.keep(ctx, rec)
	case v.info.size <= frameTarget && !sparse(v.info):
		return g.addSmall(ctx, rec)
	}
	return g.addLarge(ctx, rec)
}

// sparse tells whether a file may have holes worth keeping.
func sparse(info fileInfo) bool { return info.size >= minHole && info.blocks*512 < info.size }

// limit counts a file. Holes cost nothing.
func (g *gatherer) limit(v *visit) error {
	size := v.info.size
	if sparse(v.info) {
		size = v.info.blocks * 512
	}
	if total := g.bytes.Add(size); g.options.MaxBytes > 0 && total > g.options.MaxBytes {
		return refuse(CodeByteLimit, v.path, fmt.Errorf("the tree holds more than %d bytes", g.options.MaxBytes))
	}
	return nil
}

// keep passes a record on whose content is known. One that restores as the parent's
// entry does needs no place in the layer.
func (g *gatherer) keep(ctx context.Context, rec *record) error {
	if g.parent.rebase || rec.parent == nil || !sameForRestore(&rec.entry, rec.parent) || rec.entry.Kind == manifest.Hardlink {
		return g.add(ctx, rec)
	}
	if err := g.release(ctx, rec.entry.Path); err != nil {
		return err
	}
	return g.gathered.Add(*rec.parent)
}

// add puts a record into the batch, after the directories that it decides about.
func (g *gatherer) add(ctx context.Context, rec *record) error {
	return g.put(ctx, heldRecord{record: rec})
}

func (g *gatherer) put(ctx context.Context, next heldRecord) error {
	stored := next.record.skip == "" && !next.record.entry.Deleted && !next.maybe
	if err := g.settle(ctx, next.record.entry.Path, stored); err != nil {
		return err
	}
	if len(g.held) > 0 || next.maybe {
		g.held = append(g.held, next)
		return nil
	}
	return g.append(ctx, next.record)
}

// release lets the directories above a stored path go on.
func (g *gatherer) release(ctx context.Context, path string) error {
	return g.settle(ctx, path, true)
}

// settle decides about held directories: those above a path that is stored are
// stored, those that the walk has left are not.
func (g *gatherer) settle(ctx context.Context, path string, stored bool) error {
	for i := range g.held {
		h := &g.held[i]
		if !h.maybe {
			continue
		}
		above := manifest.Below(path, h.record.entry.Path) && h.record.entry.Area == g.area
		if above && !stored {
			continue
		}
		h.maybe = false
		if !above {
			h.record = withdrawn(h.record)
		}
	}
	for len(g.held) > 0 && !g.held[0].maybe {
		rec := g.held[0].record
		g.held = g.held[1:]
		if rec == nil {
			continue
		}
		if err := g.append(ctx, rec); err != nil {
			return err
		}
	}
	return nil
}

// withdrawn is what remains of a directory that is not stored.
func withdrawn(rec *record) *record {
	if rec.parent == nil {
		return nil
	}
	return &record{entry: manifest.Tombstone(rec.entry.Area, rec.entry.Path), parent: rec.parent}
}

func (g *gatherer) append(ctx context.Context, rec *record) error {
	if rec.entry.Kind == manifest.Dir && !g.parent.rebase && rec.parent != nil && sameForRestore(&rec.entry, rec.parent) {
		return g.gathered.Add(*rec.parent)
	}
	g.batch.records = append(g.batch.records, rec)
	if len(g.batch.records) >= batchRecords {
		return g.flush(ctx)
	}
	return nil
}

// addSmall gives a file its part of the batch's bytes. Where a batch ends depends on
// names and sizes around it, so that a change moves few of the ends after it.
func (g *gatherer) addSmall(ctx context.Context, rec *record) error {
	size := int(rec.info.size)
	if g.used+size > frameTarget {
		if err := g.flush(ctx); err != nil {
			return err
		}
	}
	if err := g.release(ctx, rec.entry.Path); err != nil {
		return err
	}
	if g.batch.slab == nil {
		slab, err := g.takeRaw(ctx)
		if err != nil {
			return err
		}
		g.batch.slab = slab
	}
	rec.from, rec.to = g.used, g.used+size
	g.used += size
	g.batch.records = append(g.batch.records, rec)
	if len(g.batch.records) >= batchRecords || g.used >= frameTarget/2 && endsBatch(rec.entry.Path) {
		return g.flush(ctx)
	}
	return nil
}

func endsBatch(path string) bool {
	const offset, prime = 2166136261, 16777619 // FNV-1a
	h := uint32(offset)
	for i := range len(path) {
		h = (h ^ uint32(path[i])) * prime
	}
	return h>>8%16 == 0
}

func (g *gatherer) takeRaw(ctx context.Context) ([]byte, error) {
	select {
	case slab := <-g.raws:
		return slab, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// addLarge sends a batch for each piece of a file.
func (g *gatherer) addLarge(ctx context.Context, rec *record) error {
	if err := g.release(ctx, rec.entry.Path); err != nil {
		return err
	}
	large, pieces, err := openLarge(rec, g.reader)
	if scarce(err) {
		return fmt.Errorf("open %.300q: %w", rec.entry.Path, err)
	}
	if err != nil {
		rec.root, rec.skip = nil, openFault(err)
		return g.append(ctx, rec)
	}
	if len(pieces) > manifest.MaxChunks {
		large.release()
		rec.root, rec.skip = nil, tooManyPieces
		return g.append(ctx, rec)
	}
	defer large.release()
	if err := g.flush(ctx); err != nil {
		return err
	}
	if len(pieces) == 0 {
		pieces = []extent{{}}
	}
	for i, piece := range pieces {
		b := &batch{records: []*record{rec}, large: large, piece: piece, last: i == len(pieces)-1}
		if b.slab, err = g.takeRaw(ctx); err != nil {
			return err
		}
		large.retain()
		if err := g.send(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

const tooManyPieces = "too large, or its holes are too many"

// openLarge opens a file and finds out what of it is data.
func openLarge(rec *record, r *reader) (*largeFile, []extent, error) {
	fd, err := rec.open()
	if err != nil {
		return nil, nil, err
	}
	large := &largeFile{fd: fd, info: rec.info}
	large.retain()
	if err := r.attributes(rec, fd); err != nil {
		large.release()
		return nil, nil, err
	}
	extents := []extent{{0, rec.info.size}}
	if sparse(rec.info) {
		if extents, err = dataExtents(fd, rec.info.size); err != nil {
			large.release()
			return nil, nil, err
		}
	}
	return large, cutIntoPieces(extents), nil
}

// flush sends the batch that grows.
func (g *gatherer) flush(ctx context.Context) error {
	b := g.batch
	g.batch, g.used = &batch{}, 0
	if len(b.records) == 0 {
		return nil
	}
	return g.send(ctx, b)
}

// send gives a batch to the sequencer and, if there is something to read, to a
// worker. A batch that is not sent is released.
func (g *gatherer) send(ctx context.Context, b *batch) error {
	b.ready = make(chan struct{})
	if b.slab == nil {
		close(b.ready)
	}
	select {
	case g.ordered <- b:
	case <-ctx.Done():
		g.drop(b)
		return context.Cause(ctx)
	}
	if b.slab != nil {
		g.reads <- b
	}
	return nil
}

// drop gives back what a batch holds that was not sent.
func (g *gatherer) drop(b *batch) {
	b.release()
	if b.slab != nil {
		g.raws <- b.slab
	}
}
