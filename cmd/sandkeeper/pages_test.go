package main

import (
	"crypto/rand"
	"fmt"
	"go/ast"
	goparser "go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/shlex"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// told is a command line of this tool that a page or a message tells people.
type told struct {
	where string
	words []string // behind the tool's name
	block bool     // of a fenced block: as it is typed
}

func (l told) String() string { return l.where + ": sandkeeper " + strings.Join(l.words, " ") }

// pages are the documents for people.
func pages(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		paths, err := filepath.Glob(filepath.Join("..", "..", pattern))
		if err != nil || len(paths) == 0 {
			t.Fatalf("no page %s: %v", pattern, err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			texts[strings.TrimPrefix(filepath.ToSlash(path), "../../")] = string(text)
		}
	}
	return texts
}

var (
	fence      = regexp.MustCompile("(?ms)^ *```(\\w*)\n(.*?)^ *```$")
	inSentence = regexp.MustCompile("`([^`\n]+)`")
)

// blocks are the fenced blocks of a page that a shell reads. Of one that shows what a command
// prints, that is the lines behind a prompt.
func blocks(page string) (texts []string) {
	for _, m := range fence.FindAllStringSubmatch(page, -1) {
		text := m[2]
		if prompted := regexp.MustCompile(`(?m)^\$ (.*\n)`).FindAllStringSubmatch(text, -1); prompted != nil {
			text = ""
			for _, p := range prompted {
				text += p[1]
			}
		}
		if m[1] == "" || m[1] == "sh" {
			texts = append(texts, text)
		}
	}
	return texts
}

// toldByPages are the command lines of all pages, in blocks and within sentences.
func toldByPages(t *testing.T) (lines []told) {
	t.Helper()
	for path, page := range pages(t) {
		add := func(text string, block bool) {
			for _, words := range simple(t, text) {
				if words = ours(words); words != nil {
					lines = append(lines, told{path, words, block})
				}
			}
		}
		for _, text := range blocks(page) {
			add(text, true)
		}
		for _, m := range inSentence.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
			if strings.HasPrefix(m[1], "sandkeeper ") || strings.Contains(m[1], " ./cmd/sandkeeper ") {
				add(m[1], false)
			}
		}
	}
	slices.SortFunc(lines, func(a, b told) int { return strings.Compare(a.String(), b.String()) })
	return lines
}

// simple are the simple commands of a shell's text, each in words, without where they read
// from and write to.
func simple(t *testing.T, text string) (commands [][]string) {
	t.Helper()
	for line := range strings.Lines(apart(strings.ReplaceAll(text, "\\\n", " "))) {
		words, err := shlex.Split(line)
		if err != nil {
			return nil // no shell's
		}
		var command []string
		for i := 0; i < len(words); i++ {
			switch words[i] {
			case "<", ">":
				i++
			default:
				command = append(command, words[i])
			}
		}
		if len(command) > 0 {
			commands = append(commands, command)
		}
	}
	return commands
}

// apart puts each simple command on a line of its own, and what it is redirected by between
// spaces.
func apart(text string) string {
	var out strings.Builder
	quote := rune(0)
	for _, r := range text {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
		case r == '\'' || r == '"':
			quote = r
		case strings.ContainsRune(";|&()", r):
			r = '\n'
		case r == '<' || r == '>':
			out.WriteString(" " + string(r))
			r = ' '
		}
		out.WriteRune(r)
	}
	return out.String()
}

// ours are the words behind the tool's name, nil if the command is another. Behind those that
// xargs is given it puts runs.
func ours(words []string) []string {
	if words[0] == "xargs" {
		first := slices.IndexFunc(words[1:], func(word string) bool { return !strings.HasPrefix(word, "-") })
		words = append(slices.Clone(words[1+max(first, 0):]), "$run")
	}
	for len(words) > 0 && (slices.Contains([]string{"do", "then", "else", "while", "until", "if", "!"}, words[0]) || regexp.MustCompile(`^\w+=`).MatchString(words[0])) {
		words = words[1:]
	}
	for _, name := range [][]string{{"sandkeeper"}, {"go", "run", "./cmd/sandkeeper"}} {
		if len(words) > len(name) && slices.Equal(words[:len(name)], name) {
			return words[len(name):]
		}
	}
	return nil
}

