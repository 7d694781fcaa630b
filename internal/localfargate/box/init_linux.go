package box

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// initName is the first argument by which a re-executed program knows that it
// is to be the init of a box.
const initName = "sandkeeper-local-init"

var armed bool

// MaybeInit turns the program into the init of a box and never returns, if it
// was started as one; else it only notes that boxes may be started. It belongs at
// the very start of main or TestMain, before flags are read.
func MaybeInit() {
	armed = true
	if len(os.Args) == 0 || os.Args[0] != initName {
		return
	}
	os.Exit(runInit())
}

// initProcess is the state of an init. Its mutex covers fork and registration
// together, so that the reaper never meets a child that nobody registered.
type initProcess struct {
	wire     *wire
	spec     Spec
	mu       sync.Mutex
	children map[int]int // pid to request id; 0 is the main process
	pids     map[int]int // request id to pid
	mainDone chan int
	dying    bool
}

func runInit() int {
	control := os.NewFile(3, "control")
	unix.CloseOnExec(3)
	w, err := newWire(control)
	if err != nil {
		return 125
	}
	control.Close()
	// Stop signals are for the main process; the init ends only after it. They are
	// caught, never ignored: children would inherit that and shrug off a ^C.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGPIPE)
	i := &initProcess{wire: w, children: map[int]int{}, pids: map[int]int{}, mainDone: make(chan int, 1)}
	if err := i.begin(); err != nil {
		_ = w.send(reply{Op: "failed", Reason: err.Error()}, nil)
		return 125
	}
	return i.live()
}

// begin takes the setup request and starts the main process.
func (i *initProcess) begin() error {
	var r request
	if _, err := i.wire.receive(&r); err != nil {
		return err
	}
	if r.Op != "setup" || r.Spec == nil {
		return fmt.Errorf("expected setup, got %q", r.Op)
	}
	i.spec = *r.Spec
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	if err := isolate(i.spec); err != nil {
		return err
	}
	os.Clearenv()
	for _, pair := range i.spec.Env {
		name, value, _ := strings.Cut(pair, "=")
		os.Setenv(name, value)
	}
	childExits := make(chan os.Signal, 1)
	signal.Notify(childExits, unix.SIGCHLD)
	go i.reap(childExits)
	return i.startMain()
}

func (i *initProcess) startMain() error {
	if len(i.spec.Argv) == 0 { // a trial: only the place was asked for
		return i.wire.send(reply{Op: "started"}, nil)
	}
	cred, err := credential(i.spec)
	if err != nil {
		return err
	}
	// As a container's init does: whoever asks where the container works reads it there.
	if err := os.Chdir(i.spec.WorkDir); err != nil {
		return fmt.Errorf("enter working directory: %w", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return fmt.Errorf("open stdin: %w", err)
	}
	defer null.Close()
	return i.spawn(0, i.spec.Argv, &syscall.ProcAttr{
		Dir:   i.spec.WorkDir,
		Env:   i.spec.Env,
		Files: []uintptr{null.Fd(), 1, 2},
		Sys:   &syscall.SysProcAttr{Setsid: true, Credential: cred},
	})
}

// live serves requests until the main process or the outside ends, then leaves
// nobody behind.
func (i *initProcess) live() int {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		i.serve()
	}()
	status := 137
	select {
	case status = <-i.mainDone:
	case <-gone:
	}
	i.mu.Lock()
	i.dying = true // from here on no terminal's end is an ordinary one
	i.mu.Unlock()
	i.killAll()
	_ = i.wire.send(reply{Op: "exited", Status: status}, nil)
	return 0
}

func (i *initProcess) serve() {
	for {
		var r request
		tty, err := i.wire.receive(&r)
		if err != nil {
			return
		}
		switch r.Op {
		case "exec":
			i.exec(r, tty)
		case "signal":
			i.signal(r)
		case "ping":
			i.pong(r)
		}
		if tty != nil {
			tty.Close()
		}
	}
}

// exec starts a session leader on the given terminal.
func (i *initProcess) exec(r request, tty *os.File) {
	if tty == nil {
		_ = i.wire.send(reply{Op: "failed", ID: r.ID, Reason: "no terminal"}, nil)
		return
	}
	fd := tty.Fd()
	err := i.spawn(r.ID, r.Argv, &syscall.ProcAttr{
		Dir:   i.spec.WorkDir,
		Env:   r.Env,
		Files: []uintptr{fd, fd, fd},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0},
	})
	if err != nil {
		_ = i.wire.send(reply{Op: "failed", ID: r.ID, Reason: err.Error()}, nil)
	}
}

func (i *initProcess) signal(r request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if pid, ok := i.pids[r.ID]; ok {
		_ = unix.Kill(pid, unix.Signal(r.Signal))
	}
}

