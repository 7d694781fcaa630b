package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/lambdacheckpoint"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// checkpointsCommand is about what is stored of the workspaces of threads.
type checkpointsCommand struct {
	List    checkpointsList    `cmd:"" help:"List a thread's checkpoints."`
	Head    checkpointsHead    `cmd:"" help:"Show a thread's newest checkpoint."`
	Show    checkpointsShow    `cmd:"" help:"Show a checkpoint, its files, and what was skipped and why."`
	Diff    checkpointsDiff    `cmd:"" help:"List what changed between two checkpoints."`
	Restore checkpointsRestore `cmd:"" help:"Bring a checkpoint into a directory here, or back into a sandbox of its thread."`
	Fork    checkpointsFork    `cmd:"" help:"Begin threads from a checkpoint."`
	Verify  checkpointsVerify  `cmd:"" help:"Read a checkpoint back from where it is stored."`
	GC      checkpointsGC      `cmd:"" name:"gc" help:"Count, or remove, what no checkpoint needs any more."`
	Keep    checkpointsKeep    `cmd:"" help:"Take checkpoints away but the newest and the named ones."`
}

// oneThread is the argument of a command about one thread.
type oneThread struct {
	Thread string `arg:"" name:"thread" help:"TENANT/THREAD, or THREAD alone where there are no tenants."`
	Tenant string `help:"The tenant, where its id holds a slash; THREAD is then the thread's id alone." placeholder:"ID"`
}

// key is the thread that is meant. It is named as a run is.
func (o oneThread) key() (core.ThreadKey, error) {
	k := parseRun(o.Tenant, o.Thread)
	if k.Tenant == "" || k.Run == "" {
		return core.ThreadKey{}, badInput("thread: want TENANT/THREAD, or THREAD alone, got %q", o.Thread)
	}
	return core.ThreadKey{Tenant: k.Tenant, Thread: core.ThreadID(k.Run)}, nil
}

// oneCheckpoint are the arguments of a command about one checkpoint.
type oneCheckpoint struct {
	oneThread
	ID string `arg:"" optional:"" name:"checkpoint" help:"Its id; the thread's head without it."`
}

// threadCheckpoint is how the function is told of it.
type threadCheckpoint struct {
	core.ThreadKey
	ID core.CheckpointID `json:"id"`
}

// checkpoint asks the deployed function, which decides.
func (in *installation) checkpoint(ctx context.Context, operation string, key core.ThreadKey, request, answer any) error {
	caller := &lambdacheckpoint.Caller{
		Lambda: in.lambda, Function: in.out[names.OutCheckpoint], Timeout: core.DefaultLimits.CheckpointTimeout + reapSlack,
	}
	return judged(operation, key, unwaited(ctx, caller.Function, caller.Call(ctx, operation, request, answer)))
}

// judged gives a refusal, of the function or of its rules in this process, the exit code
// that its like has elsewhere. Anything else stays as it is.
func judged(operation string, key core.ThreadKey, err error) error {
	var code, text string
	if e, ok := errors.AsType[*lambdacheckpoint.RefusedError](err); ok {
		code, text = e.Code, e.Message
	} else if e, ok := errors.AsType[*core.InvalidError](err); ok {
		code, text = e.Code, e.Detail
	} else if e, ok := errors.AsType[*core.RefusedError](err); ok {
		code, text = e.Why, e.Error()
	}
	switch {
	case code == "":
		return err
	case code == "not-found", code == "missing-checkpoint", strings.HasSuffix(code, "-not-found"):
		return fmt.Errorf("%s %s: checkpoint %w", operation, key, core.ErrNotFound)
	case code == "bad-request", strings.HasPrefix(code, "invalid-") && code != "invalid-entry":
		return badInput("%s %s: %s", operation, key, text)
	}
	if strings.HasSuffix(text, "refused: "+code) { // it says what is said here already
		return &refusedError{fmt.Sprintf("%s %s: refused: %s", operation, key, code), code}
	}
	return &refusedError{fmt.Sprintf("%s %s: %s: %s", operation, key, code, text), code}
}

// listedView is a checkpoint as the tool shows it.
type listedView struct {
	ID          core.CheckpointID `json:"id"`
	Parent      core.CheckpointID `json:"parent,omitempty"`
	Head        bool              `json:"head,omitempty"`
	CreatedAt   stamp             `json:"createdAt"`
	Reason      core.Reason       `json:"reason"`
	Label       *string           `json:"label,omitempty"`
	SourceRun   core.RunID        `json:"sourceRun,omitempty"`
	ForkOf      core.CheckpointID `json:"forkOf,omitempty"`
	Files       int64             `json:"files"`
	Bytes       int64             `json:"bytes"`
	PendingRuns []core.RunID      `json:"pendingRuns,omitempty"`
	Artifacts   []artifactView    `json:"artifacts,omitempty"`
}

type artifactView struct {
	Run       core.RunID `json:"run"`
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	MIME      string     `json:"mimeType"`
	CreatedAt stamp      `json:"createdAt"`
	Size      int64      `json:"size"`
	SHA256    string     `json:"sha256"`
}

