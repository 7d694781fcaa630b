package core

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"time"
)

// Session is the use case of the hosts: what they do with the runs of their threads,
// from start to end (DESIGN 9). Every operation may be repeated with the same ids.
//
// Order: the thread's writer lease, then the instance record, as reclaim does.
type Session struct {
	Launcher    *Launcher // whose stores are the session's too
	Binds       SessionTransactions
	Controls    Controls
	Log         *LogWriter
	Spool       Spool      // nil: the sandbox alone knows what the log lacks
	Nudger      Nudger     // nil: a cancelled run waits for the next sweep
	Grants      GetGranter // nil: nobody reads the log's objects by himself
	Prober      Prober
	Notes       Notes
	Keeper      ThreadKeeper  // nil: no checkpoints are kept
	Definitions Definitions   // nil: only those that requests bring
	History     ThreadHistory // what List reads
	Functions   Functions     // nil: no hook is told, and a start that has a ready hook fails
	Secrets     Secrets       // nil: no secret has a value of its own
	ToolsURL    AgentURL      // where agents reach the tools function; nil: there is none
	// HostFunctions are the functions that definitions may name as tools and hooks.
	HostFunctions []string
	// Checkpoint says which ends of runs store the workspace where neither run nor
	// definition says.
	Checkpoint CheckpointPolicy
	Setups     Setups // nil: definitions that need a set-up are refused
	Provider   string
	Cluster    string // where a definition names none
	Places     Places // where a definition may name others; the zero value: anywhere
	Logger     *slog.Logger

	// Held holds a session with the sandbox of each run that is followed; nil: each question
	// is a session of its own, as functions need it, which may end after each call.
	Held PageHolder

	tails     tails
	fileTails tails
	follows   heldTails
}

// ThreadKeeper is what a session needs of the keeper of checkpoints.
type ThreadKeeper interface {
	Save(ctx context.Context, q SaveRequest) (StepReport, error)
	Restore(ctx context.Context, q RestoreRequest) (StepReport, error)
	PutConversation(ctx context.Context, key ThreadKey, seen int64, data []byte, folded []RunID) (Conversation, error)
}

var _ ThreadKeeper = (*Keeper)(nil)

// ThreadHistory lists the runs of threads.
type ThreadHistory interface {
	// ThreadRuns lists the runs of a thread, newest first. It lags.
	ThreadRuns(ctx context.Context, key ThreadKey) ([]RunKey, error)
}

func (s *Session) log() *slog.Logger {
	if s.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return s.Logger
}

func (s *Session) hooks() hookTeller { return hookTeller{s.Functions, s.log()} }

func (s *Session) runs() Runs     { return s.Launcher.Runs }
func (s *Session) limits() Limits { return s.Launcher.Limits }

func (s *Session) spends() Spends {
	l := s.Launcher
	return Spends{Runs: l.Runs, Ledger: l.Ledger, Tasks: l.Describer, Meters: l.Meters, Limits: l.Limits}
}

// mine reads a run that host has the claim of.
func (s *Session) mine(ctx context.Context, op string, k RunKey, host string) (Run, error) {
	if err := cmp.Or(checkRun(k), checkHost(host)); err != nil {
		return Run{}, err
	}
	r, err := s.runs().Run(ctx, k)
	switch {
	case err != nil:
		return Run{}, unknownRun(op, k, err)
	case r.ClaimNonce != host:
		return Run{}, refusedRun(op, k, claimLost)
	}
	return r, nil
}

// lostClaim turns the refusal of a write under a claim into the claim's loss.
func lostClaim(op string, k RunKey, err error) error {
	switch refusalOf(err) {
	case "epoch", "not-running", "terminal", "ending":
		return refusedRun(op, k, claimLost)
	}
	return err
}

// keeps reports whether the workspace of a run is kept at its end, and so whether its
// thread has one writer.
func (s *Session) keeps(r Run) bool {
	policy := cmp.Or(r.CheckpointPolicy, s.Checkpoint)
	return s.Keeper != nil && (policy == CheckpointFinished || policy == CheckpointAlways)
}

// hostThread is the thread of a run.
func hostThread(r Run) ThreadKey { return ThreadKey{r.Tenant, r.Thread} }

// hostOwner is as whom the host of a run writes its thread.
func hostOwner(r Run) string { return OwnerRun + string(r.RunKey.Run) }

