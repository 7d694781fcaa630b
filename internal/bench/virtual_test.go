package bench_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

const latency = 50 * time.Millisecond

// The bucket of ECS that ExecuteCommand and StopTask share with RunTask.
const (
	bucketBurst = 100
	bucketRate  = 40
)

// finalising counts finished runs that one sweeper closes in a minute, and the same
// of the original.
func finalising(t *testing.T, scale int) []figure {
	a := record(t, turn())
	ours := minuteRate(t, a, 2000/scale)
	theirs := originalRate(t, 100/scale)
	how := fmt.Sprintf("bubble's clock, every call 50 ms, journals of %d lines, buckets off", lines)
	return []figure{
		{Name: "runs finalised by one sweeper", Value: ours, Unit: "runs/min", how: how},
		{Name: "runs finalised by the original's sequence of calls and waits", Value: theirs, Unit: "runs/min", how: how + "; its sweep stops the sandbox too"},
		{Name: "finalising, against the original", Value: ours / theirs, Unit: "times", Goal: ">= 100"},
		{Name: "runs finalised by a sweep a minute, throttled", Value: throttledRate(t, a, max(1, 3/scale)), Unit: "runs/min",
			how: "ECS bucket of 100 and 40/s, default limits, stops in the same bucket"},
	}
}

func minuteRate(t *testing.T, a answers, runs int) (rate float64) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, each(latency), a).unlimited()
		for i := range runs {
			w.detached(i, time.Now())
		}
		began := time.Now()
		for done := 0; done < runs; {
			n := w.tick(t).Outcomes[core.Finalized]
			if n == 0 {
				t.Fatalf("a sweep finalised none of %d runs", runs-done)
			}
			done += n
		}
		rate = float64(runs) / time.Since(began).Minutes()
		w.check(t, runs)
	})
	return rate
}

// check fails unless that many runs have ended with their whole transcript.
func (w *world) check(t *testing.T, runs int) {
	t.Helper()
	ended := 0
	for key, r := range w.store.State().Runs {
		if !r.Status.Terminal() {
			continue
		}
		ended++
		if r.Status != core.Completed || !r.Transcript.Complete || r.Transcript.Bytes != int64(len(w.answers.journal)) {
			t.Fatalf("run %s: %s with %+v", key, r.Status, r.Transcript)
		}
	}
	if ended != runs {
		t.Fatalf("%d runs have ended, want %d", ended, runs)
	}
}

func originalRate(t *testing.T, runs int) (rate float64) {
	synctest.Test(t, func(t *testing.T) {
		o := &original{call: latency}
		began := time.Now()
		for o.done < runs {
			o.sweep(runs-o.done, lines)
		}
		rate = float64(o.done) / time.Since(began).Minutes()
	})
	return rate
}

// throttledRate has more finished runs waiting than the bucket lets through, with the
// stops drawing on it too, and counts those that end in whole minutes, the first left
// out.
func throttledRate(t *testing.T, a answers, minutes int) (rate float64) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, each(latency), a)
		w.bucket = newBucket(bucketBurst, bucketRate)
		for i := range (minutes + 1) * int(w.limits.ProbeRate*60) {
			w.detached(i, time.Now())
		}
		began := time.Now()
		w.everyMinute(t, minutes+1)
		from, to := core.MillisOf(began.Add(time.Minute)), core.MillisOf(began.Add(time.Duration(minutes+1)*time.Minute))
		ended := 0
		for _, r := range w.store.State().Runs {
			if r.FinishedAt >= from && r.FinishedAt < to {
				ended++
			}
		}
		rate = float64(ended) / float64(minutes)
	})
	return rate
}

// TestAFullSweepFinalisesWhatItFinds: with more runs waiting than a sweep has time to
// ask, those that it finds to be over are ended by it all the same.
func TestAFullSweepFinalisesWhatItFinds(t *testing.T) {
	if rate, share := throttledRate(t, record(t, turn()), 1), core.DefaultLimits.ProbeRate*60; rate < 0.9*share {
		t.Errorf("%.0f runs finalised in a minute, want about %.0f", rate, share)
	}
}

