package sandkeeper_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// documents are the pages for people. What they set in code must exist: a name
// that nothing bears any more fails here.
var documents = []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "AGENTS.md", "docs/*.md"}

// page is one document, and what it sets in code: fenced lines and spans.
type page struct {
	path, text string
	code       []string
}

var span = regexp.MustCompile("`([^`]+)`")

func readPages(t *testing.T) []page {
	t.Helper()
	var pages []page
	for _, pattern := range documents {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("no document %s: %v", pattern, err)
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			pages = append(pages, page{path, string(data), codeOf(string(data))})
		}
	}
	return pages
}

func codeOf(text string) []string {
	var code []string
	fenced := false
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			fenced = !fenced
		case fenced:
			code = append(code, line)
		default:
			for _, s := range span.FindAllStringSubmatch(line, -1) {
				code = append(code, s[1])
			}
		}
	}
	return code
}

// cited reports each match of pattern in the documents' code that does not exist,
// and how many it looked at. The first group is the name, if there is one.
func cited(t *testing.T, pattern string, exists func(groups []string) bool) {
	t.Helper()
	seen := 0
	for _, p := range readPages(t) {
		for _, code := range p.code {
			for _, groups := range regexp.MustCompile(pattern).FindAllStringSubmatch(code, -1) {
				seen++
				if !exists(groups) {
					t.Errorf("%s cites %q, which does not exist", p.path, strings.TrimSpace(groups[0]))
				}
			}
		}
	}
	if seen == 0 {
		t.Errorf("nothing is cited as %s", pattern)
	}
}

// sources joins the Go files of a tree that pick accepts.
func sources(t *testing.T, root string, pick func(path string) bool) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && slices.Contains([]string{".git", ".venv", ".local", "node_modules", "dist", "cdk.out"}, entry.Name()) {
			return filepath.SkipDir
		}
		if entry.IsDir() || filepath.Ext(path) != ".go" || !pick(path) {
			return nil
		}
		data, err := os.ReadFile(path)
		all.Write(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func testFile(path string) bool { return strings.HasSuffix(path, "_test.go") }

func TestDocumentsCiteTestsThatExist(t *testing.T) {
	tests := sources(t, ".", testFile)
	cited(t, `\b(?:Test|Fuzz|Benchmark)[A-Z]\w*`, func(groups []string) bool {
		return strings.Contains(tests, "\nfunc "+groups[0]+"(")
	})
}

func TestDocumentsCiteMakeTargetsThatExist(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	cited(t, `(?:^|\s)make((?: +[a-z][a-z-]*)+)`, func(groups []string) bool {
		return !slices.ContainsFunc(strings.Fields(groups[1]), func(target string) bool {
			return !strings.Contains(string(makefile), "\n"+target+":")
		})
	})
}

// TestDocumentsGiveMakeVariablesThatItReads, as make deploy-local ENDPOINT=… does.
func TestDocumentsGiveMakeVariablesThatItReads(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	cited(t, `(?:^|\s)make [a-z][a-z-]*((?: +[A-Z]+=\S*)+)`, func(groups []string) bool {
		return !slices.ContainsFunc(strings.Fields(groups[1]), func(given string) bool {
			name, _, _ := strings.Cut(given, "=")
			return !regexp.MustCompile(`\$\((?:or \$\()?` + name + `\)`).Match(makefile)
		})
	})
}

// others are names in capitals that the documents have and that somebody else reads.
var others = map[string]string{
	"CAPABILITY_IAM": "CloudFormation", "CAPABILITY_NAMED_IAM": "CloudFormation", "GIT_TOKEN": "an example's secret",
	"LAMBDA_DOCKER_FLAGS": "LocalStack", "OVERRIDE_IN_DOCKER": "LocalStack", "FILESYSTEM_ROOT": "LocalStack", "GATEWAY_LISTEN": "LocalStack",
	"DNS_ADDRESS": "LocalStack", "DISABLE_EVENTS": "LocalStack", "SKIP_SSL_CERT_DOWNLOAD": "LocalStack", "S3_SKIP_SIGNATURE_VALIDATION": "LocalStack",
	"DYNAMODB_LOCAL_PORT": "LocalStack",
}

// TestDocumentsCiteVariablesThatAreRead: what a page says of the environment, some code reads
// or hands on.
func TestDocumentsCiteVariablesThatAreRead(t *testing.T) {
	code := sources(t, ".", func(path string) bool { return path != "docs_test.go" })
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	code += string(makefile)
	left := maps.Clone(others)
	cited(t, `\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b`, func(groups []string) bool {
		delete(left, groups[0])
		return others[groups[0]] != "" || regexp.MustCompile(`\b`+groups[0]+`\b`).MatchString(code)
	})
	for name := range left {
		t.Errorf("no document has %s any more", name)
	}
}

func TestDocumentsCiteFilesThatExist(t *testing.T) {
	cited(t, `(?:^|[\s(/=])((?:internal|functions|client|cmd|examples|infra|events|scripts|docs|\.ci)(?:/[\w.*-]+)+)`, func(groups []string) bool {
		found, err := filepath.Glob(groups[1])
		return err == nil && len(found) > 0
	})
	for _, p := range readPages(t) {
		for _, link := range regexp.MustCompile(`\]\(([^)#:]+)[^)]*\)`).FindAllStringSubmatch(p.text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(p.path), link[1])); err != nil {
				t.Errorf("%s links to %s: %v", p.path, link[1], err)
			}
		}
	}
}

