package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/gitstate"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/transfer"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
)

// Codes of failures that are this program's own.
const (
	codeUnknownSecret = "unknown-secret"
	codeTerminated    = "terminated"
	codeAbandoned     = "abandoned" // the worker was killed
	codeNoCheckpoint  = "checkpoint-not-found"
	codeTimeLimit     = string(workspace.CodeTimeLimit)
	codeStep          = "step-failed"
	codeOther         = "agent-error"
)

const (
	renewEvery      = 45 * time.Second
	defaultDeadline = time.Hour
	// lastWords is how long saying why a job failed may take, of a process that was
	// told to end.
	lastWords = 8 * time.Second
)

// failure is an error with a code to branch on.
type failure struct {
	Code string
	Err  error
}

func (e *failure) Error() string { return fmt.Sprintf("%s: %v", e.Code, e.Err) }
func (e *failure) Unwrap() error { return e.Err }

func fail(code string, err error) error { return &failure{code, err} }

var errTerminated = errors.New("the process was told to end")

// codeOf classifies what ended a job.
func codeOf(err error) string {
	if e, ok := errors.AsType[*failure](err); ok {
		return e.Code
	}
	if errors.Is(err, errTerminated) {
		return codeTerminated
	}
	if e, ok := errors.AsType[*workspace.Error](err); ok {
		return string(e.Code)
	}
	if e, ok := errors.AsType[*transfer.Error](err); ok {
		return e.Code
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return codeTimeLimit
	}
	return codeOther
}

// policyOf is the job's policy; without one, the default exclusions hold and the state
// of repositories is stored.
func policyOf(job transfer.Job) (manifest.Policy, error) {
	policy := manifest.Policy{Defaults: true}
	if len(job.Policy) > 0 && string(job.Policy) != "null" {
		policy = manifest.Policy{}
		// A rule that is passed over for its spelling would store what it excludes.
		if err := core.DecodeStrict(job.Policy, &policy); err != nil {
			return policy, fmt.Errorf("job: policy: %w", err)
		}
	}
	switch policy.Git {
	case "":
		policy.Git = gitState
	case gitState, gitFull, gitNone:
	default:
		return policy, fmt.Errorf("job: policy: git %q: want state, full or none", policy.Git)
	}
	return policy, nil
}

// The values of [manifest.Policy.Git].
const (
	gitState = "state"
	gitFull  = "full"
	gitNone  = "none"
)

// work is a job under way.
type work struct {
	job      transfer.Job
	policy   manifest.Policy
	claim    *claim
	client   *transfer.Client
	deadline time.Time
	progress progress
	state    State
	// unfinished says that a repository's state waits for a fetch: it stays in the claim.
	unfinished bool
}

// carryOut does a claimed job, says how it ended to the function, the claim and
// stdout, and returns the exit status.
func carryOut(job transfer.Job, c *claim, p progress) int {
	ctx, stop := signalled()
	defer stop()
	w := &work{job: job, claim: c, progress: p}
	w.state, _ = c.read()
	w.state.PID = os.Getpid()
	_ = c.write(w.state) // only who takes over reads the pid
	deadline := defaultDeadline
	if job.DeadlineSeconds > 0 {
		deadline = time.Duration(job.DeadlineSeconds) * time.Second
	}
	w.deadline = time.Now().Add(deadline)
	err := w.do(ctx)
	w.progress.end()
	if err != nil {
		w.failed(ctx, err)
	} else {
		w.state.State = stateDone
	}
	if written := c.write(w.state); written != nil {
		fmt.Fprintln(os.Stderr, "sandkeeper-agent: write state:", written)
	}
	w.state.line()
	switch {
	case err == nil:
		return exitDone
	case w.state.Code == codeTerminated:
		return exitTerminated
	}
	return exitFailed
}

// signalled is a context that ends with a signal, and for that reason.
func signalled() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	// The session that began this one may end while it works.
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	go func() {
		if _, ok := <-signals; ok {
			cancel(errTerminated)
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		cancel(nil)
	}
}

// failed records why and tells the function, which may know already: then the token is
// dead, and its refusal says no more.
func (w *work) failed(ctx context.Context, err error) {
	if errors.Is(context.Cause(ctx), errTerminated) {
		err = errTerminated
	}
	w.state.State, w.state.Code = stateFailed, codeOf(err)
	w.state.Message = shorten(err.Error())
	fmt.Fprintf(os.Stderr, "sandkeeper-agent: %s %s: %s\n", w.job.Kind, w.job.ID, w.state.Message)
	if w.client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
	defer cancel()
	if told := w.client.Fail(ctx, w.state.Code, w.state.Message); told != nil {
		fmt.Fprintln(os.Stderr, "sandkeeper-agent: tell failure:", told)
	}
}

func shorten(text string) string { return core.Clip(text, 1000) }