// everyMinute sweeps so many times, a minute apart, with reclaim behind its queue,
// and returns when all that came of it is over.
func (w *world) everyMinute(t *testing.T, sweeps int) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	w.reclaiming(ctx, &wg)
	began := time.Now()
	for n := range sweeps {
		time.Sleep(time.Until(began.Add(time.Duration(n) * time.Minute)))
		wg.Go(func() { w.tick(t) })
	}
	time.Sleep(3 * time.Minute)
	cancel()
	wg.Wait()
}

// examining counts runs whose agent works that a sweep looks at in a second.
func examining(t *testing.T, scale int) []figure {
	a := record(t, turn())
	runs, rate := 10_000/min(scale, 2), 0.0
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, each(latency), a).unlimited()
		for i := range runs {
			w.detached(i, time.Time{})
		}
		began := time.Now()
		report := w.tick(t)
		rate = float64(runs) / time.Since(began).Seconds()
		if report.Outcomes[core.Producing] != runs || w.execs != runs {
			t.Fatalf("%d execs: %v", w.execs, report.Outcomes)
		}
	})
	return []figure{{Name: "producing runs examined by one sweeper", Value: rate, Unit: "runs/s", Goal: ">= 1000",
		how: fmt.Sprintf("bubble's clock, %d runs, every call 50 ms, exec stubbed, buckets off", runs)}}
}

// writesPerRun is what a producing run adds to the writes of a sweep.
func writesPerRun(t *testing.T, scale int) []figure {
	a := record(t, turn())
	few, many := 100, 2000/scale
	first, second := sweepWrites(t, a, few), sweepWrites(t, a, many)
	return []figure{{Name: "writes per examined producing run", Value: float64(second-first) / float64(many-few), Unit: "writes", Goal: "= 0",
		how: fmt.Sprintf("a sweep over %d runs and one over %d write the same %d items: cursors and budget", few, many, second)}}
}

// sweepWrites counts the items that a sweep over producing runs writes.
func sweepWrites(t *testing.T, a answers, runs int) (writes int) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, each(latency), a).unlimited()
		for i := range runs {
			w.detached(i, time.Time{})
		}
		if report := w.tick(t); report.Outcomes[core.Producing] != runs {
			t.Fatal(report.Outcomes)
		}
		writes = len(w.process.Writes()) + called(w.process, "take budget")
	})
	return writes
}

func called(p *mem.Process, name string) (n int) {
	for _, c := range p.Calls() {
		if c == name {
			n++
		}
	}
	return n
}

// likely is what calls take in a region, as far as it is published or was seen; an
// exec session includes the second for which the agent sleeps.
var likely = delays{store: 10 * time.Millisecond, ecs: 100 * time.Millisecond, exec: 2 * time.Second, invoke: 50 * time.Millisecond}

// stopping is how long a task takes from StopTask until STOPPED: an image that ends
// at SIGTERM, and what Fargate takes to put it away.
const stopping = 10 * time.Second

// exitToStopped takes the time from an agent's end until its task is STOPPED, with
// a sweep a minute and no event.
func exitToStopped(t *testing.T, _ int) []figure {
	a := record(t, turn())
	var took []time.Duration
	synctest.Test(t, func(t *testing.T) {
		const runs, minutes = 100, 10
		chance := rand.New(rand.NewPCG(1, 2))
		w := newWorld(t, likely, a)
		w.bucket = newBucket(bucketBurst, bucketRate)
		began := time.Now()
		for i := range runs {
			w.detached(i, began.Add(time.Duration(chance.Int64N(int64(minutes*time.Minute)))))
		}
		w.everyMinute(t, minutes+2)
		w.check(t, runs)
		for arn, exit := range w.exits {
			took = append(took, w.stopped[arn].Sub(exit)+stopping)
		}
	})
	slices.Sort(took)
	at := func(share float64) float64 { return took[int(share*float64(len(took)))-1].Seconds() }
	how := fmt.Sprintf("bubble's clock: DynamoDB %v, ECS %v, a session %v, StopTask to STOPPED %v", likely.store, likely.ecs, likely.exec, stopping)
	return []figure{
		{Name: "exit to stopped, p50 of 100 runs, a sweep a minute", Value: at(0.5), Unit: "s"},
		{Name: "exit to stopped, p99 of 100 runs, a sweep a minute", Value: at(0.99), Unit: "s", Goal: "< 90", how: how},
	}
}
