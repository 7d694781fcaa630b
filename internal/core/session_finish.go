package core

import (
	"cmp"
	"context"
	"slices"
)

// FinishRequest ends a run whose agent has ended.
type FinishRequest struct {
	RunKey
	Host         string           `json:"host"`
	Conversation *ConversationPut `json:"conversation,omitempty"` // saved first, where it is given
}

// ConversationPut is the next version of a thread's conversation, opaque to Sandkeeper.
type ConversationPut struct {
	Seen int64  `json:"seen"` // the version that it goes on from; 0: none
	Data []byte `json:"data"` // base64
	// Folded are the runs whose transcripts it holds; none: the run that finishes.
	Folded []RunID `json:"folded,omitempty"`
}

// FinishState is how far a finish is.
type FinishState string

// One that is finishing is asked again.
const (
	Finishing FinishState = "finishing"
	Finished  FinishState = "finished"
)

// FinishReport is the answer of finish.
type FinishReport struct {
	State      FinishState  `json:"state"`
	Waiting    string       `json:"waiting,omitempty"` // what a finishing one waits for
	Checkpoint CheckpointID `json:"checkpoint,omitempty"`
	// CheckpointFailed is why the workspace could not be stored yet; reclaim tries again
	// before the sandbox ends.
	CheckpointFailed string  `json:"checkpointFailed,omitempty"`
	Run              RunView `json:"run"`
}

func (q FinishRequest) check() error {
	if err := cmp.Or(checkRun(q.RunKey), checkHost(q.Host)); err != nil || q.Conversation == nil {
		return err
	}
	c := q.Conversation
	switch {
	case c.Seen < 0:
		return invalid("invalid-conversation", "seen: want 0 or more, got %d", c.Seen)
	case len(c.Data) > maxConversationPut:
		return invalid("too-large", "conversation: want at most %d bytes, got %d", maxConversationPut, len(c.Data))
	case len(c.Folded) > MaxFolded:
		return invalid("invalid-conversation", "folded: want at most %d runs, got %d", MaxFolded, len(c.Folded))
	}
	for _, run := range c.Folded {
		if err := checkRun(RunKey{q.Tenant, run}); err != nil {
			return err
		}
	}
	return nil
}

// maxConversationPut is the longest conversation that one request brings, bytes: what a
// function can be given.
const maxConversationPut = 4 << 20

// Finish ends a run whose agent has ended: the journal drained and sealed, the
// conversation saved, the workspace stored under the run's own lease, then terminal
// status and mark. A checkpoint takes a while: asked again it goes on.
func (s *Session) Finish(ctx context.Context, q FinishRequest) (FinishReport, error) {
	if err := q.check(); err != nil {
		return FinishReport{}, err
	}
	r, err := s.mine(ctx, "finish", q.RunKey, q.Host)
	switch {
	case err != nil:
		return FinishReport{}, err
	case r.Status.Terminal():
		return FinishReport{State: Finished, Checkpoint: r.Checkpoint.ID, Run: viewOf(r)}, s.announce(ctx, r)
	case r.Ending != nil || r.Status != Running:
		return FinishReport{}, refusedRun("finish", q.RunKey, claimLost)
	}
	defer s.giveWay(ctx, q.RunKey)()
	r, waiting, err := s.seal(ctx, r)
	if waiting != "" || err != nil {
		return FinishReport{State: Finishing, Waiting: waiting, Run: viewOf(r)}, lostClaim("finish", q.RunKey, err)
	}
	if err := s.converse(ctx, q, r); err != nil {
		return FinishReport{}, err
	}
	return s.close(ctx, r)
}

// seal drains the journal of a run to the agent's sentinel. A run without one is
// producing still, whatever its processes do.
func (s *Session) seal(ctx context.Context, r Run) (_ Run, waiting string, err error) {
	switch {
	case r.Sealed != nil:
		return r, "", nil
	case !s.begun(r):
		return r, "", refusedRun("finish", r.RunKey, "still-producing")
	}
	reply := s.Prober.Probe(ctx, 0, []ProbeRequest{{
		RunKey: r.RunKey, Target: targetOf(r), SandboxKey: r.SandboxKey, Nonce: r.Nonce, LogEnd: r.LogEnd, LogTail: r.LogTail,
		Holder: ExecOf(ExecDrain, r),
	}})[0]
	switch reply.State {
	case ProbeProducing:
		return r, "", refusedRun("finish", r.RunKey, "still-producing")
	case ProbeUnknown:
		return r, cmp.Or(reply.Reason, "unknown"), nil
	}
	ender := s.ender(r)
	defer ender.hold.free(ctx)
	end, err := ender.finalize(ctx, job{run: r, reply: reply}, r, newAllowance(s.limits().SweepBytes))
	if err != nil {
		return r, "", err
	}
	return end.run, "", nil
}

