package main

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	goparser "go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// documents are what the commands print with --json, by the command. Of logs, watch and local
// it is a line.
var documents = map[string]any{
	"plan": struct {
		Plan   planFile         `json:"plan"` // what apply takes
		Report core.SweepReport `json:"report"`
	}{},
	"apply": swept{}, "sweep": swept{},
	"runs": struct {
		Runs       []runView        `json:"runs"`
		Unreadable []unreadableView `json:"unreadable"`
	}{},
	"show": runView{}, "explain": explanation{}, "logs": pieceView{}, "watch": snapshot{},
	"hold": act{}, "release": act{}, "extend": act{}, "kill": act{},
	"freeze": settled{}, "thaw": settled{}, "mode": settled{},
	"redrive": struct {
		DryRun  bool           `json:"dryRun"`
		Counts  map[string]int `json:"counts"` // by state
		Letters []letter       `json:"letters"`
	}{},
	"audit tasks": auditView{},
	"audit trail": struct {
		Acts []actView `json:"acts"`
	}{},
	"checkpoints list": struct {
		core.ThreadKey
		Checkpoints []listedView `json:"checkpoints"`
	}{},
	"checkpoints head": listedView{},
	"checkpoints show": struct {
		Checkpoint listedView  `json:"checkpoint"`
		Tree       *treeView   `json:"tree,omitempty"`    // not of --summary
		Entries    []entryView `json:"entries,omitempty"` // not of --summary
	}{},
	"checkpoints diff": diffView{}, "checkpoints restore": restoredView{}, "checkpoints fork": forkedView{}, "checkpoints verify": core.VerifyReport{},
	"checkpoints gc": collectedView{}, "checkpoints keep": keptView{},
	"threads list": struct {
		Threads []core.ThreadKey `json:"threads"`
	}{},
	"threads show": threadView{}, "threads delete": threadView{},
	"definitions put": struct {
		Op          string           `json:"op"`
		By          string           `json:"by"`
		Why         string           `json:"why"`
		DryRun      bool             `json:"dryRun"`
		Definitions []definitionView `json:"definitions"`
		Definition  *definitionView  `json:"definition,omitempty"` // where it is one
	}{},
	"definitions list": struct {
		Definitions []definitionView `json:"definitions"`
	}{},
	"definitions show": core.Definition{},
	"cost":             costView{},
	"doctor": struct {
		Version string         `json:"version"`
		Counts  map[string]int `json:"counts"` // by state
		Checks  []checked      `json:"checks"`
	}{},
	"bench": benchView{}, "local": localReady{},
}

// undocumented print no JSON document, or one that another page tells.
var undocumented = []string{"demo", "completion"}

// swept is what apply and sweep print.
type swept struct {
	DryRun bool             `json:"dryRun,omitempty"`
	Report core.SweepReport `json:"report"`
}

// elsewhere are types that have a page of their own.
var elsewhere = map[reflect.Type]string{reflect.TypeFor[core.Definition](): "[definition](definition.md)"}

// kind is what JSON a type is, in words, and the struct to tell of, if there is one.
func kind(t reflect.Type) (string, reflect.Type) {
	if page := elsewhere[t]; page != "" {
		return page, nil
	}
	switch {
	case t == reflect.TypeFor[stamp](), t == reflect.TypeFor[time.Time]():
		return "time", nil
	case t == reflect.TypeFor[core.Millis]():
		return "milliseconds", nil
	case t == reflect.TypeFor[[]byte]():
		return "base64", nil
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return "text", nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		return kind(t.Elem())
	case reflect.String:
		return "text", nil
	case reflect.Bool:
		return "true or false", nil
	case reflect.Slice:
		of, inner := kind(t.Elem())
		return "list of " + of, inner
	case reflect.Map:
		of, inner := kind(t.Elem())
		return "object of " + of, inner
	case reflect.Struct:
		return fmt.Sprintf("[%s](#%s)", called(t), strings.ToLower(called(t))), t
	}
	return "number", nil
}

// called is a type's name on the page.
func called(t reflect.Type) string {
	name := strings.TrimSuffix(t.Name(), "View")
	if room := filepath.Base(t.PkgPath()); room == "manifest" || room == "gitstate" {
		return room + name
	}
	return strings.ToLower(name[:1]) + name[1:]
}

// tagged are the members of a struct as JSON has them, those of embedded structs in their
// place.
func tagged(t reflect.Type) (fields []taggedField) {
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			fields = append(fields, tagged(f.Type)...)
		case f.IsExported() && name != "-":
			fields = append(fields, taggedField{f, t.Name() + "." + f.Name, name, strings.Contains(options, "omit")})
		}
	}
	return fields
}

type taggedField struct {
	reflect.StructField
	comment string // under which its comment is kept
	name    string
	absent  bool // it may be
}

// remarks are the comments of struct members in the code, by Type.Member, and of the
// documents' own by .Member.
func remarks(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, dir := range []string{".", "../../internal/core", "../../internal/manifest", "../../internal/gitstate"} {
		paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(paths) == 0 {
			t.Fatalf("no code in %s: %v", dir, err)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") && filepath.Base(path) != "documents_test.go" {
				continue
			}
			file, err := goparser.ParseFile(token.NewFileSet(), path, nil, goparser.ParseComments|goparser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			name := ""
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.TypeSpec:
					name = n.Name.Name
				case *ast.ValueSpec:
					name = "" // a document that has no type of its own
				case *ast.Field:
					for _, id := range n.Names {
						if text := strings.Join(strings.Fields(strings.NewReplacer("[", "", "]", "", "|", "or").Replace(n.Comment.Text())), " "); text != "" {
							all[name+"."+id.Name] = text
						}
					}
				}
				return true
			})
		}
	}
	return all
}

