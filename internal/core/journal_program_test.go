package core_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/wrapper"
)

// TestMain lets the tests' own binary be the sandbox's agent binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "run":
			os.Exit(wrapper.Start(os.Stdin, os.Stdout))
		case "probe":
			os.Exit(wrapper.Probe(os.Stdin, os.Stdout))
		case core.WrapperCommand:
			os.Exit(wrapper.Wrap())
		case "version":
			os.Exit(0)
		}
	}
	// With the race detector the program would sleep a second before each exit.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	os.Exit(m.Run())
}

// programProbe asks the program what the script is asked.
func (b *box) programProbe(id core.RunID, logEnd int64) []byte {
	b.t.Helper()
	self, err := os.Executable()
	if err != nil {
		b.t.Fatal(err)
	}
	query, err := json.Marshal(wrapper.Query{Run: id, Nonce: testNonce, LogEnd: logEnd})
	if err != nil {
		b.t.Fatal(err)
	}
	cmd := exec.CommandContext(b.t.Context(), self, "probe")
	cmd.Env, cmd.Stdin = b.env, bytes.NewReader(query)
	out, err := cmd.Output()
	if err != nil {
		b.t.Fatalf("probe: %v", err)
	}
	return out
}

// programAgrees checks that the program answers as the script does.
func (b *box) programAgrees(id core.RunID) {
	b.t.Helper()
	script, err := b.runs.ProbeScript(id, testNonce, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	if got, want := b.programProbe(id, 0), b.stdout(script); !bytes.Equal(got, want) {
		b.t.Errorf("probe of %.40q: program %.300q, script %.300q", id, got, want)
	}
}

// canary is a file of the test's own that links may lead to.
func (b *box) canary() string {
	b.t.Helper()
	name := filepath.Join(b.t.TempDir(), "canary")
	if err := os.WriteFile(name, []byte("not a journal\n"), 0o600); err != nil {
		b.t.Fatal(err)
	}
	return name
}

// probedSentinel is one of the probed runs' journals, of exit code 7.
var probedSentinel = "\n" + core.DefaultJournal.Sentinel(testNonce, 7) + "\n"

// put makes a file in the journals' directory.
func (b *box) put(name, text string) {
	b.mkdir()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// probedJournals prepare the journal of a run and its sidecar.
var probedJournals = map[string]func(b *box, p core.JournalPaths){
	"no directory":              func(*box, core.JournalPaths) {},
	"no journal":                func(b *box, _ core.JournalPaths) { b.mkdir() },
	"a file for a directory":    func(b *box, _ core.JournalPaths) { os.WriteFile(b.dir, nil, 0o600) },
	"an empty journal":          func(b *box, p core.JournalPaths) { b.put(p.Journal, "") },
	"a short journal":           func(b *box, p core.JournalPaths) { b.put(p.Journal, "one\ntwo") },
	"a long journal":            func(b *box, p core.JournalPaths) { b.put(p.Journal, strings.Repeat("line\n", 40_000)) },
	"a journal of binary bytes": func(b *box, p core.JournalPaths) { b.put(p.Journal, strings.Repeat("\x00\xff\n\r", 3000)) },
	"a finished journal": func(b *box, p core.JournalPaths) {
		b.put(p.Journal, "out\n"+probedSentinel)
		b.put(p.Stderr, strings.Repeat("error\n", 2000))
	},
	"a sidecar that is newer": func(b *box, p core.JournalPaths) {
		b.put(p.Journal, "out\n")
		b.put(p.Stderr, "err")
		os.Chtimes(p.Journal, time.Unix(1000, 0), time.Unix(1000, 0))
	},
	"a linked sidecar": func(b *box, p core.JournalPaths) {
		b.put(p.Journal, "out\n"+probedSentinel)
		os.Symlink(b.canary(), p.Stderr)
	},
	"a linked journal":        func(b *box, p core.JournalPaths) { b.mkdir(); os.Symlink(b.canary(), p.Journal) },
	"a directory for journal": func(b *box, p core.JournalPaths) { b.mkdir(); os.Mkdir(p.Journal, 0o700) },
	"a FIFO for a journal":    func(b *box, p core.JournalPaths) { b.mkdir(); syscall.Mkfifo(p.Journal, 0o600) },
}

// probedMarkers prepare a journal with a marker: where it ended, and who writes it.
var probedMarkers = map[string]func(b *box, p core.JournalPaths){
	"a sentinel far from the end": func(b *box, p core.JournalPaths) {
		b.put(p.Journal, "out\n"+probedSentinel+strings.Repeat("x", 30_000))
		os.Mkdir(p.Marker, 0o700)
		b.put(p.Marker+"/end", "4\n")
	},
	"a position that is none": func(b *box, p core.JournalPaths) {
		b.put(p.Journal, "out\n"+probedSentinel)
		os.Mkdir(p.Marker, 0o700)
		b.put(p.Marker+"/end", "4x\n")
	},
	"a linked position": func(b *box, p core.JournalPaths) {
		b.put(p.Journal, strings.Repeat("x", 9000)+probedSentinel)
		os.Mkdir(p.Marker, 0o700)
		os.Symlink(b.canary(), p.Marker+"/end")
	},
	"a position beyond the end": func(b *box, p core.JournalPaths) {
		b.put(p.Journal, "out\n"+probedSentinel)
		os.Mkdir(p.Marker, 0o700)
		b.put(p.Marker+"/end", "4000000\n")
	},
	"a wrapper that is gone": func(b *box, p core.JournalPaths) {
		b.put(p.Journal, "out\n")
		os.Mkdir(p.Marker, 0o700)
		b.put(p.Marker+"/wrapper", "1 1\n")
	},
	"a wrapper that is alive": func(b *box, p core.JournalPaths) {
		b.mkdir()
		os.Mkdir(p.Marker, 0o700)
		b.run(`set -- $(sed 's/.*) //' /proc/`+strconv.Itoa(os.Getpid())+`/stat); shift 19; echo `+strconv.Itoa(os.Getpid())+` $1 >'`+p.Marker+`/wrapper'`, "", nil)
	},
	"a pid that is none": func(b *box, p core.JournalPaths) {
		b.mkdir()
		os.Mkdir(p.Marker, 0o700)
		b.put(p.Marker+"/wrapper", "x\n")
	},
}

func TestTheProgramProbesAsTheScriptDoes(t *testing.T) {
	rows := maps.Clone(probedJournals)
	maps.Copy(rows, probedMarkers)
	for name, prepare := range rows {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, shells(t)[0])
			prepare(b, b.paths("r"))
			for _, logEnd := range []int64{0, 3, 64, 100_000, 1 << 40} {
				script, err := b.runs.ProbeScript("r", testNonce, logEnd)
				if err != nil {
					t.Fatal(err)
				}
				want, got := b.run(script, "", nil), b.programProbe("r", logEnd)
				if !bytes.Equal(got, want) {
					t.Errorf("from %d: program %.300q, script %.300q", logEnd, got, want)
				}
			}
		})
	}
}

