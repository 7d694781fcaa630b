package core_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

var _ = exemptVectors(
	vectorExemption{
		file: "claim_fence", cases: unlessQuirk(fenceScript.epochGoesBack),
		reason: "an epoch only grows (DESIGN 1, I3): no write takes one back, so nothing can be seen under a lower one",
	},
	vectorExemption{
		file: "claim_fence", cases: unlessQuirk(func(s fenceScript) bool { return !s.epochGoesBack() && s.leaseDecides() }),
		reason: "leases are for liveness, epochs for safety (DESIGN 4.4): a claim that nobody took still writes, whatever its lease",
	},
	vectorExemption{
		file: "claim_fence", cases: unlessQuirk(func(s fenceScript) bool {
			return !s.epochGoesBack() && !s.leaseDecides() && s.supersededWrites() && !s.writesAnother()
		}),
		reason: "a log is closed by the terminal status, in one write under the claim's epoch, and so is every other fact of a " +
			"driver (DESIGN 4.1, I3, I4): a superseded claim closes nothing and notes nothing",
	},
)

var _ = exemptVectors(
	vectorExemption{
		file: "claim_fence", cases: unlessQuirk(fenceScript.writesAnother),
		reason: "a driver writes the run whose epoch it holds (DESIGN 4.1, I3), no other",
	},
)

// fenceScript is a script of claim_fence.
type fenceScript struct{ Steps []fenceStep }

type fenceStep struct {
	Op    string
	Run   core.RunID
	As    string
	Times int
	Set   record
}

func (s fenceStep) run() core.RunID {
	if s.Run == "" {
		return "r"
	}
	return s.Run
}

// claims plays the epochs of a script: what each claim holds and each run has. look
// is asked before each step.
func (s fenceScript) claims(look func(step fenceStep, held, stored float64) bool) bool {
	stored, held := map[core.RunID]float64{}, map[string]float64{}
	run := map[string]core.RunID{}
	for _, step := range s.Steps {
		if look(step, held[step.As], stored[cmpRun(run, step)]) {
			return true
		}
		switch epoch, ok := step.Set["driverEpoch"].(float64); {
		case step.Op == "claim":
			stored[step.run()]++
			held[step.As], run[step.As] = stored[step.run()], step.run()
		case step.Op == "setRecord" && ok:
			stored[step.run()] = epoch
		}
	}
	return false
}

// cmpRun is the run that a step is about: its claim's, or the one it names.
func cmpRun(run map[string]core.RunID, step fenceStep) core.RunID {
	if id, ok := run[step.As]; ok && step.Op != "claim" {
		return id
	}
	return step.run()
}

// writesAnother tells whether a claim is used on another run than its own.
func (s fenceScript) writesAnother() bool {
	run := map[string]core.RunID{}
	return slices.ContainsFunc(s.Steps, func(step fenceStep) bool {
		if step.Op == "claim" {
			run[step.As] = step.run()
		}
		id, ok := run[step.As]
		return ok && step.Run != "" && step.Run != id
	})
}

func (s fenceScript) epochGoesBack() bool {
	return !s.writesAnother() && s.claims(func(step fenceStep, _, stored float64) bool {
		epoch, ok := step.Set["driverEpoch"]
		next, _ := epoch.(float64)
		return step.Op == "setRecord" && ok && next < stored
	})
}

// leaseDecides tells whether something is refused for a lost lease alone.
func (s fenceScript) leaseDecides() bool {
	lost := map[string]bool{}
	return !s.writesAnother() && s.claims(func(step fenceStep, held, stored float64) bool {
		lost[step.As] = (lost[step.As] || step.Op == "loseLease") && step.Op != "regainLease"
		status, _ := step.Set["status"].(string)
		return lost[step.As] && held == stored && (step.Op == "append" || step.Op == "update" && core.Status(status).Terminal())
	})
}

