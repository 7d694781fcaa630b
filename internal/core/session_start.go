package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
)

// starting is a start on its way.
type starting struct {
	q          StartRequest
	definition Definition
	material   KeyMaterial
	key        SandboxKey
	run        Run
	noted      *Thread // as it was when the run was noted on it, in this call
	thread     Thread  // under the lease; zero where no checkpoints are kept
	tools      []ToolBinding
	secrets    map[string]string // resolved, once it has come to that
}

// Start begins a run, or goes on with its start: the record, attached; the writer lease;
// the sandbox; what it had of a workspace; the agent. It waits for nothing that takes
// long: asked again it goes on.
func (s *Session) Start(ctx context.Context, q StartRequest) (StartReport, error) {
	st, err := s.plan(ctx, q)
	if err != nil {
		return StartReport{}, err
	}
	if err := s.begin(ctx, st); err != nil {
		return StartReport{}, err
	}
	for _, step := range []func(context.Context, *starting) (string, error){s.write, s.ensure, s.enter, s.price, s.clone, s.restore, s.setup, s.snapshot, s.readyHook, s.startAgent} {
		if st.run.Start.ReadyAt != 0 {
			break
		}
		waiting, err := step(ctx, st)
		if failed, ok := errors.AsType[*startError](err); ok {
			return StartReport{}, s.giveUp(ctx, st.run, failed)
		}
		if refusalOf(err) == "start" { // another call of this host has gone on with it
			waiting, err = "sandbox", nil
		}
		if err != nil {
			return StartReport{}, lostClaim("start", q.RunKey, err)
		}
		if waiting != "" {
			return st.report(Provisioning, waiting), nil
		}
	}
	return st.report(Ready, ""), nil
}

func (st *starting) report(state StartState, waiting string) StartReport {
	r := st.run
	out := StartReport{State: state, Waiting: waiting, RestoredFrom: r.Start.Restored, Run: viewOf(r)}
	if r.Start.LostRun != "" {
		out.Lost = &LostWorkspace{r.Start.LostRun, r.Start.LostWhy}
	}
	out.Ensured = st.ensured()
	return out
}

// ensured is how the run came to its sandbox; empty while it has none.
func (st *starting) ensured() Ensured {
	switch r := st.run; {
	case r.TaskARN == "":
		return ""
	case r.Start.Resumed:
		return EnsuredResumed
	case r.Start.Native != "":
		return EnsuredNative
	}
	return EnsuredCreated
}

// invalidTask is the code of a task that is not as its definition, or its host, says.
const invalidTask = "invalid-task"

// startError is why a start cannot be gone on with: the run ends.
type startError struct {
	code string
	err  error
}

func (e *startError) Error() string { return e.code + ": " + e.err.Error() }
func (e *startError) Unwrap() error { return e.err }

// giveUp ends a run whose start failed, and reports the first error.
func (s *Session) giveUp(ctx context.Context, r Run, failed *startError) error {
	message := failed.err.Error()
	why := EndRun{Reason: EndFailed, Error: &RunError{Code: failed.code, Message: Clip(message, maxMessage)}}
	if _, err := s.end(ctx, r, why); err != nil {
		s.log().WarnContext(ctx, "end run", "phase", "error", "run", r.RunKey.String(), "err", err)
	}
	s.hooks().tell(ctx, HookError, r, ErrorDetail(*why.Error))
	return &RefusedError{Op: "start", Record: "run " + r.RunKey.String() + ": " + message, Why: failed.code}
}

// unknownDefinition refuses a start by name, and says by which.
func unknownDefinition(q StartRequest) error {
	return refuse("start", fmt.Sprintf("run %s: want a definition that the installation keeps, got %q", q.RunKey, q.DefinitionName), "unknown-definition")
}

// plan checks a request and finds its definition.
func (s *Session) plan(ctx context.Context, q StartRequest) (*starting, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	st := &starting{q: q}
	switch {
	case q.Definition != nil:
		st.definition = *q.Definition
	case s.Definitions == nil:
		return nil, unknownDefinition(q)
	default:
		name, version, _ := ParseDefinitionRef(q.DefinitionName) // check has read it
		d, err := s.Definitions.Definition(ctx, name, version)
		if isNotFound(err) {
			return nil, unknownDefinition(q)
		}
		if err != nil {
			return nil, err
		}
		st.definition = d
	}
	var err error
	if st.tools, err = st.definition.bind(q.Tools); err != nil {
		return nil, err
	}
	if err := cmp.Or(s.listed(st.definition), s.placed(st.definition), s.converses(st)); err != nil {
		return nil, err
	}
	st.material, err = st.definition.material(s.Provider, ThreadKey{q.Tenant, q.Thread}, q.Run)
	st.key = st.material.Key()
	return st, err
}

