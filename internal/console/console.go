// Package console is what the operator's tool says and asks: tables for people, one
// JSON document for programs, questions before what cannot be undone. Its rule:
// results go to stdout and everything else to stderr, and no byte that comes from a
// record or a sandbox moves a terminal's cursor.
package console

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"
)

// Console is where one command speaks.
type Console struct {
	In       io.Reader
	Out, Err io.Writer
	// JSON asks for one JSON document instead of tables.
	JSON bool
	// Asks says that a person can be asked; OutTerminal and ErrTerminal, that a
	// person sees what is written there.
	Asks, OutTerminal, ErrTerminal bool
}

// Std is the process's own console.
func Std() *Console {
	terminal := func(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
	return &Console{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		Asks: terminal(os.Stdin), OutTerminal: terminal(os.Stdout), ErrTerminal: terminal(os.Stderr),
	}
}

// Print writes v as JSON where that is asked for, and otherwise what text writes.
func (c *Console) Print(v any, text func(w *Writer)) error {
	if c.JSON {
		text, err := Encode(v, "  ")
		if err == nil {
			_, err = c.Out.Write(append(text, '\n'))
		}
		if err != nil {
			return fmt.Errorf("print: %w", err)
		}
		return nil
	}
	w := &Writer{out: c.Out}
	text(w)
	return w.err
}

// Encode is v as JSON, each member on a line of its own where indent says how far, with what
// [Clean] would replace as escapes: a terminal obeys none of it, and a program reads it as
// it is.
func Encode(v any, indent string) ([]byte, error) {
	var buffer bytes.Buffer
	e := json.NewEncoder(&buffer)
	e.SetIndent("", indent)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	text := bytes.TrimSuffix(buffer.Bytes(), []byte("\n"))
	if bytes.ContainsFunc(text, escaped) {
		text = escape(text)
	}
	return text, nil
}

// escape writes the runes that a terminal would obey as JSON does those below the space.
// They stand in strings alone.
func escape(text []byte) []byte {
	out := make([]byte, 0, len(text)+len(text)/8)
	for _, r := range string(text) {
		if !escaped(r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			out = fmt.Appendf(out, `\u%04x`, unit)
		}
	}
	return out
}

func escaped(r rune) bool { return r != '\n' && visible(r) != r }

// Note writes a line for people to stderr.
func (c *Console) Note(format string, args ...any) {
	fmt.Fprintln(c.Err, Clean(fmt.Sprintf(format, args...)))
}

// Progress replaces the line on stderr that says how far long work is, where a person
// sees it. An empty text removes it.
func (c *Console) Progress(format string, args ...any) {
	if c.ErrTerminal {
		fmt.Fprint(c.Err, "\r\x1b[K"+Clean(fmt.Sprintf(format, args...)))
	}
}

// Done removes the line of [Console.Progress].
func (c *Console) Done() { c.Progress("") }

// The answers of [Console.Confirm] that are no yes.
var (
	ErrDeclined = errors.New("declined")
	ErrNobody   = errors.New("nobody can be asked here: say --yes")
)

// Confirm asks a person and returns nil for "y" or "yes" alone. Where nobody can be
// asked it is [ErrNobody]. Whoever ends ctx, as Ctrl-C does, is not waited for.
func (c *Console) Confirm(ctx context.Context, question string) error {
	if !c.Asks {
		return ErrNobody
	}
	fmt.Fprintf(c.Err, "%s [y/N] ", Clean(question))
	answered := make(chan error, 1)
	go func() { answered <- answer(c.In) }() // a read that nobody ends; the process does
	select {
	case <-ctx.Done():
		fmt.Fprintln(c.Err)
		return ctx.Err()
	case err := <-answered:
		return err
	}
}

func answer(in io.Reader) error {
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return ErrDeclined
}

// Writer writes text for people. The first error stays.
type Writer struct {
	out io.Writer
	err error
}

// Line writes one line.
func (w *Writer) Line(format string, args ...any) {
	if w.err == nil {
		_, w.err = fmt.Fprintln(w.out, Clean(fmt.Sprintf(format, args...)))
	}
}

// Table writes rows under a header, in columns; without rows, none in a line.
func (w *Writer) Table(header []string, rows [][]string, none string) {
	if len(rows) == 0 {
		w.Line("%s", none)
		return
	}
	w.columns(append([][]string{header}, rows...))
}

// Pairs writes names with values, leaving out what is empty.
func (w *Writer) Pairs(pairs [][2]string) {
	var rows [][]string
	for _, p := range pairs {
		if p[1] != "" {
			rows = append(rows, p[:])
		}
	}
	w.columns(rows)
}

func (w *Writer) columns(rows [][]string) {
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, cells := range rows {
		clean := make([]string, len(cells))
		for i, c := range cells {
			clean[i] = Clean(c)
		}
		fmt.Fprintln(t, strings.Join(clean, "\t"))
	}
	t.Flush()
	for line := range strings.Lines(text.String()) {
		if w.err == nil {
			_, w.err = fmt.Fprintln(w.out, strings.TrimRight(line, " \n"))
		}
	}
}

// Clean replaces what could move a cursor, ring a bell or hide text: control
// characters, tabs and line ends too, and the marks of writing direction.
func Clean(text string) string { return strings.Map(visible, text) }

// CleanLines is [Clean] for text of several lines, whose line ends and tabs stay.
func CleanLines(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		return visible(r)
	}, text)
}

const zeroWidthJoiner = '\u200d' // holds emoji together

func visible(r rune) rune {
	switch {
	case r == '\n' || r == '\t':
		return ' '
	case unicode.IsControl(r), unicode.Is(unicode.Cf, r) && r != zeroWidthJoiner:
		return unicode.ReplacementChar
	}
	return r
}
