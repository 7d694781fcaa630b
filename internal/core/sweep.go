package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// IndexEntry is a run as a sparse index shows it. The index lags: an entry says
// where to look, never what is.
type IndexEntry struct {
	RunKey
	Row Row
	At  Millis // detachedSince, or the due time
}

// DueSandbox is an instance record or a ledger row as the due index shows it;
// exactly one of Key and Instance is set.
type DueSandbox struct {
	Key      SandboxKey // an idle sandbox
	Instance InstanceID // an open ledger row
	At       Millis
}

// Shards is how many shards each sparse index has (DESIGN 4.1).
const Shards = 8

// ShardOf is the shard of both indexes in which a run stands.
func ShardOf(key RunKey) int {
	return ShardOfKey(KeyToken(string(key.Tenant)) + "#" + KeyToken(string(key.Run)))
}

// ShardOfKey spreads the partition keys of a table's items over the shards of its
// indexes.
func ShardOfKey(id string) int {
	h := fnv.New32a()
	h.Write([]byte(id))
	return int(h.Sum32() % Shards)
}

// RunIndex lists what a sweep has to look at. A listing that failed, on any page,
// is an error and never a shorter listing (I10).
type RunIndex interface {
	// Detached lists a shard's detached runs, oldest first, all pages.
	Detached(ctx context.Context, shard int) ([]IndexEntry, error)
	// Due lists a shard's due rows up to until, inclusive, oldest first, all pages.
	Due(ctx context.Context, shard int, until Millis) ([]IndexEntry, error)
	// Load reads records consistently, in any order; absent ones are left out. Records
	// that are there and cannot be understood come back apart, by themselves: one bad
	// record must not keep a sweep from the others.
	Load(ctx context.Context, keys []RunKey) ([]Run, []Unreadable, error)
}

// Unreadable is a record that this code does not understand: another schema version,
// an unknown status, a member of the wrong kind. Nothing is done about its run.
type Unreadable struct {
	RunKey
	Err error
}

// SandboxIndex lists idle sandboxes and open ledger rows that are due.
type SandboxIndex interface {
	// DueSandboxes lists a shard's due rows up to until, inclusive, oldest first, all
	// pages. A listing that failed is an error (I10).
	DueSandboxes(ctx context.Context, shard int, until Millis) ([]DueSandbox, error)
}

// Sweep is the use case of reap: it looks at every detached run and everything
// that is due, and ends what has ended (DESIGN 5). Overlapping sweeps are harmless.
type Sweep struct {
	Runs      Runs
	Index     RunIndex
	Log       *LogWriter
	Sandboxes Sandboxes
	Ledger    Ledger
	Due       SandboxIndex
	Tasks     TaskDescriber
	Lister    TaskLister
	Prober    Prober
	Journals  JournalDirectory
	Queue     ReclaimQueue
	Controls  Controls
	Breaker   ControlWriter
	Notes     Notes
	Meters    Meters // nil: no tenant has a spend cap
	Cursors   Cursors
	Budget    Budget
	Announcer Announcer       // nil: nobody is told
	Functions Functions       // nil: no hook is told
	Uploader  JournalUploader // nil: every journal comes by the terminal
	Spool     Spool           // nil: nothing of a journal is anywhere but in its sandbox
	Fanout    ShardQueue      // nil: one sweep does everything
	Limits    Limits
	Install   string   // name of the installation, see [StartedBy]
	Provider  string   // whose tasks it audits
	Cluster   string   // in which it audits
	Abroad    []string // clusters of spokes, in which it audits too
	StopLeaks bool     // whether an audit has leaked tasks stopped; otherwise it reports them
	// Checkpoint is the policy of runs that have none of their own; none where it is
	// CheckpointDefault.
	Checkpoint CheckpointPolicy
	Logger     *slog.Logger

	hold *execHold // of the container whose run is driven to its end; nil: of none
}

// SweepMode says what a sweep does with its decisions.
type SweepMode string

// A sweep carries its decisions out; a plan only reports them, writes nothing, and
// is the same code up to the first write; applying a plan carries out those of its
// entries that are decided the same again.
const (
	ModeSweep SweepMode = "sweep"
	ModePlan  SweepMode = "plan"
	ModeApply SweepMode = "apply"
)

// SweepRequest says what to sweep. The zero value is everything.
type SweepRequest struct {
	Mode   SweepMode   `json:"mode,omitempty"`   // zero: ModeSweep
	Runs   []RunKey    `json:"runs,omitempty"`   // only these, without a listing
	Shards []int       `json:"shards,omitempty"` // only these shards
	Plan   []PlanEntry `json:"plan,omitempty"`   // to apply
	// NoProbe leaves out, of a plan, what takes an exec session: a run whose journal would
	// have to be read is reported as unexamined.
	NoProbe bool `json:"noProbe,omitempty"`
}

