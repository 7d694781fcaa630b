// Package examples_test runs the examples as their readers would, against the whole
// installation on the local engine. Its rule: an example that no test runs is not kept.
package examples_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/client"
	"github.com/sandkeeper/sandkeeper/internal/engine/enginetest"
	"github.com/sandkeeper/sandkeeper/internal/engine/installtest"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

var shared = installtest.Shared{Options: installtest.Options{Agent: installAgent}}

// installAgent puts the binary that make build-local leaves where every task looks for it.
func installAgent(dir string) (string, error) {
	built, err := os.ReadFile(filepath.Join("..", "dist", "local", "agent", "sandkeeper-agent"))
	if err != nil {
		return "", fmt.Errorf("install agent: %w", err)
	}
	path := filepath.Join(dir, "sandkeeper-agent")
	return path, os.WriteFile(path, built, 0o755)
}

func TestMain(m *testing.M) {
	localfargate.MaybeInit()
	code := m.Run()
	if err := shared.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// within bounds one run of a host, or one step of a build.
const within = 5 * time.Minute

// hosts are how each example's command begins, made ready by its language's own means.
var hosts = map[string]func(t *testing.T) []string{
	"go": func(t *testing.T) []string {
		built := filepath.Join(t.TempDir(), "host-go")
		do(t, ".", "go", "build", "-o", built, "./host-go")
		return []string{built}
	},
	"node": func(t *testing.T) []string {
		need(t, "host-node/node_modules/.ready")
		do(t, "host-node", "node_modules/.bin/tsc", "-p", ".")
		return []string{"node", "host-node/dist/host.js"}
	},
	"python": func(t *testing.T) []string {
		need(t, "host-python/.venv/.ready")
		return []string{"host-python/.venv/bin/python", "host-python/host.py"}
	},
}

// need skips, or fails under CI, where make setup has not been.
func need(t *testing.T, path string) {
	t.Helper()
	_, err := os.Stat(path)
	enginetest.Require(t, err)
}

// do runs a command of a build to its end.
func do(t *testing.T, dir string, command ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	c.Dir = dir
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
	}
	return string(out)
}

// stage is an installation, and one example as a host of it.
type stage struct {
	*testing.T
	*installtest.Installation
	command    []string
	definition string // keeps no checkpoints
	keeping    string // does
	api        client.API
}

// options are what every host takes.
var options = []string{
	"function", "tenant", "thread", "run", "host", "parent", "definition", "shell", "input", "from", "attach", "takeover", "detach", "cancel", "pause",
}

// TestHostsTellTheirOptions to whoever asks for help, and do nothing else.
func TestHostsTellTheirOptions(t *testing.T) {
	for name, make := range hosts {
		t.Run(name, func(t *testing.T) {
			help := do(t, ".", append(make(t), "--help")...)
			for _, option := range options {
				if !strings.Contains(help, "-"+option) {
					t.Errorf("--help does not tell --%s:\n%s", option, help)
				}
			}
		})
	}
}

// onEach runs a test for each example, all at once: most of it is waiting.
func onEach(t *testing.T, test func(s *stage)) {
	in := shared.Get(t)
	none, keeping := definitionIn(t, in, client.CheckpointNone), definitionIn(t, in, client.CheckpointFinished)
	for name, make := range hosts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(&stage{t, in, make(t), none, keeping, client.NewFunction(in.Engine.Config(), in.Out[names.OutSession])})
		})
	}
}

// definitionIn writes a definition to a file.
func definitionIn(t *testing.T, in *installtest.Installation, policy client.CheckpointPolicy) string {
	t.Helper()
	spec := in.Spec()
	definition, err := json.Marshal(client.Definition{
		Name: "example", Version: 1, Checkpoint: policy,
		Task: client.TaskTemplate{TaskDefinition: spec.TaskDefinition, Container: spec.Container, Subnets: spec.Subnets, AssignPublicIP: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "sandbox.json")
	if err := os.WriteFile(path, definition, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// told is the last line that a host says of how it went.
type told struct {
	Run, Host, Status, Refused   string
	Checkpoint, CheckpointFailed string
	Position                     int64
	ExitCode                     *int
	Left, Cancelled              bool
}

// hosted is a host at work.
type hosted struct {
	*stage
	command *exec.Cmd
	stderr  bytes.Buffer
	mu      sync.Mutex
	stdout  bytes.Buffer
}

// Write takes what the host writes to stdout.
func (h *hosted) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stdout.Write(p)
}

// wrote is the output so far, without the last newline: that may come later.
func (h *hosted) wrote() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.TrimSuffix(h.stdout.String(), "\n")
}

// host begins the example with arguments.
func (s *stage) host(args ...string) *hosted {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), within)
	s.Cleanup(cancel)
	command := append(slices.Clone(s.command), args...)
	h := &hosted{stage: s, command: exec.CommandContext(ctx, command[0], command[1:]...)}
	h.command.Env = append(s.Engine.Env(), "PATH="+os.Getenv("PATH"), "SANDKEEPER_SESSION_FUNCTION="+s.Out[names.OutSession])
	h.command.Stdout, h.command.Stderr = h, &h.stderr
	if err := h.command.Start(); err != nil {
		s.Fatal(err)
	}
	return h
}

