package ecsexec_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
)

const mark = "0123456789abcdef0123456789abcdef"

func TestCommandString(t *testing.T) {
	secret := []byte("very-secret-value")
	for _, c := range []struct {
		name   string
		script string
		input  []byte
		typed  int
	}{
		{"a short script travels in the command", "echo hi", nil, 0},
		{"input is typed, never in the command", "cat", secret, 1},
		{"a script of 5 KB still travels in the command", strings.Repeat("# 5 KB\n", 5000/7), nil, 0},
		{"a longer script is typed", strings.Repeat("# line\n", 1000), nil, 10},
		{"a longer script and input are typed", strings.Repeat("# line\n", 1000), secret, 11},
		{"double braces and quotes stay out of the command", `echo '{{ssm:x}}' "{{ y }}"`, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			command, typed := ecsexec.Command(mark, c.script, c.input, ecsexec.Limits{}, 45*time.Second)
			if len(command) > 8000 || strings.Contains(command, "\n") {
				t.Errorf("command of %d bytes, newline %v", len(command), strings.Contains(command, "\n"))
			}
			if !strings.HasPrefix(command, "/bin/sh -c '") || strings.Count(command, "'") != 2 || !strings.HasSuffix(command, "'") {
				t.Errorf("not one quoted word: %s", command)
			}
			for _, never := range []string{"{{", "}}", mark, string(secret), "dmVyeS1zZWNyZXQtdmFsdWU"} {
				if strings.Contains(command, never) {
					t.Errorf("command contains %q", never)
				}
			}
			if len(typed) != c.typed {
				t.Errorf("typed lines: got %d, want %d", len(typed), c.typed)
			}
			for _, line := range typed {
				if len(line) > 1024 || !bytes.HasSuffix(line, []byte("\n")) {
					t.Errorf("line of %d bytes", len(line))
				}
			}
		})
	}
}

// shells returns those of this machine, each with the environment that makes it
// use its own tools.
func shells(t *testing.T) map[string]func(*gateway) {
	t.Helper()
	out := map[string]func(*gateway){"sh": func(*gateway) {}}
	for _, name := range []string{"dash", "bash", "mksh", "yash"} {
		if path, err := exec.LookPath(name); err == nil {
			out[name] = func(g *gateway) { g.shell = path }
		}
	}
	if busybox, err := exec.LookPath("busybox"); err == nil {
		dir := t.TempDir()
		if err := exec.CommandContext(t.Context(), busybox, "--install", "-s", dir).Run(); err != nil {
			t.Fatal(err)
		}
		out["busybox"] = func(g *gateway) {
			g.shell = filepath.Join(dir, "sh")
			g.environ = []string{"PATH=" + dir}
		}
	}
	return out
}

func TestWrapperInEveryShell(t *testing.T) {
	long := strings.Repeat("# a comment to make it long\n", 400) + "cat; exit 4"
	for name, configure := range shells(t) {
		for _, c := range []struct {
			name, script string
			input        []byte
			stdout       string
			exit         int
		}{
			{"short", "printf '%s' \"é $((6*7))\"; exit 7", nil, "é 42", 7},
			{"killed", "printf gone; kill -9 $$", nil, "gone", 137},
			{"input", "cat; exit 3", []byte("line\n\x00\xff"), "line\n\x00\xff", 3},
			{"typed", long, nil, "", 4},
			{"typed with input", long, bytes.Repeat([]byte("0123456789\n"), 3000), strings.Repeat("0123456789\n", 3000), 4},
			{"large output", "i=0; while [ $i -lt 3000 ]; do echo line-$i; i=$((i+1)); done | tail -c 20", nil, "\nline-2998\nline-2999\n"[1:], 0},
		} {
			t.Run(name+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				g := newGateway(t)
				configure(g)
				got, err := executor(g).Exec(t.Context(), target, c.script, c.input)
				if err != nil {
					t.Fatal(err)
				}
				if string(got.Stdout) != c.stdout || got.Exit != c.exit {
					t.Errorf("got %q, exit %d; want %q, exit %d", got.Stdout, got.Exit, c.stdout, c.exit)
				}
			})
		}
		t.Run(name+"/watchdog", func(t *testing.T) {
			t.Parallel()
			g := newGateway(t)
			configure(g)
			late := filepath.Join(t.TempDir(), "late")
			e := executor(g)
			e.Limits.Whole = 2500 * time.Millisecond // a script has 1 s of it
			_, err := e.Exec(t.Context(), target, "sleep 20; : >"+late, nil)
			wantFault(t, err, core.Retry, "script-unfinished")
			g.stop()
			wantAbsent(t, late)
		})
		t.Run(name+"/vanished client", func(t *testing.T) {
			t.Parallel()
			g := newGateway(t)
			configure(g)
			g.cutAfter = 1
			late := filepath.Join(t.TempDir(), "late")
			e := executor(g)
			e.Limits.Whole = 2500 * time.Millisecond
			_, err := e.Exec(t.Context(), target, "sleep 20; : >"+late, nil)
			wantFault(t, err, core.Retry, "channel-cut")
			g.stop() // the command ends by its own watchdog
			wantAbsent(t, late)
		})
		t.Run(name+"/cancelled", func(t *testing.T) {
			t.Parallel()
			g := newGateway(t)
			configure(g)
			late := filepath.Join(t.TempDir(), "late")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			g.onOutput = cancel
			_, err := executor(g).Exec(ctx, target, "sleep 40; : >"+late, nil)
			wantFault(t, err, core.Retry, "cancelled")
			g.stop()
			wantAbsent(t, late)
		})
	}
}