// filled is a command line with something for what it leaves open, and for a file that is
// built.
func filled(words []string) []string {
	return replaced(strings.NewReplacer("DOLLARS", "5", "$run", "acme/run-7f3a", "dist/local/agent/sandkeeper-agent", os.Args[0]), words)
}

// checkTold parses a command line as the tool does. A sentence may leave out what the command
// wants beside; what it names must be there.
func checkTold(t *testing.T, l told) {
	t.Helper()
	k, err := parser(t.Context(), &commands{}, &console.Console{Out: io.Discard, Err: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	words := shielded(filled(l.words))
	if l.block {
		if _, err := k.Parse(words); err != nil {
			t.Errorf("%s: %v", l, err)
		}
		return
	}
	if strings.HasPrefix(words[len(words)-1], "--") {
		words = append(words, "5") // for a flag whose value the sentence does not tell
	}
	traced, err := kong.Trace(k, words)
	if err == nil {
		err = traced.Error
	}
	if err != nil && err.Error() != "unexpected argument 5" {
		t.Errorf("%s: %v", l, err)
	}
}

// TestThePagesTellCommandLinesThatParse: each line of a block as it is typed, and each that a
// sentence names.
func TestThePagesTellCommandLinesThatParse(t *testing.T) {
	in := map[bool]int{}
	for _, l := range toldByPages(t) {
		checkTold(t, l)
		in[l.block]++
	}
	if in[true] < 30 || in[false] < 30 {
		t.Errorf("read %d lines of blocks and %d of sentences, which are too few", in[true], in[false])
	}
}

// TestThePagesTellFlagsThatTheHostsHave: the example hosts read their command lines themselves.
func TestThePagesTellFlagsThatTheHostsHave(t *testing.T) {
	seen := 0
	for program, host := range map[string]struct{ source, declares string }{
		"./examples/host-go": {"host-go/main.go", `"%s", `}, "dist/host.js": {"host-node/src/host.ts", "  %s: "}, "host.py": {"host-python/host.py", `"--%s", `},
	} {
		source, err := os.ReadFile(filepath.Join("..", "..", "examples", host.source))
		if err != nil {
			t.Fatal(err)
		}
		for path, page := range pages(t) {
			for _, text := range append(blocks(page), inSentence.FindAllString(fence.ReplaceAllString(page, ""), -1)...) {
				for _, words := range simple(t, strings.Trim(text, "`")) {
					if !slices.Contains(words, program) {
						continue
					}
					for _, word := range words {
						if name, isFlag := strings.CutPrefix(word, "--"); isFlag {
							seen++
							if !strings.Contains(string(source), fmt.Sprintf(host.declares, name)) {
								t.Errorf("%s: %s has no flag --%s", path, program, name)
							}
						}
					}
				}
			}
		}
	}
	if seen < 10 {
		t.Errorf("read %d flags, which are too few", seen)
	}
}

// TestThePagesBlocksAreWhatAShellReads: those that begin with a command.
func TestThePagesBlocksAreWhatAShellReads(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	begins := regexp.MustCompile(`^(sandkeeper|make|npx|go|aws|curl|source|export|python3?[.0-9]*|dir=\S+|trap|[A-Z_]+=\S+) `)
	seen := 0
	for path, page := range pages(t) {
		for _, text := range blocks(page) {
			if !begins.MatchString(text) {
				continue
			}
			seen++
			command := exec.CommandContext(t.Context(), bash, "-n")
			command.Stdin = strings.NewReader(text)
			if out, err := command.CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s\n%s", path, err, out, text)
			}
		}
	}
	if seen < 20 {
		t.Errorf("read %d blocks, which are too few", seen)
	}
}

// TestThePagesDefinitionsAreTaken: where a page leaves something open, a host fills it in.
func TestThePagesDefinitionsAreTaken(t *testing.T) {
	seen := 0
	for path, page := range pages(t) {
		for _, m := range regexp.MustCompile(`(?m)^(?:echo ')?(\{"name": .*"taskDefinition".*\})(?:' >\S+)?$`).FindAllStringSubmatch(page, -1) {
			seen++
			if _, err := core.ParseDefinition([]byte(m[1])); err != nil {
				t.Errorf("%s shows %s: %v", path, m[1], err)
			}
		}
	}
	if seen < 2 {
		t.Errorf("read %d definitions, which are too few", seen)
	}
}

// TestReadmeShowsWhatTheDemoPrints: its last line has the members that the table tells, and no
// others.
func TestReadmeShowsWhatTheDemoPrints(t *testing.T) {
	page := pages(t)["README.md"]
	shown := regexp.MustCompile(`(?m)^\{"runs":.*\}$`).FindString(page)
	if err := core.DecodeStrict([]byte(shown), new(demoResult)); err != nil {
		t.Errorf("README shows %q: %v", shown, err)
	}
	for f := range reflect.TypeFor[demoResult]().Fields() {
		if name := f.Tag.Get("json"); !strings.Contains(shown, `"`+name+`":`) {
			t.Errorf("README does not show %s", name)
		}
	}
}

// TestMessagesTellCommandsAndFlagsThatExist: what the tool, the functions and the stack say in
// their own texts is to be typed too. Behind the command there may be a sentence.
func TestMessagesTellCommandsAndFlagsThatExist(t *testing.T) {
	k, err := parser(t.Context(), &commands{}, &console.Console{})
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for where, text := range texts(t, "cmd", "internal", "functions", "client", "infra", "examples") {
		for _, part := range strings.Split(text, "sandkeeper ")[1:] {
			words := strings.FieldsFunc(part, func(r rune) bool { return strings.ContainsRune(" ,;:.()'\"\n", r) })
			node, flags := k.Model.Node, slices.Clone(k.Model.Flags)
			for _, word := range words {
				child := slices.IndexFunc(node.Children, func(n *kong.Node) bool { return n.Name == word })
				if child < 0 {
					break
				}
				node = node.Children[child]
				flags = append(flags, node.Flags...)
			}
			if node == k.Model.Node {
				continue // of the tool itself
			}
			seen++
			for _, word := range words {
				name, isFlag := strings.CutPrefix(word, "--")
				if isFlag && !slices.ContainsFunc(flags, func(f *kong.Flag) bool { return f.Name == name }) {
					t.Errorf("%s tells %q, but %s has no flag --%s", where, "sandkeeper "+part, node.FullPath(), name)
				}
			}
		}
	}
	if seen < 15 {
		t.Errorf("read %d commands in texts, which are too few", seen)
	}
}

// texts are the literals of the Go code below some directories, by where they are.
func texts(t *testing.T, dirs ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, e fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case e.IsDir() && slices.Contains([]string{"node_modules", ".venv", "testdata"}, e.Name()):
				return filepath.SkipDir
			case e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			files := token.NewFileSet()
			file, err := goparser.ParseFile(files, path, nil, goparser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
					if text, err := strconv.Unquote(l.Value); err == nil {
						all[files.Position(l.Pos()).String()] = text
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestThePagesLinesRun has a row for each line of a block, in an order that has something for
// each to show, and runs those that can be run here, with a tenant and ids of its own. A
// line that is on a page has a row, and none else.
func TestThePagesLinesRun(t *testing.T) {
	w := installed(t)
	w.image(t)
	lines := toldByPages(t)
	t.Chdir(t.TempDir()) // where plan.json and ./work are
	tenant, tried := rand.Text(), rand.Text()
	r := w.begin(t, agent{tenant: core.TenantID(tenant), run: "run-7f3a", thread: "thread-19", shell: leaves})
	w.wrote(t, r, "begun")
	w.save(t, r, "checkpoint-run-7f3a")
	try := w.begin(t, agent{tenant: noTenant, run: core.RunID(tried), shell: lives})
	w.wrote(t, try, "begun")
	own := strings.NewReplacer("$run", tenant+"/run-7f3a", "acme", tenant, "try-1", tried)
	known := []string{ // what serves until it is ended: TestLocal… begins it
		"local --addr 127.0.0.1:4570 --events-endpoint http://127.0.0.1:4566",
		"local --addr 127.0.0.1:4570 --events-endpoint http://127.0.0.1:4566 --agent dist/local/agent/sandkeeper-agent",
	}
	rows := []struct {
		line string
		code int
		says []string
	}{
		{`mode enforce --why "the plan is as expected"`, exitDone, []string{"enforce"}},
		{`doctor`, exitFindings, []string{"schedules", "cure:"}},
		{`--local doctor`, exitFindings, []string{"schedules", "cure:"}},
		{`plan`, exitDone, []string{"looked at"}},
		{`plan --out plan.json`, exitDone, []string{"plan.json"}},
		{`apply plan.json`, exitDone, nil},
		{`explain acme/run-7f3a`, exitDone, []string{"would end it"}},
		{`runs --standing detached --since 2d --json`, exitDone, []string{`"tenant": "acme"`, `"run": "run-7f3a"`}},
		{`runs --tenant acme --status running,interrupted --json`, exitDone, []string{`"tenant": "acme"`, `"run": "run-7f3a"`}},
		{`runs`, exitDone, []string{"acme/run-7f3a", "try-1"}},
		{`checkpoints list acme/thread-19`, exitDone, []string{"checkpoint-run-7f3a"}},
		{`checkpoints restore acme/thread-19 --to ./work`, exitDone, []string{"work"}},
		{`checkpoints restore acme/thread-19 checkpoint-run-7f3a --why "the agent deleted its sources"`, exitDone, nil},
		{`checkpoints fork acme/thread-19 try-a try-b --why "two ways from here"`, exitDone, []string{"try-a", "try-b"}},
		{`hold --for 4h --why "the change of tonight" -- "$run"`, exitDone, []string{"held"}},
		{`hold acme/run-7f3a --for 4h --why "the customer asks"`, exitDone, []string{"held"}},
		{`explain try-1`, exitDone, []string{"would end it"}},
		{`logs try-1 --live`, exitDone, []string{"begun"}},
		{`kill try-1 --why "tried it" --now --yes`, exitDone, []string{"try-1"}},
		{`kill --yes --why "the key of acme has leaked" -- "$run"`, exitDone, []string{"acme/run-7f3a"}},
		{`completion bash`, exitDone, []string{"complete"}},
		{`completion zsh`, exitDone, []string{"compdef"}},
		{`completion fish`, exitDone, []string{"complete"}},
	}
	for _, row := range rows {
		words, err := shlex.Split(row.line)
		if err != nil {
			t.Fatal(err)
		}
		known = append(known, strings.Join(words, " "))
		t.Run(row.line, func(t *testing.T) { asTold(t, replaced(own, words), row.code, replaced(own, row.says)) })
	}
	holds(t, "work", "src/a.go", "one")
	checkTried(t, lines, known)
}

// replaced are texts with what stands for something replaced.
func replaced(by *strings.Replacer, texts []string) []string {
	texts = slices.Clone(texts)
	for i, text := range texts {
		texts[i] = by.Replace(text)
	}
	return texts
}

// asTold runs a command line of a page. Where it asks, and here is nobody, it is told yes.
func asTold(t *testing.T, words []string, code int, says []string) {
	t.Helper()
	a := sandkeeper(t, words...)
	if a.code == exitRefused && strings.Contains(a.err, "say --yes") {
		a = sandkeeper(t, append(words, "--yes")...)
	}
	if a.code != code {
		t.Errorf("exit %d, want %d\n%s%s", a.code, code, a.out, a.err)
	}
	for _, want := range says {
		if !strings.Contains(a.out+a.err, want) {
			t.Errorf("it does not say %q\n%s%s", want, a.out, a.err)
		}
	}
}

// checkTried holds the lines of blocks and those that were tried to one another.
func checkTried(t *testing.T, lines []told, tried []string) {
	t.Helper()
	var onPages []string
	for _, l := range lines {
		line := strings.Join(l.words, " ")
		if l.block && !slices.Contains(tried, line) {
			t.Errorf("%s has sandkeeper %s, which nobody tries", l.where, line)
		}
		if l.block {
			onPages = append(onPages, line)
		}
	}
	for _, line := range tried {
		if !slices.Contains(onPages, line) {
			t.Errorf("no page has sandkeeper %s", line)
		}
	}
}