// ends waits for a host's end, and holds its exit status against what is wanted.
func (h *hosted) ends(status int) told {
	h.Helper()
	err := h.command.Wait()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		h.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(h.stderr.String()), "\n")
	var out told
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &out); err != nil && status != 2 {
		h.Fatalf("the last line is no report: %v\n%s", err, h.stderr.String())
	}
	if got := h.command.ProcessState.ExitCode(); got != status {
		h.Fatalf("exit status %d, want %d\n%s", got, status, h.stderr.String())
	}
	return out
}

// until waits for something that the installation tells.
func (s *stage) until(what string, is func() bool) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), within)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.Fatalf("%s: not within %s", what, within)
		}
	}
}

func (s *stage) run(id string) client.RunView {
	s.Helper()
	run, err := s.api.Get(s.Context(), client.GetRequest{RunKey: client.RunKey{Tenant: "-", Run: client.RunID(id)}})
	if err != nil {
		s.Fatal(err)
	}
	return run
}

// TestAHostDoesATurn from start to end: the agent's input in, its output out.
func TestAHostDoesATurn(t *testing.T) {
	onEach(t, func(s *stage) {
		h := s.host("--definition", s.definition, "--shell", "cat; echo; sleep 1; printf done; exit 3", "--input", "a question, 世界")
		end := h.ends(1)
		if got := h.wrote(); got != "a question, 世界\ndone" {
			s.Errorf("output %q", got)
		}
		if end.Status != "failed" || end.ExitCode == nil || *end.ExitCode != 3 || s.run(end.Run).Status != client.Failed {
			s.Errorf("ended as %+v", end)
		}
	})
}

// TestAHostLeavesAndComesBack where it was, and finishes the run.
func TestAHostLeavesAndComesBack(t *testing.T) {
	onEach(t, func(s *stage) {
		gone := filepath.Join(s.Dir, rand.Text()) // a file: the host has left
		left := s.host("--definition", s.definition, "--shell", "echo line 1; until [ -e "+gone+" ]; do sleep 0.1; done; echo line 2; sleep 2; echo line 3", "--detach").ends(0)
		if !left.Left || s.run(left.Run).DetachedSince == 0 {
			s.Fatalf("left as %+v", left)
		}
		if err := os.WriteFile(gone, nil, 0o644); err != nil {
			s.Fatal(err)
		}
		back := s.host("--attach", "--run", left.Run, "--from", strconv.Itoa(len("line 1\n")))
		end := back.ends(0)
		if got := back.wrote(); got != "line 2\nline 3" || end.Status != "completed" || end.Position != int64(len("line 1\n")*3) {
			s.Errorf("output %q, ended as %+v", got, end)
		}
	})
}

// TestAThreadGoesOn from turn to turn, over a pause for a human, in one workspace.
func TestAThreadGoesOn(t *testing.T) {
	onEach(t, func(s *stage) {
		thread, asks, host := "thread-"+rand.Text(), "run-"+rand.Text(), "host-"+rand.Text()
		turn := []string{"--definition", s.keeping, "--thread", thread, "--shell"}
		first := s.host(append(turn, "echo kept > note; echo one")...).ends(0)
		if first.Status != "completed" || first.Checkpoint == "" {
			view, _ := json.Marshal(s.run(first.Run))
			s.Fatalf("the first turn ended as %+v: %s", first, view)
		}
		s.host(append(turn, "cat note; echo asking; exec sleep 600", "--run", asks, "--host", host, "--detach")...).ends(0)
		if paused := s.host("--pause", "--run", asks, "--host", host).ends(0); paused.Status != "interrupted" {
			s.Fatalf("paused as %+v", paused)
		}
		h := s.host(append(turn, "cat note; echo answered", "--parent", asks)...)
		if end := h.ends(0); h.wrote() != "kept\nanswered" || end.Status != "completed" || end.Checkpoint == "" {
			s.Errorf("output %q, ended as %+v", h.wrote(), end)
		}
		if v := s.run(asks); v.Status != client.Completed {
			s.Errorf("the paused run ended as %+v", v)
		}
	})
}

