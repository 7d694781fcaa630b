package ecsexec_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
)

var target = core.ExecTarget{Cluster: "c", TaskARN: "arn:aws:ecs:eu-west-1:000000000000:task/c/1", Container: "main"}

func executor(g *gateway) *ecsexec.Executor {
	return &ecsexec.Executor{ECS: g, Region: "eu-west-1"}
}

func TestExec(t *testing.T) {
	everyByte := make([]byte, 256)
	for i := range everyByte {
		everyByte[i] = byte(i)
	}
	for _, c := range []struct {
		name, script string
		input        []byte
		stdout       string
		exit         int
	}{
		{"stdout and status come back", "echo hello; exit 7", nil, "hello\n", 7},
		{"no output is an empty answer", "true", nil, "", 0},
		{"stderr is discarded", "echo no >&2; printf yes", nil, "yes", 0},
		{"stdin is empty", "cat; printf end", nil, "end", 0},
		{"quotes, dollars, braces and hashes survive", `printf '%s' "it's \"$((1+1))\" {{ssm:x}} # é"`, nil, `it's "2" {{ssm:x}} # é`, 0},
		{"a script of several lines keeps its trailing newline", "cat <<E\nline\nE\n", nil, "line\n", 0},
		{"a script that kills its shell is told by status", "printf gone; kill -9 $$", nil, "gone", 137},
		{"exec cannot take the trailer away", "exec printf replaced", nil, "replaced", 0},
		{"a missing program is 127", "no-such-program-at-all", nil, "", 127},
		{"input is stdin, byte for byte", "cat; exit 3", everyByte, string(everyByte), 3},
		{"input that nobody reads does no harm", "printf done", bytes.Repeat([]byte("x"), 100_000), "done", 0},
		{"bytes that the agent would damage come whole", `printf '\357\277\275\346\274'`, nil, "\xef\xbf\xbd\xe6\xbc", 0},
		{"the script has neither the terminal nor the status", "printf x >&3; printf y >&4; printf z", nil, "z", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGateway(t)
			got, err := executor(g).Exec(t.Context(), target, c.script, c.input)
			if err != nil {
				t.Fatal(err)
			}
			if string(got.Stdout) != c.stdout || got.Exit != c.exit {
				t.Errorf("got %q, exit %d; want %q, exit %d", got.Stdout, got.Exit, c.stdout, c.exit)
			}
			g.stop()
			if g.interrupts == 0 {
				t.Error("the command was left to linger")
			}
		})
	}
}

func execError(t *testing.T, err error) *core.ExecError {
	t.Helper()
	e, ok := errors.AsType[*core.ExecError](err)
	if !ok {
		t.Fatalf("got %v, want an ExecError", err)
	}
	return e
}