func viewListed(c core.ListedCheckpoint) listedView {
	v := listedView{
		ID: c.ID, Parent: c.Parent, Head: c.Head, CreatedAt: stamp(c.CreatedAt), Reason: c.Reason, Label: c.Label, SourceRun: c.SourceRun,
		ForkOf: c.ForkOf, Files: c.Files, Bytes: c.Bytes, PendingRuns: c.PendingRuns,
	}
	for _, a := range c.Artifacts {
		v.Artifacts = append(v.Artifacts, artifactView{a.Run, a.ID, a.Name, a.MIME, stamp(a.CreatedAt), a.Object.Size, a.Object.SHA256})
	}
	return v
}

func viewAllListed(all []core.ListedCheckpoint) []listedView {
	views := []listedView{}
	for _, c := range all {
		views = append(views, viewListed(c))
	}
	return views
}

// label is the label for people.
func (v listedView) label() string {
	if v.Label == nil {
		return ""
	}
	return *v.Label
}

func (v listedView) head() string {
	if v.Head {
		return "head"
	}
	return ""
}

// pairs is a checkpoint for people, line by line.
func (v listedView) pairs(key core.ThreadKey) [][2]string {
	pairs := [][2]string{
		{"thread", key.String()}, {"checkpoint", string(v.ID)}, {"standing", v.head()}, {"parent", string(v.Parent)}, {"fork of", string(v.ForkOf)},
		{"created", v.CreatedAt.String()}, {"reason", string(v.Reason)}, {"label", v.label()}, {"run", string(v.SourceRun)},
		{"files", strconv.FormatInt(v.Files, 10)}, {"bytes", strconv.FormatInt(v.Bytes, 10)},
	}
	for _, run := range v.PendingRuns {
		pairs = append(pairs, [2]string{"pending run", string(run)})
	}
	for _, a := range v.Artifacts {
		pairs = append(pairs, [2]string{"artifact", fmt.Sprintf("%s of run %s: %s, %s, %d bytes", a.ID, a.Run, a.Name, a.MIME, a.Size)})
	}
	return pairs
}

func printListed(w *console.Writer, views []listedView, none string) {
	now := core.MillisOf(time.Now())
	var rows [][]string
	for _, v := range views {
		rows = append(rows, []string{
			string(v.ID), v.head(), string(v.Reason), ago(core.Millis(v.CreatedAt), now), strconv.FormatInt(v.Files, 10), strconv.FormatInt(v.Bytes, 10),
			string(v.SourceRun), string(v.Parent), v.label(),
		})
	}
	w.Table([]string{"CHECKPOINT", "", "REASON", "AGE", "FILES", "BYTES", "RUN", "PARENT", "LABEL"}, rows, none)
}

// checkpointsList lists a thread's checkpoints.
type checkpointsList struct{ oneThread }

// Run prints them, the oldest first.
func (c *checkpointsList) Run(ctx context.Context, in *installation, out *console.Console) error {
	key, err := c.key()
	if err != nil {
		return err
	}
	var all []core.ListedCheckpoint
	if err := in.checkpoint(ctx, "list", key, key, &all); err != nil {
		return err
	}
	views := viewAllListed(all)
	return out.Print(map[string]any{"tenant": key.Tenant, "thread": key.Thread, "checkpoints": views}, func(w *console.Writer) {
		printListed(w, views, "no checkpoints")
	})
}

// checkpointsHead shows a thread's head.
type checkpointsHead struct{ oneThread }

// Run prints it.
func (c *checkpointsHead) Run(ctx context.Context, in *installation, out *console.Console) error {
	key, err := c.key()
	if err != nil {
		return err
	}
	var head core.ListedCheckpoint
	if err := in.checkpoint(ctx, "head", key, key, &head); err != nil {
		return err
	}
	return out.Print(viewListed(head), func(w *console.Writer) { w.Pairs(viewListed(head).pairs(key)) })
}

// checkpointsDiff compares two checkpoints of a thread.
type checkpointsDiff struct {
	oneThread
	From  string `arg:"" help:"The checkpoint from which."`
	To    string `arg:"" help:"The checkpoint to which."`
	Limit int    `default:"1000" help:"List no more than this many, 10000 at most."`
}

// diffView is what it prints.
type diffView struct {
	Changes []core.TreeChange `json:"changes"`
	More    bool              `json:"more,omitempty"` // there are others beyond the limit
}

// maxDiff is how many differences the function lists.
const maxDiff = 10_000

// Run prints what a restore of the second would make different from the first.
func (c *checkpointsDiff) Run(ctx context.Context, in *installation, out *console.Console) error {
	key, err := c.key()
	if err != nil {
		return err
	}
	if c.Limit < 1 || c.Limit > maxDiff {
		return badInput("limit: want 1 to %d, got %d", maxDiff, c.Limit)
	}
	v := diffView{}
	err = in.checkpoint(ctx, "diff", key, map[string]any{
		"tenant": key.Tenant, "thread": key.Thread, "from": c.From, "to": c.To, "limit": c.Limit,
	}, &v)
	if err != nil {
		return err
	}
	if v.Changes == nil {
		v.Changes = []core.TreeChange{}
	}
	return out.Print(v, v.print)
}

func (v diffView) print(w *console.Writer) {
	var rows [][]string
	for _, c := range v.Changes {
		rows = append(rows, []string{c.Kind, strconv.FormatInt(c.From, 10), strconv.FormatInt(c.To, 10), c.Path})
	}
	w.Table([]string{"CHANGE", "BYTES", "BYTES THEN", "PATH"}, rows, "no difference")
	if v.More {
		w.Line("and others: --limit lists more")
	}
}