// members is the table of a struct, and the structs that it tells of.
func members(b *strings.Builder, t reflect.Type, said map[string]string) (inner []reflect.Type) {
	b.WriteString("\n| member | is | |\n| --- | --- | --- |\n")
	for _, f := range tagged(t) {
		is, of := kind(f.Type)
		if of != nil {
			inner = append(inner, of)
		}
		if f.absent {
			is += ", or absent"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", f.name, is, said[f.comment])
	}
	return inner
}

// documentsPage is docs/cli-json.md.
func documentsPage(t *testing.T) string {
	var b strings.Builder
	b.WriteString(`# What the operator's tool prints with --json

One document a command; ` + "`logs`, `watch` and `local`" + ` print one a line. This page is made from the Go types; the tests of the tool hold every document that they read to it
(` + "`go test ./cmd/sandkeeper -run TestTheDocumentsAreToldAsTheyAre -update`" + ` writes it anew). Members stay what they are; new ones may come, which a program has to pass over. [cli.md](cli.md#exit-codes) has the exit codes.

- *time* is RFC 3339 in UTC; *milliseconds* are since 1970, in what a function answers and the tool hands on.
- *or absent*: where it is not set, empty, zero or false.
- An error is ` + "`{\"code\", \"error\"}`" + ` on stderr, of a refusal with ` + "`reason`" + `. With exit code 5 the document is on stdout.

`)
	said := remarks(t)
	names := map[reflect.Type][]string{}
	var order []reflect.Type
	for _, command := range slices.Sorted(maps.Keys(documents)) {
		of := reflect.TypeOf(documents[command])
		if names[of] == nil {
			order = append(order, of)
		}
		names[of] = append(names[of], "`"+command+"`")
	}
	var todo []reflect.Type
	for _, of := range order {
		fmt.Fprintf(&b, "## %s\n", strings.Join(names[of], ", "))
		if page := elsewhere[of]; page != "" {
			fmt.Fprintf(&b, "\nA %s.\n\n", page)
			continue
		}
		todo = append(todo, members(&b, of, said)...)
		b.WriteString("\n")
	}
	b.WriteString("## Parts\n\n")
	done := map[reflect.Type]bool{}
	parts := map[string]string{}
	for len(todo) > 0 {
		of := todo[0]
		todo = todo[1:]
		if done[of] {
			continue
		}
		done[of] = true
		if parts[called(of)] != "" {
			t.Errorf("two types are called %s", called(of))
		}
		var part strings.Builder
		fmt.Fprintf(&part, "### %s\n", called(of))
		todo = append(todo, members(&part, of, said)...)
		parts[called(of)] = part.String()
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		text.WriteString(parts[name] + "\n")
	}
	return strings.TrimRight(b.String()+text.String(), "\n") + "\n"
}

// TestTheDocumentsAreToldAsTheyAre: docs/cli-json.md is what the types say, and every command
// has its document.
func TestTheDocumentsAreToldAsTheyAre(t *testing.T) {
	const path = "../../docs/cli-json.md"
	want := documentsPage(t)
	if *updateGolden {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("docs/cli-json.md is not what the types say (%v); -update writes it", err)
	}
	k, err := parser(t.Context(), &commands{}, &console.Console{})
	if err != nil {
		t.Fatal(err)
	}
	for _, leaf := range k.Model.Leaves(true) {
		name := strings.TrimPrefix(leaf.FullPath(), "sandkeeper ")
		if (documents[name] == nil) != slices.Contains(undocumented, name) {
			t.Errorf("%s has no document, or has one and is said to have none", name)
		}
	}
}

// checkDocument holds what a command printed with --json to its document.
func checkDocument(t *testing.T, args []string, printed string) {
	t.Helper()
	k, err := parser(t.Context(), &commands{}, &console.Console{Out: io.Discard, Err: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	traced, err := kong.Trace(k, shielded(args))
	if err != nil || traced.Error != nil || traced.Selected() == nil {
		return // no command
	}
	command := strings.TrimPrefix(traced.Selected().FullPath(), "sandkeeper ")
	if documents[command] == nil {
		t.Errorf("sandkeeper %s prints JSON, and has no document", command)
		return
	}
	decoder := json.NewDecoder(strings.NewReader(printed))
	for {
		var v any
		err := decoder.Decode(&v)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			return // it ended within
		}
		checkValue(t, "sandkeeper "+command+":", reflect.TypeOf(documents[command]), v)
	}
}

// checkValue holds a value to the type that the page tells of.
func checkValue(t *testing.T, where string, of reflect.Type, v any) {
	t.Helper()
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	switch v := v.(type) {
	case []any:
		if of.Kind() != reflect.Slice {
			t.Errorf("%s is a list", where)
			return
		}
		for _, one := range v {
			checkValue(t, where, of.Elem(), one)
		}
	case map[string]any:
		if of.Kind() != reflect.Struct || elsewhere[of] != "" {
			return // an object of numbers, or a page of its own
		}
		fields := tagged(of)
		for name, member := range v {
			i := slices.IndexFunc(fields, func(f taggedField) bool { return f.name == name })
			if i < 0 {
				t.Errorf("%s has a member %q, which docs/cli-json.md does not tell", where, name)
				continue
			}
			checkValue(t, where+" "+name, fields[i].Type, member)
		}
		for _, f := range fields {
			if _, ok := v[f.name]; !ok && !f.absent {
				t.Errorf("%s has no member %q, which docs/cli-json.md has always", where, f.name)
			}
		}
	}
}
