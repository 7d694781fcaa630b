package core_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// wholeDefinition has every member.
const wholeDefinition = `{
	"name": "agent", "version": 3, "task": {"taskDefinition": "family:1", "container": "agent", "subnets": ["subnet-1"]},
	"workspace": {
		"root": "/work", "source": {"repository": "https://git.example/x.git", "ref": "release/1.x", "depth": 1, "directory": "app", "credential": "GIT_TOKEN"},
		"instructions": "Be kind.", "packageManager": "pnpm", "scripts": {"lint": "make lint"},
		"skills": [{"name": "notes", "files": {"SKILL.md": "text", "lib/a.txt": "b"}}, {"name": "shared", "repository": "git@git.example:skills.git", "directory": "x"}],
		"plugins": [{"name": "p", "files": {"plugin.json": "{}"}}],
		"setup": [{"name": "tools", "parallel": true, "steps": [{"name": "one", "run": "echo 1"}, {"name": "two", "run": "echo 2"}]}]
	},
	"secrets": ["API_KEY", {"name": "GIT_TOKEN", "from": "arn:aws:secretsmanager:eu-west-1:000000000000:secret:git-AbCdEf"}],
	"policy": {"commands": {"deny": ["rm -rf /*"]}, "write": {"allow": ["src/**"]}, "reach": {"allow": ["*.example"]}, "default": "deny"},
	"hooks": {"ready": "on-ready", "error": "on-error", "destroyed": "arn:aws:lambda:eu-west-1:000000000000:function:gone:live", "file": "on-file"},
	"fileEvents": {"enabled": true, "exclude": ["*.log"], "maxDiffBytes": 1000},
	"tools": [{"name": "search", "description": "Finds.", "inputSchema": {"type": "object"}, "function": "search-tool", "timeoutSeconds": 9}],
	"idleTtlSeconds": 60, "snapshots": "after-run"
}`

// TestADefinitionIsReadWhole, and written as it was read.
func TestADefinitionIsReadWhole(t *testing.T) {
	d, err := core.ParseDefinition([]byte(wholeDefinition))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var want, got any
	if err := errors.Join(json.Unmarshal([]byte(wholeDefinition), &want), json.Unmarshal(text, &got)); err != nil {
		t.Fatal(err)
	}
	same, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := json.Marshal(got); err != nil || string(again) != string(same) {
		t.Errorf("written as %s, %v, want %s", again, err, same)
	}
}

