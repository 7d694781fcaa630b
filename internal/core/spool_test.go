package core_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

var spoolRun = core.RunKey{Tenant: "acme", Run: "r"}

const spoolNonce = "00112233445566778899aabbccddeeff"

func readSpool(t *testing.T, spool core.Spool, journal []byte, from, most int) core.SpoolPage {
	t.Helper()
	return core.SpoolReader{Spool: spool, Most: most}.Page(t.Context(), core.PageRequest{
		RunKey: spoolRun, Nonce: spoolNonce, From: int64(from), Last: journal[max(0, from-core.JournalOverlap):from],
	})
}

func spoolJournal(lines int) []byte {
	var b bytes.Buffer
	for i := range lines {
		fmt.Fprintf(&b, `{"line":%d,"text":"%s"}`+"\n", i, strings.Repeat("x", i%50))
	}
	return b.Bytes()
}

// TestASpoolOfAnyPiecesGivesTheJournal: however it was cut, with pieces that overlap.
func TestASpoolOfAnyPiecesGivesTheJournal(t *testing.T) {
	journal := spoolJournal(3000)
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 1))
		store := mem.New(t)
		for from := 0; from < len(journal); {
			end := min(len(journal), from+1+random.IntN(20_000))
			store.Spool(spoolRun, int64(from), journal[from:end])
			if random.IntN(3) == 0 { // pushed again by one that began anew
				begin := max(0, from-random.IntN(5000))
				store.Spool(spoolRun, int64(begin), journal[begin:min(len(journal), end+random.IntN(3000))])
			}
			from = end
		}
		var log []byte
		for {
			page := readSpool(t, store, journal, len(log), 1+random.IntN(100_000))
			if len(page.Data) == 0 {
				break
			}
			log = append(log, page.Data...)
		}
		// Behind the last newline the sentinel may follow: that much is not the spool's to tell.
		if want := journal[:len(journal)-1]; !bytes.Equal(log, want) {
			t.Fatalf("seed %d: %d bytes, want %d", seed, len(log), len(want))
		}
	}
}

func TestWhatTheSpoolDoesNotShow(t *testing.T) {
	journal := spoolJournal(100)
	other := bytes.ReplaceAll(journal, []byte("line"), []byte("lone"))
	sentinel := append(bytes.Clone(journal), "\n"+core.DefaultJournal.Sentinel(spoolNonce, 0)+"\n"...)
	tests := []struct {
		name string
		put  func(s *mem.Store)
		from int
		want int // where the page ends
	}{
		{"nothing", func(*mem.Store) {}, 0, 0},
		{"a gap before", func(s *mem.Store) { s.Spool(spoolRun, 10, journal[10:]) }, 0, 0},
		{"up to a gap", func(s *mem.Store) {
			s.Spool(spoolRun, 0, journal[:510])
			s.Spool(spoolRun, 511, journal[511:])
		}, 0, 499}, // the line that is cut may be a sentinel yet
		{"nothing behind the log", func(s *mem.Store) { s.Spool(spoolRun, 0, journal[:300]) }, 300, 300},
		{"too little before the log to know it", func(s *mem.Store) { s.Spool(spoolRun, 290, journal[290:]) }, 300, 300},
		{"other bytes than the log ends with", func(s *mem.Store) { s.Spool(spoolRun, 0, other) }, 300, 300},
		{"pieces that contradict each other", func(s *mem.Store) {
			s.Spool(spoolRun, 0, journal[:500])
			s.Spool(spoolRun, 300, other[300:])
		}, 0, 0},
		{"another run's", func(s *mem.Store) { s.Spool(core.RunKey{Tenant: "acme", Run: "r2"}, 0, journal) }, 0, 0},
		{"a sentinel ends what is shown, and nothing else", func(s *mem.Store) { s.Spool(spoolRun, 0, sentinel) }, 0, len(journal)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			store := mem.New(t)
			tt.put(store)
			page := readSpool(t, store, journal, tt.from, 1<<20)
			if want := journal[tt.from:tt.want]; !bytes.Equal(page.Data, want) {
				t.Errorf("%d bytes %.100q, want %d", len(page.Data), page.Data, len(want))
			}
		})
	}
}