// supersededWrites tells whether a claim that was taken over still writes something
// that the original's fences let pass.
func (s fenceScript) supersededWrites() bool {
	return s.claims(func(step fenceStep, held, stored float64) bool {
		status, _ := step.Set["status"].(string)
		passes := step.Op == "close" || step.Op == "update" && status != "running" && !core.Status(status).Terminal()
		return passes && held < stored
	})
}

// fenceResult is a step's result.
type fenceResult struct {
	OK *struct {
		Epoch, Landed, Entries, Closes int
		Refused                        *struct{ Held int }
		Record                         record
	}
	NotAcquired string
	Error       any
}

// TestClaimFenceVectors plays drivers that claim a run, append to its log and end
// it. How often a fence reads the epoch is not compared: ours is a condition of the
// write itself, and reads nothing.
func TestClaimFenceVectors(t *testing.T) {
	compareVectors(t, "claim_fence", func(t *testing.T, c vectorCase) error {
		var in fenceScript
		var want struct{ Results []fenceResult }
		c.decode(t, &in, &want)
		return inBubble(t, func(t *testing.T) error {
			f := &fences{scripted: newScripted(t), claims: map[string]core.Run{}}
			for i, step := range in.Steps {
				if err := f.compare(step, want.Results[i]); err != nil {
					return fmt.Errorf("step %d %s: %w", i+1, step.Op, err)
				}
			}
			return nil
		})
	})
}

// fences plays drivers, each with the record as its last write left it.
type fences struct {
	*scripted
	claims map[string]core.Run
}

func (f *fences) compare(step fenceStep, want fenceResult) error {
	ctx := f.t.Context()
	r, held := f.claims[step.As]
	switch {
	case step.As != "" && step.Op != "claim" && !held:
		return differ(true, want.Error != nil) // nothing can be done under a claim that was not had
	case held && step.Op != "claim" && step.Run != "" && step.Run != r.RunKey.Run:
		return fmt.Errorf("the claim of run %s writes no other", r.RunKey.Run)
	case want.OK == nil && step.Op != "claim" && step.Op != "append":
		return fmt.Errorf("want %v, and this does not fail", want.Error)
	}
	switch step.Op {
	case "createRun":
		return f.done(f.create(record{"runId": string(step.run()), "threadId": "t", "startedAt": 1.0}))
	case "setRecord":
		return f.setRecord(step.run(), step.Set)
	case "claim":
		return f.claim(step, want)
	case "append":
		return f.appendAll(step, want)
	case "update":
		return f.updateAs(r, step.Set, want)
	case "close":
		return f.closeAs(r, want.OK.Closes)
	case "snapshot", "logLength":
		id := step.run()
		if step.Op == "snapshot" {
			id = r.RunKey.Run
		}
		segments, err := f.store.Segments(ctx, f.key(id))
		return errors.Join(err, differ(len(segments), want.OK.Entries))
	case "record":
		return f.sameRecord(step.run(), want.OK.Record)
	case "loseLease", "regainLease": // a lease decides nothing here
		return nil
	}
	return fmt.Errorf("no operation %s", step.Op)
}

func (f *fences) done(result any) error {
	if _, ok := result.(record); ok {
		return nil
	}
	return fmt.Errorf("%v", result)
}

// setRecord is what somebody else writes; a terminal status is the present
// driver's.
func (f *fences) setRecord(id core.RunID, set record) error {
	set = maps.Clone(set)
	if cancelled, ok := set["cancelRequested"]; ok && cancelled == true {
		if err := f.update(id, record{"cancelRequested": true}); err != nil {
			return err
		}
		delete(set, "cancelRequested")
	}
	return f.update(id, set)
}

