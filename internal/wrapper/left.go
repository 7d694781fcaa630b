package wrapper

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// How long what an agent left gets to end by itself, and to be gone after SIGKILL.
const (
	leftGrace = 2 * time.Second
	leftKill  = 5 * time.Second
)

// endLeft ends every descendant of this process, all of which are its children in the
// end, but for the companion and what belongs to it: there is none left when it is done,
// but for what the kernel keeps.
func (w *wrapping) endLeft() {
	told := map[int]bool{}
	for end := time.Now().Add(leftGrace); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if w.reaped() {
			return
		}
		for _, pid := range w.descendants() {
			if !told[pid] {
				told[pid] = true
				_ = syscall.Kill(pid, syscall.SIGTERM)
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
		}
	}
	w.killLeft()
}

func (w *wrapping) killLeft() {
	for end := time.Now().Add(leftKill); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for _, pid := range w.descendants() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if w.reaped() {
			return
		}
	}
}

// reaped takes in all children that have ended, and tells whether the companion is the
// only other, if there is any.
func (w *wrapping) reaped() bool {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return true
		case pid == 0:
			return w.side.alive() != 0 && len(w.descendants()) == 0
		default:
			w.side.reaped(pid)
		}
	}
}

// descendants lists all processes below this one, without the companion and what is below
// that.
func (w *wrapping) descendants() []int {
	children := map[int][]int{}
	for _, name := range processes() {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == w.side.alive() {
			continue
		}
		if parent, ok := parentOf(name); ok {
			children[parent] = append(children[parent], pid)
		}
	}
	var all []int
	for next := children[os.Getpid()]; len(next) > 0; {
		pid := next[0]
		all, next = append(all, pid), append(next[1:], children[pid]...)
	}
	return all
}

func parentOf(pid string) (int, bool) {
	data, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return 0, false
	}
	text := string(data)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 2 {
		return 0, false
	}
	parent, err := strconv.Atoi(fields[1])
	return parent, err == nil
}
