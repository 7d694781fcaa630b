package core_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// TestClip keeps whole characters, and as many as fit.
func TestClip(t *testing.T) {
	for _, c := range []struct {
		text string
		most int
		want string
	}{
		{"", 0, ""}, {"abc", 3, "abc"}, {"abc", 2, "ab"}, {"abc", 0, ""}, {"aé", 3, "aé"}, {"aé", 2, "a"}, {"日本", 5, "日"}, {"日本", 2, ""}, {"a\xff", 4, "a\uFFFD"}, {"a\xffb", 3, "a"},
	} {
		if got := core.Clip(c.text, c.most); got != c.want {
			t.Errorf("%q to %d: %q, want %q", c.text, c.most, got, c.want)
		}
	}
}

func FuzzClip(f *testing.F) {
	f.Add("日本", 4)
	f.Fuzz(func(t *testing.T, text string, most int) {
		if most < 0 || most > 1<<20 {
			return
		}
		got, whole := core.Clip(text, most), strings.ToValidUTF8(text, "\uFFFD")
		if len(got) > most || !utf8.ValidString(got) || !strings.HasPrefix(whole, got) || len(whole)-len(got) > 0 && most-len(got) >= utf8.UTFMax {
			t.Errorf("%q to %d: %q", text, most, got)
		}
	})
}

// TestAStartsErrorIsCutBetweenCharacters: a record holds no half of one.
func TestAStartsErrorIsCutBetweenCharacters(t *testing.T) {
	for pad := range 3 {
		synctest.Test(t, func(t *testing.T) {
			h := newHosting(t)
			s := h.self()
			q := startOf("r", "one")
			q.Definition.Workspace.Instructions = "x"
			s.Setups = prepared{core.SetupState{Phase: core.SetupFailed, Code: "step-failed", Message: strings.Repeat("x", pad) + strings.Repeat("日", 3000)}}
			_, err := s.Start(t.Context(), q)
			refusedFor(t, "start", err, "setup-failed")
			if m := h.run("r").Error.Message; len(m) > 4<<10 || len(m) < 4<<10-3 || !utf8.ValidString(m) || strings.Contains(m, "\uFFFD") {
				t.Errorf("%d bytes, valid: %t", len(m), utf8.ValidString(m))
			}
		})
	}
}
