package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

var update = flag.Bool("update", false, "write docs/session-api.md anew")

// schemas makes JSON schemas of Go types, with the comments of their members.
type schemas struct {
	defs     map[string]any
	comments map[string]string // by "Type.Field", and of types by "Type"
	enums    map[string][]string
}

// schema is what JSON a type is.
func (s *schemas) schema(t reflect.Type) map[string]any {
	switch {
	case t.Kind() == reflect.Pointer:
		return s.schema(t.Elem())
	case t == reflect.TypeFor[json.RawMessage]():
		return map[string]any{"description": "any JSON"}
	case t == reflect.TypeFor[[]byte]():
		return map[string]any{"type": "string", "contentEncoding": "base64"}
	}
	switch t.Kind() {
	case reflect.String:
		if values := s.enums[t.Name()]; len(values) > 0 {
			return map[string]any{"type": "string", "enum": values}
		}
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": s.schema(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": s.schema(t.Elem())}
	case reflect.Struct:
		s.define(t)
		if t == reflect.TypeFor[core.SecretPlan]() {
			return map[string]any{"oneOf": []any{map[string]any{"type": "string"}, map[string]any{"$ref": "#/$defs/" + t.Name()}}}
		}
		return map[string]any{"$ref": "#/$defs/" + t.Name()}
	}
	panic(fmt.Sprintf("no schema for %s", t))
}

func (s *schemas) define(t reflect.Type) {
	if s.defs[t.Name()] != nil {
		return
	}
	properties, required := map[string]any{}, []string{}
	def := map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
	s.defs[t.Name()] = def
	if text := s.comments[t.Name()]; text != "" {
		def["description"] = text
	}
	for field := range members(t) {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		one := s.schema(field.Type)
		if text := s.comments[field.owner+"."+field.Name]; text != "" {
			one["description"] = text
		}
		properties[name] = one
		if !strings.Contains(options, "omit") {
			required = append(required, name)
		}
	}
	if len(required) > 0 {
		slices.Sort(required)
		def["required"] = required
	}
}

// member is a field that JSON shows, and the type that declares it.
type member struct {
	reflect.StructField
	owner string
}

// members are the fields of a struct as JSON shows them, embedded ones in place.
func members(t reflect.Type) func(yield func(member) bool) {
	return func(yield func(member) bool) {
		for field := range t.Fields() {
			if field.Anonymous && field.Tag.Get("json") == "" {
				for inner := range members(field.Type) {
					if !yield(inner) {
						return
					}
				}
				continue
			}
			if !yield(member{field, t.Name()}) {
				return
			}
		}
	}
}

// readComments reads what core's source says of types and their members.
func readComments(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	files, err := filepath.Glob("../../internal/core/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("core's source: %d files, %v", len(files), err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			declaration, ok := n.(*ast.GenDecl)
			if !ok || declaration.Tok != token.TYPE {
				return true
			}
			for _, spec := range declaration.Specs {
				noteType(out, declaration, spec.(*ast.TypeSpec))
			}
			return false
		})
	}
	return out
}

func noteType(out map[string]string, declaration *ast.GenDecl, spec *ast.TypeSpec) {
	fields, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	out[spec.Name.Name] = plain(declaration.Doc.Text())
	for _, field := range fields.Fields.List {
		text := plain(field.Doc.Text())
		if text == "" {
			text = plain(field.Comment.Text())
		}
		for _, name := range field.Names {
			out[spec.Name.Name+"."+name.Name] = text
		}
	}
}

// plain is a comment on one line, without the brackets of links.
func plain(text string) string {
	return strings.NewReplacer("[", "", "]", "").Replace(strings.Join(strings.Fields(text), " "))
}

func texts[T ~string](values ...T) []string {
	var out []string
	for _, v := range values {
		out = append(out, string(v))
	}
	return out
}

func newSchemas(t *testing.T) *schemas {
	return &schemas{defs: map[string]any{}, comments: readComments(t), enums: map[string][]string{
		"Status": texts(core.Statuses...), "StartState": texts(core.Provisioning, core.Ready), "FinishState": texts(core.Finishing, core.Finished),
		"Ensured": texts(core.EnsuredCreated, core.EnsuredResumed, core.EnsuredNative), "Reuse": texts(core.ReuseDefault, core.ReuseThread, core.ReuseNone),
		"OnLapse": {"", "detach", "cancel"}, "CheckpointPolicy": texts(core.CheckpointPolicies...),
		"PackageManager": texts(core.PackageManagers...), "SnapshotPolicy": texts(core.SnapshotPolicies...),
		"TailStream":         texts(core.TailStreams...),
		"Verdict":            texts(core.VerdictDefault, core.VerdictAllow, core.VerdictDeny),
		"ConversationSource": texts(core.ConversationDefault, core.ConversationHost, core.ConversationNone),
	}}
}

