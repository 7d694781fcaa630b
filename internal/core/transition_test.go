package core_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// stored is what the three kinds of transition have in common.
type stored[R any] interface {
	Name() string
	Apply(r R) (R, error)
	Landed(r R) bool
}

// refusalCase is a condition of a transition that does not hold.
type refusalCase[R any] struct {
	what string
	t    stored[R]
	r    R
	why  string
}

// attachedRun is a run whose host has it until 100.
func attachedRun() core.Run {
	return core.Run{
		RunKey: key("r"), Status: core.Running, Row: core.RowLapse, DueAt: 100, AttachedUntil: 100, Epoch: 3, ClaimNonce: "host",
		Instance: "i", TaskARN: "arn", LogEnd: 10, LogHash: []byte("state"), TTLSeconds: 60,
	}
}

// changed is r after change.
func changed[R any](r R, change func(*R)) R {
	change(&r)
	return r
}

func detachedRun() core.Run {
	return changed(attachedRun(), func(r *core.Run) { r.Row, r.DueAt, r.AttachedUntil, r.DetachedSince = core.RowDetached, 0, 0, 50 })
}

func pausedRun() core.Run {
	return changed(attachedRun(), func(r *core.Run) {
		r.Status, r.Row, r.DueAt, r.AttachedUntil, r.InterruptedSince = core.Interrupted, core.RowPause, 900, 0, 60
	})
}

func terminalRun() core.Run {
	return changed(attachedRun(), func(r *core.Run) { r.Status, r.Row, r.DueAt, r.AttachedUntil = core.Completed, core.RowReclaim, 200, 0 })
}

func owingRun(state core.CheckpointState) core.Run {
	return changed(terminalRun(), func(r *core.Run) { r.Checkpoint.State = state })
}

func cancelledRun() core.Run {
	return changed(attachedRun(), func(r *core.Run) { r.Row, r.CancelRequested = core.RowCancel, 40 })
}

// Transitions that hold on the records above.
var (
	renew      = core.Renew{Epoch: 3, Until: 500}
	detach     = core.Detach{Epoch: 3, Now: 90}
	lapse      = core.Lapse{DueAt: 100}
	cancelDue  = core.CancelDue{DueAt: 100}
	attach     = core.Attach{Seen: 3, Nonce: "viewer", Now: 70, Until: 170}
	claim      = core.Claim{Seen: 3, Since: 50, Nonce: "sweep", Now: 70, Until: 170, TTLSeconds: 60, Instance: "i", TaskARN: "arn"}
	release    = core.Release{Epoch: 3}
	appended   = core.Append{Epoch: 3, From: 10, End: 20, Hash: []byte("next")}
	finish     = core.Finish{Epoch: 3, Nonce: "host", Now: 80, Status: core.Completed, Transcript: core.Transcript{Bytes: 10}}
	interrupt  = core.Interrupt{Epoch: 3, Now: 80, Until: 900}
	cancel     = core.RequestCancel{Now: 80, Row: core.RowLapse}
	hint       = core.Hint{TaskARN: "arn", TaskStoppedAt: 80, Row: core.RowLapse, DueAt: 100, Lapse: 95}
	reclaimed  = core.ReclaimDone{Instance: "i", Outcome: core.ReclaimDestroyed}
	postponed  = core.ReclaimLater{Instance: "i", Outcome: core.ReclaimHeld, NotBefore: 300, Attempts: 1}
	noted      = core.NoteCheckpoint{From: core.CheckpointOwed, Checkpoint: core.RunCheckpoint{State: core.CheckpointDone, ID: "c"}}
	named      = core.NameInstance{Epoch: 3, Old: "i", Instance: "new", Key: "k"}
	hold       = core.SetHold{Hold: core.Hold{Until: 900, By: "b", Why: "w"}}
	unlaunched = changed(attachedRun(), func(r *core.Run) { r.TaskARN = "" })
)

// otherEpoch is a run that another has claimed meanwhile.
func otherEpoch(r *core.Run) { r.Epoch = 4 }

// endDecided is a run that is about to be ended.
func endDecided(r *core.Run) { r.Ending = &core.Ending{Reason: core.EndExpired} }

