package gitstate_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/gitstate"
)

// failer is what helpers need of a test or of a drawn case.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// repo is a real repository of a test, at dir.
type repo struct {
	t   failer
	dir string
}

func needGit(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("run git: not on this machine")
		}
		t.Skip("run git: not on this machine")
	}
}

func newRepo(t testing.TB, dir string) repo {
	t.Helper()
	needGit(t)
	r := repo{t, dir}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r.git("init", "-q", "-b", "main")
	return r
}

// command runs git as a user would: with the repository's own configuration.
func (r repo) command(args ...string) *exec.Cmd {
	cmd := exec.Command("git", args...)
	cmd.Dir = r.dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=c", "GIT_COMMITTER_EMAIL=c@example.com", "GIT_EDITOR=true",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=protocol.file.allow", "GIT_CONFIG_VALUE_0=always",
	}
	return cmd
}

func (r repo) git(args ...string) string {
	r.t.Helper()
	out, err := r.command(args...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %q in %s: %v: %s", args, r.dir, err, out)
	}
	return string(out)
}

// try is git whose failure is part of the case, as a merge with conflicts.
func (r repo) try(args ...string) string {
	out, err := r.command(args...).CombinedOutput()
	return fmt.Sprint(string(out), err)
}

func (r repo) write(name, text string) {
	r.t.Helper()
	full := filepath.Join(r.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(full), 0o755), os.WriteFile(full, []byte(text), 0o644)); err != nil {
		r.t.Fatalf("write %s: %v", name, err)
	}
}

func (r repo) commit(name, text, message string) string {
	r.t.Helper()
	r.write(name, text)
	r.git("add", "-A")
	r.git("commit", "-q", "-m", message)
	return strings.TrimSpace(r.git("rev-parse", "HEAD"))
}

// picture is what a user sees of a repository, as text.
func (r repo) picture() string {
	var b strings.Builder
	for _, args := range [][]string{
		{"status", "--porcelain=v2", "--branch", "--show-stash", "--ignored"},
		{"symbolic-ref", "-q", "HEAD"},
		{"rev-parse", "-q", "--verify", "HEAD"},
		{"for-each-ref", "--format=%(refname) %(objectname) %(upstream) %(contents:subject)", "refs/heads", "refs/tags", "refs/stash", "refs/notes"},
		{"stash", "list", "--format=%gd %H %gs %ct"},
		{"ls-files", "-s", "-t", "-f"},
		{"diff", "--cached"},
		{"diff"},
		{"log", "--all", "--format=%H %P"},
		{"worktree", "list", "--porcelain"},
		{"sparse-checkout", "list"},
		{"config", "--get-regexp", `^(branch|remote|user)\.`},
	} {
		fmt.Fprintf(&b, "$ git %s\n%s\n", strings.Join(args, " "), r.try(args...))
	}
	return b.String()
}

// filesAway copies the working tree at from, without any .git, to the new directory to,
// as the capture and restore of the files do.
func filesAway(t failer, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(from, name)
		if e.Name() == ".git" {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		target := filepath.Join(to, rel)
		if e.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		if e.Type() == fs.ModeSymlink {
			link, err := os.Readlink(name)
			return errors.Join(err, os.RemoveAll(target), os.Symlink(link, target))
		}
		data, err := os.ReadFile(name)
		info, _ := e.Info()
		os.Remove(target)
		return errors.Join(err, os.WriteFile(target, data, info.Mode().Perm()), os.Chtimes(target, info.ModTime(), info.ModTime()))
	})
	if err != nil {
		t.Fatalf("copy %s: %v", from, err)
	}
}

func save(t testing.TB, r repo, o gitstate.Options) (string, gitstate.State) {
	t.Helper()
	out := t.TempDir()
	s, err := gitstate.Save(t.Context(), r.dir, out, o)
	if err != nil {
		t.Fatal(err)
	}
	return out, s
}

