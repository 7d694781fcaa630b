package core_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// slow is an installation's stores, one call of which takes long.
type slow struct {
	*mem.Process
	calls, at int
	pause     time.Duration
}

func (s *slow) wait() {
	if s.calls++; s.calls == s.at {
		time.Sleep(s.pause)
	}
}

func (s *slow) Checkpoint(ctx context.Context, key core.ThreadKey, id core.CheckpointID) (core.Checkpoint, error) {
	defer s.wait()
	return s.Process.Checkpoint(ctx, key, id)
}

func (s *slow) Checkpoints(ctx context.Context, key core.ThreadKey) ([]core.Checkpoint, error) {
	defer s.wait()
	return s.Process.Checkpoints(ctx, key)
}

func (s *slow) Blob(ctx context.Context, key string) ([]byte, error) {
	defer s.wait()
	return s.Process.Blob(ctx, key)
}

func (s *slow) PutBlob(ctx context.Context, key string, data []byte) error {
	defer s.wait()
	return s.Process.PutBlob(ctx, key, data)
}

func (s *slow) Stat(ctx context.Context, key string) (core.ObjectInfo, error) {
	defer s.wait()
	return s.Process.Stat(ctx, key)
}

// TestALeaseThatLapsesInTheMiddleWritesNothing: it is dead at its end, whether or not
// somebody takes it (CP-2).
func TestALeaseThatLapsesInTheMiddleWritesNothing(t *testing.T) {
	for name, do := range map[string]func(w *keeping, k *core.Keeper) error{
		"fork": func(w *keeping, k *core.Keeper) error {
			_, err := k.Fork(w.ctx(), core.ForkRequest{Source: thread("t"), Branches: []core.ForkBranch{{Thread: "u", ID: "u1"}, {Thread: "v", ID: "v1"}}})
			return err
		},
		"delete head": func(w *keeping, k *core.Keeper) error {
			_, err := k.DeleteHead(w.ctx(), thread("t"), "c2")
			return err
		},
		"keep": func(w *keeping, k *core.Keeper) error {
			_, err := k.Keep(w.ctx(), core.KeepRequest{ThreadKey: thread("t"), Newest: 1})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			lapsed := 0
			for at := 1; ; at++ {
				reached := false
				kept(t, func(w *keeping) {
					w.must(w.save(w.ctx(), w.store.Process, "t", "c1", first))
					time.Sleep(time.Second)
					w.must(w.save(w.ctx(), w.store.Process, "t", "c2", second))
					s := &slow{Process: w.store.Process, at: at, pause: core.LeaseLife + time.Second}
					k := w.keeper(w.store.Process)
					k.Threads, k.Objects, k.Blobs = s, s, s
					before := checkpoints(w, "t", "u", "v")
					err := do(w, k)
					if reached = s.calls >= at; !reached {
						return
					}
					if after := checkpoints(w, "t", "u", "v"); err != nil && !slices.Equal(before, after) {
						t.Errorf("call %d: %v, and yet %v became %v", at, err, before, after)
					}
					// What was read before the lease was taken may take as long as it likes.
					if core.Refused(err) {
						lapsed++
					}
					w.check("t", "u", "v")
				})
				if !reached {
					break
				}
			}
			if lapsed == 0 {
				t.Error("no lapse was noticed")
			}
		})
	}
}