// brokenSpool lists what it has, and gives other bytes.
type brokenSpool struct {
	core.Spool
	bytes []byte
}

func (b brokenSpool) Piece(context.Context, core.RunKey, core.SpoolPiece) ([]byte, error) {
	return b.bytes, nil
}

func TestAPieceThatDoesNotMatchItsNameIsIgnored(t *testing.T) {
	store, journal := mem.New(t), spoolJournal(10)
	store.Spool(spoolRun, 0, journal)
	for _, bad := range [][]byte{nil, journal[1:], bytes.ToUpper(journal)} {
		if page := readSpool(t, brokenSpool{store, bad}, journal, 0, 1<<20); len(page.Data) != 0 || page.Newest == 0 {
			t.Errorf("it shows %d bytes, newest at %d", len(page.Data), page.Newest)
		}
	}
	if page := readSpool(t, brokenSpool{store, journal}, journal, 0, 1<<20); len(page.Data) == 0 {
		t.Error("the right bytes are ignored too")
	}
}

func FuzzParseSpoolKey(f *testing.F) {
	f.Add(core.SpoolKey(spoolRun, core.SpoolPiece{From: 5, End: 9, SHA256: strings.Repeat("ab", 32)}))
	f.Add("acme/spool/r/0000000000000005-0000000000000004-" + strings.Repeat("0", 64))
	f.Fuzz(func(t *testing.T, key string) {
		p, ok := core.ParseSpoolKey(spoolRun, key)
		if ok && (core.SpoolKey(spoolRun, p) != key || p.Check() != nil || key <= core.SpoolAfter(spoolRun, p.From) || key > core.SpoolAfter(spoolRun, p.From+1)) {
			t.Errorf("%q reads as %+v", key, p)
		}
	})
}

// TestASweepDrainsTheSpoolFirst, and asks the sandbox for nothing but the end.
func TestASweepDrainsTheSpoolFirst(t *testing.T) {
	for name, tt := range map[string]struct {
		put   func(s *mem.Store, journal []byte)
		pages int // that the sandbox was asked for
	}{
		"all of it": {func(s *mem.Store, j []byte) {
			for from := 0; from < len(j); from += 50_000 {
				s.Spool(key("r"), int64(from), j[from:min(len(j), from+50_000)])
			}
		}, 1},
		"up to a gap": {func(s *mem.Store, j []byte) {
			s.Spool(key("r"), 0, j[:100_000])
			s.Spool(key("r"), 200_000, j[200_000:])
		}, 3},
		"what is no more": {func(s *mem.Store, j []byte) { s.Spool(key("r"), 0, bytes.ToUpper(j[:10])) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.left("r", long)
				w.fleet.Exit("r", 0)
				tt.put(w.store, []byte(long))
				p := w.store.NewProcess(mem.Faults{})
				sweep := w.sweep(p)
				sweep.Spool = p
				report, err := sweep.Run(t.Context(), core.SweepRequest{})
				if err != nil {
					t.Fatal(err)
				}
				if tt.pages == 0 { // its claim is from before what was appended: the next one ends it
					time.Sleep(2 * time.Minute)
					_, err = w.sweep(p).Run(t.Context(), core.SweepRequest{})
				}
				if err != nil {
					t.Fatal(err)
				}
				w.drainQueue(p)
				asked := 0
				for _, call := range p.Calls() {
					if call == "page" {
						asked++
					}
				}
				r := w.run("r")
				if tt.pages == 0 { // it contradicts the journal: nobody can tell which of them is right
					if r.Transcript == nil || r.Transcript.Complete || r.Transcript.Side == "" {
						t.Errorf("%+v, transcript %+v", report.Outcomes, r.Transcript)
					}
					return
				}
				w.ended("r", core.Completed, long)
				if asked != tt.pages {
					t.Errorf("%d pages of the sandbox, want %d", asked, tt.pages)
				}
			})
		})
	}
}

