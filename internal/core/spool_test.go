package core_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

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
