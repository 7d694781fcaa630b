package localfargate

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"

	"github.com/sandkeeper/sandkeeper/internal/localfargate/box"
	"github.com/sandkeeper/sandkeeper/internal/localfargate/datachannel"
	"github.com/sandkeeper/sandkeeper/internal/localfargate/docker"
)

// instance is what runs in a container's place, whatever the driver.
type instance interface {
	// Ping returns nil while it lives.
	Ping() error
	// Signal reaches the main process.
	Signal(syscall.Signal) error
	// Kill ends all of it; Done is closed when nothing is left.
	Kill()
	Done() <-chan struct{}
	// ExitStatus is the main process's, and Reason why it ended, if more is known.
	// Both are valid after Done.
	ExitStatus() int
	Reason() string
	// Processes are those that lived at the scan.
	Processes(box.Scan) []box.Process
}

// body is a container's instance, and how sessions begin in it.
type body struct {
	instance
	exec func(argv, env []string, tty *os.File) (datachannel.Process, error)
}

// tree is a box as an instance: its end has no reason beside its status.
type tree struct{ *box.Box }

// Reason is empty.
func (tree) Reason() string { return "" }

// limits are what a container may use, and what its image is.
type limits struct {
	image            string
	memory, cpuUnits int
	readOnlyRoot     bool
}

// limits are the container's own, or those of its task where it has none or more.
func (c *container) limits(t *task) limits {
	least := func(own, override int, ofTask string) int {
		whole, _ := strconv.Atoi(ofTask) // a size in words is shown and binds nothing
		mine := cmp.Or(override, own)
		if mine == 0 || whole != 0 && whole < mine {
			return whole
		}
		return mine
	}
	o := t.overrides[c.definition.Name]
	return limits{
		image:        c.definition.Image,
		memory:       least(c.definition.Memory, o.Memory, cmp.Or(t.input.Overrides.Memory, t.definition.Memory)),
		cpuUnits:     least(c.definition.CPU, o.CPU, cmp.Or(t.input.Overrides.CPU, t.definition.CPU)),
		readOnlyRoot: c.definition.ReadOnlyRoot,
	}
}

// openDriver finds what tasks run on.
func (s *Server) openDriver() (err error) {
	switch s.opts.Driver {
	case "", DriverProcess:
		return s.openBoxes()
	case DriverDocker:
	default:
		return fmt.Errorf("unknown driver %q, want %s or %s", s.opts.Driver, DriverProcess, DriverDocker)
	}
	if s.docker, err = docker.Open(s.ctx, s.opts.DockerSocket); err != nil {
		return err
	}
	s.label = rand.Text()
	s.release, err = s.docker.Guard(s.label)
	return err
}

func (s *Server) openBoxes() (err error) {
	s.isolation = s.opts.Isolation
	if s.isolation == "" {
		s.isolation, err = box.Best(s.dir)
	} else {
		err = box.Try(s.isolation, s.dir)
	}
	return err
}

// closeDriver removes what tasks may have left.
func (s *Server) closeDriver() error {
	if s.release == nil {
		return nil
	}
	return s.release()
}

// start starts a container.
func (s *Server) start(l limits, spec box.Spec) (*body, error) {
	if s.docker == nil {
		b, err := box.Start(spec)
		if err != nil {
			return nil, err
		}
		return &body{tree{b}, func(argv, env []string, tty *os.File) (datachannel.Process, error) {
			session, err := b.Exec(argv, env, tty)
			if err != nil {
				return nil, err
			}
			return session, nil
		}}, nil
	}
	image, err := s.image(s.ctx, l.image)
	if err != nil {
		return nil, err
	}
	// This machine's PATH and home are not the image's.
	spec.Env = slices.DeleteFunc(spec.Env, func(v string) bool { return v == "PATH="+os.Getenv("PATH") })
	c, err := s.docker.Start(s.ctx, docker.Spec{
		Server: s.label, Image: image, Box: spec, MemoryMiB: l.memory, CPUUnits: l.cpuUnits, ReadOnlyRoot: l.readOnlyRoot,
	})
	if err != nil {
		return nil, err
	}
	return &body{c, func(argv, env []string, tty *os.File) (datachannel.Process, error) {
		session, err := c.Exec(argv, env, tty)
		if err != nil {
			return nil, err
		}
		return session, nil
	}}, nil
}

// errNoImage means that the engine has neither the image nor one in its place.
var errNoImage = errors.New("no such image on this machine, and none is pulled")

// image is what the engine is to run for a definition's image.
func (s *Server) image(ctx context.Context, name string) (string, error) {
	for _, candidate := range []string{name, s.opts.Image} {
		if candidate == "" {
			continue
		}
		if ok, err := s.docker.HasImage(ctx, candidate); ok || err != nil {
			return candidate, err
		}
	}
	return "", fmt.Errorf("%s: %w", name, errNoImage)
}

// startReasonCode is ECS's name for what kept a container from starting.
func startReasonCode(err error) string {
	if errors.Is(err, errNoImage) {
		return "CannotPullContainerError: "
	}
	return "CannotStartContainerError: "
}
