package wrapper

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// main is the process whose user, groups, environment and working directory an agent
// gets.
type mainProcess struct {
	pid    string // empty: the exec session's own
	uid    int    // 0: root, or nobody else than this process' user
	gid    int
	groups []int
}

// findMain reads whose sandbox this is. Only root can become somebody else.
func findMain() mainProcess {
	m := mainProcess{pid: os.Getenv(core.JournalInitVariable)}
	switch m.pid {
	case "":
		m.pid = "1"
	case "self":
		return mainProcess{}
	}
	if _, err := strconv.Atoi(m.pid); err != nil {
		return mainProcess{}
	}
	if os.Getuid() == 0 {
		m.identify()
	}
	return m
}

// identify reads user and groups, which all may read.
func (m *mainProcess) identify() {
	data, err := os.ReadFile(filepath.Join("/proc", m.pid, "status"))
	if err != nil {
		return
	}
	for line := range strings.Lines(string(data)) {
		key, rest, _ := strings.Cut(line, ":")
		words := strings.Fields(rest)
		switch {
		case key == "Uid" && len(words) == 4:
			m.uid, _ = strconv.Atoi(words[1])
		case key == "Gid" && len(words) == 4:
			m.gid, _ = strconv.Atoi(words[1])
		case key == "Groups":
			for _, word := range words {
				if id, err := strconv.Atoi(word); err == nil {
					m.groups = append(m.groups, id)
				}
			}
		}
	}
}

// surroundings are the environment and the working directory of the main process. One
// without a PATH is an init that keeps the container's environment to itself; ok is
// then false, and the exec session's own has to do.
func (m mainProcess) surroundings() (env []string, dir string, ok bool) {
	if m.pid == "" {
		return nil, "", false
	}
	m.as(func() {
		data, err := os.ReadFile(filepath.Join("/proc", m.pid, "environ"))
		if err != nil {
			return
		}
		for entry := range strings.SplitSeq(string(data), "\x00") {
			if at := strings.IndexByte(entry, '='); at > 0 {
				env = append(env, entry)
			}
		}
		dir, _ = os.Readlink(filepath.Join("/proc", m.pid, "cwd"))
	})
	ok = slices.ContainsFunc(env, func(entry string) bool { return strings.HasPrefix(entry, "PATH=") })
	return env, dir, ok
}

// as does something with the main process' user's view of /proc: root in a container
// lacks CAP_SYS_PTRACE and may not look into other users' processes. The identity is
// one thread's, which is thrown away.
func (m mainProcess) as(do func()) {
	if m.uid == 0 {
		do()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Never unlocked: the thread ends with the goroutine, and with it its identity.
		runtime.LockOSThread()
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, uintptr(m.gid), 0, 0)
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, uintptr(m.uid), 0, 0)
		do()
	}()
	<-done
}

// InitEnvironment is the environment of the container's main process, as far as this
// process may read it; each entry is name=value.
func InitEnvironment() []string {
	env, _, _ := findMain().surroundings()
	return env
}

// InitDirectory is the working directory of the container's main process; empty where
// this process may not know.
func InitDirectory() string {
	_, dir, _ := findMain().surroundings()
	return dir
}