// placed refuses a cluster that nobody may ask about: what is begun there could not be
// ended.
func (s *Session) placed(d Definition) error {
	if _, err := s.Places.Spoke(cmp.Or(d.Task.Cluster, s.Cluster)); err != nil {
		return invalid("invalid-definition", "task.cluster: %v", err)
	}
	return nil
}

// converses refuses to keep a workspace beside a conversation that nobody keeps: a
// checkpoint must match the conversation that it is of.
func (s *Session) converses(st *starting) error {
	policy := cmp.Or(st.definition.Checkpoint, s.Checkpoint)
	if st.q.Conversation == ConversationNone && s.keeps(Run{CheckpointPolicy: policy}) {
		return invalid("invalid-definition", "checkpoint %s: want a host that keeps the conversation, or the policy none", policy)
	}
	return nil
}

// begin puts the run's record, or finds it as this host's own and renews it.
func (s *Session) begin(ctx context.Context, st *starting) error {
	r, err := s.runs().Run(ctx, st.q.RunKey)
	if isNotFound(err) {
		if err := s.mayLaunch(ctx, st); err != nil {
			return err
		}
		return s.create(ctx, st)
	}
	if err != nil {
		return err
	}
	if st.run, err = r, s.own(st.q, r); err != nil {
		return err
	}
	if err := s.sameDefinition(ctx, st); err != nil {
		return err
	}
	if r.TaskARN == "" {
		if err := s.mayLaunch(ctx, st); err != nil {
			return err
		}
	}
	if now := nowMillis(); r.AttachedUntil > now.Add(s.limits().Attachment*2/3) {
		return nil // renewed a moment ago; whatever this call writes is conditional on the claim
	}
	renewed, err := s.runs().Update(ctx, r.RunKey, Renew{Epoch: r.Epoch, Until: nowMillis().Add(s.limits().Attachment)})
	if err != nil {
		return lostClaim("start", r.RunKey, err)
	}
	st.run = renewed
	return nil
}

// own tells why a record that is there is not the start that is asked for.
func (s *Session) own(q StartRequest, r Run) error {
	why := failing(
		check{!r.Status.Terminal(), "terminal-run"},
		check{r.ClaimNonce == q.Host, "attached-elsewhere"},
		check{r.CancelRequested == 0, "cancel-requested"},
		check{r.Status == Running && r.Ending == nil, "too-late"},
		check{r.Thread == q.Thread, "another-thread"},
		check{r.Start.Parent == q.Parent, "another-parent"},
	)
	if why != "" {
		return refusedRun("start", q.RunKey, why)
	}
	return nil
}

// sameDefinition has a start go on with the definition that it was begun with: by the name
// alone that is the version of then, whatever is the newest by now. Two definitions would
// make two sandboxes for one run.
func (s *Session) sameDefinition(ctx context.Context, st *starting) error {
	if st.run.Definition != st.definition.Ref() && st.q.Definition == nil {
		name, version, _ := ParseDefinitionRef(st.q.DefinitionName) // check has read it
		begun, _, err := ParseDefinitionRef(st.run.Definition)
		if err == nil && version == 0 && begun == name {
			q := st.q
			q.DefinitionName = st.run.Definition
			again, err := s.plan(ctx, q)
			if err != nil {
				return err
			}
			st.definition, st.tools, st.material, st.key = again.definition, again.tools, again.material, again.key
		}
	}
	if st.run.Definition != st.definition.Ref() || st.run.Start.Key != "" && st.run.Start.Key != st.key {
		return refusedRun("start", st.q.RunKey, "another-definition")
	}
	return nil
}

