package core

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// job is a run that a sweep has judged and will do something about.
type job struct {
	run      Run
	decision decision
	task     Task
	reply    ProbeReply
}

// examination is what one sweep finds out about its runs: of the run at each place, the
// evidence at the same place.
type examination struct {
	runs      []Run
	evidences []evidence
	policy    policy
	begun     time.Time // when the sweep began
	report    *SweepReport
}

// judge decides about the run at a place by what is known of it now.
func (x *examination) judge(i int) decision {
	return decide(x.runs[i], x.evidences[i], nowMillis(), x.policy)
}

// describeBatch is the most that ECS describes in one call.
const describeBatch = 100

// examine asks tasks, ledger and journals as far as the judgement needs it, and
// returns what is to be done; the runs left alone are entered into the report.
func (s *Sweep) examine(ctx context.Context, runs []Run, p policy, begun time.Time, report *SweepReport) []job {
	x := &examination{runs: runs, evidences: make([]evidence, len(runs)), policy: p, begun: begun, report: report}
	s.askTasks(ctx, x)
	s.askJournals(ctx, x)
	s.takeNotes(ctx, x)
	s.warn(ctx, x)
	var jobs []job
	for i, r := range runs {
		d := x.judge(i)
		switch d.act {
		case actLeave:
			report.add(RunReport{RunKey: r.RunKey, Outcome: d.outcome, Reason: d.why, Healing: d.healing})
		case actAsk:
			report.add(RunReport{RunKey: r.RunKey, Outcome: Unknown, Reason: ReasonUnexamined, Healing: Retry})
		default:
			j := job{run: r, decision: d, task: x.evidences[i].task}
			if probe := x.evidences[i].probe; probe != nil {
				j.reply = *probe
			}
			jobs = append(jobs, j)
		}
	}
	slices.SortStableFunc(jobs, func(a, b job) int {
		return cmp.Or(cmp.Compare(a.decision.act, b.decision.act), cmp.Compare(a.size(), b.size()))
	})
	return jobs
}

// size is how long the run's journal is at least: what its sandbox says, or what the log has.
func (j job) size() int64 { return max(j.reply.Size, j.run.LogEnd) }

// askTasks describes the tasks of all runs whose judgement asks for it, a batch a
// call, and reads the ledger row of those that have none.
func (s *Sweep) askTasks(ctx context.Context, x *examination) {
	byCluster := map[string][]int{}
	for i, r := range x.runs {
		if x.judge(i).act != actAsk {
			continue
		}
		if r.TaskARN != "" {
			byCluster[r.Cluster] = append(byCluster[r.Cluster], i)
			continue
		}
		x.evidences[i] = s.askLedger(ctx, r)
	}
	clusters := slices.Sorted(maps.Keys(byCluster))
	pool(s.abreast(len(clusters)), len(clusters), func(c int) {
		batches := slices.Collect(slices.Chunk(byCluster[clusters[c]], describeBatch))
		pool(s.Limits.SweepWidth, len(batches), func(n int) {
			s.describeBatch(ctx, x, clusters[c], batches[n])
		})
	})
}

// abreast is how many clusters are asked at a time: all of them, for a spoke that does not
// answer, its Region down or its role gone, must not keep the others waiting.
func (s *Sweep) abreast(clusters int) int {
	if s.Limits.SweepWidth == 1 {
		return 1 // one call after another, in an order that is known
	}
	return clusters
}

// askLedger reads the row of a run without a task. One that cannot be read leaves
// the run unasked, so unexamined.
func (s *Sweep) askLedger(ctx context.Context, r Run) evidence {
	if r.Instance == "" {
		return evidence{asked: true}
	}
	row, err := s.Ledger.Row(ctx, r.Instance)
	switch {
	case err == nil:
		return evidence{asked: true, row: &row}
	case isNotFound(err):
		return evidence{asked: true}
	}
	return evidence{}
}

// describeBatch fills in what ECS says. A call that failed leaves its runs unknown,
// and so does one in which every task is missing: that is a wrong cluster or
// account rather than so many ends at once.
func (s *Sweep) describeBatch(ctx context.Context, x *examination, cluster string, batch []int) {
	arns := make([]string, len(batch))
	for n, i := range batch {
		arns[n] = x.runs[i].TaskARN
		x.evidences[i] = evidence{asked: true, task: Task{ARN: x.runs[i].TaskARN}}
	}
	slices.Sort(arns)
	arns = slices.Compact(arns)
	tasks, err := s.Tasks.Describe(ctx, cluster, arns)
	if err != nil {
		s.Logger.ErrorContext(ctx, "describe tasks", "err", err)
		return
	}
	byARN := make(map[string]Task, len(tasks))
	present := false
	for _, t := range tasks {
		byARN[t.ARN] = t
		present = present || t.Life != TaskMissing && t.Life != TaskUnknown
	}
	allMissing := !present && len(arns) > 1
	for _, i := range batch {
		x.evidences[i].allMissing = allMissing
		if t, ok := byARN[x.runs[i].TaskARN]; ok && !allMissing {
			x.evidences[i].task = t
		}
	}
}

