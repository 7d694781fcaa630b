package policy_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/policy"
)

func bash(command string) policy.Request {
	input, _ := json.Marshal(map[string]string{"command": command})
	return policy.Request{Tool: "Bash", Input: input, Root: "/workspace"}
}

func write(path string) policy.Request {
	input, _ := json.Marshal(map[string]string{"file_path": path})
	return policy.Request{Tool: "Write", Input: input, Root: "/workspace"}
}

func fetch(url string) policy.Request {
	input, _ := json.Marshal(map[string]string{"url": url})
	return policy.Request{Tool: "WebFetch", Input: input}
}

func check(t *testing.T, p policy.Policy, q policy.Request, want bool) {
	t.Helper()
	if d := policy.Decide(p, q); d.Allow != want || d.Reason == "" {
		t.Errorf("%s %s: allow %v (%s), want %v", q.Tool, q.Input, d.Allow, d.Reason, want)
	}
}

func TestAListOfCommandsAllowsNothingElse(t *testing.T) {
	p := policy.Policy{Commands: policy.Rules{Allow: []string{"git status", "go test", "ls", "echo", "npm run *", "cat"}, Deny: []string{"git push"}}, Default: policy.Deny}
	for _, command := range []string{
		"git status", "git status --short", "  git   status", "go test ./...", `"git" 'status'`, "ls *.go", "ls 2>/dev/null", "ls 2>&1",
		"git status && ls", "git status; ls -l", "git status | cat", "npm run build", "echo 'a; rm b'", `echo "a && rm b"`, "ls # rm",
		"git status \\\n --short", "ls &", "cat <<'E'\nrm -rf /\nit's\nE", "ls </dev/null", "echo $HOME",
	} {
		check(t, p, bash(command), true)
	}
	for _, command := range []string{
		"rm -rf /", "git push", "git", "git stash", "ls; rm x", "ls && rm x", "ls || rm x", "ls | sh", "ls\nrm x", "ls & rm x", "(ls)", "{ rm x; }",
		"ls $(rm x)", "ls `rm x`", `ls "$(rm x)"`, "$(echo ls)", "l$x", "FOO=1 ls", "LD_PRELOAD=/x ls", "/tmp/ls", "./ls", "ls > /etc/passwd", "ls >$f",
		"if true; then rm x; fi", "ls <(rm x)", "ls >(rm x)", "ls $'a'; rm x", `ls "a`, "ls 'a", "ls \\", "npm run x; rm y", "git status;rm x", "echo ${x:-$(rm x)}",
		"cat <<E\n$(rm x)\nE", "ls\x00", "ls |& sh", "! rm x", "echo `echo \\`rm x\\``", "npm install", "ls{,}; rm", "f() { rm x; }; ls", "ls\r\nrm x", "",
	} {
		check(t, p, bash(command), false)
	}
}

func TestADeniedCommandIsFoundInItsDisguises(t *testing.T) {
	p := policy.Policy{Commands: policy.Rules{Deny: []string{"rm", "forbidden", "git push"}}}
	for _, command := range []string{
		"ls", "echo rm", "git commit -m 'rm; git push'", "git status", "npm ci && npm test", "grep rm file", "cat <<'E' > x\nit's $(fine)\nE\nls", "for f in a b; do cat $f; done",
		"git commit -m \"$message\"", "sh build.sh", "bash -c 'ls'",
	} {
		check(t, p, bash(command), true)
	}
	for _, command := range disguises {
		check(t, p, bash(command), false)
	}
	for _, command := range []string{"git push", "git -C dir push", "git --no-pager push origin", "git -c a=b push", "git $verb", "/usr/bin/git push"} {
		check(t, p, bash(command), false)
	}
}