// runRefusals are the rows of [TestRunTransitionsRefuse].
var runRefusals = []refusalCase[core.Run]{
	{"renew of a paused run", renew, pausedRun(), "not-running"},
	{"renew by a host that was taken over", renew, changed(attachedRun(), otherEpoch), "epoch"},
	{"renew of a cancelled run", renew, cancelledRun(), "cancel-requested"},
	{"detach of an ended run", detach, terminalRun(), "not-running"},
	{"detach by a host that was taken over", detach, changed(attachedRun(), otherEpoch), "epoch"},
	{"detach of a cancelled run", detach, cancelledRun(), "cancel-requested"},
	{"lapse of a paused run", lapse, pausedRun(), "not-running"},
	{"lapse of an attachment that was renewed", lapse, changed(attachedRun(), func(r *core.Run) { r.DueAt = 101 }), "row"},
	{"lapse of a detached run", lapse, detachedRun(), "row"},
	{"cancel due of a paused run, which is claimed as it is", cancelDue, pausedRun(), "not-running"},
	{"cancel due of a run that is not cancelled", cancelDue, attachedRun(), "row"},
	{"attach to an ended run", attach, terminalRun(), "not-running"},
	{"attach to a run whose end is decided", attach, changed(detachedRun(), endDecided), "ending"},
	{"attach to a cancelled run", attach, changed(detachedRun(), func(r *core.Run) { r.CancelRequested = 1 }), "cancel-requested"},
	{"attach to a run that another took meanwhile", attach, changed(detachedRun(), otherEpoch), "epoch"},
	{"attach to a run that another host has", attach, attachedRun(), "attached-elsewhere"},
	{"claim of an attached run", claim, attachedRun(), "not-detached"},
	{"claim of a run that left again since", claim, changed(detachedRun(), func(r *core.Run) { r.DetachedSince = 60 }), "not-detached"},
	{"claim of a run that is paused since", claim, changed(pausedRun(), func(r *core.Run) { r.InterruptedSince = 50 }), "not-detached"},
	{"claim of an ended run", claim, terminalRun(), "not-detached"},
	{"claim of a run that another sweep had meanwhile", claim, changed(detachedRun(), otherEpoch), "epoch"},
	{"claim of a run that another sweep has", claim, changed(detachedRun(), func(r *core.Run) { r.ClaimUntil = 71 }), "claimed"},
	{"claim to expire a run whose end is decided", expiry(), changed(detachedRun(), endDecided), "ending"},
	{"claim about a task that was replaced", aboutTask(), changed(detachedRun(), func(r *core.Run) { r.TaskARN = "other" }), "task"},
	{"claim about an instance that was replaced", aboutTask(), changed(detachedRun(), func(r *core.Run) { r.Instance = "other" }), "task"},
	{"claim to end a run whose spend cap was raised", spending(), changed(detachedRun(), func(r *core.Run) { r.SpendCap = 61 }), "spend-cap"},
	{"claim to end a held run for its spend cap", spending(), changed(detachedRun(), func(r *core.Run) { r.Hold.Until = 1 << 40 }), "held"},
	{"raise the spend cap of a paused run", core.SetSpendCap{Cap: 9}, changed(detachedRun(), func(r *core.Run) { r.Status = core.Interrupted }), "not-running"},
	{"raise the spend cap of a run that ends", core.SetSpendCap{Cap: 9}, changed(detachedRun(), func(r *core.Run) { r.Ending = &core.Ending{Reason: core.EndSpendCap} }), "ending"},
	{"note the price of a paused run", core.NotePrice{Epoch: 3, Price: 9}, changed(detachedRun(), func(r *core.Run) { r.Status = core.Interrupted }), "not-running"},
	{"note a price under another's epoch", core.NotePrice{Epoch: 99, Price: 9}, detachedRun(), "epoch"},
	{"note the price of another task", core.NotePrice{Epoch: detachedRun().Epoch, TaskARN: "other", Price: 9}, detachedRun(), "task"},
	{"claim to expire a run that was extended", expiry(), changed(detachedRun(), func(r *core.Run) { r.TTLSeconds = 61 }), "ttl"},
	{"claim to expire a run that is held", expiry(), changed(detachedRun(), func(r *core.Run) { r.Hold.Until = 71 }), "held"},
	{"claim to cancel what nobody cancelled", cancelling(), detachedRun(), "not-cancelled"},
	{"release of an ended run", release, terminalRun(), "terminal"},
	{"release of another's claim", release, changed(detachedRun(), otherEpoch), "epoch"},
	{"append to an ended run", appended, terminalRun(), "terminal"},
	{"append under a lost claim", appended, changed(detachedRun(), otherEpoch), "epoch"},
	{"append to a sealed log", appended, changed(detachedRun(), func(r *core.Run) { r.Sealed = &core.Sealed{} }), "sealed"},
	{"append with a gap", appended, changed(detachedRun(), func(r *core.Run) { r.LogEnd = 9 }), "log-end"},
	{"append over what is there", appended, changed(detachedRun(), func(r *core.Run) { r.LogEnd = 11 }), "log-end"},
	{"finish of an ended run", finish, changed(terminalRun(), func(r *core.Run) { r.ClaimNonce = "other" }), "terminal"},
	{"finish under a lost claim", finish, changed(detachedRun(), otherEpoch), "epoch"},
	{"finish without a terminal status", changed(finish, func(f *core.Finish) { f.Status = core.Interrupted }), detachedRun(), "status"},
	{"finish before the last append", finish, changed(detachedRun(), func(r *core.Run) { r.LogEnd = 11 }), "log-end"},
	{"interrupt of an ended run", interrupt, terminalRun(), "not-running"},
	{"interrupt under a lost claim", interrupt, changed(attachedRun(), otherEpoch), "epoch"},
	{"interrupt of a cancelled run", interrupt, cancelledRun(), "cancel-requested"},
	{"cancel of an ended run", cancel, terminalRun(), "terminal"},
	{"cancel of a run that left meanwhile", cancel, detachedRun(), "row"},
	{"hint about an ended run", hint, terminalRun(), "terminal"},
	{"hint about another task", hint, changed(attachedRun(), func(r *core.Run) { r.TaskARN = "other" }), "task"},
	{"hint to an attachment that was renewed", hint, changed(attachedRun(), func(r *core.Run) { r.DueAt = 101 }), "row"},
	{"a first hint of an end after another", core.Hint{TaskARN: "arn", ExitedAt: 80, First: true, Row: core.RowLapse, DueAt: 100},
		changed(attachedRun(), func(r *core.Run) { r.ExitedAt = 70 }), "exited"},
	{"reclaim done of a run that lives", reclaimed, attachedRun(), "not-terminal"},
	{"reclaim done without the mark", reclaimed, changed(terminalRun(), func(r *core.Run) { r.Row = core.RowNone }), "row"},
	{"reclaim done of another instance", reclaimed, changed(terminalRun(), func(r *core.Run) { r.Instance = "other" }), "instance"},
	{"reclaim later of a run that lives", postponed, detachedRun(), "not-terminal"},
	{"reclaim later without the mark", postponed, changed(terminalRun(), func(r *core.Run) { r.Row = core.RowNone }), "row"},
	{"reclaim later of another instance", postponed, changed(terminalRun(), func(r *core.Run) { r.Instance = "other" }), "instance"},
	{"name instance of an ended run", named, terminalRun(), "not-running"},
	{"name instance under a lost claim", named, changed(unlaunched, otherEpoch), "epoch"},
	{"name instance of a run that is being ended", named, changed(unlaunched, func(r *core.Run) { r.Ending = &core.Ending{Reason: core.EndFailed, At: 1} }), "ending"},
	{"name instance of a run that has a task", named, attachedRun(), "task"},
	{"hold taken back that another replaced", core.SetHold{Hold: core.Hold{Until: 800}, Was: &hold.Hold}, terminalRun(), "hold"},
	{"hold of a run whose sandbox is gone", hold, changed(terminalRun(), func(r *core.Run) { r.Row = core.RowNone }), "reclaimed"},
	{"extend of an ended run", core.SetTTL{Seconds: 61}, terminalRun(), "not-running"},
	{"extend of a time that has moved", core.SetTTL{Seconds: 61, Was: new(int64(7))}, detachedRun(), "ttl"},
	{"extend of a run whose end is decided", core.SetTTL{Seconds: 61}, changed(detachedRun(), endDecided), "ending"},
	{"finish that owes a checkpoint and leaves no mark", changed(finish, func(f *core.Finish) { f.Owes = true }), attachedRun(), "owes"},
	{"finish that owes what it has stored", changed(finish, func(f *core.Finish) { f.Owes, f.Reclaim, f.Stored = true, core.ReclaimEnd, "c" }), attachedRun(), "stored"},
	{"reclaim done of a run whose checkpoint is owed", reclaimed, owingRun(core.CheckpointOwed), "owes-checkpoint"},
	{"reclaim done of a run whose checkpoint failed", reclaimed, owingRun(core.CheckpointFailed), "owes-checkpoint"},
	{"note checkpoint of a run that has not ended", noted, attachedRun(), "not-terminal"},
	{"note checkpoint that another has noted", noted, owingRun(core.CheckpointFailed), "checkpoint"},
	{"note checkpoint of one that is lost", core.NoteCheckpoint{From: core.CheckpointLost, Checkpoint: noted.Checkpoint}, owingRun(core.CheckpointLost), "settled"},
	{"note checkpoint of none", core.NoteCheckpoint{Checkpoint: noted.Checkpoint}, terminalRun(), "settled"},
	{"note checkpoint as not owed", core.NoteCheckpoint{From: core.CheckpointOwed}, owingRun(core.CheckpointOwed), "state"},
	{"name instance over another's", named, changed(unlaunched, func(r *core.Run) { r.Instance = "other" }), "instance"},
}

