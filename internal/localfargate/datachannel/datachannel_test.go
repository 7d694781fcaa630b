package datachannel_test

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/sandkeeper/sandkeeper/internal/draw"
	"github.com/sandkeeper/sandkeeper/internal/localfargate/datachannel"
)

func TestOnlyTheOldestIsDueAfterItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := datachannel.NewOutgoing()
		o.Add("a")
		o.Add("b")
		if got := o.Due(); got != "" {
			t.Errorf("due at once: %q", got)
		}
		time.Sleep(200 * time.Millisecond)
		if got := o.Due(); got != "a" {
			t.Errorf("due after the first timeout: %q, want a", got)
		}
		if got := o.Due(); got != "" {
			t.Errorf("due right after: %q, want nothing", got)
		}
		time.Sleep(200 * time.Millisecond)
		if got := o.Due(); got != "a" {
			t.Errorf("due after the second timeout: %q, want a again, and never b", got)
		}
		o.Acknowledged(0)
		if got := o.Due(); got != "b" {
			t.Errorf("due once a is acknowledged: %q, want b", got)
		}
	})
}

func TestTimeoutFollowsTheRoundTrip(t *testing.T) {
	cases := []struct {
		name          string
		roundTrip     time.Duration
		least, utmost time.Duration
	}{
		{"a fast link shortens it to little more than the round trip", time.Millisecond, 11 * time.Millisecond, 40 * time.Millisecond},
		{"a slow link lengthens it", 500 * time.Millisecond, 505 * time.Millisecond, 900 * time.Millisecond},
		{"it never exceeds a second", 5 * time.Second, time.Second, time.Second},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := datachannel.NewOutgoing()
				for i := range int64(60) {
					o.Add("x")
					time.Sleep(c.roundTrip)
					o.Acknowledged(i)
				}
				if got := o.Timeout(); got < c.least || got > c.utmost {
					t.Errorf("timeout %v, want %v to %v", got, c.least, c.utmost)
				}
			})
		})
	}
}

func TestTextPassesExceptReplacementCharacters(t *testing.T) {
	draw.Check(t, func(t *draw.T) {
		data := draw.SliceOf(draw.Integer[byte]()).Draw(t, "data")
		read := draw.Range(1, 7).Draw(t, "bytes a read")
		var got, rest []byte
		for part := range chunks(data, read) {
			var text []byte
			text, rest = datachannel.AgentText(append(rest, part...))
			got = append(got, text...)
		}
		if len(rest) > 3 || utf8.FullRune(rest) && len(rest) > 0 {
			t.Fatalf("kept %x, want an incomplete sequence of at most three bytes", rest)
		}
		want := bytes.ReplaceAll(data[:len(data)-len(rest)], []byte("\xef\xbf\xbd"), []byte("\xef"))
		if !bytes.Equal(got, want) {
			t.Fatalf("%x became %x, want %x", data, got, want)
		}
	})
}

func chunks(data []byte, size int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(data) > 0 {
			n := min(size, len(data))
			if !yield(data[:n]) {
				return
			}
			data = data[n:]
		}
	}
}

func FuzzParseFrame(f *testing.F) {
	whole := datachannel.Input(7, "hello")
	f.Add(whole)
	f.Add(whole[:119])
	f.Add([]byte(strings.Repeat("\xff", 200)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		kind, sequence, payload, long, short, err := datachannel.ParseFrame(data)
		if err != nil {
			return
		}
		for _, again := range [][]byte{long, short} {
			kind2, sequence2, payload2, _, _, err := datachannel.ParseFrame(again)
			if err != nil || kind2 != kind || sequence2 != sequence || !bytes.Equal(payload2, payload) {
				t.Fatalf("%q %d %x became %q %d %x, %v", kind, sequence, payload, kind2, sequence2, payload2, err)
			}
		}
	})
}

func TestFaultRatesAreProbabilities(t *testing.T) {
	bad := []datachannel.Faults{
		{LossToClient: 1.1}, {LossToAgent: -0.1}, {DuplicateToClient: 2}, {DuplicateToAgent: -1}, {ReorderToClient: 7}, {ReorderToAgent: -7}, {CutAfterBytes: -1},
	}
	for _, f := range bad {
		if f.Check() == nil {
			t.Errorf("%+v is accepted", f)
		}
	}
	if err := (datachannel.Faults{LossToClient: 1, CutAfterBytes: 1}).Check(); err != nil {
		t.Error(err)
	}
}