// TestDocumentsCiteNamesThatExist is about Go's names: package.Name and
// package.Type.Method of a package directly under internal.
func TestDocumentsCiteNamesThatExist(t *testing.T) {
	rooms := map[string]string{}
	cited(t, `\b([a-z]\w*)\.([A-Z]\w*)(?:\.(\w+))?`, func(groups []string) bool {
		dir := filepath.Join("internal", groups[1])
		if groups[1] == "client" {
			dir = "client"
		}
		if _, err := os.Stat(dir); err != nil {
			return !strings.HasPrefix(groups[1], "core") // somebody else's package
		}
		if rooms[dir] == "" {
			rooms[dir] = sources(t, dir, func(path string) bool { return !testFile(path) })
		}
		declared := regexp.MustCompile(`(?m)^(?:func |type |var |const |\t)` + groups[2] + `\b`).MatchString(rooms[dir])
		method := groups[3] == "" || regexp.MustCompile(`(?m)^(?:func \(\w* ?\*?`+groups[2]+`\) |\t)`+groups[3]+`\b`).MatchString(rooms[dir])
		return declared && method
	})
}

// fenced are the blocks of a page in a language.
func fenced(text, language string) (blocks []string) {
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// TestDocumentsShowGoThatIsCompiled: each line of a block of Go is one of an example.
func TestDocumentsShowGoThatIsCompiled(t *testing.T) {
	examples := sources(t, ".", func(path string) bool { return filepath.Base(path) == "example_test.go" })
	seen := 0
	for _, p := range readPages(t) {
		for _, block := range fenced(p.text, "go") {
			for line := range strings.Lines(block) {
				seen++
				if !strings.Contains(examples, "\t"+line) {
					t.Errorf("%s shows %q, which no example_test.go has", p.path, strings.TrimSpace(line))
				}
			}
		}
	}
	if seen == 0 {
		t.Error("no page shows Go")
	}
}

// TestDocumentsShowJSONThatIsJSON.
func TestDocumentsShowJSONThatIsJSON(t *testing.T) {
	seen := 0
	for _, p := range readPages(t) {
		for _, block := range fenced(p.text, "json") {
			seen++
			var v any
			if err := json.Unmarshal([]byte(block), &v); err != nil {
				t.Errorf("%s shows %.60q: %v", p.path, block, err)
			}
		}
	}
	if seen < 5 {
		t.Errorf("the pages show %d blocks of JSON, which are too few", seen)
	}
}

// TestArchitectureListsEveryInvariant in order, once.
func TestArchitectureListsEveryInvariant(t *testing.T) {
	data, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for i := 1; i <= 16; i++ {
		want = append(want, fmt.Sprintf("| I%d |", i))
	}
	got = regexp.MustCompile(`(?m)^\| I\d+ \|`).FindAllString(string(data), -1)
	if !slices.Equal(got, want) {
		t.Errorf("rows %q, want %q", got, want)
	}
}

// TestEveryFaultAndFunctionIsDocumented where a reader looks for it.
func TestEveryFaultAndFunctionIsDocumented(t *testing.T) {
	local, err := os.ReadFile("docs/local.md")
	if err != nil {
		t.Fatal(err)
	}
	for field := range reflect.TypeFor[localfargate.Faults]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !strings.Contains(string(local), "`"+name+"`") {
			t.Errorf("docs/local.md does not tell the fault %s", name)
		}
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range names.Functions {
		if !strings.Contains(string(readme), "\n| `"+string(f)+"` |") {
			t.Errorf("README.md has no row for the function %s", f)
		}
	}
}

// TestTheMainProcessIsShownAsItIs, since images copy it.
func TestTheMainProcessIsShownAsItIs(t *testing.T) {
	agent, err := os.ReadFile("docs/agent.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(agent), "```\n"+core.MainProcess+"```\n") {
		t.Errorf("docs/agent.md does not show\n%s", core.MainProcess)
	}
}

// TestReadmeShowsTheLimitsAsTheyAre compares each row of README's table of limits
// with the default.
func TestReadmeShowsTheLimitsAsTheyAre(t *testing.T) {
	data, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	limits := reflect.ValueOf(core.DefaultLimits)
	rows := regexp.MustCompile("(?m)^\\| `([A-Z]\\w+)` \\| ([^|]+) \\|").FindAllStringSubmatch(string(data), -1)
	for _, row := range rows {
		field := limits.FieldByName(row[1])
		if !field.IsValid() || !field.CanInterface() {
			t.Errorf("README shows the limit %s, which does not exist", row[1])
			continue
		}
		if shown, err := shownLimit(field, row[2]); err != nil || shown != field.Interface() {
			t.Errorf("README shows %s as %s (%v), want %v", row[1], row[2], err, field.Interface())
		}
	}
	if len(rows) < 5 {
		t.Errorf("README shows %d limits", len(rows))
	}
}

// TestReadmeShowsTheFiguresAsTheyAre compares README's table of figures with
// bench.json, row by row: name, value with its unit, and goal.
func TestReadmeShowsTheFiguresAsTheyAre(t *testing.T) {
	var figures []struct {
		Name, Unit, Goal string
		Value            float64
		Holds            bool
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile("bench.json")
	if err == nil {
		err = json.Unmarshal(data, &figures)
	}
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, f := range figures {
		want = append(want, fmt.Sprintf("| %s | %s %s | %s |", f.Name, strconv.FormatFloat(f.Value, 'f', -1, 64), f.Unit, f.Goal))
		if !f.Holds {
			t.Errorf("%s misses its goal: %g %s, want %s", f.Name, f.Value, f.Unit, f.Goal)
		}
	}
	_, table, _ := strings.Cut(string(readme), "\n| figure | measured | goal |\n| --- | --- | --- |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	got := strings.Split(table, "\n")
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("row %d of README's figures is %q, want %q", i+1, got[i:min(i+1, len(got))], want[i:min(i+1, len(want))])
		}
	}
	if len(want) == 0 {
		t.Error("bench.json has no figure")
	}
}

// shownLimit reads a duration as Go writes it, or a number with a unit of bytes or
// none, as the field's own type.
func shownLimit(field reflect.Value, text string) (any, error) {
	if _, ok := field.Interface().(time.Duration); ok {
		return time.ParseDuration(text)
	}
	number, unit, _ := strings.Cut(text, " ")
	factor, ok := map[string]float64{"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]
	if !ok {
		return nil, fmt.Errorf("unknown unit %q", unit)
	}
	value, err := strconv.ParseFloat(number, 64)
	return reflect.ValueOf(value * factor).Convert(field.Type()).Interface(), err
}