// mayLaunch refuses to ask for anything that costs money while the installation is frozen,
// or its tenant has spent its month's cap. A meter that cannot be read refuses nothing.
func (s *Session) mayLaunch(ctx context.Context, st *starting) error {
	control, err := s.Controls.Control(ctx)
	if err == nil && control.Frozen {
		return refusedRun("start", st.q.RunKey, "frozen")
	}
	if err != nil {
		return err
	}
	spending, metered, err := s.spends().tenant(ctx, st.q.Tenant, nowMillis())
	switch {
	case err != nil:
		s.log().WarnContext(ctx, "read meter", "tenant", string(st.q.Tenant), "err", err)
	case metered && spending.over(s.limits().TenantSpendCap):
		return refuse("start", "tenant "+string(st.q.Tenant), string(EndSpendCap))
	}
	return nil
}

// price finds out what the run's task costs, where a cap is set. Without it the run goes
// on: nothing is stopped for a price that is not known.
func (s *Session) price(ctx context.Context, st *starting) (waiting string, err error) {
	r, err := s.spends().price(ctx, st.run)
	switch {
	case err == nil:
		st.run = r
	case Refused(err):
		return "", err
	default:
		s.log().WarnContext(ctx, "price task", "run", st.run.RunKey.String(), "err", err)
	}
	return "", nil
}

func (s *Session) create(ctx context.Context, st *starting) error {
	d := st.definition
	r, err := s.Launcher.record(RunRequest{
		RunKey: st.q.RunKey, Thread: st.q.Thread, HostNonce: st.q.Host, Definition: d.Ref(),
		TTLSeconds: d.RunTTLSeconds, SpendCap: DollarsOf(d.SpendCapUSD), Reclaim: d.reclaims(), OnLapse: d.lapse(), Checkpoint: cmp.Or(d.Checkpoint, s.Checkpoint),
		PauseSeconds: d.PauseTTLSeconds, Capture: d.capture(),
		Tools: st.tools, Watched: d.FileEvents.Enabled, Hooks: d.Hooks, Snapshots: d.Snapshots, IdleSeconds: d.IdleTTLSeconds, PublicIP: d.Task.AssignPublicIP,
	})
	r.Start.Hosted, r.Start.Key = true, st.key
	if err == nil {
		st.noted, err = s.noteRun(ctx, r)
	}
	switch {
	case err != nil:
		return err
	case st.q.Parent != "":
		err = s.goOn(ctx, st, r)
	default:
		st.run, err = s.runs().Create(ctx, r)
	}
	if refusalOf(err) == "terminal" {
		return refusedRun("start", st.q.RunKey, "terminal-run")
	}
	return err
}

// noteRun writes that a run is about to begin on its thread, where anything of threads is
// kept: from then on nobody deletes it as unused.
func (s *Session) noteRun(ctx context.Context, r Run) (*Thread, error) {
	if s.Keeper == nil {
		return nil, nil
	}
	th, err := s.Launcher.Threads.UpdateThread(ctx, hostThread(r), NoteRun{Run: r.RunKey.Run, Now: nowMillis()})
	if err != nil {
		return nil, err
	}
	return &th, nil
}

// write makes the run's host the writer of its thread, where checkpoints are kept.
func (s *Session) write(ctx context.Context, st *starting) (waiting string, err error) {
	if !s.keeps(st.run) {
		return "", nil
	}
	st.thread, waiting, err = s.lease(ctx, st.run, st.key, st.noted)
	return waiting, err
}

// ensure gives the run a sandbox: the thread's own, where it is there and clean, else a
// new one. No lock is needed: the transactions decide.
func (s *Session) ensure(ctx context.Context, st *starting) (waiting string, err error) {
	if st.run.TaskARN != "" {
		return "", nil
	}
	waiting, err = s.sandbox(ctx, st)
	if s.keeps(st.run) && (waiting != "" || Refused(err)) {
		s.giveBack(ctx, st.run, phasePause) // what is waited for may need it
	}
	return waiting, err
}

func (s *Session) sandbox(ctx context.Context, st *starting) (waiting string, err error) {
	box, err := s.Launcher.Sandboxes.Sandbox(ctx, st.key)
	switch {
	case isNotFound(err):
		return s.launch(ctx, st)
	case err != nil:
		return "", err
	case box.Material != st.material:
		return "", refuse("start", "sandbox "+string(st.key), "another-key")
	case !replaceable(box):
		return "reclaim", nil
	case box.LatestRun == st.run.RunKey.Run:
		return "launch", nil // it was bound since the record was read
	}
	latest, err := s.runs().Run(ctx, RunKey{Tenant: st.q.Tenant, Run: box.LatestRun})
	switch {
	case ignoreNotFound(err) != nil:
		return "", err
	case err == nil && !latest.Status.Terminal():
		return "", refuse("start", "thread "+hostThread(st.run).String(), "thread-busy")
	}
	return s.take(ctx, st, box, latest)
}