// TestRunTransitionsRefuse names each condition of each transition of a run record.
func TestRunTransitionsRefuse(t *testing.T) { checkRefusals(t, runRefusals) }

func expiry() core.Claim {
	return changed(claim, func(c *core.Claim) { c.Ending = core.EndExpired })
}

func spending() core.Claim {
	return changed(claim, func(c *core.Claim) { c.Ending = core.EndSpendCap })
}

func cancelling() core.Claim {
	return changed(claim, func(c *core.Claim) { c.Ending = core.EndCancelled })
}

func aboutTask() core.Claim {
	return changed(claim, func(c *core.Claim) { c.Ending, c.AboutTask = core.EndDied, true })
}

// checkRefusals checks that each transition is refused for its reason, and leaves
// the record as it is.
func checkRefusals[R any](t *testing.T, cases []refusalCase[R]) {
	t.Helper()
	for _, c := range cases {
		before := fmt.Sprintf("%+v", c.r)
		after, err := c.t.Apply(c.r)
		checkRefused(t, c.what, c.t.Name(), c.why, err)
		if !reflect.ValueOf(&after).Elem().IsZero() {
			t.Errorf("%s: answered a record: %+v", c.what, after)
		}
		if got := fmt.Sprintf("%+v", c.r); got != before {
			t.Errorf("%s: the record changed from %s to %s", c.what, before, got)
		}
		if c.t.Landed(c.r) {
			t.Errorf("%s: taken for its own success", c.what)
		}
	}
}

