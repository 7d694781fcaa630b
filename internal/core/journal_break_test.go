package core_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Coding agents clean up after themselves, and rm -rf /tmp/* takes the run's own files
// with it.
func TestAnAgentThatRemovesTheRunsFilesIsNotDead(t *testing.T) {
	inEachWrapper(t, func(t *testing.T, b *box) {
		b.mkdir()
		text := "rm -rf " + b.dir + "; exec sleep 300"
		working := b.start(core.JournalStart{Run: "r", Shell: text}, "")
		for range 1200 {
			if _, err := os.Stat(b.dir); err != nil {
				break
			}
			b.run("sleep 0.05", "", nil)
		}
		if p := b.probe("r", 0); p.State != core.JournalProducing || p.Wrapper != core.WrapperAlive || p.Dead() {
			t.Errorf("probe: %+v; want producing with its wrapper alive", p)
		}
		if p := b.probe("other", 0); p.Wrapper != core.WrapperAbsent {
			t.Errorf("probe of a run that never began: %+v; want no wrapper", p)
		}
		again := core.JournalStart{Run: "r", Nonce: testNonce, Shell: "echo twice"}
		if s, err := core.ParseStart(b.execute(b.starting(t.Context(), again, "", nil))); err != nil || !s.Already {
			t.Errorf("a second start: %+v, %v; want already", s, err)
		}
		if done := b.terminate("r", 5*time.Second); done.Prevented || done.Signaled == 0 || done.Left != 0 {
			t.Errorf("terminate: %+v; want the agent signaled and nothing left", done)
		}
		working.wait()
		if p := b.probe("r", 0); p.Wrapper == core.WrapperAlive {
			t.Errorf("probe of what was ended: %+v; want no wrapper alive", p)
		}
	})
}

// What a script says of itself must not pass for the wrapper that it looks for.
func TestAScriptDoesNotFindItselfAsTheWrapper(t *testing.T) {
	inEachShell(t, func(t *testing.T, b *box) {
		run := core.RunID(strings.Repeat("sandkeeper-run\n", 3))
		if p := b.probe(run, 0); p.Wrapper != core.WrapperAbsent {
			t.Errorf("probe: %+v; want no wrapper", p)
		}
		if done := b.terminate(run, 0); !done.Prevented {
			t.Errorf("terminate: %+v; want prevented", done)
		}
	})
}
