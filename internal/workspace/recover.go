package workspace

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Recover brings a directory whose restore was cut to the tree of before, or to the
// restored one where that was decided. Where nothing was cut it does nothing. A
// restore that still runs is [CodeRestoreUnfinished].
func Recover(root string) error { return recoverRoot(kernel{}, root) }

func recoverRoot(d disk, rootPath string) error {
	root, err := openRoot(rootPath)
	if err != nil {
		return err
	}
	defer root.release()
	parent, sibling, inside, err := stagingPlaces(rootPath)
	if err != nil {
		return err
	}
	if err := recoverIn(d, root, root.retain(), inside); err != nil {
		return err
	}
	fd, err := openAt(unix.AT_FDCWD, parent+"/", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil // nothing that this process made can be there
	}
	home := newDirHandle(fd)
	if sameDir(fd, root.fd) {
		home.release()
		return nil
	}
	return recoverIn(d, root, home, sibling)
}

// recoverIn looks at one of the places of a staging directory. It releases home.
func recoverIn(d disk, root, home *dirHandle, name string) error {
	s := &staging{root: root, home: home, name: name}
	defer s.release()
	info, err := statAt(home.fd, name)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for an unfinished restore: %w", err)
	}
	if info.mode&unix.S_IFMT != unix.S_IFDIR || info.uid != uint32(os.Geteuid()) || info.mode&0o077 != 0 {
		return nil // of somebody else: not trusted
	}
	if err := s.openDir(); err != nil {
		return refuse(CodeRestoreUnfinished, "", fmt.Errorf("lock staging directory: %w", err))
	}
	if _, err := statAt(s.dir.fd, stagedJournal); err != nil {
		return s.remove(d)
	}
	if err := s.openParts(); err != nil {
		return refuse(CodeRestoreUnfinished, "", err)
	}
	if err := s.apply(d); err != nil {
		return refuse(CodeRestoreUnfinished, "", err)
	}
	return nil
}
