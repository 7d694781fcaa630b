package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// looking is a prober whose pages tell how the sandbox is held meanwhile.
type looking struct {
	core.Prober
	h    *hosting
	held []core.Millis
}

func (l *looking) Page(ctx context.Context, q core.PageRequest) (core.PageReply, error) {
	l.held = append(l.held, l.h.box("r").ExecUntil)
	return l.Prober.Page(ctx, q)
}

// TestALongPollKeepsProbesAway while it waits in the sandbox, and no longer; another's
// sessions are left alone, for as long as they were asked for.
func TestALongPollKeepsProbesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		h.ready(startOf("r", "one"))
		h.fleet.Write("r", "a line\n")
		s := h.self()
		l := &looking{Prober: s.Prober, h: h}
		s.Prober = l
		q := core.TailRequest{RunKey: key("r"), Host: hostOf("one"), WaitSeconds: 20}
		_, err := s.Tail(t.Context(), q)
		h.must(err)
		if len(l.held) == 0 || l.held[0] <= now() || l.held[0] > now().Add(core.MaxExecHold) || h.box("r").ExecUntil != 0 {
			t.Errorf("held until %v, then until %d", l.held, h.box("r").ExecUntil)
		}
		box := h.box("r")
		_, err = h.store.UpdateSandbox(t.Context(), box.Key, core.HoldExec{Instance: box.Instance, Until: now().Add(time.Minute)})
		h.must(err)
		_, err = s.Tail(t.Context(), core.TailRequest{RunKey: key("r"), Host: hostOf("one"), From: 7, WaitSeconds: 20})
		refusedFor(t, "tail of a sandbox that another has", err, "busy")
		time.Sleep(time.Minute)
		if _, err = s.Tail(t.Context(), q); err != nil {
			t.Errorf("after its time: %v", err)
		}
	})
}
