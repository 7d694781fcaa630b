package bench_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// memory takes the peak of the real reap process that sweeps 10,000 detached runs:
// once while all agents work, and once when every run that it asks has ended, with as
// much unread journal as a probe carries.
func memory(t *testing.T, _ int) []figure {
	const runs = 10_000
	var working, ended sweptBy
	var wg sync.WaitGroup
	wg.Go(func() { working = reaped(t, runs, producingReply) })
	wg.Go(func() { ended = reaped(t, runs, endedReply) })
	wg.Wait()
	if t.Failed() {
		return nil
	}
	how := func(s sweptBy) string {
		return fmt.Sprintf("the reap bootstrap against loopback stand-ins; %d asked, %d finalised in %.0f s", s.report.Probed, s.report.Outcomes[core.Finalized], s.took.Seconds())
	}
	return []figure{
		{Name: "peak memory of reap, 10,000 detached runs that work", Value: float64(working.peak) / 1e6, Unit: "MB", Goal: "<= 128", how: how(working)},
		{Name: "the same, if each that is asked ended with 64 KiB unread", Value: float64(ended.peak) / 1e6, Unit: "MB", how: how(ended)},
	}
}

// sweptBy is what one invocation of reap came to.
type sweptBy struct {
	report core.SweepReport
	peak   int64
	took   time.Duration
}

func producingReply(q core.ProbeRequest) core.ProbeReply {
	return core.ProbeReply{RunKey: q.RunKey, State: core.ProbeProducing, Size: 1 << 20}
}

var unread = bytes.Repeat([]byte(`{"type":"text","text":"as an agent writes it"}`+"\n"), core.JournalRest)[:core.JournalRest-100]

func endedReply(q core.ProbeRequest) core.ProbeReply {
	return core.ProbeReply{RunKey: q.RunKey, State: core.ProbeFinished, Size: int64(len(unread)) + 80, Rest: unread, Whole: true}
}

// reaped runs the reap bootstrap for one tick.
func reaped(t *testing.T, runs int, reply func(core.ProbeRequest) core.ProbeReply) (out sweptBy) {
	a := newAccount(t, func(call core.ProbeCall) core.ProbeAnswer {
		// As long as it would take to begin the sessions.
		time.Sleep(time.Duration(float64(len(call.Probe.Requests)) / call.Probe.Rate * float64(time.Second)))
		var answer core.ProbeAnswer
		for _, q := range call.Probe.Requests {
			answer.Probe = append(answer.Probe, reply(q))
		}
		return answer
	})
	if err := a.seed(t.Context(), runs); err != nil {
		t.Error(err)
		return out
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	api := newRuntimeAPI(t, tick, core.DefaultLimits.SweepTimeout)
	c := function(ctx, t, names.Reap, api, a.URL)
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	began := time.Now()
	if err := c.Start(); err != nil {
		t.Error(err)
		return out
	}
	defer func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	}()
	select {
	case answer := <-api.answered:
		out.took = answer.at.Sub(began)
		err := json.Unmarshal(answer.body, &out.report)
		if answer.kind != "response" || err != nil || len(out.report.Errors) > 0 || out.report.Considered != runs {
			t.Errorf("reap answered %s %.500s, %v", answer.kind, answer.body, err)
		}
		if out.peak, err = peak(c.Process.Pid); err != nil {
			t.Error(err)
		}
	case <-ctx.Done():
		t.Errorf("reap did not answer: %.2000s", said.Bytes())
	}
	return out
}

// seed puts detached runs through the real adapter.
func (a *account) seed(ctx context.Context, runs int) error {
	store := ddb.NewRuns(a.dynamo(), "bench")
	now := core.MillisOf(time.Now())
	for i := range runs {
		if _, err := store.Create(ctx, benchRun(i, now, "0123456789abcdef0123456789abcdef")); err != nil {
			return err
		}
	}
	return nil
}

// tick is the event of the schedule.
const tick = `{"source":"` + names.SourceSchedule + `","detail-type":"` + names.DetailScheduleTick + `"}`

var highWater = regexp.MustCompile(`VmHWM:\s*(\d+) kB`)

// peak is the most that a process had in memory so far, in bytes. Linux's own account
// of an ended child would count what its parent had when it began.
func peak(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	found := highWater.FindSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("process %d: no peak in %q", pid, text)
	}
	kB, err := strconv.ParseInt(string(found[1]), 10, 64)
	return kB * 1024, err
}
