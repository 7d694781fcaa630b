package main

import (
	"fmt"
	"strconv"
	"strings"

	tea "charm.land/bubbletea/v2"

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
	parts = append(parts, fmt.Sprintf("%d runs", len(w.now.Runs)))
	if n := len(w.now.Unreadable); n > 0 {
		parts = append(parts, fmt.Sprintf("%d unreadable", n))
	}
	return strings.Join(append(parts, w.now.At.String()), "  ")
}

// footline is the prompt, what was done last, or the keys.
func (w *watcher) footline() string {
	switch {
	case w.prompt != nil && w.prompt.op == "hold":
		return fmt.Sprintf("hold %s for %s, why? %s_   (enter does it, esc does not)", w.prompt.key, short(holdFor), string(w.prompt.text))
	case w.prompt != nil:
		return fmt.Sprintf("%s %s, why? %s_   (enter does it, esc does not)", w.prompt.op, w.prompt.key, string(w.prompt.text))
	case w.note != "":
		return w.note
	}
	return "↑↓ choose  enter transcript  e explain  h hold  u release  x kill  q quit"
}

// columns of the list, with their widths.
var columns = []struct {
	title string
	width int
}{{"RUN", 34}, {"STANDING", 17}, {"AGE", 8}, {"EPOCH", 6}, {"SAVED", 10}, {"EXPIRES", 21}, {"HELD", 6}, {"TASK", 32}}

// drawRuns draws as many runs as fit, the selected one among them.
func (w *watcher) drawRuns(most int) []string {
	var titles []string
	for _, c := range columns {
		titles = append(titles, c.title)
	}
	lines := []string{cells(titles)}
	if len(w.now.Runs) == 0 {
		return append(lines, "no runs")
	}
	at := max(0, w.index())
	first := max(0, min(at-most/2, len(w.now.Runs)-most))
	for i, r := range w.now.Runs[first:min(len(w.now.Runs), first+most)] {
		held := ""
		if r.Hold != nil && r.Hold.Until > w.now.At {
			held = "held"
		}
		line := cells([]string{
			r.RunKey.String(), r.Standing, ago(core.Millis(r.StartedAt), core.Millis(w.now.At)), strconv.FormatInt(r.Epoch, 10),
			strconv.FormatInt(r.LogEnd, 10), r.ExpiresAt.String(), held, taskID(r.TaskARN),
		})
		if first+i == at {
			line = marked + line
		}
		lines = append(lines, line)
	}
	return lines
}

// cells sets texts under their columns.
func cells(texts []string) string {
	var line strings.Builder
	for i, text := range texts {
		line.WriteString(cut(console.Clean(text), columns[i].width))
		line.WriteByte(' ')
	}
	return strings.TrimRight(line.String(), " ")
}

// cut makes text exactly so wide.
func cut(text string, width int) string {
	runes := []rune(text)
	if len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return text + strings.Repeat(" ", width-len(runes))
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
	lines := strings.Split(strings.TrimRight(p.text, "\n"), "\n")
	height := max(1, w.height-4)
	p.back = min(p.back, max(0, len(lines)-height))
	end := len(lines) - p.back
	shown := lines[max(0, end-height):end]
	return w.fit(append(append([]string{p.title + "  " + state, ""}, shown...), "", "↑↓ pgup pgdn end move  q back"))
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
		if runes := []rune(console.Clean(text)); len(runes) > w.width {
			text = string(runes[:w.width])
		} else {
			text = string(runes)
		}
		if selected {
			text = marked + text + "\x1b[0m"
		}
		lines[i] = text
	}
	return strings.Join(lines, "\n")
}
