package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

var updateGolden = flag.Bool("update", false, "write the golden outputs anew")

// golden is one command line whose output for people is kept in testdata/golden. Of what
// other tests' runs and letters change, only the matching lines are kept.
type golden struct {
	command string // the leaf of the grammar
	args    string // NAMEs in capitals stand for what the scene has
	only    *regexp.Regexp
	code    int // -1: as the installation is
}

// goldens are one line at least for each command, in the order in which they are given to
// one scene: a run that works, one that has ended, one that is killed, and a thread with
// two checkpoints.
var goldens = []golden{
	{command: "mode", args: "mode", only: regexp.MustCompile(`^mode `)},
	{command: "plan", args: "plan WORKS DONE --out FILE"},
	{command: "apply", args: "apply FILE --yes"},
	{command: "sweep", args: "sweep WORKS --yes"},
	{command: "runs", args: "runs --thread works --tenant TENANT"},
	{command: "runs", args: "runs --thread works --tenant TENANT --wide"},
	{command: "show", args: "show WORKS"},
	{command: "explain", args: "explain WORKS"},
	{command: "logs", args: "logs DONE"},
	{command: "hold", args: "hold WORKS --for 4h --why look"},
	{command: "extend", args: "extend WORKS --ttl 12h --why build"},
	{command: "extend", args: "extend WORKS --spend-cap 2.5 --why build"},
	{command: "extend", args: "extend WORKS nobody/nothing KILLED --ttl 12h --why build", code: exitNotFound},
	{command: "explain", args: "explain WORKS --no-probe"},
	{command: "release", args: "release WORKS --why done --yes"},
	{command: "kill", args: "kill KILLED --why loops --yes --now"},
	{command: "show", args: "show KILLED", only: regexp.MustCompile(`^(\$|run|thread|status|exit|epoch|saved|cancel|ending) `)},
	{command: "explain", args: "explain FAILED"},
	{command: "freeze", args: "freeze --why look --dry-run", only: regexp.MustCompile(`frozen|dry run|mode`)},
	{command: "thaw", args: "thaw --why look --yes --dry-run", only: regexp.MustCompile(`frozen|dry run|mode`)},
	{command: "redrive", args: "redrive --dry-run"},
	{command: "audit trail", args: "audit trail --subject WORKS"},
	{command: "audit tasks", args: "audit tasks --grace 24h", only: regexp.MustCompile(`in the indexes$`), code: -1},
	{command: "cost", args: "cost --tenant TENANT --vcpu 1 --memory-gb 2", only: regexp.MustCompile(`COST|list prices|ECS does not show|saved:`)},
	{command: "doctor", args: "doctor --sandboxes 0", only: regexp.MustCompile(`^(\$|STATE|ok +(identity|stack)) `), code: -1},
	{command: "watch", args: "watch --count 1"},
	{command: "bench", args: "bench --samples 1 --probes 0"},
	{command: "bench", args: "bench --samples 0", code: exitUsage},
	{command: "definitions put", args: "definitions put DEFINITION --why new"},
	{command: "definitions list", args: "definitions list", only: regexp.MustCompile(`NAME|^golden`)},
	{command: "definitions show", args: "definitions show golden"},
	{command: "checkpoints list", args: "checkpoints list THREAD"},
	{command: "checkpoints head", args: "checkpoints head THREAD"},
	{command: "checkpoints show", args: "checkpoints show THREAD kept-1"},
	{command: "checkpoints diff", args: "checkpoints diff THREAD kept-1 kept-2"},
	{command: "checkpoints verify", args: "checkpoints verify THREAD kept-1"},
	{command: "checkpoints restore", args: "checkpoints restore THREAD kept-1 --to DIR"},
	{command: "checkpoints fork", args: "checkpoints fork THREAD left right --checkpoint kept-1 --why two"},
	{command: "checkpoints gc", args: "checkpoints gc THREAD"},
	{command: "checkpoints keep", args: "checkpoints keep THREAD --newest 1 --why less --yes --dry-run"},
	{command: "threads list", args: "threads list --help"},
	{command: "threads show", args: "threads show --help"},
	{command: "threads delete", args: "threads delete --help"},
	{command: "local", args: "local --help"},
	{command: "demo", args: "demo --help"},
	{command: "completion", args: "completion bash"},
}

