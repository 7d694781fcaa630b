package ecsexec_test

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
)

// answer is what the wrapper prints, as it comes off a terminal.
func answer(stdout []byte, word string) string {
	var b strings.Builder
	b.WriteString("\r\n" + mark + " begin.\r\n")
	text := base64.StdEncoding.EncodeToString(stdout)
	for len(text) > 76 {
		b.WriteString(text[:76] + "\r\n")
		text = text[76:]
	}
	if text != "" {
		b.WriteString(text + "\r\n")
	}
	b.WriteString("\r\n" + mark + " " + word + ".\r\n")
	return b.String()
}

func TestReply(t *testing.T) {
	long := bytes.Repeat([]byte("0123456789abcdef\x00\xff"), 100)
	for _, c := range []struct {
		name   string
		text   string
		stdout []byte
		exit   int
	}{
		{"an answer", answer([]byte("hello"), "7"), []byte("hello"), 7},
		{"an empty one", answer(nil, "0"), nil, 0},
		{"several lines", answer(long, "255"), long, 255},
		{"chatter before, between and after", "# This session is encrypted\r\n" + mark[:20] + "\r\n" + mark + "x\r\n" + answer(long, "0") + "^C\r\n" + answer(nil, "9"), long, 0},
		{"a ready line first", mark + " ready.\r\n" + answer(long, "1"), long, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			for size := 1; size <= len(c.text); size += 1 + size/3 {
				r := ecsexec.NewReply(mark, 1<<20)
				whole := false
				for chunk := range chunks([]byte(c.text), size) {
					var err error
					if whole, err = r.Add(chunk); err != nil {
						t.Fatal(err)
					}
				}
				stdout, exit, err := r.Result()
				if !whole || err != nil || !bytes.Equal(stdout, c.stdout) || exit != c.exit {
					t.Fatalf("by %d bytes: got whole %v, %q, exit %d, %v", size, whole, stdout, exit, err)
				}
			}
		})
	}
}

func chunks(b []byte, size int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			n := min(size, len(b))
			if !yield(b[:n]) {
				return
			}
			b = b[n:]
		}
	}
}

func TestReplyIsNoResult(t *testing.T) {
	whole := answer([]byte(strings.Repeat("x", 200)), "0")
	foreign := strings.Replace(whole, "\r\neHh4", "\r\nZm9yZWlnbg==\r\neHh4", 1)
	for _, c := range []struct{ name, text string }{
		{"a word in place of a status", answer(nil, "lost")},
		{"a status beyond 255", answer(nil, "256")},
		{"a trailer without a begin", mark + " 0."},
		{"a line that is not base64", strings.Replace(whole, "eHh4", "e?h4", 1)},
		{"a line lost from the middle", strings.Replace(whole, "eHh4eHh4", "eHh4", 1)},
		{"foreign text that is base64 itself", foreign},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := ecsexec.NewReply(mark, 1<<20)
			if complete, err := r.Add([]byte(c.text)); !complete || err != nil {
				t.Fatalf("got complete %v, %v", complete, err)
			}
			if stdout, exit, err := r.Result(); err == nil {
				t.Errorf("got %q, exit %d; want an error", stdout, exit)
			}
		})
	}
	t.Run("anything less than the whole trailer", func(t *testing.T) {
		end := strings.LastIndex(whole, ".")
		for n := range end {
			r := ecsexec.NewReply(mark, 1<<20)
			if complete, err := r.Add([]byte(whole[:n])); complete || err != nil {
				t.Fatalf("after %d of %d bytes: got complete %v, %v", n, end+1, complete, err)
			}
		}
	})
	t.Run("endless output without a trailer", func(t *testing.T) {
		r := ecsexec.NewReply(mark, 1000)
		for range 70 {
			if _, err := r.Add(make([]byte, 1000)); err != nil {
				return
			}
		}
		t.Error("70 kB taken where an answer has 1 kB at most")
	})
}

func FuzzReply(f *testing.F) {
	f.Add([]byte(answer([]byte("hello"), "7")), uint8(3))
	f.Add([]byte(mark+" ready.\n"+mark+" begin.\n"+mark+" no-base64."), uint8(1))
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		one, many := ecsexec.NewReply(mark, 1<<20), ecsexec.NewReply(mark, 1<<20)
		wholeOne, _ := one.Add(text)
		wholeMany := false
		for chunk := range chunks(text, int(size)+1) {
			wholeMany, _ = many.Add(chunk)
		}
		a, exitA, errA := one.Result()
		b, exitB, errB := many.Result()
		if wholeOne != wholeMany || !bytes.Equal(a, b) || exitA != exitB || (errA == nil) != (errB == nil) {
			t.Errorf("in one piece: %v, %q, %d, %v; in pieces of %d: %v, %q, %d, %v",
				wholeOne, a, exitA, errA, int(size)+1, wholeMany, b, exitB, errB)
		}
	})
}
