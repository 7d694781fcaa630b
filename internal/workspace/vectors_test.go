package workspace_test

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
)

// vectorCase is one result of the original that this package is held against.
type vectorCase struct {
	Name  string
	Input json.RawMessage
	Want  json.RawMessage
	Quirk string // why the original's result need not be matched
}

// vectorsDecidedOtherwise lists cases that must differ, by file and name, with the
// reason.
var vectorsDecidedOtherwise = map[string]map[string]string{
	"capture": {
		"no lstat":                  "the engine runs in the sandbox and always has lstat",
		"list name dot dot":         "names come from the kernel, which lists no such name as an entry",
		"list name empty":           "names come from the kernel, which lists no such name as an entry",
		"lstat error propagates":    "the kernel's lstat of a listed name cannot be made to fail for root alone; unreadable entries are skipped with the reason, and strict ones refused, in TestUnreadableEntriesAreSkipped",
		"blob put error propagates": "a failing store is tested with packs, in TestCutCaptureSendsNoPackTwice",
	},
	"restore": {
		"lstat error":                            "the kernel's lstat of a listed name cannot be made to fail for root alone",
		"artifact blob key for a file":           "entries name no keys: packs are named by fence and digest",
		"structure before blobs":                 "entries name no keys: packs are named by fence and digest",
		"wrong size on the second use of a blob": "a frame has one size in a manifest: another one is refused before any content is read",
	},
	"restore_plan": {
		"random 10": "a directory wanted in the place of a protected file is refused; the original fails half-way",
	},
}

// forEachVector runs check on each case of a file and fails where a difference is
// neither a quirk nor listed, and where a listed case has none.
func forEachVector(t *testing.T, file string, check func(t *testing.T, c vectorCase) error) {
	t.Helper()
	dir := cmp.Or(os.Getenv("SANDKEEPER_VECTORS"), filepath.Join("..", "..", "..", "shared", "vectors"))
	data, err := os.ReadFile(filepath.Join(dir, file+".json"))
	if err != nil && os.Getenv("CI") == "" {
		t.Skipf("read vectors: %v", err)
	}
	var content struct{ Cases []vectorCase }
	if err := errors.Join(err, json.Unmarshal(data, &content)); err != nil || len(content.Cases) == 0 {
		t.Fatalf("read vectors %s: %d cases, %v", file, len(content.Cases), err)
	}
	compared, listed, quirks := 0, 0, 0
	for _, c := range content.Cases {
		reason := vectorsDecidedOtherwise[file][c.Name]
		t.Run(c.Name, func(t *testing.T) {
			switch difference := check(t, c); {
			case reason != "" && difference == nil:
				t.Errorf("listed as decided otherwise (%s), but the result is the original's", reason)
			case reason != "":
				listed++
			case difference == nil:
				compared++
			case c.Quirk != "":
				quirks++
				t.Logf("differs from a quirk of the original (%s): %v", c.Quirk, difference)
			default:
				t.Errorf("%v\ninput %.1500s\nwant %.1500s", difference, c.Input, c.Want)
			}
		})
	}
	t.Logf("vectors %s: %d compared, %d listed as decided otherwise, %d quirks that differ", file, compared, listed, quirks)
}

func (c vectorCase) decode(t *testing.T, input, want any) {
	t.Helper()
	must(t, json.Unmarshal(c.Input, input), json.Unmarshal(c.Want, want))
}

func compare(what string, got, want any) error {
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("%s is %v, want %v", what, got, want)
	}
	return nil
}

// originals are the original's codes, for those of ours that it has.
var originals = map[workspace.Code]string{
	workspace.CodeInvalidWorkspace: "SANDBOX_SNAPSHOT_INVALID_WORKSPACE",
	workspace.CodeUnsupportedEntry: "SANDBOX_SNAPSHOT_UNSUPPORTED_ENTRY",
	workspace.CodeInvalidPath:      "SANDBOX_SNAPSHOT_INVALID_PATH",
	workspace.CodeMissingBlob:      "SANDBOX_SNAPSHOT_MISSING_BLOB",
	workspace.CodeInvalidBlob:      "SANDBOX_SNAPSHOT_INVALID_BLOB",
}

// originalCode is the original's code of an error, ioError for one without.
func originalCode(err error) string {
	if e, ok := errors.AsType[*workspace.Error](err); ok {
		if e.Code == workspace.CodeInvalidManifest {
			return originals[workspace.CodeInvalidPath] // what is wrong with a manifest has one code there
		}
		return cmp.Or(originals[e.Code], string(e.Code))
	}
	if err != nil {
		return "ioError"
	}
	return ""
}

func TestVectorsOfPaths(t *testing.T) {
	forEachVector(t, "snapshot_path", func(t *testing.T, c vectorCase) error {
		var input struct{ Path string }
		var want struct {
			OK   bool
			Code string
		}
		c.decode(t, &input, &want)
		return compare("ok", manifest.CheckPath(input.Path) == nil, want.OK)
	})
}

// ourMarker turns the original's projection marker into ours.
func ourMarker(path string) string {
	return strings.ReplaceAll(path, ".tanstack-projected-", workspace.MarkerPrefix)
}

func TestVectorsOfDefaultExclusions(t *testing.T) {
	forEachVector(t, "default_exclusions", func(t *testing.T, c vectorCase) error {
		var input struct{ Path, WorkspaceHash string }
		var want struct{ Excluded bool }
		c.decode(t, &input, &want)
		policy, err := workspace.NewPolicy(manifest.Policy{WorkspaceHash: input.WorkspaceHash})
		must(t, err)
		return compare("excluded", policy.Excludes(ourMarker(input.Path), manifest.File), want.Excluded)
	})
}

