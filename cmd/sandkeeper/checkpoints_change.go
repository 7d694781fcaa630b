package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// checkpointsFork begins threads.
type checkpointsFork struct {
	oneThread
	Branch     []string `arg:"" help:"Ids of the threads to begin, of the same tenant. All of them begin, or none."`
	Checkpoint string   `help:"The checkpoint from which; the thread's head otherwise." placeholder:"ID"`
	reason
	rehearsal
}

// forkedView is what it prints.
type forkedView struct {
	Op     string       `json:"op"`
	Source forkSource   `json:"source"`
	Made   []forkBranch `json:"branches"`
	By     string       `json:"by"`
	Why    string       `json:"why"`
	DryRun bool         `json:"dryRun"`
}

type forkSource struct {
	core.ThreadKey
	Checkpoint core.CheckpointID `json:"checkpoint"`
}

type forkBranch struct {
	Thread core.ThreadID `json:"thread"`
	listedView
}

// Run forks. The ids of the roots follow from the branches', so that saying it again is
// the same fork.
func (c *checkpointsFork) Run(ctx context.Context, in *installation, out *console.Console) error {
	key, err := c.key()
	if err != nil {
		return err
	}
	by, err := in.by(ctx, c.Why)
	if err != nil {
		return err
	}
	var source core.ListedCheckpoint
	if err := in.checkpoint(ctx, "show", key, threadCheckpoint{key, core.CheckpointID(c.Checkpoint)}, &source); err != nil {
		return err
	}
	q := core.ForkRequest{Source: key, Checkpoint: source.ID}
	for _, branch := range c.Branch {
		q.Branches = append(q.Branches, core.ForkBranch{Thread: core.ThreadID(branch), ID: core.CheckpointID("fork-" + branch)})
	}
	made, err := c.fork(ctx, in, by, q)
	if err != nil {
		return err
	}
	v := forkedView{Op: "fork", Source: forkSource{key, source.ID}, By: by.Who, Why: by.Why, DryRun: c.DryRun}
	for i, m := range made {
		v.Made = append(v.Made, forkBranch{q.Branches[i].Thread, viewListed(m)})
	}
	return out.Print(v, v.print)
}

func (c *checkpointsFork) fork(ctx context.Context, in *installation, by core.By, q core.ForkRequest) (made []core.ListedCheckpoint, err error) {
	if c.DryRun {
		made, err = in.rehearsedKeeper().Fork(ctx, q)
		return made, judged("fork", q.Source, err)
	}
	if err := in.recordOf(ctx, by, "checkpoints fork", q.Source, fmt.Sprintf("%s into %s", q.Checkpoint, strings.Join(c.Branch, ", "))); err != nil {
		return nil, err
	}
	err = in.checkpoint(ctx, "fork", q.Source, q, &made)
	return made, err
}

func (v forkedView) print(w *console.Writer) {
	if v.DryRun {
		w.Line("dry run: nothing is written; the fork would begin:")
	}
	var rows [][]string
	for _, m := range v.Made {
		rows = append(rows, []string{string(m.Thread), string(m.ID), fmt.Sprint(m.Files), fmt.Sprint(m.Bytes)})
	}
	w.Table([]string{"THREAD", "CHECKPOINT", "FILES", "BYTES"}, rows, "no threads")
}

// checkpointsVerify reads a checkpoint back.
type checkpointsVerify struct {
	oneCheckpoint
	Sample int `help:"Read so many of its objects whole, evenly spread; all otherwise. That each is there is asked of all." placeholder:"N"`
}

