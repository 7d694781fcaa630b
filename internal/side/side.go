package side

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mcptools"
	"github.com/sandkeeper/sandkeeper/internal/secretdir"
	"github.com/sandkeeper/sandkeeper/internal/toolwire"
	"github.com/sandkeeper/sandkeeper/internal/transfer"
	"github.com/sandkeeper/sandkeeper/internal/watch"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
)

// Grace is how long after a run's end its wrapper waits for a companion, all in all;
// DrainGrace is the part of it that may pass before the sentinel, which waits for files to
// be told.
const (
	Grace      = 5 * time.Second
	DrainGrace = 3 * time.Second

	restMost  = time.Second     // for the rest of the journal, once all is over
	nudgeMost = 3 * time.Second // for one try to say so
)

// maxLine bounds a line of the wrapper's.
const maxLine = 2 << 20

// Main is the companion's process: it does what the wrapper tells it, until the nudge is
// sent, or the wrapper is gone.
func Main() int {
	// Whoever ends the run ends what the wrapper keeps; this process goes with the wrapper.
	// Caught rather than ignored: a program that it runs would inherit the latter.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	syscall.CloseOnExec(TellFD)
	syscall.CloseOnExec(SaidFD)
	log := slog.New(slog.NewTextHandler(&bounded{os.Stderr, maxLog}, nil))
	tell, said := os.NewFile(TellFD, "tell"), os.NewFile(SaidFD, "said")
	if tell == nil || said == nil {
		fmt.Fprintln(os.Stderr, "sandkeeper-agent: side: the wrapper starts it")
		return 2
	}
	if err := Run(context.Background(), tell, said, log); err != nil {
		log.Error("side", "err", err)
		return 1
	}
	return 0
}

// maxLog is how much a companion may say, bytes.
const maxLog = 64 << 10

// bounded drops what is too much, and whatever cannot be written.
type bounded struct {
	w    io.Writer
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left >= 0 {
		_, _ = b.w.Write(p)
	}
	return len(p), nil
}

// companion is one at work.
type companion struct {
	Config
	client *toolwire.Client // nil: there is no URL
	log    *slog.Logger
	mu     sync.Mutex
	said   io.Writer
}

// Run does what the lines on tell say, and answers on said. It returns when the run's end
// has been told on, or when tell ends.
func Run(ctx context.Context, tell io.Reader, said io.Writer, log *slog.Logger) error {
	lines := bufio.NewReaderSize(tell, 64<<10)
	c := &companion{said: said, log: log}
	if err := readLine(lines, &c.Config); err != nil {
		return fmt.Errorf("read what to do: %w", err)
	}
	if c.URL != "" {
		var err error
		if c.client, err = toolwire.NewClient(c.URL, c.Host, c.Bearer); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return c.run(ctx, hear(lines, cancel))
}

func readLine(in *bufio.Reader, v any) error {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxLine:
			return fmt.Errorf("want a line of at most %d bytes", maxLine)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return err
		}
		// The decoder's error may quote a secret.
		if json.Unmarshal(line, v) != nil {
			return errors.New("want a line of JSON")
		}
		return nil
	}
}

// hear passes on what the wrapper tells. When it is gone, all ends.
func hear(lines *bufio.Reader, gone func()) <-chan Told {
	told := make(chan Told, 4)
	go func() {
		defer gone()
		for {
			var t Told
			if readLine(lines, &t) != nil {
				return
			}
			told <- t
		}
	}()
	return told
}

