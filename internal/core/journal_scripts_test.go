package core_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/wrapper"
)

// testNonce is this process' own: by a run's id and nonce its processes are told apart in
// the one process table that every test on this machine looks into.
var testNonce = core.NewJournalNonce()

// shells are the POSIX shells of this machine: every script has to run in each.
func shells(t testing.TB) [][]string {
	t.Helper()
	var found [][]string
	for _, words := range [][]string{{"sh"}, {"busybox", "sh"}, {"bash", "--posix"}} {
		if _, err := exec.LookPath(words[0]); err == nil {
			found = append(found, words)
		}
	}
	if len(found) == 0 {
		t.Fatal("run journal scripts: no POSIX shell on this machine")
	}
	return found
}

// needProgram is where a program is. A machine that lacks it runs the test not at all; CI
// has to have it.
func needProgram(t testing.TB, name string) string {
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

// box is a sandbox of its own: a journal directory, a working directory and a shell.
type box struct {
	t     testing.TB
	shell []string
	dir   string
	env   []string
	runs  core.JournalFormat
	// program says that the agent binary begins agents, rather than a script.
	program bool
}

func newBox(t testing.TB, shell []string) *box {
	root := t.TempDir()
	dir := filepath.Join(root, "runs")
	// With the race detector the program would sleep a second before each exit.
	return &box{t: t, shell: shell, dir: dir, runs: core.DefaultJournal, env: []string{
		"GORACE=atexit_sleep_ms=0", "PATH=" + os.Getenv("PATH"), "HOME=" + root,
		core.JournalDirVariable + "=" + dir, core.JournalInitVariable + "=self",
	}}
}

// inEachShell runs check in a fresh box for each shell.
func inEachShell(t *testing.T, check func(t *testing.T, b *box)) {
	for _, shell := range shells(t) {
		t.Run(strings.Join(shell, " "), func(t *testing.T) { check(t, newBox(t, shell)) })
	}
}

// inEachWrapper is inEachShell, and once more with the wrapper that is a program.
func inEachWrapper(t *testing.T, check func(t *testing.T, b *box)) {
	inEachShell(t, check)
	t.Run("program", func(t *testing.T) {
		b := newBox(t, shells(t)[0])
		b.program = true
		check(t, b)
	})
}

// starting is the command that begins an agent, and its stdin.
func (b *box) starting(ctx context.Context, s core.JournalStart, input string, hold *os.File) (*exec.Cmd, string) {
	b.t.Helper()
	script, err := b.runs.StartScript(s)
	if err != nil {
		b.t.Fatal(err)
	}
	cmd := b.command(ctx, script, hold)
	if !b.program {
		return cmd, input
	}
	job := wrapper.Job{Run: s.Run, Nonce: s.Nonce, Argv: s.Argv, Shell: s.Shell, Dir: s.Dir}
	if s.Input {
		job.InputBytes = &s.InputBytes
	}
	line, err := json.Marshal(job)
	if err != nil {
		b.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		b.t.Fatal(err)
	}
	if len(b.shell) > 2 { // what runs the shell runs the program as well
		cmd.Args = append(slices.Clone(b.shell[:len(b.shell)-1]), self, "run")
	} else {
		cmd.Path, cmd.Args = self, []string{self, "run"}
	}
	return cmd, string(line) + "\n" + input
}

// begun waits until the wrapper of id has left a trace: on a busy machine a program may
// begin later than its start waits for it.
func (b *box) begun(id core.RunID) {
	b.t.Helper()
	for end := time.Now().Add(2 * time.Minute); b.probe(id, 0).Wrapper == core.WrapperAbsent; {
		if time.Now().After(end) {
			b.t.Fatal("wait for the wrapper: it does not begin")
		}
	}
}

// gone waits until the wrapper of id is seen no more, and with it all it has begun.
func (b *box) gone(id core.RunID) {
	b.t.Helper()
	for end := time.Now().Add(2 * time.Minute); b.probe(id, 0).Wrapper == core.WrapperAlive; {
		if time.Now().After(end) {
			b.t.Fatal("wait for the wrapper: it lives on")
		}
	}
}

// command runs script under the box's shell. hold, if not nil, is inherited by
// everything that the script leaves behind.
func (b *box) command(ctx context.Context, script string, hold *os.File) *exec.Cmd {
	words := append(slices.Clone(b.shell), "-c", script)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env, cmd.Dir = b.env, filepath.Dir(b.dir)
	// A shell that is killed must not leave this test waiting for its pipes.
	cmd.WaitDelay = time.Minute
	if hold != nil {
		// Scripts close the descriptors 3 to 9 of what they detach.
		cmd.ExtraFiles = append(make([]*os.File, 7), hold)
	}
	return cmd
}

func (b *box) run(script string, input string, hold *os.File) []byte {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 3*time.Minute)
	defer cancel()
	return b.execute(b.command(ctx, script, hold), input)
}

