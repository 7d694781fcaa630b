package core_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// following is a host in process that follows a run.
type following struct {
	*hosting
	s    *core.Session
	from int64
	all  []byte
}

func newFollowing(t *testing.T, change func(q *core.StartRequest)) *following {
	h := newHosting(t)
	q := startOf("r", "one")
	q.Definition = new(definition)
	if change != nil {
		change(&q)
	}
	h.ready(q)
	s := h.self()
	s.Held = h.fleet.View(h.store.Process)
	return &following{hosting: h, s: s}
}

// tail asks for output once, and renews.
func (f *following) tail(wait int64) core.TailReport {
	f.t.Helper()
	report, err := f.s.Tail(f.t.Context(), core.TailRequest{RunKey: key("r"), Host: hostOf("one"), From: f.from, WaitSeconds: wait, StallSeconds: 3600})
	f.must(err)
	f.from, f.all = report.Next, append(f.all, report.Data...)
	_, err = f.s.Renew(f.t.Context(), core.HostRequest{RunKey: key("r"), Host: hostOf("one")})
	f.must(err)
	return report
}

func (f *following) wantsHeld(what string, now, ever int) {
	f.t.Helper()
	if gotNow, gotEver := f.fleet.Held(); gotNow != now || gotEver != ever {
		f.t.Errorf("%s: %d sessions held, %d ever; want %d and %d", what, gotNow, gotEver, now, ever)
	}
	if held := f.box("r").Exec.Until > nowOf(f.t); held != (now > 0) {
		f.t.Errorf("%s: the sandbox says held %t", what, held)
	}
}

func nowOf(*testing.T) core.Millis { return now() }

// TestAFollowedRunHasOneSession for eighteen minutes, then another; the output is the
// journal, byte for byte.
func TestAFollowedRunHasOneSession(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFollowing(t, nil)
		stop := make(chan struct{})
		var want strings.Builder
		writes := make(chan struct{})
		go func() {
			defer close(writes)
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(700 * time.Millisecond):
				}
				line := strings.Repeat("x", n%300) + "\n"
				want.WriteString(line)
				f.fleet.Write("r", line)
			}
		}()
		began := time.Now()
		for time.Since(began) < 17*time.Minute {
			f.tail(20)
		}
		f.wantsHeld("after 17 minutes", 1, 1)
		for time.Since(began) < 40*time.Minute {
			f.tail(20)
		}
		f.wantsHeld("after 40 minutes", 1, 3)
		close(stop)
		<-writes
		f.fleet.Exit("r", 0)
		for !f.tail(20).End {
		}
		f.wantsHeld("after the sentinel", 0, 3)
		if got := string(f.all); got != want.String() {
			t.Errorf("%d bytes, want %d", len(got), want.Len())
		}
	})
}

// TestAHeldSessionEndsWhereNobodyFollows any more, and another begins where somebody does.
func TestAHeldSessionEndsWhereNobodyFollows(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFollowing(t, nil)
		f.fleet.Write("r", "one\n")
		f.tail(5)
		f.wantsHeld("followed", 1, 1)
		time.Sleep(31 * time.Second)
		f.wantsHeld("left", 0, 1)
		f.fleet.Write("r", "two\n")
		f.tail(5)
		f.wantsHeld("followed again", 1, 2)
		if string(f.all) != "one\ntwo" { // what may be the sentinel's newline is held back
			t.Errorf("got %q", f.all)
		}
		time.Sleep(time.Minute)
	})
}

// TestAHeldSessionGivesWay to all else that needs the container, at once for its own host.
func TestAHeldSessionGivesWay(t *testing.T) {
	host := core.HostRequest{RunKey: key("r"), Host: hostOf("one")}
	for name, do := range map[string]func(f *following) error{
		"detach":    func(f *following) error { return failure(f.s.Detach(f.t.Context(), host)) },
		"interrupt": func(f *following) error { return failure(f.s.Interrupt(f.t.Context(), host)) },
		"cancel": func(f *following) error {
			return failure(f.s.Cancel(f.t.Context(), core.CancelRequest{RunKey: key("r"), Host: hostOf("one")}))
		},
		"fail": func(f *following) error {
			return failure(f.s.Fail(f.t.Context(), core.FailRequest{RunKey: key("r"), Host: hostOf("one"), Error: core.RunFault{Code: "host"}}))
		},
		"finish": func(f *following) error {
			f.fleet.Exit("r", 0)
			return failure(f.s.Finish(f.t.Context(), core.FinishRequest{RunKey: key("r"), Host: hostOf("one")}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newFollowing(t, nil)
				f.fleet.Write("r", "one\n")
				f.tail(5)
				ended := make(chan struct{})
				go func() { // it waits in the sandbox
					defer close(ended)
					_, _ = f.s.Tail(t.Context(), core.TailRequest{RunKey: key("r"), Host: hostOf("one"), From: 4, WaitSeconds: 20})
				}()
				time.Sleep(2 * time.Second)
				began := time.Now()
				f.must(do(f))
				if took := time.Since(began); took > time.Second {
					t.Errorf("it took %s", took)
				}
				if now, _ := f.fleet.Held(); now != 0 || f.box("r").Exec != (core.ExecHold{}) {
					t.Errorf("%d held, %+v", now, f.box("r").Exec)
				}
				<-ended
				time.Sleep(time.Minute)
			})
		})
	}
	t.Run("a step", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			f := newFollowing(t, nil)
			f.fleet.Write("r", "one\n")
			f.tail(5)
			box := f.box("r")
			step := holds("step:c", 0)
			if box.Exec.Bars(step.ExecHolder, box.LatestRun, now()) {
				t.Fatal("a tail bars a step")
			}
			f.occupy("r", step)
			if report := f.tail(20); len(report.Data) > 0 {
				t.Errorf("beside a step: %+v", report)
			}
			if held, _ := f.fleet.Held(); held != 0 || f.box("r").Exec != step {
				t.Errorf("%d held, %+v", held, f.box("r").Exec)
			}
			f.occupy("r", core.ExecHold{})
			f.fleet.Write("r", "two\n")
			f.tail(20)
			f.wantsHeld("after the step", 1, 2)
			time.Sleep(time.Minute)
		})
	})
}

