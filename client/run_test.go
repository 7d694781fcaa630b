package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/client"
)

// heard is the output that a host has been given.
type heard struct {
	strings.Builder
	next int64
}

// line takes a line, and holds its positions against those before.
func (h *heard) line(l client.Line) error {
	if l.From != h.next && l.From != h.next+1 || l.Next < l.From+int64(len(l.Text)) {
		return fmt.Errorf("line from %d to %d behind %d", l.From, l.Next, h.next)
	}
	h.next = l.Next
	h.Write(l.Text)
	h.WriteString("|")
	return nil
}

// TestATurnFromStartToEnd takes longer than an attachment lasts, so that it is renewed.
func TestATurnFromStartToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		go func() {
			for range 12 {
				time.Sleep(time.Minute)
				w.fleet.Write(key.Run, "a line\n")
			}
			w.fleet.Write(key.Run, "no newline")
			w.fleet.Exit(key.Run, 3)
		}()
		var out heard
		var started client.StartReport
		result, err := client.Run(t.Context(), w.api(), client.Turn{
			Start: begin(client.NewHost()), Line: out.line, Started: func(r client.StartReport) { started = r },
		})
		if err != nil || result.Finish.State != client.Finished || result.Run.Status != client.Failed || *result.Run.ExitCode != 3 {
			t.Fatalf("%+v, %v", result, err)
		}
		if want := strings.Repeat("a line|", 12) + "no newline|"; out.String() != want {
			t.Errorf("output %q, want %q", out.String(), want)
		}
		if result.Position != 12*7+10 || started.State != client.Ready {
			t.Errorf("position %d, started %+v", result.Position, started)
		}
	})
}

// TestAHostThatGoesAwayDetaches, and goes on later where it was: no line twice, none
// lost.
func TestAHostThatGoesAwayDetaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		go func() {
			time.Sleep(time.Second) // the agent must have begun
			for i := range 20 {
				w.fleet.Write(key.Run, fmt.Sprintf("%d\n", i))
				time.Sleep(5 * time.Second)
			}
			w.fleet.Exit(key.Run, 0)
		}()
		var out heard
		ctx, leave := context.WithTimeoutCause(t.Context(), 30*time.Second, errors.New("the browser closed"))
		defer leave()
		result, err := client.Run(ctx, w.api(), client.Turn{Start: begin(client.NewHost()), Line: out.line})
		if err == nil || err.Error() != "the browser closed" || !result.Left || result.Position != out.next {
			t.Fatalf("%+v, %v", result, err)
		}
		if run := w.get(); run.DetachedSince == 0 || run.CancelRequested != 0 {
			t.Errorf("left as %+v", run)
		}
		broken := errors.New("the display broke")
		again := &client.AttachRequest{RunKey: key, Host: client.NewHost()}
		result, err = client.Run(t.Context(), w.api(), client.Turn{Attach: again, From: out.next, Line: func(client.Line) error { return broken }})
		if !errors.Is(err, broken) || !result.Left || result.Position != out.next {
			t.Fatalf("%+v, %v", result, err)
		}
		again.Host = client.NewHost()
		result, err = client.Run(t.Context(), w.api(), client.Turn{Attach: again, From: result.Position, Line: out.line})
		if err != nil || result.Run.Status != client.Completed {
			t.Fatalf("%+v, %v", result, err)
		}
		var want strings.Builder
		for i := range 20 {
			fmt.Fprintf(&want, "%d|", i)
		}
		if out.String() != want.String() {
			t.Errorf("output %q", out.String())
		}
	})
}

// TestACancelReachesTheHostThatFollowsAtOnce, by its tail, not by the next renewal: a
// sweep ends a cancelled run soon. The host ends the run.
func TestACancelReachesTheHostThatFollowsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var asked time.Time
		go func() {
			time.Sleep(100 * time.Second)
			asked = time.Now()
			if _, err := w.Cancel(t.Context(), client.CancelRequest{RunKey: key}); err != nil {
				t.Error(err)
			}
		}()
		result, err := client.Run(t.Context(), w.api(), client.Turn{Start: begin(client.NewHost())})
		if !errors.Is(err, client.ErrCancelled) || result.Left || result.Run.Ending != "cancelled" || !result.Run.Status.Terminal() {
			t.Fatalf("%+v, %v", result, err)
		}
		if waited := time.Since(asked); waited > 6*time.Second || w.fleet.Alive(key.Run) {
			t.Errorf("ended after %s, alive %v", waited, w.fleet.Alive(key.Run))
		}
	})
}

// TestAHostThatLostItsRunWritesNothing: another has taken it over.
func TestAHostThatLostItsRunWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		go func() {
			time.Sleep(10 * time.Second)
			if _, err := w.Attach(t.Context(), client.AttachRequest{RunKey: key, Host: client.NewHost(), Takeover: true}); err != nil {
				t.Error(err)
			}
		}()
		result, err := client.Run(t.Context(), w.api(), client.Turn{Start: begin(client.NewHost())})
		if client.CodeOf(err) != client.ClaimLost || result.Left {
			t.Fatalf("%+v, %v", result, err)
		}
		if run := w.get(); run.DetachedSince != 0 || run.Status != client.Running {
			t.Errorf("the other's run is %+v", run)
		}
	})
}