func (b *box) execute(cmd *exec.Cmd, input string) []byte {
	b.t.Helper()
	var out, diagnostics bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &diagnostics
	if err := cmd.Run(); err != nil {
		b.t.Fatalf("run script: %v\nstdout: %q\nstderr: %s", err, out.Bytes(), diagnostics.Bytes())
	}
	if diagnostics.Len() > 0 {
		b.t.Errorf("run script: stderr: %s", diagnostics.Bytes())
	}
	return out.Bytes()
}

// agent is a started agent. wait returns when it and everything it left is gone.
type agent struct {
	core.JournalStarted
	wait func()
}

func (b *box) start(s core.JournalStart, input string) agent {
	b.t.Helper()
	s.Nonce = testNonce
	return b.startWith(s, input)
}

func (b *box) startWith(s core.JournalStart, input string) agent {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 3*time.Minute)
	defer cancel()
	r, w, err := os.Pipe()
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { r.Close() })
	out := b.execute(b.starting(ctx, s, input, w))
	w.Close()
	started, err := core.ParseStart(out)
	if err != nil {
		b.t.Fatalf("parse %q: %v", out, err)
	}
	if b.program {
		if !started.Already && started.Wrapper == core.WrapperAbsent {
			b.begun(s.Run)
		}
		return agent{started, func() { b.gone(s.Run) }}
	}
	return agent{started, func() {
		r.SetReadDeadline(time.Now().Add(2 * time.Minute))
		if n, err := r.Read(make([]byte, 1)); n != 0 || err == nil || os.IsTimeout(err) {
			b.t.Fatalf("wait for the agent's processes: %d, %v", n, err)
		}
	}}
}

func (b *box) shellRun(id core.RunID, text string) {
	b.t.Helper()
	b.start(core.JournalStart{Run: id, Shell: text}, "").wait()
}

func (b *box) probe(id core.RunID, logEnd int64) core.JournalProbe {
	b.t.Helper()
	script, err := b.runs.ProbeScript(id, testNonce, logEnd)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.runs.ParseProbe(testNonce, b.run(script, "", nil))
}

func (b *box) page(id core.RunID, from int64, max int) core.JournalPage {
	b.t.Helper()
	script, err := b.runs.PageScript(id, from, max)
	if err != nil {
		b.t.Fatal(err)
	}
	out := b.run(script, "", nil)
	p, err := core.ParsePage(out)
	if err != nil {
		b.t.Fatalf("parse page %.200q: %v", out, err)
	}
	return p
}

func (b *box) terminate(id core.RunID, grace time.Duration) core.JournalTerminated {
	b.t.Helper()
	script, err := b.runs.TerminateScript(id, testNonce, grace)
	if err != nil {
		b.t.Fatal(err)
	}
	out := b.run(script, "", nil)
	done, err := core.ParseTerminate(out)
	if err != nil {
		b.t.Fatalf("parse %q: %v", out, err)
	}
	return done
}

func (b *box) paths(id core.RunID) core.JournalPaths {
	f := b.runs
	f.Dir = b.dir
	paths, err := f.Paths(id)
	if err != nil {
		b.t.Fatal(err)
	}
	return paths
}

func (b *box) journal(id core.RunID) string {
	b.t.Helper()
	return readFile(b.t, b.paths(id).Journal)
}