// claim takes the run over from whoever has it, as an expired lease would let in.
func (f *fences) claim(step fenceStep, want fenceResult) error {
	r, err := f.store.Run(f.t.Context(), f.key(step.run()))
	var taken core.Run
	if err == nil {
		taken, err = f.takeOver(r, "claim-"+step.As)
	}
	switch {
	case err == nil:
		f.claims[step.As] = taken
	case errors.Is(err, core.ErrNotFound):
		return differ("unknown", want.NotAcquired)
	case core.Refused(err) && r.Status.Terminal():
		return differ("terminal", want.NotAcquired)
	}
	if err != nil || want.OK == nil {
		return fmt.Errorf("claimed epoch %d (%v), want %q", taken.Epoch, err, want.NotAcquired)
	}
	return differ(int(taken.Epoch-1), want.OK.Epoch)
}

// appendAll appends chunks under a claim until one is refused.
func (f *fences) appendAll(step fenceStep, want fenceResult) error {
	landed, refused := 0, false
	for range max(step.Times, 1) {
		after, err := f.log().Append(f.t.Context(), f.claims[step.As], []byte("chunk\n"), nil)
		if refused = core.Refused(err); refused {
			break
		}
		if err != nil {
			return err
		}
		f.claims[step.As] = after
		landed++
	}
	if want.OK == nil {
		return fmt.Errorf("%d landed, want an error", landed)
	}
	if refused && want.OK.Refused != nil {
		if err := differ(int(f.claims[step.As].Epoch-1), want.OK.Refused.Held); err != nil {
			return err
		}
	}
	return errors.Join(differ(landed, want.OK.Landed), differ(refused, want.OK.Refused != nil))
}

func (s *scripted) log() *core.LogWriter {
	return &core.LogWriter{Log: s.store, Blobs: s.store, Inline: 100}
}

// updateAs writes under a claim. A superseded one is refused: that is its end, and
// no error of its driver.
func (f *fences) updateAs(r core.Run, set record, want fenceResult) error {
	if _, ok := set["status"]; !ok { // bookkeeping: no transition of a driver that lost its claim
		stored, err := f.store.Run(f.t.Context(), r.RunKey)
		if err == nil && stored.Epoch == r.Epoch {
			err = f.update(r.RunKey.Run, set)
		}
		return errors.Join(err, f.sameRecord(r.RunKey.Run, want.OK.Record))
	}
	t, err := f.statusWrite(core.Run{
		RunKey: r.RunKey, Epoch: r.Epoch, ClaimNonce: r.ClaimNonce, LogEnd: r.LogEnd, LogHash: r.LogHash,
	}, set["status"], set)
	if set["status"] == "running" {
		t, err = core.Renew{Epoch: r.Epoch, Until: farOff}, nil
	}
	if err != nil {
		return err
	}
	if _, err := f.store.Update(f.t.Context(), r.RunKey, t); err != nil && !core.Refused(err) {
		return err
	}
	return f.sameRecord(r.RunKey.Run, want.OK.Record)
}

// closeAs closes the log under a claim, which is to end the run.
func (f *fences) closeAs(r core.Run, want int) error {
	t, err := f.statusWrite(r, core.Completed, nil)
	if err != nil {
		return err
	}
	closed := 0
	if after, err := f.store.Update(f.t.Context(), r.RunKey, t); err == nil && after.Status.Terminal() {
		closed = 1
	}
	return differ(closed, want)
}

// sameRecord compares a stored record. A cancel whose time has come leaves its run
// detached here.
func (f *fences) sameRecord(id core.RunID, want record) error {
	r, err := f.store.Run(f.t.Context(), f.key(id))
	if err != nil {
		return err
	}
	have := f.view(r)
	if want["cancelRequested"] == true && want["detachedSince"] == nil {
		delete(have, "detachedSince")
	}
	return sameResult(have, map[string]any(want))
}

// logScript is a script of event_log.
type logScript struct {
	Steps []struct {
		Op      string
		Values  []string
		From    any
		Then    map[string]any
		Aborted bool
	}
}