func checkRefused(t *testing.T, what, op, why string, err error) {
	t.Helper()
	if e, ok := errors.AsType[*core.RefusedError](err); !ok || e.Why != why || e.Op != op || e.Record == "" {
		t.Errorf("%s: %v, want %s refused: %s", what, err, op, why)
		return
	}
	refusals[[2]string{op, why}] = true
}

// TestRunTransitionsApply shows what each transition writes, and which of them tell
// their own success from a loss when its answer was lost.
func TestRunTransitionsApply(t *testing.T) {
	for _, c := range []struct {
		what  string
		t     core.Transition
		r     core.Run
		want  func(*core.Run)
		knows bool // its own success
	}{
		{"renew moves the lapse", renew, attachedRun(), func(r *core.Run) { r.DueAt, r.AttachedUntil = 500, 500 }, false},
		{"renew after a lapse takes the run back", renew, detachedRun(), func(r *core.Run) {
			r.Row, r.DueAt, r.AttachedUntil, r.DetachedSince = core.RowLapse, 500, 500, 0
		}, false},
		{"detach begins the clock", detach, attachedRun(), func(r *core.Run) {
			r.Row, r.DueAt, r.AttachedUntil, r.DetachedSince = core.RowDetached, 0, 0, 90
		}, false},
		{"lapse counts from the attachment's end", lapse, attachedRun(), func(r *core.Run) {
			r.Row, r.DueAt, r.AttachedUntil, r.DetachedSince = core.RowDetached, 0, 0, 100
		}, true},
		{"lapse cancels where the definition says so", core.Lapse{DueAt: 100, Cancel: true}, attachedRun(), func(r *core.Run) {
			r.Row, r.DueAt, r.AttachedUntil, r.DetachedSince, r.CancelRequested = core.RowDetached, 0, 0, 100, 100
		}, true},
		{"cancel due hands the run to the sweep", cancelDue, cancelledRun(), func(r *core.Run) {
			r.Row, r.DueAt, r.AttachedUntil, r.DetachedSince = core.RowDetached, 0, 0, 100
		}, true},
		{"attach takes a detached run", attach, detachedRun(), taken("viewer"), true},
		{"attach takes a run from under a sweep's claim", attach, changed(detachedRun(), func(r *core.Run) { r.ClaimUntil = 999 }), taken("viewer"), true},
		{"attach takes a lapsed run", changed(attach, func(a *core.Attach) { a.Now, a.Until = 100, 170 }), attachedRun(), taken("viewer"), true},
		{"attach takes an attached run when asked to", changed(attach, func(a *core.Attach) { a.Takeover = true }), attachedRun(), taken("viewer"), true},
		{"claim takes the epoch and keeps the evidence", claim, detachedRun(), swept(""), true},
		{"claim takes a run whose lease is just over", claim, changed(detachedRun(), func(r *core.Run) { r.ClaimUntil = 70 }), swept(""), true},
		{"claim goes on with a run whose end is decided", claim, changed(detachedRun(), func(r *core.Run) {
			r.Ending = &core.Ending{Reason: core.EndExpired, At: 1}
		}), swept(""), true},
		{"claim to expire is final", expiry(), changed(detachedRun(), func(r *core.Run) { r.Hold.Until = 70 }), swept(core.EndExpired), true},
		{"claim takes a paused run as it is", changed(claim, func(c *core.Claim) { c.Paused, c.Since = true, 60 }), pausedRun(), swept(""), true},
		{"release ends the lease", release, changed(detachedRun(), func(r *core.Run) { r.ClaimUntil = 170 }), func(r *core.Run) { r.ClaimUntil = 0 }, false},
		{"append moves the end", appended, detachedRun(), func(r *core.Run) { r.LogEnd, r.LogHash = 20, []byte("next") }, true},
		{"append seals", changed(appended, func(a *core.Append) { a.Sealed = &core.Sealed{ExitCode: 3} }), detachedRun(), func(r *core.Run) {
			r.LogEnd, r.LogHash, r.Sealed = 20, []byte("next"), &core.Sealed{ExitCode: 3}
		}, true},
		{"interrupt pauses", interrupt, attachedRun(), func(r *core.Run) {
			r.Status, r.Row, r.DueAt, r.AttachedUntil, r.InterruptedSince = core.Interrupted, core.RowPause, 900, 0, 80
		}, true},
		{"cancel gives the host its grace", cancel, attachedRun(), func(r *core.Run) {
			r.CancelRequested, r.Row, r.DueAt = 80, core.RowCancel, core.Millis(80).Add(core.CancelGrace)
		}, false},
		{"cancel of a detached run leaves it to the sweep", core.RequestCancel{Now: 80, Row: core.RowDetached}, detachedRun(),
			func(r *core.Run) { r.CancelRequested = 80 }, false},
		{"a second cancel keeps the first", core.RequestCancel{Now: 80, Row: core.RowCancel}, cancelledRun(), func(*core.Run) {}, false},
		{"hint pulls the lapse", hint, attachedRun(), func(r *core.Run) { r.TaskStoppedAt, r.DueAt, r.AttachedUntil = 80, 95, 95 }, false},
		{"hint to a detached run moves nothing", core.Hint{TaskARN: "arn", ExitedAt: 80, Row: core.RowDetached}, detachedRun(),
			func(r *core.Run) { r.ExitedAt = 80 }, false},
		{"reclaim done takes the mark", reclaimed, terminalRun(), func(r *core.Run) {
			r.Row, r.DueAt, r.ReclaimOutcome = core.RowNone, 0, core.ReclaimDestroyed
		}, true},
		{"reclaim later moves the mark", postponed, terminalRun(), func(r *core.Run) {
			r.DueAt, r.ReclaimOutcome, r.ReclaimAttempts = 300, core.ReclaimHeld, 1
		}, false},
		{"hold keeps an ended run's sandbox", hold, terminalRun(), func(r *core.Run) { r.Hold = hold.Hold }, true},
		{"hold keeps a sandbox that is kept warm", hold, changed(terminalRun(), warm), func(r *core.Run) { r.Hold = hold.Hold }, true},
		{"extend gives a detached run more time", core.SetTTL{Seconds: 90}, detachedRun(), func(r *core.Run) { r.TTLSeconds = 90 }, true},
		{"name instance names what is to come", named, unlaunched, func(r *core.Run) { r.Instance, r.SandboxKey = "new", "k" }, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			want := changed(c.r, c.want)
			got, err := c.t.Apply(c.r)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%v\ngot  %+v\nwant %+v", err, got, want)
			}
			if c.t.Landed(got) != c.knows || c.t.Landed(c.r) {
				t.Errorf("knows its own success: %t, want %t; sees it before: %t", c.t.Landed(got), c.knows, c.t.Landed(c.r))
			}
		})
	}
}

