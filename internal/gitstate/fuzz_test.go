package gitstate_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/gitstate"
)

// FuzzReadState: whatever is read as a state names nothing out of its repository, no
// program and no credential.
func FuzzReadState(f *testing.F) {
	id := strings.Repeat("0123456789", 4)
	for _, s := range []gitstate.State{
		{Version: 1, Path: ".", Skipped: []gitstate.Skipped{{What: "repository", Reason: gitstate.GitMissing}}},
		{
			Version: 1, Path: "a/b", Link: "../../.git/modules/b", ObjectFormat: "sha1", Head: "ref: refs/heads/main",
			Refs: []gitstate.Ref{{Name: "refs/heads/main", ID: id}, {Name: "refs/stash", ID: id}}, Tracking: []gitstate.Ref{{Name: "refs/remotes/origin/main", ID: id}},
			Config:  []gitstate.Setting{{Key: "remote.origin.url", Value: "git@example.com:a/b.git"}, {Key: "branch.a b.merge", Value: "refs/heads/x"}},
			Shallow: []string{id}, Prerequisites: []string{id}, Bundle: 10,
			Files:     []gitstate.File{{Name: "index", Size: 10}, {Name: "worktrees/w/rebase-merge/done"}, {Name: "logs/refs/stash"}},
			Worktrees: []gitstate.Worktree{{Name: "w", Path: "../w", Inside: true, Head: id}, {Name: "x", Path: "/x", Head: "ref: refs/heads/y", Locked: true}},
		},
	} {
		data, err := json.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"version":1,"path":"../x"}`))
	f.Add([]byte(`{"version":1,"path":".","objectFormat":"sha1","head":"ref: refs/heads/../../config"}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, "state.json"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := gitstate.ReadState(dir)
		if err != nil {
			return
		}
		if s.Path != "." && !filepath.IsLocal(s.Path) {
			t.Errorf("path %q", s.Path)
		}
		if s.Empty() {
			return // nothing of it is restored
		}
		for _, ref := range s.Refs {
			if !strings.HasPrefix(ref.Name, "refs/") || strings.ContainsAny(ref.Name+ref.ID, " \n") || !filepath.IsLocal(ref.Name) {
				t.Errorf("ref %q %q", ref.Name, ref.ID)
			}
		}
		for _, file := range s.Files {
			if !filepath.IsLocal(file.Name) || strings.Contains(file.Name, "config") || strings.Contains(file.Name, "hooks") {
				t.Errorf("file %q", file.Name)
			}
		}
		for _, set := range s.Config {
			if strings.Contains(set.Key, "\n") || strings.HasPrefix(set.Value, "ext::") || strings.HasPrefix(set.Key, "filter.") || set.Key == "core.fsmonitor" {
				t.Errorf("setting %q %q", set.Key, set.Value)
			}
		}
	})
}
