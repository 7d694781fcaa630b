package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// View draws everything anew; the library writes what changed.
func (w *watcher) View() tea.View {
	v := tea.NewView(w.draw())
	v.AltScreen = true
	return v
}

// draw is the screen as text.
func (w *watcher) draw() string {
	if w.page != nil {
		return w.drawPage()
	}
	lines := []string{w.headline()}
	if w.err != nil {
		lines = append(lines, "as of "+w.now.At.String()+": "+w.err.Error())
	}
	lines = append(lines, w.drawRuns(max(1, w.height-len(lines)-3))...)
	return w.fit(append(lines, "", w.footline()))
}

// headline sums the installation up.
func (w *watcher) headline() string {
	parts := []string{w.title, string(w.now.Control.Mode)}
	if f := w.now.Control.Frozen; f != nil {
		parts = append(parts, "FROZEN by "+f.By+": "+f.Why)
	}
	if b := w.now.Control.Breaker; b != nil && b.TrippedAt != 0 {
		parts = append(parts, "BREAKER TRIPPED")
	}
	count := fmt.Sprintf("%d runs", len(w.now.Runs))
	if w.filter != "" {
		count = fmt.Sprintf("%d of %s with %q", len(w.runs()), count, w.filter)
	}
	parts = append(parts, count)
	if n := len(w.now.Unreadable); n > 0 {
		parts = append(parts, fmt.Sprintf("%d unreadable", n))
	}
	return strings.Join(append(parts, w.now.At.String()), "  ")
}

// footline is the prompt, what was done last, or the keys.
func (w *watcher) footline() string {
	hint := "(enter does it, esc does not)"
	if w.note != "" {
		hint = "(" + w.note + ")"
	}
	switch {
	case w.prompt != nil && w.prompt.op == filtering:
		return fmt.Sprintf("show runs with: %s_   (enter keeps it, esc shows all)", string(w.prompt.text))
	case w.prompt != nil && w.prompt.op == "hold":
		return fmt.Sprintf("hold %s for %s, why? %s_   %s", w.prompt.key, short(holdFor), string(w.prompt.text), hint)
	case w.prompt != nil:
		return fmt.Sprintf("%s %s, why? %s_   %s", w.prompt.op, w.prompt.key, string(w.prompt.text), hint)
	case w.note != "":
		return w.note
	}
	return "? keys  ↑↓ choose  enter transcript  e explain  / find  h hold  u release  x kill  q quit"
}

// helpText are the keys of the view.
const helpText = `Of the list
  ↑ ↓ k j            choose a run
  pgup pgdn b space  a screen up or down
  home end g G       the first or the last
  /                  show only runs whose name, thread or standing holds a text
  enter t            the transcript, as far as it is saved
  l                  the transcript, read on in the sandbox: each look is an exec session
  e                  why the run is where it is, and what would end it
  h u x              hold for four hours, release, kill: each asks for the reason
  r                  look now
  q esc              leave

Of a transcript or an explanation
  ↑ ↓ pgup pgdn home end  move
  q esc                   back to the list

Ctrl-C leaves from anywhere. A run is not changed by being looked at.`

// column is one of the list.
type column struct {
	title string
	width int
	of    func(r runView, at stamp) string
}

// columns of the list, the most telling first: those that do not fit the window are left out.
var columns = []column{
	{"RUN", 0, func(r runView, _ stamp) string { return r.RunKey.String() }},
	{"STANDING", 17, func(r runView, _ stamp) string { return r.Standing }},
	{"AGE", 7, func(r runView, at stamp) string { return ago(core.Millis(r.StartedAt), core.Millis(at)) }},
	{"ENDS IN", 8, func(r runView, at stamp) string { return left(r.ExpiresAt, at) }},
	{"HELD FOR", 8, func(r runView, at stamp) string {
		if r.Hold == nil || r.Hold.Until <= at {
			return ""
		}
		return left(r.Hold.Until, at)
	}},
	{"SAVED", 10, func(r runView, _ stamp) string { return size(r.LogEnd) }},
	{"THREAD", 24, func(r runView, _ stamp) string { return string(r.Thread) }},
	{"EPOCH", 5, func(r runView, _ stamp) string { return strconv.FormatInt(r.Epoch, 10) }},
	{"TASK", 32, func(r runView, _ stamp) string { return taskID(r.TaskARN) }},
}

// left is how long it is until then, empty where there is no such time.
func left(until, now stamp) string {
	if until == 0 {
		return ""
	}
	return short(core.Millis(until).Sub(core.Millis(now)))
}

