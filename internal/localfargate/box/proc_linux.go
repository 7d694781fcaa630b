package box

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// stat is what one /proc/<pid>/stat says that we need.
type stat struct {
	pid, parent, session int
	state                byte
	name                 string
}

// readStat reads /proc/<pid>/stat; ok is false when the process is gone.
func readStat(pid string) (stat, bool) {
	data, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return stat{}, false
	}
	// The name may hold spaces and parentheses, so the last one counts.
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || end < open {
		return stat{}, false
	}
	fields := strings.Fields(string(data[end+1:]))
	if len(fields) < 4 {
		return stat{}, false
	}
	s := stat{state: fields[0][0], name: string(data[open+1 : end])}
	s.pid, _ = strconv.Atoi(pid)
	s.parent, _ = strconv.Atoi(fields[1])
	s.session, _ = strconv.Atoi(fields[3])
	return s, true
}

// pids lists the processes of the caller's /proc.
func pids() []string {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []string
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			found = append(found, e.Name())
		}
	}
	return found
}

// Scan is the machine's process tree at one moment, so that many boxes need it read
// only once.
type Scan struct{ byParent map[int][]stat }

// ScanProcesses reads the process tree.
func ScanProcesses() Scan {
	byParent := map[int][]stat{}
	for _, pid := range pids() {
		if s, ok := readStat(pid); ok {
			byParent[s.parent] = append(byParent[s.parent], s)
		}
	}
	return Scan{byParent: byParent}
}

// below lists the live processes below root, without root itself and without
// zombies, parents first.
func (c Scan) below(root int) []Process {
	var found []Process
	for queue := []int{root}; len(queue) > 0; queue = queue[1:] {
		for _, s := range c.byParent[queue[0]] {
			queue = append(queue, s.pid)
			if s.state != 'Z' && s.state != 'X' {
				found = append(found, Process{PID: s.pid, Parent: s.parent, Session: s.session, Command: command(s)})
			}
		}
	}
	return found
}

func command(s stat) string {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.pid), "cmdline"))
	if err != nil || len(data) == 0 {
		return "[" + s.name + "]"
	}
	return strings.ReplaceAll(strings.TrimRight(string(data), "\x00"), "\x00", " ")
}

// killMarked ends what an init that was itself killed left behind.
func killMarked(id string) {
	want := []byte(marker + "=" + id)
	for range 100 {
		left := false
		for _, pid := range pids() {
			env, err := os.ReadFile(filepath.Join("/proc", pid, "environ"))
			if err != nil || !slices.ContainsFunc(bytes.Split(env, []byte{0}), func(v []byte) bool { return bytes.Equal(v, want) }) {
				continue
			}
			if s, ok := readStat(pid); ok && s.state != 'Z' {
				left = true
				_ = unix.Kill(s.pid, unix.SIGKILL)
			}
		}
		if !left {
			return
		}
		unix.Nanosleep(&unix.Timespec{Nsec: 2e6}, nil)
	}
}

// InNamespaceOf lists the live processes in the PID namespace of init, a process of
// this machine's, without init itself and without zombies.
func (c Scan) InNamespaceOf(init int) []Process {
	space, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(init), "ns", "pid"))
	if err != nil {
		return nil
	}
	var found []Process
	for _, below := range c.byParent {
		for _, s := range below {
			of, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(s.pid), "ns", "pid"))
			if err == nil && of == space && s.pid != init && s.state != 'Z' && s.state != 'X' {
				found = append(found, Process{PID: s.pid, Parent: s.parent, Session: s.session, Command: command(s)})
			}
		}
	}
	slices.SortFunc(found, func(a, b Process) int { return a.PID - b.PID })
	return found
}