// take has the sandbox that is there serve the run, or makes room for another. Of a provider
// there are three answers: it runs, it is gone, or nobody can tell, which changes nothing.
func (s *Session) take(ctx context.Context, st *starting, box Sandbox, latest Run) (waiting string, err error) {
	found, err := s.Launcher.Provider.Resume(ctx, box.place())
	switch {
	case err != nil:
		return "", err
	case found.State == ResumeGone:
		return s.replaceGone(ctx, st, box)
	case found.State != ResumeRunning:
		return "unreachable", nil
	case box.Reclaiming != "":
		return "reclaim", nil
	case box.IdleSince == 0 && !clean(latest): // one that is kept warm was found fit for it
		return "reclaim", nil // what is left of it, nobody knows
	case st.definition.tooOld(box, nowMillis()):
		return "reclaim", s.retire(ctx, box)
	}
	return s.resume(ctx, st, box, latest)
}

// replaceGone makes a sandbox after one that has gone: from its copy, where there is one that
// is not too old. What a run's sandbox is made from is written first, for the record that
// names the copy goes with the old sandbox.
func (s *Session) replaceGone(ctx context.Context, st *starting, box Sandbox) (waiting string, err error) {
	native := box.LatestSnapshot
	if s.Launcher.Snapshots == nil || st.definition.tooOld(box, nowMillis()) {
		native = ""
	}
	if err := s.makeFrom(ctx, st, native); err != nil {
		return "", err
	}
	return s.launch(ctx, st)
}

func (s *Session) makeFrom(ctx context.Context, st *starting, native SnapshotID) error {
	if st.run.Start.Native == native {
		return nil
	}
	start := st.run.Start
	start.Native = native
	return s.note(ctx, st, start)
}

// snapshot takes the copy after the set-up of a sandbox that was made from its definition,
// where the policy says so. Without it the sandbox is as good: what fails is logged.
func (s *Session) snapshot(ctx context.Context, st *starting) (waiting string, err error) {
	r := st.run
	taker := s.Launcher.Snapshots
	if taker == nil || r.Snapshots != SnapshotsAfterSetup || st.ensured() != EnsuredCreated || r.Start.AskedAt != 0 {
		return "", nil
	}
	box, err := s.Launcher.Sandboxes.Sandbox(ctx, r.SandboxKey)
	if err != nil || box.Instance != r.Instance || box.LatestSnapshot != "" {
		return "", ignoreNotFound(err)
	}
	within, cancel := context.WithTimeout(ctx, snapshotWithin)
	defer cancel()
	id, err := taker.Snapshot(within, box, afterSetup)
	if err == nil {
		_, err = s.Launcher.Sandboxes.UpdateSandbox(within, box.Key, NoteSnapshot{box.Instance, r.RunKey.Run, id})
	}
	if err != nil {
		s.log().WarnContext(ctx, "take native snapshot", "run", r.RunKey.String(), "err", fmt.Errorf("%s: %w", afterSetup, err))
	}
	return "", ctx.Err()
}

// clean reports whether the sandbox of an ended run may serve another: its agent ended by
// itself, or never began, or the sandbox has been found fit to be kept.
func clean(r Run) bool { return r.Reclaim == ReclaimIdle || r.Sealed != nil && !r.givenUp() }

// retire has a sandbox that is too old reclaimed. One that is not idle yet is on its way
// there.
func (s *Session) retire(ctx context.Context, box Sandbox) error {
	if box.DueAt == 0 {
		return nil
	}
	return s.Launcher.Queue.Send(ctx, []ReclaimJob{{Tenant: box.Material.Tenant, Key: box.Key, Instance: box.Instance, Kind: JobDue}})
}