// logResult is a step's result. Offsets are byte positions here.
type logResult struct {
	OK *struct {
		Offsets                int
		Distinct, OffsetsMatch bool
		Values                 []string
		Ended                  string
	}
	Error bool
}

// TestEventLogVectors appends to a run's log, ends the run and reads the log back.
func TestEventLogVectors(t *testing.T) {
	compareVectors(t, "event_log", func(t *testing.T, c vectorCase) error {
		var in logScript
		var want struct{ Results []logResult }
		c.decode(t, &in, &want)
		return inBubble(t, func(t *testing.T) error {
			l := &logs{scripted: newScripted(t)}
			for i, step := range in.Steps {
				var err error
				switch w := want.Results[i]; step.Op {
				case "append":
					err = l.compareAppend(step.Values, w)
				case "close":
					err = l.end()
				case "snapshot":
					err = l.compareRead(0, w, "")
				case "read":
					err = l.read(step.From, step.Then, w)
				default:
					err = fmt.Errorf("no operation %s", step.Op)
				}
				if err != nil {
					return fmt.Errorf("step %d %s: %w", i+1, step.Op, err)
				}
			}
			return nil
		})
	})
}

// logs plays one run's log, whose positions are offsets.
type logs struct {
	*scripted
	run     *core.Run
	offsets []int64
}

// begin starts the run with its first piece of log.
func (l *logs) begin() error {
	if l.run != nil {
		return nil
	}
	if _, ok := l.create(record{"runId": "r", "threadId": "t"}).(record); !ok {
		return errors.New("the run does not begin")
	}
	r, err := l.store.Run(l.t.Context(), l.key("r"))
	l.run = &r
	return err
}

func (l *logs) compareAppend(values []string, want logResult) error {
	if err := l.begin(); err != nil {
		return err
	}
	before := len(l.offsets)
	for _, value := range values {
		after, err := l.log().Append(l.t.Context(), *l.run, []byte(value+"\n"), nil)
		if err != nil {
			return differ(want.Error, core.Refused(err))
		}
		*l.run = after
		l.offsets = append(l.offsets, after.LogEnd)
	}
	if want.OK == nil {
		return errors.New("appended, want an error")
	}
	distinct := slices.IsSortedFunc(l.offsets, func(a, b int64) int { return int(a - b) }) &&
		len(slices.Compact(slices.Clone(l.offsets))) == len(l.offsets)
	return errors.Join(differ(len(l.offsets)-before, want.OK.Offsets), differ(distinct, want.OK.Distinct))
}

// end closes the log; doing it again is the same.
func (l *logs) end() error {
	if err := l.begin(); err != nil {
		return err
	}
	t, err := l.statusWrite(*l.run, core.Completed, nil)
	if err != nil {
		return err
	}
	_, err = l.store.Update(l.t.Context(), l.run.RunKey, t)
	return err
}

// read reads from a position. One that is no number is refused where it is parsed.
func (l *logs) read(from any, then map[string]any, want logResult) error {
	position, id := int64(0), core.RunID("r")
	switch at := from.(type) {
	case float64:
		position = l.offsets[int(at)]
	case string:
		switch at {
		case "start":
		case "now":
			if len(l.offsets) > 0 {
				position = l.offsets[len(l.offsets)-1]
			}
		case "otherRun":
			id = "q"
		default:
			_, err := strconv.ParseInt(at, 10, 64)
			return differ(err != nil, want.Error)
		}
	}
	r, err := l.store.Run(l.t.Context(), l.key(id))
	if err != nil {
		return differ(errors.Is(err, core.ErrNotFound), want.Error)
	}
	if !r.Status.Terminal() {
		return l.follow(position, then, want)
	}
	return l.compareRead(position, want, "log-closed")
}