// TestEveryCommandPrintsAsItDid compares what each command prints for people, and its exit
// code, with the kept output; a command without one fails. With -update it is kept anew.
func TestEveryCommandPrintsAsItDid(t *testing.T) {
	w := installed(t)
	names := w.scene(t)
	seen := map[string]int{}
	for _, g := range goldens {
		seen[g.command]++
		name := fmt.Sprintf("%s-%d", strings.ReplaceAll(g.command, " ", "-"), seen[g.command])
		t.Run(name, func(t *testing.T) {
			var args []string
			for word := range strings.FieldsSeq(g.args) {
				if value, ok := names[word]; ok {
					word = value
				}
				args = append(args, word)
			}
			a := sandkeeper(t, args...)
			if g.code >= 0 {
				a.wants(t, g.code)
			}
			got := "$ sandkeeper " + g.args + "\n" + g.text(a, names)
			path := filepath.Join("testdata", "golden", name+".txt")
			if *updateGolden {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil || got != string(want) {
				t.Errorf("%v\ngot:\n%s\nwant:\n%s", err, got, want)
			}
		})
	}
	k, err := parser(t.Context(), &commands{}, &console.Console{})
	if err != nil {
		t.Fatal(err)
	}
	for _, leaf := range k.Model.Leaves(true) {
		if name := strings.TrimPrefix(leaf.FullPath(), "sandkeeper "); seen[name] == 0 {
			t.Errorf("%s has no golden output", name)
		}
	}
	kept, err := filepath.Glob(filepath.Join("testdata", "golden", "*.txt"))
	if err != nil || len(kept) != len(goldens) {
		t.Errorf("%d outputs are kept for %d commands, %v", len(kept), len(goldens), err)
	}
}

// scene is what the command lines are about, by the words that stand for it.
func (w *world) scene(t *testing.T) map[string]string {
	t.Helper()
	kept := w.kept(t, "kept")
	of := func(run core.RunID, shell string) core.Run {
		return w.begin(t, agent{tenant: kept.Tenant, run: run, shell: shell})
	}
	works, done, failed, killed := of("works", lives), of("done", "echo finished"), of("failed", "echo broken; exit 3"), of("killed", lives)
	for _, r := range []core.Run{works, killed} {
		w.wrote(t, r, "begun")
	}
	w.exited(t, done)
	w.exited(t, failed)
	sandkeeper(t, "sweep", failed.RunKey.String(), "--yes").wants(t, exitDone)
	eventually(t, "the failed run's task has gone", func() bool {
		r := w.read(t, failed.RunKey)
		return r.Row == core.RowNone && w.closed(t, r)
	})
	dir := t.TempDir()
	definition := w.file(t, `{"name":"golden","version":1,"task":{"taskDefinition":"coder:12","container":"agent","subnets":["subnet-1"]},"spendCapUSD":2.5}`)
	return map[string]string{
		"TENANT": string(kept.Tenant), "THREAD": threadOf(kept), "WORKS": works.RunKey.String(), "DONE": done.RunKey.String(),
		"FAILED": failed.RunKey.String(), "KILLED": killed.RunKey.String(),
		"FILE": filepath.Join(dir, "plan.json"), "DIR": filepath.Join(dir, "restored"), "DEFINITION": definition,
	}
}

// passing is what differs from run to run, and what stands for it.
var passing = []struct {
	what *regexp.Regexp
	as   string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`), "TIME"},
	{regexp.MustCompile(`(?m)^([-dL][-rwx]{9}) +\d+ +\d+ `), "$1  UID  GID "},
	{regexp.MustCompile(`\b\d{3,} bytes`), "N bytes"},
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "SHA256"},
	{regexp.MustCompile(`\b[0-9a-f]{32}\b`), "HEX"},
	{regexp.MustCompile(`\b[A-Z2-7]{26}\b`), "ID"},
	{regexp.MustCompile(`\b\d+(\.\d+)? ms\b`), "N ms"},
	{regexp.MustCompile(`\b\d+ +\d+\.\d\d s +\d+\.\d/s`), "N in N s"},
	{regexp.MustCompile(`\bpid \d+|127\.0\.0\.1:\d+`), "HERE"},
	{regexp.MustCompile(`\$\d+\.\d+ by now`), "$$N by now"},
	{regexp.MustCompile(`\d+ tasks, \d+ of them ours; \d+ runs and \d+ rows`), "N tasks, N of them ours; N runs and N rows"},
	{regexp.MustCompile(`("control":).*`), "$1…"},                // and the runs of other tests
	{regexp.MustCompile(`\b\d+(m\d\ds|h\d\dm|d\d\dh)\b`), "AGE"}, // on a slow machine above a minute
	{regexp.MustCompile(`\b\d+[smhd]\b`), "AGE"},
	{regexp.MustCompile(` {2,}`), "  "}, // columns are as wide as what is in them
}

// text is an answer as it is kept.
func (g golden) text(a answer, names map[string]string) string {
	text := a.out
	if a.err != "" {
		text += "stderr:\n" + a.err
	}
	words := make([]string, 0, len(names))
	for word := range names {
		words = append(words, word)
	}
	slices.SortFunc(words, func(x, y string) int { return len(names[y]) - len(names[x]) }) // the tenant is a part of others
	for _, word := range words {
		text = strings.ReplaceAll(text, names[word], word)
	}
	for _, p := range passing {
		text = p.what.ReplaceAllString(text, p.as)
	}
	var lines strings.Builder
	for line := range strings.Lines(text) {
		if g.only == nil || g.only.MatchString(strings.TrimSpace(line)) {
			lines.WriteString(strings.TrimRight(line, " \n") + "\n")
		}
	}
	return lines.String()
}