func TestWrapperNamesWhatIsMissing(t *testing.T) {
	for _, c := range []struct {
		name    string
		tools   map[string]string // name to script; empty is the real one
		input   []byte
		healing core.Healing
		reason  string
	}{
		{"no base64", map[string]string{"head": "", "sleep": ""}, nil, core.Configuration, "no-encoder"},
		{"no head", map[string]string{"base64": "", "sleep": ""}, nil, core.Configuration, "no-head"},
		{"no sleep", map[string]string{"base64": "", "head": ""}, nil, core.Configuration, "no-sleep"},
		{"no stty where input is to be typed", map[string]string{"base64": "", "head": "", "sleep": ""}, []byte("x"), core.Configuration, "no-stty"},
		{"an encoder killed half way", map[string]string{"head": "", "sleep": "",
			"base64": `case $1 in -d) exec REAL -d;; esac; HEAD -c 10 | REAL; kill -9 $$`}, nil, core.Retry, "script-output-lost"},
		{"a limiter killed half way", map[string]string{"base64": "", "sleep": "", "head": `HEAD -c 10; kill -9 $$`}, nil, core.Retry, "script-output-lost"},
		{"a base64 that cannot decode", map[string]string{"head": "", "sleep": "", "base64": `exit 1`}, nil, core.Configuration, "base64-unusable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGateway(t)
			g.environ = []string{"PATH=" + toolbox(t, c.tools)}
			_, err := executor(g).Exec(t.Context(), target, "printf 0123456789abcdef", c.input)
			wantFault(t, err, c.healing, c.reason)
		})
	}
}

// toolbox makes a directory of tools.
func toolbox(t *testing.T, tools map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	real := func(name string) string {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, script := range tools {
		path := filepath.Join(dir, name)
		if script == "" {
			if err := os.Symlink(real(name), path); err != nil {
				t.Fatal(err)
			}
			continue
		}
		script = strings.NewReplacer("REAL", real(name), "HEAD", real("head")).Replace(script)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestOutputIsNeverCut(t *testing.T) {
	g := newGateway(t)
	e := executor(g)
	e.Limits.Stdout = 1000
	got, err := e.Exec(t.Context(), target, "head -c 1000 /dev/zero", nil)
	if err != nil || !bytes.Equal(got.Stdout, make([]byte, 1000)) {
		t.Errorf("at the limit: got %d bytes, %v", len(got.Stdout), err)
	}
	_, err = e.Exec(t.Context(), target, "head -c 1001 /dev/zero", nil)
	wantFault(t, err, core.Configuration, "output-too-large")
	_, err = e.Exec(t.Context(), target, "while :; do echo endless; done", nil)
	wantFault(t, err, core.Configuration, "output-too-large")
}

func TestInputThatCannotWorkStartsNothing(t *testing.T) {
	for _, c := range []struct {
		name, script string
		target       core.ExecTarget
		input        []byte
		reason       string
	}{
		{"no container", "true", core.ExecTarget{TaskARN: "t"}, nil, "no-target"},
		{"no task", "true", core.ExecTarget{Container: "c"}, nil, "no-target"},
		{"a NUL in the script", "echo \x00", target, nil, "script-invalid"},
		{"a script beyond what one argument holds", strings.Repeat("x", 120_001), target, nil, "script-too-long"},
		{"input beyond the limit", "cat", target, make([]byte, 1<<20+1), "input-too-long"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGateway(t)
			_, err := executor(g).Exec(t.Context(), c.target, c.script, c.input)
			wantFault(t, err, core.Configuration, c.reason)
			if len(g.commands) != 0 {
				t.Errorf("commands started: %d", len(g.commands))
			}
		})
	}
}

func wantFault(t *testing.T, err error, healing core.Healing, reason string) {
	t.Helper()
	if err == nil {
		t.Fatalf("got no error, want %s (%s)", reason, healing)
	}
	if e := execError(t, err); e.Healing != healing || e.Reason != reason {
		t.Errorf("got %v, want %s (%s)", e, reason, healing)
	}
}

func wantAbsent(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Stat(path); err == nil {
		t.Errorf("%s exists: the script ran on", filepath.Base(path))
	}
}
