package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/gitstate"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// checkpointsRestore brings a checkpoint back.
type checkpointsRestore struct {
	oneCheckpoint
	To string `type:"path" help:"Restore into this directory of this machine, empty or not there yet, with your own credentials." placeholder:"DIR"`

	OfRun    string   `name:"run" help:"Restore into the sandbox of this run of the thread; of the newest one that has a sandbox otherwise." placeholder:"ID"`
	Dir      string   `help:"The workspace in the sandbox; what the sandbox says otherwise." placeholder:"DIR"`
	NoSafety bool     `help:"Store no checkpoint of what is in the sandbox before."`
	Secret   []string `help:"Blank the value of this secret in that checkpoint, beside those that the run names." placeholder:"NAME"`
	Relay    bool     `help:"The sandbox has no route to the function's URL: requests go over exec sessions."`
	Within   span     `default:"30m" help:"Wait no longer than this for the sandbox." placeholder:"DURATION"`
	Why      whyText  `help:"Why, for the record; required but for a directory." placeholder:"TEXT"`
	sure
	rehearsal
}

// Validate refuses what does not go together.
func (c *checkpointsRestore) Validate() error {
	live := c.OfRun != "" || c.Dir != "" || c.NoSafety || len(c.Secret) > 0 || c.Relay
	switch {
	case c.To != "" && live:
		return errors.New("--to goes with none of --run, --dir, --no-safety, --secret and --relay: it asks no sandbox")
	case c.To == "" && c.Why == "":
		return errors.New("want --to with a directory, or a reason to restore into a sandbox: --why")
	case c.NoSafety && len(c.Secret) > 0:
		return errors.New("want --secret or --no-safety, got both")
	case c.Dir != "" && (!path.IsAbs(c.Dir) || path.Clean(c.Dir) != c.Dir):
		return fmt.Errorf("dir: want a clean absolute path, got %q", c.Dir)
	}
	return nil
}

// restoredView is what it prints.
type restoredView struct {
	Op string `json:"op"`
	core.ThreadKey
	Checkpoint core.CheckpointID `json:"checkpoint"`
	DryRun     bool              `json:"dryRun"`

	// Of a directory.
	To      string            `json:"to,omitempty"`
	Counts  *manifest.Counts  `json:"counts,omitempty"` // of the checkpoint
	Written int64             `json:"written,omitempty"`
	Bytes   int64             `json:"bytes,omitempty"`
	Unset   int64             `json:"unset,omitempty"` // owners and attributes that this system refused
	Git     []gitstate.Result `json:"git,omitempty"`

	// Of a sandbox.
	Run      core.RunID      `json:"run,omitempty"`
	Instance core.InstanceID `json:"instanceId,omitempty"`
	Safety   *stepView       `json:"safety,omitempty"` // the checkpoint of before
	Restored *stepView       `json:"restored,omitempty"`
	By       string          `json:"by,omitempty"`
	Why      string          `json:"why,omitempty"`
}

// stepView is a step as the tool shows it.
type stepView struct {
	ID    core.CheckpointID `json:"id"`
	State core.StepState    `json:"state"`
	Files int64             `json:"files"`
	Bytes int64             `json:"bytes"`
}

func viewStep(r core.StepReport) *stepView { return &stepView{r.ID, r.State, r.Files, r.Bytes} }

// Run restores.
func (c *checkpointsRestore) Run(ctx context.Context, in *installation, out *console.Console) error {
	key, err := c.key()
	if err != nil {
		return err
	}
	v := restoredView{Op: "restore", ThreadKey: key, DryRun: c.DryRun, Checkpoint: core.CheckpointID(c.ID)}
	if c.To != "" {
		err = c.here(ctx, in, out, &v)
	} else {
		err = c.there(ctx, in, out, &v)
	}
	if err != nil {
		return err
	}
	return out.Print(v, v.print)
}

// here restores into a directory of this machine. A dry run reads root and layers, and
// checks them as a restore does.
func (c *checkpointsRestore) here(ctx context.Context, in *installation, out *console.Console, v *restoredView) error {
	if !unpacks && !c.DryRun {
		return &refusedError{text: "to: files are restored by Linux alone, whose calls keep a hostile tree inside the directory: run it there, or in a container"}
	}
	if err := vacant(c.To); err != nil {
		return err
	}
	a, err := in.archived(ctx, v.ThreadKey, v.Checkpoint)
	if err != nil {
		return err
	}
	v.Checkpoint, v.To, v.Counts = a.record.ID, c.To, &a.root.Counts
	if c.DryRun {
		return a.each(ctx, func(manifest.Entry) error { return nil })
	}
	return c.fetch(ctx, out, a, v)
}

