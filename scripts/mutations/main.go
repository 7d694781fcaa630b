// Command mutations breaks the code on purpose, in one place at a time, and lets the
// simulation say whether it notices. The tree stays as it is: each broken file stands
// in for its original by the compiler's overlay. It fails if one of them survives, or
// no longer fits the code.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// timeout bounds one mutant: a loop without end is noticed as well.
const timeout = 10 * time.Minute

func main() {
	only := flag.String("run", "", "only mutations whose name matches")
	table := flag.String("table", "", "write what caught each, as a Markdown table, to this file")
	learn := flag.Bool("learn", false, "look further for what tells a mutant that no kept script catches, and keep its script")
	quick := flag.Bool("quick", false, "draw no episodes for a mutant that a kept script catches")
	flag.Parse()
	// Interrupted, it leaves neither a process nor a directory behind.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *only, *table, effort{learn: *learn, quick: *quick}); err != nil {
		fmt.Fprintln(os.Stderr, "mutations:", err)
		os.Exit(1)
	}
}

// verdict is what became of one mutant: the invariants that it broke first, in a kept
// script and in the episodes that every build tries. Empty: none.
type verdict struct {
	mutation
	script, episodes string
}

func (v verdict) String() string {
	if v.script == "" && v.episodes == "" {
		return "SURVIVED  " + v.name
	}
	return fmt.Sprintf("caught    %s\n            by a script: %s\n            by episodes: %s", v.name, cmp.Or(v.script, "-"), cmp.Or(v.episodes, "-"))
}

// effort is how long a mutant is looked at.
type effort struct{ learn, quick bool }

func run(ctx context.Context, only, table string, e effort) error {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("parse -run: %w", err)
	}
	dir, err := os.MkdirTemp("", "sandkeeper-mutations-")
	if err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := fit(dir); err != nil {
		return err
	}
	var verdicts []verdict
	survived := 0
	for _, m := range mutations {
		if !pattern.MatchString(m.name) {
			continue
		}
		v, err := try(ctx, dir, m, e)
		if ctx.Err() != nil {
			return context.Cause(ctx) // what came of this one says nothing
		}
		if err != nil {
			return fmt.Errorf("try %q: %w", m.name, err)
		}
		if v.script == "" && v.episodes == "" {
			survived++
		}
		fmt.Println(v)
		verdicts = append(verdicts, v)
	}
	if table != "" {
		if err := os.WriteFile(table, markdown(verdicts), 0o644); err != nil {
			return fmt.Errorf("write the table: %w", err)
		}
	}
	fmt.Printf("%d mutations, %d survived\n", len(verdicts), survived)
	if survived > 0 {
		return fmt.Errorf("%d mutations survive the simulation", survived)
	}
	return nil
}

// fit tells which mutations do not fit the code any more.
func fit(dir string) error {
	var errs []error
	for _, m := range mutations {
		if _, err := m.overlay(dir); err != nil {
			errs = append(errs, fmt.Errorf("%q: %w", m.name, err))
		}
	}
	return errors.Join(errs...)
}

// try runs the simulation over one mutant.
func try(ctx context.Context, dir string, m mutation, e effort) (verdict, error) {
	v := verdict{mutation: m}
	overlay, err := m.overlay(dir)
	if err != nil {
		return v, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	binary := filepath.Join(dir, "mutant.test")
	build := exec.CommandContext(ctx, "go", "test", "-overlay", overlay, "-c", "-o", binary, "./internal/sim")
	if said, err := build.CombinedOutput(); err != nil {
		return v, fmt.Errorf("build: %w\n%s", err, said)
	}
	if v.script, err = catch(ctx, binary, "TestScripts|TestWhatOnceBroke", "SIM_SHRINK=no"); err != nil {
		return v, err
	}
	switch {
	case e.quick && v.script != "":
		return v, nil
	case e.learn && v.script == "":
		v.script, err = catch(ctx, binary, "TestSimulation", "SIM_STEPS=3000000", "SIM_SAVE="+m.kept())
		if err != nil {
			return v, err
		}
		if said, err := exec.CommandContext(ctx, "go", "test", "-run", "^TestScripts$", "./internal/sim").CombinedOutput(); err != nil {
			return v, fmt.Errorf("the script that was learnt breaks the sound code as well: %s", reason(said))
		}
	}
	v.episodes, err = catch(ctx, binary, "TestSimulation", "SIM_SHRINK=no", "SIM_STEPS=100000")
	return v, err
}

// kept is where the script stands that tells a mutant.
func (m mutation) kept() string {
	here, err := filepath.Abs("internal/sim/testdata")
	if err != nil {
		here = "."
	}
	return filepath.Join(here, strings.NewReplacer(" ", "-", "'", "").Replace(m.name)+".json")
}

// catch runs tests of a mutant and returns the invariant that it breaks first, or "".
func catch(ctx context.Context, binary, tests string, env ...string) (string, error) {
	test := exec.CommandContext(ctx, binary, "-test.run", "^("+tests+")$", "-test.v", "-test.timeout", "0")
	test.Dir = "internal/sim"
	test.Env = append(os.Environ(), env...)
	said, err := test.CombinedOutput()
	if _, failed := errors.AsType[*exec.ExitError](err); failed || ctx.Err() != nil {
		return reason(said), nil
	}
	return "", err
}

// overlay writes the broken file and the description that puts it in place.
func (m mutation) overlay(dir string) (string, error) {
	original, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	for _, e := range m.edits {
		if n := bytes.Count(text, []byte(e.old)); n != 1 {
			return "", fmt.Errorf("%s: want the text once, found it %d times:\n%s", m.file, n, e.old)
		}
		text = bytes.Replace(text, []byte(e.old), []byte(e.new), 1)
	}
	broken, description := filepath.Join(dir, "broken.go"), filepath.Join(dir, "overlay.json")
	data, err := json.Marshal(map[string]any{"Replace": map[string]string{original: broken}})
	if err != nil {
		return "", err
	}
	return description, errors.Join(os.WriteFile(broken, text, 0o600), os.WriteFile(description, data, 0o600))
}

var (
	broke = regexp.MustCompile(`(?:seed 0x[0-9a-f]+|script (?:of )?\S+) breaks(?:, after \d+ steps)?:\s+(.*)`)
	ids   = regexp.MustCompile(`#\d+|arn:\S+:task/c/\d+|\b[0-9a-f]{64}\b|\b[A-Z2-7]{26}\b`)
	named = regexp.MustCompile(`\b(acme|umbra)/r\d\b|\br\d\b`)
)

// reason is the first invariant that a mutant breaks, without what differs from run
// to run.
func reason(said []byte) string {
	m := broke.FindSubmatch(said)
	if m == nil {
		lines := strings.Split(strings.TrimSpace(string(said)), "\n")
		return "the test ends: " + lines[len(lines)-1]
	}
	text := ids.ReplaceAllString(string(m[1]), "")
	text = named.ReplaceAllString(text, "r")
	return strings.Join(strings.Fields(text), " ")
}

func markdown(verdicts []verdict) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "| broken on purpose | in | the check that caught it | in |\n| --- | --- | --- | --- |\n")
	for _, v := range verdicts {
		check, in := v.script, "a kept script"
		switch {
		case v.script == "" && v.episodes == "":
			check, in = "none", "-"
		case v.script == "":
			check, in = v.episodes, "100,000 steps"
		case v.episodes != "":
			in = "a kept script, 100,000 steps"
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s |\n", v.name, filepath.Base(v.file), strings.ReplaceAll(check, "|", "\\|"), in)
	}
	return b.Bytes()
}
