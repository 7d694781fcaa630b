package docker

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// guardianName is the first argument by which a re-executed program knows that it is
// to remove containers.
const guardianName = "sandkeeper-local-guardian"

// removeWithin bounds what a guardian does at the end.
const removeWithin = time.Minute

// MaybeGuard turns the program into a guardian and never returns, if it was started as
// one. It belongs at the very start of main or TestMain.
func MaybeGuard() {
	if len(os.Args) != 3 || os.Args[0] != guardianName {
		return
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the server is gone
	ctx, cancel := context.WithTimeout(context.Background(), removeWithin)
	defer cancel()
	engine, err := Open(ctx, os.Args[1])
	if err == nil {
		err = engine.RemoveAll(ctx, os.Args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Guard starts a process that removes every container of a server once this process
// has ended, however it ended. The function that it returns ends it, after it has
// removed what is left.
func (e *Engine) Guard(server string) (release func() error, err error) {
	guardian := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{guardianName, e.socket, server},
		Env: []string{"GORACE=atexit_sleep_ms=0"}, Dir: "/", Stderr: os.Stderr,
	}
	guardian.SysProcAttr = ownSession()
	lifeline, err := guardian.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start guardian of %s: %w", server, err)
	}
	if err := guardian.Start(); err != nil {
		return nil, fmt.Errorf("start guardian of %s: %w", server, err)
	}
	return func() error {
		_ = lifeline.Close() // it may be gone
		if err := guardian.Wait(); err != nil {
			return fmt.Errorf("remove containers of %s: %w", server, err)
		}
		return nil
	}, nil
}
