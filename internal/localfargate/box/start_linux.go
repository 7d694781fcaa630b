package box

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Box is a running process tree. Its methods may be called by many goroutines.
type Box struct {
	spec Spec
	cmd  *exec.Cmd
	wire *wire
	env  []string
	done chan struct{}

	mu       sync.Mutex
	next     int
	sessions map[int]*Session
	exit     int
	exited   bool
}

// Session is one process started in a box on a terminal.
type Session struct {
	box     *Box
	id      int
	pid     int
	started chan error
	done    chan struct{}
	exit    int
}

// Best is the best isolation that works for this user on this machine; each
// kind is tried by starting an empty box below dir.
func Best(dir string) (Isolation, error) {
	var last error
	for _, kind := range []Isolation{Namespaces, UserNamespaces, Directory} {
		if last = Try(kind, dir); last == nil {
			return kind, nil
		}
	}
	return "", fmt.Errorf("find an isolation: %w", last)
}

// Try says why kind does not work here, or nil.
func Try(kind Isolation, dir string) error {
	if kind == Namespaces && os.Getuid() != 0 {
		return fmt.Errorf("isolate by %s: not root", kind)
	}
	trial, err := os.MkdirTemp(dir, "trial-")
	if err != nil {
		return fmt.Errorf("isolate by %s: %w", kind, err)
	}
	defer os.RemoveAll(trial)
	b, err := Start(Spec{ID: filepath.Base(trial), Isolation: kind, Dir: trial})
	if err != nil {
		return fmt.Errorf("isolate by %s: %w", kind, err)
	}
	b.Kill()
	<-b.Done()
	return nil
}

// Start makes the box's directory and its init, and returns when the main
// process runs. What the main process, or the init, cannot do is a [StartError].
func Start(spec Spec) (*Box, error) {
	if !armed {
		return nil, ErrNotArmed
	}
	if err := makeDirs(spec); err != nil {
		return nil, fmt.Errorf("start box %s: %w", spec.ID, err)
	}
	if spec.WorkDir == "" {
		spec.WorkDir = WorkDir(spec.Dir)
	}
	spec.Env = boxEnv(spec)
	b := &Box{spec: spec, env: spec.Env, done: make(chan struct{}), sessions: map[int]*Session{}, exit: 137}
	if err := b.launch(); err != nil {
		return nil, fmt.Errorf("start box %s: %w", spec.ID, err)
	}
	if err := b.handshake(); err != nil {
		b.Kill()
		_ = b.cmd.Wait()
		b.wire.conn.Close()
		return nil, err
	}
	go b.watch()
	return b, nil
}

