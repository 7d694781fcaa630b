package console_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/console"
)

func TestATableLinesUpAndHidesControlCharacters(t *testing.T) {
	var out bytes.Buffer
	c := &console.Console{Out: &out}
	err := c.Print(nil, func(w *console.Writer) {
		w.Table([]string{"RUN", "STATUS"}, [][]string{{"a/long-run", "running"}, {"b\x1b[2J\n\u202ec", "failed"}}, "none")
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || strings.ContainsAny(out.String(), "\x1b\u202e") {
		t.Fatalf("table %q", out.String())
	}
	if at := strings.Index(lines[0], "STATUS"); strings.Index(lines[1], "running") != at {
		t.Errorf("columns do not line up:\n%s", out.String())
	}
}

func TestJSONIsOneDocumentAndNothingElse(t *testing.T) {
	var out, errs bytes.Buffer
	c := &console.Console{Out: &out, Err: &errs, JSON: true}
	c.Progress("half way")
	if err := c.Print(map[string]int{"runs": 3}, func(*console.Writer) { t.Error("text was asked for") }); err != nil {
		t.Fatal(err)
	}
	var got map[string]int
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got["runs"] != 3 || errs.Len() != 0 {
		t.Errorf("stdout %q, stderr %q: %v", out.String(), errs.String(), err)
	}
}

func TestOnlyAYesConfirms(t *testing.T) {
	for name, row := range map[string]struct {
		answer string
		asks   bool
		want   error
	}{
		"y is a yes":                        {"y\n", true, nil},
		"Yes is a yes":                      {"Yes\n", true, nil},
		"a yes without a line end is one":   {"yes", true, nil},
		"an empty line is none":             {"\n", true, console.ErrDeclined},
		"the end of input is none":          {"", true, console.ErrDeclined},
		"anything else is none":             {"yes please\n", true, console.ErrDeclined},
		"without a terminal nobody answers": {"y\n", false, console.ErrNobody},
	} {
		t.Run(name, func(t *testing.T) {
			c := &console.Console{In: strings.NewReader(row.answer), Err: &bytes.Buffer{}, Asks: row.asks}
			if err := c.Confirm(t.Context(), "stop it?"); !errors.Is(err, row.want) {
				t.Errorf("got %v, want %v", err, row.want)
			}
		})
	}
}

// TestAQuestionEndsWithItsContext: Ctrl-C at a question is an answer, and nothing that is
// typed later is taken for one.
func TestAQuestionEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	in, typed := io.Pipe()
	defer typed.Close()
	c := &console.Console{In: in, Err: cancels(cancel), Asks: true}
	if err := c.Confirm(ctx, "stop it?"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// cancels is a screen on which a question ends a context.
type cancels context.CancelFunc

func (c cancels) Write(p []byte) (int, error) {
	c()
	return len(p), nil
}

func TestCleanLinesKeepsLines(t *testing.T) {
	if got := console.CleanLines("a\tb\nc\rd\x07"); got != "a\tb\nc\ufffdd\ufffd" {
		t.Errorf("got %q", got)
	}
}

func TestTheFirstErrorOfAWriterIsTheAnswer(t *testing.T) {
	c := &console.Console{Out: broken{}}
	err := c.Print(nil, func(w *console.Writer) {
		w.Line("one")
		w.Pairs([][2]string{{"two", "2"}})
	})
	if !errors.Is(err, errBroken) {
		t.Errorf("got %v", err)
	}
}

var errBroken = errors.New("broken pipe")

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errBroken }

// TestABarIsForTerminals, tells how far the work is, moves no cursor by what it describes,
// and leaves nothing behind.
func TestABarIsForTerminals(t *testing.T) {
	for _, terminal := range []bool{true, false} {
		var errs bytes.Buffer
		c := &console.Console{Err: &errs, ErrTerminal: terminal}
		bar := c.Bar(200, "letters\x1b[2J")
		bar.At(50)
		bar.Done()
		drawn := errs.String()
		if strings.Contains(drawn, "\x1b[2J") || strings.Contains(drawn, "0/200") != terminal {
			t.Errorf("terminal %t: %q", terminal, drawn)
		}
		if !terminal && drawn != "" {
			t.Errorf("%q is written where nobody reads it", drawn)
		}
	}
}

// TestNoJSONMovesACursor: what agents and hosts write is in the document as it is, and a
// terminal on which it is printed obeys none of it.
func TestNoJSONMovesACursor(t *testing.T) {
	for _, text := range []string{"", "plain", "\x1b[2J", "\u009b2J", "\u009d0;title\u009c", "\x7f\x7f", "a\u202egnp", "\u2066x", "\ufeff", "\U000e0041", "a\nb\tc\r", "é日本 👩\u200d🚀", "<&>", "\u2028"} {
		want := map[string]any{"text": text, text: []any{text}}
		var out bytes.Buffer
		c := &console.Console{Out: &out, JSON: true}
		if err := c.Print(want, nil); err != nil {
			t.Fatal(err)
		}
		line, err := console.Encode(want, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range []string{out.String(), string(line)} {
			for l := range strings.SplitSeq(strings.TrimSuffix(document, "\n"), "\n") {
				if console.Clean(l) != l {
					t.Errorf("of %q: %q moves a cursor", text, l)
				}
			}
			var got map[string]any
			if err := json.Unmarshal([]byte(document), &got); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("of %q: %v, %v", text, got, err)
			}
		}
		if bytes.Contains(line, []byte("\n")) {
			t.Errorf("of %q: %q is more than a line", text, line)
		}
	}
}