// pong says that the box lives; a dying one does not answer.
func (i *initProcess) pong(r request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.dying {
		_ = i.wire.send(reply{Op: "alive", ID: r.ID}, nil)
	}
}

// spawn starts one process and reports that, before its end can be reported. Its
// error reads as the agent of ECS Exec and the container engine word it.
func (i *initProcess) spawn(id int, argv []string, attr *syscall.ProcAttr) error {
	path := argv[0]
	if !strings.Contains(path, "/") {
		var err error
		if path, err = exec.LookPath(path); err != nil {
			return err
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return &os.PathError{Op: "fork/exec", Path: path, Err: err}
	}
	i.children[pid] = id
	i.pids[id] = pid
	return i.wire.send(reply{Op: "started", ID: id, PID: pid}, nil)
}

// reap collects every child, also those that other processes left to the init.
func (i *initProcess) reap(childExits <-chan os.Signal) {
	for range childExits {
		for i.reapOne() {
		}
	}
}

func (i *initProcess) reapOne() bool {
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
	if err != nil || pid <= 0 {
		return err == syscall.EINTR
	}
	i.mu.Lock()
	id, known := i.children[pid]
	if known {
		delete(i.children, pid)
		delete(i.pids, id)
	}
	i.mu.Unlock()
	switch {
	case !known:
	case id == 0:
		i.mainDone <- exitStatus(status)
	default:
		_ = i.wire.send(reply{Op: "exited", ID: id, Status: exitStatus(status)}, nil)
	}
	return true
}

func exitStatus(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// killAll ends every other process of the box. In a PID namespace the kernel
// does so in one call; else descendants are killed until none is left, which a
// subreaper can tell because orphans become its children.
func (i *initProcess) killAll() {
	if i.spec.Isolation != Directory {
		_ = unix.Kill(-1, unix.SIGKILL)
		return
	}
	for {
		below := ScanProcesses().below(os.Getpid())
		if len(below) == 0 {
			return
		}
		for _, p := range below {
			_ = unix.Kill(p.PID, unix.SIGKILL)
		}
		unix.Nanosleep(&unix.Timespec{Nsec: 2e6}, nil)
	}
}

// isolate makes the private /tmp and /proc of the two namespace kinds.
func isolate(spec Spec) error {
	tmp := filepath.Join(spec.Dir, "tmp")
	if spec.Isolation == Directory {
		return nil
	}
	// Without this the mounts below would travel to the host.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, path := range append(slices.Clone(spec.Visible), spec.Dir) {
		if err := keepVisible(path, tmp); err != nil {
			return err
		}
	}
	if err := unix.Mount(tmp, "/tmp", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount /tmp: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

// keepVisible binds a path below /tmp to its place below the private one.
func keepVisible(path, tmp string) error {
	rel, err := filepath.Rel("/tmp", path)
	if err != nil || rel == "." || rel == ".." || strings.HasPrefix(rel, "../") {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("keep %s visible: %w", path, err)
	}
	target := filepath.Join(tmp, rel)
	if err := makeMountPoint(target, info.IsDir()); err != nil {
		return fmt.Errorf("keep %s visible: %w", path, err)
	}
	if err := unix.Mount(path, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("keep %s visible: %w", path, err)
	}
	return nil
}

func makeMountPoint(target string, dir bool) error {
	if dir {
		return os.MkdirAll(target, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return file.Close()
}

// credential reads [Spec.User]. Only real root can become somebody else.
func credential(spec Spec) (*syscall.Credential, error) {
	if spec.User == "" || spec.Isolation != Namespaces {
		return nil, nil
	}
	name, group, hasGroup := strings.Cut(spec.User, ":")
	uid, gid, err := lookUser(name)
	if err != nil {
		return nil, err
	}
	if hasGroup {
		if gid, err = lookGroup(group); err != nil {
			return nil, err
		}
	}
	return &syscall.Credential{Uid: uid, Gid: gid}, nil
}

func lookUser(name string) (uid, gid uint32, err error) {
	if id, err := strconv.ParseUint(name, 10, 32); err == nil {
		return uint32(id), 0, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return 0, 0, fmt.Errorf("unable to find user %s: no matching entries in passwd file", name)
	}
	id, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return 0, 0, fmt.Errorf("read uid of user %s: %w", name, err)
	}
	group, err := lookGroup(u.Gid)
	return uint32(id), group, err
}

func lookGroup(name string) (uint32, error) {
	if g, err := user.LookupGroup(name); err == nil {
		name = g.Gid
	}
	id, err := strconv.ParseUint(name, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("unable to find group %s: no matching entries in group file", name)
	}
	return uint32(id), nil
}