// TestATailTakesTheSpoolsBytes, asks the sandbox for the end alone, and brings the log on
// after half a minute.
func TestATailTakesTheSpoolsBytes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h, s, p := spooling(t)
		pages := func() (n int) {
			for _, call := range p.Calls() {
				if call == "page" {
					n++
				}
			}
			return n
		}
		ask := func(from int64) core.TailReport {
			t.Helper()
			report, err := s.Tail(t.Context(), core.TailRequest{RunKey: key("r"), Host: hostOf("one"), From: from, WaitSeconds: 25})
			h.must(err)
			return report
		}
		var journal, seen []byte
		for i := range 60 { // two minutes of a line each two seconds
			line := fmt.Appendf(nil, "line %d\n", i)
			h.fleet.Write("r", string(line))
			h.store.Spool(key("r"), int64(len(journal)), line)
			journal = append(journal, line...)
			report := ask(int64(len(seen)))
			seen = append(seen, report.Data...)
			if lag := int64(len(seen)) - h.run("r").LogEnd; lag > 20*int64(len(line)) {
				t.Fatalf("the log is %d bytes behind", lag)
			}
			time.Sleep(2 * time.Second)
		}
		if want := journal[:len(journal)-1]; !bytes.Equal(seen, want) {
			t.Errorf("seen %q", seen)
		}
		if n := pages(); n != 0 {
			t.Errorf("the sandbox was asked %d times", n)
		}
		h.fleet.Exit("r", 0)
		time.Sleep(time.Second)
		h.nudged()
		report := ask(int64(len(seen)))
		if !report.End || !report.Run.Sealed || pages() != 1 {
			t.Errorf("tail at the end: %+v after %d pages", report, pages())
		}
	})
}

// spooling is a host of the run r, whose agent works and has its journal spooled.
func spooling(t *testing.T) (*hosting, *core.Session, *mem.Process) {
	t.Helper()
	h := newHosting(t)
	h.ready(startOf("r", "one"))
	p := h.store.NewProcess(mem.Faults{})
	s := h.session(p)
	s.Spool = p
	return h, s, p
}

// nudged tells that the agent of the run r says it has ended.
func (h *hosting) nudged() {
	h.t.Helper()
	r := h.run("r")
	_, err := h.store.Update(h.t.Context(), key("r"), core.Hint{TaskARN: r.TaskARN, ExitedAt: now(), Row: r.Row, DueAt: r.DueAt, Lapse: r.DueAt})
	h.must(err)
}

// TestALineWithoutItsEndIsNoNews: what an agent wrote last may end in no newline. The spool
// has it, and it is given out once the sandbox has told that the agent ended behind it.
func TestALineWithoutItsEndIsNoNews(t *testing.T) {
	for _, read := range []int64{0, int64(len("first\n"))} {
		t.Run(fmt.Sprintf("read up to %d", read), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h, s, _ := spooling(t)
				h.fleet.Write("r", "first\ndone")
				h.store.Spool(key("r"), 0, []byte("first\ndone"))
				h.fleet.Exit("r", 0)
				time.Sleep(time.Second)
				h.nudged()
				seen := []byte("first\ndone")[:read]
				for range 4 {
					report, err := s.Tail(t.Context(), core.TailRequest{RunKey: key("r"), Host: hostOf("one"), From: int64(len(seen)), WaitSeconds: 25})
					h.must(err)
					if seen = append(seen, report.Data...); report.End {
						break
					}
				}
				if string(seen) != "first\ndone" || h.run("r").Sealed == nil {
					t.Errorf("seen %q, sealed %+v", seen, h.run("r").Sealed)
				}
			})
		})
	}
}

// TestAHostThatComesBackRousesTheSpool: nobody watched, so that the sandbox spooled nothing
// of late. It is asked once, and told so that somebody follows; then its pieces are waited
// for.
func TestAHostThatComesBackRousesTheSpool(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h, s, p := spooling(t)
		h.fleet.Write("r", "first\n")
		h.store.Spool(key("r"), 0, []byte("first\n"))
		time.Sleep(time.Second)
		_, err := s.Detach(t.Context(), core.HostRequest{RunKey: key("r"), Host: hostOf("one")})
		h.must(err)
		h.fleet.Write("r", "second\n")
		time.Sleep(10 * time.Second)
		_, err = s.Attach(t.Context(), core.AttachRequest{RunKey: key("r"), Host: hostOf("two")})
		h.must(err)
		begun := time.Now()
		var seen []byte
		for time.Since(begun) < time.Minute {
			report, err := s.Tail(t.Context(), core.TailRequest{RunKey: key("r"), Host: hostOf("two"), From: int64(len(seen)), WaitSeconds: 25})
			h.must(err)
			if seen = append(seen, report.Data...); string(seen) == "first\nsecond" && len(report.Data) > 0 {
				h.store.Spool(key("r"), 6, []byte("second\n")) // as the companion does once it was roused
			}
			if string(seen) == "first\nsecond" && begun.Add(10*time.Second).Before(time.Now()) {
				break
			}
		}
		pages := 0
		for _, call := range p.Calls() {
			if call == "page" {
				pages++
			}
		}
		if took := time.Since(begun); string(seen) != "first\nsecond" || pages != 1 || took > 40*time.Second {
			t.Errorf("seen %q after %s and %d pages", seen, took, pages)
		}
	})
}

