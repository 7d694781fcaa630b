package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// threadsCommand is about threads as a whole.
type threadsCommand struct {
	List   threadsList   `cmd:"" help:"List the threads of which something is stored."`
	Show   threadsShow   `cmd:"" help:"Show what is stored of a thread, and when it was used last."`
	Delete threadsDelete `cmd:"" help:"Delete a thread's checkpoints, conversation, artifacts and objects."`
}

// threadsList lists threads.
type threadsList struct {
	Of string `name:"tenant" help:"Of this tenant alone." placeholder:"ID"`
}

// Run prints them by tenant and id.
func (c *threadsList) Run(ctx context.Context, in *installation, out *console.Console) error {
	all := []core.ThreadKey{}
	if err := in.checkpoint(ctx, "threads", core.ThreadKey{}, map[string]string{"tenant": c.Of}, &all); err != nil {
		return err
	}
	return out.Print(map[string]any{"threads": all}, func(w *console.Writer) {
		var rows [][]string
		for _, k := range all {
			rows = append(rows, []string{string(k.Tenant), string(k.Thread)})
		}
		w.Table([]string{"TENANT", "THREAD"}, rows, "no threads")
	})
}

// threadView is what show and delete print.
type threadView struct {
	Op string `json:"op"`
	core.ThreadKey
	core.DeleteThreadReport
	// Refused is why the thread could not be deleted now.
	Refused string `json:"refused,omitempty"`
	By      string `json:"by,omitempty"`
	Why     string `json:"why,omitempty"`
	DryRun  bool   `json:"dryRun"`
}

// plan asks the function what a deletion would delete: it decides by the same code.
func (in *installation) planDeletion(ctx context.Context, key core.ThreadKey) (report core.DeleteThreadReport, err error) {
	err = in.checkpoint(ctx, "deleteThread", key, core.DeleteThreadRequest{ThreadKey: key}, &report)
	return report, err
}

// threadsShow shows a thread.
type threadsShow struct{ oneThread }

// Run prints what there is of it. A thread that cannot be deleted now is shown by its
// checkpoints alone.
func (c *threadsShow) Run(ctx context.Context, in *installation, out *console.Console) error {
	key, err := c.key()
	if err != nil {
		return err
	}
	v := threadView{Op: "show", ThreadKey: key, DryRun: true}
	if v.DeleteThreadReport, err = in.planDeletion(ctx, key); err != nil {
		var listed []core.ListedCheckpoint
		if codeOf(err) != exitRefused {
			return err
		}
		v.Refused = strings.TrimSuffix(reasonOf(err)+": "+adviceOf(reasonOf(err)), ": ")
		if err := in.checkpoint(ctx, "list", key, key, &listed); err != nil {
			return err
		}
		v.Checkpoints = len(listed)
	}
	return out.Print(v, v.print)
}

// threadsDelete deletes a thread.
type threadsDelete struct {
	oneThread
	reason
	sure
	rehearsal
}

// Run deletes it, after it has said what goes.
func (c *threadsDelete) Run(ctx context.Context, in *installation, out *console.Console) error {
	key, err := c.key()
	if err != nil {
		return err
	}
	by, err := in.by(ctx, c.Why)
	if err != nil {
		return err
	}
	v := threadView{Op: "delete", ThreadKey: key, By: by.Who, Why: by.Why, DryRun: c.DryRun}
	if v.DeleteThreadReport, err = in.planDeletion(ctx, key); err != nil {
		return err
	}
	if !c.DryRun {
		if !c.Yes {
			if err := out.Confirm(ctx, v.question()); err != nil {
				return err
			}
		}
		detail := fmt.Sprintf("%d checkpoints, %d objects, %d bytes", v.Checkpoints, v.Objects, v.Bytes)
		if err := in.recordOf(ctx, by, "threads delete", key, detail); err != nil {
			return err
		}
		bar := out.Bar(0, "deleting %s", key)
		err := in.checkpoint(ctx, "deleteThread", key, core.DeleteThreadRequest{ThreadKey: key, Apply: true}, &v.DeleteThreadReport)
		bar.Done()
		if err != nil {
			return err
		}
	}
	return out.Print(v, v.print)
}

func (v threadView) question() string {
	text := fmt.Sprintf("delete thread %s: %s? It does not come back", v.ThreadKey, strings.Join(v.holds(), ", "))
	if v.Kept > 0 {
		text += fmt.Sprintf("; %d objects stay, which threads forked from it need", v.Kept)
	}
	return text
}

// holds says what there is of the thread. What a deletion that was refused did not count is
// not known.
func (v threadView) holds() []string {
	parts := []string{strconv.Itoa(v.Checkpoints) + " checkpoints"}
	if v.Refused != "" {
		return parts
	}
	if v.Conversation {
		parts = append(parts, "its conversation")
	}
	return slices.Concat(parts, []string{strconv.Itoa(v.Artifacts) + " artifacts", fmt.Sprintf("%d objects of %d bytes", v.Objects, v.Bytes)})
}

func (v threadView) print(w *console.Writer) {
	if v.DryRun && v.Op == "delete" {
		w.Line("dry run: nothing is written; these would go:")
	}
	pairs := [][2]string{{"thread", v.ThreadKey.String()}, {"holds", strings.Join(v.holds(), ", ")}}
	if v.Kept > 0 {
		pairs = append(pairs, [2]string{"kept for forks", strconv.Itoa(v.Kept) + " objects"})
	}
	if v.LastUsed > 0 {
		pairs = append(pairs, [2]string{"last used", ago(v.LastUsed, core.MillisOf(time.Now())) + " ago"})
	}
	if v.Op == "delete" && !v.DryRun {
		pairs = append(pairs, [2]string{"deleted", strconv.Itoa(v.Deleted) + " objects"})
	}
	w.Pairs(append(pairs, [2]string{"not to be deleted now", v.Refused}))
}
