package core_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// How the original's words are read here, beside the listed cases: a probe that
// throws is an unknown (DESIGN 2: the probe never errs); an expired run is ending,
// where the original records a cancel (I9); two runs of a case that name one sandbox
// have one each, as a sandbox has one live run at most (I7); text chunks are lines of
// the journal.
var _ = exemptVectors(
	reapListed("a listing that failed is an error, never an empty one (DESIGN 5.1, I10)", func(in reapCase) bool { return in.List != "" }),
	reapListed("a sweep has no cap a slow run could hide behind: it looks at every detached run (DESIGN 5.1, 5.4)", reapCase.capped),
	reapListed("a run without a sandbox has nobody to ask: never-started (DESIGN 5.2)", anyRun(func(in reapCase, r reapRun) bool {
		return in.considers(r) && r.SandboxKey == ""
	})),
	reapListed("a sandbox's end is owed with the run's end, in one write, and announced: no installation goes without (DESIGN 4.1, I4, I15)",
		anyRun(func(in reapCase, r reapRun) bool { return in.drives(r) && in.NoReclaim })),
	reapListed("a recorded cancel ends a run, before its age is looked at (DESIGN 5.2), as cancelled (5.10)",
		anyRun(func(in reapCase, r reapRun) bool { return in.considers(r) && r.CancelRequested == true })),
	reapListed("an agent that exits with another status than 0 has failed (DESIGN 5.5)", anyRun(func(in reapCase, r reapRun) bool {
		return in.drives(r) && r.Probe.ExitCode != 0
	})),
	reapListed("no lock, lease or quiet log is waited for: the epoch is the condition of each write (DESIGN 4.4, 5.5, I3)",
		anyRun(func(in reapCase, r reapRun) bool {
			return in.drives(r) && (r.Log.Growing || in.Lock == "throws" || r.Lease != "" || r.MidDrive.LoseLease)
		})),
	reapListed("a fault of ours is no end of the agent: the run stays as it is, and the next sweep goes on from the log's end (DESIGN 5.5, I2, I4)",
		anyRun(func(in reapCase, r reapRun) bool {
			return in.drives(r) && (r.Log.AppendFailsAt > 0 || r.TerminalWrite != "" || strings.HasPrefix(r.Drive.Kind, "throws"))
		})),
	reapListed("how a run ended is its exit status, not what its output says (DESIGN 5.5)", anyRun(func(in reapCase, r reapRun) bool {
		return in.drives(r) && r.Drive.Kind == "run-error"
	})),
	reapListed("a finalisation whose budget is spent is paused, and the run still running (DESIGN 5.5, 5.10)",
		anyRun(func(in reapCase, r reapRun) bool { return in.drives(r) && !in.expired(r) && r.endless() })),
	reapListed("claim and decision to expire are one write (DESIGN 4.1, I9): where it fails, nothing is written",
		anyRun(func(in reapCase, r reapRun) bool { return in.drives(r) && r.CancelWrite != "" })),
	reapListed("an item that carries an epoch is never deleted (I11)", anyRun(func(_ reapCase, r reapRun) bool {
		return slices.ContainsFunc(r.AtClaim, func(m *mutation) bool { return m != nil && m.Delete })
	})),
	reapListed("a claim carries what led to it, epoch and detachedSince as read (DESIGN 4.1, I8): whoever changed them is judged anew by the next sweep",
		anyRun(reapCase.overtaken)),
	reapListed("indexes lag, and say only what to look at (DESIGN 4.1): the record as it is read is no candidate",
		anyRun(func(_ reapCase, r reapRun) bool { return r.Listed != nil })),
)

func reapListed(reason string, rule func(in reapCase) bool) vectorExemption {
	return vectorExemption{file: "reap", cases: unlessQuirk(rule), reason: reason}
}

