package workspace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// fileInfo is what the engine needs of an inode.
type fileInfo struct {
	mode         uint32 // type and permission bits
	uid, gid     uint32
	links        uint64
	size, blocks int64
	mtime, ctime int64 // ns since 1970
	inode, dev   uint64
}

func infoOf(st *unix.Stat_t) fileInfo {
	return fileInfo{
		mode: st.Mode, uid: st.Uid, gid: st.Gid, links: uint64(st.Nlink), size: st.Size, blocks: st.Blocks,
		mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano(), inode: st.Ino, dev: st.Dev,
	}
}

// kind is 0 for what no checkpoint holds.
func (i fileInfo) kind() manifest.Kind {
	switch i.mode & unix.S_IFMT {
	case unix.S_IFREG:
		return manifest.File
	case unix.S_IFDIR:
		return manifest.Dir
	case unix.S_IFLNK:
		return manifest.Symlink
	}
	return 0
}

// same tells whether content and inode are those of before.
func (i fileInfo) same(o fileInfo) bool {
	return i.size == o.size && i.mtime == o.mtime && i.ctime == o.ctime && i.inode == o.inode && i.dev == o.dev && i.mode == o.mode
}

// special names what kind 0 stands for.
func (i fileInfo) special() string {
	switch i.mode & unix.S_IFMT {
	case unix.S_IFSOCK:
		return "socket"
	case unix.S_IFIFO:
		return "named pipe"
	case unix.S_IFCHR:
		return "character device"
	case unix.S_IFBLK:
		return "block device"
	}
	return "file of unknown type"
}

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// scarce tells whether a call failed for want of something that the process or the
// machine lacks at the moment: it says nothing about the entry.
func scarce(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}

