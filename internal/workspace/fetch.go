package workspace

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// Limits of one round of fetching: its frames are sorted by where they are stored,
// so that each is fetched once and neighbours together.
const (
	roundFiles = 4096
	roundParts = 32 << 10 // of files: many may come out of one small frame
	roundBytes = 64 << 20
	rangeBytes = 4 << 20   // stored bytes of one request, at least one frame
	rangeGap   = 128 << 10 // unwanted bytes between two frames of one request
)

// target is a directory that entries are written to.
type target struct {
	dir  *dirHandle
	made []string // directories above the last entry that are made
	at   *beneath // of the goroutine that makes them
}

// stagedFile is a file on its way to the disk.
type stagedFile struct {
	entry   manifest.Entry
	target  *target
	created bool
	left    atomic.Int32 // parts that are not written
}

// part is what of a frame goes into a file.
type part struct {
	file *stagedFile
	manifest.Chunk
}

// wantedFrame is a frame with all that goes out of it in this round.
type wantedFrame struct {
	pack  int // by when it was first seen in this round
	ref   manifest.PackRef
	frame manifest.Frame
	parts []part
}

// request is a run of frames that one Get brings.
type request struct {
	ref    manifest.PackRef
	offset int64
	length int64
	frames []*wantedFrame
}

// fetcher writes the content of a checkpoint to the staged tree. Directories and
// files are made in the order of the layer; content comes in any order; links are
// made last, so that no path leads through one.
type fetcher struct {
	*restoration
	fail     context.CancelCauseFunc
	decoder  *zstd.Decoder
	requests chan *request
	owners   map[manifest.PackRef]manifest.PackRef // by ID
	fresh    [2]uint32                             // owner and group that a new file has

	frames map[frameKey]*wantedFrame
	packs  map[manifest.PackRef]int
	files  int
	parts  int
	size   int64
}

// fetch writes everything that the checkpoint holds beside the destination.
func (r *restoration) fetch(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	decoder, err := newDecoder()
	if err != nil {
		return err
	}
	defer decoder.Close()
	f := &fetcher{restoration: r, fail: cancel, decoder: decoder, requests: make(chan *request, workers()), owners: ownersOf(r.options.Manifest)}
	targets, err := f.targets()
	if err != nil {
		return err
	}
	if f.fresh, err = freshOwner(r.stage.tree.fd); err != nil {
		return err
	}
	defer targets.close()
	var group sync.WaitGroup
	for range workers() {
		group.Go(func() {
			if err := f.work(ctx); err != nil {
				cancel(err)
			}
		})
	}
	err = f.lay(ctx, targets)
	close(f.requests)
	group.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	return f.link(ctx, targets)
}

func newDecoder() (*zstd.Decoder, error) {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(workers()), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(manifest.MaxFrame), zstd.WithDecoderMaxWindow(manifest.MaxFrame))
	if err != nil {
		return nil, fmt.Errorf("open zstd decoder: %w", err)
	}
	return decoder, nil
}

// ownersOf finds the reference with its owner for one of a layer.
func ownersOf(root manifest.Root) map[manifest.PackRef]manifest.PackRef {
	owners := map[manifest.PackRef]manifest.PackRef{}
	for _, ref := range root.Packs {
		owners[ref.ID()] = ref
	}
	return owners
}

// targets are the directories of the areas, nil for one that is not restored.
type targets [manifest.GitState + 1]*target

func (t targets) close() {
	for _, one := range t {
		if one != nil {
			one.at.close()
			one.dir.release()
		}
	}
}

func newTarget(dir *dirHandle) *target { return &target{dir: dir, at: &beneath{root: dir}} }

func (f *fetcher) targets() (targets, error) {
	var all targets
	if f.options.GitDir != "" {
		dir, err := emptyDir(f.options.GitDir)
		if err != nil {
			return all, err
		}
		all[manifest.GitState] = newTarget(dir)
	}
	all[manifest.Workspace] = newTarget(f.stage.tree.retain())
	return all, nil
}