func checkpoints(w *keeping, threads ...core.ThreadID) (ids []core.CheckpointID) {
	for _, id := range threads {
		all, err := w.store.Checkpoints(w.ctx(), thread(id))
		w.must(err)
		for _, c := range all {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// TestHistoryIsInOrderWhateverTheClocksSay: a checkpoint comes after its parent in every
// list, so that retention takes the older ones.
func TestHistoryIsInOrderWhateverTheClocksSay(t *testing.T) {
	kept(t, func(w *keeping) {
		ids := []core.CheckpointID{"z", "y", "x", "w"}
		for i, id := range ids {
			w.must(w.save(w.ctx(), w.store.Process, "t", id, tree{"n": string(rune('0' + i))}))
		}
		if got := checkpoints(w, "t"); !slices.Equal(got, ids) {
			t.Errorf("listed %v, want %v", got, ids)
		}
		_, err := w.keeper(w.store.Process).Keep(w.ctx(), core.KeepRequest{ThreadKey: thread("t"), Newest: 2})
		w.must(err)
		if got := checkpoints(w, "t"); !slices.Equal(got, ids[2:]) {
			t.Errorf("kept %v, want the newest two", got)
		}
	})
}

// TestTokensOfTheLongestIDsLive: what keys can hold a token can.
func TestTokensOfTheLongestIDsLive(t *testing.T) {
	kept(t, func(w *keeping) {
		id := core.ThreadID(strings.Repeat(".", core.MaxIDs-len("acme")))
		w.box(id)
		k := w.keeper(w.store.Process)
		report, err := k.Save(w.ctx(), saveOf(id, "c1"))
		w.must(err)
		if report.State != core.StepWorking {
			t.Fatalf("report %+v", report)
		}
		for _, job := range w.jobs {
			if _, err := k.Parent(w.ctx(), job.Token); err != nil {
				t.Errorf("its token is refused: %v", err)
			}
		}
	})
}

// TestAStepOfTheSameWriterIsNotCutOff: one holder of a lease that asks for two steps gets
// one after the other; asked for in turn, neither begins the other anew.
func TestAStepOfTheSameWriterIsNotCutOff(t *testing.T) {
	kept(t, func(w *keeping) {
		k, p := w.keeper(w.store.Process), w.store.Process
		one, two := saveOf("t", "c1"), saveOf("t", "c2")
		one.Owner, two.Owner = "run:r", "run:r"
		_, err := k.Save(w.ctx(), one)
		w.must(err)
		job := w.jobs["t"]
		for range 3 {
			time.Sleep(10 * time.Second)
			_, err = k.Renew(w.ctx(), job.Token, 1, 1)
			w.must(err)
			_, err = k.Save(w.ctx(), two)
			w.coded(err, "step-busy")
			_, err = k.Restore(w.ctx(), core.RestoreRequest{ThreadKey: thread("t"), ID: "c1", Owner: "run:r", Key: "key-t", Instance: "i-t"})
			if err == nil {
				t.Error("a restore cuts a capture off")
			}
			report, err := k.Save(w.ctx(), one)
			if err != nil || report.State != core.StepWorking || report.Attempts != 1 {
				t.Errorf("report %+v, %v", report, err)
			}
		}
		w.must(w.carryOut(w.ctx(), p, job, first))
		report, err := k.Save(w.ctx(), two)
		if err != nil || report.State != core.StepWorking {
			t.Fatalf("the next one: %+v, %v", report, err)
		}
		time.Sleep(core.LeaseLife) // its agent is dead
		three := saveOf("t", "c3")
		three.Owner = "run:r"
		if _, err := k.Save(w.ctx(), three); err != nil {
			t.Errorf("after a silent step: %v", err)
		}
	})
}

// TestAStepEndsHoweverLivelyItsAgent: what a sandbox says keeps its thread's lease, and so
// whoever waits for that, for a time only.
func TestAStepEndsHoweverLivelyItsAgent(t *testing.T) {
	for name, begin := range map[string]func(w *keeping, k *core.Keeper) error{
		"a save": func(w *keeping, k *core.Keeper) error {
			_, err := k.Save(w.ctx(), saveOf("t", "c1"))
			return err
		},
		"a restore": func(w *keeping, k *core.Keeper) error {
			w.must(w.save(w.ctx(), w.store.Process, "t", "c0", first))
			_, err := k.Restore(w.ctx(), core.RestoreRequest{ThreadKey: thread("t"), ID: "r1", Key: "key-t", Instance: "i-t"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			kept(t, func(w *keeping) {
				k := w.keeper(w.store.Process)
				w.must(begin(w, k))
				token, begun := w.jobs["t"].Token, time.Now()
				for calls := 0; ; calls++ {
					if since := time.Since(begun); since > core.StepMost {
						t.Fatalf("its agent has kept the lease for %s", since)
					}
					_, err := k.Renew(w.ctx(), token, int64(calls), 1)
					if code(err) == "token-dead" && time.Since(begun) > core.StepMost-time.Minute {
						break
					}
					w.must(err)
					time.Sleep(time.Minute)
				}
				if th := w.store.State().Threads[thread("t")]; th.Lease.Live(now()) {
					t.Errorf("%+v lives on", th.Lease)
				}
				_, err := w.store.UpdateThread(w.ctx(), thread("t"), core.AcquireLease{Owner: "reclaim:r", Now: now(), Until: now().Add(core.LeaseLife)})
				w.must(err)
			})
		})
	}
}