// askJournals probes the runs whose judgement still asks for it, as many as the
// minute's budget has tokens for, from each shard's cursor on: what is over comes
// first in the next sweep, so that nobody starves. Runs with a fresh hint, or asked for by
// name, come before all others and move no cursor.
func (s *Sweep) askJournals(ctx context.Context, x *examination) {
	if x.policy.unasked {
		return
	}
	first, laps := s.laps(ctx, x)
	order := first
	for row := 0; ; row++ { // a run of each shard in turn
		before := len(order)
		for _, l := range laps {
			if row < len(l.asking) {
				order = append(order, l.asking[row])
			}
		}
		if len(order) == before {
			break
		}
	}
	tokens := 0
	if len(order) > 0 {
		tokens = s.share(ctx, len(order))
	}
	answered := s.probeAll(ctx, x, order[:min(tokens, len(order))])
	s.moveCursors(ctx, x, laps, answered)
}

// laps sorts what is to be asked: the hinted, and the others by shard.
func (s *Sweep) laps(ctx context.Context, x *examination) (first []int, laps []lap) {
	byShard := map[int][]int{}
	for i, r := range x.runs {
		if !x.evidences[i].asked || x.judge(i).act != actAsk {
			continue
		}
		if x.policy.named || hinted(r, nowMillis()) {
			first = append(first, i)
			continue
		}
		shard := ShardOf(r.RunKey)
		byShard[shard] = append(byShard[shard], i)
	}
	shards := slices.Sorted(maps.Keys(byShard))
	laps = make([]lap, len(shards))
	pool(s.Limits.SweepWidth, len(shards), func(n int) {
		cursor, err := s.Cursors.Cursor(ctx, shards[n])
		if err != nil { // from the beginning: fair enough for once
			s.Logger.WarnContext(ctx, "read cursor", "shard", shards[n], "err", err)
		}
		laps[n] = lap{cursor: cursor, asking: cursor.turn(x.runs, byShard[shards[n]])}
	})
	// The oldest open lap first: where tokens are fewer than shards, each gets its turn,
	// and a shard of many runs gets more of them.
	slices.SortStableFunc(laps, func(a, b lap) int {
		return cmp.Compare(uint64(a.cursor.LapStarted-1), uint64(b.cursor.LapStarted-1)) // none open is last
	})
	return first, laps
}

// hintLasts is how long a hint makes a run come first. An agent that says that it has
// ended, and has not, must not be asked before all others for ever.
const hintLasts = 5 * time.Minute

func hinted(r Run, now Millis) bool {
	hint := max(r.TaskStoppedAt, r.ExitedAt)
	return hint != 0 && now < hint.Add(hintLasts)
}

// probeAll asks the runs of order in batches until the sweep takes no new run, and
// tells who was answered. The batches begin one after another, each when the one
// before it has had the time to start its sessions; so the calls together keep to the
// pace, however slow the answers are.
func (s *Sweep) probeAll(ctx context.Context, x *examination, order []int) map[int]bool {
	answered := make(map[int]bool, len(order))
	batches := slices.Collect(slices.Chunk(order, s.Limits.ProbeBatch))
	pace := pacer{each: paced(s.Limits.ProbeBatch, s.Limits.Pace())}
	// One sandbox that hangs must not keep what has ended waiting. Its batch counts as
	// not asked: in the next sweep it comes first.
	ctx, cancel := context.WithDeadline(ctx, x.begun.Add(s.Limits.askUntil()))
	defer cancel()
	var mu sync.Mutex
	pool(s.Limits.ProbeCalls, len(batches), func(n int) {
		if !waitUntil(ctx, pace.next(time.Now())) || time.Since(x.begun) > s.Limits.NewRunsFor {
			return
		}
		requests := make([]ProbeRequest, len(batches[n]))
		for k, i := range batches[n] {
			requests[k] = probeOf(x.runs[i])
		}
		replies := s.Prober.Probe(ctx, s.Limits.Pace(), requests)
		mu.Lock()
		defer mu.Unlock()
		x.report.Probed += len(requests)
		for k, i := range batches[n] {
			if k < len(replies) && replies[k].RunKey == x.runs[i].RunKey {
				replies[k].diagnose(x.evidences[i].task, x.runs[i].Container, nowMillis())
				x.evidences[i].probe = &replies[k]
				answered[i] = !replies[k].Unasked
			}
		}
	})
	return answered
}