// Run prints what is broken, and exits with 5 if anything is.
func (c *checkpointsVerify) Run(ctx context.Context, in *installation, out *console.Console) error {
	key, err := c.key()
	if err != nil {
		return err
	}
	if c.Sample < 0 {
		return badInput("sample: want a number from 1 on, got %d", c.Sample)
	}
	var report core.VerifyReport
	request := struct {
		threadCheckpoint
		Sample int `json:"sample,omitempty"`
	}{threadCheckpoint{key, core.CheckpointID(c.ID)}, c.Sample}
	bar := out.Bar(0, "reading the checkpoint back")
	err = in.checkpoint(ctx, "verify", key, request, &report)
	bar.Done()
	if err != nil {
		return err
	}
	if err := out.Print(report, func(w *console.Writer) { printVerified(w, report) }); err != nil {
		return err
	}
	if n := len(report.Broken); n > 0 {
		return &findingsError{n}
	}
	return nil
}

func printVerified(w *console.Writer, r core.VerifyReport) {
	var rows [][]string
	for _, key := range r.Broken {
		rows = append(rows, []string{key})
	}
	w.Table([]string{"MISSING OR DIFFERENT"}, rows, "nothing is missing or different")
	w.Line("checkpoint %s: %d objects are named, %d were read, %d bytes", r.Checkpoint, r.Packs, r.Read, r.Bytes)
}

// checkpointsGC collects what nothing needs.
type checkpointsGC struct {
	Thread string `arg:"" optional:"" help:"TENANT/THREAD, or THREAD alone where there are no tenants."`
	Tenant string `help:"The tenant, where its id holds a slash; THREAD is then the thread's id alone." placeholder:"ID"`
	All    bool   `help:"Every thread, as the schedule does each day."`
	Apply  bool   `help:"Remove it; without this it is only counted."`
	Most   int    `help:"Remove no more than so many objects of the thread at once; 0 is all." default:"0" placeholder:"N"`
	sure
}

// collectedView is what it prints of one thread, or of all of them.
type collectedView struct {
	Applied bool                   `json:"applied"`
	Thread  *collectedThread       `json:"thread,omitempty"`
	Threads *core.CollectAllReport `json:"threads,omitempty"`
}

type collectedThread struct {
	core.ThreadKey
	core.CollectReport
}

// Run prints what is, or was, of no use, and exits with 5 if something that is needed is
// not there.
func (c *checkpointsGC) Run(ctx context.Context, in *installation, out *console.Console) error {
	if (c.Thread != "") == c.All {
		return badInput("want a thread, or --all")
	}
	if c.Most < 0 || c.All && c.Most > 0 {
		return badInput("most: want a number from 0 on, and a thread, got %d", c.Most)
	}
	var key core.ThreadKey
	if !c.All {
		var err error
		if key, err = (oneThread{c.Thread, c.Tenant}).key(); err != nil {
			return err
		}
	}
	v, err := c.collect(ctx, in, out, key, c.Apply && c.Yes)
	if err == nil && c.Apply && !c.Yes {
		if err = out.Confirm(ctx, v.question()); err == nil {
			v, err = c.collect(ctx, in, out, key, true)
		}
	}
	if err != nil {
		return err
	}
	if err := out.Print(v, v.print); err != nil {
		return err
	}
	if n := v.missing(); n > 0 {
		return &findingsError{n}
	}
	return nil
}

func (c *checkpointsGC) collect(ctx context.Context, in *installation, out *console.Console, key core.ThreadKey, apply bool) (v collectedView, err error) {
	bar := out.Bar(0, "comparing what is stored with what is needed")
	defer bar.Done()
	v.Applied = apply
	if c.All {
		v.Threads = &core.CollectAllReport{}
		return v, in.checkpoint(ctx, "gc", key, map[string]bool{"apply": apply}, v.Threads)
	}
	v.Thread = &collectedThread{ThreadKey: key}
	return v, in.checkpoint(ctx, "gc", key, core.CollectRequest{ThreadKey: key, Apply: apply, Most: c.Most}, &v.Thread.CollectReport)
}

func (v collectedView) missing() int {
	if v.Threads != nil {
		return v.Threads.Missing
	}
	return v.Thread.Missing
}

