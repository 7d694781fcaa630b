package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// definitionsCommand is about the definitions that the installation keeps.
type definitionsCommand struct {
	Put  definitionsPut  `cmd:"" help:"Keep a definition, from a JSON file, or those of a directory; each version is written once."`
	List definitionsList `cmd:"" default:"1" help:"List what is kept, all versions."`
	Show definitionsShow `cmd:"" help:"Print a definition."`
}

// definitionView is a definition in a list.
type definitionView struct {
	Name    string `json:"name"`
	Version int    `json:"version"`
	Task    string `json:"taskDefinition"`
	Hash    string `json:"workspaceHash"` // of what makes two sandboxes interchangeable
	Secrets int    `json:"secrets"`       // how many
	Tools   int    `json:"tools"`         // how many
}

func viewDefinition(d core.Definition) (definitionView, error) {
	hash, err := d.Hash()
	return definitionView{d.Name, d.Version, d.Task.TaskDefinition, hash, len(d.Secrets), len(d.Tools)}, err
}

// definitionsPut keeps one, or those of a directory.
type definitionsPut struct {
	File string `arg:"" help:"JSON as docs/definition.md has it, or a directory of such files; - for stdin." placeholder:"FILE|DIR"`
	reason
	rehearsal
}

// maxFile bounds a file that is read whole, bytes.
const maxFile = 1 << 20

// Run checks every definition before it keeps the first, records who keeps it, and keeps
// it. What is kept already, as it is, stays; so a directory may be put again.
func (c *definitionsPut) Run(ctx context.Context, in *installation, out *console.Console) error {
	all, err := c.read()
	if err != nil {
		return err
	}
	by, err := in.by(ctx, c.Why)
	if err != nil {
		return err
	}
	views := make([]definitionView, len(all))
	for i, d := range all {
		if views[i], err = viewDefinition(d); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	for i, d := range all {
		if c.DryRun {
			break
		}
		entry := core.AuditEntry{At: core.MillisOf(time.Now()), By: by.Who, Why: by.Why, Op: "define", Subject: "definition " + d.Ref(), Detail: views[i].Hash}
		if err := in.boxes.Record(ctx, entry); err != nil {
			return err
		}
		if err := in.boxes.PutDefinition(ctx, d); core.Refused(err) {
			return fmt.Errorf("%s: want a version that is not kept yet, %s is and differs: %w", c.File, d.Ref(), err)
		} else if err != nil {
			return err
		}
	}
	told := map[string]any{"op": "define", "by": by.Who, "why": by.Why, "dryRun": c.DryRun, "definitions": views}
	if len(views) == 1 {
		told["definition"] = views[0]
	}
	return out.Print(told, func(w *console.Writer) {
		for i, d := range all {
			w.Line("%s is kept as %s, workspace hash %s", c.File, d.Ref(), views[i].Hash)
		}
	})
}

// read reads what is to be kept. Of a directory those are the files that end in .json, by
// name; no version may be there twice.
func (c *definitionsPut) read() ([]core.Definition, error) {
	files := []string{c.File}
	if info, err := os.Stat(c.File); err == nil && info.IsDir() {
		if files, err = filepath.Glob(filepath.Join(c.File, "*.json")); err != nil || len(files) == 0 {
			return nil, badInput("%s: want files that end in .json, got none", c.File)
		}
	}
	var all []core.Definition
	from := map[string]string{}
	for _, file := range files {
		d, err := readDefinition(file)
		if err != nil {
			return nil, err
		}
		if former, ok := from[d.Ref()]; ok {
			return nil, badInput("%s: %s is in %s too", file, d.Ref(), former)
		}
		from[d.Ref()] = file
		all = append(all, d)
	}
	return all, nil
}

func readDefinition(name string) (core.Definition, error) {
	file := os.Stdin
	if name != "-" {
		var err error
		if file, err = os.Open(name); err != nil {
			return core.Definition{}, badInput("read definition: want a file, or a directory of files: %v", err)
		}
		defer file.Close()
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return core.Definition{}, fmt.Errorf("read %s: %w", name, err)
	}
	d, err := core.ParseDefinition(text)
	if err != nil {
		return core.Definition{}, badInput("%s: %v", name, err)
	}
	return d, nil
}

// definitionsList lists them.
type definitionsList struct{}

// Run prints every version, by name.
func (c *definitionsList) Run(ctx context.Context, in *installation, out *console.Console) error {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	all, err := in.boxes.ListDefinitions(ctx)
	if err != nil {
		return err
	}
	views := []definitionView{}
	var rows [][]string
	for _, d := range all {
		v, err := viewDefinition(d)
		if err != nil {
			return err
		}
		views = append(views, v)
		rows = append(rows, []string{d.Ref(), v.Task, v.Hash[:12]})
	}
	return out.Print(map[string]any{"definitions": views}, func(w *console.Writer) {
		w.Table([]string{"DEFINITION", "TASK", "HASH"}, rows, "none is kept")
	})
}

// definitionsShow prints one.
type definitionsShow struct {
	Definition string `arg:"" help:"A name, or NAME@VERSION." placeholder:"NAME[@VERSION]"`
}

// Run prints the JSON that was put.
func (c *definitionsShow) Run(ctx context.Context, in *installation, out *console.Console) error {
	name, version, err := core.ParseDefinitionRef(c.Definition)
	if err != nil {
		return badInput("%v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	d, err := in.boxes.Definition(ctx, name, version)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	return out.Print(d, func(w *console.Writer) {
		for line := range strings.SplitSeq(string(text), "\n") {
			w.Line("%s", line)
		}
	})
}