func TestVectorsOfRedaction(t *testing.T) {
	forEachVector(t, "redaction", func(t *testing.T, c vectorCase) error {
		var input struct {
			Base64  []byte
			Secrets map[string]string
		}
		var want struct{ Base64 []byte }
		c.decode(t, &input, &want)
		redactor, err := workspace.NewRedactor(secretsOf(input.Secrets), nil)
		must(t, err)
		redactor.Redact(input.Base64)
		return compare("redacted", base64.StdEncoding.EncodeToString(input.Base64), base64.StdEncoding.EncodeToString(want.Base64))
	})
}

func secretsOf(values map[string]string) []workspace.Secret {
	var secrets []workspace.Secret
	for name, value := range values {
		secrets = append(secrets, workspace.Secret{Name: name, Value: value})
	}
	return secrets
}

// vectorPolicy is the policy language of the vectors.
type vectorPolicy struct {
	WorkspaceHash    string
	Include, Exclude *vectorRule
	RedactUpper      bool
}

type vectorRule struct {
	Kinds                               []string
	All, Dirs, PlusDefaults             bool
	Exact, Prefixes, Suffixes, Segments []string
}

func (r *vectorRule) rules() []manifest.Rule {
	if r == nil {
		return nil
	}
	rule := manifest.Rule{All: r.All, Dirs: r.Dirs, Exact: r.Exact, Prefixes: r.Prefixes, Suffixes: r.Suffixes, Segments: r.Segments}
	for _, kind := range r.Kinds {
		rule.Kinds = append(rule.Kinds, map[string]manifest.Kind{"file": manifest.File, "dir": manifest.Dir}[kind])
	}
	return []manifest.Rule{rule}
}

// policy is strict: the original always is.
func (p vectorPolicy) policy() manifest.Policy {
	return manifest.Policy{
		WorkspaceHash: p.WorkspaceHash, Include: p.Include.rules(), Exclude: p.Exclude.rules(),
		Defaults: p.Exclude == nil || p.Exclude.PlusDefaults, Strict: true,
	}
}

type vectorNode struct {
	Type   string
	Mode   *uint32
	Text   *string
	Base64 []byte
}

// vectorWorld makes the tree of a case and returns its root.
func vectorWorld(t *testing.T, tree map[string]vectorNode, rootType string, noRoot bool) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	if noRoot {
		return root
	}
	switch rootType {
	case "file":
		must(t, os.WriteFile(root, nil, 0o600))
		return root
	case "symlink":
		must(t, os.Symlink(t.TempDir(), root))
		return root
	}
	must(t, os.Mkdir(root, 0o755))
	for name, n := range tree {
		path := filepath.Join(root, ourMarker(name))
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		switch n.Type {
		case "dir":
			must(t, os.MkdirAll(path, 0o755))
		case "symlink":
			must(t, os.Symlink("target", path))
		case "other":
			must(t, unix.Mkfifo(path, 0o600))
		default:
			text := string(n.Base64)
			if n.Text != nil {
				text = *n.Text
			}
			mode := uint32(0o644)
			if n.Mode != nil {
				mode = *n.Mode
			}
			must(t, os.WriteFile(path, []byte(text), 0o600), unix.Chmod(path, mode))
		}
	}
	return root
}

func TestVectorsOfCapture(t *testing.T) {
	forEachVector(t, "capture", func(t *testing.T, c vectorCase) error {
		var input struct {
			Tree    map[string]vectorNode
			Policy  vectorPolicy
			Secrets map[string]string
			FS      struct {
				RootType string
				NoRoot   bool
			}
		}
		var want struct {
			Files []struct {
				Path, Kind, BlobKey string
				Size                int64
			}
			Blobs map[string][]byte
			Code  string
		}
		c.decode(t, &input, &want)
		if input.Policy.RedactUpper {
			t.Skip("redaction by a caller's function has no counterpart: it cannot reach into the sandbox")
		}
		root := vectorWorld(t, input.Tree, input.FS.RootType, input.FS.NoRoot)
		store := newStore(t)
		result, err := workspace.Capture(t.Context(), workspace.CaptureOptions{
			Root: root, Store: store, ID: "c", Policy: input.Policy.policy(), Secrets: secretsOf(input.Secrets),
		})
		if want.Code != "" || err != nil {
			return compare("code", originalCode(err), want.Code)
		}
		got := originalFiles(t, store, result.Root)
		expected := map[string]string{}
		for _, f := range want.Files {
			expected[ourMarker(f.Path)] = f.Kind + " " + string(want.Blobs[f.BlobKey])
		}
		return compare("files", got, expected)
	})
}

// originalFiles is a checkpoint as the original stores it: files with content, and
// directories in which nothing is stored.
func originalFiles(t *testing.T, store workspace.Store, root manifest.Root) map[string]string {
	t.Helper()
	to := t.TempDir()
	restoreTo(t, store, root, to)
	files := map[string]string{}
	tree := snapshot(t, to)
	for name, n := range tree {
		switch {
		case n.mode.IsRegular():
			files[name] = "file " + n.text
		case !slices.ContainsFunc(sortedNames(tree), func(other string) bool { return strings.HasPrefix(other, name+"/") }):
			files[name] = "dir "
		}
	}
	return files
}

func sortedNames(tree map[string]node) []string {
	var names []string
	for name := range tree {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
