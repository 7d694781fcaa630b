package workspace

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// Limits of how far listing runs ahead of the walk: entries cost memory and
// directories a file descriptor each.
const (
	maxListedEntries = 16 << 10
	maxListedDirs    = 128
	parallelStats    = 512 // names from which on one directory is looked at in parallel
)

// visit is an entry of the tree as the walk found it.
type visit struct {
	path  string
	name  string // last segment of path
	kind  manifest.Kind
	info  fileInfo
	err   error // it could not be looked at, or its names could not be listed
	child *listing
	// excluded entries are visited by [walkAll] only. They were not looked at, and
	// nothing below them is visited.
	excluded bool
}

// listing is one directory and what is in it.
type listing struct {
	path    string
	parent  *dirHandle // nil for the root
	name    string
	taken   atomic.Bool   // whoever sets it makes the listing
	done    chan struct{} // closed when it is made
	dir     *dirHandle
	entries []visit
	err     error
}

// walk visits a tree depth first, the names of a directory in the order of their
// bytes, which is the order of a layer. Directories are listed ahead of it in
// parallel. Each is opened by its name from the open one above it, never through a
// link, so that whatever the tree does meanwhile nothing outside it is seen.
type walk struct {
	policy *Policy
	root   *dirHandle
	all    bool // visit excluded entries too

	mu      sync.Mutex
	more    sync.Cond
	pending []*listing // next one last
	entries int        // listed and not visited
	dirs    int
	closed  bool
}

// openRoot opens the directory at a path that is no link.
func openRoot(path string) (*dirHandle, error) {
	fd, err := openAt(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOENT) {
		return nil, refuse(CodeInvalidWorkspace, "", fmt.Errorf("open root %s: want a directory: %w", path, err))
	}
	if err != nil {
		return nil, fmt.Errorf("open root %s: %w", path, err)
	}
	return newDirHandle(fd), nil
}

// walkTree calls see for each entry below root that the policy does not exclude. dir
// is the directory that the entry is in, open until see returns. An error of see
// ends the walk and is returned; an entry's own faults are in the visit.
func walkTree(root *dirHandle, policy *Policy, see func(v *visit, dir *dirHandle) error) error {
	return (&walk{policy: policy, root: root}).run(see)
}

// walkAll is [walkTree] that visits excluded entries too, but for what a restore
// works in.
func walkAll(root *dirHandle, policy *Policy, see func(v *visit, dir *dirHandle) error) error {
	return (&walk{policy: policy, root: root, all: true}).run(see)
}

func (w *walk) run(see func(v *visit, dir *dirHandle) error) error {
	w.more.L = &w.mu
	var helpers sync.WaitGroup
	for range max(runtime.GOMAXPROCS(0)-1, 1) {
		helpers.Go(w.listAhead)
	}
	top := &listing{done: make(chan struct{})}
	err := w.visit(top, see)
	w.close()
	helpers.Wait()
	return err
}

func (w *walk) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.more.Broadcast()
}

// listAhead makes the listings that the walk needs next, as long as not too much
// waits to be visited.
func (w *walk) listAhead() {
	for {
		l := w.next()
		if l == nil {
			return
		}
		w.list(l)
	}
}

func (w *walk) next() *listing {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for !w.closed && (len(w.pending) == 0 || w.entries >= maxListedEntries || w.dirs >= maxListedDirs) {
			w.more.Wait()
		}
		if w.closed {
			return nil
		}
		l := w.pending[len(w.pending)-1]
		w.pending = w.pending[:len(w.pending)-1]
		if l.taken.CompareAndSwap(false, true) {
			return l
		}
	}
}

// list fills a listing that the caller has taken.
func (w *walk) list(l *listing) {
	defer close(l.done)
	l.err = w.fill(l)
	w.mu.Lock()
	w.entries += len(l.entries)
	w.dirs++
	for _, v := range slices.Backward(l.entries) {
		if v.child != nil {
			w.pending = append(w.pending, v.child)
		}
	}
	w.mu.Unlock()
	w.more.Broadcast()
}

