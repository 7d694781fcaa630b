package main_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/transfer"
)

// binary is the agent, built once.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "sandkeeper-agent-")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, core.AgentName)
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build agent: %v: %s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// function is the checkpoint function and the bucket as an agent sees them, of one
// thread and one token.
type function struct {
	*httptest.Server
	t *testing.T

	mu      sync.Mutex
	token   string
	fence   int64
	objects map[string][]byte
	parent  []byte
	commits [][]byte
	fails   []transfer.FailRequest
	renewed int
	// hold, if not nil, keeps each upload until it is closed; held is closed by the
	// first.
	hold, held chan struct{}
	once       sync.Once
}

func newFunction(t *testing.T) *function {
	f := &function{t: t, token: "token", fence: 1, objects: map[string][]byte{}, held: make(chan struct{})}
	f.Server = httptest.NewServer(f)
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

func (f *function) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if key, ok := strings.CutPrefix(r.URL.Path, "/bucket/"); ok {
		f.bucket(w, r, key)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Header.Get("Authorization") != "Bearer "+f.token {
		w.WriteHeader(http.StatusUnauthorized)
		json.NewEncoder(w).Encode(transfer.ErrorAnswer{Error: transfer.Error{Code: "token-dead", Message: "no longer"}})
		return
	}
	body, _ := io.ReadAll(r.Body)
	json.NewEncoder(w).Encode(f.answer(r.URL.Path, body))
}

func (f *function) answer(path string, body []byte) any {
	var packs transfer.GrantRequest
	json.Unmarshal(body, &packs)
	switch path {
	case transfer.PathGrant:
		answer := transfer.GrantAnswer{Until: time.Now().Add(2 * time.Minute).UnixMilli()}
		for _, p := range packs.Packs {
			_, present := f.objects[fmt.Sprint(f.fence, "-", p.SHA256)]
			answer.Grants = append(answer.Grants, transfer.Grant{SHA256: p.SHA256, Fence: f.fence, Present: present, URL: fmt.Sprint(f.URL, "/bucket/", f.fence, "-", p.SHA256)})
		}
		return answer
	case transfer.PathFetch:
		var answer transfer.FetchAnswer
		for _, p := range packs.Packs {
			answer.Grants = append(answer.Grants, transfer.Grant{SHA256: p.SHA256, Fence: p.Fence, URL: fmt.Sprint(f.URL, "/bucket/", p.Fence, "-", p.SHA256)})
		}
		return answer
	case transfer.PathParent:
		return transfer.ParentAnswer{Root: f.parent}
	case transfer.PathRenew:
		f.renewed++
		return transfer.RenewAnswer{Until: time.Now().Add(2 * time.Minute).UnixMilli()}
	case transfer.PathFail:
		var fail transfer.FailRequest
		json.Unmarshal(body, &fail)
		f.fails = append(f.fails, fail)
		return transfer.FailAnswer{}
	case transfer.PathCommit:
		var commit transfer.CommitRequest
		json.Unmarshal(body, &commit)
		f.commits = append(f.commits, commit.Root)
		if commit.Root == nil {
			return transfer.CommitAnswer{ID: "c"}
		}
		root, err := manifest.DecodeRoot(commit.Root)
		if err != nil {
			f.t.Errorf("commit: %v", err)
		}
		f.parent = commit.Root
		return transfer.CommitAnswer{ID: root.ID}
	}
	f.t.Errorf("call %s", path)
	return nil
}

func (f *function) bucket(w http.ResponseWriter, r *http.Request, key string) {
	if r.Method == http.MethodPut {
		body, _ := io.ReadAll(r.Body)
		f.mu.Lock()
		hold := f.hold
		f.mu.Unlock()
		if hold != nil {
			f.once.Do(func() { close(f.held) })
			select {
			case <-hold:
			case <-r.Context().Done():
				return
			}
		}
		sum := sha256.Sum256(body)
		if !strings.HasSuffix(key, hex.EncodeToString(sum[:])) {
			f.t.Errorf("object %s holds other bytes", key)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.objects[key] = body
		return
	}
	f.mu.Lock()
	body, ok := f.objects[key]
	f.mu.Unlock()
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

func (f *function) job(kind transfer.JobKind, id, dir string) transfer.Job {
	return transfer.Job{Kind: kind, ID: id, URL: f.URL, Token: f.token, Dir: dir}
}

// sandbox is where agents of a test run.
type sandbox struct {
	t      *testing.T
	claims string
	env    []string
}

func newSandbox(t *testing.T) *sandbox {
	base := t.TempDir()
	return &sandbox{t, filepath.Join(base, "runs"), []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + base, core.JournalInitVariable + "=self", "SANDKEEPER_SECRETS_DIR=" + filepath.Join(base, "secrets"),
		core.JournalDirVariable + "=" + filepath.Join(base, "runs"),
	}}
}

// state is the line that an agent prints.
type state struct {
	Kind, ID, State, Code, Message, Checkpoint string
	Files, Bytes, Packs, Written, Removed      int64
	PID                                        int
	Git                                        []struct {
		Path   string
		Saved  bool
		Result *struct {
			Restored bool
			Code     string
		}
	}
}

func (s *sandbox) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(s.t.Context(), binary, args...)
	cmd.Env, cmd.Dir = s.env, "/"
	return cmd
}

// say runs the agent with a job on its stdin.
func (s *sandbox) say(input any, args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	data, err := json.Marshal(input)
	if err != nil {
		s.t.Fatal(err)
	}
	if text, ok := input.(string); ok {
		data = []byte(text)
	}
	var out, said bytes.Buffer
	cmd := s.command(args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(data), &out, &said
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	if strings.Contains(out.String()+said.String(), "\"token\":\"token") {
		s.t.Errorf("the token was said: %s%s", &out, &said)
	}
	return out.String(), said.String(), cmd.ProcessState.ExitCode()
}

// do carries a job out in the foreground.
func (s *sandbox) do(job transfer.Job) (state, int) {
	s.t.Helper()
	out, said, code := s.say(job, string(job.Kind))
	var st state
	if err := json.Unmarshal([]byte(out), &st); err != nil || strings.Count(out, "\n") != 1 {
		s.t.Fatalf("%s: exit %d, stdout %q, stderr %s", job.Kind, code, out, said)
	}
	return st, code
}

func (s *sandbox) must(job transfer.Job) state {
	s.t.Helper()
	st, code := s.do(job)
	if code != 0 || st.State != "done" {
		s.t.Fatalf("%s: exit %d, %+v", job.Kind, code, st)
	}
	return st
}

// status asks until the job is not working any more.
func (s *sandbox) settled(kind transfer.JobKind, id string) state {
	s.t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		out, err := s.command("status", "-kind", string(kind), "-id", id).Output()
		var st state
		if err == nil && json.Unmarshal(out, &st) == nil && st.State != "working" {
			return st
		}
	}
	s.t.Fatalf("%s %s: not settled", kind, id)
	return state{}
}

func write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := fs.FileMode(0o644)
		if strings.HasSuffix(name, ".sh") {
			mode = 0o755
		}
		if err := os.WriteFile(full, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
}

func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com",
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return string(out)
}

