package workspace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// Names in the directory that a restore works in.
const (
	stagedTree    = "tree"    // what will be moved into the root
	stagedTrash   = "trash"   // what was there
	stagedRemoves = "removes" // a layer of tombstones: what nobody wants
	stagedDirs    = "dirs"    // a layer of the wanted directories
	stagedJournal = "journal" // it is there: the restore is decided and will be completed
)

// staging is the directory beside the root, on the same file system, in which a
// restore builds what it will move. A lock on it is held as long as its process
// lives.
type staging struct {
	root   *dirHandle // the destination
	home   *dirHandle // where the staging directory is
	name   string
	dir    *dirHandle
	tree   *dirHandle
	trash  *dirHandle
	trashN int
	unset  int64

	committed, gone bool
}

// journal says what a staging directory is for.
type journal struct {
	Version    int
	Checkpoint string
}

const journalVersion = 1

// stagingPlaces are where a root's staging directory may be: beside it, or inside
// where the root is a mount point or its parent is not writable.
func stagingPlaces(rootPath string) (parent, sibling, inside string, err error) {
	rootPath, err = filepath.Abs(rootPath)
	return filepath.Dir(rootPath), stagingPrefix + "-" + filepath.Base(rootPath), stagingPrefix, err
}

// openStaging makes the staging directory.
func openStaging(d disk, rootPath string, root *dirHandle, checkpoint string) (*staging, error) {
	parent, sibling, inside, err := stagingPlaces(rootPath)
	if err != nil {
		return nil, err
	}
	s := &staging{root: root, home: root.retain(), name: inside}
	if fd, err := openAt(unix.AT_FDCWD, parent+"/", unix.O_RDONLY|unix.O_DIRECTORY, 0); err == nil {
		beside := newDirHandle(fd)
		if !sameDir(fd, root.fd) && sameMount(fd, root.fd) && unix.Faccessat(fd, ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS) == nil {
			s.home.release()
			s.home, s.name = beside, sibling
		} else {
			beside.release()
		}
	}
	if err := s.make(d); err != nil {
		s.release()
		return nil, fmt.Errorf("open staging directory of %s: %w", checkpoint, err)
	}
	return s, s.writeFile(d, stagedJournal+".new", func(w io.Writer) error {
		return json.NewEncoder(w).Encode(journal{Version: journalVersion, Checkpoint: checkpoint})
	})
}

func (s *staging) make(d disk) error {
	if err := d.Mkdir(s.home.fd, s.name, 0o700); err != nil {
		return err
	}
	if err := s.openDir(); err != nil {
		return err
	}
	for _, name := range []string{stagedTree, stagedTrash} {
		if err := d.Mkdir(s.dir.fd, name, 0o700); err != nil {
			return err
		}
	}
	return s.openParts()
}

// openDir opens and locks the directory.
func (s *staging) openDir() error {
	fd, err := openDirAt(s.home.fd, s.name)
	if err != nil {
		return err
	}
	s.dir = newDirHandle(fd)
	return retry(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
}

func (s *staging) openParts() error {
	for name, at := range map[string]**dirHandle{stagedTree: &s.tree, stagedTrash: &s.trash} {
		fd, err := openDirAt(s.dir.fd, name)
		if err != nil {
			return err
		}
		*at = newDirHandle(fd)
	}
	return nil
}

func (s *staging) release() {
	for _, d := range []*dirHandle{s.tree, s.trash, s.dir, s.home} {
		if d != nil {
			d.release()
		}
	}
}

// sameDir tells whether a root is its own parent, as that of the system is.
func sameDir(a, b int) bool {
	x, errX := statFD(a)
	y, errY := statFD(b)
	return errX == nil && errY == nil && x.inode == y.inode && x.dev == y.dev
}

// sameMount tells whether two directories are on one mount, so that entries can be
// renamed from one to the other.
func sameMount(a, b int) bool {
	var x, y unix.Statx_t
	for fd, st := range map[int]*unix.Statx_t{a: &x, b: &y} {
		if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, st); err != nil || st.Mask&unix.STATX_MNT_ID == 0 {
			return false
		}
	}
	return x.Mnt_id == y.Mnt_id
}