// fetch restores the files, and then the state of the repositories among them. A directory
// that it has made for nothing goes again.
func (c *checkpointsRestore) fetch(ctx context.Context, out *console.Console, a archived, v *restoredView) (err error) {
	_, absent := os.Stat(c.To)
	if err := os.MkdirAll(c.To, 0o755); err != nil {
		return fmt.Errorf("restore to %s: %w", c.To, err)
	}
	git, err := os.MkdirTemp("", "sandkeeper-git-")
	if err != nil {
		return fmt.Errorf("restore to %s: %w", c.To, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(git)) }()
	bar := out.Bar(a.root.Counts.Bytes, "bytes")
	defer bar.Done()
	result, err := unpack(ctx, a, c.To, git, func(files, bytes int64) {
		bar.Of(bytes, "%d of %d entries, bytes", files, entriesOf(a.root.Counts))
	})
	if err != nil {
		if absent != nil {
			_ = os.Remove(c.To) // which removes nothing but an empty one
		}
		return fmt.Errorf("restore to %s: %w", c.To, err)
	}
	v.Written, v.Bytes, v.Unset = result.written, result.bytes, result.unset
	if stored, err := os.ReadDir(git); err != nil || len(stored) == 0 {
		return err
	}
	bar.Of(a.root.Counts.Bytes, "the state of repositories")
	if v.Git, err = gitstate.RestoreAll(ctx, c.To, git, gitstate.Options{}); err != nil {
		return fmt.Errorf("the files are restored, the state of repositories is not: %w", err)
	}
	return nil
}

// unpacked counts what a restore wrote here.
type unpacked struct{ written, bytes, unset int64 }

func entriesOf(c manifest.Counts) int64 { return c.Files + c.Dirs + c.Symlinks + c.Hardlinks }

// vacant refuses a directory in which something is.
func vacant(dir string) error {
	inside, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return badInput("to: want an empty directory, or one that is not there yet: %v", err)
	case len(inside) > 0:
		return badInput("to: want an empty directory, or one that is not there yet; %s holds %s", dir, filepath.Base(inside[0].Name()))
	}
	return nil
}

// there restores into a sandbox of the thread, after a checkpoint of what is in it.
func (c *checkpointsRestore) there(ctx context.Context, in *installation, out *console.Console, v *restoredView) error {
	by, err := in.by(ctx, c.Why)
	if err != nil {
		return err
	}
	at, err := in.sandboxOf(ctx, v.ThreadKey, core.RunID(c.OfRun))
	if err != nil {
		return err
	}
	if err := in.keptBack(ctx, v.ThreadKey, at.run); err != nil {
		return err
	}
	var wanted core.ListedCheckpoint
	if err := in.checkpoint(ctx, "show", v.ThreadKey, threadCheckpoint{v.ThreadKey, v.Checkpoint}, &wanted); err != nil {
		return err
	}
	v.Checkpoint, v.Run, v.Instance, v.By, v.Why = wanted.ID, at.run.Run, at.box.Instance, by.Who, by.Why
	if !c.DryRun && !c.Yes {
		if err := out.Confirm(ctx, c.question(v, at.run)); err != nil {
			return err
		}
	}
	steps := c.requests(v, at)
	if c.DryRun {
		return c.rehearse(ctx, in, v, steps)
	}
	err = c.carryOut(ctx, in, out, v, steps)
	if v.Restored != nil && v.Restored.State == core.StepDone { // the agent tells how far it is, and not of its end
		v.Restored.Files, v.Restored.Bytes = wanted.Files, wanted.Bytes
	}
	return err
}

// twoSteps are a safety checkpoint and the restore after it.
type twoSteps struct {
	save    core.SaveRequest
	restore core.RestoreRequest
}