// listing is a tree as text: modes, links and contents.
func listing(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		if e.Name() == ".git" {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := e.Info()
		text := ""
		switch {
		case e.Type().IsRegular():
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			text = string(data)
		case e.Type() == fs.ModeSymlink:
			text, _ = os.Readlink(name)
		}
		fmt.Fprintf(&b, "%s %s %q\n", rel, info.Mode(), text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestAWorkspaceComesBackWithItsRepository(t *testing.T) {
	f, s := newFunction(t), newSandbox(t)
	dir := filepath.Join(t.TempDir(), "workspace")
	write(t, dir, map[string]string{"run.sh": "#!/bin/sh\n", "日本/ü.txt": "text", "kept": "kept"})
	if err := os.Symlink("/nonexistent/python3", filepath.Join(dir, "python")); err != nil {
		t.Fatal(err)
	}
	git(t, dir, "init", "-q", "-b", "main")
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-q", "-m", "one")
	write(t, dir, map[string]string{"kept": "staged"})
	git(t, dir, "add", "kept")
	write(t, dir, map[string]string{"kept": "not staged", "new": "untracked", ".env": "SECRET=1"})
	seen := func(dir string) string {
		return git(t, dir, "status", "--porcelain=v2", "--branch") + git(t, dir, "stash", "list") + git(t, dir, "log", "--all", "--oneline")
	}
	tree := listing(t, dir)
	before := seen(dir)

	st := s.must(f.job(transfer.JobCapture, "c1", dir))
	if st.Checkpoint != "c1" || st.Packs == 0 || len(st.Git) != 1 || !st.Git[0].Saved {
		t.Errorf("captured %+v", st)
	}
	if st := s.must(f.job(transfer.JobVerify, "v1", dir)); st.Checkpoint != "c1" || st.Bytes == 0 {
		t.Errorf("verified %+v", st)
	}
	fresh := filepath.Join(t.TempDir(), "workspace")
	st = s.must(f.job(transfer.JobRestore, "r1", fresh))
	if len(st.Git) != 1 || st.Git[0].Result == nil || !st.Git[0].Result.Restored {
		t.Errorf("restored %+v", st)
	}
	var want strings.Builder
	for line := range strings.Lines(tree) {
		if !strings.HasPrefix(line, ".env ") {
			want.WriteString(line)
		}
	}
	if got := listing(t, fresh); got != want.String() {
		t.Errorf("restored tree:\n%s\nwant:\n%s", got, want.String())
	}
	if got := seen(fresh); got != strings.ReplaceAll(before, "? .env\n", "") {
		t.Errorf("restored repository:\n%s\nwant:\n%s", got, before)
	}
	if leftover, _ := filepath.Glob(filepath.Join(s.claims, "*", "git")); len(leftover) > 0 {
		t.Errorf("left in the claims: %v", leftover)
	}
}

func TestAnUnchangedWorkspaceSendsNoPack(t *testing.T) {
	f, s := newFunction(t), newSandbox(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "a", "b/c": "c"})
	git(t, dir, "init", "-q", "-b", "main")
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-q", "-m", "one")
	s.must(f.job(transfer.JobCapture, "c1", dir))
	f.fence++
	if st := s.must(f.job(transfer.JobCapture, "c2", dir)); st.Packs != 0 {
		t.Errorf("captured again: %+v", st)
	}
}

func TestSecretsAreRedacted(t *testing.T) {
	f, s := newFunction(t), newSandbox(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "x hunter2 y", "b": "x from-env y"})
	write(t, filepath.Dir(s.claims), map[string]string{"secrets/DB": "hunter2\n"})
	s.env = append(s.env, "API=from-env")
	job := f.job(transfer.JobCapture, "c1", dir)
	job.Secrets = []string{"DB", "API"}
	s.must(job)
	fresh := filepath.Join(t.TempDir(), "w")
	s.must(f.job(transfer.JobRestore, "r1", fresh))
	if got := listing(t, fresh); !strings.Contains(got, `"x \x00\x00\x00\x00\x00\x00\x00 y"`) || strings.Contains(got, "from-env") {
		t.Errorf("restored %s", got)
	}

	for _, name := range []string{"UNKNOWN", "../secrets/DB", "a/b", ""} {
		job := f.job(transfer.JobCapture, "c2", dir)
		job.Secrets = []string{name}
		f.fails = nil
		if st, code := s.do(job); code != 1 || st.Code != "unknown-secret" || len(f.fails) != 1 || f.fails[0].Code != "unknown-secret" {
			t.Errorf("secret %q: exit %d, %+v, told %+v", name, code, st, f.fails)
		}
		f.token += "."
	}
}

func TestAStartedJobIsDoneByADetachedWorker(t *testing.T) {
	f, s := newFunction(t), newSandbox(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "a"})
	f.hold = make(chan struct{})
	job := f.job(transfer.JobCapture, "c/1", dir)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := s.command("start", "-claims", s.claims)
	data, _ := json.Marshal(job)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(data), &out, w
	cmd.ExtraFiles = []*os.File{nil, w} // what an exec channel may leave open
	if err := cmd.Run(); err != nil || out.String() != "started\n" {
		t.Fatalf("start: %v, %q", err, &out)
	}
	w.Close()
	if said, err := io.ReadAll(r); err != nil || len(said) > 0 {
		t.Errorf("the session's stderr: %q, %v", said, err)
	}
	<-f.held
	st := peek(t, s, "c/1")
	if st.PID < 2 || st.State != "working" {
		t.Fatalf("state %+v", st)
	}
	if session, _ := sessionOf(st.PID); session != st.PID {
		t.Errorf("worker %d is in session %d", st.PID, session)
	}
	if words, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", st.PID)); bytes.Contains(words, []byte(f.token)) && !bytes.Contains([]byte(s.claims), []byte(f.token)) {
		t.Errorf("command line %q", words)
	}
	if out, _, code := s.say(job, "start", "-claims", s.claims); out != "already\n" || code != 0 {
		t.Errorf("again: %q, exit %d", out, code)
	}
	if out, _, code := s.say(job, "capture"); code != 3 || !strings.Contains(out, `"working"`) {
		t.Errorf("again in the foreground: %q, exit %d", out, code)
	}
	close(f.hold)
	if st := s.settled(transfer.JobCapture, "c/1"); st.State != "done" || st.Checkpoint != "c/1" || st.Files != 1 {
		t.Errorf("settled %+v", st)
	}
	if out, _, _ := s.say(job, "start", "-claims", s.claims); out != "already\n" || len(f.commits) != 1 {
		t.Errorf("after the end: %q, %d commits", out, len(f.commits))
	}
}

