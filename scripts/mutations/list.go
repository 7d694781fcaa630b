package main

// mutation is one place that is broken on purpose.
type mutation struct {
	name  string
	file  string
	edits []edit
}

// edit replaces a text that stands in the file once.
type edit struct{ old, new string }

const (
	transition = "internal/core/transition.go"
	sandbox    = "internal/core/sandbox.go"
	drive      = "internal/core/drive.go"
	drains     = "internal/core/drain.go"
	finishes   = "internal/core/finish.go"
	decide     = "internal/core/decide.go"
	reclaim    = "internal/core/reclaim.go"
	sweep      = "internal/core/sweep.go"
	settle     = "internal/core/settle.go"
	launch     = "internal/core/launch.go"
	operate    = "internal/core/operate.go"
	control    = "internal/core/control.go"
	notes      = "internal/core/note.go"
	logs       = "internal/core/log.go"
	owed       = "internal/core/owed.go"
	captures   = "internal/core/reclaim_owed.go"
	threads    = "internal/core/thread_transition.go"
	points     = "internal/core/checkpoint.go"
	collects   = "internal/core/collect.go"
	forks      = "internal/core/fork.go"
	uploads    = "internal/core/capture.go"
	commits    = "internal/core/commit.go"
	histories  = "internal/core/history.go"
	leases     = "internal/core/lease.go"
	steps      = "internal/core/step.go"
	sessions   = "internal/core/session.go"
	starts     = "internal/core/session_start.go"
	continues  = "internal/core/session_continue.go"
	records    = "internal/core/session_record.go"
	adoptions  = "internal/core/session_adopt.go"
	setups     = "internal/core/session_setup.go"
	sides      = "internal/core/session_side.go"
	hooks      = "internal/core/hooks.go"
	bridge     = "internal/core/tools.go"
	holding    = "internal/core/exechold.go"
	follows    = "internal/core/session_follow.go"
	sealings   = "internal/core/session_finish.go"
	starting   = "internal/core/agentstart.go"
	forgets    = "internal/core/forget.go"
	examines   = "internal/core/examine.go"
	audits     = "internal/core/daily.go"
	spends     = "internal/core/spend.go"
	warnings   = "internal/core/warn.go"
	debts      = "internal/core/operator_redrive.go"
)

func one(name, file, old, new string) mutation {
	return mutation{name: name, file: file, edits: []edit{{old, new}}}
}

