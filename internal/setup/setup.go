package setup

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/gitstate"
)

// Options say what is set up, where and as whom.
type Options struct {
	Plan core.SetupPlan
	Dir  string // the workspace, absolute
	// Steps is a directory of this job's own, in which it is noted what is done.
	Steps string
	// GitDir holds the states of repositories that a restore could not finish for want of
	// commits that the remote has; empty: none.
	GitDir string
	// Secrets are values by name. A step's environment has those that its text names.
	Secrets map[string]string
	// Redact blanks secrets in place; nil: there are none. Overlap is how far the longest
	// reaches.
	Redact  func(data []byte) bool
	Overlap int

	User *syscall.Credential // nil: this process' own
	Env  []string            // of the container; without a PATH: this process' own
	// StepLimit bounds each step; 0: a quarter of an hour.
	StepLimit time.Duration
	Note      func(Progress) // may be nil
	Log       io.Writer      // one line each; nil: none
}

// Progress is how far a set-up is.
type Progress struct {
	Step      string
	Done, All int
}

// Result is what a set-up came to.
type Result struct {
	// Baseline is the commit that is checked out; empty: there is none.
	Baseline string
	// Kept are files in the way of the plan's that are somebody else's.
	Kept []string
	// Git are the states of repositories that were finished.
	Git []gitstate.Result
}

// StepError tells which step failed, and the end of what it printed, without secrets.
type StepError struct {
	Step string
	Tail string // at most [TailChars] characters
	Err  error
}

func (e *StepError) Error() string { return fmt.Sprintf("step %s: %v", e.Step, e.Err) }
func (e *StepError) Unwrap() error { return e.Err }

// TailChars is how much of what a step printed is told, characters.
const TailChars = 1500

const defaultStepLimit = 15 * time.Minute

// step is one thing to do.
type step struct {
	name string
	mark string // what it does, so that another step of the same name is not taken for it
	do   func(ctx context.Context) error
}

// group is steps that may run together.
type group struct {
	parallel bool
	steps    []step
}

// job is a set-up under way.
type job struct {
	Options
	root    *os.Root // the workspace
	project string   // where the source is
	result  Result

	mu       sync.Mutex // of what follows
	progress Progress
}

// Run carries a plan out. An error is mostly a [*StepError]; running it again goes on
// behind the last step that was done.
func Run(ctx context.Context, o Options) (Result, error) {
	j := &job{Options: o, project: o.Dir}
	if !slices.ContainsFunc(o.Env, func(entry string) bool { return strings.HasPrefix(entry, "PATH=") }) {
		j.Env = os.Environ() // the main process keeps the container's to itself
	}
	if o.StepLimit == 0 {
		j.StepLimit = defaultStepLimit
	}
	if s := o.Plan.Workspace.Source; s != nil {
		j.project = filepath.Join(o.Dir, filepath.FromSlash(s.Directory))
	}
	if err := j.open(); err != nil {
		return Result{}, fmt.Errorf("set up %s: %w", o.Dir, err)
	}
	defer j.root.Close()
	groups := j.groups()
	for _, g := range groups {
		j.progress.All += len(g.steps)
	}
	for _, g := range groups {
		if err := j.group(ctx, g); err != nil {
			return j.result, err
		}
	}
	if !o.Plan.CloneOnly {
		j.baseline(ctx)
	}
	return j.result, nil
}

