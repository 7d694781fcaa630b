package localfargate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/localfargate/box"
	"github.com/sandkeeper/sandkeeper/internal/localfargate/datachannel"
	"github.com/sandkeeper/sandkeeper/internal/localfargate/docker"
)

// Server is one account's ECS and Fargate in one region. Start it once, close it
// once; its other methods may be called by many goroutines in between.
type Server struct {
	opts      Options
	log       *slog.Logger
	throttle  *throttle
	gateway   *datachannel.Gateway
	events    *eventQueue
	calls     *callCounts
	ctx       context.Context // the server's life
	cancel    context.CancelFunc
	http      *http.Server
	url       string
	bridge    string // host:port, empty without a bridge
	dir       string
	ownDir    bool
	isolation box.Isolation
	docker    *docker.Engine // nil under DriverProcess
	label     string         // of the engine's containers
	release   func() error   // ends what guards them
	wg        sync.WaitGroup

	mu          sync.Mutex // guards what follows and the states of all tasks
	closed      bool
	tasks       map[string]*task
	order       []*task // by start, for listings
	started     int64
	tokens      map[tokenKey]tokenUse
	definitions map[string][]*definition // by family, revision 1 first
	clusters    map[string]bool
	faults      Faults // of new tasks
}

// MaybeInit must be called at the start of main or TestMain of every program that
// runs a [Server]: the program re-executes itself as the init of each task, or as what
// removes a dead server's containers.
func MaybeInit() {
	docker.MaybeGuard()
	box.MaybeInit()
}

// New checks the options and returns a server that does not listen yet.
func New(opts Options) (*Server, error) {
	if opts.Addr == "" {
		opts.Addr = "127.0.0.1:0"
	}
	if err := checkLoopback(opts.Addr); err != nil {
		return nil, err
	}
	if opts.Bridge != "" {
		if err := docker.CheckBridge(opts.Bridge); err != nil {
			return nil, fmt.Errorf("listen for containers: %w", err)
		}
	}
	if err := opts.Faults.Check(); err != nil {
		return nil, err
	}
	opts.Region = cmpOr(opts.Region, "us-east-1")
	opts.Account = cmpOr(opts.Account, "000000000000")
	if opts.Habits == (Habits{}) {
		opts.Habits = RealHabits()
	}
	s := &Server{
		opts: opts, log: opts.Log, throttle: newThrottle(opts.Throttle, time.Now()), gateway: datachannel.NewGateway(),
		calls: newCallCounts(), tasks: map[string]*task{}, tokens: map[tokenKey]tokenUse{},
		definitions: map[string][]*definition{}, clusters: map[string]bool{}, faults: opts.Faults,
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	for _, name := range opts.Clusters {
		s.clusters[name] = true
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.events = newEventQueue(opts.Events)
	return s, nil
}

func cmpOr(value, fallback string) string {
	if value == "" {
		return fallback
	}
	return value
}

func checkLoopback(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("listen for local fargate: %w", err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("%w: %q", ErrNotLoopback, addr)
	}
	return nil
}

// Start listens and serves until [Server.Close]. A failed Start leaves nothing
// behind.
func (s *Server) Start() error {
	if err := s.prepareDir(); err != nil {
		return fmt.Errorf("start local fargate: %w", err)
	}
	listeners, err := s.listen()
	if err != nil {
		err = errors.Join(err, s.closeDriver())
		s.removeDir()
		return fmt.Errorf("start local fargate: %w", err)
	}
	s.url = "http://" + listeners[0].Addr().String()
	s.http = &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	for _, listener := range listeners {
		s.wg.Go(func() { _ = s.http.Serve(listener) })
	}
	s.wg.Go(func() { s.events.deliver(s.ctx) })
	return nil
}

// listen opens loopback and, if asked, the bridge.
func (s *Server) listen() ([]net.Listener, error) {
	own, err := net.Listen("tcp", s.opts.Addr)
	if err != nil || s.opts.Bridge == "" {
		return []net.Listener{own}, err
	}
	bridge, err := net.Listen("tcp", s.opts.Bridge)
	if err != nil {
		return nil, errors.Join(err, own.Close())
	}
	s.bridge = bridge.Addr().String()
	secure := &tls.Config{Certificates: []tls.Certificate{s.opts.BridgeCertificate}}
	return []net.Listener{own, tls.NewListener(bridge, secure)}, nil
}

func (s *Server) prepareDir() (err error) {
	s.dir = s.opts.Dir
	if s.dir == "" {
		s.ownDir = true
		if s.dir, err = os.MkdirTemp("", "sandkeeper-local-"); err != nil {
			return err
		}
	}
	if s.dir, err = filepath.Abs(s.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	// Made here and nowhere else: what was there before is not this server's to remove.
	err = os.Mkdir(filepath.Join(s.dir, tasksDir), 0o755)
	switch {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("directory %s: want one without %s in it", s.dir, tasksDir)
	case err != nil:
		return err
	}
	// Containers that run as another user must be able to reach their directory.
	if err := os.Chmod(s.dir, 0o755); err != nil {
		s.removeDir()
		return err
	}
	err = s.openDriver()
	if err != nil {
		s.removeDir()
	}
	return err
}

// tasksDir is where below its directory a server keeps its tasks' files.
const tasksDir = "tasks"

func (s *Server) removeDir() {
	path := filepath.Join(s.dir, tasksDir)
	if s.ownDir {
		path = s.dir
	}
	if err := os.RemoveAll(path); err != nil {
		s.log.Warn("remove task directories", "err", err)
	}
}

// Close stops serving, kills every task's processes, and removes what they wrote.
// It returns when all of it is gone.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed || s.http == nil {
		s.closed = true
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	err := s.http.Close()
	s.gateway.Close()
	s.events.close()
	s.wg.Wait()
	left := s.closeDriver()
	s.removeDir()
	if left != nil {
		return fmt.Errorf("close local fargate: %w", left)
	}
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("close local fargate: %w", err)
	}
	return nil
}

// URL is the endpoint, for AWS_ENDPOINT_URL_ECS. It is valid after Start.
func (s *Server) URL() string { return s.url }

// BridgeURL is the endpoint for containers; empty without [Options.Bridge]. It is
// valid after Start.
func (s *Server) BridgeURL() string {
	if s.bridge == "" {
		return ""
	}
	return "https://" + s.bridge
}

// Isolation is what separates the tasks, empty under [DriverDocker]. It is valid after
// Start.
func (s *Server) Isolation() box.Isolation { return s.isolation }

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{$}", s.serveAPI)
	mux.Handle("GET /v1/data-channel/{id}", s.gateway)
	s.adminRoutes(mux)
	return s.onlyLoopback(mux)
}

// onlyLoopback refuses requests that a web page could have made a browser send:
// this server starts programs.
func (s *Server) onlyLoopback(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		known := host == "localhost" || s.bridge != "" && r.Host == s.bridge
		if ip := net.ParseIP(host); !known && (ip == nil || !ip.IsLoopback()) {
			http.Error(rw, "host is not loopback", http.StatusForbidden)
			return
		}
		next.ServeHTTP(rw, r)
	})
}

// clusterARN is the name's ARN in this account and region.
func (s *Server) clusterARN(name string) string { return s.arn("cluster/" + name) }

func (s *Server) arn(resource string) string {
	return "arn:aws:ecs:" + s.opts.Region + ":" + s.opts.Account + ":" + resource
}