// disguises all run the program forbidden, in bash.
var disguises = []string{
	"forbidden", "true; forbidden", "true && forbidden", "false || forbidden", "true\nforbidden", "true | forbidden", "true & forbidden",
	"for\\\nbidden", `f"orb"idden`, `f'orb'idden`, `\forbidden`, `f\orbidden`, "$(echo forbidden)", "x=forbidden; $x", "`echo forbidden`", "echo $(forbidden)",
	"echo `forbidden`", `echo "$(forbidden)"`, "echo ${x:-$(forbidden)}", "(forbidden)", "{ forbidden; }", "if true; then forbidden; fi", "! forbidden",
	"while forbidden; do break; done", "x=1 forbidden", "env forbidden", "env -i PATH=$PATH forbidden", "command forbidden", "exec forbidden", "nohup forbidden",
	"bash -c forbidden", `bash -c "for""bidden"`, "bash -c 'true; forbidden'", "bash -c 'bash -c forbidden'", "eval forbidden", `eval for bidden "" ; eval forbidden`,
	"timeout 5 forbidden", "echo x | xargs forbidden", "find . -maxdepth 0 -exec forbidden \\;", "cat <(forbidden)", "forbid{den,}", "$'\\x66orbidden'", "time forbidden",
	"echo \"$( (true) ; forbidden )\"", "echo \"$(case x in x) forbidden ;; esac)\"", "cat <<E\n'\nE\nforbidden\n: '", "cat <<E\n$(forbidden)\nE", "bash <<E\nforbidden\nE",
	"echo forbidden | bash", "bash <<<forbidden", "echo \"$'\" ; forbidden ; echo \"'\"", "# don't\nforbidden\n# '", "echo a#'\nforbidden\n'; forbidden",
	"echo `echo \\`forbidden\\``", "f() { forbidden; }; f", "true &>/dev/null; forbidden", "forbidden>/dev/null", ">/dev/null forbidden", "2>&1 forbidden", "x[0]=1 forbidden",
	"case x in x) forbidden;; esac", "until forbidden; do break; done", "trap forbidden EXIT", "true ;forbidden", "cat <<-E\n\tx\n\tE\nforbidden", "cat <<\"E\"; forbidden\nx\nE", "echo $((1)); forbidden",
	"coproc forbidden; wait", "function f { forbidden; }; f", "function f\n{ forbidden; }\nf", "time -p forbidden", "time -- forbidden", "! time -p forbidden",
	"env -S 'forbidden x'", "env -vS 'forbidden x'", "env --split-string='forbidden x'", "env -S forbidden x", "shopt -s expand_aliases\nalias x='forbidden y'\nx",
	"mapfile -C forbidden -c 1 <<<x", "source <(echo forbidden)", ". /dev/stdin <<<forbidden", "source /dev/stdin <<E\nforbidden\nE", "bash /dev/stdin <<<forbidden",
	"echo forbidden | bash /dev/fd/0", "echo forbidden | xargs -n1 env",
}

// TestTheDisguisesAreReal runs each in a shell: what the test above calls a bypass does
// run the program.
func TestTheDisguisesAreReal(t *testing.T) {
	shell, err := exec.LookPath("bash")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("no bash")
	}
	bin := t.TempDir()
	script := "#!/bin/sh\necho ran >>\"$MARK\"\n"
	if err := os.WriteFile(filepath.Join(bin, "forbidden"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, command := range disguises {
		mark := filepath.Join(t.TempDir(), "mark")
		cmd := exec.CommandContext(t.Context(), shell, "-c", command)
		cmd.Dir = t.TempDir()
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "MARK="+mark)
		out, _ := cmd.CombinedOutput() // its status says nothing
		if _, err := os.Stat(mark); err != nil && !strings.HasPrefix(command, "env -i") {
			t.Errorf("%q does not run it: %s", command, out)
		}
	}
}

func TestProgramsGivenAsWords(t *testing.T) {
	p := policy.Policy{Commands: policy.Rules{Allow: []string{"git status"}}}
	for words, want := range map[string]bool{
		`["git","status"]`: true, `["git","push"]`: false, `["bash","-lc","git status"]`: true, `["bash","-lc","git status; rm x"]`: false, `["git","status; rm x"]`: false, `7`: false,
	} {
		check(t, p, policy.Request{Tool: "shell", Input: json.RawMessage(`{"command":` + words + `}`)}, want)
	}
}

func TestPathsAreCleanedAndLinksFollowed(t *testing.T) {
	root := t.TempDir()
	outside := t.TempDir()
	for name, to := range map[string]string{"out": outside, "up": "..", "loop": "loop", "in": "src"} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "src", "keep"), 0o755); err != nil {
		t.Fatal(err)
	}
	p := policy.Policy{Write: policy.Rules{Allow: []string{"src", "in", "*.md", "docs/**/*.txt"}, Deny: []string{"src/keep", "**/.env"}}}
	for name, want := range map[string]bool{
		"src/a.go": true, "./src//a.go": true, "src/../src/a.go": true, "in/a.go": true, "README.md": true, "docs/a/b/c.txt": true, "docs/c.txt": true, root + "/src/x": true,
		"a.go": false, "src/../a.go": false, "src/keep": false, "src/keep/x": false, "in/keep/x": false, "src/x/../keep/y": false, "out/x.md": false, "src/.env": false,
		"/etc/passwd": false, "../x.md": false, "srcs/x": false, "sub/README.md": false, "out/../README.md": false, "src/a\x00b": false, "in/../../x.md": false,
	} {
		q := write(name)
		q.Root = root
		check(t, p, q, want)
	}
	check(t, p, policy.Request{Tool: "apply_patch", Input: json.RawMessage(`{"input":"*** Begin Patch\n*** Update File: src/a\n*** Add File: /etc/x\n"}`), Root: root}, false)
	check(t, p, policy.Request{Tool: "apply_patch", Input: json.RawMessage(`{"input":"*** Begin Patch\n*** Update File: src/a\n"}`), Root: root}, true)
	check(t, p, policy.Request{Tool: "str_replace_editor", Input: json.RawMessage(`{"command":"create","path":"/etc/x"}`), Root: root}, false)
	check(t, p, policy.Request{Tool: "Read", Input: json.RawMessage(`{"file_path":"/etc/hosts"}`), Root: root}, true)
	check(t, p, bash("ls > /etc/passwd"), false)
	check(t, p, bash("ls 2>/dev/null"), true)
}