// resume passes the sandbox to the run, in one write. A launch that the run had asked
// for before is condemned first.
func (s *Session) resume(ctx context.Context, st *starting, box Sandbox, latest Run) (waiting string, err error) {
	if err := s.condemnFormer(ctx, st.run); err != nil {
		return "", err
	}
	t := Resumed{Run: st.run.RunKey, Epoch: st.run.Epoch, Instance: st.run.Instance, Was: st.run.Start, Sandbox: box, Now: nowMillis()}
	if latest.Checkpoint.Owes() {
		row, err := s.Launcher.Ledger.Row(ctx, box.Instance)
		if err != nil {
			return "", err
		}
		t.Debt = &MoveDebt{
			Run: latest.RunKey, Instance: box.Instance, Older: row.Owed, Outcome: ReclaimInUse, Now: t.Now, ExpiresAt: t.Now.Add(s.limits().Retention),
		}
	}
	err = s.Binds.Resume(ctx, t)
	switch refusalOf(err) {
	case "":
		if err != nil && !isNotFound(err) {
			return "", err
		}
	case "instance", "latest-run", "reclaiming", "task", "row", "not-owed", "state", "debt":
		return "sandbox", nil // another was faster
	default:
		return "", err
	}
	if isNotFound(err) {
		return "sandbox", nil
	}
	st.run, err = s.Launcher.launched(ctx, st.run)
	return "", err
}

func (s *Session) condemnFormer(ctx context.Context, r Run) error {
	if r.Instance == "" {
		return nil
	}
	row, err := s.Launcher.Ledger.Row(ctx, r.Instance)
	if err != nil || row.State != LedgerIntent {
		return ignoreNotFound(err)
	}
	return s.Launcher.condemn(ctx, row, "")
}

// launch asks for a task of the run's own.
func (s *Session) launch(ctx context.Context, st *starting) (waiting string, err error) {
	r, err := s.Launcher.Launch(ctx, st.run, st.material, st.definition.spec(s.Cluster))
	if refused, ok := errors.AsType[*TaskRefusedError](err); ok {
		return "", &startError{invalidTask, refused}
	}
	if errors.Is(err, ErrSnapshotGone) && st.run.Start.Native != "" {
		if err := s.makeFrom(ctx, st, ""); err != nil {
			return "", err
		}
		return s.launch(ctx, st)
	}
	if err == nil {
		st.run = r
	}
	return outrun("start", st.q.Tenant, err)
}

// outrun tells a launch that another was faster than, and that is asked again, from one that
// failed.
func outrun(op string, tenant TenantID, err error) (waiting string, _ error) {
	switch {
	case errors.Is(err, ErrLaunchPending):
		return "launch", nil
	case errors.Is(err, ErrSandboxExists):
		return "sandbox", nil
	}
	switch refusalOf(err) {
	case "exists", "instance", "latest-run", "state", "task", "reclaiming", "head", "fence":
		return "sandbox", nil
	case "quota":
		return "", refuse(op, "tenant "+string(tenant), "quota")
	}
	return "", err
}

// note writes how far the start is.
func (s *Session) note(ctx context.Context, st *starting, start RunStart) error {
	r, err := s.runs().Update(ctx, st.run.RunKey, NoteStart{Epoch: st.run.Epoch, Was: st.run.Start, Start: start})
	if err == nil {
		st.run = r
	}
	return err
}

// restore brings the thread's head back into a sandbox that was made for the run, from its
// definition or from a copy, and notes what the run finds. Once an agent may have begun
// nothing is restored. A copy that is newer than the head is restored over all the same:
// what has not become the head was told as lost, or never was a workspace (SN-18, SN-19).
func (s *Session) restore(ctx context.Context, st *starting) (waiting string, err error) {
	r := st.run
	if !s.keeps(r) || r.Start.AskedAt != 0 || r.Start.Noted {
		return "", nil
	}
	start := r.Start
	start.Noted, start.Head = true, st.thread.Head
	if lost := st.thread.WorkspaceLost; lost != nil {
		start.LostRun, start.LostWhy = lost.Run, lost.Why
	}
	if !r.Start.Resumed && st.thread.Head != "" {
		if waiting, err := s.restoreHead(ctx, st); waiting != "" || err != nil {
			return waiting, err
		}
		start.Restored = st.thread.Head
	}
	return "", s.note(ctx, st, start)
}