// anyRun makes a rule about a run one about its case.
func anyRun(rule func(in reapCase, r reapRun) bool) func(in reapCase) bool {
	return func(in reapCase) bool {
		return slices.ContainsFunc(in.Runs, func(r reapRun) bool { return rule(in, r) })
	}
}

// reapCase is one case of reap.
type reapCase struct {
	Now              core.Millis
	DetachedRunTTLMs vectorNumber
	MaxRuns          *vectorNumber
	RunBudgetMs      vectorNumber
	List, Lock       string
	NoReclaim        bool
	Runs             []reapRun
}

type reapRun struct {
	RunID           core.RunID
	ThreadID        core.ThreadID
	Status          core.Status
	StartedAt       core.Millis
	DetachedSince   *core.Millis
	SandboxKey      core.SandboxKey
	CancelRequested any
	DriverEpoch     int64
	Probe           struct {
		State    string
		ExitCode int
		Throws   any
	}
	Drive struct {
		Kind     string
		N, After *int
	}
	Log struct {
		Growing, CloseFails bool
		AppendFailsAt       int
	}
	Lease    string
	AtClaim  []*mutation
	MidDrive struct {
		AfterChunks int
		mutation
		LoseLease bool
	}
	TerminalWrite, CancelWrite, Reclaim string
	Listed                              record
}

// mutation is what somebody else does to a record.
type mutation struct {
	Set    record
	Delete bool
}

func (in reapCase) considers(r reapRun) bool {
	return (r.Status == "" || r.Status == core.Running) && r.DetachedSince != nil
}

func (in reapCase) expired(r reapRun) bool {
	return in.considers(r) && in.old(*r.DetachedSince)
}

func (in reapCase) old(since core.Millis) bool {
	return float64(since) <= float64(in.Now)-float64(in.DetachedRunTTLMs)
}

// overtaken tells whether somebody changes what the claim rests on, though not so
// that the original minds.
func (in reapCase) overtaken(r reapRun) bool {
	return in.drives(r) && slices.ContainsFunc(r.AtClaim, func(m *mutation) bool {
		if m == nil {
			return false
		}
		since, left := m.Set["detachedSince"].(float64)
		_, claimed := m.Set["driverEpoch"]
		_, moved := m.Set["sandboxKey"]
		return claimed || moved || left && (!in.expired(r) || in.old(core.Millis(since)))
	})
}

// drives tells whether a sweep would end the run.
func (in reapCase) drives(r reapRun) bool {
	return in.expired(r) || in.considers(r) && r.Probe.State == "finished" && r.Probe.Throws == nil
}

// capped tells whether the original leaves runs out for their number.
func (in reapCase) capped() bool {
	most, n := 25.0, 0
	if in.MaxRuns != nil {
		most = math.Trunc(float64(*in.MaxRuns))
	}
	for _, r := range in.Runs {
		if in.considers(r) {
			n++
		}
	}
	return n > 0 && !(float64(n) <= most) // what is no number caps all
}

// endless tells whether the driven stream has no end of its own.
func (r reapRun) endless() bool {
	return slices.Contains([]string{"until-abort", "ignores-abort", "throws-on-abort"}, r.Drive.Kind)
}

// lines is how many lines the run's agent has written.
func (r reapRun) lines() int {
	switch {
	case r.Drive.Kind == "empty":
		return 0
	case r.Drive.N != nil:
		return *r.Drive.N
	case r.Drive.After != nil:
		return *r.Drive.After
	}
	return 2
}

// reapResult is what a case wants.
type reapResult struct {
	Considered, Probed int
	Outcomes           map[core.Outcome]int
	Runs               []struct {
		RunID    core.RunID
		Outcome  core.Outcome
		Status   core.Status
		ExitCode *int
		Error    any
	}
	Effects map[core.RunID]reapEffect
	Order   []string
}

type reapEffect struct {
	Probed, Driven bool
	Appended       any
	Closes         int
	Record         record
	Reclaims       []struct {
		RunID      core.RunID
		SandboxKey core.SandboxKey
	}
}

