package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/setup"
	"github.com/sandkeeper/sandkeeper/internal/transfer"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
	"github.com/sandkeeper/sandkeeper/internal/wrapper"
)

// planOf is what a set-up job is to do. A member that it does not know is refused: what it
// asks for would be left out.
func planOf(job transfer.Job) (core.SetupPlan, error) {
	var plan core.SetupPlan
	if len(job.Plan) == 0 {
		return plan, errors.New("job: want a plan")
	}
	if err := core.DecodeStrict(job.Plan, &plan); err != nil {
		return plan, fmt.Errorf("job: plan: %w", err)
	}
	if name := plan.Hash; name == "" || filepath.Base(name) != name || len(name) > 128 {
		return plan, errors.New("job: plan: hash: want the definition's hash")
	}
	return plan, nil
}

// maxKept bounds how many files in the way are told: an answer has to stay short.
const maxKept = 100

// setup prepares the workspace. Order: the secrets first, so that whatever fails later is
// told without them.
func (w *work) setup(ctx context.Context) error {
	plan, err := planOf(w.job)
	if err != nil {
		return err
	}
	if w.job.Dir, err = workspaceOf(w.job.Dir); err != nil {
		return err
	}
	if err := secretPlace().Leave(w.job.Values); err != nil {
		return err
	}
	options := setup.Options{
		Plan: plan, Dir: w.job.Dir, Steps: filepath.Join(w.claim.dir, "steps"), Note: w.noteStep, Log: os.Stderr, Env: wrapper.InitEnvironment(),
	}
	if err := w.secrets(plan, &options); err != nil {
		return err
	}
	// Those of the container's environment too: who watches the workspace knows no names.
	if err := secretPlace().Leave(options.Secrets); err != nil {
		return err
	}
	if options.User, err = wrapper.InitCredential(); err != nil {
		return err
	}
	if plan.Restore != "" {
		at, err := claimPath(filepath.Dir(w.claim.dir), transfer.JobRestore, string(plan.Restore))
		if err != nil {
			return err
		}
		options.GitDir = filepath.Join(at, "git")
	}
	ctx, cancel := context.WithDeadlineCause(ctx, w.deadline, fail(codeTimeLimit, errors.New("the set-up did not end in time")))
	defer cancel()
	result, err := setup.Run(ctx, options)
	w.state.Baseline, w.state.Kept = result.Baseline, result.Kept[:min(len(result.Kept), maxKept)]
	for _, r := range result.Git {
		w.state.Git = append(w.state.Git, gitNote{Path: r.Path, Result: &r})
	}
	if e, ok := errors.AsType[*setup.StepError](err); ok {
		w.state.Step, w.state.Tail = e.Step, e.Tail
		return fail(codeStep, err)
	}
	return err
}

// secrets gives the set-up the values that steps may name, and what blanks them.
func (w *work) secrets(plan core.SetupPlan, o *setup.Options) error {
	values, err := secretsOf(plan.Secrets)
	if err != nil {
		return err
	}
	o.Secrets = maps.Clone(w.job.Values)
	if o.Secrets == nil {
		o.Secrets = map[string]string{}
	}
	for _, s := range values {
		o.Secrets[s.Name] = s.Value
	}
	var all []workspace.Secret
	for _, name := range slices.Sorted(maps.Keys(o.Secrets)) {
		all = append(all, workspace.Secret{Name: name, Value: o.Secrets[name]})
	}
	if len(all) == 0 {
		return nil
	}
	redactor, err := workspace.NewRedactor(all, []string{workspace.FormBase64, workspace.FormURL})
	if err != nil {
		return err
	}
	o.Redact, o.Overlap = redactor.Redact, redactor.Overlap()
	return nil
}

// noteStep is called when a step begins or ends.
func (w *work) noteStep(p setup.Progress) {
	w.state.Step, w.state.StepsDone, w.state.Steps = p.Step, p.Done, p.All
	w.state.UpdatedAt = time.Now().UnixMilli()
	_ = w.claim.write(w.state) // the next one says more
	w.progress.say(fmt.Sprintf("setup: %d of %d steps, %s", p.Done, p.All, p.Step))
}
