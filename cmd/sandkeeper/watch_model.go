package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// watcher is the live view. It changes in Update alone; what takes time is a command
// whose answer comes back as a message.
type watcher struct {
	ctx   context.Context
	in    *installation
	every time.Duration
	live  bool
	title string

	width, height int
	now           snapshot
	err           error // of the last look
	looks         int   // which row of looks goes on: an act, or r, begins a new one
	selected      core.RunKey
	filter        string
	note          string
	prompt        *prompt
	page          *page
}

// prompt asks for the reason of an act, or for the text of the filter.
type prompt struct {
	op   string
	key  core.RunKey
	text []rune
}

// page is a transcript, or an explanation, in place of the list.
type page struct {
	key   core.RunKey
	title string
	text  string
	tail  *tail // nil: it does not grow
	back  int   // lines that the view is above the end
	ended bool
	err   error

	wrapped []string // the lines of the text, as wide as the window was
	of      string
	width   int
}

// filtering is the prompt that is no act.
const filtering = "filter"

// top is further above the end of a page than its first line.
const top = 1 << 30

// pageMost is how much of a transcript the view keeps, bytes.
const pageMost = 1 << 20

// holdFor is how long the view's hold lasts; the command takes any other.
const holdFor = 4 * time.Hour

// The messages.
type (
	lookMsg  struct{ row int } // it is time to look
	shownMsg struct {
		row int
		now snapshot
		err error
	}
	actedMsg struct {
		op  string
		key core.RunKey
		err error
	}
	pieceMsg struct {
		of    *page
		text  string
		ended bool
		err   error
	}
	explainedMsg struct {
		of   *page
		text string
		err  error
	}
)

// Init looks at once.
func (w *watcher) Init() tea.Cmd { return w.look() }

// look reads a snapshot.
func (w *watcher) look() tea.Cmd {
	row := w.looks
	return func() tea.Msg {
		now, err := w.in.snapshot(w.ctx)
		return shownMsg{row, now, err}
	}
}

// lookNow looks without waiting for the next time, which begins anew: the looks before come
// to nothing.
func (w *watcher) lookNow() tea.Cmd {
	w.looks++
	return w.look()
}

// Update takes one message.
func (w *watcher) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch m := msg.(type) {
	case tea.WindowSizeMsg:
		w.width, w.height = m.Width, m.Height
	case tea.KeyPressMsg:
		return w, w.press(m)
	case tea.PasteMsg:
		if w.prompt != nil {
			w.typed("", m.Content)
		}
	case lookMsg:
		if m.row == w.looks {
			return w, w.look()
		}
	case shownMsg:
		if m.row == w.looks {
			w.show(m)
			return w, tea.Tick(w.every, func(time.Time) tea.Msg { return lookMsg{m.row} })
		}
	case actedMsg:
		w.note = m.op + " " + m.key.String() + ": done"
		if m.err != nil {
			w.note = m.err.Error()
		}
		return w, w.lookNow()
	case pieceMsg:
		return w, w.piece(m)
	case explainedMsg:
		m.of.text, m.of.back = m.text, top
		m.of.err = m.err
	}
	return w, nil
}

// show takes a snapshot. What could not be read leaves the last one there: it is old,
// and says so, and is not empty.
func (w *watcher) show(m shownMsg) {
	if w.err = m.err; m.err != nil {
		return
	}
	w.now = m.now
	w.choose()
}

// runs are those that the filter leaves: it is part of their name, thread or standing.
func (w *watcher) runs() []runView {
	if w.filter == "" {
		return w.now.Runs
	}
	var left []runView
	for _, r := range w.now.Runs {
		if strings.Contains(strings.ToLower(r.RunKey.String()+" "+string(r.Thread)+" "+r.Standing), strings.ToLower(w.filter)) {
			left = append(left, r)
		}
	}
	return left
}

// index is where the selected run is among those that are shown, or -1.
func (w *watcher) index() int {
	return slices.IndexFunc(w.runs(), func(r runView) bool { return r.RunKey == w.selected })
}

// choose moves the selection to a run that is shown.
func (w *watcher) choose() {
	if runs := w.runs(); len(runs) > 0 && w.index() < 0 {
		w.selected = runs[0].RunKey
	}
}

// press takes a key.
func (w *watcher) press(m tea.KeyPressMsg) tea.Cmd {
	key := m.String()
	switch {
	case key == "ctrl+c":
		return tea.Quit
	case w.prompt != nil:
		return w.typed(key, m.Text)
	case w.page != nil:
		return w.turnPage(key)
	}
	w.note = ""
	screen := max(1, w.height-4)
	switch key {
	case "esc":
		if w.filter == "" {
			return tea.Quit
		}
		w.filter = ""
	case "q":
		return tea.Quit
	case "up", "k":
		w.move(-1)
	case "down", "j":
		w.move(1)
	case "pgup", "b":
		w.move(-screen)
	case "pgdown", "space":
		w.move(screen)
	case "home", "g":
		w.move(-len(w.now.Runs))
	case "end", "G":
		w.move(len(w.now.Runs))
	case "/":
		w.prompt = &prompt{op: filtering, text: []rune(w.filter)}
	case "?":
		w.page = &page{title: "keys", text: helpText, back: top}
	case "r":
		return w.lookNow()
	case "enter", "t":
		return w.openTranscript(w.live)
	case "l":
		return w.openTranscript(true)
	case "e":
		return w.openExplanation()
	case "h":
		w.ask("hold")
	case "u":
		w.ask("release")
	case "x":
		w.ask("kill")
	}
	return nil
}