// TestASecretMovesNoSandbox: the hash covers everything else (IS-3).
func TestASecretMovesNoSandbox(t *testing.T) {
	hash := func(change func(*core.Definition)) string {
		d, err := core.ParseDefinition([]byte(wholeDefinition))
		if err != nil {
			t.Fatal(err)
		}
		change(&d)
		h, err := d.Hash()
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	as := hash(func(*core.Definition) {})
	if hash(func(d *core.Definition) { d.Secrets[1].From += "x" }) != as {
		t.Error("another secret is another sandbox")
	}
	for what, change := range map[string]func(*core.Definition){
		"instructions": func(d *core.Definition) { d.Workspace.Instructions = "x" },
		"a tool":       func(d *core.Definition) { d.Tools[0].Function = "x" },
		"a rule":       func(d *core.Definition) { d.Policy.Write.Deny = []string{"x"} },
		"idle time":    func(d *core.Definition) { d.IdleTTLSeconds = 1 },
	} {
		if hash(change) == as {
			t.Errorf("%s: the same hash", what)
		}
	}
}

// TestDefinitionsThatAreRefused say the member, and what was expected.
func TestDefinitionsThatAreRefused(t *testing.T) {
	for what, c := range map[string]struct{ old, new, says string }{
		"an unknown member":             {`"snapshots"`, `"snapshot"`, "snapshot"},
		"an unknown member of a secret": {`"from"`, `"value"`, "value"},
		"an unknown snapshot policy":    {`"after-run"`, `"often"`, "snapshots"},
		"a password in a URL":           {`https://git`, `https://me:secret@git`, "without a password"},
		"a program as a repository":     {`https://git.example/x.git`, `ext::sh -c x`, "repository"},
		"an option as a repository":     {`git@git.example:skills.git`, `--upload-pack=x`, "repository"},
		"an option as a ref":            {`release/1.x`, `--all`, "ref"},
		"a credential that is none":     {`"credential": "GIT_TOKEN"`, `"credential": "OTHER"`, "credential"},
		"a directory above":             {`"directory": "app"`, `"directory": "../app"`, "directory"},
		"a file above":                  {`lib/a.txt`, `../a.txt`, "files"},
		"a file below a file":           {`lib/a.txt`, `SKILL.md/a.txt`, "below a file"},
		"the whole system":              {`"root": "/work"`, `"root": "/"`, "workspace.root"},
		"a skill with both":             {`"name": "shared",`, `"name": "shared", "files": {"a": "b"},`, "either files or a repository"},
		"a skill twice":                 {`"name": "shared"`, `"name": "notes"`, "once"},
		"an unknown manager":            {`"pnpm"`, `"make"`, "packageManager"},
		"a step without a command":      {`"echo 1"`, `" "`, "setup"},
		"a step twice":                  {`"two"`, `"one"`, "once"},
		"a secret from nowhere":         {`arn:aws:secretsmanager:`, `arn:aws:s3:`, "from"},
		"a secret of ours":              {`{"name": "GIT_TOKEN"`, `{"name": "SANDKEEPER_X"`, "SANDKEEPER_"},
		"a secret twice":                {`"API_KEY"`, `"GIT_TOKEN"`, "once"},
		"an unknown verdict":            {`"default": "deny"`, `"default": "ask"`, "policy.default"},
		"an empty glob":                 {`"src/**"`, `""`, "policy.write.allow"},
		"a hook that is no function":    {`"on-ready"`, `"https://x"`, "hooks.ready"},
		"a diff of many bytes":          {`"maxDiffBytes": 1000`, `"maxDiffBytes": 100000000`, "maxDiffBytes"},
		"a tool's name":                 {`"name": "search"`, `"name": "se arch"`, "tools"},
		"a schema that is no object":    {`{"type": "object"}`, `[1]`, "inputSchema"},
		"a tool without a function":     {`"function": "search-tool"`, `"function": ""`, "function"},
		"a tool's time":                 {`"timeoutSeconds": 9`, `"timeoutSeconds": 9000`, "timeoutSeconds"},
		"a negative idle time":          {`"idleTtlSeconds": 60`, `"idleTtlSeconds": -1`, "idleTtlSeconds"},
	} {
		t.Run(what, func(t *testing.T) {
			text := strings.Replace(wholeDefinition, c.old, c.new, 1)
			if text == wholeDefinition {
				t.Fatalf("the definition has no %s", c.old)
			}
			_, err := core.ParseDefinition([]byte(text))
			if e, ok := errors.AsType[*core.InvalidError](err); !ok || e.Code != "invalid-definition" || !strings.Contains(e.Detail, c.says) {
				t.Errorf("%v, want invalid-definition that says %q", err, c.says)
			}
		})
	}
}

// FuzzParseDefinition: whatever is accepted is written and read as itself.
func FuzzParseDefinition(f *testing.F) {
	f.Add([]byte(wholeDefinition))
	f.Add([]byte(`{"secrets":[{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := core.ParseDefinition(data)
		if err != nil {
			return
		}
		text, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		again, err := core.ParseDefinition(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		one, err := d.Hash()
		if err != nil {
			t.Fatal(err)
		}
		if two, err := again.Hash(); err != nil || one != two {
			t.Errorf("%s: hash %s, then %s, %v", text, one, two, err)
		}
	})
}