// warm is an ended run whose sandbox is idle.
func warm(r *core.Run) { r.Row, r.DueAt, r.ReclaimOutcome = core.RowNone, 0, core.ReclaimIdled }

// taken is a run that a host took over.
func taken(nonce string) func(*core.Run) {
	return func(r *core.Run) {
		r.Epoch, r.ClaimNonce, r.ClaimUntil = 4, nonce, 0
		r.Row, r.DueAt, r.AttachedUntil, r.DetachedSince = core.RowLapse, 170, 170, 0
	}
}

// swept is a run that a sweep has claimed.
func swept(reason core.EndReason) func(*core.Run) {
	return func(r *core.Run) {
		r.Epoch, r.ClaimNonce, r.ClaimUntil = 4, "sweep", 170
		if reason != "" {
			r.Ending = &core.Ending{Reason: reason, At: 70}
		}
	}
}

// TestFinishIsOneWrite: terminal status, closed log and reclaim mark come together,
// and a repeat knows itself by the claim's nonce (I4).
func TestFinishIsOneWrite(t *testing.T) {
	f := changed(finish, func(f *core.Finish) { f.Reclaim, f.NotBefore = core.ReclaimEnd, 140 })
	r := changed(detachedRun(), func(r *core.Run) { r.ClaimUntil = 170 })
	got, err := f.Apply(r)
	want := changed(r, func(r *core.Run) {
		r.Status, r.FinishedAt, r.Transcript, r.ClaimUntil = core.Completed, 80, &core.Transcript{Bytes: 10}, 0
		r.Row, r.DueAt, r.Reclaim, r.ReclaimSince = core.RowReclaim, 140, core.ReclaimEnd, 80
	})
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\ngot  %+v\nwant %+v", err, got, want)
	}
	if !f.Landed(got) || f.Landed(changed(got, func(r *core.Run) { r.ClaimNonce = "other" })) || f.Landed(changed(got, func(r *core.Run) { r.Epoch = 4 })) {
		t.Error("a repeated finish takes another's end for its own, or not its own")
	}
	f.Reclaim = core.ReclaimNone
	if got, err := f.Apply(r); err != nil || got.Row != core.RowNone || got.DueAt != 0 || got.ReclaimSince != 0 {
		t.Errorf("without a sandbox: %v, %+v", err, got)
	}
}