// PlanEntry is one decision of a plan: what would become of a run, as it was.
type PlanEntry struct {
	RunKey
	Outcome Outcome `json:"outcome"`
	Epoch   int64   `json:"epoch"`
}

// keys are the runs that are asked for by name.
func (q SweepRequest) keys() []RunKey {
	keys := q.Runs
	for _, e := range q.Plan {
		keys = append(keys, e.RunKey)
	}
	return keys
}

// Validate reports the first member that is not as expected.
func (q SweepRequest) Validate() error {
	if q.Mode != "" && q.Mode != ModeSweep && q.Mode != ModePlan && q.Mode != ModeApply {
		return fmt.Errorf("mode: want %s, %s or %s, got %.80q", ModeSweep, ModePlan, ModeApply, q.Mode)
	}
	for _, k := range q.keys() {
		if k.Tenant == "" || k.Run == "" {
			return fmt.Errorf("runs: want a tenant and a run in each entry, got %.80q", k.String())
		}
	}
	for _, shard := range q.Shards {
		if shard < 0 || shard >= Shards {
			return fmt.Errorf("shards: want numbers from 0 to %d, got %d", Shards-1, shard)
		}
	}
	for _, e := range q.Plan {
		if !slices.Contains(Outcomes, e.Outcome) || e.Epoch < 0 {
			return fmt.Errorf("plan: run %s: want an outcome of a sweep and an epoch from 0 on, got %.80q and %d", e.RunKey, e.Outcome, e.Epoch)
		}
	}
	switch {
	case q.NoProbe && q.Mode != ModePlan:
		return fmt.Errorf("noProbe: want it with mode %s only, got %q", ModePlan, q.Mode)
	case len(q.Runs) > 0 && len(q.Shards) > 0:
		return errors.New("want runs or shards, got both")
	case (q.Mode == ModeApply) != (len(q.Plan) > 0):
		return fmt.Errorf("plan: want entries with mode %s and only then, got %d with %q", ModeApply, len(q.Plan), q.Mode)
	case q.Mode == ModeApply && len(q.Runs)+len(q.Shards) > 0:
		return errors.New("plan: want its entries alone, got runs or shards beside them")
	}
	return nil
}

// listing is everything that the indexes showed.
type listing struct {
	runs      []IndexEntry
	sandboxes []DueSandbox
}

// Run carries out one sweep. It returns an error only if it could not read the
// control settings or list; one bad run never fails a sweep.
func (s *Sweep) Run(ctx context.Context, request SweepRequest) (SweepReport, error) {
	begun := time.Now()
	if err := request.Validate(); err != nil {
		return SweepReport{}, fmt.Errorf("sweep: %w", err)
	}
	control, err := s.Controls.Control(ctx)
	if err != nil {
		return SweepReport{}, fmt.Errorf("sweep: %w", err)
	}
	found, err := s.list(ctx, request, MillisOf(begun))
	if err != nil {
		return SweepReport{}, fmt.Errorf("sweep: %w", err)
	}
	report := newReport()
	report.Standing = control.Standing()
	p := policy{
		limits: s.Limits, control: control, acts: control.Acts() && request.Mode != ModePlan, named: len(request.keys()) > 0, unasked: request.NoProbe,
	}
	if s.fansOut(request, found, p) {
		return s.fanOut(ctx, report)
	}
	runs, bad, err := s.load(ctx, found.runs)
	if err != nil {
		return SweepReport{}, fmt.Errorf("sweep: %w", err)
	}
	if p.named {
		report.add(unknownRuns(request.keys(), runs, bad)...)
	}
	for _, b := range bad {
		report.add(RunReport{RunKey: b.RunKey, Outcome: FailedSweep, Error: b.Err.Error()})
	}
	if p.acts && request.Mode != ModeApply {
		s.settle(ctx, found.sandboxes, &report)
		s.resend(ctx, runs, &report)
	}
	runs = s.turn(ctx, runs, p, &report)
	candidates := s.candidates(runs, p, MillisOf(begun), &report)
	p.spending = s.spending(ctx, candidates)
	report.Considered = len(candidates) + len(bad)
	jobs := s.examine(ctx, candidates, p, begun, &report)
	if request.Mode == ModeApply {
		jobs = unchanged(jobs, request.Plan, &report)
	}
	if p.acts {
		entries, notices := s.workAll(ctx, jobs, p, begun)
		report.add(entries...)
		s.announce(ctx, append(report.notices, notices...))
	} else {
		report.add(planned(jobs)...)
	}
	s.log(ctx, report)
	return report, nil
}