func makeDirs(spec Spec) error {
	for name, mode := range map[string]os.FileMode{"work": 0o755, "tmp": 0o777 | os.ModeSticky} {
		path := filepath.Join(spec.Dir, name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(path, mode); err != nil {
			return err
		}
	}
	cred, err := credential(spec)
	if err != nil {
		return &StartError{ID: spec.ID, Reason: err.Error()}
	}
	if cred == nil {
		return nil
	}
	return os.Chown(WorkDir(spec.Dir), int(cred.Uid), int(cred.Gid))
}

func boxEnv(spec Spec) []string {
	env := append([]string{}, spec.Env...)
	if spec.Isolation == Directory {
		tmp := filepath.Join(spec.Dir, "tmp")
		env = append(env, "TMPDIR="+tmp, JournalVar+"="+HostJournalDir(spec.Dir), InitVar+"=self")
	}
	return append(env, marker+"="+spec.ID)
}

// launch starts the init in its namespaces, its output in the box's log.
func (b *Box) launch() error {
	log, err := os.OpenFile(LogFile(b.spec.Dir), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	near, far, err := pair()
	if err != nil {
		return err
	}
	defer far.Close()
	b.wire = near
	b.cmd = &exec.Cmd{
		Path: "/proc/self/exe",
		Args: []string{initName},
		// With the race detector an init would sleep a second before it exits.
		Env:        []string{"GOMAXPROCS=2", "GORACE=atexit_sleep_ms=0", marker + "=" + b.spec.ID},
		Dir:        "/",
		Stdout:     log,
		Stderr:     log,
		ExtraFiles: []*os.File{far},
		SysProcAttr: &syscall.SysProcAttr{
			Setsid: true,
		},
	}
	attr := b.cmd.SysProcAttr
	switch b.spec.Isolation {
	case Namespaces:
		attr.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS
	case UserNamespaces:
		attr.Cloneflags = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	case Directory:
	default:
		near.conn.Close()
		return fmt.Errorf("unknown isolation %q", b.spec.Isolation)
	}
	if err := b.cmd.Start(); err != nil {
		near.conn.Close()
		return err
	}
	return nil
}

// handshake sends the spec and waits for the main process.
func (b *Box) handshake() error {
	if err := b.wire.send(request{Op: "setup", Spec: &b.spec}, nil); err != nil {
		return fmt.Errorf("start box %s: %w", b.spec.ID, err)
	}
	b.wire.conn.SetReadDeadline(time.Now().Add(startLimit))
	defer b.wire.conn.SetReadDeadline(time.Time{})
	var r reply
	if _, err := b.wire.receive(&r); err != nil {
		return fmt.Errorf("start box %s: %w", b.spec.ID, err)
	}
	if r.Op != "started" {
		return &StartError{ID: b.spec.ID, Reason: r.Reason}
	}
	return nil
}

// watch hands the init's reports on until it ends.
func (b *Box) watch() {
	for {
		var r reply
		if _, err := b.wire.receive(&r); err != nil {
			break
		}
		b.note(r)
	}
	_ = b.cmd.Wait()
	if b.spec.Isolation == Directory {
		killMarked(b.spec.ID)
	}
	b.wire.conn.Close()
	b.mu.Lock()
	b.exited = true
	for id, s := range b.sessions {
		delete(b.sessions, id)
		s.end(137)
	}
	b.mu.Unlock()
	close(b.done)
}

func (b *Box) note(r reply) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sessions[r.ID]
	switch {
	case r.ID == 0 && r.Op == "exited":
		b.exit = r.Status
	case s == nil:
	case r.Op == "alive":
		delete(b.sessions, r.ID)
		s.started <- nil
	case r.Op == "started":
		s.pid = r.PID
		s.started <- nil
	case r.Op == "failed":
		delete(b.sessions, r.ID)
		s.started <- &StartError{ID: b.spec.ID, Reason: r.Reason}
	case r.Op == "exited":
		delete(b.sessions, r.ID)
		s.end(r.Status)
	}
}

func (s *Session) end(status int) {
	s.exit = status
	select {
	case s.started <- ErrEnded: // nobody had answered yet
	default:
	}
	close(s.done)
}

// Exec starts argv as a session leader whose controlling terminal is tty, with
// env on top of the box's environment, and returns when it runs. It does not look
// at User: sessions are root's. A program that cannot be started is a [StartError].
func (b *Box) Exec(argv, env []string, tty *os.File) (*Session, error) {
	return b.ask(request{Op: "exec", Argv: argv, Env: append(append([]string{}, b.env...), env...)}, tty)
}

// Ping returns nil if the box lives, and [ErrEnded] if it ended or is ending.
func (b *Box) Ping() error {
	_, err := b.ask(request{Op: "ping"}, nil)
	return err
}

// ask sends a request under a new id and waits for its first answer.
func (b *Box) ask(r request, attach *os.File) (*Session, error) {
	s := &Session{box: b, started: make(chan error, 1), done: make(chan struct{})}
	b.mu.Lock()
	if b.exited {
		b.mu.Unlock()
		return nil, ErrEnded
	}
	b.next++
	s.id, r.ID = b.next, b.next
	b.sessions[s.id] = s
	b.mu.Unlock()
	if err := b.wire.send(r, attach); err != nil {
		b.mu.Lock()
		delete(b.sessions, s.id)
		b.mu.Unlock()
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed) {
			return nil, ErrEnded
		}
		return nil, err
	}
	if err := <-s.started; err != nil {
		return nil, err
	}
	return s, nil
}

// Done is closed when the session's first process ended.
func (s *Session) Done() <-chan struct{} { return s.done }

// Kill ends the session's first process only, as the agent does.
func (s *Session) Kill() {
	_ = s.box.wire.send(request{Op: "signal", ID: s.id, Signal: int(unix.SIGKILL)}, nil)
}

// Signal sends sig to the main process.
func (b *Box) Signal(sig syscall.Signal) error {
	return b.wire.send(request{Op: "signal", Signal: int(sig)}, nil)
}

// Kill ends every process of the box; [Box.Done] tells when that is done.
func (b *Box) Kill() {
	// In a namespace the kernel ends all with the init. Without one the init must
	// live to do it, so it is only told that the outside is gone.
	if b.spec.Isolation == Directory {
		_ = b.wire.conn.CloseWrite()
		return
	}
	_ = b.cmd.Process.Kill()
}

// Done is closed when no process of the box is left.
func (b *Box) Done() <-chan struct{} { return b.done }

// ExitStatus is the main process's exit status, 128+n for a signal, 137 for a
// box that was killed. It is valid after Done.
func (b *Box) ExitStatus() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.exit
}

// Processes lists the processes of the box that lived at the scan, without its init.
func (b *Box) Processes(at Scan) []Process {
	select {
	case <-b.done:
		return nil
	default:
		return at.below(b.cmd.Process.Pid)
	}
}

// Dir is the box's directory on the host.
func (b *Box) Dir() string { return b.spec.Dir }
