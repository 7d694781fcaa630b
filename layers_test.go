// Package sandkeeper_test holds the rules of the whole tree: who may import whom,
// and what no file may contain. Each rule is a row with its reason.
package sandkeeper_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/sandkeeper/sandkeeper"

// adapters speak to one service each. The core's ports are all they share.
var adapters = []string{"ddb", "s3blob", "sqsout", "ebout", "ecstask", "ecsexec", "lambdaprobe", "lambdacheckpoint", "lambdafn", "awssecrets", "spokes"}

// layer is a rule: what package may not import, of the module, of the standard
// library or of others.
type layer struct {
	name     string
	packages func(path string) bool // paths below the module
	deep     bool                   // count what its imports import
	refuse   func(imported string, of string) bool
	reason   string
}

var layers = []layer{{
	name:     "the checkpoint format knows nothing of ours",
	packages: is("internal/manifest"),
	refuse:   func(imported, _ string) bool { return strings.HasPrefix(imported, module+"/") },
	reason:   "whoever reads the format needs nothing but the format",
}, {
	name:     "the workspace engine knows the format and nothing else of ours",
	packages: is("internal/workspace"),
	refuse: func(imported, _ string) bool {
		return strings.HasPrefix(imported, module+"/") && imported != module+"/internal/manifest"
	},
	reason: "it runs inside the sandbox, where nobody is trusted with a service",
}, {
	name:     "core imports the standard library only",
	packages: is("internal/core"),
	refuse:   func(imported, _ string) bool { return strings.Contains(firstPart(imported), ".") },
	reason:   "rules must be readable and testable without any service",
}, {
	name:     "core has no net/http",
	packages: is("internal/core"), deep: true,
	refuse: func(imported, _ string) bool { return imported == "net/http" },
	reason: "a rule that calls out is an adapter",
}, {
	name:     "names imports nothing of ours and nothing foreign",
	packages: is("internal/names"), deep: true,
	refuse: func(imported, _ string) bool { return strings.Contains(firstPart(imported), ".") },
	reason: "stack, functions and tools all read it",
}, {
	name:     "adapters do not import one another",
	packages: adapter, deep: true,
	refuse: func(imported, of string) bool { return adapter(ours(imported)) && room(ours(imported)) != room(of) },
	reason: "what two services have in common belongs to the core",
}, {
	name:     "test doubles are in no binary",
	packages: binary, deep: true,
	refuse: anyOf("internal/draw", "internal/mem", "internal/core/coretest", "internal/engine/enginetest", "internal/engine/installtest"),
	reason: "a fake that ships is a bug nobody sees",
}, {
	name:     "drawing imports nothing of ours and nothing foreign",
	packages: is("internal/draw"), deep: true,
	refuse: func(imported, of string) bool {
		return strings.Contains(firstPart(imported), ".") && ours(imported) != of
	},
	reason: "whatever has properties is tested with it",
}, {
	name:     "functions hold no local machinery",
	packages: below("functions"), deep: true,
	refuse: anyOf("internal/localfargate", "internal/engine"),
	reason: "what imitates AWS has no place on AWS",
}, {
	name:     "a function's own code is wiring",
	packages: below("functions"),
	refuse: func(imported, _ string) bool {
		return slices.Contains([]string{"os", "net/http", "sync", "os/exec"}, imported)
	},
	reason: "environment, protocols and concurrency have packages with tests",
}, {
	name:     "the sandbox's agent knows nothing of AWS",
	packages: is("cmd/sandkeeper-agent"), deep: true,
	refuse: func(imported, _ string) bool { return strings.HasPrefix(imported, "github.com/aws/") },
	reason: "it has no credentials, is in every image, and needs only the URLs that it is given",
}, {
	name: "nothing but functions and boot knows Lambda's runtime",
	packages: func(path string) bool {
		return !below("functions")(path) && path != "internal/boot" && path != "examples/tool-go"
	},
	refuse: func(imported, _ string) bool {
		return imported == "github.com/aws/aws-lambda-go/lambda" || imported == "github.com/aws/aws-lambda-go/lambdacontext"
	},
	reason: "use cases run in tests and in tools as well",
}, {
	name:     "a host's client holds no store",
	packages: is("client"), deep: true,
	refuse: func(imported, _ string) bool { return adapter(ours(imported)) },
	reason: "a host that calls the function needs Lambda and nothing else",
}, {
	name:     "a session is put together in one place",
	packages: func(path string) bool { return path == "functions/session" || path == "client/inprocess" },
	refuse:   func(imported, _ string) bool { return adapter(ours(imported)) },
	reason:   "what one of the two would forget, the other has: internal/wiring builds it for both",
}, {
	name:     "only the local commands know the engine",
	packages: func(path string) bool { return below("internal")(path) && !below("internal/engine")(path) },
	refuse:   anyOf("internal/engine"),
	reason:   "no package that ships depends on an emulator",
}}