// TestReapVectors runs one sweep over the runs of each case.
func TestReapVectors(t *testing.T) {
	compareVectors(t, "reap", func(t *testing.T, c vectorCase) error {
		var in reapCase
		var want reapResult
		c.decode(t, &in, &want)
		return inBubble(t, func(t *testing.T) error {
			w := newReapWorld(t, in)
			report, err := w.reaper().Run(t.Context(), core.SweepRequest{})
			if err != nil {
				return err
			}
			return errors.Join(w.compareReport(report, want), w.compareEffects(want))
		})
	})
}

// vectorWorld is a world at a time of the vectors.
type vectorWorld struct{ *world }

func newVectorWorld(t *testing.T, at core.Millis) *vectorWorld {
	time.Sleep(time.Until(at.Time()))
	w := newWorld(t)
	w.limits.RunTTL = 100 * 365 * 24 * time.Hour
	return &vectorWorld{w}
}

// detachedRun is a run that a host began and left now.
func (w *vectorWorld) detachedRun(run core.RunID) core.Run {
	return core.Run{
		RunKey: key(string(run)), Thread: core.ThreadID("thread-" + run), Status: core.Running, StartedAt: now(),
		Row: core.RowDetached, DetachedSince: now(), Epoch: 1, ClaimNonce: "host", Nonce: core.NewJournalNonce(),
		Reclaim: core.ReclaimEnd, Provider: "fargate", SandboxKey: core.SandboxKey("k-" + run), Instance: core.InstanceID("i-" + run),
		Container: "agent", Cluster: "c",
	}
}

// launchSeeded puts a run with its task, in which its agent has begun.
func (w *vectorWorld) launchSeeded(r core.Run) core.Run {
	w.t.Helper()
	view := w.fleet.View(w.store.Process)
	arn, err := view.Start(w.t.Context(), core.TaskSpec{Token: string(r.Instance)})
	if err != nil {
		w.t.Fatal(err)
	}
	r.TaskARN = arn
	w.store.SeedLaunched(r)
	if _, err := view.StartAgent(w.t.Context(), core.ExecTarget{TaskARN: arn}, core.JournalStart{Run: r.RunKey.Run, Nonce: r.Nonce}, nil); err != nil {
		w.t.Fatal(err)
	}
	return r
}

// endedRecord is r after its end at that time, its sandbox's end still owed.
func endedRecord(r core.Run, status core.Status, at core.Millis) core.Run {
	sum, err := core.LogSHA256(r)
	if err != nil {
		panic(err) // the log of a new record is empty
	}
	r.Status, r.FinishedAt, r.Transcript = status, at, &core.Transcript{Bytes: r.LogEnd, SHA256: sum, Complete: true}
	r.Row, r.DueAt, r.ReclaimSince = core.RowReclaim, at+1, at
	return r
}

func linesOf(text string) []string { return slices.Collect(strings.Lines(text)) }

// reapWorld is the world of a case. It stands between the sweep and the stores,
// fails as told, lets others act in between, and notes what the sweep does.
type reapWorld struct {
	*vectorWorld
	in     reapCase
	by     map[core.RunID]reapRun
	others *scripted
	events map[core.RunID][]string // claim, terminal, reclaim, as they happen
	probed map[core.RunID]int
	sent   map[core.RunID][]core.ReclaimJob
}

func newReapWorld(t *testing.T, in reapCase) *reapWorld {
	w := &reapWorld{
		vectorWorld: newVectorWorld(t, in.Now), in: in, by: map[core.RunID]reapRun{},
		events: map[core.RunID][]string{}, probed: map[core.RunID]int{}, sent: map[core.RunID][]core.ReclaimJob{},
	}
	w.others = &scripted{t: t, store: w.store}
	w.limits.RunTTL = in.DetachedRunTTLMs.milliseconds()
	if in.RunBudgetMs > 0 {
		w.limits.RunBudget = in.RunBudgetMs.milliseconds()
	}
	for _, r := range in.Runs {
		w.by[r.RunID] = r
		w.seed(r)
	}
	return w
}