// system reports whether a lease's owner is no host, and ends by itself soon.
func system(owner string) bool {
	return strings.HasPrefix(owner, OwnerReclaim) || strings.HasPrefix(owner, OwnerCollect)
}

// lease takes the writer lease of a run's thread for its host, or renews it. It names
// what is to be waited for, if anything; another writer refuses it. What a dead reclaim
// has marked stays its own: the reclaim comes back. The thread as it was read a moment ago
// spares a reading: to take the lease is conditional all the same.
func (s *Session) lease(ctx context.Context, r Run, key SandboxKey, known *Thread) (th Thread, waiting string, err error) {
	threads := s.Launcher.Threads
	if known != nil {
		th = *known
	} else if th, err = threads.Thread(ctx, hostThread(r)); err != nil {
		return Thread{}, "", err
	}
	now := nowMillis()
	if waiting, err = s.held(ctx, th, r, key, now); waiting != "" || err != nil {
		return Thread{}, waiting, err
	}
	if th.Lease.Owner == hostOwner(r) && th.Lease.Until > now.Add(LeaseLife*2/3) {
		return th, "", nil // taken or renewed a moment ago; what is written under it says its fence
	}
	th, err = threads.UpdateThread(ctx, hostThread(r), AcquireLease{Owner: hostOwner(r), Now: now, Until: leaseUntil(now), Held: th.Lease.Owner == hostOwner(r) && th.Lease.Live(now)})
	if refusalOf(err) == "writer-conflict" {
		return Thread{}, "writer", nil // somebody was faster; who, the next call tells
	}
	return th, "", err
}

// held tells whether the lease is not to be taken now.
func (s *Session) held(ctx context.Context, th Thread, r Run, key SandboxKey, now Millis) (waiting string, err error) {
	switch {
	case th.Lease.Owner == hostOwner(r), th.Lease.Owner == "":
		return "", nil
	case th.Lease.Live(now) && system(th.Lease.Owner):
		return "writer", nil
	case th.Lease.Live(now):
		return "", refuse("lease", "thread "+th.ThreadKey.String(), "writer-conflict")
	case !system(th.Lease.Owner):
		return "", nil
	}
	box, err := s.Launcher.Sandboxes.Sandbox(ctx, key)
	if err == nil && box.Reclaiming != "" {
		return "reclaim", nil
	}
	return "", ignoreNotFound(err)
}

