package core_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

const change = `{"at":1,"kind":"create","path":"a"}` + "\n"

func watched(run, host string) core.StartRequest {
	q := startOf(run, host)
	q.Definition.FileEvents.Enabled = true
	return q
}

func (h *hosting) files(run, host string, from, wait int64) (core.TailReport, error) {
	return h.self().Tail(h.t.Context(), core.TailRequest{RunKey: key(run), Host: host, From: from, WaitSeconds: wait, Stream: core.StreamFiles})
}

// kept fails unless the run's side journal is kept as text and read by anybody.
func (h *hosting) kept(run, text string) {
	h.t.Helper()
	r := h.run(run)
	if r.Files == nil || r.Files.Bytes != int64(len(text)) {
		h.t.Fatalf("run %s: files %+v, want %d bytes", run, r.Files, len(text))
	}
	report, err := h.files(run, "", 0, 0)
	h.must(err)
	if string(report.Data) != text || !report.End || report.Next != r.Files.Bytes {
		h.t.Errorf("files of run %s: %+v", run, report)
	}
}

// TestTheSideJournalIsKeptAtEveryEnd of a run: finished, failed, cancelled, and by a
// sweep.
func TestTheSideJournalIsKeptAtEveryEnd(t *testing.T) {
	ends := map[string]func(h *hosting){
		"finish": func(h *hosting) {
			h.fleet.Exit("r", 0)
			report, err := host{h, "r", "host"}.finish(nil)
			h.must(err)
			if report.State != core.Finished {
				h.t.Errorf("%+v", report)
			}
		},
		"fail":   func(h *hosting) { _, err := host{h, "r", "host"}.fail(); h.must(err) },
		"cancel": func(h *hosting) { _, err := host{h, "r", "host"}.cancel(); h.must(err) },
		"sweep": func(h *hosting) {
			_, err := host{h, "r", "host"}.detach()
			h.must(err)
			h.fleet.Exit("r", 0)
			time.Sleep(time.Minute)
			_, err = h.sweep(h.store.Process).Run(h.t.Context(), core.SweepRequest{})
			h.must(err)
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHosting(t)
				h.ready(watched("r", "host"))
				h.fleet.Touch("r", change+change+`{"half`)
				end(h)
				if r := h.run("r"); !r.Status.Terminal() {
					t.Fatalf("the run is %s", r.Status)
				}
				h.kept("r", change+change)
				h.check()
			})
		})
	}
}

func TestChangesAreTailedWhileTheAgentWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		h.ready(watched("r", "host"))
		report, err := h.files("r", hostOf("host"), 0, 0)
		h.must(err)
		if len(report.Data) != 0 || report.End {
			t.Errorf("before any: %+v", report)
		}
		go func() {
			time.Sleep(3 * time.Second)
			h.fleet.Touch("r", change+`{"at`)
		}()
		report, err = h.files("r", hostOf("host"), 0, 20)
		h.must(err)
		if string(report.Data) != change || report.Next != int64(len(change)) {
			t.Errorf("one: %+v", report)
		}
		if report, err = h.files("r", "", 0, 0); err != nil || len(report.Data) != 0 || report.End {
			t.Errorf("a viewer: %+v, %v", report, err)
		}
		_, err = h.self().Tail(t.Context(), core.TailRequest{RunKey: key("r"), Stream: "both"})
		if err == nil || !strings.Contains(err.Error(), "want output or files") {
			t.Errorf("another stream: %v", err)
		}
	})
}

// TestABusyWorkspaceCostsFourQuestionsAMinute: whoever polls, and however often an agent
// changes files, ECS is asked as seldom as for output, and nothing is missed.
func TestABusyWorkspaceCostsFourQuestionsAMinute(t *testing.T) {
	for _, wait := range []int64{0, 1, 20} {
		synctest.Test(t, func(t *testing.T) {
			h := newHosting(t)
			h.ready(watched("r", "host"))
			const changes = 170
			var agent sync.WaitGroup
			agent.Go(func() {
				for range changes {
					h.fleet.Touch("r", change)
					time.Sleep(time.Second)
				}
			})
			p := h.store.NewProcess(mem.Faults{})
			s, from := h.session(p), int64(0)
			for begun := time.Now(); time.Since(begun) < 3*time.Minute; time.Sleep(200 * time.Millisecond) {
				report, err := s.Tail(t.Context(), core.TailRequest{RunKey: key("r"), Host: hostOf("host"), From: from, WaitSeconds: wait, Stream: core.StreamFiles})
				h.must(err)
				from = report.Next
			}
			agent.Wait()
			asked := 0
			for _, call := range p.Calls() {
				if call == "page" {
					asked++
				}
			}
			if seen := int(from) / len(change); asked > 13 || seen < changes-20 {
				t.Errorf("wait %d s: asked %d times in three minutes, seen %d of %d", wait, asked, seen, changes)
			}
		})
	}
}