func peek(t *testing.T, s *sandbox, id string) state {
	t.Helper()
	out, err := s.command("status", "-id", id).Output()
	var st state
	if err != nil || json.Unmarshal(out, &st) != nil {
		t.Fatalf("status: %v, %q", err, out)
	}
	return st
}

func sessionOf(pid int) (int, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	return strconv.Atoi(fields[3])
}

func TestASignalEndsACaptureAndTellsIt(t *testing.T) {
	f, s := newFunction(t), newSandbox(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "a"})
	f.hold = make(chan struct{})
	job := f.job(transfer.JobCapture, "c1", dir)
	s.say(job, "start")
	<-f.held
	if err := syscall.Kill(peek(t, s, "c1").PID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if st := s.settled(transfer.JobCapture, "c1"); st.State != "failed" || st.Code != "terminated" {
		t.Errorf("settled %+v", st)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.fails) != 1 || f.fails[0].Code != "terminated" || len(f.commits) != 0 {
		t.Errorf("told %+v, %d commits", f.fails, len(f.commits))
	}
}

func TestANewAttemptTakesOverFromTheFormerWorker(t *testing.T) {
	for name, end := range map[string]func(pid int){
		"that works still": func(int) {},
		"that was killed":  func(pid int) { syscall.Kill(pid, syscall.SIGKILL) },
		"that is stopped":  func(pid int) { syscall.Kill(pid, syscall.SIGSTOP) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, s := newFunction(t), newSandbox(t)
			dir := t.TempDir()
			write(t, dir, map[string]string{"a": "a"})
			f.hold = make(chan struct{})
			s.say(f.job(transfer.JobCapture, "c1", dir), "start")
			<-f.held
			former := peek(t, s, "c1").PID
			end(former)
			f.mu.Lock()
			f.token, f.fence, f.hold = "token2", 2, nil
			f.mu.Unlock()
			if out, said, _ := s.say(f.job(transfer.JobCapture, "c1", dir), "start"); out != "started\n" {
				t.Fatalf("start: %q, %s", out, said)
			}
			if st := s.settled(transfer.JobCapture, "c1"); st.State != "done" || st.PID == former {
				t.Errorf("settled %+v", st)
			}
			if len(f.commits) != 1 {
				t.Errorf("%d commits", len(f.commits))
			}
		})
	}
}