// emptyDir makes or takes a directory that holds nothing.
func emptyDir(path string) (*dirHandle, error) {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make directory for the git state: %w", err)
	}
	dir, err := openRoot(path)
	if err != nil {
		return nil, err
	}
	names, err := readNames(dir.fd)
	if err == nil && len(names) > 0 {
		err = fmt.Errorf("directory for the git state %s: want it empty", path)
	}
	if err != nil {
		dir.release()
		return nil, err
	}
	return dir, nil
}

// lay makes directories and files and asks for content, round by round.
func (f *fetcher) lay(ctx context.Context, to targets) error {
	f.newRound()
	for e, err := range f.layers.merged() {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if to[e.Area] == nil {
			continue
		}
		if err := f.layEntry(ctx, to[e.Area], e); err != nil {
			return fmt.Errorf("restore %q: %w", e.Path, err)
		}
		if f.files >= roundFiles || f.full() {
			if err := f.ask(ctx); err != nil {
				return err
			}
		}
	}
	return f.ask(ctx)
}

func (f *fetcher) newRound() {
	f.frames, f.packs = map[frameKey]*wantedFrame{}, map[manifest.PackRef]int{}
	f.files, f.parts, f.size = 0, 0, 0
}

func (f *fetcher) layEntry(ctx context.Context, to *target, e manifest.Entry) error {
	if err := to.mkdirs(f.disk, e.Path, e.Kind == manifest.Dir); err != nil {
		return err
	}
	if e.Kind != manifest.File {
		if e.Kind == manifest.Dir {
			f.done.Add(1)
		}
		return nil
	}
	file := &stagedFile{entry: e, target: to}
	file.left.Store(int32(len(e.Chunks)))
	if len(e.Chunks) != 1 || e.Chunks[0].Length != e.Size {
		if err := f.create(file); err != nil {
			return err
		}
	}
	f.files++
	for _, c := range e.Chunks {
		f.want(file, c)
		f.parts++
		if f.full() {
			if err := f.ask(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// mkdirs makes the directories of an entry that are not made yet.
func (t *target) mkdirs(d disk, path string, isDir bool) error {
	for n := len(t.made); n > 0 && !manifest.Below(path, t.made[n-1]); n-- {
		t.made = t.made[:n-1]
	}
	for depth := 0; ; {
		at := path
		i := strings.IndexByte(path[depth:], '/')
		if i >= 0 {
			at = path[:depth+i]
			depth += i + 1
		} else if !isDir {
			return nil
		}
		if !slices.Contains(t.made, at) {
			dir, name, err := t.at.split(at)
			if err == nil {
				err = d.Mkdir(dir, name, stagedMode(i < 0))
			}
			if err != nil {
				return err
			}
			t.made = append(t.made, at)
		}
		if i < 0 {
			return nil
		}
	}
}

// stagedMode is what a directory is made with: open to nobody else until it gets its
// own, and the usual where there is no entry that says.
func stagedMode(entry bool) uint32 {
	if entry {
		return 0o700
	}
	return 0o755
}

// create makes a file with its size. What is not written of it is a hole.
func (f *fetcher) create(file *stagedFile) error {
	file.created = true
	dir, name, err := file.target.at.split(file.entry.Path)
	if err != nil {
		return err
	}
	fd, err := f.disk.Create(dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if file.entry.Size > 0 {
		if err := f.disk.Truncate(fd, file.entry.Size); err != nil {
			return err
		}
	}
	if len(file.entry.Chunks) == 0 {
		return f.finish(fd, file)
	}
	return nil
}

// freshOwner is whom a file made in a directory belongs to.
func freshOwner(dir int) ([2]uint32, error) {
	info, err := statFD(dir)
	if err != nil {
		return [2]uint32{}, err
	}
	// The directory was made by this process: it got its own group as its files will.
	return [2]uint32{info.uid, info.gid}, nil
}

// finish sets what a file has beside its content.
func (f *fetcher) finish(fd int, file *stagedFile) error {
	unset := int64(0)
	e := &file.entry
	var err error
	if f.fresh != [2]uint32{e.UID, e.GID} || file.target.dir != f.stage.tree {
		err = setOwner(f.disk, fd, e, &unset)
	}
	if err == nil {
		err = setRest(f.disk, fd, e, &unset)
	}
	f.unset.Add(unset)
	f.done.Add(1)
	return err
}

func (f *fetcher) want(file *stagedFile, c manifest.Chunk) {
	key := frameKey{c.Pack.ID(), c.Frame.Offset}
	w := f.frames[key]
	if w == nil {
		if _, seen := f.packs[key.pack]; !seen {
			f.packs[key.pack] = len(f.packs)
		}
		w = &wantedFrame{pack: f.packs[key.pack], ref: f.owners[key.pack], frame: c.Frame}
		f.frames[key] = w
		f.size += c.Frame.Raw
	}
	w.parts = append(w.parts, part{file, c})
}

// full reports whether a round holds as much as memory allows.
func (f *fetcher) full() bool { return f.size >= roundBytes || f.parts >= roundParts }

// ask sends the requests of a round.
func (f *fetcher) ask(ctx context.Context) error {
	frames := make([]*wantedFrame, 0, len(f.frames))
	for _, w := range f.frames {
		frames = append(frames, w)
	}
	slices.SortFunc(frames, func(a, b *wantedFrame) int {
		return cmp.Or(cmp.Compare(a.pack, b.pack), cmp.Compare(a.frame.Offset, b.frame.Offset))
	})
	f.newRound()
	for len(frames) > 0 {
		req := &request{ref: frames[0].ref, offset: frames[0].frame.Offset}
		n := 0
		for n < len(frames) && req.takes(frames[n]) {
			req.length = frames[n].frame.Offset + frames[n].frame.Stored - req.offset
			n++
		}
		req.frames, frames = frames[:n], frames[n:]
		select {
		case f.requests <- req:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (r *request) takes(w *wantedFrame) bool {
	if r.length == 0 {
		return true
	}
	end := w.frame.Offset + w.frame.Stored - r.offset
	return w.ref == r.ref && end <= rangeBytes && w.frame.Offset-r.offset-r.length <= rangeGap
}

// work carries requests out. After a failure anywhere it drops the rest.
func (f *fetcher) work(ctx context.Context) error {
	slabs, err := newPool(2)
	if err != nil {
		return err
	}
	defer slabs.close()
	w := &writer{fetcher: f, stored: <-slabs, raw: <-slabs, where: map[*target]*beneath{}}
	defer func() { slabs <- w.stored; slabs <- w.raw }()
	defer func() {
		for _, at := range w.where {
			at.close()
		}
	}()
	for req := range f.requests {
		if ctx.Err() != nil {
			continue
		}
		if err := w.carryOut(ctx, req); err != nil {
			f.fail(err)
		}
	}
	return nil
}

// writer carries requests out. One goroutine uses it.
type writer struct {
	*fetcher
	stored, raw []byte // slabs
	where       map[*target]*beneath
}

func (w *writer) carryOut(ctx context.Context, req *request) error {
	data := w.stored[:req.length]
	if err := w.options.Store.Get(ctx, req.ref, req.offset, data); err != nil {
		return fmt.Errorf("read pack %s: %w", req.ref.Name(), storeFault(err))
	}
	for _, wanted := range req.frames {
		at := wanted.frame.Offset - req.offset
		content, err := openFrame(w.decoder, data[at:at+wanted.frame.Stored], wanted.frame.Raw, w.raw)
		if err != nil {
			return fmt.Errorf("read pack %s: %w", req.ref.Name(), err)
		}
		for _, p := range wanted.parts {
			if err := w.write(p, content); err != nil {
				return fmt.Errorf("restore %q: %w", p.file.entry.Path, err)
			}
		}
	}
	return nil
}

// openFrame decompresses a frame into a slab.
func openFrame(decoder *zstd.Decoder, data []byte, size int64, slab []byte) ([]byte, error) {
	content, err := decoder.DecodeAll(data, slab[:0])
	if err != nil {
		return nil, refuse(CodeInvalidBlob, "", fmt.Errorf("decompress frame: %w", err))
	}
	if int64(len(content)) != size {
		return nil, refuse(CodeInvalidBlob, "", fmt.Errorf("frame of %d bytes: want %d", len(content), size))
	}
	return content, nil
}

// chunkOf is a chunk's bytes, checked against its digest.
func chunkOf(c manifest.Chunk, frame []byte, path string) ([]byte, error) {
	data := frame[c.Skip : c.Skip+c.Length]
	if sha256.Sum256(data) != c.SHA256 {
		return nil, refuse(CodeInvalidBlob, path, errors.New("stored bytes do not have their digest"))
	}
	return data, nil
}

// write checks a part and puts it into its file. Who writes the last part sets what
// else the file has.
func (w *writer) write(p part, frame []byte) error {
	data, err := chunkOf(p.Chunk, frame, p.file.entry.Path)
	if err != nil {
		return err
	}
	at := w.where[p.file.target]
	if at == nil {
		at = &beneath{root: p.file.target.dir}
		w.where[p.file.target] = at
	}
	dir, name, err := at.split(p.file.entry.Path)
	if err != nil {
		return err
	}
	open := w.disk.Create
	if p.file.created {
		open = w.disk.Open
	}
	fd, err := open(dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := w.disk.Write(fd, data, p.Offset); err != nil {
		return err
	}
	w.bytes.Add(p.Length)
	if p.file.left.Add(-1) > 0 {
		return nil
	}
	return w.finish(fd, p.file)
}

// link makes the links, and sets what the directories of the git area have.
func (f *fetcher) link(ctx context.Context, to targets) error {
	var dirs []manifest.Entry
	for e, err := range f.layers.merged() {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		t := to[e.Area]
		switch {
		case t == nil:
		case e.Kind == manifest.Symlink:
			err = f.symlink(t, &e)
		case e.Kind == manifest.Hardlink:
			err = f.hardlink(t, &e)
		case e.Kind == manifest.Dir && e.Area == manifest.GitState:
			dirs = append(dirs, e)
		}
		if err != nil {
			return fmt.Errorf("restore %q: %w", e.Path, err)
		}
	}
	for _, e := range slices.Backward(dirs) {
		fd, err := to[e.Area].at.open(e.Path)
		if err == nil {
			err = setAll(f.disk, fd, &e, new(int64))
		}
		if err != nil {
			return fmt.Errorf("restore %q: %w", e.Path, err)
		}
	}
	return nil
}

func (f *fetcher) symlink(t *target, e *manifest.Entry) error {
	dir, name, err := t.at.split(e.Path)
	if err != nil {
		return err
	}
	if err := f.disk.Symlink(e.Target, dir, name); err != nil {
		return err
	}
	if privileged() {
		if err := f.disk.SetLinkOwner(dir, name, e.UID, e.GID); isRefused(err) {
			f.unset.Add(1)
		} else if err != nil {
			return err
		}
	}
	f.done.Add(1)
	return f.disk.SetTimes(dir, name, e.MTime)
}

func (f *fetcher) hardlink(t *target, e *manifest.Entry) error {
	from := &beneath{root: t.dir}
	defer from.close()
	source, sourceName, err := from.split(e.Target)
	if err != nil {
		return err
	}
	dir, name, err := t.at.split(e.Path)
	if err != nil {
		return err
	}
	f.done.Add(1)
	return f.disk.Link(source, sourceName, dir, name)
}