// TestAnEndThatIsNoneCostsLittle: an agent that says that it has ended, and goes on, has its
// sandbox asked as seldom as any other but for a moment.
func TestAnEndThatIsNoneCostsLittle(t *testing.T) {
	for _, stream := range []core.TailStream{core.StreamOutput, core.StreamFiles} {
		synctest.Test(t, func(t *testing.T) {
			h := newHosting(t)
			h.ready(watched("r", "host"))
			h.fleet.Write("r", "out\n")
			r := h.run("r")
			_, err := h.store.Update(t.Context(), r.RunKey, core.Hint{ExitedAt: core.MillisOf(time.Now()), First: true, TaskARN: r.TaskARN, Row: r.Row, DueAt: r.DueAt, Lapse: r.DueAt})
			h.must(err)
			p := h.store.NewProcess(mem.Faults{})
			s := h.session(p)
			from := int64(0)
			for begun := time.Now(); time.Since(begun) < 10*time.Minute; time.Sleep(200 * time.Millisecond) {
				report, err := s.Tail(t.Context(), core.TailRequest{RunKey: r.RunKey, Host: hostOf("host"), From: from, WaitSeconds: 20, Stream: stream})
				h.must(err)
				from = report.Next
			}
			asked := 0
			for _, call := range p.Calls() {
				if call == "page" {
					asked++
				}
			}
			if asked > 20+40 {
				t.Errorf("%s: asked %d times in ten minutes", stream, asked)
			}
		})
	}
}

// TestASideJournalThatCannotBeKeptHoldsNothingUp (MW-7).
func TestASideJournalThatCannotBeKeptHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		report := h.ready(watched("r", "host"))
		h.fleet.Touch("r", change)
		h.fleet.Write("r", "out\n")
		h.fleet.Exit("r", 0)
		_, err := host{h, "r", "host"}.tail(0, 0)
		h.must(err)
		h.fleet.KillTask(report.Run.TaskARN)
		if finished, err := (host{h, "r", "host"}).finish(nil); err != nil || finished.State != core.Finished {
			t.Fatalf("%+v, %v", finished, err)
		}
		if r := h.run("r"); r.Files != nil || !r.Status.Terminal() {
			t.Errorf("run %+v", r)
		}
		if report, err := h.files("r", "", 0, 0); err != nil || !report.End {
			t.Errorf("%+v, %v", report, err)
		}
	})
}

func TestAnUnwatchedRunHasNoFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		h.ready(startOf("r", "host"))
		if report, err := h.files("r", hostOf("host"), 0, 5); err != nil || !report.End {
			t.Errorf("%+v, %v", report, err)
		}
	})
}

// TestTheFileHookIsToldOfWhatTheHostSees, with where it stands in the side journal.
func TestTheFileHookIsToldOfWhatTheHostSees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, hooks := newHosting(t), &fileHook{}
		h.fleet.PageBytes = 1 << 20
		session := func() *core.Session {
			s := h.self()
			s.Functions, s.HostFunctions = hooks, []string{"on-file"}
			return s
		}
		q := watched("r", "host")
		q.Definition.Hooks.File = "on-file"
		for range 20 {
			report, err := session().Start(t.Context(), q)
			h.must(err)
			if report.State == core.Ready {
				break
			}
			time.Sleep(time.Second)
		}
		h.fleet.Touch("r", change+change)
		tail := core.TailRequest{RunKey: key("r"), Host: hostOf("host"), Stream: core.StreamFiles}
		report, err := session().Tail(t.Context(), tail)
		h.must(err)
		// The two do not fit into one call.
		more := strings.Replace(change, `"a"`, `"`+strings.Repeat("b", 200<<10-40)+`"`, 1) + change
		h.fleet.Touch("r", more)
		tail.From = report.Next
		for end := tail.From + int64(len(more)); tail.From < end; {
			if report, err = session().Tail(t.Context(), tail); err != nil || report.Next == tail.From {
				t.Fatal(report, err)
			}
			tail.From = report.Next
		}
		if got := strings.Join(hooks.told, ", "); !strings.HasPrefix(got, "0+2, ") || !strings.HasSuffix(got, "+1") {
			t.Errorf("told %s", got)
		}
		// One that no call takes is told by none, not even an empty one.
		before, long := len(hooks.told), strings.Replace(change, `"a"`, `"`+strings.Repeat("c", 201<<10)+`"`, 1)
		h.fleet.Touch("r", long)
		for end := tail.From + int64(len(long)); tail.From < end; {
			if report, err = session().Tail(t.Context(), tail); err != nil || report.Next == tail.From {
				t.Fatal(report, err)
			}
			tail.From = report.Next
		}
		if told := hooks.told[before:]; len(told) > 0 {
			t.Errorf("told %s", told)
		}
	})
}