// TestAHostThatIsInterruptedLeaves, and ends its run when it is told to.
func TestAHostThatIsInterruptedLeaves(t *testing.T) {
	onEach(t, func(s *stage) {
		run, host := "run-"+rand.Text(), "host-"+rand.Text()
		h := s.host("--definition", s.definition, "--shell", "echo begun; exec sleep 600", "--run", run, "--host", host)
		s.until("output", func() bool { return h.wrote() == "begun" })
		if err := h.command.Process.Signal(os.Interrupt); err != nil {
			s.Fatal(err)
		}
		if left := h.ends(130); !left.Left || left.Position != int64(len("begun")) || s.run(run).DetachedSince == 0 {
			s.Errorf("left as %+v", left)
		}
		s.host("--cancel", "--run", run, "--host", host).ends(0)
		if v := s.run(run); v.Ending != "cancelled" || !v.Status.Terminal() {
			s.Errorf("cancelled as %+v", v)
		}
	})
}

// TestACancelFromElsewhereReachesAHost within one renewal.
func TestACancelFromElsewhereReachesAHost(t *testing.T) {
	onEach(t, func(s *stage) {
		run := "run-" + rand.Text()
		h := s.host("--definition", s.definition, "--shell", "echo begun; exec sleep 600", "--run", run)
		s.until("output", func() bool { return h.wrote() == "begun" })
		if _, err := s.api.Cancel(s.Context(), client.CancelRequest{RunKey: client.RunKey{Tenant: "-", Run: client.RunID(run)}}); err != nil {
			s.Fatal(err)
		}
		if end := h.ends(1); !end.Cancelled || s.run(run).Ending != "cancelled" {
			s.Errorf("ended as %+v", end)
		}
	})
}

// TestAHostSaysWhatIsRefused, and what it was not told.
func TestAHostSaysWhatIsRefused(t *testing.T) {
	onEach(t, func(s *stage) {
		for _, c := range []struct {
			code string
			args []string
		}{
			{"unknown-run", []string{"--attach", "--run", "nobody"}},
			{"unknown-run", []string{"--cancel", "--run", "nobody"}},
			{"unknown-definition", []string{"--definition", "nothing", "--shell", "true"}},
			{"not-your-tenant", []string{"--tenant", "other", "--definition", s.definition, "--shell", "true"}},
			{"invalid-host", []string{"--attach", "--run", "r", "--host", "short"}},
		} {
			if end := s.host(c.args...).ends(3); end.Refused != c.code {
				s.Errorf("%q: %+v, want %s", c.args, end, c.code)
			}
		}
		s.host("--attach=", "--shell", "true").ends(2)
	})
}

// TestTypesAreMadeFromTheSchema: what is checked in is what the generators write, and
// the examples keep to it.
func TestTypesAreMadeFromTheSchema(t *testing.T) {
	for _, c := range []struct {
		name, dir, ready, kept string
		generate, check        []string
	}{
		{"node", "host-node", "node_modules/.ready", "src/session.ts", []string{"node", "generate.mjs"}, []string{"node_modules/.bin/tsc", "-p", ".", "--noEmit"}},
		{"python", "host-python", ".venv/.ready", "session.py", []string{".venv/bin/python", "generate.py"},
			[]string{".venv/bin/python", "-m", "mypy", "--strict", "--ignore-missing-imports", "--cache-dir", os.DevNull, "host.py"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			need(t, filepath.Join(c.dir, c.ready))
			made := filepath.Join(t.TempDir(), filepath.Base(c.kept))
			do(t, c.dir, append(c.generate, made)...)
			want, err := os.ReadFile(made)
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(c.dir, c.kept))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s/%s is not what the schema says (%v): make types writes it anew", c.dir, c.kept, err)
			}
			do(t, c.dir, c.check...)
		})
	}
}
