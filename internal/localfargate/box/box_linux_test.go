package box_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/localfargate/box"
	"github.com/sandkeeper/sandkeeper/internal/localfargate/terminal"
)

func TestMain(m *testing.M) {
	box.MaybeInit()
	os.Exit(m.Run())
}

// kinds runs a test in every isolation that works here; Directory always must.
func kinds(t *testing.T, check func(t *testing.T, kind box.Isolation)) {
	t.Helper()
	for _, kind := range []box.Isolation{box.Namespaces, box.UserNamespaces, box.Directory} {
		t.Run(string(kind), func(t *testing.T) {
			if err := box.Try(kind, t.TempDir()); err != nil {
				if kind == box.Directory {
					t.Fatal(err)
				}
				t.Skipf("the kernel refuses it: %v", err)
			}
			check(t, kind)
		})
	}
}

func start(t *testing.T, kind box.Isolation, script string) *box.Box {
	t.Helper()
	b, err := box.Start(box.Spec{
		ID: strings.ReplaceAll(t.Name(), "/", "-"), Isolation: kind, Dir: t.TempDir(),
		Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=" + os.Getenv("PATH")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Kill(); <-b.Done() })
	return b
}

// until waits for what comes about, but not for ever.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	late, pace := time.After(2*time.Minute), time.NewTicker(10*time.Millisecond)
	defer pace.Stop()
	for !holds() {
		select {
		case <-pace.C:
		case <-late:
			t.Fatalf("it does not come about that %s", what)
		}
	}
}

// session runs a script on a terminal and returns its whole output.
func session(t *testing.T, b *box.Box, script string) string {
	t.Helper()
	master, tty, err := terminal.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	s, err := b.Exec([]string{"/bin/sh", "-c", script}, []string{"TERM=dumb"}, tty)
	tty.Close()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	_, err = io.Copy(&out, master)
	if !errors.Is(err, syscall.EIO) {
		t.Fatalf("read terminal: %v, want EIO at the end", err)
	}
	<-s.Done()
	return out.String()
}

func TestMainProcessGivesTheExitStatus(t *testing.T) {
	kinds(t, func(t *testing.T, kind box.Isolation) {
		for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -9 $$": 137, "kill -TERM $$": 143} {
			b := start(t, kind, script)
			<-b.Done()
			if got := b.ExitStatus(); got != want {
				t.Errorf("%s: exit status %d, want %d", script, got, want)
			}
		}
	})
}

func TestSessionsShareTheBoxAndNotTheHost(t *testing.T) {
	kinds(t, func(t *testing.T, kind box.Isolation) {
		one, two := start(t, kind, "exec sleep 1000"), start(t, kind, "exec sleep 1000")
		dir := "${" + box.JournalVar + ":-" + box.JournalDir + "}"
		session(t, one, "mkdir -p "+dir+"; echo one > "+dir+"/x")
		session(t, two, "mkdir -p "+dir+"; echo two > "+dir+"/x")
		if got := session(t, one, "cat "+dir+"/x"); got != "one\r\n" {
			t.Errorf("the first box reads %q, want its own file", got)
		}
		data, err := os.ReadFile(filepath.Join(box.HostJournalDir(two.Dir()), "x"))
		if err != nil || string(data) != "two\n" {
			t.Errorf("the host reads %q, %v, want the second box's file", data, err)
		}
	})
}

func TestEveryProcessEndsWithTheBox(t *testing.T) {
	script := `setsid sh -c 'trap "" TERM HUP; touch left; sleep 1000 & sleep 1000' </dev/null >/dev/null 2>&1 & until [ -e left ]; do sleep 0.02; done; echo ready`
	kinds(t, func(t *testing.T, kind box.Isolation) {
		ends := map[string]func(*box.Box){
			"killed":                 func(b *box.Box) { b.Kill() },
			"main process ends":      func(b *box.Box) { _ = b.Signal(syscall.SIGTERM) },
			"init killed from below": func(b *box.Box) { _ = syscall.Kill(b.Processes(box.ScanProcesses())[0].Parent, syscall.SIGKILL) },
		}
		for name, end := range ends {
			t.Run(name, func(t *testing.T) {
				b := start(t, kind, "exec sleep 1000")
				session(t, b, script)
				var before []box.Process
				until(t, "there are the main process and three that left the session", func() bool {
					before = b.Processes(box.ScanProcesses())
					return len(before) == 4
				})
				end(b)
				<-b.Done()
				for _, p := range before {
					if stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.PID), "stat")); err == nil && !bytes.Contains(stat, []byte(") Z ")) {
						t.Errorf("process %d (%s) outlived its box", p.PID, p.Command)
					}
				}
			})
		}
	})
}

func TestSessionReportsAProgramThatCannotStart(t *testing.T) {
	kinds(t, func(t *testing.T, kind box.Isolation) {
		b := start(t, kind, "exec sleep 1000")
		master, tty, err := terminal.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer master.Close()
		defer tty.Close()
		_, err = b.Exec([]string{"/no/such/program"}, nil, tty)
		e, ok := errors.AsType[*box.StartError](err)
		if !ok || !strings.Contains(e.Reason, "/no/such/program") {
			t.Fatalf("exec of an absent program: %v, want a StartError that names it", err)
		}
	})
}

func TestStartReportsAMainProcessThatCannotStart(t *testing.T) {
	kinds(t, func(t *testing.T, kind box.Isolation) {
		_, err := box.Start(box.Spec{ID: "absent", Isolation: kind, Dir: t.TempDir(), Argv: []string{"no-such-program"}})
		if _, ok := errors.AsType[*box.StartError](err); !ok {
			t.Fatalf("start: %v, want a StartError", err)
		}
	})
}

func TestOrphansAreReaped(t *testing.T) {
	kinds(t, func(t *testing.T, kind box.Isolation) {
		b := start(t, kind, "exec sleep 1000")
		session(t, b, "for i in 1 2 3; do (sh -c 'exit 0' &); done; echo done")
		until(t, "only the main process is left of it and its orphans", func() bool { return len(b.Processes(box.ScanProcesses())) == 1 })
	})
}

func TestPingTellsLifeFromDeath(t *testing.T) {
	kinds(t, func(t *testing.T, kind box.Isolation) {
		b := start(t, kind, "exec sleep 1000")
		if err := b.Ping(); err != nil {
			t.Errorf("ping of a live box: %v", err)
		}
		_ = b.Signal(syscall.SIGTERM)
		<-b.Done()
		if err := b.Ping(); !errors.Is(err, box.ErrEnded) {
			t.Errorf("ping of a dead box: %v, want ErrEnded", err)
		}
	})
}