func (c *companion) say(s Said) {
	line, err := json.Marshal(s)
	if err != nil {
		return // text: cannot be
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.said.Write(append(line, '\n')) // who does not hear it waits no longer than he would
}

// run has everything go on until the run is over, then has it end in order: files, the
// rest of the journal, the word.
func (c *companion) run(ctx context.Context, told <-chan Told) error {
	c.serve(ctx)
	watching, stopWatch := c.watch(ctx)
	pushing, pushed := c.push(ctx)
	for {
		select {
		case <-ctx.Done():
			return errors.New("the wrapper is gone")
		case t := <-told:
			switch {
			case t.Over:
				pushing <- t.End
				stopWatch()
				c.await(ctx, watching, DrainGrace)
				c.say(Said{Drained: true})
			case t.Sealed:
				c.await(ctx, pushed, restMost)
				return c.nudge(ctx, t.Exit)
			}
		}
	}
}

func (c *companion) await(ctx context.Context, done <-chan struct{}, most time.Duration) {
	select {
	case <-done:
	case <-ctx.Done():
	case <-time.After(most):
	}
}

// serve offers the run's tools, and says where.
func (c *companion) serve(ctx context.Context) {
	if len(c.Tools) == 0 && c.Policy == nil {
		return
	}
	config, err := mcptools.FromSide(c.Side, c.Root)
	if err != nil {
		c.log.Error("serve tools", "err", err)
		return
	}
	config.Token, config.Addr = cmp.Or(c.Token, mcptools.NewToken()), c.Addr
	addr, err := mcptools.Serve(ctx, config)
	if err != nil {
		c.log.Error("serve tools", "err", err)
		return
	}
	text, err := mcptools.AgentConfig(addr, config.Token)
	if err != nil {
		c.log.Error("serve tools", "err", err)
		return
	}
	c.say(Said{Ready: &Ready{Addr: addr, URL: mcptools.Endpoint(addr), Token: config.Token, Agents: string(text)}})
}

// watch has changes of files written down until it is stopped.
func (c *companion) watch(ctx context.Context) (done <-chan struct{}, stop func()) {
	over := make(chan struct{})
	if c.Watch == nil {
		close(over)
		return over, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	watching := sync.OnceFunc(func() { c.say(Said{Watching: true}) })
	go func() {
		defer close(over)
		defer watching() // nobody waits for what cannot be
		err := watch.Run(ctx, watch.Config{
			Root: cmp.Or(c.Watch.Root, c.Root), Exclude: c.Watch.Exclude, MaxDiffBytes: c.Watch.MaxDiffBytes, Repository: c.Watch.Repository, Baseline: c.Watch.Baseline,
			Out: cmp.Or(c.Watch.Out, c.Files), MaxBytes: c.Watch.MaxBytes, Logger: c.log, Redact: c.redact(), Ready: watching,
		})
		if err != nil {
			c.log.Error("watch", "err", err)
		}
	}()
	return over, cancel
}

// redact blanks the secrets that the set-up left. Where they cannot be read no content is
// written down at all: everything is blanked.
func (c *companion) redact() func([]byte) bool {
	values, err := secretdir.At(os.Environ()).All()
	var secrets []workspace.Secret
	for name, value := range values {
		secrets = append(secrets, workspace.Secret{Name: name, Value: value})
	}
	var r *workspace.Redactor
	if err == nil {
		r, err = workspace.NewRedactor(secrets, []string{workspace.FormBase64, workspace.FormURL})
	}
	if err != nil {
		c.log.Error("read secrets", "err", err)
		return func(data []byte) bool { clear(data); return true }
	}
	return r.Redact
}

// push has the journal copied into the spool; it is told where the journal ends.
func (c *companion) push(ctx context.Context) (end chan<- int64, done <-chan struct{}) {
	at, over := make(chan int64, 1), make(chan struct{})
	if !c.Spool || c.client == nil {
		close(over)
		return at, over
	}
	p := &Pusher{
		Journal: c.Journal, State: filepath.Join(c.Marker, "spool"), Follow: filepath.Join(c.Marker, core.FollowMark),
		Grants: c.client.Spool, Client: transfer.NewHTTPClient(), Log: c.log,
	}
	go func() {
		defer close(over)
		if err := p.Run(ctx, at); err != nil {
			c.log.Error("push", "err", err)
		}
	}()
	return at, over
}

// nudge says that the agent has ended, once heard.
func (c *companion) nudge(ctx context.Context, exit int) error {
	if !c.Nudge || c.client == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, nudgeMost)
	defer cancel()
	if err := c.client.Ended(ctx, exit); err != nil {
		return fmt.Errorf("say that the agent has ended: %w", err)
	}
	return nil
}