// giveBack gives the writer lease of a run's thread back: a courtesy, for it ends by
// itself. A capture that is under way is fenced off by it.
func (s *Session) giveBack(ctx context.Context, r Run, as phase) {
	if s.Keeper == nil {
		return
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	_, err := s.Launcher.Threads.UpdateThread(within, hostThread(r), ReleaseLease{Owner: hostOwner(r)})
	if ignoreRefused(err) != nil {
		s.log().WarnContext(ctx, "give back lease", "phase", string(as), "run", r.RunKey.String(), "err", err)
	}
}

// Attach takes a run for a host, or finds that the host has it. A viewer that cannot
// drive may still read.
func (s *Session) Attach(ctx context.Context, q AttachRequest) (RenewReport, error) {
	if err := cmp.Or(checkRun(q.RunKey), checkHost(q.Host)); err != nil {
		return RenewReport{}, err
	}
	r, err := s.attach(ctx, q)
	if err != nil || !s.keeps(r) {
		return RenewReport{Run: viewOf(r)}, err
	}
	report := RenewReport{Run: viewOf(r)}
	_, report.Writer, err = s.lease(ctx, r, r.SandboxKey, nil)
	if why := refusalOf(err); why != "" {
		report.Writer, err = why, nil
	}
	return report, err
}

// attach is the claim. A record that moves under it is read again.
func (s *Session) attach(ctx context.Context, q AttachRequest) (Run, error) {
	for range rowTries {
		r, err := s.runs().Run(ctx, q.RunKey)
		if err != nil {
			return Run{}, unknownRun("attach", q.RunKey, err)
		}
		if why := unattachable(r); why != "" {
			return Run{}, refusedRun("attach", q.RunKey, why)
		}
		now := nowMillis()
		until := now.Add(s.limits().Attachment)
		var t Transition = Attach{Seen: r.Epoch, Nonce: q.Host, Now: now, Until: until, Takeover: q.Takeover}
		if r.ClaimNonce == q.Host {
			t = Renew{Epoch: r.Epoch, Until: until} // it is the host's own
		}
		r, err = s.runs().Update(ctx, q.RunKey, t)
		switch why := refusalOf(err); why {
		case "":
			return r, err
		case "attached-elsewhere":
			return Run{}, refusedRun("attach", q.RunKey, why)
		}
	}
	return Run{}, refusedRun("attach", q.RunKey, "attached-elsewhere")
}

// unattachable names why nobody can drive the run, or "".
func unattachable(r Run) string {
	return failing(
		check{!r.Status.Terminal(), "terminal-run"},
		check{r.CancelRequested == 0, "cancel-requested"},
		check{r.Ending == nil && r.Status == Running, "too-late"},
	)
}

// Renew keeps a host's attachment and its thread's writer lease, and tells what the
// host should know. A recorded cancel is answered, and nothing is written.
func (s *Session) Renew(ctx context.Context, q HostRequest) (RenewReport, error) {
	r, err := s.mine(ctx, "renew", q.RunKey, q.Host)
	switch {
	case err != nil:
		return RenewReport{}, err
	case r.CancelRequested != 0 && !r.Status.Terminal():
		return RenewReport{Run: viewOf(r), Cancel: true}, nil
	case r.Status != Running || r.Ending != nil:
		return RenewReport{}, refusedRun("renew", q.RunKey, claimLost)
	}
	r, err = s.runs().Update(ctx, q.RunKey, Renew{Epoch: r.Epoch, Until: nowMillis().Add(s.limits().Attachment)})
	if refusalOf(err) == "cancel-requested" {
		if r, err = s.runs().Run(ctx, q.RunKey); err == nil {
			return RenewReport{Run: viewOf(r), Cancel: true}, nil
		}
	}
	if err == nil && s.keeps(r) {
		err = s.renewLease(ctx, r)
	}
	if err != nil {
		return RenewReport{Run: viewOf(r)}, lostClaim("renew", q.RunKey, err)
	}
	spend := s.spend(ctx, &r)
	return RenewReport{Run: viewOf(r), Spend: spend}, nil
}

// spend is what a renewal tells of the run's cost, where a cap is set. What cannot be told
// keeps no host from its claim.
func (s *Session) spend(ctx context.Context, r *Run) *SpendView {
	return askPriced(ctx, s, r, func(r Run) (*SpendView, error) { return s.spends().view(ctx, r, nowMillis()) })
}

// renewLease keeps the writer lease. Where it has lapsed and nobody took it, it is taken
// again: finish sees by the head whether somebody wrote in between.
func (s *Session) renewLease(ctx context.Context, r Run) error {
	now := nowMillis()
	_, err := s.Launcher.Threads.UpdateThread(ctx, hostThread(r), AcquireLease{Owner: hostOwner(r), Now: now, Until: leaseUntil(now), Held: true})
	if refusalOf(err) == "writer-conflict" {
		return refuse("renew", "thread "+hostThread(r).String(), "writer-lost")
	}
	return err
}

// Detach lets a run's host leave: one write, and then the lease is given up. It refuses
// nothing: a host that has no claim any more has left already.
func (s *Session) Detach(ctx context.Context, q HostRequest) (RenewReport, error) {
	if err := cmp.Or(checkRun(q.RunKey), checkHost(q.Host)); err != nil {
		return RenewReport{}, err
	}
	r, err := s.runs().Run(ctx, q.RunKey)
	if err != nil {
		return RenewReport{}, unknownRun("detach", q.RunKey, err)
	}
	if r.ClaimNonce == q.Host && r.Status == Running && r.CancelRequested == 0 && r.Row != RowDetached {
		left, err := s.runs().Update(ctx, q.RunKey, Detach{Epoch: r.Epoch, Now: nowMillis()})
		switch {
		case Refused(err):
			if r, err = s.runs().Run(ctx, q.RunKey); err != nil {
				return RenewReport{}, err
			}
		case err != nil:
			return RenewReport{}, err
		default:
			r = left
		}
	}
	s.giveWay(ctx, q.RunKey)()
	if r.ClaimNonce == q.Host && r.Row == RowDetached {
		s.giveBack(ctx, r, phaseDisconnect)
	}
	return RenewReport{Run: viewOf(r), Cancel: r.CancelRequested != 0 && !r.Status.Terminal()}, nil
}

// Interrupt pauses a run for a human: nothing is finished or stored, and the lease is
// given up.
func (s *Session) Interrupt(ctx context.Context, q HostRequest) (RenewReport, error) {
	r, err := s.mine(ctx, "interrupt", q.RunKey, q.Host)
	if err != nil {
		return RenewReport{}, err
	}
	if r.Status != Interrupted {
		now := nowMillis()
		over := now.Add(seconds(r.PauseSeconds, s.limits().PauseTTL))
		if at := s.reached(ctx, &r, now); at != 0 {
			over = min(over, at) // a pause costs too
		}
		t := Interrupt{Epoch: r.Epoch, Now: now, Until: max(now+1, over.Add(-s.limits().ExpiringBefore))}
		if r, err = s.runs().Update(ctx, q.RunKey, t); err != nil {
			return RenewReport{}, lostClaim("interrupt", q.RunKey, err)
		}
	}
	s.giveWay(ctx, q.RunKey)()
	s.giveBack(ctx, r, phasePause)
	return RenewReport{Run: viewOf(r), Cancel: r.CancelRequested != 0}, nil
}

// reached is when a run that is about to be paused may have cost a cap; zero where none
// applies. Its price is asked for now, since none is noted during a pause.
func (s *Session) reached(ctx context.Context, r *Run, now Millis) Millis {
	return askPriced(ctx, s, r, func(r Run) (Millis, error) { return s.spends().reached(ctx, r, now) })
}

// askPriced asks something about the spending of a run, whose price is noted first if it can
// be known. What cannot be told is logged.
func askPriced[A any](ctx context.Context, s *Session, r *Run, ask func(Run) (A, error)) A {
	priced, err := s.spends().price(ctx, *r)
	if err == nil {
		*r = priced
	}
	answer, otherErr := ask(*r)
	if err := cmp.Or(err, otherErr); err != nil {
		s.log().WarnContext(ctx, "tell spending", "run", r.RunKey.String(), "err", err)
	}
	return answer
}

// Get reads a run.
func (s *Session) Get(ctx context.Context, q GetRequest) (RunView, error) {
	if err := checkRun(q.RunKey); err != nil {
		return RunView{}, err
	}
	r, err := s.runs().Run(ctx, q.RunKey)
	return viewOf(r), unknownRun("get", q.RunKey, err)
}

// How a list is read.
const (
	listed       = 100 // runs that one tells at most
	listedAtOnce = 20  // records that are read at a time
)

// List tells the newest runs of a thread, of those that have not ended where only they are
// asked for. More says that there may be older ones.
func (s *Session) List(ctx context.Context, q ListRunsRequest) (ListRunsReport, error) {
	if err := checkThread(q.ThreadKey); err != nil {
		return ListRunsReport{}, err
	}
	keys, err := s.History.ThreadRuns(ctx, q.ThreadKey)
	if err != nil {
		return ListRunsReport{}, err
	}
	out := ListRunsReport{Runs: []RunView{}}
	for len(keys) > 0 && len(out.Runs) < listed {
		n := min(len(keys), listedAtOnce, listed-len(out.Runs))
		runs, err := s.threadRuns(ctx, keys[:n], q)
		if err != nil {
			return ListRunsReport{}, err
		}
		out.Runs, keys = append(out.Runs, runs...), keys[n:]
	}
	out.More = len(keys) > 0
	return out, nil
}

// threadRuns reads those runs that a list is to tell, in their order.
func (s *Session) threadRuns(ctx context.Context, keys []RunKey, q ListRunsRequest) ([]RunView, error) {
	runs, errs := make([]Run, len(keys)), make([]error, len(keys))
	pool(listedAtOnce, len(keys), func(i int) { runs[i], errs[i] = s.runs().Run(ctx, keys[i]) })
	var out []RunView
	for i, r := range runs {
		if ignoreNotFound(errs[i]) != nil {
			return nil, errs[i]
		}
		if errs[i] == nil && r.Thread == q.Thread && !(q.Active && r.Status.Terminal()) {
			out = append(out, viewOf(r))
		}
	}
	return out, nil
}

// SessionTimeout is how long one operation may take: a long poll, or an agent's end and
// the last of its journal.
const SessionTimeout = time.Minute

// execWithin bounds one exec of a session's step: the caller asks again.
const execWithin = 20 * time.Second