func (j *job) open() (err error) {
	if _, err := os.Stat(j.Dir); errors.Is(err, os.ErrNotExist) {
		if err := errors.Join(os.MkdirAll(j.Dir, 0o755), j.give(j.Dir)); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(j.Steps, 0o700); err != nil {
		return err
	}
	j.root, err = os.OpenRoot(j.Dir)
	return err
}

// give makes a directory that was made here the container's user's.
func (j *job) give(name string) error {
	if j.User == nil {
		return nil
	}
	return os.Lchown(name, int(j.User.Uid), int(j.User.Gid))
}

// groups are the plan's steps in their order.
func (j *job) groups() []group {
	w := j.Plan.Workspace
	var all []group
	one := func(name, mark string, do func(context.Context) error) {
		all = append(all, group{steps: []step{{name, mark, do}}})
	}
	if w.Source != nil {
		one("clone", fmt.Sprintf("%+v", *w.Source), j.clone)
	}
	if j.Plan.CloneOnly {
		return all
	}
	if j.GitDir != "" {
		one("repository", j.GitDir, j.finishGit)
	}
	if files := j.Plan.Projects(); files {
		one("files", j.Plan.Hash, j.projectFiles)
	}
	if w.Manager != core.ManagerNone && (w.Source != nil || w.Manager != core.ManagerDefault) {
		one("packages", string(w.Manager), j.packages)
	}
	for _, g := range w.Setup {
		next := group{parallel: g.Parallel}
		for _, s := range g.Steps {
			next.steps = append(next.steps, step{g.Name + "/" + s.Name, s.Run, func(ctx context.Context) error {
				return j.shell(ctx, s.Run)
			}})
		}
		all = append(all, next)
	}
	return all
}

// parallel is how many steps of a group run at once.
const parallel = 4

func (j *job) group(ctx context.Context, g group) error {
	width := 1
	if g.parallel {
		width = parallel
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	slots := make(chan struct{}, width)
	for _, s := range g.steps {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := j.once(ctx, s); err != nil {
				cancel(err) // the first one counts
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// once does a step that is not done yet, and notes that it is.
func (j *job) once(ctx context.Context, s step) error {
	sum := sha256.Sum256([]byte(s.name + "\x00" + s.mark))
	done := filepath.Join(j.Steps, hex.EncodeToString(sum[:12])+".done")
	if _, err := os.Lstat(done); err == nil {
		j.note(s.name, 1)
		return nil
	}
	j.note(s.name, 0)
	limited, cancel := context.WithTimeoutCause(ctx, j.StepLimit, fmt.Errorf("not done within %s", j.StepLimit))
	defer cancel()
	err := s.do(limited)
	if err == nil {
		err = os.WriteFile(done, nil, 0o600)
	}
	if err == nil {
		j.note(s.name, 1)
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause // told to end, or another step of the group failed
	}
	if cause := context.Cause(limited); cause != nil {
		err = withCause(err, cause)
	}
	if e, ok := errors.AsType[*StepError](err); ok {
		e.Step = cmp.Or(e.Step, s.name)
		return e
	}
	return &StepError{Step: s.name, Err: err}
}

func withCause(err, cause error) error {
	if e, ok := errors.AsType[*StepError](err); ok {
		e.Err = cause
		return e
	}
	return cause
}

func (j *job) note(name string, done int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.progress.Step = name
	j.progress.Done += done
	if j.Note != nil {
		j.Note(j.progress)
	}
}

func (j *job) logf(format string, args ...any) {
	if j.Log != nil {
		fmt.Fprintf(j.Log, "sandkeeper-agent: "+format+"\n", args...)
	}
}

// baseline notes what later changes are compared with. Without one the run goes on.
func (j *job) baseline(ctx context.Context) {
	b, err := gitstate.OpenBaseline(ctx, j.project, "", gitstate.Options{Workspace: j.Dir})
	if err != nil {
		j.logf("the baseline is empty: %v", err)
		return
	}
	defer b.Close()
	j.result.Baseline = b.Commit
}

// finishGit brings back the state of repositories whose commits no shallow clone has.
func (j *job) finishGit(ctx context.Context) error {
	if entries, err := os.ReadDir(j.GitDir); err != nil || len(entries) == 0 {
		return nil // the restore left nothing to be finished
	}
	results, err := gitstate.RestoreAll(ctx, j.Dir, j.GitDir, gitstate.Options{})
	if err != nil {
		return err
	}
	for _, r := range results {
		if r.Code == gitstate.ObjectsMissing {
			if err := j.fetch(ctx, filepath.Join(j.Dir, filepath.FromSlash(r.Path)), r.Missing); err != nil {
				j.logf("fetch what the state of %s builds on: %v", r.Path, err)
			}
		}
	}
	if j.result.Git, err = gitstate.RestoreAll(ctx, j.Dir, j.GitDir, gitstate.Options{}); err != nil {
		return err
	}
	for _, r := range j.result.Git {
		if !r.Restored {
			j.logf("state of repository %s is not restored: %s", r.Path, r.Code)
		}
	}
	return nil
}

// mentions reports whether text has a word, as the name of a variable has to stand.
func mentions(text, name string) bool {
	for from := 0; ; {
		at := strings.Index(text[from:], name)
		if at < 0 {
			return false
		}
		at += from
		before := at == 0 || !nameByte(text[at-1])
		after := at+len(name) == len(text) || !nameByte(text[at+len(name)])
		if before && after {
			return true
		}
		from = at + 1
	}
}

func nameByte(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}
