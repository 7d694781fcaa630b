package client_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/client"
)

// pieces answers tails from what a run wrote, in pieces that end anywhere; a gap is a
// piece that is not given.
func pieces(of ...string) *hooked {
	type piece struct {
		from, next int64
		data       string
	}
	var all []piece
	at := int64(0)
	for _, data := range of {
		p := piece{from: at, next: at + int64(len(data)), data: data}
		if strings.HasPrefix(data, "gap") {
			p.data = ""
		}
		all = append(all, p)
		at = p.next
	}
	return &hooked{tail: func(q client.TailRequest) (client.TailReport, error, bool) {
		for i, p := range all {
			if p.next > q.From {
				return client.TailReport{From: q.From, Next: p.next, Data: []byte(p.data[min(len(p.data), int(q.From-p.from)):]), End: i == len(all)-1}, nil, true
			}
		}
		return client.TailReport{From: q.From, Next: q.From, End: true}, nil, true
	}}
}

func follow(t *testing.T, api client.API, from int64) (lines []client.Line) {
	t.Helper()
	for line, err := range client.Follow(t.Context(), api, client.TailRequest{RunKey: key, From: from}) {
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	return lines
}

func told(lines []client.Line) string {
	var b strings.Builder
	for _, l := range lines {
		text := string(l.Text)
		if len(text) > 20 {
			text = fmt.Sprintf("%d bytes", len(text))
		}
		fmt.Fprintf(&b, "%d-%d %s", l.From, l.Next, text)
		if l.Cut {
			b.WriteString(" cut")
		}
		if l.Omitted {
			b.WriteString(" omitted")
		}
		b.WriteString("; ")
	}
	return b.String()
}

func TestOutputComesInLines(t *testing.T) {
	const mega = 1 << 20
	for what, c := range map[string]struct {
		of   []string
		want string
	}{
		"none":                             {nil, ""},
		"two in one piece":                 {[]string{"a\nb\n"}, "0-2 a; 2-4 b; "},
		"a newline that comes later":       {[]string{"a", "\nc\n", "d", "\n"}, "0-1 a; 2-4 c; 4-5 d; "},
		"a newline that never comes":       {[]string{"a\n", "b"}, "0-2 a; 2-3 b; "},
		"empty ones":                       {[]string{"\n\na\n"}, "0-1 ; 1-2 ; 2-4 a; "},
		"empty ones in pieces":             {[]string{"a", "\n\n", "\n"}, "0-1 a; 2-3 ; 3-4 ; "},
		"a very long one":                  {[]string{strings.Repeat("x", mega), "yyz\nb\n"}, fmt.Sprintf("0-%d %d bytes cut; %d-%d yyz; %d-%d b; ", mega, mega, mega, mega+4, mega+4, mega+6)},
		"one that is as long as a piece":   {[]string{strings.Repeat("x", mega), "\nb\n"}, fmt.Sprintf("0-%d %d bytes; %d-%d b; ", mega+1, mega, mega+1, mega+3)},
		"what is left out":                 {[]string{"a\n", "gap", "b\n"}, "0-2 a; 2-5  omitted; 5-7 b; "},
		"what is left out behind half one": {[]string{"a\nb", "gap", "c\n"}, "0-2 a; 2-3 b; 3-6  omitted; 6-8 c; "},
	} {
		t.Run(what, func(t *testing.T) {
			lines := follow(t, pieces(c.of...), 0)
			if got := told(lines); got != c.want {
				t.Fatalf("%s, want %s", got, c.want)
			}
			for i, line := range lines { // whoever goes on from any line gets the rest
				if rest := told(follow(t, pieces(c.of...), line.Next)); rest != told(lines[i+1:]) {
					t.Errorf("from %d: %s, want %s", line.Next, rest, told(lines[i+1:]))
				}
			}
		})
	}
}

// TestAViewerReadsTheLogWithoutDriving, to its end, while a host drives.
func TestAViewerReadsTheLogWithoutDriving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		go func() {
			time.Sleep(time.Second)
			for range 3 {
				w.fleet.Write(key.Run, "line\n")
				time.Sleep(20 * time.Second)
			}
			w.fleet.Exit(key.Run, 0)
		}()
		a, _, err := client.Start(t.Context(), w.api(), *begin(client.NewHost()))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for _, err := range a.Output(t.Context(), 0) {
				if err != nil {
					t.Error(err)
				}
			}
			if _, err := a.Finish(t.Context(), nil); err != nil {
				t.Error(err)
			}
		}()
		if got := told(follow(t, w.api(), 0)); got != "0-5 line; 5-10 line; 10-15 line; " {
			t.Error(got)
		}
	})
}

// TestFollowAsksAgainWhereTheSandboxIsBusy, and gives every other refusal out.
func TestFollowAsksAgainWhereTheSandboxIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := 3
		rest := pieces("a\n")
		api := &hooked{tail: func(q client.TailRequest) (client.TailReport, error, bool) {
			if busy > 0 {
				busy--
				return client.TailReport{}, &client.RefusedError{Code: client.Busy}, true
			}
			return rest.tail(q)
		}}
		begun := time.Now()
		if got := told(follow(t, api, 0)); got != "0-2 a; " || time.Since(begun) < 3*time.Second {
			t.Errorf("%s after %s", got, time.Since(begun))
		}
		api.tail = func(client.TailRequest) (client.TailReport, error, bool) {
			return client.TailReport{}, &client.RefusedError{Code: client.UnknownRun}, true
		}
		n := 0
		for _, err := range client.Follow(t.Context(), api, client.TailRequest{RunKey: key}) {
			if n++; client.CodeOf(err) != client.UnknownRun {
				t.Error(err)
			}
		}
		if n != 1 {
			t.Errorf("%d answers", n)
		}
	})
}

// TestWhoWantsNoMoreLinesGetsNone.
func TestWhoWantsNoMoreLinesGetsNone(t *testing.T) {
	for line, err := range client.Follow(t.Context(), pieces("a\nb\n"), client.TailRequest{RunKey: key}) {
		if err != nil || string(line.Text) != "a" {
			t.Error(line, err)
		}
		break
	}
}