// seed puts a run's record, its task and what its agent has done.
func (w *reapWorld) seed(in reapRun) {
	r := w.detachedRun(in.RunID)
	r.Thread, r.StartedAt, r.SandboxKey, r.Epoch = in.ThreadID, in.StartedAt, in.SandboxKey+"/"+core.SandboxKey(in.RunID), in.DriverEpoch+1
	if in.CancelRequested == true {
		r.CancelRequested = w.in.Now
	}
	switch {
	case in.Status == core.Interrupted:
		r.Status, r.Row, r.DueAt, r.InterruptedSince, r.DetachedSince = core.Interrupted, core.RowPause, farOff, in.StartedAt, 0
	case in.Status.Terminal():
		r = endedRecord(r, in.Status, w.in.Now)
	case in.DetachedSince == nil:
		r.Row, r.DueAt, r.AttachedUntil, r.DetachedSince = core.RowLapse, farOff, farOff, 0
	default:
		r.DetachedSince = max(1, *in.DetachedSince) // 0 is no time here
	}
	if in.SandboxKey == "" {
		r.SandboxKey, r.Instance, r.Provider = "", "", ""
		w.store.SeedRun(r)
		return
	}
	w.launchSeeded(r)
	for range in.lines() {
		w.fleet.Write(in.RunID, "chunk\n")
	}
	if w.in.drives(in) && !in.endless() {
		w.fleet.Exit(in.RunID, in.Probe.ExitCode)
	}
}

func (w *reapWorld) reaper() *core.Sweep {
	s := w.sweep(w.store.Process)
	s.Runs, s.Index, s.Queue, s.Prober = reapRuns{s.Runs, w}, reapIndex{s.Index, w}, reapQueue{s.Queue, w}, reapProber{s.Prober, w}
	s.Log.Log = reapLog{s.Log.Log, w}
	return s
}

// other lets somebody else change a run.
func (w *reapWorld) other(id core.RunID, m *mutation) error {
	switch value, set := m.Set["detachedSince"]; {
	case m.Delete:
		return errors.New("no write deletes a record")
	case set && value == nil: // a viewer comes back
		r, err := w.store.Run(w.t.Context(), key(string(id)))
		if err == nil {
			_, err = w.store.Update(w.t.Context(), r.RunKey, core.Attach{Seen: r.Epoch, Nonce: "viewer", Now: now(), Until: farOff})
		}
		return err
	}
	return w.others.update(id, m.Set)
}

// reapRuns are the records.
type reapRuns struct {
	core.Runs
	w *reapWorld
}

func (s reapRuns) Update(ctx context.Context, k core.RunKey, t core.Transition) (core.Run, error) {
	in := s.w.by[k.Run]
	word := ""
	switch c := t.(type) {
	case core.Claim:
		word = "claim"
		if in.CancelWrite != "" && c.Ending != "" {
			return core.Run{}, errors.New("the store fails")
		}
		for _, m := range in.AtClaim {
			if m == nil {
				continue
			}
			if err := s.w.other(k.Run, m); err != nil {
				s.w.t.Logf("at the claim of %s: %v", k, err)
			}
		}
	case core.Finish:
		word = "terminal"
		if in.TerminalWrite != "" {
			return core.Run{}, errors.New("the store fails")
		}
		if in.MidDrive.Set != nil && in.MidDrive.AfterChunks > 0 {
			s.w.must(s.w.other(k.Run, &in.MidDrive.mutation))
		}
	}
	r, err := s.Runs.Update(ctx, k, t)
	if err == nil && word != "" {
		s.w.events[k.Run] = append(s.w.events[k.Run], word)
	}
	return r, err
}

func (w *reapWorld) must(err error) {
	if err != nil {
		w.t.Error(err)
	}
}

// reapLog is the log.
type reapLog struct {
	core.RunLog
	w *reapWorld
}

