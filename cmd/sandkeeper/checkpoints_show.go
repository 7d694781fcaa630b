package main

import (
	"bufio"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// checkpointsShow shows a checkpoint.
type checkpointsShow struct {
	oneCheckpoint
	Summary bool   `help:"Leave out what S3 has to be read for: counts, skipped entries and files."`
	Path    string `help:"List only what is at this path and below it." placeholder:"PATH"`
	Git     bool   `help:"List the git area too, which brings back the state of repositories."`
}

// treeView is what a checkpoint's root says.
type treeView struct {
	Counts      manifest.Counts    `json:"counts"`
	Layers      int                `json:"layers"`
	Packs       int                `json:"packs"`
	Policy      manifest.Policy    `json:"policy"`
	Skipped     []manifest.Skipped `json:"skipped"`
	SkippedMore int64              `json:"skippedMore,omitempty"` // not listed
	Redacted    bool               `json:"redacted"`              // secrets were looked for
}

func viewTree(r manifest.Root) treeView {
	return treeView{
		Counts: r.Counts, Layers: len(r.Layers), Packs: len(r.Packs), Policy: r.Policy,
		Skipped: append([]manifest.Skipped{}, r.Skipped...), SkippedMore: r.SkippedMore, Redacted: len(r.Redaction.Digest) > 0,
	}
}

// entryView is an entry as the tool shows it.
type entryView struct {
	Area      string        `json:"area,omitempty"` // git; empty: the workspace
	Path      string        `json:"path"`
	PathBytes []byte        `json:"pathBytes,omitempty"` // where the path is not UTF-8
	Kind      manifest.Kind `json:"kind"`
	Mode      string        `json:"mode"` // octal
	UID       uint32        `json:"uid"`
	GID       uint32        `json:"gid"`
	MTime     time.Time     `json:"mtime"`
	Size      int64         `json:"size"`
	SHA256    string        `json:"sha256,omitempty"` // of a file in one piece
	Target    string        `json:"target,omitempty"` // of a link
	Xattrs    []string      `json:"xattrs,omitempty"` // names
}

func viewEntry(e manifest.Entry) entryView {
	v := entryView{
		Path: e.Path, Kind: e.Kind, Mode: fmt.Sprintf("%04o", e.Mode), UID: e.UID, GID: e.GID, MTime: time.Unix(0, e.MTime).UTC(), Size: e.Size,
		Target: e.Target, Xattrs: slices.Sorted(maps.Keys(e.Xattrs)),
	}
	if e.Area == manifest.GitState {
		v.Area = "git"
	}
	if !utf8.ValidString(e.Path) {
		v.PathBytes = []byte(e.Path)
	}
	if len(e.Chunks) == 1 && e.Chunks[0].Length == e.Size {
		v.SHA256 = e.Chunks[0].SHA256.String()
	}
	return v
}

// Run prints the function's answer, and then what it does not give: root and entries,
// read from S3 with the caller's own credentials as they come.
func (c *checkpointsShow) Run(ctx context.Context, in *installation, out *console.Console) error {
	key, err := c.key()
	if err != nil {
		return err
	}
	if c.Path = strings.TrimSuffix(c.Path, "/"); c.Path != "" {
		if err := manifest.CheckPath(c.Path); err != nil {
			return badInput("path: want a clean path below the workspace: %v", err)
		}
	}
	var summary core.ListedCheckpoint
	if err := in.checkpoint(ctx, "show", key, threadCheckpoint{key, core.CheckpointID(c.ID)}, &summary); err != nil {
		return err
	}
	view := viewListed(summary)
	if c.Summary {
		return out.Print(map[string]any{"checkpoint": view}, func(w *console.Writer) { w.Pairs(view.pairs(key)) })
	}
	a, err := in.archived(ctx, key, summary.ID)
	if err != nil {
		return err
	}
	if out.JSON {
		return c.printJSON(ctx, out, view, a)
	}
	if err := out.Print(nil, func(w *console.Writer) { printTree(w, view.pairs(key), viewTree(a.root)) }); err != nil {
		return err
	}
	return c.printLines(ctx, out, a)
}

func (c *checkpointsShow) lists(e manifest.Entry) bool {
	if e.Area == manifest.GitState && !c.Git {
		return false
	}
	return c.Path == "" || e.Path == c.Path || manifest.Below(e.Path, c.Path)
}

// printJSON writes one document as the entries come. If reading fails on the way, the
// document stays open.
func (c *checkpointsShow) printJSON(ctx context.Context, out *console.Console, view listedView, a archived) error {
	head, err := console.Encode(map[string]any{"checkpoint": view, "tree": viewTree(a.root)}, "")
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	w := bufio.NewWriter(out.Out)
	fmt.Fprintf(w, "%s,\"entries\":[", head[:len(head)-1])
	between := "\n"
	err = a.each(ctx, func(e manifest.Entry) error {
		if !c.lists(e) {
			return nil
		}
		text, err := console.Encode(viewEntry(e), "")
		if err == nil {
			_, err = fmt.Fprintf(w, "%s%s", between, text)
			between = ",\n"
		}
		return err
	})
	if err == nil {
		fmt.Fprintln(w, "]}")
	}
	if late := w.Flush(); late != nil {
		return fmt.Errorf("print: %w", late)
	}
	return err
}

// printLines writes a line for each entry as it comes.
func (c *checkpointsShow) printLines(ctx context.Context, out *console.Console, a archived) error {
	w := bufio.NewWriter(out.Out)
	err := a.each(ctx, func(e manifest.Entry) error {
		if !c.lists(e) {
			return nil
		}
		_, err := fmt.Fprintln(w, console.Clean(line(e)))
		return err
	})
	if late := w.Flush(); late != nil {
		return fmt.Errorf("print: %w", late)
	}
	return err
}

// line is an entry for people.
func line(e manifest.Entry) string {
	mode := fs.FileMode(e.Mode & 0o777)
	for bit, flag := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if e.Mode&bit != 0 {
			mode |= flag
		}
	}
	name := e.Path
	if e.Area == manifest.GitState {
		name = "git area: " + name
	}
	switch e.Kind {
	case manifest.Dir:
		mode |= fs.ModeDir
	case manifest.Symlink:
		mode |= fs.ModeSymlink
		name += " -> " + e.Target
	case manifest.Hardlink:
		name += " = " + e.Target
	}
	at := time.Unix(0, e.MTime).UTC().Format(time.DateTime)
	return fmt.Sprintf("%-11s %6d %6d %12d %s  %s", mode, e.UID, e.GID, e.Size, at, name)
}

func printTree(w *console.Writer, pairs [][2]string, v treeView) {
	n := func(count int64) string {
		if count == 0 {
			return ""
		}
		return strconv.FormatInt(count, 10)
	}
	w.Pairs(append(pairs, [][2]string{
		{"directories", n(v.Counts.Dirs)}, {"symlinks", n(v.Counts.Symlinks)}, {"leading out", n(v.Counts.OutwardLinks)}, {"hard links", n(v.Counts.Hardlinks)},
		{"redacted files", n(v.Counts.RedactedFiles)}, {"stored bytes", n(v.Counts.StoredBytes)}, {"layers", n(int64(v.Layers))}, {"packs", n(int64(v.Packs))},
		{"git", v.Policy.Git},
	}...))
	w.Line("")
	var rows [][]string
	for _, s := range v.Skipped {
		rows = append(rows, []string{s.Path, s.Reason})
	}
	w.Table([]string{"SKIPPED", "WHY"}, rows, "nothing was skipped")
	if v.SkippedMore > 0 {
		w.Line("and %d others", v.SkippedMore)
	}
	w.Line("")
}
