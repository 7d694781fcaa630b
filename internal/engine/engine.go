// Package engine starts the AWS emulator that tests, the demo and local deploys
// use, on loopback, and deploys the stack to it. Nothing in a function's binary
// imports it. Its rule: no process started here can reach AWS, because its whole
// environment is written here and passes [Guard] first.
package engine

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/engine/localtls"
)

// The account, region and credentials of the engine. They belong to no one.
const (
	Account = "000000000000"
	Region  = "us-east-1"
	key     = "test"
)

const module = "github.com/sandkeeper/sandkeeper"

// ErrNotInstalled means that the engine's Python environment is missing; make
// setup builds it.
var ErrNotInstalled = errors.New("engine is not installed, run make setup")

const (
	readyWithin = 60 * time.Second // a cold disk on two busy cores
	stopWithin  = 10 * time.Second
)

//go:embed launch.py
var launcher string

// Options says where an engine lives and what its functions see. The zero value
// is an engine that leaves nothing behind.
type Options struct {
	// Root is the repository: .venv and node_modules are there. Default: the
	// nearest directory upwards that holds this module's go.mod.
	Root string
	// Dir keeps state, logs and tool homes. Default: a temporary directory that
	// is removed when the engine stops.
	Dir string
	// ECSEndpoint is local Fargate's URL, which functions get as
	// AWS_ENDPOINT_URL_ECS. Default: the engine's own, a stub that runs nothing.
	ECSEndpoint string
	// IAM enforces the policies of roles, which the engine does over TLS only, with
	// a certificate of its own. The key test stays that of an administrator.
	IAM bool
}

// Engine is a running engine. Its methods may be called from many goroutines.
type Engine struct {
	// Endpoint is the URL of every service but ECS.
	Endpoint string
	// ECSEndpoint is the URL that functions use for ECS.
	ECSEndpoint string
	// Dir holds engine.log, and the tools' homes.
	Dir string

	root     string
	tls      *localtls.Certificate // nil over plain HTTP
	process  *exec.Cmd
	lifeline io.Closer
	exited   chan struct{} // closed after process.Wait; nil if attached
}

// Start starts an engine and returns when it answers. It returns
// [ErrNotInstalled] where there is none. The caller stops it; if the caller dies,
// it stops by itself. ctx bounds the start only.
func Start(ctx context.Context, o Options) (*Engine, error) {
	root, err := orRoot(o.Root)
	if err != nil {
		return nil, err
	}
	python := filepath.Join(root, ".venv", "bin", "python")
	if _, err := os.Stat(filepath.Join(root, ".venv", "bin", "ministack")); err != nil {
		return nil, ErrNotInstalled
	}
	dir, doomed, err := stateDir(o.Dir)
	if err != nil {
		return nil, err
	}
	var trust *localtls.Certificate
	if o.IAM {
		if trust, err = localtls.New(dir); err != nil {
			return nil, err
		}
	}
	// A free port may be taken before the engine binds it; it then exits at once.
	for range 3 {
		e := &Engine{Dir: dir, root: root, tls: trust, ECSEndpoint: o.ECSEndpoint, exited: make(chan struct{})}
		if err = e.launch(python, doomed); err != nil {
			return nil, err
		}
		if err = e.awaitReady(ctx); err == nil {
			return e, nil
		}
		_ = e.Stop()
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("start engine in %s: %w", dir, err)
}

// Attach is an engine that somebody else runs at endpoint, on this machine: for
// deploys and clients. Stop leaves it running. o.Dir is required.
func Attach(endpoint string, o Options) (*Engine, error) {
	root, err := orRoot(o.Root)
	if err != nil {
		return nil, err
	}
	if o.Dir == "" {
		return nil, errors.New("attach to engine: no directory for the tools' homes")
	}
	dir, _, err := stateDir(o.Dir)
	if err != nil {
		return nil, err
	}
	e := &Engine{Endpoint: endpoint, ECSEndpoint: o.ECSEndpoint, Dir: dir, root: root}
	if e.ECSEndpoint == "" {
		e.ECSEndpoint = endpoint
	}
	if err := Guard(e.Env()); err != nil {
		return nil, fmt.Errorf("attach to engine: %w", err)
	}
	return e, nil
}

// stateDir makes the directories of an engine. doomed is the one to remove when
// the engine ends, empty if the caller named it.
func stateDir(named string) (dir, doomed string, err error) {
	dir = named
	if dir == "" {
		if dir, err = os.MkdirTemp("", "sandkeeper-engine-"); err != nil {
			return "", "", fmt.Errorf("make engine directory: %w", err)
		}
		doomed = dir
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", "", fmt.Errorf("resolve engine directory: %w", err)
	}
	for _, sub := range []string{"home", "tmp", "state"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return "", "", fmt.Errorf("make engine directory: %w", err)
		}
	}
	return dir, doomed, nil
}

