package core_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// A probe's answer is believed whole, with what it says of the journal, and nothing
// that is cut off, longer or changed in its frame is.
func FuzzProbeAnswer(f *testing.F) {
	f.Add([]byte("out\n"), []byte("oops"), uint16(3), uint16(40), uint8(7))
	f.Add([]byte("\n"+core.DefaultJournal.Sentinel(testNonce, 3)+"\n"), []byte{}, uint16(0), uint16(9), uint8(1))
	f.Add([]byte("sandkeeper-journal/1 end\n"), []byte("\nsandkeeper-journal/1 end\n"), uint16(0), uint16(99), uint8(255))
	f.Fuzz(func(t *testing.T, tail, stderr []byte, before, cut uint16, flip uint8) {
		tail, stderr = tail[:min(len(tail), core.JournalTail)], stderr[:min(len(stderr), core.JournalTail)]
		size := int(before) + len(tail)
		answer := fmt.Appendf(nil, "sandkeeper-journal/1 present=1 size=%d inode=5 changed=7 marker=1 wrapper=alive from=%d tail=%d stderr=%d has=1 rfrom=%d rest=%d\n",
			size, before, len(tail), len(stderr), before, len(tail))
		answer = append(answer, tail...)
		answer = append(answer, stderr...)
		answer = append(answer, tail...)
		answer = append(answer, "\nsandkeeper-journal/1 end\n"...)

		p := core.DefaultJournal.ParseProbe(testNonce, answer)
		exit, ended := core.DefaultJournal.LastExit(testNonce, tail)
		state := core.JournalProducing
		if ended {
			state = core.JournalFinished
		}
		if p.State != state || p.Exit != exit || p.Size != int64(size) || !bytes.Equal(p.Rest, tail) {
			t.Errorf("a whole answer: %+v; want %s, exit %d", p, state, exit)
		}
		short := answer[:int(cut)%len(answer)]
		if p := core.DefaultJournal.ParseProbe(testNonce, short); p.State != core.JournalUnknown {
			t.Errorf("%d of %d bytes: %+v; want unknown", len(short), len(answer), p)
		}
		if flip != 0 {
			if p := core.DefaultJournal.ParseProbe(testNonce, append(bytes.Clone(answer), flip)); p.State != core.JournalUnknown {
				t.Errorf("a byte more: %+v; want unknown", p)
			}
		}
	})
}

// Answers of start and terminate scripts are whole or none.
func FuzzStartAndTerminateAnswers(f *testing.F) {
	f.Add("started", "alive", "ended", uint8(1), uint16(30))
	f.Add("already", "absent", "prevented", uint8(0), uint16(1))
	f.Add("started\nresult=already", "unknown", "ended sentinel=1", uint8(9), uint16(0))
	f.Fuzz(func(t *testing.T, result, wrapper, ending string, left uint8, cut uint16) {
		const end = "\n\nsandkeeper-journal/1 end\n"
		start := "sandkeeper-journal/1 result=" + result + " wrapper=" + wrapper + end
		if s, err := core.ParseStart([]byte(start)); err == nil && (s.Already != (result == "already") || !s.Already && result != "started") {
			t.Errorf("start %q: %+v", start, s)
		}
		if s, err := core.ParseStart([]byte(start[:int(cut)%len(start)])); err == nil {
			t.Errorf("a part of a start's answer: %+v; want an error", s)
		}
		terminate := fmt.Sprintf("sandkeeper-journal/1 result=%s sentinel=0 signaled=1 killed=2 left=%d", ending, left) + end
		if d, err := core.ParseTerminate([]byte(terminate)); err == nil && (d.Prevented != (ending == "prevented") || d.Left != int64(left)) {
			t.Errorf("terminate %q: %+v", terminate, d)
		}
		if d, err := core.ParseTerminate([]byte(terminate[:int(cut)%len(terminate)])); err == nil {
			t.Errorf("a part of a termination's answer: %+v; want an error", d)
		}
	})
}

func FuzzLastExit(f *testing.F) {
	sentinel := core.DefaultJournal.Sentinel(testNonce, 3)
	f.Add([]byte("out\n" + sentinel + "\n"))
	f.Add([]byte(sentinel + "\r\n" + core.DefaultJournal.Sentinel(otherNonce, 4)))
	f.Add([]byte("\n\n" + sentinel[:20]))
	f.Fuzz(func(t *testing.T, tail []byte) {
		exit, ok := core.DefaultJournal.LastExit(testNonce, tail)
		wantExit, want := 0, false
		for line := range bytes.SplitSeq(tail, []byte("\n")) {
			if e, ok := core.DefaultJournal.ParseSentinel(testNonce, line); ok {
				wantExit, want = e, true
			}
		}
		if ok != want || exit != wantExit {
			t.Errorf("got %d, %v; want %d, %v", exit, ok, wantExit, want)
		}
	})
}

