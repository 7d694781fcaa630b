package main

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

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
	if w.prompt == nil || !strings.Contains(w.draw(), "kill a/1, why? _   (kill wants a reason)") {
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

// TestTheFilterLeavesWhatHoldsIt: acts are about what is shown alone.
func TestTheFilterLeavesWhatHoldsIt(t *testing.T) {
	one, two := core.RunKey{Tenant: "acme", Run: "one"}, core.RunKey{Tenant: "acme", Run: "two"}
	w := seen(one, two)
	press(w, "/", "T", "w")
	if screen := w.draw(); strings.Contains(screen, "acme/one") || !strings.Contains(screen, "acme/two") || w.selected != two {
		t.Errorf("%s is chosen on\n%s", w.selected, screen)
	}
	w.Update(tea.PasteMsg{Content: "elve"})
	if screen := w.draw(); !strings.Contains(screen, "no run holds the text") || w.filter != "Twelve" {
		t.Errorf("after a paste:\n%s", screen)
	}
	press(w, "enter", "x")
	if w.prompt != nil {
		t.Error("a question about a run that is not shown")
	}
	if _, quit := w.Update(tea.KeyPressMsg{Code: tea.KeyEscape}); quit != nil {
		t.Error("esc leaves although there is a filter")
	}
	if screen := w.draw(); !strings.Contains(screen, "acme/one") {
		t.Errorf("esc leaves the filter:\n%s", screen)
	}
	w.Update(shownMsg{now: seen(one).now})
	press(w, "/", "o", "esc")
	if w.filter != "" || w.selected != one {
		t.Errorf("esc in the prompt leaves %q and %s", w.filter, w.selected)
	}
}

// TestAnExplanationBeginsAtItsTop, with long lines whole, and stays where it is read.
func TestAnExplanationBeginsAtItsTop(t *testing.T) {
	w := seen(core.RunKey{Tenant: "a", Run: "1"})
	w.Update(tea.WindowSizeMsg{Width: 20, Height: 8})
	p := &page{title: "explanation", text: "asking …"}
	w.page = p
	w.draw()
	w.Update(explainedMsg{of: p, text: "first " + strings.Repeat("x", 30) + " end\n" + strings.Repeat("more\n", 20) + "last\n"})
	if screen := w.draw(); !strings.Contains(screen, "first") || !strings.Contains(screen, "end\n") || strings.Contains(screen, "last") {
		t.Errorf("it begins so:\n%s", screen)
	}
	press(w, "G")
	if screen := w.draw(); strings.Contains(screen, "first") || !strings.Contains(screen, "last") {
		t.Errorf("it ends so:\n%s", screen)
	}
	press(w, "g")
	before := w.draw()
	p.tail = &tail{}
	w.Update(pieceMsg{of: p, text: "a new line\nand one more\n"})
	if after := w.draw(); strings.Split(after, "\n")[2] != strings.Split(before, "\n")[2] {
		t.Errorf("what is read moves from\n%s\nto\n%s", before, after)
	}
}

// TestColumnsThatDoNotFitAreLeftOut: none is cut in the middle but the run's own name.
func TestColumnsThatDoNotFitAreLeftOut(t *testing.T) {
	w := seen(core.RunKey{Tenant: "acme", Run: core.RunID(strings.Repeat("日本", 40))})
	for width, want := range map[int]string{30: "RUN STANDING", 60: "RUN STANDING", 75: "RUN STANDING AGE", 100: "RUN STANDING AGE ENDS IN HELD FOR", 200: "RUN STANDING AGE ENDS IN HELD FOR SAVED THREAD EPOCH TASK"} {
		w.Update(tea.WindowSizeMsg{Width: width, Height: 10})
		header := strings.Split(w.draw(), "\n")[1]
		if got := strings.Join(strings.Fields(header), " "); got != want {
			t.Errorf("%d cells show %q, want %q", width, got, want)
		}
		for line := range strings.SplitSeq(w.draw(), "\n") {
			if n := ansi.StringWidth(line); n > width {
				t.Errorf("a line of %d cells in a window of %d", n, width)
			}
		}
	}
}

// TestOneRowOfLooksGoesOn: an act looks at once, and the look that was to come comes to
// nothing.
func TestOneRowOfLooksGoesOn(t *testing.T) {
	w := seen(core.RunKey{Tenant: "a", Run: "1"})
	if _, next := w.Update(actedMsg{op: "hold"}); next == nil {
		t.Fatal("an act is not looked at")
	}
	if _, next := w.Update(lookMsg{}); next != nil {
		t.Error("the look before goes on too")
	}
	if _, next := w.Update(shownMsg{}); next != nil || len(w.now.Runs) != 1 {
		t.Error("an answer from before is shown")
	}
	if _, next := w.Update(shownMsg{row: w.looks, now: w.now}); next == nil {
		t.Error("nobody looks any more")
	}
}

func TestTheKeysAreToldAndAnEmptyTranscriptIsExplained(t *testing.T) {
	w := seen(core.RunKey{Tenant: "a", Run: "1"})
	w.Update(tea.WindowSizeMsg{Width: 100, Height: 40})
	press(w, "?")
	for _, key := range []string{"/", "pgdn", "h u x", "q esc"} {
		if !strings.Contains(w.draw(), key) {
			t.Errorf("the keys lack %s:\n%s", key, w.draw())
		}
	}
	press(w, "q")
	for live, says := range map[bool]string{false: "nothing is saved yet", true: "nothing is written yet"} {
		w.page = &page{title: "transcript", tail: &tail{live: live}}
		if screen := w.draw(); !strings.Contains(screen, says) {
			t.Errorf("live %t:\n%s", live, screen)
		}
	}
}
