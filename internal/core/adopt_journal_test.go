package core_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// scripts notes what is run, and answers nothing.
type scripts struct{ ran []string }

func (s *scripts) Exec(_ context.Context, _ core.ExecTarget, script string, _ []byte) (core.ExecResult, error) {
	s.ran = append(s.ran, script)
	return core.ExecResult{}, errors.New("nobody there")
}

// TestAJournalIsLookedForWhereItsRunHasIt: every script about an adopted run's journal says
// where that is, as one word whatever it holds; of another run none does.
func TestAJournalIsLookedForWhereItsRunHasIt(t *testing.T) {
	const dir, said = "/work/it's here", "SANDKEEPER_JOURNAL_DIR='/work/it'\\''s here'\nexport SANDKEEPER_JOURNAL_DIR\n"
	for _, own := range []string{"", dir} {
		e := &scripts{}
		p := &core.JournalProber{Exec: e, Format: core.DefaultJournal, Limits: core.DefaultLimits}
		target, run := core.ExecTarget{TaskARN: "t", Container: "c", Journals: own}, key("r")
		p.Probe(t.Context(), 0, []core.ProbeRequest{{RunKey: run, Target: target, Nonce: adoptedJournal}})
		for _, err := range []error{
			failing(p.Page(t.Context(), core.PageRequest{RunKey: run, Target: target, Nonce: adoptedJournal})),
			failing(p.List(t.Context(), target)), failing(p.Remove(t.Context(), target, []core.RunID{"r"})),
			failing(p.Terminate(t.Context(), core.TerminateRequest{RunKey: run, Target: target, Nonce: adoptedJournal})),
		} {
			if err == nil {
				t.Error("an answer of nobody")
			}
		}
		if len(e.ran) != 5 {
			t.Errorf("%d scripts were run, want 5", len(e.ran))
		}
		for _, script := range e.ran {
			if strings.HasPrefix(script, said) != (own != "") {
				t.Errorf("with %q: %.120q", own, script)
			}
		}
	}
}

func failing[T any](_ T, err error) error { return err }

// TestAJournalsDirectoryIsAPlainPath, or the adoption is refused before anything is written.
func TestAJournalsDirectoryIsAPlainPath(t *testing.T) {
	for name, dir := range map[string]string{
		"relative": "journals", "the root": "/", "with a way up": "/work/../etc", "not clean": "/work//j", "with a slash behind": "/work/", "a line's end": "/work\n/j",
		"a byte that is none": "/work\x00", "no text": "/w\xff", "too long": "/" + strings.Repeat("x", 5000),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := newHosting(t)
				_, err := h.self().Adopt(t.Context(), core.AdoptRequest{
					RunKey: key("r"), Thread: "t", Host: hostOf("one"), TaskARN: "arn", Container: "agent", Journal: adoptedJournal, JournalDir: dir,
				})
				if e, ok := errors.AsType[*core.InvalidError](err); !ok || e.Code != "invalid-journal" || strings.Contains(err.Error(), "\n") {
					t.Errorf("got %v, want invalid-journal in one line", err)
				}
				if len(h.store.State().Runs) != 0 {
					t.Error("a run was put")
				}
			})
		})
	}
}