// schemaOf is the schema of every request and answer.
func schemaOf(t *testing.T) map[string]any {
	s := newSchemas(t)
	calls, answers := map[string]any{}, map[string]any{}
	for name, op := range operations {
		request, response := s.schema(op.request), s.schema(op.response)
		calls[name], answers[name] = request, response
	}
	answers["error"] = s.schema(reflect.TypeFor[refusal]())
	one := func(of map[string]any) map[string]any {
		return map[string]any{"type": "object", "additionalProperties": false, "minProperties": 1, "maxProperties": 1, "properties": of}
	}
	return map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Sandkeeper: session",
		"$defs": s.defs, "oneOf": []any{
			map[string]any{"title": "call"}, map[string]any{"title": "answer"},
		}, "$comment": "a call, and its answer", "properties": map[string]any{"call": one(calls), "answer": one(answers)},
	}
}

// document is docs/session-api.md.
func document(t *testing.T) []byte {
	schema := schemaOf(t)
	delete(schema, "oneOf")
	text, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	b.WriteString(`# The session API

What a host asks of the function ` + "`session`" + `, or in process of ` + "`core.Session`" + `. This page is made from the Go types; a
test holds it to them (` + "`go test ./functions/session -run TestDocument -update`" + ` writes it anew).

A call is one JSON object with one member, the operation: ` + "`{\"start\": {…}}`" + `. The answer has the member of the same
name, or ` + "`error`" + ` with a code and a text. An answer that does not come leaves open what was done: every operation may be
called again with the same ids, and does nothing twice. Members that are not listed are refused, with ` + "`bad-request`" + `.

- ` + "`tenant`" + ` must be one for which the caller may act: the stack lists tenants by the alias of the function that is invoked.
- ` + "`host`" + ` is a random text of the host's own, 16 to 128 characters, the same in all calls of one attachment. Whoever
  knows it has the run.
- Times are milliseconds since 1970. Bytes are base64.
- A run's host renews every 30 seconds; after 90 seconds without, the run lapses: it is detached, or cancelled where its
  definition says so.
- ` + "`waiting`" + ` says what a step waits for; it is for people. Ask again after a second or two.
- Bad input is refused with ` + "`bad-request`, `invalid-id`, `invalid-host`, `invalid-definition`, `invalid-agent`, `invalid-error`, " + `
  ` + "`invalid-conversation`, `invalid-position`, `invalid-time`, `invalid-task` (of an `adopt`), `invalid-journal` or `too-large`; `not-your-tenant`" + ` for
  another's tenant. Nothing has changed then.

| operation | does | refuses with |
| --- | --- | --- |
`)
	for _, name := range slices.Sorted(maps.Keys(operations)) {
		op := operations[name]
		codes := "–"
		if listed := core.Refusals(name); len(listed) > 0 {
			codes = "`" + strings.Join(listed, "` `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, op.what, codes)
	}
	b.WriteString("\n## Schema\n\n`call` and `answer` of every operation, as JSON Schema 2020-12.\n\n```json\n")
	b.Write(text)
	b.WriteString("\n```\n")
	return bytes.ReplaceAll(b.Bytes(), []byte(", \n"), []byte(",\n"))
}

// TestDocument: the page says what the types are.
func TestDocument(t *testing.T) {
	isWritten(t, "../../docs/session-api.md", document(t))
}

// TestEveryCodeOfAFailedStartIsListed, as the core's source has them.
func TestEveryCodeOfAFailedStartIsListed(t *testing.T) {
	files, err := filepath.Glob("../../internal/core/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	codes := map[string]bool{core.ReasonAgentMissing: true}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`startError\{"([a-z-]+)"`).FindAllStringSubmatch(string(text), -1) {
			codes[found[1]] = true
		}
	}
	for code := range codes {
		if !slices.Contains(core.Refusals("start"), code) {
			t.Errorf("start may be refused as %s, and does not say so", code)
		}
	}
	if len(codes) < 5 {
		t.Errorf("%d codes are found", len(codes))
	}
}

// isWritten holds a page to what the types say.
func isWritten(t *testing.T, page string, want []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(page, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the types say: write it anew with -update", page)
	}
}

// TestEveryMemberIsExplained, unless its name says it all.
func TestEveryMemberHasAName(t *testing.T) {
	for name, op := range operations {
		for _, typ := range []reflect.Type{op.request, op.response} {
			for field := range members(typ) {
				if tag := field.Tag.Get("json"); tag == "" || tag == "-" {
					t.Errorf("%s: member %s of %s has no name in JSON", name, field.Name, field.owner)
				}
			}
		}
	}
}

// definitionDocument is docs/definition.md.
func definitionDocument(t *testing.T) []byte {
	s := newSchemas(t)
	root := s.schema(reflect.TypeFor[core.Definition]())
	root["$schema"], root["title"], root["$defs"] = "https://json-schema.org/draft/2020-12/schema", "Sandkeeper: definition", s.defs
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	b.WriteString(`# Definitions

A definition says what a sandbox is made from and how its runs are kept. A host gives it with ` + "`start`" + `, or names one that the
installation keeps: ` + "`sandkeeper definitions put FILE --why TEXT`" + ` keeps a version, once; a name alone means its newest version, ` + "`name@version`" + `
that very one. This page is made from the Go types; a test holds it to them (` + "`go test ./functions/session -run TestDefinitionDocument -update`" + `).

` + "```json" + `
` + sampleDefinition + "```" + `

- Only a sandbox of the same tenant, thread and definition is used again. A hash over everything but the secrets tells; so a
  secret may be rotated, and every other change makes another sandbox.
- CloudFormation has no resource for an item of a table, and one of its own making would be a function that may delete what a running sandbox was made from. So
  the stack keeps none itself: ` + "`sandkeeper definitions put DIR`" + ` after ` + "`cdk deploy`" + ` keeps every ` + "`*.json`" + ` of a directory that is new. It checks all of them first, and changes no
  version that is kept; a version with other content is refused.
- A definition holds no secret. ` + "`secrets`" + ` names them: with ` + "`from`" + `, the session reads the value, for each run anew, and hands it to set-up and
  agent over stdin; it is in no record, argument or log. A name alone is a variable that the container has already. Both are
  redacted from checkpoints. The session may read what the stack lists in the context ` + "`secretArns`" + `.
- ` + "`hooks`" + ` and ` + "`tools`" + ` name Lambda functions that the stack lists in the context ` + "`hostFunctions`" + `, spelt the same; another is refused. A hook gets
  ` + "`{hook, tenant, run, thread, sandboxKey, detail}`" + `. ` + "`ready`" + ` is called before the agent begins and must answer within 15 seconds: its failure
  fails the start, and ends a sandbox that was made for it; one that cannot be reached is called again. ` + "`error`" + ` tells of a start that failed and of a run
  that its host gave up, ` + "`destroyed`" + ` of a task that has ended, ` + "`file`" + ` of changed files: of those that a host has just read, and at every end of the
  run of all. Each is told at least once, later; ` + "`detail.from`" + ` is the byte of all changes where what is told begins. A hook is told twice where a step is repeated,
  and not where Lambda does not take the call, which is logged.
- The workspace, the policy, tools, file events and secrets with ` + "`from`" + ` need ` + "`sandkeeper-agent`" + ` in the image; without it the start fails
  as ` + "`agent-missing`" + ` where a workspace is set up, else as ` + "`agent-not-started`" + `.
- A workspace is stored only beside a conversation: a start that says ` + "`\"conversation\": \"none\"`" + ` and whose checkpoint policy is not ` + "`none`" + ` is refused.
- ` + "`idleTtlSeconds`" + ` and the hooks are those of the run that used the sandbox last.

## Schema

` + "```json\n")
	b.Write(text)
	b.WriteString("\n```\n")
	return b.Bytes()
}

const sampleDefinition = `{
  "name": "coder", "version": 3,
  "task": {"taskDefinition": "coder:12", "container": "agent", "subnets": ["subnet-1"], "securityGroups": ["sg-1"]},
  "workspace": {
    "root": "/workspace", "source": {"repository": "https://git.example/app.git", "depth": 1, "credential": "GIT_TOKEN"},
    "setup": [{"name": "build", "steps": [{"name": "compile", "run": "make"}]}]
  },
  "secrets": [{"name": "GIT_TOKEN", "from": "arn:aws:secretsmanager:eu-west-1:000000000000:secret:git-AbCdEf"}],
  "policy": {"reach": {"allow": ["*.example"]}, "default": "deny"},
  "tools": [{"name": "lookup", "function": "app-lookup", "inputSchema": {"type": "object"}}],
  "hooks": {"ready": "app-ready"}, "idleTtlSeconds": 900, "checkpoint": "finished"
}
`

// TestDefinitionDocument: the page says what the type is, and its sample is one.
func TestDefinitionDocument(t *testing.T) {
	if _, err := core.ParseDefinition([]byte(sampleDefinition)); err != nil {
		t.Error(err)
	}
	isWritten(t, "../../docs/definition.md", definitionDocument(t))
}
