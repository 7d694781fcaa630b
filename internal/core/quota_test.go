package core_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// limited is a session of a tenant that may have one sandbox.
func (h *hosting) limited(p *mem.Process) *core.Session {
	s := h.session(p)
	s.Launcher.Quota = core.Quota{Each: 1}
	return s
}

// ofThread is a start in a thread of its own.
func ofThread(run string) core.StartRequest {
	q := startOf(run, run)
	q.Thread = core.ThreadID("of-" + run)
	return q
}

// TestATenantHasItsQuota of sandboxes: the next is refused until ECS says that one is gone.
func TestATenantHasItsQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		_, err := h.limited(h.store.Process).Start(t.Context(), ofThread("one"))
		h.must(err)
		_, err = h.limited(h.store.Process).Start(t.Context(), ofThread("two"))
		refusedFor(t, "start above the quota", err, "quota")
		if n := len(h.fleet.Running()); n != 1 {
			t.Errorf("%d tasks run", n)
		}
		_, err = h.limited(h.store.Process).Cancel(t.Context(), core.CancelRequest{RunKey: key("one"), Host: hostOf("one")})
		h.must(err)
		_, err = h.limited(h.store.Process).Start(t.Context(), ofThread("two"))
		refusedFor(t, "start while the other stops", err, "quota")
		h.drainQueue(h.store.Process)
		report, err := h.limited(h.store.Process).Start(t.Context(), ofThread("two")) // its run was there all the time
		h.must(err)
		if report.State != core.Ready {
			t.Errorf("started %+v", report)
		}
		h.check()
	})
}

// TestTheQuotaDoesNotLeak: whichever call of a start, and of the end of what it began,
// crashes or loses its answer, the place is free once the sandbox is gone.
func TestTheQuotaDoesNotLeak(t *testing.T) {
	for _, fault := range []mem.Fault{mem.NotLanded, mem.AnswerLost} {
		for n := 1; n <= 30; n++ {
			t.Run(fmt.Sprint(fault, " at ", n), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newHosting(t)
					p := h.store.NewProcess(mem.At(n, fault))
					if report, err := h.limited(p).Start(t.Context(), ofThread("one")); err == nil && report.State == core.Ready {
						_, _ = h.limited(p).Cancel(t.Context(), core.CancelRequest{RunKey: key("one"), Host: hostOf("one")})
						h.drainQueue(p)
					}
					h.fleet.Exit("one", 0) // an agent that began unheard of
					for range 60 {
						time.Sleep(2 * time.Minute)
						h.tick()
					}
					if n := len(h.fleet.Running()); n != 0 {
						t.Fatalf("%d tasks run", n)
					}
					report, err := h.limited(h.store.Process).Start(t.Context(), ofThread("two"))
					if err != nil || report.State != core.Ready {
						t.Errorf("the place is not free: %+v, %v", report, err)
					}
				})
			})
		}
	}
}