// The width of the runs' names, cells.
const (
	leastName = 12
	mostName  = 48
)

// drawRuns draws as many runs as fit, the selected one among them.
func (w *watcher) drawRuns(most int) []string {
	runs, shown := w.runs(), w.shownColumns()
	titles := make([]string, len(shown))
	for i, c := range shown {
		titles[i] = c.title
	}
	lines := []string{cells(shown, titles)}
	switch {
	case len(runs) == 0 && len(w.now.Runs) > 0:
		return append(lines, "no run holds the text: / and esc show all")
	case len(runs) == 0:
		return append(lines, "no runs")
	}
	at := max(0, w.index())
	first := max(0, min(at-most/2, len(runs)-most))
	for i, r := range runs[first:min(len(runs), first+most)] {
		texts := make([]string, len(shown))
		for j, c := range shown {
			texts[j] = c.of(r, w.now.At)
		}
		line := cells(shown, texts)
		if first+i == at {
			line = marked + line
		}
		lines = append(lines, line)
	}
	return lines
}

// shownColumns are those that fit, the names as wide as they are.
func (w *watcher) shownColumns() []column {
	shown := slices.Clone(columns)
	shown[0].width = leastName
	most := max(leastName, min(mostName, w.width-1-shown[1].width))
	for _, r := range w.runs() {
		shown[0].width = min(max(shown[0].width, ansi.StringWidth(console.Clean(r.RunKey.String()))), most)
	}
	used := 0
	for i, c := range shown {
		if used += c.width; used > w.width && i > 1 {
			return shown[:i]
		}
		used++ // the space between
	}
	return shown
}

// cells sets texts under their columns.
func cells(shown []column, texts []string) string {
	var line strings.Builder
	for i, text := range texts {
		line.WriteString(cut(console.Clean(text), shown[i].width))
		line.WriteByte(' ')
	}
	return strings.TrimRight(line.String(), " ")
}

// cut makes text exactly so many cells wide.
func cut(text string, width int) string {
	text = ansi.Truncate(text, width, "…")
	return text + strings.Repeat(" ", max(0, width-ansi.StringWidth(text)))
}

// drawPage draws the end of a page, or what is so many lines above it.
func (w *watcher) drawPage() string {
	p := w.page
	state := "follows"
	switch {
	case p.err != nil:
		state = p.err.Error()
	case p.ended:
		state = "ended"
	case p.tail == nil:
		state = ""
	}
	lines := p.lines(w.width)
	height := max(1, w.height-4)
	p.back = min(p.back, max(0, len(lines)-height))
	end := len(lines) - p.back
	shown := lines[max(0, end-height):end]
	foot := "↑↓ pgup pgdn home end move  q back"
	if len(lines) > height {
		foot = fmt.Sprintf("lines %d to %d of %d  %s", max(0, end-height)+1, end, len(lines), foot)
	}
	return w.fit(append(append([]string{p.title + "  " + state, ""}, shown...), "", foot))
}

// lines are the page's, none wider than the window: the rest of a long one stands below it.
func (p *page) lines(width int) []string {
	text := p.text
	if text == "" && p.tail != nil && p.err == nil {
		text = "nothing is written yet"
		if !p.tail.live {
			text = "nothing is saved yet: a run is saved when it ends, or while its host reads it. q, then l, reads in its sandbox"
		}
	}
	if p.wrapped != nil && p.of == text && p.width == width {
		return p.wrapped
	}
	var lines []string
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		line = console.Clean(strings.ReplaceAll(line, "\t", "    "))
		if width > 0 {
			line = ansi.Hardwrap(line, width, true)
		}
		lines = append(lines, strings.Split(line, "\n")...)
	}
	p.wrapped, p.of, p.width = lines, text, width
	return lines
}

// marked begins the line of the selected run.
const marked = "\x1b[7m"

// fit cuts lines to the window. Whatever they say, no control character is left in
// them but the mark.
func (w *watcher) fit(lines []string) string {
	if w.width <= 0 || w.height <= 0 {
		return ""
	}
	lines = lines[:min(len(lines), w.height)]
	for i, line := range lines {
		text, selected := strings.CutPrefix(line, marked)
		text = ansi.Truncate(console.Clean(text), w.width, "")
		if selected {
			text = marked + text + "\x1b[0m"
		}
		lines[i] = text
	}
	return strings.Join(lines, "\n")
}