// TestSandboxTransitionsRefuse names each condition of each transition of an
// instance record.
func TestSandboxTransitionsRefuse(t *testing.T) {
	box := core.Sandbox{Key: "k", Instance: "i", LatestRun: "r", Reclaiming: "me", DueAt: 50}
	other := changed(box, func(s *core.Sandbox) { s.Instance = "other" })
	stolen := changed(box, func(s *core.Sandbox) { s.Reclaiming = "another" })
	busy := changed(box, func(s *core.Sandbox) { s.DueAt = 0 })
	free := changed(box, func(s *core.Sandbox) { s.Reclaiming = "" })
	mark := core.MarkReclaiming{Instance: "i", LatestRun: "r", By: "me"}
	idle := core.MarkIdle{Instance: "i", By: "me", Since: 10, DueAt: 20}
	held := core.ExecHold{ExecHolder: core.ExecHolder{By: "drain:r", Epoch: 2}, Until: 90}
	checkRefusals(t, []refusalCase[core.Sandbox]{
		{"mark of another instance", mark, other, "instance"},
		{"mark of a sandbox that a newer run has", mark, changed(free, func(s *core.Sandbox) { s.LatestRun = "newer" }), "latest-run"},
		{"mark of an idle sandbox that a run has taken", core.MarkReclaiming{Instance: "i", LatestRun: "r", By: "me", Idle: true},
			changed(busy, func(s *core.Sandbox) { s.Reclaiming = "" }), "idle-row"},
		{"unmark of another instance", core.Unmark{Instance: "i", By: "me"}, other, "instance"},
		{"unmark of another's mark", core.Unmark{Instance: "i", By: "me"}, stolen, "reclaiming"},
		{"unmark that moves an idle row which is gone", core.Unmark{Instance: "i", By: "me", DueAt: 5}, busy, "idle-row"},
		{"idle of another instance", idle, other, "instance"},
		{"idle under another's mark", idle, stolen, "reclaiming"},
		{"exec hold of another instance", core.HoldExec{Instance: "i", Hold: held}, other, "instance"},
		{"exec hold of what another has meanwhile", core.HoldExec{Instance: "i", Hold: held}, changed(box, func(s *core.Sandbox) { s.Exec.Until = 80 }), "busy"},
		{"end of an exec hold that another has taken over", core.HoldExec{Instance: "i", Was: held}, changed(box, func(s *core.Sandbox) {
			s.Exec = held
			s.Exec.Epoch++
		}), "busy"},
	})
}

// TestLedgerTransitionsRefuse names each condition of each transition of a ledger
// row: none of them takes a task back into service.
func TestLedgerTransitionsRefuse(t *testing.T) {
	row := func(s core.LedgerState, arn string) core.LedgerRow {
		return core.LedgerRow{Instance: "i", State: s, TaskARN: arn, Attempts: 1}
	}
	checkRefusals(t, []refusalCase[core.LedgerRow]{
		{"stop launch of a running row", core.StopLaunch{TaskARN: "arn"}, row(core.LedgerRunning, "arn"), "state"},
		{"stop launch of a closed row", core.StopLaunch{TaskARN: "arn"}, row(core.LedgerClosed, ""), "state"},
		{"close of a running row", core.CloseRow{From: core.LedgerRunning, TaskARN: "arn"}, row(core.LedgerRunning, "arn"), "from"},
		{"close of a row that moved on", core.CloseRow{From: core.LedgerIntent}, row(core.LedgerStopping, "arn"), "state"},
		{"close of a row that got a task", core.CloseRow{From: core.LedgerStopping}, row(core.LedgerStopping, "arn"), "task"},
		{"close of a row that owes a checkpoint", core.CloseRow{From: core.LedgerStopping, TaskARN: "arn"}, owing(row(core.LedgerStopping, "arn")), "owed"},
		{"close of a row that is metered", core.CloseRow{From: core.LedgerStopping, TaskARN: "arn"}, meteredRow(row(core.LedgerStopping, "arn")), "metered"},
		{"meter of a row that is condemned", core.StartMeter{Tenant: "acme", Metering: core.Metering{Price: 1, Since: 1}}, underQuota(row(core.LedgerStopping, "arn")), "state"},
		{"meter of another tenant's row", core.StartMeter{Tenant: "beta", Metering: core.Metering{Price: 1, Since: 1}}, underQuota(row(core.LedgerRunning, "arn")), "tenant"},
		{"meter of a row that is metered", core.StartMeter{Tenant: "acme", Metering: core.Metering{Price: 1, Since: 1}}, meteredRow(underQuota(row(core.LedgerRunning, "arn"))), "metered"},
		{"meter without a price", core.StartMeter{Tenant: "acme", Metering: core.Metering{Since: 1}}, underQuota(row(core.LedgerRunning, "arn")), "price"},
		{"close of a row that counts for a quota", core.CloseRow{From: core.LedgerStopping, TaskARN: "arn"}, underQuota(row(core.LedgerStopping, "arn")), "quota"},
		{"close of a row that another tenant's quota counts", core.CloseRow{From: core.LedgerStopping, TaskARN: "arn", Quota: 3, Tenant: "other"},
			underQuota(row(core.LedgerStopping, "arn")), "tenant"},
		{"settle debt of none", core.SettleDebt{}, owing(row(core.LedgerRunning, "arn")), "owed"},
		{"settle debt of a closed row", core.SettleDebt{Owed: "r"}, owing(row(core.LedgerClosed, "arn")), "state"},
		{"settle debt of another run", core.SettleDebt{Owed: "other"}, owing(row(core.LedgerRunning, "arn")), "debt"},
		{"name task of an intent", core.NameTask{TaskARN: "arn"}, row(core.LedgerIntent, ""), "state"},
		{"name task of a row that has another", core.NameTask{TaskARN: "arn"}, row(core.LedgerStopping, "other"), "task"},
		{"postpone of a running row", core.Postpone{State: core.LedgerRunning, Attempts: 1}, row(core.LedgerRunning, "arn"), "from"},
		{"postpone of a row that moved on", core.Postpone{State: core.LedgerStopping, Attempts: 1}, row(core.LedgerClosed, "arn"), "state"},
		{"postpone that another has counted", core.Postpone{State: core.LedgerStopping, DueAt: 1}, row(core.LedgerStopping, "arn"), "attempts"},
	})
}