// transcript reads the journal by pages of max bytes, as a drain does.
func (b *box) transcript(id core.RunID, max int) (string, core.JournalCut) {
	b.t.Helper()
	var log []byte
	for range 10000 {
		at := int64(len(log))
		page := b.page(id, at, max)
		fresh, ok := page.After(at, log)
		if !ok {
			b.t.Fatalf("page at %d does not continue the log", at)
		}
		edge := core.EdgeMore
		if page.ToEnd() {
			edge = core.EdgeFinal
		}
		cut := b.runs.Cut(testNonce, fresh, edge)
		log = append(log, fresh[:cut.Append]...)
		if cut.Sealed || page.ToEnd() {
			return string(log), cut
		}
		if cut.Append == 0 {
			b.t.Fatalf("page at %d: nothing to append", at)
		}
	}
	b.t.Fatal("read journal: no end")
	return "", core.JournalCut{}
}

func readFile(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestStartWritesTheAgentsStdoutAndThenTheSentinel(t *testing.T) {
	end := "\n" + core.DefaultJournal.Sentinel(testNonce, 3) + "\n"
	for name, output := range map[string]string{
		"a line":                "one\n",
		"no final newline":      "one",
		"nothing":               "",
		"blank lines":           "\n\n",
		"many bytes a char":     "日本 🙂",
		"a forged sentinel":     core.DefaultJournal.Sentinel("0000000000000000", 0) + "\n",
		"carriage returns":      "a\r\nb\r",
		"an escape and a quote": "it's \x1b[0m",
	} {
		t.Run(name, func(t *testing.T) {
			inEachWrapper(t, func(t *testing.T, b *box) {
				b.shellRun("r/1", "printf %s '"+strings.ReplaceAll(output, "'", `'\''`)+"'; echo oops >&2; exit 3")
				if got := b.journal("r/1"); got != output+end {
					t.Errorf("journal %q, want %q", got, output+end)
				}
				if p := b.settled("r/1"); p.State != core.JournalFinished || p.Exit != 3 || string(p.Stderr) != "oops\n" || !p.Marker || p.Wrapper != core.WrapperGone {
					t.Errorf("probe %+v", p)
				}
				if got, cut := b.transcript("r/1", 0); got != output || !cut.Sealed || cut.Exit != 3 {
					t.Errorf("transcript %q, %+v, want %q", got, cut, output)
				}
			})
		})
	}
}

func TestStartBeginsAnAgentOnce(t *testing.T) {
	inEachWrapper(t, func(t *testing.T, b *box) {
		first := b.start(core.JournalStart{Run: "r", Shell: "echo begun"}, "")
		second := b.start(core.JournalStart{Run: "r", Shell: "echo begun"}, "")
		first.wait()
		b.settled("r")
		third := b.start(core.JournalStart{Run: "r", Shell: "echo begun"}, "")
		if first.Already || !second.Already || !third.Already || third.Wrapper != core.WrapperGone {
			t.Errorf("answers %+v, %+v, %+v", first, second, third)
		}
		if got := strings.Count(b.journal("r"), "begun"); got != 1 {
			t.Errorf("agents begun: %d, want 1", got)
		}
	})
}

func TestStartGivesTheAgentItsWordsInputAndPlace(t *testing.T) {
	inEachWrapper(t, func(t *testing.T, b *box) {
		dir := t.TempDir()
		words := []string{"sh", "-c", `pwd; printf '<%s>' "$@"; cat; env | grep ^SANDKEEPER_RUN=`, "x", "a b", "", "$(id)", "it's", "new\nline", "é"}
		b.start(core.JournalStart{Run: "r_1", Argv: words, Dir: dir, Input: true, InputBytes: 8}, "in\x00 put\n").wait()
		got, cut := b.transcript("r_1", 0)
		sum := sha256.Sum256([]byte(testNonce)) // the variable is read by anybody in the sandbox: the nonce is not in it
		want := dir + "\n<a b><><$(id)><it's><new\nline><é>in\x00 put\nSANDKEEPER_RUN=r_5f1." + hex.EncodeToString(sum[:8]) + "\n"
		if got != want || !cut.Sealed || cut.Exit != 0 {
			t.Errorf("transcript %q, %+v, want %q", got, cut, want)
		}
		if entries, _ := filepath.Glob(filepath.Join(b.dir, "*", "input")); len(entries) != 0 {
			t.Errorf("the input was left in %v", entries)
		}
	})
}

func TestStartRefusesInputThatIsCutShort(t *testing.T) {
	inEachWrapper(t, func(t *testing.T, b *box) {
		_, err := core.ParseStart(b.execute(b.starting(t.Context(), core.JournalStart{Run: "r", Nonce: testNonce, Shell: "cat", Input: true, InputBytes: 9}, "short", nil)))
		if err == nil || !strings.Contains(err.Error(), "input-incomplete") {
			t.Errorf("parse answer: %v, want input-incomplete", err)
		}
		if p := b.probe("r", 0); p.Marker || p.Present {
			t.Errorf("something was changed: %+v", p)
		}
	})
}

func TestStartDetachesTheAgent(t *testing.T) {
	inEachWrapper(t, func(t *testing.T, b *box) {
		gate := filepath.Join(b.t.TempDir(), "gate")
		if err := syscall.Mkfifo(gate, 0o600); err != nil {
			t.Fatal(err)
		}
		a := b.start(core.JournalStart{Run: "r", Shell: "echo before; read x <" + gate + "; echo after"}, "")
		p := b.probe("r", 0)
		if p.State != core.JournalProducing || p.Wrapper != core.WrapperAlive || a.Wrapper != core.WrapperAlive {
			t.Errorf("while it works: %+v, %+v", a, p)
		}
		if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
			t.Fatal(err)
		}
		a.wait()
		if got, _ := b.transcript("r", 0); got != "before\nafter\n" {
			t.Errorf("transcript %q", got)
		}
	})
}