// launch starts the process on a port that was free a moment ago.
func (e *Engine) launch(python, doomed string) error {
	address, err := freeAddress()
	if err != nil {
		return err
	}
	e.Endpoint = e.scheme() + "://" + address
	if e.ECSEndpoint == "" {
		e.ECSEndpoint = e.Endpoint
	}
	log, err := os.OpenFile(filepath.Join(e.Dir, "engine.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open engine log: %w", err)
	}
	defer log.Close()
	e.process = exec.Command(python, "-c", launcher)
	if doomed != "" {
		e.process.Args = append(e.process.Args, doomed)
	}
	e.process.Dir = e.Dir
	e.process.Env = e.processEnv(address)
	if err := Guard(e.process.Env); err != nil {
		return err
	}
	e.process.Stdout, e.process.Stderr = log, log
	// Its own group: Ctrl-C is for the caller, who then stops it in order.
	e.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if e.lifeline, err = e.process.StdinPipe(); err != nil {
		return fmt.Errorf("start engine: %w", err)
	}
	if err := e.process.Start(); err != nil {
		return fmt.Errorf("start engine: %w", err)
	}
	go func() {
		_ = e.process.Wait() // how it ended says nothing more than that it ended
		close(e.exited)
	}()
	return nil
}

// processEnv is the engine's whole environment, and so the base of every
// function's: what the stack forgets to declare must not be found here.
func (e *Engine) processEnv(address string) []string {
	_, port, _ := net.SplitHostPort(address)
	env := append(e.Env(),
		"TMPDIR="+filepath.Join(e.Dir, "tmp"),
		"STATE_DIR="+filepath.Join(e.Dir, "state"),
		"GATEWAY_PORT="+port,
		"BIND_HOST=127.0.0.1",
		"MINISTACK_HOST=127.0.0.1",
		"DOCKER_HOST=unix:///nonexistent",
		"IOT_MTLS_ENABLED=0",
		"SFTP_ENABLED=0",
		"PYTHONDONTWRITEBYTECODE=1",
	)
	if e.tls != nil {
		env = append(env, "AUTH=true", "USE_SSL=1", "MINISTACK_SSL_CERT="+e.tls.File, "MINISTACK_SSL_KEY="+e.tls.KeyFile)
	}
	return env
}

// awaitReady polls until the engine answers, exits or takes too long.
func (e *Engine) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if e.ready(ctx) {
			return nil
		}
		select {
		case <-tick.C:
		case <-e.exited:
			return errors.New("it exited, see engine.log")
		case <-ctx.Done():
			return fmt.Errorf("wait until ready: %w", context.Cause(ctx))
		}
	}
}

func (e *Engine) ready(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.Endpoint+"/_ministack/ready", nil)
	if err != nil {
		return false
	}
	response, err := (&http.Client{Transport: e.transport()}).Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// Stop ends the engine and its functions. It may be called more than once.
func (e *Engine) Stop() error {
	if e.process == nil {
		return nil
	}
	_ = e.process.Process.Signal(syscall.SIGTERM) // it may have exited
	defer e.lifeline.Close()
	select {
	case <-e.exited:
		return nil
	case <-time.After(stopWithin):
	}
	// The group: functions that outlived their parent go with it.
	_ = syscall.Kill(-e.process.Process.Pid, syscall.SIGKILL)
	<-e.exited
	return fmt.Errorf("stop engine: killed after %s", stopWithin)
}

// Exited is closed when the engine has ended, by [Engine.Stop] or by itself. It
// is never closed for an engine that somebody else runs.
func (e *Engine) Exited() <-chan struct{} { return e.exited }

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find free port: %w", err)
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}

// orRoot finds the repository upwards of the working directory unless it is named.
func orRoot(named string) (string, error) {
	if named != "" {
		return filepath.Abs(named)
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find repository: %w", err)
	}
	for ; ; dir = filepath.Dir(dir) {
		// infra has a go.mod of its own, below.
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module "+module+"\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("find repository: the working directory is not in it")
		}
	}
}

// Root is the repository's directory.
func (e *Engine) Root() string { return e.root }

func (e *Engine) scheme() string {
	if e.tls == nil {
		return "http"
	}
	return "https"
}
