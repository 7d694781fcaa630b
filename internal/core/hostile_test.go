package core_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// What an agent can do to the files of the sandbox it lives in. It may end its own
// run, or make it unreadable; nothing here may pass for the end of a run whose nonce
// was never written, hold a script up, or reach outside the journal directory.

const otherNonce = "ffeeddccbbaa99887766554433221100"

// stdout runs a script that may fail, and gives what it printed.
func (b *box) stdout(script string) []byte {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 3*time.Minute)
	defer cancel()
	cmd := b.command(ctx, script, nil)
	cmd.WaitDelay = 5 * time.Second // sabotaged programs stay
	ownGroup(cmd)
	defer func() {
		if cmd.Process != nil {
			killGroup(cmd)
		}
	}()
	var out bytes.Buffer
	cmd.Stdout = &out
	err := cmd.Run()
	if ctx.Err() != nil {
		b.t.Fatalf("run script: still there after 3 minutes: %v", err)
	}
	return out.Bytes()
}

// look probes a run; what comes must be an answer or have a reason.
func (b *box) look(id core.RunID, logEnd int64) core.JournalProbe {
	b.t.Helper()
	script, err := b.runs.ProbeScript(id, testNonce, logEnd)
	if err != nil {
		b.t.Fatal(err)
	}
	p := b.runs.ParseProbe(testNonce, b.stdout(script))
	if (p.State == core.JournalUnknown) != (p.Reason != "") || (p.Reason == "") != (p.Healing == "") {
		b.t.Errorf("probe of %.40q: %+v", id, p)
	}
	return p
}

// lookPage reads a page; what comes is a page that holds together, or a reason.
func (b *box) lookPage(id core.RunID, from int64, max int) (core.JournalPage, error) {
	b.t.Helper()
	script, err := b.runs.PageScript(id, from, max)
	if err != nil {
		b.t.Fatal(err)
	}
	return core.ParsePage(b.stdout(script))
}

// shim puts a program in front of the others.
func (b *box) shim(name, text string) {
	b.t.Helper()
	bin := filepath.Join(filepath.Dir(b.dir), "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		b.t.Fatal(err)
	}
	b.env = append(b.env, "PATH="+bin+":"+os.Getenv("PATH"), "REAL="+os.Getenv("PATH"))
}

func TestHostileJournalsNeverEndARun(t *testing.T) {
	sentinel := core.DefaultJournal.Sentinel
	other := "\n" + sentinel(otherNonce, 0) + "\n"
	long := strings.Repeat("x", 200_000)
	for _, c := range []struct {
		name string
		text string
	}{
		{"another run's sentinel", "out" + other},
		{"another run's sentinel and then many", "out" + strings.Repeat(other, 50)},
		{"the nonce alone", "out\n" + testNonce + "\n"},
		{"the nonce by echo", "out\n" + `{"msg":"nonce is ` + testNonce + `"}` + "\n"},
		{"the nonce under the exit key", `{"__exit":"` + testNonce + `","__nonce":"` + otherNonce + `"}` + "\n"},
		{"the nonce in another member", `{"__exit":0,"nonce":"` + testNonce + `"}` + "\n"},
		{"the nonce in another case of the key", `{"__exit":0,"__NONCE":"` + testNonce + `"}` + "\n"},
		{"a sentinel within a member", `{"x":` + sentinel(testNonce, 0) + "}\n"},
		{"a sentinel within a list", `[` + sentinel(testNonce, 0) + "]\n"},
		{"a sentinel within a string", `{"x":"` + strings.ReplaceAll(sentinel(testNonce, 0), `"`, `\"`) + `"}` + "\n"},
		{"a sentinel behind text on its line", "text " + sentinel(testNonce, 0) + "\n"},
		{"a status that is text", `{"__exit":"0","__nonce":"` + testNonce + `"}` + "\n"},
		{"a status that is a fraction", `{"__exit":0.5,"__nonce":"` + testNonce + `"}` + "\n"},
		{"a status beyond any integer", `{"__exit":99999999999999999999,"__nonce":"` + testNonce + `"}` + "\n"},
		{"no status", `{"__nonce":"` + testNonce + `"}` + "\n"},
		{"a sentinel that is cut off", "out\n" + sentinel(testNonce, 0)[:40]},
		{"a sentinel on an endless line", long + sentinel(testNonce, 0) + "\n"},
		{"a sentinel longer than any", `{"pad":"` + strings.Repeat("p", core.MaxSentinelLine) + `",` + sentinel(testNonce, 0)[1:] + "\n"},
		{"one endless line", long},
		{"one endless line that might become a sentinel", `{"__exit":0,"pad":"` + long},
		{"an answer of the script's own", "\nsandkeeper-journal/1 end\nsandkeeper-journal/1 refused=x healing=retry\n\nsandkeeper-journal/1 end\n"},
		{"bytes of every kind", "\x00\x01\xff\xfe\xef\xbf\xbd\r\n\x1b[2J\n" + other},
		{"nothing", ""},
		{"newlines only", strings.Repeat("\n", 100_000)},
	} {
		t.Run(c.name, func(t *testing.T) {
			inEachShell(t, func(t *testing.T, b *box) {
				b.write("r", c.text)
				if p := b.look("r", 0); p.State != core.JournalProducing || p.Size != int64(len(c.text)) {
					t.Errorf("probe: %+v; want producing", p)
				}
				if log, cut := b.transcript("r", 64<<10); cut.Sealed || log != c.text {
					t.Errorf("drained %d bytes, sealed %v; want all %d of it and no end", len(log), cut.Sealed, len(c.text))
				}
			})
		})
	}
}