func TestAKilledWorkerIsToldFromAWorkingOne(t *testing.T) {
	f, s := newFunction(t), newSandbox(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "a"})
	f.hold = make(chan struct{})
	s.say(f.job(transfer.JobCapture, "c1", dir), "start")
	<-f.held
	syscall.Kill(peek(t, s, "c1").PID, syscall.SIGKILL)
	if st := s.settled(transfer.JobCapture, "c1"); st.State != "failed" || st.Code != "abandoned" {
		t.Errorf("settled %+v", st)
	}
}

func TestWhatIsNoJobIsRefused(t *testing.T) {
	f, s := newFunction(t), newSandbox(t)
	good := f.job(transfer.JobCapture, "c1", "/tmp")
	with := func(change func(j *transfer.Job)) transfer.Job {
		j := good
		change(&j)
		return j
	}
	for name, job := range map[string]any{
		"nothing":                             "",
		"no JSON":                             "token",
		"no kind":                             with(func(j *transfer.Job) { j.Kind = "" }),
		"another kind":                        with(func(j *transfer.Job) { j.Kind = "erase" }),
		"no id":                               with(func(j *transfer.Job) { j.ID = "" }),
		"no token":                            with(func(j *transfer.Job) { j.Token = "" }),
		"a file for a URL":                    with(func(j *transfer.Job) { j.URL = "file:///etc/passwd" }),
		"a relative dir":                      with(func(j *transfer.Job) { j.Dir = "tmp" }),
		"a dir with dots":                     with(func(j *transfer.Job) { j.Dir = "/tmp/../etc" }),
		"a negative limit":                    with(func(j *transfer.Job) { j.MaxBytes = -1 }),
		"a policy with a member that is none": with(func(j *transfer.Job) { j.Policy = json.RawMessage(`{"exlude":[{"exact":["a"]}]}`) }),
		"a policy of no form":                 with(func(j *transfer.Job) { j.Policy = json.RawMessage(`"x"`) }),
		"an unknown git mode":                 with(func(j *transfer.Job) { j.Policy = json.RawMessage(`{"git":"some"}`) }),
		"too long":                            `{"id":"` + strings.Repeat("x", 1<<20) + `"}`,
	} {
		if out, _, code := s.say(job, "start"); out != "refused job-invalid configuration\n" || code != 0 {
			t.Errorf("%s: start said %q, exit %d", name, out, code)
		}
		if out, said, code := s.say(job, "capture"); out != "" || code != 2 || said == "" {
			t.Errorf("%s: capture said %q, %q, exit %d", name, out, said, code)
		}
	}
	if _, err := os.Stat(s.claims); err == nil {
		t.Error("something was claimed")
	}
	if out, _, code := s.say(with(func(j *transfer.Job) { j.Kind = transfer.JobVerify }), "capture"); out != "" || code != 2 {
		t.Errorf("a job of another kind: %q, exit %d", out, code)
	}
	for _, args := range [][]string{{}, {"nosuch"}, {"start", "extra"}, {"capture", "-nosuch"}, {"status"}, {"git", "save"}, {"worker"}} {
		if _, _, code := s.say("", args...); code != 2 {
			t.Errorf("%q: exit %d", args, code)
		}
	}
	write(t, filepath.Dir(s.claims), map[string]string{"file": ""})
	if out, _, _ := s.say(good, "start", "-claims", filepath.Join(filepath.Dir(s.claims), "file")); out != "refused claim-unwritable configuration\n" {
		t.Errorf("claims in a file: %q", out)
	}
}