func (v collectedView) question() string {
	if t := v.Threads; t != nil {
		return fmt.Sprintf("remove %d bytes that nothing needs, of %d threads?", t.Reclaimed, t.Threads)
	}
	return fmt.Sprintf("remove %d objects of %s, %d bytes, that nothing needs?", v.Thread.Garbage, v.Thread.ThreadKey, v.Thread.Reclaimed)
}

// withheldText says for people why nothing is removed.
var withheldText = map[string]string{
	core.WithheldObserve: "the installation observes", core.WithheldFrozen: "the installation is frozen", core.WithheldHeld: "a run of the thread is held",
}

func (v collectedView) print(w *console.Writer) {
	done := "would be removed; --apply removes it"
	switch {
	case v.Thread != nil && v.Thread.Withheld != "":
		done = "would be removed, and are not: " + withheldText[v.Thread.Withheld]
	case v.Applied:
		done = "removed"
	}
	if t := v.Threads; t != nil {
		if t.Withheld > 0 {
			w.Line("of %d threads nothing is removed: the installation observes or is frozen, or a run is held", t.Withheld)
		}
		w.Line("%d of %d threads looked at, %d have a writer: %d bytes %s", t.Collected, t.Threads, t.Busy, t.Reclaimed, done)
		if t.More {
			w.Line("the function's time was over before all threads were looked at")
		}
	} else {
		t := v.Thread
		w.Line("%s: %d objects, %d bytes; %d needed, %d too young to go", t.ThreadKey, t.Objects, t.Bytes, t.Needed, t.Young)
		w.Line("%d objects, %d bytes %s", t.Garbage, t.Reclaimed, done)
		if t.More {
			w.Line("there are more of them than --most")
		}
	}
	if n := v.missing(); n > 0 {
		w.Line("%d objects are needed and not there: sandkeeper checkpoints verify tells of each checkpoint", n)
	}
}

// checkpointsKeep is retention by hand.
type checkpointsKeep struct {
	oneThread
	Newest int `required:"" help:"Keep so many of the newest, 1 at least. The head, named and labelled ones stay as well." placeholder:"N"`
	reason
	sure
	rehearsal
}

// keptView is what it prints.
type keptView struct {
	Op string `json:"op"`
	core.ThreadKey
	Newest  int                 `json:"newest"`
	Removed []core.CheckpointID `json:"removed"`
	By      string              `json:"by"`
	Why     string              `json:"why"`
	DryRun  bool                `json:"dryRun"`
}

// Run takes them away. What they alone need goes with the next collection.
func (c *checkpointsKeep) Run(ctx context.Context, in *installation, out *console.Console) error {
	key, err := c.key()
	if err != nil {
		return err
	}
	by, err := in.by(ctx, c.Why)
	if err != nil {
		return err
	}
	q := core.KeepRequest{ThreadKey: key, Newest: c.Newest}
	v := keptView{Op: "keep", ThreadKey: key, Newest: c.Newest, By: by.Who, Why: by.Why, DryRun: c.DryRun}
	if v.Removed, err = in.rehearsedKeeper().Keep(ctx, q); err != nil {
		return judged("keep", key, err)
	}
	if n := len(v.Removed); !c.DryRun && n > 0 {
		if !c.Yes {
			if err := out.Confirm(ctx, fmt.Sprintf("take %d checkpoints of %s away, %s first? They do not come back", n, key, v.Removed[0])); err != nil {
				return err
			}
		}
		if err := in.recordOf(ctx, by, "checkpoints keep", key, fmt.Sprintf("the newest %d", c.Newest)); err != nil {
			return err
		}
		if err := in.checkpoint(ctx, "keep", key, q, &v.Removed); err != nil {
			return err
		}
	}
	v.Removed = append([]core.CheckpointID{}, v.Removed...)
	return out.Print(v, v.print)
}

func (v keptView) print(w *console.Writer) {
	if v.DryRun {
		w.Line("dry run: nothing is written; these would go:")
	}
	var rows [][]string
	for _, id := range v.Removed {
		rows = append(rows, []string{string(id)})
	}
	w.Table([]string{"TAKEN AWAY"}, rows, "none is taken away")
}