func openAt(dir int, name string, flags int, mode uint32) (int, error) {
	fd := -1
	err := retry(func() (err error) {
		fd, err = unix.Openat(dir, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		return err
	})
	return fd, err
}

// openDirAt opens a directory, never through a link.
func openDirAt(dir int, name string) (int, error) {
	return openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

// openFileAt opens a file for reading, never through a link. A named pipe or a
// device that took its place does not block.
func openFileAt(dir int, name string) (int, error) {
	return openAt(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
}

func statAt(dir int, name string) (fileInfo, error) {
	var st unix.Stat_t
	err := retry(func() error { return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if err != nil {
		return fileInfo{}, err
	}
	return infoOf(&st), nil
}

func statFD(fd int) (fileInfo, error) {
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return fileInfo{}, err
	}
	return infoOf(&st), nil
}

// readAt fills buf as far as the file goes.
func readAt(fd int, buf []byte, offset int64) (int, error) {
	done := 0
	for done < len(buf) {
		n, err := unix.Pread(fd, buf[done:], offset+int64(done))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return done, err
		}
		if n == 0 {
			break
		}
		done += n
	}
	return done, nil
}

func writeAt(fd int, buf []byte, offset int64) error {
	for len(buf) > 0 {
		n, err := unix.Pwrite(fd, buf, offset)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrShortWrite
		}
		buf, offset = buf[n:], offset+int64(n)
	}
	return nil
}

func readLinkAt(dir int, name string) (string, error) {
	buf := make([]byte, 256)
	for {
		n := 0
		err := retry(func() (err error) { n, err = unix.Readlinkat(dir, name, buf); return err })
		if err != nil {
			return "", err
		}
		if n < len(buf) {
			return string(buf[:n]), nil
		}
		buf = make([]byte, 2*len(buf))
	}
}

// dirent is one name of a directory. The type is a hint, DT_UNKNOWN on some file
// systems.
type dirent struct {
	name string
	typ  uint8
}

func (d dirent) kind() manifest.Kind {
	switch d.typ {
	case unix.DT_REG:
		return manifest.File
	case unix.DT_DIR:
		return manifest.Dir
	case unix.DT_LNK:
		return manifest.Symlink
	}
	return 0
}

// readNames lists a directory in the order of the file system, from its beginning.
func readNames(fd int) ([]dirent, error) {
	var names []dirent
	if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
		return nil, err
	}
	buf := make([]byte, 32<<10)
	for {
		n := 0
		err := retry(func() (err error) { n, err = unix.Getdents(fd, buf); return err })
		if err != nil || n == 0 {
			return names, err
		}
		names = appendNames(names, buf[:n])
	}
}

// appendNames reads records of struct linux_dirent64.
func appendNames(names []dirent, buf []byte) []dirent {
	const header = int(unsafe.Offsetof(unix.Dirent{}.Name))
	for len(buf) >= header {
		length := int(binary.NativeEndian.Uint16(buf[unsafe.Offsetof(unix.Dirent{}.Reclen):]))
		if length < header || length > len(buf) {
			return names
		}
		name, _, _ := bytes.Cut(buf[header:length], []byte{0})
		if s := string(name); s != "." && s != ".." {
			names = append(names, dirent{name: s, typ: buf[unsafe.Offsetof(unix.Dirent{}.Type)]})
		}
		buf = buf[length:]
	}
	return names
}

// extent is a run of bytes of a file.
type extent struct{ offset, length int64 }

func (e extent) end() int64 { return e.offset + e.length }

// minHole is the smallest hole that is kept as one.
const minHole = 64 << 10

// dataExtents lists what of a file of the given size is no hole. Where the file
// system cannot tell, all is data.
func dataExtents(fd int, size int64) ([]extent, error) {
	var extents []extent
	for at := int64(0); at < size; {
		start, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
			return []extent{{0, size}}, nil
		}
		if err != nil {
			return nil, err
		}
		end, err := unix.Seek(fd, start, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		if end = min(end, size); start < end {
			extents = appendExtent(extents, extent{start, end - start})
		}
		at = end
	}
	return extents, nil
}

func appendExtent(extents []extent, next extent) []extent {
	if n := len(extents); n > 0 && next.offset-extents[n-1].end() < minHole {
		extents[n-1].length = next.end() - extents[n-1].offset
		return extents
	}
	return append(extents, next)
}

// readXattrs lists a file's extended attributes that an owner may set back. A file
// system without any has none.
func readXattrs(fd int) (map[string][]byte, error) {
	size, err := unix.Flistxattr(fd, nil)
	if errors.Is(err, unix.EOPNOTSUPP) || err == nil && size == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list := make([]byte, size+1024)
	size, err = unix.Flistxattr(fd, list)
	if err != nil {
		return nil, err
	}
	var attrs map[string][]byte
	for name := range strings.SplitSeq(string(list[:size]), "\x00") {
		if !storedXattr(name) {
			continue
		}
		value, err := readXattr(fd, name)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if attrs == nil {
			attrs = map[string][]byte{}
		}
		attrs[name] = value
	}
	return attrs, nil
}

// storedXattr leaves out what belongs to the machine: labels and trusted data.
func storedXattr(name string) bool {
	return strings.HasPrefix(name, "user.") || name == "security.capability" || strings.HasPrefix(name, "system.posix_acl_")
}

func readXattr(fd int, name string) ([]byte, error) {
	value := make([]byte, 256)
	for {
		n, err := unix.Fgetxattr(fd, name, value)
		if err == nil {
			return value[:n:n], nil
		}
		if !errors.Is(err, unix.ERANGE) || len(value) > manifest.MaxXattr {
			return nil, err
		}
		value = make([]byte, 4*len(value))
	}
}

// dirHandle is an open directory that several goroutines hold.
type dirHandle struct {
	fd   int
	refs atomic.Int32
}

func newDirHandle(fd int) *dirHandle {
	d := &dirHandle{fd: fd}
	d.refs.Store(1)
	return d
}

func (d *dirHandle) retain() *dirHandle {
	d.refs.Add(1)
	return d
}

func (d *dirHandle) release() {
	if d.refs.Add(-1) == 0 {
		unix.Close(d.fd)
	}
}