// TestAStartThatIsLeftOrCancelled while its sandbox comes up.
func TestAStartThatIsLeftOrCancelled(t *testing.T) {
	for what, c := range map[string]struct {
		act  func(w *world, leave context.CancelFunc)
		want error
		left bool
		ends bool
	}{
		"left":      {func(_ *world, leave context.CancelFunc) { leave() }, context.Canceled, true, false},
		"cancelled": {func(w *world, _ context.CancelFunc) { w.Cancel(w.Context(), client.CancelRequest{RunKey: key}) }, client.ErrCancelled, false, true},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				api := w.api()
				calls := 0
				api.start = func(q client.StartRequest) (client.StartReport, error, bool) {
					calls++
					report, err := w.Start(t.Context(), q)
					report.State = client.Provisioning // as from a sandbox that takes its time
					return report, err, true
				}
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				time.AfterFunc(5*time.Second, func() { c.act(w, leave) })
				result, err := client.Run(ctx, api, client.Turn{Start: begin(client.NewHost())})
				if !errors.Is(err, c.want) || result.Left != c.left || calls < 4 {
					t.Errorf("after %d calls %+v, %v", calls, result, err)
				}
				if run := w.get(); (run.DetachedSince != 0) != c.left || run.Status.Terminal() != c.ends {
					t.Errorf("left as %+v", run)
				}
			})
		})
	}
}

// TestATaskThatStopsUnderAHost is left to the sweep, which tells what is lost.
func TestATaskThatStopsUnderAHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		api := w.api()
		api.tail = func(q client.TailRequest) (client.TailReport, error, bool) {
			report := client.TailReport{From: q.From, Next: q.From, Waiting: "gone", Run: w.get()}
			report.Run.TaskStoppedAt = 1
			return report, nil, true
		}
		result, err := client.Run(t.Context(), api, client.Turn{Start: begin(client.NewHost())})
		if !errors.Is(err, client.ErrTaskStopped) || !result.Left || w.get().DetachedSince == 0 {
			t.Errorf("%+v, %v", result, err)
		}
	})
}

// TestRenewalsThatGetNoAnswerAreNoLoss, nor is a writer lease that somebody else took.
func TestRenewalsThatGetNoAnswerAreNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		api := w.api()
		renewals := 0
		api.renew = func() (client.RenewReport, error, bool) {
			renewals++
			switch renewals {
			case 1, 2:
				return client.RenewReport{}, errors.New("no route"), true
			case 3:
				return client.RenewReport{}, &client.RefusedError{Operation: "renew", Code: client.WriterLost}, true
			}
			return client.RenewReport{}, nil, false
		}
		time.AfterFunc(5*time.Minute, func() { w.fleet.Exit(key.Run, 0) })
		result, err := client.Run(t.Context(), api, client.Turn{Start: begin(client.NewHost())})
		if err != nil || result.Run.Status != client.Completed || renewals < 9 {
			t.Errorf("after %d renewals %+v, %v", renewals, result, err)
		}
	})
}

// TestWhatAnAttachmentCanDo beside finishing.
func TestWhatAnAttachmentCanDo(t *testing.T) {
	for what, c := range map[string]struct {
		do   func(ctx context.Context, a *client.Attachment) (client.RunView, error)
		want client.Status
	}{
		"interrupt": {func(ctx context.Context, a *client.Attachment) (client.RunView, error) { return a.Interrupt(ctx) }, client.Interrupted},
		"fail": {func(ctx context.Context, a *client.Attachment) (client.RunView, error) {
			return a.Fail(ctx, client.RunFault{Code: "host-broke"})
		}, client.Failed},
		"cancel": {func(ctx context.Context, a *client.Attachment) (client.RunView, error) { return a.Cancel(ctx) }, client.Aborted},
		"close": {func(_ context.Context, a *client.Attachment) (client.RunView, error) {
			a.Close()
			return client.RunView{Status: client.Running}, nil
		}, client.Running},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a, _, err := client.Start(t.Context(), w.api(), *begin(client.NewHost()))
				if err != nil {
					t.Fatal(err)
				}
				run, err := c.do(t.Context(), a)
				if err != nil || run.Status != c.want || w.get().Status != c.want {
					t.Errorf("%+v, %v, want %s", run, err, c.want)
				}
				select {
				case <-a.Lost():
				default:
					t.Error("it is renewed still")
				}
			})
		})
	}
}

// TestATurnBeginsOneWay: a mistake of the program changes nothing.
func TestATurnBeginsOneWay(t *testing.T) {
	for _, turn := range []client.Turn{{}, {Start: begin("h"), Attach: &client.AttachRequest{}}} {
		if _, err := client.Run(t.Context(), nil, turn); err == nil || !strings.Contains(err.Error(), "exactly one") {
			t.Errorf("%v", err)
		}
	}
}

// TestAFailedConversationLeavesTheRun to be finished later.
func TestAFailedConversationLeavesTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		time.AfterFunc(time.Second, func() { w.fleet.Exit(key.Run, 0) })
		broken := errors.New("the database is away")
		result, err := client.Run(t.Context(), w.api(), client.Turn{
			Start: begin(client.NewHost()), Conversation: func(context.Context) (*client.ConversationPut, error) { return nil, broken },
		})
		if !errors.Is(err, broken) || !result.Left {
			t.Errorf("%+v, %v", result, err)
		}
	})
}
