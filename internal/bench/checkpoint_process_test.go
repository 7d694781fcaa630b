package bench_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// used is what a process took.
type used struct {
	Wall, CPU time.Duration
	Peak      int64 // resident, bytes
	Exit      int
}

func (u used) String() string {
	return fmt.Sprintf("%.1f s, %.1f CPU s, %.0f MiB", u.Wall.Seconds(), u.CPU.Seconds(), float64(u.Peak)/(1<<20))
}

// startsAnother is set for a copy of the test that does nothing but run its arguments
// as a program and say what that used. Linux counts to a child's peak what its parent
// had when it began, and this parent has next to nothing.
const startsAnother = "SANDKEEPER_BENCH_STARTS"

// maybeStart is the whole life of such a copy.
func maybeStart() {
	if os.Getenv(startsAnother) == "" {
		return
	}
	_ = os.Unsetenv(startsAnother)
	c := exec.Command(os.Args[1], os.Args[2:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	err := c.Run()
	u := used{Wall: time.Since(began), Exit: -1}
	if s := c.ProcessState; s != nil {
		usage := s.SysUsage().(*syscall.Rusage)
		u.CPU, u.Peak, u.Exit = s.UserTime()+s.SystemTime(), usage.Maxrss*1024, s.ExitCode()
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	if err := json.NewEncoder(os.NewFile(3, "answer")).Encode(u); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// run is a program to measure.
type run struct {
	dir   string
	env   []string // beside PATH, alone
	stdin []byte
	args  []string
}

// measured runs it to its end, and returns what it printed and used.
func (r run) measured(t *testing.T) ([]byte, used) {
	t.Helper()
	settle()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	answer, says, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Close() }()
	var stdout, stderr bytes.Buffer
	c := exec.CommandContext(ctx, self, r.args...)
	c.Dir = r.dir
	c.Env = append([]string{"PATH=" + os.Getenv("PATH"), startsAnother + "=1"}, r.env...)
	c.Stdin, c.Stdout, c.Stderr, c.ExtraFiles = bytes.NewReader(r.stdin), &stdout, &stderr, []*os.File{says}
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = c.Run()
	_ = says.Close()
	var u used
	if err == nil {
		var text []byte
		if text, err = io.ReadAll(answer); err == nil {
			err = json.Unmarshal(text, &u)
		}
	}
	if err != nil || u.Exit != 0 {
		t.Fatalf("%s: exit %d, %v: %.1000s %.1000s", r.args, u.Exit, err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.Bytes(), u
}
