package gitstate_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/draw"
	"github.com/sandkeeper/sandkeeper/internal/gitstate"
)

// trap is a program that tells, by a file, that it was run.
func trap(t testing.TB) (program, sprung string) {
	t.Helper()
	dir := t.TempDir()
	program, sprung = filepath.Join(dir, "trap"), filepath.Join(dir, "sprung")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho \"$0 $*\" >>"+sprung+"\ncat\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return program, sprung
}

// hostileConfig names a program wherever git's configuration can.
func hostileConfig(program string) string {
	return fmt.Sprintf(`[core]
	fsmonitor = %[1]s
	hooksPath = %[2]s
	sshCommand = %[1]s
	pager = %[1]s
	editor = %[1]s
	askPass = %[1]s
	gitProxy = %[1]s
	alternateRefsCommand = %[1]s
	attributesFile = %[2]s/attributes
[alias]
	status = !%[1]s
	bundle = !%[1]s
	rev-list = !%[1]s
[filter "evil"]
	clean = %[1]s
	smudge = %[1]s
	process = %[1]s
	required = true
[diff]
	external = %[1]s
[diff "evil"]
	textconv = %[1]s
	command = %[1]s
[merge "evil"]
	driver = %[1]s
[credential]
	helper = !%[1]s
[gpg]
	program = %[1]s
[uploadpack]
	packObjectsHook = %[1]s
[protocol]
	allow = always
[protocol "ext"]
	allow = always
[extensions]
	partialClone = evil
[remote "evil"]
	url = ext::%[1]s
	promisor = true
	uploadpack = %[1]s
	vcs = evil
[url "ext::%[1]s "]
	insteadOf = https://
[submodule "evil"]
	update = !%[1]s
	url = ext::%[1]s
[pack]
	packSizeLimit = 1
[include]
	path = %[2]s/more
[browser "evil"]
	cmd = %[1]s
[interactive]
	diffFilter = %[1]s
[sequence]
	editor = %[1]s
[trailer "evil"]
	command = %[1]s
	cmd = %[1]s
[commit]
	gpgSign = true
[remote "origin"]
	url = https://user:hunter2@example.com/a.git?token=hunter2
	pushurl = https://hunter2@example.com/a.git
[http]
	extraHeader = Authorization: hunter2
[http "https://example.com"]
	cookieFile = /hunter2
[branch "main"]
	remote = ext::%[1]s
	merge = refs/heads/main
	mergeOptions = --exec=%[1]s
`, program, filepath.Dir(program))
}

var hooks = []string{
	"pre-commit", "post-checkout", "post-index-change", "reference-transaction", "fsmonitor-watchman", "post-rewrite", "pre-auto-gc", "post-merge", "proc-receive", "update", "pre-receive",
}

