package core_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
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
