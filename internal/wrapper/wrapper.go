package wrapper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// reserveBytes are kept back on the journal's file system, so that a full one cannot
// keep the sentinel out.
const reserveBytes = 16 << 10

// wrapping is a run under way.
type wrapping struct {
	run
	order
	main    mainProcess
	journal *os.File
	stderr  *os.File
	signals chan os.Signal
	agent   int // the agent's process id, and that of its group; 0: none
	side    *companion
	given   []string // of the agent's environment, beside what the container has
}

// Wrap is the wrapper's process: it keeps the run's journal from begin to end. Its
// order comes on descriptor 3; descriptor 4 is closed when its pid is there.
func Wrap() int {
	w := &wrapping{signals: make(chan os.Signal, 16)}
	// Caught rather than ignored: the agent would inherit the latter.
	signal.Notify(w.signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	ready := os.NewFile(4, "ready")
	syscall.CloseOnExec(3)
	syscall.CloseOnExec(4)
	begin, err := w.prepare(os.NewFile(3, "order"))
	ready.Close()
	if err != nil || !begin {
		return w.end(err)
	}
	status := w.carry()
	err = w.seal(status)
	w.endSide(status, err == nil)
	return w.end(err)
}

func (w *wrapping) end(err error) int {
	if err == nil {
		return 0
	}
	if w.stderr != nil {
		fmt.Fprintln(w.stderr, "sandkeeper-agent: wrapper:", err)
	}
	return 1
}

// prepare opens the journal and leaves the pid; false says that the run was stopped
// before. The pid is left before the stop mark is looked for, and who stops the run
// sets the mark before it looks for the pid: whichever comes second sees the other.
func (w *wrapping) prepare(in *os.File) (bool, error) {
	data, err := io.ReadAll(in)
	in.Close()
	if err == nil {
		err = json.Unmarshal(data, &w.order)
	}
	if err != nil {
		return false, err
	}
	if w.run, err = openRun(w.Run, w.Nonce); err != nil {
		return false, err
	}
	w.main = findMain()
	syscall.Umask(0o077)
	if w.journal, _, err = openRegular(w.Journal, os.O_WRONLY|os.O_APPEND|os.O_CREATE); err != nil {
		return false, err
	}
	if w.stderr, _, err = openRegular(w.Stderr, os.O_WRONLY|os.O_APPEND|os.O_CREATE); err != nil {
		return false, err
	}
	began, _ := startTime("self")
	if began == "" {
		began = "0"
	}
	text := fmt.Sprintf("%d %s\n%s\n", os.Getpid(), began, w.main.who())
	if err := os.WriteFile(w.in("wrapper.new"), []byte(text), 0o600); err != nil {
		return false, err
	}
	if err := os.Rename(w.in("wrapper.new"), w.in("wrapper")); err != nil {
		return false, err
	}
	w.reserve()
	_, err = os.Lstat(w.in("stop"))
	return errors.Is(err, fs.ErrNotExist), nil
}

func (m mainProcess) who() string {
	if m.uid == 0 {
		return "none"
	}
	return fmt.Sprintf("setuid %d %d", m.uid, m.gid)
}

func (w *wrapping) reserve() {
	_ = os.WriteFile(w.in("reserve"), make([]byte, reserveBytes), 0o600) // without it a full disk is waited for
}

// carry begins the agent, waits for it, and ends what it left. It returns the status
// as a shell would have it.
func (w *wrapping) carry() int {
	// Whatever loses its parent becomes a child of this process, and is found.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	w.side = w.newCompanion()
	w.given = w.beginSide()
	status, err := w.launch()
	if err != nil {
		fmt.Fprintf(w.stderr, "sandkeeper-agent: %v\n", err)
		w.overSide()
		return status
	}
	ended := make(chan int, 1)
	go func() { ended <- w.await() }()
	status = w.attend(ended)
	w.endLeft()
	w.overSide()
	return status
}

// attend passes signals on until the agent has ended, and keeps the companion going.
func (w *wrapping) attend(ended <-chan int) (status int) {
	var died <-chan int
	var again <-chan time.Time
	if w.side != nil {
		died = w.side.died
	}
	for {
		select {
		case status := <-ended:
			return status
		case s := <-w.signals:
			w.pass(s)
		case <-died:
			again, _ = w.side.again()
		case <-again:
			again = nil
			w.side.start()
		}
	}
}

// pass hands a signal that asks to end on to the agent's group, and records it.
func (w *wrapping) pass(s os.Signal) {
	number, ok := s.(syscall.Signal)
	if !ok || number == syscall.SIGHUP {
		return
	}
	_ = syscall.Kill(-w.agent, number)
	f, err := os.OpenFile(w.in("signals"), os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return
	}
	fmt.Fprintf(f, "%s %d\n", unix.SignalName(number), time.Now().UnixMilli())
	f.Close()
}

// await reaps children until the agent is among them.
func (w *wrapping) await() int {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 255 // the agent is no child any more, which cannot be
		case w.side.reaped(pid):
		case pid == w.agent:
			if status.Signaled() {
				return 128 + int(status.Signal())
			}
			return status.ExitStatus()
		}
	}
}