// follow reads an open log as a viewer does, who waits for more until the log is closed or
// he has no patience left.
func (l *logs) follow(position int64, then map[string]any, want logResult) error {
	if want.OK == nil {
		return errors.New("followed, want an error")
	}
	s := &core.Session{Launcher: &core.Launcher{Runs: l.store, Limits: core.DefaultLimits}, Log: l.log()}
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	values, ended := []string{}, ""
	for ended == "" {
		report, err := s.Tail(ctx, core.TailRequest{RunKey: l.run.RunKey, From: position, WaitSeconds: 20})
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			ended = "aborted"
		case err != nil:
			return err
		case report.End:
			ended = "log-closed"
		}
		values, position = append(values, strings.Fields(string(report.Data))...), max(position, report.Next)
		if then[strconv.Itoa(len(values))] == "close" {
			if err := l.end(); err != nil {
				return err
			}
		}
	}
	return errors.Join(differ(values, append([]string{}, want.OK.Values...)), differ(ended, want.OK.Ended))
}

// compareRead reads the pieces after a position, each checked by its digest.
func (l *logs) compareRead(position int64, want logResult, ended string) error {
	if want.OK == nil {
		return errors.New("read, want an error")
	}
	key := l.key("r")
	whole, err := core.ReadLog(l.t.Context(), l.store, l.store, key)
	if err != nil {
		return err
	}
	segments, err := l.store.Segments(l.t.Context(), key)
	if err != nil {
		return err
	}
	values, ends := []string{}, []int64{}
	for _, s := range segments {
		if ends = append(ends, s.End); s.From >= position {
			values = append(values, strings.TrimSuffix(string(whole[s.From:s.End]), "\n"))
		}
	}
	return errors.Join(
		differ(values, append([]string{}, want.OK.Values...)), differ(ended, want.OK.Ended),
		differ(slices.Equal(ends, l.offsets), want.OK.OffsetsMatch || ended != ""),
	)
}

var _ = exemptVectors(
	vectorExemption{
		file: "pipe", cases: unlessQuirk(func(in pipeCase) bool { return in.errs() }),
		reason: "the log is the agent's stdout and nothing else (DESIGN 7): how a run ended is its exit status, never a chunk in the log (5.5)",
	},
	vectorExemption{
		file: "pipe", cases: unlessQuirk(func(in pipeCase) bool { return in.faulty() && !in.errs() }),
		reason: "terminal status and closing of the log are one write (DESIGN 4.1, I4), and a fault of ours is no end of the " +
			"agent (I2): the run stays as it is and the next sweep goes on from the log's end (5.5)",
	},
	vectorExemption{
		file: "pipe", cases: unlessQuirk(func(in pipeCase) bool { return in.paused() && !in.errs() && !in.faulty() }),
		reason: "a paused run is not driven: what follows a pause is a run of its own (DESIGN 4.1)",
	},
	vectorExemption{
		file: "pipe", cases: unlessQuirk(func(in pipeCase) bool { return in.cut() && !in.errs() && !in.faulty() && !in.paused() }),
		reason: "what the agent wrote is in the log, whoever ended it (DESIGN 5.6, I5): an abort drains the journal first",
	},
)

// pipeCase is one case of pipe.
type pipeCase struct {
	Now    core.Millis
	Stream []struct {
		Chunk  string
		Throws string
	}
	Abort    json.RawMessage
	Existing *struct {
		ThreadID  core.ThreadID
		StartedAt *core.Millis
		Set       record
	}
	Faults map[string]any
}

// errs tells whether the stream carries an error.
func (in pipeCase) errs() bool {
	for _, item := range in.Stream {
		if item.Throws != "" || item.Chunk == "error" {
			return true
		}
	}
	return false
}

func (in pipeCase) faulty() bool { return len(in.Faults) > 0 }

func (in pipeCase) aborted() bool { return len(in.Abort) > 0 && string(in.Abort) != "null" }