func (w *work) do(ctx context.Context) (err error) {
	if w.job.Kind == transfer.JobSetup {
		return w.setup(ctx)
	}
	if w.client, err = transfer.NewClient(w.job); err != nil {
		return err
	}
	if w.policy, err = policyOf(w.job); err != nil {
		return err
	}
	if w.job.Dir, err = workspaceOf(w.job.Dir); err != nil {
		return err
	}
	ctx, cancel := context.WithDeadlineCause(ctx, w.deadline.Add(lastWords), fail(codeTimeLimit, errors.New("the job did not end in time")))
	defer cancel()
	defer func() {
		if !w.unfinished {
			os.RemoveAll(w.claim.gitDir())
		}
	}()
	switch w.job.Kind {
	case transfer.JobCapture:
		return w.capture(ctx)
	case transfer.JobRestore:
		return w.restore(ctx)
	}
	return w.verify(ctx)
}

func (w *work) capture(ctx context.Context) error {
	secrets, err := secretsOf(w.job.Secrets)
	if err != nil {
		return err
	}
	parent, err := w.client.Parent(ctx)
	if err != nil {
		return err
	}
	options := workspace.CaptureOptions{
		Root: w.job.Dir, Store: w.client, ID: w.job.ID, Parent: parent, Policy: w.policy, Secrets: secrets, Git: w.policy.Git,
		Deadline: w.deadline, MaxBytes: w.job.MaxBytes, Progress: w.note, RenewEvery: renewEvery,
	}
	var skipped []manifest.Skipped
	if w.policy.Git == gitState {
		if skipped, err = w.saveGit(ctx, secrets); err != nil {
			return err
		}
		options.GitDir = w.claim.gitDir()
	}
	result, err := workspace.Capture(ctx, options)
	if err != nil {
		return err
	}
	addSkipped(&result.Root, skipped)
	root, err := manifest.EncodeRoot(result.Root)
	if err != nil {
		return err
	}
	if w.state.Checkpoint, err = w.client.Commit(ctx, root); err != nil {
		return err
	}
	w.state.Files, w.state.Bytes = result.Root.Counts.Files, result.Root.Counts.Bytes
	w.state.Packs, w.state.PackBytes, w.state.LayerBytes = result.Packs, result.PackBytes, result.LayerBytes
	w.state.ReadFiles, w.state.ReadBytes = result.ReadFiles, result.ReadBytes
	return nil
}

// saveGit stores the repositories' state in the claim, and tells what was left out.
func (w *work) saveGit(ctx context.Context, secrets []workspace.Secret) (skipped []manifest.Skipped, err error) {
	policy, err := workspace.NewPolicy(w.policy)
	if err != nil {
		return nil, err
	}
	options := gitstate.Options{Temp: w.claim.dir}
	if len(secrets) > 0 {
		if options.Secrets, err = workspace.NewRedactor(secrets, w.policy.RedactForms); err != nil {
			return nil, err
		}
	}
	out := w.claim.gitDir()
	if err := os.MkdirAll(out, 0o700); err != nil {
		return nil, err
	}
	skip := func(rel string) bool { return policy.Excludes(rel, manifest.Dir) }
	var states []gitstate.State
	// A workspace without its repositories' state is worth more than none.
	limited, cancel := context.WithTimeout(ctx, time.Until(w.deadline)/2)
	defer cancel()
	err = w.renewing(limited, func(ctx context.Context) (err error) {
		states, err = gitstate.SaveAll(ctx, w.job.Dir, out, options, skip)
		return err
	})
	if err != nil && !w.over(ctx, err) {
		why := gitstate.GitFailed
		if limited.Err() != nil {
			why = gitstate.TookTooLong
		}
		fmt.Fprintln(os.Stderr, "sandkeeper-agent:", err)
		w.state.Git = []gitNote{{Path: ".", Skipped: []gitstate.Skipped{{What: "repositories", Reason: why, Detail: shorten(err.Error())}}}}
		skipped := []manifest.Skipped{{Path: ".git", Reason: "git repositories: " + why}}
		return skipped, errors.Join(os.RemoveAll(out), os.Mkdir(out, 0o700))
	}
	for _, s := range states {
		w.state.Git = append(w.state.Git, gitNote{Path: s.Path, Saved: !s.Empty(), Bundle: s.Bundle, Skipped: s.Skipped})
		for _, left := range s.Skipped {
			skipped = append(skipped, manifest.Skipped{Path: path.Join(s.Path, ".git"), Reason: "git " + left.What + ": " + left.Reason})
		}
	}
	return skipped, err
}

// over tells whether an error ends the job: the job itself has ended, or its token is
// dead.
func (w *work) over(ctx context.Context, err error) bool {
	_, refused := errors.AsType[*transfer.Error](err)
	return ctx.Err() != nil || refused
}

// gitNote says what became of a repository.
type gitNote struct {
	Path    string             `json:"path"`
	Saved   bool               `json:"saved,omitempty"`
	Bundle  int64              `json:"bundle,omitempty"`
	Result  *gitstate.Result   `json:"result,omitempty"`
	Skipped []gitstate.Skipped `json:"skipped,omitempty"`
}

func addSkipped(root *manifest.Root, more []manifest.Skipped) {
	for _, s := range more {
		if len(root.Skipped) < manifest.MaxSkipped && len(s.Path) <= manifest.MaxText && len(s.Reason) <= manifest.MaxText {
			root.Skipped = append(root.Skipped, s)
		} else {
			root.SkippedMore++
		}
	}
}