func armed(t testing.TB, r repo, program string) {
	t.Helper()
	for _, hook := range hooks {
		for _, dir := range []string{filepath.Join(r.dir, ".git", "hooks"), filepath.Dir(program)} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(program, filepath.Join(dir, hook)); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.write(".gitattributes", "* filter=evil diff=evil merge=evil\n")
	r.write(".git/info/attributes", "* filter=evil diff=evil merge=evil\n")
	r.write(".git/config", hostileConfig(program))
}

func TestNothingInARepositoryStartsAProgram(t *testing.T) {
	r := newRepo(t, filepath.Join(t.TempDir(), "w"))
	locals["a merge with conflicts"](t, r)
	r.write("n", "new")
	r.git("add", "n")
	missing := strings.TrimSpace(r.git("rev-parse", "HEAD:a"))
	program, sprung := trap(t)
	armed(t, r, program)
	// A promisor's missing object is what a partial clone would fetch.
	if err := os.Remove(filepath.Join(r.dir, ".git", "objects", missing[:2], missing[2:])); err != nil {
		t.Fatal(err)
	}
	r.write(".git/refs/heads/gone", strings.Repeat("12", 20)+"\n")
	save(t, r, gitstate.Options{})
	r.write("a", "3\n")
	os.Remove(filepath.Join(r.dir, ".git/refs/heads/gone"))
	blob := r.command("-c", "filter.evil.required=false", "-c", "filter.evil.process=", "-c", "filter.evil.clean=", "hash-object", "-w", "--no-filters", "--stdin")
	blob.Stdin = strings.NewReader("main\n")
	if out, err := blob.CombinedOutput(); err != nil {
		t.Fatalf("hash-object: %v: %s", err, out)
	}
	os.Remove(sprung)

	in, s := save(t, r, gitstate.Options{})
	if s.Empty() {
		t.Fatalf("nothing was saved: %+v", s.Skipped)
	}
	nothingHidden(t, in, "hunter2", program, "ext::")
	if result := restore(t, r, in); !result.Restored {
		t.Errorf("restore over a hostile repository: %+v", result)
	}
	fresh := repo{t, filepath.Join(t.TempDir(), "w")}
	if err := os.Mkdir(fresh.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if result := restore(t, fresh, in); !result.Restored {
		t.Errorf("restore: %+v", result)
	}
	if said, err := os.ReadFile(sprung); err == nil {
		t.Fatalf("a program was started: %s", said)
	}
	config, _ := os.ReadFile(filepath.Join(fresh.dir, ".git", "config"))
	if strings.Contains(string(config), program) || strings.Contains(string(config), "hunter2") {
		t.Errorf("restored configuration: %s", config)
	}
	if !strings.Contains(string(config), "https://example.com/a.git") {
		t.Errorf("restored configuration lacks the remote: %s", config)
	}
	fresh.write("z", "z")
	fresh.git("status")
	if entries, _ := os.ReadDir(filepath.Join(fresh.dir, ".git", "hooks")); len(entries) > 0 {
		t.Errorf("hooks were restored: %v", entries)
	}
	if said, err := os.ReadFile(sprung); err == nil {
		t.Fatalf("the restored repository started a program: %s", said)
	}
}

// nothingHidden looks for words that must not be in what was stored, attributes
// excepted, which are files like any other.
func nothingHidden(t testing.TB, dir string, words ...string) {
	t.Helper()
	filepath.WalkDir(dir, func(name string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.HasSuffix(name, "attributes") {
			return err
		}
		data, err := os.ReadFile(name)
		for _, word := range words {

			if strings.Contains(string(data), word) {
				t.Errorf("%s holds %q", filepath.Base(name), word)
			}
		}
		return err
	})
}

func TestRemotesLoseTheirCredentialsAndHelpers(t *testing.T) {
	for url, want := range map[string]string{
		"https://example.com/a.git":               "https://example.com/a.git",
		"https://user:secret@example.com/a.git":   "https://example.com/a.git",
		"https://secret@example.com/a.git":        "https://example.com/a.git",
		"https://example.com/a.git?private=s#f":   "https://example.com/a.git",
		"ssh://git@example.com:2222/a.git":        "ssh://git@example.com:2222/a.git",
		"ssh://git:secret@example.com/a.git":      "ssh://git@example.com/a.git",
		"ssh://-oProxyCommand=x@example.com/a":    "ssh://example.com/a",
		"ssh://-oProxyCommand=x/a":                "",
		"git@example.com:a/b.git":                 "git@example.com:a/b.git",
		"git:secret@example.com:a/b.git":          "git@example.com:a/b.git",
		"host:path/repo.git":                      "host:path/repo.git",
		"../other.git":                            "../other.git",
		"/srv/git/other.git":                      "/srv/git/other.git",
		"ext::sh -c x":                            "",
		"fd::3":                                   "",
		"-oProxyCommand=x":                        "",
		"javascript://example.com/a":              "",
		"https://example.com/%zz":                 "",
		"file:///srv/git/other.git":               "file:///srv/git/other.git",
		"ssh://git@example.com/a.git\x1b[0m":      "",
		"https://example.com/a.git\nurl = ext::x": "",
	} {
		r := newRepo(t, filepath.Join(t.TempDir(), "w"))
		r.commit("a", "1", "one")
		r.git("config", "remote.origin.url", url)
		_, s := save(t, r, gitstate.Options{})
		got := ""
		for _, set := range s.Config {
			if set.Key == "remote.origin.url" {
				got = set.Value
			}
		}
		if got != want {
			t.Errorf("url %q: stored %q, want %q", url, got, want)
		}
	}
}

func TestARebaseThatRunsCommandsIsNotStored(t *testing.T) {
	r := newRepo(t, filepath.Join(t.TempDir(), "w"))
	locals["a rebase that stopped"](t, r)
	program, sprung := trap(t)
	r.write(".git/rebase-merge/git-rebase-todo", "exec "+program+"\n")
	in, s := save(t, r, gitstate.Options{})
	for _, f := range s.Files {
		if strings.HasPrefix(f.Name, "rebase-merge/") {
			t.Errorf("%s was stored", f.Name)
		}
	}
	if len(s.Skipped) != 1 || s.Skipped[0] != (gitstate.Skipped{What: "rebase-merge", Reason: gitstate.Executes}) {
		t.Errorf("skipped %+v", s.Skipped)
	}
	fresh := newRepo(t, filepath.Join(t.TempDir(), "w"))
	if result := restore(t, fresh, in); !result.Restored {
		t.Errorf("restore: %+v", result)
	}
	fresh.try("rebase", "--continue")
	if _, err := os.Stat(sprung); err == nil {
		t.Error("the restored rebase started a program")
	}
}

func TestRestoreRefusesAStateThatSaveNeverWrites(t *testing.T) {
	r := newRepo(t, filepath.Join(t.TempDir(), "w"))
	r.commit("a", "1", "one")
	in, s := save(t, r, gitstate.Options{})
	id := s.Refs[0].ID
	for name, change := range map[string]func(s *gitstate.State){
		"another version":                  func(s *gitstate.State) { s.Version = 2 },
		"a path out of the workspace":      func(s *gitstate.State) { s.Path = "../x" },
		"an absolute path":                 func(s *gitstate.State) { s.Path = "/x" },
		"a head that is a path":            func(s *gitstate.State) { s.Head = "ref: ../../x" },
		"a ref out of refs":                func(s *gitstate.State) { s.Refs[0].Name = "refs/../config" },
		"a ref that is a hook":             func(s *gitstate.State) { s.Refs[0].Name = "hooks/post-checkout" },
		"a ref with a newline":             func(s *gitstate.State) { s.Refs[0].Name = "refs/heads/a\n" + id + " refs/heads/b" },
		"an id that is none":               func(s *gitstate.State) { s.Refs[0].ID = "x" },
		"a hook":                           func(s *gitstate.State) { s.Files = append(s.Files, gitstate.File{Name: "hooks/post-checkout"}) },
		"a configuration file":             func(s *gitstate.State) { s.Files = append(s.Files, gitstate.File{Name: "config"}) },
		"a file out of the git directory":  func(s *gitstate.State) { s.Files = append(s.Files, gitstate.File{Name: "rebase-merge/../../x"}) },
		"a worktree's configuration":       func(s *gitstate.State) { s.Files = append(s.Files, gitstate.File{Name: "worktrees/w/config.worktree"}) },
		"a worktree's name that is a path": func(s *gitstate.State) { s.Worktrees = []gitstate.Worktree{{Name: "..", Path: "/x", Head: id}} },
		"a program": func(s *gitstate.State) {
			s.Config = append(s.Config, gitstate.Setting{Key: "core.fsmonitor", Value: "/bin/true"})
		},
		"a helper": func(s *gitstate.State) {
			s.Config = append(s.Config, gitstate.Setting{Key: "remote.x.url", Value: "ext::sh"})
		},
		"a credential": func(s *gitstate.State) {
			s.Config = append(s.Config, gitstate.Setting{Key: "remote.x.url", Value: "https://a:b@example.com/x"})
		},
		"a section in a name": func(s *gitstate.State) {
			s.Config = append(s.Config, gitstate.Setting{Key: "remote.x\n[core]\nfsmonitor=x.url", Value: "/x"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			var bad gitstate.State
			data, _ := json.Marshal(s)
			json.Unmarshal(data, &bad)
			change(&bad)
			data, _ = json.Marshal(bad)
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(in)); err != nil {
				t.Fatal(err)
			}
			os.WriteFile(filepath.Join(dir, "state.json"), data, 0o600)
			place := t.TempDir()
			if _, err := gitstate.Restore(t.Context(), place, dir, gitstate.Options{}); err == nil {
				t.Error("restored")
			}
			if entries, _ := os.ReadDir(place); len(entries) > 0 {
				t.Errorf("something was written: %v", entries)
			}
		})
	}
}

func TestRestoreDoesNotLeaveTheWorkspace(t *testing.T) {
	r := newRepo(t, filepath.Join(t.TempDir(), "w"))
	r.commit("a", "1", "one")
	in, _ := save(t, r, gitstate.Options{})
	outside := newRepo(t, filepath.Join(t.TempDir(), "outside"))
	outside.commit("o", "1", "outside")
	before := outside.picture()
	for name, lead := range map[string]func(place string) error{
		"a link":           func(place string) error { return os.Symlink(filepath.Join(outside.dir, ".git"), place) },
		"a file":           func(place string) error { return os.WriteFile(place, []byte("gitdir: "+outside.dir+"/.git\n"), 0o600) },
		"a FIFO":           func(place string) error { return syscall.Mkfifo(place, 0o600) },
		"links inside":     func(place string) error { return linksInside(place, outside.dir) },
		"linked refs only": func(place string) error { return linkedRefs(r, place, outside.dir) },
	} {
		t.Run(name, func(t *testing.T) {
			place := filepath.Join(t.TempDir(), "w")
			os.Mkdir(place, 0o755)
			if err := lead(filepath.Join(place, ".git")); err != nil {
				t.Fatal(err)
			}
			result, err := gitstate.Restore(t.Context(), place, in, gitstate.Options{})
			if result.Restored {
				t.Errorf("result %+v, %v", result, err)
			}
			if outside.picture() != before {
				t.Error("a repository out of the workspace was changed")
			}
		})
	}
}

func linksInside(place, outside string) error {
	if err := os.Mkdir(place, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"objects", "refs", "config", "HEAD", "index", "packed-refs"} {
		if err := os.Symlink(filepath.Join(outside, ".git", name), filepath.Join(place, name)); err != nil {
			return err
		}
	}
	return nil
}

func linkedRefs(r repo, place, outside string) error {
	if err := os.CopyFS(place, os.DirFS(filepath.Join(r.dir, ".git"))); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(place, "refs")); err != nil {
		return err
	}
	return os.Symlink(filepath.Join(outside, ".git", "refs"), filepath.Join(place, "refs"))
}

// Any history a user can make comes back.
func TestRandomHistoriesComeBack(t *testing.T) {
	needGit(t)
	draw.Runs(t, 20) // each starts many processes
	base := t.TempDir()
	count := 0
	draw.Check(t, func(rt *draw.T) {
		count++
		workspace := filepath.Join(base, fmt.Sprint(count))
		r := repo{rt, filepath.Join(workspace, "w")}
		if err := os.MkdirAll(r.dir, 0o755); err != nil {
			rt.Fatalf("%v", err)
		}
		r.git("init", "-q", "-b", "main")
		side := repo{rt, filepath.Join(workspace, "side")}
		for n := range draw.Range(1, 14).Draw(rt, "steps") {
			act(rt, r, side, n)
		}
		pictures := func() string { return r.picture() + side.picture() }
		if _, err := os.Stat(side.dir); err != nil {
			pictures = r.picture
		}
		before := pictures()
		in, old := filepath.Join(base, fmt.Sprint(count, ".state")), workspace+".old"
		states, err := gitstate.SaveAll(t.Context(), workspace, in, gitstate.Options{}, nil)
		if err != nil || len(states) != 1 || states[0].Empty() || len(states[0].Skipped) > 0 {
			rt.Fatalf("states %+v, %v", states, err)
		}
		if err := os.Rename(workspace, old); err != nil {
			rt.Fatalf("%v", err)
		}
		filesAway(rt, old, workspace)
		results, err := gitstate.RestoreAll(t.Context(), workspace, in, gitstate.Options{})
		if err != nil || len(results) != 1 || !results[0].Restored {
			rt.Fatalf("results %+v, %v", results, err)
		}
		if after := pictures(); after != before {
			rt.Fatalf("before:\n%s\nafter:\n%s", before, after)
		}
	})
}

// act does one thing that a user does; what git refuses is left undone.
func act(rt *draw.T, r, side repo, n int) {
	name := draw.SampledFrom([]string{"a", "b", "d/c"}).Draw(rt, "file")
	branch := draw.SampledFrom([]string{"main", "x", "y/z"}).Draw(rt, "branch")
	switch what := draw.SampledFrom([]string{
		"write", "write", "add", "commit", "commit", "commit", "switch", "detach", "stash", "pop", "tag", "merge", "rebase", "pick", "remove", "announce", "reset", "worktree", "side", "pack", "delete",
	}).Draw(rt, "act"); what {
	case "write":
		r.write(name, fmt.Sprint("text ", n, "\n"))
	case "add":
		r.try("add", "-A")
	case "commit":
		r.write(name, fmt.Sprint("committed ", n, "\n"))
		r.try("add", "-A")
		r.try("commit", "-q", "-m", fmt.Sprint("commit ", n))
	case "switch":
		r.try("checkout", "-q", "-B", branch)
	case "detach":
		r.try("checkout", "-q", "--detach")
	case "stash":
		r.try("stash", "push", "-q", "-u", "-m", fmt.Sprint("stash ", n))
	case "pop":
		r.try("stash", "pop", "-q")
	case "tag":
		r.try("tag", "-a", "-m", "tag", fmt.Sprint("v", n))
	case "merge":
		r.try("merge", "-q", branch)
	case "rebase":
		r.try("rebase", "-q", branch)
	case "pick":
		r.try("cherry-pick", branch)
	case "remove":
		r.try("rm", "-q", "--cached", name)
	case "announce":
		r.write("announced", "x")
		r.try("add", "-N", "announced")
	case "reset":
		r.try("reset", "-q", "HEAD~1")
	case "worktree":
		r.try("worktree", "add", "-q", "-f", "--detach", side.dir)
	case "side":
		if _, err := os.Stat(side.dir); err == nil {
			side.write(name, fmt.Sprint("side ", n, "\n"))
			side.try("add", "-A")
			if draw.Bool().Draw(rt, "commit there") {
				side.try("commit", "-q", "-m", "side")
			}
		}
	case "pack":
		r.try("gc", "-q")
	case "delete":
		r.try("branch", "-D", branch)
	}
}