func TestStartKeepsAPrefixThatSomebodyHasRead(t *testing.T) {
	b := newBox(t, shells(t)[0])
	b.write("r", "read already\n")
	b.shellRun("r", "echo new")
	if got, _ := b.transcript("r", 0); got != "read already\nnew\n" {
		t.Errorf("transcript %q", got)
	}
}

// gated starts an agent that waits for a line in the fifo gate.
func (b *box) gated(id core.RunID, hold *os.File) (gate string) {
	b.t.Helper()
	gate = filepath.Join(b.t.TempDir(), "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		b.t.Fatal(err)
	}
	cmd, input := b.starting(b.t.Context(), core.JournalStart{Run: id, Nonce: testNonce, Shell: "echo ready; read x <" + gate}, "", nil)
	cmd.Stdin, cmd.ExtraFiles = strings.NewReader(input), []*os.File{hold}
	if out, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("run script: %v: %s", err, out)
	}
	b.await(id, "ready")
	return gate
}

// An exec channel keeps its terminal and its status on descriptors of its own; an
// agent that held one would keep the channel open until it ends.
func TestStartLeavesNothingOpenInTheAgent(t *testing.T) {
	inEachWrapper(t, func(t *testing.T, b *box) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		gate := b.gated("r", w)
		w.Close()
		r.SetReadDeadline(time.Now().Add(2 * time.Minute))
		if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("read the other end of a descriptor of the script: %v, want EOF", err)
		}
		if p := b.probe("r", 0); p.Wrapper != core.WrapperAlive {
			t.Errorf("probe: %+v", p)
		}
		if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
			t.Fatal(err)
		}
		b.await("r", "__exit")
	})
}

func TestWrapperOutlivesASignalToItself(t *testing.T) {
	inEachShell(t, func(t *testing.T, b *box) {
		gate := b.gated("r", nil)
		pid, _, _ := strings.Cut(readFile(t, filepath.Join(b.paths("r").Marker, "wrapper")), " ")
		b.run("kill -TERM "+pid+"; kill -HUP "+pid, "", nil)
		if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
			t.Fatal(err)
		}
		b.await("r", "__exit")
		if p := b.probe("r", 0); p.State != core.JournalFinished || p.Exit != 0 {
			t.Errorf("probe: %+v", p)
		}
	})
}

