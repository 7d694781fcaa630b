package workspace

import (
	"errors"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// disk is every way in which a restore changes a file system. Names are single
// segments in an open directory, so that no call can follow a link.
type disk interface {
	Mkdir(dir int, name string, mode uint32) error
	Create(dir int, name string) (fd int, err error) // new, for writing, mode 0600
	Open(dir int, name string) (fd int, err error)   // there already, for writing
	Write(fd int, data []byte, offset int64) error
	Truncate(fd int, size int64) error
	Symlink(target string, dir int, name string) error
	Link(from int, name string, to int, newName string) error
	Rename(from int, name string, to int, newName string) error
	Unlink(dir int, name string, flags int) error
	Chown(fd int, uid, gid uint32) error
	Chmod(fd int, mode uint32) error
	SetXattr(fd int, name string, value []byte) error
	SetTimes(dir int, name string, mtime int64) error // of the entry itself, a link too
	SetLinkOwner(dir int, name string, uid, gid uint32) error
	SetFileTimes(fd int, mtime int64) error
}

// kernel is the disk.
type kernel struct{}

func (kernel) Mkdir(dir int, name string, mode uint32) error {
	return retry(func() error { return unix.Mkdirat(dir, name, mode) })
}

func (kernel) Create(dir int, name string) (int, error) {
	return openAt(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
}

func (kernel) Open(dir int, name string) (int, error) { return openAt(dir, name, unix.O_WRONLY, 0) }

func (kernel) Write(fd int, data []byte, offset int64) error { return writeAt(fd, data, offset) }

func (kernel) Truncate(fd int, size int64) error {
	return retry(func() error { return unix.Ftruncate(fd, size) })
}

func (kernel) Symlink(target string, dir int, name string) error {
	return retry(func() error { return unix.Symlinkat(target, dir, name) })
}

func (kernel) Link(from int, name string, to int, newName string) error {
	return retry(func() error { return unix.Linkat(from, name, to, newName, 0) })
}

func (kernel) Rename(from int, name string, to int, newName string) error {
	return retry(func() error { return unix.Renameat(from, name, to, newName) })
}

func (kernel) Unlink(dir int, name string, flags int) error {
	return retry(func() error { return unix.Unlinkat(dir, name, flags) })
}

func (kernel) Chown(fd int, uid, gid uint32) error { return unix.Fchown(fd, int(uid), int(gid)) }

func (kernel) Chmod(fd int, mode uint32) error { return unix.Fchmod(fd, mode) }

func (kernel) SetXattr(fd int, name string, value []byte) error {
	return unix.Fsetxattr(fd, name, value, 0)
}

func (kernel) SetTimes(dir int, name string, mtime int64) error {
	return unix.UtimesNanoAt(dir, name, timesOf(mtime), unix.AT_SYMLINK_NOFOLLOW)
}

func (kernel) SetLinkOwner(dir int, name string, uid, gid uint32) error {
	return unix.Fchownat(dir, name, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW)
}

func (kernel) SetFileTimes(fd int, mtime int64) error {
	times := timesOf(mtime)
	return futimens(fd, times)
}

// timesOf leaves the access time as it is.
func timesOf(mtime int64) []unix.Timespec {
	return []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(mtime)}
}

// beneath opens directories below one by path, no link followed on the way, and
// remembers the last one. One goroutine uses it.
type beneath struct {
	root *dirHandle
	path string
	dir  *dirHandle // of path; nil before the first
}

// split returns the open directory that holds the entry at a path, and its name
// there. The directory is open until the next call.
func (b *beneath) split(path string) (dir int, name string, err error) {
	parent, name := "", path
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		parent, name = path[:i], path[i+1:]
	}
	dir, err = b.open(parent)
	return dir, name, err
}

func (b *beneath) open(path string) (int, error) {
	if path == "" {
		return b.root.fd, nil
	}
	if b.dir != nil && b.path == path {
		return b.dir.fd, nil
	}
	fd, err := openBeneath(b.root.fd, path)
	if err != nil {
		return -1, err
	}
	b.close()
	b.dir, b.path = newDirHandle(fd), path
	return fd, nil
}

func (b *beneath) close() {
	if b.dir != nil {
		b.dir.release()
		b.dir = nil
	}
}

// withoutOpenat2 is whether the kernel lacks openat2 or forbids it.
var withoutOpenat2 = sync.OnceValue(func() bool {
	fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return true
	}
	unix.Close(fd)
	return false
})

// openBeneath opens the directory at a clean relative path.
func openBeneath(root int, path string) (int, error) {
	if withoutOpenat2() {
		return openStepwise(root, path)
	}
	return openResolved(root, path, unix.O_RDONLY|unix.O_DIRECTORY)
}

// openFileBeneath opens the file at a clean relative path for reading, as
// [openFileAt] does.
func openFileBeneath(root int, path string) (int, error) {
	if !withoutOpenat2() {
		return openResolved(root, path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	}
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return openFileAt(root, path)
	}
	dir, err := openStepwise(root, path[:i])
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	return openFileAt(dir, path[i+1:])
}

// openResolved lets the kernel look that no link is on the way.
func openResolved(root int, path string, flags uint64) (int, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	for tries := 0; ; tries++ {
		fd, err := unix.Openat2(root, path, &how)
		// The tree may change under the look-up: not for ever, if nobody wants that.
		if errors.Is(err, unix.EAGAIN) && tries < 100 || errors.Is(err, unix.EINTR) {
			continue
		}
		return fd, err
	}
}

func openStepwise(root int, path string) (int, error) {
	fd := root
	for name := range strings.SplitSeq(path, "/") {
		next, err := openDirAt(fd, name)
		if fd != root {
			unix.Close(fd)
		}
		if err != nil {
			return -1, err
		}
		fd = next
	}
	return fd, nil
}