func TestADeadTokenEndsTheJob(t *testing.T) {
	f, s := newFunction(t), newSandbox(t)
	job := f.job(transfer.JobCapture, "c1", t.TempDir())
	job.Token = "other"
	if st, code := s.do(job); code != 1 || st.Code != "token-dead" {
		t.Errorf("exit %d, %+v", code, st)
	}
}

func TestLimitsEndACaptureByTheirCodes(t *testing.T) {
	f, s := newFunction(t), newSandbox(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": strings.Repeat("x", 10000)})
	job := f.job(transfer.JobCapture, "c1", dir)
	job.MaxBytes = 100
	if st, code := s.do(job); code != 1 || st.Code != "byte-limit" || len(f.fails) != 1 || f.fails[0].Code != "byte-limit" {
		t.Errorf("exit %d, %+v, told %+v", code, st, f.fails)
	}
}

func TestARestoreWithoutACheckpointFails(t *testing.T) {
	f, s := newFunction(t), newSandbox(t)
	if st, code := s.do(f.job(transfer.JobRestore, "r1", filepath.Join(t.TempDir(), "w"))); code != 1 || st.Code != "checkpoint-not-found" {
		t.Errorf("exit %d, %+v", code, st)
	}
	s.must(f.job(transfer.JobCapture, "c1", t.TempDir()))
	job := f.job(transfer.JobRestore, "r2", filepath.Join(t.TempDir(), "w"))
	job.Checkpoint = "another"
	if st, code := s.do(job); code != 1 || st.Code != "checkpoint-not-found" {
		t.Errorf("exit %d, %+v", code, st)
	}
}

func TestTheScriptOfTheFunctionStartsTheAgent(t *testing.T) {
	f, s := newFunction(t), newSandbox(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "a"})
	data, _ := json.Marshal(core.AgentJob{Kind: core.StepCapture, ID: "c1", URL: f.URL, Token: f.token, Dir: dir})
	cmd := exec.CommandContext(t.Context(), "sh", "-c", core.DefaultJournal.AgentScript())
	cmd.Env, cmd.Stdin = append(s.env, core.AgentVariable+"="+binary), bytes.NewReader(data)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if already, err := core.ParseAgent(out); err != nil || already {
		t.Fatalf("answer %q: %v, %v", out, already, err)
	}
	if st := s.settled(transfer.JobCapture, "c1"); st.State != "done" {
		t.Errorf("settled %+v", st)
	}
}