func failure[T any](_ T, err error) error { return err }

// TestABrokenSessionIsGoneOnFrom at the byte where it broke; a journal that is another is
// not taken for what goes on.
func TestABrokenSessionIsGoneOnFrom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFollowing(t, nil)
		f.fleet.Write("r", "one\n")
		f.tail(5)
		f.s.Held = breaking{f.s.Held}
		time.Sleep(31 * time.Second)
		f.fleet.Write("r", "two\n")
		for range 10 {
			f.tail(20)
			f.fleet.Write("r", "more\n")
		}
		_, ever := f.fleet.Held()
		if want := "one\ntwo" + strings.Repeat("\nmore", strings.Count(string(f.all), "more")); string(f.all) != want || ever < 3 {
			t.Errorf("%d sessions, got %q", ever, f.all)
		}
		f.fleet.Rewrite("r", "it is something else altogether\n")
		report := f.tail(20)
		if len(report.Data) > 0 || report.End {
			t.Errorf("of a rewritten journal: %+v", report)
		}
		time.Sleep(time.Minute)
	})
}

// breaking holds sessions whose second question gets no answer.
type breaking struct{ core.PageHolder }

func (b breaking) HoldPages(ctx context.Context, target core.ExecTarget) (core.PageSession, error) {
	pages, err := b.PageHolder.HoldPages(ctx, target)
	return &breakingPages{PageSession: pages}, err
}

type breakingPages struct {
	core.PageSession
	asked int
}

func (b *breakingPages) Page(ctx context.Context, q core.PageRequest) (core.PageReply, error) {
	if b.asked++; b.asked == 2 {
		return core.PageReply{}, &core.ExecError{Target: q.Target, Healing: core.Retry, Reason: "channel-cut"}
	}
	return b.PageSession.Page(ctx, q)
}

// TestFilesComeInTheSameSession as the output, and neither waits long for the other.
func TestFilesComeInTheSameSession(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFollowing(t, func(q *core.StartRequest) { q.Definition.FileEvents.Enabled = true })
		f.fleet.Write("r", "one\n")
		f.tail(5)
		ended := make(chan []byte)
		go func() {
			var files []byte
			for len(files) < 30 {
				report, err := f.s.Tail(t.Context(), core.TailRequest{
					RunKey: key("r"), Host: hostOf("one"), From: int64(len(files)), WaitSeconds: 20, Stream: core.StreamFiles,
				})
				if err != nil {
					t.Error(err)
					break
				}
				files = append(files, report.Data...)
			}
			ended <- files
		}()
		for range 3 {
			f.fleet.Touch("r", "{\"a\":\"b\"}\n")
			f.fleet.Write("r", "line\n")
			began := time.Now()
			if report := f.tail(20); string(report.Data) != "\nline" || time.Since(began) > 8*time.Second {
				t.Errorf("%q after %s", report.Data, time.Since(began))
			}
		}
		if files := <-ended; string(files) != strings.Repeat("{\"a\":\"b\"}\n", 3) {
			t.Errorf("files %q", files)
		}
		f.wantsHeld("both followed", 1, 1)
		time.Sleep(time.Minute)
	})
}

// TestASpoolEndsTheSession: what it has is asked of nobody.
func TestASpoolEndsTheSession(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFollowing(t, nil)
		f.s.Spool = f.store
		f.fleet.Write("r", "one\n")
		f.tail(5)
		f.wantsHeld("before the first piece", 1, 1)
		f.fleet.Write("r", "two\nthree\n")
		f.store.Spool(key("r"), 0, []byte("one\ntwo\nthree\n"))
		if report := f.tail(5); string(report.Data) != "\ntwo\nthree" {
			t.Errorf("got %q", report.Data)
		}
		f.tail(5)
		f.wantsHeld("once there is a spool", 0, 1)
	})
}