func TestTerminateBeforeTheStartPreventsIt(t *testing.T) {
	inEachWrapper(t, func(t *testing.T, b *box) {
		for range 2 {
			if done := b.terminate("r", time.Second); !done.Prevented || done.Sentinel {
				t.Errorf("terminate: %+v", done)
			}
		}
		if a := b.start(core.JournalStart{Run: "r", Shell: "echo begun"}, ""); !a.Already || a.Wrapper != core.WrapperAbsent {
			t.Errorf("start after it: %+v", a)
		}
		if p := b.probe("r", 0); p.Present || !p.Marker || !p.Dead() {
			t.Errorf("probe after it: %+v", p)
		}
	})
}

// The setsid that stands between the claim and the wrapper terminates the run first.
func TestTerminateBetweenClaimAndAgentPreventsIt(t *testing.T) {
	b := newBox(t, shells(t)[0])
	setsid := needProgram(t, "setsid")
	script, err := b.runs.TerminateScript("r", testNonce, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	answer := filepath.Join(bin, "answer")
	for name, text := range map[string]string{"script": script, "setsid": "#!/bin/sh\nsh " + bin + "/script >" + answer + "\nexec " + setsid + ` "$@"` + "\n"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	b.env = append(b.env, "PATH="+bin+":"+os.Getenv("PATH"))
	b.start(core.JournalStart{Run: "r", Shell: "echo begun"}, "").wait()
	done, err := core.ParseTerminate([]byte(readFile(t, answer)))
	if err != nil || !done.Prevented {
		t.Errorf("terminate: %+v, %v", done, err)
	}
	if got := b.journal("r"); got != "" {
		t.Errorf("journal %q: the agent has begun", got)
	}
	if p := b.probe("r", 0); p.State != core.JournalProducing || !p.Dead() {
		t.Errorf("probe: %+v", p)
	}
}

func TestTerminateEndsTheAgentAndAllItLeft(t *testing.T) {
	for name, c := range map[string]struct {
		agent    string
		sentinel bool // so that the grace is not used up, however busy the machine is
	}{
		"an agent that heeds SIGTERM":           {`trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.1; done`, true},
		"an agent that ignores it":              {`trap '' TERM; echo ready; while :; do sleep 0.1; done`, false},
		"a child in a session of its own":       {`setsid sleep 1000 & echo ready; wait`, true},
		"an orphan in a session of its own":     {`(setsid sleep 1000 &); echo ready; sleep 1000`, true},
		"an orphan without its environment":     {`(env -i sleep 1000 &); echo ready; sleep 1000`, true},
		"a stopped agent":                       {`echo ready; kill -STOP $$; sleep 1000`, true},
		"an agent that ended and left a server": {`sleep 1000 & echo ready`, true},
	} {
		t.Run(name, func(t *testing.T) {
			inEachWrapper(t, func(t *testing.T, b *box) {
				a := b.start(core.JournalStart{Run: "r", Shell: c.agent}, "")
				b.await("r", "ready")
				grace := time.Second
				if c.sentinel {
					grace = 30 * time.Second
				}
				done := b.terminate("r", grace)
				a.wait()
				if done.Prevented || done.Sentinel != c.sentinel || done.Left != 0 {
					t.Errorf("terminate: %+v", done)
				}
				p := b.settled("r")
				if (p.State == core.JournalFinished) != c.sentinel || p.Wrapper != core.WrapperGone {
					t.Errorf("probe: %+v", p)
				}
				if again := b.terminate("r", time.Second); again.Sentinel != c.sentinel || again.Signaled+again.Killed+again.Left != 0 {
					t.Errorf("terminate again: %+v", again)
				}
			})
		})
	}
}

// settled probes until the wrapper of id is not seen alive: a process that has closed
// its files may stand in the table for a moment still.
func (b *box) settled(id core.RunID) core.JournalProbe {
	b.t.Helper()
	b.gone(id)
	return b.probe(id, 0)
}

// await waits until the journal of id holds text, asking by script.
func (b *box) await(id core.RunID, text string) {
	b.t.Helper()
	b.run(`i=0; until grep -q `+text+` '`+b.paths(id).Journal+`' 2>/dev/null; do i=$((i+1)); [ $i -lt 2400 ] || exit 1; sleep 0.05; done`, "", nil)
}

func TestTerminateLeavesOtherRunsAlone(t *testing.T) {
	b := newBox(t, shells(t)[0])
	other := b.start(core.JournalStart{Run: "r-2", Shell: "trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done"}, "")
	b.await("r-2", "ready")
	a := b.start(core.JournalStart{Run: "r", Shell: "echo ready; sleep 1000"}, "")
	b.await("r", "ready")
	b.terminate("r", 5*time.Second)
	a.wait()
	if p := b.probe("r-2", 0); p.State != core.JournalProducing || p.Wrapper != core.WrapperAlive {
		t.Errorf("the other run: %+v", p)
	}
	if done := b.terminate("r-2", 5*time.Second); !done.Sentinel {
		t.Errorf("terminate the other: %+v", done)
	}
	other.wait()
}

func TestProbeFindsTheSentinelBehindLaterOutput(t *testing.T) {
	inEachShell(t, func(t *testing.T, b *box) {
		gate := filepath.Join(b.t.TempDir(), "gate")
		if err := syscall.Mkfifo(gate, 0o600); err != nil {
			t.Fatal(err)
		}
		a := b.start(core.JournalStart{Run: "r", Shell: "(read x <" + gate + "; head -c 20000 /dev/zero) & echo out; exit 4"}, "")
		b.await("r", "__exit")
		if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
			t.Fatal(err)
		}
		a.wait()
		if p := b.probe("r", 0); p.State != core.JournalFinished || p.Exit != 4 || p.Size < 20000 {
			t.Errorf("probe: %v %d, size %d", p.State, p.Exit, p.Size)
		}
		if got, cut := b.transcript("r", 0); got != "out\n" || cut.Exit != 4 {
			t.Errorf("transcript %q", got)
		}
	})
}

func TestProbeAndPagesReadAnyJournalByteForByte(t *testing.T) {
	inEachShell(t, func(t *testing.T, b *box) {
		b.mkdir()
		data := make([]byte, 300_000)
		for i := range data {
			data[i] = byte(i * i >> 3)
		}
		b.write("r", string(data)+"\n"+b.runs.Sentinel(testNonce, 0)+"\n")
		for _, size := range []int{8192, 100_000, 0} {
			if got, cut := b.transcript("r", size); got != string(data) || !cut.Sealed {
				t.Errorf("pages of %d: %d bytes, %+v, want %d", size, len(got), cut, len(data))
			}
		}
		at := int64(len(data) - 5000)
		page, ok := b.probe("r", at).Page()
		if !ok {
			t.Fatal("the probe carries no rest")
		}
		fresh, ok := page.After(at, data[:at])
		if cut := b.runs.Cut(testNonce, fresh, core.EdgeEnd); !ok || !cut.Sealed || !bytes.Equal(fresh[:cut.Append], data[at:]) {
			t.Errorf("rest: %v, %+v", ok, cut)
		}
		if _, ok := b.probe("r", 0).Page(); ok {
			t.Error("the probe carries more than it should")
		}
	})
}

func (b *box) mkdir() {
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) write(id core.RunID, text string) {
	b.mkdir()
	if err := os.WriteFile(b.paths(id).Journal, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func TestScriptsReadRegularFilesOnly(t *testing.T) {
	inEachWrapper(t, func(t *testing.T, b *box) {
		b.mkdir()
		target := filepath.Join(b.t.TempDir(), "target")
		os.WriteFile(target, []byte(b.runs.Sentinel(testNonce, 0)), 0o600)
		for reason, make := range map[string]func(name string) error{
			"journal-symlink":   func(name string) error { return os.Symlink(target, name) },
			"journal-directory": func(name string) error { return os.Mkdir(name, 0o700) },
			"journal-special":   func(name string) error { return syscall.Mkfifo(name, 0o600) },
		} {
			id := core.RunID(reason)
			if err := make(b.paths(id).Journal); err != nil {
				t.Fatal(err)
			}
			if p := b.probe(id, 0); p.State != core.JournalUnknown || p.Reason != reason || p.Healing != core.Configuration {
				t.Errorf("probe of %s: %+v", reason, p)
			}
			script, _ := b.runs.PageScript(id, 0, 0)
			if _, err := core.ParsePage(b.run(script, "", nil)); err == nil || !strings.Contains(err.Error(), reason) {
				t.Errorf("page of %s: %v", reason, err)
			}
			if _, err := core.ParseStart(b.execute(b.starting(t.Context(), core.JournalStart{Run: id, Nonce: testNonce, Shell: "echo x"}, "", nil))); err == nil || !strings.Contains(err.Error(), reason) {
				t.Errorf("start on %s: %v", reason, err)
			}
		}
		os.WriteFile(b.paths("e").Journal, []byte(b.runs.Sentinel(testNonce, 1)), 0o600)
		os.Symlink(target, b.paths("e").Stderr)
		if p := b.probe("e", 0); p.State != core.JournalFinished || len(p.Stderr) != 0 {
			t.Errorf("probe with a linked sidecar: %+v", p)
		}
	})
}

func TestProbeOfAMissingJournalIsProducing(t *testing.T) {
	inEachShell(t, func(t *testing.T, b *box) {
		p := b.probe("r", 0)
		if p.State != core.JournalProducing || p.Present || p.Marker || p.Wrapper != core.WrapperAbsent || !p.HasRest {
			t.Errorf("no directory: %+v", p)
		}
		b.mkdir()
		if p := b.probe("r", 7); p.State != core.JournalProducing || p.Present {
			t.Errorf("no file: %+v", p)
		}
		if page := b.page("r", 0, 0); page.Present || len(page.Bytes) != 0 {
			t.Errorf("page: %+v", page)
		}
	})
}

func TestProbeTellsARewrittenJournal(t *testing.T) {
	b := newBox(t, shells(t)[0])
	b.write("r", strings.Repeat("x", 200))
	page, _ := b.probe("r", 100).Page()
	if _, ok := page.After(100, []byte(strings.Repeat("x", 100))); !ok {
		t.Error("an unchanged journal: want it to go on")
	}
	if _, ok := page.After(100, []byte(strings.Repeat("y", 100))); ok {
		t.Error("other bytes: want it not to go on")
	}
	b.write("r", "short")
	page, _ = b.probe("r", 100).Page()
	if _, ok := page.After(100, []byte(strings.Repeat("x", 100))); ok {
		t.Error("a shorter journal: want it not to go on")
	}
}

var pathVariable = "PATH=" + os.Getenv("PATH")

// mainProcess stands for a container's main process: another user's, with an
// environment and a working directory of its own.
func (b *box) mainProcess(user *syscall.Credential, env ...string) {
	b.t.Helper()
	if os.Getuid() != 0 {
		b.t.Skip("change user: this user may not, for only root may") // no component is missing: CI too may run as a user
	}
	// The other user has to reach its working directory.
	for p := filepath.Dir(b.dir); p != os.TempDir() && p != "/"; p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil {
			b.t.Fatal(err)
		}
	}
	main := exec.CommandContext(b.t.Context(), "sleep", "1000")
	main.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	main.Dir = filepath.Dir(b.dir)
	main.Env = env
	if err := main.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		main.Process.Kill()
		main.Wait()
	})
	b.env = append(b.env, core.JournalInitVariable+"="+strconv.Itoa(main.Process.Pid))
}

