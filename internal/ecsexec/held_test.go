package ecsexec_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
)

func (b *sandbox) dial() core.ExecSession {
	b.Helper()
	s, err := b.exec.Dial(b.Context(), b.target)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Close)
	return s
}

// quiet reports whether nothing but the container's own process is alive.
func (b *sandbox) quiet() bool { return len(b.state().Containers[0].Processes) <= 1 }

// TestAHeldSessionAnswersOneScriptAfterAnother, exactly as sessions of their own would, at
// the price of one call; once it is closed nothing of it is left in the container.
func TestAHeldSessionAnswersOneScriptAfterAnother(t *testing.T) {
	b := newSandbox(t, scene{})
	before := b.calls()
	s := b.dial()
	long := strings.Repeat("a comment that makes it long ", 400)
	for _, c := range []struct {
		name, script, stdout string
		exit                 int
	}{
		{"nothing", ":", "", 0},
		{"a line", "echo hello", "hello\n", 0},
		{"a status", "exit 7", "", 7},
		{"bytes that a terminal would damage", `printf 'a\r\n\000\377\003'`, "a\r\n\x00\xff\x03", 0},
		{"a script of many typed lines", "# " + long + "\necho long", "long\n", 0},
		{"what reads its stdin finds it empty", "cat; echo end", "end\n", 0},
		{"a variable of the script before", "echo ${x-none}; x=1", "none\n", 0},
		{"much output", "head -c 300000 /dev/zero | tr '\\000' x", strings.Repeat("x", 300_000), 0},
		{"quotes", `echo "it's"`, "it's\n", 0},
	} {
		got, err := s.Exec(t.Context(), c.script)
		if err != nil || string(got.Stdout) != c.stdout || got.Exit != c.exit {
			t.Fatalf("%s: %.80q, exit %d, %v", c.name, got.Stdout, got.Exit, err)
		}
	}
	if calls := b.calls() - before; calls != 1 {
		t.Errorf("%d calls of ExecuteCommand, want 1", calls)
	}
	s.Close()
	if _, err := s.Exec(t.Context(), "echo again"); err == nil || execError(t, err).Reason != "channel-cut" {
		t.Errorf("after the close: %v", err)
	}
	b.until("only the container's own process is left", func() bool { return b.quiet() })
}

// TestAHeldSessionEndsWithWhatIsNotAnswered: what came next would be taken for an answer.
func TestAHeldSessionEndsWithWhatIsNotAnswered(t *testing.T) {
	b := newSandbox(t, scene{})
	s := b.dial()
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan error, 1)
	go func() {
		_, err := s.Exec(ctx, ": >begun; sleep 60; echo late")
		started <- err
	}()
	b.until("the script runs", func() bool { return b.exists("begun") })
	cancel()
	for _, err := range []error{<-started, second(s.Exec(t.Context(), "echo next"))} {
		if failed, ok := errors.AsType[*core.ExecError](err); !ok || failed.Healing != core.Retry {
			t.Errorf("got %v", err)
		}
	}
	s.Close()
	b.until("only the container's own process is left", func() bool { return b.quiet() })
}

func second(_ core.ExecResult, err error) error { return err }

// TestTheShellOfAClientThatHasGoneLeaves its slot by itself.
func TestTheShellOfAClientThatHasGoneLeaves(t *testing.T) {
	b := newSandbox(t, scene{})
	b.exec.Limits = ecsexec.Limits{Idle: 5 * time.Second}
	s := b.dial()
	if _, err := s.Exec(t.Context(), "echo hello"); err != nil {
		t.Fatal(err)
	}
	b.until("the shell has left", func() bool { return b.quiet() })
	b.until("the client is told", func() bool {
		_, err := s.Exec(t.Context(), "echo again")
		return err != nil
	})
}

// TestAHeldSessionOverALossyLine gives every answer whole, or none.
func TestAHeldSessionOverALossyLine(t *testing.T) {
	b := newSandbox(t, scene{faults: localfargate.Faults{
		LossToClient: 0.1, LossToAgent: 0.1, DuplicateToClient: 0.1, DuplicateToAgent: 0.1, ReorderToClient: 0.1, ReorderToAgent: 0.1, Seed: 11,
	}})
	s := b.dial()
	want := bytes.Repeat([]byte("a line of what was written\n"), 2000)
	for i := range 5 {
		got, err := s.Exec(t.Context(), fmt.Sprintf("i=0; while [ $i -lt 2000 ]; do echo a line of what was written; i=$((i+1)); done; exit %d", i))
		if err != nil || !bytes.Equal(got.Stdout, want) || got.Exit != i {
			t.Fatalf("script %d: %d bytes, exit %d, %v", i, len(got.Stdout), got.Exit, err)
		}
	}
}