// seal closes the journal: what the agent wrote is on the disk before anything says
// that it is whole. The position is left first, so that the sentinel is found even
// where something writes on behind it.
func (w *wrapping) seal(status int) error {
	_ = w.stderr.Sync() // no fact depends on it
	if err := w.journal.Sync(); err != nil {
		fmt.Fprintln(w.stderr, "sandkeeper-agent: sync journal:", err)
	}
	os.Remove(w.in("reserve"))
	if info, err := w.journal.Stat(); err == nil {
		_ = os.WriteFile(w.in("end"), fmt.Appendf(nil, "%d\n", info.Size()), 0o600)
	}
	line := "\n" + core.DefaultJournal.Sentinel(w.nonce, status) + "\n"
	if err := w.append(line); err != nil {
		return err
	}
	if err := w.journal.Sync(); err != nil {
		return err
	}
	dir, err := os.Open(w.JournalPaths.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// fullFor is how long a full disk is waited for.
const fullFor = 2 * time.Minute

// append writes the sentinel in one piece, so that nothing can come between newline
// and sentinel, and again from where a full disk cut it.
func (w *wrapping) append(text string) error {
	for end := time.Now().Add(fullFor); ; time.Sleep(time.Second) {
		n, err := w.journal.WriteString(text)
		text = text[n:]
		if err == nil || !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) || time.Now().After(end) {
			return err
		}
	}
}

// launch begins the agent: its stdout is the journal itself. The error is for its
// stderr, and the status what a shell would say.
func (w *wrapping) launch() (status int, err error) {
	input, err := w.input()
	if err != nil {
		return 126, err
	}
	defer input.Close()
	env, dir, ok := w.main.surroundings()
	if !ok {
		env, dir = os.Environ(), ""
	}
	attr := &syscall.ProcAttr{
		Env:   w.environment(env),
		Files: []uintptr{input.Fd(), w.journal.Fd(), w.stderr.Fd()},
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	}
	if w.main.uid != 0 {
		attr.Sys.Credential = w.main.credential()
		_ = w.stderr.Chown(w.main.uid, w.main.gid) // the agent may open it by its name
	}
	if attr.Dir, err = w.directory(dir); err != nil {
		return 126, err
	}
	syscall.Umask(w.Mask)
	defer syscall.Umask(0o077)
	argv := w.Argv
	if len(argv) == 0 {
		argv = []string{"/bin/sh", "-c", w.Shell}
	}
	w.agent, err = execute(argv, attr)
	switch {
	case err == nil:
		return 0, nil
	case errors.Is(err, syscall.ENOENT):
		return 127, fmt.Errorf("%s: %w", argv[0], err)
	}
	return 126, fmt.Errorf("%s: %w", argv[0], err)
}

// input is the agent's stdin.
func (w *wrapping) input() (*os.File, error) {
	if w.InputBytes == nil {
		return os.Open(os.DevNull)
	}
	f, _, err := openRegular(w.in("input"), os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return f, os.Remove(w.in("input"))
}

// environment is the agent's: the container's, the run's secrets, which nobody else has
// and which are forgotten here, and what its companion serves.
func (w *wrapping) environment(env []string) []string {
	given := append([]string{core.JournalRunVariable + "=" + w.mark}, w.given...)
	for name, value := range w.Env {
		given = append(given, name+"="+value)
	}
	w.Env, w.given = nil, nil
	own := make([]string, 0, len(env)+len(given))
	for _, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		if !slices.ContainsFunc(given, func(g string) bool { return strings.HasPrefix(g, name+"=") }) {
			own = append(own, entry)
		}
	}
	return append(own, given...)
}

// directory is where the agent begins: as it was told, or where the main process is,
// as far as the agent may go there.
func (w *wrapping) directory(main string) (string, error) {
	dir, told := w.Job.Dir, w.Job.Dir != ""
	if !told {
		dir = main
	}
	if dir == "" {
		return "", nil
	}
	var err error
	w.main.as(func() {
		if err = unix.Faccessat(unix.AT_FDCWD, dir, unix.X_OK, unix.AT_EACCESS); err == nil {
			var info fs.FileInfo
			if info, err = os.Stat(dir); err == nil && !info.IsDir() {
				err = syscall.ENOTDIR
			}
		}
	})
	switch {
	case err == nil:
		return dir, nil
	case told:
		return "", fmt.Errorf("%s: %w", dir, err)
	}
	return "", nil
}

func (m mainProcess) credential() *syscall.Credential {
	c := &syscall.Credential{Uid: uint32(m.uid), Gid: uint32(m.gid)}
	for _, id := range m.groups {
		c.Groups = append(c.Groups, uint32(id))
	}
	return c
}

// execute begins a program as a shell finds it: by its path, or in the agent's own
// search path. A file without a head line is a script.
func execute(argv []string, attr *syscall.ProcAttr) (int, error) {
	err := error(syscall.ENOENT)
	for _, name := range candidates(argv[0], attr.Env) {
		pid, failed := syscall.ForkExec(name, argv, attr)
		if errors.Is(failed, syscall.ENOEXEC) {
			pid, failed = syscall.ForkExec("/bin/sh", append([]string{"/bin/sh", name}, argv[1:]...), attr)
		}
		switch {
		case failed == nil:
			return pid, nil
		case errors.Is(failed, syscall.ENOENT) || errors.Is(failed, syscall.ENOTDIR):
		case errors.Is(failed, syscall.EACCES):
			err = failed
		default:
			return 0, failed
		}
	}
	return 0, err
}

func candidates(name string, env []string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	path := "/bin:/usr/bin"
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, "PATH="); ok {
			path = value
		}
	}
	var all []string
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
		all = append(all, dir+"/"+name)
	}
	return all
}
