package core_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// growing is a journal that has more of data at each time of its schedule.
type growing struct {
	begun   time.Time
	pieces  []string        // what is there from
	at      []time.Duration // this time on
	ends    bool            // and then nothing more
	stderr  string
	unasked bool // stderr cannot be read
}

func (g *growing) Read(_ context.Context, from int64) ([]byte, error) {
	var all []byte
	for i, piece := range g.pieces {
		if time.Since(g.begun) >= g.at[i] {
			all = append(all, piece...)
		}
	}
	if int64(len(all)) == from && g.ends && len(all) == len(strings.Join(g.pieces, "")) {
		return nil, io.EOF
	}
	return all[from:], nil
}

func (g *growing) Stderr(context.Context) ([]byte, error) {
	if g.unasked {
		return nil, errors.New("no answer")
	}
	return []byte(g.stderr), nil
}

func TestReaderReadsToTheFirstSentinel(t *testing.T) {
	end := "\n" + journal.Sentinel(testNonce, 0) + "\n"
	failed := "\n" + journal.Sentinel(testNonce, 3) + "\n"
	for _, c := range []struct {
		name   string
		source growing
		lines  []string
		err    error
		exit   *core.JournalExitError
		after  time.Duration
	}{
		{
			"lines come once, blank ones not at all",
			growing{pieces: []string{"{\"a\"", ":1}\n\n  \nplain\n", end + "late\n"}, at: []time.Duration{0, time.Second, 2 * time.Second}},
			[]string{`{"a":1} true`, "plain false"}, nil, nil, 2 * time.Second,
		},
		{
			"a forged sentinel is a line",
			growing{pieces: []string{`{"__exit":0}` + "\n" + end}, at: []time.Duration{0}},
			[]string{`{"__exit":0} true`}, nil, nil, 0,
		},
		{
			"a failed agent's stderr is told",
			growing{pieces: []string{failed}, at: []time.Duration{0}, stderr: "boom\n"},
			nil, nil, &core.JournalExitError{Exit: 3, Message: "boom"}, 0,
		},
		{
			"its status counts even if stderr cannot be read",
			growing{pieces: []string{failed}, at: []time.Duration{0}, unasked: true},
			nil, nil, &core.JournalExitError{Exit: 3}, 0,
		},
		{
			"no first byte in time",
			growing{pieces: []string{end}, at: []time.Duration{time.Minute}},
			nil, core.ErrJournalStalled, nil, 10 * time.Second,
		},
		{
			"after the first byte it waits",
			growing{pieces: []string{"x\n", end}, at: []time.Duration{9 * time.Second, time.Hour}},
			[]string{"x false"}, nil, nil, time.Hour,
		},
		{
			"the source ends without a sentinel",
			growing{pieces: []string{"x\nrest"}, at: []time.Duration{0}, ends: true},
			[]string{"x false"}, core.ErrNoSentinel, nil, 0,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.source.begun = time.Now()
				reader := core.JournalReader{Format: journal, Nonce: testNonce, Source: &c.source, Poll: 250 * time.Millisecond, FirstByte: 10 * time.Second}
				var lines []string
				err := reader.Read(t.Context(), 0, func(line core.JournalLine, isJSON bool) error {
					lines = append(lines, fmt.Sprintf("%s %v", line.Text, isJSON))
					return nil
				})
				if exit, ok := errors.AsType[*core.JournalExitError](err); ok != (c.exit != nil) || ok && *exit != *c.exit {
					t.Errorf("end %v, want %v", err, c.exit)
				}
				if c.exit == nil && !errors.Is(err, c.err) {
					t.Errorf("end %v, want %v", err, c.err)
				}
				if !slices.Equal(lines, c.lines) || time.Since(c.source.begun) != c.after {
					t.Errorf("lines %q after %s, want %q after %s", lines, time.Since(c.source.begun), c.lines, c.after)
				}
			})
		})
	}
}

func TestReaderStopsWithItsCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &growing{begun: time.Now(), pieces: []string{"a\nb\n"}, at: []time.Duration{0}}
		reader := core.JournalReader{Format: journal, Nonce: testNonce, Source: source, Poll: time.Second, FirstByte: time.Minute}
		enough := errors.New("enough")
		if err := reader.Read(t.Context(), 0, func(core.JournalLine, bool) error { return enough }); !errors.Is(err, enough) {
			t.Errorf("end %v, want the error of emit", err)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Hour, enough)
		defer cancel()
		if err := reader.Read(ctx, 0, func(core.JournalLine, bool) error { return nil }); !errors.Is(err, enough) {
			t.Errorf("end %v, want the context's cause", err)
		}
	})
}