func TestWithoutADirectoryTheSandboxSaysWhereTheWorkspaceIs(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "a"})
	main := exec.CommandContext(t.Context(), "sleep", "3600")
	main.Dir, main.Env = dir, []string{"PATH=" + os.Getenv("PATH"), "API=from-init"}
	if err := main.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		main.Process.Kill()
		main.Wait()
	})
	byPID := fmt.Sprint(core.JournalInitVariable, "=", main.Process.Pid)
	for name, env := range map[string][]string{
		"by its own environment":       {core.WorkspaceVariable + "=" + dir},
		"by the main process' place":   {byPID},
		"and the main process secrets": {byPID},
	} {
		if _, err := os.Stat(core.DefaultWorkspace); err == nil && env[0] == byPID {
			continue // this machine has a workspace of its own
		}
		t.Run(name, func(t *testing.T) {
			f, s := newFunction(t), newSandbox(t)
			s.env = append(s.env, env...)
			job := f.job(transfer.JobCapture, "c1", "")
			if strings.HasSuffix(name, "secrets") {
				job.Secrets = []string{"API"}
			}
			if st := s.must(job); st.Files != 1 {
				t.Errorf("captured %+v", st)
			}
		})
	}
	f, s := newFunction(t), newSandbox(t)
	if st, code := s.do(f.job(transfer.JobCapture, "c1", "")); code != 1 || st.Code != "invalid-workspace" {
		t.Errorf("nowhere: exit %d, %+v", code, st)
	}
}

func TestARepositoryThatWaitsForAFetchIsFinishedByHand(t *testing.T) {
	f, s := newFunction(t), newSandbox(t)
	base := t.TempDir()
	remote, dir, fresh := filepath.Join(base, "remote"), filepath.Join(base, "w"), filepath.Join(base, "fresh")
	write(t, remote, map[string]string{"a": "1"})
	git(t, remote, "init", "-q", "-b", "main")
	git(t, remote, "add", "-A")
	git(t, remote, "commit", "-q", "-m", "pushed")
	git(t, base, "clone", "-q", "file://"+remote, dir)
	git(t, dir, "remote", "set-url", "origin", "https://user:pass@example.com/x.git")
	write(t, dir, map[string]string{"a": "2"})
	git(t, dir, "commit", "-q", "-a", "-m", "not pushed")
	head := git(t, dir, "rev-parse", "HEAD")
	s.must(f.job(transfer.JobCapture, "c1", dir))
	st := s.must(f.job(transfer.JobRestore, "r1", fresh))
	if len(st.Git) != 1 || st.Git[0].Result.Restored || st.Git[0].Result.Code != "objects-missing" {
		t.Fatalf("restored %+v", st)
	}
	if got := git(t, fresh, "remote", "get-url", "origin"); got != "https://example.com/x.git\n" {
		t.Errorf("remote %q", got)
	}
	git(t, fresh, "fetch", "-q", "file://"+remote, "+refs/heads/*:refs/remotes/origin/*")
	if out, said, code := s.say("", "git", "restore", fresh, filepath.Join(s.claims, "r1.restore", "git")); code != 0 || !strings.Contains(out, `"restored":true`) {
		t.Fatalf("by hand: exit %d, %s%s", code, out, said)
	}
	if got := git(t, fresh, "rev-parse", "HEAD"); got != head || git(t, fresh, "status", "--porcelain") != "" {
		t.Errorf("HEAD %q, want %q, status %q", got, head, git(t, fresh, "status", "--porcelain"))
	}
}