// unknownRuns reports those that were asked for by name and are not there.
func unknownRuns(asked []RunKey, runs []Run, bad []Unreadable) []RunReport {
	there := make(map[RunKey]bool, len(runs)+len(bad))
	for _, r := range runs {
		there[r.RunKey] = true
	}
	for _, b := range bad {
		there[b.RunKey] = true
	}
	var out []RunReport
	for _, k := range asked {
		if !there[k] {
			there[k] = true
			out = append(out, RunReport{RunKey: k, Outcome: NotClaimed, Reason: "unknown-run"})
		}
	}
	return out
}

// unchanged keeps the jobs that are as the plan had them; the others are reported
// as not claimed.
func unchanged(jobs []job, plan []PlanEntry, report *SweepReport) []job {
	want := make(map[RunKey]PlanEntry, len(plan))
	for _, e := range plan {
		want[e.RunKey] = e
	}
	return slices.DeleteFunc(jobs, func(j job) bool {
		e := want[j.run.RunKey]
		same := e.Outcome == outcomeOf(j.run, j.decision) && e.Epoch == j.run.Epoch
		if !same {
			report.add(RunReport{RunKey: j.run.RunKey, Outcome: NotClaimed, Reason: "changed since the plan"})
		}
		return !same
	})
}

// candidates are the runs to judge. One that was asked for by name and is none is
// reported with the reason.
func (s *Sweep) candidates(runs []Run, p policy, now Millis, report *SweepReport) []Run {
	return slices.DeleteFunc(runs, func(r Run) bool {
		if candidate(r, now) {
			return false
		}
		if p.named {
			d := decide(r, evidence{}, now, p)
			if d.act != actLeave { // a pause that is not due
				d = decision{outcome: NotClaimed, why: "not-due"}
			}
			report.add(RunReport{RunKey: r.RunKey, Outcome: d.outcome, Reason: d.why})
		}
		return true
	})
}

// ShardQueue takes shards to be swept by invocations of their own.
type ShardQueue interface {
	// SendShards returns an error if any of the shards may not have been taken.
	SendShards(ctx context.Context, shards []int) error
}

// fansOut reports whether there is too much for one sweep: then each shard gets one
// of its own, the same code with a shard list.
func (s *Sweep) fansOut(request SweepRequest, found listing, p policy) bool {
	whole := len(request.keys())+len(request.Shards) == 0
	return s.Fanout != nil && p.acts && whole && len(found.runs) > s.Limits.FanOutAt
}

func (s *Sweep) fanOut(ctx context.Context, report SweepReport) (SweepReport, error) {
	shards := make([]int, Shards)
	for i := range shards {
		shards[i] = i
	}
	if err := s.Fanout.SendShards(ctx, shards); err != nil {
		return SweepReport{}, fmt.Errorf("sweep: %w", err)
	}
	report.FannedOut = len(shards)
	s.log(ctx, report)
	return report, nil
}

// candidate reports whether a sweep has to judge r: detached, or paused and due.
func candidate(r Run, now Millis) bool {
	return r.Status == Running && r.Row == RowDetached ||
		r.Status == Interrupted && (r.Row == RowPause || r.Row == RowCancel) && r.DueAt <= now
}

// list reads the indexes, every shard and page of them.
func (s *Sweep) list(ctx context.Context, request SweepRequest, now Millis) (listing, error) {
	var found listing
	if keys := request.keys(); len(keys) > 0 {
		for _, k := range keys {
			found.runs = append(found.runs, IndexEntry{RunKey: k})
		}
		return found, nil
	}
	shards := request.Shards
	if len(shards) == 0 {
		for shard := range Shards {
			shards = append(shards, shard)
		}
	}
	parts, errs := make([]listing, len(shards)), make([]error, len(shards))
	pool(s.Limits.SweepWidth, len(shards), func(n int) {
		parts[n], errs[n] = s.listShard(ctx, shards[n], now)
	})
	for n, part := range parts {
		if errs[n] != nil {
			return listing{}, errs[n]
		}
		found.runs = append(found.runs, part.runs...)
		found.sandboxes = append(found.sandboxes, part.sandboxes...)
	}
	return found, nil
}

func (s *Sweep) listShard(ctx context.Context, shard int, now Millis) (listing, error) {
	detached, err := s.Index.Detached(ctx, shard)
	if err != nil {
		return listing{}, err
	}
	due, err := s.Index.Due(ctx, shard, now)
	if err != nil {
		return listing{}, err
	}
	sandboxes, err := s.Due.DueSandboxes(ctx, shard, now)
	return listing{runs: slices.Concat(detached, due), sandboxes: sandboxes}, err
}