func TestTheProgramPassesSIGTERMOnAndRecordsIt(t *testing.T) {
	b := newBox(t, shells(t)[0])
	b.program = true
	a := b.start(core.JournalStart{Run: "r", Shell: "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done"}, "")
	b.await("r", "ready")
	pid, _, _ := strings.Cut(readFile(t, b.paths("r").Marker+"/wrapper"), " ")
	b.run("kill -HUP "+pid+"; kill -TERM "+pid, "", nil)
	a.wait()
	if got, cut := b.transcript("r", 0); got != "ready\nbye\n" || cut.Exit != 7 {
		t.Errorf("transcript %q, %+v", got, cut)
	}
	if got := readFile(t, b.paths("r").Marker+"/signals"); !strings.HasPrefix(got, "SIGTERM ") || strings.Count(got, "\n") != 1 {
		t.Errorf("recorded %q", got)
	}
}

func TestTheProgramEndsWhatTheAgentLeft(t *testing.T) {
	for name, agent := range map[string]string{
		"a child":                           "sleep 1000 & echo $! >pids",
		"a child in a session of its own":   "setsid sh -c 'echo $$ >pids; exec sleep 1000' & until [ -s pids ]; do sleep 0.01; done",
		"an orphan without its environment": "(env -i setsid sh -c 'echo $$ >pids; exec sleep 1000' &); until [ -s pids ]; do sleep 0.01; done",
		"one that ignores SIGTERM":          "(trap '' TERM; echo ready >pids; sleep 1000; sleep 1000) & until [ -s pids ]; do sleep 0.01; done",
		"a stopped one":                     "sleep 1000 & echo $! >pids; kill -STOP $!",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, shells(t)[0])
			b.program = true
			dir := t.TempDir()
			b.start(core.JournalStart{Run: "r", Shell: agent + "; echo out", Dir: dir}, "").wait()
			if got, cut := b.transcript("r", 0); got != "out\n" || !cut.Sealed || cut.Exit != 0 {
				t.Errorf("transcript %q, %+v", got, cut)
			}
			left := b.run("grep -l -z -F -x SANDKEEPER_RUN="+mustMark(t, "r")+" /proc/[0-9]*/environ 2>/dev/null || :", "", nil)
			if len(left) > 0 {
				t.Errorf("left: %s", left)
			}
			if pid := strings.TrimSpace(readFile(t, dir+"/pids")); pid != "ready" {
				b.run("! kill -0 "+pid+" 2>/dev/null", "", nil)
			}
		})
	}
}