func restore(t testing.TB, r repo, in string) gitstate.Result {
	t.Helper()
	result, err := gitstate.Restore(t.Context(), r.dir, in, gitstate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// moved saves r, moves its place away and restores into the same place, so that
// absolute paths stay what they were; prepare may put a clone there before.
func moved(t testing.TB, r repo, prepare func(r repo)) (before, after string, result gitstate.Result) {
	t.Helper()
	before = r.picture()
	in, s := save(t, r, gitstate.Options{})
	if s.Empty() {
		t.Fatalf("nothing was saved: %+v", s)
	}
	old := r.dir + ".old"
	if err := os.Rename(r.dir, old); err != nil {
		t.Fatal(err)
	}
	if prepare != nil {
		prepare(r)
	}
	filesAway(t, old, r.dir)
	result = restore(t, r, in)
	if fsck := r.try("fsck", "--connectivity-only"); strings.Contains(fsck, "missing") || strings.Contains(fsck, "broken") || strings.Contains(fsck, "error") {
		t.Errorf("fsck after the restore: %s", fsck)
	}
	return before, r.picture(), result
}

func wantSame(t testing.TB, before, after string) {
	t.Helper()
	if before == after {
		return
	}
	b, a := strings.Split(before, "\n"), strings.Split(after, "\n")
	for _, line := range b {
		if !slices.Contains(a, line) {
			t.Errorf("only before: %q", line)
		}
	}
	for _, line := range a {
		if !slices.Contains(b, line) {
			t.Errorf("only after: %q", line)
		}
	}
	t.Errorf("the repository differs")
}

// locals are repositories without a remote, each in a state of its own.
var locals = map[string]func(t testing.TB, r repo){
	"an unborn branch": func(_ testing.TB, r repo) { r.git("symbolic-ref", "HEAD", "refs/heads/new/line") },
	"an unborn branch with staged files": func(_ testing.TB, r repo) {
		r.write("a", "1")
		r.git("add", "a")
		r.write("a", "2")
		r.write("b", "3")
	},
	"staged and unstaged edits of one file": func(_ testing.TB, r repo) {
		r.commit("a", "1\n", "one")
		r.write("a", "2\n")
		r.git("add", "a")
		r.write("a", "3\n")
		r.write("new", "x")
	},
	"an announced file and a removed one": func(_ testing.TB, r repo) {
		r.commit("a", "1\n", "one")
		r.commit("b", "1\n", "two")
		r.write("c", "c\n")
		r.git("add", "-N", "c")
		r.git("rm", "-q", "--cached", "b")
	},
	"a detached head no branch leads to": func(_ testing.TB, r repo) {
		r.commit("a", "1\n", "one")
		r.git("checkout", "-q", "--detach")
		r.commit("a", "2\n", "two")
	},
	"several stash entries, one with untracked files": func(_ testing.TB, r repo) {
		r.commit("a", "1\n", "one")
		for i := range 3 {
			r.write("a", fmt.Sprint("stash ", i))
			r.write("untracked", fmt.Sprint(i))
			r.git("stash", "push", "-q", "-u", "-m", fmt.Sprintf("entry %d", i))
		}
	},
	"branches, tags and notes": func(_ testing.TB, r repo) {
		r.commit("a", "1\n", "one")
		r.git("branch", "feature/x")
		r.git("tag", "light")
		r.git("tag", "-a", "-m", "a tag", "v1")
		r.git("notes", "add", "-m", "a note")
		r.git("config", "branch.feature/x.description", "what\nit is for")
	},
	"a merge with conflicts": func(_ testing.TB, r repo) {
		r.commit("a", "1\n", "one")
		r.git("checkout", "-q", "-b", "other")
		r.commit("a", "other\n", "two")
		r.git("checkout", "-q", "main")
		r.commit("a", "main\n", "three")
		r.try("merge", "other")
	},
	"a cherry-pick with conflicts": func(_ testing.TB, r repo) {
		r.commit("a", "1\n", "one")
		r.git("checkout", "-q", "-b", "other")
		r.commit("a", "other\n", "two")
		r.git("checkout", "-q", "main")
		r.commit("a", "main\n", "three")
		r.try("cherry-pick", "other")
	},
	"a rebase that stopped": func(_ testing.TB, r repo) {
		r.commit("a", "1\n", "one")
		r.git("checkout", "-q", "-b", "other")
		r.commit("b", "b\n", "b")
		r.commit("a", "other\n", "two")
		r.git("checkout", "-q", "main")
		r.commit("a", "main\n", "three")
		r.git("checkout", "-q", "other")
		r.try("rebase", "main")
	},
	"a split index": func(_ testing.TB, r repo) {
		r.commit("a", "1\n", "one")
		r.git("update-index", "--split-index")
		r.write("b", "2")
		r.git("add", "b")
	},
	"ignored files by the repository's own rules": func(_ testing.TB, r repo) {
		r.commit("a", "1\n", "one")
		r.write(".git/info/exclude", "*.log\n")
		r.write("x.log", "x")
	},
	"names that need quoting": func(_ testing.TB, r repo) {
		r.commit("a b/ünï\ncode", "1\n", "ünï")
		r.git("branch", "zwei-ü")
		r.write("a b/ünï\ncode", "2\n")
		r.git("add", "-A")
	},
	"a sparse checkout": func(_ testing.TB, r repo) {
		r.commit("in/a", "1\n", "one")
		r.commit("out/b", "2\n", "two")
		r.git("sparse-checkout", "set", "in")
	},
	"packed refs and packed objects": func(_ testing.TB, r repo) {
		for i := range 5 {
			r.commit("a", fmt.Sprint(i), fmt.Sprint("commit ", i))
			r.git("branch", fmt.Sprint("b", i))
		}
		r.git("gc", "-q")
		r.commit("a", "loose", "loose")
	},
}

func TestARepositoryWithoutARemoteComesBack(t *testing.T) {
	for name, build := range locals {
		t.Run(name, func(t *testing.T) {
			r := newRepo(t, filepath.Join(t.TempDir(), "w"))
			build(t, r)
			before, after, result := moved(t, r, nil)
			if !result.Restored || result.Cloned || len(result.Skipped) > 0 {
				t.Errorf("result %+v", result)
			}
			wantSame(t, before, after)
		})
	}
}

// cloned makes a remote with some history and a clone of it, whose URL then is one
// that leads out of the sandbox.
func cloned(t testing.TB, args ...string) (r repo, remote string) {
	t.Helper()
	base := t.TempDir()
	seed := newRepo(t, filepath.Join(base, "remote"))
	for i := range 5 {
		seed.commit("f", fmt.Sprint("line ", i, "\n"), fmt.Sprint("remote ", i))
	}
	seed.git("branch", "feature")
	seed.git("tag", "-a", "-m", "one", "v1")
	r = repo{t, filepath.Join(base, "w")}
	clone(r, seed.dir, args...)
	return r, seed.dir
}

const elsewhere = "https://example.com/team/project.git"

func clone(r repo, remote string, args ...string) {
	r.t.Helper()
	parent := repo{r.t, filepath.Dir(r.dir)}
	parent.git(append(append([]string{"clone", "-q"}, args...), "file://"+remote, r.dir)...)
	r.git("remote", "set-url", "origin", elsewhere)
}

var clones = map[string]func(t testing.TB, r repo){
	"nothing changed": func(testing.TB, repo) {},
	"commits that were not pushed": func(_ testing.TB, r repo) {
		r.commit("f", "mine\n", "mine")
		r.commit("g", "more\n", "more")
	},
	"a branch that was removed and another with an upstream": func(_ testing.TB, r repo) {
		r.git("checkout", "-q", "-b", "work", "--track", "origin/feature")
		r.git("branch", "-D", "main")
		r.commit("g", "1", "on it")
	},
	"a branch behind its upstream": func(_ testing.TB, r repo) { r.git("reset", "-q", "--hard", "HEAD~2") },
	"a stash and staged edits on a remote commit": func(_ testing.TB, r repo) {
		r.write("f", "stashed")
		r.git("stash", "push", "-q")
		r.write("f", "staged")
		r.git("add", "f")
		r.write("f", "not staged")
	},
	"a detached head on a remote commit": func(_ testing.TB, r repo) { r.git("checkout", "-q", "HEAD~1") },
	"two remotes": func(_ testing.TB, r repo) {
		r.git("remote", "add", "fork", "git@example.com:me/project.git")
		r.commit("h", "h", "for the fork")
		r.git("config", "branch.main.pushRemote", "fork")
	},
	"a new orphan branch": func(_ testing.TB, r repo) {
		r.git("checkout", "-q", "--orphan", "fresh")
		r.write("f", "other")
		r.git("add", "-A")
	},
}

func TestACloneOfTheRemoteBecomesWhatItWas(t *testing.T) {
	for name, change := range clones {
		for mode, args := range map[string][]string{"whole": nil, "shallow": {"--depth=2"}} {
			t.Run(name+", "+mode, func(t *testing.T) {
				r, remote := cloned(t, args...)
				if mode == "shallow" && name == "a branch that was removed and another with an upstream" {
					t.Skip("a shallow clone has one branch only")
				}
				if mode == "shallow" && name == "a branch behind its upstream" {
					t.Skip("a clone of depth 2 has no commit two behind")
				}
				change(t, r)
				before, after, result := moved(t, r, func(r repo) { clone(r, remote, args...) })
				if !result.Restored || !result.Cloned || len(result.Skipped) > 0 {
					t.Errorf("result %+v", result)
				}
				wantSame(t, before, after)
			})
		}
	}
}

func TestACloneThatMovedOnKeepsItsNewerRemoteRefs(t *testing.T) {
	for mode, args := range map[string][]string{"whole": nil, "shallow": {"--depth=1"}} {
		t.Run(mode, func(t *testing.T) {
			r, remote := cloned(t, args...)
			r.commit("mine", "1", "mine")
			head, status := r.git("rev-parse", "HEAD"), r.git("status", "--porcelain")
			var newer string
			_, _, result := moved(t, r, func(r repo) {
				newer = repo{t, remote}.commit("f", "moved on\n", "moved on")
				clone(r, remote, args...)
			})
			if !result.Restored {
				t.Fatalf("result %+v", result)
			}
			if got := r.git("rev-parse", "HEAD"); got != head || r.git("status", "--porcelain") != status {
				t.Errorf("HEAD %s, status %q, want %s, %q", got, r.git("status", "--porcelain"), head, status)
			}
			if got := strings.TrimSpace(r.git("rev-parse", "origin/main")); got != newer {
				t.Errorf("origin/main %s, want %s", got, newer)
			}
		})
	}
}

func TestWithoutACloneItSaysWhatOnlyTheRemoteHas(t *testing.T) {
	r, remote := cloned(t)
	r.commit("mine", "1", "mine")
	r.write("mine", "2")
	before := r.picture()
	base := strings.TrimSpace(r.git("rev-parse", "HEAD~1"))
	in, s := save(t, r, gitstate.Options{})
	if !slices.Equal(s.Prerequisites, []string{base}) {
		t.Errorf("prerequisites %v, want %s", s.Prerequisites, base)
	}
	old := r.dir + ".old"
	os.Rename(r.dir, old)
	filesAway(t, old, r.dir)
	result := restore(t, r, in)
	if result.Restored || result.Code != gitstate.ObjectsMissing || !slices.Equal(result.Missing, []string{base}) {
		t.Fatalf("result %+v", result)
	}
	if got := strings.TrimSpace(r.git("remote", "get-url", "origin")); got != elsewhere {
		t.Errorf("remote %q, want %q", got, elsewhere)
	}
	r.git("fetch", "-q", "file://"+remote, "+refs/heads/*:refs/remotes/origin/*")
	if result := restore(t, r, in); !result.Restored {
		t.Fatalf("after the fetch: %+v", result)
	}
	wantSame(t, before, r.picture())
}

func TestTheBundleHoldsOnlyWhatWasNotPushed(t *testing.T) {
	r, _ := cloned(t)
	blob := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for i := range blob {
		blob[i] ^= byte(sha256.Sum256([]byte{byte(i), byte(i >> 8), byte(i >> 16)})[0])
	}
	r.commit("big", string(blob), "pushed")
	r.git("update-ref", "refs/remotes/origin/main", "HEAD")
	r.commit("small", "1", "not pushed")
	if _, s := save(t, r, gitstate.Options{}); s.Bundle == 0 || s.Bundle > 4096 {
		t.Errorf("bundle of %d bytes", s.Bundle)
	}
	if _, s := save(t, r, gitstate.Options{Remote: "nosuch"}); s.Bundle < 1<<19 {
		t.Errorf("bundle of %d bytes for a clone of another remote", s.Bundle)
	}
	if _, s := save(t, r, gitstate.Options{Remote: "nosuch", MaxBytes: 1 << 16}); !s.Empty() || s.Skipped[len(s.Skipped)-1].Reason != gitstate.TooLarge {
		t.Errorf("state over the limit: %+v", s.Skipped)
	}
}

func TestSavingTwiceGivesTheSameBytes(t *testing.T) {
	r := newRepo(t, filepath.Join(t.TempDir(), "w"))
	locals["several stash entries, one with untracked files"](t, r)
	r.commit("b", "1", "two")
	r.git("tag", "-a", "-m", "a tag", "v1")
	r.write("staged", "1")
	r.git("add", "staged")
	a, _ := save(t, r, gitstate.Options{})
	b, _ := save(t, r, gitstate.Options{})
	if err := sameTree(a, b); err != nil {
		t.Error(err)
	}
}

func sameTree(a, b string) error {
	return filepath.WalkDir(a, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(a, name)
		x, _ := os.ReadFile(name)
		y, err := os.ReadFile(filepath.Join(b, rel))
		if err != nil || !bytes.Equal(x, y) {
			return fmt.Errorf("%s differs: %v", rel, err)
		}
		return nil
	})
}

func TestLinkedWorktreesComeBackWithTheirRepository(t *testing.T) {
	workspace := t.TempDir()
	r := newRepo(t, filepath.Join(workspace, "main"))
	r.commit("a", "1\n", "one")
	r.git("worktree", "add", "-q", "-b", "side", "../side")
	r.git("worktree", "add", "-q", "--detach", "../loose")
	side, loose := repo{t, filepath.Join(workspace, "side")}, repo{t, filepath.Join(workspace, "loose")}
	side.write("a", "staged\n")
	side.git("add", "a")
	side.write("a", "not staged\n")
	loose.commit("b", "2", "only here")
	r.git("worktree", "lock", "../loose")
	pictures := func() string { return r.picture() + side.picture() + loose.picture() }
	before := pictures()
	in, out := t.TempDir(), workspace+".old"
	states, err := gitstate.SaveAll(t.Context(), workspace, in, gitstate.Options{}, nil)
	if err != nil || len(states) != 1 || len(states[0].Worktrees) != 2 {
		t.Fatalf("states %+v, %v", states, err)
	}
	if err := os.Rename(workspace, out); err != nil {
		t.Fatal(err)
	}
	filesAway(t, out, workspace)
	results, err := gitstate.RestoreAll(t.Context(), workspace, in, gitstate.Options{})
	if err != nil || len(results) != 1 || !results[0].Restored {
		t.Fatalf("results %+v, %v", results, err)
	}
	wantSame(t, before, pictures())
}

func TestNestedRepositoriesAndSubmodulesComeBack(t *testing.T) {
	base := t.TempDir()
	library := newRepo(t, filepath.Join(base, "library"))
	library.commit("l", "1", "library")
	workspace := filepath.Join(base, "w")
	r := newRepo(t, workspace)
	r.commit("a", "1", "one")
	r.git("submodule", "--quiet", "add", "file://"+library.dir, "deps/lib")
	r.git("commit", "-q", "-m", "with a submodule")
	sub := repo{t, filepath.Join(workspace, "deps/lib")}
	sub.commit("l", "2", "changed inside")
	nested := newRepo(t, filepath.Join(workspace, "tools/-x"))
	nested.commit("n", "1", "nested")
	nested.write("n", "2")
	pictures := func() string { return r.picture() + r.git("submodule", "status") + sub.picture() + nested.picture() }
	before := pictures()
	in, old := t.TempDir(), workspace+".old"
	states, err := gitstate.SaveAll(t.Context(), workspace, in, gitstate.Options{}, nil)
	if err != nil || len(states) != 3 || states[0].Path != "." || states[1].Path != "deps/lib" || states[1].Link != "../../.git/modules/deps/lib" {
		t.Fatalf("states %+v, %v", states, err)
	}
	if err := os.Rename(workspace, old); err != nil {
		t.Fatal(err)
	}
	filesAway(t, old, workspace)
	results, err := gitstate.RestoreAll(t.Context(), workspace, in, gitstate.Options{})
	if err != nil || len(results) != 3 {
		t.Fatalf("results %+v, %v", results, err)
	}
	for _, result := range results {
		if !result.Restored {
			t.Errorf("result %+v", result)
		}
	}
	wantSame(t, before, pictures())
}

func TestWithoutGitItIsSaid(t *testing.T) {
	for name, build := range map[string]func(git string) error{
		"a directory that is none":  func(git string) error { return os.Mkdir(git, 0o700) },
		"a link that leads nowhere": func(git string) error { return os.WriteFile(git, []byte("gitdir: nowhere\n"), 0o600) },
		"a link to nothing":         func(git string) error { return os.Symlink("/nonexistent/git", git) },
		"a FIFO":                    func(git string) error { return syscall.Mkfifo(git, 0o600) },
	} {
		dir := t.TempDir()
		if err := build(filepath.Join(dir, ".git")); err != nil {
			t.Fatal(err)
		}
		out, s := save(t, repo{t, dir}, gitstate.Options{})
		if !s.Empty() || len(s.Skipped) != 1 || s.Skipped[0].Reason != gitstate.NotARepository {
			t.Errorf("%s: %+v", name, s)
		}
		if result := restore(t, repo{t, t.TempDir()}, out); result.Restored || result.Code != gitstate.NotARepository {
			t.Errorf("%s: restored %+v", name, result)
		}
	}
}