// carryOut records the act and waits for both steps.
func (c *checkpointsRestore) carryOut(ctx context.Context, in *installation, out *console.Console, v *restoredView, steps twoSteps) error {
	if err := in.recordOf(ctx, core.By{Who: v.By, Why: v.Why}, "checkpoints restore", v.ThreadKey, fmt.Sprintf("%s into instance %s", v.Checkpoint, v.Instance)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.Within.duration(), fmt.Errorf("%s: not done within %s", v.ThreadKey, c.Within.duration()))
	defer cancel()
	if !c.NoSafety {
		report, err := in.step(ctx, out, "save", v.ThreadKey, steps.save)
		if err != nil {
			return fmt.Errorf("nothing is restored, for its safety checkpoint was not made: %w", err)
		}
		v.Safety = viewStep(report)
	}
	report, err := in.step(ctx, out, "restore", v.ThreadKey, steps.restore)
	if err != nil && v.Safety != nil {
		return fmt.Errorf("%w; the workspace of before is checkpoint %s", err, v.Safety.ID)
	}
	v.Restored = viewStep(report)
	return err
}

func (c *checkpointsRestore) question(v *restoredView, r core.Run) string {
	text := fmt.Sprintf("restore %s of %s into the sandbox of run %s", v.Checkpoint, v.ThreadKey, v.Run)
	if !r.Status.Terminal() {
		text += ", which is " + string(r.Status)
	}
	if c.NoSafety {
		return text + "? What is different there is lost"
	}
	return text + "? What is different there is replaced; a checkpoint of it is made first"
}

// requests are the two steps, with what the run says of its workspace. The checkpoint is
// named: the safety checkpoint becomes the head. Its policy is the checkpoint's own.
func (c *checkpointsRestore) requests(v *restoredView, at liveSandbox) twoSteps {
	nonce := rand.Text()
	save := core.SaveRequest{
		ThreadKey: v.ThreadKey, ID: core.CheckpointID("safety-" + nonce), Reason: core.ReasonSafety, Run: v.Run, Key: at.box.Key, Instance: at.box.Instance,
	}
	if at.run.Capture != nil {
		save.JobOptions = *at.run.Capture
	}
	save.Dir, save.Relay = cmp.Or(c.Dir, save.Dir), save.Relay || c.Relay
	save.Secrets = slices.Concat(save.Secrets, c.Secret)
	return twoSteps{save, core.RestoreRequest{
		ThreadKey: v.ThreadKey, ID: core.CheckpointID("restore-" + nonce), Checkpoint: v.Checkpoint, Run: v.Run, Key: at.box.Key, Instance: at.box.Instance,
		JobOptions: core.JobOptions{Dir: save.Dir, Relay: save.Relay},
	}}
}

// rehearse begins both steps without an agent. Each begins from the records as they are:
// the first would have ended before the second.
func (c *checkpointsRestore) rehearse(ctx context.Context, in *installation, v *restoredView, steps twoSteps) error {
	if !c.NoSafety {
		report, err := in.rehearsedKeeper().Save(ctx, steps.save)
		if err != nil {
			return judged("save", v.ThreadKey, err)
		}
		v.Safety = viewStep(report)
	}
	report, err := in.rehearsedKeeper().Restore(ctx, steps.restore)
	v.Restored = viewStep(report)
	return judged("restore", v.ThreadKey, err)
}

func (v restoredView) print(w *console.Writer) {
	if v.DryRun {
		w.Line("dry run: nothing is written")
	}
	pairs := [][2]string{{"thread", v.ThreadKey.String()}, {"checkpoint", string(v.Checkpoint)}, {"directory", v.To}}
	if v.Counts != nil {
		pairs = append(pairs, [2]string{"holds", fmt.Sprintf("%d files, %d directories, %d links, %d bytes", v.Counts.Files, v.Counts.Dirs,
			v.Counts.Symlinks+v.Counts.Hardlinks, v.Counts.Bytes)})
	}
	if v.To != "" && !v.DryRun {
		pairs = append(pairs, [2]string{"written", fmt.Sprintf("%d files and links, %d bytes", v.Written, v.Bytes)})
	}
	if v.Unset > 0 {
		pairs = append(pairs, [2]string{"not set", strconv.FormatInt(v.Unset, 10) + " owners and attributes, which this system refuses you"})
	}
	for _, g := range v.Git {
		pairs = append(pairs, [2]string{"repository", g.Path + ": " + cmp.Or(g.Code, "as it was")})
	}
	pairs = append(pairs, [2]string{"run", string(v.Run)}, [2]string{"instance", string(v.Instance)})
	if v.Safety != nil {
		pairs = append(pairs, [2]string{"safety checkpoint", fmt.Sprintf("%s, %d files", v.Safety.ID, v.Safety.Files)})
	}
	if v.Restored != nil {
		pairs = append(pairs, [2]string{"restore", fmt.Sprintf("%s, %d files, %d bytes", v.Restored.State, v.Restored.Files, v.Restored.Bytes)})
	}
	w.Pairs(pairs)
}

