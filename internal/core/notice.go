package core

import "context"

// NoticeType is what an outbound event tells.
type NoticeType string

// The types. They are for other systems, which need not poll then; the records stay
// the truth, since an event may come twice or, but for run.expiring, after a crash never.
const (
	NoticeFinalized NoticeType = "run.finalized"  // ended by itself, or cancelled
	NoticeExpiring  NoticeType = "run.expiring"   // its time, or what it may cost, is nearly over; comes once at least
	NoticeExpired   NoticeType = "run.expired"    // was ended: its time was over
	NoticeLost      NoticeType = "run.lost"       // its task or its agent died
	NoticeHeld      NoticeType = "run.held"       // would have ended, and is held
	NoticeLeaked    NoticeType = "sandbox.leaked" // a task runs that no open ledger row names

	NoticeTripped NoticeType = "breaker.tripped" // too many ended without a sentinel; such ends wait for an operator

	NoticeCheckpointFailed NoticeType = "checkpoint.failed" // a workspace could not be stored, and is held, or is lost
)

// Notice is one outbound event.
type Notice struct {
	Type NoticeType `json:"type"`
	RunKey
	Thread   ThreadID `json:"thread,omitempty"`
	Outcome  Outcome  `json:"outcome,omitempty"`
	Status   Status   `json:"status,omitempty"`
	ExitCode *int     `json:"exitCode,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	TaskARN  string   `json:"taskArn,omitempty"`
	At       Millis   `json:"at"`

	// Due is when the run will be ended, of run.expiring, as far as that is known; Command
	// is what keeps it from that.
	Due     Millis `json:"due,omitempty"`
	Command string `json:"command,omitempty"`

	// Incomplete says that the transcript was closed without its end, although the run's task
	// lived: what the agent wrote last is lost.
	Incomplete bool `json:"incomplete,omitempty"`

	// Checkpoint is how that of the run stands, of checkpoint.failed.
	Checkpoint CheckpointState `json:"checkpoint,omitempty"`
}

// Announcer carries notices to other systems.
type Announcer interface {
	// Announce returns an error if any of the notices may not have been taken.
	Announce(ctx context.Context, notices []Notice) error
}

// noticeOf is what an ended run's outcome is announced as.
var noticeOf = map[Outcome]NoticeType{
	Finalized: NoticeFinalized, Cancelled: NoticeFinalized, ReclaimFailed: NoticeFinalized,
	Expired: NoticeExpired, Lost: NoticeLost, Died: NoticeLost,
}

// endNotice announces a run that was closed, and whether its task lived until then.
func endNotice(r Run, of Outcome, reason string, lived bool) Notice {
	return Notice{
		Type: noticeOf[of], RunKey: r.RunKey, Thread: r.Thread, Outcome: of, Status: r.Status,
		ExitCode: r.ExitCode, Reason: reason, TaskARN: r.TaskARN, At: r.FinishedAt, Incomplete: lived && r.Transcript.cutOff(),
	}
}

// cutOff reports whether the end of the journal is missing, not only the middle of one that
// is too long.
func (t *Transcript) cutOff() bool {
	return t != nil && !t.Complete && (t.Omitted == 0 || t.Side != "")
}

// noticesOf announces the states that a note says have just begun.
func noticesOf(r Run, before, after Note) []Notice {
	var out []Notice
	if began := after.HeldSince; began != 0 && before.HeldSince == 0 {
		out = append(out, Notice{Type: NoticeHeld, RunKey: r.RunKey, Thread: r.Thread, Status: r.Status, TaskARN: r.TaskARN, At: began})
	}
	return out
}

// announce sends what a sweep has to tell. It is not worth failing for.
func (s *Sweep) announce(ctx context.Context, notices []Notice) {
	if s.Announcer == nil || len(notices) == 0 {
		return
	}
	if err := s.Announcer.Announce(ctx, notices); err != nil {
		s.Logger.WarnContext(ctx, "announce", "err", err)
	}
}
