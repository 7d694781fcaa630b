package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/sandkeeper/sandkeeper/internal/console"
)

// TestTheManualNamesEveryCommandFlagAndCode, and none that is not there.
func TestTheManualNamesEveryCommandFlagAndCode(t *testing.T) {
	manual, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	k, err := parser(t.Context(), &commands{}, &console.Console{})
	if err != nil {
		t.Fatal(err)
	}
	flags := map[string]bool{}
	for _, leaf := range k.Model.Leaves(true) {
		if name := strings.TrimPrefix(leaf.FullPath(), "sandkeeper "); !strings.Contains(string(manual), "\n| `"+name+"` |") {
			t.Errorf("docs/cli.md has no row for %s", name)
		}
		for _, group := range leaf.AllFlags(true) {
			for _, f := range group {
				flags["--"+f.Name] = true
			}
		}
	}
	for _, f := range k.Model.Flags {
		if f.Name != "help" && f.Name != "version" && !strings.Contains(string(manual), "`--"+f.Name+"`") {
			t.Errorf("docs/cli.md does not tell the flag --%s", f.Name)
		}
	}
	// A host that the manual runs has flags of its own.
	ours := regexp.MustCompile(`(?m)^go run \./examples/.*$`).ReplaceAllString(string(manual), "")
	for _, name := range regexp.MustCompile(`--[a-z][a-z0-9-]+`).FindAllString(ours, -1) {
		if !flags[name] {
			t.Errorf("docs/cli.md tells the flag %s, which does not exist", name)
		}
	}
	for _, code := range []int{exitDone, exitFailed, exitUsage, exitNotFound, exitRefused, exitFindings, exitInterrupted} {
		row := fmt.Sprintf("\n| %d | ", code)
		if word := codes[code]; word != "" && code != exitFindings {
			row += "`" + word + "` |"
		}
		if !strings.Contains(string(manual), row) {
			t.Errorf("docs/cli.md has no row %q", row)
		}
	}
}

// TestWhatWritesAsksForAReason: a command that takes --dry-run changes something, and
// acts, which are recorded, want to know why.
func TestWhatWritesAsksForAReason(t *testing.T) {
	k, err := parser(t.Context(), &commands{}, &console.Console{})
	if err != nil {
		t.Fatal(err)
	}
	unrecorded := []string{"apply", "sweep", "redrive"} // what they do is decided by the functions, and in their log
	for _, leaf := range k.Model.Leaves(true) {
		has := func(name string) bool {
			return slices.ContainsFunc(leaf.Flags, func(f *kong.Flag) bool { return f.Name == name })
		}
		if has("dry-run") && !has("why") && !slices.Contains(unrecorded, leaf.Name) {
			t.Errorf("%s writes and asks for no reason", leaf.FullPath())
		}
		if has("why") && !has("dry-run") {
			t.Errorf("%s acts and knows no dry run", leaf.FullPath())
		}
	}
}

// TestTheRunbookShowsWhatExplainPrints: the page's example is the tool's own output, but for
// times, ids and numbers.
func TestTheRunbookShowsWhatExplainPrints(t *testing.T) {
	w := installed(t)
	r := w.begin(t, agent{run: "run-7f3a", shell: lives})
	w.wrote(t, r, "begun")
	sandkeeper(t, "hold", r.RunKey.String(), "--for", "4h", "--why", "the customer asks").wants(t, exitDone)
	printed := strings.ReplaceAll(sandkeeper(t, "explain", r.RunKey.String()).wants(t, exitDone).out, string(r.Tenant), "acme")
	page, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, _ := strings.Cut(string(page), "$ sandkeeper explain acme/run-7f3a\n")
	shown, _, _ = strings.Cut(shown, "\n```")
	if like(shown) != like(printed) {
		t.Errorf("docs/runbook.md shows\n%s\nand the tool prints\n%s", shown, printed)
	}
}

// like is text without what differs each time.
func like(text string) string {
	text = regexp.MustCompile(`[0-9A-Za-z]{20,}`).ReplaceAllString(text, "ID")
	text = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`).ReplaceAllString(text, "N")
	return strings.Join(strings.Fields(text), " ")
}