// needProgram is where a program is. A machine that lacks it runs the test not at all; CI
// has to have it.
func needProgram(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWithoutGitTheWorkspaceIsCapturedAllTheSame(t *testing.T) {
	program := needProgram(t, "git")
	needProgram(t, "unshare")
	if os.Getuid() != 0 {
		t.Skip("hide git: this user may not mount, for only root may") // no component is missing: CI too may run as a user
	}
	f, s := newFunction(t), newSandbox(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "a"})
	git(t, dir, "init", "-q")
	hidden := filepath.Join(t.TempDir(), "git")
	if err := os.WriteFile(hidden, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	data, _ := json.Marshal(f.job(transfer.JobCapture, "c1", dir))
	// A mount namespace of its own: nobody else loses git.
	cmd := exec.CommandContext(t.Context(), "unshare", "-m", "--propagation", "private", "sh", "-c", `mount --bind "$1" "$2" || exit 77; exec "$3" capture`, "sh", hidden, program, binary)
	cmd.Env, cmd.Stdin = s.env, bytes.NewReader(data)
	out, err := cmd.Output()
	if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 77 {
		t.Skip("hide git: root may not mount in this container") // no component is missing, but a capability
	}
	var st state
	if err != nil || json.Unmarshal(out, &st) != nil || st.State != "done" || st.Files != 2 {
		t.Fatalf("captured %s, %v", out, err)
	}
	root, err := manifest.DecodeRoot(f.parent)
	if err != nil || len(root.Skipped) != 1 || root.Skipped[0] != (manifest.Skipped{Path: ".git", Reason: "git repository: git-missing"}) {
		t.Errorf("skipped %+v, %v", root.Skipped, err)
	}
}

// TestWhoAsksForHelpGetsIt, on stdout, and who asks for an unknown job is told which.
func TestWhoAsksForHelpGetsIt(t *testing.T) {
	for _, word := range []string{"help", "--help", "-h"} {
		out, err := exec.CommandContext(t.Context(), binary, word).Output()
		if err != nil || !strings.HasPrefix(string(out), "usage: sandkeeper-agent COMMAND") {
			t.Errorf("%s: %v, %.80q", word, err, out)
		}
	}
	var said bytes.Buffer
	status := exec.CommandContext(t.Context(), binary, "status", "-id", "nobody", "-claims", t.TempDir())
	status.Stderr = &said
	if err := status.Run(); status.ProcessState.ExitCode() != 1 || !strings.Contains(said.String(), `no job "nobody" of kind capture has been claimed in `) {
		t.Errorf("status: %v, %s", err, said.String())
	}
}

// TestThePagesTellCommandsThatExist: each row of docs/agent.md's table, and what else a page
// has a sandbox run. The usage has no command that is not there.
func TestThePagesTellCommandsThatExist(t *testing.T) {
	usage, err := exec.CommandContext(t.Context(), binary, "help").Output()
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]string{}
	for _, path := range append(pages, "../../README.md", "../../ARCHITECTURE.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?m)(?:`|exec |in the sandbox: )sandkeeper-agent ([a-z]+)").FindAllStringSubmatch(string(text), -1) {
			told[m[1]] = path
		}
		if filepath.Base(path) != "agent.md" {
			continue
		}
		_, table, _ := strings.Cut(string(text), "\n## Commands\n")
		table, _, _ = strings.Cut(table, "\n\nExit status")
		for _, row := range regexp.MustCompile("(?m)^\\| (`.*?`) \\|").FindAllStringSubmatch(table, -1) {
			for _, m := range regexp.MustCompile("`([a-z]+)").FindAllStringSubmatch(row[1], -1) {
				told[m[1]] = path
			}
		}
	}
	for word, path := range told {
		command := exec.CommandContext(t.Context(), binary, word)
		var said bytes.Buffer
		command.Stderr = &said
		_ = command.Run() // without a job each has its own complaint
		if strings.Contains(said.String(), "unknown command") {
			t.Errorf("%s tells sandkeeper-agent %s: %s", path, word, said.String())
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^  ([a-z]+) `).FindAllStringSubmatch(string(usage), -1) {
		if told[m[1]] == "" {
			t.Errorf("no page tells sandkeeper-agent %s", m[1])
		}
	}
}