// TestAPathIsTakenWhereTheCommandRuns: what a script changes to, and what the tool is
// told to run in, is where its relative paths begin.
func TestAPathIsTakenWhereTheCommandRuns(t *testing.T) {
	p := policy.Policy{Write: policy.Rules{Allow: []string{"/workspace"}, Deny: []string{"/workspace/keep"}}}
	for _, command := range []string{
		"cd src && go test >out", "cd /workspace/src; echo >x", "cd -- src; echo >x", "for f in a b; do echo $f >>x; done", "sh -c 'cd src; echo >x'", "x=$(ls); cd src; echo >x",
		"env A=B ls >x", "cd /etc; echo >/workspace/x", "ls >&2", "ls 2>&1-", "ls >x 2>&1;ls", "cd /etc; cat <x",
	} {
		check(t, p, bash(command), true)
	}
	for _, command := range []string{
		"cd /etc && echo >x", "echo >x; cd /", "cd src; echo >../x", "cd /etc\necho >x", "pushd /etc; echo >x", "builtin cd /etc; echo >x", "command cd /etc; echo >x", "(cd /etc; cat >x)", "cd keep; echo >x", "cd ..; echo >x", "cd -; echo >x", "cd; echo >x",
		"cd $d; echo >x", "$c /etc; echo >x", "eval 'cd /etc'; echo >x", "sh -c 'cd /etc; echo >x'", "for i in 1 2; do echo >x; cd ..; done", "f() { cd ..; }; f; f; echo >../x", "CDPATH=/ cd etc; echo >x",
		"env -C /etc sh -c 'echo >x'", "su - -c 'echo >x'", "cd a; cd b; cd c; cd d; cd ../../../../..; echo >x", "echo x >&1/../../etc/x", "echo x >&/etc/x", "echo x &>/etc/x", "echo x <>/etc/x",
	} {
		check(t, p, bash(command), false)
	}
	for input, want := range map[string]bool{
		`{"command":"echo >x","workdir":"/etc"}`: false, `{"command":"echo >x","cwd":".."}`: false, `{"command":"echo >x","working_directory":"keep"}`: false, `{"command":"echo >x","workdir":"src"}`: true,
		`{"command":["bash","-lc","echo >x"],"workdir":"/etc"}`: false, `{"command":"echo >x","cwd":"src","workdir":"src"}`: false, `{"path":"x","cwd":"/etc"}`: false, `{"path":"/workspace/x","cwd":"/etc"}`: true,
	} {
		check(t, p, policy.Request{Tool: "shell", Input: json.RawMessage(input), Root: "/workspace"}, want)
	}
}

// TestMembersAreKnownHoweverTheyAreSpelled, and whether they are one text or many.
func TestMembersAreKnownHoweverTheyAreSpelled(t *testing.T) {
	p := policy.Policy{Commands: policy.Rules{Deny: []string{"forbidden", "git push"}}, Write: policy.Rules{Deny: []string{"/etc"}}, Reach: policy.Rules{Deny: []string{"evil.com"}}}
	for _, input := range []string{
		`{"filePath":"/etc/x"}`, `{"FilePath":"/etc/x"}`, `{"file-path":"/etc/x"}`, `{"notebookPath":"/etc/x"}`, `{"paths":["/workspace/x","/etc/x"]}`, `{"source":"/etc/x","destination":"/workspace/x"}`, `{"outputFile":"/etc/x"}`,
		`{"command":"sudo","args":["forbidden"]}`, `{"command":"git","args":["push"]}`, `{"command":"sh","args":["-c","true; forbidden"]}`, `{"commands":["ls","forbidden"]}`, `{"shellCommand":"forbidden"}`, `{"commandLine":"forbidden"}`,
		`{"urls":["https://example.com","https://evil.com"]}`, `{"file_path":"/workspace/x","filePath":"/etc/x"}`, `{"paths":[{"path":"/etc/x"}]}`,
	} {
		check(t, p, policy.Request{Tool: "move_file", Input: json.RawMessage(input), Root: "/workspace"}, false)
	}
	for _, input := range []string{`{"filePath":"/workspace/x"}`, `{"command":"git","args":["pull"]}`, `{"paths":[]}`, `{"commands":["ls"]}`, `{"source":"a","destination":"b"}`} {
		check(t, p, policy.Request{Tool: "move_file", Input: json.RawMessage(input), Root: "/workspace"}, true)
	}
}

