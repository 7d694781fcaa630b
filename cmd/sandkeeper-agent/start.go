package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/sandkeeper/sandkeeper/internal/transfer"
	"github.com/sandkeeper/sandkeeper/internal/wrapper"
)

// maxJob bounds a job, bytes.
const maxJob = 8 << 20

// readJob reads and checks a job.
func readJob(in io.Reader) (transfer.Job, error) {
	data, err := io.ReadAll(io.LimitReader(in, maxJob+1))
	if err != nil {
		return transfer.Job{}, fmt.Errorf("read job: %w", err)
	}
	if len(data) > maxJob {
		return transfer.Job{}, fmt.Errorf("read job: want at most %d bytes", maxJob)
	}
	var job transfer.Job
	if err := json.Unmarshal(data, &job); err != nil {
		// The decoder's error may quote the token.
		return transfer.Job{}, errors.New("read job: want one JSON object")
	}
	return job, checkJob(job)
}

func checkJob(job transfer.Job) error {
	at, err := url.Parse(job.URL)
	switch {
	case !slices.Contains([]transfer.JobKind{transfer.JobCapture, transfer.JobRestore, transfer.JobVerify, transfer.JobSetup}, job.Kind):
		return fmt.Errorf("job: kind %q: want capture, restore, verify or setup", job.Kind)
	case job.ID == "":
		return errors.New("job: want an id")
	case job.Kind != transfer.JobSetup && (err != nil || at.Host == "" || at.Scheme != "https" && at.Scheme != "http"):
		return errors.New("job: url: want an http or https URL")
	case job.Token == "":
		return errors.New("job: want a token")
	case job.Dir != "" && (!filepath.IsAbs(job.Dir) || filepath.Clean(job.Dir) != job.Dir):
		return fmt.Errorf("job: dir %q: want a clean absolute path, or none", job.Dir)
	case job.DeadlineSeconds < 0 || job.MaxBytes < 0 || job.Sample < 0:
		return errors.New("job: want limits of 0 or more")
	}
	if job.Kind == transfer.JobSetup {
		_, err = planOf(job)
		return err
	}
	_, err = policyOf(job)
	return err
}

// start takes a job on and leaves a worker behind. It says one line of words, which
// the script that the function sends reads.
func start(args []string) int {
	flags := flag.NewFlagSet("start", flag.ContinueOnError)
	dir := flags.String("claims", claimsDir(), "")
	if flags.Parse(args) != nil || flags.NArg() > 0 {
		return complain("start: want -claims DIR at most")
	}
	job, err := readJob(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return say(&refusal{"job-invalid", true, err})
	}
	_, held, err := leave(*dir, job)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return say(err)
	}
	if !held {
		fmt.Println("already")
		return exitDone
	}
	fmt.Println("started")
	return exitDone
}

func say(err error) int {
	if e, ok := errors.AsType[*refusal](err); ok && e.Lasting {
		fmt.Println("refused", e.Reason, "configuration")
	} else if ok {
		fmt.Println("refused", e.Reason)
	} else {
		fmt.Println("refused", "agent-failed")
	}
	return exitDone
}