// TestTheFileHookIsToldAtEveryEnd of all that was changed, though no host ever looked, or
// whichever call of the end crashes: each change at least once.
func TestTheFileHookIsToldAtEveryEnd(t *testing.T) {
	ends := map[string]func(h *hosting, s *core.Session, sweep *core.Sweep) error{
		"a finish": func(h *hosting, s *core.Session, _ *core.Sweep) error {
			h.fleet.Exit("r", 0)
			_, err := s.Finish(h.t.Context(), core.FinishRequest{RunKey: key("r"), Host: hostOf("host")})
			return err
		},
		"a cancel": func(h *hosting, s *core.Session, _ *core.Sweep) error {
			_, err := s.Cancel(h.t.Context(), core.CancelRequest{RunKey: key("r"), Host: hostOf("host")})
			return err
		},
		"a failure": func(h *hosting, s *core.Session, _ *core.Sweep) error {
			_, err := s.Fail(h.t.Context(), core.FailRequest{RunKey: key("r"), Host: hostOf("host"), Error: core.RunFault{Code: "host"}})
			return err
		},
		"a sweep": func(h *hosting, _ *core.Session, sweep *core.Sweep) error {
			h.fleet.Exit("r", 0)
			_, err := sweep.Run(h.t.Context(), core.SweepRequest{})
			return err
		},
	}
	for what, end := range ends {
		for n := range 25 { // 0: no fault
			synctest.Test(t, func(t *testing.T) {
				h, hooks := newHosting(t), &fileHook{}
				with := func(s *core.Session) *core.Session {
					s.Functions, s.HostFunctions = hooks, []string{"on-file"}
					return s
				}
				act := func(p *mem.Process) error {
					sweep := h.sweep(p)
					sweep.Functions = hooks
					return end(h, with(h.session(p)), sweep)
				}
				q := watched("r", "host")
				q.Definition.Hooks.File = "on-file"
				for range 20 {
					if report, err := with(h.self()).Start(t.Context(), q); err != nil || report.State == core.Ready {
						h.must(err)
						break
					}
					time.Sleep(time.Second)
				}
				h.fleet.Touch("r", change+change)
				if what == "a sweep" {
					h.detach("r")
				}
				if n > 0 {
					_ = act(h.store.NewProcess(mem.At(n, mem.StopAfter)))
				}
				for range 5 {
					if h.run("r").Status.Terminal() {
						break
					}
					time.Sleep(time.Minute)
					_ = act(h.store.Process)
				}
				if r := h.run("r"); !r.Status.Terminal() || r.Files != nil && !slices.Contains(hooks.told, "0+2") {
					t.Errorf("%s, call %d: run %s, files %+v, told %v", what, n, r.Status, r.Files, hooks.told)
				}
				if n == 0 && !slices.Equal(hooks.told, []string{"0+2"}) {
					t.Errorf("%s: told %v", what, hooks.told)
				}
			})
		}
	}
}

// TestAReadyHookThatNobodyCanCallFailsTheStart, rather than be left out.
func TestAReadyHookThatNobodyCanCallFailsTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		s := h.self()
		s.HostFunctions = []string{"on-ready"}
		q := startOf("r", "host")
		q.Definition.Hooks.Ready = "on-ready"
		var err error
		for range 20 {
			if _, err = s.Start(t.Context(), q); err != nil {
				break
			}
			time.Sleep(time.Second)
		}
		refusedFor(t, "start", err, "hook-failed")
	})
}

// fileHook keeps where what it was told begins, and how many events that were.
type fileHook struct{ told []string }

func (f *fileHook) Invoke(context.Context, string, []byte) ([]byte, error) { return nil, nil }

func (f *fileHook) InvokeAsync(_ context.Context, function string, payload []byte) error {
	var e struct {
		Hook   core.Hook
		Detail core.FileDetail
	}
	if err := json.Unmarshal(payload, &e); err != nil || e.Hook != core.HookFile || function != "on-file" || len(payload) > 256<<10 {
		f.told = append(f.told, fmt.Sprintf("%s: %v", function, err))
		return nil
	}
	f.told = append(f.told, fmt.Sprintf("%d+%d", e.Detail.From, len(e.Detail.Events)))
	return nil
}