func mustMark(t *testing.T, id core.RunID) string {
	t.Helper()
	mark, err := core.DefaultJournal.Mark(id, testNonce)
	if err != nil {
		t.Fatal(err)
	}
	return mark
}

func TestTheProgramIsFoundWithoutItsFiles(t *testing.T) {
	b := newBox(t, shells(t)[0])
	b.program = true
	gate := b.gated("r", nil)
	if err := os.RemoveAll(b.dir); err != nil {
		t.Fatal(err)
	}
	if p := b.probe("r", 0); p.Wrapper != core.WrapperAlive || p.Present {
		t.Errorf("probe: %+v", p)
	}
	if got := b.runs.ParseProbe(testNonce, b.programProbe("r", 0)); got.Wrapper != core.WrapperAlive {
		t.Errorf("the program's: %+v", got)
	}
	if done := b.terminate("r", time.Second); done.Left != 0 {
		t.Errorf("terminate: %+v", done)
	}
	os.Remove(gate)
}

func TestAnAgentThatCannotBeginEndsAsInAShell(t *testing.T) {
	for name, c := range map[string]struct {
		start core.JournalStart
		exit  int
	}{
		"no such program":         {core.JournalStart{Argv: []string{"no-such-program"}}, 127},
		"no such path":            {core.JournalStart{Argv: []string{"/no/such/program"}}, 127},
		"not a program":           {core.JournalStart{Argv: []string{"./plain"}, Dir: "."}, 126},
		"no such directory":       {core.JournalStart{Argv: []string{"true"}, Dir: "/no/such"}, 126},
		"a script without a head": {core.JournalStart{Argv: []string{"./script", "a"}, Dir: "."}, 5},
		"a killed agent":          {core.JournalStart{Shell: "kill -KILL $$"}, 137},
	} {
		t.Run(name, func(t *testing.T) {
			inEachWrapper(t, func(t *testing.T, b *box) {
				s := c.start
				s.Run = "r"
				if s.Dir == "." {
					s.Dir = t.TempDir()
					for name, mode := range map[string]os.FileMode{"script": 0o755, "plain": 0o644} {
						if err := os.WriteFile(s.Dir+"/"+name, []byte("exit $(($# + 4))\n"), mode); err != nil {
							t.Fatal(err)
						}
					}
				}
				b.start(s, "").wait()
				p := b.settled("r")
				if p.State != core.JournalFinished || p.Exit != c.exit {
					t.Errorf("probe %+v, want exit %d", p, c.exit)
				}
				if c.exit > 100 && c.exit < 130 && len(p.Stderr) == 0 {
					t.Error("nothing on stderr")
				}
			})
		})
	}
}