func (w *walk) fill(l *listing) error {
	if l.parent == nil {
		l.dir = w.root.retain()
	} else {
		defer l.parent.release()
		fd, err := openDirAt(l.parent.fd, l.name)
		if err != nil {
			return err
		}
		l.dir = newDirHandle(fd)
	}
	names, err := readNames(l.dir.fd)
	if err != nil {
		return err
	}
	slices.SortFunc(names, func(a, b dirent) int { return cmp.Compare(a.name, b.name) })
	l.entries = w.look(l, names)
	return nil
}

// look stats the names that are not excluded. One that is gone is left out.
func (w *walk) look(l *listing, names []dirent) []visit {
	entries := make([]visit, len(names))
	one := func(from, to int) {
		for i := from; i < to; i++ {
			entries[i] = w.lookAt(l, names[i])
		}
	}
	if len(names) < parallelStats {
		one(0, len(names))
	} else {
		var group sync.WaitGroup
		step := (len(names) + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0)
		for from := 0; from < len(names); from += step {
			group.Go(func() { one(from, min(from+step, len(names))) })
		}
		group.Wait()
	}
	entries = slices.DeleteFunc(entries, func(v visit) bool { return v.path == "" })
	for i := range entries {
		// Below a path that is too long nothing can be stored: a chain of directories
		// without an end would cost memory by the square of its depth.
		if entries[i].kind == manifest.Dir && entries[i].err == nil && !entries[i].excluded && len(entries[i].path) <= manifest.MaxPath {
			entries[i].child = &listing{path: entries[i].path, parent: l.dir.retain(), name: entries[i].name, done: make(chan struct{})}
		}
	}
	return entries
}

// lookAt returns an empty visit for a name that is excluded or gone. What is
// excluded is not even looked at where the directory tells its type.
func (w *walk) lookAt(l *listing, name dirent) visit {
	v := visit{path: name.name, name: name.name, kind: name.kind()}
	if l.path != "" {
		v.path = l.path + "/" + name.name
		v.name = v.path[len(l.path)+1:]
	}
	if name.typ != unix.DT_UNKNOWN && w.policy.Excludes(v.path, v.kind) {
		return w.exclude(v)
	}
	v.info, v.err = statAt(l.dir.fd, name.name)
	if errors.Is(v.err, unix.ENOENT) {
		return visit{}
	}
	if v.err == nil {
		v.kind = v.info.kind()
	}
	if name.typ == unix.DT_UNKNOWN && w.policy.Excludes(v.path, v.kind) {
		return w.exclude(v)
	}
	return v
}

func (w *walk) exclude(v visit) visit {
	if !w.all || isStaging(v.path) {
		return visit{}
	}
	v.excluded = true
	return v
}

func (w *walk) visit(l *listing, see func(v *visit, dir *dirHandle) error) error {
	w.await(l)
	defer w.visited(l)
	for i := range l.entries {
		v := &l.entries[i]
		if v.child != nil {
			w.await(v.child)
			v.err = v.child.err
		}
		err := see(v, l.dir)
		if err == nil && v.child != nil {
			err = w.visit(v.child, see)
			v.child = nil
		}
		if err != nil {
			w.discard(l.entries[i:])
			return err
		}
	}
	return nil
}

// await makes the listing, or waits for who does.
func (w *walk) await(l *listing) {
	if l.taken.CompareAndSwap(false, true) {
		w.drop()
		w.list(l)
	}
	<-l.done
}

// drop takes what was taken off the end of the pending ones.
func (w *walk) drop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n := len(w.pending); n > 0 && w.pending[n-1].taken.Load(); n-- {
		w.pending = w.pending[:n-1]
	}
}

func (w *walk) visited(l *listing) {
	if l.dir != nil {
		l.dir.release()
	}
	w.mu.Lock()
	w.entries -= len(l.entries)
	w.dirs--
	w.mu.Unlock()
	w.more.Broadcast()
}

// discard closes what the rest of a walk would have visited.
func (w *walk) discard(rest []visit) {
	for _, v := range rest {
		if v.child == nil {
			continue
		}
		if v.child.taken.CompareAndSwap(false, true) {
			v.child.parent.release()
			close(v.child.done)
			continue
		}
		<-v.child.done
		w.discard(v.child.entries)
		if v.child.dir != nil {
			v.child.dir.release()
		}
	}
}