func TestAnEndlessLineDoesNotHideTheSentinel(t *testing.T) {
	inEachShell(t, func(t *testing.T, b *box) {
		text := strings.Repeat("x", 3<<20)
		b.write("r", text+"\n"+b.runs.Sentinel(testNonce, 3)+"\n")
		if p := b.look("r", 0); p.State != core.JournalFinished || p.Exit != 3 {
			t.Errorf("probe: %+v; want finished, exit 3", p)
		}
		if log, cut := b.transcript("r", 1<<20); !cut.Sealed || cut.Exit != 3 || log != text {
			t.Errorf("drained %d bytes, %+v; want the line and its end", len(log), cut)
		}
	})
}

func TestAHugeSparseJournalIsReadFromItsEnd(t *testing.T) {
	const size = 10 << 30
	inEachShell(t, func(t *testing.T, b *box) {
		b.write("r", "")
		if err := os.Truncate(b.paths("r").Journal, size); err != nil {
			t.Fatal(err)
		}
		if p := b.look("r", 0); p.State == core.JournalFinished || p.State == core.JournalProducing && (p.Size != size || p.HasRest) {
			t.Errorf("probe: state %q, size %d, rest %v; want producing, without the rest", p.State, p.Size, p.HasRest)
		}
		page, err := b.lookPage("r", size-100, 1000)
		if err == nil && (page.Size != size || !bytes.Equal(page.Bytes, make([]byte, 164))) {
			t.Errorf("last page: size %d, %d bytes; want the last 164", page.Size, len(page.Bytes))
		}
		end := "\n" + b.runs.Sentinel(testNonce, 9) + "\n"
		file, err := os.OpenFile(b.paths("r").Journal, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteString(end); err != nil {
			t.Fatal(err)
		}
		if p := b.look("r", 0); p.State == core.JournalProducing || p.State == core.JournalFinished && p.Exit != 9 {
			t.Errorf("probe of the ended one: state %q, exit %d, reason %q; want finished, exit 9", p.State, p.Exit, p.Reason)
		}
	})
}

func TestFilesOfEveryKindInPlaceOfARunsOwn(t *testing.T) {
	kinds := map[string]func(name string) error{
		"a link to a sentinel": func(name string) error {
			target := filepath.Join(filepath.Dir(filepath.Dir(name)), "elsewhere")
			if err := os.WriteFile(target, []byte(core.DefaultJournal.Sentinel(testNonce, 0)+"\n"), 0o644); err != nil {
				return err
			}
			return os.Symlink(target, name)
		},
		"a link to itself":    func(name string) error { return os.Symlink(name, name) },
		"a link to a device":  func(name string) error { return os.Symlink("/dev/zero", name) },
		"a dangling link":     func(name string) error { return os.Symlink("/nowhere/at/all", name) },
		"a pipe":              func(name string) error { return syscall.Mkfifo(name, 0o666) },
		"a directory":         func(name string) error { return os.Mkdir(name, 0o755) },
		"a socket":            func(name string) error { return syscall.Mknod(name, syscall.S_IFSOCK|0o666, 0) },
		"a file of one line":  func(name string) error { return os.WriteFile(name, bytes.Repeat([]byte("9"), 1<<20), 0o644) },
		"a file of no number": func(name string) error { return os.WriteFile(name, []byte("$(touch /tmp/x) ;`id`\x00 -1\n"), 0o644) },
	}
	for kind, make := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			inEachShell(t, func(t *testing.T, b *box) {
				for name, path := range map[string]func(core.JournalPaths) string{
					"journal": func(p core.JournalPaths) string { return p.Journal },
					"sidecar": func(p core.JournalPaths) string { return p.Stderr },
					"marker":  func(p core.JournalPaths) string { return p.Marker },
					"wrapper": func(p core.JournalPaths) string { return filepath.Join(p.Marker, "wrapper") },
					"end":     func(p core.JournalPaths) string { return filepath.Join(p.Marker, "end") },
					"stop":    func(p core.JournalPaths) string { return filepath.Join(p.Marker, "stop") },
				} {
					id := core.RunID(name)
					b.mkdir()
					place := path(b.paths(id))
					if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := make(place); err != nil {
						t.Fatal(err)
					}
					if p := b.look(id, 0); p.State == core.JournalFinished {
						t.Errorf("%s: probe: %+v; want no end", name, p)
					}
					b.programAgrees(id)
					if page, err := b.lookPage(id, 0, 0); err == nil && bytes.Contains(page.Bytes, []byte(testNonce)) {
						t.Errorf("%s: page: %q; want nothing from elsewhere", name, page.Bytes)
					}
					// Whether it can be ended or not, nobody waits for it.
					script, err := b.runs.TerminateScript(id, testNonce, time.Second)
					if err != nil {
						t.Fatal(err)
					}
					if done, err := core.ParseTerminate(b.stdout(script)); err == nil && (done.Sentinel || done.Killed > 0) {
						t.Errorf("%s: terminate: %+v; want nothing killed", name, done)
					}
				}
			})
		})
	}
}