// cut tells whether the abort leaves out something that the stream has.
func (in pipeCase) cut() bool {
	var at struct{ BeforeItem, AfterItem *int }
	_ = json.Unmarshal(in.Abort, &at) // "before" is no object, and cuts all
	switch {
	case !in.aborted() || len(in.Stream) == 0:
		return false
	case at.AfterItem != nil:
		return *at.AfterItem < len(in.Stream)-1
	case at.BeforeItem != nil:
		return *at.BeforeItem < len(in.Stream)
	}
	return true
}

func (in pipeCase) paused() bool {
	return in.Existing != nil && in.Existing.Set["status"] == string(core.Interrupted)
}

// TestPipeVectors has a sweep drive a run: the stream is what its agent has
// written. An abort is a user's cancel of an agent that has not ended.
func TestPipeVectors(t *testing.T) {
	compareVectors(t, "pipe", func(t *testing.T, c vectorCase) error {
		var in pipeCase
		var want struct {
			Stored   record
			Appended []any
			Closes   int
		}
		c.decode(t, &in, &want)
		return inBubble(t, func(t *testing.T) error {
			if in.errs() || in.faulty() || in.paused() {
				return errors.New("nothing here carries such a stream or fault into a record")
			}
			w := newVectorWorld(t, in.Now)
			run := w.seedPipe(in)
			before := w.run("r")
			w.tick()
			after := w.run("r")
			closes := 0
			if after.Status.Terminal() && !before.Status.Terminal() {
				closes = 1
			}
			lines := linesOf(w.transcript("r"))
			return errors.Join(
				differ(len(lines), len(want.Appended)), differ(closes, want.Closes),
				sameStored(after, run, want.Stored),
			)
		})
	})
}

// seedPipe puts the run, detached, and what its agent has written.
func (w *vectorWorld) seedPipe(in pipeCase) core.Run {
	r := w.detachedRun("r")
	r.Thread, r.StartedAt = "t", in.Now
	if e := in.Existing; e != nil {
		r.StartedAt = 5 // the original's own
		if e.ThreadID != "" {
			r.Thread = e.ThreadID
		}
		if e.StartedAt != nil {
			r.StartedAt = *e.StartedAt
		}
		if since, ok := e.Set["detachedSince"].(float64); ok {
			r.DetachedSince = core.Millis(since)
		}
		if e.Set["cancelRequested"] == true {
			r.CancelRequested = in.Now
		}
		if k, ok := e.Set["sandboxKey"].(string); ok {
			r.SandboxKey = core.SandboxKey(k)
		}
		if s, ok := e.Set["status"].(string); ok && core.Status(s).Terminal() {
			r = endedRecord(r, core.Status(s), in.Now)
		}
	}
	if in.aborted() {
		r.CancelRequested = in.Now
	}
	r = w.launchSeeded(r)
	for range in.Stream {
		w.fleet.Write("r", "chunk\n")
	}
	if !in.aborted() {
		w.fleet.Exit("r", 0)
	}
	return r
}

// sameStored compares the stored record's members that the original has.
func sameStored(got, seeded core.Run, want record) error {
	have := record{"status": string(got.Status), "threadId": string(got.Thread), "startedAt": float64(got.StartedAt), "runId": string(got.RunKey.Run)}
	if got.FinishedAt != 0 {
		have["finishedAt"] = float64(got.FinishedAt)
	}
	if want["sandboxKey"] != nil {
		have["sandboxKey"] = string(got.SandboxKey)
	}
	if want["detachedSince"] != nil {
		have["detachedSince"] = float64(got.DetachedSince)
	}
	if want["cancelRequested"] != nil {
		have["cancelRequested"] = got.CancelRequested != 0
	}
	delete(want, "driverEpoch") // the sweep claims, the original's pipe is within a claim
	if got.DetachedSince != seeded.DetachedSince {
		return fmt.Errorf("detached since %d, was %d: a sweep clears no evidence", got.DetachedSince, seeded.DetachedSince)
	}
	return differ(have, want)
}