// leave claims job and leaves a worker of a session of its own behind, which holds the
// claim from now on. held is false where the job had been claimed.
func leave(dir string, job transfer.Job) (state State, held bool, err error) {
	wrapper.CloseInherited()
	c, state, held, err := take(dir, job)
	if err != nil || !held {
		return state, false, err
	}
	defer c.lock.Close() // the worker has it too
	log, err := os.OpenFile(filepath.Join(c.dir, "log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return state, false, &refusal{"claim-unwritable", true, err}
	}
	defer log.Close()
	if err := begin(c, job, log); err != nil {
		return state, false, &refusal{"worker-failed", false, err}
	}
	return state, true, nil
}

// begin starts the worker and hands it the job over a pipe.
func begin(c claim, job transfer.Job, log *os.File) error {
	data, err := json.Marshal(job)
	if err != nil {
		return err
	}
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	defer out.Close()
	cmd := exec.Command("/proc/self/exe", "worker", c.dir)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, log, log
	cmd.ExtraFiles = []*os.File{c.lock}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	in.Close()
	_ = out.SetWriteDeadline(time.Now().Add(10 * time.Second)) // a pipe always takes one
	if _, err := out.Write(data); err != nil {
		_ = cmd.Process.Kill()
		return errors.Join(err, cmd.Wait())
	}
	return cmd.Process.Release()
}

// worker carries out the job that start has claimed: descriptor 3 is the claim's lock.
func worker(args []string) int {
	if len(args) != 1 {
		return complain("worker: want a claim's directory")
	}
	syscall.CloseOnExec(3)
	c := claim{dir: args[0], lock: os.NewFile(3, "lock")}
	job, err := readJob(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitUsage
	}
	return carryOut(job, &c, progress{})
}

// foreground carries out a job here, or leaves a worker behind where it is told to.
func foreground(args []string) int {
	kind := transfer.JobKind(args[0])
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	dir := flags.String("claims", claimsDir(), "")
	detach := flags.Bool("detach", false, "")
	show := flags.Bool("progress", term.IsTerminal(int(os.Stderr.Fd())), "")
	if flags.Parse(args[1:]) != nil || flags.NArg() > 0 {
		return complain(args[0] + ": unexpected words")
	}
	job, err := readJob(os.Stdin)
	if err == nil && job.Kind != kind {
		err = fmt.Errorf("job: kind %q: want %s", job.Kind, kind)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandkeeper-agent:", err)
		return exitUsage
	}
	if *detach {
		return detached(*dir, job)
	}
	c, state, held, err := take(*dir, job)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandkeeper-agent:", err)
		return exitUsage
	}
	if !held {
		state.line()
		return exitClaimed
	}
	defer c.lock.Close()
	return carryOut(job, &c, progress{show: *show})
}

func detached(dir string, job transfer.Job) int {
	state, held, err := leave(dir, job)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandkeeper-agent:", err)
		return exitUsage
	}
	state.line()
	if !held {
		return exitClaimed
	}
	return exitDone
}

// status tells how far a claimed job is. A worker that ended without saying so is
// failed.
func status(args []string) int {
	flags := flag.NewFlagSet("status", flag.ContinueOnError)
	dir := flags.String("claims", claimsDir(), "")
	kind := flags.String("kind", string(transfer.JobCapture), "")
	id := flags.String("id", "", "")
	wait := flags.Int("wait", 0, "")
	if flags.Parse(args) != nil || flags.NArg() > 0 || *id == "" || *wait < 0 {
		return complain("status: want -id ID [-kind KIND] [-claims DIR] [-wait SECONDS]")
	}
	path, err := claimPath(*dir, transfer.JobKind(*kind), *id)
	if err != nil {
		return complain(err.Error())
	}
	c := claim{dir: path}
	state, err := c.look()
	for end := time.Now().Add(time.Duration(*wait) * time.Second); err == nil && state.State == stateWorking && time.Now().Before(end); {
		time.Sleep(statusEvery)
		state, err = c.look()
	}
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(os.Stderr, "sandkeeper-agent: no job %q of kind %s has been claimed in %s\n", *id, *kind, *dir)
		return exitFailed
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "sandkeeper-agent: read state of %s %s: %v\n", *kind, *id, err)
		return exitFailed
	}
	state.line()
	return exitDone
}

// statusEvery is how often a status that waits looks.
const statusEvery = 100 * time.Millisecond

// look reads how far the job is. One whose worker is gone has failed.
func (c claim) look() (State, error) {
	state, err := c.read()
	if err != nil || state.State != stateWorking || !c.abandoned() {
		return state, err
	}
	// It may have ended properly between the two looks.
	if state, err = c.read(); err == nil && state.State == stateWorking {
		state.State, state.Code = stateFailed, codeAbandoned
	}
	return state, err
}

// abandoned tells that nobody holds the claim.
func (c claim) abandoned() bool {
	lock, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return true
	}
	defer lock.Close()
	return claim{lock: lock}.try()
}
