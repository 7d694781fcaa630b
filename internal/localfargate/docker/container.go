package docker

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/localfargate/box"
)

// Label is on every container; its value names the server that made it.
const Label = "sandkeeper.local"

// ErrEnded means that a container ended, or is ending.
var ErrEnded = box.ErrEnded

// Spec describes a container.
type Spec struct {
	Server string // value of [Label]
	Image  string
	// Box is what a box would be made from: its directory's work and tmp are mounted at
	// the same places as there. Its isolation is not looked at.
	Box box.Spec
	// MemoryMiB and CPUUnits limit the container; 1024 units are one processor. 0: no
	// limit.
	MemoryMiB, CPUUnits int
	ReadOnlyRoot        bool
}

// Container is a running container. Its methods may be called by many goroutines.
type Container struct {
	engine *Engine
	id     string
	spec   Spec
	pid    int // of its init, as this machine numbers it
	done   chan struct{}
	// killed is set when an exec session's process died by SIGKILL, as all do with their
	// container.
	killed atomic.Bool

	exit   int    // valid after done
	reason string // valid after done
}

// mount is a host's path in a container.
type mount struct {
	Type, Source, Target string
}

type hostConfig struct {
	Init           bool
	Memory         int64 `json:",omitempty"`
	MemorySwap     int64 `json:",omitempty"`
	NanoCPUs       int64 `json:"NanoCpus,omitempty"`
	NetworkMode    string
	ReadonlyRootfs bool
	Mounts         []mount
	LogConfig      map[string]string
}

type createRequest struct {
	Image      string
	Entrypoint []string
	Cmd        []string
	Env        []string
	User       string
	WorkingDir string
	Labels     map[string]string
	HostConfig hostConfig
}

// Start makes a container and returns when its main process runs. A main process that
// cannot be started is a [box.StartError].
func (e *Engine) Start(ctx context.Context, spec Spec) (*Container, error) {
	if err := makeDirs(spec.Box); err != nil {
		return nil, fmt.Errorf("start container %s: %w", spec.Box.ID, err)
	}
	// What the engine was told to make is either run or removed, not forgotten halfway.
	ctx = context.WithoutCancel(ctx)
	var made struct{ ID string }
	if err := e.call(ctx, http.MethodPost, "/containers/create", spec.request(), &made); err != nil {
		return nil, startError(spec, err)
	}
	c := &Container{engine: e, id: made.ID, spec: spec, done: make(chan struct{})}
	if err := c.begin(ctx); err != nil {
		return nil, errors.Join(startError(spec, err), e.remove(ctx, c.id))
	}
	return c, nil
}

// startError words a refusal as the container engine of ECS does.
func startError(spec Spec, err error) error {
	if e, ok := errors.AsType[*APIError](err); ok {
		return &box.StartError{ID: spec.Box.ID, Reason: e.Message}
	}
	return err
}

