package setup_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/gitstate"
	"github.com/sandkeeper/sandkeeper/internal/setup"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
)

const token = "tok-8c1f2b7e9a"

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "safe.directory=*"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	full := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// origin is a repository that a real git server gives to who knows the token.
type origin struct {
	url    string
	dir    string // bare
	author string // a working tree that pushes to it
}

func serve(t *testing.T) origin {
	t.Helper()
	o := origin{dir: filepath.Join(t.TempDir(), "origin.git"), author: t.TempDir()}
	git(t, o.author, "init", "-q", "-b", "main")
	put(t, o.author, "one", "1\n")
	put(t, o.author, "AGENTS.md", "theirs\n")
	git(t, o.author, "add", ".")
	git(t, o.author, "commit", "-q", "-m", "first")
	git(t, o.author, "clone", "-q", "--bare", o.author, o.dir)
	git(t, o.author, "remote", "add", "origin", o.dir)
	backend := &cgi.Handler{
		Path: filepath.Join(git(t, o.author, "--exec-path"), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + filepath.Dir(o.dir), "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, ok := r.BasicAuth(); !ok || password != token {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who are you", http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	o.url = server.URL + "/origin.git"
	return o
}

// advance pushes another commit.
func (o origin) advance(t *testing.T) {
	t.Helper()
	put(t, o.author, "later", rand.Text())
	git(t, o.author, "add", ".")
	git(t, o.author, "commit", "-q", "-m", "later")
	git(t, o.author, "push", "-q", "origin", "main")
}

func plan(w core.WorkspacePlan) core.SetupPlan { return core.SetupPlan{Workspace: w, Hash: "abc"} }

func options(t *testing.T, p core.SetupPlan) setup.Options {
	t.Helper()
	redactor, err := workspace.NewRedactor([]workspace.Secret{{Name: "GIT_TOKEN", Value: token}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return setup.Options{
		Plan: p, Dir: t.TempDir(), Steps: filepath.Join(t.TempDir(), "steps"), Secrets: map[string]string{"GIT_TOKEN": token},
		Redact: redactor.Redact, Overlap: redactor.Overlap(), StepLimit: time.Minute,
	}
}

func run(t *testing.T, o setup.Options) setup.Result {
	t.Helper()
	result, err := setup.Run(t.Context(), o)
	if err != nil {
		if e, ok := errors.AsType[*setup.StepError](err); ok {
			t.Fatalf("%v: %s", e, e.Tail)
		}
		t.Fatal(err)
	}
	return result
}

// holds looks for text in every file below dir.
func holds(t *testing.T, dir, text string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(name)
		if bytes.Contains(data, []byte(text)) {
			t.Errorf("%s holds %q", name, text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAWorkspaceIsSetUpInOrder(t *testing.T) {
	from := serve(t)
	o := options(t, plan(core.WorkspacePlan{
		Source:       &core.SourcePlan{Repository: from.url, Credential: "GIT_TOKEN", Ref: "main"},
		Instructions: "be good\n",
		Skills:       []core.AddedPlan{{Name: "write", Files: map[string]string{"SKILL.md": "how", "run.sh": "#!/bin/sh\n"}}, {Name: "whole", Repository: from.url, Credential: "GIT_TOKEN"}},
		Plugins:      []core.AddedPlan{{Name: "plug", Files: map[string]string{"a/b.json": "{}"}}},
		Scripts:      map[string]string{"hello": "#!/bin/sh\necho hello\n"},
		Setup: []core.SetupGroup{
			{Name: "first", Steps: []core.SetupStep{{Name: "a", Run: `.sandkeeper/scripts/hello >>log; cat one >>log`}, {Name: "b", Run: `echo "b ${GIT_TOKEN:+has}" >>log; env | grep -c unseen >>log; true`}}},
			{Name: "second", Parallel: true, Steps: []core.SetupStep{{Name: "c", Run: "while [ ! -e d ]; do sleep 0.01; done; touch c"}, {Name: "d", Run: "touch d"}}},
			{Name: "third", Steps: []core.SetupStep{{Name: "e", Run: `ls c d >>log; env | grep -c TOKEN >>log; true`}}},
		},
	}))
	o.Plan.Policy.Commands.Deny = []string{"rm"}
	o.Secrets["OTHER"] = "unseen"
	put(t, o.Dir, "there", "before")
	result := run(t, o)
	if want := git(t, from.author, "rev-parse", "HEAD"); result.Baseline != want {
		t.Errorf("baseline %q, want %q", result.Baseline, want)
	}
	if got := read(t, filepath.Join(o.Dir, "log")); got != "hello\n1\nb has\n0\nc\nd\n0\n" {
		t.Errorf("steps wrote %q", got)
	}
	for name, want := range map[string]string{
		"AGENTS.md": "theirs\n", "CLAUDE.md": "be good\n", ".claude/skills/write/SKILL.md": "how", ".codex/skills/whole/one": "1\n", ".claude/plugins/plug/a/b.json": "{}", "there": "before",
	} {
		if got := read(t, filepath.Join(o.Dir, name)); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if info, err := os.Stat(filepath.Join(o.Dir, ".claude/skills/write/run.sh")); err != nil || info.Mode()&0o111 == 0 {
		t.Errorf("script of a skill: %v, %v", info, err)
	}
	if strings.Join(result.Kept, " ") != "AGENTS.md" || !strings.Contains(read(t, filepath.Join(o.Dir, ".sandkeeper/policy.json")), `"rm"`) {
		t.Errorf("kept %q", result.Kept)
	}
	if got := git(t, o.Dir, "status", "--porcelain"); got != "?? c\n?? d\n?? log\n?? there" {
		t.Errorf("status %q", got)
	}
	if got := git(t, o.Dir, "rev-parse", "--is-shallow-repository") + git(t, o.Dir, "branch", "--show-current"); got != "truemain" {
		t.Errorf("clone: %s", got)
	}
	holds(t, o.Dir, token)
	holds(t, o.Steps, token)
}

func TestAFailedStepIsToldAndGoneOnFrom(t *testing.T) {
	o := options(t, plan(core.WorkspacePlan{Setup: []core.SetupGroup{{Name: "g", Steps: []core.SetupStep{
		{Name: "once", Run: "echo x >>count"},
		{Name: "fails", Run: `i=0; while [ $i -lt 400 ]; do echo "line $i $GIT_TOKEN"; i=$((i+1)); done; echo "the end" >&2; [ -e ok ]`},
		{Name: "last", Run: "echo y >>count"},
	}}}}))
	_, err := setup.Run(t.Context(), o)
	e, ok := errors.AsType[*setup.StepError](err)
	if !ok || e.Step != "g/fails" || !strings.HasSuffix(e.Tail, "the end") || strings.Contains(e.Tail, "tok-") || strings.Contains(e.Tail, token[6:]) {
		t.Fatalf("%v, %+v", err, e)
	}
	if n := len([]rune(e.Tail)); n > setup.TailChars || n < setup.TailChars-100 {
		t.Errorf("tail of %d characters", n)
	}
	put(t, o.Dir, "ok", "")
	var seen []string
	o.Note = func(p setup.Progress) { seen = append(seen, fmt.Sprintf("%s %d/%d", p.Step, p.Done, p.All)) }
	run(t, o)
	run(t, o)
	if got := read(t, filepath.Join(o.Dir, "count")); got != "x\ny\n" {
		t.Errorf("steps ran as %q", got)
	}
	if got := strings.Join(seen[:3], ", "); got != "g/once 1/3, g/fails 1/3, g/fails 2/3" {
		t.Errorf("noted %s", got)
	}
}

func TestAParallelStepThatFailsEndsTheOthers(t *testing.T) {
	o := options(t, plan(core.WorkspacePlan{Setup: []core.SetupGroup{{Name: "g", Parallel: true, Steps: []core.SetupStep{
		{Name: "slow", Run: "exec sleep 600"}, {Name: "bad", Run: "echo why; exit 3"},
	}}}}))
	_, err := setup.Run(t.Context(), o)
	if e, ok := errors.AsType[*setup.StepError](err); !ok || e.Step != "g/bad" || e.Tail != "why" {
		t.Errorf("%v", err)
	}
}

func TestAStepHasATimeLimitAndAnEnd(t *testing.T) {
	o := options(t, plan(core.WorkspacePlan{Setup: []core.SetupGroup{{Name: "g", Steps: []core.SetupStep{{Name: "slow", Run: "echo begun; sleep 600; echo no"}}}}}))
	o.StepLimit = 5 * time.Second
	_, err := setup.Run(t.Context(), o)
	if e, ok := errors.AsType[*setup.StepError](err); !ok || e.Tail != "begun" || !strings.Contains(err.Error(), "not done within") {
		t.Errorf("%v", err)
	}
	stop := errors.New("told to end")
	ctx, cancel := context.WithCancelCause(t.Context())
	o.StepLimit = time.Minute
	o.Note = func(setup.Progress) { cancel(stop) }
	if _, err := setup.Run(ctx, o); !errors.Is(err, stop) {
		t.Errorf("%v", err)
	}
	// What a step leaves behind does not hold it.
	o.Plan.Workspace.Setup[0].Steps[0].Run = "sleep 30 & echo $! >pid"
	o.Note = nil
	run(t, o)
	var pid int
	if _, err := fmt.Sscan(read(t, filepath.Join(o.Dir, "pid")), &pid); err == nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

func TestACrashDuringTheCloneIsMadeUpFor(t *testing.T) {
	from := serve(t)
	source := &core.SourcePlan{Repository: from.url, Credential: "GIT_TOKEN", Directory: "src/app"}
	// Before the move: what was made beside goes.
	o := options(t, plan(core.WorkspacePlan{Source: source}))
	put(t, o.Dir, "src/app/.sandkeeper-clone-1/tree/.git/HEAD", "half")
	run(t, o)
	if got := git(t, filepath.Join(o.Dir, "src/app"), "status", "--porcelain"); got != "" {
		t.Errorf("status %q", got)
	}
	// Behind the move: the files come.
	if err := os.Remove(filepath.Join(o.Dir, "src/app/one")); err != nil {
		t.Fatal(err)
	}
	done, err := filepath.Glob(filepath.Join(o.Steps, "*.done"))
	if err != nil || len(done) == 0 {
		t.Fatal(done, err)
	}
	for _, name := range done {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	run(t, o)
	if got := read(t, filepath.Join(o.Dir, "src/app/one")); got != "1\n" {
		t.Errorf("one: %q", got)
	}
	// A repository that was there is nobody's to change.
	o.Steps = filepath.Join(t.TempDir(), "others")
	put(t, o.Dir, "src/app/one", "changed")
	run(t, o)
	if got := read(t, filepath.Join(o.Dir, "src/app/one")); got != "changed" {
		t.Errorf("one: %q", got)
	}
}

func TestAClonesFailureIsTold(t *testing.T) {
	from := serve(t)
	for name, source := range map[string]core.SourcePlan{
		"a dash":         {Repository: "--upload-pack=touch x"},
		"a ref's dash":   {Repository: from.url, Ref: "--orphan", Credential: "GIT_TOKEN"},
		"no credential":  {Repository: from.url},
		"no such branch": {Repository: from.url, Ref: "none", Credential: "GIT_TOKEN"},
		"no such secret": {Repository: from.url, Credential: "NONE"},
		"a password":     {Repository: strings.Replace(from.url, "http://", "http://a:b@", 1)},
		"plain http":     {Repository: "http://git.example.com/x.git", Credential: "GIT_TOKEN"},
		"a program":      {Repository: "ext::sh -c touch% x"},
	} {
		o := options(t, plan(core.WorkspacePlan{Source: &source}))
		_, err := setup.Run(t.Context(), o)
		if e, ok := errors.AsType[*setup.StepError](err); !ok || e.Step != "clone" || strings.Contains(err.Error()+e.Tail, token) {
			t.Errorf("%s: %v", name, err)
		}
		if entries, err := os.ReadDir(o.Dir); err != nil || len(entries) != 0 {
			t.Errorf("%s: left %v, %v", name, entries, err)
		}
	}
}

func TestACommitIsClonedByItsID(t *testing.T) {
	from := serve(t)
	first := git(t, from.author, "rev-parse", "HEAD")
	from.advance(t)
	o := options(t, plan(core.WorkspacePlan{Source: &core.SourcePlan{Repository: from.url, Credential: "GIT_TOKEN", Ref: first}}))
	if result := run(t, o); result.Baseline != first || git(t, o.Dir, "status", "--porcelain") != "" {
		t.Errorf("%+v", result)
	}
}

func TestWhatTheUserChangedIsKept(t *testing.T) {
	skill := func(text string) core.AddedPlan {
		return core.AddedPlan{Name: "s", Files: map[string]string{"SKILL.md": text, "old/gone": "x"}}
	}
	o := options(t, plan(core.WorkspacePlan{Instructions: "one", Skills: []core.AddedPlan{skill("one")}, Scripts: map[string]string{"a": "one", "b": "one"}}))
	run(t, o)
	put(t, o.Dir, "CLAUDE.md", "mine")
	put(t, o.Dir, ".sandkeeper/scripts/b", "mine")
	o.Plan = core.SetupPlan{Hash: "def", Workspace: core.WorkspacePlan{Instructions: "two", Skills: []core.AddedPlan{{Name: "s", Files: map[string]string{"SKILL.md": "two"}}}}}
	result := run(t, o)
	if strings.Join(result.Kept, " ") != "CLAUDE.md" {
		t.Errorf("kept %q", result.Kept)
	}
	for name, want := range map[string]string{"AGENTS.md": "two", "CLAUDE.md": "mine", ".claude/skills/s/SKILL.md": "two", ".sandkeeper/scripts/b": "mine"} {
		if got := read(t, filepath.Join(o.Dir, name)); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for _, gone := range []string{".claude/skills/s/old", ".sandkeeper/scripts/a", workspace.MarkerPrefix + "abc"} {
		if _, err := os.Lstat(filepath.Join(o.Dir, gone)); err == nil {
			t.Errorf("%s is there", gone)
		}
	}
}

// TestALinkLeadsNowhere: whatever links an image or a restored head has, nothing is written
// outside; what is in the way of a file is somebody else's, and the set-up goes on.
func TestALinkLeadsNowhere(t *testing.T) {
	w := core.WorkspacePlan{Instructions: "one", Scripts: map[string]string{"a": "one"}, Skills: []core.AddedPlan{{Name: "s", Files: map[string]string{"SKILL.md": "x"}}}}
	for name, links := range map[string]map[string]string{
		"a file": {"AGENTS.md": "/file"}, "directories": {".sandkeeper": "", ".claude": "", ".codex/skills": ""}, "the repository": {".git": ""}, "its directory": {".git/info": "/info"},
		"upwards": {".claude": "..", ".sandkeeper": "../.."}, "nowhere": {".claude": "/none", ".sandkeeper": "none"}, "a circle": {".claude": ".claude"}, "what is put in place": {"CLAUDE.md.sandkeeper-new": "/file"},
	} {
		t.Run(name, func(t *testing.T) {
			outside := t.TempDir()
			put(t, outside, "info/exclude", "theirs\n")
			put(t, outside, "file", "theirs\n")
			o := options(t, plan(w))
			for name, to := range links {
				if to == "" || to[0] == '/' {
					to = filepath.Join(outside, to)
				}
				if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(o.Dir, name)), 0o755), os.Symlink(to, filepath.Join(o.Dir, name))); err != nil {
					t.Fatal(err)
				}
			}
			run(t, o)
			entries, err := os.ReadDir(outside)
			if err != nil || len(entries) != 2 || read(t, filepath.Join(outside, "info/exclude"))+read(t, filepath.Join(outside, "file")) != "theirs\ntheirs\n" {
				t.Errorf("outside: %v, %v", entries, err)
			}
			if read(t, filepath.Join(o.Dir, "GEMINI.md")) != "one" {
				t.Error("the rest is not there")
			}
		})
	}
}

// TestNothingIsClonedThroughALink out of the workspace.
func TestNothingIsClonedThroughALink(t *testing.T) {
	from, outside := serve(t), t.TempDir()
	for _, directory := range []string{"src", "src/deep", "in/src"} {
		o := options(t, plan(core.WorkspacePlan{Source: &core.SourcePlan{Repository: from.url, Credential: "GIT_TOKEN", Directory: directory}}))
		if err := errors.Join(os.Mkdir(filepath.Join(o.Dir, "in"), 0o755), os.Symlink(outside, filepath.Join(o.Dir, "src")), os.Symlink("../src", filepath.Join(o.Dir, "in/src"))); err != nil {
			t.Fatal(err)
		}
		_, err := setup.Run(t.Context(), o)
		entries, listErr := os.ReadDir(outside)
		if e, ok := errors.AsType[*setup.StepError](err); !ok || e.Step != "clone" || listErr != nil || len(entries) != 0 {
			t.Errorf("%s: %v; outside: %v, %v", directory, err, entries, listErr)
		}
	}
	o := options(t, plan(core.WorkspacePlan{Source: &core.SourcePlan{Repository: from.url, Credential: "GIT_TOKEN", Directory: "a[b/c*"}}))
	run(t, o)
	if read(t, filepath.Join(o.Dir, "a[b/c*/one")) != "1\n" {
		t.Error("not cloned")
	}
}

// TestWhatIsInTheWayHoldsNothingUp: pipes, directories and files without end in the places
// of a plan's files, or where a marker says that there is one.
func TestWhatIsInTheWayHoldsNothingUp(t *testing.T) {
	o := options(t, plan(core.WorkspacePlan{Instructions: "one"}))
	put(t, o.Dir, "GEMINI.md.sandkeeper-new/x", "x")
	put(t, o.Dir, workspace.MarkerPrefix+"old", `{"version":1,"files":{"pipe":"x","long":"x","CLAUDE.md":"x"}}`)
	put(t, o.Dir, "long", "")
	put(t, o.Dir, "AGENTS.md", "")
	err := errors.Join(
		os.Truncate(filepath.Join(o.Dir, "long"), 1<<40), os.Truncate(filepath.Join(o.Dir, "AGENTS.md"), 1<<40),
		syscall.Mkfifo(filepath.Join(o.Dir, "pipe"), 0o600), syscall.Mkfifo(filepath.Join(o.Dir, "CLAUDE.md"), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	result := run(t, o)
	if got := strings.Join(result.Kept, " "); got != "AGENTS.md CLAUDE.md" || read(t, filepath.Join(o.Dir, "GEMINI.md")) != "one" {
		t.Errorf("kept %q", got)
	}
}

func TestThePackageManagerIsTheLockFiles(t *testing.T) {
	for name, test := range map[string]struct {
		files   map[string]string
		manager core.PackageManager
		want    string
	}{
		"npm":             {map[string]string{"package-lock.json": "{}"}, core.ManagerAuto, "npm ci --no-audit --no-fund"},
		"pnpm":            {map[string]string{"pnpm-lock.yaml": "", "package-lock.json": "{}"}, core.ManagerAuto, "pnpm install --frozen-lockfile"},
		"yarn":            {map[string]string{"yarn.lock": "# yarn lockfile v1"}, core.ManagerAuto, "yarn install --frozen-lockfile"},
		"a newer yarn":    {map[string]string{"yarn.lock": "__metadata:\n"}, core.ManagerAuto, "yarn install --immutable"},
		"bun and uv":      {map[string]string{"bun.lock": "", "uv.lock": ""}, core.ManagerAuto, "bun install --frozen-lockfile\nuv sync --frozen"},
		"one by its name": {map[string]string{"yarn.lock": "", "package-lock.json": "{}"}, core.ManagerNPM, "npm ci --no-audit --no-fund"},
		"no lock file":    {nil, core.ManagerPNPM, "pnpm install"},
		"nothing":         {nil, core.ManagerAuto, ""},
		"a token":         {map[string]string{"package-lock.json": "{}", ".npmrc": "//registry.example.com/:_authToken=${GIT_TOKEN}"}, core.ManagerAuto, "npm ci --no-audit --no-fund with a token"},
	} {
		t.Run(name, func(t *testing.T) {
			bin := t.TempDir()
			for _, program := range []string{"npm", "pnpm", "yarn", "bun", "uv"} {
				script := "#!/bin/sh\necho \"" + program + " $*${GIT_TOKEN:+ with a token}\" >>\"$LOG\"\n"
				if err := os.WriteFile(filepath.Join(bin, program), []byte(script), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			log := filepath.Join(t.TempDir(), "log")
			o := options(t, plan(core.WorkspacePlan{Manager: test.manager}))
			o.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "LOG=" + log}
			for file, text := range test.files {
				put(t, o.Dir, file, text)
			}
			run(t, o)
			got, err := os.ReadFile(log)
			if err != nil && test.want != "" || strings.TrimSpace(string(got)) != test.want {
				t.Errorf("ran %q, %v", got, err)
			}
		})
	}
	o := options(t, plan(core.WorkspacePlan{Manager: core.ManagerBun}))
	o.Env = []string{"PATH=/nonexistent"}
	if _, err := setup.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "bun") {
		t.Errorf("without the program: %v", err)
	}
}

func TestWithoutARepositoryTheBaselineIsEmpty(t *testing.T) {
	o := options(t, plan(core.WorkspacePlan{Instructions: "x"}))
	var log bytes.Buffer
	o.Log = &log
	if result := run(t, o); result.Baseline != "" || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("%+v, log %q", result, log.String())
	}
}

// TestStepsRunAsTheContainersUser, whose the files then are.
func TestStepsRunAsTheContainersUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root becomes somebody else")
	}
	from := serve(t)
	o := options(t, plan(core.WorkspacePlan{
		Source: &core.SourcePlan{Repository: from.url, Credential: "GIT_TOKEN"}, Instructions: "x", Skills: []core.AddedPlan{{Name: "s", Files: map[string]string{"SKILL.md": "x"}}},
		Setup: []core.SetupGroup{{Name: "g", Steps: []core.SetupStep{{Name: "who", Run: "id -u >who"}}}},
	}))
	if err := os.Chmod(filepath.Dir(o.Dir), 0o755); err != nil {
		t.Fatal(err)
	}
	o.User = &syscall.Credential{Uid: 65534, Gid: 65534}
	o.Dir = filepath.Join(o.Dir, "made")
	run(t, o)
	if got := read(t, filepath.Join(o.Dir, "who")); got != "65534\n" {
		t.Errorf("ran as %q", got)
	}
	for _, name := range []string{".", "one", ".git", ".git/config", "CLAUDE.md", ".claude", ".claude/skills/s/SKILL.md", workspace.MarkerPrefix + "abc"} {
		info, err := os.Lstat(filepath.Join(o.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if stat := info.Sys().(*syscall.Stat_t); stat.Uid != 65534 {
			t.Errorf("%s is of user %d", name, stat.Uid)
		}
	}
}

// TestTheStateOfARepositoryComesBack over a shallow clone of a remote that has moved on:
// what a restore could not finish, the set-up does.
func TestTheStateOfARepositoryComesBack(t *testing.T) {
	for name, test := range map[string]struct {
		moves, missing bool
		depth          int
	}{"a remote as it was": {}, "a remote that moved": {moves: true}, "a whole clone before": {moves: true, missing: true, depth: 1000}} {
		t.Run(name, func(t *testing.T) {
			from := serve(t)
			from.advance(t)
			source := &core.SourcePlan{Repository: from.url, Credential: "GIT_TOKEN"}
			first := options(t, plan(core.WorkspacePlan{Source: &core.SourcePlan{Repository: from.url, Credential: "GIT_TOKEN", Depth: test.depth}}))
			run(t, first)
			git(t, first.Dir, "checkout", "-q", "-b", "work")
			put(t, first.Dir, "two", "2\n")
			git(t, first.Dir, "add", ".")
			git(t, first.Dir, "commit", "-q", "-m", "unpushed")
			put(t, first.Dir, "one", "1\nstaged\n")
			git(t, first.Dir, "add", "one")
			put(t, first.Dir, "three", "untracked")
			saved := filepath.Join(t.TempDir(), "git")
			if _, err := gitstate.SaveAll(t.Context(), first.Dir, saved, gitstate.Options{}, nil); err != nil {
				t.Fatal(err)
			}
			if test.moves {
				from.advance(t)
			}
			second := options(t, plan(core.WorkspacePlan{Source: source}))
			second.Plan.CloneOnly = true
			run(t, second)
			restore(t, first.Dir, second.Dir)
			results, err := gitstate.RestoreAll(t.Context(), second.Dir, saved, gitstate.Options{})
			if err != nil || len(results) != 1 || results[0].Restored == test.missing {
				t.Fatalf("%+v, %v", results, err)
			}
			second.Plan.CloneOnly, second.Steps = false, filepath.Join(t.TempDir(), "steps")
			if test.missing {
				second.GitDir = saved
			}
			result := run(t, second)
			if test.missing && (len(result.Git) != 1 || !result.Git[0].Restored) {
				t.Errorf("%+v", result.Git)
			}
			for _, ask := range [][]string{{"status", "--porcelain=v2", "--branch"}, {"rev-parse", "HEAD"}, {"branch", "--show-current"}, {"diff", "--cached"}} {
				a, b := git(t, first.Dir, ask...), git(t, second.Dir, ask...)
				if a != b {
					t.Errorf("git %v: %q, want %q", ask, b, a)
				}
			}
		})
	}
}

// restore makes the files beside .git be those of another workspace, as the restore of a
// checkpoint does.
func restore(t *testing.T, from, to string) {
	t.Helper()
	for _, dir := range []string{to} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() != ".git" {
				os.RemoveAll(filepath.Join(dir, e.Name()))
			}
		}
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != ".git" {
			put(t, to, e.Name(), read(t, filepath.Join(from, e.Name())))
		}
	}
}