func TestLayers(t *testing.T) {
	all := listPackages(t)
	for _, rule := range layers {
		t.Run(rule.name, func(t *testing.T) {
			for path, p := range all {
				if !strings.HasPrefix(path, module) || !rule.packages(ours(path)) {
					continue
				}
				imports := p.Imports
				if rule.deep {
					imports = p.Deps
				}
				for _, imported := range imports {
					if rule.refuse(imported, ours(path)) {
						t.Errorf("%s imports %s: %s", ours(path), imported, rule.reason)
					}
				}
			}
		})
	}
}

type goPackage struct {
	ImportPath string
	Name       string
	Doc        string
	Imports    []string
	Deps       []string
	GoFiles    []string
}

// listPackages asks go list for every package of the module.
func listPackages(t *testing.T) map[string]goPackage {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Name,Doc,Imports,Deps,GoFiles", "./...")
	var said strings.Builder
	command.Stderr = &said
	output, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, said.String())
	}
	all := map[string]goPackage{}
	decoder := json.NewDecoder(strings.NewReader(string(output)))
	for {
		var p goPackage
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		all[p.ImportPath] = p
	}
	if _, ok := all[module+"/internal/core"]; !ok {
		t.Fatalf("go list does not know the core: %v", slices.Sorted(maps.Keys(all)))
	}
	return all
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for path, p := range listPackages(t) {
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("%s has no package comment", ours(path))
		}
	}
}

// TestMainsAreShort: a function's main boots, builds adapters and starts.
func TestMainsAreShort(t *testing.T) {
	mains, err := filepath.Glob("functions/*/main.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range mains {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, body, _ := strings.Cut(string(data), "func main() {")
		body, _, _ = strings.Cut(body, "\n}")
		if lines := strings.Count(body, "\n"); lines > 40 {
			t.Errorf("%s: main has %d lines, want at most 40", file, lines)
		}
	}
}

// text is a rule about what files say.
type text struct {
	pattern *regexp.Regexp
	files   func(path string) bool
	reason  string
}

var texts = []text{
	{regexp.MustCompile(`\b(jsii|aws)\.(String|Number|Bool|Int32|Int64|Time)\(`), goFile, "new(value) does it"},
	{regexp.MustCompile(`\berrors\.As\(`), goFile, "errors.AsType is checked by the compiler"},
	{regexp.MustCompile(`(^|[^A-Za-z0-9_./-])/(root|home/[a-z]+|Users)/`), source, "paths of one machine mean nothing on another"},
	{regexp.MustCompile(`\bMillisOf\(time\.|\btime\.Now\(\)\.(Unix|UnixMilli|Truncate|Round)\b`), coreRules, "nowMillis is right where a host's clock is wrong"},
	{regexp.MustCompile(`\b(AKIA|ASIA)[A-Z0-9]{16}\b`), source, "no credential belongs in a repository"},
}

func goFile(path string) bool {
	return strings.HasSuffix(path, ".go") && path != "layers_test.go"
}

// coreRules are the core's own files, but for the one that corrects the clock.
func coreRules(path string) bool {
	return below("internal/core")(path) && goFile(path) && !strings.HasSuffix(path, "_test.go") && path != "internal/core/clock.go" && !below("internal/core/coretest")(path)
}

func source(path string) bool {
	return path != "layers_test.go" && slices.Contains([]string{".go", ".md", ".json", ".sh", ".py", ".mod", ""}, filepath.Ext(path))
}

func TestNoFileSays(t *testing.T) {
	seen := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if path != "." && slices.Contains([]string{".git", ".venv", ".local", "node_modules", "dist", "cdk.out"}, entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !entry.Type().IsRegular() || !source(path) && !goFile(path) {
			return nil
		}
		seen++
		return checkTexts(t, path)
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 10 {
		t.Errorf("looked at %d files only", seen)
	}
}

func checkTexts(t *testing.T, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for _, rule := range texts {
		if !rule.files(path) {
			continue
		}
		for _, at := range rule.pattern.FindAllIndex(data, -1) {
			line := 1 + strings.Count(string(data[:at[0]]), "\n")
			t.Errorf("%s:%d: %s: %s", path, line, fmt.Sprintf("%q", data[at[0]:at[1]]), rule.reason)
		}
	}
	return nil
}

// ours is a path below the module, or the whole path of what is not ours.
func ours(path string) string {
	if path == module {
		return "."
	}
	return strings.TrimPrefix(path, module+"/")
}

func firstPart(path string) string {
	first, _, _ := strings.Cut(path, "/")
	return first
}

// room is the package directly under internal that a path belongs to.
func room(path string) string {
	parts := strings.Split(path, "/")
	if len(parts) < 2 || parts[0] != "internal" {
		return ""
	}
	return parts[1]
}

func adapter(path string) bool { return slices.Contains(adapters, room(path)) }

func is(want string) func(string) bool { return func(path string) bool { return path == want } }

func below(dir string) func(string) bool {
	return func(path string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }
}

func binary(path string) bool { return below("functions")(path) || below("cmd")(path) }

func anyOf(packages ...string) func(string, string) bool {
	return func(imported, _ string) bool { return slices.Contains(packages, ours(imported)) }
}
