package core_test

import (
	"context"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// TestARewrittenJournalIsStoredBeside: a log that was begun is never continued with
// bytes that do not follow it (DESIGN 5.8).
func TestARewrittenJournalIsStoredBeside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.left("r", long)
		w.fleet.Exit("r", 3)
		// A sweep that dies after its first append leaves a log that has begun.
		p := w.store.NewProcess(mem.Faults{})
		w.once(p)
		calls := p.Calls()
		n := 0
		for i, call := range calls {
			if call == "append" && n == 0 {
				n = i + 1
			}
		}
		if n == 0 {
			t.Fatalf("no append among %v", calls)
		}
		w = newWorld(t)
		w.left("r", long)
		w.fleet.Exit("r", 3)
		w.once(w.store.NewProcess(mem.At(n, mem.StopAfter)))
		begun := w.run("r").LogEnd
		if begun == 0 {
			t.Fatal("the log has not begun")
		}
		w.fleet.Rewrite("r", "all different\n"+strings.Repeat("y", 80<<10))
		time.Sleep(2 * time.Minute)
		w.tick()
		r := w.run("r")
		if r.Status != core.Failed || *r.ExitCode != 3 || r.Transcript.Complete || r.Transcript.Side == "" || r.LogEnd != begun {
			t.Errorf("ended as %+v, transcript %+v", r.Status, r.Transcript)
		}
		if got := w.transcript("r"); got != long[:begun] {
			t.Error("the log is not the part that had been saved")
		}
		var side strings.Builder
		blobs := w.store.State().Blobs
		for _, k := range sorted(maps.Keys(blobs)) {
			if strings.HasPrefix(k, r.Transcript.Side) {
				side.Write(blobs[k])
			}
		}
		if side.String() != "all different\n"+strings.Repeat("y", 80<<10) {
			t.Errorf("beside lie %d bytes", side.Len())
		}
	})
}

// TestOfATooLongTranscriptHeadAndTailAreKept, and it says so.
func TestOfATooLongTranscriptHeadAndTailAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.limits.TranscriptCap = 200 << 10
		text := strings.Repeat("h", 300<<10) + strings.Repeat("m", 300<<10) + strings.Repeat("t", 99<<10) + "the end\n"
		w.left("r", text)
		w.fleet.Exit("r", 0)
		w.tick()
		r := w.run("r")
		got := w.transcript("r")
		if r.Status != core.Completed || r.Transcript.Complete || r.Transcript.Omitted == 0 || r.Transcript.Bytes != int64(len(text)) {
			t.Fatalf("ended as %s, transcript %+v", r.Status, r.Transcript)
		}
		if int64(len(got))+r.Transcript.Omitted != int64(len(text)) {
			t.Errorf("%d kept and %d omitted of %d", len(got), r.Transcript.Omitted, len(text))
		}
		if !strings.HasPrefix(got, strings.Repeat("h", 100<<10)) || !strings.HasSuffix(got, "tt"+"the end\n") || len(got) > 300<<10 {
			t.Errorf("kept %d bytes", len(got))
		}
		w.check()
	})
}

// endless is a sandbox that means harm: it says that its agent has ended, and gives pages
// of its journal for ever.
type endless struct {
	core.Prober
	run  core.RunID
	size int                  // of a page
	says func(at int64) int64 // how long the journal is, as it says
}

func (e endless) Probe(ctx context.Context, rate float64, requests []core.ProbeRequest) []core.ProbeReply {
	replies := e.Prober.Probe(ctx, rate, requests)
	for i, q := range requests {
		if q.Run == e.run {
			replies[i] = core.ProbeReply{RunKey: q.RunKey, State: core.ProbeFinished, Exit: 3, Size: 1, Stderr: "no"}
		}
	}
	return replies
}

func (e endless) Page(ctx context.Context, q core.PageRequest) (core.PageReply, error) {
	if q.Run != e.run {
		return e.Prober.Page(ctx, q)
	}
	return core.PageReply{Data: []byte(strings.Repeat("x", e.size)), Size: e.says(q.From + int64(e.size))}, nil
}