// TestAFullDiskDoesNotKeepTheSentinelOut: the agent writes until nothing more fits.
func TestAFullDiskDoesNotKeepTheSentinelOut(t *testing.T) {
	b := newBox(t, shells(t)[0])
	b.program = true
	b.mkdir()
	switch err := syscall.Mount("tmpfs", b.dir, "tmpfs", 0, "size=1m,mode=700"); {
	case errors.Is(err, fs.ErrPermission):
		t.Skipf("mount a small file system: this user may not: %v", err) // no component is missing: CI too may run as a user
	case err != nil:
		t.Fatalf("mount a small file system: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(b.dir, syscall.MNT_DETACH) })
	b.start(core.JournalStart{Run: "r", Shell: "head -c 3000000 /dev/zero 2>/dev/null; exit 9"}, "").wait()
	if p := b.probe("r", 0); p.State != core.JournalFinished || p.Exit != 9 || p.Size < 900_000 {
		t.Errorf("probe: %v %d, size %d, reason %s", p.State, p.Exit, p.Size, p.Reason)
	}
}

func TestAStartUsesTheProgramWhereThereIsOne(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		agent   string // the binary's path; empty: none
		program bool
	}{
		"the binary":               {self, true},
		"no binary":                {"", false},
		"a path to nothing":        {"/nonexistent/agent", false},
		"what is none":             {"plain", false},
		"one of another machine":   {"foreign", false},
		"a directory for a binary": {"directory", false},
	} {
		t.Run(name, func(t *testing.T) {
			inEachShell(t, func(t *testing.T, b *box) {
				b.env = append(b.env, core.AgentVariable+"="+b.planted(c.agent))
				script, err := b.runs.ProgramStartScript(core.JournalStart{
					Run: "it's", Nonce: testNonce, Argv: []string{"sh", "-c", `cat; printf '<%s>' "$@"; env | grep -c '^a=\|^variable='; exit 4`, "x", "a'b"}, Input: true, InputBytes: 6,
				})
				if err != nil {
					t.Fatal(err)
				}
				for _, want := range []bool{false, true} {
					started, err := core.ParseStart(b.run(script, "in\x00\xffp\n", nil))
					if err != nil || started.Already != want {
						t.Fatalf("start: %+v, %v; want already %v", started, err, want)
					}
				}
				b.gone("it's")
				if got, cut := b.transcript("it's", 0); got != "in\x00\xffp\n<a'b>0\n" || cut.Exit != 4 {
					t.Errorf("transcript %q, %+v", got, cut)
				}
				words := readFile(t, b.paths("it's").Marker+"/wrapper")
				if program := strings.HasSuffix(words, "\nnone\n"); program != c.program {
					t.Errorf("wrapper %q; want the program's %v", words, c.program)
				}
			})
		})
	}
}

// planted makes what kind says in the place of the agent binary.
func (b *box) planted(kind string) string {
	b.t.Helper()
	place := filepath.Join(filepath.Dir(b.dir), "planted")
	var err error
	switch kind {
	case "plain":
		err = os.WriteFile(place, []byte("text"), 0o644)
	case "foreign":
		err = os.WriteFile(place, []byte("\x7fELF\x02no"), 0o755)
	case "directory":
		err = os.Mkdir(place, 0o755)
	default:
		return kind
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return place
}