func TestADirectoryThatIsALink(t *testing.T) {
	inEachShell(t, func(t *testing.T, b *box) {
		b.write("r", "out\n")
		if err := os.Rename(b.dir, b.dir+".old"); err != nil {
			t.Fatal(err)
		}
		decoy := filepath.Join(filepath.Dir(b.dir), "decoy")
		if err := os.Mkdir(decoy, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(decoy, "keep"), []byte("keep"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(decoy, "r.ndjson"), []byte(b.runs.Sentinel(otherNonce, 0)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(decoy, b.dir); err != nil {
			t.Fatal(err)
		}
		if p := b.look("r", 0); p.State == core.JournalFinished {
			t.Errorf("probe: %+v; want no end", p)
		}
		// The log has four bytes of the former journal: what is there now does not follow.
		if page, err := b.lookPage("r", 4, 0); err == nil {
			if _, ok := page.After(4, []byte("out\n")); ok {
				t.Errorf("page: %+v; want it not to go on from the log", page)
			}
		}
		script, err := b.runs.RemoveScript([]core.RunID{"r", "../decoy/keep", "keep", ".."})
		if err != nil {
			t.Fatal(err)
		}
		b.stdout(script)
		if got := readFile(t, filepath.Join(decoy, "keep")); got != "keep" {
			t.Errorf("a file that is no run's is %q now", got)
		}
	})
}

func TestAMarkerPlantedBeforehandPreventsOnlyItsOwnRun(t *testing.T) {
	inEachWrapper(t, func(t *testing.T, b *box) {
		b.mkdir()
		if err := os.Mkdir(b.paths("planted").Marker, 0o755); err != nil {
			t.Fatal(err)
		}
		planted := core.JournalStart{Run: "planted", Nonce: testNonce, Shell: "echo begun"}
		if s, err := core.ParseStart(b.execute(b.starting(t.Context(), planted, "", nil))); err != nil || !s.Already || s.Wrapper != core.WrapperAbsent {
			t.Errorf("start: %+v, %v; want already, without a wrapper", s, err)
		}
		if p := b.look("planted", 0); p.State != core.JournalProducing || p.Present {
			t.Errorf("probe: %+v; want producing without a journal", p)
		}
		b.shellRun("free", "echo begun")
		if p := b.look("free", 0); p.State != core.JournalFinished || p.Exit != 0 {
			t.Errorf("probe of another run: %+v; want finished", p)
		}
	})
}

// hostileIDs are run ids that a shell, a template or a file system could take amiss.
func hostileIDs() []core.RunID {
	ids := []core.RunID{
		"'", `"`, "`touch pwned`", "$(touch pwned)", "${IFS}", "a;touch pwned", "a|b", "a&b", "a>pwned", "\\", `\'`,
		"{{ssm:x}}", "{{ x }}", "line\nbreak", "\r\n", "tab\t", "-rf", "--", "..", ".", "../../pwned", "a/b", "/", "~", "*", "?", "[a-z]",
		"😀🙂", "漢字", "é", "\u202eevil", "\u0000", "\x7f", " ", "#", "!", "%s%n", "=", "con", "NUL", "\ufffd", "_5f", "a.ndjson", "a.started",
	}
	every := make([]byte, 0, 128)
	for c := range 128 {
		every = append(every, byte(c))
	}
	return append(ids, core.RunID(every), core.RunID(strings.Repeat("a", 1000)), core.RunID(strings.Repeat("é'\n", 333)))
}

func TestHostileRunIDs(t *testing.T) {
	ids := hostileIDs()
	inEachShell(t, func(t *testing.T, b *box) {
		for i, id := range ids {
			b.write(id, fmt.Sprintf("run %d\n%s\n", i, b.runs.Sentinel(testNonce, i%256)))
		}
		for i, id := range ids {
			want := fmt.Sprintf("run %d", i)
			if p := b.look(id, 0); p.State != core.JournalFinished || p.Exit != i%256 {
				t.Errorf("probe of %.40q: %+v; want exit %d", id, p, i%256)
			}
			b.programAgrees(id)
			if page, err := b.lookPage(id, 0, 0); err != nil || !bytes.HasPrefix(page.Bytes, []byte(want+"\n")) {
				t.Errorf("page of %.40q: %.40q, %v; want %q", id, page.Bytes, err, want)
			}
		}
		if found, _ := filepath.Glob(filepath.Join(filepath.Dir(b.dir), "*pwned*")); found != nil {
			t.Errorf("an id was run: %q", found)
		}
		entries, err := os.ReadDir(b.dir)
		if err != nil || len(entries) != len(ids) {
			t.Errorf("%d files for %d ids, %v; want one each", len(entries), len(ids), err)
		}
	})
	for _, id := range []core.RunID{"", "\xff", "a\xc3", "\xed\xa0\x80"} {
		if script, err := core.DefaultJournal.ProbeScript(id, testNonce, 0); err == nil {
			t.Errorf("id %q: a script of %d bytes; want an error", id, len(script))
		}
	}
}

func TestHostileRunIDsLive(t *testing.T) {
	t.Run("script", func(t *testing.T) { runHostileIDs(t, newBox(t, shells(t)[0])) })
	t.Run("program", func(t *testing.T) {
		b := newBox(t, shells(t)[0])
		b.program = true
		runHostileIDs(t, b)
	})
}

func runHostileIDs(t *testing.T, b *box) {
	for i, id := range hostileIDs() {
		if i%6 != 0 && len(id) < 100 {
			continue // each takes a while; all are tried by the test before
		}
		id += core.RunID(b.dir) // termination sees the processes of the whole machine
		b.shellRun(id, `printf '%s\n' "$SANDKEEPER_RUN"; exit 5`)
		token, err := b.runs.Token(id)
		if err != nil {
			t.Fatal(err)
		}
		if p := b.look(id, 0); p.State != core.JournalFinished || p.Exit != 5 || string(p.Rest[:min(len(token), len(p.Rest))]) != token {
			t.Errorf("run %.40q: %+v; want its token %q and exit 5", id, p, token)
		}
		if done := b.terminate(id, time.Second); !done.Sentinel || done.Killed != 0 || done.Left != 0 {
			t.Errorf("terminate %.40q: %+v", id, done)
		}
	}
}

func TestAJournalThatChangesWhileItIsRead(t *testing.T) {
	t.Parallel()
	sentinel := "\n" + core.DefaultJournal.Sentinel(testNonce, 4) + "\n"
	for _, c := range []struct {
		name   string
		change string // run once, between the look at the size and the reading
		allow  func(p core.JournalProbe) bool
	}{
		{"grows by output", `printf more >>"$J"`,
			func(p core.JournalProbe) bool { return p.State == core.JournalProducing && p.Size == 5000 }},
		{"grows by its sentinel", `printf '` + strings.ReplaceAll(sentinel, "\n", `\n`) + `' >>"$J"`,
			func(p core.JournalProbe) bool { return p.State == core.JournalProducing && p.Size == 5000 }},
		{"is cut", `: >"$J"`,
			func(p core.JournalProbe) bool { return p.State == core.JournalUnknown && p.Healing == core.Retry }},
		{"is cut and written again, shorter", `printf '` + strings.ReplaceAll(sentinel, "\n", `\n`) + `' >"$J"`,
			func(p core.JournalProbe) bool { return p.State == core.JournalUnknown && p.Healing == core.Retry }},
		{"is replaced by a link", `rm "$J"; ln -s /dev/zero "$J"`,
			func(p core.JournalProbe) bool { return p.State != core.JournalFinished }},
		{"is replaced by a pipe", `rm "$J"; mkfifo "$J"`,
			func(p core.JournalProbe) bool { return p.State == core.JournalUnknown && p.Healing == core.Retry }},
		{"is removed", `rm "$J"`,
			func(p core.JournalProbe) bool { return p.State == core.JournalUnknown && p.Healing == core.Retry }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // one waits until the script ends itself
			b := newBox(t, shells(t)[0])
			b.write("r", strings.Repeat("o", 5000))
			b.env = append(b.env, "J="+b.paths("r").Journal)
			// The real one is asked first, so what it said is old when the reading begins.
			b.shim("stat", `PATH=$REAL; out=$(stat "$@"); r=$?
if [ ! -e "$J.done" ]; then : >"$J.done"; `+c.change+`; fi
printf '%s\n' "$out"; exit $r
`)
			p := b.look("r", 0)
			if !c.allow(p) {
				t.Errorf("probe: state %q, size %d, reason %q (%s)", p.State, p.Size, p.Reason, p.Healing)
			}
		})
	}
}

func TestAJournalThatGrowsWithoutEnd(t *testing.T) {
	inEachShell(t, func(t *testing.T, b *box) {
		b.write("r", "")
		ctx, cancel := context.WithCancel(t.Context())
		writer := b.command(ctx, `while :; do echo '{"a":"line"}'; done >>"$J"`, nil)
		writer.Env = append(writer.Env, "J="+b.paths("r").Journal)
		ownGroup(writer)
		writer.Cancel = func() error { killGroup(writer); return nil }
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { cancel(); writer.Wait() }()
		last := int64(0)
		for range 5 {
			p := b.look("r", last)
			if p.State != core.JournalProducing || p.Size < last {
				t.Fatalf("probe: state %q, size %d after %d, reason %q", p.State, p.Size, last, p.Reason)
			}
			page, err := b.lookPage("r", last, 4096)
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := page.After(last, nil); !ok {
				t.Errorf("page from %d: %d bytes from %d; want it to go on", last, len(page.Bytes), page.From)
			}
			last = p.Size
		}
	})
}

// A container's clock, and the times that its files carry, decide nothing.
func TestClocksDecideNothing(t *testing.T) {
	past, future := time.Unix(1, 0), time.Unix(1<<33, 0)
	inEachShell(t, func(t *testing.T, b *box) {
		for _, at := range []time.Time{past, future} {
			b.write("live", "out\n")
			b.write("ended", "out\n"+b.runs.Sentinel(testNonce, 2)+"\n")
			for _, id := range []core.RunID{"live", "ended"} {
				if err := os.Chtimes(b.paths(id).Journal, at, at); err != nil {
					t.Fatal(err)
				}
			}
			if p := b.look("live", 0); p.State != core.JournalProducing {
				t.Errorf("changed at %v: %+v; want producing", at, p)
			}
			if p := b.look("ended", 0); p.State != core.JournalFinished || p.Exit != 2 {
				t.Errorf("changed at %v: %+v; want finished, exit 2", at, p)
			}
		}
		if err := os.Chtimes(b.paths("live").Journal, time.Unix(-1<<31, 0), time.Unix(-1<<31, 0)); err != nil {
			t.Fatal(err)
		}
		if p := b.look("live", 0); p.State == core.JournalFinished || p.State == core.JournalUnknown && p.Reason == "" {
			t.Errorf("changed before 1970: %+v", p)
		}
	})
}

// An agent that is told to end gets its whole grace, whatever its clock does.
func TestAClockThatJumpsDoesNotShortenTheGrace(t *testing.T) {
	for name, jump := range map[string]string{"forward": "9999999999", "back": "1", "away": ""} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, shells(t)[0])
			b.shim("date", `if [ -e "$0.asked" ]; then echo '`+jump+`'; else : >"$0.asked"; echo 1000000; fi`)
			id := core.RunID(b.dir) // termination sees the processes of the whole machine
			b.start(core.JournalStart{Run: id, Shell: `trap 'sleep 1; echo saved; exit 3' TERM; echo ready; while :; do sleep 0.05; done`}, "")
			b.await(id, "ready")
			done := b.terminate(id, 20*time.Second)
			if !done.Sentinel || done.Left != 0 {
				t.Errorf("terminate: %+v; want its sentinel", done)
			}
			if got := b.journal(id); !strings.Contains(got, "saved\n") {
				t.Errorf("journal %q: want the agent's last words", got)
			}
		})
	}
}