func (w *watcher) move(by int) {
	if runs := w.runs(); len(runs) > 0 {
		w.selected = runs[min(max(w.index()+by, 0), len(runs)-1)].RunKey
	}
}

func (w *watcher) ask(op string) {
	if w.index() >= 0 {
		w.prompt = &prompt{op: op, key: w.selected}
	}
}

// typed takes a key of a prompt.
func (w *watcher) typed(key, text string) tea.Cmd {
	p := w.prompt
	switch {
	case key == "esc" && p.op == filtering:
		w.filter, w.prompt = "", nil
		w.choose()
		return nil
	case key == "esc":
		w.prompt = nil
	case key == "enter" && p.op == filtering:
		w.prompt = nil
		return nil
	case key == "enter" && strings.TrimSpace(string(p.text)) == "":
		w.note = p.op + " wants a reason"
	case key == "enter":
		w.prompt, w.note = nil, p.op+" "+p.key.String()+" …"
		return w.act(*p)
	case key == "backspace":
		p.text = p.text[:max(0, len(p.text)-1)]
	case text != "":
		w.note = ""
		p.text = append(p.text, []rune(console.Clean(text))...)
	}
	if p.op == filtering {
		w.filter = string(p.text)
		w.choose()
	}
	return nil
}

// act carries out what was asked for.
func (w *watcher) act(p prompt) tea.Cmd {
	return func() tea.Msg {
		by, err := w.in.by(w.ctx, whyText(string(p.text)))
		if err != nil {
			return actedMsg{p.op, p.key, err}
		}
		o, _ := w.in.operator(false)
		switch p.op {
		case "hold":
			err = o.Hold(w.ctx, p.key, core.MillisOf(time.Now().Add(holdFor)), by)
		case "release":
			err = o.Release(w.ctx, p.key, by)
		case "kill":
			err = o.Kill(w.ctx, p.key, by)
		default:
			err = errors.New(p.op + ": no such act")
		}
		return actedMsg{p.op, p.key, err}
	}
}

// openTranscript shows the selected run's log, and follows it; live, in the sandbox too.
func (w *watcher) openTranscript(live bool) tea.Cmd {
	if w.index() < 0 {
		return nil
	}
	w.page = &page{key: w.selected, title: "transcript of " + w.selected.String(), tail: &tail{in: w.in, key: w.selected, live: live}}
	return w.follow(w.page)
}

// follow reads what is new of a transcript; one step at a time.
func (w *watcher) follow(p *page) tea.Cmd {
	return func() tea.Msg {
		var text strings.Builder
		p.tail.print = func(piece pieceView) error {
			if piece.Omitted {
				text.WriteString("\n[too much to keep]\n")
			}
			text.WriteString(console.CleanLines(string(piece.Data)))
			return nil
		}
		ended, err := p.tail.step(w.ctx)
		if err == nil {
			err = p.tail.err
		}
		return pieceMsg{p, text.String(), ended, err}
	}
}

// piece adds what a step brought, and asks for the next one while the page is open.
func (w *watcher) piece(m pieceMsg) tea.Cmd {
	p := m.of
	before := len(p.lines(w.width))
	p.text += m.text
	p.text = p.text[max(0, len(p.text)-pageMost):]
	if p.back > 0 { // what somebody reads stays where it is
		p.back += max(0, len(p.lines(w.width))-before)
	}
	p.ended, p.err = m.ended, m.err
	if p.ended || w.page != p {
		return nil
	}
	return tea.Tick(w.every, func(time.Time) tea.Msg { return w.follow(p)() })
}

// openExplanation shows why the selected run is where it is.
func (w *watcher) openExplanation() tea.Cmd {
	if w.index() < 0 {
		return nil
	}
	p := &page{key: w.selected, title: "explanation of " + w.selected.String(), text: "asking …"}
	w.page = p
	return func() tea.Msg {
		e, err := w.in.explain(w.ctx, p.key, true)
		if err != nil {
			return explainedMsg{p, "", err}
		}
		var text strings.Builder
		c := console.Console{Out: &text}
		err = c.Print(e, e.print)
		return explainedMsg{p, text.String(), err}
	}
}

// turnPage takes a key of a page.
func (w *watcher) turnPage(key string) tea.Cmd {
	screen := max(1, w.height-4)
	switch key {
	case "q", "esc":
		w.page = nil
	case "up", "k":
		w.page.back++
	case "down", "j":
		w.page.back--
	case "pgup", "b":
		w.page.back += screen
	case "pgdown", "space":
		w.page.back -= screen
	case "home", "g":
		w.page.back = top
	case "end", "G":
		w.page.back = 0
	}
	if w.page != nil {
		w.page.back = max(0, w.page.back)
	}
	return nil
}