// TestAJournalWithoutEndEndsWithItsRun: it is kept up to a multiple of the cap, its run
// ends as its sandbox said, or as it was to, and no other waits for it.
func TestAJournalWithoutEndEndsWithItsRun(t *testing.T) {
	for name, says := range map[string]func(at int64) int64{
		"it says little more each time": func(at int64) int64 { return at + 1 },
		"it says that it is vast":       func(at int64) int64 { return max(1<<40, at+1) },
	} {
		for what, c := range map[string]struct {
			before func(w *world)
			status core.Status
		}{
			"finished":  {func(*world) {}, core.Failed},
			"cancelled": {func(w *world) { w.cancel("r") }, core.Aborted},
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					w.limits.TranscriptCap, w.limits.SweepBytes = 256<<10, 64<<10
					w.left("r", "begun\n")
					c.before(w)
					w.left("other", strings.Repeat("y", 100<<10)+"\n")
					w.fleet.Exit("other", 0)
					for range 20 {
						s := w.sweep(w.store.Process)
						s.Prober = endless{s.Prober, "r", 8 << 10, says}
						_, err := s.Run(t.Context(), core.SweepRequest{})
						if err != nil {
							t.Fatal(err)
						}
						time.Sleep(time.Minute)
					}
					r := w.run("r")
					if r.Status != c.status || r.Transcript == nil || r.Transcript.Complete || r.Transcript.Omitted == 0 {
						t.Fatalf("ended as %s, transcript %+v", r.Status, r.Transcript)
					}
					if kept := len(w.transcript("r")); kept > 3*256<<10+64<<10 {
						t.Errorf("%d bytes of it are kept", kept)
					}
					if got := w.run("other"); got.Status != core.Completed || !got.Transcript.Complete || got.FinishedAt.Sub(got.StartedAt) > 6*time.Minute {
						t.Errorf("the other ended as %s after %s", got.Status, got.FinishedAt.Sub(got.StartedAt))
					}
				})
			})
		}
	}
}

// TestTheEndOfALongLogIsKept: a host may have followed more of a journal than is kept of one
// without an end. What its agent wrote last, and how it ended, is saved all the same.
func TestTheEndOfALongLogIsKept(t *testing.T) {
	const limit = 256 << 10
	for name, size := range map[string]int{"half of what is kept": limit, "nearly all": limit * 19 / 10, "all": 2 * limit, "more": 4 * limit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.limits.TranscriptCap, w.limits.Page = limit, 16<<10
				followed := strings.Repeat("f", size)
				w.fleet.Write(w.begin("r", nil).RunKey.Run, followed)
				writer := &core.LogWriter{Log: w.store, Blobs: w.store, Inline: 1000}
				if _, err := writer.Append(t.Context(), w.run("r"), []byte(followed), nil); err != nil {
					t.Fatal(err)
				}
				w.detach("r")
				w.fleet.Write("r", strings.Repeat("written alone\n", 100_000)+"the result\n")
				w.fleet.Exit("r", 0)
				w.tick()
				r, text := w.run("r"), w.transcript("r")
				if r.Status != core.Completed || r.Sealed == nil || r.Transcript.Omitted == 0 || !strings.HasSuffix(text, "written alone\nthe result\n") {
					t.Errorf("ended as %s, sealed %+v, transcript %+v, which ends %q", r.Status, r.Sealed, r.Transcript, text[max(0, len(text)-40):])
				}
			})
		})
	}
}

// TestFinalisationsShareBytes: the small ones go first, a giant is paused and goes on
// from where it was.
func TestFinalisationsShareBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.limits.SweepBytes = 128 << 10
		w.left("giant", strings.Repeat(long, 2))
		w.left("small", "done\n")
		w.fleet.Exit("giant", 0)
		w.fleet.Exit("small", 0)
		want := map[core.RunID]core.Outcome{"giant": core.BudgetExceeded, "small": core.Finalized}
		first := w.tick()
		if got := outcomes(first); !maps.Equal(got, want) {
			t.Errorf("outcomes %v, want %v", got, want)
		}
		if end := w.run("giant").LogEnd; end < 128<<10 || end > 192<<10+1 {
			t.Errorf("the giant's log ends at %d", end)
		}
		for range 10 {
			time.Sleep(time.Minute)
			w.tick()
		}
		w.ended("giant", core.Completed, strings.Repeat(long, 2))
	})
}

// TestANudgeEndsAnAttachedRunSooner: its lapse is pulled in, and a detached run is
// looked at now; the nudge itself proves nothing.
func TestANudgeEndsAnAttachedRunSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.begin("attached", nil)
		w.left("ended", "done\n")
		w.left("lies", "works\n")
		w.fleet.Exit("ended", 0)
		for _, run := range []string{"attached", "ended", "lies"} {
			if _, err := w.sweep(w.store.Process).Nudged(t.Context(), key(run)); err != nil {
				t.Fatal(err)
			}
		}
		if r := w.run("attached"); r.Row != core.RowLapse || r.DueAt != now().Add(w.limits.HintLapse) || r.ExitedAt == 0 {
			t.Errorf("attached: %s at %d, exited %d", r.Row, r.DueAt, r.ExitedAt)
		}
		if r := w.run("ended"); r.Status != core.Completed {
			t.Errorf("ended: %s", r.Status)
		}
		if r := w.run("lies"); r.Status != core.Running || r.Epoch != 1 {
			t.Errorf("lies: %s, epoch %d", r.Status, r.Epoch)
		}
	})
}
