package wrapper

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// readyLimit is how long the wrapper may take to leave its pid.
const readyLimit = 5 * time.Second

// Start begins the agent of the job on in under a wrapper that outlives this process,
// once: the run's start marker is taken first, and a second start only reports. It
// answers as the start script does, framed, on out, and returns the exit status.
func Start(in io.Reader, out io.Writer) int {
	defer bound(startLimit)()
	CloseInherited()
	input := bufio.NewReaderSize(in, maxLine)
	job, err := readLine[Job](input)
	if err == nil {
		err = job.check()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandkeeper-agent:", err)
		return 2
	}
	answer, err := begin(job, input)
	return respond(out, answer, err)
}

// CloseInherited keeps what an exec channel left open from everything that is begun
// here: who held it would keep the channel open.
func CloseInherited() {
	if unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}

func (r run) report(result string) []byte {
	return core.AppendJournalAnswer(nil, []string{"result=" + result, "wrapper=" + wrapperWord(r.wrapperOf())})
}

// begin marks nothing before everything that can be checked was checked: a marked run
// is never begun again.
func begin(job Job, input io.Reader) ([]byte, error) {
	mask := syscall.Umask(0o077)
	r, err := openRun(job.Run, job.Nonce)
	if err != nil {
		return nil, err
	}
	if !filepath.IsAbs(r.Dir) {
		return nil, misconfigured("directory-not-absolute")
	}
	if marker, err := os.Stat(r.Marker); err == nil && marker.IsDir() || r.wrapperOf() == core.WrapperAlive {
		return r.report("already"), nil
	}
	main := findMain()
	if err := r.ready(main); err != nil {
		return nil, err
	}
	kept, err := r.keepInput(job, input)
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(r.Marker, 0o700); err != nil {
		os.Remove(kept)
		if marker, err := os.Stat(r.Marker); err != nil || !marker.IsDir() {
			return nil, misconfigured("marker-unwritable")
		}
		return r.report("already"), nil
	}
	if kept != "" {
		if err := os.Rename(kept, r.in("input")); err != nil {
			return nil, refuse("input-unwritable")
		}
	}
	if err := r.leave(order{Job: job, Mask: mask, Main: main.pid}); err != nil {
		return nil, refuse("wrapper-failed")
	}
	return r.report("started"), nil
}

// ready checks that a journal can be kept, and that the agent can become who it is to
// be.
func (r run) ready(main mainProcess) error {
	_ = os.MkdirAll(r.Dir, 0o700) // what is there then is looked at
	if info, err := os.Stat(r.Dir); err != nil || !info.IsDir() || unix.Access(r.Dir, unix.W_OK) != nil {
		return misconfigured("directory-unwritable")
	}
	for _, name := range []string{r.Journal, r.Stderr} {
		if kind := kindOf(name); kind != kindMissing && kind != kindRegular {
			return misconfigured("journal-" + kind)
		}
	}
	if main.uid != 0 && !mayBecome() {
		return misconfigured("cannot-become-user")
	}
	return nil
}

// mayBecome tells whether this process has what changing user and groups takes.
func mayBecome() bool {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(data)) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			const both = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID
			return err != nil || caps&both == both
		}
	}
	return true
}

// keepInput puts the agent's stdin into a file, which becomes the marker's; empty where
// it is to have none.
func (r run) keepInput(job Job, input io.Reader) (string, error) {
	if job.InputBytes == nil {
		return "", nil
	}
	name := filepath.Join(r.Dir, fmt.Sprintf(".%s.in.%d", r.Token, os.Getpid()))
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return "", refuse("input-unwritable")
	}
	n, err := io.Copy(f, io.LimitReader(input, *job.InputBytes+1))
	if err := errors.Join(err, f.Close()); err != nil {
		os.Remove(name)
		return "", refuse("input-unwritable")
	}
	if n != *job.InputBytes {
		os.Remove(name)
		return "", refuse("input-incomplete")
	}
	return name, nil
}

// order is what the wrapper is told.
type order struct {
	Job
	Mask int    `json:"mask"` // of the agent
	Main string `json:"main"` // the main process; empty: the session's own
}

// leave starts the wrapper in a session of its own and waits until it has left its pid.
func (r run) leave(o order) error {
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	told, tell, err := os.Pipe()
	if err != nil {
		return err
	}
	defer tell.Close()
	ready, readied, err := os.Pipe()
	if err != nil {
		told.Close()
		return err
	}
	defer ready.Close()
	cmd := exec.Command("/proc/self/exe", core.WrapperCommand, r.mark)
	cmd.Args[0] = core.WrapperName
	cmd.ExtraFiles = []*os.File{told, readied}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	told.Close()
	readied.Close()
	if err != nil {
		return err
	}
	deadline := time.Now().Add(readyLimit)
	_ = tell.SetWriteDeadline(deadline) // a pipe always takes one
	_ = ready.SetReadDeadline(deadline)
	if _, err := tell.Write(data); err != nil {
		return err
	}
	tell.Close()
	// The wrapper closes its end when its pid is there, or when it ends.
	_, _ = ready.Read(make([]byte, 1))
	return cmd.Process.Release()
}