// TestTransactionsRefuse names each condition of the writes that touch more than
// one record.
func TestTransactionsRefuse(t *testing.T) {
	launched := core.Launched{Run: key("r"), Epoch: 3, Sandbox: core.Sandbox{Key: "k", Instance: "i", TaskARN: "arn"}}
	for what, c := range map[string]struct {
		r   core.Run
		why string
	}{
		"a run that was cancelled into its end": {terminalRun(), "not-running"},
		"a run that another host took":          {changed(unlaunched, func(r *core.Run) { r.Epoch = 4 }), "epoch"},
		"a run that names another instance":     {changed(unlaunched, func(r *core.Run) { r.Instance = "other" }), "instance"},
		"a run that has a task":                 {attachedRun(), "task"},
		"a run that its host ends":              {changed(unlaunched, func(r *core.Run) { r.Ending = &core.Ending{Reason: core.EndFailed, At: 1} }), "ending"},
	} {
		_, err := launched.ApplyRun(c.r)
		checkRefused(t, what, "launched", c.why, err)
	}
	for _, state := range []core.LedgerState{core.LedgerRunning, core.LedgerStopping, core.LedgerClosed} {
		_, err := launched.ApplyRow(core.LedgerRow{State: state, TaskARN: "other"})
		checkRefused(t, "launch over a row "+string(state), "launched", "state", err)
		if launched.Landed(core.LedgerRow{State: state, TaskARN: "other"}) {
			t.Errorf("launch takes a row %s of another task for its own success", state)
		}
	}
	condemn := core.Condemn{Instance: "i", Key: "k", By: "me"}
	for _, state := range []core.LedgerState{core.LedgerStopping, core.LedgerClosed} {
		_, err := condemn.ApplyRow(core.LedgerRow{State: state})
		checkRefused(t, "condemn of a row "+string(state), "condemn", "state", err)
	}
	_, err := condemn.ApplyRow(owing(core.LedgerRow{State: core.LedgerRunning}))
	checkRefused(t, "condemn of a row that owes a checkpoint", "condemn", "owed", err)
	without := core.Condemn{Instance: "i", Key: "k"}
	for what, c := range map[string]struct {
		t   core.Condemn
		s   *core.Sandbox
		why string
	}{
		"condemn without a mark of what a record names": {without, &core.Sandbox{Instance: "i"}, "instance"},
		"condemn of a record that is gone":              {condemn, nil, "instance"},
		"condemn of a record that names another":        {condemn, &core.Sandbox{Instance: "other", Reclaiming: "me"}, "instance"},
		"condemn under another's mark":                  {condemn, &core.Sandbox{Instance: "i", Reclaiming: "another"}, "reclaiming"},
	} {
		checkRefused(t, what, "condemn", c.why, c.t.CheckSandbox(c.s))
	}
	move := core.MoveDebt{Run: key("r"), Instance: "i", Outcome: core.ReclaimInUse}
	for what, c := range map[string]struct {
		r   core.Run
		why string
	}{
		"a debt of a run that has not ended":       {attachedRun(), "not-terminal"},
		"a debt of a run that has no mark":         {changed(owingRun(core.CheckpointOwed), func(r *core.Run) { r.Row, r.DueAt = core.RowNone, 0 }), "row"},
		"a debt of a run that had another sandbox": {changed(owingRun(core.CheckpointOwed), func(r *core.Run) { r.Instance = "other" }), "instance"},
		"a debt that is paid":                      {owingRun(core.CheckpointDone), "not-owed"},
	} {
		_, err := move.ApplyRun(c.r)
		checkRefused(t, what, "move debt", c.why, err)
		if move.Landed(c.r) {
			t.Errorf("%s: taken for its own success", what)
		}
	}
	for _, state := range []core.LedgerState{core.LedgerIntent, core.LedgerStopping, core.LedgerClosed} {
		_, err := move.ApplyRow(core.LedgerRow{State: state})
		checkRefused(t, "a debt for a row "+string(state), "move debt", "state", err)
	}
	_, err = move.ApplyRow(core.LedgerRow{State: core.LedgerRunning, Owed: "older"})
	checkRefused(t, "a debt for a row that owes what was not read", "move debt", "debt", err)
	if err := without.CheckSandbox(&core.Sandbox{Instance: "other"}); err != nil {
		t.Errorf("condemn of a task that no record names: %v", err)
	}
}

