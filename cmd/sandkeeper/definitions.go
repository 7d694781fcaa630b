package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// definitionsCommand is about the definitions that the installation keeps.
type definitionsCommand struct {
	Put  definitionsPut  `cmd:"" help:"Keep a definition, from a JSON file; each version is written once."`
	List definitionsList `cmd:"" default:"1" help:"List what is kept, all versions."`
	Show definitionsShow `cmd:"" help:"Print a definition."`
}

// definitionView is a definition in a list.
type definitionView struct {
	Name    string `json:"name"`
	Version int    `json:"version"`
	Task    string `json:"taskDefinition"`
	Hash    string `json:"workspaceHash"` // of what makes two sandboxes interchangeable
	Secrets int    `json:"secrets"`
	Tools   int    `json:"tools"`
}

func viewDefinition(d core.Definition) (definitionView, error) {
	hash, err := d.Hash()
	return definitionView{d.Name, d.Version, d.Task.TaskDefinition, hash, len(d.Secrets), len(d.Tools)}, err
}

// definitionsPut keeps one.
type definitionsPut struct {
	File string `arg:"" help:"JSON as docs/definition.md has it; - for stdin."`
	reason
	rehearsal
}

// maxFile bounds a file that is read whole, bytes.
const maxFile = 1 << 20

// Run checks the definition, records who keeps it, and keeps it.
func (c *definitionsPut) Run(ctx context.Context, in *installation, out *console.Console) error {
	d, err := c.read()
	if err != nil {
		return err
	}
	view, err := viewDefinition(d)
	if err != nil {
		return err
	}
	by, err := in.by(ctx, c.Why)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	if !c.DryRun {
		entry := core.AuditEntry{At: core.MillisOf(time.Now()), By: by.Who, Why: by.Why, Op: "define", Subject: "definition " + d.Ref(), Detail: view.Hash}
		if err := in.boxes.Record(ctx, entry); err != nil {
			return err
		}
		if err := in.boxes.PutDefinition(ctx, d); core.Refused(err) {
			return fmt.Errorf("%s: want a version that is not kept yet, %s is and differs: %w", c.File, d.Ref(), err)
		} else if err != nil {
			return err
		}
	}
	return out.Print(map[string]any{"op": "define", "by": by.Who, "why": by.Why, "dryRun": c.DryRun, "definition": view}, func(w *console.Writer) {
		w.Line("%s is kept as %s, workspace hash %s", c.File, d.Ref(), view.Hash)
	})
}

func (c *definitionsPut) read() (core.Definition, error) {
	file := os.Stdin
	if c.File != "-" {
		var err error
		if file, err = os.Open(c.File); err != nil {
			return core.Definition{}, badInput("%v", err)
		}
		defer file.Close()
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return core.Definition{}, fmt.Errorf("read %s: %w", c.File, err)
	}
	d, err := core.ParseDefinition(text)
	if err != nil {
		return core.Definition{}, badInput("%s: %v", c.File, err)
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
	return out.Print(d, func(w *console.Writer) { w.Line("%s", text) })
}