// note writes down what there is to do beside moving the tree.
func (s *staging) note(d disk, removes []string, merged iter.Seq2[manifest.Entry, error]) error {
	err := s.writeLayer(d, stagedRemoves, func(add func(manifest.Entry) error) error {
		for _, path := range removes {
			if err := add(manifest.Tombstone(manifest.Workspace, path)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.writeLayer(d, stagedDirs, func(add func(manifest.Entry) error) error {
		for e, err := range merged {
			if err == nil && e.Kind == manifest.Dir && e.Area == manifest.Workspace {
				err = add(e)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *staging) writeLayer(d disk, name string, fill func(add func(manifest.Entry) error) error) error {
	return s.writeFile(d, name, func(w io.Writer) error {
		layer := manifest.NewLayerWriter(w)
		if err := fill(layer.Add); err != nil {
			return err
		}
		return layer.Close()
	})
}

func (s *staging) writeFile(d disk, name string, fill func(w io.Writer) error) error {
	fd, err := d.Create(s.dir.fd, name)
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	defer unix.Close(fd)
	if err := fill(&diskWriter{disk: d, fd: fd}); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// diskWriter appends to a file.
type diskWriter struct {
	disk   disk
	fd     int
	offset int64
}

func (w *diskWriter) Write(b []byte) (int, error) {
	if err := w.disk.Write(w.fd, b, w.offset); err != nil {
		return 0, err
	}
	w.offset += int64(len(b))
	return len(b), nil
}

// commit decides the restore, in one rename.
func (s *staging) commit(d disk) error {
	if err := d.Rename(s.dir.fd, stagedJournal+".new", s.dir.fd, stagedJournal); err != nil {
		return fmt.Errorf("commit restore: %w", err)
	}
	s.committed = true
	return nil
}

// discard removes a staging directory that was not committed, as far as it can: what
// remains is removed by the next restore.
func (s *staging) discard(d disk) {
	if !s.committed && !s.gone {
		_ = s.remove(d)
	}
	s.release()
}

func (s *staging) remove(d disk) error {
	if err := removeAll(d, s.home.fd, s.name); err != nil {
		return fmt.Errorf("remove staging directory: %w", err)
	}
	s.gone = true
	return nil
}

// apply carries a committed restore out. Each step can be repeated: what was moved is
// no longer in the staged tree.
func (s *staging) apply(d disk) error {
	at := &beneath{root: s.root}
	defer at.close()
	if err := s.removeUnwanted(d, at); err != nil {
		return err
	}
	for _, links := range []bool{false, true} {
		m := mover{staging: s, disk: d, links: links}
		if err := m.move(s.tree.fd, s.root.fd); err != nil {
			return err
		}
	}
	// What follows may close directories to this process itself: a repetition must not
	// look for what is to be removed in them.
	if err := d.Unlink(s.dir.fd, stagedRemoves, 0); err != nil && !isGone(err) {
		return err
	}
	if err := s.setDirs(d, at); err != nil {
		return err
	}
	// Without its journal the directory is of no use to anybody.
	if err := d.Unlink(s.dir.fd, stagedJournal, 0); err != nil {
		return err
	}
	return s.remove(d)
}

// entries reads a layer of the staging directory; one that is not there is empty.
func (s *staging) entries(name string) iter.Seq2[manifest.Entry, error] {
	return func(yield func(manifest.Entry, error) bool) {
		fd, err := openFileAt(s.dir.fd, name)
		if errors.Is(err, unix.ENOENT) {
			return
		}
		if err != nil {
			yield(manifest.Entry{}, err)
			return
		}
		file := os.NewFile(uintptr(fd), name)
		defer file.Close()
		manifest.ReadLayer(file)(yield)
	}
}

func (s *staging) removeUnwanted(d disk, at *beneath) error {
	for e, err := range s.entries(stagedRemoves) {
		if err != nil {
			return err
		}
		dir, name, err := at.split(e.Path)
		if err == nil {
			err = s.discardEntry(d, dir, name)
		}
		if err != nil && !isGone(err) {
			return fmt.Errorf("remove %q: %w", e.Path, err)
		}
	}
	return nil
}

func isGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// discardEntry moves an entry out of sight, so that it is gone at once, or removes
// it where it cannot be moved.
func (s *staging) discardEntry(d disk, dir int, name string) error {
	for {
		s.trashN++
		place := strconv.Itoa(s.trashN)
		if _, err := statAt(s.trash.fd, place); err == nil {
			continue // of an attempt before this one
		}
		err := withWritable(d, dir, func() error { return d.Rename(dir, name, s.trash.fd, place) })
		if err == nil || isGone(err) {
			return err
		}
		return removeAll(d, dir, name)
	}
}

// mover moves what is staged to its place: links, or everything else.
type mover struct {
	*staging
	disk  disk
	links bool
}

// move moves what is in a staged directory. Directories that are there already stay,
// and with them what they hold.
func (m mover) move(from, to int) error {
	names, err := readNames(from)
	if err != nil {
		return err
	}
	for _, entry := range names {
		info, err := statAt(from, entry.name)
		if err != nil {
			return err
		}
		switch kind := info.kind(); {
		case kind == manifest.Dir:
			err = m.moveDir(from, to, entry.name)
		case (kind == manifest.Symlink) == m.links:
			err = m.moveEntry(from, to, entry.name)
		}
		if err != nil {
			return fmt.Errorf("move %q: %w", entry.name, err)
		}
	}
	return nil
}

func (m mover) moveDir(from, to int, name string) error {
	target, err := openDirAt(to, name)
	if errors.Is(err, unix.ENOENT) {
		return m.rename(from, to, name)
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return m.replace(from, to, name)
	}
	if err != nil {
		return err
	}
	defer unix.Close(target)
	staged, err := openDirAt(from, name)
	if err != nil {
		return err
	}
	defer unix.Close(staged)
	if err := m.move(staged, target); err != nil || !m.links {
		return err
	}
	return m.disk.Unlink(from, name, unix.AT_REMOVEDIR)
}

func (m mover) moveEntry(from, to int, name string) error {
	err := m.rename(from, to, name)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return m.replace(from, to, name)
	}
	return err
}

func (m mover) rename(from, to int, name string) error {
	return withWritable(m.disk, to, func() error { return m.disk.Rename(from, name, to, name) })
}

// replace moves what is in the way out of it.
func (m mover) replace(from, to int, name string) error {
	if err := m.discardEntry(m.disk, to, name); err != nil && !isGone(err) {
		return err
	}
	return m.rename(from, to, name)
}

// setDirs sets what directories have, deepest first: one that becomes read-only
// lets nothing below it be changed.
func (s *staging) setDirs(d disk, at *beneath) error {
	var dirs []manifest.Entry
	for e, err := range s.entries(stagedDirs) {
		if err != nil {
			return err
		}
		dirs = append(dirs, e)
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		fd, err := at.open(dirs[i].Path)
		if errors.Is(err, unix.EACCES) {
			s.unset++ // it, or one above it, was set before a cut
			continue
		}
		if err == nil {
			err = setAll(d, fd, &dirs[i], &s.unset)
		}
		if err != nil && !isGone(err) {
			return fmt.Errorf("set directory %q: %w", dirs[i].Path, err)
		}
	}
	return nil
}

// withWritable runs a change of a directory's names. Where its own permissions are in
// the way it gets them first; they are set back with those of all directories.
func withWritable(d disk, dir int, change func() error) error {
	err := change()
	if !errors.Is(err, unix.EACCES) {
		return err
	}
	info, statErr := statFD(dir)
	if statErr != nil || info.mode&0o700 == 0o700 || d.Chmod(dir, info.mode&0o7777|0o700) != nil {
		return err
	}
	return change()
}

// removeAll removes an entry and all below it, no link followed. One that is gone is
// no error.
func removeAll(d disk, dir int, name string) error {
	err := withWritable(d, dir, func() error { return d.Unlink(dir, name, 0) })
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	fd, err := openDirAt(dir, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	names, err := readNames(fd)
	if err != nil {
		return err
	}
	for _, entry := range names {
		if err := removeAll(d, fd, entry.name); err != nil {
			return err
		}
	}
	err = withWritable(d, dir, func() error { return d.Unlink(dir, name, unix.AT_REMOVEDIR) })
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// setAll gives an open file or directory what its entry says. The order matters: a
// change of owner takes the set-user-ID bit away, and every other change is one of
// the times. What the system refuses to an unprivileged process is counted.
func setAll(d disk, fd int, e *manifest.Entry, unset *int64) error {
	if err := setOwner(d, fd, e, unset); err != nil {
		return err
	}
	return setRest(d, fd, e, unset)
}

func setRest(d disk, fd int, e *manifest.Entry, unset *int64) error {
	for name, value := range e.Xattrs {
		err := d.SetXattr(fd, name, value)
		if isRefused(err) {
			*unset++
			continue
		}
		if err != nil {
			return fmt.Errorf("set extended attribute %s: %w", name, err)
		}
	}
	// A directory that was there may be another user's.
	err := d.Chmod(fd, e.Mode)
	if err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("set mode: %w", err)
	}
	late := d.SetFileTimes(fd, e.MTime)
	if late != nil && !errors.Is(late, unix.EPERM) {
		return fmt.Errorf("set times: %w", late)
	}
	if err != nil || late != nil {
		*unset++
	}
	return nil
}

func isRefused(err error) bool {
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}

// privileged is whether owners are set back.
func privileged() bool { return os.Geteuid() == 0 }

func setOwner(d disk, fd int, e *manifest.Entry, unset *int64) error {
	if !privileged() {
		return nil
	}
	err := d.Chown(fd, e.UID, e.GID)
	if isRefused(err) {
		*unset++
		return nil
	}
	if err != nil {
		return fmt.Errorf("set owner: %w", err)
	}
	return nil
}