// pacer lets calls begin at least each apart.
type pacer struct {
	each time.Duration
	mu   sync.Mutex
	free time.Time // when the next may begin
}

// next is when a call may begin that was ready at now.
func (p *pacer) next(now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free.Before(now) {
		p.free = now
	}
	at := p.free
	p.free = at.Add(p.each)
	return at
}

// moveCursors saves how far each lap came: one write a shard that was asked. A
// cursor that another sweep moved stays where that one left it.
func (s *Sweep) moveCursors(ctx context.Context, x *examination, laps []lap, answered map[int]bool) {
	now := nowMillis()
	moved := make([]Cursor, len(laps))
	for n, l := range laps {
		moved[n] = l.moved(x.runs, func(i int) bool { return answered[i] }, now)
		if moved[n].LapStarted != 0 {
			x.report.OldestLap = earlier(x.report.OldestLap, moved[n].LapStarted)
		}
	}
	pool(s.Limits.SweepWidth, len(laps), func(n int) {
		if !x.policy.acts || moved[n] == laps[n].cursor {
			return
		}
		if err := s.Cursors.MoveCursor(ctx, laps[n].cursor, moved[n]); err != nil && !Refused(err) {
			s.Logger.WarnContext(ctx, "move cursor", "shard", moved[n].Shard, "err", err)
		}
	})
}

func earlier(a, b Millis) Millis {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// takeNotes brings the notes of those runs up to date that could not be told about,
// or are in a state that somebody wants to hear of once, so that a state that lasts is
// told from one that passes. A note that cannot be read or written leaves the run as
// it is.
func (s *Sweep) takeNotes(ctx context.Context, x *examination) {
	seen := make([]sighting, len(x.runs))
	var noting []int
	for i, e := range x.evidences {
		seen[i] = s.sight(x.runs[i], e, x.policy)
		if seen[i].worthNoting() {
			noting = append(noting, i)
		}
	}
	var mu sync.Mutex
	pool(s.Limits.SweepWidth, len(noting), func(n int) {
		i := noting[n]
		before, after, err := s.note(ctx, x.runs[i].RunKey, seen[i], x.policy)
		if err != nil {
			s.Logger.WarnContext(ctx, "note", "run", x.runs[i].RunKey.String(), "err", err)
			return
		}
		x.evidences[i].note = after
		mu.Lock()
		defer mu.Unlock()
		x.report.notices = append(x.report.notices, noticesOf(x.runs[i], before, after)...)
	})
}

// sight is what this sweep saw of a run that is worth a note.
func (s *Sweep) sight(r Run, e evidence, p policy) sighting {
	now := nowMillis()
	d := decide(r, e, now, p)
	return sighting{
		reply: e.probe, missing: e.task.Life == TaskMissing,
		held: d.act == actLeave && d.outcome == Held && d.why == "held",
	}
}

func (s *Sweep) note(ctx context.Context, key RunKey, seen sighting, p policy) (before, after Note, err error) {
	if before, err = s.Notes.Note(ctx, key); err != nil {
		return Note{}, Note{}, err
	}
	after, write := before.after(seen, nowMillis(), s.Limits)
	if write && p.acts {
		err = s.Notes.PutNote(ctx, key, after)
	}
	return before, after, err
}

func probeOf(r Run) ProbeRequest {
	return ProbeRequest{
		RunKey: r.RunKey, Target: targetOf(r), SandboxKey: r.SandboxKey,
		Nonce: r.Nonce, LogEnd: r.LogEnd, LogTail: r.LogTail,
	}
}

// pageOf asks for a run's journal from a byte position on.
func pageOf(r Run, from int64) PageRequest {
	return PageRequest{RunKey: r.RunKey, Target: targetOf(r), Nonce: r.Nonce, From: from}
}

func targetOf(r Run) ExecTarget {
	return ExecTarget{Cluster: r.Cluster, TaskARN: r.TaskARN, Container: r.Container, Journals: r.JournalDir}
}

// planned reports what enforcing would have done.
func planned(jobs []job) []RunReport {
	var out []RunReport
	for _, j := range jobs {
		out = append(out, RunReport{
			RunKey: j.run.RunKey, Outcome: outcomeOf(j.run, j.decision), Reason: j.decision.why, Epoch: j.run.Epoch, Planned: true,
		})
	}
	return out
}
