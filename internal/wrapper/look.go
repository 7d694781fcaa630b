package wrapper

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Kinds of file, as scripts name them.
const (
	kindSymlink    = "symlink"
	kindDirectory  = "directory"
	kindMissing    = "missing"
	kindSpecial    = "special"
	kindUnreadable = "unreadable"
	kindRegular    = "regular"
)

func kindOf(name string) string {
	info, err := os.Lstat(name)
	switch {
	case err != nil:
		return kindMissing
	case info.Mode()&fs.ModeSymlink != 0:
		return kindSymlink
	case info.IsDir():
		return kindDirectory
	case !info.Mode().IsRegular():
		return kindSpecial
	case unix.Access(name, unix.R_OK) != nil:
		return kindUnreadable
	}
	return kindRegular
}

// openRegular opens a regular file, through no link and without waiting for a FIFO.
func openRegular(name string, flags int) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(name, flags|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err == nil {
		// An agent that inherits it gets a plain descriptor.
		err = unix.SetNonblock(int(f.Fd()), false)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// words are the words at the begin of a file that holds a few.
func words(name string) []string {
	f, _, err := openRegular(name, os.O_RDONLY)
	if err != nil {
		return nil
	}
	defer f.Close()
	data, _ := io.ReadAll(io.LimitReader(f, 64)) // what was read is all there is to look at
	return strings.Fields(string(data))
}

// number is the number in a file; 0 where there is none, and whether the file is there.
func number(name string) (n int64, there bool) {
	found := words(name)
	info, err := os.Stat(name)
	there = err == nil && info.Mode().IsRegular()
	if len(found) == 0 || len(found[0]) > 15 || strings.Trim(found[0], "0123456789") != "" {
		return 0, there
	}
	n, _ = strconv.ParseInt(found[0], 10, 64) // 15 digits fit
	return n, there
}

// startTime is when a process began, in ticks since the machine did; false where it is
// no more. A zombie is no more: an init that does not reap keeps it for ever.
func startTime(pid string) (string, bool) {
	data, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return "", false
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "", false
	}
	return fields[19], true
}

// wrapperOf tells what became of the run's wrapper. Where it left no pid it is looked
// for by its words, which all users can read.
func (r run) wrapperOf() core.JournalWrapper {
	if kindOf(r.in("wrapper")) != kindRegular {
		return r.seek()
	}
	found := words(r.in("wrapper"))
	if len(found) == 0 || strings.Trim(found[0], "0123456789") != "" {
		return core.WrapperAbsent
	}
	if _, err := os.ReadFile("/proc/self/stat"); err != nil {
		return core.WrapperUnknown
	}
	began, alive := startTime(found[0])
	if alive && len(found) > 1 && began == found[1] {
		return core.WrapperAlive
	}
	return core.WrapperGone
}

func (r run) seek() core.JournalWrapper {
	for _, pid := range processes() {
		data, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
		if err != nil || !bytes.Contains(data, []byte(r.mark)) {
			continue
		}
		line := string(data)
		shell := strings.HasPrefix(line, "sh\x00-c\x00") && strings.Contains(line, "\x00sandkeeper-run\x00")
		program := strings.HasPrefix(line, core.WrapperName+"\x00"+core.WrapperCommand+"\x00"+r.mark)
		if !shell && !program {
			continue
		}
		if _, alive := startTime(pid); alive {
			return core.WrapperAlive
		}
	}
	return core.WrapperAbsent
}

// processes lists the process ids there are.
func processes() []string {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []string
	for _, e := range entries {
		if strings.Trim(e.Name(), "0123456789") == "" {
			pids = append(pids, e.Name())
		}
	}
	return pids
}

// wrapperWord is how answers say what became of a wrapper.
func wrapperWord(w core.JournalWrapper) string {
	if w == core.WrapperUnknown {
		return "unknown"
	}
	return string(w)
}
