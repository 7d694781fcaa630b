package main

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// seen is a view that has looked once.
func seen(runs ...core.RunKey) *watcher {
	w := &watcher{every: time.Second, title: "sandkeeper in us-east-1", width: 120, height: 10}
	now := snapshot{At: stamp(core.MillisOf(time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)))}
	for _, key := range runs {
		now.Runs = append(now.Runs, runView{RunKey: key, Standing: core.StandingDetached})
	}
	w.Update(shownMsg{now: now})
	return w
}

func press(w *watcher, keys ...string) {
	for _, key := range keys {
		code := map[string]rune{"up": tea.KeyUp, "down": tea.KeyDown, "enter": tea.KeyEnter, "esc": tea.KeyEscape, "backspace": tea.KeyBackspace}[key]
		m := tea.KeyPressMsg{Code: code}
		if code == 0 {
			m = tea.KeyPressMsg{Code: []rune(key)[0], Text: key}
		}
		w.Update(m)
	}
}

func TestTheViewKeepsWhatItSawWhenALookFails(t *testing.T) {
	w := seen(core.RunKey{Tenant: "acme", Run: "one"})
	w.Update(shownMsg{err: errors.New("throttled")})
	if screen := w.draw(); !strings.Contains(screen, "acme/one") || !strings.Contains(screen, "throttled") {
		t.Errorf("the screen is\n%s", screen)
	}
}

// TestNothingThatIsShownMovesTheCursor: ids and transcripts come from anybody.
func TestNothingThatIsShownMovesTheCursor(t *testing.T) {
	hostile := "a\x1b[2J\r\n\x07\u202e" + strings.Repeat("x", 400)
	w := seen(core.RunKey{Tenant: core.TenantID(hostile), Run: core.RunID(hostile)})
	w.note = hostile
	for name, page := range map[string]*page{"the list": nil, "a page": {title: hostile, text: hostile, err: errors.New(hostile)}} {
		w.page = page
		screen := strings.ReplaceAll(strings.ReplaceAll(w.draw(), marked, ""), "\x1b[0m", "")
		if strings.ContainsAny(screen, "\x1b\r\x07\u202e") {
			t.Errorf("%s: %q", name, screen)
		}
		lines := strings.Split(screen, "\n")
		if len(lines) > w.height {
			t.Errorf("%s has %d lines in a window of %d", name, len(lines), w.height)
		}
		for _, line := range lines {
			if n := len([]rune(line)); n > w.width {
				t.Errorf("%s has a line of %d in a window of %d", name, n, w.width)
			}
		}
	}
}

// fits reports whether what is drawn is no larger than the window, marks aside.
func fits(drawn string, width, height int) bool {
	lines := strings.Split(drawn, "\n")
	for _, line := range lines {
		text := strings.TrimSuffix(strings.TrimPrefix(line, marked), "\x1b[0m")
		if utf8.RuneCountInString(text) > width {
			return false
		}
	}
	return len(lines) <= max(1, height)
}

func TestEveryWindowCanBeDrawn(t *testing.T) {
	var runs []core.RunKey
	for n := range 30 {
		runs = append(runs, core.RunKey{Tenant: "acme", Run: core.RunID(strings.Repeat("r", n+1))})
	}
	for _, w := range []*watcher{seen(), seen(runs...)} {
		for width := range 12 {
			for height := range 12 {
				w.Update(tea.WindowSizeMsg{Width: 10 * width, Height: height})
				for _, p := range []*page{nil, {title: "t", text: "a\nb\nc\n", back: 7}} {
					w.page = p
					if drawn := w.draw(); !fits(drawn, 10*width, height) {
						t.Fatalf("does not fit %d by %d:\n%s", 10*width, height, drawn)
					}
				}
			}
		}
	}
}

func TestTheSelectionStaysOnItsRun(t *testing.T) {
	one, two, three := core.RunKey{Tenant: "a", Run: "1"}, core.RunKey{Tenant: "a", Run: "2"}, core.RunKey{Tenant: "a", Run: "3"}
	w := seen(one, two)
	press(w, "up", "down", "down", "down")
	if w.selected != two {
		t.Errorf("selected %s, want %s", w.selected, two)
	}
	w.Update(shownMsg{now: seen(three, one, two).now})
	if w.selected != two {
		t.Errorf("after a new run it is %s, want %s", w.selected, two)
	}
	w.Update(shownMsg{now: seen(three, one).now})
	if w.selected != three {
		t.Errorf("once it is gone it is %s, want the first", w.selected)
	}
}

// TestAnActNeedsAReason: without one, or with esc, nothing is done.
func TestAnActNeedsAReason(t *testing.T) {
	w := seen(core.RunKey{Tenant: "a", Run: "1"})
	press(w, "x", "enter")
	if w.prompt == nil || !strings.Contains(w.draw(), "kill a/1, why?") {
		t.Errorf("the screen is\n%s", w.draw())
	}
	press(w, "n", "o", "q", "backspace")
	if got := string(w.prompt.text); got != "no" {
		t.Errorf("typed %q", got)
	}
	press(w, "esc")
	if w.prompt != nil {
		t.Error("esc leaves the question")
	}
	if _, quit := w.Update(tea.KeyPressMsg{Code: 'q', Text: "q"}); quit == nil {
		t.Error("q does not leave")
	}
	nothing := seen()
	if press(nothing, "h"); nothing.prompt != nil {
		t.Error("a question about no run")
	}
}
