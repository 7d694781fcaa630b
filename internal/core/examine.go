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

// describeBatch is the most that ECS describes in one call.
const describeBatch = 100

// examine asks tasks, ledger and journals as far as the judgement needs it, and
// returns what is to be done; the runs left alone are entered into the report.
func (s *Sweep) examine(ctx context.Context, runs []Run, p policy, begun time.Time, report *SweepReport) []job {
	evidences := make([]evidence, len(runs))
	s.askTasks(ctx, runs, evidences, p)
	s.askJournals(ctx, runs, evidences, p, begun, report)
	s.takeNotes(ctx, runs, evidences, p, report)
	s.warn(ctx, runs, evidences, p)
	var jobs []job
	for i, r := range runs {
		d := decide(r, evidences[i], nowMillis(), p)
		switch d.act {
		case actLeave:
			report.add(RunReport{RunKey: r.RunKey, Outcome: d.outcome, Reason: d.why, Healing: d.healing})
		case actAsk:
			report.add(RunReport{RunKey: r.RunKey, Outcome: Unknown, Reason: ReasonUnexamined, Healing: Retry})
		default:
			j := job{run: r, decision: d, task: evidences[i].task}
			if evidences[i].probe != nil {
				j.reply = *evidences[i].probe
			}
			jobs = append(jobs, j)
		}
	}
	slices.SortStableFunc(jobs, func(a, b job) int {
		return cmp.Or(cmp.Compare(a.decision.act, b.decision.act), cmp.Compare(a.reply.Size, b.reply.Size))
	})
	return jobs
}

// askTasks describes the tasks of all runs whose judgement asks for it, a batch a
// call, and reads the ledger row of those that have none.
func (s *Sweep) askTasks(ctx context.Context, runs []Run, evidences []evidence, p policy) {
	byCluster := map[string][]int{}
	for i, r := range runs {
		if decide(r, evidences[i], nowMillis(), p).act != actAsk {
			continue
		}
		if r.TaskARN != "" {
			byCluster[r.Cluster] = append(byCluster[r.Cluster], i)
			continue
		}
		evidences[i] = s.askLedger(ctx, r)
	}
	for cluster, indexes := range byCluster {
		batches := slices.Collect(slices.Chunk(indexes, describeBatch))
		pool(s.Limits.SweepWidth, len(batches), func(n int) {
			s.describeBatch(ctx, cluster, runs, batches[n], evidences)
		})
	}
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
func (s *Sweep) describeBatch(ctx context.Context, cluster string, runs []Run, batch []int, evidences []evidence) {
	arns := make([]string, len(batch))
	for n, i := range batch {
		arns[n] = runs[i].TaskARN
		evidences[i] = evidence{asked: true, task: Task{ARN: runs[i].TaskARN}}
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
		evidences[i].allMissing = allMissing
		if t, ok := byARN[runs[i].TaskARN]; ok && !allMissing {
			evidences[i].task = t
		}
	}
}

// askJournals probes the runs whose judgement still asks for it, as many as the
// minute's budget has tokens for, from each shard's cursor on: what is over comes
// first in the next sweep, so that nobody starves. Runs with a fresh hint, or asked for by
// name, come before all others and move no cursor.
func (s *Sweep) askJournals(ctx context.Context, runs []Run, evidences []evidence, p policy, begun time.Time, report *SweepReport) {
	if p.unasked {
		return
	}
	first, laps := s.laps(ctx, runs, evidences, p)
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
	answered := s.probeAll(ctx, runs, evidences, order[:min(tokens, len(order))], begun, report)
	s.moveCursors(ctx, runs, laps, answered, p, report)
}

// laps sorts what is to be asked: the hinted, and the others by shard.
func (s *Sweep) laps(ctx context.Context, runs []Run, evidences []evidence, p policy) (first []int, laps []lap) {
	byShard := map[int][]int{}
	for i, r := range runs {
		if !evidences[i].asked || decide(r, evidences[i], nowMillis(), p).act != actAsk {
			continue
		}
		if p.named || hinted(r, nowMillis()) {
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
		laps[n] = lap{cursor: cursor, asking: cursor.turn(runs, byShard[shards[n]])}
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
func (s *Sweep) probeAll(ctx context.Context, runs []Run, evidences []evidence, order []int, begun time.Time, report *SweepReport) map[int]bool {
	answered := make(map[int]bool, len(order))
	batches := slices.Collect(slices.Chunk(order, s.Limits.ProbeBatch))
	pace := pacer{each: paced(s.Limits.ProbeBatch, s.Limits.Pace())}
	// One sandbox that hangs must not keep what has ended waiting. Its batch counts as
	// not asked: in the next sweep it comes first.
	ctx, cancel := context.WithDeadline(ctx, begun.Add(s.Limits.askUntil()))
	defer cancel()
	var mu sync.Mutex
	pool(s.Limits.ProbeCalls, len(batches), func(n int) {
		if !waitUntil(ctx, pace.next(time.Now())) || time.Since(begun) > s.Limits.NewRunsFor {
			return
		}
		requests := make([]ProbeRequest, len(batches[n]))
		for k, i := range batches[n] {
			requests[k] = probeOf(runs[i])
		}
		replies := s.Prober.Probe(ctx, s.Limits.Pace(), requests)
		mu.Lock()
		defer mu.Unlock()
		report.Probed += len(requests)
		for k, i := range batches[n] {
			if k < len(replies) && replies[k].RunKey == runs[i].RunKey {
				replies[k].diagnose(evidences[i].task, runs[i].Container, nowMillis())
				evidences[i].probe = &replies[k]
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
func (s *Sweep) moveCursors(ctx context.Context, runs []Run, laps []lap, answered map[int]bool, p policy, report *SweepReport) {
	now := nowMillis()
	moved := make([]Cursor, len(laps))
	for n, l := range laps {
		moved[n] = l.moved(runs, func(i int) bool { return answered[i] }, now)
		if moved[n].LapStarted != 0 {
			report.OldestLap = earlier(report.OldestLap, moved[n].LapStarted)
		}
	}
	pool(s.Limits.SweepWidth, len(laps), func(n int) {
		if !p.acts || moved[n] == laps[n].cursor {
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
func (s *Sweep) takeNotes(ctx context.Context, runs []Run, evidences []evidence, p policy, report *SweepReport) {
	seen := make([]sighting, len(runs))
	var noting []int
	for i, e := range evidences {
		seen[i] = s.sight(runs[i], e, p)
		if seen[i].worthNoting() {
			noting = append(noting, i)
		}
	}
	var mu sync.Mutex
	pool(s.Limits.SweepWidth, len(noting), func(n int) {
		i := noting[n]
		before, after, err := s.note(ctx, runs[i].RunKey, seen[i], p)
		if err != nil {
			s.Logger.WarnContext(ctx, "note", "run", runs[i].RunKey.String(), "err", err)
			return
		}
		evidences[i].note = after
		mu.Lock()
		defer mu.Unlock()
		report.notices = append(report.notices, noticesOf(runs[i], before, after)...)
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
