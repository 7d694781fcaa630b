package side_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/side"
	"github.com/sandkeeper/sandkeeper/internal/toolwire"
)

// store takes pieces, and answers whether somebody watches.
type store struct {
	began   time.Time
	watched func(since time.Duration) bool
	at      []time.Duration // when each piece came
	from    []int64
	bytes   []byte
}

func (s *store) grants(_ context.Context, pieces []toolwire.Piece) (toolwire.SpoolAnswer, error) {
	s.at, s.from = append(s.at, time.Since(s.began)), append(s.from, pieces[0].From)
	return toolwire.SpoolAnswer{Watched: s.watched(time.Since(s.began)), Grants: []toolwire.Grant{{URL: "http://store.invalid/"}}}, nil
}

// RoundTrip implements [http.RoundTripper].
func (s *store) RoundTrip(r *http.Request) (*http.Response, error) {
	data, err := io.ReadAll(r.Body)
	s.bytes = append(s.bytes[:s.from[len(s.from)-1]], data...)
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, err
}

// between counts the pieces that came in a time.
func (s *store) between(from, to time.Duration) (n int) {
	for _, at := range s.at {
		if at >= from && at < to {
			n++
		}
	}
	return n
}

// pushed is what becomes of a journal to which a line comes each second for so long; act is
// called before each.
func pushed(t *testing.T, long time.Duration, watched func(time.Duration) bool, act func(follow string, since time.Duration)) *store {
	t.Helper()
	dir := t.TempDir()
	s := &store{watched: watched}
	synctest.Test(t, func(t *testing.T) {
		s.began = time.Now()
		journal, follow := filepath.Join(dir, "journal"), filepath.Join(dir, "follow")
		f, err := os.Create(journal)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		end, size := make(chan int64, 1), 0
		go func() {
			for i := 0; time.Since(s.began) < long; i++ {
				act(follow, time.Since(s.began))
				n, err := fmt.Fprintf(f, "line %d\n", i)
				if err != nil {
					t.Error(err)
				}
				size += n
				time.Sleep(time.Second)
			}
			end <- int64(size)
		}()
		p := side.Pusher{
			Journal: journal, State: filepath.Join(dir, "state"), Follow: follow, Grants: s.grants, Client: &http.Client{Transport: s},
			Log: slog.New(slog.DiscardHandler),
		}
		if err := p.Run(t.Context(), end); err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(journal)
		if err != nil || !bytes.Equal(s.bytes, want) {
			t.Errorf("the store has %d bytes of %d, %v", len(s.bytes), len(want), err)
		}
	})
	return s
}

func nothing(string, time.Duration) {}

// TestAPieceGoesEachTwoSecondsWhileSomebodyWatches, and each five minutes from the answer
// on that says that nobody does; the first goes at once, and is answered so; the end waits
// for nobody.
func TestAPieceGoesEachTwoSecondsWhileSomebodyWatches(t *testing.T) {
	s := pushed(t, 21*time.Minute, func(since time.Duration) bool { return since < time.Minute }, nothing)
	if first, watched, alone := s.at[0], s.between(0, time.Minute), s.between(time.Minute+3*time.Second, 21*time.Minute); first > time.Second || watched < 25 || watched > 31 || alone != 3 {
		t.Errorf("first after %s, %d in the minute that is watched, %d in the 20 that are not", first, watched, alone)
	}
	if last := s.at[len(s.at)-1]; last < 21*time.Minute || last > 21*time.Minute+time.Second {
		t.Errorf("the last piece came after %s", last)
	}
	if s := pushed(t, 6*time.Minute, func(time.Duration) bool { return false }, nothing); len(s.at) != 3 {
		t.Errorf("a run that nobody watches made pieces at %v", s.at)
	}
}

// TestAMarkOfAFollowerIsASignForAMinute: he may have the journal without having the run.
func TestAMarkOfAFollowerIsASignForAMinute(t *testing.T) {
	touched := false
	s := pushed(t, 4*time.Minute, func(time.Duration) bool { return false }, func(follow string, since time.Duration) {
		if since >= time.Minute && !touched {
			touched = true
			now := time.Now()
			if err := os.WriteFile(follow, nil, 0o644); err != nil {
				t.Error(err)
			}
			if err := os.Chtimes(follow, now, now); err != nil { // of the bubble's clock
				t.Error(err)
			}
		}
	})
	if before, during, after := s.between(time.Second, time.Minute), s.between(time.Minute, 2*time.Minute), s.between(2*time.Minute+3*time.Second, 4*time.Minute); before != 0 || during < 25 || after != 0 {
		t.Errorf("%d pieces before the mark, %d in the minute after, %d later", before, during, after)
	}
}