func TestHostsAreKnownHoweverTheyAreWritten(t *testing.T) {
	p := policy.Policy{Reach: policy.Rules{Allow: []string{"example.com", "*.Example.org", "10.0.0.1"}, Deny: []string{"bad.example.org", "127.0.0.1"}}, Default: policy.Deny}
	for url, want := range map[string]bool{
		"https://example.com/x": true, "https://EXAMPLE.com.": true, "example.com": true, "example.com:443": true, "https://a.b.example.org": true, "http://10.0.0.1": true, "http://167772161/": true, "http://0xa.1": true,
		"https://example.org": false, "https://evilexample.org": false, "https://BAD.example.org.": false, "https://example.com@evil.com": false, "https://evil.com/example.com": false, "https://evil.com#example.com": false,
		`https://evil.com\@example.com`: false, "http://2130706433": false, "http://127.1": false, "http://0177.0.0.1": false, "http://[::ffff:127.0.0.1]": false, "https://exämple.com": false, "https://example.com.evil.com": false, "": false, "https://": false, "http://exam\tple.com": false,
	} {
		check(t, p, fetch(url), want)
	}
	q := policy.Policy{Reach: p.Reach, Commands: policy.Rules{Allow: []string{"curl"}}, Default: policy.Deny}
	for command, want := range map[string]bool{
		"curl https://example.com/x": true, "curl --url=https://evil.com": false, "curl https://example.com$x": false, "curl 'http://example.com http://evil.com'": false, "curl https://example.com/$x": true,
	} {
		check(t, q, bash(command), want)
	}
}

func TestWhatCannotBeTold(t *testing.T) {
	open, closed := policy.Policy{}, policy.Policy{Default: policy.Deny}
	for _, q := range []policy.Request{
		{Tool: "mcp__x__y", Input: json.RawMessage(`{"a":1}`)}, {Tool: "x", Input: json.RawMessage(`[]`)}, {Tool: "x", Input: json.RawMessage(`{"command":{}}`)},
		{Tool: "Bash", Input: json.RawMessage(`{"command":"ls","Command":"rm"}`)}, bash("ls '"),
	} {
		check(t, open, q, true)
		check(t, closed, q, false)
	}
	check(t, closed, policy.Request{Tool: "Grep", Input: json.RawMessage(`{"path":"/"}`)}, true)
}

func TestARequestThatNestsWithoutEndIsAnswered(t *testing.T) {
	p := policy.Policy{Commands: policy.Rules{Deny: []string{"rm"}}}
	for _, piece := range []string{"ssh ", "eval ", "sudo ", "$(", "`", "${", "(", "bash <<E\n", "eval 'eval '", "$x "} {
		check(t, p, bash(strings.Repeat(piece, 3000)+"rm"), false)
	}
}

// FuzzDecide: a command that is put beside another, by whatever joins two, is denied
// whatever the other is, where only "ls" is allowed and the other can be read at all; and
// nothing panics.
func FuzzDecide(f *testing.F) {
	for _, seed := range append([]string{"ls", "cat <<E\nx\nE", `a"b`}, disguises...) {
		f.Add(seed)
	}
	only := policy.Policy{Commands: policy.Rules{Allow: []string{"ls"}}}
	not := policy.Policy{Commands: policy.Rules{Deny: []string{"rm"}}}
	f.Fuzz(func(t *testing.T, other string) {
		for _, command := range []string{"rm x; " + other, "rm x\n" + other, "rm x && " + other} {
			if policy.Decide(only, bash(command)).Allow || policy.Decide(not, bash(command)).Allow {
				t.Errorf("allowed: %q", command)
			}
		}
		// What is allowed alone is allowed twice, and no more than that with rm behind it.
		if policy.Decide(only, bash(other)).Allow && policy.Decide(only, bash(other+"\nrm x")).Allow && !strings.Contains(other, "<<") {
			t.Errorf("allowed behind %q", other)
		}
	})
}