// liveSandbox is a sandbox of a thread, and a run that is bound to it.
type liveSandbox struct {
	run core.Run
	box core.Sandbox
}

// sandboxOf finds the sandbox of a run, or of the newest run of the thread that has one.
func (in *installation) sandboxOf(ctx context.Context, key core.ThreadKey, run core.RunID) (liveSandbox, error) {
	keys := []core.RunKey{{Tenant: key.Tenant, Run: run}}
	if run == "" {
		var err error
		if keys, err = in.reader.Thread(ctx, key.Tenant, key.Thread); err != nil {
			return liveSandbox{}, err
		}
	}
	runs, bad, err := in.load(ctx, keys)
	switch {
	case err != nil:
		return liveSandbox{}, err
	case run != "" && len(bad) > 0:
		return liveSandbox{}, bad[0].Err
	case run != "" && (len(runs) == 0 || runs[0].Thread != key.Thread):
		return liveSandbox{}, fmt.Errorf("run %s of thread %s: %w", run, key, core.ErrNotFound)
	}
	byStart(runs)
	for _, r := range runs {
		box, err := in.boxes.Sandbox(ctx, r.SandboxKey)
		if err != nil && !errors.Is(err, core.ErrNotFound) {
			return liveSandbox{}, err
		}
		if err == nil && box.TaskARN != "" && box.Reclaiming == "" && box.Material.Thread == key.Thread {
			return liveSandbox{r, box}, nil
		}
	}
	return liveSandbox{}, &refusedError{text: fmt.Sprintf("restore %s: no run of it has a sandbox that lives on: --to restores into a directory here", key)}
}

// keptBack refuses what the function would refuse too, once it has the thread: before a safety
// checkpoint is made that nothing comes after.
func (in *installation) keptBack(ctx context.Context, key core.ThreadKey, r core.Run) error {
	control, err := in.controls().Control(ctx)
	switch {
	case err != nil:
		return err
	case control.Frozen:
		return &core.RefusedError{Op: "restore", Record: key.String(), Why: core.WithheldFrozen}
	case r.Hold.Live(core.MillisOf(time.Now())):
		return &core.RefusedError{Op: "restore", Record: key.String(), Why: core.WithheldHeld}
	}
	return nil
}

// recordOf records who does what to a thread, and why, before it is done.
func (in *installation) recordOf(ctx context.Context, by core.By, op string, key core.ThreadKey, detail string) error {
	entry := core.AuditEntry{At: core.MillisOf(time.Now()), By: by.Who, Why: by.Why, Op: op, Subject: key.String(), Detail: detail}
	if err := in.boxes.Record(ctx, entry); err != nil {
		return fmt.Errorf("%s %s: record it: %w", op, key, err)
	}
	return nil
}

const (
	// stepPace is how long a step is left alone before it is asked about again.
	stepPace = 2 * time.Second
	// stepDoubts is how many answers in a row may get lost.
	stepDoubts = 5
)

// step asks for a step again and again until it has ended. An answer that got lost leaves
// open whether it was begun: it is asked for again, with the same id.
func (in *installation) step(ctx context.Context, out *console.Console, operation string, key core.ThreadKey, request any) (core.StepReport, error) {
	defer out.Done()
	for lost := 0; ; {
		var report core.StepReport
		err := in.checkpoint(ctx, operation, key, request, &report)
		switch {
		case ctx.Err() != nil:
			out.Note("what has begun goes on in the sandbox")
			return core.StepReport{}, cutOff(ctx)
		case err != nil && (codeOf(err) != exitFailed || lost == stepDoubts):
			return core.StepReport{}, err
		case err != nil:
			lost++
		case report.State == core.StepDone:
			return report, nil
		case report.State == core.StepFailed:
			return core.StepReport{}, &stepError{operation, key, report.Why}
		default:
			lost = 0
			out.Progress("%s: %d files, %d bytes", operation, report.Files, report.Bytes)
		}
		select {
		case <-ctx.Done():
		case <-time.After(stepPace):
		}
	}
}

// cutOff is why a wait ended: an interrupt as such, whatever signal it was, and a time
// limit in its own words.
func cutOff(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return context.Cause(ctx)
}

// stepError is a step that its agent, or the start of it, gave up.
type stepError struct {
	operation string
	key       core.ThreadKey
	why       string
}

func (e *stepError) Error() string { return fmt.Sprintf("%s %s: %s", e.operation, e.key, e.why) }