func owing(row core.LedgerRow) core.LedgerRow {
	row.Owed = "r"
	return row
}

func meteredRow(row core.LedgerRow) core.LedgerRow {
	row.Metered = core.Metering{Price: 7, Since: 3}
	return row
}

func underQuota(row core.LedgerRow) core.LedgerRow {
	row.Quota, row.Tenant = 3, "acme"
	return row
}

// refusals are the refusals that the tests of this file have met, by type and
// reason.
var refusals = map[[2]string]bool{}

// TestEveryRefusalIsTested reads the transitions' source: a condition that is added
// without a case here fails.
func TestEveryRefusalIsTested(t *testing.T) {
	TestRunTransitionsRefuse(t)
	TestSandboxTransitionsRefuse(t)
	TestLedgerTransitionsRefuse(t)
	TestTransactionsRefuse(t)
	found := 0
	for _, file := range []string{"transition.go", "sandbox.go", "operate.go", "owed.go", "spend.go"} {
		for op, whys := range conditionsIn(t, file) {
			for _, why := range whys {
				if found++; !refusals[[2]string{op, why}] {
					t.Errorf("%s: %s can be refused for %q, and no case here shows it", file, op, why)
				}
			}
		}
	}
	if found < 60 {
		t.Errorf("read %d conditions: they are written in another way now", found)
	}
}

// conditionsIn lists, for each operation, the reasons for which its methods refuse.
// Those of a shared function count for each that calls it.
func conditionsIn(t *testing.T, file string) map[string][]string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names, reasons, shared := map[string]string{}, map[string][]string{}, map[string][]string{}
	var calls [][2]string
	for _, d := range parsed.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		receiver := receiverOf(f)
		if f.Name.Name == "Name" {
			names[receiver] = literalIn(f.Body)
			continue
		}
		whys, called := conditionsOf(f)
		if receiver == "" {
			shared[f.Name.Name] = whys
			continue
		}
		reasons[receiver] = append(reasons[receiver], whys...)
		for _, c := range called {
			calls = append(calls, [2]string{receiver, c})
		}
	}
	for _, c := range calls {
		reasons[c[0]] = append(reasons[c[0]], shared[c[1]]...)
	}
	out := map[string][]string{}
	for receiver, whys := range reasons {
		slices.Sort(whys)
		if name := names[receiver]; name != "" && len(whys) > 0 {
			out[names[receiver]] = slices.Compact(whys)
		}
	}
	return out
}

func receiverOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	if id, ok := f.Recv.List[0].Type.(*ast.Ident); ok {
		return id.Name
	}
	return "a pointer, and no transition"
}

func literalIn(n ast.Node) (text string) {
	ast.Inspect(n, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			text, _ = strconv.Unquote(lit.Value)
		}
		return true
	})
	return text
}

// conditionsOf lists the reasons that a function names, by a check, a refusal or an
// assignment to why, and the functions that it calls.
func conditionsOf(f *ast.FuncDecl) (whys, calls []string) {
	note := func(e ast.Expr) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, _ := strconv.Unquote(lit.Value); text != "" {
				whys = append(whys, text)
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			if id, ok := n.Type.(*ast.Ident); ok && id.Name == "check" {
				note(n.Elts[1])
			}
		case *ast.KeyValueExpr:
			if id, ok := n.Key.(*ast.Ident); ok && id.Name == "Why" {
				note(n.Value)
			}
		case *ast.AssignStmt:
			if id, ok := n.Lhs[0].(*ast.Ident); ok && id.Name == "why" {
				note(n.Rhs[0])
			}
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok {
				if calls = append(calls, id.Name); strings.HasSuffix(strings.ToLower(id.Name), "refusal") {
					note(n.Args[len(n.Args)-1])
				}
			}
		}
		return true
	})
	return whys, calls
}
