package bench_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// answers are what the probe script printed in a real sandbox: one whose agent
// works, and one whose agent has ended.
type answers struct {
	nonce               string
	producing, finished []byte
	journal             []byte // what the ended agent wrote
}

// lines is how many lines, each an event of its stream, an agent of the bench
// writes.
const lines = 10

// turn is the stdout of a small turn.
func turn() []byte {
	var b strings.Builder
	for i := range lines {
		fmt.Fprintf(&b, `{"type":"text","index":%d,"text":"%s"}`+"\n", i, strings.Repeat("as an agent writes it ", 8))
	}
	return []byte(b.String())
}

// record runs the journal's scripts in a shell of this machine: start, and probe
// while the agent works and after it wrote journal and ended.
func record(t *testing.T, journal []byte) answers {
	t.Helper()
	s := sandboxDir{t: t, dir: t.TempDir()}
	a := answers{nonce: core.NewJournalNonce(), journal: journal}
	works, ended := core.RunID("works"), core.RunID("ended")
	s.start(core.JournalStart{Run: works, Nonce: a.nonce, Shell: "echo begun; exec sleep 600"})
	s.start(core.JournalStart{Run: ended, Nonce: a.nonce, Shell: "cat <<'END'\n" + string(journal) + "END\n"})
	a.producing = s.probe(works, a.nonce, core.JournalProducing)
	a.finished = s.probe(ended, a.nonce, core.JournalFinished)
	script, err := core.DefaultJournal.TerminateScript(works, a.nonce, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	s.run(script)
	return a
}

// sandboxDir is a journal directory, and a shell beside it.
type sandboxDir struct {
	t   *testing.T
	dir string
}

func (s sandboxDir) run(script string) []byte {
	s.t.Helper()
	c := exec.CommandContext(s.t.Context(), "/bin/sh", "-c", script)
	c.Env = append(c.Environ(), core.JournalDirVariable+"="+s.dir, core.JournalInitVariable+"=self")
	stdout, err := c.Output()
	if err != nil {
		s.t.Fatalf("run script: %v", err)
	}
	return stdout
}

func (s sandboxDir) start(agent core.JournalStart) {
	s.t.Helper()
	script, err := core.DefaultJournal.StartScript(agent)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := core.ParseStart(s.run(script)); err != nil {
		s.t.Fatal(err)
	}
}

// probe asks until the journal is in that state.
func (s sandboxDir) probe(run core.RunID, nonce string, want core.JournalState) []byte {
	s.t.Helper()
	script, err := core.DefaultJournal.ProbeScript(run, nonce, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var got core.JournalProbe
	for range 500 {
		stdout := s.run(script)
		got = core.DefaultJournal.ParseProbe(nonce, stdout)
		if got.State == want && got.Size > 0 && !got.Dead() {
			return stdout
		}
		<-tick.C
	}
	s.t.Fatalf("run %s: want %s, got %+v", run, want, got)
	return nil
}