// TestAChattyJournalCostsFourQuestionsAMinute where there is no spool, and a quiet one no
// more; each line is given out once.
func TestAChattyJournalCostsFourQuestionsAMinute(t *testing.T) {
	for name, every := range map[string]time.Duration{"chatty": 100 * time.Millisecond, "quiet": 50 * time.Second} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := newHosting(t)
				h.ready(startOf("r", "one"))
				p := h.store.NewProcess(mem.Faults{})
				s := h.session(p)
				begun := time.Now()
				done := make(chan string)
				go func() {
					var all strings.Builder
					for i := 0; time.Since(begun) < 5*time.Minute; i++ {
						line := fmt.Sprintf("line %d\n", i)
						h.fleet.Write("r", line)
						all.WriteString(line)
						time.Sleep(every)
					}
					h.fleet.Exit("r", 0)
					done <- all.String()
				}()
				var seen []byte
				for {
					report, err := s.Tail(t.Context(), core.TailRequest{RunKey: key("r"), Host: hostOf("one"), From: int64(len(seen)), WaitSeconds: 25})
					h.must(err)
					seen = append(seen, report.Data...)
					if report.End {
						break
					}
				}
				if took := time.Since(begun); took > 5*time.Minute+20*time.Second+every {
					t.Errorf("the end was seen after %s", took)
				}
				pages := 0
				for _, call := range p.Calls() {
					if call == "page" {
						pages++
					}
				}
				if minutes := time.Since(begun).Minutes(); float64(pages) > 4*minutes+1 {
					t.Errorf("%d questions in %.1f minutes", pages, minutes)
				}
				if want := <-done; string(seen) != want {
					t.Errorf("%d bytes seen, want %d", len(seen), len(want))
				}
			})
		})
	}
}

// TestACancelOfARunWhoseHostIsGoneEndsInTime: the sweep that cancel asks for waits for the
// host's say, and no longer.
func TestACancelOfARunWhoseHostIsGoneEndsInTime(t *testing.T) {
	for name, detach := range map[string]bool{"its host is silent": false, "its host has left": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := newHosting(t)
				h.ready(startOf("r", "one"))
				h.fleet.Write("r", "working\n")
				if detach {
					_, err := h.self().Detach(t.Context(), core.HostRequest{RunKey: key("r"), Host: hostOf("one")})
					h.must(err)
				}
				s := h.self()
				s.Nudger = nudger(func(ctx context.Context, k core.RunKey) error {
					go func() { _, _ = h.sweep(h.store.Process).Nudged(context.WithoutCancel(ctx), k) }() // as an event is invoked
					return nil
				})
				begun := time.Now()
				report, err := s.Cancel(t.Context(), core.CancelRequest{RunKey: key("r")})
				h.must(err)
				if report.Ended || report.Waiting != "host" {
					t.Errorf("cancel: %+v", report)
				}
				for !h.run("r").Status.Terminal() && time.Since(begun) < time.Minute {
					time.Sleep(100 * time.Millisecond)
				}
				limit := core.CancelGrace + time.Second
				if detach {
					limit = time.Second
				}
				if took := time.Since(begun); took > limit || h.run("r").Status != core.Aborted {
					t.Errorf("%s after %s", h.run("r").Status, took)
				}
			})
		})
	}
}

// nudger is a [core.Nudger].
type nudger func(ctx context.Context, k core.RunKey) error