func TestSabotagedProgramsNeverEndARun(t *testing.T) {
	t.Parallel()
	forged := core.DefaultJournal.Sentinel(otherNonce, 0)
	for _, c := range []struct{ name, program, text string }{
		{"tail brings another run's sentinel", "tail", `echo '` + forged + `'`},
		{"tail is silent", "tail", "exit 0"},
		{"tail never ends", "tail", "while :; do echo x; done"},
		{"tail hangs", "tail", "exec sleep 1000"},
		{"head is silent", "head", "exit 0"},
		{"head brings what it was not asked for", "head", "cat; echo more"},
		{"stat tells a size that is not there", "stat", "echo 999999 1 1"},
		{"stat tells numbers without end", "stat", "echo 99999999999999999999999999 1 1"},
		{"stat tells text", "stat", `echo '$(id) ;'`},
		{"stat and ls tell nothing", "stat", "exit 1"},
		{"grep finds everything", "grep", "exit 0"},
		{"grep finds nothing", "grep", "exit 1"},
		{"cat lies about processes", "cat", "echo '1 (x) Z 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1'"},
		{"timeout does nothing", "timeout", "exit 0"},
		{"timeout runs something else", "timeout", `[ "$1" = --version ] || printf 'sandkeeper-journal/1 refused=x healing=retry\n\nsandkeeper-journal/1 end\n'`},
		{"sh is another program", "sh", "exec cat"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // one waits until the script ends itself
			b := newBox(t, shells(t)[0])
			b.write("r", strings.Repeat("out\n", 2000))
			b.shim(c.program, c.text)
			if c.name == "stat and ls tell nothing" {
				b.shim("ls", "exit 1")
			}
			if p := b.look("r", 0); p.State == core.JournalFinished {
				t.Errorf("probe: %+v; want no end", p)
			}
			if c.program == "tail" {
				return // a page asks it for the same
			}
			if page, err := b.lookPage("r", 4000, 1000); err == nil {
				if fresh, ok := page.After(4000, []byte("out\n")); ok && !bytes.HasPrefix([]byte(strings.Repeat("out\n", 1000)), fresh) {
					if cut := b.runs.Cut(testNonce, fresh, core.EdgeEnd); cut.Sealed {
						t.Errorf("page: %q seals the run", fresh)
					}
				}
			}
		})
	}
}