// load reads the listed records, each once, oldest entry first.
func (s *Sweep) load(ctx context.Context, entries []IndexEntry) ([]Run, []Unreadable, error) {
	slices.SortStableFunc(entries, func(a, b IndexEntry) int { return cmp.Compare(a.At, b.At) })
	order := make(map[RunKey]int, len(entries))
	keys := make([]RunKey, 0, len(entries))
	for _, e := range entries {
		if _, ok := order[e.RunKey]; !ok {
			order[e.RunKey] = len(keys)
			keys = append(keys, e.RunKey)
		}
	}
	if len(keys) == 0 {
		return nil, nil, nil
	}
	runs, bad, err := s.Index.Load(ctx, keys)
	if err != nil {
		return nil, nil, err
	}
	slices.SortFunc(runs, func(a, b Run) int { return cmp.Compare(order[a.RunKey], order[b.RunKey]) })
	return runs, bad, nil
}

// turn moves lapsed attachments and due cancels into the detached index, so that
// they are judged in this very sweep. A sweep that must not write judges them as if.
func (s *Sweep) turn(ctx context.Context, runs []Run, p policy, report *SweepReport) []Run {
	now := nowMillis()
	var due []int
	for i, r := range runs {
		if r.Status == Running && r.DueAt <= now && r.Row.Due() {
			due = append(due, i)
		}
	}
	var mu sync.Mutex
	pool(s.Limits.SweepWidth, len(due), func(n int) {
		turned, err := s.turnOne(ctx, runs[due[n]], p)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			runs[due[n]] = turned
			report.Turned++
		case !Refused(err):
			report.Errors = append(report.Errors, err.Error())
		}
	})
	return runs
}

func (s *Sweep) turnOne(ctx context.Context, r Run, p policy) (Run, error) {
	var t Transition = CancelDue{DueAt: r.DueAt}
	if r.Row == RowLapse {
		t = Lapse{DueAt: r.DueAt, Cancel: r.OnLapse == LapseCancels}
	}
	if !p.acts {
		return t.Apply(r)
	}
	return s.Runs.Update(ctx, r.RunKey, t)
}

// resend sends the reclaim messages of ended runs whose mark is due again: the
// mark is the debt, the message only a reminder (I4).
func (s *Sweep) resend(ctx context.Context, runs []Run, report *SweepReport) {
	now := nowMillis()
	var jobs []ReclaimJob
	for _, r := range runs {
		if r.Status.Terminal() && r.Row == RowReclaim && r.DueAt <= now {
			jobs = append(jobs, jobOf(r))
		}
	}
	s.send(ctx, jobs, report)
}

func (s *Sweep) send(ctx context.Context, jobs []ReclaimJob, report *SweepReport) {
	if len(jobs) == 0 {
		return
	}
	if err := s.Queue.Send(ctx, jobs); err != nil {
		report.Errors = append(report.Errors, err.Error())
		return
	}
	report.Resent += len(jobs)
}

// jobOf is the message for an ended run's mark.
func jobOf(r Run) ReclaimJob {
	kind := JobEnd
	if r.Reclaim == ReclaimIdle {
		kind = JobIdle
	}
	return ReclaimJob{Tenant: r.Tenant, Run: r.RunKey.Run, Key: r.SandboxKey, Instance: r.Instance, Kind: kind}
}

// pool runs do for every index up to n, at most width at a time.
func pool(width, n int, do func(i int)) {
	if width <= 1 {
		for i := range n {
			do(i)
		}
		return
	}
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(width, n) {
		wg.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// log writes one line for each decision, with its evidence, and one for the sweep.
func (s *Sweep) log(ctx context.Context, report SweepReport) {
	for _, e := range report.Runs {
		level := slog.LevelInfo
		if e.Error != "" {
			level = slog.LevelError
		}
		s.Logger.Log(ctx, level, "run", "run", e.RunKey.String(), "outcome", e.Outcome, "status", e.Status,
			"reason", e.Reason, "healing", e.Healing, "planned", e.Planned, "exitCode", e.ExitCode, "err", e.Error)
	}
	for _, text := range report.Errors {
		s.Logger.ErrorContext(ctx, "sweep", "err", text)
	}
	s.Logger.InfoContext(ctx, "sweep", "considered", report.Considered, "probed", report.Probed,
		"turned", report.Turned, "resent", report.Resent, "settled", report.Settled, "outcomes", report.Outcomes)
}