func (l reapLog) Append(ctx context.Context, k core.RunKey, a core.Append, s core.Segment) (core.Run, error) {
	in := l.w.by[k.Run]
	if in.MidDrive.Set != nil && in.MidDrive.AfterChunks == 0 {
		l.w.must(l.w.other(k.Run, &in.MidDrive.mutation))
	}
	if in.Log.AppendFailsAt > 0 {
		return core.Run{}, errors.New("the store fails")
	}
	return l.RunLog.Append(ctx, k, a, s)
}

// reapIndex lists.
type reapIndex struct {
	core.RunIndex
	w *reapWorld
}

func (x reapIndex) Detached(ctx context.Context, shard int) ([]core.IndexEntry, error) {
	if x.w.in.List != "" {
		return nil, errors.New("the store fails")
	}
	return x.RunIndex.Detached(ctx, shard)
}

// reapQueue takes messages.
type reapQueue struct {
	core.ReclaimQueue
	w *reapWorld
}

func (q reapQueue) Send(ctx context.Context, jobs []core.ReclaimJob) error {
	for _, job := range jobs {
		if q.w.in.Now == now() && !q.w.in.considers(q.w.by[job.Run]) {
			continue // the mark of a run that a case begins with
		}
		q.w.sent[job.Run] = append(q.w.sent[job.Run], job)
		q.w.events[job.Run] = append(q.w.events[job.Run], "reclaim")
		if q.w.by[job.Run].Reclaim != "" {
			return errors.New("the queue fails")
		}
	}
	return q.ReclaimQueue.Send(ctx, jobs)
}

// reapProber asks agents, some of whom cannot be asked, and some of whose journals
// have no end.
type reapProber struct {
	core.Prober
	w *reapWorld
}

func (p reapProber) Probe(ctx context.Context, rate float64, requests []core.ProbeRequest) []core.ProbeReply {
	replies := p.Prober.Probe(ctx, rate, requests)
	for i, q := range requests {
		p.w.probed[q.Run]++
		switch in := p.w.by[q.Run]; {
		case in.Probe.Throws != nil || in.Probe.State == "unknown":
			replies[i] = core.ProbeReply{RunKey: q.RunKey, Reason: "of-the-case", Healing: core.Retry}
		case in.endless() && in.Probe.State == "finished":
			replies[i] = core.ProbeReply{RunKey: q.RunKey, State: core.ProbeFinished}
		}
	}
	return replies
}

func (p reapProber) Page(ctx context.Context, q core.PageRequest) (core.PageReply, error) {
	if in := p.w.by[q.Run]; in.endless() && !p.w.in.expired(in) {
		time.Sleep(p.w.limits.RunBudget / 4)
		return core.PageReply{Data: []byte("chunk\n")}, nil
	}
	return p.Prober.Page(ctx, q)
}

// compareReport compares a sweep's report; its runs stand in no order of their own.
func (w *reapWorld) compareReport(got core.SweepReport, want reapResult) error {
	wanted := map[core.Outcome]int{}
	var errs []error
	for _, o := range core.Outcomes {
		wanted[o] = want.Outcomes[o]
	}
	for _, e := range want.Runs {
		if e.Outcome == core.FailedSweep && w.by[e.RunID].Probe.Throws != nil && !w.in.expired(w.by[e.RunID]) {
			wanted[core.FailedSweep]--
			wanted[core.Unknown]++
			e.Outcome, e.Error = core.Unknown, nil
		}
		i := slices.IndexFunc(got.Runs, func(r core.RunReport) bool { return r.RunKey.Run == e.RunID })
		if i < 0 {
			errs = append(errs, fmt.Errorf("run %s: no entry, want %s", e.RunID, e.Outcome))
			continue
		}
		g := got.Runs[i]
		errs = append(errs, wrapped(e.RunID, differ([]any{g.Outcome, closedStatus(g.Status)}, []any{e.Outcome, closedStatus(e.Status)})))
		if e.ExitCode != nil && e.Outcome != core.NotClaimed {
			errs = append(errs, wrapped(e.RunID, differ(g.ExitCode, e.ExitCode)))
		}
		if e.Error != nil && g.Error == "" && g.Reason == "" {
			errs = append(errs, fmt.Errorf("run %s: no word of what went wrong", e.RunID))
		}
	}
	return errors.Join(append(errs, differ(got.Outcomes, wanted), differ(len(got.Runs), len(want.Runs)),
		differ(got.Considered, want.Considered), differ(got.Probed, want.Probed))...)
}