func (w *work) restore(ctx context.Context) error {
	root, err := w.checkpoint(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(w.job.Dir, 0o755); err != nil {
		return fail(string(workspace.CodeInvalidWorkspace), err)
	}
	options := workspace.RestoreOptions{
		Root: w.job.Dir, Store: w.client, Manifest: root, GitDir: w.claim.gitDir(), Deadline: w.deadline, Progress: w.note, RenewEvery: renewEvery,
	}
	if len(w.job.Policy) > 0 {
		options.Policy = &w.policy
	}
	result, err := workspace.Restore(ctx, options)
	if err != nil {
		return err
	}
	w.state.Written, w.state.Removed, w.state.Bytes = result.Written, result.Removed, result.Bytes
	w.state.Files, w.state.Checkpoint = root.Counts.Files, root.ID
	if err := w.restoreGit(ctx); err != nil {
		return err
	}
	_, err = w.client.Commit(ctx, nil)
	return err
}

func (w *work) restoreGit(ctx context.Context) error {
	if entries, err := os.ReadDir(w.claim.gitDir()); err != nil || len(entries) == 0 || w.policy.Git != gitState {
		return nil
	}
	return w.renewing(ctx, func(ctx context.Context) error {
		results, err := gitstate.RestoreAll(ctx, w.job.Dir, w.claim.gitDir(), gitstate.Options{Temp: w.claim.dir})
		for _, r := range results {
			w.state.Git = append(w.state.Git, gitNote{Path: r.Path, Result: &r})
			w.unfinished = w.unfinished || r.Code == gitstate.ObjectsMissing
		}
		if err != nil && !w.over(ctx, err) {
			// The files are restored: that is told, and not undone.
			fmt.Fprintln(os.Stderr, "sandkeeper-agent:", err)
			w.state.Git = append(w.state.Git, gitNote{Path: ".", Result: &gitstate.Result{Path: ".", Code: gitstate.GitFailed}})
			return nil
		}
		return err
	})
}

// checkpoint is the root of what is to be restored or verified.
func (w *work) checkpoint(ctx context.Context) (manifest.Root, error) {
	root, err := w.client.Parent(ctx)
	switch {
	case err != nil:
		return manifest.Root{}, err
	case root == nil:
		return manifest.Root{}, fail(codeNoCheckpoint, errors.New("the thread has no checkpoint"))
	case w.job.Checkpoint != "" && root.ID != w.job.Checkpoint:
		return manifest.Root{}, fail(codeNoCheckpoint, fmt.Errorf("the function gave checkpoint %q, want %q", root.ID, w.job.Checkpoint))
	}
	return *root, nil
}

// renewing does something that does not renew the lease by itself. A refused renewal
// ends it.
func (w *work) renewing(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	at := workspace.Progress{Files: w.state.Files, Bytes: w.state.Bytes}
	go func() {
		for tick := time.NewTicker(renewEvery); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
			err := w.client.Renew(ctx, at)
			if e, ok := errors.AsType[*transfer.Error](err); ok && e.Code != transfer.CodeUnavailable {
				cancel(err)
			}
		}
	}()
	err := do(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// note is called by the engine about once a second.
func (w *work) note(p workspace.Progress) {
	w.state.Files, w.state.Bytes = p.Files, p.Bytes
	_ = w.claim.write(w.state) // the next one says more
	w.progress.tell(w.job.Kind, p)
}

// gitCommand saves or restores the state of repositories by hand.
func gitCommand(args []string) int {
	if len(args) != 3 || args[0] != "save" && args[0] != "restore" {
		return complain("git: want save DIR OUT, or restore DIR IN")
	}
	ctx, stop := signalled()
	defer stop()
	dir, err := filepath.Abs(args[1])
	if err != nil {
		return complain(err.Error())
	}
	var notes any
	if args[0] == "save" {
		notes, err = gitstate.SaveAll(ctx, dir, args[2], gitstate.Options{}, nil)
	} else {
		notes, err = gitstate.RestoreAll(ctx, dir, args[2], gitstate.Options{})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandkeeper-agent:", err)
		return exitFailed
	}
	data, err := json.Marshal(notes)
	fmt.Println(string(data))
	if err != nil {
		return exitFailed
	}
	return exitDone
}

func (w *work) verify(ctx context.Context) error {
	root, err := w.checkpoint(ctx)
	if err != nil {
		return err
	}
	options := workspace.VerifyOptions{Store: w.client, Manifest: root, Seed: time.Now().UnixNano(), Progress: w.note}
	if packs := len(root.Packs); w.job.Sample > 0 && w.job.Sample < packs {
		options.Sample = float64(w.job.Sample) / float64(packs)
	}
	var result workspace.VerifyResult
	err = w.renewing(ctx, func(ctx context.Context) (err error) {
		result, err = workspace.Verify(ctx, options)
		return err
	})
	if err != nil {
		return err
	}
	w.state.Checkpoint, w.state.Files, w.state.Bytes = root.ID, result.Entries, result.Bytes
	_, err = w.client.Commit(ctx, nil)
	return err
}
