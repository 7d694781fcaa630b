package core

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"
)

// ExecUse is what a container's exec sessions are held for.
type ExecUse string

// The long uses of a container. Those that follow a journal give way to all others.
const (
	ExecTail  ExecUse = "tail"  // the host of a run follows its journal
	ExecFiles ExecUse = "files" // or what changes in the workspace
	ExecSetup ExecUse = "setup" // a workspace is prepared
	ExecDrain ExecUse = "drain" // the journal of a run that ends is read
	ExecStep  ExecUse = "step"  // a capture or a restore begins, or is served
)

// follows reports whether a use can be broken off and gone on with at no loss.
func (u ExecUse) follows() bool { return u == ExecTail || u == ExecFiles }

// ExecHolder is who has the exec sessions of a container.
type ExecHolder struct {
	By    string // use and id between them a colon, see [ExecOf]; empty: nobody who says who it is
	Epoch int64  // of the claim under which a run's driver holds; zero: it is no driver
}

// ExecOf is the holder for a use of the driver of a run.
func ExecOf(use ExecUse, r Run) ExecHolder {
	return ExecHolder{string(use) + ":" + string(r.RunKey.Run), r.Epoch}
}

// execOfStep is the holder for a step of the keeper's.
func execOfStep(id CheckpointID) ExecHolder {
	return ExecHolder{By: string(ExecStep) + ":" + string(id)}
}

func (h ExecHolder) split() (use ExecUse, of string) {
	u, of, _ := strings.Cut(h.By, ":")
	return ExecUse(u), of
}

// ExecHold says that a long user has a container's exec sessions, and until when. The zero
// value is a container that is free.
type ExecHold struct {
	ExecHolder
	Until Millis
}

// Bars reports whether the hold keeps who away from the container, whose latest run is
// given; the zero holder is a short user. A hold ends by itself; a former driver of the
// same run, and the driver of a run that the sandbox serves no more, hold nothing; who
// follows a journal gives way to who does not.
func (h ExecHold) Bars(who ExecHolder, latest RunID, now Millis) bool {
	if h.Until <= now || h.ExecHolder == who && who.By != "" {
		return false
	}
	use, of := h.split()
	user, by := who.split()
	switch {
	case h.Epoch != 0 && latest != "" && of != string(latest):
		return false
	case h.Epoch != 0 && of == by && h.Epoch < who.Epoch:
		return false
	case use.follows() && user != "" && !user.follows():
		return false
	}
	return true
}

// HoldExec says that a long user has a container's exec sessions, or has them no more:
// others leave it alone until then. It is a courtesy, and ends by itself.
type HoldExec struct {
	Instance InstanceID
	Was      ExecHold // as read, and found to be no bar
	Hold     ExecHold // until at most [MaxExecHold] from now; zero: no more
}

// MaxExecHold is the longest time for which a container is held: whoever needs it longer
// says so again.
const MaxExecHold = 2 * time.Minute

// Name is "hold exec".
func (HoldExec) Name() string { return "hold exec" }

// Apply: instance and hold as read.
func (t HoldExec) Apply(s Sandbox) (Sandbox, error) {
	if why := failing(
		check{s.Instance == t.Instance, "instance"},
		check{s.Exec == t.Was, "busy"},
	); why != "" {
		return sandboxRefusal(t, s, why)
	}
	s.Exec = t.Hold
	return s, nil
}

// Landed: it is this very hold.
func (t HoldExec) Landed(s Sandbox) bool {
	return s.Instance == t.Instance && s.Exec == t.Hold && t.Hold.Until != 0
}

// execHoldFor is how long a container is held at once: longer than twice the longest
// session, so that none outlives its hold.
const execHoldFor = 100 * time.Second

// execHold keeps a container's exec sessions for one long use. A use that cannot say so,
// for the instance record is another's or gone, goes on all the same. One
// without a held member has not been taken.
type execHold struct {
	sandboxes Sandboxes
	key       SandboxKey
	instance  InstanceID
	who       ExecHolder

	box   *Sandbox // as read a moment ago; nil: it is read
	held  ExecHold
	doubt ExecHold // one of which nobody knows whether it was written
}

// execBusy is why a question was not asked, or a step's agent not begun, while another had
// the container.
const execBusy = "busy"

// errExecBusy tells that another has the container.
var errExecBusy = errors.New("another has the container's exec sessions")

// take holds the container for at most that long, or goes on to, once half of the time is
// over. Another's hold is errExecBusy.
func (h *execHold) take(ctx context.Context, most time.Duration) error {
	if h == nil || h.key == "" {
		return nil
	}
	now := nowMillis()
	most = min(most, MaxExecHold)
	if h.held.Until > now.Add(most/2) {
		return nil
	}
	was := h.held
	if was.Until <= now { // not held, or no more
		box, err := h.read(ctx)
		now = nowMillis() // a hold that ended while it was read bars nobody
		switch {
		case err != nil:
			return ignoreNotFound(err)
		case box.Instance != h.instance:
			return nil
		case box.Exec.Bars(h.who, box.LatestRun, now):
			return errExecBusy
		}
		was = box.Exec
	}
	hold := ExecHold{h.who, now.Add(most)}
	_, err := h.sandboxes.UpdateSandbox(ctx, h.key, HoldExec{Instance: h.instance, Was: was, Hold: hold})
	switch {
	case refusalOf(err) == "busy":
		h.held = ExecHold{}
		return errExecBusy
	case Refused(err) || isNotFound(err):
		return nil
	}
	if h.held, h.doubt = hold, (ExecHold{}); err != nil {
		h.held, h.doubt = ExecHold{}, hold // given back all the same: that is refused, or right
	}
	if err == nil && hold.Until <= nowMillis() {
		return h.take(ctx, most) // it slept until what it wrote was over: another may have the container
	}
	return err
}

func (h *execHold) read(ctx context.Context) (Sandbox, error) {
	if box := h.box; box != nil {
		h.box = nil
		return *box, nil
	}
	return h.sandboxes.Sandbox(ctx, h.key)
}

// free gives the container back, if it is held. What cannot be given back ends by itself.
func (h *execHold) free(ctx context.Context) {
	if h == nil || h.held == (ExecHold{}) && h.doubt == (ExecHold{}) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	_, _ = h.sandboxes.UpdateSandbox(ctx, h.key, HoldExec{Instance: h.instance, Was: cmp.Or(h.held, h.doubt)})
	h.held, h.doubt = ExecHold{}, ExecHold{}
}

// stolen reports whether another has taken the container from a holder that gives way. Of
// what cannot be read nothing is known.
func (h *execHold) stolen(ctx context.Context) bool {
	if h == nil || h.held == (ExecHold{}) {
		return false
	}
	box, err := h.sandboxes.Sandbox(ctx, h.key)
	return err == nil && (box.Instance != h.instance || box.Exec.ExecHolder != h.who && box.Exec.Until != 0)
}

// busyError is how a question is answered that another's hold keeps away.
func busyError(op string, err error) error {
	if errors.Is(err, errExecBusy) {
		return &JournalError{Op: op, Healing: Retry, Reason: execBusy}
	}
	return err
}