func (s *Session) restoreHead(ctx context.Context, st *starting) (waiting string, err error) {
	r := st.run
	report, err := s.Keeper.Restore(ctx, RestoreRequest{
		ThreadKey: hostThread(r), ID: CheckpointOf(r.RunKey.Run), Checkpoint: st.thread.Head, Run: r.RunKey.Run, Owner: hostOwner(r),
		Key: r.SandboxKey, Instance: r.Instance, JobOptions: st.definition.options(),
	})
	switch why := refusalOf(err); {
	case why == "writer-conflict" || why == "writer-lost" || why == "step-busy":
		return "writer", nil
	case why != "":
		return "", &startError{"restore-failed", err}
	case err != nil:
		return "", err
	case report.State == StepFailed:
		return "", &startError{"restore-failed", errors.New(report.Why)}
	case report.State != StepDone:
		return "restore", nil
	}
	return "", nil
}

// startAgent begins the agent, once. Order: that it may begin is written first, under
// the same condition as a decision to end the run, so that of the two one is refused.
func (s *Session) startAgent(ctx context.Context, st *starting) (waiting string, err error) {
	switch err := s.unoccupied(ctx, "start", st.run, ExecOf(ExecSetup, st.run)); {
	case refusalOf(err) == "busy":
		return "busy", nil
	case err != nil:
		return "", err
	}
	env, err := s.secretsOf(ctx, st) // before it may begin: without them it does not
	if err != nil {
		return "", err
	}
	if st.run.Start.AskedAt == 0 {
		start := st.run.Start
		start.AskedAt = nowMillis()
		if err := s.note(ctx, st, start); err != nil {
			return "", err
		}
	}
	side, err := s.side(ctx, st)
	if err != nil {
		return "", err
	}
	plan := st.q.Agent
	agent := JournalStart{
		Run: st.run.RunKey.Run, Nonce: st.run.Nonce, Argv: plan.Argv, Shell: plan.Shell, Dir: cmp.Or(plan.Dir, st.definition.Workspace.Root),
		Env: env, Side: side,
	}
	var input []byte
	if plan.Input != nil {
		input = []byte(*plan.Input)
		agent.Input, agent.InputBytes = true, int64(len(input))
	}
	until, cancel := context.WithTimeout(ctx, execWithin)
	defer cancel()
	if _, err := s.Launcher.Provider.StartAgent(until, targetOf(st.run), agent, input); err != nil {
		return s.unstarted(ctx, st, err)
	}
	start := st.run.Start
	start.ReadyAt = nowMillis()
	return "", s.note(ctx, st, start)
}

// enter looks at the run's new sandbox before anything is tried in it: one that cannot be
// entered yet is waited for, which most calls of a start would find out by trying, and one
// without the definition's container never can be. Whatever else ECS says is found out so.
func (s *Session) enter(ctx context.Context, st *starting) (waiting string, err error) {
	r := st.run
	if begun := r.Start.CloneAt != 0 || r.Start.SetupAt != 0 || r.Start.AskedAt != 0; r.Start.Resumed || begun {
		return "", nil
	}
	tasks, err := s.Launcher.Describer.Describe(ctx, r.Cluster, []string{r.TaskARN})
	switch {
	case err != nil || len(tasks) != 1 || tasks[0].Life != TaskLives:
		return "", nil
	case tasks[0].lacks(r.Container):
		return "", &startError{invalidTask, noContainer(tasks[0], r.Container)}
	case tasks[0].Agents[r.Container].Status == "PENDING":
		return "task", nil
	}
	return "", nil
}

// unstarted tells whether an agent that was not heard of may still begin. Only what the
// sandbox or ECS has said ends the run; a call that was lost is made again.
func (s *Session) unstarted(ctx context.Context, st *starting, err error) (waiting string, _ error) {
	_, isExec := errors.AsType[*ExecError](err)
	_, isScript := errors.AsType[*JournalError](err)
	switch {
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return "task", nil
	case !isExec && !isScript:
		return "", err
	}
	switch d := s.Launcher.diagnose(ctx, st.run, err); {
	case d.Gone:
		return "", &startError{"sandbox-gone", fmt.Errorf("%s: %w", d.Detail, err)}
	case d.Reason == containerUnknown:
		return "", &startError{invalidTask, fmt.Errorf("container %q: %w", st.run.Container, err)}
	case d.Healing == Configuration:
		return "", &startError{"agent-not-started", fmt.Errorf("%s %s: %w", d.Reason, d.Detail, err)}
	}
	return "task", nil
}