func TestStartRunsTheAgentAsTheMainProcessDoes(t *testing.T) {
	inEachWrapper(t, func(t *testing.T, b *box) {
		b.mainProcess(&syscall.Credential{Uid: 65534, Gid: 65534}, pathVariable,
			"PLAIN=a b", "LINES=one\ntwo\n", "odd.name=1", "UTF=Á日", "QUOTE='\"$x`")
		b.start(core.JournalStart{Run: "r", Argv: []string{"sh", "-c", `id -u; id -g; pwd; printf '%s|' "$PLAIN" "$LINES" "$UTF" "$QUOTE" "$HOME"; echo err >/dev/stderr`}}, "").wait()
		got, _ := b.transcript("r", 0)
		want := "65534\n65534\n" + filepath.Dir(b.dir) + "\na b|one\ntwo\n|Á日|'\"$x`||"
		if got != want {
			t.Errorf("transcript %q, want %q", got, want)
		}
		if got := readFile(t, b.paths("r").Stderr); got != "err\n" {
			t.Errorf("stderr %q", got)
		}
		a := b.start(core.JournalStart{Run: "k", Argv: []string{"sh", "-c", "setsid sleep 1000 & echo ready; wait"}}, "")
		b.await("k", "ready")
		if done := b.terminate("k", 5*time.Second); !done.Sentinel || done.Left != 0 {
			t.Errorf("terminate: %+v", done)
		}
		a.wait()
	})
}