// closedStatus is the status with which a sweep closed a run; the original names
// that of a run that it did not close, too.
func closedStatus(s core.Status) core.Status {
	if s.Terminal() {
		return s
	}
	return ""
}

func wrapped(id core.RunID, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("run %s: %w", id, err)
}

// compareEffects compares what the sweep did to each run, and in which order.
func (w *reapWorld) compareEffects(want reapResult) error {
	var errs []error
	for id, e := range want.Effects {
		errs = append(errs, wrapped(id, w.compareEffect(id, e, want.Order)))
	}
	return errors.Join(errs...)
}

func (w *reapWorld) compareEffect(id core.RunID, want reapEffect, order []string) error {
	r := w.run(string(id))
	closed := slices.Contains(w.events[id], "terminal")
	errs := []error{
		differ(w.probed[id] > 0, want.Probed), differ(slices.Contains(w.events[id], "claim"), want.Driven),
		w.compareRecord(r, want.Record), differ(len(w.sent[id]), len(want.Reclaims)),
	}
	if !w.by[id].Log.CloseFails {
		errs = append(errs, differ(closed, want.Closes > 0))
	}
	if types, ok := want.Appended.([]any); ok {
		errs = append(errs, differ(len(linesOf(w.transcript(string(id)))), len(types)))
	}
	for i, job := range w.sent[id] {
		if i < len(want.Reclaims) {
			asked := want.Reclaims[i].SandboxKey + "/" + core.SandboxKey(id)
			errs = append(errs, differ([]any{job.Run, job.Key}, []any{want.Reclaims[i].RunID, asked}))
		}
	}
	if want.Driven {
		errs = append(errs, differ(w.events[id], stepsOf(order, id)))
	}
	return errors.Join(errs...)
}

// stepsOf are the steps of one run that are writes or messages here too.
func stepsOf(order []string, id core.RunID) []string {
	var out []string
	for _, step := range order {
		word, of, _ := strings.Cut(step, " ")
		if of == string(id) && slices.Contains([]string{"claim", "terminal", "reclaim"}, word) {
			out = append(out, word)
		}
	}
	return out
}

// compareRecord compares a record afterwards. A run that expired is ending here,
// where the original records a cancel that nobody asked for.
func (w *reapWorld) compareRecord(r core.Run, want record) error {
	have := w.others.view(r)
	if r.Ending != nil && r.Ending.Reason == core.EndExpired {
		if r.CancelRequested != 0 {
			return errors.New("an expiry is no cancel (I9)")
		}
		have["cancelRequested"] = true
	}
	if want["sandboxKey"] != nil {
		have["sandboxKey"] = strings.TrimSuffix(string(r.SandboxKey), "/"+string(r.RunKey.Run))
	} else {
		delete(have, "sandboxKey")
	}
	if want["error"] == nil && !r.Status.Terminal() || r.Status == core.Aborted {
		delete(have, "error") // the reason stands there
	}
	if _, ok := want["finishedAt"]; !ok {
		delete(have, "finishedAt")
	}
	if since, ok := want["detachedSince"].(float64); ok {
		want["detachedSince"] = max(1, since)
	}
	if r.Status == core.Interrupted {
		delete(want, "detachedSince")
	}
	return differ(have, want)
}

var _ core.RunLog = reapLog{}