var mutations = []mutation{
	// What a claim requires.
	one("a claim does not ask for the epoch as read", transition,
		`		check{r.Epoch == t.Seen, "epoch"},
		check{r.ClaimUntil <= t.Now, "claimed"},`, `		check{r.ClaimUntil <= t.Now, "claimed"},`),
	one("a claim does not ask whether the run is detached still", transition,
		`		check{!t.Paused && r.Status == Running && r.Row == RowDetached && r.DetachedSince == t.Since ||
			t.Paused && r.Status == Interrupted && r.InterruptedSince == t.Since, "not-detached"},
`, ``),
	one("a claim does not ask whether the run is paused since", transition,
		`		check{!t.Paused && r.Status == Running && r.Row == RowDetached && r.DetachedSince == t.Since ||
			t.Paused && r.Status == Interrupted && r.InterruptedSince == t.Since, "not-detached"},
`, `		check{r.Status == Running && r.Row == RowDetached && r.DetachedSince == t.Since ||
			r.Status == Interrupted && r.InterruptedSince == t.Since, "not-detached"},
`),
	one("a claim does not ask for the task as read", transition, `		check{!t.AboutTask || r.Instance == t.Instance && r.TaskARN == t.TaskARN, "task"},
`, ``),
	one("an expiry does not look at the TTL again", transition,
		`		check{t.Ending != EndExpired || r.TTLSeconds == t.TTLSeconds, "ttl"},
`, ``),
	one("an expiry does not look at the hold again", transition,
		`		check{t.Ending != EndExpired && t.Ending != EndSpendCap || !r.Hold.Live(t.Now), "held"},
`, ``),
	one("an end for a spend cap does not look at the cap again", transition,
		`		check{t.Ending != EndSpendCap || r.SpendCap == t.SpendCap, "spend-cap"},
`, ``),
	// What other writes of a run require.
	one("a driver's write does not ask for its epoch", transition,
		`		check{!r.Status.Terminal(), "terminal"},
		check{r.Epoch == epoch, "epoch"},
	)`, `		check{!r.Status.Terminal(), "terminal"},
	)`),
	one("a lapse does not look at the row again", transition,
		`		check{r.Row == RowLapse && r.DueAt == t.DueAt, "row"},
	); why != "" {
		return refusal(t, r, why)
	}
	if t.Cancel {`, `	); why != "" {
		return refusal(t, r, why)
	}
	if t.Cancel {`),
	one("a viewer attaches to a run that is being ended", transition,
		`		check{r.Ending == nil, "ending"},
		check{r.CancelRequested == 0, "cancel-requested"},
		check{r.Epoch == t.Seen, "epoch"},`, `		check{r.CancelRequested == 0, "cancel-requested"},
		check{r.Epoch == t.Seen, "epoch"},`),
	one("a takeover does not ask for the epoch as read", transition, `		check{r.Epoch == t.Seen, "epoch"},
		check{t.Takeover ||`, `		check{t.Takeover ||`),
	one("a viewer takes a run from a host that is attached", transition, `		check{t.Takeover || r.Row == RowDetached || r.Row == RowLapse && r.DueAt <= t.Now, "attached-elsewhere"},
`, ``),
	one("a hint leaves the attachment as it was", transition, `		r.DueAt, r.AttachedUntil = t.Lapse, t.Lapse
`, `		r.DueAt = t.Lapse
`),
	one("an agent's word cancels a run whose host is there", transition, `	if r.OnLapse == LapseCancels && h.ExitedAt != 0 {`, `	if r.OnLapse == LapseCancels && h.ExitedAt == 1 {`),
	one("a host renews a run that another has taken", transition, `func (t Renew) Apply(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Running, "not-running"},
		check{r.Epoch == t.Epoch, "epoch"},
`, `func (t Renew) Apply(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Running, "not-running"},
`),
	one("a host leaves a run that another has taken", transition, `func (t Detach) Apply(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Running, "not-running"},
		check{r.Epoch == t.Epoch, "epoch"},
`, `func (t Detach) Apply(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Running, "not-running"},
`),
	one("a host pauses a run that another has taken", transition, `func (t Interrupt) Apply(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Running, "not-running"},
		check{r.Epoch == t.Epoch, "epoch"},
`, `func (t Interrupt) Apply(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Running, "not-running"},
`),
	one("an append does not ask where the log ends", transition,
		`			check{r.LogEnd == t.From, "log-end"},
`, ``),
	one("the finish sets no reclaim mark", finishes, `		Reclaim:    ReclaimEnd,`, `		Reclaim:    ReclaimNone,`),
	one("an expiry is exclusive", decide,
		`r.DetachedSince != 0 && now >= r.DetachedSince`, `r.DetachedSince != 0 && now > r.DetachedSince`),

	// The sweep's judgement.
	one("an unknown answer counts as finished", decide,
		`		return decision{act: actLeave, outcome: Unknown, healing: reply.Healing, why: reply.Reason}`,
		`		return decision{act: actFinalize, why: reply.Reason}`),
	one("a task that ECS was not heard about is gone", decide,
		`	return e.task.Life == TaskGone || exited ||`, `	return e.task.Life == TaskGone || e.task.Life == TaskUnknown || exited ||`),
	one("a task that ECS does not know is gone at once", decide,
		`e.note.missingFor(now) >= l.MissingGrace`, `e.note.missingFor(now) >= 0`),
	one("an agent seen dead once is dead", notes,
		`now >= n.DeadSince.Add(l.DeadApart)`, `now >= n.DeadSince`),
	one("a run is never-started while its launch is under way", decide,
		`	if r.Instance == "" || e.row == nil || e.row.State == LedgerClosed || e.row.Run != "" && r.RunKey != (RunKey{e.row.Tenant, e.row.Run}) {`, `	if r.TaskARN == "" {`),
	one("another run's launch counts as one's own", decide,
		` || e.row.Run != "" && r.RunKey != (RunKey{e.row.Tenant, e.row.Run}) {`, ` {`),
	one("a plan is carried out", sweep,
		`acts: control.Acts() && request.Mode != ModePlan`, `acts: control.Acts()`),
	one("an installation that observes acts", control,
		`func (c Control) Acts() bool { return c.Mode != Observe }`, `func (c Control) Acts() bool { return true }`),
	one("what trips the breaker is ended all the same", drive,
		`	if err == nil && control.EndsUnsealed() {`, `	if err == nil {`),
	one("the breaker does not count", drive,
		`		if n == 0 || !c.EndsUnsealed() {
			return c, nil
		}`, `		if true {
			return c, nil
		}`),

	one("what was frozen since the claim is ended all the same", drive, `	if !control.Acts() || j.counts() && !control.EndsUnsealed() {
		return &blockedError{control.Standing()}
	}
	return nil`, `	_ = control
	return nil`),

	// Driving a run to its end.
	one("the run is finished before the last append", drive,
		`	end, err := s.drive(budget, j, claimed, a)
`, `	s.close(ctx, j, ended{run: claimed, complete: true}, entry)
	end, err := s.drive(budget, j, claimed, a)
`),
	one("the log's end moves before its bytes are stored", logs,
		`		if err := w.Blobs.PutBlob(ctx, segment.Blob, data); err != nil {
			return Run{}, fmt.Errorf("append to run %s: %w", r.RunKey, err)
		}
`, `		defer w.Blobs.PutBlob(ctx, segment.Blob, data)
`),
	one("a sealed log is driven again", drive,
		`	case r.Sealed != nil:
		return ended{run: r, complete: true}, nil
`, ``),
	one("an agent is not ended before its run is", drive,
		`	_, err := s.Prober.Terminate(ctx, TerminateRequest{RunKey: r.RunKey, Target: targetOf(r), Nonce: r.Nonce})
`, `	var err error
`),
	one("a journal that cannot be read is given up at once", drive,
		`	if !isRewritten(err) && !s.givesUp(ctx, r) {`, `	if s.Limits.DrainGrace < 0 && !isRewritten(err) && !s.givesUp(ctx, r) {`),
	one("a lost reclaim message is not sent again", sweep,
		`		if r.Status.Terminal() && r.Row == RowReclaim && r.DueAt <= now {`, `		if r.DueAt < 0 && r.DueAt <= now {`),

	// Launching.
	one("the task is asked for before its ledger row is written", launch,
		`	row, err := l.intend(ctx, r, key, material.Provider, spec.Cluster)
`, `	_, _ = l.runTask(ctx, LedgerRow{Instance: r.Instance, LaunchUntil: nowMillis().Add(l.Limits.LaunchWindow)}, spec, "")
	row, err := l.intend(ctx, r, key, material.Provider, spec.Cluster)
`),
	one("a retried launch revives a condemned row", sandbox,
		`	if row.State != LedgerIntent {
		return LedgerRow{}, &RefusedError{Op: t.Name(), Record: "ledger row " + string(t.Sandbox.Instance), Why: "state"}`,
		`	if row.State != LedgerIntent && row.State != LedgerStopping {
		return LedgerRow{}, &RefusedError{Op: t.Name(), Record: "ledger row " + string(t.Sandbox.Instance), Why: "state"}`),
	one("a launch that has landed is condemned as one that has not", sandbox, `	if row.State != LedgerIntent {
		return ledgerRefusal(t, row, "state")
	}
	row.State, row.TaskARN, row.Why = LedgerStopping, t.TaskARN, t.Why
`, `	row.State, row.TaskARN, row.Why = LedgerStopping, t.TaskARN, t.Why
`),
	one("an agent is begun before it is written that it may be", starts,
		`		start.AskedAt = nowMillis()
		if err := s.note(ctx, st, start); err != nil {`,
		`		start.AskedAt = nowMillis()
		st.run.Start = start
		if err := error(nil); err != nil {`),
	one("an intent is closed without asking ECS", settle,
		`	arn, err := s.findTask(ctx, row)
`, `	arn, err := "", error(nil)
`),
	one("a late task is not condemned", settle,
		`	case arn != "" && over:
		t = StopLaunch{TaskARN: arn, Why: "late launch", Now: now, DueAt: now.Add(s.Limits.RetryStop)}
`, ``),
	one("an idle sandbox is overlooked", settle,
		`	if err != nil || box.DueAt == 0 || box.DueAt > nowMillis() {`, `	if true {`),

	// Reclaiming.
	one("reclaim ignores a hold", reclaim, `	case until > now:`, `	case false:`),
	one("reclaim reads the hold before it marks", reclaim, `	if outcome, err := c.mark(ctx, a); outcome != "" || err != nil {
		return outcome, err
	}
	for _, step := range []func(context.Context, *attempt) (ReclaimOutcome, error){c.guarded, c.stored, c.counted} {
		if outcome, err := step(ctx, &a); outcome != "" || err != nil {
			return outcome, err
		}
	}
`, `	for _, step := range []func(context.Context, *attempt) (ReclaimOutcome, error){c.guarded, c.stored, c.counted} {
		if outcome, err := step(ctx, &a); outcome != "" || err != nil {
			return outcome, err
		}
	}
	if outcome, err := c.mark(ctx, a); outcome != "" || err != nil {
		return outcome, err
	}
`),
	one("the mark is taken off before the task is stopped", reclaim,
		`	task, may, err := c.ask(ctx, row)
`, `	_, _ = c.unmark(ctx, job, ReclaimDestroyed)
	task, may, err := c.ask(ctx, row)
`),
	one("control is not read again before StopTask", reclaim,
		`	row, err := c.Ledger.Row(ctx, a.job.Instance)
	if err != nil {
		return ReclaimDestroyFailed, err
	}
	return c.stop(ctx, a.job, row)
`, `	row, err := c.Ledger.Row(ctx, a.job.Instance)
	if err != nil {
		return ReclaimDestroyFailed, err
	}
	task, err := c.stopTask(ctx, row)
	if err != nil {
		return ReclaimDestroyFailed, err
	}
	return c.stopped(ctx, a.job, row, task)
`),
	one("a mark does not ask whose the sandbox is by now", sandbox, `		check{s.LatestRun == t.LatestRun, "latest-run"},
		check{!t.Idle`, `		check{!t.Idle`),
	one("an attempt condemns under another's mark", sandbox,
		`	case t.By != "" && s.Reclaiming != t.By:
		why = "reclaiming"
`, ``),
	one("a task that was asked to stop before is believed to", reclaim,
		`tasks[0].Life != TaskLives && tasks[0].Life != TaskUnknown`, `tasks[0].Life != TaskUnknown`),
	one("a missing task is believed gone at once", reclaim,
		`missing && now >= since.Add(c.Limits.MissingGrace)`, `missing`),
	one("a missing task is counted from its condemnation", reclaim,
		`missing && now >= since.Add(c.Limits.MissingGrace)`, `missing && now >= row.UpdatedAt.Add(c.Limits.MissingGrace)`),

	// Checkpoints that are owed.
	one("the finish does not write what is owed", transition, `	if t.Owes {
		r.Checkpoint`, `	if false {
		r.Checkpoint`),
	one("reclaim does not look at what its sandbox owes", reclaim,
		`{c.bind, c.debt, c.lease}`, `{c.bind, c.lease}`),
	one("a capture begins before the hold is read", reclaim,
		`{c.guarded, c.stored, c.counted}`, `{c.stored, c.guarded, c.counted}`),
	one("a workspace that cannot be stored is given up at once", captures,
		`	over := now >= until || sure && c.OnFailure == ReleaseOnFailure`, `	over := now >= 0`),
	one("what nobody knows of a capture counts as its failure", captures,
		`		return c.uncaptured(ctx, a, "unknown: "+err.Error(), false)`, `		return c.uncaptured(ctx, a, "unknown: "+err.Error(), true)`),
	one("the debt of a sandbox that is kept is forgotten", captures,
		`	if !r.Checkpoint.Owes() {
		return c.unmark(ctx, job, outcome)
	}
`, `	if true {
		return c.unmark(ctx, job, outcome)
	}
`),
	one("reclaim keeps the lease when it is done", captures,
		`	if !a.leased {
		return
	}
	_, err := c.Threads`, `	if a.leased || !a.leased {
		return
	}
	_, err := c.Threads`),
	one("a loss is told before its capture is fenced", captures,
		`	th, err := l.fence(ctx, r)
`, `	th, err := l.threads.Thread(ctx, runThread(r))
`),
	one("a loss is told of what is stored after all", captures,
		`	if err == nil {
		final.State, final.ID = CheckpointDone, CheckpointOf(r.RunKey.Run)
		return final, nil
	}
	if !isNotFound(err) {`, `	if err != nil && !isNotFound(err) {`),
	one("a loss is not told to the thread", captures,
		`	_, err = l.threads.UpdateThread(ctx, th.ThreadKey, LoseWorkspace{Run: r.RunKey.Run, Why: why, Head: th.Head, Fence: th.Fence, Now: nowMillis()})
	return final, err
`, `	return final, nil
`),
	one("a loss is not told to other systems", captures,
		`	if err == nil && final.State != CheckpointDone {
		err = l.announce(ctx, r, final)
	}
`, ``),
	one("a capture that is stored is not noted on the run", captures,
		`	if r.Checkpoint == c {
		return nil
	}
`, `	if r.Checkpoint == c || c.State == CheckpointDone {
		return nil
	}
`),
	one("a row owes for ever what is stored", captures,
		`	_, err := l.ledger.UpdateRow(ctx, row.Instance, SettleDebt{Owed: row.Owed, Now: nowMillis()})
	return err
`, `	return nil
`),
	one("what became of a checkpoint is written over", owed, `		check{r.Checkpoint.State == t.From, "checkpoint"},
		check{r.Checkpoint.Owes() || r.Checkpoint.State == CheckpointMoved, "settled"},
`, ``),
	one("what a run owes goes to no row", owed,
		`	row.Owed, row.UpdatedAt = t.Run.Run, t.Now
	return row, nil
`, `	row.UpdatedAt = t.Now
	return row, nil
`),

	// The keeper of checkpoints.
	one("a loss does not ask whether a capture may have begun since", threads,
		`		check{th.Fence == t.Fence, "fence"},
	); why != "" {
		return threadRefusal(t, th, why)
	}
	th.WorkspaceLost`, `	); why != "" {
		return threadRefusal(t, th, why)
	}
	th.WorkspaceLost`),
	one("a workspace is superseded by what follows on it", captures,
		`	_, err = l.threads.Checkpoint(ctx, th.ThreadKey, CheckpointOf(r.RunKey.Run))
	return isNotFound(err), ignoreNotFound(err)
`, `	return true, nil
`),
	one("a lease that lives is taken", threads,
		`	if th.Lease.Live(t.Now) && th.Lease.Owner != t.Owner {`, `	if th.Lease.Owner == "?" {`),
	one("a lease is taken under the fence of the one before", threads, `		th.Fence++
	}
	th.Lease, th.UpdatedAt = Lease{t.Owner`, `		th.Fence = max(th.Fence, 1)
	}
	th.Lease, th.UpdatedAt = Lease{t.Owner`),
	one("a commit does not ask for its lease", points, `		check{th.Writes(t.Writer, t.Now), "writer-lost"},
		check{t.Token == ""`, `		check{t.Token == ""`),
	one("a commit takes any checkpoint of its name for its own", points,
		`	return taken.Thread == t.Checkpoint.Thread && taken.Digest == t.Checkpoint.Digest && taken.Digest != "" &&
		taken.ForkOf == t.Checkpoint.ForkOf`, `	return taken.ID == t.Checkpoint.ID`),
	one("a save takes another thread's checkpoint for its own", steps,
		`	case err == nil && made.ThreadKey == q.ThreadKey:`, `	case err == nil:`),
	one("a head is deleted without its lease", points, `		check{th.Writes(t.Writer, t.Now), "writer-lost"},
		check{th.Head == t.Checkpoint.ID, "not-head"},`, `		check{th.Head == t.Checkpoint.ID, "not-head"},`),
	one("a head is deleted that is none any more", points, `		check{th.Writes(t.Writer, t.Now), "writer-lost"},
		check{th.Head == t.Checkpoint.ID, "not-head"},`, `		check{th.Writes(t.Writer, t.Now), "writer-lost"},`),
	one("retention does not ask for its lease", points, `		check{th.Writes(t.Writer, t.Now), "writer-lost"},
		check{!slices.ContainsFunc(`, `		check{!slices.ContainsFunc(`),
	one("a step is begun without its lease", threads, `	why := lost(th, t.Owner, t.Step.Fence, t.Now)
	if why == "" {
		why = failing(check{th.Seen() == t.Seen, "step"})
	}
`, `	why := failing(check{th.Seen() == t.Seen, "step"})
`),
	one("an agent is heard whose fence is dead", threads, `		check{th.Fence == t.Fence && th.Lease.Live(t.Now), "writer-lost"},
		check{th.Step != nil && th.Step.Token == t.Token && th.Step.State == StepWorking, "step"},
		check{t.Grant`, `		check{th.Step != nil && th.Step.Token == t.Token && th.Step.State == StepWorking, "step"},
		check{t.Grant`),
	one("an agent is heard whose lease was given back", threads, `		check{th.Fence == t.Fence && th.Lease.Live(t.Now), "writer-lost"},
		check{th.Step != nil && th.Step.Token == t.Token && th.Step.State == StepWorking, "step"},
		check{t.Grant`, `		check{th.Fence == t.Fence, "writer-lost"},
		check{th.Step != nil && th.Step.Token == t.Token && th.Step.State == StepWorking, "step"},
		check{t.Grant`),
	one("a step is ended under a dead fence", threads, `		check{th.Fence == t.Fence, "writer-lost"},
		check{th.Step != nil && th.Step.Token == t.Token && th.Step.State == StepWorking, "step"},
	); why != "" {
		return threadRefusal(t, th, why)
	}
	step := *th.Step
	step.State`, `		check{th.Step != nil && th.Step.Token == t.Token && th.Step.State == StepWorking, "step"},
	); why != "" {
		return threadRefusal(t, th, why)
	}
	step := *th.Step
	step.State`),
	one("the keeper keeps its lease when it is done", leases, `	err = do(th.Writer())
	if late := k.giveBack(ctx, th.Writer()); err == nil && late != nil {
		return fmt.Errorf("give back lease of thread %s: %w", key, late)
	}
	return err
`, `	return do(th.Writer())
`),
	one("a collector keeps its lease for ever", leases, `func (k *Keeper) giveBack(ctx context.Context, w Writer) error {
`, `func (k *Keeper) giveBack(ctx context.Context, w Writer) error {
	if w.Owner > "gc:" && w.Owner < "gd" {
		_, _ = k.Threads.UpdateThread(context.WithoutCancel(ctx), w.ThreadKey, RenewLease{Owner: w.Owner, Fence: w.Fence, Now: nowMillis(), Until: nowMillis().Add(24 * LeaseLife)})
		return nil
	}
`),
	one("a collection does not look at pins", collects, `	for range 2 {
		pins`, `	for range 0 {
		pins`),
	one("a collection does not look at the conversation", collects, `	if c.thread.Conversation.Object.Key != "" {`, `	if c.thread.Conversation.Object.Key == "?" {`),
	one("a collection takes the manifest that pins read", collects, `	if f := c.thread.Fork; f != nil && len(f.Owners) > 0 {`, `	if f := c.thread.Fork; f != nil && len(f.Owners) < 0 {`),
	one("a collection raises no floor", collects, `	raise := RaiseFloor{Owner: c.writer.Owner, Fence: c.writer.Fence, Now: nowMillis()}
	if _, err := c.k.Threads.UpdateThread(ctx, c.writer.ThreadKey, raise); err != nil {
		return err
	}
`, ``),
	one("a collection raises the floor without its lease", threads, `	if why := lost(th, t.Owner, t.Fence, t.Now); why != "" {
		return threadRefusal(t, th, why)
	}
	th.Floor`, `	th.Floor`),
	one("a pack that may be collected is used again", uploads,
		`func (w working) reuses(p PackRef) bool { return p.Fence >= w.Floor && p.Fence <= w.step.Fence }`,
		`func (w working) reuses(p PackRef) bool { return p.Fence <= w.step.Fence }`),
	one("a conversation does not ask for the floor", threads, `		check{th.Floor <= t.Fence, "floor"},
`, ``),
	one("a conversation is saved over one that was not read", threads, `		check{th.Conversation.Version == t.Seen.Version, "stale-conversation"},
`, ``),
	one("a commit does not ask whether its packs are stored", commits, `		if err == nil && !there {`, `		if err == nil && !there && own[i].Fence < 0 {`),
	one("what is needed still is unpinned", collects, `		if c.owners[owner] {
			continue
		}
`, ``),
	one("a pin is let go without its lease", points, `	if !th.Writes(t.Writer, t.Now) {
		return Thread{}, &RefusedError{Op: t.Name(), Record: "thread " + t.Writer.ThreadKey.String(), Why: "writer-lost"}
	}
	if th.Fork == nil {`, `	if th.Fork == nil {`),
	one("a fork puts no pins", forks, `	return Branch{Writer: w, Checkpoint: c, Pins: pins}, err`, `	return Branch{Writer: w, Checkpoint: c, Pins: pins[:0]}, err`),
	one("a fork's packs count as its own", forks, `		return cmp.Or(r.packs[nameOf(p)].Owner, source.Thread)`, `		return r.packs[nameOf(p)].Owner`),
	one("a fork does not ask for the leases of its branches", points, `		check{th.Writes(b.Writer, t.Now), "writer-lost"},
		check{th.Empty()`, `		check{th.Empty()`),
	one("a fork begins in a thread in which something has happened", points, `		check{th.Empty(), "fork-destination-not-empty"},
`, ``),
	one("a fork is written branch by branch", forks, `	if err := k.Threads.Fork(ctx, t); err != nil {
		return nil, err
	}
`, `	for _, b := range t.Branches {
		if err := k.Threads.Fork(ctx, Fork{Now: t.Now, Source: t.Source, Branches: []Branch{b}, Release: t.Release}); err != nil {
			return nil, err
		}
	}
`),

	// Sessions.
	one("the sandbox of a live run is taken", starts, `	case err == nil && !latest.Status.Terminal():`, `	case err == nil && latest.Status == "?":`),
	one("a start is gone on with by a host that has not the run", starts, `		check{r.ClaimNonce == q.Host, "attached-elsewhere"},
`, ``),
	one("a host acts on a run that it has not", sessions, `	case r.ClaimNonce != host:
		return Run{}, refusedRun(op, k, claimLost)
`, ``),
	one("an agent may begin though its run is being ended", records, `		check{r.CancelRequested == 0, "cancel-requested"},
		check{r.Ending == nil, "ending"},
		check{r.Start == t.Was, "start"},
	); why != "" {
		return refusal(t, r, why)
	}
	r.Start = t.Start`, `		check{r.Start == t.Was, "start"},
	); why != "" {
		return refusal(t, r, why)
	}
	r.Start = t.Start`),
	one("a sandbox passes to a run although its own has changed", records, `		check{s.LatestRun == h.seen.LatestRun, "latest-run"},
`, ``),
	one("a sandbox passes to a run while it is reclaimed", records, `		check{s.Reclaiming == "", "reclaiming"},
	); why != "" {
		return Sandbox{}, &RefusedError{Op: h.op`, `	); why != "" {
		return Sandbox{}, &RefusedError{Op: h.op`),
	one("a continuation owes nothing of what its parent did", continues,
		`		child.Start.Owes = finish.Owes
`, ``),

	one("what is paused before its agent began owes all the same", continues, `	if !s.begun(over.run) {
		finish.Owes = over.run.Start.Owes // it has done no work of its own
	}
`, ``),
	one("what a task had before its agent is owed", owed, ` || r.Start.Hosted && r.Start.AskedAt == 0
}

// CheckpointState`, `
}

// CheckpointState`),
	one("a debt ends with the second continuation", continues,
		`		child.Start.Owes = finish.Owes
`, `		child.Start.Owes = finish.Owes && s.begun(over.run)
`),
	one("a half-prepared sandbox passes to a continuation", continues, ` || !s.begun(parent) && !parent.Start.Resumed {`, ` {`),
	one("a start goes on with another definition", starts,
		`	if st.run.Definition != st.definition.Ref() || st.run.Start.Key != "" && st.run.Start.Key != st.key {`, `	if st.run.Definition != st.definition.Ref() {`),
	one("the quota is not asked for", launch, `Quota: l.Quota.of(r.Tenant),`, `Quota: 0,`),

	// Set-up and hooks.
	one("an agent begins while its sandbox is set up", setups,
		`	if waiting, err := s.prepare(ctx, st, "setup", plan, r.Start.SetupAt); waiting != "" || err != nil {`,
		`	if waiting, err := s.prepare(ctx, st, "setup", plan, r.Start.SetupAt); err != nil {`),
	one("a set-up that has failed is done", setups, `	case state.Phase == SetupDone:`, `	case state.Phase == SetupDone, state.Phase == SetupFailed:`),
	one("a head is restored before the clone", starts, `s.clone, s.restore, s.setup`, `s.restore, s.clone, s.setup`),
	one("a set-up is handed over under another token", setups, `"sandkeeper/setup/v1:" + st.run.Nonce + ":" + id`, `"sandkeeper/setup/v1:" + fmt.Sprint(nowMillis()) + ":" + id`),
	one("an agent begins before its ready hook", starts, `s.snapshot, s.readyHook, s.startAgent}`, `s.snapshot, s.startAgent, s.readyHook}`),
	one("a ready hook that fails is as good as one that answers", hooks, `	case failed, errors.Is(err, ErrNotAllowed)`, `	case failed:
	case errors.Is(err, ErrNotAllowed)`),
	one("a ready hook that is not heard of has answered", hooks, `		return "ready-hook", ctx.Err()
`, ``),
	one("a destroyed hook is told before its task has ended", reclaim, `	missing := task.Life == TaskMissing
`, `	c.tellDestroyed(ctx, job, row, task)
	missing := task.Life == TaskMissing
`),
	one("a destroyed hook is not told", reclaim, `		c.tellDestroyed(ctx, job, row, task)
`, ``),

	// Bearers and spool.
	one("an agent has a bearer that nobody wrote down", sides,
		`s.runs().Update(ctx, st.run.RunKey, AddBearer{Epoch: st.run.Epoch, Was: st.run.Bearers, Bearer: hash})`, `s.runs().Run(ctx, st.run.RunKey)
		_ = hash`),
	one("a bearer takes the place of the one before", records, `append(slices.Clone(t.Was), t.Bearer)`, `append(slices.Clone(t.Was)[:0], t.Bearer)`),
	one("a bearer is good after the end of its run", bridge, `	case !r.accepts(bearer) || over(r):`, `	case !r.accepts(bearer):`),

	// Copies, adoptions, artifacts.
	one("the copies of a key without a sandbox stay", reclaim, `		if err := c.dropOrphans(ctx, row); err != nil {
			return ReclaimDestroyFailed, err
		}
`, ``),
	one("a task that another run has adopted is adopted again", adoptions, `	case row.Tenant != q.Tenant || row.Run != q.Run || row.State == LedgerStopping:`, `	case row.State == LedgerStopping:`),
	one("a task is adopted under an instance of the attempt", adoptions, `		id := adoptedInstance(q.TaskARN, n)`, `		id := adoptedInstance(q.TaskARN+string(q.Run), n)`),
	one("a task of the installation is adopted", adoptions, `	case strings.HasPrefix(tasks[0].StartedBy, StartedBy(l.Install, "")):`, `	case strings.HasPrefix(tasks[0].StartedBy, "?"):`),
	one("a run that lost its task ends the other's sandbox", reclaim, `	case row != nil && job.foreign(*row):
		return c.unmark(ctx, job, ReclaimNotFound)
`, ``),
	one("an artifact does not ask for the floor", points, `	if th.Floor > t.Fence {
		return Thread{}, &RefusedError{Op: t.Name(), Record: "thread " + t.Thread.String(), Why: "floor"}
	}
	th.Artifacts`, `	th.Artifacts`),

	// Who has the exec sessions of a container.
	one("a hold is written over another's", holding, `		check{s.Exec == t.Was, "busy"},
`, ``),
	one("a hold does not ask who has the container", holding, `		case box.Exec.Bars(h.who, box.LatestRun, now):
			return errExecBusy
`, ``),
	one("a former driver's hold bars the next one", holding, `	case h.Epoch != 0 && of == by && h.Epoch < who.Epoch:`, `	case h.Epoch != 0 && of == by && h.Epoch > who.Epoch && of == "?":`),
	one("a run that the sandbox serves no more has it still", holding, `	case h.Epoch != 0 && latest != "" && of != string(latest):
		return false
`, ``),
	one("who follows gives way to nobody", holding, `	case use.follows() && user != "" && !user.follows():`, `	case use.follows() && user == "?":`),
	one("a container is never given back", holding, `	_, _ = h.sandboxes.UpdateSandbox(ctx, h.key, HoldExec{Instance: h.instance, Was: cmp.Or(h.held, h.doubt)})
`, `	_ = cmp.Or(h.held, h.doubt)
`),
	one("who slept past its hold goes on without it", holding, `	if h.held.Until > now.Add(most/2) {`, `	if h.held.Until > now.Add(most/2) || h.held.Until != 0 {`),
	one("a poll that waits does not hold the container", follows, `	if err := hold.take(ctx, time.Duration(q.WaitSeconds)*time.Second+execWithin); err != nil {`,
		`	if err := ctx.Err(); err != nil {`),
	one("a poll does not ask who has the container", follows, `	if err == nil && box.Exec.Bars(who, box.LatestRun, nowMillis()) {`,
		`	if err == nil && box.Exec.Bars(who, box.LatestRun, nowMillis()) && op != "tail" {`),
	one("a finish does not end the session that its host holds", sealings, `	defer s.giveWay(ctx, q.RunKey)()
	r, waiting, err := s.seal(ctx, r)`, `	r, waiting, err := s.seal(ctx, r)`),
	one("a step takes the next one for its own", starting, `	if own := q.mine(th); err == nil && own != nil {`, `	if own := th.Step; err == nil && own != nil {`),

	// Threads that are deleted.
	one("a thread is deleted while a run of it lives", forgets,
		`		lives = !r.Status.Terminal() || r.Row != RowNone || r.Checkpoint.State == CheckpointMoved`,
		`		lives = r.Checkpoint.State == CheckpointMoved`),
	one("a thread is deleted whose sandbox is kept", forgets, `	return last, d.bare(ctx, kept)`, `	return last, nil`),
	one("retention deletes what is used", forgets, `	if d.q.UnusedSince != 0 && last >= d.q.UnusedSince {`, `	if d.q.UnusedSince != 0 && last < 0 {`),

	// Spokes that fail.
	one("a spoke that fails knows none of its tasks", examines, `		s.Logger.ErrorContext(ctx, "describe tasks", "err", err)
`, `		for _, i := range batch {
			x.evidences[i].task.Life = TaskGone
		}
`),
	{name: "a spoke that fails keeps others from being examined", file: examines, edits: []edit{
		{`			s.describeBatch(ctx, x, clusters[c], batches[n])
`, `			if len(x.report.Errors) == 0 {
				s.describeBatch(ctx, x, clusters[c], batches[n])
			}
`},
		{`		s.Logger.ErrorContext(ctx, "describe tasks", "err", err)
`, `		x.report.Errors = append(x.report.Errors, err.Error())
`},
	}},
	one("a task abroad is looked for at home", settle, `s.Tasks.StartedBy(ctx, row.Cluster, `, `s.Tasks.StartedBy(ctx, s.Cluster, `),
	one("a task abroad is stopped at home", reclaim, `	return c.Stopper.Stop(ctx, row.Cluster, `, `	return c.Stopper.Stop(ctx, "", `),
	one("an audit ends with a spoke that fails", audits, `	for c, cluster := range clusters {
		if failed[c] != nil {`, `	if err := errors.Join(failed...); err != nil {
		return err
	}
	for c, cluster := range clusters {
		if failed[c] != nil {`),
	one("an audit says nothing of a spoke that fails", audits, `	return errors.Join(failed...)`, `	return errors.Join(failed[0])`),

	// What tenants may spend.
	one("a meter that cannot be read has spent its cap", decide, ` || p.spending[r.Tenant].over(p.limits.TenantSpendCap)
}`, ` || p.limits.TenantSpendCap > 0 && (p.spending[r.Tenant] == Spending{} || p.spending[r.Tenant].over(p.limits.TenantSpendCap))
}`),
	one("what one tenant has spent ends another's runs", warnings, `		s.Logger.WarnContext(ctx, "read meters", "err", err)
	}
`, `		s.Logger.WarnContext(ctx, "read meters", "err", err)
	}
	for _, id := range tenants {
		for _, other := range all {
			if other.Spent > all[id].Spent {
				all[id] = other
			}
		}
	}
`),
	one("a task is metered from when somebody asks", spends, `		since := tasks[0].CreatedAt
`, `		since := nowMillis()
`),

	// Letters that are sent again.
	one("a letter is owed whose mark is gone", debts, `		case err == nil && r.Row == RowReclaim && r.Instance == job.Instance:`, `		case err == nil && r.Instance == job.Instance:`),
	one("a condemned task is no debt", debts, `	return row.State == LedgerStopping, fmt`, `	return row.State == LedgerIntent, fmt`),

	// Warnings.
	one("a warning is given with each sweep", warnings, `		if note.Warned != w.key {`, `		if note.Warned != w.key || w.key != 0 {`),
	{name: "a run is warned of an end that is decided", file: warnings, edits: []edit{
		{`	if r.Status.Terminal() || r.Ending != nil || r.CancelRequested != 0 || r.Sealed != nil || ending(r, e, now, p) != "" {`, `	if r.Status.Terminal() {`},
		{`		if ok && (d.act == actLeave && d.outcome != NotClaimed || d.act == actAsk) {`, `		if ok && d.outcome != NotClaimed {`},
	}},
	one("a warning is of the end that an extension has moved", warnings, `seconds(r.TTLSeconds, l.RunTTL))
	}
	return 0`, `l.RunTTL)
	}
	return 0`),

	// The operator.
	one("hold does not look at the ledger row", operate,
		`	return row.State == LedgerStopping || row.State == LedgerClosed, nil`, `	return row.State == "", nil`),
	one("hold does not look at the mark", operate,
		`	case err == nil && box.Instance == r.Instance && box.Reclaiming != "":`, `	case box.Reclaiming == "?":`),
	one("hold looks at the ledger row before the mark", operate, `	box, err := o.Sandboxes.Sandbox(ctx, r.SandboxKey)
	switch {
	case err == nil && box.Instance == r.Instance && r.Status.Terminal() && box.LatestRun != r.RunKey.Run:
		return true, nil
	case err == nil && box.Instance == r.Instance && box.Reclaiming != "":
		return true, nil
	case err != nil && !isNotFound(err):
		return false, err
	}
	row, err := o.Ledger.Row(ctx, r.Instance)
	if err != nil {
		return false, ignoreNotFound(err)
	}
	return row.State == LedgerStopping || row.State == LedgerClosed, nil
`, `	row, err := o.Ledger.Row(ctx, r.Instance)
	if err != nil {
		return false, ignoreNotFound(err)
	}
	box, err := o.Sandboxes.Sandbox(ctx, r.SandboxKey)
	if err == nil && box.Instance == r.Instance && box.Reclaiming != "" {
		return true, nil
	}
	return row.State == LedgerStopping || row.State == LedgerClosed, nil
`),
	one("a hold that comes too late takes back any hold", operate,
		`	_, err = o.Runs.Update(ctx, key, SetHold{Hold: former, Was: &mine})
`, `	_, _ = former, mine
	_, err = o.Runs.Update(ctx, key, SetHold{})
`),
}
