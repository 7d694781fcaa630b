package gitstate_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/gitstate"
)

// word is a secret.
type word string

func (w word) Redact(data []byte) bool { return bytes.Contains(data, []byte(w)) }
func (w word) Overlap() int            { return len(w) - 1 }

const secret = word("correct-horse-battery")

func TestARepositoryThatHoldsASecretIsNotStored(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 1<<16)
	for name, build := range map[string]func(r repo){
		"in a commit":              func(r repo) { r.commit("b", "x "+string(secret)+" y", "two") },
		"in a former commit":       func(r repo) { r.commit("b", string(secret), "two"); r.commit("b", "", "three") },
		"in a message":             func(r repo) { r.commit("b", "x", "it is "+string(secret)) },
		"in a staged file":         func(r repo) { r.write("b", string(secret)); r.git("add", "b") },
		"in a stash":               func(r repo) { r.write("a", string(secret)); r.git("stash", "push", "-q") },
		"in a stash's name":        func(r repo) { r.write("a", "2"); r.git("stash", "push", "-q", "-m", string(secret)) },
		"in a branch's name":       func(r repo) { r.git("branch", string(secret)) },
		"in the configuration":     func(r repo) { r.git("config", "user.name", string(secret)) },
		"in a file's name":         func(r repo) { r.write(string(secret), ""); r.git("add", "-A") },
		"in what is excluded":      func(r repo) { r.write(".git/info/exclude", string(secret)) },
		"far inside a large file":  func(r repo) { r.commit("b", long+string(secret)+long, "two") },
		"over a border of reading": func(r repo) { r.commit("b", long[:1<<20-10]+string(secret)+long, "two") },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRepo(t, filepath.Join(t.TempDir(), "w"))
			r.commit("a", "1\n", "one")
			build(r)
			in, s := save(t, r, gitstate.Options{Secrets: secret})
			if !s.Empty() || len(s.Skipped) != 1 || s.Skipped[0].Reason != gitstate.HoldsSecret {
				t.Errorf("saved %+v", s)
			}
			entries, _ := os.ReadDir(in)
			if len(entries) != 1 {
				t.Errorf("stored %v", entries)
			}
			nothingHidden(t, in, string(secret))
			if result := restore(t, repo{t, t.TempDir()}, in); result.Restored || result.Code != gitstate.HoldsSecret {
				t.Errorf("restored %+v", result)
			}
			if _, s := save(t, r, gitstate.Options{}); s.Empty() {
				t.Errorf("without secrets: %+v", s)
			}
		})
	}
}

func TestASecretThatTheRemoteHasDoesNotMatter(t *testing.T) {
	r, _ := cloned(t)
	r.commit("b", string(secret), "pushed")
	r.git("update-ref", "refs/remotes/origin/main", "HEAD")
	r.commit("b", "removed", "not pushed")
	if _, s := save(t, r, gitstate.Options{Secrets: secret}); s.Empty() {
		t.Errorf("saved %+v", s)
	}
}

func TestADamagedStateDoesNotKeepOthersFromBeingRestored(t *testing.T) {
	workspace, in := t.TempDir(), t.TempDir()
	for _, name := range []string{"a", "b"} {
		newRepo(t, filepath.Join(workspace, name)).commit("f", name, "one")
	}
	if _, err := gitstate.SaveAll(t.Context(), workspace, in, gitstate.Options{}, nil); err != nil {
		t.Fatal(err)
	}
	entries, _ := os.ReadDir(in)
	if err := os.WriteFile(filepath.Join(in, entries[0].Name(), "state.json"), []byte("\x00\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	fresh := t.TempDir()
	filesAway(t, workspace, fresh)
	results, err := gitstate.RestoreAll(t.Context(), fresh, in, gitstate.Options{})
	if err != nil || len(results) != 2 || results[0].Code != gitstate.Damaged || !results[1].Restored {
		t.Errorf("results %+v, %v", results, err)
	}
}

func TestABrokenIndexComesBackAsThatOfHEAD(t *testing.T) {
	r := newRepo(t, filepath.Join(t.TempDir(), "w"))
	r.commit("a", "1\n", "one")
	r.write("a", "2\n")
	r.write(".git/index", "DIRC broken")
	in, s := save(t, r, gitstate.Options{})
	if s.Empty() || len(s.Skipped) != 1 || s.Skipped[0].What != "index" {
		t.Fatalf("saved %+v", s)
	}
	fresh := repo{t, filepath.Join(t.TempDir(), "w")}
	os.Mkdir(fresh.dir, 0o755)
	filesAway(t, r.dir, fresh.dir)
	if result := restore(t, fresh, in); !result.Restored {
		t.Fatalf("restored %+v", result)
	}
	if got := fresh.git("status", "--porcelain"); got != " M a\n" {
		t.Errorf("status %q", got)
	}
}
