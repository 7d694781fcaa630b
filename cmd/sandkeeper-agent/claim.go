package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/transfer"
)

// State is how far a job is: the file in its claim, and the line on stdout.
type State struct {
	Kind  transfer.JobKind `json:"kind"`
	ID    string           `json:"id"`
	State string           `json:"state"` // working, done, failed
	// Code and Message say why it failed.
	Code       string `json:"code,omitempty"`
	Message    string `json:"message,omitempty"`
	Checkpoint string `json:"checkpoint,omitempty"`
	Files      int64  `json:"files"`
	Bytes      int64  `json:"bytes"`
	// Of a capture: what it sent and read.
	Packs      int64 `json:"packs,omitempty"`
	PackBytes  int64 `json:"packBytes,omitempty"`
	LayerBytes int64 `json:"layerBytes,omitempty"`
	ReadFiles  int64 `json:"readFiles,omitempty"`
	ReadBytes  int64 `json:"readBytes,omitempty"`
	// Of a restore: what it changed.
	Written int64     `json:"written,omitempty"`
	Removed int64     `json:"removed,omitempty"`
	Git     []gitNote `json:"git,omitempty"`
	// Of a set-up: the step that is done or failed, the end of what a failed one printed,
	// and how many are done; the commit that is checked out; files that were left alone.
	Step      string   `json:"step,omitempty"`
	Tail      string   `json:"tail,omitempty"`
	StepsDone int      `json:"stepsDone,omitempty"`
	Steps     int      `json:"steps,omitempty"`
	Baseline  string   `json:"baseline,omitempty"`
	Kept      []string `json:"kept,omitempty"`

	PID int `json:"pid,omitempty"`
	// Token is the SHA-256 of the job's token: the same job again is told from a new
	// attempt at it.
	Token     string `json:"token,omitempty"`
	StartedAt int64  `json:"startedAt,omitempty"` // milliseconds
	UpdatedAt int64  `json:"updatedAt,omitempty"`
}

// The values of [State.State].
const (
	stateWorking = "working"
	stateDone    = "done"
	stateFailed  = "failed"
)

// claim is a directory whose lock one process holds for as long as it works on the
// job. The lock ends with the process, however that ends.
type claim struct {
	dir  string
	lock *os.File // held; nil where another process holds it
}

// refusal says why a job cannot be taken on. Lasting says that asking again is of no
// use.
type refusal struct {
	Reason  string
	Lasting bool
	Err     error
}

func (e *refusal) Error() string { return fmt.Sprintf("refuse job: %s: %v", e.Reason, e.Err) }
func (e *refusal) Unwrap() error { return e.Err }

// claimsDir is where jobs are claimed unless it is said otherwise.
func claimsDir() string {
	if dir := os.Getenv(core.JournalDirVariable); dir != "" {
		return dir
	}
	return core.DefaultJournal.Dir
}

func claimPath(dir string, kind transfer.JobKind, id string) (string, error) {
	token, err := core.DefaultJournal.Token(core.RunID(id))
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, token+"."+string(kind)), nil
}

func tokenHash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// How long a worker of a former attempt may take to end.
const (
	handOver     = 8 * time.Second
	handOverKill = 2 * time.Second
)

// take claims job below dir. held is false where a worker has the job, or had it and
// ended; state is then how far it is. A worker of a former attempt, whose token the
// function no longer takes, is ended first.
func take(dir string, job transfer.Job) (c claim, state State, held bool, err error) {
	if c, err = openClaim(dir, job); err != nil {
		return claim{}, State{}, false, err
	}
	defer func() {
		if !held {
			c.lock.Close()
		}
	}()
	free := c.try()
	state, _ = c.read()
	same := state.Token == tokenHash(job.Token)
	switch {
	case same && (!free || state.State != stateWorking):
		return c, state, false, nil
	case !free && !c.endFormer(state.PID):
		return c, state, false, nil
	}
	now := time.Now().UnixMilli()
	state = State{Kind: job.Kind, ID: job.ID, State: stateWorking, Token: tokenHash(job.Token), StartedAt: now}
	if err := errors.Join(os.RemoveAll(c.gitDir()), c.write(state)); err != nil {
		return c, state, false, &refusal{"claim-unwritable", true, err}
	}
	return c, state, true, nil
}

func openClaim(dir string, job transfer.Job) (claim, error) {
	path, err := claimPath(dir, job.Kind, job.ID)
	if err != nil {
		return claim{}, &refusal{"job-invalid", true, err}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return claim{}, &refusal{"claim-unwritable", true, err}
	}
	if err := trusted(dir, false); err != nil {
		return claim{}, &refusal{"claim-unsafe", true, err}
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return claim{}, &refusal{"claim-unwritable", true, err}
	}
	if err := trusted(path, true); err != nil {
		return claim{}, &refusal{"claim-unsafe", true, err}
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return claim{}, &refusal{"claim-unwritable", true, err}
	}
	return claim{dir: path, lock: lock}, nil
}

// trusted refuses a directory in which somebody else can make names, other than root:
// what this process writes and removes there would be where those lead. One of a claim
// must be its own; above it a sticky one, in which nobody moves another's names, is safe.
func trusted(dir string, own bool) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	sticky := !own && info.Mode()&fs.ModeSticky != 0
	switch {
	case !info.IsDir() || !ok:
		return fmt.Errorf("%s: want a directory", dir)
	case int(stat.Uid) != os.Geteuid() && (own || stat.Uid != 0):
		return fmt.Errorf("%s: want a directory of user %d, got one of %d", dir, os.Geteuid(), stat.Uid)
	case info.Mode().Perm()&0o022 != 0 && !sticky:
		return fmt.Errorf("%s: want a directory that nobody else may write in", dir)
	}
	return nil
}

func (c claim) try() bool {
	return unix.Flock(int(c.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// endFormer ends the worker that holds the lock, and takes it.
func (c claim) endFormer(pid int) bool {
	if pid <= 1 || pid == os.Getpid() {
		return false
	}
	for _, step := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGTERM, handOver}, {syscall.SIGKILL, handOverKill}} {
		_ = syscall.Kill(pid, step.signal)
		_ = syscall.Kill(pid, syscall.SIGCONT) // a stopped one would heed nothing
		for end := time.Now().Add(step.wait); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if c.try() {
				return true
			}
		}
	}
	return false
}

func (c claim) stateFile() string { return filepath.Join(c.dir, "state.json") }
func (c claim) gitDir() string    { return filepath.Join(c.dir, "git") }

func (c claim) read() (State, error) {
	data, err := os.ReadFile(c.stateFile())
	if err != nil {
		return State{}, err
	}
	var s State
	return s, json.Unmarshal(data, &s)
}

func (c claim) write(s State) error {
	s.UpdatedAt = time.Now().UnixMilli()
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	temp := c.stateFile() + ".new"
	if err := os.WriteFile(temp, append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(temp, c.stateFile())
}

// line prints a state as one line.
func (s State) line() {
	s.Token = ""
	data, _ := json.Marshal(s) // plain fields: it cannot fail
	fmt.Println(strings.TrimSpace(string(data)))
}