// What a page gives to the log is what the journal has behind the log's end, and
// nothing if the journal does not begin as the log ends.
func FuzzPageAfter(f *testing.F) {
	f.Add([]byte("0123456789"), uint8(2), uint8(5), []byte("4"), int16(0))
	f.Add([]byte("0123456789"), uint8(0), uint8(0), []byte(""), int16(3))
	f.Add([]byte("x"), uint8(9), uint8(200), []byte("y"), int16(-9))
	f.Fuzz(func(t *testing.T, text []byte, from, at uint8, last []byte, more int16) {
		p := core.JournalPage{Present: true, From: int64(from), Bytes: text, Size: int64(from) + int64(len(text)) + int64(more)}
		fresh, ok := p.After(int64(at), last)
		if !ok {
			return
		}
		known := int(at) - int(from)
		if known < 0 || known+len(fresh) != len(text) || !bytes.Equal(text[known:], fresh) || p.Size < int64(at) {
			t.Errorf("page %+v after %d gives %q", p, at, fresh)
		}
		n := min(known, len(last))
		if !bytes.Equal(text[known-n:known], last[len(last)-n:]) {
			t.Errorf("page %+v after %d goes on from %q", p, at, last)
		}
	})
}

// However a frame is cut into pieces, it decodes to the same bytes or fails.
func FuzzFrameDecodesInPieces(f *testing.F) {
	f.Add([]byte("aGVs\r\nbG8=\n"), uint8(3))
	f.Add([]byte("a"), uint8(1))
	f.Add([]byte("aGVsbG8===="), uint8(0))
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		decode := func(size int) (out []byte, err error) {
			var d core.JournalFrame
			for rest := text; len(rest) > 0; {
				piece := rest[:min(size, len(rest))]
				rest = rest[len(piece):]
				b, err := d.Decode(piece)
				if err != nil {
					return nil, err
				}
				out = append(out, b...)
			}
			return out, d.Close()
		}
		one, errOne := decode(max(len(text), 1))
		if errOne != nil && !errors.Is(errOne, core.ErrFrameInvalid) && !errors.Is(errOne, core.ErrFrameTruncated) {
			t.Errorf("error %v", errOne)
		}
		// Padding ends a piece's groups, so only frames without it are the same in all pieces.
		if many, errMany := decode(int(size) + 1); !bytes.Contains(text, []byte("=")) && ((errOne == nil) != (errMany == nil) || errOne == nil && !bytes.Equal(one, many)) {
			t.Errorf("in one piece %q, %v; in pieces of %d %q, %v", one, errOne, int(size)+1, many, errMany)
		}
		plain := strings.Map(func(r rune) rune {
			if r == ' ' || r >= '\t' && r <= '\r' {
				return -1
			}
			return r
		}, string(text))
		if want, err := base64.StdEncoding.DecodeString(plain); err == nil && errOne == nil && !bytes.Equal(one, want) {
			t.Errorf("got %q, want %q", one, want)
		}
	})
}

func FuzzDecodeProbeCall(f *testing.F) {
	target := `"tenant":"a","run":"b","target":{"cluster":"c","taskArn":"t","container":"m"}`
	f.Add([]byte(`{"probe":{"rate":1,"requests":[{` + target + `,"sandboxKey":"k","nonce":"n","logEnd":0,"logTail":null}]}}`))
	f.Add([]byte(`{"page":{` + target + `,"nonce":"n","from":3,"last":"AAA="}}`))
	f.Add([]byte(`{"terminate":{` + target + `,"nonce":"n"}}`))
	f.Add([]byte(`{"terminate":{` + target + `},"probe":{}}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		call, err := core.DecodeProbeCall(data)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error of several lines: %q", err)
			}
			return
		}
		given := 0
		for _, present := range []bool{call.Probe != nil, call.Page != nil, call.Terminate != nil} {
			if present {
				given++
			}
		}
		again, err := json.Marshal(call)
		if err != nil || given != 1 {
			t.Fatalf("call %+v: %d members, %v", call, given, err)
		}
		back, err := core.DecodeProbeCall(again)
		if err != nil {
			t.Fatalf("%s is taken, %s is not: %v", data, again, err)
		}
		if third, err := json.Marshal(back); err != nil || !bytes.Equal(again, third) {
			t.Errorf("%s comes back as %s, %v", again, third, err)
		}
	})
}

func FuzzListings(f *testing.F) {
	f.Add("r.ndjson\nr.err\n", "5 /d\n6 /d/r.ndjson\n", "/d")
	f.Add("../x\n\n \n", "5 /d/\n99999999999999999999 /d/x\n-1 /d/y\n7 /d/a/b\n", "/d/")
	f.Fuzz(func(t *testing.T, names, times, dir string) {
		for _, name := range core.ParseJournalNames(names) {
			if name == "" || strings.Contains(name, "\n") {
				t.Errorf("name %q", name)
			}
			if n := core.DefaultJournal.DecodeName(name); n.Kind == core.JournalNameRun {
				if paths, err := core.DefaultJournal.Paths(n.Run); err != nil || !strings.HasPrefix(name, paths.Token+".") {
					t.Errorf("name %q is of run %q, whose token is %q, %v", name, n.Run, paths.Token, err)
				}
			}
		}
		got := core.ParseJournalTimes(times, dir)
		if !got.Known && len(got.Of) > 0 {
			t.Errorf("times without a witness: %+v", got)
		}
		for _, of := range got.Of {
			if of.Name == "" || strings.Contains(of.Name, "/") || of.At < 0 {
				t.Errorf("time of %q is %d", of.Name, of.At)
			}
		}
		if again := core.ParseJournalTimes(times, dir); !reflect.DeepEqual(got, again) {
			t.Errorf("read twice: %+v and %+v", got, again)
		}
	})
}