// converse saves the conversation. Where a checkpoint is to match it, only a host that may
// store one may move it: the lease and the head are looked at first (SN-19).
func (s *Session) converse(ctx context.Context, q FinishRequest, r Run) error {
	if q.Conversation == nil {
		return nil
	}
	if s.Keeper == nil {
		return refusedRun("finish", r.RunKey, "no-checkpoints")
	}
	if s.keeps(r) {
		if err := s.writes(ctx, r); err != nil {
			return err
		}
	}
	folded := q.Conversation.Folded
	if len(folded) == 0 {
		folded = []RunID{r.RunKey.Run}
	}
	_, err := s.Keeper.PutConversation(ctx, hostThread(r), q.Conversation.Seen, q.Conversation.Data, folded)
	return err
}

// close stores the workspace of a sealed run and ends the run. A workspace that cannot
// be stored now is owed: reclaim stores it before the sandbox ends.
func (s *Session) close(ctx context.Context, r Run) (FinishReport, error) {
	report := FinishReport{State: Finished}
	owes := owesCheckpoint(r, true, s.Checkpoint)
	if owes && s.Keeper != nil {
		step, err := s.save(ctx, r)
		switch {
		case err != nil:
			return FinishReport{}, err
		case step.State == StepWorking:
			return FinishReport{State: Finishing, Waiting: "checkpoint", Run: viewOf(r)}, nil
		case step.State == StepFailed:
			report.CheckpointFailed = cmp.Or(step.Why, "unknown")
		default:
			owes, report.Checkpoint = false, step.Checkpoint
		}
	}
	ender := s.ender(r)
	r = ender.keepFiles(ctx, r)
	ender.hold.free(ctx)
	finish, err := ender.finishOf(job{run: r}, ended{run: r, complete: true})
	if err != nil {
		return FinishReport{}, err
	}
	finish.Owes, finish.Stored = owes, report.Checkpoint
	over, err := s.conclude(ctx, r, finish)
	report.Run = viewOf(over)
	return report, lostClaim("finish", r.RunKey, err)
}

// save asks for the run's checkpoint, under the lease and on the head that the run began
// from.
func (s *Session) save(ctx context.Context, r Run) (StepReport, error) {
	if err := s.writes(ctx, r); err != nil {
		return StepReport{}, err
	}
	q := SaveRequest{
		ThreadKey: hostThread(r), ID: CheckpointOf(r.RunKey.Run), Run: r.RunKey.Run, Owner: hostOwner(r), Key: r.SandboxKey, Instance: r.Instance,
	}
	if r.Capture != nil {
		q.JobOptions = *r.Capture
	}
	step, err := s.Keeper.Save(ctx, q)
	switch refusalOf(err) {
	case "writer-conflict":
		return StepReport{}, refuse("finish", "thread "+hostThread(r).String(), "writer-lost")
	case "step-busy": // a save by name that the run asked for, or the restore of its start
		return StepReport{State: StepWorking}, nil
	case "missing-reusable-sandbox", "duplicate-id", "missing-instances":
		return StepReport{State: StepFailed, Why: refusalOf(err)}, nil
	}
	return step, err
}

// writes refuses where the run's host may not write its thread: the lease is another's, or
// the head has moved.
func (s *Session) writes(ctx context.Context, r Run) error {
	if err := s.renewLease(ctx, r); err != nil {
		return err
	}
	return s.freshHead(ctx, r)
}

// freshHead refuses where somebody else has moved the thread's head since the run began:
// its workspace does not hold what that one does.
func (s *Session) freshHead(ctx context.Context, r Run) error {
	th, err := s.Launcher.Threads.Thread(ctx, hostThread(r))
	if err != nil || !r.Start.Noted || slices.Contains([]CheckpointID{"", r.Start.Head, CheckpointOf(r.RunKey.Run)}, th.Head) {
		return err
	}
	head, err := s.Launcher.Threads.Checkpoint(ctx, hostThread(r), th.Head)
	switch {
	case ignoreNotFound(err) != nil:
		return err
	case err == nil && head.SourceRun == r.RunKey.Run:
		return nil // saved by its own host, by name
	}
	return refuse("finish", "thread "+th.ThreadKey.String(), "stale-head")
}