func TestStartTakesTheSessionsEnvironmentFromAnInitThatHidesIt(t *testing.T) {
	inEachWrapper(t, func(t *testing.T, b *box) {
		b.mainProcess(&syscall.Credential{}, "HIDDEN=1")
		b.env = append(b.env, "SHOWN=2", "LC_ALL=C.UTF-8")
		b.start(core.JournalStart{Run: "r", Shell: `echo "$HIDDEN,$SHOWN,$LC_ALL"`}, "").wait()
		if got, _ := b.transcript("r", 0); got != ",2,C.UTF-8\n" {
			t.Errorf("transcript %q", got)
		}
	})
}

// containerRoot is a shell with the capabilities that root has in a container, by
// which it may not read another user's environment.
var containerRoot = []string{
	"setpriv", "--inh-caps=-all", "--bounding-set=-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid," +
		"+setuid,+setpcap,+net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap", "sh",
}

func TestScriptsNeedOnlyWhatRootMayInAContainer(t *testing.T) {
	needProgram(t, containerRoot[0])
	if os.Getuid() != 0 {
		t.Skip("drop capabilities: this user has none, for only root has") // no component is missing: CI too may run as a user
	}
	b := newBox(t, containerRoot)
	b.mainProcess(&syscall.Credential{Uid: 12345, Gid: 23456, Groups: []uint32{34567}}, pathVariable, "PLAIN=a b")
	a := b.start(core.JournalStart{Run: "r", Shell: `(setsid sleep 1000 &); echo "$PLAIN $(id -u) $(pwd)"; echo ready; sleep 1000`}, "")
	b.await("r", "ready")
	if got := b.journal("r"); got != "a b 12345 "+filepath.Dir(b.dir)+"\nready\n" {
		t.Errorf("journal %q", got)
	}
	if done := b.terminate("r", 5*time.Second); !done.Sentinel || done.Left != 0 {
		t.Errorf("terminate: %+v", done)
	}
	a.wait()
}

func TestStartKeepsTheMainProcessGroupsAndOddNames(t *testing.T) {
	inEachWrapper(t, func(t *testing.T, b *box) {
		if b.shell[0] == "busybox" {
			t.Skip("become a user without a name: BusyBox has no tool for it")
		}
		b.mainProcess(&syscall.Credential{Uid: 12345, Gid: 23456, Groups: []uint32{34567}}, pathVariable, "odd.name=1")
		b.start(core.JournalStart{Run: "r", Argv: []string{"id", "-G"}}, "").wait()
		if got, _ := b.transcript("r", 0); got != "23456 34567\n" {
			t.Errorf("groups %q", got)
		}
		b.start(core.JournalStart{Run: "e", Argv: []string{"env"}}, "").wait()
		if got, _ := b.transcript("e", 0); !strings.Contains(got, "\nodd.name=1\n") {
			t.Errorf("environment %q, want odd.name", got)
		}
	})
}

// ownGroup puts cmd and what it starts into a process group, which killGroup ends.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func killGroup(cmd *exec.Cmd) { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