func (n nudger) Nudge(ctx context.Context, k core.RunKey) error { return n(ctx, k) }

// TestATailTellsItsHostOfACancel at once, also where a sandbox is being waited for.
func TestATailTellsItsHostOfACancel(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHosting(t)
		h.ready(startOf("r", "one"))
		h.fleet.Write("r", "working\n")
		s := h.self()
		report, err := s.Tail(t.Context(), core.TailRequest{RunKey: key("r"), Host: hostOf("one")})
		h.must(err)
		time.Sleep(time.Minute)
		go func() {
			time.Sleep(5 * time.Second)
			_, err := h.self().Cancel(context.Background(), core.CancelRequest{RunKey: key("r")})
			h.must(err)
		}()
		begun := time.Now()
		report, err = s.Tail(t.Context(), core.TailRequest{RunKey: key("r"), Host: hostOf("one"), From: report.Next, WaitSeconds: 25})
		h.must(err)
		if took := time.Since(begun); report.Run.CancelRequested == 0 || took > 10*time.Second {
			t.Errorf("%+v after %s", report, took)
		}
	})
}

// TestAViewerReadsSegments by byte position: from the log, then what was sent ahead of it,
// each piece under a grant.
func TestAViewerReadsSegments(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHosting(t)
		h.ready(startOf("r", "one"))
		s := h.self()
		s.Spool, s.Grants = h.store, h.store
		c := host{h, "r", "one"}
		h.fleet.Write("r", long)
		given, err := c.tail(0, 0)
		h.must(err)
		_, err = c.tail(given.Next, 0) // what was given out goes to the log
		h.must(err)
		end := h.run("r").LogEnd
		h.store.Spool(key("r"), end-10, []byte(long[end-10:]+"ahead\n"))
		var seen []byte
		for from := int64(0); ; {
			report, err := s.Segments(t.Context(), core.SegmentsRequest{RunKey: key("r"), From: from})
			h.must(err)
			for _, p := range report.Segments {
				data := p.Data
				if p.URL != "" {
					data, err = h.store.Download(t.Context(), core.Grant{URL: p.URL, Header: p.Headers, Until: p.Until})
					h.must(err)
				}
				if p.Early != (p.From >= end-10) || int64(len(data)) != p.End-p.From || p.From > from {
					t.Fatalf("piece %d to %d, early %v, of %d bytes, from %d", p.From, p.End, p.Early, len(data), from)
				}
				seen, from = append(seen[:p.From], data...), p.End
			}
			if report.Next != from || report.End {
				t.Fatalf("next %d, end %v, want %d", report.Next, report.End, from)
			}
			if len(report.Segments) == 0 {
				break
			}
		}
		if string(seen) != long+"ahead\n" {
			t.Errorf("a viewer sees %d bytes", len(seen))
		}
		h.fleet.Exit("r", 0)
		for from := end; ; {
			report, err := c.tail(from, 0)
			h.must(err)
			if from = report.Next; report.End {
				break
			}
		}
		last, err := s.Segments(t.Context(), core.SegmentsRequest{RunKey: key("r"), From: int64(len(long))})
		h.must(err)
		if !last.End || len(last.Segments) != 0 {
			t.Errorf("at the end: %+v", last)
		}
		for _, bad := range []core.SegmentsRequest{{RunKey: key("r"), From: -1}, {RunKey: key("other")}, {}} {
			if _, err := s.Segments(t.Context(), bad); err == nil {
				t.Errorf("%+v is answered", bad)
			}
		}
	})
}

// strangePieces are listings that go on although they tell of no piece, as where all that
// lies there is somebody's litter.
type strangePieces struct{ core.Spool }

func (strangePieces) Pieces(context.Context, core.RunKey, int64) ([]core.SpoolPiece, bool, error) {
	return nil, true, nil
}

// TestAListingWithoutAPieceIsNone although it says that there is more.
func TestAListingWithoutAPieceIsNone(t *testing.T) {
	page := core.SpoolReader{Spool: strangePieces{}, Most: 1 << 20}.Page(t.Context(), core.PageRequest{RunKey: key("r"), From: 7})
	if page.End != 7 || len(page.Data) != 0 {
		t.Errorf("%+v", page)
	}
}