func makeDirs(spec box.Spec) error {
	for name, mode := range map[string]os.FileMode{"work": 0o777, "tmp": 0o777 | os.ModeSticky} {
		dir := path.Join(spec.Dir, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(dir, mode); err != nil { // whoever the image's user is
			return err
		}
	}
	return nil
}

func (s Spec) request() createRequest {
	work := box.WorkDir(s.Box.Dir)
	mounts := []mount{{"bind", work, work}, {"bind", path.Join(s.Box.Dir, "tmp"), "/tmp"}}
	for _, visible := range s.Box.Visible {
		mounts = append(mounts, mount{"bind", visible, visible})
	}
	memory := int64(s.MemoryMiB) << 20
	return createRequest{
		Image: s.Image, Entrypoint: []string{}, Cmd: s.Box.Argv, Env: s.Box.Env, User: s.Box.User,
		WorkingDir: cmp.Or(s.Box.WorkDir, work), Labels: map[string]string{Label: s.Server},
		HostConfig: hostConfig{
			// As in a box, orphans are reaped and signals have their usual effect.
			Init:   true,
			Memory: memory, MemorySwap: memory, // the same: no swap beside it
			NanoCPUs: int64(s.CPUUnits) * 1e9 / 1024,
			// A task sees this machine's loopback, where everything local listens.
			NetworkMode: "host", ReadonlyRootfs: s.ReadOnlyRoot, Mounts: mounts,
			LogConfig: map[string]string{"Type": "none"},
		},
	}
}

func (c *Container) begin(ctx context.Context) error {
	// The init would start and fail, where ECS says that the container did not start.
	if _, err := c.lookUp(ctx, c.spec.Box.Argv[0]); err != nil {
		return &box.StartError{ID: c.spec.Box.ID, Reason: err.Error()}
	}
	logs, err := c.attach(ctx)
	if err != nil {
		return err
	}
	if err := c.engine.call(ctx, http.MethodPost, "/containers/"+c.id+"/start", nil, nil); err != nil {
		logs()
		return err
	}
	state, err := c.inspect(ctx)
	if err != nil {
		logs()
		return err
	}
	c.pid = state.Pid
	go c.watch(logs)
	return nil
}

// lookUp finds a program in the container as the engine would; the error is worded
// like the engine's.
func (c *Container) lookUp(ctx context.Context, program string) (string, error) {
	if strings.Contains(program, "/") {
		if !c.has(ctx, program) {
			return "", &os.PathError{Op: "fork/exec", Path: program, Err: syscall.ENOENT}
		}
		return program, nil
	}
	for dir := range strings.SplitSeq(c.variable("PATH"), ":") {
		if found := path.Join(dir, program); dir != "" && c.has(ctx, found) {
			return found, nil
		}
	}
	return "", fmt.Errorf("exec: %q: executable file not found in $PATH", program)
}

func (c *Container) variable(name string) string {
	value := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for _, entry := range c.spec.Box.Env {
		if v, ok := strings.CutPrefix(entry, name+"="); ok {
			value = v
		}
	}
	return value
}

// has says whether a path is there, in the image or a mount.
func (c *Container) has(ctx context.Context, file string) bool {
	response, err := c.engine.request(ctx, http.MethodHead, "/containers/"+c.id+"/archive?path="+url.QueryEscape(file), nil, nil)
	if err != nil {
		return false
	}
	response.Body.Close()
	return true
}

// attach begins to write the main process's output to the box's log; the function that
// it returns waits until it is all there, but not for long.
func (c *Container) attach(ctx context.Context) (finish func(), err error) {
	log, err := os.OpenFile(box.LogFile(c.spec.Box.Dir), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	query := url.Values{"stream": {"1"}, "stdout": {"1"}, "stderr": {"1"}}
	stream, err := c.engine.stream(ctx, "/containers/"+c.id+"/attach?"+query.Encode(), nil)
	if err != nil {
		log.Close()
		return nil, err
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		defer log.Close()
		_ = demultiplex(log, stream) // it ends with the container
	}()
	return func() {
		select {
		case <-copied:
		case <-time.After(time.Second):
		}
		stream.Close()
		<-copied
	}, nil
}

// demultiplex writes what stands behind the headers of a stream of stdout and stderr.
func demultiplex(to io.Writer, from io.Reader) error {
	var header [8]byte
	for {
		if _, err := io.ReadFull(from, header[:]); err != nil {
			return err
		}
		if _, err := io.CopyN(to, from, int64(binary.BigEndian.Uint32(header[4:]))); err != nil {
			return err
		}
	}
}

type state struct {
	Running   bool
	OOMKilled bool
	ExitCode  int
	Pid       int
	Error     string
}

func (c *Container) inspect(ctx context.Context) (state, error) {
	var out struct{ State state }
	err := c.engine.call(ctx, http.MethodGet, "/containers/"+c.id+"/json", nil, &out)
	return out.State, err
}

// OutOfMemory is the reason that ECS gives for a container whose memory was all used.
const OutOfMemory = "OutOfMemoryError: Container killed due to memory usage"

// watch waits for the container's end, notes how it was, and removes the container.
func (c *Container) watch(logs func()) {
	defer close(c.done)
	ctx := context.Background() // the container's own life; it ends with its server
	c.exit = 137
	var ended struct{ StatusCode int }
	err := c.engine.callLong(ctx, http.MethodPost, "/containers/"+c.id+"/wait?condition=not-running", nil, &ended)
	if err == nil {
		c.exit = ended.StatusCode
	}
	if at, err := c.inspect(ctx); err == nil && at.OOMKilled {
		c.reason = OutOfMemory
	}
	logs()
	_ = c.engine.remove(ctx, c.id) // what is left goes with the server
}

// Done is closed when nothing of the container runs and it is removed.
func (c *Container) Done() <-chan struct{} { return c.done }

// ExitStatus is the main process's exit status, 128+n for a signal. It is valid after
// Done.
func (c *Container) ExitStatus() int { return c.exit }

// Reason is why the container ended, if the engine knows more than its exit status. It
// is valid after Done.
func (c *Container) Reason() string { return c.reason }

// Signal sends sig to the main process.
func (c *Container) Signal(sig syscall.Signal) error {
	err := c.engine.call(context.Background(), http.MethodPost, "/containers/"+c.id+fmt.Sprintf("/kill?signal=%d", int(sig)), nil, nil)
	if e, ok := errors.AsType[*APIError](err); ok && (e.Status == http.StatusNotFound || e.Status == http.StatusConflict) {
		return nil // it has ended
	}
	return err
}

// Kill ends every process of the container; [Container.Done] tells when that is done.
func (c *Container) Kill() { _ = c.Signal(syscall.SIGKILL) }

// deathSeen is how long a container's end may take to show after it has ended the
// sessions in it.
const deathSeen = 2 * time.Second

// Ping returns nil if the container lives, and [ErrEnded] if it ended or is ending.
func (c *Container) Ping() error {
	wait := time.Duration(0)
	if c.killed.Load() {
		wait = deathSeen
	}
	select {
	case <-c.done:
		return ErrEnded
	case <-time.After(wait):
	}
	if at, err := c.inspect(context.Background()); err != nil || !at.Running {
		return ErrEnded
	}
	return nil
}

// Processes lists the processes of the container that lived at the scan, without its
// init.
func (c *Container) Processes(at box.Scan) []box.Process {
	select {
	case <-c.done:
		return nil
	default:
		return at.InNamespaceOf(c.pid)
	}
}

// Session is one process started in a container on a terminal.
type Session struct {
	container *Container
	id        string
	stream    io.ReadWriteCloser
	done      chan struct{}
	closing   sync.Once
}

type execState struct {
	Pid      int
	ExitCode *int
	Running  bool
}

// Exec starts argv as root on a terminal of the container's and passes its bytes on
// between there and tty, which it keeps open until the session's end. A program that
// cannot be started is an error worded like the agent's.
func (c *Container) Exec(argv, env []string, tty *os.File) (*Session, error) {
	ctx := context.Background() // a session outlives the call that began it
	program, err := c.lookUp(ctx, argv[0])
	if err != nil {
		return nil, err
	}
	relay, err := rawCopy(tty)
	if err != nil {
		return nil, err
	}
	var made struct{ ID string }
	request := map[string]any{
		"AttachStdin": true, "AttachStdout": true, "AttachStderr": true, "Tty": true, "User": "0",
		"Cmd": append([]string{program}, argv[1:]...), "Env": slices.Concat(c.spec.Box.Env, env),
	}
	if err := c.engine.call(ctx, http.MethodPost, "/containers/"+c.id+"/exec", request, &made); err != nil {
		relay.Close()
		return nil, ended(err)
	}
	stream, err := c.engine.stream(ctx, "/exec/"+made.ID+"/start", map[string]any{"Detach": false, "Tty": true})
	if err != nil {
		relay.Close()
		return nil, ended(err)
	}
	s := &Session{container: c, id: made.ID, stream: stream, done: make(chan struct{})}
	go s.output(relay)
	go s.input(relay)
	return s, nil
}

// ended reads the engine's word for a container that does not run.
func ended(err error) error {
	if e, ok := errors.AsType[*APIError](err); ok && (e.Status == http.StatusConflict || e.Status == http.StatusNotFound) {
		return ErrEnded
	}
	return err
}

func (s *Session) state() (execState, error) {
	var at execState
	err := s.container.engine.call(context.Background(), http.MethodGet, "/exec/"+s.id+"/json", nil, &at)
	return at, err
}

// output passes on what the command says until it has ended.
func (s *Session) output(relay *os.File) {
	defer close(s.done)
	_, _ = io.Copy(relay, s.stream) // either side may end first
	if at, err := s.state(); err == nil && at.ExitCode != nil && *at.ExitCode == 137 {
		s.container.killed.Store(true)
	}
	relay.Close() // the terminal's other end falls silent
	s.close()
}

// input passes on what the client types; the end of the terminal is the session's.
func (s *Session) input(relay *os.File) {
	_, _ = io.Copy(s.stream, relay)
	select {
	case <-s.done:
	default:
		s.hangUp()
	}
	s.close()
}

func (s *Session) close() { s.closing.Do(func() { s.stream.Close() }) }

// hangUp is what the kernel does when a terminal goes.
func (s *Session) hangUp() { s.signal(syscall.SIGHUP) }

// signal reaches the command from outside, which the engine has no call for.
func (s *Session) signal(sig syscall.Signal) {
	if at, err := s.state(); err == nil && at.Running && at.Pid > 1 {
		_ = syscall.Kill(at.Pid, sig)
	}
}

// Done is closed when the session's first process ended.
func (s *Session) Done() <-chan struct{} { return s.done }

// Kill ends the session's first process only, as the agent does.
func (s *Session) Kill() { s.signal(syscall.SIGKILL) }

// Resize sets the size of the container's terminal.
func (s *Session) Resize(columns, rows uint16) {
	query := url.Values{"w": {fmt.Sprint(columns)}, "h": {fmt.Sprint(rows)}}
	_ = s.container.engine.call(context.Background(), http.MethodPost, "/exec/"+s.id+"/resize?"+query.Encode(), nil, nil) // as with any terminal, nobody hears
}
